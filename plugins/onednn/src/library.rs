//! oneDNN itself, opened at run time: its functions, constants and statuses.

use ep_core::{Code, Error, Result};
use libloading::os::unix::{Library as File, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// The variable that names the library's file, or the folder that holds it.
pub const LIBRARY_ENV: &str = "EP_ONEDNN_LIBRARY";

/// The library's name; all releases of version 3 have it, and one C interface.
const FILE_NAME: &str = "libdnnl.so.3";
const MAJOR: i32 = 3;

/// A handle of the library: engine, stream, memory, descriptor or primitive.
pub(crate) type Handle = *mut c_void;

/// `dnnl_exec_arg_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExecArg {
    pub(crate) arg: i32,
    pub(crate) memory: Handle,
}

/// `dnnl_version_t`
#[repr(C)]
struct RawVersion {
    major: i32,
    minor: i32,
    patch: i32,
    hash: *const c_char,
    cpu_runtime: u32,
    gpu_runtime: u32,
}

/// Enumerators, in the spelling of the library's header without the prefix.
pub(crate) mod constant {
    pub(crate) const CPU: i32 = 1;
    pub(crate) const STREAM_DEFAULT_FLAGS: u32 = 1;
    pub(crate) const F16: i32 = 1;
    pub(crate) const BF16: i32 = 2;
    pub(crate) const F32: i32 = 3;
    pub(crate) const DATA_TYPE_UNDEF: i32 = 0;
    pub(crate) const FPMATH_MODE_STRICT: i32 = 0;
    pub(crate) const SCRATCHPAD_MODE_USER: i32 = 1;
    pub(crate) const QUERY_IMPL_INFO_STR: i32 = 8;
    pub(crate) const QUERY_SCRATCHPAD_MD: i32 = 136;
    pub(crate) const FORWARD_TRAINING: i32 = 64;
    pub(crate) const USE_SCALE: u32 = 2;
    pub(crate) const USE_SHIFT: u32 = 4;
    pub(crate) const ARG_SRC: i32 = 1;
    pub(crate) const ARG_DST: i32 = 17;
    pub(crate) const ARG_WEIGHTS: i32 = 33;
    pub(crate) const ARG_MEAN: i32 = 49;
    pub(crate) const ARG_VARIANCE: i32 = 50;
    pub(crate) const ARG_SCALE: i32 = 51;
    pub(crate) const ARG_SHIFT: i32 = 52;
    pub(crate) const ARG_SCRATCHPAD: i32 = 80;
}

/// What starts threads for a build of the library (`DNNL_RUNTIME_...`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Threading {
    Sequential,
    OpenMp,
    Tbb,
    Threadpool,
    Sycl,
    Unknown,
}

impl Threading {
    fn of(runtime: u32) -> Threading {
        match runtime {
            1 => Threading::Sequential,
            2 => Threading::OpenMp,
            4 => Threading::Tbb,
            8 => Threading::Threadpool,
            512 => Threading::Sycl,
            _ => Threading::Unknown,
        }
    }
}

type Destroy = unsafe extern "C" fn(Handle) -> i32;

/// The functions that are used.
pub(crate) struct Functions {
    effective_cpu_isa: unsafe extern "C" fn() -> i32,
    pub(crate) engine_create: unsafe extern "C" fn(*mut Handle, i32, usize) -> i32,
    pub(crate) engine_destroy: Destroy,
    pub(crate) stream_create: unsafe extern "C" fn(*mut Handle, Handle, u32) -> i32,
    pub(crate) stream_wait: unsafe extern "C" fn(Handle) -> i32,
    pub(crate) stream_destroy: Destroy,
    pub(crate) memory_desc_create: unsafe extern "C" fn(*mut Handle, i32, *const i64, i32, *const i64) -> i32,
    pub(crate) memory_desc_size: unsafe extern "C" fn(Handle) -> usize,
    pub(crate) memory_desc_destroy: Destroy,
    pub(crate) memory_create: unsafe extern "C" fn(*mut Handle, Handle, Handle, *mut c_void) -> i32,
    pub(crate) memory_set_data: unsafe extern "C" fn(Handle, *mut c_void) -> i32,
    pub(crate) memory_destroy: Destroy,
    pub(crate) attr_create: unsafe extern "C" fn(*mut Handle) -> i32,
    pub(crate) attr_set_scratchpad_mode: unsafe extern "C" fn(Handle, i32) -> i32,
    pub(crate) attr_set_fpmath_mode: unsafe extern "C" fn(Handle, i32) -> i32,
    pub(crate) attr_set_post_ops: unsafe extern "C" fn(Handle, Handle) -> i32,
    pub(crate) attr_destroy: Destroy,
    pub(crate) post_ops_create: unsafe extern "C" fn(*mut Handle) -> i32,
    pub(crate) post_ops_append_sum: unsafe extern "C" fn(Handle, f32, i32, i32) -> i32,
    pub(crate) post_ops_destroy: Destroy,
    pub(crate) matmul:
        unsafe extern "C" fn(*mut Handle, Handle, Handle, Handle, Handle, Handle, Handle) -> i32,
    pub(crate) layer_normalization:
        unsafe extern "C" fn(*mut Handle, Handle, i32, Handle, Handle, Handle, f32, u32, Handle) -> i32,
    pub(crate) desc_query: unsafe extern "C" fn(Handle, i32, i32, *mut c_void) -> i32,
    pub(crate) desc_query_md: unsafe extern "C" fn(Handle, i32, i32) -> Handle,
    pub(crate) desc_destroy: Destroy,
    pub(crate) primitive_create: unsafe extern "C" fn(*mut Handle, Handle) -> i32,
    pub(crate) primitive_execute: unsafe extern "C" fn(Handle, Handle, i32, *const ExecArg) -> i32,
    pub(crate) primitive_destroy: Destroy,
}

