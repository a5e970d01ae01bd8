//! The gamma family in f64 arithmetic, by recurrence and asymptotic series.

use super::{Double, Math, polynomial};
use crate::kernels::simd;
use std::f64::consts::PI;

/// From here up the series below have converged to the last bits.
const ASYMPTOTIC: f64 = STEPS as f64;
const STEPS: u32 = 12;

/// Bernoulli numbers B(2k), k = 1..=8.
const BERNOULLI: [f64; 8] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
];

/// `B(2k) / (2k)` and `B(2k) / (2k (2k - 1))`.
const fn divided(by_two_factors: bool) -> [f64; 8] {
    let mut c = BERNOULLI;
    let mut k = 0;
    while k < c.len() {
        let n = 2.0 * (k + 1) as f64;
        c[k] /= if by_two_factors { n * (n - 1.0) } else { n };
        k += 1;
    }
    c
}
const OVER_N: [f64; 8] = divided(false);
const OVER_N_N_LESS_1: [f64; 8] = divided(true);

/// `(1 - pi r cot(pi r)) / r^2` in r^2, for |r| up to 1/2.
const COT: [f64; 14] = [
    3.2898681336964524,
    2.1646464674228825,
    2.0346861238117984,
    2.008154728387878,
    2.0019883034248793,
    2.000518936603734,
    1.9995769729712818,
    2.0075347895586977,
    1.9286243259066214,
    2.4730972633528725,
    -0.16332717285215234,
    8.601922980317118,
    -10.452969524418483,
    13.937292745877583,
];

/// `x` less its nearest integer, for the finite.
#[inline(always)]
fn fraction<V: simd::Double>(x: V) -> V {
    // From 2^51 on the sum with 1/2 may be rounded to the next integer, and the difference to the last is exact.
    let small = x.abs().lt(V::splat(2f64.powi(51)));
    x - V::select(small, x + 0.5, x).floor()
}

/// Whether `x` is below the asymptotic range, and `x` moved there if it is.
#[inline(always)]
fn moved_up<V: simd::Double>(x: V) -> (V::Mask, V) {
    let low = x.lt(V::splat(ASYMPTOTIC));
    (low, V::select(low, x + ASYMPTOTIC, x))
}

/// See [`Math::lgamma`]; right to 1e-14 or 1e-14 relative.
#[inline(always)]
pub(super) fn lgamma<V: simd::Double>(x: V) -> V {
    const HALF_LN_2_PI: f64 = 0.918_938_533_204_672_7;
    let half = V::splat(0.5);
    let mirrored = x.lt(half);
    let z = V::select(mirrored, V::splat(1.0) - x, x);
    let (low, y) = moved_up(z);
    let mut product = z;
    for k in 1..STEPS {
        product = product * (z + f64::from(k));
    }
    let inverse = V::splat(1.0) / y;
    let series = polynomial(inverse * inverse, &OVER_N_N_LESS_1).mul_add(inverse, V::splat(HALF_LN_2_PI));
    let ln = Double::ln(y);
    let far = (y - 0.5).mul_add(ln, series - y);
    let up = far - V::select(low, Double::ln(product), V::splat(0.0));
    // gamma(x) gamma(1 - x) = pi / sin(pi x)
    let sine = Double::sin(fraction(x) * PI).abs();
    let result = V::select(mirrored, Double::ln(V::splat(PI) / sine) - up, up);
    let root = x.equals(V::splat(1.0)) | x.equals(V::splat(2.0));
    let result = V::select(root, V::splat(0.0), result);
    V::select(x.abs().equals(V::splat(f64::INFINITY)), V::splat(f64::INFINITY), result)
}

/// [`Math::lgamma`] of one number.
pub(super) fn lgamma_double(x: f64) -> f64 {
    /// Between the poles from here up, ln(pi / sin(pi x)) may nearly cancel lgamma(1 - x).
    const LEAST: f64 = -24.0;
    if !(LEAST..0.5).contains(&x) {
        return libm::lgamma(x);
    }
    // By recurrence: the factor next to a pole makes the product moderate, and there is but one logarithm.
    let (mut y, mut product) = (x, 1.0);
    while y < 0.5 {
        product *= y;
        y += 1.0;
    }
    libm::lgamma(y) - libm::log(product.abs())
}

/// See [`Math::digamma`].
#[inline(always)]
pub(super) fn digamma<V: simd::Double>(x: V) -> V {
    let (zero, one) = (V::splat(0.0), V::splat(1.0));
    let mirrored = x.lt(zero);
    let z = V::select(mirrored, one - x, x);
    let (low, y) = moved_up(z);
    // The sum of the reciprocals from the second on, as one fraction. The first may be larger than all of them.
    let (mut top, mut bottom) = (one, z + 1.0);
    for k in 2..STEPS {
        let t = z + f64::from(k);
        (top, bottom) = (top.mul_add(t, bottom), bottom * t);
    }
    let inverse = one / y;
    let square = inverse * inverse;
    let (high, low_part) = Double::ln_parts(y);
    let rest = low_part - polynomial(square, &OVER_N).mul_add(square, inverse * 0.5);
    let rest = (rest - V::select(low, top / bottom, zero)) - V::select(low, one / z, zero);
    let up = V::select(y.lt(V::splat(f64::INFINITY)), high + rest, y);
    // Less pi cot(pi x), which may nearly cancel the logarithm: its pole in two parts, less what it is below that.
    let r = fraction(x);
    let pole = one / r;
    let product = pole * r;
    let lost = ((one - product) - pole.product_error(r, product)) * pole;
    let lost = V::select(r.abs().lt(V::splat(1e-200)), zero, lost);
    let below = r * polynomial(r * r, &COT);
    let down = (high - pole) + ((rest + below) - lost);
    let down = V::select(r.equals(zero), V::splat(f64::NAN), down);
    V::select(mirrored, down, up)
}

/// See [`Math::trigamma`].
#[inline(always)]
pub(super) fn trigamma<V: simd::Double>(x: V) -> V {
    let (zero, one) = (V::splat(0.0), V::splat(1.0));
    let mirrored = x.lt(V::splat(0.5));
    let z = V::select(mirrored, one - x, x);
    let (low, y) = moved_up(z);
    let (mut top, mut bottom) = (one, z * z);
    for k in 1..STEPS {
        let t = z + f64::from(k);
        let square = t * t;
        (top, bottom) = (top.mul_add(square, bottom), bottom * square);
    }
    let inverse = one / y;
    let square = inverse * inverse;
    let series = polynomial(square, &BERNOULLI).mul_add(square * inverse, square * 0.5);
    let up = inverse + series + V::select(low, top / bottom, zero);
    let cosecant = V::splat(PI) / Double::sin(fraction(x) * PI);
    V::select(mirrored, cosecant * cosecant - up, up)
}
