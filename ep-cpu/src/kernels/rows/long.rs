//! Rows too long for the first-level cache, in blocks that fit it.
//!
//! The first pass takes of each block its maximum and the sum of its exponentials, each block with a shift of its
//! own; the sums are added up in f64. Where a cache holds the exponentials of a row, they are kept, in the destination if it can
//! hold them and is to be in the cache, else aside; and the second pass scales them. Of longer rows it computes them again, which
//! costs less than storing them in memory and reading them; the bits are the same. Blocks are the same whatever the number of threads,
//! and so is their order.
//!
//! A block is read once if its maximum can be guessed: see [`Sum`].

use super::exp::{Last, Shift};
use super::vector::{Body, Compute, Vector, dispatch};
use super::{ADDED, EXP_BYTES, LINE, Matrix, UNROLL, join, maximum, prefetch_line};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::ops::Range;
use std::ptr;

/// Elements of a block: two of them and more fit a first-level cache.
const BLOCK: usize = 2048;

/// Bytes of a row's exponentials up to which they are kept aside: what a core's second-level cache holds, or little more.
const ASIDE_BYTES: usize = 1 << 20;

/// How many times the exponential of the guess that of a block's maximum may be: sums of a block's are finite.
const MOST_ABOVE: f64 = (1u128 << 64) as f64;

/// The exponentials of some elements: their sum is `sum * exp(base)`.
#[derive(Clone, Copy)]
struct Partial<A> {
    max: A,
    base: f64,
    sum: f64,
}

impl<A: Real> Partial<A> {
    const NONE: Self = Self { max: A::NEG_INFINITY, base: f64::NEG_INFINITY, sum: 0.0 };

    fn join(self, other: Self) -> Self {
        let max = if other.max > self.max { other.max } else { self.max };
        let [low, high] = if other.base > self.base { [self, other] } else { [other, self] };
        let scale = if low.base == high.base { 1.0 } else { libm::exp(low.base - high.base) };
        Self { max, base: high.base, sum: low.sum * scale + high.sum }
    }
}

/// What is known of a block.
#[derive(Clone, Copy)]
struct Block<A> {
    partial: Partial<A>,
    /// What its exponentials are shifted by.
    shift: Shift<A>,
}

/// How a row is finished once it has been summed up.
#[derive(Clone, Copy)]
struct Finish<A> {
    max: A,
    shift: Shift<A>,
    last: Last<A>,
}

impl<A: Real> Finish<A> {
    fn new(log: bool, all: Partial<A>) -> Self {
        let shift = Shift::of(all.max);
        Self { max: all.max, shift, last: Last::of(log, &shift, A::from_f64(all.sum), all.max) }
    }

    /// What finishes exponentials with the shift `kept`, which is that of the row or one of a lower maximum, if that gives what computing
    /// them again would.
    fn of_kept(&self, kept: &Shift<A>) -> Option<Last<A>> {
        let power = kept.power_to(&self.shift)?;
        let Last { factor, addend, least } = self.last;
        if power == 1.0 {
            // Not of NaN, whose sign and digits show how they were multiplied.
            return (factor >= A::ZERO).then_some(self.last);
        }
        // Computed again, those that would be below about sqrt(2) times the smallest normal number are 0. Where all that are below
        // `least` become 0, and that is more, nobody sees it.
        let clear = least >= A::from_f64(1.415) * A::MIN_POSITIVE;
        // All else is exact while numbers are normal: no result is less than the smallest such number.
        let factor = A::from_f64(factor.to_f64() * power);
        let least = A::from_f64(least.to_f64() / power);
        (clear && factor >= A::MIN_POSITIVE).then_some(Last { factor, addend, least })
    }
}

/// Where the exponentials of a row are until their sum is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Destination,
    Aside,
    /// They are computed again.
    Nowhere,
}

