//! Devices, streams, events, memory and graphs on the fake driver.

mod rig;

use ep_core::provider::{Allocator, CopyRequest, Device, Event, MemoryKind, Provider, Stream, StreamOptions};
use ep_core::{Code, Error};
use ep_cuda::device::CudaDevice;
use ep_cuda::event::CudaEvent;
use ep_cuda::graph::Update;
use ep_cuda::memory::CudaAllocator;
use ep_cuda::provider::CudaProvider;
use ep_cuda::settings::Settings;
use ep_cuda::stream::CudaStream;
use rig::{Rig, Setup, adopt, stream};

fn request<'a>(dst: u64, dst_space: &'a str, src: u64, src_space: &'a str, bytes: u64) -> CopyRequest<'a> {
    CopyRequest { dst, dst_space, src, src_space, bytes }
}

fn address<T>(data: &[T]) -> u64 {
    data.as_ptr().expose_provenance() as u64
}

/// Copies host memory to a device's.
fn upload(stream: &CudaStream, space: &str, dst: u64, data: &[u8]) {
    // SAFETY: the destination is an allocation of the tests, and the source lives until the sync.
    unsafe { stream.copy(request(dst, space, address(data), "host", data.len() as u64)) }.unwrap();
    stream.sync().unwrap();
}

fn download(stream: &CudaStream, space: &str, src: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0u8; bytes];
    let to = data.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: as in `upload`.
    unsafe { stream.copy(request(to, "host", src, space, bytes as u64)) }.unwrap();
    stream.sync().unwrap();
    data
}

#[test]
fn devices_tell_what_they_are() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    let provider = rig.provider();
    assert_eq!(provider.device_count(), Ok(2));
    let device = provider.open_device(1).unwrap();
    let info = device.info();
    assert_eq!(
        (info.kind.as_str(), info.name.as_str(), info.pci.as_str()),
        ("cuda", "Fake GPU 1", "0000:1c:00.0")
    );
    assert_eq!((info.uuid[0], info.memory_bytes, info.inline), (0xf1, 1 << 30, false));
    let other = provider.open_device(0).unwrap().info();
    assert!(info.reads.contains(&other.memory_space) && info.writes.contains(&info.memory_space), "{info:?}");
    let text = |name: &str| info.attributes.iter().find(|(n, _)| n == name).unwrap().1.to_string();
    assert_eq!(
        (text("compute_capability"), text("sm_count"), text("l2_bytes")),
        ("90".into(), "132".into(), (50 << 20).to_string())
    );
    assert_eq!(provider.open_device(2).err().unwrap().code(), Code::NotFound);
    // Looking makes no context, which would take memory of every GPU.
    assert_eq!(rig.calls("cuDevicePrimaryCtxRetain"), 0);
}

#[test]
fn option_visible_orders_and_filters() {
    let rig = Rig::new(Setup { devices: 3, ..Setup::default() });
    let with = |list: &str| CudaProvider::new(&Settings { visible: Some(list.into()), ..rig.settings() });
    let provider = with("2,GPU-f0").unwrap();
    let names: Vec<_> = (0..2).map(|i| provider.open_device(i).unwrap().info().name).collect();
    assert_eq!(
        (provider.device_count(), names.as_slice()),
        (Ok(2), &["Fake GPU 2".to_owned(), "Fake GPU 0".to_owned()][..])
    );
    assert_eq!(with("7").err().unwrap().code(), Code::InvalidArgument);
    assert_eq!(with("").unwrap().device_count().unwrap_err().code(), Code::Unavailable);
}

#[test]
fn a_driver_that_is_missing_too_old_or_without_devices_is_absent() {
    let rig = Rig::new(Setup { devices: 0, ..Setup::default() });
    let error = rig.provider().device_count().unwrap_err();
    assert!(error.code() == Code::Unavailable && error.message().contains("CUDA_ERROR_NO_DEVICE"), "{error}");
    rig.fake.reset(Setup { version: 11080, ..Setup::default() });
    let error = rig.provider().device_count().unwrap_err();
    assert!(error.code() == Code::Unavailable && error.message().contains("12.0"), "{error}");
    let missing = Settings { driver: Some("/nowhere/libcuda.so.1".into()), ..rig.settings() };
    let error = CudaProvider::new(&missing).unwrap().device_count().unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "/nowhere/libcuda.so.1 not found"));
}

