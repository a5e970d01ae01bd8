//! Rows that are normalised: layer norm and RMS norm.
//!
//! A row is read for its mean and its variance, then scaled; after the first pass it lies in a cache, unless it is very
//! long. Sums are those of the differences to an element of the row, so that a large mean cancels before anything is
//! rounded, and move to f64 after each block. Where that element is so far from the mean that the variance would lose bits,
//! the row is read once more, for the differences to the mean.

use super::seam::Seam;
use super::vector::{Body, Compute, Vector, dispatch};
use super::{LINE, UNROLL, elements, join, prefetch, prefetch_far};
use crate::isa::Isa;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
use half::{bf16, f16};
use std::marker::PhantomData;

/// Arguments of a [`NormFn`]. Optional operands are null where they are absent.
#[derive(Clone, Copy, Debug)]
pub struct NormArgs {
    /// How many rows.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Added to the variance, or to the mean square.
    pub epsilon: f64,
    /// `[rows, cols]`, aligned to its elements.
    pub src: *const u8,
    /// `[cols]`, the factor of each column; optional.
    pub scale: *const u8,
    /// `[cols]`, the summand of each column; optional.
    pub shift: *const u8,
    /// `[rows, cols]`; may be the source.
    pub dst: *mut u8,
    /// `[rows]`, the means, of the type computed in; optional.
    pub mean: *mut u8,
    /// `[rows]`, what rows were multiplied by, of the type computed in; optional.
    pub factor: *mut u8,
}

/// Normalises each row. Computes in f64 for f64, else in f32, and rounds once. The result does not depend on the
/// number of threads.
///
/// # Errors
/// `InvalidArgument` if the matrix has more elements than an address space holds; those of `par`.
///
/// # Safety
/// The operands that are not null are valid for their elements and aligned to them, with no other access until this
/// returns. What is written overlaps nothing else, but the destination may be the source.
pub type NormFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &NormArgs) -> Result<()>;

/// Dtypes of the elements and of the statistics, and the kernel; with `CENTRE` the mean is taken away first.
pub(in crate::kernels) const fn table<const CENTRE: bool>() -> [(DType, DType, NormFn); 4] {
    [
        (DType::F16, DType::F32, run::<f16, f32, CENTRE>),
        (DType::BF16, DType::F32, run::<bf16, f32, CENTRE>),
        (DType::F32, DType::F32, run::<f32, f32, CENTRE>),
        (DType::F64, DType::F64, run::<f64, f64, CENTRE>),
    ]
}

/// Elements added up in the type computed in before the sum moves to f64.
const BLOCK: usize = 2048;
/// Columns up to which factors and summands of a shorter type are converted once for all rows: both and two rows are 36 KiB,
/// of which most stays in a first-level cache.
const WIDENED: usize = 3 << 10;
/// Bytes of a row up to which the next one is measured before it is written, and fetched into the first-level cache meanwhile:
/// of longer rows that holds no two, and the next is fetched into the second-level cache.
const AHEAD_BYTES: usize = 16 << 10;
/// Bytes of a row from which it may go past the cache.
const STREAMED_BYTES: usize = 512;
/// What an element costs, in bytes of traffic.
const COST_BYTES: usize = 12;

