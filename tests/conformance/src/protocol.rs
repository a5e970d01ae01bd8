//! What the kit and a worker process say to each other: a line of JSON for each message.

use crate::plan::{Setup, Unit};
use crate::rig::Speed;
use ep_core::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    /// First of all: what to test.
    Setup(Setup),
    /// Asks for [`Reply::Listing`].
    List,
    /// Runs the cases of a unit from the `skip`-th on, answered by [`Reply::Begin`] and [`Reply::End`] for each and
    /// by [`Reply::Done`].
    Run {
        /// The unit's name.
        unit: String,
        /// Cases that are not run again.
        skip: usize,
    },
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// What there is to run.
    Listing(Listing),
    /// A case begins.
    Begin {
        /// Its place in the unit.
        index: usize,
        /// Its name.
        name: String,
    },
    /// The case that began last has ended.
    End {
        /// How.
        end: End,
        /// Why not better; may be empty.
        message: String,
        /// How fast, where that was measured.
        speed: Option<Measured>,
    },
    /// The unit has no more cases.
    Done,
    /// The command cannot be obeyed.
    Error(String),
}

/// How a case ended in the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// As it should.
    Passed,
    /// Not so.
    Failed,
    /// The provider does not offer it.
    Unsupported,
    /// The kit cannot put it to the provider.
    NotMapped,
}

/// A [`Speed`] on its way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Median of a launch in microseconds.
    pub median_us: f64,
    /// Bytes that it moves.
    pub bytes: u64,
    /// Its arithmetic operations.
    pub flops: u64,
}

impl From<Speed> for Measured {
    fn from(s: Speed) -> Measured {
        Measured { median_us: s.median_us, bytes: s.bytes, flops: s.flops }
    }
}

/// What became of loading the provider, and what there is to run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// The provider's own name, version and vendor; empty where it did not get so far.
    pub provider: String,
    /// Its devices.
    pub devices: Vec<DeviceLine>,
    /// Why it did not load.
    pub failed: Option<String>,
    /// Why it has nothing to drive here.
    pub absent: Option<String>,
    /// Why the filter lets nothing through, where it names an op or a dtype that nobody knows.
    pub unknown: Option<String>,
    /// The units that pass the filter.
    pub units: Vec<Unit>,
    /// Every combination that the provider claims, whatever the filter.
    pub claims: Vec<Unit>,
}

/// A device of the provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLine {
    /// `cpu:0`.
    pub name: String,
    /// The product's name.
    pub product: String,
    /// Its memory space.
    pub space: String,
}

/// Sends a message.
///
/// # Errors
/// `Unavailable` when nobody reads any more.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(message)
        .map_err(|e| Error::internal(format!("a message that JSON cannot say: {e}")))?;
    line.push('\n');
    let written = to.write_all(line.as_bytes()).and_then(|()| to.flush());
    written.map_err(|e| Error::unavailable(format!("the other side of the pipe has gone: {e}")))
}

/// Receives a message; `None` at the end.
///
/// # Errors
/// `Internal` for a line that is no message.
pub fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    match from.read_line(&mut line) {
        Ok(0) | Err(_) => Ok(None),
        Ok(_) => serde_json::from_str(&line)
            .map(Some)
            .map_err(|e| Error::internal(format!("not a message ({e}): {}", line.trim_end()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_pipe() {
        let mut pipe = Vec::new();
        send(&mut pipe, &Reply::Begin { index: 3, name: "a\nb \"c\"".into() }).unwrap();
        send(&mut pipe, &Reply::Done).unwrap();
        let mut read = &pipe[..];
        let first: Option<Reply> = receive(&mut read).unwrap();
        assert!(matches!(first, Some(Reply::Begin { index: 3, name }) if name == "a\nb \"c\""));
        assert!(matches!(receive(&mut read), Ok(Some(Reply::Done))));
        assert!(matches!(receive::<Reply>(&mut read), Ok(None)));
        assert!(receive::<Reply>(&mut &b"hello\n"[..]).is_err());
    }
}
