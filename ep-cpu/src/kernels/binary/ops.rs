//! The binary operations that are not gradients of unary ones.

use super::Op;
use crate::kernels::elem::{Bool, Complex, Storage};
use crate::kernels::engine::Cost;
use crate::kernels::formula::{Formula, Width, often, width};
use crate::kernels::math::Math;
use crate::kernels::num::{Int, Number};
use crate::kernels::simd::{Mask as _, Vector};
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
    Pow: Int Special = |a, b, _| a.pow(b);
    Fmod: Int Elementary = |a, b, _| a.fmod(b);
    FloorDiv: Int Elementary = |a, b, _| a.floor_div(b);
    TruncDiv: Number Elementary = |a, b, _| a.trunc_div(b);
    FloorMod: Int Elementary = |a, b, _| a.floor_mod(b);

    BitwiseAnd: Int Cheap = |a, b, _| a.and(b);
    BitwiseOr: Int Cheap = |a, b, _| a.or(b);
    BitwiseXor: Int Cheap = |a, b, _| a.xor(b);
}

/// Rows of: name, formula over lanes; `M` is the [`Math`] of the dtype, or with `double`, of f64 even where the dtype is
/// narrower. With `often`, f16 and bf16 have code of their own.
macro_rules! formulas {
    ($($name:ident$(: $width:ident)? = |$a:ident, $b:ident, $p:pat_param| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl Formula<2> for $name {
            const WIDTH: Width = width!($($width)?);
            const OFTEN: bool = often!($($width)?);
            const MANY: bool = false;

            #[inline(always)]
            fn apply<M: Math>([$a, $b]: [M::V; 2], $p: [M::V; 2]) -> M::V {
                $body
            }
        }
    )*};
}

formulas! {
    DivHalves: often = |a, b, _| a / b;
    PowFloat = |a, b, _| M::pow(a, b);
    FmodFloat: double = |a, b, _| division::<M>(a, b).remainder;
    FloorDivFloat: double = |a, b, _| {
        let Division { quotient, remainder } = division::<M>(a, b);
        let zero = M::V::splat(0.0);
        let below = M::V::select(opposed(remainder, b), quotient - 1.0, quotient);
        let whole = M::V::select(below.equals(zero), zero.copysign(a / b), below);
        M::V::select(b.equals(zero), a / b, whole)
    };
    FloorModFloat: double = |a, b, _| {
        let remainder = division::<M>(a, b).remainder;
        let moved = M::V::select(opposed(remainder, b), remainder + b, remainder);
        M::V::select(remainder.equals(M::V::splat(0.0)), remainder.copysign(b), moved)
    };
    ScalarBasePowerGrad: double = |x, dy, [base, _]| M::pow(base, x) * M::ln(base) * dy;
    ScalarExpPowerGrad: double = |x, dy, [exponent, _]| exponent * M::pow(x, exponent - 1.0) * dy;
    Zeta: double = |x, q, _| x.zip(q, special::zeta);
}

/// A quotient rounded toward zero, and what is left, with the sign of the dividend.
struct Division<V> {
    quotient: V,
    remainder: V,
}

/// Whether neither is zero and their signs differ.
#[inline(always)]
fn opposed<V: Vector>(remainder: V, divisor: V) -> V::Mask {
    let zero = V::splat(0.0);
    (remainder.lt(zero) & zero.lt(divisor)) | (zero.lt(remainder) & divisor.lt(zero))
}

#[inline(always)]
fn division<M: Math>(a: M::V, b: M::V) -> Division<M::V> {
    let zero = M::V::splat(0.0);
    let ratio = a / b;
    let size = ratio.abs();
    let down = size.floor();
    // A fused multiplication makes the remainder exact, if it has the right quotient or one too large, which
    // rounding may have made of a ratio just below an integer.
    let left = down.neg_mul_add(b.abs(), a.abs());
    let over = left.lt(zero);
    let quotient = M::V::select(over, down - 1.0, down).copysign(ratio);
    let remainder = M::V::select(over, left + b.abs(), left).copysign(a);
    let exact = size.lt(M::V::splat(if M::V::FUSED { 2f64.powi(52) } else { 0.0 }))
        & b.abs().lt(M::V::splat(f64::INFINITY));
    if !(!exact).any() {
        return Division { quotient, remainder };
    }
    let slow = a.zip(b, |a, b| a % b);
    // The quotient is taken once the remainder is gone, so that one just below an integer does not become it.
    let slow_quotient = a.zip(b, |a, b| ((a - a % b) / b).round_ties_even());
    Division {
        quotient: M::V::select(exact, quotient, slow_quotient),
        remainder: M::V::select(exact, remainder, slow),
    }
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
    ComplexDiv = |a, b| a.div(b);
}

pub(super) struct ComplexMul;

impl<S: Storage<Value = C>> Op<S, S> for ComplexMul {
    const COST: Cost = Cost::Cheap;

    #[inline(always)]
    fn apply(a: C, b: C, _: [f64; 2]) -> C {
        a.mul(b)
    }

    #[inline(always)]
    fn is_lost(result: &S) -> bool {
        result.load().is_lost()
    }

    fn repair(a: C, b: C, _: S) -> S {
        S::store(a.repaired_product(b))
    }
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
