//! Writing an output once, from front to back: what gathers, pads and their like are made of.
//!
//! Such a kernel is a [`Producer`]: it hands bytes, repeated patterns and computed blocks to a [`Sink`] in the
//! order of the output. Small outputs are written where they belong. Outputs that no cache holds are put
//! together in a stage in the first-level cache and leave it in whole lines by streaming stores, however
//! narrow or misaligned the pieces are.

#[cfg(target_arch = "x86_64")]
mod streaming;
#[cfg(test)]
pub(super) mod tests;

use crate::isa::{Body, Isa};
use crate::kernels::raw;
use crate::kernels::stream::{STREAM_BYTES, reaches};

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// The most bytes that [`Sink::room`] has room for.
pub(super) const ROOM: usize = 4096;
/// Pieces of a tensor given to threads start at multiples of this many bytes, so that few share a line, and at
/// the start of an element of any size.
pub(super) const PIECE: usize = 4096;
/// Bytes of what is read from which it does not stay in a core's own cache, so that prefetching pays.
pub(super) const FAR_BYTES: usize = 1 << 20;
/// Longer pieces are copied by the library.
const SHORT: usize = 2048;

/// Whether an output of `written` bytes, of which `read` bytes are made, is streamed.
pub(super) fn streams(written: usize, read: usize) -> bool {
    #[cfg(test)]
    if let Some(forced) = tests::FORCED.get() {
        return forced;
    }
    reaches(written, STREAM_BYTES)
        || written >= STREAM_BYTES / 4 && written.saturating_add(read) >= 2 * STREAM_BYTES
}

/// Asks for the lines of `bytes` bytes at `at`, which need not be readable.
#[inline(always)]
pub(super) fn prefetch(at: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64; a prefetch accesses nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, bytes);
}

/// The same, but only into second-level cache: streaming stores compete for what waits between it and the first.
#[inline(always)]
pub(super) fn prefetch_l2(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        raw::prefetch_l2(at.wrapping_add(line));
    }
}

/// Half a line, in a register: arrays of a line's bytes that are read before others are written go by way of the stack.
#[cfg(target_arch = "x86_64")]
type Half = std::arch::x86_64::__m256i;
#[cfg(not(target_arch = "x86_64"))]
type Half = [u128; 2];

