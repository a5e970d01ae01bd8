//! Functions of complex numbers, given and returned as real and imaginary part.

use crate::reference::Table;
use crate::reference::math::{Wide, exp, sin_cos};

/// Real and imaginary part.
pub(in crate::reference) type Parts = [Wide; 2];

pub(super) const FUNCTIONS: Table<fn(Parts) -> Parts, 6> = [
    ("conj", |[re, im]| [re, -im]),
    ("negative", |[re, im]| [-re, -im]),
    ("square", |z| multiply(z, z)),
    ("reciprocal", |z| divide([Wide::ONE, Wide::ZERO], z)),
    ("sqrt", sqrt),
    ("exp", |[re, im]| {
        let scale = exp(re);
        let (sin, cos) = sin_cos(im.to_f64());
        // A real number stays one, infinite or not.
        if im.is_zero() { [scale, im] } else { [scale * cos, scale * sin] }
    }),
];

pub(in crate::reference) fn multiply([a, b]: Parts, [c, d]: Parts) -> Parts {
    [a * c - b * d, a * d + b * c]
}

/// By zero: each part divided by zero.
pub(in crate::reference) fn divide([a, b]: Parts, [c, d]: Parts) -> Parts {
    if c.is_zero() && d.is_zero() {
        return [a / c, b / c];
    }
    let norm = c.square() + d.square();
    [(a * c + b * d) / norm, (b * c - a * d) / norm]
}

/// The root with a real part that is not negative and an imaginary part of the argument's sign; infinities as
/// C's `csqrt` has them (C23 G.6.4.2).
pub(in crate::reference) fn sqrt([re, im]: Parts) -> Parts {
    if re.is_zero() && im.is_zero() {
        return [Wide::ZERO, im];
    }
    if im.is_infinite() {
        return [Wide::INFINITY, im];
    }
    if re.is_infinite() {
        let zero = Wide::ZERO * im;
        return if re.is_negative() { [zero.abs(), re.with_sign_of(im)] } else { [re, zero] };
    }
    let length = (re.square() + im.square()).sqrt();
    let long = ((re.abs() + length) / Wide::from(2.0)).sqrt();
    let short = im.abs() / long / Wide::from(2.0);
    if re.is_negative() { [short, long.with_sign_of(im)] } else { [long, short.with_sign_of(im)] }
}
