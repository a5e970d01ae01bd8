//! `softmax`.

use super::{launch, rows, shape};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::{DType, Result};

/// Softmax along a dimension: exp(x - max) / sum(exp(x - max)).
///
/// Input: x, f16, bf16, f32 or f64 of any shape. Output: that shape, of `dtype` where there is one, which is a float
/// too, else of the dtype of x. What is computed is said at the primitive
/// ([`Softmax`](ep_core::primitive::Softmax)).
#[derive(Clone, Debug)]
pub struct Softmax {
    /// The dimension whose elements make a row; negative ones count from the end.
    pub dim: i64,
    /// The dtype of the output; that of the input where there is none.
    pub dtype: Option<DType>,
}

impl Operator for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        rows::infer(shape::named(inputs, ["x"])?, self.dim, self.dtype)
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        if let Some((order, dim)) = rows::order(inputs, self.dim)? {
            let turned = Softmax { dim, dtype: self.dtype };
            return order.run(inputs, &|inputs| turned.run(ops, inputs));
        }
        let x = launch::dense(ops, inputs[0])?;
        let to = launch::inferred(self, inputs)?.remove(0);
        let shape::Around { outer, size, inner } = rows::around(x.spec(), self.dim)?;
        let primitive = ops.primitive::<p::Softmax>(p::SoftmaxDesc::new(x.dtype(), to.dtype))?;
        let dst = launch::output(ops, &to, |dst| {
            let src = x.read()?;
            let call = p::SoftmaxCall { rows: outer, cols: size, inner, src: src.view()?, dst };
            primitive.launch(ops.stream(), call)
        })?;
        Ok(vec![dst])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let mut all = vec![Signature::broadcast(1, 1)];
        all.extend(rows::splits(&inputs[0], self.dim, 1));
        all
    }
}

impl Ops<'_> {
    /// Softmax along a dimension: exp(x - max) / sum(exp(x - max)). See [`Softmax`].
    ///
    /// # Errors
    /// `InvalidArgument` for a dimension that x does not have, and for other dtypes than floats.
    pub fn softmax(&self, x: &Tensor, dim: i64) -> Result<Tensor> {
        launch::one(self.apply(&Softmax { dim, dtype: None }, &[x])?)
    }
}
