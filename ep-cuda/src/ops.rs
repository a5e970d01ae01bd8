//! From the boundary to the GPU: one file for each primitive, which registers its rows and turns launch arguments
//! into those of a kernel or of a function of the driver.
//!
//! What can be decided is decided when the primitive is created. A kernel that only some launches need is loaded by
//! the first of them; after that a launch allocates nothing and looks nothing up.

mod fill;
mod matmul;
mod memcpy;
mod memset;
mod nd;
mod scalar;
pub mod softmax;
pub(crate) mod source;
mod unary;

use crate::compiler::{Arch, Spec};
use crate::provider::CudaProvider;
use ep_core::provider::Registrar;
use ep_core::{DType, Result};

/// Registers everything.
pub(crate) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    memcpy::register(registrar)?;
    memset::register(registrar)?;
    fill::register(registrar)?;
    matmul::register(registrar)?;
    softmax::register(registrar)?;
    unary::register(registrar)
}

/// The kernels that each op's rows may need on an architecture, under the op's name.
pub(crate) fn kernels(arch: Arch) -> Vec<(&'static str, Vec<Spec>)> {
    fill::kernels()
        .into_iter()
        .chain(matmul::kernels())
        .chain(softmax::kernels(arch))
        .chain(unary::kernels())
        .collect()
}

/// A dtype's name in the kernels' sources.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::BOOL => "b8",
        DType::COMPLEX64 => "c64",
        DType::COMPLEX128 => "c128",
        // The others have the same names there.
        other => other.name().unwrap_or_default(),
    }
}

/// A size of a launch, which has been checked not to be negative.
#[inline]
fn size(value: i64) -> usize {
    value as usize
}
