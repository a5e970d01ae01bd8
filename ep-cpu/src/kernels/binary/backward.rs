//! Gradients of the unary operations: from `dy` and the forward op's `x` or `y` to `dx`.

use super::Op;
use crate::kernels::elem::Storage;
use crate::kernels::engine::Cost;
use crate::kernels::formula::{Formula, Width, width};
use crate::kernels::math::Math;
use crate::kernels::num::{Float, Number};
use crate::kernels::simd::Vector;
use crate::kernels::unary::{fast_gelu_argument, product, quick_gelu_argument};
use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LOG2_E, LOG10_E};

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

/// Rows of: name, formula over lanes; `M` is the [`Math`] of the dtype, or with `wide`, of f64 even for f32: a product of `dy`
/// with two rounded factors would exceed its limit. What has so many digits in f32 only where products are fused is `fused`.
macro_rules! formulas {
    ($($name:ident$(: $width:ident)? = |$dy:ident, $x:ident, $p:pat_param| $body:expr;)*) => {$(
        pub(super) struct $name;

        impl Formula<2> for $name {
            const WIDTH: Width = width!($($width)?);
            const OFTEN: bool = true;
            const MANY: bool = false;

            #[inline(always)]
            fn apply<M: Math>([$dy, $x]: [M::V; 2], $p: [M::V; 2]) -> M::V {
                $body
            }
        }
    )*};
}

formulas! {
    ReluHalves = |dy, x, _| above_zero(x, dy, M::V::splat(0.0));
    LeakyReluHalves = |dy, x, [alpha, _]| above_zero(x, dy, dy * alpha);
    Elu: fused = |dy, x, [alpha, _]| above_zero(x, dy, M::times_exp(dy, alpha, x));
    Celu = |dy, y, [alpha, _]| above_zero(y, dy, dy * (y / alpha + 1.0));
    Selu: fused = |dy, x, _| {
        const SCALE: f64 = 1.050_700_987_355_480_5;
        const ALPHA: f64 = 1.673_263_242_354_377_2;
        above_zero(x, dy * SCALE, M::times_exp(dy, M::V::splat(SCALE * ALPHA), x))
    };
    Gelu = |dy, x, _| M::times_gelu_slope(dy, x);
    FastGelu = |dy, x, _| {
        const SLOPE: f64 = 2.0 * 0.797_884_560_802_865_4;
        let t = x.at_most(24.0).at_least(-24.0);
        let slope = (t * t).mul_add(M::V::splat(SLOPE * 3.0 * 0.044714998453855515), M::V::splat(SLOPE));
        let (high, low) = fast_gelu_argument(x);
        dy * gated_slope::<M>(t * slope, high, low)
    };
    QuickGelu = |dy, x, _| {
        let t = x.at_most(1000.0).at_least(-1000.0);
        let (high, low) = quick_gelu_argument(t);
        dy * gated_slope::<M>(t * 1.702, high, low)
    };
    Silu = |dy, x, _| {
        let t = x.at_most(1000.0).at_least(-1000.0);
        dy * gated_slope::<M>(t, t, M::V::splat(0.0))
    };
    Mish: wide = |dy, x, _| {
        // x tanh(s(x)) with s the softplus: tanh(s) + x (1 - tanh(s)^2) sigmoid(x), all in e = exp(-|x|).
        let (one, two) = (M::V::splat(1.0), M::V::splat(2.0));
        let t = x.at_most(1000.0).at_least(-1000.0);
        let negative = t.lt(M::V::splat(0.0));
        let e = M::exp(-t.abs());
        let top = M::V::select(negative, e * (e + 2.0), two.mul_add(e, one));
        let rest = M::V::select(negative, two, e * e * 2.0);
        let inverse = one / (top + rest);
        let sigmoid = M::V::select(negative, e, one) / (e + 1.0);
        let slope = (top + top + rest) * inverse * (rest * inverse) * sigmoid;
        dy * t.mul_add(slope, top * inverse)
    };
    HardSwish = |dy, x, _| {
        let three = M::V::splat(3.0);
        let middle = M::V::select(x.le(-three), M::V::splat(0.0), dy * (x / three + 0.5));
        M::V::select(three.le(x), dy, middle)
    };
    SoftSign: wide = |dy, x, _| {
        let d = x.abs() + 1.0;
        dy / d / d
    };
    SoftPlus: fused = |dy, x, [beta, threshold]| {
        let (high, low) = product(x, beta);
        M::V::select(threshold.lt(high), dy, M::times_sigmoid(dy, high, low))
    };
    Tanh: fused = |dy, y, _| dy * difference_of_squares(y);
    SigmoidY: fused = |dy, y, _| dy * part_of_rest(y);
    SigmoidX: fused = |dy, x, _| M::times_sigmoid_slope(dy, x);

    Acos = |dy, x, _| -dy / ((M::V::splat(1.0) - x) * (x + 1.0)).sqrt();
    // Adding 0 makes the -0 at -1 a 0, whose root has no sign to give to the quotient.
    Acosh = |dy, x, _| {
        let size = x.abs();
        dy / M::V::select(size.lt(M::V::splat(LARGE)), ((x - 1.0) * (x + 1.0) + 0.0).sqrt(), size)
    };
    Asin = |dy, x, _| dy / ((M::V::splat(1.0) - x) * (x + 1.0)).sqrt();
    Asinh = |dy, x, _| {
        let size = x.abs();
        dy / M::V::select(size.lt(M::V::splat(LARGE)), x.mul_add(x, M::V::splat(1.0)).sqrt(), size)
    };
    Atan = |dy, x, _| over_square(dy, x, x.mul_add(x, M::V::splat(1.0)));
    Atanh: wide = |dy, x, _| {
        let one = M::V::splat(1.0);
        let sign = M::V::select(x.abs().lt(M::V::splat(LARGE)), one, -one);
        over_square(dy * sign, x, (one - x) * (one + x))
    };
    Cosh: wide = |dy, x, _| dy * M::sinh(x);
    Sinh: wide = |dy, x, _| dy * M::cosh(x);
    Erf: wide = |dy, x, _| dy * (gauss::<M>(x) * FRAC_2_SQRT_PI);
    Erfc: wide = |dy, x, _| dy * (gauss::<M>(x) * -FRAC_2_SQRT_PI);
    Exp = |dy, x, _| dy * M::exp(x);
    Exp2: wide = |dy, x, _| {
        // Half the power and twice the factor, so that only what is too large in the end overflows.
        let one = M::V::splat(1.0);
        let (shift, factor) = (above_zero(x, one, one - 1.0), above_zero(x, one + 1.0, one) * LN_2);
        dy * (M::exp2(x - shift) * factor)
    };
    Log = |dy, x, _| dy / x;
    Log2 = |dy, x, _| dy * (M::V::splat(LOG2_E) / x);
    Log10 = |dy, x, _| dy * (M::V::splat(LOG10_E) / x);
    Log1p = |dy, x, _| dy / (x + 1.0);
    LogSigmoid: fused = |dy, x, _| M::times_sigmoid(dy, -x, M::V::splat(0.0));
    // Of a small `dy` the first quotient may be subnormal, though the second is not.
    Reciprocal: wide = |dy, x, _| -dy / x / x;
    ReciprocalNoNan: wide = |dy, x, _| {
        let zero = M::V::splat(0.0);
        M::V::select(x.equals(zero), zero, -dy / x / x)
    };
    Rsqrt: wide = |dy, x, _| {
        let root = x.sqrt();
        -dy / (root + root) / x
    };
    Sqrt = |dy, x, _| {
        let root = x.sqrt();
        dy / (root + root)
    };

    Cos: wide = |dy, x, _| dy * -M::sin(x);
    Sin: wide = |dy, x, _| dy * M::cos(x);
    Tan: wide = |dy, x, _| {
        let c = M::cos(x);
        dy / (c * c)
    };
    Lgamma = |dy, x, _| dy * M::digamma(x);
    Digamma = |dy, x, _| dy * M::trigamma(x);
}

