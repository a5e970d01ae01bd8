//! What a person sees: the step while a provider is tried, a block for each, and what concerns them all.

use super::Row;
use super::findings;
use super::probe::State;
use crate::VERSION;
use crate::failure::Failure;
use crate::output::{Out, Style};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::time::Duration;

/// Progress on standard error, where that is a terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// Progress of a provider.
    pub fn new(provider: &str) -> Bar {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {prefix}: {msg} {elapsed_precise}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(provider.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Bar(bar)
    }

    /// A step begins.
    pub fn step(&self, step: &str) {
        self.0.set_message(printable(step));
    }

    /// Takes it away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// What may be anything, without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Program, config, environment and CPU.
pub fn head(out: &mut Out, config: &Path, why: &str) -> Result<(), Failure> {
    let environment = findings::environment();
    let environment =
        if environment.is_empty() { "nothing that matters".to_owned() } else { environment.join(" ") };
    for (what, text) in [
        ("ep", VERSION.clone()),
        ("config", format!("{} ({why})", config.display())),
        ("variables", environment),
        ("machine", findings::cpu()),
    ] {
        out.line(format!("{}  {}", out.paint(Style::Bold, &format!("{what:9}")), printable(&text)))?;
    }
    out.flush()
}

/// A provider.
pub fn row(out: &mut Out, row: &Row) -> Result<(), Failure> {
    let state = out.paint(style(row.state), row.state.name());
    let seconds = if row.state == State::Skipped { String::new() } else { format!("  {:.2} s", row.seconds) };
    out.line(format!("\n{}  {state}  {}{seconds}", out.paint(Style::Bold, &row.provider), row.path))?;
    let id = row.id.as_ref().map(|(id, version)| format!("{id} {version}"));
    let devices = (!row.devices.is_empty()).then(|| row.devices.join(", "));
    let reason = (!row.reason.is_empty()).then(|| row.reason.clone());
    for (what, text) in [
        ("provider", id.as_ref()),
        ("devices", devices.as_ref()),
        ("step", row.step.as_ref()),
        ("reason", reason.as_ref()),
        ("do", row.advice.as_ref()),
    ] {
        if let Some(text) = text {
            out.line(format!("  {what:8}  {}", printable(text).replace('\n', "\n            ")))?;
        }
    }
    Ok(())
}

fn style(state: State) -> Style {
    match state {
        State::Ok => Style::Good,
        State::Absent | State::Skipped => Style::Dim,
        State::Failed | State::Crashed | State::Hung => Style::Bad,
    }
}

/// What concerns more than one provider.
pub fn findings(out: &mut Out, warnings: &[String]) -> Result<(), Failure> {
    for warning in warnings {
        out.line(format!("\nwarning: {}", printable(warning)))?;
    }
    Ok(())
}

/// How many there are in each state.
pub fn counts(out: &mut Out, rows: &[Row]) -> Result<(), Failure> {
    let states =
        [State::Ok, State::Absent, State::Skipped, State::Failed, State::Crashed, State::Hung].map(|state| {
            let count = rows.iter().filter(|row| row.state == state).count();
            (count > 0).then(|| format!("{count} {}", state.name()))
        });
    let states: Vec<String> = states.into_iter().flatten().collect();
    let style = if rows.iter().any(Row::is_wrong) { Style::Bad } else { Style::Good };
    out.line(format!("\n{}", out.paint(style, &states.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_told_what_a_provider_says() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\u{fffd}[2Jb\nc");
    }
}
