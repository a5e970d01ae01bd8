//! The process in which a provider runs, so that its crash is a failed case and not the end of the kit.

use crate::abi::{self, Subject};
use crate::case::Key;
use crate::keys::{self, Ended};
use crate::objects;
use crate::onnx;
use crate::onnx::machine::Machine;
use crate::onnx::suite::Suite;
use crate::plan::{Filter, Group, Setup, Unit};
use crate::process::take_pipes;
use crate::protocol::{Command, DeviceLine, End, Listing, Reply, receive, send};
use crate::refusals;
use crate::rig::Rig;
use ep_core::{DType, Error, Result};
use ep_registry::config::{Config, ProviderConfig};
use ep_registry::{Device, Runtime, Status};
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, Write};
use std::path::Path;

/// Threads that a worker gives the provider, unless the config says otherwise: parallel kernels run in parallel, and
/// two workers do not crowd a small machine.
const THREADS: usize = 2;

/// The providers that a target names: the file itself, or those of a config that are enabled.
///
/// # Errors
/// A config that cannot be read.
pub fn providers(target: &Path) -> Result<(Vec<ProviderConfig>, Option<usize>)> {
    if target.extension().is_some_and(|e| e == "toml") {
        let config = Config::from_file(target)?;
        let threads = config.threads.map(usize::from);
        let mut enabled = config.providers;
        enabled.retain(|p| p.enabled);
        // One that does not load is this program's business to report.
        enabled.iter_mut().for_each(|p| p.required = false);
        return Ok((enabled, threads));
    }
    let path =
        std::path::absolute(target).map_err(|e| Error::invalid(format!("{}: {e}", target.display())))?;
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let name = stem.strip_prefix("lib").unwrap_or(&stem).trim_start_matches("ep_").to_owned();
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "_-.".contains(*c)).collect();
    let name = if name.is_empty() { "provider".to_owned() } else { name };
    Ok((vec![ProviderConfig::new(name, path)], None))
}

/// The main function of a worker process. Its pipes are standard input and output, which it takes for itself first:
/// what the provider prints goes to standard error.
///
/// # Errors
/// As [`work`].
pub fn main() -> Result<()> {
    let (input, output) = take_pipes()?;
    work(input, output)
}

/// Obeys commands until there are no more.
///
/// # Errors
/// A pipe that nobody reads, or commands that are none.
pub fn work(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    let Some(Command::Setup(setup)) = receive(&mut input)? else {
        return Err(Error::invalid("a worker is started by the kit, which tells it what to test first"));
    };
    let (mut known, threads) = providers(&setup.target)?;
    if setup.provider >= known.len() {
        return Err(Error::not_found(format!(
            "{} has no provider {}",
            setup.target.display(),
            setup.provider
        )));
    }
    let settings = known.swap_remove(setup.provider);
    let runtime = once_cell::unsync::OnceCell::new();
    let load = || {
        let builder = Runtime::builder().threads(threads.unwrap_or(THREADS));
        runtime.get_or_try_init(|| builder.provider_with(settings.clone()).build())
    };
    let mut devices: HashMap<String, OnDevice<'_>> = HashMap::new();
    let suite = setup.onnx.as_deref().map(Suite::read).transpose()?;
    let subject = once_cell::unsync::OnceCell::new();
    while let Some(command) = receive(&mut input)? {
        match command {
            Command::Setup(_) => return Err(Error::invalid("a worker is set up once")),
            Command::List => {
                let mut listing = load().map_or_else(
                    |e| Listing { failed: Some(e.to_string()), ..Listing::default() },
                    |runtime| listing(&setup, suite.as_ref(), runtime),
                );
                if listing.failed.is_some() {
                    let subject = subject.get_or_init(|| Subject::open(&settings));
                    listing.units = abi::possible(&setup, subject);
                }
                send(&mut output, &Reply::Listing(listing))?;
            }
            Command::Run { unit, skip } => {
                let plain = unit.strip_prefix(&*setup.prefix).unwrap_or(&unit);
                let mut reporter = Reporter { setup: &setup, output: &mut output, skip };
                if let Some(check) = plain.strip_prefix("abi/") {
                    let subject = subject.get_or_init(|| Subject::open(&settings));
                    reporter.case(0, &unit, || abi::run(check, subject))?;
                } else {
                    let ended = load().and_then(|runtime| {
                        let (group, rest) = plain.split_once('/').unwrap_or_default();
                        let (device, rest) = rest.split_once('/').unwrap_or_default();
                        let on = match devices.entry(device.to_owned()) {
                            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
                            std::collections::hash_map::Entry::Vacant(e) => {
                                e.insert(OnDevice::new(&setup, runtime, device)?)
                            }
                        };
                        match suite.as_ref().filter(|_| group == "onnx") {
                            Some(suite) => on.onnx(suite, rest, &unit, &mut reporter),
                            None => on.unit(&setup, group, rest, &unit, &mut reporter),
                        }
                    });
                    if let Err(e) = ended {
                        send(&mut output, &Reply::Error(e.to_string()))?;
                        continue;
                    }
                }
                send(&mut output, &Reply::Done)?;
            }
        }
    }
    Ok(())
}

