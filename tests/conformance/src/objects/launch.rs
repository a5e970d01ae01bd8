//! Launches by the handles of a device, so that a check decides what is queued around them; and whether they keep their
//! place among copies.

use super::Bench;
use super::block::{Block, download, move_bytes, noise, upload};
use super::lifetimes::{launch_of, one_of_each_op};
use crate::case::{Case, Key};
use crate::geometry::{arguments, descriptor, uses};
use crate::rig::{Expected, Rig};
use crate::trial::difference;
use crate::values::Random;
use crate::verdict::{Verdict, wrong};
use ep_core::handle::{AllocatorHandle, PrimitiveHandle, StreamHandle};
use ep_core::op::OperandUse;
use ep_core::provider::{MemoryKind, StreamOptions};
use ep_core::schema::{DescKind, Schema};
use ep_core::{DType, Error, Result};

/// A launch, ready but for the content of its operands.
pub(super) struct Prepared<'a> {
    pub(super) primitive: PrimitiveHandle,
    pub(super) arguments: Vec<u64>,
    /// Has the lists that the arguments point to.
    pub(super) case: Case,
    /// What it does with each operand.
    pub(super) uses: Vec<OperandUse>,
    /// Memory for each.
    pub(super) operands: Vec<Block<'a>>,
}

