//! Commands that build and run the rest of the workspace.

use serde::Deserialize;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The cargo that runs this program.
fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command
}

/// Prints a command and runs it.
fn run(command: &mut Command) -> Result<(), String> {
    let shown = announce(command);
    let status = command.status().map_err(|e| format!("cannot run `{shown}`: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed: {status}")) }
}

fn announce(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default().to_string_lossy();
    let args = command.get_args().map(|a| a.to_string_lossy());
    let shown = std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ");
    eprintln!("$ {shown}");
    shown
}

/// A line of what cargo prints with `--message-format=json`.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// Builds the `ep` command and the CPU provider for release; returns the path of `ep`, wherever the target
/// folder is.
fn build_release() -> Result<PathBuf, String> {
    let mut build = cargo();
    build.args(["build", "--release", "-p", "ep-cli", "-p", "ep-cpu-plugin"]);
    let shown = announce(&build);
    build.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let failed = |e: &dyn std::fmt::Display| format!("`{shown}` failed: {e}");
    let mut child = build.spawn().map_err(|e| failed(&e))?;
    let stdout = child.stdout.take().ok_or_else(|| failed(&"it has no output"))?;
    let mut ep = None;
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|e| failed(&e))?;
        let message: Message = serde_json::from_str(&line).map_err(|e| failed(&e))?;
        let is_ep = |p: &PathBuf| p.file_stem().is_some_and(|name| name == "ep");
        ep = message.executable.filter(is_ep).or(ep);
    }
    let status = child.wait().map_err(|e| failed(&e))?;
    if !status.success() {
        return Err(failed(&status));
    }
    ep.ok_or_else(|| failed(&"cargo names no executable `ep`"))
}

/// `cargo xtask demo`.
pub fn demo(args: &[String]) -> Result<(), String> {
    let ep = build_release()?;
    let config = ep.with_file_name("ep.toml");
    run(Command::new(&ep).args(["init", "--force", "--output"]).arg(&config))?;
    run(Command::new(&ep).arg("demo").arg("--config").arg(&config).args(args))
}

/// `cargo xtask test`.
pub fn test(filters: &[String]) -> Result<(), String> {
    // Tests load the plugins that this builds, side by side with the tests.
    run(cargo().args(["build", "--workspace", "--lib", "--bins", "--tests"]))?;
    let nextest = cargo().args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if nextest.is_ok_and(|status| status.success()) {
        // A filter that only doc tests match is no error.
        run(cargo().args(["nextest", "run", "--workspace", "--no-tests=pass"]).args(filters))?;
    } else {
        eprintln!(
            "cargo-nextest is not installed: using `cargo test`, which runs one test program at a time"
        );
        run(cargo().args(["test", "--workspace", "--lib", "--bins", "--tests", "--"]).args(filters))?;
    }
    run(cargo().args(["test", "--workspace", "--doc", "--"]).args(filters))
}
