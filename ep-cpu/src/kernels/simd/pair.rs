//! Two vectors as one: the f64 lanes of one vector of f32, or what is computed in step.

use super::{Double, Eight, Mask, Single, Vector};
use half::{bf16, f16};
use std::ops::{BitAnd, BitOr, Not};

/// The lower lanes, and the upper.
#[derive(Clone, Copy)]
pub(super) struct Pair<V>(pub(super) V, pub(super) V);

impl<M: BitAnd<Output = M>> BitAnd for Pair<M> {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, b: Self) -> Self {
        Pair(self.0 & b.0, self.1 & b.1)
    }
}

impl<M: BitOr<Output = M>> BitOr for Pair<M> {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, b: Self) -> Self {
        Pair(self.0 | b.0, self.1 | b.1)
    }
}

impl<M: Not<Output = M>> Not for Pair<M> {
    type Output = Self;

    #[inline(always)]
    fn not(self) -> Self {
        Pair(!self.0, !self.1)
    }
}

impl<M: Mask> Mask for Pair<M> {
    #[inline(always)]
    fn any(self) -> bool {
        self.0.any() | self.1.any()
    }

    #[inline(always)]
    fn before_first(self) -> usize {
        let lanes = self.0.before_first();
        if self.0.any() { lanes } else { lanes + self.1.before_first() }
    }
}

operators!(Pair<V> where V);

impl<V: Vector> Pair<V> {
    #[inline(always)]
    fn plus(self, b: Self) -> Self {
        Pair(self.0 + b.0, self.1 + b.1)
    }

    #[inline(always)]
    fn minus(self, b: Self) -> Self {
        Pair(self.0 - b.0, self.1 - b.1)
    }

    #[inline(always)]
    fn times(self, b: Self) -> Self {
        Pair(self.0 * b.0, self.1 * b.1)
    }

    #[inline(always)]
    fn over(self, b: Self) -> Self {
        Pair(self.0 / b.0, self.1 / b.1)
    }

    #[inline(always)]
    fn negated(self) -> Self {
        Pair(-self.0, -self.1)
    }
}

impl<V: Vector> Vector for Pair<V> {
    type Mask = Pair<V::Mask>;
    type Elem = V::Elem;
    const LANES: usize = 2 * V::LANES;
    const ROUNDER: f64 = V::ROUNDER;
    const POWER_ROUNDER: f64 = V::POWER_ROUNDER;
    const FUSED: bool = V::FUSED;

    #[inline(always)]
    fn splat(x: f64) -> Self {
        Pair(V::splat(x), V::splat(x))
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Pair(self.0.mul_add(b.0, c.0), self.1.mul_add(b.1, c.1))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Pair(self.0.abs(), self.1.abs())
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        Pair(self.0.copysign(sign.0), self.1.copysign(sign.1))
    }

    #[inline(always)]
    fn with_sign(self, sign: Self) -> Self {
        Pair(self.0.with_sign(sign.0), self.1.with_sign(sign.1))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Pair(self.0.sqrt(), self.1.sqrt())
    }

    #[inline(always)]
    fn floor(self) -> Self {
        Pair(self.0.floor(), self.1.floor())
    }

    #[inline(always)]
    fn lt(self, other: Self) -> Self::Mask {
        Pair(self.0.lt(other.0), self.1.lt(other.1))
    }

    #[inline(always)]
    fn le(self, other: Self) -> Self::Mask {
        Pair(self.0.le(other.0), self.1.le(other.1))
    }

    #[inline(always)]
    fn equals(self, other: Self) -> Self::Mask {
        Pair(self.0.equals(other.0), self.1.equals(other.1))
    }