impl<'a> Prepared<'a> {
    /// A launch of a case whose op has no list of buffers; `None` where no factory takes it without a condition.
    pub(super) fn new(
        bench: &Bench<'_>,
        case: Case,
        schema: &Schema,
        allocator: &'a AllocatorHandle,
    ) -> Result<Option<Prepared<'a>>> {
        let key = &case.key;
        let covers = |f: &ep_core::handle::FactoryHandle| {
            let selectors = schema.selectors().map(|(field, names)| {
                names.iter().position(|n| n == key.selector(&field.name)).map_or(u32::MAX, |i| i as u32)
            });
            let (selectors, dtypes): (Vec<u32>, Vec<DType>) =
                (selectors.collect(), key.dtypes.iter().map(|(_, d)| *d).collect());
            f.predicate.is_none() && f.selectors.contains(&selectors) && f.dtypes.contains(&dtypes)
        };
        let factory = bench.runtime.with_registry(|registry| {
            let entry = registry.op(&key.op).ok()?;
            entry.factories.iter().find(|f| covers(&f.handle)).map(|f| f.handle.clone())
        });
        let Some(factory) = factory else { return Ok(None) };
        let mut desc = words(&descriptor(key, schema)?);
        desc[0] = schema.desc_size as u64;
        for field in &schema.desc {
            if let DescKind::Attr(default) = field.kind {
                let given = case.attrs.iter().find(|(n, _)| *n == field.name);
                desc[field.offset / 8] = given.map_or(default, |(_, v)| *v).to_bits();
            }
        }
        // SAFETY: a descriptor of the op for a row of the factory.
        let primitive = unsafe { factory.create(bench.handle(), desc.as_ptr().cast()) }?;
        let mut arguments = words(&arguments(&case, schema)?);
        arguments[0] = schema.args_size as u64;
        let uses = uses(&case, schema)?;
        let mut operands = Vec::new();
        for (i, u) in uses.iter().enumerate() {
            let block = Block::new(allocator, u.bytes)?;
            arguments[schema.args[schema.operands[schema.operand_of(i)].arg].offset / 8] = block.address;
            operands.push(block);
        }
        Ok(Some(Prepared { primitive, arguments, case, uses, operands }))
    }

    pub(super) fn launch(&self, stream: &StreamHandle) -> Result<()> {
        // SAFETY: arguments of the op, whose lists and buffers live as long as this, and longer than the stream.
        unsafe { self.primitive.launch(stream, self.arguments.as_ptr().cast()) }
    }

    /// What differs from the reference in what it writes, which is in `results`, a block for each operand.
    pub(super) fn compare(
        &self,
        bench: &Bench<'_>,
        expected: &Expected,
        results: &[Block<'_>],
        stream: &StreamHandle,
    ) -> Result<Option<String>> {
        let Some(Ok(after)) = &expected.after else { return Ok(None) };
        for (i, u) in expected.uses.iter().enumerate().filter(|(_, u)| u.writes && u.present) {
            let name = &expected.schema.operands[expected.schema.operand_of(i)].name;
            let wanted = after.iter().find(|(n, _)| n == name);
            let wanted = &wanted.ok_or_else(|| Error::internal(format!("no result for `{name}`")))?.1;
            let found = download(stream, bench.space(), results[i].address, u.bytes as usize)?;
            if let Some((_, why)) = difference(&self.case, name, wanted, &found, expected, true) {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |b: &[u8]| u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
    bytes.chunks_exact(8).map(word).collect()
}

/// Bytes of each copy that keeps a stream busy, and how many there are.
const BUSY: (usize, usize) = (64 << 10, 8);
/// Launches of each op.
const ROUNDS: usize = 4;

/// Who tells that a launch is done, before its results are read on another stream.
const TELLING: [&str; 2] = ["a stream says that it is done", "an event says that it is done"];

/// Memory for one launch and what is queued around it.
struct Scene<'a> {
    prepared: Prepared<'a>,
    /// What each operand is to hold.
    content: Vec<Block<'a>>,
    /// What it holds before and after.
    garbage: Vec<Block<'a>>,
    /// What the launch has left there.
    results: Vec<Block<'a>>,
    busy: [Block<'a>; 2],
}

impl<'a> Scene<'a> {
    fn new(
        bench: &Bench<'_>,
        case: Case,
        expected: &Expected,
        allocator: &'a AllocatorHandle,
        stream: &StreamHandle,
    ) -> Result<Option<Scene<'a>>> {
        let Some(prepared) = Prepared::new(bench, case, &expected.schema, allocator)? else {
            return Ok(None);
        };
        let blocks = || -> Result<Vec<Block<'a>>> {
            prepared.uses.iter().map(|u| Block::new(allocator, u.bytes)).collect()
        };
        let (content, garbage, results) = (blocks()?, blocks()?, blocks()?);
        let busy = || Block::new(allocator, BUSY.0 as u64);
        let scene = Scene { content, garbage, results, busy: [busy()?, busy()?], prepared };
        let mut random = Random::new(bench.seed.wrapping_add(1));
        for (i, data) in expected.before.iter().enumerate() {
            upload(stream, bench.space(), scene.content[i].address, &data.bytes)?;
            let noise = noise(&mut random, data.bytes.len());
            upload(stream, bench.space(), scene.garbage[i].address, &noise)?;
        }
        Ok(Some(scene))
    }

    /// Queues copies of each operand from, or to, another block.
    fn copy(
        &self,
        bench: &Bench<'_>,
        stream: &StreamHandle,
        to: &[Block<'_>],
        from: &[Block<'_>],
    ) -> Result<()> {
        for (to, from) in to.iter().zip(from).filter(|(to, _)| to.bytes > 0) {
            // SAFETY: distinct blocks of one size, which outlive the stream.
            unsafe { move_bytes(stream, bench.space(), to.address, from.address, to.bytes) }?;
        }
        Ok(())
    }

    /// Queues copies that take a while.
    fn keep_busy(&self, bench: &Bench<'_>, stream: &StreamHandle) -> Result<()> {
        for i in 0..BUSY.1 {
            let (to, from) = (&self.busy[i % 2], &self.busy[1 - i % 2]);
            // SAFETY: as above.
            unsafe { move_bytes(stream, bench.space(), to.address, from.address, to.bytes) }?;
        }
        Ok(())
    }

    /// Queues the launch between copies of its operands: those before it write what it reads, those behind it read what
    /// it writes, and overwrite both.
    fn among_copies(&self, bench: &Bench<'_>, stream: &StreamHandle) -> Result<()> {
        let operands = &self.prepared.operands;
        self.copy(bench, stream, operands, &self.garbage)?;
        self.keep_busy(bench, stream)?;
        self.copy(bench, stream, operands, &self.content)?;
        self.prepared.launch(stream)?;
        self.copy(bench, stream, &self.results, operands)?;
        self.copy(bench, stream, operands, &self.garbage)
    }

    /// Launches last, and has another stream read what it has written as soon as it is said to be done.
    fn told(
        &self,
        bench: &Bench<'_>,
        (stream, reader): (&StreamHandle, &StreamHandle),
        by_event: bool,
    ) -> Result<()> {
        let operands = &self.prepared.operands;
        let event = bench.handle().create_event()?;
        self.copy(bench, stream, operands, &self.content)?;
        self.prepared.launch(stream)?;
        if by_event {
            stream.record(&event)?;
        }
        while !(if by_event { event.query() } else { stream.query() })? {
            std::hint::spin_loop();
        }
        let read = self.copy(bench, reader, &self.results, operands);
        let read = read.and(reader.sync());
        // Whatever they say, before the operands are used again.
        stream.sync().and(read)
    }
}

/// A launch whose operands are all there, each in memory of its own.
pub(super) fn plain(case: &Case) -> bool {
    case.absent.is_empty() && case.in_place.is_none() && case.shift == 0
}

fn among(bench: &Bench<'_>, key: &Key, case: Case) -> Result<bool> {
    let expected = Rig::new(bench.runtime, bench.device)?.expect(&case)?;
    if expected.schema.list_length().is_some() || !matches!(expected.after, Some(Ok(_))) {
        return Ok(false);
    }
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let open = || bench.handle().create_stream(StreamOptions::default());
    let ready = Scene::new(bench, case, &expected, &allocator, &open()?)?;
    let Some(scene) = ready else { return Ok(false) };
    let (stream, reader) = (open()?, open()?);
    for round in 0..ROUNDS {
        let queued = scene.among_copies(bench, &stream);
        let done = stream.sync();
        queued.and(done).map_err(|e| e.context(format!("{key}: round {round}, among copies")))?;
        if let Some(why) = scene.prepared.compare(bench, &expected, &scene.results, &reader)? {
            return wrong(format!(
                "{key}: round {round}: a launch and the copies around it on one stream were not done in that order: {why}"
            ));
        }
        let what = TELLING[round % TELLING.len()];
        scene.told(bench, (&stream, &reader), round % TELLING.len() == 1)?;
        if let Some(why) = scene.prepared.compare(bench, &expected, &scene.results, &reader)? {
            return wrong(format!(
                "{key}: round {round}: {what}, and another stream does not find its results: {why}"
            ));
        }
        if bench.handle().info().inline {
            scene.copy(bench, &stream, &scene.prepared.operands, &scene.content)?;
            scene.prepared.launch(&stream)?;
            if !stream.query()? {
                return wrong(format!(
                    "{key}: the device says that it is inline, and a launch is not done when it returns"
                ));
            }
        }
    }
    Ok(true)
}

pub(super) fn launches_and_copies(bench: &Bench<'_>) -> Result<Verdict> {
    let mut any = false;
    for key in one_of_each_op(bench) {
        if let Some(case) = launch_of(bench, &key, plain)? {
            any |= among(bench, &key, case)?;
        }
    }
    if any { Ok(Verdict::Pass) } else { Verdict::unsupported("no launch that the kit has a reference of") }
}
