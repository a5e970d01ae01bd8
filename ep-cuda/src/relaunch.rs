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
    /// Keeps the node, whose memory `params` names.
    graph: CuGraph,
    params: KernelNodeParams,
    attributes: Vec<LaunchAttribute>,
}

// SAFETY: the graph belongs to no thread, and is not touched again until it is destroyed; what `params` names is plain
// memory that nobody writes.
unsafe impl Send for Relaunch {}
// SAFETY: as above: launches only read it.
unsafe impl Sync for Relaunch {}

/// The attributes that decide how a kernel of a graph runs. The others tell how it is ordered with its neighbours, which
/// is the launch's own to say, or are defaults in what libraries capture.
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
        let stream = Stream::new(context)?;
        let driver = context.driver();
        // SAFETY: a live stream. Relaxed: what this and other threads call meanwhile is not restricted.
        unsafe { driver.cuStreamBeginCapture(stream.raw, constant::STREAM_CAPTURE_MODE_RELAXED) }
            .map_err(|e| context.error(e))?;
        let queued = queue(stream.raw);
        let mut graph = CuGraph::NULL;
        // SAFETY: a live stream, which captures, and a valid out-pointer.
        let ended = unsafe { driver.cuStreamEndCapture(stream.raw, &mut graph) };
        // Owned from here on, also where one of them failed.
        let mut relaunch = Relaunch {
            context: context.clone(),
            graph,
            params: KernelNodeParams::default(),
            attributes: Vec::new(),
        };
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
        unsafe { driver.cuGraphGetNodes(self.graph, nodes.as_mut_ptr(), &mut count) }?;
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
        // SAFETY: as above; a node of a kernel.
        unsafe { driver.cuGraphKernelNodeGetParams(node, &mut self.params) }?;
        for id in ATTRIBUTES {
            let mut value = [0; 8];
            // SAFETY: as above; a value is of at most so many bytes.
            unsafe { driver.cuGraphKernelNodeGetAttribute(node, id, &mut value) }?;
            self.attributes.push(LaunchAttribute { id, padding: 0, value });
        }
        let clusters = self
            .attributes
            .iter()
            .any(|a| a.id == constant::LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && a.value[0] != 0);
        // Zeros are what a launch without the attribute has, and so is any policy for clusters that there are not.
        self.attributes.retain(|a| {
            a.value[0] != 0
                && (clusters || a.id != constant::LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
        });
        Ok(true)
    }

    /// Launches it. The context is current.
    ///
    /// # Safety
    /// What it reads and writes is valid as it was for the call that was recorded, until the work is done; the stream is
    /// one of its context.
    pub(crate) unsafe fn launch(&self, stream: CuStream) -> std::result::Result<(), Failed> {
        let KernelNodeParams { function, kernel, grid, block, shared_bytes, params, extra, .. } = self.params;
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
        if self.graph == CuGraph::NULL {
            return;
        }
        self.context.close("destroying a recorded launch", |context| {
            // SAFETY: of the capture in `of`, destroyed once. Launches have copied what they need of it.
            context
                .log("destroying a recorded launch", unsafe { context.driver().cuGraphDestroy(self.graph) });
        });
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