/// A matrix of which blocks of rows are summed up and finished. Made only for what [`Matrix`] promises.
struct Blocks<S, D> {
    isa: Isa,
    src: Shared<S>,
    dst: Shared<D>,
    cols: usize,
    stream: bool,
    log: bool,
    keep: Keep,
    /// Whether shifts may be guessed.
    guesses: bool,
}

impl<S, D> Blocks<S, D> {
    fn count(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// The elements of these blocks, in the matrix.
    fn elements(&self, row: usize, blocks: &Range<usize>) -> Range<usize> {
        let at = row * self.cols;
        at + blocks.start * BLOCK..at + (blocks.end * BLOCK).min(self.cols)
    }

    /// Where exponentials of a block of a row are kept; `aside` is the room for those of the row. Null for nowhere.
    ///
    /// # Safety
    /// `aside` is room for `cols` numbers where they are kept there; the matrix has such a row with such a block.
    unsafe fn kept<A>(&self, row: usize, block: usize, aside: *mut A) -> *mut A {
        let at = self.elements(row, &(block..block + 1)).start;
        // SAFETY: the caller's promise; where they are kept in the destination, that is of this type.
        unsafe {
            match self.keep {
                Keep::Destination => self.dst.get().add(at).cast(),
                Keep::Aside => aside.add(block * BLOCK),
                Keep::Nowhere => ptr::null_mut(),
            }
        }
    }

    /// The sum of one block. `above` is the largest element of some before it.
    ///
    /// # Safety
    /// As for [`Self::kept`]; nothing else uses what it returns.
    unsafe fn sum<A: Compute>(&self, row: usize, block: usize, above: A, aside: *mut A) -> Block<A>
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let part = self.elements(row, &(block..block + 1));
        // SAFETY: the block is within the matrix, and the rest is the caller's promise.
        let (src, kept) =
            unsafe { (self.src.get().add(part.start).cast_const(), self.kept(row, block, aside)) };
        let (len, before) = (part.len(), self.guesses.then_some(above));
        if kept.is_null() {
            return dispatch::<A, _>(self.isa, Sum::<S, A, false> { src, kept, len, before });
        }
        dispatch::<A, _>(self.isa, Sum::<S, A, true> { src, kept, len, before })
    }

    /// Finishes these blocks of a row of which all are `known`.
    ///
    /// # Safety
    /// As for [`Self::sum`]; where exponentials are kept, all of these blocks have been summed up.
    unsafe fn finish<A: Compute>(
        &self,
        row: usize,
        blocks: Range<usize>,
        known: &[Block<A>],
        finish: Finish<A>,
        aside: *mut A,
    ) where
        S: Cell<A>,
        D: Cell<A>,
    {
        let &Self { isa, stream, log, .. } = self;
        if self.keep == Keep::Nowhere {
            // SAFETY: the blocks are within the matrix.
            unsafe { self.write(self.elements(row, &blocks), finish) };
            return;
        }
        for block in blocks {
            let part = self.elements(row, &(block..block + 1));
            let Some(last) = finish.of_kept(&known[block].shift) else {
                // SAFETY: the blocks are within the matrix; where exponentials have replaced results, elements are apart.
                unsafe { self.write(part, finish) };
                continue;
            };
            // SAFETY: as above, and the caller's promise.
            let (kept, dst) =
                unsafe { (self.kept(row, block, aside).cast_const(), self.dst.get().add(part.start)) };
            debug_assert!(!log);
            dispatch::<A, _>(isa, Scale { kept, dst, len: part.len(), stream, last });
        }
    }

    /// Finishes elements of one row from the source.
    ///
    /// # Safety
    /// The matrix has these elements, and nothing else uses them.
    unsafe fn write<A: Compute>(&self, part: Range<usize>, finish: Finish<A>)
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let &Self { isa, stream, log, .. } = self;
        // SAFETY: the caller's promise.
        let (src, dst) =
            unsafe { (self.src.get().add(part.start).cast_const(), self.dst.get().add(part.start)) };
        dispatch::<A, _>(isa, Write { src, dst, len: part.len(), stream, log, finish });
    }
}

