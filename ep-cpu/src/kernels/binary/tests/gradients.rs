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

/// Gradients whose derivative f32 computes in two parts, with all of the digits that its limit leaves no room to lose, at
/// each level; to where they vanish.
#[test]
fn gradients_in_two_parts_keep_their_digits() {
    const SCALE: f64 = 1.050_700_987_355_480_5;
    const ALPHA: f64 = 1.673_263_242_354_377_2;
    let gate = |x: f64| 1.0 / (1.0 + (-x).exp());
    let slope = |x: f64| gate(x) * gate(-x);
    let above = |x: f64, a: f64, b: f64| if x > 0.0 { a } else { b };
    let attr = [0.7f32, 30.5].map(f64::from);
    type Derivative<'a> = &'a dyn Fn(f64) -> f64;
    let gradients: [(&str, Derivative<'_>); 7] = [
        ("elu_backward_with_dy_x", &|x| above(x, 1.0, attr[0] * x.exp())),
        ("selu_backward_with_dy_x", &|x| above(x, SCALE, SCALE * ALPHA * x.exp())),
        ("soft_plus_backward_with_dy_x", &|x| above(x * attr[0] - attr[1], 1.0, gate(x * attr[0]))),
        ("log_sigmoid_backward_with_dy_x", &|x| gate(-x)),
        ("sigmoid_backward_with_dy_x", &slope),
        ("tanh_backward_with_dy_y", &|y| (1.0 - y) * (1.0 + y)),
        ("sigmoid_backward_with_dy_y", &|y| y * (1.0 - y)),
    ];
    let mut rng = Rng::new();
    for (name, derivative) in gradients {
        let in_y = name.ends_with('y');
        let mut x: Vec<f64> = (0..3000)
            .map(|_| {
                if in_y { rng.signed() } else { rng.signed() * [3.0, 40.0, 110.0][(rng.next() % 3) as usize] }
            })
            .collect();
        x.extend([0.0, -0.0, 1.0 - 2f64.powi(-24), 2f64.powi(-60), 20.0, -20.0]);
        x.extend((0..if in_y { 0 } else { 60 }).map(|k| f64::from(k - 30) * 2.5));
        let dy: Vec<f64> =
            x.iter().map(|_| rng.signed() * 2f64.powi((rng.next() % 21) as i32 - 10)).collect();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let bytes =
                |v: &[f64]| -> Vec<u8> { v.iter().flat_map(|&x| encode(dtype, Val::Float(x))).collect() };
            let (dy, x) = (bytes(&dy), bytes(&x));
            let (dys, xs) = (decode(dtype, &dy), decode(dtype, &x));
            let shape = [xs.len() as i64];
            for isa in Isa::available() {
                let call = Call { isa, par: &Serial, shapes: [&shape, &shape], attr };
                let got = decode(dtype, &call.run(row(name, dtype), [&dy, &x], None).unwrap());
                for ((dy, x), got) in dys.iter().zip(&xs).zip(got) {
                    let (dy, x, got) = (dy.float(), x.float(), got.float());
                    let want = dy * derivative(x);
                    let ulps = if dtype == DType::F32 { 2.0 } else { 1.0 };
                    // The least number that f32 has of the derivative, and of the product.
                    let slack = (1.0 + dy.abs()) * 2f64.powi(-149);
                    assert!(
                        close(dtype, got, want, ulps, slack),
                        "{name} {dtype} {isa} of {dy:e}, {x:e}: {got:e}, not {want:e}"
                    );
                }
            }
        }
    }
    // Infinity times what is left over by rounding, and an alpha whose exponentials are looked at alone.
    let at = |name: &str, dy: f64, x: f64, attr: [f64; 2]| {
        let [dy, x] = [dy, x].map(|v| encode(DType::F32, Val::Float(v)));
        let call = |isa| Call { isa, par: &Serial, shapes: [&[1], &[1]], attr };
        Isa::available()
            .into_iter()
            .map(|isa| {
                decode(DType::F32, &call(isa).run(row(name, DType::F32), [&dy, &x], None).unwrap())[0].float()
            })
            .collect::<Vec<_>>()
    };
    let inf = f64::INFINITY;
    for name in ["log_sigmoid_backward_with_dy_x", "sigmoid_backward_with_dy_x", "elu_backward_with_dy_x"] {
        assert!(at(name, inf, -1.3, attr).iter().all(|&x| x == inf), "{name}");
        assert!(at(name, -inf, -1.3, attr).iter().all(|&x| x == -inf), "{name}");
    }
    assert!(at("sigmoid_backward_with_dy_y", 1.0, inf, attr).iter().all(|&x| x == -inf));
    let large = at("elu_backward_with_dy_x", 1.0, -80.0, [1e30, 0.0]);
    let want = f64::from(1e30f32) * (-80f64).exp();
    assert!(large.iter().all(|x| (x / want - 1.0).abs() < 1e-6), "{large:?}, not {want:e}");
    let vanished = at("elu_backward_with_dy_x", 1.0, -170.0, [1e30, 0.0]);
    assert!(vanished.iter().all(|x| *x < 1e-40), "{vanished:?}");
}
