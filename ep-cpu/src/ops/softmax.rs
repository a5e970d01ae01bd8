//! `softmax`, and what `log_softmax` shares with it.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::softmax::{self, RowsArgs, RowsFn};
use crate::provider::CpuProvider;
use ep_core::op::Op;
use ep_core::primitive::{Softmax, SoftmaxArgs, SoftmaxDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<Softmax, _, _>::new("softmax", build).dtypes(softmax::rows().map(|(src, dst)| [src, dst])),
    )
}

fn build(device: &CpuDevice, desc: &SoftmaxDesc) -> Result<Rows> {
    Rows::new::<Softmax>(device, softmax::lookup, [desc.src, desc.dst])
}

/// A kernel over the columns of a tensor `[rows, cols, inner]`.
pub(super) struct Rows(Bound<RowsFn>);

impl Rows {
    pub(super) fn new<O: Op>(
        device: &CpuDevice,
        lookup: fn(DType, DType) -> Option<RowsFn>,
        [src, dst]: [DType; 2],
    ) -> Result<Rows> {
        let kernel = lookup(src, dst).ok_or_else(|| unclaimed::<O>(&[src, dst]))?;
        Ok(Rows(Bound::new(device, kernel, "exponentials in cache, memory read and written once")))
    }

    /// # Safety
    /// As for the op's launch: sizes are not negative, and both operands are valid for them.
    #[inline]
    pub(super) unsafe fn run(&self, [rows, cols, inner]: [i64; 3], src: u64, dst: u64) -> Result<()> {
        let args = RowsArgs {
            rows: size(rows),
            cols: size(cols),
            inner: size(inner).max(1),
            src: source(src),
            dst: destination(dst),
        };
        // SAFETY: the caller promises both operands, which are aligned and apart or, of one element size, the same.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &args) }
    }

    pub(super) fn about(&self) -> &str {
        &self.0.about
    }
}

impl Kernel<Softmax, CpuDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &SoftmaxArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run([args.rows, args.cols, args.inner], args.src, args.dst) }
    }

    fn describe(&self) -> &str {
        self.about()
    }
}
