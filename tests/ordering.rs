//! Work of several streams, devices and threads on the same buffers, in the order of the program.

use ep_core::{Code, DType};
use ep_registry::{Buffer, Event, InPlace, Runtime};
use ep_tests::ops::{Add, AddScalar, Negate};
use ep_tests::{Random, Under, on_each_async_provider, on_each_provider};
use std::time::Instant;

on_each_provider!(
    an_unrecorded_event_is_done,
    an_event_means_its_latest_record,
    a_wait_orders_raw_launches,
    elapsed_time_fits,
    two_streams_play_ping_pong,
    three_streams_pass_a_buffer_on,
    a_writer_waits_for_all_readers,
    readers_of_several_streams_agree,
    a_queued_upload_is_ordered,
    a_copy_is_ordered,
    copies_between_providers,
);

mod two_devices {
    use super::{copies_between_devices, devices_play_ping_pong, large_copies_are_staged};
    super::on_each_async_provider!(copies_between_devices, devices_play_ping_pong, large_copies_are_staged);
}

fn an_unrecorded_event_is_done(on: Under) {
    on.run(|_, device| {
        let (event, stream) = (Event::new(), device.stream().unwrap());
        assert!(event.query().unwrap());
        event.sync().unwrap();
        stream.wait(&event).unwrap();
        stream.sync().unwrap();
        stream.record(&event).unwrap();
        event.sync().unwrap();
        stream.sync().unwrap();
        assert!(event.query().unwrap() && stream.query().unwrap());
    });
}

fn an_event_means_its_latest_record(on: Under) {
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let event = Event::new();
        let mut buffer = device.upload(&[0.0f32; 16]).unwrap();
        for round in 1..=20u8 {
            first.record(&event).unwrap();
            for _ in 0..5 {
                add.launch(&first, 16, InPlace, 1.0, &mut buffer).unwrap();
            }
            let clone = event.clone();
            first.record(&event).unwrap();
            if round % 2 == 0 {
                clone.sync().unwrap();
                assert!(event.query().unwrap());
            } else {
                second.wait(&event).unwrap();
                second.sync().unwrap();
                assert!(clone.query().unwrap());
            }
            let map = buffer.map_read::<f32>().unwrap();
            assert_eq!(*map, [f32::from(round) * 5.0; 16]);
        }
    });
}

fn a_wait_orders_raw_launches(on: Under) {
    use ep_core::primitive::ElementwiseUnaryArgs;
    on.run(|runtime, device| {
        let negate = Negate::new(runtime, device);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let (a, b) = (device.upload(&[5i32; 300]).unwrap(), device.upload(&[0i32; 300]).unwrap());
        let event = Event::new();
        let there = ElementwiseUnaryArgs::new(300, a.address(), b.address());
        let back = ElementwiseUnaryArgs::new(300, b.address(), a.address());
        for round in 0..50 {
            // SAFETY: live memory of 300 elements each; the events order the two streams.
            unsafe { negate.0.launch_raw(&streams[round % 2], if round % 2 == 0 { &there } else { &back }) }
                .unwrap();
            streams[round % 2].record(&event).unwrap();
            streams[(round + 1) % 2].wait(&event).unwrap();
        }
        streams.iter().for_each(|s| s.sync().unwrap());
        assert_eq!(a.download::<i32>().unwrap(), [5; 300]);
        assert_eq!(b.download::<i32>().unwrap(), [-5; 300]);
    });
}

fn elapsed_time_fits(on: Under) {
    on.run(|runtime, device| {
        let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
        let mut buffer = device.upload(&[0.0f32; 16]).unwrap();
        let (start, end) = (Event::new(), Event::new());
        let e = start.elapsed_ns(&end).unwrap_err();
        assert_eq!(e.code(), Code::Unsupported, "{e}");
        let clock = Instant::now();
        add.launch(&stream, 16, InPlace, 1.0, &mut buffer).unwrap();
        stream.record(&start).unwrap();
        for _ in 0..20 {
            add.launch(&stream, 16, InPlace, 1.0, &mut buffer).unwrap();
        }
        stream.record(&end).unwrap();
        let elapsed = start.elapsed_ns(&end);
        if !on.is_async() {
            assert_eq!(elapsed.unwrap_err().code(), Code::Unsupported);
            return;
        }
        let elapsed = elapsed.unwrap();
        assert!(elapsed > 0 && u128::from(elapsed) <= clock.elapsed().as_nanos(), "{elapsed} ns");
        assert_eq!(end.elapsed_ns(&start).unwrap_err().code(), Code::InvalidArgument);
        let other = on.runtime();
        let theirs = Event::new();
        let stream = other.devices()[0].stream().unwrap();
        stream.wait(&start).unwrap();
        let mut foreign = other.devices()[0].upload(&[0.0f32; 16]).unwrap();
        AddScalar::new(&other, &other.devices()[0]).launch(&stream, 16, InPlace, 1.0, &mut foreign).unwrap();
        stream.record(&theirs).unwrap();
        assert_eq!(start.elapsed_ns(&theirs).unwrap_err().code(), Code::InvalidArgument);
    });
}

