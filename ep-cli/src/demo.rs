//! `ep demo`: classifies handwritten digits on every device, through primitives.

mod data;
mod draw;
mod network;
mod safetensors;

use crate::failure::{Exit, Failure};
use crate::host::Host;
use crate::list::print_providers;
use crate::output::{Cell, Out, Style, thousands};
use clap::Args;
use data::Data;
use ep_core::Code;
use ep_registry::{Device, Runtime};
use network::{Chosen, Network};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A right implementation classifies this many ...
const RIGHT: usize = 528;
/// ... of this many.
const OF: usize = 540;
/// Differences to the stored probabilities are below this.
const TOLERANCE: f64 = 1e-5;

/// How long the speed is measured on each device, and how often at least.
const MEASURE: Duration = Duration::from_millis(300);
const MIN_RUNS: usize = 9;

/// Classifies 540 handwritten digits on every device that has the ops, and checks the result
///
/// A trained network (64-64-32-10) classifies real scanned digits: cast, division by 16, three times matmul and
/// addition, relu between them, softmax. Every step is a primitive that a provider of the config registered;
/// this program contains no kernel. Exit code 4 when fewer than 528 of 540 are right, or a probability differs
/// from the stored one by 1e-5 or more.
#[derive(Args)]
pub struct Demo {
    /// A folder with mlp.safetensors and test.safetensors to use in place of the data in this program
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Only this device, `cpu:0`, or `cpu` for the first of its kind
    #[arg(long)]
    device: Option<String>,
    /// Prints JSON: [{device, correct, total, max_abs_diff, images_per_second, factories: {op: provider}}];
    /// max_abs_diff is null when a probability is not finite
    #[arg(long)]
    json: bool,
}

/// What came of one device.
struct Outcome {
    correct: usize,
    max_abs_diff: f64,
    probabilities: Vec<f32>,
    chosen: Chosen,
    runs: usize,
    images_per_second: f64,
}

#[derive(Serialize)]
struct Row<'a> {
    device: &'a str,
    correct: usize,
    total: usize,
    max_abs_diff: f64,
    images_per_second: f64,
    factories: BTreeMap<&'static str, String>,
}

impl Demo {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let data = match &self.data {
            Some(dir) => Data::in_folder(dir)?,
            None => Data::embedded()?,
        };
        let host = Host::load_working(config)?;
        let devices = host.devices(self.device.as_deref())?;
        if !self.json {
            out.line(format!("config {}\n", host.config.display()))?;
            print_providers(&host.runtime, out)?;
            out.flush()?;
        } else {
            host.warn();
        }
        let mut rows = Vec::new();
        let (mut wrong, mut left_out, mut classified) = (Vec::new(), Vec::new(), 0);
        for device in devices {
            let outcome = match classify(&host.runtime, device, &data) {
                Ok(outcome) => outcome,
                // A device that nobody asked for need not have all of the ops.
                Err(e) if e.code() == Code::Unsupported && self.device.is_none() => {
                    left_out.push(e.context(device.name()));
                    continue;
                }
                Err(e) => return Err(Failure::from(e.context(device.name())).with_config(&host.config)),
            };
            classified += 1;
            if let Some(what) = outcome.complaint(data.count) {
                wrong.push(format!("{}: {what}", device.name()));
            }
            if self.json {
                rows.push(outcome.row(device.name(), data.count));
            } else {
                outcome.print(device, &data, out)?;
                out.flush()?;
            }
        }
        if self.json {
            out.json(&rows)?;
        }
        for e in &left_out {
            tracing::warn!("left out, for it lacks an op of the network: {}", first_line(e.message()));
        }
        if let (0, Some(e)) = (classified, left_out.into_iter().next()) {
            return Err(Failure::from(e).with_config(&host.config));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let message = format!("wrong result on {}", wrong.join("; "));
        Err(Failure::new(Exit::WrongResult, message).with_config(&host.config))
    }
}

