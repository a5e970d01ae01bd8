//! What differs between operating systems, behind one set of functions.
//!
//! Linux is the tested platform. Elsewhere the functions answer "unknown" and the checks that need them
//! are skipped; what a file then holds is found out by the loader of that system.

use std::ffi::{CStr, OsString};
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::path::Path;

use ep_core::{Error, Result};

/// Opens a regular file for reading.
///
/// Opening never waits: a pipe or a device is refused before and again after it is opened, and on Unix it
/// is opened without blocking, in case the path changed in between.
///
/// # Errors
/// `NotFound` where nothing is there, `InvalidArgument` for a folder, pipe, device or socket,
/// `Unavailable` where reading is not permitted or fails.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    let shown = path.display();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Error::not_found(format!(
            "{shown}: there is no such file; check the path, or build or install it"
        )),
        ErrorKind::PermissionDenied => Error::unavailable(format!(
            "{shown}: this user may not read the file; give it read permission, and search permission on each folder above it"
        )),
        _ => Error::unavailable(format!("{shown}: cannot be opened: {error}")),
    };
    let regular = |metadata: &Metadata| {
        if metadata.is_file() {
            return Ok(());
        }
        let found = if metadata.is_dir() { "a folder" } else { "a pipe, socket or device" };
        Err(Error::invalid(format!("{shown}: is {found}, not a regular file; name the file itself")))
    };
    regular(&std::fs::metadata(path).map_err(failed)?)?;
    let file = sys::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    regular(&metadata)?;
    Ok((file, metadata))
}

/// An environment variable, or `None` where the process runs with more rights than the user who started
/// it (set-uid, set-gid, file capabilities): that user's variables must not pick what is loaded.
pub(crate) fn env_var(name: &str) -> Option<OsString> {
    if sys::privileged() { None } else { std::env::var_os(name).filter(|value| !value.is_empty()) }
}

/// Whether a symbol is present among the libraries that the process has already loaded; `None` where this
/// cannot be asked.
pub(crate) fn process_has_symbol(name: &CStr) -> Option<bool> {
    sys::process_has_symbol(name)
}

/// The user that this process acts as; `None` where files have no numeric owners.
pub(crate) fn effective_user() -> Option<u32> {
    sys::effective_user()
}

/// Who owns a file and who may change it; `None` where the system has no such notion.
pub(crate) fn ownership(metadata: &Metadata) -> Option<Ownership> {
    sys::ownership(metadata)
}

/// Owner and write permission of a file or folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ownership {
    /// Numeric user id.
    pub(crate) owner: u32,
    /// Whether every user may write.
    pub(crate) world_writable: bool,
    /// On a folder: only the owner of an entry may rename or delete it.
    pub(crate) sticky: bool,
}

/// Whether [`order_threads`] works in this process, as far as can be told beforehand. The first call takes some milliseconds
/// where several threads run (13.7 were measured): the kernel waits for each processor. So the first stream asks this, and
/// nothing that only loads providers.
pub(crate) fn can_order_threads() -> bool {
    sys::can_order_threads()
}

/// Orders the memory accesses of every thread of this process: each thread's come either before this, and are seen by the
/// caller afterwards, or after it, and see what the caller did before.
///
/// # Errors
/// The system's, where it does not do that. It did when [`can_order_threads`] was asked; a sandbox that was set up since may
/// forbid it.
pub(crate) fn order_threads() -> std::io::Result<()> {
    sys::order_threads()
}

/// Identifies a file and its state: it differs after the file was replaced or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The file itself, whatever it is called: device and inode number.
    pub(crate) id: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Whether it is the same file with the same length and time of its bytes. Unlike equality, this lets
    /// other permissions and further links pass, and a writer who sets the time back.
    pub(crate) fn same_bytes(&self, other: &Stamp) -> bool {
        (self.id, self.len, self.modified) == (other.id, other.len, other.modified)
    }
}

/// The stamp of a file. Where the system has no inode numbers and change times, those are zero and only
/// length and modification time tell.
pub(crate) fn stamp(metadata: &Metadata) -> Stamp {
    sys::stamp(metadata)
}

#[cfg(unix)]
mod sys {
    use super::{Ownership, Stamp};
    use std::ffi::CStr;
    use std::fs::{File, Metadata, OpenOptions};
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Path;

