//! Short rows, as many at a time as a vector has lanes: what is computed once a row, such as the reductions across
//! lanes, is then computed once for all of them.

use super::exp::{Last, Shift};
use super::vector::{MAX_LANES, Vector};
use super::{Matrix, Room, flush, lanes, prefetch};
use crate::kernels::real::{Cell, Real};

/// Bytes of a row, in the type computed in, up to which rows are short.
pub(super) const SHORT_BYTES: usize = 1024;
const GROUP_BYTES: usize = MAX_LANES * SHORT_BYTES;

/// Softmax or log-softmax of a matrix of short rows.
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
    let mut exps = Room::<GROUP_BYTES>::new();
    let mut stage = Room::<GROUP_BYTES>::new();
    for first in (0..m.rows).step_by(V::LANES) {
        let rows = V::LANES.min(m.rows - first);
        // SAFETY: these rows are inside the matrix, and so the next ones are unless they are none. A group fits both
        // rooms: an element is no larger than the type computed in, of which a row has no more than `SHORT_BYTES`.
        unsafe {
            let (src, dst) = (m.src.add(first * m.cols), m.dst.add(first * m.cols));
            let next = src.wrapping_add(rows * m.cols);
            let to = if m.stream { stage.start() } else { dst };
            group::<V, S, D>(m.log, rows, m.cols, src, to, exps.start(), next);
            if m.stream {
                flush(dst, to.cast_const(), rows * m.cols);
            }
        }
    }
}

/// # Safety
/// `src` is readable, and `dst` and `exps` are writable, for `rows * cols` elements; `rows` is at most a vector.
/// `dst` may be `src`.
#[inline(always)]
unsafe fn group<V, S, D>(
    log: bool,
    rows: usize,
    cols: usize,
    src: *const S,
    dst: *mut D,
    exps: *mut V::Lane,
    next: *const S,
) where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let whole = cols - cols % V::LANES;
    let part = cols - whole;
    let lowest = V::splat(V::Lane::NEG_INFINITY);
    // SAFETY: every access below is to the `cols` elements of one of the `rows` rows.
    unsafe {
        let mut each = [lowest; MAX_LANES];
        for (row, each) in each[..rows].iter_mut().enumerate() {
            let src = src.add(row * cols);
            let mut max = lowest;
            for at in (0..whole).step_by(V::LANES) {
                max = V::load(src.add(at)).max(max);
            }
            if part > 0 {
                max = V::load_part(src.add(whole), part, V::Lane::NEG_INFINITY).max(max);
            }
            *each = max;
        }
        let max = lanes(V::fold_each(&each, V::max));
        let mut shift = [Shift::of(V::Lane::ZERO); MAX_LANES];
        for (shift, &max) in shift[..V::LANES].iter_mut().zip(&max) {
            *shift = Shift::of(max);
        }

        for row in 0..rows {
            let (src, exps) = (src.add(row * cols), exps.add(row * cols));
            prefetch(next.wrapping_add(row * cols), cols);
            let (shift, max) = (shift[row].splat::<V>(), V::splat(max[row]));
            let mut sum = V::splat(V::Lane::ZERO);
            for at in (0..whole).step_by(V::LANES) {
                let x = V::load(src.add(at));
                let e = shift.exp(x);
                sum = sum.add(e);
                if log { x.sub(max) } else { e }.store(exps.add(at));
            }
            if part > 0 {
                let x = V::load_part(src.add(whole), part, V::Lane::NEG_INFINITY);
                let e = shift.exp(x);
                sum = sum.add(e);
                if log { x.sub(max) } else { e }.store_part(exps.add(whole), part);
            }
            each[row] = sum;
        }
        let sum = lanes(V::fold_each(&each, V::add));
        let mut last = [Last::of(log, &shift[0], sum[0], max[0]); MAX_LANES];
        for i in 1..V::LANES {
            last[i] = Last::of(log, &shift[i], sum[i], max[i]);
        }

        for (row, last) in last[..rows].iter().enumerate() {
            let (exps, dst) = (exps.add(row * cols), dst.add(row * cols));
            let last = last.splat::<V>();
            for at in (0..whole).step_by(V::LANES) {
                last.apply(V::load(exps.add(at))).store(dst.add(at));
            }
            if part > 0 {
                let x = V::load_part(exps.add(whole), part, V::Lane::ZERO);
                last.apply(x).store_part(dst.add(whole), part);
            }
        }
    }
}
