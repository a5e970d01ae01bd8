//! Columns that are `inner` elements apart: strips of adjacent ones, each column in a lane of its own.
//!
//! A strip is read once, into a buffer that stays in the second-level cache, and written once. Results that go past the
//! caches are written while the next strip is read, from one of two buffers of half the size: memory then never waits for
//! the one direction to finish before the other. Where a strip has too many columns even at its narrowest, its elements
//! are read again instead.

use super::exp::{Last, Shift};
use super::vector::{Body, Compute, MAX_LANES, Vector, dispatch};
use super::{EXP_BYTES, LINE, Matrix, periodic, prefetch_line_far};
use crate::isa::Isa;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::Cell;
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::cell::RefCell;

mod behind;

use behind::Behind;

/// Bytes that the exponentials of a strip, or of two, take at most: half of a second-level cache of 1 MiB or more.
pub(super) const STRIP_BYTES: usize = 512 << 10;
/// The most elements side by side in a strip: what is kept of each stays in the first-level cache.
const WIDEST: usize = 512;
/// The fewest, of a type computed in: a few lines of each column are read in a row.
const NARROWEST: usize = 64;
/// Columns worked on in turn: so many sequential streams of memory.
const STEP: usize = 8;
/// How many columns ahead memory is asked for where the strip before is written meanwhile.
const AHEAD: usize = 48;
/// Intermediate values of each element of a strip's width: the maximum, three of its shift, and two of its sum:
/// the sum and what rounding took from it, whose places the factor and the addend of [`Last`] take; and the least of that.
const STATE: usize = 7;

/// Softmax or log-softmax over the columns of a matrix `[rows, cols, inner]`.
///
/// # Errors
/// `OutOfMemory` if there is none for intermediate values; those of `par`.
///
/// # Safety
/// The matrix is as [`Matrix`] says, with `inner` elements for each of its own.
pub(super) unsafe fn run<S, D, A>(isa: Isa, par: &dyn Parallel, m: &Matrix<S, D>, inner: usize) -> Result<()>
where
    S: Cell<A>,
    D: Cell<A>,
    A: Compute,
{
    let cols = m.cols;
    if periodic::suits::<A>(cols, inner) {
        // SAFETY: the caller's promise.
        return unsafe { periodic::run::<S, D, A>(isa, par, m, inner) };
    }
    let fits = STRIP_BYTES / size_of::<A>() / cols;
    // Whole lines past the cache: with parts of them, columns written in turn would wait for each other's.
    let lines = [m.dst.addr(), inner * size_of::<D>()].iter().all(|bytes| bytes.is_multiple_of(LINE));
    let behind = m.stream
        && lines
        && size_of::<D>() == size_of::<A>()
        && fits / 2 >= MAX_LANES
        && dispatch::<A, _>(isa, HasNear);
    let (buffers, fits) = if behind { (2, fits / 2) } else { (1, fits) };
    let cached = fits >= MAX_LANES || fits >= inner;
    // Several strips for each thread, so that none waits long for the last one.
    let shared_out = m.rows.saturating_mul(inner) / (4 * par.threads()).max(1);
    let widest = if cached { fits } else { WIDEST }.min(WIDEST).min(shared_out.max(NARROWEST));
    let strips = inner.div_ceil(widest.min(inner));
    let width = inner.div_ceil(strips).next_multiple_of(MAX_LANES);
    let strips = inner.div_ceil(width);
    let stream = m.stream && streams(inner * size_of::<D>(), width.min(inner) * size_of::<D>());
    let (src, dst, log) = (Shared::new(m.src.cast_mut()), Shared::new(m.dst), m.log);
    let cost = cols.saturating_mul(width.min(inner)).saturating_mul(EXP_BYTES);
    for_ranges(par, m.rows * strips, cost, 1, |units| {
        let room = buffers * (STATE + if cached { cols } else { 0 }) * width * size_of::<A>();
        with_scratch(room, |scratch| {
            let part = Strips {
                units: (units.start, units.end),
                cols,
                inner,
                width,
                strips,
                src: src.get().cast_const(),
                dst: dst.get(),
                stream,
                log,
                behind,
                state: scratch.cast(),
                // SAFETY: there is room for the state, and for the buffer beyond it if it is used.
                buffer: cached.then(|| unsafe { scratch.cast::<A>().add(STATE * width) }),
            };
            dispatch::<A, _>(isa, part);
        })
    })
}

