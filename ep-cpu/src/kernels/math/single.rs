//! Functions in f32 arithmetic.
//!
//! Where two roundings of a multiplication and an addition would cost more than the limit allows, levels without
//! a fused one compute in f64.

use super::{
    Double, LARGE_HALF, Math, Single, fast_gelu_argument, half_pi::reduce_single, ln_limits, nearest_power,
    pieces, polynomial, tails::beside_tail, tanh, widening,
};
use crate::kernels::simd::{self, EightPieces, Mask, Vector, nearest};
use std::f64::consts::{LN_2, LOG2_E, LOG10_2, LOG10_E, PI, SQRT_2};
use std::hint::cold_path;

/// 9 bits of ln 2: its products with the exponents of f32 are exact.
pub(super) const LN_2_HIGH: f64 = 355.0 / 512.0;
pub(super) const LN_2_LOW: f64 = LN_2 - LN_2_HIGH;

/// `(e^r - 1 - r) / r^2` for |r| up to ln(2) / 2.
pub(super) const EXP: [f64; 5] = [0.49999994, 0.16666521, 0.04166817, 0.008368769, 0.0013831202];

/// `2^r` for |r| up to 1/2.
const EXP2: [f64; 7] = [1.0, 0.69314724, 0.24022655, 0.055502728, 0.009617065, 0.0013417704, 0.00015815209];

/// `(ln(1 + f) - f + f^2 / 2) / f^3` for f in -1/4..1/2.
const LN: [f64; 8] =
    [0.3333345, -0.2499956, 0.19989872, -0.16667119, 0.14530107, -0.13012634, 0.098584026, -0.039921775];

/// `(sin(r) / r - 1) / r^2` in r^2, for |r| up to pi / 4.
const SIN: [f64; 3] = [-0.16666654, 0.008332106, -0.00019507883];

/// `(cos(r) - 1) / r^2` in r^2.
const COS: [f64; 4] = [-0.5, 0.041666653, -0.0013887603, 2.4460383e-05];

/// `(atan(z) / z - 1) / z^2` in z^2, for |z| up to 1.
const ATAN: [f64; 9] = [
    -0.33333313,
    0.19998907,
    -0.1426757,
    0.10967877,
    -0.0844563,
    0.058631875,
    -0.031812157,
    0.011238842,
    -0.0018630968,
];

/// `(asin(z) / z - 1) / z^2` in z^2, for |z| up to 1/2.
const ASIN: [f64; 5] = [0.16666731, 0.07495957, 0.04540149, 0.024475677, 0.041715767];

/// `erf(x) / x - 1` in x^2, for |x| up to 1.
pub(super) const ERF: [f64; 7] =
    [0.1283791670955126, -0.37612626, 0.11283579, -0.026853347, 0.005187162, -0.0007997853, 7.806904e-05];

/// `log2(erfc(x))` for x in 1..4.
const LOG2_ERFC: [f64; 9] = [
    0.00029155205,
    -1.6297396,
    -0.9133204,
    -0.15668663,
    0.036571093,
    -0.006161377,
    0.00066419924,
    -3.571975e-05,
    3.0645162e-07,
];

/// `(cdf(t) - 1/2) / t - CDF_SLOPE` of the normal distribution in t^2, for |t| up to 1.
const CDF: [f64; 6] = [-1.133_517e-8, -0.06649037, 0.009973366, -0.0011864287, 0.00011358545, -7.690079e-06];
const CDF_SLOPE: f64 = 0.3989422917366028;

/// `t cdf(-t) exp(t^2 / 2) - CDF_TAIL_MIDDLE` in `(t - 2) / (t + 2)`, for t from 1 to past where the product
/// is 0.
const CDF_TAIL: [f64; 9] = [
    1.2262938e-8,
    0.1705018,
    -0.15130392,
    0.0327567,
    0.018135972,
    -0.0035873835,
    -0.004460762,
    -0.0005339821,
    0.0012413822,
];
const CDF_TAIL_MIDDLE: f64 = 0.336204;

/// `log2(1 + f) / f` for f in -1/4..1/2, to 2^-34.
const LOG2_1P: [f64; 13] = [
    1.4426950409122061,
    -0.7213475207253306,
    0.4808983316417251,
    -0.36067367232463055,
    0.28854054838917603,
    -0.2404575898440573,
    0.2060514229808709,
    -0.18001330082554762,
    0.16060315205739292,
    -0.14927978678373,
    0.13820869488357804,
    -0.10067562555030282,
    0.03709947479105998,
];

