//! Expressions on the wire: postfix arrays of `EpExprNode`.

use super::{BinaryOp, Expr, FactKind, Literal};
use crate::abi::{self, EpExprNode, EpScalar, EpStr, list, str_of};
use crate::{Error, Result, Scalar};

/// Longest expression that is accepted.
const MAX_NODES: u64 = 4096;
/// Deepest nesting that is accepted, so that walking an expression cannot exhaust the stack.
const MAX_DEPTH: usize = 256;

/// An encoded expression: nodes, and the texts they point to.
#[derive(Debug, Default)]
pub struct Encoded {
    nodes: Vec<EpExprNode>,
    texts: Vec<Box<str>>,
}

impl Encoded {
    /// Encodes `expr`; `None` gives the empty array.
    pub fn new(expr: Option<&Expr>) -> Encoded {
        let mut e = Encoded::default();
        if let Some(expr) = expr {
            e.push(expr);
        }
        e
    }

    /// The nodes; valid as long as `self`.
    pub fn nodes(&self) -> &[EpExprNode] {
        &self.nodes
    }

    fn node(&mut self, op: u32, count: u32, value: EpScalar, text: Option<&str>) {
        let text = text.map_or(EpStr::ZERO, |t| {
            self.texts.push(t.into());
            EpStr::new(self.texts.last().expect("just pushed"))
        });
        self.nodes.push(EpExprNode { op, count, value, text });
    }

    fn literal(&mut self, l: &Literal) {
        match l {
            Literal::Scalar(s) => self.node(abi::EP_EXPR_CONST, 0, (*s).into(), None),
            Literal::Text(t) => self.node(abi::EP_EXPR_TEXT, 0, EpScalar::ZERO, Some(t)),
        }
    }

    fn push(&mut self, expr: &Expr) {
        match expr {
            Expr::Literal(l) => self.literal(l),
            Expr::Fact(kind, name) => {
                let op = FactKind::TABLE.iter().find(|r| r.0 == *kind).expect("in the table").1;
                self.node(op, 0, EpScalar::ZERO, Some(name));
            }
            Expr::Not(e) => {
                self.push(e);
                self.node(abi::EP_EXPR_NOT, 0, EpScalar::ZERO, None);
            }
            Expr::In(e, values) => {
                self.push(e);
                for v in values {
                    self.literal(v);
                }
                self.node(abi::EP_EXPR_IN, values.len() as u32, EpScalar::ZERO, None);
            }
            Expr::Binary(op, a, b) => {
                self.push(a);
                self.push(b);
                self.node(op.row().1, 0, EpScalar::ZERO, None);
            }
        }
    }
}

/// Decodes a postfix array; the empty one is `None`.
///
/// # Errors
/// `InvalidArgument` for unknown operations, a stack that does not work out, or absurd size.
///
/// # Safety
/// A non-null `nodes` is readable for `count` nodes, and their texts are readable.
pub unsafe fn decode(nodes: *const EpExprNode, count: u64) -> Result<Option<Expr>> {
    if count > MAX_NODES {
        return Err(Error::invalid(format!(
            "an expression of {count} nodes; at most {MAX_NODES} are accepted"
        )));
    }
    let mut stack: Vec<(Expr, usize)> = Vec::new();
    // SAFETY: as the caller promises.
    for node in unsafe { list(nodes, count, "expression")? } {
        // SAFETY: as the caller promises.
        let text = unsafe { str_of(node.text)? };
        let entry = decode_node(node, text, &mut stack)?;
        if entry.1 > MAX_DEPTH {
            return Err(Error::invalid(format!("an expression nested deeper than {MAX_DEPTH}")));
        }
        stack.push(entry);
    }
    let result = stack.pop().map(|(e, _)| e);
    if !stack.is_empty() {
        return Err(Error::invalid(format!("an expression leaves {} values too many", stack.len())));
    }
    Ok(result)
}

fn decode_node(node: &EpExprNode, text: &str, stack: &mut Vec<(Expr, usize)>) -> Result<(Expr, usize)> {
    let op = node.op;
    if let Some((kind, ..)) = FactKind::TABLE.iter().find(|r| r.1 == op) {
        return Ok((Expr::Fact(*kind, text.to_owned()), 1));
    }
    let mut pop = || stack.pop().ok_or_else(|| Error::invalid("an expression lacks an operand"));
    match op {
        abi::EP_EXPR_CONST => Ok((Expr::Literal(Literal::Scalar(Scalar::try_from(node.value)?)), 1)),
        abi::EP_EXPR_TEXT => Ok((Expr::Literal(Literal::Text(text.to_owned())), 1)),
        abi::EP_EXPR_NOT => {
            let (e, depth) = pop()?;
            Ok((Expr::Not(Box::new(e)), depth + 1))
        }
        abi::EP_EXPR_IN => {
            let mut values = Vec::new();
            for _ in 0..node.count {
                match pop()? {
                    (Expr::Literal(l), _) => values.push(l),
                    (other, _) => return Err(Error::invalid(format!("`{other}` in a list of constants"))),
                }
            }
            values.reverse();
            let (e, depth) = pop()?;
            Ok((Expr::In(Box::new(e), values), depth + 1))
        }
        _ => {
            let Some((binary, ..)) = BinaryOp::TABLE.iter().find(|r| r.1 == op) else {
                return Err(Error::invalid(format!("an expression has the unknown operation {op}")));
            };
            let ((b, depth_b), (a, depth_a)) = (pop()?, pop()?);
            Ok((Expr::Binary(*binary, Box::new(a), Box::new(b)), depth_a.max(depth_b) + 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::hob::{attr, device, dtype, limit};

    fn decode_slice(nodes: &[EpExprNode]) -> Result<Option<Expr>> {
        // SAFETY: a live slice whose texts outlive the call.
        unsafe { decode(nodes.as_ptr(), nodes.len() as u64) }
    }

    #[test]
    fn round_trip() {
        let p = dtype("src").is_in([DType::F16, DType::BF16]) & !limit("cols").lt(7)
            | device("name").eq("x") & attr("a").ge(-0.25);
        let encoded = Encoded::new(Some(&p));
        assert_eq!(decode_slice(encoded.nodes()), Ok(Some(p)));
        assert_eq!(decode_slice(&[]), Ok(None));
    }

    #[test]
    fn bad_arrays_are_errors() {
        let not = EpExprNode { op: abi::EP_EXPR_NOT, ..EpExprNode::ZERO };
        let one = abi::node_const(1);
        assert!(decode_slice(&[not]).is_err());
        assert!(decode_slice(&[one, one]).is_err());
        assert!(decode_slice(&[EpExprNode { op: 999, ..EpExprNode::ZERO }]).is_err());
        assert!(
            decode_slice(&[one, EpExprNode { op: abi::EP_EXPR_IN, count: u32::MAX, ..EpExprNode::ZERO }])
                .is_err()
        );
        let mut deep = vec![one];
        deep.extend(vec![not; 300]);
        assert!(decode_slice(&deep).is_err());
    }
}
