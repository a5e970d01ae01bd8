//! A kernel that a library launched, to be launched again without the library.
//!
//! What a library decides anew at each call is the same for the same operands: which kernel, in which shape, with which
//! arguments. A capture tells all of it, and promises that it can be replayed. Where it is one kernel, its node is all
//! that a launch takes, for the host's time of a plain launch: no graph has to be instantiated, and the stream is any.

use crate::context::Context;
use crate::driver::{
    CuFunction, CuGraph, CuGraphNode, CuStream, Failed, KernelNodeParams, LaunchAttribute, LaunchConfig,
    constant,
};
use ep_core::Result;
use std::sync::Arc;

/// One launch, with its arguments.
pub(crate) struct Relaunch {
    context: Arc<Context>,
    node: Node,
    attributes: Vec<LaunchAttribute>,
}

/// The node of a recorded kernel.
struct Node {
    /// Keeps the memory of the arguments, to which `params` points; not touched before it is destroyed.
    graph: CuGraph,
    params: KernelNodeParams,
}

// SAFETY: a graph belongs to no thread, and what the pointers name is plain memory.
unsafe impl Send for Node {}
// SAFETY: the driver does not synchronise graphs, but of this one it is asked nothing any more: launches read the memory of
// its arguments, which nobody writes.
unsafe impl Sync for Node {}

/// Attributes that decide how a kernel runs, which each launch says. The others are the stream's own to say (access policy,
/// priority), hints, or leave of newer drivers to be larger than is usual, without which the launch fails.
const ATTRIBUTES: [i32; 3] = [
    constant::LAUNCH_ATTRIBUTE_COOPERATIVE,
    constant::LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    constant::LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
];

impl Relaunch {
    /// What `queue` queues on the stream that it is given, which does not run; none where that is not just one kernel.
    ///
    /// # Errors
    /// Those of `queue`, and the driver's.
    pub(crate) fn of(
        context: &Arc<Context>,
        queue: impl FnOnce(CuStream) -> Result<()>,
    ) -> Result<Option<Relaunch>> {
        let _current = context.enter()?;
        // Whatever this thread or another one captures meanwhile is not spoiled.
        let _relaxed = Relaxed::new(context)?;
        let stream = Stream::new(context)?;
        let driver = context.driver();
        // SAFETY: a live stream.
        unsafe { driver.cuStreamBeginCapture(stream.raw, constant::STREAM_CAPTURE_MODE_RELAXED) }
            .map_err(|e| context.error(e))?;
        let queued = queue(stream.raw);
        let mut graph = CuGraph::NULL;
        // SAFETY: a live stream, which captures, and a valid out-pointer.
        let ended = unsafe { driver.cuStreamEndCapture(stream.raw, &mut graph) };
        // Owned from here on, also where one of them failed.
        let node = Node { graph, params: KernelNodeParams::default() };
        let mut relaunch = Relaunch { context: context.clone(), node, attributes: Vec::new() };
        queued?;
        ended.map_err(|e| context.error(e))?;
        Ok(if relaunch.read().map_err(|e| context.error(e))? { Some(relaunch) } else { None })
    }

