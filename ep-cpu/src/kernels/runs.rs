//! Copying runs: pieces that are contiguous on both sides, one for each index of some axes.

use super::lanes::Vector;
use super::lines::{LINE, copy_run, flush_by, own_run, stream_run};
use super::movement::{Axis, Odometer};
use super::raw::{Shared, for_ranges, prefetch};
use super::stream::{self, OWN_AHEAD};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use ep_core::Result;
use ep_core::parallel::Parallel;
use primitives::permute::MAX_DIMS;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Runs longer than this are cut, so that a few long ones can be shared among threads.
const PIECE: usize = 256 << 10;

/// Runs from this length on are worth streaming even if they begin and end inside lines.
const LONG: usize = 16 * LINE;

/// Shorter runs of which neighbours in the source lie apart in the destination are copied in bands: else each
/// line of the source would be read once for every run in it.
const SHORT: usize = 4 * LINE;

/// Bytes of the destination that a band writes at once, and the most runs of the source that it follows unless
/// more make whole lines.
const BAND_BYTES: usize = 1024;
const BAND_RUNS: usize = 32;

/// Bytes written from which bands go past the cache, as transposes do. (Less in tests, so that small tensors go every
/// way.)
const STREAM_BANDS: usize = if cfg!(test) { 16 << 10 } else { 4 << 20 };

/// The same for runs in the order of the destination, whose source jumps: reading each line of the destination first,
/// and evicting it later, disturbs that from where the second-level cache ends, but what is written may be read again from
/// the cache behind it.
const STREAM_RUNS: usize = if cfg!(test) { 32 << 10 } else { 8 << 20 };

/// Bytes of a source that stay in the first cache, or just behind it, while all of the destination is written from it.
const FEW_READ: usize = 256 << 10;

/// Bytes of the buffer in which short runs are collected to whole lines.
const SCRATCH: usize = 16 << 10;

/// How the destination is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Cached,
    /// Whole lines of each run past the cache.
    Stream,
    /// Ordinary stores to lines that are asked for before: nothing else than these is on its way.
    Own,
    /// The runs follow each other without gaps: collect them, and write whole lines past the cache.
    Collect,
    /// The same for the runs of each index of the second of two axes.
    CollectBands,
}

/// [`Store`] where a run is written on its own.
const CACHED: u8 = 0;
const STREAM: u8 = 1;
const OWN: u8 = 2;

/// What the tasks share.
#[derive(Clone, Copy)]
struct Job<'a> {
    axes: &'a [Axis],
    run: usize,
    store: Store,
    src: *const u8,
    dst: *mut u8,
}

impl<'a> Job<'a> {
    /// The innermost axis, and the others.
    fn inner(&self) -> (Axis, &'a [Axis]) {
        match self.axes {
            [inner, outer @ ..] => (*inner, outer),
            [] => (Axis { size: 1, src: 0, dst: 0 }, &[]),
        }
    }
}

