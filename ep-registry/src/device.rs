//! Logical devices: the provider devices that drive the same hardware, under one name.
//!
//! `cpu:0` may be ep-cpu's device and oneDNN's. The *primary* member, the one whose provider has the highest
//! priority in the config, allocates; kernels of every member run on its memory.

use crate::buffer::Buffer;
use crate::memory::Memory;
use crate::orphans::Orphans;
use crate::select::attributes;
use crate::stream::Stream;
use ep_core::handle::{AllocatorHandle, DeviceHandle, StreamHandle};
use ep_core::hob::Value;
use ep_core::provider::{DeviceInfo, MemoryKind, MemoryStats, StreamOptions};
use ep_core::{DType, Element, Error, Result};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// A logical device. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    id: u32,
    name: String,
    members: Vec<Member>,
    space: Arc<str>,
    allocators: [OnceCell<Arc<AllocatorHandle>>; 2],
    transfer: Mutex<Option<StreamHandle>>,
    orphans: Orphans,
}

/// A provider's device that is part of a logical one.
pub struct Member {
    instance: String,
    handle: Arc<DeviceHandle>,
    attributes: Vec<(String, Value<'static>)>,
    reads_primary: bool,
    writes_primary: bool,
}

impl Member {
    /// The provider instance's name.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The provider's device.
    pub fn handle(&self) -> &Arc<DeviceHandle> {
        &self.handle
    }

    pub(crate) fn attributes(&self) -> &[(String, Value<'static>)] {
        &self.attributes
    }

    /// Whether its kernels read a memory space.
    pub(crate) fn reads(&self, space: &str) -> bool {
        self.handle.info().reads.iter().any(|s| s == space)
    }

    /// Whether its kernels write a memory space.
    pub(crate) fn writes(&self, space: &str) -> bool {
        self.handle.info().writes.iter().any(|s| s == space)
    }

    pub(crate) fn reaches_primary(&self) -> (bool, bool) {
        (self.reads_primary, self.writes_primary)
    }
}

impl Device {
    /// `members[0]` is the primary one.
    pub(crate) fn new(id: u32, name: String, members: Vec<(String, Arc<DeviceHandle>)>) -> Device {
        let space: Arc<str> = members[0].1.info().memory_space.as_str().into();
        let members = members.into_iter().map(|(instance, handle)| {
            let info = handle.info();
            let has = |list: &[String]| list.iter().any(|s| **s == *space);
            let (reads_primary, writes_primary) = (has(&info.reads), has(&info.writes));
            Member { instance, attributes: attributes(info), reads_primary, writes_primary, handle }
        });
        let members = members.collect();
        let inner = Inner {
            id,
            name,
            members,
            space,
            allocators: Default::default(),
            transfer: Mutex::new(None),
            orphans: Orphans::default(),
        };
        Device { inner: Arc::new(inner) }
    }

    /// Its name in this runtime: `cpu:0`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What the primary member says of it.
    pub fn info(&self) -> &DeviceInfo {
        self.inner.members[0].handle.info()
    }

    /// The provider devices that it consists of; the primary one first.
    pub fn members(&self) -> &[Member] {
        &self.inner.members
    }

    pub(crate) fn id(&self) -> u32 {
        self.inner.id
    }

    /// The memory space that it allocates in.
    pub(crate) fn space(&self) -> &Arc<str> {
        &self.inner.space
    }

    /// Streams of which no handle is left.
    pub(crate) fn orphans(&self) -> &Orphans {
        &self.inner.orphans
    }

    /// The first member for which `f` holds.
    pub(crate) fn member_where(&self, f: impl Fn(&Member) -> bool) -> Option<usize> {
        self.inner.members.iter().position(f)
    }

