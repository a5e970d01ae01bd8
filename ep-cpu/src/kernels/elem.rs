//! Stored elements and the values that kernels compute with.

use super::simd::{Lanes, Single as _, Vector as _};
use ep_core::DType;
use half::{bf16, f16};
use std::mem::MaybeUninit;

/// Elements that are converted side by side: whole vectors at every level.
pub(crate) const GROUP: usize = 32;

/// [`GROUP`] values, where no vector lies across two lines.
#[repr(C, align(64))]
pub(crate) struct Group<T>(pub(crate) [T; GROUP]);

/// One stored element: its dtype, and how it becomes a value to compute with and is stored again.
pub(crate) trait Storage: Copy + Send + Sync + 'static {
    /// The dtype stored.
    const DTYPE: DType;
    /// What arithmetic on this dtype is done in.
    type Value: Copy + Send + Sync + 'static;
    fn load(self) -> Self::Value;
    fn store(value: Self::Value) -> Self;

    /// Whether converting many at a time in registers, by [groups](Self::load_group) with what the level has for it, beats
    /// converting each as it is used.
    const BULK: bool = false;

    /// Loads a group, with the vectors of a level.
    ///
    /// # Safety
    /// `src` is readable for [`GROUP`] elements; called inside of [`dispatch`](super::simd::dispatch) at the level of `L`.
    #[inline(always)]
    unsafe fn load_group<L: Lanes>(src: *const Self) -> Group<Self::Value> {
        let mut group = MaybeUninit::<Group<Self::Value>>::uninit();
        let values = group.as_mut_ptr().cast::<Self::Value>();
        // SAFETY: the caller's promise; the values written are those of the whole group.
        unsafe {
            for i in 0..GROUP {
                values.add(i).write(src.add(i).read().load());
            }
            group.assume_init()
        }
    }

    /// Stores a group, with the vectors of a level.
    ///
    /// # Safety
    /// `dst` is writable for [`GROUP`] elements; called as [`Self::load_group`].
    #[inline(always)]
    unsafe fn store_group<L: Lanes>(group: &Group<Self::Value>, dst: *mut Self) {
        for i in 0..GROUP {
            // SAFETY: the caller's promise.
            unsafe { dst.add(i).write(Self::store(group.0[i])) };
        }
    }
}

/// A stored bool. Any byte but 0 reads as true, and only 0 and 1 are written. Computes as `u8`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bool(u8);

impl Storage for Bool {
    const DTYPE: DType = DType::BOOL;
    type Value = u8;

    #[inline(always)]
    fn load(self) -> u8 {
        u8::from(self.0 != 0)
    }

    #[inline(always)]
    fn store(value: u8) -> Bool {
        Bool(u8::from(value != 0))
    }
}

macro_rules! stored_as_computed {
    ($($t:ty => $dtype:ident),*) => {$(
        impl Storage for $t {
            const DTYPE: DType = DType::$dtype;
            type Value = $t;

            #[inline(always)]
            fn load(self) -> $t {
                self
            }

            #[inline(always)]
            fn store(value: $t) -> $t {
                value
            }
        }
    )*};
}
stored_as_computed!(i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f32 => F32, f64 => F64);

impl Storage for f16 {
    const DTYPE: DType = DType::F16;
    type Value = f32;

    #[inline(always)]
    fn load(self) -> f32 {
        f16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn store(value: f32) -> f16 {
        f16::from_bits(f32_to_f16(value))
    }

    const BULK: bool = true;

    #[inline(always)]
    unsafe fn load_group<L: Lanes>(src: *const f16) -> Group<f32> {
        let mut group = MaybeUninit::<Group<f32>>::uninit();
        let values = group.as_mut_ptr().cast::<f32>();
        // SAFETY: the caller's promise; whole vectors make the group.
        unsafe {
            const { assert!(GROUP.is_multiple_of(L::F32::LANES)) };
            for i in (0..GROUP).step_by(L::F32::LANES) {
                L::F32::load_f16(src.add(i)).store(values.add(i));
            }
            group.assume_init()
        }
    }

    #[inline(always)]
    unsafe fn store_group<L: Lanes>(group: &Group<f32>, dst: *mut f16) {
        // SAFETY: the caller's promise; whole vectors make the group.
        unsafe {
            for i in (0..GROUP).step_by(L::F32::LANES) {
                L::F32::load(group.0.as_ptr().add(i)).store_f16(dst.add(i));
            }
        }
    }
}

impl Storage for bf16 {
    const DTYPE: DType = DType::BF16;
    type Value = f32;

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn store(value: f32) -> bf16 {
        bf16::from_bits(f32_to_bf16(value))
    }

