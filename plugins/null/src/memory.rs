//! Device memory.

use crate::stream::NullStream;
use ep_core::Result;
use ep_core::provider::inline::HostAllocator;
use ep_core::provider::{Allocator, MemoryStats};

/// The device's memory. Any thread may use it. The stand-in takes it from the host, up to a limit.
#[derive(Debug, Clone)]
pub struct NullMemory {
    host: HostAllocator,
}

impl NullMemory {
    pub(crate) fn new(bytes: u64) -> NullMemory {
        NullMemory { host: HostAllocator::with_limit(bytes) }
    }
}

impl Allocator for NullMemory {
    type Stream = NullStream;
    // True, because freed memory is free at once here. With a queue, `free_async` must wait for it.
    const STREAM_ORDERED: bool = true;

    /// Never 0, also for 0 bytes; a multiple of `alignment`. `OutOfMemory` when there is none: a host survives that.
    fn alloc(&self, bytes: u64, alignment: u64, _stream: Option<&NullStream>) -> Result<u64> {
        self.host.allocate(bytes, alignment)
    }

    fn free(&self, address: u64, bytes: u64) -> Result<()> {
        self.host.release(address, bytes)
    }

    fn free_async(&self, address: u64, bytes: u64, _stream: &NullStream) -> Result<()> {
        self.host.release(address, bytes)
    }

    /// Back to zero when everything is freed: hosts find leaks by it.
    fn stats(&self) -> MemoryStats {
        self.host.stats()
    }

    /// Gives cached memory back. This device caches none.
    fn trim(&self) -> Result<()> {
        Ok(())
    }
}
