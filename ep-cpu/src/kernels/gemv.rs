//! A floating-point matrix times a vector, and the sharing out of any matrix times a vector. Each element of the matrix is used
//! once, so that all there is to do is to read it as fast as the memory gives it: nothing is packed, halves are converted on the
//! way, and several rows are read side by side, because one stream alone leaves the memory waiting.

use crate::isa::{Body, Isa, Level};
use crate::kernels::gemm::{Problem, count, offsets};
use crate::kernels::gemm_lanes::{Lanes, MOST, Part, Real};
use crate::kernels::raw::{GRAIN_BYTES, for_ranges, prefetch};
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::marker::PhantomData;
use std::ops::Range;

/// Solves a problem whose results have one row or one column. `None` as of [`strips`].
///
/// # Safety
/// As for [`super::gemm::Element::multiply`].
pub(super) unsafe fn multiply<T: Part>(
    isa: Isa,
    par: &dyn Parallel,
    p: &Problem<'_, T>,
    alpha: T::Value,
    beta: T::Value,
) -> Option<Result<()>> {
    let solve = |strip| {
        let v = Vector { strip, alpha, beta };
        // SAFETY: the caller's promise; an `Isa` proves its level.
        unsafe {
            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 | Level::Amx => v.run::<<T::Value as Real>::Avx512>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => v.run::<<T::Value as Real>::Avx2>(),
                _ => v.run::<<T::Value as Real>::Portable>(),
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { strips(par, p, &solve) }
}

/// Some elements of a matrix times a vector: `y[range] = mat x`. One of `along` and `deep` is 1.
pub(super) struct Strip<T> {
    pub(super) mat: *const T,
    /// Whether the matrix is the first factor.
    pub(super) of_a: bool,
    /// Elements from one result's part of the matrix to the next one's.
    pub(super) along: usize,
    /// Elements from one of the `k` terms to the next.
    pub(super) deep: usize,
    pub(super) range: Range<usize>,
    pub(super) k: usize,
    pub(super) x: *const T,
    pub(super) y: *mut T,
    pub(super) y_stride: usize,
}

/// Shares a problem whose results have one row or one column out to `solve`. `None`, with nothing done, for others, for those
/// that are summed over, and for vectors that are not contiguous.
///
/// # Safety
/// As for [`super::gemm::Element::multiply`], of which `solve` is promised its strip's part.
pub(super) unsafe fn strips<T: Copy + Send + Sync>(
    par: &dyn Parallel,
    p: &Problem<'_, T>,
    solve: &(dyn Fn(Strip<T>) + Sync),
) -> Option<Result<()>> {
    // y[len] = mat * x[k], where mat is `len` long along `along` and `k` long along `deep`.
    let of_a = p.n == 1 && p.b.rs == 1;
    if !p.inner.is_empty() || !(of_a || p.m == 1 && p.a.cs == 1) {
        return None;
    }
    let (mat, x, len, along, deep, y_stride) = match of_a {
        true => (p.a.at, p.b.at, p.m, p.a.rs, p.a.cs, p.c_rs),
        false => (p.b.at, p.a.at, p.n, p.b.cs, p.b.rs, 1),
    };
    let row_bytes = p.k.saturating_mul(size_of::<T>());
    // Rows of which a task has enough to do, and of columns so many that memory is read in long stretches.
    let least = (GRAIN_BYTES / row_bytes.max(1)).max(if deep == 1 { 1 } else { 1024 });
    let wanted = match (par.threads(), deep) {
        (1, _) => 1,
        (threads, 1) => threads.saturating_mul(4),
        (threads, _) => threads,
    };
    let each = len.div_ceil(wanted).max(least).next_multiple_of(16).min(len);
    let parts = len.div_ceil(each);
    Some(for_ranges(par, count(p.outer) * parts, each.saturating_mul(row_bytes), 1, |tasks| {
        for task in tasks {
            let (a, b, c) = offsets(p.outer, task / parts);
            let (mat_offset, x_offset) = if of_a { (a, b) } else { (b, a) };
            let first = task % parts * each;
            // SAFETY: the matrices of a round lie at its offsets.
            let (mat, x, y) = unsafe { (mat.get().add(mat_offset), x.get().add(x_offset), p.c.get().add(c)) };
            solve(Strip {
                mat: mat.cast_const(),
                of_a,
                along,
                deep,
                range: first..(first + each).min(len),
                k: p.k,
                x: x.cast_const(),
                y,
                y_stride,
            });
        }
        Ok(())
    }))
}

/// Made only in [`multiply`], under its promise.
struct Vector<T: Part> {
    strip: Strip<T>,
    alpha: T::Value,
    beta: T::Value,
}

impl<T: Part> Vector<T> {
    /// # Safety
    /// The CPU has the level.
    unsafe fn run<L: Lanes<Real = T::Value>>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.strip.deep == 1 {
                L::run(Dots::<T, L>(self, PhantomData));
            } else {
                L::run(Sums::<T, L>(self, PhantomData));
            }
        }
    }

    #[inline(always)]
    fn finish(&self, i: usize, sum: T::Value) {
        // SAFETY: called with `i` in the range; the old value is read only where `beta` asks for it.
        unsafe {
            let y = self.strip.y.add(i * self.strip.y_stride);
            let scaled = self.alpha.mul(sum);
            y.write(T::store(match self.beta.is_zero() {
                true => scaled,
                false => scaled.add(self.beta.mul(y.read().load())),
            }));
        }
    }
}

