//! Cases for ops that the kit knows by their schema only, and those that a vendor brings.
//!
//! Of the former: what sizes and shapes have to do with each other, nobody but the vendor knows: the arguments are uniform, so that
//! most relations hold, and what the provider refuses counts as unsupported, not as wrong.

use crate::case::{Case, Content, Key};
use crate::predicates::Advertised;
use crate::rig::{Outcome, Rig};
use crate::traits::in_place_pairs;
use crate::values::Random;
use ep_core::handle::KnownLaunch;
use ep_core::schema::{ArgKind, DescKind, Schema};
use ep_core::{Error, Result, Scalar};
use ep_registry::{Device, Runtime};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The launches with known results that a provider brings for an op, with the keys that they are of.
///
/// # Errors
/// The provider's; `InvalidArgument` for a case that does not fit the op's schema.
pub fn known(runtime: &Runtime, device: &Device, op: &str, seed: u64) -> Result<Vec<(Case, KnownLaunch)>> {
    let provider = device.members()[0].handle().provider();
    let Some(count) = provider.known_launches(op)?.filter(|count| *count > 0) else { return Ok(Vec::new()) };
    if count > MOST_KNOWN {
        return Err(Error::invalid(format!("{count} cases of `{op}`; at most {MOST_KNOWN} are possible")));
    }
    let schema = runtime.schema(op)?;
    let one = |index| {
        // SAFETY: the runtime's own schema, which every provider that registered the op agrees with.
        let known = unsafe { provider.known_launch(&schema, index, seed) }?;
        let key = Key { op: op.to_owned(), selectors: known.selectors.clone(), dtypes: known.dtypes.clone() };
        let mut case = Case::new(&key, keep(&format!("vendor {}", known.name)));
        case.attrs.extend(known.attrs.iter().map(|(n, v)| (keep(n), *v)));
        case.sizes.extend(known.sizes.iter().map(|(n, v)| (keep(n), *v)));
        case.lists.extend(known.lists.iter().map(|(n, v)| (keep(n), v.clone())));
        case.scalars.extend(known.scalars.iter().map(|(n, v)| (keep(n), *v)));
        case.arity = known.arity;
        case.set_seed(seed);
        Ok((case, known))
    };
    (0..count).map(one).collect()
}

/// Runs the launches with known results that a provider brings, on memory of a device: the op and the name of each, and
/// how it ended.
///
/// # Errors
/// The provider's; `InvalidArgument` for a case that does not fit the op's schema; when there is no memory or no stream.
pub fn vendor_cases(runtime: &Runtime, device: &Device, seed: u64) -> Result<Vec<(String, Outcome)>> {
    let mut rig = Rig::new(runtime, device)?;
    let ops: BTreeSet<String> = rig.keys().into_iter().map(|key| key.op).collect();
    let mut all = Vec::new();
    for op in ops {
        for (case, launch) in known(runtime, device, &op, seed)? {
            let expected = rig.known(&case, &launch)?;
            all.push((format!("{op} {}", case.name), rig.run_on_device(&case, &expected)?));
        }
    }
    Ok(all)
}

/// Cases of one op that a provider can bring.
const MOST_KNOWN: u64 = 1000;

/// Sizes of the uniform launches.
const SIZES: [(&str, i64); 7] =
    [("one", 1), ("two", 2), ("odd", 3), ("few", 5), ("vectors", 8), ("tail", 13), ("empty", 0)];

/// The longest side of a shape; operands have at most the product of a few of them.
const LARGEST: i64 = 17;

/// A name that lives as long as the process. A schema has few, and each is kept once.
fn keep(name: &str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    kept.insert(name);
    name
}

/// At least 12 launches of an op that the kit has no cases for.
pub fn generated(key: &Key, schema: &Schema, advertised: &Advertised, seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, n) in SIZES {
        cases.push(uniform(key, schema, name, n, 4));
    }
    cases.push(uniform(key, schema, "one dimension", LARGEST, 1));
    cases.push(uniform(key, schema, "two dimensions", 7, 2));
    cases.push(uniform(key, schema, "misaligned", 3, 4).shifted(1));
    cases.push(uniform(key, schema, "non-finite", 3, 4).content(Content::NonFinite));
    for (output, source) in in_place_pairs(key, schema) {
        let case = uniform(key, schema, "in place", 3, 4);
        cases.push(case.in_place(keep(output), keep(source)));
    }
    let mut random = Random::new(seed);
    for _ in 0..4 {
        cases.push(mixed(key, schema, &mut random));
    }
    let values = advertised.attribute_values();
    for (i, case) in cases.iter_mut().enumerate() {
        // Each condition's both sides are met by some case.
        if !values.is_empty() {
            let (name, value) = &values[i % values.len()];
            case.attrs.push((keep(name), *value));
        }
        case.set_seed(seed.wrapping_mul(1_000_003).wrapping_add(i as u64));
    }
    cases
}

