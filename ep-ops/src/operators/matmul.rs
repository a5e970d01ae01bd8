//! Matrix products: `matmul`, `batch_matmul` and `broadcast_matmul`, by the shapes.

use super::{launch, shape};
use crate::sbp::Sbp::{self, Broadcast, PartialSum, Split};
use crate::{MemoryFormat, Operator, Ops, Shape, Signature, Spec, Tensor, sbp};
use ep_core::primitive as p;
use ep_core::primitive::Transpose;
use ep_core::{DType, Error, Result, Scalar};

/// Matrix products, as `numpy.matmul` and `torch.matmul`.
///
/// Inputs: a `[.., m, k]` and b `[.., k, n]` of one dtype but bool; what comes before the matrices broadcasts. Output:
/// `[.., m, n]`. An a of one dimension is a row, and a b of one dimension a column, that the output lacks: of two the output
/// is a single element.
///
/// A transposed view of a dense matrix is taken as it lies where the device has products of such, except of complex numbers,
/// whose transposing primitives conjugate; what repeats in a view (`expand`) before the matrices is not written out.
#[derive(Clone, Debug)]
pub struct Matmul;

/// Sizes of a product.
pub(super) struct Sizes {
    batch: Shape,
    m: Option<i64>,
    n: Option<i64>,
    k: i64,
}

impl Sizes {
    pub(super) fn new(a: &Spec, b: &Spec) -> Result<Sizes> {
        shape::same_dtype(a, b)?;
        if a.dtype == DType::BOOL {
            return Err(Error::invalid(format!("{a} and {b}: there are no products of bool; cast both")));
        }
        if a.rank() == 0 || b.rank() == 0 {
            return Err(Error::invalid(format!(
                "{a} and {b}: a single element is no matrix; multiply by `mul`"
            )));
        }
        let (m, k) = match a.shape[..] {
            [.., m, k] => (Some(m), k),
            _ => (None, a.shape[0]),
        };
        let (stored, n) = match b.shape[..] {
            [.., k, n] => (k, Some(n)),
            _ => (b.shape[0], None),
        };
        if k != stored {
            return Err(Error::invalid(format!(
                "{a} and {b}: {k} columns of the first meet {stored} rows of the second, and must be as many"
            )));
        }
        let batch = shape::broadcast(&[batch(&a.shape), batch(&b.shape)])?;
        Ok(Sizes { batch, m, n, k })
    }

    pub(super) fn output(&self) -> Shape {
        self.batch.iter().copied().chain(self.m).chain(self.n).collect()
    }
}

/// The dimensions before the matrix.
fn batch(shape: &[i64]) -> &[i64] {
    &shape[..shape.len().saturating_sub(2)]
}

/// An operand of a primitive.
pub(super) type Operand = (Tensor, Transpose);

/// An operand that is dense, by a copy where it has to be.
pub(super) fn dense(ops: &Ops<'_>, x: &Tensor) -> Result<Operand> {
    Ok((launch::dense(ops, &launch::once(x, x.rank() - 2)?)?, Transpose::NONE))
}

/// An operand that is dense as stored, which may be transposed.
pub(super) fn stored(ops: &Ops<'_>, x: &Tensor) -> Result<Operand> {
    let once = launch::once(x, x.rank() - 2)?;
    let is_dense = |x: &Tensor| x.is_contiguous(MemoryFormat::Contiguous);
    if is_dense(&once) {
        return Ok((once, Transpose::NONE));
    }
    let turned = once.transpose(-1, -2)?;
    if is_dense(&turned) && !x.dtype().is_complex() {
        return Ok((turned, Transpose::TRANSPOSE));
    }
    dense(ops, &once)
}

