//! Permute: reorder the dimensions of a dense tensor, `dst_dims[i] = src_dims[permutation[i]]`.
//!
//! After simplification there are three cases. An identity is a copy. Where the innermost dimension stays,
//! rows are copied whole. Otherwise the source's innermost dimension lands elsewhere, and together with the
//! destination's innermost one it spans a matrix to transpose, once for each index of the other dimensions.
//!
//! A matrix is walked along several source rows at once, as sequential streams, and written in whole lines
//! of the destination: transposes by square cache blocks lose to power-of-two strides, where the lines of a
//! block fall into few cache sets.

use crate::isa::Isa;
use crate::kernels::memcpy::{MemcpyArgs, memcpy};
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::stream;
use crate::kernels::transpose::{Element, LINE, Matrix, transpose};
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
use primitives::permute::{MAX_DIMS, Permutation};
use std::ops::Range;

/// Arguments of a [`PermuteFn`].
#[derive(Clone, Copy, Debug)]
pub struct PermuteArgs<'a> {
    /// The source's dimensions, outermost first; at most 8.
    pub src_dims: &'a [usize],
    /// Which source dimension each destination dimension is.
    pub permutation: &'a [usize],
    /// The dense row-major source; any alignment.
    pub src: *const u8,
    /// The dense row-major destination; any alignment.
    pub dst: *mut u8,
}

