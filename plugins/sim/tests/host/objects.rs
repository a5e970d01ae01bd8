//! Devices, streams, events, copies.

use crate::rig::{Hold, Negate, build, nothing_left, runtime, settings};
use ep_core::provider::StreamOptions;
use ep_core::{Code, DType};
use ep_registry::{Buffer, Event, InPlace, Runtime};
use ep_sim::SimProvider;

#[test]
fn devices_are_different_hardware_in_every_instance() {
    let mut second = settings(&[("devices", "3")]);
    second.name = "more".into();
    let builder = Runtime::builder().threads(1).linked_with::<SimProvider>(settings(&[]));
    let runtime = builder.linked_with::<SimProvider>(second).build().unwrap();
    let infos: Vec<_> = runtime.devices().iter().map(|d| d.info()).collect();
    assert_eq!(infos.len(), 5);
    for (i, a) in infos.iter().enumerate() {
        assert!(infos[..i].iter().all(|b| a.uuid != b.uuid && a.memory_space != b.memory_space));
        assert!(!a.inline && a.kind == "sim" && a.reads == a.writes && a.reads[0] == a.memory_space);
    }
    // Peers of the same instance, and pinned memory.
    assert_eq!((infos[0].reads.len(), infos[4].reads.len()), (3, 4));
    let e = build(&[("devices", "0")]).err().unwrap();
    assert!(e.message().contains("it has no devices"), "{e}");
}

#[test]
fn options_are_checked() {
    for (option, value, said) in [
        ("device", "2", "unknown option `device`"),
        ("devices", "65", "at most 64"),
        ("peer", "maybe", "option `peer` is `maybe`"),
        ("op_error", "often", "option `op_error` is `often`"),
    ] {
        let e = build(&[(option, value)]).err().unwrap();
        assert!(e.message().contains(said), "{e}");
    }
    let e = build(&[("memory_bytes", "18446744073709551615")]).err().unwrap();
    assert!(e.message().contains("lower option `memory_bytes`"), "{e}");
}

#[test]
fn it_loads_from_its_file() {
    let test = std::env::current_exe().unwrap();
    let name = format!("{}ep_sim{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let mut config = settings(&[("max_delay_us", "10")]);
    // Test programs are built into a folder beside the plugin, which `ep-sim-plugin` is.
    let Some(folder) = test.parent().and_then(std::path::Path::parent) else { panic!("{}", test.display()) };
    config.path = folder.join(name);
    assert!(config.path.exists(), "{} is missing; run `cargo build -p ep-sim-plugin`", config.path.display());
    let runtime = Runtime::builder().threads(1).provider_with(config).build().unwrap();
    let device = &runtime.devices()[1];
    let stream = device.stream().unwrap();
    let mut x = device.upload(&[1i32, 2, 3]).unwrap();
    Negate::new(&runtime, device).launch(&stream, 3, InPlace, &mut x).unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [-1, -2, -3]);
    drop(x);
    nothing_left(&runtime);
}

#[test]
fn work_waits_for_its_turn_and_events_tell_when_it_was() {
    let hold = Hold::option("events");
    let runtime = runtime(&[("hold", &hold)]);
    let device = &runtime.devices()[0];
    let (negate, streams) =
        (Negate::new(&runtime, device), [device.stream().unwrap(), device.stream().unwrap()]);
    let event = Event::new();
    assert!(event.query().unwrap());
    let mut x = device.upload(&[3i32; 4]).unwrap();
    let held = Hold::new("events");
    negate.launch(&streams[0], 4, InPlace, &mut x).unwrap();
    streams[0].record(&event).unwrap();
    streams[1].wait(&event).unwrap();
    assert!(!event.query().unwrap() && !streams[0].query().unwrap() && !streams[1].query().unwrap());
    drop(held);
    streams[1].sync().unwrap();
    assert!(event.query().unwrap());
    event.sync().unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [-3; 4]);
}

