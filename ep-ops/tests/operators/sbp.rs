//! Every signature of every operator, in parts; that wrong ones are found, and that none is missing.

use crate::support::{Host, Layout, Random, cpu, few, on_each, shapes};
use Sbp::{Broadcast as B, PartialSum as P, Split as S};
use ep_core::primitive::{ArgReduceOp, BinaryOp, IndexMode, ReduceOp, UnaryOp};
use ep_core::{DType, Scalar};
use ep_ops::operators::{
    AddN, ArgReduce, BatchGather, Binary, BinaryScalar, Cast, Concat, ConstantPad, Gather, LayerNorm,
    LogSoftmax, LogSoftmaxBackward, Matmul, OneHot, Reduce, RmsNorm, ScatterAdd, Side, Softmax,
    SoftmaxBackward, Unary, Where,
};
use ep_ops::sbp::{check, check_signature};
use ep_ops::{Operator, Ops, Sbp, Signature, Spec, Tensor};
use proptest::prelude::*;

/// An operator and the dtypes and shapes of inputs.
struct Subject {
    told: &'static str,
    operator: Box<dyn Operator>,
    inputs: Vec<Spec>,
}

impl Subject {
    fn tensors(&self, ops: &Ops<'_>) -> Vec<Tensor> {
        let mut random = Random(17);
        let tensor = |spec: &Spec| {
            let host = match spec.dtype {
                DType::BOOL => Host::from_fn(&spec.shape, |_| random.below(2) as f64),
                // Indices of an axis of three elements or more.
                DType::I64 => Host::from_fn(&spec.shape, |_| random.below(3) as f64),
                _ => Host::random(&spec.shape, &mut random),
            };
            host.laid_out(ops, spec.dtype, Layout::Dense)
        };
        self.inputs.iter().map(tensor).collect()
    }
}

fn f32(shape: &[i64]) -> Spec {
    Spec::new(DType::F32, shape)
}

fn i32(shape: &[i64]) -> Spec {
    Spec::new(DType::I32, shape)
}

fn i64(shape: &[i64]) -> Spec {
    Spec::new(DType::I64, shape)
}

fn bool(shape: &[i64]) -> Spec {
    Spec::new(DType::BOOL, shape)
}

