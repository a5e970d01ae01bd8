//! `matmul`, and what it shares with `batch_matmul` and `broadcast_matmul`.

use super::scalar::factor;
use super::{Bound, destination, size, source, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::matmul::{self, MatmulFn, Prepack};
use crate::provider::CpuProvider;
use ep_core::abi::EpScalar;
use ep_core::primitive::{Matmul, MatmulArgs, MatmulDesc, Transpose};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Packing, Registrar};
use ep_core::{DType, Error, Result};

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
fn algorithm(dtype: DType) -> &'static str {
    if dtype.is_int() {
        "tiles of wrapping vector loops"
    } else {
        "packed blocks and register tiles, vectors as they are stored"
    }
}

fn build(device: &CpuDevice, desc: &MatmulDesc) -> Result<Product<MatmulFn>> {
    let kernel = matmul::lookup(desc.data).ok_or_else(|| unclaimed::<Matmul>(&[desc.data]))?;
    let product = Product::new(device, kernel, desc.data, [desc.transpose_a, desc.transpose_b]);
    Ok(Product { prepack: matmul::prepack(desc.data), ..product })
}

/// A kernel of the family, and what is fixed about its factors.
pub(super) struct Product<K> {
    pub(super) bound: Bound<K>,
    data: DType,
    pub(super) trans_a: bool,
    pub(super) trans_b: bool,
    prepack: Option<Prepack>,
}

impl<K> Product<K> {
    pub(super) fn new(device: &CpuDevice, kernel: K, data: DType, transposes: [Transpose; 2]) -> Product<K> {
        let [trans_a, trans_b] = transposes.map(|t| t == Transpose::TRANSPOSE);
        Product { bound: Bound::new(device, kernel, algorithm(data)), data, trans_a, trans_b, prepack: None }
    }

    /// The factors of the product and of the old result.
    pub(super) fn factors(&self, alpha: EpScalar, beta: EpScalar) -> Result<[(f64, f64); 2]> {
        Ok([factor("alpha", alpha, 1.0, self.data)?, factor("beta", beta, 0.0, self.data)?])
    }
}

/// Which operand can be packed: `b`.
const PACKED: usize = 1;

impl Product<MatmulFn> {
    fn args(&self, args: &MatmulArgs) -> Result<matmul::MatmulArgs> {
        let [alpha, beta] = self.factors(args.alpha, args.beta)?;
        Ok(matmul::MatmulArgs {
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
        })
    }

    fn prepack(&self) -> Result<&Prepack> {
        self.prepack.as_ref().ok_or_else(|| Error::internal(format!("{} is not packed", self.data)))
    }
}

impl Kernel<Matmul, CpuDevice> for Product<MatmulFn> {
    unsafe fn launch(&self, _: &InlineStream, args: &MatmulArgs) -> Result<()> {
        let product = self.args(args)?;
        // SAFETY: the caller promises the operands, which are aligned and of which the result overlaps none.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &product) }
    }

    const PACKS: bool = true;

    unsafe fn packing(&self, operand: usize, args: &MatmulArgs) -> Result<Option<Packing>> {
        let Some(prepack) = self.prepack.filter(|_| operand == PACKED) else { return Ok(None) };
        let bytes = (prepack.bytes)(self.bound.isa, size(args.n), size(args.k));
        Ok(bytes.map(|bytes| Packing { bytes: bytes as u64, sizes: [args.k, args.n, 0, 0] }))
    }

    unsafe fn pack(&self, _: &InlineStream, _: usize, args: &MatmulArgs, packed: u64) -> Result<()> {
        let product = self.args(args)?;
        // SAFETY: the caller promises `b` and the room.
        unsafe { (self.prepack()?.pack)(self.bound.isa, &self.bound.host, &product, destination(packed)) }
    }

    unsafe fn launch_packed(&self, _: &InlineStream, _: usize, packed: u64, args: &MatmulArgs) -> Result<()> {
        let product = matmul::MatmulArgs { b: source(packed), ..self.args(args)? };
        // SAFETY: as for a launch; `b` was packed by this kernel, in the same sizes.
        unsafe { (self.prepack()?.multiply)(self.bound.isa, &self.bound.host, &product) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
