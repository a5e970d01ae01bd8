//! A child process that runs a provider's code: its pipes, what it said last, and its end in words.

use ep_core::{Error, Result};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::FromRawFd;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How much of what a process writes to standard error is kept for the message about its death.
const KEPT: usize = 2048;
/// How often something is asked for that cannot be waited for with a limit.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a process that was killed may take to be gone. One that waits for a device cannot be killed.
const TO_DIE: Duration = Duration::from_secs(2);

/// Standard input and output of a child that is to run a provider, taken from it: what the provider reads is empty, and
/// what it prints goes to standard error.
///
/// # Errors
/// `Internal` when the system refuses.
pub fn take_pipes() -> Result<(BufReader<File>, File)> {
    // SAFETY: plain system calls; the duplicates are new descriptors that nothing else owns.
    unsafe {
        // Its parent ends it also where a provider keeps it from reading that the pipe is closed.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let (input, output) = (libc::dup(0), libc::dup(1));
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
        if input < 0 || output < 0 || nothing < 0 || libc::dup2(nothing, 0) < 0 || libc::dup2(2, 1) < 0 {
            let e = std::io::Error::last_os_error();
            return Err(Error::internal(format!("cannot set up the worker's pipes: {e}")));
        }
        Ok((BufReader::new(File::from_raw_fd(input)), File::from_raw_fd(output)))
    }
}

/// The last that a process wrote to a pipe. All of it is read, so that writing never blocks; little is kept.
#[derive(Debug)]
pub struct Tail {
    kept: Arc<Mutex<VecDeque<u8>>>,
    reader: JoinHandle<()>,
}

impl Tail {
    /// Starts reading.
    pub fn of(mut pipe: impl Read + Send + 'static) -> Tail {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let keep = kept.clone();
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 512];
            while let Ok(n @ 1..) = pipe.read(&mut piece) {
                let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&piece[..n]);
                let excess = kept.len().saturating_sub(KEPT);
                kept.drain(..excess);
            }
        });
        Tail { kept, reader }
    }

    /// Its last lines, once the process has ended; `; it said: ...`, or nothing. Whoever else holds the pipe open, such
    /// as a child of the process, is not waited for.
    pub fn said(&self) -> String {
        let deadline = Instant::now() + Duration::from_millis(500);
        while !self.reader.is_finished() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        let kept: Vec<u8> =
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let kept = String::from_utf8_lossy(&kept);
        let said: Vec<&str> = kept.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        let said = said[said.len().saturating_sub(3)..].join(" / ");
        if said.is_empty() { said } else { format!("; it said: {said}") }
    }
}

/// How a child ended that was ended from outside or by itself.
#[derive(Debug)]
pub enum Fate {
    /// By itself.
    Ended(ExitStatus),
    /// Not before the deadline.
    Killed,
    /// Not even when it was killed: it is stuck in the system.
    Stuck,
}

/// Ends a child that leads a process group of its own, with all of the group, once it has ended by itself or the deadline
/// has come.
///
/// # Errors
/// When it cannot be waited for.
pub fn end_group(child: &mut Child, deadline: Instant) -> std::io::Result<Fate> {
    let ended = ends_before(child, deadline)?;
    // SAFETY: a plain system call. The child was not waited for, so that no other process can have its number. It fails
    // where nothing of the group is left but the child, which has ended, and that is what this is to bring about.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    // It may have left its group. Fails for one that has ended.
    let _ended = child.kill();
    if !ends_before(child, Instant::now() + TO_DIE)? {
        return Ok(Fate::Stuck);
    }
    let status = child.wait()?;
    Ok(if ended { Fate::Ended(status) } else { Fate::Killed })
}

/// That this process becomes the parent of what its descendants leave behind, in whatever group or session, so that it can
/// be ended.
#[derive(Debug)]
pub struct Guardian(());

