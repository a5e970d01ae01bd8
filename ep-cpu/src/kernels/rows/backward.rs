//! The backward passes over rows of adjacent elements: each row is read for its sum, and again, from a cache if it
//! fits one, for the result.
//!
//! Softmax: `dx = (dy - sum(y * dy)) * y`. Log-softmax: `dx = dy - exp(y) * sum(dy)`.

use super::backward_rows::{sum, write};
use super::exp::HalfExp;
use super::seam::Seam;
use super::vector::{Body, Compute, MAX_LANES, Vector, dispatch};
use super::{
    EXP_BYTES, LINE, Room, Row, WAITS_BYTES, backward_rows, backward_strips, elements, flush, lanes, staged,
};
use super::{prefetch, prefetch_to_write};
use crate::isa::Isa;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use half::{bf16, f16};

/// Arguments of a [`BackwardFn`].
#[derive(Clone, Copy, Debug)]
pub struct BackwardArgs {
    /// How many matrices `[cols, inner]`.
    pub rows: usize,
    /// The elements that one sum goes over.
    pub cols: usize,
    /// Elements from one column to the next: 1 where a row's elements are adjacent.
    pub inner: usize,
    /// What the forward pass gave; dense, aligned to its elements.
    pub y: *const u8,
    /// The gradient of that; dense, aligned to its elements.
    pub dy: *const u8,
    /// The gradient of the forward pass's source; dense, aligned to its elements. May be `y` or `dy` where elements
    /// of both have one size.
    pub dx: *mut u8,
}

/// The gradient of softmax or log-softmax over the columns.
///
/// Computes in f64 if either dtype is f64, else in f32, and rounds once. The result does not depend on the number
/// of threads.
///
/// # Errors
/// `InvalidArgument` if the matrix has more elements than an address space holds; `OutOfMemory` if there is
/// none for intermediate values; those of `par`.
///
/// # Safety
/// `y` and `dy` are readable and `dx` writable for `rows * cols * inner` elements, with no other access until
/// this returns. `dx` does not overlap the others, unless elements have one size and the addresses are equal.
pub type BackwardFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &BackwardArgs) -> Result<()>;

/// All pairs of a dtype of `y` and `dy` and one of `dx`, all floating-point.
pub(in crate::kernels) const fn table<const LOG: bool>() -> [Row<BackwardFn>; 16] {
    use DType as D;
    [
        (D::F16, D::F16, run::<f16, f16, f32, LOG>),
        (D::F16, D::BF16, staged::gradients::<f16, bf16, f32, LOG>),
        (D::F16, D::F32, run::<f16, f32, f32, LOG>),
        (D::F16, D::F64, staged::gradients::<f16, f64, f64, LOG>),
        (D::BF16, D::F16, staged::gradients::<bf16, f16, f32, LOG>),
        (D::BF16, D::BF16, run::<bf16, bf16, f32, LOG>),
        (D::BF16, D::F32, run::<bf16, f32, f32, LOG>),
        (D::BF16, D::F64, staged::gradients::<bf16, f64, f64, LOG>),
        (D::F32, D::F16, run::<f32, f16, f32, LOG>),
        (D::F32, D::BF16, run::<f32, bf16, f32, LOG>),
        (D::F32, D::F32, run::<f32, f32, f32, LOG>),
        (D::F32, D::F64, staged::gradients::<f32, f64, f64, LOG>),
        (D::F64, D::F16, staged::gradients::<f64, f16, f64, LOG>),
        (D::F64, D::BF16, staged::gradients::<f64, bf16, f64, LOG>),
        (D::F64, D::F32, staged::gradients::<f64, f32, f64, LOG>),
        (D::F64, D::F64, run::<f64, f64, f64, LOG>),
    ]
}

/// Bytes of a row, in the type computed in, up to which rows are done as many at a time as a vector has lanes.
const SHORT_BYTES: usize = 1024;
/// Elements added up in the type computed in before the sum moves to f64.
pub(super) const BLOCK: usize = 2048;
/// The fewest elements of a row that several threads may share.
const SHARED: usize = 16 * BLOCK;

