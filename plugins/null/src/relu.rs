//! ReLU: one primitive, to copy for others.

use crate::{NullDevice, NullProvider, NullStream};
use ep_core::parallel::Parallel;
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryArgs, UnaryOp};
use ep_core::provider::{Factory, Host, Kernel, Registrar, cells};
use ep_core::{Element, Result};
use std::marker::PhantomData;

/// Registers it: one factory for each element type, with the selector values and dtypes that it is for.
pub(crate) fn register(registrar: &mut Registrar<'_, NullProvider>) -> Result<()> {
    add::<f32>(registrar, "relu.f32")?;
    add::<f64>(registrar, "relu.f64")
}

fn add<T: Real>(registrar: &mut Registrar<'_, NullProvider>, name: &str) -> Result<()> {
    // Building a primitive is the time to compile and to choose; launches are many.
    let build =
        |device: &NullDevice, _: &_| Ok(Relu::<T> { host: device.host().clone(), marker: PhantomData });
    registrar.add(
        Factory::<ElementwiseUnary, _, _>::new(name, build)
            .selectors([[UnaryOp::RELU.0]])
            .dtypes([[T::DTYPE, T::DTYPE]]),
    )
}

/// What ReLU needs of an element: order, and a zero.
trait Real: Element + PartialOrd + Default {}
impl<T: Element + PartialOrd + Default> Real for T {}

/// The primitive. Immutable, for several threads may launch it at once.
struct Relu<T> {
    host: Host,
    marker: PhantomData<T>,
}

/// Elements that are worth another thread.
const GRAIN: usize = 32 << 10;

impl<T: Real> Kernel<ElementwiseUnary, NullDevice> for Relu<T> {
    // Sizes, limits, addresses and their alignment have been checked, and nothing of `args` may be kept.
    unsafe fn launch(&self, _stream: &NullStream, args: &ElementwiseUnaryArgs) -> Result<()> {
        self.host.parallel_for(args.count as usize, GRAIN, 0, &|part| {
            let (from, count) = ((part.start * size_of::<T>()) as u64, part.len() as i64);
            // SAFETY: the caller promises both operands, of which this part belongs to this thread alone; they may
            // be the same memory, hence cells.
            let (src, dst) =
                unsafe { (cells::<T>(args.src + from, count), cells::<T>(args.dst + from, count)) };
            for (d, s) in dst.iter().zip(src) {
                let x = s.get();
                // False for NaN, which stays one.
                d.set(if x <= T::default() { T::default() } else { x });
            }
            Ok(())
        })
    }

    fn describe(&self) -> &str {
        "one loop on the host's threads"
    }
}
