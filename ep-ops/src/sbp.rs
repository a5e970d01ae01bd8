//! How tensors lie on several devices: split, broadcast, partial sums.
//!
//! An operator lists its [`Signature`]s ([`Operator::signatures`](crate::Operator::signatures)): the ways to run it on N
//! devices, each on its own part, without any communication. [`check`] runs all of them and compares with the whole;
//! [`check_signature`] does so with one, listed or not.

/// The snippets of `docs/sbp.md`, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/sbp.md")]
pub struct SbpGuide;

mod check;

pub use check::{Outcome, Report, check, check_signature};

use std::fmt;

/// How one logical tensor lies on N devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sbp {
    /// Each has a part along this dimension, in order; sizes differ by one at most ([`part`]), and may be 0.
    Split(usize),
    /// Each has all of it.
    Broadcast,
    /// Each has an addend of it. They are added as the primitive `add` adds: integers wrap, and for bool the sum is `or`.
    PartialSum,
}

/// `S(0)`, `B`, `P`.
impl fmt::Display for Sbp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sbp::Split(dim) => write!(f, "S({dim})"),
            Sbp::Broadcast => f.write_str("B"),
            Sbp::PartialSum => f.write_str("P"),
        }
    }
}

/// One way to run an operator on N devices: without any communication, outputs come as said when inputs come as said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Of each input.
    pub inputs: Vec<Sbp>,
    /// Of each output.
    pub outputs: Vec<Sbp>,
}

impl Signature {
    /// Inputs and outputs.
    pub fn new(inputs: impl Into<Vec<Sbp>>, outputs: impl Into<Vec<Sbp>>) -> Signature {
        Signature { inputs: inputs.into(), outputs: outputs.into() }
    }

    /// Everything everywhere, which every operator has.
    pub fn broadcast(inputs: usize, outputs: usize) -> Signature {
        Signature { inputs: vec![Sbp::Broadcast; inputs], outputs: vec![Sbp::Broadcast; outputs] }
    }
}

/// `S(0), B -> S(0)`.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |sbps: &[Sbp]| sbps.iter().map(Sbp::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "{} -> {}", list(&self.inputs), list(&self.outputs))
    }
}

/// Start and size of a part of a dimension that is split: the first `size % parts` parts have one element more than the
/// others.
///
/// ```
/// let parts: Vec<_> = (0..3).map(|index| ep_ops::sbp::part(5, index, 3)).collect();
/// assert_eq!(parts, [(0, 2), (2, 2), (4, 1)]);
/// ```
///
/// # Panics
/// Unless `index < parts`.
pub fn part(size: i64, index: usize, parts: usize) -> (i64, i64) {
    assert!(index < parts, "part {index} of {parts}");
    let (index, parts) = (index as i64, parts as i64);
    let (least, more) = (size / parts, size % parts);
    (index * least + index.min(more), least + i64::from(index < more))
}

/// One signature for each dimension of the broadcast `out` of inputs with these shapes: an input is split that has the
/// dimension at the output's size, and one that repeats along it is whole.
pub(crate) fn of_broadcast(shapes: &[&[i64]], out: &[i64]) -> Vec<Signature> {
    let split = |dim: usize| {
        let input = |shape: &&[i64]| match (dim + shape.len()).checked_sub(out.len()) {
            Some(own) if shape[own] == out[dim] => Sbp::Split(own),
            _ => Sbp::Broadcast,
        };
        Signature::new(shapes.iter().map(input).collect::<Vec<_>>(), [Sbp::Split(dim)])
    };
    (0..out.len()).map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Sbp::{Broadcast as B, PartialSum as P, Split as S};

    #[test]
    fn parts_cover_a_dimension_in_order() {
        for (size, parts) in [(0, 1), (0, 3), (1, 1), (1, 5), (7, 2), (7, 3), (9, 3), (11, 5)] {
            let mut next = 0;
            for index in 0..parts {
                let (start, len) = part(size, index, parts);
                assert_eq!(start, next);
                assert!(len == size / parts as i64 || len == size / parts as i64 + 1);
                next += len;
            }
            assert_eq!(next, size);
        }
    }

    #[test]
    fn what_repeats_is_whole() {
        let found = of_broadcast(&[&[2, 1, 4], &[3, 1], &[]], &[2, 3, 4]);
        let expected = [
            Signature::new([S(0), B, B], [S(0)]),
            Signature::new([B, S(0), B], [S(1)]),
            Signature::new([S(2), B, B], [S(2)]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn signatures_are_written_as_in_the_tables() {
        assert_eq!(Signature::new([S(0), B], [P, S(1)]).to_string(), "S(0), B -> P, S(1)");
        assert_eq!(Signature::broadcast(2, 1).to_string(), "B, B -> B");
    }
}
