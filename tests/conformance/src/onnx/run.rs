//! Running a case: its operators one by one, on a device.

use super::compare::difference;
use super::machine::{Machine, Mapped, Stop, Value, not_mapped};
use super::map::{Operator, no_rule, rule};
use super::suite::{Case, Suite};
use crate::keys::Ended;
use crate::plan::{Group, Setup, Unit};
use crate::protocol::End;
use ep_core::Error;
use std::collections::HashMap;

/// The cases as units of a device, each of one case.
pub fn units(suite: &Suite, setup: &Setup, device: &str) -> Vec<Unit> {
    let unit =
        |case: &Case| Unit { op: case.op.clone(), ..Unit::of_device(setup, Group::Onnx, device, &case.name) };
    suite.cases.iter().map(unit).collect()
}

/// Runs a case by its name.
pub(crate) fn run(on: &mut Machine<'_>, suite: &Suite, name: &str) -> Ended {
    let Some(case) = suite.case(name) else {
        return (End::Failed, format!("the suite has no case `{name}` any more"), None);
    };
    // Also of one that stopped on its way.
    on.take_launches();
    match judge(on, suite, case) {
        Ok(None) => (End::Passed, String::new(), None),
        Ok(Some(wrong)) => (End::Failed, format!("{wrong} ({})", case.op), None),
        Err(Stop::NotMapped(why)) => (End::NotMapped, why, None),
        Err(Stop::Unsupported(why)) => (End::Unsupported, why, None),
        Err(Stop::Failed(e)) => (End::Failed, format!("{:?}: {e} ({})", e.code(), case.op), None),
    }
}

/// What is wrong with the results, if anything.
fn judge(on: &mut Machine<'_>, suite: &Suite, case: &Case) -> Mapped<Option<String>> {
    if let Some(why) = &case.skip {
        return not_mapped(why);
    }
    if let Some(node) = case.nodes.iter().find(|n| rule(&n.op).is_none()) {
        return not_mapped(no_rule(&node.op));
    }
    let mut values: HashMap<&str, Value> = HashMap::new();
    for input in &case.inputs {
        values.insert(&input.name, on.upload(&input.tensor.shape, &suite.data(&input.tensor)?)?);
    }
    for node in &case.nodes {
        let mut inputs = Vec::new();
        for name in &node.inputs {
            let value = values.get(name.as_str()).cloned();
            if value.is_none() && !name.is_empty() {
                return Err(Error::invalid(format!("{}: no value `{name}`", node.op)).into());
            }
            inputs.push(value);
        }
        let operator = Operator { node, inputs, opset: case.opset, suite };
        let outputs = operator.compute(on)?;
        values.extend(
            node.outputs.iter().map(String::as_str).zip(outputs).filter(|(name, _)| !name.is_empty()),
        );
    }
    if on.take_launches() == 0 {
        return not_mapped(format!("{}: nothing to launch", case.op));
    }
    for output in &case.outputs {
        let missing = || Error::invalid(format!("no value `{}`", output.name));
        let found = values.get(output.name.as_str()).ok_or_else(missing)?;
        let wanted = suite.data(&output.tensor)?;
        let wrong = difference(case, &output.name, (&output.tensor.shape, &wanted), found)?;
        if wrong.is_some() {
            return Ok(wrong);
        }
    }
    Ok(None)
}
