//! Measures how far the CPU provider's float ops are from the true values.
//!
//! [`measure`] runs one op in one dtype at one instruction-set level on many points and judges every result by
//! formulas of its own ([`unary`], [`binary`]): in `f64` for f16, bf16 and f32, in double-double for f64.
//!
//! An error is counted in ulps: the distance of the two numbers next to the true value, as the dtype has
//! them. The limits are in [`limit`].

pub mod binary;
pub mod dd;
mod edges;
pub mod gamma;
mod points;
pub mod real;
pub mod unary;

use dd::Dd;
use ep_core::DType;
use ep_core::parallel::Serial;
use ep_cpu::isa::Isa;
use ep_cpu::kernels::{binary as binary_kernels, unary as unary_kernels};
use half::{bf16, f16};
pub use points::Plan;
use primitives::reference::{Binary, Number, Unary};
use real::Real;
use std::fmt::Write as _;

/// The dtypes judged.
pub const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// The attributes that the ops get: alpha, lambda, beta, min, threshold or base; and max, threshold or value.
/// Exact in every dtype.
pub const ATTR: [f64; 2] = [0.75, 1.5];

/// An op with a kernel from a float dtype to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Of one operand.
    Unary(&'static str),
    /// Of two.
    Binary(&'static str),
}

impl Op {
    /// All that have a float formula.
    pub fn all() -> Vec<Op> {
        let unary = unary_kernels::OPS
            .iter()
            .copied()
            .filter(|op| unary::value::<f64>(op, 0.5, ATTR, false).is_some());
        let binary = binary_kernels::OPS
            .iter()
            .copied()
            .filter(|op| binary::value::<f64>(op, 2.5, 0.5, ATTR, 5.0).is_some());
        unary.map(Op::Unary).chain(binary.map(Op::Binary)).collect()
    }

    /// As the schema names it.
    pub fn name(self) -> &'static str {
        match self {
            Op::Unary(name) | Op::Binary(name) => name,
        }
    }
}

/// What a result may be off.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// In ulps.
    pub ulps: f64,
    /// Or this much, where the value is near a root.
    pub absolute: f64,
}

/// The limit of an op in a dtype: 1 ulp in f16 and bf16, 2 in f32, 4 in f64; of `pow`, `tan`, `erfc`, the gamma
/// family and `zeta`, and the gradients that contain them, 4 in f32 and 16 in f64. Near a root, 1e-6 in f32 and
/// 2e-14 in f64, where logarithms of up to 36 cancel.
pub fn limit(op: Op, dtype: DType) -> Limit {
    const HARD: [&str; 10] = [
        "pow",
        "tan",
        "erfc",
        "lgamma",
        "digamma",
        "trigamma",
        "zeta",
        "tan_backward_with_dy_x",
        "lgamma_backward_with_dy_x",
        "digamma_backward_with_dy_x",
    ];
    const ROOTED: [&str; 4] = ["lgamma", "digamma", "zeta", "lgamma_backward_with_dy_x"];
    let name = op.name();
    let hard = HARD.contains(&name);
    let ulps = match dtype {
        DType::F16 | DType::BF16 => 1.0,
        DType::F32 => {
            if hard {
                4.0
            } else {
                2.0
            }
        }
        _ if hard => 16.0,
        _ => 4.0,
    };
    let absolute = match dtype {
        _ if !ROOTED.contains(&name) => 0.0,
        DType::F64 => 2e-14,
        _ => 1e-6,
    };
    Limit { ulps, absolute }
}

/// Nearer to zero than this, a function with roots is near one.
const NEAR_ROOT: f64 = 2.0;

/// The largest error that was found.
#[derive(Clone, Debug, Default)]
pub struct Worst {
    /// In ulps, less what the rule for cancellation allows; infinite for a NaN or infinity that is not right.
    pub ulps: f64,
    /// The operands.
    pub at: [f64; 2],
    /// The result.
    pub got: f64,
    /// The true value, rounded.
    pub want: f64,
    /// How many points were judged.
    pub points: u64,
}

