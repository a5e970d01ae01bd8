//! `ep-rows`, which `ep bench --device` runs: the standard table on one device.

use clap::Parser;
use ep_benches::limit::{Limits, read_all};
use ep_benches::ours::{Launcher, Operands, Refusal};
use ep_benches::page::{Setting, insert};
use ep_benches::row::{Group, Row};
use ep_benches::samples::{Budget, Samples, median, time};
use ep_benches::shares::{self, Measured};
use ep_benches::table::table;
use ep_core::{Code, Error, Result};
use ep_registry::config::Config;
use ep_registry::{Device, Runtime};
use indicatif::{ProgressBar, ProgressStyle};
use regex::Regex;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How often a row and its limit take turns.
const TURNS: u32 = 5;

/// How long each kernel of the limit is timed in all.
const LIMIT: Budget = Budget { time: Duration::from_millis(100), min: 15, max: 100 };

/// Cached memory beyond this is given back between rows.
const KEPT_BYTES: u64 = 2 << 30;

/// Times the standard table of rows on one device; `ep bench --device` runs this
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The config file [default: as for `ep`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The device, `cpu:0`, or `cpu` for the first of its kind
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Only rows whose name, `OP DTYPE SHAPE` as the table prints it, matches this regular expression
    #[arg(long, value_name = "RE")]
    filter: Option<Regex>,
    /// Only these parts of the table: large, medium, small, chain, grid
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    group: Vec<String>,
    /// Threads that providers may use, such as 1 or 1,2 [default: one for each CPU]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// A short look: fewer runs of each row
    #[arg(long)]
    quick: bool,
    /// Prints JSON, a line for each row
    #[arg(long)]
    json: bool,
    /// Also writes the shares of the rows past the caches into docs/performance.md of this checkout
    #[arg(long, value_name = "DIR", conflicts_with = "filter")]
    write_docs: Option<PathBuf>,
}

/// A line of output. The keys are stable.
#[derive(Serialize)]
struct Line<'a> {
    op: &'a str,
    dtype: String,
    shape: &'a [i64],
    threads: usize,
    device: &'a str,
    /// The median of many runs, as are the rates.
    median_us: Option<f64>,
    /// Bytes that the row has to move, per second.
    gbps: Option<f64>,
    /// Arithmetic operations per second, where they are what counts.
    gflops: Option<f64>,
    /// The limit's time over the row's.
    share: Option<f64>,
    min_us: Option<f64>,
    runs: usize,
    group: &'static str,
    /// Provider and factory.
    by: Option<String>,
    /// `ok`, `unsupported` or `failed`.
    status: &'static str,
    /// Why it is not `ok`.
    reason: Option<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("error: {failed} rows failed");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            // As `ep`: 2 for the command line, 3 where no provider can be used.
            ExitCode::from(match e.code() {
                Code::InvalidArgument => 2,
                Code::NotFound | Code::Unavailable => 3,
                _ => 1,
            })
        }
    }
}

fn selected(cli: &Cli) -> Result<Vec<Row>> {
    let mut rows = table();
    let groups: Vec<&str> = rows.iter().map(|r| r.group.name()).collect();
    if let Some(unknown) = cli.group.iter().find(|g| !groups.contains(&g.as_str())) {
        return Err(Error::invalid(format!(
            "--group {unknown}: there are large, medium, small, chain and grid"
        )));
    }
    if cli.write_docs.is_some()
        && !(cli.group.is_empty() || cli.group.iter().any(|g| g == Group::Large.name()))
    {
        return Err(Error::invalid(
            "--write-docs: its table is of the group `large`, which --group leaves out",
        ));
    }
    rows.retain(|r| cli.group.is_empty() || cli.group.iter().any(|g| g == r.group.name()));
    rows.retain(|r| cli.filter.as_ref().is_none_or(|f| f.is_match(&r.id())));
    if rows.is_empty() {
        return Err(Error::invalid(
            "no row is left; a row's name is `OP DTYPE SHAPE`, such as `add f32 16777216`",
        ));
    }
    Ok(rows)
}

