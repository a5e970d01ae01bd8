//! The gamma function's logarithm and its derivatives, and the Hurwitz zeta function.

use super::elementary::{PI, exp, ln, sin_cos_pi};
use super::wide::Wide;

/// Numerator and denominator of the Bernoulli numbers `B(2), B(4), ...` (DLMF 24.2).
const BERNOULLI: [(i128, i128); 18] = [
    (1, 6),
    (-1, 30),
    (1, 42),
    (-1, 30),
    (5, 66),
    (-691, 2730),
    (7, 6),
    (-3617, 510),
    (43867, 798),
    (-174_611, 330),
    (854_513, 138),
    (-236_364_091, 2730),
    (8_553_103, 6),
    (-23_749_461_029, 870),
    (8_615_841_276_005, 14322),
    (-7_709_321_041_217, 510),
    (2_577_687_858_367, 6),
    (-26_315_271_553_053_477_373, 1_919_190),
];

/// From here up the asymptotic series below are good to about 2^-125.
const ASYMPTOTIC: f64 = 32.0;

/// The sum of `B(2k) / weight(2k) * power` over `k`, where `power` starts at `first` and is divided by
/// `x^2` each time.
fn bernoulli_sum(x: Wide, first: Wide, weight: impl Fn(i128) -> i128) -> Wide {
    let square = Wide::ONE / x.square();
    let (mut power, mut sum) = (first, Wide::ZERO);
    for (k, (numerator, denominator)) in (1..).zip(BERNOULLI) {
        sum = sum + Wide::from(numerator) * power / Wide::from(denominator * weight(2 * k));
        power = power * square;
    }
    sum
}

/// Whether x is a pole of gamma: zero or a negative integer.
fn is_pole(x: f64) -> bool {
    x <= 0.0 && x.is_finite() && x.fract() == 0.0
}

/// `ln |gamma(x)|`; infinity at the poles and at both infinities.
pub fn lgamma(x: f64) -> Wide {
    if x.is_nan() {
        return Wide::NAN;
    }
    if is_pole(x) || x.is_infinite() {
        return Wide::INFINITY;
    }
    if x == 1.0 || x == 2.0 {
        return Wide::ZERO;
    }
    if x < 0.0 {
        // Reflection, DLMF 5.5.3.
        let (sin, _) = sin_cos_pi(x);
        return ln(PI / sin.abs()) - lgamma_above_zero(Wide::ONE - Wide::from(x));
    }
    lgamma_above_zero(Wide::from(x))
}

/// Stirling's series, DLMF 5.11.1, moved up by `gamma(x + 1) = x gamma(x)`.
fn lgamma_above_zero(x: Wide) -> Wide {
    let (mut x, mut product) = (x, Wide::ONE);
    while x < Wide::from(ASYMPTOTIC) {
        product = product * x;
        x = x + Wide::ONE;
    }
    let half_ln_2_pi = ln(PI.times_power_of_2(1)).times_power_of_2(-1);
    let series = bernoulli_sum(x, Wide::ONE / x, |n| n * (n - 1));
    (x - Wide::from(0.5)) * ln(x) - x + half_ln_2_pi + series - ln(product)
}

/// The logarithmic derivative of gamma: -infinity at +0, infinity at -0, NaN at the negative integers and
/// -infinity.
pub fn digamma(x: f64) -> Wide {
    if x == 0.0 {
        return -Wide::INFINITY.with_sign_of(Wide::from(x));
    }
    if x.is_nan() || is_pole(x) || x == f64::NEG_INFINITY {
        return Wide::NAN;
    }
    if x.is_infinite() {
        return Wide::INFINITY;
    }
    if x < 0.0 {
        // Reflection, DLMF 5.5.4.
        let (sin, cos) = sin_cos_pi(x);
        return digamma_above_zero(Wide::ONE - Wide::from(x)) - PI * cos / sin;
    }
    digamma_above_zero(Wide::from(x))
}

/// DLMF 5.11.2, moved up by 5.5.2.
fn digamma_above_zero(x: Wide) -> Wide {
    let (mut x, mut below) = (x, Wide::ZERO);
    while x < Wide::from(ASYMPTOTIC) {
        below = below + Wide::ONE / x;
        x = x + Wide::ONE;
    }
    let series = bernoulli_sum(x, Wide::ONE / x.square(), |n| n);
    ln(x) - Wide::from(0.5) / x - series - below
}

/// The derivative of [`digamma`]: infinity at the poles, NaN at -infinity.
pub fn trigamma(x: f64) -> Wide {
    if x.is_nan() || x == f64::NEG_INFINITY {
        return Wide::NAN;
    }
    if is_pole(x) {
        return Wide::INFINITY;
    }
    if x.is_infinite() {
        return Wide::ZERO;
    }
    if x < 0.0 {
        // The derivative of the reflection of digamma.
        let (sin, _) = sin_cos_pi(x);
        return (PI / sin).square() - trigamma_above_zero(Wide::ONE - Wide::from(x));
    }
    trigamma_above_zero(Wide::from(x))
}

