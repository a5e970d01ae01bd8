//! The library from C and C++: a program that calls every function, and the example.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of what was built: the program's own is `deps` in it.
fn built() -> PathBuf {
    let program = std::env::current_exe().expect("the test's program has a path");
    program.ancestors().nth(2).expect("it lies in target/PROFILE/deps").to_owned()
}

/// A file that lies there.
///
/// # Panics
/// Where it was not built.
fn library(name: &str) -> PathBuf {
    let path = built().join(name);
    assert!(
        path.exists(),
        "{} is missing; run `cargo xtask test`, or `cargo build --workspace` first",
        path.display()
    );
    path
}

/// A language with its compiler, where there is one.
const LANGUAGES: [(&str, &str, &[&str]); 2] =
    [("cc", "-std=c11", &[]), ("c++", "-std=c++17", &["-x", "c++"])];

/// Compiles and links a source with every warning an error; none where there is no such compiler.
fn program(source: &str, compiler: &str, standard: &str, language: &[&str]) -> Option<PathBuf> {
    if Command::new(compiler).arg("--version").output().is_err() {
        println!("skipped {standard}: no compiler `{compiler}`");
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = source.replace(['/', '.'], "_");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}_{compiler}"));
    let dir = built();
    let result = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"])
        .args(
            [root.join("include"), root.join("../../ep-core/include")]
                .map(|dir| format!("-I{}", dir.display())),
        )
        .args(language)
        .arg(root.join(source))
        .args(["-x", "none", "-o"])
        .arg(&out)
        .arg(library("libep_host.so"))
        .arg(format!("-Wl,-rpath,{}", dir.display()))
        .output()
        .expect("the compiler starts");
    assert!(result.status.success(), "{source}: {}", String::from_utf8_lossy(&result.stderr));
    Some(out)
}

/// A config of the CPU provider and the simulated accelerator.
fn config(folder: &Path) -> PathBuf {
    let provider = |name: &str| {
        let path = library(&format!("libep_{name}.so"));
        format!("[[provider]]\nname = \"{name}\"\npath = \"{}\"\n", path.display())
    };
    let file = folder.join("ep.toml");
    std::fs::write(&file, format!("{}{}", provider("cpu"), provider("sim"))).expect("the folder is writable");
    file
}

/// What a program prints that ends well. `EP_TEST_RUNNER` is what runs it, such as valgrind with its options.
fn printed(program: &Path, arguments: &[&Path]) -> String {
    let runner = std::env::var("EP_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace().map(std::ffi::OsStr::new).chain([program.as_os_str()]);
    let first = words.next().expect("the program at least");
    let result = Command::new(first).args(words).args(arguments).output().expect("the program starts");
    let error = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(result.status.success(), "{} ended with {}: {error}", program.display(), result.status);
    String::from_utf8(result.stdout).expect("UTF-8")
}

#[test]
fn every_function_from_c_and_cpp() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let config = config(folder.path());
    for (compiler, standard, language) in LANGUAGES {
        let Some(program) = program("tests/host.c", compiler, standard, language) else { continue };
        assert!(printed(&program, &[&config]).contains("as it should be"));
    }
}

#[test]
fn the_example() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let config = config(folder.path());
    for (compiler, standard, language) in LANGUAGES {
        let Some(program) = program("examples/softmax.c", compiler, standard, language) else { continue };
        for device in ["cpu", "sim"] {
            let text = printed(&program, &[&config, Path::new(device)]);
            assert!(text.contains(&format!("on {device}:0: 0.090031 0.244728 0.665241, 0.333333")), "{text}");
        }
    }
}

/// Every function that the header declares is called by the program, and exported by the library.
#[test]
fn the_program_calls_all_that_the_header_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("a file of the package");
    let (header, program) = (read("include/ep_host.h"), read("tests/host.c"));
    let words = |text: &str| -> std::collections::BTreeSet<String> {
        let parts = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '('));
        let calls = parts.filter_map(|word| word.rsplit_once('(').map(|(name, _)| name));
        calls
            .filter_map(|name| name.rsplit('(').next())
            .filter(|n| n.starts_with("ep_"))
            .map(str::to_owned)
            .collect()
    };
    let (declared, called) = (words(&header), words(&program));
    assert!(declared.len() > 30, "{declared:?}");
    let missing: Vec<_> = declared.difference(&called).collect();
    assert!(missing.is_empty(), "tests/host.c does not call {missing:?}");
    // SAFETY: the library has no initialisers that do anything.
    let library = unsafe { libloading::Library::new(library("libep_host.so")) }.expect("the library loads");
    for name in &declared {
        // SAFETY: only whether it is there.
        assert!(unsafe { library.get::<*const ()>(name.as_bytes()) }.is_ok(), "{name} is not exported");
    }
}
