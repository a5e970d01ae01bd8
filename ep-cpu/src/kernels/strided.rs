//! Moving elements one by one between strided layouts, in two-dimensional pieces.

use super::lines::{LINE, flush};
use super::movement::{Axis, DST, Odometer, SRC};
use super::raw::{Shared, for_ranges, prefetch};
use super::stream::{self, STREAM_BYTES};
use super::transpose_plan::Pieces;
use crate::isa::{Body, Isa};
use ep_core::Result;
use ep_core::parallel::Parallel;
use primitives::permute::MAX_DIMS;
use primitives::tensor_iterator::TensorIterator;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of a block's sides, of which the source's lines stay in the first-level cache.
const BLOCK: usize = 128;

/// Bytes of the buffer in which elements are collected to whole lines.
const SCRATCH: usize = 8 << 10;

const PAGE: usize = 4096;

/// Bytes written from which elements are collected to go past the cache. (Less in tests, so that small tensors go every
/// way.)
pub(super) const COLLECT_BYTES: usize = if cfg!(test) { 16 << 10 } else { STREAM_BYTES };

#[repr(C, align(64))]
struct Scratch([MaybeUninit<u8>; SCRATCH + LINE]);

/// A piece of elements of the size of `T`: sizes and byte strides, inner axis first.
struct Piece<T> {
    src: *const u8,
    dst: *mut u8,
    strides: [[isize; 2]; 2],
    sizes: [usize; 2],
    element: PhantomData<T>,
}

impl<T: Copy> Body for Piece<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { src, dst, strides, sizes: [inner, outer], .. } = self;
        let (to_step, from_step) = (strides[0][DST], strides[0][SRC]);
        let size = size_of::<T>() as isize;
        for row in 0..outer as isize {
            let from = src.wrapping_offset(row * strides[1][SRC]);
            let to = dst.wrapping_offset(row * strides[1][DST]);
            // SAFETY: whoever made the piece promises all its elements.
            unsafe {
                if to_step != size {
                    for i in 0..inner as isize {
                        put(to.offset(i * to_step), get::<T>(from.offset(i * from_step)));
                    }
                } else if from_step == 0 {
                    let value = get::<T>(from);
                    for i in 0..inner {
                        put(to.cast::<T>().add(i).cast(), value);
                    }
                } else if from_step == size {
                    to.copy_from_nonoverlapping(from, inner * size_of::<T>());
                } else if from_step == 2 * size {
                    every::<T, 2>(from, to, inner);
                } else if from_step == 3 * size {
                    every::<T, 3>(from, to, inner);
                } else if from_step == 4 * size {
                    every::<T, 4>(from, to, inner);
                } else if from_step == -size {
                    every::<T, -1>(from, to, inner);
                } else {
                    for i in 0..inner as isize {
                        put(to.offset(i * size), get::<T>(from.offset(i * from_step)));
                    }
                }
            }
        }
    }
}

/// # Safety
/// An element is readable.
#[inline(always)]
unsafe fn get<T: Copy>(at: *const u8) -> T {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<T>().read_unaligned() }
}

/// # Safety
/// An element is writable.
#[inline(always)]
unsafe fn put<T: Copy>(at: *mut u8, value: T) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<T>().write_unaligned(value) };
}

/// Every `STEP`th element, in a loop of its own for each step, which the compiler turns into shuffles.
///
/// # Safety
/// `n` elements are readable, `STEP` apart, and writable one after the other.
#[inline(always)]
unsafe fn every<T: Copy, const STEP: isize>(from: *const u8, to: *mut u8, n: usize) {
    let (from, to) = (from.cast::<T>(), to.cast::<T>());
    for i in 0..n {
        // SAFETY: the caller's promise.
        unsafe { to.add(i).write_unaligned(from.offset(i as isize * STEP).read_unaligned()) };
    }
}

/// Moves a piece of elements of `size` bytes.
///
/// # Safety
/// All its elements are readable in `src` and writable in `dst`, and the two do not overlap.
pub(super) unsafe fn piece(
    isa: Isa,
    size: usize,
    src: *const u8,
    dst: *mut u8,
    strides: [[isize; 2]; 2],
    sizes: [usize; 2],
) {
    // Elements of one and two bytes gain by longer vectors.
    let isa = if size >= 4 { isa.for_memory() } else { isa };
    macro_rules! of {
        ($t:ty) => {
            isa.dispatch(Piece::<$t> { src, dst, strides, sizes, element: PhantomData })
        };
    }
    match size {
        1 => of!(u8),
        2 => of!(u16),
        4 => of!(u32),
        8 => of!(u64),
        _ => of!(u128),
    }
}