unsafe fn run<S: Cell<A>, A: Compute, const CENTRE: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &NormArgs,
) -> Result<()> {
    let &NormArgs { rows, cols, .. } = args;
    let count = elements(rows, cols, 1, size_of::<S>())?;
    if count == 0 {
        // There is nothing to be the mean of.
        for stats in [args.mean, args.factor].into_iter().filter(|s| !s.is_null()) {
            for row in 0..rows {
                // SAFETY: the caller promises a value for each row.
                unsafe { stats.cast::<A>().add(row).write(A::from_f64(f64::NAN)) };
            }
        }
        return Ok(());
    }
    let bytes = rows * cols * size_of::<S>();
    // Shorter rows are mostly ends, which are stored aside first.
    let stream = cols.saturating_mul(size_of::<S>()) >= STREAMED_BYTES
        && args.src != args.dst
        && stream::pays_for_rows(par, true, bytes, bytes.saturating_mul(2));
    if S::DTYPE == A::DTYPE || rows == 1 || cols > WIDENED {
        // SAFETY: the caller's promise.
        return unsafe {
            run_with::<S, A, S, CENTRE>(isa, par, args, [args.scale.cast(), args.shift.cast()], stream)
        };
    }
    // What all rows read is converted once. A summand of -0 changes nothing.
    let mut columns = [vec![A::from_f64(1.0); cols], vec![A::from_f64(-0.0); cols]];
    for (column, from) in columns.iter_mut().zip([args.scale, args.shift]) {
        if !from.is_null() {
            dispatch::<A, _>(isa, Widen { from: from.cast::<S>(), to: column });
        }
    }
    // SAFETY: the caller's promise, and the columns live until this returns.
    unsafe { run_with::<S, A, A, CENTRE>(isa, par, args, columns.each_ref().map(|c| c.as_ptr()), stream) }
}

/// The same with `[scale, shift]` of type `C`, null where they are absent; past the cache if it is to `stream`.
unsafe fn run_with<S: Cell<A>, A: Compute, C: Cell<A>, const CENTRE: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &NormArgs,
    columns: [*const C; 2],
    stream: bool,
) -> Result<()> {
    let &NormArgs { rows, cols, .. } = args;
    let shared = Shared::new(std::ptr::from_ref(args).cast_mut());
    let columns = columns.map(|column| Shared::new(column.cast_mut()));
    for_ranges(par, rows, cols.saturating_mul(COST_BYTES), 1, |range| {
        // SAFETY: the caller's arguments, which live until this returns.
        let args = unsafe { &*shared.get() };
        let [scale, shift] = columns.map(|column| column.get().cast_const());
        let (first, end) = (range.start, range.end);
        let rows = Rows::<S, C, CENTRE> { args, scale, shift, first, end, stream, element: PhantomData };
        dispatch::<A, _>(isa, rows);
        Ok(())
    })
}

/// Converts elements to the type computed in. Made only where as many as `to` has are readable.
struct Widen<'a, S, A> {
    from: *const S,
    to: &'a mut [A],
}

impl<S: Cell<A>, A: Compute> Body<A> for Widen<'_, S, A> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let len = self.to.len();
        for at in (0..len).step_by(V::LANES) {
            let n = V::LANES.min(len - at);
            // SAFETY: both have so many elements.
            unsafe {
                V::load_part(self.from.add(at), n, A::ZERO).store_part(self.to.as_mut_ptr().add(at), n);
            }
        }
    }
}

/// Some rows. Made only where the arguments are what [`NormFn`] asks for.
struct Rows<'a, S, C, const CENTRE: bool> {
    args: &'a NormArgs,
    scale: *const C,
    shift: *const C,
    first: usize,
    end: usize,
    stream: bool,
    element: PhantomData<S>,
}

