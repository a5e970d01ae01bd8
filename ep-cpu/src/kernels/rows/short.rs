//! Short rows, as many at a time as a vector has lanes: what is computed once a row, such as the reductions across
//! lanes, is then computed once for all of them.

use super::exp::{Last, Lasts, Shift, Shifts};
use super::vector::{MAX_LANES, Vector};
use super::{Matrix, Room, flush, lanes, prefetch, prefetch_to_write};
use crate::kernels::real::{Cell, Real};

/// Bytes of a row, in the type computed in, up to which rows are short.
const SHORT_BYTES: usize = 1024;
/// The same where there are exponentials of [near](Vector::NEAR) elements, with which registers hold a row.
const NEAR_SHORT_BYTES: usize = 512;
/// The same where more than a few vectors of a row are many registers, and of what is longer only [`medium`](super::medium)
/// rows are taken to be near.
const NEAR_FEW_BYTES: usize = 256;
const GROUP_BYTES: usize = MAX_LANES * SHORT_BYTES;

/// Bytes of the longest short row, in the type computed in.
#[inline(always)]
pub(super) fn most<V: Vector>() -> usize {
    match (V::NEAR.is_some(), V::FAST_PARTS) {
        (true, true) => NEAR_SHORT_BYTES,
        (true, false) => NEAR_FEW_BYTES,
        (false, _) => SHORT_BYTES,
    }
}

/// Softmax or log-softmax of a matrix of short rows; `asks` as of [`Rows`](super::Rows).
///
/// # Safety
/// The matrix is as [`Matrix`] says.
#[inline(always)]
pub(super) unsafe fn run<V, S, D>(m: &Matrix<S, D>, asks: bool)
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let mut exps = Room::<GROUP_BYTES>::new();
    let mut stage = Room::<GROUP_BYTES>::new();
    for first in (0..m.rows).step_by(V::LANES) {
        let rows = V::LANES.min(m.rows - first);
        // SAFETY: these rows are inside the matrix. A group fits both rooms: an element is no larger than the type
        // computed in, of which a row has no more than `SHORT_BYTES`.
        unsafe {
            let (src, dst) = (m.src.add(first * m.cols), m.dst.add(first * m.cols));
            let to = if m.stream { stage.start() } else { dst };
            let owned = if m.stream || !asks { 0 } else { m.rows - first };
            let exps = exps.start();
            let group = Group { log: m.log, rows, cols: m.cols, src, dst: to, asks, owned, exps };
            match m.cols.div_ceil(V::LANES) {
                1 if V::FAST_PARTS => group.run::<V, 1>(),
                2 if V::FAST_PARTS => group.run::<V, 2>(),
                3 if V::NEAR.is_some() => group.run::<V, 3>(),
                4 if V::NEAR.is_some() => group.run::<V, 4>(),
                5 | 6 if V::FAST_PARTS && (!m.log || V::NEAR.is_some()) => group.each::<V, 6>(),
                7 | 8 if V::FAST_PARTS && (!m.log || V::NEAR.is_some()) => group.each::<V, 8>(),
                _ => group.run::<V, 0>(),
            }
            if m.stream {
                flush::<V, D>(dst, to.cast_const(), rows * m.cols);
            }
        }
    }
}

/// As many rows as a vector has lanes, or fewer: `src` is readable and `dst` writable for `rows * cols` elements, and
/// `exps` for as many with `cols` rounded up to a vector. `dst` may be `src`. The `owned` first rows from `dst` on are
/// this task's to write, and are fetched for that, as are the next rows of `src` with `asks`.
struct Group<S, D, A> {
    log: bool,
    rows: usize,
    cols: usize,
    src: *const S,
    dst: *mut D,
    asks: bool,
    owned: usize,
    exps: *mut A,
}