fn two_streams_play_ping_pong(on: Under) {
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let (left, right) = (device.stream().unwrap(), device.stream().unwrap());
        let mut a = device.upload(&[0.0f32; 250]).unwrap();
        let mut b = device.alloc(DType::F32, 250).unwrap();
        for _ in 0..200 {
            add.launch(&left, 250, &a, 1.0, &mut b).unwrap();
            add.launch(&right, 250, &b, 1.0, &mut a).unwrap();
        }
        assert_eq!(a.download::<f32>().unwrap(), [400.0; 250]);
        assert_eq!(b.download::<f32>().unwrap(), [399.0; 250]);
    });
}

fn three_streams_pass_a_buffer_on(on: Under) {
    let mut random = Random::fresh();
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
        let mut buffers: Vec<Buffer> = (0..3).map(|_| device.upload(&[0.0f32; 40]).unwrap()).collect();
        let mut model = [0.0f32; 3];
        for round in 0..200u16 {
            let (from, to) = (random.below(3) as usize, random.below(3) as usize);
            let stream = &streams[random.below(3) as usize];
            let x = f32::from(round % 7) - 3.0;
            if from == to {
                add.launch(stream, 40, InPlace, x, &mut buffers[to]).unwrap();
            } else {
                let [src, dst] = buffers.get_disjoint_mut([from, to]).unwrap();
                add.launch(stream, 40, &*src, x, dst).unwrap();
            }
            model[to] = model[from] + x;
            if random.below(20) == 0 {
                let n = random.below(3) as usize;
                assert_eq!(*buffers[n].map_read::<f32>().unwrap(), [model[n]; 40], "round {round}");
            }
        }
        for (buffer, x) in buffers.iter().zip(model) {
            assert_eq!(buffer.download::<f32>().unwrap(), [x; 40]);
        }
    });
}

fn a_writer_waits_for_all_readers(on: Under) {
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let streams: Vec<_> = (0..4).map(|_| device.stream().unwrap()).collect();
        let mut source = device.upload(&[1.0f32; 64]).unwrap();
        for round in 1..=20u8 {
            let results: Vec<Buffer> = streams[1..]
                .iter()
                .map(|stream| {
                    let mut dst = device.alloc(DType::F32, 64).unwrap();
                    add.launch(stream, 64, &source, 0.5, &mut dst).unwrap();
                    dst
                })
                .collect();
            add.launch(&streams[0], 64, InPlace, 1.0, &mut source).unwrap();
            for dst in results {
                assert_eq!(dst.download::<f32>().unwrap(), [f32::from(round) + 0.5; 64]);
            }
        }
    });
}

fn readers_of_several_streams_agree(on: Under) {
    on.run(|runtime, device| {
        let (add, plus) = (Add::new(runtime, device), AddScalar::new(runtime, device));
        let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
        let mut x = device.upload(&[1.0f32; 20]).unwrap();
        let (mut y, mut z) = (device.alloc(DType::F32, 20).unwrap(), device.alloc(DType::F32, 20).unwrap());
        for round in 1..=50u8 {
            plus.launch(&streams[0], 20, &x, 1.0, &mut y).unwrap();
            plus.launch(&streams[1], 20, &x, -1.0, &mut z).unwrap();
            add.launch(&streams[2], 20, &y, &z, &mut x).unwrap();
            if round % 10 == 0 {
                // (x + 1) + (x - 1) has doubled it ten times.
                assert_eq!(x.download::<f32>().unwrap(), [1024.0; 20]);
                x.upload(&[1.0f32; 20]).unwrap();
            }
        }
    });
}

fn a_queued_upload_is_ordered(on: Under) {
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let (left, right) = (device.stream().unwrap(), device.stream().unwrap());
        let mut buffer = device.alloc(DType::F32, 70).unwrap();
        for round in 0..30u8 {
            left.upload(&mut buffer, vec![f32::from(round); 70]).unwrap();
            // The next upload comes behind all of these, though they are on the other stream.
            for _ in 0..3 {
                add.launch(&right, 70, InPlace, 0.25, &mut buffer).unwrap();
            }
            if round % 7 == 0 {
                assert_eq!(buffer.download::<f32>().unwrap(), [f32::from(round) + 0.75; 70]);
            }
        }
        assert_eq!(buffer.download::<f32>().unwrap(), [29.75; 70]);
    });
}

