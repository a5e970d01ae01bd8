//! A provider with one device that takes its memory from the host and does all work at once: every entry that a
//! provider can have is answered, each in the place where a driver's answer belongs.
//!
//! | file | replace |
//! |---|---|
//! | `lib.rs` | how an instance starts, finds devices, and registers kernels |
//! | `device.rs` | what a device says of itself, and what it makes |
//! | `stream.rs` | queues of work, copies, events |
//! | `memory.rs` | where memory comes from |
//!
//! A primitive is a file with a kernel and a function that registers it, and a line in `register`.

mod device;
mod memory;
#[cfg(feature = "example")]
mod relu;
mod stream;

pub use device::NullDevice;
pub use memory::NullMemory;
pub use stream::{NullEvent, NullStream};

use ep_core::provider::{Host, Options, Provider, Registrar};
use ep_core::{Error, Result};

/// The provider's id: lower-case letters, digits, `-`, `_`, `.`. Here also the kind of its device and the space of
/// its memory; a device that others drive too takes the kind that they use.
pub(crate) const NAME: &str = "null";

/// An instance: one for each entry of a config, so nothing of it may be global. A driver's handle belongs here.
pub struct NullProvider {
    host: Host,
    memory_bytes: u64,
}

// SAFETY: memory is the host's until it is freed, and all work is done when a call returns.
unsafe impl Provider for NullProvider {
    type Device = NullDevice;
    const NAME: &'static str = NAME;
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "";
    // With `false`, a forked child gets `Unavailable` from every call. `true` is for providers without threads,
    // locks and drivers.
    const FORK_SAFE: bool = false;

    /// Everything that has state begins here and ends with `drop`, when no thread of the provider may be left.
    fn create(host: Host, options: &Options) -> Result<Self> {
        // A typo in a config must be an error, so the known options are listed.
        options.only(&["memory_mib"])?;
        let mib: u64 = options.parse("memory_mib", 1024)?;
        let memory_bytes = mib.checked_mul(1 << 20).ok_or_else(|| {
            Error::invalid(format!("option `memory_mib` is {mib}, which is more than 2^64 bytes; give fewer"))
        })?;
        tracing::info!("{} starts with {mib} MiB", options.instance());
        Ok(NullProvider { host, memory_bytes })
    }

    /// Without hardware or driver, return `Error::unavailable` with the reason: reports then call the provider
    /// absent and not failed.
    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    /// `index` is below `device_count`. A device that is open may be opened again.
    fn open_device(&self, _index: u32) -> Result<NullDevice> {
        Ok(NullDevice::new(self.host.clone(), self.memory_bytes))
    }

    /// What the provider can do: claim what works and nothing else, for hosts show it and the kit tests each claim.
    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind(NAME);
        #[cfg(feature = "example")]
        relu::register(registrar)?;
        Ok(())
    }
}

ep_core::export_provider!(NullProvider);
