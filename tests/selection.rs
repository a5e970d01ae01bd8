//! Which factory a request gets, why, and what there is to ask for.

use ep_core::primitive::{Softmax, SoftmaxCall, SoftmaxDesc};
use ep_core::{Code, DType};
use ep_registry::config::ProviderConfig;
use ep_registry::query::Filter;
use ep_registry::select::{Terms, Verdict};
use ep_registry::{Builder, InPlace, Primitive, Runtime, Status};
use ep_tests::Under;
use ep_tests::ranked::Ranked;
use std::collections::HashSet;

/// An instance of [`Ranked`].
fn ranked(builder: Builder, name: &str, priority: i32, level: &str) -> Builder {
    let mut settings = ProviderConfig::new(name, "");
    settings.priority = priority;
    settings.options.insert("level".into(), level.into());
    builder.linked_with::<Ranked>(settings)
}

fn one() -> Runtime {
    ranked(Runtime::builder(), "one", 0, "3").build().unwrap()
}

fn softmax(runtime: &Runtime, dtype: DType, cols: u64) -> Primitive<Softmax> {
    let desc = SoftmaxDesc::new(dtype, dtype).with_max_cols(cols);
    runtime.primitive(&runtime.devices()[0], desc).unwrap()
}

/// The name of the chosen factory.
fn chosen(runtime: &Runtime, dtype: DType, cols: u64) -> String {
    let softmax = softmax(runtime, dtype, cols);
    format!("{}/{}", softmax.instance(), softmax.factory())
}

fn explain(runtime: &Runtime, dtype: &str, cols: u64) -> ep_registry::select::Explanation {
    let request = runtime.request("softmax").unwrap();
    let request = request.dtype("src", dtype).unwrap().dtype("dst", dtype).unwrap();
    runtime.explain(&runtime.devices()[0], &request.limit("cols", cols).unwrap()).unwrap()
}

#[test]
fn priority_then_hint_then_registration_decide() {
    let low = ranked(Runtime::builder(), "low", 0, "2").build().unwrap();
    assert_eq!(chosen(&one(), DType::F32, 64), "one/small");
    assert_eq!(chosen(&one(), DType::F32, 65), "one/level");
    assert_eq!(chosen(&one(), DType::F32, 0), "one/level", "0 is unbounded");
    assert_eq!(chosen(&low, DType::F32, 64), "low/small");
    assert_eq!(chosen(&low, DType::F32, 1024), "low/narrow");
    assert_eq!(chosen(&low, DType::F32, 1025), "low/wide");
    assert_eq!(chosen(&low, DType::F32, 0), "low/wide");
    for _ in 0..20 {
        assert_eq!(chosen(&one(), DType::F16, 0), "one/first");
    }
}

#[test]
fn instances_are_ranked_by_rule_then_priority_then_order() {
    let build = |a, b| ranked(ranked(Runtime::builder(), "a", a, "2"), "b", b, "2");
    assert_eq!(chosen(&build(0, 0).build().unwrap(), DType::F32, 2000), "a/wide");
    assert_eq!(chosen(&build(0, 1).build().unwrap(), DType::F32, 2000), "b/wide");
    assert_eq!(chosen(&build(1, 0).build().unwrap(), DType::F32, 2000), "a/wide");
    // An instance's priority comes before a factory's.
    let mixed = ranked(ranked(Runtime::builder(), "a", 0, "3"), "b", 1, "2").build().unwrap();
    assert_eq!(chosen(&mixed, DType::F32, 2000), "b/wide");
    // A rule comes before everything; the one of the op before the one of all ops.
    assert_eq!(chosen(&build(5, 0).select("softmax", ["b"]).build().unwrap(), DType::F32, 2000), "b/wide");
    assert_eq!(chosen(&build(5, 0).select("*", ["b", "a"]).build().unwrap(), DType::F32, 2000), "b/wide");
    let both = build(0, 0).select("*", ["b"]).select("softmax", ["a"]).build().unwrap();
    assert_eq!(chosen(&both, DType::F32, 2000), "a/wide");
    // A rule for an instance that did not load changes nothing.
    let other = build(0, 1).provider("gone", "/no/such.so").select("softmax", ["gone"]).build().unwrap();
    assert_eq!(chosen(&other, DType::F32, 2000), "b/wide");
}

