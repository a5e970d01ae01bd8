//! Streams and events.

use crate::memory::Claim;
use crate::queue::{Health, Job, Pace, Point, Queue};
use crate::{Instance, lock};
use ep_core::provider::inline::is_host;
use ep_core::provider::{CopyRequest, Event, Stream};
use ep_core::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A stream: a queue, which it may share with streams that were made from its handle.
pub struct SimStream {
    instance: Arc<Instance>,
    device: u16,
    health: Arc<Health>,
    queue: Arc<Queue>,
}

/// One side of a copy.
enum Side {
    /// An address of the process.
    Host(u64),
    /// Memory of this instance.
    Ours(Claim),
}

impl Side {
    /// # Safety
    /// A host address is readable for `bytes` bytes.
    unsafe fn read(&self, bytes: u64) -> Result<Vec<u8>> {
        match self {
            Side::Ours(claim) => claim.read(),
            Side::Host(address) => {
                let mut out = vec![0; bytes as usize];
                let from = std::ptr::with_exposed_provenance::<u8>(*address as usize);
                // SAFETY: as the caller promises; the vector is new.
                unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
                Ok(out)
            }
        }
    }

    /// # Safety
    /// A host address is writable for the bytes.
    unsafe fn write(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Side::Ours(claim) => claim.write(0, bytes),
            Side::Host(address) => {
                let to = std::ptr::with_exposed_provenance_mut::<u8>(*address as usize);
                // SAFETY: as the caller promises; `bytes` is a copy of our own.
                unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
        }
    }
}

impl SimStream {
    pub(crate) fn new(
        instance: Arc<Instance>,
        device: u16,
        health: Arc<Health>,
        queue: Arc<Queue>,
    ) -> SimStream {
        SimStream { instance, device, health, queue }
    }

    /// A handle for `ep.foreign_stream`.
    pub(crate) fn native(&self) -> Result<u64> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut native = lock(&self.instance.native);
        native.retain(|_, (_, queue)| queue.strong_count() > 0);
        let known = native.iter().find(|(_, (_, queue))| std::ptr::eq(queue.as_ptr(), &*self.queue));
        if let Some((handle, _)) = known {
            return Ok(*handle);
        }
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        native.insert(handle, (self.device, Arc::downgrade(&self.queue)));
        Ok(handle)
    }

    pub(crate) fn drain(&self) {
        self.queue.drain();
    }

    pub(crate) fn push_always(&self, job: Job) {
        self.queue.push_always(job);
    }

    /// Claims memory for a launch.
    pub(crate) fn claim(&self, address: u64, bytes: u64) -> Result<Claim> {
        self.instance.memory.claim(address, bytes, |arena| self.instance.reaches(self.device, arena))
    }

    /// Queues a launch.
    pub(crate) fn launch(
        &self,
        op: &'static str,
        work: impl FnOnce(&mut Pace) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.health.check()?;
        let settings = &self.instance.settings;
        if let Some(why) = settings.launch_failure.next() {
            return Err(Error::unavailable(format!("{op} cannot be launched, {why}; try again")));
        }
        let failure = settings.op_error.next();
        self.work(move |pace| match failure {
            Some(why) => Err(Error::internal(format!("{op} failed on the device, {why}"))),
            None => work(pace),
        })
    }

    /// Queues a launch or a copy.
    fn work(&self, work: impl FnOnce(&mut Pace) -> Result<()> + Send + 'static) -> Result<()> {
        let settings = &self.instance.settings;
        let (lost, slow_by) = (settings.device_lost.next(), settings.slow.next().map(|_| settings.slow_by));
        let health = self.health.clone();
        self.queue.push(Job::Work(Box::new(move |pace| {
            if let Some(why) = lost {
                health.lose(&why);
                return health.check();
            }
            slow_by.into_iter().for_each(std::thread::sleep);
            work(pace)
        })))
    }

    fn side(&self, space: &str, address: u64, bytes: u64) -> Result<Side> {
        let arena =
            self.instance.memory.find(space).filter(|arena| self.instance.reaches(self.device, *arena));
        match arena {
            Some(arena) => self.instance.memory.claim(address, bytes, |a| a == arena).map(Side::Ours),
            None if is_host(space) => Ok(Side::Host(address)),
            None => Err(Error::unsupported(format!(
                "device {} does not reach memory space `{space}`; copy through host memory",
                self.device
            ))),
        }
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        // The queue itself may live on in another stream.
        self.queue.drain();
    }
}

impl Stream for SimStream {
    type Event = SimEvent;

    fn sync(&self) -> Result<()> {
        self.queue.sync()?;
        self.instance.memory.take_misuse().map_or(Ok(()), Err)
    }

    fn query(&self) -> Result<bool> {
        self.queue.query()
    }

    unsafe fn copy(&self, copy: CopyRequest<'_>) -> Result<()> {
        let CopyRequest { dst, dst_space, src, src_space, bytes } = copy;
        self.health.check()?;
        let (from, to) = (self.side(src_space, src, bytes)?, self.side(dst_space, dst, bytes)?);
        self.work(move |pace| {
            // SAFETY: both sides are valid until the copy is done, as the caller of `copy` promises.
            let data = unsafe { from.read(bytes) }?;
            pace.pause();
            // SAFETY: as above.
            unsafe { to.write(&data) }
        })
    }

    fn record(&self, event: &SimEvent) -> Result<()> {
        let point = Arc::new(Point::default());
        let reach = point.clone();
        // Locked until the record is queued, so that nobody can wait for it in front of it in the same queue.
        let mut latest = lock(&event.latest);
        self.health.check()?;
        self.queue.push_always(Job::Always(Box::new(move || reach.reach())));
        *latest = Some(point);
        Ok(())
    }

    fn wait(&self, event: &SimEvent) -> Result<()> {
        self.health.check()?;
        if self.instance.settings.ignore_waits {
            return Ok(());
        }
        // The record that is the latest now. It is queued already, so waits cannot form a circle.
        match event.latest() {
            Some(point) => self.queue.push(Job::Work(Box::new(move |_| {
                point.wait();
                Ok(())
            }))),
            None => Ok(()),
        }
    }
}

/// An event: the point of its latest record, if there is one.
pub struct SimEvent {
    health: Arc<Health>,
    latest: Mutex<Option<Arc<Point>>>,
}

impl SimEvent {
    pub(crate) fn new(health: Arc<Health>) -> SimEvent {
        SimEvent { health, latest: Mutex::default() }
    }

    fn latest(&self) -> Option<Arc<Point>> {
        lock(&self.latest).clone()
    }

    /// Nanoseconds between two points that were reached.
    pub(crate) fn elapsed(&self, end: &SimEvent) -> Result<u64> {
        self.health.check()?;
        let at = |event: &SimEvent, which: &str| {
            let reached = event.latest().and_then(|point| point.reached());
            reached.ok_or_else(|| {
                Error::invalid(format!(
                    "the {which} event is not recorded and done; record and sync it first"
                ))
            })
        };
        let (start, end) = (at(self, "start")?, at(end, "end")?);
        let elapsed = end.checked_duration_since(start);
        let elapsed = elapsed.ok_or_else(|| Error::invalid("the end event came before the start event"))?;
        Ok(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Event for SimEvent {
    fn query(&self) -> Result<bool> {
        self.health.check()?;
        Ok(self.latest().is_none_or(|point| point.reached().is_some()))
    }

    fn sync(&self) -> Result<()> {
        if let Some(point) = self.latest() {
            point.wait();
        }
        self.health.check()
    }
}
