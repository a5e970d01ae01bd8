//! Rows too long for the first-level cache, in blocks that fit it.
//!
//! The first pass takes of each block its maximum and the sum of its exponentials, each block with a shift of its
//! own; the sums are added up in f64. Where a cache holds the exponentials of a row, they are kept, in the destination if it can
//! hold them and is to be in the cache, else aside; and the second pass scales them. Of longer rows it computes them again, which
//! costs less than storing them in memory and reading them; the bits are the same. Blocks are the same whatever the number of threads,
//! and so is their order.
//!
//! A block (`long_block.rs`) is read once if its maximum can be guessed: see [`Sum`].

use super::exp::Shift;
use super::long_block::{Block, Finish, KEEP, NO, Partial, REPLACE, Scale, Sum, Write};
use super::strips::with_scratch;
use super::vector::{Compute, dispatch};
use super::{EXP_BYTES, Matrix};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::{Cell, Real};
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::ops::Range;
use std::ptr;

/// Elements of a block.
pub(super) const BLOCK: usize = 4096;
/// Bytes of a row's exponentials up to which they are kept aside: what a core's second-level cache holds, or little more.
const ASIDE_BYTES: usize = 1 << 20;

/// Where the exponentials of a row are until their sum is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Destination,
    Aside,
    /// They are computed again.
    Nowhere,
}

/// A matrix of which blocks of rows are summed up and finished. Made only for what [`Matrix`] promises.
struct Blocks<S, D> {
    isa: Isa,
    src: Shared<S>,
    dst: Shared<D>,
    cols: usize,
    stream: bool,
    log: bool,
    keep: Keep,
    /// Whether shifts may be guessed.
    guesses: bool,
}

impl<S, D> Blocks<S, D> {
    fn count(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// The elements of these blocks, in the matrix.
    fn elements(&self, row: usize, blocks: &Range<usize>) -> Range<usize> {
        let at = row * self.cols;
        at + blocks.start * BLOCK..at + (blocks.end * BLOCK).min(self.cols)
    }

    /// Where exponentials of a block of a row are kept; `aside` is the room for those of the row. Null for nowhere.
    ///
    /// # Safety
    /// `aside` is room for `cols` numbers where they are kept there; the matrix has such a row with such a block.
    unsafe fn kept<A>(&self, row: usize, block: usize, aside: *mut A) -> *mut A {
        let at = self.elements(row, &(block..block + 1)).start;
        // SAFETY: the caller's promise; where they are kept in the destination, that is of this type.
        unsafe {
            match self.keep {
                Keep::Destination => self.dst.get().add(at).cast(),
                Keep::Aside => aside.add(block * BLOCK),
                Keep::Nowhere => ptr::null_mut(),
            }
        }
    }

    /// The sum of one block. The exponentials in its place are finished by `pending`, before others take it.
    ///
    /// # Safety
    /// As for [`Self::kept`]; nothing else uses what it returns, and what is pending is another row's block in the same place.
    unsafe fn sum<A: Compute>(
        &self,
        row: usize,
        block: usize,
        aside: *mut A,
        pending: Option<Scale<D, A>>,
    ) -> Block<A>
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let part = self.elements(row, &(block..block + 1));
        // SAFETY: the block is within the matrix, and the rest is the caller's promise.
        let (src, kept) =
            unsafe { (self.src.get().add(part.start).cast_const(), self.kept(row, block, aside)) };
        let (len, guesses) = (part.len(), self.guesses);
        match pending {
            None if kept.is_null() => {
                dispatch(self.isa, Sum::<S, D, A, NO> { src, kept, len, guesses, pending: None })
            }
            None => dispatch(self.isa, Sum::<S, D, A, KEEP> { src, kept, len, guesses, pending: None }),
            pending => dispatch(self.isa, Sum::<S, D, A, REPLACE> { src, kept, len, guesses, pending }),
        }
    }

    /// Finishes these blocks of a row of which all are `known`.
    ///
    /// # Safety
    /// As for [`Self::sum`]; where exponentials are kept, all of these blocks have been summed up.
    unsafe fn finish<A: Compute>(
        &self,
        row: usize,
        blocks: Range<usize>,
        known: &[Block<A>],
        finish: Finish<A>,
        aside: *mut A,
    ) where
        S: Cell<A>,
        D: Cell<A>,
    {
        if self.keep == Keep::Nowhere {
            // SAFETY: the blocks are within the matrix.
            unsafe { self.write(self.elements(row, &blocks), finish) };
            return;
        }
        for block in blocks {
            // SAFETY: the caller's promise.
            if let Some(scale) = unsafe { self.pending(row, block, &known[block], finish, aside) } {
                dispatch::<A, _>(self.isa, scale);
            }
        }
    }

