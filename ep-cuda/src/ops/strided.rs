//! What strided views of a launch have to be checked for, and the walk over them.

use ep_core::op::MAX_DIMS;
use ep_core::{Error, Result};
use primitives::strided_copy::check_destination;
use primitives::tensor_iterator::TensorIterator;

/// Sizes or strides of a launch, which has been checked to have at most [`MAX_DIMS`] of them.
#[derive(Clone, Copy)]
pub(super) struct Few<T> {
    values: [T; MAX_DIMS],
    len: usize,
}

impl<T: Copy + Default> Few<T> {
    fn new(values: &[i64], convert: impl Fn(i64) -> T) -> Few<T> {
        let mut few = Few { values: [T::default(); MAX_DIMS], len: values.len().min(MAX_DIMS) };
        few.values.iter_mut().zip(values).for_each(|(to, from)| *to = convert(*from));
        few
    }
}

/// Dimensions, which are not negative.
pub(super) fn sizes(dims: &[i64]) -> Few<usize> {
    Few::new(dims, |n| n as usize)
}

/// Strides in elements.
pub(super) fn steps(strides: &[i64]) -> Few<isize> {
    Few::new(strides, |n| n as isize)
}

impl<T> std::ops::Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[..self.len]
    }
}

/// Strides in bytes: 0 of dimensions along which there is no step.
///
/// # Errors
/// `InvalidArgument` where one leads further than an address space.
pub(super) fn to_bytes(dims: &[usize], strides: &[isize], size: u64) -> Result<Few<isize>> {
    let mut few = Few { values: [0; MAX_DIMS], len: strides.len().min(MAX_DIMS) };
    if dims.contains(&0) {
        return Ok(few);
    }
    for ((byte, stride), _) in few.values.iter_mut().zip(strides).zip(dims).filter(|(_, dim)| **dim > 1) {
        *byte = stride.checked_mul(size as isize).ok_or_else(|| {
            Error::invalid(format!(
                "strides {strides:?} of elements of {size} bytes lead further than an address space; strides count \
                 elements"
            ))
        })?;
    }
    Ok(few)
}

/// The simplified walk over destination and source, which have one shape. Strides count elements, and `bytes` are those
/// of the elements.
///
/// # Errors
/// `InvalidArgument` for a destination that may address an element twice, and for views that no address space holds.
pub(super) fn walk(dims: &[usize], [dst, src]: [&[isize]; 2], bytes: [u64; 2]) -> Result<TensorIterator<2>> {
    check_destination(dims, dst)?;
    let (dst, src) = (to_bytes(dims, dst, bytes[0])?, to_bytes(dims, src, bytes[1])?);
    TensorIterator::new(dims, [&dst, &src])
}

/// The addresses where a walk begins.
pub(super) fn starts(walk: &TensorIterator<2>, addresses: [u64; 2]) -> [u64; 2] {
    let starts = walk.starts();
    [0, 1].map(|k| addresses[k].wrapping_add_signed(starts[k] as i64))
}
