//! What moves between lanes, and to and from memory: AVX-512.

use super::super::vector::{Arithmetic, MAX_LANES, Vector};
use super::{F32x16, F64x8};
use crate::kernels::real::{Cell, Real};
use crate::kernels::simd::{EXP_SLOPE, POWERS};
use ep_core::DType;
use std::arch::x86_64::*;

/// The low `len` bits.
#[inline(always)]
fn mask(len: usize) -> u16 {
    ((1u32 << len) - 1) as u16
}

// Results of rows that are near by their magnitudes are not subnormal: two elements are at most twice that apart, of up to
// 8192. For those by their words `medium` sees to it.
const _: () = assert!(matches!(F32x16::NEAR, Some(near) if 2.0 * near + 9.1 < 87.0));

/// The lanes of two vectors as bf16, subnormal ones as 0. Spelled out because code of this level cannot inline what is
/// compiled for bf16.
///
/// # Safety
/// The CPU has the instruction of bf16.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn narrow_two(low: __m512, high: __m512) -> __m512i {
    let both;
    // SAFETY: this changes one register, and the caller vouches for the instruction.
    unsafe {
        std::arch::asm!(
            "vcvtne2ps2bf16 {both}, {high}, {low}",
            both = lateout(zmm_reg) both,
            high = in(zmm_reg) high,
            low = in(zmm_reg) low,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    both
}

#[repr(align(64))]
struct Words([u16; 32]);

/// For each word of the lanes, the number of an element for the upper half, and of a word that is 0 for the lower.
static UPPER: Words = {
    let mut words = [31; 32];
    let mut i = 1;
    while i < 32 {
        words[i] = i as u16 / 2;
        i += 2;
    }
    Words(words)
};

/// Lanes with these upper halves: one instruction, which the compiler makes two of.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn upper_halves(halves: __m256i) -> __m512i {
    let lanes;
    // SAFETY: this changes one register; the table is a vector in size and alignment.
    unsafe {
        std::arch::asm!(
            "vpermw {lanes}, {words}, {halves}",
            lanes = lateout(zmm_reg) lanes,
            words = in(zmm_reg) _mm512_load_si512(UPPER.0.as_ptr().cast()),
            halves = in(zmm_reg) _mm512_zextsi256_si512(halves),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    lanes
}

impl F32x16 {
    /// As 16-bit elements `D`, rounded to nearest even.
    #[inline(always)]
    fn halves<D: Cell<f32>>(self) -> __m256i {
        // SAFETY: the level has the instructions.
        unsafe {
            if D::DTYPE == DType::F16 {
                return _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0);
            }
            // Rounding could carry a NaN's fraction into its sign; such a NaN is made quiet instead.
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let quiet = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000));
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(quiet))
        }
    }

    /// From 16-bit elements `S`.
    #[inline(always)]
    fn widen<S: Cell<f32>>(halves: __m256i) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            if S::DTYPE == DType::F16 {
                return Self(_mm512_cvtph_ps(halves));
            }
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))))
        }
    }
}

impl F32x16 {
    /// `(p, r, n)` such that the exponential of what is near is `p exp(r)` times 2 to the integer below `n`, and p a power
    /// of the 32nd root of 2.
    #[inline(always)]
    fn exp_near_parts(self) -> (Self, Self, Self) {
        // As `exp_by_table`, without what larger numbers need.
        let rounder = Self::splat(f32::TO_INTEGER / 32.0);
        let rounded = self.mul_add(Self::splat(f32::LOG2_E), rounder);
        let n = rounded.sub(rounder);
        let r = n.neg_mul_add(Self::splat(std::f32::consts::LN_2), self);
        let [low, high] = &POWERS;
        // SAFETY: the tables are vectors in size and alignment, and the level has the instructions.
        let power = unsafe {
            let (low, high) = (_mm512_load_ps(low.0.as_ptr()), _mm512_load_ps(high.0.as_ptr()));
            Self(_mm512_permutex2var_ps(low, _mm512_castps_si512(rounded.0), high))
        };
        (power, r, n)
    }

    /// Halves the lanes of two vectors into one, within each 128 bits.
    #[inline(always)]
    fn within(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) =
            unsafe { (_mm512_unpacklo_ps(self.0, other.0), _mm512_unpackhi_ps(self.0, other.0)) };
        f(Self(low), Self(high))
    }

    /// Halves the lanes of two vectors into one, 128 bits at a time.
    #[inline(always)]
    fn across(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) = unsafe {
            (
                _mm512_shuffle_f32x4::<0b10_00_10_00>(self.0, other.0),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(self.0, other.0),
            )
        };
        f(Self(low), Self(high))
    }

    #[inline(always)]
    fn quads(rows: &[Self; MAX_LANES], [a, b, c, d]: [usize; 4], f: impl Fn(Self, Self) -> Self) -> Self {
        rows[a].within(rows[b], &f).within(rows[c].within(rows[d], &f), &f)
    }
}