/// The first operand, with what both repeat along the same batch dimension written out: one of them has to have all of it.
fn unshared(ops: &Ops<'_>, a: Tensor, b: &Tensor, batch: &[i64]) -> Result<Tensor> {
    let repeats = |x: &Tensor, dim: usize| {
        let own = (dim + x.rank() - 2).checked_sub(batch.len());
        own.is_none_or(|own| x.strides()[own] == 0 || x.shape()[own] == 1)
    };
    let both = |dim: usize| batch[dim] > 1 && repeats(&a, dim) && repeats(b, dim);
    if !(0..batch.len()).any(both) {
        return Ok(a);
    }
    let own = a.rank() - 2;
    // What only the first one repeats stays as it is, so that no more is written than needed.
    let once = launch::once(&a, own)?;
    let before = vec![1; batch.len() - own];
    let mut shape = [&before[..], once.shape()].concat();
    for dim in (0..batch.len()).filter(|dim| both(*dim)) {
        shape[dim] = batch[dim];
    }
    launch::dense(ops, &once.expand(&shape)?)
}

/// The product of matrices, with the batches of the operands.
fn product(ops: &Ops<'_>, a: &Tensor, b: &Tensor, sizes: &Sizes, to: &Spec) -> Result<Tensor> {
    let (stored_a, stored_b) = (stored(ops, a)?, stored(ops, b)?);
    if (stored_a.1, stored_b.1) == (Transpose::NONE, Transpose::NONE) {
        return product_of(ops, stored_a, stored_b, sizes, to);
    }
    launch::or_dense(
        || product_of(ops, stored_a, stored_b, sizes, to),
        || product_of(ops, dense(ops, a)?, dense(ops, b)?, sizes, to),
    )
}

/// The product of operands that are dense, as stored.
fn product_of(ops: &Ops<'_>, a: Operand, b: Operand, sizes: &Sizes, to: &Spec) -> Result<Tensor> {
    let ((a, transpose_a), (b, transpose_b)) = (a, b);
    let (dtype, alpha, beta) = (to.dtype, Scalar::None, Scalar::None);
    let (m, n, k) = (sizes.m.unwrap_or(1), sizes.n.unwrap_or(1), sizes.k);
    let (a_dims, b_dims) = (a.shape(), b.shape());
    let (a_batch, b_batch) = (batch(a_dims), batch(b_dims));
    let items = |batch: &[i64]| batch.iter().product::<i64>();
    let items = (items(a_batch), items(b_batch), items(&sizes.batch));
    // One b for all of a: the batches are rows more.
    let rows = transpose_a == Transpose::NONE && items.1 == 1 && items.0 == items.2;
    if rows || items.2 == 1 {
        let primitive = ops.primitive::<p::Matmul>(p::MatmulDesc::new(transpose_a, transpose_b, dtype))?;
        let m = m * items.2;
        return launch::output(ops, to, |c| {
            let (a, b) = (a.read()?, b.read()?);
            let (a, b) = (a.view()?, b.view()?);
            primitive.launch(ops.stream(), p::MatmulCall { m, n, k, alpha, beta, a, b, c })
        });
    }
    if a_batch == b_batch {
        let desc = p::BatchMatmulDesc::new(transpose_a, transpose_b, dtype);
        let primitive = ops.primitive::<p::BatchMatmul>(desc)?;
        return launch::output(ops, to, |c| {
            let (a, b) = (a.read()?, b.read()?);
            let (a, b) = (a.view()?, b.view()?);
            let call = p::BatchMatmulCall { batch: items.2, m, n, k, alpha, beta, a, b, c };
            primitive.launch(ops.stream(), call)
        });
    }
    let desc = p::BroadcastMatmulDesc::new(transpose_a, transpose_b, dtype);
    let primitive = ops.primitive::<p::BroadcastMatmul>(desc)?;
    let c_dims: Shape = sizes.batch.iter().copied().chain([m, n]).collect();
    launch::output(ops, to, |c| {
        let (a, b) = (a.read()?, b.read()?);
        let (a, b) = (a.view()?, b.view()?);
        let call = p::BroadcastMatmulCall { alpha, beta, a_dims, b_dims, c_dims: &c_dims, a, b, c };
        primitive.launch(ops.stream(), call)
    })
}

