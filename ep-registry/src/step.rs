//! The steps of loading a provider, for those who want to know in which one it ends the process.

use std::fmt;

/// What is about to be done with a provider: what [`crate::Builder::watch`] is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Its file is looked at: trust, hash, ELF headers. None of its code runs.
    Check,
    /// The system loads the library and those it needs, and runs their constructors.
    Load,
    /// Its entry point is called, and what that gives compared with this host.
    Query,
    /// An instance is made.
    Create,
    /// It is asked for the number of its devices.
    Devices,
    /// The device of this number is opened.
    Open(u32),
    /// It registers what it can do.
    Register,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Step::Check => "check",
            Step::Load => "load",
            Step::Query => "query",
            Step::Create => "create",
            Step::Devices => "devices",
            Step::Open(_) => "open",
            Step::Register => "register",
        })
    }
}