#[test]
fn instances_of_one_provider_share_a_logical_device() {
    let runtime = ranked(ranked(Runtime::builder(), "a", 0, "2"), "b", 1, "3").build().unwrap();
    let [device] = runtime.devices() else { panic!("{:?}", runtime.devices()) };
    let members: Vec<&str> = device.members().iter().map(|m| m.instance()).collect();
    assert_eq!((device.name(), members), ("cpu:0", vec!["b", "a"]), "the primary one comes first");
    for entry in &runtime.report().entries {
        assert_eq!((entry.status, entry.devices.as_slice()), (Status::Loaded, &["cpu:0".to_owned()][..]));
        assert_eq!(entry.provider, Some(("ranked".into(), "1.0".into())));
    }
    assert!(std::ptr::eq(runtime.device("cpu").unwrap(), runtime.device("cpu:0").unwrap()));
    let e = runtime.device("cpu:1").unwrap_err();
    assert!(e.code() == Code::NotFound && e.message().contains("cpu:0"), "{e}");
    // A predicate sees the attributes of its own provider's device.
    assert_eq!(chosen(&runtime, DType::F32, 2000), "b/level");
    runtime.deregister("b").unwrap();
    assert_eq!(chosen(&runtime, DType::F32, 2000), "a/wide");
}

#[test]
fn a_refusal_lists_every_candidate_with_clause_and_value() {
    let runtime = ranked(ranked(Runtime::builder(), "a", 0, "2"), "b", 0, "5").build().unwrap();
    let device = &runtime.devices()[0];
    let desc = SoftmaxDesc::new(DType::F64, DType::F64).with_max_cols(9);
    let e = runtime.primitive::<Softmax>(device, desc).unwrap_err();
    assert_eq!(e.code(), Code::Unsupported);
    for line in [
        "softmax(src f64, dst f64",
        "cpu:0",
        "a/never: needs limit(\"cols\") <= 8, but limit(\"cols\") is 9\n",
        "b/never: needs limit(\"cols\") <= 8, but limit(\"cols\") is 9; needs device(\"level\") < 3, but \
         device(\"level\") is 5\n",
        "a/small: needs src = dst in [f32], but src is f64 and dst is f64",
        "b/second: needs src = dst in [f16], but src is f64 and dst is f64",
        "nearest that is covered: softmax(src f64, dst f64) with limit cols <= 8",
    ] {
        assert!(e.message().contains(line), "`{line}` is not in\n{e}");
    }
    assert_eq!(e.message().matches("\n  ").count(), 15, "one line for each factory, and the nearest\n{e}");
    // With the limit kept, the device's attribute decides.
    assert_eq!(chosen(&runtime, DType::F64, 8), "a/never");
    runtime.deregister("a").unwrap();
    let desc = SoftmaxDesc::new(DType::F64, DType::F64).with_max_cols(8);
    let e = runtime.primitive::<Softmax>(device, desc).unwrap_err();
    assert!(e.message().contains("needs device(\"level\") < 3, but device(\"level\") is 5"), "{e}");
    // No limit helps here.
    let nearest = "nearest that is covered: softmax(src f32, dst f32) with limit cols <= 8";
    assert!(e.message().contains(nearest), "{e}");
    let e = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::I8, DType::F32)).unwrap_err();
    assert!(e.message().contains("nearest that is covered: softmax(src f32, dst f32)"), "{e}");
    let e = runtime.primitive_dyn(device, &runtime.request("cast").unwrap().dtype("src", "u8").unwrap());
    assert_eq!(e.unwrap_err().code(), Code::InvalidArgument, "the destination's dtype is missing");
}

/// What is named as nearest is chosen when it is asked for.
#[test]
fn the_nearest_request_matches() {
    let runtime = ranked(Runtime::builder(), "a", 0, "2").build().unwrap();
    for (src, dst, cols) in [("f64", "f64", 0), ("f64", "f64", 9), ("f64", "f32", 0), ("i8", "f16", 5)] {
        let build = |terms: Option<&Terms>| {
            let mut request = runtime.request("softmax").unwrap();
            let asked = [("src".to_owned(), src.to_owned()), ("dst".to_owned(), dst.to_owned())];
            for (role, dtype) in terms.map_or(&asked[..], |t| &t.dtypes) {
                request = request.dtype(role, dtype).unwrap();
            }
            let limits = [("cols".to_owned(), cols)];
            for (name, n) in terms.map_or(&limits[..], |t| &t.limits) {
                request = request.limit(name, *n).unwrap();
            }
            request
        };
        let device = &runtime.devices()[0];
        let refused = runtime.explain(device, &build(None)).unwrap();
        let nearest = refused.nearest.as_ref().unwrap_or_else(|| panic!("{refused}"));
        assert!(runtime.explain(device, &build(Some(nearest))).unwrap().chosen().is_some(), "{nearest}");
    }
    let refused = explain(&runtime, "f64", 0);
    assert_eq!(refused.nearest.unwrap().limits, [("cols".to_owned(), 8)]);
    assert_eq!(refused.candidates[0].factory, "never", "what only a condition refuses comes first");
}