/// Softmax or log-softmax of a matrix of long rows, over threads.
///
/// # Errors
/// `OutOfMemory` if there is none for the sums of a row that several threads share, or of one whose exponentials are kept, or for
/// these; those of `par`.
///
/// # Safety
/// The matrix is as [`Matrix`] says.
pub(super) unsafe fn run<S, D, A>(isa: Isa, par: &dyn Parallel, m: &Matrix<S, D>) -> Result<()>
where
    S: Cell<A>,
    D: Cell<A>,
    A: Compute,
{
    let &Matrix { rows, cols, src, dst, stream, log } = m;
    let guesses = is_fused(isa);
    let keep = if log || !guesses {
        Keep::Nowhere
    } else if !stream && src.addr() != dst.addr() && D::DTYPE == A::DTYPE {
        Keep::Destination
    } else if cols * size_of::<A>() <= ASIDE_BYTES {
        Keep::Aside
    } else {
        Keep::Nowhere
    };
    let (src, dst) = (Shared::new(src.cast_mut()), Shared::new(dst));
    let matrix = Blocks { isa, src, dst, cols, stream, log, keep, guesses };
    let count = matrix.count();
    let aside = if keep == Keep::Aside { cols } else { 0 };
    if rows >= par.threads() || cols < 4 * BLOCK {
        return for_ranges(par, rows, cols.saturating_mul(EXP_BYTES), 1, |rows| {
            let (mut known, mut aside) = (room(count, cols)?, room(aside, cols)?);
            for row in rows {
                let mut all = Partial::NONE;
                known.clear();
                for block in 0..count {
                    // SAFETY: this row is only this task's, as is the room.
                    let one = unsafe { matrix.sum(row, block, all.max, aside.as_mut_ptr()) };
                    all = all.join(one.partial);
                    known.push(one);
                }
                // SAFETY: as above.
                unsafe { matrix.finish(row, 0..count, &known, Finish::new(log, all), aside.as_mut_ptr()) };
            }
            Ok(())
        });
    }
    let (mut known, mut aside) = (room(count, cols)?, room(aside, cols)?);
    known.resize(count, Block { partial: Partial::NONE, shift: Shift::of(A::ZERO) });
    let aside = Shared::new(aside.as_mut_ptr());
    let bytes = BLOCK * EXP_BYTES;
    for row in 0..rows {
        let shared = Shared::new(known.as_mut_ptr());
        for_ranges(par, count, bytes, 1, |blocks| {
            let mut above = A::NEG_INFINITY;
            for block in blocks {
                // SAFETY: the rooms have `count` blocks, and this one is only this task's.
                let one = unsafe { matrix.sum(row, block, above, aside.get()) };
                above = if one.partial.max > above { one.partial.max } else { above };
                // SAFETY: as above.
                unsafe { *shared.get().add(block) = one };
            }
            Ok(())
        })?;
        let all = known.iter().fold(Partial::NONE, |all, one| all.join(one.partial));
        let all = Finish::new(log, all);
        for_ranges(par, count, bytes, 1, |blocks| {
            // SAFETY: as above.
            unsafe { matrix.finish(row, blocks, &known, all, aside.get()) };
            Ok(())
        })?;
    }
    Ok(())
}

/// Whether exponentials of the same element with different shifts differ by a power of two alone. Where a product is rounded before
/// it is added, it may be half-way between two integers, of which the shift decides.
fn is_fused(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    return isa.level() != Level::Baseline;
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        false
    }
}

/// Room for `count` values about a row, none of them yet.
fn room<T>(count: usize, cols: usize) -> Result<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).map_err(|_| {
        let bytes = count * size_of::<T>();
        Error::out_of_memory(format!(
            "softmax needs {bytes} bytes for intermediate values of a row of {cols}"
        ))
    })?;
    Ok(room)
}

