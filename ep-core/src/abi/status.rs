//! Errors on their way across the boundary (rule 7).

use super::types::{EpStatus, EpStr};
use super::{string_of, text};
use crate::{Code, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An [`EpStatus`] with the text that it points to. `head` comes first, so a pointer to one is a pointer to
/// the other.
#[repr(C)]
struct Owned {
    head: EpStatus,
    message: Box<str>,
}

unsafe extern "C" fn release_owned(status: *const EpStatus) {
    // SAFETY: only ever the `release` of a status that `report` made from a Box<Owned>, and a status is
    // released exactly once.
    drop(unsafe { Box::from_raw(status.cast_mut().cast::<Owned>()) });
}

unsafe extern "C" fn release_nothing(_: *const EpStatus) {}

/// A static status with code `Unsupported`, for entries that the other side lacks.
pub const fn missing_status(message: &'static str) -> EpStatus {
    EpStatus {
        code: Code::Unsupported as i32,
        reserved: 0,
        message: text(message),
        release: Some(release_nothing),
    }
}

/// An error as a status that the receiver releases.
#[cold]
pub fn report(error: Error) -> *const EpStatus {
    let message: Box<str> = error.message().into();
    let mut owned = Box::new(Owned {
        head: EpStatus {
            code: error.code() as i32,
            reserved: 0,
            message: EpStr::ZERO,
            release: Some(release_owned),
        },
        message,
    });
    owned.head.message = EpStr::new(&owned.message);
    Box::into_raw(owned).cast()
}

/// Receives a status: null is `Ok`, anything else is copied and released.
///
/// # Errors
/// The error that the status says.
///
/// # Safety
/// `status` is null or a live status that nobody else releases.
#[inline]
pub unsafe fn take(status: *const EpStatus) -> Result<()> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller promises.
    Err(unsafe { take_error(status) })
}

/// # Safety
/// `status` is a live status that nobody else releases.
#[cold]
unsafe fn take_error(status: *const EpStatus) -> Error {
    if !status.is_aligned() {
        return Error::abi(format!("a status at {status:p} is misaligned"));
    }
    // SAFETY: live and aligned; frozen layout; the message is valid until the release.
    let (head, message) = unsafe { (*status, string_of((*status).message)) };
    let error = Error::new(Code::from_raw(head.code), message);
    if let Some(release) = head.release {
        // SAFETY: released here, once, and not touched afterwards.
        unsafe { release(status) };
    }
    error
}

/// Runs the body of an entry point: errors and panics become statuses, so that nothing unwinds across.
#[inline]
pub fn finish(body: impl FnOnce() -> Result<()>) -> *const EpStatus {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => std::ptr::null(),
        Ok(Err(error)) => report(error),
        Err(payload) => panicked(payload),
    }
}

#[cold]
fn panicked(payload: Box<dyn std::any::Any + Send>) -> *const EpStatus {
    let message = payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(the payload is not text)".to_owned());
    // A payload whose own drop panics would unwind across the boundary after all.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
    report(Error::panic(format!("panicked: {message}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        // SAFETY: each status is fresh from `finish` and taken once.
        unsafe {
            assert_eq!(take(finish(|| Ok(()))), Ok(()));
            let e = take(finish(|| Err(Error::out_of_memory("ask for less")))).unwrap_err();
            assert_eq!((e.code(), e.message()), (Code::OutOfMemory, "ask for less"));
            let e = take(finish(|| panic!("boom {}", 1))).unwrap_err();
            assert_eq!((e.code(), e.message()), (Code::Panic, "panicked: boom 1"));
        }
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("second");
            }
        }
        // SAFETY: fresh from `finish`, taken once.
        let e = unsafe { take(finish(|| std::panic::panic_any(Bomb))) }.unwrap_err();
        assert_eq!(e.code(), Code::Panic);
    }

    #[test]
    fn static_statuses_can_be_taken_often() {
        static STATUS: EpStatus = missing_status("x is not provided");
        for _ in 0..3 {
            // SAFETY: static, and its release does nothing.
            assert_eq!(unsafe { take(&STATUS) }.unwrap_err().code(), Code::Unsupported);
        }
    }
}
