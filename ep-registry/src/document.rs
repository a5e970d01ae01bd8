//! Reading TOML with errors that point at the place: file, line, column, the line's text and a caret.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use crate::names::edits;
use ep_core::{Error, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// No config that people write comes near it.
const MAX_BYTES: u64 = 1 << 20;
/// Characters of a line that a message shows.
const MAX_SHOWN: usize = 100;

/// Reads the whole text of an open file; `path` is for messages.
pub(crate) fn read(file: &File, path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::unavailable(format!("{}: cannot be read: {error}", path.display())))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::invalid(format!(
            "{}: is longer than {MAX_BYTES} bytes; name a TOML file written for this purpose",
            path.display()
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        Error::invalid(format!(
            "{}: byte {} is not UTF-8; save the file as UTF-8 text",
            path.display(),
            error.utf8_error().valid_up_to()
        ))
    })
}

/// A text and where it came from.
pub(crate) struct Document<'a> {
    /// What messages call it, usually its path.
    pub(crate) label: String,
    pub(crate) text: &'a str,
}

impl<'a> Document<'a> {
    /// Parses the text and hands its top table to `read`, which may only ask for `known` keys.
    pub(crate) fn parse<T>(
        &self,
        known: &[&str],
        read: impl FnOnce(&Table<'_, 'a>) -> Result<T>,
    ) -> Result<T> {
        let root = DeTable::parse(self.text)
            .map_err(|error| self.error(error.span().unwrap_or(0..0), error.message()))?;
        read(&Table::new(self, root.get_ref(), root.span(), "the top level", known)?)
    }

    /// A message about a byte of the text: its file, line and column go before it.
    pub(crate) fn remark(&self, at: usize, message: &str) -> String {
        let (_, _, number, column) = self.place(at);
        format!("{}:{number}:{}: {message}", self.label, column + 1)
    }

    /// A byte and that which its line begins with, both at the start of a character; the line from 1, the column from 0.
    fn place(&self, at: usize) -> (usize, usize, usize, usize) {
        let start = self.text.floor_char_boundary(at);
        let line_start = self.text[..start].rfind('\n').map_or(0, |i| i + 1);
        let number = self.text[..line_start].matches('\n').count() + 1;
        (start, line_start, number, self.text[line_start..start].chars().count())
    }

    /// An error about a range of bytes of the text.
    pub(crate) fn error(&self, at: Range<usize>, message: &str) -> Error {
        let (start, line_start, number, column) = self.place(at.start);
        let line = self.text[line_start..].lines().next().unwrap_or("");
        let end = self
            .text
            .floor_char_boundary(at.end)
            .clamp(start, line_start + line.len().max(start - line_start));
        let marked = self.text[start..end].chars().count();

        // A long line is shown from a little before the place.
        let skipped = if column >= MAX_SHOWN { column - MAX_SHOWN / 2 } else { 0 };
        let shown: String = line
            .chars()
            .skip(skipped)
            .take(MAX_SHOWN)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let indent = column - skipped;
        let carets = "^".repeat(marked.clamp(1, MAX_SHOWN - indent));
        let margin = " ".repeat(number.to_string().len());
        Error::invalid(format!(
            "{}\n{margin} |\n{number} | {shown}\n{margin} | {}{carets}",
            self.remark(start, message),
            " ".repeat(indent),
        ))
    }
}

/// A table whose keys were checked.
pub(crate) struct Table<'t, 'a> {
    document: &'t Document<'a>,
    table: &'t DeTable<'a>,
    span: Range<usize>,
    name: &'t str,
}

/// A value and its place.
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Range<usize>,
}

/// A key that the writer chose, and what it is set to.
pub(crate) struct Entry<T> {
    pub(crate) key: At<String>,
    pub(crate) value: T,
}

