//! `log_softmax_backward`.

use super::{launch, rows, shape};
use crate::sbp::Sbp::{Broadcast, PartialSum};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::{DType, Result};

/// The gradient of the logarithm of softmax along a dimension: dy - exp(y) * sum(dy).
///
/// Inputs: y, what the forward operator gave, and dy, its gradient, of one shape and one of f16, bf16, f32 and f64.
/// Output: dx, of that shape, of `dtype` where there is one, which is a float too, else of the dtype of y.
#[derive(Clone, Debug)]
pub struct LogSoftmaxBackward {
    /// The dimension whose elements make a row; negative ones count from the end.
    pub dim: i64,
    /// The dtype of the output; that of the inputs where there is none.
    pub dtype: Option<DType>,
}

impl Operator for LogSoftmaxBackward {
    fn name(&self) -> &'static str {
        "log_softmax_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        rows::infer(shape::named(inputs, ["y", "dy"])?, self.dim, self.dtype)
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        if let Some((order, dim)) = rows::order(inputs, self.dim)? {
            let turned = LogSoftmaxBackward { dim, dtype: self.dtype };
            return order.run(inputs, &|inputs| turned.run(ops, inputs));
        }
        let (y, dy) = (launch::dense(ops, inputs[0])?, launch::dense(ops, inputs[1])?);
        let to = launch::inferred(self, inputs)?.remove(0);
        let shape::Around { outer, size, inner } = rows::around(y.spec(), self.dim)?;
        let primitive =
            ops.primitive::<p::LogSoftmaxBackward>(p::LogSoftmaxBackwardDesc::new(y.dtype(), to.dtype))?;
        let dx = launch::output(ops, &to, |dx| {
            let (y, dy) = (y.read()?, dy.read()?);
            let (y, dy) = (y.view()?, dy.view()?);
            primitive
                .launch(ops.stream(), p::LogSoftmaxBackwardCall { rows: outer, cols: size, inner, y, dy, dx })
        })?;
        Ok(vec![dx])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let mut all = vec![Signature::broadcast(2, 1)];
        all.extend(rows::splits(&inputs[0], self.dim, 2));
        // It is linear in dy.
        all.push(Signature::new([Broadcast, PartialSum], [PartialSum]));
        all
    }
}

impl Ops<'_> {
    /// The gradient of the logarithm of softmax along a dimension: dy - exp(y) * sum(dy). See [`LogSoftmaxBackward`].
    ///
    /// # Errors
    /// `InvalidArgument` for a dimension that there is not, shapes and dtypes that differ, and other dtypes than floats.
    pub fn log_softmax_backward(&self, y: &Tensor, dy: &Tensor, dim: i64) -> Result<Tensor> {
        launch::one(self.apply(&LogSoftmaxBackward { dim, dtype: None }, &[y, dy])?)
    }
}
