//! A provider for tests of selection: several factories for one op, told apart by name only.
//!
//! | factory | dtypes | condition | priority | hint |
//! |---|---|---|---|---|
//! | `small` | f32 | at most 64 columns | 10 | |
//! | `level` | f32 | device attribute `level` is at least 3 | 5 | |
//! | `narrow` | f32 | | 0 | at most 1024 columns |
//! | `wide` | f32 | | 0 | more than 1024 columns |
//! | `first`, `second` | f16 | | 0 | |
//! | `never` | f64 | at most 8 columns, and `level` below 3 | 0 | |
//!
//! Its softmax writes the number of its threads, through the host's `parallel_for`. Each kernel that is built
//! describes itself by a number of its own.

use ep_core::parallel::Parallel;
use ep_core::primitive::{Softmax, SoftmaxArgs, SoftmaxDesc};
use ep_core::provider::inline::{HostAllocator, HostDevice, InlineEvent, InlineStream};
use ep_core::provider::{
    Attribute, Device, DeviceInfo, Factory, Host, Kernel, MemoryKind, Options, Provider, Registrar,
    StreamOptions, cells,
};
use ep_core::{DType, Result, Scalar, hob};
use std::sync::atomic::{AtomicUsize, Ordering};

/// An instance; option `level` (3) is an attribute of its device.
#[derive(Debug)]
pub struct Ranked {
    host: Host,
    level: u64,
}

/// The CPU, with an attribute.
#[derive(Debug)]
pub struct RankedDevice {
    inner: HostDevice,
    host: Host,
    level: u64,
}

impl Device for RankedDevice {
    type Stream = InlineStream;
    type Event = InlineEvent;
    type Allocator = HostAllocator;

    fn info(&self) -> DeviceInfo {
        let attributes = vec![("level".to_owned(), Attribute::Scalar(Scalar::U64(self.level)))];
        DeviceInfo { attributes, ..HostDevice::cpu_info() }
    }

    fn create_stream(&self, options: StreamOptions) -> Result<InlineStream> {
        self.inner.create_stream(options)
    }

    fn create_event(&self) -> Result<InlineEvent> {
        self.inner.create_event()
    }

    fn open_allocator(&self, kind: MemoryKind) -> Result<HostAllocator> {
        self.inner.open_allocator(kind)
    }
}

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Ranked {
    type Device = RankedDevice;
    const NAME: &'static str = "ranked";
    const VERSION: &'static str = "1.0";

    fn create(host: Host, options: &Options) -> Result<Ranked> {
        options.only(&["level"])?;
        Ok(Ranked { host, level: options.parse("level", 3)? })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<RankedDevice> {
        Ok(RankedDevice { inner: HostDevice::default(), host: self.host.clone(), level: self.level })
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        let (f16, f32, f64) = (DType::F16, DType::F32, DType::F64);
        let (cols, level) = (|| hob::limit("cols"), || hob::device("level"));
        registrar.device_kind("cpu");
        registrar.add(softmax("small", f32).when(cols().le(64)).priority(10))?;
        registrar.add(softmax("level", f32).when(level().ge(3)).priority(5))?;
        registrar.add(softmax("narrow", f32).hint(cols().le(1024)))?;
        registrar.add(softmax("wide", f32).hint(cols().gt(1024)))?;
        registrar.add(softmax("first", f16))?;
        registrar.add(softmax("second", f16))?;
        registrar.add(softmax("never", f64).when(cols().le(8) & level().lt(3)))
    }
}

fn softmax(
    name: &str,
    dtype: DType,
) -> Factory<
    Softmax,
    RankedDevice,
    impl Fn(&RankedDevice, &SoftmaxDesc) -> Result<CountThreads> + Send + Sync + use<>,
> {
    let build = |device: &RankedDevice, _: &SoftmaxDesc| {
        let number = BUILT.fetch_add(1, Ordering::Relaxed).to_string();
        Ok(CountThreads { host: device.host.clone(), number })
    };
    Factory::new(name, build).dtypes([[dtype, dtype]])
}

static BUILT: AtomicUsize = AtomicUsize::new(0);

/// The kernel.
#[derive(Debug)]
pub struct CountThreads {
    host: Host,
    number: String,
}

impl Kernel<Softmax, RankedDevice> for CountThreads {
    unsafe fn launch(&self, _: &InlineStream, args: &SoftmaxArgs) -> Result<()> {
        let (rows, cols) = (args.rows as usize, args.cols);
        let threads = self.host.threads() as f32;
        self.host.parallel_for(rows, 1, 0, &|part| {
            for row in part {
                let address = args.dst + (row as u64 * cols as u64) * size_of::<f32>() as u64;
                // SAFETY: a row of the destination, as the caller promises; no other chunk has it. The tests
                // launch with f32 only.
                unsafe { cells::<f32>(address, cols) }.iter().for_each(|cell| cell.set(threads));
            }
            Ok(())
        })
    }

    fn describe(&self) -> &str {
        &self.number
    }
}