/// Bytes ahead of what is read, for which a core cannot wait.
const AHEAD: usize = 512;

/// Asks for what is [`AHEAD`] of byte `at` in each of `N` rows of `bytes` bytes, `step` elements apart, or in the `N` rows behind
/// them where these end before (of short rows, farther on). Nothing is read, so there may be no such memory.
#[inline(always)]
pub(super) fn ask<T, const N: usize>(first: *const T, step: usize, bytes: usize, at: usize) {
    let ahead = at + AHEAD;
    let (row, ahead) = if ahead < bytes { (0, ahead) } else { (N, ahead - bytes) };
    for n in row..row + N {
        prefetch(first.wrapping_add(n * step).wrapping_byte_add(ahead));
    }
}

/// Elements that are read between two requests for what is ahead: a line's, or a vector's if that is longer.
pub(super) const fn line<T: Part, L: Lanes<Real = T::Value>>() -> usize {
    let line = 64 / size_of::<T>();
    if line > L::LANES { line } else { L::LANES }
}

/// Rows contiguous: one dot product each.
struct Dots<T: Part, L>(Vector<T>, PhantomData<L>);

/// Rows whose dot products are computed side by side.
const ROWS: usize = 8;

impl<T: Part, L: Lanes<Real = T::Value>> Body for Dots<T, L> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Range { start, end } = self.0.strip.range;
        let whole = start + (end - start) / ROWS * ROWS;
        for i in (start..whole).step_by(ROWS) {
            // SAFETY: rows in the range.
            unsafe { self.rows::<ROWS>(i) };
        }
        for i in whole..end {
            // SAFETY: as above.
            unsafe { self.rows::<1>(i) };
        }
    }
}

