//! Launches that move elements.

use super::draw::Draw;
use super::launch::Launch;
use ep_core::{DType, Scalar};

pub fn permute(draw: &mut Draw) -> Launch {
    let (dtype, room) = (draw.pick(&DType::ALL), draw.room());
    let dims = draw.shape(room);
    let permutation: Vec<i64> = draw.order(dims.len()).into_iter().map(|k| k as i64).collect();
    let count = dims.iter().product();
    Launch::new("permute")
        .dtype("data", dtype)
        .dims("src_dims", &dims)
        .dims("permutation", &permutation)
        .source(draw.source("src", dtype, count))
        .destination(draw.destination("dst", dtype, count))
}

/// A tensor around a box, and where the box lies in it.
fn around(draw: &mut Draw, extent: &[i64]) -> (Vec<i64>, Vec<i64>) {
    let (mut dims, mut position, mut total) = (Vec::new(), Vec::new(), 1i64);
    for n in extent {
        let margins = if draw.one_in(2) { [0, 0] } else { [draw.below(4), draw.below(4)] };
        let [before, behind] = if total * n.max(&1) < draw.most { margins } else { [0, 0] };
        dims.push(n + before + behind);
        position.push(before);
        total *= (n + before + behind).max(1);
    }
    (dims, position)
}

pub fn copy_nd(draw: &mut Draw) -> Launch {
    let (dtype, room) = (draw.pick(&DType::ALL), draw.room());
    let extent = draw.shape(room / 4);
    let (dst_dims, dst_pos) = around(draw, &extent);
    let (src_dims, src_pos) = around(draw, &extent);
    Launch::new("copy_nd")
        .dtype("data", dtype)
        .dims("dst_dims", &dst_dims)
        .dims("dst_pos", &dst_pos)
        .dims("src_dims", &src_dims)
        .dims("src_pos", &src_pos)
        .dims("extent", &extent)
        .source(draw.source("src", dtype, src_dims.iter().product()))
        .destination(draw.destination("dst", dtype, dst_dims.iter().product()))
}

/// As the dtypes are, or from one integer to another.
pub fn strided_copy(draw: &mut Draw) -> Launch {
    let (src, dst) = if draw.one_in(2) {
        (draw.pick(DType::INT), draw.pick(DType::INT))
    } else {
        let dtype = draw.pick(&DType::ALL);
        (dtype, dtype)
    };
    let room = draw.room();
    let dims = draw.shape(room / 4);
    let (from, to) = (draw.layout(&dims, true, true), draw.layout(&dims, false, true));
    Launch::new("strided_copy")
        .dtype("src", src)
        .dtype("dst", dst)
        .dims("dims", &dims)
        .dims("src_strides", &from.strides)
        .dims("dst_strides", &to.strides)
        .size("src_offset", from.offset)
        .size("dst_offset", to.offset)
        .source(draw.source("src", src, from.extent))
        .destination(draw.destination("dst", dst, to.extent))
}

/// Padding of a dimension at one end; what is negative crops, also more than there is.
fn padding(draw: &mut Draw, n: i64) -> i64 {
    match draw.below(5) {
        0 | 1 => 0,
        2 => draw.up_to(3),
        3 => -draw.below(n.min(4) + 1),
        _ if draw.one_in(10) => -n - 3,
        _ => draw.below(20),
    }
}

pub fn constant_pad(draw: &mut Draw) -> Launch {
    let (dtype, room) = (draw.pick(&DType::ALL), draw.room());
    let dims = draw.shape(room);
    let most = 8 * draw.most;
    let (mut before, mut after, mut padded, mut total) = (Vec::new(), Vec::new(), Vec::new(), 1i64);
    for n in &dims {
        let [low, high] = [padding(draw, *n), padding(draw, *n)];
        let fits = total * (n + low + high).max(1) <= most;
        let [low, high] = if fits { [low, high] } else { [0, 0] };
        before.push(low);
        after.push(high);
        padded.push(n + low + high);
        total *= (n + low + high).max(1);
    }
    let count = if padded.iter().any(|n| *n < 0) { 0 } else { padded.iter().product() };
    Launch::new("constant_pad")
        .dtype("data", dtype)
        .dims("src_dims", &dims)
        .dims("padding_before", &before)
        .dims("padding_after", &after)
        .scalar("value", Scalar::I64(-7))
        .source(draw.source("src", dtype, dims.iter().product()))
        .destination(draw.destination("dst", dtype, count))
}
