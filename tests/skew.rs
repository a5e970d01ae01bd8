//! Version skew: one plugin, built against versions of the contract that never were, in today's host.
//!
//! Older and newer versions load and compute; what does not fit is refused by name, and only as far as it has to
//! be. `plugins/skew/skew.c` is the plugin, `cargo xtask header` makes the versions.

use ep_core::primitive::{
    ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, Softmax, SoftmaxCall, SoftmaxDesc, UnaryOp,
};
use ep_core::{Code, DType, Result};
use ep_registry::query::Filter;
use ep_registry::select::Verdict;
use ep_registry::{Device, Event, Runtime, Status};
use ep_tests::loading::{self, load, only, says, skew};
use proptest::prelude::*;

/// One field fewer at the end of tables, of structs in both directions, and of descriptors.
const OLDER: &[&str] = &[
    "drop-last=EpProviderTable",
    "drop-last=EpDeviceTable",
    "drop-last=EpStreamTable",
    "drop-last=EpAllocatorTable",
    "drop-last=EpPrimitiveTable",
    "drop-last=EpHostServices",
    "drop-last=EpDeviceInfo",
    "drop-last=EpMemoryStats",
    "drop-last=EpStreamOptions",
    "drop-last=EpAllocRequest",
    "drop-last=EpSoftmaxDesc",
    "drop-last=EpElementwiseUnaryDesc",
];

/// One field more at the end of everything that the plugin uses.
const NEWER: &[&str] = &[
    "append=EpPlugin.license=EpStr",
    "append=EpProviderTable.pause=fn(*mut EpProvider)",
    "append=EpDeviceTable.reset=fn(*mut EpDevice)",
    "append=EpStreamTable.pause=fn(*mut EpStream)",
    "append=EpEventTable.reset=fn(*mut EpEvent)",
    "append=EpAllocatorTable.check=fn(*mut EpAllocator)",
    "append=EpPrimitiveTable.tune=fn(*mut EpPrimitive)",
    "append=EpRegistrar.add_alias=fn(*mut void, EpStr, EpStr)",
    "append=EpHostServices.beep=fn(*mut void)",
    "append=EpForeignStreamInterface.share=fn(*mut EpStream)",
    "append=EpTimingInterface.resolution=fn(*mut u64)",
    "append=EpDeviceInfo.cores=u64",
    "append=EpMemoryStats.largest_free=u64",
    "append=EpStreamOptions.deadline=u64",
    "append=EpAllocRequest.node=u64",
    "append=EpCopy.flags=u64",
    "append=EpProviderOptions.flags=u64",
    "append=EpOpSchema.cost=u64",
    "append=EpFactoryInfo.cost=u64",
    "append=EpSoftmaxDesc.temperature=f64",
    "append=EpElementwiseUnaryDesc.attr2=f64",
    "append=EpSoftmaxArgs.stride=i64",
    "append=EpElementwiseUnaryArgs.stride=i64",
];

fn relu(runtime: &Runtime, device: &Device, data: &[f32]) -> Result<Vec<f32>> {
    let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
    let primitive = runtime.primitive::<ElementwiseUnary>(device, desc)?;
    let (src, mut dst) = (device.upload(data)?, device.alloc(DType::F32, data.len())?);
    let stream = device.stream()?;
    let call = ElementwiseUnaryCall { count: data.len() as i64, src: &src, dst: &mut dst };
    primitive.launch(&stream, call)?;
    dst.download()
}

fn softmax(runtime: &Runtime, device: &Device, data: &[f32], cols: usize) -> Result<Vec<f32>> {
    let primitive = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32))?;
    let (src, mut dst) = (device.upload(data)?, device.alloc(DType::F32, data.len())?);
    let stream = device.stream()?;
    let (rows, cols) = ((data.len() / cols) as i64, cols as i64);
    primitive.launch(&stream, SoftmaxCall { rows, cols, inner: 1, src: &src, dst: &mut dst })?;
    dst.download()
}

