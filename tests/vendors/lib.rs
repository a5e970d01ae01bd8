//! Getting at the plugins that vendors copy.

use ep_registry::Runtime;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A temporary folder that is removed at the end of the test.
///
/// # Panics
/// When none can be made.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("the temporary folder is writable")
}

/// Builds `libNAME.so` of `plugins/c-example` into a folder, with the Makefile that vendors copy.
///
/// # Panics
/// When `make` or a C compiler is missing, or the compiler has a warning.
pub fn make(folder: &Path, name: &str) -> PathBuf {
    make_in(&root().join("plugins/c-example"), folder, name)
}

/// The same of a copy of that folder.
fn make_in(source: &Path, folder: &Path, name: &str) -> PathBuf {
    let library = folder.join(format!("lib{name}.so"));
    let output = Command::new("make")
        .arg("-C")
        .arg(source)
        .arg(format!("INCLUDE={}", root().join("ep-core/include").display()))
        .arg(format!("OUT={}", folder.display()))
        .arg("CFLAGS=-O1 -g")
        .arg(&library)
        .output()
        .expect("these tests need `make` and a C compiler called `cc`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// Builds the plugin with passages of its source files replaced, each of which must be there once, into a folder of its
/// own below `folder`.
///
/// # Panics
/// As [`make`], and where a passage is not there.
pub fn make_changed(folder: &Path, name: &str, id: &str, changes: &[(&str, &str, &str)]) -> PathBuf {
    let (source, copy) = (root().join("plugins/c-example"), folder.join(id));
    std::fs::create_dir(&copy).expect("a fresh name in a temporary folder");
    for file in ["acme.c", "acme_cases.h", "c_example.c", "provider.h", "Makefile"] {
        std::fs::copy(source.join(file), copy.join(file)).expect("a file of the example");
    }
    for (file, passage, by) in changes {
        let text = std::fs::read_to_string(copy.join(file)).expect("just copied");
        assert_eq!(text.matches(passage).count(), 1, "{file}: {passage}");
        std::fs::write(copy.join(file), text.replace(passage, by)).expect("just copied");
    }
    make_in(&copy, &copy, name)
}

/// A library that the workspace has built.
///
/// # Panics
/// When it is not there.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let folder = test.parent().and_then(Path::parent).expect("test programs are in target/PROFILE/deps");
    let file = folder.join(format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX));
    assert!(
        file.exists(),
        "{} is missing: run `cargo xtask test`, or `cargo build --workspace` before the tests",
        file.display()
    );
    file
}

/// A runtime with these providers, named as given, which must all load without a remark.
///
/// # Panics
/// When one does not.
pub fn load(providers: &[(&str, &Path)]) -> Runtime {
    let mut builder = Runtime::builder().threads(2);
    for (name, path) in providers {
        builder = builder.provider(*name, path);
    }
    let runtime = builder.build().expect("nothing is required");
    for entry in &runtime.report().entries {
        assert!(
            entry.status == ep_registry::Status::Loaded && entry.reason.is_empty(),
            "{}",
            runtime.report()
        );
    }
    runtime
}
