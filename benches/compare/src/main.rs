//! `ep-compare`: times the standard table with the CPU provider and, in turns with it, with PyTorch, ONNX Runtime,
//! NumPy and MKL.
//!
//! It starts a process of itself for each number of threads and each repetition. In it everyone computes on the same
//! memory and is called from C, C++ or Rust; see [`worker`]. What is measured is kept in a file, so that a comparison
//! that was interrupted goes on where it stopped.

mod bars;
mod charts;
mod judge;
mod peers;
mod record;
mod report;
mod worker;

use clap::{Args, Parser, Subcommand};
use ep_benches::row::Row;
use ep_benches::table::table;
use ep_registry::config::Config;
use indicatif::{ProgressBar, ProgressStyle};
use judge::Verdict;
use peers::Installed;
use record::{Header, Measured, Record};
use regex::Regex;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};
use worker::{Effort, Event, Order};

/// Compares the CPU provider with other libraries, in turns on the same memory
///
/// `benches/peers/install.sh DIR` installs the others. The exit code is 0 whatever the ratios are; 75 when the time
/// limit ended the run early: run the same command again to go on.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    compare: Compare,
    #[command(subcommand)]
    inside: Option<Inside>,
}

#[derive(Args)]
struct Compare {
    /// The folder that `install.sh` was given
    #[arg(long, value_name = "DIR", default_value = "target/peers")]
    peers: PathBuf,
    /// The config file that names the CPU provider [default: as for `ep`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only rows whose name, `OP DTYPE SHAPE`, matches this regular expression
    #[arg(long, value_name = "RE")]
    filter: Option<Regex>,
    /// Only these parts of the table: large, medium, small, chain, grid
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    group: Vec<String>,
    /// Threads that everyone may use
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Processes for each number of threads, over which medians are taken [default: 3, or 1 with --quick]
    #[arg(long, value_name = "N")]
    processes: Option<usize>,
    /// As many for a row that reached its bar in some processes and missed it in others
    #[arg(long, value_name = "N", default_value_t = 7)]
    most_processes: usize,
    /// A short look: one process and few runs, unless --processes says more
    #[arg(long)]
    quick: bool,
    /// Seconds that each process waits, in all, for other processes to leave the CPUs alone
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    patience: u64,
    /// Stops after this time; the same command goes on from there
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<u64>,
    /// The file with what was measured so far [default: compare.jsonl beside this program]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Forgets what was measured so far
    #[arg(long)]
    fresh: bool,
    /// Measures nothing, and reports what was measured so far
    #[arg(long)]
    report_only: bool,
    /// What does not count in the report: torch, onnxruntime, numpy, mkl, mkl_vml, and loop for the time above plain loops
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    without: Vec<String>,
    /// Prints JSON, a line for each row, in place of the table
    #[arg(long)]
    json: bool,
    /// Also writes docs/performance.md, its charts and a dated record, below this folder
    #[arg(long, value_name = "ROOT")]
    write_docs: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Inside {
    /// One process of a comparison; the rows come on standard input
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        peers: PathBuf,
        #[arg(long)]
        config: PathBuf,
        #[arg(long)]
        threads: usize,
        #[arg(long)]
        process: usize,
        #[arg(long)]
        patience: u64,
        #[arg(long)]
        quick: bool,
    },
}

/// The exit code of a run that the time limit ended.
const UNFINISHED: u8 = 75;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.inside {
        Some(Inside::Worker { peers, config, threads, process, patience, quick }) => {
            let effort = Effort { quick, patience: Duration::from_secs(patience) };
            let work = |installed| worker::run(&config, &installed, threads, process, effort, &table());
            Installed::read(&peers).and_then(work).map(|()| ExitCode::SUCCESS)
        }
        None => cli.compare.run(),
    };
    result.unwrap_or_else(|e| {
        eprintln!("error: {e}");
        ExitCode::FAILURE
    })
}