impl<V: simd::Single> Single<V> {
    /// `n`, its sum with the rounder, and `r` such that `x = n ln(2) + r`.
    #[inline(always)]
    pub(super) fn reduce_exp(x: V) -> (V, V, V) {
        let (n, rounded) = nearest(x, LOG2_E);
        let r = n.neg_mul_add(V::splat(LN_2_HIGH), x).in_step();
        (n, rounded, n.neg_mul_add(V::splat(LN_2_LOW), r).in_step())
    }

    #[inline(always)]
    pub(super) fn exp_reduced(r: V) -> V {
        let one = V::splat(1.0);
        polynomial(r, &EXP).mul_add(r, one).in_step().mul_add(r, one).in_step()
    }

    #[inline(always)]
    pub(super) fn exp_m1_reduced(r: V) -> V {
        // Fused, this makes no subnormal number of a small one.
        (polynomial(r, &EXP) * r).mul_add(r, r)
    }

    /// The part of `ln(1 + f)` beyond `f`, for f in -1/4..1/2. Of a small `f` it may be subnormal.
    #[inline(always)]
    fn ln_tail(f: V) -> V {
        let square = f * f;
        (polynomial(f, &LN) * f).mul_add(square, square * -0.5)
    }

    /// [`Self::ln_tail`], and none where `f` is so small that it is nothing beside it.
    #[inline(always)]
    fn ln_tail_of_any(f: V) -> V {
        Self::ln_tail(V::select(f.abs().lt(V::splat(2f64.powi(-40))), V::splat(0.0), f))
    }

    /// From the parts of `ln(1 + f)` to `ln(2^k (1 + f))`.
    #[inline(always)]
    fn ln_of(k: V, f: V, tail: V) -> V {
        let tail = k.mul_add(V::splat(LN_2_LOW), tail);
        k.mul_add(V::splat(LN_2_HIGH), f + tail)
    }

    /// `ln(1 + f) c` for a constant in two parts.
    #[inline(always)]
    fn ln_times(f: V, high: f64, low: f64) -> V {
        let rest = Self::ln_tail(f).mul_add(V::splat(high), f * low);
        f.mul_add(V::splat(high), rest)
    }

    /// `t = |x|`, but at least a half, and for t from 1 up `t cdf(-t)`.
    #[inline(always)]
    fn normal_tail(x: V) -> (V, V) {
        // From 14.5 on the product rounds to 0.
        let t = x.abs().at_most(15.0).at_least(0.5);
        let (_, n, r) = Self::reduce_bell(t);
        (t, Self::normal_tail_reduced(t, r).scale(n))
    }

    /// `t^2`, and `n` and `r` such that `-t^2 / 2 = n ln(2) + r` with all digits of the square.
    #[inline(always)]
    pub(super) fn reduce_bell(t: V) -> (V, V, V) {
        let square = t * t;
        let (n, _, r) = Self::reduce_exp(square * -0.5);
        (square, n, t.product_error(t, square).mul_add(V::splat(-0.5), r))
    }

    /// `t cdf(-t) exp(t^2 / 2) exp(r)` for t from 1 up.
    #[inline(always)]
    pub(super) fn normal_tail_reduced(t: V, r: V) -> V {
        let tail = polynomial((t - 2.0) * (t + 2.0).rough_reciprocal(), &CDF_TAIL) + CDF_TAIL_MIDDLE;
        tail.mul_add(Self::exp_m1_reduced(r), tail)
    }

    /// [`Math::pow`] of a positive finite `x` and a finite `y`, without tables.
    #[inline(always)]
    fn pow_of_positive(x: V, y: V) -> V {
        // The logarithm is multiplied by an exponent of up to 2^7 before it is one, so it needs digits of f64, but by far
        // not all of them; and what is left of it beside an integer does not.
        let (k, m) = x.split();
        let f = (m - 1.0).widen();
        let log2 = f.mul_add(polynomial(f, &LOG2_1P), k.widen());
        let exponent = (log2 * y.widen()).at_most(200.0).at_least(-200.0);
        let (n, _) = nearest(exponent, 1.0);
        polynomial(V::narrow(exponent - n), &EXP2).scale(V::narrow(n))
    }

