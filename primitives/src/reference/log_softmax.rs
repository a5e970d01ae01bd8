//! `log_softmax`: the logarithm of `softmax`, `x - max - ln(sum(exp(x - max)))`.

use super::launch::{Launch, Outputs};
use super::math::{exp, ln};
use super::softmax::{along_cols, each_row, maximum, total};
use ep_core::Result;

/// The logarithm of [`softmax`](super::softmax()): `x - max - log(sum(exp(x - max)))`.
pub fn log_softmax(cols: usize, x: &[f64]) -> Vec<f64> {
    each_row(cols, x, |row, max, sum| row.iter().map(|v| v - max - sum.ln()).collect())
}

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    along_cols(launch, ["src"], "dst", |[x]| {
        let max = maximum(x);
        let powers: Vec<_> = x.iter().map(|x| exp(*x - max)).collect();
        let log = ln(total(&powers));
        x.iter().map(|x| *x - max - log).collect()
    })
}
