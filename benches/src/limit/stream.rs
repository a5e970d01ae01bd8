//! Kernels that read and write memory and do nothing else.

use super::{Range, Traffic};
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::hint::black_box;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// A way of walking through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Stores that go past the caches.
    streaming: bool,
    /// Bytes that reads are asked for ahead; 0: not.
    ahead: usize,
    /// How the operands alternate.
    walk: Walk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// A few cache lines of each operand in turn, on one page or on four at a time.
    Lines(usize),
    /// So many bytes in all, first all reads, then all writes.
    Bursts(usize),
}

impl Variant {
    /// All that are tried.
    pub fn all() -> impl Iterator<Item = Variant> {
        let walks = [Walk::Lines(1), Walk::Lines(4), Walk::Bursts(4 << 10), Walk::Bursts(16 << 10)];
        walks.into_iter().flat_map(|walk| {
            [(false, 0), (false, 1536), (true, 0), (true, 1536)].map(|(streaming, ahead)| Variant {
                streaming,
                ahead,
                walk,
            })
        })
    }
}

/// What a kernel does with its part of the memory.
///
/// # Safety
/// The ranges are live memory of this process, and those that are written nobody else's meanwhile; the CPU has the
/// instructions that the function was compiled for.
type Walker = unsafe fn(&[Range], &[Range], Variant);

/// A kernel with its memory divided among threads, so that running it costs nothing else.
pub struct Kernel {
    parts: Vec<(Vec<Range>, Vec<Range>)>,
    variant: Variant,
    walker: Walker,
}

impl Kernel {
    /// Divides the memory into so many parts.
    pub fn new(traffic: &Traffic, variant: Variant, parts: usize) -> Kernel {
        let own = |ranges: &[Range], i| ranges.iter().map(|r| part_of(*r, i, parts)).collect();
        let parts = (0..parts).map(|i| (own(&traffic.reads, i), own(&traffic.writes, i))).collect();
        Kernel { parts, variant, walker: walker() }
    }