#[test]
fn work_is_late_and_events_know_when_it_is_done() {
    let rig = Rig::new(Setup::default());
    {
        let device = rig.device();
        let (a, b) = (stream(&device), stream(&device));
        let memory = device.open_allocator(MemoryKind::Device).unwrap();
        let space = device.info().memory_space;
        let (x, y) = (memory.alloc(64, 64, None).unwrap(), memory.alloc(64, 64, None).unwrap());
        let (start, end) = (device.create_event().unwrap(), device.create_event().unwrap());
        assert_eq!(start.query(), Ok(true), "an event without a record is done");
        start.sync().unwrap();
        a.wait(&start).unwrap();
        let elapsed = CudaDevice::TIMING.unwrap();
        assert_eq!(elapsed(&start, &end).unwrap_err().code(), Code::InvalidArgument);

        let data: Vec<u8> = (0..64).collect();
        a.record(&start).unwrap();
        // SAFETY: live allocations, and `data` lives until the sync below.
        unsafe { a.copy(request(x, &space, address(&data), "host", 64)) }.unwrap();
        a.record(&end).unwrap();
        assert_eq!((a.query(), end.query()), (Ok(false), Ok(false)));
        assert_eq!(elapsed(&start, &end).unwrap_err().code(), Code::InvalidArgument, "not done yet");
        // Another stream waits for the copy, not the host.
        b.wait(&end).unwrap();
        // SAFETY: as above.
        unsafe { b.copy(request(y, &space, x, &space, 64)) }.unwrap();
        assert_eq!(download(&b, &space, y, 64), data);
        assert_eq!((end.query(), a.query()), (Ok(true), Ok(true)));
        assert_eq!(elapsed(&start, &end), Ok(2_000_000), "the copy and the record take a millisecond each");
        memory.free(x, 64).unwrap();
        memory.free(y, 64).unwrap();
    }
    rig.assert_clean();
}

#[test]
fn events_are_pooled_and_forget_their_record() {
    let rig = Rig::new(Setup::default());
    let device = rig.device();
    let queue = stream(&device);
    for _ in 0..10 {
        let event = device.create_event().unwrap();
        assert_eq!(event.query(), Ok(true));
        queue.record(&event).unwrap();
    }
    assert_eq!(rig.calls("cuEventCreate"), 1);
    drop((queue, device));
    rig.assert_clean();
}

#[test]
fn priorities_are_clamped_to_what_the_device_has() {
    let rig = Rig::new(Setup::default());
    let device = rig.device();
    for (asked, got) in [(0, 0), (-3, -3), (-100, -5), (100, 0), (i64::MIN, -5)] {
        rig.fake.fail(0, 0);
        drop(device.create_stream(StreamOptions { priority: asked }).unwrap());
        assert!(
            rig.fake.log().iter().any(|l| *l == format!("cuStreamCreateWithPriority(1, {got}) = 0")),
            "{asked}"
        );
    }
}

