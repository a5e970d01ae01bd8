//! What happened to each provider: the load report.

use ep_core::{Code, Error, Result};
use std::fmt;
use std::path::PathBuf;

/// The fate of one provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It runs and has devices.
    Loaded,
    /// It is sound, but there is nothing for it to drive here.
    Absent,
    /// It was not tried.
    Skipped,
    /// It was tried and did not work.
    Failed,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Loaded => "loaded",
            Status::Absent => "absent",
            Status::Skipped => "skipped",
            Status::Failed => "failed",
        })
    }
}

/// One line of the report.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The instance's name in the config.
    pub instance: String,
    /// The file; `None` for a provider that is linked in.
    pub path: Option<PathBuf>,
    /// What happened.
    pub status: Status,
    /// Why, and what to do; empty when loaded without a remark.
    pub reason: String,
    /// The code of the error that it failed with.
    pub code: Option<Code>,
    /// The provider's id and version, if it got so far.
    pub provider: Option<(String, String)>,
    /// The names of its logical devices.
    pub devices: Vec<String>,
    /// Whether the config requires it.
    pub required: bool,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8} {}", self.status, self.instance)?;
        if let Some((id, version)) = &self.provider {
            write!(f, " ({id} {version})")?;
        }
        match &self.path {
            Some(path) => write!(f, " {}", path.display())?,
            None => f.write_str(" linked in")?,
        }
        if !self.devices.is_empty() {
            write!(f, " [{}]", self.devices.join(", "))?;
        }
        // Errors of loading begin with the path, which stands above already.
        let path = self.path.as_ref().map_or(String::new(), |p| format!("{}: ", p.display()));
        let reason = self.reason.strip_prefix(&path).unwrap_or(&self.reason);
        if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
    }
}

/// Every provider that was met, in order.
#[derive(Debug, Clone, Default)]
pub struct LoadReport {
    /// The lines.
    pub entries: Vec<Entry>,
    /// What is probably wrong in the config and keeps nothing from loading, such as a rule for an op that nothing
    /// knows: one line each, with its place where it is of a text.
    pub warnings: Vec<String>,
}

impl LoadReport {
    /// The providers with this status.
    pub fn with_status(&self, status: Status) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |e| e.status == status)
    }

    /// Whether everything that the config requires is there.
    ///
    /// # Errors
    /// The first `required` provider that did not load, with its line and the code of its error.
    pub fn check_required(&self) -> Result<()> {
        match self.entries.iter().find(|e| e.required && e.status != Status::Loaded) {
            None => Ok(()),
            Some(bad) => Err(Error::new(
                bad.code.unwrap_or(Code::Unavailable),
                format!("provider `{}` is required: {bad}", bad.instance),
            )),
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            writeln!(f, "{entry}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "{:8} {warning}", "warning")?;
        }
        Ok(())
    }
}
