//! Opening a provider's file: trust, ELF check, `dlopen`, entry point.

use crate::elf_check::{QUERY_SYMBOL, inspect_file, judge};
use crate::mapped;
use crate::trust::{Digest, Policy, Trusted};
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
    /// Whether the process had it before, in an earlier version than the one that stands at `path` by now: that
    /// one runs. Never where a hash was given.
    pub earlier: bool,
    /// How its types differ from this host's, where both were built with `abi_stable`.
    pub layout_difference: Option<String>,
}

/// Opens a provider's file.
///
/// # Errors
/// `NotFound`, `Refused` (not trusted, or pinned and already here in another version), `InvalidArgument` (no library for this machine, truncated),
/// `AbiMismatch` (no entry point), `Unavailable` (a dependency is missing): each says what was found where.
///
/// # Safety
/// The file's code runs in this process, its constructors at once. The caller trusts it.
pub unsafe fn open(path: &Path, sha256: Option<&Digest>, policy: &Policy) -> Result<OpenedLibrary> {
    let trusted = check(path, sha256, policy)?;
    // SAFETY: as the caller promises.
    unsafe { map(path, sha256, &trusted) }
}

/// The part of [`open`] that runs none of the file's code.
///
/// # Errors
/// As [`open`].
pub(crate) fn check(path: &Path, sha256: Option<&Digest>, policy: &Policy) -> Result<Trusted> {
    let trusted = policy.open(path, sha256)?;
    judge(&inspect_file(trusted.file(), trusted.path())?, trusted.path())?;
    Ok(trusted)
}

/// The rest of [`open`]: loads the file that was checked.
///
/// # Errors
/// As [`open`].
///
/// # Safety
/// As [`open`].
pub(crate) unsafe fn map(path: &Path, sha256: Option<&Digest>, trusted: &Trusted) -> Result<OpenedLibrary> {
    let claim = mapped::claim(trusted, sha256)?;
    // SAFETY: as the caller promises.
    let library = unsafe { libloading::Library::new(trusted.path()) }.map_err(|e| {
        Error::unavailable(format!("{}: the system cannot load it: {}", path.display(), text(&e)))
    })?;
    // Never dropped, so never unmapped; from here on the code stays valid.
    let library = std::mem::ManuallyDrop::new(library);
    let earlier = claim.earlier();
    claim.keep()?;
    // SAFETY: the symbol of this name is a function of this type by rule 2; `judge` saw that it is defined.
    let query = unsafe { library.get::<QueryFn>(QUERY_SYMBOL) }.map_err(|e| {
        Error::abi(format!("{}: no entry point {QUERY_SYMBOL}: {}", path.display(), text(&e)))
    })?;
    let (path, query) = (trusted.path().to_owned(), *query);
    // SAFETY: the library has passed the checks above and stays mapped.
    let layout_difference = unsafe { layout_difference(&library) };
    Ok(OpenedLibrary { path, query, earlier, layout_difference })
}

/// # Safety
/// `library` is a provider that stays mapped.
#[cfg(feature = "abi_stable")]
unsafe fn layout_difference(library: &libloading::Library) -> Option<String> {
    use ep_core::abi::layout::{LAYOUT_SYMBOL, LayoutFn, explain_plugin};
    // SAFETY: the symbol of this name is a function of this type (rule 5).
    let theirs = unsafe { library.get::<LayoutFn>(LAYOUT_SYMBOL) }.ok()?;
    // SAFETY: as the caller promises.
    unsafe { explain_plugin(*theirs) }.err()
}

/// Nothing to compare with.
///
/// # Safety
/// None.
#[cfg(not(feature = "abi_stable"))]
unsafe fn layout_difference(_: &libloading::Library) -> Option<String> {
    None
}

/// libloading keeps the dynamic linker's own words in the source of its error.
fn text(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string)
}
