//! Higher-order booleans: predicates (and sizes, and costs) as data.
//!
//! A predicate says what a factory accepts. It is an expression over facts known when a primitive is
//! created, not a closure, so the host can evaluate it, print it, say which clause refused a request, and
//! check every name in it when the factory is registered:
//!
//! ```
//! use ep_core::{DType, hob};
//! let p = hob::dtype("src").is_in([DType::F16, DType::F32]) & hob::limit("cols").le(1024);
//! assert_eq!(p.to_string(), r#"dtype("src") in [f16, f32] & limit("cols") <= 1024"#);
//! ```
//!
//! The same expressions, over launch arguments, say how many elements an operand has and how many
//! operations a launch costs. On the wire an expression is a postfix array of `EpExprNode`.

mod codec;
mod display;
mod eval;

pub use codec::{Encoded, decode};
pub use eval::{Facts, NoFacts, Refusal, Value};

use crate::abi;
use crate::{DType, Scalar};
use std::ops::{BitAnd, BitOr, Not};

/// Where a fact comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FactKind {
    /// A dtype of the request.
    DType,
    /// An attribute of the request.
    Attr,
    /// A limit of the request.
    Limit,
    /// A selector of the request.
    Selector,
    /// An attribute of the device.
    Device,
    /// An argument of the launch.
    Arg,
    /// The product of a dims argument.
    Prod,
}

impl FactKind {
    const TABLE: [(FactKind, u32, &'static str); 7] = [
        (FactKind::DType, abi::EP_EXPR_DTYPE, "dtype"),
        (FactKind::Attr, abi::EP_EXPR_ATTR, "attr"),
        (FactKind::Limit, abi::EP_EXPR_LIMIT, "limit"),
        (FactKind::Selector, abi::EP_EXPR_SELECTOR, "selector"),
        (FactKind::Device, abi::EP_EXPR_DEVICE, "device"),
        (FactKind::Arg, abi::EP_EXPR_ARG, "arg"),
        (FactKind::Prod, abi::EP_EXPR_PROD, "prod"),
    ];

    /// How it is written: `dtype`, `limit`, ...
    pub fn word(self) -> &'static str {
        Self::TABLE.iter().find(|r| r.0 == self).expect("every kind is in the table").2
    }
}

/// An operation of two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Both.
    And,
    /// Either.
    Or,
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; integers round down, division by zero has no value.
    Div,
    /// Larger.
    Max,
    /// Smaller.
    Min,
    /// The NumPy broadcast of two shapes.
    Broadcast,
    /// Elements from the start of a strided view, given by its shape and strides, to behind its highest one.
    Extent,
}

impl BinaryOp {
    /// Operation, wire code, text, binding strength (functions: 9).
    const TABLE: [(BinaryOp, u32, &'static str, u8); 16] = [
        (BinaryOp::Or, abi::EP_EXPR_OR, "|", 1),
        (BinaryOp::And, abi::EP_EXPR_AND, "&", 2),
        (BinaryOp::Eq, abi::EP_EXPR_EQ, "==", 3),
        (BinaryOp::Ne, abi::EP_EXPR_NE, "!=", 3),
        (BinaryOp::Lt, abi::EP_EXPR_LT, "<", 3),
        (BinaryOp::Le, abi::EP_EXPR_LE, "<=", 3),
        (BinaryOp::Gt, abi::EP_EXPR_GT, ">", 3),
        (BinaryOp::Ge, abi::EP_EXPR_GE, ">=", 3),
        (BinaryOp::Add, abi::EP_EXPR_ADD, "+", 4),
        (BinaryOp::Sub, abi::EP_EXPR_SUB, "-", 4),
        (BinaryOp::Mul, abi::EP_EXPR_MUL, "*", 5),
        (BinaryOp::Div, abi::EP_EXPR_DIV, "/", 5),
        (BinaryOp::Max, abi::EP_EXPR_MAX, "max", 9),
        (BinaryOp::Min, abi::EP_EXPR_MIN, "min", 9),
        (BinaryOp::Broadcast, abi::EP_EXPR_BROADCAST, "broadcast", 9),
        (BinaryOp::Extent, abi::EP_EXPR_EXTENT, "extent", 9),
    ];

    fn row(self) -> &'static (BinaryOp, u32, &'static str, u8) {
        Self::TABLE.iter().find(|r| r.0 == self).expect("every operation is in the table")
    }

