//! Functions whose arguments are brought near to the entry of a table: 32 of f32 are two vectors, of which one instruction
//! takes an entry for each lane.

use super::F32x16;
use crate::kernels::simd::{Mask, Table, Vector, polynomial};
use std::arch::x86_64::*;
use std::f64::consts::{LN_2, LOG2_E};
use std::hint::cold_path;

/// The slope at 0 of the parabola with the curvature of `exp(r)` nearest to it for |r| up to ln(2) / 64.
pub(crate) const EXP_SLOPE: f64 = 1.0000147;

/// `2^(i / 32)`.
pub(crate) static POWERS: [Table; 2] = [
    Table([
        1.0, 1.0218972, 1.0442737, 1.0671405, 1.0905077, 1.1143868, 1.1387886, 1.1637249, 1.1892071,
        1.2152474, 1.2418578, 1.269051, 1.2968396, 1.3252367, 1.3542556, 1.38391,
    ]),
    Table([
        std::f32::consts::SQRT_2,
        1.4451808,
        1.4768262,
        1.5091645,
        1.5422108,
        1.5759809,
        1.6104903,
        1.6457555,
        1.6817929,
        1.7186193,
        1.7562522,
        1.7947091,
        1.8340081,
        1.8741677,
        1.9152066,
        1.9571441,
    ]),
];

/// An inverse for each piece of 0.75..1.5, which the 5 bits behind the leading one of a number there tell: near that of the
/// piece's middle, and of so few digits that the product of both, less 1, is exact.
static INVERSES: [Table; 2] = [
    Table([
        1.0, 0.953125, 0.921875, 0.90625, 0.875, 0.859375, 0.828125, 0.8125, 0.796875, 0.765625, 0.75,
        0.734375, 0.71875, 0.703125, 0.6875, 0.671875,
    ]),
    Table([
        1.3125, 1.28125, 1.28125, 1.25, 1.21875, 1.1875, 1.1875, 1.15625, 1.125, 1.125, 1.09375, 1.0625,
        1.0625, 1.03125, 1.03125, 1.0,
    ]),
];

/// `-ln` of [`INVERSES`].
static LN_INVERSES: [Table; 2] = [
    Table([
        0.0, 0.04800922, 0.08134564, 0.09844007, 0.13353139, 0.1515499, 0.18859117, 0.20763937, 0.22705746,
        0.26706278, 0.2876821, 0.3087355, 0.33024168, 0.3522206, 0.37469345, 0.39768296,
    ]),
    Table([
        -0.2719337,
        -0.24783616,
        -0.24783616,
        -0.22314355,
        -0.19782574,
        -0.17185026,
        -0.17185026,
        -0.14518201,
        -0.11778303,
        -0.11778303,
        -0.089612156,
        -0.06062462,
        -0.06062462,
        -0.030771658,
        -0.030771658,
        0.0,
    ]),
];

/// `-log2` of [`INVERSES`] as multiples of 2^-16, to which the exponent of any f32 can be added.
static LOG2_INVERSES: [Table; 2] = [
    Table([
        0.0, 0.06925964, 0.11735535, 0.14201355, 0.19264221, 0.21864319, 0.27207947, 0.29956055, 0.32757568,
        0.38528442, 0.41503906, 0.44540405, 0.47644043, 0.5081482, 0.5405731, 0.57373047,
    ]),
    Table([
        -0.39231873,
        -0.3575592,
        -0.3575592,
        -0.32192993,
        -0.2854004,
        -0.2479248,
        -0.2479248,
        -0.2094574,
        -0.16992188,
        -0.16992188,
        -0.12928772,
        -0.08746338,
        -0.08746338,
        -0.044387817,
        -0.044387817,
        0.0,
    ]),
];

/// What they leave.
static LOG2_INVERSES_REST: [Table; 2] = [
    Table([
        0.0,
        3.0188824e-06,
        1.6039585e-06,
        5.455068e-06,
        2.8660284e-06,
        -2.9020011e-06,
        7.7663366e-08,
        -2.650161e-07,
        -1.0255652e-06,
        5.7320567e-06,
        -1.5632212e-06,
        7.095588e-06,
        -2.3857444e-06,
        -1.2896891e-06,
        -4.7387543e-06,
        4.776548e-06,
    ]),
    Table([
        1.3028072e-06,
        7.1994837e-06,
        7.1994837e-06,
        1.8367533e-06,
        -1.8282373e-06,
        -2.708756e-06,
        -2.708756e-06,
        4.031832e-06,
        -3.1264424e-06,
        -3.1264424e-06,
        4.7027816e-06,
        5.376559e-07,
        5.376559e-07,
        -6.3019756e-06,
        -6.3019756e-06,
        0.0,
    ]),
];

/// `(log2(1 + r) / r - 1 / ln(2)) / r` for r in -1/48..1/32: its first term, and the others.
const LOG2_SQUARE: f64 = -0.7213475108146667;
const LOG2_TAIL: [f64; 3] = [0.4808999, -0.36079237, 0.28356627];

/// `(ln(1 + r) - r) / r^2`.
const LN_TAIL: [f64; 4] = [-0.5, 0.33333442, -0.25008222, 0.19655316];

/// `(2^r - 1) / r` for |r| up to 1/64.
const EXP2_TAIL: [f64; 3] = [LN_2, 0.24022827, 0.05550435];

