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
    /// One cache line of each operand in turn, on so many pages at a time.
    Lines(usize),
    /// So many bytes in all, first all reads, then all writes.
    Bursts(usize),
}

impl Variant {
    /// All that are tried.
    pub fn all() -> impl Iterator<Item = Variant> {
        let walks = [Walk::Lines(1), Walk::Lines(4), Walk::Bursts(2 << 10), Walk::Bursts(16 << 10)];
        walks.into_iter().flat_map(|walk| {
            [(false, 0), (false, 1536), (true, 0), (true, 1536)].map(|(streaming, ahead)| Variant {
                streaming,
                ahead,
                walk,
            })
        })
    }
}

/// Runs a kernel so often; `threads` is the most that take part, 0 for all.
///
/// # Errors
/// Those of the thread pool.
pub fn run(
    traffic: &Traffic,
    variant: Variant,
    threads: usize,
    parallel: &dyn Parallel,
    times: usize,
) -> Result<()> {
    let parts = if threads == 0 { parallel.threads() } else { threads };
    for _ in 0..times {
        if parts == 1 {
            run_part(traffic, variant, 0, 1);
            continue;
        }
        parallel.parallel_for(parts, 1, threads, &|range| {
            range.for_each(|i| run_part(traffic, variant, i, parts));
            Ok(())
        })?;
    }
    Ok(())
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
    let variant = Variant { streaming: false, ahead: 1536, walk: Walk::Bursts(16 << 10) };
    run(&traffic, variant, if range.1 < 1 << 16 { 1 } else { 0 }, parallel, 1)
}

/// The part of a range that one of `parts` handles, in whole cache lines but for the end.
fn part_of(range: Range, part: usize, parts: usize) -> Range {
    let share = range.1 / parts as u64 & !63;
    let start = share * part as u64;
    let len = if part + 1 == parts { range.1 - start } else { share };
    (range.0 + start, len)
}

