//! Tails of the logistic function and of the normal distribution in f32, and of what is gated by them: beyond the pieces of
//! tables, and where results vanish.

use super::single::{ERF, LN_2_HIGH, LN_2_LOW};
use super::{Double, Math, Single, pieces, polynomial, sigmoid};
use crate::kernels::simd::{self, Mask, Vector};
use std::f64::consts::{LOG2_E, SQRT_2};
use std::hint::cold_path;

/// `t cdf(-t) exp(t^2 / 2)` in `1 / t^2`, for t from 4 to past where the product is 0.
const FAR_CDF_TAIL: [f64; 7] =
    [0.398942262, -0.398932785, 1.19513655, -5.84058952, 35.1586075, -186.043045, 536.422607];

/// From where on an argument of the logistic function is brought nearer, and the end of what it is brought to, which is below
/// that of the pieces by more than is lost there.
pub(super) const LOGISTIC_FAR: [f64; 2] = [15.98, 15.99];
/// As of [`Single::vanishing`] for a number from 1/4 to 2^11.
const EXP_VANISHES: [f64; 2] = [-124.0, -162.0];
/// As of [`Single::vanishing`] for the function's tail, which is a thousandth of the smallest number at the latter.
const LOGISTIC_VANISHES: [f64; 2] = [-100.0, -139.0];

impl<V: simd::Single> Single<V> {
    /// `m 2^n` where `wanted`; elsewhere 0 may stand for one whose `n` is below `least`.
    ///
    /// Products are normal for an `n` from `least` on, and round to 0 at `none`, the lowest that there is. Only wanted ones between
    /// both need [`Vector::scale`], and they are few.
    #[inline(always)]
    fn vanishing(m: V, n: V, wanted: V::Mask, [least, none]: [f64; 2]) -> V {
        if V::subnormals_are_fast_or_ask() {
            return m.scale_by_product(n);
        }
        let small = n.lt(V::splat(least));
        if (small & wanted & V::splat(none).lt(n)).any() {
            cold_path();
            return m.scale(n);
        }
        V::select(small, V::splat(0.0), m.scale_by_product(n.at_least(least)))
    }

    /// `x` less the product `m 2^n` for positive `x`, and minus the product for negative ones, for `m` from 1/4 to 2^11 and an
    /// integral `n` from -162 on, with which it rounds to 0; NaN for -inf, as the product of a formula is.
    #[inline(always)]
    fn beside_far_tail(x: V, m: V, n: V) -> V {
        let product = Self::vanishing(m, n, x.lt(V::splat(0.0)), EXP_VANISHES);
        // A product that vanishes leaves a zero of the sign of `x`.
        x.at_least(-0.0) - x.at_most(0.0).mul_add(V::splat(0.0), product)
    }

    /// [`Math::gelu`] where the magnitude `t` of `x` is at least [`EightPieces::END`].
    #[inline(always)]
    pub(super) fn gelu_far(x: V, t: V) -> V {
        // From 14.5 on the product rounds to 0. Of what is near, the square must not be less than normal.
        let t = t.at_most(15.0).at_least(1.0);
        let (square, n, r) = Self::reduce_bell(t);
        let ratio = polynomial(square.rough_reciprocal(), &FAR_CDF_TAIL);
        Self::beside_far_tail(x, ratio.mul_add(Self::exp_m1_reduced(r), ratio), n)
    }

    /// [`Math::erfc`] without tables.
    #[inline(always)]
    pub(super) fn erfc_by_exp(x: V) -> V {
        // As twice the normal distribution at `-t` with `t = |x| sqrt(2)`, whose exponential is that of `-x^2`. Beyond the bound
        // it rounds to 0; below 1 / sqrt(2) the other way is taken.
        let (one, size) = (V::splat(1.0), x.abs().at_least(0.5).at_most(10.5));
        let (t, square) = (size * SQRT_2, size * size);
        let (n, _, r) = Self::reduce_exp(-square);
        let product = Self::normal_tail_reduced(t, r - size.product_error(size, square));
        let tail = (product * 2.0).quotient(t).scale(n);
        let large = V::select(x.lt(V::splat(0.0)), V::splat(2.0) - tail, tail);
        let small = one - polynomial(Self::square_beside_one(x), &ERF).mul_add(x, x);
        V::select(t.lt(one), small, large)
    }

    /// `(u, n)` such that `2^n (1 + u)` is the exponential of minus the magnitude of `high + low`.
    #[inline(always)]
    fn exp_of_minus(high: V, low: V) -> (V, V) {
        let (n, _, r) = Self::reduce_exp((-high.abs()).at_least(-112.0));
        (Self::exp_m1_reduced(r - V::select(high.lt(V::splat(0.0)), -low, low)), n)
    }

