//! Writing elements out that repeat.

use crate::isa::{Body, Isa};
use std::mem::MaybeUninit;
use std::ptr;

/// Bytes of an operand that are staged at a time, and of the longest period that becomes a table: with two
/// buffers and a destination well within a first-level cache.
pub(crate) const STAGE_BYTES: usize = 4096;
/// Stores of whole vectors may write so much past the end; a multiple of a line, so that stages begin at lines.
pub(super) const SLACK: usize = 64;
/// Room for a block of one operand, and the slack.
#[repr(C, align(64))]
pub(crate) struct Stage([MaybeUninit<u8>; STAGE_BYTES + SLACK]);

impl Stage {
    pub(crate) const fn new() -> Stage {
        Stage([MaybeUninit::uninit(); STAGE_BYTES + SLACK])
    }

    pub(crate) fn start(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Rows of elements to be written one after another; strides count elements.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    pub(super) source: *const u8,
    pub(super) row: usize,
    /// 1 or 0.
    pub(super) col: usize,
    pub(super) inner: usize,
    pub(super) rows: usize,
}

/// Writes all `rows` to `to`, and up to [`SLACK`] bytes of anything behind.
///
/// # Safety
/// The elements are readable, those of a row being contiguous or one, and rows of contiguous elements lying one
/// after another or being the same; `to` is writable for them and for the slack, and apart from them.
pub(super) unsafe fn expand(size: usize, rows: Spread, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => expand_as::<[u8; 1], 16>(rows, to),
            2 => expand_as::<[u8; 2], 8>(rows, to),
            4 => expand_as::<[u8; 4], 4>(rows, to),
            8 => expand_as::<[u8; 8], 2>(rows, to),
            _ => expand_as::<[u8; 16], 1>(rows, to),
        }
    }
}

/// # Safety
/// As [`expand`], with elements like `T`, of which `N` are a vector.
#[inline(always)]
pub(super) unsafe fn expand_as<T: Copy, const N: usize>(rows: Spread, mut to: *mut u8) {
    let Spread { source, row, col, inner, rows } = rows;
    let bytes = inner * size_of::<T>();
    // SAFETY: the caller's promise. Whole vectors leave each row followed by what the next one, or the slack, is
    // there to take.
    unsafe {
        if col == 0 {
            for r in 0..rows {
                let vector = Vector::of([source.cast::<T>().add(r * row).read(); N]);
                vector.put(to);
                let mut i = size_of::<Vector>();
                while i < bytes {
                    vector.put(to.add(i));
                    i += size_of::<Vector>();
                }
                to = to.add(bytes);
            }
        } else if row != 0 || rows == 1 {
            ptr::copy_nonoverlapping(source, to, bytes * rows);
        } else if bytes < size_of::<Vector>() {
            let mut start = [0u8; size_of::<Vector>()];
            for i in 0..inner {
                let element = source.cast::<T>().add(i).read();
                start.as_mut_ptr().cast::<T>().add(i).write(element);
            }
            let start = Vector::of(start);
            for _ in 0..rows {
                start.put(to);
                to = to.add(bytes);
            }
        } else if bytes <= size_of::<[Vector; 4]>() {
            // The last vector ends where the row does, and may repeat some of the one before.
            let last = bytes - size_of::<Vector>();
            let offsets = [0, 16.min(last), 32.min(last), last];
            let mut whole = [Vector::of([0u8; 16]); 4];
            for (vector, offset) in whole.iter_mut().zip(offsets) {
                *vector = Vector::of(source.add(offset).cast::<[u8; 16]>().read());
            }
            for _ in 0..rows {
                whole[0].put(to);
                whole[3].put(to.add(last));
                if bytes > 2 * size_of::<Vector>() {
                    whole[1].put(to.add(offsets[1]));
                    whole[2].put(to.add(offsets[2]));
                }
                to = to.add(bytes);
            }
        } else {
            for _ in 0..rows {
                ptr::copy_nonoverlapping(source, to, bytes);
                to = to.add(bytes);
            }
        }
    }
}

/// 16 bytes that are stored at once. Loops over arrays would be made into scattered stores of single elements.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Vector(
    #[cfg(target_arch = "x86_64")] std::arch::x86_64::__m128i,
    #[cfg(not(target_arch = "x86_64"))] [u8; 16],
);

impl Vector {
    #[inline(always)]
    fn of<T: Copy, const N: usize>(elements: [T; N]) -> Vector {
        const { assert!(size_of::<[T; N]>() == size_of::<Vector>()) };
        // SAFETY: the sizes are the same, and any bytes are a vector; `T` is made of bytes throughout this module.
        unsafe { std::mem::transmute_copy(&elements) }
    }

    /// # Safety
    /// `to` is writable for 16 bytes.
    #[inline(always)]
    unsafe fn put(self, to: *mut u8) {
        // SAFETY: the caller's promise; SSE2 is part of x86-64.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_storeu_si128(to.cast(), self.0);
        }
        // SAFETY: the caller's promise.
        #[cfg(not(target_arch = "x86_64"))]
        unsafe {
            to.cast::<[u8; 16]>().write(self.0);
        }
    }
}

/// Writes the element at `source` `n` times, and up to [`SLACK`] bytes of anything behind.
///
/// # Safety
/// The element of `size` bytes is readable, and `to` is aligned to it, writable for `n` of them and the slack, and apart
/// from it.
pub(crate) unsafe fn splat(isa: Isa, size: usize, source: *const u8, n: usize, to: *mut u8) {
    // SAFETY: the caller's promise; the element may be at any address.
    unsafe {
        match size {
            1 => isa.dispatch(Repeat { value: source.read(), to, n }),
            2 => isa.dispatch(Repeat { value: source.cast::<u16>().read_unaligned(), to: to.cast(), n }),
            4 => isa.dispatch(Repeat { value: source.cast::<u32>().read_unaligned(), to: to.cast(), n }),
            8 => isa.dispatch(Repeat { value: source.cast::<u64>().read_unaligned(), to: to.cast(), n }),
            _ => expand(size, Spread { source, row: 0, col: 0, inner: n, rows: 1 }, to),
        }
    }
}

/// Stores as wide as the loads that follow: one of several stores would have to wait until they have left for the
/// cache, behind those that wait for memory. Made only where `to` is writable for `n` elements.
struct Repeat<T> {
    value: T,
    to: *mut T,
    n: usize,
}

impl<T: Copy> Body for Repeat<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for i in 0..self.n {
            // SAFETY: what a `Repeat` is made with.
            unsafe { self.to.add(i).write(self.value) };
        }
    }
}
