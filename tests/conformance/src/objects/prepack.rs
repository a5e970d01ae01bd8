//! Operands in the form that a primitive reads fastest.

use super::Bench;
use super::block::{Block, download, noise, upload};
use super::launch::{Prepared, plain};
use crate::case::Case;
use crate::geometry::uses;
use crate::rig::{Expected, Rig};
use crate::shapes::cases;
use crate::values::Random;
use crate::verdict::{Verdict, expect_error, wrong};
use ep_core::handle::{AllocatorHandle, PackedHandle, StreamHandle};
use ep_core::provider::{MemoryKind, StreamOptions};
use ep_core::schema::Schema;
use ep_core::{Code, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes behind a packed operand that are watched.
const BEHIND: usize = 256;
/// What an address that is not looked at is.
const NOWHERE: u64 = 64;
/// Larger than what kernels need to gain by packing: rows and columns of what is packed. Kept small enough for the reference.
const SIDES: [i64; 2] = [70, 131];
/// And rows of what is not packed.
const ROWS: [i64; 3] = [1, 3, 100];
/// Launches with a packed operand; more would show little more.
const MOST: usize = 64;

fn unsupported() -> Result<Verdict> {
    Verdict::unsupported("the device offers no ep.prepack")
}

/// A launch with an operand that may be packed.
struct Scene<'a> {
    prepared: Prepared<'a>,
    schema: Arc<Schema>,
    /// Where each operand's address stands.
    places: Vec<usize>,
}

impl<'a> Scene<'a> {
    fn new(bench: &Bench<'_>, case: Case, allocator: &'a AllocatorHandle) -> Result<Option<Scene<'a>>> {
        let schema = bench.runtime.schema(&case.key.op)?;
        if schema.list_length().is_some() || case.far_index || case.name == "refused" {
            return Ok(None);
        }
        let places = schema.operands.iter().map(|x| schema.args[x.arg].offset / 8).collect();
        let prepared = Prepared::new(bench, case, &schema, allocator)?;
        Ok(prepared.map(|prepared| Scene { prepared, schema, places }))
    }

    /// Operands that may be packed.
    fn candidates(&self) -> impl Iterator<Item = usize> {
        let uses = &self.prepared.uses;
        (0..uses.len()).filter(|i| uses[*i].present && !uses[*i].writes && uses[*i].bytes > 0)
    }

    fn name(&self, operand: usize) -> &str {
        &self.schema.operands[operand].name
    }

    /// The arguments with other addresses for operands.
    fn arguments(&self, address: impl Fn(usize) -> u64) -> Vec<u64> {
        let mut words = self.prepared.arguments.clone();
        for (i, place) in self.places.iter().enumerate() {
            words[*place] = address(i);
        }
        words
    }

    /// Arguments with 1 for each size that does not count for an operand, as the op's schema says.
    fn alone(&self, operand: usize, mut words: Vec<u64>) -> Result<Vec<u64>> {
        let counting = counting(self, operand)?;
        for field in &self.schema.args {
            let own = self.prepared.case.sizes.iter().any(|(name, value)| *name == field.name && *value > 0);
            if own && !counting.iter().any(|(name, _)| *name == field.name) {
                words[field.offset / 8] = 1;
            }
        }
        Ok(words)
    }

    fn size(&self, operand: usize, words: &[u64]) -> Result<u64> {
        // SAFETY: arguments of the op, with the lists of the case.
        unsafe { self.prepared.primitive.packed_size(operand, words.as_ptr().cast()) }
    }

    /// Packs, with the addresses of all other operands elsewhere, and with 1 for sizes that do not count for it.
    fn pack(&self, stream: &StreamHandle, operand: usize, to: u64) -> Result<PackedHandle> {
        let own = self.prepared.operands[operand].address;
        let words = self.alone(operand, self.arguments(|i| if i == operand { own } else { NOWHERE }))?;
        // SAFETY: arguments of the op, with the lists of the case; operand and room live longer than the streams, the primitive
        // longer than what is packed.
        unsafe { self.prepared.primitive.pack(stream, operand, words.as_ptr().cast(), to) }
    }

    fn fill(
        &self,
        bench: &Bench<'_>,
        expected: &Expected,
        stream: &StreamHandle,
        random: &mut Random,
    ) -> Result<()> {
        for (i, data) in expected.before.iter().enumerate() {
            let u = &expected.uses[i];
            let bytes = if u.reads { data.bytes.clone() } else { noise(random, data.bytes.len()) };
            upload(stream, bench.space(), self.prepared.operands[i].address, &bytes)?;
        }
        Ok(())
    }
}

/// Cases of each claimed combination, larger ones among them, in another order for each seed.
fn all(bench: &Bench<'_>) -> Vec<Case> {
    let claimed = crate::predicates::advertised(bench.runtime, bench.device);
    let keys = claimed.into_iter().filter(|(k, a)| k.has_reference() && !a.conditional()).map(|(k, _)| k);
    let mut all = Vec::new();
    for key in keys {
        let some: Vec<_> = cases(&key, bench.seed).into_iter().filter(plain).collect();
        if let Some(first) = some.iter().find(|c| c.name == "tiles") {
            for m in ROWS {
                let mut larger = first.clone();
                for (name, size) in &mut larger.sizes {
                    match *name {
                        "m" => *size = m,
                        "n" => *size = SIDES[0],
                        "k" => *size = SIDES[1],
                        _ => {}
                    }
                }
                all.push(larger);
            }
        }
        all.extend(some);
    }
    let mut random = Random::new(bench.seed);
    for i in (1..all.len()).rev() {
        all.swap(i, random.below(i as u64 + 1) as usize);
    }
    all
}

