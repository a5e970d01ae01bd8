//! Streams of logical devices.
//!
//! A [`Stream`] has a *lane* for each provider of its device, made when first needed. Lanes of inline
//! providers need no care: their work is done when the call returns. Another lane adopts the native stream of
//! the first where both providers have such a thing; otherwise switching between lanes waits for the work of
//! the lane that was used before.
//!
//! Calls take a lock, so a stream may be used from several threads; their work is then in some order. It costs the first
//! thread little as long as there is no other ([`OwnedMutex`]).

use crate::device::Device;
use crate::graph::{Access, Recording, Uses};
use crate::memory::Memory;
use crate::owned::OwnedMutex;
use crate::shared::Shared;
use ep_core::handle::{EventHandle, StreamHandle};
use ep_core::provider::StreamOptions;
use ep_core::{Code, Error, Result};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A queue of work on a logical device. Cheap to clone; clones are the same queue.
#[derive(Clone)]
pub struct Stream {
    pub(crate) core: Arc<StreamCore>,
    handles: Arc<Handles>,
}

/// What all clones share. Buffers remember the queue for longer.
struct Handles {
    core: Arc<StreamCore>,
    /// Whether the native stream is somebody else's, who does not know of buffers: its use ends with the last clone.
    adopted: bool,
}

impl Drop for Handles {
    fn drop(&mut self) {
        // Where no buffer remembers it, it is closed right after this, without the lock.
        if Arc::get_mut(&mut self.core).is_some() {
            return;
        }
        let core = &self.core;
        if !self.adopted {
            core.orphan.store(true, Ordering::Relaxed);
            return core.device.orphans().add(core);
        }
        let mut after = After::default();
        match core.state.lock() {
            Ok(mut state) => core.close(&mut state, &mut after),
            // Only within a call on it, as it has no owner: whoever ends the native stream next cannot be told.
            Err(e) => tracing::error!("{}: an adopted stream is not closed: {e}", core.device.name()),
        }
    }
}

/// What waits until a stream's lock is released: deleters and whoever receives the messages of this crate may use the
/// stream. Messages of providers come while it is held; a receiver that uses the stream gets an error from [`OwnedMutex`].
/// Declared before the lock is taken, so dropped after it. Nothing waits in most calls, which then only look for a null pointer.
#[derive(Default)]
struct After(Option<Box<Waiting>>);

#[derive(Default)]
struct Waiting {
    kept: Vec<Deferred>,
    untold: Vec<Box<dyn FnOnce()>>,
}

impl After {
    fn waiting(&mut self) -> &mut Waiting {
        self.0.get_or_insert_default()
    }

    fn tell(&mut self, message: impl FnOnce() + 'static) {
        self.waiting().untold.push(Box::new(message));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.untold.drain(..).for_each(|tell| tell());
    }
}

/// What buffers remember of a stream that uses them.
pub(crate) struct StreamCore {
    pub(crate) device: Device,
    options: StreamOptions,
    state: OwnedMutex<State>,
    /// How many asynchronous pieces of work were queued, and how many of those are known to be done.
    submitted: AtomicU64,
    completed: AtomicU64,
    /// Whether `state` has a recording.
    recording: AtomicBool,
    /// Whether the last handle is gone.
    orphan: AtomicBool,
}

#[derive(Default)]
struct State {
    lanes: Vec<Option<Lane>>,
    /// The asynchronous lane used last.
    last: Option<usize>,
    deferred: VecDeque<Deferred>,
    recording: Option<Recording>,
    /// What the work failed with, where that was found without anybody who waited: the next wait tells of it.
    failed: Option<Error>,
    /// How many recordings have begun.
    recordings: u64,
}

struct Lane {
    handle: StreamHandle,
    inline: bool,
    /// Shares the native stream of the first lane.
    adopted: bool,
}

/// Something that is kept until an event.
struct Deferred {
    event: EventHandle,
    /// The number of the latest work before the event.
    number: u64,
    _kept: Kept,
}

/// What is kept until the work that uses it is done.
pub(crate) enum Kept {
    /// Device memory, freed afterwards.
    Memory { _memory: Memory },
    /// Host memory that a copy reads.
    Host { _bytes: Box<dyn std::any::Any + Send> },
}

impl Stream {
    pub(crate) fn new(device: Device, options: StreamOptions) -> Result<Stream> {
        // The primary lane is made now, so that a device without resources says so here. Not by way of the lock, which
        // would belong to this thread from then on: the first that uses the stream is to have it.
        let mut state = State::default();
        open_lane(&device, options, &mut state, 0, &mut After::default())?;
        // An event counts from here on.
        state.last = state.lanes.iter().flatten().any(|lane| !lane.inline).then_some(0);
        Ok(Stream::with(StreamCore::new(device, options, OwnedMutex::new(state)), false))
    }

