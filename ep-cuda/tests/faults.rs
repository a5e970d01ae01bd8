//! Every call of the driver fails once in every way: the program is told each time, and nothing is left behind.

mod rig;

use ep_core::primitive::{
    ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, Fill, FillCall, FillDesc, Matmul,
    MatmulCall, MatmulDesc, Memcpy, MemcpyCall, MemcpyDesc, MemcpyKind, Memset, MemsetCall, MemsetDesc,
    Softmax, SoftmaxCall, SoftmaxDesc, Transpose, UnaryOp,
};
use ep_core::provider::{CopyRequest, Device as _, Provider, Stream};
use ep_core::{Code, DType, Result, Scalar};
use ep_cuda::provider::CudaProvider;
use ep_registry::{Buffer, Device, Event, Primitive, Runtime};
use fakecuda::result;
use rig::ops::Bench;
use rig::{Rig, Setup, stream};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

const F32: DType = DType::F32;

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

/// Tells that the program has done its work and only gives back what it has.
type Done<'a> = &'a dyn Fn();

type Demo = fn(&Rig, Done<'_>) -> Result<()>;

fn runtime(rig: &Rig) -> Result<Runtime> {
    Runtime::builder().linked_with::<CudaProvider>(rig.config(&[])).threads(1).build()
}

/// What a program does with two devices: every kind of object, transfers, primitives with and without kernels, a matrix
/// product of cuBLASLt, two streams and one of another library in order, events with time, pinned memory, a copy from
/// device to device, statistics.
fn demo(rig: &Rig, done: Done<'_>) -> Result<()> {
    let provider = CudaProvider::new(&rig.settings())?;
    // Of a device that does not answer, who opens it is told.
    provider.open_device(1)?;
    let theirs = provider.open_device(0)?.create_stream(Default::default())?;
    drop(provider);
    let runtime = runtime(rig)?;
    let (device, other) = (runtime.device("cuda:0")?, runtime.device("cuda:1")?);
    let (first, second, far) = (device.stream()?, device.stream()?, other.stream()?);
    // SAFETY: a live stream of the device, which is dropped after everything that uses it.
    let adopted = unsafe { device.adopt_stream("CUstream", theirs.raw().raw()) }?;
    let data: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let x = device.upload(&data)?;
    let mut y = device.alloc(DType::F32, 64)?;
    let mut z = device.alloc(DType::F32, 64)?;
    let mut w = other.alloc(DType::F32, 64)?;
    let mut pinned = device.alloc_pinned(DType::F32, 64)?;
    let (start, end, crossed) = (Event::new(), Event::new(), Event::new());
    first.record(&start)?;
    let memcpy = runtime.primitive::<Memcpy>(device, MemcpyDesc::new(MemcpyKind::DEVICE_TO_DEVICE))?;
    memcpy.launch(&first, MemcpyCall { bytes: 256, src: &x, dst: &mut y })?;
    second.copy(&y, &mut z)?;
    let memset = runtime.primitive::<Memset>(device, MemsetDesc::new())?;
    memset.launch(&second, MemsetCall { bytes: 256, value: Scalar::I64(0), dst: &mut y })?;
    let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32))?;
    fill.launch(&first, FillCall { count: 64, value: Scalar::F64(1.5), dst: &mut y })?;
    let exp =
        runtime.primitive::<ElementwiseUnary>(device, ElementwiseUnaryDesc::new(UnaryOp::EXP, F32, F32))?;
    exp.launch(&adopted, ElementwiseUnaryCall { count: 64, src: &z, dst: &mut y })?;
    adopted.sync()?;
    let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32))?;
    softmax.launch(&first, SoftmaxCall { rows: 2, cols: 32, inner: 0, src: &z, dst: &mut y })?;
    matmul(&runtime, device)?.launch(&first, product(&z, &z, &mut y))?;
    first.record(&end)?;
    second.wait(&end)?;
    second.copy(&z, &mut w)?;
    second.record(&crossed)?;
    far.wait(&crossed)?;
    second.copy(&z, &mut pinned)?;
    end.sync()?;
    start.elapsed_ns(&end)?;
    while !first.query()? || !crossed.query()? {}
    first.sync()?;
    second.sync()?;
    far.sync()?;
    assert_eq!((z.download::<f32>()?, w.download::<f32>()?), (data.clone(), data.clone()));
    assert_eq!(y.download::<f32>()?[..2], [56.0, 62.0]);
    assert_eq!(*pinned.map_read::<f32>()?, *data);
    device.memory_stats()?;
    device.trim()?;
    done();
    Ok(())
}

