//! `layer_norm`.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::layer_norm::{self, NormArgs, NormFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{LayerNorm, LayerNormArgs, LayerNormDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let dtypes = layer_norm::rows().map(|(data, stats)| [data, stats]);
    registrar.add(Factory::<LayerNorm, _, _>::new("layer_norm", build).dtypes(dtypes))
}

fn build(device: &CpuDevice, desc: &LayerNormDesc) -> Result<Rows> {
    let LayerNormDesc { data, stats, epsilon, .. } = *desc;
    let kernel = layer_norm::lookup(data, stats).ok_or_else(|| unclaimed::<LayerNorm>(&[data, stats]))?;
    Ok(Rows { bound: Bound::new(device, kernel, "three passes over each row in cache"), epsilon })
}

struct Rows {
    bound: Bound<NormFn>,
    epsilon: f64,
}

impl Kernel<LayerNorm, CpuDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &LayerNormArgs) -> Result<()> {
        let norm = NormArgs {
            rows: size(args.rows),
            cols: size(args.cols),
            epsilon: self.epsilon,
            src: source(args.src),
            scale: source(args.gamma),
            shift: source(args.beta),
            dst: destination(args.dst),
            mean: destination(args.mean),
            factor: destination(args.rstd),
        };
        // SAFETY: the caller promises the operands that are given; absent ones are null.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &norm) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
