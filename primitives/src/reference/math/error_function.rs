//! The error function and its complement.

use super::elementary::{PI, RECIPROCALS, exp};
use super::wide::Wide;

/// From here up the complement is computed first, below it the function: neither loses digits that matter.
const SPLIT: f64 = 5.0;

/// The error function. DLMF 7.6.2, whose terms are all of one sign.
pub fn erf(x: Wide) -> Wide {
    if x.is_nan() || x.is_zero() {
        return x;
    }
    if x.abs() >= Wide::from(SPLIT) {
        return (Wide::ONE - erfc_tail(x.abs())).with_sign_of(x);
    }
    let square = x.square().times_power_of_2(1);
    let (mut term, mut sum) = (x, x);
    for n in (3..512).step_by(2) {
        term = term * square * RECIPROCALS[n];
        sum = sum + term;
        if term.exponent() < sum.exponent() - 128 {
            break;
        }
    }
    sum * exp(-x.square()) * Wide::from(2.0) / PI.sqrt()
}

/// `1 - erf(x)`, to full relative accuracy where it is small.
pub fn erfc(x: Wide) -> Wide {
    if x >= Wide::from(SPLIT) { erfc_tail(x) } else { Wide::ONE - erf(x) }
}

/// The complement for x from [`SPLIT`] up, by the continued fraction of DLMF 7.9.1 from its end.
fn erfc_tail(x: Wide) -> Wide {
    if x.is_infinite() {
        return Wide::ZERO;
    }
    let mut fraction = x;
    for k in (1..64i128).rev() {
        fraction = x + Wide::from(k).times_power_of_2(-1) / fraction;
    }
    exp(-x.square()) / (fraction * PI.sqrt())
}
