//! Broadcast operands, brought piece by piece to where a kernel over contiguous elements reads them.
//!
//! A dense operand is read where it lies, and so is one that repeats as a whole, between two wraps. A short
//! period is repeated once into a table from which every block is read at its phase. What is left, elements or
//! rows that repeat inside the operand, is gathered into a stage in the first-level cache, block by block; so is
//! an operand that is also the destination, which lets a kernel assume that it writes nothing that it reads.

use super::stream::{Blocks, LANES, MOST_STEP_BYTES};
use primitives::broadcast::{Odometer, Plan};
use std::array::from_fn;
use std::mem::MaybeUninit;
use std::ptr;

/// Computes elements from `N` contiguous sources.
pub(crate) trait Compute<const N: usize>: Copy + Sync {
    /// Bytes of an element of the output.
    fn dst_size(&self) -> usize;

    /// # Safety
    /// `src` are readable and `dst` writable for `n` elements, and `dst` overlaps no source.
    unsafe fn compute(&self, src: [*const u8; N], dst: *mut u8, n: usize);
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

/// Bytes of an operand that are staged at a time, and of the longest period that becomes a table: with two
/// buffers and a destination well within a first-level cache.
const STAGE_BYTES: usize = 4096;
/// Stores of whole vectors may write so much past the end; a multiple of a line, so that stages begin at lines.
const SLACK: usize = 64;
/// Rows of at least so many elements are computed one by one, shorter ones are gathered several to a block.
const LONG_ROW: usize = 128;

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
        let direct = self.kinds.iter().all(|kind| matches!(kind, Kind::Dense | Kind::Cycle(_)));
        let dense = self.kinds.iter().all(|kind| *kind == Kind::Dense);
        let most = if direct { usize::MAX } else { staged };
        let reader =
            Reader { operands: *self, compute, dense, room, most, lane_bytes: staged * self.size + SLACK };
        for n in 0..N {
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
    /// Of operands that repeat one element over a long row: its offset, and how often the stage holds it.
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
    unsafe fn compute(&self, cursor: &mut Cursor<'a, N>, n: usize, out: *mut u8) {
        let Operands { size, src, kinds, .. } = self.operands;
        if self.dense {
            let mut from = src;
            for start in &mut from {
                *start = start.wrapping_add(cursor.at * size);
            }
            cursor.at += n;
            // SAFETY: the caller's promise.
            return unsafe { self.compute.compute(from, out, n) };
        }
        let mut done = 0;
        while done < n {
            let mut run = self.most.min(n - done);
            for i in 0..N {
                if let Kind::Cycle(period) = kinds[i] {
                    run = run.min(period - cursor.phase[i]);
                }
            }
            let mut from = [ptr::null(); N];
            if cursor.row.is_some() {
                // SAFETY: `run` elements fit the stages.
                run = unsafe { self.gather(cursor, run, &mut from) };
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
                        Kind::Table(period) => {
                            from[i] = self.room[i].add(cursor.phase[i] * size);
                            cursor.phase[i] = (cursor.phase[i] + run) % period;
                        }
                        Kind::Gathered => {}
                    }
                }
            }
            // SAFETY: each operand has `run` elements, none within the output; the caller vouches for that.
            unsafe { self.compute.compute(from, out.add(done * self.compute.dst_size()), run) };
            cursor.at += run;
            done += run;
        }
    }
}

