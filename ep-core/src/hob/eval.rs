//! Computing an expression, and saying why a predicate is false.

use super::{BinaryOp, Expr, FactKind, Literal};
use crate::{Error, Result, Scalar};
use std::borrow::Cow;
use std::fmt;

/// What an expression or a fact is worth.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
    /// A limit that is not set: larger than every number.
    Unbounded,
    /// A name.
    Text(Cow<'a, str>),
    /// A list of numbers; where a single number is needed, a shape counts as its number of elements.
    Dims(Cow<'a, [i64]>),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(i) => write!(f, "{i}"),
            Value::Float(x) => write!(f, "{x:?}"),
            Value::Unbounded => f.write_str("unbounded"),
            Value::Text(t) => f.write_str(t),
            Value::Dims(d) => write!(f, "{d:?}"),
        }
    }
}

impl From<Scalar> for Value<'_> {
    fn from(s: Scalar) -> Self {
        match s {
            Scalar::None => Value::Int(0),
            Scalar::Bool(b) => Value::Bool(b),
            Scalar::I64(i) => Value::Int(i.into()),
            Scalar::U64(u) => Value::Int(u.into()),
            Scalar::F64(x) | Scalar::Complex(x, _) => Value::Float(x),
        }
    }
}

impl Value<'_> {
    fn into_owned(self) -> Value<'static> {
        match self {
            Value::Bool(b) => Value::Bool(b),
            Value::Int(i) => Value::Int(i),
            Value::Float(x) => Value::Float(x),
            Value::Unbounded => Value::Unbounded,
            Value::Text(t) => Value::Text(t.into_owned().into()),
            Value::Dims(d) => Value::Dims(d.into_owned().into()),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Value::Int(i) => Some(*i as f64),
            Value::Float(x) => Some(*x),
            Value::Unbounded => Some(f64::INFINITY),
            Value::Bool(_) | Value::Text(_) | Value::Dims(_) => None,
        }
    }

    /// Saturating integer, for sizes and costs.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Int(i) => Some((*i).clamp(0, u64::MAX.into()) as u64),
            Value::Float(x) if *x >= 0.0 => Some(*x as u64),
            Value::Dims(d) => Some(crate::op::elements(d)),
            _ => None,
        }
    }
}

/// Where facts come from.
pub trait Facts {
    /// The value of a fact, if there is one of that name.
    fn fact(&self, kind: FactKind, name: &str) -> Option<Value<'_>>;
}

/// No facts at all.
#[derive(Debug, Clone, Copy)]
pub struct NoFacts;

impl Facts for NoFacts {
    fn fact(&self, _: FactKind, _: &str) -> Option<Value<'_>> {
        None
    }
}

/// Why a predicate is false.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The clause that is false, as written.
    pub clause: String,
    /// The facts in it with their values: `limit("cols") is 2048`.
    pub actual: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "needs {}", self.clause)?;
        if self.actual.is_empty() { Ok(()) } else { write!(f, ", but {}", self.actual) }
    }
}

impl Expr {
    /// Computes the expression.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown fact, which registration has excluded for predicates of loaded
    /// providers, or operands of the wrong kind.
    pub fn eval<'a>(&'a self, facts: &'a dyn Facts) -> Result<Value<'a>> {
        match self {
            Expr::Literal(l) => Ok(literal(l)),
            Expr::Fact(kind, name) => facts
                .fact(*kind, name)
                .ok_or_else(|| Error::invalid(format!("there is no {}({name:?})", kind.word()))),
            Expr::Not(e) => Ok(Value::Bool(!e.holds(facts)?)),
            Expr::In(e, values) => {
                let x = e.eval(facts)?;
                let mut found = false;
                for v in values {
                    found |= compare(BinaryOp::Eq, &x, &literal(v), self)?;
                }
                Ok(Value::Bool(found))
            }
            Expr::Binary(BinaryOp::And, a, b) => Ok(Value::Bool(a.holds(facts)? && b.holds(facts)?)),
            Expr::Binary(BinaryOp::Or, a, b) => Ok(Value::Bool(a.holds(facts)? || b.holds(facts)?)),
            Expr::Binary(op, a, b) => {
                let (x, y) = (a.eval(facts)?, b.eval(facts)?);
                if op.is_comparison() {
                    return compare(*op, &x, &y, self).map(Value::Bool);
                }
                arithmetic(*op, &x, &y)
                    .ok_or_else(|| Error::invalid(format!("`{self}` has no value for {x} and {y}")))
            }
        }
    }

    /// Computes a predicate.
    ///
    /// # Errors
    /// As [`Expr::eval`], and when the result is no truth value.
    pub fn holds(&self, facts: &dyn Facts) -> Result<bool> {
        match self.eval(facts)? {
            Value::Bool(b) => Ok(b),
            other => Err(Error::invalid(format!("`{self}` is {other}, not true or false"))),
        }
    }