impl Vector for F32x16 {
    const FAST_PARTS: bool = true;
    /// The error of a single constant for `ln 2`, of which there are up to 15 for each element and for the sum, then
    /// still leaves the softmax its bound.
    const NEAR: Option<f32> = Some(10.0);

    #[inline(always)]
    fn exp_near(self) -> Self {
        let (power, r, n) = self.exp_near_parts();
        let slope = r.mul_add(Self::splat(0.5), Self::splat(EXP_SLOPE as f32));
        // SAFETY: the level has the instruction.
        Self(unsafe { _mm512_scalef_ps(power.mul(r).mul_add(slope, power).0, n.0) })
    }

    #[inline(always)]
    fn exp_near_short(self) -> Self {
        // The next term, of r^2 / 2, is below 2^-14, as r is at most half of ln(2) / 32.
        let (power, r, n) = self.exp_near_parts();
        // SAFETY: the level has the instruction.
        Self(unsafe { _mm512_scalef_ps(power.mul_add(r, power).0, n.0) })
    }

    #[inline(always)]
    fn magnitude(self, least: Self) -> Self {
        // Of a NaN and a number, this gives the second operand.
        // SAFETY: the level has the instructions.
        Self(unsafe { _mm512_max_ps(_mm512_abs_ps(self.0), least.0) })
    }

    #[inline(always)]
    fn magnitude_in_row(self, least: Self) -> Self {
        // The larger of two magnitudes.
        // SAFETY: the level has the instruction.
        Self(unsafe { _mm512_range_ps::<0b1011>(self.0, least.0) })
    }

    #[inline(always)]
    fn larger_words(self, other: Self) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            let [a, b] = [self, other].map(|x| _mm512_castps_si512(x.0));
            Self(_mm512_castsi512_ps(_mm512_max_epu16(a, b)))
        }
    }

    #[inline(always)]
    fn words_within(self, most: u16) -> bool {
        // SAFETY: the level has the instructions.
        unsafe { _mm512_cmpgt_epu16_mask(_mm512_castps_si512(self.0), _mm512_set1_epi16(most as i16)) == 0 }
    }

    #[inline(always)]
    fn first_lanes(self, len: usize) -> Self {
        // SAFETY: the level has the instruction.
        Self(unsafe { _mm512_maskz_mov_ps(mask(len), self.0) })
    }

    #[inline(always)]
    fn within(self, bound: f32) -> bool {
        // SAFETY: the level has the instruction.
        unsafe { _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(self.0, Self::splat(bound).0) == 0 }
    }

    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            let x = f(self, Self(_mm512_shuffle_f32x4::<0b01_00_11_10>(self.0, self.0)));
            let x = f(x, Self(_mm512_shuffle_f32x4::<0b10_11_00_01>(x.0, x.0)));
            let x = f(x, Self(_mm512_permute_ps::<0b01_00_11_10>(x.0)));
            f(x, Self(_mm512_permute_ps::<0b10_11_00_01>(x.0)))
        }
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        // Each step halves the lanes of two vectors into one; this order of rows becomes that of the lanes.
        let even = Self::quads(rows, [0, 2, 1, 3], &f).across(Self::quads(rows, [4, 6, 5, 7], &f), &f);
        let odd = Self::quads(rows, [8, 10, 9, 11], &f).across(Self::quads(rows, [12, 14, 13, 15], &f), &f);
        even.across(odd, &f)
    }

    #[inline(always)]
    unsafe fn load<S: Cell<f32>>(at: *const S) -> Self {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match S::DTYPE {
                DType::F32 => Self(_mm512_loadu_ps(at.cast())),
                DType::BF16 => Self(_mm512_castsi512_ps(upper_halves(_mm256_loadu_si256(at.cast())))),
                _ => Self::widen::<S>(_mm256_loadu_si256(at.cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<D: Cell<f32>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm512_storeu_ps(at.cast(), self.0),
                _ => _mm256_storeu_si256(at.cast(), self.halves::<D>()),
            }
        }
    }

    #[inline(always)]
    unsafe fn stream<D: Cell<f32>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm512_stream_ps(at.cast(), self.0),
                _ => _mm256_stream_si256(at.cast(), self.halves::<D>()),
            }
        }
    }

    #[inline(always)]
    fn narrows<D: Cell<f32>>() -> bool {
        D::DTYPE == DType::BF16 && std::arch::is_x86_feature_detected!("avx512bf16")
    }

    #[inline(always)]
    fn any_subnormal(self, other: Self) -> bool {
        const SUBNORMAL: i32 = 0x20;
        // SAFETY: the level has the instructions.
        unsafe {
            let lanes = _mm512_fpclass_ps_mask::<SUBNORMAL>(self.0);
            lanes | _mm512_fpclass_ps_mask::<SUBNORMAL>(other.0) != 0
        }
    }

    #[inline(always)]
    unsafe fn store_two<D: Cell<f32>>(self, next: Self, at: *mut D, stream: bool, narrow: bool) {
        // SAFETY: the caller's promise, and the level has the instructions; that of bf16 was found by `narrows`.
        unsafe {
            if !(D::DTYPE == DType::BF16 && narrow) {
                return self.store_each_of_two(next, at, stream);
            }
            let both = narrow_two(self.0, next.0);
            if stream { _mm512_stream_si512(at.cast(), both) } else { _mm512_storeu_si512(at.cast(), both) }
        }
    }

    #[inline(always)]
    unsafe fn load_part<S: Cell<f32>>(at: *const S, len: usize, fill: f32) -> Self {
        let (mask, fill) = (mask(len), Self::splat(fill));
        // SAFETY: lanes outside the mask are not read, the others are the caller's promise; and the level has the
        // instructions.
        unsafe {
            match S::DTYPE {
                DType::F32 => Self(_mm512_mask_loadu_ps(fill.0, mask, at.cast())),
                _ => {
                    let x = Self::widen::<S>(_mm256_maskz_loadu_epi16(mask, at.cast()));
                    Self(_mm512_mask_blend_ps(mask, fill.0, x.0))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_part<D: Cell<f32>>(self, at: *mut D, len: usize) {
        let mask = mask(len);
        // SAFETY: lanes outside the mask are not written, the others are the caller's promise; and the level has
        // the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm512_mask_storeu_ps(at.cast(), mask, self.0),
                _ => _mm256_mask_storeu_epi16(at.cast(), mask, self.halves::<D>()),
            }
        }
    }
}

impl F64x8 {
    /// Halves the lanes of two vectors into one, within each 128 bits.
    #[inline(always)]
    fn within(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) =
            unsafe { (_mm512_unpacklo_pd(self.0, other.0), _mm512_unpackhi_pd(self.0, other.0)) };
        f(Self(low), Self(high))
    }

    /// Halves the lanes of two vectors into one, 128 bits at a time.
    #[inline(always)]
    fn across(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) = unsafe {
            (
                _mm512_shuffle_f64x2::<0b10_00_10_00>(self.0, other.0),
                _mm512_shuffle_f64x2::<0b11_01_11_01>(self.0, other.0),
            )
        };
        f(Self(low), Self(high))
    }
}

