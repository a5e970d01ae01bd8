//! Gathering from a tensor `[batch, outer, processed, inner]` along `processed`, by a list of indices for each
//! batch. [`gather`](super::gather) is the case of one batch.
//!
//! Rows are copied whole, the next ones being prefetched while one is written. Rows of one small element are
//! left to [`gather_elements`].

use crate::isa::Isa;
use crate::kernels::gather_elements::{self, Elements};
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::sink::{self, FAR_BYTES, LINE, PIECE, Pattern, Producer, Sink, prefetch};
use crate::kernels::window::{Bad, Index, IndexType, Indices, NONE, Window};
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::ops::Range;

/// Bytes prefetched ahead of a copy: what the memory delivers while it takes to arrive.
const AHEAD: usize = 2048;
/// The most rows ahead, where rows are small.
const MAX_ROWS_AHEAD: usize = 24;
/// The most bytes of a row that are prefetched; further on the CPU does it.
const MAX_PREFETCH: usize = 4096;

/// A gather of rows of bytes.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) batch: usize,
    pub(super) outer: usize,
    pub(super) window: Window,
    /// Bytes of a row.
    pub(super) row: usize,
    pub(super) num_indices: usize,
    /// `[batch, num_indices]`.
    pub(super) indices: Indices,
    /// `[batch, outer, window, row]`.
    pub(super) src: *const u8,
    /// `[batch, outer, num_indices, row]`.
    pub(super) dst: *mut u8,
}

// SAFETY: the source is only read, and each task writes a part of its own, as `gather` says.
unsafe impl Sync for Rows {}

impl Rows {
    /// Bytes of the source and of the destination, and the number of indices.
    ///
    /// # Errors
    /// `InvalidArgument` if no address space holds them.
    fn bytes(&self) -> Result<(usize, usize)> {
        let product = |factors: [usize; 4]| {
            // A zero must not hide that other sizes are too large.
            let product = factors.iter().try_fold(1usize, |p, &f| p.checked_mul(f.max(1)));
            let product = product.filter(|&p| p <= isize::MAX as usize);
            product.map(|p| if factors.contains(&0) { 0 } else { p })
        };
        let src = product([self.batch, self.outer, self.window.extent(), self.row]);
        let dst = product([self.batch, self.outer, self.num_indices, self.row]);
        src.zip(dst).ok_or_else(|| {
            Error::invalid(format!(
                "gather of {} rows of {} bytes from [{}, {}, {}] such rows: no address space holds that",
                self.num_indices,
                self.row,
                self.batch,
                self.outer,
                self.window.extent()
            ))
        })
    }
}

/// Gathers. Nothing is read where the destination is empty.
///
/// # Errors
/// `InvalidArgument` for sizes that no address space holds and for the first index that is an error; those of
/// `par`.
///
/// # Safety
/// `indices` and `src` are readable and `dst` writable for all elements, with no other access until this
/// returns; `dst` overlaps neither.
pub(super) unsafe fn gather(isa: Isa, par: &dyn Parallel, rows: &Rows) -> Result<()> {
    let (table, written) = rows.bytes()?;
    let bad = Bad::new();
    if written == 0 {
        return Ok(());
    }
    match Elements::new(rows, table, written) {
        // SAFETY: the caller's promise.
        Some(elements) => unsafe { gather_elements::take_all(isa, par, &elements, &bad)? },
        // SAFETY: the caller's promise.
        None => unsafe { copy_rows(isa, par, rows, table, written, &bad)? },
    }
    // SAFETY: positions are those of the indices.
    unsafe { rows.window.check(&bad, rows.indices) }
}

/// # Safety
/// As for [`gather`].
unsafe fn copy_rows(
    isa: Isa,
    par: &dyn Parallel,
    rows: &Rows,
    table: usize,
    written: usize,
    bad: &Bad,
) -> Result<()> {
    let streaming = sink::streams(written, written.min(table));
    let ahead = if table < FAR_BYTES { 0 } else { (AHEAD / rows.row).clamp(1, MAX_ROWS_AHEAD) };
    let zeros = Pattern::new(&[0; 16], 16);
    let dst = Shared::new(rows.dst);
    for_ranges(par, written, 2, PIECE, |bytes| {
        // SAFETY: the range is within the destination and no other task has it.
        unsafe {
            let to = dst.get().add(bytes.start);
            sink::write(isa, streaming, to, RowsOf { rows, bytes, ahead, zeros: &zeros, bad });
        }
        Ok(())
    })
}

