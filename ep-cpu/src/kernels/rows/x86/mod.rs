//! The vectors of x86-64.
//!
//! All instructions here are of a level that `dispatch` has found before a vector exists, which is what every
//! `unsafe` block below rests on.

mod avx2;
mod avx512;
mod sse2;

use super::vector::{Arithmetic, Compute};
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
        |$x:ident, $a:ident, $b:ident| $zero_below:expr, $mul_add:expr, $neg_mul_add:expr, $exponent:expr
    ) => {
        #[derive(Clone, Copy)]
        pub(in crate::kernels::rows) struct $name($raw);

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
            fn zero_below(self, least: Self) -> Self {
                let ($x, $a) = (self.0, least.0);
                // SAFETY: the level has the instructions.
                Self(unsafe { $zero_below })
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
    |x, a, b| _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, a), x),
    _mm512_fmadd_ps(x, a, b), _mm512_fnmadd_ps(x, a, b),
    _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(x)))
}
vector! {
    F64x8(__m512d) = f64, 8;
    _mm512_set1_pd _mm512_cvtsd_f64 _mm512_add_pd _mm512_sub_pd _mm512_mul_pd _mm512_max_pd _mm512_min_pd;
    |x, a, b| _mm512_maskz_mov_pd(_mm512_cmp_pd_mask::<_CMP_NLT_UQ>(x, a), x),
    _mm512_fmadd_pd(x, a, b), _mm512_fnmadd_pd(x, a, b),
    _mm512_castsi512_pd(_mm512_slli_epi64::<52>(_mm512_castpd_si512(x)))
}
vector! {
    F32x8(__m256) = f32, 8;
    _mm256_set1_ps _mm256_cvtss_f32 _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_max_ps _mm256_min_ps;
    |x, a, b| _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, a), x),
    _mm256_fmadd_ps(x, a, b), _mm256_fnmadd_ps(x, a, b),
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(x)))
}
vector! {
    F64x4(__m256d) = f64, 4;
    _mm256_set1_pd _mm256_cvtsd_f64 _mm256_add_pd _mm256_sub_pd _mm256_mul_pd _mm256_max_pd _mm256_min_pd;
    |x, a, b| _mm256_and_pd(_mm256_cmp_pd::<_CMP_NLT_UQ>(x, a), x),
    _mm256_fmadd_pd(x, a, b), _mm256_fnmadd_pd(x, a, b),
    _mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_castpd_si256(x)))
}
vector! {
    F32x4(__m128) = f32, 4;
    _mm_set1_ps _mm_cvtss_f32 _mm_add_ps _mm_sub_ps _mm_mul_ps _mm_max_ps _mm_min_ps;
    |x, a, b| _mm_and_ps(_mm_cmpnlt_ps(x, a), x),
    _mm_add_ps(_mm_mul_ps(x, a), b), _mm_sub_ps(b, _mm_mul_ps(x, a)),
    _mm_castsi128_ps(_mm_slli_epi32::<23>(_mm_castps_si128(x)))
}
vector! {
    F64x2(__m128d) = f64, 2;
    _mm_set1_pd _mm_cvtsd_f64 _mm_add_pd _mm_sub_pd _mm_mul_pd _mm_max_pd _mm_min_pd;
    |x, a, b| _mm_and_pd(_mm_cmpnlt_pd(x, a), x),
    _mm_add_pd(_mm_mul_pd(x, a), b), _mm_sub_pd(b, _mm_mul_pd(x, a)),
    _mm_castsi128_pd(_mm_slli_epi64::<52>(_mm_castpd_si128(x)))
}
