//! Ops that compute element by element.

use super::{Defect, launch};
use crate::calls::*;
use ep_core::{DType, Result, Scalar};
use ep_sim::{Call, DeviceMemory, Write};
use primitives::reference::Number;

pub const DEFECTS: [Defect; 8] = [
    launch("ew-add-tail-of-one", &["add"], add_tail_of_one),
    launch("ew-max-drops-left-nan", &["broadcast_elementwise_binary"], max_drops_left_nan),
    launch("ew-cast-bf16-truncates", &["cast"], cast_bf16_truncates),
    launch("ew-cast-i64-indefinite", &["cast"], cast_i64_indefinite),
    launch("ew-where-tests-lowest-bit", &["where"], where_tests_lowest_bit),
    launch("ew-broadcast-as-suffix", &["broadcast_elementwise_binary"], broadcast_as_suffix),
    launch("ew-binary-in-place-of-second", &["broadcast_elementwise_binary"], binary_in_place_of_second),
    launch("ew-fill-through-double", &["fill"], fill_through_double),
];

fn add_tail_of_one(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let mut writes = call.reference()?;
    let sources = call.operands.iter().filter(|x| x.name == "srcs").count();
    let count = size(call, "count");
    if dtype(call, "data") == DType::F32 && sources >= 3 && count > 8 && count % 8 == 1 {
        writes.iter_mut().for_each(|w| w.bytes.truncate((count - 1) * 4));
    }
    Ok(writes)
}

fn max_drops_left_nan(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    // A number that every other one beats.
    let least = match selector(call, "op") {
        "max" => f64::NEG_INFINITY,
        "min" => f64::INFINITY,
        _ => return call.reference(),
    };
    if [DType::F32, DType::F64].contains(&dtype(call, "src")) {
        let without = |x: f64| if x.is_nan() { least } else { x };
        if let Scalar::F64(x) = scalar(call, "scalar0") {
            set_scalar(call, "scalar0", Scalar::F64(without(x)));
        }
        if position(call, "src0").is_some() {
            let left = reals(call, "src0")?;
            set_elements(call, "src0", left.into_iter().map(|x| Number::Real(without(x))))?;
        }
    }
    call.reference()
}

fn cast_bf16_truncates(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let mut writes = call.reference()?;
    if (dtype(call, "src"), dtype(call, "dst")) == (DType::F32, DType::BF16) {
        let upper = call.operands[operand(call, "src")?].old.chunks_exact(4).flat_map(|x| [x[2], x[3]]);
        let upper: Vec<u8> = upper.collect();
        writes.iter_mut().for_each(|w| w.bytes.clone_from(&upper));
    }
    Ok(writes)
}

fn cast_i64_indefinite(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    if dtype(call, "dst") != DType::I64 || ![DType::F32, DType::F64].contains(&dtype(call, "src")) {
        return call.reference();
    }
    let convert = |x: f64| if x >= 9_223_372_036_854_775_808.0 { i64::MIN } else { x as i64 };
    let values = reals(call, "src")?;
    all(call, "dst", values.into_iter().map(|x| Number::Int(convert(x).into())))
}

fn where_tests_lowest_bit(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    if dtype(call, "cond") == DType::BOOL {
        let i = operand(call, "cond")?;
        call.operands[i].old.iter_mut().for_each(|byte| *byte &= 1);
    }
    call.reference()
}

/// The elements of a shape.
fn count(dims: &[i64]) -> usize {
    dims.iter().product::<i64>() as usize
}

fn broadcast_as_suffix(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let (left, right) = (list(call, "src0_dims"), list(call, "src1_dims"));
    let (n, few) = (count(&left), count(&right));
    let whole = call.reference()?;
    let written: usize = whole.iter().map(|w| w.bytes.len()).sum();
    let has_the_shape = left.len() >= right.len() && written == n * width(call, operand(call, "dst")?);
    if !has_the_shape || few >= n || few < 2 || position(call, "src1").is_none() {
        return Ok(whole);
    }
    let short = elements(call, "src1")?;
    set_list(call, "src1_dims", left);
    set_elements(call, "src1", (0..n).map(|i| short[i % few]))?;
    call.reference()
}

fn binary_in_place_of_second(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let given = (position(call, "src0"), position(call, "src1"));
    let concerned = ["sub", "div"].contains(&selector(call, "op")) && dtype(call, "src") == DType::F32;
    if let ((Some(a), Some(b)), true) = (given, concerned) {
        let shared = call.operands[operand(call, "dst")?].address == call.operands[b].address;
        if shared && list(call, "src0_dims") == list(call, "src1_dims") {
            call.operands[b].old = call.operands[a].old.clone();
        }
    }
    call.reference()
}

fn fill_through_double(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let dtype = dtype(call, "data");
    let integer = matches!(scalar(call, "value"), Scalar::I64(_) | Scalar::U64(_));
    if !integer || ![DType::I64, DType::U64].contains(&dtype) {
        return call.reference();
    }
    let value = scalar(call, "value").as_f64();
    let value: i128 = if dtype == DType::I64 { (value as i64).into() } else { (value as u64).into() };
    let count = size(call, "count");
    all(call, "dst", std::iter::repeat_n(Number::Int(value), count))
}
