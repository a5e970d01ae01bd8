//! `ep completions`.

use crate::Cli;
use crate::failure::Failure;
use crate::output::Out;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Prints a completion script for a shell
///
/// Put it where the shell looks for such scripts, for example
/// `ep completions bash > ~/.local/share/bash-completion/completions/ep` or
/// `ep completions fish > ~/.config/fish/completions/ep.fish`.
#[derive(Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Runs it.
    pub fn run(&self, out: &mut Out) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "ep", &mut script);
        out.text(String::from_utf8_lossy(&script))
    }
}
