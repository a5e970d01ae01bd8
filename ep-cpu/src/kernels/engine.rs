//! The launches that all elementwise kernels share.
//!
//! A kernel is one function over contiguous elements, [`UnaryBlock`] or [`BinaryBlock`]. The engine cuts a
//! launch into such blocks: it splits over threads, has [`Operands`] bring what repeats or is written in place
//! to where a block can read it, and sends what no cache holds past it ([`stream`]).

use super::elem::Storage;
use super::operands::{Buffers, Compute, Operands, Rows, STAGE_BYTES, Stage, splat};
use super::raw::{SPLIT_BYTES, Shared, for_elements};
use super::stream::{self, Ahead, Blocks};
use crate::isa::{Isa, Level};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use primitives::broadcast::{MAX_DIMS, Plan};
use std::ptr;

/// Computes elements: `(isa, attributes, src, dst, how many)`. The two ranges must not overlap.
pub(crate) type UnaryBlock = unsafe fn(Isa, [f64; 2], *const u8, *mut u8, Run);

/// Computes elements: `(isa, attributes, src0, src1, dst, how many)`. `dst` must overlap neither source.
pub(crate) type BinaryBlock = unsafe fn(Isa, [f64; 2], *const u8, *const u8, *mut u8, Run);

/// Computes rows in which a source is a single element: `(isa, attributes, the other source, that element, whether it is the
/// second source, dst, the rows)`, of which the steps of both sources are in that order. `dst` must overlap neither.
pub(crate) type RepeatBlock = unsafe fn(Isa, [f64; 2], *const u8, *const u8, bool, *mut u8, Rows<2>);

/// How many elements a block computes, and how it stores them.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) n: usize,
    /// If not 0, the destination is whole lines, at a line, to be stored past the cache, and so many bytes further on
    /// in each source is what to fetch into it. Never for kernels that do not [stream](Unary::streams).
    pub(crate) ahead: usize,
}

/// Whether loops of arithmetic over elements `S` and `D` are compiled a second time, with stores past the cache. Only for
/// the dtype that most of it is in: other loops store through a stage. (Formulas, which are one loop for all, and products of
/// complex64 store either way.)
pub(crate) const fn streams<S: Storage, D: Storage>() -> bool {
    matches!((S::DTYPE, D::DTYPE), (DType::F32, DType::F32))
}

/// The level for a loop of a few instructions over elements `S` and `D`, in which to store past the cache, or not if `ahead` is 0: a
/// lower one where such loops are the faster for it. (Many i32 are computed as u32.) Of other elements some are slower.
#[inline(always)]
pub(crate) fn level_of<S: Storage, D: Storage>(isa: Isa, cost: Cost, ahead: usize) -> Isa {
    let plain = matches!(
        (S::DTYPE, D::DTYPE),
        (DType::F32, DType::F32) | (DType::I32, DType::I32) | (DType::U32, DType::U32)
    );
    if plain && cost == Cost::Cheap && ahead == 0 { isa.for_memory() } else { isa }
}

/// Whether vectors of a level have stores past the cache.
fn stores_past_cache(isa: Isa) -> bool {
    isa.level() > Level::Baseline
}

impl Run {
    /// Elements that stay in the cache.
    #[inline(always)]
    pub(crate) fn cached(n: usize) -> Self {
        Self { n, ahead: 0 }
    }
}

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
    /// How many bytes of plain traffic take as long as one of this cost.
    const fn weight(self) -> usize {
        match self {
            Cost::Cheap => 1,
            Cost::Elementary => 4,
            Cost::Special => 16,
        }
    }
}

/// Ranges of a parallel launch begin at multiples of this, so that no two threads write one line.
const MULTIPLE: usize = 64;

#[cold]
fn in_place_error(why: &str) -> Error {
    Error::invalid(format!(
        "the destination is also a source, but {why}; compute into a separate buffer instead"
    ))
}

