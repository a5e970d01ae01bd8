//! One process of the comparison: it times rows with us and the peers in turns, and prints what it finds.
//!
//! Everyone works on the same memory, which our device has allocated, with as many threads. Between turns the
//! process waits until the threads of whoever was timed last have gone to sleep. While other processes use the CPU
//! it waits too, with a limit.

use crate::peers::{Installed, Task, Work, open, plain};
use crate::record::{Figure, Measured};
use ep_benches::content::number;
use ep_benches::gate::{self, Mark};
use ep_benches::limit::{Limits, read_all};
use ep_benches::ours::{Launcher, Operands, Refusal, agree};
use ep_benches::row::{Family, Group, Output, Row};
use ep_benches::samples::{Budget, Samples, time};
use ep_benches::shares;
use ep_core::Error;
use ep_registry::config::Config;
use ep_registry::{Device, Runtime};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// What others may use of the CPUs while a row counts as measured in peace.
const FOREIGN: f64 = 0.08;
/// Cached memory beyond this is given back between rows.
const KEPT_BYTES: u64 = 2 << 30;
/// What kernels of the machine's limit are called among those that are timed.
const LIMIT: &str = "limit";
/// Elements of results that are compared.
const SAMPLES: usize = 4096;

/// What a worker is told on its standard input, a line for each row.
#[derive(Serialize, Deserialize)]
pub struct Order {
    pub id: String,
    /// Peers that crashed on it.
    pub without: Vec<String>,
}

/// What a worker prints, a line for each.
#[derive(Serialize, Deserialize)]
pub enum Event {
    /// A peer is about to compute a row for the first time.
    Trying { peer: String },
    /// All peers have computed the row; what follows is timed.
    Timing,
    /// A row is done.
    Done(Measured),
    /// Something that a person should know.
    Note(String),
}

fn say(event: &Event) -> Result<(), String> {
    let text = serde_json::to_string(event).map_err(|e| e.to_string())?;
    let mut out = std::io::stdout();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| e.to_string())
}

/// How thorough to be.
#[derive(Clone, Copy)]
pub struct Effort {
    pub quick: bool,
    /// How long a process waits in all for an idle machine.
    pub patience: Duration,
}

impl Effort {
    /// How often everyone has a turn. The grid is as long as the rest of the table, and a third of a full run.
    fn rounds(self, group: Group) -> usize {
        match (self.quick, group) {
            (true, _) => 1,
            (false, Group::Grid) => 2,
            (false, _) => 3,
        }
    }

    fn budget(self, group: Group) -> Budget {
        let time = match (self.quick, group) {
            (true, _) => 10,
            (false, Group::Grid) => 25,
            (false, _) => 40,
        };
        Budget { time: Duration::from_millis(time), min: 2, max: 400 }
    }
}

/// Runs a worker: `rows` is the table that orders refer to.
pub fn run(
    config: &Path,
    installed: &Installed,
    threads: usize,
    process: usize,
    effort: Effort,
    rows: &[Row],
) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let config = Config::from_file(config).map_err(text)?;
    let runtime = Runtime::builder().config(config).threads(threads).build().map_err(text)?;
    let device = runtime.device("cpu").map_err(text)?;
    let (peers, missing) = open(installed, threads);
    for why in missing {
        say(&Event::Note(format!("without a peer: {why}")))?;
    }
    let mut patience = effort.patience;
    let mut limits = Limits::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| e.to_string())?;
        let order: Order = serde_json::from_str(&line).map_err(|e| e.to_string())?;
        let row = rows.iter().find(|r| r.id() == order.id).ok_or("a row that is not in the table")?;
        let mut measured = Measured { id: order.id.clone(), threads, process, ..Measured::default() };
        for name in &order.without {
            measured.absent.insert(name.clone(), "it crashed".into());
        }
        let peers: Vec<_> = peers.iter().filter(|p| !order.without.iter().any(|w| w == p.name())).collect();
        let bench = Bench { runtime: &runtime, device, row, effort };
        match bench.run(&peers, &mut measured, &mut patience, &mut limits) {
            Ok(()) => {}
            Err(Refusal::Unsupported(why)) => {
                let line = why.lines().next().unwrap_or_default();
                measured.absent.insert("ours".into(), line.to_owned());
            }
            Err(Refusal::Failed(e)) => drop(measured.absent.insert("ours".into(), format!("failed: {e}"))),
        }
        say(&Event::Done(measured))?;
        if device.memory_stats().is_ok_and(|s| s.reserved_bytes > KEPT_BYTES) {
            device.trim().map_err(text)?;
        }
    }
    Ok(())
}

