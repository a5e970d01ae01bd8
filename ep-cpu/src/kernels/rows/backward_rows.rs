//! The backward passes over rows longer than a few vectors: the next row is read for its sum while a row is written, unless the CPU is
//! faster at one after the other.

use super::backward::{BLOCK, Formula, Gradient, term};
use super::seam::Seam;
use super::vector::Vector;
use super::{LINE, UNROLL, join, prefetch, prefetch_ahead, prefetch_line};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream::suits_intel;
use std::ops::Range;

/// Bytes of a row of one source, up to which the next row is read while a row is written: two rows of each source then
/// stay in a second-level cache.
const FUSED_BYTES: usize = 64 << 10;
/// The same from which that is so on CPUs that are not treated as Intel's: of shorter rows first-level cache holds both sources, and a
/// core of AMD's Zen 4 takes a fifth less time for one row after the other, without asking for what comes.
const NEAR_ROW: usize = 12 << 10;
/// Bytes from an element to what is fetched into the first-level cache meanwhile.
const NEAR_BYTES: usize = 512;

/// The gradients of some rows, not none.
///
/// # Safety
/// `g` is valid for `rows * cols` elements.
#[inline(always)]
pub(super) unsafe fn run<V, S, D, const LOG: bool>(g: &Gradient<S, D>, rows: usize, cols: usize, stream: bool)
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let row_bytes = cols * size_of::<S>();
    let suits_intel = suits_intel();
    let least = if suits_intel { 0 } else { NEAR_ROW };
    let fused = if (least..=FUSED_BYTES).contains(&row_bytes) { rows - 1 } else { 0 };
    let ahead = (suits_intel || row_bytes > FUSED_BYTES).then_some(cols);
    let mut seam = Seam::new();
    // SAFETY: every row is inside the matrix, and written behind the one before.
    unsafe {
        let mut total = sum::<V, S, D, LOG>(g, cols);
        for row in 0..fused {
            let (g, next) = (g.from(row * cols), g.from((row + 1) * cols));
            total =
                write_and_sum::<V, S, D, LOG>(&g, &next, cols, V::Lane::from_f64(total), stream, &mut seam);
        }
        for row in fused..rows {
            let g = g.from(row * cols);
            write::<V, S, D, LOG>(&g, cols, V::Lane::from_f64(total), ahead, stream, &mut seam);
            if row + 1 < rows {
                total = sum::<V, S, D, LOG>(&g.from(cols), cols);
            }
        }
        seam.close();
    }
}

/// The sum of a row, of which whole steps come first: blocks are added up in f64.
struct Sums<V> {
    sum: [V; UNROLL],
    total: f64,
}

impl<V: Vector> Sums<V> {
    #[inline(always)]
    fn new() -> Self {
        Self { sum: [V::splat(V::Lane::ZERO); UNROLL], total: 0.0 }
    }

    /// Adds the `i`th vector of a step.
    ///
    /// # Safety
    /// `g` is valid for a vector of elements from `at`.
    #[inline(always)]
    unsafe fn vector<S, D, const LOG: bool>(&mut self, g: &Gradient<S, D>, at: usize, i: usize)
    where
        S: Cell<V::Lane>,
    {
        let sum = self.sum[i];
        // SAFETY: the caller's promise.
        unsafe {
            let y = if LOG { sum } else { V::load(g.y.add(at)) };
            self.sum[i] = term::<V, LOG>(y, V::load(g.dy.add(at)), sum);
        }
    }

    /// The block is complete.
    #[inline(always)]
    fn close(&mut self) {
        self.total += join(self.sum, V::add).fold(V::add).first().to_f64();
        self.sum = [V::splat(V::Lane::ZERO); UNROLL];
    }

    /// The sum of the whole row, of which `from` elements have been added, whole steps.
    ///
    /// # Safety
    /// `g` is valid for `len` elements.
    #[inline(always)]
    unsafe fn rest<S, D, const LOG: bool>(mut self, g: &Gradient<S, D>, from: usize, len: usize) -> f64
    where
        S: Cell<V::Lane>,
    {
        let zero = V::Lane::ZERO;
        let step = UNROLL * V::LANES;
        let whole = len - (len - from) % step;
        // SAFETY: all is within the row.
        unsafe {
            for first in (from..whole).step_by(step) {
                for i in 0..UNROLL {
                    self.vector::<S, D, LOG>(g, first + i * V::LANES, i);
                }
                if (first + step).is_multiple_of(BLOCK) {
                    self.close();
                }
            }
            for at in (whole..len).step_by(V::LANES) {
                let n = V::LANES.min(len - at);
                let y = if LOG { self.sum[0] } else { V::load_part(g.y.add(at), n, zero) };
                self.sum[0] = term::<V, LOG>(y, V::load_part(g.dy.add(at), n, zero), self.sum[0]);
            }
        }
        self.close();
        self.total
    }
}

/// The sum of a row or a block of one.
///
/// # Safety
/// `g` is valid for `len` elements.
#[inline(always)]
pub(super) unsafe fn sum<V, S, D, const LOG: bool>(g: &Gradient<S, D>, len: usize) -> f64
where
    V: Vector,
    S: Cell<V::Lane>,
{
    // SAFETY: the caller's promise.
    unsafe { Sums::<V>::new().rest::<S, D, LOG>(g, 0, len) }
}

