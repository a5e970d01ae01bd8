//! Memset: one byte, repeated.

use crate::isa::Isa;
use crate::kernels::fill::fill_pattern;
use ep_core::Result;
use ep_core::parallel::Parallel;

/// Arguments of [`memset`].
#[derive(Clone, Copy, Debug)]
pub struct MemsetArgs {
    /// Where to write `bytes` bytes; any alignment.
    pub dst: *mut u8,
    /// The byte to write.
    pub value: u8,
    /// How many.
    pub bytes: usize,
}

/// Sets `bytes` bytes to `value`.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// `dst` is writable for `bytes` bytes, with no other access until this returns.
pub unsafe fn memset(isa: Isa, par: &dyn Parallel, args: &MemsetArgs) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { fill_pattern(isa, par, args.dst, [args.value; 16], args.bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::stream::STREAM_BYTES;
    use crate::kernels::testing::{Guarded, Threads};

    #[test]
    fn sets_all_sizes() {
        for (i, bytes) in (0..300).chain([4097, 1_000_003, STREAM_BYTES + 99]).enumerate() {
            let mut dst = Guarded::<u8>::new(bytes);
            let args = MemsetArgs { dst: dst.ptr(), value: (i * 37 + 1) as u8, bytes };
            // SAFETY: `dst` has that many bytes.
            unsafe { memset(Isa::BASELINE, &Threads(2), &args) }.unwrap();
            assert!(dst.written().iter().all(|&b| b == args.value), "{bytes}");
        }
    }
}