impl<C: Compute<N>, const N: usize> Reader<'_, C, N> {
    /// Makes the gathered operands of the next `run` elements readable and moves past them; fewer where a long
    /// row ends. Returns how many.
    ///
    /// # Safety
    /// `run` elements are left, and fit the cursor's stages.
    unsafe fn gather(&self, cursor: &mut Cursor<'_, N>, run: usize, from: &mut [*const u8; N]) -> usize {
        let Operands { plan, size, src, kinds } = self.operands;
        let (Some(plan), Some((odometer, col))) = (plan, &mut cursor.row) else { return run };
        let inner = plan.inner();
        let last = plan.dims().len() - 1;
        if inner >= LONG_ROW {
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
                    from[n] = cursor.stage[n];
                    if cursor.held[n].0 != offset || cursor.held[n].1 < run {
                        let source = src[n].add(offset * size);
                        expand(size, Rows { source, row: 0, col: 0, inner: run, rows: 1 }, cursor.stage[n]);
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
                    let rows = Rows { source, row, col: stride, inner: len, rows };
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
            let rows = Rows { source: src[n], row: 0, col: 0, inner: len, rows: 1 };
            // SAFETY: the caller's promise.
            return unsafe { expand(size, rows, table) };
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
                let rows = Rows { source, row, col: strides[last], inner: len, rows };
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

/// Rows of elements to be written one after another; strides count elements.
#[derive(Clone, Copy)]
struct Rows {
    source: *const u8,
    row: usize,
    /// 1 or 0.
    col: usize,
    inner: usize,
    rows: usize,
}

/// Writes all `rows` to `to`, and up to [`SLACK`] bytes of anything behind.
///
/// # Safety
/// The elements are readable, those of a row being contiguous or one, and rows of contiguous elements lying one
/// after another or being the same; `to` is writable for them and for the slack, and apart from them.
unsafe fn expand(size: usize, rows: Rows, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => expand_as::<[u8; 1], 16>(rows, to),
            2 => expand_as::<[u8; 2], 8>(rows, to),
            4 => expand_as::<[u8; 4], 4>(rows, to),
            8 => expand_as::<[u8; 8], 2>(rows, to),
            _ => expand_as::<[u8; 16], 1>(rows, to),
        }
    }
}

/// # Safety
/// As [`expand`], with elements like `T`, of which `N` are a vector.
#[inline(always)]
unsafe fn expand_as<T: Copy, const N: usize>(rows: Rows, mut to: *mut u8) {
    let Rows { source, row, col, inner, rows } = rows;
    let bytes = inner * size_of::<T>();
    // SAFETY: the caller's promise. Whole vectors leave each row followed by what the next one, or the slack, is
    // there to take.
    unsafe {
        if col == 0 {
            for r in 0..rows {
                let vector = Vector::of([source.cast::<T>().add(r * row).read(); N]);
                vector.put(to);
                let mut i = size_of::<Vector>();
                while i < bytes {
                    vector.put(to.add(i));
                    i += size_of::<Vector>();
                }
                to = to.add(bytes);
            }
        } else if row != 0 || rows == 1 {
            ptr::copy_nonoverlapping(source, to, bytes * rows);
        } else if bytes < size_of::<Vector>() {
            let mut start = [0u8; size_of::<Vector>()];
            for i in 0..inner {
                let element = source.cast::<T>().add(i).read();
                start.as_mut_ptr().cast::<T>().add(i).write(element);
            }
            let start = Vector::of(start);
            for _ in 0..rows {
                start.put(to);
                to = to.add(bytes);
            }
        } else if bytes <= size_of::<[Vector; 4]>() {
            // The last vector ends where the row does, and may repeat some of the one before.
            let last = bytes - size_of::<Vector>();
            let offsets = [0, 16.min(last), 32.min(last), last];
            let mut whole = [Vector::of([0u8; 16]); 4];
            for (vector, offset) in whole.iter_mut().zip(offsets) {
                *vector = Vector::of(source.add(offset).cast::<[u8; 16]>().read());
            }
            for _ in 0..rows {
                whole[0].put(to);
                whole[3].put(to.add(last));
                if bytes > 2 * size_of::<Vector>() {
                    whole[1].put(to.add(offsets[1]));
                    whole[2].put(to.add(offsets[2]));
                }
                to = to.add(bytes);
            }
        } else {
            for _ in 0..rows {
                ptr::copy_nonoverlapping(source, to, bytes);
                to = to.add(bytes);
            }
        }
    }
}

/// 16 bytes that are stored at once. Loops over arrays would be made into scattered stores of single elements.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Vector(
    #[cfg(target_arch = "x86_64")] std::arch::x86_64::__m128i,
    #[cfg(not(target_arch = "x86_64"))] [u8; 16],
);

impl Vector {
    #[inline(always)]
    fn of<T: Copy, const N: usize>(elements: [T; N]) -> Vector {
        const { assert!(size_of::<[T; N]>() == size_of::<Vector>()) };
        // SAFETY: the sizes are the same, and any bytes are a vector; `T` is made of bytes throughout this module.
        unsafe { std::mem::transmute_copy(&elements) }
    }