    fn with(core: StreamCore, adopted: bool) -> Stream {
        let core = Arc::new(core);
        Stream { handles: Arc::new(Handles { core: core.clone(), adopted }), core }
    }

    /// A queue on a native stream; see [`Device::adopt_stream`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn adopt(device: Device, kind: &str, native: u64) -> Result<Stream> {
        let primary = device.members()[0].handle();
        // SAFETY: the caller's promise.
        let handle = unsafe { primary.adopt_stream(kind, native) }?;
        let first = Lane { handle, inline: primary.info().inline, adopted: false };
        let lanes = std::iter::once(Some(first)).chain((1..device.members().len()).map(|_| None));
        let state = State { lanes: lanes.collect(), ..State::default() };
        // No thread owns it: its last clone has to be dropped anywhere without an error.
        let core = StreamCore::new(device, StreamOptions::default(), OwnedMutex::without_owner(state));
        Ok(Stream::with(core, true))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.core.device
    }

    /// Whether it records a graph.
    pub fn is_recording(&self) -> bool {
        self.core.is_recording()
    }

    /// Blocks until all work is done.
    ///
    /// # Errors
    /// The first error of that work, once. `InvalidArgument` while the stream records a graph. `Unavailable` where another
    /// thread used the stream first and the system refuses what a second one needs, as for all calls on a stream.
    pub fn sync(&self) -> Result<()> {
        self.core.check_idle()?;
        self.core.sync()
    }

    /// The native stream that its work goes onto, for other libraries that take one: the provider's name of such handles (`CUstream`
    /// of CUDA), and the handle, which lives as long as this stream. Work of providers that do not share it is not on it:
    /// [`Stream::sync`] waits for that.
    ///
    /// # Errors
    /// `Unsupported` where the device's first provider has no such thing.
    pub fn native(&self) -> Result<(String, u64)> {
        let mut after = After::default();
        let mut state = self.core.state.lock()?;
        self.core.need_lane(&mut state, 0, &mut after)?;
        let lane =
            state.lanes[0].as_ref().ok_or_else(|| Error::internal("a stream without its first lane"))?;
        lane.handle.device().native_stream(&lane.handle)
    }

    /// Whether it goes onto a native stream of another library ([`Device::adopt_stream`]), whose work buffers do not know.
    pub fn is_adopted(&self) -> bool {
        self.handles.adopted
    }

    /// Whether all work is done.
    ///
    /// # Errors
    /// The provider's. `InvalidArgument` while the stream records a graph.
    pub fn query(&self) -> Result<bool> {
        self.core.check_idle()?;
        let state = self.core.state.lock()?;
        for lane in state.lanes.iter().flatten().filter(|l| !l.inline) {
            if !lane.handle.query()? {
                return Ok(false);
            }
        }
        self.core.completed.fetch_max(self.core.submitted(), Ordering::Release);
        Ok(true)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p} on {})", Arc::as_ptr(&self.core), self.core.device.name())
    }
}

impl StreamCore {
    fn new(device: Device, options: StreamOptions, state: OwnedMutex<State>) -> StreamCore {
        StreamCore {
            device,
            options,
            state,
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
        }
    }

    /// Runs `work` with the lane of a member, ordered behind what was queued before. Lets go of what was kept for work that
    /// is done.
    #[inline]
    pub(crate) fn on_lane<R>(
        &self,
        member: usize,
        work: impl FnOnce(&StreamHandle) -> Result<R>,
    ) -> Result<R> {
        self.work::<true, R>(member, work)
    }

    /// The same for a caller that holds a lock and has called [`StreamCore::tidy`] before: lets go of nothing, and has
    /// nothing to tell.
    #[inline]
    pub(crate) fn on_lane_locked<R>(
        &self,
        member: usize,
        work: impl FnOnce(&StreamHandle) -> Result<R>,
    ) -> Result<R> {
        self.work::<false, R>(member, work)
    }

    /// Lets go of what was kept for work that is done, and makes the lane of a member where there is none. That runs
    /// deleters and receivers of messages, which are foreign code: no lock is held.
    pub(crate) fn tidy(&self, member: usize) -> Result<()> {
        let mut after = After::default();
        let mut state = self.state.lock()?;
        if state.recording.is_some() {
            return Err(records());
        }
        self.need_lane(&mut state, member, &mut after)?;
        self.take_done(&mut state.deferred, &mut after);
        Ok(())
    }

