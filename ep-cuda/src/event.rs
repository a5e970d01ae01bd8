//! Events: points in a stream's work.

use crate::context::Context;
use crate::driver::{CuEvent, CuResult, CuStream, Failed};
use crate::pending::Queued;
use ep_core::provider::Event;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A point in a stream's work, with the time at which it was reached. Drawn from the context's pool.
pub struct CudaEvent {
    context: Arc<Context>,
    raw: CuEvent,
    /// The driver would call an event from the pool recorded.
    recorded: AtomicBool,
    records: Records,
}

/// Where an event was recorded: on which stream, and behind how many pieces of its work.
#[derive(Clone)]
struct Place {
    stream: CuStream,
    queued: Weak<Queued>,
    count: usize,
}

/// Where an event is recorded, which any thread may do while others ask the driver about it. An answer is about a place only
/// if nobody has begun to record between question and answer.
#[derive(Default)]
struct Records(Mutex<Latest>);

#[derive(Clone, Default)]
struct Latest {
    /// None while somebody records, and after several who did so at a time: who was the last is not known.
    place: Option<Place>,
    /// How often recording was begun, and by how many who have not ended.
    begun: u64,
    recording: u32,
    at_a_time: bool,
}

impl Records {
    /// What there is before a question to the driver.
    fn latest(&self) -> Latest {
        self.0.lock().clone()
    }

    /// The driver is about to record.
    fn begin(&self) {
        let mut latest = self.0.lock();
        latest.at_a_time = latest.recording > 0;
        latest.place = None;
        latest.begun += 1;
        latest.recording += 1;
    }

    /// The driver has recorded there, or has failed.
    fn end(&self, place: Option<Place>) {
        let mut latest = self.0.lock();
        latest.recording -= 1;
        latest.place = place.filter(|_| !latest.at_a_time);
    }

    /// The driver has said that the event is done, when asked after this was the latest.
    fn reached(&self, before: Latest) {
        let unchanged = self.0.lock().begun == before.begun;
        if let Some(place) = before.place.filter(|_| unchanged)
            && let Some(queued) = place.queued.upgrade()
        {
            queued.done(place.count);
        }
    }
}

impl CudaEvent {
    pub(crate) fn new(context: Arc<Context>) -> Result<CudaEvent> {
        let raw = context.take_event()?;
        Ok(CudaEvent { context, raw, recorded: AtomicBool::new(false), records: Records::default() })
    }

    /// The driver's handle.
    pub fn raw(&self) -> CuEvent {
        self.raw
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Records it on a stream behind what that has queued. The context is current.
    ///
    /// # Safety
    /// The stream is a live one of the event's context.
    pub(crate) unsafe fn record(
        &self,
        stream: CuStream,
        queued: &Arc<Queued>,
    ) -> std::result::Result<(), Failed> {
        self.records.begin();
        // SAFETY: a live event, and the caller's promise.
        let recorded = unsafe { self.context.driver().cuEventRecord(self.raw, stream) };
        let place = Place { stream, queued: Arc::downgrade(queued), count: queued.count() };
        self.records.end(recorded.is_ok().then_some(place));
        recorded?;
        self.recorded.store(true, Ordering::Release);
        Ok(())
    }

    /// The error of a call, which the work before the event has caused most likely.
    #[cold]
    fn failed(&self, failed: Failed) -> Error {
        let place = self.records.latest().place;
        self.context.error_on(failed, place.map(|place| (place.stream, "the event's stream")))
    }

    /// Nanoseconds from `start` to `end`.
    ///
    /// # Errors
    /// `InvalidArgument` unless both are recorded and done, and of one device.
    pub(crate) fn elapsed(start: &CudaEvent, end: &CudaEvent) -> Result<u64> {
        if !start.is_recorded() || !end.is_recorded() {
            return Err(not_done());
        }
        let context = &end.context;
        if !Arc::ptr_eq(context, &start.context) {
            return Err(Error::invalid(format!(
                "elapsed time needs two events of one device; the start event is of device {}, the end event of device {}",
                start.context.device(),
                context.device()
            )));
        }
        let _current = context.enter()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: live events and a valid out-pointer.
        match unsafe { context.driver().cuEventElapsedTime(&mut milliseconds, start.raw, end.raw) } {
            Ok(()) if milliseconds < 0.0 => Err(Error::invalid("the end event is before the start event")),
            Ok(()) => Ok((f64::from(milliseconds) * 1e6) as u64),
            Err(e) if e.result == CuResult::NOT_READY => Err(not_done()),
            Err(e) => Err(end.failed(e)),
        }
    }
}

fn not_done() -> Error {
    Error::invalid("elapsed time needs two events that are recorded and done; wait for the end event first")
}

impl Event for CudaEvent {
    fn query(&self) -> Result<bool> {
        if !self.is_recorded() {
            return Ok(true);
        }
        let (before, _current) = (self.records.latest(), self.context.enter()?);
        // SAFETY: a live event.
        let done = done(unsafe { self.context.driver().cuEventQuery(self.raw) }, |e| self.failed(e))?;
        if done {
            self.records.reached(before);
        }
        Ok(done)
    }

