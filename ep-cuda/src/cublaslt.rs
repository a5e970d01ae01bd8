//! cuBLASLt, NVIDIA's matrix products, opened at the first primitive that needs it.
//!
//! Its matrices are column-major. A row-major matrix is the transpose of a column-major one, so what is asked for here
//! is the transpose of the product: the factors change places, and so do rows and columns of the result.

mod plan;

pub use plan::{Matrix, Operands, Plan, Repeat, Shape, Task, multiplies};

use crate::context::Context;
use crate::driver::CuStream;
use crate::env;
use crate::search::Wanted;
use ep_core::{Code, Error, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The variable that names the library's file, or the folder that holds it.
pub const LIBRARY_ENV: &str = "EP_CUDA_CUBLASLT";

const WANTED: Wanted = Wanted { name: "cublasLt", majors: &[13, 12], old_package: "cublas" };

/// Alignment beyond which no algorithm asks.
pub const MOST_ALIGNMENT: u32 = 256;

/// Results of the library, in the spelling of its header without the prefix.
mod status {
    pub const NOT_INITIALIZED: i32 = 1;
    pub const ALLOC_FAILED: i32 = 3;
    pub const ARCH_MISMATCH: i32 = 8;
    pub const EXECUTION_FAILED: i32 = 13;
    pub const NOT_SUPPORTED: i32 = 15;
}

/// Attributes and values of its enums, likewise.
mod constant {
    pub const COMPUTE_32F: i32 = 68;
    pub const COMPUTE_64F: i32 = 70;
    pub const COMPUTE_32F_FAST_TF32: i32 = 77;
    pub const OP_T: i32 = 1;
    pub const OP_C: i32 = 2;
    pub const MATMUL_DESC_TRANSA: i32 = 3;
    pub const MATMUL_DESC_TRANSB: i32 = 4;
    pub const MATRIX_LAYOUT_BATCH_COUNT: i32 = 5;
    pub const MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: i32 = 6;
    pub const MATMUL_PREF_MAX_WORKSPACE_BYTES: i32 = 1;
    pub const MATMUL_PREF_REDUCTION_SCHEME_MASK: i32 = 3;
    /// Parts of a sum meet in the type that sums are computed in.
    pub const REDUCTION_SCHEME_COMPUTE_TYPE: u32 = 2;
    /// Of the first operand; those of the others follow.
    pub const MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: i32 = 5;
}

type Pointer = *mut c_void;

/// `cublasLtMatmulAlgo_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Found {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

const _: () = assert!(size_of::<Found>() == 96);

type Create = unsafe extern "C" fn(*mut Pointer) -> i32;
type Destroy = unsafe extern "C" fn(Pointer) -> i32;
type SetAttribute = unsafe extern "C" fn(Pointer, i32, *const c_void, usize) -> i32;

/// The functions that are used.
struct Functions {
    version: unsafe extern "C" fn() -> usize,
    status_string: unsafe extern "C" fn(i32) -> *const c_char,
    create: Create,
    destroy: Destroy,
    desc_create: unsafe extern "C" fn(*mut Pointer, i32, i32) -> i32,
    desc_set: SetAttribute,
    desc_destroy: Destroy,
    layout_create: unsafe extern "C" fn(*mut Pointer, i32, u64, u64, i64) -> i32,
    layout_set: SetAttribute,
    layout_destroy: Destroy,
    preference_create: Create,
    preference_set: SetAttribute,
    preference_destroy: Destroy,
    heuristic: unsafe extern "C" fn(
        Pointer,
        Pointer,
        Pointer,
        Pointer,
        Pointer,
        Pointer,
        Pointer,
        i32,
        *mut Found,
        *mut i32,
    ) -> i32,
    matmul: unsafe extern "C" fn(
        Pointer,
        Pointer,
        *const c_void,
        *const c_void,
        Pointer,
        *const c_void,
        Pointer,
        *const c_void,
        *const c_void,
        Pointer,
        *mut c_void,
        Pointer,
        *const Algorithm,
        *mut c_void,
        usize,
        CuStream,
    ) -> i32,
}

/// The library. It stays mapped.
pub struct CublasLt {
    functions: Functions,
    path: PathBuf,
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuBLASLt {} ({})", self.version(), self.path.display())
    }
}