/// Whether strips may go past the cache, of `width` bytes of each column's `inner`. Where columns do not begin at lines, each column of a strip
/// begins and ends within one, and stores wait for these: narrow strips take up to 2.7 times as long as without.
pub(super) fn streams(inner: usize, width: usize) -> bool {
    const WIDE: usize = 2 << 10;
    inner.is_multiple_of(LINE) || width >= WIDE
}

/// Whether a level knows elements that are near.
struct HasNear;

impl<A> Body<A> for HasNear {
    type Out = bool;

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) -> bool {
        near_bound::<V>().is_some()
    }
}

/// [`Vector::NEAR`] where columns may be near. The state is finished by as many columns as the longest vector has: a shorter
/// one's neighbour would be finished twice.
#[inline(always)]
fn near_bound<V: Vector>() -> Option<V::Lane> {
    if V::LANES == MAX_LANES { V::NEAR } else { None }
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; LINE]);

thread_local! {
    /// Kept from launch to launch: fresh pages for it would cost more than the work on them.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with room for `bytes` bytes, aligned to a line.
pub(super) fn with_scratch(bytes: usize, f: impl FnOnce(*mut u8)) -> Result<()> {
    let mut room = SCRATCH.take();
    let lines = bytes.div_ceil(LINE);
    if room.len() < lines {
        room.try_reserve_exact(lines - room.len()).map_err(|_| {
            Error::out_of_memory(format!("softmax needs {bytes} bytes for intermediate values"))
        })?;
        room.resize(lines, Line([0; LINE]));
    }
    f(room.as_mut_ptr().cast());
    SCRATCH.replace(room);
    Ok(())
}

/// Some strips, the units of `units`. Made only where `src` and `dst` are a whole matrix, `state` has room for
/// `STATE * width` values and `buffer`, if any, for `cols * width`; to write one `behind` the next, there is a buffer, right
/// after the state, as much room again for both, and each strip's results are whole lines.
struct Strips<S, D, A> {
    units: (usize, usize),
    cols: usize,
    inner: usize,
    width: usize,
    strips: usize,
    src: *const S,
    dst: *mut D,
    stream: bool,
    log: bool,
    behind: bool,
    state: *mut A,
    buffer: Option<*mut A>,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute> Body<A> for Strips<S, D, A> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        // The sizes are known when this is compiled, and most never come here.
        if near_bound::<V>().is_some() && size_of::<D>() == size_of::<A>() && self.behind {
            // SAFETY: each strip is inside the matrix, and there is room for two.
            unsafe { self.run_behind::<V>() };
            return stream::fence();
        }
        for unit in self.units.0..self.units.1 {
            let (start, width) = self.place(unit);
            let next = if unit + 1 < self.units.1 { self.place(unit + 1).0 } else { start };
            // SAFETY: the strip is inside the matrix, and the rooms are as promised.
            unsafe {
                let (src, dst) = (self.src.add(start), self.dst.add(start));
                match self.buffer {
                    Some(buffer) if near_bound::<V>().is_some() => {
                        self.near_sums::<V>(src, buffer, width, self.src.wrapping_add(next), None);
                        self.near_lasts(width);
                        self.far_columns::<V>(src, buffer, width);
                        self.write_buffered::<V>(buffer, dst, width);
                    }
                    Some(buffer) => {
                        self.maxima::<V>(src, width, Some(buffer));
                        self.shifts(width);
                        let next = self.src.wrapping_add(next);
                        self.sums::<V, A>(buffer, self.width, width, Some(next));
                        self.lasts(width);
                        self.write_buffered::<V>(buffer, dst, width);
                    }
                    None => {
                        self.maxima::<V>(src, width, None);
                        self.shifts(width);
                        self.sums::<V, S>(src.cast_mut(), self.inner, width, None);
                        self.lasts(width);
                        self.write_again::<V>(src, dst, width);
                    }
                }
            }
        }
        if self.stream {
            stream::fence();
        }
    }
}

impl<S: Cell<A>, D: Cell<A>, A: Compute> Strips<S, D, A> {
    /// Where the first column of a strip starts, and how wide it is.
    #[inline(always)]
    fn place(&self, unit: usize) -> (usize, usize) {
        let (row, strip) = (unit / self.strips, unit % self.strips);
        let at = strip * self.width;
        (row * self.cols * self.inner + at, self.width.min(self.inner - at))
    }

    /// The `i`th value kept of each element of the width.
    #[inline(always)]
    unsafe fn kept(&self, i: usize) -> *mut A {
        // SAFETY: `i` is below `STATE`.
        unsafe { self.state.add(i * self.width) }
    }