#[test]
fn memory_is_aligned_counted_limited_and_freed_once() {
    for pools in [1, 0] {
        let rig = Rig::new(Setup { pools, memory_bytes: 1 << 20, ..Setup::default() });
        {
            let device = rig.device();
            let memory = device.open_allocator(MemoryKind::Device).unwrap();
            let x = memory.alloc(1000, 4096, None).unwrap();
            let empty = memory.alloc(0, 64, None).unwrap();
            assert!(x % 4096 == 0 && empty != x);
            let stats = memory.stats();
            assert_eq!((stats.in_use_bytes, stats.in_use_blocks, stats.total_allocs), (1000, 2, 2));
            assert!(stats.reserved_bytes >= 1000);
            let error = memory.alloc(1 << 20, 64, None).unwrap_err();
            assert_eq!(error.code(), Code::OutOfMemory);
            for word in ["1048576 bytes are asked for", "1000 are in use", "CUDA_ERROR_OUT_OF_MEMORY"] {
                assert!(error.message().contains(word), "{word}: {error}");
            }
            assert_eq!(memory.alloc(u64::MAX, 4096, None).unwrap_err().code(), Code::OutOfMemory);
            assert_eq!(memory.free(x + 1, 1000).unwrap_err().code(), Code::InvalidArgument);
            memory.free(x, 1000).unwrap();
            assert_eq!(memory.free(x, 1000).unwrap_err().code(), Code::InvalidArgument);
            memory.free(empty, 0).unwrap();
            memory.trim().unwrap();
            let queue = stream(&device);
            let ordered = memory.alloc(256, 64, Some(&queue)).unwrap();
            memory.free_async(ordered, 256, &queue).unwrap();
            queue.sync().unwrap();
            assert_eq!((memory.stats().in_use_bytes, memory.stats().peak_in_use_bytes), (0, 1000));
        }
        rig.assert_clean();
    }
}

#[test]
fn option_memory_limit_holds() {
    let rig = Rig::new(Setup::default());
    let mut settings = rig.settings();
    settings.limits.memory_limit = 1000;
    let device = CudaProvider::new(&settings).unwrap().open_device(0).unwrap();
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    let x = memory.alloc(600, 64, None).unwrap();
    let error = memory.alloc(401, 64, None).unwrap_err();
    assert!(error.code() == Code::OutOfMemory && error.message().contains("`memory_limit`"), "{error}");
    memory.free(x, 600).unwrap();
    memory.alloc(1000, 64, None).and_then(|x| memory.free(x, 1000)).unwrap();
}

