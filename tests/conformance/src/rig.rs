//! Launching cases and judging them.

use crate::case::{Case, Key};
use crate::geometry::uses;
use crate::memory::{Arena, DeviceMemory, Edge, Edged, Memory};
use crate::predicates::{Advertised, Attempt, attempts};
use crate::tolerance::{Tolerance, largest, tolerance};
use crate::values::{Random, content, other_poison, poison};
use ep_core::handle::KnownLaunch;
use ep_core::op::OperandUse;
use ep_core::provider::inline::HOST_SPACE;
use ep_core::schema::Schema;
use ep_core::{Code, DType, Error, Result};
use ep_registry::{Device, DynArgs, DynPrimitive, Runtime, Stream};
use primitives::reference::{Data, Launch, Outputs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operands that one launch can have here.
const REGIONS: usize = 16;
/// Bytes that one operand can have here.
const CAPACITY: usize = 4 << 20;
/// What stands where a launch had its lists, once it has returned: no address, and no size, position or stride.
const NO_VALUE: i64 = i64::MIN + 1;
/// How long a case is repeated to measure it.
const MEASURED: Duration = Duration::from_millis(20);

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
    schema: Arc<Schema>,
    uses: Vec<OperandUse>,
    /// The content of each buffer before the launch.
    before: Vec<Data>,
    /// `None`: there is no reference.
    after: Option<Result<Outcomes>>,
    largest: f64,
    /// The vendor's bound, absolute and relative, in place of the kit's.
    bound: Option<(f64, f64)>,
}

/// What a launch leaves in the operands that it writes, by name.
type Outcomes = Vec<(String, Data)>;

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
    /// The primitive of the latest case, which the next one often shares.
    latest: Option<(Key, Attempt, DynPrimitive)>,
}

/// A primitive for a case, or why the provider does not claim to have one.
enum Built {
    Primitive(DynPrimitive),
    /// The provider was promised that operands are aligned.
    Aligned(DynPrimitive),
    Refused(Error),
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
            latest: None,
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

    /// Whether operands can lie between inaccessible pages.
    pub fn has_pages(&self) -> bool {
        self.arena.is_some()
    }

    fn build(&mut self, case: &Case, schema: &Schema) -> Result<Built> {
        let advertised = self.advertised(&case.key);
        let mut refused = None;
        for attempt in attempts(case, schema, &advertised)? {
            let known = self.latest.as_ref().filter(|(key, a, _)| *key == case.key && *a == attempt);
            let made = match known {
                Some((_, _, primitive)) => Ok(primitive.clone()),
                None => self.request(&case.key, &attempt),
            };
            match made {
                Ok(primitive) => {
                    let aligned = attempt.aligned();
                    self.latest = Some((case.key.clone(), attempt, primitive.clone()));
                    return Ok(if aligned { Built::Aligned(primitive) } else { Built::Primitive(primitive) });
                }
                Err(e) if e.code() == Code::Unsupported => {
                    refused.get_or_insert(e);
                }
                Err(e) => return Err(e),
            }
        }
        let refused = refused.unwrap_or_else(|| Error::unsupported("no request was made"));
        if advertised.conditional() { Ok(Built::Refused(refused)) } else { Err(refused) }
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
        let bound = Some((known.absolute, known.relative));
        Ok(Expected { schema, uses, before, after: Some(after), largest: 0.0, bound })
    }

    /// Launches a case with its operands at an edge of their memory, and compares everything.
    ///
    /// # Errors
    /// When the case cannot be built, or the device does not compute on host memory.
    pub fn run(&mut self, case: &Case, expected: &Expected, edge: Edge) -> Result<Outcome> {
        let primitive = match self.build(case, &expected.schema)? {
            Built::Primitive(primitive) => primitive,
            // At the edge of a page it could not keep the promise.
            Built::Aligned(_) => return Ok(Outcome::Pass),
            Built::Refused(e) => return Ok(Outcome::Unsupported(e.to_string())),
        };
        let Some(arena) = &mut self.arena else {
            return Err(Error::unsupported(format!(
                "{} does not compute on host memory",
                self.device.name()
            )));
        };
        if expected.uses.len() > REGIONS || expected.uses.iter().any(|u| u.bytes as usize > arena.capacity())
        {
            return Err(Error::unsupported(format!("{case}: too large for this memory")));
        }
        let mut memory = Edged { arena, edge };
        Trial { case, expected, primitive: &primitive, stream: &self.stream, recorded: None }
            .judge(&mut memory)
    }

