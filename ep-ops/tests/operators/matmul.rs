//! Matrix products.

use crate::support::{Host, Layout, Random, cpu, few, layouts, on_each};
use ep_core::DType;
use ep_ops::{Ops, Tensor};
use proptest::prelude::*;

/// numpy.matmul.
fn model(a: &Host, b: &Host) -> Host {
    let mut wide = (a.clone(), b.clone());
    if a.shape.len() == 1 {
        wide.0.shape.insert(0, 1);
    }
    if b.shape.len() == 1 {
        wide.1.shape.push(1);
    }
    let (a_rank, b_rank) = (wide.0.shape.len(), wide.1.shape.len());
    let (m, k, n) = (wide.0.shape[a_rank - 2], wide.0.shape[a_rank - 1], wide.1.shape[b_rank - 1]);
    let batches = a_rank.max(b_rank) - 2;
    let size =
        |shape: &[i64], d: usize| (d + shape.len()).checked_sub(batches + 2).map_or(1, |own| shape[own]);
    let mut shape: Vec<i64> = (0..batches)
        .map(|d| match (size(&wide.0.shape, d), size(&wide.1.shape, d)) {
            (1, other) => other,
            (one, _) => one,
        })
        .collect();
    shape.extend([m, n]);
    let mut out = Host::from_fn(&shape, |index| {
        let at = |x: &Host, row: i64, column: i64| {
            let own = x.shape.len() - 2;
            let head = index[batches - own..batches].iter().zip(&x.shape);
            let head: Vec<i64> = head.map(|(i, size)| if *size == 1 { 0 } else { *i }).collect();
            x.get(&[&head[..], &[row, column]].concat())
        };
        (0..k).map(|i| at(&wide.0, index[batches], i) * at(&wide.1, i, index[batches + 1])).sum()
    });
    if b.shape.len() == 1 {
        out.shape.pop();
    }
    if a.shape.len() == 1 {
        out.shape.remove(batches);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..few() })]

    #[test]
    fn matrices_with_batches_that_broadcast(
        batch in prop::collection::vec((0..4i64, 0..3u8), 0..3), drop in (0usize..3, 0usize..3),
        sizes in (0..4i64, 0..4i64, 0..4i64), vectors in (0..5u8, 0..5u8), seed: u64,
        layouts in (layouts(), layouts()), dtype in prop_oneof![Just(DType::F32), Just(DType::I32)],
    ) {
        let (m, k, n) = sizes;
        // Of each batch dimension either side may have 1, and of the first ones either side may have none.
        let side = |one: u8, drop: usize| -> Vec<i64> {
            let all = batch.iter().map(|(size, which)| if *which == one { 1 } else { *size });
            all.skip(drop).collect()
        };
        let drop = if drop.0 > 0 { (drop.0, 0) } else { (0, drop.1) };
        let a = if vectors.0 == 0 { vec![k] } else { [&side(1, drop.0)[..], &[m, k]].concat() };
        let b = if vectors.1 == 0 { vec![k] } else { [&side(2, drop.1)[..], &[k, n]].concat() };
        let mut random = Random(seed);
        let (a, b) = (Host::random(&a, &mut random), Host::random(&b, &mut random));
        on_each(|ops| {
            let (a_tensor, b_tensor) = (a.laid_out(ops, dtype, layouts.0), b.laid_out(ops, dtype, layouts.1));
            model(&a, &b).assert_equal(ops, &ops.matmul(&a_tensor, &b_tensor).unwrap());
        });
    }
}

#[test]
fn what_repeats_on_one_side_or_both() {
    on_each(|ops| {
        let mut random = Random(11);
        let (a, b) = (Host::random(&[2, 3], &mut random), Host::random(&[3, 4], &mut random));
        let expand = |x: &Host, shape: &[i64]| x.to(ops, DType::F32).expand(shape).unwrap();
        let wide = |x: &Host, shape: &[i64]| Host::from_fn(shape, |index| x.broadcast(index));
        for (a_shape, b_shape) in [
            (&[5, 2, 3][..], &[3, 4][..]),
            (&[5, 2, 3], &[5, 3, 4]),
            (&[2, 3], &[5, 3, 4]),
            (&[6, 1, 2, 3], &[5, 3, 4]),
            (&[6, 5, 2, 3], &[6, 5, 3, 4]),
        ] {
            let out = ops.matmul(&expand(&a, a_shape), &expand(&b, b_shape)).unwrap();
            model(&wide(&a, a_shape), &wide(&b, b_shape)).assert_equal(ops, &out);
        }
    });
}