impl<S: Cell<A>, A: Compute, C: Cell<A>, const CENTRE: bool> Body<A> for Rows<'_, S, C, CENTRE> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Rows { args, scale, shift, first, end, stream, .. } = self;
        let cols = args.cols;
        let both = !scale.is_null() && !shift.is_null();
        // A row that is measured while the one before is written hides the time of its division and its root. Without a mean
        // there is less to compute than to wait for, and rows one after the other are read faster.
        let lag = usize::from(CENTRE && cols * size_of::<S>() <= AHEAD_BYTES);
        let narrows = V::narrows::<S>();
        let (mut before, mut seam) = (Measured::NOTHING, Seam::new());
        for turn in first..end + lag {
            // SAFETY: rows are inside of the matrices, and only this task's to write; so are their statistics.
            unsafe {
                let mut now = Measured::NOTHING;
                if turn < end {
                    let src = args.src.cast::<S>().add(turn * cols);
                    now = if CENTRE {
                        measure::<V, S>(src, cols)
                    } else {
                        Measured::of_squares::<V, S>(src, cols)
                    };
                }
                let measured = if lag == 0 { now } else { std::mem::replace(&mut before, now) };
                if turn < first + lag {
                    continue;
                }
                let row = turn - lag;
                let Measured { mean, pivot, centre, variance } = measured;
                let factor = A::from_f64(1.0 / (variance + args.epsilon).sqrt());
                if !args.mean.is_null() {
                    args.mean.cast::<A>().add(row).write(mean);
                }
                if !args.factor.is_null() {
                    args.factor.cast::<A>().add(row).write(factor);
                }
                let line = Line::<V, S, C, CENTRE> {
                    src: args.src.cast::<S>().add(row * cols),
                    dst: args.dst.cast::<S>().add(row * cols),
                    next: (1 + lag) * cols,
                    scale,
                    shift,
                    pivot: V::splat(pivot),
                    factor: V::splat(factor),
                    offset: V::splat(A::from_f64(-(centre.to_f64() * factor.to_f64()))),
                    narrows,
                };
                match (stream, both) {
                    (true, true) => line.write::<true, true>(cols, &mut seam),
                    (true, false) => line.write::<true, false>(cols, &mut seam),
                    (false, true) => line.write::<false, true>(cols, &mut seam),
                    (false, false) => line.write::<false, false>(cols, &mut seam),
                }
            }
        }
        // SAFETY: what waits there is of these rows.
        unsafe { seam.close() };
        if stream {
            stream::fence();
        }
    }
}

/// `a + b` as a number of the type computed in and the rest, so that subtracting both from elements near the sum
/// loses nothing.
#[inline(always)]
fn in_two<A: Real>(a: f64, b: f64) -> (A, A) {
    let sum = a + b;
    let part = sum - a;
    let lost = (a - (sum - part)) + (b - part);
    let high = A::from_f64(sum);
    (high, A::from_f64((sum - high.to_f64()) + lost))
}

/// What is known of a row.
#[derive(Clone, Copy)]
struct Measured<A> {
    mean: A,
    /// The mean in two parts.
    pivot: A,
    centre: A,
    /// The mean of the squares of what is left of the elements without it.
    variance: f64,
}

/// The square of the distance from the pivot to the mean, in variances, up to which the sum of squares of the distances
/// to the pivot tells the variance: it loses no more than two bits.
const NEAR_VARIANCES: f64 = 2.0;

/// Mean and variance.
///
/// # Safety
/// `src` is readable for `len` elements, of which there is one at least.
#[inline(always)]
unsafe fn measure<V: Vector, S: Cell<V::Lane>>(src: *const S, len: usize) -> Measured<V::Lane> {
    // SAFETY: the caller's promise.
    unsafe {
        let near = pivot(src, len);
        let (mut measured, far) = measure_from::<V, S>(src, len, near);
        let mean = measured.mean;
        if far && mean.to_f64().is_finite() {
            (measured, _) = measure_from::<V, S>(src, len, mean);
        }
        measured
    }
}

/// Mean and variance by the differences to a pivot, and whether that is far from the mean.
///
/// # Safety
/// As for [`measure`].
#[inline(always)]
unsafe fn measure_from<V: Vector, S: Cell<V::Lane>>(
    src: *const S,
    len: usize,
    from: V::Lane,
) -> (Measured<V::Lane>, bool) {
    // SAFETY: the caller's promise.
    let [sum, squares] = unsafe { sums::<V, S, true>(src, len, from) };
    let rest = sum / len as f64;
    let variance = squares / len as f64 - rest * rest;
    let (pivot, centre) = in_two(from.to_f64(), rest);
    let mean = V::Lane::from_f64(from.to_f64() + rest);
    // Squares may be too large about the one and not about the other; sums that are not finite stay so.
    let near = variance.is_finite() && rest * rest <= NEAR_VARIANCES * variance;
    (Measured { mean, pivot, centre, variance }, rest.is_finite() && !near)
}

