//! Devices, streams, events and allocators.

use super::provider::ProviderHandle;
use crate::abi::*;
use crate::provider::{Attribute, CopyRequest, DeviceInfo, MemoryKind, MemoryStats, StreamOptions};
use crate::{Error, Result, Scalar};
use std::sync::Arc;

/// An open device.
pub struct DeviceHandle {
    raw: *mut EpDevice,
    info: DeviceInfo,
    timing: Option<TimingInterface>,
    foreign: Option<ForeignStreamInterface>,
    graphs: Option<GraphInterface>,
    prepack: Option<PrepackInterface>,
    provider: Arc<ProviderHandle>,
}

// SAFETY: the functions of a device may be called from any thread (table EpDeviceTable).
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        // SAFETY: opened by the provider, closed once; every object of it holds an Arc of this handle.
        unsafe { (self.provider.plugin().device.destroy)(self.raw) }
    }
}

impl std::fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceHandle({} of {})", self.info.name, self.provider.plugin().name)
    }
}

pub(super) fn not_null<T>(raw: *mut T, what: &str) -> Result<*mut T> {
    if raw.is_null() {
        return Err(Error::internal(format!("the provider reported success and no {what}")));
    }
    Ok(raw)
}

/// Whether an optional interface is as this host sees it; if not, `owner` logs the difference.
///
/// # Safety
/// `table` is a static table of a plugin that begins as `EpInterface` says; the pointers in `expected` are readable
/// for its `count` entries.
pub(super) unsafe fn fits(
    name: &str,
    table: *const EpInterface,
    expected: &EpTableInfo,
    owner: &dyn std::fmt::Debug,
) -> Result<bool> {
    // SAFETY: as the caller promises.
    unsafe {
        let info = read_table(table)?.info;
        if info.is_null() || !info.is_aligned() {
            return Err(Error::abi(format!("interface {name}: its description is null or misaligned")));
        }
        if let Some(mismatch) = compare(expected, &*info)? {
            tracing::warn!("{owner:?}: interface {name} is not used: {mismatch}");
            return Ok(false);
        }
    }
    Ok(true)
}

impl DeviceHandle {
    /// # Safety
    /// `raw` was just opened by `provider`.
    pub(super) unsafe fn new(provider: Arc<ProviderHandle>, raw: *mut EpDevice) -> Result<Arc<DeviceHandle>> {
        let raw = not_null(raw, "device")?;
        // Owned from here on, so that it is closed if its description is bad.
        let mut device = DeviceHandle {
            raw,
            info: DeviceInfo::default(),
            timing: None,
            foreign: None,
            graphs: None,
            prepack: None,
            provider,
        };
        let table = device.provider.plugin().device;
        let mut info = EpDeviceInfo::EMPTY;
        // SAFETY: a live device and a struct of our capacity; its pointers live as long as the device.
        unsafe {
            take((table.info)(raw, &mut info))?;
            device.info = read_info(&info).map_err(|e| e.context("the device's description"))?;
        }
        // SAFETY: the interface tables belong to the plugin, which stays mapped; ours are generated.
        unsafe {
            if let Some(t) = device.interface("ep.timing", 1, &EPTIMINGINTERFACE_INFO)? {
                device.timing = device.optional("ep.timing", TimingInterface::load(t.cast()));
            }
            if let Some(t) = device.interface("ep.foreign_stream", 1, &EPFOREIGNSTREAMINTERFACE_INFO)? {
                device.foreign = device.optional("ep.foreign_stream", ForeignStreamInterface::load(t.cast()));
            }
            if let Some(t) = device.interface("ep.graph", 1, &EPGRAPHINTERFACE_INFO)? {
                device.graphs = device.optional("ep.graph", GraphInterface::load(t.cast()));
            }
            if let Some(t) = device.interface("ep.prepack", 1, &EPPREPACKINTERFACE_INFO)? {
                device.prepack = device.optional("ep.prepack", PrepackInterface::load(t.cast()));
            }
        }
        Ok(Arc::new(device))
    }