    /// Launches a case on memory of the device with guard zones around each operand, compares everything, and does
    /// it again where the op says that equal input gives equal output.
    ///
    /// # Errors
    /// When the case cannot be built, or its operands cannot be moved to the device and back.
    pub fn run_on_device(&mut self, case: &Case, expected: &Expected) -> Result<Outcome> {
        let primitive = match self.build(case, &expected.schema)? {
            Built::Primitive(primitive) | Built::Aligned(primitive) => primitive,
            Built::Refused(e) => return Ok(Outcome::Unsupported(e.to_string())),
        };
        let trial = Trial { case, expected, primitive: &primitive, stream: &self.stream, recorded: None };
        let outcome = trial.judge(&mut self.memory)?;
        if outcome == Outcome::Pass && expected.schema.deterministic {
            return trial.repeat(&mut self.memory);
        }
        Ok(outcome)
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
        let (Built::Primitive(primitive) | Built::Aligned(primitive)) = self.build(case, &expected.schema)?
        else {
            return Ok(None);
        };
        let changes = case.in_place.is_some() || expected.uses.iter().any(|u| u.reads && u.writes);
        if changes || !primitive.capturable() || !matches!(expected.after, Some(Ok(_))) {
            return Ok(None);
        }
        let recorded = Some(times);
        let trial = Trial { case, expected, primitive: &primitive, stream: &self.stream, recorded };
        trial.judge(&mut self.memory).map(Some)
    }

    /// Measures a case that passes.
    ///
    /// # Errors
    /// As [`Rig::run_on_device`], and the launch's.
    pub fn measure(&mut self, case: &Case, expected: &Expected) -> Result<Option<Speed>> {
        let (Built::Primitive(primitive) | Built::Aligned(primitive)) = self.build(case, &expected.schema)?
        else {
            return Ok(None);
        };
        Trial { case, expected, primitive: &primitive, stream: &self.stream, recorded: None }
            .measure(&mut self.memory)
            .map(Some)
    }
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

/// One launch in the making.
struct Trial<'a> {
    case: &'a Case,
    expected: &'a Expected,
    primitive: &'a DynPrimitive,
    stream: &'a Stream,
    /// How often it is recorded into a graph; `None`: launched directly.
    recorded: Option<usize>,
}

