//! Moving elements between two layouts without changing them: what permute, copies of boxes and strided copies
//! are made of.
//!
//! A [`TensorIterator`] has brought the layouts down to few axes, in the order of the destination. Then there are
//! four cases. One axis without gaps is a copy. Where the innermost axis is contiguous on both sides, runs
//! are copied whole ([`runs`]). Where the destination's innermost axis is contiguous and another one is so in the
//! source, the two span a matrix to transpose, once for each index of the others. Everything else goes element
//! by element ([`strided`](super::strided)).

use super::lines::LINE;
use super::memcpy::{MemcpyArgs, memcpy};
use super::raw::{Shared, for_ranges};
use super::runs;
use super::strided;
use super::transpose::{self, BLOCK_ROW, Matrix, Mode};
use crate::isa::Isa;
use ep_core::Result;
use ep_core::parallel::Parallel;
use primitives::permute::MAX_DIMS;
use primitives::tensor_iterator::TensorIterator;
use std::ops::Range;

/// Bytes written from which a transpose goes past the cache. Far below what is so for a plain copy: the rows of a
/// matrix lie far apart, and those a power of two apart share few cache sets.
const STREAM_TRANSPOSE: usize = 2 << 20;

/// The operands of a [`TensorIterator`] here.
pub(super) const DST: usize = 0;
pub(super) const SRC: usize = 1;

/// An axis with the byte strides of both sides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Axis {
    pub(super) size: usize,
    pub(super) src: isize,
    pub(super) dst: isize,
}

/// Moves all elements, of `size` bytes (1, 2, 4, 8 or 16), from one layout to the other. `src` and `dst` are the
/// elements at index 0; operand 0 of the walk is the destination.
///
/// # Errors
/// Those of [`memcpy`] where nothing but one run is copied, and of `par`.
///
/// # Safety
/// All elements that the walk reaches are readable in `src` and writable in `dst`, at any alignment, with no
/// other access until this returns; the two sides do not overlap, and no element of the destination is reached
/// twice.
pub(super) unsafe fn copy(
    isa: Isa,
    par: &dyn Parallel,
    walk: &TensorIterator<2>,
    size: usize,
    src: *const u8,
    dst: *mut u8,
) -> Result<()> {
    if walk.count() == 0 {
        return Ok(());
    }
    let mut axes = [Axis::default(); MAX_DIMS];
    let mut rank = 0;
    for (&size, strides) in walk.sizes().iter().zip(walk.strides()) {
        axes[rank] = Axis { size, src: strides[SRC], dst: strides[DST] };
        rank += 1;
    }
    let axes = &axes[..rank];
    let [dst_start, src_start] = walk.starts();
    let (from, to) = (src.wrapping_offset(src_start), dst.wrapping_offset(dst_start));
    let is_run = axes[0].dst == size as isize && axes[0].src == size as isize;
    // SAFETY: the caller's promise, for each of them; the axes are those of the walk.
    unsafe {
        if walk.count() == 1 {
            return memcpy(isa, par, &MemcpyArgs { dst: to, src: from, bytes: size });
        }
        if !is_run {
            return match transposed(axes, size) {
                Some(cols) => transpose_all(isa, par, axes, cols, size, from, to),
                None => strided::copy(isa, par, walk, size, src, dst),
            };
        }
        let (run, outer) = (axes[0].size * size, &axes[1..]);
        if outer.is_empty() {
            return memcpy(isa, par, &MemcpyArgs { dst: to, src: from, bytes: run });
        }
        // A short run is a bigger element.
        match transposed(outer, run) {
            Some(cols) if run <= 16 && run.is_power_of_two() => {
                transpose_all(isa, par, outer, cols, run, from, to)
            }
            _ => runs::copy(isa, par, run, outer, from, to),
        }
    }
}

/// The axis that is contiguous in the source, if the innermost one is contiguous in the destination only.
fn transposed(axes: &[Axis], size: usize) -> Option<usize> {
    let step = size as isize;
    let cols = axes.iter().position(|a| a.src.abs() == step)?;
    (axes[0].dst == step && cols > 0).then_some(cols)
}

/// Counts through some axes, the first of them fastest, keeping the byte offsets on both sides.
pub(super) struct Odometer<'a> {
    axes: &'a [Axis],
    index: [usize; MAX_DIMS],
    pub(super) src: isize,
    pub(super) dst: isize,
}

impl<'a> Odometer<'a> {
    pub(super) fn at(axes: &'a [Axis], mut position: usize) -> Self {
        let mut new = Self { axes, index: [0; MAX_DIMS], src: 0, dst: 0 };
        for (index, axis) in new.index.iter_mut().zip(axes) {
            if position == 0 {
                break;
            }
            *index = position % axis.size;
            position /= axis.size;
            new.src += *index as isize * axis.src;
            new.dst += *index as isize * axis.dst;
        }
        new
    }

    #[inline]
    pub(super) fn advance(&mut self) {
        for (index, axis) in self.index.iter_mut().zip(self.axes) {
            self.src += axis.src;
            self.dst += axis.dst;
            *index += 1;
            if *index < axis.size {
                return;
            }
            self.src -= axis.size as isize * axis.src;
            self.dst -= axis.size as isize * axis.dst;
            *index = 0;
        }
    }
}

/// A length cut into pieces of `step`, of which the last takes what is left over: it is never shorter, so that a
/// tile always fits one.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    len: usize,
    step: usize,
    pub(super) count: usize,
}

impl Pieces {
    pub(super) fn new(len: usize, step: usize) -> Self {
        Self { len, step, count: (len / step).max(1) }
    }

