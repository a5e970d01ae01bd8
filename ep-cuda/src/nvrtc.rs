//! NVRTC, the compiler for CUDA C++ as a library, opened when a kernel has to be compiled.

use crate::compiler::Arch;
use crate::env;
use crate::search::Wanted;
use ep_core::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The variable that names the library's file, or the folder that holds it.
pub const LIBRARY_ENV: &str = "EP_CUDA_NVRTC";

const WANTED: Wanted = Wanted { name: "nvrtc", majors: &[13, 12], old_package: "cuda_nvrtc" };

/// The compiler's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The CUDA release's first number.
    pub major: u32,
    /// Its second.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Version, ()> {
        let (major, minor) = text.split_once('.').ok_or(())?;
        Ok(Version { major: major.parse().map_err(|_| ())?, minor: minor.parse().map_err(|_| ())? })
    }
}

type Program = *mut c_void;

/// The functions that are used.
struct Functions {
    version: unsafe extern "C" fn(*mut i32, *mut i32) -> i32,
    num_archs: unsafe extern "C" fn(*mut i32) -> i32,
    archs: unsafe extern "C" fn(*mut i32) -> i32,
    error_string: unsafe extern "C" fn(i32) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        i32,
        *const *const c_char,
        *const *const c_char,
    ) -> i32,
    compile: unsafe extern "C" fn(Program, i32, *const *const c_char) -> i32,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> i32,
    log: unsafe extern "C" fn(Program, *mut c_char) -> i32,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> i32,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> i32,
    destroy: unsafe extern "C" fn(*mut Program) -> i32,
}

/// The compiler. Its library stays mapped.
pub struct Nvrtc {
    functions: Functions,
    version: Version,
    archs: Vec<Arch>,
    path: PathBuf,
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVRTC {} ({})", self.version, self.path.display())
    }
}

/// What is to be compiled.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The file's name, for messages.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
    /// Name and text of each file that it may include.
    pub headers: &'a [(&'a str, &'a str)],
    /// The command line, without the architecture.
    pub options: &'a [String],
}

impl Nvrtc {
    /// Opens it: the file or folder `option`, else what [`LIBRARY_ENV`] names, else the loader's paths
    /// (`LD_LIBRARY_PATH`), the CUDA toolkit, and Python's packages.
    ///
    /// # Errors
    /// `Unavailable` with the places that were searched and how to get it.
    pub fn open(option: Option<&Path>) -> Result<Nvrtc> {
        let named = option.map(Path::to_owned).or_else(|| env::var(LIBRARY_ENV).map(PathBuf::from));
        let mut failures = Vec::new();
        for path in WANTED.files(named.as_deref()) {
            match Nvrtc::load(&path) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(e) => failures.push(format!("  {}: {e}", path.display())),
            }
        }
        Err(Error::unavailable(format!(
            "NVRTC, which compiles kernels that the cache does not have, is not found. Install the CUDA toolkit, or \
             `pip install nvidia-cuda-nvrtc`; if it is elsewhere, name its file or folder with option `nvrtc` or \
             {LIBRARY_ENV}; or fill a cache on another machine with `ep warm`. Tried:\n{}",
            failures.join("\n")
        )))
    }

    fn load(path: &Path) -> Result<Nvrtc> {
        let builtins = open_builtins(path)?;
        // SAFETY: NVIDIA's compiler, from where the user or the system has installed it: its code may run here.
        let library = unsafe { Library::new(path) }.map_err(|e| Error::unavailable(env::loader_words(&e)))?;
        let functions = resolve(&library)?;
        // Nothing of it is ever unmapped.
        std::mem::forget((library, builtins));
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: valid out-pointers; the second array has as many places as the first call says.
        let archs = unsafe {
            functions.check("nvrtcVersion", (functions.version)(&mut major, &mut minor))?;
            functions.check("nvrtcGetNumSupportedArchs", (functions.num_archs)(&mut count))?;
            let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
            functions.check("nvrtcGetSupportedArchs", (functions.archs)(archs.as_mut_ptr()))?;
            archs
        };
        let archs = archs.into_iter().map(|n| Arch::new(n as u32 / 10, n as u32 % 10)).collect();
        let version = Version { major: major as u32, minor: minor as u32 };
        tracing::debug!("NVRTC {version} is {}", path.display());
        Ok(Nvrtc { functions, version, archs, path: path.to_owned() })
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles to the machine code of one architecture. Any thread; calls at the same time may wait for each other.
    ///
    /// # Errors
    /// `Unsupported` for an architecture that this version does not know; `Internal` with the compiler's messages
    /// for a source that does not compile.
    pub fn compile(&self, input: Input<'_>, arch: Arch) -> Result<Vec<u8>> {
        if !self.archs.contains(&arch) {
            let known: Vec<_> = self.archs.iter().map(ToString::to_string).collect();
            return Err(Error::unsupported(format!(
                "NVRTC {} does not compile for {arch}, only for {}; use another version of it",
                self.version,
                known.join(", ")
            )));
        }
        let text =
            |t: &str| CString::new(t).map_err(|_| Error::internal(format!("{}: a zero byte", input.name)));
        let (name, source) = (text(input.name)?, text(input.text)?);
        let names = input.headers.iter().map(|(n, _)| text(n)).collect::<Result<Vec<_>>>()?;
        let texts = input.headers.iter().map(|(_, t)| text(t)).collect::<Result<Vec<_>>>()?;
        let target = format!("--gpu-architecture={arch}");
        let options = std::iter::once(&target).chain(input.options);
        let options = options.map(|o| text(o)).collect::<Result<Vec<_>>>()?;
        let pointers = |list: &[CString]| list.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let mut raw = std::ptr::null_mut();
        // SAFETY: texts and lists live during the call, as long as said; a valid out-pointer.
        let created = unsafe {
            (self.functions.create)(
                &mut raw,
                source.as_ptr(),
                name.as_ptr(),
                names.len() as i32,
                pointers(&texts).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        self.functions.check("nvrtcCreateProgram", created)?;
        let program = Owned { functions: &self.functions, raw };
        // SAFETY: a live program, and as many options as said.
        let compiled =
            unsafe { (self.functions.compile)(raw, options.len() as i32, pointers(&options).as_ptr()) };
        let log = program.read("nvrtcGetProgramLog", self.functions.log_size, self.functions.log);
        let log = log.unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let log = log.trim_end_matches(['\0', '\n']);
        if compiled != 0 {
            let what = self.functions.check("nvrtcCompileProgram", compiled);
            let error = what.err().map_or_else(String::new, |e| e.to_string());
            return Err(Error::internal(format!(
                "{} for {arch} does not compile: {error}\n{log}",
                input.name
            )));
        }
        if !log.is_empty() {
            tracing::debug!("NVRTC says of {}: {log}", input.name);
        }
        program.read("nvrtcGetCUBIN", self.functions.cubin_size, self.functions.cubin)
    }
}

/// A program that is destroyed when this is dropped.
struct Owned<'a> {
    functions: &'a Functions,
    raw: Program,
}

impl Owned<'_> {
    fn read(
        &self,
        what: &'static str,
        size: unsafe extern "C" fn(Program, *mut usize) -> i32,
        read: unsafe extern "C" fn(Program, *mut c_char) -> i32,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: a live program and a valid out-pointer; then a buffer of the size that was said.
        unsafe {
            self.functions.check(what, size(self.raw, &mut bytes))?;
            let mut buffer = vec![0u8; bytes];
            self.functions.check(what, read(self.raw, buffer.as_mut_ptr().cast()))?;
            Ok(buffer)
        }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: a live program, destroyed once.
        let result = unsafe { (self.functions.destroy)(&mut self.raw) };
        if let Err(e) = self.functions.check("nvrtcDestroyProgram", result) {
            tracing::error!("{e}");
        }
    }
}

