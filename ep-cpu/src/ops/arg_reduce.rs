//! `arg_reduce`.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::arg_reduce::{self, ArgReduceFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{ArgReduce, ArgReduceArgs, ArgReduceDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use std::collections::BTreeSet;

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let dtypes: BTreeSet<_> = arg_reduce::rows().iter().map(|r| [r.src, r.dst]).collect();
    registrar.add(
        Factory::<ArgReduce, _, _>::new("arg_reduce", build)
            .selectors((0..arg_reduce::OPS.len()).map(|op| [op as u32]))
            .dtypes(dtypes),
    )
}

fn build(device: &CpuDevice, desc: &ArgReduceDesc) -> Result<Search> {
    let ArgReduceDesc { op, src, dst, .. } = *desc;
    let kernel = arg_reduce::lookup(op.0 as usize, src, dst);
    let kernel = kernel.ok_or_else(|| unclaimed::<ArgReduce>(&[src, dst]))?;
    Ok(Search(Bound::new(device, kernel, "the extreme of each block, then its place")))
}

struct Search(Bound<ArgReduceFn>);

impl Kernel<ArgReduce, CpuDevice> for Search {
    unsafe fn launch(&self, _: &InlineStream, args: &ArgReduceArgs) -> Result<()> {
        let search = arg_reduce::ArgReduceArgs {
            outer: size(args.outer),
            reduced: size(args.reduced),
            inner: size(args.inner),
            src: source(args.src),
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises both operands, which do not overlap.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &search) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
