//! `where`.

use super::{launch, order, shape};
use crate::sbp::Sbp::{Broadcast, PartialSum};
use crate::{Operator, Ops, Signature, Spec, Tensor, sbp};
use ep_core::primitive as p;
use ep_core::{DType, Error, Result};

/// Chooses between two tensors, element by element: `cond ? x : y`. Shapes broadcast as in NumPy.
///
/// Inputs: cond, bool or an integer (true where it is not 0), and x and y of one dtype. Output: the broadcast of all three
/// shapes, of the dtype of x and y.
#[derive(Clone, Debug)]
pub struct Where;

impl Where {
    /// In the order of the shape.
    fn compute(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let to = launch::inferred(self, inputs)?.remove(0);
        let sources = launch::broadcast(ops, inputs, &to.shape)?;
        let (cond, x, y) = (&sources[0], &sources[1], &sources[2]);
        let primitive = ops.primitive::<p::Where>(p::WhereDesc::new(cond.dtype(), to.dtype))?;
        let (cond_dims, x_dims, y_dims) = (cond.shape(), x.shape(), y.shape());
        launch::output(ops, &to, |dst| {
            let (cond, x, y) = (cond.read()?, x.read()?, y.read()?);
            let (cond, x, y) = (cond.view()?, x.view()?, y.view()?);
            primitive.launch(ops.stream(), p::WhereCall { cond_dims, x_dims, y_dims, cond, x, y, dst })
        })
    }
}

impl Operator for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [cond, x, y] = shape::named(inputs, ["cond", "x", "y"])?;
        if cond.dtype != DType::BOOL && !cond.dtype.is_int() {
            return Err(Error::invalid(format!(
                "the condition {cond}: it is bool or an integer; compare first"
            )));
        }
        shape::same_dtype(x, y)?;
        let shape = shape::broadcast(&[&cond.shape, &x.shape, &y.shape])?;
        Ok(vec![shape::output(x.dtype, shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        order::kept(inputs, &|inputs| Ok(vec![self.compute(ops, inputs)?]))
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        let Ok(outputs) = self.infer(inputs) else { return Vec::new() };
        let shapes: Vec<&[i64]> = inputs.iter().map(|input| &*input.shape).collect();
        let mut all = vec![Signature::broadcast(3, 1)];
        all.extend(sbp::of_broadcast(&shapes, &outputs[0].shape));
        all.push(Signature::new([Broadcast, PartialSum, PartialSum], [PartialSum]));
        all
    }
}

impl Ops<'_> {
    /// `cond ? x : y` for each element, with NumPy broadcasting. See [`Where`].
    ///
    /// # Errors
    /// `InvalidArgument` for a condition that is neither bool nor an integer, dtypes of x and y that differ, and shapes that
    /// do not broadcast.
    pub fn where_(&self, cond: &Tensor, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        launch::one(self.apply(&Where, &[cond, x, y])?)
    }
}
