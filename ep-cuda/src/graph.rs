//! Graphs: work that is recorded once and replayed in one call, for `ep.graph` and for programs that use this crate.

use crate::context::Context;
use crate::device::CudaDevice;
use crate::driver::{CuGraph, CuGraphExec, CuResult, UpdateResult, constant};
use crate::refusal::Recorded;
use crate::stream::CudaStream;
use ep_core::provider::{self, Graphs, Updated};
use ep_core::{Error, Result};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

/// The functions behind `ep.graph`.
pub(crate) const GRAPHS: Graphs<CudaDevice> = Graphs {
    begin: CudaStream::begin_capture,
    end: |stream| Ok(Box::new(stream.end_capture()?.instantiate()?)),
};

impl CudaStream {
    /// Records what is queued from now on, in place of doing it.
    ///
    /// # Errors
    /// `InvalidArgument` on a stream that records already, and on the legacy default stream.
    pub fn begin_capture(&self) -> Result<()> {
        let context = self.context();
        let _current = context.enter()?;
        // Relaxed: kernels that are first used now are loaded, and other streams' buffers allocated.
        // SAFETY: a live stream.
        unsafe { context.driver().cuStreamBeginCapture(self.raw(), constant::STREAM_CAPTURE_MODE_RELAXED) }
            .map_err(|e| context.error(e).context("beginning a capture"))?;
        self.start_recording();
        Ok(())
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// `InvalidArgument` on a stream that does not record, and where a call has spoiled the recording.
    pub fn end_capture(&self) -> Result<Graph> {
        let context = self.context();
        let _current = context.enter()?;
        let (recorded, mut raw) = (self.stop_recording(), CuGraph::NULL);
        // SAFETY: a live stream and a valid out-pointer.
        unsafe { context.driver().cuStreamEndCapture(self.raw(), &mut raw) }
            .map_err(|e| context.error(e).context("ending a capture"))?;
        Ok(Graph { context: context.clone(), raw, recorded, one_thread: PhantomData })
    }
}

/// Makes a type one that several threads cannot use at a time: the driver does not synchronise the objects of graphs,
/// not even while it only reads them.
type OneThread = PhantomData<Cell<()>>;

/// Recorded work. Any thread, but one at a time.
pub struct Graph {
    context: Arc<Context>,
    raw: CuGraph,
    recorded: Arc<Recorded>,
    one_thread: OneThread,
}

/// Recorded work, ready to be replayed. Any thread, but one at a time.
pub struct GraphExec {
    context: Arc<Context>,
    raw: CuGraphExec,
    /// Of the latest work that it was given.
    recorded: RefCell<Arc<Recorded>>,
    one_thread: OneThread,
}

/// What became of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// It replays the new work from now on.
    Done,
    /// The shape of the work differs (`CUgraphExecUpdateResult`): instantiate the new graph in its place.
    Refused(i32),
}

impl Graph {
    /// Makes it ready.
    ///
    /// # Errors
    /// The driver's.
    pub fn instantiate(&self) -> Result<GraphExec> {
        let _current = self.context.enter()?;
        let mut raw = CuGraphExec::NULL;
        // SAFETY: a live graph and a valid out-pointer.
        unsafe { self.context.driver().cuGraphInstantiateWithFlags(&mut raw, self.raw, 0) }
            .map_err(|e| self.context.error(e).context("instantiating a graph"))?;
        let recorded = RefCell::new(self.recorded.clone());
        Ok(GraphExec { context: self.context.clone(), raw, recorded, one_thread: PhantomData })
    }
}

impl GraphExec {
    /// Queues everything that was recorded.
    ///
    /// # Safety
    /// The memory that the recorded work uses is valid until this replay is done, under the rules of the launches
    /// and copies that were recorded. The stream is of the same device.
    ///
    /// # Errors
    /// The driver's; `InvalidArgument` for a stream of another device.
    pub unsafe fn launch(&self, stream: &CudaStream) -> Result<()> {
        self.same_device(stream.context())?;
        stream.replays(&self.recorded.borrow());
        // SAFETY: a live graph and stream; the memory is valid as the caller promises.
        stream.queue("graph", |c| unsafe { c.driver().cuGraphLaunch(self.raw, stream.raw()) })
    }

    fn same_device(&self, other: &Arc<Context>) -> Result<()> {
        if Arc::ptr_eq(&self.context, other) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a graph of device {} and a stream of device {}; record it there",
            self.context.device(),
            other.device()
        )))
    }

    /// Puts other work of the same shape, with other addresses and sizes say, in place of what it replays.
    ///
    /// # Errors
    /// The driver's; a difference in shape is no error but [`Update::Refused`].
    pub fn update(&self, graph: &Graph) -> Result<Update> {
        let _current = self.context.enter()?;
        let mut info = UpdateResult { result: 0, node: 0, from: 0 };
        // SAFETY: live objects and a valid out-pointer.
        match unsafe { self.context.driver().cuGraphExecUpdate(self.raw, graph.raw, &mut info) } {
            Ok(()) => {
                self.recorded.replace(graph.recorded.clone());
                Ok(Update::Done)
            }
            Err(e) if e.result == CuResult::GRAPH_EXEC_UPDATE_FAILURE => Ok(Update::Refused(info.result)),
            Err(e) => Err(self.context.error(e).context("updating a graph")),
        }
    }
}

impl provider::Graph<CudaStream> for GraphExec {
    unsafe fn launch(&mut self, stream: &CudaStream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { GraphExec::launch(self, stream) }
    }

    fn update(&mut self, stream: &CudaStream) -> Result<Updated> {
        let recorded = stream.end_capture()?;
        self.same_device(&recorded.context)?;
        match GraphExec::update(self, &recorded)? {
            Update::Done => Ok(Updated::InPlace),
            Update::Refused(_) => {
                *self = recorded.instantiate()?;
                Ok(Updated::Rebuilt)
            }
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `end_capture`, destroyed once.
        self.context.log("destroying a graph", unsafe { self.context.driver().cuGraphDestroy(self.raw) });
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: made by `instantiate`, destroyed once. Replays that are under way go on, and the driver frees it
        // behind them.
        self.context.log("destroying a graph", unsafe { self.context.driver().cuGraphExecDestroy(self.raw) });
    }
}

/// Graphs move between threads and are not shared: none of this compiles for a type that does not, or that is.
const _: () = {
    /// Implemented twice for what is `Sync`, and then the compiler does not know which one is meant.
    trait NotSync<A> {
        const CHECKED: () = ();
    }

    struct Shared;

    impl<T> NotSync<()> for T {}
    impl<T: Sync> NotSync<Shared> for T {}

    const fn moves<T: Send>() {}

    moves::<Graph>();
    moves::<GraphExec>();
    let () = <Graph as NotSync<_>>::CHECKED;
    let () = <GraphExec as NotSync<_>>::CHECKED;
};
