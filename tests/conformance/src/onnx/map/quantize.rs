//! Integers that stand for floats: `(q - zero point) scale`.

use super::products::matmul;
use super::{Family, Operator, Rule, one};
use crate::onnx::machine::{Machine, Mapped, Value, not_mapped};
use Rule::Launches;
use ep_core::DType;

pub(super) const RULES: Family = &[
    ("DequantizeLinear", Launches(dequantize_linear)),
    ("QLinearMatMul", Launches(qlinear_matmul)),
    ("QuantizeLinear", Launches(quantize_linear)),
];

/// A scale or zero point, to broadcast with x: a scalar, or one element for each of an axis.
fn along(o: &Operator<'_>, value: &Value, x: &Value) -> Mapped<Value> {
    if value.count() == 1 {
        return value.shaped(&[]);
    }
    let axis = x.axis(o.int("axis", 1))?;
    if value.rank() != 1 || o.int("block_size", 0) != 0 || value.count() != x.shape[axis] {
        return o.not_mapped("blocks with scales of their own");
    }
    let mut shape = vec![1; x.rank()];
    shape[axis] = value.count();
    value.shaped(&shape)
}

/// Saturates by the cast, after rounding to even.
fn quantized(on: &mut Machine<'_>, scaled: &Value, zero: Option<&Value>, to: DType) -> Mapped<Value> {
    let mut whole = on.unary("rint", scaled)?;
    if let Some(zero) = zero {
        let zero = on.cast(zero, whole.dtype)?;
        whole = on.binary("add", &whole, &zero)?;
    }
    on.cast(&whole, to)
}

fn quantize_linear(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, scale) = (o.input(0)?, o.input(1)?);
    let scale = on.cast(scale, x.dtype)?;
    let scaled = on.binary("div", x, &along(o, &scale, x)?)?;
    let zero = o.optional(2).map(|z| along(o, z, x)).transpose()?;
    let default = zero.as_ref().map_or(DType::U8, |z| z.dtype);
    one(quantized(on, &scaled, zero.as_ref(), o.dtype("output_dtype", default)?))
}

/// The difference is computed in 32-bit integers, and the product in the scale's dtype.
fn dequantize_linear(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, scale) = (o.input(0)?, o.input(1)?);
    if x.dtype.is_float() {
        return not_mapped("DequantizeLinear: floats");
    }
    let mut difference = on.cast(x, DType::I32)?;
    if let Some(zero) = o.optional(2) {
        let zero = on.cast(zero, DType::I32)?;
        difference = on.binary("sub", &difference, &along(o, &zero, x)?)?;
    }
    let difference = on.cast(&difference, scale.dtype)?;
    one(on.binary("mul", &difference, &along(o, scale, x)?))
}

/// a, its scale and zero point; b likewise; those of the result.
fn qlinear_matmul(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    if (0..8).filter(|i| ![0, 3].contains(i)).any(|i| o.optional(i).is_none_or(|v| v.count() != 1)) {
        return o.not_mapped("scales of rows and columns");
    }
    let single = |i: usize| o.input(i)?.shaped(&[]);
    let mut operands = Vec::new();
    for i in [0, 3] {
        let (x, zero) = (on.cast(o.input(i)?, DType::I32)?, on.cast(&single(i + 2)?, DType::I32)?);
        operands.push(on.binary("sub", &x, &zero)?);
    }
    let product = matmul(on, &operands[0], &operands[1])?;
    let mut product = on.cast(&product, DType::F32)?;
    for (i, op) in [(1, "mul"), (4, "mul"), (6, "div")] {
        let scale = on.cast(&single(i)?, DType::F32)?;
        product = on.binary(op, &product, &scale)?;
    }
    let zero = single(7)?;
    one(quantized(on, &product, Some(&zero), zero.dtype))
}
