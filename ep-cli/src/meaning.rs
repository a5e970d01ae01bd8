//! Which combinations of an op's selectors and dtypes have a meaning.
//!
//! This is the contract of `docs/primitives.md` as a table, apart from what any provider does, so that a gap in a
//! provider cannot hide as "unsupported".

use ep_core::DType;

/// The closed list of reasons, with their text; `docs/cli.md` has it too.
pub const REASONS: [(&str, &str); 10] = [
    ("result_dtype", "the op gives another dtype for these"),
    ("float_only", "the function is defined on floats"),
    ("integer_only", "the function is defined on bits: bool and integers"),
    ("complex_only", "the function takes a complex number apart"),
    ("real_only", "the function has no complex form: it needs an order, or rounds"),
    ("no_complex", "the function has a complex form, which is not offered"),
    ("no_bool", "bool has no arithmetic"),
    ("index_dtype", "positions are i32 or i64"),
    ("condition_dtype", "a condition is bool or an integer"),
    ("stats_dtype", "statistics are f64 for f64, else f32"),
];

/// Ops on real and complex numbers, whose results have the source's dtype.
const UNARY_OF_ANY: [&str; 2] = ["identity", "square"];
const UNARY_OF_NUMBERS: [&str; 1] = ["negative"];
const UNARY_OF_FLOAT_AND_COMPLEX: [&str; 3] = ["exp", "reciprocal", "sqrt"];
const UNARY_OF_REALS: [&str; 11] = [
    "relu",
    "square_relu",
    "abs",
    "ceil",
    "floor",
    "rint",
    "round",
    "sign",
    "trunc",
    "not_equal_zero",
    "nan_assign",
];
/// Functions that have no complex form; nor have their gradients. Of the others that are not offered for complex
/// numbers, all have one.
const ORDERED: [&str; 28] = [
    "relu",
    "square_relu",
    "ceil",
    "floor",
    "rint",
    "round",
    "trunc",
    "elu",
    "celu",
    "selu",
    "hard_swish",
    "hard_sigmoid",
    "hard_shrink",
    "hard_tanh",
    "leaky_relu",
    "soft_shrink",
    "soft_plus",
    "threshold",
    "max",
    "min",
    "fmod",
    "floor_div",
    "trunc_div",
    "floor_mod",
    "less_than",
    "less_equal",
    "greater_than",
    "greater_equal",
];
const UNARY_TESTS: [&str; 4] = ["logical_not", "is_inf", "is_nan", "is_finite"];
const BINARY_OF_ANY: [&str; 4] = ["add", "sub", "mul", "div"];
const BINARY_OF_REALS: [&str; 7] = ["max", "min", "pow", "fmod", "floor_div", "trunc_div", "floor_mod"];
const BINARY_TESTS_OF_ANY: [&str; 2] = ["equal", "not_equal"];
const BINARY_TESTS: [&str; 9] = [
    "less_than",
    "less_equal",
    "greater_than",
    "greater_equal",
    "is_close",
    "is_close_equal_nan",
    "logical_and",
    "logical_or",
    "logical_xor",
];
const BITWISE: [&str; 4] = ["bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor"];

fn float(d: DType) -> bool {
    DType::FLOAT.contains(&d)
}

fn complex(d: DType) -> bool {
    DType::COMPLEX.contains(&d)
}

fn whole(d: DType) -> bool {
    d == DType::BOOL || DType::INT.contains(&d)
}

fn index(d: DType) -> bool {
    d == DType::I32 || d == DType::I64
}

/// That a number is not complex, for a function or gradient, and the reason why it has to be.
fn real(op: &str, d: DType) -> (bool, &'static str) {
    let function = op.find("_backward_with_").map_or(op, |end| &op[..end]);
    (!complex(d), if ORDERED.contains(&function) { "real_only" } else { "no_complex" })
}

