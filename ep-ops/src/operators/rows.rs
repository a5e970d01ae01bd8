//! What softmax, its logarithm and their gradients share: rows along one dimension.

use super::order::Order;
use super::shape::{Around, float_dtype, output, same_dtype};
use crate::{Sbp, Signature, Spec, Tensor};
use ep_core::{DType, Result};

/// The order in which all inputs are dense, as [`Order::of`], and the dimension of the rows in it. In any order those
/// before it are rows, and those behind it lie between neighbours of a row.
pub(super) fn order(inputs: &[&Tensor], dim: i64) -> Result<Option<(Order, i64)>> {
    let Some(order) = Order::of(inputs) else { return Ok(None) };
    let dim = order.place(inputs[0].spec().dim(dim)?);
    Ok(Some((order, dim as i64)))
}

/// The output for inputs of one shape, with rows along `dim`.
pub(super) fn infer(inputs: &[Spec], dim: i64, dtype: Option<DType>) -> Result<Vec<Spec>> {
    let first = &inputs[0];
    float_dtype(first)?;
    for other in &inputs[1..] {
        same_dtype(first, other)?;
        if first.shape != other.shape {
            return Err(ep_core::Error::invalid(format!(
                "{first} and {other}: the shapes differ; y and dy have one"
            )));
        }
    }
    first.dim(dim)?;
    let to = Spec::new(dtype.unwrap_or(first.dtype), first.shape.clone());
    float_dtype(&to)?;
    Ok(vec![output(to.dtype, to.shape)?])
}

/// Rows, columns, and the elements between neighbours of a row.
pub(super) fn around(spec: &Spec, dim: i64) -> Result<Around> {
    let around = Around::new(&spec.shape, spec.dim(dim)?);
    // To the primitives an inner size of 0 means 1.
    Ok(if around.inner == 0 { Around { outer: 0, inner: 1, ..around } } else { around })
}

/// All dimensions but that of the rows can be split.
pub(super) fn splits(spec: &Spec, dim: i64, inputs: usize) -> Vec<Signature> {
    let own = spec.dim(dim).ok();
    let others = (0..spec.rank()).filter(|d| Some(*d) != own);
    others.map(|d| Signature::new(vec![Sbp::Split(d); inputs], [Sbp::Split(d)])).collect()
}
