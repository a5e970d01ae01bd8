//! Safe host code against a device that does its work as late as it may, and whose events fail on request.

use ep_core::primitive::{Permute, PermuteArgs, PermuteCall, PermuteDesc};
use ep_core::provider::inline::{HostAllocator, host_copy};
use ep_core::provider::{
    Allocator, CopyRequest, Device, DeviceInfo, Event, Factory, ForeignStreams, Graph, Graphs, Host, Kernel,
    MemoryKind, MemoryStats, Options, Provider, Registrar, Stream, StreamOptions, Updated,
};
use ep_core::{Code, DType, Error, Result};
use ep_registry::{Buffer, Runtime};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host's own name for its memory: the simulated device works on real addresses.
const SPACE: &str = "late";

/// The kind of its native streams, which are numbers of queues.
const QUEUES: &str = "late-queue";

/// Work that is queued and not done.
enum Work {
    /// Destination, source, bytes.
    Copy(u64, u64, u64),
    /// The event and which of its records.
    Record(u64, u64),
    Wait(u64, u64),
}

#[derive(Default)]
struct State {
    queues: HashMap<u64, VecDeque<Work>>,
    /// What streams record, as copies.
    recordings: HashMap<u64, Vec<(u64, u64, u64)>>,
    /// Streams that were destroyed.
    ended: Vec<u64>,
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
struct Sim {
    state: Mutex<State>,
    next: AtomicU64,
    fail_next_event: AtomicBool,
    fail_queries: AtomicBool,
    fail_next_copy: AtomicBool,
}

impl Sim {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The simulation that the next provider instance gets.
static NEXT: Mutex<Option<Arc<Sim>>> = Mutex::new(None);

struct Late(Arc<Sim>);
struct LateDevice(Arc<Sim>, HostAllocator);
struct LateStream(Arc<Sim>, u64);
struct LateEvent(Arc<Sim>, u64);
struct LateAllocator(Arc<Sim>, HostAllocator);
struct LateGraph(Vec<(u64, u64, u64)>);
struct NoPermute;

impl Provider for Late {
    type Device = LateDevice;
    const NAME: &'static str = "late";
    const VERSION: &'static str = "1";

    fn create(_: Host, _: &Options) -> Result<Late> {
        Ok(Late(NEXT.lock().unwrap().take().unwrap()))
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<LateDevice> {
        Ok(LateDevice(self.0.clone(), HostAllocator::default()))
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        let factory = Factory::<Permute, _, _>::new("permute", |_, _| Ok(NoPermute)).dtypes([[DType::F32]]);
        registrar.device_kind("late").add(factory)
    }
}

impl Kernel<Permute, LateDevice> for NoPermute {
    unsafe fn launch(&self, _: &LateStream, _: &PermuteArgs) -> Result<()> {
        Ok(())
    }
}

impl Device for LateDevice {
    type Stream = LateStream;
    type Event = LateEvent;
    type Allocator = LateAllocator;

    const FOREIGN_STREAMS: Option<ForeignStreams<Self>> = Some(ForeignStreams {
        kind: QUEUES,
        native: |stream| Ok(stream.1),
        adopt: |device, queue| Ok(LateStream(device.0.clone(), queue)),
    });

    const GRAPHS: Option<Graphs<Self>> = Some(Graphs {
        begin: |stream| {
            stream.0.state().recordings.insert(stream.1, Vec::new());
            Ok(())
        },
        end: |stream| Ok(Box::new(LateGraph(stream.recorded()))),
    });

