//! Two versions of a vendor's own op in one host: fields that the newer one appended, whichever is loaded first.

use ep_core::Code;
use ep_registry::query::Filter;
use ep_registry::select::Verdict;
use ep_registry::{Device, Request, Runtime};
use ep_vendor_tests::{folder, make, make_changed};
use std::path::{Path, PathBuf};

/// Appends a selector, in what was `reserved`, and an attribute, which its kernels' rows and predicates name.
const APPENDED: &[(&str, &str, &str)] = &[
    (
        "acme.c",
        "  uint32_t data, reserved;\n  double kernel;\n",
        "  uint32_t data, layout;\n  double kernel, dilation;\n",
    ),
    (
        "acme.c",
        "static const EpField DESC_FIELDS[] = {",
        "static const EpStr LAYOUTS[] = {EP_STR(\"last\"), EP_STR(\"first\")};
         static const uint32_t LAST[] = {0}, FIRST[] = {1};
         static const EpField DESC_FIELDS[] = {",
    ),
    (
        "acme.c",
        ".default_value = {EP_SCALAR_I64, 0, 3, 0}}};",
        ".default_value = {EP_SCALAR_I64, 0, 3, 0}},
           {.name = EP_STR(\"layout\"), .doc = EP_STR(\"Where channels are.\"), .kind = EP_FIELD_SELECTOR,
            .offset = offsetof(Conv2dDesc, layout), .size = 4, .choices = LAYOUTS, .num_choices = 2},
           {.name = EP_STR(\"dilation\"), .doc = EP_STR(\"Gaps in the window.\"), .kind = EP_FIELD_ATTR,
            .offset = offsetof(Conv2dDesc, dilation), .size = 8}};",
    ),
    ("acme.c", ".num_desc_fields = 2,", ".num_desc_fields = 4,"),
    (
        "acme.c",
        "EP_NODE_I64(7), EP_NODE_IN(5)};",
        "EP_NODE_I64(7), EP_NODE_IN(5), EP_NODE_FACT(EP_EXPR_ATTR, \"dilation\"), EP_NODE_I64(0),
         EP_NODE_OP(EP_EXPR_EQ), EP_NODE_OP(EP_EXPR_AND)};",
    ),
    (
        "acme.c",
        "\"conv2d.general\", conv2d_schema, NULL, TABLE(conv2d_general), IS_POSSIBLE, 7, 0};",
        "\"conv2d.general\", conv2d_schema, LAST, TABLE(conv2d_general), IS_POSSIBLE, 11, 5};",
    ),
    ("acme.c", "\"conv2d.pointwise\", conv2d_schema, NULL,", "\"conv2d.pointwise\", conv2d_schema, FIRST,"),
    ("acme.c", ".name = EP_STR(\"acme\"),", ".name = EP_STR(\"acme-newer\"),"),
    ("acme_cases.h", "EP_DTYPE_F32, 0, (double)k}", "EP_DTYPE_F32, 0, (double)k, 0}"),
];

/// Both versions, loaded in this order.
fn host(order: [(&str, &Path); 2], preferred: &str) -> Runtime {
    let builder = order.iter().fold(Runtime::builder().threads(1), |b, (name, path)| b.provider(*name, path));
    let runtime = builder.select("*", [preferred]).build().unwrap();
    let report = runtime.report();
    assert!(report.entries.iter().all(|e| e.status == ep_registry::Status::Loaded), "{report}");
    assert!(report.entries.iter().all(|e| e.reason.is_empty()), "{report}");
    runtime
}

fn versions(folder: &Path) -> (PathBuf, PathBuf) {
    (make(folder, "acme"), make_changed(folder, "acme", "newer", APPENDED))
}

fn cpu(runtime: &Runtime) -> &Device {
    runtime.device("cpu").unwrap()
}

fn conv2d(runtime: &Runtime, kernel: f64) -> Request {
    let request = runtime.request("acme.conv2d").unwrap();
    request.dtype("data", "f32").unwrap().attr("kernel", kernel).unwrap()
}

/// The verdict on a factory of an instance.
fn verdict(runtime: &Runtime, request: &Request, instance: &str, factory: &str) -> Verdict {
    let explanation = runtime.explain(cpu(runtime), request).unwrap();
    let found = explanation.candidates.iter().find(|c| (&*c.instance, &*c.factory) == (instance, factory));
    found.unwrap_or_else(|| panic!("no {instance}/{factory} in {explanation}")).verdict.clone()
}

#[test]
fn both_versions_work_whichever_is_loaded_first() {
    let folder = folder();
    let (older, newer) = versions(folder.path());
    let (older, newer) = (("older", older.as_path()), ("newer", newer.as_path()));
    for order in [[older, newer], [newer, older]] {
        for preferred in ["older", "newer"] {
            let runtime = host(order, preferred);
            let request = conv2d(&runtime, 3.0);
            assert_eq!(verdict(&runtime, &request, preferred, "conv2d.general"), Verdict::Chosen);
            let other = if preferred == "older" { "newer" } else { "older" };
            let outranked = verdict(&runtime, &request, other, "conv2d.general");
            assert!(matches!(outranked, Verdict::Outranked(_)), "{order:?}: {outranked}");
            // It is built, too, from a descriptor of the first one's length, and computes.
            let primitive = runtime.primitive_dyn(cpu(&runtime), &request).unwrap();
            assert_eq!(primitive.instance(), preferred);
            let (src, weight) = (cpu(&runtime).upload(&[2f32; 9]), cpu(&runtime).upload(&[1f32; 9]));
            let (src, weight, mut dst) =
                (src.unwrap(), weight.unwrap(), cpu(&runtime).upload(&[-7f32]).unwrap());
            let args = primitive.args().dims("src_dims", &[1, 3, 3, 1]).unwrap();
            let args =
                args.dims("weight_dims", &[3, 3, 1, 1]).unwrap().dims("dst_dims", &[1, 1, 1, 1]).unwrap();
            let args = args.read("src", &src).unwrap().read("weight", &weight).unwrap();
            primitive.launch(&cpu(&runtime).stream().unwrap(), args.write("dst", &mut dst).unwrap()).unwrap();
            assert_eq!(dst.download::<f32>().unwrap(), [18.0]);
        }
    }
}

#[test]
fn an_older_host_lists_what_it_can_ask_for() {
    let folder = folder();
    let (older, newer) = versions(folder.path());
    let runtime = host([("older", &older), ("newer", &newer)], "newer");
    let rows = runtime.query(&Filter { op: Some("acme.conv2d".into()), ..Filter::default() });
    assert!(rows.iter().all(|r| r.selectors.is_empty()), "{rows:?}");
    let names: Vec<_> = rows.iter().map(|r| (&*r.instance, &*r.factory)).collect();
    // The newer pointwise kernel is for a layout that this host has no name for.
    let listed = [("older", "conv2d.general"), ("older", "conv2d.pointwise"), ("newer", "conv2d.general")];
    assert_eq!(names, listed);
    let pointwise = conv2d(&runtime, 1.0);
    let verdict_of_newer = verdict(&runtime, &pointwise, "newer", "conv2d.pointwise");
    assert!(matches!(verdict_of_newer, Verdict::NotCovered(_)), "{verdict_of_newer:?}");
    assert!(runtime.request("acme.conv2d").unwrap().selector("layout", "first").is_err());
}

#[test]
fn a_newer_host_gives_an_older_provider_no_field_that_it_does_not_know() {
    let folder = folder();
    let (older, newer) = versions(folder.path());
    let runtime = host([("newer", &newer), ("older", &older)], "older");
    let rows = runtime.query(&Filter { op: Some("acme.conv2d".into()), ..Filter::default() });
    let rows: Vec<_> = rows.iter().map(|r| (&*r.instance, &*r.factory, &*r.selectors[0].1)).collect();
    let listed = [
        ("newer", "conv2d.general", "last"),
        ("newer", "conv2d.pointwise", "first"),
        ("older", "conv2d.general", "last"),
        ("older", "conv2d.pointwise", "last"),
    ];
    assert_eq!(rows, listed);
    let first = conv2d(&runtime, 1.0).selector("layout", "first").unwrap();
    assert_eq!(verdict(&runtime, &first, "newer", "conv2d.pointwise"), Verdict::Chosen);
    let unknown = Verdict::UnknownField("layout".into());
    assert_eq!(verdict(&runtime, &first, "older", "conv2d.pointwise"), unknown);
    assert_eq!(verdict(&runtime, &first, "older", "conv2d.general"), unknown);
    let dilated = conv2d(&runtime, 3.0).attr("dilation", 2.0).unwrap();
    let unknown = Verdict::UnknownField("dilation".into());
    assert_eq!(verdict(&runtime, &dilated, "older", "conv2d.general"), unknown);
    assert!(matches!(verdict(&runtime, &dilated, "newer", "conv2d.general"), Verdict::Refused(_)));
    let error = runtime.primitive_dyn(cpu(&runtime), &dilated).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
}
