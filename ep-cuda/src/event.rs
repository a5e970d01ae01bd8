//! Events: points in a stream's work.

use crate::context::Context;
use crate::driver::{CuEvent, CuResult, Failed};
use ep_core::provider::Event;
use ep_core::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A point in a stream's work, with the time at which it was reached. Drawn from the context's pool.
pub struct CudaEvent {
    context: Arc<Context>,
    raw: CuEvent,
    /// The driver would call an event from the pool recorded.
    recorded: AtomicBool,
}

impl CudaEvent {
    pub(crate) fn new(context: Arc<Context>) -> Result<CudaEvent> {
        let raw = context.take_event()?;
        Ok(CudaEvent { context, raw, recorded: AtomicBool::new(false) })
    }

    /// The driver's handle.
    pub fn raw(&self) -> CuEvent {
        self.raw
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    pub(crate) fn mark_recorded(&self) {
        self.recorded.store(true, Ordering::Release);
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
            Err(e) => Err(context.error(e)),
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
        done(&self.context, unsafe { self.context.driver().cuEventQuery(self.raw) })
    }

    fn sync(&self) -> Result<()> {
        if !self.is_recorded() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: a live event.
        unsafe { self.context.driver().cuEventSynchronize(self.raw) }.map_err(|e| self.context.error(e))
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.context.give_event(self.raw);
    }
}

/// A query's answer.
pub(crate) fn done(context: &Context, answer: std::result::Result<(), Failed>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(e) if e.result == CuResult::NOT_READY => Ok(false),
        Err(e) => Err(context.error(e)),
    }
}
