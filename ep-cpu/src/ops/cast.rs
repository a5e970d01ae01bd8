//! `cast`.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::cast;
use crate::kernels::unary::{UnaryArgs, UnaryKernel};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{Cast, CastArgs, CastDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let rows = cast::rows().iter().map(|(src, dst, _)| [*src, *dst]);
    registrar.add(Factory::<Cast, _, _>::new("cast", build).dtypes(rows))
}

fn build(device: &CpuDevice, desc: &CastDesc) -> Result<Caster> {
    let CastDesc { src, dst, .. } = *desc;
    let kernel = cast::lookup(src, dst).ok_or_else(|| unclaimed::<Cast>(&[src, dst]))?;
    Ok(Caster(Bound::new(device, kernel, "vector loop over chunks")))
}

struct Caster(Bound<UnaryKernel>);

impl Kernel<Cast, CpuDevice> for Caster {
    unsafe fn launch(&self, _: &InlineStream, args: &CastArgs) -> Result<()> {
        let cast = UnaryArgs {
            count: size(args.count),
            src: source(args.src),
            dst: destination(args.dst),
            attr: [0.0; 2],
        };
        // SAFETY: the caller promises both operands, which are aligned and apart or the same.
        unsafe { self.0.kernel.launch(self.0.isa, &self.0.host, &cast) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
