//! The types that rows are computed in, their exponential, and the dtypes seen from them.

use crate::kernels::elem::{Storage, f64_to_f32_odd};
use half::{bf16, f16};
use std::ops::{Add, Mul, Sub};

/// What rows are computed in.
pub(super) trait Real:
    Storage<Value = Self> + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    const ZERO: Self;
    const NEG_INFINITY: Self;
    /// `exp(x)` for `x <= 0`, NaN for NaN, zero where the result would be subnormal.
    fn exp_nonpositive(x: Self) -> Self;
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
}

// Both split `x = n * ln 2 + r` with `n` an integer, found by adding a number so large that the sum has no
// fraction bits, and `|r| <= ln 2 / 2`; then `exp(x) = 2^n * exp(r)`. The first part of ln 2 has so few bits
// that its product with `n` is exact. The last step multiplies, so that a NaN stays one.

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn exp_nonpositive(x: f32) -> f32 {
        const LOWEST: f32 = -87.336_54;
        const TO_INTEGER: f32 = 12_582_912.0;
        const LN2_HIGH: f32 = 355.0 / 512.0;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        // Fitted to (exp(r) - 1 - r) / r^2 at Chebyshev nodes; 0.02 ulp in exact arithmetic.
        const P: [f32; 6] =
            [0.5, 0.166_666_67, 0.041_666_463, 0.008_333_298, 0.001_393_388_4, 0.000_198_995_87];
        let clamped = if LOWEST > x { LOWEST } else { x };
        let shifted = clamped * std::f32::consts::LOG2_E + TO_INTEGER;
        let n = shifted - TO_INTEGER;
        let r = clamped - n * LN2_HIGH - n * LN2_LOW;
        let r2 = r * r;
        let (low, mid, high) = (P[0] + P[1] * r, P[2] + P[3] * r, P[4] + P[5] * r);
        let exp_r = (low + mid * r2 + high * (r2 * r2)) * r2 + r + 1.0;
        let exponent = shifted.to_bits().wrapping_sub(TO_INTEGER.to_bits()).wrapping_add(127);
        let y = exp_r * f32::from_bits(exponent << 23);
        if x < LOWEST { 0.0 } else { y }
    }

    #[inline(always)]
    fn from_f64(x: f64) -> f32 {
        x as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    #[inline(always)]
    fn exp_nonpositive(x: f64) -> f64 {
        const LOWEST: f64 = -708.396_418_532_264_1;
        const TO_INTEGER: f64 = 6_755_399_441_055_744.0;
        const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
        const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
        /// `1 / (k + 2)!`: the Taylor series to degree 13, beyond which terms are below half an ulp.
        const P: [f64; 12] = {
            let (mut p, mut factorial, mut k) = ([0.0; 12], 1.0, 0);
            while k < p.len() {
                factorial *= (k + 2) as f64;
                p[k] = 1.0 / factorial;
                k += 1;
            }
            p
        };
        let clamped = if LOWEST > x { LOWEST } else { x };
        let shifted = clamped * std::f64::consts::LOG2_E + TO_INTEGER;
        let n = shifted - TO_INTEGER;
        let r = clamped - n * LN2_HIGH - n * LN2_LOW;
        let mut sum = P[11];
        for k in (0..11).rev() {
            sum = sum * r + P[k];
        }
        let exp_r = sum * (r * r) + r + 1.0;
        let exponent = shifted.to_bits().wrapping_sub(TO_INTEGER.to_bits()).wrapping_add(1023);
        let y = exp_r * f64::from_bits(exponent << 52);
        if x < LOWEST { 0.0 } else { y }
    }

    #[inline(always)]
    fn from_f64(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// A stored dtype as seen from the type computed in.
pub(super) trait Cell<A>: Storage {
    fn read(self) -> A;
    fn write(value: A) -> Self;
}

macro_rules! cell {
    ($($t:ty: $a:ty, $narrow:expr;)*) => {
        $(impl Cell<$a> for $t {
            #[inline(always)]
            fn read(self) -> $a {
                self.load().into()
            }

            #[inline(always)]
            fn write(value: $a) -> Self {
                Self::store($narrow(value))
            }
        })*
    };
}
// Rounding f64 to odd on the way makes the second rounding the only one that counts.
cell! {
    f16: f32, std::convert::identity;
    bf16: f32, std::convert::identity;
    f32: f32, std::convert::identity;
    f16: f64, f64_to_f32_odd;
    bf16: f64, f64_to_f32_odd;
    f32: f64, f32::from_f64;
    f64: f64, std::convert::identity;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_within_an_ulp_or_two() {
        let (mut worst32, mut worst64) = (0.0f64, 0.0f64);
        for i in 0..400_000 {
            let x = -87.33 * f64::from(i) / 400_000.0;
            let got = f32::exp_nonpositive(x as f32);
            let want = f64::from(x as f32).exp();
            worst32 = worst32.max(((f64::from(got) - want) / want).abs() / f64::from(f32::EPSILON));
            let (got, want) = (f64::exp_nonpositive(8.0 * x), (8.0 * x).exp());
            worst64 = worst64.max(((got - want) / want).abs() / f64::EPSILON);
        }
        assert!(worst32 < 1.5 && worst64 < 2.0, "{worst32} {worst64}");
    }

    #[test]
    fn exponentials_of_specials() {
        assert_eq!((f32::exp_nonpositive(0.0), f64::exp_nonpositive(-0.0)), (1.0, 1.0));
        for x in [f32::NEG_INFINITY, f32::MIN, -1000.0, -87.34] {
            assert_eq!(f32::exp_nonpositive(x).to_bits(), 0);
            assert_eq!(f64::exp_nonpositive(9.0 * f64::from(x)).to_bits(), 0);
        }
        assert!(f32::exp_nonpositive(-87.336).is_normal() && f64::exp_nonpositive(-708.3).is_normal());
        assert!(f32::exp_nonpositive(f32::NAN).is_nan() && f32::exp_nonpositive(-f32::NAN).is_nan());
        assert!(f64::exp_nonpositive(f64::NAN).is_nan());
    }
}
