//! Elements combined along axes.

use super::{Family, Operator, Rule, one};
use crate::onnx::machine::{Machine, Mapped, Value};
use Rule::Launches;
use ep_core::DType;

pub(super) const RULES: Family = &[
    ("GlobalAveragePool", Launches(|on, o| pool(on, o, "mean"))),
    ("GlobalMaxPool", Launches(|on, o| pool(on, o, "max"))),
    ("ReduceL1", Launches(|on, o| reduce(on, o, &["abs"], "sum", &[]))),
    ("ReduceL2", Launches(|on, o| reduce(on, o, &["square"], "sum", &["sqrt"]))),
    ("ReduceLogSum", Launches(|on, o| reduce(on, o, &[], "sum", &["log"]))),
    ("ReduceLogSumExp", Launches(|on, o| reduce(on, o, &["exp"], "sum", &["log"]))),
    ("ReduceMax", Launches(|on, o| reduce(on, o, &[], "max", &[]))),
    ("ReduceMean", Launches(|on, o| reduce(on, o, &[], "mean", &[]))),
    ("ReduceMin", Launches(|on, o| reduce(on, o, &[], "min", &[]))),
    ("ReduceProd", Launches(|on, o| reduce(on, o, &[], "prod", &[]))),
    ("ReduceSum", Launches(|on, o| reduce(on, o, &[], "sum", &[]))),
    ("ReduceSumSquare", Launches(|on, o| reduce(on, o, &["square"], "sum", &[]))),
];

/// Functions of each element, a reduction, and functions of its results.
fn reduce(
    on: &mut Machine<'_>,
    o: &Operator<'_>,
    before: &[&str],
    op: &str,
    after: &[&str],
) -> Mapped<Vec<Value>> {
    let mut x = o.input(0)?.clone();
    let given = o.list_or(1, "axes")?.filter(|a| !a.is_empty());
    for f in before {
        x = on.unary(f, &x)?;
    }
    let (axes, mut shape) = match given {
        Some(given) => {
            let mut axes = given.iter().map(|a| x.axis(*a)).collect::<Mapped<Vec<_>>>()?;
            axes.sort_unstable();
            (Some(axes), x.shape.clone())
        }
        None if o.int("noop_with_empty_axes", 0) != 0 => (None, x.shape.clone()),
        None => (Some((0..x.rank()).collect()), x.shape.clone()),
    };
    match &axes {
        Some(axes) => {
            x = on.reduce_axes(op, &x, axes, x.dtype)?;
            if o.int("keepdims", 1) != 0 {
                axes.iter().for_each(|a| shape[*a] = 1);
                x = x.shaped(&shape)?;
            }
        }
        // Over single elements.
        None => x = on.reduce_axes(op, &x, &[], x.dtype)?,
    }
    for f in after {
        x = on.unary(f, &x)?;
    }
    one(Ok(x))
}

/// Over all positions of each channel.
fn pool(on: &mut Machine<'_>, o: &Operator<'_>, op: &str) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axes: Vec<usize> = (2..x.rank()).collect();
    let mut shape = x.shape.clone();
    shape[2..].fill(1);
    one(on.reduce_axes(op, x, &axes, x.dtype)?.shaped(&shape))
}

/// The mean along some axes, which stay as 1.
pub(super) fn kept_mean(on: &mut Machine<'_>, x: &Value, axes: &[usize]) -> Mapped<Value> {
    kept(on, "mean", x, axes, x.dtype)
}

/// A reduction along some axes, which stay as 1.
pub(super) fn kept(on: &mut Machine<'_>, op: &str, x: &Value, axes: &[usize], dst: DType) -> Mapped<Value> {
    let mut shape = x.shape.clone();
    axes.iter().for_each(|a| shape[*a] = 1);
    on.reduce_axes(op, x, axes, dst)?.shaped(&shape)
}
