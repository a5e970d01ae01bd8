//! BroadcastElementwiseUnary: `dst = op(src)` with strides on both sides, the source broadcast to the
//! destination's shape. The ops are those of [`unary`].

use super::movement;
use super::strided_copy::to_bytes;
use super::strided_map::Map;
use super::unary::{self, UnaryKernel};
use crate::isa::Isa;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use primitives::permute::MAX_DIMS;
use primitives::strided_copy::check_destination;
use primitives::tensor_iterator::TensorIterator;

/// Arguments of a [`StridedUnaryKernel`]. Shapes are outermost first, strides count elements.
#[derive(Clone, Copy, Debug)]
pub struct StridedUnaryArgs<'a> {
    /// The source's shape, of no more dimensions than the destination's.
    pub src_dims: &'a [usize],
    /// Its strides.
    pub src_strides: &'a [isize],
    /// The destination's shape; at most 8 dimensions.
    pub dst_dims: &'a [usize],
    /// Its strides.
    pub dst_strides: &'a [isize],
    /// The source's element at index 0, aligned.
    pub src: *const u8,
    /// The destination's element at index 0, aligned.
    pub dst: *mut u8,
    /// Attributes 0 and 1 of the op.
    pub attr: [f64; 2],
}

/// The kernel of one (op, source dtype, destination dtype).
#[derive(Clone, Copy)]
pub struct StridedUnaryKernel {
    kernel: UnaryKernel,
    /// Whether it changes nothing: bytes are moved.
    moves: bool,
    src_size: usize,
    dst_size: usize,
}

/// The kernel of `unary::OPS[op]` from `src` to `dst`; `None` if there is none. There is one for each of
/// [`unary::rows`].
pub fn lookup(op: usize, src: DType, dst: DType) -> Option<StridedUnaryKernel> {
    let kernel = unary::lookup(op, src, dst)?;
    let moves = src == dst && ["identity", "cast"].contains(unary::OPS.get(op)?);
    Some(StridedUnaryKernel { kernel, moves, src_size: src.size()?, dst_size: dst.size()? })
}

impl StridedUnaryKernel {
    /// Computes.
    ///
    /// # Errors
    /// `InvalidArgument` for a source that does not broadcast to the destination, a destination that may have an
    /// element twice (see [`check_destination`]), strides that lead further than an address space, and more than 8
    /// dimensions; the first error of `par`.
    ///
    /// # Safety
    /// From `src` the elements that its shape and strides address are readable, from `dst` writable, with no other
    /// access until this returns; the two do not overlap.
    pub unsafe fn launch(&self, isa: Isa, par: &dyn Parallel, args: &StridedUnaryArgs<'_>) -> Result<()> {
        let StridedUnaryArgs { dst_dims, dst_strides, src, dst, attr, .. } = *args;
        let Self { kernel, src_size, dst_size, .. } = *self;
        check_destination(dst_dims, dst_strides)?;
        let src_bytes = broadcast_strides(args, src_size)?;
        let dst_bytes = to_bytes(dst_strides, dst_size)?;
        let rank = dst_dims.len();
        let walk = TensorIterator::new(dst_dims, [&dst_bytes[..rank], &src_bytes[..rank]])?;
        if walk.count() == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise; no element of the destination is reached twice, as was checked.
        unsafe {
            if self.moves {
                movement::copy(isa, par, &walk, dst_size, src, dst)
            } else {
                Map { kernel, attr, walk: &walk, src_size, dst_size, src, dst }.run(isa, par)
            }
        }
    }
}

/// The source's byte strides over the destination's dimensions: 0 where it repeats.
fn broadcast_strides(args: &StridedUnaryArgs<'_>, size: usize) -> Result<[isize; MAX_DIMS]> {
    let StridedUnaryArgs { src_dims, src_strides, dst_dims, .. } = *args;
    let bytes = to_bytes(src_strides, size)?;
    let fits = src_strides.len() == src_dims.len()
        && src_dims.len() <= dst_dims.len()
        && src_dims.iter().rev().zip(dst_dims.iter().rev()).all(|(s, d)| *s == 1 || s == d);
    if !fits {
        return Err(mismatch(args));
    }
    let mut strides = [0; MAX_DIMS];
    let skip = dst_dims.len() - src_dims.len();
    for (stride, (&dim, &byte)) in strides[skip..].iter_mut().zip(src_dims.iter().zip(&bytes)) {
        *stride = if dim == 1 { 0 } else { byte };
    }
    Ok(strides)
}

#[cold]
fn mismatch(args: &StridedUnaryArgs<'_>) -> Error {
    Error::invalid(format!(
        "a source of shape {:?} with strides {:?} does not broadcast to {:?}: aligned at the last dimension, each of \
         its sizes must be 1 or the destination's",
        args.src_dims, args.src_strides, args.dst_dims
    ))
}
