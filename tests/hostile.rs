//! A provider that misbehaves in every place where it is called, loaded from its file through the public API: each
//! time the host gets an error that says so, and the process and the provider beside it live on.
//!
//! `plugins/hostile` lists the modes and has the tests of tables and texts that only a broken build can have.

use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp};
use ep_core::{Code, DType, Result};
use ep_registry::config::ProviderConfig;
use ep_registry::report::Entry;
use ep_registry::{Event, Runtime, Status};
use ep_tests::loading::{built, folder, good, says};
use std::path::Path;

/// Every call of a host, with the mode of one act in it.
const RUN_STAGES: [&str; 12] = [
    "stream", "event", "allocator", "alloc", "free", "build", "launch", "copy", "sync", "done", "record", "wait",
];

/// Loads the provider in these modes, each as an instance of its own, with a good provider last.
fn load(good: &Path, modes: &[&str]) -> Runtime {
    let file = built("test_hostile");
    let mut builder = Runtime::builder().threads(1);
    for mode in modes {
        let mut settings = ProviderConfig::new(*mode, &file);
        settings.options.insert("mode".into(), (*mode).into());
        builder = builder.provider_with(settings);
    }
    builder.provider("good", good).build().expect("nothing is required")
}

fn entry<'a>(runtime: &'a Runtime, instance: &str) -> &'a Entry {
    let found = runtime.report().entries.iter().find(|e| e.instance == instance);
    found.unwrap_or_else(|| panic!("no entry `{instance}` in\n{}", runtime.report()))
}

/// What a host does: memory, transfers, a launch, events between two streams. Returns relu of `data`.
fn use_device(runtime: &Runtime, device: &str, data: &[f32]) -> Result<Vec<f32>> {
    let device = runtime.device(device)?;
    let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
    let primitive = runtime.primitive::<ElementwiseUnary>(device, desc)?;
    let (first, second) = (device.stream()?, device.stream()?);
    let (src, mut mid) = (device.upload(data)?, device.alloc(DType::F32, data.len())?);
    let mut dst = device.alloc(DType::F32, data.len())?;
    let count = data.len() as i64;
    primitive.launch(&first, ElementwiseUnaryCall { count, src: &src, dst: &mut mid })?;
    let event = Event::new();
    first.record(&event)?;
    second.wait(&event)?;
    primitive.launch(&second, ElementwiseUnaryCall { count, src: &mid, dst: &mut dst })?;
    second.query()?;
    first.sync()?;
    second.sync()?;
    dst.download()
}

const DATA: [f32; 5] = [-1.0, 2.5, f32::NEG_INFINITY, -0.5, 7.0];
const RELU: [f32; 5] = [0.0, 2.5, 0.0, 0.0, 7.0];

/// The provider beside the bad one works.
fn good_one_works(runtime: &Runtime) {
    assert_eq!(entry(runtime, "good").status, Status::Loaded, "{}", runtime.report());
    assert_eq!(use_device(runtime, "skew", &DATA).unwrap(), RELU);
}

#[test]
fn without_a_mode_it_is_a_good_provider() {
    let folder = folder();
    let runtime = Runtime::builder().threads(1).provider("x", built("test_hostile")).build().unwrap();
    assert_eq!(entry(&runtime, "x").status, Status::Loaded, "{}", runtime.report());
    assert_eq!(use_device(&runtime, "cpu", &DATA).unwrap(), RELU);
    let runtime = load(&good(folder.path()), &["launch.pnic"]);
    let misspelt = entry(&runtime, "launch.pnic");
    assert_eq!(misspelt.status, Status::Failed);
    says(&misspelt.reason, &["no mode `launch.pnic`"]);
}

#[test]
fn panics_and_errors_while_loading_are_lines_in_the_report() {
    let folder = folder();
    let modes: Vec<String> = ["create", "count", "open", "register"]
        .iter()
        .flat_map(|stage| ["panic", "error", "unavailable"].map(|act| format!("{stage}.{act}")))
        .collect();
    let names: Vec<&str> = modes.iter().map(String::as_str).collect();
    let runtime = load(&good(folder.path()), &names);
    for mode in names {
        let (stage, act) = mode.split_once('.').unwrap();
        let line = entry(&runtime, mode);
        // Before there is an instance, nobody knows whether it is only the device that is absent.
        let absent = act == "unavailable" && stage != "create";
        assert_eq!(line.status, if absent { Status::Absent } else { Status::Failed }, "{line}");
        says(&line.reason, &[&format!("hostile {stage}")]);
        assert_eq!(line.reason.contains("panicked: "), act == "panic", "{line}");
        assert!(line.devices.is_empty(), "{line}");
    }
    assert_eq!(runtime.devices().len(), 1);
    good_one_works(&runtime);
}

