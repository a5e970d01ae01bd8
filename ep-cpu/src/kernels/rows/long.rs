//! Rows too long for the first-level cache, in blocks that fit it.
//!
//! The first pass takes of each block its maximum and the sum of its exponentials, each block with a shift of its
//! own; the sums are added up in f64. Where a cache holds the exponentials of a row, they are kept, in the destination if it can
//! hold them and is to be in the cache, else aside; and the second pass scales them. Of longer rows it computes them again, which
//! costs less than storing them in memory and reading them; the bits are the same. Blocks are the same whatever the number of threads,
//! and so is their order.
//!
//! A block is read once if its maximum can be guessed: see [`Sum`]. The guess, and so the shift, may depend on the number of threads, but
//! not what is seen of it.

use super::exp::{Last, Shift};
use super::medium::{LEAD, skews, whole_pages};
use super::strips::with_scratch;
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

/// Elements of a block.
pub(super) const BLOCK: usize = 4096;
/// Elements from one that is read to what is fetched meanwhile: to be added up, and to be finished.
const AHEAD: usize = 2048;
const NEAR_AHEAD: usize = 512;
/// Bytes of a row's exponentials up to which they are kept aside: what a core's second-level cache holds, or little more.
const ASIDE_BYTES: usize = 1 << 20;

/// How many times the exponential of the guess that of a block's maximum may be: sums of a block's are finite.
const MOST_ABOVE: f64 = (1u128 << 100) as f64;

/// The exponentials of some elements.
#[derive(Clone, Copy)]
struct Partial<A> {
    max: A,
    /// Their sum, with the shift of the maximum.
    sum: f64,
}

impl<A: Real> Partial<A> {
    const NONE: Self = Self { max: A::NEG_INFINITY, sum: 0.0 };

    fn join(self, other: Self) -> Self {
        let [low, high] = if other.max > self.max { [self, other] } else { [other, self] };
        let same = low.max == high.max || low.sum == 0.0;
        let scale = if same { 1.0 } else { Shift::of(low.max).ratio_to(&Shift::of(high.max)) };
        Self { max: high.max, sum: low.sum * scale + high.sum }
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
        // Computed again, those that would be below sqrt(2) times the smallest normal number are 0, give or take 10^-5. Nobody sees it, as
        // all that are below `least` become 0, which is more: the largest exponential is at least 2^(1/4096) times sqrt(2), for the
        // doubt of [`Shift::of`].
        // All else is exact while numbers are normal, and no result is less than the smallest such number. (A reciprocal that is just
        // below a power of two, and would be rounded to it, is of no sum.)
        let factor = A::from_f64(factor.to_f64() * power);
        let least = A::from_f64(least.to_f64() / power);
        (factor >= A::MIN_POSITIVE).then_some(Last { factor, addend, least })
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

    /// The sum of one block. `above` is the largest element of some before it; the exponentials in its place are finished by `pending`, before
    /// others take it.
    ///
    /// # Safety
    /// As for [`Self::kept`]; nothing else uses what it returns, and what is pending is another row's block in the same place.
    unsafe fn sum<A: Compute>(
        &self,
        row: usize,
        block: usize,
        above: A,
        aside: *mut A,
        pending: Option<Scale<D, A>>,
    ) -> Block<A>
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let part = self.elements(row, &(block..block + 1));
        // SAFETY: the block is within the matrix, and the rest is the caller's promise.
        let (src, kept) =
            unsafe { (self.src.get().add(part.start).cast_const(), self.kept(row, block, aside)) };
        let (len, before) = (part.len(), self.guesses.then_some(above));
        match pending {
            None if kept.is_null() => {
                dispatch(self.isa, Sum::<S, D, A, NO> { src, kept, len, before, pending: None })
            }
            None => dispatch(self.isa, Sum::<S, D, A, KEEP> { src, kept, len, before, pending: None }),
            pending => dispatch(self.isa, Sum::<S, D, A, REPLACE> { src, kept, len, before, pending }),
        }
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
        if self.keep == Keep::Nowhere {
            // SAFETY: the blocks are within the matrix.
            unsafe { self.write(self.elements(row, &blocks), finish) };
            return;
        }
        for block in blocks {
            // SAFETY: the caller's promise.
            if let Some(scale) = unsafe { self.pending(row, block, &known[block], finish, aside) } {
                dispatch::<A, _>(self.isa, scale);
            }
        }
    }

