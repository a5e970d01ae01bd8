//! Elementary functions for elementwise kernels, all from f64 to f64.
//!
//! f16, bf16 and f32 kernels compute in f64 with [`Fast`] and round once: branch-free polynomials, good to
//! 2^-32 relative, which vectorise at every instruction-set level and give the same bits at each. f64
//! kernels use [`Precise`]: the system's and libm's scalar functions.
//! There is no fused multiply-add here: without hardware support it is a function call.

use std::f64::consts::{LN_2, LOG2_E, LOG10_E};

/// The functions that formulas are generic over.
pub(crate) trait Math {
    /// Whether the functions are worth compiling for each instruction-set level.
    const VECTOR: bool;
    fn exp(x: f64) -> f64;
    fn exp2(x: f64) -> f64;
    fn exp_m1(x: f64) -> f64;
    fn ln(x: f64) -> f64;
    fn log2(x: f64) -> f64;
    fn log10(x: f64) -> f64;
    fn ln_1p(x: f64) -> f64;
    fn sinh(x: f64) -> f64;
    fn cosh(x: f64) -> f64;
    fn tanh(x: f64) -> f64;
    fn erf(x: f64) -> f64;
    fn erfc(x: f64) -> f64;

    #[inline(always)]
    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + Self::exp(-x))
    }
}

/// Correct to the last bit or two of f64; scalar.
pub(crate) struct Precise;

impl Math for Precise {
    const VECTOR: bool = false;

    #[inline(always)]
    fn exp(x: f64) -> f64 {
        x.exp()
    }

    #[inline(always)]
    fn exp2(x: f64) -> f64 {
        x.exp2()
    }

    #[inline(always)]
    fn exp_m1(x: f64) -> f64 {
        x.exp_m1()
    }

    #[inline(always)]
    fn ln(x: f64) -> f64 {
        x.ln()
    }

    #[inline(always)]
    fn log2(x: f64) -> f64 {
        x.log2()
    }

    #[inline(always)]
    fn log10(x: f64) -> f64 {
        x.log10()
    }

    #[inline(always)]
    fn ln_1p(x: f64) -> f64 {
        x.ln_1p()
    }

    #[inline(always)]
    fn sinh(x: f64) -> f64 {
        x.sinh()
    }

    #[inline(always)]
    fn cosh(x: f64) -> f64 {
        x.cosh()
    }

    #[inline(always)]
    fn tanh(x: f64) -> f64 {
        x.tanh()
    }

    #[inline(always)]
    fn erf(x: f64) -> f64 {
        libm::erf(x)
    }

    #[inline(always)]
    fn erfc(x: f64) -> f64 {
        libm::erfc(x)
    }
}

/// Good to 2^-32 relative wherever the result is a normal f32 or rounds to one; beyond the range of f32,
/// results round to f32's infinity and zero. Special values are exact.
pub(crate) struct Fast;

/// Added to a value of magnitude below 2^51, this rounds it to an integer, kept in the low bits.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// `n`, `2^n` (0 for -1023 and infinity for 1024) and `x - n`, for x in -1023..=1024 or NaN.
#[inline(always)]
fn split_pow2(x: f64) -> (f64, f64, f64) {
    let shifted = x + ROUNDER;
    let n = shifted - ROUNDER;
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    (n, scale, x - n)
}

/// `x` kept within bounds; NaN stays NaN.
#[inline(always)]
fn clamp(x: f64, low: f64, high: f64) -> f64 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// `e^r - 1` for |r| <= ln(2)/2, from the Taylor series, accurate near zero too.
#[inline(always)]
fn exp_m1_reduced(r: f64) -> f64 {
    const C: [f64; 9] = [
        1.0,
        1.0 / 2.0,
        1.0 / 6.0,
        1.0 / 24.0,
        1.0 / 120.0,
        1.0 / 720.0,
        1.0 / 5040.0,
        1.0 / 40320.0,
        1.0 / 362_880.0,
    ];
    r * polynomial(r, &C)
}

/// `c[0] + c[1] x + ...`
#[inline(always)]
pub(crate) fn polynomial<const N: usize>(x: f64, c: &[f64; N]) -> f64 {
    let mut sum = c[N - 1];
    for k in (0..N - 1).rev() {
        sum = sum * x + c[k];
    }
    sum
}

