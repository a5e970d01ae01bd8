//! What an operator is.

use crate::{Ops, Signature, Spec, Tensor};
use ep_core::Result;
use std::fmt::Debug;

/// An operation on tensors with its attributes, such as softmax over dimension -1.
pub trait Operator: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// Dtypes and shapes of the outputs.
    ///
    /// # Errors
    /// `InvalidArgument` that says which input does not fit and why.
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>>;

    /// Computes. The inputs are on the device of `ops`, and [`Operator::infer`] has accepted them.
    ///
    /// # Errors
    /// `Unsupported` where the device has no primitive for it; then [`Ops`] tries the next device.
    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>>;

    /// Computes into the first input, whose spec the only output has, and says whether it could: `false`, as it is unless
    /// an operator says otherwise, makes [`Ops::apply_`] run it and copy. The elements of the first input do not overlap, and
    /// no other input shares its memory. [`Tensor::lock`] gives access to all of them.
    ///
    /// # Errors
    /// As [`Operator::run`]; before an `Unsupported` nothing is written.
    fn run_in_place(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<bool> {
        let _ = (ops, inputs);
        Ok(false)
    }

    /// The ways in which inputs and outputs may be split, replicated or partial sums, for inputs like these; none for
    /// inputs that [`Operator::infer`] refuses.
    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature>;

    /// What device `index` of `devices` runs in place of the operator when it runs by a signature on inputs that are
    /// like these when whole; `None` where that is the operator itself, as it mostly is.
    ///
    /// An operator needs this where a part must know which part it is, as those of a `gather` along the dimension that
    /// is split: see [`sbp::part`](crate::sbp::part).
    fn for_shard(
        &self,
        inputs: &[Spec],
        signature: &Signature,
        index: usize,
        devices: usize,
    ) -> Option<Box<dyn Operator>> {
        let _ = (inputs, signature, index, devices);
        None
    }
}