    /// Finds the maxima, of elements that it copies to the buffer if there is one.
    #[inline(always)]
    unsafe fn maxima<V: Vector<Lane = A>>(&self, src: *const S, width: usize, buffer: Option<*mut A>) {
        // SAFETY: the strip and its room are as `run` says.
        unsafe {
            let max_at = self.kept(0);
            for at in (0..width).step_by(V::LANES) {
                V::splat(A::NEG_INFINITY).store(max_at.add(at));
            }
            for first in (0..self.cols).step_by(STEP) {
                let step = STEP.min(self.cols - first);
                for at in (0..width).step_by(V::LANES) {
                    let len = V::LANES.min(width - at);
                    let mut max = V::load(max_at.add(at));
                    for col in first..first + step {
                        let from = src.add(col * self.inner + at);
                        let x =
                            if len == V::LANES { V::load(from) } else { V::load_part(from, len, A::ZERO) };
                        max = x.max(max);
                        if let Some(buffer) = buffer {
                            x.store(buffer.add(col * self.width + at));
                        }
                    }
                    max.store(max_at.add(at));
                }
            }
        }
    }

    /// From maxima to shifts.
    #[inline(always)]
    unsafe fn shifts(&self, width: usize) {
        for i in 0..width.next_multiple_of(MAX_LANES) {
            // SAFETY: the width of the state is a multiple of the most lanes.
            unsafe {
                let [centre, offset, lowest] = Shift::of(*self.kept(0).add(i)).parts();
                *self.kept(1).add(i) = centre;
                *self.kept(2).add(i) = offset;
                *self.kept(3).add(i) = lowest;
            }
        }
    }

    #[inline(always)]
    unsafe fn shift<V: Vector<Lane = A>>(&self, at: usize) -> Shift<V> {
        // SAFETY: as for `shifts`.
        unsafe {
            Shift::from_parts([
                V::load(self.kept(1).add(at)),
                V::load(self.kept(2).add(at)),
                V::load(self.kept(3).add(at)),
            ])
        }
    }

    /// Adds up exponentials. Where a strip to fetch `next` is given, `from` is the buffer, in which the exponentials
    /// replace the elements, or for a logarithm the differences to the maximum do.
    #[inline(always)]
    unsafe fn sums<V: Vector<Lane = A>, T: Cell<A>>(
        &self,
        from: *mut T,
        pitch: usize,
        width: usize,
        next: Option<*const S>,
    ) {
        // SAFETY: the strip and its room are as `run` says.
        unsafe {
            let (sum_at, lost_at) = (self.kept(4), self.kept(5));
            for at in (0..width).step_by(V::LANES) {
                V::splat(A::ZERO).store(sum_at.add(at));
                V::splat(A::ZERO).store(lost_at.add(at));
            }
            for first in (0..self.cols).step_by(STEP) {
                let step = STEP.min(self.cols - first);
                for at in (0..width).step_by(V::LANES) {
                    let (max, shift) = (V::load(self.kept(0).add(at)), self.shift::<V>(at));
                    let len = if next.is_some() { V::LANES } else { V::LANES.min(width - at) };
                    let mut part = V::splat(A::ZERO);
                    for col in first..first + step {
                        if let Some(next) = next {
                            prefetch_line_far(next.wrapping_add(col * self.inner + at));
                        }
                        let from = from.add(col * pitch + at);
                        let x =
                            if len == V::LANES { V::load(from) } else { V::load_part(from, len, A::ZERO) };
                        let e = shift.exp(x);
                        part = part.add(e);
                        if next.is_some() {
                            if self.log { x.sub(max) } else { e }.store(from);
                        }
                    }
                    self.add_to_sum(at, part);
                }
            }
        }
    }

