//! Writing an output once, from front to back: what gathers, pads and their like are made of.
//!
//! Such a kernel is a [`Producer`]: it hands bytes, repeated patterns and computed blocks to a [`Sink`] in the
//! order of the output. Small outputs are written where they belong. Outputs that no cache holds are put
//! together in a stage in the first-level cache and leave it in whole lines by streaming stores, however
//! narrow or misaligned the pieces are.

use crate::isa::{Body, Isa};
use crate::kernels::raw;
use crate::kernels::stream::{STREAM_BYTES, reaches};
use std::mem::MaybeUninit;

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
                ends::<LINE>(dst.add(at), src.add(at), bytes - at);
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
    isa.dispatch(Plain { dst, producer });
}

/// Made only under the promises of [`write`].
struct Plain<P> {
    dst: *mut u8,
    producer: P,
}

impl<P: Producer> Body for Plain<P> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: the promises of `write`.
        unsafe {
            let written = self.producer.written();
            let end = if written >= OWN_BYTES { self.dst.add(written) } else { self.dst };
            self.producer.run(&mut Direct { at: self.dst, end });
        }
    }
}

/// Writes to the next address of the output.
struct Direct {
    at: *mut u8,
    /// What lies before it is asked for ahead of long copies.
    end: *mut u8,
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
                copy_owning(self.at, src, bytes, OWN_AHEAD.min(left - bytes));
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

#[cfg(target_arch = "x86_64")]
mod streaming {
    use super::*;
    use crate::isa::Level;
    use crate::kernels::stream::{Parts, Store, Whole, fence};
    use std::marker::PhantomData;