/// The exponentials of one block, which go to `kept` if they are to `KEEP`. Made only for `len` readable elements, one at least, and in that
/// case as many writable ones apart from them.
///
/// The shift is that of the block's maximum, or of a guess: that is the largest of what came `before` in the row and of the
/// first elements. So it is at most the row's, and what is 0 with it is also 0 with that; and all but what is far
/// too small to be seen in the sum of the row differs by powers of two alone, which are taken out. A guess that is too low is made
/// good by another pass.
struct Sum<S, A, const KEEP: bool> {
    src: *const S,
    kept: *mut A,
    len: usize,
    /// What came before, `-inf` for nothing; none where there is no guessing.
    before: Option<A>,
}

impl<S: Cell<A>, A: Compute, const KEEP: bool> Body<A> for Sum<S, A, KEEP> {
    type Out = Block<A>;

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) -> Block<A> {
        let Self { src, len, before, .. } = self;
        // SAFETY: all is within the block.
        unsafe {
            if let Some(before) = before {
                let first = maximum::<V, S>(src, len.min(UNROLL * V::LANES)).fold(V::max).first();
                let guess = if first > before { first } else { before };
                let shift = Shift::of(guess);
                if shift.is_plain() {
                    let (max, sum) = self.exponentials::<V>(shift);
                    let own = Shift::of(max);
                    if let Some(power) = shift.power_to(&own)
                        && power >= 1.0 / MOST_ABOVE
                        && power.is_finite()
                    {
                        let partial = Partial { max, base: own.total(), sum: sum * power };
                        return Block { partial, shift };
                    }
                }
            }
            let shift = Shift::of(maximum::<V, S>(src, len).fold(V::max).first());
            let (max, sum) = self.exponentials::<V>(shift);
            Block { partial: Partial { max, base: shift.total(), sum }, shift }
        }
    }
}

impl<S: Cell<A>, A: Compute, const KEEP: bool> Sum<S, A, KEEP> {
    /// The maximum, and the sum of the exponentials with a shift.
    ///
    /// # Safety
    /// The block is as [`Sum`] says.
    #[inline(always)]
    unsafe fn exponentials<V: Vector<Lane = A>>(&self, shift: Shift<A>) -> (A, f64) {
        let &Self { src, kept, len, .. } = self;
        let mut sum = [V::splat(A::ZERO); UNROLL];
        let mut max = [V::splat(A::NEG_INFINITY); UNROLL];
        let step = UNROLL * V::LANES;
        let whole = len - len % step;
        let shifted = shift.splat::<V>();
        // SAFETY: all is within the block; what is fetched beyond need not exist.
        unsafe {
            for from in (0..whole).step_by(ADDED * step) {
                let mut part = [V::splat(A::ZERO); UNROLL];
                for at in (from..whole.min(from + ADDED * step)).step_by(step) {
                    let mut x = [V::splat(A::ZERO); UNROLL];
                    for (i, x) in x.iter_mut().enumerate() {
                        let at = at + i * V::LANES;
                        prefetch_line(src.wrapping_add(BLOCK + at));
                        *x = V::load(src.add(at));
                        max[i] = x.max(max[i]);
                    }
                    for (i, e) in shifted.exp_of(x).into_iter().enumerate() {
                        part[i] = part[i].add(e);
                        if KEEP {
                            e.store(kept.add(at + i * V::LANES));
                        }
                    }
                }
                for (sum, part) in sum.iter_mut().zip(part) {
                    *sum = sum.add(part);
                }
            }
            for at in (whole..len).step_by(V::LANES) {
                let len = V::LANES.min(len - at);
                let x = V::load_part(src.add(at), len, A::NEG_INFINITY);
                max[0] = x.max(max[0]);
                let e = shifted.exp(x);
                sum[0] = sum[0].add(e);
                if KEEP {
                    e.store_part(kept.add(at), len);
                }
            }
        }
        (join(max, V::max).fold(V::max).first(), join(sum, V::add).fold(V::add).first().to_f64())
    }
}

