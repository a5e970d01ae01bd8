//! Functions of each element.

use super::{Family, Operator, Rule, one};
use crate::onnx::machine::{Machine, Mapped, Value};
use Rule::{Launches, Test, Unary};
use ep_core::DType;

pub(super) const RULES: Family = &[
    ("Abs", Unary("abs")),
    ("Acos", Unary("acos")),
    ("Acosh", Unary("acosh")),
    ("Asin", Unary("asin")),
    ("Asinh", Unary("asinh")),
    ("Atan", Unary("atan")),
    ("Atanh", Unary("atanh")),
    ("BitwiseNot", Unary("bitwise_not")),
    ("Ceil", Unary("ceil")),
    ("Cos", Unary("cos")),
    ("Cosh", Unary("cosh")),
    ("Erf", Unary("erf")),
    ("Exp", Unary("exp")),
    ("Floor", Unary("floor")),
    ("HardSwish", Unary("hard_swish")),
    ("IsNaN", Test("is_nan")),
    ("Log", Unary("log")),
    ("Mish", Unary("mish")),
    ("Neg", Unary("negative")),
    ("Not", Test("logical_not")),
    ("Reciprocal", Unary("reciprocal")),
    ("Relu", Unary("relu")),
    ("Round", Unary("rint")),
    ("Sigmoid", Unary("sigmoid")),
    ("Sign", Unary("sign")),
    ("Sin", Unary("sin")),
    ("Sinh", Unary("sinh")),
    ("Softsign", Unary("soft_sign")),
    ("Sqrt", Unary("sqrt")),
    ("Tan", Unary("tan")),
    ("Tanh", Unary("tanh")),
    ("Celu", Launches(|on, o| with(on, o, "celu", [o.float("alpha", 1.0)?, 0.0]))),
    ("Elu", Launches(|on, o| with(on, o, "elu", [o.float("alpha", 1.0)?, 0.0]))),
    ("LeakyRelu", Launches(|on, o| with(on, o, "leaky_relu", [o.float("alpha", 0.01)?, 0.0]))),
    ("Softplus", Launches(|on, o| with(on, o, "soft_plus", [1.0, f64::INFINITY]))),
    ("ThresholdedRelu", Launches(|on, o| with(on, o, "threshold", [o.float("alpha", 1.0)?, 0.0]))),
    ("ai.onnx.ml.Binarizer", Launches(binarizer)),
    ("Cast", Launches(|on, o| cast(on, o, o.dtype("to", DType::INVALID)?))),
    ("CastLike", Launches(|on, o| cast(on, o, o.input(1)?.dtype))),
    ("Clip", Launches(clip)),
    ("Gelu", Launches(gelu)),
    ("HardSigmoid", Launches(hard_sigmoid)),
    ("IsInf", Launches(is_inf)),
    ("Selu", Launches(selu)),
    ("Shrink", Launches(shrink)),
    ("Swish", Launches(swish)),
];

fn with(on: &mut Machine<'_>, o: &Operator<'_>, op: &str, attrs: [f64; 2]) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    one(on.unary_with(op, x, x.dtype, attrs))
}

fn cast(on: &mut Machine<'_>, o: &Operator<'_>, to: DType) -> Mapped<Vec<Value>> {
    one(on.cast_always(o.input(0)?, to))
}

fn binarizer(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let above = on.compare_scalar("greater_than", x, o.float("threshold", 0.0)?)?;
    one(on.cast(&above, x.dtype))
}

/// Bounds are inputs, or attributes in older versions; either may be absent.
fn clip(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let mut x = o.input(0)?.clone();
    let mut bounded = false;
    for (i, op, name) in [(1, "max", "min"), (2, "min", "max")] {
        if let Some(bound) = o.optional(i) {
            (x, bounded) = (on.binary(op, &x, bound)?, true);
        } else if o.node.attrs.contains_key(name) {
            (x, bounded) = (on.binary_scalar(op, &x, o.float(name, 0.0)?)?, true);
        }
    }
    one(if bounded { Ok(x) } else { on.unary("identity", &x) })
}

fn gelu(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    match o.text("approximate", "none") {
        "none" => one(on.unary("gelu", o.input(0)?)),
        "tanh" => one(on.unary("fast_gelu", o.input(0)?)),
        other => o.not_mapped(&format!("approximation `{other}`")),
    }
}

/// The primitive has ONNX's `HardSwish` slope of 1/6; other slopes are a line between bounds.
fn hard_sigmoid(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let scaled = on.binary_scalar("mul", o.input(0)?, o.float("alpha", 0.2)?)?;
    let line = on.binary_scalar("add", &scaled, o.float("beta", 0.5)?)?;
    one(on.unary_with("hard_tanh", &line, line.dtype, [0.0, 1.0]))
}

/// Of one sign only where an attribute says so.
fn is_inf(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let infinite = on.test("is_inf", x)?;
    match (o.int("detect_negative", 1) != 0, o.int("detect_positive", 1) != 0) {
        (true, true) => Ok(vec![infinite]),
        (false, false) => one(on.fill(DType::BOOL, &x.shape, false)),
        (negative, _) => {
            let op = if negative { "less_than" } else { "greater_than" };
            let side = on.compare_scalar(op, x, 0.0)?;
            one(on.compare("logical_and", &infinite, &side))
        }
    }
}

/// `gamma elu(x)` with other parameters than those that `selu` has.
fn selu(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    if !o.node.attrs.contains_key("alpha") && !o.node.attrs.contains_key("gamma") {
        return one(on.unary("selu", x));
    }
    let alpha = o.float("alpha", 1.673_263_192_176_818_8)?;
    let elu = on.unary_with("elu", x, x.dtype, [alpha, 0.0])?;
    one(on.binary_scalar("mul", &elu, o.float("gamma", 1.050_700_992_345_81)?))
}

/// `x - bias` above lambda, `x + bias` below its negative, else 0.
fn shrink(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, bias, lambda) = (o.input(0)?, o.float("bias", 0.0)?, o.float("lambd", 0.5)?);
    if bias == 0.0 {
        return one(on.unary_with("hard_shrink", x, x.dtype, [lambda, 0.0]));
    }
    if bias == lambda {
        return one(on.unary_with("soft_shrink", x, x.dtype, [lambda, 0.0]));
    }
    o.not_mapped("a bias other than 0 and lambda")
}

fn swish(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, alpha) = (o.input(0)?, o.float("alpha", 1.0)?);
    if alpha == 1.0 {
        return one(on.unary("silu", x));
    }
    let scaled = on.binary_scalar("mul", x, alpha)?;
    let gate = on.unary("sigmoid", &scaled)?;
    one(on.binary("mul", x, &gate))
}
