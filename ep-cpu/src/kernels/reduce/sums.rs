//! Sums of f32 and of halves over the last axis, by vectors: what the compiler makes of the loops in `rows` takes as long for the
//! end of a row as for 200 of its elements, and twice as long for halves.

use super::CHUNK;
use super::rows::{AHEAD, Chunks};
use super::source::Source;
use crate::isa::Isa;
use crate::kernels::simd::{self, Kernel, Lanes, MAX_LANES, Single, Vector};
use crate::kernels::sink::prefetch;
use crate::kernels::stream::suits_intel;
use half::{bf16, f16};
use std::any::TypeId;
use std::mem::MaybeUninit;

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

/// Combines what `chunks` says.
///
/// # Panics
/// For other types than those that [`Fold::FOUR`](super::fold::Fold::FOUR) is said of.
///
/// # Safety
/// What is said of [`Chunks`].
pub(super) unsafe fn run<S: 'static, A: 'static>(isa: Isa, chunks: &Chunks<S, A>) {
    assert!(TypeId::of::<A>() == TypeId::of::<f64>(), "floating-point numbers add up in f64");
    let &Chunks { src, reduced, first, of, count, out } = chunks;
    macro_rules! of_types {
        ($($s:ty),*) => {
            $(if TypeId::of::<S>() == TypeId::of::<$s>() {
                // These are the types.
                let (src, out) = (src.cast::<$s>(), out.cast());
                // Longer vectors of halves take more than twice as long to convert on Zen 4.
                let isa = if size_of::<$s>() == 2 { isa.for_memory() } else { isa };
                simd::dispatch(isa, Sums(&Chunks { src, reduced, first, of, count, out }));
                return;
            })*
        };
    }
    of_types!(f32, f16, bf16);
    unreachable!("sums of four are of f32 and narrower");
}

struct Sums<'a, S>(&'a Chunks<S, f64>);

macro_rules! kernels {
    ($($s:ty),*) => {
        $(impl Kernel for Sums<'_, $s> {
            #[inline(always)]
            fn run<L: Lanes>(self) {
                // SAFETY: what a `Chunks` is made with; `dispatch` runs this.
                unsafe { each::<L, $s>(self.0) }
            }
        })*
    };
}
kernels!(f32, f16, bf16);

/// # Safety
/// What is said of [`Chunks`]; called inside of [`simd::dispatch`].
#[inline(always)]
unsafe fn each<L: Lanes, S: Source<L::F32>>(chunks: &Chunks<S, f64>) {
    let (mut row, mut chunk) = (chunks.src, chunks.first);
    for i in 0..chunks.count {
        let start = chunk * CHUNK;
        let count = CHUNK.min(chunks.reduced - start);
        // SAFETY: the caller's promise.
        unsafe {
            let at = row.add(start);
            let mut sum = sum_of::<L, S, true>(at, count);
            if !sum.is_finite() {
                // A sum of four may overflow where the whole does not.
                sum = sum_of::<L, S, false>(at, count);
            }
            chunks.out.add(i).write(sum);
            chunk += 1;
            if chunk == chunks.of {
                (row, chunk) = (row.add(chunks.reduced), 0);
            }
        }
    }
}

/// The sum of `count` elements: with `FOUR`, of four at a time in f32, and of those in f64.
///
/// # Safety
/// `src` is readable for them; called inside of [`simd::dispatch`].
#[inline(always)]
unsafe fn sum_of<L: Lanes, S: Source<L::F32>, const FOUR: bool>(src: *const S, count: usize) -> f64 {
    let lanes = L::F32::LANES;
    const { assert!(L::F32::LANES <= NUMBERS.len() && L::F32::LANES <= MAX_LANES) };
    let zero = <L::F32 as Single>::Wide::splat(0.0);
    let (mut even, mut odd) = (zero, zero);
    let ahead = suits_intel();
    let mut at = 0;
    // SAFETY: all indices are less than `count`; the numbers and the array are of at least as many elements as a vector,
    // and the array holds zeros, which all bits 0 are.
    unsafe {
        if FOUR {
            while at + 8 * lanes <= count {
                let from = src.add(at);
                if ahead {
                    prefetch(from.cast::<u8>().wrapping_add(AHEAD), 8 * lanes * size_of::<S>());
                }
                let first = (S::vector(from) + S::vector(from.add(2 * lanes)))
                    + (S::vector(from.add(4 * lanes)) + S::vector(from.add(6 * lanes)));
                let second = (S::vector(from.add(lanes)) + S::vector(from.add(3 * lanes)))
                    + (S::vector(from.add(5 * lanes)) + S::vector(from.add(7 * lanes)));
                even = even + first.widen();
                odd = odd + second.widen();
                at += 8 * lanes;
            }
        }
        while at + 2 * lanes <= count {
            even = even + S::vector(src.add(at)).widen();
            odd = odd + S::vector(src.add(at + lanes)).widen();
            at += 2 * lanes;
        }
        if at + lanes <= count {
            even = even + S::vector(src.add(at)).widen();
            at += lanes;
        }
        if at < count {
            let rest = count - at;
            let numbers = L::F32::load(NUMBERS.as_ptr());
            odd = odd
                + if count >= lanes {
                    // The last ones again, without those that were.
                    let fresh = L::F32::splat((lanes - rest) as f64).le(numbers);
                    L::F32::select(fresh, S::vector(src.add(count - lanes)), L::F32::splat(0.0)).widen()
                } else {
                    let mut elements = [const { MaybeUninit::<S>::zeroed() }; MAX_LANES];
                    src.copy_to_nonoverlapping(elements.as_mut_ptr().cast(), count);
                    S::vector(elements.as_ptr().cast()).widen()
                };
        }
        L::F32::total(even + odd)
    }
}
