//! Functions in f64 arithmetic.

use super::{
    Double, LARGE_HALF, Math, gamma, gated, half_pi::reduce_double, ln_limits, polynomial, wide_pieces,
};
use crate::kernels::simd::{self, Mask, nearest};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E, LOG10_E, SQRT_2};

/// 32 bits of ln 2, and the rest.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// How much more the logarithm of e to base 10 is than `LOG10_E`.
const LOG10_E_LOW: f64 = 1.098_319_650_216_765e-17;

/// 33 bits of the logarithm of 2 to base 10, and the rest.
const LOG10_2_HIGH: f64 = 2_585_827_973.0 / 8_589_934_592.0;
const LOG10_2_LOW: f64 = -1.904_312_846_716_427_4e-12;

/// `(e^r - 1 - r) / r^2` for |r| up to ln(2) / 2.
const EXP: [f64; 10] = [
    0.5,
    0.16666666666661922,
    0.04166666666661961,
    0.008333333336546596,
    0.001388888892069513,
    0.0001984126264511888,
    2.4801516071951177e-05,
    2.7563870050254976e-06,
    2.7622352102492636e-07,
    2.297647590645577e-08,
];

/// `(2 atanh(s) / s - 2) / s^2` in s^2, for |s| up to 1/5.
const LN: [f64; 8] = [
    0.6666666666666663,
    0.40000000000043456,
    0.2857142855769642,
    0.2222222418734933,
    0.18181668123387904,
    0.15391138710010033,
    0.13171926956312066,
    0.13860432944403706,
];

/// The first term of `(atanh(s) / s - 1) / s^2`.
const LOG2_FIRST: f64 = 1.0 / 3.0;

/// The rest of it over s^2, in s^2, for |s| up to 1/5.
const LOG2: [f64; 7] = [
    0.2000000000001113,
    0.14285714281140527,
    0.11111111849867754,
    0.0909084806609877,
    0.07695127280480385,
    0.06593171232711256,
    0.06882823030922852,
];

/// `(sin(r) / r - 1) / r^2` in r^2, for |r| up to pi / 4.
const SIN: [f64; 7] = [
    -0.16666666666666666,
    0.008333333333333325,
    -0.0001984126984125551,
    2.7557319214027716e-06,
    -2.5052104796906876e-08,
    1.605834538423585e-10,
    -7.577404603494264e-13,
];

/// `(cos(r) - 1 + r^2 / 2) / r^4` in r^2.
const COS: [f64; 7] = [
    0.041666666666666664,
    -0.0013888888888888883,
    2.4801587301579336e-05,
    -2.755731921844968e-07,
    2.087675499292433e-09,
    -1.1470357341496901e-11,
    4.7407052758736015e-14,
];

/// `(atan(z) / z - 1) / z^2` in z^2, for |z| up to sqrt(2) - 1.
const ATAN: [f64; 12] = [
    -0.3333333333333333,
    0.19999999999998527,
    -0.14285714285467033,
    0.11111111091726454,
    -0.09090908233545816,
    0.07692284070555755,
    -0.06666237828992848,
    0.05877064481147395,
    -0.052183345129685935,
    0.04502116827650732,
    -0.033419075090948366,
    0.01512038970398865,
];

/// `(sinh(x) / x - 1) / x^2` in x^2, for |x| up to 1.
const SINH: [f64; 8] = [
    0.16666666666666666,
    0.008333333333333333,
    0.0001984126984126962,
    2.7557319224113392e-06,
    2.5052108346198902e-08,
    1.6059050734408982e-10,
    7.646469483532728e-13,
    2.84868333895995e-15,
];

/// `erf(x) / x - 1` in x^2, for |x| up to 1.
const ERF: [f64; 13] = [
    0.1283791670955126,
    -0.3761263890318375,
    0.11283791670954857,
    -0.026866170645072872,
    0.005223977624780714,
    -0.0008548326978735512,
    0.0001205533103671166,
    -1.4925593503408068e-05,
    1.6460972774474515e-06,
    -1.6350024888585938e-07,
    1.4657878265232984e-08,
    -1.136566211501181e-09,
    5.945258597078002e-11,
];

