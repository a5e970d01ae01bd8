use super::*;
use crate::kernels::check::{Buffer, Val, close, decode, encode, rounded, samples, size};
use crate::kernels::testing::{Guarded, Rng, Threads};
use ep_core::Code;
use ep_core::parallel::Serial;
use primitives::reference::{Number, Unary};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, PI};

pub(crate) const ATTR: [f64; 2] = [0.75, 1.5];

fn run(row: &UnaryRow, isa: Isa, par: &dyn Parallel, src: &[u8], attr: [f64; 2]) -> Vec<u8> {
    let count = src.len() / size(row.src);
    let mut src = Buffer::of(src, size(row.src));
    let mut dst = Buffer::poisoned(count * size(row.dst), size(row.dst));
    let args = UnaryArgs { count, src: src.ptr(), dst: dst.ptr(), attr };
    // SAFETY: both buffers hold `count` aligned elements.
    unsafe { row.kernel.launch(isa, par, &args) }.unwrap();
    dst.into_bytes()
}

fn label(row: &UnaryRow) -> String {
    format!("{} {} -> {}", OPS[row.op], row.src, row.dst)
}

#[test]
fn tables_are_complete_and_unambiguous() {
    assert_eq!(OPS.len(), 72);
    for pair in rows().windows(2) {
        let key = |r: &UnaryRow| (r.op, r.src, r.dst);
        assert!(key(&pair[0]) < key(&pair[1]), "{} twice", label(&pair[1]));
    }
    for (op, name) in OPS.iter().enumerate() {
        assert!(rows().iter().any(|r| r.op == op), "{name} has no kernel");
        let first = OPS.iter().position(|n| n == name);
        assert_eq!(first, Some(op));
    }
    for name in ["exp", "relu", "gelu", "sign"] {
        let op = OPS.iter().position(|n| *n == name).unwrap();
        assert!(DType::FLOAT.iter().all(|&d| lookup(op, d, d).is_some()));
        assert!(lookup(op, DType::F32, DType::F64).is_none());
    }
    assert!(lookup(72, DType::F32, DType::F32).is_none());
    assert_eq!(rows().iter().filter(|r| OPS[r.op] == "cast").count(), 225);
}

#[test]
fn levels_threads_and_in_place_agree() {
    let mut rng = Rng::new();
    for row in rows() {
        let n = 200 + (rng.next() % 90) as usize;
        let src = samples(row.src, n, &mut rng);
        let base = decode(row.dst, &run(row, Isa::BASELINE, &Serial, &src, ATTR));
        for isa in Isa::available() {
            let want = decode(row.dst, &run(row, isa, &Serial, &src, ATTR));
            for (i, (&g, &w)) in want.iter().zip(&base).enumerate() {
                // Functions round differently with a fused multiply-add; all else is the same everywhere.
                let near = || close(row.dst, g.float(), w.float(), between_levels(row.dst), 2e-6);
                let alike = g.same(w) || row.src == row.dst && row.dst.is_float() && near();
                assert!(alike, "{} {isa} [{i}]: {g:?} is not {w:?}", label(row));
            }
            let mut data = Buffer::of(&src, size(row.src));
            let args = UnaryArgs { count: n, src: data.ptr(), dst: data.ptr(), attr: ATTR };
            // SAFETY: the buffer holds `n` aligned elements.
            let result = unsafe { row.kernel.launch(isa, &Serial, &args) };
            if size(row.src) == size(row.dst) {
                result.unwrap();
                for (i, (g, w)) in decode(row.dst, &data.into_bytes()).into_iter().zip(&want).enumerate() {
                    assert!(g.same(*w), "{} {isa} in place [{i}]: {g:?} is not {w:?}", label(row));
                }
            } else {
                assert_eq!(result.unwrap_err().code(), Code::InvalidArgument);
            }
        }
    }
}

/// Twice the limit of the least accurate function: how far apart two levels may be, in ulps.
pub(crate) fn between_levels(dtype: DType) -> f64 {
    if dtype == DType::F64 { 32.0 } else { 8.0 }
}