    #[inline(always)]
    fn is_nan(self) -> Self::Mask {
        Pair(self.0.is_nan(), self.1.is_nan())
    }

    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        Pair(V::select(mask.0, a.0, b.0), V::select(mask.1, a.1, b.1))
    }

    #[inline(always)]
    fn lesser(self, other: Self) -> Self {
        Pair(self.0.lesser(other.0), self.1.lesser(other.1))
    }

    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        Pair(self.0.greater(other.0), self.1.greater(other.1))
    }

    #[inline(always)]
    fn in_step(self) -> Self {
        let [low, high] = V::two_in_step([self.0, self.1]);
        Pair(low, high)
    }

    #[inline(always)]
    fn two_in_step([a, b]: [Self; 2]) -> [Self; 2] {
        let [a, b, c, d] = V::four_in_step([a.0, a.1, b.0, b.1]);
        [Pair(a, b), Pair(c, d)]
    }

    #[inline(always)]
    fn scale_by_product(self, n: Self) -> Self {
        Pair(self.0.scale_by_product(n.0), self.1.scale_by_product(n.1))
    }

    #[inline(always)]
    fn subnormals_are_fast() -> bool {
        V::subnormals_are_fast()
    }

    #[inline(always)]
    fn subnormals_are_fast_or_ask() -> bool {
        V::subnormals_are_fast_or_ask()
    }

    #[inline(always)]
    fn subnormals(self) -> Self {
        Pair(self.0.subnormals(), self.1.subnormals())
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        Pair(self.0.power_of_two(), self.1.power_of_two())
    }

    #[inline(always)]
    fn times_power(self, rounded: Self) -> Self {
        Pair(self.0.times_power(rounded.0), self.1.times_power(rounded.1))
    }

    #[inline(always)]
    fn split(self) -> (Self, Self) {
        let ((k0, m0), (k1, m1)) = (self.0.split(), self.1.split());
        (Pair(k0, k1), Pair(m0, m1))
    }

    #[inline(always)]
    fn low_bit(self, bit: u32) -> Self::Mask {
        Pair(self.0.low_bit(bit), self.1.low_bit(bit))
    }

    #[inline(always)]
    fn flip_if_bit(self, rounded: Self, bit: u32) -> Self {
        Pair(self.0.flip_if_bit(rounded.0, bit), self.1.flip_if_bit(rounded.1, bit))
    }

    #[inline(always)]
    fn quotient(self, d: Self) -> Self {
        Pair(self.0.quotient(d.0), self.1.quotient(d.1))
    }

    #[inline(always)]
    fn one_over_one_plus(self) -> Self {
        Pair(self.0.one_over_one_plus(), self.1.one_over_one_plus())
    }

    #[inline(always)]
    fn rough_reciprocal(self) -> Self {
        Pair(self.0.rough_reciprocal(), self.1.rough_reciprocal())
    }

    #[inline(always)]
    fn rsqrt(self) -> Self {
        Pair(self.0.rsqrt(), self.1.rsqrt())
    }

    #[inline(always)]
    fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Pair(self.0.map(&f), self.1.map(&f))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Pair(self.0.zip(other.0, &f), self.1.zip(other.1, &f))
    }

    #[inline(always)]
    unsafe fn load(p: *const V::Elem) -> Self {
        // SAFETY: the caller vouches for the lanes of both halves.
        unsafe { Pair(V::load(p), V::load(p.add(V::LANES))) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut V::Elem) {
        // SAFETY: as in `load`.
        unsafe {
            self.0.store(p);
            self.1.store(p.add(V::LANES));
        }
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut V::Elem) {
        // SAFETY: the caller's promise: at the alignment of the pair, both halves are at theirs.
        unsafe {
            self.0.stream(p);
            self.1.stream(p.add(V::LANES));
        }
    }
}

impl<V: Double> Double for Pair<V> {}

impl<V: Single> Single for Pair<V> {
    const PLAIN_POWERS: bool = V::PLAIN_POWERS;
    type Wide = Pair<V::Wide>;

    #[inline(always)]
    fn on_eight(self) -> Option<Self> {
        let (Some(low), Some(high)) = (self.0.on_eight(), self.1.on_eight()) else { return None };
        Some(Pair(low, high))
    }

    #[inline(always)]
    fn of_eight(self, eight: &'static Eight) -> Self {
        Pair(self.0.of_eight(eight), self.1.of_eight(eight))
    }

    #[inline(always)]
    fn widen(self) -> Self::Wide {
        Pair(self.0.widen(), self.1.widen())
    }

    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        Pair(V::narrow(wide.0), V::narrow(wide.1))
    }

    #[inline(always)]
    fn total(wide: Self::Wide) -> f64 {
        V::total(wide.0 + wide.1)
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: the caller vouches for the lanes of both halves.
        unsafe { Pair(V::load_f16(p), V::load_f16(p.add(V::LANES))) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        // SAFETY: as in `load_f16`.
        unsafe {
            self.0.store_f16(p);
            self.1.store_f16(p.add(V::LANES));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        // SAFETY: as in `load_f16`.
        unsafe { Pair(V::load_bf16(p), V::load_bf16(p.add(V::LANES))) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16) {
        // SAFETY: as in `load_f16`.
        unsafe {
            V::store_two_bf16([self.0, self.1], p);
        }
    }
}
