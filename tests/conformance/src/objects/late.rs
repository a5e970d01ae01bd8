//! Errors of work that a stream finds when it gets to it.

use super::Bench;
use super::block::{Block, download, move_bytes, noise, upload};
use crate::case::{Case, Key};
use crate::geometry::{arguments, descriptor, uses};
use crate::shapes::cases;
use crate::values::{Random, content};
use crate::verdict::{Verdict, wrong};
use ep_core::handle::{AllocatorHandle, PrimitiveHandle, StreamHandle};
use ep_core::provider::{MemoryKind, StreamOptions};
use ep_core::schema::Schema;
use ep_core::{Code, DType, Result};

/// Bytes that other work moves behind a launch.
const BYTES: usize = 4096;

/// A launch with an index out of range, ready.
struct Bad<'a> {
    primitive: PrimitiveHandle,
    arguments: Vec<u64>,
    /// What the arguments point to.
    _case: Case,
    _operands: Vec<Block<'a>>,
}

impl Bad<'_> {
    fn launch(&self, stream: &StreamHandle) -> Result<()> {
        // SAFETY: arguments of the op, whose lists and buffers live as long as this, and longer than the stream.
        unsafe { self.primitive.launch(stream, self.arguments.as_ptr().cast()) }
    }
}

/// A claimed combination that refuses indices out of range.
fn refusing(bench: &Bench<'_>) -> Option<Key> {
    let claimed = crate::predicates::advertised(bench.runtime, bench.device);
    let all = claimed.into_iter().filter(|(k, a)| k.has_reference() && !a.conditional());
    all.map(|(k, _)| k).find(|k| k.op.contains("gather") && k.selector("mode") == "error")
}

/// Makes the launch of a case of a key; `None` where the provider has another way to it.
fn prepare<'a>(
    bench: &Bench<'_>,
    key: &Key,
    case: Case,
    schema: &Schema,
    allocator: &'a AllocatorHandle,
    stream: &StreamHandle,
) -> Result<Option<Bad<'a>>> {
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
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes
            .chunks_exact(8)
            .map(|b| u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect()
    };
    let mut desc = words(&descriptor(key, schema)?);
    desc[0] = schema.desc_size as u64;
    // SAFETY: a descriptor of the op for a row of the factory.
    let primitive = unsafe { factory.create(bench.handle(), desc.as_ptr().cast()) }?;
    let mut args = words(&arguments(&case, schema)?);
    args[0] = schema.args_size as u64;
    let mut random = Random::new(bench.seed);
    let mut operands = Vec::new();
    for (i, u) in uses(&case, schema)?.iter().enumerate() {
        let operand = &schema.operands[schema.operand_of(i)];
        let dtype = u.dtype.unwrap_or(DType::U8);
        let block = Block::new(allocator, u.bytes)?;
        let count = (u.bytes / dtype.bytes_for_bounds()) as usize;
        let data = content(&case, &operand.name, dtype, count, &mut random);
        upload(stream, bench.space(), block.address, &data.bytes)?;
        args[schema.args[operand.arg].offset / 8] = block.address;
        operands.push(block);
    }
    Ok(Some(Bad { primitive, arguments: args, _case: case, _operands: operands }))
}

/// Checks that a stream reports an error once, whatever work follows, and goes on.
pub(super) fn errors(bench: &Bench<'_>) -> Result<Verdict> {
    let Some(key) = refusing(bench) else {
        return Verdict::unsupported("the provider has no gather that refuses indices");
    };
    let schema = bench.runtime.schema(&key.op)?;
    let Some(case) = cases(&key, bench.seed).into_iter().find(|c| c.name == "refused") else {
        return Verdict::unsupported("no case of it is to be refused");
    };
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let open = || bench.handle().create_stream(StreamOptions::default());
    let Some(bad) = prepare(bench, &key, case, &schema, &allocator, &open()?)? else {
        return Verdict::unsupported("its factories have conditions");
    };
    let (a, b) = (Block::new(&allocator, BYTES as u64)?, Block::new(&allocator, BYTES as u64)?);
    let stream = open()?;
    let mut random = Random::new(bench.seed.wrapping_add(1));
    for followed in [false, true, false, true] {
        let data = noise(&mut random, BYTES);
        upload(&stream, bench.space(), a.address, &data)?;
        let at_the_call = bad.launch(&stream);
        if followed {
            // SAFETY: distinct blocks that outlive the stream.
            unsafe { move_bytes(&stream, bench.space(), b.address, a.address, BYTES as u64) }?;
        }
        let (first, second) = (stream.sync(), stream.sync());
        let behind = if followed { "an index out of range, then a copy" } else { "an index out of range" };
        match (at_the_call, first) {
            (Err(e), Ok(())) | (Ok(()), Err(e)) if e.code() == Code::InvalidArgument => {}
            (Ok(()), Ok(())) => {
                return wrong(format!("{behind}: neither the launch nor the next sync reports it"));
            }
            (Err(_), Err(e)) => {
                return wrong(format!("{behind}: reported at the call, and by the sync too: {e}"));
            }
            (Err(e), _) | (_, Err(e)) => {
                return wrong(format!("{behind}: reported as {:?}: {e}", e.code()));
            }
        }
        if let Err(e) = second {
            return wrong(format!("{behind}: reported by a second sync too: {e}"));
        }
        if followed && download(&stream, bench.space(), b.address, BYTES)? != data {
            return wrong(format!("{behind}: the copy was not done"));
        }
    }
    Ok(Verdict::Pass)
}
