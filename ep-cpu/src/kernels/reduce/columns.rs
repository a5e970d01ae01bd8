//! Reductions over an axis that is not the last: columns side by side.

use super::fold::{Finish, Fold};
use super::{Cut, STRIP, extremes, room};
use crate::isa::{Body, Isa};
use crate::kernels::elem::{GROUP, Storage};
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use crate::kernels::simd::{self, Kernel, Lanes, Vector as _};
use crate::kernels::sink::prefetch;
use crate::kernels::stream::suits_intel;
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::marker::PhantomData;

/// Columns that are combined in one go, from rows that are being fetched.
const fn block<S>() -> usize {
    if size_of::<S>() < 4 { 256 / size_of::<S>() } else { 64 }
}

/// Some steps of a strip: `acc[i]` combines `src[step * stride + i]` of all steps.
struct Steps<'a, S, A, F> {
    src: *const S,
    steps: usize,
    stride: usize,
    acc: &'a mut [A],
    fold: PhantomData<F>,
}

impl<S: Storage, F: Fold<S::Value>> Kernel for Steps<'_, S, F::Acc, F> {
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        self.combine::<L, true>();
        if F::FOUR {
            let mut lost = false;
            for acc in self.acc.iter() {
                lost |= F::is_lost(*acc);
            }
            if lost {
                self.combine::<L, false>();
            }
        }
    }
}

impl<S: Storage, F: Fold<S::Value>> Steps<'_, S, F::Acc, F> {
    /// With `FOUR`, four rows at a time, and by way of [`Fold::four`] where that is cheaper.
    #[inline(always)]
    fn combine<L: Lanes, const FOUR: bool>(&mut self) {
        self.acc.fill(F::START);
        let fours = if FOUR { self.steps - self.steps % 4 } else { 0 };
        for step in (0..fours).step_by(4) {
            // SAFETY: the maker of `self` promises `steps` rows of `acc.len()` elements, `stride` apart; `dispatch` runs this.
            unsafe { take_four::<L, S, F>(self.acc, self.src.add(step * self.stride), self.stride) };
        }
        for step in fours..self.steps {
            // SAFETY: as above.
            unsafe { take_one::<L, S, F>(self.acc, self.src.add(step * self.stride)) };
        }
    }
}

/// Whether [`extremes`] are found by vectors.
const fn has_vectors<L: Lanes>() -> bool {
    L::F32::LANES > 1
}

// Slices as parameters tell the compiler that they do not alias what is read.

/// # Safety
/// `row` is readable for `acc.len()` elements; called inside of [`simd::dispatch`] at the level of `L`.
#[inline(always)]
unsafe fn take_one<L: Lanes, S: Storage, F: Fold<S::Value>>(acc: &mut [F::Acc], row: *const S) {
    let mut done = 0;
    if let (true, Some(end)) = (has_vectors::<L>(), F::END) {
        // SAFETY: the caller's promise.
        done = unsafe { extremes::columns::<L, S, F::Acc>(end, acc, row, 1, 0) };
    } else if S::BULK {
        for acc in acc.chunks_exact_mut(GROUP) {
            // SAFETY: the caller's promise: a group of the row.
            let values = unsafe { S::load_group::<L>(row.add(done)) };
            for (acc, value) in acc.iter_mut().zip(values.0) {
                *acc = F::take(*acc, value);
            }
            done += GROUP;
        }
    }
    for (i, acc) in acc.iter_mut().enumerate().skip(done) {
        // SAFETY: the caller's promise.
        *acc = F::take(*acc, unsafe { row.add(i).read() }.load());
    }
}

/// Four values, in order where they are not combined first.
#[inline(always)]
fn take_values<V, F: Fold<V>>(acc: F::Acc, values: [V; 4]) -> F::Acc {
    if F::FOUR {
        F::take(acc, F::four(values))
    } else {
        let [a, b, c, d] = values;
        F::take(F::take(F::take(F::take(acc, a), b), c), d)
    }
}

/// # Safety
/// `row` is readable for `acc.len()` elements, and so are the three rows `stride` apart behind it; called inside of
/// [`simd::dispatch`] at the level of `L`.
#[inline(always)]
unsafe fn take_four<L: Lanes, S: Storage, F: Fold<S::Value>>(
    acc: &mut [F::Acc],
    row: *const S,
    stride: usize,
) {
    let blocks = acc.len().div_ceil(block::<S>());
    let straight = !suits_intel();
    let mut ahead = (0, 0);
    for (nth, acc) in acc.chunks_mut(block::<S>()).enumerate() {
        let at = row.wrapping_add(nth * block::<S>());
        for part in 0..4 {
            // The same blocks of the next four rows, or those rows from the first block to the last.
            let (step, nth) = if straight { ahead } else { (part, nth) };
            ahead = if ahead.1 + 1 < blocks { (ahead.0, ahead.1 + 1) } else { (ahead.0 + 1, 0) };
            let next = row.wrapping_add((4 + step) * stride + nth * block::<S>());
            prefetch(next.cast(), acc.len() * size_of::<S>());
        }
        let mut done = 0;
        if let (true, Some(end)) = (has_vectors::<L>(), F::END) {
            // SAFETY: the caller's promise, of the columns of this block.
            done = unsafe { extremes::columns::<L, S, F::Acc>(end, acc, at, 4, stride) };
        } else if S::BULK {
            for acc in acc.chunks_exact_mut(GROUP) {
                let from = at.wrapping_add(done);
                // SAFETY: the caller's promise: a group of each of the four rows.
                let (a, b, c, d) = unsafe {
                    (
                        S::load_group::<L>(from),
                        S::load_group::<L>(from.add(stride)),
                        S::load_group::<L>(from.add(2 * stride)),
                        S::load_group::<L>(from.add(3 * stride)),
                    )
                };
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = take_values::<S::Value, F>(*acc, [a.0[i], b.0[i], c.0[i], d.0[i]]);
                }
                done += GROUP;
            }
        }
        for (i, acc) in acc.iter_mut().enumerate().skip(done) {
            // SAFETY: the caller's promise; the column is below the length.
            let four = unsafe {
                [
                    at.add(i).read().load(),
                    at.add(i + stride).read().load(),
                    at.add(i + 2 * stride).read().load(),
                    at.add(i + 3 * stride).read().load(),
                ]
            };
            *acc = take_values::<S::Value, F>(*acc, four);
        }
    }
}

