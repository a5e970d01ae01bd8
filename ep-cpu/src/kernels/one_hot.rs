//! One-hot: a row for each index, on at the index's column and off elsewhere.

#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::isa::{Body, Isa};
use crate::kernels::gather::row_bytes;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::sink::{self, LINE, PIECE, Pattern, Producer, Sink};
use crate::kernels::stream::{self, own};
use crate::kernels::window::{Bad, NONE, Window};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
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
    let streaming = sink::streams(bytes, 0);
    let how = match streaming {
        false => Store::Cached,
        true if stream::suits_intel() => Store::Own,
        true => Store::Stream,
    };
    let bad = Bad::new();
    let dst = Shared::new(args.dst);
    let indices = args.indices;
    for_ranges(par, bytes, 1, PIECE, |bytes| {
        let part = HotRows { window, row, indices, on: &on, size: SIZE, off: &off, bytes, bad: &bad };
        // SAFETY: the range is within the destination and no other task has it; the caller vouches for the indices.
        unsafe { part.write::<SIZE>(isa, how, dst.get()) };
        Ok(())
    })?;
    // SAFETY: positions are those of the indices.
    unsafe { window.check(&bad, indices) }
}

/// How the destination is written.
#[derive(Clone, Copy, Debug)]
enum Store {
    Cached,
    /// Past the cache.
    Stream,
    /// Ordinary stores to lines that are asked for before.
    Own,
}

/// A range of the destination's bytes.
struct HotRows<'a> {
    window: Window,
    /// Bytes of a row.
    row: usize,
    indices: Indices,
    on: &'a Pattern,
    /// Bytes of an element.
    size: usize,
    off: &'a Pattern,
    bytes: Range<usize>,
    bad: &'a Bad,
}

impl HotRows<'_> {
    /// Writes the range of the destination at `dst`.
    ///
    /// # Safety
    /// No other task has it, the indices of its rows are readable, and elements have `SIZE` bytes.
    unsafe fn write<const SIZE: usize>(self, isa: Isa, how: Store, dst: *mut u8) {
        // SAFETY: the caller's promise; an `Isa` is the proof that the CPU has its level.
        unsafe {
            let to = dst.add(self.bytes.start);
            match how {
                Store::Cached => isa.dispatch(Blocks::<SIZE, false> { part: self, to }),
                Store::Own => isa.dispatch(Blocks::<SIZE, true> { part: self, to }),
                #[cfg(target_arch = "x86_64")]
                Store::Stream if isa.level() >= Level::Avx512 => lines::write(self, to),
                Store::Stream => sink::write(isa, true, to, self),
            }
        }
    }
}

/// By ordinary stores: a block is written as off, lines of it asked for ahead if `OWN`, and then elements are switched on,
/// which takes no guess of how many lines there are to the next one.
struct Blocks<'a, const SIZE: usize, const OWN: bool> {
    part: HotRows<'a>,
    /// Made only under the promises of [`HotRows::write`], for the range from here on.
    to: *mut u8,
}

impl<const SIZE: usize, const OWN: bool> Body for Blocks<'_, SIZE, OWN> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Blocks { part: HotRows { window, row, indices, on, off, bytes, bad, .. }, to } = self;
        let skip = to.addr() % LINE;
        // The pattern starts with the range, `skip` bytes into its first line.
        let line = off.line(skip.wrapping_neg());
        let mut start = 0;
        while start < bytes.len() {
            let end = bytes.len().min((start + skip) / BLOCK * BLOCK + BLOCK - skip);
            // SAFETY: blocks are within the range, begin with it or at a line, and end at lines or with it; a pattern's line is
            // readable.
            unsafe { write_off::<OWN>(to, line, start..end) };
            // An element is of the block that its last byte is in.
            for i in (bytes.start + start) / row..(bytes.start + end - 1) / row + 1 {
                // SAFETY: row `i` is one of the destination's, which has one for each index.
                let class = window.row(unsafe { indices.get(i) }, i, bad);
                let at = (i * row).wrapping_add(class.wrapping_mul(SIZE)).wrapping_sub(bytes.start);
                let behind = at.wrapping_add(SIZE);
                if class != NONE && start < behind && behind <= end {
                    // SAFETY: ranges begin and end with elements, so this one is within, whose last byte is.
                    unsafe { to.add(at).copy_from_nonoverlapping(on.line(0), SIZE) };
                }
            }
            start = end;
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
    let skip = to.wrapping_add(at).addr() % LINE;
    // SAFETY: the caller's promise of the line; each piece is within the part and within a line.
    unsafe {
        let whole = line.cast::<[u8; LINE]>().read();
        if skip > 0 {
            let head = (LINE - skip).min(end - at);
            to.add(at).copy_from_nonoverlapping(line.add(skip), head);
            at += head;
        }
        while at + LINE <= end {
            if OWN {
                own(to.add(at));
            }
            to.add(at).cast::<[u8; LINE]>().write(whole);
            at += LINE;
        }
        to.add(at).copy_from_nonoverlapping(line, end - at);
    }
}

