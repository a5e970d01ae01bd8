//! `softmax` along the middle of `[rows, cols, inner]`, and what its relatives share.

use super::launch::{Launch, Outputs};
use super::layer_norm::rounded;
use super::math::{Wide, exp};
use super::number::{Data, View};
use super::shape::count;
use ep_core::{DType, Result};

/// Softmax of each row of `x`, a `[rows, cols]` matrix with `cols > 0`: `exp(x - max) / sum(exp(x - max))`.
/// A row with a NaN or `+inf`, or of nothing but `-inf`, is NaN throughout.
pub fn softmax(cols: usize, x: &[f64]) -> Vec<f64> {
    each_row(cols, x, |row, max, sum| row.iter().map(|v| (v - max).exp() / sum).collect())
}

pub(super) fn each_row(cols: usize, x: &[f64], f: impl Fn(&[f64], f64, f64) -> Vec<f64>) -> Vec<f64> {
    x.chunks_exact(cols)
        .flat_map(|row| {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum = row.iter().map(|v| (v - max).exp()).sum();
            f(row, max, sum)
        })
        .collect()
}

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    along_cols(launch, ["src"], "dst", |[x]| {
        let max = maximum(x);
        let powers: Vec<_> = x.iter().map(|x| exp(*x - max)).collect();
        let sum = total(&powers);
        powers.into_iter().map(|p| p / sum).collect()
    })
}

pub(super) fn maximum(x: &[Wide]) -> Wide {
    x.iter().fold(-Wide::INFINITY, |max, x| if *x > max { *x } else { max })
}

pub(super) fn total(x: &[Wide]) -> Wide {
    x.iter().fold(Wide::ZERO, |sum, x| sum + *x)
}

/// Applies a function to each line along `cols` of the sources, and rounds once.
pub(super) fn along_cols<const N: usize>(
    launch: &Launch<'_>,
    sources: [&str; N],
    dst: &'static str,
    f: impl Fn([&[Wide]; N]) -> Vec<Wide>,
) -> Result<Outputs> {
    let (from, to) = (launch.get_dtype("src")?, launch.get_dtype("dst")?);
    if !from.is_float() || !to.is_float() {
        return Err(launch.unsupported(format!("{from} to {to}")));
    }
    let (rows, cols) = (launch.get_size("rows")?, launch.get_size("cols")?);
    let inner = launch.get_size("inner")?.max(1);
    let n = count(launch, &[rows, cols, inner])?;
    let sources = sources.map(|name| launch.get_read(name, from, n));
    let sources: [View<'_>; N] = collect(sources)?;
    let mut values = vec![Wide::ZERO; n];
    for line in 0..if n == 0 { 0 } else { rows * inner } {
        let at = |c: usize| (line / inner * cols + c) * inner + line % inner;
        let lines = sources.map(|s| (0..cols).map(|c| s.get(at(c)).wide()).collect::<Vec<_>>());
        let result = f(lines.each_ref().map(|l| &l[..]));
        result.into_iter().enumerate().for_each(|(c, x)| values[at(c)] = x);
    }
    Ok(Outputs::one(dst, store(values, to)))
}

fn collect<T: Copy, const N: usize>(results: [Result<T>; N]) -> Result<[T; N]> {
    let values: Vec<T> = results.into_iter().collect::<Result<_>>()?;
    Ok(std::array::from_fn(|i| values[i]))
}

fn store(values: Vec<Wide>, dtype: DType) -> Data {
    Data::new(dtype, values.into_iter().map(|x| rounded(x, dtype)))
}
