//! A few rows times a matrix whose columns are contiguous, as the weights of a layer that are stored by output: each result is
//! the dot product of two stretches of memory, which are read where they are. Cutting such a matrix into blocks turns it over,
//! which takes longer than multiplying a few rows by it.
//!
//! A tile of results is computed side by side, so that what is read of one factor serves several of the other. Every result is added up
//! in the same order, whichever tile it is in: some terms in as many sums as a vector has lanes, then the next, and the lanes at last.

use crate::isa::{Body, Isa, Level};
use crate::kernels::elem::Storage;
use crate::kernels::gemm::{Problem, count, offsets};
use crate::kernels::gemm_lanes::{Lanes, MOST, Part, Real};
use crate::kernels::gemv::{FAR, ask};
use crate::kernels::lines::LINE;
use crate::kernels::raw::{GRAIN_BYTES, for_ranges};
use crate::kernels::stream::suits_intel;
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
#[cfg(target_arch = "x86_64")]
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of a first factor that are few at most.
const MOST_ROWS: usize = 32;

/// When dot products pay.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Rows at most, no more than [`MOST_ROWS`]. Of more, blocks are used often enough to be worth their packing.
    rows: usize,
    /// Depth at least for each row. Of less, adding up the lanes of sums takes as long as the sums, which blocks do without.
    depth: usize,
}

/// Of what is computed with as it is stored.
const OF_NUMBERS: Bounds = Bounds { rows: MOST_ROWS, depth: 16 };
/// Of halves, which are converted for each tile, and once for a block.
const OF_HALVES: Bounds = Bounds { rows: 8, depth: 64 };
/// Of pairs, beside blocks of the same pairs and beside those of tiles.
#[cfg(target_arch = "x86_64")]
pub(super) const OF_PAIRS: Bounds = Bounds { rows: MOST_ROWS, depth: 32 };
#[cfg(target_arch = "x86_64")]
pub(super) const OF_PAIRS_BESIDE_TILES: Bounds = Bounds { rows: 4, depth: 128 };

/// Depth at least, whatever the rows.
const LEAST_DEPTH: usize = if cfg!(test) { 16 } else { 128 };
/// Terms of a sum that are added up before the lanes' sums move on: of numbers of one sign each is rounded the same way.
const ADDED: usize = 64 * STEPS;
/// Bytes of the rows at most, which are read again for each tile: as many as second-level cache holds.
const MOST_BYTES: usize = 1 << 20;
/// Bytes of the second factor at least: packing less is cheap.
const LEAST_BYTES: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };

/// Bytes of rows that stay in first-level cache beside columns that are read straight.
const NEAR_ROWS: usize = 8 << 10;

/// Rows, and most columns, of a tile.
const TILE: usize = 4;

/// Solves a problem of few rows by dot products. `None`, with nothing done, for others.
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
    let solve = |strip: Strip<T>| {
        // SAFETY: the caller's promise, as of which the strip is; an `Isa` proves its level.
        unsafe {
            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 | Level::Amx => strip.solve::<Plain<T, <T::Value as Real>::Avx512>>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => strip.solve::<Plain<T, <T::Value as Real>::Avx2>>(),
                _ => strip.solve::<Plain<T, <T::Value as Real>::Portable>>(),
            }
        }
    };
    if T::DTYPE == DType::F16 && isa.level() == Level::Baseline {
        // Converting these takes many instructions: once for a block is better than once for a tile.
        return None;
    }
    let bounds = if size_of::<T>() < size_of::<T::Value>() { OF_HALVES } else { OF_NUMBERS };
    // SAFETY: the caller's promise.
    unsafe { strips(par, p, bounds, [alpha, beta], &solve) }
}

/// As [`multiply`], by the CPU's dot products of pairs of bf16.
///
/// # Safety
/// As for [`multiply`]; the CPU has AVX-512 with bf16.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn multiply_pairs(
    par: &dyn Parallel,
    p: &Problem<'_, bf16>,
    bounds: Bounds,
    alpha: f32,
    beta: f32,
) -> Option<Result<()>> {
    // SAFETY: the caller's promise.
    unsafe { strips(par, p, bounds, [alpha, beta], &|strip| strip.solve::<x86::Pairs>()) }
}

