//! Graphs: recorded, launched, updated, misused.

use crate::rig::{Hold, Negate, build, nothing_left, runtime};
use ep_core::{Code, DType};
use ep_registry::{Buffer, Event, InPlace, Runtime, Stream, Updated};

fn asked(runtime: &Runtime) -> (&ep_registry::Device, Negate, Stream) {
    let device = &runtime.devices()[0];
    (device, Negate::new(runtime, device), device.stream().unwrap())
}

fn refused<T>(result: ep_core::Result<T>, code: Code, said: &str) {
    let e = result.err().expect("it must be refused");
    assert!(e.code() == code && e.message().contains(said), "{e:?}");
}

#[test]
fn recorded_work_is_done_with_each_launch() {
    let runtime = runtime(&[]);
    let (device, negate, stream) = asked(&runtime);
    let mut x = device.upload(&[1i32, -2, 3]).unwrap();
    let mut y = device.alloc(DType::I32, 3).unwrap();
    let graph = stream
        .capture(|s| {
            // `y` is written by what is recorded, and so may be read by it.
            negate.launch(s, 3, &x, &mut y)?;
            negate.launch(s, 3, InPlace, &mut y)?;
            s.copy(&y, &mut x)?;
            negate.launch(s, 3, InPlace, &mut x)
        })
        .unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [1, -2, 3], "recording does nothing");
    refused(y.download::<i32>(), Code::InvalidArgument, "only 0..0 of the buffer");
    graph.launch(&stream).unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [-1, 2, -3]);
    assert_eq!(y.download::<i32>().unwrap(), [1, -2, 3]);
    x.upload(&[10i32, 20, 30]).unwrap();
    for _ in 0..3 {
        graph.launch(&stream).unwrap();
    }
    assert_eq!(x.download::<i32>().unwrap(), [-10, -20, -30]);
    drop((x, y, graph, stream));
    nothing_left(&runtime);
}

#[test]
fn launches_are_ordered_with_other_streams_and_keep_the_memory() {
    let runtime = runtime(&[("max_delay_us", "300")]);
    let (device, negate, first) = asked(&runtime);
    let second = device.stream().unwrap();
    let mut x = device.upload(&[7i32; 8]).unwrap();
    let mut y = device.upload(&[0i32; 8]).unwrap();
    let graph = first
        .capture(|s| {
            negate.launch(s, 8, &x, &mut y)?;
            negate.launch(s, 8, InPlace, &mut x)
        })
        .unwrap();
    let mut expected = (7, 0);
    for round in 0..20 {
        // Its own launches on different streams, and launches of primitives between them.
        graph.launch([&first, &second][round % 2]).unwrap();
        expected = (-expected.0, -expected.0);
        if round % 3 == 0 {
            negate.launch([&second, &first][round % 2], 8, InPlace, &mut x).unwrap();
            expected.0 = -expected.0;
        }
    }
    assert_eq!(x.download::<i32>().unwrap(), [expected.0; 8]);
    assert_eq!(y.download::<i32>().unwrap(), [expected.1; 8]);
    // The graph outlives the stream it came from and one of its buffers.
    drop((first, x));
    graph.launch(&second).unwrap();
    graph.launch(&second).unwrap();
    assert_eq!(y.download::<i32>().unwrap(), [expected.0; 8]);
    assert_eq!(device.memory_stats().unwrap().in_use_blocks, 2);
    graph.launch(&second).unwrap();
    // Dropped while it is launched.
    drop((graph, y));
    second.sync().unwrap();
    drop(second);
    nothing_left(&runtime);
}

#[test]
fn updates_take_other_work() {
    let runtime = runtime(&[]);
    let (device, negate, stream) = asked(&runtime);
    let x = device.upload(&[5i32; 4]).unwrap();
    let [mut y, mut z] = [0, 0].map(|v| device.upload(&[v; 4]).unwrap());
    let mut graph = stream.capture(|s| negate.launch(s, 4, &x, &mut y)).unwrap();
    graph.launch(&stream).unwrap();
    let updated = graph.update(&stream, |s| negate.launch(s, 4, &x, &mut z));
    assert_eq!(updated.unwrap(), Updated::InPlace);
    y.upload(&[1i32; 4]).unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!((y.download::<i32>().unwrap(), z.download::<i32>().unwrap()), (vec![1; 4], vec![-5; 4]));
    let more = graph.update(&stream, |s| {
        negate.launch(s, 4, &x, &mut y)?;
        negate.launch(s, 4, InPlace, &mut y)
    });
    assert_eq!(more.unwrap(), Updated::Rebuilt);
    // One that fails leaves the graph as it was, and the stream usable.
    let failed = graph.update(&stream, |_| Err(ep_core::Error::not_found("no weights")));
    refused(failed, Code::NotFound, "no weights");
    graph.launch(&stream).unwrap();
    assert_eq!(y.download::<i32>().unwrap(), [5; 4]);
    // `z` is no longer the graph's.
    drop(z);
    stream.sync().unwrap();
    assert_eq!(device.memory_stats().unwrap().in_use_blocks, 2);
    let other = runtime.devices()[1].stream().unwrap();
    refused(graph.launch(&other), Code::InvalidArgument, "record it there");
    refused(graph.update(&other, |_| Ok(())), Code::InvalidArgument, "record it there");
}

