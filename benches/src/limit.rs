//! What this machine can do: kernels that only move bytes, or only multiply, as fast as it goes.
//!
//! The *limit* of a row is the shortest time in which any of several streaming kernels reads and writes exactly
//! the memory that the row has to, with no arithmetic: plain and streaming stores, with and without prefetching, one
//! stream or four pages at a time. For matrix products it is the time that the multiplications alone take. `share` in
//! reports is the limit's time over the row's.

mod peak;
mod stream;

pub use stream::read_all;

use crate::ours::Operands;
use crate::row::{Family, Row};
use crate::samples::{Budget, time};
use ep_core::parallel::Parallel;
use ep_core::provider::inline::HOST_SPACE;
use ep_core::{DType, Result};
use ep_registry::Device;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::marker::PhantomData;
use std::time::Duration;

/// A piece of memory.
pub type Range = (u64, u64);

/// What has to be read and written: addresses and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Read.
    pub reads: Vec<Range>,
    /// Written.
    pub writes: Vec<Range>,
}

impl Traffic {
    /// That of a row. Of an operand from which the op picks some elements the limit reads as many bytes in order.
    pub fn of(row: &Row, operands: &Operands) -> Traffic {
        let mut traffic = Traffic::default();
        for (x, buffer) in row.inputs.iter().zip(&operands.inputs) {
            let mut left = x.moved;
            // Picks may be more than there is to pick from: then it is read again.
            while left > 0 {
                let part = left.min(buffer.bytes()).max(1);
                traffic.reads.push((buffer.address(), part));
                left -= part;
            }
        }
        let output = (operands.output.address(), operands.output.bytes());
        if row.output.accumulates || row.then_read {
            traffic.reads.push(output);
        }
        traffic.writes.push(output);
        traffic
    }

    fn shape(&self) -> (Vec<u64>, Vec<u64>) {
        let bytes = |ranges: &[Range]| ranges.iter().map(|r| r.1).collect();
        (bytes(&self.reads), bytes(&self.writes))
    }

    fn bytes(&self) -> u64 {
        self.reads.iter().chain(&self.writes).map(|r| r.1).sum()
    }
}

/// Finds limits, and remembers which kernels were fastest.
#[derive(Default)]
pub struct Limits {
    streams: HashMap<(Vec<u64>, Vec<u64>, usize), Vec<Shape>>,
    peaks: HashMap<(DType, usize), f64>,
}

/// A kernel, and into how many parts it divides the memory.
type Shape = (stream::Variant, usize);

/// The limit of one row, on its operands.
pub struct Limit<'a> {
    kernels: Vec<stream::Kernel>,
    /// Nanoseconds that computing takes at least.
    computing: f64,
    parallel: &'a dyn Parallel,
    /// What the kernels read and write lives as long as this.
    operands: PhantomData<&'a Operands>,
}

impl Limit<'_> {
    /// Times the kernels once more: the nanoseconds of the fastest. Overwrites what the row writes.
    ///
    /// # Errors
    /// Those of the thread pool.
    pub fn time(&self, budget: Budget) -> Result<f64> {
        let mut best = f64::INFINITY;
        for mut kernel in self.kernels() {
            best = best.min(time(budget, &mut kernel)?.median());
        }
        Ok(self.of_fastest(best))
    }

    /// The kernels, of which the fastest counts, for who times them in turns with others. They overwrite what the row writes.
    pub fn kernels(&self) -> impl Iterator<Item = impl FnMut(usize) -> Result<()> + '_> + '_ {
        let parallel = self.parallel;
        // SAFETY: the operands live in this process, and nothing else uses them now.
        self.kernels.iter().map(move |kernel| move |times| unsafe { kernel.run(parallel, times) })
    }

    /// The limit where the fastest kernel took so many nanoseconds.
    pub fn of_fastest(&self, kernel: f64) -> f64 {
        // A product of a vector is bound by memory, one of matrices by arithmetic.
        kernel.max(self.computing)
    }
}

impl Limits {
    /// What tells the nanoseconds that a row takes at least on this machine; `None` where there is no kernel to tell,
    /// which is where the device's memory is not the host's. Overwrites what the row writes.
    ///
    /// # Errors
    /// Those of the thread pool.
    pub fn of<'a>(
        &mut self,
        row: &Row,
        device: &Device,
        operands: &'a Operands,
        parallel: &'a dyn Parallel,
    ) -> Result<Option<Limit<'a>>> {
        if device.info().memory_space != HOST_SPACE {
            return Ok(None);
        }
        let kernels = self.streaming(&Traffic::of(row, operands), parallel)?;
        let computing = if row.family == Family::Matmul { self.computing(row, parallel)? } else { None };
        Ok(Some(Limit { kernels, computing: computing.unwrap_or(0.0), parallel, operands: PhantomData }))
    }

    fn streaming(&mut self, traffic: &Traffic, parallel: &dyn Parallel) -> Result<Vec<stream::Kernel>> {
        let (reads, writes) = traffic.shape();
        let key = (reads, writes, parallel.threads());
        let shapes = match self.streams.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(fastest_streams(traffic, parallel)?),
        };
        let kernel = |(variant, parts): &Shape| stream::Kernel::new(traffic, *variant, *parts);
        Ok(shapes.iter().map(kernel).collect())
    }

    fn computing(&mut self, row: &Row, parallel: &dyn Parallel) -> Result<Option<f64>> {
        let key = (row.dtype, parallel.threads());
        let rate = match self.peaks.get(&key) {
            Some(known) => *known,
            None => {
                let Some(rate) = peak::operations_per_ns(row.dtype, parallel)? else { return Ok(None) };
                self.peaks.insert(key, rate);
                rate
            }
        };
        Ok(Some(row.flops as f64 / rate))
    }
}

/// The two kernels that a short look finds fastest for this traffic. Overwrites what is written.
fn fastest_streams(traffic: &Traffic, parallel: &dyn Parallel) -> Result<Vec<Shape>> {
    let quick = Budget { time: Duration::from_millis(4), min: 2, max: 50 };
    let mut found = Vec::new();
    // Below some KiB a second thread is never worth it.
    let all = parallel.threads();
    let counts = if traffic.bytes() >= 1 << 14 && all > 1 { vec![1, all] } else { vec![1] };
    for parts in counts {
        for variant in stream::Variant::all() {
            let kernel = stream::Kernel::new(traffic, variant, parts);
            // SAFETY: `Limits::of` has the operands, which live in this process, and nothing else uses them now.
            let mut run = |times| unsafe { kernel.run(parallel, times) };
            found.push((time(quick, &mut run)?.min(), (variant, parts)));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(found.into_iter().take(2).map(|(_, shape)| shape).collect())
}