/// What the engine needs to know of a unary kernel.
#[derive(Clone, Copy)]
pub(crate) struct Unary {
    pub(crate) block: UnaryBlock,
    pub(crate) src_size: usize,
    pub(crate) dst_size: usize,
    pub(crate) cost: Cost,
    /// Whether the block itself can store past the cache.
    pub(crate) streams: bool,
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
    #[inline]
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
        let bytes = self.src_size + self.dst_size;
        if !in_place && is_small(count, self.cost, bytes) {
            // SAFETY: the caller's contract; the two differ, so they do not overlap.
            unsafe { (self.block)(isa, attr, src, dst, Run::cached(count)) };
            return Ok(());
        }
        if in_place && self.src_size != self.dst_size {
            return Err(in_place_error("the source and destination elements differ in size"));
        }
        let compute = UnaryCompute { isa, attr, kernel: self };
        if is_small(count, self.cost, bytes) {
            // SAFETY: the caller's contract, passed on.
            unsafe { compute_staged(&compute, self.src_size, count, [Held::InPlace(src)], dst) };
            return Ok(());
        }
        let operands = Operands::dense(self.src_size, [src], dst);
        // SAFETY: the caller's contract, passed on.
        unsafe { run(par, self.cost, count, compute, &operands, dst) }
    }
}

#[derive(Clone, Copy)]
struct UnaryCompute {
    isa: Isa,
    attr: [f64; 2],
    kernel: Unary,
}

impl Compute<1> for UnaryCompute {
    #[inline(always)]
    fn dst_size(&self) -> usize {
        self.kernel.dst_size
    }

    #[inline(always)]
    fn isa(&self) -> Isa {
        self.isa
    }

    #[inline(always)]
    fn streams(&self) -> bool {
        self.kernel.streams && stores_past_cache(self.isa)
    }

    #[inline(always)]
    unsafe fn compute(&self, [src]: [*const u8; 1], dst: *mut u8, run: Run) {
        // SAFETY: the caller's contract is that of a block.
        unsafe { (self.kernel.block)(self.isa, self.attr, src, dst, run) }
    }
}

/// What the engine needs to know of a binary kernel.
#[derive(Clone, Copy)]
pub(crate) struct Binary {
    pub(crate) block: BinaryBlock,
    /// The same with a source of one element, where there is such a loop.
    pub(crate) repeat: Option<RepeatBlock>,
    pub(crate) src_size: usize,
    pub(crate) dst_size: usize,
    pub(crate) cost: Cost,
    /// Whether the block itself can store past the cache.
    pub(crate) streams: bool,
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
    #[inline]
    pub(crate) unsafe fn launch(
        self,
        isa: Isa,
        par: &dyn Parallel,
        attr: [f64; 2],
        shapes: [&[i64]; 2],
        src: [*const u8; 2],
        dst: *mut u8,
    ) -> Result<()> {
        let bytes = 2 * self.src_size + self.dst_size;
        if let Some((count, scalar)) = plain_count(shapes)
            && is_small(count, self.cost, bytes)
        {
            let mut held = [Held::Dense(src[0]), Held::Dense(src[1])];
            let in_place = [ptr::eq(src[0], dst), ptr::eq(src[1], dst)];
            for n in 0..2 {
                if in_place[n] {
                    held[n] = Held::InPlace(src[n]);
                }
            }
            if let Some(n) = scalar {
                held[n] = Held::Scalar(src[n]);
            }
            let compute = BinaryCompute { isa, attr, kernel: self };
            match held {
                [Held::Dense(a), Held::Dense(b)] => {
                    // SAFETY: the caller's contract; no source is the destination, so none overlaps it.
                    unsafe { (self.block)(isa, attr, a, b, dst, Run::cached(count)) };
                    return Ok(());
                }
                // What the other path refuses.
                _ if in_place != [false; 2]
                    && (self.src_size != self.dst_size || scalar.is_some_and(|n| in_place[n])) => {}
                _ => {
                    // SAFETY: the caller's contract, passed on.
                    unsafe { compute_staged(&compute, self.src_size, count, held, dst) };
                    return Ok(());
                }
            }
        }
        // SAFETY: the caller's contract, passed on.
        unsafe { self.launch_any(isa, par, attr, shapes, src, dst) }
    }

