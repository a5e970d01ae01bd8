//! `ep_host.h`, from the functions of `bindings/c`.

use std::path::Path;

/// The files in the order of the header.
const SOURCES: [&str; 8] =
    ["given", "runtime", "session", "tensor", "dlpack", "operator", "primitive", "weights"];

/// The header of `libep_host`.
///
/// # Panics
/// Where a source cannot be read or has an interface that C has not.
pub fn header(root: &Path) -> String {
    let dir = root.join("bindings/c");
    let config = cbindgen::Config::from_file(dir.join("cbindgen.toml")).expect("cbindgen.toml");
    let sources = SOURCES.iter().map(|name| dir.join(format!("src/{name}.rs")));
    let builder = sources.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut text = Vec::new();
    builder.generate().expect("an interface for C").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}