impl CublasLt {
    /// Opens it: the file or folder `option`, else what [`LIBRARY_ENV`] names, else the loader's paths
    /// (`LD_LIBRARY_PATH`), the CUDA toolkit, and Python's packages.
    ///
    /// # Errors
    /// `Unavailable` with the places that were searched and how to get it.
    pub fn open(option: Option<&Path>) -> Result<CublasLt> {
        let named = option.map(Path::to_owned).or_else(|| env::var(LIBRARY_ENV).map(PathBuf::from));
        let mut failures = Vec::new();
        for path in WANTED.files(named.as_deref()) {
            match CublasLt::load(&path) {
                Ok(library) => {
                    tracing::debug!("{library:?}");
                    return Ok(library);
                }
                Err(e) => failures.push(format!("  {}: {e}", path.display())),
            }
        }
        Err(Error::unavailable(format!(
            "cuBLASLt, which multiplies matrices of floating-point numbers, is not found. Install the CUDA toolkit, or \
             `pip install nvidia-cublas` (for CUDA 12 `nvidia-cublas-cu12`); if it is elsewhere, name its file or \
             folder with option `cublaslt` or {LIBRARY_ENV}. Tried:\n{}",
            failures.join("\n")
        )))
    }

    fn load(path: &Path) -> Result<CublasLt> {
        // SAFETY: NVIDIA's library, from where the user or the system has installed it: its code may run here.
        let library = unsafe { Library::new(path) }.map_err(|e| Error::unavailable(env::loader_words(&e)))?;
        let functions = resolve(&library)?;
        // Its kernels stay in use by contexts that live as long as the process.
        std::mem::forget(library);
        Ok(CublasLt { functions, path: path.to_owned() })
    }

    /// Its version: ten thousand times the major, a hundred times the minor number, and the patch.
    pub fn version(&self) -> usize {
        // SAFETY: a query without arguments.
        unsafe { (self.functions.version)() }
    }

    fn check(&self, call: &str, result: i32) -> Result<()> {
        if result == 0 { Ok(()) } else { Err(self.failed(call, result)) }
    }

    #[cold]
    fn failed(&self, call: &str, result: i32) -> Error {
        // SAFETY: a constant text of the library, for every number.
        let text = unsafe {
            let text = (self.functions.status_string)(result);
            if text.is_null() { "".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        let (code, advice) = match result {
            status::NOT_INITIALIZED => {
                (Code::Unavailable, "see whether the driver is as new as this cuBLASLt")
            }
            status::ALLOC_FAILED => (Code::OutOfMemory, "free buffers, or trim the allocator"),
            status::ARCH_MISMATCH => (Code::Unsupported, "use a cuBLASLt that is for this GPU"),
            status::NOT_SUPPORTED => (Code::Unsupported, "use other sizes"),
            status::EXECUTION_FAILED => (
                Code::Internal,
                "earlier work may have failed; provider option `sync_launches = true` finds the launch",
            ),
            _ => (Code::Internal, "report this"),
        };
        Error::new(code, format!("{call}: {text} ({result}); {advice}"))
    }
}

fn resolve(library: &Library) -> Result<Functions> {
    fn find<T: Copy>(library: &Library, name: &str) -> Result<T> {
        // SAFETY: each caller asks for the type that the function of this name has.
        let symbol = unsafe { library.get::<T>(name.as_bytes()) };
        symbol.map(|s| *s).map_err(|_| Error::unavailable(format!("it has no {name}")))
    }
    Ok(Functions {
        version: find(library, "cublasLtGetVersion")?,
        status_string: find(library, "cublasLtGetStatusString")?,
        create: find(library, "cublasLtCreate")?,
        destroy: find(library, "cublasLtDestroy")?,
        desc_create: find(library, "cublasLtMatmulDescCreate")?,
        desc_set: find(library, "cublasLtMatmulDescSetAttribute")?,
        desc_destroy: find(library, "cublasLtMatmulDescDestroy")?,
        layout_create: find(library, "cublasLtMatrixLayoutCreate")?,
        layout_set: find(library, "cublasLtMatrixLayoutSetAttribute")?,
        layout_destroy: find(library, "cublasLtMatrixLayoutDestroy")?,
        preference_create: find(library, "cublasLtMatmulPreferenceCreate")?,
        preference_set: find(library, "cublasLtMatmulPreferenceSetAttribute")?,
        preference_destroy: find(library, "cublasLtMatmulPreferenceDestroy")?,
        heuristic: find(library, "cublasLtMatmulAlgoGetHeuristic")?,
        matmul: find(library, "cublasLtMatmul")?,
    })
}

/// The library's state on a device.
pub struct Handle {
    library: Arc<CublasLt>,
    context: Arc<Context>,
    raw: Pointer,
}

// SAFETY: the library's documentation allows calls with one handle on several threads.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on device {}", self.library, self.context.device())
    }
}

