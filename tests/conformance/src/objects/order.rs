//! Streams and events.

use super::Bench;
use super::block::{Block, download, move_bytes, noise, upload};
use crate::values::Random;
use crate::verdict::{Verdict, wrong};
use ep_core::handle::{EventHandle, StreamHandle};
use ep_core::provider::inline::HOST_SPACE;
use ep_core::provider::{CopyRequest, MemoryKind, StreamOptions};
use ep_core::{Code, Result};
use std::time::{Duration, Instant};

/// Bytes of a link of a chain of copies: enough that one takes a while.
const LINK: usize = 64 << 10;

fn stream(bench: &Bench<'_>) -> Result<StreamHandle> {
    bench.handle().create_stream(StreamOptions::default())
}

pub(super) fn streams(bench: &Bench<'_>) -> Result<Verdict> {
    let many = (0..8).map(|_| stream(bench)).collect::<Result<Vec<_>>>()?;
    for stream in &many {
        if !stream.query()? {
            return wrong("a stream without any work is not done");
        }
        stream.sync()?;
        stream.sync()?;
    }
    for priority in [-1, 1, i64::MIN, i64::MAX] {
        // A priority is a wish: whatever it is, there is a stream.
        bench.handle().create_stream(StreamOptions { priority })?.sync()?;
    }
    Ok(Verdict::Pass)
}

pub(super) fn events(bench: &Bench<'_>) -> Result<Verdict> {
    let (stream, event) = (stream(bench)?, bench.handle().create_event()?);
    if !event.query()? {
        return wrong("an event that was never recorded is not done");
    }
    event.sync()?;
    // To wait for it holds nobody up.
    stream.wait(&event)?;
    stream.sync()?;
    stream.record(&event)?;
    event.sync()?;
    if !event.query()? {
        return wrong("an event is not done after it was awaited");
    }
    stream.sync()?;
    if !stream.query()? {
        return wrong("a stream is not done after it was awaited");
    }
    Ok(Verdict::Pass)
}

