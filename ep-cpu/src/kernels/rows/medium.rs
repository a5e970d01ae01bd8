//! Rows whose exponentials stay in the first-level cache, one after the other.
//!
//! A row is read twice, for its maximum and for its exponentials, which are kept until the sum is known. They are
//! scaled and stored while the next row is read for its maximum, and while the exponentials are computed, the
//! next row is fetched: so memory reads, memory writes and arithmetic all go on at once.
//!
//! Where there are exponentials of all that is [near](Vector::NEAR) zero, a row is first taken to be near: it is read
//! once, and the row before is stored meanwhile.

use super::exp::{Last, Shift};
use super::seam::Seam;
use super::vector::{MAX_LANES, Vector};
use super::{
    ADDED, FAR_BYTES, LINE, Matrix, Room, UNROLL, join, maximum, prefetch, prefetch_ahead, prefetch_line,
    prefetch_to_write,
};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream::suits_intel;
use half::bf16;
use std::any::TypeId;
use std::f64::consts::LOG2_E;

/// Bytes of a row, in the type computed in, up to which rows are done here.
pub(super) const MEDIUM_BYTES: usize = 32 << 10;

/// Elements of a row that is near that are added up before the sum moves on, to two vectors and then to two totals in turn:
/// no more than [`ADDED`] to one number, of vectors of eight lanes or more.
const NEAR_BLOCK: usize = 256;

/// Bytes from an element of a row that is taken to be near to what is fetched into the first-level cache meanwhile: such rows are
/// read once, one behind the other. A whole row further on, the fetched lines of long rows would drive out what is kept.
const AHEAD_BYTES: usize = 1024;

/// Elements of the lead that makes another distance where [`whole_pages`] are between what is read and what is stored.
pub(super) const LEAD: usize = 256;