/// Copies `bytes` bytes without a call where they are few.
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes` bytes; they do not overlap.
#[inline(always)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
    /// Copies the first and the last `N` of `bytes` bytes, which together are all.
    #[inline(always)]
    unsafe fn ends<const N: usize>(dst: *mut u8, src: *const u8, bytes: usize) {
        let last = bytes - N;
        // SAFETY: the caller has `N <= bytes`; arrays of bytes need no alignment.
        unsafe {
            let (head, tail) = (src.cast::<[u8; N]>().read(), src.add(last).cast::<[u8; N]>().read());
            dst.cast::<[u8; N]>().write(head);
            dst.add(last).cast::<[u8; N]>().write(tail);
        }
    }
    // SAFETY: each arm touches bytes below `bytes` only.
    unsafe {
        match bytes {
            0 => {}
            1 => dst.write(src.read()),
            2..4 => ends::<2>(dst, src, bytes),
            4..8 => ends::<4>(dst, src, bytes),
            8..16 => ends::<8>(dst, src, bytes),
            16..32 => ends::<16>(dst, src, bytes),
            32..64 => ends::<32>(dst, src, bytes),
            64..=SHORT => {
                let mut at = 0;
                while at + 2 * LINE <= bytes {
                    dst.add(at).cast::<[u8; LINE]>().write(src.add(at).cast::<[u8; LINE]>().read());
                    at += LINE;
                }
                let (to, from) = (dst.add(at).cast::<Half>(), src.add(at).cast::<Half>());
                let last = bytes - at - LINE;
                let (to_last, from_last) = (to.byte_add(last), from.byte_add(last));
                let first = (from.read_unaligned(), from.add(1).read_unaligned());
                let second = (from_last.read_unaligned(), from_last.add(1).read_unaligned());
                to.write_unaligned(first.0);
                to.add(1).write_unaligned(first.1);
                to_last.write_unaligned(second.0);
                to_last.add(1).write_unaligned(second.1);
            }
            _ => dst.copy_from_nonoverlapping(src, bytes),
        }
    }
}

/// A value repeated often enough to read a line of it from any of its bytes on.
#[repr(C, align(64))]
pub(super) struct Pattern([u8; LINE + 16]);

impl Pattern {
    /// Repeats the first `size` bytes, a power of two of at most 16.
    pub(super) fn new(value: &[u8; 16], size: usize) -> Pattern {
        Pattern(std::array::from_fn(|i| value[i % size]))
    }

    /// Repeats the element of `size` bytes at `at`.
    ///
    /// # Safety
    /// It is readable.
    pub(super) unsafe fn read(at: *const u8, size: usize) -> Pattern {
        let mut value = [0; 16];
        // SAFETY: the caller's promise; no element is larger.
        unsafe { value.as_mut_ptr().copy_from_nonoverlapping(at, size) };
        Pattern::new(&value, size)
    }

    /// A line that starts `offset` bytes into the repetition.
    #[inline(always)]
    pub(super) fn line(&self, offset: usize) -> *const u8 {
        self.0[offset % 16..].as_ptr()
    }

    /// Writes `bytes` bytes of it with ordinary stores.
    ///
    /// # Safety
    /// `dst` is writable for `bytes` bytes.
    #[inline(always)]
    unsafe fn write(&self, dst: *mut u8, bytes: usize) {
        let mut at = 0;
        // SAFETY: whole lines within `bytes`, then what is left; a line of the pattern is readable from
        // any offset, and in both cases `at` is a multiple of the repetition.
        unsafe {
            while at + LINE <= bytes {
                dst.add(at).cast::<[u8; LINE]>().write(self.line(0).cast::<[u8; LINE]>().read());
                at += LINE;
            }
            copy(dst.add(at), self.line(0), bytes - at);
        }
    }
}

/// Takes an output in order.
pub(super) trait Sink {
    /// Whether the output goes past the cache.
    const STREAMS: bool;

    /// An address for the next bytes of the output, at most [`ROOM`], which [`Sink::advance`] then takes.
    ///
    /// # Safety
    /// The output has `bytes` bytes left.
    unsafe fn room(&mut self, bytes: usize) -> *mut u8;

    /// Takes bytes that were written to the last [`Sink::room`].
    ///
    /// # Safety
    /// No more than there was room for, and all written.
    unsafe fn advance(&mut self, bytes: usize);

    /// Takes a copy.
    ///
    /// # Safety
    /// The output has `bytes` bytes left, `src` is readable for as many and no part of the output.
    unsafe fn put(&mut self, src: *const u8, bytes: usize);

    /// Takes a repetition, from its start.
    ///
    /// # Safety
    /// The output has `bytes` bytes left.
    unsafe fn fill(&mut self, pattern: &Pattern, bytes: usize);
}

/// Something that makes an output from front to back.
pub(super) trait Producer {
    /// Makes it. To be compiled for an instruction set, this must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The sink's output has the bytes that this makes.
    unsafe fn run<S: Sink>(self, sink: &mut S);

    /// Bytes that it makes; 0 where it makes no long copies, which want to know.
    fn written(&self) -> usize {
        0
    }
}

/// Runs `producer` on the output at `dst`, with streaming stores if asked, which are complete on return.
///
/// # Safety
/// `dst` is writable for all that the producer makes and the safety of its own run holds.
#[inline]
pub(super) unsafe fn write<P: Producer>(isa: Isa, streaming: bool, dst: *mut u8, producer: P) {
    #[cfg(target_arch = "x86_64")]
    if streaming {
        // SAFETY: the caller's promise; an `Isa` is the proof that the CPU has its level.
        return unsafe { streaming::write(isa, dst, producer) };
    }
    let _ = streaming;
    isa.dispatch(Plain { dst, producer, isa });
}

/// Made only under the promises of [`write`].
struct Plain<P> {
    dst: *mut u8,
    producer: P,
    isa: Isa,
}

impl<P: Producer> Body for Plain<P> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: the promises of `write`.
        unsafe {
            let written = self.producer.written();
            let end = if written >= OWN_BYTES { self.dst.add(written) } else { self.dst };
            self.producer.run(&mut Direct { at: self.dst, end, isa: self.isa });
        }
    }
}

/// Writes to the next address of the output.
struct Direct {
    at: *mut u8,
    /// What lies before it is asked for ahead of long copies; the start, where nothing is.
    end: *mut u8,
    isa: Isa,
}

/// Bytes of a task's output from which little of it is in second-level cache.
const OWN_BYTES: usize = 512 << 10;
/// Bytes of copies that ask for what they will write, and how far ahead.
const OWN_COPY: usize = 1 << 10;
const OWN_AHEAD: usize = 4 << 10;

/// Copies `bytes` bytes, asking for lines `ahead` bytes further on to be written: else each store waits for its line
/// behind those that are read.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn copy_owning(dst: *mut u8, src: *const u8, bytes: usize, ahead: usize) {
    const STEP: usize = 4 * LINE;
    let mut at = 0;
    // SAFETY: each part is within `bytes`.
    unsafe {
        while at + STEP <= bytes {
            for line in (0..STEP).step_by(LINE) {
                raw::prefetch_to_write(dst.wrapping_add(at + ahead + line));
            }
            for line in (at..at + STEP).step_by(LINE) {
                dst.add(line).cast::<[u8; LINE]>().write(src.add(line).cast::<[u8; LINE]>().read());
            }
            at += STEP;
        }
        copy(dst.add(at), src.add(at), bytes - at);
    }
}

/// Made only under the promises of [`copy_owning`].
struct Owning {
    dst: *mut u8,
    src: *const u8,
    bytes: usize,
    ahead: usize,
}

impl Body for Owning {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: what it was made under.
        unsafe { copy_owning(self.dst, self.src, self.bytes, self.ahead) }
    }
}

impl Direct {
    /// Not inlined, so that short rows have a short loop.
    ///
    /// # Safety
    /// As for [`Sink::put`].
    #[inline(never)]
    unsafe fn put_long(&mut self, src: *const u8, bytes: usize) {
        // None are asked for behind the end, which may be another task's.
        let left = self.end.addr().saturating_sub(self.at.addr());
        // SAFETY: the caller's promise.
        unsafe {
            if left > bytes {
                let ahead = OWN_AHEAD.min(left - bytes);
                self.isa.dispatch(Owning { dst: self.at, src, bytes, ahead });
            } else {
                copy(self.at, src, bytes);
            }
        }
    }
}

impl Sink for Direct {
    const STREAMS: bool = false;

    #[inline(always)]
    unsafe fn room(&mut self, _: usize) -> *mut u8 {
        self.at
    }

    #[inline(always)]
    unsafe fn advance(&mut self, bytes: usize) {
        // SAFETY: the bytes were within the output.
        self.at = unsafe { self.at.add(bytes) };
    }

    #[inline(always)]
    unsafe fn put(&mut self, src: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if bytes >= OWN_COPY {
                self.put_long(src, bytes);
            } else {
                copy(self.at, src, bytes);
            }
            self.advance(bytes);
        }
    }

    #[inline(always)]
    unsafe fn fill(&mut self, pattern: &Pattern, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            pattern.write(self.at, bytes);
            self.advance(bytes);
        }
    }
}