/// How many threads work that begins on the calling thread may take.
#[derive(Clone, Copy)]
enum Setting {
    /// Of an OpenMP runtime.
    OpenMp { get: unsafe extern "C" fn() -> i32, set: unsafe extern "C" fn(i32) },
    /// Of a build for thread pools.
    Threadpool { get: unsafe extern "C" fn(*mut i32) -> i32, set: unsafe extern "C" fn(i32) -> i32 },
}

impl Setting {
    fn get(self) -> i32 {
        let mut threads = 1;
        // SAFETY: queries about the calling thread, one with a place for the answer.
        unsafe {
            match self {
                Setting::OpenMp { get, .. } => threads = get(),
                Setting::Threadpool { get, .. } => _ = get(&mut threads),
            }
        }
        threads
    }

    fn set(self, threads: i32) {
        // SAFETY: settings of the calling thread.
        unsafe {
            match self {
                Setting::OpenMp { set, .. } => set(threads),
                Setting::Threadpool { set, .. } => _ = set(threads),
            }
        }
    }
}

/// The library. It stays mapped.
pub struct Library {
    pub(crate) functions: Functions,
    settings: Vec<Setting>,
    path: PathBuf,
    version: [i32; 3],
    threading: Threading,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oneDNN {} ({:?}, {})", self.version(), self.threading, self.path.display())
    }
}

impl Library {
    /// Opens it: the file or folder `option`, else what [`LIBRARY_ENV`] names, else the loader's paths
    /// (`LD_LIBRARY_PATH`), the active Python or Conda environment, and where Intel's installer puts it.
    ///
    /// # Errors
    /// `Unavailable` with the places that were searched and how to get it.
    pub fn open(option: Option<&Path>) -> Result<Library> {
        let mut failures = Vec::new();
        for path in candidates(option, &var) {
            match Library::load(&path) {
                Ok(library) => {
                    tracing::debug!("{library:?}");
                    return Ok(library);
                }
                Err(e) => failures.push(format!("  {}: {e}", path.display())),
            }
        }
        Err(Error::unavailable(format!(
            "oneDNN 3 ({FILE_NAME}) is not found. Install it (for one, `pip install onednn-cpu-gomp`); if it is \
             elsewhere, name its file or folder with option `library` or {LIBRARY_ENV}. Tried:\n{}",
            failures.join("\n")
        )))
    }

