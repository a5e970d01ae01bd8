//! Rows whose exponentials stay in the first-level cache, one after the other.
//!
//! A row is read twice, for its maximum and for its exponentials, which are kept until the sum is known. They are
//! scaled and stored while the next row is read for its maximum, and while the exponentials are computed, the
//! next row is fetched: so memory reads, memory writes and arithmetic all go on at once.
//!
//! Where there are exponentials of all that is [near](Vector::NEAR) zero, a row is first taken to be near: it is read
//! once, and the row before is stored meanwhile.

use super::exp::{Last, Shift};
use super::vector::{MAX_LANES, Vector};
use super::{LINE, Matrix, Room, UNROLL, join, maximum, prefetch_line, prefetch_to_write};
use crate::kernels::real::{Cell, Real};

/// Bytes of a row, in the type computed in, up to which rows are done here.
pub(super) const MEDIUM_BYTES: usize = 32 << 10;

/// Elements added up before the sum moves on, which keeps its error below that of an exponential; a multiple of
/// every unrolled vector.
const BLOCK: usize = 512;

/// Rows of which one that is not near decides for those after it. Tasks begin at multiples of it, so that these are the
/// same rows whatever the number of threads.
const GROUP: usize = MAX_LANES;

/// What is left to do of a row.
struct Pending<V: Vector, D> {
    log: bool,
    stream: bool,
    cols: usize,
    /// Its exponentials, or for a logarithm its elements less anything.
    kept: *const V::Lane,
    dst: *mut D,
    /// For a logarithm: what is taken off the elements before the addend of `last`.
    base: V,
    last: Last<V>,
}

impl<V: Vector, D: Cell<V::Lane>> Pending<V, D> {
    #[inline(always)]
    fn finish(&self, x: V) -> V {
        if self.log { self.last.apply_log(x, self.base) } else { self.last.apply(x) }
    }

    /// How many elements are before the first line of the destination, if it is whole lines that are stored.
    #[inline(always)]
    fn head(&self) -> usize {
        if self.stream { (self.dst.addr().wrapping_neg() % LINE / size_of::<D>()).min(self.cols) } else { 0 }
    }

