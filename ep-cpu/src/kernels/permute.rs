//! Permute: reorder the dimensions of a dense tensor, `dst_dims[i] = src_dims[permutation[i]]`.

use crate::isa::Isa;
use crate::kernels::movement;
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
use primitives::permute::{MAX_DIMS, Permutation};
use primitives::tensor_iterator::TensorIterator;

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
/// Those of [`Permutation::simplify`], `InvalidArgument` where source and destination overlap and that is noticed,
/// and those of `par`.
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
    if let (&[rows, cols], [1, 0]) = (args.src_dims, args.permutation)
        && rows > 1
        && cols > 1
        && rows.checked_mul(cols).and_then(|n| n.checked_mul(SIZE)).is_some_and(|n| n <= isize::MAX as usize)
    {
        // Nothing can be simpler, and planning takes longer than to transpose a few elements.
        // SAFETY: the caller's promise.
        return unsafe { movement::transpose(isa, par, [rows, cols], SIZE, args.src, args.dst) };
    }
    let simple = Permutation::simplify(args.src_dims, args.permutation, SIZE)?;
    let dims = simple.src_dims();
    let mut src_strides = [SIZE as isize; MAX_DIMS];
    for i in (1..dims.len()).rev() {
        src_strides[i - 1] = src_strides[i] * dims[i] as isize;
    }
    let (dst_dims, mut dst_strides, mut reordered) = (simple.dst_dims(), [0; MAX_DIMS], [0; MAX_DIMS]);
    let mut stride = SIZE as isize;
    for (i, &axis) in simple.permutation().iter().enumerate().rev() {
        reordered[i] = src_strides[axis];
        dst_strides[i] = stride;
        stride *= dims[axis] as isize;
    }
    let rank = dims.len();
    let walk = TensorIterator::new(&dst_dims[..rank], [&dst_strides[..rank], &reordered[..rank]])?;
    // SAFETY: the caller's promise; the walk covers both tensors.
    unsafe { movement::copy(isa, par, &walk, SIZE, args.src, args.dst) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lanes::LANE;
    use crate::kernels::lines::LINE;
    use crate::kernels::testing::{Guarded, Rng, Threads, between_pages};
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

    /// From memory that ends at or starts behind an inaccessible page, to such memory.
    #[test]
    fn small_matrices_between_pages() {
        for size in [1, 2, 4, 8, 16] {
            let lane = LANE / size;
            let sides = [2, 3, lane, lane + 1, 2 * lane - 1, 2 * lane, 3 * lane - 1, 3 * lane, 4 * lane + 3];
            for (rows, cols) in sides.into_iter().flat_map(|r| sides.map(|c| (r, c))) {
                let bytes = rows * cols * size;
                let data = Rng::new().bytes(bytes);
                let want = reference::permute(&[rows, cols], &[1, 0], size, &data);
                for at_end in [false, true] {
                    let pages = [0; 2].map(|_| between_pages(bytes, at_end));
                    let [src, dst] = pages.each_ref().map(|p| p.ptr());
                    // SAFETY: both have that many bytes, which nobody else uses.
                    unsafe { src.copy_from_nonoverlapping(data.as_ptr(), bytes) };
                    for isa in Isa::available() {
                        let args = PermuteArgs { src_dims: &[rows, cols], permutation: &[1, 0], src, dst };
                        // SAFETY: as above; what is not written stays poison.
                        let got = unsafe {
                            dst.write_bytes(0xa5, bytes);
                            lookup(dtype_of(size)).unwrap()(isa, &Serial, &args).unwrap();
                            std::slice::from_raw_parts(dst, bytes)
                        };
                        assert!(got == &want[..], "{rows}x{cols} of {size} bytes at {isa}");
                    }
                }
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

    /// To a destination at a line.
    fn check_lines(dims: &[usize], permutation: &[usize], size: usize) {
        let bytes = dims.iter().product::<usize>() * size;
        let src = Rng::new().bytes(bytes);
        let want = reference::permute(dims, permutation, size, &src);
        for isa in Isa::available() {
            let mut dst = Guarded::<u8>::new(bytes + LINE);
            let shift = dst.ptr().align_offset(LINE);
            let args = PermuteArgs {
                src_dims: dims,
                permutation,
                src: src.as_ptr(),
                dst: dst.ptr().wrapping_add(shift),
            };
            // SAFETY: both sides have all the elements.
            unsafe { lookup(dtype_of(size)).unwrap()(isa, &Threads(2), &args) }.unwrap();
            let same = dst.written()[shift..][..bytes] == want[..];
            assert!(same, "{dims:?} {permutation:?} of {size} bytes at {isa}");
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
            // Rows not whole pages apart, which pass through a stage: bands and columns are left over.
            (2, 1056, 2067),
            (4, 1072, 1047),
            (4, 1072, 1042),
            (8, 520, 1031),
            (16, 516, 521),
        ] {
            check_lines(&[r, c], &[1, 0], size);
        }
    }

    #[test]
    fn streaming_stores_of_many_matrices() {
        for size in [1, 2, 4, 8, 16] {
            let rows = 2 * LINE / size;
            // Whose rows are neighbours in the destination, in several places of the source's order.
            for neighbours in [24, 14, 23] {
                check_lines(&[rows, neighbours, 5, 17], &[3, 2, 1, 0], size);
                check_lines(&[rows, 5, neighbours, 17], &[3, 1, 2, 0], size);
                check_lines(&[2, rows, neighbours, 3, 16], &[3, 0, 4, 2, 1], size);
            }
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
