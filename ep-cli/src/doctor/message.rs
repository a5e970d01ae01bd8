//! What a worker tells `ep doctor`: a line of JSON for each message.

use serde::{Deserialize, Serialize};

/// From a worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    /// A step begins. If nothing more comes, it is the one that ended the process.
    Begin {
        /// Its name.
        step: String,
        /// With what: a device. May be empty.
        on: String,
    },
    /// The provider was loaded, or not.
    Loaded(Loaded),
    /// The step that began last failed.
    Failed(String),
    /// Something that is no failure.
    Remark(String),
    /// Everything is destroyed, and the process is about to end.
    Ended,
}

/// Its line of the load report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// As in the report.
    pub status: String,
    /// Why, or a remark.
    pub reason: String,
    /// The provider's own id and version.
    pub provider: Option<(String, String)>,
    /// Its logical devices.
    pub devices: Vec<String>,
    /// Of the config: rules for ops that this provider does not know.
    pub warnings: Vec<String>,
}
