//! One-hot: a row for each index, on at the index's column and off elsewhere.

use crate::isa::{Body, Isa};
use crate::kernels::gather::row_bytes;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::sink::{self, LINE, PIECE, Pattern};
use crate::kernels::stream::{self, own};
use crate::kernels::window::{Bad, NONE, Window};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use std::mem::MaybeUninit;
use std::ops::Range;

pub use crate::kernels::window::{IndexMode, IndexType, Indices};

/// Arguments of a [`OneHotFn`].
#[derive(Clone, Copy, Debug)]
pub struct OneHotArgs {
    /// How many indices, and rows.
    pub num_indices: usize,
    /// Columns: the classes `offset..offset + depth`.
    pub depth: usize,
    /// The class of the first column.
    pub offset: usize,
    /// Classes in all; 0: those up to the last column's.
    pub size: usize,
    /// What becomes of indices outside the classes.
    pub mode: IndexMode,
    /// The indices.
    pub indices: Indices,
    /// The bytes of the element for the index's class, first in the array; the rest is ignored.
    pub on: [u8; 16],
    /// The same for all others.
    pub off: [u8; 16],
    /// The dense `[num_indices, depth]` destination; any alignment.
    pub dst: *mut u8,
}

/// Bytes that are written as off at a time, before elements of them are switched on: a part of first-level cache.
const BLOCK: usize = if cfg!(test) { 8 * LINE } else { 16 << 10 };

/// Bytes of rows from which few elements of a block are on.
const LONG_ROW: usize = if cfg!(test) { 4 * LINE } else { 16 * LINE };

/// Writes the rows. An index of a class that has no column makes a row that is off. Where the destination is
/// empty the indices are checked all the same.
///
/// # Errors
/// `InvalidArgument` for columns that are not among the classes, sizes that no address space holds, and an index
/// that the mode does not allow: the first one, by position and value; the destination then holds anything.
/// Those of `par`.
///
/// # Safety
/// `indices` is readable and `dst` writable for all elements, with no other access until this returns; they do
/// not overlap.
pub type OneHotFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &OneHotArgs) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<OneHotFn> {
    match dtype.size()? {
        1 => Some(one_hot::<1>),
        2 => Some(one_hot::<2>),
        4 => Some(one_hot::<4>),
        8 => Some(one_hot::<8>),
        16 => Some(one_hot::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn one_hot<const SIZE: usize>(isa: Isa, par: &dyn Parallel, args: &OneHotArgs) -> Result<()> {
    let window = Window::new(args.offset, args.depth, args.size, args.mode)?;
    let row = row_bytes(args.depth, SIZE)?;
    let bytes = row.checked_mul(args.num_indices).filter(|&n| n <= isize::MAX as usize).ok_or_else(|| {
        Error::invalid(format!(
            "one_hot of {} rows of {row} bytes: no address space holds that",
            args.num_indices
        ))
    })?;
    if bytes == 0 {
        // SAFETY: the caller's promise.
        return unsafe { window.check_all(args.indices, args.num_indices) };
    }
    let (on, off) = (Pattern::new(&args.on, SIZE), Pattern::new(&args.off, SIZE));
    let how = match cfg!(target_arch = "x86_64") && sink::streams(bytes, 0) {
        false => Store::Cached,
        // A stage has no room for the beginning of an element that ends in the next block; few destinations have such elements.
        true if stream::asks_far(bytes) || !args.dst.addr().is_multiple_of(SIZE) => Store::Own,
        true => Store::Past,
    };
    let bad = Bad::new();
    let dst = Shared::new(args.dst);
    let indices = args.indices;
    for_ranges(par, bytes, 1, PIECE, |bytes| {
        let part = HotRows { window, row, indices, on: &on, off: &off, bytes, bad: &bad };
        // SAFETY: the range is within the destination and no other task has it; the caller vouches for the indices.
        unsafe { part.write::<SIZE>(isa, how, dst.get()) };
        Ok(())
    })?;
    // SAFETY: positions are those of the indices.
    unsafe { window.check(&bad, indices) }
}

/// How the destination is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Cached,
    /// Ordinary stores to lines that are asked for before.
    Own,
    /// Past the cache, from a stage. Only for elements that are aligned to their size.
    Past,
}

/// A range of the destination's bytes.
struct HotRows<'a> {
    window: Window,
    /// Bytes of a row.
    row: usize,
    indices: Indices,
    on: &'a Pattern,
    off: &'a Pattern,
    bytes: Range<usize>,
    bad: &'a Bad,
}

impl HotRows<'_> {
    /// Writes the range of the destination at `dst`.
    ///
    /// # Safety
    /// It is writable, begins and ends with elements, which have `SIZE` bytes, and no other task has it; the indices of its rows are
    /// readable. With [`Store::Past`] `dst` is a multiple of `SIZE`.
    unsafe fn write<const SIZE: usize>(self, isa: Isa, how: Store, dst: *mut u8) {
        // SAFETY: the range begins there.
        let to = unsafe { dst.add(self.bytes.start) };
        match how {
            Store::Past => isa.dispatch(Blocks::<SIZE, true> { isa, asks: false, part: self, to }),
            Store::Cached | Store::Own => {
                isa.dispatch(Blocks::<SIZE, false> { isa, asks: how == Store::Own, part: self, to });
            }
        }
    }
}

