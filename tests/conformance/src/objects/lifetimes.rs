//! Objects used from many threads, and destroyed in odd orders; cases that nothing would run.

use super::Bench;
use super::block::{Block, move_bytes, noise, upload};
use crate::case::{Case, Content, Key};
use crate::geometry::written;
use crate::rig::{Outcome, Rig};
use crate::shapes::cases;
use crate::values::Random;
use crate::verdict::{Verdict, wrong};
use ep_core::provider::{MemoryKind, StreamOptions};
use ep_core::{Code, Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;

/// Threads, each with a stream of its own.
const THREADS: u64 = 4;
/// Launches of each, begun together.
const ROUNDS: usize = 8;
/// A launch that writes as many elements as this, at least, is not tried.
const LARGE: u64 = 1 << 14;

/// A combination of each op, another one for each seed.
pub(super) fn one_of_each_op(bench: &Bench<'_>) -> Vec<Key> {
    let claimed = crate::predicates::advertised(bench.runtime, bench.device);
    let mut ops: BTreeMap<String, Vec<Key>> = BTreeMap::new();
    for (key, _) in claimed.into_iter().filter(|(k, a)| k.has_reference() && !a.conditional()) {
        ops.entry(key.op.clone()).or_default().push(key);
    }
    ops.into_values().map(|mut keys| keys.swap_remove((bench.seed % keys.len() as u64) as usize)).collect()
}

/// A launch of a key that suits: of those that write the most, and are not large.
pub(super) fn launch_of(bench: &Bench<'_>, key: &Key, suits: impl Fn(&Case) -> bool) -> Result<Option<Case>> {
    let schema = bench.runtime.schema(&key.op)?;
    let mut found: Option<(u64, Case)> = None;
    for case in cases(key, bench.seed) {
        let n = written(&case, &schema)?;
        let refused = case.far_index || case.name == "refused";
        if !refused && suits(&case) && n < LARGE && found.as_ref().is_none_or(|(most, _)| n > *most) {
            found = Some((n, case));
        }
    }
    Ok(found.map(|(_, case)| case))
}

/// Launches of one primitive at once, on a stream for each thread.
pub(super) fn one_primitive_on_many_streams(bench: &Bench<'_>) -> Result<Verdict> {
    let keys = one_of_each_op(bench);
    if keys.is_empty() {
        return Verdict::unsupported("the provider has no op that the kit has a reference of");
    }
    for key in &keys {
        // Each thread has content of its own, which an infinity in each row would hide.
        let tells = |case: &Case| case.content != Content::Infinite;
        let Some(case) = launch_of(bench, key, tells)? else { continue };
        let together = Barrier::new(THREADS as usize);
        let work = |thread: u64| -> Result<()> {
            let mut prepared = Rig::new(bench.runtime, bench.device).and_then(|mut rig| {
                let mut case = case.clone();
                case.set_seed(bench.seed.wrapping_add(1000 * (thread + 1)));
                let expected = rig.expect(&case)?;
                Ok((rig, case, expected))
            });
            let mut result = Ok(());
            for _ in 0..ROUNDS {
                // All wait for each other in every round, whatever has failed.
                together.wait();
                if let (Ok((rig, case, expected)), Ok(())) = (&mut prepared, &result) {
                    // Requests are alike, so the runtime hands every thread the same primitive.
                    result = rig.run_on_device(case, expected).and_then(|outcome| match outcome {
                        Outcome::Fail(why) => {
                            wrong(format!("beside a launch on another stream: {why} ({case})"))
                        }
                        _ => Ok(()),
                    });
                }
            }
            prepared.and(result)
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || work(t))).collect();
            let panicked = |_| Err(Error::internal("a thread panicked"));
            threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(panicked))
        })?;
    }
    Ok(Verdict::Pass)
}

/// Half of the memory that a stream moves when it is destroyed.
const HALF: u64 = 1 << 19;

