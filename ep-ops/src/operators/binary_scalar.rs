//! `broadcast_elementwise_binary` of a tensor and a number.

use super::binary::{additive, output, primitive};
use super::{launch, number, order, shape};
use crate::sbp::{self, Sbp};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::primitive::BinaryOp;
use ep_core::{Error, Result, Scalar};
use ep_registry::Read;

/// Where a number stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `op(number, x)`.
    First,
    /// `op(x, number)`.
    Second,
}

/// Applies a function of two arguments to each element and one number, which the dtype of x can hold.
///
/// Input: x of any shape, of a dtype that the function has. Output: that shape; comparisons and logical functions give
/// bool, all others the dtype of x.
#[derive(Clone, Debug)]
pub struct BinaryScalar {
    /// The function.
    pub op: BinaryOp,
    /// Its parameters; 0 where it has none.
    pub attrs: [f64; 2],
    /// The number.
    pub scalar: Scalar,
    /// Which argument the number is.
    pub side: Side,
}

impl BinaryScalar {
    /// In the order of the shape.
    fn compute(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = launch::dense(ops, inputs[0])?;
        let to = launch::inferred(self, inputs)?.remove(0);
        let primitive = primitive(ops, self.op, self.attrs, [x.dtype(), to.dtype])?;
        launch::output(ops, &to, |dst| {
            let src = x.read()?;
            primitive.launch(ops.stream(), self.call(x.shape(), Read::View(src.view()?), dst))
        })
    }

    /// The launch on elements of this shape.
    fn call<'a, Dst>(
        &self,
        dims: &'a [i64],
        src: Read<'a>,
        dst: Dst,
    ) -> p::BroadcastElementwiseBinaryCall<'a, Read<'a>, Read<'a>, Dst> {
        match self.side {
            Side::First => p::BroadcastElementwiseBinaryCall {
                src0_dims: &[],
                src1_dims: dims,
                scalar0: self.scalar,
                scalar1: Scalar::None,
                src0: Read::None,
                src1: src,
                dst,
            },
            Side::Second => p::BroadcastElementwiseBinaryCall {
                src0_dims: dims,
                src1_dims: &[],
                scalar0: Scalar::None,
                scalar1: self.scalar,
                src0: src,
                src1: Read::None,
                dst,
            },
        }
    }
}

impl Operator for BinaryScalar {
    fn name(&self) -> &'static str {
        self.op.name().unwrap_or("broadcast_elementwise_binary")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [x] = shape::named(inputs, ["x"])?;
        if !number::holds(x.dtype, self.scalar) {
            return Err(Error::invalid(format!(
                "{x} and the number {}: {} cannot hold it, and none is converted; cast x to a dtype that can",
                self.scalar, x.dtype
            )));
        }
        Ok(vec![shape::output(output(self.op, x.dtype), x.shape.clone())?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        order::kept(inputs, &|inputs| Ok(vec![self.compute(ops, inputs)?]))
    }

    fn run_in_place(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<bool> {
        let x = inputs[0];
        if !x.is_dense_without_overlap() {
            return Ok(false);
        }
        let primitive = primitive(ops, self.op, self.attrs, [x.dtype(), x.dtype()])?;
        let mut dst = x.write_strided();
        primitive.launch(ops.stream(), self.call(&[x.numel()], Read::InPlace, dst.view()?))?;
        Ok(true)
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let x = &inputs[0];
        let mut all = vec![Signature::broadcast(1, 1)];
        all.extend(sbp::of_broadcast(&[&x.shape], &x.shape));
        let additive = additive(self.op, x.dtype);
        if if self.side == Side::First { additive.second } else { additive.first } {
            all.push(Signature::new([Sbp::PartialSum], [Sbp::PartialSum]));
        }
        all
    }
}

impl Ops<'_> {
    /// A function without parameters of each element and a number: `op(x, scalar)`. See [`BinaryScalar`].
    ///
    /// # Errors
    /// `InvalidArgument` for a number that the dtype of x cannot hold; `Unsupported` for a function that it does not have.
    pub fn binary_scalar(&self, op: BinaryOp, x: &Tensor, scalar: impl Into<Scalar>) -> Result<Tensor> {
        let operator = BinaryScalar { op, attrs: [0.0; 2], scalar: scalar.into(), side: Side::Second };
        launch::one(self.apply(&operator, &[x])?)
    }

    /// The same in place of x; for a function with parameters, give it to [`Ops::apply_`].
    ///
    /// # Errors
    /// As [`Ops::binary_scalar`] and [`Ops::apply_`].
    pub fn binary_scalar_(&self, op: BinaryOp, x: &Tensor, scalar: impl Into<Scalar>) -> Result<()> {
        self.apply_(&BinaryScalar { op, attrs: [0.0; 2], scalar: scalar.into(), side: Side::Second }, &[x])
    }

    /// A function without parameters of a number and each element: `op(scalar, x)`. See [`BinaryScalar`].
    ///
    /// # Errors
    /// As [`Ops::binary_scalar`].
    pub fn scalar_binary(&self, op: BinaryOp, scalar: impl Into<Scalar>, x: &Tensor) -> Result<Tensor> {
        let operator = BinaryScalar { op, attrs: [0.0; 2], scalar: scalar.into(), side: Side::First };
        launch::one(self.apply(&operator, &[x])?)
    }
}
