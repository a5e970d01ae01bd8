//! Broadcast operands, brought piece by piece to where a kernel over contiguous elements reads them.
//!
//! A dense operand is read where it lies, and so is one that repeats as a whole, between two wraps. A short
//! period is repeated once into a table from which every block is read at its phase. Where an operand has one element for each
//! row, many computations take that as it is, beside the row of the other. What is left, elements or
//! rows that repeat inside the operand, is gathered into a stage in the first-level cache, block by block; so is
//! an operand that is also the destination, which lets a kernel assume that it writes nothing that it reads.

mod expand;
#[cfg(test)]
mod tests;

use super::engine::Run;
use super::stream::{Blocks, LANES, MOST_STEP_BYTES};
use crate::isa::Isa;
use primitives::broadcast::{Odometer, Plan};
use std::array::from_fn;
use std::mem::MaybeUninit;
use std::ptr;

use expand::{SLACK, Spread, expand, expand_as};
pub(crate) use expand::{STAGE_BYTES, Stage, splat};

/// Computes elements from `N` contiguous sources.
pub(crate) trait Compute<const N: usize>: Copy + Sync {
    /// Bytes of an element of the output.
    fn dst_size(&self) -> usize;

    /// What the computation runs at.
    fn isa(&self) -> Isa;

    /// Whether [`Self::compute`] can store past the cache.
    fn streams(&self) -> bool;

    /// # Safety
    /// `src` are readable and `dst` writable for the elements of `run`, and `dst` overlaps no source. Runs that go past
    /// the cache are as [`Run`] says.
    unsafe fn compute(&self, src: [*const u8; N], dst: *mut u8, run: Run);

    /// Whether [`Self::compute_repeated`] is there. Else an element that repeats is repeated in memory.
    fn repeats(&self) -> bool {
        false
    }

    /// As [`Self::compute`] of rows that stay in the cache, with a source `one` of which each has a single element. The sources are
    /// by reference: addresses that were stored one by one, and copied at once as an argument, have to leave for the cache first,
    /// behind stores that wait for memory.
    ///
    /// # Safety
    /// As there, but for that source. Only where computations [repeat](Self::repeats).
    unsafe fn compute_repeated(&self, src: &[*const u8; N], one: usize, dst: *mut u8, rows: Rows<N>) {
        let _ = (src, one, dst, rows);
        unreachable!("what does not repeat is asked to");
    }
}

/// Rows that are computed in one go.
#[derive(Clone, Copy)]
pub(crate) struct Rows<const N: usize> {
    /// Elements of each.
    pub(crate) inner: usize,
    /// How many.
    pub(crate) rows: usize,
    /// Elements from one to the next, of each source. Those of the output follow each other.
    pub(crate) steps: [usize; N],
}

impl<const N: usize> Rows<N> {
    /// One row.
    pub(crate) fn one(inner: usize) -> Self {
        Self { inner, rows: 1, steps: [0; N] }
    }
}

/// How an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In step with the output.
    Dense,
    /// As `Dense`, but it is the output too.
    InPlace,
    /// Contiguous, and from its start again after so many elements.
    Cycle(usize),
    /// As `Cycle`, with so few elements that a table repeats them.
    Table(usize),
    /// In rows or elements that repeat before the operand goes on.
    Gathered,
}

/// Rows of at least so many elements are read where they lie or repeated in a stage, shorter ones, but for those
/// [beside one element](ROW_BESIDE_ONE), are gathered several to a block.
const LONG_ROW: usize = 128;

/// Rows of at least so many elements beside one of an operand are computed without repeating that.
const ROW_BESIDE_ONE: usize = 16;

/// Long rows that come so often one after the other are repeated in a stage, as far as it holds them, and computed several at a
/// time.
const OFTEN: usize = 8;

/// Room for one operand: a table of a period and a block, or a stage for each lane.
#[repr(C, align(64))]
struct Buffer([MaybeUninit<u8>; 2 * STAGE_BYTES + SLACK]);

const _: () = assert!(LANES * (MOST_STEP_BYTES + SLACK) <= size_of::<Buffer>());

/// Room for the operands of one task.
pub(crate) struct Buffers<const N: usize>([Buffer; N]);

impl<const N: usize> Buffers<N> {
    pub(crate) fn new() -> Self {
        Self([const { Buffer([MaybeUninit::uninit(); 2 * STAGE_BYTES + SLACK]) }; N])
    }
}