/// Copies a run of `run` bytes for each index of `axes`, of which there is at least one.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// As for [`movement::copy`](super::movement::copy); the axes are in the order of their strides in the
/// destination.
pub(super) unsafe fn copy(
    isa: Isa,
    par: &dyn Parallel,
    run: usize,
    axes: &[Axis],
    src: *const u8,
    dst: *mut u8,
) -> Result<()> {
    let rows: usize = axes.iter().map(|a| a.size).product();
    let at_lines = |stride: isize| (stride as usize).is_multiple_of(LINE);
    let is_whole =
        run.is_multiple_of(LINE) && dst.addr().is_multiple_of(LINE) && axes.iter().all(|a| at_lines(a.dst));
    let mut next = run as isize;
    let is_dense = axes.iter().all(|a| {
        let fits = a.dst == next;
        next = next.saturating_mul(a.size as isize);
        fits
    });
    let read = axes.iter().filter(|a| a.src != 0).map(|a| a.size).product::<usize>() * run;
    let repeats = read <= FEW_READ && read < rows * run;
    // Of lines that are asked for ahead few may be another's.
    let follows = run >= if is_dense { LONG } else { 8 * OWN_AHEAD };
    let store = match rows * run {
        total if !stream::reaches(total, STREAM_RUNS) => Store::Cached,
        total if repeats && follows && stream::asks_far(total) => Store::Own,
        _ if is_whole || run >= LONG => Store::Stream,
        _ if is_dense => Store::Collect,
        _ => Store::Cached,
    };
    let kernel = lookup(isa);
    let job = Job { axes, run, store, src, dst };
    // The axis along which the source's runs are neighbours, where it is not the destination's.
    let near = (0..axes.len()).min_by_key(|&i| axes[i].src.unsigned_abs()).unwrap_or(0);
    if near > 0 && run < SHORT && axes[near].src.unsigned_abs() < SHORT {
        let streams = stream::reaches(rows * run, STREAM_BANDS) && axes[0].dst == run as isize;
        let store = if streams { Store::CollectBands } else { Store::Cached };
        // SAFETY: the caller's promise.
        return unsafe { bands(par, kernel, &Job { store, ..job }, near) };
    }
    let shared = Shared::new((&raw const job).cast_mut());
    let pieces = if run > 2 * PIECE { run.div_ceil(PIECE) } else { 1 };
    for_ranges(par, rows * pieces, 2 * run.div_ceil(pieces), 1, |range| {
        // SAFETY: the job lives as long as this call. The range is one of its runs, or of parts of them, which no
        // other task writes.
        unsafe {
            let job = &*shared.get();
            match pieces {
                1 => kernel(job, range),
                _ => range.for_each(|part| {
                    let at = Odometer::at(job.axes, part / pieces);
                    let from = part % pieces * PIECE;
                    let one = Job {
                        axes: &[],
                        run: PIECE.min(run - from),
                        store: job.store,
                        src: job.src.wrapping_offset(at.src).wrapping_add(from),
                        dst: job.dst.wrapping_offset(at.dst).wrapping_add(from),
                    };
                    kernel(&one, 0..1);
                }),
            }
        }
        if store != Store::Cached {
            stream::fence();
        }
        Ok(())
    })
}

/// Copies the runs in bands: a few along the innermost axis of the destination, for each index of `axes[near]`.
///
/// # Safety
/// As for [`copy`].
unsafe fn bands(par: &dyn Parallel, kernel: Kernel, job: &Job<'_>, near: usize) -> Result<()> {
    /// Indices of `axes[near]` in a unit of work.
    const COLUMNS: usize = 2048;
    let (down, across) = (job.axes[0], job.axes[near]);
    let mut others = [Axis::default(); MAX_DIMS];
    let mut rank = 0;
    for (_, axis) in job.axes.iter().enumerate().filter(|(i, _)| ![0, near].contains(i)) {
        others[rank] = *axis;
        rank += 1;
    }
    let others = &others[..rank];
    let batch: usize = others.iter().map(|a| a.size).product();
    // So many runs are whole lines.
    let whole = LINE >> job.run.trailing_zeros().min(LINE.trailing_zeros());
    let height = ((BAND_BYTES / job.run).min(BAND_RUNS) / whole * whole).max(whole).min(down.size);
    let (heights, columns) = (down.size.div_ceil(height), across.size.div_ceil(COLUMNS));
    let unit_bytes = 2 * height * across.size.min(COLUMNS) * job.run;
    let shared = Shared::new((&raw const *job).cast_mut());
    for_ranges(par, batch * heights * columns, unit_bytes, 1, |units| {
        for unit in units {
            let at = Odometer::at(others, unit / (heights * columns));
            let (r, c) = (unit / columns % heights * height, unit % columns * COLUMNS);
            let axes = [
                Axis { size: height.min(down.size - r), ..down },
                Axis { size: COLUMNS.min(across.size - c), ..across },
            ];
            let src = at.src + r as isize * down.src + c as isize * across.src;
            let dst = at.dst + r as isize * down.dst + c as isize * across.dst;
            // SAFETY: the job outlives this call; each unit has runs of its own, of which those of one column
            // follow each other and fit the buffer if they are collected.
            unsafe {
                let job = &*shared.get();
                let (src, dst) = (job.src.wrapping_offset(src), job.dst.wrapping_offset(dst));
                kernel(&Job { axes: &axes, src, dst, ..*job }, 0..axes[0].size * axes[1].size);
            }
        }
        stream::fence();
        Ok(())
    })
}