    /// Finishes a vector of elements, in the destination at a line if they go past the cache.
    ///
    /// # Safety
    /// The row has these elements.
    #[inline(always)]
    unsafe fn vector(&self, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let y = self.finish(V::load(self.kept.add(at)));
            if self.stream { y.stream(self.dst.add(at)) } else { y.store(self.dst.add(at)) }
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
            // SAFETY: the caller's promise.
            unsafe {
                if len == V::LANES {
                    self.finish(V::load(self.kept.add(at))).store(self.dst.add(at));
                } else {
                    let x = V::load_part(self.kept.add(at), len, V::Lane::ZERO);
                    self.finish(x).store_part(self.dst.add(at), len);
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
    let none = V::splat(V::Lane::ZERO);
    let idle = Last { factor: none, addend: none };
    let mut pending: Option<Pending<V, D>> = None;
    let mut near = V::NEAR;
    // SAFETY: each row is inside the matrix, and what is kept of one fits the room. A row is stored after it has
    // been read for the last time, so that it may be stored where it was.
    unsafe {
        for row in 0..m.rows {
            if row % GROUP == 0 {
                near = V::NEAR;
            }
            let (src, dst) = (m.src.add(row * cols), m.dst.add(row * cols));
            let mut next =
                Pending { log, stream, cols, kept: room.cast_const(), dst, base: none, last: idle };
            if let Some(bound) = near {
                let (sum, largest) = near_exponentials::<V, S, D>(log, src, room, cols, &pending, dst);
                if largest.within(bound) {
                    let (base, last) = Last::of_near(log, sum);
                    (next.base, next.last) = (V::splat(base), last.splat());
                    pending = Some(next);
                    continue;
                }
                (near, pending) = (None, None);
            }
            let max = match &pending {
                None => maximum::<V, S>(src, cols),
                Some(pending) => store_and_maximum::<V, S, D>(pending, src),
            };
            let max = max.fold(V::max).first();
            let shift = Shift::of(max);
            let sum = exponentials::<V, S>(log, src, room, cols, &shift, max);
            next.last = Last::of(log, &shift, sum, max).splat();
            pending = Some(next);
        }
        if let Some(pending) = pending {
            pending.part(0, cols);
        }
    }
}

/// The sum of the exponentials of a row, and the largest magnitudes of its elements, which say whether that is right.
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
) -> (V::Lane, V)
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let zero = V::splat(V::Lane::ZERO);
    let step = UNROLL * V::LANES;
    let (mut total, mut largest) = (zero, [zero; UNROLL]);
    let (head, stream) = pending.as_ref().map_or((0, false), |p| (p.head(), p.stream));
    let both = (cols - head) / step * step;
    let whole = cols / step * step;
    // SAFETY: all is within the rows: `head + both` is at most `cols`. What is pending of an element is read before
    // what is kept of another replaces it, as it is `head` elements ahead.
    unsafe {
        if let Some(pending) = pending {
            pending.part(0, head);
        }
        for block in (0..whole).step_by(BLOCK) {
            let mut sum = [zero; UNROLL];
            for first in (block..whole.min(block + BLOCK)).step_by(step) {
                if first == both
                    && let Some(pending) = pending
                {
                    pending.part(head + both, cols);
                }
                for i in 0..UNROLL {
                    let at = first + i * V::LANES;
                    prefetch_line(src.wrapping_add(cols + at));
                    if !stream {
                        prefetch_to_write(dst.wrapping_add(at), V::LANES);
                    }
                    if first < both
                        && let Some(pending) = pending
                    {
                        pending.vector(head + at);
                    }
                    let x = V::load(src.add(at));
                    largest[i] = x.magnitude(largest[i]);
                    let e = x.exp_near();
                    sum[i] = sum[i].add(e);
                    if log { x } else { e }.store(kept.add(at));
                }
            }
            total = total.add(join(sum, V::add));
        }
        if both == whole
            && let Some(pending) = pending
        {
            pending.part(head + both, cols);
        }
        for at in (whole..cols).step_by(V::LANES) {
            prefetch_line(src.wrapping_add(cols + at));
            let len = V::LANES.min(cols - at);
            let x = V::load_part(src.add(at), len, V::Lane::ZERO);
            largest[0] = x.magnitude(largest[0]);
            let e = x.exp_near();
            total = total.add(e.first_lanes(len));
            if log { x } else { e }.store(kept.add(at));
        }
    }
    (total.fold(V::add).first(), join(largest, V::magnitude))
}

/// Finishes the pending row, and returns the maximum of the next row, lane by lane.
///
/// # Safety
/// The pending row is there, and `src` is readable for as many elements; they do not overlap in the destination.
#[inline(always)]
unsafe fn store_and_maximum<V, S, D>(pending: &Pending<V, D>, src: *const S) -> V
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
        pending.part(0, head);
        for at in (0..whole).step_by(step) {
            for (i, max) in max.iter_mut().enumerate() {
                let at = at + i * V::LANES;
                *max = V::load(src.add(at)).max(*max);
                pending.vector(head + at);
            }
        }
        pending.part(head + whole, cols);
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
        for block in (0..whole).step_by(BLOCK) {
            let mut sum = [V::splat(V::Lane::ZERO); UNROLL];
            for at in (block..whole.min(block + BLOCK)).step_by(step) {
                for (i, sum) in sum.iter_mut().enumerate() {
                    let at = at + i * V::LANES;
                    prefetch_line(src.wrapping_add(cols + at));
                    let x = V::load(src.add(at));
                    let e = shift.exp(x);
                    *sum = sum.add(e);
                    if log { x.sub(max) } else { e }.store(exps.add(at));
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