    pub(super) unsafe fn write<P: Producer>(isa: Isa, dst: *mut u8, producer: P) {
        // SAFETY: the caller's promises; an `Isa` of a level exists only if the CPU has its features.
        unsafe {
            match isa.level() {
                Level::Baseline => run::<P, Parts>(dst, producer),
                Level::Avx2 => run_avx2(dst, producer),
                Level::Avx512 | Level::Amx => run_avx512(dst, producer),
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn run_avx2<P: Producer>(dst: *mut u8, producer: P) {
        // SAFETY: the caller's promises.
        unsafe { run::<P, Parts>(dst, producer) }
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd")]
    unsafe fn run_avx512<P: Producer>(dst: *mut u8, producer: P) {
        // SAFETY: the caller's promises.
        unsafe { run::<P, Whole>(dst, producer) }
    }

    #[inline(always)]
    unsafe fn run<P: Producer, L: Store>(dst: *mut u8, producer: P) {
        let skip = dst.addr() % LINE;
        let mut stage = Stage([MaybeUninit::uninit(); CAPACITY]);
        let mut sink = Streaming::<L> {
            stage: stage.0.as_mut_ptr().cast(),
            base: dst.wrapping_sub(skip),
            skip,
            done: 0,
            len: skip,
            store: PhantomData,
        };
        // SAFETY: the caller's promises.
        unsafe {
            producer.run(&mut sink);
            sink.finish();
        }
    }

    /// Bytes that stay in the stage for a while before they are stored, so that they are in the cache by then:
    /// a line read while parts of it still wait to be written there would have to wait for all stores before.
    const LAG: usize = 1024;
    /// Bytes stored at once at least.
    const BATCH: usize = 4 * LINE;
    /// Little more than that and the room, as what the stage takes of the first-level cache is missing elsewhere.
    const CAPACITY: usize = LAG + BATCH + ROOM;
    /// Longer fills are stored directly.
    const LONG_FILL: usize = 1024;
    /// Bytes prefetched ahead in a long copy.
    const AHEAD: usize = 2048;
    /// Copies of this size and up go along several pages at once.
    const MANY_PAGES: usize = 64 << 10;

    #[repr(C, align(64))]
    struct Stage([MaybeUninit<u8>; CAPACITY]);

    /// Stages what it takes, at the same places in lines as in the output.
    struct Streaming<L> {
        stage: *mut u8,
        /// Where in the output the stage starts, a line.
        base: *mut u8,
        /// Bytes of the first line before the output; 0 once that line is stored.
        skip: usize,
        /// Bytes of the stage that are stored, whole lines.
        done: usize,
        /// Bytes in the stage.
        len: usize,
        store: PhantomData<L>,
    }

    impl<L: Store> Streaming<L> {
        /// Stores the whole lines of the first `len` bytes of the stage.
        ///
        /// # Safety
        /// All that was taken is part of the output.
        #[inline(always)]
        unsafe fn drain(&mut self, len: usize) {
            let end = len - len % LINE;
            // SAFETY: lines that are full are part of the output, from `skip` in the first.
            unsafe {
                if self.skip > 0 && end > 0 {
                    copy(self.base.add(self.skip), self.stage.add(self.skip), LINE - self.skip);
                    (self.skip, self.done) = (0, LINE);
                }
                while self.done < end {
                    L::line(self.base.add(self.done), self.stage.add(self.done));
                    self.done += LINE;
                }
            }
        }

        /// Makes room at the end of the stage.
        ///
        /// # Safety
        /// All that was taken is part of the output.
        #[cold]
        #[inline(never)]
        unsafe fn restart(&mut self) {
            // SAFETY: what is not stored is moved within the stage; the output goes on where that was.
            unsafe {
                self.stage.copy_from(self.stage.add(self.done), self.len - self.done);
                self.base = self.base.add(self.done);
            }
            self.len -= self.done;
            self.done = 0;
        }

        /// Stores all that is in the stage, the last bytes with ordinary stores.
        ///
        /// # Safety
        /// All that was taken is part of the output.
        unsafe fn finish(&mut self) {
            // SAFETY: what is left is part of one line of the output.
            unsafe {
                self.drain(self.len);
                let start = self.done + self.skip;
                copy(self.base.add(start), self.stage.add(start), self.len - start);
            }
            fence();
        }

        /// Fills the line that is begun with what `write` writes for it, of `bytes` bytes to come, and stores all;
        /// returns how many bytes that took. The next line of the output is `base` then.
        ///
        /// # Safety
        /// More bytes are to come than the line lacks, all part of the output.
        #[inline(always)]
        unsafe fn complete(&mut self, write: impl FnOnce(*mut u8, usize)) -> usize {
            let head = self.len.wrapping_neg() % LINE;
            // SAFETY: the caller's promise; a line more fits the stage.
            unsafe {
                write(self.room(head), head);
                self.len += head;
                self.drain(self.len);
                self.base = self.base.add(self.len);
            }
            (self.len, self.done) = (0, 0);
            head
        }
    }

    impl<L: Store> Sink for Streaming<L> {
        const STREAMS: bool = true;

        #[inline(always)]
        unsafe fn room(&mut self, bytes: usize) -> *mut u8 {
            // SAFETY: the output is as long as what was taken; there is room for `bytes` after a restart, as less than
            // the lag and a batch is left then.
            unsafe {
                if self.len - self.done >= LAG + BATCH {
                    self.drain(self.len - LAG);
                }
                if self.len + bytes > CAPACITY {
                    self.restart();
                }
                self.stage.add(self.len)
            }
        }

        #[inline(always)]
        unsafe fn advance(&mut self, bytes: usize) {
            self.len += bytes;
        }

        #[inline(always)]
        unsafe fn put(&mut self, src: *const u8, bytes: usize) {
            // SAFETY: the caller's promise; the parts are one after the other within `bytes`, and lines are stored
            // directly when the stage is empty.
            unsafe {
                let in_lines = self.len.is_multiple_of(LINE) && bytes.is_multiple_of(LINE);
                if bytes <= ROOM && !in_lines {
                    copy(self.room(bytes), src, bytes);
                    return self.advance(bytes);
                }
                let head = self.complete(|to, head| copy(to, src, head));
                let (src, lines) = (src.add(head), (bytes - head) / LINE * LINE);
                let mut done = 0;
                if lines >= MANY_PAGES {
                    L::copy(self.base, src, lines);
                    done = lines;
                }
                while done + AHEAD < lines {
                    prefetch(src.wrapping_add(done + AHEAD), 1);
                    L::line(self.base.add(done), src.add(done));
                    done += LINE;
                }
                while done < lines {
                    L::line(self.base.add(done), src.add(done));
                    done += LINE;
                }
                self.base = self.base.add(lines);
                let tail = bytes - head - lines;
                copy(self.stage, src.add(lines), tail);
                self.len = tail;
            }
        }

        #[inline(always)]
        unsafe fn fill(&mut self, pattern: &Pattern, bytes: usize) {
            // SAFETY: as for `put`.
            unsafe {
                if bytes <= LONG_FILL {
                    pattern.write(self.room(bytes), bytes);
                    return self.advance(bytes);
                }
                let head = self.complete(|to, head| pattern.write(to, head));
                let (line, lines) = (pattern.line(head), (bytes - head) / LINE * LINE);
                let mut done = 0;
                while done < lines {
                    L::line(self.base.add(done), line);
                    done += LINE;
                }
                self.base = self.base.add(lines);
                let tail = bytes - head - lines;
                copy(self.stage, line, tail);
                self.len = tail;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kernels::check::Buffer;
    use crate::kernels::testing::Rng;
    use std::cell::Cell;

    thread_local! {
        /// What [`streams`] says on this thread, if set.
        pub(super) static FORCED: Cell<Option<bool>> = const { Cell::new(None) };
    }

    /// Calls `test` on every instruction set, with plain and with streaming stores at every size.
    pub(in crate::kernels) fn everywhere(mut test: impl FnMut(Isa)) {
        for streaming in [false, true] {
            FORCED.set(Some(streaming));
            for isa in Isa::available() {
                test(isa);
            }
        }
        FORCED.set(None);
    }

    enum Piece {
        Put(Vec<u8>),
        Fill([u8; 16], usize, usize),
        Room(Vec<u8>),
    }

    struct Pieces<'a>(&'a [Piece]);

    impl Producer for Pieces<'_> {
        #[inline(always)]
        unsafe fn run<S: Sink>(self, sink: &mut S) {
            for piece in self.0 {
                // SAFETY: the test's output has room for all pieces.
                unsafe {
                    match piece {
                        Piece::Put(bytes) => sink.put(bytes.as_ptr(), bytes.len()),
                        Piece::Fill(value, size, n) => sink.fill(&Pattern::new(value, *size), *n),
                        Piece::Room(bytes) => {
                            sink.room(bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                            sink.advance(bytes.len());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_of_any_size_come_out_in_order() {
        let mut rng = Rng::new();
        for round in 0..400 {
            let mut pieces = Vec::new();
            let mut want = Vec::new();
            for _ in 0..rng.next() % 20 {
                let most = [9, 70, 600, 10_000][(rng.next() % 4) as usize];
                let n = (rng.next() % most) as usize;
                match rng.next() % 3 {
                    0 => {
                        let n = if round % 2 == 0 { n.next_multiple_of(LINE) } else { n };
                        let bytes = rng.bytes(n);
                        want.extend_from_slice(&bytes);
                        pieces.push(Piece::Put(bytes));
                    }
                    1 => {
                        let size = 1 << (rng.next() % 5);
                        let value: [u8; 16] = rng.bytes(16).try_into().unwrap();
                        want.extend((0..n).map(|i| value[i % size]));
                        pieces.push(Piece::Fill(value, size, n));
                    }
                    _ => {
                        let bytes = rng.bytes(n.min(ROOM));
                        want.extend_from_slice(&bytes);
                        pieces.push(Piece::Room(bytes));
                    }
                }
            }
            for isa in Isa::available() {
                for streaming in [false, true] {
                    let mut dst = Buffer::poisoned(want.len(), round % 16 + 1);
                    // SAFETY: the buffer has room for all pieces.
                    unsafe { write(isa, streaming, dst.ptr(), Pieces(&pieces)) };
                    assert!(dst.into_bytes() == want, "{isa}, streaming: {streaming}, {} bytes", want.len());
                }
            }
        }
    }

    #[test]
    fn copies_of_any_size() {
        let src = Rng::new().bytes(2000);
        for n in 0..1200 {
            let mut dst = Buffer::poisoned(n, n % 16 + 1);
            // SAFETY: both sides have `n` bytes.
            unsafe { copy(dst.ptr(), src[n % 7..].as_ptr(), n) };
            assert!(dst.into_bytes() == src[n % 7..][..n], "{n}");
        }
    }
}
