//! `reduce`.

use super::group::groups;
use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::reduce::{self, ReduceFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{Reduce, ReduceArgs, ReduceDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let mut rows: Vec<_> = reduce::rows().map(|r| (r.op, r.src, r.dst)).collect();
    rows.sort_unstable();
    for group in groups("reduce", reduce::OPS, rows.into_iter()) {
        registrar.add(
            Factory::<Reduce, _, _>::new(group.name, build)
                .selectors(group.ops.iter().map(|op| [*op as u32]))
                .dtypes(group.dtypes),
        )?;
    }
    Ok(())
}

fn build(device: &CpuDevice, desc: &ReduceDesc) -> Result<Reducer> {
    let ReduceDesc { op, src, dst, .. } = *desc;
    let kernel = reduce::lookup(op.0 as usize, src, dst).ok_or_else(|| unclaimed::<Reduce>(&[src, dst]))?;
    Ok(Reducer(Bound::new(
        device,
        kernel,
        "lanes of a row, or columns side by side, in chunks of fixed size",
    )))
}

struct Reducer(Bound<ReduceFn>);

impl Kernel<Reduce, CpuDevice> for Reducer {
    unsafe fn launch(&self, _: &InlineStream, args: &ReduceArgs) -> Result<()> {
        let reduce = reduce::ReduceArgs {
            outer: size(args.outer),
            reduced: size(args.reduced),
            inner: size(args.inner),
            src: source(args.src),
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises both operands, which do not overlap.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &reduce) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
