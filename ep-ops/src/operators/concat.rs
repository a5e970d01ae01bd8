//! Concatenation, by strided copies.

use super::{launch, shape};
use crate::sbp::Sbp::{PartialSum, Split};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::{Error, Result};

/// Joins tensors along a dimension.
///
/// Inputs: one or more of one dtype and of one rank, 1 at least, with equal sizes but for that dimension. Output: of these
/// sizes, and the sum of those of the dimension.
#[derive(Clone, Debug)]
pub struct Concat {
    /// Along which dimension; negative ones count from the end.
    pub dim: i64,
}

impl Operator for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let Some(first) = inputs.first() else {
            return Err(Error::invalid("nothing has no shape; give it one tensor at least"));
        };
        if first.rank() == 0 {
            return Err(Error::invalid(format!("{first}, which has no dimension; reshape it to [1] first")));
        }
        let dim = first.dim(self.dim)?;
        let mut shape = first.shape.clone();
        for other in &inputs[1..] {
            shape::same_dtype(first, other)?;
            let sizes = || first.shape.iter().zip(&other.shape).enumerate();
            if first.rank() != other.rank() || sizes().any(|(d, (a, b))| d != dim && a != b) {
                return Err(Error::invalid(format!(
                    "{first} and {other} along dimension {dim}: all other sizes are equal, and none broadcasts"
                )));
            }
            let size = shape[dim].checked_add(other.shape[dim]);
            shape[dim] =
                size.ok_or_else(|| Error::invalid("concat: the sizes add up to more than an i64 counts"))?;
        }
        Ok(vec![shape::output(first.dtype, shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let to = launch::inferred(self, inputs)?.remove(0);
        let dim = to.dim(self.dim)?;
        // One behind the other the copies write all. Else they leave gaps between rows, and what was never written cannot
        // be read.
        let gaps = to.shape[..dim].iter().any(|size| *size != 1);
        let dst = if gaps { ops.zeros(to.dtype, &to.shape)? } else { ops.empty(to.dtype, &to.shape)? };
        let dim = dim as i64;
        let mut next = 0;
        for x in inputs {
            let size = x.shape()[dim as usize];
            ops.copy_(&dst.narrow(dim, next, size)?, x)?;
            next += size;
        }
        Ok(vec![dst])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let (n, own) = (inputs.len(), inputs[0].dim(self.dim).ok());
        let mut all = vec![Signature::broadcast(n, 1)];
        let others = (0..inputs[0].rank()).filter(|d| Some(*d) != own);
        all.extend(others.map(|d| Signature::new(vec![Split(d); n], [Split(d)])));
        all.push(Signature::new(vec![PartialSum; n], [PartialSum]));
        all
    }
}

impl Ops<'_> {
    /// Joins tensors along a dimension. See [`Concat`].
    ///
    /// # Errors
    /// `InvalidArgument` for no tensors, dtypes or ranks that differ, sizes that differ elsewhere, and single elements.
    pub fn concat(&self, inputs: &[&Tensor], dim: i64) -> Result<Tensor> {
        launch::one(self.apply(&Concat { dim }, inputs)?)
    }
}
