//! Each mode does what `cases.rs` says, in a host that lives on.

use crate::cases::{CASES, Shows};
use crate::tables::{COPIES, MANY_THREADS, THREADS};
use crate::{ep_plugin_query, ep_test_hostile_mode};
use ep_core::abi::{EpStr, take};
use ep_core::handle::{HostSide, Plugin, ProviderHandle};
use ep_core::parallel::{Parallel, Serial};
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp};
use ep_core::{Code, DType, Result};
use ep_registry::config::ProviderConfig;
use ep_registry::query::Filter;
use ep_registry::registry::Registry;
use ep_registry::{Device, Event, Runtime, Status};
use std::process::Command;
use std::sync::Arc;

fn set_mode(mode: &str) -> Result<()> {
    // SAFETY: the text outlives the call; the status is ours.
    unsafe { take(ep_test_hostile_mode(EpStr::new(mode))) }
}

fn runtime(options: &[(&str, &str)]) -> Runtime {
    let mut settings = ProviderConfig::new("x", "");
    settings.options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    // SAFETY: this crate's own entry point.
    unsafe { Runtime::builder().threads(1).linked_query(settings, ep_plugin_query) }.build().unwrap()
}

struct Side;

impl HostSide for Side {
    fn log_enabled(&self, _: u32) -> bool {
        false
    }
    fn log(&self, _: u32, _: &str, _: &str) {}
    fn parallel(&self) -> &dyn Parallel {
        &Serial
    }
}

/// Loads without a runtime, for the error's code.
fn load() -> Result<()> {
    // SAFETY: linked into this program.
    let plugin = unsafe { Plugin::load(ep_plugin_query, "linked") }?;
    let provider = ProviderHandle::create(Arc::new(plugin), Arc::new(Side), "x", "", &[])?;
    let count = provider.device_count()?;
    let devices = (0..count.min(1)).map(|i| provider.open(i)).collect::<Result<Vec<_>>>()?;
    Registry::new().register(&provider, "x", 0, &devices)
}

/// Where the work on a device stops, and why.
fn work(runtime: &Runtime, device: &Device) -> std::result::Result<(), (Shows, ep_core::Error)> {
    let at = |shows: Shows| move |e| (shows, e);
    let stream = device.stream().map_err(at(Shows::Stream))?;
    // Longer than an alignment, so that the highest aligned address wraps around.
    let data: [f32; 32] = std::array::from_fn(|i| if i % 3 == 0 { i as f32 } else { -0.5 - i as f32 });
    let mut buffer = device.alloc(DType::F32, 32).map_err(at(Shows::Alloc))?;
    buffer.upload(&data).map_err(at(Shows::Copy))?;
    let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
    let relu = runtime.primitive::<ElementwiseUnary>(device, desc).map_err(at(Shows::Primitive))?;
    let mut result = device.upload(&[9f32; 32]).map_err(at(Shows::Copy))?;
    let call = ElementwiseUnaryCall { count: 31, src: &buffer, dst: &mut result };
    relu.launch(&stream, call).map_err(at(Shows::Launch))?;
    let event = Event::new();
    stream.record(&event).map_err(at(Shows::Record))?;
    stream.sync().map_err(at(Shows::Copy))?;
    let result = result.download::<f32>().map_err(at(Shows::Copy))?;
    let mut expected = data.map(|x| if x < 0.0 { 0.0 } else { x });
    expected[31] = 9.0;
    assert_eq!(result, expected);
    Ok(())
}

/// Asserts what happens with one mode, and that messages of where it happened are right.
fn check(runtime: &Runtime, mode: &str, shows: Shows, code: Code, says: &str) {
    let entry = &runtime.report().entries[0];
    let status = match shows {
        Shows::Load => Status::Failed,
        Shows::Absent => Status::Absent,
        _ => Status::Loaded,
    };
    assert_eq!(entry.status, status, "{mode}: {entry}");
    if matches!(shows, Shows::Load | Shows::Absent | Shows::Remark) {
        assert!(
            entry.reason.contains(says) && !says.is_empty() | mode.starts_with("query"),
            "{mode}: {entry}"
        );
    } else {
        assert_eq!(entry.reason, "", "{mode}");
    }
    if status != Status::Loaded {
        assert!(runtime.devices().is_empty(), "{mode}");
        return;
    }
    match (work(runtime, runtime.device("hostile").unwrap()), shows) {
        (Ok(()), Shows::Never | Shows::Remark) => {}
        (Err((at, e)), _) if at == shows => {
            assert_eq!(e.code(), code, "{mode}: {e}");
            assert!(e.message().contains(says), "{mode}: {e}");
        }
        (other, _) => panic!("{mode}: {other:?}"),
    }
}

#[test]
fn every_mode_shows_where_it_should() {
    for (mode, shows, code, says) in CASES.iter().copied() {
        if mode == "no.such_mode" {
            assert_eq!(set_mode(mode).unwrap_err().code(), code);
            set_mode("").unwrap();
            check(&runtime(&[("mode", mode)]), mode, shows, code, says);
            continue;
        }
        set_mode(mode).unwrap();
        if let (Err(e), Shows::Load) = (load(), shows) {
            assert_eq!(e.code(), code, "{mode}: {e}");
        }
        check(&runtime(&[]), mode, shows, code, says);
    }
}

