//! Applying a kernel for contiguous elements to strided layouts: what strided copies between two dtypes and
//! strided elementwise ops are made of.
//!
//! Where both sides are dense, the kernel gets everything at once; where both have contiguous rows long enough,
//! it gets row by row. Otherwise a part at a time is brought through small buffers that stay in cache: gathered
//! where the source is not dense, and spread, or written past the cache, where the destination asks for it. A
//! source whose elements are closer together along another axis than the destination's is transposed into the
//! buffer.

use super::lines::LINE;
use super::movement::{DST, SRC};
use super::raw::{Shared, for_ranges};
use super::stream;
use super::strided::{Block, Blocks, COLLECT_BYTES, collect, gather, near, piece, scatter};
use super::transpose::{self, Matrix, Mode};
use super::unary::{UnaryArgs, UnaryKernel};
use crate::isa::Isa;
use ep_core::Result;
use ep_core::parallel::{Parallel, Serial};
use primitives::tensor_iterator::TensorIterator;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Elements that go through the buffers at once.
const PART: usize = 1024;
/// Bytes of the widest element.
const WIDEST: usize = 16;
/// Rows of at least this many elements are worth a call each.
const LONG_ROW: usize = 256;
/// Rows and bytes of columns that are transposed at once: together as much as a second-level cache holds easily.
const PANEL_ROWS: usize = 256;
const PANEL_COLS: usize = 256;

#[repr(C, align(64))]
struct Part([MaybeUninit<u8>; PART * WIDEST]);

#[repr(C, align(64))]
struct Panel([MaybeUninit<u8>; PANEL_ROWS * PANEL_COLS]);

/// A kernel and what it is applied to.
#[derive(Clone, Copy)]
pub(super) struct Map<'a> {
    pub(super) kernel: UnaryKernel,
    pub(super) attr: [f64; 2],
    /// Operand 0 is the destination.
    pub(super) walk: &'a TensorIterator<2>,
    /// Bytes of an element of the source and of the destination.
    pub(super) src_size: usize,
    pub(super) dst_size: usize,
    /// The elements at index 0, aligned to their size (a complex number to its parts).
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
}

// SAFETY: the addresses are only offset here; each use states why it is in bounds and why no two threads write the
// same element.
unsafe impl Sync for Map<'_> {}

