//! The exponential that softmax needs, and what a row is shifted by before.
//!
//! `exp(x)` is `2^n exp(r)` with `n` an integer and `|r| <= ln 2 / 2`. A row may be scaled as a whole, so the
//! shift is not the maximum but `centre + k ln 2` with `k` an integer near it: taking `k` off `n` is exact,
//! while `x - max` would be rounded, which grows to many units in the last place far from the maximum. Only where
//! the maximum itself is large is `centre` not 0; then `x - centre` is exact for every `x` that counts.

use super::vector::{MAX_LANES, Vector};
use crate::kernels::real::Real;

/// How far a row is shifted, in one lane or all.
#[derive(Clone, Copy)]
pub(super) struct Shift<T> {
    centre: T,
    /// `n - k` in the form of a stored exponent plus this is a number with no fraction bits.
    offset: T,
    /// Where `n - k` is the exponent of 0.
    lowest: T,
}

impl<T: Copy> Shift<T> {
    /// For keeping it elsewhere.
    #[inline(always)]
    pub(super) fn parts(&self) -> [T; 3] {
        [self.centre, self.offset, self.lowest]
    }

    #[inline(always)]
    pub(super) fn from_parts([centre, offset, lowest]: [T; 3]) -> Self {
        Self { centre, offset, lowest }
    }
}

impl<A: Real> Shift<A> {
    /// For a row with this maximum. With `+inf`, all exponentials are NaN.
    #[inline(always)]
    pub(super) fn of(max: A) -> Self {
        // In a row of nothing but -inf the exponentials are 0, as they are wherever one is -inf.
        let max = if max < A::LOWEST { A::LOWEST } else { max };
        let near = max <= A::FAR && max >= A::ZERO - A::FAR;
        let centre = if near { A::ZERO } else { max };
        let k = ((max - centre) * A::LOG2_E + A::TO_INTEGER) - A::TO_INTEGER;
        let below = k - A::BIAS;
        Self { centre, offset: A::TO_INTEGER - below, lowest: below * A::LN_2[0] + below * A::LN_2[1] }
    }

    /// What all elements are shifted by, as a number that sums of different shifts can be compared by.
    #[inline(always)]
    pub(super) fn total(&self) -> f64 {
        self.centre.to_f64() + self.k() * std::f64::consts::LN_2
    }

    /// `log(sum of exp(x - max))` from the sum of [`Shift::exp`] and the maximum; never negative.
    #[inline(always)]
    pub(super) fn log_sum(&self, sum: A, max: A) -> A {
        // Exact but for the last step, as these all but cancel.
        let k = self.k();
        let beside_max = k * f64::LN_2[0] + (self.centre.to_f64() - max.to_f64()) + k * f64::LN_2[1];
        let log = sum.log() + beside_max;
        // The largest term alone is 1. A negative logarithm would be a probability above 1.
        A::from_f64(if log < 0.0 { 0.0 } else { log })
    }

    /// By what an exponential with this shift is multiplied to become one with the `other`: a power of two, if neither has a
    /// centre.
    #[inline(always)]
    pub(super) fn power_to(&self, other: &Self) -> Option<f64> {
        let plain = self.centre == A::ZERO && other.centre == A::ZERO;
        plain.then(|| libm::exp2(self.k() - other.k()))
    }

    #[inline(always)]
    fn k(&self) -> f64 {
        (A::TO_INTEGER + A::BIAS - self.offset).to_f64()
    }

    #[inline(always)]
    pub(super) fn splat<V: Vector<Lane = A>>(&self) -> Shift<V> {
        Shift { centre: V::splat(self.centre), offset: V::splat(self.offset), lowest: V::splat(self.lowest) }
    }
}

/// [`Shift`] of each lane's row.
pub(super) struct Shifts<A> {
    centre: [A; MAX_LANES],
    offset: [A; MAX_LANES],
    lowest: [A; MAX_LANES],
}

impl<A: Real> Shifts<A> {
    /// Of the first `lanes` maxima. A loop over arrays, which vectorises.
    #[inline(always)]
    pub(super) fn of(max: &[A; MAX_LANES], lanes: usize) -> Self {
        let mut all =
            Self { centre: [A::ZERO; MAX_LANES], offset: [A::ZERO; MAX_LANES], lowest: [A::ZERO; MAX_LANES] };
        for (i, &max) in max[..lanes].iter().enumerate() {
            [all.centre[i], all.offset[i], all.lowest[i]] = Shift::of(max).parts();
        }
        all
    }

    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> Shift<A> {
        Shift { centre: self.centre[i], offset: self.offset[i], lowest: self.lowest[i] }
    }
}

/// [`Last`] of each lane's row.
pub(super) struct Lasts<A> {
    factor: [A; MAX_LANES],
    addend: [A; MAX_LANES],
}

