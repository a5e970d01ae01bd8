//! The host's side of `EpHostServices`.

use crate::abi::*;
use crate::parallel::Parallel;
use crate::{DType, Error, Result, dtype};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a host does for one provider instance.
pub trait HostSide: Send + Sync + 'static {
    /// Whether messages of this level (1 error to 5 trace) are wanted.
    fn log_enabled(&self, level: u32) -> bool;
    /// Takes a message. Calls no plugin.
    fn log(&self, level: u32, target: &str, message: &str);
    /// The threads.
    fn parallel(&self) -> &dyn Parallel;
}

/// Owns the table of one instance and what its context points to. A plugin keeps pointers to both, so they are
/// held by a raw pointer, which may be moved while others point to the same, unlike a `Box`.
pub(super) struct Services(NonNull<Inner>);

struct Inner {
    table: EpHostServices,
    side: Arc<dyn HostSide>,
}

impl Services {
    pub(super) fn new(side: Arc<dyn HostSide>) -> Services {
        let table = EpHostServices {
            abi_major: ABI_MAJOR,
            abi_minor: ABI_MINOR,
            log_enabled: Some(log_enabled),
            log: Some(log),
            num_threads: Some(num_threads),
            parallel_for: Some(parallel_for),
            intern_dtype: Some(intern_dtype),
            get_interface: Some(get_interface),
            ..EpHostServices::EMPTY
        };
        let mut inner = NonNull::from(Box::leak(Box::new(Inner { table, side })));
        // SAFETY: just made, and nobody else knows it yet.
        unsafe { inner.as_mut() }.table.context = inner.as_ptr().cast();
        Services(inner)
    }

    /// Valid as long as `self`.
    pub(super) fn table(&self) -> *const EpHostServices {
        // SAFETY: `self` owns a live `Inner`.
        unsafe { &raw const (*self.0.as_ptr()).table }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak` in `new`, freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// # Safety
/// `context` is the context of a live [`Services`].
unsafe fn side<'a>(context: *mut c_void) -> &'a dyn HostSide {
    // SAFETY: as the caller promises.
    unsafe { &*(*context.cast::<Inner>()).side }
}

/// Runs host code that returns no status; a panic in it (in a subscriber, say) is dropped here, because there
/// is nobody to tell.
fn quietly<R>(default: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        std::mem::forget(payload);
        default
    })
}

unsafe extern "C" fn log_enabled(context: *mut c_void, level: u32) -> u32 {
    // SAFETY: the plugin passes the context it was given, while the instance lives.
    quietly(0, || unsafe { side(context) }.log_enabled(level).into())
}

unsafe extern "C" fn log(context: *mut c_void, level: u32, target: EpStr, message: EpStr) {
    // SAFETY: as above; the texts live during the call.
    quietly((), || unsafe { side(context).log(level, &string_of(target), &string_of(message)) });
}

unsafe extern "C" fn num_threads(context: *mut c_void) -> u32 {
    // SAFETY: as above.
    quietly(1, || unsafe { side(context) }.parallel().threads().try_into().unwrap_or(u32::MAX))
}

/// The plugin's `user` pointer, which its task may use from several threads (rule 9).
struct User(*mut c_void);
// SAFETY: the contract of `parallel_for` says that the task is called from several threads with it.
unsafe impl Sync for User {}

unsafe extern "C" fn parallel_for(
    context: *mut c_void,
    n: u64,
    grain: u64,
    max_threads: u32,
    task: Option<EpTask>,
    user: *mut c_void,
) -> *const EpStatus {
    finish(|| {
        let task = task.ok_or_else(|| Error::invalid("parallel_for: the task is null"))?;
        let size =
            |v: u64| usize::try_from(v).map_err(|_| Error::invalid(format!("parallel_for: {v} chunks")));
        let user = User(user);
        // SAFETY: the context is live; the plugin's task may be called with its user pointer until this
        // function returns, and each status that it returns is ours.
        let parallel = unsafe { side(context) }.parallel();
        parallel.parallel_for(size(n)?, size(grain)?, max_threads as usize, &|range| {
            let user = &user;
            // SAFETY: as above.
            unsafe { take(task(user.0, range.start as u64, range.end as u64)) }
        })
    })
}

unsafe extern "C" fn intern_dtype(
    _: *mut c_void,
    info: *const EpDtypeInfo,
    out: *mut u32,
) -> *const EpStatus {
    finish(|| {
        // SAFETY: the plugin's struct and text live during the call.
        let (info, name) = unsafe {
            let info = read_struct(info)?;
            (info, str_of(info.name)?)
        };
        let DType(id) = dtype::vendor::intern(None, name, info.bits, info.alignment)?;
        if out.is_null() {
            return Err(Error::invalid("intern_dtype: the out-pointer is null"));
        }
        // SAFETY: not null; the plugin's.
        unsafe { out.write(id) };
        Ok(())
    })
}

unsafe extern "C" fn get_interface(
    _: *mut c_void,
    _: EpStr,
    _: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    finish(|| -> Result<()> {
        if out.is_null() {
            return Err(Error::invalid("get_interface: the out-pointer is null"));
        }
        // SAFETY: not null; the plugin's. This host has no optional interface yet: null means absent.
        unsafe { out.write(std::ptr::null()) };
        Ok(())
    })
}