impl<S, D, A: Real + Cell<A>> Group<S, D, A> {
    /// With rows of `W` vectors, or of any number if that is 0. Knowing it halves the time of rows of one or two.
    ///
    /// # Safety
    /// The group is as [`Group`] says, and its rows are that long.
    #[inline(always)]
    unsafe fn run<V, const W: usize>(&self)
    where
        V: Vector<Lane = A>,
        S: Cell<A>,
        D: Cell<A>,
    {
        if W > 0
            && let Some(bound) = V::NEAR
        {
            // SAFETY: the caller's promise.
            if unsafe { self.near_all::<V, W, 1>(bound) } {
                return;
            }
        }
        let &Self { log, rows, cols, src, dst, asks, owned, exps } = self;
        // The last vector of a row may be part of one.
        let full = if W > 0 { W - 1 } else { (cols - 1) / V::LANES };
        let last_at = full * V::LANES;
        let part = cols - last_at;
        // Exponentials are kept in whole vectors: what is stored in part is slow to load again.
        let pitch = last_at + V::LANES;
        let lowest = V::splat(A::NEG_INFINITY);
        // SAFETY: every access below is to the `cols` elements of one of the rows, or to their `pitch`.
        unsafe {
            let mut each = [lowest; MAX_LANES];
            for (row, each) in each[..rows].iter_mut().enumerate() {
                let src = src.add(row * cols);
                let mut max = load_last::<V, S>(src.add(last_at), part).max(lowest);
                for k in 0..full {
                    max = V::load(src.add(k * V::LANES)).max(max);
                }
                if V::FAST_PARTS && row < owned {
                    prefetch_to_write(dst.wrapping_add(row * cols), cols);
                }
                *each = max;
            }
            let max = lanes(V::fold_each(&each, V::max));
            let shifts = Shifts::of(&max, V::LANES);

            for row in 0..rows {
                let (src, exps) = (src.add(row * cols), exps.add(row * pitch));
                if asks {
                    prefetch(src.wrapping_add(rows * cols), cols);
                }
                let (shift, max) = (shifts.row(row).splat::<V>(), V::splat(max[row]));
                let x = load_last::<V, S>(src.add(last_at), part);
                let mut sum = shift.exp(x);
                if log { x.sub(max) } else { sum }.store(exps.add(last_at));
                for k in 0..full {
                    let x = V::load(src.add(k * V::LANES));
                    let e = shift.exp(x);
                    sum = sum.add(e);
                    if log { x.sub(max) } else { e }.store(exps.add(k * V::LANES));
                }
                each[row] = sum;
            }
            let sum = lanes(V::fold_each(&each, V::add));
            let lasts = Lasts::of(log, &shifts, &sum, &max, V::LANES);

            for row in 0..rows {
                let (exps, dst) = (exps.add(row * pitch), dst.add(row * cols));
                let last = lasts.row(row).splat::<V>();
                for k in 0..full {
                    last.apply(V::load(exps.add(k * V::LANES))).store(dst.add(k * V::LANES));
                }
                let y = last.apply(V::load(exps.add(last_at)));
                if part == V::LANES {
                    y.store(dst.add(last_at));
                } else {
                    y.store_part(dst.add(last_at), part);
                }
            }
        }
    }
}

/// Rows after which those of a group that are taken to be near are looked at.
const CHECKED: usize = 4;

/// Rows whose place is fetched before they are written.
const ROWS_AHEAD: usize = 8;

