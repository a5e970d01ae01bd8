//! A device to try cases on: the primitives for them, their content and results, and the memory that they run on.

use crate::case::{Case, Key};
use crate::geometry::uses;
use crate::memory::{Arena, DeviceMemory, Edge, Edged};
use crate::predicates::{Advertised, Attempt, attempts};
use crate::tolerance::{Bound, largest};
use crate::trial::Trial;
use crate::values::{Random, content, poison};
use ep_core::handle::KnownLaunch;
use ep_core::op::OperandUse;
use ep_core::provider::inline::HOST_SPACE;
use ep_core::schema::Schema;
use ep_core::{Code, DType, Error, Result};
use ep_registry::{Device, DynPrimitive, Runtime, Stream};
use primitives::reference::{Data, Launch, Outputs};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Operands that one launch can have here.
const REGIONS: usize = 16;
/// Bytes that one operand can have here.
const CAPACITY: usize = 4 << 20;

/// Bytes of scratch memory that a launch is given at most.
const MOST_WORKSPACE: u64 = 64 << 20;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As the reference says; where there is none, within its memory and the same when repeated.
    Pass,
    /// Not so, and why.
    Fail(String),
    /// The provider does not claim it, and says why.
    Unsupported(String),
}

/// What a case's operands held, and what the reference makes of it. Computed once for several devices.
pub struct Expected {
    pub(crate) schema: Arc<Schema>,
    pub(crate) uses: Vec<OperandUse>,
    /// The content of each buffer before the launch.
    pub(crate) before: Vec<Data>,
    /// `None`: there is no reference.
    pub(crate) after: Option<Result<Outcomes>>,
    pub(crate) largest: f64,
    /// The vendor's bound in place of the kit's.
    pub(crate) bound: Option<Bound>,
}

/// What a launch leaves in the operands that it writes, by name.
pub(crate) type Outcomes = Vec<(String, Data)>;

/// How long a launch takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// The median, with waiting for the launch, in microseconds.
    pub median_us: f64,
    /// Bytes that the launch has to move.
    pub bytes: u64,
    /// Arithmetic operations.
    pub flops: u64,
}

/// A device to launch on, with its primitives and memory.
pub struct Rig<'r> {
    runtime: &'r Runtime,
    device: &'r Device,
    stream: Stream,
    /// Where the device computes on host memory.
    arena: Option<Arena>,
    memory: DeviceMemory,
    advertised: BTreeMap<Key, Advertised>,
    /// The primitives of the latest key, which its next case often shares.
    latest: Vec<(Key, Attempt, DynPrimitive)>,
}

/// The primitives for a case, or why the provider does not claim to have one.
enum Built {
    /// One of each factory that takes a request for the case, the one that takes the least demanding first.
    Primitives(Vec<Candidate>),
    Refused(Error),
}

/// A primitive for a case.
struct Candidate {
    primitive: DynPrimitive,
    /// The provider was promised that operands are aligned.
    aligned: bool,
}

impl Built {
    fn first(self) -> Option<DynPrimitive> {
        match self {
            Built::Primitives(all) => all.into_iter().next().map(|c| c.primitive),
            Built::Refused(_) => None,
        }
    }
}

