//! Products with operands that come again and again, whose launches are kept: on a fake cuBLASLt that computes.

mod rig;

use ep_core::primitive::{Fill, FillCall, FillDesc, Matmul, MatmulCall, MatmulDesc, Transpose};
use ep_core::{Code, DType, Error, Result, Scalar};
use ep_registry::{Buffer, Device, Primitive, Runtime, Stream};
use fakecuda::result;
use rig::{Rig, Setup};

/// Launches that the library makes before one is kept.
const TIMES: usize = 8;

/// A product of 2 by k and k by n whose result is added to what c has.
struct Bench {
    device: Device,
    matmul: Primitive<Matmul>,
    a: Buffer,
    b: Buffer,
    c: Buffer,
    n: i64,
    k: i64,
}

impl Bench {
    fn new(runtime: &Runtime, n: i64, k: i64) -> Bench {
        let device = runtime.device("cuda:0").unwrap().clone();
        let none = Transpose::NONE;
        let matmul = runtime.primitive::<Matmul>(&device, MatmulDesc::new(none, none, DType::F32)).unwrap();
        let ones = |count: i64| device.upload(&vec![1.0f32; count as usize]).unwrap();
        let (a, b, c) = (ones(2 * k), ones(k * n), device.upload(&vec![0.0f32; 2 * n as usize]).unwrap());
        Bench { matmul, a, b, c, n, k, device }
    }

    fn launch(&mut self, stream: &Stream) -> Result<()> {
        let Bench { a, b, c, n, k, .. } = self;
        let (alpha, beta) = (Scalar::None, Scalar::F64(1.0));
        self.matmul.launch(stream, MatmulCall { m: 2, n: *n, k: *k, alpha, beta, a: &*a, b: &*b, c })
    }

    /// Launches so many times.
    fn launches(&mut self, stream: &Stream, times: usize) {
        for _ in 0..times {
            self.launch(stream).unwrap();
        }
    }

    /// Launches, and which calls that made; without what asks for the current context.
    fn calls(&mut self, rig: &Rig, stream: &Stream) -> Vec<String> {
        rig.fake.fail(0, 0);
        self.launch(stream).unwrap();
        let log = rig.fake.log();
        let names = log.iter().map(|line| line.split('(').next().unwrap().to_owned());
        names.filter(|name| name != "cuCtxGetCurrent").collect()
    }

    /// What every element of c is.
    #[track_caller]
    fn sum(&self) -> f32 {
        let c = self.c.download::<f32>().unwrap();
        assert!(c.iter().all(|x| *x == c[0]), "{c:?}");
        c[0]
    }
}

/// The calls of a launch that was kept, and of one that was not.
const KEPT: [&str; 1] = ["cuLaunchKernelEx"];
const ASKED: [&str; 1] = ["cublasLtMatmul"];

#[test]
fn operands_that_come_again_are_multiplied_without_the_library() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let (mut bench, mut other) = (Bench::new(&runtime, 3, 2), Bench::new(&runtime, 3, 2));
        let stream = bench.device.stream().unwrap();
        bench.launch(&stream).unwrap();
        for _ in 2..TIMES {
            assert_eq!(bench.calls(&rig, &stream), ASKED);
        }
        let recorded = bench.calls(&rig, &stream);
        assert_eq!(recorded.iter().filter(|call| *call == "cublasLtMatmul").count(), 2, "{recorded:?}");
        assert_eq!(bench.sum(), 2.0 * TIMES as f32, "what is recorded is not done");
        for _ in 0..3 {
            assert_eq!(bench.calls(&rig, &stream), KEPT);
        }
        assert_eq!(bench.sum(), 2.0 * (TIMES + 3) as f32);
        // What the operands hold is read anew.
        bench.a.upload(&[10.0f32; 4]).unwrap();
        assert_eq!(bench.calls(&rig, &stream), KEPT);
        assert_eq!(bench.sum(), 2.0 * (TIMES + 3) as f32 + 20.0);
        // Other operands, and others of these operands, are the library's.
        assert_eq!(other.calls(&rig, &stream).last().unwrap(), "cublasLtMatmul");
        bench.n = 2;
        assert_eq!(bench.calls(&rig, &stream).last().unwrap(), "cublasLtMatmul");
        bench.n = 3;
        let second = bench.device.stream().unwrap();
        assert_eq!(bench.calls(&rig, &second).last().unwrap(), "cuLaunchKernelEx", "on any stream");
        assert_eq!(rig.calls("cublasLtMatmul"), 0);
        second.sync().unwrap();
    }
    rig.assert_clean();
}

