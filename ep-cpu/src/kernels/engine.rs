//! The two launch loops that all elementwise kernels share.
//!
//! A kernel is one function over contiguous elements, [`UnaryBlock`] or [`BinaryBlock`]. The engine cuts a
//! launch into such blocks: it splits over threads, expands a repeating operand into a small buffer that
//! stays in the first-level cache, and copies an operand there that is also the destination, so that
//! blocks never alias.

use crate::isa::Isa;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use primitives::broadcast::{Odometer, Plan};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

/// Computes `n` elements: `(isa, attributes, src, dst, n)`. The two ranges must not overlap.
pub(crate) type UnaryBlock = unsafe fn(Isa, [f64; 2], *const u8, *mut u8, usize);

/// Computes `n` elements: `(isa, attributes, src0, src1, dst, n)`. `dst` must overlap neither source.
pub(crate) type BinaryBlock = unsafe fn(Isa, [f64; 2], *const u8, *const u8, *mut u8, usize);

/// How much work an element is; decides how finely a launch is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// A few instructions: bound by memory.
    Cheap,
    /// A vectorised polynomial.
    Elementary,
    /// A scalar function call.
    Special,
}

impl Cost {
    /// The fewest bytes, read and written, worth giving to a thread.
    const fn grain_bytes(self) -> usize {
        match self {
            Cost::Cheap => 128 << 10,
            Cost::Elementary => 32 << 10,
            Cost::Special => 8 << 10,
        }
    }
}

/// Bytes of a staging buffer: with two of them and the destination well within a first-level cache.
const STAGE_BYTES: usize = 4096;
/// Rows shorter than this are gathered, several to a block, instead of being computed one by one.
const SHORT_ROW: usize = 128;

#[repr(C, align(64))]
struct Stage([MaybeUninit<u8>; STAGE_BYTES]);

impl Stage {
    const fn new() -> Stage {
        Stage([MaybeUninit::uninit(); STAGE_BYTES])
    }

    fn start(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Addresses that tasks on several threads compute their own parts from.
#[derive(Clone, Copy)]
struct Shared<T>(T);

// SAFETY: the addresses are only offset here; each task reads any part of the sources, which no task
// writes except through its own part of the destination, and the tasks' parts are disjoint.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    // A method, so that closures capture the whole `Shared` and not the address inside.
    fn get(&self) -> T {
        self.0
    }
}

/// Runs `task` over `0..count`, on this thread alone when there is too little work to share.
#[inline]
fn split(
    par: &dyn Parallel,
    count: usize,
    grain: usize,
    task: &(dyn Fn(Range<usize>) -> Result<()> + Sync),
) -> Result<()> {
    if count <= grain { task(0..count) } else { par.parallel_for(count, grain, 0, task) }
}

/// What the engine needs to know of a unary kernel.
#[derive(Clone, Copy)]
pub(crate) struct Unary {
    pub(crate) block: UnaryBlock,
    pub(crate) src_size: usize,
    pub(crate) dst_size: usize,
    pub(crate) cost: Cost,
}

impl Unary {
    /// Computes `count` elements.
    ///
    /// # Errors
    /// `InvalidArgument` when source and destination are one address but differ in element size; the
    /// first error of `par`.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `count` elements, both aligned to their element. They are
    /// the same address or do not overlap.
    pub(crate) unsafe fn launch(
        self,
        isa: Isa,
        par: &dyn Parallel,
        attr: [f64; 2],
        count: usize,
        src: *const u8,
        dst: *mut u8,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let in_place = ptr::eq(src, dst);
        if in_place && self.src_size != self.dst_size {
            return Err(in_place_error("the source and destination elements differ in size"));
        }
        let grain = self.cost.grain_bytes() / (self.src_size + self.dst_size);
        let shared = Shared((src, dst));
        split(par, count, grain, &|range| {
            let (src, dst) = shared.get();
            // SAFETY: the range is within `0..count`, for which the caller vouches.
            unsafe {
                let src = src.add(range.start * self.src_size);
                let dst = dst.add(range.start * self.dst_size);
                if in_place {
                    self.run_in_place(isa, attr, dst, range.len());
                } else {
                    (self.block)(isa, attr, src, dst, range.len());
                }
            }
            Ok(())
        })
    }

