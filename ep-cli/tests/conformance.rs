//! `ep conformance` on the test providers: what is right passes, and what crashes, hangs or is wrong is a failed case.

mod beside;

use beside::{EP, built};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder of a test's own, with a config for one provider in it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str, library: &str, options: &[(&str, &str)]) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("conformance-{test}"));
        let _missing_at_first = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let options: String = options.iter().map(|(k, v)| format!("{k} = {v:?}\n")).collect();
        let folder = Folder(path);
        folder.write("ep.toml", &provider("x", library, &options));
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs the kit in this folder; a report as JSON is always written.
    fn run(&self, args: &[&str]) -> Run {
        self.run_on("ep.toml", args)
    }

    /// The same for another file than the config.
    fn run_on(&self, target: &str, args: &[&str]) -> Run {
        let output = Command::new(EP)
            .args(["conformance", target, "--json", "report.json"])
            .args(args)
            .current_dir(&self.0)
            .env("HOME", &self.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let json = std::fs::read_to_string(self.path("report.json")).ok();
        Run {
            code: output.status.code().expect("no signal"),
            text: text(output.stdout) + &text(output.stderr),
            json: json.map_or(Value::Null, |j| serde_json::from_str(&j).unwrap()),
        }
    }
}

fn provider(name: &str, library: &str, options: &str) -> String {
    format!("[[provider]]\nname = \"{name}\"\npath = {:?}\n[provider.options]\n{options}", built(library))
}

/// How the kit ended.
struct Run {
    code: i32,
    text: String,
    json: Value,
}

impl Run {
    #[track_caller]
    fn exits(self, code: i32) -> Run {
        assert_eq!(self.code, code, "{}", self.text);
        self
    }

    fn count(&self, what: &str) -> u64 {
        self.json[what].as_u64().unwrap()
    }

    fn cases(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.json["cases"].as_array().unwrap().iter().map(|c| {
            let field = |name: &str| c[name].as_str().unwrap();
            (field("name"), field("outcome"), field("message"))
        })
    }

    /// The failed cases whose message has `part`.
    fn failed_with(&self, part: &str) -> Vec<&str> {
        self.cases().filter(|(_, o, m)| *o == "failed" && m.contains(part)).map(|(n, ..)| n).collect()
    }
}

/// The hostile provider in a mode, with what it does not do by design expected.
fn hostile(test: &str, mode: &str) -> Folder {
    let folder = Folder::new(test, "test_hostile", &[("mode", mode)]);
    folder.write("expected.txt", "objects/*/copies-from-unknown-spaces it copies whatever it is told\n");
    folder
}

#[test]
fn a_good_provider_passes_and_every_report_says_so() {
    let folder = hostile("good", "");
    let args =
        ["--expect", "expected.txt", "--junit", "r.xml", "--html", "r.html", "--support", "s.csv", "--perf"];
    let run = folder.run(&args).exits(0);
    assert_eq!(
        (run.count("failed"), run.count("stale"), run.count("expected_failures")),
        (0, 0, 1),
        "{}",
        run.text
    );
    let launched = |(name, outcome, _): &(&str, &str, &str)| {
        name.starts_with("primitives/hostile:0/elementwise_unary/op=relu,src=f32,dst=f32/")
            && *outcome == "passed"
    };
    assert!(run.cases().filter(launched).count() >= 12, "{}", run.text);
    assert!(run.text.contains("elementwise_unary") && run.text.contains("median us"), "{}", run.text);
    let measured = run.json["cases"].as_array().unwrap().iter().find(|c| !c["median_us"].is_null());
    assert!(measured.unwrap()["gbps"].as_f64().unwrap() > 0.0);
    let total = run.json["cases"].as_array().unwrap().len();
    let junit = folder.read("r.xml");
    assert_eq!((junit.matches("<testcase ").count(), junit.matches("</testsuite>").count()), (total, 3));
    let page = folder.read("r.html");
    assert!(page.contains("<tr><th>elementwise_unary<td class=\"n ok\">") && page.ends_with("</html>\n"));
    assert_eq!(
        folder.read("s.csv"),
        "op,dtypes,hostile,selectors\nelementwise_unary,src=f32 dst=f32,yes,relu\n"
    );
    // What it claims can be required of it, and nothing more.
    folder.run(&["--expect", "expected.txt", "--quick", "--require", "s.csv"]).exits(0);
    folder.write("more.csv", "op,dtypes,hostile,selectors\nadd,data=f32,yes,\n");
    let more = folder.run(&["--expect", "expected.txt", "--quick", "--require", "more.csv"]).exits(6);
    assert_eq!(more.failed_with("required"), ["require/hostile:0/add/data=f32"]);
}

