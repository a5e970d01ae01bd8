//! JSON that callers write.

use ep_core::{Error, Result};
use serde::de::DeserializeOwned;

/// Characters of a text that an error repeats.
const SHOWN: usize = 200;

/// What an object in JSON says.
///
/// # Errors
/// `InvalidArgument` with what is wrong and where.
pub(crate) fn read<T: DeserializeOwned>(json: &str, what: &str) -> Result<T> {
    let shown = || match json.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} ...", &json[..end]),
        None => json.to_owned(),
    };
    if !json.trim_start().starts_with('{') {
        return Err(Error::invalid(format!(
            "the {what} {}: it is no object of JSON, as {{\"name\": 1}}",
            shown()
        )));
    }
    let mut from = serde_json::Deserializer::from_str(json);
    let read = serde_path_to_error::deserialize(&mut from)
        .map_err(|e| Error::invalid(format!("the {what} {}: {}: {}", shown(), e.path(), e.inner())))?;
    from.end().map_err(|e| Error::invalid(format!("the {what} {}: {e}", shown())))?;
    Ok(read)
}
