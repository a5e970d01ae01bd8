//! Exponentials, logarithms, circular and hyperbolic functions.

use super::wide::Wide;
use std::sync::LazyLock;

/// The ratio of a circle's circumference to its diameter.
pub const PI: Wide = Wide::constant(1, 0xc90fdaa2_2168c234_c4c6628b_80dc1cd1);
/// The natural logarithm of 2.
pub const LN_2: Wide = Wide::constant(-1, 0xb17217f7_d1cf79ab_c9e3b398_03f2f6af);
/// The natural logarithm of 10.
pub const LN_10: Wide = Wide::constant(1, 0x935d8ddd_aaa8ac16_ea56d62b_82d30a29);

/// `1 / n` from `n = 1` on; the first entry is not used.
pub(super) static RECIPROCALS: LazyLock<Vec<Wide>> =
    LazyLock::new(|| (0..512).map(|n| Wide::ONE / Wide::from(n as i128)).collect());

/// `1 / n!`.
static FACTORIALS: LazyLock<Vec<Wide>> = LazyLock::new(|| {
    let mut last = Wide::ONE;
    (0..48i128)
        .map(|n| {
            last = last / Wide::from(n.max(1));
            last
        })
        .collect()
});

/// Beyond this an exponential is beyond every format by any factor that occurs. It ends as zero below, but
/// stays finite above, so that quotients of exponentials keep their limits.
const EXP_END: f64 = 1_048_576.0;

/// `e^x`. DLMF 4.2.19, for `x` less a multiple of ln 2 and divided by 2^8, then squared 8 times.
pub fn exp(x: Wide) -> Wide {
    if x.is_nan() {
        return x;
    }
    if x.is_infinite() {
        return if x.is_negative() { Wide::ZERO } else { x };
    }
    if x < Wide::from(-EXP_END) {
        return Wide::ZERO;
    }
    let x = if x > Wide::from(EXP_END) { Wide::from(EXP_END) } else { x };
    let n = (x.to_f64() * std::f64::consts::LOG2_E).round_ties_even();
    let r = (x - Wide::from(n) * LN_2).times_power_of_2(-8);
    let mut power = taylor(r, 13);
    for _ in 0..8 {
        power = power.square();
    }
    power.times_power_of_2(n as i64)
}

/// The sum of `r^k / k!` over `terms` terms.
fn taylor(r: Wide, terms: usize) -> Wide {
    FACTORIALS[..terms].iter().rev().fold(Wide::ZERO, |sum, c| sum * r + *c)
}

/// `e^x - 1`, to full relative accuracy near zero; each zero its own.
pub fn exp_m1(x: Wide) -> Wide {
    if x.is_zero() {
        return x;
    }
    if x.abs() > Wide::from(0.5) || x.is_nan() {
        return exp(x) - Wide::ONE;
    }
    FACTORIALS[1..32].iter().rev().fold(Wide::ZERO, |sum, c| sum * x + *c) * x
}

/// Inverse hyperbolic tangent of a small number. DLMF 4.38.5.
fn atanh_series(s: Wide) -> Wide {
    let square = s.square();
    (0..30).rev().fold(Wide::ZERO, |sum, k| sum * square + RECIPROCALS[2 * k + 1]) * s
}

/// The natural logarithm; -infinity at zeros, NaN below. `2 atanh((m - 1) / (m + 1)) + k ln 2` for
/// `x = 2^k m` with m between the roots of 1/2 and 2.
pub fn ln(x: Wide) -> Wide {
    if x.is_zero() {
        return -Wide::INFINITY;
    }
    if x.is_negative() || x.is_nan() {
        return Wide::NAN;
    }
    if x.is_infinite() {
        return x;
    }
    let mut k = x.exponent();
    let mut m = x.times_power_of_2(-k);
    if m > Wide::from(std::f64::consts::SQRT_2) {
        m = m.times_power_of_2(-1);
        k += 1;
    }
    let s = (m - Wide::ONE) / (m + Wide::ONE);
    atanh_series(s).times_power_of_2(1) + Wide::from(i128::from(k)) * LN_2
}

/// `ln(1 + x)`, to full relative accuracy near zero; each zero its own.
pub fn ln_1p(x: Wide) -> Wide {
    if x.is_zero() {
        return x;
    }
    if x.abs() > Wide::from(0.25) || x.is_nan() {
        return ln(Wide::ONE + x);
    }
    atanh_series(x / (Wide::from(2.0) + x)).times_power_of_2(1)
}

