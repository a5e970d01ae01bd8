//! Streams: queues of work on a device.

use crate::context::{Context, Fleet};
use crate::driver::{CuContext, CuStream, Failed, constant};
use crate::event::{CudaEvent, done};
use crate::memory::Scratch;
use crate::pending::Queued;
use crate::refusal::{Recorded, Refused, Told};
use crate::space::Place;
use ep_core::provider::{CopyRequest, Stream};
use ep_core::{Code, Error, Result};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// A stream, our own or one that another library made.
///
/// The device reports an error of a piece of work at some later call. The message of that error names the latest
/// pieces that were queued and not known to be done, on this stream first, then on the others of the device; with `sync_launches` each piece is waited for, so that it is
/// one.
pub struct CudaStream {
    context: Arc<Context>,
    fleet: Arc<Fleet>,
    raw: CuStream,
    owned: bool,
    sync_launches: bool,
    queued: Arc<Queued>,
    told: Told,
    /// Where the launches that it records tell of refused indices.
    recording: RefCell<Option<Arc<Recorded>>>,
    /// Of the graphs that were launched since the last wait.
    replayed: RefCell<Vec<Arc<Recorded>>>,
    scratch: Scratch,
    /// Whether others may queue work of theirs at any time.
    shared: Cell<bool>,
    /// Whether what was queued last may be more than our launches, and the driver's copies and sets.
    behind_others: Cell<bool>,
}

impl CudaStream {
    /// Makes a stream. `priority` 0 is normal, lower is more urgent; what the device does not have is clamped.
    pub(crate) fn create(
        context: Arc<Context>,
        fleet: Arc<Fleet>,
        priority: i64,
        sync_launches: bool,
    ) -> Result<CudaStream> {
        let mut raw = CuStream::NULL;
        {
            let _current = context.enter()?;
            let (mut least, mut greatest) = (0, 0);
            // SAFETY: valid out-pointers; the context is current.
            unsafe {
                context
                    .driver()
                    .cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
                    .map_err(|e| context.error(e))?;
                let range = i64::from(greatest.min(least))..=i64::from(least.max(greatest));
                let priority = priority.clamp(*range.start(), *range.end()) as i32;
                context
                    .driver()
                    .cuStreamCreateWithPriority(&mut raw, constant::STREAM_NON_BLOCKING, priority)
                    .map_err(|e| context.error(e))?;
            }
        }
        Ok(CudaStream::new(context, fleet, raw, true, sync_launches))
    }

    /// A stream that queues onto one that another library made. Handle 0 is the legacy default stream.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another context than that of this device, and for `CU_STREAM_PER_THREAD`.
    ///
    /// # Safety
    /// The other one is live, and lives until this one is gone.
    pub(crate) unsafe fn adopt(
        context: Arc<Context>,
        fleet: Arc<Fleet>,
        handle: u64,
        sync_launches: bool,
    ) -> Result<CudaStream> {
        if handle == constant::STREAM_PER_THREAD {
            // Whichever thread waits for it, or frees in its order, would do so on another stream than the one that queued.
            return Err(Error::invalid(
                "CUstream 0x2 is CU_STREAM_PER_THREAD, another stream on each thread, and cannot be adopted; make a stream \
                 of its own, or give the default stream, which is 0",
            ));
        }
        let raw = CuStream::from_raw(handle);
        {
            let _current = context.enter()?;
            let mut owner = CuContext::NULL;
            // SAFETY: a live stream by the caller's promise; a valid out-pointer.
            unsafe { context.driver().cuStreamGetCtx(raw, &mut owner) }
                .map_err(|e| context.error(e).context(format!("adopting CUstream {handle:#x}")))?;
            if owner != context.raw() {
                return Err(Error::invalid(format!(
                    "CUstream {handle:#x} belongs to context {owner:?}; device {} works in {}: make the stream there \
                     (cuDevicePrimaryCtxRetain or the CUDA runtime for the primary one), or give the provider that \
                     context by option `context`",
                    context.device(),
                    context.describe()
                )));
            }
        }
        Ok(CudaStream::new(context, fleet, raw, false, sync_launches))
    }

