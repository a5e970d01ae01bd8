//! The vectors of x86-64.
//!
//! All instructions here are of a level that `dispatch` has found before a vector exists, which is what every
//! `unsafe` block below rests on.

use super::vector::{Arithmetic, Compute, MAX_LANES, Vector};
use crate::kernels::real::Cell;
use ep_core::DType;
use std::arch::x86_64::*;

impl Compute for f32 {
    type Baseline = F32x4;
    type Avx2 = F32x8;
    type Avx512 = F32x16;
}

impl Compute for f64 {
    type Baseline = F64x2;
    type Avx2 = F64x4;
    type Avx512 = F64x8;
}

/// A vector type and its arithmetic: instructions in the order of the trait's functions.
macro_rules! vector {
    (
        $name:ident($raw:ty) = $lane:ty, $lanes:literal;
        $splat:ident $first:ident $add:ident $sub:ident $mul:ident $max:ident $min:ident;
        |$x:ident, $a:ident, $b:ident| $mul_add:expr, $neg_mul_add:expr, $exponent:expr
    ) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name($raw);

        #[allow(unused_unsafe, reason = "instructions of every x86-64 are safe")]
        impl Arithmetic for $name {
            type Lane = $lane;
            const LANES: usize = $lanes;

            #[inline(always)]
            fn splat(x: $lane) -> Self {
                // SAFETY: the level has the instruction.
                Self(unsafe { $splat(x) })
            }

            #[inline(always)]
            fn first(self) -> $lane {
                // SAFETY: the level has the instruction.
                unsafe { $first(self.0) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: the level has the instruction.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: the level has the instruction.
                Self(unsafe { $sub(self.0, other.0) })
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: the level has the instruction.
                Self(unsafe { $mul(self.0, other.0) })
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: the level has the instruction.
                Self(unsafe { $max(self.0, other.0) })
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // SAFETY: the level has the instruction.
                Self(unsafe { $min(self.0, other.0) })
            }

            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                let ($x, $a, $b) = (self.0, a.0, b.0);
                // SAFETY: the level has the instruction.
                Self(unsafe { $mul_add })
            }

            #[inline(always)]
            fn neg_mul_add(self, a: Self, b: Self) -> Self {
                let ($x, $a, $b) = (self.0, a.0, b.0);
                // SAFETY: the level has the instruction.
                Self(unsafe { $neg_mul_add })
            }

            #[inline(always)]
            fn exponent(self) -> Self {
                let $x = self.0;
                // SAFETY: the level has the instruction.
                Self(unsafe { $exponent })
            }
        }
    };
}

vector! {
    F32x16(__m512) = f32, 16;
    _mm512_set1_ps _mm512_cvtss_f32 _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_max_ps _mm512_min_ps;
    |x, a, b| _mm512_fmadd_ps(x, a, b), _mm512_fnmadd_ps(x, a, b),
    _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(x)))
}
vector! {
    F64x8(__m512d) = f64, 8;
    _mm512_set1_pd _mm512_cvtsd_f64 _mm512_add_pd _mm512_sub_pd _mm512_mul_pd _mm512_max_pd _mm512_min_pd;
    |x, a, b| _mm512_fmadd_pd(x, a, b), _mm512_fnmadd_pd(x, a, b),
    _mm512_castsi512_pd(_mm512_slli_epi64::<52>(_mm512_castpd_si512(x)))
}
vector! {
    F32x8(__m256) = f32, 8;
    _mm256_set1_ps _mm256_cvtss_f32 _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_max_ps _mm256_min_ps;
    |x, a, b| _mm256_fmadd_ps(x, a, b), _mm256_fnmadd_ps(x, a, b),
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(x)))
}
vector! {
    F64x4(__m256d) = f64, 4;
    _mm256_set1_pd _mm256_cvtsd_f64 _mm256_add_pd _mm256_sub_pd _mm256_mul_pd _mm256_max_pd _mm256_min_pd;
    |x, a, b| _mm256_fmadd_pd(x, a, b), _mm256_fnmadd_pd(x, a, b),
    _mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_castpd_si256(x)))
}
vector! {
    F32x4(__m128) = f32, 4;
    _mm_set1_ps _mm_cvtss_f32 _mm_add_ps _mm_sub_ps _mm_mul_ps _mm_max_ps _mm_min_ps;
    |x, a, b| _mm_add_ps(_mm_mul_ps(x, a), b), _mm_sub_ps(b, _mm_mul_ps(x, a)),
    _mm_castsi128_ps(_mm_slli_epi32::<23>(_mm_castps_si128(x)))
}
vector! {
    F64x2(__m128d) = f64, 2;
    _mm_set1_pd _mm_cvtsd_f64 _mm_add_pd _mm_sub_pd _mm_mul_pd _mm_max_pd _mm_min_pd;
    |x, a, b| _mm_add_pd(_mm_mul_pd(x, a), b), _mm_sub_pd(b, _mm_mul_pd(x, a)),
    _mm_castsi128_pd(_mm_slli_epi64::<52>(_mm_castpd_si128(x)))
}

