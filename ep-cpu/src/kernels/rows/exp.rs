//! The exponential that softmax needs, and what a row is shifted by before.
//!
//! `exp(x)` is `2^n exp(r)` with `n` an integer and `|r| <= ln 2 / 2`. A row may be scaled as a whole, so the
//! shift is not the maximum but `centre + k ln 2` with `k` an integer near it: taking `k` off `n` is exact,
//! while `x - max` would be rounded, which grows to many units in the last place far from the maximum. Only where
//! the maximum itself is large is `centre` not 0; then `x - centre` is exact for every `x` that counts.
//!
//! No exponential and no result is a subnormal number, which most CPUs compute many times slower than others: each is normal
//! or 0. The `exp(r)` of a vector are doubled, so that none is below `sqrt(2)` and a product with a normal power of two is
//! normal; and what a sum would make subnormal is set to 0 before it is divided. A result that is normal is never 0: the
//! largest exponential of a row, and so its sum, is at least `sqrt(2)`, as the integer near the maximum is rounded down
//! where it is in doubt; what is 0 is less than that times the smallest normal number.

use super::vector::{MAX_LANES, Vector};
use crate::kernels::real::Real;

/// How far a row is shifted, in one lane or all.
#[derive(Clone, Copy)]
pub(super) struct Shift<T> {
    centre: T,
    /// `n - k - 1` in the form of a stored exponent plus this is a number with no fraction bits.
    offset: T,
    /// Where `n - k - 1` is the exponent of 0.
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
        // Products are rounded differently here and in a vector, by no more than this.
        let doubt = A::from_f64(1.0 / 4096.0);
        let nearest = ((max - centre) * A::LOG2_E - doubt + A::TO_INTEGER) - A::TO_INTEGER;
        // Of k, which is one less, and the one of the doubled exponentials.
        let below = nearest - A::BIAS;
        Self { centre, offset: A::TO_INTEGER - below, lowest: below * A::LN_2[0] + below * A::LN_2[1] }
    }

    /// `log(sum of exp(x - max))` from the sum of [`Shift::exp`] and the maximum; never negative.
    #[inline(always)]
    pub(super) fn log_sum(&self, sum: A, max: A) -> A {
        // Exact but for the last step, as these all but cancel. Halved, the sum is of terms of which the largest is near 1, so
        // that its logarithm has the digits for that.
        let k = self.k() + 1.0;
        let sum = sum * A::from_f64(0.5);
        let beside_max = k * f64::LN_2[0] + (self.centre.to_f64() - max.to_f64()) + k * f64::LN_2[1];
        let log = sum.log() + beside_max;
        // The largest term alone is 1. A negative logarithm would be a probability above 1.
        A::from_f64(if log < 0.0 { 0.0 } else { log })
    }

    /// By what an exponential with this shift is multiplied to become one with the `other`: a power of two, if neither has a
    /// centre.
    #[inline(always)]
    pub(super) fn power_to(&self, other: &Self) -> Option<f64> {
        (self.is_plain() && other.is_plain()).then(|| power_of_two(self.k() - other.k()))
    }

    /// [`Self::power_to`] of any two.
    #[inline(always)]
    pub(super) fn ratio_to(&self, other: &Self) -> f64 {
        self.power_to(other).unwrap_or_else(|| {
            // Exact but for the last step, as in `log_sum`.
            let (k, centre) = (self.k() - other.k(), self.centre.to_f64() - other.centre.to_f64());
            libm::exp(k * f64::LN_2[0] + centre + k * f64::LN_2[1])
        })
    }

    /// Whether it has no centre.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        self.centre == A::ZERO
    }

    #[inline(always)]
    fn k(&self) -> f64 {
        (A::TO_INTEGER + A::BIAS - self.offset).to_f64() - 1.0
    }

    #[inline(always)]
    pub(super) fn splat<V: Vector<Lane = A>>(&self) -> Shift<V> {
        Shift { centre: V::splat(self.centre), offset: V::splat(self.offset), lowest: V::splat(self.lowest) }
    }
}

