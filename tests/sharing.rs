//! Several runtimes in one process, several providers for one device, several instances of one file.

use ep_core::primitive::{
    ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc, Matmul, MatmulCall, MatmulDesc, Transpose,
    UnaryOp,
};
use ep_core::{Code, DType, Scalar};
use ep_registry::config::ProviderConfig;
use ep_registry::{Buffer, Builder, Device, InPlace, Primitive, Runtime, Status, Stream};
use ep_tests::ops::AddScalar;
use ep_tests::under::check_left_behind;
use ep_tests::{Random, Under, on_each_async_provider, on_each_provider, plugin};
use std::path::Path;

on_each_provider!(runtimes_do_not_disturb_each_other, runtimes_on_threads, instances_of_one_provider);

mod asynchronous {
    use super::{
        a_runtime_ends_while_its_plugin_logs, adopted_lanes_share_a_queue, buffers_cross_runtimes,
        lanes_are_ordered,
    };
    super::on_each_async_provider!(
        adopted_lanes_share_a_queue,
        a_runtime_ends_while_its_plugin_logs,
        buffers_cross_runtimes,
        lanes_are_ordered,
    );
}

/// Counts a fresh buffer up from 0 to `n`.
fn count(runtime: &Runtime, n: u8) {
    let device = &runtime.devices()[0];
    let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
    let mut buffer = device.upload(&[0.0f32; 30]).unwrap();
    for _ in 0..n {
        add.launch(&stream, 30, InPlace, 1.0, &mut buffer).unwrap();
    }
    assert_eq!(buffer.download::<f32>().unwrap(), [f32::from(n); 30]);
}

fn runtimes_do_not_disturb_each_other(on: Under) {
    let first = on.runtime();
    count(&first, 3);
    let second = on.runtime();
    count(&second, 4);
    drop(first);
    count(&second, 5);
    let third = on.runtime();
    count(&third, 6);
    drop(second);
    count(&third, 7);
    check_left_behind(&third);
}

fn runtimes_on_threads(on: Under) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 1..4 {
                    let runtime = on.runtime();
                    count(&runtime, n);
                    check_left_behind(&runtime);
                }
            });
        }
    });
}

fn instances_of_one_provider(on: Under) {
    let builder = on.add(Runtime::builder(), "a", &[]);
    let runtime = on.add(builder, "b", &[]).build().unwrap();
    assert!(runtime.report().entries.iter().all(|e| e.status == Status::Loaded), "{}", runtime.report());
    let members: Vec<&str> = runtime.devices()[0].members().iter().map(|m| m.instance()).collect();
    assert_eq!(members, ["a", "b"], "one logical device");
    count(&runtime, 9);
    check_left_behind(&runtime);
}

fn a_runtime_ends_while_its_plugin_logs(on: Under) {
    let kept = on.runtime_with(&[("log_thread", "true")]);
    for n in 0..5 {
        let runtime = on.runtime_with(&[("log_thread", "true")]);
        count(&runtime, n);
        drop(runtime);
        count(&kept, n);
    }
    check_left_behind(&kept);
}

fn buffers_cross_runtimes(on: Under) {
    let (first, second) = (on.runtime(), on.runtime());
    let (here, there) = (&first.devices()[0], &second.devices()[0]);
    let (add, theirs) = (AddScalar::new(&first, here), AddScalar::new(&second, there));
    let (stream, other) = (here.stream().unwrap(), there.stream().unwrap());
    let mut buffer = here.upload(&[0.0f32; 25]).unwrap();
    for _ in 0..20 {
        // The memory space is the same, so both reach it; their events are not, so the host waits in between.
        add.launch(&stream, 25, InPlace, 1.0, &mut buffer).unwrap();
        theirs.launch(&other, 25, InPlace, 1.0, &mut buffer).unwrap();
    }
    drop(second);
    drop(first);
    assert_eq!(buffer.download::<f32>().unwrap(), [40.0; 25]);
}

/// An asynchronous and an inline provider for one device: lanes that must wait for each other.
fn lanes_are_ordered(on: Under) {
    for primary in ["inline", "later"] {
        let settings = |name: &str| i32::from(name == primary);
        let mut cpu = ProviderConfig::new("inline", plugin("ep_cpu"));
        cpu.priority = settings("inline");
        let mut later = ProviderConfig::new("later", plugin("test_async"));
        later.priority = settings("later");
        later.options.insert("as_cpu".into(), "true".into());
        let builder = Runtime::builder().provider_with(cpu);
        let builder = match on {
            Under::AsyncPlugin => builder.provider_with(later),
            _ => builder.linked_with::<test_async::AsyncProvider>(later),
        };
        let runtime = builder.select("*", ["later"]).build().unwrap();
        let [device] = runtime.devices() else { panic!("{:?}", runtime.devices()) };
        assert_eq!(device.members()[0].instance(), primary);

        let square = unary_on(&runtime, device, "inline", UnaryOp::SQUARE);
        take_turns(&runtime, "later", &square, |x| x * x);
        raw_launches_take_turns(&runtime, device);
    }
}