#[cfg(test)]
thread_local! {
    /// Whether this thread does without, so that tests see what blocks do.
    pub(super) static WITHOUT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Some columns of a product.
struct Strip<T: Part> {
    a: *const T,
    /// Elements between rows of the first factor.
    a_row: usize,
    rows: usize,
    b: *const T,
    /// Elements between columns of the second.
    b_col: usize,
    cols: Range<usize>,
    depth: usize,
    suits_intel: bool,
    c: *mut T,
    c_row: usize,
    /// Of the sums, and of the old results.
    factors: [T::Value; 2],
}

/// Shares the columns out to `solve`; `None` for problems that are not of this kind.
///
/// # Safety
/// As for [`super::gemm::Element::multiply`], of which `solve` is promised its strip's part.
unsafe fn strips<T: Part>(
    par: &dyn Parallel,
    p: &Problem<'_, T>,
    bounds: Bounds,
    factors: [T::Value; 2],
    solve: &(dyn Fn(Strip<T>) + Sync),
) -> Option<Result<()>> {
    let row_bytes = p.k.saturating_mul(size_of::<T>());
    #[cfg(test)]
    if WITHOUT.get() {
        return None;
    }
    let stored = p.a.cs == 1 && p.b.rs == 1 && p.inner.is_empty();
    let deep = p.k >= LEAST_DEPTH && (cfg!(test) || p.k >= bounds.depth.saturating_mul(p.m));
    let few = p.m <= bounds.rows && row_bytes.saturating_mul(p.m) <= MOST_BYTES && deep;
    if !stored || !few || row_bytes.saturating_mul(p.n) < LEAST_BYTES {
        return None;
    }
    // Four rows take about as long as reading what they are multiplied by.
    let (column, rounds) = (row_bytes, p.m.div_ceil(TILE));
    let least = (GRAIN_BYTES / column / rounds).max(1);
    // More than one for each thread, so that one that is late holds up little.
    let wanted = if par.threads() == 1 { 1 } else { par.threads().saturating_mul(4) };
    let each = p.n.div_ceil(wanted).max(least).next_multiple_of(TILE).min(p.n);
    let parts = p.n.div_ceil(each);
    let bytes = each.saturating_mul(column).saturating_mul(rounds);
    let (a, b, c) = (p.a, p.b, p.c);
    let suits_intel = suits_intel();
    Some(for_ranges(par, count(p.outer) * parts, bytes, 1, |tasks| {
        for task in tasks {
            let (a_offset, b_offset, c_offset) = offsets(p.outer, task / parts);
            let first = task % parts * each;
            solve(Strip {
                a: a.element(a_offset, 0, 0),
                a_row: a.rs,
                rows: p.m,
                b: b.element(b_offset, 0, 0),
                b_col: b.cs,
                cols: first..(first + each).min(p.n),
                depth: p.k,
                suits_intel,
                c: c.get().wrapping_add(c_offset),
                c_row: p.c_rs,
                factors,
            });
        }
        Ok(())
    }))
}

/// How stretches of memory are multiplied.
trait Kind {
    type Number: Part<Value = <Self::Lanes as Lanes>::Real>;
    type Lanes: Lanes;
    /// Neighbours that are read at a time, at most [`STEPS`].
    const STEP: usize;
    type Read: Copy;

    /// # Safety
    /// The CPU has what the kind needs, here and below.
    unsafe fn run<B: Body>(body: B) -> B::Out;

    /// # Safety
    /// See above; [`Self::STEP`] numbers are readable.
    unsafe fn read(at: *const Self::Number) -> Self::Read;

    /// Adds the products to the lanes of a sum.
    ///
    /// # Safety
    /// See above.
    unsafe fn add(a: Self::Read, b: Self::Read, sum: VectorOf<Self>) -> VectorOf<Self>;
}

type VectorOf<K> = <<K as Kind>::Lanes as Lanes>::V;

/// The longest [`Kind::STEP`].
const STEPS: usize = 32;

/// Numbers that are converted to what is computed in.
struct Plain<T, L>(PhantomData<(T, L)>);

impl<T: Part, L: Lanes<Real = T::Value>> Kind for Plain<T, L> {
    type Number = T;
    type Lanes = L;
    const STEP: usize = L::LANES;
    type Read = L::V;

    #[inline(always)]
    unsafe fn run<B: Body>(body: B) -> B::Out {
        // SAFETY: the caller's promise, here and below.
        unsafe { L::run(body) }
    }

    #[inline(always)]
    unsafe fn read(at: *const T) -> L::V {
        // SAFETY: as above.
        unsafe { T::widen::<L>(at) }
    }

    #[inline(always)]
    unsafe fn add(a: L::V, b: L::V, sum: L::V) -> L::V {
        // SAFETY: as above.
        unsafe { L::mul_add(a, b, sum) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Body, Kind, Real};
    use half::bf16;
    use std::arch::x86_64::*;

    /// Pairs of bf16, whose subnormal numbers are read as 0.
    pub(super) struct Pairs;

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512bf16")]
    fn with_pairs<B: Body>(body: B) -> B::Out {
        body.run()
    }

    impl Kind for Pairs {
        type Number = bf16;
        type Lanes = <f32 as Real>::Avx512;
        const STEP: usize = 32;
        type Read = __m512bh;

        #[inline(always)]
        unsafe fn run<B: Body>(body: B) -> B::Out {
            // SAFETY: the caller's promise, here and below.
            unsafe { with_pairs(body) }
        }

        #[inline(always)]
        unsafe fn read(at: *const bf16) -> __m512bh {
            // SAFETY: as above; both types are 64 bytes of any value.
            unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast())) }
        }

        #[inline(always)]
        unsafe fn add(a: __m512bh, b: __m512bh, sum: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_dpbf16_ps(sum, a, b) }
        }
    }
}

