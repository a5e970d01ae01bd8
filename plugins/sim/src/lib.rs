//! A simulated accelerator, for tests of hosts that have none.
//!
//! What a host must not rely on does not work here: device addresses cannot be touched, streams do their work later
//! and in an order of their own among each other, memory is poisoned before it is handed out and after it was freed,
//! and whatever can fail on hardware fails here on request. All ops of the contract are computed, by their
//! references. `docs/sim.md` describes it.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `devices` | 2 | how many devices, at most 64 |
//! | `memory_bytes` | 268435456 | bytes that a device hands out at a time, and as many of pinned host memory |
//! | `peer` | true | whether devices reach each other's memory |
//! | `seed` | 0 | of the delays and of faults by chance |
//! | `max_delay_us` | 100 | the longest of the random delays, in microseconds |
//! | `hold` | none | a path: device n does no work while the file `<hold>.<n>` exists |
//! | `ignore_waits` | false | a defect: waiting for an event does nothing |
//! | `out_of_memory` | none | which allocations fail with `OutOfMemory` |
//! | `launch_failure` | none | which launches fail at the call, with `Unavailable` |
//! | `op_error` | none | which launches fail when they are computed, with `Internal` |
//! | `device_lost` | none | at which launches and copies the device is lost |
//! | `slow` | none | which launches and copies take `slow_ms` longer |
//! | `slow_ms` | 100 | how much that is, in milliseconds |
//!
//! A fault takes `3` (the third time), `3..` (from the third time on) or `2.5%` (each time with this chance). The
//! instance counts, from 1, in the order in which work is queued.

/// The snippet of `docs/sim.md`, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sim.md")]
pub struct SimGuide;

mod faults;
mod graph;
mod hooks;
mod kernels;
mod mapping;
mod memory;
mod prepack;
mod queue;
mod stream;

pub use hooks::{Call, DeviceMemory, Hooks, Operand, Place, Shortcuts, Write};
pub use kernels::register;
pub use memory::{FREED, FRESH};
pub use stream::{SimEvent, SimStream};

use ep_core::provider::{
    Allocator, Attribute, Device, DeviceInfo, ForeignStreams, Graphs, Host, MemoryKind, MemoryStats, Options,
    Provider, Registrar, StreamOptions, Timing,
};
use ep_core::{Code, Error, Result, Scalar};
use faults::{Fault, mix};
use memory::Memory;
use queue::{Health, Job, Pace, Queue};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The kind of its devices.
const KIND: &str = "sim";
/// The kind of its native streams.
const STREAM_KIND: &str = "ep-sim-queue";
const MAX_DEVICES: u16 = 64;

/// Locks; nothing here leaves half a change behind when it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the objects of an instance share.
struct Instance {
    settings: Settings,
    memory: Arc<Memory>,
    devices: Vec<Arc<Health>>,
    /// How many queues there were.
    queues: AtomicU64,
    /// Queues that were given away as native streams, by handle, with their device.
    native: Mutex<BTreeMap<u64, (u16, Weak<Queue>)>>,
    /// `None`: every launch does what its reference does.
    hooks: Option<Box<dyn Hooks>>,
}

/// The options.
struct Settings {
    peer: bool,
    seed: u64,
    max_delay: Duration,
    hold: Option<String>,
    ignore_waits: bool,
    out_of_memory: Fault,
    launch_failure: Fault,
    op_error: Fault,
    device_lost: Fault,
    slow: Fault,
    slow_by: Duration,
}

impl Settings {
    fn read(options: &Options) -> Result<Settings> {
        let seed = options.parse("seed", 0)?;
        let fault = |option| Fault::new(option, options.get(option), seed);
        Ok(Settings {
            peer: options.parse("peer", true)?,
            seed,
            max_delay: Duration::from_micros(options.parse("max_delay_us", 100)?),
            hold: options.get("hold").map(str::to_owned),
            ignore_waits: options.parse("ignore_waits", false)?,
            out_of_memory: fault("out_of_memory")?,
            launch_failure: fault("launch_failure")?,
            op_error: fault("op_error")?,
            device_lost: fault("device_lost")?,
            slow: fault("slow")?,
            slow_by: Duration::from_millis(options.parse("slow_ms", 100)?),
        })
    }
}

/// The options that a provider of these devices takes.
pub const OPTIONS: [&str; 13] = [
    "devices",
    "memory_bytes",
    "peer",
    "seed",
    "max_delay_us",
    "hold",
    "ignore_waits",
    "out_of_memory",
    "launch_failure",
    "op_error",
    "device_lost",
    "slow",
    "slow_ms",
];

/// An instance of the provider.
pub struct SimProvider(Arc<Instance>);

