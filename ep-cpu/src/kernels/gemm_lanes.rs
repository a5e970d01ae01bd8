//! The vectors that the inner loops of [`gemm_simd`](super::gemm_simd) work on, one kind for each level.

use crate::isa::Body;
use crate::kernels::elem::Storage;
use crate::kernels::gemm_micro::Micro;
use half::{bf16, f16};

/// A real number type, and its vectors.
pub(super) trait Real: Copy + Send + Sync + 'static {
    type Portable: Lanes<Real = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Lanes<Real = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx512: Lanes<Real = Self>;
    const ZERO: Self;
    const ONE: Self;
    fn is_zero(self) -> bool;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn from_f32(x: f32) -> Self;
    fn to_f32(self) -> f32;
}

/// What numbers are stored as.
pub(super) trait Part: Storage<Value: Real> {
    /// A vector of stored numbers, as computed with.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn widen<L: Lanes<Real = Self::Value>>(at: *const Self) -> L::V;

    /// Stores a vector, rounded to nearest.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn narrow<L: Lanes<Real = Self::Value>>(v: L::V, at: *mut Self);
}

macro_rules! parts {
    ($($t:ident: $load:ident, $store:ident;)*) => {
        $(impl Part for $t {
            #[inline(always)]
            unsafe fn widen<L: Lanes<Real = Self::Value>>(at: *const $t) -> L::V {
                // SAFETY: the caller's promise.
                unsafe { L::$load(at) }
            }

            #[inline(always)]
            unsafe fn narrow<L: Lanes<Real = Self::Value>>(v: L::V, at: *mut $t) {
                // SAFETY: the caller's promise.
                unsafe { L::$store(at, v) }
            }
        })*
    };
}
parts! {
    f32: load, store;
    f64: load, store;
    f16: load_f16, store_f16;
    bf16: load_bf16, store_bf16;
}

/// The most lanes of a vector.
pub(super) const MOST: usize = 16;

/// Vectors of one level.
///
/// # Safety of its functions
/// The CPU has the level. What they read or write is readable or writable, at any alignment of an element.
pub(super) trait Lanes: Copy + Send + Sync + 'static {
    type Real: Real;
    type V: Copy;
    const LANES: usize;
    /// Rows of `c` whose sums, three vectors each, fit into the registers together with what adds up to them.
    const ROWS: usize;
    /// Whether a part of a vector is read as fast as a whole one.
    const MASKS: bool;
    /// Whether whole groups of rows have an inner loop of their own, see [`Micro`](super::gemm_micro::Micro) and [`Lanes::groups`].
    const PACKED: bool;
    /// How deep packed blocks are: first-level cache holds a panel of three vectors that deep, and a group of rows.
    const DEPTH: usize;
    /// Bytes of second-level cache that can be expected.
    const CACHE: usize;
    /// Rows of `a` up to which a large `b` is better read where it is than packed; half as many where its rows are pages apart.
    const FEW_ROWS: usize;
    /// Bytes of rows of `a` up to which they are better read where they are than packed, however many columns there are.
    const NEAR_ROWS: usize;

    /// Groups of rows by whole vectors, in a loop that is written out; whether the level has one.
    ///
    /// # Safety
    /// As for [`Micro::by_rows`], for two or three vectors, none of which is cut, and [`Lanes::ROWS`] rows, packed or of one part.
    #[inline(always)]
    unsafe fn groups<const VECTORS: usize>(_: &Micro<Self>) -> bool {
        false
    }

    /// Runs `body` compiled for the level.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn run<B: Body>(body: B) -> B::Out;

    /// # Safety
    /// See the trait.
    unsafe fn splat(x: Self::Real) -> Self::V;

    /// # Safety
    /// See the trait.
    unsafe fn load(at: *const Self::Real) -> Self::V;

    /// The first `n` lanes, at most a whole vector; zeros in the others.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load_part(at: *const Self::Real, n: usize) -> Self::V;

    /// # Safety
    /// See the trait.
    unsafe fn store(at: *mut Self::Real, v: Self::V);

    /// The first `n` lanes, at most a whole vector.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn store_part(at: *mut Self::Real, n: usize, v: Self::V);

    /// `a * b + c`, rounded once where the level can.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;

    /// # Safety
    /// See the trait.
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;

    /// A vector of f16.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn load_f16(at: *const f16) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { from_halves::<Self, f16>(at) }
    }

    /// A vector of bf16.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn load_bf16(at: *const bf16) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { from_halves::<Self, bf16>(at) }
    }

    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn store_f16(at: *mut f16, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { to_halves::<Self, f16>(at, v) }
    }

    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn store_bf16(at: *mut bf16, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { to_halves::<Self, bf16>(at, v) }
    }

    /// The lower halves behind each other, and the upper halves.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn halves(a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        let (mut lower, mut upper) = ([Self::Real::ZERO; MOST], [Self::Real::ZERO; MOST]);
        let half = Self::LANES / 2;
        // SAFETY: the arrays have at least as many numbers as a vector.
        unsafe {
            Self::store(lower.as_mut_ptr(), a);
            Self::store(upper.as_mut_ptr(), b);
            lower[half..2 * half].swap_with_slice(&mut upper[..half]);
            (Self::load(lower.as_ptr()), Self::load(upper.as_ptr()))
        }
    }

    /// The lower halves interleaved, and the upper halves.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn zip(a: Self::V, b: Self::V) -> (Self::V, Self::V);
}

