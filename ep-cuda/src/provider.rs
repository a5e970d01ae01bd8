//! The provider.

use crate::cache::Cache;
use crate::compiler::{Arch, Compiler};
use crate::context::Habits;
use crate::device::{self, CudaDevice, Products, Properties, Shared};
use crate::driver::{CuContext, CuDevice, Driver};
use crate::given;
use crate::ops;
use crate::settings::Settings;
use crate::space::{self, KIND};
use crate::visible;
use crate::warm;
use ep_core::provider::{Host, Options, Provider, Registrar, Warm, WarmTarget};
use ep_core::{Code, Error, Result};
use once_cell::sync::OnceCell;
use std::sync::Arc;

/// An instance of the CUDA provider. Its options are [`Settings`].
pub struct CudaProvider {
    devices: Result<Devices>,
    compiler: Arc<Compiler>,
    table: warm::Table,
}

/// The devices that the driver shows, without those that option `visible` leaves out.
struct Devices {
    shared: Arc<Shared>,
    /// With the context that the host gives. One that the driver cannot tell of is there too: who opens it is told why.
    order: Vec<(Result<CuDevice>, Option<CuContext>)>,
}

// SAFETY: memory, streams and events are the driver's, in order and for as long as it says; kernels and copies stay in their operands.
unsafe impl Provider for CudaProvider {
    type Device = CudaDevice;
    const NAME: &'static str = "cuda";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "EP project";

    const WARM: Option<Warm<Self>> = Some(Warm {
        count: |provider, target, op| Ok(provider.table.bundles(arch_of(&target)?, op)?.len() as u64),
        prepare: |provider, target, op, index| {
            let arch = arch_of(&target)?;
            let bundles = provider.table.bundles(arch, op)?;
            let bundle = usize::try_from(index).ok().and_then(|i| bundles.get(i));
            let bundle = bundle
                .ok_or_else(|| Error::not_found(format!("group {index}: there are {}", bundles.len())))?;
            provider.compiler.warm(bundle, arch)
        },
    });

    fn create(_: Host, options: &Options) -> Result<Self> {
        CudaProvider::new(&Settings::read(options)?)
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
        let ordinal = ordinal
            .ok_or_else(|| Error::not_found(format!("device {index}: there are {}", devices.order.len())))?;
        let (ordinal, context) = ordinal;
        CudaDevice::new(devices.shared.clone(), ordinal.clone()?, *context)
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        ops::register(registrar.device_kind(KIND))
    }
}

impl CudaProvider {
    /// An instance. Without a driver there is one too: it has no devices, and still compiles kernels. Where a device is to
    /// work in the current context, that of this thread is taken now.
    ///
    /// # Errors
    /// `InvalidArgument` for a setting that the devices do not fit.
    pub fn new(settings: &Settings) -> Result<CudaProvider> {
        let driver = Driver::open(settings.driver.as_deref());
        let version = driver.as_ref().ok().map(Driver::version);
        let cache = Cache::new(settings.cache.as_deref()).with_limit(settings.cache_limit);
        let compiler = Arc::new(Compiler::new(cache, settings.nvrtc.clone(), version));
        match driver.and_then(|driver| Devices::find(driver, &compiler, settings)) {
            Err(e) if e.code() == Code::InvalidArgument => Err(e),
            devices => Ok(CudaProvider { devices, compiler, table: warm::Table::default() }),
        }
    }

    /// What compiles its kernels.
    pub fn compiler(&self) -> &Arc<Compiler> {
        &self.compiler
    }
}

impl Devices {
    fn find(driver: Driver, compiler: &Arc<Compiler>, settings: &Settings) -> Result<Devices> {
        let found = find_devices(&driver)?;
        let order: Vec<Result<CuDevice>> = match &settings.visible {
            None => found.iter().map(|f| f.device.clone()).collect(),
            Some(list) => {
                let uuids: Vec<_> = found.iter().map(|f| f.uuid).collect();
                visible::choose(list, &uuids)?.into_iter().map(|i| found[i].device.clone()).collect()
            }
        };
        let contexts = settings.context.find(&driver, &order)?;
        let order: Vec<_> = order.into_iter().zip(contexts).collect();
        let given = |ordinal| order.iter().find(|(o, _)| *o == Ok(ordinal)).and_then(|(_, context)| *context);
        let space = |found: &Found| {
            let (uuid, ordinal) = (found.uuid?, *found.device.as_ref().ok()?);
            Some((ordinal, space::device(&given::identity(uuid, given(ordinal)))))
        };
        let shared = Shared {
            driver: Arc::new(driver),
            compiler: compiler.clone(),
            fleet: Arc::default(),
            habits: Habits {
                limits: settings.limits,
                may_overlap: settings.overlap_launches,
                may_stay: settings.leave_current && found.len() == 1,
            },
            sync_launches: settings.sync_launches,
            softmax: settings.softmax,
            matmul: Products {
                tf32: settings.tf32,
                repeats: settings.repeat_products,
                file: settings.cublaslt.clone(),
                library: OnceCell::new(),
            },
            spaces: found.iter().filter_map(space).collect(),
        };
        Ok(Devices { shared: Arc::new(shared), order })
    }
}

/// The architecture of a device, or the one that is named.
fn arch_of(target: &WarmTarget<'_, CudaDevice>) -> Result<Arch> {
    match target {
        WarmTarget::Device(device) => Ok(device.properties().arch),
        WarmTarget::Named(name) => name.parse(),
    }
}

/// A device that the driver counts.
struct Found {
    /// Its number, where the driver tells all that is to be known of it.
    device: Result<CuDevice>,
    /// Its identity, which a device may have that does not answer otherwise.
    uuid: Option<[u8; 16]>,
}

impl Found {
    fn of(driver: &Driver, ordinal: i32) -> Found {
        let mut device = 0;
        // SAFETY: a valid out-pointer.
        let number = unsafe { driver.cuDeviceGet(&mut device, ordinal) }.map_err(Error::from);
        let uuid = number.and_then(|()| device::identity(driver, device));
        let known = uuid.as_ref().ok().copied();
        Found { device: uuid.and_then(|_| Properties::of(driver, device)).map(|_| device), uuid: known }
    }
}

fn find_devices(driver: &Driver) -> Result<Vec<Found>> {
    let mut count = 0;
    // SAFETY: a valid out-pointer.
    unsafe { driver.cuDeviceGetCount(&mut count) }?;
    Ok((0..count).map(|ordinal| Found::of(driver, ordinal)).collect())
}
