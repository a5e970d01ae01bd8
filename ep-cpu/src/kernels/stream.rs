//! Stores that go past the cache.
//!
//! An ordinary store first reads the line that it overwrites, which costs a third of the traffic of a copy
//! once the data no longer fits. Streaming stores skip that, but lose while the data would have stayed cached.

/// Bytes written from which streaming pays: below, the output is likelier to be read again from the cache.
pub(crate) const STREAM_BYTES: usize = 32 << 20;

const LINE: usize = 64;
#[cfg(target_arch = "x86_64")]
const PAGE: usize = 4096;
/// Pages copied side by side, so that several memory channels and prefetchers work at once.
#[cfg(target_arch = "x86_64")]
const PAGES: usize = 4;

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
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
    let head = to_line(dst).min(bytes);
    // SAFETY: `head` is at most `bytes`; the caller vouches for both sides.
    unsafe { dst.copy_from_nonoverlapping(src, head) };
    let mut done = head;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        while bytes - done >= PAGES * PAGE {
            for line in (0..PAGE).step_by(LINE) {
                for page in 0..PAGES {
                    let at = done + page * PAGE + line;
                    // SAFETY: `at + LINE` is at most `done + PAGES * PAGE`, within `bytes`; `dst + at` is
                    // aligned to a line. The prefetch may reach past the end, where it does nothing.
                    unsafe {
                        _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at + PAGES * PAGE).cast());
                        let (from, to) = (src.add(at).cast::<__m128i>(), dst.add(at).cast::<__m128i>());
                        let quarters = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
                        for (i, quarter) in quarters.into_iter().enumerate() {
                            _mm_stream_si128(to.add(i), quarter);
                        }
                    }
                }
            }
            done += PAGES * PAGE;
        }
        fence();
    }
    // SAFETY: what is left, from `done` to `bytes`.
    unsafe { dst.add(done).copy_from_nonoverlapping(src.add(done), bytes - done) };
}

/// Repeats `pattern` over `bytes` bytes with streaming stores; ends with [`fence`].
///
/// # Safety
/// `dst` is writable for `bytes` bytes.
pub(crate) unsafe fn fill(dst: *mut u8, mut pattern: [u8; 16], bytes: usize) {
    let head = to_line(dst).min(bytes);
    for i in 0..head {
        // SAFETY: `i < bytes`.
        unsafe { dst.add(i).write(pattern[i % 16]) };
    }
    pattern.rotate_left(head % 16);
    let mut done = head;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        // SAFETY: the load reads the 16 bytes of `pattern`.
        let vector = unsafe { _mm_loadu_si128(pattern.as_ptr().cast()) };
        while bytes - done >= LINE {
            for i in 0..LINE / 16 {
                // SAFETY: a whole line is left, and `dst + done` is aligned to one.
                unsafe { _mm_stream_si128(dst.add(done).cast::<__m128i>().add(i), vector) };
            }
            done += LINE;
        }
        fence();
    }
    for i in 0..bytes - done {
        // SAFETY: `done + i < bytes`; what was written in between is a multiple of the pattern's length.
        unsafe { dst.add(done + i).write(pattern[i % 16]) };
    }
}
