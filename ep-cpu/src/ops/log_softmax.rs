//! `log_softmax`.

use super::softmax::Rows;
use crate::device::CpuDevice;
use crate::kernels::log_softmax;
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{LogSoftmax, LogSoftmaxArgs, LogSoftmaxDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<LogSoftmax, _, _>::new("log_softmax", build)
            .dtypes(log_softmax::rows().map(|(src, dst)| [src, dst])),
    )
}

fn build(device: &CpuDevice, desc: &LogSoftmaxDesc) -> Result<Rows> {
    Rows::new::<LogSoftmax>(device, log_softmax::lookup, [desc.src, desc.dst])
}

impl Kernel<LogSoftmax, CpuDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &LogSoftmaxArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run([args.rows, args.cols, args.inner], args.src, args.dst) }
    }

    fn describe(&self) -> &str {
        self.about()
    }
}
