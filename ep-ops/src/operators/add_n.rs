//! `add`.

use super::{launch, order, shape};
use crate::sbp::Sbp::{PartialSum, Split};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::{Error, Result};
use ep_registry::View;

/// The sum of tensors, from left to right. Integers wrap, and for bool it is `or`.
///
/// Inputs: 1 to 256 of one dtype and one shape; nothing broadcasts. Output: as one of them.
#[derive(Clone, Debug)]
pub struct AddN;

impl AddN {
    /// In the order of the shape.
    fn compute(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let to = launch::inferred(self, inputs)?.remove(0);
        let sources = inputs.iter().map(|x| launch::dense(ops, x)).collect::<Result<Vec<_>>>()?;
        let primitive = ops.primitive::<p::Add>(p::AddDesc::new(to.dtype))?;
        let count = to.count()?;
        launch::output(ops, &to, |dst| {
            let sources = sources.iter().map(Tensor::read).collect::<Result<Vec<_>>>()?;
            let srcs = sources.iter().map(|source| source.view()).collect::<Result<Vec<View<'_>>>>()?;
            primitive.launch(ops.stream(), p::AddCall { count, dst, srcs: &srcs })
        })
    }
}

impl Operator for AddN {
    fn name(&self) -> &'static str {
        "add_n"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let Some(first) = inputs.first() else {
            return Err(Error::invalid("nothing has no shape; give it one tensor at least"));
        };
        if inputs.len() > 256 {
            return Err(Error::invalid(format!("{} tensors: 256 are possible; add in parts", inputs.len())));
        }
        for other in &inputs[1..] {
            shape::same_dtype(first, other)?;
            if first.shape != other.shape {
                return Err(Error::invalid(format!(
                    "{first} and {other}: the shapes differ, and nothing broadcasts; expand one of them"
                )));
            }
        }
        Ok(vec![first.clone()])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        order::kept(inputs, &|inputs| Ok(vec![self.compute(ops, inputs)?]))
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let n = inputs.len();
        let mut all = vec![Signature::broadcast(n, 1)];
        all.extend((0..inputs[0].rank()).map(|d| Signature::new(vec![Split(d); n], [Split(d)])));
        all.push(Signature::new(vec![PartialSum; n], [PartialSum]));
        all
    }
}

impl Ops<'_> {
    /// The sum of 1 to 256 tensors of one shape. See [`AddN`].
    ///
    /// # Errors
    /// `InvalidArgument` for dtypes or shapes that differ.
    pub fn add_n(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        launch::one(self.apply(&AddN, inputs)?)
    }
}