/// Two sources and a destination: valid for their elements, and the destination apart from each, or the same.
pub(super) struct Gradient<S, D> {
    pub(super) y: *const S,
    pub(super) dy: *const S,
    pub(super) dx: *mut D,
}

impl<S, D> Clone for Gradient<S, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, D> Copy for Gradient<S, D> {}

// SAFETY: these are only numbers to pass on; each use says why it is in bounds, and tasks write disjoint parts.
unsafe impl<S, D> Sync for Gradient<S, D> {}

impl<S, D> Gradient<S, D> {
    /// # Safety
    /// All have `n` elements.
    #[inline(always)]
    pub(super) unsafe fn from(&self, n: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self { y: self.y.add(n), dy: self.dy.add(n), dx: self.dx.add(n) } }
    }
}

unsafe fn run<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &BackwardArgs,
) -> Result<()> {
    let &BackwardArgs { rows, cols, inner, .. } = args;
    let count = elements(rows, cols, inner, size_of::<S>().max(size_of::<D>()))?;
    if count == 0 {
        return Ok(());
    }
    let written = count * size_of::<D>();
    let in_place = args.y == args.dx || args.dy == args.dx;
    let total = written.saturating_add(count.saturating_mul(2 * size_of::<S>()));
    let waits = inner == 1 && (!LOG || cols.saturating_mul(size_of::<A>()) > SHORT_BYTES);
    let stream = !in_place && stream::pays_for_rows(par, waits, written, total);
    // SAFETY: the caller's promise, and the sizes are as counted.
    unsafe { backward::<S, D, A, LOG>(isa, par, args, count, stream) }
}

/// [`run`] of `count` elements, not none, past the cache or not.
///
/// # Safety
/// As for [`BackwardFn`].
pub(super) unsafe fn backward<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &BackwardArgs,
    count: usize,
    stream: bool,
) -> Result<()> {
    let &BackwardArgs { rows, cols, inner, .. } = args;
    let g = Gradient { y: args.y.cast::<S>(), dy: args.dy.cast::<S>(), dx: args.dx.cast::<D>() };
    // SAFETY: the caller's promise.
    unsafe {
        if cols == 1 {
            return backward_strips::run::<S, D, A, LOG>(isa, par, g, [1, 1, count], stream);
        }
        if inner > 1 {
            return backward_strips::run::<S, D, A, LOG>(isa, par, g, [rows, cols, inner], stream);
        }
        if rows < par.threads() && cols >= SHARED {
            return one_by_one::<S, D, A, LOG>(isa, par, g, rows, cols, stream);
        }
        let short = cols * size_of::<A>() <= SHORT_BYTES;
        let asks = stream::suits_intel();
        // Short rows wait for stores past the cache, unless they are whole lines and little is computed of each (0.55 to 0.95 of the time
        // without, on Zen 4).
        let little = !LOG || cols * size_of::<A>() <= WAITS_BYTES;
        let suits = !short || little && (cols * size_of::<D>()).is_multiple_of(LINE);
        let stream = stream && (asks || suits);
        // Exponentials are worth long vectors; the rest waits for memory.
        let short_isa = if LOG { isa } else { isa.for_memory() };
        for_ranges(par, rows, cols.saturating_mul(EXP_BYTES), MAX_LANES, |range| {
            let rows = Rows::<S, D, LOG> { g: g.from(range.start * cols), rows: range.len(), cols, stream };
            // Each compiled by itself: the registers of one loop are not chosen for another's sake.
            if short {
                dispatch::<A, _>(short_isa, ShortRows { rows, asks });
            } else {
                dispatch::<A, _>(isa, rows);
            }
            Ok(())
        })
    }
}

