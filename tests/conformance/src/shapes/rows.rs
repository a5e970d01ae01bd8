//! Cases of the ops along rows.

use super::special;
use crate::case::{Case, Content, Key};

/// More rows than a grid of a GPU has along its second and third dimension.
const MANY: i64 = 65_539;
/// So many of them have content of their own.
const MANY_PERIOD: i64 = 7;

pub(super) fn rows(key: &Key, pairs: &[(&'static str, &'static str)]) -> Vec<Case> {
    let case = |name, rows, cols, inner| {
        Case::new(key, name).sizes(&[("rows", rows), ("cols", cols), ("inner", inner)])
    };
    let wide = special(key, "");
    let mut cases = vec![
        case("no rows", 0, 5, 1),
        case("no columns", 5, 0, 1),
        case("one column", 37, 1, 0).content(wide),
        case("short rows", 37, 3, 1).content(wide),
        case("a vector", 19, 16, 1),
        case("odd rows", 7, 131, 1),
        case("tiles", 33, 65, 1),
        case("long rows", 3, 1057, 1),
        case("longer rows", 1, 9001, 1),
        case("non-finite", 13, 37, 1).content(wide),
        case("non-finite, long rows", 2, 1057, 1).content(wide),
        case("misaligned", 7, 131, 1).shifted(1),
        case("misaligned, long rows", 2, 517, 1).shifted(3),
        case("large", 513, 131, 1).repeating(case("large", 7, 131, 1)),
        case("large columns", 67, 1009, 1).repeating(case("large columns", 1, 1009, 1)),
        case("other axis", 3, 37, 35),
        case("other axis, short", 2, 3, 131).content(wide),
        case("other axis, narrow", 5, 67, 2),
    ];
    if !key.op.ends_with("backward") {
        cases.push(case("far from zero", 17, 37, 1).content(Content::Offset));
        cases.push(case("far from zero, other axis", 3, 37, 19).content(Content::Offset));
    }
    if key.size("src") == key.size("dst") {
        cases.extend(
            pairs.iter().map(|(output, source)| case("in place", 7, 131, 1).in_place(output, source)),
        );
        cases.extend(
            pairs
                .iter()
                .map(|(output, source)| case("in place, other axis", 2, 19, 35).in_place(output, source)),
        );
    }
    cases.push(case("many rows", MANY, 3, 1).repeating(case("many rows", MANY_PERIOD, 3, 1)));
    if !key.op.ends_with("backward") {
        // Wild numbers would leave nothing to say about the finite ones beside an infinity.
        cases.push(case("some masked", 131, 13, 1).content(Content::NonFinite));
    }
    cases
}

pub(super) fn norm(key: &Key, optional: &[&'static str]) -> Vec<Case> {
    let with = |name, rows, cols, epsilon| {
        Case::new(key, name).sizes(&[("rows", rows), ("cols", cols)]).attr("epsilon", epsilon)
    };
    let case = |name, rows, cols| with(name, rows, cols, 1e-5);
    let mut cases = vec![
        case("no rows", 0, 5),
        case("no columns", 5, 0),
        case("one column", 37, 1),
        case("short rows", 37, 3),
        case("odd rows", 7, 131),
        case("tiles", 33, 65),
        case("long rows", 3, 1057),
        case("longer rows", 1, 9001),
        case("non-finite", 13, 37).content(special(key, "")),
        case("misaligned", 7, 131).shifted(1),
        case("misaligned, long rows", 2, 517).shifted(3),
        case("large", 513, 131).repeating(case("large", 7, 131)),
        case("large columns", 67, 1009).repeating(case("large columns", 1, 1009)),
        case("in place", 7, 131).in_place("dst", "src"),
        case("far from zero", 9, 131).content(Content::Offset),
        case("far from zero, long rows", 3, 1057).content(Content::Offset),
    ];
    let mut bare = case("without any option", 7, 131);
    bare.absent = optional.to_vec();
    cases.push(bare);
    cases.extend(optional.iter().map(|name| {
        let mut case = case("without one option", 9, 37);
        case.absent.push(name);
        case
    }));
    let pairs =
        optional.iter().enumerate().flat_map(|(i, a)| optional[i + 1..].iter().map(move |b| [*a, *b]));
    cases.extend(pairs.map(|pair| {
        let mut case = case("without two options", 9, 37);
        case.absent.extend(pair);
        case
    }));
    cases.push(case("many rows", MANY, 3).repeating(case("many rows", MANY_PERIOD, 3)));
    // The same launch as another one, but for what is in the descriptor.
    cases.push(with("large epsilon", 7, 131, 0.5));
    // Such a row's mean is infinite, however its elements are shared out among threads and blocks.
    let infinite = |name, rows, cols| case(name, rows, cols).content(Content::Infinite);
    cases.push(infinite("infinities", 17, 131));
    cases.push(infinite("infinities, misaligned", 17, 131).shifted(1));
    cases.push(infinite("infinities, long rows", 5, 2040));
    cases.push(infinite("infinities, longer rows", 1, 9001));
    cases
}

pub(super) fn reduce(key: &Key) -> Vec<Case> {
    let case = |name, outer, reduced, inner| {
        Case::new(key, name).sizes(&[("outer", outer), ("reduced", reduced), ("inner", inner)])
    };
    let accumulates = matches!(key.selector("op"), "sum" | "mean" | "prod");
    let wide = if accumulates { Content::Modest } else { Content::Wild };
    // The exact product of many numbers leaves every float's range.
    let long = if key.selector("op") == "prod" { 37 } else { 1057 };
    vec![
        case("empty", 0, 5, 3),
        case("over nothing", 5, 0, 3),
        case("one", 37, 1, 1),
        case("rows", 9, 37, 1).content(wide),
        case("short rows", 131, 3, 1).content(wide),
        case("a long row", 1, long, 1),
        case("columns", 1, 37, 131).content(wide),
        case("narrow columns", 1, 35, 2),
        case("middle axis", 5, 33, 35).content(wide),
        case("tiles", 33, 36, 1),
        case("misaligned", 5, 67, 1).shifted(1),
        case("misaligned columns", 3, 19, 37).shifted(3),
        case("large", 601, 3, 111).repeating(case("large", 3, 3, 111)),
        case("large rows", 67, long, 1).repeating(case("large rows", 3, long, 1)),
        case("many short", 67, 2, 3).content(wide),
        case("equal elements", 33, 131, 1).content(Content::Few),
        case("equal elements in columns", 3, 67, 5).content(Content::Few),
        case("many rows", MANY, 3, 1).repeating(case("many rows", MANY_PERIOD, 3, 1)),
        case("many columns", 1, 3, MANY),
    ]
}
