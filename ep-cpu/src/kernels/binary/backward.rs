//! Gradients of the unary operations: from `dy` and the forward op's `x` or `y` to `dx`.

use super::Op;
use crate::kernels::elem::Storage;
use crate::kernels::engine::Cost;
use crate::kernels::math::Math;
use crate::kernels::num::{Float, Number, round_to};
use crate::kernels::special;
use crate::kernels::unary::{MISH_END, fast_gelu_argument, mish_quotient};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LN_10};

/// Rows of: name, formula over the dtype's own value type.
macro_rules! arithmetic {
    ($($name:ident = |$dy:ident, $x:ident, $p:pat_param| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl<S: Storage<Value: Float>> Op<S, S> for $name {
            const COST: Cost = Cost::Cheap;

            #[inline(always)]
            fn apply($dy: S::Value, $x: S::Value, $p: [f64; 2]) -> S::Value {
                $body
            }
        }
    )*};
}

arithmetic! {
    Identity = |dy, _x, _| dy;
    HardShrink = |dy, y, _| if y == S::Value::ZERO { S::Value::ZERO } else { dy };
    HardTanh = |dy, y, [min, max]| {
        let clipped = (y == S::Value::of(min)) | (y == S::Value::of(max));
        if clipped { S::Value::ZERO } else { dy }
    };
    HardSigmoid = |dy, x, _| {
        let three = S::Value::of(3.0);
        let flat = (x <= three.neg()) | (x >= three);
        if flat { S::Value::ZERO } else { dy.div(S::Value::of(6.0)) }
    };
    LeakyRelu = |dy, x, [alpha, _]| if x > S::Value::ZERO { dy } else { dy.mul(S::Value::of(alpha)) };
    Relu = |dy, x, _| if x > S::Value::ZERO { dy } else { S::Value::ZERO };
    SoftShrink = |dy, y, _| if y == S::Value::ZERO { S::Value::ZERO } else { dy };
    Threshold = |dy, x, [threshold, _]| if x <= S::Value::of(threshold) { S::Value::ZERO } else { dy };
    Abs = |dy, x, _| {
        let nonzero = if x < S::Value::ZERO { dy.neg() } else { dy };
        if x == S::Value::ZERO { S::Value::ZERO } else { nonzero }
    };
    Square = |dy, x, _| dy.mul(x.add(x));
    SquareRelu = |dy, x, _| if x > S::Value::ZERO { dy.mul(x.add(x)) } else { S::Value::ZERO };
}

/// Rows of: name, cost, formula over `f64`; `M` is the [`Math`] of the dtype.
macro_rules! formulas {
    ($($name:ident: $cost:ident = |$dy:ident, $x:ident, $p:pat_param| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl $name {
            #[inline(always)]
            fn formula<M: Math>($dy: f64, $x: f64, $p: [f64; 2]) -> f64 {
                $body
            }
        }

        impl<S: Storage<Value: Float>> Op<S, S> for $name {
            const COST: Cost = Cost::$cost;
            const VECTOR: bool = <S::Value as Float>::Math::VECTOR && !matches!(Cost::$cost, Cost::Special);

            #[inline(always)]
            fn apply(dy: S::Value, x: S::Value, p: [f64; 2]) -> S::Value {
                round_to::<S>(Self::formula::<<S::Value as Float>::Math>(dy.to_f64(), x.to_f64(), p))
            }
        }
    )*};
}

