//! `rms_norm`.

use super::layer_norm::{split, stats_dtype};
use super::{launch, shape};
use crate::sbp::Sbp::{Broadcast, PartialSum, Split};
use crate::{Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::{Error, Result};
use ep_registry::{Buffer, NoMemory, Read};

/// Scales by the root mean square over the last dimensions: `x * inv_rms * weight` with
/// `inv_rms = 1 / sqrt(mean(x^2) + epsilon)`.
///
/// Inputs: x, f16, bf16, f32 or f64; then weight, if `scale`, of the dtype of x and the shape of its last dimensions.
/// Outputs: as x; and, if `stats`, inv_rms of the shape of the other dimensions, f64 for f64 and f32 for the others.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// How many of the last dimensions make a row: 1 or more.
    pub dims: usize,
    /// Added to the mean square.
    pub epsilon: f64,
    /// Whether there is a weight.
    pub scale: bool,
    /// Whether inv_rms is an output.
    pub stats: bool,
}

impl Operator for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let parameters = if self.scale {
            &shape::named(inputs, ["x", "weight"])?[1..]
        } else {
            &shape::named(inputs, ["x"])?[1..]
        };
        let x = &inputs[0];
        let (rows, _) = split(x, self.dims, parameters)?;
        let mut outputs = vec![shape::output(x.dtype, x.shape.clone())?];
        if self.stats {
            outputs.push(Spec::new(stats_dtype(x.dtype), rows));
        }
        Ok(outputs)
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let to = launch::inferred(self, inputs)?;
        let inputs = inputs.iter().map(|x| launch::dense(ops, x)).collect::<Result<Vec<_>>>()?;
        let x = &inputs[0];
        let (rows, row) = split(x.spec(), self.dims, &[])?;
        let (rows, cols) = (rows.iter().product(), row.iter().product());
        let desc = p::RmsNormDesc::new(x.dtype(), stats_dtype(x.dtype())).with_epsilon(self.epsilon);
        let primitive = ops.primitive::<p::RmsNorm>(desc)?;
        let reads = inputs.iter().map(Tensor::read).collect::<Result<Vec<_>>>()?;
        let src = reads[0].view()?;
        let weight = match reads.get(1) {
            Some(weight) => Read::View(weight.view()?),
            None => Read::None,
        };
        launch::outputs(ops, &to, |buffers: &mut [Buffer]| match buffers {
            [dst, inv_rms] => {
                primitive.launch(ops.stream(), p::RmsNormCall { rows, cols, src, weight, dst, inv_rms })
            }
            [dst, ..] => {
                let inv_rms = NoMemory;
                primitive.launch(ops.stream(), p::RmsNormCall { rows, cols, src, weight, dst, inv_rms })
            }
            [] => Err(Error::internal("rms_norm without an output")),
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
            // The result is linear in the weight, of which inv_rms knows nothing.
            let outputs = [vec![PartialSum], vec![Broadcast; stats]].concat();
            all.push(Signature::new([Broadcast, PartialSum], outputs));
        }
        all
    }
}

impl Ops<'_> {
    /// Scales by the root mean square over the last `dims` dimensions. See [`RmsNorm`], which gives the scales too.
    ///
    /// # Errors
    /// `InvalidArgument` for more dimensions than x has, other dtypes than floats, and a weight of another dtype or shape.
    pub fn rms_norm(&self, x: &Tensor, dims: usize, weight: Option<&Tensor>, epsilon: f64) -> Result<Tensor> {
        let operator = RmsNorm { dims, epsilon, scale: weight.is_some(), stats: false };
        let inputs: Vec<&Tensor> = [Some(x), weight].into_iter().flatten().collect();
        launch::one(self.apply(&operator, &inputs)?)
    }
}
