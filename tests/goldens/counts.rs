//! Every combination that `docs/support.csv` says yes to has its golden points.

use crate::reader::{self, Golden, Record};
use std::collections::{BTreeMap, HashSet};

/// Points of each combination of an op, its selectors and its dtypes.
const ENOUGH: usize = 2000;

/// Functions of numbers, of which only distinct points count. Of other ops each element does, as places matter.
const FUNCTIONS: [&str; 4] =
    ["elementwise_unary", "broadcast_elementwise_unary", "broadcast_elementwise_binary", "cast"];

/// Ops that write one scalar again and again: a point is a scalar, and each of the other elements the same question as the
/// first. Scalars at the ends of what converts differently are fewer than 2,000.
const FILLS: [&str; 3] = ["fill", "tensor_fill", "memset"];

/// Points that a combination must have: of few operands, all of them.
fn enough(op: &str, dtypes: &str) -> usize {
    match (op, dtypes.split(' ').next().unwrap()) {
        ("broadcast_elementwise_binary", "src=bool") => 4,
        ("tensor_fill", "data=bool") => 2,
        (op, _) if FILLS.contains(&op) => 9,
        (op, "src=bool") if FUNCTIONS.contains(&op) => 2,
        ("elementwise_unary" | "broadcast_elementwise_unary" | "cast", "src=i8" | "src=u8") => 256,
        _ => ENOUGH,
    }
}

/// The elements that a launch computes or moves, without those between strides that keep their content.
fn elements(golden: &Golden, record: &Record) -> usize {
    let dims = |wanted| record.dims.iter().find(|(name, _)| name == wanted);
    let shape = dims("extent").or(dims("dst_dims")).or(dims("dims"));
    match (record.writes.first(), shape) {
        (_, Some((_, dims))) => dims.iter().product::<i64>() as usize,
        (Some((_, tensor)), None) => golden.tensors[*tensor].view().len(),
        (None, None) => 0,
    }
}

/// A number for these bytes: two of the few points here hardly have the same.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// An operand of a function: its elements, their size, and how they are laid out.
struct Operand<'a> {
    bytes: &'a [u8],
    size: usize,
    dims: Vec<i64>,
    strides: Vec<i64>,
}

impl<'a> Operand<'a> {
    fn new(golden: &'a Golden, record: &Record, name: &str, tensor: usize) -> Self {
        let data = &golden.tensors[tensor];
        let size = data.dtype.size().unwrap();
        let list = |wanted: String| {
            let found = record.dims.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, list)| list.clone())
        };
        let dims = list(format!("{name}_dims")).unwrap_or_else(|| vec![(data.bytes.len() / size) as i64]);
        let strides = list(format!("{name}_strides"))
            .unwrap_or_else(|| (0..dims.len()).map(|axis| dims[axis + 1..].iter().product()).collect());
        Operand { bytes: &data.bytes, size, dims, strides }
    }

    /// The element for the `index`th of a result with these dims, to which it is broadcast.
    fn element(&self, result: &[i64], index: usize) -> &'a [u8] {
        let (mut left, mut at) = (index as i64, 0);
        for (back, extent) in result.iter().rev().enumerate() {
            let position = left % extent;
            left /= extent;
            if back < self.dims.len() && self.dims[self.dims.len() - 1 - back] != 1 {
                at += position * self.strides[self.dims.len() - 1 - back];
            }
        }
        &self.bytes[at as usize * self.size..][..self.size]
    }
}

/// Adds what a function is asked for, element by element.
fn add_tuples(golden: &Golden, record: &Record, found: &mut HashSet<u64>) {
    let reads = record.reads.iter().filter(|(name, _)| name != "dst");
    let operands: Vec<_> = reads.map(|(name, tensor)| Operand::new(golden, record, name, *tensor)).collect();
    let result = record.dims.iter().find(|(name, _)| name == "dst_dims").map(|(_, dims)| dims.clone());
    let result = result.unwrap_or_else(|| {
        let rank = operands.iter().map(|o| o.dims.len()).max().unwrap();
        let extent = |back: usize| {
            let all = operands.iter().filter_map(|o| o.dims.len().checked_sub(back + 1).map(|at| o.dims[at]));
            all.fold(1, |one, other| if one == 1 { other } else { one })
        };
        (0..rank).rev().map(extent).collect()
    });
    let launch = hash(0xcbf2_9ce4_8422_2325, format!("{:?} {:?}", record.attrs, record.scalars).as_bytes());
    for index in 0..result.iter().product::<i64>() as usize {
        found.insert(operands.iter().fold(launch, |h, o| hash(h, o.element(&result, index))));
    }
}

/// What has been found of a combination.
#[derive(Default)]
struct Found {
    elements: usize,
    distinct: HashSet<u64>,
}

/// The points of an op's combinations: by selectors and dtypes, as the table writes them.
fn counted(op: &str) -> BTreeMap<(String, String), usize> {
    let golden = reader::read(op);
    let mut found = BTreeMap::<_, Found>::new();
    for record in golden.records.iter().filter(|record| !record.error) {
        let selectors: Vec<_> = record.selectors.iter().map(|(_, value)| value.as_str()).collect();
        let dtypes: Vec<_> = record.dtypes.iter().map(|(role, dtype)| format!("{role}={dtype}")).collect();
        let one = found.entry((selectors.join(" "), dtypes.join(" "))).or_default();
        if FUNCTIONS.contains(&op) {
            add_tuples(&golden, record, &mut one.distinct);
        } else if FILLS.contains(&op) {
            let scalars = hash(0, format!("{:?}", record.scalars).as_bytes());
            let read = record.reads.iter().map(|(_, tensor)| &golden.tensors[*tensor].bytes);
            one.distinct.insert(read.fold(scalars, |h, bytes| hash(h, bytes)));
        } else {
            one.elements += elements(&golden, record);
        }
    }
    found.into_iter().map(|(key, found)| (key, found.elements.max(found.distinct.len()))).collect()
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