    /// A bad table of an optional interface costs that interface only.
    fn optional<T>(&self, name: &str, table: Result<T>) -> Option<T> {
        table.inspect_err(|e| tracing::warn!("{self:?}: interface {name} is not used: {e}")).ok()
    }

    /// An optional interface of the device; `None` when it is absent or does not fit `expected`.
    ///
    /// # Errors
    /// The provider's.
    ///
    /// # Safety
    /// The pointers in `expected` are readable for its `count` entries, as those of the generated `*_INFO`s are.
    pub unsafe fn interface(
        &self,
        name: &str,
        version: u32,
        expected: &EpTableInfo,
    ) -> Result<Option<*const EpInterface>> {
        let table = &self.provider.plugin().device;
        if !table.has_get_interface {
            return Ok(None);
        }
        let mut out = std::ptr::null();
        // SAFETY: a live device, a text that outlives the call, a valid out-pointer; a non-null result is a
        // static table of the plugin that begins as `EpInterface` says; `expected` as the caller promises.
        unsafe {
            take((table.get_interface)(self.raw, EpStr::new(name), version, &mut out))?;
            if out.is_null() {
                return Ok(None);
            }
            if !fits(name, out, expected, self)? {
                return Ok(None);
            }
        }
        Ok(Some(out))
    }

    pub(super) fn raw(&self) -> *mut EpDevice {
        self.raw
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The provider instance.
    pub fn provider(&self) -> &Arc<ProviderHandle> {
        &self.provider
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// The provider's.
    pub fn create_stream(self: &Arc<Self>, options: StreamOptions) -> Result<StreamHandle> {
        let options = EpStreamOptions { priority: options.priority, ..EpStreamOptions::EMPTY };
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live device, live options, a valid out-pointer.
        unsafe { take((self.provider.plugin().device.stream_create)(self.raw, &options, &mut raw)) }?;
        Ok(StreamHandle { raw: not_null(raw, "stream")?, device: self.clone() })
    }

    /// Makes an event.
    ///
    /// # Errors
    /// The provider's.
    pub fn create_event(self: &Arc<Self>) -> Result<EventHandle> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live device and a valid out-pointer.
        unsafe { take((self.provider.plugin().device.event_create)(self.raw, 0, &mut raw)) }?;
        Ok(EventHandle { raw: not_null(raw, "event")?, device: self.clone() })
    }

    /// Opens a source of memory.
    ///
    /// # Errors
    /// `Unsupported` for kinds that the device does not have.
    pub fn open_allocator(self: &Arc<Self>, kind: MemoryKind) -> Result<AllocatorHandle> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live device and a valid out-pointer.
        unsafe { take((self.provider.plugin().device.allocator_open)(self.raw, kind.raw(), &mut raw)) }?;
        Ok(AllocatorHandle { raw: not_null(raw, "allocator")?, device: self.clone() })
    }

    /// Nanoseconds between two events of this device, both recorded and done.
    ///
    /// # Errors
    /// `Unsupported` where the device cannot tell; `InvalidArgument` for events of another device.
    pub fn elapsed(&self, start: &EventHandle, end: &EventHandle) -> Result<u64> {
        let timing = self.timing.ok_or_else(|| Error::unsupported("this device offers no ep.timing"))?;
        self.own(&start.device, "event")?;
        self.own(&end.device, "event")?;
        let mut ns = 0;
        // SAFETY: live events of this device and a valid out-pointer.
        unsafe { take((timing.elapsed)(start.raw, end.raw, &mut ns)) }?;
        Ok(ns)
    }

    /// Whether the device has native streams.
    pub fn has_foreign_streams(&self) -> bool {
        self.foreign.is_some()
    }

    /// Whether the device records graphs.
    pub fn has_graphs(&self) -> bool {
        self.graphs.is_some()
    }

