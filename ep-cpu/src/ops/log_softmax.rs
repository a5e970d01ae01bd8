//! `log_softmax`.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::log_softmax::{self, RowsArgs, RowsFn};
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
    let LogSoftmaxDesc { src, dst, .. } = *desc;
    let kernel = log_softmax::lookup(src, dst).ok_or_else(|| unclaimed::<LogSoftmax>(&[src, dst]))?;
    Ok(Rows(Bound::new(device, kernel, "three passes over each row in cache")))
}

struct Rows(Bound<RowsFn>);

impl Kernel<LogSoftmax, CpuDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &LogSoftmaxArgs) -> Result<()> {
        let rows = RowsArgs {
            rows: size(args.rows),
            cols: size(args.cols),
            src: source(args.src),
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises both operands, which are aligned and apart or, of one element size, the same.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &rows) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
