//! The binary operations that are not gradients of unary ones.

use super::Op;
use crate::kernels::elem::{Bool, Complex, Storage};
use crate::kernels::engine::Cost;
use crate::kernels::formula::Formula;
use crate::kernels::math::Math;
use crate::kernels::num::{Int, Number};
use crate::kernels::simd::Vector;
use crate::kernels::special;

type C = Complex<f64>;

/// Rows of: name, bound on the value type, cost, formula.
macro_rules! arithmetic {
    ($($name:ident: $bound:ident $cost:ident = |$a:ident, $b:ident, $p:pat_param| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl<S: Storage<Value: $bound>> Op<S, S> for $name {
            const COST: Cost = Cost::$cost;

            #[inline(always)]
            fn apply($a: S::Value, $b: S::Value, $p: [f64; 2]) -> S::Value {
                $body
            }
        }
    )*};
}

arithmetic! {
    Add: Number Cheap = |a, b, _| a.add(b);
    Sub: Number Cheap = |a, b, _| a.sub(b);
    Mul: Number Cheap = |a, b, _| a.mul(b);
    Div: Number Cheap = |a, b, _| a.div(b);
    Max: Number Cheap = |a, b, _| a.max(b);
    Min: Number Cheap = |a, b, _| a.min(b);
    Pow: Number Special = |a, b, _| a.pow(b);
    Fmod: Number Special = |a, b, _| a.fmod(b);
    FloorDiv: Number Special = |a, b, _| a.floor_div(b);
    TruncDiv: Number Cheap = |a, b, _| a.trunc_div(b);
    FloorMod: Number Special = |a, b, _| a.floor_mod(b);

    BitwiseAnd: Int Cheap = |a, b, _| a.and(b);
    BitwiseOr: Int Cheap = |a, b, _| a.or(b);
    BitwiseXor: Int Cheap = |a, b, _| a.xor(b);
}

/// Rows of: name, formula over f64 lanes.
macro_rules! formulas {
    ($($name:ident = |$a:ident, $b:ident, $p:pat_param| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl Formula<2> for $name {
            const WIDE: bool = true;

            #[inline(always)]
            fn apply<M: Math>([$a, $b]: [M::V; 2], $p: [M::V; 2]) -> M::V {
                $body
            }
        }
    )*};
}

formulas! {
    PowFloat = |a, b, _| M::pow(a, b);
    ScalarBasePowerGrad = |x, dy, [base, _]| M::pow(base, x) * M::ln(base) * dy;
    ScalarExpPowerGrad = |x, dy, [exponent, _]| exponent * M::pow(x, exponent - 1.0) * dy;
    Zeta = |x, q, _| x.zip(q, special::zeta);
}

/// Rows of: name, bound on the value type, formula of a truth value.
macro_rules! tests {
    ($($name:ident: $bound:path = |$a:ident, $b:ident, $p:pat_param| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl<S: Storage<Value: $bound>> Op<S, Bool> for $name {
            const COST: Cost = Cost::Cheap;

            #[inline(always)]
            fn apply($a: S::Value, $b: S::Value, $p: [f64; 2]) -> u8 {
                u8::from($body)
            }
        }
    )*};
}

tests! {
    Equal: PartialEq = |a, b, _| a == b;
    NotEqual: PartialEq = |a, b, _| a != b;
    LessThan: PartialOrd = |a, b, _| a < b;
    LessEqual: PartialOrd = |a, b, _| a <= b;
    GreaterThan: PartialOrd = |a, b, _| a > b;
    GreaterEqual: PartialOrd = |a, b, _| a >= b;
    IsClose: Number = |a, b, p| is_close(a, b, p);
    IsCloseEqualNan: Number = |a, b, p| is_close(a, b, p) | (a.is_nan() & b.is_nan());
    LogicalAnd: Number = |a, b, _| a.truth() & b.truth();
    LogicalOr: Number = |a, b, _| a.truth() | b.truth();
    LogicalXor: Number = |a, b, _| a.truth() ^ b.truth();
}

#[inline(always)]
fn is_close<T: Number>(a: T, b: T, [atol, rtol]: [f64; 2]) -> bool {
    let distance = a.distance(b);
    (a == b) | ((distance <= atol + (rtol * b.to_f64()).abs()) & (distance < f64::INFINITY))
}

macro_rules! complex {
    ($($name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl<S: Storage<Value = C>> Op<S, S> for $name {
            const COST: Cost = Cost::Cheap;

            #[inline(always)]
            fn apply($a: C, $b: C, _: [f64; 2]) -> C {
                $body
            }
        }
    )*};
}

complex! {
    ComplexAdd = |a, b| a.add(b);
    ComplexSub = |a, b| a.sub(b);
    ComplexMul = |a, b| a.mul(b);
    ComplexDiv = |a, b| a.div(b);
}

/// `dy conj(d sqrt(x) / dx)`.
pub(super) struct ComplexSqrtBackward;

impl<S: Storage<Value = C>> Op<S, S> for ComplexSqrtBackward {
    const COST: Cost = Cost::Special;

    #[inline(always)]
    fn apply(dy: C, x: C, _: [f64; 2]) -> C {
        let root = x.sqrt().conj();
        dy.div(root.add(root))
    }
}