#[test]
fn time_passes_between_events() {
    let runtime = runtime(&[("slow", "2"), ("slow_ms", "20")]);
    let device = &runtime.devices()[0];
    let (negate, stream) = (Negate::new(&runtime, device), device.stream().unwrap());
    let (start, end, never) = (Event::new(), Event::new(), Event::new());
    let mut x = device.alloc(DType::I32, 4).unwrap();
    stream.upload(&mut x, vec![3i32; 4]).unwrap();
    stream.record(&start).unwrap();
    negate.launch(&stream, 4, InPlace, &mut x).unwrap();
    stream.record(&end).unwrap();
    assert!(start.elapsed_ns(&end).unwrap() >= 20_000_000);
    assert_eq!(end.elapsed_ns(&start).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(start.elapsed_ns(&never).unwrap_err().code(), Code::Unsupported);
}

#[test]
fn devices_reach_each_other_only_as_peers() {
    for peer in [true, false] {
        let runtime = runtime(&[("peer", &peer.to_string())]);
        let [first, second] = runtime.devices() else { panic!("two devices") };
        let stream = first.stream().unwrap();
        let data: Vec<i32> = (0..1000).map(|i| i * 7919 - 3_000_000).collect();
        let there = second.upload(&data).unwrap();
        let mut here = first.alloc(DType::I32, 1000).unwrap();
        stream.copy(&there, &mut here).unwrap();
        assert_eq!(here.download::<i32>().unwrap(), data);
        // A kernel that reads the other device's memory.
        let launched = Negate::new(&runtime, first).launch(&stream, 1000, &there, &mut here);
        if peer {
            launched.unwrap();
            assert!(here.download::<i32>().unwrap().iter().zip(&data).all(|(a, b)| *a == -b));
        } else {
            let e = launched.unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument);
            assert!(e.message().contains("does not reach"), "{e}");
        }
        drop((there, here));
        nothing_left(&runtime);
    }
}

#[test]
fn an_adopted_stream_shares_the_queue() {
    let hold = Hold::option("adopted");
    let runtime = runtime(&[("hold", &hold)]);
    let devices = [0, 1].map(|i| runtime.devices()[i].members()[0].handle().clone());
    let stream = devices[0].create_stream(StreamOptions::default()).unwrap();
    let (kind, native) = devices[0].native_stream(&stream).unwrap();
    assert_eq!(devices[0].native_stream(&stream).unwrap(), (kind.clone(), native));
    // SAFETY: `stream` outlives what is adopted from it; the others are refused.
    unsafe {
        let adopted = devices[0].adopt_stream(&kind, native).unwrap();
        assert_eq!(devices[1].adopt_stream(&kind, native).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(devices[0].adopt_stream(&kind, native + 100).unwrap_err().code(), Code::NotFound);
        assert_eq!(devices[0].adopt_stream("CUstream", native).unwrap_err().code(), Code::Unsupported);
        let held = Hold::new("adopted");
        let event = devices[0].create_event().unwrap();
        stream.record(&event).unwrap();
        assert!(!adopted.query().unwrap(), "one queue");
        drop(held);
        drop(adopted);
        assert!(event.query().unwrap(), "dropping waits for the queue");
    }
    drop(stream);
    // SAFETY: refused, because the stream is gone.
    let gone = unsafe { devices[0].adopt_stream(&kind, native) }.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[test]
fn one_primitive_on_many_threads() {
    let runtime = runtime(&[("max_delay_us", "20")]);
    let device = &runtime.devices()[0];
    let negate = Negate::new(&runtime, device);
    std::thread::scope(|scope| {
        for thread in 1..=8 {
            let negate = negate.clone();
            scope.spawn(move || {
                let stream = device.stream().unwrap();
                let mut x = device.upload(&[thread; 33]).unwrap();
                for _ in 0..25 {
                    negate.launch(&stream, 33, InPlace, &mut x).unwrap();
                }
                assert_eq!(x.download::<i32>().unwrap(), [-thread; 33]);
            });
        }
    });
    nothing_left(&runtime);
}

#[test]
fn objects_are_dropped_in_odd_orders() {
    let hold = Hold::option("orders");
    for order in 0..4 {
        let runtime = runtime(&[("hold", &hold)]);
        let device = runtime.devices()[0].clone();
        let (negate, stream) = (Negate::new(&runtime, &device), device.stream().unwrap());
        let other = device.stream().unwrap();
        let event = Event::new();
        let mut x: Buffer = device.upload(&[1i32; 16]).unwrap();
        let held = Hold::new("orders");
        negate.launch(&stream, 16, InPlace, &mut x).unwrap();
        stream.record(&event).unwrap();
        other.wait(&event).unwrap();
        negate.launch(&other, 16, InPlace, &mut x).unwrap();
        match order {
            0 => {
                drop((runtime, x, event, held));
                drop((stream, other));
            }
            1 => {
                drop((event, negate, x));
                drop((held, other, stream, runtime));
            }
            2 => {
                drop((held, stream, other));
                assert_eq!(x.download::<i32>().unwrap(), [1; 16]);
                drop((x, runtime));
            }
            _ => {
                drop((held, runtime, stream));
                other.sync().unwrap();
                drop((other, event));
                assert_eq!(x.download::<i32>().unwrap(), [1; 16]);
                drop(x);
            }
        }
        assert_eq!(device.memory_stats().unwrap().in_use_blocks, 0, "order {order}");
    }
}