#[test]
fn what_cannot_be_recorded_is_refused_and_the_recording_goes_on() {
    let runtime = runtime(&[]);
    let (device, negate, stream) = asked(&runtime);
    let idle = device.stream().unwrap();
    let mut x = device.upload(&[1i32; 4]).unwrap();
    let empty = idle.capture(|_| Ok(())).unwrap();
    empty.launch(&idle).unwrap();
    let event = Event::new();
    let graph = stream
        .capture(|s| {
            negate.launch(s, 4, InPlace, &mut x)?;
            let said = "the stream records a graph";
            refused(s.sync(), Code::InvalidArgument, said);
            refused(s.query(), Code::InvalidArgument, said);
            refused(s.record(&event), Code::InvalidArgument, said);
            refused(s.wait(&event), Code::InvalidArgument, said);
            refused(s.upload(&mut x, vec![1i32; 4]), Code::InvalidArgument, said);
            refused(s.capture(|_| Ok(())), Code::InvalidArgument, said);
            refused(empty.launch(s), Code::InvalidArgument, said);
            // Allocations, blocking copies and other streams go on.
            let mut y = device.upload(&[3i32; 4])?;
            negate.launch(&idle, 4, InPlace, &mut y)?;
            assert_eq!(y.download::<i32>()?, [-3; 4]);
            let unwritten = device.alloc(DType::I32, 4)?;
            refused(s.copy(&unwritten, &mut y), Code::InvalidArgument, "only 0..0");
            Ok(())
        })
        .unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [-1; 4]);
    // A closure that fails or panics ends its recording.
    refused(stream.capture(|_| Err(ep_core::Error::internal("stop"))), Code::Internal, "stop");
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stream.capture(|_| panic!("boom"))));
    assert!(panicked.is_err());
    stream.sync().unwrap();
    negate.launch(&stream, 4, InPlace, &mut x).unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [1; 4]);
}

#[test]
fn no_launch_while_the_host_looks() {
    let runtime = runtime(&[]);
    let (device, negate, stream) = asked(&runtime);
    let (x, mut y) = (device.upload(&[2i32; 4]).unwrap(), device.upload(&[0i32; 4]).unwrap());
    let graph = stream.capture(|s| negate.launch(s, 4, &x, &mut y)).unwrap();
    let reading = (x.map_read::<i32>().unwrap(), ());
    graph.launch(&stream).unwrap();
    drop(reading);
    let written = y.map_read::<i32>().unwrap();
    refused(graph.launch(&stream), Code::InvalidArgument, "graph writes is mapped");
    drop(written);
    let mut x = x;
    let mut writing = x.map_write::<i32>().unwrap();
    writing[0] = 9;
    refused(graph.launch(&stream), Code::InvalidArgument, "graph reads is mapped");
    writing.finish().unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(y.download::<i32>().unwrap(), [-9, -2, -2, -2]);
}

#[test]
fn bytes_that_a_graph_reads_as_bool_stay_bool() {
    let runtime = runtime(&[]);
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let truth = device.upload(&[true, false]).unwrap();
    let mut copy = device.upload(&[false, false]).unwrap();
    let graph = stream.capture(|s| s.copy(&truth, &mut copy)).unwrap();
    refused(truth.reinterpret(DType::U8), Code::InvalidArgument, "drop the graph first");
    drop(graph);
    assert!(copy.reinterpret(DType::U8).is_ok());
}

#[test]
fn threads_and_graphs_share_buffers_in_some_order() {
    let runtime = runtime(&[]);
    let (device, negate, stream) = asked(&runtime);
    let mut x = device.upload(&[1i32; 16]).unwrap();
    let mut out = device.upload(&[1i32; 16]).unwrap();
    let graph = stream
        .capture(|s| {
            negate.launch(s, 8, InPlace, x.slice_mut(0, 8)?)?;
            negate.launch(s, 8, InPlace, x.slice_mut(8, 8)?)
        })
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = device.stream().unwrap();
            for _ in 0..100 {
                graph.launch(&other).unwrap();
            }
        });
        // A copy sees the graph before or after a launch, never between.
        for _ in 0..100 {
            stream.copy(&x, &mut out).unwrap();
            let seen = out.download::<i32>().unwrap();
            assert!(seen.iter().all(|v| *v == seen[0]), "{seen:?}");
        }
    });
    assert_eq!(x.download::<i32>().unwrap(), [1; 16]);
}

#[test]
fn faults_hit_launches_of_a_graph() {
    // The third launch is the first of the second replay.
    let runtime = build(&[("op_error", "3")]).unwrap();
    let (device, negate, stream) = asked(&runtime);
    let mut x: Buffer = device.upload(&[1i32; 4]).unwrap();
    let graph = stream
        .capture(|s| {
            negate.launch(s, 4, InPlace, &mut x)?;
            negate.launch(s, 4, InPlace, &mut x)
        })
        .unwrap();
    graph.launch(&stream).unwrap();
    stream.sync().unwrap();
    graph.launch(&stream).unwrap();
    refused(stream.sync(), Code::Internal, "failed on the device");
    assert_eq!(x.download::<i32>().unwrap(), [-1; 4]);
}

#[test]
fn a_recording_waits_for_the_work_before_it() {
    let hold = Hold::option("graph");
    let runtime = runtime(&[("hold", &hold)]);
    let (device, negate, stream) = asked(&runtime);
    let mut x = device.upload(&[1i32; 4]).unwrap();
    let held = Hold::new("graph");
    negate.launch(&stream, 4, InPlace, &mut x).unwrap();
    let graph = std::thread::scope(|scope| {
        scope.spawn(|| drop(held));
        stream.capture(|s| {
            // Nothing is pending, so nobody has to wait for the stream while it records.
            assert_eq!(x.download::<i32>()?, [-1; 4]);
            negate.launch(s, 4, InPlace, &mut x)
        })
    });
    graph.unwrap().launch(&stream).unwrap();
    assert_eq!(x.download::<i32>().unwrap(), [1; 4]);
}
