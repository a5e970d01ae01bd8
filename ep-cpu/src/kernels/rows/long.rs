//! Rows too long for the first-level cache, in blocks that fit it.
//!
//! The first pass takes of each block its maximum and the sum of its exponentials, each block with a shift of its
//! own; the sums are added up in f64. The second pass computes the exponentials again, which costs less than
//! storing and reading them. Blocks are the same whatever the number of threads, and so is their order.

use super::exp::{Last, Shift};
use super::vector::{Body, Compute, Vector, dispatch};
use super::{LINE, Matrix, UNROLL, join, maximum, prefetch_line};
use crate::isa::Isa;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};

/// Elements of a block: two of them and more fit a first-level cache.
const BLOCK: usize = 2048;

/// Exponentials that a lane adds up one after the other: of equal ones each sum may be rounded the same way.
const ADDED: usize = 32;

/// The exponentials of some elements: their sum is `sum * exp(base)`.
#[derive(Clone, Copy)]
struct Partial<A> {
    max: A,
    base: f64,
    sum: f64,
}

impl<A: Real> Partial<A> {
    const NONE: Self = Self { max: A::NEG_INFINITY, base: f64::NEG_INFINITY, sum: 0.0 };

    fn join(self, other: Self) -> Self {
        let max = if other.max > self.max { other.max } else { self.max };
        let [low, high] = if other.base > self.base { [self, other] } else { [other, self] };
        let scale = if low.base == high.base { 1.0 } else { libm::exp(low.base - high.base) };
        Self { max, base: high.base, sum: low.sum * scale + high.sum }
    }
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
}

/// Softmax or log-softmax of a matrix of long rows, over threads.
///
/// # Errors
/// `OutOfMemory` if there is none for the sums of a row that several threads share; those of `par`.
///
/// # Safety
/// The matrix is as [`Matrix`] says.
pub(super) unsafe fn run<S, D, A>(isa: Isa, par: &dyn Parallel, m: &Matrix<S, D>) -> Result<()>
where
    S: Cell<A>,
    D: Cell<A>,
    A: Compute,
{
    let (src, dst) = (Shared::new(m.src.cast_mut()), Shared::new(m.dst));
    let &Matrix { cols, stream, log, .. } = m;
    let summed = |row: usize, from: usize, len: usize| {
        // SAFETY: the elements are of one row of the matrix.
        let src = unsafe { src.get().add(row * cols + from) };
        dispatch::<A, _>(isa, Sum { src: src.cast_const(), len })
    };
    let written = |row: usize, from: usize, len: usize, finish: Finish<A>| {
        let at = row * cols + from;
        // SAFETY: as above.
        let (src, dst) = unsafe { (src.get().add(at).cast_const(), dst.get().add(at)) };
        dispatch::<A, _>(isa, Write { src, dst, len, stream, log, finish });
    };
    if m.rows >= par.threads() || cols < 4 * BLOCK {
        return for_ranges(par, m.rows, cols.saturating_mul(super::EXP_BYTES), 1, |rows| {
            for row in rows {
                let blocks = (0..cols).step_by(BLOCK);
                let all = blocks
                    .fold(Partial::NONE, |all, from| all.join(summed(row, from, BLOCK.min(cols - from))));
                written(row, 0, cols, Finish::new(log, all));
            }
            Ok(())
        });
    }
    let count = cols.div_ceil(BLOCK);
    let mut partials = Vec::new();
    partials.try_reserve_exact(count).map_err(|_| {
        Error::out_of_memory(format!("softmax needs room for the sums of {count} parts of a row of {cols}"))
    })?;
    partials.resize(count, Partial::NONE);
    let bytes = BLOCK * super::EXP_BYTES;
    for row in 0..m.rows {
        let shared = Shared::new(partials.as_mut_ptr());
        for_ranges(par, count, bytes, 1, |blocks| {
            for block in blocks {
                let from = block * BLOCK;
                // SAFETY: the room has `count` blocks, and this one is only this task's.
                unsafe { *shared.get().add(block) = summed(row, from, BLOCK.min(cols - from)) };
            }
            Ok(())
        })?;
        let finish = Finish::new(log, partials.iter().fold(Partial::NONE, |all, &part| all.join(part)));
        for_ranges(par, count, bytes, 1, |blocks| {
            let from = blocks.start * BLOCK;
            written(row, from, (blocks.len() * BLOCK).min(cols - from), finish);
            Ok(())
        })?;
    }
    Ok(())
}

/// The exponentials of one block. Made only for `len` readable elements.
struct Sum<S> {
    src: *const S,
    len: usize,
}

impl<S: Cell<A>, A: Compute> Body<A> for Sum<S> {
    type Out = Partial<A>;

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) -> Partial<A> {
        let Self { src, len } = self;
        let mut sum = [V::splat(A::ZERO); UNROLL];
        let step = UNROLL * V::LANES;
        let whole = len - len % step;
        // SAFETY: all is within the block; what is fetched beyond need not exist.
        unsafe {
            let max = maximum::<V, S>(src, len).fold(V::max).first();
            let shift = Shift::of(max);
            let shifted = shift.splat::<V>();
            for from in (0..whole).step_by(ADDED * step) {
                let mut part = [V::splat(A::ZERO); UNROLL];
                for at in (from..whole.min(from + ADDED * step)).step_by(step) {
                    for (i, part) in part.iter_mut().enumerate() {
                        let at = at + i * V::LANES;
                        prefetch_line(src.wrapping_add(BLOCK + at));
                        *part = part.add(shifted.exp(V::load(src.add(at))));
                    }
                }
                for (sum, part) in sum.iter_mut().zip(part) {
                    *sum = sum.add(part);
                }
            }
            for at in (whole..len).step_by(V::LANES) {
                let x = V::load_part(src.add(at), V::LANES.min(len - at), A::NEG_INFINITY);
                sum[0] = sum[0].add(shifted.exp(x));
            }
            Partial { max, base: shift.total(), sum: join(sum, V::add).fold(V::add).first().to_f64() }
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
                    prefetch_line(src.wrapping_add(BLOCK / 4 + at));
                    let y = whole.of(V::load(src.add(at)));
                    if stream { y.stream(dst.add(at)) } else { y.store(dst.add(at)) }
                }
            }
            whole.short::<S, D>(src.add(end), dst.add(end), len - end);
        }
        if stream {
            stream::fence();
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
