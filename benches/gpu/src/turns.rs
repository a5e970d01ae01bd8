//! What a launch costs the host, a burst at a time whenever another program asks: both are then timed in turns, milliseconds
//! apart and on the same clock, which changes by a third from minute to minute.

use crate::host::BURST;
use crate::operands::{Copier, Launches, settled};
use crate::row::Row;
use ep_core::{Error, Result};
use ep_registry::{Device, Runtime, Stream};
use std::io::BufRead;
use std::time::Instant;

/// Answers each line of `requests`, the number of a row, with the microseconds of one of its launches: the mean of a burst
/// behind one that does not count, as the other program has had the caches since.
///
/// # Errors
/// Where the device lacks a row's primitive; the provider's; `InvalidArgument` for a line that is no row's number.
pub fn serve(
    runtime: &Runtime,
    device: &Device,
    rows: &[Row],
    requests: impl BufRead,
    mut answer: impl FnMut(f64) -> Result<()>,
) -> Result<()> {
    let (stream, copier) = (device.stream()?, Copier::new(runtime, device)?);
    let mut lists: Vec<Vec<Vec<u64>>> = rows.iter().map(|_| Vec::new()).collect();
    let ready = rows.iter().zip(&mut lists).map(|(row, lists)| {
        Launches::new(runtime, device, &stream, &copier, row, lists).map_err(|e| e.context(row.name()))
    });
    let ready = ready.collect::<Result<Vec<_>>>()?;
    for line in requests.lines() {
        let line = line.map_err(|e| Error::invalid(format!("reading requests: {e}")))?;
        let row = line.trim().parse().ok().and_then(|i: usize| ready.get(i));
        let row = row.ok_or_else(|| {
            Error::invalid(format!("`{line}` is none of the {} rows' numbers", ready.len()))
        })?;
        burst(&stream, row)?;
        answer(burst(&stream, row)?)?;
    }
    Ok(())
}

/// Microseconds of one launch, without waiting for the device, whose queue is empty before and after.
fn burst(stream: &Stream, row: &Launches<'_>) -> Result<f64> {
    let rotations = BURST.div_ceil(row.len());
    settled(stream, || {
        let begin = Instant::now();
        (0..rotations).try_for_each(|_| row.queue(stream))?;
        Ok(begin.elapsed().as_secs_f64() * 1e6 / (rotations * row.len()) as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Alone, Setup};
    use ep_core::Code;

    const ROW: &str = r#"{"group": "launch", "op": "fill", "dtype": "f32", "shape": "4", "primitive": "fill", "selectors": {},
        "roles": {"data": "f32"}, "attrs": {}, "limits": {}, "sizes": {"count": 4}, "dims": {}, "scalars": {"value": 1.5},
        "inputs": [], "output": {"name": "dst", "dtype": "f32", "dims": [4], "content": "normal", "shared": false}, "shift": 0,
        "bytes": 16, "flops": 0, "statement": "dst.fill_(1.5)"}"#;

    #[test]
    fn each_request_is_a_burst_of_its_row_and_others_are_refused() {
        let alone = Alone::new(Setup::default());
        {
            let runtime = alone.runtime(&[]);
            let device = runtime.device("cuda:0").unwrap();
            let rows = crate::row::read(&ROW.replace('\n', " ")).unwrap();
            let mut answers = Vec::new();
            let mut ask = |text: &str| {
                serve(&runtime, device, &rows, text.as_bytes(), |us| {
                    answers.push(us);
                    Ok(())
                })
            };
            let before = alone.calls("cuLaunchKernelEx") + alone.calls("cuLaunchKernel");
            ask("0\n0\n").unwrap();
            let launched = alone.calls("cuLaunchKernelEx") + alone.calls("cuLaunchKernel") - before;
            assert!((4 * BURST..4 * (BURST + 16)).contains(&launched), "{launched}");
            let error = ask("0\n1\n").unwrap_err();
            assert_eq!(
                (error.code(), error.message()),
                (Code::InvalidArgument, "`1` is none of the 1 rows' numbers")
            );
            assert!(answers.len() == 3 && answers.iter().all(|us| *us > 0.0), "{answers:?}");
        }
        assert_eq!(alone.fake.leaks(), [""; 0]);
    }
}
