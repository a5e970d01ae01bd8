//! Launches that reduce an axis, of what is exact in any order.

use super::draw::{Draw, EXACT};
use super::launch::Launch;
use ep_core::DType;

/// outer, reduced and inner: any, or one long axis, which several parts of a device share.
fn sizes(draw: &mut Draw) -> [i64; 3] {
    if draw.one_in(8) {
        let long = draw.most / 10 + draw.below(draw.most * 9 / 10);
        let inner = if draw.one_in(2) { 1 } else { draw.up_to(3) };
        return [draw.up_to(3), long, inner];
    }
    let room = if draw.one_in(4) { 4 * draw.most } else { draw.room() };
    let dims = draw.dims(3, room);
    [dims[0], dims[1], dims[2]]
}

/// A launch without its operands, of which the sizes say how many elements there are.
fn reduction(op: &'static str, by: &'static str, dtypes: [DType; 2], sizes: [i64; 3]) -> Launch {
    let ([src, dst], [outer, reduced, inner]) = (dtypes, sizes);
    Launch::new(op)
        .selector("op", by)
        .dtype("src", src)
        .dtype("dst", dst)
        .size("outer", outer)
        .size("reduced", reduced)
        .size("inner", inner)
}

pub fn reduce(draw: &mut Draw) -> Launch {
    let src = draw.pick(EXACT);
    let wide = if [DType::I64, DType::U64].contains(&src) { src } else { DType::I64 };
    let own = if src == DType::BOOL { wide } else { src };
    let choices = [
        ("sum", own),
        ("sum", wide),
        ("prod", wide),
        ("max", src),
        ("min", src),
        ("any", DType::BOOL),
        ("all", DType::BOOL),
    ];
    let (by, dst) = draw.pick(&choices);
    let sizes = sizes(draw);
    let [outer, reduced, inner] = sizes;
    let mut source = draw.source("src", src, outer * reduced * inner);
    // Of random elements some are true and some are not: no long axis would come to the other truth.
    if by == "any" && draw.one_in(2) {
        source.bytes.fill(0);
    }
    if by == "all" && draw.one_in(2) {
        source.bytes.iter_mut().for_each(|byte| *byte |= 4);
    }
    reduction("reduce", by, [src, dst], sizes).source(source).destination(draw.destination(
        "dst",
        dst,
        outer * inner,
    ))
}

pub fn arg_reduce(draw: &mut Draw) -> Launch {
    let (src, dst) = (draw.pick(DType::REAL), draw.pick(&[DType::I32, DType::I64]));
    let by = draw.pick(&["argmax", "argmin"]);
    let sizes = sizes(draw);
    let [outer, reduced, inner] = sizes;
    let mut source = draw.source("src", src, outer * reduced * inner);
    // Without a NaN, which would win.
    if draw.one_in(2) {
        source.bytes.iter_mut().for_each(|byte| *byte &= 0x3f);
    }
    // All equal: the first one.
    if draw.one_in(6) {
        source.bytes.fill(0);
    }
    reduction("arg_reduce", by, [src, dst], sizes).source(source).destination(draw.destination(
        "dst",
        dst,
        outer * inner,
    ))
}
