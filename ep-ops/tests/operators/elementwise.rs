//! Functions of elements, of pairs and of one of two; casts and sums.

use crate::support::{Host, Layout, Random, cpu, few, from, layouts, on_each, shapes};
use ep_core::primitive::{BinaryOp, UnaryOp};
use ep_core::{Code, DType, Scalar};
use ep_ops::Operator;
use ep_ops::operators::{Binary, BinaryScalar, Side, Unary};
use ep_ops::{Ops, Spec, Tensor};
use primitives::reference::{self, Number};
use proptest::prelude::*;

const DTYPES: [DType; 4] = [DType::BOOL, DType::I32, DType::F32, DType::COMPLEX64];

/// Values inside of the domain of most functions.
const VALUES: [f64; 6] = [0.75, -0.5, 1.0, 0.25, -2.0, 3.0];

/// A tensor of [`VALUES`] from one on, and the elements as numbers. Imaginary parts are a half of the value.
fn values(ops: &Ops<'_>, dtype: DType, shape: &[i64], first: usize) -> (Tensor, Vec<Number>) {
    let host = Host::from_fn(shape, |index| {
        let position = index.iter().sum::<i64>() as usize + first;
        VALUES[position % VALUES.len()]
    });
    if !dtype.is_complex() {
        let numbers = host.data.iter().map(|x| Number::Real(*x).cast(dtype)).collect();
        return (host.to(ops, dtype), numbers);
    }
    let part = |op: UnaryOp, factor: f64| {
        let part = Host { data: host.data.iter().map(|x| x * factor).collect(), ..host.clone() };
        ops.unary(op, &part.to(ops, DType::F32)).unwrap()
    };
    let sum = ops.add_n(&[&part(UnaryOp::REAL_GRAD, 1.0), &part(UnaryOp::IMAG_GRAD, 0.5)]).unwrap();
    (sum, host.data.iter().map(|x| Number::Complex(*x, x / 2.0)).collect())
}

/// Fails unless a tensor has these numbers, but for what functions are off.
#[track_caller]
fn assert_numbers(ops: &Ops<'_>, found: &Tensor, expected: &[Number], told: &str) {
    let parts: Vec<(Tensor, Vec<f64>)> = if found.dtype().is_complex() {
        vec![
            (ops.unary(UnaryOp::REAL, found).unwrap(), expected.iter().map(|x| x.re()).collect()),
            (ops.unary(UnaryOp::IMAG, found).unwrap(), expected.iter().map(|x| x.im()).collect()),
        ]
    } else {
        vec![(found.alias(), expected.iter().map(|x| x.re()).collect())]
    };
    for (found, expected) in parts {
        let found = ops.to_vec::<f64>(&ops.cast(&found, DType::F64).unwrap()).unwrap();
        assert_eq!(found.len(), expected.len(), "{told}");
        for (a, b) in found.iter().zip(&expected) {
            let near = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 2e-6 * (1.0 + b.abs());
            assert!(near, "{told}: {found:?}, not {expected:?}");
        }
    }
}

fn spec(x: &Tensor) -> Spec {
    x.spec().clone()
}

#[test]
fn all_functions_of_one_element() {
    on_each(|ops| {
        let mut ran = 0;
        for op in UnaryOp::all().filter(|op| *op != UnaryOp::CAST) {
            for dtype in DTYPES {
                let name = op.name().unwrap();
                let operator = Unary { attrs: [0.5, 2.0], ..Unary::new(op) };
                let (x, numbers) = values(ops, dtype, &[2, 3], 0);
                let Ok(inferred) = operator.infer(&[spec(&x)]) else { continue };
                let function = reference::Unary::new(name, dtype, inferred[0].dtype, operator.attrs);
                let made = ops.apply(&operator, &[&x]);
                // The references, which the simulated accelerator runs, test complex numbers too.
                let tests = inferred[0].dtype == DType::BOOL;
                let lacks = dtype.is_complex() && tests && ops.device().name() != "sim:0";
                let Some(function) = function.filter(|_| !lacks) else {
                    assert_eq!(made.unwrap_err().code(), Code::Unsupported, "{name} of {dtype}");
                    continue;
                };
                let expected: Vec<_> = numbers.iter().map(|x| function.apply(*x)).collect();
                assert_numbers(ops, &made.unwrap()[0], &expected, &format!("{name} of {dtype}"));
                ran += 1;
            }
        }
        assert!(ran > 100, "{ran}");
    });
}

#[test]
fn functions_of_views() {
    on_each(|ops| {
        let mut random = Random(4);
        for layout in [Layout::Reversed, Layout::Narrowed, Layout::Flipped, Layout::Stepped] {
            for shape in [&[2, 3, 4][..], &[5], &[], &[1, 3], &[2, 0]] {
                let x = Host::random(shape, &mut random);
                let expected = Host { data: x.data.iter().map(|x| x * x).collect(), ..x.clone() };
                let out = ops.unary(UnaryOp::SQUARE, &x.laid_out(ops, DType::F32, layout)).unwrap();
                expected.assert_equal(ops, &out);
            }
        }
        let row = Host::new(&[1, 3], &[1.0, -2.0, 3.0]);
        let out = ops.unary(UnaryOp::NEGATIVE, &row.to(ops, DType::I64).expand(&[2, 3]).unwrap()).unwrap();
        Host::new(&[2, 3], &[-1.0, 2.0, -3.0, -1.0, 2.0, -3.0]).assert_equal(ops, &out);
    });
}

