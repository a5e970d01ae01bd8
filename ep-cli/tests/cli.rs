//! The `ep` command as its users run it.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const EP: &str = env!("CARGO_BIN_EXE_ep");

/// A file that a whole build puts beside `ep`.
fn beside_ep(name: &str) -> PathBuf {
    let path = Path::new(EP).with_file_name(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo xtask test`, or `cargo build --workspace` first",
        path.display()
    );
    path
}

fn plugin() -> PathBuf {
    beside_ep("libep_cpu.so")
}

/// An empty folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{test}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    /// A config with the CPU provider.
    fn config(&self) -> PathBuf {
        self.config_for(&plugin(), "")
    }

    fn config_for(&self, library: &Path, more: &str) -> PathBuf {
        self.write("ep.toml", format!("[[provider]]\nname = \"cpu\"\npath = {library:?}\n{more}"))
    }

    /// The same file under another name, without copying where links work.
    fn link(&self, file: &Path, name: &str) -> PathBuf {
        let to = self.path(name);
        if std::fs::hard_link(file, &to).is_err() {
            std::fs::copy(file, &to).unwrap();
        }
        to
    }

    /// `ep` in this folder, with no config but what the test gives it.
    fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command.args(args).current_dir(&self.0).env("HOME", &self.0).stdin(Stdio::null());
        for variable in ["EP_CONFIG", "XDG_CONFIG_HOME", "NO_COLOR"] {
            command.env_remove(variable);
        }
        command
    }

    fn ep(&self, args: &[&str]) -> Run {
        Run::of(self.command(EP, args).output().unwrap())
    }
}

/// What a command printed and how it ended.
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn of(output: Output) -> Run {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        let run = Run {
            code: output.status.code().expect("no signal"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        };
        assert!(
            !run.stdout.contains('\x1b') && !run.stderr.contains('\x1b'),
            "colour in a pipe: {}",
            run.stdout
        );
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
        run
    }

    #[track_caller]
    fn fails(self, code: i32, parts: &[&str]) -> Run {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in: {}", self.stderr);
        }
        self
    }

    #[track_caller]
    fn works(self) -> Run {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    fn shows(self, parts: &[&str]) -> Run {
        for part in parts {
            assert!(self.stdout.contains(part), "no `{part}` in: {}", self.stdout);
        }
        self
    }

    #[track_caller]
    fn json(&self) -> Vec<Value> {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", self.stdout, self.stderr))
    }
}

#[track_caller]
fn assert_keys(value: &Value, keys: &[&str]) {
    let found: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(found, keys.iter().copied().collect());
}

#[test]
fn version_names_package_and_contract() {
    let run = Folder::new("version").ep(&["--version"]).works();
    let rest = run.stdout.strip_prefix(concat!("ep ", env!("CARGO_PKG_VERSION"), " (ABI ")).unwrap();
    let (abi, fingerprint) =
        rest.trim_end().strip_suffix(')').unwrap().split_once(", fingerprint 0x").unwrap();
    let expected = format!("{}.{}", ep_core::abi::ABI_MAJOR, ep_core::abi::ABI_MINOR);
    assert_eq!(abi, expected);
    assert_eq!(u64::from_str_radix(fingerprint, 16), Ok(ep_core::abi::ABI_FINGERPRINT));
}

#[test]
fn help_teaches() {
    let folder = Folder::new("help");
    let commands = ["demo", "list", "doctor", "query", "explain", "bench", "init", "completions"];
    folder.ep(&["--help"]).works().shows(&commands).shows(&[
        "Examples:",
        "Exit codes:",
        "EP_CONFIG",
        "NO_COLOR",
    ]);
    folder.ep(&["-h"]).works().shows(&commands).shows(&["Examples:"]);
    for command in commands {
        folder.ep(&[command, "--help"]).works().shows(&["Usage: ep", "--config"]);
    }
    folder.ep(&[]).fails(2, &["Usage: ep"]);
    folder.ep(&["query", "--opp", "x"]).fails(2, &["--op"]);
    folder.ep(&["bench"]).fails(2, &["--boundary"]);
    folder.ep(&["explain", "--op", "x", "--limit", "cols"]).fails(2, &["name=value"]);
}

#[test]
fn completions_for_every_shell() {
    let folder = Folder::new("completions");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        folder.ep(&["completions", shell]).works().shows(&["explain", "boundary"]);
    }
    folder.ep(&["completions", "dos"]).fails(2, &["dos"]);
}

#[test]
fn a_missing_config_says_what_mends_it() {
    let folder = Folder::new("missing-config");
    for command in
        [["list"].as_slice(), &["demo"], &["query"], &["explain", "--op", "cast"], &["bench", "--boundary"]]
    {
        folder.ep(command).fails(3, &["no config", "`ep init`"]);
    }
    folder.ep(&["list", "--config", "no/such.toml"]).fails(3, &["no/such.toml", "`ep init --output /"]);
    let by_variable = folder.command(EP, &["list"]).env("EP_CONFIG", "/no/such.toml").output().unwrap();
    Run::of(by_variable).fails(3, &["/no/such.toml", "EP_CONFIG", "`ep init --output /no/such.toml`"]);
}

#[test]
fn a_malformed_config_is_shown_with_its_line() {
    let folder = Folder::new("malformed");
    folder.write("ep.toml", "[[provider]]\nname = \"cpu\"\npath = libep_cpu.so\n");
    folder.ep(&["list"]).fails(1, &["ep.toml:3", "path = libep_cpu.so"]);
    folder.write("ep.toml", "[[provider]]\nname = \"cpu\"\npath = \"x.so\"\npriorty = 3\n");
    folder.ep(&["demo"]).fails(1, &["ep.toml:4", "priorty"]);
}

#[test]
fn where_nothing_loads_the_message_says_why_and_what_mends_it() {
    let folder = Folder::new("nothing-loads");
    folder.write("ep.toml", "# nothing\n");
    folder.ep(&["query"]).fails(3, &["names none", "ep init --output OTHER.toml", "ep.toml"]);
    folder.write("text.so", "this is no library");
    folder.config_for(&folder.path("text.so"), "");
    let parts = ["no provider is loaded"];
    let run = folder.ep(&["demo"]).fails(3, &parts).fails(3, &["text.so"]);
    // The config is somebody's work: nothing that is said here replaces it.
    assert!(!run.stderr.contains("init"), "{}", run.stderr);
    folder.ep(&["list"]).fails(3, &parts).shows(&["cpu", "failed", "text.so"]);
    let rows = folder.ep(&["list", "--json"]).fails(3, &parts).json();
    assert_eq!(rows[0]["status"], "failed");
    folder.config_for(&folder.path("text.so"), "required = true\n");
    folder.ep(&["query"]).fails(3, &["required", "text.so"]);
    folder.ep(&["list"]).fails(3, &parts).shows(&["failed"]);
    folder.config_for(Path::new("target/debug/libacme.so"), "");
    let parts = ["libacme.so", "does not exist; build it first (`cargo build`)", "CARGO_TARGET_DIR"];
    folder.ep(&["query"]).fails(3, &parts);
}

#[test]
fn mistakes_in_select_and_devices_are_told() {
    let folder = Folder::new("select");
    folder.config_for(&plugin(), "[select]\nsoftmaks = [\"cpu\"]\n");
    let parts = ["ep.toml:5:1: [select] softmaks: ", "`softmaks`"];
    let run = folder.ep(&["list"]).works().shows(&parts).shows(&["warning: "]);
    assert_eq!(run.stderr, "");
    for command in
        [["list", "--json"].as_slice(), &["query", "--op", "cast"], &["support", "--device", "cpu"]]
    {
        folder.ep(command).works().fails(0, &parts);
    }
    folder.config_for(&plugin(), "[select]\nsoftmax = [\"cpuu\"]\n");
    for command in ["list", "query"] {
        let parts = ["ep.toml:5:12: [select] softmax", "`cpuu`; did you mean `cpu`?", "softmax = [\"cpuu\"]"];
        folder.ep(&[command]).fails(1, &parts);
    }
    folder.config_for(&plugin(), "devices = [\"gpu:*\", \"7\"]\n");
    folder.ep(&["query"]).fails(3, &["no `gpu:*`, `7` among cpu:0; correct the patterns"]);
}

#[test]
fn verbose_prints_the_config_and_quiet_hides_warnings() {
    let folder = Folder::new("verbose");
    folder.write("text.so", "this is no library");
    let second = "[[provider]]\nname = \"bad\"\npath = \"text.so\"\n";
    let config = folder.config_for(&plugin(), second);
    let run = folder.ep(&["query", "--op", "cast", "-v"]).works();
    assert!(run.stderr.contains(config.to_str().unwrap()), "{}", run.stderr);
    let run = folder.ep(&["query", "--op", "cast"]).works();
    assert!(run.stderr.contains("text.so"), "{}", run.stderr);
    assert!(!run.stderr.contains(config.to_str().unwrap()), "{}", run.stderr);
    let run = folder.ep(&["query", "--op", "cast", "-q"]).works();
    assert_eq!(run.stderr, "");
    // Here the report is on standard output, so no warning repeats it.
    let run = folder.ep(&["list"]).works().shows(&["bad", "failed", "text.so", "loaded"]);
    assert_eq!(run.stderr, "");
}

#[test]
fn list_has_its_keys() {
    let folder = Folder::new("list");
    let config = folder.config();
    let elsewhere = Folder::new("list-elsewhere");
    let run = elsewhere.ep(&["list", "--json", "--config", config.to_str().unwrap()]).works();
    let rows = run.json();
    assert_eq!(rows.len(), 1);
    assert_keys(&rows[0], &["provider", "version", "path", "status", "reason", "devices"]);
    assert_eq!(rows[0]["provider"], "cpu");
    assert_eq!(rows[0]["status"], "loaded");
    assert_eq!(rows[0]["path"], plugin().to_str().unwrap());
    assert!(rows[0]["version"].as_str().is_some_and(|v| !v.is_empty()));
    let device = &rows[0]["devices"][0];
    assert_keys(device, &["id", "name", "kind", "uuid", "memory_bytes", "features"]);
    assert_eq!((&device["id"], &device["kind"]), (&"cpu:0".into(), &"cpu".into()));
    assert!(device["memory_bytes"].as_u64().is_some_and(|b| b > 1 << 20), "{device}");
    assert!(device["features"].is_object());
    folder.ep(&["list"]).works().shows(&["PROVIDER", "cpu", "loaded", "cpu:0", plugin().to_str().unwrap()]);
}

#[test]
fn query_has_its_keys_and_filters() {
    let folder = Folder::new("query");
    folder.config();
    let rows = folder.ep(&["query", "--json"]).works().json();
    for row in &rows {
        assert_keys(row, &["provider", "device", "op", "selectors", "dtypes", "predicate", "priority"]);
        assert_eq!((&row["provider"], &row["device"]), (&"cpu".into(), &"cpu:0".into()));
        assert!(row["selectors"].is_object() && row["dtypes"].is_object() && row["priority"].is_i64());
    }
    let relu = |r: &&Value| r["selectors"]["op"] == "relu" && r["dtypes"]["src"] == "f32";
    assert!(rows.iter().any(|r| relu(&r) && r["op"] == "elementwise_unary"));

    let args = ["query", "--json", "--op", "softmax", "--dtype", "f16", "--device", "cpu"];
    let some = folder.ep(&args).works().json();
    let expected: Vec<&Value> = rows
        .iter()
        .filter(|r| r["op"] == "softmax" && r["dtypes"].as_object().unwrap().values().any(|d| d == "f16"))
        .collect();
    assert!(!some.is_empty());
    assert_eq!(some.iter().collect::<Vec<_>>(), expected);

    folder.ep(&["query"]).works().shows(&["cpu:0", "elementwise_unary", "bf16", "c128"]);
    folder.ep(&["query", "--op", "elementwise_unary"]).works().shows(&["relu", "src = dst: ", "cpu/"]);
    folder.ep(&["query", "--op", "sofmax"]).fails(2, &["sofmax", "softmax"]);
    folder.ep(&["query", "--dtype", "float"]).fails(2, &["`float`: did you mean `f32`?", "complex64"]);
    folder.ep(&["query", "--op", "relu"]).fails(2, &["--op elementwise_unary --selector op=relu"]);
    folder.ep(&["query", "--device", "cpu:7"]).fails(3, &["cpu:7", "cpu:0"]);
    // So does the table of what is supported.
    let support = ["support", "--device", "cpu", "--op"];
    folder.ep(&[support.as_slice(), &["nope"]].concat()).fails(2, &["`nope`", "`ep query` lists"]);
    folder.ep(&[support.as_slice(), &["arange"]].concat()).works().shows(&["arange,data=f32,yes"]);
}

/// The numbers of one op in the table of `ep query`, by dtype.
fn counts(table: &str, op: &str) -> BTreeMap<String, String> {
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut lines = table.lines().map(cells);
    let head = lines.next().unwrap();
    let row = lines.find(|row| row.first().is_some_and(|first| first == op)).unwrap();
    head.into_iter().zip(row).skip(1).collect()
}

#[test]
fn the_table_of_a_query_counts_every_role() {
    let folder = Folder::new("query-roles");
    folder.config();
    let run = folder.ep(&["query", "--device", "cpu"]).works().shows(&["the dtype is that of some role"]);
    for op in ["gather", "batch_gather", "scatter_add", "one_hot", "where"] {
        let counts = counts(&run.stdout, op);
        for dtype in ["f16", "bf16", "f32", "f64", "i32", "i64"] {
            assert!(counts[dtype].parse::<u32>().is_ok_and(|n| n > 0), "{op} {dtype}: {counts:?}");
        }
    }
    assert_eq!(counts(&run.stdout, "scatter_add")["bool"], ".");
    assert_eq!(counts(&run.stdout, "softmax")["i32"], ".");
    // Of one dtype there is one column.
    let run = folder.ep(&["query", "--device", "cpu", "--dtype", "f32"]).works();
    let gather = counts(&run.stdout, "gather");
    assert_eq!(gather.into_iter().collect::<Vec<_>>(), [("f32".to_owned(), "3".to_owned())]);
    assert!(!run.stdout.contains("memcpy"), "{}", run.stdout);
}

#[test]
fn an_empty_query_names_the_command_that_says_why() {
    let folder = Folder::new("query-empty");
    let config = folder.config();
    let null = plugin().with_file_name("libep_null.so");
    folder.config_for(&plugin(), &format!("[[provider]]\nname = \"null\"\npath = {null:?}\n"));
    // What is printed is run as it is.
    let follow = |run: &Run| {
        let line = run.stdout.lines().find_map(|l| l.trim().strip_prefix("ep ")).expect("a command");
        folder.ep(&line.split(' ').collect::<Vec<_>>())
    };
    let run = folder.ep(&["query", "--op", "softmax", "--dtype", "i32"]).works();
    assert!(
        run.stdout.contains("\n  ep explain --op softmax --dtype src=i32 --dtype dst=i32\n"),
        "{}",
        run.stdout
    );
    follow(&run).fails(5, &[]).shows(&["needs src in [f16, bf16, f32, f64]", "nearest", "float_only"]);
    let config = config.to_str().unwrap();
    let run = folder.ep(&["query", "--op", "gather", "--device", "null", "--config", config]).works();
    let command = format!(
        "ep --config {config} explain --op gather --dtype indices=f32 --dtype data=f32 --device null"
    );
    assert!(run.stdout.contains(&command), "{}", run.stdout);
    follow(&run).fails(5, &[]).shows(&["no provider on this device registers the op"]);
    let run = folder.ep(&["query", "--op", "memcpy", "--dtype", "f32"]).works();
    assert!(run.stdout.contains("takes bytes of every dtype: ask without --dtype f32"), "{}", run.stdout);
    folder.ep(&["query", "--dtype", "f8e4m3"]).works().shows(&["f8e4m3", "without --dtype"]);
    folder.ep(&["query", "--device", "null"]).works().shows(&["device `null`", "`ep list`"]);
    assert_eq!(folder.ep(&["query", "--dtype", "f8e4m3", "--json"]).works().json(), [] as [Value; 0]);
}

#[test]
fn explain_says_what_does_not_fit_and_what_would() {
    let folder = Folder::new("explain-misfit");
    folder.config();
    let softmax = ["explain", "--op", "softmax", "--dtype", "src=f32", "--dtype", "dst=i32"];
    folder.ep(&softmax).fails(5, &[]).shows(&[
        "cpu/softmax: needs dst in [f16, bf16, f32, f64], but dst is i32\n",
        "nearest that is covered: softmax(src f32, dst f32)\n    as flags: --op softmax --dtype src=f32 --dtype dst=f32\n",
        "no meaning for this: float_only, the function is defined on floats\n",
    ]);
    let rows = folder.ep(&[softmax.as_slice(), &["--json"]].concat()).fails(5, &[]).json();
    let row = &rows[0];
    assert_keys(&row["reason"], &["code", "meaning"]);
    assert_eq!(row["reason"]["code"], "float_only");
    let flags = ["--op", "softmax", "--dtype", "src=f32", "--dtype", "dst=f32"];
    assert_eq!(row["nearest_flags"], serde_json::json!(flags));
    let mismatch = &row["candidates"][0]["mismatches"][0];
    assert_keys(mismatch, &["kind", "fields", "found", "allowed"]);
    assert_eq!(
        *mismatch,
        serde_json::json!({
            "kind": "dtype", "fields": ["dst"], "found": ["i32"], "allowed": [["f16"], ["bf16"], ["f32"], ["f64"]],
        })
    );
    // Each factory has a reason of its own, and the nearest one comes first.
    let relu = ["explain", "--op", "elementwise_unary", "--selector", "op=relu", "--dtype", "src=i8"];
    let rows = folder.ep(&[relu.as_slice(), &["--dtype", "dst=f32", "--json"]].concat()).fails(5, &[]).json();
    let candidates = rows[0]["candidates"].as_array().unwrap();
    assert!(candidates.len() > 3);
    assert_eq!(candidates[0]["verdict"], "needs src in [f32] or dst in [i8], but src is i8 and dst is f32");
    for candidate in candidates {
        assert_eq!(candidate["kind"], "not_covered");
        assert!(candidate["verdict"].as_str().unwrap().starts_with("needs "), "{candidate}");
        assert!(!candidate["mismatches"].as_array().unwrap().is_empty(), "{candidate}");
    }
    assert!(candidates[1..].iter().all(|c| c["mismatches"][0]["kind"] == "selector"));
}

#[test]
fn explain_tells_the_chosen_and_the_nearest() {
    let folder = Folder::new("explain");
    folder.config();
    let relu = ["explain", "--op", "elementwise_unary", "--selector", "op=relu", "--dtype", "src=f32"];
    let args = [relu.as_slice(), &["--dtype", "dst=f32"]].concat();
    folder.ep(&args).works().shows(&["op=relu", "on cpu:0: cpu/", "chosen", "it computes by: "]);
    let rows = folder.ep(&[args.as_slice(), &["--json", "--device", "cpu"]].concat()).works().json();
    let keys = ["device", "request", "chosen", "description", "error", "candidates", "reason", "nearest"];
    assert_keys(&rows[0], &[&keys[..], &["nearest_flags"]].concat());
    let keys = ["provider", "factory", "verdict", "kind", "mismatches", "false_clauses"];
    assert_keys(&rows[0]["candidates"][0], &keys);
    assert_eq!((&rows[0]["candidates"][0]["kind"], &rows[0]["reason"]), (&"chosen".into(), &Value::Null));
    assert!(rows[0]["chosen"].as_str().is_some_and(|c| c.starts_with("cpu/")));
    assert!(rows[0]["description"].as_str().is_some_and(|d| !d.is_empty()));
    assert_eq!((&rows[0]["error"], &rows[0]["nearest"]), (&Value::Null, &Value::Null));

    let args = [relu.as_slice(), &["--dtype", "dst=bool"]].concat();
    folder.ep(&args).fails(5, &[]).shows(&["nothing matches", "nearest that is covered"]);
    let rows = folder.ep(&[args.as_slice(), &["--json"]].concat()).fails(5, &[]).json();
    assert_eq!(rows[0]["chosen"], Value::Null);
    assert!(rows[0]["nearest"].is_string());

    folder.ep(&relu).fails(2, &["--dtype dst=DTYPE"]);
    let args = [relu.as_slice(), &["--dtype", "src=f16"]].concat();
    folder.ep(&args).fails(2, &["--dtype src=... is given twice"]);
    folder.ep(&["explain", "--op", "sofmax"]).fails(2, &["softmax"]);
    folder.ep(&["explain", "--op", "transpose"]).fails(2, &["here it is `permute`: ask for `--op permute`"]);
    folder.ep(&["explain", "--op", "conv"]).fails(2, &["no name is similar", "`ep query` lists all ops"]);
    folder.ep(&["explain", "--op", "cast", "--dtype", "from=f32"]).fails(2, &["from", "src"]);
    folder.ep(&["explain", "--op", "cast", "--dtype", "src=float"]).fails(2, &["float"]);
    folder.ep(&["explain", "--op", "elementwise_unary", "--selector", "op=relo"]).fails(2, &["relo", "relu"]);
    folder.ep(&["explain", "--op", "softmax", "--limit", "rws=1"]).fails(2, &["rws", "cols"]);
}

#[test]
fn demo_classifies_the_digits() {
    let folder = Folder::new("demo");
    folder.config();
    let rows = folder.ep(&["demo", "--json"]).works().json();
    assert_eq!(rows.len(), 1);
    let keys = ["device", "correct", "total", "max_abs_diff", "images_per_second", "factories"];
    assert_keys(&rows[0], &keys);
    assert_eq!((&rows[0]["device"], &rows[0]["total"]), (&"cpu:0".into(), &540.into()));
    assert_eq!(rows[0]["correct"], 528);
    assert!(rows[0]["max_abs_diff"].as_f64().is_some_and(|d| d > 0.0 && d < 1e-5), "{}", rows[0]);
    assert!(rows[0]["images_per_second"].as_f64().is_some_and(|n| n > 1.0 && n.is_finite()));
    let ops = ["broadcast_elementwise_binary", "cast", "elementwise_unary", "matmul", "softmax"];
    assert_keys(&rows[0]["factories"], &ops);
    assert!(rows[0]["factories"].as_object().unwrap().values().all(|p| p == "cpu"));
    let shown = ["528 of 540", "libep_cpu.so", "cpu/", "█", "labelled", "images per second"];
    folder.ep(&["demo", "--device", "cpu:0"]).works().shows(&shown);
    folder.ep(&["demo", "--device", "npu"]).fails(3, &["npu", "cpu:0"]);
}

#[test]
fn the_demo_leaves_out_devices_without_its_ops() {
    let folder = Folder::new("demo-beside");
    let null = plugin().with_file_name("libep_null.so");
    folder.config_for(&plugin(), &format!("[[provider]]\nname = \"null\"\npath = {null:?}\n"));
    let run = folder.ep(&["demo", "--json"]).works();
    assert!(run.stderr.contains("null:0: cast(src u8, dst f32)"), "{}", run.stderr);
    let rows = run.json();
    assert_eq!(rows.iter().map(|r| &r["device"]).collect::<Vec<_>>(), ["cpu:0"]);
    // It was asked for, or there is no other: then it is an error.
    folder.ep(&["demo", "--device", "null"]).fails(1, &["null:0", "nothing matches"]);
    folder.write("ep.toml", format!("[[provider]]\nname = \"null\"\npath = {null:?}\n"));
    folder.ep(&["demo"]).fails(1, &["null:0", "nothing matches"]);
}

/// Copies the demo's data.
fn copy_data(folder: &Folder) -> [PathBuf; 2] {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/digits");
    // Read and written, so that the copies are writable although the originals are not.
    ["mlp.safetensors", "test.safetensors"].map(|f| folder.write(f, std::fs::read(source.join(f)).unwrap()))
}

/// The place of a tensor's data in a file.
fn place_of(bytes: &[u8], tensor: &str) -> usize {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    8 + length + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize
}

#[test]
fn one_changed_weight_or_label_changes_the_result() {
    let folder = Folder::new("changed-data");
    folder.config();
    let [model, test] = copy_data(&folder);
    let demo = || folder.ep(&["demo", "--json", "--data", "."]);
    let unchanged = demo().works().json();
    assert_eq!(unchanged[0]["correct"], 528);

    let good = std::fs::read(&model).unwrap();
    let mut bytes = good.clone();
    let at = place_of(&bytes, "layer1.weight");
    let weight = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 4].copy_from_slice(&(weight + 0.5).to_le_bytes());
    std::fs::write(&model, &bytes).unwrap();
    let run = demo().fails(4, &["cpu:0", "1e-5"]);
    assert!(run.json()[0]["max_abs_diff"].as_f64().unwrap() >= 1e-5);
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&model, &bytes).unwrap();
    assert_eq!(demo().fails(4, &[]).json()[0]["max_abs_diff"], Value::Null);
    std::fs::write(&model, &good).unwrap();

    let mut bytes = std::fs::read(&test).unwrap();
    let at = place_of(&bytes, "labels");
    bytes[at] = (bytes[at] + 1) % 10;
    std::fs::write(&test, &bytes).unwrap();
    let run = demo().fails(4, &["527 of 540"]);
    assert_eq!(run.json()[0]["correct"], 527);
    bytes[at] = 10;
    std::fs::write(&test, &bytes).unwrap();
    demo().fails(1, &["test.safetensors", "label 10"]);
    std::fs::write(&test, &bytes[..bytes.len() / 2]).unwrap();
    demo().fails(1, &["test.safetensors"]);
    std::fs::remove_file(&test).unwrap();
    demo().fails(1, &["test.safetensors"]);
}

