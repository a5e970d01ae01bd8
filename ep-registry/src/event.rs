//! Events: points in a stream's work.

use crate::stream::Stream;
use ep_core::handle::EventHandle;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// A point in a stream's work: refers to the latest [`Stream::record`] and counts as done before the first.
///
/// Buffers are ordered between streams without events; these are for the host and for timing.
#[derive(Clone, Debug, Default)]
pub struct Event {
    /// `None`: never recorded, or recorded where nothing is asynchronous.
    latest: Arc<Mutex<Option<Arc<EventHandle>>>>,
}

impl Event {
    /// An event that was never recorded.
    pub fn new() -> Event {
        Event::default()
    }

    fn handle(&self) -> Option<Arc<EventHandle>> {
        self.latest.lock().clone()
    }

    /// Whether the work before the latest record is done.
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Result<bool> {
        self.handle().map_or(Ok(true), |h| h.query())
    }

    /// Blocks until then.
    ///
    /// # Errors
    /// The provider's.
    pub fn sync(&self) -> Result<()> {
        self.handle().map_or(Ok(()), |h| h.sync())
    }

    /// Nanoseconds from `self` to `end`, once both are done.
    ///
    /// # Errors
    /// `Unsupported` where the device cannot tell or does its work inline; `InvalidArgument` for events of
    /// different providers.
    pub fn elapsed_ns(&self, end: &Event) -> Result<u64> {
        let (Some(a), Some(b)) = (self.handle(), end.handle()) else {
            return Err(Error::unsupported("an event was not recorded, or on a stream whose work is inline"));
        };
        if !Arc::ptr_eq(a.device().provider(), b.device().provider()) {
            return Err(Error::invalid("the events are of different providers"));
        }
        a.sync()?;
        b.sync()?;
        a.device().elapsed(&a, &b)
    }
}

impl Stream {
    /// Puts the event behind all work queued so far.
    ///
    /// # Errors
    /// The provider's. `InvalidArgument` while the stream records a graph.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.core.check_idle()?;
        let handle = self.core.record_now()?.map(Arc::new);
        // Bound, so that it is dropped after the lock is released: that runs the provider's code.
        let _old = std::mem::replace(&mut *event.latest.lock(), handle);
        Ok(())
    }

    /// Makes later work of this stream wait for the event's latest record. Waits here where the two providers
    /// cannot do it between them.
    ///
    /// # Errors
    /// The provider's. `InvalidArgument` while the stream records a graph.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.core.check_idle()?;
        event.handle().map_or(Ok(()), |h| self.core.wait_for(0, &h))
    }
}
