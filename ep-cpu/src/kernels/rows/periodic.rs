//! Columns a few elements apart: vectors run over the elements as they lie, so that a lane holds another column from
//! one vector to the next. What belongs to the columns is kept in the order of the elements, a vector longer than
//! they are, and read from where a vector starts. Sums and maxima go round several accumulators, so many that each
//! always sees the same columns.

use super::exp::{Last, Shift};
use super::strips::{STRIP_BYTES, with_scratch};
use super::vector::{Body, Compute, MAX_LANES, Vector, dispatch};
use super::{ADDED, EXP_BYTES, LINE, Matrix, UNROLL, lanes, prefetch_line};
use crate::isa::Isa;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::Cell;
use crate::kernels::stream;
use ep_core::Result;
use ep_core::parallel::Parallel;

/// The fewest elements of a matrix `[cols, inner]` for which what is done once for it does not weigh too much.
const FEWEST: usize = 128;
/// Whether matrices `[cols, inner]` are for [`run`].
pub(super) fn suits<A>(cols: usize, inner: usize) -> bool {
    let fits = STRIP_BYTES / size_of::<A>();
    inner < MAX_LANES && (FEWEST.div_ceil(inner)..=fits / inner - 1).contains(&cols)
}

/// Softmax or log-softmax over the columns of a matrix `[rows, cols, inner]` that [`suits`].
///
/// # Errors
/// `OutOfMemory` if there is none for intermediate values; those of `par`.
///
/// # Safety
/// The matrix is as [`Matrix`] says, with `inner` elements for each of its own.
pub(super) unsafe fn run<S, D, A>(isa: Isa, par: &dyn Parallel, m: &Matrix<S, D>, inner: usize) -> Result<()>
where
    S: Cell<A>,
    D: Cell<A>,
    A: Compute,
{
    let len = m.cols * inner;
    let (src, dst, stream, log) = (Shared::new(m.src.cast_mut()), Shared::new(m.dst), m.stream, m.log);
    for_ranges(par, m.rows, len * EXP_BYTES, 1, |rows| {
        with_scratch((len + MAX_LANES) * size_of::<A>(), |scratch| {
            let at = rows.start * len;
            // SAFETY: these rows are inside the matrix.
            let (src, dst) = unsafe { (src.get().add(at).cast_const(), dst.get().add(at)) };
            let exps = scratch.cast::<A>();
            dispatch::<A, _>(isa, Part { rows: rows.len(), len, inner, src, dst, stream, log, exps });
        })
    })
}

/// Some rows. Made only where `src` and `dst` are valid for them, and `exps` for a row and a vector.
struct Part<S, D, A> {
    rows: usize,
    len: usize,
    inner: usize,
    src: *const S,
    dst: *mut D,
    stream: bool,
    log: bool,
    exps: *mut A,
}

/// A value of each column, repeated to a vector past the last one.
type Cycle<A> = [A; 2 * MAX_LANES];

impl<S: Cell<A>, D: Cell<A>, A: Compute> Body<A> for Part<S, D, A> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let inner = self.inner;
        // `V::LANES` is a power of two, so that after `period` vectors the first lane has the first column again.
        let period = inner >> inner.trailing_zeros().min(V::LANES.trailing_zeros());
        let accumulators = period * UNROLL.div_ceil(period);
        for row in 0..self.rows {
            // SAFETY: the row is inside the matrix. It is read for the last time before it is written.
            unsafe {
                let (src, dst) = (self.src.add(row * self.len), self.dst.add(row * self.len));
                let mut max = self.maxima::<V>(src, accumulators, period);
                let mut shifts = [[A::ZERO; 2 * MAX_LANES]; 3];
                for i in 0..inner {
                    [shifts[0][i], shifts[1][i], shifts[2][i]] = Shift::of(max[i]).parts();
                }
                shifts.iter_mut().chain([&mut max]).for_each(|cycle| self.repeat::<V>(cycle));
                let sums = self.sums::<V>(src, &max, &shifts, accumulators, period);
                let mut lasts = [[A::ZERO; 2 * MAX_LANES]; 3];
                for i in 0..inner {
                    let shift = Shift::from_parts(shifts.map(|s| s[i]));
                    let last = Last::of(self.log, &shift, A::from_f64(sums[i]), max[i]);
                    [lasts[0][i], lasts[1][i], lasts[2][i]] = [last.factor, last.addend, last.least];
                }
                lasts.iter_mut().for_each(|cycle| self.repeat::<V>(cycle));
                self.write::<V>(dst, &lasts);
            }
        }
        if self.stream {
            stream::fence();
        }
    }
}

impl<S: Cell<A>, D: Cell<A>, A: Compute> Part<S, D, A> {
    #[inline(always)]
    unsafe fn maxima<V: Vector<Lane = A>>(
        &self,
        src: *const S,
        accumulators: usize,
        period: usize,
    ) -> Cycle<A> {
        let mut each = [V::splat(A::NEG_INFINITY); MAX_LANES];
        let round = accumulators * V::LANES;
        for first in (0..self.len).step_by(round) {
            for (i, max) in each[..accumulators].iter_mut().enumerate() {
                let at = first + i * V::LANES;
                // SAFETY: all is within the row.
                *max = unsafe { self.element::<V>(src, at) }.max(*max);
            }
        }
        let mut max = [A::NEG_INFINITY; 2 * MAX_LANES];
        self.each_column(each, accumulators, period, V::max, |col, x| {
            max[col] = if x > max[col] { x } else { max[col] };
        });
        max
    }