/// `None` if all hold; else the reason of the first that does not.
fn first(checks: &[(bool, &'static str)]) -> Option<&'static str> {
    checks.iter().find(|(holds, _)| !holds).map(|(_, reason)| *reason)
}

/// The reason of [`reason`] for dtypes by their names, with its text. `None` also where nothing is known: for what is
/// not the core's, and for dtypes that no op is defined on.
pub fn explained(op: &str, selectors: &[String], dtypes: &[String]) -> Option<(&'static str, &'static str)> {
    let dtypes: Vec<DType> = dtypes.iter().map(|d| DType::parse(d).ok()).collect::<Option<_>>()?;
    let known = ep_core::schema::core_schema(op).is_some() && dtypes.iter().all(|d| DType::ALL.contains(d));
    let code = known.then(|| reason(op, selectors, &dtypes))??;
    REASONS.iter().find(|(reason, _)| *reason == code).copied()
}

/// Why a combination has no meaning; `None` if it has one.
pub fn reason(op: &str, selectors: &[String], dtypes: &[DType]) -> Option<&'static str> {
    let selector = selectors.first().map_or("", String::as_str);
    match (op, dtypes) {
        ("cast" | "strided_copy" | "memcpy" | "memset", _) => None,
        ("fill" | "tensor_fill" | "permute" | "copy_nd" | "constant_pad" | "add", _) => None,
        ("arange", [d]) => first(&[(*d != DType::BOOL, "no_bool"), (!complex(*d), "no_complex")]),
        ("elementwise_unary" | "broadcast_elementwise_unary", [src, dst]) => unary(selector, *src, *dst),
        ("broadcast_elementwise_binary", [src, dst]) => binary(selector, *src, *dst),
        ("where", [cond, _]) => first(&[(whole(*cond), "condition_dtype")]),
        ("one_hot" | "gather" | "batch_gather", [indices, _]) => first(&[(index(*indices), "index_dtype")]),
        ("scatter_add", [indices, data]) => {
            first(&[(index(*indices), "index_dtype"), (*data != DType::BOOL, "no_bool")])
        }
        ("softmax" | "log_softmax" | "softmax_backward" | "log_softmax_backward", [src, dst]) => first(&[
            (!complex(*src) && !complex(*dst), "no_complex"),
            (float(*src) && float(*dst), "float_only"),
        ]),
        ("layer_norm" | "rms_norm", [data, stats]) => {
            let wanted = if *data == DType::F64 { DType::F64 } else { DType::F32 };
            first(&[
                (!complex(*data), "no_complex"),
                (float(*data), "float_only"),
                (*stats == wanted, "stats_dtype"),
            ])
        }
        ("reduce", [src, dst]) => reduce(selector, *src, *dst),
        ("arg_reduce", [src, dst]) => first(&[(!complex(*src), "real_only"), (index(*dst), "index_dtype")]),
        ("matmul" | "batch_matmul" | "broadcast_matmul", [data]) => {
            first(&[(*data != DType::BOOL, "no_bool")])
        }
        _ => None,
    }
}

fn unary(op: &str, src: DType, dst: DType) -> Option<&'static str> {
    let same = (src == dst, "result_dtype");
    let to_bool = (dst == DType::BOOL, "result_dtype");
    match op {
        "cast" => None,
        "real" | "imag" => first(&[(complex(src), "complex_only"), (float(dst), "result_dtype")]),
        "real_grad" | "imag_grad" => first(&[(float(src), "float_only"), (complex(dst), "result_dtype")]),
        "conj" => first(&[(complex(src), "complex_only"), same]),
        op if UNARY_OF_ANY.contains(&op) => first(&[same]),
        op if UNARY_OF_NUMBERS.contains(&op) => first(&[(src != DType::BOOL, "no_bool"), same]),
        op if UNARY_OF_FLOAT_AND_COMPLEX.contains(&op) => first(&[(!whole(src), "float_only"), same]),
        op if UNARY_OF_REALS.contains(&op) => first(&[real(op, src), same]),
        op if UNARY_TESTS.contains(&op) => first(&[real(op, src), to_bool]),
        op if BITWISE.contains(&op) => first(&[(whole(src), "integer_only"), same]),
        _ => first(&[real(op, src), (float(src), "float_only"), same]),
    }
}

fn binary(op: &str, src: DType, dst: DType) -> Option<&'static str> {
    let same = (src == dst, "result_dtype");
    let to_bool = (dst == DType::BOOL, "result_dtype");
    match op {
        "sqrt_backward_with_dy_x" => first(&[(!whole(src), "float_only"), same]),
        op if BINARY_OF_ANY.contains(&op) => first(&[same]),
        op if BINARY_OF_REALS.contains(&op) => first(&[real(op, src), same]),
        op if BINARY_TESTS_OF_ANY.contains(&op) => first(&[to_bool]),
        op if BINARY_TESTS.contains(&op) => first(&[real(op, src), to_bool]),
        op if BITWISE.contains(&op) => first(&[(whole(src), "integer_only"), same]),
        _ => first(&[real(op, src), (float(src), "float_only"), same]),
    }
}