    fn new(
        context: Arc<Context>,
        fleet: Arc<Fleet>,
        raw: CuStream,
        owned: bool,
        sync_launches: bool,
    ) -> CudaStream {
        let (queued, told, scratch) = (Queued::new(raw), Told::default(), Scratch::default());
        context.pending().add(&queued);
        let (recording, replayed) = Default::default();
        CudaStream {
            context,
            fleet,
            raw,
            owned,
            sync_launches,
            queued,
            told,
            recording,
            replayed,
            scratch,
            shared: Cell::new(!owned),
            behind_others: Cell::new(false),
        }
    }

    /// Whether the blocks of a launch that is queued now may come to the device while the kernel before it ends. That one has
    /// to be ours: it lets nothing come while it still works, and its end is that of everything before it, neither of which
    /// is so of any kernel. Behind a library's work, a graph or an event the first launch waits as always.
    #[inline]
    pub(crate) fn may_overlap(&self) -> bool {
        let behind_others = self.behind_others.replace(false);
        self.context.overlaps() && !behind_others && !self.shared.get()
    }

    /// The driver's handle, for others to queue work on.
    pub(crate) fn share(&self) -> CuStream {
        self.shared.set(true);
        self.raw
    }

    /// Where a launch tells of an index that it refuses, and the launch's number. The next wait that finds all work done
    /// returns it as an error.
    pub(crate) fn refusals(&self, launch: Refused) -> Result<(u64, u32)> {
        match &*self.recording.borrow() {
            Some(recorded) => recorded.add(launch),
            None => self.told.add(&self.context, launch),
        }
    }

    /// From now on launches are recorded.
    pub(crate) fn start_recording(&self) {
        self.behind_others.set(true);
        self.recording.replace(Some(Recorded::new(&self.context)));
    }

    /// From now on launches are done. Where those that were recorded tell of refused indices.
    pub(crate) fn stop_recording(&self) -> Arc<Recorded> {
        self.behind_others.set(true);
        self.recording.take().unwrap_or_else(|| Recorded::new(&self.context))
    }

    /// A graph is launched: the next wait looks for what its launches refuse.
    pub(crate) fn replays(&self, recorded: &Arc<Recorded>) {
        self.behind_others.set(true);
        if !recorded.may_refuse() {
            return;
        }
        if let Some(whole) = &*self.recording.borrow() {
            return whole.add_part(recorded);
        }
        let mut replayed = self.replayed.borrow_mut();
        if !replayed.iter().any(|r| Arc::ptr_eq(r, recorded)) {
            replayed.push(recorded.clone());
        }
    }

    /// The error of a launch that refused an index. Everything queued is done.
    fn check_indices(&self) -> Result<()> {
        // All of them, as each is told of once.
        let own = self.told.check();
        self.replayed.take().iter().fold(own, |first, recorded| {
            let next = recorded.check();
            first.and(next)
        })
    }

    /// Memory of `bytes` bytes that the stream's work uses one piece after the other; none while a graph is recorded,
    /// which may be replayed beside that work, and where option `memory_limit` has no room for it.
    ///
    /// # Errors
    /// The driver's, `OutOfMemory` among them.
    pub(crate) fn scratch(&self, bytes: u64) -> Result<Option<u64>> {
        if self.is_capturing()? {
            return Ok(None);
        }
        self.scratch.reserve(&self.context, self.raw, bytes)
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The driver's handle. Of work that others queue on it directly the stream does not know; a host gets it by `native` of
    /// [`CudaDevice`](crate::device::CudaDevice), after which launches expect such work.
    pub fn raw(&self) -> CuStream {
        self.raw
    }

    /// Queues work of another library with `call`, which runs while the context is current. `name` is for messages.
    ///
    /// # Errors
    /// Those of `call`; where it fails because the device is lost, that.
    pub(crate) fn queue_with(
        &self,
        name: &'static str,
        call: impl FnOnce(&Context) -> Result<()>,
    ) -> Result<()> {
        let _current = self.context.enter()?;
        let recorded = self.records()?;
        self.behind_others.set(true);
        call(&self.context).map_err(|e| {
            // The library may have failed for the work before.
            self.context.explain(e, Some((self.raw, "this stream"))).context(name)
        })?;
        self.queued(name, recorded)
    }

    /// Queues a kernel of another library with `call`, as [`CudaStream::queue`] does.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn queue_foreign(
        &self,
        name: &'static str,
        call: impl FnOnce() -> std::result::Result<(), Failed>,
    ) -> Result<()> {
        self.behind_others.set(true);
        self.queue(name, |_| call())
    }

