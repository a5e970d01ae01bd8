//! `ep doctor` on good, bad and missing providers: whatever they do is a line in its report, and ends nothing else.

mod beside;

use beside::{EP, built};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A variable by which the processes of a test are told from others.
const TAG: &str = "EP_TEST_DOCTOR";

/// A folder of a test's own with a config in it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str, config: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{test}"));
        let _missing_at_first = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let folder = Folder(path);
        folder.write("ep.toml", config);
        folder
    }

    /// The hostile provider, once in each mode and called as that.
    fn hostile(test: &str, modes: &[&str]) -> Folder {
        let config: String = modes.iter().map(|mode| hostile(mode, mode, "")).collect();
        Folder::new(test, &config)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.0.join(name), text).unwrap();
        self.0.join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(EP);
        command.arg("doctor").args(args).current_dir(&self.0).env("HOME", &self.0).stdin(Stdio::null());
        for variable in ["EP_CONFIG", "XDG_CONFIG_HOME", "NO_COLOR", "EP_TEST_HOSTILE"] {
            command.env_remove(variable);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        Run::of(&mut self.command(args))
    }

    /// The rows of `--json`.
    fn rows(&self, code: i32, args: &[&str]) -> Vec<Row> {
        rows(&self.run(&[args, &["--json"]].concat()).exits(code).stdout)
    }
}

fn rows(json: &str) -> Vec<Row> {
    let json: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"));
    json.as_array().unwrap().iter().cloned().map(Row).collect()
}

fn hostile(name: &str, mode: &str, more: &str) -> String {
    let options = format!("[provider.options]\nmode = {mode:?}\n");
    provider(name, &built("test_hostile"), &format!("{more}{options}"))
}

fn provider(name: &str, path: &Path, more: &str) -> String {
    format!("[[provider]]\nname = \"{name}\"\npath = {path:?}\n{more}")
}

