//! Streams and events.

use crate::graph::{SimGraph, Step};
use crate::memory::Claim;
use crate::queue::{Health, Job, Pace, Point, Queue};
use crate::{Instance, lock};
use ep_core::provider::inline::is_host;
use ep_core::provider::{CopyRequest, Event, Stream};
use ep_core::{Error, Result};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A stream: a queue, which it may share with streams that were made from its handle.
pub struct SimStream {
    instance: Arc<Instance>,
    device: u16,
    health: Arc<Health>,
    queue: Arc<Queue>,
    /// What was recorded since a recording began.
    recording: RefCell<Option<Vec<Step>>>,
}

/// What a launch or a copy does with its claims when its turn comes, each time.
pub(crate) type Run = dyn Fn(&[Claim], &mut Pace) -> Result<()> + Send + Sync;

/// One side of a copy.
enum Side {
    /// An address of the process.
    Host(u64),
    /// Memory of this instance: the number of the claim.
    Ours(usize),
}

impl Side {
    /// # Safety
    /// A host address is readable for `bytes` bytes.
    unsafe fn read(&self, claims: &[Claim], bytes: u64) -> Result<Vec<u8>> {
        match self {
            Side::Ours(claim) => claims[*claim].read(),
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
    unsafe fn write(&self, claims: &[Claim], bytes: &[u8]) -> Result<()> {
        match self {
            Side::Ours(claim) => claims[*claim].write(0, bytes),
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
        SimStream { instance, device, health, queue, recording: RefCell::default() }
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

    /// The instance and the device that it is of.
    pub(crate) fn place(&self) -> (Arc<Instance>, u16) {
        (self.instance.clone(), self.device)
    }

    /// Claims memory for a launch.
    pub(crate) fn claim(&self, address: u64, bytes: u64) -> Result<Claim> {
        self.instance.memory.claim(address, bytes, |arena| self.instance.reaches(self.device, arena))
    }

    /// Queues a launch.
    pub(crate) fn launch(
        &self,
        op: &'static str,
        claims: Vec<Claim>,
        run: impl Fn(&[Claim], &mut Pace) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        self.health.check()?;
        self.work(Some(op), claims, Arc::new(run))
    }

    /// Queues a launch or, without an op, a copy; or records it.
    fn work(&self, op: Option<&'static str>, claims: Vec<Claim>, run: Arc<Run>) -> Result<()> {
        if let Some(steps) = &mut *self.recording.borrow_mut() {
            steps.push(Step { op, ranges: claims.iter().map(Claim::recorded).collect(), run });
            return Ok(());
        }
        self.queue(op, claims, run)
    }

    /// Queues a launch or a copy, or fails as the options say.
    fn queue(&self, op: Option<&'static str>, claims: Vec<Claim>, run: Arc<Run>) -> Result<()> {
        let settings = &self.instance.settings;
        let mut failure = None;
        if let Some(op) = op {
            if let Some(why) = settings.launch_failure.next() {
                return Err(Error::unavailable(format!("{op} cannot be launched, {why}; try again")));
            }
            let why = settings.op_error.next();
            failure = why.map(|why| Error::internal(format!("{op} failed on the device, {why}")));
        }
        let (lost, slow_by) = (settings.device_lost.next(), settings.slow.next().map(|_| settings.slow_by));
        let health = self.health.clone();
        self.queue.push(Job::Work(Box::new(move |pace| {
            if let Some(why) = lost {
                health.lose(&why);
                return health.check();
            }
            slow_by.into_iter().for_each(std::thread::sleep);
            failure.map_or_else(|| run(&claims, pace), Err)
        })))
    }

    /// Records from now on.
    pub(crate) fn begin_recording(&self) -> Result<()> {
        self.health.check()?;
        *self.recording.borrow_mut() = Some(Vec::new());
        Ok(())
    }

    /// What was recorded; nothing is from now on.
    pub(crate) fn end_recording(&self) -> Result<SimGraph> {
        let steps = self.recording.borrow_mut().take();
        self.health.check()?;
        let steps = steps.ok_or_else(|| Error::internal("nothing was being recorded"))?;
        Ok(SimGraph::new(self.device, steps))
    }

    /// Queues recorded work.
    pub(crate) fn replay(&self, device: u16, steps: &[Step]) -> Result<()> {
        self.health.check()?;
        if device != self.device {
            return Err(Error::invalid(format!(
                "a graph of device {device} on a stream of device {}; record it there",
                self.device
            )));
        }
        let memory = &self.instance.memory;
        let claim =
            |step: &Step| step.ranges.iter().map(|range| range.claim(memory)).collect::<Result<Vec<_>>>();
        // All of them first, so that nothing is queued where something was freed.
        let claims = steps.iter().map(claim).collect::<Result<Vec<_>>>()?;
        let mut work = steps.iter().zip(claims);
        work.try_for_each(|(step, claims)| self.queue(step.op, claims, step.run.clone()))
    }

    /// A side of a copy; memory of ours is claimed.
    fn side(&self, space: &str, address: u64, bytes: u64, claims: &mut Vec<Claim>) -> Result<Side> {
        let arena =
            self.instance.memory.find(space).filter(|arena| self.instance.reaches(self.device, *arena));
        match arena {
            Some(arena) => {
                claims.push(self.instance.memory.claim(address, bytes, |a| a == arena)?);
                Ok(Side::Ours(claims.len() - 1))
            }
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
        self.queue.finish();
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
        let mut claims = Vec::new();
        let from = self.side(src_space, src, bytes, &mut claims)?;
        let to = self.side(dst_space, dst, bytes, &mut claims)?;
        let run = move |claims: &[Claim], pace: &mut Pace| {
            // SAFETY: both sides are valid until the copy is done, as the caller of `copy` promises, and whoever launches
            // a graph of it.
            let data = unsafe { from.read(claims, bytes) }?;
            pace.pause();
            // SAFETY: as above.
            unsafe { to.write(claims, &data) }
        };
        self.work(None, claims, Arc::new(run))
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
