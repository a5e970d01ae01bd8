//! `batch_matmul`.

use super::matmul::{Product, transposes};
use super::{destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::batch_matmul::{self, BatchMatmulFn};
use crate::kernels::matmul::MatmulArgs;
use crate::provider::CpuProvider;
use ep_core::Result;
use ep_core::primitive::{BatchMatmul, BatchMatmulArgs, BatchMatmulDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<BatchMatmul, _, _>::new("batch_matmul", build)
            .selectors(transposes())
            .dtypes(batch_matmul::rows().map(|dtype| [dtype])),
    )
}

fn build(device: &CpuDevice, desc: &BatchMatmulDesc) -> Result<Product<BatchMatmulFn>> {
    let kernel = batch_matmul::lookup(desc.data).ok_or_else(|| unclaimed::<BatchMatmul>(&[desc.data]))?;
    Ok(Product::new(device, kernel, desc.data, [desc.transpose_a, desc.transpose_b]))
}

impl Kernel<BatchMatmul, CpuDevice> for Product<BatchMatmulFn> {
    unsafe fn launch(&self, _: &InlineStream, args: &BatchMatmulArgs) -> Result<()> {
        let [alpha, beta] = self.factors(args.alpha, args.beta)?;
        let products = batch_matmul::BatchMatmulArgs {
            batch: size(args.batch),
            each: MatmulArgs {
                m: size(args.m),
                n: size(args.n),
                k: size(args.k),
                trans_a: self.trans_a,
                trans_b: self.trans_b,
                alpha,
                a: source(args.a),
                b: source(args.b),
                beta,
                c: destination(args.c),
            },
        };
        // SAFETY: the caller promises the operands, which are aligned and of which the result overlaps none.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &products) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
