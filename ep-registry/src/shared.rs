//! What a buffer shares with the graphs that use it.
//!
//! The borrow checker keeps conflicting accesses to a buffer apart while each is queued, so that hazards are all
//! found. A graph is launched without its buffers at hand. So a buffer that a graph uses has a gate, which accesses of
//! all kinds pass one at a time; other buffers never touch theirs.

use crate::memory::Memory;
use crate::stream::{Kept, StreamCore};
use ep_core::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory and what is known of its use.
pub(crate) struct Shared {
    // `None` only while dropping.
    memory: Option<Memory>,
    /// Bytes from the start that have been written.
    written: AtomicU64,
    pub(crate) users: Users,
    /// Whether a graph was ever recorded that uses it.
    recorded: AtomicBool,
    gate: Mutex<Accesses>,
}

/// Accesses of the host that are under way, where a graph uses the buffer.
#[derive(Default)]
struct Accesses {
    reads: usize,
    writes: usize,
}

/// The streams with work on a buffer.
#[derive(Default)]
pub(crate) struct Users {
    /// Whether the list was ever filled; inline work never does.
    any: AtomicBool,
    list: Mutex<UserList>,
}

#[derive(Default)]
struct UserList {
    writer: Option<User>,
    readers: Vec<User>,
}

#[derive(Clone)]
struct User {
    stream: Arc<StreamCore>,
    /// The number of the work on that stream.
    number: u64,
}

impl User {
    fn pending(&self) -> bool {
        !self.stream.has_completed(self.number)
    }

    fn is(&self, stream: &Arc<StreamCore>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }
}

/// Streams that were met while locks are held. Who lets go of a stream last closes it: that waits for its work and runs
/// deleters, which are foreign code. So this is declared before the locks and dropped after them.
#[derive(Default)]
pub(crate) struct Met(SmallVec<[Arc<StreamCore>; 4]>);

impl Users {
    /// Streams other than `stream` whose work must come before an access. `None` stands for the host and for
    /// inline lanes.
    pub(crate) fn before<'m>(
        &self,
        stream: Option<&Arc<StreamCore>>,
        write: bool,
        met: &'m mut Met,
    ) -> &'m [Arc<StreamCore>] {
        if !self.maybe_busy() {
            return &[];
        }
        let mut list = self.list.lock();
        let UserList { writer, readers } = &mut *list;
        let done =
            writer.take_if(|w| !w.pending()).into_iter().chain(readers.extract_if(.., |r| !r.pending()));
        met.0.extend(done.map(|u| u.stream));
        let begin = met.0.len();
        let others = |u: &&User| stream.is_none_or(|s| !u.is(s));
        met.0.extend(writer.iter().filter(others).map(|u| u.stream.clone()));
        if write {
            met.0.extend(readers.iter().filter(others).map(|u| u.stream.clone()));
        }
        &met.0[begin..]
    }

    /// Notes asynchronous work. Called with the stream's lock held, so that `number` is that of the work.
    pub(crate) fn note(&self, stream: &Arc<StreamCore>, write: bool, met: &mut Met) {
        self.any.store(true, Ordering::Release);
        let mut list = self.list.lock();
        let user = User { stream: stream.clone(), number: stream.submitted() };
        if write {
            let before = list.writer.replace(user);
            met.0.extend(list.readers.drain(..).chain(before).map(|u| u.stream));
        } else if let Some(mine) = list.readers.iter_mut().find(|r| r.is(stream)) {
            mine.number = user.number;
        } else {
            list.readers.push(user);
        }
    }

    /// Whether asynchronous work may be going on, or a graph begin some.
    #[inline]
    pub(crate) fn maybe_busy(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }
}