    /// What finishes the exponentials that are kept of a block. None if they are of no use: then it has been finished.
    ///
    /// # Safety
    /// As for [`Self::finish`], of a block of which exponentials are kept.
    unsafe fn pending<A: Compute>(
        &self,
        row: usize,
        block: usize,
        known: &Block<A>,
        finish: Finish<A>,
        aside: *mut A,
    ) -> Option<Scale<D, A>>
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let part = self.elements(row, &(block..block + 1));
        let Some(last) = finish.of_kept(&known.shift) else {
            // SAFETY: the block is within the matrix.
            unsafe { self.write(part, finish) };
            return None;
        };
        // SAFETY: as above, and the caller's promise.
        let (kept, dst) =
            unsafe { (self.kept(row, block, aside).cast_const(), self.dst.get().add(part.start)) };
        Some(Scale { kept, dst, len: part.len(), stream: self.stream, last })
    }

    /// Some rows, one after the other; all of them `known` blocks and room `aside`.
    ///
    /// # Safety
    /// As for [`Self::kept`]; nothing else uses the rows.
    unsafe fn rows<A: Compute>(&self, rows: Range<usize>, known: &mut [Block<A>], aside: *mut A)
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let count = known.len();
        // The row before is finished meanwhile, where its exponentials are aside.
        let mut before = None;
        for row in rows {
            let mut all = Partial::NONE;
            for (block, known) in known.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let pending =
                        before.and_then(|(row, finish)| self.pending(row, block, known, finish, aside));
                    *known = self.sum(row, block, all.max, aside, pending);
                }
                all = all.join(known.partial);
            }
            let finish = Finish::new(self.log, all);
            if self.keep == Keep::Aside {
                before = Some((row, finish));
            } else {
                // SAFETY: the caller's promise.
                unsafe { self.finish(row, 0..count, known, finish, aside) };
            }
        }
        if let Some((row, finish)) = before {
            // SAFETY: the caller's promise.
            unsafe { self.finish(row, 0..count, known, finish, aside) };
        }
        if self.stream {
            stream::fence();
        }
    }

    /// A row that several threads share.
    ///
    /// # Errors
    /// Those of `par`.
    ///
    /// # Safety
    /// As for [`Self::rows`].
    unsafe fn shared<A: Compute>(
        &self,
        par: &dyn Parallel,
        row: usize,
        known: &mut [Block<A>],
        aside: Shared<A>,
    ) -> Result<()>
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let (count, bytes) = (known.len(), BLOCK * EXP_BYTES);
        let shared = Shared::new(known.as_mut_ptr());
        for_ranges(par, count, bytes, 1, |blocks| {
            let mut above = A::NEG_INFINITY;
            for block in blocks {
                // SAFETY: there are `count` blocks, and this one is only this task's.
                unsafe {
                    let one = self.sum(row, block, above, aside.get(), None);
                    above = if one.partial.max > above { one.partial.max } else { above };
                    *shared.get().add(block) = one;
                }
            }
            Ok(())
        })?;
        let all = known.iter().fold(Partial::NONE, |all, one| all.join(one.partial));
        let (known, finish) = (&*known, Finish::new(self.log, all));
        for_ranges(par, count, bytes, 1, |blocks| {
            // SAFETY: as above.
            unsafe { self.finish(row, blocks, known, finish, aside.get()) };
            if self.stream {
                stream::fence();
            }
            Ok(())
        })
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
    let aside = if keep == Keep::Aside { cols * size_of::<A>() } else { 0 };
    if rows >= par.threads() || cols < 2 * BLOCK {
        return for_ranges(par, rows, cols.saturating_mul(EXP_BYTES), 1, |rows| {
            let mut known = all_of(count, cols)?;
            // SAFETY: these rows are only this task's.
            with_scratch(aside, |aside| unsafe { matrix.rows(rows, &mut known, aside.cast()) })
        });
    }
    let mut known = all_of(count, cols)?;
    let mut done = Ok(());
    with_scratch(aside, |aside| {
        let aside = Shared::new(aside.cast());
        // SAFETY: the caller's promise.
        done = (0..rows).try_for_each(|row| unsafe { matrix.shared(par, row, &mut known, aside) });
    })?;
    done
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