impl Vector for F64x8 {
    const FAST_PARTS: bool = true;

    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            let x = f(self, Self(_mm512_shuffle_f64x2::<0b01_00_11_10>(self.0, self.0)));
            let x = f(x, Self(_mm512_shuffle_f64x2::<0b10_11_00_01>(x.0, x.0)));
            f(x, Self(_mm512_permute_pd::<0b0101_0101>(x.0)))
        }
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        let even = rows[0].within(rows[1], &f).across(rows[2].within(rows[3], &f), &f);
        let odd = rows[4].within(rows[5], &f).across(rows[6].within(rows[7], &f), &f);
        even.across(odd, &f)
    }

    #[inline(always)]
    unsafe fn load<S: Cell<f64>>(at: *const S) -> Self {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match S::DTYPE {
                DType::F64 => Self(_mm512_loadu_pd(at.cast())),
                DType::F32 => Self(_mm512_cvtps_pd(_mm256_loadu_ps(at.cast()))),
                _ => Self::load_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<D: Cell<f64>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm512_storeu_pd(at.cast(), self.0),
                DType::F32 => _mm256_storeu_ps(at.cast(), _mm512_cvtpd_ps(self.0)),
                _ => self.store_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn stream<D: Cell<f64>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm512_stream_pd(at.cast(), self.0),
                DType::F32 => _mm256_stream_ps(at.cast(), _mm512_cvtpd_ps(self.0)),
                _ => self.store_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_part<S: Cell<f64>>(at: *const S, len: usize, fill: f64) -> Self {
        // SAFETY: lanes outside the mask are not read, the others are the caller's promise; and the level has the
        // instructions.
        unsafe {
            match S::DTYPE {
                DType::F64 => Self(_mm512_mask_loadu_pd(Self::splat(fill).0, mask(len) as u8, at.cast())),
                _ => Self::load_each_part(at, len, fill),
            }
        }
    }

    #[inline(always)]
    unsafe fn store_part<D: Cell<f64>>(self, at: *mut D, len: usize) {
        // SAFETY: lanes outside the mask are not written, the others are the caller's promise; and the level has
        // the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm512_mask_storeu_pd(at.cast(), mask(len) as u8, self.0),
                _ => self.store_each_part(at, len),
            }
        }
    }
}
