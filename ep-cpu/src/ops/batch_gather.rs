//! `batch_gather`.

use super::index::{self, Reading};
use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::batch_gather::{self, BatchGatherFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{BatchGather, BatchGatherArgs, BatchGatherDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let dtypes =
        index::DTYPES.into_iter().flat_map(|indices| batch_gather::rows().map(move |data| [indices, data]));
    registrar.add(
        Factory::<BatchGather, _, _>::new("batch_gather", build).selectors(index::selectors()).dtypes(dtypes),
    )
}

fn build(device: &CpuDevice, desc: &BatchGatherDesc) -> Result<BatchGatherer> {
    let kernel = batch_gather::lookup(desc.data)
        .ok_or_else(|| unclaimed::<BatchGather>(&[desc.indices, desc.data]))?;
    Ok(BatchGatherer {
        bound: Bound::new(device, kernel, "rows copied with prefetch, or vector gathers of single elements"),
        reading: Reading::new(desc.mode, desc.indices)?,
    })
}

struct BatchGatherer {
    bound: Bound<BatchGatherFn>,
    reading: Reading,
}

impl Kernel<BatchGather, CpuDevice> for BatchGatherer {
    unsafe fn launch(&self, _: &InlineStream, args: &BatchGatherArgs) -> Result<()> {
        let launch = batch_gather::BatchGatherArgs {
            batch: size(args.batch),
            outer: size(args.outer),
            processed: size(args.processed),
            inner: size(args.inner),
            num_indices: size(args.num_indices),
            offset: size(args.offset),
            size: size(args.size),
            mode: self.reading.mode,
            indices: self.reading.at(args.indices),
            src: source(args.src),
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises the operands, which are aligned and do not overlap.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &launch) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
