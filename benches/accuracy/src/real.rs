//! What the judge's formulas are written over: `f64` for narrower dtypes, [`Dd`] for `f64`.

use crate::dd::Dd;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A number with the functions of the formulas, right to far more digits than the dtype judged has.
pub trait Real:
    Copy
    + PartialOrd
    + From<f64>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The value as a sum of two.
    fn parts(self) -> (f64, f64);
    /// Magnitude.
    fn abs(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// `e^x`.
    fn exp(self) -> Self;
    /// `2^x`.
    fn exp2(self) -> Self;
    /// `e^x - 1`.
    fn exp_m1(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// To base 2.
    fn log2(self) -> Self;
    /// To base 10.
    fn log10(self) -> Self;
    /// `ln(1 + x)`.
    fn ln_1p(self) -> Self;
    /// Sine and cosine.
    fn sin_cos(self) -> (Self, Self);
    /// Hyperbolic sine.
    fn sinh(self) -> Self;
    /// Hyperbolic cosine.
    fn cosh(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Inverse sine.
    fn asin(self) -> Self;
    /// Inverse cosine.
    fn acos(self) -> Self;
    /// Inverse tangent.
    fn atan(self) -> Self;
    /// Inverse hyperbolic sine.
    fn asinh(self) -> Self;
    /// Inverse hyperbolic cosine.
    fn acosh(self) -> Self;
    /// Inverse hyperbolic tangent.
    fn atanh(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// One less the error function.
    fn erfc(self) -> Self;
    /// `ln |gamma|`.
    fn lgamma(self) -> Self;
    /// Logarithmic derivative of gamma.
    fn digamma(self) -> Self;
    /// Derivative of that.
    fn trigamma(self) -> Self;
    /// `x^y` for positive `x`.
    fn power(self, y: Self) -> Self;
}

macro_rules! same {
    ($t:ty, $($f:ident)*) => {
        $(fn $f(self) -> Self {
            <$t>::$f(self)
        })*
    };
}

impl Real for Dd {
    fn parts(self) -> (f64, f64) {
        (self.0, self.1)
    }

    same!(Dd, abs sqrt exp exp2 exp_m1 ln log2 log10 ln_1p sinh cosh tanh asin acos atan asinh acosh atanh erf erfc
        lgamma digamma trigamma);

    fn sin_cos(self) -> (Self, Self) {
        Dd::sin_cos(self)
    }

    fn power(self, y: Self) -> Self {
        self.powd(y)
    }
}

impl Real for f64 {
    fn parts(self) -> (f64, f64) {
        (self, 0.0)
    }

    same!(f64, abs sqrt exp exp2 exp_m1 ln log2 log10 ln_1p sinh cosh tanh asin acos atan);

    fn asinh(self) -> f64 {
        if self.abs() > 1e100 {
            (self.abs().ln() + std::f64::consts::LN_2).copysign(self)
        } else {
            libm::asinh(self)
        }
    }

    fn acosh(self) -> f64 {
        if self < 1.0 { f64::NAN } else { libm::acosh(self) }
    }

    fn atanh(self) -> f64 {
        libm::atanh(self)
    }

    fn erf(self) -> f64 {
        libm::erf(self)
    }

    fn erfc(self) -> f64 {
        libm::erfc(self)
    }

    fn sin_cos(self) -> (f64, f64) {
        f64::sin_cos(self)
    }

    // No f64 library has these to all digits near their roots.
    fn lgamma(self) -> f64 {
        Dd::from(self).lgamma().0
    }

    fn digamma(self) -> f64 {
        Dd::from(self).digamma().0
    }

    fn trigamma(self) -> f64 {
        Dd::from(self).trigamma().0
    }

    fn power(self, y: f64) -> f64 {
        self.powf(y)
    }
}