/// An entry for each lane: the one whose number is in its 5 low bits.
#[inline(always)]
pub(super) fn entries([low, high]: &[Table; 2], numbers: __m512i) -> F32x16 {
    // SAFETY: the tables are vectors in size and alignment; the level as in `x`.
    F32x16(unsafe {
        let (low, high) = (_mm512_load_ps(low.0.as_ptr()), _mm512_load_ps(high.0.as_ptr()));
        _mm512_permutex2var_ps(low, numbers, high)
    })
}

/// `2^(i / 32)` for the integer `i` in the low bits of a sum.
#[inline(always)]
fn powers(rounded: F32x16) -> F32x16 {
    entries(&POWERS, x!(_mm512_castps_si512(rounded.0)))
}

/// `exp(x)` within 1.75 ulps.
#[inline(always)]
pub(super) fn exp(x: F32x16) -> F32x16 {
    // Where one may become subnormal, what is right for all of them.
    let low = x.lt(F32x16::splat(-87.0));
    if low.any() {
        cold_path();
        let (result, n) = exp_parts(x.at_least(-104.0));
        return result.scale(n);
    }
    let (result, n) = exp_parts(x);
    result.scale_by_product(n)
}

/// `(m, n)` with `exp(x) = m 2^n`. Scaling rounds `n` down.
#[inline(always)]
fn exp_parts(x: F32x16) -> (F32x16, F32x16) {
    // x = (n + i / 32) ln(2) + r, so that |r| <= ln(2) / 64: `1 + EXP_SLOPE r + r^2 / 2` is within 2^-24 of its
    // exponential. It is positive for all r, also for what is left of numbers too large for all this, and scaling
    // takes NaN for +inf to +inf: there is no need of an upper bound.
    const PARTS: [f64; 2] = [355.0 / 512.0, LN_2 - 355.0 / 512.0];
    let rounder = F32x16::splat(F32x16::ROUNDER / 32.0);
    let rounded = x.mul_add(F32x16::splat(LOG2_E), rounder);
    let n = rounded - rounder;
    let r = n.neg_mul_add(F32x16::splat(PARTS[1]), n.neg_mul_add(F32x16::splat(PARTS[0]), x));
    let power = powers(rounded);
    let slope = r.mul_add(F32x16::splat(0.5), F32x16::splat(EXP_SLOPE));
    ((power * r).mul_add(slope, power), n)
}

/// `2^(high + low)` for a `low` near 0 and a `high` of a magnitude below 2^16.
#[inline(always)]
fn exp2(high: F32x16, low: F32x16) -> F32x16 {
    let rounder = F32x16::splat(F32x16::ROUNDER / 32.0);
    let rounded = high + rounder;
    let n = rounded - rounder;
    let r = (high - n) + low;
    let power = powers(rounded);
    // Scaling rounds n down.
    (power * r).mul_add(polynomial(r, &EXP2_TAIL), power).scale(n)
}

/// A positive finite number as `2^k (1 + r)` over an entry of [`INVERSES`], of whose number the low 5 bits count.
struct Near {
    k: F32x16,
    r: F32x16,
    entry: __m512i,
}

impl Near {
    #[inline(always)]
    fn of(x: F32x16) -> Near {
        let (k, m) = x.split();
        let entry = x!(_mm512_srli_epi32::<18>(_mm512_castps_si512(m.0)));
        let r = m.mul_add(entries(&INVERSES, entry), F32x16::splat(-1.0));
        Near { k, r, entry }
    }
}

/// `ln(x)` within 2 ulps, and its limits.
#[inline(always)]
pub(super) fn ln(x: F32x16) -> F32x16 {
    // By the class of `x`: NaN stays, zeros give -inf, +inf stays, what is below 0 gives NaN; the others' result is right.
    const LIMITS: i32 = 0x0353_0422;
    let Near { k, r, entry } = Near::of(x);
    let rest = k.mul_add(F32x16::splat(LN_2), entries(&LN_INVERSES, entry));
    let ln = (r * r).mul_add(polynomial(r, &LN_TAIL), r) + rest;
    x!(F32x16(_mm512_fixupimm_ps::<0>(ln.0, x.0, _mm512_set1_epi32(LIMITS))))
}

/// `(high, low)`: the binary logarithm of a positive finite number to 2^-29 of it.
#[inline(always)]
fn log2(x: F32x16) -> (F32x16, F32x16) {
    const HIGH: f64 = LOG2_E as f32 as f64;
    const LOW: f64 = LOG2_E - HIGH;
    let Near { k, r, entry } = Near::of(x);
    // All that is small is added up first, so that what r^2 gives, which matters most, is rounded but twice.
    let (square, line) = (r * r, r * HIGH);
    let lost = r.product_error(F32x16::splat(HIGH), line);
    let small = r.mul_add(F32x16::splat(LOW), entries(&LOG2_INVERSES_REST, entry) + lost);
    let small = r.product_error(r, square).mul_add(F32x16::splat(LOG2_SQUARE), small);
    let small = (square * r).mul_add(polynomial(r, &LOG2_TAIL), small);
    let tail = square.mul_add(F32x16::splat(LOG2_SQUARE), small);
    // This is 0, or larger than `line`.
    let whole = k + entries(&LOG2_INVERSES, entry);
    let sum = whole + line;
    let tail = (line - (sum - whole)) + tail;
    let high = sum + tail;
    (high, tail - (high - sum))
}

/// As [`pow_by_table`](crate::kernels::simd::Single::pow_by_table).
#[inline(always)]
pub(super) fn pow(x: F32x16, y: F32x16) -> (F32x16, F32x16) {
    let (high, low) = log2(x);
    let exponent = y * high;
    (exp2(exponent, y.mul_add(low, y.product_error(high, exponent))), exponent)
}