    /// What finishes the exponentials that are kept of a block. None if they are of no use: then it has been finished.
    ///
    /// # Safety
    /// As for [`Self::finish`], of a block of which exponentials are kept.
    unsafe fn pending<A: Compute>(
        &self,
        row: usize,
        block: usize,
        known: &Block<A>,
        finish: Finish<A>,
        aside: *mut A,
    ) -> Option<Scale<D, A>>
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let part = self.elements(row, &(block..block + 1));
        let Some(last) = finish.of_kept(known) else {
            // SAFETY: the block is within the matrix.
            unsafe { self.write(part, finish) };
            return None;
        };
        // SAFETY: as above, and the caller's promise.
        let (kept, dst) =
            unsafe { (self.kept(row, block, aside).cast_const(), self.dst.get().add(part.start)) };
        Some(Scale { kept, dst, len: part.len(), stream: self.stream, last })
    }

    /// Some rows, one after the other; all of them `known` blocks and room `aside`.
    ///
    /// # Safety
    /// As for [`Self::kept`]; nothing else uses the rows.
    unsafe fn rows<A: Compute>(&self, rows: Range<usize>, known: &mut [Block<A>], aside: *mut A)
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let count = known.len();
        // The row before is finished meanwhile, where its exponentials are aside.
        let mut before = None;
        for row in rows {
            let mut all = Partial::NONE;
            for (block, known) in known.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let pending =
                        before.and_then(|(row, finish)| self.pending(row, block, known, finish, aside));
                    *known = self.sum(row, block, aside, pending);
                }
                all = all.join(known.partial);
            }
            let finish = Finish::new(self.log, all);
            if self.keep == Keep::Aside {
                before = Some((row, finish));
            } else {
                // SAFETY: the caller's promise.
                unsafe { self.finish(row, 0..count, known, finish, aside) };
            }
        }
        if let Some((row, finish)) = before {
            // SAFETY: the caller's promise.
            unsafe { self.finish(row, 0..count, known, finish, aside) };
        }
        if self.stream {
            stream::fence();
        }
    }

    /// A row that several threads share.
    ///
    /// # Errors
    /// Those of `par`.
    ///
    /// # Safety
    /// As for [`Self::rows`].
    unsafe fn shared<A: Compute>(
        &self,
        par: &dyn Parallel,
        row: usize,
        known: &mut [Block<A>],
        aside: Shared<A>,
    ) -> Result<()>
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let (count, bytes) = (known.len(), BLOCK * EXP_BYTES);
        let shared = Shared::new(known.as_mut_ptr());
        for_ranges(par, count, bytes, 1, |blocks| {
            for block in blocks {
                // SAFETY: there are `count` blocks, and this one is only this task's.
                unsafe {
                    *shared.get().add(block) = self.sum(row, block, aside.get(), None);
                }
            }
            Ok(())
        })?;
        let all = known.iter().fold(Partial::NONE, |all, one| all.join(one.partial));
        let (known, finish) = (&*known, Finish::new(self.log, all));
        for_ranges(par, count, bytes, 1, |blocks| {
            // SAFETY: as above.
            unsafe { self.finish(row, blocks, known, finish, aside.get()) };
            if self.stream {
                stream::fence();
            }
            Ok(())
        })
    }

    /// Finishes elements of one row from the source.
    ///
    /// # Safety
    /// The matrix has these elements, and nothing else uses them.
    unsafe fn write<A: Compute>(&self, part: Range<usize>, finish: Finish<A>)
    where
        S: Cell<A>,
        D: Cell<A>,
    {
        let &Self { isa, stream, log, .. } = self;
        // SAFETY: the caller's promise.
        let (src, dst) =
            unsafe { (self.src.get().add(part.start).cast_const(), self.dst.get().add(part.start)) };
        dispatch::<A, _>(isa, Write { src, dst, len: part.len(), stream, log, finish });
    }
}

/// Softmax or log-softmax of a matrix of long rows, over threads.
///
/// # Errors
/// `OutOfMemory` if there is none for the sums of a row that several threads share, or of one whose exponentials are kept, or for
/// these; those of `par`.
///
/// # Safety
/// The matrix is as [`Matrix`] says.
pub(super) unsafe fn run<S, D, A>(isa: Isa, par: &dyn Parallel, m: &Matrix<S, D>) -> Result<()>
where
    S: Cell<A>,
    D: Cell<A>,
    A: Compute,
{
    let &Matrix { rows, cols, src, dst, stream, log } = m;
    let guesses = is_fused(isa);
    let keep = if log || !guesses {
        Keep::Nowhere
    } else if !stream && src.addr() != dst.addr() && D::DTYPE == A::DTYPE {
        Keep::Destination
    } else if cols * size_of::<A>() <= ASIDE_BYTES {
        Keep::Aside
    } else {
        Keep::Nowhere
    };
    let (src, dst) = (Shared::new(src.cast_mut()), Shared::new(dst));
    let matrix = Blocks { isa, src, dst, cols, stream, log, keep, guesses };
    let count = matrix.count();
    let aside = if keep == Keep::Aside { cols * size_of::<A>() } else { 0 };
    if rows >= par.threads() || cols < 2 * BLOCK {
        return for_ranges(par, rows, cols.saturating_mul(EXP_BYTES), 1, |rows| {
            let mut known = all_of(count, cols)?;
            // SAFETY: these rows are only this task's.
            with_scratch(aside, |aside| unsafe { matrix.rows(rows, &mut known, aside.cast()) })
        });
    }
    let mut known = all_of(count, cols)?;
    let mut done = Ok(());
    with_scratch(aside, |aside| {
        let aside = Shared::new(aside.cast());
        // SAFETY: the caller's promise.
        done = (0..rows).try_for_each(|row| unsafe { matrix.shared(par, row, &mut known, aside) });
    })?;
    done
}

/// Whether exponentials of the same element with different shifts differ by a power of two alone. Where a product is rounded before
/// it is added, it may be half-way between two integers, of which the shift decides.
fn is_fused(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    return isa.level() != Level::Baseline;
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        false
    }
}

/// Room for what is known of the `count` blocks of a row of `cols`.
fn all_of<A: Real>(count: usize, cols: usize) -> Result<Vec<Block<A>>> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| {
        Error::out_of_memory(format!("softmax needs room for the sums of {count} parts of a row of {cols}"))
    })?;
    all.resize(count, Block { partial: Partial::NONE, shift: Shift::of(A::ZERO) });
    Ok(all)
}