    /// `x^y` given `|x|^y`, for a finite `x` and for a `y` that is not NaN; given anything where `x` is 0.
    #[inline(always)]
    fn pow_by_sign(x: V, y: V, power: V) -> V {
        let (zero, half) = (V::splat(0.0), y * 0.5);
        let integral = y.floor().equals(y);
        let odd = integral & !half.floor().equals(half);
        let of_zero = V::select(y.lt(zero), V::splat(f64::INFINITY), zero);
        let of_zero = V::select(y.equals(zero), V::splat(1.0), of_zero);
        let power = V::select(x.equals(zero), of_zero, power);
        let power = V::select(odd, power.copysign(x), power);
        V::select(x.lt(zero) & !integral, V::splat(f64::NAN), power)
    }

    /// `x^2`, or a little more: never subnormal. For even terms beside 1, which of a number so small that this matters are
    /// nothing.
    #[inline(always)]
    pub(super) fn square_beside_one(x: V) -> V {
        x.mul_add(x, V::splat(2f64.powi(-100)))
    }

    /// Sine and cosine of `r` in `-pi/4..pi/4`, and a hundredth beyond.
    #[inline(always)]
    fn sin_cos(r: V) -> (V, V) {
        let square = Self::square_beside_one(r);
        let sin = (polynomial(square, &SIN) * square).mul_add(r, r);
        (sin, polynomial(square, &COS).mul_add(square, V::splat(1.0)))
    }

    /// `asin(z)` for |z| up to 1/2 given its square.
    #[inline(always)]
    fn asin_small(z: V, square: V) -> V {
        (polynomial(square, &ASIN) * square).mul_add(z, z)
    }

    /// Whether |x| is above 1/2, and then with h = (1 - |x|) / 2, `asin(sqrt(h))`; else `asin(|x|)`.
    #[inline(always)]
    fn asin_parts(x: V) -> (V::Mask, V) {
        let size = x.abs();
        let large = V::splat(0.5).lt(size);
        let square = V::select(large, size.mul_add(V::splat(-0.5), V::splat(0.5)), size * size);
        (large, Self::asin_small(V::select(large, square.sqrt(), size), square))
    }
}

/// The first digits of a constant as an f32, and the rest.
const fn parts(c: f64) -> (f64, f64) {
    let high = c as f32 as f64;
    (high, c - high)
}

const LOG2_E_PARTS: (f64, f64) = parts(LOG2_E);
const SQRT_2_PARTS: (f64, f64) = parts(SQRT_2);
const LOG10_E_PARTS: (f64, f64) = parts(LOG10_E);
/// 12 bits of `log10(2)`, and the rest.
const LOG10_2_PARTS: (f64, f64) = (1233.0 / 4096.0, LOG10_2 - 1233.0 / 4096.0);
const PI_PARTS: (f64, f64) = parts(PI);

impl<V: simd::Single> Math for Single<V> {
    type V = V;

    #[inline(always)]
    fn exp_parts(high: V, low: V) -> (V, V) {
        let (n, _, r) = Self::reduce_exp(high.at_most(89.0).at_least(-140.0));
        (Self::exp_m1_reduced(r + low), n)
    }

    #[inline(always)]
    fn exp_shifted(x: V, shift: f64) -> V {
        let (n, _, r) = Self::reduce_exp(x.at_most(90.0).at_least(-104.0));
        Self::exp_reduced(r).scale(if shift == 0.0 { n } else { n + shift })
    }

    #[inline(always)]
    fn exp_alone(x: V) -> V {
        if V::PLAIN_POWERS {
            return Self::exp_plainly(x);
        }
        if let Some(exp) = x.exp_by_table() { exp } else { Self::exp(x) }
    }

    #[inline(always)]
    fn exp2(x: V) -> V {
        let x = x.at_most(129.0).at_least(-151.0);
        let (n, _) = nearest(x, 1.0);
        polynomial(x - n, &EXP2).scale(n)
    }

    #[inline(always)]
    fn exp_m1(x: V) -> V {
        let (n, _, r) = Self::reduce_exp(x.at_most(89.0).at_least(-18.0));
        let one = V::splat(1.0);
        // From 2^64 on, 1 no longer matters.
        let less = one.scale_by_product((-n).at_least(-64.0));
        (Self::exp_m1_reduced(r) + (one - less)).scale_by_product(n).copysign(x)
    }

