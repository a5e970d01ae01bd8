//! What `cargo xtask` does, callable from tests: everything that is generated from the description of the
//! binary contract in `ep-core/abi`.

mod change;
mod check;
mod contract;
mod emit_abi;
mod emit_c;
mod emit_docs;
mod emit_host;
mod emit_layout;
mod emit_ops;
mod expr;
mod model;

pub use change::Change;

use model::Abi;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The workspace's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent").to_owned()
}

/// The C header of the contract with some changes: `ep_plugin.h` as another version would have it. Its layout
/// checks, fingerprints and schemas follow the changes.
///
/// # Errors
/// A change that names something unknown or leaves an op incomplete, and changes that leave a struct of two fields of one
/// name, that contains itself, or that would need implicit padding, which no version of the contract may have.
pub fn header(changes: &[Change]) -> Result<String, String> {
    let mut abi = load(&root());
    changes.iter().try_for_each(|c| change::apply(&mut abi, c))?;
    abi.check()?;
    Ok(emit_c::header(&abi))
}

/// Writes every generated file that is not current, or with `check` only finds them. Returns their paths.
///
/// # Panics
/// When the description is wrong, a file cannot be read or written, or `rustfmt` is missing: this is a
/// developer's tool, and the message says which.
pub fn generate(check: bool) -> Vec<PathBuf> {
    let root = root();
    let mut stale = Vec::new();
    for (path, text) in outputs(&root) {
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        if !check {
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        stale.push(path.strip_prefix(&root).expect("below the root").to_owned());
    }
    stale
}

/// What is wrong with the contract: clauses without tests, tests that do not exist, special values and shapes that an op
/// does not answer for.
///
/// # Panics
/// As [`generate`].
pub fn contract_problems() -> Vec<String> {
    let root = root();
    contract::problems(&root, &load(&root))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    toml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn load(root: &Path) -> Abi {
    let dir = root.join("ep-core/abi");
    let mut abi: Abi = parse(&dir.join("abi.toml"));
    abi.enums = parse(&dir.join("enums.toml"));
    let entries = std::fs::read_dir(dir.join("ops")).expect("ep-core/abi/ops");
    let mut files: Vec<_> = entries.map(|e| e.expect("readable folder").path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "toml"));
    files.sort();
    abi.common = parse(&dir.join("contract.toml"));
    abi.ops = files.iter().map(|p| parse(p)).collect();
    abi
}

/// Formats Rust. Text that `rustfmt` refuses is kept as it is: the compiler will say what is wrong with it.
fn rustfmt(root: &Path, text: &str) -> String {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(root.join("rustfmt.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
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
    abi.check().unwrap_or_else(|e| panic!("ep-core/abi: {e}"));
    let core = root.join("ep-core");
    let src = core.join("src");
    let mut rust = vec![
        (src.join("abi/types.rs"), emit_abi::types(&abi)),
        (src.join("abi/tables.rs"), emit_abi::tables(&abi)),
        (src.join("abi/fingerprints.rs"), emit_abi::fingerprints(&abi)),
        (src.join("primitive/mod.rs"), emit_ops::module(&abi)),
        (src.join("primitive/enums.rs"), emit_ops::enums(&abi)),
        (core.join("tests/header/layout.rs"), emit_layout::layout(&abi)),
    ];
    for op in &abi.ops {
        rust.push((src.join(format!("primitive/{}.rs", op.name)), emit_ops::op(&abi, op)));
    }
    let mut files: Vec<_> = rust.into_iter().map(|(p, text)| (p, rustfmt(root, &text))).collect();
    files.push((core.join("include/ep_plugin.h"), emit_c::header(&abi)));
    files.push((root.join("bindings/c/include/ep_host.h"), emit_host::header(root)));
    files.push((root.join("docs/primitives.md"), emit_docs::primitives(&abi)));
    files.push((root.join("docs/contract.md"), contract::page(&abi)));
    files
}
