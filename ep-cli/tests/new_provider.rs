//! `ep new-provider` as its users run it. That what it writes builds and loads is what `.ci/run vendor` proves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An empty folder of a test's own.
fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("new-provider-{test}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Exit code, standard output and standard error of `ep new-provider` in a folder.
fn new_provider(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ep"));
    let output = command.arg("new-provider").args(args).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn files(folder: &Path, below: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(folder, &path, found);
        } else {
            found.insert(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn it_writes_a_crate_against_this_checkout() {
    let folder = folder("writes");
    let (code, stdout, stderr) = new_provider(&folder, &["acme-npu"]);
    assert_eq!(code, 0, "{stderr}");
    let mut found = BTreeSet::new();
    files(&folder.join("acme-npu"), &folder.join("acme-npu"), &mut found);
    let wanted = [
        ".gitignore",
        "Cargo.toml",
        "README.md",
        "ep.toml",
        "libacme_npu.ep.toml",
        "src/device.rs",
        "src/lib.rs",
        "src/memory.rs",
        "src/relu.rs",
        "src/stream.rs",
        "tests/conformance.rs",
    ];
    assert_eq!(found, wanted.map(str::to_owned).into());
    assert!(wanted.iter().all(|path| stdout.contains(path)) && stdout.contains("next: cd "), "{stdout}");
    let cargo = std::fs::read_to_string(folder.join("acme-npu/Cargo.toml")).unwrap();
    let cargo: toml::Table = toml::from_str(&cargo).unwrap();
    let ep_core = Path::new(cargo["dependencies"]["ep-core"]["path"].as_str().unwrap());
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ep-core");
    assert_eq!(ep_core, own.canonicalize().unwrap());
}

#[test]
fn nothing_is_overwritten() {
    let folder = folder("exists");
    std::fs::create_dir(folder.join("acme")).unwrap();
    let (code, stdout, stderr) = new_provider(&folder, &["acme"]);
    assert!(code == 1 && stdout.is_empty() && stderr.contains("acme exists"), "{code} {stdout}{stderr}");
    assert_eq!(std::fs::read_dir(folder.join("acme")).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let folder = folder("refused");
    std::fs::write(folder.join("Cargo.toml"), "[package]\nname = \"other\"\n").unwrap();
    for (args, wanted, said) in [
        (&["Acme"][..], 2, "lower-case letter"),
        (&["acme", "--dir", "missing"], 1, "the folder missing does not exist"),
        (&["acme", "--ep-core", "missing"], 2, "missing: no Cargo.toml"),
        (&["acme", "--ep-core", "."], 2, "Cargo.toml is of `other`"),
        (&[], 2, "NAME"),
    ] {
        let (code, _, stderr) = new_provider(&folder, args);
        assert!(code == wanted && stderr.contains(said), "{args:?}: {code} {stderr}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}