    /// # Safety
    /// `data` is readable and writable for `count` elements.
    unsafe fn run_in_place(self, isa: Isa, attr: [f64; 2], data: *mut u8, count: usize) {
        let mut stage = Stage::new();
        let step = STAGE_BYTES / self.src_size;
        for start in (0..count).step_by(step) {
            let n = step.min(count - start);
            // SAFETY: `start + n` is at most `count`, and the stage holds `step` elements.
            unsafe {
                let at = data.add(start * self.src_size);
                ptr::copy_nonoverlapping(at, stage.start(), n * self.src_size);
                (self.block)(isa, attr, stage.start(), at, n);
            }
        }
    }
}

#[cold]
fn in_place_error(why: &str) -> Error {
    Error::invalid(format!(
        "the destination is also a source, but {why}; compute into a separate buffer instead"
    ))
}

/// What the engine needs to know of a binary kernel.
#[derive(Clone, Copy)]
pub(crate) struct Binary {
    pub(crate) block: BinaryBlock,
    pub(crate) src_size: usize,
    pub(crate) dst_size: usize,
    pub(crate) cost: Cost,
}

impl Binary {
    /// Computes the broadcast of two sources.
    ///
    /// # Errors
    /// `InvalidArgument` for shapes that do not broadcast, and for a destination that is also a source of
    /// another shape or element size; the first error of `par`.
    ///
    /// # Safety
    /// Sources and destination are valid for the elements of their shapes (the broadcast one for `dst`)
    /// and aligned to their element. The destination is the same address as a source, or does not
    /// overlap it.
    pub(crate) unsafe fn launch(
        self,
        isa: Isa,
        par: &dyn Parallel,
        attr: [f64; 2],
        shapes: [&[i64]; 2],
        src: [*const u8; 2],
        dst: *mut u8,
    ) -> Result<()> {
        let plan = Plan::new(shapes)?;
        if plan.count() == 0 {
            return Ok(());
        }
        let in_place = src.map(|s| ptr::eq(s, dst));
        if (0..2).any(|n| in_place[n] && !plan.is_dense(n)) {
            return Err(in_place_error("that source is broadcast"));
        }
        if in_place != [false; 2] && self.src_size != self.dst_size {
            return Err(in_place_error("the source and destination elements differ in size"));
        }
        let launch = Launch { kernel: self, isa, attr, plan: &plan, in_place };
        let grain = self.cost.grain_bytes() / (2 * self.src_size + self.dst_size);
        let shared = Shared((src, dst));
        split(par, plan.count(), grain, &|range| {
            let (src, dst) = shared.get();
            // SAFETY: the range is within the plan's count, and the caller vouches for the addresses.
            unsafe { launch.run(src, dst, range) };
            Ok(())
        })
    }
}

struct Launch<'a> {
    kernel: Binary,
    isa: Isa,
    attr: [f64; 2],
    plan: &'a Plan<2>,
    in_place: [bool; 2],
}

