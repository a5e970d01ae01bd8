use super::cases;
use crate::case::Key;
use crate::traits::{Trait, applicable, traits};
use ep_core::DType;
use ep_core::schema::{Schema, core_schemas};

/// Every combination of selector values; those of functions all, since cases may depend on them.
fn selectors(schema: &Schema) -> Vec<Vec<(String, String)>> {
    schema.selectors().fold(vec![Vec::new()], |all, (field, choices)| {
        let with = |row: &Vec<(String, String)>| {
            let more = choices.iter().map(|c| [row.clone(), vec![(field.name.clone(), c.clone())]].concat());
            more.collect::<Vec<_>>()
        };
        all.iter().flat_map(with).collect()
    })
}

/// Every combination of some dtypes: each width, integers, floats and complex numbers.
fn dtypes(schema: &Schema) -> Vec<Vec<(String, DType)>> {
    const SOME: [DType; 7] =
        [DType::BOOL, DType::I8, DType::I64, DType::F16, DType::F32, DType::F64, DType::COMPLEX64];
    schema.dtypes().fold(vec![Vec::new()], |all, field| {
        let with = |row: &Vec<(String, DType)>| {
            let more = SOME.iter().map(|d| [row.clone(), vec![(field.name.clone(), *d)]].concat());
            more.collect::<Vec<_>>()
        };
        all.iter().flat_map(with).collect()
    })
}

#[test]
fn every_key_of_the_core_has_twelve_cases_and_every_trait_that_applies() {
    let mut keys = 0;
    for schema in core_schemas() {
        for selectors in selectors(&schema) {
            for dtypes in dtypes(&schema) {
                let key = Key { op: schema.name.clone(), selectors: selectors.clone(), dtypes };
                let cases = cases(&key, 1);
                assert!(cases.len() >= 12, "{key}: {} cases", cases.len());
                let found: Vec<_> = cases.iter().flat_map(|c| traits(c, &schema)).collect();
                for wanted in applicable(&key, &schema) {
                    assert!(found.contains(&wanted), "{key}: no case is {wanted}");
                }
                keys += 1;
            }
        }
    }
    assert!(keys > 8000, "only {keys} keys were looked at");
}

#[test]
fn each_trait_is_found_in_some_case_and_not_in_all() {
    let schema = core_schemas().find(|s| s.name == "broadcast_elementwise_unary").unwrap();
    let f32 = |role: &str| (role.to_owned(), DType::F32);
    let op = ("op".to_owned(), "relu".to_owned());
    let key = Key { op: schema.name.clone(), selectors: vec![op], dtypes: vec![f32("src"), f32("dst")] };
    let all: Vec<_> = cases(&key, 1).iter().map(|c| traits(c, &schema)).collect();
    for t in Trait::ALL.into_iter().filter(|t| *t != Trait::InPlace) {
        let count = all.iter().filter(|x| x.contains(&t)).count();
        let most = if t == Trait::NonFinite { all.len() } else { all.len() - 1 };
        assert!((1..=most).contains(&count), "{t}: {count} of {}", all.len());
    }
}

#[test]
fn the_arguments_of_every_case_are_those_of_its_op() {
    for schema in core_schemas() {
        let dtypes = schema.dtypes().map(|f| (f.name.clone(), DType::F32)).collect();
        let first = selectors(&schema).swap_remove(0);
        let key = Key { op: schema.name.clone(), selectors: first, dtypes };
        for case in cases(&key, 1) {
            let args: Vec<_> = schema.args.iter().map(|a| a.name.as_str()).collect();
            let named = case.sizes.iter().map(|(n, _)| *n).chain(case.lists.iter().map(|(n, _)| *n));
            for name in named.chain(case.scalars.iter().map(|(n, _)| *n)) {
                assert!(args.contains(&name), "{case}: {name}");
            }
            let operands: Vec<_> = schema.operands.iter().map(|x| x.name.as_str()).collect();
            let shared = case.in_place.into_iter().flat_map(|(output, source)| [output, source]);
            for name in shared.chain(case.absent.iter().copied()) {
                assert!(operands.contains(&name), "{case}: operand {name}");
            }
        }
    }
}

#[test]
fn a_seed_changes_the_content_of_every_case() {
    let dtypes = vec![("src".to_owned(), DType::F32), ("dst".to_owned(), DType::F32)];
    let key = Key { op: "softmax".into(), selectors: Vec::new(), dtypes };
    let seeds = |seed| cases(&key, seed).iter().map(|c| c.seed).collect::<Vec<_>>();
    let (one, two) = (seeds(1), seeds(2));
    assert!(one.iter().all(|s| !two.contains(s)));
    assert!(cases(&key, 1).iter().all(|c| c.period.as_ref().is_none_or(|p| p.seed == c.seed)));
}
