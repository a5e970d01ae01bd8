//! Combining the elements along an axis: `[outer, reduced, inner]` to `[outer, inner]`.
//!
//! Elements are combined in three steps whose order depends on nothing but the shape, and for sums of f32 and of halves and extremes of
//! floating-point numbers (where zeros of both signs are equal) the level of the CPU, so that the result has the same bits on any
//! number of threads: in *lanes* (or columns) inside a chunk of fixed size, from lane to lane at
//! its end, and from chunk to chunk in order. Sums and products of f16, bf16 and f32 are computed in f64, which
//! costs nothing where memory is the limit.

mod columns;
mod extremes;
mod fold;
mod rows;
mod source;
mod sums;
#[cfg(test)]
mod tests;

pub(crate) use extremes::{BLOCK, first};
pub(crate) use fold::End;

use crate::isa::Isa;
use crate::kernels::elem::{Bool, Complex, Storage};
use crate::kernels::raw::{Shared, for_ranges};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use fold::{All, Any, Finish, Fold, Max, Mean, Min, Prod, Sum};
use half::{bf16, f16};

/// The reductions, in the order of the schema's selector.
pub const OPS: &[&str] = &["sum", "mean", "max", "min", "prod", "any", "all"];

/// Arguments of a [`ReduceFn`].
#[derive(Clone, Copy, Debug)]
pub struct ReduceArgs {
    /// Dimensions before the axis.
    pub outer: usize,
    /// Length of the axis.
    pub reduced: usize,
    /// Dimensions behind it.
    pub inner: usize,
    /// `[outer, reduced, inner]`, aligned to its elements.
    pub src: *const u8,
    /// `[outer, inner]`, aligned to its elements.
    pub dst: *mut u8,
}

/// Reduces.
///
/// # Errors
/// `InvalidArgument` for a shape that no address space holds; `OutOfMemory` if there is none for the partial
/// results of a long axis; those of `par`.
///
/// # Safety
/// `src` is readable for `outer * reduced * inner` elements and `dst` writable for `outer * inner`, with no other
/// access until this returns; they do not overlap.
pub type ReduceFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &ReduceArgs) -> Result<()>;

/// One row of the table: index into [`OPS`], dtypes, kernel.
#[derive(Clone, Copy)]
pub struct Row {
    /// Which reduction.
    pub op: usize,
    /// Source dtype.
    pub src: DType,
    /// Destination dtype.
    pub dst: DType,
    kernel: ReduceFn,
}

const fn row<S: Storage, D: Storage, F>(op: usize) -> Row
where
    F: Fold<S::Value, Acc: Finish<D>>,
{
    Row { op, src: S::DTYPE, dst: D::DTYPE, kernel: run::<S, D, F> }
}

/// As [`row`], of a signed integer with the kernel of the unsigned `S` of its size, for a reduction that gives both the same bits.
const fn of_bits<S: Storage, D: Storage, F>(op: usize, [src, dst]: [DType; 2]) -> Row
where
    F: Fold<S::Value, Acc: Finish<D>>,
{
    Row { src, dst, ..row::<S, D, F>(op) }
}

const SUM: usize = 0;
const MEAN: usize = 1;
const MAX: usize = 2;
const MIN: usize = 3;
const PROD: usize = 4;
const ANY: usize = 5;
const ALL: usize = 6;

/// Sums and products of one dtype, accumulated in `$acc`.
macro_rules! arithmetic {
    ($($src:ty => $dst:ty, $acc:ty;)*) => {
        [$(row::<$src, $dst, Sum<$acc>>(SUM), row::<$src, $dst, Prod<$acc>>(PROD)),*]
    };
}

/// Sums and products of signed integers that wrap.
macro_rules! wrapping {
    ($($src:ident as $t:ty;)*) => {
        [$(
            of_bits::<$t, $t, Sum<$t>>(SUM, [DType::$src; 2]),
            of_bits::<$t, $t, Prod<$t>>(PROD, [DType::$src; 2]),
        )*]
    };
}

macro_rules! means {
    ($($src:ty => $dst:ty, $acc:ty;)*) => { [$(row::<$src, $dst, Mean<$acc>>(MEAN)),*] };
}

macro_rules! extremes {
    ($($t:ty),*) => { [$(row::<$t, $t, Max>(MAX), row::<$t, $t, Min>(MIN)),*] };
}

macro_rules! tests_of {
    ($($t:ty),*) => { [$(row::<$t, Bool, Any>(ANY), row::<$t, Bool, All>(ALL)),*] };
}

macro_rules! tests_of_bits {
    ($($src:ident as $t:ty;)*) => {
        [$(
            of_bits::<$t, Bool, Any>(ANY, [DType::$src, DType::BOOL]),
            of_bits::<$t, Bool, All>(ALL, [DType::$src, DType::BOOL]),
        )*]
    };
}

type C64 = Complex<f32>;
type C128 = Complex<f64>;