    /// Queues work with `call`, which runs while the context is current. `name` is for messages.
    ///
    /// # Errors
    /// The driver's: its own, or one of earlier work.
    #[inline]
    pub(crate) fn queue(
        &self,
        name: &'static str,
        call: impl FnOnce(&Context) -> std::result::Result<(), Failed>,
    ) -> Result<()> {
        let _current = self.context.enter()?;
        let recorded = self.records()?;
        call(&self.context).map_err(|e| self.refused(name, e))?;
        self.queued(name, recorded)
    }

    /// Whether what is queued now is recorded, as far as it is known without the driver: that is asked of streams that
    /// others may record on, and where each launch is waited for. The context is current.
    #[inline]
    fn records(&self) -> Result<bool> {
        if self.owned && !self.sync_launches {
            Ok(self.recording.borrow().is_some())
        } else {
            self.capturing()
        }
    }

    /// Remembers a piece of work, and waits for it where the options say so. What was recorded has not begun. The context
    /// is current.
    #[inline]
    fn queued(&self, name: &'static str, recorded: bool) -> Result<()> {
        if recorded {
            return Ok(());
        }
        self.queued.push(name);
        if self.sync_launches { self.drain() } else { Ok(()) }
    }

    /// The error of queueing `name`.
    #[cold]
    fn refused(&self, name: &'static str, failed: Failed) -> Error {
        self.failed(failed).context(name)
    }

    /// The error of a call on this stream.
    #[cold]
    fn failed(&self, failed: Failed) -> Error {
        self.context.error_on(failed, Some((self.raw, "this stream")))
    }

    fn enter_and_drain(&self) -> Result<()> {
        let _current = self.context.enter()?;
        self.drain()
    }

    /// Waits for all work. The context is current.
    fn drain(&self) -> Result<()> {
        self.wait_untold()?;
        self.check_indices()
    }

    /// The same, and leaves it to the next wait to tell of an index that was refused.
    pub(crate) fn wait_untold(&self) -> Result<()> {
        // SAFETY: a live stream.
        unsafe { self.context.driver().cuStreamSynchronize(self.raw) }.map_err(|e| self.failed(e))?;
        self.queued.clear();
        Ok(())
    }

    /// Whether calls are recorded into a graph.
    ///
    /// # Errors
    /// The driver's.
    pub fn is_capturing(&self) -> Result<bool> {
        let _current = self.context.enter()?;
        self.capturing()
    }

    /// The same where the context is current.
    fn capturing(&self) -> Result<bool> {
        let mut status = 0;
        // SAFETY: a live stream and a valid out-pointer.
        unsafe { self.context.driver().cuStreamIsCapturing(self.raw, &mut status) }
            .map_err(|e| self.failed(e))?;
        Ok(status != 0)
    }
}

impl Stream for CudaStream {
    type Event = CudaEvent;

    fn sync(&self) -> Result<()> {
        let waited = self.enter_and_drain();
        match &waited {
            // Nothing of the work may touch memory afterwards, and a call that failed for want of memory, say, may not
            // have waited. A lost device does nothing more, and what is recorded has not begun.
            Err(e) if !self.context.is_lost() && e.code() != Code::InvalidArgument => {
                if let Err(e) = self.enter_and_drain() {
                    tracing::error!("a stream cannot be waited for: {e}");
                }
            }
            _ => {}
        }
        waited
    }

