/// Softmax of each row of `x`, a `[rows, cols]` matrix with `cols > 0`: `exp(x - max) / sum(exp(x - max))`.
/// A row with a NaN or `+inf`, or of nothing but `-inf`, is NaN throughout.
pub fn softmax(cols: usize, x: &[f64]) -> Vec<f64> {
    each_row(cols, x, |row, max, sum| row.iter().map(|v| (v - max).exp() / sum).collect())
}

/// The logarithm of [`softmax`]: `x - max - log(sum(exp(x - max)))`.
pub fn log_softmax(cols: usize, x: &[f64]) -> Vec<f64> {
    each_row(cols, x, |row, max, sum| row.iter().map(|v| v - max - sum.ln()).collect())
}

fn each_row(cols: usize, x: &[f64], f: impl Fn(&[f64], f64, f64) -> Vec<f64>) -> Vec<f64> {
    x.chunks_exact(cols)
        .flat_map(|row| {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum = row.iter().map(|v| (v - max).exp()).sum();
            f(row, max, sum)
        })
        .collect()
}