/// A launch in which every size and every dimension is `n`.
fn uniform(key: &Key, schema: &Schema, name: &'static str, n: i64, rank: usize) -> Case {
    with(key, schema, name, rank, |_| n)
}

/// A launch whose sizes differ.
fn mixed(key: &Key, schema: &Schema, random: &mut Random) -> Case {
    let rank = 1 + random.below(4) as usize;
    let mut choose = |_: usize| 1 + random.below(LARGEST as u64 / 2) as i64;
    with(key, schema, "mixed", rank, &mut choose)
}

fn with(
    key: &Key,
    schema: &Schema,
    name: &'static str,
    rank: usize,
    mut size: impl FnMut(usize) -> i64,
) -> Case {
    let mut case = Case::new(key, name);
    let lengths: Vec<usize> = schema.args.iter().filter_map(|a| length_of(a.kind)).collect();
    for (i, arg) in schema.args.iter().enumerate() {
        let name = keep(&arg.name);
        match arg.kind {
            ArgKind::Size if lengths.contains(&i) => {}
            ArgKind::Size => case.sizes.push((name, size(i))),
            ArgKind::Dims { .. } => case.lists.push((name, (0..rank).map(&mut size).collect())),
            ArgKind::Ints { .. } => case.lists.push((name, vec![0; rank])),
            ArgKind::Scalar => case.scalars.push((name, Scalar::None)),
            ArgKind::Address => {}
            ArgKind::Addresses { .. } => case.arity = 2,
        }
    }
    for field in &schema.desc {
        if let DescKind::Attr(default) = field.kind {
            case.attrs.push((keep(&field.name), default));
        }
    }
    case.indices = (0, 1);
    case
}

/// The argument with the length of a list.
fn length_of(kind: ArgKind) -> Option<usize> {
    match kind {
        ArgKind::Dims { length } | ArgKind::Ints { length } | ArgKind::Addresses { length } => Some(length),
        ArgKind::Size | ArgKind::Address | ArgKind::Scalar => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::uses;
    use ep_core::DType;
    use ep_core::hob;
    use ep_core::schema::core_schema;

    #[test]
    fn generated_launches_fit_their_schema() {
        let schema = core_schema("broadcast_matmul").unwrap();
        let none = ("transpose_a".to_owned(), "none".to_owned());
        let other = ("transpose_b".to_owned(), "none".to_owned());
        let dtypes = schema.dtypes().map(|f| (f.name.clone(), DType::F32)).collect();
        let key = Key { op: schema.name.clone(), selectors: vec![none, other], dtypes };
        let cases = generated(&key, schema, &Advertised::default(), 1);
        assert!(cases.len() >= 12, "{}", cases.len());
        for case in &cases {
            let bytes: u64 = uses(case, schema).unwrap().iter().map(|u| u.bytes).sum();
            assert!(bytes < 4 << 20, "{case}: {bytes} bytes");
        }
    }

    #[test]
    fn conditions_on_attributes_are_met_from_both_sides() {
        let schema = core_schema("layer_norm").unwrap();
        let dtypes = schema.dtypes().map(|f| (f.name.clone(), DType::F32)).collect();
        let key = Key { op: schema.name.clone(), selectors: Vec::new(), dtypes };
        let predicates = vec![Some(hob::attr("epsilon").eq(1.0)), None];
        let cases = generated(&key, schema, &Advertised { predicates, custom: false }, 1);
        let epsilon = |c: &Case| c.attrs.iter().rfind(|(n, _)| *n == "epsilon").unwrap().1;
        assert!([1.0, 2.0].iter().all(|v| cases.iter().any(|c| epsilon(c) == *v)));
    }
}
