//! Rows: softmax and norms.

use super::reduce::{kept, kept_mean};
use super::{Family, Operator, Rule, one};
use crate::onnx::machine::{Launch, Machine, Mapped, Value, count};
use Rule::Launches;
use ep_core::DType;

pub(super) const RULES: Family = &[
    ("BatchNormalization", Launches(batch_norm)),
    ("GroupNormalization", Launches(group_norm)),
    ("InstanceNormalization", Launches(instance_norm)),
    ("LayerNormalization", Launches(layer_norm)),
    ("LogSoftmax", Launches(|on, o| softmax(on, o, "log_softmax"))),
    ("LpNormalization", Launches(lp_norm)),
    ("MeanVarianceNormalization", Launches(mean_variance_norm)),
    ("RMSNormalization", Launches(rms_norm)),
    ("Softmax", Launches(|on, o| softmax(on, o, "softmax"))),
];

/// Along one axis; before version 13 along all from it on.
fn softmax(on: &mut Machine<'_>, o: &Operator<'_>, op: &str) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    if o.opset < 13 {
        return o.not_mapped("versions before 13");
    }
    one(along(on, op, x, x.axis(o.int("axis", -1))?))
}

/// `softmax` or `log_softmax` along an axis.
pub(super) fn along(on: &mut Machine<'_>, op: &str, x: &Value, axis: usize) -> Mapped<Value> {
    let [rows, cols, inner] = x.around(axis);
    Launch::new(op)
        .dtype("src", x.dtype)
        .dtype("dst", x.dtype)
        .sizes(&[("rows", rows), ("cols", cols), ("inner", inner)])
        .read("src", x)
        .make(on, "dst", x.dtype, &x.shape)
}

/// The dtype of statistics.
fn stats(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Dimensions from an axis on as the columns of rows, and the shape of what there is one of for each row.
fn rows_from(x: &Value, axis: usize) -> ([(&'static str, i64); 2], Vec<i64>) {
    let (outer, inner) = x.shape.split_at(axis);
    let ones = std::iter::repeat_n(1, inner.len());
    ([("rows", count(outer)), ("cols", count(inner))], outer.iter().copied().chain(ones).collect())
}

fn layer_norm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, scale) = (o.input(0)?, o.input(1)?);
    let axis = x.axis(o.int("axis", -1))?;
    let (sizes, each) = rows_from(x, axis);
    let all = [Some(scale), o.optional(2)];
    if all.iter().flatten().any(|v| v.count() != sizes[1].1) {
        return o.not_mapped("a scale that is repeated");
    }
    let launch = Launch::new("layer_norm")
        .dtype("data", x.dtype)
        .dtype("stats", stats(x.dtype))
        .attr("epsilon", o.float("epsilon", 1e-5)?)
        .sizes(&sizes)
        .read("src", x)
        .read("gamma", scale);
    let launch = o.optional(2).into_iter().fold(launch, |l, bias| l.read("beta", bias));
    let (data, of_rows) = (("dst", x.dtype, &x.shape[..]), stats(x.dtype));
    if !o.wants(1) && !o.wants(2) {
        return launch.make_all(on, &[data]);
    }
    launch.make_all(on, &[data, ("mean", of_rows, &each), ("rstd", of_rows, &each)])
}

fn rms_norm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, scale) = (o.input(0)?, o.input(1)?);
    let axis = x.axis(o.int("axis", -1))?;
    let (sizes, _) = rows_from(x, axis);
    if scale.count() != sizes[1].1 || scale.dtype != x.dtype {
        return o.not_mapped("a scale that is repeated, or of another dtype");
    }
    let launch = Launch::new("rms_norm")
        .dtype("data", x.dtype)
        .dtype("stats", stats(x.dtype))
        .attr("epsilon", o.float("epsilon", 1e-5)?)
        .sizes(&sizes);
    one(launch.read("src", x).read("weight", scale).make(on, "dst", x.dtype, &x.shape))
}

/// Dimensions from an axis on normalised, without scale and shift.
fn plain_norm(on: &mut Machine<'_>, x: &Value, axis: usize, epsilon: f64) -> Mapped<Value> {
    let (sizes, _) = rows_from(x, axis);
    Launch::new("layer_norm")
        .dtype("data", x.dtype)
        .dtype("stats", stats(x.dtype))
        .attr("epsilon", epsilon)
        .sizes(&sizes)
        .read("src", x)
        .make(on, "dst", x.dtype, &x.shape)
}

