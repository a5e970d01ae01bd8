//! The provider.

use crate::cache::Cache;
use crate::compiler::Compiler;
use crate::context::Fleet;
use crate::device::{CudaDevice, Properties, Shared};
use crate::driver::{CuDevice, Driver};
use crate::memory::Limits;
use crate::ops;
use crate::space::{self, KIND};
use crate::visible;
use ep_core::provider::{Host, Options, Provider, Registrar};
use ep_core::{Error, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// An instance of the CUDA provider.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `visible` | all | devices in the order wanted, as in `CUDA_VISIBLE_DEVICES`: numbers or `GPU-` and an identity |
/// | `memory_limit` | none | bytes of each device that are handed out at a time at most |
/// | `cache_bytes` | all | bytes of freed memory that the pool of each device keeps for reuse at most |
/// | `sync_launches` | `false` | waits for each launch, so that an error names the one that caused it |
/// | `cache` | [`FOLDER_ENV`](crate::cache::FOLDER_ENV), else the user's cache folder | folder of compiled kernels, or `off` |
/// | `nvrtc` | [`LIBRARY_ENV`](crate::nvrtc::LIBRARY_ENV), else searched for | file of NVRTC, or the folder that holds it |
/// | `driver` | [`LIBRARY_ENV`](crate::driver::LIBRARY_ENV), else `libcuda.so.1` | file of the driver |
pub struct CudaProvider {
    devices: Result<Devices>,
    compiler: Arc<Compiler>,
}

/// The usable devices.
struct Devices {
    shared: Arc<Shared>,
    order: Vec<CuDevice>,
}

impl Provider for CudaProvider {
    type Device = CudaDevice;
    const NAME: &'static str = "cuda";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "EP project";

    fn create(_: Host, options: &Options) -> Result<Self> {
        options.only(&[
            "visible",
            "memory_limit",
            "cache_bytes",
            "sync_launches",
            "cache",
            "nvrtc",
            "driver",
        ])?;
        let limits = Limits {
            memory_limit: options.parse("memory_limit", u64::MAX)?,
            cache_bytes: options.parse("cache_bytes", u64::MAX)?,
        };
        let sync_launches = options.parse("sync_launches", false)?;
        let driver = Driver::open(options.get("driver").map(PathBuf::from).as_deref());
        let version = driver.as_ref().ok().map(Driver::version);
        let nvrtc = options.get("nvrtc").map(PathBuf::from);
        let compiler = Arc::new(Compiler::new(Cache::new(options.get("cache")), nvrtc, version));
        // Without a driver the instance still compiles kernels.
        let devices = driver.and_then(|driver| {
            let driver = Arc::new(driver);
            let found = find_devices(&driver)?;
            let order = match options.get("visible") {
                None => found.iter().map(|(ordinal, _)| *ordinal).collect(),
                Some(list) => {
                    let uuids: Vec<_> = found.iter().map(|(_, uuid)| *uuid).collect();
                    visible::choose(list, &uuids)?.into_iter().map(|i| found[i].0).collect()
                }
            };
            let spaces = found.iter().map(|(ordinal, uuid)| (*ordinal, space::device(uuid))).collect();
            let (compiler, fleet) = (compiler.clone(), Arc::new(Fleet::default()));
            let shared = Shared { driver, compiler, fleet, limits, sync_launches, spaces };
            Ok(Devices { shared: Arc::new(shared), order })
        });
        match devices {
            // A typo in an option is told whether or not there is a GPU; a machine without one is told when devices
            // are counted.
            Err(e) if e.code() == ep_core::Code::InvalidArgument => Err(e),
            devices => Ok(CudaProvider { devices, compiler }),
        }
    }

    fn device_count(&self) -> Result<u32> {
        let devices = self.devices.as_ref().map_err(Clone::clone)?;
        if devices.order.is_empty() {
            return Err(Error::unavailable(
                "the driver shows no device; see CUDA_VISIBLE_DEVICES and option `visible`",
            ));
        }
        Ok(devices.order.len() as u32)
    }

    fn open_device(&self, index: u32) -> Result<CudaDevice> {
        let devices = self.devices.as_ref().map_err(Clone::clone)?;
        let ordinal = devices.order.get(index as usize);
        let ordinal = ordinal.ok_or_else(|| {
            Error::not_found(format!("device {index}: there are {}", devices.order.len()))
        })?;
        CudaDevice::new(devices.shared.clone(), *ordinal)
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        ops::register(registrar.device_kind(KIND))
    }
}

impl CudaProvider {
    /// What compiles its kernels.
    pub fn compiler(&self) -> &Arc<Compiler> {
        &self.compiler
    }
}

/// Number and identity of each device that the driver shows.
fn find_devices(driver: &Driver) -> Result<Vec<(CuDevice, [u8; 16])>> {
    let mut count = 0;
    // SAFETY: a valid out-pointer.
    unsafe { driver.cuDeviceGetCount(&mut count) }?;
    (0..count)
        .map(|ordinal| {
            let mut device = 0;
            // SAFETY: a valid out-pointer.
            unsafe { driver.cuDeviceGet(&mut device, ordinal) }?;
            Ok((device, Properties::of(driver, device)?.uuid))
        })
        .collect()
}
