//! A provider whose work is truly asynchronous, to find hosts that only work where it is not.
//!
//! Each stream is a thread that does its work in order, after random delays: a launch, a copy, a record and a
//! wait only queue something. Its memory has a space of its own, although it is the host's underneath, so a host
//! must copy through the provider. Memory that is freed while queued work uses it, or used after it was freed, is
//! logged and makes the next sync fail with `Internal`.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `devices` | 2 (1 with `as_cpu`) | how many devices |
//! | `first_device` | 0 | number of the first one; equal numbers in two instances are the same hardware |
//! | `as_cpu` | false | the devices say that they are the CPU, in memory space `host` |
//! | `max_delay_us` | 200 | longest delay before a piece of work |
//! | `seed` | 0 | for the delays |
//! | `memory_limit` | none | bytes that a device hands out at a time |
//! | `oom_after` | none | allocations of a device that succeed |
//! | `fail_launch` | none | the n-th launch (from 1) of the instance fails when its turn comes |
//! | `panic_launch` | none | the n-th launch panics on the stream's thread |
//! | `hold` | none | a path: device n starts no work while the file `<hold>.<n>` exists |
//! | `log_thread` | false | a thread logs until the instance is dropped |

mod kernels;
mod memory;
mod queue;

pub use memory::{FREED, FRESH};

use ep_core::provider::inline::{CPU_UUID, HOST_SPACE};
use ep_core::provider::{
    Allocator, Attribute, CopyRequest, Device, DeviceInfo, Event, ForeignStreams, Host, MemoryKind,
    MemoryStats, Options, Provider, Registrar, Stream, StreamOptions, Timing,
};
use ep_core::{Error, Result, Scalar};
use memory::{Pool, Space, Usage, claim};
use queue::{Pace, Point, Queue};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Locks; what a panic under the lock left behind is still in order everywhere here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The options, parsed.
struct Config {
    devices: u32,
    first_device: u32,
    as_cpu: bool,
    max_delay_us: u64,
    seed: u64,
    memory_limit: u64,
    oom_after: u64,
    fail_launch: u64,
    panic_launch: u64,
    hold: Option<String>,
}

/// What the objects of an instance share.
struct Shared {
    config: Config,
    launches: AtomicU64,
    queues: AtomicU64,
    misuse: Mutex<Option<Error>>,
}

impl Shared {
    /// Remembers the first misuse for the next sync, and logs each.
    fn note(&self, misuse: Option<String>) {
        if let Some(message) = misuse {
            tracing::error!("misuse of memory: {message}");
            lock(&self.misuse).get_or_insert(Error::internal(message));
        }
    }
}

/// An instance.
pub struct AsyncProvider {
    shared: Arc<Shared>,
    logger: Option<Logger>,
}

/// A thread that logs until this is dropped.
struct Logger {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Logger {
    fn start() -> Result<Logger> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let body = move || {
            let mut n = 0u64;
            while !seen.load(Ordering::Relaxed) {
                tracing::info!(n, "the log thread is alive");
                n += 1;
                std::thread::sleep(Duration::from_micros(100));
            }
        };
        let thread = std::thread::Builder::new().name("test-async:log".into()).spawn(body);
        let thread = thread.map_err(|e| Error::unavailable(format!("no thread for the log: {e}")))?;
        Ok(Logger { stop, thread: Some(thread) })
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the log thread died");
        }
    }
}

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for AsyncProvider {
    type Device = AsyncDevice;
    const NAME: &'static str = "test-async";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "ep";

    fn create(_: Host, options: &Options) -> Result<Self> {
        options.only(&[
            "devices",
            "first_device",
            "as_cpu",
            "max_delay_us",
            "seed",
            "memory_limit",
            "oom_after",
            "fail_launch",
            "panic_launch",
            "hold",
            "log_thread",
        ])?;
        let as_cpu = options.parse("as_cpu", false)?;
        let config = Config {
            devices: options.parse("devices", if as_cpu { 1 } else { 2 })?,
            first_device: options.parse("first_device", 0)?,
            as_cpu,
            max_delay_us: options.parse("max_delay_us", 200)?,
            seed: options.parse("seed", 0)?,
            memory_limit: options.parse("memory_limit", u64::MAX)?,
            oom_after: options.parse("oom_after", u64::MAX)?,
            fail_launch: options.parse("fail_launch", 0)?,
            panic_launch: options.parse("panic_launch", 0)?,
            hold: options.get("hold").map(str::to_owned),
        };
        if config.first_device.checked_add(config.devices).is_none() {
            return Err(Error::invalid(format!(
                "options `first_device` {} and `devices` {}: the numbers of the devices are 32-bit",
                config.first_device, config.devices
            )));
        }
        let logger = options.parse("log_thread", false)?.then(Logger::start).transpose()?;
        let (launches, queues) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { config, launches, queues, misuse: Mutex::default() });
        Ok(AsyncProvider { shared, logger })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.shared.config.devices)
    }

    fn open_device(&self, index: u32) -> Result<AsyncDevice> {
        let config = &self.shared.config;
        let number = config.first_device + index;
        let space = if config.as_cpu { Space::Host } else { Space::Device(number) };
        let pool = Pool::new(space, config.memory_limit, config.oom_after);
        Ok(AsyncDevice { shared: self.shared.clone(), pool: Arc::new(pool), number, space })
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind(kind(&self.shared.config));
        kernels::register(registrar)
    }
}