/// A chain of copies through blocks: the last one has the first one's content when all of it is done in order.
fn chain(stream: &StreamHandle, space: &str, blocks: &[Block<'_>]) -> Result<()> {
    for pair in blocks.windows(2) {
        // SAFETY: distinct blocks, which the callers keep longer than the stream.
        unsafe { move_bytes(stream, space, pair[1].address, pair[0].address, LINK as u64) }?;
    }
    Ok(())
}

pub(super) fn order_on_a_stream(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let blocks = (0..8).map(|_| Block::new(&allocator, LINK as u64)).collect::<Result<Vec<_>>>()?;
    let stream = stream(bench)?;
    let mut random = Random::new(bench.seed);
    for _ in 0..8 {
        let data = noise(&mut random, LINK);
        upload(&stream, bench.space(), blocks[0].address, &data)?;
        // Copies alone, with no wait in between; the second pass must not overtake the first.
        chain(&stream, bench.space(), &blocks)?;
        chain(&stream, bench.space(), &blocks)?;
        if download(&stream, bench.space(), blocks[7].address, LINK)? != data {
            return wrong("copies that were queued one after the other were not done in that order");
        }
    }
    Ok(Verdict::Pass)
}

/// Copies of different sizes between host and device, each behind a chain that has not come to its memory yet.
pub(super) fn copies_behind_work(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let blocks = (0..8).map(|_| Block::new(&allocator, LINK as u64)).collect::<Result<Vec<_>>>()?;
    let target = Block::new(&allocator, LINK as u64)?;
    let stream = stream(bench)?;
    let mut random = Random::new(bench.seed.wrapping_add(3));
    for bytes in [1, 4, 64, 65, 1000, LINK] {
        let (data, new) = (noise(&mut random, LINK), noise(&mut random, bytes));
        upload(&stream, bench.space(), blocks[0].address, &data)?;
        chain(&stream, bench.space(), &blocks)?;
        let from = new.as_ptr().expose_provenance() as u64;
        // SAFETY: distinct blocks with room, which outlive the stream, and host memory that lives until the downloads have
        // waited, which they do also where they fail.
        unsafe {
            // What the copy overwrites is read before it, at the end of the chain.
            move_bytes(&stream, bench.space(), target.address, blocks[7].address, LINK as u64)?;
            stream.copy(CopyRequest {
                dst: blocks[7].address,
                dst_space: bench.space(),
                src: from,
                src_space: HOST_SPACE,
                bytes: bytes as u64,
            })?;
        }
        let before = download(&stream, bench.space(), target.address, LINK)?;
        let after = download(&stream, bench.space(), blocks[7].address, LINK)?;
        if before != data || after[..bytes] != new || after[bytes..] != data[bytes..] {
            return wrong(format!(
                "a copy of {bytes} bytes to the device was not behind the work queued before it"
            ));
        }
    }
    Ok(Verdict::Pass)
}

/// What tells that work is done.
type Done = fn(&StreamHandle, &EventHandle) -> Result<bool>;

/// As soon as a stream or an event says that work is done, its results are there.
pub(super) fn done_means_done(bench: &Bench<'_>) -> Result<Verdict> {
    const TELLING: [(&str, Done); 3] = [
        ("a stream says that it is done", |stream, _| stream.query()),
        ("an event says that it is done", |_, event| event.query()),
        ("an event was awaited", |_, event| event.sync().map(|()| true)),
    ];
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    // Both outlive the stream, which waits for the copies when it is destroyed.
    let (block, mut found) = (Block::new(&allocator, LINK as u64)?, vec![0u8; LINK]);
    let (stream, event) = (stream(bench)?, bench.handle().create_event()?);
    let mut random = Random::new(bench.seed.wrapping_add(4));
    for round in 0..24 {
        let (what, done) = TELLING[round % TELLING.len()];
        let data = noise(&mut random, LINK);
        upload(&stream, bench.space(), block.address, &data)?;
        found.fill(0);
        let to = found.as_mut_ptr();
        // SAFETY: the block, and host memory that outlives the stream, and is used again after the wait below.
        unsafe {
            stream.copy(CopyRequest {
                dst: to.expose_provenance() as u64,
                dst_space: HOST_SPACE,
                src: block.address,
                src_space: bench.space(),
                bytes: LINK as u64,
            })
        }?;
        // Behind a record the copy would not be the stream's last work.
        if round % TELLING.len() != 0 {
            stream.record(&event)?;
        }
        while !done(&stream, &event)? {
            std::hint::spin_loop();
        }
        // SAFETY: bytes of the vector above; a device that is not done may still write them.
        let seen: Vec<u8> = (0..LINK).map(|i| unsafe { to.add(i).read_volatile() }).collect();
        stream.sync()?;
        if seen != data {
            return wrong(format!("round {round}: {what}, and the results of its work are not there"));
        }
    }
    Ok(Verdict::Pass)
}

pub(super) fn joined_by_an_event(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let blocks = (0..8).map(|_| Block::new(&allocator, LINK as u64)).collect::<Result<Vec<_>>>()?;
    let target = Block::new(&allocator, LINK as u64)?;
    let (first, second) = (stream(bench)?, stream(bench)?);
    let (event, back) = (bench.handle().create_event()?, bench.handle().create_event()?);
    let mut random = Random::new(bench.seed.wrapping_add(1));
    for round in 0..16 {
        let data = noise(&mut random, LINK);
        upload(&first, bench.space(), blocks[0].address, &data)?;
        chain(&first, bench.space(), &blocks)?;
        first.record(&event)?;
        second.wait(&event)?;
        // SAFETY: distinct blocks that outlive the streams.
        unsafe { move_bytes(&second, bench.space(), target.address, blocks[7].address, LINK as u64) }?;
        second.record(&back)?;
        first.wait(&back)?;
        // What the first stream does to the source now comes after the second has read it.
        // SAFETY: as above.
        unsafe { move_bytes(&first, bench.space(), blocks[7].address, blocks[6].address, LINK as u64) }?;
        let found = download(&second, bench.space(), target.address, LINK)?;
        first.sync()?;
        if found != data {
            return wrong(format!(
                "round {round}: a stream that waited for an event read what was there before it"
            ));
        }
    }
    Ok(Verdict::Pass)
}

pub(super) fn recorded_twice(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let blocks = (0..6).map(|_| Block::new(&allocator, LINK as u64)).collect::<Result<Vec<_>>>()?;
    let target = Block::new(&allocator, LINK as u64)?;
    let (first, second) = (stream(bench)?, stream(bench)?);
    let event = bench.handle().create_event()?;
    let mut random = Random::new(bench.seed.wrapping_add(2));
    for round in 0..8 {
        let data = noise(&mut random, LINK);
        first.record(&event)?;
        upload(&first, bench.space(), blocks[0].address, &data)?;
        chain(&first, bench.space(), &blocks)?;
        // The latest record counts, and this one is behind the chain.
        first.record(&event)?;
        second.wait(&event)?;
        // SAFETY: distinct blocks that outlive the streams.
        unsafe { move_bytes(&second, bench.space(), target.address, blocks[5].address, LINK as u64) }?;
        event.sync()?;
        let found = download(&second, bench.space(), target.address, LINK)?;
        first.sync()?;
        if found != data {
            return wrong(format!(
                "round {round}: a wait was for an earlier record of the event, not the latest"
            ));
        }
    }
    Ok(Verdict::Pass)
}

pub(super) fn event_of_another_device(bench: &Bench<'_>) -> Result<Verdict> {
    let own = bench.device.name();
    let Some(other) = bench.runtime.devices().iter().find(|d| d.name() != own) else {
        return Verdict::unsupported("the provider has one device here");
    };
    let other = other.members()[0].handle();
    let (here, there) = (stream(bench)?, other.create_stream(StreamOptions::default())?);
    let event = other.create_event()?;
    there.record(&event)?;
    here.wait(&event)?;
    here.sync()?;
    there.sync()?;
    Ok(Verdict::Pass)
}

pub(super) fn timing(bench: &Bench<'_>) -> Result<Verdict> {
    let (start, end) = (bench.handle().create_event()?, bench.handle().create_event()?);
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let blocks = (0..4).map(|_| Block::new(&allocator, LINK as u64)).collect::<Result<Vec<_>>>()?;
    let stream = stream(bench)?;
    stream.record(&start)?;
    let data = noise(&mut Random::new(bench.seed), LINK);
    upload(&stream, bench.space(), blocks[0].address, &data)?;
    chain(&stream, bench.space(), &blocks)?;
    stream.record(&end)?;
    stream.sync()?;
    match bench.handle().elapsed(&start, &end) {
        // A day: whatever the clock's unit, it is none that fits.
        Ok(ns) if ns > 86_400_000_000_000 => wrong(format!("{ns} ns passed between two events")),
        Ok(_) => match bench.handle().elapsed(&start, &start) {
            Ok(0) => clock(bench, &stream, &start, &end),
            Ok(ns) => wrong(format!("{ns} ns passed between an event and itself")),
            Err(e) => Err(e),
        },
        Err(e) if e.code() == Code::Unsupported => Verdict::unsupported(e.to_string()),
        Err(e) => Err(e),
    }
}

/// Compares the time between two events with that of the host, in which both are recorded and done. Clocks differ, and a
/// device may stamp an event a little before or behind its work, but not by a factor of ten.
fn clock(
    bench: &Bench<'_>,
    stream: &StreamHandle,
    start: &EventHandle,
    end: &EventHandle,
) -> Result<Verdict> {
    const PAUSE: Duration = Duration::from_millis(30);
    let outer = Instant::now();
    stream.record(start)?;
    start.sync()?;
    let inner = Instant::now();
    std::thread::sleep(PAUSE);
    let least = inner.elapsed();
    stream.record(end)?;
    end.sync()?;
    let most = outer.elapsed();
    let ns = u128::from(bench.handle().elapsed(start, end)?);
    if ns < least.as_nanos() / 10 || ns > most.as_nanos() * 10 {
        let (least, most) = (least.as_nanos(), most.as_nanos());
        return wrong(format!(
            "{ns} ns passed between two events, says the device; between {least} and {most}, says the host's clock"
        ));
    }
    Ok(Verdict::Pass)
}
