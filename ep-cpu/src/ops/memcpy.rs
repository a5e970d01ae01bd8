//! `memcpy`: all four kinds, since both sides are host memory.

use super::{Bound, destination, size, source};
use crate::device::CpuDevice;
use crate::kernels::memcpy;
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{Memcpy, MemcpyArgs, MemcpyKind};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let kinds = [
        MemcpyKind::AUTO,
        MemcpyKind::HOST_TO_DEVICE,
        MemcpyKind::DEVICE_TO_HOST,
        MemcpyKind::DEVICE_TO_DEVICE,
    ];
    let build = |device: &CpuDevice, _: &_| {
        Ok(Copier(Bound::new(device, (), "library copy, streaming stores for what no cache holds")))
    };
    registrar.add(Factory::<Memcpy, _, _>::new("memcpy", build).selectors(kinds.map(|kind| [kind.0])))
}

struct Copier(Bound<()>);

impl Kernel<Memcpy, CpuDevice> for Copier {
    unsafe fn launch(&self, _: &InlineStream, args: &MemcpyArgs) -> Result<()> {
        let copy =
            memcpy::MemcpyArgs { dst: destination(args.dst), src: source(args.src), bytes: size(args.bytes) };
        // SAFETY: the caller promises both operands.
        unsafe { memcpy::memcpy(self.0.isa, &self.0.host, &copy) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