impl Drop for AsyncProvider {
    fn drop(&mut self) {
        self.logger = None;
        if let Some(misuse) = &*lock(&self.shared.misuse) {
            tracing::error!("no sync told of a misuse of memory: {misuse}");
        }
    }
}

fn kind(config: &Config) -> &'static str {
    if config.as_cpu { "cpu" } else { "async" }
}

/// A device.
pub struct AsyncDevice {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    number: u32,
    space: Space,
}

impl AsyncDevice {
    fn stream_on(&self, queue: Arc<Queue>) -> AsyncStream {
        AsyncStream { shared: self.shared.clone(), queue, space: self.space }
    }
}

impl Device for AsyncDevice {
    type Stream = AsyncStream;
    type Event = AsyncEvent;
    type Allocator = AsyncAllocator;

    const TIMING: Option<Timing<Self>> = Some(|start, end| {
        let at = |event: &AsyncEvent, which: &str| {
            let reached = event.latest().and_then(|point| point.reached());
            reached.ok_or_else(|| Error::invalid(format!("the {which} event is not recorded and done")))
        };
        let elapsed = at(end, "end")?.checked_duration_since(at(start, "start")?);
        let elapsed = elapsed.ok_or_else(|| Error::invalid("the end event is before the start event"))?;
        Ok(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    });

    const FOREIGN_STREAMS: Option<ForeignStreams<Self>> = Some(ForeignStreams {
        kind: "test-async-queue",
        native: |stream| Ok(stream.queue.handle()),
        adopt: |device, handle| Ok(device.stream_on(Queue::find(handle, device.number)?)),
    });

    fn info(&self) -> DeviceInfo {
        let config = &self.shared.config;
        let mut uuid = *b"test-async  ....";
        uuid[12..].copy_from_slice(&self.number.to_be_bytes());
        let space = if config.as_cpu { HOST_SPACE.to_owned() } else { self.space.to_string() };
        DeviceInfo {
            kind: kind(config).into(),
            name: format!("asynchronous test device {}", self.number),
            uuid: if config.as_cpu { CPU_UUID } else { uuid },
            memory_space: space.clone(),
            reads: vec![space.clone()],
            writes: vec![space],
            attributes: vec![("number".into(), Attribute::Scalar(Scalar::U64(self.number.into())))],
            ..DeviceInfo::default()
        }
    }

    fn create_stream(&self, _: StreamOptions) -> Result<AsyncStream> {
        let config = &self.shared.config;
        let nth = self.shared.queues.fetch_add(1, Ordering::Relaxed);
        // Far apart, so that no two queues walk through the same delays.
        let seed = config.seed.wrapping_add(nth << 32);
        let hold = config.hold.as_ref().map(|file| format!("{file}.{}", self.number).into());
        let queue = Queue::new(self.number, Pace { seed, max_us: config.max_delay_us, hold })?;
        Ok(self.stream_on(queue))
    }

    fn create_event(&self) -> Result<AsyncEvent> {
        Ok(AsyncEvent::default())
    }

    fn open_allocator(&self, kind: MemoryKind) -> Result<AsyncAllocator> {
        match kind {
            MemoryKind::Device => Ok(AsyncAllocator { shared: self.shared.clone(), pool: self.pool.clone() }),
            MemoryKind::PinnedHost => Err(Error::unsupported("this device has no pinned host memory")),
        }
    }
}

/// A stream: a queue, perhaps shared with the stream that it was adopted from.
pub struct AsyncStream {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    space: Space,
}

impl AsyncStream {
    /// Queues work that uses memory.
    ///
    /// # Errors
    /// Those of [`claim`].
    fn enqueue(&self, usages: &[Usage], work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let (claim, misuse) = claim(usages)?;
        self.shared.note(misuse);
        self.queue.push(Box::new(move || {
            let _claim = claim;
            work()
        }));
        Ok(())
    }

