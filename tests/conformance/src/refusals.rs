//! What a provider must refuse, and refuse cleanly: keys that it does not claim, descriptors and arguments that no
//! conforming host sends.

use crate::case::Key;
use crate::keys::Ended;
use crate::predicates::advertised;
use crate::protocol::End;
use crate::rig::Outcome;
use crate::values::Random;
use ep_core::handle::{FactoryHandle, PrimitiveHandle, StreamHandle};
use ep_core::hob::Expr;
use ep_core::provider::{MemoryKind, StreamOptions};
use ep_core::schema::{ArgKind, ArgsFacts, DescFacts, DescField, DescKind, Schema};
use ep_core::{Code, DType, Error, Result};
use ep_registry::{Device, Runtime};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Keys that are asked for though they are not claimed.
const SAMPLED: usize = 8;

/// What is wrong with a struct.
#[derive(Clone, Copy)]
enum Wrong {
    /// `struct_size` is 7.
    Size,
    /// It is 8 bytes longer than this version knows, and those are not zero.
    UnknownField,
    /// A byte that belongs to no field is set.
    Reserved,
    /// `flags` are set.
    Flags,
    /// The first size is -1.
    NegativeSize,
    /// All sizes are 3, and the addresses 0.
    NullAddress,
    /// All sizes are 3, and each address is one byte behind an aligned one.
    Misaligned,
    /// All sizes are 3, where the descriptor promises that no limit is above 2.
    BeyondLimit,
    /// Every list has nine entries.
    Rank9,
}

/// Cases about descriptors and arguments: name, which struct, what is wrong, and which codes are right.
const CASES: [(&str, bool, Wrong, &[Code]); 11] = [
    ("descriptor-of-impossible-size", true, Wrong::Size, &[Code::AbiMismatch, Code::InvalidArgument]),
    ("descriptor-with-an-unknown-field", true, Wrong::UnknownField, &[Code::Unsupported]),
    ("arguments-of-impossible-size", false, Wrong::Size, &[Code::AbiMismatch, Code::InvalidArgument]),
    ("arguments-with-an-unknown-field", false, Wrong::UnknownField, &[Code::Unsupported]),
    ("arguments-with-unknown-flags", false, Wrong::Flags, &[Code::Unsupported, Code::InvalidArgument]),
    ("arguments-with-a-negative-size", false, Wrong::NegativeSize, &[Code::InvalidArgument]),
    ("arguments-without-addresses", false, Wrong::NullAddress, &[Code::InvalidArgument, Code::Unsupported]),
    ("descriptor-with-reserved-bytes", true, Wrong::Reserved, &[Code::Unsupported, Code::InvalidArgument]),
    ("arguments-with-misaligned-addresses", false, Wrong::Misaligned, &[Code::InvalidArgument]),
    ("arguments-beyond-a-limit", false, Wrong::BeyondLimit, &[Code::InvalidArgument]),
    ("arguments-with-nine-dimensions", false, Wrong::Rank9, &[Code::InvalidArgument]),
];

/// Memory for the operands of arguments that a provider refuses; one that does not finds room there.
const ROOM: u64 = 1 << 16;
/// How far apart they are.
const APART: u64 = 1 << 12;

/// The cases of an op on a device, by name.
pub fn names(unit: &str) -> Vec<String> {
    let sampled = (0..SAMPLED).map(|i| format!("{unit}/unadvertised-{i}"));
    sampled.chain(CASES.iter().map(|c| format!("{unit}/{}", c.0))).collect()
}

/// Runs the case at `index` of [`names`].
pub fn run(
    runtime: &Runtime,
    device: &Device,
    op: &str,
    claimed: &BTreeSet<Key>,
    index: usize,
    seed: u64,
) -> Ended {
    let result = match index.checked_sub(SAMPLED) {
        None => unadvertised(runtime, device, op, claimed, seed.wrapping_add(index as u64)),
        Some(i) => malformed(runtime, device, op, &CASES[i]),
    };
    match result {
        Ok(None) => (End::Passed, String::new(), None),
        Ok(Some(none)) => (End::Unsupported, none, None),
        Err(e) => (End::Failed, e.to_string(), None),
    }
}

