//! Gathering rows of one small element, as along the last axis of a tensor.
//!
//! Indices become 32-bit positions relative to a base, a block at a time or once for all slabs of the source,
//! and each block of positions is then taken by vector gathers, or by plain loads where those are as fast.

use crate::isa::{Body, Isa, Level};
use crate::kernels::gather_rows::Rows;
use crate::kernels::raw::{Shared, for_ranges, prefetch_l2};
use crate::kernels::sink::{self, FAR_BYTES, LINE, PIECE, Producer, ROOM, Sink, prefetch};
use crate::kernels::window::{Bad, IndexType, Indices, NONE, Window};
use ep_core::parallel::{Parallel, Serial};
use ep_core::{Error, Result};
use std::ops::Range;

/// Positions made at once.
const LIST: usize = 1024;
/// Elements taken at once on their way past the cache. Few, as they are then stored while others are taken, and the
/// stage that they pass through leaves the first-level cache to the slab and the positions.
const STREAM_BLOCK: usize = 128;
/// Positions are below this, so that they are not negative as an `i32`.
const LIMIT: usize = i32::MAX as usize;
/// The position of what is no element: zero is taken.
const NOWHERE: u32 = u32::MAX;

/// Takes the elements at some positions from `base`, zero for [`NOWHERE`], which is there only if the flag says so.
///
/// # Safety
/// `base` is readable at the positions, and the destination writable for as many elements.
type Take = unsafe fn(isa: Isa, base: *const u8, positions: &[u32], nowhere: bool, dst: *mut u8);

/// A gather of small elements.
#[derive(Clone, Copy)]
pub(super) struct Elements<'a> {
    rows: &'a Rows,
    streaming: bool,
    /// Whether the source is too large for a core's own cache.
    far: bool,
    take: Take,
}