    #[inline(always)]
    fn ln(x: V) -> V {
        if let Some(ln) = x.ln_by_table() {
            return ln;
        }
        let (k, m) = x.split();
        let f = m - 1.0;
        ln_limits(x, Self::ln_of(k, f, Self::ln_tail(f)))
    }

    #[inline(always)]
    fn log2(x: V) -> V {
        if !V::FUSED {
            return V::narrow(Double::log2(x.widen()));
        }
        let (k, m) = x.split();
        ln_limits(x, k + Self::ln_times(m - 1.0, LOG2_E_PARTS.0, LOG2_E_PARTS.1))
    }

    #[inline(always)]
    fn log10(x: V) -> V {
        if !V::FUSED {
            return V::narrow(Double::log10(x.widen()));
        }
        let (k, m) = x.split();
        let fraction = Self::ln_times(m - 1.0, LOG10_E_PARTS.0, LOG10_E_PARTS.1);
        let fraction = k.mul_add(V::splat(LOG10_2_PARTS.1), fraction);
        ln_limits(x, k.mul_add(V::splat(LOG10_2_PARTS.0), fraction))
    }

    #[inline(always)]
    fn ln_1p(x: V) -> V {
        let u = x + 1.0;
        let (k, _) = u.split();
        // 1 + x = 2^k (1 + f), from x itself, which has digits that the sum has lost.
        let power = V::splat(1.0).scale(-k);
        let f = x.mul_add(power, power - 1.0);
        ln_limits(u, Self::ln_of(k, f, Self::ln_tail_of_any(f))).copysign(x)
    }

    #[inline(always)]
    fn ln_1p_unit(x: V, low: V) -> V {
        let (half, one, zero) = (V::splat(0.5), V::splat(1.0), V::splat(0.0));
        // 1 + x = 2^k (1 + f)
        let large = half.lt(x);
        let k = V::select(large, one, zero);
        let f = V::select(large, x.mul_add(half, -half), x);
        let low = V::select(large, low * 0.5, low);
        let tail = k.mul_add(V::splat(LN_2_LOW), Self::ln_tail_of_any(f) + low);
        k.mul_add(V::splat(LN_2_HIGH), f + tail)
    }

    #[inline(always)]
    fn sinh(x: V) -> V {
        // (sinh(x) / x - 1) / x^2 in x^2, for |x| up to 1: the Taylor series.
        const C: [f64; 4] = [1.0 / 6.0, 1.0 / 120.0, 1.0 / 5040.0, 1.0 / 362_880.0];
        let size = x.abs();
        let square = Self::square_beside_one(x);
        let small = (polynomial(square, &C) * square).mul_add(x, x);
        let half = Self::exp_shifted(size, -1.0);
        let large = (half - V::splat(0.25) / half.at_most(LARGE_HALF)).copysign(x);
        V::select(size.lt(V::splat(1.0)), small, large)
    }

    #[inline(always)]
    fn erf(x: V) -> V {
        if let Some(erf) = x.widening(&widening::ERF) {
            return erf;
        }
        let size = x.abs().at_most(4.0);
        let (one, square) = (V::splat(1.0), Self::square_beside_one(x));
        let small = polynomial(square, &ERF).mul_add(size, size);
        let log2 = polynomial(size, &LOG2_ERFC);
        let (n, power) = nearest_power(log2, 1.0);
        let large = power.neg_mul_add(polynomial(log2 - n, &EXP2), one);
        V::select(size.lt(one), small, large).copysign(x)
    }

    #[inline(always)]
    fn erfc(x: V) -> V {
        if !V::FUSED {
            return V::narrow(Double::erfc(x.widen()));
        }
        // Twice the normal distribution at -|x| sqrt(2). Of less, 1 takes no notice, and a product would lose what is left over.
        let size = x.abs().at_least(2f64.powi(-40));
        let t = size * SQRT_2_PARTS.0;
        let low = size.mul_add(V::splat(SQRT_2_PARTS.1), size.product_error(V::splat(SQRT_2_PARTS.0), t));
        let Some(half) = t.piecewise(low, &pieces::CDF) else {
            return Self::erfc_by_exp(x);
        };
        let tail = half + half;
        let near = V::select(x.lt(V::splat(0.0)), V::splat(2.0) - tail, tail);
        let far = !t.lt(V::splat(pieces::CDF.end.into()));
        if far.any() {
            cold_path();
            return V::select(far, Self::erfc_by_exp(x), near);
        }
        near
    }