    /// As [`Self::maxima`], [`Self::shifts`] and [`Self::sums`] for columns that are all near, of which it keeps the
    /// largest magnitude; for a logarithm, the elements stay in the buffer. Meanwhile writes the strip `before`, if there
    /// is one, which is as wide and whole vectors.
    #[inline(always)]
    unsafe fn near_sums<V: Vector<Lane = A>>(
        &self,
        src: *const S,
        buffer: *mut A,
        width: usize,
        next: *const S,
        before: Option<&Behind<S, D, A>>,
    ) {
        let Some(bound) = near_bound::<V>() else { return };
        let distance = if self.behind { AHEAD.min(self.cols) } else { self.cols };
        // SAFETY: the strip and its room are as `run` says.
        unsafe {
            let (largest_at, sum_at, lost_at) = (self.kept(0), self.kept(4), self.kept(5));
            for at in (0..width).step_by(V::LANES) {
                for kept in [largest_at, sum_at, lost_at] {
                    V::splat(A::ZERO).store(kept.add(at));
                }
            }
            for first in (0..self.cols).step_by(STEP) {
                let step = STEP.min(self.cols - first);
                let ahead = first + distance;
                let ahead = match ahead.checked_sub(self.cols) {
                    None => src.wrapping_add(ahead * self.inner),
                    Some(beyond) => next.wrapping_add(beyond * self.inner),
                };
                for at in (0..width).step_by(V::LANES) {
                    let len = V::LANES.min(width - at);
                    let before = before.map(|before| before.finisher::<V>(at));
                    let mut largest = V::load(largest_at.add(at));
                    // Columns of which an element was far are computed again anyway.
                    if !largest.within(bound) {
                        if let Some(before) = &before {
                            for col in first..first + step {
                                before.write(col);
                            }
                        }
                        continue;
                    }
                    let mut part = V::splat(A::ZERO);
                    for col in first..first + step {
                        if let Some(before) = &before {
                            before.write(col);
                        }
                        prefetch_line_far(ahead.wrapping_add((col - first) * self.inner + at));
                        let from = src.add(col * self.inner + at);
                        let x =
                            if len == V::LANES { V::load(from) } else { V::load_part(from, len, A::ZERO) };
                        largest = x.magnitude(largest);
                        let e = x.exp_near();
                        part = part.add(e);
                        if self.log { x } else { e }.store(buffer.add(col * self.width + at));
                    }
                    largest.store(largest_at.add(at));
                    self.add_to_sum(at, part);
                }
            }
        }
    }

    /// From sums of near columns to what finishes an element.
    #[inline(always)]
    unsafe fn near_lasts(&self, width: usize) {
        for i in 0..width.next_multiple_of(MAX_LANES) {
            // SAFETY: as for `shifts`.
            unsafe {
                let (base, last) = Last::of_near(self.log, *self.kept(4).add(i));
                *self.kept(1).add(i) = base;
                self.keep_last(i, last);
            }
        }
    }

    /// Computes again what is not near: whole vectors, so that it does not depend on how wide strips are, and adjacent
    /// ones together, as lines that lie apart take longer to read.
    #[inline(always)]
    unsafe fn far_columns<V: Vector<Lane = A>>(&self, src: *const S, buffer: *mut A, width: usize) {
        let Some(bound) = near_bound::<V>() else { return };
        let mut end = 0;
        while end < width {
            let start = end;
            // SAFETY: below the width, of which the state has whole vectors.
            while end < width && unsafe { !V::load(self.kept(0).add(end)).within(bound) } {
                end += V::LANES;
            }
            if end > start {
                // SAFETY: the strip and its room are as `run` says; some of its columns, in whole vectors, are a strip, too.
                unsafe {
                    let columns = Self { state: self.state.add(start), ..*self };
                    let (src, buffer, width) = (src.add(start), buffer.add(start), end.min(width) - start);
                    columns.maxima::<V>(src, width, Some(buffer));
                    columns.shifts(width);
                    columns.sums::<V, A>(buffer, self.width, width, Some(src));
                    columns.lasts(width);
                }
            }
            end += V::LANES;
        }
    }

    /// Adds to the sums of the columns of a vector. What rounding takes away is carried on, as there may be millions of
    /// elements.
    #[inline(always)]
    unsafe fn add_to_sum<V: Vector<Lane = A>>(&self, at: usize, part: V) {
        // SAFETY: as for `shifts`.
        unsafe {
            let (sum_at, lost_at) = (self.kept(4).add(at), self.kept(5).add(at));
            let sum = V::load(sum_at);
            let part = part.sub(V::load(lost_at));
            let total = sum.add(part);
            total.sub(sum).sub(part).store(lost_at);
            total.store(sum_at);
        }
    }

    #[inline(always)]
    unsafe fn keep_last(&self, i: usize, last: Last<A>) {
        // SAFETY: as for `shifts`.
        unsafe {
            *self.kept(4).add(i) = last.factor;
            *self.kept(5).add(i) = last.addend;
            *self.kept(6).add(i) = last.least;
        }
    }