    const BULK: bool = true;

    #[inline(always)]
    unsafe fn load_group<L: Lanes>(src: *const bf16) -> Group<f32> {
        let mut group = MaybeUninit::<Group<f32>>::uninit();
        let values = group.as_mut_ptr().cast::<f32>();
        // SAFETY: the caller's promise; whole vectors make the group.
        unsafe {
            const { assert!(GROUP.is_multiple_of(L::F32::LANES)) };
            for i in (0..GROUP).step_by(L::F32::LANES) {
                L::F32::load_bf16(src.add(i)).store(values.add(i));
            }
            group.assume_init()
        }
    }

    #[inline(always)]
    unsafe fn store_group<L: Lanes>(group: &Group<f32>, dst: *mut bf16) {
        // SAFETY: the caller's promise; pairs of whole vectors make the group.
        unsafe {
            const { assert!(GROUP.is_multiple_of(2 * L::F32::LANES)) };
            for i in (0..GROUP).step_by(2 * L::F32::LANES) {
                let from = group.0.as_ptr().add(i);
                let two = [L::F32::load(from), L::F32::load(from.add(L::F32::LANES))];
                L::F32::store_two_bf16(two, dst.add(i));
            }
        }
    }
}

/// A complex number as stored: real part, imaginary part. Computes as `Complex<f64>`, but for sums and products of complex64.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Complex<T> {
    pub(crate) re: T,
    pub(crate) im: T,
}

impl<T: PartialEq> PartialEq for Complex<T> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        // Both parts, always: a branch between them keeps compilers from vectors.
        (self.re == other.re) & (self.im == other.im)
    }
}

impl Storage for Complex<f32> {
    const DTYPE: DType = DType::COMPLEX64;
    type Value = Complex<f64>;

    #[inline(always)]
    fn load(self) -> Complex<f64> {
        Complex { re: f64::from(self.re), im: f64::from(self.im) }
    }

    #[inline(always)]
    fn store(value: Complex<f64>) -> Complex<f32> {
        Complex { re: value.re as f32, im: value.im as f32 }
    }
}

impl Storage for Complex<f64> {
    const DTYPE: DType = DType::COMPLEX128;
    type Value = Complex<f64>;

    #[inline(always)]
    fn load(self) -> Complex<f64> {
        self
    }

    #[inline(always)]
    fn store(value: Complex<f64>) -> Complex<f64> {
        value
    }
}

// `half` converts through out-of-line functions that look the CPU up on each call, and rounds f64 to f16
// twice where the CPU has F16C. These are branch-free integer code that vectorises at every level.

/// Exact; signalling NaNs stay NaN.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // As f32 bits the magnitude has an exponent 112 too small; scaling repairs normals and subnormals.
    let finite = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = magnitude | 0x7f80_0000;
    f32::from_bits(sign | if magnitude < 0x0f80_0000 { finite } else { special })
}

/// Rounds to nearest, ties to even; NaN becomes the quiet NaN of its sign.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    // Adding 0.5 leaves a multiple of 2^-24, the spacing of subnormals, in the low bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let rounded = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    (sign | if magnitude < (127 + 16) << 23 { rounded } else { special }) as u16
}

/// Rounds to nearest, ties to even; NaN stays NaN with its sign and upper payload.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}

