//! Scatter-add: adds rows to the rows of an axis that indices name, the backward of a gather. `src` is
//! `[outer, num_indices, inner]`, `dst` is `[outer, processed, inner]`.
//!
//! Each element of the destination is the sum of what it was and its addends in the order of the indices, whichever
//! thread adds them: threads share out slabs, columns, or rows of the destination. Where rows of a large destination have
//! several addends the indices are sorted first (`scatter_runs`), so that each row is read and written
//! once. Rows of a few halves are added up in a buffer (`scatter_sums`).

use crate::isa::{Body, Isa};
use crate::kernels::gather::row_bytes;
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use crate::kernels::scatter_runs::{add_in_order, add_sorted};
use crate::kernels::sink::{FAR_BYTES, prefetch};
use crate::kernels::window::{Bad, Window};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use half::{bf16, f16};
use std::ops::Range;

pub use crate::kernels::window::{IndexMode, IndexType, Indices};

/// Arguments of a [`ScatterAddFn`]; the window is as in [`GatherArgs`](super::gather::GatherArgs).
#[derive(Clone, Copy, Debug)]
pub struct ScatterAddArgs {
    /// Slabs.
    pub outer: usize,
    /// Rows of a slab of the destination.
    pub processed: usize,
    /// Elements of a row.
    pub inner: usize,
    /// How many indices, and rows of a slab of the source.
    pub num_indices: usize,
    /// The index of the destination's first row.
    pub offset: usize,
    /// Rows of the whole axis; 0: those up to the destination's last.
    pub size: usize,
    /// What becomes of indices outside the axis.
    pub mode: IndexMode,
    /// The indices.
    pub indices: Indices,
    /// The dense source, aligned to its elements.
    pub src: *const u8,
    /// The dense destination, aligned to its elements.
    pub dst: *mut u8,
}

/// Adds. Integers wrap; f16 and bf16 add in f32 and round once per element. A row whose index is outside the window
/// is left out. Where either side is empty the indices are checked all the same.
///
/// # Errors
/// `InvalidArgument` for a window that is not within the axis, sizes that no address space holds, and an index
/// that the mode does not allow: the first one, by position and value; the destination then holds anything.
/// `OutOfMemory` if there is none to order the indices of f16 and bf16 in; those of `par`.
///
/// # Safety
/// `indices` and `src` are readable and `dst` readable and writable for all elements, with no other access until
/// this returns; `dst` overlaps neither. Both are aligned to their elements.
pub type ScatterAddFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &ScatterAddArgs) -> Result<()>;

/// The dtypes and their kernels.
const TABLE: [(DType, ScatterAddFn); 14] = {
    use DType as D;
    [
        (D::I8, add_in_place::<u8, 1>),
        (D::U8, add_in_place::<u8, 1>),
        (D::I16, add_in_place::<u16, 1>),
        (D::U16, add_in_place::<u16, 1>),
        (D::I32, add_in_place::<u32, 1>),
        (D::U32, add_in_place::<u32, 1>),
        (D::I64, add_in_place::<u64, 1>),
        (D::U64, add_in_place::<u64, 1>),
        (D::F16, add_in_order::<f16>),
        (D::BF16, add_in_order::<bf16>),
        (D::F32, add_in_place::<f32, 1>),
        (D::F64, add_in_place::<f64, 1>),
        (D::COMPLEX64, add_in_place::<f32, 2>),
        (D::COMPLEX128, add_in_place::<f64, 2>),
    ]
};

/// The kernel for a dtype other than bool.
pub fn lookup(dtype: DType) -> Option<ScatterAddFn> {
    TABLE.into_iter().find(|&(d, _)| d == dtype).map(|(_, kernel)| kernel)
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    TABLE.into_iter().map(|(dtype, _)| dtype)
}