impl<'a> Elements<'a> {
    /// If `rows` are single elements of an axis that 32-bit positions can address. The source has `table` bytes,
    /// the destination `written`.
    pub(super) fn new(rows: &'a Rows, table: usize, written: usize) -> Option<Elements<'a>> {
        let take: Take = match rows.row {
            1 => take::<u8>,
            2 => take::<u16>,
            4 => take::<u32>,
            8 => take::<u64>,
            16 => take::<[u64; 2]>,
            _ => return None,
        };
        let streaming = sink::streams(written, written.min(table));
        (rows.window.extent() < LIMIT).then_some(Elements { rows, streaming, far: table >= FAR_BYTES, take })
    }

    fn size(&self) -> usize {
        self.rows.row
    }

    /// Elements taken at once; a sink has room for them.
    fn block(&self) -> usize {
        const { assert!(STREAM_BLOCK * 16 <= ROOM) };
        if self.streaming { STREAM_BLOCK } else { ROOM / self.size() }
    }

    /// Takes elements at positions from `base` into a sink.
    ///
    /// # Safety
    /// As for [`Take`]; the sink's output has as many elements left.
    #[inline(always)]
    unsafe fn take<S: Sink>(
        &self,
        isa: Isa,
        base: *const u8,
        positions: &[u32],
        nowhere: bool,
        sink: &mut S,
    ) {
        for block in positions.chunks(self.block()) {
            let bytes = block.len() * self.size();
            // SAFETY: the caller's promise; a sink has room for a block.
            unsafe {
                (self.take)(isa, base, block, nowhere, sink.room(bytes));
                sink.advance(bytes);
            }
        }
    }
}

/// Gathers.
///
/// # Errors
/// `OutOfMemory` if there is none for a position for each index; those of `par`.
///
/// # Safety
/// As for [`gather`](super::gather_rows::gather), and neither side is empty of rows to write.
pub(super) unsafe fn take_all(isa: Isa, par: &dyn Parallel, all: &Elements<'_>, bad: &Bad) -> Result<()> {
    let Rows { batch, outer, num_indices: n, .. } = *all.rows;
    let size = all.size();
    if outer == 1 {
        let dst = Shared::new(all.rows.dst);
        return for_ranges(par, batch * n * size, 2, PIECE, |bytes| {
            // SAFETY: the range is within the destination and no other task has it.
            unsafe {
                let to = dst.get().add(bytes.start);
                let elements = bytes.start / size..bytes.end / size;
                sink::write(isa, all.streaming, to, Lists { isa, all, elements, bad });
            }
            Ok(())
        });
    }
    if batch < 2 * par.threads() {
        // SAFETY: the caller's promise.
        return (0..batch).try_for_each(|b| unsafe { take_batch(isa, par, all, b, bad) });
    }
    for_ranges(par, batch, 2 * outer * n * size, 1, |mut range| {
        // SAFETY: the caller's promise; batches write parts of their own.
        range.try_for_each(|b| unsafe { take_batch(isa, &Serial, all, b, bad) })
    })
}

/// Gathers from all slabs of one batch with one list of positions.
///
/// # Errors
/// As for [`take_all`].
///
/// # Safety
/// As for [`take_all`], for the parts of this batch.
unsafe fn take_batch(isa: Isa, par: &dyn Parallel, all: &Elements<'_>, b: usize, bad: &Bad) -> Result<()> {
    let Rows { outer, window, num_indices: n, indices, .. } = *all.rows;
    let size = all.size();
    let extent = window.extent();
    // A short list is repeated for several slabs, which become one that is as long.
    let slabs = (LIST / n).min(LIMIT / extent.max(1)).clamp(1, outer);
    let mut short = [0; LIST];
    let mut long = Vec::new();
    let list = if n <= LIST {
        &mut short[..slabs * n]
    } else {
        long.try_reserve_exact(n).map_err(|_| no_memory(n))?;
        long.resize(n, 0);
        &mut long[..]
    };
    let (once, more) = list.split_at_mut(n);
    // SAFETY: the list of batch `b` has `n` indices.
    let nowhere = unsafe { locate(isa, window, indices.skip(b * n), b * n, 0, once, bad) };
    for (slab, copy) in more.chunks_exact_mut(n).enumerate() {
        let base = ((slab + 1) * extent) as u32;
        copy.iter_mut()
            .zip(&*once)
            .for_each(|(to, &from)| *to = if from == NOWHERE { NOWHERE } else { from + base });
    }
    let list = &*list;
    let src = Shared::new(all.rows.src.wrapping_add(b * outer * extent * size).cast_mut());
    let dst = Shared::new(all.rows.dst.wrapping_add(b * outer * n * size));
    for_ranges(par, outer * n * size, 2, PIECE, |bytes| {
        // SAFETY: the range is within this batch's part of the destination and no other task has it.
        unsafe {
            let to = dst.get().add(bytes.start);
            let elements = bytes.start / size..bytes.end / size;
            let src = src.get().cast_const();
            sink::write(isa, all.streaming, to, Slabs { isa, all, src, list, slabs, nowhere, elements });
        }
        Ok(())
    })
}

#[cold]
fn no_memory(n: usize) -> Error {
    Error::out_of_memory(format!("gather: no memory for the positions of {n} indices"))
}

/// Elements of a destination whose slabs each have a list of their own.
struct Lists<'a> {
    isa: Isa,
    all: &'a Elements<'a>,
    elements: Range<usize>,
    bad: &'a Bad,
}

impl Producer for Lists<'_> {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        let Lists { isa, all, elements, bad } = self;
        let Rows { window, num_indices: n, indices, .. } = *all.rows;
        let (size, extent) = (all.size(), window.extent());
        let mut positions = [0; LIST];
        let (mut b, mut i) = (elements.start / n, elements.start % n);
        let mut left = elements.len();
        while left > 0 {
            // A block spans lists as long as the last element of their slabs is within reach of the first.
            let (base, most) = (b, LIST.min(left));
            let (mut len, mut nowhere) = (0, false);
            while len < most && (b + 1 - base).saturating_mul(extent) < LIMIT {
                let part = (n - i).min(most - len);
                let at = b * n + i;
                // SAFETY: `elements` are within the destination, which has one for each index.
                nowhere |= unsafe {
                    let to = &mut positions[len..len + part];
                    locate(isa, window, indices.skip(at), at, ((b - base) * extent) as u32, to, bad)
                };
                len += part;
                i += part;
                if i == n {
                    (b, i) = (b + 1, 0);
                }
            }
            // SAFETY: the positions are those of elements in the slabs from `base` on.
            unsafe {
                let from = all.rows.src.add(base * extent * size);
                all.take(isa, from, &positions[..len], nowhere, sink);
            }
            left -= len;
        }
    }
}

/// Elements of a destination whose slabs share a list.
struct Slabs<'a> {
    isa: Isa,
    all: &'a Elements<'a>,
    src: *const u8,
    /// Positions for `slabs` slabs.
    list: &'a [u32],
    slabs: usize,
    nowhere: bool,
    elements: Range<usize>,
}

