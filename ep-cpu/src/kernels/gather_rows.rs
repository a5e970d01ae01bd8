//! Gathering from a tensor `[batch, outer, processed, inner]` along `processed`, by a list of indices for each
//! batch. [`gather`](super::gather) is the case of one batch.
//!
//! Rows are copied whole, the next ones being prefetched while one is written. Rows of one small element are
//! left to [`gather_elements`].

use crate::isa::Isa;
use crate::kernels::gather_elements::{self, Elements};
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::sink::{self, FAR_BYTES, LINE, PIECE, Pattern, Producer, Sink, prefetch, prefetch_l2};
use crate::kernels::stream::suits_intel;
use crate::kernels::window::{Bad, Index, IndexType, Indices, NONE, Window};
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::hint::assert_unchecked;
use std::ops::Range;

/// Bytes prefetched ahead of a copy: what the memory delivers while it takes to arrive.
const AHEAD: usize = 2048;
/// The most rows ahead, where rows are small.
const MAX_ROWS_AHEAD: usize = 24;
/// The same where the output is streamed, whose stores delay what is read.
const FAR_AHEAD: usize = 4096;
const MAX_FAR_ROWS_AHEAD: usize = 64;
/// The most bytes of a row that are prefetched before its turn; the rest is while it is copied.
const MAX_PREFETCH: usize = 2048;

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

/// Gathers. Where the destination is empty, only the indices are read.
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
    if written == 0 {
        // SAFETY: the caller's promise.
        return unsafe { rows.window.check_all(rows.indices, rows.batch.saturating_mul(rows.num_indices)) };
    }
    let bad = Bad::new();
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
    let ahead = match (table < FAR_BYTES, streaming) {
        (true, _) => 0,
        (_, true) => (FAR_AHEAD / rows.row).clamp(1, MAX_FAR_ROWS_AHEAD),
        _ => (AHEAD / rows.row).clamp(1, MAX_ROWS_AHEAD),
    };
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
    fn written(&self) -> usize {
        self.bytes.len()
    }

    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        // SAFETY: the caller's promise, and indices are as they say.
        unsafe {
            match self.rows.indices.stored {
                IndexType::I32 => self.copy_as::<S, i32>(sink),
                IndexType::I64 => self.copy_as::<S, i64>(sink),
            }
        }
    }
}

