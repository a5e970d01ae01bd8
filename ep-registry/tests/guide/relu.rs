//! The kernel that `docs/writing-a-provider.md` shows.

use ep_core::hob;
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryArgs, UnaryOp};
use ep_core::provider::{Device, Factory, Kernel, Provider, Registrar, cells};
use ep_core::{DType, Result};

/// Called in the provider's `register`.
pub fn register<P: Provider>(registrar: &mut Registrar<'_, P>) -> Result<()> {
    registrar.add(
        Factory::<ElementwiseUnary, _, _>::new("relu.f32", |_, _| Ok(Relu))
            .selectors([[UnaryOp::RELU.0]])
            .dtypes([[DType::F32, DType::F32]])
            .when(hob::device("threads").ge(1)),
    )
}

struct Relu;

impl<D: Device> Kernel<ElementwiseUnary, D> for Relu {
    unsafe fn launch(&self, _: &D::Stream, args: &ElementwiseUnaryArgs) -> Result<()> {
        // SAFETY: the caller promises both operands; they may be the same memory, hence cells.
        let (src, dst) = unsafe { (cells::<f32>(args.src, args.count), cells::<f32>(args.dst, args.count)) };
        for (d, s) in dst.iter().zip(src) {
            d.set(if s.get() <= 0.0 { 0.0 } else { s.get() });
        }
        Ok(())
    }
}
