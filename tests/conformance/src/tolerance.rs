//! How far an element may be from the reference.
//!
//! The references are exact results rounded once, so an op that is exact or a single rounding must match within
//! its documented ulp limit. Ops that accumulate have an absolute part too, which bounds the rounding of the
//! accumulation in the dtype that the contract says (f32 for f16 and bf16), from the number of terms and their
//! size: never a norm over the whole output.

use crate::case::{Case, Content};
use ep_core::DType;
use primitives::reference::Number;
use std::fmt;

/// A bound for one element: the sum of both parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// In units of the last place of the expected value.
    pub ulp: f64,
    /// Absolute.
    pub absolute: f64,
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ulp, self.absolute) {
            (0.0, 0.0) => f.write_str("exactly"),
            (ulp, 0.0) => write!(f, "within {ulp} ulp"),
            (0.0, absolute) => write!(f, "within {absolute:?}"),
            (ulp, absolute) => write!(f, "within {ulp} ulp + {absolute:?}"),
        }
    }
}

/// Functions with a wider limit.
const HARD: [&str; 7] = ["pow", "tan", "erfc", "lgamma", "digamma", "trigamma", "zeta"];
/// Those of them with roots, near which 1e-6 absolute holds (f32; 2e-14 for f64).
const ROOTED: [&str; 4] = ["tan", "lgamma", "digamma", "zeta"];
/// Approximations by their own definition.
const COMPOSED: [&str; 2] = ["fast_gelu", "quick_gelu"];

/// The distance to the next float of the dtype's format at this size.
pub fn spacing(dtype: DType, x: f64) -> f64 {
    let (bits, least) = match dtype {
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        DType::F32 | DType::COMPLEX64 => (23, -126),
        _ => (52, -1022),
    };
    if x == 0.0 || !x.is_finite() {
        return power_of_two(least - bits);
    }
    let exponent = (x.abs().log2().floor() as i32).max(least);
    power_of_two((exponent - bits).max(-1074))
}

/// Exact down to the smallest subnormal; `powi` divides, and overflows before it gets there.
fn power_of_two(exponent: i32) -> f64 {
    let half = exponent / 2;
    2f64.powi(half) * 2f64.powi(exponent - half)
}

fn work_epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::COMPLEX128 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

/// The tolerance of a case for elements of `dtype`, with sources of at most `largest` in size.
pub fn tolerance(case: &Case, dtype: DType, largest: f64) -> Tolerance {
    let size =
        |name: &str| case.sizes.iter().find(|(n, _)| *n == name).map_or(1.0, |(_, v)| (*v).max(1) as f64);
    let half = dtype == DType::F16 || dtype == DType::BF16;
    let double = dtype == DType::F64 || dtype == DType::COMPLEX128;
    let eps = work_epsilon(dtype);
    let exact = Tolerance { ulp: 0.0, absolute: 0.0 };
    let terms = |n: f64, size: f64| Tolerance { ulp: 1.0, absolute: eps * n * size };
    match case.key.op.as_str() {
        "elementwise_unary" | "broadcast_elementwise_unary" | "broadcast_elementwise_binary" => {
            function(case.key.selector("op"), dtype, half, double, largest)
        }
        "add" => terms(case.arity as f64, largest * case.arity as f64),
        "arange" => Tolerance { ulp: 1.0, absolute: 0.0 },
        "scatter_add" => terms(size("num_indices"), largest * (size("num_indices") + 1.0)),
        // A row's sum is of positive terms: in any order, n roundings leave it within n units of rounding of itself, and
        // so every element that is divided by it. Of a logarithm that is an absolute error.
        "softmax" => {
            let of_sum = size("cols") * eps / spacing(dtype, 1.0);
            Tolerance { ulp: of_sum + if half { 1.0 } else { 8.0 }, absolute: eps * 1e-3 }
        }
        "log_softmax" => Tolerance {
            ulp: if half { 1.0 } else { 4.0 },
            absolute: eps * (8.0 * (1.0 + largest) + size("cols")),
        },
        "softmax_backward" | "log_softmax_backward" => {
            let scale = if case.key.op == "softmax_backward" { largest * largest } else { largest.exp() };
            terms(size("cols") + 4.0, largest * (1.0 + scale))
        }
        // What the mean has lost in rounding, a small deviation makes larger; a variance that cancels is wrong by far more.
        "layer_norm" | "rms_norm" if case.content == Content::Offset => terms(64.0, 4.0 * (1.0 + largest)),
        "layer_norm" | "rms_norm" => {
            terms(64.0 + size("cols").sqrt(), 4.0 * (1.0 + largest) * (1.0 + largest))
        }
        "reduce" => match case.key.selector("op") {
            "sum" | "mean" => terms(size("reduced").sqrt() + 4.0, largest * size("reduced")),
            "prod" => {
                Tolerance { ulp: 2.0 * size("reduced") * if half { 1e-2 } else { 1.0 } + 1.0, absolute: 0.0 }
            }
            _ => exact,
        },
        "matmul" | "batch_matmul" | "broadcast_matmul" => {
            let k = match case.lists.iter().find(|(n, _)| *n == "a_dims") {
                Some((_, dims)) => dims.iter().product::<i64>().max(1) as f64,
                None => size("k"),
            };
            terms(2.0 * k + 8.0, 4.0 * (1.0 + largest * largest))
        }
        _ => exact,
    }
}

