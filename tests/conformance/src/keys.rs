//! Running the cases of a key.

use crate::case::{Case, Key};
use crate::geometry::{limits, uses, written};
use crate::plan::{Setup, slug};
use crate::predicates::Advertised;
use crate::protocol::{End, Measured};
use crate::rig::{Outcome, Rig};
use crate::shapes::cases;
use crate::traits::{Trait, traits};
use crate::vendor;
use ep_core::handle::KnownLaunch;
use ep_core::schema::Schema;
use ep_core::{Code, Error, Result};
use ep_registry::Runtime;
use std::collections::BTreeSet;

/// How a case ended, why, and how fast it is where that was measured.
pub type Ended = (End, String, Option<Measured>);

/// Of so many combinations of such an op, one may have a large case in a sample.
const LARGE_SAMPLE: usize = 6;

/// What stands in a report where nothing could be compared.
const NO_REFERENCE: &str = "no reference: memory, guard zones and determinism only";

/// A case of a key, and its result where the vendor knows it.
pub type Listed = (String, Case, Option<KnownLaunch>);

/// The cases of a key, with their names.
///
/// # Errors
/// When the op is not known.
pub fn cases_of(
    runtime: &Runtime,
    rig: &Rig<'_>,
    key: &Key,
    unit: &str,
    setup: &Setup,
) -> Result<Vec<Listed>> {
    let seed = setup.seed.wrapping_add(hash(unit));
    let mut all = cases(key, seed);
    let schema = runtime.schema(&key.op)?;
    let advertised = rig.advertised(key);
    if all.is_empty() {
        all = vendor::generated(key, &schema, &advertised, seed);
    }
    let near = near_limits(&all, &schema, &advertised);
    let generated = all.len();
    let mut named: Vec<Listed> =
        all.into_iter().enumerate().map(|(i, case)| (name(unit, i, &case), case, None)).collect();
    if setup.quick && setup.filter.case.is_none() {
        let wanted = setup.sample / rig.claims(&key.op).max(1);
        let chosen = sample(&named, wanted, seed as usize, &schema);
        let mut at = 0;
        named.retain(|_| {
            at += 1;
            chosen.contains(&(at - 1))
        });
    }
    // A vendor's own are few, and the only ones of their kind: all of them are run.
    let of_vendor = vendor::known(runtime, rig.device(), &key.op, setup.seed)?;
    let of_key = of_vendor.into_iter().filter(|(case, _)| case.key == *key);
    named.extend(behind(unit, generated, of_key, near));
    Ok(named)
}

fn name(unit: &str, i: usize, case: &Case) -> String {
    format!("{unit}/{i:02}-{}", slug(case.name))
}

/// What comes behind the generated cases of a key. A name is the same whether a sample of those is run or all, and a
/// condition that is new renames no other case.
fn behind(
    unit: &str,
    generated: usize,
    of_vendor: impl Iterator<Item = (Case, KnownLaunch)>,
    near: Vec<Case>,
) -> impl Iterator<Item = Listed> {
    let known = of_vendor.map(|(case, known)| (case, Some(known)));
    // There are few of these, and each is the only one at its limit.
    let all = known.chain(near.into_iter().map(|case| (case, None)));
    (generated..).zip(all).map(move |(i, (case, known))| (name(unit, i, &case), case, known))
}

/// Launches on both sides of each value of a limit that a condition compares it with: the smallest of the cases, with
/// another size or number of sources.
pub fn near_limits(cases: &[Case], schema: &Schema, advertised: &Advertised) -> Vec<Case> {
    /// Elements that such a launch writes at most.
    const MOST: u64 = 1 << 18;
    /// Bytes of all its operands at most: what is read may be far more than what is written.
    const MOST_BYTES: u64 = 64 << 20;
    let accepted = |c: &&Case| c.period.is_none() && !c.far_index && c.in_place.is_none() && c.shift == 0;
    let around = |(limit, bound): (String, u64)| [bound - 1, bound, bound + 1].map(|v| (limit.clone(), v));
    // Bounds may be neighbours.
    let values: BTreeSet<_> = advertised.limit_values().into_iter().flat_map(around).collect();
    let near = |wanted: (String, u64)| {
        let value = wanted.1;
        // Which argument a limit is of, its op's schema knows: the one that makes the limit what it is to be.
        let fits = |case: Case| {
            let reached = limits(&case, schema).ok()?.contains(&wanted);
            let n = written(&case, schema).ok().filter(|n| reached && (1..=MOST).contains(n))?;
            let bytes = uses(&case, schema).ok()?.iter().fold(0u64, |sum, x| sum.saturating_add(x.bytes));
            (bytes <= MOST_BYTES).then_some((n, Case { name: "near the limit of a condition", ..case }))
        };
        let with = |case: &Case| {
            let size = |i: usize| {
                let mut case = case.clone();
                case.sizes[i].1 = value.cast_signed();
                case
            };
            let arity = (case.arity != 0).then(|| Case { arity: value as usize, ..case.clone() });
            (0..case.sizes.len()).map(size).chain(arity).find_map(fits)
        };
        let smallest = cases.iter().filter(accepted).filter_map(with).min_by_key(|(n, _)| *n);
        smallest.map(|(_, case)| case)
    };
    values.into_iter().filter_map(near).collect()
}