/// How it ended.
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn of(command: &mut Command) -> Run {
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        Run {
            code: output.status.code().expect("no signal"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    #[track_caller]
    fn exits(self, code: i32) -> Run {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    fn shows(self, parts: &[&str]) -> Run {
        for part in parts {
            assert!(self.stdout.contains(part), "no `{part}` in: {}", self.stdout);
        }
        self
    }
}

/// A provider in the report.
#[derive(Debug)]
struct Row(Value);

impl Row {
    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or("")
    }

    /// Name, state and step.
    fn brief(&self) -> (&str, &str, &str) {
        (self.text("provider"), self.text("state"), self.text("step"))
    }

    #[track_caller]
    fn says(&self, key: &str, parts: &[&str]) {
        for part in parts {
            assert!(self.text(key).contains(part), "no `{part}` in {key}: {self:?}");
        }
    }
}

#[test]
fn a_good_provider_is_ok_with_its_devices_and_nothing_to_do() {
    let folder = Folder::new("good", &(provider("null", &built("ep_null"), "") + &hostile("mine", "", "")));
    let rows = folder.rows(0, &[]);
    assert_eq!(rows.iter().map(Row::brief).collect::<Vec<_>>(), [("null", "ok", ""), ("mine", "ok", "")]);
    let keys: Vec<_> = rows[0].0.as_object().unwrap().keys().map(String::as_str).collect();
    let documented = ["provider", "path", "state", "step", "reason", "advice", "devices", "seconds"];
    assert_eq!(keys.len(), documented.len(), "{keys:?}");
    assert!(documented.iter().all(|key| keys.contains(key)), "{keys:?}");
    for (row, device) in rows.iter().zip(["null:0", "hostile:0"]) {
        assert_eq!(row.0["devices"], serde_json::json!([device]));
        assert!(row.0["step"].is_null() && row.0["advice"].is_null(), "{row:?}");
        assert!(row.0["seconds"].as_f64().unwrap() > 0.0, "{row:?}");
        assert!(Path::new(row.text("path")).is_file());
    }
    // The skeleton computes nothing.
    rows[0].says("reason", &["nothing was launched"]);
    assert_eq!(rows[1].0["reason"], "");
    let text = folder.run(&[]).exits(0).shows(&[
        "ep.toml (ep.toml of the current folder)",
        "null  ok  ",
        "devices   hostile:0",
        "2 ok\n",
        std::env::consts::ARCH,
    ]);
    assert!(!text.stdout.contains("warning") && text.stderr.is_empty(), "{}{}", text.stdout, text.stderr);
    assert!(!text.stdout.contains('\x1b'), "colour in a pipe");
    folder.run(&["--provider", "mine"]).exits(0).shows(&["mine  ok", "1 ok\n"]);
}

#[test]
fn a_crash_is_a_line_with_its_signal_and_step_and_the_others_are_tried() {
    let expected = [
        ("query.abort", "query", "SIGABRT (6)"),
        ("create.segv", "create", "SIGSEGV (11)"),
        ("count.exit", "devices", "exited with code 3"),
        ("open.abort", "open", "step open of device 0"),
        ("register.segv", "register", "SIGSEGV (11)"),
        ("alloc.abort", "allocate", "allocate of hostile:0"),
        ("free.abort", "allocate", "SIGABRT (6)"),
        ("copy.abort", "copy", "SIGABRT (6)"),
        ("record.exit", "event", "exited with code 3"),
        ("launch.segv", "launch", "SIGSEGV (11)"),
        ("end.abort", "end", "SIGABRT (6)"),
    ];
    // The entry point knows no options of the config.
    let (query, rest) = expected.split_first().unwrap();
    let modes: Vec<_> = rest.iter().map(|(mode, ..)| *mode).chain([""]).collect();
    let modes: Vec<_> = modes.iter().map(|m| hostile(if m.is_empty() { "good" } else { m }, m, "")).collect();
    let folder = Folder::new("crash", &modes.concat());
    let rows = folder.rows(1, &[]);
    assert_eq!(rows.len(), rest.len() + 1);
    for (row, (mode, step, reason)) in rows.iter().zip(rest) {
        assert_eq!(row.brief(), (*mode, "crashed", *step), "{row:?}");
        row.says("reason", &[reason]);
        row.says("advice", &["enabled = false", "ep.toml", "ep conformance", "doctor-worker"]);
    }
    assert_eq!(rows.last().unwrap().brief(), ("good", "ok", ""));
    let at_query = Run::of(folder.command(&["--json", "--provider", "good"]).env("EP_TEST_HOSTILE", query.0));
    let row = &self::rows(&at_query.exits(1).stdout)[0];
    assert_eq!(row.brief(), ("good", "crashed", query.1));
    row.says("reason", &[query.2]);
    folder.run(&["--provider", "launch.segv"]).exits(1).shows(&[
        "launch.segv  crashed  ",
        "step      launch",
        "SIGSEGV (11) in step launch of hostile:0",
        "1 crashed\n",
    ]);
}

#[test]
fn a_hang_is_ended_in_time_and_the_others_are_tried() {
    let folder = Folder::hostile("hang", &["create.hang", "sync.hang", "stream.panic"]);
    let started = Instant::now();
    let rows = folder.rows(1, &["--timeout", "1"]);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let brief: Vec<_> = rows.iter().map(Row::brief).collect();
    assert_eq!(brief[0], ("create.hang", "hung", "create"));
    assert_eq!(brief[1], ("sync.hang", "hung", "copy"));
    assert_eq!(brief[2].1, "failed");
    rows[1].says("reason", &["step copy of hostile:0", "within 1 s"]);
    rows[1].says("advice", &["--timeout", "enabled = false"]);
    assert!((1.0..10.0).contains(&rows[0].0["seconds"].as_f64().unwrap()), "{rows:?}");
}

#[test]
fn an_error_is_a_failure_in_its_step() {
    let modes =
        ["create.error", "open.error", "register.panic", "alloc.error", "event.error", "launch.error"];
    let rows = Folder::hostile("error", &modes).rows(1, &[]);
    let steps = ["create", "open", "register", "allocate", "event", "launch"];
    for ((row, mode), step) in rows.iter().zip(modes).zip(steps) {
        assert_eq!(row.brief(), (mode, "failed", step), "{row:?}");
        assert!(!row.text("reason").is_empty(), "{row:?}");
        row.says("advice", &["enabled = false"]);
    }
    rows[0].says("reason", &["hostile create"]);
    rows[5].says("reason", &["hostile:0: ", "hostile launch"]);
    // One device of two, and an op that it does not offer, are remarks.
    let rows = Folder::hostile("remarks", &["open.first", "register.nothing"]).rows(0, &[]);
    rows[0].says("reason", &["number 0 does not answer"]);
    rows[1].says("reason", &["nothing was launched"]);
}

#[test]
fn files_that_are_none_fail_the_check() {
    let gone = provider("gone", Path::new("nowhere.so"), "");
    let text = provider("text", Path::new("ep.toml"), "");
    let off = provider("off", Path::new("nowhere.so"), "enabled = false\n");
    let folder = Folder::new("files", &[gone, text, off].concat());
    let rows = folder.rows(1, &[]);
    let brief: Vec<_> = rows.iter().map(Row::brief).collect();
    assert_eq!(brief, [("off", "skipped", ""), ("gone", "failed", "check"), ("text", "failed", "check")]);
    rows[0].says("reason", &["enabled = false"]);
    rows[1].says("reason", &["nowhere.so", "does not exist"]);
    rows[2].says("reason", &["not a shared library"]);
    rows[1].says("advice", &["path in ", "ep.toml"]);
    // What is not tried is no failure.
    folder.run(&["--provider", "off"]).exits(0).shows(&["off  skipped", "1 skipped\n"]);
}

#[test]
fn an_absent_provider_is_fine_unless_it_is_required() {
    let absent = |more| hostile("far", "count.unavailable", more);
    let row = &Folder::new("absent", &absent("")).rows(0, &[])[0];
    assert_eq!(row.brief(), ("far", "absent", "devices"));
    row.says("reason", &["there is no driver"]);
    assert!(row.0["advice"].is_null(), "{row:?}");
    let row = &Folder::new("required", &absent("required = true\n")).rows(1, &[])[0];
    assert_eq!(row.brief(), ("far", "absent", "devices"));
    row.says("advice", &["requires it", "`required`"]);
    // One that works may be required.
    Folder::new("required-good", &hostile("x", "", "required = true\n")).run(&[]).exits(0);
}

#[test]
fn what_it_prints_and_starts_neither_confuses_nor_outlives_it() {
    let folder = Folder::hostile("process", &["process.noise", "process.orphan", "process.pipe"]);
    let started = Instant::now();
    let run = Run::of(folder.command(&["--json"]).env(TAG, "orphan")).exits(1);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let rows = rows(&run.stdout);
    let brief: Vec<_> = rows.iter().map(Row::brief).collect();
    assert_eq!(brief[..2], [("process.noise", "ok", ""), ("process.orphan", "ok", "")], "{rows:?}");
    assert_eq!(brief[2], ("process.pipe", "failed", "create"), "{rows:?}");
    rows[2].says("reason", &["wrote to the doctor's pipe", "this is no message"]);
    assert_eq!(tagged(&format!("{TAG}=orphan")), Vec::<PathBuf>::new());
}

/// A provider that works and one that hangs both start processes in sessions of their own.
#[test]
fn what_leaves_the_process_group_does_not_outlive_it_either() {
    let folder = Folder::hostile("stray", &["process.stray", "process.lost"]);
    let run = Run::of(folder.command(&["--json", "--timeout", "1"]).env(TAG, "stray")).exits(1);
    let rows = rows(&run.stdout);
    let brief: Vec<_> = rows.iter().map(Row::brief).collect();
    assert_eq!(brief, [("process.stray", "ok", ""), ("process.lost", "hung", "create")], "{rows:?}");
    assert_eq!(tagged(&format!("{TAG}=stray")), Vec::<PathBuf>::new());
}

/// A shell that becomes `ep` leaves it children, which are not the provider's.
#[test]
fn children_that_it_had_before_are_left_alone() {
    let folder = Folder::hostile("before", &["process.stray"]);
    let mut sh = Command::new("sh");
    let script = "sleep 600 & echo $! > child; exec \"$0\" doctor > report";
    sh.args(["-c", script, EP]).current_dir(&folder.0).env("HOME", &folder.0).env_remove("EP_CONFIG");
    sh.stdout(Stdio::null()).stderr(Stdio::null());
    assert!(sh.env(TAG, "before").status().unwrap().success());
    let child = std::fs::read_to_string(folder.0.join("child")).unwrap();
    let left = tagged(&format!("{TAG}=before"));
    for process in &left {
        let pid = process.file_name().and_then(|pid| pid.to_str()).unwrap();
        Command::new("kill").args(["-9", pid]).status().unwrap();
    }
    assert!(left.contains(&Path::new("/proc").join(child.trim())), "{left:?}");
}

/// Processes with this in their environment. One that is ending has none any more.
fn tagged(variable: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let has = |path: &PathBuf| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|v| v == variable.as_bytes())
    };
    processes.filter(has).collect()
}

