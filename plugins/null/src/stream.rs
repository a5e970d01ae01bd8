//! Streams and events.

use ep_core::provider::inline::is_host;
use ep_core::provider::{CopyRequest, Event, Stream};
use ep_core::{Error, Result};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A queue of work, in order. One thread uses it at a time, not always the same.
#[derive(Debug)]
pub struct NullStream;

impl Stream for NullStream {
    type Event = NullEvent;

    /// Waits for all work, and returns the first error of that work, once.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    unsafe fn copy(&self, copy: CopyRequest<'_>) -> Result<()> {
        for space in [copy.src_space, copy.dst_space] {
            if space != crate::NAME && !is_host(space) {
                return Err(Error::unsupported(format!(
                    "memory space `{space}` is out of reach: this device copies between `{}` and `host`",
                    crate::NAME
                )));
            }
        }
        let src = std::ptr::with_exposed_provenance::<u8>(copy.src as usize);
        let dst = std::ptr::with_exposed_provenance_mut::<u8>(copy.dst as usize);
        // SAFETY: both ranges are valid as the caller promises, and this device's memory is host memory.
        unsafe { std::ptr::copy(src, dst, copy.bytes as usize) };
        Ok(())
    }

    /// Puts the event behind all work so far. An event may be recorded again; the latest record counts.
    fn record(&self, event: &NullEvent) -> Result<()> {
        *event.lock() = Some(Instant::now());
        Ok(())
    }

    /// Lets later work wait for the event, on the device: this call must not block. The event may be of another
    /// device of this provider.
    fn wait(&self, _event: &NullEvent) -> Result<()> {
        Ok(())
    }
}

/// A point in a stream's work. Any thread may ask it. One that was never recorded counts as done.
#[derive(Debug, Default)]
pub struct NullEvent {
    recorded: Mutex<Option<Instant>>,
}

impl NullEvent {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds between two events, for `Device::TIMING`.
    pub(crate) fn elapsed(start: &NullEvent, end: &NullEvent) -> Result<u64> {
        // One lock at a time: both may be the same event.
        let start = *start.lock();
        let end = *end.lock();
        let (start, end) = start
            .zip(end)
            .ok_or_else(|| Error::invalid("an event was never recorded; record both, then sync"))?;
        Ok(u64::try_from(end.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Event for NullEvent {
    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