/// Room is given before the driver is asked, whose answer takes a while, and taken back where it has no memory.
#[test]
fn option_memory_limit_holds_for_threads_too() {
    const BYTES: u64 = 1 << 20;
    let rig = Rig::new(Setup { memory_bytes: 8 * BYTES, pools: 0, ..Setup::default() });
    let mut settings = rig.settings();
    settings.limits.memory_limit = BYTES;
    let device = CudaProvider::new(&settings).unwrap().open_device(0).unwrap();
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    let barrier = std::sync::Barrier::new(4);
    for round in 0..50 {
        let ask = || {
            barrier.wait();
            let got = memory.alloc(BYTES, 64, None);
            barrier.wait();
            let error = got.as_ref().map_err(Error::code).err();
            got.into_iter().for_each(|x| memory.free(x, BYTES).unwrap());
            error
        };
        let errors = std::thread::scope(|scope| [0; 4].map(|_| scope.spawn(ask)).map(|t| t.join().unwrap()));
        assert_eq!(errors.iter().filter(|e| e.is_none()).count(), 1, "round {round}: {errors:?}");
        assert!(errors.iter().flatten().all(|c| *c == Code::OutOfMemory), "{errors:?}");
    }
    // What the driver refuses leaves the room free.
    rig.fake.reset(Setup { memory_bytes: BYTES / 2, ..Setup::default() });
    settings.limits.memory_limit = BYTES;
    let device = CudaProvider::new(&settings).unwrap().open_device(0).unwrap();
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    for _ in 0..3 {
        let error = memory.alloc(BYTES, 64, None).unwrap_err();
        assert!(error.message().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    }
    memory.alloc(BYTES / 2, 64, None).and_then(|x| memory.free(x, BYTES / 2)).unwrap();
}

#[test]
fn pinned_memory_is_the_hosts_and_the_devices() {
    let rig = Rig::new(Setup::default());
    {
        let device = rig.device();
        let queue = stream(&device);
        let (pinned, memory) = (
            device.open_allocator(MemoryKind::PinnedHost).unwrap(),
            device.open_allocator(MemoryKind::Device).unwrap(),
        );
        let (p, d) = (pinned.alloc(16, 64, None).unwrap(), memory.alloc(16, 64, None).unwrap());
        let space = device.info();
        // SAFETY: 16 bytes of host memory that nothing uses yet.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(p as usize).write_bytes(7, 16) };
        // SAFETY: live allocations.
        unsafe { queue.copy(request(d, &space.memory_space, p, &space.reads[1], 16)) }.unwrap();
        assert_eq!(download(&queue, &space.memory_space, d, 16), [7; 16]);
        assert_eq!((pinned.stats().in_use_bytes, memory.stats().in_use_bytes), (16, 16));
        pinned.free_async(p, 16, &queue).unwrap();
        memory.free(d, 16).unwrap();
    }
    rig.assert_clean();
}

#[test]
fn peers_copy_directly_and_strangers_do_not() {
    for (peers, able) in [(1, true), (0, false)] {
        let rig = Rig::new(Setup { devices: 2, peers, ..Setup::default() });
        {
            let provider = rig.provider();
            let [a, b] = [0, 1].map(|i| provider.open_device(i).unwrap());
            let [from, to] = [a.info().memory_space, b.info().memory_space];
            assert_eq!(a.info().reads.contains(&to), able);
            let (queue, other) = (stream(&a), stream(&b));
            assert_eq!(rig.calls("cuCtxEnablePeerAccess"), if able { 2 } else { 0 });
            let [x, y] = [&a, &b].map(|d| d.open_allocator(MemoryKind::Device).unwrap());
            let (p, q) = (x.alloc(32, 64, None).unwrap(), y.alloc(32, 64, None).unwrap());
            upload(&queue, &from, p, &[9; 32]);
            // SAFETY: live allocations.
            unsafe { queue.copy(request(q, &to, p, &from, 32)) }.unwrap();
            let event = a.create_event().unwrap();
            queue.record(&event).unwrap();
            other.wait(&event).unwrap();
            assert_eq!(download(&other, &to, q, 32), [9; 32]);
            assert_eq!(rig.calls("cuMemcpyPeerAsync"), 1);
            x.free(p, 32).unwrap();
            y.free(q, 32).unwrap();
            // SAFETY: refused before anything is touched.
            let error = unsafe { queue.copy(request(p, &from, 64, "sim:0", 32)) }.unwrap_err();
            assert!(error.code() == Code::Unsupported && error.message().contains("sim:0"), "{error}");
        }
        rig.assert_clean();
    }
}

#[test]
fn streams_of_others_are_used_and_left_alone() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    {
        let provider = rig.provider();
        let [a, b] = [0, 1].map(|i| provider.open_device(i).unwrap());
        let foreign = CudaDevice::FOREIGN_STREAMS.unwrap();
        let theirs = stream(&a);
        let handle = (foreign.native)(&theirs).unwrap();
        rig.fake.fail(0, 0);
        let adopted = adopt(&a, handle).unwrap();
        let event = a.create_event().unwrap();
        adopted.record(&event).unwrap();
        adopted.sync().unwrap();
        drop(adopted);
        assert_eq!(rig.calls("cuStreamDestroy"), 0);
        theirs.sync().unwrap();
        // A stream of the other device's context does not do.
        let error = adopt(&b, handle).err().unwrap();
        assert!(
            error.code() == Code::InvalidArgument && error.message().contains("primary context"),
            "{error}"
        );
        assert!(adopt(&a, 0xdead0).is_err());
        // Another thread would wait for another stream.
        rig.fake.fail(0, 0);
        let error = adopt(&a, 2).err().unwrap();
        assert!(
            error.code() == Code::InvalidArgument && error.message().contains("CU_STREAM_PER_THREAD"),
            "{error}"
        );
        assert_eq!(rig.fake.log(), [""; 0]);
    }
    rig.assert_clean();
}