    /// Runs it so often.
    ///
    /// # Errors
    /// Those of the thread pool.
    ///
    /// # Safety
    /// The memory is live and this process's, and nobody else writes it or uses what is written.
    pub unsafe fn run(&self, parallel: &dyn Parallel, times: usize) -> Result<()> {
        let one = |i: usize| {
            let (reads, writes) = &self.parts[i];
            // SAFETY: the caller promises the memory, `walker` the instructions; parts do not overlap.
            unsafe { (self.walker)(reads, writes, self.variant) };
        };
        for _ in 0..times {
            if let [_] = &*self.parts {
                one(0);
                continue;
            }
            parallel.parallel_for(self.parts.len(), 1, 0, &|range| {
                range.for_each(one);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Reads all of some memory: the consumer in a chain.
///
/// # Errors
/// Those of the thread pool.
///
/// # Safety
/// The range is readable memory of this process that nobody writes.
pub unsafe fn read_all(range: Range, parallel: &dyn Parallel) -> Result<()> {
    let traffic = Traffic { reads: vec![range], writes: Vec::new() };
    let variant = Variant { streaming: false, ahead: 1536, walk: Walk::Lines(1) };
    let parts = if range.1 < 1 << 16 { 1 } else { parallel.threads() };
    // SAFETY: as the caller promises.
    unsafe { Kernel::new(&traffic, variant, parts).run(parallel, 1) }
}

/// The part of a range that one of `parts` handles, in whole cache lines but for the end.
fn part_of(range: Range, part: usize, parts: usize) -> Range {
    let share = (range.1 / parts as u64) & !63;
    let start = share * part as u64;
    let len = if part + 1 == parts { range.1 - start } else { share };
    (range.0 + start, len)
}

/// The best that this CPU can run.
fn walker() -> Walker {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        unsafe fn wide(reads: &[Range], writes: &[Range], variant: Variant) {
            // SAFETY: as the caller promises.
            unsafe { walk_all::<x86::Avx512>(reads, writes, variant) };
        }
        #[target_feature(enable = "avx2")]
        unsafe fn half(reads: &[Range], writes: &[Range], variant: Variant) {
            // SAFETY: as the caller promises.
            unsafe { walk_all::<x86::Avx2>(reads, writes, variant) };
        }
        if is_x86_feature_detected!("avx512f") {
            return wide;
        }
        if is_x86_feature_detected!("avx2") {
            return half;
        }
    }
    walk_all::<Portable>
}

/// What all bytes are set to: not 0, as some CPUs save lines of zeros the way to memory, which no op's results do; and
/// an ordinary number in every dtype, should an op add to it.
const PATTERN: i8 = 0x3f;

/// Reading and writing one cache line of 64 bytes.
trait Line {
    /// What the lines that were read are folded into, so that reading them is not left out.
    type Sum: Copy;

    fn zero() -> Self::Sum;

    /// # Safety
    /// 64 readable bytes; the CPU has what the type stands for.
    unsafe fn read(from: *const u8, sum: Self::Sum) -> Self::Sum;

    /// # Safety
    /// 64 writable bytes, aligned to 64 for streaming; the CPU has what the type stands for.
    unsafe fn write(to: *mut u8, streaming: bool);

    fn prefetch(from: *const u8);

    fn fence();
}

struct Portable;

impl Line for Portable {
    type Sum = u64;

    fn zero() -> u64 {
        0
    }

    #[inline(always)]
    unsafe fn read(from: *const u8, sum: u64) -> u64 {
        // SAFETY: as the caller promises; any bytes are integers.
        let words = unsafe { from.cast::<[u64; 8]>().read_unaligned() };
        words.iter().fold(sum, |a, b| a ^ b)
    }

    #[inline(always)]
    unsafe fn write(to: *mut u8, _: bool) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<[u64; 8]>().write_unaligned([u64::from_ne_bytes([PATTERN as u8; 8]); 8]) };
    }

    #[inline(always)]
    fn prefetch(_: *const u8) {}

    #[inline(always)]
    fn fence() {}
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Line, PATTERN};
    use std::arch::x86_64::*;

    pub struct Avx512;
    pub struct Avx2;

    impl Line for Avx512 {
        type Sum = __m512i;

        #[inline(always)]
        fn zero() -> __m512i {
            // SAFETY: all bits zero is a value.
            unsafe { std::mem::zeroed() }
        }

        #[inline(always)]
        unsafe fn read(from: *const u8, sum: __m512i) -> __m512i {
            // SAFETY: as the caller promises.
            unsafe { _mm512_xor_si512(sum, _mm512_loadu_si512(from.cast())) }
        }

        #[inline(always)]
        unsafe fn write(to: *mut u8, streaming: bool) {
            // SAFETY: as the caller promises.
            unsafe {
                if streaming {
                    _mm512_stream_si512(to.cast(), _mm512_set1_epi8(PATTERN));
                } else {
                    _mm512_storeu_si512(to.cast(), _mm512_set1_epi8(PATTERN));
                }
            }
        }

        #[inline(always)]
        fn prefetch(from: *const u8) {
            // SAFETY: a prefetch of any address does nothing but hint.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: every x86-64 CPU has it.
            unsafe { _mm_sfence() };
        }
    }

    impl Line for Avx2 {
        type Sum = __m256i;

        #[inline(always)]
        fn zero() -> __m256i {
            // SAFETY: all bits zero is a value.
            unsafe { std::mem::zeroed() }
        }

        #[inline(always)]
        unsafe fn read(from: *const u8, sum: __m256i) -> __m256i {
            // SAFETY: as the caller promises.
            unsafe {
                let half = _mm256_xor_si256(sum, _mm256_loadu_si256(from.cast()));
                _mm256_xor_si256(half, _mm256_loadu_si256(from.add(32).cast()))
            }
        }

        #[inline(always)]
        unsafe fn write(to: *mut u8, streaming: bool) {
            // SAFETY: as the caller promises.
            unsafe {
                let line = _mm256_set1_epi8(PATTERN);
                if streaming {
                    _mm256_stream_si256(to.cast(), line);
                    _mm256_stream_si256(to.add(32).cast(), line);
                } else {
                    _mm256_storeu_si256(to.cast(), line);
                    _mm256_storeu_si256(to.add(32).cast(), line);
                }
            }
        }

        #[inline(always)]
        fn prefetch(from: *const u8) {
            // SAFETY: a prefetch of any address does nothing but hint.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: every x86-64 CPU has it.
            unsafe { _mm_sfence() };
        }
    }
}

fn source(address: u64) -> *const u8 {
    with_exposed_provenance(address as usize)
}

fn target(address: u64) -> *mut u8 {
    with_exposed_provenance_mut(address as usize)
}

/// The whole lines that are left of a range, and how many make a step.
#[derive(Clone, Copy)]
struct Cursor {
    at: u64,
    lines: usize,
    step: usize,
}

impl Cursor {
    fn advance(&mut self, lines: usize) {
        self.at += 64 * lines as u64;
        self.lines -= lines;
    }
}

/// Bytes of a burst where operands differ in size, so that they cannot go line by line.
const MIXED: usize = 1 << 10;

/// # Safety
/// As [`Walker`].
#[inline(always)]
unsafe fn walk_all<L: Line>(reads: &[Range], writes: &[Range], variant: Variant) {
    let mut sum = L::zero();
    // Streaming stores want whole aligned lines, and operands of a device are aligned to them.
    let streaming = variant.streaming && writes.iter().all(|r| r.0 % 64 == 0);
    let variant = Variant { streaming, ..variant };
    // SAFETY: as the caller promises; the alignment has just been checked.
    unsafe {
        sum = match (variant.walk, equal_lines(reads, writes)) {
            (Walk::Lines(pages), Some(lines)) => walk_lines::<L>(reads, writes, lines, pages, variant, sum),
            (Walk::Lines(_), None) => walk_bursts::<L>(reads, writes, MIXED, variant, sum),
            (Walk::Bursts(size), _) => walk_bursts::<L>(reads, writes, size, variant, sum),
        };
        ends(reads, writes);
    }
    if streaming {
        L::fence();
    }
    black_box(sum);
}

/// The lines of each operand, if all have as many.
fn equal_lines(reads: &[Range], writes: &[Range]) -> Option<usize> {
    let mut all = reads.iter().chain(writes).map(|r| r.1 as usize / 64);
    let first = all.next()?;
    all.all(|n| n == first).then_some(first)
}

/// The numbers of operands that most rows have are told apart at compile time.
///
/// # Safety
/// As [`Walker`]; every operand has so many lines, and streaming only where outputs are aligned to them.
#[inline(always)]
unsafe fn walk_lines<L: Line>(
    reads: &[Range],
    writes: &[Range],
    lines: usize,
    pages: usize,
    variant: Variant,
    sum: L::Sum,
) -> L::Sum {
    // SAFETY: as the caller promises.
    unsafe {
        match (reads, writes) {
            ([], [w]) => lockstep::<L, 0, 1>([], [w.0], lines, pages, variant, sum),
            ([r], []) => lockstep::<L, 1, 0>([r.0], [], lines, pages, variant, sum),
            ([r], [w]) => lockstep::<L, 1, 1>([r.0], [w.0], lines, pages, variant, sum),
            ([r, s], [w]) => lockstep::<L, 2, 1>([r.0, s.0], [w.0], lines, pages, variant, sum),
            ([r, s, t], [w]) => lockstep::<L, 3, 1>([r.0, s.0, t.0], [w.0], lines, pages, variant, sum),
            _ => walk_bursts::<L>(reads, writes, MIXED, variant, sum),
        }
    }
}

/// Four lines of each operand in turn; with more than one page, one line on each of them.
///
/// # Safety
/// As [`walk_lines`].
#[inline(always)]
unsafe fn lockstep<L: Line, const R: usize, const W: usize>(
    reads: [u64; R],
    writes: [u64; W],
    lines: usize,
    pages: usize,
    variant: Variant,
    mut sum: L::Sum,
) -> L::Sum {
    const PAGE: usize = 64;
    let (reads, writes) = (reads.map(source), writes.map(target));
    let mut block = 0;
    if pages == 1 {
        while block + 4 <= lines {
            // SAFETY: four lines from here are within all operands.
            sum = unsafe { touch::<L, R, W, 4>(reads, writes, block, 1, variant, sum) };
            block += 4;
        }
    } else {
        while block + 4 * PAGE <= lines {
            for line in block..block + PAGE {
                // SAFETY: this line of four pages from here is within all operands.
                sum = unsafe { touch::<L, R, W, 4>(reads, writes, line, PAGE, variant, sum) };
            }
            block += 4 * PAGE;
        }
    }
    for line in block..lines {
        // SAFETY: the line is within all operands.
        sum = unsafe { touch::<L, R, W, 1>(reads, writes, line, 1, variant, sum) };
    }
    sum
}

/// Reads and writes `N` lines of each operand, `apart` lines from each other.
///
/// # Safety
/// They are within all operands, and the rest is as in [`walk_lines`].
#[inline(always)]
unsafe fn touch<L: Line, const R: usize, const W: usize, const N: usize>(
    reads: [*const u8; R],
    writes: [*mut u8; W],
    line: usize,
    apart: usize,
    variant: Variant,
    mut sum: L::Sum,
) -> L::Sum {
    for r in reads {
        for i in 0..N {
            let from = r.wrapping_add(64 * (line + i * apart));
            // SAFETY: as the caller promises.
            sum = unsafe { L::read(from, sum) };
            if variant.ahead != 0 {
                L::prefetch(from.wrapping_add(variant.ahead));
            }
        }
    }
    for w in writes {
        for i in 0..N {
            // SAFETY: as the caller promises.
            unsafe { L::write(w.wrapping_add(64 * (line + i * apart)), variant.streaming) };
        }
    }
    sum
}

/// Bursts of reads and bursts of writes, in proportion to the operands' sizes.
///
/// # Safety
/// As [`walk_lines`], but operands may differ in size.
#[inline(always)]
unsafe fn walk_bursts<L: Line>(
    reads: &[Range],
    writes: &[Range],
    burst: usize,
    variant: Variant,
    mut sum: L::Sum,
) -> L::Sum {
    let total: u64 = reads.iter().chain(writes).map(|r| r.1).sum();
    let steps = (total as usize / burst).max(1);
    // Sources beyond these are read at the end, in one go; no row has as many, nor more than one output.
    const MOST: usize = 6;
    let cursors = |ranges: &[Range]| {
        let mut all = [Cursor { at: 0, lines: 0, step: 0 }; MOST];
        for (c, r) in all.iter_mut().zip(ranges) {
            let lines = r.1 as usize / 64;
            *c = Cursor { at: r.0, lines, step: lines.div_ceil(steps) };
        }
        all
    };
    let (mut sources, mut targets) = (cursors(reads), cursors(writes));
    for _ in 0..steps {
        for c in &mut sources[..reads.len().min(MOST)] {
            let n = c.step.min(c.lines);
            for line in 0..n {
                // SAFETY: so many lines are left of the operand.
                sum = unsafe { touch::<L, 1, 0, 1>([source(c.at)], [], line, 1, variant, sum) };
            }
            c.advance(n);
        }
        for c in &mut targets[..writes.len().min(MOST)] {
            let n = c.step.min(c.lines);
            for line in 0..n {
                // SAFETY: as above.
                sum = unsafe { touch::<L, 0, 1, 1>([], [target(c.at)], line, 1, variant, sum) };
            }
            c.advance(n);
        }
    }
    for r in reads.iter().skip(MOST) {
        for line in 0..r.1 as usize / 64 {
            // SAFETY: the operand's whole lines.
            sum = unsafe { touch::<L, 1, 0, 1>([source(r.0)], [], line, 1, variant, sum) };
        }
    }
    sum
}

/// What is left behind the whole lines.
///
/// # Safety
/// As [`Walker`].
unsafe fn ends(reads: &[Range], writes: &[Range]) {
    for r in reads {
        for i in r.1 & !63..r.1 {
            // SAFETY: inside the operand; the rest is as the caller promises.
            black_box(unsafe { source(r.0 + i).read() });
        }
    }
    for w in writes {
        for i in w.1 & !63..w.1 {
            // SAFETY: as above.
            unsafe { target(w.0 + i).write(PATTERN as u8) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::parallel::Serial;

    fn range(data: &[u8]) -> Range {
        (data.as_ptr().expose_provenance() as u64, data.len() as u64)
    }

    /// Every variant writes all bytes of the output and none beside it.
    #[test]
    fn all_is_written_and_nothing_else() {
        for (a, b) in [(4096, 4096), (70_001, 70_001), (300, 1200), (5, 3), (100_000, 25_000), (0, 9000)] {
            let sources = [vec![1u8; a], vec![2u8; a]];
            let reads = sources.each_ref().map(|s| range(s));
            for variant in Variant::all() {
                for count in 0..=2 {
                    let mut output = vec![0xffu8; b + 192];
                    let start = output.as_ptr().align_offset(64);
                    let address = output.as_mut_ptr().expose_provenance() as u64 + start as u64;
                    let traffic =
                        Traffic { reads: reads[..count].to_vec(), writes: vec![(address, b as u64)] };
                    // SAFETY: this test's own memory.
                    unsafe { Kernel::new(&traffic, variant, 2).run(&Serial, 2) }.unwrap();
                    let (before, rest) = output.split_at(start);
                    let (inside, after) = rest.split_at(b);
                    assert!(inside.iter().all(|x| *x == PATTERN as u8), "{variant:?} {a} {b} {count}");
                    assert!(before.iter().chain(after).all(|x| *x == 0xff), "{variant:?} {a} {b} {count}");
                }
            }
        }
    }

    #[test]
    fn parts_cover_a_range() {
        for bytes in [0u64, 1, 63, 64, 1000, 4096, 100_001] {
            for parts in 1..5 {
                let mut at = 640;
                for part in 0..parts {
                    let (start, len) = part_of((640, bytes), part, parts);
                    assert_eq!(start, at);
                    at += len;
                }
                assert_eq!(at, 640 + bytes);
            }
        }
    }
}
