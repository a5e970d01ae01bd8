//! What the tests of several kernels share.

use super::lines::LINE;
use super::stream;
use super::transpose::{Matrix, Transpose};
use ep_core::parallel::{Parallel, Task};
use ep_core::{DType, Result};
use half::{bf16, f16};
use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Splits for real, over this many threads of its own, into the smallest chunks allowed.
pub(crate) struct Threads(pub(crate) usize);

// SAFETY: each start is drawn once by one thread, a range ends where the next one starts or at `n`, and the scope joins
// the threads; without an error all starts below `n` are drawn.
unsafe impl Parallel for Threads {
    fn parallel_for(&self, n: usize, grain: usize, max_threads: usize, task: &Task<'_>) -> Result<()> {
        let grain = grain.max(1);
        let chunks = n.div_ceil(grain);
        let threads = if max_threads == 0 { self.0 } else { self.0.min(max_threads) };
        let next = AtomicUsize::new(0);
        let error = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(chunks) {
                scope.spawn(|| {
                    loop {
                        let start = next.fetch_add(1, Ordering::Relaxed) * grain;
                        if start >= n || error.lock().unwrap().is_some() {
                            break;
                        }
                        if let Err(e) = task(start..(start + grain).min(n)) {
                            error.lock().unwrap().get_or_insert(e);
                        }
                    }
                });
            }
        });
        error.into_inner().unwrap().map_or(Ok(()), Err)
    }

    fn threads(&self) -> usize {
        self.0
    }
}

/// Set to a number, tests draw what they drew when they printed it.
const SEED: &str = "EP_TEST_SEED";

thread_local! {
    /// The seed of this test, which has a thread of its own, and how many generators it has made. Printed once:
    /// output is shown where a test fails.
    static DRAWN: Cell<(u64, u64)> = Cell::new({
        let fresh = || RandomState::new().build_hasher().finish();
        let seed = std::env::var(SEED).map_or_else(|_| fresh(), |seed| seed.parse().expect(SEED));
        println!("{SEED}={seed} repeats this test's random numbers");
        (seed, 0)
    });
}

/// Random numbers, other ones in each run and from each generator of a test.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new() -> Self {
        let (seed, made) = DRAWN.get();
        DRAWN.set((seed, made + 1));
        let mut apart = Self(seed ^ made.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(apart.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut v: Vec<u8> = (0..n.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        v.truncate(n);
        v
    }

    /// Uniform in `-1.0..1.0`.
    pub(crate) fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

const MARGIN: usize = 64;
const MARGIN_BYTE: u8 = 0xa5;

/// A poisoned output of plain data between margins that notice a write past either end.
pub(crate) struct Guarded<T> {
    data: Vec<T>,
    len: usize,
}

impl<T: Copy> Guarded<T> {
    pub(crate) fn new(len: usize) -> Self {
        let mut data = Vec::with_capacity(len + 2 * MARGIN);
        // SAFETY: the capacity is there, and the tests use numbers only, of which any bytes are valid.
        unsafe {
            std::ptr::write_bytes(data.as_mut_ptr(), MARGIN_BYTE, len + 2 * MARGIN);
            data.set_len(len + 2 * MARGIN);
        }
        Self { data, len }
    }

    /// Starts from `values` instead of poison, for what is read before it is written.
    pub(crate) fn from(values: &[T]) -> Self {
        let mut new = Self::new(values.len());
        new.data[MARGIN..MARGIN + values.len()].copy_from_slice(values);
        new
    }

    pub(crate) fn ptr(&mut self) -> *mut T {
        self.data[MARGIN..].as_mut_ptr()
    }

    /// The output, after checking that the margins are as they were.
    #[track_caller]
    pub(crate) fn written(&self) -> &[T] {
        let (head, rest) = self.data.split_at(MARGIN);
        let (out, tail) = rest.split_at(self.len);
        for margin in [head, tail] {
            // SAFETY: any initialised value is readable as bytes.
            let bytes =
                unsafe { std::slice::from_raw_parts(margin.as_ptr().cast::<u8>(), size_of_val(margin)) };
            assert!(bytes.iter().all(|&b| b == MARGIN_BYTE), "a write outside the output");
        }
        out
    }
}

/// Bytes between two inaccessible pages, which are unmapped with it.
pub(crate) struct BetweenPages {
    map: *mut libc::c_void,
    length: usize,
    start: *mut u8,
}

impl BetweenPages {
    /// The first of the bytes.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for BetweenPages {
    fn drop(&mut self) {
        // SAFETY: a mapping of its own, of which no test uses a pointer past this.
        assert_eq!(unsafe { libc::munmap(self.map, self.length) }, 0);
    }
}

/// Bytes between two inaccessible pages, at either of them.
pub(crate) fn between_pages(bytes: usize, at_end: bool) -> BetweenPages {
    // SAFETY: asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
    let room = bytes.next_multiple_of(page);
    let (flags, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    let length = room + 2 * page;
    // SAFETY: a new mapping, of which only the pages between the first and the last become accessible.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(map, libc::MAP_FAILED);
        let start = map.cast::<u8>().add(page);
        assert_eq!(libc::mprotect(start.cast(), room, access), 0);
        BetweenPages { map, length, start: start.add(if at_end { room - bytes } else { 0 }) }
    }
}

/// `values` as stored elements of a floating-point dtype; a complex one takes them in pairs.
pub(crate) fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    fn all<const N: usize>(values: &[f64], f: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&v| f(v)).collect()
    }
    match dtype {
        DType::F16 => all(values, |v| f16::from_f64(v).to_ne_bytes()),
        DType::BF16 => all(values, |v| bf16::from_f64(v).to_ne_bytes()),
        DType::F32 | DType::COMPLEX64 => all(values, |v| (v as f32).to_ne_bytes()),
        _ => all(values, f64::to_ne_bytes),
    }
}

