//! Gradients of the unary functions: `dy` times the derivative at `x`, or at the `x` that gave `y`.

use super::real::Function;
use crate::reference::Table;
use crate::reference::elementwise_unary::{
    SIGMOID_1_702, damped, fast_gelu_argument, mish_quotient, selu, sigmoid,
};
use crate::reference::math::{LN_2, LN_10, PI, Wide, cosh, digamma, erfc, exp, pow, sin_cos, sinh, trigamma};

/// Ops whose attributes are first rounded to f32 for dtypes that compute in f32.
pub(super) const ATTRIBUTE_IN_COMPUTE_TYPE: [&str; 3] =
    ["hard_tanh_backward_with_dy_y", "leaky_relu_backward_with_dy_x", "threshold_backward_with_dy_x"];

const ONE: Wide = Wide::ONE;
const ZERO: Wide = Wide::ZERO;

fn w(x: f64) -> Wide {
    Wide::from(x)
}

pub(super) const FUNCTIONS: Table<Function, 53> = [
    ("identity_backward_with_dy_x", |dy, _, _, _| w(dy)),
    (
        "elu_backward_with_dy_x",
        |dy, x, [alpha, _], _| if x > 0.0 { w(dy) } else { w(dy) * w(alpha) * exp(w(x)) },
    ),
    ("celu_backward_with_dy_y", |dy, y, [alpha, _], _| {
        // y / alpha + 1, with the inexact step last.
        if y > 0.0 { w(dy) } else { w(dy) * (w(y) + w(alpha)) / w(alpha) }
    }),
    ("gelu_backward_with_dy_x", |dy, x, _, _| {
        let (x, two) = (w(x), w(2.0));
        let density = exp(-x.square() / two) / (two * PI).sqrt();
        w(dy) * (erfc(-x / two.sqrt()) / two + damped(x, density))
    }),
    ("hard_swish_backward_with_dy_x", |dy, x, _, _| {
        // x / 3 + 1 / 2, with the inexact step last.
        let low = if x <= -3.0 { ZERO } else { w(dy) * (w(2.0) * w(x) + w(3.0)) / w(6.0) };
        if x >= 3.0 { w(dy) } else { low }
    }),
    (
        "hard_sigmoid_backward_with_dy_x",
        |dy, x, _, _| if x <= -3.0 || x >= 3.0 { ZERO } else { w(dy) / w(6.0) },
    ),
    ("hard_shrink_backward_with_dy_y", |dy, y, _, _| if y == 0.0 { ZERO } else { w(dy) }),
    ("hard_tanh_backward_with_dy_y", |dy, y, [min, max], _| if y == min || y == max { ZERO } else { w(dy) }),
    ("leaky_relu_backward_with_dy_x", |dy, x, [alpha, _], _| if x > 0.0 { w(dy) } else { w(dy) * w(alpha) }),
    ("mish_backward_with_dy_x", |dy, x, _, _| {
        if x == f64::INFINITY {
            return w(dy);
        }
        let (x, q) = (w(x), mish_quotient(w(x)));
        let slope = w(4.0) * (q + ONE) / (q + w(2.0)).square();
        w(dy) * (q / (q + w(2.0)) + damped(x, sigmoid(x) * slope))
    }),
    ("relu_backward_with_dy_y", |dy, y, _, _| if y > 0.0 { w(dy) } else { ZERO }),
    ("relu_backward_with_dy_x", |dy, x, _, _| if x > 0.0 { w(dy) } else { ZERO }),
    ("selu_backward_with_dy_x", |dy, x, _, _| {
        let (scale, alpha) = selu();
        w(dy) * scale * if x > 0.0 { ONE } else { alpha * exp(w(x)) }
    }),
    ("silu_backward_with_dy_x", |dy, x, _, _| w(dy) * gated(w(x), w(x), ONE)),
    ("soft_sign_backward_with_dy_x", |dy, x, _, _| w(dy) / (ONE + w(x).abs()).square()),
    ("soft_plus_backward_with_dy_x", |dy, x, [beta, threshold], _| {
        let z = w(x) * w(beta);
        if z > w(threshold) { w(dy) } else { w(dy) * sigmoid(z) }
    }),
    ("soft_shrink_backward_with_dy_y", |dy, y, _, _| if y == 0.0 { ZERO } else { w(dy) }),
    ("tanh_backward_with_dy_y", |dy, y, _, _| w(dy) * one_minus_square(y)),
    ("threshold_backward_with_dy_x", |dy, x, [threshold, _], _| if x <= threshold { ZERO } else { w(dy) }),
    ("sigmoid_backward_with_dy_y", |dy, y, _, _| w(dy) * (w(y) * (ONE - w(y)))),
    ("sigmoid_backward_with_dy_x", |dy, x, _, _| w(dy) * (sigmoid(w(x)) * sigmoid(-w(x)))),
    ("abs_backward_with_dy_x", |dy, x, _, _| {
        let slope = if x < 0.0 { -w(dy) } else { w(dy) };
        if x == 0.0 { ZERO } else { slope }
    }),
    ("acos_backward_with_dy_x", |dy, x, _, _| -(w(dy) / one_minus_square(x).sqrt())),
    ("acosh_backward_with_dy_x", |dy, x, _, _| w(dy) / (-one_minus_square(x)).sqrt()),
    ("asin_backward_with_dy_x", |dy, x, _, _| w(dy) / one_minus_square(x).sqrt()),
    ("asinh_backward_with_dy_x", |dy, x, _, _| w(dy) / (ONE + w(x).square()).sqrt()),
    ("atan_backward_with_dy_x", |dy, x, _, _| w(dy) / (ONE + w(x).square())),
    ("atanh_backward_with_dy_x", |dy, x, _, _| w(dy) / one_minus_square(x)),
    ("cos_backward_with_dy_x", |dy, x, _, _| w(dy) * -sin_cos(x).0),
    ("cosh_backward_with_dy_x", |dy, x, _, _| w(dy) * sinh(w(x))),
    ("erf_backward_with_dy_x", |dy, x, _, _| w(dy) * erf_slope(x)),
    ("erfc_backward_with_dy_x", |dy, x, _, _| w(dy) * -erf_slope(x)),
    ("exp_backward_with_dy_x", |dy, x, _, _| w(dy) * exp(w(x))),
    ("exp2_backward_with_dy_x", |dy, x, _, _| w(dy) * (LN_2 * pow(2.0, x))),
    ("expm1_backward_with_dy_x", |dy, x, _, _| w(dy) * exp(w(x))),
    ("lgamma_backward_with_dy_x", |dy, x, _, _| w(dy) * digamma(x)),
    ("digamma_backward_with_dy_x", |dy, x, _, _| w(dy) * trigamma(x)),
    ("log_backward_with_dy_x", |dy, x, _, _| w(dy) / w(x)),
    ("log2_backward_with_dy_x", |dy, x, _, _| w(dy) / (w(x) * LN_2)),
    ("log10_backward_with_dy_x", |dy, x, _, _| w(dy) / (w(x) * LN_10)),
    ("log1p_backward_with_dy_x", |dy, x, _, _| w(dy) / (w(x) + ONE)),
    ("log_sigmoid_backward_with_dy_x", |dy, x, _, _| w(dy) * sigmoid(-w(x))),
    ("reciprocal_backward_with_dy_x", |dy, x, _, _| -(w(dy) / w(x).square())),
    (
        "reciprocal_no_nan_backward_with_dy_x",
        |dy, x, _, _| {
            if x == 0.0 { ZERO } else { -(w(dy) / w(x).square()) }
        },
    ),
    ("rsqrt_backward_with_dy_x", |dy, x, _, _| -(w(dy) / (w(2.0) * w(x) * w(x).sqrt()))),
    ("sin_backward_with_dy_x", |dy, x, _, _| w(dy) * sin_cos(x).1),
    ("sinh_backward_with_dy_x", |dy, x, _, _| w(dy) * cosh(w(x))),
    ("sqrt_backward_with_dy_x", |dy, x, _, _| w(dy) / (w(2.0) * w(x).sqrt())),
    ("square_backward_with_dy_x", |dy, x, _, _| w(dy) * (w(2.0) * w(x))),
    ("tan_backward_with_dy_x", |dy, x, _, _| w(dy) / sin_cos(x).1.square()),
    ("fast_gelu_backward_with_dy_x", |dy, x, _, _| {
        let x = w(x);
        let slope = w(0.797_884_560_802_865_4) * (ONE + w(3.0) * w(0.044_714_998_453_855_515) * x.square());
        w(dy) * gated(x, w(2.0) * fast_gelu_argument(x), w(2.0) * slope)
    }),
    ("quick_gelu_backward_with_dy_x", |dy, x, _, _| {
        w(dy) * gated(w(x), w(SIGMOID_1_702) * w(x), w(SIGMOID_1_702))
    }),
    ("square_relu_backward_with_dy_x", |dy, x, _, _| if x > 0.0 { w(dy) * (w(2.0) * w(x)) } else { ZERO }),
];

/// `1 - x^2`, exact.
fn one_minus_square(x: f64) -> Wide {
    (ONE - w(x)) * (ONE + w(x))
}

/// `2 / sqrt(pi) e^(-x^2)`.
fn erf_slope(x: f64) -> Wide {
    w(2.0) / PI.sqrt() * exp(-w(x).square())
}

/// The derivative of `x sigmoid(u)`, given u and its derivative.
fn gated(x: Wide, u: Wide, slope: Wide) -> Wide {
    let s = sigmoid(u);
    s + damped(x * slope, s * sigmoid(-u))
}