/// The same without a host: a graph is recorded, replayed and updated, and memory freed in stream order.
fn graph_demo(rig: &Rig, done: Done<'_>) -> Result<()> {
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
    let freed = memory.free_async(x, 64, &queue).inspect_err(|_| {
        // Where the stream still records. What was freed before that is told of, as here, is not freed again.
        let _freed_or_not = memory.free(x, 64);
    });
    let synced = worked.and(freed).and(queue.sync());
    done();
    synced
}

/// A host's graph with a product: recorded, launched on two streams, updated in place and to another form.
fn host_graph_demo(rig: &Rig, done: Done<'_>) -> Result<()> {
    let runtime = runtime(rig)?;
    let device = runtime.device("cuda:0")?;
    let (first, second) = (device.stream()?, device.stream()?);
    let x = device.upload(&[1.0f32; 16])?;
    let [mut y, mut z] = [device.upload(&[2.0f32; 16])?, device.upload(&[3.0f32; 16])?];
    let matmul = matmul(&runtime, device)?;
    let mut graph = first.capture(|s| matmul.launch(s, product(&x, &x, &mut y)))?;
    graph.launch(&first)?;
    graph.launch(&second)?;
    graph.update(&first, |s| matmul.launch(s, product(&x, &y, &mut z)))?;
    graph.launch(&second)?;
    graph.update(&second, |s| s.copy(&z, &mut y).and_then(|()| s.copy(&x, &mut z)))?;
    graph.launch(&first)?;
    first.sync()?;
    second.sync()?;
    assert_eq!((y.download::<f32>()?, z.download::<f32>()?), (vec![16.0; 16], vec![1.0; 16]));
    done();
    Ok(())
}

/// A launch of each op.
fn ops_demo(rig: &Rig, done: Done<'_>) -> Result<()> {
    let runtime = runtime(rig)?;
    let device = runtime.device("cuda:0")?;
    let stream = device.stream()?;
    let mut bench = Bench::new(&runtime, device, &stream)?;
    bench.each()?;
    stream.sync()?;
    done();
    Ok(())
}

fn matmul(runtime: &Runtime, device: &Device) -> Result<Primitive<Matmul>> {
    runtime.primitive(device, MatmulDesc::new(Transpose::NONE, Transpose::NONE, F32))
}

/// Of matrices of 4 by 4.
fn product<'a>(
    a: &'a Buffer,
    b: &'a Buffer,
    c: &'a mut Buffer,
) -> MatmulCall<&'a Buffer, &'a Buffer, &'a mut Buffer> {
    MatmulCall { m: 4, n: 4, k: 4, alpha: Scalar::None, beta: Scalar::None, a, b, c }
}

const CODES: [i32; 4] =
    [result::OUT_OF_MEMORY, result::LAUNCH_FAILED, result::ILLEGAL_ADDRESS, result::ECC_UNCORRECTABLE];

/// Calls whose failure no caller can be told of, wherever they come: they give something back, put back what was
/// current before, or ask for a statistic. The log tells of it.
const LOGGED: [&str; 10] = [
    "cuCtxSetCurrent(0x0)",
    "cuEventDestroy(",
    "cuGraphDestroy(",
    "cuGraphExecDestroy(",
    "cuMemFree(",
    "cuMemFreeAsync(",
    "cuMemPoolGetAttribute(",
    "cublasLtMatmulDescDestroy(",
    "cublasLtMatmulPreferenceDestroy(",
    "cublasLtMatrixLayoutDestroy(",
];

