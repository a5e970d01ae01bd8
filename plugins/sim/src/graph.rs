//! Graphs: what a stream recorded, queued again with each launch.

use crate::SimStream;
use crate::memory::Recorded;
use crate::stream::Run;
use ep_core::provider::{Graph, Updated};
use ep_core::{Error, Result};
use std::sync::Arc;

/// A launch or a copy that was recorded.
pub(crate) struct Step {
    /// `None`: a copy.
    pub(crate) op: Option<&'static str>,
    /// The memory that it uses.
    pub(crate) ranges: Vec<Recorded>,
    pub(crate) run: Arc<Run>,
}

/// Recorded work of a device.
pub(crate) struct SimGraph {
    device: u16,
    steps: Vec<Step>,
}

impl SimGraph {
    pub(crate) fn new(device: u16, steps: Vec<Step>) -> SimGraph {
        SimGraph { device, steps }
    }
}

impl Graph<SimStream> for SimGraph {
    unsafe fn launch(&mut self, stream: &SimStream) -> Result<()> {
        stream.replay(self.device, &self.steps)
    }

    /// In place where the same ops come in the same order, as on hardware.
    fn update(&mut self, stream: &SimStream) -> Result<Updated> {
        let new = stream.end_recording()?;
        if new.device != self.device {
            return Err(Error::invalid(format!(
                "a graph of device {} cannot take work of device {}; make a new one",
                self.device, new.device
            )));
        }
        let alike = new.steps.iter().map(|s| s.op).eq(self.steps.iter().map(|s| s.op));
        *self = new;
        Ok(if alike { Updated::InPlace } else { Updated::Rebuilt })
    }
}