/// However many elements there are beside it, an element's result is the same to the bit; any NaN is any other.
#[test]
fn results_do_not_depend_on_the_length() {
    let mut rng = Rng::new();
    for row in rows().iter().filter(|r| r.src == r.dst && r.src.is_float()) {
        let src = samples(row.src, 300, &mut rng);
        for isa in Isa::available() {
            let all = run(row, isa, &Serial, &src, ATTR);
            for n in [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 100, 255, 256, 271] {
                let start = rng.next() as usize % (300 - n) * size(row.src);
                let range = start..start + n * size(row.src);
                let got = decode(row.dst, &run(row, isa, &Serial, &src[range.clone()], ATTR));
                for (i, (g, w)) in got.into_iter().zip(decode(row.dst, &all[range])).enumerate() {
                    assert!(g.same(w), "{} {isa}: {n} elements [{i}]: {g:?} is not {w:?}", label(row));
                }
            }
        }
    }
}

#[test]
fn large_and_empty_launches() {
    let mut rng = Rng::new();
    for (name, src, dst) in [
        ("relu", DType::F32, DType::F32),
        ("is_nan", DType::F64, DType::BOOL),
        ("tanh", DType::BF16, DType::BF16),
    ] {
        let op = OPS.iter().position(|n| *n == name).unwrap();
        let row = rows().iter().find(|r| (r.op, r.src, r.dst) == (op, src, dst)).unwrap();
        let bytes = samples(src, 40_007, &mut rng);
        let want = run(row, Isa::BASELINE, &Serial, &bytes, ATTR);
        assert_eq!(run(row, Isa::BASELINE, &Threads(3), &bytes, ATTR), want);
        if size(src) == size(dst) {
            let mut data = Buffer::of(&bytes, size(src));
            let args = UnaryArgs { count: 40_007, src: data.ptr(), dst: data.ptr(), attr: ATTR };
            // SAFETY: the buffer holds that many aligned elements.
            unsafe { row.kernel.launch(Isa::BASELINE, &Threads(3), &args) }.unwrap();
            assert_eq!(data.into_bytes(), want);
        }
        assert!(run(row, Isa::BASELINE, &Threads(3), &[], ATTR).is_empty());
    }
}

/// By recurrence to where the asymptotic series has converged.
fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        let r = x - x.round();
        let pole = r == 0.0 || x.is_infinite();
        return if pole { f64::NAN } else { digamma(1.0 - x) - PI / (PI * r).tan() };
    }
    let below: f64 = (0..40).map(|k| 1.0 / (x + f64::from(k))).sum();
    let y = x + 40.0;
    let z = y.powi(-2);
    if x > 1e6 {
        x.ln() - 0.5 / x
    } else {
        y.ln() - 0.5 / y - z * (1.0 / 12.0 - z * (1.0 / 120.0 - z / 252.0)) - below
    }
}

/// By recurrence to where the asymptotic series has converged.
fn trigamma(x: f64) -> f64 {
    if x < 0.5 {
        let r = x - x.round();
        let s = PI / (PI * r).sin();
        return if r == 0.0 && x.is_finite() { f64::INFINITY } else { s * s - trigamma(1.0 - x) };
    }
    let below: f64 = (0..40).map(|k| (x + f64::from(k)).powi(-2)).sum();
    let y = x + 40.0;
    let z = y.powi(-2);
    let above = 1.0 / y + 0.5 * z + z / y * (1.0 / 6.0 - z * (1.0 / 30.0 - z / 42.0));
    if x > 1e6 { 1.0 / x + 0.5 / x / x } else { below + above }
}