/// Runs all cases of one op about what a provider must refuse: the name of each, and how it ended.
pub fn refusal_cases(runtime: &Runtime, device: &Device, op: &str, seed: u64) -> Vec<(String, Outcome)> {
    let claimed: BTreeSet<Key> = advertised(runtime, device).into_keys().filter(|key| key.op == op).collect();
    let ended = |(i, name)| match run(runtime, device, op, &claimed, i, seed) {
        (End::Passed, ..) => (name, Outcome::Pass),
        (End::Failed, why, _) => (name, Outcome::Fail(why)),
        (End::Unsupported | End::NotMapped, why, _) => (name, Outcome::Unsupported(why)),
    };
    names(op).into_iter().enumerate().map(ended).collect()
}

/// Asks for a key that the provider does not claim. `Some`: it claims all of them.
fn unadvertised(
    runtime: &Runtime,
    device: &Device,
    op: &str,
    claimed: &BTreeSet<Key>,
    seed: u64,
) -> Result<Option<String>> {
    let schema = runtime.schema(op)?;
    let mut random = Random::new(seed);
    let mut key = || Key {
        op: op.to_owned(),
        selectors: schema
            .selectors()
            .map(|(f, c)| (f.name.clone(), c[random.below(c.len() as u64) as usize].clone()))
            .collect(),
        dtypes: schema
            .dtypes()
            .map(|f| (f.name.clone(), DType::ALL[random.below(DType::ALL.len() as u64) as usize]))
            .collect(),
    };
    let Some(key) = (0..1000).map(|_| key()).find(|k| !claimed.contains(k)) else {
        return Ok(Some("the provider claims every combination".to_owned()));
    };
    let mut request = runtime.request(op)?;
    for (name, value) in &key.selectors {
        request = request.selector(name, value)?;
    }
    for (role, dtype) in &key.dtypes {
        request = request.dtype(role, &dtype.to_string())?;
    }
    match runtime.primitive_dyn(device, &request) {
        Err(e) if e.code() == Code::Unsupported && !e.message().is_empty() => Ok(None),
        Err(e) => Err(Error::internal(format!("{key}: not claimed, and refused with {:?}: {e}", e.code()))),
        Ok(p) => Err(Error::internal(format!("{key}: not claimed, and built by {}", p.factory()))),
    }
}

/// What limits are where arguments exceed them.
const LIMIT: u64 = 2;

/// The first factory of an op on a device that takes a descriptor with nothing but its key and defaults, and that; for some
/// mistakes with a key whose dtypes all have to be aligned, or with limits.
fn factory(
    runtime: &Runtime,
    device: &Device,
    schema: &Schema,
    wrong: Wrong,
) -> Result<(Arc<FactoryHandle>, usize, Vec<u64>)> {
    let (aligned, limited) = (matches!(wrong, Wrong::Misaligned), matches!(wrong, Wrong::BeyondLimit));
    let found = runtime.with_registry(|registry| {
        let entry = registry.op(&schema.name)?;
        let on_device = entry.factories.iter().find_map(|f| {
            let member = device
                .members()
                .iter()
                .position(|m| m.instance() == f.instance && m.handle().info().kind == f.handle.device_kind)?;
            // A newer provider's rows may all be of values that this host does not know.
            let fits =
                |row: &&Vec<DType>| !aligned || (!row.is_empty() && row.iter().all(|d| d.alignment() > 1));
            let row = f.handle.dtypes.iter().find(fits)?;
            let mut desc = descriptor(schema, f.handle.selectors.first()?, row);
            if limited {
                limits(schema).for_each(|(at, _)| desc[at] = LIMIT);
            }
            let bytes: Vec<u8> = desc.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let facts = DescFacts { schema: &f.view, desc: &bytes, device: &[] };
            // A condition on the device is one that cannot be judged here.
            let takes = f.handle.predicate.as_ref().is_none_or(|p| p.holds(&facts) == Ok(true));
            let handle = device.members()[member].handle();
            // SAFETY: a descriptor of the op, made from its schema.
            let asked = || unsafe { f.handle.custom_refusal(handle, desc.as_ptr().cast()) };
            let takes = takes && matches!(asked(), Ok(None));
            takes.then(|| (f.handle.clone(), member, desc))
        });
        Ok::<_, Error>(on_device)
    })?;
    found.ok_or_else(|| {
        let aligned = if aligned { ", or dtypes that need no alignment" } else { "" };
        let limited = if limited { " that small limits do not meet" } else { "" };
        Error::unsupported(format!("every factory has a condition{limited}{aligned}"))
    })
}

