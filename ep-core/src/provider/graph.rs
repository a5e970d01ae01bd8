//! Recorded work.

use super::Device;
use crate::Result;

/// Recording work of streams, of devices that can.
///
/// The SDK refuses what is illegal on a stream that records before it reaches the stream: [`sync`], [`query`],
/// [`record`], [`wait`], memory in the stream's order, and launches of graphs. What is left to the device are copies
/// and launches. A stream that is dropped while it records is given an `end` before.
///
/// [`sync`]: super::Stream::sync
/// [`query`]: super::Stream::query
/// [`record`]: super::Stream::record
/// [`wait`]: super::Stream::wait
pub struct Graphs<D: Device> {
    /// From now on the stream, which does not record, records what is queued and does none of it.
    pub begin: fn(&D::Stream) -> Result<()>,
    /// Ends the recording, also where it fails. The graph does not depend on the stream.
    pub end: EndRecording<D>,
}

/// Makes a graph of what a stream has recorded.
pub type EndRecording<D> = fn(&<D as Device>::Stream) -> Result<Box<dyn Graph<<D as Device>::Stream>>>;

/// How a graph took new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updated {
    /// It took the new work as it is.
    InPlace,
    /// It had to be made anew, as the work has another form.
    Rebuilt,
}

/// Recorded work, to be launched as a whole. Dropping lets launches that were queued be done.
pub trait Graph<S>: Send + 'static {
    /// Queues all of it, in its order, behind the stream's work.
    ///
    /// # Safety
    /// The memory that was recorded is valid until this work is done, under the rules of the launches and copies that
    /// were recorded. Earlier launches of this graph come before it.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another device; `DeviceLost`.
    unsafe fn launch(&mut self, stream: &S) -> Result<()>;

    /// Ends the recording of a stream, and launches that from now on. Launches that were queued before are not
    /// concerned.
    ///
    /// # Errors
    /// Those of [`Graphs::end`]; the recording has ended then, and the graph is as it was.
    fn update(&mut self, stream: &S) -> Result<Updated>;
}
