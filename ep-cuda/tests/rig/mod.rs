//! The fake driver, one test at a time, and what is made on it.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod ops;

pub use fakecuda::{Fake, Setup};

use ep_core::Result;
use ep_core::provider::{Device, Provider, StreamOptions};
use ep_cuda::cache::Cache;
use ep_cuda::compiler::Compiler;
use ep_cuda::device::CudaDevice;
use ep_cuda::kernel::{Function, Geometry, Loader};
use ep_cuda::ops::fill::Args;
use ep_cuda::provider::CudaProvider;
use ep_cuda::settings::Settings;
use ep_cuda::stream::CudaStream;
use ep_registry::Runtime;
use ep_registry::config::ProviderConfig;
use std::sync::{Mutex, MutexGuard, PoisonError};

static TURN: Mutex<()> = Mutex::new(());

/// The fake, for one test alone.
pub struct Rig {
    pub fake: Fake,
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    pub fn new(setup: Setup) -> Rig {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let fake = Fake::beside_the_test();
        fake.reset(setup);
        Rig { fake, _turn: turn }
    }

    /// Settings that use the fake as driver and as compiler, and no cache.
    pub fn settings(&self) -> Settings {
        Settings {
            driver: Some(self.fake.path().to_owned()),
            nvrtc: Some(self.fake.path().to_owned()),
            cublaslt: Some(self.fake.path().to_owned()),
            cache: Some("off".to_owned()),
            ..Settings::default()
        }
    }

    pub fn provider(&self) -> CudaProvider {
        CudaProvider::new(&self.settings()).unwrap()
    }

    pub fn device(&self) -> CudaDevice {
        self.provider().open_device(0).unwrap()
    }

    /// A kernel on a device, whose argument is [`Args`].
    pub fn function(&self, device: &CudaDevice) -> Function {
        let arch = device.properties().arch;
        let spec = &ep_cuda::warm::kernels(arch, Some("fill")).unwrap()[0];
        let compiler = Compiler::new(Cache::new(Some("off")), Some(self.fake.path().to_owned()), None).into();
        let context = device.context().unwrap().clone();
        Function::load(&Loader { context, compiler, arch }, "fill", spec).unwrap()
    }

    /// Launches a kernel that uses an address.
    pub fn launch(&self, device: &CudaDevice, stream: &CudaStream, dst: u64) -> ep_core::Result<()> {
        let args = Args { count: 1, dst, src: 0, value: [0; 2] };
        // SAFETY: the kernel's argument. The fake computes nothing, and judges the address, which is what is tested.
        unsafe { self.function(device).launch(stream, Geometry::linear(1, 32), &args) }
    }

    /// The config of an instance on the fake, with more options.
    pub fn config(&self, options: &[(&str, &str)]) -> ProviderConfig {
        let mut config = ProviderConfig::new("cuda", "");
        let fake = self.fake.option();
        let own = [("driver", fake), ("nvrtc", fake), ("cublaslt", fake), ("cache", "off")];
        config.options = own.iter().chain(options).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        config
    }

    /// A host with the provider on the fake.
    pub fn runtime(&self, options: &[(&str, &str)]) -> Runtime {
        Runtime::builder().linked_with::<CudaProvider>(self.config(options)).build().unwrap()
    }

    /// Nothing is left behind.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!(self.fake.leaks(), [""; 0]);
    }

    /// How often a function was called.
    pub fn calls(&self, name: &str) -> usize {
        self.fake.log().iter().filter(|line| line.starts_with(&format!("{name}("))).count()
    }
}

/// A stream that queues onto that of a handle.
pub fn adopt(device: &CudaDevice, handle: u64) -> Result<CudaStream> {
    // SAFETY: the driver is the fake, which looks handles up and refuses what is none.
    unsafe { (CudaDevice::FOREIGN_STREAMS.unwrap().adopt)(device, handle) }
}

pub fn stream(device: &CudaDevice) -> CudaStream {
    device.create_stream(StreamOptions::default()).unwrap()
}