/// Room for what is known of the `count` blocks of a row of `cols`.
fn all_of<A: Real>(count: usize, cols: usize) -> Result<Vec<Block<A>>> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| {
        Error::out_of_memory(format!("softmax needs room for the sums of {count} parts of a row of {cols}"))
    })?;
    all.resize(count, Block { partial: Partial::NONE, shift: Shift::of(A::ZERO) });
    Ok(all)
}

/// Whether a block's exponentials are kept, and whether those of another row are finished where they are.
const NO: u8 = 0;
const KEEP: u8 = 1;
const REPLACE: u8 = 2;

/// The exponentials of one block, which go to `kept` unless `HOW` is `NO`. Made only for `len` readable elements, one at least, and in that
/// case as many writable ones apart from them; what is pending, which is there to `REPLACE`, is as many in the same place.
///
/// The shift is that of the block's maximum, or of a guess: that is the largest of what came `before` in the row and of the
/// first elements. So it is at most the row's, and what is 0 with it is also 0 with that; and exponentials differ from those with
/// another shift by powers of two alone, which are taken out of the sum, but for what is less than 2^-125 of the row's sum and
/// 0 with one of both. A guess that is too low is made good by another pass.
struct Sum<S, D, A, const HOW: u8> {
    src: *const S,
    kept: *mut A,
    len: usize,
    /// What came before, `-inf` for nothing; none where there is no guessing.
    before: Option<A>,
    pending: Option<Scale<D, A>>,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute, const HOW: u8> Body<A> for Sum<S, D, A, HOW> {
    type Out = Block<A>;

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) -> Block<A> {
        let Self { src, len, before, pending, .. } = self;
        // SAFETY: all is within the block, and what is pending is finished once, before others replace it.
        unsafe {
            let nothing = Beside::nothing();
            let beside = match &pending {
                Some(pending) if HOW == REPLACE => pending.begin::<V>(skewed_by::<S, D>(src)),
                _ => nothing,
            };
            if let Some(before) = before {
                let first = maximum::<V, S>(src, len.min(UNROLL * V::LANES)).fold(V::max).first();
                let guess = if first > before { first } else { before };
                let shift = Shift::of(guess);
                if shift.is_plain() {
                    let (max, sum) = self.exponentials::<V, HOW>(shift, &beside);
                    // Nothing of a block that is masked is seen beside others.
                    let masked = sum == 0.0 && max < guess;
                    let power = if masked { Some(1.0) } else { shift.power_to(&Shift::of(max)) };
                    if let Some(power) = power
                        && power >= 1.0 / MOST_ABOVE
                        && power.is_finite()
                    {
                        return Block { partial: Partial { max, sum: sum * power }, shift };
                    }
                } else if HOW == REPLACE {
                    beside.finish();
                }
            }
            let shift = Shift::of(maximum::<V, S>(src, len).fold(V::max).first());
            let (max, sum) = if HOW == NO {
                self.exponentials::<V, NO>(shift, &nothing)
            } else {
                self.exponentials::<V, KEEP>(shift, &nothing)
            };
            Block { partial: Partial { max, sum }, shift }
        }
    }
}

impl<S: Cell<A>, D: Cell<A>, A: Compute, const HOW: u8> Sum<S, D, A, HOW> {
    /// The maximum, and the sum of the exponentials with a shift.
    ///
    /// # Safety
    /// The block is as [`Sum`] says, and what is beside as [`Beside`] says.
    #[inline(always)]
    unsafe fn exponentials<V: Vector<Lane = A>, const DOES: u8>(
        &self,
        shift: Shift<A>,
        beside: &Beside<V, D>,
    ) -> (A, f64) {
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
                    if DOES == REPLACE && at < beside.both {
                        beside.two(at);
                        beside.two(at + 2 * V::LANES);
                    }
                    let mut x = [V::splat(A::ZERO); UNROLL];
                    for (i, x) in x.iter_mut().enumerate() {
                        let at = at + i * V::LANES;
                        prefetch_line(src.wrapping_add(AHEAD + at));
                        *x = V::load(src.add(at));
                        max[i] = x.max(max[i]);
                    }
                    for (i, e) in shifted.exp_of(x).into_iter().enumerate() {
                        part[i] = part[i].add(e);
                        if DOES != NO {
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
                if DOES != NO {
                    e.store_part(kept.add(at), len);
                }
            }
        }
        (join(max, V::max).fold(V::max).first(), join(sum, V::add).fold(V::add).first().to_f64())
    }
}

