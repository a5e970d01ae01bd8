//! The Hurwitz zeta function in f64.

/// Hurwitz zeta: the sum of `(q + k)^-s` over k = 0, 1, ... for s > 1.
///
/// inf at s = 1 and at q = 0, -1, -2, ...; NaN for s < 1, and for negative q where s is not an integer. With s
/// infinite: 0 for q above 1, 1 at 1, inf from 0 to 1, NaN below. With q infinite: 0, or NaN below zero.
pub(crate) fn zeta(s: f64, q: f64) -> f64 {
    if s.is_nan() || q.is_nan() || s < 1.0 || q == f64::NEG_INFINITY {
        f64::NAN
    } else if s == 1.0 {
        f64::INFINITY
    } else if s == f64::INFINITY {
        // The first term alone: a power that vanishes, stays or grows without end.
        if q < 0.0 { f64::NAN } else { q.powf(-s) }
    } else if q == f64::INFINITY {
        0.0
    } else if q > 0.0 {
        above_zero(s, q)
    } else if q == q.floor() {
        f64::INFINITY
    } else if s != s.floor() {
        f64::NAN
    } else {
        below_zero(s, q)
    }
}

/// Of finite arguments, for a negative `q` that is no integer.
fn below_zero(s: f64, q: f64) -> f64 {
    // The bases below zero are b, b + 1, ... up to before 1 - q, with the sign of (-1)^s; those above it a, a + 1, ...
    let (a, b) = (q - q.floor(), q.ceil() - q);
    if s % 2.0 == 0.0 {
        return above_zero(s, a) + (above_zero(s, b) - above_zero(s, 1.0 - q));
    }
    // Their difference all but vanishes about a = b, so the first and largest terms are subtracted in pairs.
    let difference = 1.0 - 2.0 * b;
    let pairs = (-q.floor()).min(16.0);
    let (mut sum, mut k) = (0.0, 0.0);
    while k < pairs {
        let above = b + k;
        if difference == 0.0 {
            // Each pair cancels, even where both powers overflow.
            break;
        }
        let log_ratio = s * (difference / above).ln_1p();
        sum += if log_ratio.abs() < 1.0 {
            above.powf(-s) * (-log_ratio).exp_m1()
        } else {
            let (first, second) = ((a + k).powf(-s), above.powf(-s));
            // Where both overflow, they are so far apart that the larger one's sign is the result's.
            if first.is_infinite() && second.is_infinite() {
                f64::INFINITY.copysign(-log_ratio)
            } else {
                first - second
            }
        };
        k += 1.0;
    }
    sum + (above_zero(s, a + pairs) - (above_zero(s, b + pairs) - above_zero(s, 1.0 - q)))
}

/// Of finite arguments, for a positive `q`.
fn above_zero(s: f64, q: f64) -> f64 {
    // Euler-Maclaurin: terms up to past 9, then the integral, half a term and the corrections
    // B(2k) / (2k)! s (s+1) ... (s+2k-2) a^(-s-2k+1).
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
    // Past that 1 may be too small to be added, and unless the corrections decrease at once, all terms are 0.
    const FAR: f64 = 1e12;
    // Below, numbers may have lost digits, and terms that vanish may have a sum that does not.
    const SMALL: f64 = f64::MIN_POSITIVE / f64::EPSILON;
    let mut sum = 0.0;
    let mut a = q;
    let mut terms = 0;
    while a <= 9.0 || terms < 9 && a < FAR {
        let term = a.powf(-s);
        sum += term;
        a += 1.0;
        terms += 1;
        if term.abs() <= f64::EPSILON / 4.0 * f64::abs(sum) && sum > SMALL {
            return sum;
        }
    }
    let last = a.powf(-s);
    let integral = if last > SMALL {
        last * a
    } else {
        let root = a.powf(-0.5 * s);
        root * (root * a)
    };
    sum += integral / (s - 1.0) + 0.5 * last;
    let (mut factor, mut power) = (s, last / a);
    for (k, c) in C.into_iter().enumerate() {
        let term = factor * power / c;
        sum += term;
        if term.abs() <= f64::EPSILON / 4.0 * f64::abs(sum) {
            break;
        }
        let k = 2.0 * k as f64;
        factor *= (s + k + 1.0) * (s + k + 2.0);
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
        let far = 2f64.powi(53);
        assert!((zeta(10.0, far) * 9.0 * far.powi(9) - 1.0).abs() < 1e-14);
        assert_eq!((zeta(1e300, 2.0), zeta(1e13, 1e13), zeta(1e300, 1e300)), (0.0, 0.0, 0.0));
        close(zeta(2.0, 1e6), 1e-6 + 0.5e-12 + 1e-18 / 6.0);
        let negative: f64 = (0..11).map(|k| (f64::from(k) + 0.5).powi(-3)).sum();
        close(zeta(3.0, -10.5), zeta(3.0, 0.5) - negative);
        close(zeta(2.0, -1e12 - 0.5), PI * PI - 1e-12);
        close(zeta(60.0, 1.0), 1.0 + 2f64.powi(-60));
        // The powers are subnormal, or vanish, but their sum does not.
        let (tiny, least) = (zeta(35.64622665762318, 1.0422069551503786e9), 5e-324);
        assert!((tiny - 1.052_608_646e-314).abs() <= 1e-8 * tiny, "{tiny:e}");
        assert!((zeta(36.5, 1e9) - 1e9f64.powf(-17.75) * 1e9f64.powf(-17.75) / 35.5).abs() <= 2.0 * least);
        assert_eq!(zeta(1.0, 2.0), f64::INFINITY);
        assert_eq!((zeta(3.0, 0.0), zeta(2.0, -4.0)), (f64::INFINITY, f64::INFINITY));
        // Odd powers of both sides all but cancel here, to an expansion in the distance from the middle.
        let d = 2f64.powi(-40);
        let slope: f64 = (0..10).map(|k| (f64::from(k) + 0.5).powi(-4)).sum();
        let want = zeta(3.0, 10.5) - 3.0 * d * (zeta(4.0, 10.5) + 2.0 * slope);
        assert!((zeta(3.0, d - 9.5) / want - 1.0).abs() < 1e-15, "{:e}", zeta(3.0, d - 9.5));
        let inf = f64::INFINITY;
        // Odd powers overflow on both sides of zero.
        assert_eq!((zeta(20_001.0, -1.25), zeta(20_001.0, -1.75)), (-inf, inf));
        assert_eq!((zeta(20_001.0, -1.5), zeta(20_001.0, -4.25)), (0.0, -inf));
        for (s, q, want) in [
            (inf, 1.5, 0.0),
            (inf, 1.0, 1.0),
            (inf, 0.5, inf),
            (inf, 0.0, inf),
            (inf, inf, 0.0),
            (1.5, inf, 0.0),
            (1.0, inf, inf),
            (2.0, -2f64.powi(-127), 2f64.powi(254)),
            (3.0, -2f64.powi(-127), -2f64.powi(381)),
        ] {
            assert_eq!(zeta(s, q), want, "{s} {q}");
        }
        for (s, q) in [(inf, -0.5), (inf, -3.0), (2.0, -inf), (1.0, -inf), (-inf, 2.0), (0.5, inf)] {
            assert!(zeta(s, q).is_nan(), "{s} {q}");
        }
        assert!(zeta(0.5, 1.0).is_nan() && zeta(2.5, -0.5).is_nan() && zeta(f64::NAN, 1.0).is_nan());
    }
}
