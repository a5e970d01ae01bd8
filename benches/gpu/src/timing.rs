//! Times of work on a device, by its events.

use crate::operands::{Copier, Launches, sets, settled};
use ep_core::{DType, Result};
use ep_registry::{Device, Event, Stream};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const REPEATS: usize = 30;
const LEAST_REPEATS: usize = 5;
const MOST_TIME: Duration = Duration::from_millis(1500);
/// From so many operations a launch draws more power than the device may for long, and its clock falls within a second: the
/// first launches would be faster than all later ones, by as much as the device idled before.
const HEAVY_FLOPS: u64 = 500_000_000_000;
const SETTLING: Duration = Duration::from_secs(1);

/// The middle one, of at least one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Microseconds of one of `count` launches that `queue` makes: the median over repeated rotations. None is pending on return,
/// also after an error.
///
/// # Errors
/// Those of `queue`, and the device's.
pub fn time(stream: &Stream, count: usize, queue: impl FnMut() -> Result<()>) -> Result<f64> {
    settled(stream, || rotations(stream, count, queue))
}

fn rotations(stream: &Stream, count: usize, mut queue: impl FnMut() -> Result<()>) -> Result<f64> {
    // Kernels are loaded, algorithms chosen and clocks raised before.
    queue()?;
    queue()?;
    stream.sync()?;
    let (mut times, begin) = (Vec::new(), Instant::now());
    while times.len() < REPEATS && (times.len() < LEAST_REPEATS || begin.elapsed() < MOST_TIME) {
        let (start, end) = (Event::new(), Event::new());
        stream.record(&start)?;
        queue()?;
        stream.record(&end)?;
        times.push(start.elapsed_ns(&end)? as f64 / 1e3 / count as f64);
    }
    Ok(median(times))
}

/// Times of copies within the device, by bytes.
#[derive(Default)]
pub struct Copies {
    known: HashMap<u64, f64>,
}

impl Copies {
    /// Microseconds of a copy that moves `bytes`, read and written together, over buffers that rotate as a row's do.
    ///
    /// # Errors
    /// `OutOfMemory`; the provider's.
    pub fn time(&mut self, device: &Device, stream: &Stream, copier: &Copier, bytes: u64) -> Result<f64> {
        let half = (bytes / 2).max(1 << 20);
        if let Some(us) = self.known.get(&half) {
            return Ok(*us);
        }
        let count = sets(2 * half);
        let make = || device.alloc(DType::U8, half as usize);
        let pairs = (0..count).map(|_| Ok((make()?, make()?))).collect::<Result<Vec<_>>>()?;
        let us = time(stream, count, || {
            pairs.iter().try_for_each(|(src, dst)| {
                // SAFETY: whole buffers, which live until the work is done: `time` waits for it.
                unsafe { copier.queue(stream, src.address(), dst.address(), half) }
            })
        })?;
        self.known.insert(half, us);
        Ok(us)
    }
}

/// Microseconds of a row, of which a launch takes so many operations.
///
/// # Errors
/// The provider's.
pub fn row(stream: &Stream, launches: &Launches<'_>, flops: u64) -> Result<f64> {
    let begin = Instant::now();
    while flops >= HEAVY_FLOPS && begin.elapsed() < SETTLING {
        settled(stream, || launches.queue(stream))?;
    }
    time(stream, launches.len(), || launches.queue(stream))
}

#[cfg(test)]
mod tests {
    use crate::fake::{Alone, Setup};
    use crate::operands::Copier;
    use ep_core::{DType, Error};

    #[test]
    fn what_was_queued_before_an_error_is_waited_for() {
        let alone = Alone::new(Setup::default());
        let runtime = alone.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let (stream, copier) = (device.stream().unwrap(), Copier::new(&runtime, device).unwrap());
        let [x, y] = [0; 2].map(|_| device.alloc(DType::U8, 1 << 20).unwrap());
        for good in 0..4 {
            alone.fake.fail(0, 0);
            let mut left = good;
            let timed = super::time(&stream, 1, || {
                // SAFETY: whole buffers, which live until `time` has waited.
                unsafe { copier.queue(&stream, x.address(), y.address(), 1 << 20) }?;
                left -= 1;
                if left < 0 { Err(Error::internal("no more")) } else { Ok(()) }
            });
            assert_eq!(timed.unwrap_err().message(), "no more");
            assert!(!alone.leaves_work(), "after {good}: {:?}", alone.fake.log());
        }
    }

    #[test]
    fn the_middle_is_taken() {
        assert_eq!(super::median(vec![5.0, 1.0, 3.0]), 3.0);
        assert_eq!(super::median(vec![2.0]), 2.0);
    }
}