    #[inline]
    fn need_lane(&self, state: &mut State, member: usize, after: &mut After) -> Result<()> {
        if matches!(state.lanes.get(member), Some(Some(_))) {
            return Ok(());
        }
        open_lane(&self.device, self.options, state, member, after)
    }

    #[inline]
    fn work<const TIDY: bool, R>(
        &self,
        member: usize,
        work: impl FnOnce(&StreamHandle) -> Result<R>,
    ) -> Result<R> {
        let mut after = After::default();
        let mut state = self.state.lock()?;
        if state.recording.is_some() {
            return Err(records());
        }
        self.need_lane(&mut state, member, &mut after)?;
        if state.last.is_some_and(|l| l != member) {
            switch_lane(&mut state, member)?;
        }
        let State { lanes, last, deferred, .. } = &mut *state;
        let Some(Some(lane)) = lanes.get(member) else { unreachable!("opened above") };
        if lane.inline {
            return work(&lane.handle);
        }
        if TIDY {
            self.take_done(deferred, &mut after);
        }
        *last = Some(member);
        self.submitted.fetch_add(1, Ordering::Relaxed);
        work(&lane.handle)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.settle()?
    }

    /// Waits for all work. Where that cannot be waited for, the outer result is the error, and the work may still go on; else
    /// the inner one is that of the work.
    pub(crate) fn settle(&self) -> Result<Result<()>> {
        let mut after = After::default();
        let mut state = self.state.lock()?;
        // What is recorded has not begun, and what came before is done.
        if state.recording.is_some() {
            return Ok(Ok(()));
        }
        Ok(self.drain(&mut state, &mut after))
    }

    /// Waits for everything, and lets go of what was kept for it.
    fn drain(&self, state: &mut State, after: &mut After) -> Result<()> {
        let result = self.wait_for_all(state);
        if !state.deferred.is_empty() {
            after.waiting().kept.extend(state.deferred.drain(..));
        }
        result
    }

    fn wait_for_all(&self, state: &mut State) -> Result<()> {
        let submitted = self.submitted.load(Ordering::Relaxed);
        let mut first = state.failed.take().map_or(Ok(()), Err);
        for lane in state.lanes.iter().flatten().filter(|l| !l.inline) {
            let result = lane.handle.sync();
            if first.is_ok() {
                first = result;
            }
        }
        // Done even where it failed: a failed piece of work no longer touches its memory.
        self.completed.fetch_max(submitted, Ordering::Release);
        first
    }

    /// Whether the stream records a graph.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    /// Fails while the stream records a graph.
    pub(crate) fn check_idle(&self) -> Result<()> {
        if self.is_recording() { Err(records()) } else { Ok(()) }
    }

    /// Records the work of a member from now on, after all earlier work.
    pub(crate) fn begin_recording(&self, member: usize) -> Result<()> {
        // All foreign code runs before: what it queues here is none of what the caller records.
        self.tidy(member)?;
        self.settle()??;
        let mut state = self.state.lock()?;
        if state.recording.is_some() {
            return Err(records());
        }
        // For what was queued meanwhile. What is kept for that stays until after the recording.
        self.wait_for_all(&mut state)?;
        let Some(Some(lane)) = state.lanes.get(member) else { unreachable!("opened above") };
        lane.handle.begin_recording()?;
        state.recordings += 1;
        state.recording = Some(Recording::new(state.recordings, member));
        self.recording.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the recording with `end`. What it used is dropped by the caller, without the lock.
    pub(crate) fn end_recording<T>(&self, end: impl FnOnce(&StreamHandle) -> Result<T>) -> Result<(T, Uses)> {
        let recording;
        let mut state = self.state.lock()?;
        recording = state.recording.take().ok_or_else(|| Error::internal("the stream records nothing"))?;
        self.recording.store(false, Ordering::Release);
        let Some(Some(lane)) = state.lanes.get(recording.member) else {
            unreachable!("opened when the recording began")
        };
        let result = end(&lane.handle);
        drop(state);
        Ok((result?, recording.into_uses()))
    }

    /// Records work of a member on these buffers. `within` is the recording that writes what the work reads, where it was
    /// not written before.
    pub(crate) fn record_on<'a>(
        &self,
        member: usize,
        within: Option<u64>,
        buffers: impl Iterator<Item = Access<'a>> + Clone,
        work: impl FnOnce(&StreamHandle) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock()?;
        let State { lanes, recording, .. } = &mut *state;
        let Some(recording) = recording.as_mut().filter(|r| within.is_none_or(|number| number == r.number))
        else {
            return Err(recording_ended());
        };
        let members = self.device.members();
        if member != recording.member {
            return Err(Error::invalid(format!(
                "the graph records work of provider {}, and this is of {}; queue it behind the graph, or disable one",
                members[recording.member].handle().provider().plugin().name,
                members[member].handle().provider().plugin().name,
            )));
        }
        let Some(Some(lane)) = lanes.get(member) else { unreachable!("opened when the recording began") };
        // Also where the work fails, which may have been recorded in part; nothing counts as written then.
        buffers.clone().for_each(|access| recording.note_use(access));
        work(&lane.handle)?;
        buffers.for_each(|access| recording.note_written(access));
        Ok(())
    }

