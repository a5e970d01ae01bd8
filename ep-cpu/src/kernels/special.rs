//! The Hurwitz zeta function in f64.

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
    use std::f64::consts::PI;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 4e-15 * want.abs().max(1.0), "{got:e} is not {want:e}");
    }

    #[test]
    fn zeta_known_values_and_edges() {
        close(zeta(2.0, 1.0), PI * PI / 6.0);
        close(zeta(4.0, 1.0), PI.powi(4) / 90.0);
        close(zeta(3.0, 1.0), 1.202_056_903_159_594_2);
        close(zeta(1.5, 1.0), 2.612_375_348_685_488);
        close(zeta(2.0, 0.5), PI * PI / 2.0);
        const CATALAN: f64 = 0.915_965_594_177_219;
        close(zeta(2.0, 0.25), PI * PI + 8.0 * CATALAN);
        close(zeta(2.0, -0.5), PI * PI / 2.0 + 4.0);
        close(zeta(2.0, 1e6), 1e-6 + 0.5e-12 + 1e-18 / 6.0);
        let negative: f64 = (0..11).map(|k| (f64::from(k) + 0.5).powi(-3)).sum();
        close(zeta(3.0, -10.5), zeta(3.0, 0.5) - negative);
        close(zeta(2.0, -1e12 - 0.5), PI * PI - 1e-12);
        close(zeta(60.0, 1.0), 1.0 + 2f64.powi(-60));
        assert_eq!(zeta(1.0, 2.0), f64::INFINITY);
        assert_eq!((zeta(3.0, 0.0), zeta(2.0, -4.0)), (f64::INFINITY, f64::INFINITY));
        assert!(zeta(0.5, 1.0).is_nan() && zeta(2.5, -0.5).is_nan() && zeta(f64::NAN, 1.0).is_nan());
    }
}