    fn sync(&self) -> Result<()> {
        if !self.is_recorded() {
            return Ok(());
        }
        let (before, _current) = (self.records.latest(), self.context.enter()?);
        // SAFETY: a live event.
        unsafe { self.context.driver().cuEventSynchronize(self.raw) }.map_err(|e| self.failed(e))?;
        self.records.reached(before);
        Ok(())
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.context.give_event(self.raw);
    }
}

/// A query's answer.
pub(crate) fn done(
    answer: std::result::Result<(), Failed>,
    failed: impl FnOnce(Failed) -> Error,
) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(e) if e.result == CuResult::NOT_READY => Ok(false),
        Err(e) => Err(failed(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(pieces: usize) -> Arc<Queued> {
        let queued = Queued::new(CuStream::NULL);
        (0..pieces).for_each(|_| queued.push("copy"));
        queued
    }

    fn place(queued: &Arc<Queued>) -> Place {
        Place { stream: CuStream::NULL, queued: Arc::downgrade(queued), count: queued.count() }
    }

    fn done(queued: &Queued) -> usize {
        queued.count() - queued.pending().len()
    }

    #[test]
    fn an_answer_is_about_the_place_where_the_event_was_recorded() {
        let (queued, records) = (queue(3), Records::default());
        records.begin();
        records.end(Some(place(&queued)));
        queued.push("later");
        records.reached(records.latest());
        assert_eq!(done(&queued), 3);
    }

    /// Another thread records between question and answer: the answer may be about its place, or about the one before.
    #[test]
    fn an_answer_that_may_be_about_another_place_tells_nothing() {
        let (first, second) = (queue(3), queue(2));
        let records = Records::default();
        records.begin();
        records.end(Some(place(&first)));
        let before = records.latest();
        records.begin();
        records.reached(before.clone());
        records.reached(records.latest());
        records.end(Some(place(&second)));
        records.reached(before);
        assert_eq!([done(&first), done(&second)], [0, 0]);
        records.reached(records.latest());
        assert_eq!([done(&first), done(&second)], [0, 2]);
    }

    /// Which of two threads the driver let record last is not known, nor what a failure has left.
    #[test]
    fn an_event_whose_place_is_not_known_tells_nothing() {
        let (first, second) = (queue(3), queue(2));
        let records = Records::default();
        records.begin();
        records.begin();
        records.end(Some(place(&second)));
        records.reached(records.latest());
        records.end(Some(place(&first)));
        records.reached(records.latest());
        records.begin();
        records.end(None);
        records.reached(records.latest());
        assert_eq!([done(&first), done(&second)], [0, 0]);
        records.begin();
        records.end(Some(place(&first)));
        records.reached(records.latest());
        assert_eq!([done(&first), done(&second)], [3, 0]);
    }
}
