//! `gather`.

use super::index::{self, Reading};
use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::gather::{self, GatherFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{Gather, GatherArgs, GatherDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let dtypes =
        index::DTYPES.into_iter().flat_map(|indices| gather::rows().map(move |data| [indices, data]));
    registrar.add(Factory::<Gather, _, _>::new("gather", build).selectors(index::selectors()).dtypes(dtypes))
}

fn build(device: &CpuDevice, desc: &GatherDesc) -> Result<Gatherer> {
    let kernel = gather::lookup(desc.data).ok_or_else(|| unclaimed::<Gather>(&[desc.indices, desc.data]))?;
    Ok(Gatherer {
        bound: Bound::new(device, kernel, "rows copied with prefetch, or vector gathers of single elements"),
        reading: Reading::new(desc.mode, desc.indices)?,
    })
}

struct Gatherer {
    bound: Bound<GatherFn>,
    reading: Reading,
}

impl Kernel<Gather, CpuDevice> for Gatherer {
    unsafe fn launch(&self, _: &InlineStream, args: &GatherArgs) -> Result<()> {
        let launch = gather::GatherArgs {
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
