//! The backward passes over columns that are `inner` elements apart: strips of adjacent ones, each column in a lane
//! of its own. A strip is read for its sums, and again, from the second-level cache if it fits, for the result.

use super::backward::{Formula, Gradient, term};
use super::backward_rows::part;
use super::strips::streams;
use super::vector::{Body, Compute, MAX_LANES, Vector, dispatch};
use super::{EXP_BYTES, LINE, Room, prefetch_line_far};
use crate::isa::Isa;
use crate::kernels::raw::for_ranges;
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream;
use ep_core::Result;
use ep_core::parallel::Parallel;

/// Bytes of both sources of a strip, where it has not too many columns for that.
const STRIP_BYTES: usize = 768 << 10;
/// The most elements side by side in a strip, and the fewest where there are as many.
const WIDTHS: [usize; 2] = [64, 512];
/// Columns worked on in turn: so many sequential streams of memory.
const STEP: usize = 8;
/// Columns of which the sum is kept apart, so that rounding grows with the root of the number of columns.
const BLOCK: usize = 256;

/// The gradients of matrices `[rows, cols, inner]`.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// `g` is valid for the elements.
pub(super) unsafe fn run<S, D, A, const LOG: bool>(
    isa: Isa,
    par: &dyn Parallel,
    g: Gradient<S, D>,
    [rows, cols, inner]: [usize; 3],
    stream: bool,
) -> Result<()>
where
    S: Cell<A>,
    D: Cell<A>,
    A: Compute,
{
    let fits = STRIP_BYTES / (2 * size_of::<S>()) / cols;
    // Several strips for each thread, so that none waits long for the last one.
    let shared_out = rows.saturating_mul(inner) / (4 * par.threads()).max(1);
    let widest = fits.min(shared_out).clamp(WIDTHS[0], WIDTHS[1]);
    let strips = inner.div_ceil(widest);
    let width = inner.div_ceil(strips).next_multiple_of(MAX_LANES);
    let strips = inner.div_ceil(width);
    let narrow = !streams(inner * size_of::<D>(), width.min(inner) * size_of::<D>());
    let stream = stream && (stream::suits_intel() || !narrow);
    let cost = cols.saturating_mul(width.min(inner)).saturating_mul(EXP_BYTES);
    for_ranges(par, rows * strips, cost, 1, |units| {
        for unit in units {
            let (row, strip) = (unit / strips, unit % strips);
            let at = strip * width;
            // SAFETY: the strip is inside the matrix, and only this task's to write.
            let g = unsafe { g.from(row * cols * inner + at) };
            let width = width.min(inner - at);
            dispatch::<A, _>(isa, Strip::<S, D, LOG> { g, cols, inner, width, stream });
        }
        Ok(())
    })
}

/// A strip. Made only where `g` is valid for it; the width is at most the largest of [`WIDTHS`].
struct Strip<S, D, const LOG: bool> {
    g: Gradient<S, D>,
    cols: usize,
    inner: usize,
    width: usize,
    stream: bool,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool> Body<A> for Strip<S, D, LOG> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        const ROOM: usize = WIDTHS[1] * size_of::<f64>();
        let (mut sums, mut parts) = (Room::<ROOM>::new(), Room::<ROOM>::new());
        let (sums, parts) = (sums.start::<A>(), parts.start::<A>());
        // SAFETY: the strip is as the struct says; the rooms have its width, rounded up to a vector.
        unsafe {
            for at in (0..self.width).step_by(V::LANES) {
                V::splat(A::ZERO).store(sums.add(at));
            }
            for first in (0..self.cols).step_by(BLOCK) {
                self.sums::<V>(first, BLOCK.min(self.cols - first), parts);
                for at in (0..self.width).step_by(V::LANES) {
                    V::load(sums.add(at)).add(V::load(parts.add(at))).store(sums.add(at));
                }
            }
            for col in 0..self.cols {
                self.write::<V>(&self.g.from(col * self.inner), sums);
            }
        }
        if self.stream {
            stream::fence();
        }
    }
}

impl<S, D, const LOG: bool> Strip<S, D, LOG> {
    /// The sums of `count` columns from `first` on.
    #[inline(always)]
    unsafe fn sums<V>(&self, first: usize, count: usize, sums: *mut V::Lane)
    where
        V: Vector,
        S: Cell<V::Lane>,
    {
        let zero = V::Lane::ZERO;
        // SAFETY: the strip and its room are as `run` says.
        unsafe {
            for at in (0..self.width).step_by(V::LANES) {
                V::splat(zero).store(sums.add(at));
            }
            for some in (first..first + count).step_by(STEP) {
                let step = STEP.min(first + count - some);
                for at in (0..self.width).step_by(V::LANES) {
                    let n = V::LANES.min(self.width - at);
                    let mut sum = V::load(sums.add(at));
                    for col in some..some + step {
                        let g = self.g.from(col * self.inner + at);
                        sum = if n == V::LANES {
                            let y = if LOG { sum } else { V::load(g.y) };
                            term::<V, LOG>(y, V::load(g.dy), sum)
                        } else {
                            let y = if LOG { sum } else { V::load_part(g.y, n, zero) };
                            term::<V, LOG>(y, V::load_part(g.dy, n, zero), sum)
                        };
                    }
                    sum.store(sums.add(at));
                }
            }
        }
    }

    /// The gradients of one column, of which `sums` has the sum of each element.
    #[inline(always)]
    unsafe fn write<V>(&self, g: &Gradient<S, D>, sums: *const V::Lane)
    where
        V: Vector,
        S: Cell<V::Lane>,
        D: Cell<V::Lane>,
    {
        let width = self.width;
        let head = if self.stream { g.dx.addr().wrapping_neg() % LINE / size_of::<D>() } else { 0 };
        let step = (2 * V::LANES).max(LINE / size_of::<D>());
        let streamed = if self.stream && head + step <= width { (width - head) / step * step } else { 0 };
        let head = if streamed > 0 { head } else { 0 };
        // SAFETY: the strip and its room are as `run` says; each vector is read before it is written.
        unsafe {
            let mut at = 0;
            while at < width {
                let n = if at < head { head - at } else { width - at };
                let here = g.from(at);
                if n < V::LANES {
                    let sum = V::load_part(sums.add(at), n, V::Lane::ZERO);
                    part::<V, S, D, LOG>(&here, &Formula::new(sum), 0, n);
                    at += n;
                    continue;
                }
                // A guess at the next strip, which is beside this one unless the row ends.
                prefetch_line_far(here.y.wrapping_add(width));
                prefetch_line_far(here.dy.wrapping_add(width));
                let formula = Formula::<V, LOG>::new(V::load(sums.add(at)));
                let dx = formula.of(V::load(here.y), V::load(here.dy));
                if at >= head && at < head + streamed {
                    dx.stream(here.dx)
                } else {
                    dx.store(here.dx)
                }
                at += V::LANES;
            }
        }
    }
}