/// The gradients of a row, and the sum of the `next` one: memory is read and written all the time.
///
/// # Safety
/// Both are valid for `cols` elements, and are not the same row.
#[inline(always)]
unsafe fn write_and_sum<V, S, D, const LOG: bool>(
    g: &Gradient<S, D>,
    next: &Gradient<S, D>,
    cols: usize,
    sum: V::Lane,
    stream: bool,
    seam: &mut Seam<D>,
) -> f64
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let formula = Formula::<V, LOG>::new(V::splat(sum));
    // Streaming stores want whole lines, so the two rows are walked at a distance.
    let head = head(g.dx, cols, stream);
    let step = UNROLL * V::LANES;
    let both = (cols - head) / step * step;
    let mut sums = Sums::<V>::new();
    // SAFETY: all is within the rows: `head + both` is at most `cols`. Each vector is read before it is written.
    unsafe {
        edge::<V, S, D, LOG>(g, &formula, 0..head, stream, seam);
        for first in (0..both).step_by(step) {
            for src in [next.y.wrapping_add(first), next.dy.wrapping_add(first)] {
                prefetch(src.wrapping_byte_add(NEAR_BYTES), step);
                if stream {
                    prefetch_ahead(src, step);
                }
            }
            // Exponentials keep a core from reading far ahead by itself of what second-level cache still has.
            if LOG && stream {
                prefetch(g.y.wrapping_add(first).wrapping_byte_add(NEAR_BYTES), step);
                prefetch(g.dy.wrapping_add(first).wrapping_byte_add(NEAR_BYTES), step);
            }
            for i in 0..UNROLL {
                let at = first + i * V::LANES;
                let from = g.from(head + at);
                let dx = formula.of(V::load(from.y), V::load(from.dy));
                if stream {
                    dx.stream(from.dx)
                } else {
                    dx.store(from.dx)
                }
                sums.vector::<S, D, LOG>(next, at, i);
            }
            if (first + step).is_multiple_of(BLOCK) {
                sums.close();
            }
        }
        edge::<V, S, D, LOG>(g, &formula, head + both..cols, stream, seam);
        sums.rest::<S, D, LOG>(next, both, cols)
    }
}

/// How many of `len` elements are before the first line of the destination, if it is whole lines that are stored.
#[inline(always)]
fn head<D>(dx: *mut D, len: usize, stream: bool) -> usize {
    if stream { (dx.addr().wrapping_neg() % LINE / size_of::<D>()).min(len) } else { 0 }
}

/// The gradients of a row or part of one, fetching what is `ahead` elements further on, if anything.
///
/// # Safety
/// `g` is valid for `len` elements.
#[inline(always)]
pub(super) unsafe fn write<V, S, D, const LOG: bool>(
    g: &Gradient<S, D>,
    len: usize,
    sum: V::Lane,
    ahead: Option<usize>,
    stream: bool,
    seam: &mut Seam<D>,
) where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let formula = Formula::<V, LOG>::new(V::splat(sum));
    let head = head(g.dx, len, stream);
    let step = UNROLL * V::LANES;
    let end = head + (len - head) / step * step;
    // SAFETY: all is within the row; each vector is read before it is written.
    unsafe {
        edge::<V, S, D, LOG>(g, &formula, 0..head, stream, seam);
        for at in (head..end).step_by(step) {
            for i in 0..UNROLL {
                let at = at + i * V::LANES;
                if let Some(ahead) = ahead {
                    prefetch_line(g.y.wrapping_add(ahead + at));
                    prefetch_line(g.dy.wrapping_add(ahead + at));
                }
                let dx = formula.of(V::load(g.y.add(at)), V::load(g.dy.add(at)));
                if stream { dx.stream(g.dx.add(at)) } else { dx.store(g.dx.add(at)) }
            }
        }
        edge::<V, S, D, LOG>(g, &formula, end..len, stream, seam);
    }
}

/// The gradients of some elements at an end of a row, which share lines with the rows beside it.
///
/// # Safety
/// `g` is valid for them, and what waits in `seam` precedes them.
#[inline(always)]
unsafe fn edge<V, S, D, const LOG: bool>(
    g: &Gradient<S, D>,
    formula: &Formula<V, LOG>,
    range: Range<usize>,
    stream: bool,
    seam: &mut Seam<D>,
) where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    // SAFETY: the caller's promise; there is room for these elements.
    unsafe {
        let g = g.from(range.start);
        let room = if stream { seam.room(g.dx, range.len()) } else { None };
        let Some(room) = room else { return part::<V, S, D, LOG>(&g, formula, 0, range.len()) };
        part::<V, S, D, LOG>(&Gradient { dx: room, ..g }, formula, 0, range.len());
        seam.take::<V>(range.len());
    }
}

/// The gradients of the elements `from..to`.
///
/// # Safety
/// `g` is valid for them.
#[inline(always)]
pub(super) unsafe fn part<V, S, D, const LOG: bool>(
    g: &Gradient<S, D>,
    formula: &Formula<V, LOG>,
    from: usize,
    to: usize,
) where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    for at in (from..to).step_by(V::LANES) {
        let n = V::LANES.min(to - at);
        // SAFETY: the caller's promise.
        unsafe {
            let y = V::load_part(g.y.add(at), n, V::Lane::ZERO);
            let dy = V::load_part(g.dy.add(at), n, V::Lane::ZERO);
            formula.of(y, dy).store_part(g.dx.add(at), n);
        }
    }
}
