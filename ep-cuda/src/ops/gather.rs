//! `gather` and `batch_gather`: rows along an axis, in the largest pieces that they are multiples of.

use super::SIZES;
use super::indices::{Reading, Report, Window, divider, product, selectors, with_indices};
use super::nd::{ByIndex, FastDiv, Index};
use super::source::GATHER;
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{BatchGather, BatchGatherArgs, BatchGatherDesc, Gather, GatherArgs, GatherDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

const THREADS: u32 = 256;
/// Pieces of a thread.
const UNROLL: u32 = 4;
/// Rows of so many pieces that are not the largest are gathered by warps, where there are enough of them.
const SHORT: std::ops::RangeInclusive<u64> = 4..=64;
const MANY_ROWS: u64 = 1 << 15;

fn spec(reading: Reading, piece: u64, index: Index) -> Spec {
    reading
        .specialise(Spec::new(&GATHER))
        .with("EP_SIZE", piece)
        .with("EP_THREADS", THREADS)
        .with("EP_UNROLL", UNROLL)
        .with("EP_INDEX", index.name())
}

/// The kernels of both ops with indices of 32 bits; the others are compiled when they are needed.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 2] {
    let of_reading = |reading| SIZES.map(|piece| spec(reading, piece, Index::Narrow));
    [Gather::NAME, BatchGather::NAME].map(|name| (name, Reading::all().flat_map(of_reading).collect()))
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = || with_indices(&DType::ALL);
    let build = |device: &CudaDevice, d: &GatherDesc| {
        Gatherer::new(device, Gather::NAME, Reading { mode: d.mode, indices: d.indices }, d.data)
    };
    let factory = Factory::<Gather, _, _>::new("gather", build);
    registrar.add(factory.selectors(selectors()).dtypes(rows()).capturable())?;
    let build = |device: &CudaDevice, d: &BatchGatherDesc| {
        Gatherer::new(device, BatchGather::NAME, Reading { mode: d.mode, indices: d.indices }, d.data)
    };
    let factory = Factory::<BatchGather, _, _>::new("batch_gather", build);
    registrar.add(factory.selectors(selectors()).dtypes(rows()).capturable())
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Args {
    pieces: u64,
    per_row: FastDiv,
    num_indices: FastDiv,
    outer: FastDiv,
    window: Window,
    indices: u64,
    src: u64,
    dst: u64,
    report: Report,
    checked: u64,
    short_rows: u64,
}

// SAFETY: as `Args` of gather.cu.
unsafe impl Argument for Args {}

/// Sizes and addresses of a launch.
#[derive(Clone, Copy, Debug)]
struct Call {
    batch: i64,
    outer: i64,
    inner: i64,
    num_indices: i64,
    window: Window,
    processed: i64,
    indices: u64,
    src: u64,
    dst: u64,
}

/// The bytes of a piece, pieces of a row, pieces in all, and how many indices are checked for nothing.
#[derive(Debug, PartialEq, Eq)]
struct Pieces {
    size: u64,
    per_row: u64,
    all: u64,
    checked: u64,
}

impl Pieces {
    /// Rows that warps gather, or 0.
    fn short_rows(&self) -> u64 {
        let rows = self.all / self.per_row.max(1);
        let short = self.size < 16 && SHORT.contains(&self.per_row) && Index::of(self.all) == Index::Narrow;
        if short && rows >= MANY_ROWS { rows } else { 0 }
    }
}

impl Call {
    fn pieces(&self, size: u64) -> Result<Pieces> {
        let Call { batch, outer, inner, num_indices, processed, .. } = *self;
        let about = || {
            format!(
                "gather of {num_indices} rows of {inner} elements of {size} bytes from [{batch}, {outer}, {processed}] \
                 such rows"
            )
        };
        product(&[batch, outer, processed, inner, size as i64], about)?;
        let bytes = product(&[batch, outer, num_indices, inner, size as i64], about)?;
        let row = inner as u64 * size;
        let piece = 1 << (row | self.src | self.dst).trailing_zeros().min(4);
        let checked = if bytes == 0 { product(&[batch, num_indices], about)? } else { 0 };
        Ok(Pieces { size: piece, per_row: row / piece, all: bytes / piece, checked })
    }
}

struct Gatherer {
    name: &'static str,
    reading: Reading,
    /// By the size of a piece.
    kernels: [ByIndex; SIZES.len()],
    size: u64,
}

impl Gatherer {
    fn new(device: &CudaDevice, name: &'static str, reading: Reading, data: DType) -> Result<Gatherer> {
        let loader = device.loader()?;
        device.context()?.refusals().prepare(device.context()?)?;
        let kernels = SIZES.map(|piece| ByIndex::new(&loader, name, |index| spec(reading, piece, index)));
        Ok(Gatherer { name, reading, kernels, size: data.bytes_for_bounds() })
    }

    /// # Safety
    /// As for the op's launch: sizes are not negative, and the operands are valid for them.
    unsafe fn run(&self, stream: &CudaStream, call: Call) -> Result<()> {
        let pieces = call.pieces(self.size)?;
        let threads = pieces.all.max(pieces.checked);
        if threads == 0 {
            return Ok(());
        }
        let argument = Args {
            pieces: pieces.all,
            per_row: FastDiv::new(pieces.per_row),
            num_indices: divider(call.num_indices),
            outer: divider(call.outer),
            window: call.window,
            indices: call.indices,
            src: call.src,
            dst: call.dst,
            report: Report::of(stream, self.name, self.reading.mode, call.window)?,
            checked: pieces.checked,
            short_rows: pieces.short_rows(),
        };
        let kernels = &self.kernels[pieces.size.trailing_zeros() as usize];
        let function = kernels.get(Index::of(pieces.all))?;
        let geometry = match argument.short_rows {
            0 => Geometry::covering(threads, THREADS, UNROLL)?,
            rows => Geometry::covering(rows, THREADS, 1)?,
        };
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { function.launch(stream, geometry, &argument) }
    }
}

const ABOUT: &str = "rows in pieces of up to 16 bytes, a thread for some each";

impl Kernel<Gather, CudaDevice> for Gatherer {
    unsafe fn launch(&self, stream: &CudaStream, a: &GatherArgs) -> Result<()> {
        let call = Call {
            batch: 1,
            outer: a.outer,
            inner: a.inner,
            num_indices: a.num_indices,
            window: Window::new(a.offset, a.processed, a.size)?,
            processed: a.processed,
            indices: a.indices,
            src: a.src,
            dst: a.dst,
        };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, call) }
    }

    fn describe(&self) -> &str {
        ABOUT
    }
}