impl Producer for Slabs<'_> {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        let Slabs { isa, all, src, list, slabs, nowhere, elements } = self;
        let size = all.size();
        let step = slabs * all.rows.window.extent() * size;
        // Where few of a slab's lines are wanted, fetching them all is a loss.
        let ahead = all.far && list.len().saturating_mul(LINE) >= step / 2;
        let mut group = elements.start / list.len();
        let mut at = elements.start % list.len();
        let mut left = elements.len();
        while left > 0 {
            let len = (list.len() - at).min(left).min(all.block());
            // SAFETY: groups of slabs are within the source, as the elements are within the destination; a last
            // group that is not full ends with the elements.
            unsafe {
                let base = src.add(group * step);
                if ahead {
                    let share = |i: usize| (step as u128 * i as u128 / list.len() as u128) as usize;
                    let from = share(at);
                    let (next, end) = (base.wrapping_add(step), share(at + len));
                    if all.streaming {
                        // What passes through the first-level cache on its way to memory needs the room there.
                        (from..end).step_by(LINE).for_each(|line| prefetch_l2(next.wrapping_add(line)));
                    } else {
                        prefetch(next.wrapping_add(from), end - from);
                    }
                }
                all.take(isa, base, &list[at..at + len], nowhere, sink);
            }
            left -= len;
            at += len;
            if at == list.len() {
                (group, at) = (group + 1, 0);
            }
        }
    }
}

/// Turns indices into positions, `base` being added; says whether any is [`NOWHERE`]. `first` is the position of the
/// first in the caller's list.
///
/// # Safety
/// `indices` is readable for as many as there are positions. `base` and the window's extent are less than
/// [`LIMIT`] together.
#[inline]
unsafe fn locate(
    isa: Isa,
    window: Window,
    indices: Indices,
    first: usize,
    base: u32,
    positions: &mut [u32],
    bad: &Bad,
) -> bool {
    const FEW: usize = 16;
    let mut unusual = positions.len() < FEW;
    if !unusual {
        let (at, offset, extent) = (indices.at, window.offset() as u64, window.extent() as u64);
        unusual = match indices.stored {
            IndexType::I32 => isa.dispatch(Shift { at: at.cast::<i32>(), offset, extent, base, positions }),
            IndexType::I64 => isa.dispatch(Shift { at: at.cast::<i64>(), offset, extent, base, positions }),
        };
    }
    let mut nowhere = false;
    if unusual {
        for (i, position) in positions.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let row = window.row(unsafe { indices.get(i) }, first + i, bad);
            *position = if row == NONE { NOWHERE } else { base + row as u32 };
            nowhere |= row == NONE;
        }
    }
    nowhere
}

/// The usual indices, those of rows in the window; returns whether there are others. Made only where `at` is
/// readable for all positions.
struct Shift<'a, I> {
    at: *const I,
    offset: u64,
    extent: u64,
    base: u32,
    positions: &'a mut [u32],
}

impl<I: Copy + Into<i64>> Body for Shift<'_, I> {
    type Out = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let mut outside = false;
        for (i, position) in self.positions.iter_mut().enumerate() {
            // SAFETY: as the type says.
            let index: i64 = unsafe { self.at.add(i).read_unaligned() }.into();
            let row = (index as u64).wrapping_sub(self.offset);
            outside |= row >= self.extent;
            *position = (row as u32).wrapping_add(self.base);
        }
        outside
    }
}

/// Plain data that is taken one by one or by vectors.
trait Element: Copy {
    /// All bits zero.
    const ZERO: Self;

    /// As [`Take`], by vectors if there are any for this size; says whether it was done.
    ///
    /// # Safety
    /// As for [`Take`], on a CPU with AVX-512.
    unsafe fn vectors(base: *const u8, positions: &[u32], nowhere: bool, dst: *mut u8) -> bool {
        let _ = (base, positions, nowhere, dst);
        false
    }
}

impl Element for u8 {
    const ZERO: u8 = 0;
}

impl Element for u16 {
    const ZERO: u16 = 0;
}

impl Element for [u64; 2] {
    const ZERO: [u64; 2] = [0; 2];
}

