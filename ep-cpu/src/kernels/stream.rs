//! Operands that no cache holds: stores that go past it. And lines that are asked for before they are written, there and where
//! second-level cache holds them.
//!
//! An ordinary store first reads the line that it overwrites, which costs a third of the traffic of a copy
//! once the data no longer fits. Streaming stores skip that, but lose while the data would have stayed cached.

use super::engine::Run;
use super::raw::prefetch_to_write;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

mod store;
mod when;

#[cfg(target_arch = "x86_64")]
use store::x86;
#[cfg(target_arch = "x86_64")]
pub(crate) use store::x86::{Halves, Whole};
pub(crate) use store::{Parts, Store};
#[cfg(test)]
pub(crate) use when::INTEL_FORCED;
pub(crate) use when::{
    STREAM_BYTES, Walk, asks_far, configure, is_near, pays, pays_for_rows, reaches, shares_cache,
    suits_intel, walk,
};

/// Bytes that [`ask`] asks for, and how far ahead.
pub(crate) const ASK_BYTES: usize = 4 * LINE;
const ASK_AHEAD: usize = 1024;

const LINE: usize = 64;
const PAGE: usize = 4096;
/// Pages worked on in turns by [`Walk::Pages`].
pub(crate) const LANES: usize = 4;
/// Bytes copied of one page before the next has its turn, where pages have turns.
const PIECE: usize = 256;
/// Bytes computed of one page, of the widest operand, before the next has its turn, where pages have turns.
const STEP_BYTES: usize = 512;
/// The most bytes of one operand computed at a time.
pub(crate) const MOST_STEP_BYTES: usize = 1024;
/// As many where they need no stage and pages have no turns, so that a block begins seldom.
const DIRECT_STEP_BYTES: usize = 16 << 10;
/// Bytes that [`Walk::Straight`] fetches ahead, and as many for what is staged where a source's elements are of another size than
/// the output's, as in casts. (Beside stores of the same pace fetching so far ahead takes longer on Zen 3, and beside others less.)
const STRAIGHT_AHEAD: usize = 1024;
const STRAIGHT_AHEAD_UNEVEN: usize = 4096;

/// Bytes from `address` to the next line.
fn to_line(address: *const u8) -> usize {
    address.addr().wrapping_neg() % LINE
}

