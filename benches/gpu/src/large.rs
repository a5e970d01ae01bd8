//! More than 2^31 elements of each family of primitives, compared with what the definition says in a few windows.

mod launches;

use crate::operands::{Copier, arguments, primitive, settled};
use ep_core::{DType, Result};
use ep_registry::{Buffer, Device, Runtime, Stream};
use half::f16;
use launches::{BEFORE, Check, Operands, row};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;

/// Elements that are compared at a place.
const WINDOW: u64 = 4096;
/// Messages that are kept of a launch.
const KEPT: usize = 3;

/// What became of a launch.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// The primitive, and what is special.
    pub op: String,
    /// Of the destination.
    pub dtype: String,
    /// Of the destination.
    pub elements: u64,
    /// The first element of each window.
    pub windows: Vec<u64>,
    /// Elements that are wrong, or 1 for a launch that was refused.
    pub failed: u64,
    /// What was wrong with the first of them.
    pub messages: Vec<String>,
}
/// Where results of `count` elements of `size` bytes are compared: at both ends, around powers of 2 of elements and bytes,
/// and where the middle of a source may be.
fn windows(count: u64, size: u64) -> BTreeSet<u64> {
    let far = [1 << 31, 1 << 32, (1 << 31) / size, (1 << 32) / size, count / 2, count / 4];
    let around = far.into_iter().filter(|at| *at < count).map(|at| at.saturating_sub(WINDOW / 2));
    around.chain([0, count]).map(|at| at.min(count.saturating_sub(WINDOW))).collect()
}

/// A number of a dtype.
fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    let number = |bytes: &[u8]| {
        let mut all = [if bytes.last().is_some_and(|b| *b > 127) { 0xff } else { 0 }; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        i64::from_le_bytes(all) as f64
    };
    match (dtype, bytes) {
        (DType::F16, [a, b]) => f16::from_le_bytes([*a, *b]).to_f64(),
        (DType::U8 | DType::BOOL, [one]) => f64::from(*one),
        _ => number(bytes),
    }
}

/// Launches each primitive on sources of `n` bytes, and calls `each` with what became of it.
///
/// # Errors
/// `OutOfMemory`; those of `each`.
pub fn check(
    runtime: &Runtime,
    device: &Device,
    n: u64,
    mut each: impl FnMut(&Checked) -> Result<()>,
) -> Result<()> {
    let (stream, copier) = (device.stream()?, Copier::new(runtime, device)?);
    let operands = Operands::new(device, &stream, &copier, n)?;
    let dst = device.alloc(DType::U8, n as usize)?;
    let window = device.upload(&[0u8; WINDOW as usize * 8])?;
    let room =
        Room { runtime, device, stream: &stream, copier: &copier, dst: dst.address(), window: &window };
    for check in launches::all(&operands)? {
        let dtype = check.row.output.dtype()?;
        let windows: Vec<u64> = windows(check.count, dtype.bytes_for_bounds()).into_iter().collect();
        let behind = check.count * dtype.bytes_for_bounds();
        // The destination is another launch's next, or is dropped.
        let compared = settled(&stream, || {
            let found = room.compare(&check, dtype, &windows, n)?;
            room.compare_behind(behind, n, found)
        });
        let (failed, messages) = match compared {
            Ok(found) => found,
            Err(e) => (1, vec![e.context(check.row.op.clone()).to_string()]),
        };
        let (op, dtype) = (check.row.op.clone(), dtype.to_string());
        each(&Checked { op, dtype, elements: check.count, windows, failed, messages })?;
    }
    Ok(())
}

/// Where launches run.
struct Room<'a> {
    runtime: &'a Runtime,
    device: &'a Device,
    stream: &'a Stream,
    copier: &'a Copier,
    dst: u64,
    window: &'a Buffer,
}