impl Compare {
    fn run(&self) -> Result<ExitCode, String> {
        if cfg!(debug_assertions) {
            eprintln!("a debug build: these figures mean nothing; build with --release");
        }
        let rows = self.rows()?;
        if self.report_only {
            let path = self.record_path()?;
            let known = record::read(&path).ok_or_else(|| {
                format!(
                    "{}: no such record; measure without --report-only, or name one with --record",
                    path.display()
                )
            })?;
            return self.report(&rows, &known.0, &known.1, true);
        }
        let peers = self.peers.join("peers.json");
        let installed = Installed::read(&peers)?;
        let found = Config::find(self.config.as_deref(), true).map_err(|e| e.to_string())?;
        let config = found.ok_or("there is no config; write one with `ep init`, or name it with --config")?;
        let header =
            Header { builds: builds(&config)?, versions: installed.versions.clone(), quick: self.quick };
        let (mut record, old) = Record::open(&self.record_path()?, &header, self.fresh)?;
        if let Some(old) = old {
            eprintln!(
                "the provider or the peers have changed, or --fresh is set: starting anew; the record so far is {}",
                old.display()
            );
        }
        let processes = Processes { compare: self, installed: &installed, peers: &peers, config: &config };
        let finished = processes.measure(&rows, &mut record)?;
        self.report(&rows, &header, &record.lines, finished)
    }

    fn record_path(&self) -> Result<PathBuf, String> {
        if let Some(path) = &self.record {
            return Ok(path.clone());
        }
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        Ok(own.with_file_name(if self.quick { "compare-quick.jsonl" } else { "compare.jsonl" }))
    }

