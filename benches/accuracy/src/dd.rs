//! Double-double arithmetic: an unevaluated sum of two `f64`, good to about 100 bits.
//!
//! Functions are summed from their power series and refined by Newton's method from the system's `f64`
//! functions. They share nothing with the kernels.

use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::LazyLock;

/// `0 + 1`, with the second below half an ulp of the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dd(pub f64, pub f64);

const LN_2: Dd = Dd(std::f64::consts::LN_2, 2.3190468138462996e-17);
const LN_10: Dd = Dd(std::f64::consts::LN_10, -2.1707562233822494e-16);
/// pi
pub const PI: Dd = Dd(std::f64::consts::PI, 1.2246467991473532e-16);
const SQRT_PI: Dd = Dd(1.772453850905516, -7.666586499825799e-17);
pub(crate) const HALF_LN_2_PI: Dd = Dd(0.9189385332046728, -3.878294158067242e-17);
/// pi / 2 to 160 bits.
const HALF_PI: [f64; 3] = [std::f64::consts::FRAC_PI_2, 6.123233995736766e-17, -1.4973849048591833e-33];

/// The first 1536 bits of 2 / pi after the binary point.
#[rustfmt::skip]
const TWO_OVER_PI: [u64; 24] = [
    0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
    0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d,
    0xa9e391615ee61b08, 0x6599855f14a06840, 0x8dffd8804d732731, 0x06061556ca73a8c9,
];

/// `1 / n!` from n = 0.
static INVERSE_FACTORIALS: LazyLock<[Dd; 31]> = LazyLock::new(|| {
    let mut last = Dd(1.0, 0.0);
    std::array::from_fn(|n| {
        last = last / Dd(n.max(1) as f64, 0.0);
        last
    })
});

/// `1 / n`; the first is not used.
static RECIPROCALS: LazyLock<[Dd; 400]> =
    LazyLock::new(|| std::array::from_fn(|n| Dd(1.0, 0.0) / Dd(n as f64, 0.0)));

fn two_sum(a: f64, b: f64) -> Dd {
    let s = a + b;
    let t = s - a;
    Dd(s, (a - (s - t)) + (b - t))
}

fn two_product(a: f64, b: f64) -> Dd {
    let p = a * b;
    Dd(p, a.mul_add(b, -p))
}

/// The sum, for |a| not below |b|; infinite and NaN sums keep no second part.
fn renormalised(a: f64, b: f64) -> Dd {
    let s = a + b;
    if s.is_finite() { Dd(s, b - (s - a)) } else { Dd(s, 0.0) }
}

impl From<f64> for Dd {
    fn from(x: f64) -> Dd {
        Dd(x, 0.0)
    }
}

impl Neg for Dd {
    type Output = Dd;

    fn neg(self) -> Dd {
        Dd(-self.0, -self.1)
    }
}

impl Add for Dd {
    type Output = Dd;

    fn add(self, b: Dd) -> Dd {
        let s = two_sum(self.0, b.0);
        if !s.0.is_finite() {
            return Dd(s.0, 0.0);
        }
        let t = two_sum(self.1, b.1);
        let s = renormalised(s.0, s.1 + t.0);
        renormalised(s.0, s.1 + t.1)
    }
}

impl Sub for Dd {
    type Output = Dd;

    fn sub(self, b: Dd) -> Dd {
        self + -b
    }
}

impl Mul for Dd {
    type Output = Dd;

    fn mul(self, b: Dd) -> Dd {
        let p = two_product(self.0, b.0);
        if !p.0.is_finite() || p.0 == 0.0 {
            return Dd(p.0, 0.0);
        }
        renormalised(p.0, p.1 + (self.0 * b.1 + self.1 * b.0))
    }
}

impl Div for Dd {
    type Output = Dd;

    fn div(self, b: Dd) -> Dd {
        let q = self.0 / b.0;
        if !q.is_finite() || q == 0.0 || b.0.is_infinite() {
            return Dd(q, 0.0);
        }
        let r = self - b.times(q);
        let q1 = r.0 / b.0;
        let r = r - b.times(q1);
        let Dd(high, low) = renormalised(q, q1);
        renormalised(high, low + r.0 / b.0)
    }
}

