//! JSON that callers write.

use ep_core::{Error, Result};
use serde::de::DeserializeOwned;

/// What a text in JSON says.
///
/// # Errors
/// `InvalidArgument` with what is wrong and where.
pub(crate) fn read<T: DeserializeOwned>(json: &str, what: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|e| Error::invalid(format!("the {what} {json}: {e}")))
}