/// 2 to the power of an integer.
#[inline(always)]
fn power_of_two(n: f64) -> f64 {
    const BIAS: i64 = 1023;
    // Normal numbers have their exponent in the bits above the fraction's.
    if n.abs() < BIAS as f64 { f64::from_bits(((n as i64 + BIAS) as u64) << 52) } else { libm::exp2(n) }
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
    least: [A; MAX_LANES],
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
        let mut all =
            Self { factor: [A::ONE; MAX_LANES], addend: [A::ZERO; MAX_LANES], least: [A::ZERO; MAX_LANES] };
        for i in 0..lanes {
            let last = Last::of(log, &shifts.row(i), sum[i], max[i]);
            (all.factor[i], all.addend[i], all.least[i]) = (last.factor, last.addend, last.least);
        }
        all
    }

    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> Last<A> {
        Last { factor: self.factor[i], addend: self.addend[i], least: self.least[i] }
    }
}

impl<V: Vector> Shift<V> {
    /// `exp(x - shift)`: NaN for NaN, 0 below 1.42 times the smallest normal number. `x` is at most the maximum that the shift is for, or
    /// so little more that the result is a normal number; of others it is any number, NaN or infinity.
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
        let last = terms[terms.len() - 1];
        exp_r.fill(V::splat(last + last));
        for &term in terms[..terms.len() - 1].iter().rev() {
            for k in 0..N {
                exp_r[k] = exp_r[k].mul_add(x[k], V::splat(term + term));
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
    /// Exponentials below this are set to 0, as the factor would make them subnormal. 0 where there are none of them, and
    /// `-inf` for a logarithm.
    pub(super) least: T,
}

impl<A: Real> Last<A> {
    #[inline(always)]
    pub(super) fn of(log: bool, shift: &Shift<A>, sum: A, max: A) -> Self {
        if log {
            Self { factor: A::ONE, addend: A::ZERO - shift.log_sum(sum, max), least: A::NEG_INFINITY }
        } else {
            Self { factor: sum.reciprocal(), addend: A::ZERO, least: sum * A::MIN_POSITIVE }
        }
    }

    #[inline(always)]
    pub(super) fn splat<V: Vector<Lane = A>>(&self) -> Last<V> {
        Last { factor: V::splat(self.factor), addend: V::splat(self.addend), least: V::splat(self.least) }
    }
}

impl<A: Real> Last<A> {
    /// For a row of which no element was shifted, given the sum of the exponentials. What is returned first is to be
    /// taken off each element of a log-softmax before: it is most of the logarithm.
    #[inline(always)]
    pub(super) fn of_near(log: bool, sum: A) -> (A, Self) {
        if !log {
            return (A::ZERO, Self { factor: sum.reciprocal(), addend: A::ZERO, least: A::ZERO });
        }
        let log_sum = sum.log();
        let base = A::from_f64(log_sum);
        (base, Self { factor: A::ONE, addend: A::from_f64(base.to_f64() - log_sum), least: A::NEG_INFINITY })
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
        x.zero_below(self.least).mul_add(self.factor, self.addend)
    }
}

/// Half of `exp(x)` for any `x`, and 0 where that is below 1.42 times the smallest normal number: it is inf only where
/// `exp(x)` is beyond all finite numbers, although the exponent of the largest ones is one more than there are.
#[derive(Clone, Copy)]
pub(super) struct HalfExp<V> {
    shift: Shift<V>,
    highest: V,
}

impl<V: Vector> HalfExp<V> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        // For a maximum of 2 ln 2 the shift is by k = 1.
        let ln_2 = V::Lane::from_f64(std::f64::consts::LN_2);
        let highest = (V::Lane::BIAS + V::Lane::ONE + V::Lane::ONE + V::Lane::ONE) * ln_2;
        Self { shift: Shift::of(ln_2 + ln_2).splat(), highest: V::splat(highest) }
    }

    #[inline(always)]
    pub(super) fn of(&self, x: V) -> V {
        self.shift.exp_centred(self.highest.min(x))
    }
}

#[cfg(test)]
mod tests {
    use super::super::periodic;
    use super::super::tests::{Case, Placed, compute_epsilon, size_of_dtype};
    use crate::isa::Isa;
    use crate::kernels::testing::{Rng, decode};
    use ep_core::DType;
    use ep_core::parallel::Serial;