impl<A: Real> Lasts<A> {
    /// Of the first `lanes` rows.
    #[inline(always)]
    pub(super) fn of(
        log: bool,
        shifts: &Shifts<A>,
        sum: &[A; MAX_LANES],
        max: &[A; MAX_LANES],
        lanes: usize,
    ) -> Self {
        let mut all = Self { factor: [A::ONE; MAX_LANES], addend: [A::ZERO; MAX_LANES] };
        for i in 0..lanes {
            let last = Last::of(log, &shifts.row(i), sum[i], max[i]);
            (all.factor[i], all.addend[i]) = (last.factor, last.addend);
        }
        all
    }

    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> Last<A> {
        Last { factor: self.factor[i], addend: self.addend[i] }
    }
}

impl<V: Vector> Shift<V> {
    /// `exp(x - shift)`: NaN for NaN, 0 below the smallest normal number. `x` is at most the maximum.
    #[inline(always)]
    pub(super) fn exp(&self, x: V) -> V {
        self.exp_centred(x.sub(self.centre))
    }

    /// [`Self::exp`] of each.
    #[inline(always)]
    pub(super) fn exp_of<const N: usize>(&self, mut x: [V; N]) -> [V; N] {
        for x in &mut x {
            *x = x.sub(self.centre);
        }
        self.exp_centred_of(x)
    }

    #[inline(always)]
    fn exp_centred(&self, x: V) -> V {
        let [e] = self.exp_centred_of([x]);
        e
    }

    #[inline(always)]
    fn exp_centred_of<const N: usize>(&self, mut x: [V; N]) -> [V; N] {
        let (mut stored, mut exp_r) = (x, x);
        for k in 0..N {
            x[k] = self.lowest.max(x[k]);
            stored[k] = x[k].mul_add(V::splat(V::Lane::LOG2_E), self.offset);
        }
        stored = V::in_step(stored);
        for part in V::Lane::LN_2 {
            for k in 0..N {
                x[k] = stored[k].sub(self.offset).neg_mul_add(V::splat(part), x[k]);
            }
            x = V::in_step(x);
        }
        let terms = V::Lane::EXP;
        exp_r.fill(V::splat(terms[terms.len() - 1]));
        for &term in terms[..terms.len() - 1].iter().rev() {
            for k in 0..N {
                exp_r[k] = exp_r[k].mul_add(x[k], V::splat(term));
            }
            exp_r = V::in_step(exp_r);
        }
        for k in 0..N {
            // A product and not a sum of exponents, so that a NaN stays one.
            exp_r[k] = exp_r[k].mul(stored[k].exponent());
        }
        exp_r
    }
}

/// What turns an exponential into a softmax, or a difference to the maximum into a log-softmax: one of the two
/// does nothing, so that a loop need not ask which it is.
#[derive(Clone, Copy)]
pub(super) struct Last<T> {
    pub(super) factor: T,
    pub(super) addend: T,
}

impl<A: Real> Last<A> {
    #[inline(always)]
    pub(super) fn of(log: bool, shift: &Shift<A>, sum: A, max: A) -> Self {
        if log {
            Self { factor: A::ONE, addend: A::ZERO - shift.log_sum(sum, max) }
        } else {
            Self { factor: sum.reciprocal(), addend: A::ZERO }
        }
    }

    #[inline(always)]
    pub(super) fn splat<V: Vector<Lane = A>>(&self) -> Last<V> {
        Last { factor: V::splat(self.factor), addend: V::splat(self.addend) }
    }
}

impl<A: Real> Last<A> {
    /// For a row of which no element was shifted, given the sum of the exponentials. What is returned first is to be
    /// taken off each element of a log-softmax before: it is most of the logarithm.
    #[inline(always)]
    pub(super) fn of_near(log: bool, sum: A) -> (A, Self) {
        if !log {
            return (A::ZERO, Self { factor: sum.reciprocal(), addend: A::ZERO });
        }
        let log_sum = sum.log();
        let base = A::from_f64(log_sum);
        (base, Self { factor: A::ONE, addend: A::from_f64(base.to_f64() - log_sum) })
    }
}

impl<V: Vector> Last<V> {
    /// The log-softmax from an element and what is to be taken off it before.
    #[inline(always)]
    pub(super) fn apply_log(&self, x: V, base: V) -> V {
        // The logarithm of a probability is not above 0. A NaN stays one.
        V::splat(V::Lane::ZERO).min(x.sub(base).add(self.addend))
    }

    #[inline(always)]
    pub(super) fn apply(&self, x: V) -> V {
        x.mul_add(self.factor, self.addend)
    }
}

/// Half of `exp(x)` for any `x`: it is inf only where `exp(x)` is beyond all finite numbers, although the exponent of
/// the largest ones is one more than there are.
#[derive(Clone, Copy)]
pub(super) struct HalfExp<V> {
    shift: Shift<V>,
    highest: V,
}

impl<V: Vector> HalfExp<V> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        // For a maximum of ln 2 the shift is by k = 1.
        let ln_2 = V::Lane::from_f64(std::f64::consts::LN_2);
        let highest = (V::Lane::BIAS + V::Lane::ONE + V::Lane::ONE) * ln_2;
        Self { shift: Shift::of(ln_2).splat(), highest: V::splat(highest) }
    }

    #[inline(always)]
    pub(super) fn of(&self, x: V) -> V {
        self.shift.exp_centred(self.highest.min(x))
    }
}