impl Kernel<BatchGather, CudaDevice> for Gatherer {
    unsafe fn launch(&self, stream: &CudaStream, a: &BatchGatherArgs) -> Result<()> {
        let call = Call {
            batch: a.batch,
            outer: a.outer,
            inner: a.inner,
            num_indices: a.num_indices,
            window: Window::new(a.offset, a.processed, a.size)?,
            processed: a.processed,
            indices: a.indices,
            src: a.src,
            dst: a.dst,
        };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, call) }
    }

    fn describe(&self) -> &str {
        ABOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    fn call(inner: i64, src: u64, dst: u64) -> Call {
        let window = Window::new(0, 4, 0).unwrap();
        Call { batch: 2, outer: 3, inner, num_indices: 5, window, processed: 4, indices: 0x100, src, dst }
    }

    #[test]
    fn rows_are_cut_into_the_largest_pieces_of_rows_and_addresses() {
        let pieces = |inner, size, src, dst| {
            let p = call(inner, src, dst).pieces(size).unwrap();
            (p.size, p.per_row, p.all, p.checked)
        };
        assert_eq!(pieces(8, 4, 0x100, 0x200), (16, 2, 60, 0));
        assert_eq!(pieces(6, 4, 0x100, 0x200), (8, 3, 90, 0));
        assert_eq!(pieces(8, 4, 0x104, 0x200), (4, 8, 240, 0));
        assert_eq!(pieces(3, 1, 0x100, 0x201), (1, 3, 90, 0));
        assert_eq!(pieces(1, 8, 0x104, 0x200), (4, 2, 60, 0), "halves of complex numbers");
        assert_eq!(pieces(0, 4, 0, 0).3, 10, "with nothing to write the indices are checked");
    }

    #[test]
    fn many_short_rows_are_gathered_by_warps() {
        let short =
            |size, per_row, rows| Pieces { size, per_row, all: per_row * rows, checked: 0 }.short_rows();
        assert_eq!((short(4, 7, 1 << 15), short(1, 64, 1 << 20)), (1 << 15, 1 << 20));
        assert_eq!((short(4, 7, (1 << 15) - 1), short(16, 7, 1 << 20)), (0, 0), "few, and whole packs");
        assert_eq!((short(4, 3, 1 << 20), short(4, 65, 1 << 20)), (0, 0), "shorter and longer ones");
        assert_eq!(short(8, 64, 1 << 25), 0, "pieces beyond 2^31");
        assert_eq!(Pieces { size: 1, per_row: 0, all: 0, checked: 5 }.short_rows(), 0);
    }

    #[test]
    fn windows_lie_within_their_axis_and_sizes_within_memory() {
        assert_eq!(Window::new(2, 3, 0).unwrap(), Window::new(2, 3, 5).unwrap());
        assert!(Window::new(2, 3, 9).is_ok());
        for (offset, length, size) in [(2, 3, 4), (i64::MAX, 1, 0)] {
            assert_eq!(Window::new(offset, length, size).unwrap_err().code(), Code::InvalidArgument);
        }
        let error = call(i64::MAX / 2, 0, 0).pieces(4).unwrap_err();
        assert!(
            error.code() == Code::InvalidArgument && error.message().contains("address space"),
            "{error}"
        );
        assert!(Call { num_indices: 0, ..call(i64::MAX / 2, 0, 0) }.pieces(4).is_err(), "a 0 hides nothing");
    }
}