fn run_part(traffic: &Traffic, variant: Variant, part: usize, parts: usize) {
    let own = |ranges: &[Range]| ranges.iter().map(|r| part_of(*r, part, parts)).collect::<Vec<_>>();
    let (reads, writes) = (own(&traffic.reads), own(&traffic.writes));
    #[cfg(target_arch = "x86_64")]
    {
        use x86::{Avx2, Avx512};
        if is_x86_feature_detected!("avx512f") {
            #[target_feature(enable = "avx512f")]
            fn walk(reads: &[Range], writes: &[Range], variant: Variant) {
                walk_all::<Avx512>(reads, writes, variant);
            }
            // SAFETY: the feature has just been detected.
            return unsafe { walk(&reads, &writes, variant) };
        }
        if is_x86_feature_detected!("avx2") {
            #[target_feature(enable = "avx2")]
            fn walk(reads: &[Range], writes: &[Range], variant: Variant) {
                walk_all::<Avx2>(reads, writes, variant);
            }
            // SAFETY: the feature has just been detected.
            return unsafe { walk(&reads, &writes, variant) };
        }
    }
    walk_all::<Portable>(&reads, &writes, variant);
}

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
        unsafe { to.cast::<[u64; 8]>().write_unaligned([0; 8]) };
    }

    #[inline(always)]
    fn prefetch(_: *const u8) {}

    #[inline(always)]
    fn fence() {}
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Line;
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
                    _mm512_stream_si512(to.cast(), _mm512_setzero_si512());
                } else {
                    _mm512_storeu_si512(to.cast(), _mm512_setzero_si512());
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
                let zero = _mm256_setzero_si256();
                if streaming {
                    _mm256_stream_si256(to.cast(), zero);
                    _mm256_stream_si256(to.add(32).cast(), zero);
                } else {
                    _mm256_storeu_si256(to.cast(), zero);
                    _mm256_storeu_si256(to.add(32).cast(), zero);
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

/// Whole lines of a range, and how far one step goes in it.
struct Cursor {
    at: u64,
    lines: usize,
    step: usize,
}

#[inline(always)]
fn walk_all<L: Line>(reads: &[Range], writes: &[Range], variant: Variant) {
    let mut sum = L::zero();
    // Streaming stores want whole aligned lines, and operands of a device are aligned to them.
    let streaming = variant.streaming && writes.iter().all(|r| r.0 % 64 == 0);
    match (variant.walk, reads, writes) {
        (Walk::Lines(pages), _, _) if equal_steps(reads, writes).is_some() => {
            let lines = equal_steps(reads, writes).unwrap_or(0);
            sum = walk_lines::<L>(reads, writes, lines, pages, Variant { streaming, ..variant }, sum);
        }
        (Walk::Lines(_), ..) => sum = walk_bursts::<L>(reads, writes, 4 << 10, streaming, variant.ahead, sum),
        (Walk::Bursts(size), ..) => {
            sum = walk_bursts::<L>(reads, writes, size, streaming, variant.ahead, sum)
        }
    }
    ends::<L>(reads, writes);
    if streaming {
        L::fence();
    }
    black_box(sum);
}

/// The lines of each operand, if all have as many.
fn equal_steps(reads: &[Range], writes: &[Range]) -> Option<usize> {
    let mut all = reads.iter().chain(writes).map(|r| r.1 as usize / 64);
    let first = all.next()?;
    all.all(|n| n == first).then_some(first)
}

/// The fewest operands, in the shapes that most rows have, are told apart at compile time.
#[inline(always)]
fn walk_lines<L: Line>(
    reads: &[Range],
    writes: &[Range],
    lines: usize,
    pages: usize,
    variant: Variant,
    sum: L::Sum,
) -> L::Sum {
    match (reads, writes) {
        ([], [w]) => lockstep::<L, 0, 1>([], [w.0], lines, pages, variant, sum),
        ([r], []) => lockstep::<L, 1, 0>([r.0], [], lines, pages, variant, sum),
        ([r], [w]) => lockstep::<L, 1, 1>([r.0], [w.0], lines, pages, variant, sum),
        ([r, s], [w]) => lockstep::<L, 2, 1>([r.0, s.0], [w.0], lines, pages, variant, sum),
        ([r, s, t], [w]) => lockstep::<L, 3, 1>([r.0, s.0, t.0], [w.0], lines, pages, variant, sum),
        _ => walk_bursts::<L>(reads, writes, 4 << 10, variant.streaming, variant.ahead, sum),
    }
}

/// One line of each operand in turn, alternating between `pages` places that are a page apart.
#[inline(always)]
fn lockstep<L: Line, const R: usize, const W: usize>(
    reads: [u64; R],
    writes: [u64; W],
    lines: usize,
    pages: usize,
    variant: Variant,
    mut sum: L::Sum,
) -> L::Sum {
    const PAGE: usize = 64;
    let (reads, writes) = (reads.map(source), writes.map(target));
    let whole = if pages == 1 { 0 } else { lines / (PAGE * pages) * (PAGE * pages) };
    let mut touch = |line: usize| {
        for r in reads {
            // SAFETY: `line` is below `lines`, the whole lines of every operand, all of which are live; the prefetch
            // only hints. The caller has checked for the instructions.
            sum = unsafe { L::read(r.add(64 * line), sum) };
            if variant.ahead != 0 {
                L::prefetch(r.wrapping_add(64 * line + variant.ahead));
            }
        }
        for w in writes {
            // SAFETY: as above; whoever chose streaming has checked the alignment.
            unsafe { L::write(w.add(64 * line), variant.streaming) };
        }
    };
    let mut block = 0;
    while block < whole {
        for line in 0..PAGE {
            for page in 0..pages {
                touch(block + PAGE * page + line);
            }
        }
        block += PAGE * pages;
    }
    for line in whole..lines {
        touch(line);
    }
    sum
}

/// Bursts of reads and bursts of writes, in proportion to the operands' sizes.
#[inline(always)]
fn walk_bursts<L: Line>(
    reads: &[Range],
    writes: &[Range],
    burst: usize,
    streaming: bool,
    ahead: usize,
    mut sum: L::Sum,
) -> L::Sum {
    let total: u64 = reads.iter().chain(writes).map(|r| r.1).sum();
    let steps = (total as usize / burst).max(1);
    let cursor = |r: &Range| {
        let lines = r.1 as usize / 64;
        Cursor { at: r.0, lines, step: lines.div_ceil(steps) }
    };
    let mut reads: Vec<Cursor> = reads.iter().map(cursor).collect();
    let mut writes: Vec<Cursor> = writes.iter().map(cursor).collect();
    for _ in 0..steps {
        for r in &mut reads {
            let n = r.step.min(r.lines);
            for line in 0..n {
                let from = source(r.at).wrapping_add(64 * line);
                // SAFETY: within the operand's whole lines, all of which are live.
                sum = unsafe { L::read(from, sum) };
                if ahead != 0 {
                    L::prefetch(from.wrapping_add(ahead));
                }
            }
            r.at += 64 * n as u64;
            r.lines -= n;
        }
        for w in &mut writes {
            let n = w.step.min(w.lines);
            for line in 0..n {
                // SAFETY: within the operand's whole lines; `walk_all` has checked the alignment.
                unsafe { L::write(target(w.at).add(64 * line), streaming) };
            }
            w.at += 64 * n as u64;
            w.lines -= n;
        }
    }
    sum
}

/// What is left behind the whole lines.
fn ends<L: Line>(reads: &[Range], writes: &[Range]) {
    for r in reads {
        for i in r.1 & !63..r.1 {
            // SAFETY: inside the operand, which is live.
            black_box(unsafe { source(r.0 + i).read() });
        }
    }
    for w in writes {
        for i in w.1 & !63..w.1 {
            // SAFETY: inside the operand, which is live and this call's to write.
            unsafe { target(w.0 + i).write(0) };
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
                    run(&traffic, variant, 1, &Serial, 2).unwrap();
                    let (before, rest) = output.split_at(start);
                    let (inside, after) = rest.split_at(b);
                    assert!(inside.iter().all(|x| *x == 0), "{variant:?} {a} {b} {count}");
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