#[test]
fn a_crash_is_a_failed_case_with_its_signal_and_a_command() {
    let folder = hostile("abort", "launch.abort");
    let run = folder.run(&["--expect", "expected.txt"]).exits(6);
    let crashed = run.failed_with("SIGABRT (6)");
    assert_eq!(crashed.len(), 3, "{}", run.text);
    assert!(crashed.iter().all(|n| n.contains("elementwise_unary")), "{}", run.text);
    // The unit is given up after that, and everything else has run.
    assert_eq!(run.failed_with("the rest is not run").len(), 1);
    assert!(run.cases().filter(|(n, o, _)| n.starts_with("abi/") && *o == "passed").count() > 20);
    assert!(
        run.text.contains(&format!("repeat: ep conformance ep.toml --case {}", crashed[0])),
        "{}",
        run.text
    );
    let again = folder.run(&["--case", crashed[0]]).exits(6);
    assert_eq!(again.cases().map(|c| c.0).collect::<Vec<_>>(), [crashed[0]]);
}

#[test]
fn an_exit_is_a_failed_case_with_its_code() {
    let run = hostile("exit", "record.exit").run(&["--case", "objects/*"]).exits(6);
    assert!(run.failed_with("exited with code 3").contains(&"objects/hostile:0/events"), "{}", run.text);
}

#[test]
fn a_hang_is_a_failed_case_and_the_others_run() {
    let run = hostile("hang", "sync.hang").run(&["--timeout-s", "1", "--case", "objects/*"]).exits(6);
    let hung = run.failed_with("no answer within 1 s");
    // Two processes may find the third and fourth at the same time.
    assert!((3..=4).contains(&hung.len()), "{}", run.text);
    assert!(!run.failed_with("hung before").is_empty(), "{}", run.text);
    let passed = run.cases().filter(|(_, o, _)| *o == "passed").count();
    assert!(passed + run.failed_with("").len() > hung.len(), "{}", run.text);
}

#[test]
fn a_crash_at_loading_leaves_the_kit_alive() {
    let folder = hostile("query", "");
    let output = Command::new(EP)
        .args(["conformance", "ep.toml", "--json", "report.json"])
        .current_dir(&folder.0)
        .env("EP_TEST_HOSTILE", "query.abort")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stdout));
    let json: Value = serde_json::from_str(&folder.read("report.json")).unwrap();
    let cases = json["cases"].as_array().unwrap();
    let load = cases.iter().find(|c| c["name"] == "load/load").unwrap();
    assert!(load["message"].as_str().unwrap().contains("SIGABRT"), "{load}");
    assert!(cases.iter().any(|c| c["name"] == "abi/query-twice" && c["outcome"] == "failed"));
}

#[test]
fn what_does_not_load_is_one_failure_and_every_report_says_so() {
    let folder = hostile("unloadable", "");
    folder.write("README.md", "# This is no library\n");
    let run = folder.run_on("README.md", &["--junit", "r.xml", "--html", "r.html"]).exits(6);
    let cases: Vec<_> = run.cases().collect();
    let [("load/load", "failed", why)] = cases[..] else { panic!("{}", run.text) };
    assert!(why.contains("README.md") && why.ends_with("; nothing else was tried"), "{why}");
    assert_eq!((run.count("failed"), run.text.matches("README.md: ").count()), (1, 1), "{}", run.text);
    assert_eq!(folder.read("r.xml").matches("<testcase ").count(), 1);
    assert!(folder.read("r.html").ends_with("</html>\n"));
    // Filters change nothing about that.
    for args in [["--op", "softmax"], ["--op", "softmaks"], ["--dtype", "f32"], ["--case", "abi/strings"]] {
        assert_eq!(folder.run_on("README.md", &args).exits(6).failed_with(""), ["load/load"], "{args:?}");
    }
    // Without an instance the tables can be checked, and nothing says again why there is none.
    let run = hostile("no-instance", "create.error").run(&[]).exits(6);
    assert_eq!(run.failed_with(""), ["load/load"], "{}", run.text);
    assert_eq!(run.count("passed"), 7, "{}", run.text);
}