    #[inline(always)]
    fn normal_cdf(x: V) -> V {
        let (t, product) = Self::normal_tail(x);
        let one = V::splat(1.0);
        let tail = product.quotient(t);
        let large = V::select(x.lt(V::splat(0.0)), tail, one - tail);
        let line = x.mul_add(V::splat(CDF_SLOPE), V::splat(0.5));
        let small = polynomial(Self::square_beside_one(x), &CDF).mul_add(x, line);
        V::select(t.lt(one), small, large)
    }

    #[inline(always)]
    fn gelu(x: V) -> V {
        let t = x.abs();
        let (tail, end) = if let Some(tail) = t.piecewise(V::splat(-0.0), &pieces::CDF) {
            (tail, pieces::CDF.end)
        } else if let Some(tail) = t.on_eight_pieces(&pieces::CDF_ON_EIGHT) {
            (tail, EightPieces::<8>::END)
        } else {
            return V::narrow(Double::gelu(x.widen()));
        };
        let near = beside_tail(x, t, tail);
        let far = !t.lt(V::splat(end.into()));
        if far.any() {
            cold_path();
            return V::select(far, Self::gelu_far(x, t), near);
        }
        near
    }

    #[inline(always)]
    fn times_gelu_slope(dy: V, x: V) -> V {
        Self::times_gelu_slope_in_parts(dy, x)
    }

    #[inline(always)]
    fn times_exp(dy: V, alpha: V, x: V) -> V {
        if V::FUSED { Self::times_exp_in_parts(dy, alpha, x) } else { dy * (alpha * Self::exp(x)) }
    }

    #[inline(always)]
    fn times_sigmoid(dy: V, high: V, low: V) -> V {
        if V::FUSED { Self::times_sigmoid_in_parts(dy, high, low) } else { dy * Self::sigmoid_sum(high, low) }
    }

    #[inline(always)]
    fn times_sigmoid_slope(dy: V, x: V) -> V {
        if V::FUSED {
            return Self::times_sigmoid_slope_in_parts(dy, x);
        }
        dy * (Self::sigmoid(x) * Self::sigmoid(-x))
    }

    #[inline(always)]
    fn fast_gelu(x: V) -> V {
        if V::PLAIN_POWERS {
            let (high, low) = fast_gelu_argument(x);
            return Self::gated_plainly(x, high, low);
        }
        let t = x.abs();
        let Some(tail) = t.piecewise(V::splat(-0.0), &pieces::FAST_CDF) else {
            let (high, low) = fast_gelu_argument(x);
            return Self::gated_wide(x, high, low);
        };
        let near = beside_tail(x, t, tail);
        let far = !t.lt(V::splat(pieces::FAST_CDF.end.into()));
        if far.any() {
            cold_path();
            let (high, low) = fast_gelu_argument(x);
            return V::select(far, Self::gated_far(x, high, low), near);
        }
        near
    }

    #[inline(always)]
    fn tanh(x: V) -> V {
        if V::PLAIN_POWERS {
            return Self::tanh_plainly(x);
        }
        if let Some(tanh) = x.widening(&widening::TANH) { tanh } else { tanh::<Self>(x) }
    }

    #[inline(always)]
    fn sigmoid_sum(high: V, low: V) -> V {
        if V::PLAIN_POWERS {
            return Self::sigmoid_plainly(high, low);
        }
        let negative = high.lt(V::splat(0.0));
        Self::sigmoid_beside(high, low, negative, V::select(negative, -low, low))
    }

    #[inline(always)]
    fn sigmoid(x: V) -> V {
        if V::PLAIN_POWERS {
            // Of this zero compilers know that it changes nothing where it is subtracted.
            return Self::sigmoid_plainly(x, V::splat(0.0));
        }
        let nothing = V::splat(-0.0);
        Self::sigmoid_beside(x, nothing, x.lt(V::splat(0.0)), nothing)
    }

    #[inline(always)]
    fn gated(x: V, high: V, low: V) -> V {
        if V::PLAIN_POWERS {
            return Self::gated_plainly(x, high, low);
        }
        Self::gated_beside(x, high, low, V::select(high.lt(V::splat(0.0)), -low, low))
    }

    #[inline(always)]
    fn silu(x: V) -> V {
        if V::PLAIN_POWERS {
            return Self::gated_plainly(x, x, V::splat(0.0));
        }
        let nothing = V::splat(-0.0);
        Self::gated_beside(x, x, nothing, nothing)
    }