/// A value for each channel, to broadcast with [n, channels, ...].
fn by_channel(value: &Value, x: &Value) -> Mapped<Value> {
    let mut shape = vec![1; x.rank() - 1];
    shape[0] = x.shape[1];
    value.shaped(&shape)
}

/// `x scale + shift` with both by channel.
fn scaled(on: &mut Machine<'_>, x: &Value, scale: &Value, shift: &Value) -> Mapped<Vec<Value>> {
    let product = on.binary("mul", x, &by_channel(scale, x)?)?;
    one(on.binary("add", &product, &by_channel(shift, x)?))
}

fn instance_norm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let normal = plain_norm(on, x, 2, o.float("epsilon", 1e-5)?)?;
    scaled(on, &normal, o.input(1)?, o.input(2)?)
}

fn group_norm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, scale, shift) = (o.input(0)?, o.input(1)?, o.input(2)?);
    if scale.count() != x.shape[1] {
        return o.not_mapped("a scale for each group, as before version 21");
    }
    let (n, groups) = (x.shape[0], o.int("num_groups", 1));
    let in_groups = x.shaped(&[n, groups, x.count() / (n * groups).max(1)])?;
    let normal = plain_norm(on, &in_groups, 2, o.float("epsilon", 1e-5)?)?;
    scaled(on, &normal.shaped(&x.shape)?, scale, shift)
}

/// With the given mean and variance, or, in training, with those of the batch, of which running ones are updated.
fn batch_norm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let (scale, shift, mean, variance) = (o.input(1)?, o.input(2)?, o.input(3)?, o.input(4)?);
    let epsilon = o.float("epsilon", 1e-5)?;
    if o.int("training_mode", 0) == 0 {
        return normalised(on, x, [scale, shift, mean, variance], epsilon);
    }
    let axes: Vec<usize> = (0..x.rank()).filter(|i| *i != 1).collect();
    let now = kept_mean(on, x, &axes)?;
    let centred = on.binary("sub", x, &now)?;
    let squares = on.unary("square", &centred)?;
    let spread = on.reduce_axes("mean", &squares, &axes, x.dtype)?;
    let now = now.shaped(&mean.shape)?;
    let mut outputs = normalised(on, x, [scale, shift, &now, &spread], epsilon)?;
    let momentum = o.float("momentum", 0.9)?;
    for (old, new) in [(mean, &now), (variance, &spread)] {
        let kept = on.binary_scalar("mul", old, momentum)?;
        let added = on.binary_scalar("mul", new, 1.0 - momentum)?;
        outputs.push(on.binary("add", &kept, &added)?);
    }
    Ok(outputs)
}

/// `(x - mean) / sqrt(variance + epsilon) scale + shift`.
fn normalised(
    on: &mut Machine<'_>,
    x: &Value,
    [scale, shift, mean, variance]: [&Value; 4],
    epsilon: f64,
) -> Mapped<Vec<Value>> {
    let centred = on.binary("sub", x, &by_channel(mean, x)?)?;
    let spread = on.binary_scalar("add", variance, epsilon)?;
    let spread = on.unary("rsqrt", &spread)?;
    let normal = on.binary("mul", &centred, &by_channel(&spread, x)?)?;
    scaled(on, &normal, scale, shift)
}

/// The operator's own epsilon is added to the deviation and not to the variance.
fn mean_variance_norm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axes = o.ints("axes").unwrap_or(&[0, 2, 3]).iter().map(|a| x.axis(*a)).collect::<Mapped<Vec<_>>>()?;
    let mean = kept_mean(on, x, &axes)?;
    let centred = on.binary("sub", x, &mean)?;
    let squares = on.unary("square", &centred)?;
    let variance = kept_mean(on, &squares, &axes)?;
    let deviation = on.unary("sqrt", &variance)?;
    let divisor = on.binary_scalar("add", &deviation, 1e-9)?;
    one(on.binary("div", &centred, &divisor))
}

/// A row of zeros stays one.
fn lp_norm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axis = [x.axis(o.int("axis", -1))?];
    let norm = match o.int("p", 2) {
        1 => {
            let sizes = on.unary("abs", x)?;
            kept(on, "sum", &sizes, &axis, x.dtype)?
        }
        2 => {
            let squares = on.unary("square", x)?;
            let sum = kept(on, "sum", &squares, &axis, x.dtype)?;
            on.unary("sqrt", &sum)?
        }
        p => return o.not_mapped(&format!("p = {p}")),
    };
    let zero = on.fill(x.dtype, &[], 0)?;
    let nothing = on.compare("equal", &norm, &zero)?;
    let quotient = on.binary("div", x, &norm)?;
    one(on.choose(&nothing, &zero, &quotient))
}
