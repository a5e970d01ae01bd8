//! Reductions and positions.

use crate::support::{Host, Layout, Random, cpu, few, indices, layouts, on_each, shapes};
use ep_core::DType;
use ep_core::primitive::{ArgReduceOp, ReduceOp};
use ep_ops::operators::{ArgReduce, Reduce};
use proptest::prelude::*;

fn combine(op: ReduceOp, all: &[f64]) -> f64 {
    let count = all.len() as f64;
    match op {
        ReduceOp::SUM => all.iter().sum(),
        ReduceOp::MEAN => all.iter().sum::<f64>() / count,
        ReduceOp::MAX => all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::MIN => all.iter().copied().fold(f64::INFINITY, f64::min),
        // Beyond the largest f32 is infinity.
        ReduceOp::PROD => f64::from(all.iter().product::<f64>() as f32),
        ReduceOp::ANY => f64::from(u8::from(all.iter().any(|x| *x != 0.0))),
        _ => f64::from(u8::from(all.iter().all(|x| *x != 0.0))),
    }
}

fn model(x: &Host, combined: &[bool], keep_dims: bool, f: impl Fn(&[f64]) -> f64) -> Host {
    let kept: Vec<i64> = x.shape.iter().zip(combined).map(|(n, c)| if *c { 1 } else { *n }).collect();
    let gone: Vec<i64> = x.shape.iter().zip(combined).map(|(n, c)| if *c { *n } else { 1 }).collect();
    let mut out = Host::from_fn(&kept, |index| {
        let at = |own: &Vec<i64>| x.get(&index.iter().zip(own).map(|(i, j)| i + j).collect::<Vec<_>>());
        f(&indices(&gone).iter().map(at).collect::<Vec<_>>())
    });
    if !keep_dims {
        out.shape = x.shape.iter().zip(combined).filter(|(_, c)| !**c).map(|(n, _)| *n).collect();
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..few() })]

    #[test]
    fn any_set_of_dimensions(
        shape in shapes(0..5), which in 0u8..32, keep_dims: bool, negative: bool, seed: u64, layout in layouts(),
        op in (0..ReduceOp::NAMES.len() as u32).prop_map(ReduceOp),
    ) {
        let rank = shape.len();
        let mut combined: Vec<bool> = (0..rank).map(|d| which >> d & 1 == 1).collect();
        let dims = (0..rank).filter(|d| combined[*d]).map(|d| if negative { d as i64 - rank as i64 } else { d as i64 });
        let dims: Vec<i64> = dims.rev().collect();
        if dims.is_empty() {
            combined = vec![true; rank];
        }
        let x = Host::random(&shape, &mut Random(seed));
        let expected = model(&x, &combined, keep_dims, |all| combine(op, all));
        on_each(|ops| {
            let t = x.laid_out(ops, DType::F32, layout);
            expected.assert_near(ops, &ops.reduce(op, &t, &dims, keep_dims).unwrap(), 1e-6);
        });
    }

    #[test]
    fn positions(shape in prop::collection::vec(1..5i64, 0..4), at in 0usize..4, keep_dims: bool, seed: u64,
        layout in layouts(), least: bool) {
        let rank = shape.len();
        let dim = at % rank.max(1);
        let x = Host::random(&shape, &mut Random(seed));
        let combined: Vec<bool> = (0..rank).map(|d| d == dim).collect();
        let expected = model(&x, &combined, keep_dims, |all| {
            let better = |a: f64, b: f64| if least { a < b } else { a > b };
            (0..all.len()).fold(0, |best, i| if better(all[i], all[best]) { i } else { best }) as f64
        });
        let op = if least { ArgReduceOp::ARGMIN } else { ArgReduceOp::ARGMAX };
        on_each(|ops| {
            let t = x.laid_out(ops, DType::I8, layout);
            let out = ops.arg_reduce(op, &t, dim as i64 - rank.max(1) as i64, keep_dims).unwrap();
            assert_eq!(out.dtype(), DType::I64);
            expected.assert_equal(ops, &out);
        });
    }
}