    /// Sigmoid of `high + low` where the magnitude of `high` is at least 20: there it is an exponential but for nothing.
    #[inline(always)]
    pub(super) fn sigmoid_far(high: V, low: V) -> V {
        let ((u, n), negative) = (Self::exp_of_minus(high, low), high.lt(V::splat(0.0)));
        let tail = Self::vanishing(u + 1.0, n, negative, EXP_VANISHES);
        V::select(negative, tail, V::splat(1.0) - tail)
    }

    /// [`Math::gated`] as [`Self::sigmoid_far`].
    #[inline(always)]
    pub(super) fn gated_far(x: V, high: V, low: V) -> V {
        let (u, n) = Self::exp_of_minus(high, low);
        // Beyond the bound, the exponential is 0 by far.
        let size = x.abs().at_most(1000.0);
        Self::beside_far_tail(x, size.mul_add(u, size), n)
    }

    /// `(tail, n)` with an `n` of 0 or less: the logistic function at `-(t + beside)` is `tail 2^n` for 0, and else less than that
    /// by a part of the difference of both: e / (1 + e) of an exponential near 0 is e (1 - e) but for nothing.
    #[inline(always)]
    fn logistic_tail(t: V, beside: V) -> Option<(V, V)> {
        // From `t` as many ln(2) are taken as bring it below the end.
        let m = t.mul_add(V::splat(LOG2_E), V::splat(1.0 - LOGISTIC_FAR[1] * LOG2_E)).floor().at_least(0.0);
        let whole = m.neg_mul_add(V::splat(LN_2_HIGH), t);
        let near = m.neg_mul_add(V::splat(LN_2_LOW), whole);
        let rest = m.neg_mul_add(V::splat(LN_2_LOW), whole - near);
        Some((near.piecewise(rest + beside, &pieces::LOGISTIC)?, -m))
    }

    /// Sigmoid of `high + low`, given whether that is negative, and `beside`: what `low` adds to the magnitude of
    /// `high`.
    #[inline(always)]
    pub(super) fn sigmoid_beside(high: V, low: V, negative: V::Mask, beside: V) -> V {
        let t = high.abs();
        let far = !t.lt(V::splat(LOGISTIC_FAR[0]));
        if !far.any() {
            let Some(tail) = t.piecewise(beside, &pieces::LOGISTIC) else {
                return sigmoid::<Self>(high, low);
            };
            return V::select(negative, tail, V::splat(1.0) - tail);
        }
        cold_path();
        let Some((tail, n)) = Self::logistic_tail(t.at_most(112.0), beside) else {
            return sigmoid::<Self>(high, low);
        };
        let scaled = tail.scale_by_product(n.at_least(LOGISTIC_VANISHES[0]));
        let tail = tail.mul_add(tail - scaled, tail);
        let tail = Self::vanishing(tail, n, negative, LOGISTIC_VANISHES);
        V::select(negative, tail, V::splat(1.0) - tail)
    }

    /// [`Math::gated`], given `beside` as [`Self::sigmoid_beside`].
    #[inline(always)]
    pub(super) fn gated_beside(x: V, high: V, low: V, beside: V) -> V {
        let t = high.abs();
        let far = !t.lt(V::splat(LOGISTIC_FAR[0]));
        if !far.any() {
            let Some(tail) = t.piecewise(beside, &pieces::LOGISTIC) else {
                return Self::gated_wide(x, high, low);
            };
            return beside_tail(x, x.abs(), tail);
        }
        cold_path();
        let Some((tail, n)) = Self::logistic_tail(t.at_most(112.0), beside) else {
            return Self::gated_wide(x, high, low);
        };
        // Beyond the bound, the exponential is 0 by far.
        let (size, negative) = (x.abs().at_most(1000.0), x.lt(V::splat(0.0)));
        let scaled = tail.scale_by_product(n.at_least(LOGISTIC_VANISHES[0]));
        let product = size.mul_add(tail, (size * tail) * (tail - scaled));
        let product = Self::vanishing(product, n, negative, LOGISTIC_VANISHES);
        // Adding 0 x makes NaN of -inf.
        let left = x.mul_add(V::splat(0.0), product);
        V::select(negative, -left, beside_tail(x, size, scaled))
    }

    /// [`Math::gated`] in f64, for levels without a fused multiplication and addition.
    #[inline(always)]
    pub(super) fn gated_wide(x: V, high: V, low: V) -> V {
        V::narrow(Double::gated(x.widen(), high.widen() + low.widen(), V::Wide::splat(-0.0)))
    }
}

/// `x (1 - tail)` for `x` from 0 up and `x tail` below, given `|x|` and a `tail` from 0 up. Zeros keep their signs, as the
/// larger of two zeros is `x`, and products that vanish have them.
#[inline(always)]
pub(super) fn beside_tail<V: Vector>(x: V, size: V, tail: V) -> V {
    size.neg_mul_add(tail, x.at_least(-0.0))
}