fn function(op: &str, dtype: DType, half: bool, double: bool, largest: f64) -> Tolerance {
    let real = DType::REAL.contains(&dtype);
    let eps = work_epsilon(dtype);
    if !DType::FLOAT.contains(&dtype) && real {
        return Tolerance { ulp: 0.0, absolute: 0.0 };
    }
    if op.contains("backward") || op.contains("_grad") {
        // Products and differences of functions, each good to a few ulp, may cancel.
        let ulp = if HARD.iter().any(|f| op.starts_with(f)) && double { 16.0 } else { 4.0 };
        return Tolerance { ulp, absolute: 64.0 * eps * (1.0 + largest) * (1.0 + largest) };
    }
    if !real {
        return Tolerance { ulp: 8.0, absolute: 0.0 };
    }
    if COMPOSED.contains(&op) {
        return Tolerance { ulp: if half { 1.0 } else { 8.0 }, absolute: 4.0 * eps };
    }
    let hard = HARD.contains(&op);
    let ulp = match (half, double, hard) {
        (true, ..) => 1.0,
        (_, false, false) => 2.0,
        (_, true, false) | (_, false, true) => 4.0,
        (_, true, true) => 16.0,
    };
    let absolute = match (ROOTED.contains(&op), double) {
        (false, _) => 0.0,
        (true, false) => 1e-6,
        (true, true) => 2e-14,
    };
    Tolerance { ulp, absolute }
}

impl Tolerance {
    /// Whether `found` is near enough to `expected`. NaN matches NaN. Infinities match only themselves, and where there is
    /// an absolute tolerance each other: a pole's sign may be that of a rounding error.
    pub fn accepts(&self, dtype: DType, expected: Number, found: Number) -> bool {
        match (expected, found) {
            (Number::Real(e), Number::Real(f)) => self.near(dtype, e, f, e),
            (Number::Complex(er, ei), Number::Complex(fr, fi)) => {
                // The error of a complex operation is bounded by the size of the result, not by each part.
                let size = if er.is_finite() && ei.is_finite() { er.hypot(ei) } else { 0.0 };
                self.near(dtype, er, fr, size.max(er.abs())) && self.near(dtype, ei, fi, size.max(ei.abs()))
            }
            (e, f) => e.same(f),
        }
    }