/// Those of the table in docs/sbp.md.
fn subjects() -> Vec<Subject> {
    let subject = |told, operator: Box<dyn Operator>, inputs| Subject { told, operator, inputs };
    let mode = IndexMode::WRAP;
    let reduce = |op, dims: &[i64], keep_dims| {
        Box::new(Reduce { op, dims: dims.into(), keep_dims, dtype: None }) as Box<dyn Operator>
    };
    let scalar = |op, side| {
        Box::new(BinaryScalar { op, attrs: [0.0; 2], scalar: Scalar::I64(3), side }) as Box<dyn Operator>
    };
    let binary = |op| Box::new(Binary::new(op)) as Box<dyn Operator>;
    let unary = |op| Box::new(Unary::new(op)) as Box<dyn Operator>;
    vec![
        subject("softmax, dim 1", Box::new(Softmax { dim: 1, dtype: None }), vec![f32(&[3, 5, 7])]),
        subject("log_softmax, dim -1", Box::new(LogSoftmax { dim: -1, dtype: None }), vec![f32(&[3, 5])]),
        subject(
            "softmax_backward, dim 0",
            Box::new(SoftmaxBackward { dim: 0, dtype: None }),
            vec![f32(&[3, 5]), f32(&[3, 5])],
        ),
        subject(
            "log_softmax_backward, dim 0",
            Box::new(LogSoftmaxBackward { dim: 0, dtype: None }),
            vec![f32(&[3, 5]), f32(&[3, 5])],
        ),
        subject(
            "gather, axis 1",
            Box::new(Gather { axis: 1, mode, window: None }),
            vec![f32(&[3, 5, 7]), i64(&[2, 3])],
        ),
        subject(
            "batch_gather, axis 2, 1 batch dimension",
            Box::new(BatchGather { axis: 2, batch_dims: 1, mode, window: None }),
            vec![f32(&[3, 2, 5, 4]), i64(&[3, 7])],
        ),
        subject(
            "scatter_add, axis 1",
            Box::new(ScatterAdd { axis: 1, mode, window: None }),
            vec![f32(&[3, 5, 4]), i64(&[2, 3]), f32(&[3, 2, 3, 4])],
        ),
        subject("unary: square, and most others", unary(UnaryOp::SQUARE), vec![f32(&[3, 5])]),
        subject("unary: negative, identity, conj, real, imag", unary(UnaryOp::NEGATIVE), vec![i32(&[3, 5])]),
        subject("cast of floats to floats", Box::new(Cast { dtype: DType::F64 }), vec![f32(&[3, 5])]),
        subject("cast of i32 to i8", Box::new(Cast { dtype: DType::I8 }), vec![i32(&[3, 5])]),
        subject("cast of i32 to i64", Box::new(Cast { dtype: DType::I64 }), vec![i32(&[3, 5])]),
        subject("binary: add, sub", binary(BinaryOp::SUB), vec![i32(&[3, 1, 5]), i32(&[2, 1])]),
        subject("binary: mul", binary(BinaryOp::MUL), vec![f32(&[3, 5]), f32(&[5])]),
        subject("binary: div of floats", binary(BinaryOp::DIV), vec![f32(&[3, 5]), f32(&[3, 5])]),
        subject(
            "binary: div of integers, max, comparisons",
            binary(BinaryOp::MAX),
            vec![i32(&[3, 5]), i32(&[3, 5])],
        ),
        subject(
            "binary: gradients of functions",
            binary(BinaryOp::TANH_BACKWARD_WITH_DY_Y),
            vec![f32(&[3, 5]), f32(&[3, 5])],
        ),
        subject("binary with a number: mul", scalar(BinaryOp::MUL, Side::Second), vec![i32(&[3, 5])]),
        subject("binary with a number: add", scalar(BinaryOp::ADD, Side::First), vec![i32(&[3, 5])]),
        subject("where", Box::new(Where), vec![bool(&[3, 1]), f32(&[5]), f32(&[3, 5])]),
        subject("add_n of two", Box::new(AddN), vec![f32(&[3, 5]), f32(&[3, 5])]),
        subject("matmul", Box::new(Matmul), vec![f32(&[3, 5]), f32(&[5, 7])]),
        subject("matmul with batches", Box::new(Matmul), vec![f32(&[2, 1, 3, 5]), f32(&[4, 5, 7])]),
        subject("matmul of a matrix and a vector", Box::new(Matmul), vec![i32(&[3, 5]), i32(&[5])]),
        subject("reduce: sum, dims 0 and 2", reduce(ReduceOp::SUM, &[0, 2], false), vec![f32(&[3, 5, 7])]),
        subject("reduce: mean, dim 0", reduce(ReduceOp::MEAN, &[0], false), vec![f32(&[3, 5])]),
        subject(
            "reduce: max, min, prod, all, dim 0, kept",
            reduce(ReduceOp::MAX, &[0], true),
            vec![f32(&[3, 5])],
        ),
        subject("reduce: any of numbers, dim 0", reduce(ReduceOp::ANY, &[0], false), vec![f32(&[3, 5])]),
        subject(
            "arg_reduce, dim 0",
            Box::new(ArgReduce { op: ArgReduceOp::ARGMAX, dim: 0, keep_dims: false, dtype: DType::I64 }),
            vec![f32(&[3, 5, 7])],
        ),
        subject(
            "layer_norm over one dimension, with gamma, beta and statistics",
            Box::new(LayerNorm { dims: 1, epsilon: 0.5, scale: true, shift: true, stats: true }),
            vec![f32(&[3, 5, 7]), f32(&[7]), f32(&[7])],
        ),
        subject(
            "rms_norm over one dimension, with a weight",
            Box::new(RmsNorm { dims: 1, epsilon: 0.5, scale: true, stats: false }),
            vec![f32(&[3, 5]), f32(&[5])],
        ),
        subject(
            "constant_pad of dimension 1, with 0",
            Box::new(ConstantPad { before: vec![0, 2], after: vec![0, -1], value: Scalar::None }),
            vec![f32(&[3, 5])],
        ),
        subject(
            "constant_pad of dimension 1, with 7",
            Box::new(ConstantPad { before: vec![0, 2], after: vec![0, -1], value: Scalar::I64(7) }),
            vec![f32(&[3, 5])],
        ),
        subject(
            "one_hot",
            Box::new(OneHot {
                depth: 5,
                mode,
                on: Scalar::None,
                off: Scalar::I64(-1),
                dtype: DType::F32,
                window: None,
            }),
            vec![i64(&[3, 7])],
        ),
        subject("concat of two, dim 1", Box::new(Concat { dim: 1 }), vec![f32(&[3, 5]), f32(&[3, 2])]),
    ]
}

