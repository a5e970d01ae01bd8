//! A device that does its work as late as it may, and whose events and copies fail on request.

use ep_core::primitive::{Add, AddArgs, Permute, PermuteArgs};
use ep_core::provider::inline::{HostAllocator, host_copy};
use ep_core::provider::{
    Allocator, CopyRequest, Device, DeviceInfo, Event, Factory, ForeignStreams, Graph, Graphs, Host, Kernel,
    MemoryKind, MemoryStats, Options, Provider, Registrar, Stream, StreamOptions, Updated,
};
use ep_core::{DType, Error, Result};
use ep_registry::config::ProviderConfig;
use ep_registry::{Builder, Runtime};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host's own name for its memory: the simulated device works on real addresses.
pub const SPACE: &str = "late";

/// The kind of its native streams, which are numbers of queues.
pub const QUEUES: &str = "late-queue";

/// Work that is queued and not done.
pub enum Work {
    /// Destination, source, bytes.
    Copy(u64, u64, u64),
    /// The event and which of its records.
    Record(u64, u64),
    Wait(u64, u64),
}

#[derive(Default)]
pub struct State {
    pub queues: HashMap<u64, VecDeque<Work>>,
    /// What streams record, as copies.
    recordings: HashMap<u64, Vec<(u64, u64, u64)>>,
    /// Streams that were destroyed.
    pub ended: Vec<u64>,
    /// By event: the number of the latest record, of the latest done, and the stream.
    events: HashMap<u64, (u64, u64, u64)>,
    /// Frees of memory that queued work uses.
    violations: Vec<(u64, u64)>,
}

impl State {
    /// Does the work of a stream until its queue is empty, or `until` is done.
    fn run(&mut self, stream: u64, until: Option<(u64, u64)>) {
        while until.is_none_or(|(event, record)| self.events[&event].1 < record) {
            let Some(work) = self.queues.get_mut(&stream).and_then(VecDeque::pop_front) else { return };
            match work {
                Work::Copy(dst, src, bytes) => {
                    let copy = CopyRequest { dst, dst_space: "host", src, src_space: "host", bytes };
                    // SAFETY: the host promised that both are valid until now; `violations` tells if not.
                    unsafe { host_copy(copy) }.unwrap();
                }
                Work::Record(event, record) => self.events.get_mut(&event).unwrap().1 = record,
                Work::Wait(event, record) => {
                    let other = self.events[&event].2;
                    self.run(other, Some((event, record)));
                }
            }
        }
    }
}

#[derive(Default)]
pub struct Sim {
    state: Mutex<State>,
    next: AtomicU64,
    pub fail_next_event: AtomicBool,
    pub fail_queries: AtomicBool,
    pub fail_next_copy: AtomicBool,
    pub fail_syncs: AtomicBool,
    pub fail_adoption: AtomicBool,
    /// Whether copies and recordings come with a message.
    pub talks: AtomicBool,
}

impl Sim {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn talk(&self) {
        if self.talks.load(Ordering::Relaxed) {
            tracing::info!("in the middle of a call");
        }
    }
}

/// The simulation that the next provider instances get.
static NEXT: Mutex<Option<Arc<Sim>>> = Mutex::new(None);

/// `WHOLE` has kernels and graphs, and reads the device's memory. The other allocates and writes it only.
struct Late<const WHOLE: bool>(Arc<Sim>);
struct LateDevice<const WHOLE: bool>(Arc<Sim>, HostAllocator);
struct LateStream(Arc<Sim>, u64);
struct LateEvent(Arc<Sim>, u64);
struct LateAllocator(Arc<Sim>, HostAllocator);
struct LateGraph(Vec<(u64, u64, u64)>);
struct Nothing;

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl<const WHOLE: bool> Provider for Late<WHOLE> {
    type Device = LateDevice<WHOLE>;
    const NAME: &'static str = "late";
    const VERSION: &'static str = "1";

    fn create(_: Host, _: &Options) -> Result<Self> {
        Ok(Late(NEXT.lock().unwrap().clone().unwrap()))
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<LateDevice<WHOLE>> {
        Ok(LateDevice(self.0.clone(), HostAllocator::default()))
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        if !WHOLE {
            return Ok(());
        }
        let registrar = registrar.device_kind("late");
        registrar
            .add(Factory::<Add, _, _>::new("add", |_, _| Ok(Nothing)).dtypes([[DType::F32]]).capturable())?;
        registrar.add(Factory::<Permute, _, _>::new("permute", |_, _| Ok(Nothing)).dtypes([[DType::F32]]))
    }
}

impl<const WHOLE: bool> Kernel<Add, LateDevice<WHOLE>> for Nothing {
    unsafe fn launch(&self, _: &LateStream, _: &AddArgs) -> Result<()> {
        Ok(())
    }
}

impl<const WHOLE: bool> Kernel<Permute, LateDevice<WHOLE>> for Nothing {
    unsafe fn launch(&self, _: &LateStream, _: &PermuteArgs) -> Result<()> {
        Ok(())
    }
}

impl<const WHOLE: bool> Device for LateDevice<WHOLE> {
    type Stream = LateStream;
    type Event = LateEvent;
    type Allocator = LateAllocator;

    const FOREIGN_STREAMS: Option<ForeignStreams<Self>> = Some(ForeignStreams {
        kind: QUEUES,
        native: |stream| Ok(stream.1),
        adopt: |device, queue| {
            if device.0.fail_adoption.load(Ordering::Relaxed) {
                return Err(Error::unsupported("the queue is not adopted"));
            }
            Ok(LateStream(device.0.clone(), queue))
        },
    });

    const GRAPHS: Option<Graphs<Self>> = if WHOLE {
        Some(Graphs {
            begin: |stream| {
                stream.0.talk();
                stream.0.state().recordings.insert(stream.1, Vec::new());
                Ok(())
            },
            end: |stream| Ok(Box::new(LateGraph(stream.recorded()))),
        })
    } else {
        None
    };

    fn info(&self) -> DeviceInfo {
        let spaces = vec![SPACE.to_owned(), "host".to_owned()];
        DeviceInfo {
            kind: "late".into(),
            name: "late".into(),
            uuid: [7; 16],
            memory_space: SPACE.into(),
            reads: if WHOLE { spaces.clone() } else { vec![] },
            writes: spaces,
            ..DeviceInfo::default()
        }
    }

    fn create_stream(&self, _: StreamOptions) -> Result<LateStream> {
        Ok(LateStream(self.0.clone(), self.0.next.fetch_add(1, Ordering::Relaxed)))
    }

    fn create_event(&self) -> Result<LateEvent> {
        if self.0.fail_next_event.swap(false, Ordering::Relaxed) {
            return Err(Error::out_of_memory("no event is left"));
        }
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.state().events.insert(id, (0, 0, 0));
        Ok(LateEvent(self.0.clone(), id))
    }

    fn open_allocator(&self, _: MemoryKind) -> Result<LateAllocator> {
        Ok(LateAllocator(self.0.clone(), self.1.clone()))
    }
}

impl LateStream {
    fn push(&self, work: Work) -> Result<()> {
        self.0.state().queues.entry(self.1).or_default().push_back(work);
        Ok(())
    }

    fn recorded(&self) -> Vec<(u64, u64, u64)> {
        self.0.state().recordings.remove(&self.1).unwrap()
    }
}

impl Drop for LateStream {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.run(self.1, None);
        state.ended.push(self.1);
    }
}

