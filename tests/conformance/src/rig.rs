//! Launching cases and judging them.

use crate::case::{Case, Key};
use crate::memory::{Arena, Edge};
use crate::tolerance::{largest, tolerance};
use crate::values::{Random, content, poison};
use ep_core::op::OperandUse;
use ep_core::{Code, DType, Error, Result};
use ep_registry::{Device, DynArgs, DynPrimitive, Runtime, Stream};
use primitives::reference::{Data, Launch, Outputs};
use std::collections::HashMap;

/// Operands that one launch can have here.
const REGIONS: usize = 16;
/// Bytes that one operand can have here.
const CAPACITY: usize = 4 << 20;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As the reference says.
    Pass,
    /// Not so, and why.
    Fail(String),
}

/// What a case's operands held, and what the reference makes of it. Computed once for several devices.
pub struct Expected {
    /// Of each buffer: the operand's index in the schema, and the content before the launch.
    before: Vec<(usize, Data)>,
    after: Result<Outputs>,
    largest: f64,
}

/// A device to launch on, with its primitives and memory.
pub struct Rig<'r> {
    runtime: &'r Runtime,
    device: &'r Device,
    stream: Stream,
    arena: Arena,
    primitives: HashMap<Key, DynPrimitive>,
}

impl<'r> Rig<'r> {
    /// A rig for one device that computes on host memory.
    ///
    /// # Errors
    /// When there is no memory or no stream.
    pub fn new(runtime: &'r Runtime, device: &'r Device) -> Result<Rig<'r>> {
        let arena = Arena::new(REGIONS, CAPACITY)
            .map_err(|e| Error::new(Code::OutOfMemory, format!("memory between inaccessible pages: {e}")))?;
        Ok(Rig { runtime, device, stream: device.stream()?, arena, primitives: HashMap::new() })
    }

    /// What the provider claims.
    pub fn keys(&self) -> Vec<Key> {
        let filter =
            ep_registry::query::Filter { device: Some(self.device.name().to_owned()), ..Default::default() };
        let mut keys: Vec<_> = self.runtime.query(&filter).iter().filter_map(Key::from_row).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    fn primitive(&mut self, case: &Case) -> Result<DynPrimitive> {
        if let Some(known) = self.primitives.get(&case.key) {
            return Ok(known.clone());
        }
        let mut request = self.runtime.request(&case.key.op)?;
        for (name, value) in &case.key.selectors {
            request = request.selector(name, value)?;
        }
        for (role, dtype) in &case.key.dtypes {
            request = request.dtype(role, &dtype.to_string())?;
        }
        for (name, value) in &case.attrs {
            request = request.attr(name, *value)?;
        }
        let primitive = self.runtime.primitive_dyn(self.device, &request)?;
        self.primitives.insert(case.key.clone(), primitive.clone());
        Ok(primitive)
    }

    /// Fills a case's operands and asks the reference.
    ///
    /// # Errors
    /// When the case cannot be built.
    pub fn expect(&mut self, case: &Case) -> Result<Expected> {
        let primitive = self.primitive(case)?;
        let args = arguments(&primitive, case)?;
        // A shape that the op refuses may count nothing.
        let uses = primitive.uses(&args)?;
        let schema = primitive.schema();
        let mut random = Random::new(case.seed);
        let mut before = Vec::new();
        for (i, u) in uses.iter().enumerate() {
            let at = schema.operand_of(i);
            let operand = &schema.operands[at];
            let dtype = u.dtype.unwrap_or(DType::U8);
            let count = u.bytes as usize / dtype.size().unwrap_or(1);
            let data = if u.reads || operand.covers.is_some() {
                content(case, &operand.name, dtype, count, &mut random)
            } else {
                Data { dtype, bytes: poison(dtype, u.bytes as usize) }
            };
            before.push((at, data));
        }
        let given = |name: &str| !case.absent.contains(&name);
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
        for ((at, data), u) in before.iter().zip(&uses) {
            let operand = &schema.operands[*at];
            if u.present && given(&operand.name) && (u.reads || operand.covers.is_some()) {
                launch = launch.read(&operand.name, data.view());
            }
        }
        let after = launch.run();
        let read =
            before.iter().zip(&uses).filter(|((at, _), u)| u.reads && schema.operands[*at].name != "indices");
        let largest = largest(read.flat_map(|((_, data), _)| data.view().iter()));
        Ok(Expected { before, after, largest })
    }

    /// Launches a case with its operands at an edge of their memory, and compares everything.
    ///
    /// # Errors
    /// When the case cannot be built.
    pub fn run(&mut self, case: &Case, expected: &Expected, edge: Edge) -> Result<Outcome> {
        let primitive = self.primitive(case)?;
        let schema = primitive.schema().clone();
        let mut args = arguments(&primitive, case)?;
        let uses = primitive.uses(&args)?;
        if uses.len() > REGIONS || uses.iter().any(|u| u.bytes as usize > self.arena.capacity()) {
            return Err(Error::unsupported(format!("{case}: too large for this memory")));
        }
        let operand = |i: usize| schema.operands[schema.operand_of(i)].name.as_str();
        // Which buffer's memory each one has.
        let shared = |i: usize| match case.in_place {
            Some((output, source)) if operand(i) == output => {
                (0..uses.len()).find(|j| operand(*j) == source).unwrap_or(i)
            }
            _ => i,
        };
        let absent = |i: usize| case.absent.contains(&operand(i)) || !uses[i].present;
        let mut addresses = vec![0; uses.len()];
        for i in 0..uses.len() {
            if !absent(i) && shared(i) == i {
                addresses[i] = self.arena.put(i, &expected.before[i].1.bytes, edge_of(edge, &uses[i]));
            }
        }
        for i in 0..uses.len() {
            addresses[i] = addresses[shared(i)];
        }
        let list = schema.list_length().map(|_| schema.operands.len() - 1);
        for (i, x) in schema.operands.iter().enumerate() {
            args = match list {
                Some(l) if l == i => args.addresses(&x.name, &addresses[i..])?,
                _ => args.address(&x.name, addresses[i])?,
            };
        }
        // SAFETY: every address covers as many bytes of the arena as the schema says, apart but where the op allows
        // the same memory; the stream is awaited before the arena is looked at.
        let launched = unsafe { primitive.launch_raw(&self.stream, &args) };
        let done = launched.and_then(|()| self.stream.sync());
        let outputs = match (&expected.after, done) {
            (Ok(outputs), Ok(())) => Some(outputs),
            (Err(e), Err(found)) if e.code() == found.code() => None,
            (Ok(_), Err(e)) => return Ok(Outcome::Fail(format!("refused: {e}"))),
            (Err(e), Ok(())) => return Ok(Outcome::Fail(format!("accepted, but: {e}"))),
            (Err(e), Err(found)) => return Ok(Outcome::Fail(format!("refused with {found}, not with {e}"))),
        };
        for i in 0..uses.len() {
            if absent(i) {
                continue;
            }
            let place = shared(i);
            let before = &expected.before[i].1;
            let (now, whole) = self.arena.get(place, before.bytes.len(), edge_of(edge, &uses[place]));
            if !whole {
                return Ok(Outcome::Fail(format!("wrote outside of `{}`", operand(i))));
            }
            let wanted = match outputs {
                Some(outputs) if uses[i].writes => outputs.get(operand(i))?,
                // What was refused may have written its outputs in part.
                None if uses[i].writes => continue,
                _ if case.in_place.is_some_and(|(_, source)| source == operand(i)) => continue,
                _ => before,
            };
            if let Some(wrong) = difference(case, operand(i), wanted, now, expected.largest, uses[i].writes) {
                return Ok(Outcome::Fail(wrong));
            }
        }
        Ok(Outcome::Pass)
    }
}

