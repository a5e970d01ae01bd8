//! What the system tells: environment variables, which a privileged process must not obey, and the loader's errors.

use std::ffi::OsString;

/// Whether the process has more rights than who started it.
fn is_privileged() -> bool {
    // SAFETY: a query without arguments in memory.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable; none where it is empty, and in a process that has more rights than who started it.
pub(crate) fn var(name: &str) -> Option<OsString> {
    if is_privileged() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What this process was started as; none in a process that has more rights than who started it.
pub(crate) fn program() -> Option<OsString> {
    if is_privileged() { None } else { std::env::args_os().next() }
}

/// The loader's own words, which libloading keeps in the source of its error.
pub(crate) fn loader_words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