/// More shapes and dtypes, for which there are no lines in the table.
fn others() -> Vec<Subject> {
    let subject = |operator: Box<dyn Operator>, inputs| Subject { told: "", operator, inputs };
    let binary = |op| Box::new(Binary::new(op)) as Box<dyn Operator>;
    let reduce = |op, dims: &[i64]| {
        Box::new(Reduce { op, dims: dims.into(), keep_dims: false, dtype: None }) as Box<dyn Operator>
    };
    let mode = IndexMode::ZERO;
    let norm = |scale, shift, stats| Box::new(LayerNorm { dims: 2, epsilon: 0.5, scale, shift, stats });
    let c64 = |shape: &[i64]| Spec::new(DType::COMPLEX64, shape);
    let u8 = |shape: &[i64]| Spec::new(DType::U8, shape);
    vec![
        // Sizes of 1 and 0, and single elements.
        subject(Box::new(Softmax { dim: 0, dtype: Some(DType::F64) }), vec![f32(&[2, 1, 0])]),
        subject(Box::new(Softmax { dim: 0, dtype: None }), vec![f32(&[])]),
        subject(binary(BinaryOp::ADD), vec![f32(&[1, 3]), f32(&[1])]),
        subject(binary(BinaryOp::ADD), vec![f32(&[0, 3]), f32(&[1, 1])]),
        subject(binary(BinaryOp::MUL), vec![f32(&[]), f32(&[3])]),
        subject(Box::new(Gather { axis: 0, mode, window: None }), vec![f32(&[]), i64(&[3])]),
        subject(Box::new(Gather { axis: -1, mode, window: None }), vec![f32(&[0, 3]), i64(&[])]),
        subject(Box::new(Gather { axis: 0, mode, window: None }), vec![bool(&[5, 2]), i64(&[3])]),
        subject(
            Box::new(BatchGather { axis: 2, batch_dims: 2, mode, window: None }),
            vec![u8(&[2, 3, 4]), i64(&[2, 3])],
        ),
        subject(
            Box::new(ScatterAdd { axis: -2, mode, window: None }),
            vec![u8(&[4, 3]), i64(&[5]), u8(&[5, 3])],
        ),
        subject(Box::new(Matmul), vec![f32(&[5]), f32(&[5])]),
        subject(Box::new(Matmul), vec![f32(&[5]), f32(&[2, 5, 3])]),
        subject(Box::new(Matmul), vec![c64(&[1, 3, 0]), c64(&[2, 0, 4])]),
        subject(Box::new(Matmul), vec![u8(&[2, 3, 5]), u8(&[2, 5, 1])]),
        // Integers wrap, and the sum of bool is `or`.
        subject(Box::new(Unary { dtype: Some(DType::I16), ..Unary::new(UnaryOp::CAST) }), vec![i32(&[7])]),
        subject(Box::new(Unary::new(UnaryOp::CONJ)), vec![c64(&[7])]),
        subject(Box::new(Unary::new(UnaryOp::IMAG)), vec![c64(&[7])]),
        subject(Box::new(Unary::new(UnaryOp::LOGICAL_NOT)), vec![bool(&[7])]),
        subject(Box::new(Cast { dtype: DType::BOOL }), vec![bool(&[7])]),
        subject(Box::new(Cast { dtype: DType::COMPLEX128 }), vec![f32(&[7])]),
        subject(binary(BinaryOp::MUL), vec![u8(&[3, 5]), u8(&[3, 5])]),
        subject(binary(BinaryOp::DIV), vec![i32(&[7]), i32(&[7])]),
        subject(binary(BinaryOp::DIV), vec![c64(&[7]), c64(&[7])]),
        subject(binary(BinaryOp::LOGICAL_AND), vec![bool(&[7]), bool(&[7])]),
        subject(binary(BinaryOp::ADD), vec![bool(&[7]), bool(&[7])]),
        subject(binary(BinaryOp::LOGICAL_XOR), vec![bool(&[7]), bool(&[7])]),
        subject(Box::new(Where), vec![bool(&[7]), bool(&[7]), bool(&[])]),
        subject(Box::new(AddN), vec![bool(&[7]), bool(&[7]), bool(&[7])]),
        subject(reduce(ReduceOp::SUM, &[1]), vec![bool(&[3, 5])]),
        subject(reduce(ReduceOp::SUM, &[1]), vec![u8(&[3, 5])]),
        subject(reduce(ReduceOp::ANY, &[1]), vec![bool(&[3, 5])]),
        subject(reduce(ReduceOp::ALL, &[1]), vec![bool(&[3, 5])]),
        subject(reduce(ReduceOp::PROD, &[]), vec![i32(&[2, 3])]),
        subject(norm(true, false, true), vec![f32(&[3, 2, 5]), f32(&[2, 5])]),
        subject(norm(false, true, false), vec![f32(&[3, 2, 5]), f32(&[2, 5])]),
        subject(norm(false, false, false), vec![f32(&[3, 2, 5])]),
        subject(
            Box::new(ConstantPad { before: vec![-1], after: vec![-1], value: Scalar::I64(7) }),
            vec![i32(&[5])],
        ),
        subject(Box::new(Concat { dim: 0 }), vec![i32(&[2]), i32(&[0]), i32(&[5])]),
    ]
}

