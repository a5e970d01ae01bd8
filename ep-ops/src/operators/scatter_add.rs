//! `scatter_add`.

use super::{Window, launch, shape};
use crate::sbp::Sbp::{Broadcast, PartialSum, Split};
use crate::{MemoryFormat, Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::primitive::IndexMode;
use ep_core::{DType, Error, Result};

/// Adds slices along an axis, as `torch.index_add` with indices of any shape: `out = base`, then
/// `out[.., indices[i, j], ..] += src[.., i, j, ..]` in the order of the indices. With a base of zeros it is the gradient
/// of [`Gather`](super::Gather).
///
/// Inputs: base of any dtype but bool and of any shape; indices, i32 or i64, of any shape; src of base's dtype and the
/// shape `base[:axis] + indices + base[axis + 1:]`. Output: as base, which keeps its content. On a device that works
/// later, an index that is refused is an error of the next synchronisation.
#[derive(Clone, Debug)]
pub struct ScatterAdd {
    /// The axis of base; negative ones count from the end.
    pub axis: i64,
    /// What an index outside of the axis means.
    pub mode: IndexMode,
    /// Where base has a part of the axis only; indices count in all of it, and one outside of the part adds nothing.
    pub window: Option<Window>,
}

impl ScatterAdd {
    /// Adds to a dense base.
    fn add_to(&self, ops: &Ops<'_>, base: &Tensor, indices: &Tensor, src: &Tensor) -> Result<()> {
        let desc = p::ScatterAddDesc::new(self.mode, indices.dtype(), src.dtype());
        let primitive = ops.primitive::<p::ScatterAdd>(desc)?;
        let (indices, src) = (launch::dense(ops, indices)?, launch::dense(ops, src)?);
        let around = shape::Around::new(base.shape(), base.spec().dim(self.axis)?);
        let (offset, size) = Window::arguments(self.window, around);
        let num_indices = indices.spec().count()?;
        let ([indices, src], mut dst) = Tensor::lock([&indices, &src], base);
        let (indices, src, dst) = (indices.view()?, src.view()?, dst.view()?);
        let shape::Around { outer, size: processed, inner } = around;
        let call =
            p::ScatterAddCall { outer, processed, inner, num_indices, offset, size, indices, src, dst };
        primitive.launch(ops.stream(), call)
    }
}

impl Operator for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [base, indices, src] = shape::named(inputs, ["base", "indices", "src"])?;
        shape::index_dtype(indices)?;
        shape::same_dtype(base, src)?;
        if base.dtype == DType::BOOL {
            return Err(Error::invalid(format!("{base}: bool is not added up; cast base and src")));
        }
        let expected = shape::replaced(&base.shape, base.dim(self.axis)?, &indices.shape);
        if src.shape != expected {
            return Err(Error::invalid(format!(
                "{src} to {base} along dimension {} by {indices}: src has the shape {expected:?} then",
                self.axis
            )));
        }
        Ok(vec![base.clone()])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let base = ops.clone(inputs[0], MemoryFormat::Contiguous)?;
        self.add_to(ops, &base, inputs[1], inputs[2])?;
        Ok(vec![base])
    }

    fn run_in_place(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<bool> {
        let base = inputs[0];
        if base.is_contiguous(MemoryFormat::Contiguous) {
            self.add_to(ops, base, inputs[1], inputs[2])?;
            return Ok(true);
        }
        Ok(false)
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let axis = inputs[0].dim(self.axis).unwrap_or(0);
        let (rank, indices) = (inputs[0].rank(), inputs[1].rank());
        let mut all = vec![Signature::broadcast(3, 1)];
        all.extend((0..rank).map(|d| {
            let src = match d {
                _ if d < axis => Split(d),
                // A part leaves out what the others have.
                _ if d == axis => Broadcast,
                _ => Split(d + indices - 1),
            };
            Signature::new([Split(d), Broadcast, src], [Split(d)])
        }));
        all.extend(
            (0..indices).map(|d| Signature::new([PartialSum, Split(d), Split(axis + d)], [PartialSum])),
        );
        all.push(Signature::new([PartialSum, Broadcast, PartialSum], [PartialSum]));
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
        Some(Box::new(ScatterAdd { window: Some(window), ..self.clone() }))
    }
}

impl Ops<'_> {
    /// `base` with slices of `src` added at `indices` along an axis. See [`ScatterAdd`].
    ///
    /// # Errors
    /// `InvalidArgument` for an axis that base does not have, indices that are neither i32 nor i64, a src of another dtype
    /// or shape, bool, and, by `mode`, an index outside of the axis.
    pub fn scatter_add(
        &self,
        base: &Tensor,
        indices: &Tensor,
        src: &Tensor,
        axis: i64,
        mode: IndexMode,
    ) -> Result<Tensor> {
        launch::one(self.apply(&ScatterAdd { axis, mode, window: None }, &[base, indices, src])?)
    }

    /// The same in place of base, which on a device that works later may have been changed in part where an index is
    /// refused.
    ///
    /// # Errors
    /// As [`Ops::scatter_add`] and [`Ops::apply_`].
    pub fn scatter_add_(
        &self,
        base: &Tensor,
        indices: &Tensor,
        src: &Tensor,
        axis: i64,
        mode: IndexMode,
    ) -> Result<()> {
        self.apply_(&ScatterAdd { axis, mode, window: None }, &[base, indices, src])
    }
}
