//! What moves between lanes, and to and from memory: AVX2.

use super::super::vector::{Arithmetic, MAX_LANES, Vector};
use super::{F32x8, F64x4};
use crate::kernels::in_step;
use crate::kernels::narrow::{bf16_bits, f16_bits};
use crate::kernels::real::{Cell, Real};
use ep_core::DType;
use std::arch::x86_64::*;

/// All bits of the first `len` lanes of 8, or of 4 twice as wide.
#[inline(always)]
fn wide_mask<const N: usize>(len: usize) -> __m256i {
    const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let from = 8 - len.min(N) * (8 / N);
    // SAFETY: `from` is at most 8, and the level has the instruction.
    unsafe { _mm256_loadu_si256(BITS[from..].as_ptr().cast()) }
}

impl F32x8 {
    /// As 16-bit elements `D`, rounded to nearest even.
    #[inline(always)]
    fn halves<D: Cell<f32>>(self) -> __m128i {
        // SAFETY: the level has the instructions.
        unsafe {
            if D::DTYPE == DType::F16 {
                return f16_bits(self.0);
            }
            bf16_bits(self.0)
        }
    }
}

impl F32x8 {
    /// Halves the lanes of two vectors into one, within each 128 bits.
    #[inline(always)]
    fn within(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) =
            unsafe { (_mm256_unpacklo_ps(self.0, other.0), _mm256_unpackhi_ps(self.0, other.0)) };
        f(Self(low), Self(high))
    }

    /// Halves the lanes of two vectors into one, 128 bits at a time.
    #[inline(always)]
    fn across(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) = unsafe {
            (_mm256_permute2f128_ps::<0x20>(self.0, other.0), _mm256_permute2f128_ps::<0x31>(self.0, other.0))
        };
        f(Self(low), Self(high))
    }
}

impl Vector for F32x8 {
    const NEAR: Option<f32> = Some(10.0);

    #[inline(always)]
    fn exp_near(self) -> Self {
        let [e] = Self::exp_near_of([self]);
        e
    }

    #[inline(always)]
    fn exp_near_of<const N: usize>(x: [Self; N]) -> [Self; N] {
        // The exponents are so small that their products with the rest of ln(2) do not show.
        let rounder = Self::splat(f32::TO_INTEGER + f32::BIAS);
        let (mut stored, mut r, mut exp_r) = (x, x, x);
        for k in 0..N {
            stored[k] = x[k].mul_add(Self::splat(f32::LOG2_E), rounder);
        }
        stored = Self::in_step(stored);
        for k in 0..N {
            r[k] = stored[k].sub(rounder).neg_mul_add(Self::splat(std::f32::consts::LN_2), x[k]);
        }
        r = Self::in_step(r);
        let terms = f32::EXP;
        exp_r.fill(Self::splat(terms[terms.len() - 1]));
        for &term in terms[..terms.len() - 1].iter().rev() {
            for k in 0..N {
                exp_r[k] = exp_r[k].mul_add(r[k], Self::splat(term));
            }
            exp_r = Self::in_step(exp_r);
        }
        for k in 0..N {
            // A product and not a sum of exponents, so that a NaN stays one.
            exp_r[k] = exp_r[k].mul(stored[k].exponent());
        }
        exp_r
    }

    #[inline(always)]
    fn exp_near_short(self) -> Self {
        let [e] = Self::exp_near_short_of([self]);
        e
    }

    #[inline(always)]
    fn exp_near_short_of<const N: usize>(mut x: [Self; N]) -> [Self; N] {
        for x in &mut x {
            // What is larger has an exponential above 2^68 too; a NaN stays one.
            *x = Self::splat(88.0).min(*x);
        }
        Self::exp_near_of(x)
    }

    #[inline(always)]
    fn in_step<const N: usize>(mut x: [Self; N]) -> [Self; N] {
        // SAFETY: the level has AVX.
        unsafe {
            match x.as_mut_slice() {
                [Self(a), Self(b)] => [*a, *b] = in_step::two([*a, *b]),
                [Self(a), Self(b), Self(c)] => {
                    [*a, *b] = in_step::two([*a, *b]);
                    [*b, *c] = in_step::two([*b, *c]);
                }
                [Self(a), Self(b), Self(c), Self(d)] => {
                    [*a, *b, *c, *d] = in_step::four([*a, *b, *c, *d]);
                }
                _ => {}
            }
        }
        x
    }

    #[inline(always)]
    fn magnitude(self, least: Self) -> Self {
        // Of a NaN and a number, this gives the second operand.
        // SAFETY: the level has the instructions.
        Self(unsafe { _mm256_max_ps(_mm256_andnot_ps(Self::splat(-0.0).0, self.0), least.0) })
    }