/// The rows that make a range of the destination's bytes.
struct RowsOf<'a> {
    rows: &'a Rows,
    bytes: Range<usize>,
    ahead: usize,
    zeros: &'a Pattern,
    bad: &'a Bad,
}

impl Producer for RowsOf<'_> {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        // SAFETY: the caller's promise, and indices are as they say.
        unsafe {
            match (self.rows.indices.stored, self.rows.row) {
                (IndexType::I32, LINE) => self.copy::<S, i32, LINE>(sink),
                (IndexType::I64, LINE) => self.copy::<S, i64, LINE>(sink),
                (IndexType::I32, _) => self.copy::<S, i32, 0>(sink),
                (IndexType::I64, _) => self.copy::<S, i64, 0>(sink),
            }
        }
    }
}

impl RowsOf<'_> {
    /// Copies rows of `ROW` bytes, if that is not 0.
    ///
    /// # Safety
    /// As for [`Producer::run`]; indices are stored as `I`.
    #[inline(always)]
    unsafe fn copy<S: Sink, I: Index, const ROW: usize>(self, sink: &mut S) {
        let Rows { outer, ref window, num_indices: n, .. } = *self.rows;
        let row = if ROW == 0 { self.rows.row } else { ROW };
        let first = self.bytes.start / row;
        // Bytes of the first row that are another task's.
        let mut col = self.bytes.start % row;
        let mut left = self.bytes.len();
        let (mut slab, mut i) = (first / n, first % n);
        while left > 0 {
            let at = Slab {
                src: self.rows.src.wrapping_add(slab * window.extent() * row),
                list: slab / outer * n,
                row,
            };
            // SAFETY: slabs are `batch * outer`, as the range is within the destination, and indices are within
            // their list.
            unsafe {
                if col > 0 {
                    let end = row.min(col + left);
                    self.one::<S, I>(sink, at, i, col..end);
                    left -= end - col;
                    (i, col) = (i + 1, 0);
                }
                let end = n.min(i + left / row);
                for i in i..end {
                    self.one::<S, I>(sink, at, i, 0..row);
                }
                left -= (end - i) * row;
                if end < n && left > 0 {
                    self.one::<S, I>(sink, at, end, 0..left);
                    left = 0;
                }
            }
            (slab, i) = (slab + 1, 0);
        }
    }

    /// Copies the columns `cols` of the row for index `i`.
    ///
    /// # Safety
    /// As for [`Producer::run`]; the index is one of the slab's, and the columns are those of a row.
    #[inline(always)]
    unsafe fn one<S: Sink, I: Index>(&self, sink: &mut S, at: Slab, i: usize, cols: Range<usize>) {
        let &Rows { ref window, num_indices, indices, .. } = self.rows;
        // SAFETY: the caller's promise; a row that is found is one of the window's.
        unsafe {
            if self.ahead > 0 && i + self.ahead < num_indices {
                // Whether there is such a row is checked when its turn comes.
                let next = window.guess(indices.get_as::<I>(at.list + i + self.ahead));
                prefetch(at.src.wrapping_add(next.wrapping_mul(at.row)), at.row.min(MAX_PREFETCH));
            }
            let found = window.row(indices.get_as::<I>(at.list + i), at.list + i, self.bad);
            if found == NONE {
                sink.fill(self.zeros, cols.len());
            } else {
                sink.put(at.src.add(found * at.row + cols.start), cols.len());
            }
        }
    }
}

/// The rows that one list of indices selects from.
#[derive(Clone, Copy)]
struct Slab {
    src: *const u8,
    /// Where in all indices the list starts.
    list: usize,
    /// Bytes of a row.
    row: usize,
}
