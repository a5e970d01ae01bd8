//! Events: points in a stream's work.

use crate::context::Context;
use crate::driver::{CuEvent, CuResult, CuStream, Failed};
use ep_core::provider::Event;
use ep_core::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A point in a stream's work, with the time at which it was reached. Drawn from the context's pool.
pub struct CudaEvent {
    context: Arc<Context>,
    raw: CuEvent,
    /// The driver would call an event from the pool recorded.
    recorded: AtomicBool,
    /// On which stream.
    stream: AtomicU64,
}

impl CudaEvent {
    pub(crate) fn new(context: Arc<Context>) -> Result<CudaEvent> {
        let raw = context.take_event()?;
        Ok(CudaEvent { context, raw, recorded: AtomicBool::new(false), stream: AtomicU64::new(0) })
    }

    /// The driver's handle.
    pub fn raw(&self) -> CuEvent {
        self.raw
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    pub(crate) fn mark_recorded(&self, stream: CuStream) {
        self.stream.store(stream.raw(), Ordering::Relaxed);
        self.recorded.store(true, Ordering::Release);
    }

    /// The error of a call, which the work before the event has caused most likely.
    #[cold]
    fn failed(&self, failed: Failed) -> Error {
        let stream = CuStream::from_raw(self.stream.load(Ordering::Relaxed));
        self.context.error_on(failed, Some((stream, "the event's stream")))
    }

    /// Nanoseconds from `start` to `end`.
    ///
    /// # Errors
    /// `InvalidArgument` unless both are recorded and done.
    pub(crate) fn elapsed(start: &CudaEvent, end: &CudaEvent) -> Result<u64> {
        if !start.is_recorded() || !end.is_recorded() {
            return Err(not_done());
        }
        let context = &end.context;
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
        let _current = self.context.enter()?;
        // SAFETY: a live event.
        done(unsafe { self.context.driver().cuEventQuery(self.raw) }, |e| self.failed(e))
    }

    fn sync(&self) -> Result<()> {
        if !self.is_recorded() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: a live event.
        unsafe { self.context.driver().cuEventSynchronize(self.raw) }.map_err(|e| self.failed(e))
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
