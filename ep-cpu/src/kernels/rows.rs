//! The engine behind softmax and log-softmax over the last dimension of a `[rows, cols]` matrix.
//!
//! Each row is read for its maximum, then for the sum of `exp(x - max)`, then scaled. Rows are worked on in
//! vectors of fixed length; a short last vector is padded with `-inf`, which is no larger than any
//! maximum and adds nothing to any sum. A NaN is passed over by the maximum and comes back through the sum,
//! as does the `inf - inf` of a row with `+inf` or of nothing but `-inf`: such rows are NaN throughout.

use crate::isa::{Body, Isa};
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::{Cell, Real};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use half::{bf16, f16};

/// Arguments of a [`RowsFn`].
#[derive(Clone, Copy, Debug)]
pub struct RowsArgs {
    /// How many rows.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// The dense row-major source, aligned to its elements.
    pub src: *const u8,
    /// The dense row-major destination, aligned to its elements. May be the source where elements of both
    /// have one size.
    pub dst: *mut u8,
}

/// Softmax or log-softmax of each row.
///
/// Computes in f64 if either dtype is f64, else in f32, and rounds once. Below the smallest normal number of
/// that type, `exp(x - max)` counts as zero. The result does not depend on the instruction set or the
/// number of threads.
///
/// # Errors
/// `InvalidArgument` if the matrix has more elements than an address space holds; `OutOfMemory` if there is
/// none for one row of intermediate values; those of `par`.
///
/// # Safety
/// `src` is readable and `dst` writable for `rows * cols` elements, with no other access until this returns.
/// They do not overlap, unless their elements have one size and the addresses are equal.
pub type RowsFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &RowsArgs) -> Result<()>;

/// Source and destination dtypes and the kernel for them.
pub(super) type Row = (DType, DType, RowsFn);

/// All pairs of floating-point dtypes.
pub(super) const fn table<const LOG: bool>() -> [Row; 16] {
    use DType as D;
    [
        (D::F16, D::F16, run::<f16, f16, f32, LOG>),
        (D::F16, D::BF16, run::<f16, bf16, f32, LOG>),
        (D::F16, D::F32, run::<f16, f32, f32, LOG>),
        (D::F16, D::F64, run::<f16, f64, f64, LOG>),
        (D::BF16, D::F16, run::<bf16, f16, f32, LOG>),
        (D::BF16, D::BF16, run::<bf16, bf16, f32, LOG>),
        (D::BF16, D::F32, run::<bf16, f32, f32, LOG>),
        (D::BF16, D::F64, run::<bf16, f64, f64, LOG>),
        (D::F32, D::F16, run::<f32, f16, f32, LOG>),
        (D::F32, D::BF16, run::<f32, bf16, f32, LOG>),
        (D::F32, D::F32, run::<f32, f32, f32, LOG>),
        (D::F32, D::F64, run::<f32, f64, f64, LOG>),
        (D::F64, D::F16, run::<f64, f16, f64, LOG>),
        (D::F64, D::BF16, run::<f64, bf16, f64, LOG>),
        (D::F64, D::F32, run::<f64, f32, f64, LOG>),
        (D::F64, D::F64, run::<f64, f64, f64, LOG>),
    ]
}

/// Values computed on at once in short rows: one of the widest vectors.
const SHORT: usize = 16;
/// The same in rows of at least as many columns. Loops this long are compiled as loops, which keeps all values
/// of `exp_nonpositive` in vector registers at every level; shorter ones are unrolled first and come out worse.
const LONG: usize = 64;
/// Values added up in their own type before the sum moves to f64, which keeps long f32 rows accurate.
const BLOCK: usize = 4096;

/// A value for each lane. Plain loops: they become vector instructions, which array combinators do not.
#[inline(always)]
fn lanes<A: Real, const L: usize>(f: impl Fn(usize) -> A) -> [A; L] {
    let mut lanes = [A::ZERO; L];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = f(i);
    }
    lanes
}

