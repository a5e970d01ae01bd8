//! What to do about a provider that is not as it should be.

use super::Row;
use super::probe::State;
use crate::output::quoted;
use std::path::Path;

/// What to do; `None` where there is nothing to do. `found`: in a folder of `[search]`, without an entry of its own.
pub fn advice(row: &Row, found: bool, config: &Path) -> Option<String> {
    let debugger = format!(
        "`gdb --args ep doctor-worker --config {} {}`",
        quoted(&config.to_string_lossy()),
        quoted(&row.provider)
    );
    let config = config.display();
    let library = quoted(&row.path);
    let without = if found {
        format!("to do without it, add its file to `deny` of [search] in {config}")
    } else {
        format!("to do without it, set `enabled = false` for it in {config}")
    };
    match row.state {
        State::Ok => None,
        State::Absent | State::Skipped if !row.required => None,
        State::Absent | State::Skipped => Some(format!(
            "the config requires it, so no host starts: do what the reason says, or remove `required` in {config}"
        )),
        State::Failed => {
            let step = row.step.as_deref().unwrap_or_default();
            let mend = match step {
                // Not about this provider: leaving it out mends nothing.
                "config" => return Some(format!("correct {config}")),
                "check" => format!("correct the file, or its path in {config}"),
                "load" => {
                    format!("install what the message names (`ldd {library}` lists what the library needs)")
                }
                "query" => "build it for this version of EP (`ep --version` prints it)".to_owned(),
                "create" => format!("check its [provider.options] in {config}, and what its manual asks for"),
                "devices" | "open" => {
                    format!(
                        "check the driver and the rights on the device; `devices` in {config} leaves devices out"
                    )
                }
                _ => format!("`ep conformance {library}` has the details for its author"),
            };
            Some(format!("{mend}; {without}"))
        }
        State::Crashed => Some(format!(
            "it would have ended your program: {without}, and tell its author; `ep conformance {library}` finds more, and \
             {debugger} shows where"
        )),
        State::Hung => Some(format!(
            "if it is only slow, give it longer with --timeout; else {without}, and tell its author; {debugger} shows where \
             it waits"
        )),
    }
}
