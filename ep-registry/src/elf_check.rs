//! Looks into a shared library before it is loaded.
//!
//! `dlopen` trusts its file: a truncated one ends the process with SIGBUS, and one built for a sanitizer
//! ends it with an exit. [`inspect`] reads what is needed to refuse such files with an error that says what
//! they are. It reads headers, the dynamic section and the symbols it looks up, a few KiB even of a file of
//! several GiB, believes no offset or count that it finds, and maps nothing.
//!
//! Files are in ELF on Linux; on other systems nothing is checked here and the loader has the word.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use ep_core::{Error, Result};

use crate::elf_image::{Image, Problem};
use crate::platform;

/// The function that every provider exports.
pub const QUERY_SYMBOL: &str = "ep_plugin_query";

/// What a shared library says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Bytes in the file.
    pub size: u64,
    /// The libraries that it needs (`DT_NEEDED`), in its order.
    pub needed: Vec<String>,
    /// The name it was linked as (`DT_SONAME`).
    pub soname: Option<String>,
    /// The id that the linker gave this build, in hexadecimal.
    pub build_id: Option<String>,
    /// Whether `ep_plugin_query` is exported as a defined function; `None` where this was not checked.
    pub exports_query: Option<bool>,
    /// The sanitizer run times that must already be in the process.
    pub sanitizers: Vec<Sanitizer>,
}

/// A sanitizer whose run time must be part of the program that loads the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitizer {
    /// `-fsanitize=address`
    Address,
    /// `-fsanitize=thread`
    Thread,
    /// `-fsanitize=memory`
    Memory,
    /// `-fsanitize=undefined`
    Undefined,
}

/// How a sanitizer shows: a needed library, or a symbol that the program has to define.
struct Trace {
    sanitizer: Sanitizer,
    flag: &'static str,
    libraries: [&'static str; 2],
    symbol_prefix: &'static str,
    /// Defined by the run time in every release of it.
    probe: &'static CStr,
}

const TRACES: [Trace; 4] = [
    Trace {
        sanitizer: Sanitizer::Address,
        flag: "address",
        libraries: ["libasan.", "libclang_rt.asan"],
        symbol_prefix: "__asan_init",
        probe: c"__asan_init",
    },
    Trace {
        sanitizer: Sanitizer::Thread,
        flag: "thread",
        libraries: ["libtsan.", "libclang_rt.tsan"],
        symbol_prefix: "__tsan_init",
        probe: c"__tsan_init",
    },
    Trace {
        sanitizer: Sanitizer::Memory,
        flag: "memory",
        libraries: ["libmsan.", "libclang_rt.msan"],
        symbol_prefix: "__msan_init",
        probe: c"__msan_init",
    },
    Trace {
        sanitizer: Sanitizer::Undefined,
        flag: "undefined",
        libraries: ["libubsan.", "libclang_rt.ubsan"],
        symbol_prefix: "__ubsan_",
        probe: c"__ubsan_handle_add_overflow",
    },
];

impl Sanitizer {
    fn trace(self) -> &'static Trace {
        match self {
            Sanitizer::Address => &TRACES[0],
            Sanitizer::Thread => &TRACES[1],
            Sanitizer::Memory => &TRACES[2],
            Sanitizer::Undefined => &TRACES[3],
        }
    }

    /// The name that follows `-fsanitize=`.
    pub fn flag(self) -> &'static str {
        self.trace().flag
    }

    /// Whether this process already contains the run time; assumed where that cannot be found out.
    pub fn is_in_process(self) -> bool {
        platform::process_has_symbol(self.trace().probe).unwrap_or(true)
    }
}

/// Opens and inspects a library.
///
/// # Errors
/// `NotFound` and `Unavailable` where the file cannot be opened; `InvalidArgument` where it is not a whole
/// 64-bit shared library for this machine.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let (file, _) = platform::open_regular(path)?;
    inspect_file(&file, path)
}

/// Inspects a library that is already open; `path` is for messages. The position in the file changes.
///
/// # Errors
/// Those of [`inspect`].
pub fn inspect_file(file: &File, path: &Path) -> Result<Inspection> {
    let size = file
        .metadata()
        .map_err(|error| Error::unavailable(format!("{}: cannot be examined: {error}", path.display())))?
        .len();
    if !cfg!(target_os = "linux") {
        return Ok(Inspection { size, ..Inspection::default() });
    }
    examine(file, size).map_err(|problem| problem.into_error(path))
}

/// Whether a provider can be loaded from an inspected library. What [`inspect`] could not check passes.
///
/// # Errors
/// `AbiMismatch` where it exports no `ep_plugin_query`; `Unavailable` where it needs the run time of a
/// sanitizer that this process lacks.
pub fn judge(inspection: &Inspection, path: &Path) -> Result<()> {
    judge_with(inspection, path, Sanitizer::is_in_process)
}

fn judge_with(inspection: &Inspection, path: &Path, in_process: impl Fn(Sanitizer) -> bool) -> Result<()> {
    let shown = path.display();
    if inspection.exports_query == Some(false) {
        return Err(Error::abi(format!(
            "{shown}: is a shared library but no provider: it exports no function `{QUERY_SYMBOL}`; in Rust add `export_provider!`, in C define that function with default visibility, or name another file"
        )));
    }
    match inspection.sanitizers.iter().find(|sanitizer| !in_process(**sanitizer)) {
        None => Ok(()),
        Some(sanitizer) => Err(Error::unavailable(format!(
            "{shown}: was built with `-fsanitize={flag}`, and this program has no run time for it, so loading it could end the process; build the provider without it, or the program with it",
            flag = sanitizer.flag(),
        ))),
    }
}

fn examine<R: Read + Seek>(reader: R, size: u64) -> Result<Inspection, Problem> {
    let mut image = Image::open(reader, size)?;
    let needed = image.needed()?;
    let undefined = image.undefined_symbols()?;
    let shows = |trace: &Trace| {
        needed.iter().any(|name| trace.libraries.iter().any(|library| name.starts_with(library)))
            || undefined.iter().any(|name| name.starts_with(trace.symbol_prefix))
    };
    let sanitizers = TRACES.iter().filter(|trace| shows(trace)).map(|trace| trace.sanitizer).collect();
    Ok(Inspection {
        size,
        soname: image.soname()?,
        build_id: image.build_id()?,
        exports_query: Some(image.exports_function(QUERY_SYMBOL)?),
        sanitizers,
        needed,
    })
}

#[cfg(all(test, target_os = "linux"))]
#[path = "elf_check_tests.rs"]
mod tests;
