//! Each fault becomes the right code, in the right place, as often as it should.

use crate::rig::{Negate, nothing_left, runtime};
use ep_core::{Code, DType};
use ep_registry::{Event, InPlace};

#[test]
fn out_of_memory_comes_from_the_allocation() {
    let runtime = runtime(&[("out_of_memory", "2")]);
    let device = &runtime.devices()[0];
    let first = device.alloc(DType::U8, 1).unwrap();
    let e = device.alloc(DType::U8, 1).unwrap_err();
    assert_eq!(e.code(), Code::OutOfMemory);
    assert!(e.message().contains("option `out_of_memory` asks of number 2"), "{e}");
    let third = device.alloc(DType::U8, 1).unwrap();
    assert_eq!(device.memory_stats().unwrap().in_use_blocks, 2);
    drop((first, third));
    nothing_left(&runtime);
}

#[test]
fn a_launch_that_fails_changes_nothing() {
    let runtime = runtime(&[("launch_failure", "2")]);
    let device = &runtime.devices()[0];
    let (negate, stream) = (Negate::new(&runtime, device), device.stream().unwrap());
    let mut x = device.upload(&[7i32; 3]).unwrap();
    negate.launch(&stream, 3, InPlace, &mut x).unwrap();
    let e = negate.launch(&stream, 3, InPlace, &mut x).unwrap_err();
    assert_eq!(e.code(), Code::Unavailable);
    assert!(e.message().contains("elementwise_unary") && e.message().contains("`launch_failure`"), "{e}");
    stream.sync().unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [-7; 3]);
    negate.launch(&stream, 3, InPlace, &mut x).unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [7; 3]);
}

#[test]
fn an_op_error_is_told_once_by_the_stream() {
    let runtime = runtime(&[("op_error", "2")]);
    let device = &runtime.devices()[0];
    let (negate, stream) = (Negate::new(&runtime, device), device.stream().unwrap());
    let mut x = device.upload(&[7i32; 3]).unwrap();
    for _ in 0..3 {
        negate.launch(&stream, 3, InPlace, &mut x).unwrap();
    }
    let e = stream.sync().unwrap_err();
    assert_eq!(e.code(), Code::Internal);
    assert!(e.message().contains("`op_error` asks of number 2"), "{e}");
    stream.sync().unwrap();
    // Two of three were done.
    assert_eq!(x.download::<i32>().unwrap(), [7; 3]);
    drop(x);
    nothing_left(&runtime);
}

#[test]
fn a_lost_device_stays_lost_and_lets_go_of_everything() {
    let runtime = runtime(&[("device_lost", "5")]);
    let [first, second] = runtime.devices() else { panic!("two devices") };
    let (negate, streams) =
        (Negate::new(&runtime, first), [first.stream().unwrap(), first.stream().unwrap()]);
    let there = second.stream().unwrap();
    // Pieces of work 1 and 2.
    let (mut x, mut y) = (first.upload(&[7i32; 3]).unwrap(), second.upload(&[8i32; 3]).unwrap());
    let (before, after) = (Event::new(), Event::new());
    negate.launch(&streams[0], 3, InPlace, &mut x).unwrap();
    streams[0].record(&before).unwrap();
    negate.launch(&streams[1], 3, InPlace, &mut x).unwrap();
    streams[1].sync().unwrap();
    negate.launch(&streams[1], 3, InPlace, &mut x).unwrap();
    // The device may or may not be lost by now.
    if let Err(e) = streams[1].record(&after) {
        assert_eq!(e.code(), Code::DeviceLost);
    }
    for _ in 0..3 {
        let e = streams[1].sync().unwrap_err();
        assert_eq!(e.code(), Code::DeviceLost);
        assert!(e.message().contains("`device_lost` asks of number 5"), "{e}");
    }
    let lost = [
        streams[0].sync(),
        streams[0].query().map(drop),
        streams[0].record(&after),
        streams[0].wait(&before),
        before.sync(),
        before.query().map(drop),
        negate.launch(&streams[0], 3, InPlace, &mut x),
        streams[0].copy(&y, &mut x),
        x.upload(&[1i32]),
        x.download::<i32>().map(drop),
        first.alloc(DType::U8, 1).map(drop),
        first.stream().map(drop),
    ];
    for (i, result) in lost.into_iter().enumerate() {
        assert_eq!(result.map_err(|e| e.code()), Err(Code::DeviceLost), "call {i}");
    }
    // The other device does not care.
    Negate::new(&runtime, second).launch(&there, 3, InPlace, &mut y).unwrap();
    assert_eq!(y.download::<i32>().unwrap(), [-8; 3]);
    drop((x, y, streams, there, before, after));
    nothing_left(&runtime);
}

#[test]
fn faults_by_chance_follow_the_seed() {
    let outcomes = |seed: &str| -> Vec<bool> {
        let runtime = runtime(&[("launch_failure", "50%"), ("seed", seed)]);
        let device = &runtime.devices()[0];
        let (negate, stream) = (Negate::new(&runtime, device), device.stream().unwrap());
        let mut x = device.upload(&[7i32; 3]).unwrap();
        (0..64).map(|_| negate.launch(&stream, 3, InPlace, &mut x).is_ok()).collect()
    };
    let one = outcomes("1");
    assert!(one.contains(&true) && one.contains(&false));
    assert_eq!(one, outcomes("1"));
    assert_ne!(one, outcomes("2"));
}

#[test]
fn ignored_waits_are_what_the_option_says() {
    let hold = crate::rig::Hold::option("ignored");
    let runtime = runtime(&[("ignore_waits", "true"), ("hold", &hold)]);
    let [first, second] = runtime.devices() else { panic!("two devices") };
    let (stream, other) = (first.stream().unwrap(), second.stream().unwrap());
    let mut x = first.upload(&[7i32; 3]).unwrap();
    let mut y = second.alloc(DType::I32, 3).unwrap();
    let event = Event::new();
    let held = crate::rig::Hold::new("ignored");
    stream.upload(&mut x, vec![8i32; 3]).unwrap();
    stream.record(&event).unwrap();
    other.wait(&event).unwrap();
    other.copy(&x, &mut y).unwrap();
    // The first device is held, so the copy on the second one must have gone ahead of its upload.
    other.sync().unwrap();
    assert!(!event.query().unwrap());
    drop(held);
    assert_eq!(y.download::<i32>().unwrap(), [7; 3]);
    assert_eq!(x.download::<i32>().unwrap(), [8; 3]);
}