/// `erfc(t) exp(t^2) (t + 1)` in `(t - 4) / (t + 4)`, for t from 0 to past where erfc is 0; the constant
/// term apart.
const ERFC_MIDDLE: f64 = 0.6849972881253069;
const ERFC: [f64; 22] = [
    -0.19934458280036724,
    0.1170496655104422,
    -0.048080381221290255,
    0.003962055681307996,
    0.015312509678670988,
    -0.017515654647020866,
    0.012161784763371068,
    -0.006068735212037903,
    0.0021164214902894118,
    -0.0003897675589421698,
    -6.0136265884398274e-05,
    6.403317481557631e-05,
    -1.3152838016702518e-05,
    -4.140173270040776e-06,
    2.653818094674762e-06,
    8.439612258673119e-09,
    -3.6850518555325107e-07,
    4.458251202995816e-08,
    4.940439298727551e-08,
    -5.607920303187776e-09,
    -5.79066734032292e-09,
    -5.81398057007129e-10,
];

/// pi, and how much more it is.
const PI: (f64, f64) = (std::f64::consts::PI, 1.224_646_799_147_353_2e-16);

/// Above this, `x + 1` and `sqrt(x^2 + 1)` are `x` to all digits that a logarithm shows.
const LARGE: f64 = 268_435_456.0;

impl<V: simd::Double> Double<V> {
    /// `n`, its sum with the rounder, and `r` such that `x = n ln(2) + r`.
    #[inline(always)]
    fn reduce_exp(x: V) -> (V, V, V) {
        let (n, rounded) = nearest(x, LOG2_E);
        let r = n.neg_mul_add(V::splat(LN_2_HIGH), x);
        (n, rounded, n.neg_mul_add(V::splat(LN_2_LOW), r))
    }

    #[inline(always)]
    fn exp_reduced(r: V) -> V {
        let one = V::splat(1.0);
        polynomial(r, &EXP).mul_add(r, one).mul_add(r, one)
    }

    #[inline(always)]
    fn exp_m1_reduced(r: V) -> V {
        // As in f32.
        (polynomial(r, &EXP) * r).mul_add(r, r)
    }

    /// How much `f` exceeds `ln(1 + f) + low`.
    #[inline(always)]
    fn ln_excess(f: V, low: V) -> V {
        let s = f.quotient(f + 2.0);
        let square = s * s;
        let half = f * f * 0.5;
        half - s.mul_add(polynomial(square, &LN).mul_add(square, half), low)
    }

    /// Two numbers whose sum is `ln(x)`, for positive finite x. The first is exact, so that what nearly cancels it
    /// may be taken from it without loss.
    #[inline(always)]
    pub(super) fn ln_parts(x: V) -> (V, V) {
        let (k, m) = x.split();
        let f = m - 1.0;
        (k * LN_2_HIGH, f - Self::ln_excess(f, k * LN_2_LOW))
    }

    /// `ln(1 + f) + k ln(2)`, for f in -1/4..1/2.
    #[inline(always)]
    fn ln_of(k: V, f: V) -> V {
        let excess = Self::ln_excess(f, k * LN_2_LOW);
        k.mul_add(V::splat(LN_2_HIGH), f - excess)
    }

