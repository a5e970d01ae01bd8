//! `ep conformance --onnx` on the simulated accelerator, whose memory no host reaches: a few of ONNX's tests, which the
//! repository holds.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const EP: &str = env!("CARGO_BIN_EXE_ep");
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/conformance/onnx/sample");
const GENERATOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/conformance/onnx/generate.py");

/// What of the sample is not run, with reasons as a list of `--onnx-not-run` has them.
const NOT_RUN: &str = "\
test_det_2d  no determinants
test_cast_FLOAT_to_FLOAT8E5M2  no such dtype
test_shape_example  nothing to launch
";

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    /// With a copy of the sample in it.
    fn new(test: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("onnx-{test}"));
        let _missing_at_first = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("suite")).unwrap();
        for file in ["suite.json", "tensors.bin"] {
            std::fs::copy(Path::new(SAMPLE).join(file), path.join("suite").join(file)).unwrap();
        }
        let plugin = Path::new(EP).with_file_name("libep_sim.so");
        assert!(
            plugin.exists(),
            "{} is missing: run `cargo xtask test`, or `cargo build --workspace` first",
            plugin.display()
        );
        let config =
            format!("[[provider]]\nname = \"sim\"\npath = {plugin:?}\n[provider.options]\ndevices = 1\n");
        std::fs::write(path.join("ep.toml"), config).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    #[track_caller]
    fn run(&self, code: i32, args: &[&str]) -> (String, Value) {
        let report = self.0.join("report.json");
        let _missing_at_first = std::fs::remove_file(&report);
        let run = Command::new(EP)
            .args(["conformance", "ep.toml", "--onnx", "suite", "--json", "report.json"])
            .args(args)
            .current_dir(&self.0)
            .output()
            .unwrap();
        let text = String::from_utf8(run.stdout).unwrap() + &String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(code), "{text}");
        let json = std::fs::read_to_string(report).ok();
        (text, json.map_or(Value::Null, |j| serde_json::from_str(&j).unwrap()))
    }
}

/// The cases of an outcome, without what all names begin with.
fn cases<'a>(report: &'a Value, outcome: &str) -> Vec<(&'a str, &'a str)> {
    let all = report["cases"].as_array().unwrap().iter().filter(|c| c["outcome"] == outcome);
    let name = |c: &'a Value| c["name"].as_str().unwrap().rsplit('/').next().unwrap();
    all.map(|c| (name(c), c["message"].as_str().unwrap())).collect()
}

#[test]
fn a_sample_passes_and_what_is_not_run_has_reasons() {
    let folder = Folder::new("sample");
    folder.write("not-run.txt", NOT_RUN);
    let (text, report) =
        folder.run(0, &["--onnx-min", "12", "--onnx-not-run", "not-run.txt", "--junit", "r.xml"]);
    assert_eq!(
        (&report["passed"], &report["not_mapped"], &report["unsupported"]),
        (&12.into(), &3.into(), &0.into())
    );
    assert!(text.contains("12 passed, 0 failed, 0 unsupported, 3 not mapped"), "{text}");
    let left_out = cases(&report, "not_mapped");
    for (name, part) in [
        ("test_det_2d", "Det: decomposes a matrix"),
        ("test_cast_FLOAT_to_FLOAT8E5M2", "no dtype `float8e5m2`"),
        ("test_shape_example", "Shape: nothing to launch"),
    ] {
        assert!(left_out.iter().any(|(n, why)| *n == name && why.contains(part)), "{left_out:?}");
    }
    let junit = std::fs::read_to_string(folder.0.join("r.xml")).unwrap();
    assert!(junit.contains("<testsuite name=\"onnx\" tests=\"15\" failures=\"0\" skipped=\"3\">"), "{junit}");
    // All of one operator, and nothing but it.
    let (_, report) = folder.run(0, &["--op", "Softmax"]);
    assert_eq!(cases(&report, "passed"), [("test_softmax_example", "")]);
    folder.run(7, &["--op", "Shape"]);
}

#[test]
fn too_few_that_pass_are_a_failure() {
    let (text, _) = Folder::new("few").run(6, &["--onnx-min", "13"]);
    assert!(text.contains("12 of ONNX's tests passed, 13 have to"), "{text}");
}

#[test]
fn wrong_results_fail_with_the_case_and_a_command() {
    let folder = Folder::new("wrong");
    let blob = folder.0.join("suite/tensors.bin");
    let index = folder.0.join("suite/suite.json");
    let mut suite: Value = serde_json::from_str(&std::fs::read_to_string(&index).unwrap()).unwrap();
    let mut bytes = std::fs::read(&blob).unwrap();
    for case in suite["cases"].as_array_mut().unwrap() {
        if case["skip"].is_string() {
            continue;
        }
        let (name, tensor) = (case["name"].clone(), &mut case["outputs"][0]["tensor"]);
        if name == "test_not_2d" {
            bytes[tensor["at"].as_u64().unwrap() as usize + 2] ^= 1;
        } else if name == "test_relu" {
            tensor["shape"] = serde_json::json!([3, 20]);
        }
    }
    std::fs::write(&blob, bytes).unwrap();
    std::fs::write(&index, suite.to_string()).unwrap();
    let (text, report) = folder.run(6, &[]);
    let failed = cases(&report, "failed");
    assert_eq!(failed.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["test_not_2d", "test_relu"]);
    assert!(failed[0].1.contains("[2] is false, expected true;"), "{text}");
    assert!(failed[1].1.contains("is f32 [3, 4, 5], expected f32 [3, 20]"), "{text}");
    let again = "repeat: ep conformance ep.toml --onnx suite --case onnx/sim:0/test_not_2d";
    assert!(text.contains(again), "{text}");
    let (_, report) = folder.run(6, &["--case", "onnx/sim:0/test_not_2d"]);
    assert_eq!(report["cases"].as_array().unwrap().len(), 1);
}

#[test]
fn a_list_that_does_not_hold_is_stale() {
    let folder = Folder::new("stale");
    folder.write("not-run.txt", "test_relu  known\ntest_gone  known\ntest_shape_example  known\n");
    let (_, report) = folder.run(6, &["--onnx-not-run", "not-run.txt"]);
    let stale = cases(&report, "stale");
    for (name, part) in [
        ("test_relu", "and runs"),
        ("test_gone", "no case of the suite"),
        ("test_det_2d", "does not say why"),
        ("test_cast_FLOAT_to_FLOAT8E5M2", "does not say why"),
    ] {
        assert!(stale.iter().any(|(n, why)| *n == name && why.contains(part)), "{name}: {stale:?}");
    }
    assert_eq!((stale.len(), &report["passed"]), (4, &12.into()));
}

#[test]
fn a_suite_that_is_none_is_told_before_anything_runs() {
    let folder = Folder::new("none");
    std::fs::remove_file(folder.0.join("suite/tensors.bin")).unwrap();
    let (text, _) = folder.run(1, &[]);
    assert!(text.contains("suite/tensors.bin") && text.contains("generate.py"), "{text}");
    folder.write("suite/tensors.bin", "");
    let (text, _) = folder.run(1, &[]);
    assert!(text.contains("is not in tensors.bin, which has 0"), "{text}");
    folder.run(2, &["--dtype", "f32"]);
    folder.run(2, &["--quick"]);
}

#[test]
fn the_generator_names_what_is_missing() {
    // An interpreter without any installed packages.
    let run = Command::new("python3").args(["-I", "-S", GENERATOR, "nowhere"]).output().expect("python3");
    let text = String::from_utf8(run.stderr).unwrap();
    assert!(!run.status.success() && text.contains("requirements.txt"), "{text}");
}
