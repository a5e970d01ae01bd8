//! Softmax, its logarithm and their gradients.

use crate::support::{Host, Layout, Random, cpu, few, layouts, on_each, shapes};
use ep_core::DType;
use ep_ops::Operator;
use ep_ops::operators::{LogSoftmax, LogSoftmaxBackward, Softmax, SoftmaxBackward};
use proptest::prelude::*;

/// A function of the rows along a dimension, written to the places they came from.
fn along(inputs: &[&Host], dim: usize, f: impl Fn(&[Vec<f64>], usize) -> f64) -> Host {
    let shape = &inputs[0].shape;
    Host::from_fn(shape, |index| {
        if shape.is_empty() {
            return f(&inputs.iter().map(|x| x.data.clone()).collect::<Vec<_>>(), 0);
        }
        let row = |x: &&Host| {
            let at = |i: i64| {
                let mut index = index.to_vec();
                index[dim] = i;
                x.get(&index)
            };
            (0..shape[dim]).map(at).collect::<Vec<_>>()
        };
        f(&inputs.iter().map(row).collect::<Vec<_>>(), index[dim] as usize)
    })
}

fn softmax(x: &Host, dim: usize) -> Host {
    along(&[x], dim, |rows, i| rows[0][i].exp() / rows[0].iter().map(|x| x.exp()).sum::<f64>())
}

fn log_softmax(x: &Host, dim: usize) -> Host {
    along(&[x], dim, |rows, i| rows[0][i] - rows[0].iter().map(|x| x.exp()).sum::<f64>().ln())
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn rows_along_any_dimension(shape in shapes(0..4), at in 0usize..4, negative: bool, seed: u64, layout in layouts()) {
        let rank = shape.len().max(1);
        let own = at % rank;
        let dim = if negative { own as i64 - rank as i64 } else { own as i64 };
        let mut random = Random(seed);
        let (x, dy) = (Host::random(&shape, &mut random), Host::random(&shape, &mut random));
        on_each(|ops| {
            let (tx, tdy) = (x.laid_out(ops, DType::F32, layout), dy.laid_out(ops, DType::F32, layout));
            softmax(&x, own).assert_near(ops, &ops.softmax(&tx, dim).unwrap(), 1e-6);
            log_softmax(&x, own).assert_near(ops, &ops.log_softmax(&tx, dim).unwrap(), 1e-6);
            let y = softmax(&x, own);
            let expected = along(&[&y, &dy], own, |rows, i| {
                let sum: f64 = rows[0].iter().zip(&rows[1]).map(|(y, dy)| y * dy).sum();
                (rows[1][i] - sum) * rows[0][i]
            });
            let ty = y.laid_out(ops, DType::F32, layout);
            expected.assert_near(ops, &ops.softmax_backward(&ty, &tdy, dim).unwrap(), 1e-5);
            let y = log_softmax(&x, own);
            let expected = along(&[&y, &dy], own, |rows, i| rows[1][i] - rows[0][i].exp() * rows[1].iter().sum::<f64>());
            let ty = y.laid_out(ops, DType::F32, layout);
            expected.assert_near(ops, &ops.log_softmax_backward(&ty, &tdy, dim).unwrap(), 1e-5);
        });
    }
}

#[test]
fn outputs_of_another_dtype() {
    let (ops, x) = (cpu(), Host::random(&[2, 3, 2], &mut Random(5)));
    let t = x.laid_out(&ops, DType::BF16, Layout::Reversed);
    let dtype = Some(DType::F32);
    let forward: [(&dyn Operator, Host); 2] =
        [(&Softmax { dim: 1, dtype }, softmax(&x, 1)), (&LogSoftmax { dim: 1, dtype }, log_softmax(&x, 1))];
    for (operator, expected) in forward {
        let out = ops.apply(operator, &[&t]).unwrap().remove(0);
        assert_eq!(out.dtype(), DType::F32);
        expected.assert_near(&ops, &out, 1e-4);
    }
    let backward: [&dyn Operator; 2] =
        [&SoftmaxBackward { dim: 1, dtype }, &LogSoftmaxBackward { dim: 1, dtype }];
    for operator in backward {
        assert_eq!(ops.apply(operator, &[&t, &t]).unwrap()[0].dtype(), DType::F32);
    }
}