/// Copies the runs `range` of a job.
///
/// # Safety
/// As for [`copy`], for those runs; the CPU has the instruction set that the function was looked up for, and
/// the caller fences.
type Kernel = unsafe fn(&Job<'_>, Range<usize>);

#[cfg(not(target_arch = "x86_64"))]
fn lookup(_: Isa) -> Kernel {
    rows::<super::lanes::Portable, super::lanes::Portable>
}

#[cfg(target_arch = "x86_64")]
fn lookup(isa: Isa) -> Kernel {
    match isa.level() {
        Level::Baseline => x86::baseline,
        Level::Avx2 => x86::avx2,
        Level::Avx512 | Level::Amx => x86::avx512,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Job, rows};
    use std::arch::x86_64::{__m128i, __m256i, __m512i};
    use std::ops::Range;

    /// # Safety
    /// As for [`super::Kernel`].
    pub(super) unsafe fn baseline(job: &Job<'_>, range: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { rows::<__m128i, __m128i>(job, range) }
    }

    /// # Safety
    /// As for [`super::Kernel`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(job: &Job<'_>, range: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { rows::<__m256i, __m128i>(job, range) }
    }

    /// # Safety
    /// As for [`super::Kernel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn avx512(job: &Job<'_>, range: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { rows::<__m512i, __m128i>(job, range) }
    }
}

/// # Safety
/// As for [`Kernel`].
#[inline(always)]
unsafe fn rows<V: Vector, W: Vector>(job: &Job<'_>, range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe {
        match job.store {
            Store::Collect => collect::<V, W>(job, range),
            Store::CollectBands => collect_bands::<V, W>(job),
            Store::Cached => each::<V, W, CACHED>(job, range),
            Store::Stream => each::<V, W, STREAM>(job, range),
            Store::Own => each::<V, W, OWN>(job, range),
        }
    }
}

/// # Safety
/// As for [`Kernel`].
#[inline(always)]
unsafe fn each<V: Vector, W: Vector, const STORE: u8>(job: &Job<'_>, range: Range<usize>) {
    let (inner, outer) = job.inner();
    let mut at = Odometer::at(outer, range.start / inner.size);
    let mut index = range.start % inner.size;
    let mut left = range.len();
    while left > 0 {
        let n = left.min(inner.size - index);
        let mut from = job.src.wrapping_offset(at.src + index as isize * inner.src);
        let mut to = job.dst.wrapping_offset(at.dst + index as isize * inner.dst);
        for _ in 0..n {
            let next = from.wrapping_offset(inner.src);
            // SAFETY: a run of the job.
            unsafe {
                match STORE {
                    STREAM => {
                        // The start of the next run, which no hardware prefetcher guesses.
                        for line in (0..job.run.min(4 * LINE)).step_by(LINE) {
                            prefetch(next.wrapping_add(line));
                        }
                        stream_run::<V, W>(to, from, job.run);
                    }
                    OWN => own_run::<V, W>(to, from, job.run),
                    _ => copy_run::<V, W>(to, from, job.run),
                }
            }
            (from, to) = (next, to.wrapping_offset(inner.dst));
        }
        left -= n;
        index = 0;
        at.advance();
    }
}