/// Rows that several threads share, in the same blocks in which one adds them up.
///
/// # Safety
/// `g` is valid for `rows * cols` elements.
unsafe fn one_by_one<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool>(
    isa: Isa,
    par: &dyn Parallel,
    g: Gradient<S, D>,
    rows: usize,
    cols: usize,
    stream: bool,
) -> Result<()> {
    let count = cols.div_ceil(BLOCK);
    let mut sums: Vec<f64> = Vec::new();
    sums.try_reserve_exact(count).map_err(|_| {
        Error::out_of_memory(format!("the gradient needs room for {count} sums of a row of {cols}"))
    })?;
    sums.resize(count, 0.0);
    let bytes = BLOCK * EXP_BYTES;
    for row in 0..rows {
        let shared = Shared::new(sums.as_mut_ptr());
        for_ranges(par, count, bytes, 1, |blocks| {
            for block in blocks {
                let at = block * BLOCK;
                // SAFETY: the block is inside the row, and its sum is only this task's.
                unsafe {
                    let g = g.from(row * cols + at);
                    let len = BLOCK.min(cols - at);
                    *shared.get().add(block) = dispatch::<A, _>(isa, Sum::<S, D, LOG> { g, len });
                }
            }
            Ok(())
        })?;
        let sum = A::from_f64(sums.iter().sum());
        for_ranges(par, count, bytes, 1, |blocks| {
            let at = blocks.start * BLOCK;
            let len = (blocks.len() * BLOCK).min(cols - at);
            // SAFETY: these blocks are inside the row, and only this task's.
            let g = unsafe { g.from(row * cols + at) };
            dispatch::<A, _>(isa, Write::<S, D, A, LOG> { g, len, sum, stream });
            Ok(())
        })?;
    }
    Ok(())
}

/// Some rows. Made only where `g` is valid for them.
struct Rows<S, D, const LOG: bool> {
    g: Gradient<S, D>,
    rows: usize,
    cols: usize,
    stream: bool,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool> Body<A> for Rows<S, D, LOG> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { g, rows, cols, stream } = self;
        // SAFETY: the rows are as the struct says.
        unsafe { backward_rows::run::<V, S, D, LOG>(&g, rows, cols, stream) };
        if stream {
            stream::fence();
        }
    }
}

/// Rows of at most [`SHORT_BYTES`].
struct ShortRows<S, D, const LOG: bool> {
    rows: Rows<S, D, LOG>,
    /// As of [`super::Rows`].
    asks: bool,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool> Body<A> for ShortRows<S, D, LOG> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { rows: Rows { g, rows, cols, stream }, asks } = self;
        let mut stage = Room::<{ MAX_LANES * SHORT_BYTES }>::new();
        // SAFETY: every row is inside the matrix; as many short rows as a vector has lanes fit the room, since no
        // element is larger than the type computed in.
        unsafe {
            for first in (0..rows).step_by(V::LANES) {
                let left = rows - first;
                let rows = V::LANES.min(left);
                let mut g = g.from(first * cols);
                let dx = g.dx;
                if stream {
                    g.dx = stage.start();
                }
                let owned = (asks, if stream || !asks { 0 } else { left });
                match cols.div_ceil(V::LANES) {
                    1 if V::FAST_PARTS => group::<V, S, D, LOG, 1>(&g, rows, cols, asks),
                    2 if V::FAST_PARTS => group::<V, S, D, LOG, 2>(&g, rows, cols, asks),
                    2 if cols == 2 * V::LANES => held::<V, S, D, LOG, 2>(&g, rows, owned),
                    4 if cols == 4 * V::LANES && !V::FAST_PARTS => {
                        held::<V, S, D, LOG, 4>(&g, rows, owned);
                    }
                    4 if !V::FAST_PARTS => group::<V, S, D, LOG, 4>(&g, rows, cols, asks),
                    5.. if V::FAST_PARTS || V::NEAR.is_some() => {
                        each::<V, S, D, LOG>(&g, rows, cols, owned);
                    }
                    _ => group::<V, S, D, LOG, 0>(&g, rows, cols, asks),
                }
                if stream {
                    flush::<V, D>(dx, g.dx.cast_const(), rows * cols);
                }
            }
        }
        if stream {
            stream::fence();
        }
    }
}

/// One block of a row. Made only where `g` is valid for it.
struct Sum<S, D, const LOG: bool> {
    g: Gradient<S, D>,
    len: usize,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool> Body<A> for Sum<S, D, LOG> {
    type Out = f64;

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) -> f64 {
        // SAFETY: the block is as the struct says.
        unsafe { sum::<V, S, D, LOG>(&self.g, self.len) }
    }
}