    pub(super) fn graphs(&self) -> Option<GraphInterface> {
        self.graphs
    }

    /// Whether some of the device's primitives read operands in a packed form.
    pub fn has_prepack(&self) -> bool {
        self.prepack.is_some()
    }

    pub(super) fn prepack(&self) -> Option<PrepackInterface> {
        self.prepack
    }

    /// Fails for an object of another device: its pointer means nothing to this device's provider.
    pub(super) fn own(&self, device: &Arc<DeviceHandle>, what: &str) -> Result<()> {
        if std::ptr::eq(self, &**device) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the {what} is of {device:?}, not of {self:?}; use one that this device made"
        )))
    }

    /// The kind and handle of a stream's native counterpart.
    ///
    /// # Errors
    /// `Unsupported` where there is no such thing; `InvalidArgument` for a stream of another device.
    pub fn native_stream(&self, stream: &StreamHandle) -> Result<(String, u64)> {
        let foreign =
            self.foreign.ok_or_else(|| Error::unsupported("this device offers no ep.foreign_stream"))?;
        self.own(&stream.device, "stream")?;
        let (mut kind, mut handle) = (EpStr::ZERO, 0);
        // SAFETY: a live stream of this device and valid out-pointers; the kind is static text of the plugin.
        unsafe {
            take((foreign.native)(stream.raw, &mut kind, &mut handle))?;
            Ok((string_of(kind), handle))
        }
    }

    /// A stream that queues onto a native one.
    ///
    /// # Errors
    /// `Unsupported` for other kinds of handles.
    ///
    /// # Safety
    /// `handle` is a live native stream of that kind on this device that outlives the result.
    pub unsafe fn adopt_stream(self: &Arc<Self>, kind: &str, handle: u64) -> Result<StreamHandle> {
        let foreign =
            self.foreign.ok_or_else(|| Error::unsupported("this device offers no ep.foreign_stream"))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: as the caller promises; a valid out-pointer.
        unsafe { take((foreign.adopt)(self.raw, EpStr::new(kind), handle, &mut raw)) }?;
        Ok(StreamHandle { raw: not_null(raw, "stream")?, device: self.clone() })
    }
}

/// # Safety
/// The struct was filled by a plugin: its pointers are readable.
unsafe fn read_info(raw: &EpDeviceInfo) -> Result<DeviceInfo> {
    let text = |s: EpStr| {
        // SAFETY: as the caller promises.
        unsafe { str_of(s) }.map(str::to_owned)
    };
    // SAFETY: as the caller promises.
    let (reads, writes, attributes) = unsafe {
        (
            list(raw.reads, raw.num_reads, "reads")?,
            list(raw.writes, raw.num_writes, "writes")?,
            list(raw.attributes, raw.num_attributes, "attributes")?,
        )
    };
    let mut info = DeviceInfo {
        kind: text(raw.kind)?,
        name: text(raw.name)?,
        uuid: raw.uuid.bytes,
        pci: text(raw.pci)?,
        memory_bytes: raw.memory_bytes,
        inline: raw.flags & u64::from(EP_DEVICE_INLINE) != 0,
        memory_space: text(raw.memory_space)?,
        reads: reads.iter().map(|s| text(*s)).collect::<Result<_>>()?,
        writes: writes.iter().map(|s| text(*s)).collect::<Result<_>>()?,
        attributes: Vec::new(),
    };
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if info.kind.is_empty() || !info.kind.chars().all(word) {
        return Err(Error::invalid(format!(
            "kind {:?}: lower-case letters, digits, `-`, `_`, `.` are possible",
            info.kind
        )));
    }
    if info.memory_space.is_empty() {
        return Err(Error::invalid("the memory space is empty"));
    }
    for a in attributes {
        let value = match Scalar::try_from(a.value)? {
            Scalar::None => Attribute::Text(text(a.text)?),
            s => Attribute::Scalar(s),
        };
        info.attributes.push((text(a.name)?, value));
    }
    Ok(info)
}

