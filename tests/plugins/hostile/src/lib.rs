//! A provider that misbehaves in one way, its *mode*, and is good otherwise: a device with ReLU on
//! f32.
//!
//! A mode is `<stage>.<what>`; `cases.rs` lists them with what a host is to make of each. Besides, every stage in
//! `provider.rs` has `<stage>.abort`, `.segv`, `.exit` and `.hang`, which a host survives only in a child process. The mode
//! comes, first one wins, from
//! - the instance's option `mode`, for stages from `create` on,
//! - `ep_test_hostile_mode`, an exported function, for the calling thread,
//! - the environment variable `EP_TEST_HOSTILE`.
//!
//! An unknown mode is an error, so that a misspelt one does not pass for good behaviour.

mod process;
mod provider;
mod tables;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod tests;

use ep_core::abi::{ABI_MAJOR, ABI_MINOR, EpPlugin, EpStatus, EpStr, finish, str_of};
use ep_core::{Error, Result};
use std::cell::RefCell;
use std::sync::Arc;

/// How the provider misbehaves; empty: not at all.
#[derive(Clone, Default)]
struct Mode(Arc<str>);

thread_local! {
    static CHOSEN: RefCell<Option<Mode>> = const { RefCell::new(None) };
}

impl Mode {
    /// The mode of this thread or of the process.
    fn current() -> Result<Mode> {
        let chosen = CHOSEN.with_borrow(Clone::clone);
        chosen.map_or_else(|| Mode::new(&std::env::var("EP_TEST_HOSTILE").unwrap_or_default()), Ok)
    }

    fn new(name: &str) -> Result<Mode> {
        if name.is_empty() || provider::knows(name) || tables::knows(name) {
            return Ok(Mode(name.into()));
        }
        Err(Error::invalid(format!("the hostile provider has no mode `{name}`")))
    }

    fn is(&self, name: &str) -> bool {
        *self.0 == *name
    }

    /// Does what the mode says about a stage.
    fn act(&self, stage: &str) -> Result<()> {
        match self.0.strip_prefix(stage) {
            Some(".panic") => panic!("hostile {stage}"),
            Some(".error") => Err(Error::internal(format!("hostile {stage}"))),
            Some(".unavailable") => Err(Error::unavailable(format!("hostile {stage}: there is no driver"))),
            Some(".abort") => std::process::abort(),
            Some(".segv") => loop {
                // Rust's handler looks for overflows of the stack, and lets only the second one end the process.
                raise(11);
            },
            Some(".exit") => std::process::exit(3),
            Some(".hang") => loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            },
            _ => Ok(()),
        }
    }
}

unsafe extern "C" {
    safe fn raise(signal: i32) -> i32;
}

/// Sets the mode for the calling thread.
///
/// # Safety
/// `mode` is readable text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_test_hostile_mode(mode: EpStr) -> *const EpStatus {
    finish(|| {
        // SAFETY: as the caller promises.
        let mode = Mode::new(unsafe { str_of(mode) }?)?;
        CHOSEN.set(Some(mode));
        Ok(())
    })
}

/// The plugin's entry point.
///
/// # Safety
/// `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_plugin_query(
    host_major: u32,
    host_minor: u32,
    out: *mut *const EpPlugin,
) -> *const EpStatus {
    let mut status = std::ptr::null();
    let guarded = finish(|| {
        let mode = Mode::current()?;
        mode.act("query")?;
        if (host_major, host_minor) < (ABI_MAJOR, ABI_MINOR) {
            return Err(Error::abi(format!("a host of ABI {host_major}.{host_minor} is too old")));
        }
        // SAFETY: as the caller promises.
        status = unsafe { tables::query(&mode, out) }?;
        Ok(())
    });
    if guarded.is_null() { status } else { guarded }
}
