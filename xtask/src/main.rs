//! Contributors' commands: `cargo xtask --help`.

mod commands;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::Change;

#[derive(Parser)]
#[command(about = "Contributors' commands")]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Writes everything that is generated from ep-core/abi.
    Gen {
        /// Only checks that the files are current; exit code 1 and a list if not.
        #[arg(long)]
        check: bool,
    },
    /// Writes the C header of a version of the contract that never was, for tests of version skew.
    Header(Header),
    /// Builds `ep` and the CPU provider for release, writes a config, and classifies handwritten digits on every device.
    Demo {
        /// Passed on to `ep demo`; see `ep demo --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Builds the workspace, plugins included, and runs all tests (with cargo-nextest where it is installed).
    Test {
        /// Runs only tests whose names contain one of these.
        filters: Vec<String>,
    },
}

#[derive(Args)]
struct Header {
    /// Where to write it.
    #[arg(long)]
    out: PathBuf,
    /// Drops the last field of a struct.
    #[arg(long, value_name = "STRUCT")]
    drop_last: Vec<String>,
    /// Appends a field; the type `fn(types)` makes a function.
    #[arg(long, value_name = "STRUCT.field=type")]
    append: Vec<String>,
    /// Exchanges two fields.
    #[arg(long, value_name = "STRUCT.a,b")]
    swap: Vec<String>,
    /// Changes a field's type.
    #[arg(long, value_name = "STRUCT.field=type")]
    retype: Vec<String>,
    /// Another minor version.
    #[arg(long, value_name = "N")]
    minor: Option<u32>,
}

impl Header {
    /// The changes in a fixed order: drops, appends, swaps, retypes, version.
    fn changes(&self) -> Result<Vec<Change>, String> {
        let lists = [
            ("drop-last", &self.drop_last),
            ("append", &self.append),
            ("swap", &self.swap),
            ("retype", &self.retype),
        ];
        let texts = lists.iter().flat_map(|(what, list)| list.iter().map(move |x| format!("{what}={x}")));
        texts.map(|t| t.parse()).chain(self.minor.map(|n| Ok(Change::Minor(n)))).collect()
    }

    fn write(&self) -> Result<(), String> {
        let text = xtask::header(&self.changes()?)?;
        std::fs::write(&self.out, text).map_err(|e| format!("{}: {e}", self.out.display()))
    }
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Cmd::Gen { check } => generate(check),
        Cmd::Header(header) => exit_code(header.write()),
        Cmd::Demo { args } => exit_code(commands::demo(&args)),
        Cmd::Test { filters } => exit_code(commands::test(&filters)),
    }
}

fn exit_code(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn generate(check: bool) -> ExitCode {
    let stale = xtask::generate(check);
    for path in &stale {
        println!("{} {}", if check { "stale:" } else { "wrote" }, path.display());
    }
    let problems = xtask::contract_problems();
    if !problems.is_empty() {
        println!("the contract:\n  {}", problems.join("\n  "));
        return ExitCode::FAILURE;
    }
    if check && !stale.is_empty() {
        println!("run `cargo xtask gen` and commit the result");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
