//! The `ep` command: what the configured providers are, what they can do, and that they do it right.

mod bench;
mod completions;
mod conformance;
mod demo;
mod doctor;
mod explain;
mod failure;
mod host;
mod init;
mod list;
mod meaning;
mod new_provider;
mod output;
mod query;
mod support;
mod warm;

use clap::{ArgAction, Args, Parser, Subcommand};
use ep_core::abi::{ABI_FINGERPRINT, ABI_MAJOR, ABI_MINOR};
use failure::Failure;
use output::Out;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let package = env!("CARGO_PKG_VERSION");
    format!("{package} (ABI {ABI_MAJOR}.{ABI_MINOR}, fingerprint {ABI_FINGERPRINT:#018x})")
});

// Lines of at most 80 characters: clap would wrap longer ones.
const AFTER_HELP: &str = "\
Examples:
  ep init                             write ./ep.toml for the providers beside ep
  ep list                             which providers loaded, with which devices
  ep query --op softmax --dtype f16   what can be done with f16 softmax
  ep explain --op cast --dtype src=f16 --dtype dst=f32
                                      who gets a request, and why not the others
  ep doctor                           try each provider in a process of its own
  ep demo                             classify handwritten digits on every device

--help adds the config's places, JSON and the exit codes.";

const AFTER_LONG_HELP: &str = "\
Examples:
  ep init                             write ./ep.toml for the providers beside ep
  ep list                             which providers loaded, with which devices
  ep list --json | jq '.[].status'    the same for programs
  ep query                            ops and dtypes on each device
  ep query --op softmax --dtype f16   what can be done with f16 softmax
  ep explain --op softmax --dtype src=f16 --dtype dst=f32 --limit cols=1024
                                      who gets a request, and why not the others
  ep support --device cpu             every combination, and why one has no meaning
  ep doctor                           try each provider in a process of its own,
                                      where a crash or a hang ends nothing else
  ep demo                             classify handwritten digits on every device
  ep demo --device cpu:0 --json       on one device, for programs
  ep bench --device cpu --filter add  how fast primitives are, and how near the
                                      machine's limits
  ep bench --boundary                 what calling a plugin costs
  ep bench --prepack                  what packing the weights of products gains
  ep conformance libmine.so           prove a provider
  ep new-provider acme                a crate with a new provider in ./acme
  ep warm --arch sm_90                compile CUDA kernels ahead of their use
  ep completions bash                 a completion script

Config:
  The first of these that there is; -v prints which one it is.
  1. the file of --config
  2. the file that the variable EP_CONFIG names
  3. ./ep.toml
  4. ep/ep.toml in $XDG_CONFIG_HOME, else in ~/.config
  5. /etc/ep/ep.toml

Colour:
  Only on a terminal, and not where NO_COLOR is set.

Exit codes:
  0  it worked
  1  it failed: a malformed config, [select] with an instance that is not there,
     a file that cannot be read or written, an error of a provider (of
     `doctor`: one failed, crashed or hung, or is required and not there)
  2  the command line is wrong: an unknown flag, op, dtype, selector, attribute
     or limit
  3  no config, no provider that loads, or no such device
  4  demo: a device classified too few digits, or a probability is off by 1e-5
     or more
  5  explain: nothing matches the request
  6  conformance: the provider does not load, a case failed, something required
     is missing, or an expected failure does not fail
  7  conformance: no primitive was launched, and --allow-empty is not given";

/// Loads execution providers, shows what they can do, and proves that they do it.
#[derive(Parser)]
#[command(name = "ep", version = VERSION.as_str(), after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
#[command(next_help_heading = "Global options")]
struct Globals {
    /// The config file [default: $EP_CONFIG, else ./ep.toml, else the user's or the system's]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Prints the config in use and what is loaded; -vv for details, -vvv for everything
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    /// Prints no warnings; -qq no log at all
    #[arg(short, long, action = ArgAction::Count, global = true, conflicts_with = "verbose")]
    quiet: u8,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    List(list::List),
    Query(query::Query),
    Explain(explain::Explain),
    Support(support::Support),
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    DoctorWorker(doctor::Worker),
    Bench(bench::Bench),
    Conformance(Box<conformance::Conformance>),
    /// Runs a provider for `ep conformance`, which starts it
    #[command(hide = true)]
    ConformanceWorker,
    Warm(warm::Warm),
    Init(init::Init),
    NewProvider(new_provider::NewProvider),
    Completions(completions::Completions),
}

impl Command {
    fn run(&self, globals: &Globals, out: &mut Out) -> Result<(), Failure> {
        let config = globals.config.as_deref();
        match self {
            Command::Demo(x) => x.run(config, out),
            Command::List(x) => x.run(config, out),
            Command::Query(x) => x.run(config, out),
            Command::Explain(x) => x.run(config, out),
            Command::Support(x) => x.run(config, out),
            Command::Doctor(x) => x.run(config, out),
            Command::DoctorWorker(x) => x.run(config),
            Command::Bench(x) => x.run(config, out),
            Command::Conformance(x) => x.run(out),
            Command::ConformanceWorker => Ok(ep_conformance::worker::main()?),
            Command::Warm(x) => x.run(config, out),
            Command::Init(x) => x.run(config, out),
            Command::NewProvider(x) => x.run(out),
            Command::Completions(x) => x.run(out),
        }
    }
}

/// Log events, the providers' too, as lines on standard error.
fn start_log(globals: &Globals) {
    let level = match i16::from(globals.verbose) - i16::from(globals.quiet) {
        ..=-2 => LevelFilter::OFF,
        -1 => LevelFilter::ERROR,
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        3.. => LevelFilter::TRACE,
    };
    let mut targets = Targets::new().with_default(level);
    if level < LevelFilter::DEBUG {
        // What it warns of, providers that did not load and mistakes in the config, each command tells in its own way.
        targets = targets.with_target("ep_registry::runtime", level.min(LevelFilter::ERROR));
    }
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).without_time();
    tracing_subscriber::registry().with(targets).with(lines).init();
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log(&cli.globals);
    let mut out = Out::stdout();
    let result = cli.command.run(&cli.globals, &mut out);
    // What was computed before a failure is shown before the failure.
    let flushed = out.flush();
    match result.and(flushed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let mut lines = String::new();
            if !failure.message.is_empty() {
                lines.push_str(&format!("error: {}\n", failure.message));
            }
            if let Some(config) = &failure.config {
                lines.push_str(&format!("config: {}\n", config.display()));
            }
            // A reader that has gone (`2>&1 | head`) gets the exit code all the same.
            let _gone = std::io::stderr().write_all(lines.as_bytes());
            ExitCode::from(failure.exit as u8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_work_before_and_after_the_subcommand() {
        for line in [["ep", "--config", "x.toml", "list"], ["ep", "list", "--config", "x.toml"]] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert_eq!(cli.globals.config.as_deref(), Some(std::path::Path::new("x.toml")));
        }
        assert!(Cli::try_parse_from(["ep", "-v", "-q", "list"]).is_err());
        assert_eq!(Cli::try_parse_from(["ep", "list", "-vv"]).unwrap().globals.verbose, 2);
    }
}
