//! Functions of pairs of elements and of several values, with broadcasting.

use super::{Family, Operator, Rule, one};
use crate::onnx::launches::broadcast;
use crate::onnx::machine::{Launch, Machine, Mapped, Value};
use Rule::{Binary, Compare, Launches};

pub(super) const RULES: Family = &[
    ("Add", Binary("add")),
    ("BitwiseAnd", Binary("bitwise_and")),
    ("BitwiseOr", Binary("bitwise_or")),
    ("BitwiseXor", Binary("bitwise_xor")),
    ("Div", Binary("div")),
    ("Mul", Binary("mul")),
    ("Sub", Binary("sub")),
    ("And", Compare("logical_and")),
    ("Equal", Compare("equal")),
    ("Greater", Compare("greater_than")),
    ("GreaterOrEqual", Compare("greater_equal")),
    ("Less", Compare("less_than")),
    ("LessOrEqual", Compare("less_equal")),
    ("Or", Compare("logical_or")),
    ("Xor", Compare("logical_xor")),
    ("BitShift", Launches(shift)),
    ("Max", Launches(|on, o| one(fold(on, o, "max")))),
    ("Mean", Launches(mean)),
    ("Min", Launches(|on, o| one(fold(on, o, "min")))),
    ("Mod", Launches(modulo)),
    ("Pow", Launches(pow)),
    ("PRelu", Launches(prelu)),
    ("Sum", Launches(|on, o| one(sum(on, o)))),
    ("Where", Launches(|on, o| one(on.choose(o.input(0)?, o.input(1)?, o.input(2)?)))),
];

/// By a power of two, in two steps: `2^(bits - 1)` is no number of a signed dtype. A shift by fewer than no bits or by
/// all of them leaves what fills the bits: the sign to the right, 0 to the left.
fn shift(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, by) = (o.input(0)?, o.input(1)?);
    let op = match o.text("direction", "") {
        "LEFT" => "mul",
        "RIGHT" => "floor_div",
        other => return o.not_mapped(&format!("direction `{other}`")),
    };
    let bits = 8 * x.dtype.bytes_for_bounds() as i64;
    let [zero, two, all] = [0, 2, -1].map(|v| on.fill(x.dtype, &[], v));
    let (zero, two, all) = (zero?, two?, all?);
    let not_below = on.compare("greater_equal", by, &zero)?;
    let not_above = on.compare_scalar("less_than", by, bits)?;
    let inside = on.compare("logical_and", &not_below, &not_above)?;
    let by = on.choose(&inside, by, &zero)?;
    let half = on.binary("floor_div", &by, &two)?;
    let rest = on.binary("sub", &by, &half)?;
    let mut shifted = x.clone();
    for part in [half, rest] {
        let power = on.binary("pow", &two, &part)?;
        shifted = on.binary(op, &shifted, &power)?;
    }
    let negative = on.compare("less_than", x, &zero)?;
    let sign = on.choose(&negative, &all, &zero)?;
    one(on.choose(&inside, &shifted, if op == "mul" { &zero } else { &sign }))
}

fn fold(on: &mut Machine<'_>, o: &Operator<'_>, op: &str) -> Mapped<Value> {
    let all = o.all();
    if all.len() == 1 {
        return on.unary("identity", all[0]);
    }
    let mut result = o.input(0)?.clone();
    for value in &all[1..] {
        result = on.binary(op, &result, value)?;
    }
    Ok(result)
}

/// One launch where the shapes are equal.
fn sum(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Value> {
    let (all, first) = (o.all(), o.input(0)?);
    if all.iter().any(|v| v.shape != first.shape) {
        return fold(on, o, "add");
    }
    let launch = Launch::new("add").dtype("data", first.dtype).sizes(&[("count", first.count())]);
    let launch = all.iter().fold(launch, |l, v| l.read("srcs", v));
    launch.make(on, "dst", first.dtype, &first.shape)
}

fn mean(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let total = sum(on, o)?;
    one(on.binary_scalar("div", &total, o.all().len() as f64))
}

/// With `fmod`, the remainder of C; else that of Python.
fn modulo(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let op = if o.int("fmod", 0) == 0 { "floor_mod" } else { "fmod" };
    one(on.binary(op, o.input(0)?, o.input(1)?))
}

/// The result has the base's dtype. A float exponent of an integer is computed in that float.
fn pow(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (base, exponent) = (o.input(0)?, o.input(1)?);
    if exponent.dtype.is_float() && !base.dtype.is_float() {
        let wide = on.cast(base, exponent.dtype)?;
        let power = on.binary("pow", &wide, exponent)?;
        return one(on.cast(&power, base.dtype));
    }
    let exponent = on.cast(exponent, base.dtype)?;
    one(on.binary("pow", base, &exponent))
}

/// `slope x` where x is negative; the slope broadcasts to x.
fn prelu(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, slope) = (o.input(0)?, o.input(1)?);
    if broadcast(&x.shape, &slope.shape)? != x.shape {
        return o.not_mapped("a slope that is larger than its operand");
    }
    let scaled = on.binary("mul", x, slope)?;
    let zero = on.fill(x.dtype, &[], 0)?;
    let negative = on.compare("less_than", x, &zero)?;
    one(on.choose(&negative, &scaled, x))
}