/// Halves the vector until one value is left.
#[inline(always)]
fn reduce<A: Real, const L: usize>(mut lanes: [A; L], f: impl Fn(A, A) -> A) -> A {
    let mut half = L / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn larger<A: Real>(x: A, max: A) -> A {
    if x > max { x } else { max }
}

/// Reads a whole vector.
///
/// # Safety
/// `at` is readable for `L` elements and aligned to them.
#[inline(always)]
unsafe fn read<S: Cell<A>, A: Real, const L: usize>(at: *const S) -> [A; L] {
    // SAFETY: the caller's promise.
    let x = unsafe { at.cast::<[S; L]>().read() };
    lanes(|i| x[i].read())
}

/// Reads the first `len` lanes; the others are `-inf`.
///
/// # Safety
/// `at` is readable for `len` elements and aligned to them; `len < L`.
#[inline(always)]
unsafe fn read_part<S: Cell<A>, A: Real, const L: usize>(at: *const S, len: usize) -> [A; L] {
    let mut x = [A::NEG_INFINITY; L];
    for (i, x) in x[..len].iter_mut().enumerate() {
        // SAFETY: `i < len`.
        *x = unsafe { at.add(i).read() }.read();
    }
    x
}

/// Writes a whole vector.
///
/// # Safety
/// `at` is writable for `L` elements and aligned to them.
#[inline(always)]
unsafe fn write<D: Cell<A>, A: Real, const L: usize>(at: *mut D, x: [A; L]) {
    let mut out = [D::write(A::ZERO); L];
    for (out, x) in out.iter_mut().zip(x) {
        *out = D::write(x);
    }
    // SAFETY: the caller's promise.
    unsafe { at.cast::<[D; L]>().write(out) };
}

/// Writes the first `len` lanes.
///
/// # Safety
/// `at` is writable for `len` elements and aligned to them; `len < L`.
#[inline(always)]
unsafe fn write_part<D: Cell<A>, A: Real, const L: usize>(at: *mut D, len: usize, x: [A; L]) {
    for (i, x) in x[..len].iter().enumerate() {
        // SAFETY: `i < len`.
        unsafe { at.add(i).write(D::write(*x)) };
    }
}

/// Replaces a row by `f` of each value.
///
/// # Safety
/// `src` is readable and `dst` writable for `cols` elements; both are aligned to theirs. They do not overlap,
/// unless their elements have one size and the addresses are the same.
#[inline(always)]
unsafe fn map<S: Cell<A>, D: Cell<A>, A: Real, const L: usize>(
    src: *const S,
    dst: *mut D,
    cols: usize,
    f: impl Fn(A) -> A,
) {
    let whole = cols - cols % L;
    for at in (0..whole).step_by(L) {
        // SAFETY: a whole vector of both rows.
        unsafe {
            let x: [A; L] = read(src.add(at));
            write(dst.add(at), lanes::<A, L>(|i| f(x[i])));
        }
    }
    if whole < cols {
        // SAFETY: what is left of both rows.
        unsafe {
            let x: [A; L] = read_part(src.add(whole), cols - whole);
            write_part(dst.add(whole), cols - whole, lanes::<A, L>(|i| f(x[i])));
        }
    }
}

/// The largest value of a row, passing over NaN; `-inf` if there is none.
///
/// # Safety
/// `src` is readable for `cols` elements and aligned to them.
#[inline(always)]
unsafe fn maximum<S: Cell<A>, A: Real, const L: usize>(src: *const S, cols: usize) -> A {
    let whole = cols - cols % L;
    let mut max = [A::NEG_INFINITY; L];
    for at in (0..whole).step_by(L) {
        // SAFETY: a whole vector of the row.
        let x: [A; L] = unsafe { read(src.add(at)) };
        max = lanes(|i| larger(x[i], max[i]));
    }
    if whole < cols {
        // SAFETY: what is left of the row.
        let x: [A; L] = unsafe { read_part(src.add(whole), cols - whole) };
        max = lanes(|i| larger(x[i], max[i]));
    }
    reduce(max, larger)
}

/// The sum of `exp(x - max)` over a row. Unless `LOG`, its terms are stored in `exps`.
///
/// # Safety
/// As for [`map`], `exps` being the destination; with `LOG` it is not used.
#[inline(always)]
unsafe fn exponentials<S: Cell<A>, A: Real + Cell<A>, const LOG: bool, const L: usize>(
    src: *const S,
    exps: *mut A,
    cols: usize,
    max: A,
) -> f64 {
    let whole = cols - cols % L;
    let mut total = 0.0;
    for block in (0..cols).step_by(BLOCK) {
        let mut sum = [A::ZERO; L];
        for at in (block..whole.min(block + BLOCK)).step_by(L) {
            // SAFETY: a whole vector of both rows.
            unsafe {
                let x: [A; L] = read(src.add(at));
                let e: [A; L] = lanes(|i| A::exp_nonpositive(x[i] - max));
                sum = lanes(|i| sum[i] + e[i]);
                if !LOG {
                    write(exps.add(at), e);
                }
            }
        }
        total += reduce(sum, A::add).to_f64();
    }
    if whole < cols {
        // SAFETY: what is left of both rows.
        unsafe {
            let x: [A; L] = read_part(src.add(whole), cols - whole);
            let e: [A; L] = lanes(|i| A::exp_nonpositive(x[i] - max));
            total += reduce(e, A::add).to_f64();
            if !LOG {
                write_part(exps.add(whole), cols - whole, e);
            }
        }
    }
    total
}

/// Some whole rows. Made only where `src`, `dst` and `exps` satisfy what [`run`] asks for.
struct Rows<S, D, A, const LOG: bool, const L: usize> {
    rows: usize,
    cols: usize,
    src: *const S,
    dst: *mut D,
    /// Room for a row of exponentials where the destination cannot hold them; else null.
    exps: *mut A,
}

impl<S: Cell<A>, D: Cell<A>, A: Real + Cell<A>, const LOG: bool, const L: usize> Body
    for Rows<S, D, A, LOG, L>
{
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let cols = self.cols;
        for row in 0..self.rows {
            // SAFETY: the row is inside the matrices, and `exps` or the destination's row has room for its
            // exponentials. Where the destination is the source, each vector is read before it is written.
            unsafe {
                let (src, dst) = (self.src.add(row * cols), self.dst.add(row * cols));
                let exps = if self.exps.is_null() { dst.cast::<A>() } else { self.exps };
                let max = maximum::<S, A, L>(src, cols);
                let sum = exponentials::<S, A, LOG, L>(src, exps, cols, max);
                if LOG {
                    let log_sum = A::from_f64(libm::log(sum));
                    map::<S, D, A, L>(src, dst, cols, |x| x - max - log_sum);
                } else {
                    let scale = A::from_f64(1.0 / sum);
                    map::<A, D, A, L>(exps.cast_const(), dst, cols, |e| e * scale);
                }
            }
        }
    }
}