fn reduce(op: &str, src: DType, dst: DType) -> Option<&'static str> {
    let half = src == DType::F16 || src == DType::BF16;
    let wider = half && dst == DType::F32;
    let small = whole(src) && ![DType::I64, DType::U64].contains(&src);
    match op {
        "sum" | "prod" => match src {
            DType::BOOL => first(&[(dst == DType::I64, "result_dtype")]),
            _ => first(&[(src == dst || wider || (small && dst == DType::I64), "result_dtype")]),
        },
        "mean" => first(&[(!whole(src), "float_only"), (src == dst || wider, "result_dtype")]),
        "max" | "min" => first(&[(!complex(src), "real_only"), (src == dst, "result_dtype")]),
        _ => first(&[(dst == DType::BOOL, "result_dtype")]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::primitive::{BinaryOp, UnaryOp};

    #[test]
    fn every_reason_is_in_the_list_and_used() {
        let mut used = std::collections::BTreeSet::new();
        let all = || DType::REAL.iter().chain(DType::COMPLEX).copied();
        for schema in ep_core::schema::core_schemas() {
            for selectors in crate::support::selector_tuples(&schema) {
                for src in all() {
                    for dst in all() {
                        let dtypes = &[src, dst][..schema.dtypes().count()];
                        used.extend(reason(&schema.name, &selectors, dtypes));
                    }
                }
            }
        }
        assert_eq!(used, REASONS.iter().map(|(r, _)| *r).collect());
    }

    #[test]
    fn the_documentation_has_every_reason() {
        let text = include_str!("../../docs/cli.md");
        let (_, section) = text.split_once("\n## Reasons\n").expect("docs/cli.md has the section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let row = |line: &str| {
            let (code, meaning) = line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")?;
            Some((code.to_owned(), meaning.to_owned()))
        };
        let rows: Vec<_> = section.lines().filter_map(row).collect();
        assert_eq!(rows, REASONS.map(|(code, meaning)| (code.to_owned(), meaning.to_owned())));
    }

    #[test]
    fn reasons_are_given_for_what_is_known() {
        let of = |op: &str, dtypes: [&str; 2]| explained(op, &[], &dtypes.map(str::to_owned));
        assert_eq!(of("softmax", ["f32", "i32"]), Some(("float_only", "the function is defined on floats")));
        for (op, dtypes) in [
            ("softmax", ["f32", "f32"]),
            ("softmax", ["f32", "f8e4m3"]),
            ("softmax", ["f32", "acme.q8"]),
            ("acme.softmax", ["f32", "i32"]),
        ] {
            assert_eq!(of(op, dtypes), None, "{op} {dtypes:?}");
        }
    }

    #[test]
    fn the_lists_name_real_functions() {
        let unary = [
            &UNARY_OF_ANY[..],
            &UNARY_OF_NUMBERS,
            &UNARY_OF_FLOAT_AND_COMPLEX,
            &UNARY_OF_REALS,
            &UNARY_TESTS,
        ];
        assert!(unary.concat().iter().all(|n| UnaryOp::NAMES.contains(n)));
        let binary = [&BINARY_OF_ANY[..], &BINARY_OF_REALS, &BINARY_TESTS_OF_ANY, &BINARY_TESTS];
        assert!(binary.concat().iter().all(|n| BinaryOp::NAMES.contains(n)));
        let named = |n: &&str| UnaryOp::NAMES.contains(n) || BinaryOp::NAMES.contains(n);
        assert!(ORDERED.iter().all(named));
        assert!(BITWISE.iter().all(named));
    }

    #[test]
    fn meanings() {
        use DType as D;
        let why = |op: &str, s: &str, d: &[DType]| reason(op, &[s.to_owned()], d);
        assert_eq!(why("elementwise_unary", "tanh", &[D::F16, D::F16]), None);
        assert_eq!(why("elementwise_unary", "tanh", &[D::F16, D::F32]), Some("result_dtype"));
        assert_eq!(why("elementwise_unary", "tanh", &[D::I8, D::I8]), Some("float_only"));
        assert_eq!(
            why("broadcast_elementwise_binary", "less_than", &[D::COMPLEX64, D::BOOL]),
            Some("real_only")
        );
        assert_eq!(why("elementwise_unary", "relu", &[D::COMPLEX64, D::COMPLEX64]), Some("real_only"));
        assert_eq!(why("elementwise_unary", "hard_tanh", &[D::COMPLEX64, D::COMPLEX64]), Some("real_only"));
        for name in ["abs", "sin", "log", "tanh"] {
            assert_eq!(
                why("elementwise_unary", name, &[D::COMPLEX64, D::COMPLEX64]),
                Some("no_complex"),
                "{name}"
            );
        }
        assert_eq!(why("elementwise_unary", "is_nan", &[D::COMPLEX64, D::BOOL]), Some("no_complex"));
        for (name, reason) in [("relu_backward_with_dy_y", "real_only"), ("pow", "no_complex")] {
            let found = why("broadcast_elementwise_binary", name, &[D::COMPLEX128, D::COMPLEX128]);
            assert_eq!(found, Some(reason), "{name}");
        }
        assert_eq!(why("softmax", "", &[D::COMPLEX64, D::COMPLEX64]), Some("no_complex"));
        assert_eq!(why("reduce", "sum", &[D::I8, D::I64]), None);
        assert_eq!(why("reduce", "sum", &[D::U64, D::I64]), Some("result_dtype"));
        assert_eq!(why("layer_norm", "", &[D::BF16, D::F64]), Some("stats_dtype"));
    }
}
