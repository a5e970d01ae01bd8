//! Functions of wide and of small operands take no longer than others: no instruction underflows, which most CPUs leave to
//! microcode.

use super::*;
use crate::isa::{Isa, SUBNORMALS_FORCED};
use crate::kernels::check::{Buffer, close, size};
use crate::kernels::testing::{Rng, decode, encode, underflows};
use ep_core::parallel::Serial;

/// What is computed in f32 or f64 as its operands are, and whose factors do not make their results less.
const FUNCTIONS: [&str; 25] = [
    "atan",
    "cos",
    "cosh",
    "celu",
    "elu",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "fast_gelu",
    "gelu",
    "log",
    "log1p",
    "log_sigmoid",
    "mish",
    "quick_gelu",
    "selu",
    "sigmoid",
    "silu",
    "sin",
    "sinh",
    "soft_plus",
    "tan",
    "tanh",
];

fn kernel(name: &str, dtype: DType) -> &'static UnaryRow {
    let op = OPS.iter().position(|n| *n == name).unwrap();
    rows().iter().find(|row| row.op == op && row.src == dtype && row.dst == dtype).unwrap()
}

#[test]
fn no_instruction_underflows() {
    // Where these are fast, such instructions are taken on purpose.
    SUBNORMALS_FORCED.set(Some(false));
    let (mut rng, mut failed) = (Rng::new(), Vec::new());
    // Squares and cubes of the small ones are less than any normal f32.
    let small: &[[f64; 2]] = &[[1e-20; 2], [1e-30; 2], [1e-20, 30.0]];
    // Of the others, and of every fifth element, beside which they may be computed in another way.
    let wide: &[[f64; 2]] = &[1.0, 10.0, 40.0, 90.0, 300.0, 1e4, 1e30].map(|scale| [scale; 2]);
    for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::BASELINE) {
        for (dtype, scales) in [
            (DType::F32, [wide, small].concat()),
            (DType::BF16, [wide, small].concat()),
            (DType::F64, wide.to_vec()),
        ] {
            for (name, scale) in
                FUNCTIONS.iter().flat_map(|name| scales.iter().map(move |scale| (name, scale)))
            {
                // This is computed in f64, and what is narrowed may underflow.
                if *name == "mish" && dtype != DType::F64 {
                    continue;
                }
                // These are computed from parts, of which the lower ones are less than normal.
                if matches!(*name, "fast_gelu" | "quick_gelu") && scale[0] == 1e-30 {
                    continue;
                }
                let row = kernel(name, dtype);
                let values: Vec<f64> = (0..500)
                    .map(|i| match rng.signed() * scale[usize::from(i % 5 == 0)] {
                        x if *name == "log" => x.abs(),
                        x => x,
                    })
                    .collect();
                let mut src = Buffer::of(&encode(dtype, &values), size(dtype));
                let mut dst = Buffer::poisoned(values.len() * size(dtype), size(dtype));
                let args =
                    UnaryArgs { count: values.len(), src: src.ptr(), dst: dst.ptr(), attr: [1.0, 20.0] };
                let found = underflows(|| {
                    // SAFETY: both buffers hold `count` aligned elements.
                    unsafe { row.kernel.launch(isa, &Serial, &args) }.unwrap();
                });
                if found {
                    failed.push(format!("{name} {dtype} of up to {scale:?} at {isa}"));
                }
            }
        }
    }
    SUBNORMALS_FORCED.set(None);
    assert!(failed.is_empty(), "{failed:#?}");
}

/// What is rounded without an instruction that does it is rounded once, and what is rounded by one is right, too.
#[test]
fn subnormal_results_are_as_right_as_others() {
    let mut rng = Rng::new();
    let reference = |name: &str, x: f64| match name {
        "exp" => libm::exp(x),
        "exp2" => libm::exp2(x),
        "sigmoid" => libm::exp(x) / (1.0 + libm::exp(x)),
        _ => x * libm::exp(x) / (1.0 + libm::exp(x)),
    };
    for (isa, fast) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
        SUBNORMALS_FORCED.set(Some(fast));
        for (dtype, [first, last], ulps) in
            [(DType::F32, [-80.0, -106.0], 2.0), (DType::F64, [-700.0, -746.0], 8.0)]
        {
            // In f64 the reference of the last would lose digits itself.
            let names: &[&str] = match dtype {
                DType::F32 => &["exp", "exp2", "sigmoid", "silu"],
                _ => &["exp", "exp2", "sigmoid"],
            };
            for &name in names {
                let log2 = if name == "exp2" { std::f64::consts::LOG2_E } else { 1.0 };
                let values: Vec<f64> = (0..1000)
                    .map(|i| {
                        if i % 7 == 0 {
                            rng.signed()
                        } else {
                            log2 * (first + (last - first) * rng.signed().abs())
                        }
                    })
                    .collect();
                let src = encode(dtype, &values);
                let row = kernel(name, dtype);
                let mut src = Buffer::of(&src, size(dtype));
                let mut dst = Buffer::poisoned(values.len() * size(dtype), size(dtype));
                let args = UnaryArgs { count: values.len(), src: src.ptr(), dst: dst.ptr(), attr: [0.0; 2] };
                // SAFETY: both buffers hold `count` aligned elements.
                unsafe { row.kernel.launch(isa, &Serial, &args) }.unwrap();
                let results = decode(dtype, &dst.into_bytes());
                for (x, got) in decode(dtype, &src.into_bytes()).into_iter().zip(results) {
                    let want = reference(name, x);
                    assert!(
                        close(dtype, got, want, ulps, 0.0),
                        "{name} {dtype} of {x:e} at {isa}: {got:e}, not {want:e}"
                    );
                }
            }
        }
    }
    SUBNORMALS_FORCED.set(None);
}