/// The derivative of DLMF 5.11.2, moved up by 5.15.5.
fn trigamma_above_zero(x: Wide) -> Wide {
    let (mut x, mut below) = (x, Wide::ZERO);
    while x < Wide::from(ASYMPTOTIC) {
        below = below + Wide::ONE / x.square();
        x = x + Wide::ONE;
    }
    let square = Wide::ONE / x.square();
    let series = bernoulli_sum(x, square / x, |_| 1);
    below + Wide::ONE / x + square.times_power_of_2(-1) + series
}

/// Hurwitz zeta, the sum of `(q + k)^-s` over k = 0, 1, ... for s > 1.
///
/// Infinity at s = 1 and at q = 0, -1, -2, ...; NaN for s < 1, and for negative q where s is no integer. Infinite
/// arguments have the limits of the first term `q^-s`: for s 0 where q is above 1, 1 at 1, infinity from 0 to 1 and
/// NaN below; for q 0, and NaN at -infinity.
pub fn zeta(s: f64, q: f64) -> Wide {
    if s.is_nan() || q.is_nan() || s < 1.0 || q == f64::NEG_INFINITY {
        return Wide::NAN;
    }
    if s == 1.0 {
        return Wide::INFINITY;
    }
    if s.is_infinite() {
        return match q {
            _ if q < 0.0 => Wide::NAN,
            _ if q < 1.0 => Wide::INFINITY,
            1.0 => Wide::ONE,
            _ => Wide::ZERO,
        };
    }
    if q.is_infinite() {
        return Wide::ZERO;
    }
    if is_pole(q) {
        return Wide::INFINITY;
    }
    if q > 0.0 {
        return zeta_above_zero(s, Wide::from(q));
    }
    if s.fract() != 0.0 {
        return Wide::NAN;
    }
    // The bases below zero are 1 - f, 2 - f, ... with a sign, those above it f, f + 1, ...
    // Each is a difference of its own: next to zero one of them has more digits than its distance from 1.
    let floor = Wide::from(q.floor());
    let above = Wide::from(q) - floor;
    let below = Wide::from(q.ceil()) - Wide::from(q);
    if s % 2.0 == 0.0 {
        return zeta_above_zero(s, above) + (zeta_above_zero(s, below) - zeta_above_zero(s, below - floor));
    }
    // With opposite signs they nearly cancel, so they are added in pairs while that is possible.
    let pairs = (-q.floor()).min(1024.0) as i128;
    let power = |base: Wide| exp(Wide::from(-s) * ln(base));
    // Beyond the range of every dtype `exp` saturates; the larger of the first two powers decides there.
    if above != below && power(above).exponent() > 4096 && power(below).exponent() > 4096 {
        return if above < below { Wide::INFINITY } else { -Wide::INFINITY };
    }
    let paired =
        (0..pairs).map(Wide::from).fold(Wide::ZERO, |sum, k| sum + (power(above + k) - power(below + k)));
    let pairs = Wide::from(pairs);
    let rest = zeta_above_zero(s, below + pairs) - zeta_above_zero(s, below - floor);
    paired + (zeta_above_zero(s, above + pairs) - rest)
}

/// Euler-Maclaurin summation, DLMF 25.11.28 with the terms before it: single terms as far as the corrections
/// need to decrease, then the integral, half a term and the corrections.
fn zeta_above_zero(s: f64, q: Wide) -> Wide {
    let negligible = |term: Wide, sum: Wide| term.is_zero() || term.exponent() < sum.exponent() - 130;
    let power = |base: Wide| if base == Wide::ONE { base } else { exp(Wide::from(-s) * ln(base)) };
    let end = Wide::from(ASYMPTOTIC) + Wide::from(s);
    let (mut a, mut sum) = (q, Wide::ZERO);
    while a < end {
        let term = power(a);
        sum = sum + term;
        if negligible(term, sum) {
            return sum;
        }
        a = a + Wide::ONE;
    }
    let term = power(a);
    let s = Wide::from(s);
    sum = sum + term * a / (s - Wide::ONE) + term.times_power_of_2(-1);
    // s (s + 1) ... (s + 2k - 2) / (2k)! a^(-s - 2k + 1)
    let mut factor = s * term / a.times_power_of_2(1);
    for (k, (numerator, denominator)) in (1i128..).zip(BERNOULLI) {
        sum = sum + factor * Wide::from(numerator) / Wide::from(denominator);
        let n = Wide::from(2 * k);
        let rise = (s + n - Wide::ONE) * (s + n);
        factor = factor * rise / (a.square() * Wide::from((2 * k + 1) * (2 * k + 2)));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::zeta;

    #[test]
    fn zeta_of_two_powers_without_bound_has_the_sign_of_the_larger() {
        // The bases next to zero are 0.75 and -0.25, or 0.25 and -0.75.
        for s in [1e7 + 1.0, 1e15 + 1.0] {
            assert_eq!(
                [zeta(s, -5.25).to_f64(), zeta(s, -5.75).to_f64()],
                [f64::NEG_INFINITY, f64::INFINITY],
                "{s}"
            );
            assert_eq!(zeta(s + 1.0, -5.25).to_f64(), f64::INFINITY, "{s}");
        }
        // They cancel, and what is left vanishes.
        assert_eq!(zeta(1e7 + 1.0, -5.5).to_f64(), 0.0);
    }
}
