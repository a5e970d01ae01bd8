//! `layer_norm`.

use super::{launch, shape};
use crate::sbp::Sbp::{Broadcast, PartialSum, Split};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::{DType, Error, Result};
use ep_registry::{Buffer, Read};

/// Normalises over the last dimensions: `(x - mean) * rstd * gamma + beta` with `rstd = 1 / sqrt(variance + epsilon)`.
///
/// Inputs: x, f16, bf16, f32 or f64; then gamma, if `scale`, and beta, if `shift`, of the dtype of x and the shape of its
/// last dimensions. Outputs: as x; and, if `stats`, mean and rstd of the shape of the other dimensions, f64 for f64 and f32
/// for the others.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// How many of the last dimensions make a row: 1 or more.
    pub dims: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether there is a gamma.
    pub scale: bool,
    /// Whether there is a beta.
    pub shift: bool,
    /// Whether mean and rstd are outputs.
    pub stats: bool,
}

/// The dtype of means and deviations.
pub(super) fn stats_dtype(data: DType) -> DType {
    if data == DType::F64 { data } else { DType::F32 }
}

/// Shapes of the rows and of one row; fails where x has too few dimensions or a parameter another shape than a row.
pub(super) fn split<'x>(x: &'x Spec, dims: usize, parameters: &[Spec]) -> Result<(&'x [i64], &'x [i64])> {
    shape::float_dtype(x)?;
    if dims == 0 || dims > x.rank() {
        return Err(Error::invalid(format!(
            "{x} over the last {dims} dimensions: it takes 1 to {} of them",
            x.rank()
        )));
    }
    let (rows, row) = x.shape.split_at(x.rank() - dims);
    for parameter in parameters {
        shape::same_dtype(x, parameter)?;
        if parameter.shape != row {
            return Err(Error::invalid(format!(
                "{x} over the last {dims} dimensions by {parameter}: gamma, beta and weight have the shape \
                 {row:?} then"
            )));
        }
    }
    Ok((rows, row))
}

impl Operator for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let parameters = match (self.scale, self.shift) {
            (true, true) => &shape::named(inputs, ["x", "gamma", "beta"])?[1..],
            (true, false) => &shape::named(inputs, ["x", "gamma"])?[1..],
            (false, true) => &shape::named(inputs, ["x", "beta"])?[1..],
            (false, false) => &shape::named(inputs, ["x"])?[1..],
        };
        let x = &inputs[0];
        let (rows, _) = split(x, self.dims, parameters)?;
        let mut outputs = vec![shape::output(x.dtype, x.shape.clone())?];
        if self.stats {
            outputs.extend([Spec::new(stats_dtype(x.dtype), rows), Spec::new(stats_dtype(x.dtype), rows)]);
        }
        Ok(outputs)
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let to = launch::inferred(self, inputs)?;
        let inputs = inputs.iter().map(|x| launch::dense(ops, x)).collect::<Result<Vec<_>>>()?;
        let x = &inputs[0];
        let (rows, row) = split(x.spec(), self.dims, &[])?;
        let (rows, cols) = (rows.iter().product(), row.iter().product());
        let desc = p::LayerNormDesc::new(x.dtype(), stats_dtype(x.dtype())).with_epsilon(self.epsilon);
        let primitive = ops.primitive::<p::LayerNorm>(desc)?;
        let reads = inputs.iter().map(Tensor::read).collect::<Result<Vec<_>>>()?;
        let mut views =
            reads.iter().map(|read| Ok(Read::View(read.view()?))).collect::<Result<Vec<_>>>()?.into_iter();
        let mut next = |present: bool| if present { views.next().unwrap_or(Read::None) } else { Read::None };
        let (src, gamma, beta) = (next(true), next(self.scale), next(self.shift));
        launch::outputs(ops, &to, |buffers: &mut [Buffer]| match buffers {
            [dst, mean, rstd] => primitive
                .launch(ops.stream(), p::LayerNormCall { rows, cols, src, gamma, beta, dst, mean, rstd }),
            [dst, ..] => {
                let (mean, rstd) = (ep_registry::NoMemory, ep_registry::NoMemory);
                primitive
                    .launch(ops.stream(), p::LayerNormCall { rows, cols, src, gamma, beta, dst, mean, rstd })
            }
            [] => Err(Error::internal("layer_norm without an output")),
        })
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        let Ok(outputs) = self.infer(inputs) else { return Vec::new() };
        let (parameters, stats) = (inputs.len() - 1, outputs.len() - 1);
        let mut all = vec![Signature::broadcast(inputs.len(), outputs.len())];
        all.extend((0..inputs[0].rank() - self.dims).map(|d| {
            let inputs = [vec![Split(d)], vec![Broadcast; parameters]].concat();
            Signature::new(inputs, vec![Split(d); outputs.len()])
        }));
        if self.scale {
            // The result is linear in gamma and beta together; mean and rstd know nothing of them.
            let inputs = [vec![Broadcast], vec![PartialSum; parameters]].concat();
            all.push(Signature::new(inputs, [vec![PartialSum], vec![Broadcast; stats]].concat()));
        }
        all
    }
}

impl Ops<'_> {
    /// Normalises over the last `dims` dimensions. See [`LayerNorm`], which gives means and deviations too.
    ///
    /// # Errors
    /// `InvalidArgument` for more dimensions than x has, other dtypes than floats, and a gamma or beta of another dtype or
    /// shape.
    pub fn layer_norm(
        &self,
        x: &Tensor,
        dims: usize,
        gamma: Option<&Tensor>,
        beta: Option<&Tensor>,
        epsilon: f64,
    ) -> Result<Tensor> {
        let operator =
            LayerNorm { dims, epsilon, scale: gamma.is_some(), shift: beta.is_some(), stats: false };
        let inputs: Vec<&Tensor> = [Some(x), gamma, beta].into_iter().flatten().collect();
        launch::one(self.apply(&operator, &inputs)?)
    }
}
