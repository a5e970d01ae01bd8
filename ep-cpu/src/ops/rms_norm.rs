//! `rms_norm`.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::rms_norm::{self, NormArgs, NormFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{RmsNorm, RmsNormArgs, RmsNormDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let dtypes = rms_norm::rows().map(|(data, stats)| [data, stats]);
    registrar.add(Factory::<RmsNorm, _, _>::new("rms_norm", build).dtypes(dtypes))
}

fn build(device: &CpuDevice, desc: &RmsNormDesc) -> Result<Rows> {
    let RmsNormDesc { data, stats, epsilon, .. } = *desc;
    let kernel = rms_norm::lookup(data, stats).ok_or_else(|| unclaimed::<RmsNorm>(&[data, stats]))?;
    Ok(Rows { bound: Bound::new(device, kernel, "two passes over each row in cache"), epsilon })
}

struct Rows {
    bound: Bound<NormFn>,
    epsilon: f64,
}

impl Kernel<RmsNorm, CpuDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &RmsNormArgs) -> Result<()> {
        let norm = NormArgs {
            rows: size(args.rows),
            cols: size(args.cols),
            epsilon: self.epsilon,
            src: source(args.src),
            scale: source(args.weight),
            shift: std::ptr::null(),
            dst: destination(args.dst),
            mean: std::ptr::null_mut(),
            factor: destination(args.inv_rms),
        };
        // SAFETY: the caller promises the operands that are given; absent ones are null.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &norm) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
