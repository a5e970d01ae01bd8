//! `batch_gather`.

use super::{Window, launch, shape};
use crate::sbp::Sbp::{Broadcast, PartialSum, Split};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::primitive::IndexMode;
use ep_core::{Error, Result};

/// Picks slices along an axis, each batch with its own indices, as `tf.gather` with `batch_dims`.
///
/// Inputs: params of any dtype, and indices, i32 or i64; their first `batch_dims` dimensions are equal. Output:
/// `params[:axis] + indices[batch_dims:] + params[axis + 1:]`, as shapes. On a device that works later, an index that is
/// refused is an error of the next synchronisation.
#[derive(Clone, Debug)]
pub struct BatchGather {
    /// The axis of params, not below `batch_dims`; negative ones count from the end.
    pub axis: i64,
    /// How many dimensions are batches.
    pub batch_dims: usize,
    /// What an index outside of the axis means.
    pub mode: IndexMode,
    /// Where params has a part of the axis only; indices count in all of it, and one outside of the part gives zeros.
    pub window: Option<Window>,
}

impl BatchGather {
    /// The axis of these params.
    fn axis(&self, params: &Spec, indices: &Spec) -> Result<usize> {
        let (axis, batch) = (params.dim(self.axis)?, self.batch_dims);
        if batch > axis || batch > params.rank() || batch > indices.rank() {
            return Err(Error::invalid(format!(
                "{params} by {indices} with {batch} batch dimensions along dimension {axis}: both have the \
                 batch dimensions, and the axis comes behind them"
            )));
        }
        if params.shape[..batch] != indices.shape[..batch] {
            return Err(Error::invalid(format!(
                "{params} by {indices}: the first {batch} dimensions, which are batches, differ"
            )));
        }
        Ok(axis)
    }
}

impl Operator for BatchGather {
    fn name(&self) -> &'static str {
        "batch_gather"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [params, indices] = shape::named(inputs, ["params", "indices"])?;
        shape::index_dtype(indices)?;
        let axis = self.axis(params, indices)?;
        let shape = shape::replaced(&params.shape, axis, &indices.shape[self.batch_dims..]);
        Ok(vec![shape::output(params.dtype, shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let (params, indices) = (launch::dense(ops, inputs[0])?, launch::dense(ops, inputs[1])?);
        let to = launch::inferred(self, inputs)?.remove(0);
        let axis = self.axis(params.spec(), indices.spec())?;
        let (batch, rest) = params.shape().split_at(self.batch_dims);
        let around = shape::Around::new(rest, axis - self.batch_dims);
        let batch = batch.iter().product();
        let (offset, size) = Window::arguments(self.window, around);
        let desc = p::BatchGatherDesc::new(self.mode, indices.dtype(), params.dtype());
        let primitive = ops.primitive::<p::BatchGather>(desc)?;
        let num_indices = indices.shape()[self.batch_dims..].iter().product();
        let dst = launch::output(ops, &to, |dst| {
            let (src, indices) = (params.read()?, indices.read()?);
            let (src, indices) = (src.view()?, indices.view()?);
            let shape::Around { outer, size: processed, inner } = around;
            primitive.launch(
                ops.stream(),
                p::BatchGatherCall {
                    batch,
                    outer,
                    processed,
                    inner,
                    num_indices,
                    offset,
                    size,
                    indices,
                    src,
                    dst,
                },
            )
        })?;
        Ok(vec![dst])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let axis = inputs[0].dim(self.axis).unwrap_or(0);
        let (rank, batch) = (inputs[0].rank(), self.batch_dims);
        let picked = inputs[1].rank() - batch;
        let mut all = vec![Signature::broadcast(2, 1)];
        all.extend((0..batch).map(|d| Signature::new([Split(d), Split(d)], [Split(d)])));
        all.extend((0..picked).map(|d| Signature::new([Broadcast, Split(batch + d)], [Split(axis + d)])));
        all.extend((batch..rank).map(|d| {
            let out = match d {
                _ if d < axis => Split(d),
                // A part gives zeros for what the others have.
                _ if d == axis => PartialSum,
                _ => Split(d + picked - 1),
            };
            Signature::new([Split(d), Broadcast], [out])
        }));
        all.push(Signature::new([PartialSum, Broadcast], [PartialSum]));
        all
    }

    fn for_shard(
        &self,
        inputs: &[Spec],
        signature: &Signature,
        index: usize,
        devices: usize,
    ) -> Option<Box<dyn Operator>> {
        let window = Window::of_shard(self.window, &inputs[0], self.axis, signature, index, devices)?;
        Some(Box::new(BatchGather { window: Some(window), ..self.clone() }))
    }
}

impl Ops<'_> {
    /// Picks slices along an axis, each batch with its own indices: what of the shape of `indices` comes behind the batch
    /// dimensions replaces the axis. See [`BatchGather`].
    ///
    /// # Errors
    /// `InvalidArgument` for an axis that params does not have or that is a batch dimension, batch dimensions that differ,
    /// indices that are neither i32 nor i64, and, by `mode`, an index outside of the axis.
    pub fn batch_gather(
        &self,
        params: &Tensor,
        indices: &Tensor,
        axis: i64,
        batch_dims: usize,
        mode: IndexMode,
    ) -> Result<Tensor> {
        launch::one(self.apply(&BatchGather { axis, batch_dims, mode, window: None }, &[params, indices])?)
    }
}
