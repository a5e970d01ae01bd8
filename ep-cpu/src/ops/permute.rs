//! `permute`.

use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::permute::{self, PermuteFn};
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::op::{MAX_DIMS, view};
use ep_core::primitive::{Permute, PermuteArgs, PermuteDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar
        .add(Factory::<Permute, _, _>::new("permute", build).dtypes(permute::rows().map(|dtype| [dtype])))
}

fn build(device: &CpuDevice, desc: &PermuteDesc) -> Result<Permuter> {
    let kernel = permute::lookup(desc.data).ok_or_else(|| unclaimed::<Permute>(&[desc.data]))?;
    Ok(Permuter(Bound::new(device, kernel, "copied rows, or in-register transposes along source rows")))
}

struct Permuter(Bound<PermuteFn>);

impl Kernel<Permute, CpuDevice> for Permuter {
    unsafe fn launch(&self, _: &InlineStream, args: &PermuteArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (src_dims, permutation) =
            unsafe { (view(args.src_dims, args.num_dims), view(args.permutation, args.num_dims)) };
        let sizes = |dims: &[i64]| {
            let mut sizes = [0; MAX_DIMS];
            sizes.iter_mut().zip(dims).for_each(|(size_of, dim)| *size_of = size(*dim));
            sizes
        };
        let (src_sizes, axes) = (sizes(src_dims), sizes(permutation));
        let permute = permute::PermuteArgs {
            src_dims: &src_sizes[..src_dims.len()],
            permutation: &axes[..permutation.len()],
            src: source(args.src),
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises both operands, which do not overlap.
        unsafe { (self.0.kernel)(self.0.isa, &self.0.host, &permute) }
    }

    fn describe(&self) -> &str {
        &self.0.about
    }
}