    /// Computes a size or a cost; negative counts as 0.
    ///
    /// # Errors
    /// As [`Expr::eval`], and when the result is no number.
    pub fn amount(&self, facts: &dyn Facts) -> Result<u64> {
        let value = self.eval(facts)?;
        value.as_u64().ok_or_else(|| Error::invalid(format!("`{self}` is {value}, not a size")))
    }

    /// Every clause that makes a predicate false, in order; none if it is true. The clauses are those of a
    /// conjunction, or of a disjunction that is negated.
    ///
    /// # Errors
    /// As [`Expr::holds`].
    pub fn refusals(&self, facts: &dyn Facts) -> Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        self.refuse(false, facts, &mut refusals)?;
        Ok(refusals)
    }

    fn refuse(&self, negated: bool, facts: &dyn Facts, found: &mut Vec<Refusal>) -> Result<()> {
        match self {
            Expr::Not(e) => return e.refuse(!negated, facts, found),
            Expr::Binary(op, a, b) if *op == if negated { BinaryOp::Or } else { BinaryOp::And } => {
                a.refuse(negated, facts, found)?;
                return b.refuse(negated, facts, found);
            }
            _ => {}
        }
        match self.holds(facts) {
            Ok(holds) if holds != negated => return Ok(()),
            Ok(_) => {}
            // What stands before a clause may be there to guard it: behind a false one it need not have a value.
            Err(_) if !found.is_empty() => return Ok(()),
            Err(e) => return Err(e),
        }
        let mut actual: Vec<String> = Vec::new();
        self.facts(&mut |kind, name| {
            if let Some(v) = facts.fact(kind, name) {
                let text = format!("{}({name:?}) is {v}", kind.word());
                if !actual.contains(&text) {
                    actual.push(text);
                }
            }
        });
        let clause = if negated { Expr::Not(Box::new(self.clone())).to_string() } else { self.to_string() };
        found.push(Refusal { clause, actual: actual.join(" and ") });
        Ok(())
    }
}

fn literal(l: &Literal) -> Value<'_> {
    match l {
        Literal::Scalar(s) => (*s).into(),
        Literal::Text(t) => Value::Text(Cow::Borrowed(t)),
    }
}

fn compare(op: BinaryOp, x: &Value<'_>, y: &Value<'_>, whole: &Expr) -> Result<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let wrong = || Error::invalid(format!("`{whole}` compares {x} with {y}, which are of different kinds"));
    let order = match (x, y) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        _ => x.number().ok_or_else(wrong)?.partial_cmp(&y.number().ok_or_else(wrong)?),
    };
    Ok(match op {
        BinaryOp::Eq => order == Some(Equal),
        BinaryOp::Ne => order != Some(Equal),
        BinaryOp::Lt => order == Some(Less),
        BinaryOp::Le => matches!(order, Some(Less | Equal)),
        BinaryOp::Gt => order == Some(Greater),
        _ => matches!(order, Some(Greater | Equal)),
    })
}

fn arithmetic<'a>(op: BinaryOp, x: &Value<'_>, y: &Value<'_>) -> Option<Value<'a>> {
    if let (Value::Dims(a), Value::Dims(b)) = (x, y) {
        match op {
            BinaryOp::Broadcast => return Some(Value::Dims(crate::op::broadcast_shape(a, b).into())),
            BinaryOp::Extent => return Some(Value::Int(crate::op::extent(a, b).into())),
            BinaryOp::Add if a.len() == b.len() => {
                let sums = a.iter().zip(b.iter()).map(|(a, b)| a.saturating_add(*b));
                return Some(Value::Dims(sums.collect()));
            }
            _ => {}
        }
    }
    let count = |v: &Value<'_>| match v {
        Value::Dims(d) => Value::Int(crate::op::elements(d).into()),
        other => other.clone().into_owned(),
    };
    let (x, y) = (&count(x), &count(y));
    if let (Value::Int(a), Value::Int(b)) = (x, y) {
        return Some(Value::Int(match op {
            BinaryOp::Add => a.saturating_add(*b),
            BinaryOp::Sub => a.saturating_sub(*b),
            BinaryOp::Mul => a.saturating_mul(*b),
            BinaryOp::Div => floor_div(*a, *b)?,
            BinaryOp::Max => *a.max(b),
            BinaryOp::Min => *a.min(b),
            _ => return None,
        }));
    }
    let (a, b) = (x.number()?, y.number()?);
    Some(Value::Float(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div if b == 0.0 => return None,
        BinaryOp::Div => a / b,
        BinaryOp::Max => a.max(b),
        BinaryOp::Min => a.min(b),
        _ => return None,
    }))
}