impl Worst {
    fn add(&mut self, other: &Worst) {
        let points = self.points + other.points;
        if other.ulps > self.ulps {
            *self = other.clone();
        }
        self.points = points;
    }

    /// The operands as text.
    pub fn place(&self, op: Op) -> String {
        let mut text = format!("{:e}", self.at[0]);
        if let Op::Binary(_) = op {
            let _ = write!(text, ", {:e}", self.at[1]);
        }
        text
    }
}

/// A float dtype as the judge sees it.
#[derive(Clone, Copy)]
struct Format {
    dtype: DType,
    /// Digits after the leading one.
    digits: i32,
    /// Exponent of the least number.
    least: i32,
    max: f64,
}

impl Format {
    fn of(dtype: DType) -> Format {
        let (digits, least, max) = match dtype {
            DType::F16 => (10, -24, 65504.0),
            DType::BF16 => (7, -133, f64::from(bf16::MAX)),
            DType::F32 => (23, -149, f64::from(f32::MAX)),
            _ => (52, -1074, f64::MAX),
        };
        Format { dtype, digits, least, max }
    }

    /// The least number.
    fn tiny(self) -> f64 {
        libm::ldexp(1.0, self.least)
    }

    /// The least number that has all digits, in the type computed in.
    fn normal(self) -> f64 {
        if self.dtype == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE.into() }
    }

    fn size(self) -> usize {
        match self.dtype {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            _ => 8,
        }
    }

    /// The distance between the numbers next to `x`.
    fn ulp(self, x: f64) -> f64 {
        let exponent = if x == 0.0 || !x.is_finite() { self.least } else { libm::ilogb(x) - self.digits };
        libm::ldexp(1.0, exponent.max(self.least))
    }

    /// Rounded to the type that kernels of the dtype compute in.
    fn computed(self, x: f64) -> f64 {
        if self.dtype == DType::F64 { x } else { f64::from(x as f32) }
    }

    fn decode(self, bytes: &[u8]) -> Vec<f64> {
        let half = |b: &[u8]| u16::from_ne_bytes([b[0], b[1]]);
        match self.dtype {
            DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_bits(half(b)).into()).collect(),
            DType::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_bits(half(b)).into()).collect(),
            DType::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into()).collect()
            }
            _ => bytes
                .chunks_exact(8)
                .map(|b| f64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
                .collect(),
        }
    }
}

/// Runs `op` at `isa` on the points of `plan` and judges each result. `progress` is called with how many points
/// are done, now and then. `None` if there is no such kernel.
pub fn measure(op: Op, dtype: DType, isa: Isa, plan: &Plan, progress: &mut dyn FnMut(u64)) -> Option<Worst> {
    let format = Format::of(dtype);
    launch(op, dtype, isa, [&[], &[]], 0)?;
    let mut worst = Worst::default();
    plan.batches(op, format, &mut |operands: [&[u8]; 2]| {
        let n = operands[0].len() / format.size();
        let got = launch(op, dtype, isa, operands, n).unwrap_or_default();
        worst.add(&judge_all(op, format, operands, &got));
        progress(worst.points);
    });
    Some(worst)
}