/// Finishes what has been kept of a block. Made only for `len` readable and as many writable elements, which are the same or apart.
#[derive(Clone, Copy)]
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
        // SAFETY: the block is what `Scale` says.
        unsafe { self.begin::<V>(None).finish() };
    }
}

impl<D: Cell<A>, A: Compute> Scale<D, A> {
    /// Finishes all but some whole steps, of [`UNROLL`] vectors, which are whole lines if they are to go past the cache.
    ///
    /// Where elements are `read` beside them, [`whole_pages`] away, the destination gets a lead.
    ///
    /// # Safety
    /// The block is as [`Scale`] says.
    #[inline(always)]
    unsafe fn begin<V: Vector<Lane = A>>(&self, read: Option<usize>) -> Beside<V, D> {
        let step = UNROLL * V::LANES;
        let &Self { kept, dst, len, stream, last } = self;
        let last = last.splat::<V>();
        let mut head = if stream { (dst.addr().wrapping_neg() % LINE / size_of::<D>()).min(len) } else { 0 };
        if let Some(read) = read.filter(|_| stream) {
            let apart = dst.wrapping_add(head).addr().wrapping_sub(read);
            if whole_pages(apart) {
                head += LEAD.min(len - head);
            }
        }
        let both = (len - head) / step * step;
        for [from, to] in [[0, head], [head + both, len]] {
            for at in (from..to).step_by(V::LANES) {
                let n = V::LANES.min(to - at);
                // SAFETY: all is within the block.
                unsafe {
                    last.apply(V::load_part(kept.add(at), n, A::ZERO)).store_part(dst.add(at), n);
                }
            }
        }
        // SAFETY: `head` is within the block.
        let (kept, dst) = unsafe { (kept.add(head), dst.add(head)) };
        Beside { kept, dst, both, last, stream, narrows: V::narrows::<D>() }
    }
}

/// Where elements are read, if results of as many bytes may be stored past the cache at a distance of whole pages.
fn skewed_by<S, D>(src: *const S) -> Option<usize> {
    (skews() && size_of::<S>() == size_of::<D>()).then(|| src.addr())
}

/// Elements that are left to be finished of a block, beside others: `kept` is readable and `dst` writable for `both`, a multiple of two vectors.
#[derive(Clone, Copy)]
struct Beside<V: Vector, D> {
    kept: *const V::Lane,
    dst: *mut D,
    both: usize,
    last: Last<V>,
    stream: bool,
    narrows: bool,
}

impl<V: Vector, D: Cell<V::Lane>> Beside<V, D> {
    #[inline(always)]
    fn nothing() -> Self {
        let none = V::splat(V::Lane::ZERO);
        let last = Last { factor: none, addend: none, least: none };
        Self { kept: ptr::null(), dst: ptr::null_mut(), both: 0, last, stream: false, narrows: false }
    }

    /// Finishes two vectors of elements.
    ///
    /// # Safety
    /// There are these elements, and the destination is at a line if it goes past the cache.
    #[inline(always)]
    unsafe fn two(&self, at: usize) {
        // SAFETY: the caller's promise; vectors are read before they are written. Results are normal or 0, so that they may be narrowed.
        unsafe {
            let x = self.last.apply(V::load(self.kept.add(at)));
            let y = self.last.apply(V::load(self.kept.add(at + V::LANES)));
            x.store_two(y, self.dst.add(at), self.stream, self.narrows);
        }
    }

    /// Finishes all.
    ///
    /// # Safety
    /// As for [`Self::two`], of all elements.
    #[inline(always)]
    unsafe fn finish(&self) {
        for at in (0..self.both).step_by(2 * V::LANES) {
            // SAFETY: the caller's promise.
            unsafe { self.two(at) };
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
                    prefetch_line(src.wrapping_add(NEAR_AHEAD + at));
                    let y = whole.of(V::load(src.add(at)));
                    if stream { y.stream(dst.add(at)) } else { y.store(dst.add(at)) }
                }
            }
            whole.short::<S, D>(src.add(end), dst.add(end), len - end);
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