#[test]
fn dtypes_of_results() {
    let of = |op: UnaryOp, src: DType, dtype: Option<DType>| {
        let out = Unary { dtype, ..Unary::new(op) }.infer(&[Spec::new(src, [2])]);
        out.map(|out| out[0].dtype)
    };
    assert_eq!(of(UnaryOp::IS_NAN, DType::F16, None), Ok(DType::BOOL));
    assert_eq!(of(UnaryOp::IMAG, DType::COMPLEX128, None), Ok(DType::F64));
    assert_eq!(of(UnaryOp::REAL_GRAD, DType::F32, None), Ok(DType::COMPLEX64));
    assert_eq!(of(UnaryOp::REAL_GRAD, DType::F16, Some(DType::COMPLEX64)), Ok(DType::COMPLEX64));
    assert_eq!(of(UnaryOp::CAST, DType::F16, Some(DType::I8)), Ok(DType::I8));
    assert!(
        of(UnaryOp::CAST, DType::F16, None).unwrap_err().message().contains("does not say to which dtype")
    );
    assert!(
        of(UnaryOp::RELU, DType::F16, Some(DType::F32)).unwrap_err().message().contains("cast the result")
    );
}

#[test]
fn all_functions_of_pairs_broadcast() {
    on_each(|ops| {
        let mut ran = 0;
        for (op, dtype) in BinaryOp::all().flat_map(|op| DTYPES.map(|dtype| (op, dtype))) {
            let name = op.name().unwrap();
            let operator = Binary { op, attrs: [0.5, 0.25] };
            let ((a, x), (b, y)) = (values(ops, dtype, &[2, 1, 3], 0), values(ops, dtype, &[2, 1], 2));
            let inferred = operator.infer(&[spec(&a), spec(&b)]).unwrap().remove(0);
            assert_eq!(inferred.shape, [2, 2, 3]);
            let function = reference::Binary::new(name, dtype, inferred.dtype, operator.attrs);
            let made = ops.apply(&operator, &[&a, &b]);
            let Some(function) = function else {
                assert_eq!(made.unwrap_err().code(), Code::Unsupported, "{name} of {dtype}");
                continue;
            };
            let pairs = (0..12).map(|i| (x[i / 6 * 3 + i % 3], y[i / 3 % 2]));
            let expected: Vec<_> = pairs.map(|(x, y)| function.apply(x, y)).collect();
            assert_numbers(ops, &made.unwrap()[0], &expected, &format!("{name} of {dtype}"));
            ran += 1;
        }
        assert!(ran > 120, "{ran}");
    });
}

