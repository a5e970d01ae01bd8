//! One launch of a case: putting its operands into memory, launching, and comparing everything.

use crate::case::Case;
use crate::memory::Memory;
use crate::rig::{Expected, Outcome, Speed};
use crate::tolerance::tolerance;
use crate::values::{other_poison, poison};
use ep_core::op::OperandUse;
use ep_core::{Code, DType, Error, Result};
use ep_registry::{DynArgs, DynPrimitive, Stream};
use primitives::reference::Data;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// What stands where a launch had its lists, once it has returned: no address, and no size, position or stride.
const NO_VALUE: i64 = i64::MIN + 1;
/// How long a case is repeated to measure it.
const MEASURED: Duration = Duration::from_millis(20);

/// One launch in the making.
pub(crate) struct Trial<'a> {
    pub(crate) case: &'a Case,
    pub(crate) expected: &'a Expected,
    pub(crate) primitive: &'a DynPrimitive,
    pub(crate) stream: &'a Stream,
    /// How often it is recorded into a graph; `None`: launched directly.
    pub(crate) recorded: Option<usize>,
    /// Bytes of scratch memory that it is given; 0: none.
    pub(crate) workspace: u64,
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

    /// What a launch wants of scratch memory.
    pub(crate) fn workspace_wanted(&self, addresses: &[u64]) -> Result<u64> {
        self.primitive.workspace_size(&arguments(self.primitive, self.case, addresses)?)
    }

    /// Launches, with scratch memory at an address if it is given any, and waits.
    fn launch(&self, addresses: &[u64], scratch: u64) -> Result<Result<()>> {
        let mut case = self.case.clone();
        let mut addresses = addresses.to_vec();
        let args = arguments(self.primitive, &case, &addresses)?.workspace(scratch, self.workspace);
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

    /// Launches, and compares what is there then with what is expected.
    pub(crate) fn judge(&self, memory: &mut dyn Memory) -> Result<Outcome> {
        Ok(self.judge_at(memory)?.0)
    }

    /// [`Trial::judge`], and where the operands were.
    pub(crate) fn judge_at(&self, memory: &mut dyn Memory) -> Result<(Outcome, Vec<u64>)> {
        let addresses = self.put(memory, Data::clone)?;
        // Behind the operands, as one more.
        let place = self.expected.uses.len();
        let scratch = match self.workspace {
            0 => 0,
            bytes => memory.put(place, &poison(DType::U8, bytes as usize), 0, 1)?,
        };
        let mut outcome = self.compare(memory, self.launch(&addresses, scratch)?)?;
        if outcome == Outcome::Pass && scratch != 0 {
            let (_, changed) = memory.get(place, self.workspace as usize, 0, 1)?;
            outcome = changed.map_or(Outcome::Pass, |at| {
                let bytes = self.workspace;
                Outcome::Fail(format!(
                    "wrote outside of its workspace, which has {bytes} bytes: the first byte that changed is at offset \
                     {at}"
                ))
            });
        }
        Ok((outcome, addresses))
    }

    fn compare(&self, memory: &mut dyn Memory, launched: Result<()>) -> Result<Outcome> {
        let outputs = match (&self.expected.after, launched) {
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
            let (now, changed) = memory.get(
                place,
                before.bytes.len(),
                self.shift(place),
                element(&self.expected.uses[place]),
            )?;
            let name = self.operand(i);
            if let Some(at) = changed {
                let bytes = before.bytes.len();
                return Ok(Outcome::Fail(format!(
                    "wrote outside of `{name}`, which has {bytes} bytes: the first byte that changed is at offset {at}"
                )));
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
                text.push_str(&format!("; `{}`[{at}] was {}", self.operand(i), data.get(at)));
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
    pub(crate) fn repeat(&self, memory: &mut dyn Memory) -> Result<Outcome> {
        let first = self.outputs(memory)?;
        let other =
            |data: &Data| Data { dtype: data.dtype, bytes: other_poison(data.dtype, data.bytes.len()) };
        let addresses = self.put(memory, other)?;
        if self.launch(&addresses, 0)?.is_err() {
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

    /// How long the launch takes.
    pub(crate) fn measure(&self, memory: &mut dyn Memory) -> Result<Speed> {
        let addresses = self.put(memory, Data::clone)?;
        let start = Instant::now();
        let mut times = Vec::new();
        while times.len() < 3 || start.elapsed() < MEASURED {
            let before = Instant::now();
            self.launch(&addresses, 0)??;
            times.push(before.elapsed());
        }
        times.sort_unstable();
        let cost = self.primitive.cost(&arguments(self.primitive, self.case, &addresses)?)?;
        let median_us = times[times.len() / 2].as_secs_f64() * 1e6;
        Ok(Speed { median_us, bytes: cost.bytes, flops: cost.flops })
    }
}

/// Bytes as they lie in memory.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("bytes".to_owned(), |text, b| text + &format!(" {b:02x}"))
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

/// Whether a launch moves elements as they are, so that every bit of them stays.
pub(crate) fn moves_bits(case: &Case) -> bool {
    const MOVERS: [&str; 8] =
        ["batch_gather", "copy_nd", "gather", "memcpy", "permute", "tensor_fill", "where", "strided_copy"];
    let key = &case.key;
    let one_dtype = key.dtype("src") == key.dtype("dst");
    let copies = key.op == "cast" || (key.op == "add" && case.arity == 1);
    (MOVERS.contains(&&*key.op) || copies) && one_dtype
}

/// The first element that is not as it should be: its index, and what is wrong.
pub(crate) fn difference(
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
            return Some((i, format!("`{operand}`[{i}], which is only read, was {w} and is {f}")));
        }
        let bytes = found.element(i);
        if moves_bits(case) {
            let (was, is) = (hex(wanted.view().element(i)), hex(bytes));
            return Some((i, format!("`{operand}`[{i}] is {f} ({is}), expected the bits of {w} ({was})")));
        }
        // Elements of a source may be moved as they are.
        if wanted.dtype == DType::BOOL && bytes[0] > 1 && case.key.op != "constant_pad" {
            let is = bytes[0];
            return Some((
                i,
                format!("`{operand}`[{i}] is the byte {is}; a bool that is computed is 0 or 1"),
            ));
        }
        let (accepted, bound): (_, &dyn Display) = match &expected.bound {
            Some(bound) => (bound.accepts(w, f), bound),
            None => (general.accepts(wanted.dtype, w, f), &general),
        };
        if !accepted {
            return Some((i, format!("`{operand}`[{i}] is {f}, expected {w} {bound}")));
        }
    }
    None
}