/// A number that rounds to f16 and to bf16 as `x` itself does: all of its digits but the first 13, two more than f16 has, are
/// folded into the last one of those (rounding to odd). f32 holds that but for what is nearer to 0 than to any number of bf16.
#[inline(always)]
pub(crate) fn f64_to_f32_for_halves(x: f64) -> f32 {
    const REST: u64 = (1 << 40) - 1;
    let bits = x.to_bits();
    // Anything in the rest carries into the last digit that stays.
    let odd = (bits | ((bits & REST) + REST)) & !REST;
    f64::from_bits(odd) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_bf16_reads_as_half_reads_it() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            for (got, want) in [(h.load(), h.to_f32_const()), (b.load(), b.to_f32_const())] {
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}");
            }
            if !h.is_nan() {
                assert_eq!(f16::store(h.load()).to_bits(), bits);
            }
            if !b.is_nan() {
                assert_eq!(bf16::store(b.load()).to_bits(), bits);
            }
        }
    }

    /// Everything around every boundary between two f16 (or bf16) values.
    #[test]
    fn rounding_is_right_around_every_tie() {
        for bits in 0..0x7f80u16 {
            let low = bf16::from_bits(bits).to_f32_const();
            let tie = low.to_bits() + 0x8000;
            for b in [tie - 1, tie, tie + 1] {
                for x in [f32::from_bits(b), -f32::from_bits(b)] {
                    assert_eq!(f32_to_bf16(x), bf16::from_f32_const(x).to_bits(), "{x:e}");
                }
            }
        }
        for bits in 0..0x7f80u16 {
            let [low, high] = [bits, bits + 1].map(|b| f64::from(f32::from_bits(u32::from(b) << 16)));
            let high = if bits == 0x7f7f { 2f64.powi(128) } else { high };
            let tie = (low + high) / 2.0;
            let even = bits + (bits & 1);
            for (sign, s) in [(0, 1.0), (0x8000, -1.0)] {
                for (x, want) in [
                    (tie, even),
                    (tie.next_up(), bits + 1),
                    (tie.next_down(), bits),
                    (high.next_down(), bits + 1),
                    (low.next_up(), bits),
                ] {
                    assert_eq!(f32_to_bf16(f64_to_f32_for_halves(s * x)), sign | want, "{x:e}");
                }
            }
        }
        for bits in 0..0x7c00u16 {
            let low = f16::from_bits(bits).to_f64_const();
            let high = if bits == 0x7bff { 65536.0 } else { f16::from_bits(bits + 1).to_f64_const() };
            let tie = (low + high) / 2.0;
            let above_tie = if bits & 1 == 0 { low } else { high };
            for s in [1.0, -1.0] {
                let f16_of = |x: f64| f16_to_f64(f32_to_f16(f64_to_f32_for_halves(s * x))) * s;
                let inf_if_out = |x: f64| if x > 65504.0 { f64::INFINITY } else { x };
                assert_eq!(f16_of(tie), inf_if_out(above_tie), "tie {tie:e}");
                assert_eq!(f16_of(tie.next_up()), inf_if_out(high), "above {tie:e}");
                assert_eq!(f16_of(tie.next_down()), low, "below {tie:e}");
                assert_eq!(f16_to_f64(f32_to_f16((s * tie) as f32)) * s, inf_if_out(above_tie));
            }
        }
    }

    fn f16_to_f64(bits: u16) -> f64 {
        f64::from(f16_to_f32(bits))
    }

    #[test]
    fn nan_and_infinity_survive() {
        for x in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
            assert!(f16::from_bits(f32_to_f16(x)).is_nan() && bf16::from_bits(f32_to_bf16(x)).is_nan());
        }
        for nan in [f64::NAN, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001), f64::from_bits(u64::MAX)] {
            assert!(f64_to_f32_for_halves(nan).is_nan());
        }
        for x in [f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.5, f64::from(f32::MIN_POSITIVE) / 4.0] {
            assert_eq!(f64_to_f32_for_halves(x).to_bits(), (x as f32).to_bits());
        }
        for x in [f64::MAX, 1e300, f64::from(f32::MAX).next_up()] {
            assert_eq!(f32_to_bf16(f64_to_f32_for_halves(x)), 0x7f80, "{x:e}");
        }
        assert_eq!(f64_to_f32_for_halves(-1e-300).to_bits(), 0x8000_0000);
    }
}
