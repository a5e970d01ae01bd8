//! Copying bytes with vectors, and collecting them to whole cache lines that go past the cache.

use super::lanes::{LANE, Vector};
use super::stream::own;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Bytes from which stores begin at multiples of a vector, and bytes that are then copied in one go.
const LONG_RUN: usize = 512;
const STEP: usize = 4 * LINE;

/// Copies `bytes` bytes, at least one, with pairs of stores that may overlap.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes, and they do not overlap. The CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn copy_run<V: Vector, W: Vector>(to: *mut u8, from: *const u8, bytes: usize) {
    let vector = V::LANES * LANE;
    macro_rules! ends {
        ($t:ty) => {{
            let last = bytes - size_of::<$t>();
            let tail = from.add(last).cast::<$t>().read_unaligned();
            to.cast::<$t>().write_unaligned(from.cast::<$t>().read_unaligned());
            to.add(last).cast::<$t>().write_unaligned(tail);
        }};
    }
    // SAFETY: every part lies within `bytes`.
    unsafe {
        if bytes >= vector {
            let mut at = 0;
            if bytes >= LONG_RUN {
                // A store that is in two lines takes as long as two.
                V::load(from).store(to);
                at = vector - to.addr() % vector;
                // Several in one go: how fast a loop of one is depends on where it lies.
                while at + STEP <= bytes {
                    for part in (at..at + STEP).step_by(vector) {
                        V::load(from.add(part)).store(to.add(part));
                    }
                    at += STEP;
                }
            }
            while at + vector <= bytes {
                V::load(from.add(at)).store(to.add(at));
                at += vector;
            }
            if at < bytes {
                V::load(from.add(bytes - vector)).store(to.add(bytes - vector));
            }
        } else if bytes >= LANE {
            let mut at = 0;
            while at + LANE <= bytes {
                W::load(from.add(at)).store(to.add(at));
                at += LANE;
            }
            if at < bytes {
                W::load(from.add(bytes - LANE)).store(to.add(bytes - LANE));
            }
        } else if bytes >= 8 {
            ends!(u64)
        } else if bytes >= 4 {
            ends!(u32)
        } else if bytes >= 2 {
            ends!(u16)
        } else {
            to.write(from.read());
        }
    }
}

/// Copies `bytes` bytes to lines that are asked for before they are written, and those behind them.
///
/// # Safety
/// As for [`copy_run`].
#[inline(always)]
pub(super) unsafe fn own_run<V: Vector, W: Vector>(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_lines::<V, W, false>(to, from, bytes) }
}

/// Copies `bytes` bytes, the whole lines of the destination past the cache.
///
/// # Safety
/// As for [`copy_run`]; the caller fences.
#[inline(always)]
pub(super) unsafe fn stream_run<V: Vector, W: Vector>(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_lines::<V, W, true>(to, from, bytes) }
}

/// Copies `bytes` bytes, the whole lines of the destination `PAST` the cache or asked for ahead.
///
/// # Safety
/// As for [`copy_run`]; where it is past the cache the caller fences.
#[inline(always)]
unsafe fn copy_lines<V: Vector, W: Vector, const PAST: bool>(to: *mut u8, from: *const u8, bytes: usize) {
    let head = (to.addr().wrapping_neg() % LINE).min(bytes);
    let vector = V::LANES * LANE;
    // SAFETY: every part lies within `bytes`; stores past the cache are aligned behind the head.
    unsafe {
        if head > 0 {
            copy_run::<V, W>(to, from, head);
        }
        let mut at = head;
        while at + LINE <= bytes {
            if !PAST {
                own(to.wrapping_add(at));
            }
            for part in (0..LINE).step_by(vector) {
                let piece = V::load(from.add(at + part));
                if PAST { piece.stream(to.add(at + part)) } else { piece.store(to.add(at + part)) }
            }
            at += LINE;
        }
        if at < bytes {
            copy_run::<V, W>(to.add(at), from.add(at), bytes - at);
        }
    }
}

/// Writes `bytes` bytes that lie a line behind `slot` to `dst`, whole lines past the cache.
///
/// `continued` says that what came right before was flushed from the same slot: then the part of the first
/// line that belongs to it is still there, at the end of the slot's first line. The part of the last line is
/// kept in the same way unless this is `last`, which writes it.
///
/// # Safety
/// `slot` holds a line and `bytes` bytes behind it, which is also writable; `dst` is writable for `bytes` bytes and,
/// if `continued`, back to its line's start. Unless `last`, `bytes` is a multiple of a line.
#[inline(always)]
pub(super) unsafe fn flush_by<V: Vector>(
    slot: *mut u8,
    dst: *mut u8,
    bytes: usize,
    continued: bool,
    last: bool,
) {
    let phase = dst.addr() % LINE;
    // SAFETY: every offset is below `LINE + bytes`; what is written of `dst` lies between the start of its line
    // and its end.
    unsafe {
        let (mut from, mut to, end) = (slot.add(LINE), dst, slot.add(LINE + bytes));
        if continued {
            from = from.sub(phase);
            to = to.sub(phase);
        } else if phase != 0 {
            let head = (LINE - phase).min(bytes);
            to.copy_from_nonoverlapping(from, head);
            from = from.add(head);
            to = to.add(head);
        }
        let lines = (end.addr() - from.addr()) / LINE;
        for line in 0..lines {
            for part in (0..LINE).step_by(V::LANES * LANE) {
                V::load(from.add(line * LINE + part)).stream(to.add(line * LINE + part));
            }
        }
        from = from.add(lines * LINE);
        to = to.add(lines * LINE);
        let left = end.addr() - from.addr();
        if last {
            to.copy_from_nonoverlapping(from, left);
        } else {
            // A whole line of which that is the end, as copying a number of bytes takes a call.
            for part in (0..LINE).step_by(V::LANES * LANE) {
                V::load(slot.add(bytes + part)).store(slot.add(part));
            }
        }
    }
}

/// [`flush_by`] at an instruction-set level.
///
/// # Safety
/// As for [`flush_by`].
pub(super) unsafe fn flush(isa: Isa, slot: *mut u8, dst: *mut u8, bytes: usize, continued: bool, last: bool) {
    // SAFETY: the caller's promise; an `Isa` is the proof that the CPU has the instruction set.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        match isa.level() {
            Level::Baseline | Level::Avx2 => {
                flush_by::<std::arch::x86_64::__m128i>(slot, dst, bytes, continued, last);
            }
            Level::Avx512 | Level::Amx => avx512(slot, dst, bytes, continued, last),
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = isa;
            flush_by::<super::lanes::Portable>(slot, dst, bytes, continued, last);
        }
    }
}

/// # Safety
/// As for [`flush_by`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512(slot: *mut u8, dst: *mut u8, bytes: usize, continued: bool, last: bool) {
    // SAFETY: the caller's promise.
    unsafe { flush_by::<std::arch::x86_64::__m512i>(slot, dst, bytes, continued, last) }
}
