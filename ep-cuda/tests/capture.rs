//! Recorded launches on the fake driver: matrix products, updates with other operands, and streams of other libraries.

mod rig;

use ep_core::primitive::{Matmul, MatmulArgs, MatmulCall, MatmulDesc, Transpose};
use ep_core::provider::Stream as _;
use ep_core::{Code, DType, Scalar};
use ep_registry::{Buffer, Device, Primitive, Runtime, Updated};
use rig::{Rig, Setup};

/// Rows and columns of all matrices.
const N: usize = 4;

/// What a product of matrices of equal elements has in every place.
fn product(a: f32, b: f32) -> Vec<f32> {
    vec![N as f32 * a * b; N * N]
}

fn matrix(device: &Device, value: f32) -> Buffer {
    device.upload(&[value; N * N]).unwrap()
}

fn matmul(runtime: &Runtime, device: &Device) -> Primitive<Matmul> {
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    runtime.primitive(device, desc).unwrap()
}

fn call<'a>(
    a: &'a Buffer,
    b: &'a Buffer,
    c: &'a mut Buffer,
) -> MatmulCall<&'a Buffer, &'a Buffer, &'a mut Buffer> {
    let n = N as i64;
    MatmulCall { m: n, n, k: n, alpha: Scalar::None, beta: Scalar::None, a, b, c }
}

/// Arguments for raw launches, with so many bytes of workspace at an address.
fn args([a, b, c]: [&Buffer; 3], workspace: (u64, u64)) -> MatmulArgs {
    let n = N as i64;
    let mut args =
        MatmulArgs::new(n, n, n, Scalar::None, Scalar::None, a.address(), b.address(), c.address());
    (args.workspace, args.workspace_bytes) = workspace;
    args
}

/// The bytes of workspace of each product since the log was emptied.
fn workspaces(rig: &Rig) -> Vec<String> {
    let log = rig.fake.log();
    let products = log.iter().filter(|l| l.starts_with("cublasLtMatmul("));
    products.map(|l| l.split("workspace ").nth(1).unwrap().to_owned()).collect()
}

#[test]
fn a_product_is_recorded_without_memory_of_the_stream() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let (stream, matmul) = (device.stream().unwrap(), matmul(&runtime, device));
        let (mut a, b, mut c) = (matrix(device, 1.0), matrix(device, 2.0), matrix(device, 0.0));
        rig.fake.fail(0, 0);
        matmul.launch(&stream, call(&a, &b, &mut c)).unwrap();
        stream.sync().unwrap();
        assert_eq!(workspaces(&rig), ["1024) = 0"], "directly, with scratch memory");
        c.upload(&[0.0f32; N * N]).unwrap();
        rig.fake.fail(0, 0);
        let graph = stream
            .capture(|s| {
                matmul.launch(s, call(&a, &b, &mut c))?;
                matmul.launch(s, call(&a, &b, &mut c))
            })
            .unwrap();
        assert_eq!(workspaces(&rig), ["0) = 0"; 2], "a replay may run beside the stream's own work");
        let allocations = rig.fake.log().into_iter().filter(|l| l.starts_with("cuMem")).count();
        assert_eq!((allocations, rig.calls("cublasLtMatmulAlgoGetHeuristic")), (0, 1), "asked for once more");
        assert_eq!(c.download::<f32>().unwrap(), [0.0; N * N], "recording does nothing");
        a.upload(&[3.0f32; N * N]).unwrap();
        rig.fake.fail(0, 0);
        graph.launch(&stream).unwrap();
        assert_eq!(c.download::<f32>().unwrap(), product(3.0, 2.0));
        assert_eq!((rig.calls("cublasLtMatmul"), rig.calls("cuGraphLaunch")), (0, 1));
    }
    rig.assert_clean();
}

/// The matrices, and their scratch memory, or one byte less.
#[test]
fn a_product_does_without_scratch_memory_that_the_limit_refuses() {
    const MATRICES: u64 = 3 * (N * N * size_of::<f32>()) as u64;
    for (room, told) in [(1024, "1024) = 0"), (1023, "0) = 0")] {
        let rig = Rig::new(Setup::default());
        let runtime = rig.runtime(&[("memory_limit", &(MATRICES + room).to_string())]);
        let device = runtime.device("cuda:0").unwrap();
        let (stream, matmul) = (device.stream().unwrap(), matmul(&runtime, device));
        let (a, b, mut c) = (matrix(device, 1.0), matrix(device, 2.0), matrix(device, 0.0));
        rig.fake.fail(0, 0);
        matmul.launch(&stream, call(&a, &b, &mut c)).unwrap();
        assert_eq!(workspaces(&rig), [told]);
        assert_eq!(c.download::<f32>().unwrap(), product(1.0, 2.0));
    }
}

