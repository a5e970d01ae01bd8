//! Rows too long for the first-level cache, in blocks that fit it.
//!
//! The first pass takes of each block its maximum and the sum of its exponentials, each block with a shift of its
//! own; the sums are added up in f64. Where the destination can hold the exponentials, and a cache the destination, they are
//! kept there, and the second pass scales them. Else it computes them again, which costs less than storing them in memory and
//! reading them; the bits are the same. Blocks are the same whatever the number of threads, and so is their order.

use super::exp::{Last, Shift};
use super::vector::{Body, Compute, Vector, dispatch};
use super::{ADDED, LINE, Matrix, UNROLL, join, maximum, prefetch_line};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::ops::Range;
use std::ptr;

/// Elements of a block: two of them and more fit a first-level cache.
const BLOCK: usize = 2048;

/// How far below the largest element of a row a block may reach whose exponentials are kept, if its shift is not the row's:
/// scaled, they and the results are normal numbers.
const KEPT_BELOW: f64 = 40.0;

/// The exponentials of some elements: their sum is `sum * exp(base)`.
#[derive(Clone, Copy)]
struct Partial<A> {
    max: A,
    /// `-inf` where exponentials are not kept.
    min: A,
    base: f64,
    sum: f64,
}

impl<A: Real> Partial<A> {
    const NONE: Self = Self { max: A::NEG_INFINITY, min: A::INFINITY, base: f64::NEG_INFINITY, sum: 0.0 };

    fn join(self, other: Self) -> Self {
        let max = if other.max > self.max { other.max } else { self.max };
        let min = if other.min < self.min { other.min } else { self.min };
        let [low, high] = if other.base > self.base { [self, other] } else { [other, self] };
        let scale = if low.base == high.base { 1.0 } else { libm::exp(low.base - high.base) };
        Self { max, min, base: high.base, sum: low.sum * scale + high.sum }
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

    /// What finishes the exponentials of this block, if that gives what computing them again would.
    fn of_kept(&self, block: &Partial<A>) -> Option<Last<A>> {
        let power = Shift::of(block.max).power_to(&self.shift)?;
        let below = self.max.to_f64() - block.min.to_f64();
        let same = power == 1.0 || below <= KEPT_BELOW;
        let factor = A::from_f64(self.last.factor.to_f64() * power);
        // Not of NaN, whose sign and digits show how they were multiplied.
        // With another shift than the row's none is below the least, as they reach at most `KEPT_BELOW` down.
        (same && factor >= A::ZERO).then_some(Last { factor, ..self.last })
    }
}

/// Softmax or log-softmax of a matrix of long rows, over threads.
///
/// # Errors
/// `OutOfMemory` if there is none for the sums of a row that several threads share, or of one whose exponentials are kept; those
/// of `par`.
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
    let apart = m.src.addr() != m.dst.addr();
    let keep = !log && !stream && apart && D::DTYPE == A::DTYPE && is_fused(isa);
    let part = |blocks: &Range<usize>| blocks.start * BLOCK..(blocks.end * BLOCK).min(cols);
    let sum = |row: usize, block: usize| {
        let part = part(&(block..block + 1));
        let at = row * cols + part.start;
        // SAFETY: the elements are of one row of the matrix.
        let (src, dst) = unsafe { (src.get().add(at).cast_const(), dst.get().add(at)) };
        let len = part.len();
        if keep {
            return dispatch::<A, _>(isa, Sum::<S, A, true> { src, kept: dst.cast(), len });
        }
        dispatch::<A, _>(isa, Sum::<S, A, false> { src, kept: ptr::null_mut(), len })
    };
    let write = |row: usize, part: Range<usize>, finish: Finish<A>| {
        let at = row * cols + part.start;
        // SAFETY: as above.
        let (src, dst) = unsafe { (src.get().add(at).cast_const(), dst.get().add(at)) };
        dispatch::<A, _>(isa, Write { src, dst, len: part.len(), stream, log, finish });
    };
    let finish = |row: usize, blocks: Range<usize>, partials: &[Partial<A>], finish: Finish<A>| {
        if !keep {
            return write(row, part(&blocks), finish);
        }
        for block in blocks {
            let part = part(&(block..block + 1));
            let Some(last) = finish.of_kept(&partials[block]) else {
                write(row, part, finish);
                continue;
            };
            // SAFETY: as above.
            let at = unsafe { dst.get().add(row * cols + part.start) }.cast();
            dispatch::<A, _>(isa, Scale { at, len: part.len(), last });
        }
    };
    let count = cols.div_ceil(BLOCK);
    if m.rows >= par.threads() || cols < 4 * BLOCK {
        return for_ranges(par, m.rows, cols.saturating_mul(super::EXP_BYTES), 1, |rows| {
            let mut partials = if keep { room(count, cols)? } else { Vec::new() };
            for row in rows {
                for (block, partial) in partials.iter_mut().enumerate() {
                    *partial = sum(row, block);
                }
                let all = if keep {
                    joined(&partials)
                } else {
                    (0..count).fold(Partial::NONE, |all, block| all.join(sum(row, block)))
                };
                finish(row, 0..count, &partials, Finish::new(log, all));
            }
            Ok(())
        });
    }
    let mut partials = room(count, cols)?;
    let bytes = BLOCK * super::EXP_BYTES;
    for row in 0..m.rows {
        let shared = Shared::new(partials.as_mut_ptr());
        for_ranges(par, count, bytes, 1, |blocks| {
            for block in blocks {
                // SAFETY: the room has `count` blocks, and this one is only this task's.
                unsafe { *shared.get().add(block) = sum(row, block) };
            }
            Ok(())
        })?;
        let all = Finish::new(log, joined(&partials));
        for_ranges(par, count, bytes, 1, |blocks| {
            finish(row, blocks, &partials, all);
            Ok(())
        })?;
    }
    Ok(())
}

