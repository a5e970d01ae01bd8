//! `memset`: by the driver.

use super::{scalar, size};
use crate::device::CudaDevice;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::primitive::{Memset, MemsetArgs, MemsetDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{Result, Scalar};

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let build = |_: &CudaDevice, _: &MemsetDesc| Ok(Setter);
    registrar.add(Factory::<Memset, _, _>::new("memset", build).capturable())
}

struct Setter;

impl Kernel<Memset, CudaDevice> for Setter {
    unsafe fn launch(&self, stream: &CudaStream, args: &MemsetArgs) -> Result<()> {
        let value = scalar::byte("value", Scalar::try_from(args.value)?)?;
        let bytes = size(args.bytes);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises the operand.
        stream
            .queue("memset", |c| unsafe { c.driver().cuMemsetD8Async(args.dst, value, bytes, stream.raw()) })
    }

    fn describe(&self) -> &str {
        "set of the driver"
    }
}
