//! Elementwise ops, casts, fills and contiguous copies.

use super::{ANGLES, LARGE, WIDE, add};
use crate::row::{Content, Family, Group, Row};
use ep_core::{DType, Scalar};

const F32: DType = DType::F32;
const NORMAL: Content = Content::Normal(1.0);

/// `dst = op(src)`; `name` is what tables and peers call it.
fn unary(name: &'static str, op: &'static str, dtype: DType, count: i64) -> Row {
    let content = match op {
        "log" | "sqrt" | "rsqrt" | "log2" | "lgamma" | "digamma" | "reciprocal" => Content::Positive,
        _ => NORMAL,
    };
    Row::new(name, "elementwise_unary", Family::Elementwise, dtype)
        .shape(&[count])
        .selector("op", op)
        .role("src", dtype)
        .role("dst", dtype)
        .sizes(&[("count", count)])
        .input("src", dtype, &[count], content)
        .output("dst", dtype, &[count])
        .peer(name, &[])
}

/// `dst = op(a, b)` with broadcasting; the result has dtype `dst`.
fn binary(name: &'static str, op: &'static str, src: DType, dst: DType, a: &[i64], b: &[i64]) -> Row {
    let out = if a.len() >= b.len() { a } else { b };
    let divisor = matches!(op, "div" | "pow" | "fmod" | "floor_mod" | "floor_div");
    Row::new(name, "broadcast_elementwise_binary", Family::Elementwise, src)
        .shape(out)
        .selector("op", op)
        .role("src", src)
        .role("dst", dst)
        .dims("src0_dims", a)
        .dims("src1_dims", b)
        .input("src0", src, a, if op == "pow" { Content::Positive } else { NORMAL })
        .input("src1", src, b, if divisor { Content::Positive } else { NORMAL })
        .output("dst", dst, out)
        .peer(op, &[])
}

fn same(name: &'static str, op: &'static str, dtype: DType, count: i64) -> Row {
    binary(name, op, dtype, dtype, &[count], &[count])
}

fn sum_n(dtype: DType, count: i64) -> Row {
    Row::new("add3_nary", "add", Family::Elementwise, dtype)
        .shape(&[count])
        .role("data", dtype)
        .sizes(&[("count", count)])
        .input("srcs", dtype, &[count], NORMAL)
        .input("srcs", dtype, &[count], NORMAL)
        .input("srcs", dtype, &[count], NORMAL)
        .output("dst", dtype, &[count])
        .peer("sum_n", &[])
}

fn cast(from: DType, to: DType, count: i64) -> Row {
    let wide = if from.bits() >= to.bits() { from } else { to };
    Row::new(format!("cast_{from}_to_{to}"), "cast", Family::Elementwise, wide)
        .shape(&[count])
        .role("src", from)
        .role("dst", to)
        .sizes(&[("count", count)])
        .input("src", from, &[count], Content::Normal(15.0))
        .output("dst", to, &[count])
        .peer("cast", &[])
}

fn fill(dtype: DType, count: i64) -> Row {
    Row::new("fill", "fill", Family::Elementwise, dtype)
        .shape(&[count])
        .role("data", dtype)
        .sizes(&[("count", count)])
        .scalar("value", Scalar::F64(1.5))
        .output("dst", dtype, &[count])
        .peer("fill", &[])
}

fn zero(count: i64) -> Row {
    Row::new("fill_zero", "memset", Family::Elementwise, F32)
        .shape(&[count])
        .sizes(&[("bytes", 4 * count)])
        .scalar("value", Scalar::I64(0))
        .output("dst", F32, &[count])
        .peer("zero", &[])
}

fn copy(count: i64) -> Row {
    Row::new("copy_contig", "memcpy", Family::Elementwise, F32)
        .shape(&[count])
        .selector("kind", "auto")
        .sizes(&[("bytes", 4 * count)])
        .input("src", F32, &[count], NORMAL)
        .output("dst", F32, &[count])
        .peer("copy", &[])
}