/// Bytes of a slab of the destination from which rows are added to in their order, where each has one and a half indices in the mean: a core's own
/// cache does not keep them from one addend to the next.
const SORTED_BYTES: usize = if cfg!(test) { 1 << 10 } else { 4 << 20 };
/// Bytes of a row from which sorting the indices takes less than that saves.
const SORTED_ROW: usize = if cfg!(test) { 16 } else { 512 };
/// Bytes prefetched of a row of the destination that is next.
pub(super) const MAX_PREFETCH: usize = 1024;
/// Bytes of a row that are prefetched together, and added together.
const PIECE: usize = 256;
/// Bytes by which the source is prefetched ahead.
const SRC_AHEAD: usize = 2048;
/// Rows of the destination that are prefetched ahead.
pub(super) const AHEAD: usize = 8;
/// Bytes of a row that a thread has at least, where threads share out columns.
const MIN_COLUMN: usize = 512;
/// Bytes of slabs of the destination for which a few indices are looked at: a core's own cache keeps them until the next few.
const TOGETHER_BYTES: usize = if cfg!(test) { 1 << 10 } else { 512 << 10 };
/// Threads that share out rows, for which each of them reads all indices.
pub(super) const MAX_ROW_SHARES: usize = 8;

/// What the kernels share of a launch.
pub(super) struct Scatter<T> {
    pub(super) outer: usize,
    pub(super) window: Window,
    /// Elements of a row.
    pub(super) row: usize,
    pub(super) num_indices: usize,
    pub(super) indices: Indices,
    pub(super) src: *const T,
    pub(super) dst: Shared<T>,
    /// Whether the destination is too large for a core's own cache.
    pub(super) far: bool,
    pub(super) bad: Bad,
}

// SAFETY: the source is only read, and tasks write parts of their own.
unsafe impl<T> Sync for Scatter<T> {}

impl<T> Scatter<T> {
    /// `None` where there is nothing to do. An element of the dtype is `parts` of `T`.
    ///
    /// # Safety
    /// The indices are readable.
    pub(super) unsafe fn new(args: &ScatterAddArgs, parts: usize) -> Result<Option<Scatter<T>>> {
        let &ScatterAddArgs { outer, processed, inner, num_indices, indices, src, dst, .. } = args;
        let window = Window::new(args.offset, processed, args.size, args.mode)?;
        let row = row_bytes(inner, parts * size_of::<T>())?;
        let fits = |rows: usize| {
            // A zero must not hide that other sizes are too large.
            let factors = [outer, rows, row];
            let product = factors.iter().try_fold(1usize, |p, &f| p.checked_mul(f.max(1)));
            product.is_some_and(|bytes| bytes <= isize::MAX as usize)
        };
        if !fits(processed) || !fits(num_indices) {
            return Err(Error::invalid(format!(
                "scatter_add of [{outer}, {num_indices}] rows of {row} bytes to [{outer}, {processed}]: no address \
                 space holds that"
            )));
        }
        if outer == 0 || row == 0 || num_indices == 0 || processed == 0 {
            // SAFETY: the caller's promise.
            unsafe { window.check_all(indices, num_indices)? };
            return Ok(None);
        }
        Ok(Some(Scatter {
            outer,
            window,
            row: inner * parts,
            num_indices,
            indices,
            src: src.cast(),
            dst: Shared::new(dst.cast()),
            far: processed * row >= FAR_BYTES,
            bad: Bad::new(),
        }))
    }

    /// The error for the first index noted, if there is one.
    pub(super) fn done(&self) -> Result<()> {
        // SAFETY: positions are those of the indices.
        unsafe { self.window.check(&self.bad, self.indices) }
    }
}

/// # Safety
/// As for [`ScatterAddFn`].
unsafe fn add_in_place<T: Sum, const PARTS: usize>(
    isa: Isa,
    par: &dyn Parallel,
    args: &ScatterAddArgs,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let Some(scatter) = (unsafe { Scatter::<T>::new(args, PARTS)? }) else {
        return Ok(());
    };
    let Scatter { outer, ref window, row, num_indices, .. } = scatter;
    let extent = window.extent();
    let row_bytes = row * size_of::<T>();
    let threads = par.threads();
    // As few rows as threads are shared out by columns.
    let shares_rows = threads == 1 || extent >= 2 * threads;
    let large = extent * row_bytes >= SORTED_BYTES && row_bytes >= SORTED_ROW;
    let revisits = shares_rows && large && num_indices / 3 >= extent / 2;
    // SAFETY: the caller's promise.
    if revisits && unsafe { add_sorted(isa, par, &scatter)? } {
        return Ok(());
    }
    let (all_rows, all_cols) = (0..extent, 0..row);
    let slab_bytes = row_bytes.saturating_mul(3).saturating_mul(num_indices);
    let add = |slabs: Range<usize>, rows: Range<usize>, cols: Range<usize>| {
        isa.dispatch(AddRows { scatter: &scatter, slabs, rows, cols });
        Ok(())
    };
    if threads == 1 || slab_bytes.saturating_mul(outer) < 2 * GRAIN_BYTES {
        add(0..outer, all_rows, all_cols)?;
    } else if outer >= threads {
        for_ranges(par, outer, slab_bytes, 1, |slabs| add(slabs, all_rows.clone(), all_cols.clone()))?;
    } else if row_bytes / MIN_COLUMN >= threads {
        let column = MIN_COLUMN / size_of::<T>();
        for_ranges(par, row, outer * slab_bytes / row, column, |cols| add(0..outer, all_rows.clone(), cols))?;
    } else {
        let shares = threads.min(MAX_ROW_SHARES);
        par.parallel_for(extent, extent.div_ceil(shares), shares, &|rows| {
            add(0..outer, rows, all_cols.clone())
        })?;
    }
    scatter.done()
}