impl SimProvider {
    /// An instance whose launches go through hooks, for a provider that is this one but for those. Options that are
    /// not among [`OPTIONS`] are not looked at.
    ///
    /// # Errors
    /// `InvalidArgument` for an option without a meaning, `OutOfMemory` where there are not enough addresses.
    pub fn new(options: &Options, hooks: Option<Box<dyn Hooks>>) -> Result<SimProvider> {
        let devices = options.parse("devices", 2)?;
        if devices > MAX_DEVICES {
            return Err(Error::invalid(format!(
                "option `devices` is {devices}; at most {MAX_DEVICES} can be"
            )));
        }
        let memory_bytes = options.parse("memory_bytes", 256 << 20)?;
        let instance = Instance::new(Settings::read(options)?, devices, memory_bytes, hooks)?;
        Ok(SimProvider(Arc::new(instance)))
    }
}

// SAFETY: memory is there until it is freed, streams do their work in order, and references stay in their operands; faults by option fail and do nothing else.
unsafe impl Provider for SimProvider {
    type Device = SimDevice;
    const NAME: &'static str = "ep-sim";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "ep";

    fn create(_: Host, options: &Options) -> Result<SimProvider> {
        options.only(&OPTIONS)?;
        SimProvider::new(options, None)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.0.devices.len() as u32)
    }

    fn open_device(&self, index: u32) -> Result<SimDevice> {
        let health = self.0.devices.get(index as usize).cloned();
        let health = health.ok_or_else(|| Error::not_found(format!("there is no device {index}")))?;
        Ok(SimDevice { instance: self.0.clone(), number: index as u16, health })
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        register(registrar)
    }
}

impl Instance {
    fn new(
        settings: Settings,
        devices: u16,
        memory_bytes: u64,
        hooks: Option<Box<dyn Hooks>>,
    ) -> Result<Instance> {
        Ok(Instance {
            settings,
            memory: Arc::new(Memory::new(devices, memory_bytes)?),
            devices: (0..devices).map(|_| Arc::default()).collect(),
            queues: AtomicU64::new(0),
            native: Mutex::default(),
            hooks,
        })
    }

    /// Where an allocation lies.
    fn place(&self, bytes: u64, alignment: u64) -> Place {
        let usual = Place { alignment, skew: 0 };
        self.hooks.as_ref().map_or(usual, |hooks| hooks.place(bytes, alignment))
    }

    /// Whether work of a device reaches an arena.
    fn reaches(&self, device: u16, arena: usize) -> bool {
        let own = usize::from(device) * 2;
        arena == own || arena == own + 1 || (self.settings.peer && arena.is_multiple_of(2))
    }
}

/// A device.
pub struct SimDevice {
    instance: Arc<Instance>,
    number: u16,
    health: Arc<Health>,
}

impl SimDevice {
    fn stream_on(&self, queue: Arc<Queue>) -> SimStream {
        SimStream::new(self.instance.clone(), self.number, self.health.clone(), queue)
    }

    fn adopt(&self, handle: u64) -> Result<SimStream> {
        let found = lock(&self.instance.native).get(&handle).cloned();
        let queue = found.as_ref().and_then(|(_, queue)| queue.upgrade());
        let (Some((device, _)), Some(queue)) = (found, queue) else {
            return Err(Error::not_found(format!("no stream of this instance has the handle {handle:#x}")));
        };
        if device != self.number {
            return Err(Error::invalid(format!(
                "stream {handle:#x} is of device {device}, not of {}; adopt it there",
                self.number
            )));
        }
        Ok(self.stream_on(queue))
    }
}

impl Device for SimDevice {
    type Stream = SimStream;
    type Event = SimEvent;
    type Allocator = SimAllocator;

    const TIMING: Option<Timing<Self>> = Some(SimEvent::elapsed);
    const PREPACKS: bool = true;
    const FOREIGN_STREAMS: Option<ForeignStreams<Self>> =
        Some(ForeignStreams { kind: STREAM_KIND, native: SimStream::native, adopt: SimDevice::adopt });
    const GRAPHS: Option<Graphs<Self>> = Some(Graphs {
        begin: SimStream::begin_recording,
        end: |stream| Ok(Box::new(stream.end_recording()?)),
    });

    fn info(&self) -> DeviceInfo {
        let memory = &self.instance.memory;
        let own = usize::from(self.number) * 2;
        // The own space first: it is where a host allocates.
        let others = (0..self.instance.devices.len() * 2).filter(|arena| *arena != own);
        let reached = others.filter(|arena| self.instance.reaches(self.number, *arena));
        let spaces: Vec<_> = std::iter::once(own).chain(reached).map(|arena| memory.space(arena)).collect();
        DeviceInfo {
            kind: KIND.into(),
            name: format!("simulated device {}", self.number),
            uuid: memory.uuid(self.number),
            memory_bytes: memory.limit(own),
            memory_space: spaces[0].clone(),
            reads: spaces.clone(),
            writes: spaces,
            attributes: vec![
                ("number".into(), Attribute::Scalar(Scalar::U64(self.number.into()))),
                ("simulated".into(), Attribute::Scalar(Scalar::Bool(true))),
            ],
            ..DeviceInfo::default()
        }
    }