/// Formulas over f64 by another route than the kernels', with the attributes of [`ATTR`] and how many ulps
/// the kernel may be off.
pub(crate) fn float_reference(op: &str, x: f64) -> Option<(f64, f64)> {
    let [a0, a1] = ATTR;
    let sigmoid = |x: f64| 0.5 + 0.5 * (0.5 * x).tanh();
    let sigmoid = |x: f64| if x < -8.0 { x.exp() / (1.0 + x.exp()) } else { sigmoid(x) };
    let exact = |y: f64| Some((y, 0.51));
    let near = |y: f64| Some((y, 1.0));
    let rough = |y: f64| Some((y, 2.0));
    match op {
        "identity" => exact(x),
        "elu" => near(if x > 0.0 { x } else { a0 * x.exp_m1() }),
        "celu" => near(if x > 0.0 { x } else { a0 * (x / a0).exp_m1() }),
        "selu" => near(1.0507009873554805 * if x > 0.0 { x } else { 1.6732632423543772 * x.exp_m1() }),
        "relu" => exact(if x.is_nan() { x } else { x.max(0.0) }),
        "gelu" => near(x * (libm::erfc(-x * FRAC_1_SQRT_2) / 2.0)),
        "hard_swish" => {
            rough(if x.is_infinite() { x.max(0.0) } else { x * ((x + 3.0).clamp(0.0, 6.0) / 6.0) })
        }
        "hard_sigmoid" => rough((x + 3.0).clamp(0.0, 6.0) / 6.0),
        "hard_shrink" => exact(if x > a0 || x < -a0 || x.is_nan() { x } else { 0.0 }),
        "hard_tanh" => exact(x.clamp(a0, a1)),
        "leaky_relu" => near(if x > 0.0 { x } else { a0 * x }),
        "mish" => near(x * x.exp().ln_1p().tanh()),
        "silu" => near(x * sigmoid(x)),
        "soft_shrink" => near(if x.is_nan() { x } else { (x.abs() - a0).max(0.0).copysign(x) }),
        "soft_sign" => rough(x / (1.0 + x.abs())),
        "soft_plus" => near(if x * a0 > a1 { x } else { (x * a0).exp().ln_1p() / a0 }),
        "tanh" => near(x.tanh()),
        "threshold" => exact(if x <= a0 { a1 } else { x }),
        "fast_gelu" => {
            let u = 0.7978845608028654 * (x + 0.044714998453855515 * x.powi(3));
            near(x * sigmoid(2.0 * u))
        }
        "quick_gelu" => near(x * sigmoid(1.702 * x)),
        "square_relu" => near(if x > 0.0 { x.powi(2) } else { 0.0 }),
        "abs" => exact(if x < 0.0 { -x } else { x }),
        "acos" => near(libm::acos(x)),
        "acosh" => near(if x > 1e100 { x.ln() + LN_2 } else { x.acosh() }),
        "asin" => near(libm::asin(x)),
        "asinh" => near(if x.abs() > 1e100 { (x.abs().ln() + LN_2).copysign(x) } else { x.asinh() }),
        "atan" => near(libm::atan(x)),
        "atanh" => near(x.atanh()),
        "ceil" => exact(libm::ceil(x)),
        "cos" => near(libm::cos(x)),
        "cosh" => near(libm::cosh(x)),
        "digamma" => near(digamma(x)),
        "trigamma" => near(trigamma(x)),
        "erf" => near(libm::erf(x)),
        "erfc" => near(libm::erfc(x)),
        "exp" => near(libm::exp(x)),
        "exp2" => near(libm::exp2(x)),
        "expm1" => near(libm::expm1(x)),
        "floor" => exact(libm::floor(x)),
        "lgamma" => near(if x > 1e-3 && x < 100.0 { libm::tgamma(x).ln() } else { libm::lgamma(x) }),
        "log" => near(libm::log(x)),
        "log2" => near(libm::log2(x)),
        "log10" => near(libm::log10(x)),
        "log1p" => near(libm::log1p(x)),
        "log_sigmoid" => near(if x < -30.0 { x - x.exp() } else { -(-x).exp().ln_1p() }),
        "negative" => exact(0.0 - x),
        "reciprocal" => near(x.recip()),
        "reciprocal_no_nan" => near(if x == 0.0 { 0.0 } else { x.recip() }),
        "rint" | "round" => {
            let down = x.floor();
            let tie_up = (x - down == 0.5) && down % 2.0 != 0.0;
            exact(if x - down > 0.5 || tie_up { down + 1.0 } else { down })
        }
        "rsqrt" => rough(libm::sqrt(x).recip()),
        "sigmoid" => near(sigmoid(x)),
        "sign" => exact(if x > 0.0 {
            1.0
        } else if x < 0.0 {
            -1.0
        } else {
            0.0
        }),
        "sin" => near(libm::sin(x)),
        "sinh" => near(libm::sinh(x)),
        "sqrt" => exact(libm::sqrt(x)),
        "square" => exact(x.powi(2)),
        "tan" => near(libm::tan(x)),
        "trunc" => exact(libm::trunc(x)),
        "not_equal_zero" => exact(f64::from(u8::from(x != 0.0))),
        "nan_assign" => exact(if x.is_nan() { 0.0 } else { x }),
        _ => None,
    }
}