#[cfg(test)]
thread_local! {
    /// Whether this thread takes the CPU for one of those, so that tests see what they do.
    pub(super) static SKEWED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether a core may take long for [`whole_pages`] between what is read and what is stored.
pub(super) fn skews() -> bool {
    #[cfg(test)]
    if SKEWED.get() {
        return true;
    }
    !suits_intel()
}

/// Whether `apart` bytes are about whole pages. Where what goes past the cache is so far from what is read, of as many bytes each, a core
/// of AMD's Zen 4 takes half as long again for both.
#[inline(always)]
pub(super) fn whole_pages(apart: usize) -> bool {
    const PAGE: usize = 4096;
    const NEAR: usize = 256;
    apart.wrapping_add(NEAR) % PAGE < 2 * NEAR
}

/// Rows of which one that is not near decides for those after it. Tasks begin at multiples of it, so that these are the
/// same rows whatever the number of threads.
const GROUP: usize = MAX_LANES;

/// What is left to do of a row.
struct Pending<V: Vector, D> {
    log: bool,
    stream: bool,
    /// See [`Near::far`].
    far: bool,
    /// See [`Pending::meets`].
    skews: bool,
    /// As in [`Vector::store_two`]: only where no result is subnormal, as of rows that are near.
    narrow: bool,
    cols: usize,
    /// Its exponentials, or for a logarithm its elements less anything.
    kept: *const V::Lane,
    dst: *mut D,
    /// For a logarithm: what is taken off the elements before the addend of `last`.
    base: V,
    last: Last<V>,
}

impl<V: Vector, D: Cell<V::Lane>> Pending<V, D> {
    /// A row of which nothing is known yet.
    #[inline(always)]
    fn idle(log: bool, kept: *const V::Lane, cols: usize, dst: *mut D) -> Self {
        let none = V::splat(V::Lane::ZERO);
        let last = Last { factor: none, addend: none, least: none };
        Self {
            log,
            stream: false,
            far: false,
            skews: false,
            narrow: false,
            cols,
            kept,
            dst,
            base: none,
            last,
        }
    }

    #[inline(always)]
    fn finish(&self, x: V) -> V {
        if self.log { self.last.apply_log(x, self.base) } else { self.last.apply(x) }
    }

    /// How many elements are before the first line of the destination, if it is whole lines that are stored.
    #[inline(always)]
    fn head(&self) -> usize {
        if self.stream { (self.dst.addr().wrapping_neg() % LINE / size_of::<D>()).min(self.cols) } else { 0 }
    }

    /// Whether elements from `head` on are stored [`whole_pages`] from where the elements at `src` are read.
    #[inline(always)]
    fn meets<S>(&self, head: usize, src: *const S) -> bool {
        let apart = self.dst.wrapping_add(head).addr().wrapping_sub(src.addr());
        self.skews && size_of::<S>() == size_of::<D>() && whole_pages(apart)
    }

    /// Finishes two vectors of elements: of a logarithm with `LOG`, and to `STREAM` in the destination at a line.
    ///
    /// # Safety
    /// The row has these elements.
    #[inline(always)]
    unsafe fn two<const HOW: u8, const LOG: bool>(&self, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let (x, next) = (V::load(self.kept.add(at)), V::load(self.kept.add(at + V::LANES)));
            let [y, next] = if LOG {
                [self.last.apply_log(x, self.base), self.last.apply_log(next, self.base)]
            } else {
                [self.last.apply(x), self.last.apply(next)]
            };
            y.store_two(next, self.dst.add(at), HOW == STREAM, self.narrow);
        }
    }

    /// Finishes the elements `from..to` at an end of the row, which share lines with the rows beside it.
    ///
    /// # Safety
    /// The row has these elements, and what waits in `seam` precedes them.
    #[inline(always)]
    unsafe fn edge(&self, from: usize, to: usize, seam: &mut Seam<D>) {
        // SAFETY: the caller's promise; there is room for these elements.
        unsafe {
            let room = if self.stream { seam.room(self.dst.add(from), to - from) } else { None };
            let Some(room) = room else { return self.part(from, to) };
            Pending { dst: room.wrapping_sub(from), ..*self }.part(from, to);
            seam.take::<V>(to - from);
        }
    }

    /// Finishes the elements `from..to`.
    ///
    /// # Safety
    /// The row has these elements.
    #[inline(always)]
    unsafe fn part(&self, from: usize, to: usize) {
        for at in (from..to).step_by(V::LANES) {
            let len = V::LANES.min(to - at);
            // Of `edge` only these places exist.
            let dst = self.dst.wrapping_add(at);
            // SAFETY: the caller's promise.
            unsafe {
                if len == V::LANES {
                    self.finish(V::load(self.kept.add(at))).store(dst);
                } else {
                    let x = V::load_part(self.kept.add(at), len, V::Lane::ZERO);
                    self.finish(x).store_part(dst, len);
                }
            }
        }
    }
}

/// Softmax or log-softmax of a matrix of rows of medium length.
///
/// # Safety
/// The matrix is as [`Matrix`] says.
#[inline(always)]
pub(super) unsafe fn run<V, S, D>(m: &Matrix<S, D>)
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let &Matrix { cols, stream, log, .. } = m;
    let mut room = Room::<MEDIUM_BYTES>::new();
    let room = room.start::<V::Lane>();
    let (mut pending, mut seam) = (None::<Pending<V, D>>, Seam::new());
    let (mut near, narrows) = (V::NEAR, V::narrows::<D>());
    let skews = skews();
    let far = !skews || cols * size_of::<S>() > FAR_BYTES;
    // SAFETY: each row is inside the matrix, and what is kept of one fits the room. A row is stored after it has
    // been read for the last time, so that it may be stored where it was.
    unsafe {
        for row in 0..m.rows {
            if row % GROUP == 0 {
                near = V::NEAR;
            }
            let (src, dst) = (m.src.add(row * cols), m.dst.add(row * cols));
            let mut next = Pending { stream, far, skews, ..Pending::idle(log, room.cast_const(), cols, dst) };
            if let Some(bound) = near {
                if may_be_near::<V, S, D>(log, src, cols, bound) {
                    let (sum, largest) = near_exponentials(log, src, room, cols, &pending, dst, &mut seam);
                    let is_near = if by_words::<S, D>(log) {
                        let bounded = sum > V::Lane::ZERO && sum <= V::Lane::from_f64(MOST_SUM);
                        bounded && largest.words_within(LOWEST_WORD)
                    } else {
                        largest.within(bound)
                    };
                    if is_near {
                        let (base, last) = Last::of_near(log, sum);
                        (next.base, next.last, next.narrow) = (V::splat(base), last.splat(), narrows);
                        pending = Some(next);
                        continue;
                    }
                    pending = None;
                }
                near = None;
            }
            let max = match &pending {
                None => maximum::<V, S>(src, cols),
                Some(pending) => store_and_maximum(pending, src, &mut seam),
            };
            let max = max.fold(V::max).first();
            let shift = Shift::of(max);
            let sum = exponentials::<V, S>(log, src, room, cols, &shift, max);
            next.last = Last::of(log, &shift, sum, max).splat();
            pending = Some(next);
        }
        if let Some(pending) = pending {
            let head = pending.head();
            pending.edge(0, head, &mut seam);
            seam.close();
            pending.part(head, cols);
        } else {
            seam.close();
        }
    }
}

