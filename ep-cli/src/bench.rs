//! `ep bench`: runs the benchmark programs that are built beside this one.
//!
//! This program computes nothing on elements and contains no provider. The benchmarks do: one compares the plugin
//! with the same provider linked statically, the other has kernels that show the machine's limits.

use crate::failure::{Exit, Failure};
use crate::host::find_config;
use crate::output::Out;
use clap::{ArgGroup, Args};
use std::path::Path;
use std::process::Command;

/// The program with the boundary's benchmarks.
const BOUNDARY: &str = "ep-boundary";
/// The program with what packing weights gains.
const PREPACK: &str = "ep-prepack";
/// The program with the standard table.
const ROWS: &str = "ep-rows";

/// Measures a device's primitives, or what the framework itself costs
///
/// With --device: the standard table, medians of many runs. Bytes are those that a row has to move; `share` is the
/// time of the fastest kernel that only moves these bytes (of one that only multiplies, for matrix products), measured
/// in the same run, over the row's. Rows of ops that the device lacks are printed as unsupported.
///
/// Runs `ep-rows`, `ep-boundary` or `ep-prepack`, which must stand beside this program.
#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["boundary", "device", "prepack"]))]
pub struct Bench {
    /// The cost of calling through the plugin boundary, of looking up a primitive, of loading and of threads
    #[arg(long)]
    boundary: bool,
    /// What packing the weights of matrix products gains, of `--device` [default: cpu]
    #[arg(long, conflicts_with = "boundary")]
    prepack: bool,
    /// The speed of the primitives of this device, or with --prepack what they gain: `cpu:0`, or `cpu` for the first of its kind
    #[arg(long, value_name = "NAME", conflicts_with = "boundary")]
    device: Option<String>,
    /// Only rows whose name, `OP DTYPE SHAPE` as the table prints it, matches this regular expression
    #[arg(long, value_name = "RE", conflicts_with_all = ["boundary", "prepack"])]
    filter: Option<String>,
    /// Only these parts of the table: large, medium, small, chain, grid
    #[arg(long, value_name = "NAMES", conflicts_with_all = ["boundary", "prepack"])]
    group: Option<String>,
    /// Threads that providers may use, such as 1 or 1,2 [default: one for each CPU]
    #[arg(long, value_name = "N", conflicts_with = "boundary")]
    threads: Option<String>,
    /// A short look: fewer runs of each row
    #[arg(long, conflicts_with = "boundary")]
    quick: bool,
    /// Prints JSON. Of a device a line for each row: {op, dtype, shape, threads, device, median_us, gbps, gflops,
    /// share}; of packing: {dtype, transposed, m, n, k, threads, device, pack_us, plain_us, packed_us, ratio}; of the
    /// boundary: [{name, median_ns, min_ns, runs}]
    #[arg(long)]
    json: bool,
    /// Also writes the shares of the rows past the caches into docs/performance.md of this checkout
    #[arg(long, value_name = "DIR", conflicts_with_all = ["boundary", "prepack", "filter"])]
    write_docs: Option<String>,
}

impl Bench {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let config = find_config(config)?;
        let own = std::env::current_exe()
            .map_err(|e| Failure::general(format!("cannot find the folder of this program: {e}")))?;
        let name = match (self.boundary, self.prepack) {
            (true, _) => BOUNDARY,
            (_, true) => PREPACK,
            _ => ROWS,
        };
        let program = own.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        if !program.is_file() {
            return Err(Failure::general(format!(
                "{} is missing; build it with `cargo build --release -p ep-benches`, and run the `ep` of that build",
                program.display()
            )));
        }
        out.flush()?;
        let mut command = Command::new(&program);
        command.arg("--config").arg(&config);
        command.args(self.arguments());
        let status = command
            .status()
            .map_err(|e| Failure::general(format!("cannot run {}: {e}", program.display())))?;
        if status.success() {
            return Ok(());
        }
        let exit = match status.code() {
            Some(2) => Exit::Usage,
            Some(3) => Exit::NoProvider,
            _ => Exit::General,
        };
        Err(Failure::new(exit, format!("{} failed: {status}", program.display())).with_config(&config))
    }

    /// What the program is told, but for the config.
    fn arguments(&self) -> Vec<String> {
        let values = [
            ("--device", &self.device),
            ("--filter", &self.filter),
            ("--group", &self.group),
            ("--threads", &self.threads),
            ("--write-docs", &self.write_docs),
        ];
        let given =
            values.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value.as_ref()?)));
        let flags = [("--quick", self.quick), ("--json", self.json)];
        given.chain(flags.into_iter().filter(|f| f.1).map(|f| f.0.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    fn parse(line: &[&str]) -> Result<Vec<String>, clap::Error> {
        Line::try_parse_from(std::iter::once("bench").chain(line.iter().copied()))
            .map(|l| l.bench.arguments())
    }

    #[test]
    fn flags_are_passed_on() {
        assert_eq!(parse(&["--boundary", "--json"]).unwrap(), ["--json"]);
        let all = ["--device", "cpu", "--filter", "^a b", "--group", "small", "--threads", "1,2", "--quick"];
        let passed = ["--device=cpu", "--filter=^a b", "--group=small", "--threads=1,2", "--quick"];
        assert_eq!(parse(&all).unwrap(), passed);
        let docs = ["--device", "cpu", "--write-docs", "."];
        assert_eq!(parse(&docs).unwrap(), ["--device=cpu", "--write-docs=."]);
    }

    #[test]
    fn one_thing_is_measured() {
        assert!(parse(&[]).is_err() && parse(&["--boundary", "--device", "cpu"]).is_err());
        assert!(parse(&["--boundary", "--quick"]).is_err());
        assert_eq!(parse(&["--prepack", "--device", "cpu:0"]).unwrap(), ["--device=cpu:0"]);
        assert!(parse(&["--prepack"]).unwrap().is_empty());
        for other in [&["--filter", "x"][..], &["--group", "small"], &["--write-docs", "."], &["--boundary"]]
        {
            assert!(parse(&[&["--prepack"], other].concat()).is_err(), "{other:?}");
        }
        assert!(parse(&["--device", "cpu", "--filter", "add", "--write-docs", "."]).is_err());
    }
}