impl Trial<'_> {
    fn operand(&self, i: usize) -> &str {
        let schema = &self.expected.schema;
        &schema.operands[schema.operand_of(i)].name
    }

    /// The buffer whose memory buffer `i` has.
    fn place(&self, i: usize) -> usize {
        match self.case.in_place {
            Some((output, source)) if self.operand(i) == output => {
                (0..self.expected.uses.len()).find(|j| self.operand(*j) == source).unwrap_or(i)
            }
            _ => i,
        }
    }

    fn absent(&self, i: usize) -> bool {
        self.case.absent.contains(&self.operand(i)) || !self.expected.uses[i].present
    }

    fn shift(&self, i: usize) -> usize {
        let dtype = self.expected.uses[i].dtype;
        self.case.shift * dtype.map_or(1, |d| d.bytes_for_bounds() as usize)
    }

    /// Puts the operands into memory and gives their addresses, in order.
    fn put(&self, memory: &mut dyn Memory, poison: impl Fn(&Data) -> Data) -> Result<Vec<u64>> {
        let count = self.expected.uses.len();
        let mut addresses = vec![0; count];
        for i in (0..count).filter(|i| !self.absent(*i) && self.place(*i) == *i) {
            let (data, u) = (&self.expected.before[i], &self.expected.uses[i]);
            let keeps =
                u.reads || self.expected.schema.operands[self.expected.schema.operand_of(i)].covers.is_some();
            let bytes = if keeps { data.bytes.clone() } else { poison(data).bytes };
            addresses[i] = memory.put(i, &bytes, self.shift(i), element(u))?;
        }
        for i in 0..count {
            addresses[i] = addresses[self.place(i)];
        }
        Ok(addresses)
    }

    /// Launches and waits.
    fn launch(&self, addresses: &[u64]) -> Result<Result<()>> {
        let mut case = self.case.clone();
        let mut addresses = addresses.to_vec();
        let args = arguments(self.primitive, &case, &addresses)?;
        // SAFETY: every address covers as many bytes of its memory as the schema says, apart but where the op allows
        // the same memory; the stream is awaited before the memory is looked at, and a graph is launched before.
        let once = |stream: &Stream| unsafe { self.primitive.launch_raw(stream, &args) };
        let launched = match self.recorded {
            None => once(self.stream),
            Some(times) => self
                .stream
                .capture(|stream| (0..times).try_for_each(|_| once(stream)))
                .and_then(|graph| graph.launch(self.stream).and_then(|()| graph.launch(self.stream))),
        };
        // Nothing in the arguments is kept after the call.
        drop(args);
        case.lists.iter_mut().for_each(|(_, values)| values.fill(NO_VALUE));
        addresses.fill(NO_VALUE as u64);
        std::hint::black_box((&case, &addresses));
        let done = self.stream.sync();
        Ok(launched.and(done))
    }

    fn judge(&self, memory: &mut dyn Memory) -> Result<Outcome> {
        let addresses = self.put(memory, Data::clone)?;
        let outputs = match (&self.expected.after, self.launch(&addresses)?) {
            (_, Err(e)) if e.code() == Code::Panic => return Ok(Outcome::Fail(e.to_string())),
            (Some(Ok(outputs)), Ok(())) => Some(outputs),
            (Some(Err(e)), Err(found)) if e.code() == found.code() => None,
            (Some(Ok(_)), Err(e)) => return Ok(Outcome::Fail(format!("refused: {e}"))),
            (Some(Err(e)), Ok(())) => return Ok(Outcome::Fail(format!("accepted, but: {e}"))),
            (Some(Err(e)), Err(found)) => {
                return Ok(Outcome::Fail(format!("refused with {found}, not with {e}")));
            }
            (None, Ok(())) => None,
            (None, Err(e)) if matches!(e.code(), Code::InvalidArgument | Code::Unsupported) => {
                return Ok(Outcome::Unsupported(format!(
                    "no reference, and generated arguments are refused: {e}"
                )));
            }
            (None, Err(e)) => return Ok(Outcome::Fail(e.to_string())),
        };
        for i in (0..self.expected.uses.len()).filter(|i| !self.absent(*i)) {
            let (place, u) = (self.place(i), &self.expected.uses[i]);
            let before = &self.expected.before[i];
            let (now, whole) = memory.get(
                place,
                before.bytes.len(),
                self.shift(place),
                element(&self.expected.uses[place]),
            )?;
            let name = self.operand(i);
            if !whole {
                return Ok(Outcome::Fail(format!("wrote outside of `{name}`")));
            }
            let wanted = match outputs {
                Some(outputs) if u.writes => {
                    let found = outputs.iter().find(|(n, _)| n == name);
                    &found.ok_or_else(|| Error::internal(format!("the reference leaves out `{name}`")))?.1
                }
                // What was refused may have written its outputs in part, and without a reference nobody knows.
                None if u.writes => continue,
                _ if self.case.in_place.is_some_and(|(_, source)| source == name) => continue,
                _ => before,
            };
            let found = difference(self.case, name, wanted, &now, self.expected, u.writes);
            if let Some((at, wrong)) = found {
                return Ok(Outcome::Fail(wrong + &self.sources(at, wanted.bytes.len() / element(u).max(1))));
            }
        }
        Ok(Outcome::Pass)
    }

    /// The elements of the sources at the place of a wrong one, where the operands are alike.
    fn sources(&self, at: usize, count: usize) -> String {
        let mut text = String::new();
        for (i, u) in self.expected.uses.iter().enumerate().filter(|(_, u)| u.reads) {
            let data = &self.expected.before[i];
            let alike = DType::ALL.contains(&data.dtype) && data.view().len() == count;
            if alike && u.dtype.is_some() && at < count {
                text.push_str(&format!("; `{}`[{at}] was {:?}", self.operand(i), data.get(at)));
            }
        }
        text
    }

    /// The content of every operand that is written.
    fn outputs(&self, memory: &mut dyn Memory) -> Result<Vec<(usize, Vec<u8>)>> {
        let count = self.expected.uses.len();
        let written = (0..count).filter(|i| !self.absent(*i) && self.expected.uses[*i].writes);
        let mut all = Vec::new();
        for i in written {
            let (place, bytes) = (self.place(i), self.expected.before[i].bytes.len());
            all.push((
                i,
                memory.get(place, bytes, self.shift(place), element(&self.expected.uses[place]))?.0,
            ));
        }
        Ok(all)
    }

    /// Launches once more, on outputs that hold something else before, and compares bit for bit.
    fn repeat(&self, memory: &mut dyn Memory) -> Result<Outcome> {
        let first = self.outputs(memory)?;
        let other =
            |data: &Data| Data { dtype: data.dtype, bytes: other_poison(data.dtype, data.bytes.len()) };
        let addresses = self.put(memory, other)?;
        if self.launch(&addresses)?.is_err() {
            // The first one was refused too, or it would not be repeated.
            let refused = matches!(self.expected.after, Some(Err(_)));
            return Ok(if refused { Outcome::Pass } else { Outcome::Fail("refused the second time".into()) });
        }
        for ((i, first), (_, second)) in first.into_iter().zip(self.outputs(memory)?) {
            if let Some(at) = first.iter().zip(&second).position(|(a, b)| a != b) {
                return Ok(Outcome::Fail(format!(
                    "`{}` differs at byte {at} when launched again, on outputs that held something else: it is not \
                     written in full, or not deterministic as the op's schema says",
                    self.operand(i)
                )));
            }
        }
        Ok(Outcome::Pass)
    }

    fn measure(&self, memory: &mut dyn Memory) -> Result<Speed> {
        let addresses = self.put(memory, Data::clone)?;
        let start = Instant::now();
        let mut times = Vec::new();
        while times.len() < 3 || start.elapsed() < MEASURED {
            let before = Instant::now();
            self.launch(&addresses)??;
            times.push(before.elapsed());
        }
        times.sort_unstable();
        let cost = self.primitive.cost(&arguments(self.primitive, self.case, &addresses)?)?;
        let median_us = times[times.len() / 2].as_secs_f64() * 1e6;
        Ok(Speed { median_us, bytes: cost.bytes, flops: cost.flops })
    }
}

