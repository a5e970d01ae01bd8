//! `softmax_backward`, and what `log_softmax_backward` shares with it.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::softmax_backward::{self, BackwardArgs, BackwardFn};
use crate::provider::CpuProvider;
use ep_core::op::Op;
use ep_core::primitive::{SoftmaxBackward, SoftmaxBackwardArgs, SoftmaxBackwardDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<SoftmaxBackward, _, _>::new("softmax_backward", build)
            .dtypes(softmax_backward::rows().map(|(src, dst)| [src, dst])),
    )
}

fn build(device: &CpuDevice, desc: &SoftmaxBackwardDesc) -> Result<Gradients> {
    Gradients::new::<SoftmaxBackward>(device, softmax_backward::lookup, [desc.src, desc.dst])
}

/// A kernel over the columns of two tensors `[rows, cols, inner]`.
pub(super) struct Gradients(Bound<BackwardFn>);

impl Gradients {
    pub(super) fn new<O: Op>(
        device: &CpuDevice,
        lookup: fn(DType, DType) -> Option<BackwardFn>,
        [src, dst]: [DType; 2],
    ) -> Result<Gradients> {
        let kernel = lookup(src, dst).ok_or_else(|| unclaimed::<O>(&[src, dst]))?;
        Ok(Gradients(Bound::new(device, kernel, "two passes, the second over rows in cache")))
    }

    /// `operands` are y, dy and dx.
    ///
    /// # Safety
    /// As for the op's launch: sizes are not negative, and the operands are valid for them.
    #[inline]
    pub(super) unsafe fn run(&self, [rows, cols, inner]: [i64; 3], operands: [u64; 3]) -> Result<()> {
        let [y, dy, dx] = operands;
        let args = BackwardArgs {
            rows: size(rows),
            cols: size(cols),
            inner: size(inner).max(1),
            y: source(y),
            dy: source(dy),
            dx: destination(dx),
        };
        // SAFETY: the caller promises the operands, which are aligned, and dx apart or, of one element size, the same.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &args) }
    }

    pub(super) fn about(&self) -> &str {
        &self.0.about
    }
}

impl Kernel<SoftmaxBackward, CpuDevice> for Gradients {
    unsafe fn launch(&self, _: &InlineStream, args: &SoftmaxBackwardArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run([args.rows, args.cols, args.inner], [args.y, args.dy, args.dx]) }
    }

    fn describe(&self) -> &str {
        self.about()
    }
}