/// Which cases of a key a sample has: two of all, others for each key, so that an op's keys together have all of them;
/// one for each way to be in place; and what is wanted more, of which one is large. Where an op has more combinations
/// than are wanted of it, few of them have a large case, which takes as long as dozens of others.
fn sample(cases: &[Listed], wanted: usize, first: usize, schema: &Schema) -> BTreeSet<usize> {
    let count = cases.len();
    let is_large = |i: usize| traits(&cases[i].1, schema).contains(&Trait::Large);
    let skips_large = wanted < 2 && !(first / count).is_multiple_of(LARGE_SAMPLE);
    let next = |i: usize| if skips_large && is_large(i) { (i + 1) % count } else { i };
    let mut chosen = BTreeSet::from([first % count, (first + 1 + count / 2) % count].map(next));
    let pairs: BTreeSet<_> = cases.iter().filter_map(|(_, c, _)| c.in_place).collect();
    chosen.extend(pairs.into_iter().filter_map(|p| cases.iter().position(|(_, c, _)| c.in_place == Some(p))));
    // They differ in what is large; the keys of an op that has few of them share them.
    let large: Vec<usize> = (0..count).filter(|i| is_large(*i)).collect();
    if wanted >= 2 && !large.is_empty() {
        chosen.insert(large[first / count % large.len()]);
    }
    let small = (0..count).map(|i| (first + i) % count).filter(|i| !is_large(*i));
    for i in small {
        if chosen.len() >= wanted {
            break;
        }
        chosen.insert(i);
    }
    chosen
}

/// FNV-1a: the same in every process.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Runs a case on every kind of memory that the device has.
pub fn run(runtime: &Runtime, rig: &mut Rig<'_>, (_, case, known): &Listed, setup: &Setup) -> Ended {
    judge(runtime, rig, case, known.as_ref(), setup).unwrap_or_else(|e| (End::Failed, describe(&e), None))
}

/// What an error means for a case that should work.
fn describe(e: &Error) -> String {
    match e.code() {
        Code::Unsupported => format!("advertised, and refused: {e}"),
        code => format!("{code:?}: {e}"),
    }
}

fn judge(
    runtime: &Runtime,
    rig: &mut Rig<'_>,
    case: &Case,
    known: Option<&KnownLaunch>,
    setup: &Setup,
) -> Result<Ended> {
    let expected = match known {
        Some(known) => rig.known(case, known)?,
        None => rig.expect(case)?,
    };
    match rig.run_everywhere(case, &expected)? {
        Outcome::Pass => {}
        Outcome::Fail(why) => return Ok((End::Failed, why, None)),
        Outcome::Unsupported(why) => return Ok((End::Unsupported, why, None)),
    }
    let large =
        || -> Result<bool> { Ok(traits(case, &*runtime.schema(&case.key.op)?).contains(&Trait::Large)) };
    let speed = if setup.perf && large()? { rig.measure(case, &expected)?.map(Measured::from) } else { None };
    let judged = known.is_some() || case.key.has_reference();
    let message = if judged { String::new() } else { NO_REFERENCE.to_owned() };
    Ok((End::Passed, message, speed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::DType;
    use ep_core::hob::{Expr, arg, limit};
    use ep_core::schema::core_schema;

    fn softmax() -> Key {
        let dtypes = ["src", "dst"].map(|role| (role.to_owned(), DType::F32)).to_vec();
        Key { op: "softmax".to_owned(), selectors: Vec::new(), dtypes }
    }

    /// Columns of the launches near the limits of such conditions.
    fn columns(schema: &Schema, conditions: &[Expr]) -> Vec<i64> {
        let predicates = conditions.iter().cloned().map(Some).collect();
        let near = near_limits(&cases(&softmax(), 1), schema, &Advertised { predicates, custom: false });
        near.iter().map(|c| c.sizes.iter().find(|(name, _)| *name == "cols").unwrap().1).collect()
    }

    #[test]
    fn limits_that_are_neighbours_have_each_launch_once() {
        let schema = core_schema("softmax").unwrap();
        assert_eq!(columns(schema, &[limit("cols").le(64), limit("cols").ge(65)]), [63, 64, 65, 66]);
    }

    #[test]
    fn launches_near_a_limit_do_not_read_much_either() {
        let mut schema = core_schema("softmax").unwrap().clone();
        schema.operands[1].count = arg("rows");
        let near = |bound: i64| columns(&schema, &[limit("cols").le(bound)]);
        assert_eq!(near(1 << 20), [(1 << 20) - 1, 1 << 20, (1 << 20) + 1]);
        assert_eq!(near(1 << 29), [0; 0]);
    }

    #[test]
    fn a_new_condition_renames_no_case() {
        let case = |name| Case::new(&softmax(), name);
        let known = KnownLaunch {
            name: String::new(),
            selectors: Vec::new(),
            dtypes: Vec::new(),
            attrs: Vec::new(),
            sizes: Vec::new(),
            lists: Vec::new(),
            scalars: Vec::new(),
            arity: 0,
            operands: Vec::new(),
            absolute: 0.0,
            relative: 0.0,
            refusal: None,
        };
        let of_vendor = [(case("vendor's"), known)];
        let names: Vec<_> =
            behind("u", 12, of_vendor.into_iter(), vec![case("near")]).map(|(n, ..)| n).collect();
        assert_eq!(names, [format!("u/12-{}", slug("vendor's")), "u/13-near".to_owned()]);
    }

    #[test]
    fn hashes_do_not_depend_on_the_process() {
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
