//! Derivatives, and products of `dy` with them: in f32 of derivatives in two parts, as the product with one that has been rounded
//! would exceed the limit of a result.

use super::tails::LOGISTIC_FAR;
use super::{Math, Single, pieces};
use crate::kernels::simd::{self, Mask, Vector};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use std::hint::cold_path;

/// The derivative of GELU as `cdf(x) + x pdf(x)` of the normal distribution.
#[inline(always)]
pub(super) fn gelu_slope<M: Math + ?Sized>(x: M::V) -> M::V {
    // Beyond, the density is 0, which must outweigh infinity.
    let t = x.at_most(50.0).at_least(-50.0);
    let square = t * t;
    let low = t.product_error(t, square) * -0.5;
    let density = M::exp_sum(square * -0.5, low) * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
    t.mul_add(density, M::normal_cdf(t))
}

/// `dy (high + low)` rounded once but for little, for a `low` of no more than an ulp of `high`.
#[inline(always)]
fn times_sum<V: Vector>(dy: V, high: V, low: V) -> V {
    let product = dy * high;
    // Infinity times what is left over would be added to infinity.
    let finite = product.abs().lt(V::splat(f64::INFINITY));
    V::select(finite, dy.mul_add(high, dy * low), product)
}

/// For levels with a fused multiplication and addition.
impl<V: simd::Single> Single<V> {
    /// `dy 2^n (high + low)`, of which `2^n (high + low)` is a number of f32: for a `high` of a magnitude below 2^62, at its fastest
    /// from 2^-24 on.
    #[inline(always)]
    fn times_scaled(dy: V, high: V, low: V, n: V) -> V {
        // Below, what is left over would be subnormal.
        let least = V::splat(-100.0);
        let low = V::select(n.lt(least), V::splat(0.0), low);
        times_sum(dy, high.scale(n), low.scale_by_product(n.greater(least)))
    }

    /// [`Math::times_gelu_slope`] in two parts where a table has them.
    #[inline(always)]
    pub(super) fn times_gelu_slope_in_parts(dy: V, x: V) -> V {
        let t = x.abs();
        let Some((left, rest)) = t.piecewise_in_parts(V::splat(-0.0), &pieces::GELU_SLOPE) else {
            return dy * gelu_slope::<Self>(x);
        };
        let near = Self::times_part_or_rest(dy, x.lt(V::splat(0.0)), left, rest);
        let far = !t.lt(V::splat(pieces::GELU_SLOPE.end.into()));
        if far.any() {
            cold_path();
            return V::select(far, dy * gelu_slope::<Self>(x), near);
        }
        near
    }

    /// `dy (part + low)` where `of_part`, else `dy (1 - part - low)`.
    #[inline(always)]
    fn times_part_or_rest(dy: V, of_part: V::Mask, part: V, low: V) -> V {
        let over = V::splat(1.0) - part;
        let over_low = ((V::splat(1.0) - over) - part) - low;
        times_sum(dy, V::select(of_part, part, over), V::select(of_part, low, over_low))
    }

    /// [`Math::times_exp`] in two parts.
    #[inline(always)]
    pub(super) fn times_exp_in_parts(dy: V, alpha: V, x: V) -> V {
        // With these, exponentials that are bounded from below still are nothing.
        let usual = alpha.abs().lt(V::splat(2f64.powi(40)));
        if (!usual).any() {
            cold_path();
            return dy * (alpha * Self::exp(x));
        }
        let (t, n) = Self::exp_parts(x, V::splat(-0.0));
        let high = alpha.mul_add(t, alpha);
        Self::times_scaled(dy, high, alpha.mul_add(t, alpha - high), n)
    }

    /// `(high, low, t, n)`, with the last two of [`Math::sigmoid_parts`], whose inverse is `high + low` here; given whether `x` is
    /// below 0.
    #[inline(always)]
    fn sigmoid_in_parts(x: V, rest: V, negative: V::Mask) -> (V, V, V, V) {
        let one = V::splat(1.0);
        let (t, n) = Self::exp_parts(-x.abs(), V::select(negative, rest, -rest));
        let m = t + 1.0;
        // Of smaller exponentials 1 takes no notice.
        let bounded = n.at_least(-64.0);
        let (e, lost) = (m.scale_by_product(bounded), (t - (m - 1.0)).scale_by_product(bounded));
        let sum = e + 1.0;
        let lost = (e - (sum - 1.0)) + lost;
        let inverse = one.quotient(sum);
        let error = inverse.neg_mul_add(lost, inverse.neg_mul_add(sum, one));
        (inverse, inverse * error, t, n)
    }

    /// [`Math::times_sigmoid`] in two parts.
    #[inline(always)]
    pub(super) fn times_sigmoid_in_parts(dy: V, high: V, low: V) -> V {
        let negative = high.lt(V::splat(0.0));
        let t = high.abs();
        let beside = V::select(negative, -low, low);
        let Some((tail, rest)) = t.piecewise_in_parts(beside, &pieces::LOGISTIC) else {
            return Self::times_sigmoid_by_exp(dy, high, low);
        };
        let near = Self::times_part_or_rest(dy, negative, tail, rest);
        let far = !t.lt(V::splat(LOGISTIC_FAR[0]));
        if far.any() {
            cold_path();
            return V::select(far, Self::times_sigmoid_by_exp(dy, high, low), near);
        }
        near
    }

    #[inline(always)]
    fn times_sigmoid_by_exp(dy: V, high: V, low: V) -> V {
        let negative = high.lt(V::splat(0.0));
        let (inverse, rest, t, n) = Self::sigmoid_in_parts(high, low, negative);
        let left = inverse.mul_add(t, inverse);
        let left_rest = inverse.mul_add(t, inverse - left) + rest.mul_add(t, rest);
        let (high, low) = (V::select(negative, left, inverse), V::select(negative, left_rest, rest));
        Self::times_scaled(dy, high, low, V::select(negative, n, V::splat(0.0)))
    }

    /// [`Math::times_sigmoid_slope`] in two parts.
    #[inline(always)]
    pub(super) fn times_sigmoid_slope_in_parts(dy: V, x: V) -> V {
        let t = x.abs();
        let Some((tail, rest)) = t.piecewise_in_parts(V::splat(-0.0), &pieces::LOGISTIC) else {
            return Self::times_sigmoid_slope_by_exp(dy, x);
        };
        // tail (1 - tail)
        let near = times_sum(dy, tail.neg_mul_add(tail, tail), (tail + tail).neg_mul_add(rest, rest));
        let far = !t.lt(V::splat(LOGISTIC_FAR[0]));
        if far.any() {
            cold_path();
            return V::select(far, Self::times_sigmoid_slope_by_exp(dy, x), near);
        }
        near
    }

    #[inline(always)]
    fn times_sigmoid_slope_by_exp(dy: V, x: V) -> V {
        let (inverse, rest, t, n) = Self::sigmoid_in_parts(x, V::splat(-0.0), x.lt(V::splat(0.0)));
        let square = inverse * inverse;
        let rest = inverse.mul_add(rest + rest, inverse.product_error(inverse, square));
        let high = square.mul_add(t, square);
        let low = square.mul_add(t, square - high) + rest.mul_add(t, rest);
        Self::times_scaled(dy, high, low, n)
    }
}
