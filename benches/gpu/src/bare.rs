//! The provider's code linked into this program: the driver itself, on a device that a host has too.

use ep_core::provider::{Device as _, Provider};
use ep_core::{Error, Result};
use ep_cuda::compiler::Compiler;
use ep_cuda::device::CudaDevice;
use ep_cuda::provider::CudaProvider;
use ep_cuda::settings::Settings;
use ep_registry::Device;
use ep_registry::config::{Config, ProviderConfig};
use std::path::PathBuf;
use std::sync::Arc;

/// A device, and what compiles its kernels.
pub struct Bare {
    /// The device.
    pub device: CudaDevice,
    /// What compiles its kernels.
    pub compiler: Arc<Compiler>,
}

/// Where an instance finds NVIDIA's libraries and compiled kernels.
pub fn settings(instance: &ProviderConfig) -> Settings {
    let option = |name: &str| instance.options.get(name);
    let file = |name: &str| option(name).map(PathBuf::from);
    Settings {
        cache: option("cache").cloned(),
        driver: file("driver"),
        nvrtc: file("nvrtc"),
        cublaslt: file("cublaslt"),
        ..Settings::default()
    }
}

/// The settings of the instance that a device is of.
///
/// # Errors
/// `NotFound` where the config does not name it.
pub fn instance<'a>(config: &'a mut Config, device: &Device) -> Result<&'a mut ProviderConfig> {
    let name = device.members().first().map_or("", |member| member.instance());
    let found = config.providers.iter_mut().find(|p| p.name == name);
    found.ok_or_else(|| {
        Error::not_found(format!("the config has no [[provider]] `{name}`, of which {} is", device.name()))
    })
}

impl Bare {
    /// The first device.
    ///
    /// # Errors
    /// Those of a machine without CUDA.
    pub fn first(settings: &Settings) -> Result<Bare> {
        let provider = CudaProvider::new(settings)?;
        Ok(Bare { device: provider.open_device(0)?, compiler: provider.compiler().clone() })
    }

    /// The device that a host has.
    ///
    /// # Errors
    /// `NotFound` for one that is none of CUDA's; the driver's.
    pub fn of(settings: &Settings, device: &Device) -> Result<Bare> {
        let provider = CudaProvider::new(settings)?;
        for index in 0..provider.device_count()? {
            let own = provider.open_device(index)?;
            if own.info().uuid == device.info().uuid {
                return Ok(Bare { device: own, compiler: provider.compiler().clone() });
            }
        }
        Err(Error::not_found(format!(
            "{} is no device of the driver; name one of CUDA's with --device",
            device.name()
        )))
    }
}