/// `2^n` and `e^r - 1` for `x = n ln(2) + r`. Beyond the bounds, `2^n` is 0 or infinity.
#[inline(always)]
fn exp_parts(x: f64) -> (f64, f64) {
    let x = clamp(x, -709.1, 710.0);
    let (n, scale, _) = split_pow2(x * LOG2_E);
    (scale, exp_m1_reduced(x - n * LN_2))
}

/// `ln(num / den)` for a quotient within sqrt(1/2)..sqrt(2), given `num - den` and `num + den`.
#[inline(always)]
fn ln_quotient(difference: f64, sum: f64) -> f64 {
    const C: [f64; 7] = [2.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0, 2.0 / 11.0, 2.0 / 13.0];
    let s = difference / sum;
    s * polynomial(s * s, &C)
}

/// `x = 2^k m` with m in sqrt(1/2)..sqrt(2), for positive normal x; returns `(k, m)`.
#[inline(always)]
fn split_log(x: f64) -> (f64, f64) {
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    const BIAS: u64 = 1023;
    let biased = x.to_bits().wrapping_sub(SQRT_HALF).wrapping_add(BIAS << 52) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub(biased.wrapping_sub(BIAS) << 52));
    // The integer in the low bits of 2^52 is that integer added to 2^52: no conversion instruction.
    let k = f64::from_bits(biased | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + BIAS as f64);
    (k, m)
}

/// `result` where a logarithm of `x` is finite, and its limit or NaN elsewhere.
#[inline(always)]
fn ln_specials(x: f64, result: f64) -> f64 {
    let finite = if x < f64::INFINITY { result } else { x };
    let nonzero = if x == 0.0 { f64::NEG_INFINITY } else { finite };
    if x < 0.0 { f64::NAN } else { nonzero }
}

/// `result`, but for a zero `x` that zero with its sign.
#[inline(always)]
fn keep_zero(x: f64, result: f64) -> f64 {
    if x == 0.0 { x } else { result }
}

/// Below this `erf` is a polynomial, above it 1 minus `erfc`.
const ERF_SPLIT: f64 = 0.5;

/// `erf` for |x| up to [`ERF_SPLIT`]: minimax in x^2, relative error 1.2e-11.
#[inline(always)]
fn erf_small(x: f64) -> f64 {
    const C: [f64; 6] = [
        1.128379167082079,
        -0.37612638519105884,
        0.11283773805317066,
        -0.026863119878649967,
        0.005200308313753304,
        -0.0007692853088053745,
    ];
    x * polynomial(x * x, &C)
}

/// `erfc` for x from [`ERF_SPLIT`] up: `exp(-x^2)` times a minimax polynomial in `1 / (x + 2)`, relative
/// error 2.4e-11 up to x = 11, where the result is far below the least f32.
#[inline(always)]
fn erfc_large(x: f64) -> f64 {
    const C: [f64; 13] = [
        -3.6434980441714475e-07,
        0.5642178722242848,
        1.127396516653207,
        1.9948533544199072,
        2.5477846139939966,
        5.241003673858372,
        -17.29792396044194,
        72.94270799518698,
        -275.9581495768179,
        557.2602407912726,
        -611.0941623325357,
        347.1304769867142,
        -78.14368941951177,
    ];
    let inside = if x > 11.0 { 11.0 } else { x };
    Fast::exp(-x * x) * polynomial(1.0 / (inside + 2.0), &C)
}

impl Math for Fast {
    const VECTOR: bool = true;

    #[inline(always)]
    fn exp(x: f64) -> f64 {
        let (scale, p) = exp_parts(x);
        scale * (1.0 + p)
    }

    #[inline(always)]
    fn exp2(x: f64) -> f64 {
        let (_, scale, r) = split_pow2(clamp(x, -1023.0, 1024.0));
        scale * (1.0 + exp_m1_reduced(r * LN_2))
    }

    #[inline(always)]
    fn exp_m1(x: f64) -> f64 {
        // At 500 the result is past f32 but still finite, so that quotients of it have their limits.
        let (scale, p) = exp_parts(if x > 500.0 { 500.0 } else { x });
        keep_zero(x, scale * p + (scale - 1.0))
    }

    #[inline(always)]
    fn ln(x: f64) -> f64 {
        let (k, m) = split_log(x);
        ln_specials(x, k * LN_2 + ln_quotient(m - 1.0, m + 1.0))
    }