#[test]
fn numbers_in_place_of_tensors() {
    on_each(|ops| {
        let x = Host::new(&[2, 2], &[1.0, 2.0, 3.0, -4.0]);
        let t = x.laid_out(ops, DType::I32, Layout::Reversed);
        Host::new(&[2, 2], &[-2.0, -1.0, 0.0, -7.0])
            .assert_equal(ops, &ops.binary_scalar(BinaryOp::SUB, &t, 3).unwrap());
        Host::new(&[2, 2], &[2.0, 1.0, 0.0, 7.0])
            .assert_equal(ops, &ops.scalar_binary(BinaryOp::SUB, 3, &t).unwrap());
        let less = ops.scalar_binary(BinaryOp::LESS_THAN, 2, &t).unwrap();
        assert_eq!(less.dtype(), DType::BOOL);
        Host::new(&[2, 2], &[0.0, 0.0, 1.0, 0.0]).assert_equal(ops, &less);
        let operator = BinaryScalar {
            op: BinaryOp::IS_CLOSE,
            attrs: [1.0, 0.0],
            scalar: Scalar::I64(2),
            side: Side::Second,
        };
        let close = ops.apply(&operator, &[&t]).unwrap();
        Host::new(&[2, 2], &[1.0, 1.0, 1.0, 0.0]).assert_equal(ops, &close[0]);
        let error = ops.binary_scalar(BinaryOp::MUL, &t, 0.5).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("i32[2, 2] and the number 0.5: i32 cannot hold it"), "{error}");
    });
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn shapes_broadcast(
        shape in shapes(0..4), ones in (0u8..16, 0u8..16, 0u8..16), drops in (0usize..3, 0usize..3, 0usize..3),
        seed: u64, layouts in (layouts(), layouts(), layouts()), spread: bool,
    ) {
        let mut random = Random(seed);
        // Some sizes are 1, and some of the first dimensions are missing.
        let mut operand = |ones: u8, drop: usize| {
            let all = shape.iter().enumerate().map(|(d, size)| if ones >> d & 1 == 1 { 1 } else { *size });
            Host::random(&all.skip(drop).collect::<Vec<_>>(), &mut random)
        };
        let (mut c, a, b) = (operand(ones.0, drops.0), operand(ones.1, drops.1), operand(ones.2, drops.2));
        c.data.iter_mut().for_each(|x| *x = f64::from(u8::from(*x > 0.0)));
        let out = |hosts: &[&Host]| -> Vec<i64> {
            let rank = hosts.iter().map(|x| x.shape.len()).max().unwrap();
            let size = |d: usize| {
                let sizes = hosts.iter().filter_map(|x| Some(x.shape[(d + x.shape.len()).checked_sub(rank)?]));
                sizes.fold(1, |all, size| if all == 1 { size } else { all })
            };
            (0..rank).map(size).collect()
        };
        let (pair, all) = (out(&[&a, &b]), out(&[&c, &a, &b]));
        let difference = Host::from_fn(&pair, |i| a.broadcast(i) - b.broadcast(i));
        let chosen = Host::from_fn(&all, |i| if c.broadcast(i) == 0.0 { b.broadcast(i) } else { a.broadcast(i) });
        on_each(|ops| {
            let mut tensors = [
                c.laid_out(ops, DType::BOOL, layouts.0), a.laid_out(ops, DType::F32, layouts.1),
                b.laid_out(ops, DType::F32, layouts.2),
            ];
            difference.assert_equal(ops, &ops.binary(BinaryOp::SUB, &tensors[1], &tensors[2]).unwrap());
            if spread {
                // The same with views that repeat.
                tensors = tensors.map(|t| t.expand(&all).unwrap());
                let wide = Host::from_fn(&all, |i| a.broadcast(i) - b.broadcast(i));
                wide.assert_equal(ops, &ops.binary(BinaryOp::SUB, &tensors[1], &tensors[2]).unwrap());
            }
            chosen.assert_equal(ops, &ops.where_(&tensors[0], &tensors[1], &tensors[2]).unwrap());
        });
    }

    #[test]
    fn sums_of_many(shape in shapes(0..4), n in 1usize..6, seed: u64, layout in layouts()) {
        let mut random = Random(seed);
        let all: Vec<Host> = (0..n).map(|_| Host::random(&shape, &mut random)).collect();
        let expected = Host::from_fn(&shape, |index| all.iter().map(|x| x.get(index)).sum());
        on_each(|ops| {
            let tensors: Vec<Tensor> = all.iter().map(|x| x.laid_out(ops, DType::F16, layout)).collect();
            expected.assert_equal(ops, &ops.add_n(&tensors.iter().collect::<Vec<_>>()).unwrap());
        });
    }
}

#[test]
fn casts() {
    let ops = cpu();
    let x = ops.tensor(&[1.75f32, -1.75, 300.0, f32::NAN], &[2, 2]).unwrap();
    assert_eq!(ops.to_vec::<u8>(&ops.cast(&x.t().unwrap(), DType::U8).unwrap()).unwrap(), [1, 255, 0, 0]);
    assert_eq!(ops.to_vec::<bool>(&ops.cast(&x, DType::BOOL).unwrap()).unwrap(), [true; 4]);
    let same = ops.cast(&x, DType::F32).unwrap();
    assert!(!same.shares_storage(&x));
    let function = reference::Unary::new("cast", DType::F32, DType::I16, [0.0; 2]).unwrap();
    assert_eq!(function.apply(Number::Real(-1.75)), Number::Int(-1));
    assert_eq!(ops.to_vec::<i16>(&ops.cast(&x, DType::I16).unwrap()).unwrap(), [1, -1, 300, 0]);
}

/// What lies with gaps, turned round or repeated is converted as what is dense.
#[test]
fn casts_of_views() {
    let x = Host::new(&[2, 3], &[1.75, -1.75, 300.0, f64::NAN, f64::NEG_INFINITY, 0.0]);
    let dtypes = [DType::BOOL, DType::U8, DType::I32, DType::F16, DType::F64, DType::COMPLEX64];
    on_each(|ops| {
        for (from_dtype, to) in dtypes.into_iter().flat_map(|from| dtypes.map(|to| (from, to))) {
            let expected = from(ops, &ops.cast(&x.to(ops, from_dtype), to).unwrap());
            for layout in [Layout::Reversed, Layout::Narrowed, Layout::Flipped, Layout::Stepped] {
                let view = x.laid_out(ops, from_dtype, layout);
                let found = ops.cast(&view, to).unwrap();
                assert!(!found.shares_storage(&view));
                expected.assert_equal(ops, &found);
            }
            let rows = x.to(ops, from_dtype).narrow(0, 1, 1).unwrap().expand(&[2, 3]).unwrap();
            Host::from_fn(&[2, 3], |i| expected.get(&[1, i[1]]))
                .assert_equal(ops, &ops.cast(&rows, to).unwrap());
        }
    });
}
