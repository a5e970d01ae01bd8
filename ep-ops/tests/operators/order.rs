//! Operators of elements, and of rows along a dimension, leave the order of the dimensions in memory as it is.

use crate::support::{Host, Random, few, from, on_each};
use ep_core::DType;
use ep_core::primitive::{BinaryOp, UnaryOp};
use ep_ops::{MemoryFormat, Ops, Tensor};
use proptest::prelude::*;

type Apply = fn(&Ops<'_>, &Tensor, &Tensor) -> Tensor;

/// Of x and y, which broadcasts to x.
const OPERATORS: [(&str, Apply); 13] = [
    ("unary", |ops, x, _| ops.unary(UnaryOp::NEGATIVE, x).unwrap()),
    ("binary", |ops, x, y| ops.binary(BinaryOp::SUB, x, y).unwrap()),
    ("binary, y first", |ops, x, y| ops.binary(BinaryOp::SUB, y, x).unwrap()),
    ("scalar", |ops, x, _| ops.binary_scalar(BinaryOp::MUL, x, 3).unwrap()),
    ("where", |ops, x, y| {
        let smaller = ops.binary(BinaryOp::LESS_THAN, x, y).unwrap();
        ops.where_(&smaller, y, x).unwrap()
    }),
    ("cast", |ops, x, _| ops.cast(x, DType::F64).unwrap()),
    ("to_dtype", |ops, x, _| ops.to_dtype(x, DType::I32).unwrap()),
    ("add_n", |ops, x, y| ops.add_n(&[x, &y.expand(x.shape()).unwrap(), x]).unwrap()),
    ("pad", |ops, x, _| {
        let numbers = |from: i64| (from..from + x.rank() as i64).collect::<Vec<_>>();
        ops.constant_pad(x, &numbers(0), &numbers(-1), 7).unwrap()
    }),
    ("softmax", |ops, x, _| ops.softmax(x, 0).unwrap()),
    ("log_softmax", |ops, x, _| ops.log_softmax(x, -1).unwrap()),
    ("softmax_backward", |ops, x, y| ops.softmax_backward(x, &y.expand(x.shape()).unwrap(), -1).unwrap()),
    ("log_softmax_backward", |ops, x, y| {
        ops.log_softmax_backward(&y.expand(x.shape()).unwrap(), x, 0).unwrap()
    }),
];

/// Dimensions by their strides, without those of one element.
fn order(x: &Tensor) -> Vec<usize> {
    let mut dims: Vec<usize> = (0..x.rank()).filter(|d| x.shape()[*d] > 1).collect();
    dims.sort_by_key(|d| std::cmp::Reverse(x.strides()[*d]));
    dims
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn outputs_lie_as_inputs_do(
        shape in prop::collection::vec(1..4i64, 1..5), ones in prop::collection::vec(any::<bool>(), 4), drop in 0..4usize,
        turn: u64, seed: u64,
    ) {
        let (rank, mut random) = (shape.len(), Random(turn));
        let mut dims: Vec<i64> = (0..rank as i64).collect();
        for d in (1..rank).rev() {
            dims.swap(d, random.below(d as u64 + 1) as usize);
        }
        let back: Vec<i64> = (0..rank as i64).map(|d| dims.iter().position(|t| *t == d).unwrap() as i64).collect();
        let small: Vec<i64> = shape.iter().zip(&ones).map(|(n, one)| if *one { 1 } else { *n }).collect();
        let mut random = Random(seed);
        let (x, y) = (Host::random(&shape, &mut random), Host::random(&small, &mut random));
        on_each(|ops| {
            let (x, y) = (x.to(ops, DType::F32), y.to(ops, DType::F32));
            let turned = |t: &Tensor| {
                let inner = ops.contiguous(&t.permute(&dims).unwrap(), MemoryFormat::Contiguous).unwrap();
                inner.permute(&back).unwrap()
            };
            let (x_turned, y_turned) = (turned(&x), turned(&y));
            // Without dimensions in front, where they have one element.
            let gone = small.iter().take_while(|n| **n == 1).count().min(drop);
            let short = y_turned.view(&small[gone..]).unwrap();
            for (name, apply) in OPERATORS {
                let (expected, found) = (apply(ops, &x, &y), apply(ops, &x_turned, &short));
                // Another order of the rows may be another kernel.
                let tolerance = if name.contains("softmax") { 1e-5 } else { 0.0 };
                from(ops, &expected).assert_near(ops, &found, tolerance);
                assert!(found.is_dense_without_overlap(), "{name}: {found:?}");
                let wanted: Vec<usize> =
                    order(&x_turned).into_iter().filter(|d| found.shape()[*d] > 1).collect();
                let kept: Vec<usize> = order(&found).into_iter().filter(|d| shape[*d] > 1).collect();
                assert_eq!(kept, wanted, "{name}");
            }
        });
    }
}

#[test]
fn images_keep_their_channels_last() {
    on_each(|ops| {
        let mut random = Random(3);
        let (x, bias) = (Host::random(&[2, 3, 4, 5], &mut random), Host::random(&[3, 1, 1], &mut random));
        let x = ops.contiguous(&x.to(ops, DType::F32), MemoryFormat::ChannelsLast).unwrap();
        let bias = bias.to(ops, DType::F32);
        for (name, apply) in OPERATORS {
            let found = apply(ops, &x, &bias);
            assert!(found.is_contiguous(MemoryFormat::ChannelsLast), "{name}: {found:?}");
        }
        // In two orders: then it is that of the shape.
        let other = ops.contiguous(&x, MemoryFormat::Contiguous).unwrap();
        let sum = ops.binary(BinaryOp::ADD, &x, &other).unwrap();
        assert!(sum.is_contiguous(MemoryFormat::Contiguous), "{sum:?}");
    });
}
