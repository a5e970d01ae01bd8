//! Noticing that this process is a forked child.
//!
//! Threads, device contexts and locks do not survive `fork`. A provider that does not say otherwise answers
//! `Unavailable` there instead of hanging.

use crate::{Error, Result};

#[cfg(unix)]
mod imp {
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, Ordering};

    static FORKED: AtomicBool = AtomicBool::new(false);
    static WATCH: Once = Once::new();

    unsafe extern "C" {
        fn pthread_atfork(
            prepare: Option<unsafe extern "C" fn()>,
            parent: Option<unsafe extern "C" fn()>,
            child: Option<unsafe extern "C" fn()>,
        ) -> i32;
    }

    unsafe extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }

    pub(super) fn watch() {
        WATCH.call_once(|| {
            // SAFETY: `in_child` only stores to an atomic, which is allowed in a forked child, and the code
            // stays mapped for the life of the process (rule 8). Without memory for the handler the result is
            // non-zero and forks go unnoticed, which is the state of affairs without this module.
            let _unnoticed = unsafe { pthread_atfork(None, None, Some(in_child)) };
        });
    }

    #[inline]
    pub(super) fn forked() -> bool {
        FORKED.load(Ordering::Relaxed)
    }
}

#[cfg(not(unix))]
mod imp {
    pub(super) fn watch() {}

    pub(super) fn forked() -> bool {
        false
    }
}

/// Starts noticing forks.
pub(crate) fn watch() {
    imp::watch();
}

/// Fails in a forked child.
#[inline]
pub(crate) fn check(fork_safe: bool) -> Result<()> {
    if imp::forked() && !fork_safe { Err(forked()) } else { Ok(()) }
}

#[cold]
fn forked() -> Error {
    Error::unavailable(
        "forked: this process is a forked child and the provider works only in the process that created it; \
         start the child anew instead (exec, spawn)",
    )
}
