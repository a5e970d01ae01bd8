//! What every kernel needs to work on raw addresses from several threads.

use ep_core::Result;
use ep_core::parallel::Parallel;
use std::ops::Range;

/// Bytes of traffic below which another thread costs more than it brings: waking one takes a few
/// microseconds, in which a core moves about this much.
pub(crate) const GRAIN_BYTES: usize = 256 << 10;

/// Bytes of traffic from which elements that are computed one by one are split: between launches in a row workers
/// still poll, and one that does joins in about a microsecond.
pub(crate) const SPLIT_BYTES: usize = 3 * GRAIN_BYTES / 2;

/// An address that tasks on several threads share.
pub(crate) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: this is only a number to pass on; each use of the address states why it is in bounds and why no
// two threads write the same element.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(address: *mut T) -> Self {
        Self(address)
    }

    /// The address. A method, so that closures capture the wrapper and not its field.
    #[inline(always)]
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

/// Calls `task` on disjoint ranges that cover `0..n`, in parallel where there is enough to do.
///
/// An item stands for `item_bytes` of traffic; ranges start at multiples of `multiple` items.
pub(crate) fn for_ranges(
    par: &dyn Parallel,
    n: usize,
    item_bytes: usize,
    multiple: usize,
    task: impl Fn(Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    split(par, n, item_bytes, multiple, 2 * GRAIN_BYTES, &task)
}

/// [`for_ranges`] for elements that are computed one by one, from [`SPLIT_BYTES`].
pub(crate) fn for_elements(
    par: &dyn Parallel,
    n: usize,
    item_bytes: usize,
    multiple: usize,
    task: impl Fn(Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    split(par, n, item_bytes, multiple, SPLIT_BYTES, &task)
}

/// [`for_ranges`] in at least two ranges from `least` bytes of traffic. One function for the tasks of all kernels, of which there are
/// a thousand.
fn split(
    par: &dyn Parallel,
    n: usize,
    item_bytes: usize,
    multiple: usize,
    least: usize,
    task: &(dyn Fn(Range<usize>) -> Result<()> + Sync),
) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    if n.saturating_mul(item_bytes) < least || par.threads() == 1 {
        return task(0..n);
    }
    let grain = (least / 2).div_ceil(item_bytes.max(1).saturating_mul(multiple));
    par.parallel_for(n.div_ceil(multiple), grain, 0, &|blocks| {
        task(blocks.start * multiple..(blocks.end * multiple).min(n))
    })
}

/// Asks for the cache line at an address, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The same, but only into second-level cache: first-level cache is full of what is needed before.
#[inline(always)]
pub(crate) fn prefetch_l2<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The same address, with the same provenance, of which compilers do not know where it comes from: what is added to it is added
/// where it is used. The template is a comment because operands have to appear in it.
#[inline(always)]
#[cfg_attr(
    target_arch = "x86_64",
    expect(clippy::pointers_in_nomem_asm_block, reason = "what it points to is not looked at")
)]
pub(crate) fn opaque<T>(mut at: *const T) -> *const T {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: there are no instructions.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) at, options(pure, nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        at = std::hint::black_box(at);
    }
    at
}

/// Asks for the cache line at an address, which need not be valid, to be written.
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(at: *mut T) {
    // SAFETY: fetching does nothing where there is no memory. What every x86-64 takes for this instruction, some do
    // as nothing. There is an intrinsic for it, which the compiler makes a fetch for reading.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at.addr(), options(nostack, nomem, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
