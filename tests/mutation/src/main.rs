//! The mutation check: runs the conformance kit on a provider with one defect after another, and says which of them
//! it finds. `docs/conformance.md` has the record.

mod record;

use clap::Parser;
use ep_conformance::plan::{Filter, Setup};
use ep_conformance::protocol::End;
use ep_conformance::runner::{self, Launcher, Ran, Silent};
use ep_conformance::worker;
use ep_core::{Error, Result};
use record::{Found, Record};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is tried of the kit for each area, one after the other until something fails: a pattern of case names, or an
/// op whose combinations get two cases each.
const TRIED: [(&str, &[Part]); 8] = [
    ("abi", &[Part::Cases("abi/*"), Part::Cases("primitives/*/refusals/*"), Part::Op("reduce")]),
    ("objects", &[Part::Cases("abi/*"), Part::Cases("objects/*")]),
    ("memory", &[Part::Cases("abi/*"), Part::Cases("objects/*"), Part::Op("memcpy")]),
    ("async", &[Part::Cases("abi/*"), Part::Cases("objects/*"), Part::Op("add"), Part::Op("layer_norm")]),
    (
        "elementwise",
        &[
            Part::Op("add"),
            Part::Op("fill"),
            Part::Op("cast"),
            Part::Op("where"),
            Part::Op("broadcast_elementwise_binary"),
        ],
    ),
    (
        "movers",
        &[
            Part::Op("permute"),
            Part::Op("copy_nd"),
            Part::Op("strided_copy"),
            Part::Op("constant_pad"),
            Part::Op("gather"),
            Part::Op("batch_gather"),
            Part::Op("scatter_add"),
            Part::Op("one_hot"),
        ],
    ),
    (
        "rows",
        &[
            Part::Op("softmax"),
            Part::Op("log_softmax"),
            Part::Op("layer_norm"),
            Part::Op("reduce"),
            Part::Op("arg_reduce"),
        ],
    ),
    ("matmul", &[Part::Op("matmul"), Part::Op("batch_matmul"), Part::Op("broadcast_matmul")]),
];

/// The lists of defects.
const LISTS: [(&str, &str); 2] =
    [("defects.toml", include_str!("../defects.toml")), ("later.toml", include_str!("../later.toml"))];

