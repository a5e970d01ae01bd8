//! Operators whose output replaces their first input.

use crate::support::{Host, Layout, Random, few, layouts, on_each, shapes};
use ep_core::primitive::{BinaryOp, IndexMode, ReduceOp, UnaryOp};
use ep_core::{Code, DType};
use ep_ops::operators::{Reduce, Softmax};
use ep_ops::{Ops, Tensor};
use proptest::prelude::*;

/// What is in the storage around a view of [`Host::laid_out`] stays.
fn untouched(ops: &Ops<'_>, x: &Tensor, change: impl FnOnce(&Tensor)) {
    let ones = ops.full(DType::F32, &[3, 4], 1.0).unwrap();
    let middle = ones.narrow(1, 1, 2).unwrap();
    ops.copy_(&middle, x).unwrap();
    change(&middle);
    let whole = ops.to_vec::<f32>(&ones).unwrap();
    assert!(whole.chunks(4).all(|row| row[0] == 1.0 && row[3] == 1.0), "{whole:?}");
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn functions_of_elements(
        shape in shapes(0..4), repeats in prop::collection::vec(any::<bool>(), 3), seed: u64, of_a in layouts(), of_b in layouts(),
    ) {
        let mut random = Random(seed);
        let a = Host::random(&shape, &mut random);
        let of_b_shape: Vec<i64> =
            shape.iter().zip(repeats).map(|(size, repeats)| if repeats { 1 } else { *size }).collect();
        let b = Host::random(&of_b_shape, &mut random);
        on_each(|ops| {
            let x = a.laid_out(ops, DType::F32, of_a);
            let y = b.laid_out(ops, DType::F32, of_b);
            ops.binary_(BinaryOp::SUB, &x, &y).unwrap();
            Host::from_fn(&shape, |index| a.get(index) - b.broadcast(index)).assert_equal(ops, &x);
            ops.binary_scalar_(BinaryOp::MUL, &x, 2.0).unwrap();
            ops.unary_(UnaryOp::NEGATIVE, &x).unwrap();
            let expected = Host::from_fn(&shape, |index| 2.0 * (b.broadcast(index) - a.get(index)));
            expected.assert_equal(ops, &x);
            b.assert_equal(ops, &y);
        });
    }
}

/// No other memory is taken for what is dense in any order, and none but the first input is written.
#[test]
fn dense_tensors_are_changed_where_they_are() {
    on_each(|ops| {
        let mut random = Random(8);
        for layout in [Layout::Dense, Layout::Reversed, Layout::Narrowed, Layout::Flipped] {
            let a = Host::random(&[2, 3, 2], &mut random);
            let x = a.laid_out(ops, DType::F64, layout);
            let (same, strides) = (x.alias(), x.strides().to_vec());
            ops.binary_(BinaryOp::ADD, &x, &Host::new(&[3, 1], &[10.0, 20.0, 30.0]).to(ops, DType::F64))
                .unwrap();
            assert_eq!(x.strides(), strides);
            let expected = Host::from_fn(&[2, 3, 2], |i| a.get(i) + 10.0 * (i[1] + 1) as f64);
            expected.assert_equal(ops, &same);
        }
        let x = Host::random(&[3, 2], &mut random).to(ops, DType::F32);
        untouched(ops, &x, |view| ops.binary_scalar_(BinaryOp::ADD, view, 5.0).unwrap());
        untouched(ops, &x, |view| ops.unary_(UnaryOp::SQUARE, view).unwrap());
        untouched(ops, &x, |view| ops.binary_(BinaryOp::MUL, view, &x).unwrap());
    });
}

