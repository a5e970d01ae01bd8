//! Expressions as text, with no more parentheses than needed.

use super::{BinaryOp, Expr, Literal};
use std::fmt;

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Scalar(s) => fmt::Display::fmt(s, f),
            Literal::Text(t) => f.write_str(t),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl Expr {
    fn write(&self, f: &mut fmt::Formatter<'_>, outer: u8) -> fmt::Result {
        match self {
            Expr::Literal(l) => fmt::Display::fmt(l, f),
            Expr::Fact(kind, name) => write!(f, "{}({name:?})", kind.word()),
            Expr::Not(e) => {
                f.write_str("!")?;
                e.write(f, 8)
            }
            Expr::In(e, values) => parens(f, outer > 3, |f| {
                e.write(f, 4)?;
                f.write_str(" in [")?;
                for (i, v) in values.iter().enumerate() {
                    write!(f, "{}{v}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }),
            Expr::Binary(op, a, b) => {
                let (_, _, text, strength) = *op.row();
                if strength == 9 {
                    write!(f, "{text}(")?;
                    a.write(f, 0)?;
                    f.write_str(", ")?;
                    b.write(f, 0)?;
                    return f.write_str(")");
                }
                // The right operand of a left-associative operation needs parentheses at equal strength;
                // comparisons do not chain at all.
                let left = strength + u8::from(op.is_comparison());
                let associative = matches!(op, BinaryOp::And | BinaryOp::Or | BinaryOp::Add | BinaryOp::Mul);
                let right = strength + u8::from(!associative);
                parens(f, outer > strength, |f| {
                    a.write(f, left)?;
                    write!(f, " {text} ")?;
                    b.write(f, right)
                })
            }
        }
    }
}

fn parens(
    f: &mut fmt::Formatter<'_>,
    needed: bool,
    body: impl FnOnce(&mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    if !needed {
        return body(f);
    }
    f.write_str("(")?;
    body(f)?;
    f.write_str(")")
}

#[cfg(test)]
mod tests {
    use crate::DType;
    use crate::hob::{attr, device, dtype, limit, selector};

    #[test]
    fn reads_as_written() {
        let src = || dtype("src");
        let cases = [
            (src().eq(DType::F32), r#"dtype("src") == f32"#),
            (src().eq(DType::F32) & limit("cols").le(1024), r#"dtype("src") == f32 & limit("cols") <= 1024"#),
            (
                (src().eq(DType::F32) | src().eq(DType::F16)) & attr("alpha").ne(0.5),
                r#"(dtype("src") == f32 | dtype("src") == f16) & attr("alpha") != 0.5"#,
            ),
            (!selector("op").is_in(["add", "mul"]), r#"!(selector("op") in [add, mul])"#),
            (device("compute_capability").ge(80), r#"device("compute_capability") >= 80"#),
        ];
        for (expr, text) in cases {
            assert_eq!(expr.to_string(), text);
        }
    }
}
