//! `scatter_add`: each block owns a part of the destination and adds what all indices bring to it, in their order.

use super::indices::{MODES, Reading, Report, Window, product, selectors, with_indices};
use super::source::SCATTER_ADD;
use super::{dtype_name, unsigned};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{ScatterAdd, ScatterAddArgs, ScatterAddDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

const THREADS: u32 = 256;
/// Bytes that a block's part of the destination takes in shared memory.
const PART_BYTES: u64 = 16 << 10;
const MAX_GRID: u64 = 1 << 30;

/// Elements of a block's part.
fn volume(dtype: DType) -> u64 {
    // Halves are added in f32.
    PART_BYTES / dtype.bytes_for_bounds().max(4)
}

fn spec(indices: DType, data: DType) -> Spec {
    // Integers wrap: the sum does not depend on the sign.
    Spec::new(&SCATTER_ADD)
        .with("EP_DATA", dtype_name(unsigned(data)))
        .with("EP_INDICES", dtype_name(indices))
        .with("EP_THREADS", THREADS)
        .with("EP_VOLUME", volume(data))
}

/// All but bool.
fn dtypes() -> Vec<[DType; 2]> {
    with_indices(&[DType::INT, DType::FLOAT, DType::COMPLEX].concat())
}

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    [(ScatterAdd::NAME, dtypes().into_iter().map(|[indices, data]| spec(indices, data)).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let factory = Factory::<ScatterAdd, _, _>::new("scatter_add", build);
    registrar.add(factory.selectors(selectors()).dtypes(dtypes()).capturable())
}

fn build(device: &CudaDevice, desc: &ScatterAddDesc) -> Result<Adder> {
    device.context()?.refusals().prepare(device.context()?)?;
    Ok(Adder {
        kernel: Lazy::new(&device.loader()?, ScatterAdd::NAME, spec(desc.indices, desc.data)),
        reading: Reading { mode: desc.mode, indices: desc.indices },
        data: desc.data,
    })
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Args {
    outer: u64,
    processed: u64,
    inner: u64,
    num_indices: u64,
    window: Window,
    indices: u64,
    src: u64,
    dst: u64,
    report: Report,
    mode: u64,
    blocks_per_outer: u64,
}

// SAFETY: as `Args` of scatter_add.cu.
unsafe impl Argument for Args {}

struct Adder {
    kernel: Lazy,
    reading: Reading,
    data: DType,
}

impl Kernel<ScatterAdd, CudaDevice> for Adder {
    unsafe fn launch(&self, stream: &CudaStream, args: &ScatterAddArgs) -> Result<()> {
        let ScatterAddArgs { outer, processed, inner, num_indices, offset, size, .. } = *args;
        let window = Window::new(offset, processed, size)?;
        let bytes = self.data.bytes_for_bounds();
        let about = || {
            format!(
                "scatter_add of [{outer}, {num_indices}] rows of {inner} elements of {bytes} bytes to [{outer}, \
                 {processed}]"
            )
        };
        let dst = product(&[outer, processed, inner, bytes as i64], about)?;
        let src = product(&[outer, num_indices, inner, bytes as i64], about)?;
        if num_indices == 0 {
            return Ok(());
        }
        // With nothing to add the indices are checked all the same.
        let adds = dst > 0 && src > 0;
        let blocks_per_outer =
            if adds { (processed as u64 * inner as u64).div_ceil(volume(self.data)) } else { 0 };
        let blocks = if adds {
            blocks_per_outer.saturating_mul(outer as u64)
        } else {
            (num_indices as u64).div_ceil(u64::from(THREADS))
        };
        let mode = MODES.iter().position(|(mode, _)| *mode == self.reading.mode).unwrap_or(0) as u64;
        let argument = Args {
            outer: outer as u64,
            processed: processed as u64,
            inner: inner as u64,
            num_indices: num_indices as u64,
            window,
            indices: args.indices,
            src: args.src,
            dst: args.dst,
            report: Report::of(stream, ScatterAdd::NAME, self.reading.mode, window)?,
            mode,
            blocks_per_outer,
        };
        let geometry = Geometry::linear(blocks.min(MAX_GRID) as u32, THREADS);
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { self.kernel.get()?.launch(stream, geometry, &argument) }
    }

    fn describe(&self) -> &str {
        "a block for each part of the destination, which goes over all indices in their order"
    }
}
