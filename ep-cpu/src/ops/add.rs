//! `add`.

use super::{Bound, destination, size, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::add::{self, AddFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::op::address_list;
use ep_core::primitive::{Add, AddArgs, AddDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(Factory::<Add, _, _>::new("add", build).dtypes(add::rows().map(|dtype| [dtype])))
}

fn build(device: &CpuDevice, desc: &AddDesc) -> Result<Sum> {
    let kernel = add::lookup(desc.data).ok_or_else(|| unclaimed::<Add>(&[desc.data]))?;
    Ok(Sum(Bound::new(device, kernel, "one pass over up to eight sources, blocks in cache over more")))
}

struct Sum(Bound<AddFn>);

impl Kernel<Add, CpuDevice> for Sum {
    unsafe fn launch(&self, _: &InlineStream, args: &AddArgs) -> Result<()> {
        // Where there are no elements, the list of addresses may be null, whatever its length.
        // SAFETY: the launch has been checked, and its addresses are readable during the call.
        let srcs = unsafe { address_list(args.srcs, args.arity) };
        let sum = add::AddArgs { count: size(args.count), srcs, dst: destination(args.dst) };
        // SAFETY: the caller promises the operands, which are aligned and apart from the destination or the same.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &sum) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