#[test]
fn several_operands_are_kept_beside_each_other() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let mut one = Bench::new(&runtime, 3, 2);
        let stream = one.device.stream().unwrap();
        let c = one.c;
        let mut cs: Vec<Buffer> = (0..3).map(|_| one.device.upload(&[0.0f32; 6]).unwrap()).collect();
        cs.push(c);
        for turn in 0..TIMES + 2 {
            rig.fake.fail(0, 0);
            for c in &mut cs {
                let call = MatmulCall {
                    m: 2,
                    n: 3,
                    k: 2,
                    alpha: Scalar::None,
                    beta: Scalar::None,
                    a: &one.a,
                    b: &one.b,
                    c,
                };
                one.matmul.launch(&stream, call).unwrap();
            }
            let kept = turn >= TIMES;
            assert_eq!(rig.calls("cuLaunchKernelEx"), if kept { 4 } else { 0 }, "turn {turn}");
            assert_eq!(rig.calls("cublasLtMatmul") == 0, kept, "turn {turn}");
        }
        one.a.upload(&[3.0f32; 4]).unwrap();
        stream.sync().unwrap();
        one.c = cs.remove(2);
        assert_eq!(one.sum(), 2.0);
    }
    rig.assert_clean();
}

#[test]
fn products_of_two_kernels_or_with_workspace_stay_the_librarys() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        for (n, k, what) in [(1, 2, "two pieces of work"), (3, 3, "workspace")] {
            let mut bench = Bench::new(&runtime, n, k);
            let stream = bench.device.stream().unwrap();
            bench.launches(&stream, 3 * TIMES);
            let calls = bench.calls(&rig, &stream);
            assert_eq!(calls.last().unwrap(), "cublasLtMatmul", "{what}");
            assert!(!calls.iter().any(|call| call == "cuStreamBeginCapture"), "{what}: {calls:?}");
            assert_eq!(bench.sum(), k as f32 * (3 * TIMES + 1) as f32, "{what}");
        }
    }
    rig.assert_clean();
}

#[test]
fn kept_launches_are_recorded_into_graphs_and_waited_for() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let mut bench = Bench::new(&runtime, 3, 2);
        let stream = bench.device.stream().unwrap();
        bench.launches(&stream, TIMES);
        let graph = stream.capture(|s| bench.launch(s)).unwrap();
        assert_eq!(bench.sum(), 2.0 * TIMES as f32, "recording does nothing");
        graph.launch(&stream).unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(bench.sum(), 2.0 * (TIMES + 2) as f32);
        // Kernels of the library may let a launch begin early, and end before what they follow.
        let fill = runtime.primitive::<Fill>(&bench.device, FillDesc::new(DType::F32)).unwrap();
        let mut y = bench.device.alloc(DType::F32, 4).unwrap();
        let mut go = |stream: &Stream| {
            fill.launch(stream, FillCall { count: 4, value: Scalar::F64(1.0), dst: &mut y }).unwrap();
        };
        go(&stream);
        rig.fake.fail(0, 0);
        go(&stream);
        bench.launch(&stream).unwrap();
        go(&stream);
        go(&stream);
        let log = rig.fake.log();
        let launches = log.iter().filter(|line| line.starts_with("cuLaunch"));
        let names: Vec<_> = launches.map(|line| line.split('(').next().unwrap()).collect();
        let overlapping = "cuLaunchKernelEx";
        assert_eq!(names, [overlapping, "cuLaunchKernelEx", "cuLaunchKernel", overlapping]);
        assert!(log.iter().any(|line| line.starts_with("cuLaunchKernelEx(0x77") && line.contains("waits")));
        stream.sync().unwrap();
    }
    rig.assert_clean();
}