/// `x^y` with the special values of C's `pow` (C23 F.10.4.5).
pub fn pow(x: f64, y: f64) -> Wide {
    if y == 0.0 || x == 1.0 {
        return Wide::ONE;
    }
    if x.is_nan() || y.is_nan() || x < 0.0 && x.is_finite() && y.is_finite() && y.fract() != 0.0 {
        return Wide::NAN;
    }
    if x == -1.0 && y.is_infinite() {
        return Wide::ONE;
    }
    let odd = y.is_finite() && y.fract() == 0.0 && (y % 2.0).abs() == 1.0;
    let base = Wide::from(x.abs());
    // Few multiplications and roots are exact where the result is, so that one that is halfway between two
    // numbers of a format rounds to even.
    let root = |base: Wide, times| (0..times).fold(base, |base, _| base.sqrt());
    let roots = (0..3).find(|n| (y * f64::from(1 << n)).fract() == 0.0);
    let magnitude = match roots {
        Some(n) if y.abs() <= 64.0 && x.is_finite() => whole_power(root(base, n), y * f64::from(1 << n)),
        _ => exp(Wide::from(y) * ln(base)),
    };
    if odd && x.is_sign_negative() { -magnitude } else { magnitude }
}

/// `x^n` for an integer n, by squaring.
fn whole_power(x: Wide, n: f64) -> Wide {
    let bits = n.abs() as u32;
    let power = (0..u32::BITS).rev().fold(Wide::ONE, |power, bit| {
        let square = power.square();
        if bits >> bit & 1 == 1 { square * x } else { square }
    });
    if n < 0.0 { Wide::ONE / power } else { power }
}

/// The first 1280 bits of 2 / pi.
const TWO_OVER_PI: [u64; 20] = [
    0xa2f9836e_4e441529,
    0xfc2757d1_f534ddc0,
    0xdb629599_3c439041,
    0xfe5163ab_debbc561,
    0xb7246e3a_424dd2e0,
    0x06492eea_09d1921c,
    0xfe1deb1c_b129a73e,
    0xe88235f5_2ebb4484,
    0xe99c7026_b45f7e41,
    0x3991d639_835339f4,
    0x9c845f8b_bdf9283b,
    0x1ff897ff_de05980f,
    0xef2f118b_5a0a6d1f,
    0x6d367ecf_27cb09b7,
    0x4f463f66_9e5fea2d,
    0x7527bac7_ebe5f17b,
    0x3d0739f7_8a5292ea,
    0x6bfb5fb1_1f8d5d08,
    0x56033046_fc7b6bab,
    0xf0cfbc20_9af4361d,
];

/// The quadrant of a finite angle, and what is left of it, at most pi / 4 on either side.
///
/// Multiplies by all of [`TWO_OVER_PI`] (Payne and Hanek, 1983) and keeps 256 bits behind the point.
fn reduce(x: f64) -> (u8, Wide) {
    let bits = x.abs().to_bits();
    let exponent = (bits >> 52) as i64 - 1075;
    if exponent < -53 {
        return (0, Wide::from(x));
    }
    let mantissa = u128::from(bits & ((1 << 52) - 1) | 1 << 52);
    // The product in words, the lowest first.
    let mut product = [0u64; 22];
    let mut carry = 0u128;
    for (word, digits) in product.iter_mut().zip(TWO_OVER_PI.iter().rev()) {
        carry += mantissa * u128::from(*digits);
        *word = carry as u64;
        carry >>= 64;
    }
    product[20] = carry as u64;
    let point = (1280 - exponent) as usize;
    let word_at = |bit: usize| {
        let word = |i: usize| product.get(i).copied().unwrap_or(0);
        let pair = u128::from(word(bit / 64 + 1)) << 64 | u128::from(word(bit / 64));
        u128::from((pair >> (bit % 64)) as u64)
    };
    let two_words = |bit: usize| word_at(bit + 64) << 64 | word_at(bit);
    let mut quadrant = word_at(point) as u8;
    let (mut high, mut low) = (two_words(point - 128), two_words(point - 256));
    let above = high >> 127 == 1;
    if above {
        quadrant = quadrant.wrapping_add(1);
        (low, high) = ((!low).wrapping_add(1), (!high).wrapping_add(u128::from(low == 0)));
    }
    let fraction = Wide::unsigned(high, -128) + Wide::unsigned(low, -256);
    let angle = fraction * PI.times_power_of_2(-1);
    let (quadrant, negative) = if x < 0.0 { (quadrant.wrapping_neg(), !above) } else { (quadrant, above) };
    (quadrant & 3, if negative { -angle } else { angle })
}