#[test]
fn graphs_record_replay_and_take_new_addresses() {
    for pools in [1, 0] {
        let rig = Rig::new(Setup { pools, ..Setup::default() });
        record_replay_and_update(&rig);
        rig.assert_clean();
    }
}

fn record_replay_and_update(rig: &Rig) {
    let device = rig.device();
    let (queue, space) = (stream(&device), device.info().memory_space);
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    let [x, y, z] = [0; 3].map(|_| memory.alloc(16, 64, None).unwrap());
    let capture = |dst: u64, twice: bool| {
        queue.begin_capture().unwrap();
        assert_eq!(queue.is_capturing(), Ok(true));
        for _ in 0..1 + usize::from(twice) {
            // SAFETY: live allocations, as long as the graph is replayed.
            unsafe { queue.copy(request(dst, &space, x, &space, 16)) }.unwrap();
        }
        queue.end_capture().unwrap()
    };
    upload(&queue, &space, x, &[1; 16]);
    upload(&queue, &space, y, &[0; 16]);
    upload(&queue, &space, z, &[0; 16]);
    let graph = capture(y, false);
    let exec = graph.instantiate().unwrap();
    assert_eq!(download(&queue, &space, y, 16), [0; 16], "recording does nothing");
    rig.fake.fail(0, 0);
    // SAFETY: the allocations live.
    unsafe { exec.launch(&queue) }.unwrap();
    assert_eq!((rig.calls("cuGraphLaunch"), rig.calls("cuMemcpyAsync")), (1, 0));
    assert_eq!(download(&queue, &space, y, 16), [1; 16]);
    assert_eq!(exec.update(&capture(z, false)), Ok(Update::Done));
    // SAFETY: as above.
    unsafe { exec.launch(&queue) }.unwrap();
    assert_eq!(download(&queue, &space, z, 16), [1; 16]);
    assert_eq!(exec.update(&capture(z, true)), Ok(Update::Refused(2)), "another shape");
    // Nor is memory in the stream's order, which is refused before it spoils anything.
    queue.begin_capture().unwrap();
    let pinned = device.open_allocator(MemoryKind::PinnedHost).unwrap();
    let p = pinned.alloc(16, 64, Some(&queue)).unwrap();
    let refused = [
        memory.alloc(16, 64, Some(&queue)).map(drop),
        memory.free_async(x, 16, &queue),
        pinned.free_async(p, 16, &queue),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(error.code() == Code::InvalidArgument && error.message().contains("records"), "{error}");
    }
    drop(queue.end_capture().unwrap());
    pinned.free_async(p, 16, &queue).unwrap();
    // Waiting is no part of a graph and spoils it.
    queue.begin_capture().unwrap();
    let error = queue.sync().unwrap_err();
    assert!(
        error.code() == Code::InvalidArgument && error.message().contains("STREAM_CAPTURE_UNSUPPORTED"),
        "{error}"
    );
    assert_eq!(queue.end_capture().err().unwrap().code(), Code::InvalidArgument);
    assert!(queue.end_capture().is_err(), "nothing is recorded now");
    queue.sync().unwrap();
    for p in [x, y, z] {
        memory.free(p, 16).unwrap();
    }
}

