//! Failures that are expected, each with its reason.
//!
//! A text file: in each line the name of a case, or a pattern in which `*` stands for any text, and behind white space
//! the reason. Lines that begin with `#` are comments.

use crate::plan::matches;
use ep_core::{Error, Result};
use std::path::Path;

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The case, or a pattern.
    pub pattern: String,
    /// Why it fails.
    pub reason: String,
}

/// The list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectations(pub Vec<Expectation>);

impl Expectations {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or a line has no reason; with the line's number.
    pub fn from_file(path: &Path) -> Result<Expectations> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::not_found(format!("cannot read {}: {e}", path.display())))?;
        Expectations::parse(&text).map_err(|e| e.context(path.display()))
    }

    fn parse(text: &str) -> Result<Expectations> {
        let mut list = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((pattern, reason)) = line.split_once(char::is_whitespace) else {
                return Err(Error::invalid(format!(
                    "line {}: `{line}` has no reason; write why it fails behind the name",
                    i + 1
                )));
            };
            list.push(Expectation { pattern: pattern.to_owned(), reason: reason.trim().to_owned() });
        }
        Ok(Expectations(list))
    }

    /// The first line that a case is expected to fail by.
    pub fn of(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|e| matches(&e.pattern, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_name_and_a_reason() {
        let list =
            Expectations::parse("# known\n\nabi/strings  the name is legacy\nprimitives/*/f16*\tno f16\n")
                .unwrap();
        assert_eq!(list.0.len(), 2);
        assert_eq!((list.of("abi/strings"), list.of("abi/string")), (Some(0), None));
        assert_eq!(list.of("primitives/x:0/add/data=f16/01-one"), None);
        assert_eq!(list.of("primitives/x:0/f16/01-one"), Some(1));
        assert_eq!(list.0[0].reason, "the name is legacy");
        let e = Expectations::parse("abi/strings").unwrap_err();
        assert!(e.message().contains("line 1") && e.message().contains("reason"), "{e}");
    }
}
