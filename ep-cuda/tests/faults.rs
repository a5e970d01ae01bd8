//! Every call of the driver fails once in every way: the program is told each time, and nothing is left behind.

mod rig;

use ep_core::primitive::{
    Fill, FillCall, FillDesc, Memcpy, MemcpyCall, MemcpyDesc, MemcpyKind, Memset, MemsetCall, MemsetDesc,
    Softmax, SoftmaxCall, SoftmaxDesc,
};
use ep_core::provider::{CopyRequest, Device, Provider, Stream};
use ep_core::{Code, DType, Result, Scalar};
use ep_cuda::provider::CudaProvider;
use ep_registry::{Event, Runtime};
use fakecuda::result;
use rig::ops::Bench;
use rig::{Rig, Setup, stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

/// Counts what is logged as a warning or an error.
struct Complaints(Arc<AtomicUsize>);

struct Ignore;

impl Visit for Ignore {
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Complaints {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Ignore);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// What a program does with a device: every kind of object, transfers, primitives with and without kernels, two
/// streams in order, events with time, pinned memory, statistics.
fn demo(rig: &Rig) -> Result<()> {
    let runtime = Runtime::builder().linked_with::<CudaProvider>(rig.config(&[])).build()?;
    let device = runtime.device("cuda:0")?;
    let (first, second) = (device.stream()?, device.stream()?);
    let data: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let x = device.upload(&data)?;
    let mut y = device.alloc(DType::F32, 64)?;
    let mut z = device.alloc(DType::F32, 64)?;
    let mut pinned = device.alloc_pinned(DType::F32, 64)?;
    let (start, end) = (Event::new(), Event::new());
    first.record(&start)?;
    let memcpy = runtime.primitive::<Memcpy>(device, MemcpyDesc::new(MemcpyKind::DEVICE_TO_DEVICE))?;
    memcpy.launch(&first, MemcpyCall { bytes: 256, src: &x, dst: &mut y })?;
    second.copy(&y, &mut z)?;
    let memset = runtime.primitive::<Memset>(device, MemsetDesc::new())?;
    memset.launch(&second, MemsetCall { bytes: 256, value: Scalar::I64(0), dst: &mut y })?;
    let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32))?;
    fill.launch(&first, FillCall { count: 64, value: Scalar::F64(1.5), dst: &mut y })?;
    let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32))?;
    softmax.launch(&first, SoftmaxCall { rows: 2, cols: 32, inner: 0, src: &z, dst: &mut y })?;
    first.record(&end)?;
    second.wait(&end)?;
    second.copy(&z, &mut pinned)?;
    end.sync()?;
    start.elapsed_ns(&end)?;
    first.sync()?;
    second.sync()?;
    assert_eq!(z.download::<f32>()?, data);
    assert_eq!(*pinned.map_read::<f32>()?, *data);
    device.memory_stats()?;
    drop((x, y, z, pinned));
    device.trim()
}

/// The same without a host: a graph is recorded, replayed and updated, and memory freed in stream order.
fn graph_demo(rig: &Rig) -> Result<()> {
    use ep_core::provider::{Allocator, MemoryKind};
    let device = CudaProvider::new(&rig.settings())?.open_device(0)?;
    let (queue, memory) =
        (device.create_stream(Default::default())?, device.open_allocator(MemoryKind::Device)?);
    let space = device.info().memory_space;
    let x = memory.alloc(64, 64, None)?;
    let work = || -> Result<()> {
        let copy = CopyRequest { dst: x, dst_space: &space, src: x + 32, src_space: &space, bytes: 16 };
        queue.begin_capture()?;
        // SAFETY: both ranges are inside the allocation, which lives until the work below is done.
        let recorded = unsafe { queue.copy(copy) };
        let graph = queue.end_capture()?;
        recorded?;
        let exec = graph.instantiate()?;
        exec.update(&graph)?;
        // SAFETY: as above.
        unsafe { exec.launch(&queue)? };
        queue.sync()
    };
    let worked = work();
    let freed = memory.free_async(x, 64, &queue);
    worked.and(freed).and(queue.sync())
}

/// A host's graph: recorded, launched on two streams, updated in place and to another form.
fn host_graph_demo(rig: &Rig) -> Result<()> {
    let runtime = Runtime::builder().linked_with::<CudaProvider>(rig.config(&[])).build()?;
    let device = runtime.device("cuda:0")?;
    let (first, second) = (device.stream()?, device.stream()?);
    let x = device.upload(&[1u8; 32])?;
    let [mut y, mut z] = [device.upload(&[2u8; 32])?, device.upload(&[3u8; 32])?];
    let mut graph = first.capture(|s| s.copy(&x, &mut y))?;
    graph.launch(&first)?;
    graph.launch(&second)?;
    graph.update(&first, |s| s.copy(&x, &mut z))?;
    graph.launch(&second)?;
    graph.update(&second, |s| s.copy(&x, &mut z).and_then(|()| s.copy(&z, &mut y)))?;
    graph.launch(&first)?;
    first.sync()?;
    second.sync()?;
    assert_eq!((y.download::<u8>()?, z.download::<u8>()?), (vec![1; 32], vec![1; 32]));
    Ok(())
}