impl<'r> Rig<'r> {
    /// A rig for one device.
    ///
    /// # Errors
    /// When there is no memory or no stream.
    pub fn new(runtime: &'r Runtime, device: &'r Device) -> Result<Rig<'r>> {
        let no_memory = |e| Error::new(Code::OutOfMemory, format!("memory between inaccessible pages: {e}"));
        let info = device.info();
        // Pinned memory does not make a device reach the pages here.
        let on_host = [&info.reads, &info.writes].iter().all(|spaces| spaces.iter().any(|s| s == HOST_SPACE));
        let arena = on_host.then(|| Arena::new(REGIONS, CAPACITY)).transpose().map_err(no_memory)?;
        Ok(Rig {
            runtime,
            device,
            stream: device.stream()?,
            arena,
            memory: DeviceMemory::new(device),
            advertised: crate::predicates::advertised(runtime, device),
            latest: Vec::new(),
        })
    }

    /// The device.
    pub fn device(&self) -> &'r Device {
        self.device
    }

    /// What the provider claims.
    pub fn keys(&self) -> Vec<Key> {
        self.advertised.keys().cloned().collect()
    }

    /// How many keys of an op the provider claims.
    pub fn claims(&self, op: &str) -> usize {
        self.advertised.keys().filter(|k| k.op == op).count()
    }

    /// What is known of a key's registrations; nothing of one that the provider does not claim.
    pub fn advertised(&self, key: &Key) -> Advertised {
        self.advertised.get(key).cloned().unwrap_or_default()
    }

    fn build(&mut self, case: &Case, schema: &Schema) -> Result<Built> {
        let advertised = self.advertised(&case.key);
        let (mut refused, mut built) = (None, Vec::<Candidate>::new());
        for attempt in attempts(case, schema, &advertised)? {
            match self.made(&case.key, &attempt) {
                // What a stricter promise leads to is another primitive only where another factory makes it.
                Ok(primitive) if built.iter().any(|c| c.primitive.factory() == primitive.factory()) => {}
                Ok(primitive) => built.push(Candidate { primitive, aligned: attempt.aligned() }),
                Err(e) if e.code() == Code::Unsupported => {
                    refused.get_or_insert(e);
                }
                Err(e) => return Err(e),
            }
        }
        if !built.is_empty() {
            return Ok(Built::Primitives(built));
        }
        let refused = refused.unwrap_or_else(|| Error::unsupported("no request was made"));
        if advertised.conditional() { Ok(Built::Refused(refused)) } else { Err(refused) }
    }

    /// The primitive of a request, the same for requests that are alike.
    fn made(&mut self, key: &Key, attempt: &Attempt) -> Result<DynPrimitive> {
        /// Requests of a key whose primitives are kept; each case may promise limits of its own.
        const MOST: usize = 8;
        if self.latest.first().is_some_and(|(k, ..)| k != key) || self.latest.len() > MOST {
            self.latest.clear();
        }
        if let Some((_, _, primitive)) = self.latest.iter().find(|(_, a, _)| a == attempt) {
            return Ok(primitive.clone());
        }
        let primitive = self.request(key, attempt)?;
        self.latest.push((key.clone(), attempt.clone(), primitive.clone()));
        Ok(primitive)
    }

    fn request(&self, key: &Key, attempt: &Attempt) -> Result<DynPrimitive> {
        let mut request = self.runtime.request(&key.op)?;
        for (name, value) in &key.selectors {
            request = request.selector(name, value)?;
        }
        for (role, dtype) in &key.dtypes {
            request = request.dtype(role, &dtype.to_string())?;
        }
        for (name, bits) in &attempt.attrs {
            request = request.attr(name, f64::from_bits(*bits))?;
        }
        for (name, value) in &attempt.limits {
            request = request.limit(name, *value)?;
        }
        self.runtime.primitive_dyn(self.device, &request)
    }

    /// Fills a case's operands and asks the reference.
    ///
    /// # Errors
    /// When the case cannot be built.
    pub fn expect(&mut self, case: &Case) -> Result<Expected> {
        let schema = self.runtime.schema(&case.key.op)?;
        let uses = uses(case, &schema)?;
        if let Some(period) = &case.period {
            let small = self.expect(period)?;
            return Ok(repeated(small, uses));
        }
        let mut random = Random::new(case.seed);
        let mut before = Vec::new();
        for (i, u) in uses.iter().enumerate() {
            let operand = &schema.operands[schema.operand_of(i)];
            let dtype = u.dtype.unwrap_or(DType::U8);
            let count = u.bytes / dtype.bytes_for_bounds();
            before.push(if u.reads || operand.covers.is_some() {
                content(case, &operand.name, dtype, count as usize, &mut random)
            } else {
                Data { dtype, bytes: poison(dtype, u.bytes as usize) }
            });
        }
        if !case.key.has_reference() {
            return Ok(Expected { schema, uses, before, after: None, largest: 0.0, bound: None });
        }
        let mut launch = Launch::new(&case.key.op);
        for (name, value) in &case.key.selectors {
            launch = launch.selector(name, value);
        }
        for (role, dtype) in &case.key.dtypes {
            launch = launch.dtype(role, *dtype);
        }
        launch = case.attrs.iter().fold(launch, |l, (n, v)| l.attr(n, *v));
        launch = case.sizes.iter().fold(launch, |l, (n, v)| l.size(n, *v));
        launch = case.lists.iter().fold(launch, |l, (n, v)| l.dims(n, v));
        launch = case.scalars.iter().fold(launch, |l, (n, v)| l.scalar(n, *v));
        for (i, (data, u)) in before.iter().zip(&uses).enumerate() {
            let operand = &schema.operands[schema.operand_of(i)];
            let given = u.present && !case.absent.contains(&&*operand.name);
            if given && (u.reads || operand.covers.is_some()) {
                launch = launch.read(&operand.name, data.view());
            }
        }
        let named = |outputs: Outputs| outputs.iter().map(|(n, d)| (n.to_owned(), d.clone())).collect();
        let after = launch.run().map(named);
        let read = |(i, u): (usize, &OperandUse)| {
            let counts = u.reads && schema.operands[schema.operand_of(i)].name != "indices";
            counts.then(|| before[i].view().iter())
        };
        let largest = largest(uses.iter().enumerate().filter_map(read).flatten());
        Ok(Expected { schema, uses, before, after: Some(after), largest, bound: None })
    }

    /// What a vendor says of a launch of its own.
    ///
    /// # Errors
    /// `InvalidArgument` where its operands are not those of the op's schema.
    pub fn known(&self, case: &Case, known: &KnownLaunch) -> Result<Expected> {
        let schema = self.runtime.schema(&case.key.op)?;
        let uses = uses(case, &schema)?;
        if known.operands.len() != uses.len() {
            return Err(Error::invalid(format!(
                "the case has {} operands, and the op {}",
                known.operands.len(),
                uses.len()
            )));
        }
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (i, (o, u)) in known.operands.iter().zip(&uses).enumerate() {
            let name = &schema.operands[schema.operand_of(i)].name;
            if o.bytes != u.bytes {
                return Err(Error::invalid(format!(
                    "operand `{name}` has {} bytes in the case, and {} by the schema",
                    o.bytes, u.bytes
                )));
            }
            let dtype = u.dtype.unwrap_or(DType::U8);
            let unset = || poison(dtype, u.bytes as usize);
            let first = Data { dtype, bytes: o.before.clone().unwrap_or_else(unset) };
            if u.writes {
                let bytes = o.after.clone().unwrap_or_else(|| first.bytes.clone());
                after.push((name.clone(), Data { dtype, bytes }));
            }
            before.push(first);
        }
        let after =
            known.refusal.map_or(Ok(after), |code| Err(Error::new(code, "the vendor's case says so")));
        let bound = Some(Bound { absolute: known.absolute, relative: known.relative });
        Ok(Expected { schema, uses, before, after: Some(after), largest: 0.0, bound })
    }

    /// Runs a case on every kind of memory that the device has: its own, and memory between inaccessible pages where it
    /// computes on that of the host and the operands are not too many or too large for it.
    ///
    /// # Errors
    /// As [`Rig::run_on_device`].
    pub fn run_everywhere(&mut self, case: &Case, expected: &Expected) -> Result<Outcome> {
        match self.run_on_device(case, expected)? {
            Outcome::Fail(why) => return Ok(Outcome::Fail(format!("{why} ({case}, memory of the device)"))),
            Outcome::Unsupported(why) => return Ok(Outcome::Unsupported(why)),
            Outcome::Pass => {}
        }
        if !self.arena.as_ref().is_some_and(|arena| fits(arena, expected)) {
            return Ok(Outcome::Pass);
        }
        for edge in [Edge::End, Edge::Start] {
            if let Outcome::Fail(why) = self.run(case, expected, edge)? {
                return Ok(Outcome::Fail(format!("{why} ({case}, at the {edge:?} of a page)")));
            }
        }
        Ok(Outcome::Pass)
    }

    /// Launches a case with its operands at an edge of their memory, and compares everything.
    ///
    /// # Errors
    /// When the case cannot be built, or the device does not compute on host memory; `Unsupported` for more than 16
    /// operands, and for one of more than 4 MiB.
    pub fn run(&mut self, case: &Case, expected: &Expected, edge: Edge) -> Result<Outcome> {
        let candidates = match self.build(case, &expected.schema)? {
            Built::Primitives(candidates) => candidates,
            Built::Refused(e) => return Ok(Outcome::Unsupported(e.to_string())),
        };
        let Some(arena) = &mut self.arena else {
            return Err(Error::unsupported(format!(
                "{} does not compute on host memory",
                self.device.name()
            )));
        };
        if !fits(arena, expected) {
            return Err(Error::unsupported(format!("{case}: too large for this memory")));
        }
        let mut memory = Edged { arena, edge };
        // At the edge of a page a promise of alignment could not be kept.
        for Candidate { primitive, .. } in candidates.iter().filter(|c| !c.aligned) {
            let trial =
                Trial { case, expected, primitive, stream: &self.stream, recorded: None, workspace: 0 };
            let outcome = trial.judge(&mut memory)?;
            if outcome != Outcome::Pass {
                return Ok(of_factory(outcome, primitive, &candidates));
            }
        }
        Ok(Outcome::Pass)
    }

    /// Launches a case on memory of the device with guard zones around each operand, compares everything, and does
    /// it again where the op says that equal input gives equal output.
    ///
    /// # Errors
    /// When the case cannot be built, or its operands cannot be moved to the device and back.
    pub fn run_on_device(&mut self, case: &Case, expected: &Expected) -> Result<Outcome> {
        let candidates = match self.build(case, &expected.schema)? {
            Built::Primitives(candidates) => candidates,
            Built::Refused(e) => return Ok(Outcome::Unsupported(e.to_string())),
        };
        for Candidate { primitive, .. } in &candidates {
            let trial =
                Trial { case, expected, primitive, stream: &self.stream, recorded: None, workspace: 0 };
            let (mut outcome, addresses) = trial.judge_at(&mut self.memory)?;
            if outcome == Outcome::Pass && expected.schema.deterministic {
                outcome = trial.repeat(&mut self.memory)?;
            }
            if outcome == Outcome::Pass && matches!(expected.after, Some(Ok(_))) {
                // Its own scratch memory was used so far.
                let workspace = trial.workspace_wanted(&addresses)?;
                if (1..=MOST_WORKSPACE).contains(&workspace) {
                    outcome = given_workspace(&Trial { workspace, ..trial }, &mut self.memory)?;
                }
            }
            if outcome != Outcome::Pass {
                return Ok(of_factory(outcome, primitive, &candidates));
            }
        }
        Ok(Outcome::Pass)
    }

    /// Records a case so many times into a graph, launches that twice, and compares everything. `None` where that shows
    /// nothing: its launches cannot be recorded, are refused, or change what they read.
    ///
    /// # Errors
    /// As [`Rig::run_on_device`].
    pub fn run_recorded(
        &mut self,
        case: &Case,
        expected: &Expected,
        times: usize,
    ) -> Result<Option<Outcome>> {
        let Some(primitive) = self.build(case, &expected.schema)?.first() else { return Ok(None) };
        let changes = case.in_place.is_some() || expected.uses.iter().any(|u| u.reads && u.writes);
        if changes || !primitive.capturable() || !matches!(expected.after, Some(Ok(_))) {
            return Ok(None);
        }
        let recorded = Some(times);
        let trial =
            Trial { case, expected, primitive: &primitive, stream: &self.stream, recorded, workspace: 0 };
        trial.judge(&mut self.memory).map(Some)
    }

    /// Measures a case that passes.
    ///
    /// # Errors
    /// As [`Rig::run_on_device`], and the launch's.
    pub fn measure(&mut self, case: &Case, expected: &Expected) -> Result<Option<Speed>> {
        let Some(primitive) = self.build(case, &expected.schema)?.first() else { return Ok(None) };
        Trial { case, expected, primitive: &primitive, stream: &self.stream, recorded: None, workspace: 0 }
            .measure(&mut self.memory)
            .map(Some)
    }
}