/// Whether a row of bf16 that becomes one is known to be near by its words, two vectors of elements at a time, and its
/// sum: they bound the elements on one side each. Such a row may be wider than others.
#[inline(always)]
fn by_words<S: 'static, D: 'static>(log: bool) -> bool {
    !log && TypeId::of::<S>() == TypeId::of::<bf16>() && TypeId::of::<D>() == TypeId::of::<bf16>()
}

/// -40 as bf16.
const LOWEST_WORD: u16 = 0xc220;
/// 2^68, by which the exponential of -40, 2^-57.8, may be divided and is still a normal number. A row with elements above 48 has a
/// larger sum, an infinite one of either sign, or none.
const MOST_SUM: f64 = (1u128 << MOST_LOG2) as f64;
const MOST_LOG2: u32 = 68;

// No result of such a row is subnormal, and an element above 48 makes the sum too large; with some room for exponentials
// that are right to 2^-14.
const _: () = {
    let lowest = f32::from_bits((LOWEST_WORD as u32) << 16) as f64;
    assert!(lowest * LOG2_E - MOST_LOG2 as f64 > -126.0 + 1e-3);
    assert!(48.0 * LOG2_E > MOST_LOG2 as f64 + 1e-3);
};

/// Whether the first elements of a row leave it open that it is near. Of most rows that are not, they tell, before exponentials
/// of other elements are computed for nothing: those may be subnormal, and take many times as long.
///
/// # Safety
/// `src` is readable for `cols` elements.
#[inline(always)]
unsafe fn may_be_near<V, S, D>(log: bool, src: *const S, cols: usize, bound: V::Lane) -> bool
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let mut largest = V::splat(V::Lane::ZERO);
    for at in (0..cols.min(UNROLL * V::LANES)).step_by(V::LANES) {
        // SAFETY: within the row.
        let x = unsafe { V::load_part(src.add(at), V::LANES.min(cols - at), V::Lane::ZERO) };
        largest = if by_words::<S, D>(log) { x.larger_words(largest) } else { x.magnitude(largest) };
    }
    if by_words::<S, D>(log) { largest.words_within(LOWEST_WORD) } else { largest.within(bound) }
}