    /// The recording that is going on, if it writes so many bytes of a buffer.
    pub(crate) fn recording_that_wrote(&self, shared: &Arc<Shared>, end: u64) -> Result<Option<u64>> {
        if !self.is_recording() {
            return Ok(None);
        }
        let state = self.state.lock()?;
        Ok(state.recording.as_ref().filter(|r| r.has_written(shared, end)).map(|r| r.number))
    }

    /// The number of the latest piece of asynchronous work.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }

    /// Whether work up to this number is known to be done.
    pub(crate) fn has_completed(&self, number: u64) -> bool {
        // Whoever is told that work is done may read what it wrote: it comes after the wait of the thread that noticed.
        self.completed.load(Ordering::Acquire) >= number
    }

    /// An event behind everything queued so far; `None` if nothing is asynchronous here.
    pub(crate) fn record_now(&self) -> Result<Option<EventHandle>> {
        record(&*self.state.lock()?)
    }

    /// Makes later work of this stream's lane `member` wait for an event of any provider. Lets go of nothing, as callers
    /// may hold locks.
    pub(crate) fn wait_for(&self, member: usize, event: &EventHandle) -> Result<()> {
        let mine = self.device.members()[member].handle();
        if mine.info().inline || !Arc::ptr_eq(mine.provider(), event.device().provider()) {
            // An inline lane does its work at once, and another provider does not know the event.
            return event.sync();
        }
        self.on_lane_locked(member, |lane| lane.wait(event))
    }

    /// Makes later work of this stream's lane `member` wait for everything queued on another stream so far.
    pub(crate) fn order_behind(&self, member: usize, other: &StreamCore) -> Result<()> {
        match other.record_now()? {
            Some(event) => self.wait_for(member, &event),
            None => Ok(()),
        }
    }

    /// Keeps something until everything queued so far is done; for ever, where that cannot be found out.
    pub(crate) fn keep(self: &Arc<Self>, kept: Kept) {
        self.keep_until_done(kept);
        if self.orphan.load(Ordering::Relaxed) {
            self.device.orphans().add(self);
        }
    }

    fn keep_until_done(&self, kept: Kept) {
        // Declared first, so dropped after the lock is released.
        let _kept;
        let mut after = After::default();
        let mut state = match self.state.lock() {
            Ok(state) => state,
            Err(e) => {
                tracing::error!(
                    "{}: what queued work may use is never freed, as nothing tells when that is done: {e}",
                    self.device.name()
                );
                return std::mem::forget(kept);
            }
        };
        match record(&state) {
            Ok(Some(event)) => {
                let number = self.submitted();
                state.deferred.push_back(Deferred { event, number, _kept: kept });
            }
            Ok(None) => _kept = kept,
            Err(e) => {
                _kept = kept;
                let result = self.drain(&mut state, &mut after);
                let device = self.device.clone();
                after.tell(move || {
                    tracing::error!("{}: could not record an event, waited instead: {e}", device.name());
                    if let Err(e) = result {
                        tracing::error!("{}: {e}", device.name());
                    }
                });
            }
        }
    }

    /// Takes out what was kept for work that is done. Events are in queue order, so the first pending one ends
    /// it.
    #[inline]
    fn take_done(&self, deferred: &mut VecDeque<Deferred>, after: &mut After) {
        while deferred.front().is_some_and(|d| is_done(&d.event, after)) {
            after.waiting().kept.extend(deferred.pop_front());
        }
        if let Some(last) = after.0.as_ref().and_then(|waiting| waiting.kept.last()) {
            self.completed.fetch_max(last.number, Ordering::Release);
        }
    }

    /// Whether the lane of a member works when it is called.
    pub(crate) fn is_inline(&self, member: usize) -> bool {
        self.device.members()[member].handle().info().inline
    }
}