/// The results of columns. Made only where `rest` is readable for `rows` rows of them, `inner` elements apart, and `to` writable for
/// them.
struct Store<'a, S: Storage, D, F: Fold<S::Value>> {
    acc: &'a [F::Acc],
    /// What the columns have not combined yet.
    rest: *const S,
    rows: usize,
    inner: usize,
    /// Elements of a result.
    reduced: usize,
    to: *mut D,
}

impl<S: Storage, D: Storage, F: Fold<S::Value, Acc: Finish<D>>> Body for Store<'_, S, D, F> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { acc, rest, rows, inner, reduced, to } = self;
        if rows == 0 {
            for (i, acc) in acc.iter().enumerate() {
                // SAFETY: what a `Store` is made with.
                unsafe { to.add(i).write(F::end(*acc, reduced).finish()) };
            }
            return;
        }
        for (i, acc) in acc.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let all =
                    (0..rows).fold(*acc, |acc, row| F::take(acc, rest.add(row * inner + i).read().load()));
                to.add(i).write(F::end(all, reduced).finish());
            }
        }
    }
}

/// # Safety
/// As for [`ReduceFn`](super::ReduceFn); `inner` is more than 1, and the shape fits an address space.
pub(super) unsafe fn run<S: Storage, D: Storage, F>(
    isa: Isa,
    par: &dyn Parallel,
    [outer, reduced, inner]: [usize; 3],
    src: Shared<S>,
    dst: Shared<D>,
) -> Result<()>
where
    F: Fold<S::Value, Acc: Finish<D>>,
{
    let cut = Cut::new(reduced, inner);
    // A joined step is one strip: what it joins is narrow.
    let strips = cut.width.div_ceil(STRIP);
    let (units, chunks) = (outer * strips, cut.chunks());
    let width_of = |unit: usize| STRIP.min(cut.width - unit % strips * STRIP);
    // Combines one chunk of a unit into `acc`, whatever that was.
    let chunk = |unit: usize, c: usize, acc: &mut [F::Acc]| {
        let (o, column) = (unit / strips, unit % strips * STRIP);
        let first = c * cut.chunk;
        let steps = cut.chunk.min(cut.steps - first);
        // SAFETY: rows of outer index `o`, which the caller promises.
        let start = unsafe { src.get().add(o * reduced * inner + first * cut.stride + column) };
        simd::dispatch(
            isa,
            Steps::<S, F::Acc, F> { src: start, steps, stride: cut.stride, acc, fold: PhantomData },
        );
    };
    // Joins what a step has joined, takes the rows behind the last whole step, and stores.
    let store = |unit: usize, acc: &mut [F::Acc]| {
        let (o, column) = (unit / strips, unit % strips * STRIP);
        let columns = acc.len() / cut.joined;
        for part in 1..cut.joined {
            let (first, later) = acc.split_at_mut(columns * part);
            first.iter_mut().zip(&later[..columns]).for_each(|(a, b)| *a = F::join(*a, *b));
        }
        // SAFETY: the rest of the rows of outer index `o`, and its results, which one task writes.
        let (rest, to) = unsafe {
            (src.get().add((o + 1) * reduced * inner - cut.rest * inner), dst.get().add(o * inner + column))
        };
        isa.dispatch(Store::<S, D, F> { acc: &acc[..columns], rest, rows: cut.rest, inner, reduced, to });
    };
    let item = cut.steps.saturating_mul(cut.width.min(STRIP)).saturating_mul(size_of::<S>());
    if chunks == 1 || units >= 4 * par.threads() || units.saturating_mul(item) < 2 * GRAIN_BYTES {
        return for_ranges(par, units, item, 1, |range| {
            let (mut total, mut part) = ([F::START; STRIP], [F::START; STRIP]);
            for unit in range {
                let width = width_of(unit);
                let total = &mut total[..width];
                if chunks == 1 {
                    chunk(unit, 0, total);
                } else {
                    total.fill(F::START);
                    for c in 0..chunks {
                        let part = &mut part[..width];
                        chunk(unit, c, part);
                        total.iter_mut().zip(part).for_each(|(t, p)| *t = F::join(*t, *p));
                    }
                }
                store(unit, total);
            }
            Ok(())
        });
    }
    let mut partial = room(units * chunks * STRIP, F::START)?;
    let into = Shared::new(partial.as_mut_ptr());
    for_ranges(par, units * chunks, item / chunks, 1, |range| {
        for at in range {
            let unit = at / chunks;
            // SAFETY: room of its own for each of the `units * chunks`.
            let part = unsafe { std::slice::from_raw_parts_mut(into.get().add(at * STRIP), width_of(unit)) };
            chunk(unit, at % chunks, part);
        }
        Ok(())
    })?;
    for (unit, parts) in partial.chunks_mut(chunks * STRIP).enumerate() {
        let width = width_of(unit);
        let mut total = [F::START; STRIP];
        for part in parts.chunks(STRIP) {
            total[..width].iter_mut().zip(part).for_each(|(t, p)| *t = F::join(*t, *p));
        }
        store(unit, &mut total[..width]);
    }
    Ok(())
}