impl Graph<LateStream> for LateGraph {
    unsafe fn launch(&mut self, stream: &LateStream) -> Result<()> {
        self.0.iter().try_for_each(|(dst, src, bytes)| stream.push(Work::Copy(*dst, *src, *bytes)))
    }

    fn update(&mut self, stream: &LateStream) -> Result<Updated> {
        self.0 = stream.recorded();
        Ok(Updated::InPlace)
    }
}

impl Stream for LateStream {
    type Event = LateEvent;

    fn sync(&self) -> Result<()> {
        self.0.state().run(self.1, None);
        if self.0.fail_syncs.load(Ordering::Relaxed) {
            return Err(Error::internal("the work failed"));
        }
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        Ok(self.0.state().queues.get(&self.1).is_none_or(VecDeque::is_empty))
    }

    unsafe fn copy(&self, c: CopyRequest<'_>) -> Result<()> {
        self.0.talk();
        if self.0.fail_next_copy.swap(false, Ordering::Relaxed) {
            return Err(Error::out_of_memory("no copy is left"));
        }
        if let Some(recording) = self.0.state().recordings.get_mut(&self.1) {
            recording.push((c.dst, c.src, c.bytes));
            return Ok(());
        }
        self.push(Work::Copy(c.dst, c.src, c.bytes))
    }

    fn record(&self, event: &LateEvent) -> Result<()> {
        let mut state = self.0.state();
        let entry = state.events.get_mut(&event.1).unwrap();
        (entry.0, entry.2) = (entry.0 + 1, self.1);
        let number = entry.0;
        drop(state);
        self.push(Work::Record(event.1, number))
    }

    fn wait(&self, event: &LateEvent) -> Result<()> {
        let number = self.0.state().events[&event.1].0;
        self.push(Work::Wait(event.1, number))
    }
}

impl Event for LateEvent {
    fn query(&self) -> Result<bool> {
        if self.0.fail_queries.load(Ordering::Relaxed) {
            return Err(Error::internal("the query failed"));
        }
        let state = self.0.state();
        let (recorded, done, _) = state.events[&self.1];
        Ok(done >= recorded)
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.0.state();
        let (recorded, _, stream) = state.events[&self.1];
        state.run(stream, Some((self.1, recorded)));
        Ok(())
    }
}

impl Allocator for LateAllocator {
    type Stream = LateStream;

    fn alloc(&self, bytes: u64, alignment: u64, _: Option<&LateStream>) -> Result<u64> {
        self.1.allocate(bytes, alignment)
    }

    fn free(&self, address: u64, bytes: u64) -> Result<()> {
        let mut state = self.0.state();
        let inside = |a: u64| (address..address + bytes).contains(&a);
        let used = state
            .queues
            .values()
            .flatten()
            .any(|w| matches!(w, Work::Copy(dst, src, _) if inside(*dst) || inside(*src)));
        if used {
            // Kept, so that the late copy reads something.
            state.violations.push((address, bytes));
            return Ok(());
        }
        self.1.release(address, bytes)
    }

    fn stats(&self) -> MemoryStats {
        self.1.stats()
    }
}

/// A runtime with such a device, and the simulation behind it.
pub fn late() -> (Runtime, Arc<Sim>) {
    simulated(Runtime::builder().linked::<Late<true>>("late"))
}

/// The same with two providers for the device, of which the first has its memory and the second its kernels and graphs.
pub fn late_of_two() -> (Runtime, Arc<Sim>) {
    let mut first = ProviderConfig::new("first", "");
    first.priority = 1;
    simulated(Runtime::builder().linked_with::<Late<false>>(first).linked::<Late<true>>("second"))
}

fn simulated(builder: Builder) -> (Runtime, Arc<Sim>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let sim = Arc::new(Sim::default());
    *NEXT.lock().unwrap() = Some(sim.clone());
    (builder.threads(1).build().unwrap(), sim)
}

pub fn no_violations(sim: &Sim) {
    assert_eq!(sim.state().violations, []);
}
