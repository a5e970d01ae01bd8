//! `batch_matmul`.

use super::matmul::{algorithm, transposes};
use super::scalar::factor;
use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::batch_matmul::{self, BatchMatmulFn};
use crate::kernels::matmul::MatmulArgs;
use crate::provider::CpuProvider;
use ep_core::primitive::{BatchMatmul, BatchMatmulArgs, BatchMatmulDesc, Transpose};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<BatchMatmul, _, _>::new("batch_matmul", build)
            .selectors(transposes())
            .dtypes(batch_matmul::rows().map(|dtype| [dtype])),
    )
}

fn build(device: &CpuDevice, desc: &BatchMatmulDesc) -> Result<Products> {
    let BatchMatmulDesc { data, transpose_a, transpose_b, .. } = *desc;
    let kernel = batch_matmul::lookup(data).ok_or_else(|| unclaimed::<BatchMatmul>(&[data]))?;
    Ok(Products {
        bound: Bound::new(device, kernel, algorithm(data)),
        data,
        trans_a: transpose_a == Transpose::TRANSPOSE,
        trans_b: transpose_b == Transpose::TRANSPOSE,
    })
}

struct Products {
    bound: Bound<BatchMatmulFn>,
    data: DType,
    trans_a: bool,
    trans_b: bool,
}

impl Kernel<BatchMatmul, CpuDevice> for Products {
    unsafe fn launch(&self, _: &InlineStream, args: &BatchMatmulArgs) -> Result<()> {
        let products = batch_matmul::BatchMatmulArgs {
            batch: size(args.batch),
            each: MatmulArgs {
                m: size(args.m),
                n: size(args.n),
                k: size(args.k),
                trans_a: self.trans_a,
                trans_b: self.trans_b,
                alpha: factor("alpha", args.alpha, 1.0, self.data)?,
                a: source(args.a),
                b: source(args.b),
                beta: factor("beta", args.beta, 0.0, self.data)?,
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