#[test]
fn graphs_serve_hosts() {
    use ep_registry::Updated;
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    let runtime = rig.runtime(&[]);
    {
        let device = runtime.device("cuda:0").unwrap();
        let (stream, second) = (device.stream().unwrap(), device.stream().unwrap());
        let x = device.upload(&[1u8; 16]).unwrap();
        let [mut y, mut z] = [0u8; 2].map(|v| device.upload(&[v; 16]).unwrap());
        let mut graph = stream
            .capture(|s| {
                s.copy(&x, &mut y)?;
                // Refused before the driver is asked, which would spoil the recording.
                assert_eq!(s.sync().unwrap_err().code(), Code::InvalidArgument);
                s.copy(&y, &mut z)
            })
            .unwrap();
        assert_eq!(z.download::<u8>().unwrap(), [0; 16], "recording does nothing");
        rig.fake.fail(0, 0);
        graph.launch(&stream).unwrap();
        assert_eq!((rig.calls("cuGraphLaunch"), rig.calls("cuMemcpyAsync")), (1, 0));
        assert_eq!(z.download::<u8>().unwrap(), [1; 16]);
        let [mut back, mut more] = [5u8, 6].map(|v| device.upload(&[v; 16]).unwrap());
        let alike = graph.update(&stream, |s| s.copy(&x, &mut back).and_then(|()| s.copy(&back, &mut more)));
        assert_eq!(alike.unwrap(), Updated::InPlace);
        let shorter = graph.update(&second, |s| s.copy(&z, &mut more));
        assert_eq!(shorter.unwrap(), Updated::Rebuilt);
        graph.launch(&second).unwrap();
        assert_eq!(
            (back.download::<u8>().unwrap(), more.download::<u8>().unwrap()),
            (vec![5; 16], vec![1; 16])
        );
        let other = runtime.device("cuda:1").unwrap().stream().unwrap();
        assert!(graph.launch(&other).unwrap_err().message().contains("record it there"));
    }
    drop(runtime);
    rig.assert_clean();
}

#[test]
fn a_stream_that_records_refuses_what_no_graph_can_hold() {
    use ep_core::handle::{DeviceHandle, EventHandle, StreamHandle};
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    {
        let device: &std::sync::Arc<DeviceHandle> = runtime.devices()[0].members()[0].handle();
        let stream: StreamHandle = device.create_stream(StreamOptions::default()).unwrap();
        let event: EventHandle = device.create_event().unwrap();
        let empty = |stream: &StreamHandle| {
            stream.begin_recording().unwrap();
            stream.end_recording().unwrap()
        };
        let mut graph = empty(&stream);
        stream.begin_recording().unwrap();
        for refused in [
            stream.sync(),
            stream.query().map(drop),
            stream.record(&event),
            stream.wait(&event),
            stream.begin_recording(),
            // SAFETY: it uses no memory.
            unsafe { graph.launch(&stream) },
        ] {
            let error = refused.unwrap_err();
            assert!(
                error.code() == Code::InvalidArgument && error.message().contains("records a graph"),
                "{error}"
            );
        }
        // None of this has spoilt the recording.
        drop(stream.end_recording().unwrap());
        assert!(stream.end_recording().unwrap_err().message().contains("records no graph"));
        assert!(graph.update(&stream).unwrap_err().message().contains("records no graph"));
        stream.sync().unwrap();
        // A stream that ends while it records takes the recording with it, and a graph outlives its stream.
        stream.begin_recording().unwrap();
        drop(stream);
        drop(graph);
    }
    drop(runtime);
    rig.assert_clean();
}