/// The unit of an op's refusals.
const REFUSALS: &str = "refusals";

fn listing(setup: &Setup, suite: Option<&Suite>, runtime: &Runtime) -> Listing {
    let mut listing = Listing { units: abi::units(setup), ..Listing::default() };
    if let Some(entry) = runtime.report().entries.first() {
        match entry.status {
            Status::Loaded => {}
            Status::Absent => listing.absent = Some(entry.reason.clone()),
            Status::Failed | Status::Skipped => listing.failed = Some(entry.reason.clone()),
        }
        let (name, version) = entry.provider.clone().unwrap_or_default();
        listing.provider = format!("{name} {version}").trim().to_owned();
    }
    listing.unknown = unknown(setup, suite, runtime);
    for device in runtime.devices() {
        let (info, name) = (device.info(), device.name());
        let space = info.memory_space.clone();
        listing.devices.push(DeviceLine { name: name.to_owned(), product: info.name.clone(), space });
        if let Some(suite) = suite {
            listing
                .units
                .extend(onnx::run::units(suite, setup, name).into_iter().filter(|u| setup.filter.lets(u)));
            continue;
        }
        let objects = objects::names().map(|check| Unit::of_device(setup, Group::Objects, name, check));
        let mut units: Vec<_> = objects.collect();
        let mut op = String::new();
        for key in crate::predicates::advertised(runtime, device).keys() {
            if key.op != op {
                op.clone_from(&key.op);
                let name = format!("{op}/{REFUSALS}");
                let unit = Unit::of_device(setup, Group::Primitives, device.name(), &name);
                units.push(Unit { op: op.clone(), ..unit });
            }
            let unit = Unit::of_key(setup, name, key);
            listing.claims.push(unit.clone());
            units.push(unit);
        }
        units.retain(|u| setup.filter.lets(u));
        listing.units.extend(units);
    }
    listing
}

/// What is wrong with the op and the dtype of the filter, if they are none that this provider can have.
fn unknown(setup: &Setup, suite: Option<&Suite>, runtime: &Runtime) -> Option<String> {
    let Filter { op, dtype, .. } = &setup.filter;
    let of_op = |op: &String| match suite {
        None => runtime.schema(op).err().map(|e| e.message().to_owned()),
        Some(suite) if suite.cases.iter().any(|case| case.op == *op) => None,
        Some(_) => Some(format!(
            "the suite has no operator `{op}`; ONNX spells them as in `Softmax`, as its suite.json does"
        )),
    };
    let of_dtype = |dtype: &String| DType::by_name(dtype).err().map(|e| e.message().to_owned());
    op.as_ref().and_then(of_op).or_else(|| dtype.as_ref().and_then(of_dtype))
}

