//! Recorded work: graphs of copies and of launches.

use super::Bench;
use super::block::{Block, download, move_bytes, noise, upload};
use crate::rig::{Outcome, Rig};
use crate::shapes::cases;
use crate::values::Random;
use crate::verdict::{Verdict, expect_error, wrong};
use ep_core::handle::{AllocatorHandle, GraphHandle, StreamHandle};
use ep_core::provider::{MemoryKind, StreamOptions};
use ep_core::{Code, Result};
use std::collections::BTreeSet;

/// Copies, or launches, of a recording.
const STEPS: usize = 20;
/// Bytes of each copy.
const LINK: usize = 4096;
/// Ops whose launches are recorded at most; more would show no more.
const MOST_OPS: usize = 6;

fn unsupported() -> Result<Verdict> {
    Verdict::unsupported("the device offers no ep.graph")
}

fn stream(bench: &Bench<'_>) -> Result<StreamHandle> {
    bench.handle().create_stream(StreamOptions::default())
}

fn blocks(allocator: &AllocatorHandle) -> Result<Vec<Block<'_>>> {
    (0..=STEPS).map(|_| Block::new(allocator, LINK as u64)).collect()
}

/// Copies each block to the next one.
fn chain(stream: &StreamHandle, space: &str, blocks: &[Block<'_>]) -> Result<()> {
    for pair in blocks.windows(2) {
        // SAFETY: distinct blocks, which the callers keep until the work, recorded or not, has been awaited, or the streams
        // have been destroyed.
        unsafe { move_bytes(stream, space, pair[1].address, pair[0].address, LINK as u64) }?;
    }
    Ok(())
}

fn recorded(stream: &StreamHandle, space: &str, blocks: &[Block<'_>]) -> Result<GraphHandle> {
    stream.begin_recording()?;
    chain(stream, space, blocks)?;
    stream.end_recording()
}

/// Writes to the first block, launches, and compares the last one.
fn replay(
    bench: &Bench<'_>,
    graph: &mut GraphHandle,
    stream: &StreamHandle,
    (first, last): (&Block<'_>, &Block<'_>),
    random: &mut Random,
) -> Result<bool> {
    let data = noise(random, LINK);
    upload(stream, bench.space(), first.address, &data)?;
    // SAFETY: the callers keep the blocks longer than the stream; what came before on other streams has been awaited.
    unsafe { graph.launch(stream) }?;
    Ok(download(stream, bench.space(), last.address, LINK)? == data)
}

pub(super) fn copies(bench: &Bench<'_>) -> Result<Verdict> {
    if !bench.handle().has_graphs() {
        return unsupported();
    }
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let blocks = blocks(&allocator)?;
    let (first, second) = (stream(bench)?, stream(bench)?);
    let mut random = Random::new(bench.seed);
    let (before, data) = (noise(&mut random, LINK), noise(&mut random, LINK));
    upload(&first, bench.space(), blocks[STEPS].address, &before)?;
    upload(&first, bench.space(), blocks[0].address, &data)?;
    let mut graph = recorded(&first, bench.space(), &blocks)?;
    if download(&first, bench.space(), blocks[STEPS].address, LINK)? != before {
        return wrong("what was recorded was done before the graph was launched");
    }
    for (round, stream) in [&first, &second, &first].into_iter().enumerate() {
        if !replay(bench, &mut graph, stream, (&blocks[0], &blocks[STEPS]), &mut random)? {
            return wrong(format!(
                "launch {round} of a graph of {STEPS} copies left something else than the copies do"
            ));
        }
    }
    // Two launches without a wait between them, on memory of which the second needs what the first has done.
    let data = noise(&mut random, LINK);
    let mut backward: Vec<_> = blocks.iter().map(|b| b.address).collect();
    backward.reverse();
    upload(&first, bench.space(), blocks[0].address, &data)?;
    first.begin_recording()?;
    for pair in backward.windows(2) {
        // SAFETY: distinct blocks, which outlive the stream.
        unsafe { move_bytes(&first, bench.space(), pair[1], pair[0], LINK as u64) }?;
    }
    let mut back = first.end_recording()?;
    upload(&first, bench.space(), blocks[STEPS / 2].address, &before)?;
    // SAFETY: one stream orders both; the blocks outlive it.
    unsafe {
        graph.launch(&first)?;
        back.launch(&first)?;
    }
    if download(&first, bench.space(), blocks[0].address, LINK)? != data
        || download(&first, bench.space(), blocks[STEPS / 2].address, LINK)? != data
    {
        return wrong("launches of two graphs on one stream were not done in their order");
    }
    Ok(Verdict::Pass)
}

pub(super) fn update(bench: &Bench<'_>) -> Result<Verdict> {
    if !bench.handle().has_graphs() {
        return unsupported();
    }
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let (old, new) = (blocks(&allocator)?, blocks(&allocator)?);
    let stream = stream(bench)?;
    let mut random = Random::new(bench.seed.wrapping_add(1));
    let mut graph = recorded(&stream, bench.space(), &old)?;
    let untouched = noise(&mut random, LINK);
    upload(&stream, bench.space(), old[STEPS].address, &untouched)?;
    // As many copies, on other memory; then fewer; then nothing; then as many as at first.
    for steps in [STEPS, STEPS / 2, 0, STEPS] {
        stream.begin_recording()?;
        chain(&stream, bench.space(), &new[..=steps])?;
        graph.update(&stream)?;
        if !replay(bench, &mut graph, &stream, (&new[0], &new[steps]), &mut random)? {
            return wrong(format!("a graph that was updated with {steps} copies does not do them"));
        }
    }
    if download(&stream, bench.space(), old[STEPS].address, LINK)? != untouched {
        return wrong("a graph that was updated still does what it was made of");
    }
    Ok(Verdict::Pass)
}

pub(super) fn refusals(bench: &Bench<'_>) -> Result<Verdict> {
    if !bench.handle().has_graphs() {
        return unsupported();
    }
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let blocks = blocks(&allocator)?;
    let (own, other) = (stream(bench)?, stream(bench)?);
    let event = bench.handle().create_event()?;
    let mut random = Random::new(bench.seed.wrapping_add(2));
    let invalid = |what: &str, result: Result<()>| expect_error(what, result, &[Code::InvalidArgument]);
    invalid("the end of a recording that never began", own.end_recording().map(drop))?;
    let mut graph = recorded(&other, bench.space(), &blocks[..2])?;
    invalid("an update from a stream that does not record", graph.update(&other).map(drop))?;
    own.begin_recording()?;
    chain(&own, bench.space(), &blocks[..=STEPS / 2])?;
    invalid("waiting for a stream that records", own.sync())?;
    invalid("asking a stream that records whether it is done", own.query().map(drop))?;
    invalid("recording an event on a stream that records a graph", own.record(&event))?;
    invalid("a wait for an event on a stream that records a graph", own.wait(&event))?;
    invalid("a second recording on a stream", own.begin_recording())?;
    // SAFETY: it is refused; else its blocks live.
    invalid("the launch of a graph on a stream that records", unsafe { graph.launch(&own) })?;
    // Neither memory nor other streams are concerned.
    let beside = Block::new(&allocator, LINK as u64)?;
    let data = noise(&mut random, LINK);
    upload(&other, bench.space(), beside.address, &data)?;
    other.record(&event)?;
    event.sync()?;
    if download(&other, bench.space(), beside.address, LINK)? != data {
        return wrong("a copy on another stream was not done while one records");
    }
    beside.free()?;
    chain(&own, bench.space(), &blocks[STEPS / 2..])?;
    let mut graph = own.end_recording().map_err(|e| e.context("a refused call has spoilt the recording"))?;
    own.sync()?;
    if !replay(bench, &mut graph, &own, (&blocks[0], &blocks[STEPS]), &mut random)? {
        return wrong("a recording with refused calls in it has lost something, or holds them");
    }
    Ok(Verdict::Pass)
}

pub(super) fn odd_orders(bench: &Bench<'_>) -> Result<Verdict> {
    if !bench.handle().has_graphs() {
        return unsupported();
    }
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let blocks = blocks(&allocator)?;
    let (first, second, reader) = (stream(bench)?, stream(bench)?, stream(bench)?);
    let mut random = Random::new(bench.seed.wrapping_add(3));
    let data = noise(&mut random, LINK);
    upload(&reader, bench.space(), blocks[0].address, &data)?;
    // A graph that is never launched; one that outlives its stream; a stream that is destroyed while it records.
    drop(recorded(&first, bench.space(), &blocks)?);
    let mut graph = recorded(&first, bench.space(), &blocks)?;
    first.begin_recording()?;
    chain(&first, bench.space(), &blocks[..2])?;
    drop(first);
    // SAFETY: the blocks outlive the stream, which waits when it is destroyed.
    unsafe { graph.launch(&second) }?;
    // Destroyed with its launch still queued, and the stream with it.
    drop(graph);
    drop(second);
    if download(&reader, bench.space(), blocks[STEPS].address, LINK)? != data {
        return wrong("a graph was destroyed, and its last launch was not done");
    }
    // Memory that a graph uses may be freed before it, if it is not launched again.
    let graph = recorded(&reader, bench.space(), &blocks)?;
    for block in blocks {
        block.free()?;
    }
    drop(graph);
    reader.sync()?;
    Ok(Verdict::Pass)
}

pub(super) fn launches(bench: &Bench<'_>) -> Result<Verdict> {
    if !bench.handle().has_graphs() {
        return unsupported();
    }
    let mut rig = Rig::new(bench.runtime, bench.device)?;
    let mut ops = BTreeSet::new();
    for (key, advertised) in crate::predicates::advertised(bench.runtime, bench.device) {
        if ops.len() >= MOST_OPS || ops.contains(&key.op) || !key.has_reference() || advertised.conditional()
        {
            continue;
        }
        for case in cases(&key, bench.seed).into_iter().take(4) {
            let expected = rig.expect(&case)?;
            let Some(outcome) = rig.run_recorded(&case, &expected, STEPS)? else { continue };
            if let Outcome::Fail(why) = outcome {
                return wrong(format!(
                    "{STEPS} launches recorded into a graph that was launched twice: {why} ({case})"
                ));
            }
            ops.insert(key.op.clone());
        }
    }
    if ops.is_empty() {
        return Verdict::unsupported("no launch that the kit could record is capturable");
    }
    Ok(Verdict::Pass)
}