#[test]
fn an_asynchronous_error_names_the_pending_work_and_is_sticky() {
    let rig = Rig::new(Setup::default());
    let device = rig.device();
    let (queue, space) = (stream(&device), device.info().memory_space);
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    let x = memory.alloc(16, 64, None).unwrap();
    let y = memory.alloc(16, 64, None).unwrap();
    // SAFETY: the memory is freed too early on purpose; the fake notices and touches nothing.
    unsafe { queue.copy(request(y, &space, x, &space, 16)) }.unwrap();
    memory.free(x, 16).unwrap();
    let error = queue.sync().unwrap_err();
    assert_eq!(error.code(), Code::DeviceLost);
    for word in
        ["the work pending on this stream was copy", "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "sync_launches"]
    {
        assert!(error.message().contains(word), "{word}: {error}");
    }
    assert_eq!(queue.sync().unwrap_err().code(), Code::DeviceLost, "it stays");
    assert_eq!(memory.alloc(16, 64, None).unwrap_err().code(), Code::DeviceLost);
    memory.free(y, 16).unwrap_err();
    drop((queue, memory, device));
    rig.assert_clean();
}

/// Whoever finds the error first names the work that may have caused it, also that of other streams.
#[test]
fn an_asynchronous_error_names_the_work_of_other_streams() {
    type Find = fn(&Finder<'_>) -> Result<(), Error>;
    let finders: [(&str, Find); 8] = [
        ("on the event's stream: copy, copy; on stream ", |f| f.event.sync()),
        ("on the event's stream: copy, copy; on stream ", |f| {
            loop {
                f.event.query()?;
            }
        }),
        ("on this stream: copy, copy; on stream ", |f| {
            loop {
                f.guilty.query()?;
            }
        }),
        ("on this stream: copy; on stream ", |f| f.waiting.sync()),
        // The error is known to the driver, and here what comes next finds it.
        ("one of 3 pieces of work pending on stream ", |f| {
            f.guilty.sync().unwrap_err();
            f.memory.alloc(16, 64, None).map(drop)
        }),
        ("one of 3 pieces of work pending on stream ", |f| {
            f.guilty.sync().unwrap_err();
            f.memory.free(f.other, 16)
        }),
        ("one of 3 pieces of work pending on stream ", |f| {
            f.guilty.sync().unwrap_err();
            f.device.create_stream(StreamOptions::default()).map(drop)
        }),
        ("copy: one of 3 pieces of work pending on this stream: copy; on stream ", |f| {
            f.guilty.sync().unwrap_err();
            // SAFETY: live allocations.
            unsafe { f.waiting.copy(request(f.other, f.space, f.other, f.space, 16)) }
        }),
    ];
    for (words, find) in finders {
        let rig = Rig::new(Setup::default());
        let device = rig.device();
        let (guilty, waiting) = (stream(&device), stream(&device));
        let memory = device.open_allocator(MemoryKind::Device).unwrap();
        let space = device.info().memory_space;
        let [x, other] = [0; 2].map(|_| memory.alloc(16, 64, None).unwrap());
        let event = device.create_event().unwrap();
        for _ in 0..2 {
            // SAFETY: the memory is freed too early on purpose; the fake notices and touches nothing.
            unsafe { guilty.copy(request(other, &space, x, &space, 16)) }.unwrap();
        }
        memory.free(x, 16).unwrap();
        memory.trim().unwrap();
        guilty.record(&event).unwrap();
        waiting.wait(&event).unwrap();
        // SAFETY: live allocations.
        unsafe { waiting.copy(request(other, &space, other, &space, 16)) }.unwrap();
        let finder = Finder {
            device: &device,
            guilty: &guilty,
            waiting: &waiting,
            event: &event,
            memory: &memory,
            other,
            space: &space,
        };
        let error = find(&finder).unwrap_err();
        assert_eq!(error.code(), Code::DeviceLost);
        assert!(error.message().contains(words), "{words}: {error}");
        for word in ["one of 3 pieces of work pending", ": copy, copy", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"] {
            assert!(error.message().contains(word), "{word}: {error}");
        }
        let named =
            [&guilty, &waiting].map(|s| error.message().contains(&format!("on stream {:?}: ", s.raw())));
        assert!(named[0] || named[1], "{error}");
    }
}

/// What may find an error.
struct Finder<'a> {
    device: &'a CudaDevice,
    guilty: &'a CudaStream,
    waiting: &'a CudaStream,
    event: &'a CudaEvent,
    memory: &'a CudaAllocator,
    other: u64,
    space: &'a str,
}

#[test]
fn another_librarys_current_context_is_put_back() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    let provider = rig.provider();
    let [a, b] = [0, 1].map(|i| provider.open_device(i).unwrap());
    let (_a, b_stream) = (stream(&a), stream(&b));
    let theirs = a.context().unwrap().enter().unwrap();
    rig.fake.fail(0, 0);
    b_stream.sync().unwrap();
    let sets: Vec<_> = rig.fake.log().into_iter().filter(|l| l.starts_with("cuCtxSetCurrent")).collect();
    assert_eq!(sets, ["cuCtxSetCurrent(0x101) = 0", "cuCtxSetCurrent(0x100) = 0"]);
    drop(theirs);
}