/// Halves as a vector, one by one.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn from_halves<L: Lanes, H: Storage<Value = f32>>(at: *const H) -> L::V {
    let mut all = [L::Real::ZERO; MOST];
    for (i, x) in all.iter_mut().enumerate().take(L::LANES) {
        // SAFETY: the caller's promise.
        *x = L::Real::from_f32(unsafe { at.add(i).read() }.load());
    }
    // SAFETY: the array has at least as many numbers as a vector.
    unsafe { L::load(all.as_ptr()) }
}

/// A vector as halves, one by one.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn to_halves<L: Lanes, H: Storage<Value = f32>>(at: *mut H, v: L::V) {
    let mut all = [L::Real::ZERO; MOST];
    // SAFETY: the array has at least as many numbers as a vector; the rest is the caller's promise.
    unsafe {
        L::store(all.as_mut_ptr(), v);
        for (i, x) in all.iter().enumerate().take(L::LANES) {
            at.add(i).write(H::store(x.to_f32()));
        }
    }
}

/// 16 bytes of numbers in plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Portable<R>(std::marker::PhantomData<R>);

macro_rules! portable {
    ($($real:ident: $lanes:literal),*) => {
        $(impl Lanes for Portable<$real> {
            type Real = $real;
            type V = [$real; $lanes];
            const LANES: usize = $lanes;
            const ROWS: usize = 4;
            const MASKS: bool = false;
            const PACKED: bool = false;
            const DEPTH: usize = 512;
            const CACHE: usize = 1 << 20;
            const FEW_ROWS: usize = 0;
            const NEAR_ROWS: usize = 1 << 20;

            #[inline(always)]
            unsafe fn run<B: Body>(body: B) -> B::Out {
                body.run()
            }

            #[inline(always)]
            unsafe fn splat(x: $real) -> Self::V {
                [x; $lanes]
            }

            #[inline(always)]
            unsafe fn load(at: *const $real) -> Self::V {
                // SAFETY: the caller's promise.
                unsafe { at.cast::<Self::V>().read_unaligned() }
            }

            #[inline(always)]
            unsafe fn load_part(at: *const $real, n: usize) -> Self::V {
                // SAFETY: the caller's promise for the first `n`.
                std::array::from_fn(|i| if i < n { unsafe { at.add(i).read() } } else { 0.0 })
            }

            #[inline(always)]
            unsafe fn store(at: *mut $real, v: Self::V) {
                // SAFETY: the caller's promise.
                unsafe { at.cast::<Self::V>().write_unaligned(v) }
            }

            #[inline(always)]
            unsafe fn store_part(at: *mut $real, n: usize, v: Self::V) {
                for (i, x) in v.into_iter().enumerate().take(n) {
                    // SAFETY: the caller's promise for the first `n`.
                    unsafe { at.add(i).write(x) }
                }
            }

            #[inline(always)]
            unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] * b[i] + c[i])
            }

            #[inline(always)]
            unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] * b[i])
            }

            #[inline(always)]
            unsafe fn zip(a: Self::V, b: Self::V) -> (Self::V, Self::V) {
                let lane = |i: usize| if i % 2 == 0 { a[i / 2] } else { b[i / 2] };
                (std::array::from_fn(lane), std::array::from_fn(|i| lane(i + $lanes)))
            }
        })*
    };
}
portable!(f32: 4, f64: 2);