impl PartialOrd for Dd {
    fn partial_cmp(&self, b: &Dd) -> Option<std::cmp::Ordering> {
        match self.0.partial_cmp(&b.0) {
            Some(std::cmp::Ordering::Equal) => self.1.partial_cmp(&b.1),
            other => other,
        }
    }
}

impl Dd {
    fn times(self, b: f64) -> Dd {
        let p = two_product(self.0, b);
        renormalised(p.0, p.1 + self.1 * b)
    }

    /// `self 2^n`.
    pub fn scaled(self, n: i32) -> Dd {
        let exponent = (self.0.to_bits() >> 52 & 0x7ff) as i32;
        if exponent > 200 && (200..2046).contains(&(exponent + n)) && (-1000..1000).contains(&n) {
            let power = f64::from_bits(((1023 + n) as u64) << 52);
            return Dd(self.0 * power, self.1 * power);
        }
        let high = libm::ldexp(self.0, n);
        Dd(high, if high.is_finite() { libm::ldexp(self.1, n) } else { 0.0 })
    }

    /// The magnitude.
    pub fn abs(self) -> Dd {
        if self.0 < 0.0 { -self } else { self }
    }

    /// Square root.
    pub fn sqrt(self) -> Dd {
        if self.0 <= 0.0 || !self.0.is_finite() {
            return self.0.sqrt().into();
        }
        let (x, n) = if self.0 < 1e-250 { (self.scaled(200), -100) } else { (self, 0) };
        let y = Dd(x.0.sqrt(), 0.0);
        (y + (x - y * y) / (y + y)).scaled(n)
    }

    /// `self^n`.
    pub fn powi(self, n: u32) -> Dd {
        (0..n).fold(Dd(1.0, 0.0), |p, _| p * self)
    }

    /// `e^self - 1` for |self| up to 0.4.
    fn exp_m1_small(self) -> Dd {
        let r = self.scaled(-9);
        let mut p = series(r, &INVERSE_FACTORIALS[1..10], 1) * r;
        // (1 + p)^2 - 1 = 2p + p^2
        for _ in 0..9 {
            p = p + p + p * p;
        }
        p
    }

    /// `e^self`.
    pub fn exp(self) -> Dd {
        if self.0.is_nan() || self.0 > 800.0 || self.0 < -900.0 {
            return self.0.exp().into();
        }
        let n = (self.0 / LN_2.0).round();
        let r = self - LN_2 * n.into() - Dd(n * 5.707_708_438_416_212e-34, 0.0);
        (r.exp_m1_small() + Dd(1.0, 0.0)).scaled(n as i32)
    }

    /// `2^self`.
    pub fn exp2(self) -> Dd {
        let n = self.0.round();
        if n.abs() >= 2000.0 || n.is_nan() {
            return self.0.exp2().into();
        }
        (((self - n.into()) * LN_2).exp_m1_small() + Dd(1.0, 0.0)).scaled(n as i32)
    }

    /// `e^self - 1`.
    pub fn exp_m1(self) -> Dd {
        if self.0.abs() < 0.3 { self.exp_m1_small() } else { self.exp() - Dd(1.0, 0.0) }
    }

    /// Natural logarithm.
    pub fn ln(self) -> Dd {
        if self.0 <= 0.0 || !self.0.is_finite() {
            return self.0.ln().into();
        }
        if (self.0 - 1.0).abs() < 0.25 {
            return (self - Dd(1.0, 0.0)).ln_1p();
        }
        let (_, k) = libm::frexp(self.0);
        let m = self.scaled(-k);
        let y = Dd(m.0.ln(), 0.0);
        // One Newton step on exp.
        let y = y + (m * (-y).exp() - Dd(1.0, 0.0));
        if k == 0 { y } else { y + LN_2 * f64::from(k).into() }
    }