impl<'t, 'a> Table<'t, 'a> {
    fn new(
        document: &'t Document<'a>,
        table: &'t DeTable<'a>,
        span: Range<usize>,
        name: &'t str,
        known: &[&str],
    ) -> Result<Table<'t, 'a>> {
        // The map is sorted by key; report what comes first in the text.
        let unknown = table.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
        if let Some(key) = unknown.min_by_key(|key| key.span().start) {
            let guess = nearest(key.get_ref(), known)
                .map_or(String::new(), |guess| format!("did you mean `{guess}`? "));
            let message = format!(
                "unknown key `{}` in {name}; {guess}The keys are {}",
                key.get_ref(),
                known.join(", ")
            );
            return Err(document.error(key.span(), &message));
        }
        Ok(Table { document, table, span, name })
    }

    fn get<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&DeValue<'a>) -> Option<T>,
    ) -> Result<Option<At<T>>> {
        let Some(found) = self.table.get(key) else { return Ok(None) };
        match read(found.get_ref()) {
            Some(value) => Ok(Some(At { value, span: found.span() })),
            None => Err(self.document.error(
                found.span(),
                &format!("`{key}` must be {wanted}, and this is {}", kind(found.get_ref())),
            )),
        }
    }

    /// An error about this table as a whole.
    pub(crate) fn whole(&self, message: &str) -> Error {
        self.document.error(self.span.clone(), message)
    }

    /// An error about an absent key.
    pub(crate) fn missing(&self, key: &str) -> Error {
        self.whole(&format!("{} has no `{key}`; add one", self.name))
    }

    /// An error about a value.
    pub(crate) fn wrong<T>(&self, at: &At<T>, message: &str) -> Error {
        self.document.error(at.span.clone(), message)
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<At<String>>> {
        self.get(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn boolean(&self, key: &str) -> Result<Option<At<bool>>> {
        self.get(key, "true or false", DeValue::as_bool)
    }

    /// An integer inside `range`.
    pub(crate) fn integer(&self, key: &str, range: Range<i64>) -> Result<Option<At<i64>>> {
        let Some(text) = self.get(key, "an integer", |value| value.as_integer().cloned())? else {
            return Ok(None);
        };
        match i64::from_str_radix(text.value.as_str(), text.value.radix()) {
            Ok(value) if range.contains(&value) => Ok(Some(At { value, span: text.span })),
            _ => {
                let message = format!("`{key}` must be at least {} and less than {}", range.start, range.end);
                Err(self.wrong(&text, &message))
            }
        }
    }

    /// An array of strings; empty where the key is absent.
    pub(crate) fn strings(&self, key: &str) -> Result<Vec<At<String>>> {
        match self.table.get(key) {
            Some(value) => self.strings_of(key, value),
            None => Ok(Vec::new()),
        }
    }

    fn strings_of(&self, key: &str, value: &Spanned<DeValue<'a>>) -> Result<Vec<At<String>>> {
        let wrong = |value: &Spanned<DeValue<'a>>| {
            let message =
                format!("`{key}` must be an array of strings, and this is {}", kind(value.get_ref()));
            self.document.error(value.span(), &message)
        };
        let items = value.get_ref().as_array().ok_or_else(|| wrong(value))?;
        let one = |item: &Spanned<DeValue<'a>>| match item.get_ref().as_str() {
            Some(text) => Ok(At { value: text.to_owned(), span: item.span() }),
            None => Err(wrong(item)),
        };
        items.iter().map(one).collect()
    }

    /// A table with free keys, each an array of strings, sorted by key.
    pub(crate) fn lists(&self, key: &str) -> Result<Vec<Entry<Vec<At<String>>>>> {
        let list =
            |table: &Table<'_, 'a>, name: &str, value: &Spanned<DeValue<'a>>| table.strings_of(name, value);
        self.free(key, list)
    }

    /// A table with free keys, each a string, number or boolean, as text, sorted by key.
    pub(crate) fn scalars(&self, key: &str) -> Result<Vec<Entry<String>>> {
        self.free(key, |table, name, value| match value.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            DeValue::Boolean(value) => Ok(value.to_string()),
            DeValue::Float(number) => Ok(number.as_str().to_owned()),
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).map(|number| number.to_string()).map_err(
                    |_| table.document.error(value.span(), &format!("`{name}` does not fit into 64 bits")),
                )
            }
            other => Err(table.document.error(
                value.span(),
                &format!("`{name}` must be a string, number or boolean, and this is {}", kind(other)),
            )),
        })
    }

    fn free<T>(
        &self,
        key: &str,
        read: impl Fn(&Self, &str, &Spanned<DeValue<'a>>) -> Result<T>,
    ) -> Result<Vec<Entry<T>>> {
        let Some(found) = self.table.get(key) else { return Ok(Vec::new()) };
        let Some(table) = found.get_ref().as_table() else {
            let message = format!("`{key}` must be a table, and this is {}", kind(found.get_ref()));
            return Err(self.document.error(found.span(), &message));
        };
        let one = |(key, value): (&Spanned<_>, &Spanned<DeValue<'a>>)| {
            let name: &std::borrow::Cow<'a, str> = key.get_ref();
            let key = At { value: name.clone().into_owned(), span: key.span() };
            Ok(Entry { key, value: read(self, name, value)? })
        };
        table.iter().map(one).collect()
    }

    /// The table `[key]` with only `known` keys; `read` is not called where it is absent.
    pub(crate) fn table<T>(
        &self,
        key: &str,
        known: &[&str],
        read: impl FnOnce(&Table<'_, 'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(found) = self.table.get(key) else { return Ok(None) };
        let Some(table) = found.get_ref().as_table() else {
            let message =
                format!("`{key}` must be a table (`[{key}]`), and this is {}", kind(found.get_ref()));
            return Err(self.document.error(found.span(), &message));
        };
        read(&Table::new(self.document, table, found.span(), &format!("[{key}]"), known)?).map(Some)
    }

    /// Each `[[key]]` with only `known` keys, in the order of the text.
    pub(crate) fn tables<T>(
        &self,
        key: &str,
        known: &[&str],
        mut read: impl FnMut(&Table<'_, 'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let Some(found) = self.table.get(key) else { return Ok(Vec::new()) };
        let wrong = |value: &Spanned<DeValue<'a>>| {
            let message = format!("write each `{key}` as `[[{key}]]`; this is {}", kind(value.get_ref()));
            self.document.error(value.span(), &message)
        };
        let items = found.get_ref().as_array().ok_or_else(|| wrong(found))?;
        let name = format!("[[{key}]]");
        let one = |item: &Spanned<DeValue<'a>>| {
            let table = item.get_ref().as_table().ok_or_else(|| wrong(item))?;
            read(&Table::new(self.document, table, item.span(), &name, known)?)
        };
        items.iter().map(one).collect()
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// The known word that takes the fewest edits, unless it takes more than half of its length.
pub(crate) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let best = known.iter().map(|k| (edits(word, k), *k)).min()?;
    (best.0 * 2 <= best.1.chars().count()).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_takes_at_most_half_of_the_letters() {
        assert_eq!(nearest("pathh", &["name", "path"]), Some("path"));
        assert_eq!(nearest("zzz", &["name", "path"]), None);
    }

    #[test]
    fn the_caret_is_under_the_place() {
        let text = "a = 1\r\n\tß = [é]\n";
        let document = Document { label: "x.toml".to_owned(), text };
        let at = text.find('é').unwrap();
        let error = document.error(at..at + 'é'.len_utf8(), "no");
        assert_eq!(error.message(), "x.toml:2:7: no\n  |\n2 |  ß = [é]\n  |       ^");
        // At the end of the text, and beyond it.
        for at in [text.len(), text.len() + 9] {
            assert!(document.error(at..at + 1, "no").message().starts_with("x.toml:3:1: no"));
        }
    }

    #[test]
    fn a_long_line_is_clipped_around_the_place() {
        let text = format!("k = \"{}X{}\"", "é".repeat(50_000), "y".repeat(50_000));
        let document = Document { label: "x".to_owned(), text: &text };
        let at = text.find('X').unwrap();
        let error = document.error(at..text.len(), "no");
        assert!(error.message().len() < 1000);
        let lines: Vec<Vec<char>> = error.message().lines().map(|line| line.chars().collect()).collect();
        let caret = lines[3].iter().position(|c| *c == '^').unwrap();
        assert_eq!(lines[2][caret], 'X');
    }
}
