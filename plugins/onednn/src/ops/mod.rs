//! One file for each op, or family of ops that oneDNN has one primitive for.

mod layer_norm;
mod matmul;
mod split;

use crate::compiled::{Compiled, Quality, Task};
use crate::device::OnednnDevice;
use crate::engine::Engine;
use crate::provider::OnednnProvider;
use ep_core::op::Op;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};
use std::sync::Arc;

/// Elements that oneDNN computes with on CPUs; which of them on this one is tried.
const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

pub(crate) fn register(registrar: &mut Registrar<'_, OnednnProvider>, engine: &Arc<Engine>) -> Result<()> {
    matmul::register(registrar, engine)?;
    layer_norm::register(registrar, engine)
}

/// Registers a factory for these rows of dtypes, if there are any.
fn add<O: Op, K, F, const N: usize>(
    registrar: &mut Registrar<'_, OnednnProvider>,
    factory: Factory<O, OnednnDevice, F>,
    dtypes: impl IntoIterator<Item = [DType; N]>,
) -> Result<()>
where
    K: Kernel<O, OnednnDevice>,
    F: Fn(&OnednnDevice, &O::Desc) -> Result<K> + Send + Sync + 'static,
{
    let mut dtypes = dtypes.into_iter().peekable();
    if dtypes.peek().is_none() {
        return Ok(());
    }
    registrar.add(factory.dtypes(dtypes))
}

/// Whether oneDNN has an implementation for a task of a usual shape on this CPU that is more than a plain loop.
fn is_offered(engine: &Arc<Engine>, task: impl FnOnce() -> Result<Task>) -> bool {
    match task().and_then(|task| Compiled::new(engine, task)) {
        Ok(compiled) => compiled.quality() > Quality::Plain,
        Err(e) => {
            tracing::debug!("not claimed: {e}");
            false
        }
    }
}

/// A size that was checked not to be negative.
fn size(value: i64) -> u64 {
    value.unsigned_abs()
}