#[test]
fn all_signatures_hold() {
    on_each(|ops| {
        for subject in subjects().iter().chain(&others()) {
            let tensors = subject.tensors(ops);
            let tensors: Vec<&Tensor> = tensors.iter().collect();
            for parts in [1, 2, 3, 5] {
                let report = check(ops, &*subject.operator, &tensors, parts).unwrap();
                assert!(report.passed() && !report.outcomes.is_empty(), "{report}");
            }
        }
    });
}

/// All ways to lie, of tensors of these ranks.
fn all_ways(ranks: &[usize]) -> Vec<Vec<Sbp>> {
    ranks.iter().fold(vec![Vec::new()], |heads, rank| {
        let ways = || [B, P].into_iter().chain((0..*rank).map(S));
        heads.iter().flat_map(|head| ways().map(move |way| [&head[..], &[way]].concat())).collect()
    })
}

/// What holds by the checker, in two parts and in three, is listed.
#[test]
fn no_signature_is_missing() {
    let ops = cpu();
    for subject in subjects() {
        let tensors = subject.tensors(&ops);
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        let outputs = subject.operator.infer(&subject.inputs).unwrap();
        // Any copy of a bool is a share of it, and for several outputs there are too many ways.
        if outputs[0].dtype == DType::BOOL || outputs.len() > 1 {
            continue;
        }
        let listed = subject.operator.signatures(&subject.inputs);
        let inputs: Vec<usize> = subject.inputs.iter().map(Spec::rank).collect();
        for inputs in all_ways(&inputs) {
            for outputs in all_ways(&[outputs[0].rank()]) {
                let signature = Signature::new(inputs.clone(), outputs);
                let holds = |parts| {
                    let outcome = check_signature(&ops, &*subject.operator, &tensors, parts, &signature);
                    outcome.unwrap().failure.is_none()
                };
                let found = holds(2) && holds(3);
                assert_eq!(found, listed.contains(&signature), "{} {signature}", subject.told);
            }
        }
    }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn signatures_hold_for_any_shapes(
        shape in shapes(1..4), picked in shapes(0..3), at in 0usize..4, batches in 0usize..3, ones in 0u8..16,
        parts in 1usize..6,
    ) {
        let (rank, axis) = (shape.len(), at % shape.len());
        let (batch, mode) = (batches.min(axis), IndexMode::ZERO);
        let subject = |operator: Box<dyn Operator>, inputs| Subject { told: "", operator, inputs };
        let repeated: Vec<i64> = shape.iter().enumerate().map(|(d, n)| if ones >> d & 1 == 1 { 1 } else { *n }).collect();
        let src = [&shape[..axis], &picked, &shape[axis + 1..]].concat();
        let dims: Vec<i64> = (0..rank).filter(|d| ones >> d & 1 == 1).map(|d| d as i64).collect();
        let subjects = [
            subject(Box::new(Softmax { dim: axis as i64, dtype: None }), vec![f32(&shape)]),
            subject(Box::new(Gather { axis: axis as i64, mode, window: None }), vec![f32(&shape), i64(&picked)]),
            subject(
                Box::new(BatchGather { axis: axis as i64, batch_dims: batch, mode, window: None }),
                vec![i32(&shape), i64(&[&shape[..batch], &picked].concat())],
            ),
            subject(
                Box::new(ScatterAdd { axis: axis as i64, mode, window: None }),
                vec![i32(&shape), i64(&picked), i32(&src)],
            ),
            subject(Box::new(Binary::new(BinaryOp::MUL)), vec![i32(&shape), i32(&repeated)]),
            subject(Box::new(Where), vec![bool(&repeated), f32(&shape), f32(&[])]),
            subject(
                Box::new(Reduce { op: ReduceOp::SUM, dims, keep_dims: ones > 7, dtype: None }),
                vec![i32(&shape)],
            ),
            subject(Box::new(Matmul), vec![f32(&shape), f32(&[shape[rank - 1], 3])]),
            subject(
                Box::new(LayerNorm { dims: 1, epsilon: 0.5, scale: true, shift: false, stats: true }),
                vec![f32(&shape), f32(&shape[rank - 1..])],
            ),
            subject(Box::new(Concat { dim: axis as i64 }), vec![i32(&shape), i32(&shape)]),
        ];
        let ops = cpu();
        for subject in subjects.iter() {
            let tensors = subject.tensors(&ops);
            let report = check(&ops, &*subject.operator, &tensors.iter().collect::<Vec<_>>(), parts).unwrap();
            assert!(report.passed() && !report.outcomes.is_empty(), "{report}");
        }
    }
}

