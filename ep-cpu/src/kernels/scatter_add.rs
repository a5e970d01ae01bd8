//! Scatter-add: adds rows to the rows of an axis that indices name, the backward of a gather. `src` is
//! `[outer, num_indices, inner]`, `dst` is `[outer, processed, inner]`.
//!
//! Each element of the destination is the sum of what it was and its addends in the order of the indices, whichever
//! thread adds them: threads share out slabs, columns, or rows of the destination. Where elements are narrower than
//! what they are added in, indices are first put in the order of their rows, so that each element is rounded once.

use crate::isa::{Body, Isa};
use crate::kernels::elem::Storage;
use crate::kernels::gather::row_bytes;
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use crate::kernels::sink::{FAR_BYTES, prefetch};
use crate::kernels::window::{Bad, NONE, Window};
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
/// is left out. Where either side is empty nothing is read.
///
/// # Errors
/// `InvalidArgument` for a window that is not within the axis, sizes that no address space holds, and an index
/// that the mode does not allow: the first one, by position and value; the destination then holds anything.
/// `OutOfMemory` if there is none to order the indices in; those of `par`.
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

/// Bytes prefetched of a row of the destination that is next.
const MAX_PREFETCH: usize = 1024;
/// Rows of the destination that are prefetched ahead.
const AHEAD: usize = 8;
/// Bytes of a row that a thread has at least, where threads share out columns.
const MIN_COLUMN: usize = 512;
/// Threads that share out rows, for which each of them reads all indices.
const MAX_ROW_SHARES: usize = 8;

/// What the kernels share of a launch.
struct Scatter<T> {
    outer: usize,
    window: Window,
    /// Elements of a row.
    row: usize,
    num_indices: usize,
    indices: Indices,
    src: *const T,
    dst: Shared<T>,
    /// Whether the destination is too large for a core's own cache.
    far: bool,
    bad: Bad,
}

// SAFETY: the source is only read, and tasks write parts of their own.
unsafe impl<T> Sync for Scatter<T> {}