/// Launches the kernel; `None` if there is none.
fn launch(op: Op, dtype: DType, isa: Isa, operands: [&[u8]; 2], n: usize) -> Option<Vec<u8>> {
    // Words of 8 bytes, so that every element is aligned.
    let aligned = |bytes: &[u8]| -> Vec<u64> {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut full = [0; 8];
            full[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(full);
        }
        words
    };
    let sources = operands.map(aligned);
    let mut dst = vec![u64::MAX; operands[0].len().div_ceil(8)];
    let result = match op {
        Op::Unary(name) => {
            let index = unary_kernels::OPS.iter().position(|n| *n == name)?;
            let kernel = unary_kernels::lookup(index, dtype, dtype)?;
            let args = unary_kernels::UnaryArgs {
                count: n,
                src: sources[0].as_ptr().cast(),
                dst: dst.as_mut_ptr().cast(),
                attr: ATTR,
            };
            // SAFETY: source and destination hold `n` aligned elements and do not overlap.
            unsafe { kernel.launch(isa, &Serial, &args) }
        }
        Op::Binary(name) => {
            let index = binary_kernels::OPS.iter().position(|n| *n == name)?;
            let kernel = binary_kernels::lookup(index, dtype, dtype)?;
            let dims = [n as i64];
            let args = binary_kernels::BinaryArgs {
                src0_dims: &dims,
                src1_dims: &dims,
                src0: sources[0].as_ptr().cast(),
                src1: sources[1].as_ptr().cast(),
                dst: dst.as_mut_ptr().cast(),
                attr: ATTR,
            };
            // SAFETY: as above, for both sources.
            unsafe { kernel.launch(isa, &Serial, &args) }
        }
    };
    result.ok()?;
    let mut bytes: Vec<u8> = dst.iter().flat_map(|w| w.to_ne_bytes()).collect();
    bytes.truncate(operands[0].len());
    Some(bytes)
}