/// Bytes of an element of an operand.
fn element(u: &OperandUse) -> usize {
    u.dtype.map_or(1, |d| d.bytes_for_bounds() as usize)
}

/// A case's arguments with the addresses of its operands, in order.
fn arguments<'a>(primitive: &DynPrimitive, case: &'a Case, addresses: &'a [u64]) -> Result<DynArgs<'a>> {
    let mut args = primitive.args();
    for (name, value) in &case.sizes {
        args = args.size(name, *value)?;
    }
    for (name, values) in &case.lists {
        args = args.dims(name, values)?;
    }
    for (name, value) in &case.scalars {
        args = args.scalar(name, *value)?;
    }
    let schema = primitive.schema();
    let list = schema.list_length().map(|_| schema.operands.len() - 1);
    for (i, x) in schema.operands.iter().enumerate() {
        args = match list {
            Some(l) if l == i => args.addresses(&x.name, &addresses[i..])?,
            _ => args.address(&x.name, addresses[i])?,
        };
    }
    Ok(args)
}

/// The first element that is not as it should be: its index, and what is wrong.
fn difference(
    case: &Case,
    operand: &str,
    wanted: &Data,
    found: &[u8],
    expected: &Expected,
    written: bool,
) -> Option<(usize, String)> {
    if found == wanted.bytes {
        return None;
    }
    if !DType::ALL.contains(&wanted.dtype) {
        let at = wanted.bytes.iter().zip(found).position(|(w, f)| w != f).unwrap_or(0);
        let what = match written {
            false => format!("`{operand}`, which is only read, has changed at byte {at}"),
            true => {
                format!("byte {at} of `{operand}` is {:#04x}, expected {:#04x}", found[at], wanted.bytes[at])
            }
        };
        return Some((at / wanted.dtype.bytes_for_bounds().max(1) as usize, what));
    }
    let found = primitives::reference::View::new(wanted.dtype, found);
    let general = tolerance(case, wanted.dtype, expected.largest);
    for i in 0..wanted.view().len().max(found.len()) {
        if i >= found.len() || i >= wanted.view().len() {
            let (found, wanted) = (found.len(), wanted.view().len());
            return Some((i, format!("`{operand}` has {found} elements, {wanted} are expected")));
        }
        if found.element(i) == wanted.view().element(i) {
            continue;
        }
        let (w, f) = (wanted.get(i), found.get(i));
        if !written {
            return Some((i, format!("`{operand}`[{i}], which is only read, was {w:?} and is {f:?}")));
        }
        let tolerance = expected.bound.map_or(general, |(absolute, relative)| Tolerance {
            ulp: 0.0,
            absolute: absolute + relative * w.re().hypot(w.im()),
        });
        if !tolerance.accepts(wanted.dtype, w, f) {
            return Some((i, format!("`{operand}`[{i}] is {f:?}, expected {w:?} within {tolerance:?}")));
        }
    }
    None
}
