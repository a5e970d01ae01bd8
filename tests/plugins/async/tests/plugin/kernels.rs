//! The kernels against the references, with arguments that are gone when the work runs.

use crate::rig::{Rig, launch};
use ep_core::primitive::{
    BinaryOp, BroadcastElementwiseBinary, BroadcastElementwiseBinaryArgs, BroadcastElementwiseBinaryDesc,
    Cast, CastArgs, CastDesc, ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc, Fill, FillArgs,
    FillDesc, Matmul, MatmulArgs, MatmulDesc, Memcpy, MemcpyArgs, MemcpyDesc, MemcpyKind, Memset, MemsetArgs,
    MemsetDesc, Permute, PermuteArgs, PermuteDesc, Softmax, SoftmaxArgs, SoftmaxDesc, Transpose, UnaryOp,
};
use ep_core::{Code, DType, Element, Scalar};
use primitives::reference;
use proptest::prelude::*;

const F32: DType = DType::F32;

/// Signed, of all magnitudes, sometimes odd.
fn value() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -4.0f32..4.0,
        1 => -1e6f32..1e6,
        1 => prop::sample::select(vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE]),
    ]
}

fn finite(count: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(-4.0f32..4.0, count)
}

fn close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let f = f64::from(*f);
        let same = f == *e || (f.is_nan() && e.is_nan()) || (f - e).abs() <= tolerance * (1.0 + e.abs());
        assert!(same, "element {i}: {f} instead of {e}");
    }
}