    /// As [`Self::launch`], for what is not small and simple.
    ///
    /// # Safety
    /// That of `launch`.
    #[inline(never)]
    unsafe fn launch_any(
        self,
        isa: Isa,
        par: &dyn Parallel,
        attr: [f64; 2],
        shapes: [&[i64]; 2],
        src: [*const u8; 2],
        dst: *mut u8,
    ) -> Result<()> {
        let in_place = src.map(|s| ptr::eq(s, dst));
        let differ = self.src_size != self.dst_size;
        let compute = BinaryCompute { isa, attr, kernel: self };
        if let Some((count, None)) = plain_count(shapes) {
            if in_place != [false; 2] && differ {
                return Err(in_place_error("the source and destination elements differ in size"));
            }
            let operands = Operands::dense(self.src_size, src, dst);
            // SAFETY: the caller's contract, passed on.
            return unsafe { run(par, self.cost, count, compute, &operands, dst) };
        }
        let plan = Plan::new(shapes)?;
        if plan.count() == 0 {
            return Ok(());
        }
        if (0..2).any(|n| in_place[n] && !plan.is_dense(n)) {
            return Err(in_place_error("that source is broadcast"));
        }
        if in_place != [false; 2] && differ {
            return Err(in_place_error("the source and destination elements differ in size"));
        }
        let operands = Operands::broadcast(&plan, self.src_size, src, dst);
        // SAFETY: as above.
        unsafe { run(par, self.cost, plan.count(), compute, &operands, dst) }
    }
}

/// The elements of the result where both operands have its shape, or one, which is returned, is a single element:
/// then no plan is needed. `None` for other shapes, and for what a plan refuses.
#[inline]
fn plain_count(shapes: [&[i64]; 2]) -> Option<(usize, Option<usize>)> {
    let [a, b] = shapes;
    let one = |s: &[i64]| s.iter().all(|&dim| dim == 1);
    let (full, scalar) = if a == b {
        (a, None)
    } else if b.len() <= a.len() && one(b) {
        (a, Some(1))
    } else if a.len() <= b.len() && one(a) {
        (b, Some(0))
    } else {
        return None;
    };
    if full.len() > MAX_DIMS {
        return None;
    }
    let mut count = 1isize;
    for &dim in full {
        // An empty dimension must not hide that others are too large, which is for the plan to say.
        let dim = isize::try_from(dim).ok().filter(|&d| d > 0)?;
        count = count.checked_mul(dim)?;
    }
    Some((count as usize, scalar))
}

/// An operand of a small launch.
#[derive(Clone, Copy)]
enum Held {
    Dense(*const u8),
    /// The destination.
    InPlace(*const u8),
    /// One element.
    Scalar(*const u8),
}

/// Computes a small launch in which some operand is not merely dense.
///
/// # Safety
/// Operands are readable for `count` elements of `size` bytes, or one, and `dst` is writable for as many; it
/// overlaps none but those that it is.
#[inline(never)]
unsafe fn compute_staged<C: Compute<N>, const N: usize>(
    compute: &C,
    size: usize,
    count: usize,
    operands: [Held; N],
    dst: *mut u8,
) {
    let mut stages = [const { Stage::new() }; N];
    let step = STAGE_BYTES / size;
    let scalar = operands.iter().position(|operand| matches!(operand, Held::Scalar(_)));
    let one = scalar.filter(|_| compute.repeats());
    for n in (0..N).filter(|&n| one != Some(n)) {
        if let Held::Scalar(source) = operands[n] {
            // SAFETY: the stage has room for a step and the slack.
            unsafe { splat(compute.isa(), size, source, step.min(count), stages[n].start()) };
        }
    }
    for start in (0..count).step_by(step) {
        let n = step.min(count - start);
        let mut from = [ptr::null(); N];
        for k in 0..N {
            // SAFETY: `start + n` is at most `count`, and the stage holds a step.
            unsafe {
                from[k] = match operands[k] {
                    Held::Dense(source) => source.add(start * size),
                    Held::InPlace(source) => {
                        let stage = stages[k].start();
                        ptr::copy_nonoverlapping(source.add(start * size), stage, n * size);
                        stage
                    }
                    Held::Scalar(source) if one == Some(k) => source,
                    Held::Scalar(_) => stages[k].start(),
                };
            }
        }
        // SAFETY: as above; what is the destination too is read from its copy.
        unsafe {
            let dst = dst.add(start * compute.dst_size());
            match one {
                Some(one) => compute.compute_repeated(&from, one, dst, Rows::one(n)),
                None => compute.compute(from, dst, Run::cached(n)),
            }
        }
    }
}

