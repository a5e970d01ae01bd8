//! How a command ends when it does not succeed.

use ep_core::{Code, Error};
use std::path::PathBuf;

/// The exit codes; `--help` and `docs/cli.md` list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Anything that has no code of its own: a malformed config, a file that cannot be written.
    General = 1,
    /// The command line is wrong: an unknown flag, op, dtype or selector.
    Usage = 2,
    /// There is no config, no provider that works, or no such device.
    NoProvider = 3,
    /// `ep demo` computed something wrong.
    WrongResult = 4,
    /// `ep explain`: nothing matches the request on any device that was asked about.
    NoMatch = 5,
    /// `ep conformance`: the provider does not load, a case failed, something required is missing, or an expectation is
    /// stale.
    NotConforming = 6,
    /// `ep conformance`: no primitive was launched.
    NothingRan = 7,
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What to print to standard error; empty when standard output has told it all.
    pub message: String,
    /// The config in use, if the failure came after it was found.
    pub config: Option<PathBuf>,
}

impl Failure {
    /// A failure with any exit code.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), config: None }
    }

    /// A failure without an exit code of its own.
    pub fn general(message: impl Into<String>) -> Failure {
        Failure::new(Exit::General, message)
    }

    /// Adds the config in use, unless the message already names it.
    #[must_use]
    pub fn with_config(mut self, config: &std::path::Path) -> Failure {
        if !self.message.contains(&*config.to_string_lossy()) {
            self.config = Some(config.to_owned());
        }
        self
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::general(e.message())
    }
}

/// The failure of something that was looked up because the command line names it.
pub fn named(e: &Error) -> Failure {
    let exit = match e.code() {
        Code::NotFound | Code::InvalidArgument => Exit::Usage,
        _ => Exit::General,
    };
    Failure::new(exit, e.message())
}

/// The failure of looking for a device.
pub fn no_device(e: &Error) -> Failure {
    Failure::new(Exit::NoProvider, format!("{}; `ep list` shows every device", e.message()))
}