    fn info(&self) -> DeviceInfo {
        let spaces = vec![SPACE.to_owned(), "host".to_owned()];
        DeviceInfo {
            kind: "late".into(),
            name: "late".into(),
            memory_space: SPACE.into(),
            reads: spaces.clone(),
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
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        Ok(self.0.state().queues.get(&self.1).is_none_or(VecDeque::is_empty))
    }

    unsafe fn copy(&self, c: CopyRequest<'_>) -> Result<()> {
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
fn late() -> (Runtime, Arc<Sim>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let sim = Arc::new(Sim::default());
    *NEXT.lock().unwrap() = Some(sim.clone());
    let runtime = Runtime::builder().linked::<Late>("late").threads(1).build().unwrap();
    (runtime, sim)
}

fn no_violations(sim: &Sim) {
    assert_eq!(sim.state().violations, []);
}

#[test]
fn a_dropped_buffer_waits_for_every_stream_even_if_they_cannot_be_ordered() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let src = device.upload(&[1.5f32, -2.0, f32::INFINITY]).unwrap();
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    let (mut x, mut y) = (device.alloc(DType::F32, 3).unwrap(), device.alloc(DType::F32, 3).unwrap());
    a.copy(&src, &mut x).unwrap();
    b.copy(&src, &mut y).unwrap();
    sim.fail_next_event.store(true, Ordering::Relaxed);
    drop(src);
    // Either stream may have taken the memory; ending one must not free what the other reads.
    b.sync().unwrap();
    a.sync().unwrap();
    no_violations(&sim);
    assert_eq!(x.download::<f32>().unwrap(), [1.5, -2.0, f32::INFINITY]);
    assert_eq!(y.download::<f32>().unwrap(), [1.5, -2.0, f32::INFINITY]);
}

#[test]
fn a_query_that_fails_frees_nothing() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let freed = Arc::new(AtomicBool::new(false));
    let mut data = vec![7i32, -8];
    let (address, seen) = (data.as_mut_ptr().expose_provenance() as u64, freed.clone());
    let deleter = move || {
        seen.store(true, Ordering::Relaxed);
        drop(data);
    };
    // SAFETY: the deleter owns the vector, which nobody else touches.
    let src = unsafe { Buffer::import(device, SPACE, address, 8, DType::I32, deleter) }.unwrap();
    let stream = device.stream().unwrap();
    let mut dst = device.alloc(DType::I32, 2).unwrap();
    stream.copy(&src, &mut dst).unwrap();
    drop(src);
    sim.fail_queries.store(true, Ordering::Relaxed);
    let mut other = device.alloc(DType::I32, 1).unwrap();
    stream.upload(&mut other, vec![3i32]).unwrap();
    assert!(!freed.load(Ordering::Relaxed), "the copy has not run yet");
    stream.sync().unwrap();
    assert!(freed.load(Ordering::Relaxed));
    assert_eq!(dst.download::<i32>().unwrap(), [7, -8]);
    no_violations(&sim);
}

#[test]
fn a_deleter_that_waits_for_a_buffer_of_a_graph_gets_it() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let x = Arc::new(device.upload(&[5u8; 4]).unwrap());
    let mut y = device.alloc(DType::U8, 4).unwrap();
    let graph = stream.capture(|s| s.copy(&*x, &mut y)).unwrap();
    let launches: [&dyn Fn(); 2] = [&|| graph.launch(&stream).unwrap(), &|| {
        let mut z = device.alloc(DType::U8, 4).unwrap();
        stream.copy(&*x, &mut z).unwrap();
    }];
    for launch in launches {
        let mut data = [9u8; 4];
        let address = data.as_mut_ptr().expose_provenance() as u64;
        let (x, seen) = (x.clone(), Arc::new(Mutex::new(None)));
        let told = seen.clone();
        let deleter = move || {
            // Another thread's call, for which this one waits: as a deleter that needs an interpreter's lock does.
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || sender.send(x.download::<u8>()));
            *told.lock().unwrap() = receiver.recv_timeout(std::time::Duration::from_secs(10)).ok();
        };
        // SAFETY: the array outlives the buffer and the copy, and nobody touches it meanwhile.
        let src = unsafe { Buffer::import(device, SPACE, address, 4, DType::U8, deleter) }.unwrap();
        let mut dst = device.alloc(DType::U8, 4).unwrap();
        stream.copy(&src, &mut dst).unwrap();
        drop(src);
        // The copy is done, and the stream has not noticed.
        let event = ep_registry::Event::new();
        stream.record(&event).unwrap();
        event.sync().unwrap();
        assert!(seen.lock().unwrap().is_none());
        launch();
        assert_eq!(seen.lock().unwrap().take(), Some(Ok(vec![5; 4])), "the deleter runs without a lock");
        stream.sync().unwrap();
    }
}

#[test]
fn streams_and_buffers_in_any_order_of_dropping() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
    let mut buffers: Vec<_> = (0..4).map(|i| device.upload(&[i as u8; 33]).unwrap()).collect();
    for (round, stream) in streams.iter().cycle().take(12).enumerate() {
        let mut dst = buffers.remove(round % 3);
        stream.copy(&buffers[(round * 2) % 3], &mut dst).unwrap();
        buffers.push(dst);
    }
    drop(buffers.remove(1));
    drop(streams);
    let kept = buffers.remove(0);
    drop(buffers);
    drop(runtime);
    assert!(kept.download::<u8>().unwrap().iter().all(|v| *v < 4));
    drop(kept);
    no_violations(&sim);
    assert!(sim.state().queues.values().all(VecDeque::is_empty));
}

#[test]
fn an_adopted_stream_ends_with_its_last_clone_while_buffers_live() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let (src, native) = (device.upload(&[1u8, 2, 3]).unwrap(), 1 << 40);
    let mut dst = device.alloc(DType::U8, 3).unwrap();
    // SAFETY: the simulation has a queue of every number.
    let stream = unsafe { device.adopt_stream(QUEUES, native) }.unwrap();
    let graph = stream.capture(|s| s.copy(&src, &mut dst)).unwrap();
    graph.launch(&stream).unwrap();
    let clone = stream.clone();
    drop(stream);
    assert_eq!(sim.state().queues[&native].len(), 1, "a clone is left");
    assert!(!sim.state().ended.contains(&native));
    drop(clone);
    // Neither the buffers nor the graph use the native stream from now on.
    assert!(sim.state().ended.contains(&native) && sim.state().queues[&native].is_empty());
    assert_eq!(dst.download::<u8>().unwrap(), [1, 2, 3]);
    let other = device.stream().unwrap();
    graph.launch(&other).unwrap();
    drop((src, dst, graph));
    other.sync().unwrap();
    no_violations(&sim);
}