    #[inline(always)]
    fn log2(x: f64) -> f64 {
        let (k, m) = split_log(x);
        ln_specials(x, k + ln_quotient(m - 1.0, m + 1.0) * LOG2_E)
    }

    #[inline(always)]
    fn log10(x: f64) -> f64 {
        Self::ln(x) * LOG10_E
    }

    #[inline(always)]
    fn ln_1p(x: f64) -> f64 {
        let u = 1.0 + x;
        let (k, m) = split_log(u);
        // Near zero the rounding of 1 + x would cost all of the result's digits.
        let near = x.abs() < 0.25;
        let k = if near { 0.0 } else { k };
        let difference = if near { x } else { m - 1.0 };
        let sum = if near { 2.0 + x } else { m + 1.0 };
        keep_zero(x, ln_specials(u, k * LN_2 + ln_quotient(difference, sum)))
    }

    #[inline(always)]
    fn sinh(x: f64) -> f64 {
        let q = Self::exp_m1(x.abs());
        (0.5 * (q + q / (q + 1.0))).copysign(x)
    }

    #[inline(always)]
    fn cosh(x: f64) -> f64 {
        let e = Self::exp(x.abs());
        0.5 * e + 0.5 / e
    }

    #[inline(always)]
    fn tanh(x: f64) -> f64 {
        let q = Self::exp_m1(2.0 * x.abs());
        (q / (q + 2.0)).copysign(x)
    }

    #[inline(always)]
    fn erf(x: f64) -> f64 {
        let large = (1.0 - erfc_large(x.abs())).copysign(x);
        if x.abs() < ERF_SPLIT { erf_small(x) } else { large }
    }

    #[inline(always)]
    fn erfc(x: f64) -> f64 {
        let tail = erfc_large(x.abs());
        let large = if x < 0.0 { 2.0 - tail } else { tail };
        if x.abs() < ERF_SPLIT { 1.0 - erf_small(x) } else { large }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (&'static str, fn(f64) -> f64, fn(f64) -> f64);

    const PAIRS: [Pair; 14] = [
        ("exp", Fast::exp, f64::exp),
        ("exp2", Fast::exp2, f64::exp2),
        ("exp_m1", Fast::exp_m1, f64::exp_m1),
        ("ln", Fast::ln, f64::ln),
        ("log2", Fast::log2, f64::log2),
        ("log10", Fast::log10, f64::log10),
        ("ln_1p", Fast::ln_1p, f64::ln_1p),
        ("sinh", Fast::sinh, f64::sinh),
        ("cosh", Fast::cosh, f64::cosh),
        ("tanh", Fast::tanh, f64::tanh),
        ("erf", Fast::erf, libm::erf),
        ("erfc", Fast::erfc, libm::erfc),
        ("sigmoid", Fast::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        ("sigmoid precise", Precise::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ];

    /// The claim in the documentation of [`Fast`], over a walk through every f32 exponent and sign.
    #[test]
    fn fast_is_good_to_32_bits() {
        const BOUND: f64 = 1.0 / (1u64 << 32) as f64;
        for (name, fast, precise) in PAIRS {
            let mut worst = (0.0, 0.0);
            for bits in (0..=u32::MAX).step_by(40_009) {
                let x = f64::from(f32::from_bits(bits));
                let (got, want) = (fast(x), precise(x));
                let small = want.abs() < f64::from(f32::MIN_POSITIVE);
                if want.is_nan() || small || want.abs() > f64::from(f32::MAX) {
                    let (got, want) = (got as f32, want as f32);
                    let near = (got - want).abs() <= f32::from_bits(1);
                    assert!(
                        got == want || near || got.is_nan() && want.is_nan(),
                        "{name}({x:e}): {got:e} {want:e}"
                    );
                    continue;
                }
                let error = ((got - want) / want).abs();
                if error > worst.0 || error.is_nan() {
                    worst = (error, x);
                }
            }
            assert!(worst.0 <= BOUND, "{name}: off by 2^{} at {:e}", worst.0.log2(), worst.1);
        }
    }

    #[test]
    fn specials_are_exact() {
        for (name, fast, precise) in PAIRS {
            for x in [0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -1.0, -2.0] {
                let (got, want) = (fast(x) as f32, precise(x) as f32);
                assert!(
                    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                    "{name}({x}): {got} {want}"
                );
            }
        }
    }
}