impl Shared {
    /// Memory of which so many bytes from the start have been written.
    pub(crate) fn new(memory: Memory, written: u64) -> Shared {
        Shared {
            memory: Some(memory),
            written: AtomicU64::new(written),
            users: Users::default(),
            recorded: AtomicBool::new(false),
            gate: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only taken while dropping")
    }

    #[inline]
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Notes that a range is now written. A range that leaves a gap before it does not count.
    #[inline]
    pub(crate) fn mark_written(&self, offset: u64, bytes: u64) {
        let written = self.written();
        // Most launches write what was written before, and a locked instruction costs as much as all other checks.
        if offset <= written && offset + bytes > written {
            self.written.fetch_max(offset + bytes, Ordering::AcqRel);
        }
    }

    /// Sends all accesses through the gate from now on.
    pub(crate) fn set_recorded(&self) {
        self.recorded.store(true, Ordering::Release);
        self.users.any.store(true, Ordering::Release);
    }

    /// Lets the host access the memory until the result is dropped, after the work of the streams that is returned.
    pub(crate) fn hold<'m>(self: &Arc<Self>, write: bool, met: &'m mut Met) -> (Hold, &'m [Arc<StreamCore>]) {
        if !self.recorded.load(Ordering::Acquire) {
            return (Hold { of: None, write }, self.users.before(None, write, met));
        }
        let mut accesses = self.gate.lock();
        *accesses.count(write) += 1;
        (Hold { of: Some(self.clone()), write }, self.users.before(None, write, met))
    }
}

impl Accesses {
    fn count(&mut self, write: bool) -> &mut usize {
        if write { &mut self.writes } else { &mut self.reads }
    }
}

/// An access of the host, until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    of: Option<Arc<Shared>>,
    write: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(shared) = &self.of {
            *shared.gate.lock().count(self.write) -= 1;
        }
    }
}

/// The gates of some buffers, passed together.
pub(crate) struct Gates<'a> {
    _guards: SmallVec<[MutexGuard<'a, Accesses>; 4]>,
}

impl<'a> Gates<'a> {
    /// Waits for those of the buffers that a graph uses.
    pub(crate) fn enter(all: impl Iterator<Item = &'a Shared>) -> Gates<'a> {
        let recorded = all.filter(|s| s.recorded.load(Ordering::Acquire));
        let mut recorded: SmallVec<[&Shared; 4]> = recorded.collect();
        // Everybody takes them in one order.
        recorded.sort_by_key(|s| std::ptr::from_ref(*s).addr());
        recorded.dedup_by(|a, b| std::ptr::eq(*a, *b));
        Gates { _guards: recorded.iter().map(|s| s.gate.lock()).collect() }
    }

    /// Those of buffers that a graph uses, given in the order of their addresses, each with whether it is written.
    ///
    /// # Errors
    /// `InvalidArgument` where the host accesses one in a way that excludes this.
    pub(crate) fn enter_sorted(all: impl Iterator<Item = (&'a Shared, bool)>) -> Result<Gates<'a>> {
        let mut gates = SmallVec::new();
        for (shared, write) in all {
            let gate = shared.gate.lock();
            if gate.writes > 0 || (write && gate.reads > 0) {
                return Err(Error::invalid(format!(
                    "a buffer of {} bytes that the graph {} is mapped, or another thread copies it; launch when that is \
                     over",
                    shared.memory().bytes,
                    if write { "writes" } else { "reads" }
                )));
            }
            gates.push(gate);
        }
        Ok(Gates { _guards: gates })
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({:#x} of {})", self.memory().address, self.memory().device.name())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut met = Met::default();
        let pending = self.users.before(None, true, &mut met);
        let Some((last, rest)) = pending.split_last() else { return };
        // One of the streams keeps the memory, behind its own work and that of the others.
        for other in rest {
            if let Err(e) = last.order_behind(0, other) {
                tracing::error!("{}: cannot order streams, waiting here instead: {e}", memory.device.name());
                match other.settle() {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => tracing::error!("{}: work on a dropped buffer: {e}", other.device.name()),
                    Err(e) => {
                        tracing::error!(
                            "{}: {} bytes that queued work may use are never freed, as that cannot be waited for: {e}",
                            memory.device.name(),
                            memory.bytes
                        );
                        return std::mem::forget(memory);
                    }
                }
            }
        }
        last.keep(Kept::Memory { _memory: memory });
    }
}