/// A launch of each op.
fn ops_demo(rig: &Rig) -> Result<()> {
    let runtime = Runtime::builder().linked_with::<CudaProvider>(rig.config(&[])).build()?;
    let device = runtime.device("cuda:0")?;
    let stream = device.stream()?;
    Bench::new(&runtime, device, &stream)?.each()?;
    stream.sync()
}

const CODES: [i32; 4] =
    [result::OUT_OF_MEMORY, result::LAUNCH_FAILED, result::ILLEGAL_ADDRESS, result::ECC_UNCORRECTABLE];

/// Lets the n-th call fail for every n, with each code.
fn every_call_fails(run: fn(&Rig) -> Result<()>) {
    calls_fail(run, |_, _| true);
}

/// Lets the n-th call fail with each code that `with` has for n, counted from 1, by its place in [`CODES`].
fn calls_fail(run: fn(&Rig) -> Result<()>, with: fn(usize, usize) -> bool) {
    let rig = Rig::new(Setup::default());
    rig.fake.fail(0, 0);
    run(&rig).unwrap();
    let calls = rig.fake.log().len();
    assert!(calls > 50, "{calls}");
    rig.assert_clean();
    let complaints = Arc::new(AtomicUsize::new(0));
    let guard = tracing::subscriber::set_default(Complaints(complaints.clone()));
    for (place, code) in CODES.into_iter().enumerate() {
        for n in (1..=calls as u64).filter(|n| with(*n as usize, place)) {
            rig.fake.reset(Setup::default());
            rig.fake.fail(n, code);
            complaints.store(0, Ordering::Relaxed);
            let outcome = run(&rig);
            let failed = rig.fake.log().get(n as usize - 1).cloned().unwrap_or_default();
            assert!(
                failed.ends_with(&format!("= {code}")),
                "call {n} is not reached or does not fail: {failed}"
            );
            let told = outcome.is_err() || complaints.load(Ordering::Relaxed) > 0;
            assert!(told, "call {n}, {failed}: nobody is told");
            if let Err(e) = &outcome {
                // A provider whose devices cannot be counted or opened is not loaded, and the report tells why.
                let not_loaded = e.code() == Code::NotFound && e.message().contains("CUDA_ERROR");
                let fits = code == result::OUT_OF_MEMORY || e.code() == Code::DeviceLost || not_loaded;
                assert!(fits, "call {n}, {failed}: {e:?}");
            }
            assert_eq!(rig.fake.leaks(), [""; 0], "call {n}, {failed}: {outcome:?}");
        }
    }
    drop(guard);
}

#[test]
fn every_call_of_a_hosts_program_fails_in_every_way() {
    every_call_fails(demo);
}

#[test]
fn every_call_of_a_launch_of_each_op_fails() {
    // Each code for a quarter of the calls, as what is around the launches is tested with all of them above.
    calls_fail(ops_demo, |n, place| n % CODES.len() == place);
}

#[test]
fn every_call_around_a_graph_fails_in_every_way() {
    every_call_fails(graph_demo);
}

#[test]
fn every_call_around_a_graph_of_a_host_fails_in_every_way() {
    every_call_fails(host_graph_demo);
}

#[test]
fn sync_launches_names_the_launch_that_failed() {
    let rig = Rig::new(Setup::default());
    let mut settings = rig.settings();
    settings.sync_launches = true;
    let device = CudaProvider::new(&settings).unwrap().open_device(0).unwrap();
    let queue = stream(&device);
    let (source, mut target) = ([1u8; 8], [0u8; 8]);
    let (src, dst) =
        (source.as_ptr().expose_provenance() as u64, target.as_mut_ptr().expose_provenance() as u64);
    let copy = CopyRequest { dst, dst_space: "host", src, src_space: "host", bytes: 8 };
    rig.fake.fail(0, 0);
    // SAFETY: live memory of this function.
    unsafe { queue.copy(copy) }.unwrap();
    assert_eq!((rig.calls("cuStreamSynchronize"), target), (1, source));
    let calls = rig.fake.log();
    let sync = calls.iter().position(|c| c.starts_with("cuStreamSynchronize")).unwrap() as u64 + 1;
    rig.fake.fail(sync, result::LAUNCH_FAILED);
    // SAFETY: as above.
    let error = unsafe { queue.copy(copy) }.unwrap_err();
    assert_eq!(error.code(), Code::DeviceLost);
    assert!(
        error.message().starts_with("the work pending on this stream was copy: cuStreamSynchronize"),
        "{error}"
    );
}
