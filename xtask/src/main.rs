//! Contributors' commands: `cargo xtask --help`.

mod emit_abi;
mod emit_ops;
mod expr;
mod model;

use clap::{Parser, Subcommand};
use model::Abi;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(Parser)]
#[command(about = "Contributors' commands")]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Writes everything that is generated from ep-core/abi.
    Gen {
        /// Only checks that the files are current; exit code 1 and a list if not.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent").to_owned();
    match Cli::parse().command {
        Cmd::Gen { check } => generate(&root, check),
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    toml::from_str(&read(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn load(root: &Path) -> Abi {
    let dir = root.join("ep-core/abi");
    let mut abi: Abi = parse(&dir.join("abi.toml"));
    abi.enums = parse(&dir.join("enums.toml"));
    let entries = std::fs::read_dir(dir.join("ops")).expect("ep-core/abi/ops");
    let mut files: Vec<_> = entries.map(|e| e.expect("readable folder").path()).collect();
    files.sort();
    abi.ops = files.iter().map(|p| parse(p)).collect();
    abi
}

fn rustfmt(root: &Path, text: &str) -> String {
    use std::io::Write;
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(root.join("rustfmt.toml"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("rustfmt starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = text.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let out = child.wait_with_output().expect("rustfmt ends");
    writer.join().expect("writer").expect("rustfmt reads");
    if !out.status.success() {
        return text.to_owned();
    }
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn outputs(root: &Path) -> Vec<(PathBuf, String)> {
    let abi = load(root);
    let src = root.join("ep-core/src");
    let mut files = vec![
        (src.join("abi/types.rs"), emit_abi::types(&abi)),
        (src.join("abi/tables.rs"), emit_abi::tables(&abi)),
        (src.join("abi/fingerprints.rs"), emit_abi::fingerprints(&abi)),
        (src.join("primitive/mod.rs"), emit_ops::module(&abi)),
        (src.join("primitive/enums.rs"), emit_ops::enums(&abi)),
    ];
    for op in &abi.ops {
        files.push((src.join(format!("primitive/{}.rs", op.name)), emit_ops::op(&abi, op)));
    }
    files.into_iter().map(|(p, text)| (p, rustfmt(root, &text))).collect()
}

fn generate(root: &Path, check: bool) -> ExitCode {
    let mut stale = Vec::new();
    for (path, text) in outputs(root) {
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        if !check {
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        stale.push(path);
    }
    for path in &stale {
        println!("{} {}", if check { "stale:" } else { "wrote" }, path.strip_prefix(root).unwrap_or(path).display());
    }
    if check && !stale.is_empty() {
        println!("run `cargo xtask gen` and commit the result");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
