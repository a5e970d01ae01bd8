//! Scatter-add of rows of a few elements that are narrower than their sums.
//!
//! To sort the indices would take longer than all else. So a slab of the destination, or its rows that are a task's, become sums in
//! a buffer, to which the addends are added in the order of the indices, and which is rounded at the end.

use crate::isa::{Body, Isa};
use crate::kernels::elem::Storage;
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use crate::kernels::scatter_add::{MAX_ROW_SHARES, SHORT, Scatter};
use crate::kernels::window::NONE;
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::ops::Range;

/// Rows of the destination for each index, up to which it pays to convert all of them.
const SPARSE: usize = 4;

/// Adds in f32 and rounds once. `false`, with nothing added, for long rows, for few indices, and where there is no memory.
///
/// # Errors
/// As for [`ScatterAddFn`](super::scatter_add::ScatterAddFn).
///
/// # Safety
/// The scatter is made of arguments that are as that function demands.
pub(super) unsafe fn add_in_buffer<T: Storage<Value = f32>>(
    isa: Isa,
    par: &dyn Parallel,
    scatter: &Scatter<T>,
) -> Result<bool> {
    let &Scatter { outer, ref window, row, num_indices: n, indices, ref bad, .. } = scatter;
    let extent = window.extent();
    if row > SHORT || extent / SPARSE > n {
        return Ok(false);
    }
    // Few slabs are shared out by their rows, for which each task looks at all indices.
    let slab_bytes = (extent + n).saturating_mul(row * size_of::<f32>());
    let threads = par.threads();
    let whole = outer >= threads || slab_bytes.saturating_mul(outer) < 2 * GRAIN_BYTES;
    let shares = if whole { 1 } else { threads.min(MAX_ROW_SHARES).min(extent) };
    let each = extent.div_ceil(shares);
    let shares = extent.div_ceil(each);
    let (mut rows, mut sums) = (Vec::new(), Vec::new());
    let tasks = if whole { threads.min(outer) } else { outer * shares };
    let room = each * row;
    if rows.try_reserve_exact(n).is_err()
        || room.checked_mul(tasks).is_none_or(|all| sums.try_reserve_exact(all).is_err())
    {
        return Ok(false);
    }
    // SAFETY: the caller's promise.
    rows.extend((0..n).map(|position| window.row(unsafe { indices.get(position) }, position, bad)));
    // Nothing is added for an index that is an error.
    scatter.done()?;
    sums.resize(room * tasks, 0f32);
    let sums = Shared::new(sums.as_mut_ptr());
    let per_task = (outer * shares).div_ceil(tasks);
    for_ranges(par, tasks, slab_bytes.saturating_mul(per_task), 1, |range| {
        for task in range {
            for unit in task * per_task..(outer * shares).min((task + 1) * per_task) {
                let start = unit % shares * each;
                let of = start..extent.min(start + each);
                // SAFETY: a task has room of its own.
                let sums =
                    unsafe { std::slice::from_raw_parts_mut(sums.get().add(task * room), of.len() * row) };
                isa.dispatch(AddSums { scatter, slab: unit / shares, of, rows: &rows, sums });
            }
        }
        Ok(())
    })?;
    Ok(true)
}

/// Adds to rows `of` a slab. Made only where no other task has the same, with a sum for each of their elements, and with the
/// rows that the indices name, or [`NONE`].
struct AddSums<'a, T> {
    scatter: &'a Scatter<T>,
    slab: usize,
    of: Range<usize>,
    rows: &'a [usize],
    sums: &'a mut [f32],
}

impl<T: Storage<Value = f32>> Body for AddSums<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        const { assert!(NONE == usize::MAX, "is in no range of rows") };
        let AddSums { scatter, slab, of, rows, sums } = self;
        let &Scatter { ref window, row, src, dst, .. } = scatter;
        // SAFETY: the rows are the slab's, and the addends those of its positions.
        unsafe {
            let to = dst.get().add((slab * window.extent() + of.start) * row);
            let from = src.add(slab * rows.len() * row);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = to.add(i).read().load();
            }
            for (position, &found) in rows.iter().enumerate() {
                if !of.contains(&found) {
                    continue;
                }
                let sums = &mut sums[(found - of.start) * row..][..row];
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum += from.add(position * row + j).read().load();
                }
            }
            for (i, sum) in sums.iter().enumerate() {
                let to = to.add(i);
                // What nothing was added to stays as it is, NaN included.
                if sum.to_bits() != to.read().load().to_bits() {
                    to.write(T::store(*sum));
                }
            }
        }
    }
}