impl<A: Compute> Measured<A> {
    const NOTHING: Measured<A> = Measured { mean: A::ZERO, pivot: A::ZERO, centre: A::ZERO, variance: 0.0 };

    /// The mean square, with no mean taken away.
    ///
    /// # Safety
    /// `src` is readable for `len` elements.
    #[inline(always)]
    unsafe fn of_squares<V: Vector<Lane = A>, S: Cell<A>>(src: *const S, len: usize) -> Measured<A> {
        // SAFETY: the caller's promise.
        let [_, squares] = unsafe { sums::<V, S, false>(src, len, A::ZERO) };
        Measured { mean: A::ZERO, pivot: A::ZERO, centre: A::ZERO, variance: squares / len as f64 }
    }
}

/// An element that is likely to be near the mean: the middle one of three. All elements of a constant row are it exactly.
/// What is not finite is nothing to measure from.
///
/// # Safety
/// `src` is readable for `len` elements, of which there is one at least.
#[inline(always)]
unsafe fn pivot<A: Real, S: Cell<A>>(src: *const S, len: usize) -> A {
    // SAFETY: within the row.
    let [a, b, c] = unsafe { [0, len / 2, len - 1].map(|at| src.add(at).read().read().to_f64()) };
    if (a + b + c).is_finite() {
        return A::from_f64(a.min(b).max(a.max(b).min(c)));
    }
    if a.is_finite() { A::from_f64(a) } else { A::ZERO }
}

/// The sums over a row of `x - pivot` and of its square; without `SUM`, of the square of `x` alone.
///
/// # Safety
/// `src` is readable for `len` elements.
#[inline(always)]
unsafe fn sums<V, S, const SUM: bool>(src: *const S, len: usize, pivot: V::Lane) -> [f64; 2]
where
    V: Vector,
    S: Cell<V::Lane>,
{
    let step = UNROLL * V::LANES;
    let p = V::splat(pivot);
    let mut totals = [0.0; 2];
    for block in (0..len).step_by(BLOCK) {
        let end = len.min(block + BLOCK);
        let whole = end - (end - block) % step;
        let mut sum = [V::splat(V::Lane::ZERO); UNROLL];
        let mut squares = sum;
        // SAFETY: all is within the row.
        unsafe {
            for at in (block..whole).step_by(step) {
                for i in 0..UNROLL {
                    let mut x = V::load(src.add(at + i * V::LANES));
                    if SUM {
                        x = x.sub(p);
                        sum[i] = sum[i].add(x);
                    }
                    squares[i] = x.mul_add(x, squares[i]);
                }
            }
            for at in (whole..end).step_by(V::LANES) {
                let n = V::LANES.min(end - at);
                let mut x = V::load_part(src.add(at), n, V::Lane::ZERO);
                if SUM {
                    x = x.sub(p).first_lanes(n);
                    sum[0] = sum[0].add(x);
                }
                squares[0] = x.mul_add(x, squares[0]);
            }
        }
        let total = |parts| join(parts, V::add).fold(V::add).first().to_f64();
        totals[0] += if SUM { total(sum) } else { 0.0 };
        totals[1] += total(squares);
    }
    totals
}

/// A row on its way to the destination.
struct Line<V, S, C, const CENTRE: bool> {
    src: *const S,
    dst: *mut S,
    /// Elements from the row to the one that is read next.
    next: usize,
    scale: *const C,
    shift: *const C,
    pivot: V,
    factor: V,
    /// What is left to be taken away when the pivot was, times the factor.
    offset: V,
    /// Whether what is not subnormal may be narrowed as [`Vector::narrows`] says.
    narrows: bool,
}

