//! A floating-point matrix times a vector, and the sharing out of any matrix times a vector. Each element of the matrix is used
//! once, so that all there is to do is to read it as fast as the memory gives it: nothing is packed, and halves are converted on the
//! way. Intel's cores read several rows side by side and ask for what comes, because one stream alone leaves the memory waiting; others
//! read a matrix that no cache holds one row behind the other, and without asking.

use crate::isa::{Body, Isa, Level};
use crate::kernels::gemm::{Problem, count, offsets};
use crate::kernels::gemm_lanes::{Lanes, MOST, Part, Real};
use crate::kernels::raw::{GRAIN_BYTES, for_ranges, prefetch};
use crate::kernels::stream::suits_intel;
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
    let asks = suits_intel();
    // Of the whole matrix, since the order in which results add up must not depend on how many threads share it.
    let far = if size_of::<T>() < size_of::<T::Value>() { FAR_TO_CONVERT } else { FAR };
    let is_near = p.m.max(p.n).saturating_mul(p.k).saturating_mul(size_of::<T>()) < far;
    let solve = |strip| {
        let v = Vector { strip, asks, is_near, alpha, beta };
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
    /// Whether many rows are read side by side and what comes is asked for, which Intel's cores like. Others read one behind the other by
    /// themselves.
    asks: bool,
    /// Whether a core's own caches may hold the matrix.
    is_near: bool,
    alpha: T::Value,
    beta: T::Value,
}

impl<T: Part> Vector<T> {
    /// # Safety
    /// The CPU has the level.
    unsafe fn run<L: Lanes<Real = T::Value>>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            // Numbers that are converted leave a core time to ask.
            let converts = size_of::<T>() < size_of::<T::Value>();
            match (self.strip.deep == 1, self.asks || converts && !self.is_straight()) {
                (true, true) => L::run(Dots::<T, L, true>(self, PhantomData)),
                (true, false) => L::run(Dots::<T, L, false>(self, PhantomData)),
                (false, true) => L::run(Sums::<T, L, true>(self, PhantomData)),
                (false, false) => L::run(Sums::<T, L, false>(self, PhantomData)),
            }
        }
    }

    /// Whether a core that need not ask reads one row behind the other.
    #[inline(always)]
    fn is_straight(&self) -> bool {
        let Strip { deep, k, .. } = self.strip;
        let bytes = if deep == 1 { k * size_of::<T::Value>() } else { deep * size_of::<T>() };
        !self.is_near && bytes <= if deep == 1 { NEAR } else { NARROW }
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

/// Rows contiguous: one dot product each. `ASK` as [`Vector::asks`].
struct Dots<T: Part, L, const ASK: bool>(Vector<T>, PhantomData<L>);

/// Rows whose dot products are computed side by side.
const ROWS: usize = 8;
/// The same without asking.
const FEW_ROWS: usize = 4;
/// Bytes of the vector, converted, that stay in first-level cache beside a row of a far matrix, which is then read alone.
const NEAR: usize = 16 << 10;
/// Bytes of a matrix from which a core's own caches do not hold it.
pub(super) const FAR: usize = if cfg!(test) { 64 << 10 } else { 8 << 20 };

/// The same where numbers are converted, which takes longer than reading them from a third-level cache.
const FAR_TO_CONVERT: usize = 3 * FAR;

impl<T: Part, L: Lanes<Real = T::Value>, const ASK: bool> Body for Dots<T, L, ASK> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        if ASK {
            self.by::<ROWS, 1>();
        } else if self.0.is_straight() {
            self.by::<1, 2>();
        } else {
            self.by::<FEW_ROWS, 1>();
        }
    }
}

impl<T: Part, L: Lanes<Real = T::Value>, const ASK: bool> Dots<T, L, ASK> {
    /// `N` rows at a time, each in `SUMS` sums.
    #[inline(always)]
    fn by<const N: usize, const SUMS: usize>(&self) {
        let Range { start, end } = self.0.strip.range;
        let whole = start + (end - start) / N * N;
        for i in (start..whole).step_by(N) {
            // SAFETY: rows in the range.
            unsafe { self.rows::<N, SUMS>(i) };
        }
        for i in whole..end {
            // SAFETY: as above.
            unsafe { self.rows::<1, SUMS>(i) };
        }
    }

