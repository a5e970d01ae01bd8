//! `elementwise_unary`, and `broadcast_elementwise_unary` for views.

use super::{cast, launch, order::Order, shape};
use crate::sbp::{self, Sbp};
use crate::{MemoryFormat, Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::primitive::UnaryOp;
use ep_core::{DType, Error, Result};
use ep_registry::InPlace;

/// Applies a function to each element: one of the 72 of [`UnaryOp`].
///
/// Input: x of any shape, of a dtype that the function has. Output: that shape. `is_inf`, `is_nan`, `is_finite` and
/// `logical_not` give bool, `real` and `imag` the dtype of the parts, `real_grad` and `imag_grad` the complex dtype with such
/// parts, `cast` needs a `dtype`, and all others give the dtype of x. A view without negative strides is read as it lies.
#[derive(Clone, Debug)]
pub struct Unary {
    /// The function.
    pub op: UnaryOp,
    /// Its parameters, such as alpha of `elu`; 0 where it has none.
    pub attrs: [f64; 2],
    /// The dtype of the output, of functions that have a choice: `cast`, `real`, `imag`, `real_grad` and `imag_grad`.
    pub dtype: Option<DType>,
}

impl Unary {
    /// A function without parameters.
    pub fn new(op: UnaryOp) -> Unary {
        Unary { op, attrs: [0.0; 2], dtype: None }
    }

    /// The dtype of the output.
    fn output(&self, src: DType) -> Result<DType> {
        let (op, told) = (self.op, || self.op.name().unwrap_or("unary"));
        let chooses = [UnaryOp::CAST, UnaryOp::REAL, UnaryOp::IMAG, UnaryOp::REAL_GRAD, UnaryOp::IMAG_GRAD];
        let parts = [(DType::COMPLEX64, DType::F32), (DType::COMPLEX128, DType::F64)];
        if let Some(dtype) = self.dtype.filter(|_| chooses.contains(&op)) {
            return Ok(dtype);
        }
        let natural = match op {
            UnaryOp::IS_INF | UnaryOp::IS_NAN | UnaryOp::IS_FINITE | UnaryOp::LOGICAL_NOT => {
                Some(DType::BOOL)
            }
            UnaryOp::REAL | UnaryOp::IMAG => {
                parts.iter().find(|(whole, _)| *whole == src).map(|(_, part)| *part)
            }
            UnaryOp::REAL_GRAD | UnaryOp::IMAG_GRAD => {
                parts.iter().find(|(_, part)| *part == src).map(|(whole, _)| *whole)
            }
            UnaryOp::CAST => None,
            _ => Some(src),
        };
        let natural = natural.ok_or_else(|| {
            Error::invalid(format!("{} of {src} does not say to which dtype; give the operator one", told()))
        })?;
        match self.dtype {
            Some(other) if other != natural => Err(Error::invalid(format!(
                "{} of {src} to {other}: it gives {natural}; cast the result",
                told()
            ))),
            _ => Ok(natural),
        }
    }

    /// Whether the function of a sum is the sum of the function of its addends.
    fn is_additive(&self, src: DType) -> bool {
        match self.op {
            UnaryOp::IDENTITY => true,
            UnaryOp::NEGATIVE
            | UnaryOp::CONJ
            | UnaryOp::REAL
            | UnaryOp::IMAG
            | UnaryOp::REAL_GRAD
            | UnaryOp::IMAG_GRAD => src != DType::BOOL,
            UnaryOp::CAST => self.dtype.is_some_and(|dtype| cast::adds_up(src, dtype)),
            _ => false,
        }
    }

    /// Of any view: one that is not dense is copied.
    fn elementwise(&self, ops: &Ops<'_>, x: &Tensor, to: &Spec) -> Result<Tensor> {
        let [attr0, attr1] = self.attrs;
        let desc = p::ElementwiseUnaryDesc::new(self.op, x.dtype(), to.dtype);
        let primitive = ops.primitive::<p::ElementwiseUnary>(desc.with_attr0(attr0).with_attr1(attr1))?;
        let (count, x) = (to.count()?, launch::dense(ops, x)?);
        launch::output(ops, to, |dst| {
            let src = x.read()?;
            primitive.launch(ops.stream(), p::ElementwiseUnaryCall { count, src: src.view()?, dst })
        })
    }

    fn strided(&self, ops: &Ops<'_>, x: &Tensor, to: &Spec) -> Result<Tensor> {
        let [attr0, attr1] = self.attrs;
        let desc = p::BroadcastElementwiseUnaryDesc::new(self.op, x.dtype(), to.dtype);
        let primitive =
            ops.primitive::<p::BroadcastElementwiseUnary>(desc.with_attr0(attr0).with_attr1(attr1))?;
        let mut dst_strides = vec![1; to.rank()];
        for dim in (1..to.rank()).rev() {
            dst_strides[dim - 1] = dst_strides[dim] * to.shape[dim];
        }
        launch::output(ops, to, |dst| {
            let src = x.read_strided();
            let call = p::BroadcastElementwiseUnaryCall {
                src_dims: x.shape(),
                src_strides: x.strides(),
                dst_dims: &to.shape,
                dst_strides: &dst_strides,
                src: src.view()?,
                dst,
            };
            primitive.launch(ops.stream(), call)
        })
    }
}

impl Operator for Unary {
    fn name(&self) -> &'static str {
        "elementwise_unary"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [x] = shape::named(inputs, ["x"])?;
        Ok(vec![shape::output(self.output(x.dtype)?, x.shape.clone())?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        if let Some(order) = Order::of(inputs) {
            return order.run(inputs, &|inputs| self.run(ops, inputs));
        }
        let x = inputs[0];
        let to = launch::inferred(self, inputs)?.remove(0);
        let takes_strides = x.strides().iter().all(|stride| *stride >= 0);
        let dst = if takes_strides && !x.is_contiguous(MemoryFormat::Contiguous) {
            launch::or_dense(|| self.strided(ops, x, &to), || self.elementwise(ops, x, &to))?
        } else {
            self.elementwise(ops, x, &to)?
        };
        Ok(vec![dst])
    }

    fn run_in_place(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<bool> {
        let x = inputs[0];
        if !x.is_dense_without_overlap() {
            return Ok(false);
        }
        let [attr0, attr1] = self.attrs;
        let desc = p::ElementwiseUnaryDesc::new(self.op, x.dtype(), x.dtype());
        let primitive = ops.primitive::<p::ElementwiseUnary>(desc.with_attr0(attr0).with_attr1(attr1))?;
        let mut dst = x.write_strided();
        let call = p::ElementwiseUnaryCall { count: x.numel(), src: InPlace, dst: dst.view()? };
        primitive.launch(ops.stream(), call)?;
        Ok(true)
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let x = &inputs[0];
        let mut all = vec![Signature::broadcast(1, 1)];
        all.extend(sbp::of_broadcast(&[&x.shape], &x.shape));
        if self.is_additive(x.dtype) {
            all.push(Signature::new([Sbp::PartialSum], [Sbp::PartialSum]));
        }
        all
    }
}

impl Ops<'_> {
    /// A function without parameters of each element. See [`Unary`]; for one with parameters, give it to
    /// [`Ops::apply`].
    ///
    /// # Errors
    /// `InvalidArgument` where the dtype of the result is open; `Unsupported` for a function that the dtype does not have.
    pub fn unary(&self, op: UnaryOp, x: &Tensor) -> Result<Tensor> {
        launch::one(self.apply(&Unary::new(op), &[x])?)
    }

    /// The same in place of x; for a function with parameters, give it to [`Ops::apply_`].
    ///
    /// # Errors
    /// As [`Ops::unary`] and [`Ops::apply_`].
    pub fn unary_(&self, op: UnaryOp, x: &Tensor) -> Result<()> {
        self.apply_(&Unary::new(op), &[x])
    }
}