fn config(path: Option<&Path>) -> Result<Config> {
    let found = Config::find(path, true)?;
    let found = found.ok_or_else(|| {
        Error::not_found("there is no config; write one with `ep init`, or name it with --config")
    })?;
    Config::from_file(&found)
}

/// Puts the table of shares into the page of a checkout.
fn write_part(root: &Path, rows: &[shares::Line<'_>], cli: &Cli) -> Result<()> {
    let path = root.join("docs/performance.md");
    let fail = |e: String| Error::invalid(format!("--write-docs: {}: {e}", path.display()));
    let page = std::fs::read_to_string(&path).map_err(|e| fail(e.to_string()))?;
    let part = shares::markdown(rows, &cli.device, &Setting::here(), cli.quick);
    let new = insert(&page, shares::PROGRAM, &part).map_err(fail)?;
    // Before anything is measured this only shows that it can be done.
    if rows.is_empty() { Ok(()) } else { std::fs::write(&path, new).map_err(|e| fail(e.to_string())) }
}

/// Times everything; how many rows failed.
fn run(cli: &Cli) -> Result<usize> {
    let rows = selected(cli)?;
    let config = config(cli.config.as_deref())?;
    if let Some(root) = &cli.write_docs {
        write_part(root, &[], cli)?;
    }
    let threads = if cli.threads.is_empty() { vec![0] } else { cli.threads.clone() };
    let bar = ProgressBar::new((rows.len() * threads.len()) as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    bar.set_style(style.map_err(|e| Error::internal(e.to_string()))?);
    let mut printer = Printer { json: cli.json, bar: bar.clone(), head: None };
    if cfg!(debug_assertions) {
        bar.suspend(|| eprintln!("a debug build: these figures mean nothing; build with --release"));
    }
    let mut failed = 0;
    let mut shares = Vec::new();
    for threads in threads {
        let runtime = Runtime::builder().config(config.clone()).threads(threads).build()?;
        let device = runtime.device(&cli.device)?;
        let mut limits = Limits::default();
        for row in &rows {
            bar.set_message(row.id());
            let line = measure(&runtime, device, row, cli.quick, &mut limits);
            failed += usize::from(line.status == "failed");
            printer.print(&line, row)?;
            if shares::counts(row) {
                let figures = line.median_us.zip(line.gbps).zip(line.share);
                let figures = figures.map(|((us, gbps), share)| Measured { us, gbps, share });
                shares.push((row, line.threads, figures));
            }
            bar.inc(1);
            if device.memory_stats().is_ok_and(|s| s.reserved_bytes > KEPT_BYTES) {
                device.trim()?;
            }
        }
    }
    bar.finish_and_clear();
    if let Some(root) = &cli.write_docs {
        write_part(root, &shares, cli)?;
    }
    Ok(failed)
}

fn measure<'a>(
    runtime: &Runtime,
    device: &'a Device,
    row: &'a Row,
    quick: bool,
    limits: &mut Limits,
) -> Line<'a> {
    let mut line = Line {
        op: &row.op,
        dtype: row.dtype.to_string(),
        shape: &row.shape,
        threads: runtime.parallel().threads(),
        device: device.name(),
        median_us: None,
        gbps: None,
        gflops: None,
        share: None,
        min_us: None,
        runs: 0,
        group: row.group.name(),
        by: None,
        status: "ok",
        reason: None,
    };
    match timed(runtime, device, row, quick, limits) {
        Ok((samples, share, by)) => {
            let ns = samples.median();
            line.median_us = Some(ns / 1e3);
            line.min_us = Some(samples.min() / 1e3);
            line.gbps = Some(row.bytes_moved() as f64 / ns);
            line.gflops = (row.flops != 0).then_some(row.flops as f64 / ns);
            line.share = share;
            line.runs = samples.len();
            line.by = Some(by);
        }
        Err(Refusal::Unsupported(why)) => (line.status, line.reason) = ("unsupported", Some(why)),
        Err(Refusal::Failed(e)) => (line.status, line.reason) = ("failed", Some(e.to_string())),
    }
    line
}