fn nothing<K: Kind>() -> K::Number {
    K::Number::store(<K::Lanes as Lanes>::Real::ZERO)
}

/// What is left of stretches behind whole steps, with zeros behind it.
type Rests<T, const N: usize> = [[T; STEPS]; N];

/// A strip that is solved in some way. Made only in [`Strip::solve`], under its promise.
struct Dots<K: Kind>(Strip<K::Number>, PhantomData<K>);

impl<T: Part> Strip<T> {
    /// # Safety
    /// The CPU has what `K` needs; the factors are readable and the results writable.
    unsafe fn solve<K: Kind<Number = T>>(self) {
        // SAFETY: the caller's promise.
        unsafe { K::run(Dots::<K>(self, PhantomData)) }
    }
}

impl<K: Kind> Body for Dots<K> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // Sums of twice as many columns fit twice as many registers.
        // SAFETY: as the strip was made for.
        unsafe {
            match K::Lanes::ROWS {
                _ if self.reads_straight() => self.columns::<1>(),
                8.. => self.columns::<TILE>(),
                _ => self.columns::<{ TILE / 2 }>(),
            }
        }
    }
}

impl<K: Kind> Dots<K> {
    /// Whether columns are read one behind the other. From memory a core that is not Intel's fetches short ones that way up to three times
    /// as fast as side by side, as long as first-level cache has the rows beside them.
    #[inline(always)]
    fn reads_straight(&self) -> bool {
        let Strip { ref cols, rows, depth, b_col, suits_intel, .. } = self.0;
        let column = depth * size_of::<K::Number>();
        let near = rows <= TILE && rows * column <= NEAR_ROWS;
        !suits_intel && near && b_col == depth && cols.len().saturating_mul(column) >= FAR
    }