impl<S, D, A: Real + Cell<A>> Group<S, D, A> {
    /// Rows of `W` vectors or one less, which stay in registers from their maximum to their end. One row's
    /// instructions overlap with those of the next.
    ///
    /// # Safety
    /// The group is as [`Group`] says, and its rows are that long.
    #[inline(always)]
    unsafe fn each<V, const W: usize>(&self)
    where
        V: Vector<Lane = A>,
        S: Cell<A>,
        D: Cell<A>,
    {
        let &Self { log, rows, cols, src, dst, asks, owned, .. } = self;
        let lowest = V::splat(A::NEG_INFINITY);
        let part = |k: usize| cols.saturating_sub(k * V::LANES).min(V::LANES);
        // Where one row of a group is not near, it is likely that others are not.
        let mut near = V::NEAR;
        if log && let Some(bound) = near {
            // SAFETY: the caller's promise.
            if unsafe { self.near_all::<V, W, 2>(bound) } {
                return;
            }
            near = None;
        }
        for row in 0..rows {
            let (src, dst) = (src.wrapping_add(row * cols), dst.wrapping_add(row * cols));
            if asks {
                prefetch(src.wrapping_add(rows * cols), cols);
            }
            if row + ROWS_AHEAD < owned {
                prefetch_to_write(dst.wrapping_add(ROWS_AHEAD * cols), cols);
            }
            if let Some(bound) = near {
                // SAFETY: the row is one of the group's.
                if unsafe { self.near::<V, W>(row, bound) } {
                    continue;
                }
                near = None;
            }
            let (mut x, mut max) = ([lowest; W], [lowest; 2]);
            for (k, x) in x.iter_mut().enumerate() {
                let at = src.wrapping_add(k * V::LANES);
                // SAFETY: the row's elements; all but the last two vectors are whole.
                *x = unsafe {
                    if k + 2 < W { V::load(at) } else { V::load_part(at, part(k), A::NEG_INFINITY) }
                };
                max[k % 2] = x.max(max[k % 2]);
            }
            let max = max[0].max(max[1]).fold(V::max).first();
            let shift = Shift::of(max);
            let (splat, most) = (shift.splat::<V>(), V::splat(max));
            let mut sum = [V::splat(A::ZERO); 2];
            for (k, x) in x.iter_mut().enumerate() {
                let e = splat.exp(*x);
                sum[k % 2] = sum[k % 2].add(e);
                *x = if log { x.sub(most) } else { e };
            }
            let sum = sum[0].add(sum[1]).fold(V::add).first();
            let last = Last::of(log, &shift, sum, max).splat::<V>();
            for (k, x) in x.into_iter().enumerate() {
                let (at, y) = (dst.wrapping_add(k * V::LANES), last.apply(x));
                // SAFETY: as for the loads.
                unsafe { if k + 2 < W { y.store(at) } else { y.store_part(at, part(k)) } }
            }
        }
    }
}

impl<S, D, A: Real + Cell<A>> Group<S, D, A> {
    /// As [`Self::run`], if all elements are near: they need no maxima. Whether they are. All vectors of a row but the
    /// last `PARTS` of `W` are whole.
    ///
    /// # Safety
    /// The group is as [`Group`] says, and its rows are that long.
    #[inline(always)]
    unsafe fn near_all<V, const W: usize, const PARTS: usize>(&self, bound: A) -> bool
    where
        V: Vector<Lane = A>,
        S: Cell<A>,
        D: Cell<A>,
    {
        let &Self { log, rows, cols, src, dst, asks, owned, exps } = self;
        let zero = V::splat(A::ZERO);
        let part = |k: usize| cols.saturating_sub(k * V::LANES).min(V::LANES);
        let (mut largest, mut each) = ([zero; 2], [zero; MAX_LANES]);
        for (row, each) in each[..rows].iter_mut().enumerate() {
            let (src, exps) = (src.wrapping_add(row * cols), exps.wrapping_add(row * W * V::LANES));
            if asks {
                prefetch(src.wrapping_add(rows * cols), cols);
            }
            if row < owned {
                prefetch_to_write(dst.wrapping_add(row * cols), cols);
            }
            let (mut sum, mut x) = ([zero; 2], [zero; W]);
            for (k, x) in x.iter_mut().enumerate() {
                let at = src.wrapping_add(k * V::LANES);
                // SAFETY: the row's elements.
                *x = unsafe { if k + PARTS < W { V::load(at) } else { V::load_part(at, part(k), A::ZERO) } };
                largest[k % 2] = x.magnitude(largest[k % 2]);
            }
            // Exponentials of what is not near may be subnormal, and take many times as long.
            if row % CHECKED == 0 && !largest[0].magnitude(largest[1]).within(bound) {
                return false;
            }
            for (k, e) in V::exp_near_of(x).into_iter().enumerate() {
                sum[k % 2] = sum[k % 2].add(if k + PARTS < W { e } else { e.first_lanes(part(k)) });
                if !log {
                    // SAFETY: the row's place for exponentials, rounded up to `W` vectors.
                    unsafe { e.store(exps.wrapping_add(k * V::LANES)) };
                }
            }
            *each = sum[0].add(sum[1]);
        }
        if !largest[0].magnitude(largest[1]).within(bound) {
            return false;
        }
        let sums = lanes(V::fold_each(&each, V::add));
        let [mut bases, mut factors, mut addends] = [[A::ZERO; MAX_LANES]; 3];
        for i in 0..V::LANES {
            let (base, last) = Last::of_near(log, sums[i]);
            (bases[i], factors[i], addends[i]) = (base, last.factor, last.addend);
        }
        let narrow = V::narrows::<D>();
        for (row, &base) in bases[..rows].iter().enumerate() {
            let (src, dst) = (src.wrapping_add(row * cols), dst.wrapping_add(row * cols));
            let exps = exps.wrapping_add(row * W * V::LANES);
            let last = Last { factor: factors[row], addend: addends[row], least: A::ZERO };
            let (base, last) = (V::splat(base), last.splat::<V>());
            let mut results = [zero; W];
            for (k, y) in results.iter_mut().enumerate() {
                let at = k * V::LANES;
                // SAFETY: as above.
                *y = unsafe {
                    if !log {
                        V::load(exps.wrapping_add(at)).mul(last.factor)
                    } else if k + PARTS < W {
                        last.apply_log(V::load(src.wrapping_add(at)), base)
                    } else {
                        last.apply_log(V::load_part(src.wrapping_add(at), part(k), A::ZERO), base)
                    }
                };
            }
            for k in 0..W {
                let at = dst.wrapping_add(k * V::LANES);
                // SAFETY: as above.
                unsafe {
                    if k + PARTS >= W {
                        results[k].store_part(at, part(k));
                    } else if k % 2 == 0 && k + 1 + PARTS < W {
                        results[k].store_two(results[k + 1], at, false, narrow);
                    } else if k % 2 == 0 {
                        results[k].store(at);
                    }
                }
            }
        }
        true
    }

