//! Tensors from numbers.

use crate::under::{devices, invalid, ops};
use ep_core::primitive::UnaryOp;
use ep_core::{DType, Scalar};
use ep_ops::{Ops, Tensor};
use half::f16;
use std::sync::Arc;

#[test]
fn every_way() {
    for device in devices() {
        let ops = ops(device);
        assert_eq!(ops.to_vec::<f32>(&ops.tensor(&[1.5f32, 2.0], &[2, 1]).unwrap()).unwrap(), [1.5, 2.0]);
        assert_eq!(ops.to_vec::<f16>(&ops.zeros(DType::F16, &[2]).unwrap()).unwrap(), [f16::ZERO; 2]);
        assert_eq!(ops.to_vec::<bool>(&ops.zeros(DType::BOOL, &[]).unwrap()).unwrap(), [false]);
        assert_eq!(ops.to_vec::<u8>(&ops.full(DType::U8, &[3], 255.0).unwrap()).unwrap(), [255; 3]);
        let infinite = ops.full(DType::F16, &[2], f64::NEG_INFINITY).unwrap();
        assert_eq!(ops.to_vec::<f16>(&infinite).unwrap(), [f16::NEG_INFINITY; 2]);
        assert!(ops.to_vec::<f32>(&ops.full(DType::F32, &[], f64::NAN).unwrap()).unwrap()[0].is_nan());
        assert_eq!(ops.to_vec::<f64>(&ops.full(DType::F64, &[2, 0], 1.5).unwrap()).unwrap(), [0.0f64; 0]);
        let numbers = |start: Scalar, end: Scalar, step: Scalar| {
            ops.to_vec::<f32>(&ops.arange(DType::F32, start, end, step).unwrap()).unwrap()
        };
        assert_eq!(numbers(0.into(), 5.into(), 2.into()), [0.0, 2.0, 4.0]);
        assert_eq!(numbers(0.into(), 4.into(), 2.into()), [0.0, 2.0]);
        assert_eq!(numbers(3.into(), 0.into(), (-1).into()), [3.0, 2.0, 1.0]);
        assert_eq!(numbers(1.0.into(), 2.1.into(), 0.5.into()), [1.0, 1.5, 2.0]);
        assert_eq!(numbers(Scalar::None, 2.into(), Scalar::None), [0.0, 1.0]);
        assert!(numbers(2.into(), 2.into(), (-1).into()).is_empty());
        let wide = ops.arange(DType::U64, u64::MAX - 2, u64::MAX, 1).unwrap();
        assert_eq!(ops.to_vec::<u64>(&wide).unwrap(), [u64::MAX - 2, u64::MAX - 1]);
    }
}

#[test]
fn refusals() {
    let ops = ops("cpu:0");
    assert_eq!(invalid(ops.tensor(&[1u8], &[2])), "1 elements for a tensor u8[2]; give it as many");
    assert_eq!(invalid(ops.zeros(DType::F32, &[2, -1])), "zeros: shape [2, -1] has the negative size -1");
    assert_eq!(
        invalid(ops.empty(DType::U8, &[1; 9])),
        "a tensor u8[1, 1, 1, 1, 1, 1, 1, 1, 1]: rank 9, and at most 8 is possible"
    );
    assert_eq!(
        invalid(ops.full(DType::U8, &[3], 257)),
        "full: u8[3] of 257: u8 cannot hold it, and none is converted; make it of a dtype that can, and convert that with \
         to_dtype"
    );
    let other: [(DType, Scalar); 5] = [
        (DType::I32, 0.5.into()),
        (DType::I64, f64::NAN.into()),
        (DType::BOOL, 2.into()),
        (DType::F32, Scalar::Complex(1.0, 1.0)),
        (DType::F32, Scalar::None),
    ];
    for (dtype, value) in other {
        let message = invalid(ops.full(dtype, &[2], value));
        assert!(message.contains(&format!("of {value}: {dtype} cannot hold it")), "{message}");
    }
    for (start, step) in [(0.0, 0.5), (0.5, 1.0)] {
        let message = invalid(ops.arange(DType::I32, start, 2.0, step));
        assert!(message.contains("start and step have to be integers"), "{message}");
    }
    assert_eq!(ops.to_vec::<i32>(&ops.arange(DType::I32, 0.0, 2.5, 1.0).unwrap()).unwrap(), [0, 1, 2]);
    let of = |start: Scalar, end: Scalar, step: Scalar| invalid(ops.arange(DType::F32, start, end, step));
    assert_eq!(of(0.into(), 5.into(), 0.into()), "arange from 0 to 5 by 0: the step is 0");
    assert!(of(Scalar::Complex(0.0, 1.0), 5.into(), 1.into()).contains("f32 has no imaginary part"));
    assert_eq!(
        of(0.into(), 5.into(), (-1).into()),
        "arange from 0 to 5 by -1: the step leads away from the end"
    );
    assert_eq!(
        of(0.0.into(), 5.into(), (-1).into()),
        "arange from 0.0 to 5 by -1: the step leads away from the end"
    );
    assert_eq!(
        of(0.0.into(), f64::NAN.into(), 1.into()),
        "arange from 0.0 to NaN by 1: all three are finite, and the step is not 0"
    );
    assert_eq!(
        of(i64::MIN.into(), u64::MAX.into(), 1.into()),
        format!("arange from {} to {} by 1: more elements than an i64 counts", i64::MIN, u64::MAX)
    );
    assert_eq!(
        of(0.0.into(), 1e19.into(), 1.into()),
        "arange from 0.0 to 1e19 by 1: more elements than an i64 counts"
    );
    let told = invalid(ops.with_stream(crate::under::ops("sim:0").stream().clone()));
    assert_eq!(told, "a stream of sim:0 for operators on cpu:0; make one of cpu:0");
}

/// A program keeps operators and tensors in a struct, and drops its handle of the runtime.
#[test]
fn operators_keep_a_shared_runtime_alive() {
    struct Model {
        ops: Ops<'static>,
        weights: Tensor,
    }
    let model = {
        let runtime = Arc::new(crate::under::with_bare());
        let ops = Ops::shared(&runtime, "sim:0").unwrap().with_fallback(["cpu:0"]).unwrap();
        let weights = ops.tensor(&[1.0f32, -2.0], &[2]).unwrap();
        Model { ops, weights }
    };
    let y = model.ops.unary(UnaryOp::RELU, &model.weights).unwrap();
    assert_eq!(model.ops.to_vec::<f32>(&y).unwrap(), [1.0, 0.0]);
}