/// Moves every element of a walk. `src` and `dst` are the elements at index 0.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// As for [`movement::copy`](super::movement::copy).
pub(super) unsafe fn copy(
    isa: Isa,
    par: &dyn Parallel,
    walk: &TensorIterator<2>,
    size: usize,
    src: *const u8,
    dst: *mut u8,
) -> Result<()> {
    let (from, to) = (Shared::new(src.cast_mut()), Shared::new(dst));
    if let Some(near) = near(walk) {
        return Blocks::new(walk, near, BLOCK / size, BLOCK / size).for_each(par, 2 * size, |block| {
            let src = from.get().cast_const().wrapping_offset(block.at[SRC]);
            let dst = to.get().wrapping_offset(block.at[DST]);
            // SAFETY: the caller's promise; this task writes elements of its own.
            unsafe { piece(isa, size, src, dst, block.strides, block.sizes) };
            Ok(())
        });
    }
    let collects = walk.is_dense(DST, size) && stream::reaches(walk.count() * size, COLLECT_BYTES);
    for_ranges(par, walk.count(), 2 * size, LINE, |range| {
        let (src, dst) = (from.get().cast_const(), to.get());
        if collects {
            let start = dst.wrapping_offset(walk.starts()[DST]).wrapping_add(range.start * size);
            // SAFETY: the caller's promise; the destination's elements lie one after the other.
            unsafe {
                collect(isa, start, range, size, |part, to| {
                    fetch(walk, part.end..part.end + part.len(), src);
                    gather(isa, walk, part, size, src, to);
                });
            }
            return Ok(());
        }
        walk.for_each(range, |at, strides, sizes| {
            let (src, dst) = (src.wrapping_offset(at[SRC]), dst.wrapping_offset(at[DST]));
            // SAFETY: the caller's promise; this task writes elements of its own.
            unsafe { piece(isa, size, src, dst, *strides, sizes) };
        });
        Ok(())
    })
}

/// Asks for the source of the elements `range`, if its rows are long and not much more than what is needed. All
/// pages of a row are asked for side by side, which keeps more of memory busy than one stream does, but where the CPU
/// fetches enough by itself.
fn fetch(walk: &TensorIterator<2>, range: Range<usize>, src: *const u8) {
    if !stream::suits_intel() {
        return;
    }
    walk.for_each(range, |at, strides, [inner, outer]| {
        let pages = inner.saturating_mul(strides[0][SRC].unsigned_abs()) / PAGE;
        if strides[0][SRC] <= 0 || pages < 2 || strides[0][SRC].unsigned_abs() > LINE {
            return;
        }
        for row in 0..outer as isize {
            let from = src.wrapping_offset(at[SRC] + row * strides[1][SRC]);
            for line in (0..PAGE).step_by(LINE) {
                for page in 0..pages {
                    prefetch(from.wrapping_add(page * PAGE + line));
                }
            }
        }
    });
}

/// Collects the elements `range` of a walk's source in `to`, one after the other. `src` is the element at index 0.
///
/// # Safety
/// The elements are readable, and `to` is writable for all of them; the two do not overlap.
pub(super) unsafe fn gather(
    isa: Isa,
    walk: &TensorIterator<2>,
    range: Range<usize>,
    size: usize,
    src: *const u8,
    to: *mut u8,
) {
    let mut done = 0;
    walk.for_each(range, |at, strides, sizes| {
        let row = (size * sizes[0]) as isize;
        let strides = [[size as isize, strides[0][SRC]], [row, strides[1][SRC]]];
        // SAFETY: the caller's promise; `done` elements have been written.
        unsafe { piece(isa, size, src.wrapping_offset(at[SRC]), to.add(done * size), strides, sizes) };
        done += sizes[0] * sizes[1];
    });
}

/// The reverse of [`gather`]: spreads elements that lie one after the other over a walk's destination. `dst` is
/// the element at index 0.
///
/// # Safety
/// `from` is readable for all elements, and they are writable; the two do not overlap.
pub(super) unsafe fn scatter(
    isa: Isa,
    walk: &TensorIterator<2>,
    range: Range<usize>,
    size: usize,
    from: *const u8,
    dst: *mut u8,
) {
    let mut done = 0;
    walk.for_each(range, |at, strides, sizes| {
        let row = (size * sizes[0]) as isize;
        let strides = [[strides[0][DST], size as isize], [strides[1][DST], row]];
        // SAFETY: the caller's promise; `done` elements have been read.
        unsafe { piece(isa, size, from.add(done * size), dst.wrapping_offset(at[DST]), strides, sizes) };
        done += sizes[0] * sizes[1];
    });
}

