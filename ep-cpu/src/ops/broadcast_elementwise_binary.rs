//! `broadcast_elementwise_binary`.

use super::group::groups;
use super::scalar::{Converter, Element};
use super::{Bound, destination, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::binary::{self, BinaryArgs, BinaryKernel};
use crate::provider::CpuProvider;
use ep_core::abi::{EP_SCALAR_NONE, EpScalar};
use ep_core::op::view;
use ep_core::primitive::{
    BroadcastElementwiseBinary, BroadcastElementwiseBinaryArgs, BroadcastElementwiseBinaryDesc,
};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{Error, Result};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    for group in groups("binary", binary::OPS, binary::rows().iter().map(|r| (r.op, r.src, r.dst))) {
        registrar.add(
            Factory::<BroadcastElementwiseBinary, _, _>::new(group.name, build)
                .selectors(group.ops.iter().map(|op| [*op as u32]))
                .dtypes(group.dtypes),
        )?;
    }
    Ok(())
}

fn build(device: &CpuDevice, desc: &BroadcastElementwiseBinaryDesc) -> Result<Binary> {
    let BroadcastElementwiseBinaryDesc { op, src, dst, attr0, attr1, .. } = *desc;
    let kernel = binary::lookup(op.0 as usize, src, dst);
    let kernel = kernel.ok_or_else(|| unclaimed::<BroadcastElementwiseBinary>(&[src, dst]))?;
    Ok(Binary {
        bound: Bound::new(device, kernel, "vector loop over rows, repeated operands staged in cache"),
        convert: Converter::new(src)?,
        attr: [attr0, attr1],
    })
}

struct Binary {
    bound: Bound<BinaryKernel>,
    convert: Converter,
    attr: [f64; 2],
}

impl Binary {
    /// The address of a source: its own, or that of `slot`, where the scalar that stands in for it goes.
    fn operand(
        &self,
        name: &str,
        scalar: EpScalar,
        dims: &[i64],
        address: u64,
        slot: &mut Element,
    ) -> Result<*const u8> {
        if scalar.kind == EP_SCALAR_NONE {
            return Ok(source(address));
        }
        if !dims.is_empty() {
            return Err(Error::invalid(format!(
                "`{name}` stands in for a source with the shape {dims:?}; a scalar has rank 0"
            )));
        }
        *slot = self.convert.element(name, scalar)?;
        Ok(slot.0.as_ptr())
    }
}

impl Kernel<BroadcastElementwiseBinary, CpuDevice> for Binary {
    unsafe fn launch(&self, _: &InlineStream, args: &BroadcastElementwiseBinaryArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (src0_dims, src1_dims) =
            unsafe { (view(args.src0_dims, args.num_src0_dims), view(args.src1_dims, args.num_src1_dims)) };
        let mut slots = [Element([0; 16]); 2];
        let [slot0, slot1] = &mut slots;
        let map = BinaryArgs {
            src0_dims,
            src1_dims,
            src0: self.operand("scalar0", args.scalar0, src0_dims, args.src0, slot0)?,
            src1: self.operand("scalar1", args.scalar1, src1_dims, args.src1, slot1)?,
            dst: destination(args.dst),
            attr: self.attr,
        };
        // SAFETY: the caller promises the operands, which are aligned and apart or the same; scalars are one
        // element each, which no destination overlaps.
        unsafe { self.bound.kernel.launch(self.bound.isa, &self.bound.host, &map) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
