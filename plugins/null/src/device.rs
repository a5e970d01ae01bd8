//! The device.

use crate::memory::NullMemory;
use crate::stream::{NullEvent, NullStream};
use ep_core::provider::{Attribute, Device, DeviceInfo, Host, MemoryKind, StreamOptions, Timing};
use ep_core::{Error, Result, Scalar};

/// An open device. Any thread may use it at any time.
pub struct NullDevice {
    host: Host,
    memory: NullMemory,
    memory_bytes: u64,
}

impl NullDevice {
    pub(crate) fn new(host: Host, memory_bytes: u64) -> NullDevice {
        NullDevice { host, memory: NullMemory::new(memory_bytes), memory_bytes }
    }

    /// The host, for kernels: its threads are the ones to compute on.
    pub fn host(&self) -> &Host {
        &self.host
    }
}

impl Device for NullDevice {
    type Stream = NullStream;
    type Event = NullEvent;
    type Allocator = NullMemory;

    // Optional: leave it out if events cannot tell the time.
    const TIMING: Option<Timing<Self>> = Some(NullEvent::elapsed);

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            kind: crate::NAME.into(),
            name: "stand-in device".into(),
            // The hardware's own, so that providers for the same hardware share a logical device. Zero is unknown.
            uuid: [0; 16],
            memory_bytes: self.memory_bytes,
            // The host waits for events before it touches memory that queued work uses, as a queue that runs behind
            // its back needs. `true` spares it that, and promises that all work is done when a call returns.
            inline: false,
            // Memory that the host may not touch has a space of its own; copies into and out of it come to
            // `Stream::copy`. Equal names are one space in all of the process, so where two devices, or two instances, cannot
            // use each other's addresses, the names differ.
            memory_space: crate::NAME.into(),
            reads: vec![crate::NAME.into()],
            writes: vec![crate::NAME.into()],
            // Predicates may use these by name: `hob::device("threads").ge(2)`.
            attributes: vec![("threads".into(), Attribute::Scalar(Scalar::U64(self.threads())))],
            ..DeviceInfo::default()
        }
    }

    fn create_stream(&self, _options: StreamOptions) -> Result<NullStream> {
        Ok(NullStream)
    }

    fn create_event(&self) -> Result<NullEvent> {
        Ok(NullEvent::default())
    }

    fn open_allocator(&self, kind: MemoryKind) -> Result<NullMemory> {
        match kind {
            MemoryKind::Device => Ok(self.memory.clone()),
            MemoryKind::PinnedHost => {
                Err(Error::unsupported("this device has no pinned host memory; use plain host memory"))
            }
        }
    }
}

impl NullDevice {
    fn threads(&self) -> u64 {
        ep_core::parallel::Parallel::threads(&self.host) as u64
    }
}
