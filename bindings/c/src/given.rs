//! What callers hand over: pointers, text, lists; and text that they get.

use ep_core::abi::{EpStatus, finish, take};
use ep_core::{Error, Result};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;

/// What other libraries are told when their memory is not used any more.
type Notice = Box<dyn FnOnce()>;

thread_local! {
    /// How many functions of this library are under way on this thread, one within the other.
    static UNDER_WAY: Cell<usize> = const { Cell::new(0) };
    /// What is told when the outermost of them ends.
    static NOTICES: RefCell<Vec<Notice>> = const { RefCell::new(Vec::new()) };
}

/// Tells another library something when no lock of ours is held: at the end of the function that is under way on this thread.
/// Deleters are called wherever work is found to be done, and what they call may wait for a thread that waits for us.
pub(crate) fn tell(notice: impl FnOnce() + 'static) {
    let mut notice: Option<Notice> = Some(Box::new(notice));
    if UNDER_WAY.get() != 0 {
        // Where the thread ends, its list may be gone already.
        NOTICES.try_with(|all| all.borrow_mut().extend(notice.take())).unwrap_or_default();
    }
    if let Some(now) = notice {
        now();
    }
}

fn next_notice() -> Option<Notice> {
    NOTICES.try_with(|all| all.borrow_mut().pop()).ok().flatten()
}

/// Runs the body of a function: nothing unwinds, and other libraries are told at its end.
pub(crate) fn run(body: impl FnOnce() -> Result<()>) -> *const EpStatus {
    UNDER_WAY.set(UNDER_WAY.get() + 1);
    let status = finish(body);
    if UNDER_WAY.get() == 1 {
        // What is told may lead to more: until there is nothing left.
        while let Some(notice) = next_notice() {
            logged(finish(|| {
                notice();
                Ok(())
            }));
        }
    }
    UNDER_WAY.set(UNDER_WAY.get() - 1);
    status
}

/// Where nobody can be given an error.
pub(crate) fn logged(status: *const EpStatus) {
    // SAFETY: a status that was just made, released once.
    if let Err(e) = unsafe { take(status) } {
        tracing::error!("{e}");
    }
}

/// Runs the body of a function, and writes what it makes to `out`: nothing unwinds, and null is refused.
///
/// # Safety
/// `out` is null or may be written.
pub(crate) unsafe fn made<T>(out: *mut T, body: impl FnOnce() -> Result<T>) -> *const EpStatus {
    run(|| {
        if out.is_null() {
            return Err(Error::invalid("the place for the result is null; pass the address of a variable"));
        }
        let made = body()?;
        // SAFETY: not null, so it may be written, as the caller promises.
        unsafe { out.write(made) };
        Ok(())
    })
}

/// The same, for an object that gets a handle.
///
/// # Safety
/// As [`made`].
pub(crate) unsafe fn made_handle<T>(out: *mut *mut T, body: impl FnOnce() -> Result<T>) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe { made(out, || Ok(Box::into_raw(Box::new(body()?)))) }
}

/// An object by its handle.
///
/// # Safety
/// The handle is null, or one that lives as long as the result is used.
pub(crate) unsafe fn object<'a, T>(handle: *const T, what: impl Display) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { handle.as_ref() }
        .ok_or_else(|| Error::invalid(format!("the {what} is null; pass one that lives")))
}

/// Frees an object.
///
/// # Safety
/// The handle is null or of [`made_handle`], and nobody uses it again.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        logged(run(|| {
            // SAFETY: made by `Box::into_raw`, and given back once.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        }));
    }
}

/// Text that may be left out.
///
/// # Safety
/// Null, or a text that ends and lives as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Error::invalid(format!("the {what} is not UTF-8")))
}

/// Text that is needed.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn needed<'a>(given: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: as the caller promises.
    unsafe { text(given, what) }?.ok_or_else(|| Error::invalid(format!("the {what} is null; pass a text")))
}

/// A list, whose address may be null where it is empty.
///
/// # Safety
/// Null, or so many elements that live as long as the result is used.
pub(crate) unsafe fn list<'a, T>(first: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(Error::invalid(format!("the {what} are {count} and their address is null")));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Error::invalid(format!("the {what} are {count}, more than memory has")));
    }
    // SAFETY: as the caller promises; not null, and of a size that can be.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Text for a caller; zeros in it, which would end it, are left out.
pub(crate) fn given_text(text: &str) -> CString {
    let bytes = text.bytes().filter(|b| *b != 0).collect::<Vec<_>>();
    CString::new(bytes).expect("no zero is left")
}

/// A value as JSON for a caller, who frees it.
pub(crate) fn json(value: &impl Serialize) -> Result<*mut c_char> {
    let text = serde_json::to_string(value).map_err(|e| Error::internal(format!("as JSON: {e}")))?;
    Ok(given_text(&text).into_raw())
}

/// Frees text that a function of this library returned with `char *`. Null may be freed.
///
/// # Safety
/// From this library, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: made by `CString::into_raw`, and given back once.
        drop(unsafe { CString::from_raw(text) });
    }
}