    /// `log2(x)` as a sum of two, for positive finite x; right to 2^-60 relative.
    #[inline(always)]
    fn log2_parts(x: V) -> (V, V) {
        // 2 / ln(2), and how much more it is.
        const SCALE: (f64, f64) = (2.0 * LOG2_E, 2.0 * 2.035_527_374_093_103e-17);
        let (k, m) = x.split();
        let f = m - 1.0;
        // s = f / (2 + f), and what its rounding and that of the sum have lost.
        let sum = f + 2.0;
        let inverse = sum.rough_reciprocal();
        let s = f * inverse;
        let s = s.neg_mul_add(sum, f).mul_add(inverse, s);
        let error = if V::FUSED {
            s.neg_mul_add(sum, f)
        } else {
            let product = s * sum;
            (f - product) - s.product_error(sum, product)
        };
        let lost = s.neg_mul_add(f - (sum - 2.0), error) * inverse;
        let square = s * s;
        let square_low = (s + s).mul_add(lost, s.product_error(s, square));
        let scaled = s * SCALE.0;
        let scaled_low = s.mul_add(V::splat(SCALE.1), s.product_error(V::splat(SCALE.0), scaled));
        let scaled_low = lost.mul_add(V::splat(SCALE.0), scaled_low);
        // atanh(s) / s - 1, whose first term has to have more digits than one number.
        let more = square * LOG2_FIRST;
        let more_low =
            square_low.mul_add(V::splat(LOG2_FIRST), square.product_error(V::splat(LOG2_FIRST), more));
        let more_low = polynomial(square, &LOG2).mul_add(square * square, more_low);
        let second = scaled * more;
        let low = scaled_low.mul_add(more, scaled.product_error(more, second));
        let low = scaled.mul_add(more_low, low) + scaled_low;
        let high = scaled + second;
        let whole = k + high;
        let rest = (k - whole) + high + ((scaled - high) + second + low);
        let result = whole + rest;
        (result, rest - (result - whole))
    }

    /// Sine and cosine of `r` in `-pi/4..pi/4`.
    #[inline(always)]
    fn sin_cos(r: V) -> (V, V) {
        let square = r * r;
        let sin = (polynomial(square, &SIN) * square).mul_add(r, r);
        let cos =
            polynomial(square, &COS).mul_add(square * square, square.mul_add(V::splat(-0.5), V::splat(1.0)));
        (sin, cos)
    }

    /// `atan(y / x)` in 0..=pi/2, for `x` and `y` not negative.
    #[inline(always)]
    fn atan_ratio(y: V, x: V) -> V {
        const TAN_EIGHTH: f64 = SQRT_2 - 1.0;
        let (low, high) = (y.lt(x * TAN_EIGHTH), x.lt(y * TAN_EIGHTH));
        let zero = V::splat(0.0);
        // atan(y / x) = pi/4 + atan((y - x) / (y + x)) = pi/2 - atan(x / y)
        let top = V::select(low, y, V::select(high, -x, y - x));
        let bottom = V::select(low, x, V::select(high, y, y + x));
        let base = V::select(low, zero, V::select(high, V::splat(0.5), V::splat(0.25)));
        let z = top / bottom;
        let square = z * z;
        let angle = (polynomial(square, &ATAN) * square).mul_add(z, z);
        // Multiplying pi by these fractions is exact.
        base * PI.0 + base.mul_add(V::splat(PI.1), angle)
    }

    /// `(m, n)` with `exp(-square - low) erfc(u) exp(u^2) = 2^n m`, where `u` is `t + rest`.
    #[inline(always)]
    fn erfc_parts(t: V, rest: V, square: V, low: V) -> (V, V) {
        if let Some(ratio) = t.on_pieces(rest, &wide_pieces::ERFCX) {
            let (n, _, r) = Self::reduce_exp(-square);
            return (ratio.mul_add(Self::exp_m1_reduced(r - low), ratio), n);
        }
        let z = (t - 4.0) / (t + 4.0);
        let (tail, middle) = (polynomial(z, &ERFC), V::splat(ERFC_MIDDLE));
        let top = tail.mul_add(z, middle);
        let bottom = t + 1.0;
        let inverse = V::splat(1.0) / bottom;
        let ratio = top * inverse;
        // What has been lost, which is added only after the exponential's own small part: by the last sum of the
        // polynomial, by the quotient, and by t itself; the function goes down about as 1 / (1 + t) does.
        let error = if V::FUSED {
            ratio.neg_mul_add(bottom, top)
        } else {
            let product = ratio * bottom;
            (top - product) - ratio.product_error(bottom, product)
        };
        let more = (t - (bottom - 1.0)) + rest;
        let lost = ratio.neg_mul_add(more, tail.mul_add(z, middle - top) + error) * inverse;
        let (n, _, r) = Self::reduce_exp(-square);
        (ratio + ratio.mul_add(Self::exp_m1_reduced(r - low), lost), n)
    }

