//! Errors of work that a stream finds when it gets to it.

use super::Bench;
use super::block::{Block, download, move_bytes, noise, upload};
use super::launch::Prepared;
use crate::case::{Case, Key};
use crate::shapes::cases;
use crate::values::{Random, content};
use crate::verdict::{Verdict, wrong};
use ep_core::handle::{AllocatorHandle, StreamHandle};
use ep_core::provider::{MemoryKind, StreamOptions};
use ep_core::schema::Schema;
use ep_core::{Code, DType, Result};

/// Bytes that other work moves behind a launch.
const BYTES: usize = 4096;

/// A claimed combination that refuses indices out of range.
fn refusing(bench: &Bench<'_>) -> Option<Key> {
    let claimed = crate::predicates::advertised(bench.runtime, bench.device);
    let all = claimed.into_iter().filter(|(k, a)| k.has_reference() && !a.conditional());
    all.map(|(k, _)| k).find(|k| k.op.contains("gather") && k.selector("mode") == "error")
}

/// Makes a launch of a case, with its content; `None` where the provider has another way to it.
fn prepare<'a>(
    bench: &Bench<'_>,
    case: Case,
    schema: &Schema,
    allocator: &'a AllocatorHandle,
    stream: &StreamHandle,
) -> Result<Option<Prepared<'a>>> {
    let Some(prepared) = Prepared::new(bench, case, schema, allocator)? else { return Ok(None) };
    let mut random = Random::new(bench.seed);
    for (i, u) in prepared.uses.iter().enumerate() {
        let operand = &schema.operands[schema.operand_of(i)];
        let dtype = u.dtype.unwrap_or(DType::U8);
        let count = (u.bytes / dtype.bytes_for_bounds()) as usize;
        let data = content(&prepared.case, &operand.name, dtype, count, &mut random);
        upload(stream, bench.space(), prepared.operands[i].address, &data.bytes)?;
    }
    Ok(Some(prepared))
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
    let Some(bad) = prepare(bench, case, &schema, &allocator, &open()?)? else {
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
