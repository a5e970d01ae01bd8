//! Reductions over the last axis.

use super::fold::{Finish, Fold};
use super::{CHUNK, room};
use crate::isa::{Body, Isa};
use crate::kernels::elem::Storage;
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::marker::PhantomData;

/// Values combined side by side: several vectors, which hides the latency of an addition.
const LANES: usize = 64;
/// Rows of fewer elements are taken [`GROUP`] at a time.
pub(super) const SHORT: usize = 64;
/// Short rows that are combined side by side.
pub(super) const GROUP: usize = 16;

/// A chunk of a row, combined.
struct Chunk<S, F> {
    src: *const S,
    count: usize,
    fold: PhantomData<F>,
}

impl<S: Storage, F: Fold<S::Value>> Body for Chunk<S, F> {
    type Out = F::Acc;

    #[inline(always)]
    fn run(self) -> F::Acc {
        if F::FOUR {
            let acc = self.combine::<true>();
            return if F::is_lost(acc) { self.combine::<false>() } else { acc };
        }
        self.combine::<false>()
    }
}

impl<S: Storage, F: Fold<S::Value>> Chunk<S, F> {
    /// # Safety
    /// `at < self.count`.
    #[inline(always)]
    unsafe fn value(&self, at: usize) -> S::Value {
        // SAFETY: the maker of `self` promises so many elements.
        unsafe { self.src.add(at).read() }.load()
    }

    /// With `FOUR`, by way of [`Fold::four`].
    #[inline(always)]
    fn combine<const FOUR: bool>(&self) -> F::Acc {
        let mut lanes = [F::START; LANES];
        let fours = if FOUR { self.count - self.count % (4 * LANES) } else { 0 };
        let whole = self.count - self.count % LANES;
        // SAFETY: all indices are less than `count`.
        unsafe {
            for at in (0..fours).step_by(4 * LANES) {
                for (i, lane) in lanes.iter_mut().enumerate() {
                    let at = at + i;
                    // No closure or iterator here: calls of them are not inlined, and nothing would vectorise.
                    let four = F::four([
                        self.value(at),
                        self.value(at + LANES),
                        self.value(at + 2 * LANES),
                        self.value(at + 3 * LANES),
                    ]);
                    *lane = F::take(*lane, four);
                }
            }
            for at in (fours..whole).step_by(LANES) {
                for (i, lane) in lanes.iter_mut().enumerate() {
                    *lane = F::take(*lane, self.value(at + i));
                }
            }
            for at in whole..self.count {
                lanes[at - whole] = F::take(lanes[at - whole], self.value(at));
            }
        }
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] = F::join(lanes[i], lanes[i + half]);
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// # Safety
/// `src` is readable for `outer * reduced` elements and `dst` writable for `outer`; they do not overlap.
pub(super) unsafe fn run<S: Storage, D: Storage, F>(
    isa: Isa,
    par: &dyn Parallel,
    outer: usize,
    reduced: usize,
    src: Shared<S>,
    dst: Shared<D>,
) -> Result<()>
where
    F: Fold<S::Value, Acc: Finish<D>>,
{
    let chunks = reduced.div_ceil(CHUNK);
    let chunk = |row: usize, c: usize| {
        let start = c * CHUNK;
        let count = CHUNK.min(reduced - start);
        // SAFETY: a chunk of row `row`, which the caller promises.
        let src = unsafe { src.get().add(row * reduced + start) };
        isa.dispatch(Chunk::<S, F> { src, count, fold: PhantomData })
    };
    let store = |row: usize, acc: F::Acc| {
        // SAFETY: `row < outer`, written by one task.
        unsafe { dst.get().add(row).write(F::end(acc, reduced).finish()) };
    };
    // Enough rows for every thread to have several, or so little to do that one thread is best.
    let bytes = outer.saturating_mul(reduced).saturating_mul(size_of::<S>());
    if chunks == 1 || outer >= 4 * par.threads() || bytes < 2 * GRAIN_BYTES {
        return for_ranges(par, outer, reduced.saturating_mul(size_of::<S>()), 1, |rows| {
            for row in rows {
                store(row, (0..chunks).map(|c| chunk(row, c)).fold(F::START, F::join));
            }
            Ok(())
        });
    }
    let mut partial = room(outer * chunks, F::START)?;
    let into = Shared::new(partial.as_mut_ptr());
    for_ranges(par, outer * chunks, CHUNK * size_of::<S>(), 1, |range| {
        for at in range {
            // SAFETY: `at < outer * chunks`, written by one task.
            unsafe { into.get().add(at).write(chunk(at / chunks, at % chunks)) };
        }
        Ok(())
    })?;
    for (row, parts) in partial.chunks(chunks).enumerate() {
        store(row, parts.iter().copied().fold(F::START, F::join));
    }
    Ok(())
}

/// Rows of fewer than [`SHORT`] elements.
pub(super) struct Short<S, D, F> {
    rows: usize,
    cols: usize,
    src: *const S,
    dst: *mut D,
    fold: PhantomData<F>,
}

impl<S, D, F> Short<S, D, F> {
    /// # Safety
    /// `src` is readable for `rows * cols` elements and `dst` writable for `rows`; they do not overlap.
    pub(super) unsafe fn new(rows: usize, cols: usize, src: *const S, dst: *mut D) -> Self {
        Short { rows, cols, src, dst, fold: PhantomData }
    }
}

impl<S: Storage, D: Storage, F> Body for Short<S, D, F>
where
    F: Fold<S::Value, Acc: Finish<D>>,
{
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Short { rows, cols, src, dst, .. } = self;
        let whole = rows - rows % GROUP;
        for row in (0..whole).step_by(GROUP) {
            let mut acc = [F::START; GROUP];
            for col in 0..cols {
                for (i, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: an element of row `row + i < rows`.
                    *acc = F::take(*acc, unsafe { src.add((row + i) * cols + col).read() }.load());
                }
            }
            for (i, acc) in acc.into_iter().enumerate() {
                // SAFETY: `row + i < rows`.
                unsafe { dst.add(row + i).write(F::end(acc, cols).finish()) };
            }
        }
        for row in whole..rows {
            // SAFETY: the elements of a row, and its result.
            unsafe {
                let acc = (0..cols)
                    .fold(F::START, |acc, col| F::take(acc, src.add(row * cols + col).read().load()));
                dst.add(row).write(F::end(acc, cols).finish());
            }
        }
    }
}