    /// `erfc(t)`, where `square + low` is t^2.
    #[inline(always)]
    fn erfc_tail(t: V, square: V, low: V) -> V {
        let (m, n) = Self::erfc_parts(t, V::splat(-0.0), square, low);
        m.scale(n)
    }

    /// `(m, n)` with `2^n m` the normal distribution function of `-|x|`.
    #[inline(always)]
    fn normal_tail(x: V) -> (V, V) {
        // How much 1 / sqrt(2) exceeds the constant.
        const MORE: f64 = -4.833_646_656_726_457e-17;
        let t = x.abs().at_most(40.0);
        let square = t * t;
        let low = t.product_error(t, square) * 0.5;
        let u = t * FRAC_1_SQRT_2;
        let rest = t.mul_add(V::splat(MORE), t.product_error(V::splat(FRAC_1_SQRT_2), u));
        let (m, n) = Self::erfc_parts(u, rest, square * 0.5, low);
        (m, n - 1.0)
    }

    /// `ln(x + y)` for `x` up to [`LARGE`], and `ln(2x)` above, given `x - 1 + y` and `x - 1`.
    #[inline(always)]
    fn ln_of_sum(large: V::Mask, sum: V, less_one: V) -> V {
        let ln = Self::ln_1p(V::select(large, less_one, sum));
        ln + V::select(large, V::splat(LN_2), V::splat(0.0))
    }
}

impl<V: simd::Double> Math for Double<V> {
    type V = V;

    #[inline(always)]
    fn exp_parts(high: V, low: V) -> (V, V) {
        let (n, _, r) = Self::reduce_exp(high.at_most(710.0).at_least(-760.0));
        (Self::exp_m1_reduced(r + low), n)
    }

    #[inline(always)]
    fn exp_shifted(x: V, shift: f64) -> V {
        let (n, _, r) = Self::reduce_exp(x.at_most(711.0).at_least(-746.0));
        Self::exp_reduced(r).scale(if shift == 0.0 { n } else { n + shift })
    }

    #[inline(always)]
    fn exp2(x: V) -> V {
        let x = x.at_most(1025.0).at_least(-1080.0);
        let (n, _) = nearest(x, 1.0);
        Self::exp_reduced((x - n) * LN_2).scale(n)
    }

    #[inline(always)]
    fn exp_m1(x: V) -> V {
        let (n, _, r) = Self::reduce_exp(x.at_most(710.0).at_least(-40.0));
        let one = V::splat(1.0);
        let less = one.scale_by_product((-n).at_least(-64.0));
        (Self::exp_m1_reduced(r) + (one - less)).scale_by_product(n).copysign(x)
    }

    #[inline(always)]
    fn ln(x: V) -> V {
        let (k, m) = x.split();
        ln_limits(x, Self::ln_of(k, m - 1.0))
    }

    #[inline(always)]
    fn log2(x: V) -> V {
        let (k, m) = x.split();
        let f = m - 1.0;
        let ln = f - Self::ln_excess(f, V::splat(0.0));
        ln_limits(x, ln.mul_add(V::splat(LOG2_E), k))
    }

    #[inline(always)]
    fn log10(x: V) -> V {
        let (k, m) = x.split();
        let f = m - 1.0;
        let ln = f - Self::ln_excess(f, V::splat(0.0));
        // Below 1 both parts cancel to half their size, so what the product has lost is added to the rest.
        let high = ln * LOG10_E;
        let low = ln.mul_add(V::splat(LOG10_E_LOW), ln.product_error(V::splat(LOG10_E), high));
        let sum = k.mul_add(V::splat(LOG10_2_HIGH), high);
        ln_limits(x, sum + k.mul_add(V::splat(LOG10_2_LOW), low))
    }

