//! `layer_norm`.

use super::matmul::Float;
use super::split::part;
use super::{FLOATS, add, is_offered, size};
use crate::compiled::{Compiled, Kept, Layout, Task};
use crate::device::OnednnDevice;
use crate::engine::{Engine, Lease};
use crate::provider::OnednnProvider;
use ep_core::parallel::Parallel;
use ep_core::primitive::{LayerNorm, LayerNormArgs, LayerNormDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Host, Kernel, Registrar};
use ep_core::{DType, Result};
use half::{bf16, f16};
use std::sync::Arc;

/// Elements that are worth another thread.
const GRAIN: u64 = 16 << 10;

pub(super) fn register(registrar: &mut Registrar<'_, OnednnProvider>, engine: &Arc<Engine>) -> Result<()> {
    let shape = Shape { rows: 32, cols: 256, scale: true, shift: true };
    let offered = |dtype: &DType| is_offered(engine, || shape.task(engine, *dtype, 1e-5));
    let dtypes = FLOATS.into_iter().filter(offered).map(|data| [data, DType::F32]);
    let build = |device: &OnednnDevice, d: &LayerNormDesc| Ok(Norm::new(device, d.data, d.epsilon as f32));
    add(registrar, Factory::<LayerNorm, _, _>::new("layer_norm", build), dtypes)
}

/// All that decides which primitive of the library rows are computed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    rows: u64,
    cols: u64,
    scale: bool,
    shift: bool,
}

impl Shape {
    fn task(&self, engine: &Engine, data: DType, epsilon: f32) -> Result<Task> {
        let Shape { rows, cols, scale, shift } = *self;
        let dense = |dtype, dims: &[u64]| Layout::dense(engine, dtype, dims);
        let rows_by_cols = [rows, cols];
        let layouts = [dense(data, &rows_by_cols)?, dense(data, &rows_by_cols)?, dense(DType::F32, &[rows])?];
        Ok(Task::LayerNorm { layouts, vector: dense(DType::F32, &[cols])?, epsilon, scale, shift })
    }
}

/// The primitive.
struct Norm {
    engine: Arc<Engine>,
    host: Host,
    data: DType,
    epsilon: f32,
    kept: Kept<Shape>,
    about: String,
}

impl Norm {
    fn new(device: &OnednnDevice, data: DType, epsilon: f32) -> Norm {
        let engine = device.engine().clone();
        let about = format!("oneDNN {}, compiled for each shape", engine.library().version());
        Norm { engine, host: device.host().clone(), data, epsilon, kept: Kept::default(), about }
    }

    /// A vector in f32, as the library takes gamma and beta: where it is, or a copy.
    ///
    /// # Safety
    /// `count` elements at `address` are readable.
    unsafe fn widened(&self, address: u64, count: u64) -> Result<(u64, Option<Lease<'_>>)> {
        if address == 0 || self.data == DType::F32 {
            return Ok((address, None));
        }
        let lease = self.engine.scratch(count as usize * size_of::<f32>())?;
        // SAFETY: as the caller promises, and the copy has room.
        unsafe {
            match self.data {
                DType::F16 => widen::<f16>(address, lease.start().cast(), count as usize),
                _ => widen::<bf16>(address, lease.start().cast(), count as usize),
            }
        }
        Ok((lease.start().expose_provenance() as u64, Some(lease)))
    }

    /// # Safety
    /// As for the launch.
    unsafe fn run(&self, args: &LayerNormArgs) -> Result<()> {
        let (rows, cols) = (size(args.rows), size(args.cols));
        if rows == 0 {
            return Ok(());
        }
        if cols == 0 {
            for address in [args.mean, args.rstd].into_iter().filter(|address| *address != 0) {
                // SAFETY: the caller's promise.
                unsafe { statistics(address, rows) }.fill(f32::NAN);
            }
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let (gamma, beta) = unsafe { (self.widened(args.gamma, cols)?, self.widened(args.beta, cols)?) };
        // The library writes both statistics, also where nobody asked.
        let missing = |address: u64| if address == 0 { rows as usize * size_of::<f32>() } else { 0 };
        let (mean, variance) =
            (self.engine.scratch(missing(args.mean))?, self.engine.scratch(missing(args.rstd))?);
        let place = |address: u64, lease: &Lease<'_>| {
            if address == 0 { lease.start().expose_provenance() as u64 } else { address }
        };
        let (mean, variance) = (place(args.mean, &mean), place(args.rstd, &variance));
        let vectors: Vec<u64> = [gamma.0, beta.0].into_iter().filter(|address| *address != 0).collect();
        let parts = self.engine.parts(&self.host, rows.saturating_mul(cols) / GRAIN).min(rows);
        let bytes = self.data.bytes_for_bounds();
        self.host.parallel_for(parts as usize, 1, parts as usize, &|range| {
            for index in range {
                let part = part(rows, parts, 1, index as u64);
                let count = part.end - part.start;
                let shape = Shape { rows: count, cols, scale: args.gamma != 0, shift: args.beta != 0 };
                let make = || Compiled::new(&self.engine, shape.task(&self.engine, self.data, self.epsilon)?);
                let compiled = self.kept.get(shape, make)?;
                let (elements, four) = (part.start * cols * bytes, part.start * 4);
                let addresses = [args.src + elements, args.dst + elements, mean + four, variance + four];
                let addresses = [&addresses[..], &vectors].concat();
                // SAFETY: rows of the operands, which this part has for itself, and vectors that all read.
                unsafe { compiled.run(&addresses) }?;
                if args.rstd != 0 {
                    // SAFETY: the part's own, which the library has written.
                    for x in unsafe { statistics(variance + four, count) } {
                        *x = 1.0 / (*x + self.epsilon).sqrt();
                    }
                }
            }
            Ok(())
        })
    }
}

/// # Safety
/// `count` numbers at `address` may be written, by nobody else.
unsafe fn statistics<'a>(address: u64, count: u64) -> &'a mut [f32] {
    let start = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: as the caller promises; every pattern of bits is a number.
    unsafe { std::slice::from_raw_parts_mut(start, count as usize) }
}

/// # Safety
/// `count` elements are readable at `from` and writable at `to`.
unsafe fn widen<T: Float>(from: u64, to: *mut f32, count: usize) {
    let from = std::ptr::with_exposed_provenance::<T>(from as usize);
    for i in 0..count {
        // SAFETY: as the caller promises.
        unsafe { to.add(i).write(from.add(i).read().wide()) };
    }
}

impl Kernel<LayerNorm, OnednnDevice> for Norm {
    unsafe fn launch(&self, _: &InlineStream, args: &LayerNormArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(args) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}
