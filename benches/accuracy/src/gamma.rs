//! The gamma family and the Hurwitz zeta function: recurrences and asymptotic series.

use crate::dd::{Dd, HALF_LN_2_PI, PI, series};
use crate::real::Real;
use std::sync::LazyLock;

impl Dd {
    /// `pi` times the cotangent, and `pi^2` over the squared sine, of `pi self`, and `ln(pi / |sin|)`.
    fn reflections(self) -> (Dd, Dd, Dd) {
        let r = self - self.0.round().into();
        let (s, c) = (PI * r).sin_cos();
        let over = PI / s;
        (over * c, over * over, over.abs().ln())
    }

    /// `ln |gamma|`.
    pub fn lgamma(self) -> Dd {
        if !self.0.is_finite() {
            return self.0.abs().into();
        }
        if self.0 <= 0.0 && self.0 == self.0.round() {
            return f64::INFINITY.into();
        }
        let one = Dd(1.0, 0.0);
        if self.0 < 0.5 {
            return self.reflections().2 - (one - self).lgamma();
        }
        let (mut x, mut product) = (self, one);
        while x.0 < STEADY {
            product = product * x;
            x = x + one;
        }
        let mut sum = HALF_LN_2_PI - x + (x - Dd(0.5, 0.0)) * x.ln();
        let inverse = one / x;
        sum = sum + inverse * series(inverse * inverse, &BERNOULLI.over_n_less, 1);
        sum - product.ln()
    }

    /// The logarithmic derivative of gamma.
    pub fn digamma(self) -> Dd {
        if self.0 == 0.0 {
            return (-1.0 / self.0).into();
        }
        if self.0 == f64::INFINITY || self.0.is_nan() {
            return self;
        }
        if self.0 < 0.0 && (self.0.is_infinite() || self.0 == self.0.round()) {
            return f64::NAN.into();
        }
        let one = Dd(1.0, 0.0);
        if self.0.abs() < 1e-100 {
            // The first term, beside which the others vanish and whose product with x underflows.
            return -one / self;
        }
        if self.0 < 0.0 {
            return (one - self).digamma() - self.reflections().0;
        }
        // The sum of the reciprocals as one fraction.
        let (mut x, mut top, mut bottom) = (self, Dd(0.0, 0.0), one);
        while x.0 < STEADY {
            (top, bottom) = (top * x + bottom, bottom * x);
            x = x + one;
        }
        let inverse = one / x;
        let square = inverse * inverse;
        x.ln() - inverse.scaled(-1) - square * series(square, &BERNOULLI.over_n, 1) - top / bottom
    }

    /// The derivative of [`Self::digamma`].
    pub fn trigamma(self) -> Dd {
        let one = Dd(1.0, 0.0);
        if self.0 == f64::INFINITY || self.0.is_nan() {
            return (1.0 / self.0).into();
        }
        if self.0.is_infinite() {
            return f64::NAN.into();
        }
        if self.0 <= 0.0 && self.0 == self.0.round() {
            return f64::INFINITY.into();
        }
        if self.0 < 0.0 {
            return self.reflections().1 - (one - self).trigamma();
        }
        if self.0 < 1e-100 {
            // The first term, of which the square of its inverse is no number.
            return one / self / self;
        }
        let (mut x, mut top, mut bottom) = (self, Dd(0.0, 0.0), one);
        while x.0 < STEADY {
            let square = x * x;
            (top, bottom) = (top * square + bottom, bottom * square);
            x = x + one;
        }
        let inverse = one / x;
        let square = inverse * inverse;
        top / bottom + inverse + square.scaled(-1) + square * inverse * series(square, &BERNOULLI.plain, 1)
    }
}

/// The Hurwitz zeta function, the sum of `(q + k)^-s` over k = 0, 1, ..., for finite numbers and `s` above 1; where
/// `q` is negative it is no integer, and `s` is one.
pub fn zeta<R: Real>(s: f64, q: f64) -> R {
    if q > 0.0 {
        return zeta_above_zero(R::from(s), R::from(q));
    }
    // The terms below zero are sums above it, with the sign of (-1)^s. Odd ones may cancel.
    let (power, one) = (Dd::from(s), Dd::from(1.0));
    let fraction = Dd::from(q.ceil()) - q.into();
    let below = zeta_above_zero(power, fraction) - zeta_above_zero(power, one - q.into());
    let above = zeta_above_zero(power, one - fraction);
    let Dd(high, low) = if s % 2.0 == 0.0 { above + below } else { above - below };
    R::from(high) + R::from(low)
}

/// Euler-Maclaurin summation: terms until the corrections decrease, the integral, half a term and the corrections.
fn zeta_above_zero<R: Real>(s: R, q: R) -> R {
    let (one, half) = (R::from(1.0), R::from(0.5));
    let power = |base: R| base.power(-s);
    let (mut sum, mut a, end) = (R::from(0.0), q, R::from(STEADY) + s);
    let mut terms = 0;
    while terms < 8 || a < end {
        let term = power(a);
        sum = sum + term;
        if term <= R::from(1e-33) * sum {
            return sum;
        }
        a = a + one;
        terms += 1;
    }
    let last = power(a);
    sum = sum + last * a / (s - one) + last * half;
    // s (s + 1) ... (s + 2k - 2) / (2k)! a^(-s - 2k + 1)
    let mut factor = s * last / a * half;
    let square = a * a;
    for (k, b) in BERNOULLI.plain.iter().enumerate() {
        sum = sum + (R::from(b.0) + R::from(b.1)) * factor;
        let n = 2.0 * (k + 1) as f64;
        factor =
            factor * (s + R::from(n - 1.0)) * (s + R::from(n)) / (square * R::from((n + 1.0) * (n + 2.0)));
    }
    sum
}

/// From here up the asymptotic series are right to the last bits with the terms of [`BERNOULLI`].
const STEADY: f64 = 30.0;

/// Bernoulli numbers B(n) for n = 2, 4, ...: plain, over n, and over n (n - 1).
struct Bernoulli {
    plain: [Dd; 14],
    over_n: [Dd; 14],
    over_n_less: [Dd; 14],
}

static BERNOULLI: LazyLock<Bernoulli> = LazyLock::new(|| {
    const QUOTIENTS: [(f64, f64); 14] = [
        (1.0, 6.0),
        (-1.0, 30.0),
        (1.0, 42.0),
        (-1.0, 30.0),
        (5.0, 66.0),
        (-691.0, 2730.0),
        (7.0, 6.0),
        (-3617.0, 510.0),
        (43867.0, 798.0),
        (-174_611.0, 330.0),
        (854_513.0, 138.0),
        (-236_364_091.0, 2730.0),
        (8_553_103.0, 6.0),
        (-23_749_461_029.0, 870.0),
    ];
    let weighted = |weight: fn(f64) -> f64| {
        std::array::from_fn(|k| {
            let (top, bottom) = QUOTIENTS[k];
            Dd(top, 0.0) / Dd(bottom * weight(2.0 * (k + 1) as f64), 0.0)
        })
    };
    Bernoulli { plain: weighted(|_| 1.0), over_n: weighted(|n| n), over_n_less: weighted(|n| n * (n - 1.0)) }
});