    #[inline(always)]
    fn ln_1p(x: V) -> V {
        let u = x + 1.0;
        let (k, _) = u.split();
        // 1 + x = 2^k (1 + f), from x itself, which has digits that the sum has lost.
        let power = V::splat(1.0).scale(-k);
        let f = x.mul_add(power, power - 1.0);
        ln_limits(u, Self::ln_of(k, f)).copysign(x)
    }

    #[inline(always)]
    fn ln_1p_unit(x: V, _low: V) -> V {
        Self::ln_1p(x)
    }

    #[inline(always)]
    fn sinh(x: V) -> V {
        let size = x.abs();
        let square = x * x;
        let small = (polynomial(square, &SINH) * square).mul_add(x, x);
        let half = Self::exp_shifted(size, -1.0);
        let large = (half - V::splat(0.25) / half.at_most(LARGE_HALF)).copysign(x);
        V::select(size.lt(V::splat(1.0)), small, large)
    }

    #[inline(always)]
    fn erf(x: V) -> V {
        let size = x.abs().at_most(6.0);
        if let Some(erf) = size.on_pieces(V::splat(-0.0), &wide_pieces::ERF) {
            return erf.copysign(x);
        }
        let (one, square) = (V::splat(1.0), size * size);
        let small = polynomial(square, &ERF).mul_add(size, size);
        let large = one - Self::erfc_tail(size, square, V::splat(0.0));
        V::select(size.lt(one), small, large).copysign(x)
    }

    #[inline(always)]
    fn erfc(x: V) -> V {
        // Below the lower bound it rounds to 1, and squares would be less than normal.
        let t = x.abs().at_most(28.0).at_least(2f64.powi(-100));
        let square = t * t;
        let tail = Self::erfc_tail(t, square, t.product_error(t, square));
        V::select(x.lt(V::splat(0.0)), V::splat(2.0) - tail, tail)
    }

    #[inline(always)]
    fn normal_cdf(x: V) -> V {
        let (m, n) = Self::normal_tail(x);
        let tail = m.scale(n);
        V::select(x.lt(V::splat(0.0)), tail, V::splat(1.0) - tail)
    }

    #[inline(always)]
    fn gelu(x: V) -> V {
        let (m, n) = Self::normal_tail(x);
        // Scaled last, so that a factor below the normal numbers loses nothing. Adding 0 x makes NaN of -inf.
        let left = x.mul_add(V::splat(0.0), x.at_least(-40.0) * m).scale(n);
        V::select(x.lt(V::splat(0.0)), left, x * (V::splat(1.0) - m.scale(n))).copysign(x)
    }

    #[inline(always)]
    fn gated(x: V, high: V, low: V) -> V {
        gated::<Self>(x, high, low)
    }

    #[inline(always)]
    fn sin(x: V) -> V {
        let (r, quadrant, large) = reduce_double(x);
        let (sin, cos) = Self::sin_cos(r);
        let result = V::select(quadrant.low_bit(0), cos, sin).flip_if_bit(quadrant, 1);
        let result = V::select(x.equals(V::splat(0.0)), x, result);
        if large.any() { V::select(large, x.map(libm::sin), result) } else { result }
    }

    #[inline(always)]
    fn cos(x: V) -> V {
        let (r, quadrant, large) = reduce_double(x);
        let (sin, cos) = Self::sin_cos(r);
        // Negative in quadrants 1 and 2.
        let result = V::select(quadrant.low_bit(0), -sin, cos).flip_if_bit(quadrant, 1);
        if large.any() { V::select(large, x.map(libm::cos), result) } else { result }
    }

