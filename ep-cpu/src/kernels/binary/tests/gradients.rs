//! The backward ops.

use super::*;

/// The unary op whose derivative each `..._with_dy_x` op is, by fourth-order differences.
#[test]
fn gradients_in_x_are_the_derivatives() {
    let mut rng = Rng::new();
    let mut checked = 0;
    for row in rows() {
        let Some(name) = OPS[row.op].strip_suffix("_backward_with_dy_x") else { continue };
        if !row.src.is_float() {
            continue;
        }
        let f = |x: f64| float_reference(name, x).unwrap().0;
        let values =
            |rng: &mut Rng, scale: f64| -> Vec<f64> { (0..150).map(|_| scale * rng.signed()).collect() };
        let bytes =
            |v: &[f64]| -> Vec<u8> { v.iter().flat_map(|&x| encode(row.src, Val::Float(x))).collect() };
        let (dy, x) = (bytes(&values(&mut rng, 3.0)), bytes(&values(&mut rng, 4.0)));
        let got = decode(row.dst, &apply(row, &dy, &x, ATTR));
        for ((dy, x), got) in decode(row.src, &dy).into_iter().zip(decode(row.src, &x)).zip(got) {
            let (dy, x, got) = (dy.float(), x.float(), got.float());
            let derivative =
                |h: f64| (8.0 * (f(x + h) - f(x - h)) - (f(x + 2.0 * h) - f(x - 2.0 * h))) / (12.0 * h);
            let (coarse, fine) = (derivative(1e-3), derivative(5e-4));
            // Next to a kink or a pole the two steps disagree; outside the domain both are NaN.
            let trust = (coarse - fine).abs();
            let bend = (f(x + 1e-3) - 2.0 * f(x) + f(x - 1e-3)).abs() / 1e-3;
            let smooth = trust <= 1e-7 * (1.0 + fine.abs()) && bend <= 0.02 * (1.0 + fine.abs());
            let pole = name.ends_with("gamma") && x <= 0.0 && x.fract() == 0.0;
            if !smooth || pole {
                continue;
            }
            let want = dy * fine;
            // The terms of a derivative may cancel.
            let rounding = 4.0 * epsilon(row.dst).min(f32::EPSILON.into()) * dy.abs();
            let slack = (1e-9 + 20.0 * trust) * (1.0 + want.abs() + dy.abs()) + rounding;
            assert!(
                close(row.dst, got, want, 2.0, slack),
                "{} of {dy}, {x}: {got:e}, not {want:e}",
                label(row)
            );
            checked += 1;
        }
    }
    assert!(checked > 46 * 4 * 60, "{checked}");
}

#[test]
fn gradients_in_y_match_their_formulas() {
    let mut rng = Rng::new();
    let mut names = 0;
    for row in rows() {
        let Some(name) = OPS[row.op].strip_suffix("_backward_with_dy_y") else { continue };
        names += 1;
        let (dy, y) = (samples(row.src, 300, &mut rng), samples(row.src, 300, &mut rng));
        let mut dy = dy;
        dy.rotate_left(30 * size(row.src));
        let got = decode(row.dst, &apply(row, &dy, &y, ATTR));
        for ((dy, y), got) in decode(row.src, &dy).into_iter().zip(decode(row.src, &y)).zip(got) {
            let (dy, y, got) = (dy.float(), y.float(), got.float());
            if y.abs() > 1e15 && y.is_finite() {
                // No such result exists, and the derivative may overflow.
                continue;
            }
            let want = match name {
                "celu" => {
                    if y > 0.0 {
                        dy
                    } else {
                        dy * (1.0 + y / ATTR[0])
                    }
                }
                "hard_shrink" | "soft_shrink" => {
                    if y == 0.0 {
                        0.0
                    } else {
                        dy
                    }
                }
                "hard_tanh" => {
                    if y == ATTR[0] || y == ATTR[1] {
                        0.0
                    } else {
                        dy
                    }
                }
                "relu" => {
                    if y > 0.0 {
                        dy
                    } else {
                        0.0
                    }
                }
                "tanh" => dy * ((1.0 + y) * (1.0 - y)),
                "sigmoid" => dy * ((1.0 - y) * y),
                other => panic!("no formula for {other}"),
            };
            assert!(
                close(
                    row.dst,
                    got,
                    want,
                    2.0,
                    4.0 * epsilon(row.dst) * (dy.abs() + (dy * y).abs()).min(1e300)
                ),
                "{} of {dy:e}, {y:e}: {got:e}, not {want:e}",
                label(row)
            );
        }
    }
    assert_eq!(names, 7 * 4);
}

#[test]
fn gradients_at_the_ends() {
    let at = |name: &str, dy: f64, x: f64| {
        let row = row(name, DType::F32);
        let [dy, x] = [dy, x].map(|v| encode(DType::F32, Val::Float(v)));
        decode(DType::F32, &apply(row, &dy, &x, ATTR))[0].float()
    };
    let inf = f64::INFINITY;
    for name in ["gelu", "silu", "mish", "fast_gelu", "quick_gelu", "hard_swish"] {
        let name = format!("{name}_backward_with_dy_x");
        assert_eq!((at(&name, 2.0, inf), at(&name, 2.0, 1e38)), (2.0, 2.0), "{name}");
        assert_eq!((at(&name, 2.0, -inf), at(&name, 2.0, -1e38)), (0.0, 0.0), "{name}");
        assert!(at(&name, 2.0, f64::NAN).is_nan(), "{name}");
    }
    assert_eq!(at("log_sigmoid_backward_with_dy_x", 2.0, -1e38), 2.0);
    assert_eq!(at("relu_backward_with_dy_x", f64::NAN, -1.0), 0.0);
    assert_eq!(at("reciprocal_no_nan_backward_with_dy_x", 3.0, 0.0), 0.0);
    for name in ["reciprocal_backward_with_dy_x", "reciprocal_no_nan_backward_with_dy_x"] {
        // 1025 * 2^16 / 9 times the least number: dividing once by `x` would round.
        let least = 2f64.powi(-149);
        assert_eq!(at(name, 1025.0 * least, 3.0 * 2f64.powi(-8)), -7_463_822.0 * least, "{name}");
    }
    assert_eq!(at("abs_backward_with_dy_x", 3.0, 0.0), 0.0);
}