/// Times a row; also the limit's time over its own, and who computes it.
fn timed(
    runtime: &Runtime,
    device: &Device,
    row: &Row,
    quick: bool,
    limits: &mut Limits,
) -> std::result::Result<(Samples, Option<f64>, String), Refusal> {
    let failed = Refusal::Failed;
    let budget = match quick {
        true => Budget { time: Duration::from_millis(20), min: 3, max: 200 },
        false => Budget { time: Duration::from_millis(400), min: 9, max: 2000 },
    };
    Launcher::supported(runtime, device, row)?;
    let operands = Operands::new(device, row).map_err(failed)?;
    let launcher = Launcher::new(runtime, device, row, &operands)?;
    let output = (operands.output.address(), operands.output.bytes());
    let host = device.info().memory_space == ep_core::provider::inline::HOST_SPACE;
    if row.then_read && !host {
        return Err(Refusal::Unsupported("the consumer reads host memory".into()));
    }
    let mut work = |times| {
        if !row.then_read {
            return launcher.run(times);
        }
        for _ in 0..times {
            launcher.run(1)?;
            // SAFETY: the output is host memory and the launch that writes it is done.
            unsafe { read_all(output, runtime.parallel()) }?;
        }
        Ok(())
    };
    let limit = limits.of(row, device, &operands, runtime.parallel()).map_err(failed)?;
    let Some(limit) = limit else {
        return Ok((time(budget, &mut work).map_err(failed)?, None, launcher.by()));
    };
    // In turns, so that both see the same clock and the same neighbours.
    let each = |n: usize| n.div_ceil(TURNS as usize);
    let part = |b: Budget| Budget { time: b.time / TURNS, min: each(b.min), max: each(b.max) };
    let (mut samples, mut shares) = (Samples::new(), Vec::new());
    for _ in 0..TURNS {
        let ours = time(part(budget), &mut work).map_err(failed)?;
        let least = limit.time(part(LIMIT)).map_err(failed)?;
        shares.push(least / ours.median());
        samples.extend(&ours);
    }
    Ok((samples, Some(median(&shares)), launcher.by()))
}

struct Printer {
    json: bool,
    bar: ProgressBar,
    head: Option<(usize, &'static str)>,
}

impl Printer {
    fn print(&mut self, line: &Line<'_>, row: &Row) -> Result<()> {
        let text = match self.json {
            true => serde_json::to_string(line).map_err(|e| Error::internal(e.to_string()))?,
            false => self.for_people(line, row),
        };
        let written = self.bar.suspend(|| writeln!(std::io::stdout(), "{text}"));
        match written {
            // Nobody reads any more: `ep bench ... | head`.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
            other => other.map_err(|e| Error::internal(format!("cannot write to standard output: {e}"))),
        }
    }

    fn for_people(&mut self, line: &Line<'_>, row: &Row) -> String {
        let mut text = String::new();
        let head = (line.threads, line.group);
        if self.head != Some(head) {
            self.head = Some(head);
            let threads = if line.threads == 1 { "thread" } else { "threads" };
            text = format!(
                "\n{} on {}, {} {threads}\n{:<24}{:>11}  {:<22}{:>12}{:>9}{:>9}{:>8}\n",
                line.group,
                line.device,
                line.threads,
                "op",
                "dtype",
                "shape",
                "median us",
                "GB/s",
                "GFLOP/s",
                "share"
            );
        }
        text += &format!("{:<24}{:>11}  {:<22}", line.op, line.dtype, row.shape_text());
        match line.median_us {
            None => {
                text += &format!(
                    "{}: {}",
                    line.status,
                    line.reason.as_deref().and_then(|r| r.lines().next()).unwrap_or("")
                )
            }
            Some(us) => {
                let or_dash =
                    |x: Option<f64>, digits: usize| x.map_or("-".into(), |x| format!("{x:.digits$}"));
                text += &format!(
                    "{us:>12.2}{:>9}{:>9}{:>8}",
                    or_dash(line.gbps, 1),
                    or_dash(line.gflops, 0),
                    or_dash(line.share, 2)
                );
            }
        }
        text
    }
}