    /// CPUs are slow where they compute what is subnormal. Elements lie around where results become it, some of them beside many
    /// large ones, which moves that place; and rows lie anywhere.
    #[test]
    fn results_are_normal_or_0() {
        let mut rng = Rng::new();
        let shapes = [
            [40, 7, 1],
            [40, 30, 1],
            [20, 100, 1],
            [9, 400, 1],
            [5, 3000, 1],
            [2, 9001, 1],
            [3, 6, 9],
            [3, 40, 9],
            [2, 30, 70],
        ];
        for shape in shapes {
            let [rows, cols, inner] = shape;
            for (dtype, smallest) in
                [(DType::F32, f64::from(f32::MIN_POSITIVE)), (DType::F64, f64::MIN_POSITIVE)]
            {
                let edge = smallest.ln();
                let far = if dtype == DType::F32 { 256.0 } else { 2048.0 };
                let offsets = [0.0, rng.signed() * far, rng.signed() * 4.0 * far];
                let x: Vec<f64> = (0..rows * cols * inner)
                    .map(|i| match rng.next() % 5 {
                        _ if i / inner % cols == 0 => (i, 0.0),
                        0 if i / (cols * inner) % 2 == 0 => (i, rng.signed()),
                        1 => (i, edge + rng.signed() * 0.01),
                        2 => (i, edge * (1.0 + rng.signed() * 0.3)),
                        _ => (i, edge + rng.signed() * 4.0 + 4.0),
                    })
                    .map(|(i, x)| x + offsets[i / (cols * inner) % 3])
                    .collect();
                // Strips take some columns to be near before they look at them, and compute lanes past their width.
                let strips = inner > 1 && !periodic::suits::<f32>(cols, inner);
                check(dtype, shape, &x, strips);
            }
        }
    }

    /// Maxima half-way between two integers, where a product that is rounded is near another one.
    #[test]
    fn normal_results_are_never_0() {
        let rows = [
            (179.871_688_842_773_44, 92.535_148_620_605_47),
            (-248.493_270_874_023_44, -335.829_803_466_796_9),
        ];
        for (max, x) in rows {
            check(DType::F32, [1, 2, 1], &[max, x], false);
        }
        let mut rng = Rng::new();
        for (dtype, smallest) in [(DType::F32, f64::from(f32::MIN_POSITIVE)), (DType::F64, f64::MIN_POSITIVE)]
        {
            let far = if dtype == DType::F32 { 369.0 } else { 2950.0 };
            let x: Vec<f64> = (0..2000)
                .flat_map(|_| {
                    let half = ((rng.signed() * far).floor() + 0.5) * std::f64::consts::LN_2;
                    let max = half * (1.0 + rng.signed() * 1e-6);
                    [max, max + smallest.ln() + 1e-5 * rng.signed().abs()]
                })
                .collect();
            // Beside the least normal number, the factor's own rounding may make a product less.
            check(dtype, [2000, 2, 1], &x, true);
        }
    }

    fn check(dtype: DType, shape: [usize; 3], x: &[f64], may_underflow: bool) {
        let smallest = if dtype == DType::F32 { f64::from(f32::MIN_POSITIVE) } else { f64::MIN_POSITIVE };
        let case = Case::new(false, [dtype; 2], shape, x);
        let want = case.reference();
        let bytes = want.len() * size_of_dtype(dtype);
        for isa in Isa::available() {
            let (mut src, mut dst) = (Placed::bytes(&case.x, 0), Placed::poison(bytes, 0));
            let run = || case.run(isa, &Serial, src.ptr(), dst.ptr());
            #[cfg(target_arch = "x86_64")]
            {
                let found = crate::kernels::testing::underflows(run);
                assert!(!found || may_underflow, "{}", case.name(isa));
            }
            #[cfg(not(target_arch = "x86_64"))]
            run();
            for (got, want) in decode(dtype, &dst.get()).into_iter().zip(&want) {
                let error = 4.0 * compute_epsilon(dtype, dtype);
                let zero = got == 0.0 && *want < smallest * (1.0 + error);
                let right = got >= smallest && (got - want).abs() <= error * want;
                assert!(zero || right, "{}: {got:e}, not {want:e}", case.name(isa));
            }
        }
    }
}