    /// Queues a launch that uses these (address, bytes) of the device's memory.
    fn launch(
        &self,
        usages: impl Iterator<Item = (u64, u64)>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let usages: Vec<Usage> =
            usages.map(|(address, bytes)| Usage { space: self.space, address, bytes }).collect();
        let config = &self.shared.config;
        let nth = self.shared.launches.fetch_add(1, Ordering::Relaxed) + 1;
        let (fails, panics) = (nth == config.fail_launch, nth == config.panic_launch);
        self.enqueue(&usages, move || {
            if fails {
                return Err(Error::internal(format!("launch {nth} fails, as option fail_launch asks")));
            }
            assert!(!panics, "launch {nth} panics, as option panic_launch asks");
            work();
            Ok(())
        })
    }
}

impl Drop for AsyncStream {
    fn drop(&mut self) {
        // An error stays for the other streams of the queue.
        self.queue.drain();
    }
}

impl Stream for AsyncStream {
    type Event = AsyncEvent;

    fn sync(&self) -> Result<()> {
        self.queue.sync()?;
        lock(&self.shared.misuse).take().map_or(Ok(()), Err)
    }

    fn query(&self) -> Result<bool> {
        Ok(self.queue.is_idle())
    }

    unsafe fn copy(&self, copy: CopyRequest<'_>) -> Result<()> {
        let CopyRequest { dst, src, bytes, .. } = copy;
        let usages = [
            Usage { space: Space::parse(copy.dst_space)?, address: dst, bytes },
            Usage { space: Space::parse(copy.src_space)?, address: src, bytes },
        ];
        self.enqueue(&usages, move || {
            let from = std::ptr::with_exposed_provenance::<u8>(src as usize);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(dst as usize);
            // SAFETY: both ranges are valid until this is done, as the caller of `copy` promises.
            unsafe { std::ptr::copy(from, to, bytes as usize) };
            Ok(())
        })
    }

    fn record(&self, event: &AsyncEvent) -> Result<()> {
        let point = Arc::new(Point::default());
        // Locked until the record is queued, so that nobody waits for it in front of it in the same queue.
        let mut latest = lock(&event.latest);
        *latest = Some(point.clone());
        self.queue.push(Box::new(move || {
            point.reach();
            Ok(())
        }));
        Ok(())
    }

    fn wait(&self, event: &AsyncEvent) -> Result<()> {
        // The latest record now: one that comes later is none of this wait's business. It was queued before, so
        // waits cannot form a circle.
        if let Some(point) = event.latest() {
            self.queue.push(Box::new(move || {
                point.wait();
                Ok(())
            }));
        }
        Ok(())
    }
}

/// An event: the point of its latest record, if there is one.
#[derive(Default)]
pub struct AsyncEvent {
    latest: Mutex<Option<Arc<Point>>>,
}

impl AsyncEvent {
    fn latest(&self) -> Option<Arc<Point>> {
        lock(&self.latest).clone()
    }
}

impl Event for AsyncEvent {
    fn query(&self) -> Result<bool> {
        Ok(self.latest().is_none_or(|point| point.reached().is_some()))
    }

    fn sync(&self) -> Result<()> {
        if let Some(point) = self.latest() {
            point.wait();
        }
        Ok(())
    }
}

/// A device's memory.
pub struct AsyncAllocator {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
}

impl Allocator for AsyncAllocator {
    type Stream = AsyncStream;

    fn alloc(&self, bytes: u64, alignment: u64, _: Option<&AsyncStream>) -> Result<u64> {
        self.pool.alloc(bytes, alignment)
    }

    fn free(&self, address: u64, bytes: u64) -> Result<()> {
        self.shared.note(self.pool.free(address, bytes)?);
        Ok(())
    }

    fn stats(&self) -> MemoryStats {
        self.pool.stats()
    }
}