unsafe fn run<S: Cell<A>, D: Cell<A>, A: Real + Cell<A>, const LOG: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &RowsArgs,
) -> Result<()> {
    let &RowsArgs { rows, cols, .. } = args;
    let size = size_of::<S>().max(size_of::<D>());
    if rows.checked_mul(cols).and_then(|n| n.checked_mul(size)).is_none_or(|n| n > isize::MAX as usize) {
        return Err(Error::invalid(format!("softmax of {rows} rows of {cols}: no address space holds that")));
    }
    if cols == 0 {
        return Ok(());
    }
    let (src, dst) = (Shared::new(args.src.cast_mut().cast::<S>()), Shared::new(args.dst.cast::<D>()));
    // Exponentials cost about as much as this many bytes of traffic each.
    const EXP_BYTES: usize = 16;
    for_ranges(par, rows, cols.saturating_mul(EXP_BYTES), 1, |range| {
        let mut room: Vec<A> = Vec::new();
        let needs_room = !LOG && D::DTYPE != A::DTYPE;
        if needs_room {
            room.try_reserve_exact(cols).map_err(|_| {
                Error::out_of_memory(format!(
                    "softmax needs {} bytes for one row of {cols}",
                    cols.saturating_mul(size_of::<A>())
                ))
            })?;
        }
        let exps = if needs_room { room.as_mut_ptr() } else { std::ptr::null_mut() };
        // SAFETY: the rows of this range are the caller's, and only this task's to write.
        let (src, dst) = unsafe { (src.get().add(range.start * cols), dst.get().add(range.start * cols)) };
        let rows = range.len();
        if cols < LONG {
            isa.dispatch(Rows::<S, D, A, LOG, SHORT> { rows, cols, src, dst, exps });
        } else {
            isa.dispatch(Rows::<S, D, A, LOG, LONG> { rows, cols, src, dst, exps });
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng, Threads, bytes_of, decode, encode, epsilon, words};
    use crate::kernels::{log_softmax, softmax};
    use ep_core::parallel::Serial;
    use primitives::reference;

    struct Case {
        log: bool,
        src: DType,
        dst: DType,
        cols: usize,
        x: Vec<u8>,
    }

    impl Case {
        fn rows(&self) -> usize {
            self.x.len() / (self.cols * self.src.size().unwrap())
        }

        fn run(&self, isa: Isa, par: &dyn Parallel, src: *const u8, dst: *mut u8) {
            let lookup = if self.log { log_softmax::lookup } else { softmax::lookup };
            let args = RowsArgs { rows: self.rows(), cols: self.cols, src, dst };
            // SAFETY: the callers below give buffers of the case's size.
            unsafe { lookup(self.src, self.dst).unwrap()(isa, par, &args) }.unwrap();
        }

        /// Runs at every level, checks against the reference, and that every way gives the same bits.
        fn check(&self) {
            let count = self.rows() * self.cols;
            let x = decode(self.src, &self.x);
            let want = if self.log {
                reference::log_softmax(self.cols, &x)
            } else {
                reference::softmax(self.cols, &x)
            };
            let aligned = words(&self.x);
            let mut first: Option<Vec<u8>> = None;
            for isa in Isa::available() {
                for par in [&Serial as &dyn Parallel, &Threads(3)] {
                    let size = count * self.dst.size().unwrap();
                    let mut out = Guarded::<u64>::new(size.div_ceil(8));
                    self.run(isa, par, aligned.as_ptr().cast(), out.ptr().cast());
                    let got = bytes_of(out.written(), size);
                    self.compare(isa, &x, &decode(self.dst, &got), &want);
                    assert!(got == *first.get_or_insert(got.clone()), "{} differs in bits", self.name(isa));
                }
            }
            if self.src == self.dst {
                let mut both = aligned;
                let p = both.as_mut_ptr().cast();
                self.run(Isa::BASELINE, &Threads(2), p, p);
                assert!(
                    bytes_of(&both, self.x.len()) == first.unwrap(),
                    "{} in place",
                    self.name(Isa::BASELINE)
                );
            }
        }

        fn name(&self, isa: Isa) -> String {
            let op = if self.log { "log_softmax" } else { "softmax" };
            format!("{op} {} -> {} [{}, {}] at {isa}", self.src, self.dst, self.rows(), self.cols)
        }

        fn compare(&self, isa: Isa, x: &[f64], got: &[f64], want: &[f64]) {
            let compute =
                if [self.src, self.dst].contains(&DType::F64) { f64::EPSILON } else { f32::EPSILON.into() };
            let smallest = match self.dst {
                DType::F16 => 2f64.powi(-24),
                _ => 1.2e-38,
            };
            for (row, (got, want)) in got.chunks(self.cols).zip(want.chunks(self.cols)).enumerate() {
                let largest = x[row * self.cols..][..self.cols].iter().filter(|v| v.is_finite());
                let largest = largest.fold(1.0f64, |m, v| m.max(v.abs()));
                for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
                    // The rounding of `x - max` weighs in by its size.
                    let relative = compute * (2.0 * largest + 8.0) * if self.log { 0.0 } else { 1.0 };
                    let absolute = compute * (largest + 4.0) * if self.log { 2.0 } else { 0.0 };
                    let allowed = w.abs() * (relative + epsilon(self.dst) * 0.501) + absolute + smallest;
                    let fits = (g - w).abs() <= allowed || g == w || g.is_nan() && w.is_nan();
                    assert!(fits, "{} row {row} col {i}: {g:e}, not {w:e}", self.name(isa));
                }
            }
        }
    }

    /// All ops and dtypes over rows made by `value(row, col)`.
    fn check_all(rows: usize, cols: usize, mut value: impl FnMut(usize, usize) -> f64) {
        let x: Vec<f64> = (0..rows * cols).map(|i| value(i / cols, i % cols)).collect();
        for (src, dst) in softmax::rows() {
            for log in [false, true] {
                Case { log, src, dst, cols, x: encode(src, &x) }.check();
            }
        }
    }

    #[test]
    fn random_rows_of_all_widths() {
        let mut rng = Rng::new();
        for (rows, cols) in
            [(3, 1), (5, 2), (4, 15), (4, 16), (3, 17), (2, 33), (3, 63), (2, 64), (3, 100), (1, 4101)]
        {
            check_all(rows, cols, |_, _| rng.signed() * 12.0);
        }
    }

    #[test]
    fn many_rows_are_shared_out() {
        let mut rng = Rng::new();
        let x: Vec<f64> = (0..700 * 67).map(|_| rng.signed() * 5.0).collect();
        for (src, dst) in [(DType::F32, DType::F32), (DType::F16, DType::F32), (DType::BF16, DType::BF16)] {
            for log in [false, true] {
                Case { log, src, dst, cols: 67, x: encode(src, &x) }.check();
            }
        }
    }

    #[test]
    fn specials_reach_the_whole_row_or_none_of_it() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let mut rng = Rng::new();
        for cols in [1, 5, 16, 37, 67] {
            let odd = rng.next() as usize % cols;
            check_all(7, cols, |row, col| match (row, col == odd) {
                (0, true) => nan,
                (1, true) => inf,
                (2, _) => -inf,
                (3, true) => -inf,
                (4, true) => 30000.0,
                (4, false) => -30000.0,
                (5, _) => -0.0,
                _ => rng.signed(),
            });
        }
    }

    #[test]
    fn one_column_is_certain_and_empty_is_nothing() {
        for (src, dst) in softmax::rows() {
            for (log, want) in [(false, 1.0), (true, 0.0)] {
                let case = Case { log, src, dst, cols: 1, x: encode(src, &[-3.5, 1e4]) };
                let mut out = [0u64; 2];
                case.run(Isa::BASELINE, &Serial, words(&case.x).as_ptr().cast(), out.as_mut_ptr().cast());
                let bytes: Vec<u8> = out.iter().flat_map(|w| w.to_ne_bytes()).collect();
                assert_eq!(decode(dst, &bytes[..2 * dst.size().unwrap()]), [want; 2]);
            }
        }
        let nowhere = std::ptr::null_mut();
        for (rows, cols) in [(0, 5), (5, 0), (0, 0)] {
            let args = RowsArgs { rows, cols, src: nowhere, dst: nowhere };
            // SAFETY: there is nothing to read or write.
            unsafe { softmax::lookup(DType::F16, DType::F32).unwrap()(Isa::BASELINE, &Threads(2), &args) }
                .unwrap();
        }
    }

    #[test]
    fn long_rows_stay_accurate() {
        check_row_sum(DType::F32, 1 << 20);
        assert!(softmax::lookup(DType::F32, DType::I32).is_none());
        assert_eq!(log_softmax::rows().count(), 16);
    }

    /// Equal inputs have equal outputs, `1 / cols`, whatever the order of adding.
    fn check_row_sum(dtype: DType, cols: usize) {
        let case = Case { log: false, src: dtype, dst: dtype, cols, x: encode(dtype, &vec![0.25; cols]) };
        let mut out = words(&case.x);
        case.run(
            *Isa::available().last().unwrap(),
            &Serial,
            words(&case.x).as_ptr().cast(),
            out.as_mut_ptr().cast(),
        );
        let out = bytes_of(&out, case.x.len());
        assert!(decode(dtype, &out).iter().all(|&y| y == 1.0 / cols as f64));
    }
}