/// Part of a row. Made only where `g` is valid for it.
struct Write<S, D, A, const LOG: bool> {
    g: Gradient<S, D>,
    len: usize,
    sum: A,
    stream: bool,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool> Body<A> for Write<S, D, A, LOG> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { g, len, sum, stream } = self;
        // SAFETY: the part is as the struct says.
        unsafe {
            let mut seam = Seam::new();
            write::<V, S, D, LOG>(&g, len, sum, Some(BLOCK), stream, &mut seam);
            seam.close();
        }
        if stream {
            stream::fence();
        }
    }
}

/// The term of an element in its row's sum.
#[inline(always)]
pub(super) fn term<V: Vector, const LOG: bool>(y: V, dy: V, sum: V) -> V {
    if LOG { sum.add(dy) } else { y.mul_add(dy, sum) }
}

/// What turns elements into gradients, once the row's sum is known.
#[derive(Clone, Copy)]
pub(super) struct Formula<V, const LOG: bool> {
    exp: HalfExp<V>,
    sum: V,
}

impl<V: Vector, const LOG: bool> Formula<V, LOG> {
    #[inline(always)]
    pub(super) fn new(sum: V) -> Self {
        Self { exp: HalfExp::new(), sum }
    }

    #[inline(always)]
    pub(super) fn of(&self, y: V, dy: V) -> V {
        if LOG {
            // Twice half of it: neither the exponential nor the sum may be doubled before, which could be an infinity.
            let half = self.exp.of(y);
            half.neg_mul_add(self.sum, half.neg_mul_add(self.sum, dy))
        } else {
            dy.sub(self.sum).mul(y)
        }
    }
}

/// As many rows as a vector has lanes, or fewer, of `W` vectors each, or of any number if that is 0. With `asks` the next are fetched.
///
/// # Safety
/// `g` is valid for `rows * cols` elements.
#[inline(always)]
unsafe fn group<V, S, D, const LOG: bool, const W: usize>(
    g: &Gradient<S, D>,
    rows: usize,
    cols: usize,
    asks: bool,
) where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let zero = V::splat(V::Lane::ZERO);
    // The last vector of a row may be part of one.
    let full = if W > 0 { W - 1 } else { (cols - 1) / V::LANES };
    let last = full * V::LANES;
    // SAFETY: every row is inside the matrix; each vector is read before it is written.
    unsafe {
        let mut each = [zero; MAX_LANES];
        for (row, each) in each[..rows].iter_mut().enumerate() {
            let g = g.from(row * cols);
            let (y, dy) = load_last::<V, S, D, LOG>(&g.from(last), cols - last);
            *each = term::<V, LOG>(y, dy, zero);
            for k in 0..full {
                let y = if LOG { zero } else { V::load(g.y.add(k * V::LANES)) };
                *each = term::<V, LOG>(y, V::load(g.dy.add(k * V::LANES)), *each);
            }
        }
        let sum = lanes(V::fold_each(&each, V::add));
        for (row, &sum) in sum[..rows].iter().enumerate() {
            let g = g.from(row * cols);
            if asks {
                prefetch(g.y.wrapping_add(rows * cols), cols);
                prefetch(g.dy.wrapping_add(rows * cols), cols);
            }
            let formula = Formula::<V, LOG>::new(V::splat(sum));
            for k in 0..full {
                let at = k * V::LANES;
                formula.of(V::load(g.y.add(at)), V::load(g.dy.add(at))).store(g.dx.add(at));
            }
            let (y, dy) = load_last::<V, S, D, false>(&g.from(last), cols - last);
            let dx = formula.of(y, dy);
            if cols - last == V::LANES {
                dx.store(g.dx.add(last));
            } else {
                dx.store_part(g.dx.add(last), cols - last);
            }
        }
    }
}

/// Rows that are fetched before they are read, and whose places before they are written.
const ROWS_AHEAD: usize = 4;