fn rig() -> Rig {
    Rig::new(&[("max_delay_us", "50")])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn softmax(cols in 1usize..40, mut x in prop::collection::vec(value(), 0..200)) {
        let (rig, rows) = (rig(), x.len() / cols);
        x.truncate(rows * cols);
        let stream = rig.stream();
        let (src, dst) = (rig.upload(&stream, &x), rig.allocator.alloc(x.len() as u64 * 4, 0).unwrap());
        let primitive = rig.primitive::<Softmax>(SoftmaxDesc::new(F32, F32));
        launch(&primitive, &stream, &SoftmaxArgs::new(rows as i64, cols as i64, 1, src, dst)).unwrap();
        let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        close(&rig.download(&stream, dst, x.len()), &reference::softmax(cols, &wide), 1e-5);
        launch(&primitive, &stream, &SoftmaxArgs::new(rows as i64, cols as i64, 1, src, src)).unwrap();
        close(&rig.download(&stream, src, x.len()), &reference::softmax(cols, &wide), 1e-5);
    }

    #[test]
    fn matmul(
        (m, n, k, a, b, c) in (0usize..7, 0usize..7, 0usize..9)
            .prop_flat_map(|(m, n, k)| (Just(m), Just(n), Just(k), finite(m * k), finite(k * n), finite(m * n))),
        (ta, tb) in any::<(bool, bool)>(),
        (alpha, beta) in prop::sample::select(vec![(None, None), (Some(1.5), Some(-0.5)), (Some(0.0), Some(2.0))]),
    ) {
        let rig = rig();
        let stream = rig.stream();
        let transpose = |t| if t { Transpose::TRANSPOSE } else { Transpose::NONE };
        let primitive = rig.primitive::<Matmul>(MatmulDesc::new(transpose(ta), transpose(tb), F32));
        let [pa, pb, pc] = [&a, &b, &c].map(|data| rig.upload(&stream, data));
        let scalar = |s: Option<f64>| s.map_or(Scalar::None, Scalar::F64);
        let (sa, sb) = (scalar(alpha), scalar(beta));
        launch(&primitive, &stream, &MatmulArgs::new(m as i64, n as i64, k as i64, sa, sb, pa, pb, pc)).unwrap();
        let mut expected = Vec::new();
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let at = |p: usize| if ta { a[p * m + i] } else { a[i * k + p] };
            let bt = |p: usize| if tb { b[j * k + p] } else { b[p * n + j] };
            let product: f64 = (0..k).map(|p| f64::from(at(p)) * f64::from(bt(p))).sum();
            expected.push(alpha.unwrap_or(1.0) * product + beta.unwrap_or(0.0) * f64::from(c[i * n + j]));
        }
        close(&rig.download(&stream, pc, m * n), &expected, 1e-4);
    }

    #[test]
    fn permute(
        (dims, permutation) in (0usize..5).prop_flat_map(|rank| (
            prop::collection::vec(0usize..5, rank),
            Just((0..rank).collect::<Vec<_>>()).prop_shuffle(),
        )),
        seed in any::<u32>(),
    ) {
        let rig = rig();
        let stream = rig.stream();
        let count: usize = dims.iter().product();
        let bits: Vec<u32> = (0..count as u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ seed).collect();
        let (src, dst) = (rig.upload(&stream, &bits), rig.allocator.alloc(count as u64 * 4, 0).unwrap());
        let primitive = rig.primitive::<Permute>(PermuteDesc::new(F32));
        {
            let raw = |list: &[usize]| list.iter().map(|v| *v as i64).collect::<Vec<_>>();
            let (mut dims, mut permutation) = (raw(&dims), raw(&permutation));
            launch(&primitive, &stream, &PermuteArgs::new(&dims, &permutation, src, dst)).unwrap();
            dims.fill(-1);
            permutation.fill(-1);
        }
        let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_ne_bytes()).collect();
        let expected = reference::permute(&dims, &permutation, 4, &bytes);
        prop_assert_eq!(rig.download::<u8>(&stream, dst, count * 4), expected);
    }

    #[test]
    fn binary(
        dims in prop::collection::vec((0usize..5, 0u8..4), 0..5),
        data in prop::collection::vec(value(), 1250),
        op in prop::sample::select(vec![BinaryOp::ADD, BinaryOp::MUL]),
        scalar in prop::option::of(-3i64..3),
    ) {
        // Of each dimension: both sides, only one of them, or a broadcast of either.
        let side = |broadcast: u8| dims.iter().map(|(d, b)| if *b == broadcast { 1 } else { *d as i64 }).collect::<Vec<_>>();
        let (left, mut right) = (side(0), side(1));
        let shape: Vec<i64> = left.iter().zip(&right).map(|(l, r)| if *l == 1 { *r } else { *l }).collect();
        if scalar.is_some() {
            right.clear();
        } else if right.first() == Some(&1) {
            right.remove(0);
        }
        let out = if scalar.is_some() { left.clone() } else { shape };
        let count = |dims: &[i64]| dims.iter().product::<i64>() as usize;
        let rig = rig();
        let stream = rig.stream();
        let x = rig.upload(&stream, &data[..count(&left)]);
        let y = rig.upload(&stream, &data[625..625 + count(&right)]);
        let dst = rig.allocator.alloc(count(&out) as u64 * 4, 0).unwrap();
        let primitive = rig.primitive::<BroadcastElementwiseBinary>(BroadcastElementwiseBinaryDesc::new(op, F32, F32));
        let (none, s) = (Scalar::None, scalar.map_or(Scalar::None, Scalar::I64));
        let y = if scalar.is_some() { 0 } else { y };
        launch(&primitive, &stream, &BroadcastElementwiseBinaryArgs::new(&left, &right, none, s, x, y, dst)).unwrap();
        let f = |x: f32, y: f32| f64::from(if op == BinaryOp::ADD { x + y } else { x * y });
        // Independent of the kernel's strides: the multi-index of each element, cut to each side's rank.
        let at = |dims: &[i64], index: &[i64]| {
            let index = &index[index.len() - dims.len()..];
            dims.iter().zip(index).fold(0, |at, (d, i)| at * d + if *d == 1 { 0 } else { *i }) as usize
        };
        let expected: Vec<f64> = (0..count(&out) as i64)
            .map(|linear| {
                let mut rest = linear;
                let mut index: Vec<i64> = out.iter().rev().map(|d| { let i = rest % d; rest /= d; i }).collect();
                index.reverse();
                f(data[at(&left, &index)], scalar.map_or_else(|| data[625 + at(&right, &index)], |s| s as f32))
            })
            .collect();
        close(&rig.download(&stream, dst, count(&out)), &expected, 0.0);
    }
}

/// The result of a unary op or a cast of odd values.
fn unary<S: Element, D: Element + Default>(rig: &Rig, src: &[S], op: Option<UnaryOp>) -> Vec<D> {
    let stream = rig.stream();
    let (x, n) = (rig.upload(&stream, src), src.len() as i64);
    let y = rig.allocator.alloc(std::mem::size_of_val(src) as u64 * 8, 0).unwrap();
    match op {
        Some(op) => {
            let primitive =
                rig.primitive::<ElementwiseUnary>(ElementwiseUnaryDesc::new(op, S::DTYPE, D::DTYPE));
            launch(&primitive, &stream, &ElementwiseUnaryArgs::new(n, x, y)).unwrap();
        }
        None => {
            let primitive = rig.primitive::<Cast>(CastDesc::new(S::DTYPE, D::DTYPE));
            launch(&primitive, &stream, &CastArgs::new(n, x, y)).unwrap();
        }
    }
    rig.download(&stream, y, src.len())
}

