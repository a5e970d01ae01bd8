//! `constant_pad`.

use super::scalar::{Converter, Element, or_default};
use super::{Bound, destination, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::constant_pad::{self, ConstantPadFn};
use crate::provider::CpuProvider;
use ep_core::op::view;
use ep_core::primitive::{ConstantPad, ConstantPadArgs, ConstantPadDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{Result, Scalar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<ConstantPad, _, _>::new("constant_pad", build)
            .dtypes(constant_pad::rows().map(|dtype| [dtype])),
    )
}

fn build(device: &CpuDevice, desc: &ConstantPadDesc) -> Result<Padder> {
    let kernel = constant_pad::lookup(desc.data).ok_or_else(|| unclaimed::<ConstantPad>(&[desc.data]))?;
    let convert = Converter::new(desc.data)?;
    Ok(Padder {
        bound: Bound::new(device, kernel, "rows and borders put together to whole lines"),
        zero: convert.element("value", Scalar::Bool(false).into())?,
        convert,
    })
}

struct Padder {
    bound: Bound<ConstantPadFn>,
    convert: Converter,
    /// Where the launch gives no value.
    zero: Element,
}

impl Kernel<ConstantPad, CpuDevice> for Padder {
    unsafe fn launch(&self, _: &InlineStream, args: &ConstantPadArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its lists are readable during the call.
        let (src_dims, before, after) = unsafe {
            (
                view(args.src_dims, args.num_dims),
                view(args.padding_before, args.num_dims),
                view(args.padding_after, args.num_dims),
            )
        };
        let launch = constant_pad::ConstantPadArgs {
            src_dims,
            before,
            after,
            value: or_default(&self.convert, "value", args.value, self.zero)?.0,
            src: source(args.src),
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises both operands, which do not overlap.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &launch) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
