//! Losses of a classification: [n, classes, ...] and the class of each place.

use super::norms::along;
use super::{Family, Operator, Rule};
use crate::onnx::machine::{Machine, Mapped, Value};
use Rule::Launches;

pub(super) const RULES: Family = &[
    ("NegativeLogLikelihoodLoss", Launches(|on, o| Ok(vec![likelihood(on, o, o.input(0)?)?]))),
    ("SoftmaxCrossEntropyLoss", Launches(cross_entropy)),
];

/// The negative of the right class's entry, weighted by class; places of the class to ignore weigh nothing.
fn likelihood(on: &mut Machine<'_>, o: &Operator<'_>, x: &Value) -> Mapped<Value> {
    let mut target = o.input(1)?.clone();
    let zero = on.fill(x.dtype, &[], 0)?;
    let ignored = match o.node.attrs.contains_key("ignore_index") {
        true => {
            let ignored = on.compare_scalar("equal", &target, o.int("ignore_index", 0))?;
            let first = on.fill(target.dtype, &[], 0)?;
            target = on.choose(&ignored, &first, &target)?;
            Some(ignored)
        }
        false => None,
    };
    let rows = on.axis_last(x, 1)?;
    let mut each = target.shape.clone();
    each.push(1);
    let picked = on.pick(&rows, &target.shaped(&each)?)?.shaped(&target.shape)?;
    let mut losses = on.unary("negative", &picked)?;
    let mut weights = match (o.optional(2), &ignored) {
        (Some(weights), _) => Some(on.gather(weights, 0, &target)?),
        (None, Some(_)) => Some(on.fill(x.dtype, &target.shape, 1)?),
        (None, None) => None,
    };
    if let (Some(weights), Some(ignored)) = (&mut weights, &ignored) {
        *weights = on.choose(ignored, &zero, weights)?;
    }
    if let Some(weights) = &weights {
        losses = on.binary("mul", &losses, weights)?;
    }
    let all: Vec<usize> = (0..losses.rank()).collect();
    match (o.text("reduction", "mean"), &weights) {
        ("none", _) => Ok(losses),
        ("sum", _) => on.reduce_axes("sum", &losses, &all, x.dtype),
        ("mean", None) => on.reduce_axes("mean", &losses, &all, x.dtype),
        ("mean", Some(weights)) => {
            let total = on.reduce_axes("sum", &losses, &all, x.dtype)?;
            let weight = on.reduce_axes("sum", weights, &all, x.dtype)?;
            on.binary("div", &total, &weight)
        }
        (other, _) => o.not_mapped(&format!("reduction `{other}`")),
    }
}

fn cross_entropy(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let logarithms = along(on, "log_softmax", o.input(0)?, 1)?;
    Ok(vec![likelihood(on, o, &logarithms)?, logarithms])
}
