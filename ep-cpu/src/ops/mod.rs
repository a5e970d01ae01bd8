//! From the boundary to the kernels: one file for each primitive, which registers the rows of its kernel table
//! and turns launch arguments into a kernel's.
//!
//! What can be decided is decided when the primitive is created: a launch looks nothing up and takes no lock,
//! and memory is allocated only where a kernel needs room for intermediate values.

mod add;
mod arange;
mod arg_reduce;
mod batch_gather;
mod batch_matmul;
mod broadcast_elementwise_binary;
mod broadcast_elementwise_unary;
mod broadcast_matmul;
mod cast;
mod constant_pad;
mod copy_nd;
mod elementwise_unary;
mod fill;
mod gather;
mod group;
mod index;
mod layer_norm;
mod log_softmax;
mod log_softmax_backward;
mod matmul;
mod memcpy;
mod memset;
mod one_hot;
mod permute;
mod reduce;
mod rms_norm;
mod scalar;
mod scatter_add;
mod softmax;
mod softmax_backward;
mod strided_copy;
mod tensor_fill;
mod where_;

use crate::device::CpuDevice;
use crate::isa::Isa;
use crate::provider::CpuProvider;
use ep_core::op::Op;
use ep_core::provider::{Host, Registrar};
use ep_core::{DType, Error, Result};

/// Registers everything.
pub(crate) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    memcpy::register(registrar)?;
    memset::register(registrar)?;
    fill::register(registrar)?;
    add::register(registrar)?;
    cast::register(registrar)?;
    elementwise_unary::register(registrar)?;
    broadcast_elementwise_binary::register(registrar)?;
    broadcast_elementwise_unary::register(registrar)?;
    permute::register(registrar)?;
    copy_nd::register(registrar)?;
    strided_copy::register(registrar)?;
    softmax::register(registrar)?;
    log_softmax::register(registrar)?;
    softmax_backward::register(registrar)?;
    log_softmax_backward::register(registrar)?;
    matmul::register(registrar)?;
    batch_matmul::register(registrar)?;
    gather::register(registrar)?;
    batch_gather::register(registrar)?;
    scatter_add::register(registrar)?;
    constant_pad::register(registrar)?;
    where_::register(registrar)?;
    tensor_fill::register(registrar)?;
    arange::register(registrar)?;
    one_hot::register(registrar)?;
    layer_norm::register(registrar)?;
    rms_norm::register(registrar)?;
    reduce::register(registrar)?;
    arg_reduce::register(registrar)?;
    broadcast_matmul::register(registrar)?;
    Ok(())
}

/// A kernel of a table, ready to launch.
struct Bound<K> {
    kernel: K,
    isa: Isa,
    host: Host,
    about: String,
}

impl<K> Bound<K> {
    /// `algorithm` says for people how the kernel computes.
    fn new(device: &CpuDevice, kernel: K, algorithm: &str) -> Bound<K> {
        let isa = device.isa();
        Bound { kernel, isa, host: device.host().clone(), about: format!("{isa}: {algorithm}") }
    }
}

/// The error for a request that no factory has claimed.
#[cold]
fn unclaimed<O: Op>(dtypes: &[DType]) -> Error {
    Error::unsupported(format!("{} of {dtypes:?} is not among the rows registered", O::NAME))
}

/// A size of a launch, which has been checked not to be negative.
#[inline]
fn size(value: i64) -> usize {
    value as usize
}

/// An operand that is only read.
#[inline]
fn source(address: u64) -> *const u8 {
    std::ptr::with_exposed_provenance(address as usize)
}

/// An operand that is written.
#[inline]
fn destination(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

const _: () = assert!(
    size_of::<usize>() == size_of::<i64>() && align_of::<usize>() == align_of::<i64>(),
    "sizes and strides are read where they lie"
);

/// Dimensions of a launch, which have been checked not to be negative.
#[inline]
fn sizes(dims: &[i64]) -> &[usize] {
    // SAFETY: integers of the same size and alignment.
    unsafe { std::slice::from_raw_parts(dims.as_ptr().cast(), dims.len()) }
}

/// Strides of a launch, in elements.
#[inline]
fn steps(strides: &[i64]) -> &[isize] {
    // SAFETY: integers of the same size and alignment.
    unsafe { std::slice::from_raw_parts(strides.as_ptr().cast(), strides.len()) }
}
