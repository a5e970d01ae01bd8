//! Cases of the ops that compute element by element.

use super::{PERIOD, lengths, special};
use crate::case::{Case, Content, Key};
use ep_core::Scalar;

pub(super) fn add(key: &Key) -> Vec<Case> {
    let case = |name, n, arity| {
        let mut case = Case::new(key, name).sizes(&[("count", n)]);
        case.arity = arity;
        case
    };
    vec![
        case("empty", 0, 2),
        case("no source", 37, 0),
        case("one source", 37, 1),
        case("one element", 1, 2),
        case("two", 131, 2),
        case("three", 1057, 3),
        case("nine", 131, 9),
        case("non-finite", 389, 2).content(special(key, "")),
        case("non-finite, four", 131, 4).content(special(key, "")),
        case("misaligned", 67, 2).shifted(1),
        case("misaligned, five", 513, 5).shifted(3),
        case("in place", 131, 2).in_place("dst", "srcs"),
        case("in place of many", 67, 11).in_place("dst", "srcs"),
        case("large", 65_539, 2).repeating(case("large", PERIOD, 2)),
    ]
}

/// Parameters within every function's domain; `hard_tanh` needs the first below the second.
fn with_attrs(case: Case) -> Case {
    case.attr("attr0", 0.75).attr("attr1", 1.5)
}

/// What a function is tried on. Arithmetic of complex numbers with infinite parts has no agreed results.
fn content(key: &Key, function: &str) -> Content {
    if function.contains("backward") || function.contains("_grad") {
        return crate::tolerance::wild(&key.op, function);
    }
    special(key, function)
}

pub(super) fn unary(key: &Key) -> Vec<Case> {
    let function = key.selector("op");
    let make = |name: &'static str, n| {
        let case = Case::new(key, name).sizes(&[("count", n)]);
        // Half of them, by the name, which a case has in common with the smaller one that it repeats.
        let wide = if name.len().is_multiple_of(2) { content(key, function) } else { Content::Modest };
        let case = case.content(wide);
        if key.op == "cast" { case } else { with_attrs(case) }
    };
    let mut cases = lengths(make);
    let wide = make("non-finite", 389).content(content(key, function));
    cases.push(wide.clone());
    if key.size("src") == key.size("dst") {
        let mut shared = wide.in_place("dst", "src");
        shared.name = "in place";
        cases.push(shared);
    }
    if key.op != "cast" {
        // The same launch as another one, but for what is in the descriptor.
        let other = Case::new(key, "other attributes").sizes(&[("count", 131)]);
        cases.push(other.attr("attr0", 0.5).attr("attr1", 1.25));
    }
    cases
}

pub(super) fn strided_unary(key: &Key) -> Vec<Case> {
    let case = |name, src: [&[i64]; 2], dst: [&[i64]; 2]| {
        with_attrs(Case::new(key, name))
            .list("src_dims", src[0])
            .list("src_strides", src[1])
            .list("dst_dims", dst[0])
            .list("dst_strides", dst[1])
            .content(content(key, key.selector("op")))
    };
    vec![
        case("empty", [&[3, 0], &[1, 1]], [&[3, 0], &[1, 1]]),
        case("scalar", [&[], &[]], [&[], &[]]),
        case("contiguous", [&[7, 37], &[37, 1]], [&[7, 37], &[37, 1]]),
        case("rows of a wider source", [&[9, 4], &[5, 1]], [&[9, 4], &[4, 1]]),
        case("gaps on both sides", [&[5, 3, 17], &[120, 40, 2]], [&[5, 3, 17], &[70, 20, 1]]),
        case("transposed", [&[33, 35], &[1, 33]], [&[33, 35], &[35, 1]]),
        case("broadcast", [&[3, 1], &[1, 1]], [&[2, 3, 41], &[123, 41, 1]]),
        case("stride 0", [&[6, 5], &[0, 1]], [&[6, 5], &[1, 6]]),
        case("odd", [&[9, 37], &[41, 1]], [&[9, 37], &[37, 1]]),
        case("misaligned", [&[7, 37], &[37, 1]], [&[7, 37], &[40, 1]]).shifted(1),
        case("large", [&[67, 1009], &[0, 1]], [&[67, 1009], &[1009, 1]]).repeating(case(
            "large",
            [&[1, 1009], &[0, 1]],
            [&[1, 1009], &[1009, 1]],
        )),
        case(
            "rank 8",
            [&[2, 1, 3, 2, 1, 2, 3, 2], &[36, 1, 12, 6, 9, 3, 0, 1]],
            [&[2, 1, 3, 2, 1, 2, 3, 2], &[72, 72, 24, 12, 12, 6, 2, 1]],
        ),
    ]
}