/// Dimensions that are no neighbours give what one step over all of them gives, also at the ends of the range.
#[test]
fn dimensions_apart() {
    on_each(|ops| {
        let of = |values: [f64; 8], dtype, op, to: Option<DType>| {
            let x = Host::new(&[2, 2, 2], &values).to(ops, dtype);
            let reduce = Reduce { op, dims: vec![0, 2], keep_dims: false, dtype: to };
            let out = ops.apply(&reduce, &[&x]).unwrap().remove(0);
            (out.dtype(), crate::support::from(ops, &out).data)
        };
        let ends = [1e30, 1e30, 1.0, 2.0, 1e-30, 1e-30, 3.0, 4.0];
        assert_eq!(of(ends, DType::F32, ReduceOp::PROD, None).1[1], 24.0);
        assert!((of(ends, DType::F32, ReduceOp::PROD, None).1[0] - 1.0).abs() < 1e-6);
        let nan = [1.0, f64::NAN, 2.0, f64::INFINITY, 3.0, 4.0, -5.0, 6.0];
        for op in [ReduceOp::MAX, ReduceOp::MIN, ReduceOp::SUM, ReduceOp::MEAN] {
            assert!(of(nan, DType::F32, op, None).1[0].is_nan(), "{op:?}");
        }
        assert_eq!(of(nan, DType::F64, ReduceOp::MAX, None).1[1], f64::INFINITY);
        assert_eq!(of(nan, DType::F64, ReduceOp::MIN, None).1[1], -5.0);
        let zeros = [0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.5];
        assert_eq!(of(zeros, DType::F32, ReduceOp::ANY, None), (DType::BOOL, vec![0.0, 1.0]));
        assert_eq!(
            of(zeros.map(|x| x + 1.0), DType::F32, ReduceOp::ALL, None),
            (DType::BOOL, vec![1.0, 1.0])
        );
        assert_eq!(of(zeros, DType::BOOL, ReduceOp::SUM, None), (DType::I64, vec![0.0, 2.0]));
        let bytes = [127.0, 127.0, -128.0, -128.0, 127.0, 127.0, -128.0, 1.0];
        assert_eq!(of(bytes, DType::I8, ReduceOp::SUM, Some(DType::I64)), (DType::I64, vec![508.0, -383.0]));
        assert_eq!(of(bytes, DType::I8, ReduceOp::SUM, None), (DType::I8, vec![-4.0, -127.0]));
        // Halves are summed in f32, of which 2049 is one, and 2048 + 1 + 1 in halves is not 2050.
        let halves = [2048.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
        assert_eq!(of(halves, DType::F16, ReduceOp::SUM, None), (DType::F16, vec![2050.0, 0.0]));
        assert_eq!(of(halves, DType::F16, ReduceOp::SUM, Some(DType::F32)), (DType::F32, vec![2050.0, 0.0]));
        assert_eq!(of(halves, DType::BF16, ReduceOp::MEAN, Some(DType::F32)).1[0], 512.5);
    });
}

#[test]
fn dtypes_of_results() {
    let ops = cpu();
    let of = |op: ReduceOp, src: DType, dtype: Option<DType>| {
        let x = Host::new(&[3], &[1.0, 0.0, 3.0]).laid_out(&ops, src, Layout::Dense);
        let operator = Reduce { op, dims: vec![], keep_dims: false, dtype };
        let out = ops.apply(&operator, &[&x])?.remove(0);
        Ok::<_, ep_core::Error>((out.dtype(), crate::support::from(&ops, &out).data[0]))
    };
    assert_eq!(of(ReduceOp::SUM, DType::BOOL, None), Ok((DType::I64, 2.0)));
    assert_eq!(of(ReduceOp::SUM, DType::I8, None), Ok((DType::I8, 4.0)));
    assert_eq!(of(ReduceOp::SUM, DType::I8, Some(DType::I64)), Ok((DType::I64, 4.0)));
    assert_eq!(
        of(ReduceOp::MEAN, DType::F16, Some(DType::F32)),
        Ok((DType::F32, 4.0f32 as f64 / 3.0)).map(|(d, _)| { (d, f64::from(4.0f32 / 3.0)) })
    );
    assert_eq!(of(ReduceOp::ALL, DType::F64, None), Ok((DType::BOOL, 0.0)));
    assert!(of(ReduceOp::MEAN, DType::I32, None).unwrap_err().message().contains("cast x first"));
    assert!(of(ReduceOp::MAX, DType::I32, Some(DType::I64)).unwrap_err().message().contains("it gives i32;"));
    let refused = of(ReduceOp::PROD, DType::U16, Some(DType::F32)).unwrap_err();
    assert!(refused.message().contains("it gives u16 or i64"), "{refused}");

    let x = Host::new(&[2, 2], &[1.0, 5.0, 7.0, 5.0]).to(&ops, DType::BF16);
    let operator = ArgReduce { op: ArgReduceOp::ARGMAX, dim: 0, keep_dims: true, dtype: DType::I32 };
    let out = ops.apply(&operator, &[&x]).unwrap().remove(0);
    assert_eq!(out.dtype(), DType::I32);
    Host::new(&[1, 2], &[1.0, 0.0]).assert_equal(&ops, &out);
}
