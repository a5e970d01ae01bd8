//! `strided_copy`.

use super::{Bound, destination, size, sizes, source, steps, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::strided_copy::{self, StridedCopyKernel};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::op::view;
use ep_core::primitive::{StridedCopy, StridedCopyArgs, StridedCopyDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let rows = strided_copy::rows().map(|(src, dst)| [src, dst]);
    registrar.add(Factory::<StridedCopy, _, _>::new("strided_copy", build).dtypes(rows))
}

fn build(device: &CpuDevice, desc: &StridedCopyDesc) -> Result<Copier> {
    let StridedCopyDesc { src, dst, .. } = *desc;
    let kernel = strided_copy::lookup(src, dst).ok_or_else(|| unclaimed::<StridedCopy>(&[src, dst]))?;
    let algorithm = match src == dst {
        true => "copied runs, in-register transposes or two-dimensional loops over merged dimensions",
        false => "vector loop over rows, which are gathered and spread where they have gaps",
    };
    Ok(Copier(Bound::new(device, kernel, algorithm)))
}

struct Copier(Bound<StridedCopyKernel>);

impl Kernel<StridedCopy, CpuDevice> for Copier {
    unsafe fn launch(&self, _: &InlineStream, args: &StridedCopyArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (dims, src_strides, dst_strides) = unsafe {
            (
                sizes(view(args.dims, args.num_dims)),
                steps(view(args.src_strides, args.num_dims)),
                steps(view(args.dst_strides, args.num_dims)),
            )
        };
        let copy = strided_copy::StridedCopyArgs {
            dims,
            src_strides,
            dst_strides,
            src_offset: size(args.src_offset),
            dst_offset: size(args.dst_offset),
            src: source(args.src),
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises both operands, which do not overlap.
        unsafe { self.0.kernel.launch(self.0.isa, &self.0.host, &copy) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
