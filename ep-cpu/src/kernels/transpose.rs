//! Transposing a band of rows: what [`permute`](super::permute) is made of.

/// Bytes of a cache line; a band of rows is as high as a line has elements.
pub(super) const LINE: usize = 64;

/// `dst[c * dst_stride + r] = src[r * src_stride + c]`, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) src_stride: usize,
    pub(super) dst_stride: usize,
}

/// Plain data of 1, 2, 4, 8 or 16 bytes, read and written at any alignment.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// Transposes as many square tiles as fit, and returns the rows and columns done: two numbers, so
    /// that what is left is a strip on the right and one at the bottom.
    ///
    /// # Safety
    /// As for [`transpose`].
    unsafe fn tiles(m: Matrix, src: *const Self, dst: *mut Self, streaming: bool) -> (usize, usize);
}

/// Transposes.
///
/// # Safety
/// All elements that the matrix names are readable in `src` and writable in `dst`. With `streaming`, `dst`
/// and `dst_stride * size_of::<T>()` are multiples of [`LINE`], and the caller fences.
pub(super) unsafe fn transpose<T: Element>(m: Matrix, src: *const T, dst: *mut T, streaming: bool) {
    // SAFETY: the caller's promise.
    let (rows, cols) = unsafe { T::tiles(m, src, dst, streaming) };
    let element = |r: usize, c: usize| {
        // SAFETY: called with `r` and `c` inside the matrix only.
        unsafe {
            dst.add(c * m.dst_stride + r).write_unaligned(src.add(r * m.src_stride + c).read_unaligned())
        };
    };
    for c in 0..m.cols {
        for r in if c < cols { rows } else { 0 }..m.rows {
            element(r, c);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod tiles {
    use super::{Element, Matrix};

    macro_rules! element {
        ($($t:ty),*) => {
            $(impl Element for $t {
                unsafe fn tiles(_: Matrix, _: *const Self, _: *mut Self, _: bool) -> (usize, usize) {
                    (0, 0)
                }
            })*
        };
    }
    element!(u8, u16, u32, u64, [u64; 2]);
}

#[cfg(target_arch = "x86_64")]
mod tiles {
    use super::{Element, LINE, Matrix};
    use std::arch::x86_64::*;

    /// Interleaves the lower, and the upper, halves of two vectors.
    trait Zip {
        fn zip(a: __m128i, b: __m128i) -> (__m128i, __m128i);
    }

    macro_rules! zip {
        ($($t:ty: $low:ident, $high:ident, $lanes:literal;)*) => {
            $(
                impl Zip for $t {
                    #[inline(always)]
                    fn zip(a: __m128i, b: __m128i) -> (__m128i, __m128i) {
                        // SAFETY: SSE2 is part of x86-64.
                        unsafe { ($low(a, b), $high(a, b)) }
                    }
                }

                impl Element for $t {
                    unsafe fn tiles(m: Matrix, src: *const Self, dst: *mut Self, streaming: bool) -> (usize, usize) {
                        // SAFETY: the caller's promise.
                        unsafe {
                            if streaming {
                                bands::<$t, $lanes, true>(m, src, dst)
                            } else {
                                bands::<$t, $lanes, false>(m, src, dst)
                            }
                        }
                    }
                }
            )*
        };
    }
    zip! {
        u8: _mm_unpacklo_epi8, _mm_unpackhi_epi8, 16;
        u16: _mm_unpacklo_epi16, _mm_unpackhi_epi16, 8;
        u32: _mm_unpacklo_epi32, _mm_unpackhi_epi32, 4;
        u64: _mm_unpacklo_epi64, _mm_unpackhi_epi64, 2;
        // A vector holds one element: nothing is ever interleaved.
        [u64; 2]: _mm_unpacklo_epi64, _mm_unpackhi_epi64, 1;
    }

    const TILES: usize = LINE / 16;

    /// Reads a tile of `LANES` x `LANES` elements and transposes it in registers: interleaving row `i`
    /// with row `i + LANES / 2` halves the distance of what belongs together, so `log2(LANES)` rounds do.
    ///
    /// # Safety
    /// The tile is readable.
    #[inline(always)]
    unsafe fn tile<T: Zip, const LANES: usize>(src: *const T, stride: usize) -> [__m128i; LANES] {
        // SAFETY: row `r` of the tile is readable; the load needs no alignment.
        let mut rows: [__m128i; LANES] =
            std::array::from_fn(|r| unsafe { _mm_loadu_si128(src.add(r * stride).cast()) });
        for _ in 0..LANES.ilog2() {
            let mut next = rows;
            for i in 0..LANES / 2 {
                (next[2 * i], next[2 * i + 1]) = T::zip(rows[i], rows[i + LANES / 2]);
            }
            rows = next;
        }
        rows
    }

    /// # Safety
    /// As for [`super::transpose`].
    unsafe fn bands<T: Zip, const LANES: usize, const STREAMING: bool>(
        m: Matrix,
        src: *const T,
        dst: *mut T,
    ) -> (usize, usize) {
        let cols = m.cols - m.cols % LANES;
        let mut row = 0;
        // Four tiles at a time, which make whole lines of the destination.
        while row + TILES * LANES <= m.rows {
            for col in (0..cols).step_by(LANES) {
                // SAFETY: the tiles span rows up to `row + TILES * LANES` and columns up to `col + LANES`,
                // inside the matrix; with STREAMING each store is aligned, by the caller's promise and as
                // `row` is a multiple of a line's elements.
                unsafe {
                    let tiles: [[__m128i; LANES]; TILES] = std::array::from_fn(|t| {
                        tile(src.add((row + t * LANES) * m.src_stride + col), m.src_stride)
                    });
                    for c in 0..LANES {
                        let line = dst.add((col + c) * m.dst_stride + row).cast::<__m128i>();
                        for (t, tile) in tiles.iter().enumerate() {
                            if STREAMING {
                                _mm_stream_si128(line.add(t), tile[c]);
                            } else {
                                _mm_storeu_si128(line.add(t), tile[c]);
                            }
                        }
                    }
                }
            }
            row += TILES * LANES;
        }
        while row + LANES <= m.rows {
            for col in (0..cols).step_by(LANES) {
                // SAFETY: one tile inside the matrix; stored without asking for alignment.
                unsafe {
                    let tile: [__m128i; LANES] = tile(src.add(row * m.src_stride + col), m.src_stride);
                    for (c, line) in tile.into_iter().enumerate() {
                        _mm_storeu_si128(dst.add((col + c) * m.dst_stride + row).cast(), line);
                    }
                }
            }
            row += LANES;
        }
        (row, cols)
    }
}
