//! Address ranges from the system.

use ep_core::{Error, Result};
use std::ptr::NonNull;

/// What may be done with the memory at a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: the addresses are taken, and touching one ends the process.
    None,
    /// Reading and writing.
    Full,
}

/// Pages of this process that belong to nobody else; given back when dropped.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is a range of addresses; who reads and writes there is the business of its owner.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `bytes` bytes. No memory is used before it is touched.
    pub(crate) fn new(bytes: u64, access: Access) -> Result<Mapping> {
        let refused = |why: &dyn std::fmt::Display| {
            Error::out_of_memory(format!(
                "no {bytes} bytes of addresses ({why}); lower option `memory_bytes`"
            ))
        };
        let bytes = usize::try_from(bytes.max(1)).map_err(|e| refused(&e))?;
        let protection = match access {
            Access::None => libc::PROT_NONE,
            Access::Full => libc::PROT_READ | libc::PROT_WRITE,
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the system's choice replaces nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(refused(&std::io::Error::last_os_error()));
        }
        base.expose_provenance();
        let base = NonNull::new(base.cast()).ok_or_else(|| refused(&"the system returned null"))?;
        Ok(Mapping { base, bytes })
    }

    /// The first address.
    pub(crate) fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// The start of the pages.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, unmapped once.
        if unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) } != 0 {
            tracing::error!("unmapping {} bytes: {}", self.bytes, std::io::Error::last_os_error());
        }
    }
}
