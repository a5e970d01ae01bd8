//! Scatter-add in the order of the destination's rows.
//!
//! The indices are sorted by their rows, each row's in their own order. Then all addends of a row are added to it at once: what
//! is narrower than its sums in the wider type, so that each element is rounded once ([`add_in_order`]), and what is not where
//! the cache would not keep the row from one addend to the next ([`add_sorted`]).

use crate::isa::{Body, Isa};
use crate::kernels::elem::Storage;
use crate::kernels::raw::for_ranges;
use crate::kernels::scatter_add::{AHEAD, Entry, MAX_PREFETCH, SHORT, Scatter, ScatterAddArgs, Sum};
use crate::kernels::scatter_sums::add_in_buffer;
use crate::kernels::sink::prefetch;
use crate::kernels::window::NONE;
use ep_core::parallel::Parallel;
use ep_core::{Code, Error, Result};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Adds in f32 and rounds once.
///
/// # Safety
/// As for [`ScatterAddFn`](super::scatter_add::ScatterAddFn).
pub(super) unsafe fn add_in_order<T: Storage<Value = f32>>(
    isa: Isa,
    par: &dyn Parallel,
    args: &ScatterAddArgs,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let Some(scatter) = (unsafe { Scatter::<T>::new(args, 1)? }) else {
        return Ok(());
    };
    // SAFETY: the caller's promise.
    if unsafe { add_in_buffer(isa, par, &scatter)? } {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let Order { entries, .. } = unsafe { order(&scatter)? };
    // SAFETY: the caller's promise; the entries are the scatter's.
    unsafe { add_runs::<T, Rounded>(isa, par, &scatter, &entries) }
}

/// Adds in the type of the elements. `false`, with nothing added, where there is no memory to sort the indices in, and where so
/// many name a few rows that threads had better share out slabs or columns.
///
/// # Errors
/// As for [`ScatterAddFn`](super::scatter_add::ScatterAddFn).
///
/// # Safety
/// The scatter is made of arguments that are as that function demands.
pub(super) unsafe fn add_sorted<T: Sum>(isa: Isa, par: &dyn Parallel, scatter: &Scatter<T>) -> Result<bool> {
    // SAFETY: the caller's promise.
    let Order { entries, most } = match unsafe { order(scatter) } {
        Err(e) if e.code() == Code::OutOfMemory => return Ok(false),
        order => order?,
    };
    scatter.done()?;
    let threads = par.threads();
    if scatter.outer < threads && threads > 1 && most.saturating_mul(2 * threads) > entries.len() {
        return Ok(false);
    }
    // SAFETY: the caller's promise; the entries are the scatter's.
    unsafe { add_runs::<T, Own>(isa, par, scatter, &entries)? };
    Ok(true)
}

/// Shares the entries out.
///
/// # Safety
/// The scatter is made of arguments that are as [`ScatterAddFn`](super::scatter_add::ScatterAddFn) demands, and `order` is what
/// [`order`] found for it.
unsafe fn add_runs<T: Sync + Send, W: Way<T>>(
    isa: Isa,
    par: &dyn Parallel,
    scatter: &Scatter<T>,
    order: &[Entry],
) -> Result<()> {
    // Nothing is added for an index that is an error.
    scatter.done()?;
    let item = scatter.row * size_of::<T>() * 3 + 32;
    for_ranges(par, scatter.outer * order.len(), item, 1, |mut entries| {
        let (mut slab, mut at) = (entries.start / order.len(), entries.start % order.len());
        while !entries.is_empty() {
            let end = order.len().min(at + entries.len());
            isa.dispatch(AddRuns { scatter, slab, order, entries: at..end, way: PhantomData::<W> });
            entries.start += end - at;
            (slab, at) = (slab + 1, 0);
        }
        Ok(())
    })
}

/// Indices by their rows.
struct Order {
    entries: Vec<Entry>,
    /// The most entries of neighbouring rows, about as many rows as make one entry in the mean.
    most: usize,
}

/// The indices in the window, by row and then by position.
///
/// # Safety
/// The indices are readable.
unsafe fn order<T>(scatter: &Scatter<T>) -> Result<Order> {
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
    let most = starts.iter().copied().max().unwrap_or(0);
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
    Ok(Order { entries, most })
}

/// The addends of a run, of some columns.
struct Addends<'a, T> {
    /// Those columns of the source's first row in the slab.
    first: *const T,
    /// Elements from row to row.
    row: usize,
    /// Bytes of the columns that are asked for ahead.
    near: usize,
    /// The run, and what comes behind it.
    entries: &'a [Entry],
}

