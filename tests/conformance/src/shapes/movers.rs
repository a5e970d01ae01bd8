//! Cases of the ops that move or make elements.

use super::lengths;
use crate::case::{Case, Content, Key};
use ep_core::Scalar;

pub(super) fn memcpy(key: &Key) -> Vec<Case> {
    let case = |name, n| Case::new(key, name).sizes(&[("bytes", n)]).content(Content::Wild);
    let mut cases = lengths(case);
    cases.push(case("in place", 131).in_place("dst", "src"));
    cases
}

pub(super) fn memset(key: &Key) -> Vec<Case> {
    lengths(|name, n| Case::new(key, name).sizes(&[("bytes", n)]).scalar("value", Scalar::I64(0x1a5)))
}

pub(super) fn tensor_fill(key: &Key) -> Vec<Case> {
    let case = |name, n| Case::new(key, name).sizes(&[("count", n)]).content(Content::Wild);
    let mut cases = lengths(case);
    cases.push(case("another", 389));
    cases
}

pub(super) fn fill(key: &Key) -> Vec<Case> {
    const VALUES: [Scalar; 7] = [
        Scalar::F64(2.5),
        Scalar::I64(-3),
        Scalar::F64(f64::NAN),
        Scalar::Complex(1.5, -2.0),
        Scalar::Bool(true),
        // What a double does not hold.
        Scalar::I64(-(1 << 53) - 1),
        Scalar::U64(u64::MAX - 2),
    ];
    let mut cases = lengths(|name, n| {
        // By the name, which a case has in common with the smaller one that it repeats.
        let value = VALUES[name.len() % VALUES.len()];
        Case::new(key, name).sizes(&[("count", n)]).scalar("value", value)
    });
    let of = |name, value| Case::new(key, name).sizes(&[("count", 67)]).scalar("value", value);
    cases.push(of("NaN", Scalar::F64(f64::NAN)));
    cases.push(of("infinity", Scalar::F64(f64::NEG_INFINITY)));
    cases.push(of("wide integer", VALUES[5]));
    cases.push(of("wide unsigned integer", VALUES[6]));
    cases
}

pub(super) fn arange(key: &Key) -> Vec<Case> {
    let case = |name, n, start, step| {
        Case::new(key, name).sizes(&[("count", n)]).scalar("start", start).scalar("step", step)
    };
    vec![
        case("empty", 0, Scalar::None, Scalar::None),
        case("one", 1, Scalar::I64(7), Scalar::None),
        case("defaults", 67, Scalar::None, Scalar::None),
        case("negative step", 131, Scalar::I64(5), Scalar::I64(-3)),
        case("fractions", 131, Scalar::F64(-0.75), Scalar::F64(0.1)),
        case("no step", 64, Scalar::I64(3), Scalar::I64(0)),
        case("wraps", 1057, Scalar::I64(i64::MAX - 3), Scalar::I64(1 << 40)),
        case("unsigned", 63, Scalar::U64(u64::MAX - 5), Scalar::I64(2)),
        case("from NaN", 37, Scalar::F64(f64::NAN), Scalar::F64(1.0)),
        case("infinite step", 37, Scalar::F64(1.0), Scalar::F64(f64::INFINITY)),
        case("misaligned", 131, Scalar::I64(2), Scalar::I64(3)).shifted(1),
        case("pages", 5003, Scalar::I64(-2000), Scalar::I64(1)),
        case("large", 65_539, Scalar::I64(-9), Scalar::I64(1)),
    ]
}

pub(super) fn permute(key: &Key) -> Vec<Case> {
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
        case("odd rows", &[9, 37, 3], &[1, 0, 2]),
        case("misaligned", &[33, 35], &[1, 0]).shifted(1),
        case("large", &[257, 259], &[1, 0]),
        case("rank 8", &[2, 1, 3, 2, 1, 2, 3, 2], &[7, 2, 0, 5, 1, 3, 6, 4]),
        // The dimensions of others, in another order.
        case("transpose", &[5, 37], &[1, 0]),
        case("channels first, of few", &[2, 3, 9, 11], &[0, 3, 1, 2]),
    ]
}

pub(super) fn copy_nd(key: &Key) -> Vec<Case> {
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
        case("misaligned", [&[9, 41], &[2, 3]], [&[9, 37], &[0, 0]], &[5, 37]).shifted(1),
        case("large", [&[257, 259], &[0, 1]], [&[257, 258], &[0, 0]], &[257, 258]),
        case("outside", [&[4, 4], &[3, 0]], [&[3, 3], &[0, 0]], &[2, 2]),
        // The dimensions of another, elsewhere.
        case("into another part", [&[9, 41], &[4, 1]], [&[5, 37], &[0, 0]], &[5, 37]),
    ]
}

pub(super) fn strided_copy(key: &Key) -> Vec<Case> {
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
        case("misaligned", &[33, 35], &[1, 33], &[35, 1], [0, 0]).shifted(1),
        case("large", &[257, 259], &[1, 257], &[259, 1], [0, 0]),
        case("below the start", &[5], &[-1], &[1], [3, 0]),
        case("twice the same element", &[5, 2], &[2, 1], &[1, 0], [0, 0]),
        // The dimensions of another, with other strides.
        case("transposed the other way", &[33, 35], &[35, 1], &[1, 33], [0, 0]),
    ]
}

pub(super) fn pad(key: &Key) -> Vec<Case> {
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
        case("NaN", &[9, 37], &[1, 0], &[0, 2], Scalar::F64(f64::NAN)),
        case("misaligned", &[33, 35], &[0, 1], &[0, 4], v).shifted(1),
        case("large", &[257, 255], &[0, 1], &[2, 3], v),
        case("negative", &[4], &[-3], &[-2], v),
        case("complex value", &[9, 37], &[0, 2], &[1, 0], Scalar::Complex(1.5, -2.0)),
    ]
}
