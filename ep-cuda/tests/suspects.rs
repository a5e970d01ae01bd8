//! Which work and which device an error is blamed on, on the fake driver.

mod rig;

use ep_core::primitive::{Matmul, MatmulCall, MatmulDesc, Transpose};
use ep_core::provider::{Allocator, CopyRequest, Device, Event, MemoryKind, Provider, Stream};
use ep_core::{Code, DType, Result, Scalar};
use ep_cuda::device::CudaDevice;
use ep_cuda::memory::CudaAllocator;
use ep_cuda::provider::CudaProvider;
use ep_cuda::stream::CudaStream;
use fakecuda::result;
use rig::{Rig, Setup, adopt, stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tracing::{Metadata, Subscriber, span};

/// A device with memory, and what breaks it.
struct Bench {
    device: CudaDevice,
    memory: CudaAllocator,
    space: String,
    x: u64,
}

impl Bench {
    fn new(device: CudaDevice) -> Bench {
        let memory = device.open_allocator(MemoryKind::Device).unwrap();
        let (space, x) = (device.info().memory_space, memory.alloc(64, 64, None).unwrap());
        Bench { device, memory, space, x }
    }

    /// Queues a piece of work.
    fn copy(&self, stream: &CudaStream) -> Result<()> {
        let (dst_space, src_space) = (&*self.space, &*self.space);
        let copy = CopyRequest { dst: self.x, dst_space, src: self.x + 32, src_space, bytes: 16 };
        // SAFETY: both ranges are inside an allocation that lives as long as this.
        unsafe { stream.copy(copy) }
    }

    /// Queues a piece of work that loses the device when its turn comes.
    fn fault(&self, stream: &CudaStream) {
        let freed = self.memory.alloc(16, 64, None).unwrap();
        let (dst_space, src_space) = (&*self.space, &*self.space);
        let copy = CopyRequest { dst: self.x, dst_space, src: freed, src_space, bytes: 16 };
        // SAFETY: the memory is freed too early on purpose; the fake notices and touches nothing.
        unsafe { stream.copy(copy) }.unwrap();
        self.memory.free(freed, 16).unwrap();
        self.memory.trim().unwrap();
    }

    /// The message of an error that a stream finds.
    fn lost(&self) -> String {
        let guilty = stream(&self.device);
        self.fault(&guilty);
        let error = guilty.sync().unwrap_err();
        assert_eq!(error.code(), Code::DeviceLost);
        error.message().to_owned()
    }
}

/// The message where nothing but the work that failed is pending.
const ALONE: &str = "the work pending on this stream was copy: ";

#[test]
fn work_that_was_only_recorded_is_not_suspected() {
    for sync_launches in [false, true] {
        let rig = Rig::new(Setup::default());
        let mut settings = rig.settings();
        settings.sync_launches = sync_launches;
        let bench = Bench::new(CudaProvider::new(&settings).unwrap().open_device(0).unwrap());
        let own = stream(&bench.device);
        let adopted = adopt(&bench.device, own.raw().raw()).unwrap();
        own.begin_capture().unwrap();
        // Nor where another library records on the stream.
        for queue in [&own, &own, &adopted] {
            bench.copy(queue).unwrap();
        }
        let graph = own.end_capture().unwrap();
        let guilty = stream(&bench.device);
        bench.copy(&guilty).unwrap();
        let message = if sync_launches {
            rig.fake.fail(1, result::LAUNCH_FAILED);
            guilty.sync().unwrap_err().message().to_owned()
        } else {
            bench.fault(&guilty);
            guilty.sync().unwrap_err().message().to_owned()
        };
        let words = if sync_launches {
            "no work was pending: "
        } else {
            "one of 2 pieces of work pending on this stream: copy, copy: "
        };
        assert!(message.starts_with(words), "{message}");
        drop(graph);
    }
}

#[test]
fn work_that_is_known_to_be_done_is_not_suspected() {
    type Notice = fn(&CudaStream, [&ep_cuda::event::CudaEvent; 2]) -> Result<()>;
    let all: [(&str, Notice); 4] = [
        ("query of the stream", |queue, _| {
            while !queue.query()? {}
            Ok(())
        }),
        ("query of an event", |_, [_, end]| {
            while !end.query()? {}
            Ok(())
        }),
        ("waiting for an event", |_, [_, end]| end.sync()),
        ("time between events", |queue, [start, end]| {
            // Another object of the stream, whose wait is not this one's.
            let _seen = queue;
            while CudaDevice::TIMING.unwrap()(start, end).is_err() {
                end.query()?;
            }
            Ok(())
        }),
    ];
    for (what, notice) in all {
        for more in [0, 1] {
            let rig = Rig::new(Setup::default());
            let bench = Bench::new(rig.device());
            let done = stream(&bench.device);
            let [start, end] = [0; 2].map(|_| bench.device.create_event().unwrap());
            done.record(&start).unwrap();
            (0..40).for_each(|_| bench.copy(&done).unwrap());
            done.record(&end).unwrap();
            notice(&done, [&start, &end]).unwrap();
            // What is behind is suspected on.
            (0..more).for_each(|_| bench.copy(&done).unwrap());
            let message = bench.lost();
            let words = if more == 0 {
                ALONE
            } else {
                "one of 2 pieces of work pending on this stream: copy; on stream"
            };
            assert!(message.starts_with(words), "{what}, {more} behind: {message}");
        }
    }
}

#[test]
fn an_event_tells_of_the_work_before_it_alone() {
    let rig = Rig::new(Setup::default());
    let bench = Bench::new(rig.device());
    let (queue, event) = (stream(&bench.device), bench.device.create_event().unwrap());
    (0..3).for_each(|_| bench.copy(&queue).unwrap());
    queue.record(&event).unwrap();
    (0..2).for_each(|_| bench.copy(&queue).unwrap());
    event.sync().unwrap();
    let error = stream(&rig.device()).record(&event).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "an event of another instance's context");
    assert!(bench.lost().starts_with("one of 3 pieces of work pending on this stream: copy; on stream"));
}

