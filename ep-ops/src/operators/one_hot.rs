//! `one_hot`.

use super::{Window, launch, number, shape};
use crate::sbp::Sbp::{Broadcast, Split};
use crate::{Operator, Ops, Shape, Signature, Spec, Tensor, sbp};
use ep_core::primitive as p;
use ep_core::primitive::IndexMode;
use ep_core::{DType, Error, Result, Scalar};

/// A row for each index, `on` at its class and `off` elsewhere.
///
/// Input: indices, i32 or i64, of any shape. Output: of `dtype`, their shape and `depth` behind it. On a device that works
/// later, an index that is refused is an error of the next synchronisation.
#[derive(Clone, Debug)]
pub struct OneHot {
    /// The number of classes; with a window the number of columns.
    pub depth: i64,
    /// What an index that is no class means.
    pub mode: IndexMode,
    /// The value at the class of a row, which the dtype can hold; none means 1.
    pub on: Scalar,
    /// The value elsewhere, likewise; none means 0.
    pub off: Scalar,
    /// The dtype of the output.
    pub dtype: DType,
    /// Where there are columns for some of the classes only.
    pub window: Option<Window>,
}

impl Operator for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [indices] = shape::named(inputs, ["indices"])?;
        shape::index_dtype(indices)?;
        let values = [self.on, self.off].into_iter().filter(|value| *value != Scalar::None);
        if let Some(value) = values.into_iter().find(|value| !number::holds(self.dtype, *value)) {
            return Err(Error::invalid(format!(
                "{value}: {} cannot hold it, and none is converted; choose another dtype",
                self.dtype
            )));
        }
        let shape: Shape = indices.shape.iter().copied().chain([self.depth]).collect();
        Ok(vec![shape::output(self.dtype, shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let indices = launch::dense(ops, inputs[0])?;
        let to = launch::inferred(self, inputs)?.remove(0);
        let desc = p::OneHotDesc::new(self.mode, indices.dtype(), to.dtype);
        let primitive = ops.primitive::<p::OneHot>(desc)?;
        let (num_indices, depth, on, off) = (indices.spec().count()?, self.depth, self.on, self.off);
        let (offset, size) = self.window.map_or((0, depth), |window| (window.offset, window.size));
        let dst = launch::output(ops, &to, |dst| {
            let indices = indices.read()?;
            let indices = indices.view()?;
            let call = p::OneHotCall { num_indices, depth, offset, size, on, off, indices, dst };
            primitive.launch(ops.stream(), call)
        })?;
        Ok(vec![dst])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        if self.infer(inputs).is_err() {
            return Vec::new();
        }
        let rank = inputs[0].rank();
        let mut all = vec![Signature::broadcast(1, 1)];
        all.extend((0..rank).map(|d| Signature::new([Split(d)], [Split(d)])));
        all.push(Signature::new([Broadcast], [Split(rank)]));
        all
    }

    fn for_shard(
        &self,
        inputs: &[Spec],
        signature: &Signature,
        index: usize,
        devices: usize,
    ) -> Option<Box<dyn Operator>> {
        if signature.inputs[0] != Broadcast || signature.outputs[0] != Split(inputs[0].rank()) {
            return None;
        }
        let (_, depth) = sbp::part(self.depth, index, devices);
        let window = Some(Window::of_part(self.window, self.depth, index, devices));
        Some(Box::new(OneHot { depth, window, ..self.clone() }))
    }
}

impl Ops<'_> {
    /// Rows of 0 with a 1 at the class of each index; an index that is no class is refused. See [`OneHot`].
    ///
    /// # Errors
    /// `InvalidArgument` for indices that are neither i32 nor i64, a negative depth, and an index outside of `0..depth`.
    pub fn one_hot(&self, indices: &Tensor, depth: i64, dtype: DType) -> Result<Tensor> {
        let (mode, on, off) = (IndexMode::ERROR, Scalar::None, Scalar::None);
        launch::one(self.apply(&OneHot { depth, mode, on, off, dtype, window: None }, &[indices])?)
    }
}