impl RowsOf<'_> {
    /// # Safety
    /// As for [`Producer::run`]; indices are stored as `I`.
    #[inline(always)]
    unsafe fn copy_as<S: Sink, I: Index>(self, sink: &mut S) {
        // SAFETY: the caller's promise, and each arm's rows are as long as it says.
        unsafe {
            match self.rows.row {
                8..16 => self.copy::<S, I, 8, 15>(sink),
                16..32 => self.copy::<S, I, 16, 31>(sink),
                32..64 => self.copy::<S, I, 32, 63>(sink),
                LINE => self.copy::<S, I, LINE, LINE>(sink),
                // A core of AMD's Zen 4 takes two thirds of the time so, one of Intel's Sapphire Rapids an eighth longer.
                65..128 if !suits_intel() => self.copy::<S, I, 65, 127>(sink),
                _ => self.copy::<S, I, 0, { usize::MAX }>(sink),
            }
        }
    }

    /// Copies rows of `LEAST` to `MOST` bytes. How to copy short ones is then not asked for each.
    ///
    /// # Safety
    /// As for [`Producer::run`]; indices are stored as `I`, and rows are that long.
    #[inline(always)]
    unsafe fn copy<S: Sink, I: Index, const LEAST: usize, const MOST: usize>(self, sink: &mut S) {
        let Rows { outer, ref window, num_indices: n, row, .. } = *self.rows;
        // SAFETY: the caller's promise.
        unsafe { assert_unchecked(LEAST <= row && row <= MOST) };
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
                let (next, bytes) =
                    (at.src.wrapping_add(next.wrapping_mul(at.row)), at.row.min(MAX_PREFETCH));
                if S::STREAMS {
                    prefetch_l2(next, bytes);
                } else {
                    prefetch(next, bytes);
                }
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

#[cfg(test)]
mod tests {
    use crate::kernels::batch_gather::{self, BatchGatherArgs};
    use crate::kernels::check::Buffer;
    use crate::kernels::gather::{self, GatherArgs};
    use crate::kernels::sink::tests::everywhere;
    use crate::kernels::testing::{Rng, Threads};
    use crate::kernels::window::{IndexMode, Indices, tests as window};
    use ep_core::parallel::{Parallel, Serial};
    use ep_core::{Code, DType};
    use primitives::reference::{Launch, View};
    use proptest::prelude::*;
    use std::slice;

    #[derive(Clone, Copy, Debug)]
    struct Case {
        /// Batch, outer, processed, inner.
        dims: [usize; 4],
        num_indices: usize,
        offset: usize,
        size: usize,
        mode: IndexMode,
        wide: bool,
        dtype: DType,
    }

    /// Indices of which most, or all, have a meaning.
    fn check(par: &dyn Parallel, case: Case, wild: bool) {
        let mut rng = Rng::new();
        let Case { dims: [batch, outer, processed, inner], num_indices, offset, size, mode, wide, dtype } =
            case;
        let element = dtype.size().unwrap();
        let axis = if size == 0 { offset + processed } else { size };
        let list =
            window::indices(&mut rng, batch * num_indices, axis, offset..offset + processed, mode, wild);
        let (stored, index_dtype) = window::store(&list, wide);
        let src = rng.bytes(batch * outer * processed * inner * element);
        let want = Launch::new("batch_gather")
            .selector("mode", window::name(mode))
            .dtype("indices", index_dtype)
            .dtype("data", dtype)
            .size("batch", batch as i64)
            .size("outer", outer as i64)
            .size("processed", processed as i64)
            .size("inner", inner as i64)
            .size("num_indices", num_indices as i64)
            .size("offset", offset as i64)
            .size("size", size as i64)
            .read("indices", View::new(index_dtype, &stored))
            .read("src", View::new(dtype, &src))
            .run()
            .map(|outputs| outputs.get("dst").unwrap().bytes.clone());
        let (mut src, mut stored) =
            (Buffer::of(&src, element), Buffer::of(&stored, stored.len() / list.len().max(1)));
        let indices = Indices { at: stored.ptr(), stored: window::stored(wide) };
        everywhere(|isa| {
            let mut dst = Buffer::poisoned(batch * outer * num_indices * inner * element, element);
            let args = BatchGatherArgs {
                batch,
                outer,
                processed,
                inner,
                num_indices,
                offset,
                size,
                mode,
                indices,
                src: src.ptr(),
                dst: dst.ptr(),
            };
            // SAFETY: all sides have their elements.
            let got = unsafe { batch_gather::lookup(dtype).unwrap()(isa, par, &args) };
            let bytes = dst.into_bytes();
            match &want {
                Ok(want) => assert!(got.is_ok() && bytes == *want, "{case:?} {isa} {got:?}"),
                Err(e) => window::same_error(&got, e),
            }
            if batch != 1 {
                return;
            }
            let mut dst = Buffer::poisoned(bytes.len(), element);
            let args = GatherArgs {
                outer,
                processed,
                inner,
                num_indices,
                offset,
                size,
                mode,
                indices,
                src: src.ptr(),
                dst: dst.ptr(),
            };
            // SAFETY: as above.
            let got = unsafe { gather::lookup(dtype).unwrap()(isa, par, &args) };
            assert!(got.is_err() == want.is_err(), "{case:?} {isa} {got:?}");
            let again = dst.into_bytes();
            assert!(got.is_err() || again == bytes, "{case:?} {isa}");
        });
    }

    fn plain(dims: [usize; 4], num_indices: usize, dtype: DType) -> Case {
        Case { dims, num_indices, offset: 0, size: 0, mode: IndexMode::Error, wide: true, dtype }
    }

    #[test]
    fn every_dtype_and_row_size() {
        assert_eq!((gather::rows().count(), batch_gather::rows().count()), (15, 15));
        for dtype in gather::rows() {
            for inner in [1, 2, 3, 4, 7, 16, 17, 64, 65, 127, 131] {
                check(&Serial, plain([1, 1, 11, inner], 23, dtype), true);
                check(&Serial, plain([1, 5, 11, inner], 9, dtype), false);
                check(&Serial, plain([3, 2, 4, inner], 6, dtype), false);
            }
        }
    }

    #[test]
    fn long_lists_and_long_rows_on_several_threads() {
        for (dims, n) in [
            ([1, 1, 3000, 1], 140_001),
            ([1, 133, 1500, 1], 1027),
            ([1, 1500, 7, 1], 90),
            ([40, 13, 70, 1], 260),
            ([1, 30, 40, 3], 1500),
            ([2, 1, 5, 20_001], 5),
            ([1, 3, 300, 257], 180),
            ([300, 1, 9, 1], 450),
            ([3, 2, 500, 16], 1500),
        ] {
            for (mode, wide, dtype) in [
                (IndexMode::Wrap, true, DType::F32),
                (IndexMode::Zero, false, DType::F32),
                (IndexMode::Wrap, true, DType::F64),
                (IndexMode::Wrap, false, DType::COMPLEX128),
            ] {
                check(&Threads(3), Case { mode, wide, ..plain(dims, n, dtype) }, mode == IndexMode::Zero);
            }
        }
    }

    #[test]
    fn tables_past_the_cache_are_prefetched() {
        for (inner, dtype) in [(16, DType::F32), (5, DType::F32), (1, DType::F64), (1000, DType::F32)] {
            let processed = (1 << 20) / (inner * dtype.size().unwrap());
            check(&Threads(2), plain([1, 1, processed + 1, inner], 377, dtype), false);
            check(&Serial, Case { wide: false, ..plain([1, 3, processed / 2, inner], 201, dtype) }, false);
        }
    }

    /// Outputs of which so much is written that what is written next is asked for.
    #[test]
    fn long_rows_of_large_outputs() {
        for inner in [255, 256, 300, 1024, 5001] {
            let rows = (1 << 20) / (inner * 4) + 3;
            check(&Serial, plain([1, 1, 7, inner], rows, DType::F32), false);
            check(&Threads(2), plain([1, 2, 7, inner], rows, DType::F32), false);
        }
    }

    #[test]
    fn the_first_wrong_index_is_named_whatever_the_threads() {
        let mut list = vec![1i64; 300_000];
        for at in [299_999, 123_456, 200_000] {
            list[at] = -(at as i64);
        }
        let src = [0u64; 3];
        for inner in [1, 3] {
            let mut dst = vec![0u8; list.len() * inner];
            let args = GatherArgs {
                outer: 1,
                processed: 8,
                inner,
                num_indices: list.len(),
                offset: 0,
                size: 0,
                mode: IndexMode::Wrap,
                indices: Indices { at: list.as_ptr().cast(), stored: window::stored(true) },
                src: src.as_ptr().cast(),
                dst: dst.as_mut_ptr(),
            };
            everywhere(|isa| {
                for par in [&Serial as &dyn Parallel, &Threads(3)] {
                    // SAFETY: all sides have their elements.
                    let e = unsafe { gather::lookup(DType::U8).unwrap()(isa, par, &args) }.unwrap_err();
                    assert_eq!(e.code(), Code::InvalidArgument);
                    assert!(e.message().contains("index -123456 at position 123456"), "{e}");
                }
            });
        }
    }

    #[test]
    fn huge_numbers_are_errors_or_zeros() {
        let list = [i64::MIN, i64::MAX, -1, 1 << 32, 1 << 62, 0];
        let src = [7u8, 8];
        let mut dst = [9u8; 6];
        let mut args = GatherArgs {
            outer: 1,
            processed: 2,
            inner: 1,
            num_indices: 6,
            offset: (1 << 62) - 1,
            size: i64::MAX as usize,
            mode: IndexMode::Zero,
            indices: Indices { at: list.as_ptr().cast(), stored: window::stored(true) },
            src: src.as_ptr(),
            dst: dst.as_mut_ptr(),
        };
        // SAFETY: all sides have their elements.
        let run = |args: &GatherArgs, isa| unsafe { gather::lookup(DType::U8).unwrap()(isa, &Serial, args) };
        everywhere(|isa| {
            run(&args, isa).unwrap();
            // SAFETY: the array outlives this, and nothing else uses it.
            assert_eq!(unsafe { slice::from_raw_parts(args.dst, 6) }, [0, 0, 0, 0, 8, 0]);
        });
        let isa = crate::isa::Isa::BASELINE;
        for (offset, processed, size) in
            [(1, 2, 2), (usize::MAX, 2, 0), (0, 0, usize::MAX), (usize::MAX, 0, 0)]
        {
            let args = GatherArgs { offset, processed, size, ..args };
            assert_eq!(
                run(&args, isa).unwrap_err().code(),
                Code::InvalidArgument,
                "{offset} {processed} {size}"
            );
        }
        for (outer, inner) in [(usize::MAX, 1), (1 << 33, 1 << 33), (0, usize::MAX), (1 << 62, 2)] {
            let args = GatherArgs { outer, inner, ..args };
            assert_eq!(run(&args, isa).unwrap_err().code(), Code::InvalidArgument, "{outer} {inner}");
        }
        // An empty destination: indices still count.
        args.inner = 0;
        run(&args, isa).unwrap();
        args.mode = IndexMode::Error;
        assert!(run(&args, isa).unwrap_err().message().contains("at position 0"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_shape_and_window(
            dims in [0usize..4, 0usize..4, 0usize..12, 0usize..40],
            num_indices in 0usize..60,
            offset in 0usize..9,
            more in 0usize..9,
            flags in any::<[bool; 4]>(),
            mode in 0usize..3,
            dtype in 0usize..15,
        ) {
            let [whole, wide, wild, threads] = flags;
            let case = Case {
                dims,
                num_indices,
                offset,
                size: if whole { 0 } else { offset + dims[2] + more },
                mode: [IndexMode::Wrap, IndexMode::Zero, IndexMode::Error][mode],
                wide,
                dtype: DType::ALL[dtype],
            };
            check(if threads { &Threads(2) } else { &Serial }, case, wild);
        }
    }
}