    #[inline(always)]
    fn larger_words(self, other: Self) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            let [a, b] = [self, other].map(|x| _mm256_castps_si256(x.0));
            Self(_mm256_castsi256_ps(_mm256_max_epu16(a, b)))
        }
    }

    #[inline(always)]
    fn words_within(self, most: u16) -> bool {
        // SAFETY: the level has the instructions.
        unsafe {
            let most = _mm256_set1_epi16(most as i16);
            let larger = _mm256_max_epu16(_mm256_castps_si256(self.0), most);
            _mm256_movemask_epi8(_mm256_cmpeq_epi16(larger, most)) == -1
        }
    }

    #[inline(always)]
    fn first_lanes(self, len: usize) -> Self {
        // SAFETY: the level has the instructions.
        Self(unsafe { _mm256_and_ps(self.0, _mm256_castsi256_ps(wide_mask::<8>(len))) })
    }

    #[inline(always)]
    fn within(self, bound: f32) -> bool {
        // SAFETY: the level has the instructions.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(self.0, Self::splat(bound).0)) == 0 }
    }

    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            let x = f(self, Self(_mm256_permute2f128_ps::<1>(self.0, self.0)));
            let x = f(x, Self(_mm256_permute_ps::<0b01_00_11_10>(x.0)));
            f(x, Self(_mm256_permute_ps::<0b10_11_00_01>(x.0)))
        }
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        let low = rows[0].within(rows[2], &f).within(rows[1].within(rows[3], &f), &f);
        let high = rows[4].within(rows[6], &f).within(rows[5].within(rows[7], &f), &f);
        low.across(high, &f)
    }

    #[inline(always)]
    unsafe fn load<S: Cell<f32>>(at: *const S) -> Self {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match S::DTYPE {
                DType::F32 => Self(_mm256_loadu_ps(at.cast())),
                DType::F16 => Self(_mm256_cvtph_ps(_mm_loadu_si128(at.cast()))),
                _ => {
                    let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
                    Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store<D: Cell<f32>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm256_storeu_ps(at.cast(), self.0),
                _ => _mm_storeu_si128(at.cast(), self.halves::<D>()),
            }
        }
    }

    #[inline(always)]
    unsafe fn stream<D: Cell<f32>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm256_stream_ps(at.cast(), self.0),
                _ => _mm_stream_si128(at.cast(), self.halves::<D>()),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_part<S: Cell<f32>>(at: *const S, len: usize, fill: f32) -> Self {
        // SAFETY: lanes outside the mask are not read, the others are the caller's promise; and the level has the
        // instructions.
        unsafe {
            if S::DTYPE != DType::F32 {
                return Self::load_each_part(at, len, fill);
            }
            let mask = wide_mask::<8>(len);
            let x = _mm256_maskload_ps(at.cast(), mask);
            Self(_mm256_blendv_ps(Self::splat(fill).0, x, _mm256_castsi256_ps(mask)))
        }
    }

    #[inline(always)]
    unsafe fn store_part<D: Cell<f32>>(self, at: *mut D, len: usize) {
        // SAFETY: lanes outside the mask are not written, the others are the caller's promise; and the level has
        // the instructions.
        unsafe {
            if D::DTYPE != DType::F32 {
                return self.store_each_part(at, len);
            }
            _mm256_maskstore_ps(at.cast(), wide_mask::<8>(len), self.0);
        }
    }
}

impl F64x4 {
    /// Halves the lanes of two vectors into one, within each 128 bits.
    #[inline(always)]
    fn within(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) =
            unsafe { (_mm256_unpacklo_pd(self.0, other.0), _mm256_unpackhi_pd(self.0, other.0)) };
        f(Self(low), Self(high))
    }

    /// Halves the lanes of two vectors into one, 128 bits at a time.
    #[inline(always)]
    fn across(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) = unsafe {
            (_mm256_permute2f128_pd::<0x20>(self.0, other.0), _mm256_permute2f128_pd::<0x31>(self.0, other.0))
        };
        f(Self(low), Self(high))
    }
}

impl Vector for F64x4 {
    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            let x = f(self, Self(_mm256_permute2f128_pd::<1>(self.0, self.0)));
            f(x, Self(_mm256_permute_pd::<0b0101>(x.0)))
        }
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        rows[0].within(rows[1], &f).across(rows[2].within(rows[3], &f), &f)
    }

    #[inline(always)]
    unsafe fn load<S: Cell<f64>>(at: *const S) -> Self {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match S::DTYPE {
                DType::F64 => Self(_mm256_loadu_pd(at.cast())),
                DType::F32 => Self(_mm256_cvtps_pd(_mm_loadu_ps(at.cast()))),
                _ => Self::load_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<D: Cell<f64>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm256_storeu_pd(at.cast(), self.0),
                DType::F32 => _mm_storeu_ps(at.cast(), _mm256_cvtpd_ps(self.0)),
                _ => self.store_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn stream<D: Cell<f64>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm256_stream_pd(at.cast(), self.0),
                DType::F32 => _mm_stream_ps(at.cast(), _mm256_cvtpd_ps(self.0)),
                _ => self.store_each(at),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_part<S: Cell<f64>>(at: *const S, len: usize, fill: f64) -> Self {
        // SAFETY: lanes outside the mask are not read, the others are the caller's promise; and the level has the
        // instructions.
        unsafe {
            if S::DTYPE != DType::F64 {
                return Self::load_each_part(at, len, fill);
            }
            let mask = wide_mask::<4>(len);
            let x = _mm256_maskload_pd(at.cast(), mask);
            Self(_mm256_blendv_pd(Self::splat(fill).0, x, _mm256_castsi256_pd(mask)))
        }
    }

    #[inline(always)]
    unsafe fn store_part<D: Cell<f64>>(self, at: *mut D, len: usize) {
        // SAFETY: lanes outside the mask are not written, the others are the caller's promise; and the level has
        // the instructions.
        unsafe {
            if D::DTYPE != DType::F64 {
                return self.store_each_part(at, len);
            }
            _mm256_maskstore_pd(at.cast(), wide_mask::<4>(len), self.0);
        }
    }
}