/// The sum of the exponentials of a row, and the largest magnitudes of its elements, or words if it is [`by_words`] that
/// it may be near, which say whether that is right.
/// The exponentials, or with `log` the elements, replace those of the pending row, which is finished.
///
/// # Safety
/// `src` is readable for `cols` elements and `kept` writable for as many, rounded up to a vector; the pending row is
/// there, and has as many. `dst` is writable for them, later.
#[inline(always)]
unsafe fn near_exponentials<V, S, D>(
    log: bool,
    src: *const S,
    kept: *mut V::Lane,
    cols: usize,
    pending: &Option<Pending<V, D>>,
    dst: *mut D,
    seam: &mut Seam<D>,
) -> (V::Lane, V)
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let step = UNROLL * V::LANES;
    let whole = cols / step * step;
    let stream = pending.as_ref().is_some_and(|pending| pending.stream);
    let far = pending.as_ref().is_some_and(|pending| pending.far);
    let row = Near { src, kept, dst, stream, far };
    let mut sums = Sums::new();
    // SAFETY: all is within the rows: `head + both` is at most `cols`. What is pending of an element is read before
    // what is kept of another replaces it, as it is `head` elements ahead.
    unsafe {
        let both = match pending {
            None => 0,
            Some(pending) => {
                let mut head = pending.head();
                pending.edge(0, head, seam);
                // The destination first gets a lead, so that both are walked at another distance.
                let lead = if pending.stream && pending.meets(head, src) { LEAD / step * step } else { 0 };
                let lead = lead.min((cols - head) / step * step);
                for at in (head..head + lead).step_by(2 * V::LANES) {
                    if log { pending.two::<STREAM, true>(at) } else { pending.two::<STREAM, false>(at) }
                }
                head += lead;
                let both = (cols - head) / step * step;
                // What does not change within a row is not asked within the loop.
                sums = match (log, pending.stream) {
                    (false, false) => row.steps::<V, D, STORE, false>(0, both, pending, head, sums),
                    (false, true) => row.steps::<V, D, STREAM, false>(0, both, pending, head, sums),
                    (true, false) => row.steps::<V, D, STORE, true>(0, both, pending, head, sums),
                    (true, true) => row.steps::<V, D, STREAM, true>(0, both, pending, head, sums),
                };
                pending.edge(head + both, cols, seam);
                both
            }
        };
        let nothing = Pending::idle(log, kept, cols, dst);
        sums = if log {
            row.steps::<V, D, NOTHING, true>(both, whole, &nothing, 0, sums)
        } else {
            row.steps::<V, D, NOTHING, false>(both, whole, &nothing, 0, sums)
        };
        let Sums { totals, sum, mut largest } = sums;
        let mut total = totals[0].add(totals[1]).add(sum[0].add(sum[1]));
        for at in (whole..cols).step_by(V::LANES) {
            prefetch_line(src.wrapping_add(at).wrapping_byte_add(AHEAD_BYTES));
            let len = V::LANES.min(cols - at);
            let x = V::load_part(src.add(at), len, V::Lane::ZERO);
            largest[0] = if by_words::<S, D>(log) {
                x.larger_words(largest[0])
            } else {
                x.magnitude_in_row(largest[0])
            };
            let [e] = near_exponentials_of::<V, D, 1>(log, [x]);
            total = total.add(e.first_lanes(len));
            if log { x } else { e }.store(kept.add(at));
        }
        let [a, b] = largest;
        let largest = if by_words::<S, D>(log) { a.larger_words(b) } else { a.magnitude(b) };
        (total.fold(V::add).first(), largest)
    }
}

/// The exponentials of elements that are near, as right as a result `D` shows: bf16 has 8 bits, of which 2^-14 moves few.
/// f16 has 11, of which it would move one in a hundred; and the logarithm of a sum may be near 0, and the result with it.
#[inline(always)]
fn near_exponentials_of<V: Vector, D: 'static, const N: usize>(log: bool, x: [V; N]) -> [V; N] {
    let short = TypeId::of::<D>() == TypeId::of::<bf16>() && !log;
    if short { V::exp_near_short_of(x) } else { V::exp_near_of(x) }
}

/// What is done of the pending row beside the exponentials of the next: nothing, or results stored, or past the cache.
const NOTHING: u8 = 0;
const STORE: u8 = 1;
const STREAM: u8 = 2;

/// What is added up of a row.
struct Sums<V> {
    totals: [V; 2],
    /// Of a block that is not complete. Two of each are as many as a level of 16 registers has room for.
    sum: [V; 2],
    largest: [V; 2],
}

impl<V: Vector> Sums<V> {
    #[inline(always)]
    fn new() -> Self {
        let zero = V::splat(V::Lane::ZERO);
        Self { totals: [zero; 2], sum: [zero; 2], largest: [zero; 2] }
    }
}

/// A row that is taken to be near: `src` is readable for its elements and `kept` writable for as many, and `dst` will
/// be.
struct Near<S, D, A> {
    src: *const S,
    kept: *mut A,
    dst: *mut D,
    /// Whether `dst` will be written past the cache, so that it is not worth having there.
    stream: bool,
    /// Whether what is read is fetched from far ahead, too, while the row before is written past the cache.
    far: bool,
}