impl Handle {
    /// On the device of a context.
    ///
    /// # Errors
    /// The library's.
    pub fn new(library: Arc<CublasLt>, context: Arc<Context>) -> Result<Handle> {
        let mut raw = std::ptr::null_mut();
        {
            let _current = context.enter()?;
            // SAFETY: a valid out-pointer; the context is current.
            let made = library.check("cublasLtCreate", unsafe { (library.functions.create)(&mut raw) });
            made.map_err(|e| context.explain(e, None))?;
        }
        Ok(Handle { library, context, raw })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.close("closing cuBLASLt", |_| {
            // SAFETY: made by `new`, destroyed once; plans hold this.
            let result = unsafe { (self.library.functions.destroy)(self.raw) };
            log(&self.library, "cublasLtDestroy", result);
        });
    }
}

/// A failure where nothing can be returned.
fn log(library: &CublasLt, call: &str, result: i32) {
    if let Err(e) = library.check(call, result) {
        tracing::error!("{e}");
    }
}

/// An object of the library that is destroyed when this is dropped.
struct Object {
    library: Arc<CublasLt>,
    raw: Pointer,
    destroy: Destroy,
}

// SAFETY: an object is not bound to a thread; it is only read once it is made.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    fn new(
        library: &Arc<CublasLt>,
        call: &str,
        destroy: Destroy,
        create: impl FnOnce(*mut Pointer) -> i32,
    ) -> Result<Object> {
        let mut raw = std::ptr::null_mut();
        library.check(call, create(&mut raw))?;
        Ok(Object { library: library.clone(), raw, destroy })
    }

    fn set<T: Copy>(&self, call: &str, set: SetAttribute, attribute: i32, value: T) -> Result<()> {
        // SAFETY: a live object, and a value of the size that is said, which each caller gives the attribute's type.
        let result = unsafe { set(self.raw, attribute, (&raw const value).cast(), size_of::<T>()) };
        self.library.check(call, result)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        log(&self.library, "destroying an object of cuBLASLt", unsafe { (self.destroy)(self.raw) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_how_to_get_it() {
        let error = CublasLt::open(Some(Path::new("/nowhere/libcublasLt.so.13"))).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        for word in ["pip install nvidia-cublas", LIBRARY_ENV, "`cublaslt`", "/nowhere/libcublasLt.so.13"] {
            assert!(error.message().contains(word), "{word}: {error}");
        }
        let error = CublasLt::open(Some(Path::new("libc.so.6"))).unwrap_err();
        assert!(error.message().contains("it has no cublasLtGetVersion"), "{error}");
    }
}
