//! Reductions over the last axis.

use super::fold::{Finish, Fold};
use super::{CHUNK, extremes, room, sums};
use crate::isa::{Body, Isa, Level};
use crate::kernels::elem::{self, Storage};
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use crate::kernels::simd::{self, Kernel, Lanes};
use crate::kernels::sink::prefetch;
use crate::kernels::stream::suits_intel;
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::marker::PhantomData;

/// Values combined side by side: several vectors, which hides the latency of an addition.
const LANES: usize = elem::GROUP;
/// Rows of fewer elements are taken [`GROUP`] at a time.
pub(super) const SHORT: usize = 64;
/// Short rows that are combined side by side.
pub(super) const GROUP: usize = 16;

/// Values combined side by side behind the last of [`LANES`]: a vector.
const PART: usize = 16;
/// Bytes fetched ahead of their use, past the ends of rows.
pub(super) const AHEAD: usize = 2048;
/// Chunks combined in one go.
const BATCH: usize = 64;

/// The chunks of consecutive rows, of which each has as many. Made only where `src` is readable for them and `out`
/// writable for one result of each.
pub(super) struct Chunks<S, A> {
    /// The first row.
    pub(super) src: *const S,
    pub(super) reduced: usize,
    /// The first chunk's number in the first row, and chunks of a row.
    pub(super) first: usize,
    pub(super) of: usize,
    pub(super) count: usize,
    pub(super) out: *mut A,
}

/// Combines chunks by loops.
struct Loops<'a, S, A, F>(&'a Chunks<S, A>, PhantomData<F>);

impl<S: Storage, F: Fold<S::Value>> Kernel for Loops<'_, S, F::Acc, F> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let chunks = self.0;
        let (mut row, mut chunk) = (chunks.src, chunks.first);
        for i in 0..chunks.count {
            let start = chunk * CHUNK;
            let count = CHUNK.min(chunks.reduced - start);
            // SAFETY: what a `Chunks` is made with; `dispatch` runs this.
            unsafe {
                let at = row.add(start);
                let mut acc = combine::<L, S, F, true>(at, count);
                if F::FOUR && F::is_lost(acc) {
                    acc = combine::<L, S, F, false>(at, count);
                }
                chunks.out.add(i).write(acc);
                chunk += 1;
                if chunk == chunks.of {
                    (row, chunk) = (row.add(chunks.reduced), 0);
                }
            }
        }
    }
}