    /// Every row adds up in the same order, however many there are.
    ///
    /// # Safety
    /// The CPU has the level, and the rows from `i` on are in the range.
    #[inline(always)]
    unsafe fn rows<const N: usize, const SUMS: usize>(&self, i: usize) {
        let v = &self.0.strip;
        let whole = v.k - v.k % L::LANES;
        // Vectors between two requests, and no more than there are sums without these.
        let step = if ASK { line::<T, L>() } else { SUMS * L::LANES };
        // SAFETY: the rows and the vector have `k` elements; vectors that start below `whole` end within them.
        unsafe {
            let mut sums = [[L::splat(T::Value::ZERO); SUMS]; N];
            let rows: [*const T; N] = std::array::from_fn(|n| v.mat.wrapping_add((i + n) * v.along));
            let mut p = 0;
            while p + step <= whole {
                if ASK {
                    ask::<T, N>(rows[0], v.along, v.k * size_of::<T>(), p * size_of::<T>());
                }
                for j in 0..step / L::LANES {
                    let at = p + j * L::LANES;
                    let x = T::widen::<L>(v.x.add(at));
                    for n in 0..N {
                        sums[n][j % SUMS] = L::mul_add(T::widen::<L>(rows[n].add(at)), x, sums[n][j % SUMS]);
                    }
                }
                p += step;
            }
            if ASK && p < whole {
                ask::<T, N>(rows[0], v.along, v.k * size_of::<T>(), p * size_of::<T>());
            }
            for at in (p..whole).step_by(L::LANES) {
                let x = T::widen::<L>(v.x.add(at));
                for n in 0..N {
                    sums[n][0] = L::mul_add(T::widen::<L>(rows[n].add(at)), x, sums[n][0]);
                }
            }
            for n in 0..N {
                let mut all = [T::Value::ZERO; MOST];
                L::store(all.as_mut_ptr(), sums[n][0]);
                for &sum in &sums[n][1..] {
                    let mut more = [T::Value::ZERO; MOST];
                    L::store(more.as_mut_ptr(), sum);
                    for lane in 0..L::LANES {
                        all[lane] = all[lane].add(more[lane]);
                    }
                }
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
/// `ASK` as [`Vector::asks`].
struct Sums<T: Part, L, const ASK: bool>(Vector<T>, PhantomData<L>);

/// Rows added in one go, which saves reading and writing the sums.
const DEPTH: usize = 8;
/// The same of four bytes without asking, where a core's own caches hold the matrix.
const NEAR_DEPTH: usize = 4;
const BLOCK: usize = 4096;
/// Bytes of a row of a matrix they do not hold up to which one row behind the other is faster without asking: memory is read straight,
/// and the sums are near.
const NARROW: usize = 4 << 10;

impl<T: Part, L: Lanes<Real = T::Value>, const ASK: bool> Body for Sums<T, L, ASK> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        if ASK {
            self.by::<DEPTH>();
        } else if self.0.is_straight() {
            self.by::<1>();
        } else if self.0.is_near && size_of::<T>() == 4 {
            self.by::<NEAR_DEPTH>();
        } else {
            self.by::<DEPTH>();
        }
    }
}

impl<T: Part, L: Lanes<Real = T::Value>, const ASK: bool> Sums<T, L, ASK> {
    /// `N` rows at a time.
    #[inline(always)]
    fn by<const N: usize>(&self) {
        let v = &self.0.strip;
        let mut block = [T::Value::ZERO; BLOCK];
        for start in v.range.clone().step_by(BLOCK) {
            let sums = &mut block[..BLOCK.min(v.range.end - start)];
            sums.fill(T::Value::ZERO);
            let whole = v.k - v.k % N;
            // SAFETY: rows below `k`, of columns in the range.
            unsafe {
                for p in (0..whole).step_by(N) {
                    self.add::<N>(p, start, sums);
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
                if ASK {
                    ask::<T, N>(first, v.deep, size_of::<T>() * sums.len(), size_of::<T>() * i);
                }
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