/// What [`encode`] stored.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn all<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|b| f(b.try_into().unwrap())).collect()
    }
    match dtype {
        DType::F16 => all(bytes, |b| f16::from_ne_bytes(b).into()),
        DType::BF16 => all(bytes, |b| bf16::from_ne_bytes(b).into()),
        DType::F32 | DType::COMPLEX64 => all(bytes, |b| f32::from_ne_bytes(b).into()),
        _ => all(bytes, f64::from_ne_bytes),
    }
}

/// The distance from 1 to the next number of a dtype.
pub(crate) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::EPSILON.into(),
        DType::BF16 => bf16::EPSILON.into(),
        DType::F32 | DType::COMPLEX64 => f32::EPSILON.into(),
        _ => f64::EPSILON,
    }
}

/// The bytes at an address aligned for every element; the last word is filled up with the margins' byte.
pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(8), MARGIN_BYTE);
    padded.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect()
}

/// The first `len` bytes of what [`words`] made, or of an output; what follows must be as it was.
#[track_caller]
pub(crate) fn bytes_of(words: &[u64], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    assert!(bytes[len..].iter().all(|&b| b == MARGIN_BYTE), "a write past the last element");
    bytes.truncate(len);
    bytes
}

/// Transposes a matrix, from rows with gaps of `gaps[0]` bytes to rows with gaps of `gaps[1]` bytes that begin `shift` bytes
/// behind a line, in both directions of the source, and compares all of the destination, gaps included. The CPU has what the
/// kernel needs.
pub(super) fn check_transpose(
    kernel: Transpose,
    size: usize,
    [rows, cols]: [usize; 2],
    gaps: [usize; 2],
    shift: usize,
) {
    let (src_stride, dst_stride) = (cols * size + gaps[0], rows * size + gaps[1]);
    for backwards in [false, true] {
        let from = Rng::new().bytes(rows * src_stride);
        let last = (rows - 1) * src_stride;
        let row = |r: usize| if backwards { last - r * src_stride } else { r * src_stride };
        let mut want = vec![0xa5; cols * dst_stride];
        for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
            want[c * dst_stride + r * size..][..size].copy_from_slice(&from[row(r) + c * size..][..size]);
        }
        let mut got = Guarded::<u8>::new(want.len() + 2 * LINE);
        let start = got.ptr().align_offset(LINE) + shift;
        let m = Matrix {
            rows,
            cols,
            src_stride: if backwards { -(src_stride as isize) } else { src_stride as isize },
            dst_stride: dst_stride as isize,
        };
        // SAFETY: both sides have all elements, and the CPU has what the kernel needs.
        unsafe { kernel(m, from.as_ptr().add(row(0)), got.ptr().add(start)) };
        stream::fence();
        let written = got.written();
        let around = written[..start].iter().chain(&written[start + want.len()..]);
        assert!(around.copied().all(|b| b == 0xa5), "written around the destination");
        assert!(
            written[start..][..want.len()] == want[..],
            "{rows}x{cols} of {size} bytes, gaps of {gaps:?}, shifted by {shift}, backwards: {backwards}"
        );
    }
}

/// The same for dense matrices that end at or start behind an inaccessible page.
pub(super) fn check_transpose_between_pages(kernel: Transpose, size: usize, [rows, cols]: [usize; 2]) {
    let bytes = rows * cols * size;
    let (src_stride, dst_stride) = ((cols * size) as isize, (rows * size) as isize);
    let from = Rng::new().bytes(bytes);
    let upwards = from.chunks(cols * size).rev().flatten().copied().collect::<Vec<_>>();
    for (at_end, backwards) in [(false, false), (false, true), (true, false), (true, true)] {
        let read = if backwards { &upwards } else { &from };
        let want = primitives::reference::permute(&[rows, cols], &[1, 0], size, read);
        let pages = [0; 2].map(|_| between_pages(bytes, at_end));
        let [src, dst] = pages.each_ref().map(|p| p.ptr());
        let (first, src_stride) = match backwards {
            true => (src.wrapping_add((rows - 1) * cols * size), -src_stride),
            false => (src, src_stride),
        };
        // SAFETY: both sides have all elements, and the CPU has what the kernel needs.
        let written = unsafe {
            src.copy_from_nonoverlapping(from.as_ptr(), bytes);
            dst.write_bytes(0xa5, bytes);
            kernel(Matrix { rows, cols, src_stride, dst_stride }, first, dst);
            stream::fence();
            std::slice::from_raw_parts(dst, bytes)
        };
        assert!(
            written == want,
            "{rows}x{cols} of {size} bytes, at the end: {at_end}, backwards: {backwards}"
        );
    }
}

/// Whether kernels of AVX-512 can be run.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx512() -> bool {
    use crate::isa::{Isa, Level};
    Isa::available().into_iter().any(|isa| isa.level() >= Level::Avx512)
}

/// Whether `f` makes this thread's CPU round a result that is less than the least normal number: most CPUs take a hundred times
/// as long for that. Results that are exact, and operands, are not noticed.
#[cfg(target_arch = "x86_64")]
pub(crate) fn underflows(f: impl FnOnce()) -> bool {
    use std::arch::asm;
    const EXCEPTIONS: u32 = 0x3f;
    const UNDERFLOW: u32 = 0x10;
    let mut control = 0u32;
    // SAFETY: the register is written to a number, and read from one that differs in flags of what has happened only.
    unsafe {
        asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack));
        control &= !EXCEPTIONS;
        asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack));
    }
    f();
    // SAFETY: as above.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack)) };
    control & UNDERFLOW != 0
}
