//! `gather`.

use super::{Window, launch, shape};
use crate::sbp::Sbp::{Broadcast, PartialSum, Split};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::Result;
use ep_core::primitive as p;
use ep_core::primitive::IndexMode;

/// Picks slices along an axis, as `numpy.take` and ONNX's Gather: `out[.., i, j, ..] = params[.., indices[i, j], ..]`.
///
/// Inputs: params of any dtype and shape (a single element is taken to have one dimension), and indices, i32 or i64, of
/// any shape. Output: `params[:axis] + indices + params[axis + 1:]`, as shapes. On a device that works later, an index
/// that is refused is an error of the next synchronisation.
#[derive(Clone, Debug)]
pub struct Gather {
    /// The axis of params; negative ones count from the end.
    pub axis: i64,
    /// What an index outside of the axis means.
    pub mode: IndexMode,
    /// Where params has a part of the axis only; indices count in all of it, and one outside of the part gives zeros.
    pub window: Option<Window>,
}

impl Operator for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [params, indices] = shape::named(inputs, ["params", "indices"])?;
        shape::index_dtype(indices)?;
        let shape = shape::replaced(&params.shape, params.dim(self.axis)?, &indices.shape);
        Ok(vec![shape::output(params.dtype, shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let (params, indices) = (launch::dense(ops, inputs[0])?, launch::dense(ops, inputs[1])?);
        let to = launch::inferred(self, inputs)?.remove(0);
        let around = shape::Around::new(params.shape(), params.spec().dim(self.axis)?);
        let (offset, size) = Window::arguments(self.window, around);
        let desc = p::GatherDesc::new(self.mode, indices.dtype(), params.dtype());
        let primitive = ops.primitive::<p::Gather>(desc)?;
        let num_indices = indices.spec().count()?;
        let dst = launch::output(ops, &to, |dst| {
            let (src, indices) = (params.read()?, indices.read()?);
            let (src, indices) = (src.view()?, indices.view()?);
            let shape::Around { outer, size: processed, inner } = around;
            let call =
                p::GatherCall { outer, processed, inner, num_indices, offset, size, indices, src, dst };
            primitive.launch(ops.stream(), call)
        })?;
        Ok(vec![dst])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let axis = inputs[0].dim(self.axis).unwrap_or(0);
        let (rank, indices) = (inputs[0].rank(), inputs[1].rank());
        let mut all = vec![Signature::broadcast(2, 1)];
        all.extend((0..indices).map(|d| Signature::new([Broadcast, Split(d)], [Split(axis + d)])));
        all.extend((0..rank).map(|d| {
            let out = match d {
                _ if d < axis => Split(d),
                // A part gives zeros for what the others have.
                _ if d == axis => PartialSum,
                _ => Split(d + indices - 1),
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
        Some(Box::new(Gather { window: Some(window), ..self.clone() }))
    }
}

impl Ops<'_> {
    /// Picks slices along an axis, as `numpy.take`: the shape of `indices` replaces that axis. See [`Gather`].
    ///
    /// # Errors
    /// `InvalidArgument` for an axis that params does not have, indices that are neither i32 nor i64, and, by `mode`, an
    /// index outside of the axis.
    pub fn gather(&self, params: &Tensor, indices: &Tensor, axis: i64, mode: IndexMode) -> Result<Tensor> {
        launch::one(self.apply(&Gather { axis, mode, window: None }, &[params, indices])?)
    }
}
