//! The unary operations: one type each, with its formula.

use super::Op;
use crate::kernels::elem::{Bool, Complex, Storage};
use crate::kernels::engine::Cost;
use crate::kernels::math::Math;
use crate::kernels::num::{Float, Int, Number, round_to};
use crate::kernels::special;
use std::f64::consts::FRAC_1_SQRT_2;

type C = Complex<f64>;

/// Rows of: name, bound on the value type, formula over a value and the attributes.
macro_rules! arithmetic {
    ($($(#[$doc:meta])* $name:ident: $bound:ident = |$x:pat_param, $p:pat_param| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;

        impl<S: Storage<Value: $bound>> Op<S, S> for $name {
            const COST: Cost = Cost::Cheap;

            #[inline(always)]
            fn apply($x: S::Value, $p: [f64; 2]) -> S::Value {
                $body
            }
        }
    )*};
}

arithmetic! {
    Relu: Number = |x, _| if x <= S::Value::ZERO { S::Value::ZERO } else { x };
    SquareRelu: Number = |x, _| if x > S::Value::ZERO { x.mul(x) } else { S::Value::ZERO };
    Abs: Number = |x, _| x.abs();
    Negative: Number = |x, _| x.neg();
    Square: Number = |x, _| x.mul(x);
    NotEqualZero: Number = |x, _| if x.truth() { S::Value::ONE } else { S::Value::ZERO };
    /// 0 for NaN.
    Sign: Number = |x, _| {
        let (zero, one) = (S::Value::ZERO, S::Value::ONE);
        let negative = if x < zero { one.neg() } else { zero };
        if x > zero { one } else { negative }
    };
    NanAssign: Number = |x, _| if x.is_nan() { S::Value::ZERO } else { x };
    BitwiseNot: Int = |x, _| x.not();

    Ceil: Float = |x, _| x.ceil();
    Floor: Float = |x, _| x.floor();
    Trunc: Float = |x, _| x.trunc();
    Rint: Float = |x, _| x.rint();
    Sqrt: Float = |x, _| x.sqrt();
    Rsqrt: Float = |x, _| S::Value::ONE.div(x.sqrt());
    Reciprocal: Float = |x, _| S::Value::ONE.div(x);
    ReciprocalNoNan: Float = |x, _| if x.truth() { S::Value::ONE.div(x) } else { S::Value::ZERO };
    SoftSign: Float = |x, _| x.div(S::Value::ONE.add(x.abs()));
    HardSwish: Float = |x, _| {
        let (three, six) = (S::Value::of(3.0), S::Value::of(6.0));
        let low = if x <= three.neg() { S::Value::ZERO } else { x.mul(x.add(three)).div(six) };
        if x >= three { x } else { low }
    };
    HardSigmoid: Float = |x, _| {
        let three = S::Value::of(3.0);
        let low = if x <= three.neg() { S::Value::ZERO } else { x.add(three).div(S::Value::of(6.0)) };
        if x >= three { S::Value::ONE } else { low }
    };
    LeakyRelu: Float = |x, [alpha, _]| if x > S::Value::ZERO { x } else { x.mul(S::Value::of(alpha)) };
    HardShrink: Float = |x, [lambda, _]| if x.abs() <= S::Value::of(lambda) { S::Value::ZERO } else { x };
    HardTanh: Float = |x, [min, max]| {
        let (min, max) = (S::Value::of(min), S::Value::of(max));
        let low = if x <= min { min } else { x };
        if x >= max { max } else { low }
    };
    /// NaN stays NaN.
    SoftShrink: Float = |x, [alpha, _]| {
        let alpha = S::Value::of(alpha);
        let small = if x.is_nan() { x } else { S::Value::ZERO };
        let low = if x < alpha.neg() { x.add(alpha) } else { small };
        if x > alpha { x.sub(alpha) } else { low }
    };
    Threshold: Float = |x, [threshold, value]| {
        if x <= S::Value::of(threshold) { S::Value::of(value) } else { x }
    };
}

/// Rows of: name, cost, formula over an `f64` and the attributes; `M` is the [`Math`] of the dtype.
macro_rules! formulas {
    ($($(#[$doc:meta])* $name:ident: $cost:ident = |$x:ident, $p:pat_param| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;

        impl $name {
            #[inline(always)]
            fn formula<M: Math>($x: f64, $p: [f64; 2]) -> f64 {
                $body
            }
        }

        impl<S: Storage<Value: Float>> Op<S, S> for $name {
            const COST: Cost = Cost::$cost;
            const VECTOR: bool = <S::Value as Float>::Math::VECTOR && !matches!(Cost::$cost, Cost::Special);

            #[inline(always)]
            fn apply(x: S::Value, p: [f64; 2]) -> S::Value {
                round_to::<S>(Self::formula::<<S::Value as Float>::Math>(x.to_f64(), p))
            }
        }
    )*};
}

formulas! {
    Elu: Elementary = |x, [alpha, _]| if x > 0.0 { x } else { alpha * M::exp_m1(x) };
    Celu: Elementary = |x, [alpha, _]| if x > 0.0 { x } else { alpha * M::exp_m1(x / alpha) };
    Selu: Elementary = |x, _| {
        const SCALE: f64 = 1.050_700_987_355_480_5;
        const ALPHA: f64 = 1.673_263_242_354_377_2;
        SCALE * if x > 0.0 { x } else { ALPHA * M::exp_m1(x) }
    };
    Gelu: Elementary = |x, _| 0.5 * x * M::erfc(-x * FRAC_1_SQRT_2);
    FastGelu: Elementary = |x, _| x * M::sigmoid(2.0 * fast_gelu_argument(x));
    QuickGelu: Elementary = |x, _| x * M::sigmoid(1.702 * x);
    /// `x tanh(softplus(x))`, with the tanh as a quotient of polynomials in `e^x`.
    Mish: Elementary = |x, _| {
        let q = mish_quotient::<M>(x);
        x * (q / (q + 2.0))
    };
    Silu: Elementary = |x, _| x * M::sigmoid(x);
    SoftPlus: Elementary = |x, [beta, threshold]| {
        let z = x * beta;
        if z > threshold { x } else { soft_plus::<M>(z) / beta }
    };
    Tanh: Elementary = |x, _| M::tanh(x);
    Erf: Elementary = |x, _| M::erf(x);
    Erfc: Elementary = |x, _| M::erfc(x);
    Exp: Elementary = |x, _| M::exp(x);
    Exp2: Elementary = |x, _| M::exp2(x);
    Expm1: Elementary = |x, _| M::exp_m1(x);
    Log: Elementary = |x, _| M::ln(x);
    Log2: Elementary = |x, _| M::log2(x);
    Log10: Elementary = |x, _| M::log10(x);
    Log1p: Elementary = |x, _| M::ln_1p(x);
    LogSigmoid: Elementary = |x, _| -soft_plus::<M>(-x);
    Sigmoid: Elementary = |x, _| M::sigmoid(x);
    Sinh: Elementary = |x, _| M::sinh(x);
    Cosh: Elementary = |x, _| M::cosh(x);

    Acos: Special = |x, _| x.acos();
    Acosh: Special = |x, _| if x < 1.0 { f64::NAN } else { libm::acosh(x) };
    Asin: Special = |x, _| x.asin();
    Asinh: Special = |x, _| libm::asinh(x);
    Atan: Special = |x, _| x.atan();
    Atanh: Special = |x, _| libm::atanh(x);
    Cos: Special = |x, _| x.cos();
    Sin: Special = |x, _| x.sin();
    Tan: Special = |x, _| x.tan();
    Digamma: Special = |x, _| special::digamma(x);
    Trigamma: Special = |x, _| special::trigamma(x);
    Lgamma: Special = |x, _| special::lgamma(x);
}

/// The argument of the tanh in the tanh form of GELU.
#[inline(always)]
pub(crate) fn fast_gelu_argument(x: f64) -> f64 {
    0.797_884_560_802_865_4 * (x + 0.044714998453855515 * x * x * x)
}

/// `ln(1 + e^x)` without overflow.
#[inline(always)]
fn soft_plus<M: Math>(x: f64) -> f64 {
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + M::ln_1p(M::exp(-x.abs()))
}

/// From here up, `tanh(softplus(x))` is 1 to the last bit.
pub(crate) const MISH_END: f64 = 40.0;

/// `q` such that `tanh(softplus(x)) = q / (q + 2)`; it stays the same from [`MISH_END`] up.
#[inline(always)]
pub(crate) fn mish_quotient<M: Math>(x: f64) -> f64 {
    let w = M::exp(if x > MISH_END { MISH_END } else { x });
    w * (w + 2.0)
}

macro_rules! tests {
    ($($name:ident = |$x:ident| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl<S: Storage<Value: Number>> Op<S, Bool> for $name {
            const COST: Cost = Cost::Cheap;

            #[inline(always)]
            fn apply($x: S::Value, _: [f64; 2]) -> u8 {
                u8::from($body)
            }
        }
    )*};
}

tests! {
    IsInf = |x| x.is_infinite();
    IsNan = |x| x.is_nan();
    IsFinite = |x| !x.is_infinite() && !x.is_nan();
    LogicalNot = |x| !x.truth();
}

macro_rules! complex {
    ($($name:ident = |$z:ident| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl<S: Storage<Value = C>> Op<S, S> for $name {
            const COST: Cost = Cost::Special;

            #[inline(always)]
            fn apply($z: C, _: [f64; 2]) -> C {
                $body
            }
        }
    )*};
}

complex! {
    Conj = |z| z.conj();
    ComplexNegative = |z| C::new(-z.re, -z.im);
    ComplexSquare = |z| z.mul(z);
    ComplexReciprocal = |z| C::new(1.0, 0.0).div(z);
    ComplexSqrt = |z| z.sqrt();
    ComplexExp = |z| z.exp();
}

macro_rules! parts {
    ($($to_real:ident, $to_complex:ident = |$part:ident| $complex:expr, $field:ident;)*) => {$(
        pub(super) struct $to_real;
        pub(super) struct $to_complex;

        impl<S: Storage<Value = C>, D: Storage<Value: Float>> Op<S, D> for $to_real {
            const COST: Cost = Cost::Cheap;

            #[inline(always)]
            fn apply(z: C, _: [f64; 2]) -> D::Value {
                round_to::<D>(z.$field)
            }
        }

        impl<S: Storage<Value: Float>, D: Storage<Value = C>> Op<S, D> for $to_complex {
            const COST: Cost = Cost::Cheap;

            #[inline(always)]
            fn apply(x: S::Value, _: [f64; 2]) -> C {
                let $part = x.to_f64();
                $complex
            }
        }
    )*};
}

parts! {
    Real, RealGrad = |x| C::new(x, 0.0), re;
    Imag, ImagGrad = |x| C::new(0.0, x), im;
}