    /// `N` columns at a time, each by all rows.
    ///
    /// # Safety
    /// The strip is what it was made for, here and below.
    #[inline(always)]
    unsafe fn columns<const N: usize>(&self) {
        const { assert!(K::STEP <= STEPS && <K::Lanes as Lanes>::LANES <= MOST) }
        let Strip { a, a_row, rows, ref cols, depth, .. } = self.0;
        debug_assert!(rows <= MOST_ROWS);
        let mut rests: Rests<K::Number, MOST_ROWS> = [[nothing::<K>(); STEPS]; MOST_ROWS];
        for (i, rest) in rests.iter_mut().enumerate().take(rows) {
            // SAFETY: the row has `depth` elements.
            unsafe { self.rest(a.wrapping_add(i * a_row), depth, rest) };
        }
        let whole = cols.start + cols.len() / N * N;
        // SAFETY: the columns are the strip's.
        unsafe {
            for col in (cols.start..whole).step_by(N) {
                self.rows::<N>(col, &rests);
            }
            for col in whole..cols.end {
                self.rows::<1>(col, &rests);
            }
        }
    }

    /// Copies what is left of a stretch.
    ///
    /// # Safety
    /// It has `depth` elements.
    #[inline(always)]
    unsafe fn rest(&self, from: *const K::Number, depth: usize, rest: &mut [K::Number; STEPS]) {
        let whole = depth - depth % K::STEP;
        for (at, rest) in (whole..depth).zip(rest) {
            // SAFETY: below `depth`.
            *rest = unsafe { from.add(at).read() };
        }
    }

    /// All rows, about as many at a time.
    ///
    /// # Safety
    /// There are `N` columns from `col` on.
    #[inline(always)]
    unsafe fn rows<const N: usize>(&self, col: usize, a_rests: &Rests<K::Number, MOST_ROWS>) {
        let Strip { rows, b, b_col, depth, .. } = self.0;
        let mut rests: Rests<K::Number, N> = [[nothing::<K>(); STEPS]; N];
        for (j, rest) in rests.iter_mut().enumerate() {
            // SAFETY: the column has `depth` elements.
            unsafe { self.rest(b.wrapping_add((col + j) * b_col), depth, rest) };
        }
        let mut tiles = rows.div_ceil(TILE);
        let mut row = 0;
        while row < rows {
            let tall = (rows - row).div_ceil(tiles);
            let place = (row, col);
            // SAFETY: `tall` rows from `row` on, at most four.
            unsafe {
                match tall {
                    1 => self.tile::<1, N>(place, a_rests, &rests),
                    2 => self.tile::<2, N>(place, a_rests, &rests),
                    3 => self.tile::<3, N>(place, a_rests, &rests),
                    _ => self.tile::<TILE, N>(place, a_rests, &rests),
                }
            }
            row += tall;
            tiles -= 1;
        }
    }