/// A product's error tells of the lost device, and of the work of its own stream first.
#[test]
fn a_failing_product_names_the_work_of_its_stream_first() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let device = runtime.device("cuda:0").unwrap();
    let (own, other) = (device.stream().unwrap(), device.stream().unwrap());
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    let matmul = runtime.primitive::<Matmul>(device, desc).unwrap();
    let (a, x) = (device.upload(&[1.0f32; 16]).unwrap(), device.upload(&[1.0f32; 16]).unwrap());
    let [mut c, mut y] = [0; 2].map(|_| device.upload(&[0.0f32; 16]).unwrap());
    let mut product = || {
        let (alpha, beta) = (Scalar::None, Scalar::None);
        matmul.launch(&own, MatmulCall { m: 4, n: 4, k: 4, alpha, beta, a: &a, b: &a, c: &mut c })
    };
    product().unwrap();
    own.sync().unwrap();
    rig.fake.fail(0, 0);
    product().unwrap();
    let call = rig.fake.log().iter().position(|l| l.starts_with("cublasLtMatmul(")).unwrap() as u64 + 1;
    other.copy(&x, &mut y).unwrap();
    rig.fake.fail(call, result::LAUNCH_FAILED);
    let error = product().unwrap_err();
    assert_eq!(error.code(), Code::DeviceLost);
    let words = "one of 2 pieces of work pending on this stream: matmul; on stream ";
    assert!(error.message().contains("cublasLtMatmul") && error.message().contains(words), "{error}");
}

/// Every way to find out marks the context, and names the work.
#[test]
fn whoever_finds_a_lost_device_says_so() {
    // The call that fails first, and what makes it.
    type Find = fn(&CudaDevice, u64) -> Result<()>;
    let finders: [(&str, &str, Find); 3] = [
        ("cuStreamGetCtx(", "adopting CUstream ", |device, handle| adopt(device, handle).map(drop)),
        ("cuCtxGetCurrent(", "the work pending on stream ", |device, _| device.create_event().map(drop)),
        ("cuCtxSetCurrent(0x100", "the work pending on stream ", |device, _| device.create_event().map(drop)),
    ];
    for (call, words, find) in finders {
        // Of two devices none stays current, so that each call enters its context.
        let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
        let bench = Bench::new(rig.device());
        let queue = stream(&bench.device);
        rig.fake.fail(0, 0);
        find(&bench.device, queue.raw().raw()).unwrap();
        let place = rig.fake.log().iter().position(|l| l.starts_with(call)).unwrap() as u64 + 1;
        let event = bench.device.create_event().unwrap();
        bench.copy(&queue).unwrap();
        rig.fake.fail(place, result::LAUNCH_FAILED);
        let error = find(&bench.device, queue.raw().raw()).unwrap_err();
        assert!(error.code() == Code::DeviceLost && error.message().starts_with(words), "{call} {error}");
        for word in ["the work pending on stream ", " was copy: ", "CUDA_ERROR_LAUNCH_FAILED"] {
            assert!(error.message().contains(word), "{call} {word}: {error}");
        }
        assert!(bench.device.context().unwrap().is_lost(), "{call}");
        drop(event);
    }
}

/// Two instances have a context object each for one primary context: one may know that it is lost when the other does not.
fn losing_instance(rig: &Rig) -> Bench {
    let bench = Bench::new(rig.device());
    bench.lost();
    bench
}