/// Launches with scratch memory.
fn given_workspace(trial: &Trial<'_>, memory: &mut DeviceMemory) -> Result<Outcome> {
    Ok(match trial.judge(memory)? {
        Outcome::Fail(why) => {
            Outcome::Fail(format!("{why}, given the workspace of {} bytes that it wants", trial.workspace))
        }
        other => other,
    })
}

/// Tells which factory a failure is of, where a case has primitives of several.
fn of_factory(outcome: Outcome, primitive: &DynPrimitive, candidates: &[Candidate]) -> Outcome {
    match outcome {
        Outcome::Fail(why) if candidates.len() > 1 => {
            Outcome::Fail(format!("{why}, by factory `{}`", primitive.factory()))
        }
        other => other,
    }
}

/// Whether there is room for a case's operands between the pages.
fn fits(arena: &Arena, expected: &Expected) -> bool {
    let small = |u: &OperandUse| u.bytes <= arena.capacity() as u64;
    expected.uses.len() <= REGIONS && expected.uses.iter().all(small)
}

/// The operands and results of a launch whose outermost elements repeat those of a small one.
fn repeated(small: Expected, uses: Vec<OperandUse>) -> Expected {
    let repeat = |data: &Data, bytes: u64| {
        let whole = data.bytes.iter().copied().cycle().take(bytes as usize);
        Data { dtype: data.dtype, bytes: whole.collect() }
    };
    let before = small.before.iter().zip(&uses).map(|(data, u)| repeat(data, u.bytes)).collect();
    let bytes =
        |name: &str| small.schema.operands.iter().position(|x| x.name == name).map_or(0, |i| uses[i].bytes);
    let after = small.after.map(|after| {
        after.map(|outputs| outputs.iter().map(|(n, d)| (n.clone(), repeat(d, bytes(n)))).collect())
    });
    Expected { schema: small.schema, uses, before, after, largest: small.largest, bound: None }
}