    /// Logarithm to base 2.
    pub fn log2(self) -> Dd {
        if self.0 <= 0.0 || !self.0.is_finite() {
            return self.0.ln().into();
        }
        let (m, k) = libm::frexp(self.0);
        let (m, k) = if m < 0.75 { (m * 2.0, k - 1) } else { (m, k) };
        let rest = Dd(m, self.scaled(-k).1);
        rest.ln() / LN_2 + f64::from(k).into()
    }

    /// Logarithm to base 10.
    pub fn log10(self) -> Dd {
        self.ln() / LN_10
    }

    /// `ln(1 + self)`.
    pub fn ln_1p(self) -> Dd {
        if self.0.abs() >= 0.5 || self.0.is_nan() {
            return (self + Dd(1.0, 0.0)).ln();
        }
        let y = Dd(self.0.ln_1p(), 0.0);
        let e = y.exp_m1_small_any();
        y + (self - e) / (e + Dd(1.0, 0.0))
    }

    fn exp_m1_small_any(self) -> Dd {
        if self.0.abs() < 0.4 { self.exp_m1_small() } else { self.exp() - Dd(1.0, 0.0) }
    }

    /// Hyperbolic sine.
    pub fn sinh(self) -> Dd {
        if self.0.abs() < 0.5 {
            return odd_series(self, 1.0);
        }
        let e = self.exp();
        if e.0.is_infinite() || e.0 == 0.0 {
            let half = self.abs().halved_exp();
            return if self.0 < 0.0 { -half } else { half };
        }
        (e - Dd(1.0, 0.0) / e).scaled(-1)
    }

    /// Hyperbolic cosine.
    pub fn cosh(self) -> Dd {
        let half = self.abs().halved_exp();
        half + Dd(0.25, 0.0) / half
    }

    /// `e^self / 2`, also where `e^self` overflows.
    fn halved_exp(self) -> Dd {
        (self - LN_2).exp()
    }

    /// Hyperbolic tangent.
    pub fn tanh(self) -> Dd {
        if self.0.abs() > 50.0 {
            return 1f64.copysign(self.0).into();
        }
        let q = (self + self).exp_m1();
        q / (q + Dd(2.0, 0.0))
    }

    /// Inverse hyperbolic sine.
    pub fn asinh(self) -> Dd {
        let x = self.abs();
        let one = Dd(1.0, 0.0);
        let y = if x.0 > 1e100 { x.ln() + LN_2 } else { (x + x * x / (one + (one + x * x).sqrt())).ln_1p() };
        if self.0 < 0.0 { -y } else { y }
    }

    /// Inverse hyperbolic cosine.
    pub fn acosh(self) -> Dd {
        let t = self - Dd(1.0, 0.0);
        if t.0 < 0.0 {
            return f64::NAN.into();
        }
        if self.0 > 1e100 { self.ln() + LN_2 } else { (t + (t * (t + Dd(2.0, 0.0))).sqrt()).ln_1p() }
    }

    /// Inverse hyperbolic tangent.
    pub fn atanh(self) -> Dd {
        let x = self.abs();
        let y = ((x + x) / (Dd(1.0, 0.0) - x)).ln_1p().scaled(-1);
        if self.0 < 0.0 { -y } else { y }
    }

    /// Sine and cosine.
    pub fn sin_cos(self) -> (Dd, Dd) {
        if !self.0.is_finite() {
            return (f64::NAN.into(), f64::NAN.into());
        }
        let (quadrant, r) = reduce(self);
        let sin = odd_series(r, -1.0);
        let cos = series(-(r * r), &INVERSE_FACTORIALS[..], 2);
        match quadrant {
            0 => (sin, cos),
            1 => (cos, -sin),
            2 => (-sin, -cos),
            _ => (-cos, sin),
        }
    }