formulas! {
    Elu: Elementary = |dy, x, [alpha, _]| if x > 0.0 { dy } else { dy * (alpha * M::exp(x)) };
    Celu: Elementary = |dy, y, [alpha, _]| if y > 0.0 { dy } else { dy * (y / alpha + 1.0) };
    Selu: Elementary = |dy, x, _| {
        const SCALE: f64 = 1.050_700_987_355_480_5;
        const ALPHA: f64 = 1.673_263_242_354_377_2;
        dy * SCALE * if x > 0.0 { 1.0 } else { ALPHA * M::exp(x) }
    };
    Gelu: Elementary = |dy, x, _| {
        let density = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * M::exp(-0.5 * x * x);
        dy * (0.5 * M::erfc(-x * FRAC_1_SQRT_2) + damped(x, density))
    };
    FastGelu: Elementary = |dy, x, _| {
        let slope = 0.797_884_560_802_865_4 * (1.0 + 3.0 * 0.044714998453855515 * x * x);
        dy * gated_slope::<M>(x, 2.0 * fast_gelu_argument(x), 2.0 * slope)
    };
    QuickGelu: Elementary = |dy, x, _| dy * gated_slope::<M>(x, 1.702 * x, 1.702);
    Silu: Elementary = |dy, x, _| dy * gated_slope::<M>(x, x, 1.0);
    Mish: Elementary = |dy, x, _| {
        let q = mish_quotient::<M>(x);
        // The derivative of the tanh; where `q` stops growing it is below all that matters.
        let slope = if x > MISH_END { 0.0 } else { 4.0 * (q + 1.0) / ((q + 2.0) * (q + 2.0)) };
        dy * (q / (q + 2.0) + damped(x, M::sigmoid(x) * slope))
    };
    HardSwish: Elementary = |dy, x, _| {
        let low = if x <= -3.0 { 0.0 } else { dy * (x / 3.0 + 0.5) };
        if x >= 3.0 { dy } else { low }
    };
    SoftSign: Elementary = |dy, x, _| {
        let d = 1.0 + x.abs();
        dy / (d * d)
    };
    SoftPlus: Elementary = |dy, x, [beta, threshold]| {
        let z = x * beta;
        if z > threshold { dy } else { dy * M::sigmoid(z) }
    };
    Tanh: Elementary = |dy, y, _| dy * ((1.0 - y) * (1.0 + y));
    SigmoidY: Elementary = |dy, y, _| dy * (y * (1.0 - y));
    SigmoidX: Elementary = |dy, x, _| dy * (M::sigmoid(x) * M::sigmoid(-x));

    Acos: Elementary = |dy, x, _| -dy / ((1.0 - x) * (1.0 + x)).sqrt();
    Acosh: Elementary = |dy, x, _| dy / ((x - 1.0) * (x + 1.0)).sqrt();
    Asin: Elementary = |dy, x, _| dy / ((1.0 - x) * (1.0 + x)).sqrt();
    Asinh: Elementary = |dy, x, _| dy / (1.0 + x * x).sqrt();
    Atan: Elementary = |dy, x, _| dy / (1.0 + x * x);
    Atanh: Elementary = |dy, x, _| dy / ((1.0 - x) * (1.0 + x));
    Cosh: Elementary = |dy, x, _| dy * M::sinh(x);
    Sinh: Elementary = |dy, x, _| dy * M::cosh(x);
    Erf: Elementary = |dy, x, _| dy * (FRAC_2_SQRT_PI * M::exp(-x * x));
    Erfc: Elementary = |dy, x, _| dy * (-FRAC_2_SQRT_PI * M::exp(-x * x));
    Exp: Elementary = |dy, x, _| dy * M::exp(x);
    Exp2: Elementary = |dy, x, _| dy * (LN_2 * M::exp2(x));
    Log: Elementary = |dy, x, _| dy / x;
    Log2: Elementary = |dy, x, _| dy / (x * LN_2);
    Log10: Elementary = |dy, x, _| dy / (x * LN_10);
    Log1p: Elementary = |dy, x, _| dy / (x + 1.0);
    LogSigmoid: Elementary = |dy, x, _| dy * M::sigmoid(-x);
    Reciprocal: Elementary = |dy, x, _| -dy / (x * x);
    ReciprocalNoNan: Elementary = |dy, x, _| if x == 0.0 { 0.0 } else { -dy / (x * x) };
    Rsqrt: Elementary = |dy, x, _| -0.5 * dy / (x * x.sqrt());
    Sqrt: Elementary = |dy, x, _| 0.5 * dy / x.sqrt();

    Cos: Special = |dy, x, _| dy * -x.sin();
    Sin: Special = |dy, x, _| dy * x.cos();
    Tan: Special = |dy, x, _| {
        let c = x.cos();
        dy / (c * c)
    };
    Lgamma: Special = |dy, x, _| dy * special::digamma(x);
    Digamma: Special = |dy, x, _| dy * special::trigamma(x);
}

/// `x factor`, where a factor of 0 outweighs any `x`: it decays faster than `x` grows.
#[inline(always)]
fn damped(x: f64, factor: f64) -> f64 {
    if factor == 0.0 { 0.0 } else { x * factor }
}

/// Derivative of `x sigmoid(u(x))`, given `u` and its derivative.
#[inline(always)]
fn gated_slope<M: Math>(x: f64, u: f64, slope: f64) -> f64 {
    let s = M::sigmoid(u);
    s + damped(x * slope, s * M::sigmoid(-u))
}
