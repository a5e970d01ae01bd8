//! From the boundary to the kernels: one file for each primitive, which registers the rows of its kernel table
//! and turns launch arguments into a kernel's.
//!
//! What can be decided is decided when the primitive is created: a launch looks nothing up and takes no lock,
//! and memory is allocated only where a kernel needs room for intermediate values.

mod batch_matmul;
mod broadcast_elementwise_binary;
mod broadcast_matmul;
mod cast;
mod elementwise_unary;
mod fill;
mod group;
mod log_softmax;
mod matmul;
mod memcpy;
mod memset;
mod permute;
mod scalar;
mod softmax;

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
    cast::register(registrar)?;
    elementwise_unary::register(registrar)?;
    broadcast_elementwise_binary::register(registrar)?;
    permute::register(registrar)?;
    softmax::register(registrar)?;
    log_softmax::register(registrar)?;
    matmul::register(registrar)?;
    batch_matmul::register(registrar)?;
    broadcast_matmul::register(registrar)
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
