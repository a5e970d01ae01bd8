//! Opening a provider's file: trust, ELF check, `dlopen`, entry point.

use crate::elf_check::{QUERY_SYMBOL, inspect_file, judge};
use crate::trust::{Digest, Policy};
use ep_core::provider::QueryFn;
use ep_core::{Error, Result};
use std::path::{Path, PathBuf};

/// An opened provider file. It stays mapped for the life of the process: unloading Rust code is unsound
/// (docs/decisions/0004).
#[derive(Debug)]
pub struct OpenedLibrary {
    /// The file's resolved path.
    pub path: PathBuf,
    /// Its entry point.
    pub query: QueryFn,
}

/// Opens a provider's file.
///
/// # Errors
/// `NotFound`, `Refused` (not trusted), `InvalidArgument` (no library for this machine, truncated),
/// `AbiMismatch` (no entry point), `Unavailable` (a dependency is missing): each says what was found where.
///
/// # Safety
/// The file's code runs in this process, its constructors at once. The caller trusts it.
pub unsafe fn open(path: &Path, sha256: Option<&Digest>, policy: &Policy) -> Result<OpenedLibrary> {
    let trusted = policy.open(path, sha256)?;
    judge(&inspect_file(trusted.file(), trusted.path())?, trusted.path())?;
    // SAFETY: as the caller promises.
    let library = unsafe { libloading::Library::new(trusted.path()) }.map_err(|e| {
        Error::unavailable(format!("{}: the system cannot load it: {}", path.display(), text(&e)))
    })?;
    // Never dropped, so never unmapped; from here on the code stays valid.
    let library = std::mem::ManuallyDrop::new(library);
    trusted.unchanged()?;
    // SAFETY: the symbol of this name is a function of this type by rule 2; `judge` saw that it is defined.
    let query = unsafe { library.get::<QueryFn>(QUERY_SYMBOL) }.map_err(|e| {
        Error::abi(format!("{}: no entry point {QUERY_SYMBOL}: {}", path.display(), text(&e)))
    })?;
    Ok(OpenedLibrary { path: trusted.path().to_owned(), query: *query })
}

/// libloading keeps the dynamic linker's own words in the source of its error.
fn text(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string)
}