    /// Reads the kernel out of the graph. Whether there is just that.
    fn read(&mut self) -> std::result::Result<bool, Failed> {
        let driver = self.context.driver();
        // Room for one more than is wanted, by which the others are noticed.
        let (mut nodes, mut count) = ([CuGraphNode::NULL; 2], 2);
        // SAFETY: a live graph, and room for as many nodes as is said.
        unsafe { driver.cuGraphGetNodes(self.node.graph, nodes.as_mut_ptr(), &mut count) }?;
        if count != 1 {
            return Ok(false);
        }
        let [node, _] = nodes;
        let mut kind = -1;
        // SAFETY: a live node, and a valid out-pointer.
        unsafe { driver.cuGraphNodeGetType(node, &mut kind) }?;
        if kind != constant::GRAPH_NODE_TYPE_KERNEL {
            return Ok(false);
        }
        let params = &mut self.node.params;
        // SAFETY: as above; a node of a kernel.
        unsafe { driver.cuGraphKernelNodeGetParams(node, params) }?;
        let attribute = |id| {
            let mut value = [0; 8];
            // SAFETY: as above; a value is of at most so many bytes.
            unsafe { driver.cuGraphKernelNodeGetAttribute(node, id, &mut value) }?;
            Ok(LaunchAttribute { id, padding: 0, value })
        };
        // All of them begin with 32 bits, which are 0 where a launch says nothing.
        let is_set = |attribute: &LaunchAttribute| attribute.value[0] as u32 != 0;
        let [cooperative, cluster, policy] = ATTRIBUTES.map(attribute);
        let (cooperative, cluster, policy) = (cooperative?, cluster?, policy?);
        let of_clusters = [cluster, policy].into_iter().filter(|_| is_set(&cluster));
        self.attributes = [cooperative].into_iter().chain(of_clusters).filter(is_set).collect();
        Ok(params.function != CuFunction::NULL || params.kernel != CuFunction::NULL)
    }

    /// Launches it. The context is current.
    ///
    /// # Safety
    /// What it reads and writes is valid as it was for the call that was recorded, until the work is done; the stream is
    /// one of its context.
    pub(crate) unsafe fn launch(&self, stream: CuStream) -> std::result::Result<(), Failed> {
        let KernelNodeParams { function, kernel, grid, block, shared_bytes, params, extra, .. } =
            self.node.params;
        let config = LaunchConfig {
            grid,
            block,
            shared_bytes,
            stream,
            attributes: self.attributes.as_ptr(),
            num_attributes: self.attributes.len() as u32,
        };
        let function = if function == CuFunction::NULL { kernel } else { function };
        // SAFETY: a kernel with its own arguments, which the graph keeps; its memory is valid as the caller promises.
        unsafe { self.context.driver().cuLaunchKernelEx(&config, function, params, extra) }
    }
}

impl Drop for Relaunch {
    fn drop(&mut self) {
        if self.node.graph == CuGraph::NULL {
            return;
        }
        self.context.close("destroying a recorded launch", |context| {
            // SAFETY: of the capture in `of`, destroyed once. Launches have copied their arguments; what else a graph may
            // keep (objects of its maker), libraries do not give it.
            let destroyed = unsafe { context.driver().cuGraphDestroy(self.node.graph) };
            context.log("destroying a recorded launch", destroyed);
        });
    }
}

/// As long as it is there, calls of this thread that a capture elsewhere does not allow spoil none.
struct Relaxed<'a> {
    context: &'a Context,
    before: i32,
}

impl Relaxed<'_> {
    fn new(context: &Context) -> Result<Relaxed<'_>> {
        let mut before = constant::STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a mode, in whose place this thread's own is put.
        unsafe { context.driver().cuThreadExchangeStreamCaptureMode(&mut before) }
            .map_err(|e| context.error(e))?;
        Ok(Relaxed { context, before })
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        let mut mode = self.before;
        // SAFETY: the mode that this thread had.
        let restored = unsafe { self.context.driver().cuThreadExchangeStreamCaptureMode(&mut mode) };
        self.context.log("restoring a thread's mode of captures", restored);
    }
}

/// A stream for a capture. Its context is current as long as it is there.
struct Stream<'a> {
    context: &'a Context,
    raw: CuStream,
}

impl Stream<'_> {
    fn new(context: &Context) -> Result<Stream<'_>> {
        let mut raw = CuStream::NULL;
        // SAFETY: a valid out-pointer; the context is current.
        unsafe { context.driver().cuStreamCreateWithPriority(&mut raw, constant::STREAM_NON_BLOCKING, 0) }
            .map_err(|e| context.error(e))?;
        Ok(Stream { context, raw })
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        self.context.log("destroying a stream", unsafe { self.context.driver().cuStreamDestroy(self.raw) });
    }
}