#[test]
fn what_is_found_in_folders_is_tried_or_told_why_not() {
    let config = "[search]\ndirs = [\"more\"]\ndeny = [\"*denied*\"]\n";
    let folder = Folder::new("search", &(provider("null", &built("ep_null"), "") + config));
    std::fs::create_dir(folder.0.join("more")).unwrap();
    for name in ["libother.so", "libdenied.so"] {
        std::fs::copy(built("ep_null"), folder.0.join("more").join(name)).unwrap();
    }
    std::fs::write(folder.0.join("more/libtext.so"), "text").unwrap();
    let run = folder.run(&[]).exits(1).shows(&[
        "[search] deny has `*denied*`",
        "other  ok  ",
        "text  failed  ",
        "to do without it, add its file to `deny`",
        "warning: `null` and `other` are the same provider, `null`, from two files",
    ]);
    assert!(!run.stdout.contains("libdenied.so  0."), "{}", run.stdout);
}

#[test]
fn rules_of_select_are_judged_without_loading_anything_here() {
    let good = provider("null", &built("ep_null"), "");
    let folder = Folder::new("select", &(good.clone() + "[select]\nsoftmaks = [\"null\"]\n"));
    folder.run(&[]).exits(0).shows(&["warning: ", "softmaks", "ep.toml:5:1"]);
    folder.write("ep.toml", &(good + "[select]\nsoftmax = [\"nul\"]\n"));
    let run = folder.run(&[]).exits(1).shows(&["null  ok"]);
    assert!(run.stderr.contains("did you mean `null`"), "{}", run.stderr);
}

