//! An integer matrix times a vector, which wraps: every element of the matrix is read once, where it is.

use crate::isa::{Body, Isa};
use crate::kernels::gemm::Problem;
use crate::kernels::gemm_int::Wrapping;
use crate::kernels::gemv::{Strip, strips};
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::ops::Range;
use std::slice;

/// Solves a problem whose results have one row or one column. `None` as of [`strips`].
///
/// # Safety
/// As for [`super::gemm::Element::multiply`].
pub(super) unsafe fn multiply<T: Wrapping>(
    isa: Isa,
    par: &dyn Parallel,
    p: &Problem<'_, T>,
    alpha: T,
    beta: T,
) -> Option<Result<()>> {
    // SAFETY: the caller's promise.
    unsafe { strips(par, p, &|strip| isa.dispatch(Vector { strip, alpha, beta })) }
}

/// Made only in [`multiply`], under its promise.
struct Vector<T> {
    strip: Strip<T>,
    alpha: T,
    beta: T,
}

/// Rows of which dot products are computed side by side.
const ROWS: usize = 4;
/// Rows added in one go, which saves reading and writing the sums.
const DEPTH: usize = 8;
/// Sums that stay in first-level cache.
const BLOCK: usize = 1024;

impl<T: Wrapping> Body for Vector<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Range { start, end } = self.strip.range;
        if self.strip.deep == 1 {
            let whole = start + (end - start) / ROWS * ROWS;
            // SAFETY: rows in the range.
            unsafe {
                for i in (start..whole).step_by(ROWS) {
                    self.dots::<ROWS>(i);
                }
                for i in whole..end {
                    self.dots::<1>(i);
                }
            }
            return;
        }
        let mut block = [T::ZERO; BLOCK];
        for start in (start..end).step_by(BLOCK) {
            let sums = &mut block[..BLOCK.min(end - start)];
            sums.fill(T::ZERO);
            let whole = self.strip.k - self.strip.k % DEPTH;
            // SAFETY: terms below `k`, of results in the range.
            unsafe {
                for p in (0..whole).step_by(DEPTH) {
                    self.add::<DEPTH>(p, start, sums);
                }
                for p in whole..self.strip.k {
                    self.add::<1>(p, start, sums);
                }
                for (i, &sum) in sums.iter().enumerate() {
                    self.finish(start + i, sum);
                }
            }
        }
    }
}

impl<T: Wrapping> Vector<T> {
    /// The results of `N` rows of the matrix from `i` on.
    ///
    /// # Safety
    /// They are in the range.
    #[inline(always)]
    unsafe fn dots<const N: usize>(&self, i: usize) {
        let Strip { mat, along, k, x, .. } = self.strip;
        // SAFETY: the caller's promise; the rows and the vector have `k` elements each, which nothing writes.
        let (x, rows): (&[T], [&[T]; N]) = unsafe {
            let row = |n| slice::from_raw_parts(mat.add((i + n) * along), k);
            (slice::from_raw_parts(x, k), std::array::from_fn(row))
        };
        let mut sums = [T::ZERO; N];
        for (p, &x) in x.iter().enumerate() {
            for n in 0..N {
                sums[n] = rows[n][p].mul_add(x, sums[n]);
            }
        }
        for (n, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.finish(i + n, sum) };
        }
    }

    /// Adds `N` rows of terms from `p` on, of the columns of `sums`, which start at `start`.
    ///
    /// # Safety
    /// The terms are below `k`, and the columns in the range.
    #[inline(always)]
    unsafe fn add<const N: usize>(&self, p: usize, start: usize, sums: &mut [T]) {
        let Strip { mat, deep, x, .. } = self.strip;
        let len = sums.len();
        // SAFETY: the caller's promise; nothing writes them.
        let (x, rows): ([T; N], [&[T]; N]) = unsafe {
            let row = |n| slice::from_raw_parts(mat.add((p + n) * deep + start), len);
            (std::array::from_fn(|n| x.add(p + n).read()), std::array::from_fn(row))
        };
        for (j, sum) in sums.iter_mut().enumerate() {
            for n in 0..N {
                *sum = rows[n][j].mul_add(x[n], *sum);
            }
        }
    }

    /// # Safety
    /// Result `i` is in the range.
    #[inline(always)]
    unsafe fn finish(&self, i: usize, sum: T) {
        // SAFETY: the caller's promise; the old value is read only where `beta` asks for it.
        unsafe {
            let y = self.strip.y.add(i * self.strip.y_stride);
            let old = if self.beta == T::ZERO { T::ZERO } else { y.read().mul(self.beta) };
            y.write(self.alpha.mul_add(sum, old));
        }
    }
}
