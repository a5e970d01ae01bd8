//! `arg_reduce`.

use super::{launch, shape};
use crate::sbp::Sbp::Split;
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::primitive::ArgReduceOp;
use ep_core::{DType, Error, Result};

/// The position of the largest or smallest element along a dimension: the first of equals, and the first NaN before all.
///
/// Input: x of any dtype but complex, with elements along the dimension. Output: i32 or i64, of the shape without that
/// dimension, or with `keep_dims` with size 1 there.
#[derive(Clone, Debug)]
pub struct ArgReduce {
    /// What to look for.
    pub op: ArgReduceOp,
    /// Along which dimension; negative ones count from the end.
    pub dim: i64,
    /// Whether it stays, with size 1.
    pub keep_dims: bool,
    /// The dtype of the positions: i32 or i64.
    pub dtype: DType,
}

impl Operator for ArgReduce {
    fn name(&self) -> &'static str {
        self.op.name().unwrap_or("arg_reduce")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [x] = shape::named(inputs, ["x"])?;
        if x.dtype.is_complex() {
            return Err(Error::invalid(format!("{x}: complex numbers have no order; take a part or abs")));
        }
        shape::index_dtype(&Spec::new(self.dtype, []))?;
        let dim = x.dim(self.dim)?;
        let around = shape::Around::new(&x.shape, dim);
        if around.size == 0 && around.outer * around.inner != 0 {
            return Err(Error::invalid(format!(
                "{x} along dimension {dim}, which has no elements to point at"
            )));
        }
        let kept: &[i64] = if self.keep_dims && x.rank() != 0 { &[1] } else { &[] };
        Ok(vec![shape::output(self.dtype, shape::replaced(&x.shape, dim, kept))?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let x = launch::dense(ops, inputs[0])?;
        let to = launch::inferred(self, inputs)?.remove(0);
        let shape::Around { outer, size: reduced, inner } =
            shape::Around::new(x.shape(), x.spec().dim(self.dim)?);
        let primitive = ops.primitive::<p::ArgReduce>(p::ArgReduceDesc::new(self.op, x.dtype(), to.dtype))?;
        let dst = launch::output(ops, &to, |dst| {
            let src = x.read()?;
            primitive.launch(ops.stream(), p::ArgReduceCall { outer, reduced, inner, src: src.view()?, dst })
        })?;
        Ok(vec![dst])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let (x, own) = (&inputs[0], inputs[0].dim(self.dim).unwrap_or(0));
        let out = |d: usize| if d > own && !self.keep_dims { d - 1 } else { d };
        let mut all = vec![Signature::broadcast(1, 1)];
        let others = (0..x.rank()).filter(|d| *d != own);
        all.extend(others.map(|d| Signature::new([Split(d)], [Split(out(d))])));
        all
    }
}

impl Ops<'_> {
    /// Positions of the largest or smallest elements along a dimension, as i64. See [`ArgReduce`].
    ///
    /// # Errors
    /// `InvalidArgument` for a dimension that x does not have or that has no elements, and for complex numbers.
    pub fn arg_reduce(&self, op: ArgReduceOp, x: &Tensor, dim: i64, keep_dims: bool) -> Result<Tensor> {
        launch::one(self.apply(&ArgReduce { op, dim, keep_dims, dtype: DType::I64 }, &[x])?)
    }
}