impl<S: Cell<A>, D: 'static, A: Real + Cell<A>> Near<S, D, A> {
    /// Adds the elements `from..to` to `sums`, whole steps, and does what `HOW` says of as many of the pending row, which
    /// are `head` ahead.
    ///
    /// # Safety
    /// The rows have these elements.
    #[inline(always)]
    unsafe fn steps<V, P, const HOW: u8, const LOG: bool>(
        &self,
        from: usize,
        to: usize,
        pending: &Pending<V, P>,
        head: usize,
        mut sums: Sums<V>,
    ) -> Sums<V>
    where
        V: Vector<Lane = A>,
        P: Cell<A>,
    {
        let step = UNROLL * V::LANES;
        for first in (from..to).step_by(step) {
            for i in (0..UNROLL).step_by(2) {
                let at = first + i * V::LANES;
                // SAFETY: the caller's promise.
                unsafe {
                    if HOW != NOTHING {
                        pending.two::<HOW, LOG>(head + at);
                    }
                    self.two::<V, HOW, LOG>(at, &mut sums);
                }
            }
            if (first + step).is_multiple_of(NEAR_BLOCK) {
                sums.totals = [sums.totals[1], sums.totals[0].add(sums.sum[0].add(sums.sum[1]))];
                sums.sum = [V::splat(A::ZERO); 2];
            }
        }
        sums
    }

    /// Adds two vectors of elements.
    ///
    /// # Safety
    /// The row has these elements.
    #[inline(always)]
    unsafe fn two<V: Vector<Lane = A>, const HOW: u8, const LOG: bool>(&self, at: usize, sums: &mut Sums<V>) {
        prefetch(self.src.wrapping_add(at).wrapping_byte_add(AHEAD_BYTES), 2 * V::LANES);
        if HOW == STREAM {
            // What comes from memory is on its way early, and few lines wait at the first-level cache. A core of AMD's Zen 4 takes up to
            // a quarter longer for rows that are shorter than that is ahead.
            if self.far {
                prefetch_ahead(self.src.wrapping_add(at), 2 * V::LANES);
            }
        } else if !self.stream {
            prefetch_to_write(self.dst.wrapping_add(at), 2 * V::LANES);
        }
        // SAFETY: the caller's promise.
        unsafe {
            let x = [V::load(self.src.add(at)), V::load(self.src.add(at + V::LANES))];
            let e = near_exponentials_of::<V, D, 2>(LOG, x);
            if by_words::<S, D>(LOG) {
                // As many bytes as a vector has.
                let words = V::load(self.src.add(at).cast::<A>());
                sums.largest[0] = words.larger_words(sums.largest[0]);
            } else {
                sums.largest[0] = x[0].magnitude_in_row(sums.largest[0]);
                sums.largest[1] = x[1].magnitude_in_row(sums.largest[1]);
            }
            sums.sum[0] = sums.sum[0].add(e[0]);
            sums.sum[1] = sums.sum[1].add(e[1]);
            let kept = if LOG { x } else { e };
            kept[0].store(self.kept.add(at));
            kept[1].store(self.kept.add(at + V::LANES));
        }
    }
}

/// Finishes the pending row, and returns the maximum of the next row, lane by lane.
///
/// # Safety
/// The pending row is there, and `src` is readable for as many elements; they do not overlap in the destination.
#[inline(always)]
unsafe fn store_and_maximum<V, S, D>(pending: &Pending<V, D>, src: *const S, seam: &mut Seam<D>) -> V
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let cols = pending.cols;
    // Streaming stores want whole lines, so the two rows are walked at a distance.
    let head = pending.head();
    let mut max = [V::splat(V::Lane::NEG_INFINITY); UNROLL];
    let step = UNROLL * V::LANES;
    let whole = (cols - head) / step * step;
    // SAFETY: all is within the rows: `head + whole` is at most `cols`.
    unsafe {
        pending.edge(0, head, seam);
        for at in (0..whole).step_by(step) {
            for (i, max) in max.iter_mut().enumerate() {
                *max = V::load(src.add(at + i * V::LANES)).max(*max);
            }
            for at in (head + at..head + at + step).step_by(2 * V::LANES) {
                match (pending.log, pending.stream) {
                    (false, false) => pending.two::<STORE, false>(at),
                    (false, true) => pending.two::<STREAM, false>(at),
                    (true, false) => pending.two::<STORE, true>(at),
                    (true, true) => pending.two::<STREAM, true>(at),
                }
            }
        }
        pending.edge(head + whole, cols, seam);
        maximum::<V, S>(src.add(whole), cols - whole).max(join(max, V::max))
    }
}