/// Above this, 1 is nothing beside a square, which may overflow.
const LARGE: f64 = 1e18;

/// `a` where `x` is above zero, else `b`.
#[inline(always)]
fn above_zero<V: Vector>(x: V, a: V, b: V) -> V {
    V::select(V::splat(0.0).lt(x), a, b)
}

/// `dy / square`, where `square` is about `x^2`.
#[inline(always)]
fn over_square<V: Vector>(dy: V, x: V, square: V) -> V {
    let large = V::splat(LARGE).lt(x.abs());
    V::select(large, dy / x, dy) / V::select(large, x, square)
}

/// `exp(-x^2)`.
#[inline(always)]
fn gauss<M: Math>(x: M::V) -> M::V {
    let t = x.at_most(50.0).at_least(-50.0);
    let square = t * t;
    M::exp_sum(-square, -t.product_error(t, square))
}

/// Derivative of `x sigmoid(u(x))` with `u = high + low`, given `x` times the derivative of `u`.
#[inline(always)]
fn gated_slope<M: Math>(moved: M::V, high: M::V, low: M::V) -> M::V {
    let (inverse, t, n, negative) = M::sigmoid_parts(high, low);
    let other = inverse.mul_add(t, inverse).scale(n);
    (moved * other).mul_add(inverse, M::V::select(negative, other, inverse))
}

/// `1 - y^2`.
#[inline(always)]
fn difference_of_squares<V: Vector>(y: V) -> V {
    let one = V::splat(1.0);
    if V::FUSED { y.neg_mul_add(y, one) } else { (one - y) * (y + 1.0) }
}

/// `y (1 - y)`.
#[inline(always)]
fn part_of_rest<V: Vector>(y: V) -> V {
    if !V::FUSED {
        return y * (V::splat(1.0) - y);
    }
    // Of +inf nothing is to be taken from itself.
    V::select(y.lt(V::splat(f64::INFINITY)), y.neg_mul_add(y, y), y * -y)
}
