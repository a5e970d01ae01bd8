//! Memcpy: bytes from one place to another.

use crate::isa::Isa;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};

/// Ranges of a parallel copy start at pages, so that no two threads write one line.
const PAGE: usize = 4096;

/// Arguments of [`memcpy`].
#[derive(Clone, Copy, Debug)]
pub struct MemcpyArgs {
    /// Where to write `bytes` bytes; any alignment.
    pub dst: *mut u8,
    /// Where to read `bytes` bytes; any alignment.
    pub src: *const u8,
    /// How many.
    pub bytes: usize,
}

/// Copies `bytes` bytes. Nothing happens if both addresses are the same, or there are no bytes.
///
/// # Errors
/// `InvalidArgument` if the two overlap without being the same.
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes` bytes, with no other access to either until this returns.
pub unsafe fn memcpy(isa: Isa, par: &dyn Parallel, args: &MemcpyArgs) -> Result<()> {
    let &MemcpyArgs { dst, src, bytes } = args;
    if bytes == 0 || dst.cast_const() == src {
        return Ok(());
    }
    if dst.addr().abs_diff(src.addr()) < bytes {
        return Err(Error::invalid(format!(
            "memcpy of {bytes} bytes from {src:p} to {dst:p}: the two overlap; they must be apart or the same"
        )));
    }
    let (to, from) = (Shared::new(dst), Shared::new(src.cast_mut()));
    for_ranges(par, bytes, 2, PAGE, |range| {
        // SAFETY: the range is within `bytes`, both sides are the caller's, and they do not overlap; other
        // tasks have other ranges.
        unsafe {
            let (to, from) = (to.get().add(range.start), from.get().add(range.start));
            if stream::reaches(bytes, stream::STREAM_BYTES) {
                stream::copy(isa, to, from, range.len());
            } else {
                to.copy_from_nonoverlapping(from, range.len());
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng, Threads};
    use ep_core::Code;
    use ep_core::parallel::Serial;

    fn check(par: &dyn Parallel, bytes: usize, shift: usize) {
        let src = Rng::new().bytes(bytes);
        let mut dst = Guarded::<u8>::new(bytes + shift);
        let args = MemcpyArgs { dst: dst.ptr().wrapping_add(shift), src: src.as_ptr(), bytes };
        // SAFETY: both sides have that many bytes, and `dst` is new.
        unsafe { memcpy(Isa::BASELINE, par, &args) }.unwrap();
        assert!(dst.written()[shift..] == src[..], "{bytes} bytes at {shift}");
    }

    #[test]
    fn copies_all_sizes() {
        for bytes in (0..300).chain([4095, 4096, 70_001, 3_000_001]) {
            check(&Serial, bytes, bytes % 5);
            check(&Threads(3), bytes, bytes % 3);
        }
    }

    #[test]
    fn streams_large_ones() {
        check(&Threads(2), stream::STREAM_BYTES + 12_345, 7);
    }

    #[test]
    fn same_address_is_nothing_and_overlap_is_refused() {
        let mut data = [1u8, 2, 3, 4];
        let p = data.as_mut_ptr();
        // SAFETY: the same address does nothing, and an overlap is refused before anything is touched.
        let run = |to: usize, from: usize, bytes| unsafe {
            memcpy(
                Isa::BASELINE,
                &Serial,
                &MemcpyArgs { dst: p.wrapping_add(to), src: p.wrapping_add(from), bytes },
            )
        };
        run(0, 0, 4).unwrap();
        assert_eq!(run(1, 0, 2).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(run(0, 1, 3).unwrap_err().code(), Code::InvalidArgument);
        run(2, 0, 2).unwrap();
        assert_eq!(data, [1, 2, 1, 2]);
    }
}
