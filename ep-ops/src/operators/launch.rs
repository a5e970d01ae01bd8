//! From tensors to the operands of launches, and back.

use crate::{MemoryFormat, Operator, Ops, Spec, Tensor};
use ep_core::{Code, Error, Result};
use ep_registry::Buffer;
use smallvec::SmallVec;

/// The tensor itself where it is dense, else a dense copy.
pub(super) fn dense(ops: &Ops<'_>, x: &Tensor) -> Result<Tensor> {
    ops.contiguous(x, MemoryFormat::Contiguous)
}

/// Computes from views as they lie, and where the device has no primitive that takes them so, from dense copies of them.
pub(super) fn or_dense<T>(
    as_they_lie: impl FnOnce() -> Result<T>,
    dense: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let refused = match as_they_lie() {
        Err(e) if e.code() == Code::Unsupported => e,
        done => return done,
    };
    tracing::debug!("dense copies are computed with: {}", refused.message());
    dense()
}

/// A new dense tensor that a launch writes.
pub(super) fn output(
    ops: &Ops<'_>,
    spec: &Spec,
    launch: impl FnOnce(&mut Buffer) -> Result<()>,
) -> Result<Tensor> {
    let mut buffer = ops.alloc(spec.dtype, spec.count()? as usize)?;
    launch(&mut buffer)?;
    Tensor::from_buffer(buffer, &spec.shape)
}

/// New dense tensors that one launch writes.
pub(super) fn outputs(
    ops: &Ops<'_>,
    specs: &[Spec],
    launch: impl FnOnce(&mut [Buffer]) -> Result<()>,
) -> Result<Vec<Tensor>> {
    let alloc = |spec: &Spec| ops.alloc(spec.dtype, spec.count()? as usize);
    let mut buffers = specs.iter().map(alloc).collect::<Result<Vec<_>>>()?;
    launch(&mut buffers)?;
    buffers.into_iter().zip(specs).map(|(buffer, spec)| Tensor::from_buffer(buffer, &spec.shape)).collect()
}

/// The outputs that an operator has for these inputs.
pub(super) fn inferred(operator: &dyn Operator, inputs: &[&Tensor]) -> Result<Vec<Spec>> {
    let inputs: SmallVec<[Spec; 4]> = inputs.iter().map(|input| input.spec().clone()).collect();
    operator.infer(&inputs)
}

/// The only output.
pub(super) fn one(outputs: Vec<Tensor>) -> Result<Tensor> {
    let mut outputs = outputs.into_iter();
    match (outputs.next(), outputs.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(Error::internal("an operator of one output gave another number of them")),
    }
}

/// Inputs for a primitive that broadcasts, dense: dimensions that repeat (stride 0) have size 1, so that nothing is copied
/// for them, except where no other input would give the output's size.
pub(super) fn broadcast(ops: &Ops<'_>, inputs: &[&Tensor], out: &[i64]) -> Result<Vec<Tensor>> {
    let mut small = inputs.iter().map(|x| once(x, x.rank())).collect::<Result<Vec<_>>>()?;
    for (dim, size) in out.iter().enumerate() {
        let has = |x: &Tensor| own(x, out, dim).is_some_and(|own| x.shape()[own] == *size);
        if small.iter().any(has) {
            continue;
        }
        // All that have the size repeat: the first one is written out along this dimension.
        let Some(n) = inputs.iter().position(|x| has(x)) else { continue };
        let mut shape = small[n].shape().to_vec();
        if let Some(own) = own(&small[n], out, dim) {
            shape[own] = *size;
        }
        small[n] = small[n].expand(&shape)?;
    }
    small.iter().map(|x| dense(ops, x)).collect()
}

/// A view of what a tensor has once: of the first so many dimensions those that repeat have size 1. What is empty has
/// nothing, so that none of it repeats.
pub(super) fn once(x: &Tensor, dims: usize) -> Result<Tensor> {
    let some = x.numel() != 0;
    let mut repeats = (0..dims).filter(|dim| some && x.strides()[*dim] == 0 && x.shape()[*dim] > 1);
    repeats.try_fold(x.alias(), |view, dim| view.narrow(dim as i64, 0, 1))
}

/// The dimension of a tensor that dimension `dim` of the shape that it broadcasts to is, if it has it.
fn own(x: &Tensor, out: &[i64], dim: usize) -> Option<usize> {
    (dim + x.rank()).checked_sub(out.len())
}
