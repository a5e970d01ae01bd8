//! Cases of the ops that have indices.

use crate::case::{Case, Content, Key};
use ep_core::Scalar;

/// A range of indices that the mode accepts, and one that it refuses, for an axis of this length.
fn index_ranges(key: &Key, size: i64) -> Vec<(&'static str, (i64, i64))> {
    match key.selector("mode") {
        "wrap" => vec![("wraps", (-size, size)), ("refused", (-size - 2, size + 2))],
        "zero" => vec![("outside gives zeros", (-3, size + 3))],
        _ => vec![("refused", (-1, size + 1))],
    }
}

pub(super) fn one_hot(key: &Key) -> Vec<Case> {
    let case = |name, n, depth, offset, size, range| {
        let mut case = Case::new(key, name).sizes(&[
            ("num_indices", n),
            ("depth", depth),
            ("offset", offset),
            ("size", size),
        ]);
        case.indices = range;
        case
    };
    let mut cases = vec![
        case("no index", 0, 5, 0, 0, (0, 1)),
        case("no class", 5, 0, 0, 0, (0, 1)),
        case("odd", 37, 11, 0, 0, (0, 11)),
        case("one column", 131, 1, 0, 0, (0, 1)),
        case("wide", 9, 1057, 0, 0, (0, 1057)),
        case("tiles", 33, 35, 0, 0, (0, 35)),
        case("odd columns", 5, 63, 0, 0, (0, 63)),
        case("misaligned", 37, 11, 0, 0, (0, 11)).shifted(1),
        case("large", 131, 509, 0, 0, (0, 509)),
        case("NaN", 9, 37, 0, 0, (0, 37)).scalar("on", Scalar::F64(f64::NAN)),
        case("window", 67, 7, 5, 20, (0, 20)),
        case("values", 37, 11, 0, 0, (0, 11)).scalar("on", Scalar::F64(2.5)).scalar("off", Scalar::I64(-1)),
    ];
    cases.extend(index_ranges(key, 20).into_iter().map(|(name, range)| case(name, 67, 7, 5, 20, range)));
    let mut far = case("one index far outside", 37, 11, 0, 0, (0, 11));
    far.far_index = true;
    cases.push(far);
    cases
}

pub(super) fn gather(key: &Key, outer: &[&'static str]) -> Vec<Case> {
    let case = |name, o: i64, n: i64, inner: i64, indices: i64, window: [i64; 2], range| {
        let mut case = Case::new(key, name).sizes(&[
            ("processed", n),
            ("inner", inner),
            ("num_indices", indices),
            ("offset", window[0]),
            ("size", window[1]),
        ]);
        case.sizes.extend(outer.iter().map(|name| (*name, o)));
        case.indices = range;
        if key.op != "scatter_add" {
            case.content = Content::Wild;
        }
        case
    };
    let mut cases = vec![
        case("empty", 0, 5, 3, 7, [0, 0], (0, 5)),
        case("no index", 2, 5, 3, 0, [0, 0], (0, 5)),
        case("rows", 1, 37, 67, 41, [0, 0], (0, 37)),
        case("short rows", 1, 131, 3, 257, [0, 0], (0, 131)),
        case("long rows", 1, 5, 1057, 9, [0, 0], (0, 5)),
        case("last axis", 3, 131, 1, 97, [0, 0], (0, 131)),
        case("middle axis", 3, 17, 33, 19, [0, 0], (0, 17)),
        case("one row many times", 2, 1, 35, 37, [0, 0], (0, 1)),
        case("misaligned", 2, 17, 33, 19, [0, 0], (0, 17)).shifted(1),
        case("large", 1, 257, 67, 1009, [0, 0], (0, 257)),
        case("large destination", 3, 331, 67, 37, [0, 0], (0, 331)),
        case("window", 2, 7, 5, 67, [5, 20], (0, 20)),
    ];
    for (name, range) in index_ranges(key, 20) {
        cases.push(case(name, 2, 7, 5, 67, [5, 20], range));
        cases.push(case(name, 1, 20, 1, 131, [0, 0], range));
    }
    let mut far = case("one index far outside", 2, 17, 5, 19, [0, 0], (0, 17));
    far.far_index = true;
    cases.push(far);
    if key.op == "scatter_add" {
        let special = super::special(key, "");
        cases.push(case("non-finite", 2, 17, 33, 19, [0, 0], (0, 17)).content(special));
    }
    // Rows that leave a part of a block of threads without a column.
    cases.push(case("rows of 185", 2, 5, 185, 10, [0, 0], (0, 5)));
    cases
}
