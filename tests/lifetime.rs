//! Who may be dropped when, and what happens when something goes wrong.

use ep_core::{Code, DType, Result};
use ep_registry::{Buffer, Device, Event, InPlace, Runtime, Stream};
use ep_tests::ops::{AddScalar, Negate};
use ep_tests::under::check_left_behind;
use ep_tests::{Under, on_each_async_provider, on_each_provider};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

on_each_provider!(
    buffers_outlive_their_stream,
    buffers_are_dropped_while_work_uses_them,
    sources_are_dropped_while_work_reads_them,
    buffers_of_several_streams_are_dropped,
    everything_outlives_the_runtime,
    everything_is_dropped_at_once,
    streams_are_dropped_while_a_buffer_stays,
    events_outlive_their_stream,
    buffers_are_dropped_on_other_threads,
    imported_memory_goes_back_once_after_the_work,
    unused_imported_memory_goes_back,
    a_deleter_may_use_the_stream,
    running_out_of_memory_is_an_error,
    impossible_sizes_are_an_error,
);

mod failing_work {
    use super::*;
    on_each_async_provider!(
        an_error_comes_once_with_sync,
        an_error_comes_with_the_buffer,
        a_panic_is_an_error,
        the_allocator_may_fail_at_any_time,
    );
}

/// A stream with `n` additions of 1 to `buffer` queued.
fn busy(runtime: &Runtime, device: &Device, buffer: &mut Buffer, n: usize) -> Stream {
    let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
    for _ in 0..n {
        add.launch(&stream, buffer.len(), InPlace, 1.0, &mut *buffer).unwrap();
    }
    stream
}

fn zeros(device: &Device, len: usize) -> Buffer {
    device.upload(&vec![0.0f32; len]).unwrap()
}

fn buffers_outlive_their_stream(on: Under) {
    on.run(|runtime, device| {
        let mut buffer = zeros(device, 100);
        drop(busy(runtime, device, &mut buffer, 20));
        assert_eq!(buffer.download::<f32>().unwrap(), [20.0; 100]);
        drop(busy(runtime, device, &mut buffer, 20));
        drop(busy(runtime, device, &mut buffer, 20));
        assert_eq!(buffer.download::<f32>().unwrap(), [60.0; 100]);
    });
}

fn buffers_are_dropped_while_work_uses_them(on: Under) {
    on.run(|runtime, device| {
        let mut streams = Vec::new();
        for n in 1..20 {
            let mut buffer = zeros(device, 64);
            streams.push(busy(runtime, device, &mut buffer, n));
            drop(buffer);
            // The memory must not be given out again yet.
            let mut next = zeros(device, 64);
            let stream = busy(runtime, device, &mut next, 3);
            assert_eq!(next.download::<f32>().unwrap(), [3.0; 64]);
            stream.sync().unwrap();
        }
        for stream in streams {
            stream.sync().unwrap();
            assert!(stream.query().unwrap());
        }
    });
}

fn sources_are_dropped_while_work_reads_them(on: Under) {
    on.run(|runtime, device| {
        let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
        let mut results = Vec::new();
        for n in 0..30u8 {
            let src = device.upload(&[f32::from(n); 200]).unwrap();
            let mut dst = device.alloc(DType::F32, 200).unwrap();
            add.launch(&stream, 200, &src, 0.5, &mut dst).unwrap();
            results.push(dst);
        }
        for (n, dst) in (0u8..).zip(&results) {
            assert_eq!(dst.download::<f32>().unwrap(), [f32::from(n) + 0.5; 200]);
        }
    });
}

fn buffers_of_several_streams_are_dropped(on: Under) {
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
        for _ in 0..10 {
            let shared = device.upload(&[1.0f32; 128]).unwrap();
            let mut results = Vec::new();
            for (i, stream) in streams.iter().enumerate() {
                let mut dst = device.alloc(DType::F32, 128).unwrap();
                for _ in 0..15 - 7 * i {
                    add.launch(stream, 128, &shared, 1.0, &mut dst).unwrap();
                }
                results.push(dst);
            }
            drop(shared);
            // The stream with the least work is over first, while the others still read.
            for dst in results.into_iter().rev() {
                assert_eq!(dst.download::<f32>().unwrap(), [2.0; 128]);
            }
        }
    });
}