#[test]
fn a_recorded_product_uses_the_workspace_that_its_launch_brings() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let (stream, matmul) = (device.stream().unwrap(), matmul(&runtime, device));
        let (a, b, mut c) = (matrix(device, 1.0), matrix(device, 2.0), matrix(device, 0.0));
        let memory = device.alloc(DType::U8, 4096).unwrap();
        let record = |workspace: (u64, u64)| {
            rig.fake.fail(0, 0);
            let args = args([&a, &b, &c], workspace);
            // SAFETY: matrices and memory inside buffers that outlive the graph, whose launches nothing else runs beside.
            let graph = stream.capture(|s| unsafe { matmul.launch_raw(s, &args) }).unwrap();
            let told = workspaces(&rig);
            graph.launch(&stream).unwrap();
            stream.sync().unwrap();
            told
        };
        assert_eq!(record((memory.address(), 1024)), ["1024) = 0"]);
        assert_eq!(c.download::<f32>().unwrap(), product(1.0, 2.0));
        assert_eq!(record((memory.address() + 16, 2048)), ["0) = 0"], "no multiple of 256");
        assert_eq!(record((memory.address(), 1023)), ["0) = 0"], "too little");
        assert_eq!(record((0, 4096)), ["0) = 0"], "there is no memory at 0");
        c.upload(&[0.0f32; N * N]).unwrap();
        rig.fake.fail(0, 0);
        // SAFETY: as above.
        unsafe { matmul.launch_raw(&stream, &args([&a, &b, &c], (0, 4096))) }.unwrap();
        stream.sync().unwrap();
        assert_eq!(workspaces(&rig), ["1024) = 0"], "the stream's own");
        assert_eq!(c.download::<f32>().unwrap(), product(1.0, 2.0));
    }
    rig.assert_clean();
}

#[test]
fn an_update_replays_products_of_other_operands() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let (stream, matmul) = (device.stream().unwrap(), matmul(&runtime, device));
        let [a, b] = [1.0, 2.0].map(|v| matrix(device, v));
        let [mut first, mut second, mut third] = [0.0; 3].map(|v| matrix(device, v));
        let mut graph = stream
            .capture(|s| {
                matmul.launch(s, call(&a, &b, &mut first))?;
                s.copy(&first, &mut third)
            })
            .unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(third.download::<f32>().unwrap(), product(1.0, 2.0));
        let alike = graph.update(&stream, |s| {
            matmul.launch(s, call(&b, &b, &mut second))?;
            s.copy(&second, &mut third)
        });
        assert_eq!(alike.unwrap(), Updated::InPlace);
        first.upload(&[7.0f32; N * N]).unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(third.download::<f32>().unwrap(), product(2.0, 2.0));
        assert_eq!(first.download::<f32>().unwrap(), [7.0; N * N], "of the work before nothing is left");
        let longer = graph.update(&stream, |s| {
            matmul.launch(s, call(&a, &b, &mut first))?;
            matmul.launch(s, call(&first, &b, &mut second))?;
            s.copy(&second, &mut third)
        });
        assert_eq!(longer.unwrap(), Updated::Rebuilt);
        graph.launch(&stream).unwrap();
        assert_eq!(third.download::<f32>().unwrap(), product(N as f32 * 2.0, 2.0));
        // An update that fails leaves the graph as it was.
        let failed = graph.update(&stream, |s| {
            matmul.launch(s, call(&a, &a, &mut first))?;
            s.sync()
        });
        assert_eq!(failed.unwrap_err().code(), Code::InvalidArgument);
        third.upload(&[0.0f32; N * N]).unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(third.download::<f32>().unwrap(), product(N as f32 * 2.0, 2.0));
    }
    rig.assert_clean();
}