#[test]
fn an_explanation_names_the_reason_for_each_rank() {
    let verdicts = |runtime: &Runtime, dtype: &str, cols: u64| -> Vec<(String, String)> {
        let e = explain(runtime, dtype, cols);
        e.candidates
            .iter()
            .map(|c| (format!("{}/{}", c.instance, c.factory), c.verdict.to_string()))
            .collect()
    };
    let find = |all: &[(String, String)], name: &str| -> String {
        all.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).unwrap_or_default()
    };
    let runtime = ranked(ranked(Runtime::builder(), "a", 0, "2"), "b", 0, "2").build().unwrap();
    let all = verdicts(&runtime, "f32", 2000);
    assert_eq!(all[0], ("a/wide".into(), "chosen".into()));
    assert!(find(&all, "b/wide").contains("ties"), "{all:?}");
    assert!(
        find(&all, "a/narrow").contains("hint 1.0 instead of 0.0")
            || find(&all, "a/narrow").contains("hint 1 instead of 0"),
        "{all:?}"
    );
    assert_eq!(find(&all, "a/small"), "needs limit(\"cols\") <= 64, but limit(\"cols\") is 2000");
    assert!(find(&verdicts(&runtime, "f32", 10), "a/wide").contains("a/small has priority 10 instead of 0"));

    let runtime = ranked(ranked(Runtime::builder(), "a", 7, "2"), "b", -1, "2").build().unwrap();
    assert!(find(&verdicts(&runtime, "f32", 2000), "b/wide").contains("instance priority 7 instead of -1"));
    let runtime = ranked(ranked(Runtime::builder().select("softmax", ["b"]), "a", 7, "2"), "b", 0, "2");
    let all = verdicts(&runtime.build().unwrap(), "f32", 2000);
    assert!(find(&all, "a/wide").contains("[select] puts b first"), "{all:?}");

    let explanation = explain(&one(), "f16", 0);
    assert_eq!(explanation.chosen().unwrap().factory, "first");
    let tied = explanation.candidates.iter().find(|c| c.factory == "second").unwrap();
    assert_eq!(tied.verdict, Verdict::Tied);
    assert!(explanation.to_string().starts_with("softmax(src f16, dst f16) on cpu:0: one/first"));
}

#[test]
fn a_repeated_request_gives_the_same_primitive() {
    let runtime = one();
    let first = softmax(&runtime, DType::F32, 100);
    // Each kernel that is built has a number of its own.
    assert_eq!(first.describe(), softmax(&runtime, DType::F32, 100).describe());
    assert_ne!(first.describe(), softmax(&runtime, DType::F32, 101).describe());
    assert_ne!(first.describe(), softmax(&one(), DType::F32, 100).describe());
    runtime.deregister("one").unwrap();
    let device = &runtime.devices()[0];
    let again =
        runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32).with_max_cols(100));
    assert_eq!(again.unwrap_err().code(), Code::Unsupported, "the cache has been emptied");
    // What exists keeps working.
    let mut buffer = device.upload(&[0.0f32; 4]).unwrap();
    let call = SoftmaxCall { rows: 2, cols: 2, inner: 1, src: InPlace, dst: &mut buffer };
    first.launch(&device.stream().unwrap(), call).unwrap();
    assert_eq!(runtime.deregister("two").unwrap_err().code(), Code::NotFound);
    assert!(runtime.query(&Filter::default()).is_empty());
}

#[test]
fn the_cache_is_bounded_and_keeps_what_is_used() {
    let runtime = one();
    let number = |cols: u64| softmax(&runtime, DType::F32, cols).describe();
    let (first, used) = (number(1), number(2));
    for cols in 3..9000 {
        number(cols);
        if cols % 1000 == 0 {
            assert_eq!(number(2), used);
        }
    }
    assert_eq!(number(2), used);
    assert_eq!(number(8999), number(8999));
    assert_ne!(number(1), first, "9000 primitives are more than are kept");
}

#[test]
fn requests_from_many_threads_agree() {
    let runtime = one();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for cols in 1..300 {
                    let expected = if cols <= 64 { "one/small" } else { "one/level" };
                    assert_eq!(chosen(&runtime, DType::F32, cols), expected);
                }
            });
        }
    });
}