    fn near(&self, dtype: DType, expected: f64, found: f64, size: f64) -> bool {
        if expected == found || (expected.is_nan() && found.is_nan()) {
            return true;
        }
        if expected.is_infinite() && found.is_infinite() {
            // The sign of a pole is that of a rounding error where the formula cancels to 0.
            return self.absolute > 0.0;
        }
        let limit = self.ulp * spacing(dtype, size) * 1.000001 + self.absolute;
        if expected.is_finite() != found.is_finite() {
            // Rounding may reach past the largest float.
            return self.ulp > 0.0 && overflowed(dtype, expected, found, limit);
        }
        (expected - found).abs() <= limit
    }
}

/// A vendor's bound for the elements of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Absolute.
    pub absolute: f64,
    /// As a part of the expected value's size.
    pub relative: f64,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.relative, self.absolute) {
            (0.0, 0.0) => f.write_str("exactly"),
            (relative, absolute) => write!(f, "within {relative:?} relative + {absolute:?} absolute"),
        }
    }
}

impl Bound {
    /// Whether `found` is near enough to `expected`. NaN matches NaN, infinities match only themselves, and so does what
    /// is no float.
    pub fn accepts(&self, expected: Number, found: Number) -> bool {
        let near = |e: f64, f: f64, size: f64| {
            let distance = (e - f).abs();
            e == f
                || (e.is_nan() && f.is_nan())
                || (distance.is_finite() && distance <= self.absolute + self.relative * size)
        };
        match (expected, found) {
            (Number::Real(e), Number::Real(f)) => near(e, f, e.abs()),
            (Number::Complex(er, ei), Number::Complex(fr, fi)) => {
                let whole = if er.is_finite() && ei.is_finite() { er.hypot(ei) } else { 0.0 };
                near(er, fr, whole.max(er.abs())) && near(ei, fi, whole.max(ei.abs()))
            }
            (e, f) => e.same(f),
        }
    }
}

/// Whether the finite one of both is within the limit of the largest float, and the other its infinity.
fn overflowed(dtype: DType, expected: f64, found: f64, limit: f64) -> bool {
    if expected.is_nan() || found.is_nan() || expected.signum() != found.signum() {
        return false;
    }
    let largest = match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(f32::from_bits(0x7f7f_0000)),
        DType::F32 | DType::COMPLEX64 => f64::from(f32::MAX),
        _ => f64::MAX,
    };
    largest - expected.abs().min(found.abs()) <= limit
}