impl Functions {
    fn check(&self, call: &str, result: i32) -> Result<()> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: a constant text of the library, for every number.
        let text = unsafe {
            let text = (self.error_string)(result);
            if text.is_null() { "".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        Err(Error::internal(format!("{call}: {text} ({result})")))
    }
}

fn resolve(library: &Library) -> Result<Functions> {
    fn find<T: Copy>(library: &Library, name: &str) -> Result<T> {
        // SAFETY: each caller asks for the type that the function of this name has.
        let symbol = unsafe { library.get::<T>(name.as_bytes()) };
        symbol.map(|s| *s).map_err(|_| Error::unavailable(format!("it has no {name}")))
    }
    Ok(Functions {
        version: find(library, "nvrtcVersion")?,
        num_archs: find(library, "nvrtcGetNumSupportedArchs")?,
        archs: find(library, "nvrtcGetSupportedArchs")?,
        error_string: find(library, "nvrtcGetErrorString")?,
        create: find(library, "nvrtcCreateProgram")?,
        compile: find(library, "nvrtcCompileProgram")?,
        log_size: find(library, "nvrtcGetProgramLogSize")?,
        log: find(library, "nvrtcGetProgramLog")?,
        cubin_size: find(library, "nvrtcGetCUBINSize")?,
        cubin: find(library, "nvrtcGetCUBIN")?,
        destroy: find(library, "nvrtcDestroyProgram")?,
    })
}

/// NVRTC opens a second library by its bare name while it compiles. The one beside it is opened first, so that the
/// loader knows it then, wherever it lies.
fn open_builtins(nvrtc: &Path) -> Result<Option<Library>> {
    let Some(folder) = nvrtc.parent().filter(|f| !f.as_os_str().is_empty()) else { return Ok(None) };
    let Ok(entries) = fs::read_dir(folder) else { return Ok(None) };
    let wanted = |name: &str| name.starts_with("libnvrtc-builtins.so") && !name.contains(".alt.");
    let mut found: Vec<PathBuf> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(wanted))
        .collect();
    // The longest name is the file that the others are links to.
    found.sort_by_key(|p| std::cmp::Reverse(p.as_os_str().len()));
    let Some(path) = found.first() else { return Ok(None) };
    // SAFETY: as of the library beside it.
    let library = unsafe { Library::new(path) };
    library.map(Some).map_err(|e| Error::unavailable(env::loader_words(&e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    #[test]
    fn versions_are_read_and_ordered() {
        let v = |t: &str| t.parse::<Version>();
        assert_eq!(v("13.0"), Ok(Version { major: 13, minor: 0 }));
        assert!(v("12.9").unwrap() < v("13.0").unwrap() && v("12.9").unwrap() < v("12.10").unwrap());
        assert!(v("13").is_err() && v("x.y").is_err());
    }

    #[test]
    fn a_missing_compiler_says_how_to_get_it() {
        let error = Nvrtc::open(Some(Path::new("/nowhere/libnvrtc.so.13"))).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        for word in ["pip install nvidia-cuda-nvrtc", "EP_CUDA_NVRTC", "ep warm", "/nowhere/libnvrtc.so.13"] {
            assert!(error.message().contains(word), "{word}: {error}");
        }
        let error = Nvrtc::open(Some(Path::new("libc.so.6"))).unwrap_err();
        assert!(error.message().contains("it has no nvrtcVersion"), "{error}");
    }
}
