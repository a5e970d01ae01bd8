//! The functions of `ep.graph`, and what a stream refuses while it records.

use super::super::{Graph, Graphs, Provider, Updated};
use super::{DeviceOf, StreamOf, drop_object, entry, give, give_object, object};
use crate::abi::*;
use crate::provider::Device;
use crate::{Error, Result};
use std::cell::Cell;

/// A stream, and whether it records.
pub(super) struct StreamBox<P: Provider> {
    pub(super) stream: StreamOf<P>,
    recording: Cell<bool>,
}

impl<P: Provider> StreamBox<P> {
    pub(super) fn new(stream: StreamOf<P>) -> StreamBox<P> {
        StreamBox { stream, recording: Cell::new(false) }
    }

    /// The stream, for what is illegal while it records.
    pub(super) fn idle(&self, what: &str) -> Result<&StreamOf<P>> {
        if self.recording.get() {
            return Err(Error::invalid(format!(
                "{what} is not possible on a stream that records a graph; end the recording first"
            )));
        }
        Ok(&self.stream)
    }

    /// What ends the recording that is going on: whatever comes of it, nothing is recorded afterwards.
    fn ending(&self) -> Result<&StreamOf<P>> {
        if !self.recording.replace(false) {
            return Err(Error::invalid("the stream records no graph; begin a recording first"));
        }
        Ok(&self.stream)
    }
}

impl<P: Provider> Drop for StreamBox<P> {
    fn drop(&mut self) {
        if !self.recording.get() {
            return;
        }
        let ended = graphs::<P>().and_then(|graphs| (graphs.end)(&self.stream));
        if let Err(e) = ended {
            tracing::warn!("a recording that its stream's end threw away: {e}");
        }
    }
}

/// # Safety
/// `stream` is null or a live stream of `P`.
#[inline]
pub(super) unsafe fn stream_of<'a, P: Provider>(stream: *mut EpStream) -> Result<&'a StreamBox<P>> {
    // SAFETY: as the caller promises.
    unsafe { object(stream) }
}

type GraphBox<P> = Box<dyn Graph<StreamOf<P>>>;

fn graphs<P: Provider>() -> Result<&'static Graphs<DeviceOf<P>>> {
    const { <DeviceOf<P> as Device>::GRAPHS.as_ref() }
        .ok_or_else(|| Error::unsupported("this device records no graphs"))
}

pub(super) struct GraphTable<P>(std::marker::PhantomData<P>);

impl<P: Provider> GraphTable<P> {
    pub(super) const TABLE: &'static EpGraphInterface = &EpGraphInterface {
        info: &EPGRAPHINTERFACE_INFO,
        begin: Some(begin::<P>),
        end: Some(end::<P>),
        launch: Some(launch::<P>),
        update: Some(update::<P>),
        destroy: Some(destroy::<P>),
        ..EpGraphInterface::EMPTY
    };
}

unsafe extern "C" fn begin<P: Provider>(stream: *mut EpStream) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live stream of ours.
        let boxed = unsafe { stream_of::<P>(stream)? };
        (graphs::<P>()?.begin)(boxed.idle("beginning another recording")?)?;
        boxed.recording.set(true);
        Ok(())
    })
}

unsafe extern "C" fn end<P: Provider>(stream: *mut EpStream, out: *mut *mut EpGraph) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live stream of ours.
        let graph: GraphBox<P> = (graphs::<P>()?.end)(unsafe { stream_of::<P>(stream)? }.ending()?)?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give_object(out, graph) }
    })
}

/// # Safety
/// `graph` is null or a live graph of `P`, which only this thread uses.
unsafe fn graph_of<'a, P: Provider>(graph: *mut EpGraph) -> Result<&'a mut GraphBox<P>> {
    // SAFETY: as the caller promises.
    unsafe { graph.cast::<GraphBox<P>>().as_mut() }.ok_or_else(super::null_object)
}

unsafe extern "C" fn launch<P: Provider>(graph: *mut EpGraph, stream: *mut EpStream) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: live objects of ours that one thread uses; the memory is valid as the host promises.
        unsafe {
            let (graph, stream) = (graph_of::<P>(graph)?, stream_of::<P>(stream)?);
            graph.launch(stream.idle("the launch of a graph")?)
        }
    })
}

unsafe extern "C" fn update<P: Provider>(
    graph: *mut EpGraph,
    stream: *mut EpStream,
    rebuilt: *mut u32,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: live objects of ours that one thread uses; the out-pointer is the host's.
        unsafe {
            let (graph, stream) = (graph_of::<P>(graph)?, stream_of::<P>(stream)?);
            let updated = graph.update(stream.ending()?)?;
            give(rebuilt, (updated == Updated::Rebuilt).into())
        }
    })
}

unsafe extern "C" fn destroy<P: Provider>(graph: *mut EpGraph) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, GraphBox<P>, _>(graph) }
}