/// The size of the largest finite source element.
pub fn largest(numbers: impl Iterator<Item = Number>) -> f64 {
    let size = |x: Number| x.re().abs().max(x.im().abs());
    numbers.map(size).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// Ops whose backward formula is only checked on modest values: with wild ones, f32 intermediates overflow where
/// the exact result does not, which their contract allows.
pub fn allows_wild(op: &str, function: &str) -> bool {
    let accumulates = matches!(
        op,
        "add"
            | "scatter_add"
            | "softmax_backward"
            | "log_softmax_backward"
            | "layer_norm"
            | "rms_norm"
            | "matmul"
            | "batch_matmul"
            | "broadcast_matmul"
    );
    let composed =
        function.contains("backward") || function.contains("_grad") || COMPOSED.contains(&function);
    !accumulates && !composed
}

/// The content that a case is given, wild only where the op allows it.
pub fn wild(op: &str, function: &str) -> Content {
    if allows_wild(op, function) { Content::Wild } else { Content::Modest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spacing_is_that_of_the_format() {
        assert_eq!(spacing(DType::F32, 1.0), f64::from(f32::EPSILON));
        assert_eq!(spacing(DType::F32, 1.999), f64::from(f32::EPSILON));
        assert_eq!(spacing(DType::F16, 2.0), 2f64.powi(-9));
        assert_eq!(spacing(DType::F16, 1e-7), 2f64.powi(-24));
        assert_eq!(spacing(DType::F64, -8.0), 8.0 * f64::EPSILON);
        assert_eq!(spacing(DType::F64, 1e-300), f64::from_bits(1e-300f64.to_bits() + 1) - 1e-300);
        assert_eq!(spacing(DType::F64, 0.0), f64::from_bits(1));
    }

    #[test]
    fn plain_sums_of_long_rows_are_within_the_bounds_of_softmax() {
        let softmax = |dtype, cols: i64| {
            let dtypes = vec![("src".to_owned(), dtype), ("dst".to_owned(), dtype)];
            let key = crate::Key { op: "softmax".to_owned(), selectors: Vec::new(), dtypes };
            tolerance(&Case::new(&key, "row").sizes(&[("cols", cols)]), dtype, 1.0)
        };
        for cols in [1000usize, 100_000] {
            // Equal terms round the same way within each binade, the worst that a plain sum can meet.
            for x in [0.1f32, 0.7, 1.0 / 3.0] {
                let sum = (0..cols).fold(0f32, |sum, _| sum + x);
                let (exact, found) = (1.0 / cols as f64, f64::from(x / sum));
                let bound = softmax(DType::F32, cols as i64);
                assert!(bound.accepts(DType::F32, Number::Real(exact), Number::Real(found)), "{cols} of {x}");
                // A term left out of a thousand is no rounding.
                let short = f64::from(x / (sum - x));
                let accepted = bound.accepts(DType::F32, Number::Real(exact), Number::Real(short));
                assert!(cols > 1000 || !accepted, "{cols} of {x}");
            }
        }
        // A sum in f32 costs a half-precision result little.
        assert!(softmax(DType::F16, 1000).ulp < 1.2 && softmax(DType::BF16, 1000).ulp < 1.1);
    }

    #[test]
    fn a_vendors_bound_is_for_finite_elements() {
        use Number::{Complex, Real};
        let inf = f64::INFINITY;
        for (absolute, relative) in [(0.5, 0.0), (0.0, 0.25), (0.5, 0.25)] {
            let bound = Bound { absolute, relative };
            let ok = |e: f64, f: f64| bound.accepts(Real(e), Real(f));
            assert!(ok(2.0, 2.5) && ok(-2.0, -1.5) && !ok(2.0, 3.5) && !ok(2.0, -2.0), "{bound:?}");
            assert!(ok(inf, inf) && ok(-inf, -inf) && ok(f64::NAN, f64::NAN), "{bound:?}");
            for (e, f) in [(inf, -inf), (-inf, inf), (inf, 1.0), (1.0, inf), (f64::NAN, 1.0), (f64::NAN, inf)]
            {
                assert!(!ok(e, f) && !bound.accepts(Complex(e, 2.0), Complex(f, 2.0)), "{bound:?}: {e}, {f}");
            }
            assert!(bound.accepts(Complex(inf, 2.0), Complex(inf, 2.5)), "{bound:?}");
            assert!(!bound.accepts(Complex(inf, 2.0), Complex(inf, 20.0)), "{bound:?}");
            assert!(!bound.accepts(Number::Int(4), Number::Int(5)), "{bound:?}");
        }
    }

    #[test]
    fn near_and_far() {
        let t = Tolerance { ulp: 2.0, absolute: 0.0 };
        let ok = |e: f64, f: f64| t.accepts(DType::F32, Number::Real(e), Number::Real(f));
        let ulp = f64::from(f32::EPSILON);
        assert!(ok(1.0, 1.0 + 2.0 * ulp) && !ok(1.0, 1.0 + 3.0 * ulp));
        assert!(ok(f64::NAN, f64::NAN) && !ok(f64::NAN, 1.0) && !ok(1.0, f64::NAN));
        assert!(ok(f64::INFINITY, f64::INFINITY) && !ok(f64::INFINITY, f64::NEG_INFINITY));
        assert!(!ok(1.0, f64::INFINITY) && ok(f64::from(f32::MAX), f64::INFINITY));
        assert!(!t.accepts(DType::I32, Number::Int(1), Number::Int(2)));
    }
}