    fn load(path: &Path) -> Result<Library> {
        // SAFETY: oneDNN, from where the user or the system has installed it: its code may run here.
        let file = unsafe { File::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let file = file.map_err(|e| Error::unavailable(loader_words(&e)))?;
        // Never unmapped, whatever it turns out to be: what it needs may have started threads.
        let file = ManuallyDrop::new(file);
        // SAFETY: as `dnnl.h` of all versions declares it.
        let version =
            unsafe { symbol::<unsafe extern "C" fn() -> *const RawVersion>(&file, "dnnl_version") }?;
        // SAFETY: a query without arguments, whose answer is constant.
        let version = unsafe { version().as_ref() };
        let version = version.ok_or_else(|| Error::unavailable("it does not tell its version"))?;
        let numbers = [version.major, version.minor, version.patch];
        if version.major != MAJOR {
            return Err(Error::unavailable(format!(
                "this is oneDNN {}.{}.{}; version {MAJOR} is needed",
                version.major, version.minor, version.patch
            )));
        }
        let threading = Threading::of(version.cpu_runtime);
        let settings = match threading {
            Threading::OpenMp => openmp(&file),
            Threading::Threadpool => threadpool(&file).into_iter().collect(),
            Threading::Sycl => {
                return Err(Error::unavailable(
                    "this is a build for SYCL, which computes on memory and queues of its own; use one for OpenMP",
                ));
            }
            Threading::Sequential | Threading::Tbb | Threading::Unknown => Vec::new(),
        };
        let functions = resolve(&file)?;
        let library = Library { functions, settings, path: path.to_owned(), version: numbers, threading };
        if !library.keeps_to_caller() {
            tracing::warn!(
                "{library:?} takes threads of its own beside the host's, and cannot be told to leave that; use a build \
                 for OpenMP whose runtime is a shared library"
            );
        }
        Ok(library)
    }

    /// Its version: `3.2.0`.
    pub fn version(&self) -> String {
        let [major, minor, patch] = self.version;
        format!("{major}.{minor}.{patch}")
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The instruction set that it uses at most.
    pub fn isa(&self) -> String {
        // SAFETY: a query without arguments.
        let isa = unsafe { (self.functions.effective_cpu_isa)() };
        let name = match isa {
            0x1 => "sse41",
            0x3 => "avx",
            0x7 => "avx2",
            0xf => "avx2_vnni",
            0x1f => "avx2_vnni_2",
            0x27 => "avx512_core",
            0x67 => "avx512_core_vnni",
            0xe7 => "avx512_core_bf16",
            0x1ef => "avx512_core_fp16",
            0xfef => "avx512_core_amx",
            0x1fef => "avx512_core_amx_fp16",
            other => return format!("{other:#x}"),
        };
        name.to_owned()
    }

    /// Whether it can be told to compute on the calling thread alone.
    pub fn keeps_to_caller(&self) -> bool {
        match self.threading {
            Threading::Sequential => true,
            Threading::OpenMp | Threading::Threadpool => !self.settings.is_empty(),
            Threading::Tbb | Threading::Sycl | Threading::Unknown => false,
        }
    }

    /// Runs `work`, in which the library computes on the calling thread alone: threads are the host's.
    pub(crate) fn on_this_thread<T>(&self, work: impl FnOnce() -> T) -> T {
        let _restored: Vec<Restored> = self.settings.iter().filter_map(|s| Restored::one(*s)).collect();
        work()
    }

    /// # Errors
    /// What a status says, with the code that fits.
    pub(crate) fn check(&self, call: &str, status: i32) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(self.failed(call, status)) }
    }

    #[cold]
    fn failed(&self, call: &str, status: i32) -> Error {
        let (code, words) = match status {
            1 => (Code::OutOfMemory, "out of memory; free buffers"),
            2 => (Code::Internal, "invalid arguments"),
            3 | 4 => (Code::Unsupported, "not implemented; use another provider for it"),
            5 => (Code::Internal, "a failure while it ran"),
            _ => (Code::Internal, "an unknown status"),
        };
        Error::new(code, format!("{call} of oneDNN {}: status {status}, {words}", self.version()))
    }
}

/// A setting of the calling thread, put back at the end: it may be the application's.
struct Restored {
    setting: Setting,
    threads: i32,
}

impl Restored {
    /// Sets one thread, if it is not so already.
    fn one(setting: Setting) -> Option<Restored> {
        let threads = setting.get();
        (threads != 1).then(|| {
            setting.set(1);
            Restored { setting, threads }
        })
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        self.setting.set(self.threads);
    }
}

/// Files to try, in order.
fn candidates(option: Option<&Path>, variable: &dyn Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(named) = option.map(Path::to_owned).or_else(|| variable(LIBRARY_ENV)) {
        return vec![if named.is_dir() { named.join(FILE_NAME) } else { named }];
    }
    let roots = ["VIRTUAL_ENV", "CONDA_PREFIX", "DNNLROOT"].into_iter().filter_map(variable);
    let installed = roots.chain([PathBuf::from("/opt/intel/oneapi/dnnl/latest")]);
    let files = installed.map(|root| root.join("lib").join(FILE_NAME)).filter(|file| file.is_file());
    std::iter::once(PathBuf::from(FILE_NAME)).chain(files).collect()
}