/// Makes streaming stores of this thread visible before whatever it does next; call it at the end of a task.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies `bytes` bytes with streaming stores; ends with [`fence`].
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes` bytes, and the two do not overlap.
pub(crate) unsafe fn copy(isa: Isa, dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise; an `Isa` of a level exists only where the CPU has its features.
    unsafe {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => x86::copy(dst, src, bytes),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::copy_halves(dst, src, bytes),
            _ => copy_by::<Parts>(dst, src, bytes),
        }
    }
}

/// # Safety
/// As for [`copy`]; the CPU has what `L` takes.
#[inline(always)]
unsafe fn copy_by<L: Store>(dst: *mut u8, src: *const u8, bytes: usize) {
    let head = to_line(dst).min(bytes);
    // SAFETY: `head` is at most `bytes`; the caller vouches for both sides.
    unsafe { dst.copy_from_nonoverlapping(src, head) };
    let mut done = head;
    let walk = walk();
    while walk == Walk::Straight && bytes - done >= PIECE {
        prefetch(src.wrapping_add(done + STRAIGHT_AHEAD), PIECE);
        // SAFETY: `done + PIECE` is at most `bytes`; `dst + done` is at a line.
        unsafe { lines_by::<L>(dst.add(done), src.add(done), PIECE) };
        done += PIECE;
    }
    while bytes - done >= LANES * PAGE {
        for piece in (0..PAGE).step_by(PIECE) {
            for page in 0..LANES {
                let at = done + page * PAGE + piece;
                prefetch(src.wrapping_add(at + LANES * PAGE), PIECE);
                // SAFETY: `at + PIECE` is at most `done + LANES * PAGE`, within `bytes`; `dst + at` is at a line.
                unsafe { lines_by::<L>(dst.add(at), src.add(at), PIECE) };
            }
        }
        done += LANES * PAGE;
    }
    let lines = (bytes - done) / LINE * LINE;
    // SAFETY: what is left, from `done` to `bytes`; `dst + done` is at a line.
    unsafe {
        lines_by::<L>(dst.add(done), src.add(done), lines);
        done += lines;
        dst.add(done).copy_from_nonoverlapping(src.add(done), bytes - done);
    }
    fence();
}

/// Repeats `pattern` over `bytes` bytes that second-level cache does not hold, by stores past the cache or where lines are [asked](asks_far)
/// for before; ends with [`fence`].
///
/// # Safety
/// `dst` is writable for `bytes` bytes.
pub(crate) unsafe fn fill(isa: Isa, dst: *mut u8, pattern: [u8; 16], bytes: usize, asks: bool) {
    // SAFETY: the caller's promise; an `Isa` of a level exists only where the CPU has its features.
    unsafe {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => x86::fill(dst, pattern, bytes, asks),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::fill_halves(dst, pattern, bytes, asks),
            _ => fill_by::<Parts>(dst, pattern, bytes, asks),
        }
    }
}

/// # Safety
/// As for [`fill`]; the CPU has what `L` takes.
#[inline(always)]
unsafe fn fill_by<L: Store>(dst: *mut u8, mut pattern: [u8; 16], bytes: usize, asks: bool) {
    let head = to_line(dst).min(bytes);
    for i in 0..head {
        // SAFETY: `i < bytes`.
        unsafe { dst.add(i).write(pattern[i % 16]) };
    }
    pattern.rotate_left(head % 16);
    let mut line = Line([0; LINE]);
    for (i, byte) in line.0.iter_mut().enumerate() {
        *byte = pattern[i % 16];
    }
    let lines = (bytes - head) / LINE * LINE;
    // SAFETY: whole lines from one on, and what is left is less than a line; what was written in between is a multiple of
    // the pattern's length.
    unsafe {
        repeat_line::<L>(dst.add(head), &line, lines, asks);
        dst.add(head + lines).copy_from_nonoverlapping(line.0.as_ptr(), bytes - head - lines);
    }
    fence();
}

/// Writes a line to each of `bytes` bytes, whole lines.
///
/// # Safety
/// `to` is at a line and writable for so many. The CPU has what `L` takes.
#[inline(always)]
unsafe fn repeat_line<L: Store>(to: *mut u8, line: &Line, bytes: usize, asks: bool) {
    if asks {
        for at in (0..bytes).step_by(LINE) {
            own(to.wrapping_add(at));
            // SAFETY: a line within `bytes`.
            unsafe { to.add(at).copy_from_nonoverlapping(line.0.as_ptr(), LINE) };
        }
    } else {
        for at in (0..bytes).step_by(LINE) {
            // SAFETY: as above.
            unsafe { L::line(to.add(at), line.0.as_ptr()) };
        }
    }
}

/// Bytes ahead of what is written of the line that [`own`] asks for.
pub(crate) const OWN_AHEAD: usize = 2048;

/// Asks for a line a little ahead of `at`, to write it: where nothing is read, so that ordinary stores do not wait for it. On cores of
/// Intel's that takes less than stores past the cache, up to [some size](asks_far), and leaves the end of what was written there.
#[inline(always)]
pub(crate) fn own(at: *mut u8) {
    prefetch_to_write(at.wrapping_add(OWN_AHEAD));
}

/// Asks for [`ASK_BYTES`] bytes a little ahead of `at`, to write them.
#[inline(always)]
pub(crate) fn ask<T>(at: *mut T) {
    for line in (0..ASK_BYTES).step_by(LINE) {
        prefetch_to_write(at.wrapping_byte_add(ASK_AHEAD + line));
    }
}

/// What fits a line of the cache.
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// A line of the output on its way past the cache.
#[repr(C, align(64))]
pub(crate) struct NewLine([MaybeUninit<u8>; LINE]);

impl NewLine {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; LINE])
    }

    /// Room for the elements of a line, whose size is a power of two.
    #[inline(always)]
    pub(crate) fn elements<T>(&mut self) -> &mut [MaybeUninit<T>] {
        const { assert!(size_of::<T>().is_power_of_two() && size_of::<T>() <= 16) };
        // SAFETY: the line is aligned for such elements and has room for so many.
        unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), LINE / size_of::<T>()) }
    }

    /// Stores the line; [`fence`] comes later.
    ///
    /// # Safety
    /// All elements are written, and `to` is writable and at a line.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { Parts::line(to, self.0.as_ptr().cast()) };
    }
}

/// A computation of consecutive elements, which [`blocks`] cuts into pieces.
pub(crate) trait Blocks {
    /// Where a piece continues.
    type Cursor;

    /// A cursor at element `at`. Of all that are in use at once each has another `lane`, below [`LANES`].
    fn cursor(&self, at: usize, lane: usize) -> Self::Cursor;

    /// Whether [`Self::compute`] can store past the cache by itself, and fetch what it reads.
    fn streams(&self) -> bool;

    /// Computes the next elements into `out` and moves the cursor past them.
    ///
    /// # Safety
    /// The elements exist, and `out` is writable for them and overlaps nothing that they are computed from. Only where
    /// [`Self::streams`] does `run` go past the cache, and then it is as [`Run`] says.
    unsafe fn compute(&self, cursor: &mut Self::Cursor, run: Run, out: *mut u8);
}

/// A source that is read in step with the output, to be fetched ahead of its use.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// The element that belongs to the output's first.
    pub(crate) start: *const u8,
    /// Bytes of an element; a power of two, at most 16.
    pub(crate) size: usize,
}

// SAFETY: what lies there is never read, only fetched into the cache.
unsafe impl Sync for Ahead {}

/// One block of output on its way to memory.
#[repr(C, align(64))]
struct Staged([u8; MOST_STEP_BYTES]);

/// Computes the elements `range` of an output at `dst` with streaming stores; ends with [`fence`].
///
/// `size` is that of an element of the output, and `ahead` are the sources as long as the output.
///
/// # Safety
/// `dst` is writable for the elements of `range` and overlaps no source; sizes are powers of two, at most 16.
pub(crate) unsafe fn blocks<B: Blocks>(
    isa: Isa,
    work: &B,
    dst: *mut u8,
    size: usize,
    range: Range<usize>,
    ahead: &[Ahead],
) {
    let Range { start: mut at, end } = range;
    let misaligned = to_line(dst.wrapping_add(at * size));
    // Where no element begins at a line, all are left to the end.
    let head = if misaligned.is_multiple_of(size) { misaligned / size } else { end - at };
    let head = head.min(end - at);
    let mut cursor = work.cursor(at, 0);
    // SAFETY: `head` elements from `at` are within the range.
    unsafe { work.compute(&mut cursor, Run::cached(head), dst.add(at * size)) };
    at += head;

    let widest = ahead.iter().fold(size, |w, a| w.max(a.size));
    let walk = walk();
    let (bytes, far) = match walk {
        Walk::Pages => (STEP_BYTES, LANES * PAGE),
        Walk::Straight if work.streams() => (DIRECT_STEP_BYTES, STRAIGHT_AHEAD),
        Walk::Straight if ahead.iter().all(|a| a.size == size) => (MOST_STEP_BYTES, STRAIGHT_AHEAD),
        Walk::Straight => (MOST_STEP_BYTES, STRAIGHT_AHEAD_UNEVEN),
    };
    let step = (bytes / widest).max(LINE / size);
    // Lanes begin at pages of what is read, of its narrowest operand: two lanes in one page confuse the prefetchers.
    let lane = PAGE / ahead.iter().map(|a| a.size).min().unwrap_or(size);
    let mut stage = Staged([0; MOST_STEP_BYTES]);
    let stage = stage.0.as_mut_ptr();
    let direct = Run { n: step, ahead: far };
    let block = |cursor: &mut B::Cursor, at: usize| {
        // SAFETY: the callers below have `step` elements left at `at`, which is at a line; they are whole lines
        // and fit the stage where it is used.
        unsafe {
            if work.streams() {
                // Each line is fetched and stored between the computations of others, which hides both.
                return work.compute(cursor, direct, dst.add(at * size));
            }
            work.compute(cursor, Run::cached(step), stage);
            for a in ahead {
                let next = match walk {
                    Walk::Pages => (at + LANES * lane) * a.size,
                    Walk::Straight => at * a.size + far,
                };
                prefetch(a.start.wrapping_add(next), step * a.size);
            }
            copy_lines(isa, dst.add(at * size), stage, step * size);
        }
    };
    while walk == Walk::Pages && end - at >= LANES * lane {
        let start = |i| work.cursor(at + i * lane, i);
        let mut cursors: [B::Cursor; LANES] = [start(0), start(1), start(2), start(3)];
        for done in (0..lane).step_by(step) {
            for (i, cursor) in cursors.iter_mut().enumerate() {
                block(cursor, at + i * lane + done);
            }
        }
        at += LANES * lane;
    }
    let mut cursor = work.cursor(at, 0);
    while end - at >= step {
        block(&mut cursor, at);
        at += step;
    }
    // SAFETY: what is left of the range.
    unsafe { work.compute(&mut cursor, Run::cached(end - at), dst.add(at * size)) };
    fence();
}

/// Asks for the lines of `bytes` bytes from `start`, which need not exist.
#[inline(always)]
fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::*;
        // SAFETY: a prefetch of an address that cannot be read does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

/// Copies what was put together in a stage, whose lines are the destination's; without [`fence`].
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_staged(isa: Isa, to: *mut u8, from: *const u8, bytes: usize) {
    let head = to_line(to).min(bytes);
    let lines = (bytes - head) / LINE * LINE;
    let tail = bytes - head - lines;
    // SAFETY: the three parts are all of the bytes; lines begin behind the head.
    unsafe {
        to.copy_from_nonoverlapping(from, head);
        copy_lines(isa, to.add(head), from.add(head), lines);
        to.add(head + lines).copy_from_nonoverlapping(from.add(head + lines), tail);
    }
}

/// Copies whole lines with streaming stores where there are any; without [`fence`].
///
/// # Safety
/// `from` is readable and `to`, at a line, writable for `bytes` bytes, a multiple of a line.
#[inline(always)]
unsafe fn copy_lines(isa: Isa, to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise; an `Isa` of a level exists only where the CPU has its features.
    unsafe {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => x86::lines(to, from, bytes),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::lines_halves(to, from, bytes),
            _ => lines_by::<Parts>(to, from, bytes),
        }
    }
}

/// # Safety
/// As for [`copy_lines`]; the CPU has what `L` takes.
#[inline(always)]
unsafe fn lines_by<L: Store>(to: *mut u8, from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        // SAFETY: a line within `bytes`.
        unsafe { L::line(to.add(line), from.add(line)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Guarded;

    #[test]
    fn fills_keep_their_phase_and_their_ends_either_way() {
        let pattern: [u8; 16] = *b"abcdefghijklmnop";
        let lengths = (0..200).chain([4096, 4097, 9999]);
        for (bytes, shift) in lengths.flat_map(|bytes| [0, 1, 17, 63].map(|shift| (bytes, shift))) {
            for (isa, asks) in
                Isa::available().into_iter().flat_map(|isa| [false, true].map(|asks| (isa, asks)))
            {
                let mut dst = Guarded::from(&vec![b'.'; shift + bytes + 3]);
                // SAFETY: so many bytes are there from the shift on.
                unsafe { fill(isa, dst.ptr().wrapping_add(shift), pattern, bytes, asks) };
                let all = dst.written();
                let wanted = |i: usize| if i < bytes { pattern[i % 16] } else { b'.' };
                assert!(all[..shift].iter().all(|b| *b == b'.'), "{bytes} at {shift} {isa} {asks}");
                let right = all[shift..].iter().enumerate().all(|(i, b)| *b == wanted(i));
                assert!(right, "{bytes} at {shift} {isa} {asks}");
            }
        }
    }

    #[test]
    fn what_is_staged_is_copied_and_nothing_else() {
        let lengths = (0..200).chain([4096, 4097]);
        for (bytes, shift) in lengths.flat_map(|bytes| [0, 1, 17, 63].map(|shift| (bytes, shift))) {
            for isa in Isa::available() {
                let from: Vec<u8> = (0..bytes).map(|i| i as u8 | 0x80).collect();
                let mut dst = Guarded::from(&vec![b'.'; shift + bytes + 3]);
                // SAFETY: so many bytes are there from the shift on.
                unsafe { copy_staged(isa, dst.ptr().wrapping_add(shift), from.as_ptr(), bytes) };
                fence();
                let (before, rest) = dst.written().split_at(shift);
                assert!(rest[..bytes] == from, "{bytes} at {shift} {isa}");
                assert!(before.iter().chain(&rest[bytes..]).all(|b| *b == b'.'), "{bytes} at {shift} {isa}");
            }
        }
    }
}