macro_rules! real {
    ($($real:ident),*) => {
        $(impl Real for $real {
            type Portable = Portable<$real>;
            #[cfg(target_arch = "x86_64")]
            type Avx2 = x86::Avx2<$real>;
            #[cfg(target_arch = "x86_64")]
            type Avx512 = x86::Avx512<$real>;
            const ZERO: $real = 0.0;
            const ONE: $real = 1.0;

            #[inline(always)]
            fn is_zero(self) -> bool {
                self == 0.0
            }

            #[inline(always)]
            fn add(self, other: $real) -> $real {
                self + other
            }

            #[inline(always)]
            fn mul(self, other: $real) -> $real {
                self * other
            }

            #[inline(always)]
            fn from_f32(x: f32) -> $real {
                x.into()
            }

            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
        })*
    };
}
real!(f32, f64);

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::Lanes;
    use crate::isa::{self, Body};
    use crate::kernels::gemm_micro::Micro;
    use crate::kernels::gemm_written::Written;
    use crate::kernels::narrow::{bf16_bits, f16_bits};
    use half::{bf16, f16};
    use std::arch::x86_64::*;
    use std::marker::PhantomData;

    #[derive(Clone, Copy)]
    pub(in crate::kernels) struct Avx2<R>(PhantomData<R>);

    #[derive(Clone, Copy)]
    pub(in crate::kernels) struct Avx512<R>(PhantomData<R>);

    macro_rules! avx2 {
        ($($real:ident, $v:ident, $lanes:literal: $splat:ident, $load:ident, $store:ident, $fma:ident, $mul:ident,
           $low:ident, $high:ident, $join:ident { $($halves:tt)* })*) => {
            $(impl Lanes for Avx2<$real> {
                type Real = $real;
                type V = $v;
                const LANES: usize = $lanes;
                const ROWS: usize = 4;
                const MASKS: bool = false;
                const PACKED: bool = true;
                const DEPTH: usize = 256;
                const CACHE: usize = 256 << 10;
                const FEW_ROWS: usize = 0;
                const NEAR_ROWS: usize = 16 << 10;

                #[inline(always)]
                unsafe fn run<B: Body>(body: B) -> B::Out {
                    // SAFETY: the caller's promise.
                    unsafe { isa::run_avx2(body) }
                }

                #[inline(always)]
                unsafe fn splat(x: $real) -> $v {
                    // SAFETY: the caller's promise, here and below.
                    unsafe { $splat(x) }
                }

                #[inline(always)]
                unsafe fn load(at: *const $real) -> $v {
                    // SAFETY: as above.
                    unsafe { $load(at) }
                }

                #[inline(always)]
                unsafe fn load_part(at: *const $real, n: usize) -> $v {
                    let mut all = [0.0; $lanes];
                    for (i, x) in all.iter_mut().enumerate().take(n) {
                        // SAFETY: as above, for the first `n`.
                        *x = unsafe { at.add(i).read() };
                    }
                    // SAFETY: as above.
                    unsafe { $load(all.as_ptr()) }
                }

                #[inline(always)]
                unsafe fn store(at: *mut $real, v: $v) {
                    // SAFETY: as above.
                    unsafe { $store(at, v) }
                }

                #[inline(always)]
                unsafe fn store_part(at: *mut $real, n: usize, v: $v) {
                    let mut all = [0.0; $lanes];
                    // SAFETY: as above; the first `n` are the caller's.
                    unsafe {
                        $store(all.as_mut_ptr(), v);
                        for (i, &x) in all.iter().enumerate().take(n) {
                            at.add(i).write(x);
                        }
                    }
                }

                #[inline(always)]
                unsafe fn mul_add(a: $v, b: $v, c: $v) -> $v {
                    // SAFETY: as above.
                    unsafe { $fma(a, b, c) }
                }

                #[inline(always)]
                unsafe fn mul(a: $v, b: $v) -> $v {
                    // SAFETY: as above.
                    unsafe { $mul(a, b) }
                }

                #[inline(always)]
                unsafe fn zip(a: $v, b: $v) -> ($v, $v) {
                    // SAFETY: as above. The unpacking instructions interleave within halves of a vector.
                    unsafe {
                        let (low, high) = ($low(a, b), $high(a, b));
                        ($join::<0x20>(low, high), $join::<0x31>(low, high))
                    }
                }

                #[inline(always)]
                unsafe fn halves(a: $v, b: $v) -> ($v, $v) {
                    // SAFETY: as above.
                    unsafe { ($join::<0x20>(a, b), $join::<0x31>(a, b)) }
                }

                $($halves)*
            })*
        };
    }
    avx2! {
        f32, __m256, 8: _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_mul_ps,
            _mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_permute2f128_ps {
                #[inline(always)]
                unsafe fn load_f16(at: *const f16) -> __m256 {
                    // SAFETY: the caller's promise; the level has F16C.
                    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
                }

                #[inline(always)]
                unsafe fn load_bf16(at: *const bf16) -> __m256 {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let upper = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())));
                        _mm256_castsi256_ps(upper)
                    }
                }

                #[inline(always)]
                unsafe fn store_f16(at: *mut f16, v: __m256) {
                    // SAFETY: as above.
                    unsafe { _mm_storeu_si128(at.cast(), f16_bits(v)) }
                }

                #[inline(always)]
                unsafe fn store_bf16(at: *mut bf16, v: __m256) {
                    // SAFETY: as above.
                    unsafe { _mm_storeu_si128(at.cast(), bf16_bits(v)) }
                }
            }
        f64, __m256d, 4: _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd, _mm256_mul_pd,
            _mm256_unpacklo_pd, _mm256_unpackhi_pd, _mm256_permute2f128_pd {}
    }

    macro_rules! avx512 {
        ($($real:ident, $v:ident, $mask:ident, $lanes:literal: $splat:ident, $load:ident, $load_mask:ident, $store:ident,
           $store_mask:ident, $fma:ident, $mul:ident, $permute:ident, $low:ident, $high:ident, $join:ident
           { $($halves:tt)* })*) => {
            $(impl Lanes for Avx512<$real> {
                type Real = $real;
                type V = $v;
                const LANES: usize = $lanes;
                const ROWS: usize = 8;
                const MASKS: bool = true;
                const PACKED: bool = true;
                const DEPTH: usize = 512;
                const CACHE: usize = 1 << 20;
                const FEW_ROWS: usize = 64;
                const NEAR_ROWS: usize = 1 << 20;

                #[inline(always)]
                unsafe fn groups<const VECTORS: usize>(m: &Micro<Self>) -> bool {
                    // SAFETY: the caller's promise.
                    unsafe { <$real as Written>::groups::<VECTORS>(m) };
                    true
                }

                #[inline(always)]
                unsafe fn run<B: Body>(body: B) -> B::Out {
                    // SAFETY: the caller's promise.
                    unsafe { isa::run_avx512(body) }
                }

                #[inline(always)]
                unsafe fn splat(x: $real) -> $v {
                    // SAFETY: the caller's promise, here and below.
                    unsafe { $splat(x) }
                }

                #[inline(always)]
                unsafe fn load(at: *const $real) -> $v {
                    // SAFETY: as above.
                    unsafe { $load(at) }
                }

                #[inline(always)]
                unsafe fn load_part(at: *const $real, n: usize) -> $v {
                    // SAFETY: as above; lanes outside the mask are not read.
                    unsafe { $load_mask(((1u32 << n) - 1) as $mask, at) }
                }

                #[inline(always)]
                unsafe fn store(at: *mut $real, v: $v) {
                    // SAFETY: as above.
                    unsafe { $store(at, v) }
                }

                #[inline(always)]
                unsafe fn store_part(at: *mut $real, n: usize, v: $v) {
                    // SAFETY: as above; lanes outside the mask are not written.
                    unsafe { $store_mask(at, ((1u32 << n) - 1) as $mask, v) }
                }

                #[inline(always)]
                unsafe fn mul_add(a: $v, b: $v, c: $v) -> $v {
                    // SAFETY: as above.
                    unsafe { $fma(a, b, c) }
                }

                #[inline(always)]
                unsafe fn mul(a: $v, b: $v) -> $v {
                    // SAFETY: as above.
                    unsafe { $mul(a, b) }
                }

                #[inline(always)]
                unsafe fn zip(a: $v, b: $v) -> ($v, $v) {
                    // SAFETY: as above; the indices are 64 bytes, of any alignment.
                    unsafe {
                        let (low, high) = (_mm512_loadu_si512($low.as_ptr().cast()), _mm512_loadu_si512($high.as_ptr().cast()));
                        ($permute(a, low, b), $permute(a, high, b))
                    }
                }

                #[inline(always)]
                unsafe fn halves(a: $v, b: $v) -> ($v, $v) {
                    // SAFETY: as above.
                    unsafe { ($join::<0x44>(a, b), $join::<0xee>(a, b)) }
                }

                $($halves)*
            })*
        };
    }
    // An index counts through both vectors.
    const LOW_32: [u32; 16] = [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23];
    const HIGH_32: [u32; 16] = [8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31];
    const LOW_64: [u64; 8] = [0, 8, 1, 9, 2, 10, 3, 11];
    const HIGH_64: [u64; 8] = [4, 12, 5, 13, 6, 14, 7, 15];
    avx512! {
        f32, __m512, __mmask16, 16: _mm512_set1_ps, _mm512_loadu_ps, _mm512_maskz_loadu_ps, _mm512_storeu_ps,
            _mm512_mask_storeu_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_permutex2var_ps, LOW_32, HIGH_32, _mm512_shuffle_f32x4 {
                #[inline(always)]
                unsafe fn load_f16(at: *const f16) -> __m512 {
                    // SAFETY: the caller's promise.
                    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
                }

                #[inline(always)]
                unsafe fn load_bf16(at: *const bf16) -> __m512 {
                    // SAFETY: as above.
                    unsafe {
                        let upper = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())));
                        _mm512_castsi512_ps(upper)
                    }
                }

                #[inline(always)]
                unsafe fn store_f16(at: *mut f16, v: __m512) {
                    // SAFETY: as above.
                    unsafe { _mm256_storeu_si256(at.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
                }

                /// In integers, as the instruction for it would lose subnormal numbers.
                #[inline(always)]
                unsafe fn store_bf16(at: *mut bf16, v: __m512) {
                    // SAFETY: as above.
                    unsafe {
                        let bits = _mm512_castps_si512(v);
                        let upper = _mm512_srli_epi32::<16>(bits);
                        let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
                        let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
                        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, up));
                        let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
                        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
                        let halves = _mm512_mask_mov_epi32(rounded, nan, quiet);
                        _mm256_storeu_si256(at.cast(), _mm512_cvtepi32_epi16(halves));
                    }
                }
            }
        f64, __m512d, __mmask8, 8: _mm512_set1_pd, _mm512_loadu_pd, _mm512_maskz_loadu_pd, _mm512_storeu_pd,
            _mm512_mask_storeu_pd, _mm512_fmadd_pd, _mm512_mul_pd, _mm512_permutex2var_pd, LOW_64, HIGH_64, _mm512_shuffle_f64x2 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::isa::{Isa, Level};
    use crate::kernels::testing::Rng;

    struct Trip<T, L>(Vec<f32>, std::marker::PhantomData<(T, L)>);

    impl<T: Part<Value = f32>, L: Lanes<Real = f32>> Body for Trip<T, L> {
        type Out = Vec<(T, f32)>;

        /// Each number as stored, and as it is read again.
        fn run(self) -> Vec<(T, f32)> {
            let mut out = Vec::new();
            for chunk in self.0.chunks_exact(L::LANES) {
                let (mut stored, mut back) = ([T::store(0.0); MOST], [0.0; MOST]);
                // SAFETY: a vector of numbers each; the test runs at levels that the CPU has.
                unsafe {
                    T::narrow::<L>(L::load(chunk.as_ptr()), stored.as_mut_ptr());
                    L::store(back.as_mut_ptr(), T::widen::<L>(stored.as_ptr()));
                }
                out.extend(stored.into_iter().zip(back).take(L::LANES));
            }
            out
        }
    }

    fn check<T: Part<Value = f32>, L: Lanes<Real = f32>>(values: &[f32], bits: impl Fn(T) -> u16) {
        // SAFETY: called with levels that the CPU has.
        let got = unsafe { L::run(Trip::<T, L>(values.to_vec(), std::marker::PhantomData)) };
        assert_eq!(got.len(), values.len());
        for ((stored, back), &x) in got.into_iter().zip(values) {
            let want = T::store(x);
            if x.is_nan() {
                assert!(back.is_nan() && want.load().is_nan());
                continue;
            }
            assert_eq!(bits(stored), bits(want), "{x:e}");
            assert_eq!(back.to_bits(), want.load().to_bits(), "{x:e}");
        }
    }

    /// Vectors of every level round halves as the plain code does, ties and subnormal numbers included.
    #[test]
    fn halves_round_as_single_ones_do() {
        let mut rng = Rng::new();
        let special =
            [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, 65519.9, 65520.0, 3e-8];
        let mut values: Vec<f32> = special.into();
        // Ties, and their neighbours, of numbers of all sizes.
        for _ in 0..500 {
            let upper = (rng.next() as u32) & 0xffff_0000;
            values.extend([0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(upper | low)));
            let half = f16::from_bits((rng.next() as u16) & 0x7bff);
            let tie = half.to_f32_const().to_bits() + 0x1000;
            values.extend([tie - 1, tie, tie + 1].map(f32::from_bits));
        }
        values.resize(values.len().next_multiple_of(MOST), 1.5);
        check::<f16, <f32 as Real>::Portable>(&values, f16::to_bits);
        check::<bf16, <f32 as Real>::Portable>(&values, bf16::to_bits);
        #[cfg(target_arch = "x86_64")]
        for isa in Isa::available() {
            if isa.level() == Level::Avx2 {
                check::<f16, <f32 as Real>::Avx2>(&values, f16::to_bits);
                check::<bf16, <f32 as Real>::Avx2>(&values, bf16::to_bits);
            } else if isa.level() == Level::Avx512 {
                check::<f16, <f32 as Real>::Avx512>(&values, f16::to_bits);
                check::<bf16, <f32 as Real>::Avx512>(&values, bf16::to_bits);
            }
        }
    }
}
