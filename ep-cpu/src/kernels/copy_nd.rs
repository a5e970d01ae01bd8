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