impl Room<'_> {
    /// The elements that are wrong, and messages of the first. After an error work may be pending.
    fn compare(
        &self,
        check: &Check<'_>,
        dtype: DType,
        windows: &[u64],
        n: u64,
    ) -> Result<(u64, Vec<String>)> {
        let size = dtype.bytes_for_bounds();
        let clear = row(
            "memset",
            "",
            &[],
            ["dst", "u8"],
            json!({"sizes": {"bytes": n}, "scalars": {"value": BEFORE}}),
        )?;
        for (row, inputs) in [(&clear, &[][..]), (&check.row, &check.inputs)] {
            let primitive = primitive(self.runtime, self.device, row)?;
            let args = arguments(&primitive, row, inputs)?.address(&row.output.name, self.dst)?;
            // SAFETY: operands of `n` bytes, which nothing else uses and which have room for what the row says.
            unsafe { primitive.launch_raw(self.stream, &args) }?;
        }
        let (mut failed, mut messages) = (0, Vec::new());
        for first in windows {
            let count = WINDOW.min(check.count - first);
            // SAFETY: both ranges are inside their buffers, and live until the wait.
            unsafe {
                self.copier.queue(self.stream, self.dst + first * size, self.window.address(), count * size)
            }?;
            self.stream.sync()?;
            let bytes = self.window.download::<u8>()?;
            for (i, bytes) in (*first..).zip(bytes.chunks_exact(size as usize)).take(count as usize) {
                let (found, wanted) = (decode(dtype, bytes), (check.expect)(i));
                let [part, least] = check.within;
                // Also where one of them is no number.
                if (found - wanted).abs() <= wanted.abs() * part + least {
                    continue;
                }
                failed += 1;
                if messages.len() < KEPT {
                    messages.push(format!("{}[{i}] is {found}, not {wanted}", check.row.output.name));
                }
            }
        }
        Ok((failed, messages))
    }

    /// Adds what a launch has written behind its result to what is wrong with that.
    fn compare_behind(
        &self,
        end: u64,
        n: u64,
        (failed, mut messages): (u64, Vec<String>),
    ) -> Result<(u64, Vec<String>)> {
        let bytes = WINDOW.min(n - end);
        if bytes == 0 {
            return Ok((failed, messages));
        }
        // SAFETY: both ranges are inside their buffers, and live until `settled` has waited.
        settled(self.stream, || unsafe {
            self.copier.queue(self.stream, self.dst + end, self.window.address(), bytes)
        })?;
        let (strays, message) = strays(end, &self.window.download::<u8>()?[..bytes as usize]);
        messages.extend(message.filter(|_| messages.len() < KEPT));
        Ok((failed + strays, messages))
    }
}

/// How many of these bytes, which begin at a place, are not what they were before the launch, and the first of them.
fn strays(from: u64, bytes: &[u8]) -> (u64, Option<String>) {
    let mut wrong = (from..).zip(bytes).filter(|(_, byte)| **byte != BEFORE).peekable();
    let first = wrong.peek().map(|(at, byte)| format!("byte {at} behind the result is {byte}, not {BEFORE}"));
    (wrong.count() as u64, first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Alone, Setup, stream_of};
    use ep_core::Error;

    /// Whichever piece of work is refused, of the operands or of the first launch.
    #[test]
    fn nothing_is_pending_when_operands_are_dropped() {
        let alone = Alone::new(Setup::default());
        let runtime = alone.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let run = |failing: u64| {
            alone.fake.fail(failing, 2);
            check(&runtime, device, 1_100_003, |_| Err(Error::internal("one is enough"))).unwrap_err()
        };
        // Once before, so that kernels are loaded.
        run(0);
        run(0);
        assert!(!alone.leaves_work());
        let log = alone.fake.log();
        let launch = log.iter().find(|line| line.starts_with("cuLaunchKernel")).unwrap();
        let queues = |line: &str| {
            ["cuMemcpyAsync", "cuMemsetD8Async", "cuLaunchKernel"].iter().any(|name| line.starts_with(name))
                && stream_of(line) == stream_of(launch)
        };
        let queued = (1..).zip(&log).filter(|(_, line)| queues(line));
        let queued: Vec<u64> = queued.map(|(number, _)| number).collect();
        assert!(queued.len() > 5, "{log:?}");
        for failing in queued {
            let e = run(failing);
            assert!(!alone.leaves_work(), "call {failing} fails, {e}: {:?}", alone.fake.log());
        }
    }

    #[test]
    fn windows_lie_at_the_ends_and_around_powers_of_two() {
        let all: Vec<u64> = windows((1 << 32) + 10_000, 1).into_iter().collect();
        let half = (1 << 31) + 5000 - 2048;
        let wanted =
            [0, (1 << 30) + 2500 - 2048, (1 << 31) - 2048, half, (1 << 32) - 2048, (1 << 32) + 10_000 - 4096];
        assert_eq!(all, wanted);
        assert_eq!(windows(100, 2).into_iter().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn what_is_written_behind_a_result_is_found() {
        let mut bytes = [BEFORE; 5];
        assert_eq!(strays(100, &bytes), (0, None));
        (bytes[2], bytes[4]) = (0, BEFORE + 1);
        let message = format!("byte 102 behind the result is 0, not {BEFORE}");
        assert_eq!(strays(100, &bytes), (2, Some(message)));
    }

    #[test]
    fn elements_are_read_by_their_dtype() {
        assert_eq!(decode(DType::I8, &[0xff]), -1.0);
        assert_eq!(decode(DType::U8, &[0xff]), 255.0);
        assert_eq!(decode(DType::F16, &f16::from_f64(-1.5).to_le_bytes()), -1.5);
        assert_eq!(decode(DType::I64, &(-3i64).to_le_bytes()), -3.0);
    }
}