    /// # Safety
    /// There are `M` rows and `N` columns from there on.
    #[inline(always)]
    unsafe fn tile<const M: usize, const N: usize>(
        &self,
        (row, col): (usize, usize),
        a_rests: &Rests<K::Number, MOST_ROWS>,
        b_rests: &Rests<K::Number, N>,
    ) {
        let Strip { a, a_row, b, b_col, depth, c, c_row, factors, .. } = self.0;
        let whole = depth - depth % K::STEP;
        let zero = <K::Lanes as Lanes>::Real::ZERO;
        // SAFETY: stretches of `depth` elements, of which steps that begin below `whole` are inside, and the tile's results.
        unsafe {
            let a: [*const K::Number; M] = std::array::from_fn(|i| a.wrapping_add((row + i) * a_row));
            let b: [*const K::Number; N] = std::array::from_fn(|j| b.wrapping_add((col + j) * b_col));
            let bytes = depth * size_of::<K::Number>();
            // Taken from memory at the end: what is indexed by long loops is kept there from the start.
            let mut all = [[[zero; MOST]; N]; M];
            for from in (0..depth).step_by(ADDED) {
                let mut sums = [[K::Lanes::splat(zero); N]; M];
                for at in (from..whole.min(from + ADDED)).step_by(K::STEP) {
                    // Once for each line; what the first rows have asked for is there for the others.
                    let byte = at * size_of::<K::Number>();
                    if row == 0 && byte.is_multiple_of(LINE) {
                        ask::<K::Number, N>(b[0], b_col, bytes, byte);
                    }
                    let (mut read, mut i) = ([K::read(b[0].add(at)); N], 1);
                    while i < N {
                        read[i] = K::read(b[i].add(at));
                        i += 1;
                    }
                    for i in 0..M {
                        let x = K::read(a[i].add(at));
                        for j in 0..N {
                            sums[i][j] = K::add(x, read[j], sums[i][j]);
                        }
                    }
                }
                if from + ADDED >= depth && whole < depth {
                    for i in 0..M {
                        let x = K::read(a_rests[row + i].as_ptr());
                        for j in 0..N {
                            sums[i][j] = K::add(x, K::read(b_rests[j].as_ptr()), sums[i][j]);
                        }
                    }
                }
                let one = K::Lanes::splat(<K::Lanes as Lanes>::Real::ONE);
                for i in 0..M {
                    for j in 0..N {
                        let (at, mut sum) = (all[i][j].as_mut_ptr(), sums[i][j]);
                        if from > 0 {
                            sum = K::Lanes::mul_add(one, sum, K::Lanes::load(at));
                        }
                        K::Lanes::store(at, sum);
                    }
                }
            }
            for (i, all) in all.iter_mut().enumerate() {
                let totals = totals::<K::Lanes, N>(all);
                for (j, total) in totals.into_iter().enumerate() {
                    let c = c.add((row + i) * c_row + col + j);
                    let scaled = factors[0].mul(total);
                    c.write(K::Number::store(match factors[1].is_zero() {
                        true => scaled,
                        false => scaled.add(factors[1].mul(Storage::load(c.read()))),
                    }));
                }
            }
        }
    }
}

/// The sums of the lanes of each: the upper half of them is added to the lower one until one is left.
///
/// # Safety
/// The CPU has the level.
#[inline(always)]
unsafe fn totals<L: Lanes, const N: usize>(sums: &mut [[L::Real; MOST]; N]) -> [L::Real; N] {
    if N == 4 && L::LANES >= 4 {
        // Interleaving does so for several at a time: lanes of the four alternate at the end.
        // SAFETY: the caller's promise; the arrays are as long as a vector at least.
        unsafe {
            let even = added::<L>(&sums[0], &sums[2 % N]);
            let odd = added::<L>(&sums[1 % N], &sums[3 % N]);
            let (low, high) = L::zip(even, odd);
            L::store(sums[0].as_mut_ptr(), L::mul_add(L::splat(L::Real::ONE), low, high));
        }
        halve(&mut sums[0], L::LANES, N);
        return std::array::from_fn(|j| sums[0][j]);
    }
    for sums in &mut *sums {
        halve(sums, L::LANES, 1);
    }
    std::array::from_fn(|j| sums[j][0])
}

/// The upper half of each added to its lower one, and both interleaved.
///
/// # Safety
/// The CPU has the level.
#[inline(always)]
unsafe fn added<L: Lanes>(a: &[L::Real; MOST], b: &[L::Real; MOST]) -> L::V {
    // SAFETY: the caller's promise; the arrays are as long as a vector at least.
    unsafe {
        let (low, high) = L::zip(L::load(a.as_ptr()), L::load(b.as_ptr()));
        L::mul_add(L::splat(L::Real::ONE), low, high)
    }
}

/// Adds the upper half of so many numbers to the lower one, until `left` are left.
#[inline(always)]
fn halve<R: Real>(all: &mut [R; MOST], from: usize, left: usize) {
    let mut half = from / 2;
    while half >= left {
        for lane in 0..half {
            all[lane] = all[lane].add(all[lane + half]);
        }
        half /= 2;
    }
}
