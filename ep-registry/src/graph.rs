//! Graphs: work that is recorded once and launched as a whole.

use crate::device::Device;
use crate::shared::{Gates, Met, Shared, Users};
use crate::stream::{Stream, StreamCore};
use ep_core::handle::GraphHandle;
pub use ep_core::provider::Updated;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Recorded work of one provider on one device, made by [`Stream::capture`].
///
/// A graph keeps the memory of the buffers that it uses, also when the buffers themselves are dropped. Its launches are
/// ordered behind other work on these buffers, and other work behind them, as launches of primitives are.
pub struct Graph {
    device: Device,
    member: usize,
    /// The launches of the graph itself, which come one behind another.
    launches: Users,
    recorded: Mutex<Recorded>,
}

struct Recorded {
    handle: GraphHandle,
    uses: Uses,
}

/// The buffers that recorded work uses, by the addresses of what they share.
pub(crate) type Uses = BTreeMap<usize, Use>;

/// What recorded work does with a buffer.
pub(crate) struct Use {
    shared: Arc<Shared>,
    write: bool,
    /// Bytes from the start that are written once the work is queued.
    written: u64,
}

/// A buffer of a launch or a copy that is recorded.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    /// The offset and the bytes that are written for certain; `None`: it is only read.
    pub(crate) written: Option<(u64, u64)>,
}

/// A recording that is going on.
pub(crate) struct Recording {
    /// Its number among those of the stream.
    pub(crate) number: u64,
    /// The member of the device whose work is recorded.
    pub(crate) member: usize,
    uses: Uses,
}

impl Recording {
    pub(crate) fn new(number: u64, member: usize) -> Recording {
        Recording { number, member, uses: Uses::new() }
    }

    /// Notes that recorded work uses a buffer.
    pub(crate) fn note_use(&mut self, access: Access<'_>) {
        let shared = access.shared;
        let fresh = || {
            shared.set_recorded();
            Use { shared: shared.clone(), write: false, written: shared.written() }
        };
        let entry = self.uses.entry(Arc::as_ptr(shared).addr()).or_insert_with(fresh);
        entry.write |= access.written.is_some();
    }

    /// Notes what recorded work writes to a buffer whose use has been noted.
    pub(crate) fn note_written(&mut self, access: Access<'_>) {
        let entry = self.uses.get_mut(&Arc::as_ptr(access.shared).addr());
        if let (Some(entry), Some((offset, bytes))) = (entry, access.written)
            && offset <= entry.written
        {
            entry.written = entry.written.max(offset + bytes);
        }
    }

    /// Whether so many bytes of a buffer have been written when a launch comes to the end of the recording.
    pub(crate) fn has_written(&self, shared: &Arc<Shared>, end: u64) -> bool {
        self.uses.get(&Arc::as_ptr(shared).addr()).is_some_and(|u| end <= u.written)
    }

    pub(crate) fn into_uses(self) -> Uses {
        self.uses
    }
}

/// Ends a recording whose closure failed or panicked.
struct Unfinished<'a>(&'a StreamCore);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.0.end_recording(|lane| lane.end_recording()) {
            tracing::debug!("{}: a recording that is thrown away: {e}", self.0.device.name());
        }
    }
}

/// Records what `work` queues.
fn record(stream: &Stream, member: usize, work: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
    stream.core.begin_recording(member)?;
    let unfinished = Unfinished(&stream.core);
    work(stream)?;
    std::mem::forget(unfinished);
    Ok(())
}

impl Stream {
    /// Records what `work` queues on this stream, in place of doing it, once all earlier work of the stream is done.
    ///
    /// Launches of primitives that are [`capturable`](crate::Primitive::capturable) and copies between buffers can be
    /// recorded, of one provider of the device: the first that offers graphs. What they write counts as written within the
    /// recording, and outside of it from the first launch of the graph on. Meanwhile the stream refuses everything else:
    /// waiting, asking, events, uploads, launches of graphs. Other streams, allocations and blocking uploads and downloads
    /// go on as always. A recording ends with the closure, also when that fails, and what was recorded is dropped then.
    ///
    /// # Errors
    /// `Unsupported` where no provider of the device offers graphs; `InvalidArgument` on a stream that records
    /// already; an error of earlier work; that of `work`; else the provider's.
    pub fn capture(&self, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        let device = self.device();
        let member = device.members().iter().position(|m| m.handle().has_graphs()).ok_or_else(|| {
            Error::unsupported(format!(
                "{} records no graphs: none of its providers offers ep.graph; launch directly",
                device.name()
            ))
        })?;
        record(self, member, work)?;
        let (handle, uses) = self.core.end_recording(|lane| lane.end_recording())?;
        Ok(Graph {
            device: device.clone(),
            member,
            launches: Users::default(),
            recorded: Mutex::new(Recorded { handle, uses }),
        })
    }
}

impl Graph {
    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn check_stream(&self, stream: &Stream) -> Result<()> {
        if *stream.device() == self.device {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a graph of {} on a stream of {}; record it there",
            self.device.name(),
            stream.device().name()
        )))
    }

    /// Queues all that was recorded, behind the work of this stream, the work that other streams still do on the buffers
    /// that it uses, and earlier launches of this graph.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another device or one that records, and while the host has a buffer mapped
    /// that the graph uses; else the provider's.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.check_stream(stream)?;
        stream.core.tidy(self.member)?;
        let mut met = Met::default();
        let mut recorded = self.recorded.lock();
        let Recorded { handle, uses } = &mut *recorded;
        let core = &stream.core;
        let own = (!core.is_inline(self.member)).then_some(core);
        let _gates = Gates::enter_sorted(uses.values().map(|u| (&*u.shared, u.write)))?;
        let buffers = uses.values().map(|u| (&u.shared.users, u.write));
        let all = || buffers.clone().chain(std::iter::once((&self.launches, true)));
        for (users, write) in all() {
            for other in users.before(own, write, &mut met) {
                core.order_behind(self.member, other)?;
            }
        }
        core.on_lane_locked(self.member, |lane| {
            if own.is_some() {
                all().for_each(|(users, write)| users.note(core, write, &mut met));
            }
            // SAFETY: the buffers that were recorded are kept by `uses` and, once the work is queued, by having been noted
            // in them; conflicting work and earlier launches come before, and the gates keep later work behind. For
            // addresses that raw launches recorded, their caller has promised it.
            unsafe { handle.launch(lane) }
        })?;
        for u in uses.values().filter(|u| u.write) {
            u.shared.mark_written(0, u.written);
        }
        Ok(())
    }

    /// Records anew, as [`Stream::capture`] does, and launches that from now on. Where the provider has to build the
    /// graph anew, it does so by itself: [`Updated::Rebuilt`] tells that this took as long as a new graph does.
    ///
    /// # Errors
    /// Those of [`Stream::capture`], and `InvalidArgument` for a stream of another device. The graph is as it was then.
    pub fn update(&mut self, stream: &Stream, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Updated> {
        self.check_stream(stream)?;
        record(stream, self.member, work)?;
        let recorded = self.recorded.get_mut();
        let (updated, uses) = stream.core.end_recording(|lane| recorded.handle.update(lane))?;
        recorded.uses = uses;
        Ok(updated)
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} buffers on {})", self.recorded.lock().uses.len(), self.device.name())
    }
}