/// Says what happens to each case of a unit.
struct Reporter<'a, W> {
    setup: &'a Setup,
    output: &'a mut W,
    skip: usize,
}

impl<W: Write> Reporter<'_, W> {
    /// Runs a case, unless it has been run already or is not wanted.
    fn case(&mut self, index: usize, name: &str, run: impl FnOnce() -> Ended) -> Result<()> {
        if index < self.skip || !self.setup.filter.lets_case(name) {
            return Ok(());
        }
        send(self.output, &Reply::Begin { index, name: name.to_owned() })?;
        let (end, message, speed) = run();
        send(self.output, &Reply::End { end, message, speed })
    }
}

/// A device under test.
struct OnDevice<'r> {
    runtime: &'r Runtime,
    device: &'r Device,
    /// Made when first needed: a device whose streams fail still has checks to run.
    rig: Option<Rig<'r>>,
    /// Likewise, for ONNX's tests.
    machine: Option<Machine<'r>>,
    /// Claimed keys by the end of their unit's name.
    keys: HashMap<String, Key>,
}

impl<'r> OnDevice<'r> {
    fn new(setup: &Setup, runtime: &'r Runtime, name: &str) -> Result<OnDevice<'r>> {
        let device = runtime.device(name)?;
        let all = crate::predicates::advertised(runtime, device).into_keys();
        let start = Unit::of_device(setup, Group::Primitives, name, "").name.len();
        let keys = all.map(|k| (Unit::of_key(setup, name, &k).name.split_off(start), k)).collect();
        Ok(OnDevice { runtime, device, rig: None, machine: None, keys })
    }

    /// A case of ONNX.
    fn onnx<W: Write>(
        &mut self,
        suite: &Suite,
        name: &str,
        unit: &str,
        reporter: &mut Reporter<'_, W>,
    ) -> Result<()> {
        let machine = match &mut self.machine {
            Some(machine) => machine,
            empty => empty.insert(Machine::new(self.runtime, self.device)?),
        };
        reporter.case(0, unit, || onnx::run::run(machine, suite, name))
    }

    fn unit<W: Write>(
        &mut self,
        setup: &Setup,
        group: &str,
        rest: &str,
        unit: &str,
        reporter: &mut Reporter<'_, W>,
    ) -> Result<()> {
        let (runtime, device) = (self.runtime, self.device);
        if group == "objects" {
            return reporter.case(0, unit, || objects::run(rest, runtime, device, setup.seed));
        }
        if let Some(op) = rest.strip_suffix(REFUSALS).and_then(|op| op.strip_suffix('/')) {
            let claimed: BTreeSet<Key> = self.keys.values().filter(|k| k.op == op).cloned().collect();
            for (i, name) in refusals::names(unit).iter().enumerate() {
                reporter.case(i, name, || refusals::run(runtime, device, op, &claimed, i, setup.seed))?;
            }
            return Ok(());
        }
        let key = self.keys.get(rest).cloned();
        let key = key.ok_or_else(|| Error::not_found(format!("the provider claims no `{rest}` any more")))?;
        if self.rig.is_none() {
            self.rig = match Rig::new(runtime, device) {
                Ok(rig) => Some(rig),
                Err(e) => {
                    let failed = || (End::Failed, format!("no stream or memory to test with: {e}"), None);
                    return reporter.case(0, &format!("{unit}/00-setup"), failed);
                }
            };
        }
        let rig = self.rig.as_mut().ok_or_else(|| Error::internal("the rig was just made"))?;
        for (i, listed) in keys::cases_of(runtime, rig, &key, unit, setup)?.iter().enumerate() {
            reporter.case(i, &listed.0, || keys::run(runtime, rig, listed, setup))?;
        }
        Ok(())
    }
}