impl Operator for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [a, b] = shape::named(inputs, ["a", "b"])?;
        Ok(vec![shape::output(a.dtype, Sizes::new(a, b)?.output())?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let to = launch::inferred(self, inputs)?.remove(0);
        let (a, b) = (inputs[0], inputs[1]);
        let sizes = Sizes::new(a.spec(), b.spec())?;
        let a = if a.rank() == 1 { a.unsqueeze(0)? } else { a.alias() };
        let b = if b.rank() == 1 { b.unsqueeze(1)? } else { b.alias() };
        Ok(vec![product(ops, &unshared(ops, a, &b, &sizes.batch)?, &b, &sizes, &to)?])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        let Ok(outputs) = self.infer(inputs) else { return Vec::new() };
        let [a, b] = inputs else { return Vec::new() };
        let rank = outputs[0].rank();
        let batches = batch(&a.shape).len().max(batch(&b.shape).len());
        let mut all = vec![Signature::broadcast(2, 1)];
        let mut push = |inputs: [Sbp; 2], output: Sbp| all.push(Signature::new(inputs, [output]));
        for split in sbp::of_broadcast(&[batch(&a.shape), batch(&b.shape)], &outputs[0].shape[..batches]) {
            push([split.inputs[0], split.inputs[1]], split.outputs[0]);
        }
        if a.rank() > 1 {
            push([Split(a.rank() - 2), Broadcast], Split(batches));
        }
        if b.rank() > 1 {
            push([Broadcast, Split(b.rank() - 1)], Split(rank - 1));
        }
        // Each device has a part of the addends.
        push([Split(a.rank() - 1), Split(b.rank().saturating_sub(2))], PartialSum);
        push([PartialSum, Broadcast], PartialSum);
        push([Broadcast, PartialSum], PartialSum);
        all
    }
}

impl Ops<'_> {
    /// Matrix products, with batches that broadcast. See [`Matmul`].
    ///
    /// # Errors
    /// `InvalidArgument` for dtypes that differ, bool, single elements, sizes that do not meet, and batches that do not
    /// broadcast.
    pub fn matmul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        launch::one(self.apply(&Matmul, &[a, b])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_registry::Runtime;

    #[test]
    fn what_is_taken_as_it_lies_and_what_is_copied() {
        let runtime =
            Runtime::builder().threads(1).linked::<ep_cpu::provider::CpuProvider>("cpu").build().unwrap();
        let ops = Ops::new(&runtime, "cpu").unwrap();
        let x = ops.zeros(DType::F32, &[2, 3, 4]).unwrap();
        let of = |x: &Tensor| {
            let (stored, transpose) = stored(&ops, x).unwrap();
            assert!(stored.is_contiguous(MemoryFormat::Contiguous));
            (stored.shape().to_vec(), transpose, stored.shares_storage(x))
        };
        let (none, transpose) = (Transpose::NONE, Transpose::TRANSPOSE);
        assert_eq!(of(&x), (vec![2, 3, 4], none, true));
        // As stored, which is the transpose of what it shows.
        assert_eq!(of(&x.transpose(-1, -2).unwrap()), (vec![2, 3, 4], transpose, true));
        // The batches are not in order, or the rows have gaps.
        assert_eq!(of(&x.transpose(0, 1).unwrap()), (vec![3, 2, 4], none, false));
        assert_eq!(of(&x.narrow(2, 0, 2).unwrap()), (vec![2, 3, 2], none, false));
        // What repeats is there once.
        let one = x.narrow(0, 1, 1).unwrap().expand(&[5, 3, 4]).unwrap();
        assert_eq!(of(&one), (vec![1, 3, 4], none, true));
        assert_eq!(of(&one.transpose(1, 2).unwrap()), (vec![1, 3, 4], transpose, true));
        let complex = ops.zeros(DType::COMPLEX64, &[3, 4]).unwrap();
        assert_eq!(of(&complex.t().unwrap()), (vec![4, 3], none, false));
    }
}