/// The sources of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a, const N: usize> {
    /// `None`: no operand repeats.
    plan: Option<&'a Plan<N>>,
    /// Bytes of an element of each.
    size: usize,
    src: [*const u8; N],
    kinds: [Kind; N],
}

// SAFETY: tasks only read the sources, which nothing writes but through a task's own part of the destination.
unsafe impl<const N: usize> Sync for Operands<'_, N> {}

impl<'a, const N: usize> Operands<'a, N> {
    /// Operands as long as the output. `dst` may be one of them.
    pub(crate) fn dense(size: usize, src: [*const u8; N], dst: *const u8) -> Self {
        let kinds = src.map(|s| if ptr::eq(s, dst) { Kind::InPlace } else { Kind::Dense });
        Self { plan: None, size, src, kinds }
    }

    /// Operands as the plan has them. `dst` may be one that is dense, and else does not matter.
    pub(crate) fn broadcast(plan: &'a Plan<N>, size: usize, src: [*const u8; N], dst: *const u8) -> Self {
        let kinds = from_fn(|n| {
            let period = plan.period(n);
            let repeats_outside = plan.strides(n).iter().skip_while(|&&s| s == 0).all(|&s| s != 0);
            if plan.is_dense(n) {
                if ptr::eq(src[n], dst) { Kind::InPlace } else { Kind::Dense }
            } else if period <= STAGE_BYTES / size {
                Kind::Table(period)
            } else if repeats_outside {
                Kind::Cycle(period)
            } else {
                Kind::Gathered
            }
        });
        Self { plan: Some(plan), size, src, kinds }
    }

    /// Bytes of an element of each.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Whether some operand is the destination too.
    pub(crate) fn in_place(&self) -> bool {
        self.kinds.contains(&Kind::InPlace)
    }

    /// The operands that are read in step with the output.
    pub(crate) fn dense_sources(&self) -> impl Iterator<Item = *const u8> {
        self.src.into_iter().zip(self.kinds).filter(|(_, kind)| *kind == Kind::Dense).map(|(src, _)| src)
    }

    /// The operand that has one element for each row of the plan and is read in no better way, where all others have rows that
    /// are read where they lie.
    fn beside_ones(&self) -> Option<usize> {
        let plan = self.plan?;
        let last = plan.dims().len().checked_sub(1).filter(|&last| last > 0)?;
        let is_one = |n: usize| self.kinds[n] == Kind::Gathered && plan.strides(n)[last] == 0;
        let one = (0..N).find(|&n| is_one(n))?;
        let in_rows = |n: usize| plan.strides(n)[last] == 1 && self.kinds[n] != Kind::InPlace;
        (plan.inner() >= ROW_BESIDE_ONE && (0..N).all(|n| n == one || in_rows(n))).then_some(one)
    }

    /// A reader for one task, which is to compute `count` elements in all. `streaming` readers serve
    /// [`blocks`](super::stream::blocks), others one cursor at a time.
    ///
    /// # Safety
    /// The operands are readable for the elements of the plan, or for those computed where there is none.
    /// `buffers` outlives the reader and is used by it alone.
    pub(crate) unsafe fn reader<C: Compute<N>>(
        &self,
        compute: C,
        buffers: &mut Buffers<N>,
        streaming: bool,
        count: usize,
    ) -> Reader<'a, C, N> {
        let room: [*mut u8; N] = {
            let first = buffers.0.as_mut_ptr();
            from_fn(|n| first.wrapping_add(n).cast())
        };
        let staged = if streaming { MOST_STEP_BYTES } else { STAGE_BYTES } / self.size;
        // What is beside a single element is as long as the output.
        let one = self.kinds.iter().position(|kind| *kind == Kind::Table(1)).filter(|_| compute.repeats());
        let is_direct = |n| one == Some(n) || matches!(self.kinds[n], Kind::Dense | Kind::Cycle(_));
        let dense = self.kinds.iter().all(|kind| *kind == Kind::Dense);
        let most = if (0..N).all(is_direct) { usize::MAX } else { staged };
        let lane_bytes = staged * self.size + SLACK;
        let beside = self.beside_ones().filter(|_| compute.repeats());
        let reader = Reader { operands: *self, compute, dense, one, beside, room, most, lane_bytes };
        for n in (0..N).filter(|&n| one != Some(n) && beside.is_none()) {
            if let (Kind::Table(period), Some(plan)) = (self.kinds[n], self.plan) {
                // SAFETY: the caller's promise; a table of a period and a block fits the buffer.
                unsafe { reader.fill_table(plan, n, period, period + staged.min(count)) };
            }
        }
        reader
    }
}