/// A row repeated down a matrix.
fn expand_row(rows: i64, cols: i64) -> Row {
    Row::new("expand_row", "broadcast_elementwise_unary", Family::Elementwise, F32)
        .shape(&[rows, cols])
        .selector("op", "identity")
        .role("src", F32)
        .role("dst", F32)
        .dims("src_dims", &[cols])
        .dims("src_strides", &[1])
        .dims("dst_dims", &[rows, cols])
        .dims("dst_strides", &[cols, 1])
        .input("src", F32, &[cols], NORMAL)
        .output("dst", F32, &[rows, cols])
        .peer("expand", &[])
}

fn where_(dtype: DType, cond: &[i64], dims: &[i64]) -> Row {
    Row::new("where", "where", Family::Elementwise, dtype)
        .shape(dims)
        .role("cond", DType::BOOL)
        .role("data", dtype)
        .dims("cond_dims", cond)
        .dims("x_dims", dims)
        .dims("y_dims", dims)
        .input("cond", DType::BOOL, cond, NORMAL)
        .input("x", dtype, dims, NORMAL)
        .input("y", dtype, dims, NORMAL)
        .output("dst", dtype, dims)
        .peer("where", &[])
}

fn tensor_fill(dtype: DType, count: i64) -> Row {
    Row::new("tensor_fill", "tensor_fill", Family::Elementwise, dtype)
        .shape(&[count])
        .role("data", dtype)
        .sizes(&[("count", count)])
        .input("src", dtype, &[1], NORMAL)
        .output("dst", dtype, &[count])
        .peer("expand", &[])
}

fn arange(dtype: DType, count: i64) -> Row {
    Row::new("arange", "arange", Family::Elementwise, dtype)
        .shape(&[count])
        .role("data", dtype)
        .sizes(&[("count", count)])
        .scalar("start", Scalar::I64(3))
        .scalar("step", Scalar::I64(2))
        .output("dst", dtype, &[count])
        .peer("arange", &[3, 2])
}

/// Functions of the grid: name for tables and peers, op.
const FUNCTIONS: [(&str, &str); 14] = [
    ("relu", "relu"),
    ("exp", "exp"),
    ("log", "log"),
    ("sqrt", "sqrt"),
    ("rsqrt", "rsqrt"),
    ("sin", "sin"),
    ("cos", "cos"),
    ("tanh", "tanh"),
    ("sigmoid", "sigmoid"),
    ("silu", "silu"),
    ("gelu_erf", "gelu"),
    ("erf", "erf"),
    ("expm1", "expm1"),
    ("mish", "mish"),
];

pub fn rows(rows: &mut Vec<Row>) {
    large(rows);
    medium_and_small(rows);
    grid(rows);
    let chained = [1 << 22, LARGE].map(|n| {
        let mut row = unary("relu", "relu", F32, n).named("relu_then_read");
        row.then_read = true;
        row
    });
    add(rows, Group::Chain, chained);
}

fn large(rows: &mut Vec<Row>) {
    let n = LARGE;
    let (matrix, row, col) = ([4096, 4096], [4096], [4096, 1]);
    let (i8, f16, bf16) = (DType::I8, DType::F16, DType::BF16);
    let new = [
        same("add", "add", F32, n),
        sum_n(F32, n),
        same("mul", "mul", F32, n),
        binary("add_bcast_row", "add", F32, F32, &matrix, &row),
        binary("add_bcast_col", "add", F32, F32, &matrix, &col),
        same("add_bf16", "add", bf16, n),
        same("add_f16", "add", f16, n),
        unary("relu", "relu", F32, n),
        unary("exp", "exp", F32, n),
        unary("tanh", "tanh", F32, n),
        unary("sigmoid", "sigmoid", F32, n),
        unary("gelu_erf", "gelu", F32, n),
        unary("gelu_tanh", "fast_gelu", F32, n),
        fill(F32, n),
        zero(n),
        copy(n),
        expand_row(4096, 4096),
        cast(F32, f16, n),
        cast(F32, bf16, n),
        cast(F32, i8, n),
        cast(f16, F32, n),
        cast(bf16, F32, n),
        cast(i8, F32, n),
    ];
    add(rows, Group::Large, new);
}