impl<V: Vector, S: Cell<V::Lane>, C: Cell<V::Lane>, const CENTRE: bool> Line<V, S, C, CENTRE> {
    /// Writes it, past the cache if `STREAM`. `BOTH` is whether scale and shift are given.
    ///
    /// # Safety
    /// The row, and what is given of scale and shift, have `len` elements; what waits in `seam` precedes them.
    #[inline(always)]
    unsafe fn write<const STREAM: bool, const BOTH: bool>(&self, len: usize, seam: &mut Seam<S>) {
        let head = if STREAM { (self.dst.addr().wrapping_neg() % LINE / size_of::<S>()).min(len) } else { 0 };
        let step = UNROLL * V::LANES;
        let end = head + (len - head) / step * step;
        let far = len * size_of::<S>() > AHEAD_BYTES;
        // SAFETY: all is within the row; two vectors are read before they are written.
        unsafe {
            if STREAM {
                self.edge::<BOTH>(0, head, seam);
            }
            for at in (head..end).step_by(step) {
                for i in (0..UNROLL).step_by(2) {
                    let at = at + i * V::LANES;
                    let (next, second) = (self.src.wrapping_add(self.next + at), at + V::LANES);
                    if far {
                        prefetch_far(next, 2 * V::LANES)
                    } else {
                        prefetch(next, 2 * V::LANES)
                    }
                    let x = self.value::<BOTH>(V::load(self.src.add(at)), |p| V::load(p.add(at)));
                    let y = self.value::<BOTH>(V::load(self.src.add(second)), |p| V::load(p.add(second)));
                    let narrow = self.narrows && !x.any_subnormal(y);
                    x.store_two(y, self.dst.add(at), STREAM, narrow);
                }
            }
            if STREAM {
                self.edge::<BOTH>(end, len, seam);
            } else {
                self.part::<BOTH>(end, len);
            }
        }
    }

    /// [`Self::part`] at an end of the row, which shares lines with the rows beside it.
    ///
    /// # Safety
    /// As [`Self::write`], for the elements `from..to`.
    #[inline(always)]
    unsafe fn edge<const BOTH: bool>(&self, from: usize, to: usize, seam: &mut Seam<S>) {
        if from == to {
            return;
        }
        // SAFETY: the caller's promise; there is room for these elements.
        unsafe {
            let Some(room) = seam.room(self.dst.add(from), to - from) else {
                return self.part::<BOTH>(from, to);
            };
            Line { dst: room.wrapping_sub(from), ..*self }.part::<BOTH>(from, to);
            seam.take::<V>(to - from);
        }
    }

    /// # Safety
    /// As [`Self::write`], for the elements `from..to`.
    #[inline(always)]
    unsafe fn part<const BOTH: bool>(&self, from: usize, to: usize) {
        for at in (from..to).step_by(V::LANES) {
            let n = V::LANES.min(to - at);
            // SAFETY: the caller's promise.
            unsafe {
                let column = |p: *const C| V::load_part(p.add(at), n, V::Lane::ZERO);
                let x = V::load_part(self.src.add(at), n, V::Lane::ZERO);
                // Of `edge` only these places exist.
                self.value::<BOTH>(x, column).store_part(self.dst.wrapping_add(at), n);
            }
        }
    }