/// The operands as one task sees them.
pub(crate) struct Reader<'a, C, const N: usize> {
    operands: Operands<'a, N>,
    compute: C,
    /// Whether all operands are dense, so that there is nothing to prepare.
    dense: bool,
    /// The operand that is a single element, if the computation repeats it.
    one: Option<usize>,
    /// The operand that is one element for each row, if the computation repeats it.
    beside: Option<usize>,
    room: [*mut u8; N],
    /// The most elements of a call.
    most: usize,
    /// Bytes of a buffer that belong to one lane.
    lane_bytes: usize,
}

/// Where a [`Reader`] continues.
pub(crate) struct Cursor<'a, const N: usize> {
    at: usize,
    /// Of operands that have a period: the element within it.
    phase: [usize; N],
    /// Where something is gathered: the row, and the element within it.
    row: Option<(Odometer<'a, N>, usize)>,
    stage: [*mut u8; N],
    /// Of operands that repeat one element over a long row, or such a row: its offset, and how many elements the stage holds.
    held: [(usize, usize); N],
}

impl<'a, C: Compute<N>, const N: usize> Blocks for Reader<'a, C, N> {
    type Cursor = Cursor<'a, N>;

    #[inline]
    fn cursor(&self, at: usize, lane: usize) -> Cursor<'a, N> {
        let Operands { plan, kinds, .. } = self.operands;
        let mut gathers = false;
        let mut phase = [0; N];
        let mut stage = self.room;
        for n in 0..N {
            stage[n] = stage[n].wrapping_add(lane * self.lane_bytes);
            match kinds[n] {
                Kind::Cycle(period) | Kind::Table(period) => phase[n] = at % period,
                Kind::Gathered => gathers = true,
                Kind::Dense | Kind::InPlace => {}
            }
        }
        Cursor {
            at,
            phase,
            row: plan.filter(|_| gathers).map(|p| (Odometer::at(p, at / p.inner()), at % p.inner())),
            stage,
            held: [(usize::MAX, 0); N],
        }
    }

    #[inline]
    fn streams(&self) -> bool {
        self.dense && self.compute.streams()
    }

    #[inline]
    unsafe fn compute(&self, cursor: &mut Cursor<'a, N>, run: Run, out: *mut u8) {
        let Operands { plan, size, src, kinds } = self.operands;
        let n = run.n;
        if self.dense {
            let mut from = src;
            for start in &mut from {
                *start = start.wrapping_add(cursor.at * size);
            }
            cursor.at += n;
            // SAFETY: the caller's promise.
            return unsafe { self.compute.compute(from, out, run) };
        }
        if let (Some(one), Some(plan)) = (self.beside, plan) {
            // SAFETY: the caller's promise.
            return unsafe { self.compute_beside(plan, one, cursor, n, out) };
        }
        let mut done = 0;
        while done < n {
            let mut run = self.most.min(n - done);
            for (kind, phase) in kinds.iter().zip(&cursor.phase) {
                if let Kind::Cycle(period) = kind {
                    run = run.min(period - phase);
                }
            }
            let mut from = [ptr::null(); N];
            let mut one = self.one;
            if cursor.row.is_some() {
                // SAFETY: `run` elements fit the stages.
                run = unsafe { self.gather(cursor, run, &mut from, &mut one) };
            }
            for i in 0..N {
                // SAFETY: dense operands have elements wherever the output has; phases are below the period.
                unsafe {
                    match kinds[i] {
                        Kind::Dense => from[i] = src[i].add(cursor.at * size),
                        Kind::InPlace => {
                            from[i] = cursor.stage[i];
                            ptr::copy_nonoverlapping(
                                src[i].add(cursor.at * size),
                                cursor.stage[i],
                                run * size,
                            );
                        }
                        Kind::Cycle(period) => {
                            from[i] = src[i].add(cursor.phase[i] * size);
                            cursor.phase[i] =
                                if cursor.phase[i] + run == period { 0 } else { cursor.phase[i] + run };
                        }
                        Kind::Table(_) if one == Some(i) => from[i] = src[i],
                        Kind::Table(period) => {
                            from[i] = self.room[i].add(cursor.phase[i] * size);
                            cursor.phase[i] = (cursor.phase[i] + run) % period;
                        }
                        Kind::Gathered => {}
                    }
                }
            }
            // SAFETY: each operand has `run` elements, or is the one, none within the output; the caller vouches for that.
            unsafe {
                let out = out.add(done * self.compute.dst_size());
                match one {
                    Some(one) => self.compute.compute_repeated(&from, one, out, Rows::one(run)),
                    None => self.compute.compute(from, out, Run::cached(run)),
                }
            }
            cursor.at += run;
            done += run;
        }
    }
}

