//! Padding, rows of ones, and joining.

use crate::support::{Host, Random, few, layouts, on_each, shapes};
use ep_core::primitive::IndexMode;
use ep_core::{DType, Scalar};
use ep_ops::Tensor;
use ep_ops::operators::OneHot;
use proptest::prelude::*;

proptest! {
    #![proptest_config(few())]

    #[test]
    fn padding_and_cropping(
        shape in shapes(0..4), paddings in prop::collection::vec((-3..4i64, -3..4i64), 4), seed: u64, layout in layouts(),
    ) {
        let before: Vec<i64> = paddings.iter().take(shape.len()).map(|(before, _)| *before).collect();
        // Not below nothing.
        let after: Vec<i64> = paddings.iter().zip(&shape).map(|((b, a), size)| (*a).max(-(size + b))).collect();
        let x = Host::random(&shape, &mut Random(seed));
        let padded: Vec<i64> = (0..shape.len()).map(|d| before[d] + shape[d] + after[d]).collect();
        let expected = Host::from_fn(&padded, |index| {
            let own: Vec<i64> = index.iter().zip(&before).map(|(i, before)| i - before).collect();
            let inside = own.iter().zip(&shape).all(|(i, size)| (0..*size).contains(i));
            if inside { x.get(&own) } else { 7.0 }
        });
        on_each(|ops| {
            let t = x.laid_out(ops, DType::I64, layout);
            expected.assert_equal(ops, &ops.constant_pad(&t, &before, &after, 7).unwrap());
        });
    }

    #[test]
    fn rows_of_ones(shape in shapes(0..3), depth in 0..5i64, seed: u64, layout in layouts(), mode in 0..3u32) {
        let mode = if depth == 0 { IndexMode::ZERO } else { IndexMode(mode) };
        let mut random = Random(seed);
        let indices = Host::from_fn(&shape, |_| match mode {
            IndexMode::WRAP => random.below(2 * depth as u64) as f64 - depth as f64,
            IndexMode::ZERO => random.below(depth as u64 + 4) as f64 - 2.0,
            _ => random.below(depth as u64) as f64,
        });
        let expected = Host::from_fn(&[&shape[..], &[depth]].concat(), |index| {
            let (class, own) = index.split_last().unwrap();
            let index = indices.get(own);
            let wrapped = if mode == IndexMode::WRAP && index < 0.0 { index + depth as f64 } else { index };
            if wrapped == *class as f64 { 5.0 } else { -1.0 }
        });
        let (on, off) = (Scalar::F64(5.0), Scalar::I64(-1));
        let operator = OneHot { depth, mode, on, off, dtype: DType::I16, window: None };
        on_each(|ops| {
            let t = indices.laid_out(ops, DType::I32, layout);
            expected.assert_equal(ops, &ops.apply(&operator, &[&t]).unwrap()[0]);
        });
    }

    #[test]
    fn joined_along_any_dimension(
        shape in shapes(1..4), sizes in prop::collection::vec(0..4i64, 1..4), at in 0usize..4, negative: bool, seed: u64,
        layout in layouts(),
    ) {
        let dim = at % shape.len();
        let mut random = Random(seed);
        let part = |size: &i64| {
            let mut shape = shape.clone();
            shape[dim] = *size;
            Host::random(&shape, &mut random)
        };
        let parts: Vec<Host> = sizes.iter().map(part).collect();
        let mut whole = shape.clone();
        whole[dim] = sizes.iter().sum();
        let expected = Host::from_fn(&whole, |index| {
            let mut index = index.to_vec();
            for part in &parts {
                if index[dim] < part.shape[dim] {
                    return part.get(&index);
                }
                index[dim] -= part.shape[dim];
            }
            unreachable!("an index behind all parts")
        });
        let dim = if negative { dim as i64 - shape.len() as i64 } else { dim as i64 };
        on_each(|ops| {
            let tensors: Vec<Tensor> = parts.iter().map(|x| x.laid_out(ops, DType::BF16, layout)).collect();
            expected.assert_equal(ops, &ops.concat(&tensors.iter().collect::<Vec<_>>(), dim).unwrap());
        });
    }
}

#[test]
fn ones_and_zeros_unless_said_otherwise() {
    on_each(|ops| {
        let indices = Host::new(&[2], &[2.0, 0.0]).to(ops, DType::I64);
        let out = ops.one_hot(&indices, 3, DType::BOOL).unwrap();
        Host::new(&[2, 3], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]).assert_equal(ops, &out);
        assert!(ops.one_hot(&indices, 2, DType::F32).and_then(|_| ops.sync()).is_err());
    });
}