#[test]
fn what_a_failed_call_should_have_written_is_unwritten_in_the_recording() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let src = device.upload(&[4i32, 5]).unwrap();
    let (mut x, mut y) = (device.alloc(DType::I32, 2).unwrap(), device.alloc(DType::I32, 2).unwrap());
    let fails = |x: &mut Buffer, y: &mut Buffer, s: &ep_registry::Stream| {
        sim.fail_next_copy.store(true, Ordering::Relaxed);
        assert_eq!(s.copy(&src, &mut *x).unwrap_err().code(), Code::OutOfMemory);
        let e = s.copy(&*x, y).unwrap_err();
        assert!(e.message().contains("only 0..0"), "{e}");
        Ok(())
    };
    let failed = stream.capture(|s| fails(&mut x, &mut y, s)).unwrap();
    failed.launch(&stream).unwrap();
    assert_eq!(x.download::<i32>().unwrap_err().code(), Code::InvalidArgument);
    let graph = stream.capture(|s| {
        fails(&mut x, &mut y, s)?;
        s.copy(&src, &mut x)?;
        s.copy(&x, &mut y)
    });
    graph.unwrap().launch(&stream).unwrap();
    assert_eq!(y.download::<i32>().unwrap(), [4, 5]);
    no_violations(&sim);
}

#[test]
fn a_deleter_may_panic() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let mut data = [0u8; 8];
    let address = data.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the array outlives the buffer, and nobody touches it meanwhile.
    let buffer = unsafe { Buffer::import(device, SPACE, address, 8, DType::U8, || panic!("no")) }.unwrap();
    drop(buffer);
}

#[test]
fn handles_may_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Runtime>();
    shared::<Buffer>();
    shared::<ep_registry::Stream>();
    shared::<ep_registry::Primitive<Permute>>();
    shared::<ep_registry::DynPrimitive>();
}

#[test]
fn a_rank_is_set_by_its_dims_only() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let request = runtime.request("permute").unwrap().dtype("data", "f32").unwrap();
    let primitive = runtime.primitive_dyn(device, &request).unwrap();
    let args = primitive.args().dims("src_dims", &[2, 2]).unwrap().dims("permutation", &[1, 0]).unwrap();
    let e = args.size("num_dims", 8).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument);
    assert!(e.message().contains("dims()"), "{e}");
}

#[test]
fn parts_outside_of_a_buffer_are_refused_without_overflow() {
    let (runtime, _) = late();
    let mut buffer = runtime.device("late").unwrap().upload(&[0f64; 5]).unwrap();
    for (start, len) in [(1 << 61, 1), (usize::MAX, 0), (0, usize::MAX), (6, 0), (4, 2)] {
        assert!(buffer.slice(start, len).is_err(), "{start} {len}");
        assert!(buffer.slice_mut(start, len).is_err(), "{start} {len}");
    }
    assert!(buffer.slice(5, 0).is_ok() && buffer.slice(4, 1).is_ok());
}

/// A provider's code that a lookup runs may come back to the runtime, through a log subscriber for one.
#[test]
fn the_registry_may_change_while_it_is_read() {
    let (runtime, _) = late();
    runtime.with_registry(|before| {
        let factories = || before.op("permute").unwrap().factories.len();
        assert_eq!(factories(), 1);
        runtime.deregister("late").unwrap();
        assert_eq!(factories(), 1);
        runtime.with_registry(|after| assert!(after.op("permute").unwrap().factories.is_empty()));
    });
}

#[test]
fn a_cached_primitive_is_not_for_a_device_of_another_runtime() {
    let ((one, _), (two, _)) = (late(), late());
    let (mine, other) = (one.device("late").unwrap(), two.device("late").unwrap());
    let desc = PermuteDesc::new(DType::F32);
    one.primitive::<Permute>(mine, desc).unwrap();
    let e = one.primitive::<Permute>(other, desc).unwrap_err();
    assert!(e.message().contains("another runtime"), "{e}");
}

#[test]
fn a_launch_keeps_the_alignment_that_the_descriptor_promised() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let desc = PermuteDesc::new(DType::F32).with_alignment(64);
    let permute = runtime.primitive::<Permute>(device, desc).unwrap();
    let src = device.upload(&[0f32; 17]).unwrap();
    let mut dst = device.alloc(DType::F32, 1).unwrap();
    let stream = device.stream().unwrap();
    let mut launch = |start| {
        let part = src.slice(start, 1).unwrap();
        let call = PermuteCall { src_dims: &[1], permutation: &[0], src: part, dst: &mut dst };
        permute.launch(&stream, call)
    };
    assert_eq!((launch(0), launch(16)), (Ok(()), Ok(())));
    let e = launch(1).unwrap_err();
    assert!(e.message().contains("multiple of 64"), "{e}");
}
