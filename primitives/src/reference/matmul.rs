//! `matmul`: `c = alpha * op(a) * op(b) + beta * c`, all matrices dense and row-major.

use super::broadcast_matmul::Batches;
use super::launch::{Launch, Outputs};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let [m, n, k] = [launch.get_size("m")?, launch.get_size("n")?, launch.get_size("k")?];
    Batches { m, n, k, a: &[], b: &[], c: &[] }.product(launch)
}

/// Sizes and transposes of `c[m, n] = alpha * op(a) * op(b) + beta * c`, all matrices dense and row-major.
///
/// `a` is stored `[m, k]`, or `[k, m]` with `trans_a`; `b` is stored `[k, n]`, or `[n, k]` with `trans_b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulShape {
    /// Rows of `c`.
    pub m: usize,
    /// Columns of `c`.
    pub n: usize,
    /// Length of each sum.
    pub k: usize,
    /// Whether `a` is stored transposed.
    pub trans_a: bool,
    /// Whether `b` is stored transposed.
    pub trans_b: bool,
}

impl MatmulShape {
    fn a(&self, i: usize, p: usize) -> usize {
        if self.trans_a { p * self.m + i } else { i * self.k + p }
    }

    fn b(&self, p: usize, j: usize) -> usize {
        if self.trans_b { j * self.k + p } else { p * self.n + j }
    }
}

fn mul(x: (f64, f64), y: (f64, f64)) -> (f64, f64) {
    // A real operand must not turn the other's infinity into NaN by way of `0 * inf`.
    match (x.1 == 0.0, y.1 == 0.0) {
        (true, true) => (x.0 * y.0, 0.0),
        (true, false) => (x.0 * y.0, x.0 * y.1),
        (false, true) => (x.0 * y.0, x.1 * y.0),
        (false, false) => (x.0 * y.0 - x.1 * y.1, x.0 * y.1 + x.1 * y.0),
    }
}

/// The product in complex numbers, (real, imaginary). A transposed operand is also conjugated, which is
/// nothing on real data. `c` is not looked at when `beta` is zero, nor `a` and `b` when `alpha` is.
pub fn matmul(
    shape: MatmulShape,
    alpha: (f64, f64),
    a: &[(f64, f64)],
    b: &[(f64, f64)],
    beta: (f64, f64),
    c: &[(f64, f64)],
) -> Vec<(f64, f64)> {
    let conj = |x: (f64, f64), on: bool| if on { (x.0, -x.1) } else { x };
    let mut out = Vec::with_capacity(shape.m * shape.n);
    for i in 0..shape.m {
        for j in 0..shape.n {
            let mut sum = (0.0, 0.0);
            if alpha != (0.0, 0.0) {
                for p in 0..shape.k {
                    let x = conj(a[shape.a(i, p)], shape.trans_a);
                    let y = conj(b[shape.b(p, j)], shape.trans_b);
                    let xy = mul(x, y);
                    sum = (sum.0 + xy.0, sum.1 + xy.1);
                }
                sum = mul(alpha, sum);
            }
            if beta != (0.0, 0.0) {
                let old = mul(beta, c[i * shape.n + j]);
                sum = (sum.0 + old.0, sum.1 + old.1);
            }
            out.push(sum);
        }
    }
    out
}

/// The product in integers modulo 2^64. Narrower integers follow by truncation, as wrapping sums and
/// products do not depend on the bits above them.
pub fn matmul_wrapping(
    shape: MatmulShape,
    alpha: i64,
    a: &[i64],
    b: &[i64],
    beta: i64,
    c: &[i64],
) -> Vec<i64> {
    let mut out = Vec::with_capacity(shape.m * shape.n);
    for i in 0..shape.m {
        for j in 0..shape.n {
            let sum = (0..shape.k)
                .fold(0i64, |sum, p| sum.wrapping_add(a[shape.a(i, p)].wrapping_mul(b[shape.b(p, j)])));
            let old = if beta == 0 { 0 } else { beta.wrapping_mul(c[i * shape.n + j]) };
            out.push(alpha.wrapping_mul(sum).wrapping_add(old));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let shape = MatmulShape { m: 1, n: 2, k: 2, trans_a: false, trans_b: true };
        let a = [(1.0, 1.0), (2.0, 0.0)];
        let b = [(3.0, 0.0), (0.0, 1.0), (5.0, 0.0), (0.0, 0.0)];
        // (1+i)*3 + 2*conj(i) = 3 + i; then times alpha = i, plus beta * c.
        let got = matmul(shape, (0.0, 1.0), &a, &b, (2.0, 0.0), &[(1.0, 0.0), (0.0, 1.0)]);
        assert_eq!(got, [(1.0, 3.0), (-5.0, 7.0)]);
        let got = matmul(shape, (0.0, 1.0), &a, &b, (0.0, 0.0), &[(f64::NAN, 0.0); 2]);
        assert_eq!(got, [(-1.0, 3.0), (-5.0, 5.0)]);
        assert_eq!(matmul_wrapping(shape, -1, &[1, 2], &[3, 4, 5, i64::MAX], 2, &[1, 0]), [-9, -3]);
    }
}