/// Whether exponentials of the same element with different shifts differ by a power of two alone. Where a product is rounded before
/// it is added, it may be half-way between two integers, of which the shift decides.
fn is_fused(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    return isa.level() != Level::Baseline;
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        false
    }
}

/// Room for the sums of the `count` blocks of a row.
fn room<A: Real>(count: usize, cols: usize) -> Result<Vec<Partial<A>>> {
    let mut partials = Vec::new();
    partials.try_reserve_exact(count).map_err(|_| {
        Error::out_of_memory(format!("softmax needs room for the sums of {count} parts of a row of {cols}"))
    })?;
    partials.resize(count, Partial::NONE);
    Ok(partials)
}

/// The exponentials of a row.
fn joined<A: Real>(partials: &[Partial<A>]) -> Partial<A> {
    partials.iter().fold(Partial::NONE, |all, &part| all.join(part))
}

/// The exponentials of one block, which go to `kept` if they are to `KEEP`. Made only for `len` readable elements, and in that
/// case as many writable ones apart from them.
struct Sum<S, A, const KEEP: bool> {
    src: *const S,
    kept: *mut A,
    len: usize,
}

impl<S: Cell<A>, A: Compute, const KEEP: bool> Body<A> for Sum<S, A, KEEP> {
    type Out = Partial<A>;

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) -> Partial<A> {
        let Self { src, kept, len } = self;
        let mut sum = [V::splat(A::ZERO); UNROLL];
        let step = UNROLL * V::LANES;
        let whole = len - len % step;
        // SAFETY: all is within the block; what is fetched beyond need not exist.
        unsafe {
            let (max, min) = if KEEP {
                extremes::<V, S>(src, len)
            } else {
                (maximum::<V, S>(src, len).fold(V::max).first(), A::NEG_INFINITY)
            };
            let shift = Shift::of(max);
            let shifted = shift.splat::<V>();
            for from in (0..whole).step_by(ADDED * step) {
                let mut part = [V::splat(A::ZERO); UNROLL];
                for at in (from..whole.min(from + ADDED * step)).step_by(step) {
                    let mut x = [V::splat(A::ZERO); UNROLL];
                    for (i, x) in x.iter_mut().enumerate() {
                        let at = at + i * V::LANES;
                        prefetch_line(src.wrapping_add(BLOCK + at));
                        *x = V::load(src.add(at));
                    }
                    for (i, e) in shifted.exp_of(x).into_iter().enumerate() {
                        part[i] = part[i].add(e);
                        if KEEP {
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
                let e = shifted.exp(x);
                sum[0] = sum[0].add(e);
                if KEEP {
                    e.store_part(kept.add(at), len);
                }
            }
            Partial { max, min, base: shift.total(), sum: join(sum, V::add).fold(V::add).first().to_f64() }
        }
    }
}

/// The largest element and the smallest, passing over NaN.
///
/// # Safety
/// `src` is readable for `len` elements.
#[inline(always)]
unsafe fn extremes<V: Vector, S: Cell<V::Lane>>(src: *const S, len: usize) -> (V::Lane, V::Lane) {
    let (lowest, highest) = (V::Lane::NEG_INFINITY, V::Lane::INFINITY);
    let (mut max, mut min) = ([V::splat(lowest); UNROLL], [V::splat(highest); UNROLL]);
    let step = UNROLL * V::LANES;
    let whole = len - len % step;
    // SAFETY: all is within the caller's elements.
    unsafe {
        for at in (0..whole).step_by(step) {
            for i in 0..UNROLL {
                let x = V::load(src.add(at + i * V::LANES));
                (max[i], min[i]) = (x.max(max[i]), x.min(min[i]));
            }
        }
        for at in (whole..len).step_by(V::LANES) {
            let n = V::LANES.min(len - at);
            max[0] = V::load_part(src.add(at), n, lowest).max(max[0]);
            min[0] = V::load_part(src.add(at), n, highest).min(min[0]);
        }
    }
    (join(max, V::max).fold(V::max).first(), join(min, V::min).fold(V::min).first())
}

/// Scales what has been kept of a block. Made only for `len` readable and writable elements.
struct Scale<A> {
    at: *mut A,
    len: usize,
    last: Last<A>,
}

impl<A: Compute> Body<A> for Scale<A> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { at, len, last } = self;
        let last = last.splat::<V>();
        let whole = len - len % V::LANES;
        // SAFETY: all is within the block.
        unsafe {
            for from in (0..whole).step_by(V::LANES) {
                last.apply(V::load(at.add(from))).store(at.add(from));
            }
            let rest = V::load_part(at.add(whole), len - whole, A::ZERO);
            last.apply(rest).store_part(at.add(whole), len - whole);
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