/// Nothing but the stream orders raw launches, so its lanes must.
fn raw_launches_take_turns(runtime: &Runtime, device: &Device) {
    let negate = unary_on(runtime, device, "later", UnaryOp::NEGATIVE);
    let abs = unary_on(runtime, device, "inline", UnaryOp::ABS);
    let (stream, buffer) = (device.stream().unwrap(), device.upload(&[3.5f32; 64]).unwrap());
    let args = ElementwiseUnaryArgs::new(64, buffer.address(), buffer.address());
    for _ in 0..20 {
        // SAFETY: live memory of 64 elements, in place as the op allows; all work is on this one stream.
        unsafe {
            negate.launch_raw(&stream, &args).unwrap();
            abs.launch_raw(&stream, &args).unwrap();
        }
        stream.sync().unwrap();
        assert_eq!(buffer.download::<f32>().unwrap(), [3.5; 64]);
    }
}

/// Two instances of a provider for one device: the lane of the second shares the first one's queue.
fn adopted_lanes_share_a_queue(on: Under) {
    let builder = on.add(on.add(Runtime::builder(), "first", &[]), "second", &[]);
    let runtime = builder.select("broadcast_elementwise_binary", ["second"]).build().unwrap();
    let negate = unary_on(&runtime, &runtime.devices()[0], "first", UnaryOp::NEGATIVE);
    take_turns(&runtime, "second", &negate, |x| -x);
}

/// Launches an addition of the instance `adder`, and `other`, which computes `f`, in random order on two streams.
fn take_turns(runtime: &Runtime, adder: &str, other: &Primitive<ElementwiseUnary>, f: fn(f32) -> f32) {
    let device = other.device();
    let add = AddScalar::new(runtime, device);
    assert_eq!(add.0.instance(), adder);
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let mut buffer = device.upload(&[0.0f32; 45]).unwrap();
    let mut random = Random::fresh();
    let mut model = 0.0f32;
    for _ in 0..60 {
        let stream = &streams[random.below(2) as usize];
        if random.below(2) == 0 || model > 100.0 {
            let x = if model > 100.0 { -model } else { 1.0 };
            add.launch(stream, 45, InPlace, x, &mut buffer).unwrap();
            model += x;
        } else {
            launch(other, stream, &mut buffer);
            model = f(model);
        }
        if random.below(10) == 0 {
            assert_eq!(*buffer.map_read::<f32>().unwrap(), [model; 45]);
        }
    }
    drop(streams);
    assert_eq!(buffer.download::<f32>().unwrap(), [model; 45]);
    drop(buffer);
    check_left_behind(runtime);
}

/// A unary f32 primitive of a certain instance.
fn unary_on(runtime: &Runtime, device: &Device, instance: &str, op: UnaryOp) -> Primitive<ElementwiseUnary> {
    let desc = ElementwiseUnaryDesc::new(op, DType::F32, DType::F32);
    let primitive = runtime.primitive::<ElementwiseUnary>(device, desc).unwrap();
    assert_eq!(primitive.instance(), instance);
    primitive
}

fn launch(primitive: &Primitive<ElementwiseUnary>, stream: &Stream, buffer: &mut Buffer) {
    let count = buffer.len() as i64;
    let call = ep_core::primitive::ElementwiseUnaryCall { count, src: InPlace, dst: buffer };
    primitive.launch(stream, call).unwrap();
}

/// ep-cpu and a renamed copy of it, as `cpu` and `cpu2`.
fn two_providers(select: &[(&str, &str)]) -> Runtime {
    let builder = Runtime::builder().threads(2);
    let builder = builder.provider("cpu", plugin("ep_cpu")).provider("cpu2", plugin("test_cpu2"));
    let rule = |builder: Builder, (op, instance): &(&str, &str)| builder.select(*op, [*instance]);
    let runtime = select.iter().fold(builder, rule).build().unwrap();
    let ids: Vec<_> = runtime.report().entries.iter().map(|e| (e.status, e.provider.clone())).collect();
    let id = |name: &str| (Status::Loaded, Some((name.into(), env!("CARGO_PKG_VERSION").into())));
    assert_eq!(ids, [id("cpu"), id("cpu2")]);
    runtime
}