/// Has `produce` write the elements `range` part by part into a buffer, and writes them to `dst` past the cache.
///
/// # Safety
/// `produce` writes the elements that it is asked for to the address that it is given. `dst` is writable for all of
/// them.
pub(super) unsafe fn collect(
    isa: Isa,
    dst: *mut u8,
    range: Range<usize>,
    size: usize,
    mut produce: impl FnMut(Range<usize>, *mut u8),
) {
    // A line in front, for what is left from the part before.
    let mut scratch = Scratch([MaybeUninit::uninit(); SCRATCH + LINE]);
    let scratch = scratch.0.as_mut_ptr().cast::<u8>();
    let step = SCRATCH / size;
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start + step);
        // SAFETY: `step` elements fit behind the first line, and are whole lines.
        unsafe {
            produce(start..end, scratch.add(LINE));
            let to = dst.add((start - range.start) * size);
            flush(isa, scratch, to, (end - start) * size, start > range.start, end == range.end);
        }
        start = end;
    }
    stream::fence();
}

/// The axis along which the source's elements are closer together than along the innermost, if any: walking in the
/// order of the destination would then read each line of the source many times.
pub(super) fn near(walk: &TensorIterator<2>) -> Option<usize> {
    let strides = || walk.strides().iter().map(|s| s[SRC].unsigned_abs());
    let (near, stride) = strides().enumerate().filter(|(_, s)| *s > 0).min_by_key(|(_, s)| *s)?;
    (near > 0 && stride < LINE && stride < strides().next()?).then_some(near)
}

/// A walk in rectangles of its innermost axis and another one.
pub(super) struct Blocks<'a> {
    walk: &'a TensorIterator<2>,
    near: usize,
    others: [Axis; MAX_DIMS],
    rank: usize,
    down: Pieces,
    across: Pieces,
}

/// One of them: byte offsets of its first element from those at index 0, strides, and sizes.
pub(super) struct Block {
    pub(super) at: [isize; 2],
    pub(super) strides: [[isize; 2]; 2],
    pub(super) sizes: [usize; 2],
}

impl<'a> Blocks<'a> {
    /// Rectangles of fewer than twice `height` by `width`.
    pub(super) fn new(walk: &'a TensorIterator<2>, near: usize, height: usize, width: usize) -> Self {
        let (sizes, mut others, mut rank) = (walk.sizes(), [Axis::default(); MAX_DIMS], 0);
        for (i, strides) in walk.strides().iter().enumerate().filter(|(i, _)| ![0, near].contains(i)) {
            others[rank] = Axis { size: sizes[i], src: strides[SRC], dst: strides[DST] };
            rank += 1;
        }
        let (down, across) = (Pieces::new(sizes[0], height.max(1)), Pieces::new(sizes[near], width.max(1)));
        Self { walk, near, others, rank, down, across }
    }

    /// Calls `task` for each of them, in parallel where an element stands for `element_bytes` of traffic.
    ///
    /// # Errors
    /// Those of `task` and of `par`.
    pub(super) fn for_each(
        &self,
        par: &dyn Parallel,
        element_bytes: usize,
        task: impl Fn(Block) -> Result<()> + Sync,
    ) -> Result<()> {
        let others = &self.others[..self.rank];
        let batch: usize = others.iter().map(|a| a.size).product();
        let (per_batch, columns) = (self.down.count * self.across.count, self.across.count);
        let strides = [self.walk.strides()[0], self.walk.strides()[self.near]];
        let block_bytes = self.walk.count() / (batch * per_batch) * element_bytes;
        for_ranges(par, batch * per_batch, block_bytes, 1, |blocks| {
            blocks.into_iter().try_for_each(|block| {
                let base = Odometer::at(others, block / per_batch);
                let (row, column) = (block % per_batch / columns, block % columns);
                let (r, c) = (self.down.span(row, row + 1), self.across.span(column, column + 1));
                let start = |n: usize| r.start as isize * strides[0][n] + c.start as isize * strides[1][n];
                let mut at = self.walk.starts();
                at[DST] += base.dst + start(DST);
                at[SRC] += base.src + start(SRC);
                task(Block { at, strides, sizes: [r.len(), c.len()] })
            })
        })
    }
}
