//! A complex matrix times a vector: every element of the matrix is read once, where it is.
//!
//! A complex product takes four products of parts. Numbers lie as `re, im, re, im`: as plain numbers times those of the vector
//! they give two of the four, alternately, and times those with their parts exchanged the other two. Only at the end are
//! they put together.

use crate::isa::{Body, Isa, Level};
use crate::kernels::elem::Complex;
use crate::kernels::gemm::Problem;
use crate::kernels::gemm_lanes::{Lanes, MOST, Part, Real};
use crate::kernels::gemm_simd::Number;
use crate::kernels::gemv::{Strip, ask, line, strips};
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Solves a problem whose results have one row or one column. `None` as of [`strips`].
///
/// # Safety
/// As for [`super::gemm::Element::multiply`].
pub(super) unsafe fn multiply<R>(
    isa: Isa,
    par: &dyn Parallel,
    p: &Problem<'_, Complex<R>>,
    alpha: Complex<R>,
    beta: Complex<R>,
) -> Option<Result<()>>
where
    R: Part<Value = R> + Real,
    Complex<R>: Number<Real = R, Scalar = Complex<R>>,
{
    let conj = (p.a.conj, p.b.conj);
    let solve = |strip| {
        let v = Vector { strip, conj, alpha, beta };
        // SAFETY: the caller's promise; an `Isa` proves its level.
        unsafe {
            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 | Level::Amx => R::Avx512::run(OnLanes::<R, R::Avx512>(v, PhantomData)),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => R::Avx2::run(OnLanes::<R, R::Avx2>(v, PhantomData)),
                _ => R::Portable::run(OnLanes::<R, R::Portable>(v, PhantomData)),
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { strips(par, p, &solve) }
}

/// Made only in [`multiply`], under its promise.
struct Vector<R> {
    strip: Strip<Complex<R>>,
    conj: (bool, bool),
    alpha: Complex<R>,
    beta: Complex<R>,
}

struct OnLanes<R, L>(Vector<R>, PhantomData<L>);

/// Terms whose factors of the vector are held with their parts exchanged.
const TERMS: usize = 512;
/// Rows whose sums are held from some terms to the next.
const HELD: usize = 64;
/// Rows of which dot products are computed side by side.
const ROWS: usize = 4;
/// Results whose sums stay in first-level cache.
const BLOCK: usize = 512;
/// Rows added in one go, which saves reading and writing the sums.
const DEPTH: usize = 4;

/// Sums of products of parts: of the matrix's real part with the vector's real part, of the imaginary ones, of real with
/// imaginary, and of imaginary with real.
type Sums<R> = [R; 4];

impl<R, L> Body for OnLanes<R, L>
where
    R: Part<Value = R> + Real,
    L: Lanes<Real = R>,
    Complex<R>: Number<Real = R, Scalar = Complex<R>>,
{
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: the level is the CPU's, as `multiply` has seen to; what is computed is in the range.
        unsafe {
            if self.0.strip.deep == 1 {
                for start in self.0.strip.range.clone().step_by(HELD) {
                    self.dots(start..self.0.strip.range.end.min(start + HELD));
                }
            } else {
                for start in self.0.strip.range.clone().step_by(BLOCK) {
                    self.scaled_rows(start..self.0.strip.range.end.min(start + BLOCK));
                }
            }
        }
    }
}

impl<R, L> OnLanes<R, L>
where
    R: Part<Value = R> + Real,
    L: Lanes<Real = R>,
    Complex<R>: Number<Real = R, Scalar = Complex<R>>,
{
    /// Results whose parts of the matrix are contiguous, at most [`HELD`].
    ///
    /// # Safety
    /// The CPU has the level, and the results are in the strip's range.
    #[inline(always)]
    unsafe fn dots(&self, range: Range<usize>) {
        let v = &self.0.strip;
        let mut held = [[R::ZERO; 4]; HELD];
        let mut exchanged = [const { MaybeUninit::<R>::uninit() }; 2 * TERMS];
        for start in (0..v.k).step_by(TERMS) {
            let terms = TERMS.min(v.k - start);
            for p in 0..terms {
                // SAFETY: the vector has `k` numbers.
                let Complex { re, im } = unsafe { v.x.add(start + p).read() };
                exchanged[2 * p].write(im);
                exchanged[2 * p + 1].write(re);
            }
            let count = range.len();
            let whole = count - count % ROWS;
            let exchanged = exchanged.as_ptr().cast::<R>();
            // SAFETY: the caller's promise; `exchanged` has the parts of these terms.
            unsafe {
                for i in (0..whole).step_by(ROWS) {
                    let sums = self.rows::<ROWS>(range.start + i, start, terms, exchanged);
                    for (held, sums) in held[i..i + ROWS].iter_mut().zip(sums) {
                        for (held, sum) in held.iter_mut().zip(sums) {
                            *held = held.add(sum);
                        }
                    }
                }
                for i in whole..count {
                    let [sums] = self.rows::<1>(range.start + i, start, terms, exchanged);
                    for (held, sum) in held[i].iter_mut().zip(sums) {
                        *held = held.add(sum);
                    }
                }
            }
        }
        for (i, sums) in range.zip(held) {
            // SAFETY: the caller's promise.
            unsafe { self.finish(i, sums) };
        }
    }

    /// Sums of some terms of `N` rows. Every row adds up in the same order, however many there are.
    ///
    /// # Safety
    /// The CPU has the level, the rows from `i` on are in the range, the terms below `k`, and `exchanged` is readable for
    /// their parts.
    #[inline(always)]
    unsafe fn rows<const N: usize>(
        &self,
        i: usize,
        start: usize,
        terms: usize,
        exchanged: *const R,
    ) -> [Sums<R>; N] {
        let v = &self.0.strip;
        let line = line::<R, L>();
        let parts = 2 * terms;
        let whole = parts - parts % L::LANES;
        let mut found = [[R::ZERO; 4]; N];
        // SAFETY: rows and vector have `parts` numbers from these terms on; vectors that start below `whole` end within them.
        unsafe {
            let [mut plain, mut crossed] = [[L::splat(R::ZERO); N]; 2];
            let rows: [*const R; N] =
                std::array::from_fn(|n| v.mat.wrapping_add((i + n) * v.along + start).cast());
            let x = v.x.add(start).cast::<R>();
            for p in (0..whole).step_by(line) {
                ask::<R, N>(rows[0], 2 * v.along, parts * size_of::<R>(), p * size_of::<R>());
                for at in (p..whole.min(p + line)).step_by(L::LANES) {
                    let (x, other) = (L::load(x.add(at)), L::load(exchanged.add(at)));
                    for n in 0..N {
                        let row = L::load(rows[n].add(at));
                        plain[n] = L::mul_add(row, x, plain[n]);
                        crossed[n] = L::mul_add(row, other, crossed[n]);
                    }
                }
            }
            for n in 0..N {
                let [[re_re, im_im], [re_im, im_re]] =
                    [alternating::<R, L>(plain[n]), alternating::<R, L>(crossed[n])];
                found[n] = [re_re, im_im, re_im, im_re];
                for p in whole / 2..terms {
                    let (m, x) =
                        (rows[n].cast::<Complex<R>>().add(p).read(), x.cast::<Complex<R>>().add(p).read());
                    found[n] = added(found[n], m, x);
                }
            }
        }
        found
    }

    /// Results whose parts of the matrix are contiguous with one another's, at most [`BLOCK`].
    ///
    /// # Safety
    /// The CPU has the level, and the results are in the strip's range.
    #[inline(always)]
    unsafe fn scaled_rows(&self, range: Range<usize>) {
        let v = &self.0.strip;
        let parts = 2 * range.len();
        let mut rooms = [[const { MaybeUninit::<R>::uninit() }; 2 * BLOCK]; 2];
        let [by_re, by_im] = rooms.each_mut().map(|room| {
            room[..parts].fill(MaybeUninit::new(R::ZERO));
            // SAFETY: these have just been written.
            unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<R>(), parts) }
        });
        let whole = v.k - v.k % DEPTH;
        // SAFETY: terms below `k`, of results in the range.
        unsafe {
            for p in (0..whole).step_by(DEPTH) {
                self.add::<DEPTH>(p, range.start, by_re, by_im);
            }
            for p in whole..v.k {
                self.add::<1>(p, range.start, by_re, by_im);
            }
        }
        for (j, i) in range.enumerate() {
            let (re, im) = (2 * j, 2 * j + 1);
            // SAFETY: the caller's promise.
            unsafe { self.finish(i, [by_re[re], by_im[im], by_im[re], by_re[im]]) };
        }
    }

    /// Adds `N` rows of terms from `p` on, as plain numbers, by the real parts of their factors and by the imaginary ones. Every
    /// column adds up in the same order, wherever it lies.
    ///
    /// # Safety
    /// The CPU has the level; the rows are readable from column `start` on for all sums, of which both have as many.
    #[inline(always)]
    unsafe fn add<const N: usize>(&self, p: usize, start: usize, by_re: &mut [R], by_im: &mut [R]) {
        let v = &self.0.strip;
        let line = line::<R, L>();
        let (parts, bytes) = (by_re.len(), size_of_val(by_re));
        let whole = parts - parts % L::LANES;
        // SAFETY: rows and columns as the caller promises; the vector has `k` numbers.
        unsafe {
            let x: [Complex<R>; N] = std::array::from_fn(|n| v.x.add(p + n).read());
            let (mut re, mut im) = ([L::splat(R::ZERO); N], [L::splat(R::ZERO); N]);
            for n in 0..N {
                (re[n], im[n]) = (L::splat(x[n].re), L::splat(x[n].im));
            }
            let first = v.mat.wrapping_add(p * v.deep + start).cast::<R>();
            let (by_re, by_im) = (by_re.as_mut_ptr(), by_im.as_mut_ptr());
            for i in (0..whole).step_by(line) {
                ask::<R, N>(first, 2 * v.deep, bytes, size_of::<R>() * i);
                for at in (i..whole.min(i + line)).step_by(L::LANES) {
                    let (mut sum_re, mut sum_im) = (L::load(by_re.add(at)), L::load(by_im.add(at)));
                    for n in 0..N {
                        let row = L::load(first.add(2 * n * v.deep + at));
                        sum_re = L::mul_add(re[n], row, sum_re);
                        sum_im = L::mul_add(im[n], row, sum_im);
                    }
                    L::store(by_re.add(at), sum_re);
                    L::store(by_im.add(at), sum_im);
                }
            }
            for i in whole..parts {
                for (n, x) in x.iter().enumerate() {
                    let m = first.add(2 * n * v.deep + i).read();
                    by_re.add(i).write(by_re.add(i).read().add(x.re.mul(m)));
                    by_im.add(i).write(by_im.add(i).read().add(x.im.mul(m)));
                }
            }
        }
    }

    /// # Safety
    /// Result `i` is in the strip's range.
    #[inline(always)]
    unsafe fn finish(&self, i: usize, [re_re, im_im, re_im, im_re]: Sums<R>) {
        let Vector { strip, conj, alpha, beta } = &self.0;
        let sum =
            if strip.of_a { [[re_re, re_im], [im_re, im_im]] } else { [[re_re, im_re], [re_im, im_im]] };
        // SAFETY: the caller's promise; the old value is read only where `beta` asks for it.
        unsafe {
            let y = strip.y.add(i * strip.y_stride);
            let zero = Complex { re: R::ZERO, im: R::ZERO };
            let old = if beta.re.is_zero() && beta.im.is_zero() { zero } else { y.read() };
            y.write(Complex::finish(sum, *conj, *alpha, *beta, old));
        }
    }
}

/// The sums of the even lanes and of the odd ones.
///
/// # Safety
/// The CPU has the level.
#[inline(always)]
unsafe fn alternating<R: Real, L: Lanes<Real = R>>(sums: L::V) -> [R; 2] {
    let mut all = [R::ZERO; MOST];
    // SAFETY: the caller's promise; there are at most `MOST` lanes.
    unsafe { L::store(all.as_mut_ptr(), sums) };
    let mut half = L::LANES / 2;
    while half > 1 {
        for lane in 0..half {
            all[lane] = all[lane].add(all[lane + half]);
        }
        half /= 2;
    }
    [all[0], all[1]]
}

#[inline(always)]
fn added<R: Real>([re_re, im_im, re_im, im_re]: Sums<R>, m: Complex<R>, x: Complex<R>) -> Sums<R> {
    [
        re_re.add(m.re.mul(x.re)),
        im_im.add(m.im.mul(x.im)),
        re_im.add(m.re.mul(x.im)),
        im_re.add(m.im.mul(x.re)),
    ]
}