#[test]
fn two_providers_of_one_device_share_its_buffers() {
    let runtime = two_providers(&[("elementwise_unary", "cpu2"), ("matmul", "cpu")]);
    let [device] = runtime.devices() else { panic!("{:?}", runtime.devices()) };
    let members: Vec<&str> = device.members().iter().map(|m| m.instance()).collect();
    assert_eq!(members, ["cpu", "cpu2"]);
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    let matmul = runtime.primitive::<Matmul>(device, desc).unwrap();
    let relu = unary_on(&runtime, device, "cpu2", UnaryOp::RELU);
    assert_eq!(matmul.instance(), "cpu");
    // Memory comes from the primary provider; both work on it, in one stream.
    let stream = device.stream().unwrap();
    let x = device.upload(&[1.0f32, -2.0, 3.0, -4.0]).unwrap();
    let w = device.upload(&[-1.0f32, 0.0, 0.0, -2.0]).unwrap();
    let mut y = device.alloc(DType::F32, 4).unwrap();
    let mut z = device.alloc(DType::F32, 4).unwrap();
    let (alpha, beta) = (Scalar::None, Scalar::None);
    for _ in 0..10 {
        matmul
            .launch(&stream, MatmulCall { m: 2, n: 2, k: 2, alpha, beta, a: &x, b: &w, c: &mut y })
            .unwrap();
        launch(&relu, &stream, &mut y);
        matmul
            .launch(&stream, MatmulCall { m: 2, n: 2, k: 2, alpha, beta, a: &y, b: &w, c: &mut z })
            .unwrap();
    }
    assert_eq!(y.download::<f32>().unwrap(), [0.0, 4.0, 0.0, 8.0]);
    assert_eq!(z.download::<f32>().unwrap(), [0.0, -8.0, 0.0, -16.0]);
    // Without the rules, the first registered one does everything; without it, the other.
    let runtime = two_providers(&[]);
    let device = &runtime.devices()[0];
    unary_on(&runtime, device, "cpu", UnaryOp::RELU);
    runtime.deregister("cpu").unwrap();
    unary_on(&runtime, device, "cpu2", UnaryOp::RELU);
    count(&runtime, 12);
}

#[test]
fn a_provider_may_be_linked_and_loaded_at_once() {
    let builder = Under::CpuLinked.add(Runtime::builder(), "linked", &[]);
    let builder = Under::CpuPlugin.add(builder, "loaded", &[]);
    let runtime = builder.select("elementwise_unary", ["loaded"]).build().unwrap();
    let device = &runtime.devices()[0];
    let (stream, mut buffer) = (device.stream().unwrap(), device.upload(&[-1.5f32, f32::INFINITY]).unwrap());
    launch(&unary_on(&runtime, device, "loaded", UnaryOp::NEGATIVE), &stream, &mut buffer);
    let add = AddScalar::new(&runtime, device);
    assert_eq!(add.0.instance(), "linked");
    add.launch(&stream, 2, InPlace, 1.0, &mut buffer).unwrap();
    assert_eq!(buffer.download::<f32>().unwrap(), [2.5, f32::NEG_INFINITY]);
}

#[test]
fn a_copy_under_the_same_id_is_a_duplicate() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libother.so");
    std::fs::copy(plugin("ep_cpu"), &copy).unwrap();
    let build = |first: &Path, second: &Path| {
        let builder = Runtime::builder().provider("first", first).provider("second", second);
        builder.policy(ep_registry::trust::Policy::permissive()).build().unwrap()
    };
    for (first, second) in [(plugin("ep_cpu"), copy.clone()), (copy.clone(), plugin("ep_cpu"))] {
        let runtime = build(&first, &second);
        let entries = &runtime.report().entries;
        assert_eq!((entries[0].status, entries[1].status), (Status::Loaded, Status::Failed));
        let reason = &entries[1].reason;
        assert!(reason.contains("duplicate") && reason.contains("`first`"), "{reason}");
        count(&runtime, 2);
    }
    // One file twice is no duplicate, but two instances.
    let runtime = build(&copy, &copy);
    assert_eq!(runtime.report().with_status(Status::Loaded).count(), 2, "{}", runtime.report());
}

#[test]
fn the_same_name_twice_is_an_error() {
    let runtime = Under::CpuPlugin.add(Runtime::builder(), "x", &[]);
    let e = Under::CpuLinked.add(runtime, "x", &[]).build().unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument, "a required provider is missing");
    assert!(e.message().contains("instance name `x` is taken"), "{e}");
}
