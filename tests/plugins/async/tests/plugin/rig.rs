//! A minimal host: the provider behind its tables, with nothing in between.

use ep_core::handle::{
    AllocatorHandle, DeviceHandle, FactoryHandle, HostSide, Plugin, PrimitiveHandle, ProviderHandle, Sink,
    StreamHandle,
};
use ep_core::op::Op;
use ep_core::parallel::{Parallel, Serial};
use ep_core::provider::{CopyRequest, MemoryKind, StreamOptions, query};
use ep_core::schema::Schema;
use ep_core::{Element, Result};
use std::path::PathBuf;
use std::sync::Arc;
use test_async::AsyncProvider;

struct Side;

impl HostSide for Side {
    fn log_enabled(&self, _: u32) -> bool {
        false
    }
    fn log(&self, _: u32, _: &str, _: &str) {}
    fn parallel(&self) -> &dyn Parallel {
        &Serial
    }
}

#[derive(Default)]
struct Factories(Vec<Arc<FactoryHandle>>);

impl Sink for Factories {
    fn schema(&mut self, _: Schema) -> Result<()> {
        Ok(())
    }
    fn known(&self, op: &str) -> Option<(Arc<Schema>, Arc<Schema>)> {
        let schema = Arc::new(ep_core::schema::core_schema(op)?.clone());
        Some((schema.clone(), schema))
    }
    fn factory(&mut self, factory: FactoryHandle) -> Result<()> {
        self.0.push(Arc::new(factory));
        Ok(())
    }
}

/// An instance and its first device.
pub struct Rig {
    factories: Vec<Arc<FactoryHandle>>,
    pub provider: Arc<ProviderHandle>,
    pub device: Arc<DeviceHandle>,
    pub allocator: AllocatorHandle,
}

pub fn provider(options: &[(&str, &str)]) -> Result<Arc<ProviderHandle>> {
    // SAFETY: linked into this program.
    let plugin = unsafe { Plugin::load(query::<AsyncProvider>, "linked") }?;
    let options: Vec<_> = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    ProviderHandle::create(Arc::new(plugin), Arc::new(Side), "test", "", &options)
}

impl Rig {
    pub fn new(options: &[(&str, &str)]) -> Rig {
        let provider = provider(options).unwrap();
        let mut sink = Factories::default();
        provider.register(&mut sink).unwrap();
        let device = provider.open(0).unwrap();
        let allocator = device.open_allocator(MemoryKind::Device).unwrap();
        Rig { factories: sink.0, provider, device, allocator }
    }

    pub fn stream(&self) -> StreamHandle {
        self.device.create_stream(StreamOptions::default()).unwrap()
    }

    pub fn primitive<O: Op>(&self, desc: O::Desc) -> PrimitiveHandle {
        let ptr = &raw const desc;
        // SAFETY: a descriptor is plain data without padding.
        let bytes = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), size_of::<O::Desc>()) };
        let key = O::schema().key(bytes).unwrap();
        let factory = self.factories.iter().find(|f| f.op == O::NAME && f.covers(&key)).expect(O::NAME);
        // SAFETY: the op's descriptor, and a device of the factory's provider.
        unsafe { factory.create(&self.device, ptr.cast()) }.unwrap()
    }

    /// Device memory with `data`; there when the stream gets to it, so `data` must stay.
    pub fn queue_upload<T: Element>(&self, stream: &StreamHandle, data: &[T]) -> u64 {
        let address = self.allocator.alloc(size_of_val(data) as u64, 0).unwrap();
        self.queue_write(stream, address, data);
        address
    }

    pub fn queue_write<T: Element>(&self, stream: &StreamHandle, address: u64, data: &[T]) {
        let src = data.as_ptr().expose_provenance() as u64;
        let bytes = size_of_val(data) as u64;
        let copy = CopyRequest {
            dst: address,
            dst_space: &self.device.info().memory_space,
            src,
            src_space: "host",
            bytes,
        };
        // SAFETY: the tests keep `data` until they sync.
        unsafe { stream.copy(copy) }.unwrap();
    }

    pub fn upload<T: Element>(&self, stream: &StreamHandle, data: &[T]) -> u64 {
        let address = self.queue_upload(stream, data);
        stream.sync().unwrap();
        address
    }

    pub fn download<T: Element + Default>(
        &self,
        stream: &StreamHandle,
        address: u64,
        count: usize,
    ) -> Vec<T> {
        let mut data = vec![T::default(); count];
        let dst = data.as_mut_ptr().expose_provenance() as u64;
        let (src_space, bytes) = (&self.device.info().memory_space, (count * size_of::<T>()) as u64);
        // SAFETY: `data` lives until the sync below.
        unsafe { stream.copy(CopyRequest { dst, dst_space: "host", src: address, src_space, bytes }) }
            .unwrap();
        stream.sync().unwrap();
        data
    }
}

/// Launches with arguments whose memory and dims the test keeps valid.
pub fn launch<A>(primitive: &PrimitiveHandle, stream: &StreamHandle, args: &A) -> Result<()> {
    // SAFETY: the tests pass the op's arguments with memory that outlives the stream's work, or on purpose such
    // that the provider must notice it before it is touched.
    unsafe { primitive.launch(stream, (&raw const *args).cast()) }
}

/// While this lives, device 0 of an instance with the option `hold` = `Hold::option(name)` starts no work. Made
/// after the streams, so that a failing test lets go of them before it drops them.
pub struct Hold(PathBuf);

impl Hold {
    pub fn option(name: &str) -> String {
        format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"))
    }

    pub fn new(name: &str) -> Hold {
        let file = PathBuf::from(format!("{}.0", Hold::option(name)));
        std::fs::write(&file, "").unwrap();
        Hold(file)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}