/// The path in a variable; none in a process that has more rights than who started it.
fn var(name: &str) -> Option<PathBuf> {
    // SAFETY: a query without arguments in memory.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The loader's own words, which libloading keeps in the source of its error.
fn loader_words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A function of the library, or of one that it needs.
///
/// # Safety
/// `T` is the function pointer that the header declares under this name.
unsafe fn symbol<T: Copy>(file: &File, name: &str) -> Result<T> {
    // SAFETY: as the caller promises.
    let found = unsafe { file.get::<T>(name) };
    found.map(|symbol| *symbol).map_err(|e| Error::unavailable(format!("{name}: {}", loader_words(&e))))
}

/// Of the OpenMP runtime that this build is linked to, and of one that is in the process before it: the loader may give
/// the build the functions of that. None where the build is linked to none that shows its functions.
fn openmp(file: &File) -> Vec<Setting> {
    let find = |file: &File| {
        // SAFETY: as `omp.h` declares them.
        let (get, set) =
            unsafe { (symbol(file, "omp_get_max_threads"), symbol(file, "omp_set_num_threads")) };
        let (get, set) = (get.ok()?, set.ok()?);
        Some((set as unsafe extern "C" fn(i32) as usize, Setting::OpenMp { get, set }))
    };
    let Some((own, setting)) = find(file) else { return Vec::new() };
    let other = find(&ManuallyDrop::new(File::this())).filter(|(address, _)| *address != own);
    std::iter::once(setting).chain(other.map(|(_, setting)| setting)).collect()
}

fn threadpool(file: &File) -> Option<Setting> {
    // SAFETY: as `dnnl_threadpool.h` declares them.
    unsafe {
        Some(Setting::Threadpool {
            get: symbol(file, "dnnl_threadpool_interop_get_max_concurrency").ok()?,
            set: symbol(file, "dnnl_threadpool_interop_set_max_concurrency").ok()?,
        })
    }
}

fn resolve(file: &File) -> Result<Functions> {
    // SAFETY: as `dnnl.h` of version 3 declares them, enumerations being of the size of `int`.
    unsafe {
        Ok(Functions {
            effective_cpu_isa: symbol(file, "dnnl_get_effective_cpu_isa")?,
            engine_create: symbol(file, "dnnl_engine_create")?,
            engine_destroy: symbol(file, "dnnl_engine_destroy")?,
            stream_create: symbol(file, "dnnl_stream_create")?,
            stream_wait: symbol(file, "dnnl_stream_wait")?,
            stream_destroy: symbol(file, "dnnl_stream_destroy")?,
            memory_desc_create: symbol(file, "dnnl_memory_desc_create_with_strides")?,
            memory_desc_size: symbol(file, "dnnl_memory_desc_get_size")?,
            memory_desc_destroy: symbol(file, "dnnl_memory_desc_destroy")?,
            memory_create: symbol(file, "dnnl_memory_create")?,
            memory_set_data: symbol(file, "dnnl_memory_set_data_handle")?,
            memory_destroy: symbol(file, "dnnl_memory_destroy")?,
            attr_create: symbol(file, "dnnl_primitive_attr_create")?,
            attr_set_scratchpad_mode: symbol(file, "dnnl_primitive_attr_set_scratchpad_mode")?,
            attr_set_fpmath_mode: symbol(file, "dnnl_primitive_attr_set_fpmath_mode")?,
            attr_set_post_ops: symbol(file, "dnnl_primitive_attr_set_post_ops")?,
            attr_destroy: symbol(file, "dnnl_primitive_attr_destroy")?,
            post_ops_create: symbol(file, "dnnl_post_ops_create")?,
            post_ops_append_sum: symbol(file, "dnnl_post_ops_append_sum")?,
            post_ops_destroy: symbol(file, "dnnl_post_ops_destroy")?,
            matmul: symbol(file, "dnnl_matmul_primitive_desc_create")?,
            layer_normalization: symbol(file, "dnnl_layer_normalization_forward_primitive_desc_create")?,
            desc_query: symbol(file, "dnnl_primitive_desc_query")?,
            desc_query_md: symbol(file, "dnnl_primitive_desc_query_md")?,
            desc_destroy: symbol(file, "dnnl_primitive_desc_destroy")?,
            primitive_create: symbol(file, "dnnl_primitive_create")?,
            primitive_execute: symbol(file, "dnnl_primitive_execute")?,
            primitive_destroy: symbol(file, "dnnl_primitive_destroy")?,
        })
    }
}

/// The text that a pointer of the library is to.
///
/// # Safety
/// Null, or a text that lives during the call.
pub(crate) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
