//! Moving elements between two layouts without changing them: what permute, copies of boxes and strided copies
//! are made of.
//!
//! A [`TensorIterator`] has brought the layouts down to few axes, in the order of the destination. Then there are
//! four cases. One axis without gaps is a copy. Where the innermost axis is contiguous on both sides, runs
//! are copied whole ([`runs`]). Where the destination's innermost axis is contiguous and another one is so in the
//! source, the two span a matrix to transpose, once for each index of the others. Everything else goes element
//! by element ([`strided`](super::strided)).

use super::memcpy::{MemcpyArgs, memcpy};
use super::raw::{GRAIN_BYTES, Shared, for_ranges};
use super::runs;
use super::stream;
use super::strided;
use super::transpose::{Matrix, Mode};
use super::transpose_plan::{Pieces, Plan, STREAM_TRANSPOSE, cached};
use crate::isa::Isa;
use ep_core::Result;
use ep_core::parallel::Parallel;
use primitives::permute::MAX_DIMS;
use primitives::tensor_iterator::TensorIterator;
use std::ops::Range;

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

/// Transposes a dense matrix of elements of `size` bytes (1, 2, 4, 8 or 16), of more than one row and column.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// `src` is readable and `dst` writable for all elements, which an address space holds, at any alignment, with no
/// other access until this returns; they do not overlap.
#[inline(always)]
pub(super) unsafe fn transpose(
    isa: Isa,
    par: &dyn Parallel,
    [rows, cols]: [usize; 2],
    size: usize,
    src: *const u8,
    dst: *mut u8,
) -> Result<()> {
    let bytes = rows * cols * size;
    if bytes < GRAIN_BYTES && !stream::reaches(bytes, STREAM_TRANSPOSE) {
        // For one thread and the cache, so in one go: cutting a few elements takes longer than to transpose them.
        let kernel = cached(isa, size, rows, cols);
        let (src_stride, dst_stride) = ((cols * size) as isize, (rows * size) as isize);
        // SAFETY: the caller's promise, and the CPU has the level of `isa`.
        unsafe { kernel(Matrix { rows, cols, src_stride, dst_stride }, src, dst) };
        return Ok(());
    }
    let axes = [
        Axis { size: rows, src: (cols * size) as isize, dst: size as isize },
        Axis { size: cols, src: size as isize, dst: (rows * size) as isize },
    ];
    // SAFETY: the caller's promise; the first axis is contiguous in the destination, the second in the source.
    unsafe { transpose_all(isa, par, &axes, 1, size, src, dst) }
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

    let whole = Matrix { rows: rows.size, cols: across.size, src_stride: rows.src, dst_stride: across.dst };
    let at = batches.iter().fold(dst.addr() | across.dst as usize, |bits, axis| bits | axis.dst as usize);
    let Plan { mode, kernel, steps: [row_step, col_step] } =
        Plan::new(isa, size, whole, batch, at, par.threads());
    // Neighbouring pieces of one band are done in one go, where that lengthens the streams.
    let merges = mode != Mode::Panels;
    let (row_pieces, col_pieces) = (Pieces::new(rows.size, row_step), Pieces::new(across.size, col_step));
    let per_batch = row_pieces.count * col_pieces.count;
    let unit_bytes = 2 * size * rows.size.min(row_step) * across.size.min(col_step);
    let (src, dst) = (Shared::new(src.cast_mut()), Shared::new(dst));
    for_ranges(par, batch * per_batch, unit_bytes, 1, |units: Range<usize>| {
        let mut at = Odometer::at(batches, units.start / per_batch);
        let mut inside = units.start % per_batch;
        let mut left = units.len();
        if per_batch == 1 {
            // Small matrices, of which there may be many.
            for _ in units {
                let from = src.get().cast_const().wrapping_offset(at.src);
                // SAFETY: a whole matrix, as the plan's kernel takes it, at one index of the other axes.
                unsafe { kernel(whole, from, dst.get().wrapping_offset(at.dst)) };
                at.advance();
            }
            left = 0;
        }
        while left > 0 {
            let (band, piece) = (inside / col_pieces.count, inside % col_pieces.count);
            let run = if merges { (col_pieces.count - piece).min(left) } else { 1 };
            // Whole bands below each other are one matrix, in whichever order the kernel takes it.
            let bands = match mode {
                Mode::Cached | Mode::Lines if run == col_pieces.count => {
                    (left / run).min(row_pieces.count - band)
                }
                _ => 1,
            };
            let (r, c) = (row_pieces.span(band, band + bands), col_pieces.span(piece, piece + run));
            let matrix =
                Matrix { rows: r.len(), cols: c.len(), src_stride: rows.src, dst_stride: across.dst };
            // SAFETY: the offsets and sizes stay inside the two axes at one index of the others, and no other
            // unit writes there; the plan's kernel takes such pieces, and unless they are panels neighbours as one.
            unsafe {
                let from = at.src + r.start as isize * rows.src + (c.start * size) as isize;
                let to = at.dst + (r.start * size) as isize + c.start as isize * across.dst;
                kernel(matrix, src.get().cast_const().wrapping_offset(from), dst.get().wrapping_offset(to));
            }
            left -= bands * run;
            inside += bands * run;
            if inside == per_batch {
                inside = 0;
                at.advance();
            }
        }
        if mode != Mode::Cached {
            stream::fence();
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lines::LINE;
    use crate::kernels::testing::{Guarded, Rng, Threads};
    use ep_core::parallel::Serial;
    use proptest::prelude::*;

    /// One side of a copy: strides in elements.
    type Strides<'a> = &'a [isize];

    /// Elements that a layout reaches below and from its element at index 0 on.
    fn reach(dims: &[usize], strides: Strides<'_>) -> (usize, usize) {
        let ends = dims.iter().zip(strides).map(|(&d, s)| (d - 1) as isize * s);
        let sum = |sign: isize| ends.clone().filter(|e| e * sign > 0).sum::<isize>().unsigned_abs();
        (sum(-1), sum(1) + 1)
    }

    /// Copies at every level, to addresses that are no multiple of anything, and compares all of the destination,
    /// gaps included, with what index arithmetic gives.
    fn check(
        par: &dyn Parallel,
        dims: &[usize],
        dst: Strides<'_>,
        src: Strides<'_>,
        size: usize,
        shift: usize,
    ) {
        if dims.contains(&0) {
            return;
        }
        let ((src_low, src_high), (dst_low, dst_high)) = (reach(dims, src), reach(dims, dst));
        let from = Rng::new().bytes((src_low + src_high) * size + shift);
        let bytes = |strides: Strides<'_>| strides.iter().map(|s| s * size as isize).collect::<Vec<_>>();
        let walk = TensorIterator::new(dims, [&bytes(dst), &bytes(src)]).unwrap();

        let mut want = vec![0xa5; (dst_low + dst_high) * size + shift];
        for element in 0..dims.iter().product() {
            let (mut rest, mut at, mut to): (usize, _, _) = (element, src_low as isize, dst_low as isize);
            for (axis, &dim) in dims.iter().enumerate().rev() {
                at += (rest % dim) as isize * src[axis];
                to += (rest % dim) as isize * dst[axis];
                rest /= dim;
            }
            let (at, to) = (at as usize * size + shift, to as usize * size + shift);
            want[to..to + size].copy_from_slice(&from[at..at + size]);
        }
        for isa in Isa::available() {
            let mut got = Guarded::<u8>::new(want.len() + LINE);
            // At a line and `shift` bytes, so that whole lines are met with when `shift` is 0.
            let start = got.ptr().align_offset(LINE);
            let (read, write) = (
                from.as_ptr().wrapping_add(src_low * size + shift),
                got.ptr().wrapping_add(start + dst_low * size + shift),
            );
            // SAFETY: both sides have what their layouts reach.
            unsafe { copy(isa, par, &walk, size, read, write) }.unwrap();
            let written = got.written();
            let around = written[..start].iter().chain(&written[start + want.len()..]);
            assert!(around.copied().all(|b| b == 0xa5), "written around the destination");
            assert!(
                written[start..][..want.len()] == want[..],
                "{dims:?} of {size} bytes from {src:?} to {dst:?}, shifted by {shift}, at {isa}"
            );
        }
    }

    fn dense(dims: &[usize]) -> Vec<isize> {
        (0..dims.len()).map(|i| dims[i + 1..].iter().product::<usize>() as isize).collect()
    }

    /// A transpose of the first two dimensions of three.
    fn turn(rows: usize, cols: usize, run: usize, size: usize, shift: usize) {
        let (r, c, n) = (rows as isize, cols as isize, run as isize);
        check(&Threads(3), &[cols, rows, run], &[r * n, n, 1], &[n, c * n, 1], size, shift);
    }

    #[test]
    fn matrices_around_every_boundary() {
        for size in [1, 2, 4, 8, 16] {
            let (lane, line) = (16 / size, LINE / size);
            let edges = [1, 2, 3, 4, lane - 1, lane + 1, line - 1, line, line + 1, 2 * line + lane + 1];
            for rows in edges.into_iter().filter(|&n| n > 0) {
                for cols in edges.into_iter().filter(|&n| n > 0) {
                    turn(rows, cols, 1, size, (rows + cols) % 3);
                }
            }
        }
    }

    #[test]
    fn threads_share_out_short_rows_with_gaps() {
        // Rows with gaps between them, of less than four lines and not at lines, go no other way. There are enough for threads.
        for (size, row_bytes) in [(1, 60), (2, 60), (4, 60), (4, 160), (8, 160), (16, 160)] {
            let (rows, cols) = (row_bytes / size, 24_000 / size);
            let gapped = rows as isize + 3;
            let m = Matrix { rows, cols, src_stride: 0, dst_stride: gapped * size as isize };
            assert_eq!(Plan::new(Isa::available()[0], size, m, 1, 1, 3).mode, Mode::Cached);
            let (par, wide) = (Threads(3), cols as isize);
            check(&par, &[cols, rows], &[gapped, 1], &[1, wide], size, 1);
            check(&par, &[cols, rows], &[gapped, 1], &[-1, wide], size, 1);
            let whole = [gapped * wide, rows as isize * wide];
            check(&par, &[3, cols, rows], &[whole[0], gapped, 1], &[whole[1], 1, wide], size, 1);
        }
    }

    /// Neighbouring pieces that are done in one go, of which the last is longer than the others.
    #[test]
    fn pieces_below_each_other() {
        for size in [1, 2, 4, 8, 16] {
            // Rows of the source far apart and without gaps.
            check(&Serial, &[300, 149], &[192, 1], &[1, 1100], size, 0);
            check(&Serial, &[300, 149], &[192, 1], &[1, 300], size, 0);
            check(&Threads(2), &[2, 40, 1061], &[43_520, 1088, 1], &[42_440, 1, 40], size, 0);
        }
    }

    #[test]
    fn elements_of_runs_that_are_not_aligned() {
        // A run of four bytes is an element, and rows of the destination, or matrices, begin at any byte.
        check(&Threads(2), &[64, 128, 4], &[513, 4, 1], &[4, 256, 1], 1, 0);
        let apart = [64 * 512 + 1, 512, 4, 1];
        check(&Threads(2), &[3, 64, 128, 4], &apart, &[64 * 128 * 4, 4, 256, 1], 1, 0);
        // Matrices whose rows are lines apart, but which do not begin at lines.
        check(&Threads(2), &[4, 64, 24], &[64 * 96 + 1, 96, 1], &[1536, 1, 64], 4, 0);
    }

    #[test]
    fn every_mode_of_large_matrices() {
        for size in [1, 2, 4, 8, 16] {
            let line = LINE / size;
            for (rows, cols) in [
                // Whole lines, with and without rows and columns left over.
                (4 * line, 5 * line),
                (8 * line, 3 * line + 1),
                (3 * line + 3, 8 * line),
                // Rows that start anywhere.
                (5 * line + 1, 6 * line + 5),
                (70 * line + 7, 9),
                (33, 40 * line + 3),
                // Groups.
                (2, 9000),
                (3, 9000),
                (4, 9001),
                (5, 9000),
                (9000, 2),
                (9000, 3),
                (9001, 4),
                (9000, 5),
            ] {
                turn(rows, cols, 1, size, 0);
                turn(rows, cols, 1, size, size);
            }
        }
    }

    #[test]
    fn panels_follow_each_other() {
        // Several pieces in both directions, of rows of an odd length; the last two of source rows that lie far apart.
        for (rows, cols, size) in
            [(5001, 300, 4), (9001, 77, 2), (601, 1300, 8), (17_000, 40, 1), (9001, 2100, 2), (5001, 1535, 4)]
        {
            turn(rows, cols, 1, size, size);
        }
        // Whole lines instead of panels, in several pieces too.
        for size in [1, 2, 4, 8] {
            turn(48 * LINE / size, 4200, 1, size, 0);
        }
    }

    #[test]
    fn batches_of_matrices() {
        for size in [1, 4, 16] {
            let batched = |b: usize, r: usize, c: usize| {
                let dims = [b, c, r];
                let (rows, cols) = (r as isize, c as isize);
                check(&Threads(2), &dims, &[rows * cols, rows, 1], &[rows * cols, 1, cols], size, 0);
                // The batch in between on one side.
                let n = b as isize;
                check(&Serial, &dims, &[rows, rows * n, 1], &[rows * cols, 1, cols], size, 1);
            };
            batched(7, 3, 3);
            batched(300, 4, 4);
            batched(5, 64, 64);
            batched(3, 65, 130);
        }
    }

    #[test]
    fn runs_of_all_lengths() {
        for run in (1..40).chain([48, 63, 64, 65, 100, 127, 128, 192, 255, 256, 300, 1024, 1500]) {
            // Side by side, apart, and with the outer dimensions in another order.
            let n = run as isize;
            check(&Serial, &[40, run], &[n, 1], &[2 * n + 3, 1], 1, run % 4);
            check(&Threads(2), &[40, run], &[n + 5, 1], &[n, 1], 1, 0);
            turn(37, 33, run, 1, run % 2);
            check(&Threads(2), &[3, 40, run], &[n * 40, n, 1], &[n * 64, n * 192, 1], 1, 0);
            // One row for all.
            check(&Threads(2), &[40, run], &[n, 1], &[0, 1], 1, run % 4);
        }
        // Long ones that stay in the cache, from and to anywhere in a vector.
        for run in [511, 512, 513, 575, 640, 1023] {
            let n = run as isize;
            for shift in [0, 1, 31, 32, 63] {
                check(&Serial, &[9, run], &[n + 5, 1], &[n + 3, 1], 1, shift);
            }
        }
        // Longer than a piece.
        check(&Threads(3), &[2, 700_001], &[700_002, 1], &[700_005, 1], 1, 1);
        check(&Serial, &[3, 4, 64], &[256, 64, 1], &[64, 192, 1], 16, 0);
    }

    #[test]
    fn strides_without_runs() {
        for size in [1, 2, 4, 8, 16] {
            for step in [-4, -3, -2, -1, 0, 2, 3, 4, 5, 17] {
                for n in [1, 5, 63, 64, 65, 700, 9000] {
                    check(&Threads(2), &[n], &[1], &[step], size, size);
                    check(&Threads(2), &[3, n], &[n as isize, 1], &[step * n as isize + 1, step], size, 0);
                    if step > 0 {
                        check(&Threads(2), &[n], &[step], &[1], size, 1);
                        check(&Threads(2), &[3, n], &[step * n as isize, -step], &[n as isize, 1], size, 0);
                    }
                }
            }
            // Apart on both sides, with the near axis elsewhere than the destination's.
            check(&Threads(2), &[150, 140], &[140, 1], &[2, 300], size, 0);
            check(&Threads(2), &[5, 150, 140], &[22_000, 141, 1], &[1, 10, 1500], size, 1);
            check(&Threads(2), &[150, 140], &[-280, 2], &[2, 300], size, 0);
        }
    }

    #[test]
    fn broadcast_and_reversed_sources() {
        for size in [1, 2, 4, 8, 16] {
            check(&Threads(2), &[70, 80], &[80, 1], &[0, 1], size, 0);
            check(&Threads(2), &[70, 80], &[80, 1], &[1, 0], size, 0);
            check(&Threads(2), &[70, 80], &[80, 1], &[0, 0], size, 0);
            check(&Threads(2), &[70, 80, 3], &[240, 3, 1], &[0, -1, 80], size, 0);
            // A transpose of what is stored backwards, in both directions.
            check(&Threads(2), &[130, 140], &[140, 1], &[-1, 130], size, 0);
            check(&Threads(2), &[130, 140], &[140, 1], &[1, -130], size, 0);
            check(&Threads(2), &[130, 140], &[140, 1], &[-1, -130], size, size);
            check(&Threads(2), &[130, 140], &[-140, 1], &[1, 130], size, size);
        }
    }

    #[test]
    fn one_element_and_none() {
        check(&Serial, &[], &[], &[], 4, 1);
        check(&Serial, &[1, 1], &[5, 3], &[7, -9], 8, 1);
        let walk = TensorIterator::new(&[3, 0], [&[4, 4], &[4, 4]]).unwrap();
        let nothing = std::ptr::null_mut();
        // SAFETY: there is nothing to touch.
        unsafe { copy(Isa::BASELINE, &Serial, &walk, 4, nothing, nothing) }.unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_layout(
            axes in prop::collection::vec((1usize..20, 0usize..3, any::<[bool; 3]>(), 0isize..40), 0..=4),
            orders in (
                Just((0..4usize).collect::<Vec<_>>()).prop_shuffle(),
                Just((0..4usize).collect::<Vec<_>>()).prop_shuffle(),
            ),
            size_log2 in 0u32..5, shift in 0usize..17, threads in 1usize..4,
        ) {
            let dims: Vec<usize> = axes.iter().map(|a| a.0).collect();
            let layout = |order: &[usize], flip: usize, gap: usize| {
                let (mut strides, mut stride) = (vec![0; dims.len()], 1);
                for &axis in order.iter().filter(|&&a| a < dims.len()) {
                    let backwards = axes[axis].2[flip];
                    strides[axis] = if backwards { -stride } else { stride };
                    stride *= (dims[axis] + if axes[axis].1 == gap { gap } else { 0 }) as isize;
                }
                strides
            };
            let dst = layout(&orders.0, 0, 1);
            let mut src = layout(&orders.1, 1, 2);
            for (stride, axis) in src.iter_mut().zip(&axes) {
                // Now and then a source that repeats, or overlaps itself.
                match axis.3 {
                    0..4 => *stride = 0,
                    4..6 => *stride = axis.3,
                    _ => {}
                }
            }
            check(&Threads(threads), &dims, &dst, &src, 1 << size_log2, shift);
        }

        #[test]
        fn permutations_of_dense_tensors(
            dims in prop::collection::vec(1usize..30, 2..=4),
            order in Just((0..4usize).collect::<Vec<_>>()).prop_shuffle(),
            size_log2 in 0u32..5, shift in 0usize..2,
        ) {
            let dst = dense(&dims);
            let (mut src, mut stride) = (vec![0; dims.len()], 1);
            for &axis in order.iter().filter(|&&a| a < dims.len()) {
                src[axis] = stride;
                stride *= dims[axis] as isize;
            }
            check(&Threads(2), &dims, &dst, &src, 1 << size_log2, shift);
        }
    }
}