/// Where an operand lies; its first element stays aligned.
fn edge_of(edge: Edge, u: &OperandUse) -> Edge {
    let size = u.dtype.and_then(|d| d.size()).unwrap_or(1);
    match edge {
        Edge::After(elements) => Edge::After(elements * size),
        other => other,
    }
}

fn arguments<'a>(primitive: &DynPrimitive, case: &'a Case) -> Result<DynArgs<'a>> {
    /// Stands for addresses until they are known: only their number counts.
    static NONE: [u64; REGIONS] = [0; REGIONS];
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
    if let (Some(_), Some(last)) = (schema.list_length(), schema.operands.last()) {
        args = args.addresses(&last.name, &NONE[..case.arity])?;
    }
    Ok(args)
}

/// The first element that is not as it should be.
fn difference(
    case: &Case,
    operand: &str,
    wanted: &Data,
    found: &[u8],
    largest: f64,
    written: bool,
) -> Option<String> {
    let found = primitives::reference::View::new(wanted.dtype, found);
    let tolerance = tolerance(case, wanted.dtype, largest);
    for i in 0..wanted.view().len().max(found.len()) {
        if i >= found.len() || i >= wanted.view().len() {
            return Some(format!(
                "`{operand}` has {} elements, {} are expected",
                found.len(),
                wanted.view().len()
            ));
        }
        if found.element(i) == wanted.view().element(i) {
            continue;
        }
        let (w, f) = (wanted.get(i), found.get(i));
        if !written {
            return Some(format!("`{operand}`[{i}], which is only read, was {w:?} and is {f:?}"));
        }
        if !tolerance.accepts(wanted.dtype, w, f) {
            return Some(format!("`{operand}`[{i}] is {f:?}, expected {w:?} within {tolerance:?}"));
        }
    }
    None
}
