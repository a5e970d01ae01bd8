//! Timing in batches.

use ep_core::Result;
use std::time::{Duration, Instant};

/// Nanoseconds per call, one number for each batch.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// No sample yet.
    pub fn new() -> Samples {
        Samples(Vec::new())
    }

    /// Times `work`, which makes `calls` calls.
    pub fn time<T>(&mut self, calls: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = work()?;
        self.0.push(start.elapsed().as_nanos() as f64 / calls as f64);
        Ok(result)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        median(&self.0)
    }

    /// The smallest one.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Adds those of `other`.
    pub fn extend(&mut self, other: &Samples) {
        self.0.extend_from_slice(&other.0);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The median of what `self` takes longer than `other` in the same round: both saw the same clock speed and
    /// the same neighbours then, so it varies less than the difference of the medians.
    pub fn median_above(&self, other: &Samples) -> f64 {
        median(&self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect::<Vec<_>>())
    }
}

/// The middle one of some values; NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How long one thing is timed.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// As long as this lasts, batches are repeated ...
    pub time: Duration,
    /// ... and at least so many are made ...
    pub min: usize,
    /// ... and at most so many.
    pub max: usize,
}

/// A batch lasts about this long at least, so that reading the clock does not count.
const BATCH: Duration = Duration::from_micros(20);

/// Times `work`, which makes the number of calls that it is given. The first call warms up, and the second tells how
/// many calls make a batch; it counts if one does.
///
/// # Errors
/// Those of `work`.
pub fn time(budget: Budget, work: &mut dyn FnMut(usize) -> Result<()>) -> Result<Samples> {
    work(1)?;
    let start = Instant::now();
    work(1)?;
    let once = start.elapsed().max(Duration::from_nanos(20));
    let calls = (BATCH.as_nanos() / once.as_nanos()).clamp(1, 1000) as usize;
    let start = Instant::now();
    if calls > 1 {
        work(calls)?;
    }
    let mut samples = Samples::new();
    if calls == 1 {
        samples.0.push(once.as_nanos() as f64);
    }
    while samples.len() < budget.max && (samples.len() < budget.min || start.elapsed() < budget.time) {
        samples.time(calls, || work(calls))?;
    }
    Ok(samples)
}

/// Something that makes a number of calls.
pub type Subject<'a> = &'a mut dyn FnMut(usize) -> Result<()>;

/// Times several subjects in turns, `calls` calls at a time, forwards and backwards, so that none has the better
/// place. The first round warms up and does not count.
pub fn in_turns<const N: usize>(
    rounds: usize,
    calls: usize,
    mut subjects: [Subject<'_>; N],
) -> Result<[Samples; N]> {
    let mut samples = std::array::from_fn(|_| Samples::new());
    for subject in &mut subjects {
        subject(calls)?;
    }
    for round in 0..rounds {
        for turn in 0..N {
            let i = if round % 2 == 0 { turn } else { N - 1 - turn };
            samples[i].time(calls, || subjects[i](calls))?;
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn figures() {
        let (a, b) = (Samples(vec![9.0, 1.0, 5.0]), Samples(vec![8.0, 2.0, 1.0]));
        assert_eq!((a.median(), a.min(), a.len(), a.median_above(&b)), (5.0, 1.0, 3, 1.0));
        assert!(Samples::new().median().is_nan());
    }

    #[test]
    fn a_budget_is_kept() {
        let budget = |min, max| Budget { time: Duration::ZERO, min, max };
        let mut calls = 0;
        let slow = |n: usize| {
            calls += n;
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        };
        let samples = time(budget(3, 9), &mut { slow }).unwrap();
        assert_eq!((samples.len(), calls), (3, 4));
        let mut batches = Vec::new();
        let fast = |n: usize| {
            batches.push(n);
            Ok(())
        };
        let long = Budget { time: Duration::from_secs(1), ..budget(1, 4) };
        assert_eq!(time(long, &mut { fast }).unwrap().len(), 4);
        assert!(batches[3] > 10, "{batches:?}");
        let failing = time(budget(1, 1), &mut |_| Err(ep_core::Error::internal("no"))).unwrap_err();
        assert!(failing.to_string().contains("no"));
    }

    #[test]
    fn turns_go_both_ways() {
        let order = RefCell::new(String::new());
        let call = |name: char| {
            let order = &order;
            move |n: usize| {
                order.borrow_mut().extend(std::iter::repeat_n(name, n));
                Ok(())
            }
        };
        let samples = in_turns(2, 1, [&mut call('a'), &mut call('b'), &mut call('c')]).unwrap();
        assert_eq!(order.into_inner(), "abcabccba");
        assert!(samples.iter().all(|s| s.len() == 2));
    }
}