    #[inline(always)]
    fn sin(x: V) -> V {
        let (r, quadrant) = reduce_single(x);
        let (sin, cos) = Self::sin_cos(r);
        let result = V::select(quadrant.low_bit(0), cos, sin).flip_if_bit(quadrant, 1);
        V::select(x.equals(V::splat(0.0)), x, result)
    }

    #[inline(always)]
    fn cos(x: V) -> V {
        let (r, quadrant) = reduce_single(x);
        let (sin, cos) = Self::sin_cos(r);
        // Negative in quadrants 1 and 2.
        V::select(quadrant.low_bit(0), -sin, cos).flip_if_bit(quadrant, 1)
    }

    #[inline(always)]
    fn tan(x: V) -> V {
        let (r, quadrant) = reduce_single(x);
        let (sin, cos) = Self::sin_cos(r);
        let odd = quadrant.low_bit(0);
        let result = V::select(odd, -cos, sin) / V::select(odd, sin, cos);
        V::select(x.equals(V::splat(0.0)), x, result)
    }

    #[inline(always)]
    fn asin(x: V) -> V {
        let (large, y) = Self::asin_parts(x);
        let (high, low) = (V::splat(PI_PARTS.0 * 0.5), V::splat(PI_PARTS.1 * 0.5));
        V::select(large, (high - y * 2.0) + low, y).copysign(x)
    }

    #[inline(always)]
    fn acos(x: V) -> V {
        let (large, y) = Self::asin_parts(x);
        let negative = x.lt(V::splat(0.0));
        // pi - 2y and 2y past 1/2, pi/2 - y and pi/2 + y below.
        let signed = V::select(large, -(y * 2.0), y);
        let signed = V::select(negative, signed, -signed);
        let base = V::select(large, V::select(negative, V::splat(1.0), V::splat(0.0)), V::splat(0.5));
        let high = base * PI_PARTS.0;
        high + base.mul_add(V::splat(PI_PARTS.1), signed)
    }

    #[inline(always)]
    fn atan(x: V) -> V {
        // From 2^60 on the reciprocal no longer matters, and stays a normal number.
        let size = x.abs().at_most(2f64.powi(60));
        let large = V::splat(1.0).lt(size);
        let z = V::select(large, V::splat(-1.0) / size, size);
        let square = Self::square_beside_one(z);
        let y = (polynomial(square, &ATAN) * square).mul_add(z, z);
        let (high, low) = (V::splat(PI_PARTS.0 * 0.5), V::splat(PI_PARTS.1 * 0.5));
        V::select(large, high + (y + low), y).copysign(x)
    }

    #[inline(always)]
    fn asinh(x: V) -> V {
        V::narrow(Double::asinh(x.widen()))
    }

    #[inline(always)]
    fn acosh(x: V) -> V {
        V::narrow(Double::acosh(x.widen()))
    }

    #[inline(always)]
    fn atanh(x: V) -> V {
        V::narrow(Double::atanh(x.widen()))
    }

    #[inline(always)]
    fn lgamma(x: V) -> V {
        V::narrow(super::gamma::lgamma(x.widen()))
    }

    #[inline(always)]
    fn digamma(x: V) -> V {
        V::narrow(super::gamma::digamma(x.widen()))
    }

    #[inline(always)]
    fn trigamma(x: V) -> V {
        V::narrow(super::gamma::trigamma(x.widen()))
    }

    #[inline(always)]
    fn pow(x: V, y: V) -> V {
        let (size, zero, infinity) = (x.abs(), V::splat(0.0), V::splat(f64::INFINITY));
        let (power, exponent) = match size.pow_by_table(y) {
            Some(both) => both,
            None => (Self::pow_of_positive(size, y), y * 0.0),
        };
        let far = V::splat(1000.0);
        let usual = zero.lt(x) & x.lt(infinity) & exponent.abs().lt(far);
        let others = !usual;
        if !others.any() {
            return power;
        }
        let limit = V::select(exponent.lt(zero), zero, infinity);
        let power = Self::pow_by_sign(x, y, V::select(far.le(exponent.abs()), limit, power));
        let regular = zero.lt(size) & exponent.equals(exponent);
        let signed = size.lt(infinity) & (regular | (x.equals(zero) & y.equals(y)));
        let unusual = !signed;
        if unusual.any() {
            return V::select(unusual, V::narrow(Double::pow(x.widen(), y.widen())), power);
        }
        power
    }
}