/// What adds in its own type.
pub(super) trait Sum: Copy + Send + Sync + 'static {
    fn plus(self, other: Self) -> Self;
}

macro_rules! sum {
    ($($t:ty: $plus:expr;)*) => {$(
        impl Sum for $t {
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                let plus: fn($t, $t) -> $t = $plus;
                plus(self, other)
            }
        }
    )*};
}
sum! {
    u8: u8::wrapping_add;
    u16: u16::wrapping_add;
    u32: u32::wrapping_add;
    u64: u64::wrapping_add;
    f32: |a, b| a + b;
    f64: |a, b| a + b;
}

/// An index that is in the window.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) row: usize,
    pub(super) position: usize,
}

/// Adds to some rows and columns of some slabs. Made only where no other task has the same.
struct AddRows<'a, T> {
    scatter: &'a Scatter<T>,
    slabs: Range<usize>,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl<T: Sum> Body for AddRows<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        /// Indices looked at before the rows that they name are added to.
        const BLOCK: usize = 256;
        let AddRows { scatter, slabs, rows, cols } = self;
        let &Scatter { ref window, row, num_indices: n, indices, dst, far, ref bad, .. } = scatter;
        let len = cols.len();
        let mut entries = [Entry { row: 0, position: 0 }; BLOCK];
        // To look at an index takes as long as to add a few elements, which several slabs have then at once.
        let short = len <= SHORT;
        let slab_bytes = window.extent() * row * size_of::<T>();
        let together = if short { (TOGETHER_BYTES / slab_bytes.max(1)).max(1) } else { 1 };
        for first in slabs.clone().step_by(together) {
            for start in (0..n).step_by(BLOCK) {
                let mut count = 0;
                for position in start..n.min(start + BLOCK) {
                    // SAFETY: a position of the list.
                    let row = window.row(unsafe { indices.get(position) }, position, bad);
                    // Without a branch: which rows are this task's is not to be guessed.
                    entries[count] = Entry { row, position };
                    count += usize::from(rows.contains(&row));
                }
                for slab in first..slabs.end.min(first + together) {
                    // SAFETY: the entries' rows are rows of the destination's slab, their positions rows of the source's,
                    // and the columns are within a row.
                    unsafe {
                        let to = dst.get().add(slab * window.extent() * row + cols.start);
                        let from = scatter.src.add(slab * n * row + cols.start);
                        let (entries, steps) = (&entries[..count], row);
                        match (short, len) {
                            (true, 1) => add_elements(to, from, entries, steps, 1, far),
                            (true, _) => add_elements(to, from, entries, steps, len, far),
                            _ => add_rows(to, from, entries, steps, len, far),
                        }
                    }
                }
            }
        }
    }
}

/// Elements of a row up to which nothing but adding them is worth while.
pub(super) const SHORT: usize = 16;

/// Adds `len` elements, at most [`SHORT`], of the source's row of each entry to the destination's.
///
/// # Safety
/// Those are readable, and at `to` writable, with no other access to them until this returns; rows lie `row` elements apart.
#[inline(always)]
unsafe fn add_elements<T: Sum>(
    to: *mut T,
    from: *const T,
    entries: &[Entry],
    row: usize,
    len: usize,
    far: bool,
) {
    if far {
        for entry in entries {
            prefetch(to.wrapping_add(entry.row * row).cast_const().cast(), 1);
        }
    }
    for entry in entries {
        // SAFETY: the caller's promise.
        unsafe {
            let (to, from) = (to.add(entry.row * row), from.add(entry.position * row));
            for j in 0..len {
                to.add(j).write(to.add(j).read().plus(from.add(j).read()));
            }
        }
    }
}