#[test]
fn an_option_leaves_every_product_to_the_library() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[("repeat_products", "false")]);
        let mut bench = Bench::new(&runtime, 3, 2);
        let stream = bench.device.stream().unwrap();
        bench.launches(&stream, 2 * TIMES);
        assert_eq!(bench.calls(&rig, &stream), ASKED);
        assert_eq!(bench.sum(), 2.0 * (2 * TIMES + 1) as f32);
    }
    rig.assert_clean();
}

/// While a graph is recorded, products make do without workspace: that choice is not kept for launches that may have it.
#[test]
fn what_is_made_do_with_in_a_graph_is_not_kept() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let mut bench = Bench::new(&runtime, 3, 3);
        let stream = bench.device.stream().unwrap();
        bench.launches(&stream, TIMES - 1);
        drop(stream.capture(|s| bench.launch(s)).unwrap());
        for _ in 0..3 {
            let calls = bench.calls(&rig, &stream);
            assert_eq!(calls.last().unwrap(), "cublasLtMatmul");
            assert!(rig.fake.log().iter().any(|line| line.ends_with("workspace 1024) = 0")), "{calls:?}");
        }
        stream.sync().unwrap();
    }
    rig.assert_clean();
}

#[test]
fn a_launch_that_is_due_in_a_graph_is_kept_later() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let mut bench = Bench::new(&runtime, 3, 2);
        let stream = bench.device.stream().unwrap();
        bench.launches(&stream, TIMES - 1);
        rig.fake.fail(0, 0);
        drop(stream.capture(|s| bench.launch(s)).unwrap());
        assert_eq!(rig.calls("cuStreamBeginCapture"), 1, "nothing else is captured meanwhile");
        for _ in 0..TIMES {
            assert_eq!(bench.calls(&rig, &stream)[0], "cublasLtMatmul");
        }
        assert_eq!(bench.calls(&rig, &stream), KEPT);
        assert_eq!(bench.sum(), 2.0 * (2 * TIMES) as f32);
    }
    rig.assert_clean();
}

#[test]
fn launches_that_are_waited_for_are_kept_too() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[("sync_launches", "true")]);
        let mut bench = Bench::new(&runtime, 3, 2);
        let stream = bench.device.stream().unwrap();
        bench.launches(&stream, TIMES);
        let calls = bench.calls(&rig, &stream);
        assert_eq!(calls, ["cuStreamIsCapturing", "cuLaunchKernelEx", "cuStreamSynchronize"]);
        // What only the wait tells is no reason to launch once more.
        rig.fake.fail(0, 0);
        bench.launch(&stream).unwrap();
        let log = rig.fake.log();
        let wait = log.iter().position(|call| call.starts_with("cuStreamSynchronize")).unwrap() + 1;
        rig.fake.fail(wait as u64, result::OUT_OF_MEMORY);
        assert_eq!(bench.launch(&stream).unwrap_err().code(), Code::OutOfMemory);
        assert_eq!((rig.calls("cuLaunchKernelEx"), rig.calls("cublasLtMatmul")), (1, 0));
        assert_eq!(bench.calls(&rig, &stream), calls);
        assert_eq!(bench.sum(), 2.0 * (TIMES + 4) as f32);
    }
    rig.assert_clean();
}

/// Nor what is made do with because option `memory_limit` leaves no room.
#[test]
fn what_is_made_do_with_for_want_of_memory_is_not_kept() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[("memory_limit", "1100")]);
        let mut bench = Bench::new(&runtime, 3, 3);
        let stream = bench.device.stream().unwrap();
        for _ in 0..2 * TIMES {
            let calls = bench.calls(&rig, &stream);
            assert_eq!(calls.last().unwrap(), "cublasLtMatmul");
            assert!(rig.fake.log().iter().any(|line| line.ends_with("workspace 0) = 0")), "{calls:?}");
        }
        assert_eq!(bench.sum(), 3.0 * (2 * TIMES) as f32);
    }
    rig.assert_clean();
}