    /// The pieces `first..end` as one.
    pub(super) fn span(&self, first: usize, end: usize) -> Range<usize> {
        first * self.step..if end == self.count { self.len } else { end * self.step }
    }
}

/// Transposes the matrices that the innermost axis and `axes[cols]` span.
///
/// # Safety
/// As for [`copy`], with elements of `size` bytes; the innermost axis is contiguous in the destination, the
/// other one in the source, in either direction.
unsafe fn transpose_all(
    isa: Isa,
    par: &dyn Parallel,
    axes: &[Axis],
    cols: usize,
    size: usize,
    src: *const u8,
    dst: *mut u8,
) -> Result<()> {
    let rows = axes[0];
    let mut across = axes[cols];
    let (mut src, mut dst) = (src, dst);
    if across.src < 0 {
        let last = (across.size - 1) as isize;
        src = src.wrapping_offset(last * across.src);
        dst = dst.wrapping_offset(last * across.dst);
        across.dst = -across.dst;
    }
    let mut batches = [Axis::default(); MAX_DIMS];
    let mut batch_dims = 0;
    for (_, axis) in axes.iter().enumerate().filter(|(i, _)| ![0, cols].contains(i)) {
        batches[batch_dims] = *axis;
        batch_dims += 1;
    }
    let batches = &mut batches[..batch_dims];
    // In the order of the source, so that its lines are used up while they are cached.
    batches.sort_unstable_by_key(|a| a.src.unsigned_abs());
    let batches = &*batches;
    let batch: usize = batches.iter().map(|a| a.size).product();

    let row_bytes = rows.size * size;
    let mode = mode(batches, rows, across, size, dst, batch * across.size * row_bytes);
    let line = LINE / size;
    let (row_step, col_step) = match mode {
        Mode::Cached | Mode::Lines => (2 * line, 2048),
        Mode::Panels => (8192 / size, (512 / size).min(transpose::PANEL_COLS / 2)),
        Mode::Block => (rows.size, ((64 << 10) / row_bytes).next_multiple_of(LINE)),
    };
    // Neighbouring pieces of one band are done in one go, where that lengthens the streams.
    let merges = mode != Mode::Panels;
    let (row_pieces, col_pieces) = (Pieces::new(rows.size, row_step), Pieces::new(across.size, col_step));
    let per_batch = row_pieces.count * col_pieces.count;
    let unit_bytes = 2 * size * rows.size.min(row_step) * across.size.min(col_step);
    let kernel = transpose::lookup(isa, size, mode);
    let (src, dst) = (Shared::new(src.cast_mut()), Shared::new(dst));
    for_ranges(par, batch * per_batch, unit_bytes, 1, |units: Range<usize>| {
        let mut at = Odometer::at(batches, units.start / per_batch);
        let mut inside = units.start % per_batch;
        let mut left = units.len();
        if per_batch == 1 {
            // Small matrices, of which there may be many.
            let (rows, cols, src_stride, dst_stride) = (rows.size, across.size, rows.src, across.dst);
            let matrix = Matrix { rows, cols, src_stride, dst_stride };
            for _ in units {
                let from = src.get().cast_const().wrapping_offset(at.src);
                // SAFETY: a whole matrix, at one index of the other axes.
                unsafe { kernel(matrix, from, dst.get().wrapping_offset(at.dst)) };
                at.advance();
            }
            left = 0;
        }
        while left > 0 {
            let (band, piece) = (inside / col_pieces.count, inside % col_pieces.count);
            let run = if merges { (col_pieces.count - piece).min(left) } else { 1 };
            let (r, c) = (row_pieces.span(band, band + 1), col_pieces.span(piece, piece + run));
            let matrix =
                Matrix { rows: r.len(), cols: c.len(), src_stride: rows.src, dst_stride: across.dst };
            // SAFETY: the offsets and sizes stay inside the two axes at one index of the others, and no other
            // unit writes there; `mode` has seen to what it asks for.
            unsafe {
                let from = at.src + r.start as isize * rows.src + (c.start * size) as isize;
                let to = at.dst + (r.start * size) as isize + c.start as isize * across.dst;
                kernel(matrix, src.get().cast_const().wrapping_offset(from), dst.get().wrapping_offset(to));
            }
            left -= run;
            inside += run;
            if inside == per_batch {
                inside = 0;
                at.advance();
            }
        }
        if mode != Mode::Cached {
            super::stream::fence();
        }
        Ok(())
    })
}

/// How to write matrices of these two axes.
fn mode(batches: &[Axis], rows: Axis, cols: Axis, size: usize, dst: *mut u8, total: usize) -> Mode {
    /// Rows too short for a panel cost more in parts of lines than whole lines save.
    const PANEL: usize = 4 * LINE;
    const LONG: usize = 32 * LINE;
    /// Bytes of the longest group of which enough fit a panel.
    const GROUP: isize = 8 * LINE as isize;
    let at_lines = |stride: isize| (stride as usize).is_multiple_of(LINE);
    let row_bytes = rows.size * size;
    // Groups without gaps: the source is one stream whatever the panels are.
    let sequential = rows.src == (cols.size * size) as isize && rows.src <= GROUP;
    if total < STREAM_TRANSPOSE {
        Mode::Cached
    } else if sequential && row_bytes >= LONG {
        Mode::Panels
    } else if row_bytes >= LINE
        && dst.addr().is_multiple_of(LINE)
        && at_lines(cols.dst)
        && batches.iter().all(|a| at_lines(a.dst))
    {
        Mode::Lines
    } else if row_bytes >= PANEL {
        Mode::Panels
    } else if cols.dst == row_bytes as isize && row_bytes <= BLOCK_ROW && row_bytes * cols.size >= PANEL {
        Mode::Block
    } else {
        Mode::Cached
    }
}
