//! Sums of f32 over the last axis, by vectors: what the compiler makes of the loops in `rows` takes as long for the end
//! of a row as for 200 of its elements.

use super::CHUNK;
use super::rows::{AHEAD, Chunks};
use crate::isa::{Isa, Level};
use crate::kernels::simd::{self, Kernel, Lanes, Single, Vector};
use crate::kernels::sink::prefetch;
use crate::kernels::stream::{Walk, walk};

/// The number of each lane, of the longest vectors.
static NUMBERS: [f32; 16] = {
    let mut numbers = [0.0; 16];
    let mut i = 0;
    while i < numbers.len() {
        numbers[i] = i as f32;
        i += 1;
    }
    numbers
};

/// Combines what `chunks` says, where that is faster than loops: whether it did.
///
/// # Safety
/// What is said of [`Chunks`].
pub(super) unsafe fn run(isa: Isa, chunks: &Chunks<f32, f64>) -> bool {
    if isa.level() == Level::Baseline {
        return false;
    }
    simd::dispatch(isa, Sums(chunks));
    true
}

struct Sums<'a>(&'a Chunks<f32, f64>);

impl Kernel for Sums<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let chunks = self.0;
        let (mut row, mut chunk) = (chunks.src, chunks.first);
        for i in 0..chunks.count {
            let start = chunk * CHUNK;
            let count = CHUNK.min(chunks.reduced - start);
            // SAFETY: what a `Chunks` is made with.
            unsafe {
                let at = row.add(start);
                let mut sum = sum_of::<L, true>(at, count);
                if !sum.is_finite() {
                    // A sum of four may overflow where the whole does not.
                    sum = sum_of::<L, false>(at, count);
                }
                chunks.out.add(i).write(sum);
                chunk += 1;
                if chunk == chunks.of {
                    (row, chunk) = (row.add(chunks.reduced), 0);
                }
            }
        }
    }
}

/// The sum of `count` elements: with `FOUR`, of four at a time in f32, and of those in f64.
///
/// # Safety
/// `src` is readable for them.
#[inline(always)]
unsafe fn sum_of<L: Lanes, const FOUR: bool>(src: *const f32, count: usize) -> f64 {
    let lanes = L::F32::LANES;
    let zero = <L::F32 as Single>::Wide::splat(0.0);
    let (mut even, mut odd) = (zero, zero);
    let ahead = walk() == Walk::Pages;
    let mut at = 0;
    // SAFETY: all indices are less than `count`; the numbers are of at least as many elements as a vector.
    unsafe {
        if FOUR {
            while at + 8 * lanes <= count {
                let from = src.add(at);
                if ahead {
                    prefetch(from.cast::<u8>().wrapping_add(AHEAD), 8 * lanes * size_of::<f32>());
                }
                let first = (L::F32::load(from) + L::F32::load(from.add(2 * lanes)))
                    + (L::F32::load(from.add(4 * lanes)) + L::F32::load(from.add(6 * lanes)));
                let second = (L::F32::load(from.add(lanes)) + L::F32::load(from.add(3 * lanes)))
                    + (L::F32::load(from.add(5 * lanes)) + L::F32::load(from.add(7 * lanes)));
                even = even + first.widen();
                odd = odd + second.widen();
                at += 8 * lanes;
            }
        }
        while at + 2 * lanes <= count {
            even = even + L::F32::load(src.add(at)).widen();
            odd = odd + L::F32::load(src.add(at + lanes)).widen();
            at += 2 * lanes;
        }
        if at + lanes <= count {
            even = even + L::F32::load(src.add(at)).widen();
            at += lanes;
        }
        if at < count {
            let rest = count - at;
            let inside = L::F32::load(NUMBERS.as_ptr()).lt(L::F32::splat(rest as f64));
            let part = L::F32::load_part(src.add(at), rest);
            odd = odd + L::F32::select(inside, part, L::F32::splat(0.0)).widen();
        }
        L::F32::total(even + odd)
    }
}