/// All bits of the first `len` lanes of 8, or of 4 twice as wide.
#[inline(always)]
fn wide_mask<const N: usize>(len: usize) -> __m256i {
    const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let from = 8 - len.min(N) * (8 / N);
    // SAFETY: `from` is at most 8, and the level has the instruction.
    unsafe { _mm256_loadu_si256(BITS[from..].as_ptr().cast()) }
}

/// The low `len` bits.
#[inline(always)]
fn mask(len: usize) -> u16 {
    ((1u32 << len) - 1) as u16
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

impl F32x8 {
    /// As 16-bit elements `D`, rounded to nearest even.
    #[inline(always)]
    fn halves<D: Cell<f32>>(self) -> __m128i {
        // SAFETY: the level has the instructions.
        unsafe {
            if D::DTYPE == DType::F16 {
                return _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            }
            // As for `F32x16`.
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let upper = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256::<1>(upper))
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

impl F32x4 {
    /// Halves the lanes of two vectors into one.
    #[allow(unused_unsafe, reason = "instructions of every x86-64 are safe")]
    #[inline(always)]
    fn within(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) = unsafe { (_mm_unpacklo_ps(self.0, other.0), _mm_unpackhi_ps(self.0, other.0)) };
        f(Self(low), Self(high))
    }
}

#[allow(unused_unsafe, reason = "instructions of every x86-64 are safe")]
impl Vector for F32x4 {
    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            let x = f(self, Self(_mm_shuffle_ps::<0b01_00_11_10>(self.0, self.0)));
            f(x, Self(_mm_shuffle_ps::<0b10_11_00_01>(x.0, x.0)))
        }
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        rows[0].within(rows[2], &f).within(rows[1].within(rows[3], &f), &f)
    }

    #[inline(always)]
    unsafe fn load<S: Cell<f32>>(at: *const S) -> Self {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match S::DTYPE {
                DType::F32 => Self(_mm_loadu_ps(at.cast())),
                DType::BF16 => {
                    let bits = _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(at.cast()));
                    Self(_mm_castsi128_ps(bits))
                }
                _ => Self::load_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<D: Cell<f32>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm_storeu_ps(at.cast(), self.0),
                _ => self.store_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn stream<D: Cell<f32>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm_stream_ps(at.cast(), self.0),
                _ => self.store_each(at),
            }
        }
    }
}

#[allow(unused_unsafe, reason = "instructions of every x86-64 are safe")]
impl Vector for F64x2 {
    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        f(self, Self(unsafe { _mm_shuffle_pd::<0b01>(self.0, self.0) }))
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        let (a, b) = (rows[0].0, rows[1].0);
        // SAFETY: the level has the instructions.
        unsafe { f(Self(_mm_unpacklo_pd(a, b)), Self(_mm_unpackhi_pd(a, b))) }
    }

    #[inline(always)]
    unsafe fn load<S: Cell<f64>>(at: *const S) -> Self {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match S::DTYPE {
                DType::F64 => Self(_mm_loadu_pd(at.cast())),
                _ => Self::load_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<D: Cell<f64>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm_storeu_pd(at.cast(), self.0),
                _ => self.store_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn stream<D: Cell<f64>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm_stream_pd(at.cast(), self.0),
                _ => self.store_each(at),
            }
        }
    }
}