impl<T: Part, L: Lanes<Real = T::Value>> Dots<T, L> {
    /// Every row adds up in the same order, however many there are.
    ///
    /// # Safety
    /// The CPU has the level, and the rows from `i` on are in the range.
    #[inline(always)]
    unsafe fn rows<const N: usize>(&self, i: usize) {
        let v = &self.0.strip;
        let line = line::<T, L>();
        let whole = v.k - v.k % L::LANES;
        // SAFETY: the rows and the vector have `k` elements; vectors that start below `whole` end within them.
        unsafe {
            let mut sums = [L::splat(T::Value::ZERO); N];
            let rows: [*const T; N] = std::array::from_fn(|n| v.mat.wrapping_add((i + n) * v.along));
            for p in (0..whole).step_by(line) {
                ask::<T, N>(rows[0], v.along, v.k * size_of::<T>(), p * size_of::<T>());
                for at in (p..whole.min(p + line)).step_by(L::LANES) {
                    let x = T::widen::<L>(v.x.add(at));
                    for n in 0..N {
                        sums[n] = L::mul_add(T::widen::<L>(rows[n].add(at)), x, sums[n]);
                    }
                }
            }
            for n in 0..N {
                let mut all = [T::Value::ZERO; MOST];
                L::store(all.as_mut_ptr(), sums[n]);
                let mut half = L::LANES / 2;
                while half > 0 {
                    for lane in 0..half {
                        all[lane] = all[lane].add(all[lane + half]);
                    }
                    half /= 2;
                }
                let mut total = all[0];
                for p in whole..v.k {
                    total = total.add(rows[n].add(p).read().load().mul(v.x.add(p).read().load()));
                }
                self.0.finish(i + n, total);
            }
        }
    }
}

/// Columns contiguous: sums of scaled rows, in blocks that stay in first-level cache.
struct Sums<T: Part, L>(Vector<T>, PhantomData<L>);

/// Rows added in one go, which saves reading and writing the sums.
const DEPTH: usize = 8;
const BLOCK: usize = 4096;

impl<T: Part, L: Lanes<Real = T::Value>> Body for Sums<T, L> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let v = &self.0.strip;
        let mut block = [T::Value::ZERO; BLOCK];
        for start in v.range.clone().step_by(BLOCK) {
            let sums = &mut block[..BLOCK.min(v.range.end - start)];
            sums.fill(T::Value::ZERO);
            let whole = v.k - v.k % DEPTH;
            // SAFETY: rows below `k`, of columns in the range.
            unsafe {
                for p in (0..whole).step_by(DEPTH) {
                    self.add::<DEPTH>(p, start, sums);
                }
                for p in whole..v.k {
                    self.add::<1>(p, start, sums);
                }
            }
            for (i, &sum) in sums.iter().enumerate() {
                self.0.finish(start + i, sum);
            }
        }
    }
}

impl<T: Part, L: Lanes<Real = T::Value>> Sums<T, L> {
    /// Adds `N` rows from `p` on, each with its factor. Every column adds up in the same order, wherever it lies.
    ///
    /// # Safety
    /// The CPU has the level; the rows are readable from column `start` on for all sums.
    #[inline(always)]
    unsafe fn add<const N: usize>(&self, p: usize, start: usize, sums: &mut [T::Value]) {
        let v = &self.0.strip;
        let line = line::<T, L>();
        let whole = sums.len() - sums.len() % L::LANES;
        // SAFETY: rows and columns as the caller promises; the vector has `k` elements.
        unsafe {
            let mut x = [T::Value::ZERO; N];
            let mut splat = [L::splat(T::Value::ZERO); N];
            for n in 0..N {
                x[n] = v.x.add(p + n).read().load();
                splat[n] = L::splat(x[n]);
            }
            let first = v.mat.wrapping_add(p * v.deep + start);
            let sum = sums.as_mut_ptr();
            for i in (0..whole).step_by(line) {
                ask::<T, N>(first, v.deep, size_of::<T>() * sums.len(), size_of::<T>() * i);
                for at in (i..whole.min(i + line)).step_by(L::LANES) {
                    let mut total = L::load(sum.add(at));
                    for (n, splat) in splat.iter().enumerate() {
                        total = L::mul_add(*splat, T::widen::<L>(first.add(n * v.deep + at)), total);
                    }
                    L::store(sum.add(at), total);
                }
            }
            for i in whole..sums.len() {
                let mut total = *sum.add(i);
                for (n, x) in x.iter().enumerate() {
                    total = total.add(x.mul(first.add(n * v.deep + i).read().load()));
                }
                *sum.add(i) = total;
            }
        }
    }
}