/// One buffer that is only read, as weights are, and a stream and a buffer for each request.
fn streams_are_dropped_while_a_buffer_stays(on: Under) {
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let weights = zeros(device, 64);
        let last = device.stream().unwrap();
        let mut result = device.alloc(DType::F32, 64).unwrap();
        let before = device.memory_stats().unwrap().in_use_blocks;
        for n in 1..30u8 {
            let stream = device.stream().unwrap();
            let mut own = device.alloc(DType::F32, 64).unwrap();
            add.launch(&stream, 64, &weights, f32::from(n), &mut own).unwrap();
            drop(stream);
            last.copy(&own, &mut result).unwrap();
            // What reads it is known to be done, what wrote it is not: nobody waits for that stream any more.
            last.sync().unwrap();
            drop(own);
            // What has been dropped is let go of when memory is asked for next, however many streams there were.
            let now = device.memory_stats().unwrap().in_use_blocks;
            assert!(now <= before + 4, "{now} blocks after {n} streams, {before} before");
            assert_eq!(result.download::<f32>().unwrap(), [f32::from(n); 64]);
        }
        // A provider may tell that a stream is idle a little after the work on it is over.
        let end = Instant::now() + Duration::from_secs(20);
        while device.memory_stats().unwrap().in_use_blocks != before && Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(device.memory_stats().unwrap().in_use_blocks, before);
        assert_eq!(weights.download::<f32>().unwrap(), [0.0; 64]);
    });
}

fn everything_outlives_the_runtime(on: Under) {
    let runtime = on.runtime();
    let device = runtime.devices()[0].clone();
    let add = AddScalar::new(&runtime, &device);
    let mut buffer = zeros(&device, 10);
    drop(runtime);
    let stream = device.stream().unwrap();
    add.launch(&stream, 10, InPlace, 1.0, &mut buffer).unwrap();
    drop(device);
    add.launch(&stream, 10, InPlace, 1.0, &mut buffer).unwrap();
    drop(stream);
    drop(add);
    assert_eq!(buffer.download::<f32>().unwrap(), [2.0; 10]);
    let device = buffer.device().clone();
    drop(buffer);
    assert_eq!(device.memory_stats().unwrap().in_use_blocks, 0);
}

fn everything_is_dropped_at_once(on: Under) {
    type Things = (Option<Runtime>, Option<Device>, Option<Stream>, Option<AddScalar>, Option<Buffer>);
    let drops: [fn(&mut Things); 5] =
        [|t| t.0 = None, |t| t.1 = None, |t| t.2 = None, |t| t.3 = None, |t| t.4 = None];
    for first in 0..5 {
        for step in 1..5 {
            let runtime = on.runtime();
            let device = runtime.devices()[0].clone();
            let add = AddScalar::new(&runtime, &device);
            let mut buffer = zeros(&device, 32);
            let stream = busy(&runtime, &device, &mut buffer, 5);
            let mut things = (Some(runtime), Some(device), Some(stream), Some(add), Some(buffer));
            // Steps through all five in some order, because 5 is a prime.
            (0..5).for_each(|i| drops[(first + i * step) % 5](&mut things));
        }
    }
}

fn events_outlive_their_stream(on: Under) {
    on.run(|runtime, device| {
        let mut buffer = zeros(device, 10);
        let event = Event::new();
        let stream = busy(runtime, device, &mut buffer, 10);
        stream.record(&event).unwrap();
        drop(stream);
        event.sync().unwrap();
        assert!(event.query().unwrap());
        assert_eq!(buffer.download::<f32>().unwrap(), [10.0; 10]);
    });
}

fn buffers_are_dropped_on_other_threads(on: Under) {
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let stream = device.stream().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..30 {
                let src = zeros(device, 99);
                let mut dst = device.alloc(DType::F32, 99).unwrap();
                add.launch(&stream, 99, &src, 3.0, &mut dst).unwrap();
                scope.spawn(move || drop(src));
                scope.spawn(move || assert_eq!(dst.download::<f32>().unwrap(), [3.0; 99]));
            }
        });
    });
}