    fn create_stream(&self, _: StreamOptions) -> Result<SimStream> {
        self.health.check()?;
        let settings = &self.instance.settings;
        let nth = self.instance.queues.fetch_add(1, Ordering::Relaxed);
        let pace = Pace {
            seed: mix(settings.seed, nth),
            max_delay: settings.max_delay,
            hold: settings.hold.as_ref().map(|file| format!("{file}.{}", self.number).into()),
            steps: 0,
        };
        let shortcuts = self.instance.hooks.as_ref().map(|hooks| hooks.shortcuts()).unwrap_or_default();
        let queue = Queue::new(format!("sim:{}", self.number), self.health.clone(), pace, shortcuts)?;
        Ok(self.stream_on(Arc::new(queue)))
    }

    fn create_event(&self) -> Result<SimEvent> {
        self.health.check()?;
        Ok(SimEvent::new(self.health.clone()))
    }

    fn open_allocator(&self, kind: MemoryKind) -> Result<SimAllocator> {
        self.health.check()?;
        let own = usize::from(self.number) * 2;
        let arena = match kind {
            MemoryKind::Device => own,
            MemoryKind::PinnedHost => own + 1,
        };
        Ok(SimAllocator { instance: self.instance.clone(), health: self.health.clone(), arena })
    }
}

/// A device's own memory, or the pinned host memory that it reaches.
pub struct SimAllocator {
    instance: Arc<Instance>,
    health: Arc<Health>,
    arena: usize,
}

impl Allocator for SimAllocator {
    type Stream = SimStream;
    const STREAM_ORDERED: bool = true;

    /// With a stream, waits for its work before it gives up: that may free something.
    fn alloc(&self, bytes: u64, alignment: u64, stream: Option<&SimStream>) -> Result<u64> {
        self.health.check()?;
        if let Some(why) = self.instance.settings.out_of_memory.next() {
            return Err(Error::out_of_memory(format!("{bytes} bytes: there is no memory, {why}")));
        }
        let (memory, place) = (&self.instance.memory, self.instance.place(bytes, alignment));
        match (memory.alloc(self.arena, bytes, place), stream) {
            (Err(e), Some(stream)) if e.code() == Code::OutOfMemory => {
                stream.drain();
                memory.alloc(self.arena, bytes, place)
            }
            (result, _) => result,
        }
    }

    /// Works on a lost device too.
    fn free(&self, address: u64, bytes: u64) -> Result<()> {
        let memory = &self.instance.memory;
        memory.leave(self.arena, address, bytes).map(|block| memory.retire(block))
    }

    /// Works on a lost device too.
    fn free_async(&self, address: u64, bytes: u64, stream: &SimStream) -> Result<()> {
        let memory = self.instance.memory.clone();
        let block = memory.leave(self.arena, address, bytes)?;
        stream.push_always(Job::Always(Box::new(move || memory.retire(block))));
        Ok(())
    }

    fn stats(&self) -> MemoryStats {
        self.instance.memory.stats(self.arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::provider::Stream;
    use queue::Point;

    #[test]
    fn memory_is_freed_and_had_again_in_the_order_of_a_stream() {
        const ALL: u64 = 1 << 16;
        let settings = Settings::read(&Options::default()).unwrap();
        let provider = SimProvider(Arc::new(Instance::new(settings, 1, ALL, None).unwrap()));
        let device = provider.open_device(0).unwrap();
        let memory = device.open_allocator(MemoryKind::Device).unwrap();
        let stream = device.create_stream(StreamOptions::default()).unwrap();
        let other = device.create_stream(StreamOptions::default()).unwrap();
        let first = memory.alloc(ALL, 64, None).unwrap();
        let gate = Arc::new(Point::default());
        let closed = gate.clone();
        stream.push_always(Job::Always(Box::new(move || closed.wait())));
        memory.free_async(first, ALL, &stream).unwrap();
        // The stream has not come to it yet, but it is given away.
        assert_eq!(memory.stats().in_use_bytes, ALL);
        assert_eq!(memory.alloc(1, 64, None).unwrap_err().code(), Code::OutOfMemory);
        assert_eq!(memory.alloc(1, 64, Some(&other)).unwrap_err().code(), Code::OutOfMemory);
        assert_eq!(memory.free(first, ALL).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(memory.free_async(first, ALL, &stream).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(stream.claim(first, 1).err().map(|e| e.code()), Some(Code::InvalidArgument));
        let second = std::thread::scope(|scope| {
            scope.spawn(|| gate.reach());
            memory.alloc(ALL, 64, Some(&stream)).unwrap()
        });
        memory.free(second, ALL).unwrap();
        assert_eq!((memory.stats().in_use_blocks, memory.stats().total_allocs), (0, 2));
        stream.sync().unwrap();
    }
}