#[test]
fn filters_that_nothing_can_pass_are_wrong_command_lines() {
    let folder = hostile("filters", "");
    for (args, parts) in
        [(["--op", "softmaks"], ["`softmaks`", "softmax"]), (["--dtype", "fp16"], ["`fp16`", "f16"])]
    {
        let run = folder.run(&args).exits(2);
        assert!(parts.iter().all(|part| run.text.contains(part)), "{}", run.text);
    }
    // It is an op, and this provider has none of it.
    folder.run(&["--op", "softmax"]).exits(7);
    folder.run(&["--dtype", "f16"]).exits(7);
}

#[test]
fn wrong_behaviour_is_found() {
    for (mode, case, part) in [
        ("stream.panic", "objects/hostile:0/streams", "hostile stream"),
        ("alloc.null", "objects/hostile:0/alignment", "0x0"),
        ("free.error", "objects/hostile:0/statistics", "hostile free"),
        (
            "launch.error",
            "primitives/hostile:0/elementwise_unary/op=relu,src=f32,dst=f32/01-one",
            "hostile launch",
        ),
        (
            "build.error",
            "primitives/hostile:0/elementwise_unary/op=relu,src=f32,dst=f32/01-one",
            "hostile build",
        ),
        ("register.panic", "abi/register-twice", "panic"),
        ("open.error", "abi/create-and-destroy", "hostile open"),
    ] {
        let run = hostile(&mode.replace('.', "-"), mode).run(&["--case", case]).exits(6);
        let found = run.failed_with(part);
        assert!(found.contains(&case), "{mode}: {}", run.text);
    }
}

#[test]
fn a_process_that_ends_badly_fails_a_case_of_its_own() {
    let run = hostile("end", "end.abort").run(&["--case", "abi/create-and-destroy"]).exits(6);
    assert_eq!(run.failed_with("SIGABRT"), ["load/end"], "{}", run.text);
    assert!(run.cases().any(|(n, o, _)| (n, o) == ("abi/create-and-destroy", "passed")), "{}", run.text);
}

#[test]
fn expectations_that_do_not_hold_are_stale() {
    let folder = hostile("stale", "");
    folder.write(
        "stale.txt",
        "objects/*/copies-from-unknown-spaces it copies whatever it is told\nabi/strings its name was wrong once\n\
         abi/no-such-check nobody knows\n",
    );
    let run = folder.run(&["--expect", "stale.txt"]).exits(6);
    let stale: Vec<_> = run.cases().filter(|(_, o, _)| *o == "stale").map(|(n, ..)| n).collect();
    assert_eq!(stale, ["abi/strings", "abi/no-such-check"], "{}", run.text);
    assert_eq!((run.count("failed"), run.count("stale")), (0, 2));
    folder.write("bad.txt", "abi/strings\n");
    assert!(folder.run(&["--expect", "bad.txt"]).exits(1).text.contains("line 1"));
}

#[test]
fn nothing_to_run_is_a_failure_unless_that_is_allowed() {
    let folder = hostile("empty", "register.nothing");
    let args = ["--expect", "expected.txt"];
    assert!(folder.run(&args).exits(7).text.contains("--allow-empty"));
    folder.run(&[&args[..], &["--allow-empty"]].concat()).exits(0);
    // A provider without a device here is absent, which is no failure of its own.
    let absent = hostile("absent", "count.unavailable").run(&["--case", "load/*", "--allow-empty"]).exits(0);
    assert_eq!(absent.cases().map(|c| (c.0, c.1)).collect::<Vec<_>>(), [("load/load", "unsupported")]);
}