/// Makes the lane of a member.
#[cold]
fn open_lane(
    of: &Device,
    options: StreamOptions,
    state: &mut State,
    member: usize,
    after: &mut After,
) -> Result<()> {
    let device = of.members()[member].handle();
    let count = of.members().len();
    state.lanes.resize_with(count, || None);
    let inline = device.info().inline;
    let primary = state.lanes[0].as_ref().filter(|p| member != 0 && !inline && !p.inline);
    if let Some(primary) = primary {
        let from = primary.handle.device();
        if from.has_foreign_streams() && device.has_foreign_streams() {
            let adopted = from.native_stream(&primary.handle).and_then(|(kind, native)| {
                // SAFETY: the native stream is of this hardware; it lives as long as lane 0, which is
                // dropped after the other lanes (see `Drop`).
                unsafe { device.adopt_stream(&kind, native) }
            });
            match adopted {
                Ok(handle) => {
                    state.lanes[member] = Some(Lane { handle, inline, adopted: true });
                    return Ok(());
                }
                Err(e) => {
                    let of = of.clone();
                    after.tell(move || tracing::debug!("{}: a stream of its own instead: {e}", of.name()));
                }
            }
        }
    }
    let handle = device.create_stream(options)?;
    state.lanes[member] = Some(Lane { handle, inline, adopted: false });
    Ok(())
}

/// What a stream that records does not do.
#[cold]
fn records() -> Error {
    Error::invalid(
        "the stream records a graph: launches of capturable primitives and copies between buffers are possible; do \
         this after the recording, or on another stream",
    )
}

/// The error of work that was to be recorded.
#[cold]
pub(crate) fn recording_ended() -> Error {
    Error::invalid("another thread ended the recording of this stream; use one for each")
}

/// Orders a lane behind the one that was used last.
#[cold]
fn switch_lane(state: &mut State, member: usize) -> Result<()> {
    let Some(last) = state.last else { return Ok(()) };
    let same_queue = |i: usize| i == 0 || state.lanes[i].as_ref().is_some_and(|l| l.adopted);
    if same_queue(last) && same_queue(member) && !state.lanes[member].as_ref().is_some_and(|l| l.inline) {
        return Ok(());
    }
    state.last = None;
    state.lanes[last].as_ref().map_or(Ok(()), |l| l.handle.sync())
}

/// An event behind everything on the asynchronous lane that was used last, which is behind the others.
fn record(state: &State) -> Result<Option<EventHandle>> {
    // What came before the recording is done.
    if state.recording.is_some() {
        return Ok(None);
    }
    let Some(Some(lane)) = state.last.and_then(|last| state.lanes.get(last)) else { return Ok(None) };
    let event = lane.handle.device().create_event()?;
    lane.handle.record(&event)?;
    Ok(Some(event))
}

/// A query that fails does not tell that the work is over, unless the device is; a later `sync` does.
fn is_done(event: &EventHandle, after: &mut After) -> bool {
    event.query().unwrap_or_else(|e| {
        let lost = e.code() == Code::DeviceLost;
        if !lost {
            after.tell(move || tracing::warn!("asking whether work is done: {e}"));
        }
        lost
    })
}

impl StreamCore {
    /// Gives the lanes back if all work is done, for a stream that nobody has a handle of. False where it is not, or failed:
    /// an error is left for whoever waits for a buffer that the work used.
    pub(crate) fn close_if_done(&self) -> bool {
        let mut after = After::default();
        // Not within a call on it, nor where the system refuses what a second thread needs.
        let Ok(mut state) = self.state.lock() else { return false };
        if state.recording.is_some() || state.failed.is_some() {
            return false;
        }
        let lost = |e: &Error| e.code() == Code::DeviceLost;
        for lane in state.lanes.iter().flatten().filter(|l| !l.inline) {
            // Only a wait tells of all errors, and there is nothing to wait for.
            let over = match lane.handle.query() {
                Ok(true) => lane.handle.sync(),
                Ok(false) => return false,
                Err(e) => Err(e),
            };
            if let Err(e) = over
                && !lost(&e)
            {
                state.failed = Some(e);
                return false;
            }
        }
        self.close(&mut state, &mut after);
        true
    }

    /// Waits for all work and gives the lanes back.
    fn close(&self, state: &mut State, after: &mut After) {
        if let Err(e) = self.drain(state, after) {
            let device = self.device.clone();
            after.tell(move || tracing::error!("{}: work of a dropped stream failed: {e}", device.name()));
        }
        state.last = None;
        // Adopted lanes go before the lane whose native stream they use.
        while let Some(lane) = state.lanes.pop() {
            drop(lane);
        }
    }
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        // Whichever thread this is: nobody else has it.
        let mut state = std::mem::take(self.state.get_mut());
        self.close(&mut state, &mut After::default());
    }
}
