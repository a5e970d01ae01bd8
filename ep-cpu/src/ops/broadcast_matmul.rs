//! `broadcast_matmul`.

use super::matmul::{Product, transposes};
use super::{destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::broadcast_matmul::{self, BroadcastMatmulFn};
use crate::provider::CpuProvider;
use ep_core::op::{MAX_DIMS, view};
use ep_core::primitive::{BroadcastMatmul, BroadcastMatmulArgs, BroadcastMatmulDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{Error, Result};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<BroadcastMatmul, _, _>::new("broadcast_matmul", build)
            .selectors(transposes())
            .dtypes(broadcast_matmul::rows().map(|dtype| [dtype])),
    )
}

fn build(device: &CpuDevice, desc: &BroadcastMatmulDesc) -> Result<Product<BroadcastMatmulFn>> {
    let kernel =
        broadcast_matmul::lookup(desc.data).ok_or_else(|| unclaimed::<BroadcastMatmul>(&[desc.data]))?;
    Ok(Product::new(device, kernel, desc.data, [desc.transpose_a, desc.transpose_b]))
}

impl Kernel<BroadcastMatmul, CpuDevice> for Product<BroadcastMatmulFn> {
    unsafe fn launch(&self, _: &InlineStream, args: &BroadcastMatmulArgs) -> Result<()> {
        let [alpha, beta] = self.factors(args.alpha, args.beta)?;
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let dims = unsafe {
            [
                view(args.a_dims, args.num_a_dims),
                view(args.b_dims, args.num_b_dims),
                view(args.c_dims, args.num_c_dims),
            ]
        };
        if dims.iter().any(|dims| dims.len() > MAX_DIMS) {
            return Err(too_many(dims.map(<[i64]>::len)));
        }
        let sizes = dims.map(|dims| {
            let mut sizes = [0; MAX_DIMS];
            sizes.iter_mut().zip(dims).for_each(|(to, dim)| *to = size(*dim));
            sizes
        });
        let products = broadcast_matmul::BroadcastMatmulArgs {
            trans_a: self.trans_a,
            trans_b: self.trans_b,
            alpha,
            beta,
            a_dims: &sizes[0][..dims[0].len()],
            b_dims: &sizes[1][..dims[1].len()],
            c_dims: &sizes[2][..dims[2].len()],
            a: source(args.a),
            b: source(args.b),
            c: destination(args.c),
        };
        // SAFETY: the caller promises the operands, which are aligned and of which the result overlaps none.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &products) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}

#[cold]
fn too_many(ranks: [usize; 3]) -> Error {
    Error::invalid(format!("broadcast_matmul of ranks {ranks:?}; give at most {MAX_DIMS} dimensions"))
}
