//! What the unary ops mean.

use crate::real::Real;

/// `0.5 x erfc(-x / sqrt(2))` without the `x`.
pub(crate) fn normal_cdf<R: Real>(x: R) -> R {
    (-x / R::from(2.0).sqrt()).erfc() * R::from(0.5)
}

/// `1 / (1 + e^-x)`
pub(crate) fn sigmoid<R: Real>(x: R) -> R {
    let (zero, one) = (R::from(0.0), R::from(1.0));
    let e = (-x.abs()).exp();
    if x < zero { e / (one + e) } else { one / (one + e) }
}

/// `ln(1 + e^x)`
pub(crate) fn soft_plus<R: Real>(x: R) -> R {
    let rest = (-x.abs()).exp().ln_1p();
    if x < R::from(0.0) { rest } else { x + rest }
}

/// `tanh(ln(1 + e^x))`
pub(crate) fn tanh_soft_plus<R: Real>(x: R) -> R {
    let (one, two) = (R::from(1.0), R::from(2.0));
    let e = (-x.abs()).exp();
    let (top, rest) = if x < R::from(0.0) { (e * (e + two), two) } else { (one + two * e, two * e * e) };
    top / (top + rest)
}

/// The argument of the sigmoid that is fast_gelu: twice that of the tanh.
pub(crate) fn fast_gelu_argument<R: Real>(x: R) -> R {
    let scale = R::from(2.0) * R::from(0.797_884_560_802_865_4);
    scale * (x + R::from(0.044714998453855515) * x * x * x)
}

/// `x` to the nearest integer, ties to even.
fn rint(x: f64) -> f64 {
    let down = x.floor();
    let tie_up = x - down == 0.5 && down % 2.0 != 0.0;
    if x - down > 0.5 || tie_up { down + 1.0 } else { down }
}

/// The value of `op` at `x` with attributes `a`; `None` for ops that are not float to float. `above` says
/// whether soft_plus is past its threshold, which it decides on the rounded product.
pub fn value<R: Real>(op: &str, x: f64, [a0, a1]: [f64; 2], above: bool) -> Option<R> {
    let r = R::from;
    let v = r(x);
    let (zero, one) = (r(0.0), r(1.0));
    let exact = |x: f64| Some(r(x));
    // A gate times -inf: 0 times infinity. Times +inf, the gate is 1.
    let gated = |gate: &dyn Fn() -> R| {
        if x.is_infinite() { r(if x > 0.0 { x } else { f64::NAN }) } else { v * gate() }
    };
    let result = match op {
        "identity" => v,
        "elu" => {
            if x > 0.0 {
                v
            } else {
                r(a0) * v.exp_m1()
            }
        }
        "celu" => {
            if x > 0.0 {
                v
            } else {
                r(a0) * (v / r(a0)).exp_m1()
            }
        }
        "selu" => {
            r(1.050_700_987_355_480_5) * if x > 0.0 { v } else { r(1.673_263_242_354_377_2) * v.exp_m1() }
        }
        "relu" => return exact(if x <= 0.0 { 0.0 } else { x }),
        "gelu" => gated(&|| normal_cdf(v)),
        "hard_swish" => {
            if x >= 3.0 {
                v
            } else if x <= -3.0 {
                zero
            } else {
                v * (v + r(3.0)) / r(6.0)
            }
        }
        "hard_sigmoid" => {
            if x >= 3.0 {
                one
            } else if x <= -3.0 {
                zero
            } else {
                (v + r(3.0)) / r(6.0)
            }
        }
        "hard_shrink" => return exact(if x.abs() <= a0 { 0.0 } else { x }),
        "hard_tanh" => {
            return exact(if x <= a0 {
                a0
            } else if x >= a1 {
                a1
            } else {
                x
            });
        }
        "leaky_relu" => {
            if x > 0.0 {
                v
            } else {
                r(a0) * v
            }
        }
        "mish" => gated(&|| tanh_soft_plus(v)),
        "silu" => gated(&|| sigmoid(v)),
        "soft_shrink" => {
            if x > a0 {
                v - r(a0)
            } else if x < -a0 {
                v + r(a0)
            } else if x.is_nan() {
                v
            } else {
                zero
            }
        }
        "soft_sign" => v / (one + v.abs()),
        "soft_plus" => {
            if above {
                v
            } else {
                soft_plus(v * r(a0)) / r(a0)
            }
        }
        "tanh" => v.tanh(),
        "threshold" => return exact(if x <= a0 { a1 } else { x }),
        "fast_gelu" => gated(&|| sigmoid(fast_gelu_argument(r(x.clamp(-1e3, 1e3))))),
        "quick_gelu" => gated(&|| sigmoid(r(1.702) * v)),
        "square_relu" => {
            if x > 0.0 {
                v * v
            } else {
                zero
            }
        }
        "abs" => return exact(x.abs()),
        "acos" => v.acos(),
        "acosh" => v.acosh(),
        "asin" => v.asin(),
        "asinh" => v.asinh(),
        "atan" => v.atan(),
        "atanh" => v.atanh(),
        "ceil" => return exact(-(-x).floor()),
        "cos" => v.sin_cos().1,
        "cosh" => v.cosh(),
        "digamma" => v.digamma(),
        "trigamma" => v.trigamma(),
        "erf" => v.erf(),
        "erfc" => v.erfc(),
        "exp" => v.exp(),
        "exp2" => v.exp2(),
        "expm1" => v.exp_m1(),
        "floor" => return exact(x.floor()),
        "lgamma" => v.lgamma(),
        "log" => v.ln(),
        "log2" => v.log2(),
        "log10" => v.log10(),
        "log1p" => v.ln_1p(),
        "log_sigmoid" => -soft_plus(-v),
        "negative" => return exact(-x),
        "reciprocal" => one / v,
        "reciprocal_no_nan" => {
            if x == 0.0 {
                zero
            } else {
                one / v
            }
        }
        "rint" | "round" => return exact(rint(x)),
        "rsqrt" => one / v.sqrt(),
        "sigmoid" => sigmoid(v),
        "sign" => {
            return exact(if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                0.0
            });
        }
        "sin" => v.sin_cos().0,
        "sinh" => v.sinh(),
        "sqrt" => v.sqrt(),
        "square" => v * v,
        "tan" => {
            let (s, c) = v.sin_cos();
            s / c
        }
        "trunc" => return exact(x.trunc()),
        "not_equal_zero" => return exact(f64::from(u8::from(x != 0.0))),
        "nan_assign" => return exact(if x.is_nan() { 0.0 } else { x }),
        _ => return None,
    };
    Some(result)
}
