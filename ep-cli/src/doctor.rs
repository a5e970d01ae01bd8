//! `ep doctor`: tries each provider in a process of its own, so that a crash there is a line in a report.

mod advice;
mod checks;
mod findings;
mod message;
mod probe;
mod show;
mod worker;

pub use worker::Worker;

use crate::failure::{Exit, Failure};
use crate::host::find_config;
use crate::output::Out;
use clap::Args;
use ep_conformance::process::Guardian;
use ep_core::abi::{ABI_MAJOR, ABI_MINOR};
use ep_registry::config::Config;
use ep_registry::discovery::{Candidate, Discovery, Skipped, discover};
use ep_registry::manifest::{self, AbiVersion, Host};
use ep_registry::trust::Policy;
use probe::{Found, State, probe};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Tries each provider in a process of its own: a crash or a hang there is a line in the report
///
/// Each is loaded alone and step by step, and each of its devices has to allocate, copy, record an event and run a small
/// launch. Exit code 1 when one failed, crashed or hung, or one that the config requires is not there.
#[derive(Args)]
pub struct Doctor {
    /// Only this provider: the name of its instance
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// How many seconds each provider may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Prints JSON: [{provider, path, state, step, reason, advice, devices, seconds}]
    #[arg(long)]
    json: bool,
}

/// A provider in the report. The keys of `--json` are its fields.
#[derive(Debug, Serialize)]
struct Row {
    provider: String,
    path: String,
    state: State,
    step: Option<String>,
    reason: String,
    advice: Option<String>,
    devices: Vec<String>,
    seconds: f64,
    #[serde(skip)]
    required: bool,
    /// Its own id and version.
    #[serde(skip)]
    id: Option<(String, String)>,
    /// Of the config: rules for ops that it does not know; `None` where it did not say.
    #[serde(skip)]
    warnings: Option<Vec<String>>,
}

/// What a host with this config would try and what not, in its order.
fn discovered(config: &Config) -> Discovery {
    let features = manifest::cpu_features();
    let abi = AbiVersion { major: ABI_MAJOR, minor: ABI_MINOR };
    let host = Host { abi, arch: std::env::consts::ARCH, cpu_features: features.as_deref() };
    discover(config, &host, &Policy::default())
}

impl Doctor {
    /// Runs it.
    pub fn run(&self, explicit: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let path = find_config(explicit)?;
        let config = Config::from_file(&path)?;
        let all = discovered(&config);
        let wanted = self.wanted(&all).map_err(|f| f.with_config(&path))?;
        if !self.json {
            show::head(out, &path, findings::why_this_config(explicit, &path))?;
        }
        let mut rows: Vec<Row> = wanted.skipped.iter().map(|s| Row::skipped(s, &path)).collect();
        for row in rows.iter().filter(|_| !self.json) {
            show::row(out, row)?;
        }
        let guardian = Guardian::new()
            .map_err(|e| Failure::general(format!("cannot see which processes there are: {e}")))?;
        for candidate in &wanted.candidates {
            let row = self.tried(candidate, &path, guardian.as_ref())?;
            if !self.json {
                show::row(out, &row)?;
                // The next one may take its time.
                out.flush()?;
            }
            rows.push(row);
        }
        let mut warnings = findings::duplicates(&rows);
        if self.provider.is_none() {
            warnings.extend(findings::rules(&rows));
        }
        if self.json {
            out.json(&rows)?;
            warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        } else {
            show::findings(out, &warnings)?;
            if !rows.is_empty() {
                show::counts(out, &rows)?;
            }
        }
        findings::select(config, &all).map_err(|f| f.with_config(&path))?;
        if rows.is_empty() {
            let message = "the config names no provider; add a [[provider]] with its `path`, or have `ep init --output \
                           OTHER.toml` write a config for the providers beside this program";
            return Err(Failure::new(Exit::NoProvider, message).with_config(&path));
        }
        // Standard output has it all.
        if rows.iter().any(Row::is_wrong) { Err(Failure::general("")) } else { Ok(()) }
    }

    /// What `--provider` asks for.
    fn wanted(&self, all: &Discovery) -> Result<Discovery, Failure> {
        let Some(name) = &self.provider else { return Ok(all.clone()) };
        let mut wanted = all.clone();
        wanted.candidates.retain(|c| c.settings.name == *name);
        wanted.skipped.retain(|s| s.name.as_ref() == Some(name));
        if wanted.candidates.is_empty() && wanted.skipped.is_empty() {
            let candidates = all.candidates.iter().map(|c| c.settings.name.as_str());
            let names: Vec<_> =
                candidates.chain(all.skipped.iter().filter_map(|s| s.name.as_deref())).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Failure::new(Exit::Usage, format!("no provider `{name}`; there are {names}")));
        }
        Ok(wanted)
    }

    fn tried(
        &self,
        candidate: &Candidate,
        config: &Path,
        guardian: Option<&Guardian>,
    ) -> Result<Row, Failure> {
        let settings = &candidate.settings;
        let bar = show::Bar::new(&settings.name);
        let timeout = Duration::from_secs(self.timeout);
        let found = probe(config, &settings.name, timeout, guardian, |step| bar.step(step));
        bar.finish();
        let Found { state, step, reason, loaded, took } = found?;
        let mut row = Row {
            provider: settings.name.clone(),
            path: settings.path.display().to_string(),
            state,
            step,
            reason,
            advice: None,
            devices: loaded.devices,
            seconds: (took.as_secs_f64() * 1e3).round() / 1e3,
            required: settings.required,
            warnings: loaded.provider.is_some().then_some(loaded.warnings),
            id: loaded.provider,
        };
        row.advice = advice::advice(&row, candidate.found_in.is_some(), config);
        Ok(row)
    }
}

impl Row {
    fn skipped(skipped: &Skipped, config: &Path) -> Row {
        let mut row = Row {
            provider: skipped.name.clone().unwrap_or_else(|| "-".into()),
            path: skipped.path.display().to_string(),
            state: State::Skipped,
            step: None,
            reason: skipped.reason.clone(),
            advice: None,
            devices: Vec::new(),
            seconds: 0.0,
            required: skipped.required,
            id: None,
            warnings: None,
        };
        row.advice = advice::advice(&row, false, config);
        row
    }

    /// Whether a host is the worse for it.
    fn is_wrong(&self) -> bool {
        match self.state {
            State::Ok => false,
            State::Absent | State::Skipped => self.required,
            State::Failed | State::Crashed | State::Hung => true,
        }
    }
}
