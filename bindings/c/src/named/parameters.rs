//! The parameters of functions of one and two arguments.

use super::value::Number;
use ep_core::{Error, Result, Scalar};

/// A function of one or two arguments with parameters: their names, and PyTorch's defaults.
type Parameters = (&'static str, &'static [&'static str], Option<[f64; 2]>);

const PARAMETERS: [Parameters; 18] = [
    ("elu", &["alpha"], Some([1.0, 0.0])),
    ("celu", &["alpha"], Some([1.0, 0.0])),
    ("hard_shrink", &["lambda"], Some([0.5, 0.0])),
    ("hard_tanh", &["min", "max"], Some([-1.0, 1.0])),
    ("leaky_relu", &["alpha"], Some([0.01, 0.0])),
    ("soft_shrink", &["alpha"], Some([0.5, 0.0])),
    ("soft_plus", &["beta", "threshold"], Some([1.0, 20.0])),
    ("threshold", &["threshold", "value"], None),
    ("elu_backward_with_dy_x", &["alpha"], Some([1.0, 0.0])),
    ("celu_backward_with_dy_y", &["alpha"], Some([1.0, 0.0])),
    ("hard_tanh_backward_with_dy_y", &["min", "max"], Some([-1.0, 1.0])),
    ("leaky_relu_backward_with_dy_x", &["alpha"], Some([0.01, 0.0])),
    ("soft_plus_backward_with_dy_x", &["beta", "threshold"], Some([1.0, 20.0])),
    ("threshold_backward_with_dy_x", &["threshold"], None),
    ("scalar_base_power_grad", &["base"], None),
    ("scalar_exp_power_grad", &["exponent"], None),
    ("is_close", &["atol", "rtol"], Some([1e-8, 1e-5])),
    ("is_close_equal_nan", &["atol", "rtol"], Some([1e-8, 1e-5])),
];

/// The parameters of a function: those that are given, all of them, or the defaults.
pub(super) fn parameters(function: Option<&str>, given: Option<Vec<Number>>) -> Result<[f64; 2]> {
    let function = function.unwrap_or_default();
    let known = PARAMETERS.iter().find(|(name, ..)| *name == function);
    let (names, defaults) =
        known.map_or((&[][..], Some([0.0; 2])), |(_, names, defaults)| (names, *defaults));
    match (given, defaults) {
        (None, Some(defaults)) => Ok(defaults),
        (Some(given), _) if given.iter().any(|n| matches!(n.0, Scalar::Bool(_) | Scalar::Complex(..))) => {
            Err(Error::invalid(format!(
                "`attrs` of `{function}` are numbers, and not true, false or complex"
            )))
        }
        (Some(given), _) if given.len() == names.len() => {
            let value = |i: usize| given.get(i).map_or(0.0, |number: &Number| number.0.as_f64());
            Ok([value(0), value(1)])
        }
        (given, _) => Err(Error::invalid(format!(
            "`{function}` has {} parameters, {names:?}, and `attrs` gives {}; give all of them in this order",
            names.len(),
            given.map_or(0, |given| given.len())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::DType;
    use ep_core::primitive::{BinaryOp, UnaryOp};

    #[test]
    fn parameters_are_given_or_those_of_pytorch() {
        let of = |function: &str, given: Option<&[f64]>| {
            let given = given.map(|all| all.iter().map(|x| Number(Scalar::F64(*x))).collect());
            parameters(Some(function), given)
        };
        assert_eq!(of("hard_tanh", None), Ok([-1.0, 1.0]));
        assert_eq!(of("hard_tanh", Some(&[0.0, 6.0])), Ok([0.0, 6.0]));
        assert_eq!(of("relu", None), Ok([0.0, 0.0]));
        assert_eq!(of("relu", Some(&[])), Ok([0.0, 0.0]));
        for (function, given) in [
            ("hard_tanh", Some(&[0.0][..])),
            ("threshold", None),
            ("relu", Some(&[1.0])),
            ("elu", Some(&[1.0, 2.0])),
        ] {
            let told = of(function, given).unwrap_err();
            assert!(told.message().contains("parameters"), "{function}: {told}");
        }
        for other in [Scalar::Bool(true), Scalar::Complex(1.0, 0.0)] {
            let told = parameters(Some("elu"), Some(vec![Number(other)])).unwrap_err();
            assert!(told.message().contains("complex"), "{told}");
        }
        let names: Vec<&str> = UnaryOp::NAMES.iter().chain(BinaryOp::NAMES).copied().collect();
        assert!(PARAMETERS.iter().all(|(name, ..)| names.contains(name)));
    }

    /// Whether a function has parameters shows in what it computes with others.
    #[test]
    fn no_function_with_parameters_is_left_out() {
        use primitives::reference::{Binary, Number as Value, Unary};
        let points = [-7.0, -0.75, -0.25, 0.0, 0.3, 0.75, 9.0];
        let attrs = [[0.0; 2], [0.5, 0.0], [0.0, 0.5], [-3.0, 4.0], [30.0, 0.1]];
        let known = |name: &str| PARAMETERS.iter().any(|(known, ..)| *known == name);
        for name in UnaryOp::NAMES {
            let of = |attr| Unary::new(name, DType::F64, DType::F64, attr);
            let Some(first) = of(attrs[0]) else { continue };
            let changes = attrs.iter().any(|attr| {
                let f = of(*attr).expect("the dtypes are the same");
                points.iter().any(|x| {
                    format!("{:?}", f.apply(Value::Real(*x))) != format!("{:?}", first.apply(Value::Real(*x)))
                })
            });
            assert_eq!(changes, known(name), "{name}");
        }
        for name in BinaryOp::NAMES {
            let of = |attr| {
                Binary::new(name, DType::F64, DType::F64, attr)
                    .or_else(|| Binary::new(name, DType::F64, DType::BOOL, attr))
            };
            let Some(first) = of(attrs[0]) else { continue };
            let changes = attrs.iter().any(|attr| {
                let f = of(*attr).expect("the dtypes are the same");
                points.iter().any(|a| {
                    points.iter().any(|b| {
                        let [x, y] = [*a, *b].map(Value::Real);
                        format!("{:?}", f.apply(x, y)) != format!("{:?}", first.apply(x, y))
                    })
                })
            });
            assert_eq!(changes, known(name), "{name}");
        }
    }
}
