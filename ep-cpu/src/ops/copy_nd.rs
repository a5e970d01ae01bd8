//! `copy_nd`.

use super::{Bound, destination, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::copy_nd::{self, CopyNdFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::op::view;
use ep_core::primitive::{CopyNd, CopyNdArgs, CopyNdDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(Factory::<CopyNd, _, _>::new("copy_nd", build).dtypes(copy_nd::rows().map(|dtype| [dtype])))
}

fn build(device: &CpuDevice, desc: &CopyNdDesc) -> Result<Copier> {
    let kernel = copy_nd::lookup(desc.data).ok_or_else(|| unclaimed::<CopyNd>(&[desc.data]))?;
    Ok(Copier(Bound::new(device, kernel, "copied runs over merged dimensions")))
}

struct Copier(Bound<CopyNdFn>);

impl Kernel<CopyNd, CpuDevice> for Copier {
    unsafe fn launch(&self, _: &InlineStream, args: &CopyNdArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let [dst_dims, dst_pos, src_dims, src_pos, extent] = unsafe {
            [args.dst_dims, args.dst_pos, args.src_dims, args.src_pos, args.extent]
                .map(|dims| view(dims, args.num_dims))
        };
        let (src, dst) = (source(args.src), destination(args.dst));
        let copy = copy_nd::CopyNdArgs { dst_dims, dst_pos, src_dims, src_pos, extent, src, dst };
        // SAFETY: the caller promises both operands, which do not overlap.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &copy) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