/// What is empty repeats no less, and products over nothing are 0.
#[test]
fn nothing_that_repeats_on_both_sides() {
    on_each(|ops| {
        for (a, b, batch) in [
            ([3, 0], [0, 4], &[2][..]),
            ([0, 0], [0, 1], &[2, 1, 1]),
            ([0, 3], [3, 2], &[5]),
            ([2, 3], [3, 0], &[6, 5]),
        ] {
            let expand = |shape: [i64; 2]| {
                let wide = [batch, &shape[..]].concat();
                ops.zeros(DType::F32, &shape).unwrap().expand(&wide).unwrap()
            };
            let out = ops.matmul(&expand(a), &expand(b)).unwrap();
            let shape = [batch, &[a[0], b[1]]].concat();
            Host::from_fn(&shape, |_| 0.0).assert_equal(ops, &out);
            let out = ops.matmul(&expand(a), &ops.zeros(DType::F32, &b).unwrap()).unwrap();
            Host::from_fn(&shape, |_| 0.0).assert_equal(ops, &out);
        }
    });
}

/// The primitives conjugate what they transpose; a view does not.
#[test]
fn transposed_views_of_complex_numbers_are_not_conjugated() {
    use ep_core::primitive::{BinaryOp, UnaryOp};
    on_each(|ops| {
        let imaginary = |x: &Host| -> Tensor {
            let x = x.to(ops, DType::F32);
            ops.unary(UnaryOp::IMAG_GRAD, &x).unwrap()
        };
        // Of i and 2 i with 3 i, 5 i and 7 i, 11 i.
        let (a, b) = (Host::new(&[1, 2], &[1.0, 2.0]), Host::new(&[2, 2], &[3.0, 5.0, 7.0, 11.0]));
        let product = ops.matmul(&imaginary(&a), &imaginary(&b).t().unwrap()).unwrap();
        let real = ops.unary(UnaryOp::REAL, &product).unwrap();
        Host::new(&[1, 2], &[-13.0, -29.0]).assert_equal(ops, &real);
        let doubled = ops.binary(BinaryOp::ADD, &real, &real).unwrap();
        Host::new(&[1, 2], &[-26.0, -58.0]).assert_equal(ops, &doubled);
    });
}

