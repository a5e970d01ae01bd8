//! The mathematical functions of elementwise kernels, over the vectors of any level.
//!
//! [`Math`] is what formulas are generic over. [`Single`] computes in f32 what f16, bf16 and f32 kernels
//! need often, and the rest in f64 on as many lanes; [`Double`] computes in f64. Their polynomials are
//! minimax fits to the function named beside each; the accuracy program of the benchmarks measures what
//! comes of them at each level.
//!
//! Where a function multiplies the rounding error of its argument, as an exponential does, the argument
//! comes in two parts: `high + low` with `low` at most an ulp of `high`.

mod double;
mod gamma;
mod half_pi;
#[cfg(test)]
mod half_pi_tests;
mod pieces;
mod plainly;
mod single;
mod slopes;
mod tails;
#[cfg(test)]
mod tests;
mod wide_pieces;
mod widening;

use super::simd::{Vector, polynomial};
use slopes::gelu_slope;
use std::marker::PhantomData;

/// Functions on f32 lanes: within 2 ulps of the true value except where noted.
pub(crate) struct Single<V>(PhantomData<V>);

/// Functions on f64 lanes: within 4 ulps of the true value except where noted.
pub(crate) struct Double<V>(PhantomData<V>);

/// The functions that formulas are generic over, lane by lane. Outside a function's domain: NaN.
pub(crate) trait Math: 'static {
    type V: Vector;

    /// `(t, n)` with `exp(high + low) = 2^n (1 + t)` and |t| below 1/2; where even the product of that with
    /// its argument is 0 or infinity, any such pair with that result.
    fn exp_parts(high: Self::V, low: Self::V) -> (Self::V, Self::V);
    /// `exp(x + log_2(scale))` for a power of two `2^shift`: no overflow before the product has it.
    fn exp_shifted(x: Self::V, shift: f64) -> Self::V;
    fn exp2(x: Self::V) -> Self::V;
    fn exp_m1(x: Self::V) -> Self::V;
    /// `x` times the normal distribution function of `x`.
    fn gelu(x: Self::V) -> Self::V;
    fn ln(x: Self::V) -> Self::V;
    fn log2(x: Self::V) -> Self::V;
    fn log10(x: Self::V) -> Self::V;
    fn ln_1p(x: Self::V) -> Self::V;
    /// `ln(1 + x + low)` for x in 0..=1 and `low` at most an ulp of it.
    fn ln_1p_unit(x: Self::V, low: Self::V) -> Self::V;
    fn sinh(x: Self::V) -> Self::V;
    fn erf(x: Self::V) -> Self::V;
    /// Within 4 ulps on f32 lanes, 16 on f64 lanes.
    fn erfc(x: Self::V) -> Self::V;
    /// The normal distribution: half of `erfc(-x / sqrt(2))`.
    fn normal_cdf(x: Self::V) -> Self::V;
    /// `dy` times the derivative of [`Self::gelu`], whose terms may cancel.
    #[inline(always)]
    fn times_gelu_slope(dy: Self::V, x: Self::V) -> Self::V {
        dy * gelu_slope::<Self>(x)
    }
    /// `dy alpha exp(x)`, within the limit of a result of its own.
    #[inline(always)]
    fn times_exp(dy: Self::V, alpha: Self::V, x: Self::V) -> Self::V {
        dy * (alpha * Self::exp(x))
    }
    /// `dy sigmoid(high + low)`, as [`Self::times_exp`].
    #[inline(always)]
    fn times_sigmoid(dy: Self::V, high: Self::V, low: Self::V) -> Self::V {
        dy * Self::sigmoid_sum(high, low)
    }
    /// `dy sigmoid(x) sigmoid(-x)`, as [`Self::times_exp`].
    #[inline(always)]
    fn times_sigmoid_slope(dy: Self::V, x: Self::V) -> Self::V {
        // With e = exp(-|x|), e / (1 + e)^2.
        let (inverse, t, n, _) = Self::sigmoid_parts(x, Self::V::splat(0.0));
        dy * (inverse.mul_add(t, inverse) * inverse).scale(n)
    }
    /// `x sigmoid(high + low)`, for `x` of the sign of `high`; NaN for -inf.
    fn gated(x: Self::V, high: Self::V, low: Self::V) -> Self::V;
    /// `x sigmoid(x)`.
    #[inline(always)]
    fn silu(x: Self::V) -> Self::V {
        Self::gated(x, x, Self::V::splat(0.0))
    }
    /// The tanh form of GELU.
    #[inline(always)]
    fn fast_gelu(x: Self::V) -> Self::V {
        let (high, low) = fast_gelu_argument(x);
        Self::gated(x, high, low)
    }
    fn sin(x: Self::V) -> Self::V;
    fn cos(x: Self::V) -> Self::V;
    /// Within 4 ulps on f32 lanes, 16 on f64 lanes.
    fn tan(x: Self::V) -> Self::V;
    fn asin(x: Self::V) -> Self::V;
    fn acos(x: Self::V) -> Self::V;
    fn atan(x: Self::V) -> Self::V;
    fn asinh(x: Self::V) -> Self::V;
    fn acosh(x: Self::V) -> Self::V;
    fn atanh(x: Self::V) -> Self::V;
    /// `ln |gamma(x)|`; infinity at 0 and the negative integers. Near a root, right to 1e-6; elsewhere
    /// within 4 ulps on f32 lanes, 16 on f64 lanes.
    fn lgamma(x: Self::V) -> Self::V;
    /// Logarithmic derivative of gamma: -inf at +0, inf at -0, NaN at the negative integers and -inf.
    /// Limits as [`Self::lgamma`].
    fn digamma(x: Self::V) -> Self::V;
    /// Derivative of [`Self::digamma`]: inf at 0 and the negative integers, NaN at -inf. Limits as
    /// [`Self::lgamma`].
    fn trigamma(x: Self::V) -> Self::V;
    /// C's `pow`. Within 4 ulps on f32 lanes, 16 on f64 lanes.
    fn pow(x: Self::V, y: Self::V) -> Self::V;

    #[inline(always)]
    fn exp(x: Self::V) -> Self::V {
        Self::exp_shifted(x, 0.0)
    }

    /// As [`Self::exp`], for what is a result itself: it may use up the bound, which leaves nothing for a product.
    #[inline(always)]
    fn exp_alone(x: Self::V) -> Self::V {
        Self::exp(x)
    }

    #[inline(always)]
    fn cosh(x: Self::V) -> Self::V {
        let half = Self::exp_shifted(x.abs(), -1.0);
        // Where this is infinite or large, the other exponential no longer matters.
        half + Self::V::splat(0.25) / half.at_most(LARGE_HALF)
    }

    #[inline(always)]
    fn tanh(x: Self::V) -> Self::V {
        tanh::<Self>(x)
    }

    /// `exp(high + low)`.
    #[inline(always)]
    fn exp_sum(high: Self::V, low: Self::V) -> Self::V {
        let (t, n) = Self::exp_parts(high, low);
        (t + 1.0).scale(n)
    }

    #[inline(always)]
    fn sigmoid(x: Self::V) -> Self::V {
        Self::sigmoid_sum(x, Self::V::splat(-0.0))
    }

    /// Sigmoid of `high + low`.
    #[inline(always)]
    fn sigmoid_sum(high: Self::V, low: Self::V) -> Self::V {
        sigmoid::<Self>(high, low)
    }

    /// `(1 / (1 + e), t, n, x < 0)` with `x = high + low` and `e = exp(-|x|) = 2^n (1 + t)`.
    #[inline(always)]
    fn sigmoid_parts(high: Self::V, low: Self::V) -> (Self::V, Self::V, Self::V, <Self::V as Vector>::Mask) {
        let negative = high.lt(Self::V::splat(0.0));
        let (t, n) = Self::exp_parts(-high.abs(), Self::V::select(negative, low, -low));
        // What 1 does not notice need not be any smaller.
        ((t + 1.0).scale_by_product(n.at_least(-64.0)).one_over_one_plus(), t, n, negative)
    }

    /// `ln(1 + exp(high + low))`.
    #[inline(always)]
    fn soft_plus(high: Self::V, low: Self::V) -> Self::V {
        let negative = high.lt(Self::V::splat(0.0));
        let (t, n) = Self::exp_parts(-high.abs(), Self::V::select(negative, low, -low));
        let m = t + 1.0;
        let lost = t - (m - 1.0);
        // Of smaller exponentials 1 takes no notice: they are all of the result, or nothing of it.
        let bounded = n.at_least(-64.0);
        let log = Self::ln_1p_unit(m.scale_by_product(bounded), lost.scale_by_product(bounded));
        let sum = high.at_least(0.0) + log;
        Self::V::select(negative & n.lt(bounded), m.scale(n), sum)
    }

    /// `x tanh(ln(1 + exp(x)))`, within 3 ulps.
    #[inline(always)]
    fn mish(x: Self::V) -> Self::V {
        // With e = exp(-|x|) and tanh(ln(y)) = (y^2 - 1) / (y^2 + 1), over e^2 for positive x.
        let (one, two) = (Self::V::splat(1.0), Self::V::splat(2.0));
        let negative = x.lt(Self::V::splat(0.0));
        let bounded = x.at_least(-1000.0);
        let (t, n) = Self::exp_parts(-x.abs(), Self::V::splat(-0.0));
        // As in `sigmoid_parts`.
        let e = (t + 1.0).scale_by_product(n.at_least(-64.0));
        let top = Self::V::select(negative, e + 2.0, two.mul_add(e, one));
        let bottom = Self::V::select(negative, e.mul_add(e + 2.0, two), e.mul_add(e * 2.0, top));
        let ratio = top.quotient(bottom);
        let product = bounded * ratio;
        let left = x.mul_add(Self::V::splat(0.0), product.mul_add(t, product)).scale(n);
        Self::V::select(negative, left, x * ratio)
    }
}

