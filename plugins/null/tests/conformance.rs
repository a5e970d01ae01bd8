//! The conformance kit over the plugin. `EP` names the `ep` program; without it, one on `PATH` is used, and where there
//! is none the test says so and passes.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, which Cargo has built beside this program or one folder up.
fn plugin() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    let file = format!("{DLL_PREFIX}ep_null{DLL_SUFFIX}");
    let found =
        program.ancestors().skip(1).take(2).map(|folder| folder.join(&file)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{file} is missing beside {}: run `cargo build`", program.display()))
}

#[test]
fn the_kit_passes() {
    let named = std::env::var_os("EP");
    let ep = named.as_deref().map_or(Path::new("ep"), Path::new);
    let mut kit = Command::new(ep);
    kit.arg("conformance").arg(plugin());
    #[cfg(not(feature = "example"))]
    kit.arg("--allow-empty");
    match kit.status() {
        Err(e) if e.kind() == ErrorKind::NotFound && named.is_none() => {
            eprintln!("skipped: there is no `ep` on PATH; set EP to the program");
        }
        Err(e) => panic!("cannot run {}: {e}", ep.display()),
        Ok(status) => assert!(status.success(), "{kit:?} ended with {status}"),
    }
}
