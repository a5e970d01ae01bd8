//! Operators as launches, by families.

mod binary;
mod create;
mod index;
mod loss;
mod movers;
mod norms;
mod products;
mod quantize;
mod reasons;
mod reduce;
mod unary;
mod windows;

pub use reasons::no_rule;

use super::launches::scalar;
use super::machine::{Machine, Mapped, Value, not_mapped};
use super::suite::{Attribute, Node, Suite};
use ep_core::{DType, Error, Scalar};

/// How an operator is computed.
#[derive(Clone, Copy)]
pub enum Rule {
    /// By a unary function to its own dtype.
    Unary(&'static str),
    /// By a unary function to bool.
    Test(&'static str),
    /// By a binary function to its own dtype, with broadcasting.
    Binary(&'static str),
    /// By a binary function to bool, with broadcasting.
    Compare(&'static str),
    /// By several launches, or one that needs more than its inputs.
    Launches(fn(&mut Machine<'_>, &Operator<'_>) -> Mapped<Vec<Value>>),
}

/// Operators and their rules.
type Family = &'static [(&'static str, Rule)];

const FAMILIES: [Family; 11] = [
    unary::RULES,
    binary::RULES,
    movers::RULES,
    index::RULES,
    create::RULES,
    reduce::RULES,
    norms::RULES,
    products::RULES,
    quantize::RULES,
    loss::RULES,
    windows::RULES,
];

/// The rule of an operator.
pub fn rule(op: &str) -> Option<Rule> {
    FAMILIES.iter().flat_map(|f| f.iter()).find(|(name, _)| *name == op).map(|(_, rule)| *rule)
}

/// An operator with the values of its inputs.
pub struct Operator<'a> {
    /// The operator.
    pub node: &'a Node,
    /// Its inputs; absent ones are `None`.
    pub inputs: Vec<Option<Value>>,
    /// The version of the operators.
    pub opset: i64,
    /// Where the tensors of attributes are.
    pub suite: &'a Suite,
}

/// One output.
fn one(value: Mapped<Value>) -> Mapped<Vec<Value>> {
    Ok(vec![value?])
}

impl Operator<'_> {
    /// Computes the outputs, in order.
    ///
    /// # Errors
    /// When the operator, or this use of it, is not mapped or not claimed, or fails.
    pub fn compute(&self, on: &mut Machine<'_>) -> Mapped<Vec<Value>> {
        let Some(rule) = rule(&self.node.op) else { return not_mapped(no_rule(&self.node.op)) };
        let outputs = match rule {
            Rule::Unary(op) => one(on.unary(op, self.input(0)?)),
            Rule::Test(op) => one(on.test(op, self.input(0)?)),
            Rule::Binary(op) => one(on.binary(op, self.input(0)?, self.input(1)?)),
            Rule::Compare(op) => one(on.compare(op, self.input(0)?, self.input(1)?)),
            Rule::Launches(f) => f(on, self),
        }?;
        let wanted = self.node.outputs.iter().rposition(|o| !o.is_empty()).map_or(0, |i| i + 1);
        if outputs.len() < wanted {
            return not_mapped(format!("{}: only {} of its outputs", self.node.op, outputs.len()));
        }
        Ok(outputs)
    }

    fn input(&self, i: usize) -> Mapped<&Value> {
        let missing = || Error::invalid(format!("{} has no input {i}", self.node.op));
        Ok(self.optional(i).ok_or_else(missing)?)
    }

    fn optional(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i).and_then(Option::as_ref)
    }

    /// The inputs that are there.
    fn all(&self) -> Vec<&Value> {
        self.inputs.iter().flatten().collect()
    }

    /// Whether an output is wanted.
    fn wants(&self, i: usize) -> bool {
        self.node.outputs.get(i).is_some_and(|o| !o.is_empty())
    }

    fn int(&self, name: &str, default: i64) -> i64 {
        match self.node.attrs.get(name) {
            Some(Attribute::Int(i)) => *i,
            _ => default,
        }
    }

    fn float(&self, name: &str, default: f64) -> Mapped<f64> {
        match self.node.attrs.get(name) {
            Some(Attribute::Float(f)) => number(f),
            _ => Ok(default),
        }
    }

    fn text(&self, name: &str, default: &'static str) -> &str {
        match self.node.attrs.get(name) {
            Some(Attribute::Text(s)) => s,
            _ => default,
        }
    }

    fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.node.attrs.get(name) {
            Some(Attribute::Ints(list)) => Some(list),
            _ => None,
        }
    }

    /// The content of an input that is a parameter: a shape, axes, repeats.
    fn list(&self, i: usize) -> Mapped<Option<Vec<i64>>> {
        let Some(value) = self.optional(i) else { return Ok(None) };
        let data = value.download()?;
        Ok(Some(data.view().iter().map(|n| n.int() as i64).collect()))
    }

    /// A list that older versions have as an attribute and newer ones as an input.
    fn list_or(&self, i: usize, name: &str) -> Mapped<Option<Vec<i64>>> {
        Ok(self.list(i)?.or_else(|| self.ints(name).map(<[i64]>::to_vec)))
    }

    /// The one element of an optional input.
    fn number(&self, on: &mut Machine<'_>, i: usize) -> Mapped<Option<Scalar>> {
        self.optional(i).map(|v| on.number(v)).transpose()
    }

    /// The dtype that an attribute names by ONNX's number.
    fn dtype(&self, name: &str, default: DType) -> Mapped<DType> {
        let Some(Attribute::Int(number)) = self.node.attrs.get(name) else { return Ok(default) };
        const DTYPES: [(i64, DType); 13] = [
            (1, DType::F32),
            (2, DType::U8),
            (3, DType::I8),
            (4, DType::U16),
            (5, DType::I16),
            (6, DType::I32),
            (7, DType::I64),
            (9, DType::BOOL),
            (10, DType::F16),
            (11, DType::F64),
            (12, DType::U32),
            (13, DType::U64),
            (16, DType::BF16),
        ];
        match DTYPES.iter().find(|(n, _)| n == number) {
            Some((_, dtype)) => Ok(*dtype),
            None => not_mapped(format!("{}: no dtype for ONNX's {number}", self.node.op)),
        }
    }

    /// A use of the operator that is not mapped.
    fn not_mapped<T>(&self, what: &str) -> Mapped<T> {
        not_mapped(format!("{}: {what}", self.node.op))
    }
}

fn number(text: &str) -> Mapped<f64> {
    text.parse().map_err(|_| Error::invalid(format!("`{text}` is no float")).into())
}

/// A tensor of the suite as a scalar.
fn scalar_of(operator: &Operator<'_>, name: &str) -> Mapped<Option<(DType, Scalar)>> {
    match operator.node.attrs.get(name) {
        Some(Attribute::Tensor(t)) => {
            let data = operator.suite.data(t)?;
            Ok(Some((data.dtype, scalar(data.get(0)))))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_has_one_rule() {
        let mut names: Vec<_> = FAMILIES.iter().flat_map(|f| f.iter()).map(|(name, _)| *name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(rule("Relu").is_some() && rule("TopK").is_none());
    }

    #[test]
    fn functions_that_rules_name_exist() {
        use ep_core::primitive::{BinaryOp, UnaryOp};
        for (name, rule) in FAMILIES.iter().flat_map(|f| f.iter()) {
            let known = match rule {
                Rule::Unary(op) | Rule::Test(op) => UnaryOp::NAMES.contains(op),
                Rule::Binary(op) | Rule::Compare(op) => BinaryOp::NAMES.contains(op),
                Rule::Launches(_) => true,
            };
            assert!(known, "{name}");
        }
    }
}