#[test]
fn float_ops_match_their_formulas() {
    let mut rng = Rng::new();
    let mut rows_checked = 0;
    let mut wrong = Vec::new();
    for row in rows().iter().filter(|r| r.src == r.dst && r.src.is_float()) {
        let src = samples(row.src, 600, &mut rng);
        let got = decode(row.dst, &run(row, *Isa::available().last().unwrap(), &Serial, &src, ATTR));
        for (x, got) in decode(row.src, &src).into_iter().zip(got) {
            let (x, got) = (x.float(), got.float());
            let Some((want, ulps)) = float_reference(OPS[row.op], x) else {
                assert_eq!(OPS[row.op], "cast");
                continue;
            };
            // What a function may be off in f32; the narrower dtypes and exact ops are held to less.
            let ulps = match OPS[row.op] {
                _ if row.dst != DType::F32 || ulps == 0.51 => ulps,
                "tan" | "erfc" | "lgamma" | "digamma" | "trigamma" => 4.0,
                _ => 2.0,
            };
            // In f64 the references themselves are no better than this.
            let (ulps, slack) = if row.dst == DType::F64 && ulps != 0.51 {
                (2048.0, 1e-14)
            } else {
                (ulps, if OPS[row.op] == "lgamma" { 1e-12 } else { 0.0 })
            };
            // The attributes are not powers of two, so f16 arithmetic may round at another place.
            if !close(row.dst, got, want, ulps, slack) {
                wrong.push(format!("{} of {x:e}: {got:e}, not {want:e}", label(row)));
            }
        }
        rows_checked += 1;
    }
    assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(100)]);
    assert!(rows_checked >= 4 * 58, "{rows_checked}");
}

#[test]
fn integer_and_bool_ops_match_their_formulas() {
    let mut rng = Rng::new();
    let integers = |r: &&UnaryRow| r.src == r.dst && (r.src.is_int() || r.src == DType::BOOL);
    for row in rows().iter().filter(integers) {
        let src = samples(row.src, 150, &mut rng);
        let got = decode(row.dst, &run(row, *Isa::available().last().unwrap(), &Serial, &src, ATTR));
        for (x, got) in decode(row.src, &src).into_iter().zip(got) {
            let x = x.int();
            let want = match OPS[row.op] {
                "abs" => x.abs(),
                "relu" => x.max(0),
                "square" => x.wrapping_mul(x),
                "square_relu" => x.max(0).wrapping_mul(x.max(0)),
                "negative" => -x,
                "sign" => x.signum(),
                "not_equal_zero" => i128::from(x != 0),
                "logical_not" => i128::from(x == 0),
                "bitwise_not" if row.src == DType::BOOL => 1 - x,
                "bitwise_not" => -1 - x,
                "is_inf" | "is_nan" => 0,
                "is_finite" => 1,
                _ => x,
            };
            let want = rounded(row.dst, Val::Int(want));
            assert!(got.same(want), "{} of {x}: {got:?}, not {want:?}", label(row));
        }
    }
}

#[test]
fn tests_of_values_match_their_formulas() {
    let mut rng = Rng::new();
    let tests = ["is_inf", "is_nan", "is_finite", "logical_not"];
    for row in rows().iter().filter(|r| tests.contains(&OPS[r.op])) {
        let src = samples(row.src, 150, &mut rng);
        let got = run(row, *Isa::available().last().unwrap(), &Serial, &src, ATTR);
        for (x, got) in decode(row.src, &src).into_iter().zip(got) {
            let want = match OPS[row.op] {
                "is_inf" => x.float().abs() == f64::INFINITY,
                "is_nan" => x.float().is_nan(),
                "is_finite" => x.float().is_finite(),
                _ => !x.truth(),
            };
            assert_eq!(got, u8::from(want), "{} of {x:?}", label(row));
        }
    }
}

