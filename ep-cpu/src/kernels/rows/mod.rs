//! The engine behind the softmax family: softmax and log-softmax, forward and backward, over the columns of a
//! `[rows, cols, inner]` matrix.
//!
//! How a matrix is walked depends on its shape: [`short`], [`medium`] and [`long`] rows of adjacent elements,
//! and [`strips`] of columns where `inner` is more than 1. What goes past the cache does so by whole lines, also where rows end within
//! them (`seam`). A NaN is passed over by a maximum and comes back through
//! the sum, as does the `inf - inf` of a row with `+inf` or of nothing but `-inf`: such rows are NaN throughout.

mod backward;
mod backward_rows;
mod backward_strips;
#[cfg(test)]
mod backward_tests;
mod exp;
mod long;
mod long_block;
mod medium;
mod norm;
mod periodic;
mod seam;
mod short;
mod staged;
mod strips;
#[cfg(test)]
mod tests;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::isa::Isa;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream;
pub(super) use backward::table as backward_table;
pub use backward::{BackwardArgs, BackwardFn};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use half::{bf16, f16};
pub(super) use norm::table as norm_table;
pub use norm::{NormArgs, NormFn};
use std::mem::MaybeUninit;
use vector::{Body, Compute, MAX_LANES, Vector, dispatch};

/// Arguments of a [`RowsFn`].
#[derive(Clone, Copy, Debug)]
pub struct RowsArgs {
    /// How many matrices `[cols, inner]`.
    pub rows: usize,
    /// The elements that one sum goes over.
    pub cols: usize,
    /// Elements from one column to the next: 1 where a row's elements are adjacent.
    pub inner: usize,
    /// The dense source, aligned to its elements.
    pub src: *const u8,
    /// The dense destination, aligned to its elements. May be the source where elements of both have one size.
    pub dst: *mut u8,
}

/// Softmax or log-softmax over the columns.
///
/// Computes in f64 if either dtype is f64, else in f32, and rounds once. `exp(x - max)` counts as zero below
/// the smallest normal number of that type. In units of the last place of the type computed in, a softmax is within
/// 4, whatever the values, and a log-softmax within 4 of the largest of 1, `x - max`, the logarithm of the sum and
/// the result: up to 1.6 for an exponential, as much for their sum, 0.8 for its reciprocal and the product.
/// A sum of many terms, all equal, may add one to that. A softmax that is stored as bf16 may be 2^-14 of itself off before it
/// is rounded. The result does not depend on the number of threads.
///
/// # Errors
/// `InvalidArgument` if the matrix has more elements than an address space holds; `OutOfMemory` if there is
/// none for intermediate values; those of `par`.
///
/// # Safety
/// `src` is readable and `dst` writable for `rows * cols * inner` elements, with no other access until this
/// returns. They do not overlap, unless their elements have one size and the addresses are equal.
pub type RowsFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &RowsArgs) -> Result<()>;

/// Source and destination dtypes and the kernel for them.
pub(super) type Row<F> = (DType, DType, F);

/// All pairs of floating-point dtypes.
pub(super) const fn table<const LOG: bool>() -> [Row<RowsFn>; 16] {
    use DType as D;
    [
        (D::F16, D::F16, run::<f16, f16, f32, LOG>),
        (D::F16, D::BF16, staged::rows::<f16, bf16, f32, LOG>),
        (D::F16, D::F32, run::<f16, f32, f32, LOG>),
        (D::F16, D::F64, staged::rows::<f16, f64, f64, LOG>),
        (D::BF16, D::F16, staged::rows::<bf16, f16, f32, LOG>),
        (D::BF16, D::BF16, run::<bf16, bf16, f32, LOG>),
        (D::BF16, D::F32, run::<bf16, f32, f32, LOG>),
        (D::BF16, D::F64, staged::rows::<bf16, f64, f64, LOG>),
        (D::F32, D::F16, run::<f32, f16, f32, LOG>),
        (D::F32, D::BF16, run::<f32, bf16, f32, LOG>),
        (D::F32, D::F32, run::<f32, f32, f32, LOG>),
        (D::F32, D::F64, staged::rows::<f32, f64, f64, LOG>),
        (D::F64, D::F16, staged::rows::<f64, f16, f64, LOG>),
        (D::F64, D::BF16, staged::rows::<f64, bf16, f64, LOG>),
        (D::F64, D::F32, staged::rows::<f64, f32, f64, LOG>),
        (D::F64, D::F64, run::<f64, f64, f64, LOG>),
    ]
}