#[test]
fn a_lost_device_does_not_keep_another_from_being_opened() {
    for known in [true, false] {
        let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
        let provider = rig.provider();
        let [first, second] = [0, 1].map(|i| provider.open_device(i).unwrap());
        let lost = first.context().unwrap().clone();
        let _teller = losing_instance(&rig);
        if known {
            first.create_stream(Default::default()).map(drop).unwrap_err();
            assert!(lost.is_lost());
        }
        rig.fake.fail(0, 0);
        let context = second.context().unwrap();
        assert!(lost.is_lost() && !context.is_lost(), "known {known}");
        assert_eq!(rig.calls("cuCtxEnablePeerAccess"), usize::from(!known), "{:#?}", rig.fake.log());
        let bench = Bench::new(second);
        let queue = stream(&bench.device);
        bench.copy(&queue).unwrap();
        queue.sync().unwrap();
        bench.memory.free(bench.x, 64).unwrap();
    }
}

#[test]
fn a_copy_between_peers_blames_the_one_that_is_lost() {
    for own_is_lost in [false, true] {
        let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
        let provider = rig.provider();
        let [a, b] = [0, 1].map(|i| Bench::new(provider.open_device(i).unwrap()));
        let (on_a, on_b) = (stream(&a.device), stream(&b.device));
        let copy = CopyRequest { dst: b.x, dst_space: &b.space, src: a.x, src_space: &a.space, bytes: 16 };
        losing_instance(&rig);
        let queue = if own_is_lost { &on_a } else { &on_b };
        // SAFETY: live allocations.
        let error = unsafe { queue.copy(copy) }.unwrap_err();
        assert_eq!(error.code(), Code::DeviceLost);
        assert_eq!(error.message().contains("device 0, a peer"), !own_is_lost, "{error}");
        assert!(a.device.context().unwrap().is_lost() && !b.device.context().unwrap().is_lost(), "{error}");
        on_b.sync().unwrap();
    }
}

/// Does something of the program's at the first message.
struct Answers<F>(AtomicBool, F);

impl<F: Fn() + Send + Sync + 'static> Subscriber for Answers<F> {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        if !self.0.swap(true, Ordering::Relaxed) {
            (self.1)();
        }
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Runs `work` with a subscriber that does `answer`; whether both end.
fn with_answer(work: impl FnOnce() + Send + 'static, answer: impl Fn() + Send + Sync + 'static) {
    let (done, ended) = mpsc::channel();
    let answered = Arc::new(AtomicBool::new(false));
    let told = answered.clone();
    let answers = Answers(AtomicBool::new(false), move || {
        answer();
        told.store(true, Ordering::Relaxed);
    });
    std::thread::spawn(move || {
        tracing::subscriber::with_default(answers, work);
        let _nobody_waits_any_more = done.send(());
    });
    ended.recv_timeout(Duration::from_secs(20)).expect("nobody waits for a lock that its own thread has");
    assert!(answered.load(Ordering::Relaxed), "something was told");
}

/// Asking for shared memory fails when the context is left, which is told: whoever hears it may ask too.
#[test]
fn messages_come_when_no_lock_of_kernels_is_held() {
    // Of two devices none stays current, so that the context is left.
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    let device = rig.device();
    let function = rig.function(&device);
    rig.fake.fail(0, 0);
    function.allow_shared(64 << 10).unwrap();
    let calls = rig.fake.log();
    assert!(calls.last().is_some_and(|l| l.starts_with("cuCtxSetCurrent(0x0)")), "{calls:#?}");
    rig.fake.fail(calls.len() as u64, result::OUT_OF_MEMORY);
    let again = function.clone();
    with_answer(move || drop(function.allow_shared(65 << 10)), move || drop(again.allow_shared(66 << 10)));
}

/// So is joining peers, and whoever hears it may copy between them.
#[test]
fn messages_come_when_no_lock_of_peers_is_held() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    let open = || -> (Arc<CudaProvider>, CudaDevice, CudaDevice) {
        let provider = Arc::new(rig.provider());
        let [a, b] = [0, 1].map(|i| provider.open_device(i).unwrap());
        a.context().unwrap();
        (provider, a, b)
    };
    let (_provider, a, b) = open();
    rig.fake.fail(0, 0);
    b.context().unwrap();
    let calls = rig.fake.log();
    let enabled = calls.iter().position(|l| l.starts_with("cuCtxEnablePeerAccess(")).unwrap();
    let left = calls[enabled..].iter().position(|l| l.starts_with("cuCtxSetCurrent(0x0)")).unwrap();
    drop((_provider, a, b));
    let (_provider, a, b) = open();
    let (space, memory) = (b.info().memory_space, a.open_allocator(MemoryKind::Device).unwrap());
    let x = memory.alloc(64, 64, None).unwrap();
    rig.fake.fail((enabled + left) as u64 + 1, result::OUT_OF_MEMORY);
    with_answer(
        move || drop(b.context().map(|_| ())),
        move || {
            let queue = stream(&a);
            let copy = CopyRequest { dst: x, dst_space: &space, src: x + 32, src_space: &space, bytes: 16 };
            // SAFETY: memory of an allocation that lives, though of the other device, which the fake does not mind.
            unsafe { queue.copy(copy) }.unwrap();
            queue.sync().unwrap();
        },
    );
}
