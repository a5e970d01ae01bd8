//! What goes to standard output: text, aligned tables, JSON. Colour only where a person reads it.

use crate::failure::Failure;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Standard output. Once its reader has gone (`ep query | head`), the rest is dropped in silence, so that the
/// exit code still says how the command itself went.
pub struct Out {
    inner: Box<dyn Write>,
    colour: bool,
    closed: bool,
}

/// How a piece of text looks on a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "",
            Style::Bold => "\x1b[1m",
            Style::Dim => "\x1b[2m",
            Style::Good => "\x1b[32m",
            Style::Bad => "\x1b[31m",
        }
    }
}

impl Out {
    /// The process's standard output; coloured if it is a terminal and neither `NO_COLOR` nor a dumb terminal
    /// forbids it.
    pub fn stdout() -> Out {
        let stdout = io::stdout();
        let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        let colour = stdout.is_terminal() && !set("NO_COLOR") && !dumb;
        Out { inner: Box::new(io::BufWriter::new(stdout)), colour, closed: false }
    }

    fn keep<T: Default>(&mut self, result: io::Result<T>) -> Result<T, Failure> {
        match result {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(T::default())
            }
            other => other.map_err(|e| Failure::general(format!("cannot write to standard output: {e}"))),
        }
    }

    /// Writes text as it is.
    pub fn text(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        let result = self.inner.write_all(text.as_ref().as_bytes());
        self.keep(result)
    }

    /// Writes a line.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.text(text)?;
        self.text("\n")
    }

    /// Shows what was written so far, before something slow.
    pub fn flush(&mut self) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        let result = self.inner.flush();
        self.keep(result)
    }

    /// Writes a value as indented JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|e| Failure::general(format!("cannot write the result as JSON: {e}")))?;
        self.line(text)
    }

    /// The text in a style, where there is colour.
    pub fn paint(&self, style: Style, text: &str) -> String {
        if self.colour && style != Style::Plain && !text.is_empty() {
            format!("{}{text}\x1b[0m", style.code())
        } else {
            text.to_owned()
        }
    }

    /// Writes rows with aligned columns, each line after `indent` spaces.
    pub fn table(&mut self, indent: usize, rows: &[Vec<Cell>]) -> Result<(), Failure> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(Cell::width).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let mut line = " ".repeat(indent);
            for (c, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[c] - cell.width());
                let text = self.paint(cell.style, &cell.text);
                let separator = if c == 0 { "" } else { "  " };
                let parts = if cell.right { [separator, &pad, &text] } else { [separator, &text, &pad] };
                line.extend(parts);
            }
            self.line(line.trim_end())?;
        }
        Ok(())
    }
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    /// A cell in a style, aligned to the left.
    pub fn styled(style: Style, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), style, right: false }
    }

    /// A number, or the head of a column of numbers.
    #[must_use]
    pub fn right(mut self) -> Cell {
        self.right = true;
        self
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::styled(Style::Plain, text)
    }
}

/// A word of a command line, quoted where a shell would not leave it as it is.
pub fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A number with a comma at each thousand.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i != 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Bytes in the largest binary unit that leaves at least 1 of it.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(data);
            Ok(data.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    fn on(inner: impl Write + 'static, colour: bool) -> Out {
        Out { inner: Box::new(inner), colour, closed: false }
    }

    #[test]
    fn columns_are_aligned_with_and_without_colour() {
        let rows = [
            vec![Cell::styled(Style::Bold, "op"), Cell::from("n").right(), "x".into()],
            vec!["größer".into(), Cell::from("1234").right()],
        ];
        let written = Shared::default();
        on(written.clone(), false).table(2, &rows).unwrap();
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "  op         n  x\n  größer  1234\n");
        let written = Shared::default();
        on(written.clone(), true).table(0, &rows).unwrap();
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "\x1b[1mop\x1b[0m         n  x\ngrößer  1234\n");
    }

    #[test]
    fn a_closed_pipe_is_silent_and_other_errors_are_not() {
        let mut out = on(Broken(io::ErrorKind::BrokenPipe), false);
        assert!(out.line("x").is_ok() && out.closed && out.line("y").is_ok() && out.flush().is_ok());
        let failed = on(Broken(io::ErrorKind::StorageFull), false).line("x").unwrap_err();
        assert!(failed.message.contains("standard output"), "{}", failed.message);
    }

    #[test]
    fn words_survive_a_shell() {
        let cases =
            [("src=f32", "src=f32"), ("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("$x", "'$x'")];
        assert!(cases.iter().all(|(word, text)| quoted(word) == *text));
    }

    #[test]
    fn numbers_for_people() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        assert!(cases.iter().all(|(n, text)| thousands(*n) == *text));
        let cases = [(1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (u64::MAX, "16384.0 PiB")];
        assert!(cases.iter().all(|(n, text)| bytes(*n) == *text));
    }
}