/// Lets the n-th call fail for every n that is chosen, with a code. The program gets an error, except where it only
/// gives things back: then the log tells. What was taken is given back all the same.
fn calls_fail(setup: Setup, run: Demo, code: i32, chosen: impl Fn(usize) -> bool) {
    let rig = Rig::new(setup);
    rig.fake.fail(0, 0);
    let work = Cell::new(0);
    run(&rig, &|| work.set(rig.fake.log().len())).unwrap();
    let calls = rig.fake.log().len();
    assert!(work.get() > 40 && calls > work.get(), "{calls}");
    rig.assert_clean();
    let complaints = Arc::new(AtomicUsize::new(0));
    let mut silent = Vec::new();
    let guard = tracing::subscriber::set_default(Complaints(complaints.clone()));
    for n in (1..=calls).filter(|n| chosen(*n)) {
        rig.fake.reset(setup);
        rig.fake.fail(n as u64, code);
        complaints.store(0, Ordering::Relaxed);
        let outcome = run(&rig, &|| {});
        let failed = rig.fake.log().get(n - 1).cloned().unwrap_or_default();
        assert!(failed.ends_with(&format!("= {code}")), "call {n} is not reached or does not fail: {failed}");
        let logged = n > work.get() || LOGGED.iter().any(|l| failed.starts_with(l));
        match &outcome {
            Ok(()) => {
                if !logged || complaints.load(Ordering::Relaxed) == 0 {
                    silent.push(format!("call {n} of {}: {failed}", work.get()));
                }
            }
            Err(e) => {
                // A provider whose devices cannot be counted or opened is not loaded, and the report tells why.
                let not_loaded = e.code() == Code::NotFound && e.message().contains("CUDA_ERROR");
                let fits = code == result::OUT_OF_MEMORY || e.code() == Code::DeviceLost || not_loaded;
                assert!(fits, "call {n}, {failed}: {e:?}");
            }
        }
        assert_eq!(rig.fake.leaks(), [""; 0], "call {n}, {failed}: {outcome:?}");
    }
    drop(guard);
    assert_eq!(silent, [""; 0], "no error, or not even a line in the log");
}

/// A test for each code, which a test runner does side by side.
macro_rules! every_call_fails_in_every_way {
    ($name:ident, $demo:ident, $setup:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn out_of_memory() {
                calls_fail($setup, $demo, result::OUT_OF_MEMORY, |_| true);
            }

            #[test]
            fn launch_failed() {
                calls_fail($setup, $demo, result::LAUNCH_FAILED, |_| true);
            }

            #[test]
            fn illegal_address() {
                calls_fail($setup, $demo, result::ILLEGAL_ADDRESS, |_| true);
            }

            #[test]
            fn device_lost() {
                calls_fail($setup, $demo, result::ECC_UNCORRECTABLE, |_| true);
            }
        }
    };
}

every_call_fails_in_every_way!(a_hosts_program, demo, Setup { devices: 2, ..Setup::default() });
every_call_fails_in_every_way!(around_a_graph, graph_demo, Setup::default());
every_call_fails_in_every_way!(around_a_graph_of_a_host, host_graph_demo, Setup::default());

/// Memory that is not in the order of streams: every call fails for want of memory, and with one of the other
/// codes in turns.
mod a_hosts_program_without_pools {
    use super::*;

    fn setup() -> Setup {
        Setup { devices: 2, pools: 0, ..Setup::default() }
    }

    #[test]
    fn out_of_memory() {
        calls_fail(setup(), demo, result::OUT_OF_MEMORY, |_| true);
    }

    #[test]
    fn device_lost() {
        for (place, code) in CODES.into_iter().skip(1).enumerate() {
            calls_fail(setup(), demo, code, |n| n % 3 == place);
        }
    }
}

#[test]
fn every_call_of_a_launch_of_each_op_fails() {
    // Each code for a quarter of the calls, as what is around the launches is tested with all of them above.
    for (place, code) in CODES.into_iter().enumerate() {
        calls_fail(Setup::default(), ops_demo, code, |n| n % CODES.len() == place);
    }
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