#[test]
fn the_environment_and_the_place_of_the_config_are_told() {
    let folder = Folder::new("environment", &provider("null", &built("ep_null"), ""));
    let config = folder.0.join("ep.toml");
    let mut command = folder.command(&[]);
    command.current_dir("/").env("EP_CONFIG", &config).env("EP_CPU_ISA", "avx2");
    Run::of(&mut command).exits(0).shows(&["(named by EP_CONFIG)", "EP_CPU_ISA=avx2", "EP_CONFIG="]);
    let named = ["--config", config.to_str().unwrap()];
    Run::of(folder.command(&named).current_dir("/")).exits(0).shows(&["(named by --config)"]);
}

#[test]
fn wrong_command_lines_and_configs_have_the_codes_of_other_commands() {
    let folder = Folder::new("usage", "");
    for args in [["--timeout", "0"], ["--timeout", "soon"], ["--nothing", "x"]] {
        folder.run(&args).exits(2);
    }
    let run = folder.run(&["--provider", "x"]).exits(2);
    assert!(run.stderr.contains("no provider `x`; there are none"), "{}", run.stderr);
    let run = folder.run(&[]).exits(3);
    assert!(run.stderr.contains("names no provider") && run.stderr.contains("ep init"), "{}", run.stderr);
    assert!(folder.rows(3, &[]).is_empty());
    folder.run(&["--config", "nowhere.toml"]).exits(3);
    folder.write("ep.toml", "[[provider]]\nnme = 1\n");
    let run = folder.run(&[]).exits(1);
    assert!(run.stderr.contains("ep.toml:2:1"), "{}", run.stderr);
}