pub(super) fn odd_orders(bench: &Bench<'_>) -> Result<Verdict> {
    let handle = bench.handle();
    let open = || handle.create_stream(StreamOptions::default());
    // Events before and after the streams that recorded them, or wait for them.
    let (first, second) = (open()?, open()?);
    let (early, late) = (handle.create_event()?, handle.create_event()?);
    first.record(&early)?;
    second.wait(&early)?;
    first.record(&late)?;
    drop(early);
    drop(first);
    late.sync()?;
    second.wait(&late)?;
    drop(second);
    if !late.query()? {
        return wrong("an event is not done although the stream that recorded it was destroyed, which waits");
    }
    drop(late);
    // A stream with work on it: destroying it waits.
    let allocator = handle.open_allocator(MemoryKind::Device)?;
    let (a, b) = (Block::new(&allocator, 1 << 20)?, Block::new(&allocator, 1 << 20)?);
    let data = noise(&mut Random::new(bench.seed), 1 << 20);
    let (busy, reader) = (open()?, open()?);
    upload(&busy, bench.space(), a.address, &data)?;
    // SAFETY: distinct blocks that outlive the stream, which waits when it is destroyed.
    unsafe {
        // The last of them is still queued when the first ones run.
        for _ in 0..8 {
            move_bytes(&busy, bench.space(), b.address, b.address + HALF, HALF)?;
        }
        move_bytes(&busy, bench.space(), b.address, a.address, 1 << 20)?;
    }
    drop(busy);
    if super::block::download(&reader, bench.space(), b.address, 1 << 20)? != data {
        return wrong("a stream was destroyed before its work was done");
    }
    // An allocator, opened and closed beside another one in use, and a device opened twice.
    drop(handle.open_allocator(MemoryKind::Device)?);
    a.free()?;
    b.free()?;
    drop(allocator);
    reader.sync()?;
    let again = handle.provider().open(0)?;
    drop(again.create_stream(StreamOptions::default())?);
    drop(again);
    reader.sync()?;
    // A primitive without any launch, and one that outlives its stream.
    let claimed = crate::predicates::advertised(bench.runtime, bench.device);
    if let Some((key, _)) = claimed.iter().find(|(k, a)| k.has_reference() && !a.conditional()) {
        let mut rig = Rig::new(bench.runtime, bench.device)?;
        let mut all = cases(key, bench.seed);
        let case = all.swap_remove(2);
        let expected = rig.expect(&case)?;
        if let Outcome::Fail(why) = rig.run_on_device(&case, &expected)? {
            return wrong(format!("{why} ({case})"));
        }
    }
    Ok(Verdict::Pass)
}

/// Cases of a vendor are run with the combination that they are of; here those that are of none are found.
pub(super) fn cases_of_the_vendor(bench: &Bench<'_>) -> Result<Verdict> {
    let claimed = crate::predicates::advertised(bench.runtime, bench.device);
    let mut found = 0;
    for op in claimed.keys().map(|key| &key.op).collect::<BTreeSet<_>>() {
        for (case, _) in crate::vendor::known(bench.runtime, bench.device, op, bench.seed)? {
            if !claimed.contains_key(&case.key) {
                return wrong(format!("a case for {}, which the provider does not claim: {case}", case.key));
            }
            found += 1;
        }
    }
    match found {
        0 => Verdict::unsupported("the provider brings no cases of its own (ep.conformance)"),
        _ => Ok(Verdict::Pass),
    }
}

pub(super) fn foreign_streams(bench: &Bench<'_>) -> Result<Verdict> {
    let handle = bench.handle();
    if !handle.has_foreign_streams() {
        return Verdict::unsupported("the device offers no ep.foreign_stream");
    }
    let allocator = handle.open_allocator(MemoryKind::Device)?;
    let blocks = (0..3).map(|_| Block::new(&allocator, 4096)).collect::<Result<Vec<_>>>()?;
    let own = handle.create_stream(StreamOptions::default())?;
    let (kind, native) = handle.native_stream(&own)?;
    if kind.is_empty() {
        return wrong("a native stream has no kind");
    }
    // SAFETY: the native stream of `own`, which is dropped after the adopted one.
    let adopted = unsafe { handle.adopt_stream(&kind, native) }?;
    let data = noise(&mut Random::new(bench.seed), 4096);
    upload(&own, bench.space(), blocks[0].address, &data)?;
    // SAFETY: distinct blocks, which outlive both streams, which are one queue.
    unsafe {
        move_bytes(&own, bench.space(), blocks[1].address, blocks[0].address, 4096)?;
        move_bytes(&adopted, bench.space(), blocks[2].address, blocks[1].address, 4096)?;
    }
    let found = super::block::download(&adopted, bench.space(), blocks[2].address, 4096)?;
    own.sync()?;
    if found != data {
        return wrong("work on an adopted stream is not behind that of the stream it was adopted from");
    }
    // SAFETY: no kind of handle is called so, and a provider says so before it looks at the handle.
    match unsafe { handle.adopt_stream("acme-no-such-kind", native) } {
        Err(e) if matches!(e.code(), Code::Unsupported | Code::InvalidArgument) => {}
        Err(e) => return wrong(format!("a handle of an unknown kind is refused with {:?}: {e}", e.code())),
        Ok(_) => return wrong("a handle of an unknown kind was adopted"),
    }
    drop(adopted);
    own.sync()?;
    Ok(Verdict::Pass)
}
