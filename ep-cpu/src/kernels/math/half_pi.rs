//! What is left of an angle beside its nearest multiple of pi / 2: a reduction as Cody and Waite's, and for large f32 one as
//! Payne and Hanek's.

use crate::kernels::simd::{MAX_LANES, Mask, Single, Vector, nearest};
use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};
use std::hint::cold_path;

/// `pi / 2` in parts, each of which is subtracted as often as the nearest multiple has it.
struct HalfPi {
    /// For products that are rounded once: each has all the digits of its type. What is left by the first product has no more,
    /// so nothing of that is lost.
    fused: [f64; 3],
    /// Up to which argument the nearest multiple is found well enough.
    fused_limit: f64,
    /// For others: all but the last have so few digits that the products are exact.
    short: [f64; 4],
    /// Up to which argument they are, and what is rounded later is little enough.
    short_limit: f64,
}

/// For f32.
const SINGLE: HalfPi = HalfPi {
    fused: [1.5707963705062866, -4.371138828673793e-08, -1.715_124_510_005_882e-15],
    fused_limit: 2e5,
    short: [1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.563344151594519e-12],
    short_limit: 512.0,
};

/// For f64.
const DOUBLE: HalfPi = HalfPi {
    fused: [FRAC_PI_2, 6.123_233_995_736_766e-17, -1.4973849048591698e-33],
    fused_limit: (1 << 30) as f64,
    short: [1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32],
    short_limit: 1e6,
};

impl HalfPi {
    /// What is left of `x`; which multiple was nearest, as a sum with the rounder; and where `x` is finite, but too large
    /// for that.
    #[inline(always)]
    fn reduce<V: Vector>(&self, x: V) -> (V, V, V::Mask) {
        let limit = if V::FUSED { self.fused_limit } else { self.short_limit };
        let size = x.abs();
        let large = V::splat(limit).lt(size) & size.lt(V::splat(f64::INFINITY));
        let (n, rounded) = nearest(x, FRAC_2_PI);
        let mut r = x;
        if V::FUSED {
            for part in self.fused {
                r = n.neg_mul_add(V::splat(part), r);
            }
        } else {
            for part in self.short {
                r = n.neg_mul_add(V::splat(part), r);
            }
        }
        (r, rounded, large)
    }
}

/// What is left of `x`, of up to slightly more than pi / 4 and unspecified for such that the mask tells, and a sum with the
/// rounder whose low two bits are those of the nearest multiple.
#[inline(always)]
pub(super) fn reduce_double<V: Vector<Elem = f64>>(x: V) -> (V, V, V::Mask) {
    DOUBLE.reduce(x)
}

/// As [`reduce_double`], of any size.
#[inline(always)]
pub(super) fn reduce_single<V: Single>(x: V) -> (V, V) {
    let (r, rounded, large) = SINGLE.reduce(x);
    if large.any() {
        cold_path();
        let (r_large, rounded_large) = reduce_large(x);
        return (V::select(large, r_large, r), V::select(large, rounded_large, rounded));
    }
    (r, rounded)
}

/// As [`reduce_single`], by more digits.
#[inline(always)]
fn reduce_large<V: Single>(x: V) -> (V, V) {
    let wide = x.widen();
    let (mut r, rounded, huge) = DOUBLE.reduce(wide);
    let n = rounded - V::Wide::ROUNDER;
    let mut quadrant = n - (n * 0.25).floor() * 4.0;
    if huge.any() {
        let (mut angles, mut rests, mut quadrants) = ([0.0; MAX_LANES], [0.0; MAX_LANES], [0.0; MAX_LANES]);
        // SAFETY: the arrays have room for the lanes of any level.
        unsafe { x.store(angles.as_mut_ptr()) };
        for i in 0..V::LANES {
            (rests[i], quadrants[i]) = reduce_huge(angles[i]);
        }
        // SAFETY: as above.
        let (all, of_all) = unsafe { (V::Wide::load(rests.as_ptr()), V::Wide::load(quadrants.as_ptr())) };
        (r, quadrant) = (V::Wide::select(huge, all, r), V::Wide::select(huge, of_all, quadrant));
    }
    (V::narrow(r), V::narrow(quadrant) + V::ROUNDER)
}

/// `2 / pi`, behind 64 bits that are 0.
const FRAC_2_PI_BITS: [u64; 5] =
    [0, 0xa2f9_836e_4e44_1529, 0xfc27_57d1_f534_ddc0, 0xdb62_9599_3c43_9041, 0xfe51_63ab_debb_c561];

/// What is left of `x`, and the nearest multiple's number modulo 4. Unspecified below 2^-39 and for what is not finite.
#[inline]
fn reduce_huge(x: f32) -> (f64, f64) {
    let bits = x.to_bits();
    // |x| = m 2^e, and m 2^e (2 / pi) modulo 4 needs of 2 / pi only bits from that on which stands for 2^(1 - e). With the
    // first 64 and the next 32 of them as numbers, it is (m high + m low 2^-32) 2^-62 modulo 4, less at most 2^-61. That of
    // no f32 from 1 on is nearer than 2^-30 to an integer.
    let m = u64::from(bits & 0x7f_ffff | 0x80_0000);
    let e = (bits >> 23 & 0xff) as i32 - 150;
    // The first bit behind the point stands for 1/2.
    let first = (64 + e - 2).clamp(0, 64 * 2 + 63) as usize;
    let (word, bit) = (first / 64, first % 64);
    let from = |i: usize| FRAC_2_PI_BITS[i] << bit | FRAC_2_PI_BITS[i + 1] >> 1 >> (63 - bit);
    let (high, low) = (from(word), from(word + 1) >> 32);
    let product = m.wrapping_mul(high).wrapping_add((m * low) >> 32);
    let quadrant = product.wrapping_add(1 << 61) >> 62;
    let rest = product.wrapping_sub(quadrant << 62) as i64 as f64 * (FRAC_PI_2 / (1u64 << 62) as f64);
    // Of a negative one, both are negative. Signs are not asked for by a branch, which would be guessed wrong half the time.
    let sign = i64::from(bits as i32 >> 31);
    let quadrant = ((quadrant as i64 ^ sign) - sign) & 3;
    (rest * f64::from(1f32.copysign(x)), quadrant as f64)
}
