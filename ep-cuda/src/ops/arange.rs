//! `arange`.

use super::source::ARANGE;
use super::{dtype_name, scalar, size};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Function, Geometry};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::abi::EpScalar;
use ep_core::op::Op;
use ep_core::primitive::{Arange, ArangeArgs, ArangeDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result, Scalar};

const THREADS: u32 = 256;

fn spec(dtype: DType) -> Spec {
    Spec::new(&ARANGE)
        .with("EP_DATA", dtype_name(dtype))
        .with("EP_PACK", 16 / dtype.bytes_for_bounds())
        .with("EP_THREADS", THREADS)
}

/// Its dtypes: all numbers that are real.
fn dtypes() -> Vec<DType> {
    [DType::INT, DType::FLOAT].concat()
}

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    [(Arange::NAME, dtypes().into_iter().map(spec).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = dtypes().into_iter().map(|d| [d]);
    registrar.add(Factory::<Arange, _, _>::new("arange", build).dtypes(rows).capturable())
}

fn build(device: &CudaDevice, desc: &ArangeDesc) -> Result<Sequence> {
    let function = Function::load(&device.loader()?, Arange::NAME, &spec(desc.data))?;
    Ok(Sequence { function, bytes: desc.data.bytes_for_bounds(), is_int: desc.data.is_int() })
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    count: u64,
    dst: u64,
    start: u64,
    step: u64,
}

// SAFETY: as `Args` of arange.cu.
unsafe impl Argument for Args {}

struct Sequence {
    function: Function,
    bytes: u64,
    is_int: bool,
}

impl Sequence {
    /// The 64 bits of a scalar, of `default` if there is none: an integer's or a floating-point number's.
    fn bits(&self, name: &str, scalar: EpScalar, default: i64) -> Result<u64> {
        let value = match Scalar::try_from(scalar)? {
            Scalar::None => Scalar::I64(default),
            value => value,
        };
        let dtype = if self.is_int { DType::I64 } else { DType::F64 };
        let [bits, _] = scalar::words(scalar::element(name, value, dtype)?);
        Ok(bits)
    }
}

impl Kernel<Arange, CudaDevice> for Sequence {
    unsafe fn launch(&self, stream: &CudaStream, args: &ArangeArgs) -> Result<()> {
        let (start, step) = (self.bits("start", args.start, 0)?, self.bits("step", args.step, 1)?);
        let count = size(args.count) as u64;
        if count == 0 {
            return Ok(());
        }
        if count.checked_mul(self.bytes).is_none_or(|n| n > i64::MAX as u64) {
            return Err(Error::invalid(format!(
                "arange of {count} elements of {} bytes: no address space holds that",
                self.bytes
            )));
        }
        // One pack more where the first begins before the destination.
        let packs = count.div_ceil(16 / self.bytes) + 1;
        let argument = Args { count, dst: args.dst, start, step };
        // SAFETY: the operand is valid as the caller promises, and this is the kernel's argument.
        unsafe { self.function.launch(stream, Geometry::covering(packs, THREADS, 1)?, &argument) }
    }

    fn describe(&self) -> &str {
        "one multiply-add for each element, stores of 16 bytes"
    }
}
