//! `memset`.

use super::{Bound, destination, scalar, size};
use crate::device::CpuDevice;
use crate::kernels::memset;
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{Memset, MemsetArgs};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let build = |device: &CpuDevice, _: &_| {
        Ok(Setter(Bound::new(device, (), "library set, streaming stores for what no cache holds")))
    };
    registrar.add(Factory::<Memset, _, _>::new("memset", build))
}

struct Setter(Bound<()>);

impl Kernel<Memset, CpuDevice> for Setter {
    unsafe fn launch(&self, _: &InlineStream, args: &MemsetArgs) -> Result<()> {
        let set = memset::MemsetArgs {
            dst: destination(args.dst),
            value: scalar::byte("value", args.value)?,
            bytes: size(args.bytes),
        };
        // SAFETY: the caller promises the operand.
        unsafe { memset::memset(self.0.isa, &self.0.host, &set) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
