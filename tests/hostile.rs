//! A provider that misbehaves in every place where it is called, loaded from its file: each time the host gets an
//! error that says so, and the process and the provider beside it live on.
//!
//! `plugins/hostile` has the modes, and in `cases.rs` what a host is to make of each.

#[path = "plugins/hostile/src/cases.rs"]
mod cases;

use cases::{CASES, Shows};
use ep_core::abi::{EpStatus, EpStr, take};
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp};
use ep_core::{Code, DType, Result};
use ep_registry::config::ProviderConfig;
use ep_registry::query::Filter;
use ep_registry::report::Entry;
use ep_registry::{Event, Runtime, Status};
use ep_tests::loading::{built, folder, good, says};
use std::path::Path;

/// Sets how the provider misbehaves on this thread, from its entry point on.
fn set_mode(mode: &str) {
    type Set = unsafe extern "C" fn(EpStr) -> *const EpStatus;
    // SAFETY: a library of this workspace, without initialisers.
    let library = unsafe { libloading::Library::new(built("test_hostile")) }.expect("it loads");
    // The provider's code is used after this, and a library is never unmapped.
    let library = std::mem::ManuallyDrop::new(library);
    // SAFETY: its function of this name has this type and reads the text during the call.
    let result =
        unsafe { take(library.get::<Set>(b"ep_test_hostile_mode").expect("exported")(EpStr::new(mode))) };
    // An unknown mode is a case too: the provider is told by its option.
    assert!(result.is_ok() || mode == "no.such_mode", "{mode}: {result:?}");
}

/// The hostile provider as `x`, and a good one.
fn load(good: &Path, mode: &str) -> Runtime {
    let mut settings = ProviderConfig::new("x", built("test_hostile"));
    set_mode(mode);
    if mode == "no.such_mode" {
        settings.options.insert("mode".into(), mode.into());
    }
    let builder = Runtime::builder().threads(1).provider_with(settings);
    builder.provider("good", good).build().expect("nothing is required")
}

fn entry<'a>(runtime: &'a Runtime, instance: &str) -> &'a Entry {
    let found = runtime.report().entries.iter().find(|e| e.instance == instance);
    found.unwrap_or_else(|| panic!("no entry `{instance}` in\n{}", runtime.report()))
}

/// What a host does: memory, transfers, launches, events between two streams. Returns relu of `data`.
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

/// Enough that an address near the end of the address space wraps around.
const LEN: usize = 37;

fn data() -> [f32; LEN] {
    std::array::from_fn(|i| if i == 5 { f32::NEG_INFINITY } else { i as f32 * 1.5 - 20.0 })
}

fn relu() -> [f32; LEN] {
    data().map(|x| if x < 0.0 { 0.0 } else { x })
}

fn good_one_works(runtime: &Runtime) {
    assert_eq!(entry(runtime, "good").status, Status::Loaded, "{}", runtime.report());
    assert_eq!(use_device(runtime, "skew", &data()).expect("a good provider"), relu());
}

/// Runs every case for which `wanted` holds; says how many.
fn run(wanted: impl Fn(Shows) -> bool) -> usize {
    let folder = folder();
    let good = good(folder.path());
    let file = built("test_hostile");
    let mut count = 0;
    for &(mode, shows, code, said) in CASES.iter().filter(|c| wanted(c.1)) {
        let runtime = load(&good, mode);
        let line = entry(&runtime, "x");
        let status = match shows {
            Shows::Load => Status::Failed,
            Shows::Absent => Status::Absent,
            _ => Status::Loaded,
        };
        assert_eq!((line.status, line.path.as_ref()), (status, Some(&file)), "{mode}: {line}");
        match shows {
            Shows::Load | Shows::Absent | Shows::Remark => says(&line.reason, &[said]),
            _ => assert_eq!(line.reason, "", "{mode}"),
        }
        if status == Status::Loaded {
            match use_device(&runtime, "hostile", &data()) {
                Ok(result) => {
                    assert!(matches!(shows, Shows::Never | Shows::Remark), "{mode} has not shown");
                    assert_eq!(result, relu(), "{mode}");
                }
                Err(error) => {
                    assert_eq!(error.code(), code, "{mode}: {error}");
                    says(error.message(), &[said]);
                }
            }
        } else {
            assert!(line.devices.is_empty(), "{mode}: {line}");
            assert!(runtime.query(&Filter::default()).iter().all(|row| row.instance == "good"), "{mode}");
        }
        good_one_works(&runtime);
        count += 1;
    }
    count
}

#[test]
fn what_is_wrong_while_loading_is_in_the_report() {
    assert!(run(|shows| matches!(shows, Shows::Load | Shows::Absent | Shows::Remark)) > 50);
}

#[test]
fn panics_and_errors_at_work_come_back_from_the_call() {
    let at_work = |shows| !matches!(shows, Shows::Load | Shows::Absent | Shows::Remark | Shows::Never);
    assert!(run(at_work) > 20);
}

#[test]
fn panics_in_destructors_stay_inside() {
    assert!(run(|shows| shows == Shows::Never) > 6);
}

#[test]
fn a_provider_without_devices_or_ops_is_told_apart() {
    let folder = folder();
    let good = good(folder.path());
    let no_devices = load(&good, "count.none");
    let error = use_device(&no_devices, "hostile", &data()).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    says(error.message(), &["device `hostile` is absent", "no devices"]);
    let no_ops = load(&good, "register.nothing");
    assert_eq!(entry(&no_ops, "x").devices, ["hostile:0"]);
    let error = use_device(&no_ops, "hostile", &data()).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    says(error.message(), &["elementwise_unary", "hostile:0"]);
}

#[test]
fn many_bad_instances_do_not_disturb_each_other() {
    let folder = folder();
    let stages = ["create", "count", "open", "register"];
    let modes = stages.iter().flat_map(|s| ["panic", "error", "unavailable"].map(|act| format!("{s}.{act}")));
    let modes: Vec<String> = modes.collect();
    let mut builder = Runtime::builder().threads(1);
    for mode in &modes {
        let mut settings = ProviderConfig::new(mode, built("test_hostile"));
        settings.options.insert("mode".into(), mode.clone());
        builder = builder.provider_with(settings);
    }
    set_mode("");
    let runtime = builder.provider("good", good(folder.path())).build().unwrap();
    for mode in &modes {
        let (stage, act) = mode.split_once('.').unwrap();
        let line = entry(&runtime, mode);
        // Before there is an instance, nobody knows that only the device is absent.
        let absent = act == "unavailable" && stage != "create";
        assert_eq!(line.status, if absent { Status::Absent } else { Status::Failed }, "{line}");
        says(&line.reason, &[&format!("hostile {stage}")]);
        assert_eq!(line.reason.contains("panicked: "), act == "panic", "{line}");
    }
    assert_eq!(runtime.devices().len(), 1);
    good_one_works(&runtime);
}

#[test]
fn a_required_provider_that_panics_fails_the_whole() {
    let mut settings = ProviderConfig::new("x", built("test_hostile"));
    settings.options.insert("mode".into(), "register.panic".into());
    settings.required = true;
    let error = Runtime::builder().threads(1).provider_with(settings).build().unwrap_err();
    assert_eq!(error.code(), Code::Panic);
    says(error.message(), &["`x` is required", "libtest_hostile", "panicked: hostile register"]);
}
