//! The smallest useful provider: the CPU as a device, and ReLU for f32 and f16.
//!
//! `cargo build -p example-provider` makes `libexample_provider.so`, ready for `path` in an `ep.toml`.

use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryArgs, UnaryOp};
use ep_core::provider::inline::{HostDevice, InlineStream};
use ep_core::provider::{Factory, Host, Kernel, Options, Provider, Registrar, cells};
use ep_core::{Element, Result};
use std::marker::PhantomData;

/// An instance. A real one would keep its driver here.
pub struct Example;

// SAFETY: devices and memory are those of `HostDevice`, and the kernel stays in its operands.
unsafe impl Provider for Example {
    type Device = HostDevice;
    const NAME: &'static str = "example";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn create(_: Host, options: &Options) -> Result<Example> {
        options.only(&[])?;
        Ok(Example)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<HostDevice> {
        Ok(HostDevice::default())
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("cpu");
        add_relu::<f32>(registrar, "relu.f32")?;
        add_relu::<half::f16>(registrar, "relu.f16")
    }
}

/// Registers ReLU for one element type.
fn add_relu<T: Real>(registrar: &mut Registrar<'_, Example>, name: &str) -> Result<()> {
    registrar.add(
        Factory::<ElementwiseUnary, _, _>::new(name, |_, _| Ok(Relu::<T>(PhantomData)))
            .selectors([[UnaryOp::RELU.0]])
            .dtypes([[T::DTYPE, T::DTYPE]]),
    )
}

/// What ReLU needs of an element: order, and a zero.
trait Real: Element + PartialOrd + Default {}
impl<T: Element + PartialOrd + Default> Real for T {}

/// The kernel.
struct Relu<T>(PhantomData<T>);

impl<T: Real> Kernel<ElementwiseUnary, HostDevice> for Relu<T> {
    unsafe fn launch(&self, _: &InlineStream, args: &ElementwiseUnaryArgs) -> Result<()> {
        // SAFETY: the caller promises both operands; they may be the same memory, hence cells.
        let (src, dst) = unsafe { (cells::<T>(args.src, args.count), cells::<T>(args.dst, args.count)) };
        for (d, s) in dst.iter().zip(src) {
            let x = s.get();
            // Not `max`: a NaN stays one.
            d.set(if x < T::default() { T::default() } else { x });
        }
        Ok(())
    }
}

ep_core::export_provider!(Example);