type Peers<'a> = [&'a Box<dyn crate::peers::Peer>];

/// A row as the peer of this name has prepared it.
type Named<'a> = (&'static str, Box<dyn Work + 'a>);

/// Something that is timed.
struct Subject<'a> {
    name: &'static str,
    run: Box<dyn FnMut(usize) -> ep_core::Result<()> + 'a>,
    samples: Samples,
}

struct Bench<'a> {
    runtime: &'a Runtime,
    device: &'a Device,
    row: &'a Row,
    effort: Effort,
}

impl Bench<'_> {
    fn run(
        &self,
        peers: &Peers<'_>,
        measured: &mut Measured,
        patience: &mut Duration,
        limits: &mut Limits,
    ) -> Result<(), Refusal> {
        let Bench { runtime, device, row, .. } = *self;
        Launcher::supported(runtime, device, row)?;
        let mut operands = Operands::new(device, row).map_err(Refusal::Failed)?;
        let launcher = Launcher::new(runtime, device, row, &operands)?;
        measured.by = Some(launcher.by());
        drop(launcher);
        let task = Task::new(row, &operands);
        let mut works = self.prepare(peers, &task, measured)?;
        self.compare(&mut operands, &mut works, measured)?;
        works.retain(|(name, _)| !measured.differs.contains_key(*name));

        let launcher = Launcher::new(runtime, device, row, &operands)?;
        let output = (operands.output.address(), operands.output.bytes());
        // The consumer of a chain is the same for everyone.
        let consume = |times: usize, work: &mut dyn FnMut(usize) -> ep_core::Result<()>| {
            if !row.then_read {
                return work(times);
            }
            for _ in 0..times {
                work(1)?;
                // SAFETY: the output is host memory, and the work that writes it is done.
                unsafe { read_all(output, runtime.parallel()) }?;
            }
            Ok(())
        };
        let ours = move |times: usize| consume(times, &mut |n| launcher.run(n));
        let limit = if has_limit(row) {
            limits.of(row, device, &operands, runtime.parallel()).map_err(Refusal::Failed)?
        } else {
            None
        };
        let mut subjects = vec![Subject { name: "ours", run: Box::new(ours), samples: Samples::new() }];
        for kernel in limit.iter().flat_map(|limit| limit.kernels()) {
            subjects.push(Subject { name: LIMIT, run: Box::new(kernel), samples: Samples::new() });
        }
        for (name, mut work) in works {
            let run = move |times: usize| consume(times, &mut |n| work.run(n).map_err(Error::internal));
            subjects.push(Subject { name, run: Box::new(run), samples: Samples::new() });
        }
        say(&Event::Timing).map_err(|e| Refusal::Failed(Error::internal(e)))?;
        measured.foreign = self.in_peace(&mut subjects, patience).map_err(Refusal::Failed)?;
        let fastest = subjects.iter().filter(|s| s.name == LIMIT).map(|s| s.samples.median());
        let fastest = fastest.fold(f64::INFINITY, f64::min);
        measured.limit_us = limit.as_ref().map(|limit| limit.of_fastest(fastest) / 1e3);
        for s in subjects.iter().filter(|s| s.name != LIMIT) {
            let figure = Figure {
                median_us: s.samples.median() / 1e3,
                min_us: s.samples.min() / 1e3,
                runs: s.samples.len(),
            };
            match s.name {
                "ours" => measured.ours = Some(figure),
                name => drop(measured.peers.insert(name.into(), figure)),
            }
        }
        Ok(())
    }

    fn prepare<'a>(
        &self,
        peers: &Peers<'a>,
        task: &Task,
        measured: &mut Measured,
    ) -> Result<Vec<Named<'a>>, Refusal> {
        let mut works = Vec::new();
        for peer in peers {
            if peer.name() == plain::NAME && self.row.group != Group::Small {
                continue;
            }
            if task.call.is_empty() {
                measured.absent.insert(peer.name().into(), "no such call".into());
                continue;
            }
            let trying = Event::Trying { peer: peer.name().into() };
            say(&trying).map_err(|e| Refusal::Failed(Error::internal(e)))?;
            let first = peer.prepare(task).and_then(|mut work| work.run(1).map(|()| work));
            match first {
                Ok(work) => works.push((peer.name(), work)),
                Err(why) => drop(measured.absent.insert(peer.name().into(), why)),
            }
        }
        Ok(works)
    }

    /// Compares the peers' results with ours.
    fn compare(
        &self,
        operands: &mut Operands,
        works: &mut [Named<'_>],
        measured: &mut Measured,
    ) -> Result<(), Refusal> {
        // What is added to must start from the same values; else the output is bytes that no result has.
        let poison = if self.row.output.accumulates { 0 } else { 0x5b };
        let fail = Refusal::Failed;
        operands.poison(poison).map_err(fail)?;
        Launcher::new(self.runtime, self.device, self.row, operands)?;
        let ours = sample(&self.row.output, operands);
        let scale = ours.iter().filter(|v| v.is_finite()).fold(0.0f64, |a, v| a.max(v.abs()));
        for (name, work) in works.iter_mut().filter(|(_, w)| w.checked()) {
            operands.poison(poison).map_err(fail)?;
            if let Err(why) = work.run(1) {
                measured.absent.insert((*name).into(), why);
                continue;
            }
            let theirs = sample(&self.row.output, operands);
            if let Err(why) = agree(self.row.output.dtype, &ours, &theirs, scale) {
                measured.differs.insert((*name).into(), why);
            }
        }
        Ok(())
    }

    /// Times the subjects in turns until nobody else used the CPU meanwhile, or patience is at its end; what others
    /// used of it.
    fn in_peace(&self, subjects: &mut [Subject<'_>], patience: &mut Duration) -> ep_core::Result<f64> {
        let mut least: Option<(f64, Vec<Samples>)> = None;
        for _ in 0..4 {
            let mark = Mark::now();
            let samples = self.in_turns(subjects)?;
            let foreign = mark.foreign();
            if least.as_ref().is_none_or(|l| foreign < l.0) {
                least = Some((foreign, samples));
            }
            if foreign < FOREIGN || patience.is_zero() {
                break;
            }
            let start = Instant::now();
            gate::wait_idle((*patience).min(Duration::from_secs(20)));
            *patience = patience.saturating_sub(start.elapsed());
        }
        let (foreign, samples) = least.unwrap_or_default();
        for (subject, samples) in subjects.iter_mut().zip(samples) {
            subject.samples = samples;
        }
        Ok(foreign)
    }

    fn in_turns(&self, subjects: &mut [Subject<'_>]) -> ep_core::Result<Vec<Samples>> {
        let mut samples = vec![Samples::new(); subjects.len()];
        let (rounds, budget) = (self.effort.rounds(self.row.group), self.effort.budget(self.row.group));
        for round in 0..rounds {
            for turn in 0..subjects.len() {
                let i = (turn + round) % subjects.len();
                gate::settle();
                samples[i].extend(&time(budget, &mut subjects[i].run)?);
            }
        }
        Ok(samples)
    }
}

/// Whether the machine's limit is timed beside the row: in caches it depends on who left what there.
fn has_limit(row: &Row) -> bool {
    shares::counts(row) || (row.group == Group::Large && row.family == Family::Matmul)
}

/// Elements of the output at places that are spread over it.
fn sample(output: &Output, operands: &Operands) -> Vec<f64> {
    let size = output.dtype.bytes_for_bounds() as usize;
    let from = std::ptr::with_exposed_provenance::<u8>(operands.output.address() as usize);
    // SAFETY: the device's memory is the host's (the comparison is of CPUs), initialised, and no work is pending.
    let bytes = unsafe { std::slice::from_raw_parts(from, operands.output.len()) };
    let count = bytes.len() / size;
    let step = (count / SAMPLES).max(1) | 1;
    let places = (0..count).step_by(step).chain([count.saturating_sub(1)]);
    places.map(|i| number(output.dtype, &bytes[i * size..])).collect()
}
