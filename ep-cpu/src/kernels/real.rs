//! The types that rows are computed in, the constants of their exponential, and the dtypes seen from them.

use crate::kernels::elem::{Storage, f64_to_f32_for_halves};
use half::{bf16, f16};
use std::ops::{Add, Mul, Sub};

/// What rows are computed in.
pub(super) trait Real:
    Storage<Value = Self> + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;
    /// The lowest finite number.
    const LOWEST: Self;
    /// The smallest positive normal number.
    const MIN_POSITIVE: Self;
    /// Adding this leaves no bits for a fraction: the sum's low bits are the other operand, rounded to an integer.
    const TO_INTEGER: Self;
    /// What is added to an exponent when it is stored.
    const BIAS: Self;
    const LOG2_E: Self;
    /// `ln 2` in two parts, of which the first has so few bits that its product with an exponent is exact.
    const LN_2: [Self; 2];
    /// Coefficients of `exp(r)` for `|r| <= ln 2 / 2`, lowest first: the least relative error with the first two 1.
    const EXP: &'static [Self];
    /// From here on, the difference to any number whose exponential is not negligible beside this one's is exact.
    const FAR: Self;
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn reciprocal(self) -> Self;
    /// The logarithm of a positive normal number; NaN for NaN, anything for other values.
    fn log(self) -> f64;
    /// The number whose exponent field is the low bits of `self`, and whose fraction is 0.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn exponent(self) -> Self;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    const LOWEST: f32 = f32::MIN;
    const MIN_POSITIVE: f32 = f32::MIN_POSITIVE;
    const TO_INTEGER: f32 = 12_582_912.0;
    const BIAS: f32 = 127.0;
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN_2: [f32; 2] = [22_713.0 / 32_768.0, 1.428_606_8e-6];
    const EXP: &'static [f32] =
        &[1.0, 1.0, 0.499_999_94, 0.166_665_2, 0.041_668_39, 0.008_368_745, 0.001_381_453_8];
    const FAR: f32 = 256.0;

    #[inline(always)]
    fn from_f64(x: f64) -> f32 {
        x as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.into()
    }

    #[inline(always)]
    fn reciprocal(self) -> f32 {
        1.0 / self
    }

    /// To about 1e-9, which is nothing beside the rounding of an f32. A loop over this vectorises.
    #[inline(always)]
    fn log(self) -> f64 {
        // With the bits of sqrt(1/2) taken off, the exponent field counts powers of two between sqrt(1/2) and
        // sqrt(2), where log(m) = 2 atanh((m - 1) / (m + 1)) needs few terms.
        const ROOT: u32 = 0x3f35_04f3;
        let above = self.to_bits().wrapping_sub(ROOT);
        let exponent = f64::from((above as i32) >> 23);
        let m = f64::from(f32::from_bits((above & 0x007f_ffff).wrapping_add(ROOT)));
        let s = (m - 1.0) / (m + 1.0);
        let s2 = s * s;
        let series = 2.0 + s2 * (2.0 / 3.0 + s2 * (2.0 / 5.0 + s2 * (2.0 / 7.0 + s2 * (2.0 / 9.0))));
        // The product is 0, or NaN for NaN, whose bits are lost above.
        exponent * std::f64::consts::LN_2 + s * series + f64::from(self * 0.0)
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn exponent(self) -> f32 {
        f32::from_bits(self.to_bits() << 23)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    const LOWEST: f64 = f64::MIN;
    const MIN_POSITIVE: f64 = f64::MIN_POSITIVE;
    const TO_INTEGER: f64 = 6_755_399_441_055_744.0;
    const BIAS: f64 = 1023.0;
    const LOG2_E: f64 = std::f64::consts::LOG2_E;
    const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    const EXP: &'static [f64] = &[
        1.0,
        1.0,
        0.500_000_000_000_001,
        0.166_666_666_666_666_74,
        0.041_666_666_666_521_524,
        0.008_333_333_333_322_172,
        0.001_388_888_894_796_254_3,
        0.000_198_412_698_868_999_26,
        2.480_148_716_583_870_8e-5,
        2.755_724_221_351_069e-6,
        2.763_271_611_009_787_3e-7,
        2.511_009_630_403_349e-8,
    ];
    const FAR: f64 = 2048.0;

    #[inline(always)]
    fn from_f64(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn reciprocal(self) -> f64 {
        1.0 / self
    }

    #[inline(always)]
    fn log(self) -> f64 {
        // As for f32.
        const ROOT: u64 = 0x3fe6_a09e_667f_3bcd;
        const FRACTION: u64 = (1 << 52) - 1;
        let above = self.to_bits().wrapping_sub(ROOT);
        let exponent = ((above as i64) >> 52) as i32;
        let m = f64::from_bits((above & FRACTION).wrapping_add(ROOT));
        let s = (m - 1.0) / (m + 1.0);
        let s2 = s * s;
        let mut series = 0.0;
        for odd in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
            series = series * s2 + 2.0 / odd;
        }
        let n = f64::from(exponent);
        let small = n * f64::LN_2[1] + s * s2 * series;
        n * f64::LN_2[0] + (2.0 * s + small) + self * 0.0
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn exponent(self) -> f64 {
        f64::from_bits(self.to_bits() << 52)
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
    f16: f64, f64_to_f32_for_halves;
    bf16: f64, f64_to_f32_for_halves;
    f32: f64, f32::from_f64;
    f64: f64, std::convert::identity;
}
