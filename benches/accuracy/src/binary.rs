//! What the binary float ops mean.
//!
//! A backward op is `dy` times a derivative. What a result may be off beyond its ulps is: where
//! the formula of the derivative adds terms that cancel, 3 epsilons of their magnitudes; and everywhere half the
//! least number of the dtype, as the derivative may have been rounded there; all times `|dy|`.

use crate::gamma;
use crate::real::Real;
use crate::unary::{fast_gelu_argument, normal_cdf, sigmoid, tanh_soft_plus};

/// What a result should be.
pub struct Judged<R> {
    /// The true value.
    pub value: R,
    /// How much of the value's terms cancelled: the sum of their magnitudes, or 0.
    pub terms: f64,
    /// For a backward op, the derivative that `dy` is multiplied with.
    pub derivative: Option<R>,
}

fn plain<R>(value: R) -> Option<Judged<R>> {
    Some(Judged { value, terms: 0.0, derivative: None })
}

/// The value of `op` at `x`, `y`; `None` for ops that are not float to float. `quotient` is `x / y` rounded to
/// the type computed in.
pub fn value<R: Real>(op: &str, x: f64, y: f64, [a0, a1]: [f64; 2], quotient: f64) -> Option<Judged<R>> {
    let r = R::from;
    match op {
        "add" => plain(r(x) + r(y)),
        "sub" => plain(r(x) - r(y)),
        "mul" => plain(r(x) * r(y)),
        "div" => plain(r(x) / r(y)),
        "max" => plain(r(if x.is_nan() || x > y { x } else { y })),
        "min" => plain(r(if x.is_nan() || x < y { x } else { y })),
        "pow" => plain(pow(x, y)),
        "fmod" => plain(r(libm::fmod(x, y))),
        "floor_mod" => plain(floor_mod(x, y)),
        "trunc_div" => plain(r(quotient.trunc())),
        "floor_div" => plain(floor_div(x, y)),
        "zeta" => plain(zeta(x, y)),
        "scalar_base_power_grad" => times(y, pow::<R>(a0, x) * r(a0).ln(), 0.0),
        "scalar_exp_power_grad" => times(y, r(a0) * pow::<R>(x, a0 - 1.0), 0.0),
        _ => {
            let op = match op {
                "sigmoid_backward_with_dy_y" => op,
                _ => op
                    .strip_suffix("_backward_with_dy_x")
                    .or_else(|| op.strip_suffix("_backward_with_dy_y"))?,
            };
            let (derivative, terms) = derivative(op, y, [a0, a1], quotient)?;
            times(x, derivative, terms)
        }
    }
}

fn times<R: Real>(dy: f64, derivative: R, terms: f64) -> Option<Judged<R>> {
    Some(Judged { value: R::from(dy) * derivative, terms: terms * dy.abs(), derivative: Some(derivative) })
}

fn pow<R: Real>(x: f64, y: f64) -> R {
    let special = x == 0.0 || y == 0.0 || x == 1.0 || !x.is_finite() || !y.is_finite();
    if special || x < 0.0 && y != y.floor() {
        return R::from(libm::pow(x, y));
    }
    let size = R::from(x.abs()).power(R::from(y));
    if x < 0.0 && (y * 0.5).floor() != y * 0.5 { -size } else { size }
}

fn floor_mod<R: Real>(x: f64, y: f64) -> R {
    let rest = libm::fmod(x, y);
    if rest != 0.0 && (rest < 0.0) != (y < 0.0) { R::from(rest) + R::from(y) } else { R::from(rest) }
}

/// The greatest integer not above the true quotient.
fn floor_div<R: Real>(x: f64, y: f64) -> R {
    if y == 0.0 || !x.is_finite() || y.is_nan() {
        return R::from(if x.is_infinite() { f64::NAN } else { x / y });
    }
    let rest = libm::fmod(x, y);
    let whole = (R::from(x) - R::from(rest)) / R::from(y);
    let nearest = whole.parts().0.round() + whole.parts().1;
    let whole = if whole.parts().0.abs() < 1e15 { R::from(nearest.round()) } else { whole };
    if rest != 0.0 && (rest < 0.0) != (y < 0.0) { whole - R::from(1.0) } else { whole }
}

fn zeta<R: Real>(x: f64, q: f64) -> R {
    let (nan, infinity) = (R::from(f64::NAN), R::from(f64::INFINITY));
    if x.is_nan() || q.is_nan() || x < 1.0 || q == f64::NEG_INFINITY {
        return nan;
    }
    if x == 1.0 {
        return infinity;
    }
    if x.is_infinite() || q == f64::INFINITY {
        // The limits of the first term.
        return if q < 0.0 { nan } else { R::from(libm::pow(q, -x)) };
    }
    if q <= 0.0 && q == q.floor() {
        return infinity;
    }
    if q < 0.0 && x != x.floor() {
        return nan;
    }
    gamma::zeta(x, q)
}

