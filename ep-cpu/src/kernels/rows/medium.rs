//! Rows whose exponentials stay in the first-level cache, one after the other.
//!
//! A row is read twice, for its maximum and for its exponentials, which are kept until the sum is known. They are
//! scaled and stored while the next row is read for its maximum, and while the exponentials are computed, the
//! next row is fetched: so memory reads, memory writes and arithmetic all go on at once.

use super::exp::{Last, Shift};
use super::vector::Vector;
use super::{LINE, Matrix, Room, UNROLL, join, maximum, prefetch_line, store_run};
use crate::kernels::real::{Cell, Real};

/// Bytes of a row, in the type computed in, up to which rows are done here.
pub(super) const MEDIUM_BYTES: usize = 32 << 10;

/// Elements added up before the sum moves to f64, which keeps its error below that of an exponential; a multiple of
/// every unrolled vector.
const BLOCK: usize = 512;

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
    let mut exps = Room::<MEDIUM_BYTES>::new();
    let exps = exps.start();
    let none = V::splat(V::Lane::ZERO);
    let mut last = Last { factor: none, addend: none };
    // SAFETY: each row is inside the matrix, and the exponentials of one fit the room. A row is stored after it has
    // been read for the last time, so that it may be stored where it was.
    unsafe {
        for row in 0..m.rows {
            let src = m.src.add(row * m.cols);
            let max = if row == 0 {
                maximum::<V, S>(src, m.cols)
            } else {
                let before = m.dst.add((row - 1) * m.cols);
                store_and_maximum::<V, S, D>(exps, before, &last, m.stream, src, m.cols)
            };
            let max = max.fold(V::max).first();
            let shift = Shift::of(max);
            let sum = exponentials::<V, S>(m.log, src, exps, m.cols, &shift, max);
            last = Last::of(m.log, &shift, sum, max).splat();
        }
        let end = m.dst.add((m.rows - 1) * m.cols);
        store_run::<V, D>(exps, end, m.cols, &last);
    }
}

/// Finishes the row whose exponentials are given, and returns the maximum of the next row, lane by lane.
///
/// # Safety
/// `exps` and `src` are readable and `dst` is writable for `cols` elements; `dst` does not overlap the others.
#[inline(always)]
unsafe fn store_and_maximum<V, S, D>(
    exps: *const V::Lane,
    dst: *mut D,
    last: &Last<V>,
    stream: bool,
    src: *const S,
    cols: usize,
) -> V
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    // Streaming stores want whole lines, so the two rows are walked at a distance.
    let head = if stream { (dst.addr().wrapping_neg() % LINE / size_of::<D>()).min(cols) } else { 0 };
    let mut max = [V::splat(V::Lane::NEG_INFINITY); UNROLL];
    let step = UNROLL * V::LANES;
    let whole = (cols - head) / step * step;
    // SAFETY: all is within the rows: `head + whole` is at most `cols`.
    unsafe {
        store_run::<V, D>(exps, dst, head, last);
        for at in (0..whole).step_by(step) {
            for (i, max) in max.iter_mut().enumerate() {
                let at = at + i * V::LANES;
                *max = V::load(src.add(at)).max(*max);
                let y = last.apply(V::load(exps.add(head + at)));
                if stream { y.stream(dst.add(head + at)) } else { y.store(dst.add(head + at)) }
            }
        }
        let done = head + whole;
        store_run::<V, D>(exps.add(done), dst.add(done), cols - done, last);
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