impl Map<'_> {
    /// Computes all elements.
    ///
    /// # Errors
    /// Those of the kernel and of `par`.
    ///
    /// # Safety
    /// All elements that the walk reaches are readable in `src` and writable in `dst`, with no other access until
    /// this returns; the two sides do not overlap, and no element of the destination is reached twice.
    pub(super) unsafe fn run(&self, isa: Isa, par: &dyn Parallel) -> Result<()> {
        let (walk, src_size, dst_size) = (self.walk, self.src_size, self.dst_size);
        let count = walk.count();
        let src_dense = walk.is_dense(SRC, src_size);
        let dst_dense = walk.is_dense(DST, dst_size);
        if src_dense && dst_dense {
            // SAFETY: the caller's promise; both sides lie one after the other.
            return unsafe { self.launch(isa, par, count, self.src_at(0), self.dst_at(0)) };
        }
        let inner = walk.strides()[0];
        let contiguous = [DST, SRC].map(|n| inner[n] == [dst_size, src_size][n] as isize);
        if contiguous == [true, true] && walk.sizes()[0] >= LONG_ROW {
            return for_ranges(par, count, src_size + dst_size, LINE, |range| {
                // SAFETY: the caller's promise; this task writes elements of its own.
                unsafe { self.rows(isa, range) }
            });
        }
        if let Some(near) = near(walk).filter(|_| contiguous[DST] && walk.sizes()[0] >= LINE) {
            // SAFETY: the caller's promise.
            return unsafe { self.panels(isa, par, near) };
        }
        for_ranges(par, count, src_size + dst_size, LINE, |range| {
            // SAFETY: the caller's promise; this task writes elements of its own.
            unsafe { self.parts(isa, range, src_dense, dst_dense) }
        })
    }

    /// # Safety
    /// As for [`UnaryKernel::launch`].
    unsafe fn launch(
        &self,
        isa: Isa,
        par: &dyn Parallel,
        count: usize,
        src: *const u8,
        dst: *mut u8,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.kernel.launch(isa, par, &UnaryArgs { count, src, dst, attr: self.attr }) }
    }

    /// Element `index` of a dense source.
    fn src_at(&self, index: usize) -> *const u8 {
        self.src.wrapping_offset(self.walk.starts()[SRC]).wrapping_add(index * self.src_size)
    }

    /// Element `index` of a dense destination.
    fn dst_at(&self, index: usize) -> *mut u8 {
        self.dst.wrapping_offset(self.walk.starts()[DST]).wrapping_add(index * self.dst_size)
    }

    /// Row by row.
    ///
    /// # Safety
    /// As for [`Map::run`], for these elements; the innermost axis is contiguous on both sides.
    unsafe fn rows(&self, isa: Isa, range: Range<usize>) -> Result<()> {
        let mut result = Ok(());
        self.walk.for_each(range, |at, strides, [inner, outer]| {
            for row in 0..outer as isize {
                let src = self.src.wrapping_offset(at[SRC] + row * strides[1][SRC]);
                let dst = self.dst.wrapping_offset(at[DST] + row * strides[1][DST]);
                // SAFETY: a contiguous row of both sides.
                let done = unsafe { self.launch(isa, &Serial, inner, src, dst) };
                if done.is_err() && result.is_ok() {
                    result = done;
                }
            }
        });
        result
    }

    /// Part by part through buffers.
    ///
    /// # Safety
    /// As for [`Map::run`], for these elements.
    unsafe fn parts(&self, isa: Isa, range: Range<usize>, src_dense: bool, dst_dense: bool) -> Result<()> {
        let mut sources = Part([MaybeUninit::uninit(); PART * WIDEST]);
        let sources = sources.0.as_mut_ptr().cast::<u8>();
        let result = Cell::new(Ok(()));
        let compute = |part: Range<usize>, to: *mut u8| {
            // SAFETY: the part has at most `PART` elements, for which there is room; its source is the caller's.
            unsafe {
                let from = if src_dense {
                    self.src_at(part.start)
                } else {
                    gather(isa, self.walk, part.clone(), self.src_size, self.src, sources);
                    sources.cast_const()
                };
                let done = self.launch(isa, &Serial, part.len(), from, to);
                if done.is_err() {
                    result.set(done);
                }
            }
        };
        let part_of = |start: usize| start..range.end.min(start + PART);
        if dst_dense && stream::reaches(self.walk.count() * self.dst_size, COLLECT_BYTES) {
            // SAFETY: the destination's elements lie one after the other.
            unsafe {
                collect(isa, self.dst_at(range.start), range.clone(), self.dst_size, |block, to| {
                    for start in block.clone().step_by(PART) {
                        let part = start..block.end.min(start + PART);
                        compute(part, to.add((start - block.start) * self.dst_size));
                    }
                });
            }
        } else if dst_dense {
            for part in range.clone().step_by(PART).map(part_of) {
                let to = self.dst_at(part.start);
                compute(part, to);
            }
        } else {
            let mut results = Part([MaybeUninit::uninit(); PART * WIDEST]);
            let results = results.0.as_mut_ptr().cast::<u8>();
            for part in range.clone().step_by(PART).map(part_of) {
                compute(part.clone(), results);
                // SAFETY: the part's results, for elements of this task.
                unsafe { scatter(isa, self.walk, part, self.dst_size, results, self.dst) };
            }
        }
        result.into_inner()
    }

    /// Panel by panel: transposed, then computed row by row.
    ///
    /// # Safety
    /// As for [`Map::run`]; the innermost axis is contiguous in the destination.
    unsafe fn panels(&self, isa: Isa, par: &dyn Parallel, near: usize) -> Result<()> {
        let (src_size, dst_size) = (self.src_size, self.dst_size);
        let turn = transpose::lookup(isa, src_size, Mode::Cached);
        let across = self.walk.strides()[near][SRC];
        let blocks = Blocks::new(self.walk, near, PANEL_ROWS / 2, PANEL_COLS / src_size / 2);
        let (src, dst) = (Shared::new(self.src.cast_mut()), Shared::new(self.dst));
        blocks.for_each(par, src_size + dst_size, |block| {
            let mut panel = Panel([MaybeUninit::uninit(); PANEL_ROWS * PANEL_COLS]);
            let panel = panel.0.as_mut_ptr().cast::<u8>();
            let Block { at, strides, sizes: [rows, cols] } = block;
            let row_bytes = rows * src_size;
            let from = src.get().cast_const().wrapping_offset(at[SRC]);
            let to = dst.get().wrapping_offset(at[DST]);
            // SAFETY: a block has fewer than `PANEL_ROWS` rows and `PANEL_COLS` bytes of columns; its elements are
            // those of the caller, and no other task writes them.
            unsafe {
                if across == src_size as isize {
                    let [src_stride, dst_stride] = [strides[0][SRC], row_bytes as isize];
                    turn(Matrix { rows, cols, src_stride, dst_stride }, from, panel);
                } else {
                    let size = src_size as isize;
                    let strides = [[size, strides[0][SRC]], [row_bytes as isize, strides[1][SRC]]];
                    piece(isa, src_size, from, panel, strides, [rows, cols]);
                }
                for col in 0..cols {
                    let to = to.wrapping_offset(col as isize * strides[1][DST]);
                    self.launch(isa, &Serial, rows, panel.add(col * row_bytes), to)?;
                }
            }
            Ok(())
        })
    }
}
