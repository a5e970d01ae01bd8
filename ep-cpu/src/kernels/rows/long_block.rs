//! One block of a long row: its exponentials and their sum, and what they become once the sum of the row is known.

use super::exp::{Last, Shift};
use super::medium::{LEAD, skews, whole_pages};
use super::vector::{Body, Compute, Vector};
use super::{ADDED, LINE, UNROLL, join, maximum, prefetch_line};
use crate::kernels::real::{Cell, Real};
use std::ptr;

/// Elements from one that is read to what is fetched meanwhile: to be added up, and to be finished.
const AHEAD: usize = 2048;
const NEAR_AHEAD: usize = 512;
/// The first elements of a block, of which the largest is the guess: enough that the block's is seldom far above.
const FIRST: usize = 256;
/// How many times the exponential of the guess that of a block's maximum may be: sums of a block's are finite.
const MOST_ABOVE: f64 = (1u128 << 100) as f64;

/// The exponentials of some elements.
#[derive(Clone, Copy)]
pub(super) struct Partial<A> {
    pub(super) max: A,
    /// Their sum, with the shift of the maximum.
    pub(super) sum: f64,
}

impl<A: Real> Partial<A> {
    pub(super) const NONE: Self = Self { max: A::NEG_INFINITY, sum: 0.0 };

    pub(super) fn join(self, other: Self) -> Self {
        let [low, high] = if other.max > self.max { [self, other] } else { [other, self] };
        let same = low.max == high.max || low.sum == 0.0;
        let scale = if same { 1.0 } else { Shift::of(low.max).ratio_to(&Shift::of(high.max)) };
        Self { max: high.max, sum: low.sum * scale + high.sum }
    }
}

/// What is known of a block.
#[derive(Clone, Copy)]
pub(super) struct Block<A> {
    pub(super) partial: Partial<A>,
    /// What its exponentials are shifted by.
    pub(super) shift: Shift<A>,
}

/// How a row is finished once it has been summed up.
#[derive(Clone, Copy)]
pub(super) struct Finish<A> {
    max: A,
    shift: Shift<A>,
    last: Last<A>,
}

impl<A: Real> Finish<A> {
    pub(super) fn new(log: bool, all: Partial<A>) -> Self {
        let shift = Shift::of(all.max);
        Self { max: all.max, shift, last: Last::of(log, &shift, A::from_f64(all.sum), all.max) }
    }

    /// What finishes the exponentials of a block, if that gives what computing them again would. Their shift is that of the row or one of a
    /// lower maximum.
    pub(super) fn of_kept(&self, block: &Block<A>) -> Option<Last<A>> {
        // Not of NaN, whose sign and digits show how they were multiplied.
        (self.last.factor >= A::ZERO).then_some(())?;
        // Masked, as by -inf or a large negative number: nothing is left beside the row's maximum.
        let below = self.max.to_f64() - block.partial.max.to_f64();
        if below > 2.0 - A::MIN_POSITIVE.to_f64().ln() {
            return Some(Last { factor: A::ZERO, least: A::from_f64(f64::INFINITY), ..self.last });
        }
        let power = block.shift.power_to(&self.shift)?;
        let Last { factor, addend, least } = self.last;
        if power == 1.0 {
            return Some(self.last);
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

/// Whether a block's exponentials are kept, and whether those of another row are finished where they are.
pub(super) const NO: u8 = 0;
pub(super) const KEEP: u8 = 1;
pub(super) const REPLACE: u8 = 2;

/// The exponentials of one block, which go to `kept` unless `HOW` is `NO`. Made only for `len` readable elements, one at least, and as many
/// writable ones apart from them where they are kept; what is pending, which is there to `REPLACE`, is as many in the same place.
///
/// The shift is that of the block's maximum, or of a guess: that is the largest of the first elements. So it is at most the row's, and
/// what is 0 with it is also 0 with that; and of exponentials that are not 0, those with another shift differ by powers of two
/// alone, which are taken out of the sum. A guess that is too low is made good by another pass. It depends on nothing but the block, so that
/// all is the same whatever threads do which.
pub(super) struct Sum<S, D, A, const HOW: u8> {
    pub(super) src: *const S,
    pub(super) kept: *mut A,
    pub(super) len: usize,
    /// Whether the shift may be guessed.
    pub(super) guesses: bool,
    pub(super) pending: Option<Scale<D, A>>,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute, const HOW: u8> Body<A> for Sum<S, D, A, HOW> {
    type Out = Block<A>;

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) -> Block<A> {
        let Self { src, len, guesses, pending, .. } = self;
        // SAFETY: all is within the block, and what is pending is finished once, before others replace it.
        unsafe {
            let nothing = Beside::nothing();
            let beside = match &pending {
                Some(pending) if HOW == REPLACE => pending.begin::<V>(skewed_by::<S, D>(src)),
                _ => nothing,
            };
            if guesses {
                let shift = Shift::of(maximum::<V, S>(src, len.min(FIRST)).fold(V::max).first());
                if shift.is_plain() {
                    let (max, sum) = self.exponentials::<V, HOW>(shift, &beside);
                    if let Some(power) = shift.power_to(&Shift::of(max))
                        && power >= 1.0 / MOST_ABOVE
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
pub(super) struct Scale<D, A> {
    pub(super) kept: *const A,
    pub(super) dst: *mut D,
    pub(super) len: usize,
    pub(super) stream: bool,
    pub(super) last: Last<A>,
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
pub(super) struct Write<S, D, A> {
    pub(super) src: *const S,
    pub(super) dst: *mut D,
    pub(super) len: usize,
    pub(super) stream: bool,
    pub(super) log: bool,
    pub(super) finish: Finish<A>,
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