/// Everything that a host does with a provider, on data that proptest picks.
fn works(runtime: &Runtime) {
    let device = runtime.device("skew").expect("it is loaded");
    let mut runner = proptest::test_runner::TestRunner::default();
    let value = prop_oneof![8 => -50f32..50f32, 1 => Just(f32::INFINITY), 1 => Just(f32::NAN)];
    let data = (1usize..40).prop_flat_map(move |cols| {
        (proptest::collection::vec(proptest::collection::vec(value.clone(), cols), 0..9), Just(cols))
    });
    let same = |a: f32, b: f32| (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= 1e-6;
    runner
        .run(&data, |(rows, cols)| {
            let flat = rows.concat();
            for (x, y) in flat.iter().zip(relu(runtime, device, &flat)?) {
                prop_assert!(same(if *x < 0.0 { 0.0 } else { *x }, y), "relu({x}) = {y}");
            }
            let results = softmax(runtime, device, &flat, cols)?;
            prop_assert_eq!(results.len(), flat.len());
            for (row, result) in rows.iter().zip(results.chunks(cols)) {
                let max = row.iter().copied().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(x)));
                let sum: f64 = row.iter().map(|x| (f64::from(*x) - max).exp()).sum();
                for (x, y) in row.iter().zip(result) {
                    let wanted = ((f64::from(*x) - max).exp() / sum) as f32;
                    prop_assert!(same(wanted, *y), "softmax of {x} in {row:?} is {y}, not {wanted}");
                }
            }
            Ok(())
        })
        .unwrap();
    let stats = device.memory_stats().unwrap();
    assert_eq!((stats.in_use_bytes, stats.in_use_blocks), (0, 0));
    assert!(stats.peak_in_use_bytes > 0);
}

/// Loads a version that fits: no remark in the report, one device of the name.
fn fits(changes: &[&str], flags: &[&str]) -> (Runtime, tempfile::TempDir) {
    let folder = loading::folder();
    let path = skew(folder.path(), "skew", changes, flags);
    let runtime = load(&path);
    let entry = only(&runtime);
    assert_eq!((entry.status, entry.reason.as_str()), (Status::Loaded, ""), "{entry}");
    assert_eq!(entry.provider, Some(("skew".into(), "1.0".into())));
    assert_eq!(entry.devices, ["skew:0"]);
    (runtime, folder)
}

/// Whether the device measures time between events.
fn has_timing(runtime: &Runtime) -> bool {
    let device = runtime.device("skew").unwrap();
    let stream = device.stream().unwrap();
    let (start, end) = (Event::new(), Event::new());
    stream.record(&start).unwrap();
    stream.record(&end).unwrap();
    match start.elapsed_ns(&end) {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.code(), Code::Unsupported, "{e}");
            says(e.message(), &["ep.timing"]);
            false
        }
    }
}

