//! Sessions: a device, a stream of work on it, and devices that stand in where it lacks something.

use crate::given::{free, given_text, json, list, logged, made, made_handle, needed, object, run};
use crate::runtime::Runtime;
use ep_core::abi::EpStatus;
use ep_core::{Error, Result};
use ep_ops::{Fallback, Ops};
use ep_registry::{Runtime as Loaded, Stream};
use serde::Serialize;
use std::ffi::{CString, c_char};
use std::sync::Arc;

/// A device, a stream of work on it, and devices that stand in for it.
pub struct Session {
    pub(crate) runtime: Arc<Loaded>,
    pub(crate) ops: Ops<'static>,
    device: CString,
}

impl Session {
    /// # Safety
    /// `fallback` is so many texts.
    unsafe fn new(
        runtime: &Runtime,
        ops: Ops<'static>,
        fallback: *const *const c_char,
        num_fallback: usize,
    ) -> Result<Session> {
        // SAFETY: as the caller promises.
        let fallback = unsafe { list(fallback, num_fallback, "fallback devices") }?;
        // SAFETY: as the caller promises.
        let names = fallback.iter().map(|name| unsafe { needed(*name, "name of a fallback device") });
        let ops = ops.with_fallback(names.collect::<Result<Vec<_>>>()?)?;
        let device = given_text(ops.device().name());
        Ok(Session { runtime: runtime.0.clone(), ops, device })
    }
}

/// A session on a device (`cuda:0`, or `cuda` for the first of its kind), with a stream of its own. What the device lacks runs
/// on the first of the `fallback` devices that has it, with copies there and back that `ep_session_fallbacks` tells.
///
/// # Safety
/// `runtime` is a live handle, `device` is a text, `fallback` has so many texts, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_session_open(
    runtime: *const Runtime,
    device: *const c_char,
    fallback: *const *const c_char,
    num_fallback: usize,
    out: *mut *mut Session,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let runtime = object(runtime, "runtime")?;
            let ops = Ops::shared(&runtime.0, needed(device, "device")?)?;
            Session::new(runtime, ops, fallback, num_fallback)
        })
    }
}

/// The same on a native stream that another library made: work on the device is in order with that library's own. `kind` is the
/// provider's name of such handles, `CUstream` of CUDA. What runs on a fallback device, and `to_device` of another session, are
/// not on that stream: before a fallback its work is waited for, and before the second the caller waits.
///
/// # Safety
/// As `ep_session_open`; and `native` is a live stream of that kind on this device until the session is freed. While anybody records
/// its work into a graph, neither this session nor another one that was adopted from it is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_session_adopt(
    runtime: *const Runtime,
    device: *const c_char,
    kind: *const c_char,
    native: u64,
    fallback: *const *const c_char,
    num_fallback: usize,
    out: *mut *mut Session,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let runtime = object(runtime, "runtime")?;
            let device = runtime.0.device(needed(device, "device")?)?;
            let stream: Stream = device.adopt_stream(needed(kind, "kind of the stream")?, native)?;
            let ops = Ops::shared(&runtime.0, device.name())?.with_stream(stream)?;
            Session::new(runtime, ops, fallback, num_fallback)
        })
    }
}

/// The native stream that the session's work goes onto, for other libraries that take one: `kind`, which is to be freed, and
/// its handle, which is valid until the session is freed. What the session queued so far is done or on it; what a provider does that does
/// not share it is not (`ep_session_sync` waits for that), nor what runs on fallback devices. `Unsupported` where the device has no such
/// thing.
///
/// # Safety
/// `session` is a live handle, `kind` and `native` may be written. Nobody records work of the native stream into a graph while the session is
/// used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_session_native(
    session: *const Session,
    kind: *mut *mut c_char,
    native: *mut u64,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made(kind, || {
            if native.is_null() {
                return Err(Error::invalid(
                    "the place for the handle is null; pass the address of a variable",
                ));
            }
            let (kind, handle) = object(session, "session")?.ops.stream().native()?;
            native.write(handle);
            Ok(given_text(&kind).into_raw())
        })
    }
}

/// The device, as `cuda:0`.
///
/// # Safety
/// `session` is null, which gives null, or a live handle, with which the text ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_session_device(session: *const Session) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { session.as_ref() }.map_or(std::ptr::null(), |session| session.device.as_ptr())
}

/// Waits for all work of the session, and tells its first error, once.
///
/// # Safety
/// `session` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_session_sync(session: *const Session) -> *const EpStatus {
    // SAFETY: as the caller promises.
    run(|| unsafe { object(session, "session") }?.ops.sync())
}

/// What ran on another device.
#[derive(Serialize)]
struct FallbackRow<'a> {
    operator: &'a str,
    from: &'a str,
    to: &'a str,
    bytes: u64,
    times: u64,
    reason: &'a str,
}

impl<'a> From<&'a Fallback> for FallbackRow<'a> {
    fn from(f: &'a Fallback) -> FallbackRow<'a> {
        FallbackRow {
            operator: f.operator,
            from: &f.from,
            to: &f.to,
            bytes: f.bytes,
            times: f.times,
            reason: &f.reason,
        }
    }
}

/// What ran on other devices so far, as JSON: `[{operator, from, to, bytes, times, reason}]`, `bytes` being those that were
/// copied there and back.
///
/// # Safety
/// `session` is a live handle, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_session_fallbacks(
    session: *const Session,
    out: *mut *mut c_char,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made(out, || {
            let all = object(session, "session")?.ops.fallbacks();
            json(&all.iter().map(FallbackRow::from).collect::<Vec<_>>())
        })
    }
}

/// Frees a session after waiting for its work, launches on addresses included; an error of that work is logged. Its tensors stay usable.
///
/// # Safety
/// Null or a handle that nobody uses again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_session_free(session: *mut Session) {
    // SAFETY: as the caller promises.
    unsafe {
        if let Some(live) = session.as_ref() {
            logged(run(|| live.ops.sync()));
        }
        free(session);
    }
}
