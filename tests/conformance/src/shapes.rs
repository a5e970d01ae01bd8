//! The cases of each op: arguments for every trait that applies to it.

use crate::case::{Case, Content, Key};
use crate::tolerance::wild;
use ep_core::{DType, Scalar};

/// Element counts: none, one, odd, several vectors and a tail, several tiles of 32 and more.
const COUNTS: [(&str, i64); 5] =
    [("empty", 0), ("one", 1), ("odd", 37), ("vectors and a tail", 131), ("tiles", 1057)];

/// The cases of a key; none for an op that this version does not know.
pub fn cases(key: &Key, seed: u64) -> Vec<Case> {
    let mut cases = match key.op.as_str() {
        "memcpy" => bytes(key, &[]),
        "memset" => bytes(key, &[("value", Scalar::I64(0x1a5))]),
        "fill" => scalars(key, "value"),
        "tensor_fill" => counts(key, "count"),
        "arange" => arange(key),
        "add" => add(key),
        "cast" => unary(key),
        "elementwise_unary" => unary(key),
        "broadcast_elementwise_unary" => strided_unary(key),
        "broadcast_elementwise_binary" => binary(key),
        "where" => choose(key),
        "permute" => permute(key),
        "copy_nd" => copy_nd(key),
        "strided_copy" => strided_copy(key),
        "constant_pad" => pad(key),
        "one_hot" => one_hot(key),
        "gather" => gather(key, &["outer"], "processed"),
        "batch_gather" => gather(key, &["batch", "outer"], "processed"),
        "scatter_add" => gather(key, &["outer"], "processed"),
        "softmax" | "log_softmax" => rows(key, &[("dst", "src")]),
        "softmax_backward" | "log_softmax_backward" => rows(key, &[("dx", "y"), ("dx", "dy")]),
        "layer_norm" => norm(key, &["gamma", "beta", "mean", "rstd"]),
        "rms_norm" => norm(key, &["weight", "inv_rms"]),
        "reduce" | "arg_reduce" => reduce(key),
        "matmul" | "batch_matmul" => matmul(key),
        "broadcast_matmul" => broadcast_matmul(key),
        _ => Vec::new(),
    };
    for (i, case) in cases.iter_mut().enumerate() {
        case.seed = seed.wrapping_mul(1_000_003).wrapping_add(i as u64);
    }
    cases
}

fn counts(key: &Key, size: &'static str) -> Vec<Case> {
    COUNTS.iter().map(|(name, n)| Case::new(key, name).sizes(&[(size, *n)]).content(Content::Wild)).collect()
}

