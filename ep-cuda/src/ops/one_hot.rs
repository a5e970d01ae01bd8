//! `one_hot`.

use super::indices::{Reading, Report, Window, divider, product, selectors, with_indices};
use super::nd::{ByIndex, FastDiv, Index};
use super::source::ONE_HOT;
use super::{is_loose, scalar, with_loose, with_loose_sizes};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{OneHot, OneHotArgs, OneHotDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result, Scalar};

const THREADS: u32 = 256;

fn spec(reading: Reading, size: u64, index: Index, loose: bool) -> Spec {
    let spec = reading
        .specialise(Spec::new(&ONE_HOT))
        .with("EP_SIZE", size)
        .with("EP_PACK", 16 / size)
        .with("EP_INDEX", index.name())
        .with("EP_THREADS", THREADS);
    with_loose(spec, loose)
}

/// The kernels with indices of 32 bits; the others are compiled when they are needed.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let of_reading = |reading| with_loose_sizes(|size, loose| spec(reading, size, Index::Narrow, loose));
    [(OneHot::NAME, Reading::all().flat_map(of_reading).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let factory = Factory::<OneHot, _, _>::new("one_hot", build);
    registrar.add(factory.selectors(selectors()).dtypes(with_indices(&DType::ALL)).capturable())
}

fn build(device: &CudaDevice, desc: &OneHotDesc) -> Result<Marker> {
    let loader = device.loader()?;
    device.context()?.refusals().prepare(device.context()?)?;
    let reading = Reading { mode: desc.mode, indices: desc.indices };
    let size = desc.data.bytes_for_bounds();
    let kernels = |loose| ByIndex::new(&loader, OneHot::NAME, |index| spec(reading, size, index, loose));
    Ok(Marker { reading, kernels: kernels(false), loose: kernels(true), data: desc.data })
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    num_indices: u64,
    depth: FastDiv,
    count: u64,
    window: Window,
    indices: u64,
    dst: u64,
    on: [u64; 2],
    off: [u64; 2],
    report: Report,
}

// SAFETY: as `Args` of one_hot.cu.
unsafe impl Argument for Args {}

struct Marker {
    reading: Reading,
    kernels: ByIndex,
    loose: ByIndex,
    data: DType,
}

impl Kernel<OneHot, CudaDevice> for Marker {
    unsafe fn launch(&self, stream: &CudaStream, args: &OneHotArgs) -> Result<()> {
        let value = |name, given, default| {
            let value = match Scalar::try_from(given)? {
                Scalar::None => Scalar::Bool(default),
                value => value,
            };
            scalar::element(name, value, self.data).map(scalar::words)
        };
        let (on, off) = (value("on", args.on, true)?, value("off", args.off, false)?);
        let window = Window::new(args.offset, args.depth, args.size)?;
        let size = self.data.bytes_for_bounds();
        let (num_indices, depth) = (args.num_indices, args.depth);
        let about = || format!("one_hot of {num_indices} rows of {depth} elements of {size} bytes");
        let count = product(&[num_indices, depth, size as i64], about)? / size;
        // With nothing to write there is a thread for each index, which checks it.
        let threads = if count == 0 { num_indices as u64 } else { count.div_ceil(16 / size) };
        if threads == 0 {
            return Ok(());
        }
        let argument = Args {
            num_indices: num_indices as u64,
            depth: divider(depth),
            count,
            window,
            indices: args.indices,
            dst: args.dst,
            on,
            off,
            report: Report::of(stream, OneHot::NAME, self.reading.mode, window)?,
        };
        let kernels = if is_loose(size, args.dst) { &self.loose } else { &self.kernels };
        let function = kernels.get(Index::of(count))?;
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { function.launch(stream, Geometry::covering(threads, THREADS, 1)?, &argument) }
    }

    fn describe(&self) -> &str {
        "stores of 16 bytes, an index read for each row that they touch"
    }
}
