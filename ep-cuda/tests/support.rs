//! What the provider registers against the table of what has a meaning, which is what the CPU provider has too.

mod rig;

use ep_registry::query::Filter;
use rig::{Rig, Setup};
use std::collections::BTreeSet;

#[test]
fn every_combination_that_has_a_meaning_is_there_and_no_other() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let rows = runtime.query(&Filter { device: Some("cuda:0".into()), ..Filter::default() });
    let mut offered = BTreeSet::new();
    for row in &rows {
        let dtypes: Vec<_> = row.dtypes.iter().map(|(role, d)| format!("{role}={d}")).collect();
        let selectors: Vec<_> = row.selectors.iter().map(|(_, value)| value.as_str()).collect();
        let key = (row.op.clone(), dtypes.join(" "), selectors.join(" "));
        assert!(offered.insert(key), "registered twice: {row:?}");
    }
    let mut wanted = BTreeSet::new();
    for line in include_str!("../../docs/support.csv").lines().skip(1) {
        let [op, dtypes, cpu, cuda, selectors] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("five columns: {line}")
        };
        assert_eq!(cpu, cuda, "{line}");
        let names: Vec<_> =
            runtime.schema(op).unwrap().selectors().map(|(_, names)| names.to_vec()).collect();
        let selectors: Vec<String> = match (selectors, names.as_slice()) {
            ("all", [one]) => one.clone(),
            ("all", [a, b]) => a.iter().flat_map(|a| b.iter().map(move |b| format!("{a} {b}"))).collect(),
            ("", []) => vec![String::new()],
            (some, [_]) => some.split(' ').map(str::to_owned).collect(),
            other => panic!("{op}: {other:?}"),
        };
        if cuda == "yes" {
            wanted.extend(selectors.into_iter().map(|s| (op.to_owned(), dtypes.to_owned(), s)));
        }
    }
    assert!(wanted.len() > 2000, "{}", wanted.len());
    let missing: Vec<_> = wanted.difference(&offered).take(5).collect();
    let beyond: Vec<_> = offered.difference(&wanted).take(5).collect();
    assert!(missing.is_empty() && beyond.is_empty(), "missing: {missing:?}, beyond: {beyond:?}");
}