impl Launch<'_> {
    /// Computes the elements `range` of the destination.
    ///
    /// # Safety
    /// As [`Binary::launch`]; `range` is not empty and within the plan's count.
    unsafe fn run(&self, src: [*const u8; 2], dst: *mut u8, range: Range<usize>) {
        let dense = [0, 1].map(|n| self.plan.is_dense(n) && !self.in_place[n]);
        // SAFETY: the caller's contract covers both; dense sources are read at the destination's offsets.
        unsafe {
            if dense == [true; 2] {
                let [a, b] = src.map(|s| s.add(range.start * self.kernel.src_size));
                let dst = dst.add(range.start * self.kernel.dst_size);
                (self.kernel.block)(self.isa, self.attr, a, b, dst, range.len());
            } else if self.plan.inner() < SHORT_ROW && self.plan.dims().len() > 1 {
                self.run_gathered(src, dst, range);
            } else {
                self.run_rows(src, dst, range);
            }
        }
    }

    /// Row by row: each operand's part of a row is contiguous, or one element repeated.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn run_rows(&self, src: [*const u8; 2], dst: *mut u8, range: Range<usize>) {
        let Binary { block, src_size, dst_size, .. } = self.kernel;
        let (plan, inner) = (self.plan, self.plan.inner());
        let last = plan.dims().len() - 1;
        let repeats = [0, 1].map(|n| plan.strides(n)[last] == 0);
        let staged = [0, 1].map(|n| repeats[n] || self.in_place[n]);
        let step = if staged == [false; 2] { usize::MAX } else { STAGE_BYTES / src_size };

        let mut stages = [Stage::new(), Stage::new()];
        // Offset of the element that the stage is full of, and of how many.
        let mut filled = [(usize::MAX, 0); 2];
        let mut odometer = Odometer::at(plan, range.start / inner);
        let mut position = range.start;
        while position < range.end {
            let row_start = position - position % inner;
            let row_end = (row_start + inner).min(range.end);
            let offsets = odometer.offsets();
            while position < row_end {
                let n = step.min(row_end - position);
                let mut operands = src;
                for i in 0..2 {
                    let offset = if repeats[i] { offsets[i] } else { offsets[i] + position - row_start };
                    // SAFETY: the offset is within the operand (plan and odometer), and so are the `n`
                    // elements from it unless it repeats; `n` elements fit the stage.
                    unsafe {
                        let at = src[i].add(offset * src_size);
                        operands[i] = at;
                        if staged[i] {
                            let stage = stages[i].start();
                            operands[i] = stage;
                            if !repeats[i] {
                                ptr::copy_nonoverlapping(at, stage, n * src_size);
                            } else if filled[i].0 != offset || filled[i].1 < n {
                                expand(src_size, at, 0, stage, n);
                                filled[i] = (offset, n);
                            }
                        }
                    }
                }
                // SAFETY: operands hold `n` elements each, apart from the destination, whose elements
                // `position..position + n` are within the caller's range.
                unsafe {
                    let dst = dst.add(position * dst_size);
                    block(self.isa, self.attr, operands[0], operands[1], dst, n);
                }
                position += n;
            }
            odometer.advance();
        }
    }

    /// Several short rows at a time: operands that are not dense are expanded into a stage.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn run_gathered(&self, src: [*const u8; 2], dst: *mut u8, range: Range<usize>) {
        let Binary { block, src_size, dst_size, .. } = self.kernel;
        let (plan, inner) = (self.plan, self.plan.inner());
        let last = plan.dims().len() - 1;
        let direct = [0, 1].map(|n| plan.is_dense(n) && !self.in_place[n]);
        let capacity = STAGE_BYTES / src_size;
        // An operand that repeats over the outermost dimension is periodic. Where a period fits, blocks of
        // whole periods see the same elements of it, and one expansion serves all.
        let repeated = (0..2).find(|&i| plan.period(i) <= capacity && plan.period(i) < plan.count());
        let step = repeated.map_or(capacity, |i| capacity - capacity % plan.period(i));

        let mut stages = [Stage::new(), Stage::new()];
        let mut stale = direct.map(|d| !d);
        let mut odometer = Odometer::at(plan, range.start / inner);
        let mut col = range.start % inner;
        for position in range.clone().step_by(step) {
            let n = step.min(range.end - position);
            let mut done = if stale == [false; 2] { n } else { 0 };
            while done < n {
                let run = (inner - col).min(n - done);
                let offsets = odometer.offsets();
                for i in (0..2).filter(|&i| stale[i]) {
                    let stride = plan.strides(i)[last];
                    // SAFETY: the offsets lie within the operand, and `done + run <= n` within the stage.
                    unsafe {
                        let from = src[i].add((offsets[i] + col * stride) * src_size);
                        expand(src_size, from, stride, stages[i].start().add(done * src_size), run);
                    }
                }
                done += run;
                col += run;
                if col == inner {
                    col = 0;
                    odometer.advance();
                }
            }
            if let Some(i) = repeated {
                stale[i] = false;
            }
            let mut operands = src;
            for i in 0..2 {
                operands[i] = if direct[i] {
                    // SAFETY: a dense operand has the destination's elements at the same offsets.
                    unsafe { src[i].add(position * src_size) }
                } else {
                    stages[i].start()
                };
            }
            // SAFETY: as in `run_rows`.
            unsafe {
                let dst = dst.add(position * dst_size);
                block(self.isa, self.attr, operands[0], operands[1], dst, n);
            }
        }
    }
}

/// Writes `n` elements: those at `from` (stride 1), or the one there `n` times (stride 0).
///
/// # Safety
/// `from` is readable for `n` (or 1) elements of `size` bytes and `to` writable for `n`; no overlap.
#[inline]
unsafe fn expand(size: usize, from: *const u8, stride: usize, to: *mut u8, n: usize) {
    // SAFETY: the caller's contract, passed on.
    unsafe {
        match size {
            1 => expand_as::<[u8; 1]>(from, stride, to, n),
            2 => expand_as::<[u8; 2]>(from, stride, to, n),
            4 => expand_as::<[u8; 4]>(from, stride, to, n),
            8 => expand_as::<[u8; 8]>(from, stride, to, n),
            16 => expand_as::<[u8; 16]>(from, stride, to, n),
            _ => unreachable!("no dtype has elements of {size} bytes"),
        }
    }
}

/// # Safety
/// As [`expand`], with elements of type `T`, which has alignment 1.
#[inline(always)]
unsafe fn expand_as<T: Copy>(from: *const u8, stride: usize, to: *mut u8, n: usize) {
    let (from, to) = (from.cast::<T>(), to.cast::<T>());
    // SAFETY: the caller's contract; `i * stride` is at most `i`.
    unsafe {
        if stride == 0 {
            let value = *from;
            for i in 0..n {
                *to.add(i) = value;
            }
        } else {
            for i in 0..n {
                *to.add(i) = *from.add(i);
            }
        }
    }
}