/// Without the list of the candidates that refused.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Runs the network until its speed is known.
fn classify(runtime: &Runtime, device: &Device, data: &Data) -> ep_core::Result<Outcome> {
    let mut network = Network::new(runtime, device, data)?;
    network.run()?;
    let probabilities = network.probabilities()?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < MIN_RUNS || begin.elapsed() < MEASURE {
        let start = Instant::now();
        network.run()?;
        times.push(start.elapsed());
    }
    times.sort();
    let median = times[times.len() / 2].as_secs_f64().max(f64::MIN_POSITIVE);
    Ok(Outcome {
        correct: network::count_correct(&probabilities, &data.labels),
        max_abs_diff: network::max_abs_diff(&probabilities, &data.probabilities),
        probabilities,
        chosen: network.chosen(),
        runs: times.len(),
        images_per_second: data.count as f64 / median,
    })
}

impl Outcome {
    /// What is wrong with the result, if anything is. Of other data than the usual the same share must be right.
    fn complaint(&self, total: usize) -> Option<String> {
        let share_reached = self.correct * OF >= RIGHT * total;
        if share_reached && self.max_abs_diff < TOLERANCE {
            return None;
        }
        Some(format!(
            "{} of {total} are right, where {RIGHT} of {OF} should be, and the largest difference is {:.1e}, which \
             should be below {TOLERANCE:.0e}",
            self.correct, self.max_abs_diff
        ))
    }

    fn row<'a>(&self, device: &'a str, total: usize) -> Row<'a> {
        let providers = |list: &Vec<(String, String)>| {
            let mut names: Vec<&str> = list.iter().map(|(instance, _)| instance.as_str()).collect();
            names.dedup();
            names.join(", ")
        };
        Row {
            device,
            correct: self.correct,
            total,
            max_abs_diff: self.max_abs_diff,
            images_per_second: self.images_per_second,
            factories: self.chosen.iter().map(|(op, list)| (*op, providers(list))).collect(),
        }
    }

    fn print(&self, device: &Device, data: &Data, out: &mut Out) -> Result<(), Failure> {
        let share = 100.0 * self.correct as f64 / data.count as f64;
        let verdict = if self.complaint(data.count).is_none() { Style::Good } else { Style::Bad };
        out.line("")?;
        out.line(out.paint(Style::Bold, &format!("{}  {}", device.name(), device.info().name)))?;
        let correct = format!("{} of {} ({share:.1} %)", self.correct, data.count);
        out.table(
            2,
            &[
                vec!["classified right".into(), Cell::styled(verdict, correct)],
                vec![
                    "largest difference".into(),
                    Cell::styled(verdict, format!("{:.1e}", self.max_abs_diff)),
                ],
                vec![
                    "images per second".into(),
                    Cell::from(format!(
                        "{} (median of {} runs over all images, copies to and from the device not included)",
                        thousands(self.images_per_second as u64),
                        self.runs
                    )),
                ],
            ],
        )?;
        out.line("  computed by")?;
        let factories = self.chosen.iter().map(|(op, list)| {
            let names: Vec<&str> = list.iter().map(|(_, full)| full.as_str()).collect();
            vec![Cell::from(*op), names.join(", ").into()]
        });
        out.table(4, &factories.collect::<Vec<_>>())?;
        out.line("")?;
        draw::digits(data, &self.probabilities, &draw::pick(&self.probabilities, &data.labels), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_wrong() {
        let outcome = |correct, max_abs_diff| Outcome {
            correct,
            max_abs_diff,
            probabilities: Vec::new(),
            chosen: Chosen::new(),
            runs: 1,
            images_per_second: 1.0,
        };
        assert_eq!(outcome(528, 9.9e-6).complaint(540), None);
        assert_eq!(outcome(49, 0.0).complaint(50), None);
        let wrong = [
            (527, 0.0, 540),
            (540, 1e-5, 540),
            (540, f64::INFINITY, 540),
            (540, f64::NAN, 540),
            (48, 0.0, 50),
        ];
        for (correct, diff, total) in wrong {
            assert!(outcome(correct, diff).complaint(total).is_some(), "{correct} {diff} {total}");
        }
    }
}