    /// `atan(self / x)` in the half plane of positive `x`.
    pub fn atan2(self, x: Dd) -> Dd {
        if self.0.is_nan() || x.0.is_nan() {
            return f64::NAN.into();
        }
        if self.0 == 0.0 || x.0.is_infinite() {
            return self.0.atan2(x.0).into();
        }
        if self.0.is_infinite() || x.0 == 0.0 {
            return if self.0 > 0.0 { PI.scaled(-1) } else { -PI.scaled(-1) };
        }
        // Rotated by an angle that is nearly right, what is left is tiny.
        let a = self.0.atan2(x.0);
        let (s, c) = Dd(a, 0.0).sin_cos();
        let t = (self * c - x * s) / (x * c + self * s);
        Dd(a, 0.0) + (t - t * t * t / Dd(3.0, 0.0))
    }

    /// Inverse tangent.
    pub fn atan(self) -> Dd {
        self.atan2(Dd(1.0, 0.0))
    }

    /// Inverse sine.
    pub fn asin(self) -> Dd {
        let one = Dd(1.0, 0.0);
        self.atan2(((one - self) * (one + self)).sqrt())
    }

    /// Inverse cosine.
    pub fn acos(self) -> Dd {
        let one = Dd(1.0, 0.0);
        let angle = ((one - self) * (one + self)).sqrt().atan2(self.abs());
        if self.0 < 0.0 { PI - angle } else { angle }
    }

    /// The error function.
    pub fn erf(self) -> Dd {
        let x = self.abs();
        if x.0 > 3.0 {
            let y = Dd(1.0, 0.0) - x.erfc();
            return if self.0 < 0.0 { -y } else { y };
        }
        // 2 / sqrt(pi) e^(-x^2) times the sum of 2^n x^(2n+1) / (2n+1)!!, all of one sign.
        let (mut term, mut sum) = (self, self);
        let square = (self * self).scaled(1);
        let mut n = 1;
        while term.0.abs() > 1e-33 * sum.0.abs() {
            term = term * square * RECIPROCALS[2 * n + 1];
            sum = sum + term;
            n += 1;
        }
        (sum / SQRT_PI).scaled(1) * (-(self * self)).exp()
    }

    /// One less the error function.
    pub fn erfc(self) -> Dd {
        if self.0 < 2.0 {
            return Dd(1.0, 0.0) - self.erf();
        }
        if self.0.is_nan() || self.0 > 30.0 {
            return if self.0 > 30.0 { Dd(0.0, 0.0) } else { self };
        }
        // The continued fraction 1 / (x + (1/2) / (x + 1 / (x + (3/2) / (x + ...)))), from its end.
        let mut tail = self;
        // Beyond 4 x sqrt(2n) = 150, all digits are there.
        let terms = 20 + (1400.0 / (self.0 * self.0)) as u32;
        for k in (1..=terms).rev() {
            tail = self + Dd(0.5 * f64::from(k), 0.0) / tail;
        }
        (-(self * self)).exp() / tail / SQRT_PI
    }

    /// `self^y` for positive `self`.
    pub fn powd(self, y: Dd) -> Dd {
        let exponent = y * self.ln();
        if exponent.0.is_nan() { (y.0 * self.0.ln()).exp().into() } else { exponent.exp() }
    }
}

/// `c[0] + c[step] x + c[2 step] x^2 + ...`
pub(crate) fn series(x: Dd, c: &[Dd], step: usize) -> Dd {
    c.iter().step_by(step).rev().fold(Dd(0.0, 0.0), |sum, &c| sum * x + c)
}

/// `x + s x^3 / 3! + x^5 / 5! + s ...`, for |x| below 0.8 and s of 1 or -1.
fn odd_series(x: Dd, s: f64) -> Dd {
    x * series(x * x * s.into(), &INVERSE_FACTORIALS[1..], 2)
}