/// Sine and cosine of an angle of at most about 1. DLMF 4.19.1, 4.19.2.
fn sin_cos_series(r: Wide) -> (Wide, Wide) {
    let square = -r.square();
    let sum = |first: usize| {
        let terms = FACTORIALS[..40].iter().skip(first).step_by(2);
        terms.rev().fold(Wide::ZERO, |sum, c| sum * square + *c)
    };
    (sum(1) * r, sum(0))
}

/// Sine and cosine; NaN for infinities.
pub fn sin_cos(x: f64) -> (Wide, Wide) {
    if !x.is_finite() {
        return (Wide::NAN, Wide::NAN);
    }
    let (quadrant, r) = reduce(x);
    turn(quadrant, sin_cos_series(r))
}

fn turn(quadrant: u8, (sin, cos): (Wide, Wide)) -> (Wide, Wide) {
    match quadrant {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// Sine and cosine of `pi x` for a finite x.
pub(super) fn sin_cos_pi(x: f64) -> (Wide, Wide) {
    let r = x % 2.0;
    let halves = (2.0 * r).round_ties_even();
    let rest = Wide::from(r) - Wide::from(0.5 * halves);
    turn((halves as i64 & 3) as u8, sin_cos_series(rest * PI))
}

/// Inverse tangent: f64's, corrected by that of the difference (DLMF 4.24.15).
pub fn atan(x: Wide) -> Wide {
    if x.is_nan() || x.is_zero() {
        return x;
    }
    if x.is_infinite() {
        return PI.times_power_of_2(-1).with_sign_of(x);
    }
    let magnitude = x.abs();
    if magnitude > Wide::ONE {
        return (PI.times_power_of_2(-1) - atan(Wide::ONE / magnitude)).with_sign_of(x);
    }
    if magnitude.exponent() < -64 {
        return x;
    }
    let near = magnitude.to_f64().atan();
    let (sin, cos) = sin_cos_series(Wide::from(near));
    let t = (magnitude * cos - sin) / (cos + magnitude * sin);
    let correction = t - t.square() * t * RECIPROCALS[3];
    (Wide::from(near) + correction).with_sign_of(x)
}

/// `1 - x^2`, exact for an f64.
fn one_minus_square(x: Wide) -> Wide {
    (Wide::ONE - x) * (Wide::ONE + x)
}

/// Inverse sine; NaN outside -1 to 1. DLMF 4.23.
pub fn asin(x: Wide) -> Wide {
    if x.abs() > Wide::ONE { Wide::NAN } else { atan(x / one_minus_square(x).sqrt()) }
}

/// Inverse cosine; NaN outside -1 to 1.
pub fn acos(x: Wide) -> Wide {
    if x.abs() > Wide::ONE {
        return Wide::NAN;
    }
    atan(((Wide::ONE - x) / (Wide::ONE + x)).sqrt()).times_power_of_2(1)
}

/// Hyperbolic sine.
pub fn sinh(x: Wide) -> Wide {
    if x.is_infinite() {
        return x;
    }
    let q = exp_m1(x.abs());
    (q + q / (q + Wide::ONE)).times_power_of_2(-1).with_sign_of(x)
}

/// Hyperbolic cosine.
pub fn cosh(x: Wide) -> Wide {
    (exp(x) + exp(-x)).times_power_of_2(-1)
}

/// Hyperbolic tangent.
pub fn tanh(x: Wide) -> Wide {
    if x.is_infinite() {
        return Wide::ONE.with_sign_of(x);
    }
    let q = exp_m1(x.abs().times_power_of_2(1));
    (q / (q + Wide::from(2.0))).with_sign_of(x)
}

/// Inverse hyperbolic sine. DLMF 4.37.16, rearranged against cancellation.
pub fn asinh(x: Wide) -> Wide {
    if x.is_infinite() {
        return x;
    }
    let magnitude = x.abs();
    let root = (Wide::ONE + x.square()).sqrt();
    ln_1p(magnitude + x.square() / (Wide::ONE + root)).with_sign_of(x)
}

/// Inverse hyperbolic cosine; NaN below 1. DLMF 4.37.19, rearranged against cancellation.
pub fn acosh(x: Wide) -> Wide {
    if x < Wide::ONE {
        return Wide::NAN;
    }
    let above = x - Wide::ONE;
    ln_1p(above + (above * (x + Wide::ONE)).sqrt())
}

/// Inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond. DLMF 4.37.24.
pub fn atanh(x: Wide) -> Wide {
    let magnitude = x.abs();
    if magnitude > Wide::ONE {
        return Wide::NAN;
    }
    let quotient = magnitude.times_power_of_2(1) / (Wide::ONE - magnitude);
    ln_1p(quotient).times_power_of_2(-1).with_sign_of(x)
}