impl Guardian {
    /// None where the process has children already, which a shell that became this program by `exec` may have left: what
    /// belongs to them could not be told from what a child of ours leaves behind. None either where the system refuses.
    ///
    /// # Errors
    /// When it cannot be seen which processes there are.
    pub fn new() -> std::io::Result<Option<Guardian>> {
        if !children()?.is_empty() {
            return Ok(None);
        }
        let on: libc::c_ulong = 1;
        // SAFETY: a plain system call.
        let rc = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, on) };
        Ok((rc == 0).then_some(Guardian(())))
    }

    /// Ends all children of this process and what they leave behind in turn. Those that it needs have ended and have been
    /// waited for. What is stuck in the system, or starts others faster than they are ended, is left.
    ///
    /// # Errors
    /// When it cannot be seen which processes there are.
    pub fn end_strays(&self) -> std::io::Result<()> {
        let deadline = Instant::now() + TO_DIE;
        loop {
            let strays = children()?;
            if strays.is_empty() || Instant::now() >= deadline {
                return Ok(());
            }
            for stray in strays {
                // SAFETY: plain system calls. Nobody else waits for it, so that no other process can have its number.
                unsafe {
                    libc::kill(stray, libc::SIGKILL);
                    libc::waitpid(stray, std::ptr::null_mut(), libc::WNOHANG);
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The children of this process, those included that have ended and were not waited for.
fn children() -> std::io::Result<Vec<libc::pid_t>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that cannot be read has ended, or is not ours.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name of the program, in parentheses, may have any character in it. Behind it are the state and the parent.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if parent.and_then(|parent| parent.parse().ok()) == Some(std::process::id()) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn ends_before(child: &Child, deadline: Instant) -> std::io::Result<bool> {
    loop {
        if has_ended(child)? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a child that nobody has waited for has ended. It stays to be waited for.
///
/// # Errors
/// When there is no such child.
pub fn has_ended(child: &Child) -> std::io::Result<bool> {
    // SAFETY: all-zero is a value of this struct of numbers.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is valid for a write.
    let rc = unsafe { libc::waitid(libc::P_PID, child.id(), &mut info, how) };
    if rc != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: `waitid` wrote it, or it is all zero as before: nothing to tell of.
    Ok(unsafe { info.si_pid() } != 0)
}

/// The end of a process in words.
pub fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("the provider's process was ended by {}", signal_name(signal)),
        (Some(code), _) => format!("the provider's process exited with code {code}"),
        (None, None) => format!("the provider's process ended: {status}"),
    }
}

fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 9] = [
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGPIPE, "SIGPIPE"),
    ];
    let name = NAMES.iter().find(|(n, _)| *n == signal).map_or("signal", |(_, name)| name);
    format!("{name} ({signal})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn ends_are_named() {
        assert_eq!(
            ended(ExitStatus::from_raw(libc::SIGABRT)),
            "the provider's process was ended by SIGABRT (6)"
        );
        assert_eq!(ended(ExitStatus::from_raw(3 << 8)), "the provider's process exited with code 3");
        assert_eq!(signal_name(40), "signal (40)");
    }

    #[test]
    fn a_group_is_ended_with_its_leader_or_at_the_deadline() {
        use std::os::unix::process::CommandExt;
        let start = |script: &str| {
            let mut sh = std::process::Command::new("sh");
            sh.args(["-c", script]).process_group(0).stdout(std::process::Stdio::piped()).spawn().unwrap()
        };
        let within = |seconds| Instant::now() + Duration::from_secs(seconds);
        // The pipe is at its end once nobody is left that holds it.
        for (script, limit, killed) in [("sleep 60 & exit 3", 20, false), ("sleep 60 & sleep 60", 0, true)] {
            let mut child = start(script);
            let fate = end_group(&mut child, within(limit)).unwrap();
            assert!(matches!(fate, Fate::Killed) == killed, "{script}: {fate:?}");
            assert!(killed || matches!(fate, Fate::Ended(status) if status.code() == Some(3)), "{fate:?}");
            let started = Instant::now();
            child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
            assert!(started.elapsed() < Duration::from_secs(30), "{script}");
        }
    }

    #[test]
    fn the_last_lines_are_kept_of_any_flood() {
        let flood = "first\n".repeat(10_000) + "a\n\n b \nc\n";
        assert_eq!(Tail::of(std::io::Cursor::new(flood)).said(), "; it said: a / b / c");
        assert_eq!(Tail::of(std::io::empty()).said(), "");
    }
}
