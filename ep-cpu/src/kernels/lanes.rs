//! Vectors made of 16-byte lanes, for kernels that move bytes without computing on them.
//!
//! One tile of a transpose is 16 bytes wide whatever its elements are. A vector of several lanes works on as
//! many tiles side by side, so that one algorithm serves every width of vector and of element.

/// Bytes of a lane.
pub(super) const LANE: usize = 16;

/// A register of [`Vector::LANES`] lanes. All functions are to be inlined into one compiled for the
/// instruction set.
pub(super) trait Vector: Copy {
    /// How many lanes.
    const LANES: usize;

    /// The vector of two lanes, if this has more.
    type Pair: Vector;

    /// Reads all lanes, one after the other.
    ///
    /// # Safety
    /// `LANES * LANE` bytes are readable at `at`, and the CPU has the instruction set.
    unsafe fn load(at: *const u8) -> Self;

    /// Reads lane `i` at `at + i * stride`.
    ///
    /// # Safety
    /// [`LANE`] bytes are readable at each of those addresses, and the CPU has the instruction set.
    unsafe fn gather(at: *const u8, stride: isize) -> Self;

    /// Writes all lanes, one after the other.
    ///
    /// # Safety
    /// `LANES * LANE` bytes are writable at `at`, and the CPU has the instruction set.
    unsafe fn store(self, at: *mut u8);

    /// Writes past the cache; the caller fences.
    ///
    /// # Safety
    /// As for [`Vector::store`], and `at` is a multiple of the vector's size.
    unsafe fn stream(self, at: *mut u8);

    /// Interleaves elements of `SIZE` bytes (1, 2, 4 or 8): in each lane the lower halves of both vectors,
    /// and the upper ones.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn zip<const SIZE: usize>(self, other: Self) -> (Self, Self);
}

/// One lane in portable code.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
pub(super) struct Portable([u8; LANE]);

#[cfg(not(target_arch = "x86_64"))]
impl Vector for Portable {
    const LANES: usize = 1;
    type Pair = Self;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::gather(at, 0) }
    }

    #[inline(always)]
    unsafe fn gather(at: *const u8, _: isize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { at.cast::<[u8; LANE]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<[u8; LANE]>().write(self.0) };
    }

    #[inline(always)]
    unsafe fn stream(self, at: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(at) };
    }

    #[inline(always)]
    unsafe fn zip<const SIZE: usize>(self, other: Self) -> (Self, Self) {
        let pick = |half: usize| {
            std::array::from_fn(|i| {
                let (element, byte) = (i / SIZE, i % SIZE);
                let from = half * (LANE / 2) + element / 2 * SIZE + byte;
                if element % 2 == 0 { self.0[from] } else { other.0[from] }
            })
        };
        (Self(pick(0)), Self(pick(1)))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! zip {
        ($size:expr, $a:expr, $b:expr, $($n:literal: $low:ident $high:ident)*) => {
            match $size {
                $($n => ($low($a, $b), $high($a, $b)),)*
                size => unreachable!("elements of {size} bytes are not zipped"),
            }
        };
    }

    impl Vector for __m128i {
        const LANES: usize = 1;
        type Pair = Self;

        #[inline(always)]
        unsafe fn load(at: *const u8) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm_loadu_si128(at.cast()) }
        }

        #[inline(always)]
        unsafe fn gather(at: *const u8, _: isize) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm_loadu_si128(at.cast()) }
        }

        #[inline(always)]
        unsafe fn store(self, at: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm_storeu_si128(at.cast(), self) }
        }

        #[inline(always)]
        unsafe fn stream(self, at: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm_stream_si128(at.cast(), self) }
        }

        #[inline(always)]
        unsafe fn zip<const SIZE: usize>(self, other: Self) -> (Self, Self) {
            // SAFETY: SSE2 is part of x86-64.
            unsafe {
                zip!(SIZE, self, other,
                    1: _mm_unpacklo_epi8 _mm_unpackhi_epi8
                    2: _mm_unpacklo_epi16 _mm_unpackhi_epi16
                    4: _mm_unpacklo_epi32 _mm_unpackhi_epi32
                    8: _mm_unpacklo_epi64 _mm_unpackhi_epi64)
            }
        }
    }

    impl Vector for __m256i {
        const LANES: usize = 2;
        type Pair = Self;

        #[inline(always)]
        unsafe fn load(at: *const u8) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm256_loadu_si256(at.cast()) }
        }

        #[inline(always)]
        unsafe fn gather(at: *const u8, stride: isize) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let low = _mm256_castsi128_si256(_mm_loadu_si128(at.cast()));
                _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(at.offset(stride).cast()))
            }
        }

        #[inline(always)]
        unsafe fn store(self, at: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_si256(at.cast(), self) }
        }

        #[inline(always)]
        unsafe fn stream(self, at: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm256_stream_si256(at.cast(), self) }
        }

        #[inline(always)]
        unsafe fn zip<const SIZE: usize>(self, other: Self) -> (Self, Self) {
            // SAFETY: the caller's promise.
            unsafe {
                zip!(SIZE, self, other,
                    1: _mm256_unpacklo_epi8 _mm256_unpackhi_epi8
                    2: _mm256_unpacklo_epi16 _mm256_unpackhi_epi16
                    4: _mm256_unpacklo_epi32 _mm256_unpackhi_epi32
                    8: _mm256_unpacklo_epi64 _mm256_unpackhi_epi64)
            }
        }
    }

    impl Vector for __m512i {
        const LANES: usize = 4;
        type Pair = __m256i;

        #[inline(always)]
        unsafe fn load(at: *const u8) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_loadu_si512(at.cast()) }
        }

        #[inline(always)]
        unsafe fn gather(at: *const u8, stride: isize) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let v = _mm512_castsi128_si512(_mm_loadu_si128(at.cast()));
                let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(at.offset(stride).cast()));
                let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(at.offset(2 * stride).cast()));
                _mm512_inserti32x4::<3>(v, _mm_loadu_si128(at.offset(3 * stride).cast()))
            }
        }

        #[inline(always)]
        unsafe fn store(self, at: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_si512(at.cast(), self) }
        }

        #[inline(always)]
        unsafe fn stream(self, at: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_stream_si512(at.cast(), self) }
        }

        #[inline(always)]
        unsafe fn zip<const SIZE: usize>(self, other: Self) -> (Self, Self) {
            // SAFETY: the caller's promise.
            unsafe {
                zip!(SIZE, self, other,
                    1: _mm512_unpacklo_epi8 _mm512_unpackhi_epi8
                    2: _mm512_unpacklo_epi16 _mm512_unpackhi_epi16
                    4: _mm512_unpacklo_epi32 _mm512_unpackhi_epi32
                    8: _mm512_unpacklo_epi64 _mm512_unpackhi_epi64)
            }
        }
    }
}
