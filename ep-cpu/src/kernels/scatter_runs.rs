//! Scatter-add of elements that are narrower than what they are added in.
//!
//! The indices are put in the order of their rows, each row's in their own order. Then all addends of a row are added to
//! it at once, in the wider type, and each element is rounded once.

use crate::isa::{Body, Isa};
use crate::kernels::elem::Storage;
use crate::kernels::raw::for_ranges;
use crate::kernels::scatter_add::{AHEAD, Entry, MAX_PREFETCH, Scatter, ScatterAddArgs};
use crate::kernels::sink::prefetch;
use crate::kernels::window::NONE;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::ops::Range;

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
            if let Some(entry) = order.get(start + AHEAD) {
                // Rows of the source come in any order.
                let next = src.wrapping_add((slab * num_indices + entry.position) * row);
                prefetch(next.cast(), (row * size_of::<T>()).min(MAX_PREFETCH));
            }
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