/// Wraps the memory of `owner` in a second buffer, whose deleter drops the first and counts.
fn import(owner: Buffer, deleted: &Arc<AtomicUsize>) -> Buffer {
    let deleted = deleted.clone();
    let device = owner.device().clone();
    let (space, address, bytes, dtype) =
        (owner.space().to_owned(), owner.address(), owner.bytes(), owner.dtype());
    let deleter = move || {
        // The asynchronous provider notices memory that is freed while work uses it.
        drop(owner);
        deleted.fetch_add(1, Ordering::SeqCst);
    };
    // SAFETY: the deleter owns the memory, which was written before and which nobody else uses.
    unsafe { Buffer::import(&device, &space, address, bytes, dtype, deleter) }.unwrap()
}

fn imported_memory_goes_back_once_after_the_work(on: Under) {
    on.run(|runtime, device| {
        let deleted = Arc::new(AtomicUsize::new(0));
        let mut buffer = import(zeros(device, 77), &deleted);
        let stream = busy(runtime, device, &mut buffer, 15);
        let copy = {
            let mut copy = device.alloc(DType::F32, 77).unwrap();
            stream.copy(&buffer, &mut copy).unwrap();
            copy
        };
        assert_eq!(deleted.load(Ordering::SeqCst), 0);
        drop(buffer);
        assert_eq!(copy.download::<f32>().unwrap(), [15.0; 77]);
        stream.sync().unwrap();
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
        drop((stream, copy));
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
    });
}

fn unused_imported_memory_goes_back(on: Under) {
    on.run(|_, device| {
        let deleted = Arc::new(AtomicUsize::new(0));
        let buffer = import(device.upload(&[1.0f32, f32::NAN]).unwrap(), &deleted);
        assert!(buffer.download::<f32>().unwrap()[1].is_nan());
        drop(buffer);
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
    });
}

/// The deleter is the user's code, so no lock may be held while it runs.
fn a_deleter_may_use_the_stream(on: Under) {
    on.run(|runtime, device| {
        let (add, deleted) = (AddScalar::new(runtime, device), Arc::new(AtomicUsize::new(0)));
        for sync in [true, false] {
            let stream = device.stream().unwrap();
            let owner = zeros(device, 50);
            let (address, space) = (owner.address(), owner.space().to_owned());
            let mut other = zeros(device, 50);
            add.launch(&stream, 50, InPlace, 1.0, &mut other).unwrap();
            let deleter = {
                let (add, stream, deleted) = (add.clone(), stream.clone(), deleted.clone());
                move || {
                    add.launch(&stream, 50, InPlace, 1.0, &mut other).unwrap();
                    drop((other, owner));
                    deleted.fetch_add(1, Ordering::SeqCst);
                }
            };
            // SAFETY: the deleter owns the memory, which was written before and which nobody else uses.
            let mut buffer =
                unsafe { Buffer::import(device, &space, address, 200, DType::F32, deleter) }.unwrap();
            add.launch(&stream, 50, InPlace, 1.0, &mut buffer).unwrap();
            drop(buffer);
            if sync {
                stream.sync().unwrap();
            }
            // Else it runs on the way of a later launch, or with the stream's end.
            let mut later = zeros(device, 50);
            for _ in 0..5 {
                std::thread::sleep(std::time::Duration::from_millis(1));
                add.launch(&stream, 50, InPlace, 1.0, &mut later).unwrap();
            }
            assert_eq!(later.download::<f32>().unwrap(), [5.0; 50]);
        }
        assert_eq!(deleted.load(Ordering::SeqCst), 2);
    });
}

fn running_out_of_memory_is_an_error(on: Under) {
    on.run_with(&[("memory_limit", "1048576")], |runtime, device| {
        let mut held = Vec::new();
        let error = loop {
            match device.alloc(DType::F32, 16_384) {
                Ok(buffer) => held.push(buffer),
                Err(e) => break e,
            }
            assert!(held.len() <= 16, "the limit is 16 of these");
        };
        assert_eq!(error.code(), Code::OutOfMemory, "{error}");
        assert!(error.message().contains(device.name()), "{error}");
        assert!(error.message().contains("65536") && error.message().contains("1048576"), "{error}");
        // What is there keeps working, and what is given back can be had again.
        held[0].upload(&[1.0f32; 16_384]).unwrap();
        let stream = busy(runtime, device, &mut held[0], 3);
        assert_eq!(held[0].download::<f32>().unwrap()[16_383], 4.0);
        held.truncate(1);
        stream.sync().unwrap();
        device.alloc(DType::F32, 16_384).unwrap();
    });
}

