//! Random launches on two devices, which have to leave the same: any dtypes, shapes, places, strides, windows and modes, of
//! which the cases of the conformance kit are a few.

mod compare;
mod draw;
mod launch;
mod maps;
mod moves;
mod picks;
mod rows;
mod sums;

use crate::operands::Random;
use draw::Draw;
use ep_core::{Error, Result};
use ep_registry::{Device, Runtime, Stream};
use launch::{Launch, Outcome};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Elements of the largest operands, about.
pub const MOST: i64 = 1 << 20;
/// Messages that are kept.
const KEPT: usize = 5;
/// So many launches that fail end it: a device that is lost fails all of them.
const ENOUGH: u64 = 40;

/// Draws a launch.
type Make = fn(&mut Draw) -> Launch;

/// What is launched, by the names of the ops.
const OPS: [(&str, Make); 21] = [
    ("add", maps::add),
    ("arg_reduce", sums::arg_reduce),
    ("batch_gather", picks::batch_gather),
    ("broadcast_elementwise_binary", maps::binary),
    ("broadcast_elementwise_unary", maps::unary),
    ("cast", maps::cast),
    ("constant_pad", moves::constant_pad),
    ("copy_nd", moves::copy_nd),
    ("gather", picks::gather),
    ("layer_norm", rows::layer_norm),
    ("log_softmax", rows::log_softmax),
    ("log_softmax_backward", rows::log_softmax_backward),
    ("one_hot", picks::one_hot),
    ("permute", moves::permute),
    ("reduce", sums::reduce),
    ("rms_norm", rows::rms_norm),
    ("scatter_add", picks::scatter_add),
    ("softmax", rows::softmax),
    ("softmax_backward", rows::softmax_backward),
    ("strided_copy", moves::strided_copy),
    ("where", maps::choose),
];

/// Which launches.
pub struct Asked<'a> {
    /// Launches of the same seed are the same.
    pub seed: u64,
    /// The ops; none: all.
    pub ops: &'a [String],
    /// Elements of the largest operands, about.
    pub most: i64,
}

/// What became of some launches.
#[derive(Debug, Default, Serialize)]
pub struct Checked {
    /// Of the launches.
    pub seed: u64,
    /// How long it took.
    pub seconds: f64,
    /// How many there were of each op.
    pub launches: BTreeMap<&'static str, u64>,
    /// Those that both devices refused, with the same code.
    pub refused: u64,
    /// Those after which the devices differed.
    pub failed: u64,
    /// What was wrong with the first of them.
    pub messages: Vec<String>,
}

impl Checked {
    /// How many launches there were.
    fn all(&self) -> u64 {
        self.launches.values().sum()
    }
}

/// Two devices.
struct Pair<'a> {
    runtime: &'a Runtime,
    sides: [(&'a Device, Stream); 2],
}

impl Pair<'_> {
    fn run(&self, launch: &Launch) -> Result<[Outcome; 2]> {
        let [a, b] = &self.sides;
        Ok([launch.run(self.runtime, a.0, &a.1)?, launch.run(self.runtime, b.0, &b.1)?])
    }

    /// What is wrong with what the devices have left.
    fn difference(&self, launch: &Launch, outcomes: &[Outcome; 2]) -> Option<String> {
        let [first, second] = self.sides.each_ref().map(|(device, _)| device.name());
        let (a, b) = match outcomes {
            [Ok(a), Ok(b)] => (a, b),
            [Err(a), Err(b)] if a.code() == b.code() => return None,
            [Err(a), Err(b)] => return Some(format!("{first} refuses it, {a}, and {second}, {b}")),
            [Err(a), Ok(_)] => return Some(format!("only {first} refuses it, {a}")),
            [Ok(_), Err(b)] => return Some(format!("only {second} refuses it, {b}")),
        };
        let mut left = launch.destinations.iter().zip(a.iter().zip(b));
        left.find_map(|((operand, within), (a, b))| {
            compare::difference(operand, *within, [(first, a), (second, b)])
        })
    }
}

/// Launches on both devices while `goes_on` says so, which is asked before each turn.
///
/// # Errors
/// `NotFound` for an op of which no launch can be drawn, `InvalidArgument` for one device in place of two.
pub fn check(
    runtime: &Runtime,
    devices: [&Device; 2],
    asked: &Asked<'_>,
    mut goes_on: impl FnMut(&Checked) -> bool,
) -> Result<Checked> {
    let names = || OPS.iter().map(|(name, _)| *name);
    if let Some(unknown) = asked.ops.iter().find(|op| !names().any(|name| name == **op)) {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(Error::not_found(format!(
            "no random launches of `{unknown}`; there are those of {known}"
        )));
    }
    let [first, second] = devices;
    if first.name() == second.name() {
        return Err(Error::invalid(format!("{} cannot be compared with itself", first.name())));
    }
    let pair = Pair { runtime, sides: [(first, first.stream()?), (second, second.stream()?)] };
    let (begin, mut checked) = (Instant::now(), Checked { seed: asked.seed, ..Checked::default() });
    for turn in 0u64.. {
        if checked.failed == ENOUGH || !goes_on(&checked) {
            break;
        }
        let mut draw = Draw::new(Random::of_turn(asked.seed, turn), asked.most);
        // Before it is asked for: a turn is the same whatever the others are.
        let (name, make) = draw.pick(&OPS);
        if !asked.ops.is_empty() && !asked.ops.iter().any(|op| op == name) {
            continue;
        }
        let launch = make(&mut draw);
        let outcomes = pair.run(&launch)?;
        *checked.launches.entry(name).or_default() += 1;
        if let Some(what) = pair.difference(&launch, &outcomes) {
            checked.failed += 1;
            if checked.messages.len() < KEPT {
                checked.messages.push(format!("turn {turn}: {launch}: {what}"));
            }
        } else if outcomes[0].is_err() {
            checked.refused += 1;
        }
    }
    // In tenths, as a person reads them.
    checked.seconds = (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    Ok(checked)
}

/// For [`check`]: for so long.
pub fn during(time: Duration) -> impl FnMut(&Checked) -> bool {
    let begin = Instant::now();
    move |_| begin.elapsed() < time
}

/// An error where devices differed, and where nothing was compared.
///
/// # Errors
/// `Internal`.
pub fn judge(checked: &Checked) -> Result<()> {
    let (all, Checked { refused, failed, .. }) = (checked.all(), checked);
    if *failed > 0 {
        return Err(Error::internal(format!("the devices differ after {failed} of {all} launches")));
    }
    if all == *refused {
        return Err(Error::internal(format!(
            "nothing was compared: of {all} launches {refused} were refused"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