#[test]
fn asynchronous_streams_with_memory_of_their_own_pass() {
    let folder = Folder::new("async", "test_async", &[("max_delay_us", "20")]);
    for op in ["memcpy", "cast", "permute", "fill"] {
        let run = folder.run(&["--op", op]).exits(0);
        assert!(run.count("passed") > 24 && run.count("failed") == 0, "{op}: {}", run.text);
    }
    let run = folder.run(&["--case", "objects/*"]).exits(0);
    let timing = run.cases().find(|(n, ..)| *n == "objects/async:1/timing").unwrap();
    assert_eq!((timing.1, run.count("failed")), ("passed", 0), "{}", run.text);
}

#[test]
fn a_launch_that_fails_or_panics_later_is_found() {
    for (option, part) in [("fail_launch", "fails, as option"), ("panic_launch", "panics, as option")] {
        let folder =
            Folder::new(option, "test_async", &[("max_delay_us", "0"), ("devices", "1"), (option, "5")]);
        let run = folder.run(&["--op", "permute", "--jobs", "1"]).exits(6);
        assert_eq!(run.failed_with(part).len(), 1, "{option}: {}", run.text);
        assert_eq!(run.count("failed"), 1, "{option}: {}", run.text);
    }
}

#[test]
fn providers_of_a_config_are_told_apart() {
    let folder = hostile("two", "");
    let both =
        provider("one", "test_hostile", "") + &provider("other", "test_hostile", "mode = \"launch.error\"\n");
    folder.write("ep.toml", &both);
    let run = folder.run(&["--op", "elementwise_unary", "--quick"]).exits(6);
    let failed = run.failed_with("hostile launch");
    assert!(!failed.is_empty() && failed.iter().all(|n| n.starts_with("other/primitives/")), "{}", run.text);
    assert!(run.cases().any(|(n, o, _)| n.starts_with("one/primitives/") && o == "passed"));
}

#[test]
fn the_cpu_under_another_name_passes_a_sample() {
    let folder = Folder::new("cpu2", "test_cpu2", &[]);
    for op in ["matmul", "softmax", "strided_copy"] {
        let run = folder.run(&["--op", op, "--quick"]).exits(0);
        assert!(run.count("passed") > 20 && run.count("failed") == 0, "{op}: {}", run.text);
    }
}

#[test]
fn a_run_is_not_lost_for_what_is_wrong_about_its_reports() {
    let folder = hostile("reports", "");
    // Told at once.
    for (flag, path) in [("--html", "none/r.html"), ("--junit", ".")] {
        let run = folder.run(&["--case", "abi/*", flag, path]).exits(1);
        assert!(run.text.contains("nothing was run") && run.text.contains(path), "{}", run.text);
        assert!(run.json.is_null() && !run.text.contains("passed"), "{}", run.text);
    }
    // Told when all is shown and written: which devices there are, only the run has found out.
    folder.write("other.csv", "op,dtypes,elsewhere,selectors\nadd,data=f32,yes,\n");
    let run = folder.run(&["--case", "abi/strings", "--require", "other.csv"]).exits(1);
    assert!(run.text.contains("no column for `hostile`") && run.text.contains("1 passed"), "{}", run.text);
    assert_eq!(run.count("passed"), 1);
}

#[test]
fn bad_command_lines_say_what_to_do() {
    let folder = hostile("usage", "");
    let gone = Command::new(EP).args(["conformance", "gone.so"]).current_dir(&folder.0).output().unwrap();
    assert_eq!(gone.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("gone.so"));
    let device = folder.run(&["--device", "cuda", "--quick"]).exits(3);
    assert!(device.text.contains("there are hostile:0"), "{}", device.text);
    folder.run(&["--require", "none.csv"]).exits(1);
    folder.run(&["--timeout-s", "0"]).exits(2);
}
