//! What operators say of inputs that do not fit.

use crate::support::{Host, cpu};
use ep_core::primitive::{ArgReduceOp, BinaryOp, IndexMode, ReduceOp};
use ep_core::{Code, DType, Scalar};
use ep_ops::operators::{
    AddN, ArgReduce, BatchGather, Binary, Concat, ConstantPad, Gather, LayerNorm, LogSoftmaxBackward, Matmul,
    OneHot, Reduce, RmsNorm, ScatterAdd, Softmax, Where,
};
use ep_ops::{Operator, Spec};

/// An operator, inputs as dtype and shape, and what the message has.
type Case = (Box<dyn Operator>, Vec<Spec>, &'static str);

fn cases() -> Vec<Case> {
    let f32 = |shape: &[i64]| Spec::new(DType::F32, shape);
    let i64 = |shape: &[i64]| Spec::new(DType::I64, shape);
    let bool = |shape: &[i64]| Spec::new(DType::BOOL, shape);
    let softmax = |dim| Box::new(Softmax { dim, dtype: None });
    let mode = IndexMode::WRAP;
    let gather = |axis| Box::new(Gather { axis, mode, window: None });
    let batch_gather = |axis, batch_dims| Box::new(BatchGather { axis, batch_dims, mode, window: None });
    let scatter = |axis| Box::new(ScatterAdd { axis, mode, window: None });
    let add = || Box::new(Binary::new(BinaryOp::ADD));
    let sum = |dims: &[i64]| {
        Box::new(Reduce { op: ReduceOp::SUM, dims: dims.into(), keep_dims: false, dtype: None })
    };
    let argmax = |dtype| Box::new(ArgReduce { op: ArgReduceOp::ARGMAX, dim: 0, keep_dims: false, dtype });
    let norm = |dims, scale| Box::new(LayerNorm { dims, epsilon: 0.0, scale, shift: false, stats: false });
    let pad = |before: &[i64], value| Box::new(ConstantPad { before: before.into(), after: vec![0], value });
    let one_hot =
        |depth, on| Box::new(OneHot { depth, mode, on, off: Scalar::None, dtype: DType::U8, window: None });
    vec![
        (softmax(2), vec![f32(&[2, 3])], "dimension 2 of 2: -2 to 1 are possible"),
        (softmax(0), vec![i64(&[2])], "i64[2]: it takes f16, bf16, f32 and f64; cast the input"),
        (softmax(0), vec![f32(&[2]), f32(&[2])], "it takes 1 inputs (x), and 2 were given"),
        (Box::new(Softmax { dim: 0, dtype: Some(DType::I8) }), vec![f32(&[2])], "i8[2]: it takes f16"),
        (
            Box::new(LogSoftmaxBackward { dim: 0, dtype: None }),
            vec![f32(&[2]), f32(&[3])],
            "f32[2] and f32[3]: the shapes differ; y and dy have one",
        ),
        (gather(0), vec![f32(&[2]), f32(&[2])], "the indices f32[2]: indices are i32 or i64; cast them"),
        (gather(-2), vec![f32(&[2]), i64(&[2])], "dimension -2 of 1: -1 to 0 are possible"),
        (gather(0), vec![f32(&[2])], "it takes 2 inputs (params, indices), and 1 were given"),
        (batch_gather(0, 1), vec![f32(&[2, 3]), i64(&[2, 3])], "the axis comes behind them"),
        (
            batch_gather(1, 1),
            vec![f32(&[2, 3]), i64(&[3, 3])],
            "the first 1 dimensions, which are batches, differ",
        ),
        (batch_gather(1, 1), vec![f32(&[2, 3]), i64(&[])], "both have the batch dimensions"),
        (
            scatter(1),
            vec![f32(&[2, 3]), i64(&[4]), f32(&[2, 3])],
            "f32[2, 3] to f32[2, 3] along dimension 1 by i64[4]: src has the shape [2, 4] then",
        ),
        (scatter(0), vec![bool(&[2]), i64(&[1]), bool(&[1])], "bool is not added up"),
        (
            add(),
            vec![f32(&[2]), i64(&[2])],
            "f32[2] and i64[2]: the dtypes differ, and none is promoted; cast one of them",
        ),
        (
            add(),
            vec![f32(&[2, 3]), f32(&[2, 4])],
            "the shapes [[2, 3], [2, 4]]: aligned at the last dimension, 4 meets 3",
        ),
        (
            Box::new(Where),
            vec![f32(&[2]), f32(&[2]), f32(&[2])],
            "the condition f32[2]: it is bool or an integer",
        ),
        (Box::new(AddN), vec![], "nothing has no shape"),
        (
            Box::new(AddN),
            vec![f32(&[1]), f32(&[2])],
            "f32[1] and f32[2]: the shapes differ, and nothing broadcasts",
        ),
        (Box::new(AddN), vec![f32(&[]); 257], "257 tensors: 256 are possible; add in parts"),
        (
            Box::new(Matmul),
            vec![f32(&[2, 3]), f32(&[2, 3])],
            "3 columns of the first meet 2 rows of the second",
        ),
        (Box::new(Matmul), vec![f32(&[]), f32(&[2])], "a single element is no matrix"),
        (Box::new(Matmul), vec![bool(&[2]), bool(&[2])], "there are no products of bool"),
        (Box::new(Matmul), vec![f32(&[2, 1, 1]), f32(&[3, 1, 1])], "the shapes [[2], [3]]"),
        (sum(&[0, -2]), vec![f32(&[2, 3])], "f32[2, 3] along [0, -2]: dimension 0 comes twice"),
        (sum(&[2]), vec![f32(&[2, 3])], "dimension 2 of 2"),
        (argmax(DType::U8), vec![f32(&[2])], "indices are i32 or i64"),
        (
            argmax(DType::I32),
            vec![f32(&[0, 2])],
            "f32[0, 2] along dimension 0, which has no elements to point at",
        ),
        (argmax(DType::I32), vec![Spec::new(DType::COMPLEX64, [2])], "complex numbers have no order"),
        (norm(0, false), vec![f32(&[2])], "f32[2] over the last 0 dimensions: it takes 1 to 1 of them"),
        (norm(3, false), vec![f32(&[2, 2])], "over the last 3 dimensions: it takes 1 to 2"),
        (norm(1, true), vec![f32(&[2, 3]), f32(&[2])], "gamma, beta and weight have the shape [3] then"),
        (
            Box::new(RmsNorm { dims: 1, epsilon: 0.0, scale: true, stats: false }),
            vec![f32(&[2]), Spec::new(DType::F16, [2])],
            "f32[2] and f16[2]: the dtypes differ",
        ),
        (
            pad(&[0, 0], Scalar::None),
            vec![f32(&[2])],
            "f32[2] by [0, 0] before and [0] behind: give 1 numbers each",
        ),
        (pad(&[-3], Scalar::None), vec![f32(&[2])], "a size would not be in 0..2^63"),
        (pad(&[1], Scalar::F64(0.5)), vec![i64(&[2])], "i64 cannot hold it, and none is converted"),
        (one_hot(-1, Scalar::None), vec![i64(&[2])], "negative size -1"),
        (one_hot(2, Scalar::I64(256)), vec![i64(&[2])], "256: u8 cannot hold it"),
        (Box::new(Concat { dim: 0 }), vec![], "nothing has no shape"),
        (
            Box::new(Concat { dim: 0 }),
            vec![f32(&[])],
            "f32[], which has no dimension; reshape it to [1] first",
        ),
        (
            Box::new(Concat { dim: 0 }),
            vec![f32(&[2, 3]), f32(&[2, 4])],
            "f32[2, 3] and f32[2, 4] along dimension 0: all other sizes are equal",
        ),
    ]
}

#[test]
fn messages_say_what_was_found_and_what_to_do() {
    for (operator, inputs, expected) in cases() {
        let error = operator.infer(&inputs).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{operator:?}");
        assert!(error.message().contains(expected), "{operator:?}: {error}, not {expected}");
        assert_eq!(operator.signatures(&inputs), [], "{operator:?}");
    }
}

#[test]
fn the_operator_is_named_once() {
    let ops = cpu();
    let (a, b) = (Host::new(&[1], &[1.0]).to(&ops, DType::F32), Host::new(&[1], &[1.0]).to(&ops, DType::I32));
    let error = ops.binary(BinaryOp::ADD, &a, &b).unwrap_err();
    assert!(error.message().starts_with("add: f32[1] and i32[1]: "), "{error}");
}

/// The device knows neither the operator nor the tensors.
#[test]
fn errors_of_launches_name_the_operator_and_its_inputs() {
    let ops = cpu();
    let x = Host::new(&[2, 2], &[1.0; 4]).to(&ops, DType::F32);
    let indices = ops.tensor(&[0i64, 7], &[2]).unwrap();
    let error = ops.gather(&x, &indices, 1, IndexMode::ERROR).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().starts_with("gather of f32[2, 2], i64[2]: index 7 at position 1 "), "{error}");
    let unwritten = ops.empty(DType::F32, &[3]).unwrap();
    let error = ops.softmax(&unwritten, 0).unwrap_err();
    assert!(error.message().starts_with("softmax of f32[3]: "), "{error}");
}