/// A part of the kit.
#[derive(Clone, Copy, Debug)]
enum Part {
    Cases(&'static str),
    Op(&'static str),
}

/// Defects that are only tried when they are named, and why.
const BEYOND: [(&str, &str); 1] = [("mem-copy-bytes-in-32-bits", "it needs blocks of more than 4 GiB")];

/// The device that is looked at; a second one is there for what needs two.
const DEVICE: &str = "sim:0";
/// Cases of an op, or two of each combination where that is more.
const SAMPLE: usize = 1500;
/// How long a case may take, in seconds.
const TIMEOUT: u64 = 120;

/// Runs the conformance kit on a provider with a defect on request
#[derive(Parser)]
struct Line {
    /// Only these defects [default: all of defects.toml and later.toml]
    defects: Vec<String>,
    /// Seeds of the kit's content
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Runs at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// The provider [default: beside this program]
    #[arg(long)]
    provider: Option<PathBuf>,
    /// Writes the table as Markdown
    #[arg(long)]
    out: Option<PathBuf>,
    /// All cases of a combination, not two
    #[arg(long)]
    whole: bool,
    /// Leaves out the run without a defect
    #[arg(long)]
    only_defects: bool,
}

/// A defect of a list.
#[derive(Clone, Debug, Deserialize)]
struct Entry {
    id: String,
    area: String,
}

#[derive(Deserialize)]
struct Entries {
    defect: Vec<Entry>,
}

/// What every run has in common.
struct Check {
    provider: PathBuf,
    program: PathBuf,
    whole: bool,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return report(worker::main().map(|()| true));
    }
    report(check(&Line::parse()))
}

fn report(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the provider passes without a defect, and every defect is found at every seed.
fn check(line: &Line) -> Result<bool> {
    let mut wanted = Vec::new();
    for (file, text) in LISTS {
        let entries: Entries = toml::from_str(text).map_err(|e| Error::invalid(format!("{file}: {e}")))?;
        wanted.extend(entries.defect);
    }
    if let Some(unknown) = line.defects.iter().find(|id| wanted.iter().all(|d| d.id != **id)) {
        return Err(Error::not_found(format!(
            "no defect is called `{unknown}`; see tests/mutation/defects.toml and later.toml"
        )));
    }
    let beyond = |d: &Entry| BEYOND.iter().find(|(id, _)| *id == d.id);
    if line.defects.is_empty() {
        wanted.iter().filter_map(beyond).for_each(|(id, why)| println!("not tried: {id}: {why}"));
        wanted.retain(|d| beyond(d).is_none());
    } else {
        wanted.retain(|d| line.defects.contains(&d.id));
    }
    let program = std::env::current_exe().map_err(|e| Error::not_found(format!("this program: {e}")))?;
    let beside = || program.with_file_name("libep_faulty.so");
    let provider = line.provider.clone().unwrap_or_else(beside);
    if !provider.is_file() {
        return Err(Error::not_found(format!(
            "{}: no such file; build it with `cargo build --release -p ep-mutation`",
            provider.display()
        )));
    }
    let check = Check { provider, program, whole: line.whole };
    let begin = Instant::now();
    // One seed is enough here: whoever works on the kit runs it with others on real providers.
    let sound = line.only_defects || check.without_a_defect(&line.seeds[..1], line.jobs)?;
    let record = check.defects(&wanted, &line.seeds, line.jobs)?;
    print!("{}", record.text());
    println!("{} s", begin.elapsed().as_secs());
    if let Some(path) = &line.out {
        std::fs::write(path, record.markdown())
            .map_err(|e| Error::unavailable(format!("cannot write {}: {e}", path.display())))?;
    }
    Ok(sound && record.all_found())
}

impl Check {
    /// Runs every part of every area on the provider as it should be. `jobs` workers.
    fn without_a_defect(&self, seeds: &[u64], jobs: usize) -> Result<bool> {
        let config = Config::write(&self.provider, None)?;
        let mut sound = true;
        for seed in seeds {
            let (mut cases, begin) = (0, Instant::now());
            for part in
                [Part::Cases("abi/*"), Part::Cases("objects/*"), Part::Cases("primitives/*/refusals/*")]
                    .into_iter()
                    .chain(
                        TRIED
                            .iter()
                            .flat_map(|(_, parts)| *parts)
                            .copied()
                            .filter(|p| matches!(p, Part::Op(_))),
                    )
            {
                let outcomes = runner::run(
                    &self.launcher("", jobs, false),
                    &self.setup(&config.0, *seed, part),
                    &Silent,
                )?;
                cases += outcomes.cases.len();
                for failed in outcomes.cases.iter().filter(|c| c.end == End::Failed) {
                    println!("without a defect: {}: {}", failed.name, failed.message);
                    sound = false;
                }
            }
            println!("without a defect, seed {seed}: {cases} cases in {} s", begin.elapsed().as_secs());
        }
        Ok(sound)
    }

    /// Runs all defects with all seeds, so many at a time.
    fn defects(&self, wanted: &[Entry], seeds: &[u64], jobs: usize) -> Result<Record> {
        let runs: Vec<(usize, u64)> =
            wanted.iter().enumerate().flat_map(|(i, _)| seeds.iter().map(move |s| (i, *s))).collect();
        let next = Mutex::new(runs.iter());
        let found = Mutex::new(Vec::new());
        let work = || -> Result<()> {
            loop {
                let run = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((i, seed)) = run else { return Ok(()) };
                let begin = Instant::now();
                let by = self.defect(&wanted[*i], *seed)?;
                let name = by.as_ref().map_or("NOT FOUND", |c| c.name.as_str());
                eprintln!("{} seed {seed}: {name} ({} ms)", wanted[*i].id, begin.elapsed().as_millis());
                let case = by.map(|c| (c.name, c.message));
                found.lock().unwrap_or_else(PoisonError::into_inner).push(Found {
                    defect: *i,
                    seed: *seed,
                    case,
                });
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
            let panicked = |_| Err(Error::panic("a thread of the check panicked"));
            threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(panicked))
        })?;
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let defects = wanted.iter().map(|d| (d.id.clone(), d.area.clone())).collect();
        Ok(Record { defects, seeds: seeds.to_vec(), found })
    }

    /// The first case that a defect fails.
    fn defect(&self, entry: &Entry, seed: u64) -> Result<Option<Ran>> {
        let config = Config::write(&self.provider, Some(&entry.id))?;
        let parts = TRIED.iter().find(|(area, _)| *area == entry.area).map_or(&[][..], |(_, parts)| parts);
        for part in parts {
            let outcomes = runner::run(
                &self.launcher(&entry.id, 1, true),
                &self.setup(&config.0, seed, *part),
                &Silent,
            )?;
            if let Some(case) = outcomes.cases.into_iter().find(|c| c.end == End::Failed) {
                return Ok(Some(case));
            }
        }
        Ok(None)
    }

    fn launcher(&self, defect: &str, jobs: usize, stop_at_failure: bool) -> Launcher {
        // By way of `env`, since two runs of this process have different ones.
        let mut command = vec!["env".into()];
        if !defect.is_empty() {
            command.push(format!("EP_FAULTY_DEFECT={defect}").into());
        }
        command.extend([self.program.clone().into_os_string(), "worker".into()]);
        Launcher { command, jobs, timeout: Duration::from_secs(TIMEOUT), stop_at_failure }
    }

    fn setup(&self, config: &Path, seed: u64, part: Part) -> Setup {
        let mut filter = Filter { device: Some(DEVICE.to_owned()), ..Filter::default() };
        match part {
            Part::Cases(pattern) => filter.case = Some(pattern.to_owned()),
            Part::Op(op) => filter.op = Some(op.to_owned()),
        }
        Setup {
            target: config.to_owned(),
            provider: 0,
            prefix: String::new(),
            seed,
            quick: !self.whole,
            sample: SAMPLE,
            perf: false,
            onnx: None,
            filter,
        }
    }
}

/// A config for the kit's workers, removed when dropped.
struct Config(PathBuf);

impl Config {
    fn write(provider: &Path, defect: Option<&str>) -> Result<Config> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ep-mutation-{}-{nth}.toml", std::process::id());
        let config = Config(std::env::temp_dir().join(name));
        let option = defect.map_or(String::new(), |id| format!(", defect = \"{id}\""));
        let text = format!(
            "[[provider]]\nname = \"sim\"\npath = {:?}\noptions = {{ max_delay_us = \"50\"{option} }}\n",
            provider.display().to_string()
        );
        std::fs::write(&config.0, text)
            .map_err(|e| Error::unavailable(format!("cannot write {}: {e}", config.0.display())))?;
        Ok(config)
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.0) {
            eprintln!("cannot remove {}: {e}", self.0.display());
        }
    }
}
