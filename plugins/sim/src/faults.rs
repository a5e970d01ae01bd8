//! Faults on request, and the random numbers behind them.

use ep_core::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// A random number from any two (SplitMix64's output function).
pub(crate) fn mix(seed: u64, number: u64) -> u64 {
    let x = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// When a fault happens, as its option says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Never,
    /// `3`: the third time.
    Nth(u64),
    /// `3..`: the third time and ever after.
    From(u64),
    /// `2.5%`: each time with this chance, from 0 to 1.
    Chance(f64),
}

impl Rule {
    fn parse(option: &str, text: &str) -> Result<Rule> {
        let number = |text: &str| text.parse().ok().filter(|n| *n >= 1);
        let percent = |text: &str| text.parse().ok().filter(|p| (0.0..=100.0).contains(p));
        let rule = if let Some(text) = text.strip_suffix('%') {
            percent(text).map(|p| Rule::Chance(p / 100.0))
        } else if let Some(text) = text.strip_suffix("..") {
            number(text).map(Rule::From)
        } else {
            number(text).map(Rule::Nth)
        };
        rule.ok_or_else(|| {
            Error::invalid(format!(
                "option `{option}` is `{text}`; it takes `3` (the third time), `3..` (from the third on) or `2.5%` \
                 (each time with this chance)"
            ))
        })
    }
}

/// A kind of fault: counts its occasions, and tells which of them fail.
#[derive(Debug)]
pub(crate) struct Fault {
    option: &'static str,
    rule: Rule,
    seed: u64,
    count: AtomicU64,
}

impl Fault {
    /// The fault that an option asks for; without one it never happens.
    pub(crate) fn new(option: &'static str, text: Option<&str>, seed: u64) -> Result<Fault> {
        let rule = text.map_or(Ok(Rule::Never), |text| Rule::parse(option, text))?;
        // Faults of one seed must not all happen together.
        let seed = option.bytes().fold(seed, |seed, byte| mix(seed, byte.into()));
        Ok(Fault { option, rule, seed, count: AtomicU64::new(0) })
    }

    /// Counts one occasion. If it is to fail, says so.
    pub(crate) fn next(&self) -> Option<String> {
        if self.rule == Rule::Never {
            return None;
        }
        let n = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let happens = match self.rule {
            Rule::Never => false,
            Rule::Nth(nth) => n == nth,
            Rule::From(first) => n >= first,
            // 53 bits make a number from 0 up to 1.
            Rule::Chance(chance) => ((mix(self.seed, n) >> 11) as f64) < chance * (1u64 << 53) as f64,
        };
        happens.then(|| format!("as option `{}` asks of number {n}", self.option))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    fn numbers(text: &str, seed: u64) -> Vec<usize> {
        let fault = Fault::new("op_error", Some(text), seed).unwrap();
        (1..=2000).filter(|_| fault.next().is_some()).collect()
    }

    #[test]
    fn the_nth_the_rest_or_some() {
        assert_eq!(numbers("3", 1), [3]);
        assert_eq!(numbers("1998..", 1), [1998, 1999, 2000]);
        assert_eq!(numbers("0%", 1), []);
        assert_eq!(numbers("100%", 1).len(), 2000);
        let some = numbers("10%", 1);
        // Six standard deviations around 200.
        assert!((120..280).contains(&some.len()), "{}", some.len());
        assert_eq!(some, numbers("10%", 1));
        assert_ne!(some, numbers("10%", 2));
        assert!(Fault::new("slow", None, 0).unwrap().next().is_none());
    }

    #[test]
    fn other_texts_are_refused_with_what_is_possible() {
        for text in ["", "0", "0..", "-1", "x", "101%", "-1%", "NaN%", "%", "..", "1.5"] {
            let e = Fault::new("slow", Some(text), 0).unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument);
            assert!(e.message().contains("option `slow`") && e.message().contains("`3..`"), "{e}");
        }
    }
}