#[test]
fn registrations_that_make_no_sense_are_refused_as_a_whole() {
    let folder = folder();
    let cases = [
        ("count.max", ["4294967295 devices", "at most 4096"]),
        ("register.duplicate", ["hostile(register.duplicate)", "taken by another factory"]),
        ("register.predicate_dtype", ["dtype(\"sorce\")", "does not exist; op `elementwise_unary` has"]),
        ("register.predicate_device", ["device(\"antennas\")", "does not exist"]),
        ("register.predicate_limit", ["limit(\"colums\")", "does not exist"]),
        ("schema.size", ["hostile.op", "7"]),
        ("schema.overlap", ["hostile.op", "cols"]),
        ("schema.conflict", ["op `softmax`", "argument `rows` here is `cols` there"]),
    ];
    let runtime = load(&good(folder.path()), &cases.map(|(mode, _)| mode));
    for (mode, parts) in cases {
        let line = entry(&runtime, mode);
        assert_eq!(line.status, Status::Failed, "{line}");
        says(&line.reason, &parts);
        says(&line.to_string(), &[mode, built("test_hostile").to_str().unwrap()]);
    }
    let left: Vec<_> = runtime.query(&ep_registry::query::Filter::default());
    assert!(left.iter().all(|row| row.instance == "good"), "{left:?}");
    good_one_works(&runtime);
}

#[test]
fn a_provider_without_devices_or_ops_is_told_apart() {
    let folder = folder();
    let runtime = load(&good(folder.path()), &["count.none", "register.nothing"]);
    let none = entry(&runtime, "count.none");
    assert_eq!(none.status, Status::Absent, "{none}");
    says(&none.reason, &["no devices"]);
    assert_eq!(entry(&runtime, "register.nothing").status, Status::Loaded);
    let error = use_device(&runtime, "cpu", &DATA).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    says(error.message(), &["elementwise_unary", "cpu:0"]);
    good_one_works(&runtime);
}

#[test]
fn panics_and_errors_at_work_come_back_from_the_call() {
    let folder = folder();
    let good = good(folder.path());
    for stage in RUN_STAGES {
        for (act, code) in
            [("panic", Code::Panic), ("error", Code::Internal), ("unavailable", Code::Unavailable)]
        {
            let mode = format!("{stage}.{act}");
            let runtime = load(&good, &[&mode]);
            assert_eq!(entry(&runtime, &mode).status, Status::Loaded, "{}", runtime.report());
            match use_device(&runtime, "cpu", &DATA) {
                // Freeing happens while something is dropped, which cannot fail; it is logged.
                Ok(result) => assert!(stage == "free" && result == RELU, "{mode}: {result:?}"),
                Err(error) => {
                    assert_eq!(error.code(), code, "{mode}: {error}");
                    says(error.message(), &[&format!("hostile {stage}")]);
                    assert_ne!(stage, "free");
                }
            }
            good_one_works(&runtime);
        }
    }
}

#[test]
fn addresses_that_cannot_be_are_not_used() {
    let folder = folder();
    let good = good(folder.path());
    for mode in ["alloc.null", "alloc.misaligned", "alloc.high"] {
        let runtime = load(&good, &[mode]);
        let error = use_device(&runtime, "cpu", &DATA).unwrap_err();
        assert_eq!(error.code(), Code::Internal, "{mode}: {error}");
        says(error.message(), &["cpu:0", "the provider allocated", "null, misaligned or wraps around"]);
        good_one_works(&runtime);
    }
}

#[test]
fn panics_in_destructors_stay_inside() {
    let folder = folder();
    let good = good(folder.path());
    for object in ["provider", "device", "stream", "event", "allocator", "primitive"] {
        let mode = format!("drop.{object}");
        let runtime = load(&good, &[&mode]);
        assert_eq!(use_device(&runtime, "cpu", &DATA).unwrap(), RELU, "{mode}");
        good_one_works(&runtime);
        drop(runtime);
    }
}
