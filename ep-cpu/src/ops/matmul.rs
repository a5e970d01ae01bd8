//! `matmul`, and what it shares with `batch_matmul`.

use super::scalar::factor;
use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::matmul::{self, MatmulFn};
use crate::provider::CpuProvider;
use ep_core::primitive::{Matmul, MatmulArgs, MatmulDesc, Transpose};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    registrar.add(
        Factory::<Matmul, _, _>::new("matmul", build)
            .selectors(transposes())
            .dtypes(matmul::rows().map(|dtype| [dtype])),
    )
}

/// Both transposes in all combinations.
pub(super) fn transposes() -> [[u32; 2]; 4] {
    let (none, transpose) = (Transpose::NONE.0, Transpose::TRANSPOSE.0);
    [[none, none], [none, transpose], [transpose, none], [transpose, transpose]]
}

/// How products of a dtype are computed.
pub(super) fn algorithm(dtype: DType) -> &'static str {
    if dtype.is_int() {
        "tiles of wrapping vector loops"
    } else {
        "tiles by the gemm crate, vectors by dot products"
    }
}

fn build(device: &CpuDevice, desc: &MatmulDesc) -> Result<Product> {
    let MatmulDesc { data, transpose_a, transpose_b, .. } = *desc;
    let kernel = matmul::lookup(data).ok_or_else(|| unclaimed::<Matmul>(&[data]))?;
    Ok(Product {
        bound: Bound::new(device, kernel, algorithm(data)),
        data,
        trans_a: transpose_a == Transpose::TRANSPOSE,
        trans_b: transpose_b == Transpose::TRANSPOSE,
    })
}

struct Product {
    bound: Bound<MatmulFn>,
    data: DType,
    trans_a: bool,
    trans_b: bool,
}

impl Kernel<Matmul, CpuDevice> for Product {
    unsafe fn launch(&self, _: &InlineStream, args: &MatmulArgs) -> Result<()> {
        let product = matmul::MatmulArgs {
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
        };
        // SAFETY: the caller promises the operands, which are aligned and of which the result overlaps none.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &product) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