impl<T> Addends<'_, T> {
    /// Where the `i`-th is; the one [`AHEAD`] of it, whose row may be anywhere, is asked for.
    #[inline(always)]
    fn at(&self, i: usize) -> *const T {
        let place = |entry: &Entry| self.first.wrapping_add(entry.position * self.row);
        if let Some(later) = self.entries.get(i + AHEAD) {
            prefetch(place(later).cast(), self.near);
        }
        place(&self.entries[i])
    }
}

/// Columns that are added at once.
const COLS: usize = 512;

/// How a row's addends are added to it.
trait Way<T>: Send + Sync {
    /// Adds the first `run` addends to `len` elements, at most [`COLS`].
    ///
    /// # Safety
    /// `to` is readable and writable and the addends are readable for `len` elements, with no other access to `to` until this
    /// returns.
    unsafe fn add(to: *mut T, len: usize, run: usize, addends: &Addends<'_, T>);
    /// Adds the first element of each of the first `run` addends.
    ///
    /// # Safety
    /// As of [`Self::add`] for one element.
    unsafe fn add_one(to: *mut T, run: usize, addends: &Addends<'_, T>);
}

/// In f32, in the first-level cache.
struct Rounded;

impl<T: Storage<Value = f32>> Way<T> for Rounded {
    #[inline(always)]
    unsafe fn add(to: *mut T, len: usize, run: usize, addends: &Addends<'_, T>) {
        let mut room = [MaybeUninit::<f32>::uninit(); COLS];
        // SAFETY: the caller's promise; of the room only what was just written is used.
        unsafe {
            for (j, sum) in room[..len].iter_mut().enumerate() {
                sum.write(to.add(j).read().load());
            }
            let sums = std::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<f32>(), len);
            for i in 0..run {
                let from = addends.at(i);
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum += from.add(j).read().load();
                }
            }
            for (j, sum) in sums.iter().enumerate() {
                to.add(j).write(T::store(*sum));
            }
        }
    }

    #[inline(always)]
    unsafe fn add_one(to: *mut T, run: usize, addends: &Addends<'_, T>) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = to.read().load();
            for i in 0..run {
                sum += addends.at(i).read().load();
            }
            to.write(T::store(sum));
        }
    }
}

/// In their own type, in place.
struct Own;

impl<T: Sum> Way<T> for Own {
    #[inline(always)]
    unsafe fn add(to: *mut T, len: usize, run: usize, addends: &Addends<'_, T>) {
        for i in 0..run {
            let from = addends.at(i);
            for j in 0..len {
                // SAFETY: the caller's promise.
                unsafe { to.add(j).write(to.add(j).read().plus(from.add(j).read())) };
            }
        }
    }

    #[inline(always)]
    unsafe fn add_one(to: *mut T, run: usize, addends: &Addends<'_, T>) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = to.read();
            for i in 0..run {
                sum = sum.plus(addends.at(i).read());
            }
            to.write(sum);
        }
    }
}

/// Adds the runs of equal rows that start among some entries. Made only where no other task has the same.
struct AddRuns<'a, T, W> {
    scatter: &'a Scatter<T>,
    slab: usize,
    order: &'a [Entry],
    entries: Range<usize>,
    way: PhantomData<W>,
}

impl<T, W: Way<T>> Body for AddRuns<'_, T, W> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let AddRuns { scatter, slab, order, entries, .. } = self;
        let &Scatter { ref window, row, num_indices, src, dst, .. } = scatter;
        let mut start = entries.start;
        while start > 0 && start < entries.end && order[start].row == order[start - 1].row {
            start += 1;
        }
        while start < entries.end {
            let found = order[start].row;
            let run = order[start..].iter().take_while(|entry| entry.row == found).count();
            if row <= SHORT {
                for col in 0..row {
                    // SAFETY: as below.
                    unsafe {
                        let to = dst.get().add((slab * window.extent() + found) * row + col);
                        let first = src.add(slab * num_indices * row + col);
                        W::add_one(to, run, &Addends { first, row, near: 1, entries: &order[start..] });
                    }
                }
                start += run;
                continue;
            }
            for col in (0..row).step_by(COLS) {
                let len = COLS.min(row - col);
                let near = (len * size_of::<T>()).min(MAX_PREFETCH);
                // Of a longer row the next addends are this run's, of the columns behind these.
                let last = if row > COLS { start + run } else { order.len() };
                // SAFETY: `found` is a row of the destination's slab, which this task alone has, positions are rows of the
                // source's, and columns are within a row.
                unsafe {
                    let to = dst.get().add((slab * window.extent() + found) * row + col);
                    let first = src.add(slab * num_indices * row + col);
                    W::add(to, len, run, &Addends { first, row, near, entries: &order[start..last] });
                }
            }
            start += run;
        }
    }
}
