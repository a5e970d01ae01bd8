//! `elementwise_unary`.

use super::group::groups;
use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::unary::{self, UnaryArgs, UnaryKernel};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    for group in groups("unary", unary::OPS, unary::rows().iter().map(|r| (r.op, r.src, r.dst))) {
        registrar.add(
            Factory::<ElementwiseUnary, _, _>::new(group.name, build)
                .selectors(group.ops.iter().map(|op| [*op as u32]))
                .dtypes(group.dtypes),
        )?;
    }
    Ok(())
}

fn build(device: &CpuDevice, desc: &ElementwiseUnaryDesc) -> Result<Unary> {
    let ElementwiseUnaryDesc { op, src, dst, attr0, attr1, .. } = *desc;
    let kernel = unary::lookup(op.0 as usize, src, dst);
    let kernel = kernel.ok_or_else(|| unclaimed::<ElementwiseUnary>(&[src, dst]))?;
    Ok(Unary { bound: Bound::new(device, kernel, "vector loop over chunks"), attr: [attr0, attr1] })
}

struct Unary {
    bound: Bound<UnaryKernel>,
    attr: [f64; 2],
}

impl Kernel<ElementwiseUnary, CpuDevice> for Unary {
    unsafe fn launch(&self, _: &InlineStream, args: &ElementwiseUnaryArgs) -> Result<()> {
        let map = UnaryArgs {
            count: size(args.count),
            src: source(args.src),
            dst: destination(args.dst),
            attr: self.attr,
        };
        // SAFETY: the caller promises both operands, which are aligned and apart or the same.
        unsafe { self.bound.kernel.launch(self.bound.isa, &self.bound.host, &map) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
