//! The program, and what a whole build puts beside it.

use std::path::{Path, PathBuf};

pub const EP: &str = env!("CARGO_BIN_EXE_ep");

/// A plugin.
pub fn built(name: &str) -> PathBuf {
    let path = Path::new(EP).with_file_name(format!("lib{name}.so"));
    assert!(
        path.exists(),
        "{} is missing: run `cargo xtask test`, or `cargo build --workspace` first",
        path.display()
    );
    path
}
