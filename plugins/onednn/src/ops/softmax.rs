//! `softmax`, `log_softmax` and `softmax_backward`.
//!
//! The gradient of `log_softmax` is not claimed: oneDNN gives the exponential of a NaN as a number.

use super::split::part;
use super::{FLOATS, add, is_offered, non_finite, size};
use crate::compiled::{Compiled, Kept, Layout, Task};
use crate::device::OnednnDevice;
use crate::engine::Engine;
use crate::provider::OnednnProvider;
use ep_core::parallel::Parallel;
use ep_core::primitive::{
    LogSoftmax, LogSoftmaxArgs, LogSoftmaxDesc, Softmax, SoftmaxArgs, SoftmaxBackward, SoftmaxBackwardArgs,
    SoftmaxBackwardDesc, SoftmaxDesc,
};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Host, Kernel, Registrar};
use ep_core::{DType, Result};
use std::sync::Arc;

/// Elements that are worth another thread.
const GRAIN: u64 = 16 << 10;
/// Bytes of rows that are computed at a time: those that are looked at stay in the second-level cache until then.
const CHUNK_BYTES: u64 = 256 << 10;
/// The dimension along which rows run, of three.
const AXIS: i32 = 1;

pub(super) fn register(registrar: &mut Registrar<'_, OnednnProvider>, engine: &Arc<Engine>) -> Result<()> {
    let dtypes = |kind: Kind| {
        let pairs = FLOATS.into_iter().flat_map(|src| FLOATS.map(|dst| [src, dst]));
        pairs.filter(move |dtypes| is_offered(engine, || kind.task(engine, *dtypes, [32, 128, 1])))
    };
    let build = |device: &OnednnDevice, d: &SoftmaxDesc| Ok(Rows::new(device, Kind::Softmax, [d.src, d.dst]));
    add(registrar, Factory::<Softmax, _, _>::new("softmax", build), dtypes(Kind::Softmax))?;
    let build =
        |device: &OnednnDevice, d: &LogSoftmaxDesc| Ok(Rows::new(device, Kind::LogSoftmax, [d.src, d.dst]));
    add(registrar, Factory::<LogSoftmax, _, _>::new("log_softmax", build), dtypes(Kind::LogSoftmax))?;
    let build = |device: &OnednnDevice, d: &SoftmaxBackwardDesc| {
        Ok(Rows::new(device, Kind::Backward, [d.src, d.dst]))
    };
    let factory = Factory::<SoftmaxBackward, _, _>::new("softmax_backward", build);
    add(registrar, factory, dtypes(Kind::Backward))
}

/// Which of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Softmax,
    LogSoftmax,
    Backward,
}

impl Kind {
    /// The library's task for tensors of [rows, cols, inner].
    fn task(self, engine: &Engine, [src, dst]: [DType; 2], dims: [u64; 3]) -> Result<Task> {
        let layout = |dtype| Layout::dense(engine, dtype, &dims);
        Ok(match self {
            Kind::Softmax | Kind::LogSoftmax => {
                let log = self == Kind::LogSoftmax;
                Task::Softmax { layouts: [layout(src)?, layout(dst)?], log, axis: AXIS }
            }
            Kind::Backward => {
                Task::SoftmaxBackward { layouts: [layout(src)?, layout(src)?, layout(dst)?], axis: AXIS }
            }
        })
    }
}

/// A primitive of the family.
struct Rows {
    engine: Arc<Engine>,
    host: Host,
    kind: Kind,
    dtypes: [DType; 2],
    /// By rows, cols and inner.
    kept: Kept<[u64; 3]>,
    about: String,
}

impl Rows {
    fn new(device: &OnednnDevice, kind: Kind, dtypes: [DType; 2]) -> Rows {
        let engine = device.engine().clone();
        let about = format!("oneDNN {}, compiled for each shape", engine.library().version());
        Rows { engine, host: device.host().clone(), kind, dtypes, kept: Kept::default(), about }
    }

    /// # Safety
    /// The operands, in the order of the task and the last one written, are valid for these sizes, and used by nobody
    /// else in conflict.
    unsafe fn run(&self, [rows, cols, inner]: [i64; 3], addresses: &[u64]) -> Result<()> {
        let (rows, cols, inner) = (size(rows), size(cols), size(inner).max(1));
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let row = cols * inner;
        let parts = self.engine.parts(&self.host, rows.saturating_mul(row) / GRAIN).min(rows);
        let [src, dst] = self.dtypes.map(|dtype| dtype.bytes_for_bounds());
        let chunk = (CHUNK_BYTES / row.saturating_mul(src.max(dst))).max(1);
        self.host.parallel_for(parts as usize, 1, parts as usize, &|range| {
            for index in range {
                let part = part(rows, parts, 1, index as u64);
                let mut from = part.start;
                while from < part.end {
                    let dims = [chunk.min(part.end - from), cols, inner];
                    let (last, sources) = addresses.split_last().unwrap_or((&0, &[]));
                    let mut at: Vec<u64> = sources.iter().map(|x| x + from * row * src).collect();
                    at.push(last + from * row * dst);
                    // SAFETY: rows of the operands, which this part has for itself.
                    unsafe { self.rows(dims, &at) }?;
                    from += dims[0];
                }
            }
            Ok(())
        })
    }

    /// # Safety
    /// As for [`Rows::run`], with addresses of these rows.
    unsafe fn rows(&self, dims: [u64; 3], addresses: &[u64]) -> Result<()> {
        let make = || Compiled::new(&self.engine, self.kind.task(&self.engine, self.dtypes, dims)?);
        let compiled = self.kept.get(dims, make)?;
        let [src, dst] = self.dtypes;
        // Before, as the result may be in place.
        let nan = match self.kind {
            // SAFETY: the caller's promise.
            Kind::Softmax | Kind::LogSoftmax => unsafe { non_finite::find(src, addresses[0], dims) },
            Kind::Backward => Vec::new(),
        };
        // SAFETY: the caller's promise.
        unsafe { compiled.run(addresses) }?;
        // SAFETY: the rows are of dst, which the caller promises.
        unsafe { non_finite::fill(dst, addresses[addresses.len() - 1], [dims[1], dims[2]], &nan) };
        Ok(())
    }
}

impl Kernel<Softmax, OnednnDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &SoftmaxArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run([args.rows, args.cols, args.inner], &[args.src, args.dst]) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<LogSoftmax, OnednnDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &LogSoftmaxArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run([args.rows, args.cols, args.inner], &[args.src, args.dst]) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<SoftmaxBackward, OnednnDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &SoftmaxBackwardArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run([args.rows, args.cols, args.inner], &[args.y, args.dy, args.dx]) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}