#[derive(Clone, Copy)]
struct BinaryCompute {
    isa: Isa,
    attr: [f64; 2],
    kernel: Binary,
}

impl Compute<2> for BinaryCompute {
    #[inline(always)]
    fn dst_size(&self) -> usize {
        self.kernel.dst_size
    }

    #[inline(always)]
    fn isa(&self) -> Isa {
        self.isa
    }

    #[inline(always)]
    fn streams(&self) -> bool {
        self.kernel.streams && stores_past_cache(self.isa)
    }

    #[inline(always)]
    unsafe fn compute(&self, [a, b]: [*const u8; 2], dst: *mut u8, run: Run) {
        // SAFETY: the caller's contract is that of a block.
        unsafe { (self.kernel.block)(self.isa, self.attr, a, b, dst, run) }
    }

    #[inline(always)]
    fn repeats(&self) -> bool {
        self.kernel.repeat.is_some()
    }

    #[inline(always)]
    unsafe fn compute_repeated(&self, src: &[*const u8; 2], one: usize, dst: *mut u8, rows: Rows<2>) {
        let repeat = self.kernel.repeat.expect("asked for only where it is");
        let rows = Rows { steps: [rows.steps[1 - one], rows.steps[one]], ..rows };
        // SAFETY: the caller's contract is that of a block.
        unsafe { repeat(self.isa, self.attr, src[1 - one], src[one], one == 1, dst, rows) }
    }
}

/// Whether so much is neither worth a second thread nor past any cache.
#[inline]
fn is_small(count: usize, cost: Cost, element_bytes: usize) -> bool {
    count.saturating_mul(element_bytes * cost.weight()) < SPLIT_BYTES
}

/// Computes `count` elements of what is not small.
///
/// # Safety
/// The operands are readable, `dst` is writable for the elements, and it overlaps no operand but one that it is.
#[inline(never)]
unsafe fn run<C: Compute<N>, const N: usize>(
    par: &dyn Parallel,
    cost: Cost,
    count: usize,
    compute: C,
    operands: &Operands<'_, N>,
    dst: *mut u8,
) -> Result<()> {
    let dst_size = compute.dst_size();
    let mut ahead = [Ahead { start: ptr::null(), size: operands.size() }; N];
    let mut dense = 0;
    for start in operands.dense_sources() {
        ahead[dense].start = start;
        dense += 1;
    }
    // What repeats is read from a cache.
    let read = dense * operands.size();
    let output = count.saturating_mul(dst_size);
    let footprint = count.saturating_mul(read + dst_size);
    // What is written in place is in the cache by then.
    let streaming = !operands.in_place() && stream::pays(par, output, footprint);
    let shared = Shared::new(dst);
    let isa = compute.isa();
    let bytes = (N * operands.size() + dst_size) * cost.weight();
    for_elements(par, count, bytes, MULTIPLE, |range| {
        let mut buffers = Buffers::new();
        let dst = shared.get();
        // SAFETY: the range is within `count`, for which the caller vouches, and no other task has it.
        unsafe {
            let reader = operands.reader(compute, &mut buffers, streaming, range.len());
            if streaming {
                stream::blocks(isa, &reader, dst, dst_size, range, &ahead[..dense]);
            } else {
                let mut cursor = reader.cursor(range.start, 0);
                reader.compute(&mut cursor, Run::cached(range.len()), dst.add(range.start * dst_size));
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
