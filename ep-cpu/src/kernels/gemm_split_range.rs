//! How small and how large the numbers of factors are, which says whether products of their parts are exact.

use super::gemm::{Factor, Loop, count, offsets};
use super::gemm_lanes::MOST;
use super::gemm_split_pack::Split;
use crate::isa::{Body, Isa};
use crate::kernels::raw::for_ranges;
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::arch::x86_64::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// The bits, as f32, of the smallest magnitude that is not 0, and of the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) least: u32,
    pub(super) most: u32,
}

impl Span {
    /// Of nothing, and of zeros.
    const NONE: Span = Span { least: u32::MAX, most: 0 };

    /// Exponents of both, without the bias; a subnormal number has -127, what is not finite 128, and the least of nothing more.
    pub(super) fn exponents(self) -> [i32; 2] {
        [self.least, self.most].map(|bits| (bits >> 23) as i32 - 127)
    }
}

/// Numbers of a line that is long enough for what comes behind each not to count.
const LONG: usize = 2048;

/// All matrices of a factor, of so many rows and columns.
pub(super) struct Numbers<'a, T> {
    pub(super) factor: Factor<T>,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) loops: &'a [Loop],
}

impl<T> Numbers<'_, T> {
    /// How many lines there are in a matrix whose numbers lie next to each other, numbers from one to the next, and how long
    /// they are. Short ones without gaps are taken together.
    fn lines(&self) -> (usize, usize, usize) {
        let (lines, apart, len) = match self.factor.cs {
            1 => (self.rows, self.factor.rs, self.cols),
            _ => (self.cols, self.factor.cs, self.rows),
        };
        let together = LONG / len.max(1);
        if apart == len && together > 1 && lines.is_multiple_of(together) {
            return (lines / together, apart * together, len * together);
        }
        (lines, apart, len)
    }

    fn count(&self) -> usize {
        count(self.loops) * self.lines().0
    }

    /// One of the lines of all matrices.
    fn line(&self, index: usize) -> (*const T, usize) {
        let (lines, apart, len) = self.lines();
        let offset = offsets(self.loops, index / lines).0;
        (self.factor.element(offset + index % lines * apart, 0, 0), len)
    }
}

/// The spans of two factors. Loops have the steps of theirs as those of `a`.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// The matrices of all rounds of the loops are readable, and the level has AVX-512.
pub(super) unsafe fn spans<T: Split>(
    isa: Isa,
    par: &dyn Parallel,
    factors: [Numbers<'_, T>; 2],
) -> Result<[Span; 2]> {
    let found =
        factors.each_ref().map(|_| (AtomicU32::new(Span::NONE.least), AtomicU32::new(Span::NONE.most)));
    let [first, second] = factors.each_ref().map(Numbers::count);
    let elements: usize = factors.iter().map(|f| f.count().saturating_mul(f.lines().2)).sum();
    let item = elements.saturating_mul(size_of::<T>()) / (first + second);
    for_ranges(par, first + second, item, 1, |range| {
        let parts = [range.start.min(first)..range.end.min(first), {
            range.start.max(first) - first..range.end.max(first) - first
        }];
        for ((factor, part), (least, most)) in factors.iter().zip(parts).zip(&found) {
            let mut span = Span::NONE;
            for index in part {
                let (at, len) = factor.line(index);
                span = isa.dispatch(Line::<T> { at: at.cast(), len: len * T::REALS, span });
            }
            least.fetch_min(span.least, Ordering::Relaxed);
            most.fetch_max(span.most, Ordering::Relaxed);
        }
        Ok(())
    })?;
    Ok(found.map(|(least, most)| Span { least: least.into_inner(), most: most.into_inner() }))
}

/// Reals to look through, and what came before. Made only where they are readable, at a level with AVX-512.
struct Line<T: Split> {
    at: *const T::Part,
    len: usize,
    span: Span,
}

/// Vectors side by side.
const SIDE_BY_SIDE: usize = 4;

impl<T: Split> Body for Line<T> {
    type Out = Span;

    #[inline(always)]
    fn run(self) -> Span {
        // SAFETY: inside the line; the CPU has the level.
        unsafe {
            // Less one, which puts 0 above everything.
            let mut least = [_mm512_set1_epi32(-1); SIDE_BY_SIDE];
            let mut most = [_mm512_setzero_si512(); SIDE_BY_SIDE];
            let mut i = 0;
            while i + SIDE_BY_SIDE * MOST <= self.len {
                for j in 0..SIDE_BY_SIDE {
                    let x = T::reals(self.at.add(i + j * MOST), u16::MAX);
                    (least[j], most[j]) = with(x, least[j], most[j]);
                }
                i += SIDE_BY_SIDE * MOST;
            }
            while i < self.len {
                let mask = ((1_u32 << (self.len - i).min(MOST)) - 1) as u16;
                (least[0], most[0]) = with(T::reals(self.at.add(i), mask), least[0], most[0]);
                i += MOST;
            }
            for j in 1..SIDE_BY_SIDE {
                least[0] = _mm512_min_epu32(least[0], least[j]);
                most[0] = _mm512_max_epu32(most[0], most[j]);
            }
            let mut span = self.span;
            // That of zeros alone stays.
            span.least = span.least.min(_mm512_reduce_min_epu32(least[0]).saturating_add(1));
            span.most = span.most.max(_mm512_reduce_max_epu32(most[0]));
            span
        }
    }
}

/// The least and the largest with 16 more numbers.
///
/// # Safety
/// The CPU has AVX-512.
#[inline(always)]
unsafe fn with(x: __m512, least: __m512i, most: __m512i) -> (__m512i, __m512i) {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX));
        let less = _mm512_add_epi32(bits, _mm512_set1_epi32(-1));
        (_mm512_min_epu32(least, less), _mm512_max_epu32(most, bits))
    }
}