    fn is_comparison(self) -> bool {
        self.row().3 == 3
    }
}

/// A constant.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// A number or truth value.
    Scalar(Scalar),
    /// Text: the name of a dtype or of a selector's value.
    Text(String),
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// A constant.
    Literal(Literal),
    /// A fact, by kind and name.
    Fact(FactKind, String),
    /// Two operands.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// Negation.
    Not(Box<Expr>),
    /// Membership.
    In(Box<Expr>, Vec<Literal>),
}

/// The dtype of a role: `dtype("src")`.
pub fn dtype(role: &str) -> Expr {
    Expr::Fact(FactKind::DType, role.to_owned())
}

/// An attribute of the request.
pub fn attr(name: &str) -> Expr {
    Expr::Fact(FactKind::Attr, name.to_owned())
}

/// A limit of the request: the largest value that a launch will have; unbounded unless the request says.
pub fn limit(name: &str) -> Expr {
    Expr::Fact(FactKind::Limit, name.to_owned())
}

/// The value of a selector, by its name.
pub fn selector(name: &str) -> Expr {
    Expr::Fact(FactKind::Selector, name.to_owned())
}

/// An attribute that the device declares.
pub fn device(name: &str) -> Expr {
    Expr::Fact(FactKind::Device, name.to_owned())
}

/// A launch argument (in sizes and costs).
pub fn arg(name: &str) -> Expr {
    Expr::Fact(FactKind::Arg, name.to_owned())
}

macro_rules! comparisons {
    ($($name:ident $op:ident $doc:literal;)*) => {
        $(
            #[doc = $doc]
            #[must_use]
            pub fn $name(self, other: impl Into<Expr>) -> Expr {
                Expr::Binary(BinaryOp::$op, Box::new(self), Box::new(other.into()))
            }
        )*
    };
}

#[allow(clippy::should_implement_trait, reason = "the comparison traits cannot return an expression")]
impl Expr {
    comparisons! {
        eq Eq "`self == other`";
        ne Ne "`self != other`";
        lt Lt "`self < other`";
        le Le "`self <= other`";
        gt Gt "`self > other`";
        ge Ge "`self >= other`";
    }

    /// `self in [...]`
    #[must_use]
    pub fn is_in<L: Into<Literal>>(self, values: impl IntoIterator<Item = L>) -> Expr {
        Expr::In(Box::new(self), values.into_iter().map(Into::into).collect())
    }

    /// Whether a fact of this name is in it.
    pub fn mentions(&self, name: &str) -> bool {
        let mut found = false;
        self.facts(&mut |_, fact| found |= fact == name);
        found
    }

    /// Calls `f` on each fact.
    pub fn facts(&self, f: &mut dyn FnMut(FactKind, &str)) {
        match self {
            Expr::Literal(_) => {}
            Expr::Fact(kind, name) => f(*kind, name),
            Expr::Not(e) | Expr::In(e, _) => e.facts(f),
            Expr::Binary(_, a, b) => {
                a.facts(f);
                b.facts(f);
            }
        }
    }
}

impl BitAnd for Expr {
    type Output = Expr;
    fn bitand(self, other: Expr) -> Expr {
        Expr::Binary(BinaryOp::And, Box::new(self), Box::new(other))
    }
}

impl BitOr for Expr {
    type Output = Expr;
    fn bitor(self, other: Expr) -> Expr {
        Expr::Binary(BinaryOp::Or, Box::new(self), Box::new(other))
    }
}

impl Not for Expr {
    type Output = Expr;
    fn not(self) -> Expr {
        Expr::Not(Box::new(self))
    }
}

impl From<DType> for Literal {
    fn from(d: DType) -> Literal {
        Literal::Text(d.to_string())
    }
}

impl From<&str> for Literal {
    fn from(s: &str) -> Literal {
        Literal::Text(s.to_owned())
    }
}

macro_rules! literals {
    ($($t:ty),*) => { $(
        impl From<$t> for Literal { fn from(x: $t) -> Literal { Literal::Scalar(x.into()) } }
        impl From<$t> for Expr { fn from(x: $t) -> Expr { Expr::Literal(x.into()) } }
    )* };
}
literals!(bool, i32, i64, u32, u64, f32, f64);

impl From<DType> for Expr {
    fn from(d: DType) -> Expr {
        Expr::Literal(d.into())
    }
}

impl From<&str> for Expr {
    fn from(s: &str) -> Expr {
        Expr::Literal(s.into())
    }
}