/// A launch whose operands can be packed, and which.
fn packable(scene: &Scene<'_>) -> Result<Vec<(usize, u64)>> {
    let mut found = Vec::new();
    for operand in scene.candidates() {
        let size = scene.size(operand, &scene.prepared.arguments)?;
        // Addresses mean nothing here.
        if scene.size(operand, &scene.arguments(|_| 0))? != size {
            return wrong(format!(
                "{}: the size of a packed operand depends on addresses",
                scene.prepared.case
            ));
        }
        if size > 0 {
            let alone = scene.size(operand, &scene.alone(operand, scene.prepared.arguments.clone())?)?;
            if alone != size {
                return wrong(format!(
                    "{}: packed `{}` takes {size} bytes, and {alone} with 1 for the sizes that do not count for it",
                    scene.prepared.case,
                    scene.name(operand)
                ));
            }
            found.push((operand, size));
        }
    }
    Ok(found)
}

pub(super) fn launches(bench: &Bench<'_>) -> Result<Verdict> {
    if !bench.handle().has_prepack() {
        return unsupported();
    }
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let (mut rig, mut random) = (Rig::new(bench.runtime, bench.device)?, Random::new(bench.seed));
    let mut launched = 0;
    for case in all(bench) {
        let Some(scene) = Scene::new(bench, case, &allocator)? else { continue };
        for (operand, size) in packable(&scene)? {
            let expected = rig.expect(&scene.prepared.case)?;
            if !matches!(expected.after, Some(Ok(_))) {
                continue;
            }
            if let Some(why) = packed(bench, (&scene, &expected), (operand, size), &allocator, &mut random)? {
                let (name, case) = (scene.name(operand), &scene.prepared.case);
                return wrong(format!("with `{name}` packed: {why} ({case})"));
            }
            launched += 1;
        }
        if launched >= MOST {
            break;
        }
    }
    if launched > 0 {
        Ok(Verdict::Pass)
    } else {
        Verdict::unsupported("no operand of the kit's launches gains by packing")
    }
}