/// Vectors worked on at once, which hides the latency of additions.
const UNROLL: usize = 4;
/// Exponentials that a lane adds up one after the other: of equal ones each sum may be rounded the same way.
const ADDED: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes from an element to what is fetched into the second-level cache while rows are read from memory.
const FAR_BYTES: usize = 8 << 10;
/// Bytes of a row, in the type computed in, above which it waits for memory rather than computes.
const WAITS_BYTES: usize = 512;
/// What an exponential costs, in bytes of traffic.
const EXP_BYTES: usize = 16;
/// A matrix `[rows, cols]` and where its result goes: both are valid for their elements, and either apart, or one.
struct Matrix<S, D> {
    rows: usize,
    cols: usize,
    src: *const S,
    dst: *mut D,
    /// Whether the result goes past the cache.
    stream: bool,
    /// Whether it is the logarithm.
    log: bool,
}

/// The number of elements of a matrix, if that many of `size` bytes are possible.
fn elements(rows: usize, cols: usize, inner: usize, size: usize) -> Result<usize> {
    let count = rows.checked_mul(cols).and_then(|n| n.checked_mul(inner));
    match count {
        Some(n) if n.checked_mul(size).is_some_and(|bytes| bytes <= isize::MAX as usize) => Ok(n),
        _ => Err(too_many(rows, cols, inner)),
    }
}

#[cold]
fn too_many(rows: usize, cols: usize, inner: usize) -> Error {
    Error::invalid(format!("softmax of [{rows}, {cols}, {inner}] elements: no address space holds that"))
}

unsafe fn run<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &RowsArgs,
) -> Result<()> {
    let &RowsArgs { rows, cols, inner, .. } = args;
    let count = elements(rows, cols, inner, size_of::<S>().max(size_of::<D>()))?;
    if count == 0 {
        return Ok(());
    }
    let written = count * size_of::<D>();
    let total = written.saturating_add(count * size_of::<S>());
    // Never past the cache where results replace what has just been read.
    let waits = inner == 1 && cols.saturating_mul(size_of::<A>()) > WAITS_BYTES;
    let stream = args.src != args.dst && stream::pays_for_rows(par, waits, written, total);
    // SAFETY: the caller's promise, and the sizes are as counted.
    unsafe { forward::<S, D, A>(isa, par, args, LOG, count, stream) }
}

/// [`run`] of `count` elements, not none, past the cache or not.
///
/// # Safety
/// As for [`RowsFn`].
unsafe fn forward<S: Cell<A>, D: Cell<A>, A: Compute>(
    isa: Isa,
    par: &dyn Parallel,
    args: &RowsArgs,
    log: bool,
    count: usize,
    stream: bool,
) -> Result<()> {
    let &RowsArgs { rows, cols, inner, .. } = args;
    let (src, dst) = (args.src.cast::<S>(), args.dst.cast::<D>());
    // SAFETY: the caller's promise.
    unsafe {
        if inner > 1 && cols > 1 {
            return strips::run::<S, D, A>(isa, par, &Matrix { rows, cols, src, dst, stream, log }, inner);
        }
        let m = Matrix { rows: if cols > 1 { rows } else { count }, cols, src, dst, stream, log };
        if cols.saturating_mul(size_of::<A>()) > medium::MEDIUM_BYTES {
            return long::run::<S, D, A>(isa, par, &m);
        }
        let (src, dst, asks) = (Shared::new(src.cast_mut()), Shared::new(dst), stream::suits_intel());
        for_ranges(par, m.rows, cols * EXP_BYTES, MAX_LANES, |rows| {
            let at = rows.start * cols;
            // The rows of this range are only this task's to write.
            let (src, dst) = (src.get().add(at).cast_const(), dst.get().add(at));
            let part = Matrix { rows: rows.len(), cols, src, dst, stream, log };
            dispatch::<A, _>(isa, Rows { part, asks });
            Ok(())
        })
    }
}

/// Some rows, not none, that are not long.
struct Rows<S, D> {
    part: Matrix<S, D>,
    /// Whether short rows are asked for before they are read and written. Cores that are not Intel's fetch them by themselves, and take a tenth to
    /// a third longer if they are asked to.
    asks: bool,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute> Body<A> for Rows<S, D> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        // SAFETY: the matrix is what the caller of `run` promised.
        unsafe {
            let Self { part, asks } = &self;
            if part.cols == 1 {
                single::<V, S, D>(part);
            } else if part.cols * size_of::<A>() <= short::most::<V>() {
                short::run::<V, S, D>(part, *asks);
            } else {
                medium::run::<V, S, D>(part);
            }
        }
        if self.part.stream {
            stream::fence();
        }
    }
}

/// Rows of one column: certain, unless the element is none.
///
/// # Safety
/// The matrix is as [`Matrix`] says.
#[inline(always)]
unsafe fn single<V, S, D>(m: &Matrix<S, D>)
where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let certain = V::splat(if m.log { V::Lane::ZERO } else { V::Lane::ONE });
    for at in (0..m.rows).step_by(V::LANES) {
        let len = V::LANES.min(m.rows - at);
        // SAFETY: all is within the matrix.
        unsafe {
            let x = V::load_part(m.src.add(at), len, V::Lane::ZERO);
            // 0, or NaN for what is not finite.
            certain.add(x.sub(x)).store_part(m.dst.add(at), len);
        }
    }
}

