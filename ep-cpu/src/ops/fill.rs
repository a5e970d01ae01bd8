//! `fill`.

use super::scalar::Converter;
use super::{Bound, destination, size, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::fill::{self, FillFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{Fill, FillArgs, FillDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(Factory::<Fill, _, _>::new("fill", build).dtypes(fill::rows().map(|dtype| [dtype])))
}

fn build(device: &CpuDevice, desc: &FillDesc) -> Result<Filler> {
    let kernel = fill::lookup(desc.data).ok_or_else(|| unclaimed::<Fill>(&[desc.data]))?;
    let convert = Converter::new(desc.data)?;
    Ok(Filler {
        bound: Bound::new(
            device,
            kernel,
            "repeated 64-byte pattern, streaming stores for what no cache holds",
        ),
        convert,
    })
}

struct Filler {
    bound: Bound<FillFn>,
    convert: Converter,
}

impl Kernel<Fill, CpuDevice> for Filler {
    unsafe fn launch(&self, _: &InlineStream, args: &FillArgs) -> Result<()> {
        let fill = fill::FillArgs {
            dst: destination(args.dst),
            count: size(args.count),
            value: self.convert.element("value", args.value)?.0,
        };
        // SAFETY: the caller promises the operand.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &fill) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