/// As [`group`], one row after the other: of long rows, those of a group and of the next would fill the first-level
/// cache. With `asks` what comes is fetched; the `owned` first rows from here on are this task's to write:
/// their places are fetched too.
///
/// # Safety
/// As for [`group`].
#[inline(always)]
unsafe fn each<V, S, D, const LOG: bool>(
    g: &Gradient<S, D>,
    rows: usize,
    cols: usize,
    (asks, owned): (bool, usize),
) where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let zero = V::splat(V::Lane::ZERO);
    let last = (cols - 1) / V::LANES * V::LANES;
    for row in 0..rows {
        // SAFETY: the row is inside the matrix; each vector is read before it is written.
        unsafe {
            let g = g.from(row * cols);
            let ahead = ROWS_AHEAD * cols;
            if asks {
                prefetch(g.y.wrapping_add(ahead), cols);
                prefetch(g.dy.wrapping_add(ahead), cols);
            }
            if row + ROWS_AHEAD < owned {
                prefetch_to_write(g.dx.wrapping_add(ahead), cols);
            }
            let mut sums = [zero; 2];
            for at in (0..last).step_by(V::LANES) {
                let y = if LOG { zero } else { V::load(g.y.add(at)) };
                sums = [sums[1], term::<V, LOG>(y, V::load(g.dy.add(at)), sums[0])];
            }
            let (y, dy) = load_last::<V, S, D, LOG>(&g.from(last), cols - last);
            let sum = term::<V, LOG>(y, dy, sums[0]).add(sums[1]).fold(V::add);
            let formula = Formula::<V, LOG>::new(sum);
            for at in (0..last).step_by(V::LANES) {
                formula.of(V::load(g.y.add(at)), V::load(g.dy.add(at))).store(g.dx.add(at));
            }
            let (y, dy) = load_last::<V, S, D, false>(&g.from(last), cols - last);
            let dx = formula.of(y, dy);
            if cols - last == V::LANES && !V::FAST_PARTS {
                dx.store(g.dx.add(last));
            } else {
                dx.store_part(g.dx.add(last), cols - last);
            }
        }
    }
}

/// As [`each`], of rows of `W` whole vectors, which stay in registers from the sum to the result.
///
/// # Safety
/// As for [`group`].
#[inline(always)]
unsafe fn held<V, S, D, const LOG: bool, const W: usize>(
    g: &Gradient<S, D>,
    rows: usize,
    (asks, owned): (bool, usize),
) where
    V: Vector,
    S: Cell<V::Lane>,
    D: Cell<V::Lane>,
{
    let zero = V::splat(V::Lane::ZERO);
    let cols = W * V::LANES;
    let ahead = MAX_LANES * cols;
    for row in 0..rows {
        // SAFETY: the row is inside the matrix; all of it is read before it is written.
        unsafe {
            let g = g.from(row * cols);
            if asks {
                prefetch(g.y.wrapping_add(ahead), cols);
                prefetch(g.dy.wrapping_add(ahead), cols);
            }
            if row + MAX_LANES < owned {
                prefetch_to_write(g.dx.wrapping_add(ahead), cols);
            }
            let (mut y, mut dy, mut sums) = ([zero; W], [zero; W], [zero; 2]);
            for k in 0..W {
                (y[k], dy[k]) = (V::load(g.y.add(k * V::LANES)), V::load(g.dy.add(k * V::LANES)));
                sums[k % 2] = term::<V, LOG>(if LOG { zero } else { y[k] }, dy[k], sums[k % 2]);
            }
            let formula = Formula::<V, LOG>::new(sums[0].add(sums[1]).fold(V::add));
            for k in 0..W {
                formula.of(y[k], dy[k]).store(g.dx.add(k * V::LANES));
            }
        }
    }
}

/// The last vectors of a row, with zeros past its end; with `ONLY_DY`, zeros for the first.
///
/// # Safety
/// `g` is valid for `len` elements, which are at most a vector.
#[inline(always)]
unsafe fn load_last<V, S, D, const ONLY_DY: bool>(g: &Gradient<S, D>, len: usize) -> (V, V)
where
    V: Vector,
    S: Cell<V::Lane>,
{
    let zero = V::Lane::ZERO;
    // SAFETY: the caller's promise.
    unsafe {
        if len == V::LANES && !V::FAST_PARTS {
            (if ONLY_DY { V::splat(zero) } else { V::load(g.y) }, V::load(g.dy))
        } else {
            let y = if ONLY_DY { V::splat(zero) } else { V::load_part(g.y, len, zero) };
            (y, V::load_part(g.dy, len, zero))
        }
    }
}
