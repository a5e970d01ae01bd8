//! Functions of two real numbers that are no gradients of unary ones.

use crate::reference::Table;
use crate::reference::math::{Format, Wide, ln, pow, zeta};
use ep_core::DType;

pub(super) type Function = fn(f64, f64, [f64; 2], DType) -> Wide;

fn w(x: f64) -> Wide {
    Wide::from(x)
}

pub(super) const FUNCTIONS: Table<Function, 14> = [
    ("add", |a, b, _, _| w(a) + w(b)),
    ("sub", |a, b, _, _| w(a) - w(b)),
    ("mul", |a, b, _, _| w(a) * w(b)),
    ("div", |a, b, _, _| w(a) / w(b)),
    ("max", |a, b, _, _| if a > b || a.is_nan() { w(a) } else { w(b) }),
    ("min", |a, b, _, _| if a < b || a.is_nan() { w(a) } else { w(b) }),
    ("pow", |a, b, _, _| pow(a, b)),
    // Rust's remainder of floats is exact.
    ("fmod", |a, b, _, _| w(a % b)),
    ("floor_div", |a, b, _, _| floor_div(a, b)),
    ("trunc_div", |a, b, _, dtype| {
        let computed_in = if dtype == DType::F64 { Format::F64 } else { Format::F32 };
        w((w(a) / w(b)).to_format(computed_in).trunc())
    }),
    ("floor_mod", |a, b, _, _| floor_mod(a, b)),
    // d/dx base^x, times dy
    ("scalar_base_power_grad", |x, dy, [base, _], _| pow(base, x) * ln(w(base)) * w(dy)),
    // d/dx x^exponent, times dy
    ("scalar_exp_power_grad", |x, dy, [exponent, _], _| w(exponent) * pow(x, exponent - 1.0) * w(dy)),
    ("zeta", |s, q, _, _| zeta(s, q)),
];

/// The remainder with the divisor's sign, as Python's `%`.
fn floor_mod(a: f64, b: f64) -> Wide {
    let r = a % b;
    if r == 0.0 {
        w(r.copysign(b))
    } else if (r < 0.0) != (b < 0.0) {
        w(r) + w(b)
    } else {
        w(r)
    }
}

/// The quotient rounded down, as Python's `//`, exact before it is rounded to the dtype. The quotient itself
/// for a divisor of 0; NaN for an infinite dividend; a zero has the quotient's sign.
fn floor_div(a: f64, b: f64) -> Wide {
    if b == 0.0 {
        return w(a) / w(b);
    }
    let r = w(a % b);
    let truncated = (w(a) - r) / w(b);
    let above = !r.is_zero() && (r < Wide::ZERO) != (b < 0.0);
    let quotient = if above { truncated - Wide::ONE } else { truncated };
    if quotient.is_zero() { quotient.with_sign_of(w(a) / w(b)) } else { quotient }
}