    pub(crate) fn allocator(&self, kind: MemoryKind) -> Result<&Arc<AllocatorHandle>> {
        let slot = &self.inner.allocators[kind.raw() as usize];
        slot.get_or_try_init(|| Ok(Arc::new(self.inner.members[0].handle.open_allocator(kind)?)))
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// The provider's.
    pub fn stream(&self) -> Result<Stream> {
        self.stream_with(StreamOptions::default())
    }

    /// Makes a stream with options.
    ///
    /// # Errors
    /// The provider's.
    pub fn stream_with(&self, options: StreamOptions) -> Result<Stream> {
        self.inner.orphans.close_done();
        Stream::new(self.clone(), options)
    }

    /// A stream whose work goes onto a native stream that another library made: in order with that library's own work,
    /// without waiting. `kind` is the provider's name of such handles; of CUDA `CUstream`. Dropping the last clone waits
    /// for the work and leaves the native stream alone; buffers and graphs do not use it any more then.
    ///
    /// # Errors
    /// `Unsupported` where the device's first provider adopts no streams, or none of this kind; the provider's.
    ///
    /// # Safety
    /// - `native` is a live stream of that kind on this device that outlives the result and its clones; the last of them is not
    ///   dropped from an event of a provider, which comes in the middle of a call, as nobody can wait there.
    /// - While anybody records its work into a graph, work reaches it from that side only: the other library queues nothing
    ///   while [`Stream::capture`] records, and no safe call uses the result, nor another stream that was adopted from
    ///   `native`, while somebody else records. A graph does not keep the buffers of work that it got from elsewhere.
    pub unsafe fn adopt_stream(&self, kind: &str, native: u64) -> Result<Stream> {
        // SAFETY: the caller's promise.
        unsafe { Stream::adopt(self.clone(), kind, native) }
    }

    /// Runs a blocking transfer on a stream of the primary member that is kept for the purpose, and waits.
    pub(crate) fn transfer(&self, work: impl FnOnce(&StreamHandle) -> Result<()>) -> Result<()> {
        let mut slot = self.inner.transfer.lock();
        let stream = match &mut *slot {
            Some(stream) => stream,
            empty => empty.insert(self.inner.members[0].handle.create_stream(StreamOptions::default())?),
        };
        let queued = work(stream);
        // Also after an error: part of the work may have been queued.
        let done = stream.sync();
        queued.and(done)
    }

    /// Allocates a buffer of `len` elements. Its content is undefined and cannot be read until written.
    ///
    /// # Errors
    /// `OutOfMemory`, with the numbers.
    pub fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.alloc_kind(MemoryKind::Device, dtype, len)
    }

    /// Allocates in host memory that the device reaches fast.
    ///
    /// # Errors
    /// `Unsupported` where there is no such memory; `OutOfMemory`.
    pub fn alloc_pinned(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.alloc_kind(MemoryKind::PinnedHost, dtype, len)
    }

    fn alloc_kind(&self, kind: MemoryKind, dtype: DType, len: usize) -> Result<Buffer> {
        let bytes = (len as u64).checked_mul(dtype.bytes_for_bounds()).ok_or_else(|| {
            Error::out_of_memory(format!("{len} elements of {dtype} are more than 2^64 bytes"))
        })?;
        self.inner.orphans.close_done();
        Ok(Buffer::new(Memory::alloc(self, kind, bytes)?, dtype))
    }

    /// Allocates a buffer and fills it with `data`.
    ///
    /// # Errors
    /// `OutOfMemory`, or the provider's.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer> {
        let mut buffer = self.alloc(T::DTYPE, data.len())?;
        buffer.upload(data)?;
        Ok(buffer)
    }

    /// Counters of the device's memory.
    ///
    /// # Errors
    /// The provider's.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        self.inner.orphans.close_done();
        self.allocator(MemoryKind::Device)?.stats()
    }

    /// Gives cached memory back to the system.
    ///
    /// # Errors
    /// The provider's.
    pub fn trim(&self) -> Result<()> {
        self.inner.orphans.close_done();
        self.allocator(MemoryKind::Device)?.trim()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<_> = self.inner.members.iter().map(|m| m.instance.as_str()).collect();
        write!(f, "Device({} by {})", self.inner.name, members.join(", "))
    }
}