/// A number beside which a quarter of its reciprocal is nothing, and is normal.
const LARGE_HALF: f64 = (1u128 << 100) as f64;

/// In two parts, twice the argument of the tanh in the tanh form of GELU:
/// `2 c (x + d x^3)` with c = 0.7978845608028654 and d = 0.044714998453855515.
#[inline(always)]
pub(crate) fn fast_gelu_argument<V: Vector>(x: V) -> (V, V) {
    // 2 c and 2 c d, each as a number of few digits and the rest.
    const LINEAR: (f64, f64) = (1.5957679748535156, 1.1467522151864529e-06);
    const CUBIC: (f64, f64) = (0.07135481387376785, -6.84572270088916e-11);
    // Beyond, the sigmoid has its limits; and no power overflows.
    let x = x.at_most(24.0).at_least(-24.0);
    // Of a small number the square would be less than normal. What is added is taken off again with what is lost.
    let square = x.mul_add(x, V::splat(2f64.powi(-60)));
    let cubic = square * CUBIC.0;
    let factor = cubic + LINEAR.0;
    let lost = (V::splat(LINEAR.0) - factor) + cubic + square.product_error(V::splat(CUBIC.0), cubic);
    let lost = x.product_error(x, square).mul_add(V::splat(CUBIC.0), lost);
    let lost = square.mul_add(V::splat(CUBIC.1), lost + LINEAR.1);
    let high = x * factor;
    (high, x.mul_add(lost, x.product_error(factor, high)))
}

