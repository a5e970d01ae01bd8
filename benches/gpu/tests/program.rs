//! The program, with the provider's plugin, on the fake driver.

use fakecuda::Fake;
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A provider's plugin. Test programs are in `<target>/<profile>/deps`, plugins one folder up.
fn plugin(provider: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().and_then(|deps| deps.parent()).unwrap();
    let path = folder.join(format!("libep_{provider}.so"));
    assert!(
        path.is_file(),
        "{} is not built; run `cargo build -p ep-{provider}-plugin` first",
        path.display()
    );
    path
}

/// How a run ended: whether well, its lines of JSON, and what it said of errors.
struct Ended {
    well: bool,
    lines: Vec<Value>,
    errors: String,
}

impl Ended {
    fn values(&self, key: &str) -> Vec<&str> {
        self.lines.iter().map(|line| line[key].as_str().unwrap_or("none")).collect()
    }
}

/// Runs the program where the driver shows so many devices.
fn run(name: &str, devices: u32, arguments: &[&str], input: &str) -> Ended {
    run_on(&["cuda"], name, devices, arguments, input)
}

/// The same with other providers.
fn run_on(providers: &[&str], name: &str, devices: u32, arguments: &[&str], input: &str) -> Ended {
    let config = PathBuf::from(format!("{}/{name}.toml", env!("CARGO_TARGET_TMPDIR")));
    let one = |provider: &&str| {
        format!("[[provider]]\nname = \"{provider}\"\npath = \"{}\"\n", plugin(provider).display())
    };
    std::fs::write(&config, providers.iter().map(one).collect::<String>()).unwrap();
    let fake = Fake::beside_the_test();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ep-gpu-bench"));
    for variable in ["EP_CUDA_DRIVER", "EP_CUDA_NVRTC", "EP_CUDA_CUBLASLT"] {
        command.env(variable, fake.path());
    }
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("EP_CUDA_CACHE", "off")
        .env("FAKECUDA_DEVICES", devices.to_string());
    command.arg("--config").arg(&config).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Dropped at once, which ends the input.
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Ended {
        well: output.status.success(),
        lines: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn the_cost_of_a_launch_has_a_line_for_each_way() {
    let ended = run("host", 2, &["--host", "--device", "cuda:1"], "");
    assert!(ended.well, "{}", ended.errors);
    let ways = [
        "launch",
        "launch in the current context",
        "launch by the driver",
        "replay of a graph of 20",
        "launch with checks",
    ];
    assert_eq!(ended.values("op"), ways);
    assert!(ended.lines.iter().all(|line| line["us"].as_f64().is_some_and(|us| us > 0.0)));
}

#[test]
fn copies_between_two_devices_go_in_both_directions() {
    let ended = run("two", 2, &["--peer-copy", "cuda:1", "--bytes", "65536,4096"], "");
    assert!(ended.well, "{}", ended.errors);
    assert_eq!(
        ended.values("shape"),
        [
            "65536 bytes, cuda:0 to cuda:1",
            "4096 bytes, cuda:0 to cuda:1",
            "20 times 4096 bytes, cuda:0 to cuda:1",
            "65536 bytes, cuda:1 to cuda:0",
            "4096 bytes, cuda:1 to cuda:0",
            "20 times 4096 bytes, cuda:1 to cuda:0",
        ]
    );
    for line in &ended.lines {
        let timed = ["us", "copy_us", "share"].iter().all(|key| line[key].as_f64().is_some_and(|x| x > 0.0));
        assert_eq!(timed, line["group"] == "peer_copy", "{line}");
    }
}

#[test]
fn one_device_is_told_what_is_missing() {
    let ended = run("one", 1, &["--peer-copy", "cuda:1"], "");
    assert!(!ended.well && ended.lines.is_empty());
    assert!(
        ended.errors.contains("--peer-copy needs two devices: no device `cuda:1`; there are cuda:0"),
        "{}",
        ended.errors
    );
}

#[test]
fn rows_come_from_standard_input_and_one_that_fails_does_not_end_the_others() {
    let row = |primitive: &str| {
        let tensor = |name: &str| {
            format!(r#"{{"name":"{name}","dtype":"f32","dims":[4,32],"content":"normal","shared":false}}"#)
        };
        format!(
            r#"{{"group":"g","op":"o","dtype":"f32","shape":"4x32","primitive":"{primitive}","selectors":{{}},
               "roles":{{"src":"f32","dst":"f32"}},"attrs":{{}},"limits":{{"cols":32}},"sizes":{{"rows":4,"cols":32,"inner":1}},"dims":{{}},
               "scalars":{{}},"inputs":[{}],"output":{},"shift":1,"bytes":1024,"flops":0}}"#,
            tensor("src"),
            tensor("dst")
        )
        .replace('\n', " ")
            + "\n"
    };
    let ended = run("rows", 1, &["--rows", "-"], &(row("softmin") + &row("softmax")));
    assert!(ended.well, "{}", ended.errors);
    let [failed, timed] = &ended.lines[..] else { panic!("{:?}", ended.lines) };
    assert!(failed["error"].as_str().is_some_and(|e| e.contains("softmin")) && failed["us"].is_null());
    assert!(timed["us"].as_f64().is_some_and(|us| us > 0.0), "{timed}");
    assert!(timed["by"].as_str().is_some_and(|by| by.starts_with("cuda/softmax: warp")), "{timed}");
}

/// The definitions are those of the provider that computes here.
#[test]
fn large_launches_are_what_the_cpu_computes() {
    let arguments = ["--large", "--large-bytes", "1100003", "--device", "cpu:0"];
    let ended = run_on(&["cpu"], "large-cpu", 1, &arguments, "");
    assert!(ended.well, "{}: {:?}", ended.errors, ended.lines);
    let families = ["abs", "cast", "fill", "pad", "permute: transpose", "gather", "softmax", "layer_norm"];
    assert!(families.iter().all(|op| ended.values("op").contains(op)), "{:?}", ended.values("op"));
    assert!(ended.lines.iter().all(|line| line["windows"].as_array().is_some_and(|w| w.len() >= 4)));
}

/// The fake's kernels compute nothing, and its driver copies and sets.
#[test]
fn large_launches_that_compute_nothing_are_wrong() {
    let ended = run("large", 1, &["--large", "--large-bytes", "1100003"], "");
    assert!(!ended.well && ended.errors.contains("32 of 35 launches on operands of 1100003 bytes are wrong"));
    for line in &ended.lines {
        let is_right = ["memset", "memcpy", "matmul"].contains(&line["op"].as_str().unwrap());
        assert_eq!(line["failed"] == 0, is_right, "{line}");
        let told = line["messages"].as_array().unwrap();
        assert!(told.iter().all(|m| m.as_str().is_some_and(|m| m.contains("] is "))), "{line}");
    }
}

/// The fake's kernels compute nothing, on both of its devices.
#[test]
fn random_launches_on_two_devices_that_do_the_same_are_well() {
    let arguments =
        ["--random", "1", "--against", "cuda:1", "--seed", "3", "--op", "permute", "--op", "cast"];
    let ended = run("random", 2, &arguments, "");
    let [line] = &ended.lines[..] else { panic!("{:?}: {}", ended.lines, ended.errors) };
    assert!(ended.well && line["failed"] == 0 && line["seed"] == 3, "{line}: {}", ended.errors);
    let launches = line["launches"].as_object().unwrap();
    assert_eq!(launches.keys().collect::<Vec<_>>(), ["cast", "permute"]);
    assert!(line["seconds"].as_f64().is_some_and(|seconds| seconds >= 1.0), "{line}");
}

#[test]
fn random_launches_that_compute_nothing_differ_from_those_of_the_cpu() {
    let arguments = ["--random", "60", "--against", "cpu:0"];
    let ended = run_on(&["cuda", "cpu"], "random-cpu", 1, &arguments, "");
    let [line] = &ended.lines[..] else { panic!("{:?}: {}", ended.lines, ended.errors) };
    // It ends long before the time is over.
    assert!(!ended.well && line["failed"] == 40, "{line}");
    assert!(ended.errors.contains("the devices differ after 40 of "), "{}", ended.errors);
    let told = line["messages"].as_array().unwrap();
    assert!(told.len() == 5 && told.iter().all(|m| m.as_str().is_some_and(|m| m.starts_with("turn "))));
}

#[test]
fn what_means_nothing_is_refused() {
    for (arguments, words) in [
        (&["--limits", "reduce"][..], "cuda:0 has no limits of `reduce`"),
        (&["--peer-copy", "cuda:0"], "cuda:0 twice"),
        (&["--host", "--device", "cuda:7"], "no device `cuda:7`"),
        (&["--peer-copy", "cuda:1", "--bytes", "0"], "invalid value '0'"),
        (&["--large", "--large-bytes", "1000"], "invalid value '1000'"),
        (&["--random", "1"], "--against <NAME>"),
        (&["--random", "1", "--against", "cuda:0"], "cuda:0 cannot be compared with itself"),
        (&["--random", "1", "--against", "cpu:0"], "--against: no device `cpu:0`"),
        (&["--op", "add", "--host"], "--random <SECONDS>"),
        (&["--launches"], "--rows <FILE>"),
        (
            &["--launches", "--rows", "-"],
            "--launches reads requests from standard input; name a file with --rows",
        ),
    ] {
        let ended = run("refused", 1, arguments, "");
        assert!(!ended.well && ended.errors.contains(words), "{arguments:?}: {}", ended.errors);
    }
}
