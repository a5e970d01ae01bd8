//! Arithmetic on `Complex<f64>`, in which both complex dtypes compute.

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

    #[inline(always)]
    pub(crate) fn mul(self, z: C) -> C {
        C::new(self.re * z.re - self.im * z.im, self.re * z.im + self.im * z.re)
    }

    /// Smith's algorithm: no overflow in between unless the result overflows. By zero: NaN or infinite parts.
    #[inline(always)]
    pub(crate) fn div(self, z: C) -> C {
        if z.re == 0.0 && z.im == 0.0 {
            return C::new(self.re / z.re, self.im / z.re);
        }
        if z.re.abs() >= z.im.abs() {
            let ratio = z.im / z.re;
            let scale = z.re + z.im * ratio;
            C::new((self.re + self.im * ratio) / scale, (self.im - self.re * ratio) / scale)
        } else {
            let ratio = z.re / z.im;
            let scale = z.re * ratio + z.im;
            C::new((self.re * ratio + self.im) / scale, (self.im * ratio - self.re) / scale)
        }
    }

    #[inline(always)]
    pub(crate) fn conj(self) -> C {
        C::new(self.re, -self.im)
    }

    #[inline(always)]
    pub(crate) fn exp(self) -> C {
        let scale = self.re.exp();
        if self.im == 0.0 {
            C::new(scale, self.im)
        } else {
            C::new(scale * self.im.cos(), scale * self.im.sin())
        }
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
        let long = (0.5 * self.re.abs() + 0.5 * self.re.hypot(self.im)).sqrt();
        let short = 0.5 * (self.im.abs() / long);
        if self.re >= 0.0 {
            C::new(long, short.copysign(self.im))
        } else {
            C::new(short, long.copysign(self.im))
        }
    }
}