/// As if the inputs had been copied first.
#[test]
fn inputs_that_share_memory() {
    on_each(|ops| {
        let x = Host::new(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).to(ops, DType::F32);
        ops.binary_(BinaryOp::ADD, &x, &x.t().unwrap()).unwrap();
        Host::new(&[2, 2], &[2.0, 5.0, 5.0, 8.0]).assert_equal(ops, &x);
        ops.binary_(BinaryOp::SUB, &x, &x.narrow(0, 0, 1).unwrap()).unwrap();
        Host::new(&[2, 2], &[0.0, 0.0, 3.0, 3.0]).assert_equal(ops, &x);
        ops.binary_(BinaryOp::MUL, &x, &x).unwrap();
        Host::new(&[2, 2], &[0.0, 0.0, 9.0, 9.0]).assert_equal(ops, &x);
    });
}

#[test]
fn gradients_of_an_embedding_are_added_up() {
    on_each(|ops| {
        let indices = Host::new(&[2, 2], &[0.0, 2.0, -1.0, 0.0]).to(ops, DType::I64);
        let src = Host::from_fn(&[2, 2, 2], |i| (i[0] * 4 + i[1] * 2 + i[2]) as f64);
        for layout in [Layout::Dense, Layout::Transposed, Layout::Stepped] {
            let base = Host::new(&[3, 2], &[100.0, 200.0, 300.0, 400.0, 500.0, 600.0]).laid_out(
                ops,
                DType::F32,
                layout,
            );
            let src = src.laid_out(ops, DType::F32, layout);
            ops.scatter_add_(&base, &indices, &src, 0, IndexMode::WRAP).unwrap();
            Host::new(&[3, 2], &[106.0, 208.0, 300.0, 400.0, 506.0, 608.0]).assert_equal(ops, &base);
        }
    });
}

/// Any operator that gives what its first input is.
#[test]
fn by_a_copy_where_an_operator_needs_another_output() {
    on_each(|ops| {
        let x = Host::new(&[2, 2], &[1.0, 1.0, 0.0, 3f64.ln()]).laid_out(ops, DType::F32, Layout::Stepped);
        ops.apply_(&Softmax { dim: -1, dtype: None }, &[&x]).unwrap();
        Host::new(&[2, 2], &[0.5, 0.5, 0.25, 0.75]).assert_near(ops, &x, 1e-6);
    });
}

#[test]
fn refusals() {
    on_each(|ops| {
        let refused = |result: ep_core::Result<()>, told: &str| {
            let e = result.unwrap_err();
            assert_eq!((e.code(), e.message()), (Code::InvalidArgument, told));
        };
        let x = ops.full(DType::F32, &[2, 3], 1.0).unwrap();
        let row = x.narrow(0, 0, 1).unwrap();
        refused(
            ops.binary_(BinaryOp::ADD, &row, &x),
            "add in place: it gives f32[2, 3], and the first input is f32[1, 3]; use `apply`",
        );
        refused(
            ops.binary_(BinaryOp::EQUAL, &x, &x),
            "equal in place: it gives bool[2, 3], and the first input is f32[2, 3]; use `apply`",
        );
        let sum = Reduce { op: ReduceOp::SUM, dims: vec![0], keep_dims: false, dtype: None };
        refused(
            ops.apply_(&sum, &[&x]),
            "sum in place: it gives f32[3], and the first input is f32[2, 3]; use `apply`",
        );
        let wide = row.expand(&[2, 3]).unwrap();
        let e = ops.unary_(UnaryOp::ABS, &wide).unwrap_err();
        assert!(e.message().contains("some of its elements share memory"), "{e}");
        let e = ops.unary_(UnaryOp::ABS, &ops.empty(DType::F32, &[2]).unwrap()).unwrap_err();
        assert!(e.message().contains("upload or fill it first"), "{e}");
        // Nothing is nothing.
        ops.binary_(BinaryOp::ADD, &x.narrow(0, 0, 0).unwrap(), &x.narrow(0, 0, 1).unwrap()).unwrap();
        ops.unary_(UnaryOp::ABS, &ops.empty(DType::F32, &[0, 2]).unwrap()).unwrap();
    });
}