fn bytes(key: &Key, scalars: &[(&'static str, Scalar)]) -> Vec<Case> {
    let with = |mut case: Case| {
        case.scalars.extend_from_slice(scalars);
        case
    };
    counts(key, "bytes").into_iter().map(with).collect()
}

fn scalars(key: &Key, name: &'static str) -> Vec<Case> {
    let values = [
        Scalar::F64(2.5),
        Scalar::I64(-3),
        Scalar::F64(f64::NAN),
        Scalar::Complex(1.5, -2.0),
        Scalar::Bool(true),
    ];
    let make = |((case, n), value): (&(&'static str, i64), Scalar)| {
        Case::new(key, case).sizes(&[("count", *n)]).scalar(name, value)
    };
    COUNTS.iter().zip(values).map(make).collect()
}

fn arange(key: &Key) -> Vec<Case> {
    let case = |name, n, start, step| {
        Case::new(key, name).sizes(&[("count", n)]).scalar("start", start).scalar("step", step)
    };
    vec![
        case("empty", 0, Scalar::None, Scalar::None),
        case("defaults", 67, Scalar::None, Scalar::None),
        case("negative step", 131, Scalar::I64(5), Scalar::I64(-3)),
        case("fractions", 131, Scalar::F64(-0.75), Scalar::F64(0.1)),
        case("wraps", 1057, Scalar::I64(i64::MAX - 3), Scalar::I64(1 << 40)),
    ]
}

fn add(key: &Key) -> Vec<Case> {
    let case = |name, n, arity| {
        let mut case = Case::new(key, name).sizes(&[("count", n)]);
        case.arity = arity;
        case
    };
    vec![
        case("empty", 0, 2),
        case("no source", 37, 0),
        case("one source", 37, 1),
        case("two", 131, 2),
        case("three", 1057, 3),
        case("nine", 131, 9),
        case("in place", 131, 2).in_place("dst", "srcs"),
        case("in place of many", 67, 11).in_place("dst", "srcs"),
    ]
}

/// Parameters within every function's domain; `hard_tanh` needs the first below the second.
fn with_attrs(case: Case) -> Case {
    case.attr("attr0", 0.75).attr("attr1", 1.5)
}

/// What a function is tried on. Arithmetic of complex numbers with infinite parts has no agreed results.
fn content(key: &Key, function: &str) -> Content {
    let complex = key.dtypes.iter().any(|(_, d)| DType::COMPLEX.contains(d));
    let arithmetic =
        !matches!(function, "" | "cast" | "identity" | "conj" | "real" | "imag" | "equal" | "not_equal");
    if complex && arithmetic { Content::Modest } else { wild(&key.op, function) }
}

fn unary(key: &Key) -> Vec<Case> {
    let function = key.selector("op");
    let attrs = |case: Case| if key.op == "cast" { case } else { with_attrs(case) };
    let mut cases: Vec<_> =
        COUNTS.iter().map(|(name, n)| attrs(Case::new(key, name).sizes(&[("count", *n)]))).collect();
    let wide = attrs(Case::new(key, "non-finite").sizes(&[("count", 389)])).content(content(key, function));
    cases.push(wide.clone());
    if key.size("src") == key.size("dst") {
        let mut shared = wide.in_place("dst", "src");
        shared.name = "in place";
        cases.push(shared);
    }
    cases
}

fn strided_unary(key: &Key) -> Vec<Case> {
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
        case(
            "rank 8",
            [&[2, 1, 3, 2, 1, 2, 3, 2], &[36, 1, 12, 6, 9, 3, 0, 1]],
            [&[2, 1, 3, 2, 1, 2, 3, 2], &[72, 72, 24, 12, 12, 6, 2, 1]],
        ),
    ]
}

fn binary(key: &Key) -> Vec<Case> {
    let function = key.selector("op");
    let base = |name| Case::new(key, name).attr("attr0", 0.75).attr("attr1", 0.25);
    let case = |name, a: &[i64], b: &[i64]| base(name).list("src0_dims", a).list("src1_dims", b);
    let wide = content(key, function);
    let mut cases = vec![
        case("empty", &[3, 0], &[1, 1]),
        case("rank 0", &[], &[]),
        case("same shape", &[131], &[131]),
        case("non-finite", &[389], &[389]).content(wide),
        case("tiles", &[33, 35], &[33, 35]),
        case("row", &[9, 37], &[37]),
        case("column", &[9, 37], &[9, 1]),
        case("outer product", &[2, 1, 3], &[4, 3]),
        case("middle", &[3, 1, 5, 7], &[1, 4, 1, 7]),
        case("rank 8", &[2, 1, 3, 1, 2, 1, 2, 3], &[1, 2, 1, 2, 1, 3, 1, 3]),
        case("scalar first", &[], &[67]).scalar("scalar0", Scalar::F64(2.0)).content(wide),
        case("scalar second", &[67], &[]).scalar("scalar1", Scalar::I64(3)).content(wide),
    ];
    if key.size("src") == key.size("dst") {
        cases.push(case("in place of the first", &[9, 37], &[37]).in_place("dst", "src0"));
        cases.push(case("in place of the second", &[37], &[9, 37]).in_place("dst", "src1"));
    }
    cases
}

fn choose(key: &Key) -> Vec<Case> {
    let case = |name, c: &[i64], x: &[i64], y: &[i64]| {
        Case::new(key, name).list("cond_dims", c).list("x_dims", x).list("y_dims", y).content(Content::Wild)
    };
    let mut cases = vec![
        case("empty", &[0], &[1], &[]),
        case("rank 0", &[], &[], &[]),
        case("same shape", &[131], &[131], &[131]),
        case("tiles", &[33, 35], &[33, 35], &[33, 35]),
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

fn permute(key: &Key) -> Vec<Case> {
    let case = |name, dims: &[i64], order: &[i64]| {
        Case::new(key, name).list("src_dims", dims).list("permutation", order).content(Content::Wild)
    };
    vec![
        case("empty", &[3, 0, 2], &[2, 1, 0]),
        case("rank 0", &[], &[]),
        case("identity", &[5, 37], &[0, 1]),
        case("transpose", &[37, 131], &[1, 0]),
        case("tall transpose", &[257, 3], &[1, 0]),
        case("flat transpose", &[3, 257], &[1, 0]),
        case("channels last", &[2, 3, 9, 11], &[0, 2, 3, 1]),
        case("channels first", &[2, 9, 11, 3], &[0, 3, 1, 2]),
        case("rows", &[3, 5, 2, 17], &[0, 2, 1, 3]),
        case("reversed", &[5, 3, 7, 9], &[3, 2, 1, 0]),
        case("ones", &[1, 33, 1, 35], &[3, 0, 1, 2]),
        case("rank 8", &[2, 1, 3, 2, 1, 2, 3, 2], &[7, 2, 0, 5, 1, 3, 6, 4]),
    ]
}

fn copy_nd(key: &Key) -> Vec<Case> {
    let case = |name, dst: [&[i64]; 2], src: [&[i64]; 2], extent: &[i64]| {
        Case::new(key, name)
            .list("dst_dims", dst[0])
            .list("dst_pos", dst[1])
            .list("src_dims", src[0])
            .list("src_pos", src[1])
            .list("extent", extent)
            .content(Content::Wild)
    };
    vec![
        case("empty", [&[4, 4], &[1, 1]], [&[3, 3], &[0, 0]], &[2, 0]),
        case("rank 0", [&[], &[]], [&[], &[]], &[]),
        case("all", [&[131], &[0]], [&[131], &[0]], &[131]),
        case("into a part", [&[9, 41], &[2, 3]], [&[5, 37], &[0, 0]], &[5, 37]),
        case("from a part", [&[5, 37], &[0, 0]], [&[9, 41], &[2, 3]], &[5, 37]),
        case("window", [&[7, 9, 11], &[1, 2, 3]], [&[8, 7, 13], &[3, 0, 5]], &[5, 6, 8]),
        case("columns", [&[33, 2], &[0, 1]], [&[33, 5], &[0, 4]], &[33, 1]),
        case("tiles", [&[40, 70], &[3, 3]], [&[37, 67], &[1, 0]], &[36, 66]),
        case(
            "rank 8",
            [&[2, 1, 3, 2, 1, 2, 3, 2], &[0; 8]],
            [&[2, 2, 3, 2, 1, 2, 3, 3], &[0, 1, 0, 0, 0, 0, 0, 1]],
            &[2, 1, 3, 2, 1, 2, 3, 2],
        ),
        case("outside", [&[4, 4], &[3, 0]], [&[3, 3], &[0, 0]], &[2, 2]),
    ]
}

fn strided_copy(key: &Key) -> Vec<Case> {
    let case = |name, dims: &[i64], src: &[i64], dst: &[i64], offsets: [i64; 2]| {
        Case::new(key, name)
            .list("dims", dims)
            .list("src_strides", src)
            .list("dst_strides", dst)
            .sizes(&[("src_offset", offsets[0]), ("dst_offset", offsets[1])])
            .content(Content::Wild)
    };
    vec![
        case("empty", &[3, 0], &[1, 1], &[1, 1], [0, 0]),
        case("rank 0", &[], &[], &[], [2, 1]),
        case("contiguous", &[9, 37], &[37, 1], &[37, 1], [0, 0]),
        case("every second", &[5, 41], &[90, 2], &[41, 1], [1, 0]),
        case("into every third", &[131], &[1], &[3], [0, 2]),
        case("transposed", &[33, 35], &[1, 33], &[35, 1], [0, 0]),
        case("backwards", &[4, 37], &[-37, -1], &[37, 1], [147, 0]),
        case("to the back", &[67], &[1], &[-2], [0, 132]),
        case("broadcast", &[6, 5, 17], &[0, 17, 1], &[85, 17, 1], [0, 0]),
        case("one element", &[3, 37], &[0, 0], &[37, 1], [4, 0]),
        case(
            "rank 8",
            &[2, 1, 3, 2, 1, 2, 3, 2],
            &[1, 0, 2, 6, 0, 12, 24, 72],
            &[72, 7, 24, 12, 5, 6, 2, 1],
            [0, 0],
        ),
        case("below the start", &[5], &[-1], &[1], [3, 0]),
        case("twice the same element", &[5, 2], &[2, 1], &[1, 0], [0, 0]),
    ]
}

fn pad(key: &Key) -> Vec<Case> {
    let case = |name, dims: &[i64], before: &[i64], after: &[i64], value| {
        Case::new(key, name)
            .list("src_dims", dims)
            .list("padding_before", before)
            .list("padding_after", after)
            .scalar("value", value)
            .content(Content::Wild)
    };
    let v = Scalar::F64(2.5);
    vec![
        case("empty", &[3, 4], &[-3, 0], &[0, 0], v),
        case("only padding", &[0, 4], &[2, 0], &[1, 3], v),
        case("rank 0", &[], &[], &[], v),
        case("nothing", &[9, 37], &[0, 0], &[0, 0], v),
        case("vector", &[67], &[3], &[5], Scalar::I64(-7)),
        case("image", &[2, 3, 9, 11], &[0, 0, 1, 1], &[0, 0, 1, 1], Scalar::None),
        case("rows only", &[5, 37], &[2, 0], &[1, 0], v),
        case("columns only", &[33, 35], &[0, 1], &[0, 4], v),
        case("crop", &[9, 41], &[-2, -3], &[-1, -5], v),
        case("crop and pad", &[9, 41], &[-2, 3], &[4, -5], v),
        case("more cropped than there is", &[4], &[-6], &[5], v),
        case("rank 8", &[2, 1, 3, 2, 1, 2, 3, 2], &[0, 1, 0, 0, 1, 0, -1, 1], &[1, 0, 0, -1, 0, 0, 1, 0], v),
        case("negative", &[4], &[-3], &[-2], v),
    ]
}

/// A range of indices that the mode accepts, and one that it refuses, for an axis of this length.
fn index_ranges(key: &Key, size: i64) -> Vec<(&'static str, (i64, i64))> {
    match key.selector("mode") {
        "wrap" => vec![("wraps", (-size, size)), ("refused", (-size - 2, size + 2))],
        "zero" => vec![("outside gives zeros", (-3, size + 3))],
        _ => vec![("refused", (-1, size + 1))],
    }
}

fn one_hot(key: &Key) -> Vec<Case> {
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
        case("window", 67, 7, 5, 20, (0, 20)),
        case("values", 37, 11, 0, 0, (0, 11)).scalar("on", Scalar::F64(2.5)).scalar("off", Scalar::I64(-1)),
    ];
    cases.extend(index_ranges(key, 20).into_iter().map(|(name, range)| case(name, 67, 7, 5, 20, range)));
    cases
}

fn gather(key: &Key, outer: &[&'static str], axis: &'static str) -> Vec<Case> {
    let case = |name, o: i64, n: i64, inner: i64, indices: i64, window: [i64; 2], range| {
        let mut case = Case::new(key, name).sizes(&[
            (axis, n),
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
        case("window", 2, 7, 5, 67, [5, 20], (0, 20)),
    ];
    for (name, range) in index_ranges(key, 20) {
        cases.push(case(name, 2, 7, 5, 67, [5, 20], range));
        cases.push(case(name, 1, 20, 1, 131, [0, 0], range));
    }
    cases
}

fn rows(key: &Key, pairs: &[(&'static str, &'static str)]) -> Vec<Case> {
    let case = |name, rows, cols, inner| {
        Case::new(key, name).sizes(&[("rows", rows), ("cols", cols), ("inner", inner)])
    };
    let wide = wild(&key.op, "");
    let mut cases = vec![
        case("no rows", 0, 5, 1),
        case("no columns", 5, 0, 1),
        case("one column", 37, 1, 0),
        case("short rows", 37, 3, 1),
        case("a vector", 19, 16, 1),
        case("odd rows", 7, 131, 1),
        case("tiles", 33, 65, 1),
        case("long rows", 3, 1057, 1),
        case("longer rows", 1, 9001, 1),
        case("non-finite", 13, 37, 1).content(wide),
        case("other axis", 3, 37, 35),
        case("other axis, short", 2, 3, 131).content(wide),
        case("other axis, narrow", 5, 67, 2),
    ];
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
    cases
}

fn norm(key: &Key, optional: &[&'static str]) -> Vec<Case> {
    let case = |name, rows, cols| {
        Case::new(key, name).sizes(&[("rows", rows), ("cols", cols)]).attr("epsilon", 1e-5)
    };
    let mut cases = vec![
        case("no rows", 0, 5),
        case("no columns", 5, 0),
        case("one column", 37, 1),
        case("short rows", 37, 3),
        case("odd rows", 7, 131),
        case("tiles", 33, 65),
        case("long rows", 3, 1057),
        case("longer rows", 1, 9001),
        case("in place", 7, 131).in_place("dst", "src"),
    ];
    let mut bare = case("without any option", 7, 131);
    bare.absent = optional.to_vec();
    cases.push(bare);
    cases.extend(optional.iter().map(|name| {
        let mut case = case("without one option", 9, 37);
        case.absent.push(name);
        case
    }));
    cases
}

fn reduce(key: &Key) -> Vec<Case> {
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
        case("many short", 67, 2, 3).content(wide),
    ]
}

fn factors(key: &Key) -> [(Scalar, Scalar); 3] {
    let whole = DType::INT.contains(&key.dtype("data"));
    let alpha = if whole { Scalar::I64(3) } else { Scalar::F64(0.5) };
    let beta = if whole { Scalar::I64(-2) } else { Scalar::F64(-0.75) };
    [(Scalar::None, Scalar::None), (alpha, Scalar::F64(0.0)), (alpha, beta)]
}

fn matmul(key: &Key) -> Vec<Case> {
    let shapes = [
        ("empty", [0, 5, 3]),
        ("nothing to sum", [5, 3, 0]),
        ("one", [1, 1, 1]),
        ("small", [8, 8, 8]),
        ("odd", [7, 13, 5]),
        ("a row", [1, 67, 37]),
        ("a column", [67, 1, 37]),
        ("outer product", [19, 35, 1]),
        ("tiles", [33, 65, 34]),
        ("deep", [17, 18, 131]),
    ];
    let mut cases = Vec::new();
    for (i, (name, [m, n, k])) in shapes.into_iter().enumerate() {
        for (alpha, beta) in [factors(key)[i % 3], factors(key)[2]] {
            let mut case = Case::new(key, name)
                .sizes(&[("m", m), ("n", n), ("k", k)])
                .scalar("alpha", alpha)
                .scalar("beta", beta);
            if key.op == "batch_matmul" {
                case = case.sizes(&[("batch", 3)]);
            }
            cases.push(case);
        }
    }
    cases
}

fn broadcast_matmul(key: &Key) -> Vec<Case> {
    /// Name, and the batch dimensions of a, b and c.
    type Batches<'a> = (&'a str, &'a [i64], &'a [i64], &'a [i64]);
    let batches: [Batches<'_>; 9] = [
        ("plain", &[], &[], &[]),
        ("batch", &[3], &[3], &[3]),
        ("one b", &[2, 3], &[], &[2, 3]),
        ("one a", &[], &[3], &[3]),
        ("both broadcast", &[2, 1], &[1, 3], &[2, 3]),
        ("summed", &[3], &[3], &[]),
        ("partly summed", &[2, 3], &[2, 3], &[2, 1]),
        ("summed in front", &[2, 3], &[3], &[1, 3]),
        ("no batch", &[0], &[0], &[]),
    ];
    let mut cases = Vec::new();
    for (i, (name, a, b, c)) in batches.into_iter().enumerate() {
        let [m, n, k] = [[5, 7, 9], [1, 19, 17], [17, 33, 18]][i % 3];
        let dims = |batch: &[i64], rows: i64, cols: i64, transpose: &str| {
            let last = if key.selector(transpose) == "none" { [rows, cols] } else { [cols, rows] };
            [batch, &last].concat()
        };
        for (alpha, beta) in [factors(key)[i % 3], factors(key)[2]] {
            cases.push(
                Case::new(key, name)
                    .list("a_dims", &dims(a, m, k, "transpose_a"))
                    .list("b_dims", &dims(b, k, n, "transpose_b"))
                    .list("c_dims", &[c, &[m, n]].concat())
                    .scalar("alpha", alpha)
                    .scalar("beta", beta),
            );
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_of_the_core_has_cases() {
        for schema in ep_core::schema::core_schemas() {
            let first = |choices: &[String]| choices[0].clone();
            let key = Key {
                op: schema.name.clone(),
                selectors: schema.selectors().map(|(f, c)| (f.name.clone(), first(c))).collect(),
                dtypes: schema.dtypes().map(|f| (f.name.clone(), DType::F32)).collect(),
            };
            let cases = cases(&key, 1);
            assert!(cases.len() >= 5, "{}: {} cases", schema.name, cases.len());
            for case in cases {
                let args: Vec<_> = schema.args.iter().map(|a| a.name.as_str()).collect();
                let named = case.sizes.iter().map(|(n, _)| *n).chain(case.lists.iter().map(|(n, _)| *n));
                for name in named.chain(case.scalars.iter().map(|(n, _)| *n)) {
                    assert!(args.contains(&name), "{case}: {name}");
                }
            }
        }
    }
}
