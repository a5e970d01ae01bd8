//! What the asynchronous test provider promises: order, events, errors, and noticing misuse.

use crate::rig::{Hold, Rig, launch, provider};
use ep_core::primitive::{
    ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc, Fill, FillArgs, FillDesc, UnaryOp,
};
use ep_core::provider::{CopyRequest, MemoryKind, StreamOptions};
use ep_core::{Code, DType, Scalar};
use test_async::{FREED, FRESH};

fn negative() -> ElementwiseUnaryDesc {
    ElementwiseUnaryDesc::new(UnaryOp::NEGATIVE, DType::I32, DType::I32)
}

#[test]
fn everything_is_queued_and_done_in_order() {
    let rig = Rig::new(&[("hold", &Hold::option("order")), ("seed", "3")]);
    let stream = rig.stream();
    let hold = Hold::new("order");
    let negate = rig.primitive::<ElementwiseUnary>(negative());
    let data = [1, -2, 3, i32::MIN];
    let x = rig.queue_upload(&stream, &data);
    for _ in 0..9 {
        launch(&negate, &stream, &ElementwiseUnaryArgs::new(4, x, x)).unwrap();
    }
    let event = rig.device.create_event().unwrap();
    stream.record(&event).unwrap();
    assert!(!stream.query().unwrap() && !event.query().unwrap());
    drop(hold);
    event.sync().unwrap();
    assert!(event.query().unwrap());
    assert_eq!(rig.download::<i32>(&stream, x, 4), [-1, 2, -3, i32::MIN]);
    assert!(stream.query().unwrap());
    // SAFETY: all work is done.
    unsafe { rig.allocator.free(x, 16) }.unwrap();
}

#[test]
fn dropping_a_stream_waits_for_its_work() {
    let rig = Rig::new(&[("max_delay_us", "2000")]);
    let (stream, other) = (rig.stream(), rig.stream());
    let x = rig.upload(&stream, &[0i32; 64]);
    let fill = rig.primitive::<Fill>(FillDesc::new(DType::I32));
    for value in 1..20 {
        launch(&fill, &stream, &FillArgs::new(64, Scalar::I64(value), x)).unwrap();
    }
    drop(stream);
    assert_eq!(rig.download::<i32>(&other, x, 64), [19; 64]);
}

#[test]
fn an_unrecorded_event_is_done_and_holds_nobody_up() {
    let rig = Rig::new(&[]);
    let (event, stream) = (rig.device.create_event().unwrap(), rig.stream());
    assert!(event.query().unwrap());
    event.sync().unwrap();
    stream.wait(&event).unwrap();
    stream.sync().unwrap();
}

#[test]
fn a_wait_blocks_only_the_waiting_stream_and_means_the_record_before_it() {
    let rig = Rig::new(&[("hold", &Hold::option("wait")), ("devices", "2"), ("first_device", "0")]);
    let held = rig.stream();
    let second = rig.provider.open(1).unwrap();
    let (waiting, free) = (
        second.create_stream(StreamOptions::default()).unwrap(),
        second.create_stream(StreamOptions::default()).unwrap(),
    );
    let event = rig.device.create_event().unwrap();
    let hold = Hold::new("wait");
    held.record(&event).unwrap();
    waiting.wait(&event).unwrap();
    let behind = second.create_event().unwrap();
    waiting.record(&behind).unwrap();
    free.sync().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(!behind.query().unwrap() && !waiting.query().unwrap());
    drop(hold);
    behind.sync().unwrap();

    // Two records; the wait came between them.
    held.sync().unwrap();
    held.record(&event).unwrap();
    waiting.wait(&event).unwrap();
    held.sync().unwrap();
    let hold = Hold::new("wait");
    held.record(&event).unwrap();
    waiting.sync().unwrap();
    assert!(!event.query().unwrap());
    drop(hold);
    held.sync().unwrap();
}

#[test]
fn fresh_memory_is_poisoned_and_limits_hold() {
    let rig = Rig::new(&[("memory_limit", "4096"), ("oom_after", "3")]);
    let stream = rig.stream();
    let x = rig.allocator.alloc(1001, 512).unwrap();
    assert_eq!(rig.download::<u8>(&stream, x, 1001), [FRESH; 1001]);
    let e = rig.allocator.alloc(3096, 0).unwrap_err();
    assert_eq!((e.code(), e.message().contains("1001 of 4096")), (Code::OutOfMemory, true), "{e}");
    // SAFETY: all work is done.
    unsafe {
        assert_eq!(rig.allocator.free(x, 1000).unwrap_err().code(), Code::InvalidArgument);
        rig.allocator.free(x, 1001).unwrap();
        assert_eq!(rig.allocator.free(x, 1001).unwrap_err().code(), Code::InvalidArgument);
    }
    for _ in 0..2 {
        rig.allocator.alloc(0, 0).unwrap();
    }
    assert!(rig.allocator.alloc(0, 0).unwrap_err().message().contains("oom_after"));
    let stats = rig.allocator.stats().unwrap();
    assert_eq!((stats.in_use_blocks, stats.peak_in_use_bytes, stats.total_allocs), (2, 1001, 3));
    assert_eq!(rig.device.open_allocator(MemoryKind::PinnedHost).unwrap_err().code(), Code::Unsupported);
}