/// What a block is put together in on its way past the cache.
#[repr(C, align(64))]
struct Stage([u8; BLOCK]);

/// A block is written as off, and then elements of it are switched on, which takes no guess of how many lines there are to
/// the next one: in place, or in a stage on its way `PAST` the cache.
struct Blocks<'a, const SIZE: usize, const PAST: bool> {
    isa: Isa,
    /// Whether lines are asked for before; never in a stage.
    asks: bool,
    part: HotRows<'a>,
    /// Made only under the promises of [`HotRows::write`], for the range from here on.
    to: *mut u8,
}

impl<const SIZE: usize, const PAST: bool> Body for Blocks<'_, SIZE, PAST> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Blocks { isa, asks, ref part, to } = self;
        let HotRows { row, on, off, ref bytes, .. } = *part;
        let mut stage = MaybeUninit::<Stage>::uninit();
        debug_assert!(!PAST || to.addr().is_multiple_of(SIZE));
        let skip = to.addr() % LINE;
        // The pattern starts with the range, `skip` bytes into its first line.
        let line = off.line(skip.wrapping_neg());
        // Stores to a stage wait for those past the cache: few elements are switched off again instead.
        let keeps = PAST && row >= LONG_ROW;
        let mut start = 0;
        while start < bytes.len() {
            // Blocks are counted from the first line on.
            let first = (start + skip) / BLOCK * BLOCK;
            let end = bytes.len().min(first + BLOCK - skip);
            // Where byte 0 of the range would be.
            let base = match PAST {
                true => stage.as_mut_ptr().cast::<u8>().wrapping_add(skip).wrapping_sub(first),
                false => to,
            };
            // SAFETY: blocks are within the range, and a stage has room for one. They begin with the range or at a line, and
            // end at lines or with it, in the stage too; a pattern's line is readable. What a stage keeps is all off, and elements there
            // are aligned, so that none lies in two blocks.
            unsafe {
                if keeps && start == 0 {
                    write_off::<false>(base.wrapping_sub(skip), off.line(0), 0..BLOCK);
                } else if asks {
                    write_off::<true>(base, line, start..end);
                } else if !keeps {
                    write_off::<false>(base, line, start..end);
                }
                self.switch(base, on, start..end);
                if PAST {
                    stream::copy_staged(isa, to.add(start), base.wrapping_add(start), end - start);
                }
                if keeps {
                    self.switch(base, off, start..end);
                }
            }
            start = end;
        }
        if PAST {
            stream::fence();
        }
    }
}

