//! `arange`.

use super::scalar::{Converter, Element, or_default};
use super::{Bound, destination, size, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::arange::{self, ArangeKernel, Numbers};
use crate::provider::CpuProvider;
use ep_core::abi::EpScalar;
use ep_core::primitive::{Arange, ArangeArgs, ArangeDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(Factory::<Arange, _, _>::new("arange", build).dtypes(arange::rows().map(|dtype| [dtype])))
}

fn build(device: &CpuDevice, desc: &ArangeDesc) -> Result<Sequence> {
    let kernel = arange::lookup(desc.data).ok_or_else(|| unclaimed::<Arange>(&[desc.data]))?;
    let is_int = desc.data.is_int();
    Ok(Sequence {
        bound: Bound::new(device, kernel, "one multiply-add for each element"),
        convert: Converter::new(if is_int { DType::I64 } else { DType::F64 })?,
        is_int,
    })
}

struct Sequence {
    bound: Bound<ArangeKernel>,
    /// To 64 bits: an integer's or a floating-point number's.
    convert: Converter,
    is_int: bool,
}

impl Sequence {
    /// The 64 bits of a scalar, of `default` if there is none.
    fn bits(&self, name: &str, scalar: EpScalar, default: u8) -> Result<[u8; 8]> {
        let mut element = Element([0; 16]);
        let default = if self.is_int { u64::from(default) } else { f64::from(default).to_bits() };
        element.0[..8].copy_from_slice(&default.to_ne_bytes());
        let [bits, _] = or_default(&self.convert, name, scalar, element)?.halves();
        Ok(bits)
    }
}

impl Kernel<Arange, CpuDevice> for Sequence {
    unsafe fn launch(&self, _: &InlineStream, args: &ArangeArgs) -> Result<()> {
        let bits = [self.bits("start", args.start, 0)?, self.bits("step", args.step, 1)?];
        let launch = arange::ArangeArgs {
            count: size(args.count),
            numbers: Numbers { int: bits.map(u64::from_ne_bytes), float: bits.map(f64::from_ne_bytes) },
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises the operand.
        unsafe { self.bound.kernel.launch(self.bound.isa, &self.bound.host, &launch) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
