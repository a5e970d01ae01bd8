//! Functions of real numbers, by their formulas.

use crate::reference::Table;
use crate::reference::math::{
    LN_2, LN_10, Wide, acos, acosh, asin, asinh, atan, atanh, cosh, digamma, erf, erfc, exp, exp_m1, lgamma,
    ln, ln_1p, sin_cos, sinh, tanh, trigamma,
};

type Function = fn(Wide, [Wide; 2]) -> Wide;

/// Ops whose attributes are first rounded to f32 for dtypes that compute in f32.
pub(super) const ATTRIBUTE_IN_COMPUTE_TYPE: [&str; 5] =
    ["leaky_relu", "hard_shrink", "hard_tanh", "soft_shrink", "threshold"];

const ONE: Wide = Wide::ONE;
const ZERO: Wide = Wide::ZERO;

/// `a (e^x - 1)`, which may be finite where the power is not.
fn times_exp_m1(a: Wide, x: Wide) -> Wide {
    let half = x / w(2.0);
    if x > w(700.0) { a * exp(half) * exp(half) } else { a * exp_m1(x) }
}

fn w(x: f64) -> Wide {
    Wide::from(x)
}

pub(super) const FUNCTIONS: Table<Function, 60> = [
    ("elu", |x, [alpha, _]| if x > ZERO { x } else { alpha * exp_m1(x) }),
    ("celu", |x, [alpha, _]| if x > ZERO { x } else { times_exp_m1(alpha, x / alpha) }),
    ("relu", |x, _| if x <= ZERO { ZERO } else { x }),
    ("gelu", |x, _| x * erfc(-x / w(2.0).sqrt()) / w(2.0)),
    ("hard_swish", |x, _| {
        let low = if x <= w(-3.0) { ZERO } else { x * (x + w(3.0)) / w(6.0) };
        if x >= w(3.0) { x } else { low }
    }),
    ("hard_sigmoid", |x, _| {
        let low = if x <= w(-3.0) { ZERO } else { (x + w(3.0)) / w(6.0) };
        if x >= w(3.0) { ONE } else { low }
    }),
    ("hard_shrink", |x, [lambda, _]| if x.abs() <= lambda { ZERO } else { x }),
    ("hard_tanh", |x, [min, max]| {
        let low = if x <= min { min } else { x };
        if x >= max { max } else { low }
    }),
    ("leaky_relu", |x, [alpha, _]| if x > ZERO { x } else { x * alpha }),
    ("mish", |x, _| x * tanh(soft_plus(x))),
    ("selu", |x, _| {
        let (scale, alpha) = selu();
        scale * if x > ZERO { x } else { alpha * exp_m1(x) }
    }),
    ("silu", |x, _| x * sigmoid(x)),
    ("soft_shrink", |x, [alpha, _]| {
        let inside = if x.is_nan() { x } else { ZERO };
        let low = if x < -alpha { x + alpha } else { inside };
        if x > alpha { x - alpha } else { low }
    }),
    ("soft_sign", |x, _| x / (ONE + x.abs())),
    ("soft_plus", |x, [beta, threshold]| if x * beta > threshold { x } else { soft_plus(x * beta) / beta }),
    ("tanh", |x, _| tanh(x)),
    ("threshold", |x, [threshold, value]| if x <= threshold { value } else { x }),
    ("fast_gelu", |x, _| x * sigmoid(w(2.0) * fast_gelu_argument(x))),
    ("quick_gelu", |x, _| x * sigmoid(w(SIGMOID_1_702) * x)),
    ("square_relu", |x, _| if x > ZERO { x.square() } else { ZERO }),
    ("abs", |x, _| x.abs()),
    ("acos", |x, _| acos(x)),
    ("acosh", |x, _| acosh(x)),
    ("asin", |x, _| asin(x)),
    ("asinh", |x, _| asinh(x)),
    ("atan", |x, _| atan(x)),
    ("atanh", |x, _| atanh(x)),
    ("ceil", |x, _| x.ceil()),
    ("cos", |x, _| sin_cos(x.to_f64()).1),
    ("cosh", |x, _| cosh(x)),
    ("digamma", |x, _| digamma(x.to_f64())),
    ("trigamma", |x, _| trigamma(x.to_f64())),
    ("erf", |x, _| erf(x)),
    ("erfc", |x, _| erfc(x)),
    ("exp", |x, _| exp(x)),
    ("exp2", |x, _| exp(x * LN_2)),
    ("expm1", |x, _| exp_m1(x)),
    ("floor", |x, _| x.floor()),
    ("lgamma", |x, _| lgamma(x.to_f64())),
    ("log", |x, _| ln(x)),
    ("log2", |x, _| ln(x) / LN_2),
    ("log10", |x, _| ln(x) / LN_10),
    ("log1p", |x, _| ln_1p(x)),
    ("log_sigmoid", |x, _| -soft_plus(-x)),
    ("negative", |x, _| -x),
    ("reciprocal", |x, _| ONE / x),
    ("reciprocal_no_nan", |x, _| if x.is_zero() { ZERO } else { ONE / x }),
    ("rint", |x, _| x.round()),
    ("round", |x, _| x.round()),
    ("rsqrt", |x, _| ONE / x.sqrt()),
    ("sigmoid", |x, _| sigmoid(x)),
    ("sign", |x, _| {
        let magnitude = if x.is_nan() || x.is_zero() { ZERO } else { ONE };
        if x < ZERO { -magnitude } else { magnitude }
    }),
    ("sin", |x, _| sin_cos(x.to_f64()).0),
    ("sinh", |x, _| sinh(x)),
    ("sqrt", |x, _| x.sqrt()),
    ("square", |x, _| x.square()),
    ("tan", |x, _| {
        let (sin, cos) = sin_cos(x.to_f64());
        sin / cos
    }),
    ("trunc", |x, _| x.trunc()),
    ("not_equal_zero", |x, _| if x.is_zero() { ZERO } else { ONE }),
    ("nan_assign", |x, _| if x.is_nan() { ZERO } else { x }),
];

/// The factor in `quick_gelu`.
pub(in crate::reference) const SIGMOID_1_702: f64 = 1.702;

/// `1 / (1 + e^-x)`.
pub(in crate::reference) fn sigmoid(x: Wide) -> Wide {
    ONE / (ONE + exp(-x))
}

/// `ln(1 + e^x)`.
fn soft_plus(x: Wide) -> Wide {
    if x > ZERO { x + ln_1p(exp(-x)) } else { ln_1p(exp(x)) }
}

/// Scale and alpha of `selu` (Klambauer and others, 2017).
pub(in crate::reference) fn selu() -> (Wide, Wide) {
    (w(1.050_700_987_355_480_5), w(1.673_263_242_354_377_2))
}

/// `sqrt(2 / pi) (x + 0.044715 x^3)` with the constants as they are in use: f64's root, and f32's 0.044715.
pub(in crate::reference) fn fast_gelu_argument(x: Wide) -> Wide {
    w(0.797_884_560_802_865_4) * (x + w(0.044_714_998_453_855_515) * x.square() * x)
}

/// `q` such that `tanh(soft_plus(x)) = q / (q + 2)`, for the derivative of `mish`.
pub(in crate::reference) fn mish_quotient(x: Wide) -> Wide {
    let power = exp(x);
    power * (power + w(2.0))
}

/// `x factor`, where a factor of zero outweighs an infinite x: it vanishes faster than x grows.
pub(in crate::reference) fn damped(x: Wide, factor: Wide) -> Wide {
    if factor.is_zero() { ZERO } else { x * factor }
}