impl Element for u32 {
    const ZERO: u32 = 0;

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn vectors(base: *const u8, positions: &[u32], nowhere: bool, dst: *mut u8) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if nowhere {
                x86::take4::<true>(base, positions, dst)
            } else {
                x86::take4::<false>(base, positions, dst)
            }
        }
        true
    }
}

impl Element for u64 {
    const ZERO: u64 = 0;

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn vectors(base: *const u8, positions: &[u32], nowhere: bool, dst: *mut u8) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if nowhere {
                x86::take8::<true>(base, positions, dst)
            } else {
                x86::take8::<false>(base, positions, dst)
            }
        }
        true
    }
}

/// # Safety
/// As for [`Take`].
unsafe fn take<T: Element>(isa: Isa, base: *const u8, positions: &[u32], nowhere: bool, dst: *mut u8) {
    // SAFETY: the caller's promise; the level says that the CPU has AVX-512.
    if isa.level() >= Level::Avx512 && unsafe { T::vectors(base, positions, nowhere, dst) } {
        return;
    }
    let (from, to) = (base.cast::<T>(), dst.cast::<T>());
    // SAFETY: the caller's promise.
    unsafe {
        if nowhere {
            for (i, &position) in positions.iter().enumerate() {
                let x =
                    if position == NOWHERE { T::ZERO } else { from.add(position as usize).read_unaligned() };
                to.add(i).write_unaligned(x);
            }
        } else {
            for (i, &position) in positions.iter().enumerate() {
                to.add(i).write_unaligned(from.add(position as usize).read_unaligned());
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// As [`super::Take`] for elements of 4 bytes. Without `NOWHERE` there is no such position.
    ///
    /// # Safety
    /// As for [`super::Take`], on a CPU with AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn take4<const NOWHERE: bool>(base: *const u8, positions: &[u32], dst: *mut u8) {
        let (n, at) = (positions.len(), positions.as_ptr().cast::<i32>());
        let (whole, to) = (n - n % 16, dst.cast::<i32>());
        // SAFETY: vectors end within the positions, masks leave out what is past them or nowhere.
        unsafe {
            for i in (0..whole).step_by(16) {
                let index = _mm512_loadu_si512(at.add(i).cast());
                let x = if NOWHERE {
                    let mask = _mm512_cmpge_epi32_mask(index, _mm512_setzero_si512());
                    _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), mask, index, base.cast())
                } else {
                    _mm512_i32gather_epi32::<4>(index, base.cast())
                };
                _mm512_storeu_si512(to.add(i).cast(), x);
            }
            if whole < n {
                let rest = (1u16 << (n - whole)) - 1;
                let index = _mm512_maskz_loadu_epi32(rest, at.add(whole));
                let mask = _mm512_mask_cmpge_epi32_mask(rest, index, _mm512_setzero_si512());
                let x = _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), mask, index, base.cast());
                _mm512_mask_storeu_epi32(to.add(whole), rest, x);
            }
        }
    }

    /// As [`take4`] for elements of 8 bytes.
    ///
    /// # Safety
    /// As for [`take4`].
    #[target_feature(enable = "avx512f,avx512vl")]
    pub(super) unsafe fn take8<const NOWHERE: bool>(base: *const u8, positions: &[u32], dst: *mut u8) {
        let (n, at) = (positions.len(), positions.as_ptr().cast::<i32>());
        let (whole, to) = (n - n % 8, dst.cast::<i64>());
        // SAFETY: as in `take4`.
        unsafe {
            for i in (0..whole).step_by(8) {
                let index = _mm256_loadu_si256(at.add(i).cast());
                let x = if NOWHERE {
                    let mask = _mm256_cmpge_epi32_mask(index, _mm256_setzero_si256());
                    _mm512_mask_i32gather_epi64::<8>(_mm512_setzero_si512(), mask, index, base.cast())
                } else {
                    _mm512_i32gather_epi64::<8>(index, base.cast())
                };
                _mm512_storeu_si512(to.add(i).cast(), x);
            }
            if whole < n {
                let rest = (1u8 << (n - whole)) - 1;
                let index = _mm256_maskz_loadu_epi32(rest, at.add(whole));
                let mask = _mm256_mask_cmpge_epi32_mask(rest, index, _mm256_setzero_si256());
                let x = _mm512_mask_i32gather_epi64::<8>(_mm512_setzero_si512(), mask, index, base.cast());
                _mm512_mask_storeu_epi64(to.add(whole), rest, x);
            }
        }
    }
}
