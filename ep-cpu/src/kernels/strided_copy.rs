//! StridedCopy: `dst[i] = src[i]` for every index, between any two strided layouts, converting as `cast` does.

use super::cast;
use super::movement;
use super::strided_map::Map;
use super::unary::UnaryKernel;
use crate::isa::Isa;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use primitives::permute::MAX_DIMS;
use primitives::strided_copy::check_destination;
use primitives::tensor_iterator::TensorIterator;

/// Arguments of a [`StridedCopyKernel`].
#[derive(Clone, Copy, Debug)]
pub struct StridedCopyArgs<'a> {
    /// The shape, outermost first; at most 8 dimensions.
    pub dims: &'a [usize],
    /// Elements between neighbours of the source; 0 repeats.
    pub src_strides: &'a [isize],
    /// Elements between neighbours of the destination.
    pub dst_strides: &'a [isize],
    /// The source's element at index 0, this many elements behind `src`.
    pub src_offset: usize,
    /// The destination's element at index 0, this many elements behind `dst`.
    pub dst_offset: usize,
    /// The source, aligned to its element.
    pub src: *const u8,
    /// The destination, aligned to its element.
    pub dst: *mut u8,
}

/// The kernel of a pair of dtypes.
#[derive(Clone, Copy)]
pub struct StridedCopyKernel {
    /// `None` where the dtypes are one: bytes are moved.
    cast: Option<UnaryKernel>,
    src_size: usize,
    dst_size: usize,
}

/// The kernel that copies from `src` to `dst`; `None` for dtypes outside [`DType::ALL`].
pub fn lookup(src: DType, dst: DType) -> Option<StridedCopyKernel> {
    let cast = cast::lookup(src, dst)?;
    Some(StridedCopyKernel {
        cast: (src != dst).then_some(cast),
        src_size: src.size()?,
        dst_size: dst.size()?,
    })
}

/// Every pair of dtypes, source first, that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = (DType, DType)> {
    cast::rows().iter().map(|row| (row.0, row.1))
}

impl StridedCopyKernel {
    /// Copies.
    ///
    /// # Errors
    /// `InvalidArgument` for a destination that may have an element twice (see [`check_destination`]), for strides
    /// that lead below the start of a buffer or further than an address space, and for more than 8 dimensions;
    /// the first error of `par`.
    ///
    /// # Safety
    /// From `src` the elements that the shape and its strides address are readable, from `dst` writable, with no
    /// other access until this returns; the two do not overlap.
    pub unsafe fn launch(&self, isa: Isa, par: &dyn Parallel, args: &StridedCopyArgs<'_>) -> Result<()> {
        let StridedCopyArgs { dims, src_strides, dst_strides, .. } = *args;
        let Self { src_size, dst_size, .. } = *self;
        check_destination(dims, dst_strides)?;
        let dst_bytes = to_bytes(dst_strides, dst_size)?;
        let src_bytes = to_bytes(src_strides, src_size)?;
        let walk =
            TensorIterator::new(dims, [&dst_bytes[..dst_strides.len()], &src_bytes[..src_strides.len()]])?;
        if walk.count() == 0 {
            return Ok(());
        }
        stays_inside("source", dims, src_strides, args.src_offset)?;
        stays_inside("destination", dims, dst_strides, args.dst_offset)?;
        let src = args.src.wrapping_add(args.src_offset * src_size);
        let dst = args.dst.wrapping_add(args.dst_offset * dst_size);
        // SAFETY: the caller's promise; no element of the destination is reached twice, as was checked.
        unsafe {
            match self.cast {
                None => movement::copy(isa, par, &walk, src_size, src, dst),
                Some(kernel) => {
                    let map = Map { kernel, attr: [0.0; 2], walk: &walk, src_size, dst_size, src, dst };
                    map.run(isa, par)
                }
            }
        }
    }
}

/// Strides in bytes; those beyond [`MAX_DIMS`] are left out.
pub(super) fn to_bytes(strides: &[isize], size: usize) -> Result<[isize; MAX_DIMS]> {
    let mut bytes = [0; MAX_DIMS];
    for (byte, stride) in bytes.iter_mut().zip(strides) {
        *byte = stride.checked_mul(size as isize).ok_or_else(|| too_far(strides, size))?;
    }
    Ok(bytes)
}

#[cold]
fn too_far(strides: &[isize], size: usize) -> Error {
    Error::invalid(format!(
        "strides {strides:?} of elements of {size} bytes lead further than an address space; strides count elements"
    ))
}

/// Checks that a view which is not empty does not lead below the start of its buffer.
fn stays_inside(side: &str, dims: &[usize], strides: &[isize], offset: usize) -> Result<()> {
    // The walk has been planned, so neither a product nor the sum overflows.
    let down = dims.iter().zip(strides).filter(|(_, s)| **s < 0);
    let below: usize = down.map(|(&d, s)| (d - 1) * s.unsigned_abs()).sum();
    if below > offset {
        return Err(Error::invalid(format!(
            "the {side}'s strides {strides:?} for dimensions {dims:?} lead {below} elements down from offset {offset}, \
             below its start; give an offset of at least {below}"
        )));
    }
    Ok(())
}