/// The derivative of a unary op at its argument, or given its result for those whose gradients take that, and
/// the magnitudes of the terms that may cancel in it.
fn derivative<R: Real>(op: &str, x: f64, [a0, a1]: [f64; 2], above: f64) -> Option<(R, f64)> {
    let r = R::from;
    let v = r(x);
    let (zero, one, two) = (r(0.0), r(1.0), r(2.0));
    let exact = |d: R| Some((d, 0.0));
    let flag = |b: bool| Some((if b { one } else { zero }, 0.0));
    // Here 1 is nothing beside a square, which may overflow.
    let huge = x.abs() > 1e30;
    // Terms of a sum: all of their magnitudes count.
    let sum = |a: R, b: R| Some((a + b, a.abs().parts().0 + b.abs().parts().0));
    let gauss = || (-(v * v)).exp();
    let two_over_sqrt_pi = || two / (r(1.0).atan() * r(4.0)).sqrt();
    // Far out a gate is 1 or 0, whatever its slope times x.
    let far = |f: &dyn Fn() -> Option<(R, f64)>| if x.abs() > 1e4 { flag(x > 0.0) } else { f() };
    let gate = |u: R, slope: R| {
        let s = sigmoid(u);
        sum(s, v * slope * s * sigmoid(-u))
    };
    match op {
        "identity" => exact(one),
        "elu" => exact(if x > 0.0 { one } else { r(a0) * v.exp() }),
        "celu" => {
            if x > 0.0 {
                exact(one)
            } else {
                sum(v / r(a0), one)
            }
        }
        "selu" => exact(
            r(1.050_700_987_355_480_5) * if x > 0.0 { one } else { r(1.673_263_242_354_377_2) * v.exp() },
        ),
        "gelu" => far(&|| {
            let density = (-(v * v) / two).exp() * two_over_sqrt_pi() / r(8.0).sqrt();
            sum(normal_cdf(v), v * density)
        }),
        "fast_gelu" => far(&|| {
            let c = two * r(0.797_884_560_802_865_4);
            gate(fast_gelu_argument(v), c * (one + r(3.0) * r(0.044714998453855515) * v * v))
        }),
        "quick_gelu" => far(&|| gate(r(1.702) * v, r(1.702))),
        "silu" => far(&|| gate(v, one)),
        "mish" => far(&|| {
            let t = tanh_soft_plus(v);
            // 1 - t^2 by way of the same fraction, without its cancellation.
            let e = (-v.abs()).exp();
            let (top, rest) = if x < 0.0 { (e * (e + two), two) } else { (one + two * e, two * e * e) };
            let slope = rest * (top + top + rest) / ((top + rest) * (top + rest));
            sum(t, v * slope * sigmoid(v))
        }),
        "hard_swish" => {
            if x >= 3.0 {
                exact(one)
            } else if x <= -3.0 {
                exact(zero)
            } else {
                sum(v / r(3.0), r(0.5))
            }
        }
        "hard_sigmoid" => exact(if x.abs() >= 3.0 { zero } else { one / r(6.0) }),
        "hard_shrink" | "soft_shrink" => flag(x != 0.0),
        "hard_tanh" => flag(x != a0 && x != a1),
        "leaky_relu" => exact(if x > 0.0 { one } else { r(a0) }),
        "relu" => flag(x > 0.0),
        "soft_sign" => exact(one / (one + v.abs()) / (one + v.abs())),
        "soft_plus" => exact(if above > 0.0 { one } else { sigmoid(v * r(a0)) }),
        "tanh" => exact((one - v) * (one + v)),
        "threshold" => flag(x > a0 || x.is_nan()),
        "sigmoid" => exact(sigmoid(v) * sigmoid(-v)),
        "sigmoid_backward_with_dy_y" => exact(v * (one - v)),
        "abs" => exact(if x == 0.0 { zero } else { r(if x < 0.0 { -1.0 } else { 1.0 }) }),
        "acos" => exact(-one / ((one - v) * (one + v)).sqrt()),
        "asin" => exact(one / ((one - v) * (one + v)).sqrt()),
        "acosh" | "asinh" if huge => exact(one / v.abs()),
        "atan" if huge => exact(one / v / v),
        "atanh" if huge => exact(-one / v / v),
        "acosh" => exact(one / ((v - one) * (v + one)).sqrt()),
        "asinh" => exact(one / (one + v * v).sqrt()),
        "atan" => exact(one / (one + v * v)),
        "atanh" => exact(one / ((one - v) * (one + v))),
        "cos" => exact(-v.sin_cos().0),
        "sin" => exact(v.sin_cos().1),
        "tan" => {
            let c = v.sin_cos().1;
            exact(one / (c * c))
        }
        "cosh" => exact(v.sinh()),
        "sinh" => exact(v.cosh()),
        "erf" => exact(gauss() * two_over_sqrt_pi()),
        "erfc" => exact(-gauss() * two_over_sqrt_pi()),
        "exp" | "expm1" => exact(v.exp()),
        "exp2" => exact(two.ln() * v.exp2()),
        "lgamma" => exact(v.digamma()),
        "digamma" => exact(v.trigamma()),
        "log" => exact(one / v),
        "log2" => exact(one / v / two.ln()),
        "log10" => exact(one / v / r(10.0).ln()),
        "log1p" => exact(one / (v + one)),
        "log_sigmoid" => exact(sigmoid(-v)),
        "reciprocal" => exact(-one / v / v),
        "reciprocal_no_nan" => exact(if x == 0.0 { zero } else { -one / v / v }),
        "rsqrt" => exact(r(-0.5) / v / v.sqrt()),
        "sqrt" => exact(r(0.5) / v.sqrt()),
        "square" => exact(two * v),
        "square_relu" => exact(if x > 0.0 { two * v } else { zero }),
        _ => None,
    }
}
