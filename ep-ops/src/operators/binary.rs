//! `broadcast_elementwise_binary` of two tensors.

use super::order::{self, Order};
use super::{launch, shape};
use crate::sbp;
use crate::sbp::Sbp::{Broadcast, PartialSum};
use crate::{MemoryFormat, Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::primitive::BinaryOp;
use ep_core::{DType, Result, Scalar};
use ep_registry::{InPlace, Primitive};

/// Applies a function to pairs of elements: one of the 81 of [`BinaryOp`]. Shapes broadcast as in NumPy.
///
/// Inputs: a and b of one dtype, which the function has. Output: the broadcast shape; comparisons and logical functions
/// give bool, all others the dtype of the inputs. What repeats in a view (`expand`) is not written out.
#[derive(Clone, Debug)]
pub struct Binary {
    /// The function.
    pub op: BinaryOp,
    /// Its parameters, such as atol and rtol of `is_close`; 0 where it has none.
    pub attrs: [f64; 2],
}

impl Binary {
    /// A function without parameters.
    pub fn new(op: BinaryOp) -> Binary {
        Binary { op, attrs: [0.0; 2] }
    }

    /// In the order of the shape.
    fn compute(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let to = launch::inferred(self, inputs)?.remove(0);
        let sources = launch::broadcast(ops, inputs, &to.shape)?;
        let (a, b) = (&sources[0], &sources[1]);
        let primitive = primitive(ops, self.op, self.attrs, [a.dtype(), to.dtype])?;
        launch::output(ops, &to, |dst| {
            let (src0, src1) = (a.read()?, b.read()?);
            let call = p::BroadcastElementwiseBinaryCall {
                src0_dims: a.shape(),
                src1_dims: b.shape(),
                scalar0: Scalar::None,
                scalar1: Scalar::None,
                src0: src0.view()?,
                src1: src1.view()?,
                dst,
            };
            primitive.launch(ops.stream(), call)
        })
    }

    /// Into the first input, where that is dense in the order of the shape.
    fn compute_in_place(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<bool> {
        let (a, b) = (inputs[0], inputs[1]);
        if !a.is_contiguous(MemoryFormat::Contiguous) {
            return Ok(false);
        }
        let primitive = primitive(ops, self.op, self.attrs, [a.dtype(), a.dtype()])?;
        let b = launch::dense(ops, &launch::once(b, b.rank())?)?;
        let ([src1], mut dst) = Tensor::lock([&b], a);
        let call = p::BroadcastElementwiseBinaryCall {
            src0_dims: a.shape(),
            src1_dims: b.shape(),
            scalar0: Scalar::None,
            scalar1: Scalar::None,
            src0: InPlace,
            src1: src1.view()?,
            dst: dst.view()?,
        };
        primitive.launch(ops.stream(), call)?;
        Ok(true)
    }
}

/// The primitive of a function with its parameters, from and to these dtypes.
pub(super) fn primitive(
    ops: &Ops<'_>,
    op: BinaryOp,
    [attr0, attr1]: [f64; 2],
    [from, to]: [DType; 2],
) -> Result<Primitive<p::BroadcastElementwiseBinary>> {
    let desc = p::BroadcastElementwiseBinaryDesc::new(op, from, to);
    ops.primitive(desc.with_attr0(attr0).with_attr1(attr1))
}

/// The dtype of the results.
pub(super) fn output(op: BinaryOp, src: DType) -> DType {
    if (BinaryOp::EQUAL.0..=BinaryOp::LOGICAL_XOR.0).contains(&op.0) { DType::BOOL } else { src }
}

/// Which arguments a function is additive in: what comes of a sum is the sum of what comes of its addends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Additive {
    /// In the first one, whatever the second is.
    pub(super) first: bool,
    /// In the second one, whatever the first is.
    pub(super) second: bool,
    /// In both at once.
    pub(super) both: bool,
}

/// What a function of elements of a dtype is additive in.
pub(super) fn additive(op: BinaryOp, dtype: DType) -> Additive {
    use BinaryOp as O;
    let of = |first, second, both| Additive { first, second, both };
    if dtype == DType::BOOL {
        // The sum of bool is `or`, which `and` distributes over.
        return match op {
            O::ADD | O::MAX | O::LOGICAL_OR | O::BITWISE_OR => of(true, true, true),
            O::MUL | O::MIN | O::LOGICAL_AND | O::BITWISE_AND => of(true, true, false),
            _ => of(false, false, false),
        };
    }
    match op {
        O::ADD | O::SUB => of(false, false, true),
        O::MUL => of(true, true, false),
        O::DIV => of(!dtype.is_int(), false, false),
        // Of x and dy, the result being dy times something of x.
        O::SCALAR_BASE_POWER_GRAD | O::SCALAR_EXP_POWER_GRAD => of(false, true, false),
        // Of dy and x or y, likewise.
        _ if op.0 >= O::IDENTITY_BACKWARD_WITH_DY_X.0 => of(true, false, false),
        _ => of(false, false, false),
    }
}

impl Operator for Binary {
    fn name(&self) -> &'static str {
        self.op.name().unwrap_or("broadcast_elementwise_binary")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [a, b] = shape::named(inputs, ["a", "b"])?;
        shape::same_dtype(a, b)?;
        let shape = shape::broadcast(&[&a.shape, &b.shape])?;
        Ok(vec![shape::output(output(self.op, a.dtype), shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        order::kept(inputs, &|inputs| Ok(vec![self.compute(ops, inputs)?]))
    }

    fn run_in_place(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<bool> {
        // In the order of the first input, whatever that of the other one.
        match Order::of(&inputs[..1]) {
            None => self.compute_in_place(ops, inputs),
            Some(order) => self.compute_in_place(ops, &order.of_all(inputs)?.iter().collect::<Vec<_>>()),
        }
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        let Ok(outputs) = self.infer(inputs) else { return Vec::new() };
        let [a, b] = inputs else { return Vec::new() };
        let mut all = vec![Signature::broadcast(2, 1)];
        all.extend(sbp::of_broadcast(&[&a.shape, &b.shape], &outputs[0].shape));
        let additive = additive(self.op, a.dtype);
        let partial = [
            (additive.first, [PartialSum, Broadcast]),
            (additive.second, [Broadcast, PartialSum]),
            (additive.both, [PartialSum, PartialSum]),
        ];
        let partial = partial.into_iter().filter(|(holds, _)| *holds);
        all.extend(partial.map(|(_, inputs)| Signature::new(inputs, [PartialSum])));
        all
    }
}

impl Ops<'_> {
    /// A function without parameters of pairs of elements, with NumPy broadcasting. See [`Binary`]; for one with
    /// parameters, give it to [`Ops::apply`].
    ///
    /// # Errors
    /// `InvalidArgument` for dtypes that differ and shapes that do not broadcast; `Unsupported` for a function that the
    /// dtype does not have.
    pub fn binary(&self, op: BinaryOp, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        launch::one(self.apply(&Binary::new(op), &[a, b])?)
    }

    /// The same in place of a, whose shape b broadcasts to; for a function with parameters, give it to [`Ops::apply_`].
    ///
    /// # Errors
    /// As [`Ops::binary`] and [`Ops::apply_`].
    pub fn binary_(&self, op: BinaryOp, a: &Tensor, b: &Tensor) -> Result<()> {
        self.apply_(&Binary::new(op), &[a, b])
    }
}
