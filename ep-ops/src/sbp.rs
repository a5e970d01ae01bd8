//! How tensors lie on several devices: split, broadcast, partial sums.

/// How one logical tensor lies on N devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sbp {
    /// Each has a part along this dimension, in order; sizes differ by one at most.
    Split(usize),
    /// Each has all of it.
    Broadcast,
    /// Each has an addend of it.
    PartialSum,
}

/// One way to run an operator on N devices: without any communication, outputs come as said when inputs come as said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Of each input.
    pub inputs: Vec<Sbp>,
    /// Of each output.
    pub outputs: Vec<Sbp>,
}
