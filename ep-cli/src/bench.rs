//! `ep bench`: runs the benchmark program that is built beside this one.
//!
//! The benchmarks compare the plugin with the same provider linked statically, and this program contains no
//! provider, so they are a program of their own.

use crate::failure::{Exit, Failure};
use crate::host::find_config;
use crate::output::Out;
use clap::Args;
use std::path::Path;
use std::process::Command;

/// The program with the boundary's benchmarks.
const BOUNDARY: &str = "ep-boundary";

/// Measures what the framework itself costs
///
/// Runs `ep-boundary`, which must stand beside this program.
#[derive(Args)]
pub struct Bench {
    /// The cost of calling through the plugin boundary, of looking up a primitive, of loading and of threads
    #[arg(long, required = true)]
    boundary: bool,
    /// Prints JSON: [{name, median_ns, min_ns, runs}]
    #[arg(long)]
    json: bool,
}

impl Bench {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        debug_assert!(self.boundary, "clap requires it, and there is nothing else to measure yet");
        let config = find_config(config)?;
        let own = std::env::current_exe()
            .map_err(|e| Failure::general(format!("cannot find the folder of this program: {e}")))?;
        let program = own.with_file_name(format!("{BOUNDARY}{}", std::env::consts::EXE_SUFFIX));
        if !program.is_file() {
            return Err(Failure::general(format!(
                "{} is missing; build it with `cargo build --release -p ep-benches`, and run the `ep` of that build",
                program.display()
            )));
        }
        out.flush()?;
        let mut command = Command::new(&program);
        command.arg("--config").arg(&config);
        if self.json {
            command.arg("--json");
        }
        let status = command
            .status()
            .map_err(|e| Failure::general(format!("cannot run {}: {e}", program.display())))?;
        if status.success() {
            return Ok(());
        }
        let exit = if status.code() == Some(3) { Exit::NoProvider } else { Exit::General };
        Err(Failure::new(exit, format!("{} failed: {status}", program.display())).with_config(&config))
    }
}
