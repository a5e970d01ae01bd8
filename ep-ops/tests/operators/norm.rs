//! Layer norm and RMS norm.

use crate::support::{Host, Random, few, layouts, on_each, shapes};
use ep_core::DType;
use ep_ops::Tensor;
use ep_ops::operators::{LayerNorm, RmsNorm};
use proptest::prelude::*;

const EPSILON: f64 = 0.125;

/// The row that an element is in.
fn row(x: &Host, index: &[i64], dims: usize) -> Vec<f64> {
    let (head, tail) = (&index[..index.len() - dims], &x.shape[index.len() - dims..]);
    crate::support::indices(tail).iter().map(|own| x.get(&[head, own].concat())).collect()
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len() as f64
}

fn rstd(all: &[f64]) -> f64 {
    let mean = mean(all);
    let variance = all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / all.len() as f64;
    1.0 / (variance + EPSILON).sqrt()
}

fn inv_rms(all: &[f64]) -> f64 {
    1.0 / (all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64 + EPSILON).sqrt()
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn over_the_last_dimensions(
        shape in shapes(1..5), dims in 0usize..4, scale: bool, shift: bool, stats: bool, seed: u64, layout in layouts(),
    ) {
        let dims = dims % shape.len() + 1;
        let mut random = Random(seed);
        let x = Host::random(&shape, &mut random);
        let (rows, last) = shape.split_at(shape.len() - dims);
        let (gamma, beta) = (Host::random(last, &mut random), Host::random(last, &mut random));
        let of = |f: fn(&[f64]) -> f64| {
            let zeros = vec![0; dims];
            Host::from_fn(rows, |index| f(&row(&x, &[index, &zeros].concat(), dims)))
        };
        let parameter = |p: &Host, index: &[i64]| p.get(&index[rows.len()..]);
        let normal = Host::from_fn(&shape, |index| {
            let all = row(&x, index, dims);
            let scaled = (x.get(index) - mean(&all)) * rstd(&all);
            let scaled = if scale { scaled * parameter(&gamma, index) } else { scaled };
            if shift { scaled + parameter(&beta, index) } else { scaled }
        });
        let rms = Host::from_fn(&shape, |index| {
            let scaled = x.get(index) * inv_rms(&row(&x, index, dims));
            if scale { scaled * parameter(&gamma, index) } else { scaled }
        });
        on_each(|ops| {
            let to = |x: &Host| x.laid_out(ops, DType::F32, layout);
            let (x, gamma, beta) = (to(&x), to(&gamma), to(&beta));
            let inputs: Vec<&Tensor> =
                [Some(&x), scale.then_some(&gamma), shift.then_some(&beta)].into_iter().flatten().collect();
            let operator = LayerNorm { dims, epsilon: EPSILON, scale, shift, stats };
            let out = ops.apply(&operator, &inputs).unwrap();
            normal.assert_near(ops, &out[0], 1e-5);
            let operator = RmsNorm { dims, epsilon: EPSILON, scale, stats };
            let out_rms = ops.apply(&operator, &inputs[..1 + usize::from(scale)]).unwrap();
            rms.assert_near(ops, &out_rms[0], 1e-5);
            if stats {
                of(mean).assert_near(ops, &out[1], 1e-6);
                of(rstd).assert_near(ops, &out[2], 1e-6);
                of(inv_rms).assert_near(ops, &out_rms[1], 1e-6);
            }
        });
    }
}

#[test]
fn as_methods() {
    on_each(|ops| {
        let x = Host::new(&[1, 2], &[1.0, 3.0]).to(ops, DType::F64);
        let two = Host::new(&[2], &[2.0, 2.0]).to(ops, DType::F64);
        let out = ops.layer_norm(&x, 1, Some(&two), Some(&two), 0.0).unwrap();
        Host::new(&[1, 2], &[0.0, 4.0]).assert_near(ops, &out, 1e-12);
        let out = ops.layer_norm(&x, 1, None, Some(&two), 0.0).unwrap();
        Host::new(&[1, 2], &[1.0, 3.0]).assert_near(ops, &out, 1e-12);
        let out = ops.rms_norm(&x, 1, Some(&two), 0.0).unwrap();
        let root = 5f64.sqrt();
        Host::new(&[1, 2], &[2.0 / root, 6.0 / root]).assert_near(ops, &out, 1e-12);
    });
}
