//! Timing in small batches.

use ep_core::Result;
use std::time::Instant;

/// Nanoseconds per call, one number for each batch.
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

    /// The median of what `self` takes longer than `other` in the same round: both saw the same clock speed and
    /// the same neighbours then, so it varies less than the difference of the medians.
    pub fn median_above(&self, other: &Samples) -> f64 {
        median(&self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect::<Vec<_>>())
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
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
