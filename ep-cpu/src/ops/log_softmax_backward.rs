//! `log_softmax_backward`.

use super::softmax_backward::Gradients;
use crate::device::CpuDevice;
use crate::kernels::log_softmax_backward;
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{LogSoftmaxBackward, LogSoftmaxBackwardArgs, LogSoftmaxBackwardDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<LogSoftmaxBackward, _, _>::new("log_softmax_backward", build)
            .dtypes(log_softmax_backward::rows().map(|(src, dst)| [src, dst])),
    )
}

fn build(device: &CpuDevice, desc: &LogSoftmaxBackwardDesc) -> Result<Gradients> {
    Gradients::new::<LogSoftmaxBackward>(device, log_softmax_backward::lookup, [desc.src, desc.dst])
}

impl Kernel<LogSoftmaxBackward, CpuDevice> for Gradients {
    unsafe fn launch(&self, _: &InlineStream, args: &LogSoftmaxBackwardArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run([args.rows, args.cols, args.inner], [args.y, args.dy, args.dx]) }
    }

    fn describe(&self) -> &str {
        self.about()
    }
}