pub(super) fn binary(key: &Key) -> Vec<Case> {
    let function = key.selector("op");
    let with = |name, attrs: [f64; 2]| Case::new(key, name).attr("attr0", attrs[0]).attr("attr1", attrs[1]);
    let base = |name| with(name, [0.75, 0.25]);
    let case = |name, a: &[i64], b: &[i64]| base(name).list("src0_dims", a).list("src1_dims", b);
    let wide = content(key, function);
    let mut cases = vec![
        case("empty", &[3, 0], &[1, 1]),
        case("rank 0", &[], &[]),
        case("same shape", &[131], &[131]),
        case("non-finite", &[389], &[389]).content(wide),
        case("misaligned", &[131], &[131]).shifted(1),
        case("misaligned rows", &[9, 37], &[37]).shifted(3),
        case("large", &[65_539], &[65_539]).repeating(case("large", &[PERIOD], &[PERIOD])),
        case("large rows", &[67, 1009], &[1009]).repeating(case("large rows", &[1, 1009], &[1009])),
        case("tiles", &[33, 35], &[33, 35]).content(wide),
        case("row", &[9, 37], &[37]),
        case("column", &[9, 37], &[9, 1]),
        case("outer product", &[2, 1, 3], &[4, 3]).content(wide),
        case("middle", &[3, 1, 5, 7], &[1, 4, 1, 7]).content(wide),
        case("rank 8", &[2, 1, 3, 1, 2, 1, 2, 3], &[1, 2, 1, 2, 1, 3, 1, 3]),
        case("scalar first", &[], &[67]).scalar("scalar0", Scalar::F64(2.0)).content(wide),
        case("scalar second", &[67], &[]).scalar("scalar1", Scalar::I64(3)).content(wide),
    ];
    if key.size("src") == key.size("dst") {
        let shared =
            |name, a: &[i64], b: &[i64], source| case(name, a, b).content(wide).in_place("dst", source);
        cases.push(shared("in place of the first, same shape", &[137], &[137], "src0"));
        cases.push(shared("in place of the second, same shape", &[137], &[137], "src1"));
        cases.push(shared("in place of the first", &[9, 37], &[37], "src0"));
        cases.push(shared("in place of the second", &[37], &[9, 37], "src1"));
    }
    // The same launch as another one, but for what is in the descriptor.
    let other = with("other attributes", [0.5, 0.125]);
    cases.push(other.list("src0_dims", &[131]).list("src1_dims", &[131]));
    cases
}

pub(super) fn choose(key: &Key) -> Vec<Case> {
    let case = |name, c: &[i64], x: &[i64], y: &[i64]| {
        Case::new(key, name).list("cond_dims", c).list("x_dims", x).list("y_dims", y).content(Content::Wild)
    };
    let mut cases = vec![
        case("empty", &[0], &[1], &[]),
        case("rank 0", &[], &[], &[]),
        case("same shape", &[131], &[131], &[131]),
        case("tiles", &[33, 35], &[33, 35], &[33, 35]),
        case("misaligned", &[131], &[131], &[131]).shifted(1),
        case("large", &[257, 259], &[257, 259], &[259]),
        case("scalars", &[37], &[], &[1]),
        case("row and column", &[9, 37], &[37], &[9, 1]),
        case("condition broadcast", &[9, 1], &[9, 37], &[1, 37]),
        case("outer", &[4, 1, 1], &[3, 1], &[5]),
        case("rank 8", &[2, 1, 3, 1, 2, 1, 2, 3], &[1, 2, 1, 2, 1, 3, 1, 3], &[3]),
        case("in place of x", &[37], &[9, 37], &[1]).in_place("dst", "x"),
        case("in place of y", &[9, 37], &[37], &[9, 37]).in_place("dst", "y"),
    ];
    if key.size("cond") == key.size("data") {
        cases.push(case("in place of the condition", &[9, 37], &[37], &[1]).in_place("dst", "cond"));
    }
    cases
}
