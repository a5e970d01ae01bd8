//! The gamma family and the Hurwitz zeta function in f64.

use super::math::polynomial;
use std::f64::consts::PI;

/// From here up the asymptotic series below have converged to f64's last bits.
const ASYMPTOTIC: f64 = 16.0;

/// `ln |gamma(x)|`; infinity at 0 and the negative integers.
pub(crate) fn lgamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// Logarithmic derivative of gamma. -inf at +0, inf at -0, NaN at the negative integers and -inf.
pub(crate) fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        let r = x - x.round();
        if r == 0.0 || x.is_infinite() {
            return f64::NAN;
        }
        return digamma(1.0 - x) - PI / (PI * r).tan();
    }
    // Bernoulli numbers B(2k) / 2k, k = 1..=8.
    const C: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 120.0,
        1.0 / 252.0,
        -1.0 / 240.0,
        1.0 / 132.0,
        -691.0 / 32760.0,
        1.0 / 12.0,
        -3617.0 / 8160.0,
    ];
    let (mut x, mut below) = (x, 0.0);
    while x < ASYMPTOTIC {
        below += 1.0 / x;
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    x.ln() - 0.5 / x - z * polynomial(z, &C) - below
}

/// Derivative of [`digamma`]. inf at 0 and the negative integers, NaN at -inf.
pub(crate) fn trigamma(x: f64) -> f64 {
    if x < 0.5 {
        let r = x - x.round();
        if r == 0.0 && x.is_finite() {
            return f64::INFINITY;
        }
        let s = PI / (PI * r).sin();
        return s * s - trigamma(1.0 - x);
    }
    // Bernoulli numbers B(2k), k = 1..=8.
    const C: [f64; 8] = [
        1.0 / 6.0,
        -1.0 / 30.0,
        1.0 / 42.0,
        -1.0 / 30.0,
        5.0 / 66.0,
        -691.0 / 2730.0,
        7.0 / 6.0,
        -3617.0 / 510.0,
    ];
    let (mut x, mut below) = (x, 0.0);
    while x < ASYMPTOTIC {
        below += 1.0 / (x * x);
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    below + 1.0 / x + 0.5 * z + z / x * polynomial(z, &C)
}

/// Hurwitz zeta: the sum of `(q + k)^-x` over k = 0, 1, ... for x > 1.
///
/// inf at x = 1 and at q = 0, -1, -2, ...; NaN for x < 1, and for negative q where x is not an integer.
pub(crate) fn zeta(x: f64, q: f64) -> f64 {
    if x.is_nan() || q.is_nan() || x < 1.0 {
        return f64::NAN;
    }
    if x == 1.0 {
        return f64::INFINITY;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return f64::INFINITY;
        }
        if x != x.floor() {
            return f64::NAN;
        }
        // The terms below zero are a difference of two sums above it, with the sign of (-1)^x.
        let fraction = q.ceil() - q;
        let below = zeta(x, fraction) - zeta(x, 1.0 - q);
        return zeta(x, 1.0 - fraction) + if x % 2.0 == 0.0 { below } else { -below };
    }
    // Euler-Maclaurin: terms up to past 9, then the integral, half a term and the corrections
    // B(2k) / (2k)! x (x+1) ... (x+2k-2) a^(-x-2k+1).
    const C: [f64; 12] = [
        12.0,
        -720.0,
        30_240.0,
        -1_209_600.0,
        47_900_160.0,
        -1_892_437_580.318_379,
        74_724_249_600.0,
        -2_950_130_727_918.164,
        116_467_828_143_500.67,
        -4_597_978_722_407_473.0,
        181_521_054_019_435_470.0,
        -7_166_165_256_175_667_000.0,
    ];
    let mut sum = 0.0;
    let mut a = q;
    let mut terms = 0;
    while terms < 9 || a <= 9.0 {
        let term = a.powf(-x);
        sum += term;
        a += 1.0;
        terms += 1;
        if term.abs() <= f64::EPSILON / 4.0 * f64::abs(sum) {
            return sum;
        }
    }
    let last = a.powf(-x);
    sum += last * a / (x - 1.0) + 0.5 * last;
    let (mut factor, mut power) = (x, last / a);
    for (k, c) in C.into_iter().enumerate() {
        let term = factor * power / c;
        sum += term;
        if term.abs() <= f64::EPSILON / 4.0 * f64::abs(sum) {
            break;
        }
        let k = 2.0 * k as f64;
        factor *= (x + k + 1.0) * (x + k + 2.0);
        power /= a * a;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const EULER: f64 = 0.577_215_664_901_532_9;
    const CATALAN: f64 = 0.915_965_594_177_219;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 4e-15 * want.abs().max(1.0), "{got:e} is not {want:e}");
    }

    #[test]
    fn digamma_known_values_recurrence_and_poles() {
        let ln2 = std::f64::consts::LN_2;
        close(digamma(1.0), -EULER);
        close(digamma(0.5), -EULER - 2.0 * ln2);
        close(digamma(0.25), -EULER - PI / 2.0 - 3.0 * ln2);
        close(digamma(-0.5), digamma(0.5) + 2.0);
        close(digamma(1e8), 1e8f64.ln() - 0.5e-8);
        for i in 1..400 {
            let x = f64::from(i) * 0.0731 - 11.0;
            let scale = (1.0 / x).abs().max(1.0);
            close(digamma(x + 1.0) / scale, (digamma(x) + 1.0 / x) / scale);
        }
        assert_eq!((digamma(0.0), digamma(-0.0)), (f64::NEG_INFINITY, f64::INFINITY));
        assert!(digamma(-3.0).is_nan() && digamma(f64::NAN).is_nan() && digamma(f64::NEG_INFINITY).is_nan());
        assert_eq!(digamma(f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn trigamma_known_values_recurrence_and_poles() {
        close(trigamma(1.0), PI * PI / 6.0);
        close(trigamma(0.5), PI * PI / 2.0);
        close(trigamma(0.25), PI * PI + 8.0 * CATALAN);
        close(trigamma(-0.5), PI * PI / 2.0 + 4.0);
        for i in 1..400 {
            let x = f64::from(i) * 0.0731 - 11.0;
            let scale = (x * x).recip().max(1.0);
            close(trigamma(x) / scale, (trigamma(x + 1.0) + 1.0 / (x * x)) / scale);
        }
        assert_eq!((trigamma(0.0), trigamma(-2.0)), (f64::INFINITY, f64::INFINITY));
        assert_eq!(trigamma(f64::INFINITY), 0.0);
        assert!(trigamma(f64::NAN).is_nan() && trigamma(f64::NEG_INFINITY).is_nan());
    }

    #[test]
    fn zeta_known_values_and_edges() {
        close(zeta(2.0, 1.0), PI * PI / 6.0);
        close(zeta(4.0, 1.0), PI.powi(4) / 90.0);
        close(zeta(3.0, 1.0), 1.202_056_903_159_594_2);
        close(zeta(1.5, 1.0), 2.612_375_348_685_488);
        close(zeta(2.0, 0.5), PI * PI / 2.0);
        close(zeta(2.0, 0.25), trigamma(0.25));
        close(zeta(2.0, -0.5), trigamma(-0.5));
        close(zeta(2.0, 1e6), trigamma(1e6));
        let negative: f64 = (0..11).map(|k| (f64::from(k) + 0.5).powi(-3)).sum();
        close(zeta(3.0, -10.5), zeta(3.0, 0.5) - negative);
        close(zeta(2.0, -1e12 - 0.5), PI * PI - 1e-12);
        close(zeta(60.0, 1.0), 1.0 + 2f64.powi(-60));
        assert_eq!(zeta(1.0, 2.0), f64::INFINITY);
        assert_eq!((zeta(3.0, 0.0), zeta(2.0, -4.0)), (f64::INFINITY, f64::INFINITY));
        assert!(zeta(0.5, 1.0).is_nan() && zeta(2.5, -0.5).is_nan() && zeta(f64::NAN, 1.0).is_nan());
    }
}
