//! Ready-made device parts for kernels that compute on the calling thread with host memory.
//!
//! A provider whose streams are inline needs no queue: an event is always done, waiting is nothing, a copy is
//! a `memcpy`. [`HostDevice`] puts these together for providers that have no more to say about their device.

use super::{
    Allocator, CopyRequest, Device, DeviceInfo, Event, MemoryKind, MemoryStats, Stream, StreamOptions,
};
use crate::{Error, Result};
use std::alloc::Layout;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The memory space of plain host memory.
pub const HOST_SPACE: &str = "host";

/// The identity of the machine's CPU: every provider that computes on it uses this, so that they share one
/// logical device.
pub const CPU_UUID: [u8; 16] = *b"ep:host-cpu\0\0\0\0\0";

/// A stream on which everything is done at once.
#[derive(Default)]
pub struct InlineStream {
    copier: Option<Arc<dyn Copier>>,
}

/// How an [`InlineStream`] copies between addresses of host memory, if not with a plain `memcpy`.
pub trait Copier: Send + Sync {
    /// Copies `bytes` bytes.
    ///
    /// # Errors
    /// Whatever prevents it.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `bytes` bytes, and the two are the same or do not overlap.
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()>;
}

impl InlineStream {
    /// A stream whose copies `copier` makes.
    pub fn with_copier(copier: Arc<dyn Copier>) -> InlineStream {
        InlineStream { copier: Some(copier) }
    }
}

impl fmt::Debug for InlineStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineStream").field("copier", &self.copier.is_some()).finish()
    }
}

/// The event of an [`InlineStream`]: always done.
#[derive(Debug, Default)]
pub struct InlineEvent;

impl Stream for InlineStream {
    type Event = InlineEvent;

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    unsafe fn copy(&self, copy: CopyRequest<'_>) -> Result<()> {
        let Some(copier) = &self.copier else {
            // SAFETY: as the caller promises.
            return unsafe { host_copy(copy) };
        };
        let (src, dst) = host_addresses(copy)?;
        // SAFETY: as the caller promises.
        unsafe { copier.copy(dst, src, copy.bytes as usize) }
    }

    fn record(&self, _: &InlineEvent) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: &InlineEvent) -> Result<()> {
        Ok(())
    }
}