/// Judges a batch, split over the threads of the machine.
fn judge_all(op: Op, format: Format, operands: [&[u8]; 2], got: &[u8]) -> Worst {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let n = got.len() / format.size();
    let part = n.div_ceil(threads).max(1) * format.size();
    let mut worst = Worst::default();
    std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..got.len())
            .step_by(part)
            .map(|start| {
                let end = (start + part).min(got.len());
                let cut =
                    |bytes: &[u8]| format.decode(if bytes.is_empty() { &[] } else { &bytes[start..end] });
                let (x, y, got) = (cut(operands[0]), cut(operands[1]), cut(got));
                scope.spawn(move || judge_part(op, format, &x, &y, &got))
            })
            .collect();
        for task in tasks {
            worst.add(&task.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    worst
}

fn judge_part(op: Op, format: Format, x: &[f64], y: &[f64], got: &[f64]) -> Worst {
    let judge = Judge { op, format, limit: limit(op, format.dtype) };
    let mut worst = Worst::default();
    for (i, &got) in got.iter().enumerate() {
        let at = [x[i], y.get(i).copied().unwrap_or(0.0)];
        let (ulps, want) =
            if format.dtype == DType::F64 { judge.error::<Dd>(at, got) } else { judge.error::<f64>(at, got) };
        worst.add(&Worst { ulps, at, got, want, points: 1 });
    }
    worst
}

/// What judges the results of an op in a dtype.
struct Judge {
    op: Op,
    format: Format,
    limit: Limit,
}

/// What a result may be off, beside its ulps.
#[derive(Clone, Copy)]
struct Slack {
    /// Always.
    absolute: f64,
    /// What the limit near a root is multiplied with.
    factor: f64,
}

impl Judge {
    /// The error of `got` in ulps, and the true value.
    ///
    /// What the formulas call an error, and what is so small that they have few digits left themselves, is judged
    /// again by the reference implementation, whose numbers have more digits and exponents without end.
    fn error<R: Real>(&self, at: [f64; 2], got: f64) -> (f64, f64) {
        let (value, slack) = self.formula::<R>(at, got);
        let ulps = self.distance(at, got, value.parts(), slack);
        let high = value.parts().0;
        let faint = self.format.dtype == DType::F64 && high.abs() < 1e-290 && (high != 0.0 || got != 0.0);
        if ulps <= self.limit.ulps && !faint {
            return (ulps, high);
        }
        let want = self.reference(at);
        (self.distance(at, got, (want, 0.0), slack), want)
    }

    /// The true value, correctly rounded.
    fn reference(&self, [x, y]: [f64; 2]) -> f64 {
        let (dtype, [x, y]) = (self.format.dtype, [x, y].map(Number::Real));
        let number = match self.op {
            Op::Unary(name) => Unary::new(name, dtype, dtype, ATTR).map(|f| f.apply(x)),
            Op::Binary(name) => Binary::new(name, dtype, dtype, ATTR).map(|f| f.apply(x, y)),
        };
        number.map_or(f64::NAN, Number::re)
    }

    fn formula<R: Real>(&self, [x, y]: [f64; 2], got: f64) -> (R, Slack) {
        let format = self.format;
        let unknown = (R::from(f64::NAN), Slack { absolute: 0.0, factor: 1.0 });
        let name = match self.op {
            Op::Unary(name) => {
                let above = format.computed(x * ATTR[0]) > ATTR[1];
                return unary::value::<R>(name, x, ATTR, above).map_or(unknown, |value| (value, unknown.1));
            }
            Op::Binary(name) => name,
        };
        let quotient = if name == "trunc_div" {
            format.computed(x / y)
        } else {
            f64::from(u8::from(format.computed(y * ATTR[0]) > ATTR[1]))
        };
        let Some(judged) = binary::value::<R>(name, x, y, ATTR, quotient) else { return unknown };
        let mut absolute = 3.0 * libm::ldexp(judged.terms, -format.digits.max(23));
        let mut factor = 1.0;
        if let Some(derivative) = judged.derivative {
            let dy = if name.ends_with("power_grad") { y } else { x };
            let size = derivative.abs().parts().0;
            // A derivative that the type computed in cannot hold: the product is that of its limit.
            let normal = format.normal();
            let limit = if size > format.max {
                f64::INFINITY
            } else if size < normal {
                0.0
            } else {
                size
            };
            if limit != size && (dy.abs() * limit == got.abs() || (dy * limit).is_nan() && got.is_nan()) {
                return (R::from(got), unknown.1);
            }
            if dy.is_finite() {
                factor = dy.abs();
                // So close to the least normal number, a step on the way may have been below it.
                absolute += factor * if size < 1024.0 * normal { normal } else { format.tiny() };
            }
        }
        (judged.value, Slack { absolute, factor })
    }

    /// How many ulps `got` is off what it should be, the sum of both numbers.
    fn distance(&self, [_, y]: [f64; 2], got: f64, (high, low): (f64, f64), slack: Slack) -> f64 {
        let format = self.format;
        if high.is_nan() || got.is_nan() {
            return if high.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
        }
        // Past the largest number comes infinity, one ulp on.
        let past = format.max + format.ulp(format.max);
        let past = if past.is_finite() { past } else { f64::MAX };
        let inside = |x: f64| if x.is_infinite() { past.copysign(x) } else { x };
        if high.is_infinite() || high.abs() > past {
            // The sign at the end of the gap that acosh has is open.
            let open = self.op.name() == "acosh_backward_with_dy_x" && y == -1.0;
            return if got.is_infinite() && (got.signum() == high.signum() || open) {
                0.0
            } else if got.abs() == format.max {
                1.0
            } else {
                f64::INFINITY
            };
        }
        if got.is_infinite() && high.abs() < format.max - 4.0 * format.ulp(format.max) {
            return f64::INFINITY;
        }
        let error = ((inside(got) - high) - low).abs();
        let ulps = (error - slack.absolute).max(0.0) / format.ulp(high);
        // Above zero, the terms of zeta are all of one sign.
        let rooted = self.limit.absolute > 0.0 && !(self.op.name() == "zeta" && y > 0.0);
        let near = rooted && high.abs() < NEAR_ROOT * slack.factor;
        if near && error <= slack.absolute + self.limit.absolute * slack.factor {
            ulps.min(self.limit.ulps)
        } else {
            ulps
        }
    }
}
