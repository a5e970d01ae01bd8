//! Recorded work.

use super::objects::{DeviceHandle, StreamHandle, not_null};
use crate::abi::*;
use crate::provider::Updated;
use crate::{Error, Result};
use std::sync::Arc;

/// Work that was recorded from a stream. May move between threads; used by one at a time.
pub struct GraphHandle {
    raw: *mut EpGraph,
    table: GraphInterface,
    device: Arc<DeviceHandle>,
}

// SAFETY: a graph may be used by any thread, one at a time; `GraphHandle` is not `Sync`.
unsafe impl Send for GraphHandle {}

impl Drop for GraphHandle {
    fn drop(&mut self) {
        // SAFETY: made by `end`, destroyed once.
        unsafe { (self.table.destroy)(self.raw) }
    }
}

impl std::fmt::Debug for GraphHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GraphHandle({:p} of {:?})", self.raw, self.device)
    }
}

impl StreamHandle {
    fn graphs(&self) -> Result<GraphInterface> {
        self.device().graphs().ok_or_else(|| Error::unsupported("this device offers no ep.graph"))
    }

    /// Records what is queued from now on, in place of doing it.
    ///
    /// # Errors
    /// `Unsupported` where the device cannot; `InvalidArgument` on a stream that records already.
    pub fn begin_recording(&self) -> Result<()> {
        // SAFETY: a live stream, used by this thread only.
        unsafe { take((self.graphs()?.begin)(self.raw())) }
    }

    /// Ends the recording, also where it fails.
    ///
    /// # Errors
    /// `Unsupported` where the device cannot; `InvalidArgument` on a stream that does not record, or whose recording
    /// was spoilt.
    pub fn end_recording(&self) -> Result<GraphHandle> {
        let table = self.graphs()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live stream, used by this thread only; a valid out-pointer.
        unsafe { take((table.end)(self.raw(), &mut raw)) }?;
        Ok(GraphHandle { raw: not_null(raw, "graph")?, table, device: self.device().clone() })
    }
}

impl GraphHandle {
    /// Its device.
    pub fn device(&self) -> &Arc<DeviceHandle> {
        &self.device
    }

    /// Queues all of it.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another device, or one that records; else the provider's.
    ///
    /// # Safety
    /// The memory that was recorded is valid until this work is done, under the rules of the launches and copies that
    /// were recorded. Earlier launches of this graph come before it.
    pub unsafe fn launch(&mut self, stream: &StreamHandle) -> Result<()> {
        self.device.own(stream.device(), "stream")?;
        // SAFETY: a live graph and stream, used by this thread only; memory as the caller promises.
        unsafe { take((self.table.launch)(self.raw, stream.raw())) }
    }

    /// Ends the recording of a stream, and launches that from now on. Where the provider cannot put it in place, a new
    /// graph takes it.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another device, which goes on recording; else those of
    /// [`StreamHandle::end_recording`]. The graph is as it was then.
    pub fn update(&mut self, stream: &StreamHandle) -> Result<Updated> {
        self.device.own(stream.device(), "stream")?;
        if !self.table.has_update {
            *self = stream.end_recording()?;
            return Ok(Updated::Rebuilt);
        }
        let mut rebuilt = 0;
        // SAFETY: a live graph and stream, used by this thread only; a valid out-pointer.
        unsafe { take((self.table.update)(self.raw, stream.raw(), &mut rebuilt)) }?;
        Ok(if rebuilt == 0 { Updated::InPlace } else { Updated::Rebuilt })
    }
}
