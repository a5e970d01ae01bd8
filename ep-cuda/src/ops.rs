//! From the boundary to the GPU: one file for each primitive, which registers its rows and turns launch arguments
//! into those of a kernel or of a function of the driver.
//!
//! What can be decided is decided when the primitive is created. A kernel that only some launches need is loaded by
//! the first of them; after that a launch allocates nothing and looks nothing up.

mod fill;
mod memcpy;
mod memset;
mod scalar;

use crate::compiler::{Arch, Spec};
use crate::provider::CudaProvider;
use ep_core::Result;
use ep_core::provider::Registrar;

/// Registers everything.
pub(crate) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    memcpy::register(registrar)?;
    memset::register(registrar)?;
    fill::register(registrar)?;
    Ok(())
}

/// The kernels that each op's rows may need on an architecture, under the op's name.
pub(crate) fn kernels(_arch: Arch) -> Vec<(&'static str, Vec<Spec>)> {
    Vec::new()
}

/// A size of a launch, which has been checked not to be negative.
#[inline]
fn size(value: i64) -> usize {
    value as usize
}