fn medium_and_small(rows: &mut Vec<Row>) {
    for (group, sizes) in [(Group::Medium, [1 << 12, 1 << 16, 1 << 20]), (Group::Small, [4, 64, 1024])] {
        for n in sizes {
            let new = [
                same("add", "add", F32, n),
                unary("exp", "exp", F32, n),
                fill(F32, n),
                cast(F32, DType::F16, n),
            ];
            add(rows, group, new);
            match group {
                Group::Medium => add(rows, group, [unary("gelu_erf", "gelu", F32, n)]),
                _ => add(rows, group, [unary("relu", "relu", F32, n), copy(n)]),
            }
        }
    }
}

fn grid(rows: &mut Vec<Row>) {
    let odd = 1_000_003;
    let (i32, i64, u8, bool, f64) = (DType::I32, DType::I64, DType::U8, DType::BOOL, DType::F64);
    let (f16, bf16, i8) = (DType::F16, DType::BF16, DType::I8);
    add(rows, Group::Grid, FUNCTIONS.map(|(name, op)| unary(name, op, F32, odd)));
    let wide = ["exp", "tanh", "sigmoid", "silu", "gelu_erf", "expm1"];
    let wide = FUNCTIONS.iter().filter(|(name, _)| wide.contains(name));
    add(
        rows,
        Group::Grid,
        wide.map(|(name, op)| unary(name, op, F32, odd).holding(WIDE).named(format!("{name}_wide"))),
    );
    let waves = FUNCTIONS.iter().filter(|(name, _)| matches!(*name, "sin" | "cos"));
    add(
        rows,
        Group::Grid,
        waves.map(|(name, op)| unary(name, op, F32, odd).holding(ANGLES).named(format!("{name}_far"))),
    );
    for dtype in [f16, bf16, f64] {
        let functions =
            FUNCTIONS.iter().filter(|(name, _)| matches!(*name, "relu" | "exp" | "tanh" | "gelu_erf"));
        add(rows, Group::Grid, functions.map(|(name, op)| unary(name, op, dtype, odd)));
    }
    for dtype in [F32, f16, bf16, f64, i8, i32, i64, DType::COMPLEX64] {
        add(rows, Group::Grid, [same("add", "add", dtype, odd), same("mul", "mul", dtype, odd)]);
    }
    let arithmetic = [
        same("div", "div", F32, odd),
        same("max", "max", F32, odd),
        same("pow", "pow", F32, odd),
        same("floor_mod", "floor_mod", F32, odd),
        same("div", "div", i32, odd),
        binary("less_than", "less_than", F32, bool, &[odd], &[odd]),
        binary("equal", "equal", i32, bool, &[odd], &[odd]),
        same("logical_and", "logical_and", bool, odd),
        binary("add_bcast_row", "add", F32, F32, &[1001, 777], &[777]),
        binary("add_bcast_col", "add", F32, F32, &[1001, 777], &[1001, 1]),
        binary("add_bcast_mid", "add", F32, F32, &[33, 129, 257], &[33, 1, 257]),
        binary("add_bcast_row", "add", bf16, bf16, &[1001, 777], &[777]),
        sum_n(F32, odd),
        sum_n(bf16, odd),
    ];
    add(rows, Group::Grid, arithmetic);
    let pairs = [(f16, F32), (bf16, F32), (F32, f16), (F32, bf16), (F32, i8), (i8, F32)];
    let wide =
        [(F32, f64), (f64, F32), (F32, i32), (i32, F32), (i64, F32), (f16, bf16), (u8, F32), (bool, F32)];
    add(rows, Group::Grid, pairs.iter().chain(&wide).map(|(a, b)| cast(*a, *b, odd)));
    let others = [
        fill(bf16, odd),
        fill(f64, odd),
        zero(odd),
        copy(odd),
        expand_row(1001, 777),
        where_(F32, &[LARGE / 4], &[LARGE / 4]),
        where_(F32, &[odd], &[odd]),
        where_(bf16, &[1001, 1], &[1001, 777]),
        tensor_fill(F32, odd),
        arange(i64, odd),
        arange(F32, odd),
    ];
    add(rows, Group::Grid, others);
}
