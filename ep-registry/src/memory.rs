//! One piece of device memory and how it is given back.

use crate::device::Device;
use ep_core::handle::AllocatorHandle;
use ep_core::provider::MemoryKind;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What to call when imported memory is no longer used.
pub type Deleter = Box<dyn FnOnce() + Send>;

enum Owner {
    Allocator(Arc<AllocatorHandle>),
    // In a mutex because a deleter is not `Sync`, and memory is.
    Foreign(Mutex<Option<Deleter>>),
}

/// A range of addresses on a device. Dropping gives it back at once: whoever drops it has made sure that no
/// queued work uses it.
pub(crate) struct Memory {
    pub(crate) device: Device,
    pub(crate) space: Arc<str>,
    /// Whether `space` is the device's own, so that what its members reach is known.
    pub(crate) primary: bool,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    owner: Owner,
}

impl Memory {
    pub(crate) fn alloc(device: &Device, kind: MemoryKind, bytes: u64) -> Result<Memory> {
        let allocator = device.allocator(kind)?.clone();
        let space = match kind {
            MemoryKind::Device => device.space().clone(),
            MemoryKind::PinnedHost => pinned_space(device),
        };
        let address = allocator.alloc(bytes, 0).map_err(|e| e.context(device.name()))?;
        let primary = space == *device.space();
        Ok(Memory {
            device: device.clone(),
            space,
            primary,
            address,
            bytes,
            owner: Owner::Allocator(allocator),
        })
    }

    pub(crate) fn foreign(
        device: &Device,
        space: &str,
        address: u64,
        bytes: u64,
        deleter: Deleter,
    ) -> Result<Memory> {
        let reached = device.member_where(|m| m.reads(space) || m.writes(space));
        if reached.is_none() {
            return Err(Error::invalid(format!(
                "no provider of {} reaches memory space `{space}`",
                device.name()
            )));
        }
        if address == 0 || address.checked_add(bytes).is_none() {
            return Err(Error::invalid(format!("{bytes} bytes at {address:#x}: null, or wraps around")));
        }
        let primary = *space == **device.space();
        let owner = Owner::Foreign(Mutex::new(Some(deleter)));
        Ok(Memory { device: device.clone(), space: space.into(), primary, address, bytes, owner })
    }
}

/// The space of a device's pinned memory: plain host memory where the device computes there.
fn pinned_space(device: &Device) -> Arc<str> {
    if ep_core::provider::inline::is_host(device.space()) {
        return device.space().clone();
    }
    let uuid: String = device.info().uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("host-pinned:{}:{uuid}", device.info().kind).into()
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &mut self.owner {
            Owner::Allocator(allocator) => {
                // SAFETY: allocated there with these values, freed here once; nothing queued uses it, as
                // whoever drops a `Memory` has made sure.
                if let Err(e) = unsafe { allocator.free(self.address, self.bytes) } {
                    tracing::error!("{}: freeing {} bytes: {e}", self.device.name(), self.bytes);
                }
            }
            Owner::Foreign(deleter) => {
                if let Some(deleter) = deleter.get_mut().take()
                    && catch_unwind(AssertUnwindSafe(deleter)).is_err()
                {
                    tracing::error!("{}: the deleter of imported memory panicked", self.device.name());
                }
            }
        }
    }
}