    fn report(
        &self,
        rows: &[Row],
        header: &Header,
        lines: &[Measured],
        finished: bool,
    ) -> Result<ExitCode, String> {
        let wanted = lines.iter().filter(|l| self.threads.contains(&l.threads));
        let lines: Vec<_> = wanted.cloned().collect();
        let verdicts = judge::verdicts(rows, &lines, &self.without);
        let text = if self.json { report::json(&verdicts)? } else { report::text(&verdicts) };
        match std::io::stdout().write_all(text.as_bytes()) {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(e.to_string()),
            _ => {}
        }
        if let Some(root) = &self.write_docs {
            report::write_docs(root, &verdicts, header, &lines)?;
        }
        if finished {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("the time is up; run the same command again to go on");
        Ok(ExitCode::from(UNFINISHED))
    }

    fn rows(&self) -> Result<Vec<Row>, String> {
        let mut rows = table();
        if let Some(unknown) = self.group.iter().find(|g| !rows.iter().any(|r| r.group.name() == **g)) {
            return Err(format!("--group {unknown}: there are large, medium, small, chain and grid"));
        }
        rows.retain(|r| self.group.is_empty() || self.group.iter().any(|g| g == r.group.name()));
        rows.retain(|r| self.filter.as_ref().is_none_or(|f| f.is_match(&r.id())));
        if rows.is_empty() {
            return Err("no row is left; a row's name is `OP DTYPE SHAPE`".into());
        }
        Ok(rows)
    }

    fn processes(&self) -> usize {
        self.processes.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn most_processes(&self) -> usize {
        if self.quick { self.processes() } else { self.most_processes.max(self.processes()) }
    }
}

/// The files of the config's providers, with what tells one build from another.
fn builds(config: &Path) -> Result<Vec<String>, String> {
    let parsed = Config::from_file(config).map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    for provider in &parsed.providers {
        let data = std::fs::metadata(&provider.path)
            .map_err(|e| format!("provider `{}`, {}: {e}", provider.name, provider.path.display()))?;
        let changed = data.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        let seconds = changed.map_or(0, |d| d.as_secs());
        all.push(format!("{} {} {seconds}", provider.name, data.len()));
    }
    Ok(all)
}

/// Starts the workers.
struct Processes<'a> {
    compare: &'a Compare,
    installed: &'a Installed,
    peers: &'a Path,
    config: &'a Path,
}

/// How a worker ended.
enum End {
    /// It did all that it was told.
    Complete,
    /// The time was up.
    Stopped,
    /// It crashed on this row, when this peer computed it for the first time, if it was then.
    Crashed(String, Option<String>),
}

impl Processes<'_> {
    /// Measures what is missing; whether all of it was.
    fn measure(&self, rows: &[Row], record: &mut Record) -> Result<bool, String> {
        let limit = self.compare.time_limit.map(|s| Instant::now() + Duration::from_secs(s));
        let mut without: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let (all, most) = (self.compare.processes(), self.compare.most_processes());
        let jobs: Vec<(usize, usize)> = (0..most)
            .flat_map(|process| self.compare.threads.iter().map(move |threads| (*threads, process)))
            .collect();
        let bar = ProgressBar::new((all * self.compare.threads.len() * rows.len()) as u64);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} of about {duration} {msg}");
        bar.set_style(style.map_err(|e| e.to_string())?);
        for (threads, process) in jobs {
            let disputed = |row: &Row, record: &Record| {
                let of_row = record.lines.iter().filter(|l| l.threads == threads && l.id == row.id());
                let lines: Vec<_> = of_row.cloned().collect();
                let rows = std::slice::from_ref(row);
                judge::verdicts(rows, &lines, &self.compare.without).iter().any(Verdict::disputed)
            };
            // Before any of them is measured by this process, which could end the dispute.
            let wanted: Vec<&Row> = rows.iter().filter(|r| process < all || disputed(r, record)).collect();
            if process >= all {
                bar.inc_length(
                    wanted.iter().filter(|r| !record.has(&r.id(), threads, process)).count() as u64
                );
            }
            loop {
                let missing: Vec<&Row> =
                    wanted.iter().copied().filter(|r| !record.has(&r.id(), threads, process)).collect();
                bar.set_position(record.lines.len().min(bar.length().unwrap_or(0) as usize) as u64);
                if missing.is_empty() {
                    break;
                }
                let orders = missing.iter().map(|r| {
                    let id = r.id();
                    Order { without: without.get(&id).cloned().unwrap_or_default(), id }
                });
                match self.worker(threads, process, orders.collect(), record, &bar, limit)? {
                    End::Complete => break,
                    End::Stopped => {
                        bar.finish_and_clear();
                        return Ok(false);
                    }
                    End::Crashed(id, Some(peer)) => {
                        bar.suspend(|| eprintln!("{peer} crashed on {id}; going on without it there"));
                        without.entry(id).or_default().push(peer);
                    }
                    End::Crashed(id, None) => {
                        bar.suspend(|| eprintln!("a process crashed on {id}; going on with the next row"));
                        let absent = BTreeMap::from([("ours".to_owned(), "failed: a crash".to_owned())]);
                        record.add(Measured { id, threads, process, absent, ..Measured::default() })?;
                    }
                }
            }
        }
        bar.finish_and_clear();
        Ok(true)
    }

    fn worker(
        &self,
        threads: usize,
        process: usize,
        orders: Vec<Order>,
        record: &mut Record,
        bar: &ProgressBar,
        limit: Option<Instant>,
    ) -> Result<End, String> {
        let text = |e: std::io::Error| format!("a process of the comparison: {e}");
        let own = std::env::current_exe().map_err(text)?;
        let mut command = Command::new(own);
        command.arg("worker").arg("--peers").arg(self.peers).arg("--config").arg(self.config);
        command.args(["--threads", &threads.to_string(), "--process", &process.to_string()]);
        command.args(["--patience", &self.compare.patience.to_string()]);
        if self.compare.quick {
            command.arg("--quick");
        }
        command.envs(self.installed.environment(threads)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(text)?;
        let mut input = child.stdin.take().ok_or("a process without standard input")?;
        let output = child.stdout.take().ok_or("a process without standard output")?;
        let mut events = BufReader::new(output).lines();
        let (mut trying, mut current, mut begun) = (None, String::new(), false);
        'rows: for order in orders {
            if limit.is_some_and(|l| Instant::now() >= l) {
                drop(input);
                child.wait().map_err(text)?;
                return Ok(End::Stopped);
            }
            bar.set_message(order.id.clone());
            current.clone_from(&order.id);
            let line = serde_json::to_string(&order).map_err(|e| e.to_string())?;
            if writeln!(input, "{line}").is_err() {
                break;
            }
            loop {
                let Some(Ok(line)) = events.next() else { break 'rows };
                // Libraries print too.
                let Ok(event) = serde_json::from_str(&line) else { continue };
                match event {
                    Event::Trying { peer } => trying = Some(peer),
                    Event::Timing => trying = None,
                    Event::Note(note) => bar.suspend(|| eprintln!("{note}")),
                    Event::Done(measured) => {
                        (trying, begun) = (None, true);
                        record.add(measured)?;
                        bar.inc(1);
                        break;
                    }
                }
            }
        }
        drop(input);
        let status = child.wait().map_err(text)?;
        if status.success() {
            return Ok(End::Complete);
        }
        if !begun && trying.is_none() && status.code().is_some() {
            // It could not start, and has said why.
            return Err(format!("a process of the comparison ended with {status}"));
        }
        Ok(End::Crashed(current, trying))
    }
}