impl<const SIZE: usize, const PAST: bool> Blocks<'_, SIZE, PAST> {
    /// Writes `value` to the elements of the indices' classes that end in `block` of the range, which begins at `base`.
    ///
    /// # Safety
    /// Elements that lie in the block, and those that end there, are writable.
    #[inline(always)]
    unsafe fn switch(&self, base: *mut u8, value: &Pattern, block: Range<usize>) {
        let HotRows { window, row, indices, ref bytes, bad, .. } = self.part;
        let Range { start, end } = block;
        for i in (bytes.start + start) / row..(bytes.start + end - 1) / row + 1 {
            // SAFETY: row `i` is one of the destination's, which has one for each index.
            let class = window.row(unsafe { indices.get(i) }, i, bad);
            let at = (i * row).wrapping_add(class.wrapping_mul(SIZE)).wrapping_sub(bytes.start);
            let behind = at.wrapping_add(SIZE);
            if class != NONE && start < behind && behind <= end {
                // SAFETY: ranges begin and end with elements, so this one is within, whose last byte is.
                unsafe { base.wrapping_add(at).copy_from_nonoverlapping(value.line(0), SIZE) };
            }
        }
    }
}

/// Writes the bytes `part` of `to` as `line` has them, which begins at a line of the cache.
///
/// # Safety
/// They are writable, `line` is readable for a line, and `part` begins with `to` or at a line.
#[inline(always)]
unsafe fn write_off<const OWN: bool>(to: *mut u8, line: *const u8, part: Range<usize>) {
    let Range { start: mut at, end } = part;
    let to = |at| to.wrapping_add(at);
    let skip = to(at).addr() % LINE;
    // SAFETY: the caller's promise of the line; each piece is within the part and within a line.
    unsafe {
        let whole = line.cast::<[u8; LINE]>().read();
        if skip > 0 {
            let head = (LINE - skip).min(end - at);
            to(at).copy_from_nonoverlapping(line.add(skip), head);
            at += head;
        }
        while at + LINE <= end {
            if OWN {
                own(to(at));
            }
            to(at).cast::<[u8; LINE]>().write(whole);
            at += LINE;
        }
        to(at).copy_from_nonoverlapping(line, end - at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::Buffer;
    use crate::kernels::sink::tests::everywhere;
    use crate::kernels::testing::{Rng, Threads};
    use crate::kernels::window::tests as window;
    use ep_core::Code;
    use ep_core::parallel::Serial;
    use primitives::reference::{Data, Launch, Number, View};
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    struct Case {
        num_indices: usize,
        depth: usize,
        offset: usize,
        size: usize,
        mode: IndexMode,
        wide: bool,
        dtype: DType,
    }

    fn check(par: &dyn Parallel, case: Case, wild: bool) {
        let mut rng = Rng::new();
        let Case { num_indices, depth, offset, size, mode, wide, dtype } = case;
        let axis = if size == 0 { offset + depth } else { size };
        let list = window::indices(&mut rng, num_indices, axis, offset..offset + depth, mode, wild);
        let (stored, index_dtype) = window::store(&list, wide);
        let [on, off] = [3, 1].map(|x| Data::new(dtype, [Number::Int(x)]).bytes);
        let want = Launch::new("one_hot")
            .selector("mode", window::name(mode))
            .dtype("indices", index_dtype)
            .dtype("data", dtype)
            .size("num_indices", num_indices as i64)
            .size("depth", depth as i64)
            .size("offset", offset as i64)
            .size("size", size as i64)
            .scalar("on", 3i64)
            .scalar("off", 1i64)
            .read("indices", View::new(index_dtype, &stored))
            .run()
            .map(|outputs| outputs.get("dst").unwrap().bytes.clone());
        let element = dtype.size().unwrap();
        let padded = |bytes: Vec<u8>| std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0xee));
        let (on, off) = (padded(on), padded(off));
        let mut stored = Buffer::of(&stored, if wide { 8 } else { 4 });
        let indices = Indices { at: stored.ptr(), stored: window::stored(wide) };
        everywhere(|isa| {
            // At an element, and one byte on: then elements lie across lines.
            for aligned_to in [element, 1] {
                let mut dst = Buffer::poisoned(num_indices * depth * element, aligned_to);
                let args =
                    OneHotArgs { num_indices, depth, offset, size, mode, indices, on, off, dst: dst.ptr() };
                // SAFETY: both sides have their elements.
                let got = unsafe { lookup(dtype).unwrap()(isa, par, &args) };
                let bytes = dst.into_bytes();
                match &want {
                    Ok(want) => assert!(got.is_ok() && bytes == *want, "{case:?} {isa} {got:?}"),
                    Err(e) => window::same_error(&got, e),
                }
            }
        });
        let Ok(want) = &want else { return };
        // Whatever this CPU would choose, at once and in ranges that are neither rows nor lines.
        let cut = |part: usize| want.len() / element * part / 3 * element;
        let parts = [[0, 3, 3, 3], [0, 1, 2, 3]].map(|cuts| cuts.map(cut));
        for (isa, how) in Isa::available().into_iter().flat_map(|i| [Store::Past, Store::Own].map(|h| (i, h)))
        {
            let aligned_to = [element, 1].into_iter().take(if how == Store::Past { 1 } else { 2 });
            for (aligned_to, parts) in aligned_to.flat_map(|a| parts.each_ref().map(|p| (a, p))) {
                let mut dst = Buffer::poisoned(want.len(), aligned_to);
                let (on, off) = (Pattern::new(&on, element), Pattern::new(&off, element));
                let window = Window::new(offset, depth, size, mode).unwrap();
                let (row, bad) = (depth * element, Bad::new());
                for bytes in
                    parts.array_windows().map(|&[from, to]| from..to).filter(|bytes| !bytes.is_empty())
                {
                    let part = HotRows { window, row, indices, on: &on, off: &off, bytes, bad: &bad };
                    // SAFETY: the destination has all elements, of so many bytes, and there is an index for each row.
                    unsafe {
                        match element {
                            1 => part.write::<1>(isa, how, dst.ptr()),
                            2 => part.write::<2>(isa, how, dst.ptr()),
                            4 => part.write::<4>(isa, how, dst.ptr()),
                            8 => part.write::<8>(isa, how, dst.ptr()),
                            _ => part.write::<16>(isa, how, dst.ptr()),
                        }
                    }
                }
                assert!(dst.into_bytes() == *want, "{case:?} {isa} {how:?} {parts:?}");
            }
        }
    }

    #[test]
    fn every_dtype_and_depth() {
        assert_eq!(rows().count(), 15);
        for dtype in rows() {
            for depth in [1, 2, 5, 16, 64, 1000] {
                let case = Case {
                    num_indices: 17,
                    depth,
                    offset: 0,
                    size: 0,
                    mode: IndexMode::Error,
                    wide: true,
                    dtype,
                };
                check(&Serial, case, false);
                check(&Serial, Case { mode: IndexMode::Zero, offset: 3, wide: false, ..case }, true);
            }
        }
    }

    #[test]
    fn large_ones_on_several_threads() {
        for (num_indices, depth) in [(30_000, 10), (300, 1001), (3, 90_000)] {
            for dtype in [DType::I8, DType::F32, DType::COMPLEX128] {
                let mode = IndexMode::Wrap;
                let case = Case { num_indices, depth, offset: 7, size: depth + 100, mode, wide: true, dtype };
                check(&Threads(3), case, false);
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let list = [0i64];
        let (on, off, dst) = ([0; 16], [0; 16], std::ptr::null_mut());
        let indices = Indices { at: list.as_ptr().cast(), stored: IndexType::I64 };
        for (num_indices, depth, offset, size) in
            [(1 << 40, 1 << 40, 0, 0), (1, usize::MAX, 0, 0), (1, 5, 5, 9), (1, 1 << 62, 0, 0)]
        {
            let mode = IndexMode::Error;
            let args = OneHotArgs { num_indices, depth, offset, size, mode, indices, on, off, dst };
            // SAFETY: refused before anything is written.
            let e = unsafe { lookup(DType::F64).unwrap()(Isa::BASELINE, &Serial, &args) }.unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument, "{num_indices} {depth} {offset} {size}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_shape_and_window(
            num_indices in 0usize..40,
            depth in 0usize..90,
            offset in 0usize..9,
            more in 0usize..9,
            flags in any::<[bool; 3]>(),
            mode in 0usize..3,
            dtype in 0usize..15,
        ) {
            let [whole, wide, wild] = flags;
            let case = Case {
                num_indices,
                depth,
                offset,
                size: if whole { 0 } else { offset + depth + more },
                mode: [IndexMode::Wrap, IndexMode::Zero, IndexMode::Error][mode],
                wide,
                dtype: DType::ALL[dtype],
            };
            check(&Serial, case, wild);
        }
    }
}
