//! Every combination that `docs/support.csv` says yes to has its golden points.

use crate::reader::{self, Golden, Record};
use std::collections::BTreeMap;

/// Points of each combination of an op, its selectors and its dtypes.
const ENOUGH: usize = 2000;

/// Ops of one operand, which have no more points than their dtype has values.
const OF_ONE: [&str; 3] = ["elementwise_unary", "broadcast_elementwise_unary", "cast"];

/// Points that a combination must have: of few operands, all of them.
fn enough(op: &str, dtypes: &str) -> usize {
    match (op, dtypes.split(' ').next().unwrap()) {
        (op, "src=bool") if OF_ONE.contains(&op) => 2,
        (op, "src=i8" | "src=u8") if OF_ONE.contains(&op) => 256,
        ("broadcast_elementwise_binary", "src=bool") => 4,
        _ => ENOUGH,
    }
}

/// The elements that a launch computes or moves, without those between strides that keep their content.
fn points(golden: &Golden, record: &Record) -> usize {
    let dims = |wanted| record.dims.iter().find(|(name, _)| name == wanted);
    let shape = dims("extent").or(dims("dst_dims")).or(dims("dims"));
    match (record.writes.first(), shape) {
        _ if record.error => 0,
        (_, Some((_, dims))) => dims.iter().product::<i64>() as usize,
        (Some((_, tensor)), None) => golden.tensors[*tensor].view().len(),
        (None, None) => 0,
    }
}

/// The points of an op's combinations: by selectors and dtypes, as the table writes them.
fn counted(op: &str) -> BTreeMap<(String, String), usize> {
    let golden = reader::read(op);
    let mut found = BTreeMap::new();
    for record in &golden.records {
        let selectors: Vec<_> = record.selectors.iter().map(|(_, value)| value.as_str()).collect();
        let dtypes: Vec<_> = record.dtypes.iter().map(|(role, dtype)| format!("{role}={dtype}")).collect();
        *found.entry((selectors.join(" "), dtypes.join(" "))).or_default() += points(&golden, record);
    }
    found
}

/// The combinations of selectors that a row of the table is about.
fn chosen(op: &str, selectors: &str) -> Vec<String> {
    if selectors != "all" {
        // No selector is one combination, too.
        return selectors.split(' ').map(str::to_owned).collect();
    }
    let schema = ep_core::schema::core_schema(op).unwrap();
    schema.selectors().fold(vec![String::new()], |before, (_, names)| {
        let join = |head: &String, name: &String| format!("{head} {name}").trim_start().to_owned();
        before.iter().flat_map(|head| names.iter().map(move |name| join(head, name))).collect()
    })
}

#[test]
fn every_combination_has_its_points() {
    let mut lines = include_str!("../../docs/support.csv").lines();
    let header: Vec<_> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| header.iter().position(|h| *h == name).unwrap();
    let [op, dtypes, answer, selectors] = ["op", "dtypes", "cpu", "selectors"].map(column);
    let (mut files, mut few, mut all) = (BTreeMap::new(), Vec::new(), 0);
    for line in lines {
        let row: Vec<_> = line.split(',').collect();
        if row[answer] != "yes" {
            continue;
        }
        let found = files.entry(row[op]).or_insert_with(|| counted(row[op]));
        for selectors in chosen(row[op], row[selectors]) {
            let combination = (selectors, row[dtypes].to_owned());
            let points = found.get(&combination).copied().unwrap_or(0);
            all += 1;
            if points < enough(row[op], row[dtypes]) {
                few.push(format!("{} {} {}: {points}", row[op], combination.0, combination.1));
            }
        }
    }
    assert!(all > 3000, "{all} combinations");
    assert!(few.is_empty(), "{} have too few points:\n{}", few.len(), few.join("\n"));
}