/// A stream. May move between threads; used by one at a time.
pub struct StreamHandle {
    raw: *mut EpStream,
    device: Arc<DeviceHandle>,
}

// SAFETY: a stream may be used by any thread, one at a time; `StreamHandle` is not `Sync`.
unsafe impl Send for StreamHandle {}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        // SAFETY: made by the device, destroyed once.
        unsafe { (self.device.provider.plugin().stream.destroy)(self.raw) }
    }
}

impl std::fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamHandle({:p} of {:?})", self.raw, self.device)
    }
}

impl StreamHandle {
    #[inline]
    pub(super) fn raw(&self) -> *mut EpStream {
        self.raw
    }

    fn table(&self) -> &StreamTable {
        &self.device.provider.plugin().stream
    }

    /// Its device.
    pub fn device(&self) -> &Arc<DeviceHandle> {
        &self.device
    }

    /// Blocks until all work is done.
    ///
    /// # Errors
    /// The first error of that work, once.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: a live stream, used by this thread only.
        unsafe { take((self.table().sync)(self.raw)) }
    }

    /// Whether all work is done.
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Result<bool> {
        let mut done = 0;
        // SAFETY: a live stream, used by this thread only; a valid out-pointer.
        unsafe { take((self.table().query)(self.raw, &mut done)) }?;
        Ok(done != 0)
    }

    /// Queues a copy.
    ///
    /// # Errors
    /// `Unsupported` for memory spaces that the provider cannot reach.
    ///
    /// # Safety
    /// Both ranges are valid until the copy is done, and nobody else touches the destination or writes the
    /// source in that time.
    pub unsafe fn copy(&self, c: CopyRequest<'_>) -> Result<()> {
        let raw = EpCopy {
            dst: c.dst,
            dst_space: EpStr::new(c.dst_space),
            src: c.src,
            src_space: EpStr::new(c.src_space),
            bytes: c.bytes,
            ..EpCopy::EMPTY
        };
        // SAFETY: a live stream, used by this thread only; memory as the caller promises.
        unsafe { take((self.table().copy)(self.raw, &raw)) }
    }

    /// Queues the event's point.
    ///
    /// # Errors
    /// `InvalidArgument` for an event of another device; else the provider's.
    pub fn record(&self, event: &EventHandle) -> Result<()> {
        self.device.own(&event.device, "event")?;
        // SAFETY: a live stream, used by this thread only, and a live event of the same device.
        unsafe { take((self.table().record)(self.raw, event.raw)) }
    }

    /// Makes later work wait for the event's latest record. The event is of the same provider instance.
    ///
    /// # Errors
    /// `InvalidArgument` for an event of another provider; else the provider's.
    pub fn wait(&self, event: &EventHandle) -> Result<()> {
        if !Arc::ptr_eq(&self.device.provider, &event.device.provider) {
            return Err(Error::invalid("a stream cannot wait for an event of another provider"));
        }
        // SAFETY: a live stream, used by this thread only, and a live event of the same provider.
        unsafe { take((self.table().wait)(self.raw, event.raw)) }
    }
}

/// An event.
pub struct EventHandle {
    raw: *mut EpEvent,
    device: Arc<DeviceHandle>,
}

// SAFETY: the functions of an event may be called from any thread (table EpEventTable).
unsafe impl Send for EventHandle {}
// SAFETY: as above.
unsafe impl Sync for EventHandle {}

impl Drop for EventHandle {
    fn drop(&mut self) {
        // SAFETY: made by the device, destroyed once.
        unsafe { (self.device.provider.plugin().event.destroy)(self.raw) }
    }
}

impl std::fmt::Debug for EventHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EventHandle({:p} of {:?})", self.raw, self.device)
    }
}

impl EventHandle {
    /// Its device.
    pub fn device(&self) -> &Arc<DeviceHandle> {
        &self.device
    }