#[test]
fn a_capture_of_another_library_records_our_launches() {
    let rig = Rig::new(Setup::default());
    {
        let theirs = rig::stream(&rig.device());
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let matmul = matmul(&runtime, device);
        let (mut a, b, mut c) = (matrix(device, 1.0), matrix(device, 2.0), matrix(device, 0.0));
        // SAFETY: a live stream of the device, which is dropped after everything that uses it.
        let adopted = unsafe { device.adopt_stream("CUstream", theirs.raw().raw()) }.unwrap();
        let args = args([&a, &b, &c], (0, 0));
        // SAFETY: matrices inside buffers that outlive the graph; nothing else uses them while it runs.
        let queue = || unsafe { matmul.launch_raw(&adopted, &args) };
        queue().unwrap();
        adopted.sync().unwrap();
        c.upload(&[0.0f32; N * N]).unwrap();
        rig.fake.fail(0, 0);
        theirs.begin_capture().unwrap();
        queue().unwrap();
        let graph = theirs.end_capture().unwrap().instantiate().unwrap();
        assert_eq!(workspaces(&rig), ["0) = 0"]);
        assert_eq!(c.download::<f32>().unwrap(), [0.0; N * N], "recording does nothing");
        a.upload(&[5.0f32; N * N]).unwrap();
        // SAFETY: as for the launch.
        unsafe { graph.launch(&theirs) }.unwrap();
        adopted.sync().unwrap();
        assert_eq!(c.download::<f32>().unwrap(), product(5.0, 2.0));
        // Waiting is no part of a graph, whoever records it.
        theirs.begin_capture().unwrap();
        let error = adopted.sync().unwrap_err();
        assert!(
            error.code() == Code::InvalidArgument && error.message().contains("STREAM_CAPTURE_UNSUPPORTED"),
            "{error}"
        );
        assert_eq!(theirs.end_capture().err().map(|e| e.code()), Some(Code::InvalidArgument));
        queue().unwrap();
        adopted.sync().unwrap();
        drop((adopted, graph));
        theirs.sync().unwrap();
    }
    rig.assert_clean();
}

#[test]
fn an_adopted_stream_is_ordered_with_our_own() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    {
        let theirs = rig::stream(&rig.device());
        let runtime = rig.runtime(&[]);
        let (device, other) = (runtime.device("cuda:0").unwrap(), runtime.device("cuda:1").unwrap());
        // SAFETY: as above.
        let adopt = |device: &Device| unsafe { device.adopt_stream("CUstream", theirs.raw().raw()) };
        let (adopted, own, matmul) =
            (adopt(device).unwrap(), device.stream().unwrap(), matmul(&runtime, device));
        let (a, b) = (matrix(device, 1.0), matrix(device, 2.0));
        let [mut c, mut d] = [0.0; 2].map(|v| matrix(device, v));
        rig.fake.fail(0, 0);
        matmul.launch(&adopted, call(&a, &b, &mut c)).unwrap();
        matmul.launch(&own, call(&c, &b, &mut d)).unwrap();
        let waits = (rig.calls("cuStreamWaitEvent"), rig.calls("cuStreamSynchronize"));
        assert_eq!(waits, (1, 0), "the device waits, not the host");
        own.copy(&a, &mut c).unwrap();
        matmul.launch(&adopted, call(&c, &c, &mut d)).unwrap();
        adopted.sync().unwrap();
        assert_eq!(d.download::<f32>().unwrap(), product(1.0, 1.0));
        let error = adopt(other).map(drop).unwrap_err();
        assert!(
            error.code() == Code::InvalidArgument && error.message().contains("primary context"),
            "{error}"
        );
        // A stream that the host adopted records graphs too.
        let graph = adopted.capture(|s| matmul.launch(s, call(&a, &b, &mut d))).unwrap();
        graph.launch(&own).unwrap();
        assert_eq!(d.download::<f32>().unwrap(), product(1.0, 2.0));
        drop((graph, adopted, own));
        theirs.sync().unwrap();
    }
    rig.assert_clean();
}

#[test]
fn the_default_stream_can_be_adopted_and_records_nothing() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    {
        let runtime = rig.runtime(&[]);
        // Each device has its own, by the same handle.
        for name in ["cuda:0", "cuda:1"] {
            let device = runtime.device(name).unwrap();
            // SAFETY: it lives as long as the device's primary context.
            let default = unsafe { device.adopt_stream("CUstream", 0) }.unwrap();
            let (own, matmul) = (device.stream().unwrap(), matmul(&runtime, device));
            let (a, b) = (matrix(device, 3.0), matrix(device, 2.0));
            let [mut c, mut d] = [0.0; 2].map(|v| matrix(device, v));
            rig.fake.fail(0, 0);
            matmul.launch(&default, call(&a, &b, &mut c)).unwrap();
            assert_eq!(default.query(), Ok(false), "work is late here too");
            own.copy(&c, &mut d).unwrap();
            own.sync().unwrap();
            assert_eq!(d.download::<f32>().unwrap(), product(3.0, 2.0));
            assert_eq!(workspaces(&rig), ["1024) = 0"]);
            let error = default.capture(|s| s.copy(&a, &mut d)).unwrap_err();
            assert!(
                error.code() == Code::InvalidArgument && error.message().contains("beginning a capture"),
                "{error}"
            );
            default.copy(&a, &mut d).unwrap();
            default.sync().unwrap();
            assert_eq!(d.download::<f32>().unwrap(), [3.0; N * N], "it goes on");
        }
    }
    rig.assert_clean();
}