    fn query(&self) -> Result<bool> {
        let _current = self.context.enter()?;
        // SAFETY: a live stream.
        let done = done(unsafe { self.context.driver().cuStreamQuery(self.raw) }, |e| self.failed(e))?;
        if done {
            self.queued.clear();
            self.check_indices()?;
        }
        Ok(done)
    }

    unsafe fn copy(&self, copy: CopyRequest<'_>) -> Result<()> {
        let (dst, src) = (self.side(copy.dst_space)?, self.side(copy.src_space)?);
        let bytes = usize::try_from(copy.bytes).map_err(|_| {
            Error::invalid(format!("a copy of {} bytes: more than an address space", copy.bytes))
        })?;
        let Some(peer) = dst.as_ref().or(src.as_ref()) else {
            // SAFETY: both ranges are valid until the copy is done, as the caller promises.
            return self.queue("copy", |own| unsafe {
                own.driver().cuMemcpyAsync(copy.dst, copy.src, bytes, self.raw)
            });
        };
        let own = &self.context;
        let _current = own.enter()?;
        let recorded = self.records()?;
        let raw = |side: &Option<Arc<Context>>| side.as_ref().map_or(own.raw(), |c| c.raw());
        // SAFETY: as above; the contexts are retained.
        unsafe { own.driver().cuMemcpyPeerAsync(copy.dst, raw(&dst), copy.src, raw(&src), bytes, self.raw) }
            .map_err(|e| own.error_between(peer, e, Some((self.raw, "this stream"))).context("copy"))?;
        self.queued("copy", recorded)
    }

    fn record(&self, event: &CudaEvent) -> Result<()> {
        if !Arc::ptr_eq(event.context(), &self.context) {
            return Err(Error::invalid(format!(
                "an event of device {} is recorded on a stream of device {}",
                event.context().device(),
                self.context.device()
            )));
        }
        let _current = self.context.enter()?;
        // SAFETY: this stream, of the event's context.
        unsafe { event.record(self.raw, &self.queued) }.map_err(|e| self.refused("recording an event", e))
    }

    fn wait(&self, event: &CudaEvent) -> Result<()> {
        if !event.is_recorded() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        self.behind_others.set(true);
        // SAFETY: a live event and stream.
        unsafe { self.context.driver().cuStreamWaitEvent(self.raw, event.raw(), 0) }
            .map_err(|e| self.refused("waiting for an event", e))
    }
}

impl CudaStream {
    /// The context of a peer whose memory a side of a copy is; none for the own device's and the host's.
    fn side(&self, space: &str) -> Result<Option<Arc<Context>>> {
        match Place::of(space) {
            Some(Place::Host) => Ok(None),
            Some(Place::Device(name)) if name == self.context.space() => Ok(None),
            Some(Place::Device(name)) => match self.fleet.with_space(name) {
                Some(peer) => Ok(Some(peer)),
                None => Err(unreachable_space(space, "no device of this provider has it open")),
            },
            None => Err(unreachable_space(space, "it is none of CUDA's")),
        }
    }
}

#[cold]
fn unreachable_space(space: &str, why: &str) -> Error {
    Error::unsupported(format!(
        "memory space `{space}` cannot be reached from here: {why}; copy through the host"
    ))
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let known = self.context.is_lost();
        match self.sync() {
            Ok(()) => {}
            // Of a lost device somebody has been told.
            Err(e) if known && e.code() == Code::DeviceLost => {
                tracing::debug!("a stream of a lost device ends: {e}")
            }
            Err(e) => tracing::error!("work of a stream that ends failed: {e}"),
        }
        self.told.close(&self.context);
        self.context.close("freeing scratch memory", |context| self.scratch.close(context, self.raw));
        if !self.owned {
            return;
        }
        self.context.close("destroying a stream", |context| {
            // SAFETY: made by `create`, destroyed once.
            context.log("destroying a stream", unsafe { context.driver().cuStreamDestroy(self.raw) });
        });
    }
}