static ARITHMETIC: [Row; 38] = arithmetic! {
    Bool => i64, i64;
    u8 => u8, u8; u16 => u16, u16; u32 => u32, u32; u64 => u64, u64;
    i8 => i64, i64; u8 => i64, i64; i16 => i64, i64; u16 => i64, i64; i32 => i64, i64; u32 => i64, i64;
    f16 => f16, f64; bf16 => bf16, f64; f32 => f32, f64; f64 => f64, f64;
    f16 => f32, f64; bf16 => f32, f64;
    C64 => C64, C128; C128 => C128, C128;
};
static WRAPPING: [Row; 8] = wrapping! { I8 as u8; I16 as u16; I32 as u32; I64 as u64; };
static MEANS: [Row; 8] = means! {
    f16 => f16, f64; bf16 => bf16, f64; f32 => f32, f64; f64 => f64, f64;
    f16 => f32, f64; bf16 => f32, f64;
    C64 => C64, C128; C128 => C128, C128;
};
static EXTREMES: [Row; 26] = extremes!(Bool, i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64);
static TESTS: [Row; 22] = tests_of!(Bool, u8, u16, u32, u64, f16, bf16, f32, f64, C64, C128);
static TESTS_OF_BITS: [Row; 8] = tests_of_bits! { I8 as u8; I16 as u16; I32 as u32; I64 as u64; };

/// All rows.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    ARITHMETIC.iter().chain(&WRAPPING).chain(&MEANS).chain(&EXTREMES).chain(&TESTS).chain(&TESTS_OF_BITS)
}

/// The kernel for a reduction and its dtypes.
pub fn lookup(op: usize, src: DType, dst: DType) -> Option<ReduceFn> {
    rows().find(|r| (r.op, r.src, r.dst) == (op, src, dst)).map(|r| r.kernel)
}

/// Elements of a chunk: the unit that is combined by itself.
const CHUNK: usize = 64 << 10;
/// Columns that are accumulated side by side.
const STRIP: usize = 1024;
/// Columns from which strips are wide enough for vectors; narrower rows are joined to such a width.
const NARROW: usize = 64;

/// How the work is cut; depends on the shape alone.
#[derive(Clone, Copy)]
struct Cut {
    /// Elements from one step of a strip to the next.
    stride: usize,
    /// Steps along the axis.
    steps: usize,
    /// Elements of a step that lie side by side, of which a strip has at most [`STRIP`].
    width: usize,
    /// How many rows of `inner` elements a step joins.
    joined: usize,
    /// Rows behind the last whole step.
    rest: usize,
    /// Steps of a chunk.
    chunk: usize,
}

impl Cut {
    fn new(reduced: usize, inner: usize) -> Cut {
        let joined = if inner == 0 || inner >= NARROW { 1 } else { NARROW.div_ceil(inner) };
        let joined = if reduced / joined < 4 { 1 } else { joined };
        let width = inner * joined;
        let steps = reduced / joined;
        Cut {
            stride: width,
            steps,
            width,
            joined,
            rest: reduced % joined,
            chunk: (CHUNK / width.clamp(1, STRIP)).max(16),
        }
    }

    fn chunks(&self) -> usize {
        self.steps.div_ceil(self.chunk).max(1)
    }
}

/// # Safety
/// As for [`ReduceFn`].
unsafe fn run<S: Storage, D: Storage, F>(isa: Isa, par: &dyn Parallel, args: &ReduceArgs) -> Result<()>
where
    F: Fold<S::Value, Acc: Finish<D>>,
{
    let &ReduceArgs { outer, reduced, inner, .. } = args;
    let size = size_of::<S>().max(size_of::<D>());
    let total = outer.checked_mul(reduced.max(1)).and_then(|n| n.checked_mul(inner)?.checked_mul(size));
    if total.is_none_or(|n| n > isize::MAX as usize) {
        return Err(Error::invalid(format!(
            "a reduction of [{outer}, {reduced}, {inner}] elements: no address space holds that"
        )));
    }
    if outer == 0 || inner == 0 {
        return Ok(());
    }
    let (src, dst) = (Shared::new(args.src.cast_mut().cast::<S>()), Shared::new(args.dst.cast::<D>()));
    // SAFETY: the caller's promise, in each case.
    unsafe {
        if inner > 1 {
            columns::run::<S, D, F>(isa, par, [outer, reduced, inner], src, dst)
        } else if reduced < rows::SHORT {
            for_ranges(par, outer, reduced.max(1) * size_of::<S>() + size_of::<D>(), rows::GROUP, |range| {
                let (src, dst) = (src.get().add(range.start * reduced), dst.get().add(range.start));
                isa.dispatch(rows::Short::<S, D, F>::new(range.len(), reduced, src, dst));
                Ok(())
            })
        } else {
            rows::run::<S, D, F>(isa, par, outer, reduced, src, dst)
        }
    }
}

/// Room for partial results.
fn room<A: Copy>(count: usize, value: A) -> Result<Vec<A>> {
    let mut room = Vec::new();
    room.try_reserve_exact(count)
        .map_err(|_| Error::out_of_memory(format!("a reduction needs {count} partial results")))?;
    room.resize(count, value);
    Ok(room)
}