/// The same of longer rows.
///
/// # Safety
/// As of [`add_elements`].
#[inline(always)]
unsafe fn add_rows<T: Sum>(
    slab: *mut T,
    src: *const T,
    entries: &[Entry],
    row: usize,
    len: usize,
    far: bool,
) {
    let near = if far { len.min(MAX_PREFETCH / size_of::<T>()) } else { 0 };
    for (i, entry) in entries.iter().enumerate() {
        let next = slab.wrapping_add(entries[(i + AHEAD).min(entries.len() - 1)].row * row);
        // SAFETY: the caller's promise.
        let (to, from) = unsafe { (slab.add(entry.row * row), src.add(entry.position * row)) };
        let mut at = 0;
        while at < len {
            // A few lines at a time, between which the additions do not wait for all of them.
            let some = (len - at).min(PIECE / size_of::<T>());
            if at < near {
                prefetch(next.wrapping_add(at).cast_const().cast(), some * size_of::<T>());
                let later = from.wrapping_add(at).cast::<u8>().wrapping_add(SRC_AHEAD);
                prefetch(later, some * size_of::<T>());
            }
            for j in at..at + some {
                // SAFETY: the caller's promise.
                unsafe { to.add(j).write(to.add(j).read().plus(from.add(j).read())) };
            }
            at += some;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::{Buffer, Val, decode, encode, samples};
    use crate::kernels::sink::tests::everywhere;
    use crate::kernels::testing::{Rng, Threads};
    use crate::kernels::window::tests as window;
    use ep_core::Code;
    use ep_core::parallel::Serial;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    struct Case {
        /// Outer, processed, inner.
        dims: [usize; 3],
        num_indices: usize,
        offset: usize,
        size: usize,
        mode: IndexMode,
        wide: bool,
        dtype: DType,
    }

    /// The sum of elements as the kernels are to add them.
    fn plus(dtype: DType, a: Val, b: Val) -> Val {
        let add = |a: f64, b: f64| match dtype {
            DType::F64 | DType::COMPLEX128 => a + b,
            _ => f64::from(a as f32 + b as f32),
        };
        match (a, b) {
            (Val::Int(a), Val::Int(b)) => Val::Int(a + b),
            (Val::Float(a), Val::Float(b)) => Val::Float(add(a, b)),
            (Val::Complex(a, b), Val::Complex(c, d)) => Val::Complex(add(a, c), add(b, d)),
            other => panic!("{other:?}"),
        }
    }

    /// What should be in the destination, or the first wrong index and its position.
    fn expected(
        case: &Case,
        indices: &[i64],
        src: &[Val],
        mut dst: Vec<Val>,
    ) -> Result<Vec<Val>, (i64, usize)> {
        let Case { dims: [outer, processed, inner], num_indices, offset, size, mode, dtype, .. } = *case;
        let size = if size == 0 { offset + processed } else { size } as i128;
        for (position, &index) in indices.iter().enumerate() {
            let given = i128::from(index);
            let logical = if mode == IndexMode::Wrap && given < 0 { given + size } else { given };
            if !(0..size).contains(&logical) {
                if mode == IndexMode::Zero {
                    continue;
                }
                return Err((index, position));
            }
            let row = logical - offset as i128;
            if !(0..processed as i128).contains(&row) {
                continue;
            }
            for o in 0..outer {
                for j in 0..inner {
                    let to = &mut dst[(o * processed + row as usize) * inner + j];
                    *to = plus(dtype, *to, src[(o * num_indices + position) * inner + j]);
                }
            }
        }
        Ok(dst)
    }

    fn check(par: &dyn Parallel, case: Case, wild: bool) {
        let mut rng = Rng::new();
        let Case { dims: [outer, processed, inner], num_indices, offset, size, mode, wide, dtype } = case;
        let element = dtype.size().unwrap();
        let axis = if size == 0 { offset + processed } else { size };
        let list = window::indices(&mut rng, num_indices, axis, offset..offset + processed, mode, wild);
        let list: Vec<_> = list.into_iter().map(|i| if wide { i } else { i64::from(i as i32) }).collect();
        let (stored, _) = window::store(&list, wide);
        let src = samples(dtype, outer * num_indices * inner, &mut rng);
        let old = samples(dtype, outer * processed * inner, &mut rng);
        let want = expected(&case, &list, &decode(dtype, &src), decode(dtype, &old));
        let want = want.map(|vals| vals.into_iter().flat_map(|v| encode(dtype, v)).collect::<Vec<u8>>());
        let (mut src, mut stored) =
            (Buffer::of(&src, element), Buffer::of(&stored, if wide { 8 } else { 4 }));
        everywhere(|isa| {
            let mut dst = Buffer::of(&old, element);
            let args = ScatterAddArgs {
                outer,
                processed,
                inner,
                num_indices,
                offset,
                size,
                mode,
                indices: Indices { at: stored.ptr(), stored: window::stored(wide) },
                src: src.ptr(),
                dst: dst.ptr(),
            };
            // SAFETY: all sides have their elements.
            let got = unsafe { lookup(dtype).unwrap()(isa, par, &args) };
            let bytes = dst.into_bytes();
            match &want {
                Ok(want) => {
                    got.unwrap();
                    for (i, (got, want)) in
                        decode(dtype, &bytes).into_iter().zip(decode(dtype, want)).enumerate()
                    {
                        assert!(got.same(want), "element {i} is {got:?}, not {want:?}: {case:?} {isa}");
                    }
                }
                Err((index, position)) => {
                    let e = got.unwrap_err();
                    assert_eq!(e.code(), Code::InvalidArgument);
                    assert!(e.message().contains(&format!("index {index} at position {position} ")), "{e}");
                }
            }
        });
    }

    fn plain(dims: [usize; 3], num_indices: usize, dtype: DType) -> Case {
        Case { dims, num_indices, offset: 0, size: 0, mode: IndexMode::Error, wide: true, dtype }
    }

    #[test]
    fn every_dtype_adds_in_order() {
        assert_eq!(rows().count(), 14);
        for dtype in rows() {
            for inner in [1, 3, 16, 61] {
                check(&Serial, plain([1, 7, inner], 30, dtype), false);
                check(&Serial, plain([3, 40, inner], 9, dtype), true);
                let shard = Case {
                    offset: 5,
                    size: 30,
                    mode: IndexMode::Wrap,
                    wide: false,
                    ..plain([2, 9, inner], 33, dtype)
                };
                check(&Serial, shard, false);
            }
        }
    }

    /// Their indices are looked at once, in more than one block, and added by slab.
    #[test]
    fn short_rows_of_several_slabs() {
        for dtype in rows() {
            for inner in [1, 2, 5] {
                check(&Serial, plain([3, 70, inner], 300, dtype), false);
                check(
                    &Threads(2),
                    Case { offset: 5, size: 900, ..plain([5, 260, inner], 530, dtype) },
                    false,
                );
            }
        }
    }

    /// Sharing out slabs, columns and rows.
    #[test]
    fn threads_share_the_work_out_in_every_way() {
        for dtype in [DType::F32, DType::BF16, DType::COMPLEX64, DType::U8] {
            let parts = DType::COMPLEX128.size().unwrap() / dtype.size().unwrap();
            for (dims, n) in
                [([8, 60, 20 * parts], 80), ([2, 40, 150 * parts], 50), ([1, 5000, 2 * parts], 6000)]
            {
                check(&Threads(3), plain(dims, n, dtype), false);
            }
        }
    }

    /// Rows of a large destination are added to in their order, by one thread and by several, also where most indices name one.
    #[test]
    fn rows_that_are_named_often_are_added_to_in_their_order() {
        for dtype in rows() {
            for threads in [1, 3] {
                check(&Threads(threads), plain([2, 20, 600], 90, dtype), false);
                check(&Threads(threads), Case { size: 1 << 30, ..plain([1, 20, 300], 60, dtype) }, false);
                check(&Threads(threads), plain([1, 20, 64], 50, dtype), true);
            }
        }
        for (n, crowd) in [(300, 0), (300, 280), (300, 300)] {
            let list: Vec<i64> = (0..n).map(|i| if i < crowd { 7 } else { i * 13 % 60 }).collect();
            let src: Vec<f32> = (0..n * 1000).map(|i| (i % 1013) as f32 * 0.37 - 100.0).collect();
            let mut want = vec![0.5f32; 60 * 1000];
            for (position, row) in list.iter().enumerate() {
                for j in 0..1000 {
                    want[*row as usize * 1000 + j] += src[position * 1000 + j];
                }
            }
            for threads in [1, 2, 5] {
                let mut dst = vec![0.5f32; 60 * 1000];
                let args = ScatterAddArgs {
                    outer: 1,
                    processed: 60,
                    inner: 1000,
                    num_indices: n as usize,
                    offset: 0,
                    size: 0,
                    mode: IndexMode::Error,
                    indices: Indices { at: list.as_ptr().cast(), stored: IndexType::I64 },
                    src: src.as_ptr().cast(),
                    dst: dst.as_mut_ptr().cast(),
                };
                let kernel = lookup(DType::F32).unwrap();
                // SAFETY: all sides have their elements.
                unsafe { kernel(Isa::BASELINE, &Threads(threads), &args) }.unwrap();
                assert_eq!(dst, want, "{crowd} of {n}, {threads} threads");
            }
        }
    }

    #[test]
    fn few_indices_of_a_long_axis_are_sorted_in_buckets() {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            check(&Serial, plain([1, 1 << 14, 1], 100, dtype), false);
            let crowded = Case { size: 1 << 40, ..plain([2, 40, 3], 500, dtype) };
            check(&Serial, crowded, false);
            check(&Threads(2), Case { mode: IndexMode::Zero, ..plain([1, 20_000, 2], 3000, dtype) }, true);
        }
    }

    #[test]
    fn sums_of_halves_are_rounded_once() {
        // 1 + 2^-12 is 1 in f16; 4096 of them are not.
        let (ones, tiny) = ([f16::ONE; 1], vec![f16::from_f32(1.0 / 4096.0); 4096]);
        let list = vec![0i64; 4096];
        let mut dst = ones;
        let args = ScatterAddArgs {
            outer: 1,
            processed: 1,
            inner: 1,
            num_indices: 4096,
            offset: 0,
            size: 0,
            mode: IndexMode::Error,
            indices: Indices { at: list.as_ptr().cast(), stored: IndexType::I64 },
            src: tiny.as_ptr().cast(),
            dst: dst.as_mut_ptr().cast(),
        };
        // SAFETY: all sides have their elements.
        unsafe { lookup(DType::F16).unwrap()(Isa::BASELINE, &Serial, &args) }.unwrap();
        assert_eq!(f32::from(dst[0]), 2.0);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_and_empty_ones_check_indices() {
        let list = [3i64];
        let args = ScatterAddArgs {
            outer: 1,
            processed: 0,
            inner: 1,
            num_indices: 1,
            offset: 0,
            size: 3,
            mode: IndexMode::Error,
            indices: Indices { at: list.as_ptr().cast(), stored: IndexType::I64 },
            src: std::ptr::null(),
            dst: std::ptr::null_mut(),
        };
        for dtype in [DType::F32, DType::F16] {
            // SAFETY: nothing but the index is read.
            let run = |args: &ScatterAddArgs| unsafe { lookup(dtype).unwrap()(Isa::BASELINE, &Serial, args) };
            assert!(run(&args).unwrap_err().message().contains("index 3 at position 0"));
            run(&ScatterAddArgs { mode: IndexMode::Zero, ..args }).unwrap();
            run(&ScatterAddArgs { num_indices: 0, ..args }).unwrap();
            for (outer, processed, inner, num_indices) in [
                (1 << 40, 1 << 40, 1, 1),
                (1, 1, usize::MAX, 1),
                (1 << 40, 1, 1 << 22, 0),
                (1, 1, 1 << 40, 1 << 40),
            ] {
                let args = ScatterAddArgs { outer, processed, inner, num_indices, size: 0, ..args };
                assert_eq!(run(&args).unwrap_err().code(), Code::InvalidArgument);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_shape_and_window(
            dims in [0usize..4, 0usize..12, 0usize..20],
            num_indices in 0usize..60,
            offset in 0usize..9,
            more in 0usize..9,
            flags in any::<[bool; 3]>(),
            mode in 0usize..3,
            dtype in 0usize..14,
        ) {
            let [whole, wide, wild] = flags;
            let case = Case {
                dims,
                num_indices,
                offset,
                size: if whole { 0 } else { offset + dims[1] + more },
                mode: [IndexMode::Wrap, IndexMode::Zero, IndexMode::Error][mode],
                wide,
                dtype: rows().nth(dtype).unwrap(),
            };
            check(&Serial, case, wild);
        }
    }
}