/// Combines `count` elements, with `FOUR` by way of [`Fold::four`] where that is cheaper.
///
/// # Safety
/// `src` is readable for them; called inside of [`simd::dispatch`] at the level of `L`.
#[inline(always)]
unsafe fn combine<L: Lanes, S: Storage, F: Fold<S::Value>, const FOUR: bool>(
    src: *const S,
    count: usize,
) -> F::Acc {
    // Only the loops of fixed length index these, so that they can be registers.
    let mut lanes = [F::START; LANES];
    let mut some = [F::START; PART];
    let fours = if FOUR && F::FOUR { count - count % (4 * LANES) } else { 0 };
    let ahead = suits_intel();
    let mut at = 0;
    // SAFETY: all indices are less than `count`.
    unsafe {
        // No closure over values in these loops: calls of them are not inlined, and nothing would vectorise.
        while at < fours {
            if ahead {
                prefetch(src.add(at).cast::<u8>().wrapping_add(AHEAD), 4 * LANES * size_of::<S>());
            }
            if S::BULK {
                let from = src.add(at);
                let (a, b) = (S::load_group::<L>(from), S::load_group::<L>(from.add(LANES)));
                let (c, d) =
                    (S::load_group::<L>(from.add(2 * LANES)), S::load_group::<L>(from.add(3 * LANES)));
                for (i, lane) in lanes.iter_mut().enumerate() {
                    *lane = F::take(*lane, F::four([a.0[i], b.0[i], c.0[i], d.0[i]]));
                }
                at += 4 * LANES;
                continue;
            }
            for (i, lane) in lanes.iter_mut().enumerate() {
                let first = src.add(at + i);
                let four = F::four([
                    first.read().load(),
                    first.add(LANES).read().load(),
                    first.add(2 * LANES).read().load(),
                    first.add(3 * LANES).read().load(),
                ]);
                *lane = F::take(*lane, four);
            }
            at += 4 * LANES;
        }
        while at + LANES <= count {
            if ahead {
                prefetch(src.add(at).cast::<u8>().wrapping_add(AHEAD), LANES * size_of::<S>());
            }
            if S::BULK {
                let group = S::load_group::<L>(src.add(at));
                for (lane, value) in lanes.iter_mut().zip(group.0) {
                    *lane = F::take(*lane, value);
                }
                at += LANES;
                continue;
            }
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane = F::take(*lane, src.add(at + i).read().load());
            }
            at += LANES;
        }
        while at + PART <= count {
            for (i, lane) in some.iter_mut().enumerate() {
                *lane = F::take(*lane, src.add(at + i).read().load());
            }
            at += PART;
        }
        for i in 0..PART {
            lanes[i] = F::join(lanes[i], some[i]);
        }
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] = F::join(lanes[i], lanes[i + half]);
            }
            half /= 2;
        }
        let mut acc = lanes[0];
        while at < count {
            acc = F::take(acc, src.add(at).read().load());
            at += 1;
        }
        acc
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
    // Combines chunks from `unit` on, counted over all rows, into `count` results.
    let combine = |unit: usize, count: usize, out: *mut F::Acc| {
        // SAFETY: chunks of the rows that the caller promises.
        let src = unsafe { src.get().add(unit / chunks * reduced) };
        let (first, of) = (unit % chunks, chunks);
        let chunks = Chunks { src, reduced, first, of, count, out };
        let loops = Loops(&chunks, PhantomData::<F>);
        // By `F::FOUR`, which is known when this is compiled: above the baseline nothing needs loops of these.
        if F::FOUR {
            match (isa.level(), F::END) {
                (Level::Baseline, _) => simd::at_baseline(loops),
                // SAFETY: what the chunks are made with.
                (_, Some(end)) => unsafe { extremes::run(isa, end, &chunks) },
                // SAFETY: as above.
                (_, None) => unsafe { sums::run(isa, &chunks) },
            }
        } else {
            simd::dispatch(isa, loops);
        }
    };
    let store = |row: usize, acc: F::Acc| {
        // SAFETY: `row < outer`, written by one task.
        unsafe { dst.get().add(row).write(F::end(acc, reduced).finish()) };
    };
    // Enough rows for every thread to have several, or so little to do that one thread is best.
    let bytes = outer.saturating_mul(reduced).saturating_mul(size_of::<S>());
    if chunks == 1 || outer >= 4 * par.threads() || bytes < 2 * GRAIN_BYTES {
        return for_ranges(par, outer, reduced.saturating_mul(size_of::<S>()), 1, |rows| {
            let mut parts = [F::START; BATCH];
            let (mut row, mut done, mut total) = (rows.start, 0, F::START);
            let units = rows.start * chunks..rows.end * chunks;
            for unit in units.clone().step_by(BATCH) {
                let parts = &mut parts[..BATCH.min(units.end - unit)];
                combine(unit, parts.len(), parts.as_mut_ptr());
                if chunks == 1 {
                    for (i, &part) in parts.iter().enumerate() {
                        store(unit + i, F::join(F::START, part));
                    }
                    continue;
                }
                for part in parts {
                    total = F::join(total, *part);
                    done += 1;
                    if done == chunks {
                        store(row, total);
                        (row, done, total) = (row + 1, 0, F::START);
                    }
                }
            }
            Ok(())
        });
    }
    let mut partial = room(outer * chunks, F::START)?;
    let into = Shared::new(partial.as_mut_ptr());
    for_ranges(par, outer * chunks, CHUNK * size_of::<S>(), 1, |range| {
        // SAFETY: the range is below `outer * chunks`, and one task's.
        combine(range.start, range.len(), unsafe { into.get().add(range.start) });
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
