//! `where`.

use super::{Bound, destination, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::where_::{self, WhereKernel};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::op::view;
use ep_core::primitive::{Where, WhereArgs, WhereDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<Where, _, _>::new("where", build).dtypes(where_::rows().map(|(cond, data)| [cond, data])),
    )
}

fn build(device: &CpuDevice, desc: &WhereDesc) -> Result<Chooser> {
    let kernel = where_::lookup(desc.cond, desc.data);
    let kernel = kernel.ok_or_else(|| unclaimed::<Where>(&[desc.cond, desc.data]))?;
    Ok(Chooser(Bound::new(device, kernel, "vector loop over blocks, repeated operands staged in cache")))
}

struct Chooser(Bound<WhereKernel>);

impl Kernel<Where, CpuDevice> for Chooser {
    unsafe fn launch(&self, _: &InlineStream, args: &WhereArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let launch = unsafe {
            where_::WhereArgs {
                cond_dims: view(args.cond_dims, args.num_cond_dims),
                x_dims: view(args.x_dims, args.num_x_dims),
                y_dims: view(args.y_dims, args.num_y_dims),
                cond: source(args.cond),
                x: source(args.x),
                y: source(args.y),
                dst: destination(args.dst),
            }
        };
        // SAFETY: the caller promises the operands, which are apart from the destination or the same.
        unsafe { self.0.kernel.launch(self.0.isa, &self.0.host, &launch) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