/// The largest elements, lane by lane, passing over NaN; `-inf` if there are none.
///
/// # Safety
/// `src` is readable for `len` elements.
#[inline(always)]
unsafe fn maximum<V: Vector, S: Cell<V::Lane>>(src: *const S, len: usize) -> V {
    let lowest = V::Lane::NEG_INFINITY;
    let mut max = [V::splat(lowest); UNROLL];
    let step = UNROLL * V::LANES;
    let whole = len - len % step;
    // SAFETY: all is within the caller's elements.
    unsafe {
        for at in (0..whole).step_by(step) {
            for (i, max) in max.iter_mut().enumerate() {
                *max = V::load(src.add(at + i * V::LANES)).max(*max);
            }
        }
        for at in (whole..len).step_by(V::LANES) {
            max[0] = V::load_part(src.add(at), V::LANES.min(len - at), lowest).max(max[0]);
        }
    }
    join(max, V::max)
}

/// `f` over the accumulators of an unrolled loop. Not an iterator's `reduce`, which stays out of line and then
/// lacks the level's features; so it goes for every closure over vectors.
#[inline(always)]
fn join<V: Vector>([a, b, c, d]: [V; UNROLL], f: impl Fn(V, V) -> V) -> V {
    f(f(a, b), f(c, d))
}

/// Fetches the line of an address, which need not exist, into the first-level cache.
#[inline(always)]
fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: fetching does nothing where there is no memory, and SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches the line of an address, which need not exist, into the second-level cache.
#[inline(always)]
fn prefetch_line_far<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: fetching does nothing where there is no memory, and SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches the lines of `len` elements into the second-level cache.
#[inline(always)]
fn prefetch_far<T>(at: *const T, len: usize) {
    for byte in (0..len * size_of::<T>()).step_by(LINE) {
        prefetch_line_far(at.cast::<u8>().wrapping_add(byte));
    }
}

/// Fetches the lines of `len` elements that are [`FAR_BYTES`] further on.
#[inline(always)]
fn prefetch_ahead<T>(at: *const T, len: usize) {
    prefetch_far(at.wrapping_byte_add(FAR_BYTES), len);
}

/// The lanes of a vector, and zeros.
#[inline(always)]
fn lanes<V: Vector>(x: V) -> [V::Lane; MAX_LANES] {
    let mut lanes = [V::Lane::ZERO; MAX_LANES];
    // SAFETY: the array holds a vector.
    unsafe { x.store(lanes.as_mut_ptr()) };
    lanes
}

/// Fetches the lines of `len` elements.
#[inline(always)]
fn prefetch<T>(at: *const T, len: usize) {
    for byte in (0..len * size_of::<T>()).step_by(LINE) {
        prefetch_line(at.cast::<u8>().wrapping_add(byte));
    }
}

/// Fetches the lines of `len` elements to be written, so that the stores do not wait for them all at once.
#[inline(always)]
fn prefetch_to_write<T>(at: *mut T, len: usize) {
    for byte in (0..len * size_of::<T>()).step_by(LINE) {
        crate::kernels::raw::prefetch_to_write(at.cast::<u8>().wrapping_add(byte));
    }
}

/// Copies `len` elements from a cache to memory past it, by the level's vectors: by smaller ones it takes a third longer. [`stream::fence`]
/// comes later.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` elements; they do not overlap.
#[inline(always)]
unsafe fn flush<V: Vector, T>(dst: *mut T, src: *const T, len: usize) {
    let (dst, src, len) = (dst.cast::<u8>(), src.cast::<u8>(), len * size_of::<T>());
    let head = (dst.addr().wrapping_neg() % LINE).min(len);
    let end = head + (len - head) / LINE * LINE;
    // SAFETY: all is within the caller's elements, and streaming stores are to whole lines, which vectors divide. Loading what is
    // computed in changes no bits, and there it may lie anywhere.
    unsafe {
        dst.copy_from_nonoverlapping(src, head);
        #[cfg(not(target_arch = "x86_64"))]
        dst.add(head).copy_from_nonoverlapping(src.add(head), end - head);
        #[cfg(target_arch = "x86_64")]
        for at in (head..end).step_by(V::LANES * size_of::<V::Lane>()) {
            V::load(src.add(at).cast::<V::Lane>()).stream(dst.add(at).cast::<V::Lane>());
        }
        dst.add(end).copy_from_nonoverlapping(src.add(end), len - end);
    }
}

/// Room for intermediate values on the stack.
#[repr(C, align(64))]
struct Room<const BYTES: usize>(MaybeUninit<[u8; BYTES]>);

impl<const BYTES: usize> Room<BYTES> {
    #[inline(always)]
    fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    #[inline(always)]
    fn start<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }
}
