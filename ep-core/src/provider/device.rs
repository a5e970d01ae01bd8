//! Devices and what they make.

use super::{Graphs, Interface};
use crate::abi::{EP_MEMORY_DEVICE, EP_MEMORY_PINNED_HOST};
use crate::{Error, Result, Scalar};

/// What a device is; see `EpDeviceInfo`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceInfo {
    /// `cpu`, `cuda`, ...
    pub kind: String,
    /// The product's name.
    pub name: String,
    /// The hardware's identity: providers with the same (kind, uuid) share a logical device.
    pub uuid: [u8; 16],
    /// PCI address, or empty.
    pub pci: String,
    /// Memory in bytes; 0: unknown.
    pub memory_bytes: u64,
    /// Whether work is done when the call that queues it returns.
    pub inline: bool,
    /// The memory space of its own allocator, one of `reads` and of `writes`.
    pub memory_space: String,
    /// Memory spaces its kernels read.
    pub reads: Vec<String>,
    /// Memory spaces its kernels write.
    pub writes: Vec<String>,
    /// Typed properties for predicates and people.
    pub attributes: Vec<(String, Attribute)>,
}

/// The value of a device attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A number or truth value.
    Scalar(Scalar),
    /// Text.
    Text(String),
}

impl std::fmt::Display for Attribute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Attribute::Scalar(s) => s.fmt(f),
            Attribute::Text(t) => f.write_str(t),
        }
    }
}

/// How a stream is to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// 0 is normal, lower runs first.
    pub priority: i64,
}

/// Which memory an allocator hands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The device's own.
    Device,
    /// Host memory that the device reaches fast. Its space is `host-pinned:KIND:UUID`, with the uuid as 32 lower-case
    /// hexadecimal digits, or the device's own where that is host memory: kernels and copies that reach it have it
    /// among [`DeviceInfo::reads`] and [`DeviceInfo::writes`].
    PinnedHost,
}

impl MemoryKind {
    /// As it crosses the ABI.
    pub fn raw(self) -> u32 {
        match self {
            MemoryKind::Device => EP_MEMORY_DEVICE,
            MemoryKind::PinnedHost => EP_MEMORY_PINNED_HOST,
        }
    }

    pub(crate) fn from_raw(raw: u32) -> Result<MemoryKind> {
        match raw {
            EP_MEMORY_DEVICE => Ok(MemoryKind::Device),
            EP_MEMORY_PINNED_HOST => Ok(MemoryKind::PinnedHost),
            other => Err(Error::unsupported(format!("memory kind {other} is not known to this version"))),
        }
    }
}

/// An allocator's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes handed out and not freed.
    pub in_use_bytes: u64,
    /// Allocations handed out and not freed.
    pub in_use_blocks: u64,
    /// Bytes held from the system, cached ones included.
    pub reserved_bytes: u64,
    /// Largest `in_use_bytes` so far.
    pub peak_in_use_bytes: u64,
    /// Successful allocations so far.
    pub total_allocs: u64,
}

/// A copy between two addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRequest<'a> {
    /// Destination.
    pub dst: u64,
    /// Its memory space.
    pub dst_space: &'a str,
    /// Source.
    pub src: u64,
    /// Its memory space.
    pub src_space: &'a str,
    /// Bytes, not 0; the ranges do not overlap unless they are identical.
    pub bytes: u64,
}

/// Elapsed time between events, of devices that can tell.
pub type Timing<D> = fn(&<D as Device>::Event, &<D as Device>::Event) -> Result<u64>;

/// Streams of the platform, of devices that have such a thing.
#[derive(Debug)]
pub struct ForeignStreams<D: Device> {
    /// The kind of handle, such as `CUstream`.
    pub kind: &'static str,
    /// The handle of a stream.
    pub native: fn(&D::Stream) -> Result<u64>,
    /// A stream that queues onto a handle.
    ///
    /// # Safety
    /// The handle is that of a live stream, and lives until the new stream is gone. A function that looks handles up by itself,
    /// and so takes any number, may be safe.
    pub adopt: unsafe fn(&D, u64) -> Result<D::Stream>,
}