/// The limits of an op: which word of a descriptor each is, and what it bounds.
fn limits(schema: &Schema) -> impl Iterator<Item = (usize, &Expr)> {
    schema.desc.iter().filter_map(|f| match &f.kind {
        DescKind::Limit(bounds) => Some((f.offset / 8, bounds)),
        _ => None,
    })
}

/// A descriptor with a key, and defaults.
fn descriptor(schema: &Schema, selectors: &[u32], dtypes: &[DType]) -> Vec<u64> {
    let mut desc = vec![0u64; schema.desc_size / 8];
    desc[0] = schema.desc_size as u64;
    let mut put = |at: usize, value: u32| {
        let shift = (at % 8) * 8;
        let shift = if cfg!(target_endian = "little") { shift } else { 32 - shift };
        desc[at / 8] |= u64::from(value) << shift;
    };
    schema.selectors().zip(selectors).for_each(|((f, _), v)| put(f.offset, *v));
    schema.dtypes().zip(dtypes).for_each(|(f, d)| put(f.offset, d.0));
    for f in &schema.desc {
        if let DescKind::Attr(default) = f.kind {
            desc[f.offset / 8] = default.to_bits();
        }
    }
    desc
}

fn malformed(
    runtime: &Runtime,
    device: &Device,
    op: &str,
    (name, descriptor, wrong, codes): &(&str, bool, Wrong, &[Code]),
) -> Result<Option<String>> {
    let schema = runtime.schema(op)?;
    let (factory, member, mut desc) = match factory(runtime, device, &schema, *wrong) {
        Ok(found) => found,
        Err(e) if e.code() == Code::Unsupported => return Ok(Some(e.to_string())),
        Err(e) => return Err(e),
    };
    let handle = device.members()[member].handle();
    let result = if *descriptor {
        match (wrong, reserved(&schema)) {
            (Wrong::Reserved, None) => {
                return Ok(Some("the op's descriptor has no reserved bytes".to_owned()));
            }
            (Wrong::Reserved, Some(at)) => {
                desc[at / 8] |= u64::from_ne_bytes(std::array::from_fn(|i| u8::from(i == at % 8)))
            }
            _ => spoil(&mut desc, *wrong),
        }
        // SAFETY: an op's descriptor, or one that rules 1, 3 and 12 let every provider refuse, readable for the
        // size that it names or eight bytes.
        unsafe { factory.create(handle, desc.as_ptr().cast()) }.map(drop)
    } else {
        // SAFETY: a descriptor of the op for a row of the factory.
        let primitive = unsafe { factory.create(handle, desc.as_ptr().cast()) }?;
        let allocator = handle.open_allocator(MemoryKind::Device)?;
        let room = allocator.alloc(ROOM, 0)?;
        let launched = handle
            .create_stream(StreamOptions::default())
            .and_then(|stream| launch(&schema, &primitive, &stream, *wrong, room));
        // SAFETY: allocated above; the stream that may have used it has been destroyed, which waits.
        unsafe { allocator.free(room, ROOM) }?;
        match launched? {
            Some(result) => result,
            None => return Ok(Some("the op has no such argument".to_owned())),
        }
    };
    match result {
        Err(e) if codes.contains(&e.code()) => Ok(None),
        Err(e) => {
            Err(Error::internal(format!("{name}: refused with {:?} ({e}), not with {codes:?}", e.code())))
        }
        Ok(()) => Err(Error::internal(format!("{name}: accepted; {codes:?} is right"))),
    }
}

/// Makes something wrong with a descriptor or with arguments.
fn spoil(words: &mut Vec<u64>, wrong: Wrong) {
    match wrong {
        Wrong::Size => words[0] = 7,
        Wrong::UnknownField => {
            words.push(1);
            words[0] += 8;
        }
        // The second word of arguments.
        Wrong::Flags => words[1] = 1 << 40,
        _ => {}
    }
}