/// An operator, inputs, a signature that does not hold, and what the checker says.
type Wrong = (Box<dyn Operator>, Vec<Spec>, Signature, &'static str);

#[test]
fn wrong_signatures_are_found() {
    let mode = IndexMode::WRAP;
    let max = Reduce { op: ReduceOp::MAX, dims: vec![0], keep_dims: false, dtype: None };
    let cases: Vec<Wrong> = vec![
        (
            Box::new(Softmax { dim: 1, dtype: None }),
            vec![f32(&[3, 5])],
            Signature::new([S(1)], [S(1)]),
            "output 0: element 0 is",
        ),
        (Box::new(max.clone()), vec![f32(&[7, 5])], Signature::new([S(0)], [P]), "output 0: element"),
        (Box::new(max), vec![f32(&[7, 5])], Signature::new([S(0)], [B]), "output 0: part"),
        // In OneFlow's list of batch_gather.
        (
            Box::new(BatchGather { axis: 1, batch_dims: 1, mode, window: None }),
            vec![f32(&[3, 5]), i64(&[3, 4])],
            Signature::new([B, S(1)], [P]),
            "output 0: part 0 has the shape [3, 2] in place of [3, 4]",
        ),
        (
            Box::new(Matmul),
            vec![f32(&[3, 5]), f32(&[5, 7])],
            Signature::new([P, P], [P]),
            "output 0: element",
        ),
        (Box::new(Matmul), vec![f32(&[3, 5]), f32(&[5, 7])], Signature::new([S(1), B], [P]), "part 0 fails"),
        (
            Box::new(Cast { dtype: DType::I64 }),
            vec![i32(&[7])],
            Signature::new([P], [P]),
            "output 0: element",
        ),
        (
            Box::new(Binary::new(BinaryOp::ADD)),
            vec![f32(&[7]), f32(&[7])],
            Signature::new([P, B], [P]),
            "output 0: element",
        ),
    ];
    on_each(|ops| {
        for (operator, inputs, signature, expected) in &cases {
            let mut random = Random(23);
            let tensor = |spec: &Spec| {
                let below = |_: &[i64]| {
                    if spec.dtype == DType::I64 { random.below(5) as f64 } else { random.whole() }
                };
                Host::from_fn(&spec.shape, below).to(ops, spec.dtype)
            };
            let tensors: Vec<Tensor> = inputs.iter().map(tensor).collect();
            let tensors: Vec<&Tensor> = tensors.iter().collect();
            // Three addends wrap where two of small numbers do not.
            let outcome = check_signature(ops, &**operator, &tensors, 3, signature).unwrap();
            let failure = outcome.failure.unwrap_or_else(|| panic!("{operator:?} by {signature} holds"));
            assert!(failure.contains(expected), "{operator:?} by {signature}: {failure}");
            assert!(!operator.signatures(inputs).contains(signature));
        }
    });
}

/// An operator that lists what does not hold is told of.
#[test]
fn reports_have_a_line_for_each_signature() {
    #[derive(Debug)]
    struct Lying;
    impl Operator for Lying {
        fn name(&self) -> &'static str {
            "lying"
        }
        fn infer(&self, inputs: &[Spec]) -> ep_core::Result<Vec<Spec>> {
            Unary::new(UnaryOp::SQUARE).infer(inputs)
        }
        fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> ep_core::Result<Vec<Tensor>> {
            Unary::new(UnaryOp::SQUARE).run(ops, inputs)
        }
        fn signatures(&self, _: &[Spec]) -> Vec<Signature> {
            vec![Signature::new([S(0)], [S(0)]), Signature::new([P], [P])]
        }
    }
    let ops = cpu();
    let x = Host::new(&[3], &[1.0, 2.0, 3.0]).to(&ops, DType::F32);
    let report = check(&ops, &Lying, &[&x], 2).unwrap();
    assert!(!report.passed());
    let text = report.to_string();
    assert!(
        text.starts_with(
            "Lying of f32[3] in 2 parts\n  ok    S(0) -> S(0)\n  WRONG P -> P: output 0: element "
        ),
        "{text}"
    );
}