impl Event for InlineEvent {
    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// Copies between two addresses of host memory.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes.
///
/// # Errors
/// `Unsupported` when a side is not host memory.
pub unsafe fn host_copy(copy: CopyRequest<'_>) -> Result<()> {
    let (src, dst) = host_addresses(copy)?;
    // SAFETY: valid as the caller promises; `copy` tolerates the overlap that it must not have.
    unsafe { std::ptr::copy(src, dst, copy.bytes as usize) };
    Ok(())
}

/// Source and destination of a copy within host memory.
fn host_addresses(copy: CopyRequest<'_>) -> Result<(*const u8, *mut u8)> {
    for space in [copy.src_space, copy.dst_space] {
        if !is_host(space) {
            return Err(Error::unsupported(format!("memory space `{space}` is not reachable from the CPU")));
        }
    }
    let src = std::ptr::with_exposed_provenance::<u8>(copy.src as usize);
    let dst = std::ptr::with_exposed_provenance_mut::<u8>(copy.dst as usize);
    Ok((src, dst))
}

/// Whether the CPU can read and write a memory space: `host` and all pinned ones.
pub fn is_host(space: &str) -> bool {
    space == HOST_SPACE || space.starts_with("host-pinned:")
}

/// Aligned host memory from the system allocator, with counters and an optional limit.
#[derive(Debug, Clone, Default)]
pub struct HostAllocator {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    live: HashMap<u64, Layout>,
    stats: MemoryStats,
    limit: Option<u64>,
}

impl HostAllocator {
    /// An allocator that hands out at most `limit` bytes at a time.
    pub fn with_limit(limit: u64) -> HostAllocator {
        let state = State { limit: Some(limit), ..State::default() };
        HostAllocator { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates; see [`Allocator::alloc`].
    ///
    /// # Errors
    /// `OutOfMemory` with the numbers.
    pub fn allocate(&self, bytes: u64, alignment: u64) -> Result<u64> {
        let mut state = self.state();
        let in_use = state.stats.in_use_bytes;
        if let Some(limit) = state.limit.filter(|l| in_use.saturating_add(bytes) > *l) {
            return Err(Error::out_of_memory(format!(
                "{bytes} bytes of host memory: {in_use} of {limit} are in use"
            )));
        }
        if !alignment.is_power_of_two() {
            return Err(Error::invalid(format!("alignment {alignment} is not a power of two")));
        }
        // One byte for a size of 0 gives a unique, non-null address.
        let layout = usize::try_from(bytes.max(1))
            .ok()
            .zip(usize::try_from(alignment).ok())
            .and_then(|(b, a)| Layout::from_size_align(b, a).ok())
            .ok_or_else(|| {
                Error::out_of_memory(format!("{bytes} bytes aligned to {alignment}: too large"))
            })?;
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { std::alloc::alloc(layout) };
        if ptr.is_null() {
            return Err(Error::out_of_memory(format!(
                "{bytes} bytes of host memory: the system has none left"
            )));
        }
        let address = ptr.expose_provenance() as u64;
        state.live.insert(address, layout);
        let s = &mut state.stats;
        s.in_use_bytes += bytes;
        s.in_use_blocks += 1;
        s.reserved_bytes += layout.size() as u64;
        s.peak_in_use_bytes = s.peak_in_use_bytes.max(s.in_use_bytes);
        s.total_allocs += 1;
        Ok(address)
    }

    /// Frees; see [`Allocator::free`].
    ///
    /// # Errors
    /// `InvalidArgument` for an address or size that is not allocated.
    pub fn release(&self, address: u64, bytes: u64) -> Result<()> {
        let mut state = self.state();
        match state.live.get(&address) {
            Some(layout) if layout.size() as u64 == bytes.max(1) => {
                let layout = *layout;
                state.live.remove(&address);
                state.stats.in_use_bytes -= bytes;
                state.stats.in_use_blocks -= 1;
                state.stats.reserved_bytes -= layout.size() as u64;
                let ptr = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
                // SAFETY: allocated above with this layout, and just removed from the live ones, so only once.
                unsafe { std::alloc::dealloc(ptr, layout) };
                Ok(())
            }
            _ => Err(Error::invalid(format!("{bytes} bytes at {address:#x} are not allocated"))),
        }
    }
}

impl Allocator for HostAllocator {
    type Stream = InlineStream;

    fn alloc(&self, bytes: u64, alignment: u64, _: Option<&InlineStream>) -> Result<u64> {
        self.allocate(bytes, alignment)
    }

    fn free(&self, address: u64, bytes: u64) -> Result<()> {
        self.release(address, bytes)
    }

    fn stats(&self) -> MemoryStats {
        self.state().stats
    }
}

/// The machine's CPU as a device, with nothing special about it.
#[derive(Debug, Default)]
pub struct HostDevice {
    allocator: HostAllocator,
}

impl HostDevice {
    /// The usual description of the CPU as a device.
    pub fn cpu_info() -> DeviceInfo {
        DeviceInfo {
            kind: "cpu".into(),
            name: "host CPU".into(),
            uuid: CPU_UUID,
            inline: true,
            memory_space: HOST_SPACE.into(),
            reads: vec![HOST_SPACE.into()],
            writes: vec![HOST_SPACE.into()],
            ..DeviceInfo::default()
        }
    }
}

impl Device for HostDevice {
    type Stream = InlineStream;
    type Event = InlineEvent;
    type Allocator = HostAllocator;

    fn info(&self) -> DeviceInfo {
        Self::cpu_info()
    }

    fn create_stream(&self, _: StreamOptions) -> Result<InlineStream> {
        Ok(InlineStream::default())
    }

    fn create_event(&self) -> Result<InlineEvent> {
        Ok(InlineEvent)
    }

    fn open_allocator(&self, _: MemoryKind) -> Result<HostAllocator> {
        Ok(self.allocator.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn memory_is_counted_limited_and_freed_once() {
        let a = HostAllocator::with_limit(1000);
        let x = a.allocate(600, 256).unwrap();
        assert_eq!(x % 256, 0);
        assert_eq!(a.allocate(500, 64).unwrap_err().code(), Code::OutOfMemory);
        let zero = a.allocate(0, 64).unwrap();
        assert_ne!(zero, 0);
        assert_eq!(a.allocate(1, 48).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(a.release(x, 599).unwrap_err().code(), Code::InvalidArgument);
        a.release(x, 600).unwrap();
        assert!(a.release(x, 600).is_err());
        a.release(zero, 0).unwrap();
        let s = a.stats();
        assert_eq!((s.in_use_bytes, s.in_use_blocks, s.reserved_bytes, s.peak_in_use_bytes), (0, 0, 0, 600));
        assert_eq!(HostAllocator::default().allocate(u64::MAX, 64).unwrap_err().code(), Code::OutOfMemory);
    }
}
