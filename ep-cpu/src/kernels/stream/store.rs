//! Ways to store a line past the cache, and the loops over lines compiled for each.

use super::LINE;
#[cfg(target_arch = "x86_64")]
use super::copy_by;

/// A way to store a line past the cache.
pub(crate) trait Store {
    /// Stores a line; [`super::fence`] comes later.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for a line; `to` is at one. The CPU has what it takes.
    unsafe fn line(to: *mut u8, from: *const u8);

    /// [`super::copy`] by such stores.
    ///
    /// # Safety
    /// As for [`super::copy`]; the CPU has what it takes.
    #[cfg(target_arch = "x86_64")]
    unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize);
}

/// By vectors that any CPU has.
pub(crate) struct Parts;

impl Store for Parts {
    #[inline(always)]
    unsafe fn line(to: *mut u8, from: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise; SSE2 is part of x86-64.
        unsafe {
            use std::arch::x86_64::*;
            let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
            let (a, b) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (c, d) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_stream_si128(to, a);
            _mm_stream_si128(to.add(1), b);
            _mm_stream_si128(to.add(2), c);
            _mm_stream_si128(to.add(3), d);
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        unsafe {
            to.copy_from_nonoverlapping(from, LINE);
        }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { copy_by::<Parts>(dst, src, bytes) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{LINE, Store};
    use crate::kernels::stream::{copy_by, fill_by, lines_by};
    use std::arch::x86_64::{
        _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    /// By two vectors of AVX.
    pub(crate) struct Halves;

    impl Store for Halves {
        #[inline(always)]
        unsafe fn line(to: *mut u8, from: *const u8) {
            const HALF: usize = LINE / 2;
            // SAFETY: the caller's promise.
            unsafe {
                let halves = [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(HALF).cast())];
                _mm256_stream_si256(to.cast(), halves[0]);
                _mm256_stream_si256(to.add(HALF).cast(), halves[1]);
            }
        }

        unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
            // SAFETY: the caller's promise.
            unsafe { copy_halves(dst, src, bytes) }
        }
    }

    /// # Safety
    /// As for [`crate::kernels::stream::copy`].
    #[target_feature(enable = "avx")]
    pub(crate) unsafe fn copy_halves(dst: *mut u8, src: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { copy_by::<Halves>(dst, src, bytes) }
    }

    /// # Safety
    /// As for [`crate::kernels::stream::fill`].
    #[target_feature(enable = "avx")]
    pub(crate) unsafe fn fill_halves(dst: *mut u8, pattern: [u8; 16], bytes: usize, asks: bool) {
        // SAFETY: the caller's promise.
        unsafe { fill_by::<Halves>(dst, pattern, bytes, asks) }
    }

    /// # Safety
    /// As for `copy_lines`.
    #[target_feature(enable = "avx")]
    pub(crate) unsafe fn lines_halves(to: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { lines_by::<Halves>(to, from, bytes) }
    }

    /// By one vector of AVX-512, which leaves the core sooner than its parts would.
    pub(crate) struct Whole;

    impl Store for Whole {
        #[inline(always)]
        unsafe fn line(to: *mut u8, from: *const u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_stream_si512(to.cast(), _mm512_loadu_si512(from.cast())) };
        }

        unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
            // SAFETY: the caller's promise.
            unsafe { copy(dst, src, bytes) }
        }
    }

    /// # Safety
    /// As for [`crate::kernels::stream::copy`].
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { copy_by::<Whole>(dst, src, bytes) }
    }

    /// # Safety
    /// As for [`crate::kernels::stream::fill`].
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn fill(dst: *mut u8, pattern: [u8; 16], bytes: usize, asks: bool) {
        // SAFETY: the caller's promise.
        unsafe { fill_by::<Whole>(dst, pattern, bytes, asks) }
    }

    /// # Safety
    /// As for `copy_lines`.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn lines(to: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { lines_by::<Whole>(to, from, bytes) }
    }
}
