//! `scatter_add`.

use super::index::{self, Reading};
use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::scatter_add::{self, ScatterAddFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{ScatterAdd, ScatterAddArgs, ScatterAddDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let dtypes =
        index::DTYPES.into_iter().flat_map(|indices| scatter_add::rows().map(move |data| [indices, data]));
    registrar.add(
        Factory::<ScatterAdd, _, _>::new("scatter_add", build).selectors(index::selectors()).dtypes(dtypes),
    )
}

fn build(device: &CpuDevice, desc: &ScatterAddDesc) -> Result<Adder> {
    let kernel =
        scatter_add::lookup(desc.data).ok_or_else(|| unclaimed::<ScatterAdd>(&[desc.indices, desc.data]))?;
    Ok(Adder {
        bound: Bound::new(device, kernel, "rows added in the order of the indices"),
        reading: Reading::new(desc.mode, desc.indices)?,
    })
}

struct Adder {
    bound: Bound<ScatterAddFn>,
    reading: Reading,
}

impl Kernel<ScatterAdd, CpuDevice> for Adder {
    unsafe fn launch(&self, _: &InlineStream, args: &ScatterAddArgs) -> Result<()> {
        let launch = scatter_add::ScatterAddArgs {
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
