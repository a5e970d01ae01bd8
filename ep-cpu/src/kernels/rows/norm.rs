//! Rows that are normalised: layer norm and RMS norm.
//!
//! A row is read for its mean, then for its variance, then scaled; after the first pass it lies in a cache, unless
//! it is very long. Sums are those of the differences to the row's first element, so that a large mean cancels
//! before anything is rounded, and move to f64 after each block.

use super::vector::{Body, Compute, Vector, dispatch};
use super::{LINE, UNROLL, elements, join, lanes, prefetch_line};
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
    let bytes = count * size_of::<S>();
    let stream = args.src != args.dst && stream::pays_for_rows(bytes, bytes.saturating_mul(2));
    let shared = Shared::new(std::ptr::from_ref(args).cast_mut());
    for_ranges(par, rows, cols.saturating_mul(COST_BYTES), 1, |range| {
        // SAFETY: the caller's arguments, which live until this returns.
        let args = unsafe { &*shared.get() };
        dispatch::<A, _>(
            isa,
            Rows::<S, CENTRE> { args, first: range.start, end: range.end, stream, element: PhantomData },
        );
        Ok(())
    })
}

/// Some rows. Made only where the arguments are what [`NormFn`] asks for.
struct Rows<'a, S, const CENTRE: bool> {
    args: &'a NormArgs,
    first: usize,
    end: usize,
    stream: bool,
    element: PhantomData<S>,
}

impl<S: Cell<A>, A: Compute, const CENTRE: bool> Body<A> for Rows<'_, S, CENTRE> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Rows { args, first, end, stream, .. } = self;
        let cols = args.cols;
        for row in first..end {
            // SAFETY: the row is inside of the matrices, and only this task's to write; so are its statistics.
            unsafe {
                let src = args.src.cast::<S>().add(row * cols);
                let first = src.read().read();
                // What is not finite is nothing to measure from.
                let pivot = if CENTRE && first.to_f64().is_finite() { first } else { A::ZERO };
                let mean =
                    if CENTRE { sum::<V, S, false>(src, cols, pivot, A::ZERO) / cols as f64 } else { 0.0 };
                let stored_mean = A::from_f64(pivot.to_f64() + mean);
                let (pivot, centre) = in_two(pivot.to_f64(), mean);
                let variance = sum::<V, S, true>(src, cols, pivot, centre) / cols as f64;
                let factor = A::from_f64(1.0 / (variance + args.epsilon).sqrt());
                if !args.mean.is_null() {
                    args.mean.cast::<A>().add(row).write(stored_mean);
                }
                if !args.factor.is_null() {
                    args.factor.cast::<A>().add(row).write(factor);
                }
                let line = Line::<V, S> {
                    src,
                    dst: args.dst.cast::<S>().add(row * cols),
                    scale: args.scale.cast(),
                    shift: args.shift.cast(),
                    pivot: V::splat(pivot),
                    centre: V::splat(centre),
                    factor: V::splat(factor),
                };
                if stream { line.write::<true>(cols) } else { line.write::<false>(cols) }
            }
        }
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

/// The sum over a row of `(x - pivot) - centre`, or of its square.
///
/// # Safety
/// `src` is readable for `len` elements.
#[inline(always)]
unsafe fn sum<V, S, const SQUARE: bool>(src: *const S, len: usize, pivot: V::Lane, centre: V::Lane) -> f64
where
    V: Vector,
    S: Cell<V::Lane>,
{
    let step = UNROLL * V::LANES;
    let (p, c) = (V::splat(pivot), V::splat(centre));
    let mut total = 0.0;
    for block in (0..len).step_by(BLOCK) {
        let end = len.min(block + BLOCK);
        let whole = end - (end - block) % step;
        let mut sum = [V::splat(V::Lane::ZERO); UNROLL];
        // SAFETY: all is within the row.
        unsafe {
            for at in (block..whole).step_by(step) {
                for (i, sum) in sum.iter_mut().enumerate() {
                    let x = V::load(src.add(at + i * V::LANES)).sub(p).sub(c);
                    *sum = if SQUARE { x.mul_add(x, *sum) } else { sum.add(x) };
                }
            }
            for at in (whole..end).step_by(V::LANES) {
                let n = V::LANES.min(end - at);
                let mut part = lanes(V::load_part(src.add(at), n, pivot).sub(p).sub(c));
                part[n..].fill(V::Lane::ZERO);
                let x = V::load(part.as_ptr());
                sum[0] = if SQUARE { x.mul_add(x, sum[0]) } else { sum[0].add(x) };
            }
        }
        total += join(sum, V::add).fold(V::add).first().to_f64();
    }
    total
}

/// A row on its way to the destination.
struct Line<V, S> {
    src: *const S,
    dst: *mut S,
    scale: *const S,
    shift: *const S,
    pivot: V,
    centre: V,
    factor: V,
}

impl<V: Vector, S: Cell<V::Lane>> Line<V, S> {
    /// # Safety
    /// The row, and what is given of scale and shift, have `len` elements.
    #[inline(always)]
    unsafe fn write<const STREAM: bool>(&self, len: usize) {
        let head = if STREAM { (self.dst.addr().wrapping_neg() % LINE / size_of::<S>()).min(len) } else { 0 };
        let step = UNROLL * V::LANES;
        let end = head + (len - head) / step * step;
        // SAFETY: all is within the row; each vector is read before it is written.
        unsafe {
            self.part(0, head);
            for at in (head..end).step_by(step) {
                for i in 0..UNROLL {
                    let at = at + i * V::LANES;
                    // The row behind this one, which is read next.
                    prefetch_line(self.src.wrapping_add(len + at));
                    let scale = |p: *const S| V::load(p.add(at));
                    let x = self.value(V::load(self.src.add(at)), scale);
                    if STREAM { x.stream(self.dst.add(at)) } else { x.store(self.dst.add(at)) }
                }
            }
            self.part(end, len);
        }
    }

    /// # Safety
    /// As [`Self::write`], for the elements `from..to`.
    #[inline(always)]
    unsafe fn part(&self, from: usize, to: usize) {
        for at in (from..to).step_by(V::LANES) {
            let n = V::LANES.min(to - at);
            // SAFETY: the caller's promise.
            unsafe {
                let scale = |p: *const S| V::load_part(p.add(at), n, V::Lane::ZERO);
                let x = V::load_part(self.src.add(at), n, V::Lane::ZERO);
                self.value(x, scale).store_part(self.dst.add(at), n);
            }
        }
    }

    /// The result for elements `x`; `column` reads an operand that has one element for each column.
    #[inline(always)]
    fn value(&self, x: V, column: impl Fn(*const S) -> V) -> V {
        let mut x = x.sub(self.pivot).sub(self.centre).mul(self.factor);
        match (self.scale.is_null(), self.shift.is_null()) {
            (true, true) => {}
            (false, true) => x = x.mul(column(self.scale)),
            (true, false) => x = x.add(column(self.shift)),
            (false, false) => x = x.mul_add(column(self.scale), column(self.shift)),
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
                [(0, 3), (3, 0), (5, 1), (7, 3), (3, 16), (4, 67), (2, 131), (3, 2049), (1, 5003)]
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