/// The calls of the launch that is recorded, of which number `failing` fails with `code`; 0: none. `then` sees what became of
/// it, and afterwards nothing is left behind.
fn recording_with_failure(
    rig: &Rig,
    failing: usize,
    code: i32,
    then: impl FnOnce(&mut Bench, &Stream, Result<()>, &[String]),
) -> Vec<String> {
    rig.fake.reset(Setup::default());
    let calls = {
        let runtime = rig.runtime(&[]);
        let mut bench = Bench::new(&runtime, 3, 2);
        let stream = bench.device.stream().unwrap();
        bench.launches(&stream, TIMES - 1);
        rig.fake.fail(failing as u64, code);
        let launched = bench.launch(&stream);
        let calls = rig.fake.log();
        then(&mut bench, &stream, launched, &calls);
        calls
    };
    assert_eq!(rig.fake.leaks(), [""; 0], "call {failing}");
    calls
}

/// Whatever fails while a launch is recorded: it has been done, and the library goes on.
#[test]
fn a_recording_that_fails_fails_no_launch() {
    let rig = Rig::new(Setup::default());
    let calls = |failing: usize| {
        recording_with_failure(&rig, failing, result::OUT_OF_MEMORY, |bench, stream, launched, _| {
            launched.unwrap_or_else(|e| panic!("call {failing}: {e}"));
            // It is tried again.
            bench.launches(stream, TIMES);
            assert_eq!(bench.calls(&rig, stream), KEPT, "call {failing}");
            assert_eq!(bench.sum(), 2.0 * (2 * TIMES + 1) as f32, "call {failing}");
        })
    };
    let all = calls(0);
    let modes = all.iter().filter(|call| call.starts_with("cuThreadExchangeStreamCaptureMode"));
    let modes: Vec<_> = modes.map(|call| call.split(['(', ')']).nth(1).unwrap()).collect();
    assert_eq!(modes, ["2", "0"], "relaxed, and as it was");
    let done = all.iter().position(|call| call.starts_with("cublasLtMatmul")).unwrap() + 1;
    // The stream is asked whether it captures, of which an error is the launch's.
    let first = all.iter().position(|call| call.starts_with("cuThreadExchangeStreamCaptureMode")).unwrap();
    assert!(first > done && all.len() - first > 10, "{all:?}");
    for failing in first + 1..=all.len() {
        let with_failure = calls(failing);
        assert!(with_failure.iter().any(|call| call.ends_with("= 2")), "{with_failure:?}");
    }
}

/// The device is lost at each call of a recording: the launch says so, unless the call only gave something back, and then the
/// next one does.
#[test]
fn a_device_that_is_lost_meanwhile_is_told_of() {
    let rig = Rig::new(Setup::default());
    let gives_back = ["cuStreamDestroy", "cuThreadExchangeStreamCaptureMode(0", "cuCtx"];
    let calls = |failing: usize| {
        recording_with_failure(&rig, failing, result::ILLEGAL_ADDRESS, |bench, stream, launched, calls| {
            let Some(call) = failing.checked_sub(1).map(|i| &calls[i]) else { return };
            if !gives_back.iter().any(|name| call.starts_with(name)) {
                assert_eq!(launched.as_ref().map_err(Error::code), Err(Code::DeviceLost), "{call}");
            }
            let told = launched.and(bench.launch(stream)).unwrap_err();
            assert_eq!(told.code(), Code::DeviceLost, "{call}: {told}");
        })
    };
    for failing in 1..=calls(0).len() {
        calls(failing);
    }
}

#[test]
fn a_kept_launch_that_fails_is_left_to_the_library() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let mut bench = Bench::new(&runtime, 3, 2);
        let stream = bench.device.stream().unwrap();
        bench.launches(&stream, TIMES);
        rig.fake.fail(2, result::OUT_OF_MEMORY);
        bench.launch(&stream).unwrap();
        let log = rig.fake.log();
        let failed = log.iter().position(|l| l.starts_with("cuLaunchKernelEx") && l.ends_with("= 2"));
        assert!(failed.is_some() && log.last().unwrap().starts_with("cublasLtMatmul"), "{log:?}");
        for _ in 0..2 * TIMES {
            assert_eq!(bench.calls(&rig, &stream), ASKED);
        }
        assert_eq!(bench.sum(), 2.0 * (3 * TIMES + 1) as f32);
    }
    rig.assert_clean();
}