#[test]
fn an_option_sets_the_mode_of_one_instance() {
    set_mode("").unwrap();
    for (mode, shows, code, says) in CASES.iter().copied() {
        let early = ["query.", "abi.", "plugin.", "table.", "infos.", "interface.", "no."];
        let nothing = ["create.nothing", "open.nothing", "stream.nothing", "event.nothing"];
        if !early.iter().any(|e| mode.starts_with(e)) && !nothing.contains(&mode) {
            check(&runtime(&[("mode", mode)]), mode, shows, code, says);
        }
    }
}

#[test]
fn factories_may_come_from_several_threads() {
    set_mode("").unwrap();
    for _ in 0..5 {
        let runtime = runtime(&[("mode", MANY_THREADS)]);
        let report = &runtime.report().entries[0];
        assert_eq!(report.status, Status::Loaded, "{}", report.reason);
        let rows = runtime.query(&Filter::default());
        let mut names: Vec<_> = rows.into_iter().map(|row| row.factory).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), THREADS * COPIES + 1);
    }
}

#[test]
fn a_device_that_does_not_open_costs_no_other_and_can_be_left_out() {
    set_mode("").unwrap();
    let load = |mode: &str, device: &str| {
        let mut settings = ProviderConfig::new("x", "");
        settings.options.insert("mode".into(), mode.into());
        settings.devices = vec![device.parse().unwrap()];
        // SAFETY: this crate's own entry point.
        unsafe { Runtime::builder().threads(1).linked_query(settings, ep_plugin_query) }.build().unwrap()
    };
    for (mode, good, bad) in [("open.first", 1, 0), ("open.second", 0, 1)] {
        // The place of the bad one counts, though it does not say what it is.
        for device in [format!("hostile:{good}"), good.to_string()] {
            let runtime = load(mode, &device);
            let entry = &runtime.report().entries[0];
            assert_eq!((entry.status, entry.reason.as_str()), (Status::Loaded, ""), "{mode} {device}");
            assert_eq!(entry.devices, ["hostile:0"], "{mode} {device}");
            work(&runtime, runtime.device("hostile").unwrap()).unwrap();
        }
        for device in [format!("hostile:{bad}"), bad.to_string()] {
            let runtime = load(mode, &device);
            let entry = &runtime.report().entries[0];
            assert_eq!((entry.status, entry.code), (Status::Absent, Some(Code::Unavailable)), "{device}");
            let said = format!("device {bad}: hostile open: number {bad} does not answer");
            assert_eq!(entry.reason, said, "{mode} {device}");
        }
        let reason = load(mode, "other:*").report().entries[0].reason.clone();
        let says = format!("selects none of its devices: no `other:*` among hostile:{good};");
        assert!(reason.contains(&says), "{reason}");
    }
    // No kind is known where none opens.
    let runtime = load("open.unavailable", "other:*");
    assert_eq!(runtime.report().entries[0].reason, "device 0: hostile open: there is no driver");
}

#[test]
fn only_what_loads_or_lacks_a_device_prepares_kernels() {
    set_mode("").unwrap();
    for (mode, status) in [
        ("", Status::Loaded),
        ("count.none", Status::Absent),
        ("open.unavailable", Status::Absent),
        ("count.error", Status::Failed),
        ("open.error", Status::Failed),
        ("register.error", Status::Failed),
    ] {
        let good = ProviderConfig::new("good", "");
        let mut settings = ProviderConfig::new("x", "");
        settings.options.insert("mode".into(), mode.into());
        // SAFETY: this crate's own entry point.
        let builder = unsafe {
            Runtime::builder()
                .threads(1)
                .linked_query(good, ep_plugin_query)
                .linked_query(settings, ep_plugin_query)
        };
        let runtime = builder.build().unwrap();
        assert_eq!(runtime.report().entries[1].status, status, "{}", runtime.report());
        let names: Vec<&str> = runtime.warmable().iter().map(|(name, _)| name.as_str()).collect();
        let expected = if status == Status::Failed { &["good"][..] } else { &["good", "x"] };
        assert_eq!(names, expected, "{mode}");
    }
}

/// Unless the environment has a mode, as it does where the next test runs this one in a child process.
#[test]
fn a_provider_without_a_mode_is_good() {
    check(&runtime(&[]), "", Shows::Never, Code::Internal, "");
}

#[test]
fn the_environment_sets_the_mode_and_processes_can_be_killed() {
    let run = |mode: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tests::a_provider_without_a_mode_is_good"]).env("EP_TEST_HOSTILE", mode);
        command.output().unwrap()
    };
    assert!(run("").status.success());
    let failed = run("launch.error");
    let text = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(text.contains("hostile launch"), "{text}");
    assert_eq!(run("open.exit").status.code(), Some(3));
    let aborted = run("launch.abort").status;
    assert!(!aborted.success() && aborted.code().is_none(), "{aborted}");
}

#[test]
fn each_step_of_loading_is_told_before_it_is_taken() {
    let steps_in = |mode: &str| {
        let mut settings = ProviderConfig::new("x", "");
        settings.options.insert("mode".into(), mode.into());
        let steps = Arc::new(std::sync::Mutex::new(Vec::new()));
        let told = steps.clone();
        // SAFETY: this crate's own entry point.
        unsafe { Runtime::builder().threads(1).linked_query(settings, ep_plugin_query) }
            .watch(move |instance, step| told.lock().unwrap().push(format!("{instance} {step}")))
            .load()
            .unwrap();
        steps.lock().unwrap().join(", ")
    };
    assert_eq!(steps_in(""), "x query, x create, x devices, x open, x register");
    assert_eq!(steps_in("open.second"), "x query, x create, x devices, x open, x open, x register");
    assert_eq!(steps_in("create.error"), "x query, x create");
    assert_eq!(steps_in("open.error"), "x query, x create, x devices, x open");
}
