//! The runtimes that the tests use.

use ep_core::primitive::{
    ElementwiseUnary, ElementwiseUnaryArgs, Matmul, MatmulArgs, StridedCopy, StridedCopyArgs, Transpose,
    UnaryOp,
};
use ep_core::provider::inline::{HostDevice, InlineStream};
use ep_core::provider::{Factory, Host, Kernel, Options, Provider, Registrar, cells};
use ep_core::{Code, DType, Error, Result};
use ep_cpu::provider::CpuProvider;
use ep_ops::Ops;
use ep_registry::config::ProviderConfig;
use ep_registry::{Builder, Runtime};
use ep_sim::{SimDevice, SimProvider};
use std::fmt::Debug;
use std::sync::LazyLock;

#[path = "../further.rs"]
mod further;

/// A CPU, and devices whose memory the host does not reach, which do not reach each other's.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let builder = simulated::<SimProvider>(Runtime::builder().threads(1).linked::<CpuProvider>("cpu"));
    further::add(builder).build().unwrap()
});

/// Where everything is tested.
pub fn devices() -> [&'static str; 2] {
    ["cpu:0", further::device()]
}

/// Operators on a device of a runtime that has all of them, with a stream of their own.
pub fn ops(device: &str) -> Ops<'static> {
    Ops::new(&RUNTIME, device).unwrap()
}

/// A simulated device that has memory and streams, and computes nothing.
pub struct Bare(SimProvider);

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Bare {
    type Device = SimDevice;
    const NAME: &'static str = "bare";
    const VERSION: &'static str = "1";

    fn create(_: Host, options: &Options) -> Result<Bare> {
        SimProvider::new(options, None).map(Bare)
    }

    fn device_count(&self) -> Result<u32> {
        self.0.device_count()
    }

    fn open_device(&self, index: u32) -> Result<SimDevice> {
        self.0.open_device(index)
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("sim");
        Ok(())
    }
}

/// A host device of i32 that copies between strides, and computes from what is dense and not transposed.
pub struct Movers;

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Movers {
    type Device = HostDevice;
    const NAME: &'static str = "movers";
    const VERSION: &'static str = "1";

    fn create(_: Host, _: &Options) -> Result<Movers> {
        Ok(Movers)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<HostDevice> {
        Ok(HostDevice::default())
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("cpu");
        let copy = Factory::<StridedCopy, _, _>::new("copy.i32", |_, _| Ok(Mover));
        registrar.add(copy.dtypes([[DType::I32, DType::I32]]))?;
        let negative = Factory::<ElementwiseUnary, _, _>::new("negative.i32", |_, _| Ok(Negative));
        registrar.add(negative.selectors([[UnaryOp::NEGATIVE.0]]).dtypes([[DType::I32, DType::I32]]))?;
        let product = Factory::<Matmul, _, _>::new("product.i32", |_, _| Ok(Product));
        registrar.add(product.selectors([[Transpose::NONE.0; 2]]).dtypes([[DType::I32]]))
    }
}

struct Negative;

impl Kernel<ElementwiseUnary, HostDevice> for Negative {
    unsafe fn launch(&self, _: &InlineStream, args: &ElementwiseUnaryArgs) -> Result<()> {
        // SAFETY: so many elements each, as the caller promises.
        let (src, dst) = unsafe { (cells::<i32>(args.src, args.count), cells::<i32>(args.dst, args.count)) };
        src.iter().zip(dst).for_each(|(x, y)| y.set(-x.get()));
        Ok(())
    }
}

struct Product;

impl Kernel<Matmul, HostDevice> for Product {
    unsafe fn launch(&self, _: &InlineStream, args: &MatmulArgs) -> Result<()> {
        let (m, n, k) = (args.m, args.n, args.k);
        // SAFETY: matrices of these sizes, as the caller promises.
        let (a, b) = unsafe { (cells::<i32>(args.a, m * k), cells::<i32>(args.b, k * n)) };
        // SAFETY: as above.
        let c = unsafe { cells::<i32>(args.c, m * n) };
        let [n, k] = [n, k].map(|size| size as usize);
        for (i, c) in c.iter().enumerate() {
            c.set((0..k).map(|j| a[i / n * k + j].get() * b[j * n + i % n].get()).sum());
        }
        Ok(())
    }
}

struct Mover;

impl Kernel<StridedCopy, HostDevice> for Mover {
    unsafe fn launch(&self, _: &InlineStream, args: &StridedCopyArgs) -> Result<()> {
        let rank = args.num_dims as usize;
        let values = |p: *const i64| {
            // SAFETY: readable for that many values, as the caller promises; at rank 0 nothing is read.
            if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(p, rank) } }
        };
        let [dims, from, to] = [args.dims, args.src_strides, args.dst_strides].map(values);
        for i in 0..dims.iter().product::<i64>() {
            let (mut left, mut src, mut dst) = (i, args.src_offset, args.dst_offset);
            for d in (0..rank).rev() {
                src += left % dims[d] * from[d];
                dst += left % dims[d] * to[d];
                left /= dims[d];
            }
            let (src, dst) = (args.src + 4 * src as u64, args.dst + 4 * dst as u64);
            // SAFETY: elements of the operands, which the caller promises, and which do not overlap.
            unsafe { cells::<i32>(dst, 1)[0].set(cells::<i32>(src, 1)[0].get()) };
        }
        Ok(())
    }
}

/// `cpu:0`, which moves i32 and computes little, and simulated devices that compute everything.
pub fn with_movers() -> Runtime {
    simulated::<SimProvider>(Runtime::builder().threads(1).linked::<Movers>("movers")).build().unwrap()
}

/// Adds a provider of simulated devices.
pub fn simulated<P: Provider>(builder: Builder) -> Builder {
    crate::log::install();
    let mut settings = ProviderConfig::new("sim", "");
    settings.required = true;
    settings.options.insert("max_delay_us".into(), "20".into());
    settings.options.insert("peer".into(), "false".into());
    builder.linked_with::<P>(settings)
}

/// A CPU, and `sim:0` and `sim:1`, which compute nothing.
pub fn with_bare() -> Runtime {
    simulated::<Bare>(Runtime::builder().threads(1).linked::<CpuProvider>("cpu")).build().unwrap()
}

/// The message of an error of this code.
#[track_caller]
pub fn message<T: Debug>(result: Result<T>, code: Code) -> String {
    let error: Error = result.unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    error.message().to_owned()
}

/// The message of an `InvalidArgument`.
#[track_caller]
pub fn invalid<T: Debug>(result: Result<T>) -> String {
    message(result, Code::InvalidArgument)
}