#[test]
fn without_the_library_the_demo_fails_and_names_it() {
    let folder = Folder::new("renamed");
    let library = folder.link(&plugin(), "libep_cpu.so");
    folder.config_for(Path::new("libep_cpu.so"), "");
    folder.ep(&["demo", "--json"]).works();
    std::fs::rename(&library, folder.path("libep_cpu.so.away")).unwrap();
    folder.ep(&["demo"]).fails(3, &[library.to_str().unwrap(), "does not exist; build"]);
}

#[test]
fn the_command_contains_no_provider() {
    let contains =
        |path: &Path, text: &str| String::from_utf8_lossy(&std::fs::read(path).unwrap()).contains(text);
    // As a name in messages, and as it is mangled in symbols. The plugin shows that the search can find it.
    assert!(contains(&plugin(), "6ep_cpu"));
    for text in ["6ep_cpu", "ep_cpu::"] {
        assert!(!contains(Path::new(EP), text), "{text}");
    }
}

#[test]
fn init_writes_a_config_that_works() {
    let folder = Folder::new("init");
    let ep = folder.link(Path::new(EP), "ep");
    let init = |args: &[&str]| Run::of(folder.command(&ep, &[&["init"], args].concat()).output().unwrap());
    init(&[]).fails(3, &["no provider stands beside", "cargo build"]);
    assert!(!folder.path("ep.toml").exists());

    folder.link(&plugin(), "libep_cpu.so");
    folder.write("libtext.so", "this is no library");
    init(&[]).works().shows(&["found", "libep_cpu.so", "skipped", "libtext.so", "wrote ep.toml", "ep list"]);
    let text = std::fs::read_to_string(folder.path("ep.toml")).unwrap();
    assert!(text.contains("path = \"libep_cpu.so\"") && text.contains("# priority"), "{text}");
    let rows = folder.ep(&["list", "--json"]).works().json();
    assert_eq!(rows[0]["path"], folder.path("libep_cpu.so").to_str().unwrap());

    folder.write("ep.toml", "mine");
    init(&[]).fails(1, &["ep.toml exists", "--force"]);
    assert_eq!(std::fs::read(folder.path("ep.toml")).unwrap(), b"mine");
    init(&["--force"]).works();
    std::fs::create_dir(folder.path("sub")).unwrap();
    init(&["--output", "sub/other.toml"]).works().shows(&["--config sub/other.toml"]);
    folder.ep(&["list", "--config", "sub/other.toml"]).works().shows(&["loaded"]);
    init(&["--output", "none/other.toml"]).fails(1, &["none/other.toml"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = Folder::new("pipe");
    folder.config();
    for args in [["query", "--json"].as_slice(), &["list"], &["completions", "bash"]] {
        let mut child =
            folder.command(EP, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let run = Run::of(child.wait_with_output().unwrap()).works();
        assert_eq!(run.stderr, "", "{args:?}");
    }
}

#[test]
fn bench_runs_the_program_beside() {
    let folder = Folder::new("bench");
    folder.config();
    let ep = folder.link(Path::new(EP), "ep");
    let bench = || Run::of(folder.command(&ep, &["bench", "--boundary", "--json"]).output().unwrap());
    bench().fails(1, &["ep-boundary is missing", "cargo build --release -p ep-benches"]);
    folder.link(&beside_ep("ep-boundary"), "ep-boundary");
    let rows = bench().works().json();
    let names = [
        "launch.plugin",
        "launch.static",
        "launch.fn_pointer",
        "launch.safe",
        "lookup.cached",
        "lookup.cold",
        "load",
        "parallel_for.warm",
        "parallel_for.idle",
    ];
    assert_eq!(rows.iter().map(|r| r["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    for row in &rows {
        assert_keys(row, &["name", "median_ns", "min_ns", "runs"]);
        let (median, min) = (row["median_ns"].as_f64().unwrap(), row["min_ns"].as_f64().unwrap());
        assert!(0.0 < min && min <= median && row["runs"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
fn bench_of_packing_runs_another_program_beside() {
    let folder = Folder::new("bench-prepack");
    folder.config();
    let ep = folder.link(Path::new(EP), "ep");
    let bench = |args: &[&str]| {
        let args = [&["bench", "--prepack", "--quick"], args].concat();
        Run::of(folder.command(&ep, &args).output().unwrap())
    };
    bench(&[]).fails(1, &["ep-prepack is missing", "cargo build --release -p ep-benches"]);
    folder.link(&beside_ep("ep-prepack"), "ep-prepack");
    bench(&["--device", "nope"]).fails(3, &["nope", "cpu:0"]);
    bench(&["--threads", "x"]).fails(2, &["invalid value"]);
}

#[test]
fn an_exit_code_outlives_the_reader_of_standard_error() {
    let folder = Folder::new("no-reader");
    for (args, code) in [(&["list"][..], 3), (&["new-provider", "1bad"], 2)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = folder.command(EP, args).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}