#[test]
fn complex_ops_match_their_formulas() {
    let mut rng = Rng::new();
    let complex = |r: &&UnaryRow| (r.src.is_complex() || r.dst.is_complex()) && OPS[r.op] != "cast";
    for row in rows().iter().filter(complex) {
        let src = samples(row.src, 300, &mut rng);
        let got = decode(row.dst, &run(row, *Isa::available().last().unwrap(), &Serial, &src, ATTR));
        for (x, got) in decode(row.src, &src).into_iter().zip(got) {
            let (re, im) = if let Val::Complex(re, im) = x { (re, im) } else { (x.float(), 0.0) };
            let norm = re * re + im * im;
            let polar = |r: f64, angle: f64| Val::Complex(r * angle.cos(), r * angle.sin());
            let everyday = |x: f64| x == 0.0 || x.abs() > 1e-12 && x.abs() < 60.0;
            let exact = match OPS[row.op] {
                "identity" => Some(Val::Complex(re, im)),
                "conj" => Some(Val::Complex(re, -im)),
                "negative" => Some(Val::Complex(-re, -im)),
                "real" => Some(Val::Float(re)),
                "imag" => Some(Val::Float(im)),
                "real_grad" => Some(Val::Complex(re, 0.0)),
                "imag_grad" => Some(Val::Complex(0.0, re)),
                _ => None,
            };
            if let Some(want) = exact {
                assert!(got.same(rounded(row.dst, want)), "{} of {x:?}: {got:?}", label(row));
                continue;
            }
            // The formulas below are naive; extremes are in the next test.
            if !everyday(re) || !everyday(im) || norm == 0.0 {
                continue;
            }
            let want = match OPS[row.op] {
                "square" => Val::Complex((re - im) * (re + im), 2.0 * re * im),
                "reciprocal" => Val::Complex(re / norm, -im / norm),
                "sqrt" => polar(norm.powf(0.25), im.atan2(re) / 2.0),
                "exp" => polar(re.exp(), im),
                other => panic!("no formula for {other}"),
            };
            let (Val::Complex(gr, gi), Val::Complex(wr, wi)) = (got, want) else { panic!("{got:?}") };
            let tolerance = if row.src == DType::COMPLEX64 { 1e-7 } else { 1e-14 } * wr.hypot(wi);
            assert!(
                (gr - wr).abs() <= tolerance && (gi - wi).abs() <= tolerance,
                "{} of {x:?}: {got:?}",
                label(row)
            );
        }
    }
}

#[test]
fn complex_extremes() {
    let apply = |name: &str, re: f64, im: f64| {
        let op = OPS.iter().position(|n| *n == name).unwrap();
        let row = rows().iter().find(|r| r.op == op && r.src == DType::COMPLEX128).unwrap();
        let src = encode(row.src, Val::Complex(re, im));
        decode(row.dst, &run(row, Isa::BASELINE, &Serial, &src, ATTR))[0]
    };
    let inf = f64::INFINITY;
    for (name, input, want) in [
        ("sqrt", (-4.0, 0.0), (0.0, 2.0)),
        ("sqrt", (-4.0, -0.0), (0.0, -2.0)),
        ("sqrt", (-0.0, -0.0), (0.0, -0.0)),
        ("sqrt", (1e308, 0.0), (1e154, 0.0)),
        ("sqrt", (-inf, 1.0), (0.0, inf)),
        ("sqrt", (inf, -1.0), (inf, -0.0)),
        ("sqrt", (f64::NAN, inf), (inf, inf)),
        ("reciprocal", (1e300, 0.0), (1e-300, 0.0)),
        ("reciprocal", (0.0, 2f64.powi(-990)), (0.0, -2f64.powi(990))),
        ("exp", (-inf, 0.0), (0.0, 0.0)),
        ("exp", (0.0, -0.0), (1.0, -0.0)),
    ] {
        let got = apply(name, input.0, input.1);
        let Val::Complex(re, im) = got else { panic!("{name} of {input:?}: {got:?}") };
        let alike = |g: f64, w: f64| {
            Val::Float(g).same(Val::Float(w)) || w != 0.0 && close(DType::F64, g, w, 4.0, 0.0)
        };
        assert!(alike(re, want.0) && alike(im, want.1), "{name} of {input:?}: {got:?}");
    }
}