fn impossible_sizes_are_an_error(on: Under) {
    on.run(|_, device| {
        for len in [usize::MAX, usize::MAX / 4, usize::MAX / 8, 1 << 56] {
            let error = device.alloc(DType::F64, len).unwrap_err();
            assert_eq!(error.code(), Code::OutOfMemory, "{len}: {error}");
        }
        assert_eq!(device.upload(&[3u8]).unwrap().download::<u8>().unwrap(), [3]);
    });
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> Code {
    result.expect_err("this must fail").code()
}

fn an_error_comes_once_with_sync(on: Under) {
    on.run_with(&[("fail_launch", "3")], |runtime, device| {
        let mut buffer = zeros(device, 8);
        let stream = busy(runtime, device, &mut buffer, 5);
        let error = stream.sync().expect_err("the third launch fails");
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("launch 3"), "{error}");
        stream.sync().unwrap();
        assert!(stream.query().unwrap());
        // The stream and the buffer stay usable.
        buffer.upload(&[1.0f32; 8]).unwrap();
        AddScalar::new(runtime, device).launch(&stream, 8, InPlace, 1.0, &mut buffer).unwrap();
        assert_eq!(buffer.download::<f32>().unwrap(), [2.0; 8]);
    });
}

fn an_error_comes_with_the_buffer(on: Under) {
    on.run_with(&[("fail_launch", "2")], |runtime, device| {
        let mut buffer = zeros(device, 8);
        let stream = busy(runtime, device, &mut buffer, 3);
        assert_eq!(code(buffer.download::<f32>()), Code::Internal);
        assert_eq!(buffer.download::<f32>().unwrap(), [2.0; 8]);
        stream.sync().unwrap();
        // The stream is gone, and the device has looked whether its work is done: that takes the error from nobody.
        let runtime = on.runtime_with(&[("fail_launch", "2")]);
        let device = &runtime.devices()[0];
        let mut buffer = zeros(device, 8);
        drop(busy(&runtime, device, &mut buffer, 3));
        for _ in 0..50 {
            device.alloc(DType::F32, 1).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(code(buffer.download::<f32>()), Code::Internal);
        assert_eq!(buffer.download::<f32>().unwrap(), [2.0; 8]);
        // Dropped with an error that nobody asked for: logged, not fatal.
        let runtime = on.runtime_with(&[("fail_launch", "1")]);
        let mut buffer = zeros(&runtime.devices()[0], 8);
        drop(busy(&runtime, &runtime.devices()[0], &mut buffer, 1));
        drop(buffer);
    });
}

fn a_panic_is_an_error(on: Under) {
    on.run_with(&[("panic_launch", "2")], |runtime, device| {
        let (negate, stream) = (Negate::new(runtime, device), device.stream().unwrap());
        let mut buffer = device.upload(&[1i32, 2]).unwrap();
        for _ in 0..3 {
            negate.launch(&stream, 2, InPlace, &mut buffer).unwrap();
        }
        let error = stream.sync().expect_err("the second launch panics");
        assert_eq!(error.code(), Code::Panic, "{error}");
        assert!(error.message().contains("panic_launch"), "{error}");
        assert_eq!(buffer.download::<i32>().unwrap(), [1, 2]);
    });
}

fn the_allocator_may_fail_at_any_time(on: Under) {
    for successes in 0..6 {
        let runtime = on.runtime_with(&[("oom_after", &successes.to_string())]);
        let device = &runtime.devices()[0];
        let steps = || -> Result<()> {
            let stream = device.stream()?;
            let add = AddScalar::new(&runtime, device);
            let mut buffers = vec![device.upload(&[1.0f32; 9])?];
            loop {
                let mut next = device.alloc(DType::F32, 9)?;
                let last = &buffers[buffers.len() - 1];
                add.launch(&stream, 9, last, 1.0, &mut next)?;
                buffers.push(next);
            }
        };
        assert_eq!(code(steps()), Code::OutOfMemory);
        check_left_behind(&runtime);
    }
}