#[test]
fn todays_version_works() {
    let (runtime, _folder) = fits(&[], &["-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    works(&runtime);
    assert!(has_timing(&runtime));
    assert!(runtime.device("skew").unwrap().memory_stats().unwrap().total_allocs > 0);
}

#[test]
fn an_older_version_works() {
    let (runtime, _folder) = fits(OLDER, &["-DSKEW_OLDER"]);
    works(&runtime);
    // What the older version lacks is absent, not garbage.
    assert!(!has_timing(&runtime));
    assert_eq!(runtime.device("skew").unwrap().memory_stats().unwrap().total_allocs, 0);
}

#[test]
fn a_newer_version_works() {
    let (runtime, _folder) = fits(NEWER, &["-DSKEW_NEWER"]);
    works(&runtime);
    assert!(has_timing(&runtime));
}

#[test]
fn each_change_of_length_works_by_itself() {
    // A table of one version must not depend on that of another.
    for change in ["append=EpDeviceTable.extra=fn(*mut EpDevice)", "append=EpCopy.flags=u64"] {
        let (runtime, _folder) = fits(&[change], &[]);
        works(&runtime);
    }
}

#[test]
fn a_newer_plugin_that_needs_what_the_host_does_not_know_is_refused() {
    let folder = loading::folder();
    let path = skew(folder.path(), "skew", NEWER, &["-DSKEW_NEWER", "-DSKEW_SETS_UNKNOWN"]);
    let runtime = load(&path);
    let entry = only(&runtime);
    assert_eq!(entry.status, Status::Failed);
    says(&entry.reason, &["EpFactoryInfo", "is set that this version does not know", "use a newer version"]);
}

#[test]
fn what_does_not_fit_is_refused_by_struct_and_field() {
    for (change, said) in [
        ("swap=EpStreamTable.sync,query", "EpStreamTable: field 2 is `sync` here and `query` there"),
        ("swap=EpDeviceInfo.kind,name", "EpDeviceInfo: field 1 is `kind` here and `name` there"),
        ("swap=EpPlugin.provider,device", "EpPlugin: field 9 is `provider` here and `device` there"),
        ("retype=EpCopy.bytes=i64", "EpCopy: field 5 `bytes` has another type, size or offset"),
        (
            "retype=EpEventTable.query=fn(*mut EpEvent, *mut u64)",
            "EpEventTable: field 2 `query` has another type, size or offset",
        ),
        (
            "retype=EpHostServices.log_enabled=fn(*mut void, u64)",
            "EpHostServices: field 4 `log_enabled` has another type, size or offset",
        ),
    ] {
        let folder = loading::folder();
        let path = skew(folder.path(), "skew", &[change], &["-w"]);
        let message = loading::refused(&path, Code::AbiMismatch);
        let path = path.display().to_string();
        says(&message, &[&path, said, "`skew` 1.0", "ABI 0.1", "rebuild the provider"]);
    }
}

#[test]
fn a_frozen_struct_that_changed_is_found_in_what_holds_it() {
    let folder = loading::folder();
    let path = skew(folder.path(), "skew", &["retype=EpStr.len=i64"], &["-w"]);
    let message = loading::refused(&path, Code::AbiMismatch);
    says(&message, &["has another type, size or offset", "rebuild the provider"]);
}

#[test]
fn an_op_that_does_not_fit_is_refused_by_field() {
    for (change, parts) in [
        ("swap=EpSoftmaxDesc.src,dst", ["op `softmax`", "descriptor field `src` here is `dst` there"]),
        ("swap=EpSoftmaxArgs.rows,cols", ["op `softmax`", "argument `rows` here is `cols` there"]),
        (
            "swap=EpElementwiseUnaryDesc.attr0,attr1",
            ["op `elementwise_unary`", "descriptor field `attr0` here is `attr1` there"],
        ),
    ] {
        let folder = loading::folder();
        let path = skew(folder.path(), "skew", &[change], &[]);
        let runtime = load(&path);
        let entry = only(&runtime);
        assert_eq!(entry.status, Status::Failed, "{change}");
        says(&entry.reason, &parts);
        // Nothing of it stays.
        assert!(runtime.query(&Filter::default()).is_empty());
    }
}

#[test]
fn another_abi_version_is_refused_with_both() {
    for (minor, parts) in [
        ("minor=7", ["speaks ABI 0.7", "this host 0.1", "update the host"]),
        ("minor=0", ["speaks ABI 0.0", "this host 0.1", "rebuild the provider"]),
    ] {
        let folder = loading::folder();
        let path = skew(folder.path(), "skew", &[minor], &[]);
        let message = loading::refused(&path, Code::AbiMismatch);
        says(&message, &parts);
        says(&message, &[&path.display().to_string()]);
    }
}

#[test]
fn a_request_that_an_older_provider_does_not_know_is_never_given_to_it() {
    let folder = loading::folder();
    let old = skew(folder.path(), "old", OLDER, &["-DSKEW_OLDER", "-DSKEW_ID=\"skew-older\""]);
    let alone = load(&old);
    let device = alone.device("skew").unwrap();
    let plain = SoftmaxDesc::new(DType::F32, DType::F32);
    alone.primitive::<Softmax>(device, plain).unwrap();
    // The same again, with a field that the provider does not know at its default.
    alone.primitive::<Softmax>(device, plain.with_max_cols(0)).unwrap();
    let error = alone.primitive::<Softmax>(device, plain.with_max_cols(64)).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    says(error.message(), &["x/softmax.rows", "older version of the op", "without `cols`"]);
    let unary = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
    alone.primitive::<ElementwiseUnary>(device, unary.with_attr0(3.0)).unwrap();
    let error = alone.primitive::<ElementwiseUnary>(device, unary.with_attr1(3.0)).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    says(error.message(), &["x/unary.relu", "without `attr1`"]);
    // By names, and what explain says of it.
    let request = |r: &Runtime| -> Result<_> {
        r.request("softmax")?.dtype("src", "f32")?.dtype("dst", "f32")?.limit("cols", 64)
    };
    let explanation = alone.explain(device, &request(&alone).unwrap()).unwrap();
    assert!(explanation.chosen().is_none(), "{explanation}");
    assert_eq!(explanation.candidates[0].verdict, Verdict::UnknownField("cols".into()));

    // Beside a provider that knows the field, the older one is preferred until the field is set.
    let new = skew(folder.path(), "new", &[], &["-DSKEW_ID=\"skew-today\""]);
    let both = Runtime::builder()
        .threads(1)
        .provider("old", &old)
        .provider("new", &new)
        .select("*", ["old", "new"])
        .build()
        .unwrap();
    assert_eq!(both.devices().len(), 1, "{}", both.report());
    let device = both.device("skew").unwrap();
    assert_eq!(both.primitive::<Softmax>(device, plain).unwrap().instance(), "old");
    let wide = both.primitive::<Softmax>(device, plain.with_max_cols(64)).unwrap();
    assert_eq!(wide.instance(), "new");
    let explanation = both.explain(device, &request(&both).unwrap()).unwrap();
    assert_eq!(explanation.chosen().map(|c| c.instance.as_str()), Some("new"), "{explanation}");
    let refused = explanation.candidates.iter().find(|c| c.instance == "old").unwrap();
    assert_eq!(refused.verdict, Verdict::UnknownField("cols".into()));
    says(&explanation.to_string(), &["without `cols`, which the request sets"]);
}

#[test]
fn a_newer_provider_s_fields_in_rows_and_conditions_do_not_disable_it() {
    let folder = loading::folder();
    let changes = ["append=EpSoftmaxDesc.temperature=f64", "append=EpSoftmaxDesc.mode=transpose"];
    let new = skew(folder.path(), "new", &changes, &["-DSKEW_KEYED", "-DSKEW_ID=\"skew-newer\""]);
    let runtime = load(&new);
    assert_eq!((only(&runtime).status, only(&runtime).reason.as_str()), (Status::Loaded, ""));
    works(&runtime);
    // What it is listed for is what it is used for, in words that this host knows.
    let filter = Filter { op: Some("softmax".into()), ..Filter::default() };
    let rows = runtime.query(&filter);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows[0].selectors.is_empty() && rows[0].predicate.contains("temperature"), "{rows:?}");

    // Its hint counts: whichever is registered first, it comes before a provider without one.
    let today = skew(folder.path(), "today", &[], &["-DSKEW_ID=\"skew-today\""]);
    for order in [[("new", &new), ("today", &today)], [("today", &today), ("new", &new)]] {
        let builder = order.iter().fold(Runtime::builder().threads(1), |b, (n, p)| b.provider(*n, p));
        let both = builder.build().unwrap();
        let device = both.device("skew").unwrap();
        let chosen = both.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32)).unwrap();
        assert_eq!(chosen.instance(), "new");
    }
}

