//! Arithmetic on `Complex<f64>`, in which both complex dtypes compute, but for sums and products of complex64, which
//! `binary/complex.rs` has.
//!
//! Infinities are those of annex G of the C standard: a number with an infinite part is infinite, whatever the other
//! part, and products and quotients with it are infinite or zero where that makes sense.

use super::elem::Complex;

type C = Complex<f64>;

impl C {
    #[inline(always)]
    pub(crate) fn new(re: f64, im: f64) -> C {
        Complex { re, im }
    }

    #[inline(always)]
    pub(crate) fn add(self, z: C) -> C {
        C::new(self.re + z.re, self.im + z.im)
    }

    #[inline(always)]
    pub(crate) fn sub(self, z: C) -> C {
        C::new(self.re - z.re, self.im - z.im)
    }

    /// The product by its formula; see [`Self::repaired_product`].
    #[inline(always)]
    pub(crate) fn mul(self, z: C) -> C {
        C::new(self.re * z.re - self.im * z.im, self.re * z.im + self.im * z.re)
    }

    /// Whether a product or quotient by its formula may be wrong: both of its parts are NaN.
    #[inline(always)]
    pub(crate) fn is_lost(self) -> bool {
        self.re.is_nan() & self.im.is_nan()
    }

    /// The product where the formula has given two NaNs: infinite if a factor is infinite and the other is
    /// neither zero nor NaN, as in annex G of C.
    #[cold]
    pub(crate) fn repaired_product(self, z: C) -> C {
        let (mut a, mut b) = (self, z);
        let terms = [a.re * b.re, a.im * b.im, a.re * b.im, a.im * b.re];
        if !(a.is_infinite() || b.is_infinite() || terms.iter().any(|x| x.is_infinite())) {
            return self.mul(z);
        }
        if a.is_infinite() {
            (a, b) = (a.direction(), b.without_nan());
        }
        if b.is_infinite() {
            (a, b) = (a.without_nan(), b.direction());
        }
        (a, b) = (a.without_nan(), b.without_nan());
        let z = a.mul(b);
        C::new(f64::INFINITY * z.re, f64::INFINITY * z.im)
    }

    fn is_infinite(self) -> bool {
        self.re.is_infinite() || self.im.is_infinite()
    }

    /// Signed zeros for NaN parts.
    fn without_nan(self) -> C {
        let part = |x: f64| if x.is_nan() { 0f64.copysign(x) } else { x };
        C::new(part(self.re), part(self.im))
    }

    /// Signed ones for infinite parts, and signed zeros for the others.
    fn direction(self) -> C {
        let part = |x: f64| f64::from(u8::from(x.is_infinite())).copysign(x);
        C::new(part(self.re), part(self.im))
    }

    /// The quotient. No overflow in between unless the result overflows. By zero: infinite or NaN parts.
    #[inline(always)]
    pub(crate) fn div(self, z: C) -> C {
        let norm = z.re * z.re + z.im * z.im;
        let largest = |z: C| z.re.abs().max(z.im.abs());
        // Products of such sizes are neither infinite nor subnormal.
        let usual = norm > 1e-200 && norm < 1e200 && largest(self) < 1e150 && largest(self) > 1e-150;
        if usual { self.over(z, norm) } else { self.scaled_quotient(z) }
    }

    #[inline(always)]
    fn over(self, z: C, norm: f64) -> C {
        C::new((self.re * z.re + self.im * z.im) / norm, (self.im * z.re - self.re * z.im) / norm)
    }

    /// The quotient of operands scaled by powers of two, with the infinities and zeros of annex G of C.
    #[cold]
    fn scaled_quotient(self, z: C) -> C {
        let exponent = |z: C| {
            let largest = z.re.abs().max(z.im.abs());
            if largest > 0.0 && largest.is_finite() { libm::ilogb(largest) } else { 0 }
        };
        let scaled = |z: C, n: i32| C::new(libm::ldexp(z.re, n), libm::ldexp(z.im, n));
        let (above, below) = (exponent(self), exponent(z));
        let divisor = scaled(z, -below);
        let norm = divisor.re * divisor.re + divisor.im * divisor.im;
        let quotient = scaled(scaled(self, -above).over(divisor, norm), above - below);
        if !quotient.is_lost() {
            return quotient;
        }
        let finite = |z: C| z.re.is_finite() && z.im.is_finite();
        if norm == 0.0 && !(self.re.is_nan() && self.im.is_nan()) {
            let infinity = f64::INFINITY.copysign(z.re);
            C::new(infinity * self.re, infinity * self.im)
        } else if self.is_infinite() && finite(z) {
            let z = self.direction().over(z, 1.0);
            C::new(f64::INFINITY * z.re, f64::INFINITY * z.im)
        } else if z.is_infinite() && finite(self) {
            let z = self.over(z.direction(), 1.0);
            C::new(0.0 * z.re, 0.0 * z.im)
        } else {
            quotient
        }
    }

    #[inline(always)]
    pub(crate) fn conj(self) -> C {
        C::new(self.re, -self.im)
    }

    /// `e^self`. Of an infinite real part: infinity or 0 in the direction of the imaginary part.
    #[inline(always)]
    pub(crate) fn exp(self) -> C {
        if self.im == 0.0 {
            return C::new(self.re.exp(), self.im);
        }
        if self.re == f64::NEG_INFINITY && !self.im.is_finite() {
            return C::new(0.0, 0f64.copysign(self.im));
        }
        if self.re == f64::INFINITY && !self.im.is_finite() {
            return C::new(self.re, f64::NAN);
        }
        let (sin, cos) = self.im.sin_cos();
        // In two factors where one would overflow before the product with the cosine does.
        let (first, second) = if self.re > 700.0 { (700.0, self.re - 700.0) } else { (self.re, 0.0) };
        let (first, second) = (first.exp(), second.exp());
        C::new(first * cos * second, first * sin * second)
    }

    /// The root with a real part that is not negative; the imaginary part keeps its sign.
    #[inline(always)]
    pub(crate) fn sqrt(self) -> C {
        if self.re == 0.0 && self.im == 0.0 {
            return C::new(0.0, self.im);
        }
        if self.im.is_infinite() {
            return C::new(f64::INFINITY, self.im);
        }
        if self.re.is_infinite() {
            let zero = 0.0 * self.im;
            let infinite = f64::INFINITY.copysign(self.im);
            return if self.re > 0.0 { C::new(self.re, zero) } else { C::new(zero.abs(), infinite) };
        }
        // Away from subnormal numbers, by an even power of two.
        let tiny = self.re.abs().max(self.im.abs()) < 1e-290;
        let (up, down) = if tiny { (2f64.powi(200), 2f64.powi(-100)) } else { (1.0, 1.0) };
        let (re, im) = (self.re * up, self.im * up);
        let long = (0.5 * re.abs() + 0.5 * re.hypot(im)).sqrt();
        let short = 0.5 * (im.abs() / long) * down;
        let long = long * down;
        if self.re >= 0.0 {
            C::new(long, short.copysign(self.im))
        } else {
            C::new(short, long.copysign(self.im))
        }
    }
}