    /// From sums to what finishes an element.
    #[inline(always)]
    unsafe fn lasts(&self, width: usize) {
        for i in 0..width.next_multiple_of(MAX_LANES) {
            // SAFETY: as for `shifts`.
            unsafe {
                let parts = [*self.kept(1).add(i), *self.kept(2).add(i), *self.kept(3).add(i)];
                let (sum, max) = (*self.kept(4).add(i), *self.kept(0).add(i));
                let last = Last::of(self.log, &Shift::from_parts(parts), sum, max);
                if self.buffer.is_some() {
                    // The buffer has differences, of which nothing is left to be taken off.
                    *self.kept(1).add(i) = A::ZERO;
                }
                self.keep_last(i, last);
            }
        }
    }

    /// As many as are left of the width count.
    #[inline(always)]
    unsafe fn last<V: Vector<Lane = A>>(&self, at: usize, len: usize) -> Last<V> {
        // SAFETY: as for `shifts`.
        unsafe {
            let [factor, addend, least] = [4, 5, 6].map(|i| {
                let kept = self.kept(i).add(at);
                if len == V::LANES { V::load(kept) } else { V::load_part(kept, len, A::ZERO) }
            });
            Last { factor, addend, least }
        }
    }

    /// What elements of the buffer become, of which as many as are left of the width count.
    #[inline(always)]
    unsafe fn finish<V: Vector<Lane = A>>(&self, at: usize, len: usize, x: V) -> V {
        // SAFETY: as for `shifts`.
        unsafe {
            let last = self.last::<V>(at, len);
            if !self.log {
                return last.apply(x);
            }
            let base = self.kept(1).add(at);
            let base = if len == V::LANES { V::load(base) } else { V::load_part(base, len, A::ZERO) };
            last.apply_log(x, base)
        }
    }

    #[inline(always)]
    unsafe fn write_buffered<V: Vector<Lane = A>>(&self, buffer: *const A, dst: *mut D, width: usize) {
        for col in 0..self.cols {
            // SAFETY: the strip and its room are as `run` says.
            unsafe {
                let (exps, dst) = (buffer.add(col * self.width), dst.add(col * self.inner));
                let head = if self.stream { dst.addr().wrapping_neg() % LINE / size_of::<D>() } else { 0 };
                let step = (2 * V::LANES).max(LINE / size_of::<D>());
                let (head, end) = if self.stream && head + step <= width {
                    (head, head + (width - head) / step * step)
                } else {
                    (0, 0)
                };
                self.write_part::<V>(exps, dst, 0, head);
                for at in (head..end).step_by(V::LANES) {
                    let y = self.finish(at, V::LANES, V::load(exps.add(at)));
                    y.stream(dst.add(at));
                }
                let whole = end + (width - end) / V::LANES * V::LANES;
                for at in (end..whole).step_by(V::LANES) {
                    let y = self.finish(at, V::LANES, V::load(exps.add(at)));
                    y.store(dst.add(at));
                }
                self.write_part::<V>(exps, dst, whole, width);
            }
        }
    }

    /// The elements `from..to` of a column in the buffer.
    #[inline(always)]
    unsafe fn write_part<V: Vector<Lane = A>>(&self, exps: *const A, dst: *mut D, from: usize, to: usize) {
        for at in (from..to).step_by(V::LANES) {
            let len = V::LANES.min(to - at);
            // SAFETY: the strip and its room are as `run` says.
            unsafe {
                let y = self.finish(at, len, V::load_part(exps.add(at), len, A::ZERO));
                y.store_part(dst.add(at), len);
            }
        }
    }

    #[inline(always)]
    unsafe fn write_again<V: Vector<Lane = A>>(&self, src: *const S, dst: *mut D, width: usize) {
        for first in (0..self.cols).step_by(STEP) {
            let step = STEP.min(self.cols - first);
            for at in (0..width).step_by(V::LANES) {
                let len = V::LANES.min(width - at);
                // SAFETY: the strip and its room are as `run` says; each vector is read before it is written.
                unsafe {
                    let (max, shift) = (V::load(self.kept(0).add(at)), self.shift::<V>(at));
                    let last = self.last::<V>(at, len);
                    for col in first..first + step {
                        let x = V::load_part(src.add(col * self.inner + at), len, A::ZERO);
                        let y = last.apply(if self.log { x.sub(max) } else { shift.exp(x) });
                        y.store_part(dst.add(col * self.inner + at), len);
                    }
                }
            }
        }
    }
}