#[test]
fn freeing_memory_in_use_is_told_by_the_next_sync_once() {
    let rig = Rig::new(&[("hold", &Hold::option("misuse"))]);
    let (stream, other) = (rig.stream(), rig.stream());
    let hold = Hold::new("misuse");
    let x = rig.allocator.alloc(64, 0).unwrap();
    let y = rig.allocator.alloc(64, 0).unwrap();
    let fill = rig.primitive::<Fill>(FillDesc::new(DType::U8));
    launch(&fill, &stream, &FillArgs::new(64, Scalar::I64(1), x)).unwrap();
    // SAFETY: on purpose: the provider keeps freed memory mapped.
    unsafe {
        rig.allocator.free(x, 64).unwrap();
        rig.allocator.free(y, 64).unwrap();
    }
    drop(hold);
    let e = other.sync().unwrap_err();
    assert_eq!(
        (e.code(), e.message().starts_with("freed while in use: 64 bytes")),
        (Code::Internal, true),
        "{e}"
    );
    other.sync().unwrap();
    stream.sync().unwrap();

    // Read after it was freed: the poison is there, and the use is told.
    let mut found = [0u8; 64];
    let dst = found.as_mut_ptr().expose_provenance() as u64;
    let space = &rig.device.info().memory_space;
    // SAFETY: as above; `found` lives until the sync.
    unsafe { stream.copy(CopyRequest { dst, dst_space: "host", src: x, src_space: space, bytes: 64 }) }
        .unwrap();
    let e = stream.sync().unwrap_err();
    assert!(e.message().starts_with("used after it was freed"), "{e}");
    assert_eq!(found, [FREED; 64]);
}

#[test]
fn memory_that_is_not_the_devices_is_refused() {
    let rig = Rig::new(&[]);
    let stream = rig.stream();
    let fill = rig.primitive::<Fill>(FillDesc::new(DType::U8));
    let host = [0u8; 8];
    let x = rig.allocator.alloc(8, 0).unwrap();
    for (address, count) in [(host.as_ptr().expose_provenance() as u64, 8), (x, 9), (x + 7, 2)] {
        let e = launch(&fill, &stream, &FillArgs::new(count, Scalar::I64(1), address)).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    }
    launch(&fill, &stream, &FillArgs::new(0, Scalar::I64(1), 0)).unwrap();
    for space in ["cuda:0", "async:x", ""] {
        let copy = CopyRequest { dst: x, dst_space: space, src: x + 4, src_space: "async:0", bytes: 4 };
        // SAFETY: refused before anything is touched.
        assert_eq!(unsafe { stream.copy(copy) }.unwrap_err().code(), Code::Unsupported);
    }
    stream.sync().unwrap();
    assert_eq!(rig.download::<u8>(&stream, x, 8), [FRESH; 8]);
}

#[test]
fn devices_copy_to_each_other() {
    let rig = Rig::new(&[("devices", "2")]);
    let second = rig.provider.open(1).unwrap();
    let there = second.open_allocator(MemoryKind::Device).unwrap();
    let stream = rig.stream();
    let data: Vec<i32> = (0..333).map(|i| i * 7919 - 1_000_000).collect();
    let (x, back) = (rig.upload(&stream, &data), rig.allocator.alloc(333 * 4, 0).unwrap());
    let y = there.alloc(333 * 4, 0).unwrap();
    for (dst, dst_space, src, src_space) in [(y, "async:1", x, "async:0"), (back, "async:0", y, "async:1")] {
        // SAFETY: all three blocks live until the end.
        unsafe { stream.copy(CopyRequest { dst, dst_space, src, src_space, bytes: 333 * 4 }) }.unwrap();
    }
    assert_eq!(rig.download::<i32>(&stream, back, 333), data);
    let [a, b] = [&rig.device, &second].map(|d| d.info());
    assert_ne!(a.uuid, b.uuid);
    assert_eq!((a.kind.as_str(), b.memory_space.as_str(), a.inline), ("async", "async:1", false));
}

