//! Launches that pick elements by indices.

use super::draw::Draw;
use super::launch::{Launch, Operand};
use ep_core::{DType, Scalar};

const INDICES: [DType; 2] = [DType::I32, DType::I64];
const MODES: [&str; 3] = ["wrap", "zero", "error"];

/// The axis that indices are about: `processed` elements from `offset` on are there, of `size`.
struct Axis {
    processed: i64,
    offset: i64,
    size: i64,
    /// The number that an index has to be below.
    end: i64,
}

impl Axis {
    fn new(draw: &mut Draw, processed: i64) -> Axis {
        let offset = if draw.one_in(3) { draw.below(4) } else { 0 };
        let more = if draw.one_in(3) { draw.below(5) } else { 0 };
        let end = offset + processed + more;
        // 0 says that nothing lies behind.
        let size = if more == 0 && draw.one_in(2) { 0 } else { end };
        Axis { processed, offset, size, end }
    }

    /// Indices of which some are negative where these wrap. Where `wild` some lie outside: often where that is no error,
    /// else so seldom that most launches have none.
    fn indices(&self, draw: &mut Draw, dtype: DType, count: i64, mode: &str, wild: bool) -> Operand {
        let end = self.end;
        draw.numbers("indices", dtype, count, |draw, _| {
            let outside = wild && ((mode == "zero" && draw.one_in(5)) || draw.one_in(2000));
            let index = draw.below(end);
            let negative = mode == "wrap" && draw.one_in(2);
            let index = match (outside, negative) {
                (true, _) => draw.pick(&[i32::MIN.into(), i32::MAX.into(), -end - 1, end, end + 7]),
                (_, true) => index - end,
                _ => index,
            };
            index as f64
        })
    }
}

/// A launch of an op that gathers or scatters, without its source and destination; and batch, outer, processed, inner and
/// the number of indices.
fn picked(draw: &mut Draw, op: &'static str, dtype: DType) -> (Launch, [i64; 5]) {
    let (of_indices, mode, room) = (draw.pick(&INDICES), draw.pick(&MODES), draw.room());
    let all = draw.dims(5, room);
    let batched = op == "batch_gather";
    let (batch, outer, processed) = (if batched { all[0] } else { 1 }, all[1], all[2]);
    let (inner, number) = (all[3], all[4]);
    let axis = Axis::new(draw, processed);
    let wild = draw.one_in(3);
    let mut launch = Launch::new(op).selector("mode", mode).dtype("indices", of_indices).dtype("data", dtype);
    if batched {
        launch = launch.size("batch", batch);
    }
    let launch = launch
        .size("outer", outer)
        .size("processed", axis.processed)
        .size("inner", inner)
        .size("num_indices", number)
        .size("offset", axis.offset)
        .size("size", axis.size)
        .source(axis.indices(draw, of_indices, batch * number, mode, wild));
    (launch, [batch, outer, processed, inner, number])
}

fn gathered(draw: &mut Draw, op: &'static str) -> Launch {
    let dtype = draw.pick(&DType::ALL);
    let (launch, [batch, outer, processed, inner, number]) = picked(draw, op, dtype);
    launch.source(draw.source("src", dtype, batch * outer * processed * inner)).destination(draw.destination(
        "dst",
        dtype,
        batch * outer * number * inner,
    ))
}

pub fn gather(draw: &mut Draw) -> Launch {
    gathered(draw, "gather")
}

pub fn batch_gather(draw: &mut Draw) -> Launch {
    gathered(draw, "batch_gather")
}

/// Of integers, whose sums do not depend on their order.
pub fn scatter_add(draw: &mut Draw) -> Launch {
    let dtype = draw.pick(DType::INT);
    let (launch, [_, outer, processed, inner, number]) = picked(draw, "scatter_add", dtype);
    launch.source(draw.source("src", dtype, outer * number * inner)).destination(draw.destination(
        "dst",
        dtype,
        outer * processed * inner,
    ))
}

pub fn one_hot(draw: &mut Draw) -> Launch {
    let (dtype, of_indices, mode) = (draw.pick(&DType::ALL), draw.pick(&INDICES), draw.pick(&MODES));
    let room = draw.room();
    let all = draw.dims(2, room);
    let (number, depth) = (all[0], all[1]);
    let offset = if draw.one_in(3) { draw.below(4) } else { 0 };
    let axis = Axis { processed: depth, offset, size: 0, end: offset + depth };
    Launch::new("one_hot")
        .selector("mode", mode)
        .dtype("indices", of_indices)
        .dtype("data", dtype)
        .size("num_indices", number)
        .size("depth", axis.processed)
        .size("offset", axis.offset)
        .size("size", axis.size)
        .scalar("on", Scalar::I64(3))
        .scalar("off", Scalar::I64(-2))
        .source(axis.indices(draw, of_indices, number, mode, false))
        .destination(draw.destination("dst", dtype, number * depth))
}
