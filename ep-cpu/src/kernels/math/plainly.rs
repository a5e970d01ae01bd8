//! Functions of arguments whose exponentials are normal numbers, at levels where that saves instructions.
//!
//! Whether an argument is far from that is asked first, so that no register has to keep the answer: what far ones need is then
//! computed of all beside what near ones need, which is written once more for that.

use super::single::{EXP, LN_2_HIGH, LN_2_LOW};
use super::{Math, Single, nearest_power, polynomial};
use crate::kernels::simd::{self, Mask};
use std::f64::consts::{LN_2, LOG2_E};

/// Where an argument's magnitude is less, its exponential, the reciprocal of that and parts of both of them are normal numbers.
/// NaN is far.
const PLAIN: f64 = 60.0;

/// [`EXP`] of `2 r`, times 4.
const EXP_TWICE: [f64; 5] = [4.0 * EXP[0], 8.0 * EXP[1], 16.0 * EXP[2], 32.0 * EXP[3], 64.0 * EXP[4]];

impl<V: simd::Single> Single<V> {
    /// `x / (1 + exp(-(high + low)))` for `high` of a magnitude below [`PLAIN`].
    #[inline(always)]
    fn share(x: V, high: V, low: V) -> V {
        let one = V::splat(1.0);
        let (n, power) = nearest_power(high, -LOG2_E);
        let r = n.neg_mul_add(V::splat(LN_2_HIGH), -high).in_step();
        let r = n.neg_mul_add(V::splat(LN_2_LOW), r).in_step();
        let t = Self::exp_m1_reduced(r - low);
        // Below 2^24 the sum loses nothing, and the product with a power of two is exact: so the denominator is rounded once. What
        // larger powers have lost is added to the smaller term.
        let sum = power + 1.0;
        let lost = one - (sum - power);
        x / (power.mul_add(t, lost) + sum).in_step()
    }

    /// What is near, beside what is far: of that, a quotient would be less than normal, which takes many times as long.
    #[inline(always)]
    fn bounded(x: V) -> V {
        x.at_most(PLAIN).at_least(-PLAIN)
    }

    /// [`Math::gated`] by [`Self::share`] where that is right, else by an exponential.
    #[inline(always)]
    pub(super) fn gated_plainly(x: V, high: V, low: V) -> V {
        let far = !high.abs().lt(V::splat(PLAIN));
        if far.any() {
            let near = Self::share(x, Self::bounded(high), low);
            return V::select(far, Self::gated_far(x, high, low), near);
        }
        Self::share(x, high, low)
    }

    /// [`Math::sigmoid_sum`] as [`Self::gated_plainly`].
    #[inline(always)]
    pub(super) fn sigmoid_plainly(high: V, low: V) -> V {
        let far = !high.abs().lt(V::splat(PLAIN));
        if far.any() {
            let near = Self::share(V::splat(1.0), Self::bounded(high), low);
            return V::select(far, Self::sigmoid_far(high, low), near);
        }
        Self::share(V::splat(1.0), high, low)
    }

    /// [`Math::exp`] of a magnitude below [`PLAIN`].
    #[inline(always)]
    fn near_exp(x: V) -> V {
        let (_, rounded, r) = Self::reduce_exp(x);
        Self::exp_reduced(r).times_power(rounded)
    }

    /// [`Math::exp_alone`] as [`Self::gated_plainly`].
    #[inline(always)]
    pub(super) fn exp_plainly(x: V) -> V {
        let far = !x.abs().lt(V::splat(PLAIN));
        if far.any() {
            return V::select(far, Self::exp(x), Self::near_exp(Self::bounded(x)));
        }
        Self::near_exp(x)
    }

    /// [`Math::tanh`] by powers that are normal numbers.
    #[inline(always)]
    pub(super) fn tanh_plainly(x: V) -> V {
        let one = V::splat(1.0);
        // As in `tanh`, at half the argument of the exponential. For n = 0 nothing is taken from that, and else the error of
        // `n ln(2) / 2` in one part is multiplied by a power of at most 1/2.
        let t = (-x.abs()).at_least(-10.0);
        let (n, power) = nearest_power(t, 2.0 * LOG2_E);
        let r = n.neg_mul_add(V::splat(0.5 * LN_2), t).in_step();
        let t = (polynomial(r, &EXP_TWICE) * r).mul_add(r, r + r).in_step();
        let top = power.neg_mul_add(t, one - power).in_step();
        let bottom = power.mul_add(t, one + power).in_step();
        (top / bottom).in_step().with_sign(x)
    }
}
