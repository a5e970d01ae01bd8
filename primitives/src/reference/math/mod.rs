//! Functions of real numbers to about 110 bits, by their series, for the references.
//!
//! They share nothing with the kernels: integer arithmetic of 128 bits ([`Wide`]), Taylor series, continued
//! fractions and asymptotic series with Bernoulli numbers. Formulas are those of the NIST Digital Library of
//! Mathematical Functions (DLMF), which the functions name.

mod elementary;
mod error_function;
mod gamma;
mod wide;

pub use elementary::{
    LN_2, LN_10, PI, acos, acosh, asin, asinh, atan, atanh, cosh, exp, exp_m1, ln, ln_1p, pow, sin_cos, sinh,
    tanh,
};
pub use error_function::{erf, erfc};
pub use gamma::{digamma, lgamma, trigamma, zeta};
pub use wide::{Format, Wide};

use super::number::Number;

/// A complex number from its parts, each rounded to a format.
pub(super) fn format_of_parts([re, im]: [Wide; 2], format: Format) -> Number {
    Number::Complex(re.to_format(format), im.to_format(format))
}
