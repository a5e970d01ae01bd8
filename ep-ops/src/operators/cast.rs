//! `cast`.

use super::{launch, order, shape};
use crate::sbp::{self, Sbp};
use crate::{MemoryFormat, Operator, Ops, Signature, Spec, Tensor, layout};
use ep_core::primitive as p;
use ep_core::{DType, Result};

/// Converts elements to another dtype, as the primitive [`Cast`](ep_core::primitive::Cast) does: floats to integers
/// truncate and saturate, integers wrap. A view that is not dense is converted while it is copied, where the device has a
/// strided copy for both dtypes.
///
/// Input: x of any dtype and shape. Output: that shape, of `dtype`; a copy where that is the dtype of x.
#[derive(Clone, Debug)]
pub struct Cast {
    /// The dtype of the output.
    pub dtype: DType,
}

impl Cast {
    /// In the order of the shape.
    fn compute(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        if x.is_contiguous(MemoryFormat::Contiguous) {
            return self.dense(ops, inputs);
        }
        // Its contract converts as that of `cast`.
        let strided = || ops.strided(x, self.dtype, layout::contiguous(x.shape()));
        launch::or_dense(strided, || self.dense(ops, inputs))
    }

    /// By the primitive `cast`: what is not dense is copied before.
    fn dense(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = launch::dense(ops, inputs[0])?;
        let to = launch::inferred(self, inputs)?.remove(0);
        let primitive = ops.primitive::<p::Cast>(p::CastDesc::new(x.dtype(), to.dtype))?;
        let count = to.count()?;
        launch::output(ops, &to, |dst| {
            let src = x.read()?;
            primitive.launch(ops.stream(), p::CastCall { count, src: src.view()?, dst })
        })
    }
}

impl Operator for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [x] = shape::named(inputs, ["x"])?;
        Ok(vec![shape::output(self.dtype, x.shape.clone())?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        order::kept(inputs, &|inputs| Ok(vec![self.compute(ops, inputs)?]))
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        let [x] = inputs else { return Vec::new() };
        let mut all = vec![Signature::broadcast(1, 1)];
        all.extend(sbp::of_broadcast(&[&x.shape], &x.shape));
        if adds_up(x.dtype, self.dtype) {
            all.push(Signature::new([Sbp::PartialSum], [Sbp::PartialSum]));
        }
        all
    }
}

/// Whether the converted addends add up to the converted sum, but for rounding. Sums of integers wrap, so that their
/// addends mean nothing in a wider dtype; floats lose their fractions in integers.
pub(super) fn adds_up(from: DType, to: DType) -> bool {
    let fractional = |dtype: DType| dtype.is_float() || dtype.is_complex();
    from == to
        || fractional(from) && fractional(to)
        || from.is_int() && to.is_int() && to.bits() <= from.bits()
}

impl Ops<'_> {
    /// The elements as another dtype, in a new tensor. See [`Cast`].
    ///
    /// # Errors
    /// `Unsupported` for a dtype that no provider casts to.
    pub fn cast(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        launch::one(self.apply(&Cast { dtype }, &[x])?)
    }
}