    /// As [`Self::each`] for one row of softmax, if all its elements are near: it needs no maximum. Whether they are.
    ///
    /// # Safety
    /// As for [`Self::each`], which has that row; `W` is even.
    #[inline(always)]
    unsafe fn near<V, const W: usize>(&self, row: usize, bound: A) -> bool
    where
        V: Vector<Lane = A>,
        S: Cell<A>,
        D: Cell<A>,
    {
        let cols = self.cols;
        let (src, dst) = (self.src.wrapping_add(row * cols), self.dst.wrapping_add(row * cols));
        let zero = V::splat(A::ZERO);
        let part = |k: usize| cols.saturating_sub(k * V::LANES).min(V::LANES);
        let (mut exps, mut largest, mut sum) = ([zero; W], [zero; 2], [zero; 2]);
        for (k, x) in exps.iter_mut().enumerate() {
            let at = src.wrapping_add(k * V::LANES);
            // SAFETY: the row's elements; all but the last two vectors are whole.
            *x = unsafe { if k + 2 < W { V::load(at) } else { V::load_part(at, part(k), A::ZERO) } };
            largest[k % 2] = x.magnitude_in_row(largest[k % 2]);
        }
        // As in `near_all`.
        if !largest[0].magnitude(largest[1]).within(bound) {
            return false;
        }
        for (k, x) in exps.iter_mut().enumerate() {
            let e = x.exp_near();
            sum[k % 2] = sum[k % 2].add(if k + 2 < W { e } else { e.first_lanes(part(k)) });
            *x = e;
        }
        let sum = sum[0].add(sum[1]).fold(V::add).first();
        let (factor, narrow) = (V::splat(sum.reciprocal()), V::narrows::<D>());
        for k in (0..W).step_by(2) {
            let at = dst.wrapping_add(k * V::LANES);
            let (y, next) = (exps[k].mul(factor), exps[k + 1].mul(factor));
            // SAFETY: as for the loads.
            unsafe {
                if k + 2 < W {
                    y.store_two(next, at, false, narrow);
                } else {
                    y.store_part(at, part(k));
                    next.store_part(at.wrapping_add(V::LANES), part(k + 1));
                }
            }
        }
        true
    }
}

/// The last vector of a row, with `-inf` in the lanes past its end.
///
/// # Safety
/// `at` is readable for `part` elements, of which there are at most a vector.
#[inline(always)]
unsafe fn load_last<V: Vector, S: Cell<V::Lane>>(at: *const S, part: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { if part == V::LANES { V::load(at) } else { V::load_part(at, part, V::Lane::NEG_INFINITY) } }
}
