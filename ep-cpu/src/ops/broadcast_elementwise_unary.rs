//! `broadcast_elementwise_unary`.

use super::group::groups;
use super::{Bound, destination, sizes, source, steps, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::broadcast_elementwise_unary::{self as strided, StridedUnaryArgs, StridedUnaryKernel};
use crate::kernels::unary;
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::op::view;
use ep_core::primitive::{
    BroadcastElementwiseUnary, BroadcastElementwiseUnaryArgs, BroadcastElementwiseUnaryDesc,
};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    for group in groups("strided_unary", unary::OPS, unary::rows().iter().map(|r| (r.op, r.src, r.dst))) {
        registrar.add(
            Factory::<BroadcastElementwiseUnary, _, _>::new(group.name, build)
                .selectors(group.ops.iter().map(|op| [*op as u32]))
                .dtypes(group.dtypes),
        )?;
    }
    Ok(())
}

fn build(device: &CpuDevice, desc: &BroadcastElementwiseUnaryDesc) -> Result<Unary> {
    let BroadcastElementwiseUnaryDesc { op, src, dst, attr0, attr1, .. } = *desc;
    let kernel = strided::lookup(op.0 as usize, src, dst);
    let kernel = kernel.ok_or_else(|| unclaimed::<BroadcastElementwiseUnary>(&[src, dst]))?;
    let about = "vector loop over rows, which are gathered and spread where they have gaps";
    Ok(Unary { bound: Bound::new(device, kernel, about), attr: [attr0, attr1] })
}

struct Unary {
    bound: Bound<StridedUnaryKernel>,
    attr: [f64; 2],
}

impl Kernel<BroadcastElementwiseUnary, CpuDevice> for Unary {
    unsafe fn launch(&self, _: &InlineStream, args: &BroadcastElementwiseUnaryArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (src_dims, src_strides, dst_dims, dst_strides) = unsafe {
            (
                sizes(view(args.src_dims, args.num_src_dims)),
                steps(view(args.src_strides, args.num_src_dims)),
                sizes(view(args.dst_dims, args.num_dst_dims)),
                steps(view(args.dst_strides, args.num_dst_dims)),
            )
        };
        let map = StridedUnaryArgs {
            src_dims,
            src_strides,
            dst_dims,
            dst_strides,
            src: source(args.src),
            dst: destination(args.dst),
            attr: self.attr,
        };
        // SAFETY: the caller promises both operands, which are aligned and do not overlap.
        unsafe { self.bound.kernel.launch(self.bound.isa, &self.bound.host, &map) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