fn a_copy_is_ordered(on: Under) {
    on.run(|runtime, device| {
        let add = AddScalar::new(runtime, device);
        let (left, right) = (device.stream().unwrap(), device.stream().unwrap());
        let mut a = device.upload(&[0.0f32; 90]).unwrap();
        let mut b = device.alloc(DType::F32, 90).unwrap();
        for _ in 0..40 {
            add.launch(&left, 90, InPlace, 1.0, &mut a).unwrap();
            right.copy(&a, &mut b).unwrap();
            add.launch(&left, 90, InPlace, 1.0, &mut b).unwrap();
            right.copy(&b, &mut a).unwrap();
        }
        assert_eq!(a.download::<f32>().unwrap(), [80.0; 90]);
    });
}

/// A runtime with this provider and another one that has a device of another kind.
fn with_other(on: Under) -> Runtime {
    let other = if on.is_async() { Under::CpuLinked } else { Under::AsyncPlugin };
    let builder = on.add(Runtime::builder(), on.kind(), &[]);
    other.add(builder, other.kind(), &[]).build().unwrap()
}

fn copies_between_providers(on: Under) {
    let mut random = Random::fresh();
    let runtime = with_other(on);
    let (cpu, asynchronous) = (runtime.device("cpu").unwrap(), runtime.device("async").unwrap());
    for device in [cpu, asynchronous] {
        let stream = device.stream().unwrap();
        for len in [0, 1, 1001] {
            let data = random.vec::<i32>(len);
            let mut there = asynchronous.alloc(DType::I32, len).unwrap();
            let mut back = cpu.alloc(DType::I32, len).unwrap();
            stream.copy(&cpu.upload(&data).unwrap(), &mut there).unwrap();
            stream.copy(&there, &mut back).unwrap();
            assert_eq!(back.download::<i32>().unwrap(), data);
        }
    }
    // Copies wait for queued work on both sides, and the work for them.
    let (negate, stream) = (Negate::new(&runtime, asynchronous), asynchronous.stream().unwrap());
    let here = Negate::new(&runtime, cpu);
    let host_stream = cpu.stream().unwrap();
    let mut x = asynchronous.upload(&[3i32; 100]).unwrap();
    let mut y = cpu.alloc(DType::I32, 100).unwrap();
    for _ in 0..25 {
        negate.launch(&stream, 100, InPlace, &mut x).unwrap();
        host_stream.copy(&x, &mut y).unwrap();
        here.launch(&host_stream, 100, InPlace, &mut y).unwrap();
        stream.copy(&y, &mut x).unwrap();
    }
    assert_eq!(x.download::<i32>().unwrap(), [3; 100]);
}

fn copies_between_devices(on: Under) {
    let mut random = Random::fresh();
    on.run(|runtime, first| {
        let second = &runtime.devices()[1];
        for (stream, len) in [(first.stream().unwrap(), 77), (second.stream().unwrap(), 4096)] {
            let data = random.vec::<i32>(len);
            let src = first.upload(&data).unwrap();
            let mut dst = second.alloc(DType::I32, len).unwrap();
            stream.copy(&src, &mut dst).unwrap();
            assert_eq!(dst.download::<i32>().unwrap(), data);
            stream.copy(src.slice(10, 20).unwrap(), dst.slice_mut(0, 20).unwrap()).unwrap();
            assert_eq!(dst.download::<i32>().unwrap()[..20], data[10..30]);
        }
    });
}

fn devices_play_ping_pong(on: Under) {
    on.run(|runtime, first| {
        let second = &runtime.devices()[1];
        let adds = [AddScalar::new(runtime, first), AddScalar::new(runtime, second)];
        let streams = [first.stream().unwrap(), second.stream().unwrap()];
        let mut a = first.upload(&[0.0f32; 60]).unwrap();
        let mut b = second.upload(&[0.0f32; 60]).unwrap();
        for round in 0..50 {
            adds[0].launch(&streams[0], 60, InPlace, 1.0, &mut a).unwrap();
            streams[round % 2].copy(&a, &mut b).unwrap();
            adds[1].launch(&streams[1], 60, InPlace, 1.0, &mut b).unwrap();
            streams[(round / 2) % 2].copy(&b, &mut a).unwrap();
        }
        assert_eq!(a.download::<f32>().unwrap(), [100.0; 60]);
    });
}

fn large_copies_are_staged(on: Under) {
    // More than two pieces of the staging memory, and an odd rest.
    const BYTES: usize = (17 << 20) + 13;
    let mut random = Random::fresh();
    on.run(|runtime, first| {
        let block = random.vec::<u8>(4093);
        let data: Vec<u8> = block.iter().copied().cycle().take(BYTES).collect();
        let src = first.upload(&data).unwrap();
        let mut dst = runtime.devices()[1].alloc(DType::U8, BYTES).unwrap();
        first.stream().unwrap().copy(&src, &mut dst).unwrap();
        assert!(dst.download::<u8>().unwrap() == data);
    });
}