/// [`Math::tanh`] with the exponential of `M`.
#[inline(always)]
fn tanh<M: Math + ?Sized>(x: M::V) -> M::V {
    // With e = exp(-2|x|), tanh|x| = (1 - e) / (1 + e); from 20 on it is 1 in both types.
    let (t, n) = M::exp_parts(x.abs().at_most(20.0) * -2.0, M::V::splat(-0.0));
    let (one, power) = (M::V::splat(1.0), M::V::splat(1.0).scale_by_product(n));
    let top = power.neg_mul_add(t, one - power);
    let bottom = power.mul_add(t, one + power);
    top.quotient(bottom).copysign(x)
}

/// [`Math::sigmoid_sum`] with the exponential of `M`.
#[inline(always)]
fn sigmoid<M: Math + ?Sized>(high: M::V, low: M::V) -> M::V {
    let (inverse, t, n, negative) = M::sigmoid_parts(high, low);
    M::V::select(negative, inverse.mul_add(t, inverse).scale(n), inverse)
}

/// [`Math::gated`] with the exponential of `M`.
#[inline(always)]
fn gated<M: Math>(x: M::V, high: M::V, low: M::V) -> M::V {
    let (inverse, t, n, negative) = M::sigmoid_parts(high, low);
    // Below the bound, the exponential is 0 by far.
    let bounded = x.at_least(-1000.0);
    let product = bounded * inverse;
    let rest = product.mul_add(t, bounded.product_error(inverse, product));
    // Scaled last, which may leave few digits. Adding 0 x, zero but for infinite x.
    let left = x.mul_add(M::V::splat(0.0), product + rest).scale(n);
    // Parts of a result that vanishes have either sign.
    M::V::select(negative, left, x * inverse).copysign(x)
}

/// `result` where a logarithm of `x` is finite, and its limit or NaN elsewhere.
#[inline(always)]
fn ln_limits<V: Vector>(x: V, result: V) -> V {
    let zero = V::splat(0.0);
    let finite = V::select(x.lt(V::splat(f64::INFINITY)), result, x);
    let nonzero = V::select(x.equals(zero), V::splat(f64::NEG_INFINITY), finite);
    V::select(x.lt(zero), V::splat(f64::NAN), nonzero)
}

/// The integer nearest to `x c`, and 2 to its power.
#[inline(always)]
fn nearest_power<V: Vector>(x: V, c: f64) -> (V, V) {
    let rounder = V::splat(V::POWER_ROUNDER);
    let rounded = x.mul_add(V::splat(c), rounder).in_step();
    (rounded - rounder, rounded.power_of_two())
}
