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
    place: Mutex<Place>,
}

/// Where an event was recorded: on which stream, and behind how many pieces of its work.
#[derive(Clone)]
struct Place {
    stream: CuStream,
    queued: Weak<Queued>,
    count: usize,
}

impl Place {
    /// What is before the event is done.
    fn reached(&self) {
        if let Some(queued) = self.queued.upgrade() {
            queued.done(self.count);
        }
    }
}

impl CudaEvent {
    pub(crate) fn new(context: Arc<Context>) -> Result<CudaEvent> {
        let raw = context.take_event()?;
        let place = Place { stream: CuStream::NULL, queued: Weak::new(), count: 0 };
        Ok(CudaEvent { context, raw, recorded: AtomicBool::new(false), place: Mutex::new(place) })
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

    /// It is recorded on a stream behind what that has queued.
    pub(crate) fn mark_recorded(&self, stream: CuStream, queued: &Arc<Queued>) {
        *self.place.lock() = Place { stream, queued: Arc::downgrade(queued), count: queued.count() };
        self.recorded.store(true, Ordering::Release);
    }

    /// Where it is recorded, to be asked for before the driver is: it may be recorded elsewhere meanwhile.
    fn place(&self) -> Place {
        self.place.lock().clone()
    }

    /// The error of a call, which the work before the event has caused most likely.
    #[cold]
    fn failed(&self, failed: Failed) -> Error {
        self.context.error_on(failed, Some((self.place().stream, "the event's stream")))
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
        let (place, _current) = (self.place(), self.context.enter()?);
        // SAFETY: a live event.
        let done = done(unsafe { self.context.driver().cuEventQuery(self.raw) }, |e| self.failed(e))?;
        if done {
            place.reached();
        }
        Ok(done)
    }

    fn sync(&self) -> Result<()> {
        if !self.is_recorded() {
            return Ok(());
        }
        let (place, _current) = (self.place(), self.context.enter()?);
        // SAFETY: a live event.
        unsafe { self.context.driver().cuEventSynchronize(self.raw) }.map_err(|e| self.failed(e))?;
        place.reached();
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
