//! The unary operations: one type each, with its formula.

use super::Op;
use crate::kernels::elem::{Bool, Complex, Storage};
use crate::kernels::engine::Cost;
use crate::kernels::formula::{Formula, Width, many, often, width};
use crate::kernels::math::Math;
use crate::kernels::num::{Float, Int, Number, round_to};
use crate::kernels::simd::Vector;

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

/// Rows of: name, generics, formula over the bits of an f16 or a bf16, which needs no arithmetic.
macro_rules! of_bits {
    ($($(#[$doc:meta])* $name:ident $(<const $p:ident: u16>)? = |$x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name $(<const $p: u16>)?;

        impl $(<const $p: u16>)? Op<u16, u16> for $name $(<$p>)? {
            const COST: Cost = Cost::Cheap;

            #[inline(always)]
            fn apply($x: u16, _: [f64; 2]) -> u16 {
                $body
            }
        }
    )*};
}

of_bits! {
    AbsBits = |x| x & 0x7fff;
    NegativeBits = |x| x ^ 0x8000;
    /// Negative numbers are, as signed integers, those up to the bits of -inf; negative NaNs come after it.
    ReluBits<const NEG_INFINITY: u16> = |x| if x as i16 <= NEG_INFINITY as i16 { 0 } else { x };
}

/// Rows of: name, formula over lanes and the attributes; `M` is the [`Math`] of the dtype, or with `double`, of
/// f64 even where the dtype is narrower. With `often`, f16 and bf16 have code of their own, and with it or `many`, many f32.
macro_rules! formulas {
    ($($name:ident$(: $how:ident)? = |$x:pat_param, $p:pat_param| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl Formula<1> for $name {
            const WIDTH: Width = width!($($how)?);
            const OFTEN: bool = often!($($how)?);
            const MANY: bool = many!($($how)?);

            #[inline(always)]
            fn apply<M: Math>([$x]: [M::V; 1], $p: [M::V; 2]) -> M::V {
                $body
            }
        }
    )*};
}

formulas! {
    Elu: many = |x, [alpha, _]| above_zero(x, x, alpha * M::exp_m1(x));
    Celu = |x, [alpha, _]| above_zero(x, x, alpha * M::exp_m1(x / alpha));
    RisingCelu: double = |x, [alpha, _]| above_zero(x, x, rising_celu::<M>(x, alpha));
    Selu: many = |x, _| {
        const SCALE: f64 = 1.050_700_987_355_480_5;
        const ALPHA: f64 = 1.673_263_242_354_377_2;
        above_zero(x, x * SCALE, M::exp_m1(x) * (SCALE * ALPHA))
    };
    Gelu: often = |x, _| M::gelu(x);
    FastGelu: often = |x, _| M::fast_gelu(x);
    QuickGelu: often = |x, _| {
        let (high, low) = quick_gelu_argument(x);
        M::gated(x, high, low)
    };
    Mish: double = |x, _| M::mish(x);
    Silu: often = |x, _| M::silu(x);
    SoftPlus = |x, [beta, threshold]| {
        let (high, low) = product(x, beta);
        M::V::select(threshold.lt(high), x, M::soft_plus(high, low) / beta)
    };
    Tanh: often = |x, _| M::tanh(x);
    Erf: many = |x, _| M::erf(x);
    Erfc = |x, _| M::erfc(x);
    Exp: often = |x, _| M::exp_alone(x);
    Exp2: many = |x, _| M::exp2(x);
    Expm1: many = |x, _| M::exp_m1(x);
    Log: many = |x, _| M::ln(x);
    Log2: many = |x, _| M::log2(x);
    Log10 = |x, _| M::log10(x);
    Log1p: many = |x, _| M::ln_1p(x);
    LogSigmoid: many = |x, _| -M::soft_plus(-x, M::V::splat(0.0));
    Rsqrt = |x, _| x.rsqrt();
    Sigmoid: often = |x, _| M::sigmoid(x);
    Sinh = |x, _| M::sinh(x);
    Cosh = |x, _| M::cosh(x);
    Acos = |x, _| M::acos(x);
    Acosh = |x, _| M::acosh(x);
    Asin = |x, _| M::asin(x);
    Asinh = |x, _| M::asinh(x);
    Atan = |x, _| M::atan(x);
    Atanh = |x, _| M::atanh(x);
    Cos: many = |x, _| M::cos(x);
    Sin: many = |x, _| M::sin(x);
    Tan = |x, _| M::tan(x);
    Digamma = |x, _| M::digamma(x);
    Trigamma = |x, _| M::trigamma(x);
    Lgamma = |x, _| M::lgamma(x);
}

/// `alpha (e^(x / alpha) - 1)` for an alpha below 0, with which it grows without bound: the power multiplies the error of the
/// quotient, and may be infinite where the product with alpha is not.
#[inline(always)]
fn rising_celu<M: Math>(x: M::V, alpha: M::V) -> M::V {
    /// Of whose power `e^FAR` there still is a number. A quotient of a finite result is below three of it.
    const FAR: f64 = 709.0;
    const POWER: f64 = 8.218407461554972e307;
    /// Of an alpha below the one or above the other, what is left of a division by it is no normal number, or a part of the
    /// product is none that is finite, until both are multiplied.
    const USUAL: [f64; 2] = [1e-270, 1e270];
    const FACTOR: f64 = (1u128 << 100) as f64;
    let splat = M::V::splat;
    let size = alpha.abs();
    let factor = M::V::select(splat(USUAL[1]).lt(size), splat(1.0 / FACTOR), splat(1.0));
    let factor = M::V::select(size.lt(splat(USUAL[0])), splat(FACTOR), factor);
    let (near_x, near_alpha) = (x * factor, alpha * factor);
    let quotient = near_x / near_alpha;
    let whole = quotient * near_alpha;
    let rest = ((near_x - whole) - quotient.product_error(near_alpha, whole)) / near_alpha;
    // Where the quotient is outside the range so is the result, and nothing is to be corrected.
    let usual = rest.abs().lt(splat(1e-3));
    let rest = M::V::select(usual, rest, splat(0.0));
    let (far, further) = (splat(FAR).lt(quotient), splat(2.0 * FAR).lt(quotient));
    let less = M::V::select(further, splat(2.0 * FAR), M::V::select(far, splat(FAR), splat(0.0)));
    let power = M::exp_m1(quotient - less);
    let finite = power.lt(splat(f64::INFINITY));
    let power = M::V::select(finite, (power + 1.0).mul_add(rest, power), power);
    let first = alpha * POWER;
    let times = M::V::select(further, first * POWER, first);
    let result = M::V::select(far, (power + 1.0) * times, power * alpha);
    // A quotient below the normal range has lost digits.
    let small = quotient.abs().lt(splat(1e-20));
    M::V::select(small, M::V::select(usual, x, result), result)
}

/// `a` where `x` is above zero, else `b`.
#[inline(always)]
fn above_zero<V: Vector>(x: V, a: V, b: V) -> V {
    V::select(V::splat(0.0).lt(x), a, b)
}

/// `a b` and its rounding error; none where the product is so large that an exponential of it is 0 or
/// infinity.
#[inline(always)]
pub(crate) fn product<V: Vector>(a: V, b: V) -> (V, V) {
    let high = a * b;
    let usual = high.abs().lt(V::splat(1024.0));
    (high, V::select(usual, a.product_error(b, high), V::splat(0.0)))
}

/// `1.702 x` in two parts.
#[inline(always)]
pub(crate) fn quick_gelu_argument<V: Vector>(x: V) -> (V, V) {
    const FACTOR: (f64, f64) = (1.7020000219345093, -2.1934509319976314e-08);
    let (high, low) = product(x, V::splat(FACTOR.0));
    let clamped = x.at_most(1000.0).at_least(-1000.0);
    (high, clamped.mul_add(V::splat(FACTOR.1), low))
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
    ComplexSquare = |z| {
        let square = z.mul(z);
        if square.is_lost() { z.repaired_product(z) } else { square }
    };
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