/// What the values at the ends must be, beyond what the formulas say.
#[test]
fn activations_are_stable_at_the_ends() {
    let apply = |name: &str, x: f64, attr: [f64; 2]| {
        let op = OPS.iter().position(|n| *n == name).unwrap();
        let row = rows().iter().find(|r| r.op == op && r.src == DType::F32).unwrap();
        decode(row.dst, &run(row, Isa::BASELINE, &Serial, &encode(row.src, Val::Float(x)), attr))[0].float()
    };
    assert_eq!(apply("mish", 1e30, ATTR), f64::from(1e30f32));
    assert_eq!(apply("log_sigmoid", -1e30, ATTR), f64::from(-1e30f32));
    assert_eq!(apply("soft_plus", 1e4, [1.0, 1e9]), 1e4);
    assert_eq!(apply("relu", f64::NAN, ATTR).to_bits() & 1 << 51, 1 << 51);
    assert_eq!((apply("round", 2.5, ATTR), apply("rint", -3.5, ATTR)), (2.0, -4.0));
    assert!(
        (apply("log2", 8.0, ATTR) - 3.0).abs() < 1e-9 && (apply("exp2", 10.0, ATTR) - 1024.0).abs() < 1e-9
    );
    assert!((apply("soft_plus", 0.0, [2.0, 20.0]) - LN_2 / 2.0).abs() < 1e-7);
    assert!((apply("digamma", 1.0, ATTR) + 0.5772156649).abs() < 1e-7);
    assert!((apply("trigamma", 1.0, ATTR) - PI * PI / 6.0).abs() < 1e-7);
}