impl Producer for HotRows<'_> {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        let HotRows { window, row, indices, on, size, off, bytes, bad } = self;
        let mut i = bytes.start / row;
        let mut col = bytes.start % row;
        let mut left = bytes.len();
        // Bytes that are off and due: those between two that are on are written at once.
        let mut due = 0;
        while left > 0 {
            // SAFETY: row `i` is one of the destination's, which has one for each index.
            let class = window.row(unsafe { indices.get(i) }, i, bad);
            let until = row.min(col + left);
            let hot = class.wrapping_mul(size);
            if class != NONE && (col..until).contains(&hot) {
                // SAFETY: what is due, and an element within the range, which starts and ends at elements.
                unsafe {
                    sink.fill(off, due + (hot - col));
                    sink.fill(on, size);
                }
                due = until - hot - size;
            } else {
                due += until - col;
            }
            left -= until - col;
            col = 0;
            i += 1;
        }
        // SAFETY: what is left of the range.
        unsafe { sink.fill(off, due) };
    }
}

/// Line by line past the cache with AVX-512: each line is off, with elements that are on blended in.
#[cfg(target_arch = "x86_64")]
mod lines {
    use super::HotRows;
    use crate::kernels::sink::LINE;
    use crate::kernels::stream::fence;
    use crate::kernels::window::NONE;
    use std::arch::x86_64::*;

    /// A line of the destination that is being put together.
    struct Line {
        at: *mut u8,
        on: __m512i,
        off: __m512i,
    }

    impl Line {
        /// Writes the bytes of the line in `part` as off or, in `hot`, on.
        ///
        /// # Safety
        /// Those bytes are writable, on a CPU with AVX-512.
        #[target_feature(enable = "avx512f,avx512bw")]
        #[inline]
        unsafe fn write(&mut self, hot: u64, part: u64) {
            let line = _mm512_mask_blend_epi8(hot, self.off, self.on);
            // SAFETY: the caller's promise; lines are at multiples of their size.
            unsafe {
                if part != u64::MAX {
                    _mm512_mask_storeu_epi8(self.at.cast(), part, line);
                } else {
                    _mm512_stream_si512(self.at.cast(), line);
                }
            }
            self.at = self.at.wrapping_add(LINE);
        }
    }

    /// Writes the range at `to` with streaming stores, which are complete on return.
    ///
    /// # Safety
    /// As for [`HotRows::write`], on a CPU with AVX-512.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn write(part: HotRows<'_>, to: *mut u8) {
        let HotRows { window, row, indices, on, size, off, bytes, bad } = part;
        let skip = to.addr() % LINE;
        // Patterns start with the range, `skip` bytes into the first line.
        let phase = skip.wrapping_neg();
        // SAFETY: a line of a pattern is readable.
        let (on, off) = unsafe {
            (_mm512_loadu_si512(on.line(phase).cast()), _mm512_loadu_si512(off.line(phase).cast()))
        };
        let mut line = Line { at: to.wrapping_sub(skip), on, off };
        // Bytes are counted from the first line on; `start` is where `line` is.
        let end = skip + bytes.len();
        let (mut start, mut hot, mut here) = (0, 0u64, u64::MAX << skip);
        let element = (1u64 << size) - 1;
        let first = bytes.start / row;
        for i in first..(bytes.end - 1) / row + 1 {
            // SAFETY: row `i` is one of the destination's, which has one for each index.
            let class = window.row(unsafe { indices.get(i) }, i, bad);
            let at = (i * row).wrapping_add(class.wrapping_mul(size)).wrapping_sub(bytes.start);
            if class == NONE || at >= bytes.len() {
                continue;
            }
            let at = at + skip;
            // SAFETY: all lines before one with an element of the range are of the range, from `skip` in the first.
            unsafe {
                while start + LINE <= at {
                    line.write(hot, here);
                    (start, hot, here) = (start + LINE, 0, u64::MAX);
                }
                hot |= element << (at - start);
                if at + size > start + LINE {
                    line.write(hot, here);
                    (start, hot, here) = (start + LINE, element >> (start + LINE - at), u64::MAX);
                }
            }
        }
        // SAFETY: what is left of the range, the last line up to its end.
        unsafe {
            while start + LINE <= end {
                line.write(hot, here);
                (start, hot, here) = (start + LINE, 0, u64::MAX);
            }
            if start < end {
                line.write(hot, here & !(u64::MAX << (end - start)));
            }
        }
        fence();
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
        if let (Ok(want), 4, 1..) = (&want, element, num_indices * depth) {
            // Whatever this CPU would choose.
            for (isa, how) in
                Isa::available().into_iter().flat_map(|i| [Store::Stream, Store::Own].map(|h| (i, h)))
            {
                for aligned_to in [element, 1] {
                    let mut dst = Buffer::poisoned(want.len(), aligned_to);
                    let (on, off) = (Pattern::new(&on, 4), Pattern::new(&off, 4));
                    let window = Window::new(offset, depth, size, mode).unwrap();
                    let (row, bytes, bad) = (depth * 4, 0..want.len(), Bad::new());
                    let part =
                        HotRows { window, row, indices, on: &on, size: 4, off: &off, bytes, bad: &bad };
                    // SAFETY: the destination has all elements, of four bytes, and there is an index for each row.
                    unsafe { part.write::<4>(isa, how, dst.ptr()) };
                    assert!(dst.into_bytes() == *want, "{case:?} {isa} {how:?}");
                }
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