impl<T> Scatter<T> {
    /// `None` where there is nothing to do. An element of the dtype is `parts` of `T`.
    fn new(args: &ScatterAddArgs, parts: usize) -> Result<Option<Scatter<T>>> {
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
        if outer == 0 || row == 0 || num_indices == 0 {
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
    fn done(&self) -> Result<()> {
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
    let Some(scatter) = Scatter::<T>::new(args, PARTS)? else {
        return Ok(());
    };
    let Scatter { outer, ref window, row, num_indices, .. } = scatter;
    let extent = window.extent();
    let (all_rows, all_cols) = (0..extent, 0..row);
    let bytes = row * size_of::<T>();
    let slab_bytes = bytes.saturating_mul(3).saturating_mul(num_indices);
    let add = |slabs: Range<usize>, rows: Range<usize>, cols: Range<usize>| {
        isa.dispatch(AddRows { scatter: &scatter, slabs, rows, cols });
        Ok(())
    };
    let threads = par.threads();
    if threads == 1 || slab_bytes.saturating_mul(outer) < 2 * GRAIN_BYTES {
        add(0..outer, all_rows, all_cols)?;
    } else if outer >= threads {
        for_ranges(par, outer, slab_bytes, 1, |slabs| add(slabs, all_rows.clone(), all_cols.clone()))?;
    } else if bytes / MIN_COLUMN >= threads {
        let column = MIN_COLUMN / size_of::<T>();
        for_ranges(par, row, outer * slab_bytes / row, column, |cols| add(0..outer, all_rows.clone(), cols))?;
    } else {
        let shares = threads.min(MAX_ROW_SHARES);
        par.parallel_for(extent, extent.div_ceil(shares), shares, &|rows| add(0..outer, rows, all_cols.clone()))?;
    }
    scatter.done()
}

/// What adds in its own type.
trait Sum: Copy + Send + Sync + 'static {
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
        let AddRows { scatter, slabs, rows, cols } = self;
        let &Scatter { ref window, row, num_indices: n, indices, src, dst, far, ref bad, .. } = scatter;
        let len = cols.len();
        let near = (len * size_of::<T>()).min(MAX_PREFETCH);
        for slab in slabs {
            for i in 0..n {
                // SAFETY: `i` is a position of the list, `to` a row of the destination's slab, and the columns are
                // within a row.
                unsafe {
                    let to = dst.get().add(slab * window.extent() * row + cols.start);
                    if far && i + AHEAD < n {
                        let next = window.row(indices.get(i + AHEAD), i + AHEAD, bad);
                        if rows.contains(&next) {
                            prefetch(to.wrapping_add(next * row).cast_const().cast(), near);
                        }
                    }
                    let found = window.row(indices.get(i), i, bad);
                    if rows.contains(&found) {
                        let to = to.add(found * row);
                        let from = src.add((slab * n + i) * row + cols.start);
                        for j in 0..len {
                            to.add(j).write(to.add(j).read().plus(from.add(j).read()));
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// As for [`ScatterAddFn`].
unsafe fn add_in_order<T: Storage<Value = f32>>(isa: Isa, par: &dyn Parallel, args: &ScatterAddArgs) -> Result<()> {
    let Some(scatter) = Scatter::<T>::new(args, 1)? else {
        return Ok(());
    };
    // SAFETY: the caller's promise.
    let order = unsafe { order(&scatter)? };
    // Nothing is added for an index that is an error.
    scatter.done()?;
    let item = scatter.row * size_of::<T>() * 3 + 32;
    for_ranges(par, scatter.outer * order.len(), item, 1, |mut entries| {
        let (mut slab, mut at) = (entries.start / order.len(), entries.start % order.len());
        while !entries.is_empty() {
            let end = order.len().min(at + entries.len());
            isa.dispatch(AddRuns { scatter: &scatter, slab, order: &order, entries: at..end });
            entries.start += end - at;
            (slab, at) = (slab + 1, 0);
        }
        Ok(())
    })
}

/// An index that is in the window.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    row: usize,
    position: usize,
}

/// The indices in the window, by row and then by position.
///
/// # Safety
/// The indices are readable.
unsafe fn order<T>(scatter: &Scatter<T>) -> Result<Vec<Entry>> {
    let &Scatter { ref window, num_indices: n, indices, ref bad, .. } = scatter;
    let no_memory = |_| Error::out_of_memory(format!("scatter_add: no memory to order {n} indices in"));
    // Entries go to buckets of neighbouring rows, about as many as there are entries, and are sorted in each: in
    // time linear in the entries unless most fall into few of the buckets.
    let buckets_wanted = n.saturating_mul(2).max(2);
    let shift = (0..usize::BITS).find(|&s| window.extent() >> s < buckets_wanted).unwrap_or(0);
    let buckets = (window.extent() >> shift) + 1;
    let mut starts = Vec::new();
    starts.try_reserve_exact(buckets + 1).map_err(no_memory)?;
    starts.resize(buckets + 1, 0usize);
    for position in 0..n {
        // SAFETY: the caller's promise.
        let row = window.row(unsafe { indices.get(position) }, position, bad);
        if row != NONE {
            starts[(row >> shift) + 1] += 1;
        }
    }
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    let count = starts[buckets];
    let mut entries = Vec::new();
    entries.try_reserve_exact(count).map_err(no_memory)?;
    entries.resize(count, Entry { row: 0, position: 0 });
    for position in 0..n {
        // SAFETY: the caller's promise.
        let row = window.row(unsafe { indices.get(position) }, position, bad);
        if row != NONE {
            let next = &mut starts[row >> shift];
            entries[*next] = Entry { row, position };
            *next += 1;
        }
    }
    if shift > 0 {
        let mut start = 0;
        for &end in &starts[..buckets] {
            entries[start..end].sort_unstable();
            start = end;
        }
    }
    Ok(entries)
}

/// Adds the runs of equal rows that start among some entries. Made only where no other task has the same.
struct AddRuns<'a, T> {
    scatter: &'a Scatter<T>,
    slab: usize,
    order: &'a [Entry],
    entries: Range<usize>,
}

impl<T: Storage<Value = f32>> Body for AddRuns<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        /// Sums held in the first-level cache.
        const COLS: usize = 512;
        let AddRuns { scatter, slab, order, entries } = self;
        let &Scatter { ref window, row, num_indices, src, dst, .. } = scatter;
        let mut sums = [0f32; COLS];
        let mut start = entries.start;
        while start > 0 && start < entries.end && order[start].row == order[start - 1].row {
            start += 1;
        }
        while start < entries.end {
            let found = order[start].row;
            let run = order[start..].iter().take_while(|entry| entry.row == found).count();
            for col in (0..row).step_by(COLS) {
                let len = COLS.min(row - col);
                // SAFETY: `found` is a row of the destination's slab, positions are rows of the source's, and columns
                // are within a row.
                unsafe {
                    let to = dst.get().add((slab * window.extent() + found) * row + col);
                    for (j, sum) in sums[..len].iter_mut().enumerate() {
                        *sum = to.add(j).read().load();
                    }
                    for entry in &order[start..start + run] {
                        let from = src.add((slab * num_indices + entry.position) * row + col);
                        for (j, sum) in sums[..len].iter_mut().enumerate() {
                            *sum += from.add(j).read().load();
                        }
                    }
                    for (j, sum) in sums[..len].iter().enumerate() {
                        to.add(j).write(T::store(*sum));
                    }
                }
            }
            start += run;
        }
    }
}
