//! `memcpy`: by the driver, which knows from the addresses where each side lies.

use super::size;
use crate::device::CudaDevice;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::Result;
use ep_core::primitive::{Memcpy, MemcpyArgs, MemcpyDesc, MemcpyKind};
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let kinds = [
        MemcpyKind::AUTO,
        MemcpyKind::HOST_TO_DEVICE,
        MemcpyKind::DEVICE_TO_HOST,
        MemcpyKind::DEVICE_TO_DEVICE,
    ];
    let build = |_: &CudaDevice, _: &MemcpyDesc| Ok(Copier);
    registrar
        .add(Factory::<Memcpy, _, _>::new("memcpy", build).selectors(kinds.map(|kind| [kind.0])).capturable())
}

struct Copier;

impl Kernel<Memcpy, CudaDevice> for Copier {
    unsafe fn launch(&self, stream: &CudaStream, args: &MemcpyArgs) -> Result<()> {
        let bytes = size(args.bytes);
        if bytes == 0 || args.src == args.dst {
            return Ok(());
        }
        // SAFETY: the caller promises both operands.
        stream
            .queue("memcpy", |c| unsafe { c.driver().cuMemcpyAsync(args.dst, args.src, bytes, stream.raw()) })
    }

    fn describe(&self) -> &str {
        "copy of the driver"
    }
}
