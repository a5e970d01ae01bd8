//! Where functions have roots, poles and the ends of their ranges.
//!
//! All are of mpmath with 300 bits and rounded to f64 once, by the formula that stands with them: an edge that is off
//! by more than half the points around it is not tried at all. The tests below check all of them to 1e-14; the last digits
//! rest on mpmath alone. Numbers in [`edges`] itself are where implementations change over, not edges of functions. Where
//! they depend on the dtype, those of f32 come
//! first, then those of f64; the least number of all is 2^-149 or 2^-1074, and beyond 2^128 - 2^103 or
//! 2^1024 - 2^970 a result rounds to infinity.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

type Edges = [&'static [f64]; 2];

/// `log` of what rounds to infinity, of the least normal number, of the least of all, and of half of it.
const EXP: Edges = [
    &[88.72283908187067, -87.3365447505531, -103.27892990343184, -103.97207708399179],
    &[709.782712893384, -708.3964185322641, -744.4400719213812, -745.1332191019412],
];
/// The same of base 2.
const EXP2: Edges = [&[128.0, -126.0, -149.0, -150.0], &[1024.0, -1022.0, -1074.0, -1075.0]];
/// Where `1 + e^x` is halfway to the number above 1, and `1 - e^x` to the one below: `log(2^-24)`, `log(2^-25)`.
const ONE: Edges = [&[-16.635532333438686, -17.328679513998633], &[-36.7368005696771, -37.42994775023705]];
/// `acosh` of what rounds to infinity.
const COSH: Edges = [&[89.41598626243062], &[710.475860073944]];
/// Where `erfc` is the least normal number, the least of all and half of it, and where it is halfway to 2 from
/// below: `erfc(-x) = 2 - 2^-24`.
const ERFC: Edges = [
    &[9.194549449134673, 10.019834265884624, 10.054194928818095, -3.832506856900711],
    &[26.54325845425098, 27.21329321081295, 27.226017111108362, -5.8635847487551676],
];
/// Where `erf` is halfway to 1: `1 - erf(x) = 2^-25`.
const ERF: Edges = [&[3.919205843636722], &[5.921587195794507]];
/// Where `tanh` is: `atanh(1 - 2^-25)`.
const TANH: Edges = [&[9.010913339828708], &[19.061547465398498]];
/// Where `-x Phi(x)` is the least normal number, the least of all and half of it, and where `Phi(x)` is halfway to 1.
const GELU: Edges = [
    &[-13.146246717861361, -14.307701750188489, -14.356067982158693, 5.419983174916868],
    &[-37.61586831395599, -38.56216959763951, -38.58014022378236, 8.292361075813595],
];
/// Where `-x / (1 + e^-x)` is as small; for `mish`, too, whose gate is `e^x` there.
const SILU: Edges = [
    &[-91.85677532459547, -107.96069714903614, -108.66030361932556],
    &[-714.9686572379665, -751.0615595398791, -751.7556304135238],
];
/// With `1.702 x` in the exponent.
const QUICK_GELU: Edges = [
    &[-53.65399570749889, -63.11628004914817, -63.527348758093034],
    &[-419.76269569542546, -440.9688873349462, -441.3766849434017],
];
/// With the argument of fast_gelu in it.
const FAST_GELU: Edges = [
    &[-10.100637502490063, -10.744488891454367, -10.770868370805967],
    &[-21.176880491993494, -21.54020619740384, -21.54707565497368],
];
/// Where `log1p(e^(0.75 x)) / 0.75` is as small, and where it is x.
const SOFT_PLUS: Edges = [
    &[-116.83230243067318, -138.08881596784485, -139.01301220859145, 2.0],
    &[-944.9121341396212, -992.970338658444, -993.8945348991906, 2.0],
];
/// Roots of what rounds to infinity, of the least normal number, of the least of all and of half of it.
const SQUARE: Edges = [
    &[1.8446743798831643e19, 1.0842021724855044e-19, 3.743392130574644e-23, 2.6469779601696886e-23],
    &[1.3407807929942597e154, 1.4916681462400413e-154, 2.2227587494850775e-162, 1.5717277847026288e-162],
];
/// The reciprocals of what rounds to infinity and of the least normal number.
const RECIPROCAL: Edges =
    [&[2.9387359646368754e-39, 8.507059173023462e37], &[5.562684646268003e-309, 4.49423283715579e307]];
/// The least normal number.
const NORMAL: Edges = [&[1.1754943508222875e-38], &[2.2250738585072014e-308]];
/// Where `lgamma` rounds to infinity.
const LGAMMA: Edges = [&[4.085003365866873e36], &[2.5599833278516383e305]];
/// Where `x^-2` does.
const TRIGAMMA: Edges = [&[5.421010943206881e-20], &[7.458340731200207e-155]];

/// `log|gamma(x)| = 0` below zero.
const LGAMMA_ROOTS: [f64; 16] = [
    -2.4570247382208006,
    -2.7476826467274127,
    -3.14358088834998,
    -3.955294284858598,
    -4.039361839740537,
    -4.991544640560048,
    -5.0082181683225935,
    -5.998607480080875,
    -6.001385294453155,
    -6.999801507890638,
    -7.000198333407325,
    -7.999975197095821,
    -8.000024800270682,
    -8.999997244250977,
    -9.000002755714823,
    -9.99999972442663,
];
const DIGAMMA_ROOTS: [f64; 10] = [
    1.4616321449683622,
    -0.5040830082644554,
    -1.5734984731623904,
    -2.6107208684441447,
    -3.635293366436901,
    -4.653237761743142,
    -5.6671624415568855,
    -6.678418213073427,
    -7.687788325031626,
    -8.695764163816401,
];

/// The edges of an op in f64, or f32, and where its implementations may change over.
pub fn edges(op: &str, double: bool) -> Vec<f64> {
    let of =
        |tables: &[Edges]| tables.iter().flat_map(|t| t[usize::from(double)]).copied().collect::<Vec<_>>();
    let both = |v: Vec<f64>| v.iter().flat_map(|&x| [x, -x]).collect::<Vec<_>>();
    let and = |points: &[f64], tables: &[Edges]| [points, &of(tables)].concat();
    match op {
        "sin" | "cos" | "tan" => {
            let quarters = (1..=12).map(|k| f64::from(k) * FRAC_PI_2);
            let far = [0.0, FRAC_PI_4, 652.0 * FRAC_PI_2, 1024.0, 1e5 * PI, 1e6, 1e10, 1e22];
            both(quarters.chain(far).collect())
        }
        "lgamma" | "digamma" | "trigamma" => {
            let poles: Vec<f64> = (0..20).map(|k| -f64::from(k)).collect();
            let own = match op {
                "lgamma" => and(&LGAMMA_ROOTS, &[LGAMMA]),
                "digamma" => [DIGAMMA_ROOTS.to_vec(), both(of(&[RECIPROCAL]))].concat(),
                _ => both(and(&[], &[TRIGAMMA, RECIPROCAL])),
            };
            [&poles[..], &[1.0, 2.0, 0.5, 12.0, 24.0, 1e10], &own].concat()
        }
        "log" | "log2" | "log10" | "sqrt" | "rsqrt" => and(&[0.0, 0.5, 0.75, 1.0, 1.5, 2.0, 1e10], &[NORMAL]),
        "log1p" => and(&[-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 1e10], &[NORMAL]),
        "acos" | "asin" | "atanh" => both(and(&[0.0, 0.5, 0.707_106_781_186_547_5, 1.0], &[NORMAL])),
        "atan" | "asinh" => {
            both(vec![0.0, 0.414_213_562_373_095, 1.0, 2.414_213_562_373_095, 268_435_456.0, 1e18])
        }
        "acosh" => vec![1.0, 1.5, 2.0, 268_435_456.0, 1e18],
        "erf" => both(and(&[0.0, 0.25, 0.5, 0.75, 0.84375, 1.0, 1.25, 2.0, 4.0], &[ERF, NORMAL])),
        "erfc" => both(and(&[0.0, 0.25, 0.5, 0.75, 0.84375, 1.0, 1.25, 2.0, 4.0], &[ERFC])),
        "gelu" => both(and(&[0.0, 0.25, 0.5, 1.0, 2.0, 4.0], &[GELU])),
        "tanh" => both(and(&[0.0, 0.25, 0.5, 0.55, 0.75, 1.0, 2.0, 4.0], &[TANH, NORMAL])),
        "fast_gelu" => both(and(&[0.0, 0.5, 1.0, 3.0], &[FAST_GELU])),
        "quick_gelu" => both(and(&[0.0, 0.5, 1.0, 10.0], &[QUICK_GELU])),
        "silu" | "mish" => both(and(&[0.0, 0.5, 1.0, 1.278], &[SILU, ONE])),
        "sigmoid" | "log_sigmoid" => both(and(&[0.0, 0.5, 1.0], &[EXP, ONE])),
        "soft_plus" => both(and(&[0.0, 0.5, 1.0], &[SOFT_PLUS])),
        "exp" => both(and(&[0.0, 0.5, 1.0], &[EXP])),
        "exp2" => both(and(&[0.0, 0.5, 1.0], &[EXP2])),
        "expm1" | "elu" | "selu" | "celu" => {
            let scaled = of(&[ONE]).into_iter().map(|x| 0.75 * x);
            both(and(&[0.0, 0.35, 0.5, 1.0], &[EXP, ONE]).into_iter().chain(scaled).collect())
        }
        "sinh" | "cosh" => both(and(&[0.0, 0.3, 0.5, 1.0, 22.0], &[EXP, COSH, NORMAL])),
        "square" | "square_relu" => both(and(&[0.0, 1.0], &[SQUARE])),
        "reciprocal" | "reciprocal_no_nan" => both(and(&[0.0, 1.0], &[RECIPROCAL])),
        "round" | "rint" | "ceil" | "floor" | "trunc" => {
            both(vec![0.0, 0.5, 1.0, 1.5, 2.5, 8_388_608.0, 4_503_599_627_370_496.0])
        }
        "hard_swish" | "hard_sigmoid" => both(vec![0.0, 3.0]),
        "hard_shrink" | "hard_tanh" | "soft_shrink" | "threshold" | "leaky_relu" => {
            both(vec![0.0, 0.75, 1.5])
        }
        _ => both(and(&[0.0, 1.0], &[NORMAL])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dd::Dd;
    use std::f64::consts::{LN_2, SQRT_2};

    #[track_caller]
    fn near(x: f64, y: f64) {
        assert!((x - y).abs() <= 1e-14 * y.abs(), "{x} is not {y}");
    }

    fn two(power: i32) -> f64 {
        libm::ldexp(1.0, power)
    }

    /// The square root of a power of 2.
    fn root_of_two(power: i32) -> f64 {
        two(power.div_euclid(2)) * if power % 2 == 0 { 1.0 } else { SQRT_2 }
    }

    fn ln(power: i32) -> f64 {
        f64::from(power) * LN_2
    }

    /// `log(erfc(x))`; far out by its asymptotic series, as erfc itself has few bits there or none.
    fn ln_erfc(x: f64) -> f64 {
        if x < 9.0 {
            return libm::erfc(x).ln();
        }
        let (mut sum, mut term) = (0.0, 1.0);
        for k in 0..20 {
            sum += term;
            term *= -f64::from(2 * k + 1) / (2.0 * x * x);
        }
        -x * x - (x * PI.sqrt()).ln() + sum.ln()
    }

    /// An edge with a wrong digit is off by more than these formulas in f64 are.
    #[test]
    fn edges_are_where_they_are_said_to_be() {
        for (double, [over, normal, least, digits]) in
            [(0, [128, -126, -149, 24]), (1, [1024, -1022, -1074, 53])]
        {
            // What rounds to infinity, over `2^over`, and its logarithm.
            let fraction = 1.0 - two(-digits - 1);
            let ln_over = ln(over) + (-two(-digits - 1)).ln_1p();
            near(EXP[double][0], ln_over);
            for (at, power) in EXP[double][1..].iter().zip([normal, least, least - 1]) {
                near(*at, ln(power));
            }
            assert_eq!(EXP2[double], [over, normal, least, least - 1].map(f64::from));
            for (at, power) in ONE[double].iter().zip([-digits, -digits - 1]) {
                near(*at, ln(power));
            }
            near(COSH[double][0], ln_over + LN_2);
            for (at, power) in ERFC[double].iter().zip([normal, least, least - 1]) {
                near(ln_erfc(*at), ln(power));
            }
            near(ln_erfc(-ERFC[double][3]), ln(-digits));
            near(ln_erfc(ERF[double][0]), ln(-digits - 1));
            near(TANH[double][0], (ln(digits + 2) + (-two(-digits - 2)).ln_1p()) / 2.0);
            for (at, power) in GELU[double].iter().zip([normal, least, least - 1]) {
                near(ln_erfc(-at / SQRT_2) + (-at / 2.0).ln(), ln(power));
            }
            near(GELU[double][3] / SQRT_2, -ERFC[double][3]);
            for (at, power) in SILU[double].iter().zip([normal, least, least - 1]) {
                near(at + (-at).ln(), ln(power));
            }
            for (at, power) in QUICK_GELU[double].iter().zip([normal, least, least - 1]) {
                near(1.702 * at + (-at).ln(), ln(power));
            }
            for (at, power) in FAST_GELU[double].iter().zip([normal, least, least - 1]) {
                near(crate::unary::fast_gelu_argument(*at) + (-at).ln(), ln(power));
            }
            for (at, power) in SOFT_PLUS[double].iter().zip([normal, least, least - 1]) {
                near(0.75 * at - 0.75f64.ln(), ln(power));
            }
            near(SQUARE[double][0], root_of_two(over) * fraction.sqrt());
            for (at, power) in SQUARE[double][1..].iter().zip([normal, least, least - 1]) {
                near(*at, root_of_two(power));
            }
            near(RECIPROCAL[double][0], two(-over) / fraction);
            near(RECIPROCAL[double][1], two(-normal));
            near(TRIGAMMA[double][0], root_of_two(-over) / fraction.sqrt());
            // Beside x (log(x) - 1) all else is nothing.
            let at = LGAMMA[double][0];
            near(at * two(-over / 2) * two(-over / 2) * (at.ln() - 1.0), fraction);
        }
        assert_eq!([NORMAL[0][0], NORMAL[1][0]], [f64::from(f32::MIN_POSITIVE), f64::MIN_POSITIVE]);
    }

    #[test]
    fn roots_are_where_the_sign_changes() {
        let changes = |f: fn(Dd) -> Dd, root: f64| {
            let sides = [1.0 - 1e-14, 1.0 + 1e-14].map(|part| f(Dd::from(root * part)).0 > 0.0);
            assert!(sides[0] != sides[1], "{root}");
        };
        LGAMMA_ROOTS.into_iter().for_each(|root| changes(Dd::lgamma, root));
        DIGAMMA_ROOTS.into_iter().for_each(|root| changes(Dd::digamma, root));
    }
}
