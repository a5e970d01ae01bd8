//! `fill` and `tensor_fill`: by size of the element.

use super::source::FILL;
use super::{is_loose, scalar, size, with_loose, with_loose_sizes};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Function, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{Fill, FillArgs, FillDesc, TensorFill, TensorFillArgs, TensorFillDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result, Scalar};

const THREADS: u32 = 256;
/// Stores of 16 bytes that a thread makes.
const UNROLL: u32 = 1;

fn spec(bytes: u64, loose: bool) -> Spec {
    let spec = Spec::new(&FILL).with("EP_SIZE", bytes);
    with_loose(spec.with("EP_THREADS", THREADS).with("EP_UNROLL", UNROLL), loose)
}

/// The kernels of both ops.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 2] {
    [Fill::NAME, TensorFill::NAME].map(|name| (name, with_loose_sizes(spec)))
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = || DType::ALL.iter().map(|d| [*d]);
    let build = |device: &CudaDevice, desc: &FillDesc| Filler::new(device, Fill::NAME, desc.data);
    registrar.add(Factory::<Fill, _, _>::new("fill", build).dtypes(rows()).capturable())?;
    let build = |device: &CudaDevice, desc: &TensorFillDesc| Filler::new(device, TensorFill::NAME, desc.data);
    registrar.add(Factory::<TensorFill, _, _>::new("tensor_fill", build).dtypes(rows()).capturable())
}

/// The argument of the kernel `ep_fill`, as `Args` of fill.cu.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Args {
    /// Elements.
    pub count: u64,
    /// The address of the first one.
    pub dst: u64,
    /// The address of the value on the device, or 0.
    pub src: u64,
    /// The bytes of the value where `src` is 0.
    pub value: [u64; 2],
}

// SAFETY: as `Args` of fill.cu.
unsafe impl Argument for Args {}

struct Filler {
    dtype: DType,
    function: Function,
    loose: Lazy,
}

impl Filler {
    fn new(device: &CudaDevice, name: &'static str, dtype: DType) -> Result<Filler> {
        let (loader, bytes) = (device.loader()?, dtype.bytes_for_bounds());
        let function = Function::load(&loader, name, &spec(bytes, false))?;
        Ok(Filler { dtype, function, loose: Lazy::new(&loader, name, spec(bytes, true)) })
    }

    /// # Safety
    /// As for the op's launch.
    unsafe fn run(&self, stream: &CudaStream, args: Args) -> Result<()> {
        if args.count == 0 {
            return Ok(());
        }
        let bytes = self.dtype.bytes_for_bounds();
        // The first 16 bytes may begin before the destination.
        let packs = (args.count.saturating_mul(bytes)).saturating_add(args.dst % 16).div_ceil(16);
        let geometry = Geometry::covering(packs, THREADS, UNROLL)?;
        let function = if is_loose(bytes, args.dst | args.src) { self.loose.get()? } else { &self.function };
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { function.launch(stream, geometry, &args) }
    }
}

impl Kernel<Fill, CudaDevice> for Filler {
    unsafe fn launch(&self, stream: &CudaStream, args: &FillArgs) -> Result<()> {
        let value = scalar::element("value", Scalar::try_from(args.value)?, self.dtype)?;
        let args =
            Args { count: size(args.count) as u64, dst: args.dst, src: 0, value: scalar::words(value) };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, args) }
    }

    fn describe(&self) -> &str {
        "stores of 16 bytes"
    }
}

impl Kernel<TensorFill, CudaDevice> for Filler {
    unsafe fn launch(&self, stream: &CudaStream, args: &TensorFillArgs) -> Result<()> {
        let args = Args { count: size(args.count) as u64, dst: args.dst, src: args.src, value: [0; 2] };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, args) }
    }

    fn describe(&self) -> &str {
        "stores of 16 bytes"
    }
}