#[test]
fn failing_and_panicking_launches_are_told_at_sync_once() {
    let rig = Rig::new(&[("fail_launch", "2"), ("panic_launch", "5")]);
    let stream = rig.stream();
    let x = rig.upload(&stream, &[7i32]);
    let negate = rig.primitive::<ElementwiseUnary>(negative());
    let run = |count: usize| {
        for _ in 0..count {
            launch(&negate, &stream, &ElementwiseUnaryArgs::new(1, x, x)).unwrap();
        }
        stream.sync()
    };
    let e = run(3).unwrap_err();
    assert_eq!((e.code(), e.message().contains("launch 2 fails")), (Code::Internal, true), "{e}");
    run(0).unwrap();
    let e = run(3).unwrap_err();
    assert_eq!((e.code(), e.message().contains("launch 5 panics")), (Code::Panic, true), "{e}");
    run(0).unwrap();
    // Four of six negated.
    assert_eq!(rig.download::<i32>(&stream, x, 1), [7]);
}

#[test]
fn an_adopted_stream_shares_the_queue() {
    let rig = Rig::new(&[]);
    let again = Rig::new(&[("seed", "9")]);
    let stream = rig.stream();
    let (kind, handle) = rig.device.native_stream(&stream).unwrap();
    assert_eq!(kind, "test-async-queue");
    // SAFETY: `stream` outlives the adopted one.
    let adopted = unsafe { again.device.adopt_stream(&kind, handle) }.unwrap();
    let x = rig.allocator.alloc(4, 0).unwrap();
    let negate =
        [rig.primitive::<ElementwiseUnary>(negative()), again.primitive::<ElementwiseUnary>(negative())];
    let fill = again.primitive::<Fill>(FillDesc::new(DType::I32));
    for i in 1..30 {
        // Without a wait in between: only one queue keeps this order, in memory that the first instance made.
        launch(&fill, &adopted, &FillArgs::new(1, Scalar::I64(i), x)).unwrap();
        launch(&negate[0], &stream, &ElementwiseUnaryArgs::new(1, x, x)).unwrap();
        if i % 2 == 0 {
            launch(&negate[1], &adopted, &ElementwiseUnaryArgs::new(1, x, x)).unwrap();
        }
    }
    adopted.sync().unwrap();
    assert!(stream.query().unwrap());
    assert_eq!(rig.download::<i32>(&stream, x, 1), [-29]);
    for i in 1..30 {
        launch(&fill, &adopted, &FillArgs::new(1, Scalar::I64(i), x)).unwrap();
    }
    drop(adopted);
    assert!(stream.query().unwrap(), "dropping the adopted stream has waited for the queue");
    // SAFETY: refused before they are used.
    unsafe {
        assert_eq!(again.device.adopt_stream("CUstream", handle).unwrap_err().code(), Code::Unsupported);
        assert_eq!(again.device.adopt_stream(&kind, 1).unwrap_err().code(), Code::NotFound);
    }
}

#[test]
fn time_passes_between_events() {
    let rig = Rig::new(&[]);
    let stream = rig.stream();
    let [start, end] = [(); 2].map(|()| rig.device.create_event().unwrap());
    assert_eq!(rig.device.elapsed(&start, &end).unwrap_err().code(), Code::InvalidArgument);
    stream.record(&start).unwrap();
    stream.sync().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(3));
    stream.record(&end).unwrap();
    stream.sync().unwrap();
    assert!(rig.device.elapsed(&start, &end).unwrap() >= 3_000_000);
    assert!(rig.device.elapsed(&end, &start).is_err());
}

#[test]
fn as_the_cpu_it_works_on_any_host_memory() {
    let rig = Rig::new(&[("as_cpu", "true")]);
    let info = rig.device.info();
    assert_eq!(
        (info.kind.as_str(), info.memory_space.as_str(), rig.provider.device_count()),
        ("cpu", "host", Ok(1))
    );
    assert_eq!(info.uuid, ep_core::provider::inline::CPU_UUID);
    let mut data = [5i32, -6, 7];
    let address = data.as_mut_ptr().expose_provenance() as u64;
    let stream = rig.stream();
    launch(
        &rig.primitive::<ElementwiseUnary>(negative()),
        &stream,
        &ElementwiseUnaryArgs::new(3, address, address),
    )
    .unwrap();
    stream.sync().unwrap();
    assert_eq!(data, [-5, 6, -7]);
}

#[test]
fn options_are_checked_and_the_log_thread_ends() {
    for (options, said) in [
        (&[("device", "2")][..], "unknown option `device`"),
        (&[("devices", "two")], "option `devices` is `two`"),
        (&[("first_device", "4294967295"), ("devices", "2")], "32-bit"),
    ] {
        let e = provider(options).unwrap_err();
        assert_eq!((e.code(), e.message().contains(said)), (Code::InvalidArgument, true), "{e}");
    }
    let instance = provider(&[("log_thread", "true"), ("devices", "0")]).unwrap();
    assert_eq!(instance.device_count(), Ok(0));
    assert_eq!(instance.open(0).unwrap_err().code(), Code::NotFound);
    // A thread that is not joined would hang here or outlive the test.
    drop(instance);
}