#[test]
fn signatures_without_meaning_are_refused() {
    let ops = cpu();
    let x = Host::new(&[3], &[1.0, 2.0, 3.0]).to(&ops, DType::F32);
    let operator = Unary::new(UnaryOp::NEGATIVE);
    for (signature, parts) in [
        (Signature::new([S(1)], [S(0)]), 2),
        (Signature::new([S(0)], [S(1)]), 2),
        (Signature::broadcast(2, 1), 2),
        (Signature::broadcast(1, 1), 0),
    ] {
        let error = check_signature(&ops, &operator, &[&x], parts, &signature).unwrap_err();
        assert_eq!(error.code(), ep_core::Code::InvalidArgument, "{signature}: {error}");
    }
}

/// The table in docs/sbp.md is that of [`subjects`].
#[test]
fn the_documented_table_is_that_of_the_code() {
    let mut table = String::from("| operator | inputs | signatures |\n|---|---|---|\n");
    for subject in subjects() {
        let inputs: Vec<_> = subject.inputs.iter().map(|spec| format!("{:?}", spec.shape)).collect();
        let signatures = subject.operator.signatures(&subject.inputs);
        // All is everywhere by the first one, of every operator.
        assert_eq!(signatures[0], Signature::broadcast(subject.inputs.len(), signatures[0].outputs.len()));
        let signatures: Vec<_> = signatures[1..].iter().map(|signature| format!("`{signature}`")).collect();
        table += &format!("| {} | {} | {} |\n", subject.told, inputs.join(" "), signatures.join("<br>"));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/sbp.md");
    let document = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(document.contains(&table), "{} should have this table:\n{table}", path.display());
}