/// Packs an operand, changes what it was packed from, and launches on two streams; what is wrong then.
fn packed(
    bench: &Bench<'_>,
    (scene, expected): (&Scene<'_>, &Expected),
    (operand, size): (usize, u64),
    allocator: &AllocatorHandle,
    random: &mut Random,
) -> Result<Option<String>> {
    let prepared = &scene.prepared;
    let compare = |stream: &StreamHandle| prepared.compare(bench, expected, &prepared.operands, stream);
    let room = Block::new(allocator, size + BEHIND as u64)?;
    let open = || bench.handle().create_stream(StreamOptions::default());
    let (first, second) = (open()?, open()?);
    let behind = noise(random, BEHIND);
    upload(&first, bench.space(), room.address, &noise(random, size as usize))?;
    upload(&first, bench.space(), room.address + size, &behind)?;
    scene.fill(bench, expected, &first, random)?;
    let packed = scene.pack(&first, operand, room.address)?;
    first.sync()?;
    let source = &expected.before[operand].bytes;
    if download(&first, bench.space(), scene.prepared.operands[operand].address, source.len())? != *source {
        return Ok(Some("packing has changed what it reads".into()));
    }
    let form = download(&first, bench.space(), room.address, size as usize)?;
    for (round, stream) in [&first, &second, &first].into_iter().enumerate() {
        scene.fill(bench, expected, stream, random)?;
        let other = noise(random, source.len());
        upload(stream, bench.space(), scene.prepared.operands[operand].address, &other)?;
        let address = |i: usize| if i == operand { NOWHERE } else { scene.prepared.operands[i].address };
        let words = scene.arguments(address);
        // SAFETY: arguments of the op, whose lists and buffers live longer than the streams; the packing was awaited.
        let launched = unsafe { packed.launch(stream, words.as_ptr().cast::<c_void>()) };
        let done = stream.sync();
        launched.and(done)?;
        if let Some(why) = compare(stream)? {
            return Ok(Some(format!("launch {round}: {why}")));
        }
    }
    // Destroyed while the work may still be queued; and recorded, while the graph may still be launched.
    scene.fill(bench, expected, &first, random)?;
    let words = scene.arguments(|i| if i == operand { NOWHERE } else { scene.prepared.operands[i].address });
    let mut graph = None;
    if bench.handle().has_graphs() && scene.prepared.primitive.factory().capturable {
        second.begin_recording()?;
        // SAFETY: as above.
        let recorded = unsafe { packed.launch(&second, words.as_ptr().cast::<c_void>()) };
        let ended = second.end_recording();
        recorded?;
        graph = Some(ended?);
    }
    // SAFETY: as above.
    let launched = unsafe { packed.launch(&first, words.as_ptr().cast::<c_void>()) };
    drop(packed);
    let done = first.sync();
    launched.and(done)?;
    if let Some(why) = compare(&first)? {
        return Ok(Some(format!("a launch that was queued when the packed operand was destroyed: {why}")));
    }
    if let Some(graph) = &mut graph {
        scene.fill(bench, expected, &first, random)?;
        first.sync()?;
        // SAFETY: what was recorded lives longer than the streams; nothing else is under way.
        unsafe { graph.launch(&second) }?;
        second.sync()?;
        if let Some(why) = compare(&second)? {
            return Ok(Some(format!("a graph of a launch, behind the end of the packed operand: {why}")));
        }
    }
    if download(&first, bench.space(), room.address, size as usize)? != form {
        return Ok(Some("launches have changed the packed operand".into()));
    }
    if download(&first, bench.space(), room.address + size, BEHIND)? != behind {
        return Ok(Some(format!("packing has written behind the {size} bytes of the packed operand")));
    }
    Ok(None)
}

/// The sizes of a case that count for an operand. None for ops whose sizes are in lists.
fn counting(scene: &Scene<'_>, operand: usize) -> Result<Vec<(&'static str, i64)>> {
    let case = &scene.prepared.case;
    let mut all = Vec::new();
    for (name, value) in case.sizes.iter().filter(|(_, value)| *value > 0) {
        let mut other = case.clone();
        other.sizes.iter_mut().filter(|(n, _)| n == name).for_each(|(_, v)| *v = 2 * value);
        if uses(&other, &scene.schema)?[operand].bytes != scene.prepared.uses[operand].bytes {
            all.push((*name, *value));
        }
    }
    Ok(all)
}

/// Sizes that give an operand another shape than those of its case: each doubled that counts for it, and any two of these
/// exchanged, which leaves it as many bytes.
fn other_shapes(scene: &Scene<'_>, operand: usize) -> Result<Vec<Vec<(&'static str, i64)>>> {
    let counting = counting(scene, operand)?;
    let mut all: Vec<_> = counting.iter().map(|(name, value)| vec![(*name, 2 * value)]).collect();
    for (i, a) in counting.iter().enumerate() {
        for b in counting[..i].iter().filter(|b| b.1 != a.1) {
            all.push(vec![(a.0, b.1), (b.0, a.1)]);
        }
    }
    Ok(all)
}

pub(super) fn refusals(bench: &Bench<'_>) -> Result<Verdict> {
    if !bench.handle().has_prepack() {
        return unsupported();
    }
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let stream = bench.handle().create_stream(StreamOptions::default())?;
    let mut rig = Rig::new(bench.runtime, bench.device)?;
    let invalid = |what: &str, result: Result<()>| expect_error(what, result, &[Code::InvalidArgument]);
    for case in all(bench) {
        let Some(scene) = Scene::new(bench, case, &allocator)? else { continue };
        let Some(&(operand, size)) = packable(&scene)?.first() else { continue };
        let expected = rig.expect(&scene.prepared.case)?;
        scene.fill(bench, &expected, &stream, &mut Random::new(bench.seed))?;
        let words = &scene.prepared.arguments;
        let beyond = scene.schema.operands.len();
        invalid("the size of an operand that the op does not have", scene.size(beyond, words).map(drop))?;
        for i in (0..beyond).filter(|i| scene.prepared.uses[*i].writes) {
            if scene.size(i, words)? != 0 {
                return wrong(format!("`{}` is written, and is said to have a packed form", scene.name(i)));
            }
            expect_error(
                "packing what is written",
                scene.pack(&stream, i, NOWHERE).map(drop),
                &[Code::Unsupported],
            )?;
        }
        invalid("packing to no address", scene.pack(&stream, operand, 0).map(drop))?;
        let room = Block::new(&allocator, size + 64)?;
        invalid("packing to an address that is no multiple of 64", {
            scene.pack(&stream, operand, room.address + 8).map(drop)
        })?;
        let packed = scene.pack(&stream, operand, room.address)?;
        stream.sync()?;
        for sizes in other_shapes(&scene, operand)? {
            let mut other = words.clone();
            for (name, value) in &sizes {
                let field = scene.schema.args.iter().find(|f| f.name == *name);
                if let Some(field) = field {
                    other[field.offset / 8] = *value as u64;
                }
            }
            // SAFETY: arguments of the op; a launch that is refused touches nothing.
            let launched = unsafe { packed.launch(&stream, other.as_ptr().cast()) };
            let done = stream.sync();
            invalid(
                &format!("a launch in the sizes {sizes:?} with what was packed in others"),
                launched.and(done),
            )?;
        }
        if bench.handle().has_graphs() {
            stream.begin_recording()?;
            let refused = invalid(
                "packing on a stream that records",
                scene.pack(&stream, operand, room.address).map(drop),
            );
            drop(stream.end_recording()?);
            refused?;
        }
        return Ok(Verdict::Pass);
    }
    Verdict::unsupported("no operand of the kit's launches gains by packing")
}
