//! The device: the machine's CPU, as every provider that computes on it has it.

use crate::engine::Engine;
use ep_core::parallel::Parallel;
use ep_core::provider::inline::{CPU_UUID, HOST_SPACE, HostAllocator, InlineEvent, InlineStream};
use ep_core::provider::{Attribute, Device, DeviceInfo, Host, MemoryKind, StreamOptions};
use ep_core::{Result, Scalar};
use std::sync::Arc;

/// The kind of the device.
pub(crate) const KIND: &str = "cpu";

/// The CPU. Any thread may use it at any time.
pub struct OnednnDevice {
    host: Host,
    engine: Arc<Engine>,
    memory: HostAllocator,
}

impl OnednnDevice {
    pub(crate) fn new(host: Host, engine: Arc<Engine>) -> OnednnDevice {
        OnednnDevice { host, engine, memory: HostAllocator::default() }
    }

    /// The host, whose threads kernels compute on.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// oneDNN's engine.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Device for OnednnDevice {
    type Stream = InlineStream;
    type Event = InlineEvent;
    type Allocator = HostAllocator;

    fn info(&self) -> DeviceInfo {
        let library = self.engine.library();
        DeviceInfo {
            kind: KIND.into(),
            name: format!("host CPU by oneDNN {}", library.version()),
            uuid: CPU_UUID,
            inline: true,
            memory_space: HOST_SPACE.into(),
            reads: vec![HOST_SPACE.into()],
            writes: vec![HOST_SPACE.into()],
            attributes: vec![
                ("onednn_version".into(), Attribute::Text(library.version())),
                ("isa".into(), Attribute::Text(library.isa())),
                ("threads".into(), Attribute::Scalar(Scalar::U64(self.host.threads() as u64))),
            ],
            ..DeviceInfo::default()
        }
    }

    fn create_stream(&self, _: StreamOptions) -> Result<InlineStream> {
        Ok(InlineStream::default())
    }

    fn create_event(&self) -> Result<InlineEvent> {
        Ok(InlineEvent)
    }

    fn open_allocator(&self, _: MemoryKind) -> Result<HostAllocator> {
        Ok(self.memory.clone())
    }
}
