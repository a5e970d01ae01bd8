//! What works on rows of a matrix: softmax, normalisation, reductions.

use super::{WIDE, add};
use crate::row::{Content, Family, Group, Row};
use ep_core::DType;

const F32: DType = DType::F32;
const NORMAL: Content = Content::Normal(1.0);
/// Rows of the large softmax rows.
const ROWS: i64 = 32768;

/// `softmax` or `log_softmax` of a matrix, or of the middle axis when `inner` is not 1.
fn softmax(op: &'static str, dtype: DType, rows: i64, cols: i64, inner: i64) -> Row {
    let dims: Vec<i64> = if inner == 1 { vec![rows, cols] } else { vec![rows, cols, inner] };
    let mut row = Row::new(op, op, Family::Softmax, dtype)
        .shape(&dims)
        .role("src", dtype)
        .role("dst", dtype)
        .sizes(&[("rows", rows), ("cols", cols)])
        .input("src", dtype, &dims, NORMAL)
        .output("dst", dtype, &dims)
        .peer(op, &[1]);
    if inner != 1 {
        row = row.sizes(&[("inner", inner)]);
    }
    row
}

fn backward(name: &'static str, op: &'static str, dtype: DType, rows: i64, cols: i64) -> Row {
    let dims = [rows, cols];
    Row::new(name, op, Family::Softmax, dtype)
        .shape(&dims)
        .role("src", dtype)
        .role("dst", dtype)
        .sizes(&[("rows", rows), ("cols", cols)])
        .input("y", dtype, &dims, Content::Positive)
        .input("dy", dtype, &dims, NORMAL)
        .output("dx", dtype, &dims)
        .peer(op, &[1])
}

fn stats(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { F32 }
}

fn layer_norm(dtype: DType, rows: i64, cols: i64) -> Row {
    Row::new("layer_norm", "layer_norm", Family::Reduce, dtype)
        .shape(&[rows, cols])
        .role("data", dtype)
        .role("stats", stats(dtype))
        .attr("epsilon", 1e-5)
        .sizes(&[("rows", rows), ("cols", cols)])
        .input("src", dtype, &[rows, cols], NORMAL)
        .input("gamma", dtype, &[cols], NORMAL)
        .input("beta", dtype, &[cols], NORMAL)
        .output("dst", dtype, &[rows, cols])
        .peer("layer_norm", &[])
}

fn rms_norm(dtype: DType, rows: i64, cols: i64) -> Row {
    Row::new("rms_norm", "rms_norm", Family::Reduce, dtype)
        .shape(&[rows, cols])
        .role("data", dtype)
        .role("stats", stats(dtype))
        .attr("epsilon", 1e-5)
        .sizes(&[("rows", rows), ("cols", cols)])
        .input("src", dtype, &[rows, cols], NORMAL)
        .input("weight", dtype, &[cols], NORMAL)
        .output("dst", dtype, &[rows, cols])
        .peer("rms_norm", &[])
}

/// A reduction of `[outer, reduced, inner]` over the middle.
fn reduce(op: &'static str, src: DType, dst: DType, outer: i64, reduced: i64, inner: i64) -> Row {
    let primitive = if op.starts_with("arg") { "arg_reduce" } else { "reduce" };
    let (shape, out) = match inner {
        1 => (vec![outer, reduced], vec![outer]),
        _ => (vec![outer, reduced, inner], vec![outer, inner]),
    };
    let call = match op {
        "sum" => "reduce_sum",
        "mean" => "reduce_mean",
        "max" => "reduce_max",
        "min" => "reduce_min",
        "prod" => "reduce_prod",
        "any" => "reduce_any",
        "all" => "reduce_all",
        other => other,
    };
    Row::new(call, primitive, Family::Reduce, src)
        .shape(&shape)
        .selector("op", op)
        .role("src", src)
        .role("dst", dst)
        .sizes(&[("outer", outer), ("reduced", reduced), ("inner", inner)])
        .input("src", src, &shape, NORMAL)
        .output("dst", dst, &out)
        .peer(call, &[1])
}