#[test]
fn unary_ops_and_casts_of_odd_values() {
    let rig = rig();
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1.5, -2.75, 3e9, 1e-45];
    let ints = [i32::MIN, -1, 0, 1, i32::MAX, 16_777_217];
    let wide = |x: &[f32]| x.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
    let relu = [f64::NAN, f64::INFINITY, 0.0, 0.0, 1.5, 0.0, 3e9, f64::from(1e-45f32)];
    close(&unary::<f32, f32>(&rig, &odd, Some(UnaryOp::RELU)), &relu, 0.0);
    close(&unary::<f32, f32>(&rig, &odd, Some(UnaryOp::NEGATIVE)), &wide(&odd.map(|x| -x)), 0.0);
    close(&unary::<f32, f32>(&rig, &odd, Some(UnaryOp::IDENTITY)), &wide(&odd), 0.0);
    assert_eq!(unary::<i32, i32>(&rig, &ints, Some(UnaryOp::RELU)), [0, 0, 0, 1, i32::MAX, 16_777_217]);
    let negated = [i32::MIN, 1, 0, -1, -i32::MAX, -16_777_217];
    assert_eq!(unary::<i32, i32>(&rig, &ints, Some(UnaryOp::NEGATIVE)), negated);
    assert_eq!(unary::<i32, i32>(&rig, &ints, Some(UnaryOp::IDENTITY)), ints);
    assert_eq!(unary::<f32, i32>(&rig, &odd, None), [0, i32::MAX, i32::MIN, 0, 1, -2, i32::MAX, 0]);
    let rounded = [-2147483648.0, -1.0, 0.0, 1.0, 2147483648.0, 16777216.0];
    assert_eq!(unary::<i32, f32>(&rig, &ints, None), rounded);
    let doubles = unary::<f32, f64>(&rig, &odd[1..], None);
    assert_eq!(doubles, wide(&odd[1..]));
    assert_eq!(unary::<f64, f32>(&rig, &[1e300, -1e-300, 0.1], None), [f32::INFINITY, -0.0, 0.1]);
    assert_eq!(unary::<u8, f32>(&rig, &[0, 127, 255], None), [0.0, 127.0, 255.0]);
}

#[test]
fn memory_ops_touch_what_they_should() {
    let rig = rig();
    let stream = rig.stream();
    let x = rig.allocator.alloc(100, 0).unwrap();
    let memset = rig.primitive::<Memset>(MemsetDesc::new());
    launch(&memset, &stream, &MemsetArgs::new(99, Scalar::I64(0x1_07), x)).unwrap();
    let fill = rig.primitive::<Fill>(FillDesc::new(DType::I32));
    launch(&fill, &stream, &FillArgs::new(2, Scalar::F64(f64::NAN), x + 4)).unwrap();
    let copy = rig.primitive::<Memcpy>(MemcpyDesc::new(MemcpyKind::AUTO));
    launch(&copy, &stream, &MemcpyArgs::new(5, x + 2, x + 50)).unwrap();
    let mut expected = [7u8; 100];
    expected[4..12].fill(0);
    expected[52..55].fill(0);
    expected[99] = test_async::FRESH;
    assert_eq!(rig.download::<u8>(&stream, x, 100), expected);
    for (value, expected) in
        [(Scalar::F64(-1.5), -1), (Scalar::U64(u64::MAX), -1), (Scalar::Bool(true), 1), (Scalar::None, 0)]
    {
        launch(&fill, &stream, &FillArgs::new(1, value, x)).unwrap();
        assert_eq!(rig.download::<i32>(&stream, x, 1), [expected]);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_at_once() {
    let rig = rig();
    let stream = rig.stream();
    let x = rig.allocator.alloc(64, 0).unwrap();
    let add = rig.primitive::<BroadcastElementwiseBinary>(BroadcastElementwiseBinaryDesc::new(
        BinaryOp::ADD,
        F32,
        F32,
    ));
    let none = Scalar::None;
    let e = launch(&add, &stream, &BroadcastElementwiseBinaryArgs::new(&[2, 3], &[2], none, none, x, x, x))
        .unwrap_err();
    assert_eq!((e.code(), e.message().contains("do not broadcast")), (Code::InvalidArgument, true), "{e}");
    let permute = rig.primitive::<Permute>(PermuteDesc::new(F32));
    for permutation in [[0, 0], [1, 2], [-1, 0]] {
        let e = launch(&permute, &stream, &PermuteArgs::new(&[1, 2], &permutation, x, x + 32)).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    }
}