/// Rounds an integer or float to a float dtype by trying its neighbours.
fn cast_reference(src: Val, dst: DType) -> Val {
    let saturated = |x: f64| {
        let bits = 8 * size(dst) as u32;
        let signed = [DType::I8, DType::I16, DType::I32, DType::I64].contains(&dst);
        let (low, high) =
            if signed { (-(1i128 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        Val::Int((x as i128).clamp(low, high))
    };
    match dst {
        DType::BOOL => Val::Int(src.truth().into()),
        _ if dst.is_complex() => match src {
            Val::Complex(..) => rounded(dst, src),
            _ => {
                let part = if dst == DType::COMPLEX64 { DType::F32 } else { DType::F64 };
                Val::Complex(cast_reference(src, part).float(), 0.0)
            }
        },
        _ if dst.is_int() => match src {
            Val::Int(_) => rounded(dst, src),
            other => saturated(other.float()),
        },
        DType::F32 => match src {
            Val::Int(i) => Val::Float((i as f32).into()),
            other => rounded(dst, Val::Float(other.float())),
        },
        DType::F64 => Val::Float(src.float()),
        _ => match src {
            // i128 to f64 may round; a sticky bit keeps a tie from appearing where there was none.
            Val::Int(i) if i.unsigned_abs() >= 1 << 53 => {
                let odd = i.signum() * ((i.abs() >> 12 << 12) | (i128::from(i.abs() & 0xfff != 0) << 12));
                rounded(dst, Val::Float(odd as f64))
            }
            other => rounded(dst, Val::Float(other.float())),
        },
    }
}

#[test]
fn casts_round_once_saturate_and_wrap() {
    let mut rng = Rng::new();
    let op = OPS.iter().position(|n| *n == "cast").unwrap();
    for row in rows().iter().filter(|r| r.op == op) {
        let mut src = samples(row.src, 250, &mut rng);
        if row.src.is_int() && size(row.src) >= 4 {
            // Just past a tie of bf16 after f32 has rounded it away, and of f32 after f64 has; just before one; and where f32 and
            // f64 begin to lose digits.
            let ties = [(0x101 << 22) | 1, (0x101 << 54) | 1, (1 << 54) | (1 << 30) | 1];
            let before = [(0x101 << 22) - 1, (0x101 << 54) - 1, (0x103 << 20) - 1, (0x101 << 16) - 1];
            let borders = [24, 31, 32, 53].map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]);
            for v in ties.into_iter().chain(before).chain(borders.into_iter().flatten()) {
                let fits = |v: &i128| decode(row.src, &encode(row.src, Val::Int(*v)))[0].int() == *v;
                for v in [v, -v].iter().filter(|v| fits(v)) {
                    src.extend(encode(row.src, Val::Int(*v)));
                }
            }
        }
        if row.src == DType::F64 {
            for v in
                [1.0 + 2f64.powi(-11) + 2f64.powi(-40), 1.0 + 2f64.powi(-8) - 2f64.powi(-50), 65519.999999]
            {
                src.extend(encode(row.src, Val::Float(v)));
            }
        }
        let got = decode(row.dst, &run(row, *Isa::available().last().unwrap(), &Serial, &src, ATTR));
        for (x, got) in decode(row.src, &src).into_iter().zip(got) {
            let want = cast_reference(x, row.dst);
            assert!(got.same(want), "{} of {x:?}: {got:?}, not {want:?}", label(row));
        }
    }
}

/// Signs of zeros and of NaN too.
#[test]
fn every_half_loses_changes_or_keeps_its_sign() {
    for (dtype, infinity) in [(DType::F16, 0x7c00), (DType::BF16, 0x7f80u16)] {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let src: Vec<u8> = all.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
        let is_nan = |bits: u16| bits & 0x7fff > infinity;
        let relu = |bits: u16| if bits >> 15 == 1 && !is_nan(bits) { 0 } else { bits };
        let ops: [(&str, &dyn Fn(u16) -> u16); 3] =
            [("abs", &|bits| bits & 0x7fff), ("negative", &|bits| bits ^ 0x8000), ("relu", &relu)];
        for (name, want) in ops {
            let row = rows().iter().find(|r| OPS[r.op] == name && r.src == dtype).unwrap();
            for isa in Isa::available() {
                let got = run(row, isa, &Serial, &src, ATTR);
                for (bits, got) in all.iter().zip(got.chunks_exact(2)) {
                    let got = u16::from_ne_bytes([got[0], got[1]]);
                    assert_eq!(got, want(*bits), "{name} of {bits:#x} in {dtype} at {isa}");
                }
            }
        }
    }
}

/// In f64, where nearly all of a result's digits cancel, and where an exponential grows the error of its argument:
/// against the exact values, rounded.
#[test]
fn doubles_are_accurate_where_that_is_hard() {
    let mut rng = Rng::new();
    let mut unit = || (rng.next() >> 11) as f64 * 2f64.powi(-53);
    // gelu about a known bad place and all over the tail, and erfc where it is as small.
    let mut tail = vec![-10.03890432057823, -1.4351958229635167, -31.52032612832585];
    tail.extend((0..400).map(|i| if i % 2 == 0 { -10.05 + unit() - 0.5 } else { -38.0 * unit() }));
    let far: Vec<f64> = tail.iter().map(|x| -0.7 * x).collect();
    // digamma(-n + r) is about ln(n) - 1 / r: make that 2 and more.
    let steep = |n: f64, value: f64| -n + 1.0 / (n.ln() - value);
    let mut roots: Vec<f64> = (0..400)
        .map(|i| steep((8.0 + 40.0 * unit()).exp2().floor(), 2.0 + 6.0 * unit() * f64::from(i % 2)))
        .collect();
    roots.push(steep(6.6e11, 3.9));
    // lgamma(-n + r) is about -ln(n! r).
    let mut poles = vec![-14.000000000112731, -12.99999999385963];
    poles.extend((0..400).map(|i| {
        let n = 9.0 + (11.0 * unit()).floor();
        let side = if i % 2 == 0 { 1.0 } else { -1.0 };
        -n + side * (-libm::lgamma(n + 1.0) + 8.0 * (unit() - 0.5)).exp()
    }));
    // The last ones are so near that some are the pole itself.
    poles.retain(|x| x.fract() != 0.0);
    for (name, limit, points) in
        [("gelu", 4.0, &tail), ("erfc", 4.0, &far), ("digamma", 16.0, &roots), ("lgamma", 16.0, &poles)]
    {
        let op = OPS.iter().position(|n| *n == name).unwrap();
        let row = rows().iter().find(|r| r.op == op && r.src == DType::F64 && r.dst == DType::F64).unwrap();
        let exact = Unary::new(name, DType::F64, DType::F64, ATTR).unwrap();
        let wants: Vec<f64> = points.iter().map(|&x| exact.apply(Number::Real(x)).re()).collect();
        let src: Vec<u8> = points.iter().flat_map(|x| x.to_ne_bytes()).collect();
        for isa in Isa::available() {
            let got = decode(row.dst, &run(row, isa, &Serial, &src, ATTR));
            for ((x, want), got) in points.iter().zip(&wants).zip(got) {
                let ulps = (got.float() - want).abs() / (want.abs().next_up() - want.abs());
                // Below 2, what cancels is judged by its own size.
                let near = name.ends_with("gamma") && want.abs() < 2.0;
                assert!(near || ulps <= limit, "{name} {isa} of {x:e}: {got:?}, not {want:e}: {ulps} ulps");
            }
        }
    }
}

/// With an alpha below 0 celu grows as fast as the exponential of a quotient, and is finite where that is not.
#[test]
fn celu_grows_accurately_where_alpha_is_below_zero() {
    let op = OPS.iter().position(|n| *n == "celu").unwrap();
    let mut rng = Rng::new();
    for row in rows().iter().filter(|r| r.op == op) {
        let (most, limit) = match row.dst {
            DType::F16 => (65_504.0, 1.0),
            DType::BF16 => (3.39e38, 1.0),
            DType::F32 => (f64::from(f32::MAX), 1.0),
            _ => (f64::MAX, 4.0),
        };
        let extreme: &[f64] = if row.dst == DType::F64 {
            &[-2.3e-308, -1e-308, -1e-310, -5e-324, -1e300, -1.4e300, -1e301, -1e303]
        } else {
            &[]
        };
        for &alpha in [-0.5, -1.0, -3.3, -1e4, -1e-6, -1e-30].iter().chain(extreme) {
            let exact = Unary::new("celu", row.src, row.dst, [alpha, 0.0]).unwrap();
            let last = f64::ln(most) - f64::ln(-alpha);
            // As many near the end of the range, and past it.
            let mut values: Vec<f64> = (0..600)
                .map(|i| {
                    let part = (rng.next() >> 11) as f64 * 2f64.powi(-53);
                    alpha * last * if i % 2 == 0 { part } else { 0.97 + 0.04 * part }
                })
                .collect();
            values.extend([
                0.0,
                -0.0,
                2.5,
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                -1e-300,
                -1e-20,
                -1e-10,
            ]);
            let values: Vec<Val> = values.into_iter().map(|x| rounded(row.src, Val::Float(x))).collect();
            let src: Vec<u8> = values.iter().flat_map(|&x| encode(row.src, x)).collect();
            let wants: Vec<f64> = values.iter().map(|x| exact.apply(Number::Real(x.float())).re()).collect();
            assert!(
                row.dst == DType::F16
                    || alpha < -1e299
                    || wants.iter().any(|w| w.abs() > 1e-3 * most && w.is_finite())
            );
            for isa in Isa::available() {
                let got = decode(row.dst, &run(row, isa, &Serial, &src, [alpha, 0.0]));
                for ((x, &want), got) in values.iter().zip(&wants).zip(got) {
                    assert!(
                        close(row.dst, got.float(), want, limit, 0.0),
                        "{} {isa} with {alpha} of {x:?}: {got:?}, not {want:e}",
                        label(row)
                    );
                }
            }
        }
    }
}

struct Twice;

impl Op<f32, f32> for Twice {
    const COST: Cost = Cost::Cheap;

    fn apply(x: f32, _: [f64; 2]) -> f32 {
        x + x
    }
}

/// Whatever this CPU would choose.
#[test]
fn lines_may_be_asked_for_at_every_length() {
    for n in (0..3).chain([63, 64, 65, 127, 200, 1000]) {
        let src: Vec<f32> = (0..n).map(|i| i as f32).collect();
        for isa in Isa::available() {
            let mut dst = Guarded::<f32>::new(n);
            // SAFETY: so many elements.
            let to = unsafe { slice::from_raw_parts_mut(dst.ptr().cast(), n) };
            let map =
                Map::<Twice, f32, f32> { src: &src, dst: to, attr: [0.0; 2], ahead: 0, op: PhantomData };
            isa.dispatch(Asking(map));
            assert!(dst.written().iter().zip(&src).all(|(y, x)| *y == 2.0 * x), "{n} {isa}");
        }
    }
}
