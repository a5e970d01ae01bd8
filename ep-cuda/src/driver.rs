//! libcuda, opened when it is needed.
//!
//! [`Driver::open`] finds every function that is used through `cuGetProcAddress`. Each is a method of [`Driver`]
//! with the driver's own name; a result other than success is [`Failed`], which becomes an
//! [`Error`] with one of our codes.

mod abi;
mod status;

pub use abi::*;
pub use status::{CuResult, Failed};

use crate::env;
use ep_core::{Error, Result};
use libloading::Library;
use std::ffi::{CString, OsStr, c_char, c_void};
use std::path::Path;

/// The oldest driver that has all functions, as `cuDriverGetVersion` tells it.
const OLDEST_VERSION: i32 = 12000;

/// The driver's file where nothing else is said.
pub const LIBRARY: &str = "libcuda.so.1";

/// The variable that names another file.
pub const LIBRARY_ENV: &str = "EP_CUDA_DRIVER";

/// A driver, initialized. The library stays mapped.
pub struct Driver {
    functions: Functions,
    version: i32,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *const c_void, i32, u64, *mut i32) -> CuResult;

impl Driver {
    /// Opens the library at `path`, or else the one that [`LIBRARY_ENV`] names, or else [`LIBRARY`].
    ///
    /// # Errors
    /// `Unavailable` where there is none, where it is too old, and where it finds no device.
    pub fn open(path: Option<&Path>) -> Result<Driver> {
        let chosen = path.map(|p| p.as_os_str().to_owned()).or_else(|| env::var(LIBRARY_ENV));
        let name = chosen.as_deref().unwrap_or(OsStr::new(LIBRARY));
        let library = open_library(name)?;
        let driver = Driver::resolve(&library, &name.to_string_lossy());
        // Drivers do not survive being unmapped: they have threads and exit handlers.
        std::mem::forget(library);
        let mut driver = driver?;
        let mut version = 0;
        // SAFETY: a valid out-pointer; the first call needs nothing before it.
        unsafe {
            driver.cuInit(0)?;
            driver.cuDriverGetVersion(&mut version)?;
        }
        driver.version = version;
        if driver.version < OLDEST_VERSION {
            return Err(too_old(driver.version));
        }
        Ok(driver)
    }

    fn resolve(library: &Library, name: &str) -> Result<Driver> {
        // SAFETY: this function has this type in every driver that exports it.
        let get = unsafe { library.get::<GetProcAddress>(b"cuGetProcAddress_v2\0") }
            .map_err(|_| Error::unavailable(format!("{name} has no cuGetProcAddress_v2; {UPDATE}")))?;
        // SAFETY: the driver returns the function of this name as it was in this version.
        let functions = unsafe {
            Functions::resolve(|function, version| {
                let text = CString::new(function).map_err(|e| Error::internal(e.to_string()))?;
                let (mut address, mut status) = (std::ptr::null(), 0);
                let result = get(text.as_ptr(), &mut address, version, 0, &mut status);
                if result != CuResult::SUCCESS || address.is_null() {
                    return Err(Error::unavailable(format!("{name} has no {function}; {UPDATE}")));
                }
                Ok(address)
            })
        }?;
        Ok(Driver { functions, version: 0 })
    }

    /// The CUDA version that it is for: 1000 times the major and 10 times the minor number.
    pub fn version(&self) -> i32 {
        self.version
    }

    #[cold]
    fn failed(&self, call: &'static str, result: CuResult) -> Failed {
        let [name, text] = self.words(result);
        Failed { call, result, name, text }
    }
}

const UPDATE: &str = "a driver for CUDA 12.0 or newer (525.60 or newer) is needed";

fn too_old(version: i32) -> Error {
    Error::unavailable(format!("the driver is for CUDA {}.{}; {UPDATE}", version / 1000, version % 1000 / 10))
}

fn open_library(name: &OsStr) -> Result<Library> {
    // SAFETY: the system's driver, or a file that the user names: its code may run here.
    unsafe { Library::new(name) }.map_err(|e| {
        let name = name.to_string_lossy();
        let text = env::loader_words(&e);
        if text.contains("No such file") {
            Error::unavailable(format!("{name} not found"))
        } else {
            Error::unavailable(format!("{name} cannot be loaded: {text}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    #[test]
    fn a_missing_library_is_unavailable() {
        let error = Driver::open(Some(Path::new("/nowhere/libcuda.so.1"))).unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::Unavailable, "/nowhere/libcuda.so.1 not found"));
    }

    #[test]
    fn another_library_says_what_it_lacks() {
        let error = Driver::open(Some(Path::new("libc.so.6"))).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.message().starts_with("libc.so.6 has no cuGetProcAddress_v2; a driver for"), "{error}");
    }
}
