//! How a check ends.

use crate::keys::Ended;
use crate::protocol::End;
use ep_core::{Code, Error, Result};

/// A check that ended without an error.
pub(crate) enum Verdict {
    /// As the contract says.
    Pass,
    /// The provider does not offer what was to be checked.
    Unsupported(String),
}

impl Verdict {
    /// What is missing, and that this is no mistake.
    pub(crate) fn unsupported(what: impl Into<String>) -> Result<Verdict> {
        Ok(Verdict::Unsupported(what.into()))
    }
}

/// The end of a case that is a check.
pub(crate) fn ended(result: Result<Verdict>) -> Ended {
    match result {
        Ok(Verdict::Pass) => (End::Passed, String::new(), None),
        Ok(Verdict::Unsupported(why)) => (End::Unsupported, why, None),
        Err(e) => (End::Failed, e.to_string(), None),
    }
}

/// A failed check.
pub(crate) fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::internal(what.into()))
}

/// Expects an error with one of some codes.
pub(crate) fn expect_error<T>(what: &str, result: Result<T>, codes: &[Code]) -> Result<()> {
    match result {
        Err(e) if codes.contains(&e.code()) => Ok(()),
        Err(e) => wrong(format!("{what}: {:?} ({e}), where one of {codes:?} is right", e.code())),
        Ok(_) => wrong(format!("{what}: success, where one of {codes:?} is right")),
    }
}
