//! Launches that compute each element of some others. Only what is exact: how far other functions may be off is for the
//! conformance kit to say.

use super::draw::{Draw, EXACT};
use super::launch::Launch;
use ep_core::{DType, Scalar};

const CONDITIONS: [DType; 5] = [DType::BOOL, DType::I8, DType::U16, DType::I32, DType::U64];
/// With whether they tell a truth.
const BINARY: [(&str, bool); 13] = [
    ("add", false),
    ("sub", false),
    ("mul", false),
    ("max", false),
    ("floor_mod", false),
    ("floor_div", false),
    ("div", false),
    ("pow", false),
    ("fmod", false),
    ("less_than", true),
    ("greater_equal", true),
    ("logical_xor", true),
    ("equal", true),
];
const UNARY: [&str; 5] = ["negative", "abs", "square", "sign", "identity"];
/// An addition of more sources than this is one of few elements.
const MANY: i64 = 12;

/// A shape that broadcasts to `out`, with any of its dimensions 1, or the first ones not there.
fn operand(draw: &mut Draw, out: &[i64]) -> Vec<i64> {
    let style = draw.below(4);
    let mut dims = Vec::new();
    for n in out {
        let one = match style {
            0 => false,
            1 => draw.one_in(2),
            2 => draw.one_in(4),
            _ => true,
        };
        dims.push(if one { 1 } else { *n });
    }
    if draw.one_in(3) {
        let cut = draw.below(out.len() as i64 + 1) as usize;
        dims.drain(..cut);
    }
    dims
}

/// Elements of what shapes broadcast to, each dimension of which is 1 or the same in all.
fn broadcast(shapes: &[&[i64]]) -> i64 {
    let rank = shapes.iter().map(|dims| dims.len()).max().unwrap_or(0);
    let dim = |k: usize| shapes.iter().filter_map(|dims| dims.iter().rev().nth(k)).find(|n| **n != 1);
    (0..rank).map(|k| dim(k).copied().unwrap_or(1)).product()
}

pub fn choose(draw: &mut Draw) -> Launch {
    let (of_cond, dtype, room) = (draw.pick(&CONDITIONS), draw.pick(&DType::ALL), draw.room());
    let out = draw.shape(room);
    let [cond, x, y] = [operand(draw, &out), operand(draw, &out), operand(draw, &out)];
    let mut chosen = draw.source("cond", of_cond, cond.iter().product());
    // Of both kinds, and of any bits.
    chosen.bytes.iter_mut().filter(|byte| **byte % 3 != 0).for_each(|byte| *byte = 0);
    Launch::new("where")
        .dtype("cond", of_cond)
        .dtype("data", dtype)
        .dims("cond_dims", &cond)
        .dims("x_dims", &x)
        .dims("y_dims", &y)
        .source(chosen)
        .source(draw.source("x", dtype, x.iter().product()))
        .source(draw.source("y", dtype, y.iter().product()))
        .destination(draw.destination("dst", dtype, broadcast(&[&cond, &x, &y])))
}

pub fn binary(draw: &mut Draw) -> Launch {
    let (src, (op, is_truth), room) = (draw.pick(EXACT), draw.pick(&BINARY), draw.room());
    let dst = if is_truth { DType::BOOL } else { src };
    let out = draw.shape(room);
    let [x, y] = [operand(draw, &out), operand(draw, &out)];
    let mut launch = Launch::new("broadcast_elementwise_binary")
        .selector("op", op)
        .dtype("src", src)
        .dtype("dst", dst)
        .dims("src0_dims", &x)
        .dims("src1_dims", &y);
    if x.is_empty() && draw.one_in(2) {
        launch = launch.scalar("scalar0", Scalar::I64(draw.pick(&[0, 1, -1, 5, -128])));
    }
    launch
        .source(draw.source("src0", src, x.iter().product()))
        .source(draw.source("src1", src, y.iter().product()))
        .destination(draw.destination("dst", dst, broadcast(&[&x, &y])))
}

pub fn unary(draw: &mut Draw) -> Launch {
    let (dtype, op, room) = (draw.pick(DType::INT), draw.pick(&UNARY), draw.room());
    let dims = draw.shape(room / 4);
    let (from, to) = (draw.layout(&dims, true, false), draw.layout(&dims, false, false));
    Launch::new("broadcast_elementwise_unary")
        .selector("op", op)
        .dtype("src", dtype)
        .dtype("dst", dtype)
        .dims("src_dims", &dims)
        .dims("src_strides", &from.strides)
        .dims("dst_dims", &dims)
        .dims("dst_strides", &to.strides)
        .source(draw.source("src", dtype, from.extent))
        .destination(draw.destination("dst", dtype, to.extent))
}

pub fn cast(draw: &mut Draw) -> Launch {
    let (src, dst) = (draw.pick(&DType::ALL), draw.pick(EXACT));
    let most = if draw.one_in(4) { draw.most / 4 } else { 300 };
    let count = draw.below(most);
    Launch::new("cast")
        .dtype("src", src)
        .dtype("dst", dst)
        .size("count", count)
        .source(draw.source("src", src, count))
        .destination(draw.destination("dst", dst, count))
}

pub fn add(draw: &mut Draw) -> Launch {
    let dtype = draw.pick(EXACT);
    let arity = if draw.one_in(5) { draw.below(257) } else { draw.below(10) };
    let most = if arity > MANY { 500 } else { draw.most / 50 };
    let count = draw.below(most);
    let sources = (0..arity).map(|_| draw.source("srcs", dtype, count)).collect();
    Launch::new("add")
        .dtype("data", dtype)
        .size("count", count)
        .list("srcs", sources)
        .destination(draw.destination("dst", dtype, count))
}