pub fn rows(rows: &mut Vec<Row>) {
    let (f16, bf16, f64) = (DType::F16, DType::BF16, DType::F64);
    for cols in [32, 128, 1024, 4096] {
        let new = [
            softmax("softmax", F32, ROWS, cols, 1),
            softmax("log_softmax", F32, ROWS, cols, 1),
            backward("softmax_bwd", "softmax_backward", F32, ROWS, cols),
            backward("log_softmax_bwd", "log_softmax_backward", F32, ROWS, cols),
        ];
        add(rows, Group::Large, new);
    }
    let other = [
        softmax("softmax", F32, 32, 1024, 512).named("softmax_axis1"),
        softmax("softmax", bf16, ROWS, 1024, 1).named("softmax_bf16"),
        reduce("sum", F32, F32, ROWS, 1024, 1),
        reduce("max", F32, F32, ROWS, 1024, 1),
        reduce("sum", F32, F32, 64, 1024, 512),
        reduce("sum", F32, F32, 1, 1 << 25, 1),
        layer_norm(F32, ROWS, 1024),
        rms_norm(F32, ROWS, 1024),
    ];
    add(rows, Group::Large, other);
    for n in [64, 256, 1024] {
        add(rows, Group::Medium, [softmax("softmax", F32, n, n, 1)]);
    }
    add(rows, Group::Medium, [reduce("sum", F32, F32, 256, 256, 1), layer_norm(F32, 256, 256)]);
    add(rows, Group::Small, [softmax("softmax", F32, 4, 16, 1)]);
    let grid = [
        softmax("softmax", f16, 4096, 1024, 1),
        softmax("softmax", f64, 1024, 1000, 1),
        softmax("softmax", F32, 27001, 37, 1),
        softmax("softmax", F32, 333, 3001, 1),
        softmax("softmax", F32, 8, 131_072, 1),
        softmax("softmax", F32, 27001, 37, 1).holding(WIDE).named("softmax_wide"),
        softmax("softmax", F32, 1024, 1000, 1).holding(WIDE).named("softmax_wide"),
        softmax("softmax", F32, 8, 131_072, 1).holding(WIDE).named("softmax_wide"),
        softmax("softmax", F32, 7, 1000, 129).holding(WIDE).named("softmax_wide"),
        softmax("log_softmax", bf16, 1024, 1000, 1),
        softmax("log_softmax", F32, 7, 1000, 129),
        backward("softmax_bwd", "softmax_backward", bf16, 1024, 1000),
        backward("log_softmax_bwd", "log_softmax_backward", f16, 1024, 1000),
        layer_norm(bf16, 1024, 1000),
        layer_norm(f64, 333, 1001),
        rms_norm(f16, 1024, 1000),
        reduce("mean", bf16, bf16, 1024, 1000, 1),
        reduce("min", DType::I32, DType::I32, 1001, 777, 1),
        reduce("prod", f64, f64, 1001, 777, 1),
        reduce("any", DType::BOOL, DType::BOOL, 1001, 777, 1),
        reduce("all", DType::BOOL, DType::BOOL, 1001, 777, 1),
        reduce("sum", DType::I64, DType::I64, 33, 129, 257),
        reduce("max", f16, f16, 33, 129, 257),
        reduce("sum", f16, f16, 4096, 1024, 1),
        reduce("sum", f16, f16, 64, 1024, 512),
        reduce("sum", bf16, bf16, 4096, 1024, 1),
        reduce("sum", bf16, bf16, 64, 1024, 512),
        reduce("argmax", F32, DType::I64, 1001, 777, 1),
        reduce("argmin", F32, DType::I64, 33, 129, 257),
    ];
    add(rows, Group::Grid, grid);
}