/// An open device.
pub trait Device: Send + Sync + Sized + 'static {
    /// Its streams.
    type Stream: Stream<Event = Self::Event>;
    /// Its events.
    type Event: Event;
    /// Its allocators.
    type Allocator: Allocator<Stream = Self::Stream>;

    /// Elapsed time between events in nanoseconds, if the device can tell (`ep.timing`).
    const TIMING: Option<Timing<Self>> = None;
    /// Native streams, if there are any (`ep.foreign_stream`).
    const FOREIGN_STREAMS: Option<ForeignStreams<Self>> = None;
    /// Recording work into graphs, if that is possible (`ep.graph`).
    const GRAPHS: Option<Graphs<Self>> = None;
    /// Whether some of its kernels read operands in a packed form ([`Kernel::PACKS`](super::Kernel::PACKS); `ep.prepack`).
    const PREPACKS: bool = false;

    /// What it is. Asked once.
    fn info(&self) -> DeviceInfo;

    /// Makes a stream.
    ///
    /// # Errors
    /// When there are no resources for it.
    fn create_stream(&self, options: StreamOptions) -> Result<Self::Stream>;

    /// Makes an event.
    ///
    /// # Errors
    /// When there are no resources for it.
    fn create_event(&self) -> Result<Self::Event>;

    /// Opens a source of memory.
    ///
    /// # Errors
    /// `Unsupported` for kinds that the device does not have.
    fn open_allocator(&self, kind: MemoryKind) -> Result<Self::Allocator>;

    /// Another optional interface by name and version.
    fn interface(&self, name: &str, version: u32) -> Option<Interface> {
        let _ = (name, version);
        None
    }
}

/// A queue of work. Work of one stream is done in order. Dropping waits for it.
pub trait Stream: Send + 'static {
    /// The events it works with.
    type Event: Event;

    /// Blocks until all work is done, also when it failed: afterwards none of it touches memory, and what it was
    /// to write holds some value.
    ///
    /// # Errors
    /// The first error of that work, once.
    fn sync(&self) -> Result<()>;

    /// Whether all work is done.
    ///
    /// # Errors
    /// `DeviceLost`.
    fn query(&self) -> Result<bool>;

    /// Queues a copy.
    ///
    /// # Safety
    /// Source and destination are valid for `bytes` bytes until the copy is done.
    ///
    /// # Errors
    /// `Unsupported` for memory spaces that it cannot reach.
    unsafe fn copy(&self, copy: CopyRequest<'_>) -> Result<()>;

    /// Queues the event's point.
    ///
    /// # Errors
    /// `DeviceLost`.
    fn record(&self, event: &Self::Event) -> Result<()>;

    /// Makes later work wait for the event's latest record; nothing if there is none.
    ///
    /// # Errors
    /// `DeviceLost`.
    fn wait(&self, event: &Self::Event) -> Result<()>;

    /// An optional interface by name and version.
    fn interface(&self, name: &str, version: u32) -> Option<Interface> {
        let _ = (name, version);
        None
    }
}

/// A point in a stream's work.
pub trait Event: Send + Sync + 'static {
    /// Whether the work before the latest record is done; true if there is none.
    ///
    /// # Errors
    /// `DeviceLost`.
    fn query(&self) -> Result<bool>;

    /// Blocks until then.
    ///
    /// # Errors
    /// `DeviceLost`.
    fn sync(&self) -> Result<()>;
}

/// A source of memory.
pub trait Allocator: Send + Sync + 'static {
    /// The streams that stream-ordered requests name.
    type Stream;

    /// Whether [`Allocator::free_async`] works.
    const STREAM_ORDERED: bool = false;

    /// Allocates `bytes` at a multiple of `alignment`, a power of two of at least 64. With `stream`, the
    /// memory may be one that is free once the stream's work so far is done.
    ///
    /// # Errors
    /// `OutOfMemory` with the numbers.
    fn alloc(&self, bytes: u64, alignment: u64, stream: Option<&Self::Stream>) -> Result<u64>;

    /// Frees. No queued work uses the memory.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is not allocated, where that can be told.
    fn free(&self, address: u64, bytes: u64) -> Result<()>;

    /// Frees once the stream's work so far is done.
    ///
    /// # Errors
    /// As [`Allocator::free`].
    fn free_async(&self, address: u64, bytes: u64, stream: &Self::Stream) -> Result<()> {
        let _ = (address, bytes, stream);
        Err(Error::unsupported("this allocator is not stream-ordered"))
    }

    /// The counters.
    fn stats(&self) -> MemoryStats;

    /// Gives cached memory back.
    ///
    /// # Errors
    /// `DeviceLost`.
    fn trim(&self) -> Result<()> {
        Ok(())
    }
}
