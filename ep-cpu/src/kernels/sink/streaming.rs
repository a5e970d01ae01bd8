//! A sink that puts lines together and stores them past the cache.

use super::*;
use crate::isa::Level;
use crate::kernels::stream::{Halves, Parts, Store, Whole, fence};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

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
    unsafe { run::<P, Halves>(dst, producer) }
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
/// Copies of this size and up go as [`walk`](crate::kernels::stream::walk) says.
const MANY_PAGES: usize = 64 << 10;

#[repr(C, align(64))]
struct Stage([MaybeUninit<u8>; CAPACITY]);

/// Stages what it takes, at the same places in lines as in the output.
///
/// Long pieces are stored from an address in a variable of its own: where it comes from here for each line, gathers of rows of
/// 2 KiB take 1.1 to 1.2 times as long.
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
            let (base, mut done) = (self.base, 0);
            if lines >= MANY_PAGES {
                L::copy(base, src, lines);
                done = lines;
            }
            while done + AHEAD < lines {
                prefetch(src.wrapping_add(done + AHEAD), 1);
                L::line(base.add(done), src.add(done));
                done += LINE;
            }
            while done < lines {
                L::line(base.add(done), src.add(done));
                done += LINE;
            }
            self.base = base.add(lines);
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
            let (base, mut done) = (self.base, 0);
            while done < lines {
                L::line(base.add(done), line);
                done += LINE;
            }
            self.base = base.add(lines);
            let tail = bytes - head - lines;
            copy(self.stage, line, tail);
            self.len = tail;
        }
    }
}
