//! Making plugin files, good and bad, and seeing what a host makes of them.

use ep_core::handle::Plugin;
use ep_core::{Code, Error};
use ep_registry::report::Entry;
use ep_registry::trust::Policy;
use ep_registry::{Runtime, Status, library};
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::Change;

/// A temporary folder that is removed at the end of the test.
///
/// # Panics
/// When none can be made.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("the temporary folder is writable")
}

/// A file of the `tests` package.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compiles a C file to the shared library `output`.
///
/// # Panics
/// When the compiler is missing or refuses the file.
pub fn compile(output: &Path, input: &Path, flags: &[&str]) {
    let result = Command::new("cc")
        .args(["-std=c11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-o"])
        .args([output, input])
        .args(flags)
        .arg("-lm")
        .output()
        .expect("these tests need a C compiler called `cc`");
    assert!(result.status.success(), "cc {flags:?}: {}", String::from_utf8_lossy(&result.stderr));
}

/// Compiles C text to the shared library `dir/name`.
///
/// # Panics
/// As [`compile`].
pub fn compile_text(dir: &Path, name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let (input, output) = (dir.join(name).with_extension("c"), dir.join(name));
    std::fs::write(&input, text).expect("the temporary folder is writable");
    compile(&output, &input, flags);
    output
}

/// Compiles `plugins/skew/skew.c` to `dir/libNAME.so`, against the contract with `changes` (see
/// [`xtask::Change`]).
///
/// # Panics
/// As [`compile`], and for impossible changes.
pub fn skew(dir: &Path, name: &str, changes: &[&str], flags: &[&str]) -> PathBuf {
    let changes: Vec<Change> = changes.iter().map(|c| c.parse().expect("a change")).collect();
    let include = dir.join(format!("{name}.include"));
    std::fs::create_dir(&include).expect("a fresh name");
    let header = xtask::header(&changes).expect("possible changes");
    std::fs::write(include.join("ep_plugin.h"), header).expect("the temporary folder is writable");
    let output = dir.join(format!("lib{name}.so"));
    let include = format!("-I{}", include.display());
    // Retyped functions are the point of some versions.
    let flags = [&[include.as_str(), "-Wno-incompatible-pointer-types"], flags].concat();
    compile(&output, &source("plugins/skew/skew.c"), &flags);
    output
}

/// The skew plugin as this version of the contract has it.
///
/// # Panics
/// As [`compile`].
pub fn good(dir: &Path) -> PathBuf {
    skew(dir, "skew", &[], &[])
}

/// A library that the workspace has built: `built("test_hostile")` is `libtest_hostile.so` beside this test.
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

/// A runtime with this one provider, called `x`.
///
/// # Panics
/// When threads cannot be started; a provider that does not load is in the report.
pub fn load(path: &Path) -> Runtime {
    Runtime::builder().threads(1).provider("x", path).build().expect("nothing is required")
}

/// The one entry of a report.
///
/// # Panics
/// When there are more.
pub fn only(runtime: &Runtime) -> &Entry {
    let [entry] = runtime.report().entries.as_slice() else { panic!("{}", runtime.report()) };
    entry
}

/// Asserts that a message has each of these parts.
///
/// # Panics
/// With the message and what it lacks.
pub fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

/// Loads a file that must be refused before its provider starts. Asserts the code, that the report tells the same
/// story, and that the runtime lives on without devices. Returns the message.
///
/// # Panics
/// Where one of these does not hold.
pub fn refused(path: &Path, code: Code) -> String {
    let error = open(path).expect_err("the file is bad");
    assert_eq!(error.code(), code, "{error}");
    let runtime = load(path);
    let entry = only(&runtime);
    assert_eq!((entry.status, entry.path.as_deref()), (Status::Failed, Some(path)), "{entry}");
    assert_eq!((entry.instance.as_str(), entry.reason.as_str()), ("x", error.message()));
    assert!(entry.devices.is_empty() && runtime.devices().is_empty());
    let absent = runtime.device("cpu").expect_err("there is no device");
    assert_eq!(absent.code(), Code::NotFound);
    says(absent.message(), &["cpu", error.message()]);
    error.message().to_owned()
}

/// What comes before a provider is created: trust, ELF, `dlopen`, negotiation.
fn open(path: &Path) -> Result<Plugin, Error> {
    // SAFETY: the tests made the file; the worst that its code does is what they test.
    let opened = unsafe { library::open(path, None, &Policy::default()) }?;
    // SAFETY: as above; libraries stay mapped.
    unsafe { Plugin::load(opened.query, &opened.path.display().to_string()) }
}