    /// # Safety
    /// `to` is writable for 16 bytes.
    #[inline(always)]
    unsafe fn put(self, to: *mut u8) {
        // SAFETY: the caller's promise; SSE2 is part of x86-64.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_storeu_si128(to.cast(), self.0);
        }
        // SAFETY: the caller's promise.
        #[cfg(not(target_arch = "x86_64"))]
        unsafe {
            to.cast::<[u8; 16]>().write(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::Buffer;
    use crate::kernels::stream::{self, Ahead};
    use crate::kernels::testing::Rng;

    /// Writes the elements of both operands one after the other.
    #[derive(Clone, Copy)]
    struct Pairs(usize);

    impl Compute<2> for Pairs {
        fn dst_size(&self) -> usize {
            2 * self.0
        }

        unsafe fn compute(&self, src: [*const u8; 2], dst: *mut u8, n: usize) {
            for (i, from) in (0..n)
                .flat_map(|i| src.map(|s| (i, s)))
                .enumerate()
                .map(|(k, (i, s))| (k, s.wrapping_add(i * self.0)))
            {
                // SAFETY: the contract of `compute`.
                unsafe { ptr::copy_nonoverlapping(from, dst.add(i * self.0), self.0) };
            }
        }
    }

    struct Case {
        shapes: [Vec<i64>; 2],
        size: usize,
        streaming: bool,
        /// Where the range begins and ends, in parts of 1000 of all elements.
        part: (usize, usize),
        /// Bytes that the output is off a line, in elements.
        shift: usize,
    }

    fn check(case: &Case, rng: &mut Rng) {
        let Case { shapes, size, streaming, part, shift } = case;
        let (size, dst_size) = (*size, 2 * *size);
        let plan = Plan::new([&shapes[0][..], &shapes[1]]).unwrap();
        let count = plan.count();
        let sources = shapes.each_ref().map(|s| rng.bytes(s.iter().product::<i64>() as usize * size));
        let mut buffers = sources.each_ref().map(|s| Buffer::of(s, size));
        let [a, b] = &mut buffers;
        let src = [a.ptr().cast_const(), b.ptr().cast_const()];
        let range = count * part.0 / 1000..count * part.1 / 1000;
        let mut dst = Buffer::poisoned((count + shift) * dst_size, dst_size);
        let out = dst.ptr().wrapping_add(shift * dst_size);

        let operands = Operands::broadcast(&plan, size, src, ptr::null());
        let mut room = Buffers::new();
        // SAFETY: the operands have their shapes' elements, and the output `count`.
        unsafe {
            let reader = operands.reader(Pairs(size), &mut room, *streaming, range.len());
            if *streaming {
                let ahead: Vec<Ahead> = operands.dense_sources().map(|start| Ahead { start, size }).collect();
                stream::blocks(&reader, out, dst_size, range.clone(), &ahead);
            } else {
                let mut cursor = reader.cursor(range.start, 0);
                // In pieces, so that cursors have to continue.
                let mut at = range.start;
                while at < range.end {
                    let n = (1 + rng.next() as usize % 3000).min(range.end - at);
                    reader.compute(&mut cursor, n, out.add(at * dst_size));
                    at += n;
                }
            }
        }

        let got = dst.into_bytes();
        let rank = shapes[0].len().max(shapes[1].len());
        let dim = |s: &[i64], axis: usize| (axis + s.len()).checked_sub(rank).map_or(1, |i| s[i] as usize);
        let full: Vec<usize> = (0..rank).map(|i| dim(&shapes[0], i).max(dim(&shapes[1], i))).collect();
        let offset = |s: &[i64], flat: usize| {
            let (mut rest, mut offset, mut stride) = (flat, 0, 1);
            for axis in (0..rank).rev() {
                let index = rest % full[axis];
                rest /= full[axis];
                if dim(s, axis) != 1 {
                    offset += index * stride;
                    stride *= dim(s, axis);
                }
            }
            offset
        };
        for flat in 0..count {
            for k in 0..2 {
                let at = (shift + flat) * dst_size + k * size;
                let got = &got[at..at + size];
                if range.contains(&flat) {
                    let from = offset(&shapes[k], flat) * size;
                    assert!(
                        got == &sources[k][from..from + size],
                        "{shapes:?} {size} {streaming} [{flat}] of {k}"
                    );
                } else {
                    assert!(
                        got.iter().all(|&b| b == 0xa5),
                        "{shapes:?} {size} [{flat}] is outside {range:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_way_of_repeating() {
        let mut rng = Rng::new();
        let list: [(&[i64], &[i64]); 16] = [
            (&[20_000], &[20_000]),
            (&[20_000], &[]),
            (&[50, 300], &[300]),
            (&[3, 5000], &[5000]),
            (&[50, 300], &[50, 1]),
            (&[900, 8], &[900, 1]),
            (&[900, 8], &[8]),
            (&[60, 1, 8], &[60, 9, 8]),
            (&[7, 5, 40], &[7, 1, 40]),
            (&[4, 3, 1100], &[4, 1, 1100]),
            (&[90, 1], &[1, 130]),
            (&[500, 2, 3, 4], &[500, 1, 3, 1]),
            (&[2, 3, 1, 5, 1, 7], &[3, 4, 1, 6, 1]),
            (&[300, 1], &[17]),
            (&[1], &[1]),
            (&[40, 2, 33, 3], &[2, 1, 3]),
        ];
        for (a, b) in list {
            for size in [1, 2, 4, 8, 16] {
                for streaming in [false, true] {
                    let ends = [rng.next() as usize % 500, 500 + rng.next() as usize % 501];
                    let part = if rng.next() % 3 == 0 { (0, 1000) } else { (ends[0], ends[1]) };
                    let mut shapes = [a.to_vec(), b.to_vec()];
                    if rng.next() % 2 == 0 {
                        shapes.reverse();
                    }
                    let shift = rng.next() as usize % 9;
                    check(&Case { shapes, size: size.min(8), streaming, part, shift }, &mut rng);
                }
            }
        }
    }

    #[test]
    fn random_shapes() {
        let mut rng = Rng::new();
        for _ in 0..150 {
            let mut shapes = [vec![], vec![]];
            let mut count = 1;
            for _ in 0..rng.next() % 6 {
                let most = if rng.next() % 5 == 0 { 200 } else { 6 };
                let dim = 1 + (rng.next() % most) as i64;
                if count * dim > 60_000 {
                    break;
                }
                count *= dim;
                let keep = rng.next();
                for (k, shape) in shapes.iter_mut().enumerate() {
                    shape.push(if keep >> k & 3 == 0 { 1 } else { dim });
                }
            }
            let size = 1 << (rng.next() % 4);
            let streaming = rng.next() % 2 == 0;
            check(
                &Case { shapes, size, streaming, part: (0, 1000), shift: rng.next() as usize % 5 },
                &mut rng,
            );
        }
    }
}