/// The quotient, rounded down whatever the signs; saturates as the other operations do.
fn floor_div(a: i128, b: i128) -> Option<i128> {
    if b == 0 {
        return None;
    }
    let quotient = a.saturating_div(b);
    let exact = a.wrapping_rem(b) == 0;
    Some(if exact || (a < 0) == (b < 0) { quotient } else { quotient - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::hob::{attr, dtype, limit};

    struct Some3;
    impl Facts for Some3 {
        fn fact(&self, kind: FactKind, name: &str) -> Option<Value<'_>> {
            Some(match (kind, name) {
                (FactKind::DType, "src") => Value::Text("f32".into()),
                (FactKind::Limit, "cols") => Value::Int(2048),
                (FactKind::Limit, "rows") => Value::Unbounded,
                (FactKind::Attr, "nan") => Value::Float(f64::NAN),
                _ => return None,
            })
        }
    }

    #[test]
    fn comparisons() {
        let yes = |e: Expr| assert_eq!(e.holds(&Some3), Ok(true), "{e}");
        yes(dtype("src").eq(DType::F32));
        yes(dtype("src").is_in([DType::F16, DType::F32]));
        yes(!dtype("src").is_in([DType::F64]));
        yes(limit("cols").le(2048) & limit("cols").gt(2047.5));
        yes(limit("rows").gt(u64::MAX) & limit("rows").ne(5));
        yes(attr("nan").ne(0.0) & !attr("nan").eq(0.0) & !attr("nan").lt(0.0) & !attr("nan").ge(0.0));
        yes(limit("cols").lt(1) | limit("cols").eq(2048));
        assert!(dtype("src").lt(3).holds(&Some3).is_err());
        assert!(dtype("dst").eq(DType::F32).holds(&Some3).is_err());
        assert!(limit("cols").holds(&Some3).is_err());
    }

    #[test]
    fn quotients_round_down_and_nothing_is_divided_by_zero() {
        let quotient = |a: Expr, b: Expr| {
            let e = Expr::Binary(BinaryOp::Div, Box::new(a), Box::new(b));
            e.eval(&NoFacts).map(Value::into_owned).map_err(|e| e.message().to_owned())
        };
        for a in -9i64..=9 {
            for b in (-4i64..=4).filter(|b| *b != 0) {
                let down = (a as f64 / b as f64).floor() as i128;
                assert_eq!(quotient(a.into(), b.into()), Ok(Value::Int(down)), "{a} / {b}");
            }
        }
        assert_eq!(floor_div(i128::MIN, -1), Some(i128::MAX));
        assert_eq!(floor_div(i128::MIN, 2), Some(i128::MIN / 2));
        assert_eq!(quotient(7.0.into(), (-2i64).into()), Ok(Value::Float(-3.5)));
        let zeros: [Expr; 3] = [0i64.into(), 0.0.into(), (-0.0).into()];
        for zero in zeros {
            for a in [Expr::from(3i64), 3.0.into(), 0.0.into()] {
                let message = quotient(a, zero.clone()).unwrap_err();
                assert!(message.contains("has no value for"), "{message}");
            }
        }
    }

    #[test]
    fn every_false_clause_is_named_with_the_value() {
        let texts = |p: &Expr| -> Vec<String> {
            p.refusals(&Some3).unwrap().iter().map(ToString::to_string).collect()
        };
        let wide = limit("cols").le(1024);
        let p = dtype("src").eq(DType::F32) & (wide.clone() & limit("rows").le(7) & limit("cols").ge(1));
        let both = [
            r#"needs limit("cols") <= 1024, but limit("cols") is 2048"#,
            r#"needs limit("rows") <= 7, but limit("rows") is unbounded"#,
        ];
        assert_eq!(texts(&p), both);
        assert_eq!(texts(&dtype("src").eq(DType::F32)), [""; 0]);
        // A disjunction is one clause, and a negated one is a conjunction.
        let either = || wide.clone() | limit("cols").lt(9);
        let clause = r#"limit("cols") <= 1024 | limit("cols") < 9"#;
        assert_eq!(texts(&either()), [format!("needs {clause}, but limit(\"cols\") is 2048")]);
        let p = !(limit("cols").ge(9) | dtype("src").eq(DType::F32));
        let clauses: Vec<String> =
            p.refusals(&Some3).unwrap().into_iter().map(|refusal| refusal.clause).collect();
        assert_eq!(clauses, [r#"!(limit("cols") >= 9)"#, r#"!(dtype("src") == f32)"#]);
        assert_eq!(texts(&!either()), [""; 0]);
        assert_eq!(texts(&!!wide.clone()), both[..1]);
    }

    #[test]
    fn a_clause_without_value_is_skipped_behind_a_false_one() {
        let odd = limit("gone").le(1);
        let refusals = (limit("cols").le(1024) & odd.clone()).refusals(&Some3).unwrap();
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        assert!((odd & limit("cols").le(1024)).refusals(&Some3).is_err());
    }
}
