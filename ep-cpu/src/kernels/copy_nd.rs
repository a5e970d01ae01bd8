//! CopyNd: a box of one dense tensor into another.

use super::movement;
use crate::isa::Isa;
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
use primitives::copy_nd::BoxCopy;
use primitives::permute::MAX_DIMS;
use primitives::tensor_iterator::TensorIterator;

/// Arguments of a [`CopyNdFn`]. Dimensions and positions are outermost first, at most 8, and of one number.
#[derive(Clone, Copy, Debug)]
pub struct CopyNdArgs<'a> {
    /// The destination's dimensions.
    pub dst_dims: &'a [i64],
    /// Where the box begins in the destination.
    pub dst_pos: &'a [i64],
    /// The source's dimensions.
    pub src_dims: &'a [i64],
    /// Where the box begins in the source.
    pub src_pos: &'a [i64],
    /// The box's dimensions.
    pub extent: &'a [i64],
    /// The dense row-major source; any alignment.
    pub src: *const u8,
    /// The dense row-major destination; any alignment.
    pub dst: *mut u8,
}

/// Copies a box; what lies around it in the destination stays.
///
/// # Errors
/// Those of [`BoxCopy::simplify`], `InvalidArgument` where the two boxes overlap and that is noticed, and those of
/// `par`.
///
/// # Safety
/// `src` is readable and `dst` writable for all elements of the box, with no other access until this returns;
/// they do not overlap.
pub type CopyNdFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &CopyNdArgs<'_>) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<CopyNdFn> {
    match dtype.size()? {
        1 => Some(copy_nd::<1>),
        2 => Some(copy_nd::<2>),
        4 => Some(copy_nd::<4>),
        8 => Some(copy_nd::<8>),
        16 => Some(copy_nd::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn copy_nd<const SIZE: usize>(isa: Isa, par: &dyn Parallel, args: &CopyNdArgs<'_>) -> Result<()> {
    let CopyNdArgs { dst_dims, dst_pos, src_dims, src_pos, extent, src, dst } = *args;
    let copy = BoxCopy::simplify(dst_dims, dst_pos, src_dims, src_pos, extent, SIZE)?;
    if copy.count() == 0 {
        return Ok(());
    }
    let rank = copy.dims().len();
    let (mut sizes, mut dst_strides, mut src_strides) = ([0; MAX_DIMS], [0; MAX_DIMS], [0; MAX_DIMS]);
    let (mut dst_stride, mut src_stride) = (SIZE, SIZE);
    for (i, dim) in copy.dims().iter().enumerate().rev() {
        (sizes[i], dst_strides[i], src_strides[i]) = (dim.extent, dst_stride as isize, src_stride as isize);
        dst_stride *= dim.dst_dim;
        src_stride *= dim.src_dim;
    }
    let walk = TensorIterator::new(&sizes[..rank], [&dst_strides[..rank], &src_strides[..rank]])?;
    let (dst_at, src_at) = copy.offsets();
    // SAFETY: the caller's promise; the box was checked to lie inside both tensors.
    unsafe { movement::copy(isa, par, &walk, SIZE, src.add(src_at * SIZE), dst.add(dst_at * SIZE)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng, Threads};
    use ep_core::Code;
    use ep_core::parallel::Serial;
    use proptest::prelude::*;

    /// Size of the destination, place in it, size of the source, place in it, size of the box; per dimension.
    fn check(par: &dyn Parallel, boxes: &[[i64; 5]], size: usize, shift: usize) {
        let column = |i: usize| boxes.iter().map(|b| b[i]).collect::<Vec<i64>>();
        let [dst_dims, dst_pos, src_dims, src_pos, extent] = [0, 1, 2, 3, 4].map(column);
        let bytes = |dims: &[i64]| dims.iter().product::<i64>() as usize * size;
        let src = Rng::new().bytes(bytes(&src_dims) + shift);
        let old = Rng::new().bytes(bytes(&dst_dims) + shift);
        let mut want = old.clone();
        for element in 0..extent.iter().product() {
            let (mut rest, mut from, mut to): (i64, _, _) = (element, 0, 0);
            let (mut from_stride, mut to_stride) = (1, 1);
            for b in boxes.iter().rev() {
                from += (b[3] + rest % b[4]) * from_stride;
                to += (b[1] + rest % b[4]) * to_stride;
                (from_stride, to_stride, rest) = (from_stride * b[2], to_stride * b[0], rest / b[4]);
            }
            let (from, to) = (from as usize * size + shift, to as usize * size + shift);
            want[to..to + size].copy_from_slice(&src[from..from + size]);
        }
        let dtype = rows().find(|d| d.size() == Some(size)).unwrap();
        for isa in Isa::available() {
            let mut dst = Guarded::from(&old);
            let args = CopyNdArgs {
                dst_dims: &dst_dims,
                dst_pos: &dst_pos,
                src_dims: &src_dims,
                src_pos: &src_pos,
                extent: &extent,
                src: src.as_ptr().wrapping_add(shift),
                dst: dst.ptr().wrapping_add(shift),
            };
            // SAFETY: both sides have all their elements.
            unsafe { lookup(dtype).unwrap()(isa, par, &args) }.unwrap();
            assert!(dst.written() == want, "{boxes:?} of {size} bytes at {isa}");
        }
    }

    #[test]
    fn windows_and_whole_tensors() {
        for size in [1, 2, 4, 8, 16] {
            check(&Serial, &[], size, 1);
            check(&Serial, &[[7, 1, 9, 3, 5]], size, 1);
            check(&Threads(2), &[[64, 0, 128, 31, 64], [96, 0, 100, 4, 96]], size, 0);
            check(&Threads(2), &[[300, 10, 270, 5, 260], [41, 7, 33, 2, 31], [3, 0, 3, 0, 3]], size, 0);
            check(&Threads(2), &[[5, 0, 5, 0, 5], [700, 3, 640, 0, 640], [1, 0, 1, 0, 1]], size, size);
            check(&Serial, &[[3, 1, 3, 1, 0], [4, 0, 4, 0, 4]], size, 0);
            check(&Serial, &[[2, 1, 3, 2, 1]; 8], size, 0);
        }
    }

    #[test]
    fn a_box_outside_is_refused() {
        let nothing = std::ptr::null_mut();
        for (dst_pos, src_pos, extent) in
            [([1, 0], [0, 0], [3, 3]), ([0, 0], [0, 2], [2, 2]), ([0, 0], [0, -1], [1, 1])]
        {
            let args = CopyNdArgs {
                dst_dims: &[3, 3],
                dst_pos: &dst_pos,
                src_dims: &[3, 3],
                src_pos: &src_pos,
                extent: &extent,
                src: nothing,
                dst: nothing,
            };
            // SAFETY: refused before anything is touched.
            let e = unsafe { lookup(DType::F32).unwrap()(Isa::BASELINE, &Serial, &args) }.unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument, "{e}");
        }
    }

    proptest! {
        #[test]
        fn any_box(
            axes in prop::collection::vec((0i64..3, 0i64..3, 0i64..3, 0i64..3, 1i64..12, any::<bool>()), 0..=5),
            size_log2 in 0u32..5, shift in 0usize..17,
        ) {
            let boxes: Vec<[i64; 5]> = axes
                .into_iter()
                .map(|(a, b, c, d, e, whole)| if whole { [e, 0, e, 0, e] } else { [a + b + e, a, c + d + e, c, e] })
                .collect();
            check(&Threads(2), &boxes, 1 << size_log2, shift);
        }
    }
}
