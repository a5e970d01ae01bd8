//! `tensor_fill`.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::tensor_fill::{self, TensorFillFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{TensorFill, TensorFillArgs, TensorFillDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<TensorFill, _, _>::new("tensor_fill", build)
            .dtypes(tensor_fill::rows().map(|dtype| [dtype])),
    )
}

fn build(device: &CpuDevice, desc: &TensorFillDesc) -> Result<Filler> {
    let kernel = tensor_fill::lookup(desc.data).ok_or_else(|| unclaimed::<TensorFill>(&[desc.data]))?;
    Ok(Filler(Bound::new(device, kernel, "the element as a pattern, as in fill")))
}

struct Filler(Bound<TensorFillFn>);

impl Kernel<TensorFill, CpuDevice> for Filler {
    unsafe fn launch(&self, _: &InlineStream, args: &TensorFillArgs) -> Result<()> {
        let launch = tensor_fill::TensorFillArgs {
            count: size(args.count),
            src: source(args.src),
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises both operands.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &launch) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