    pub(super) fn open(path: &Path) -> std::io::Result<File> {
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn privileged() -> bool {
        // SAFETY: getauxval has no preconditions; it reads the vector that the kernel gave this process.
        unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn privileged() -> bool {
        // SAFETY: none of these have preconditions, and none can fail.
        unsafe { libc::getuid() != libc::geteuid() || libc::getgid() != libc::getegid() }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn membarrier(command: libc::c_int) -> std::io::Result<()> {
        // SAFETY: no command has preconditions, or does anything to memory but order accesses.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn can_order_threads() -> bool {
        // Threads that start later, and forked processes, need no call of their own.
        static REGISTERED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok())
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn order_threads() -> std::io::Result<()> {
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
            // EPERM: a process that was restored from a checkpoint is not registered any more.
            .or_else(|_| {
                membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)?;
                membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
            })
            // ENOMEM: there was no room for a set of processors, which this one does not need; and a sandbox that looks at
            // the command may know this one only. It takes milliseconds. One that forbids the call itself refuses it too.
            .or_else(|e| membarrier(libc::MEMBARRIER_CMD_GLOBAL).map_err(|_| e))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn can_order_threads() -> bool {
        false
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn order_threads() -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(super) fn process_has_symbol(name: &CStr) -> Option<bool> {
        // SAFETY: `name` is nul-terminated and outlives the call; the address is compared, never used.
        Some(unsafe { !libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).is_null() })
    }

    pub(super) fn effective_user() -> Option<u32> {
        // SAFETY: geteuid has no preconditions and cannot fail.
        Some(unsafe { libc::geteuid() })
    }

    pub(super) fn ownership(metadata: &Metadata) -> Option<Ownership> {
        let mode = metadata.mode();
        Some(Ownership {
            owner: metadata.uid(),
            world_writable: mode & 0o002 != 0,
            sticky: mode & 0o1000 != 0,
        })
    }

    pub(super) fn stamp(metadata: &Metadata) -> Stamp {
        Stamp {
            id: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[cfg(not(unix))]
mod sys {
    use super::{Ownership, Stamp};
    use std::ffi::CStr;
    use std::fs::{File, Metadata};
    use std::path::Path;
    use std::time::UNIX_EPOCH;

    pub(super) fn open(path: &Path) -> std::io::Result<File> {
        File::open(path)
    }

    pub(super) fn privileged() -> bool {
        false
    }

    pub(super) fn can_order_threads() -> bool {
        false
    }

    pub(super) fn order_threads() -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(super) fn process_has_symbol(_: &CStr) -> Option<bool> {
        None
    }

    pub(super) fn effective_user() -> Option<u32> {
        None
    }

    pub(super) fn ownership(_: &Metadata) -> Option<Ownership> {
        None
    }

    pub(super) fn stamp(metadata: &Metadata) -> Stamp {
        let since_epoch = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = since_epoch.map_or((0, 0), |t| (t.as_secs() as i64, i64::from(t.subsec_nanos())));
        Stamp { id: (0, 0), len: metadata.len(), modified, changed: (0, 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_counts_as_unset() {
        // Cargo sets both for tests; the second is empty as this crate names no homepage.
        assert_eq!(env_var("CARGO_PKG_NAME"), Some("ep-registry".into()));
        assert_eq!(std::env::var_os("CARGO_PKG_HOMEPAGE"), Some("".into()));
        assert_eq!(env_var("CARGO_PKG_HOMEPAGE"), None);
    }

    /// Has the system refuse a thread `membarrier`, or one command of it, as a sandbox does, and says what
    /// [`order_threads`] makes of it there; nothing where this thread may not be put into a sandbox.
    #[cfg(all(target_os = "linux", target_endian = "little"))]
    fn order_in_sandbox(command: Option<libc::c_int>, errno: libc::c_int) -> Option<std::io::Result<()>> {
        let step = |code: u32, otherwise, k| libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k };
        let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, at);
        let equals = |k, otherwise| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, otherwise, k);
        let answer = |k| step(libc::BPF_RET | libc::BPF_K, 0, k);
        // The number of the call is at 0, the low half of its first operand at 16.
        let (at, value) = command.map_or((0, libc::SYS_membarrier as u32), |command| (16, command as u32));
        let mut filter = [
            load(0),
            equals(libc::SYS_membarrier as u32, 3),
            load(at),
            equals(value, 1),
            answer(libc::SECCOMP_RET_ERRNO | errno as u32),
            answer(libc::SECCOMP_RET_ALLOW),
        ];
        let sandboxed = move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            // SAFETY: the program lives for the call; both settings are of this thread only, which ends soon.
            let set = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
            };
            if !set {
                println!("skipped: no sandbox here: {}", std::io::Error::last_os_error());
            }
            set.then(order_threads)
        };
        std::thread::spawn(sandboxed).join().unwrap()
    }

    #[test]
    #[cfg(all(target_os = "linux", target_endian = "little"))]
    fn a_barrier_that_is_refused_is_tried_in_other_ways_and_then_told() {
        if !can_order_threads() {
            return;
        }
        assert!(order_threads().is_ok());
        for errno in [libc::EPERM, libc::ENOSYS] {
            let Some(refused) = order_in_sandbox(None, errno) else { return };
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(errno));
        }
        let global = sys::membarrier(libc::MEMBARRIER_CMD_GLOBAL).is_ok();
        let without = order_in_sandbox(Some(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED), libc::ENOMEM).unwrap();
        assert_eq!(without.is_ok(), global, "{without:?}");
        assert!(order_in_sandbox(Some(libc::MEMBARRIER_CMD_GLOBAL), libc::EPERM).unwrap().is_ok());
    }
}