    /// The result for elements `x`; `column` reads an operand that has one element for each column.
    #[inline(always)]
    fn value<const BOTH: bool>(&self, x: V, column: impl Fn(*const C) -> V) -> V {
        let mut x =
            if CENTRE { x.sub(self.pivot).mul_add(self.factor, self.offset) } else { x.mul(self.factor) };
        if BOTH {
            return x.mul_add(column(self.scale), column(self.shift));
        }
        if !self.scale.is_null() {
            x = x.mul(column(self.scale));
        }
        if !self.shift.is_null() {
            x = x.add(column(self.shift));
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng, Threads, bytes_of, words};
    use primitives::reference::{Data, Launch, Number};

    struct Case<'a> {
        rows: usize,
        cols: usize,
        data: [&'a Data; 3],
        given: [bool; 2],
        threads: usize,
        isa: Isa,
    }

    /// Compares with the reference; the bytes of the destination.
    fn check<const CENTRE: bool>(kernel: &(DType, DType, NormFn), case: &Case<'_>) -> Vec<u8> {
        let (dtype, stats, run) = *kernel;
        let &Case { rows, cols, data: [src, scale, shift], given, threads, isa } = case;
        let names = if CENTRE { ["layer_norm", "gamma", "rstd"] } else { ["rms_norm", "weight", "inv_rms"] };
        let mut launch = Launch::new(names[0])
            .dtype("data", dtype)
            .dtype("stats", stats)
            .attr("epsilon", 1e-5)
            .size("rows", rows as i64)
            .size("cols", cols as i64)
            .read("src", src.view());
        if given[0] {
            launch = launch.read(names[1], scale.view());
        }
        if given[1] {
            launch = launch.read("beta", shift.view());
        }
        let want = launch.run().unwrap();
        let operands = [src, scale, shift].map(|d| words(&d.bytes));
        let null_or =
            |i: usize, on: bool| if on { operands[i].as_ptr().cast() } else { std::ptr::null::<u8>() };
        let size = dtype.size().unwrap();
        let mut out = Guarded::<u64>::new((rows * cols * size).div_ceil(8));
        let [mut mean, mut factor] = [(); 2].map(|()| Guarded::<u64>::new(rows));
        let args = NormArgs {
            rows,
            cols,
            epsilon: 1e-5,
            src: operands[0].as_ptr().cast(),
            scale: null_or(1, given[0]),
            shift: null_or(2, given[1]),
            dst: out.ptr().cast(),
            mean: if CENTRE { mean.ptr().cast() } else { std::ptr::null_mut() },
            factor: factor.ptr().cast(),
        };
        // SAFETY: every operand has these sizes, aligned to 8.
        unsafe { run(isa, &Threads(threads), &args) }.unwrap();
        let bytes = |g: &Guarded<u64>, n: usize| bytes_of(g.written(), n);
        let found = [
            ("dst", dtype, bytes(&out, rows * cols * size)),
            (names[2], stats, bytes(&factor, rows * stats.size().unwrap())),
            ("mean", stats, bytes(&mean, rows * stats.size().unwrap())),
        ];
        for (name, dtype, bytes) in &found[..2 + usize::from(CENTRE)] {
            let (want, got) = (want.get(name).unwrap(), Data { dtype: *dtype, bytes: bytes.clone() });
            let eps = match *dtype {
                DType::F16 => 2f64.powi(-10),
                DType::BF16 => 2f64.powi(-7),
                DType::F32 => 2e-6,
                _ => 2e-14,
            };
            for i in 0..want.view().len() {
                let (w, g) = (want.get(i).re(), got.get(i).re());
                let near = w == g || (w.is_nan() && g.is_nan()) || (w - g).abs() <= eps * (w.abs() + 2.0);
                assert!(near, "{} {name}[{i}] of {rows} x {cols} {dtype} {isa}: {g} for {w}", names[0]);
            }
        }
        found[0].2.clone()
    }

    fn all<const CENTRE: bool>() {
        let mut rng = Rng::new();
        for kernel in &table::<CENTRE>() {
            for (rows, cols) in
                [(0, 3), (3, 0), (5, 1), (7, 3), (3, 16), (4, 67), (2, 131), (3, 2049), (1, 5003), (3, 4127)]
            {
                for offset in [0.0, 300.0] {
                    let numbers = |n: usize, rng: &mut Rng| {
                        Data::new(
                            kernel.0,
                            (0..n).map(|_| Number::Real(offset + 2.0 * rng.signed())).collect::<Vec<_>>(),
                        )
                    };
                    let src = numbers(rows * cols, &mut rng);
                    let (scale, shift) = (numbers(cols, &mut rng), numbers(cols, &mut rng));
                    let offset_scale =
                        if offset == 0.0 { [&src, &scale, &shift] } else { [&src, &src, &src] };
                    let given = if offset == 0.0 {
                        [rng.next() & 1 != 0, CENTRE && rng.next() & 1 != 0]
                    } else {
                        [false; 2]
                    };
                    for isa in Isa::available() {
                        let case = |threads| Case { rows, cols, data: offset_scale, given, threads, isa };
                        assert_eq!(check::<CENTRE>(kernel, &case(1)), check::<CENTRE>(kernel, &case(3)));
                    }
                }
            }
        }
    }

    #[test]
    fn layer_norms_are_the_references() {
        all::<true>();
    }

    #[test]
    fn rms_norms_are_the_references() {
        all::<false>();
    }

    /// The elements that are looked at for one near the mean are all far from it.
    #[test]
    fn outliers_cost_no_accuracy() {
        let (mut rng, cols) = (Rng::new(), 5003);
        for far in [50.0, 3000.0] {
            let mut row: Vec<f64> = (0..cols).map(|_| rng.signed()).collect();
            for at in [0, cols / 2, cols - 1] {
                row[at] = far;
            }
            for kernel in &table::<true>() {
                let src = Data::new(kernel.0, row.iter().map(|x| Number::Real(*x)));
                for isa in Isa::available() {
                    let case = Case { rows: 1, cols, data: [&src; 3], given: [false; 2], threads: 1, isa };
                    check::<true>(kernel, &case);
                }
            }
        }
    }

    /// What fills the end of a row up to a vector is nothing, whatever the mean is rounded to.
    #[test]
    fn the_end_of_a_row_adds_nothing() {
        let cols = 17;
        let row = (0..cols).map(|i| Number::Real(if i % 8 == 0 { 1032.0 } else { 1024.0 }));
        for kernel in &table::<true>() {
            let src = Data::new(kernel.0, row.clone());
            for isa in Isa::available() {
                let case = Case { rows: 1, cols, data: [&src; 3], given: [false; 2], threads: 1, isa };
                check::<true>(kernel, &case);
            }
        }
    }

    /// Squares of the differences to the mean have a sum where those to the first element have none.
    #[test]
    fn large_outliers_have_a_variance() {
        let mut row = vec![1.0; 4096];
        for at in [0, 2048] {
            row[at] = 1e18;
        }
        for kernel in &table::<true>()[1..] {
            let src = Data::new(kernel.0, row.iter().map(|x| Number::Real(*x)));
            for isa in Isa::available() {
                let case = Case { rows: 1, cols: 4096, data: [&src; 3], given: [false; 2], threads: 1, isa };
                check::<true>(kernel, &case);
            }
        }
    }

    /// Runs the kernel for bf16 over rows of `x`, with a scale or without; into their own memory if `in_place`.
    fn of_bf16<const CENTRE: bool>(
        isa: Isa,
        x: &[bf16],
        cols: usize,
        scale: &[bf16],
        in_place: bool,
    ) -> Vec<bf16> {
        let mut out = x.to_vec();
        let src = if in_place { out.as_ptr() } else { x.as_ptr() };
        let args = NormArgs {
            rows: x.len() / cols,
            cols,
            epsilon: 1e-5,
            src: src.cast(),
            scale: if scale.is_empty() { std::ptr::null() } else { scale.as_ptr().cast() },
            shift: std::ptr::null(),
            dst: out.as_mut_ptr().cast(),
            mean: std::ptr::null_mut(),
            factor: std::ptr::null_mut(),
        };
        // SAFETY: the vectors' own memory, of these sizes.
        unsafe { (table::<CENTRE>()[1].2)(isa, &Threads(1), &args) }.unwrap();
        out
    }

    #[test]
    fn rows_may_be_in_place() {
        let mut rng = Rng::new();
        for cols in [3, 67, 1000, 3073, 9001] {
            let x: Vec<bf16> = (0..5 * cols).map(|_| bf16::from_f64(rng.signed())).collect();
            let scale: Vec<bf16> = x[..cols].to_vec();
            for isa in Isa::available() {
                let run = |in_place| of_bf16::<true>(isa, &x, cols, &scale, in_place);
                assert_eq!(run(true), run(false), "{cols} {isa}");
            }
        }
    }

    /// Rows that end within lines, wherever they begin.
    fn streamed<S: Cell<A>, A: Compute, const CENTRE: bool>() {
        let mut rng = Rng::new();
        // The last two are shared by threads.
        for (rows, cols) in [(40, 3), (9, 37), (5, 64), (7, 333), (140, 333), (12, 4100)] {
            let x: Vec<S> = (0..rows * cols).map(|_| S::write(A::from_f64(rng.signed()))).collect();
            let columns = [x.as_ptr(), if cols == 333 { std::ptr::null() } else { x.as_ptr() }];
            for isa in Isa::available() {
                for odd in [0, 1, 13] {
                    let run = |stream: bool, threads: usize| {
                        let mut out: Vec<S> = vec![S::write(A::from_f64(7.0)); rows * cols + odd + 16];
                        let args = NormArgs {
                            rows,
                            cols,
                            epsilon: 1e-5,
                            src: x.as_ptr().cast(),
                            scale: columns[0].cast(),
                            shift: columns[1].cast(),
                            dst: out[odd..].as_mut_ptr().cast(),
                            mean: std::ptr::null_mut(),
                            factor: std::ptr::null_mut(),
                        };
                        let par = Threads(threads);
                        // SAFETY: the vectors' own memory, of these sizes.
                        unsafe { run_with::<S, A, S, CENTRE>(isa, &par, &args, columns, stream) }.unwrap();
                        out.iter().map(|x| x.read().to_f64().to_bits()).collect::<Vec<_>>()
                    };
                    let plain = run(false, 1);
                    assert!(
                        plain[..odd].iter().chain(&plain[odd + rows * cols..]).all(|&b| b == 7f64.to_bits())
                    );
                    for threads in [1, 2] {
                        assert!(run(true, threads) == plain, "{rows} x {cols} {isa} from {odd}");
                    }
                }
            }
        }
    }

    #[test]
    fn streaming_gives_the_same_bits() {
        streamed::<f32, f32, true>();
        streamed::<f32, f32, false>();
        streamed::<bf16, f32, true>();
        streamed::<f16, f32, false>();
        streamed::<f64, f64, true>();
    }

    #[test]
    fn results_may_be_subnormal_and_minus_nothing() {
        let (mut rng, cols) = (Rng::new(), 167);
        let x: Vec<bf16> = (0..3 * cols).map(|_| bf16::from_f64(rng.signed())).collect();
        let least = 2f64.powi(-133);
        for isa in Isa::available() {
            let tiny = vec![bf16::from_f64(2f64.powi(-129)); cols];
            let (plain, small) =
                (of_bf16::<true>(isa, &x, cols, &[], false), of_bf16::<true>(isa, &x, cols, &tiny, false));
            for (p, s) in plain.iter().zip(&small) {
                // A rounding of the one and one of the other.
                let (want, found) = (p.to_f64() * 2f64.powi(-129), s.to_f64());
                assert!(
                    (want - found).abs() <= 0.5 * least + want.abs() / 200.0,
                    "{isa}: {found:e} for {want:e}"
                );
            }
            let nothing = [bf16::NEG_ZERO, bf16::ONE, bf16::ZERO, bf16::NEG_ZERO];
            let nothing: Vec<bf16> = nothing.into_iter().cycle().take(2 * 64).collect();
            for (x, y) in nothing.iter().zip(of_bf16::<false>(isa, &nothing, 64, &[], false)) {
                assert_eq!(
                    (x.is_sign_negative(), x.to_f32() == 0.0),
                    (y.is_sign_negative(), y.to_f32() == 0.0),
                    "{isa}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_finite_spoils_its_row_only() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for at in [0, 5, 36] {
                let mut x = vec![1.0; 3 * 37];
                x.iter_mut().enumerate().for_each(|(i, x)| *x += (i % 7) as f64);
                x[37 + at] = bad;
                let src = Data::new(DType::F32, x.into_iter().map(Number::Real));
                let isa = *Isa::available().last().unwrap();
                let case = Case { rows: 3, cols: 37, data: [&src; 3], given: [false; 2], threads: 1, isa };
                check::<true>(&table::<true>()[2], &case);
            }
        }
    }
}