/// Permutes a tensor.
///
/// # Errors
/// Those of [`Permutation::simplify`], of [`memcpy`] where the permutation changes nothing, and of `par`.
///
/// # Safety
/// `src` is readable and `dst` writable for all elements, with no other access until this returns; they do
/// not overlap.
pub type PermuteFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &PermuteArgs<'_>) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<PermuteFn> {
    match dtype.size()? {
        1 => Some(permute::<1>),
        2 => Some(permute::<2>),
        4 => Some(permute::<4>),
        8 => Some(permute::<8>),
        16 => Some(permute::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn permute<const SIZE: usize>(isa: Isa, par: &dyn Parallel, args: &PermuteArgs<'_>) -> Result<()> {
    let simple = Permutation::simplify(args.src_dims, args.permutation, SIZE)?.fold(16);
    if simple.is_identity() {
        let bytes = simple.count() * simple.movement_size();
        // SAFETY: the caller's promise.
        return unsafe { memcpy(isa, par, &MemcpyArgs { dst: args.dst, src: args.src, bytes }) };
    }
    let plan = Plan::new(&simple);
    let (src, dst) = (Shared::new(args.src.cast_mut()), Shared::new(args.dst));
    let last = simple.num_dims() - 1;
    let size = simple.movement_size();
    let kernel: Kernel = match size {
        _ if simple.permutation()[last] == last => copy_rows,
        1 => transpose_all::<u8>,
        2 => transpose_all::<u16>,
        4 => transpose_all::<u32>,
        8 => transpose_all::<u64>,
        _ => transpose_all::<[u64; 2]>,
    };
    // SAFETY: the plan covers the caller's tensors, in elements of the size that the kernel moves.
    unsafe { kernel(par, &plan, size, src, dst) }
}

type Kernel = unsafe fn(&dyn Parallel, &Plan, usize, Shared<u8>, Shared<u8>) -> Result<()>;

/// One destination dimension: its size, and the strides, in elements, on both sides.
#[derive(Clone, Copy, Debug, Default)]
struct Axis {
    size: usize,
    src_stride: usize,
    dst_stride: usize,
}

/// A permutation with strides, in destination order.
struct Plan {
    axes: [Axis; MAX_DIMS],
    num_dims: usize,
}

impl Plan {
    fn new(simple: &Permutation) -> Self {
        let dims = simple.src_dims();
        let num_dims = dims.len();
        let mut src_strides = [1; MAX_DIMS];
        for i in (0..num_dims - 1).rev() {
            src_strides[i] = src_strides[i + 1] * dims[i + 1];
        }
        let mut axes = [Axis::default(); MAX_DIMS];
        let mut dst_stride = 1;
        for (axis, &from) in axes.iter_mut().zip(simple.permutation()).rev() {
            *axis = Axis { size: dims[from], src_stride: src_strides[from], dst_stride };
            dst_stride *= dims[from];
        }
        Self { axes, num_dims }
    }

    fn axes(&self) -> &[Axis] {
        &self.axes[..self.num_dims]
    }

    fn last(&self) -> Axis {
        self.axes[self.num_dims - 1]
    }
}

/// Counts through some axes in row-major order, keeping the offsets on both sides.
struct Odometer<'a> {
    axes: &'a [Axis],
    index: [usize; MAX_DIMS],
    src: usize,
    dst: usize,
}

impl<'a> Odometer<'a> {
    fn at(axes: &'a [Axis], mut position: usize) -> Self {
        let mut new = Self { axes, index: [0; MAX_DIMS], src: 0, dst: 0 };
        for (i, axis) in axes.iter().enumerate().rev() {
            new.index[i] = position % axis.size;
            position /= axis.size;
            new.src += new.index[i] * axis.src_stride;
            new.dst += new.index[i] * axis.dst_stride;
        }
        new
    }

    fn advance(&mut self) {
        for (i, axis) in self.axes.iter().enumerate().rev() {
            self.src += axis.src_stride;
            self.dst += axis.dst_stride;
            self.index[i] += 1;
            if self.index[i] < axis.size {
                return;
            }
            self.src -= axis.size * axis.src_stride;
            self.dst -= axis.size * axis.dst_stride;
            self.index[i] = 0;
        }
    }
}

/// Copies the innermost dimension, of elements of `size` bytes, for every index of the others; it stays
/// innermost.
///
/// # Safety
/// `src` is readable and `dst` writable for the whole plan, and they do not overlap.
unsafe fn copy_rows(
    par: &dyn Parallel,
    plan: &Plan,
    size: usize,
    src: Shared<u8>,
    dst: Shared<u8>,
) -> Result<()> {
    let outer = &plan.axes()[..plan.num_dims - 1];
    let row = plan.last().size * size;
    let rows = outer.iter().map(|a| a.size).product();
    for_ranges(par, rows, 2 * row, 1, |range| {
        let mut at = Odometer::at(outer, range.start);
        for _ in range {
            // SAFETY: the offsets are those of a row of the plan, in the destination of this row only.
            unsafe {
                let (from, to) = (src.get().add(at.src * size), dst.get().add(at.dst * size));
                to.copy_from_nonoverlapping(from, row);
            }
            at.advance();
        }
        Ok(())
    })
}

/// Transposes the matrices that the two innermost dimensions span.
///
/// # Safety
/// As for [`copy_rows`], with `size` that of `T`.
unsafe fn transpose_all<T: Element>(
    par: &dyn Parallel,
    plan: &Plan,
    size: usize,
    src: Shared<u8>,
    dst: Shared<u8>,
) -> Result<()> {
    /// Columns of one unit of work: long enough to stream, short enough to share a flat matrix out.
    const COLS: usize = 2048;
    // Rows run along the destination's innermost dimension, columns along the source's.
    let rows = plan.last();
    let cols =
        plan.axes().iter().copied().find(|a| a.src_stride == 1).expect("one source dimension is innermost");
    let mut outer = [Axis::default(); MAX_DIMS];
    let mut batch_dims = 0;
    for axis in &plan.axes()[..plan.num_dims - 1] {
        if axis.src_stride != 1 {
            outer[batch_dims] = *axis;
            batch_dims += 1;
        }
    }
    let batches = &outer[..batch_dims];
    let batch: usize = batches.iter().map(|a| a.size).product();

    let band = LINE / size;
    let bands = rows.size.div_ceil(band);
    let pieces = cols.size.div_ceil(COLS);
    let whole_bytes = batch * rows.size * cols.size * size;
    let streaming = whole_bytes >= stream::STREAM_BYTES / 8
        && (cols.dst_stride * size).is_multiple_of(LINE)
        && dst.get().addr().is_multiple_of(LINE)
        && batches.iter().all(|a| (a.dst_stride * size).is_multiple_of(LINE));
    let unit_bytes = 2 * size * band.min(rows.size) * cols.size.min(COLS);
    for_ranges(par, batch * bands * pieces, unit_bytes, 1, |units: Range<usize>| {
        let mut unit = units.start;
        while unit < units.end {
            // Neighbouring pieces of one band are done in one go.
            let (batch_band, piece) = (unit / pieces, unit % pieces);
            let run = (pieces - piece).min(units.end - unit);
            let at = Odometer::at(batches, batch_band / bands);
            let row = batch_band % bands * band;
            let col = piece * COLS;
            let matrix = Matrix {
                rows: band.min(rows.size - row),
                cols: (run * COLS).min(cols.size - col),
                src_stride: rows.src_stride,
                dst_stride: cols.dst_stride,
            };
            // SAFETY: the offsets and sizes stay inside the plan's two innermost dimensions at one index of
            // the others; no other unit writes there. Streaming was checked to write whole aligned lines:
            // all offsets are multiples of a line.
            unsafe {
                let from = src.get().cast::<T>().wrapping_add(at.src + row * rows.src_stride + col);
                let to = dst.get().cast::<T>().wrapping_add(at.dst + row + col * cols.dst_stride);
                transpose(matrix, from.cast_const(), to, streaming);
            }
            unit += run;
        }
        if streaming {
            stream::fence();
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng, Threads};
    use ep_core::Code;
    use ep_core::parallel::Serial;
    use primitives::reference;
    use proptest::prelude::*;

    fn dtype_of(size: usize) -> DType {
        rows().find(|d| d.size() == Some(size)).unwrap()
    }

    fn check(par: &dyn Parallel, dims: &[usize], permutation: &[usize], size: usize) {
        let bytes = dims.iter().product::<usize>() * size;
        let src = Rng::new().bytes(bytes);
        let want = reference::permute(dims, permutation, size, &src);
        for (isa, shift) in Isa::available().into_iter().zip([0, 1, 0, 3]) {
            let mut dst = Guarded::<u8>::new(bytes + shift);
            let args = PermuteArgs {
                src_dims: dims,
                permutation,
                src: src.as_ptr(),
                dst: dst.ptr().wrapping_add(shift),
            };
            // SAFETY: both sides have all the elements.
            unsafe { lookup(dtype_of(size)).unwrap()(isa, par, &args) }.unwrap();
            assert!(dst.written()[shift..] == want[..], "{dims:?} {permutation:?} of {size} bytes at {isa}");
        }
    }

    #[test]
    fn matrices_of_all_sizes() {
        for size in [1, 2, 4, 8, 16] {
            let band = LINE / size;
            for (r, c) in [
                (1, 7),
                (2, 2),
                (3, 1000),
                (1000, 3),
                (band, band),
                (band - 1, band + 1),
                (band + band / 2 + 1, 2 * band + 3),
                (33, 65),
                (65, 5000),
            ] {
                check(&Serial, &[r, c], &[1, 0], size);
                check(&Threads(2), &[3, r, c], &[0, 2, 1], size);
            }
        }
    }

    #[test]
    fn models_known_cases() {
        for size in [1, 2, 4, 8, 16] {
            check(&Serial, &[1, 2, 2, 1, 2], &[0, 1, 3, 4, 2], size);
            check(&Serial, &[5, 6, 7, 8], &[2, 3, 0, 1], size);
            check(&Serial, &[5, 6, 7, 8], &[0, 1, 2, 3], size);
            check(&Threads(3), &[2, 64, 28, 28], &[0, 2, 3, 1], size);
            check(&Threads(3), &[2, 28, 28, 3], &[0, 3, 1, 2], size);
            check(&Threads(3), &[8, 16, 32, 64], &[0, 2, 1, 3], size);
            for dims in [&[2, 3, 9][..], &[7, 9, 4], &[10, 3, 2], &[3, 7, 2], &[8, 2, 5]] {
                for p in [[0, 2, 1], [1, 2, 0], [1, 0, 2], [2, 1, 0], [2, 0, 1]] {
                    check(&Serial, dims, &p, size);
                }
            }
        }
    }

    #[test]
    fn streaming_stores() {
        // Large enough to stream, in whole lines and, with the odd sizes, not.
        for (size, r, c) in [
            (1, 2048, 2112),
            (2, 1024, 2048),
            (4, 1024, 1040),
            (8, 512, 1032),
            (16, 516, 512),
            (4, 1025, 1027),
        ] {
            let bytes = r * c * size;
            let src = Rng::new().bytes(bytes);
            let mut dst = Guarded::<u8>::new(bytes + LINE);
            let shift = dst.ptr().align_offset(LINE);
            let args = PermuteArgs {
                src_dims: &[r, c],
                permutation: &[1, 0],
                src: src.as_ptr(),
                dst: dst.ptr().wrapping_add(shift),
            };
            // SAFETY: both sides have all the elements.
            unsafe { lookup(dtype_of(size)).unwrap()(Isa::BASELINE, &Threads(2), &args) }.unwrap();
            let want = reference::permute(&[r, c], &[1, 0], size, &src);
            assert!(dst.written()[shift..][..bytes] == want[..], "{r} x {c} of {size} bytes");
        }
    }

    #[test]
    fn empty_and_refused() {
        check(&Serial, &[3, 0, 4], &[2, 1, 0], 4);
        check(&Serial, &[], &[], 16);
        let args = PermuteArgs {
            src_dims: &[2, 2],
            permutation: &[1, 1],
            src: std::ptr::null(),
            dst: std::ptr::null_mut(),
        };
        // SAFETY: refused before anything is read.
        let e = unsafe { lookup(DType::F32).unwrap()(Isa::BASELINE, &Serial, &args) }.unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_rank(
            (dims, perm) in (0usize..=8).prop_flat_map(|n| (
                prop::collection::vec(1usize..if n > 5 { 4 } else { 9 }, n),
                Just((0..n).collect::<Vec<_>>()).prop_shuffle(),
            )),
            size_log2 in 0u32..5,
        ) {
            check(&Serial, &dims, &perm, 1 << size_log2);
        }
    }
}