/// # Safety
/// As for [`Kernel`]; the runs follow each other in the destination.
#[inline(always)]
unsafe fn collect<V: Vector, W: Vector>(job: &Job<'_>, range: Range<usize>) {
    let run = job.run;
    let mut scratch = [MaybeUninit::<Line>::uninit(); SCRATCH / LINE];
    let scratch = scratch.as_mut_ptr().cast::<u8>();
    // As many runs as a line has bytes are whole lines. Of longer runs, which are shorter than `LONG`, fewer fit.
    let fit = (SCRATCH - LINE) / run;
    let step = if fit >= LINE { fit / LINE * LINE } else { fit };
    let whole = (step * run).is_multiple_of(LINE);
    let (inner, outer) = job.inner();
    let mut at = Odometer::at(outer, range.start / inner.size);
    let mut index = range.start % inner.size;
    let start = job.dst.wrapping_offset(at.dst + index as isize * inner.dst);
    let mut done = 0;
    while done < range.len() {
        let n = step.min(range.len() - done);
        let mut filled = 0;
        while filled < n {
            let part = (n - filled).min(inner.size - index);
            let mut from = job.src.wrapping_offset(at.src + index as isize * inner.src);
            for i in filled..filled + part {
                // SAFETY: a run of the job; `step` of them fit behind the first line.
                unsafe { copy_run::<V, W>(scratch.add(LINE + i * run), from, run) };
                from = from.wrapping_offset(inner.src);
            }
            filled += part;
            index += part;
            if index == inner.size {
                index = 0;
                at.advance();
            }
        }
        let last = !whole || done + n == range.len();
        // SAFETY: `n` runs have been collected, and the destination of this range is contiguous from `start`.
        unsafe { flush_by::<V>(scratch, start.add(done * run), n * run, whole && done > 0, last) };
        done += n;
    }
}

/// Collects the runs of each index of the second axis, which follow each other in the destination.
///
/// # Safety
/// As for [`Kernel`]; there are two axes, the runs of the first fit the buffer, and the range is all of them.
#[inline(always)]
unsafe fn collect_bands<V: Vector, W: Vector>(job: &Job<'_>) {
    let (run, [down, across]) = (job.run, [job.axes[0], job.axes[1]]);
    let mut scratch = [MaybeUninit::<Line>::uninit(); SCRATCH / LINE];
    let scratch = scratch.as_mut_ptr().cast::<u8>();
    for c in 0..across.size as isize {
        let from = job.src.wrapping_offset(c * across.src);
        // SAFETY: runs of the job, for which there is room behind the first line.
        unsafe {
            for r in 0..down.size {
                let run_at = from.wrapping_offset(r as isize * down.src);
                copy_run::<V, W>(scratch.add(LINE + r * run), run_at, run);
            }
            let to = job.dst.wrapping_offset(c * across.dst);
            flush_by::<V>(scratch, to, down.size * run, false, true);
        }
    }
}

/// A line of the buffer.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng};

    /// Rows of one source, which every store of runs repeats, to a destination with a gap behind each.
    #[test]
    fn each_store_writes_every_run_and_no_gap() {
        const ROWS: usize = 3;
        let lengths = (1..140).chain([511, 512, 513, 1024, 1100, 4099]);
        for (run, shift) in lengths.flat_map(|run| [0, 1, 31].map(|shift| (run, shift))) {
            let (from, pitch) = (Rng::new().bytes(run), run + 5);
            for store in [Store::Cached, Store::Stream, Store::Own] {
                for isa in Isa::available() {
                    let mut dst = Guarded::from(&vec![0xa5u8; shift + ROWS * pitch]);
                    let axes = [Axis { size: ROWS, src: 0, dst: pitch as isize }];
                    let to = dst.ptr().wrapping_add(shift);
                    let job = Job { axes: &axes, run, store, src: from.as_ptr(), dst: to };
                    // SAFETY: the rows fit the destination, and each reads all of the source.
                    unsafe { lookup(isa)(&job, 0..ROWS) };
                    stream::fence();
                    let mut wanted = vec![0xa5; shift + ROWS * pitch];
                    for row in wanted[shift..].chunks_exact_mut(pitch) {
                        row[..run].copy_from_slice(&from);
                    }
                    assert!(dst.written() == &wanted[..], "{run} bytes at {shift} {isa}");
                }
            }
        }
    }
}
