//! `permute`.

use super::{Bound, destination, sizes, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::permute::{self, PermuteFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::op::view;
use ep_core::primitive::{Permute, PermuteArgs, PermuteDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar
        .add(Factory::<Permute, _, _>::new("permute", build).dtypes(permute::rows().map(|dtype| [dtype])))
}

fn build(device: &CpuDevice, desc: &PermuteDesc) -> Result<Permuter> {
    let kernel = permute::lookup(desc.data).ok_or_else(|| unclaimed::<Permute>(&[desc.data]))?;
    Ok(Permuter(Bound::new(device, kernel, "copied runs, or in-register transposes along source rows")))
}

struct Permuter(Bound<PermuteFn>);

impl Kernel<Permute, CpuDevice> for Permuter {
    unsafe fn launch(&self, _: &InlineStream, args: &PermuteArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (src_dims, permutation) =
            unsafe { (view(args.src_dims, args.num_dims), view(args.permutation, args.num_dims)) };
        let (src_dims, permutation) = (sizes(src_dims), sizes(permutation));
        let permute =
            permute::PermuteArgs { src_dims, permutation, src: source(args.src), dst: destination(args.dst) };
        // SAFETY: the caller promises both operands, which do not overlap.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &permute) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
