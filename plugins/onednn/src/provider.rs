//! The provider.

use crate::device::{KIND, OnednnDevice};
use crate::engine::Engine;
use crate::library::Library;
use crate::ops;
use ep_core::provider::{Host, Options, Provider, Registrar};
use ep_core::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// An instance of the oneDNN provider.
pub struct OnednnProvider {
    host: Host,
    /// Without the library there is an instance too: it has no device, and says why.
    engine: Result<Arc<Engine>>,
}

// SAFETY: devices and memory are those of `HostDevice`, work is done when a call returns, and oneDNN stays in its operands.
unsafe impl Provider for OnednnProvider {
    type Device = OnednnDevice;
    const NAME: &'static str = "onednn";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "EP project";

    fn create(host: Host, options: &Options) -> Result<Self> {
        options.only(&["library"])?;
        let library = Library::open(options.get("library").map(Path::new));
        let engine = library.and_then(|library| Engine::new(Arc::new(library)));
        Ok(OnednnProvider { host, engine })
    }

    fn device_count(&self) -> Result<u32> {
        self.engine.as_ref().map(|_| 1).map_err(Clone::clone)
    }

    fn open_device(&self, index: u32) -> Result<OnednnDevice> {
        let engine = self.engine.as_ref().map_err(Clone::clone)?;
        if index != 0 {
            return Err(Error::not_found(format!("device {index}: there is one")));
        }
        Ok(OnednnDevice::new(self.host.clone(), engine.clone()))
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind(KIND);
        match &self.engine {
            Ok(engine) => ops::register(registrar, engine),
            // What it could do depends on the library.
            Err(_) => Ok(()),
        }
    }
}