/// The first byte of an op's descriptor that belongs to no field.
fn reserved(schema: &Schema) -> Option<usize> {
    let has = |f: &DescField, at: usize| {
        let size = if matches!(f.kind, DescKind::Selector(_) | DescKind::DType) { 4 } else { 8 };
        (f.offset..f.offset + size).contains(&at)
    };
    // Behind `struct_size` and `alignment`.
    (16..schema.desc_size).find(|at| !schema.desc.iter().any(|f| has(f, *at)))
}

/// Whether arguments without lists exceed a limit.
fn exceeds(schema: &Schema, args: &[u64]) -> bool {
    let bytes: Vec<u8> = args.iter().flat_map(|word| word.to_ne_bytes()).collect();
    // SAFETY: there is no list.
    let facts = unsafe { ArgsFacts::new(schema, &bytes) };
    limits(schema).any(|(_, bounds)| bounds.amount(&facts).is_ok_and(|n| n > LIMIT))
}

/// Nine dimensions of one element.
static ONES: [i64; 9] = [1; 9];
/// Nine strides, positions, or places of dimensions.
static STEPS: [i64; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Launches with wrong arguments; `None` if the op cannot have this mistake.
fn launch(
    schema: &Schema,
    primitive: &PrimitiveHandle,
    stream: &StreamHandle,
    wrong: Wrong,
    room: u64,
) -> Result<Option<Result<()>>> {
    // No list of buffers: addresses of addresses would be read.
    let addressed =
        matches!(wrong, Wrong::NullAddress | Wrong::Misaligned | Wrong::BeyondLimit | Wrong::Rank9);
    if addressed && schema.list_length().is_some() {
        return Ok(None);
    }
    let mut args = vec![0u64; schema.args_size / 8];
    args[0] = schema.args_size as u64;
    let lengths: Vec<usize> = schema
        .args
        .iter()
        .filter_map(|a| match a.kind {
            ArgKind::Dims { length } | ArgKind::Ints { length } | ArgKind::Addresses { length } => {
                Some(length)
            }
            ArgKind::Size | ArgKind::Address | ArgKind::Scalar => None,
        })
        .collect();
    let sizes =
        schema.args.iter().enumerate().filter(|(i, a)| a.kind == ArgKind::Size && !lengths.contains(i));
    let sizes: Vec<usize> = sizes.map(|(_, a)| a.offset / 8).collect();
    match wrong {
        Wrong::NegativeSize => match sizes.first() {
            Some(at) => args[*at] = -1i64 as u64,
            None => return Ok(None),
        },
        // Shapes of rank 0 have one element.
        Wrong::NullAddress | Wrong::Misaligned => sizes.iter().for_each(|at| args[*at] = 3),
        Wrong::BeyondLimit | Wrong::Rank9 if lengths.is_empty() != matches!(wrong, Wrong::BeyondLimit) => {
            return Ok(None);
        }
        Wrong::BeyondLimit => sizes.iter().for_each(|at| args[*at] = 3),
        Wrong::Rank9 => {
            for arg in &schema.args {
                let (list, length) = match arg.kind {
                    ArgKind::Dims { length } => (&ONES, length),
                    ArgKind::Ints { length } => (&STEPS, length),
                    _ => continue,
                };
                args[arg.offset / 8] = list.as_ptr().expose_provenance() as u64;
                args[schema.args[length].offset / 8] = list.len() as u64;
            }
        }
        other => spoil(&mut args, other),
    }
    if addressed && !matches!(wrong, Wrong::NullAddress) {
        for (i, x) in schema.operands.iter().enumerate() {
            let past = u64::from(matches!(wrong, Wrong::Misaligned));
            args[schema.args[x.arg].offset / 8] = room + APART * (i as u64 % (ROOM / APART)) + past;
        }
    }
    // What a limit bounds need not be a size, but half of one, or the product of two.
    if matches!(wrong, Wrong::BeyondLimit) && !exceeds(schema, &args) {
        return Ok(None);
    }
    // SAFETY: the argument struct is readable for the size that it names or eight bytes; lists are static, and every address
    // is 0 and so refused, or there is nothing to do, or it has room for the few elements that the sizes ask for.
    let launched = unsafe { primitive.launch(stream, args.as_ptr().cast()) };
    let done = stream.sync();
    Ok(Some(launched.and(done)))
}