impl<C: Compute<N>, const N: usize> Reader<'_, C, N> {
    /// Computes the next `n` elements of rows beside elements of operand `one`.
    ///
    /// # Safety
    /// As [`Blocks::compute`].
    unsafe fn compute_beside(
        &self,
        plan: &Plan<N>,
        one: usize,
        cursor: &mut Cursor<'_, N>,
        n: usize,
        out: *mut u8,
    ) {
        let Operands { size, src, .. } = self.operands;
        let Some((odometer, col)) = &mut cursor.row else { return };
        let inner = plan.inner();
        let last = plan.dims().len() - 1;
        let mut done = 0;
        while done < n {
            let (len, rows) = piece(inner, *col, odometer.rows_left(), n - done);
            let from: [*const u8; N] = from_fn(|k| {
                let offset = odometer.offsets()[k] + *col * plan.strides(k)[last];
                src[k].wrapping_add(offset * size)
            });
            let rows_of = Rows { inner: len, rows, steps: from_fn(|k| plan.strides(k)[last - 1]) };
            // SAFETY: rows of the operands, or elements of the one, none within the output, as the caller vouches for.
            unsafe {
                let out = out.add(done * self.compute.dst_size());
                self.compute.compute_repeated(&from, one, out, rows_of);
            }
            done += len * rows;
            *col += len;
            if *col == inner {
                *col = 0;
                odometer.advance_by(rows);
            }
        }
        cursor.at += n;
    }

    /// Makes the gathered operands of the next `run` elements readable and moves past them; fewer, up to the
    /// end of a long row. Returns how many. Of an operand that repeats one element only that is readable, if it is `one`.
    ///
    /// # Safety
    /// `run` elements are left, and fit the cursor's stages.
    unsafe fn gather(
        &self,
        cursor: &mut Cursor<'_, N>,
        run: usize,
        from: &mut [*const u8; N],
        one: &mut Option<usize>,
    ) -> usize {
        let Operands { plan, size, src, kinds } = self.operands;
        let (Some(plan), Some((odometer, col))) = (plan, &mut cursor.row) else { return run };
        let inner = plan.inner();
        let last = plan.dims().len() - 1;
        if inner >= LONG_ROW {
            let rows = odometer.rows_left().min(run / inner);
            let repeats = |n| plan.strides(n)[last] != 0 && plan.strides(n)[last - 1] == 0;
            let is_held = |n: usize| cursor.held[n].0 == odometer.offsets()[n];
            let mut gathered = (0..N).filter(|&n| kinds[n] == Kind::Gathered);
            if *col == 0
                && rows > 1
                && gathered.all(|n| repeats(n) && (is_held(n) || odometer.rows_left() >= OFTEN))
            {
                let run = rows * inner;
                for n in (0..N).filter(|&n| kinds[n] == Kind::Gathered) {
                    let offset = odometer.offsets()[n];
                    from[n] = cursor.stage[n];
                    if cursor.held[n].0 != offset || cursor.held[n].1 < run {
                        let row = Spread {
                            source: src[n].wrapping_add(offset * size),
                            row: 0,
                            col: 1,
                            inner,
                            rows,
                        };
                        // SAFETY: a row of the operand, apart from the stage, which has room for `run` elements and the slack.
                        unsafe { expand(size, row, cursor.stage[n]) };
                        cursor.held[n] = (offset, run);
                    }
                }
                odometer.advance_by(rows);
                return run;
            }
            let run = run.min(inner - *col);
            for n in 0..N {
                if kinds[n] != Kind::Gathered {
                    continue;
                }
                let offset = odometer.offsets()[n];
                // SAFETY: the offsets are within the operand, and so are `run` elements from there in a row that
                // does not repeat one element; `run` elements fit the stage.
                unsafe {
                    if plan.strides(n)[last] != 0 {
                        from[n] = src[n].add((offset + *col) * size);
                        continue;
                    }
                    let source = src[n].add(offset * size);
                    if one.is_none() && self.compute.repeats() {
                        (from[n], *one) = (source, Some(n));
                        continue;
                    }
                    from[n] = cursor.stage[n];
                    if cursor.held[n].0 != offset || cursor.held[n].1 < run {
                        splat(self.compute.isa(), size, source, run, cursor.stage[n]);
                        cursor.held[n] = (offset, run);
                    }
                }
            }
            *col += run;
            if *col == inner {
                *col = 0;
                odometer.advance();
            }
            return run;
        }
        for n in 0..N {
            if kinds[n] == Kind::Gathered {
                from[n] = cursor.stage[n];
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            match size {
                1 => self.gather_rows::<[u8; 1], 16>(plan, cursor, run),
                2 => self.gather_rows::<[u8; 2], 8>(plan, cursor, run),
                4 => self.gather_rows::<[u8; 4], 4>(plan, cursor, run),
                8 => self.gather_rows::<[u8; 8], 2>(plan, cursor, run),
                _ => self.gather_rows::<[u8; 16], 1>(plan, cursor, run),
            }
        }
        run
    }

    /// Gathers `run` elements of short rows into the stages.
    ///
    /// # Safety
    /// As [`Self::gather`], with elements like `T`, of which `V` are a vector.
    #[inline(never)]
    unsafe fn gather_rows<T: Copy, const V: usize>(
        &self,
        plan: &Plan<N>,
        cursor: &mut Cursor<'_, N>,
        run: usize,
    ) {
        let Operands { src, kinds, .. } = self.operands;
        let Some((odometer, col)) = &mut cursor.row else { return };
        let inner = plan.inner();
        let last = plan.dims().len() - 1;
        let mut done = 0;
        while done < run {
            let (len, rows) = piece(inner, *col, odometer.rows_left(), run - done);
            for n in 0..N {
                if kinds[n] != Kind::Gathered {
                    continue;
                }
                let strides = plan.strides(n);
                let stride = strides[last];
                // SAFETY: rows and elements are within the operand, and within the stage.
                unsafe {
                    let source = src[n].add((odometer.offsets()[n] + *col * stride) * size_of::<T>());
                    let row = if last == 0 { 0 } else { strides[last - 1] };
                    let rows = Spread { source, row, col: stride, inner: len, rows };
                    expand_as::<T, V>(rows, cursor.stage[n].add(done * size_of::<T>()));
                }
            }
            done += len * rows;
            *col += len;
            if *col == inner {
                *col = 0;
                odometer.advance_by(rows);
            }
        }
    }

    /// Repeats the first `period` elements of an operand up to `len`.
    ///
    /// # Safety
    /// The operand is readable, and `len` elements, not fewer than `period`, fit its buffer.
    unsafe fn fill_table(&self, plan: &Plan<N>, n: usize, period: usize, len: usize) {
        let Operands { size, src, .. } = self.operands;
        let table = self.room[n];
        if period == 1 {
            // SAFETY: the caller's promise.
            return unsafe { splat(self.compute.isa(), size, src[n], len, table) };
        }
        let mut done = 0;
        let mut odometer = Odometer::at(plan, 0);
        let inner = plan.inner();
        let last = plan.dims().len() - 1;
        while done < period {
            let (len, rows) = piece(inner, 0, odometer.rows_left(), period - done);
            let strides = plan.strides(n);
            // SAFETY: rows are within the operand and `done` within the table.
            unsafe {
                let source = src[n].add(odometer.offsets()[n] * size);
                let row = if last == 0 { 0 } else { strides[last - 1] };
                let rows = Spread { source, row, col: strides[last], inner: len, rows };
                expand(size, rows, table.add(done * size));
            }
            done += len * rows;
            odometer.advance_by(rows);
        }
        while done < len {
            // What is there is whole periods, so that its start follows its end.
            let more = done.min(len - done);
            // SAFETY: the first `done` elements are written, and `done + more` fit.
            unsafe { ptr::copy_nonoverlapping(table, table.add(done * size), more * size) };
            done += more;
        }
    }
}

/// How much of the next `most` elements, from column `col` on, is rows of one length: its length and how many.
#[inline]
fn piece(inner: usize, col: usize, rows_left: usize, most: usize) -> (usize, usize) {
    if col == 0 && most >= inner {
        (inner, rows_left.min(most / inner))
    } else {
        ((inner - col).min(most), 1)
    }
}