    /// Joins the accumulators by `f`, and then calls `g` with the column and the value of each lane.
    #[inline(always)]
    fn each_column<V: Vector<Lane = A>>(
        &self,
        mut each: [V; MAX_LANES],
        accumulators: usize,
        period: usize,
        f: impl Fn(V, V) -> V,
        mut g: impl FnMut(usize, A),
    ) {
        for from in (period..accumulators).step_by(period) {
            for i in 0..period {
                each[i] = f(each[i], each[from + i]);
            }
        }
        let mut col = 0;
        for each in &each[..period] {
            for x in &lanes(*each)[..V::LANES] {
                g(col, *x);
                col = if col + 1 < self.inner { col + 1 } else { 0 };
            }
        }
    }

    /// Continues what each column has to a vector past the last one.
    #[inline(always)]
    fn repeat<V: Vector<Lane = A>>(&self, cycle: &mut Cycle<A>) {
        for i in self.inner..self.inner + V::LANES {
            cycle[i] = cycle[i - self.inner];
        }
    }

    /// The vector at an element, with `-inf` past the end of the row.
    #[inline(always)]
    unsafe fn element<V: Vector<Lane = A>>(&self, src: *const S, at: usize) -> V {
        // SAFETY: no more is read than the row has.
        unsafe {
            if at + V::LANES <= self.len {
                V::load(src.add(at))
            } else if at < self.len {
                V::load_part(src.add(at), self.len - at, A::NEG_INFINITY)
            } else {
                V::splat(A::NEG_INFINITY)
            }
        }
    }

    /// Adds up the exponentials of each column, which are kept, or for a logarithm the differences to the maximum.
    #[inline(always)]
    unsafe fn sums<V: Vector<Lane = A>>(
        &self,
        src: *const S,
        max: &Cycle<A>,
        shifts: &[Cycle<A>; 3],
        accumulators: usize,
        period: usize,
    ) -> [f64; MAX_LANES] {
        let mut sums = [0.0; MAX_LANES];
        let step = V::LANES % self.inner;
        let mut col = 0;
        let round = accumulators * V::LANES;
        for block in (0..self.len).step_by(ADDED * round) {
            let mut each = [V::splat(A::ZERO); MAX_LANES];
            for first in (block..self.len.min(block + ADDED * round)).step_by(round) {
                for (i, sum) in each[..accumulators].iter_mut().enumerate() {
                    let at = first + i * V::LANES;
                    // SAFETY: the row is as `run` says, and its exponentials have room for a vector more.
                    unsafe {
                        prefetch_line(src.wrapping_add(self.len + at));
                        let [centre, offset, lowest] = [
                            V::load(shifts[0].as_ptr().add(col)),
                            V::load(shifts[1].as_ptr().add(col)),
                            V::load(shifts[2].as_ptr().add(col)),
                        ];
                        let x = self.element::<V>(src, at);
                        let e = Shift::from_parts([centre, offset, lowest]).exp(x);
                        *sum = sum.add(e);
                        if at < self.len {
                            let max = V::load(max.as_ptr().add(col));
                            if self.log { x.sub(max) } else { e }.store(self.exps.add(at));
                        }
                    }
                    col = if col + step < self.inner { col + step } else { col + step - self.inner };
                }
            }
            self.each_column(each, accumulators, period, V::add, |col, x| sums[col] += x.to_f64());
        }
        sums
    }

    #[inline(always)]
    unsafe fn write<V: Vector<Lane = A>>(&self, dst: *mut D, lasts: &[Cycle<A>; 3]) {
        let head = if self.stream { dst.addr().wrapping_neg() % LINE / size_of::<D>() } else { 0 };
        let head = head.min(self.len);
        // Streamed elements come in whole lines.
        let line = V::LANES.max(LINE / size_of::<D>());
        let streamed = if self.stream { head + (self.len - head) / line * line } else { head };
        let (mut at, mut col) = (0, 0);
        while at < self.len {
            let n = if at < head { (head - at).min(V::LANES) } else { (self.len - at).min(V::LANES) };
            // SAFETY: the row is as `run` says, and its exponentials have room for a vector more.
            unsafe {
                let last = Last {
                    factor: V::load(lasts[0].as_ptr().add(col)),
                    addend: V::load(lasts[1].as_ptr().add(col)),
                    least: V::load(lasts[2].as_ptr().add(col)),
                };
                let y = last.apply(V::load(self.exps.add(at)));
                if n < V::LANES {
                    y.store_part(dst.add(at), n);
                } else if at >= head && at < streamed {
                    y.stream(dst.add(at));
                } else {
                    y.store(dst.add(at));
                }
            }
            at += n;
            col = (col + n) % self.inner;
        }
    }
}