/// The multiple of pi / 2 nearest to `x`, modulo 4, and what is left.
fn reduce(x: Dd) -> (u8, Dd) {
    if x.0.abs() < 1e5 {
        let n = (x.0 / HALF_PI[0]).round();
        let mut r = x;
        for part in HALF_PI {
            r = r - two_product(n, part);
        }
        return (n.rem_euclid(4.0) as u8, r);
    }
    // x = m 2^e with an integer m. Of m (2 / pi) 2^e, only what is left modulo 4 matters: a window of 2 / pi
    // that starts at the bit of weight 2 after scaling.
    let (m, e) = libm::frexp(x.0.abs());
    let (m, e) = (libm::ldexp(m, 53) as u64, e - 53);
    let word = |i: i32| if i < 0 { 0 } else { TWO_OVER_PI.get(i as usize).copied().unwrap_or(0) };
    let (first, offset) = ((e - 2).div_euclid(64), (e - 2).rem_euclid(64) as u32);
    let mut window = [0u64; 4];
    for (i, bits) in (first..).zip(&mut window) {
        let both = u128::from(word(i)) << 64 | u128::from(word(i + 1));
        *bits = (both >> (64 - offset)) as u64;
    }
    let mut carry = 0u128;
    for word in window.iter_mut().rev() {
        let product = u128::from(*word) * u128::from(m) + carry;
        *word = product as u64;
        carry = product >> 64;
    }
    let quadrant = (window[0] >> 62) as u8;
    let up = window[0] >> 61 & 1 == 1;
    window[0] &= u64::MAX >> 2;
    if up {
        // 1 less the fraction.
        for word in &mut window {
            *word = !*word;
        }
        window[0] &= u64::MAX >> 2;
    }
    let mut fraction = Dd(0.0, 0.0);
    for (i, word) in window.into_iter().enumerate() {
        for half in [word >> 32, word & 0xffff_ffff].into_iter().enumerate() {
            fraction = fraction + Dd(half.1 as f64, 0.0).scaled(2 - 64 * i as i32 - 32 * (half.0 as i32 + 1));
        }
    }
    let r = fraction * Dd(HALF_PI[0], HALF_PI[1]);
    let (quadrant, r) = if up { ((quadrant + 1) % 4, -r) } else { (quadrant, r) };
    if x.0 < 0.0 { ((4 - quadrant) % 4, -r) } else { (quadrant, r) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gamma::zeta;

    fn near(got: Dd, high: f64, low: f64) {
        let error = ((got.0 - high) + (got.1 - low)).abs() / high.abs();
        assert!(error < 1e-29, "{got:?} is not {high:e} + {low:e}: off by {error:e}");
    }

    /// Values from an arbitrary-precision library, to 106 bits.
    #[test]
    fn functions_are_good_to_96_bits() {
        near(Dd(0.1, 0.0).exp(), 1.1051709180756477, -8.149523913327619e-17);
        near(Dd(-3.7, 0.0).exp(), 0.024723526470339388, -1.294857794723138e-18);
        near(Dd(300.5, 0.0).exp(), 3.202519714603633e+130, 3.450128650899247e+112);
        near(Dd(-650.25, 0.0).exp(), 3.9811921806329143e-283, 2.320354214140808e-299);
        near(Dd(1e-09, 0.0).exp(), 1.000000001, -8.224037093664211e-17);
        near(Dd(0.1, 0.0).exp_m1(), 0.10517091807564763, 1.77148771361055e-18);
        near(Dd(-0.29, 0.0).exp_m1(), -0.2517364324214348, 1.5980863721491973e-17);
        near(Dd(1e-09, 0.0).exp_m1(), 1.0000000005000001e-09, -7.443897403844588e-26);
        near(Dd(3.5, 0.0).exp_m1(), 32.11545195869231, 2.2435601403927554e-15);
        near(Dd(-20.5, 0.0).exp_m1(), -0.9999999987498471, -3.726909541465376e-18);
        near(Dd(1.5, 0.0).ln(), 0.4054651081081644, -2.8811380259626426e-18);
        near(Dd(0.75, 0.0).ln(), -0.2876820724517809, -2.607160616442564e-17);
        near(Dd(1e+300, 0.0).ln(), 690.7755278982137, 2.3747660028800243e-14);
        near(Dd(3e-310, 0.0).ln(), -712.7027665394861, 5.060294180236257e-14);
        near(Dd(0.9999, 0.0).ln(), -0.00010000500033334732, 4.110491732511812e-21);
        near(Dd(1.5, 0.0).log2(), 0.5849625007211562, -5.224490061390109e-18);
        near(Dd(0.75, 0.0).log2(), -0.4150374992788438, -5.224490061390109e-18);
        near(Dd(1e+300, 0.0).log2(), 996.5784284662087, -1.5800929191358255e-14);
        near(Dd(1.0001, 0.0).log2(), 0.0001442622910945383, -3.0541352523581598e-21);
        near(Dd(1e-10, 0.0).ln_1p(), 9.999999999500001e-11, -3.389513322121794e-27);
        near(Dd(0.4, 0.0).ln_1p(), 0.33647223662121295, -3.704625908593426e-18);
        near(Dd(-0.4, 0.0).ln_1p(), -0.5108256237659907, 1.5233815099851014e-18);
        near(Dd(7.0, 0.0).ln_1p(), 2.0794415416798357, 1.8059370687790465e-16);
        near(Dd(0.1, 0.0).sinh(), 0.10016675001984403, 3.3613961287681504e-18);
        near(Dd(0.1, 0.0).cosh(), 1.0050041680558035, 9.55546062395436e-17);
        near(Dd(-1.9, 0.0).sinh(), -3.268162911528317, 1.8241191489795997e-16);
        near(Dd(-1.9, 0.0).cosh(), 3.417731530750952, 1.4765058607412014e-17);
        near(Dd(22.25, 0.0).sinh(), 2301559605.521677, 4.6080539859009685e-08);
        near(Dd(22.25, 0.0).cosh(), 2301559605.521677, 4.629778385251758e-08);
        near(Dd(710.4, 0.0).sinh(), 1.6663642832806496e+308, 6.844817567326341e+290);
        near(Dd(710.4, 0.0).cosh(), 1.6663642832806496e+308, 6.844817567326341e+290);
        near(Dd(0.01, 0.0).tanh(), 0.00999966667999946, 2.249494707259477e-19);
        near(Dd(0.01, 0.0).asinh(), 0.009999833340832888, -4.498989430941035e-19);
        near(Dd(-0.7, 0.0).tanh(), -0.6043677771171635, 2.7916180015425346e-17);
        near(Dd(-0.7, 0.0).asinh(), -0.6526665660823557, -1.3538893500858175e-17);
        near(Dd(12.0, 0.0).tanh(), 0.9999999999244973, 2.4308346468945755e-17);
        near(Dd(12.0, 0.0).asinh(), 3.179785437699879, -4.2549402925853376e-17);
        near(Dd(1.001, 0.0).acosh(), 0.04471763360830685, -1.5112553013717277e-18);
        near(Dd(-0.99, 0.0).atanh(), -2.6466524123622457, -6.372391301124355e-17);
        near(Dd(0.3, 0.0).sin_cos().0, 0.29552020666133955, 1.8315357276792536e-17);
        near(Dd(0.3, 0.0).sin_cos().1, 0.955336489125606, 4.1935600297907467e-17);
        near(Dd(-2.5, 0.0).sin_cos().0, -0.5984721441039565, 5.521403334082375e-17);
        near(Dd(-2.5, 0.0).sin_cos().1, -0.8011436155469337, -1.8674742705085553e-17);
        near(Dd(22.0, 0.0).sin_cos().0, -0.008851309290403876, 2.8485303089220057e-19);
        near(Dd(22.0, 0.0).sin_cos().1, -0.9999608263946371, -8.51603380017413e-19);
        near(Dd(100000.5, 0.0).sin_cos().0, -0.4477465716572126, 3.98331359968963e-18);
        near(Dd(100000.5, 0.0).sin_cos().1, -0.8941605043666447, -4.6988935915228855e-17);
        near(Dd(1e+22, 0.0).sin_cos().0, -0.8522008497671888, -6.7806825896773284e-18);
        near(Dd(1e+22, 0.0).sin_cos().1, 0.523214785395139, -4.7143201076575164e-17);
        near(Dd(-1.7e+308, 0.0).sin_cos().0, 0.5952560848632077, -2.5160280566554575e-17);
        near(Dd(-1.7e+308, 0.0).sin_cos().1, 0.803536056087918, 2.750772532225659e-18);
        near(Dd(5.319372648326541e+255, 0.0).sin_cos().0, 1.0, -1.098476220074687e-37);
        near(Dd(5.319372648326541e+255, 0.0).sin_cos().1, -4.687165924254628e-19, 4.3720557429382733e-36);
        near(Dd(0.2, 0.0).atan(), 0.19739555984988078, -6.037637556826327e-18);
        near(Dd(-5.0, 0.0).atan(), -1.373400766945016, 3.3077103557695165e-17);
        near(Dd(1e+20, 0.0).atan(), std::f64::consts::FRAC_PI_2, 6.122233995736766e-17);
        near(Dd(0.2, 0.0).asin(), 0.2013579207903308, 6.185294261018391e-18);
        near(Dd(0.2, 0.0).acos(), 1.369438406004566, -8.37308323817953e-17);
        near(Dd(-0.999999, 0.0).asin(), -1.5693821131146521, 1.100101637792604e-16);
        near(Dd(-0.999999, 0.0).acos(), 3.1401784399095485, 1.7326678110313857e-16);
        near(Dd(1e-05, 0.0).erf(), 1.1283791670579e-05, -3.369136869444807e-23);
        near(Dd(0.7, 0.0).erf(), 0.6778011938374184, 5.860416063065593e-18);
        near(Dd(-2.5, 0.0).erf(), -0.999593047982555, -4.6925151097042234e-17);
        near(Dd(4.5, 0.0).erf(), 0.9999999998033839, 1.2614727975054947e-17);
        near(Dd(0.7, 0.0).erfc(), 0.32219880616258156, -5.860416063065593e-18);
        near(Dd(-2.5, 0.0).erfc(), 1.999593047982555, 4.6925151097042234e-17);
        near(Dd(2.25, 0.0).erfc(), 0.0014627165866811518, -6.81920077729474e-20);
        near(Dd(15.5, 0.0).erfc(), 1.6632016400488723e-106, 5.140639414562648e-123);
        near(Dd(26.0, 0.0).erfc(), 5.663192408856143e-296, -3.454309640217e-312);
        near(Dd(0.1, 0.0).lgamma(), 2.252712651734206, -8.214908571963665e-17);
        near(Dd(3.3, 0.0).lgamma(), 0.9870985778947344, -2.618080971935994e-17);
        near(Dd(170.5, 0.0).lgamma(), 704.0044277342047, -1.1773387761984312e-14);
        near(Dd(-2.5, 0.0).lgamma(), -0.056243716497674054, 3.2275963968268973e-18);
        near(Dd(10000000000.0, 0.0).lgamma(), 220258509288.81058, 4.07746379812346e-06);
        near(Dd(0.1, 0.0).digamma(), -10.423754940411076, -3.6769653932837104e-16);
        near(Dd(0.1, 0.0).trigamma(), 101.43329915079275, -1.1281757435388406e-15);
        near(Dd(3.3, 0.0).digamma(), 1.0348224890596216, 8.879410109146606e-17);
        near(Dd(3.3, 0.0).trigamma(), 0.3535015418410618, 2.6253052277088135e-17);
        near(Dd(170.5, 0.0).digamma(), 5.135799878794703, 2.085848850828319e-16);
        near(Dd(170.5, 0.0).trigamma(), 0.005882335979579863, -3.5799654637351396e-19);
        near(Dd(-2.6, 0.0).digamma(), 0.1148975066969342, -5.674900411412496e-18);
        near(Dd(-2.6, 0.0).trigamma(), 10.591688362390217, 5.019791203827317e-16);
        near(zeta(2.5, 0.7), 2.9028675777573465, 1.3404853887207435e-16);
        near(zeta(1.001, 3.0), 999.0776349295164, -2.0376248326311314e-14);
        near(zeta(40.0, 1.5), 9.043772695905904e-08, -4.335419621033147e-24);
        near(Dd(1.1, 0.0).powd(Dd(7000.5, 0.0)), 5.881558894572704e+289, -2.8937208314697187e+273);
    }
}