/// Scales what has been kept of a block. Made only for `len` readable and as many writable elements, which are the same or apart.
struct Scale<D, A> {
    kept: *const A,
    dst: *mut D,
    len: usize,
    stream: bool,
    last: Last<A>,
}

impl<D: Cell<A>, A: Compute> Body<A> for Scale<D, A> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { kept, dst, len, stream, last } = self;
        let (last, narrows) = (last.splat::<V>(), V::narrows::<D>());
        let head = if stream { (dst.addr().wrapping_neg() % LINE / size_of::<D>()).min(len) } else { 0 };
        let end = head + (len - head) / (2 * V::LANES) * (2 * V::LANES);
        // SAFETY: all is within the block; each vector is read before it is written. Results are normal or 0, so that they may be narrowed.
        unsafe {
            for [from, to] in [[0, head], [end, len]] {
                for at in (from..to).step_by(V::LANES) {
                    let n = V::LANES.min(to - at);
                    last.apply(V::load_part(kept.add(at), n, A::ZERO)).store_part(dst.add(at), n);
                }
            }
            for at in (head..end).step_by(2 * V::LANES) {
                let x = last.apply(V::load(kept.add(at)));
                let y = last.apply(V::load(kept.add(at + V::LANES)));
                x.store_two(y, dst.add(at), stream, narrows);
            }
        }
        if stream {
            stream::fence();
        }
    }
}

/// Finishes part of a row. Made only for `len` readable and writable elements, of which the destination may be
/// the source.
struct Write<S, D, A> {
    src: *const S,
    dst: *mut D,
    len: usize,
    stream: bool,
    log: bool,
    finish: Finish<A>,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute> Body<A> for Write<S, D, A> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { src, dst, len, stream, log, finish } = self;
        let whole = Whole::<V> {
            log,
            max: V::splat(finish.max),
            shift: finish.shift.splat(),
            last: finish.last.splat(),
        };
        let head = if stream { (dst.addr().wrapping_neg() % LINE / size_of::<D>()).min(len) } else { 0 };
        let step = UNROLL * V::LANES;
        let end = head + (len - head) / step * step;
        // SAFETY: all is within the part; each vector is read before it is written.
        unsafe {
            whole.short::<S, D>(src, dst, head);
            for at in (head..end).step_by(step) {
                for i in 0..UNROLL {
                    let at = at + i * V::LANES;
                    prefetch_line(src.wrapping_add(BLOCK / 4 + at));
                    let y = whole.of(V::load(src.add(at)));
                    if stream { y.stream(dst.add(at)) } else { y.store(dst.add(at)) }
                }
            }
            whole.short::<S, D>(src.add(end), dst.add(end), len - end);
        }
        if stream {
            stream::fence();
        }
    }
}

/// What a vector of elements becomes.
struct Whole<V> {
    log: bool,
    max: V,
    shift: Shift<V>,
    last: Last<V>,
}

impl<V: Vector> Whole<V> {
    #[inline(always)]
    fn of(&self, x: V) -> V {
        self.last.apply(if self.log { x.sub(self.max) } else { self.shift.exp(x) })
    }

    /// # Safety
    /// `src` is readable and `dst` writable for `len` elements.
    #[inline(always)]
    unsafe fn short<S: Cell<V::Lane>, D: Cell<V::Lane>>(&self, src: *const S, dst: *mut D, len: usize) {
        for at in (0..len).step_by(V::LANES) {
            let n = V::LANES.min(len - at);
            // SAFETY: all is within the caller's elements.
            unsafe {
                let x = V::load_part(src.add(at), n, V::Lane::NEG_INFINITY);
                self.of(x).store_part(dst.add(at), n);
            }
        }
    }
}
