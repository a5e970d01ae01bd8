//! `constant_pad`.

use super::{launch, number, order::Order, shape};
use crate::sbp::Sbp::{PartialSum, Split};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::{Error, Result, Scalar};

/// Pads each dimension with a value before and behind, or crops it where the padding is negative.
///
/// Input: x of any dtype and shape. Output: of its dtype, each dimension with the size `before + size + after`.
#[derive(Clone, Debug)]
pub struct ConstantPad {
    /// Elements to put before each dimension.
    pub before: Vec<i64>,
    /// Elements to put behind it.
    pub after: Vec<i64>,
    /// What to pad with, which the dtype can hold; none means 0.
    pub value: Scalar,
}

impl Operator for ConstantPad {
    fn name(&self) -> &'static str {
        "constant_pad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [x] = shape::named(inputs, ["x"])?;
        let (before, after) = (&self.before, &self.after);
        let told = || format!("{x} by {before:?} before and {after:?} behind");
        if before.len() != x.rank() || after.len() != x.rank() {
            return Err(Error::invalid(format!("{}: give {} numbers each", told(), x.rank())));
        }
        if self.value != Scalar::None && !number::holds(x.dtype, self.value) {
            return Err(Error::invalid(format!(
                "{} with {}: {} cannot hold it, and none is converted; cast x to a dtype that can",
                told(),
                self.value,
                x.dtype
            )));
        }
        let sizes = x.shape.iter().zip(before.iter().zip(after));
        let padded = sizes.map(|(size, (before, after))| size.checked_add(*before)?.checked_add(*after));
        let shape: Option<Vec<i64>> = padded.map(|size| size.filter(|size| *size >= 0)).collect();
        let shape =
            shape.ok_or_else(|| Error::invalid(format!("{}: a size would not be in 0..2^63", told())))?;
        Ok(vec![shape::output(x.dtype, shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        if let Some(order) = Order::of(inputs) {
            let (before, after) = (order.list(&self.before), order.list(&self.after));
            let turned = ConstantPad { before, after, value: self.value };
            return order.run(inputs, &|inputs| turned.run(ops, inputs));
        }
        let x = launch::dense(ops, inputs[0])?;
        let to = launch::inferred(self, inputs)?.remove(0);
        let primitive = ops.primitive::<p::ConstantPad>(p::ConstantPadDesc::new(x.dtype()))?;
        let dst = launch::output(ops, &to, |dst| {
            let src = x.read()?;
            let call = p::ConstantPadCall {
                src_dims: x.shape(),
                padding_before: &self.before,
                padding_after: &self.after,
                value: self.value,
                src: src.view()?,
                dst,
            };
            primitive.launch(ops.stream(), call)
        })?;
        Ok(vec![dst])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let mut all = vec![Signature::broadcast(1, 1)];
        let paddings = || self.before.iter().zip(&self.after);
        let whole = paddings().enumerate().filter(|(_, padding)| *padding == (&0, &0));
        all.extend(whole.map(|(d, _)| Signature::new([Split(d)], [Split(d)])));
        let zero = self.value.as_f64() == 0.0 && self.value.im() == 0.0;
        if zero || paddings().all(|(before, after)| *before <= 0 && *after <= 0) {
            all.push(Signature::new([PartialSum], [PartialSum]));
        }
        all
    }
}

impl Ops<'_> {
    /// Pads each dimension with a value, or crops it. See [`ConstantPad`].
    ///
    /// # Errors
    /// `InvalidArgument` for another number of paddings than dimensions, a size that would be negative, and a value that
    /// the dtype cannot hold.
    pub fn constant_pad(
        &self,
        x: &Tensor,
        before: &[i64],
        after: &[i64],
        value: impl Into<Scalar>,
    ) -> Result<Tensor> {
        let operator = ConstantPad { before: before.into(), after: after.into(), value: value.into() };
        launch::one(self.apply(&operator, &[x])?)
    }
}