/// The sum of the exponentials of a row, which are stored, or with `log` the differences to the maximum.
///
/// # Safety
/// `src` is readable for `cols` elements and `exps` writable for as many, rounded up to a vector; they do not overlap.
#[inline(always)]
unsafe fn exponentials<V, S>(
    log: bool,
    src: *const S,
    exps: *mut V::Lane,
    cols: usize,
    shift: &Shift<V::Lane>,
    max: V::Lane,
) -> V::Lane
where
    V: Vector,
    S: Cell<V::Lane>,
{
    let (shift, max) = (shift.splat::<V>(), V::splat(max));
    let mut total = 0.0;
    let step = UNROLL * V::LANES;
    let whole = cols - cols % step;
    // SAFETY: all is within the rows.
    unsafe {
        for block in (0..whole).step_by(ADDED * step) {
            let mut sum = [V::splat(V::Lane::ZERO); UNROLL];
            for at in (block..whole.min(block + ADDED * step)).step_by(step) {
                let mut x = [V::splat(V::Lane::ZERO); UNROLL];
                for (i, x) in x.iter_mut().enumerate() {
                    let at = at + i * V::LANES;
                    prefetch_line(src.wrapping_add(cols + at));
                    *x = V::load(src.add(at));
                }
                for (i, e) in shift.exp_of(x).into_iter().enumerate() {
                    sum[i] = sum[i].add(e);
                    if log { x[i].sub(max) } else { e }.store(exps.add(at + i * V::LANES));
                }
            }
            total += join(sum, V::add).fold(V::add).first().to_f64();
        }
        let mut sum = V::splat(V::Lane::ZERO);
        for at in (whole..cols).step_by(V::LANES) {
            prefetch_line(src.wrapping_add(cols + at));
            let len = V::LANES.min(cols - at);
            let x = V::load_part(src.add(at), len, V::Lane::NEG_INFINITY);
            let e = shift.exp(x);
            sum = sum.add(e);
            if log { x.sub(max) } else { e }.store(exps.add(at));
        }
        V::Lane::from_f64(total + sum.fold(V::add).first().to_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::super::vector::{Body, dispatch};
    use super::*;
    use crate::isa::Isa;

    /// The exponentials of these, where there are exponentials of what is near.
    struct Short<'a>(&'a [f32]);

    impl Body<f32> for Short<'_> {
        type Out = Vec<f32>;

        #[inline(always)]
        fn run<V: Vector<Lane = f32>>(self) -> Vec<f32> {
            let mut all = Vec::new();
            for x in self.0.chunks(V::LANES).filter(|_| V::NEAR.is_some()) {
                let mut e = [0.0; MAX_LANES];
                // SAFETY: the part is as long as the slice, and the array has room for a vector.
                unsafe { V::load_part(x.as_ptr(), x.len(), 0.0).exp_near_short().store(e.as_mut_ptr()) };
                all.extend(&e[..x.len()]);
            }
            all
        }
    }

    /// One such element, whatever is beside it, keeps a row from being taken for near.
    #[test]
    fn every_bf16_above_48_makes_the_sum_too_large_or_no_sum() {
        let x: Vec<f32> = (0x4241..0x8000u32).map(|word| f32::from_bits(word << 16)).collect();
        assert!(x[0] > 48.0 && x.contains(&f32::INFINITY) && x.last().unwrap().is_nan());
        for isa in Isa::available() {
            for (x, e) in x.iter().zip(dispatch(isa, Short(&x))) {
                let seen = e.is_nan() || e == f32::NEG_INFINITY || f64::from(e) > MOST_SUM;
                assert!(seen, "{x:e} at {isa}: {e:e}");
            }
        }
    }
}