#[test]
fn a_query_lists_what_is_there() {
    let runtime = one();
    let rows = runtime.query(&Filter::default());
    let names: Vec<&str> = rows.iter().map(|r| r.factory.as_str()).collect();
    assert_eq!(names, ["small", "level", "narrow", "wide", "first", "second", "never"]);
    let small = &rows[0];
    assert_eq!(
        (small.instance.as_str(), small.device.as_str(), small.op.as_str()),
        ("one", "cpu:0", "softmax")
    );
    assert_eq!((small.predicate.as_str(), small.priority), ("limit(\"cols\") <= 64", 10));
    assert_eq!(small.dtypes, [("src".into(), "f32".into()), ("dst".into(), "f32".into())]);
    assert_eq!(rows[6].predicate, "limit(\"cols\") <= 8 & device(\"level\") < 3");
    let count = |op: Option<&str>, dtype: Option<&str>, device: Option<&str>| {
        let text = |t: Option<&str>| t.map(str::to_owned);
        runtime.query(&Filter { op: text(op), dtype: text(dtype), device: text(device) }).len()
    };
    assert_eq!(count(Some("softmax"), Some("f16"), Some("cpu")), 2);
    assert_eq!((count(Some("cast"), None, None), count(None, Some("i8"), None)), (0, 0));
    assert_eq!((count(None, None, Some("cpu:0")), count(None, None, Some("cpu:1"))), (7, 0));
}

/// What `query` lists and what can be made are the same, as far as the lists go.
#[test]
fn every_row_of_a_query_can_be_made() {
    for on in [Under::CpuPlugin, Under::AsyncPlugin] {
        let runtime = on.runtime();
        let rows = runtime.query(&Filter { device: Some(format!("{}:0", on.kind())), ..Filter::default() });
        let ops: HashSet<&str> = rows.iter().map(|r| r.op.as_str()).collect();
        assert!(ops.len() >= 9 && rows.len() >= 20, "{ops:?}");
        for row in rows {
            let mut request = runtime.request(&row.op).unwrap();
            for (name, value) in &row.selectors {
                request = request.selector(name, value).unwrap();
            }
            for (role, dtype) in &row.dtypes {
                request = request.dtype(role, dtype).unwrap();
            }
            let made = runtime.primitive_dyn(&runtime.devices()[0], &request);
            made.unwrap_or_else(|e| panic!("{row:?}: {e}"));
        }
    }
}

#[test]
fn the_providers_share_the_runtime_s_threads() {
    for threads in [1, 3] {
        let builder = Runtime::builder().threads(threads);
        let runtime = ranked(ranked(builder, "a", 0, "2"), "b", 0, "2").build().unwrap();
        assert_eq!(runtime.parallel().threads(), threads);
        let device = &runtime.devices()[0];
        let mut out = device.upload(&[0.0f32; 90]).unwrap();
        let call = SoftmaxCall { rows: 30, cols: 3, inner: 1, src: InPlace, dst: &mut out };
        softmax(&runtime, DType::F32, 0).launch(&device.stream().unwrap(), call).unwrap();
        assert_eq!(out.download::<f32>().unwrap(), [threads as f32; 90]);
    }
}

#[test]
fn rules_that_name_nobody_are_refused() {
    let builder = || ranked(Runtime::builder(), "one", 0, "3");
    let error = builder().select("softmax", ["onne"]).build().unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("[select] softmax") && error.message().contains("`onne`"), "{error}");
    assert!(error.message().contains("did you mean `one`?"), "{error}");
    // An op may be one of a vendor whose provider is not here.
    let runtime = builder().select("acme.conv", ["one"]).build().unwrap();
    let report = runtime.report();
    assert_eq!(report.warnings.len(), 1);
    assert!(report.warnings[0].contains("`acme.conv`"), "{report}");
    assert!(report.to_string().contains("\nwarning  [select] acme.conv: "), "{report}");
}

#[test]
fn a_disabled_entry_leaves_its_name_to_others() {
    let off = ProviderConfig { enabled: false, ..ProviderConfig::new("one", "/no/such.so") };
    let runtime = ranked(Runtime::builder().provider_with(off), "one", 0, "3").build().unwrap();
    assert_eq!(chosen(&runtime, DType::F32, 2000), "one/level");
    let statuses: Vec<Status> = runtime.report().entries.iter().map(|e| e.status).collect();
    assert_eq!(statuses, [Status::Skipped, Status::Loaded]);
    // The device stands in the line of the one that drives it.
    assert_eq!(runtime.report().entries[1].devices, ["cpu:0"]);
}