    #[inline(always)]
    fn tan(x: V) -> V {
        let (r, quadrant, large) = reduce_double(x);
        let (sin, cos) = Self::sin_cos(r);
        let odd = quadrant.low_bit(0);
        let result = V::select(odd, -cos, sin) / V::select(odd, sin, cos);
        let result = V::select(x.equals(V::splat(0.0)), x, result);
        if large.any() { V::select(large, x.map(libm::tan), result) } else { result }
    }

    #[inline(always)]
    fn asin(x: V) -> V {
        let size = x.abs();
        let one = V::splat(1.0);
        Self::atan_ratio(size, ((one - size) * (one + size)).sqrt()).copysign(x)
    }

    #[inline(always)]
    fn acos(x: V) -> V {
        let size = x.abs();
        let one = V::splat(1.0);
        let angle = Self::atan_ratio(((one - size) * (one + size)).sqrt(), size);
        let negative = V::splat(PI.0) - (angle - PI.1);
        V::select(x.lt(V::splat(0.0)), negative, angle)
    }

    #[inline(always)]
    fn atan(x: V) -> V {
        Self::atan_ratio(x.abs(), V::splat(1.0)).copysign(x)
    }

    #[inline(always)]
    fn asinh(x: V) -> V {
        let size = x.abs();
        let square = size * size;
        let sum = size + square / ((square + 1.0).sqrt() + 1.0);
        Self::ln_of_sum(V::splat(LARGE).lt(size), sum, size - 1.0).copysign(x)
    }

    #[inline(always)]
    fn acosh(x: V) -> V {
        let t = x - 1.0;
        let sum = t + t.mul_add(t, t * 2.0).sqrt();
        let result = Self::ln_of_sum(V::splat(LARGE).lt(x), sum, t);
        V::select(x.lt(V::splat(1.0)), V::splat(f64::NAN), result)
    }

    #[inline(always)]
    fn atanh(x: V) -> V {
        let size = x.abs();
        (Self::ln_1p(size * 2.0 / (V::splat(1.0) - size)) * 0.5).copysign(x)
    }

    #[inline(always)]
    fn lgamma(x: V) -> V {
        x.map(gamma::lgamma_double)
    }

    #[inline(always)]
    fn digamma(x: V) -> V {
        gamma::digamma(x)
    }

    #[inline(always)]
    fn trigamma(x: V) -> V {
        gamma::trigamma(x)
    }

    #[inline(always)]
    fn pow(x: V, y: V) -> V {
        let (zero, one, infinity) = (V::splat(0.0), V::splat(1.0), V::splat(f64::INFINITY));
        let size = x.abs();
        let (mut high, low) = Self::log2_parts(size);
        // Without a fused multiply-add, the error of a product with the largest exponents overflows, also where the base is
        // 1. From 2^100 on, powers of all others are 0 or infinite.
        let usual = zero.lt(x) & x.lt(infinity) & y.abs().lt(V::splat(2f64.powi(100)));
        let unusual = (!usual).any();
        if unusual {
            high = V::select(size.lt(infinity), high, size);
            high = V::select(size.equals(zero), -infinity, high);
        }
        let exponent = (y * high).at_most(1100.0).at_least(-1100.0);
        let low = y.mul_add(low, y.product_error(high, exponent));
        let low = V::select(exponent.abs().lt(V::splat(1100.0)), low, zero);
        let (n, _) = nearest(exponent, 1.0);
        let power = Self::exp_reduced((exponent - n + low) * LN_2).scale(n);
        if !unusual {
            return power;
        }
        let power = V::select(size.equals(one) | y.equals(zero), one, power);

        let integral = y.floor().equals(y);
        let half = y * 0.5;
        let odd = integral & !half.floor().equals(half);
        let power = V::select(odd, power.copysign(x), power);
        let outside = x.lt(zero) & size.lt(infinity) & !integral;
        // One to any power is one, even to NaN; and so is any number, even NaN, to the power of zero.
        let nan = outside | (y.is_nan() & !x.equals(one)) | (x.is_nan() & !y.equals(zero));
        V::select(nan, V::splat(f64::NAN), power)
    }
}