#[test]
fn a_difference_in_an_optional_interface_disables_that_interface_only() {
    for (change, flags, remark, timing) in [
        (
            "swap=EpForeignStreamInterface.native,adopt",
            "-w",
            "EpForeignStreamInterface: field 2 is `native` here and `adopt` there",
            true,
        ),
        (
            "retype=EpTimingInterface.elapsed=fn(*mut EpEvent, *mut u64)",
            "-w",
            "EpTimingInterface: field 2 `elapsed` has another type, size or offset",
            false,
        ),
    ] {
        let folder = loading::folder();
        let runtime = load(&skew(folder.path(), "skew", &[change], &[flags]));
        let entry = only(&runtime);
        assert_eq!(entry.status, Status::Loaded, "{entry}");
        says(&entry.reason, &[remark, "is not used"]);
        assert_eq!(has_timing(&runtime), timing, "{change}");
        let foreign = runtime.devices()[0].members()[0].handle().has_foreign_streams();
        assert_eq!(foreign, !timing, "the other interface is used, this one is not: {change}");
        works(&runtime);
    }
}

#[test]
fn an_older_optional_interface_without_a_needed_function_is_not_used() {
    let folder = loading::folder();
    let changes = ["drop-last=EpForeignStreamInterface"];
    let runtime = load(&skew(folder.path(), "skew", &changes, &["-DSKEW_NO_ADOPT"]));
    let entry = only(&runtime);
    assert_eq!(entry.status, Status::Loaded, "{entry}");
    assert!(!runtime.devices()[0].members()[0].handle().has_foreign_streams());
    assert!(has_timing(&runtime));
    works(&runtime);
}