    /// Whether the work before the latest record is done; true if there is none.
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Result<bool> {
        let mut done = 0;
        // SAFETY: a live event and a valid out-pointer.
        unsafe { take((self.device.provider.plugin().event.query)(self.raw, &mut done)) }?;
        Ok(done != 0)
    }

    /// Blocks until then.
    ///
    /// # Errors
    /// The provider's.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: a live event.
        unsafe { take((self.device.provider.plugin().event.sync)(self.raw)) }
    }
}

/// A source of memory.
pub struct AllocatorHandle {
    raw: *mut EpAllocator,
    device: Arc<DeviceHandle>,
}

// SAFETY: the functions of an allocator may be called from any thread (table EpAllocatorTable).
unsafe impl Send for AllocatorHandle {}
// SAFETY: as above.
unsafe impl Sync for AllocatorHandle {}

impl Drop for AllocatorHandle {
    fn drop(&mut self) {
        // SAFETY: opened by the device, closed once.
        unsafe { (self.device.provider.plugin().allocator.destroy)(self.raw) }
    }
}

impl std::fmt::Debug for AllocatorHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AllocatorHandle({:p} of {:?})", self.raw, self.device)
    }
}

/// What is wrong with an address that a provider gave for memory at a multiple of `due`.
#[cold]
fn bad_address(address: u64, bytes: u64, due: u64) -> Error {
    let what = if address == 0 {
        "which is null; memory of 0 bytes has an address too, and where there is none the answer is OutOfMemory"
            .to_owned()
    } else if !address.is_multiple_of(due) {
        format!("which is misaligned by {} bytes", address % due)
    } else {
        "which wraps around: they would end behind the last address".to_owned()
    };
    Error::internal(format!(
        "asked for {bytes} bytes at a multiple of {due}, the provider allocated them at {address:#x}, {what}"
    ))
}

impl AllocatorHandle {
    fn table(&self) -> &AllocatorTable {
        &self.device.provider.plugin().allocator
    }

    /// Allocates; `alignment` 0 is the device's own choice.
    ///
    /// # Errors
    /// `OutOfMemory`, or `Internal` when the provider breaks its promise of alignment.
    pub fn alloc(&self, bytes: u64, alignment: u64) -> Result<u64> {
        let request = EpAllocRequest { bytes, alignment, ..EpAllocRequest::EMPTY };
        let mut address = 0;
        // SAFETY: a live allocator, a live request, a valid out-pointer.
        unsafe { take((self.table().alloc)(self.raw, &request, &mut address)) }?;
        let due = alignment.max(64);
        if address != 0 && address.is_multiple_of(due) && address.checked_add(bytes).is_some() {
            return Ok(address);
        }
        Err(bad_address(address, bytes, due))
    }

    /// Frees.
    ///
    /// # Errors
    /// The provider's.
    ///
    /// # Safety
    /// `address` was allocated here with `bytes`, is freed once, and no queued work uses it.
    pub unsafe fn free(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { take((self.table().free)(self.raw, address, bytes)) }
    }

    /// The counters.
    ///
    /// # Errors
    /// The provider's.
    pub fn stats(&self) -> Result<MemoryStats> {
        let mut raw = EpMemoryStats::EMPTY;
        // SAFETY: a live allocator and a struct of our capacity.
        unsafe { take((self.table().stats)(self.raw, &mut raw)) }?;
        Ok(MemoryStats {
            in_use_bytes: raw.in_use_bytes,
            in_use_blocks: raw.in_use_blocks,
            reserved_bytes: raw.reserved_bytes,
            peak_in_use_bytes: raw.peak_in_use_bytes,
            total_allocs: raw.total_allocs,
        })
    }

    /// Gives cached memory back; nothing where the provider cannot.
    ///
    /// # Errors
    /// The provider's.
    pub fn trim(&self) -> Result<()> {
        if !self.table().has_trim {
            return Ok(());
        }
        // SAFETY: a live allocator.
        unsafe { take((self.table().trim)(self.raw)) }
    }
}
