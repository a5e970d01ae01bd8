//! `fill`: elements of up to 4 bytes by the driver.

use super::{scalar, size};
use crate::device::CudaDevice;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::primitive::{Fill, FillArgs, FillDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result, Scalar};

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let small = DType::ALL.iter().filter(|d| d.bytes_for_bounds() <= 4);
    let build = |_: &CudaDevice, desc: &FillDesc| Ok(Filler { dtype: desc.data });
    registrar.add(Factory::<Fill, _, _>::new("fill.small", build).dtypes(small.map(|d| [*d])).capturable())
}

struct Filler {
    dtype: DType,
}

impl Kernel<Fill, CudaDevice> for Filler {
    unsafe fn launch(&self, stream: &CudaStream, args: &FillArgs) -> Result<()> {
        let value = scalar::element("value", Scalar::try_from(args.value)?, self.dtype)?;
        let count = size(args.count);
        if count == 0 {
            return Ok(());
        }
        let (dst, raw) = (args.dst, stream.raw());
        let [a, b, c, d, ..] = value;
        // SAFETY: the caller promises the operand.
        stream.queue("fill", |context| unsafe {
            let driver = context.driver();
            match self.dtype.bytes_for_bounds() {
                1 => driver.cuMemsetD8Async(dst, a, count, raw),
                2 => driver.cuMemsetD16Async(dst, u16::from_ne_bytes([a, b]), count, raw),
                _ => driver.cuMemsetD32Async(dst, u32::from_ne_bytes([a, b, c, d]), count, raw),
            }
        })
    }

    fn describe(&self) -> &str {
        "set of the driver"
    }
}