#[test]
fn every_layout_of_shared_and_own_operands() {
    on_each(|ops| {
        let mut random = Random(2);
        for (a, b) in
            [(&[3, 17, 33][..], &[3, 33, 19][..]), (&[3, 17, 33], &[33, 19]), (&[17, 33], &[3, 33, 19])]
        {
            let (a, b) = (Host::random(a, &mut random), Host::random(b, &mut random));
            for (a_layout, b_layout) in [
                (Layout::Dense, Layout::Dense),
                (Layout::Transposed, Layout::Dense),
                (Layout::Dense, Layout::Transposed),
                (Layout::Transposed, Layout::Transposed),
                (Layout::Narrowed, Layout::Reversed),
            ] {
                let tensors = (a.laid_out(ops, DType::F32, a_layout), b.laid_out(ops, DType::F32, b_layout));
                model(&a, &b).assert_equal(ops, &ops.matmul(&tensors.0, &tensors.1).unwrap());
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..few() })]

    #[test]
    fn by_a_matrix_that_was_prepacked(
        batch in prop::collection::vec(0..4i64, 0..3), sizes in (0..40i64, 0..70i64, 0..70i64), vector: bool, seed: u64,
        layouts in (layouts(), layouts()), dtype in prop_oneof![Just(DType::BF16), Just(DType::F32), Just(DType::I32)],
    ) {
        let (m, k, n) = sizes;
        let a = if vector { vec![k] } else { [&batch[..], &[m, k]].concat() };
        let mut random = Random(seed);
        let (a, b) = (Host::random(&a, &mut random), Host::random(&[k, n], &mut random));
        on_each(|ops| {
            let packed = ops.prepack(&b.laid_out(ops, dtype, layouts.1)).unwrap();
            assert_eq!((packed.spec().dtype, &packed.spec().shape[..]), (dtype, &[k, n][..]));
            let out = ops.matmul_prepacked(&a.laid_out(ops, dtype, layouts.0), &packed).unwrap();
            // Sums are exact, and rounded once.
            let tolerance = if dtype == DType::BF16 { 1.0 / 256.0 } else { 0.0 };
            model(&a, &b).assert_near(ops, &out, tolerance);
        });
    }
}

#[test]
fn what_cannot_be_prepacked_and_what_does_not_meet_it() {
    on_each(|ops| {
        let refused = |e: ep_core::Error, says: &str| {
            assert_eq!(e.code(), ep_core::Code::InvalidArgument, "{e}");
            assert!(e.message().contains(says), "{e}");
        };
        let zeros = |dtype, shape: &[i64]| ops.zeros(dtype, shape).unwrap();
        refused(ops.prepack(&zeros(DType::F32, &[3])).unwrap_err(), "a matrix of two dimensions");
        refused(ops.prepack(&zeros(DType::BOOL, &[3, 2])).unwrap_err(), "not of bool");
        let packed = ops.prepack(&zeros(DType::I32, &[64, 48])).unwrap();
        assert_eq!(packed.is_packed(), packed.packed_bytes() > 0);
        let by = |a: Tensor| ops.matmul_prepacked(&a, &packed).unwrap_err();
        refused(by(zeros(DType::I32, &[2, 63])), "63 columns of the first meet 64 rows");
        refused(by(zeros(DType::F32, &[2, 64])), "dtype");
        refused(by(zeros(DType::I32, &[])), "a single element is no matrix");
    });
}

/// The weights of one device are of no use to another one.
#[test]
fn prepacked_elsewhere() {
    let refused = |e: ep_core::Error, says: &str| {
        assert_eq!(e.code(), ep_core::Code::InvalidArgument, "{e}");
        assert!(e.message().contains(says), "{e}");
    };
    let last = std::cell::RefCell::new(None);
    let ones = |ops: &Ops<'_>, shape: &[i64]| ops.full(DType::I32, shape, 1).unwrap();
    on_each(|ops| {
        let weight = ones(ops, &[64, 48]);
        last.replace(Some((ops.prepack(&weight).unwrap(), weight)));
    });
    let (packed, weight) = last.into_inner().unwrap();
    let here = cpu();
    let e = here.matmul_prepacked(&ones(&here, &[2, 64]), &packed).unwrap_err();
    refused(e, if packed.is_packed() { "was prepacked on" } else { "bring it with to_device" });
    refused(here.prepack(&weight).unwrap_err(), "bring it with to_device");
}

/// What lies otherwise is made dense once, and what is read as it is shows what is written later.
#[test]
fn what_is_not_packed() {
    let ops = cpu();
    let wide = ops.full(DType::I32, &[64, 50], 1).unwrap();
    let copied = ops.prepack(&wide.narrow(1, 1, 48).unwrap()).unwrap();
    assert_eq!((copied.is_packed(), copied.packed_bytes()), (false, 64 * 48 * 4));
    let kept = ops.prepack(&wide).unwrap();
    assert_eq!((kept.is_packed(), kept.packed_bytes()), (false, 0));
    assert_eq!(ops.prepack(&wide.t().unwrap()).unwrap().packed_bytes(), 0);
    ops.copy_(&wide, &ops.full(DType::I32, &[64, 50], 2).unwrap()).unwrap();
    let x = ops.full(DType::I32, &[1, 64], 1).unwrap();
    for (weights, n, each) in [(&copied, 48, 64.0), (&kept, 50, 128.0)] {
        let out = ops.matmul_prepacked(&x, weights).unwrap();
        Host::from_fn(&[1, n], |_| each).assert_equal(&ops, &out);
    }
}
