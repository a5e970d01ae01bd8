//! Splitting work over the host's threads.
//!
//! Providers own no thread pool: ten CPU providers in one process share the host's (docs/decisions/0003).
//! Kernels are written against [`Parallel`], which the SDK implements over the host's `parallel_for`
//! service and tests implement with [`Serial`].

use crate::Result;
use std::ops::Range;

/// One chunk of work: called with a part of `0..n`, possibly on several threads at once.
pub type Task<'a> = dyn Fn(Range<usize>) -> Result<()> + Sync + 'a;

/// Something that can run a loop in parallel.
///
/// # Safety
/// Kernels write through the ranges that they are given and check nothing more. So in one call of
/// [`Parallel::parallel_for`] no two ranges have an index in common, each is non-empty and within `0..n`, and together they
/// cover it where the call returns `Ok`. Once it has returned or unwound, no call of `task` runs or begins.
///
/// ```compile_fail,E0200
/// use ep_core::parallel::{Parallel, Task};
///
/// struct Twice;
/// impl Parallel for Twice {
///     fn parallel_for(&self, n: usize, _: usize, _: usize, task: &Task<'_>) -> ep_core::Result<()> {
///         task(0..n)?;
///         task(0..n)
///     }
///     fn threads(&self) -> usize {
///         1
///     }
/// }
/// ```
pub unsafe trait Parallel: Sync {
    /// Calls `task` with disjoint, non-empty ranges that together cover `0..n`.
    ///
    /// The caller's thread always takes part, and the call returns when every started chunk has ended,
    /// so `task` may borrow from the caller. The chunks depend only on `n`, `grain` (no chunk but the
    /// last is smaller) and `max_threads` (`0`: no bound beyond [`Parallel::threads`]), never on timing.
    ///
    /// # Errors
    /// The first error of `task`; chunks not yet begun are then skipped.
    fn parallel_for(&self, n: usize, grain: usize, max_threads: usize, task: &Task<'_>) -> Result<()>;

    /// How many threads, the caller included, can work at once. At least 1.
    fn threads(&self) -> usize;
}

/// Runs everything on the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

// SAFETY: one range, which is all of `0..n`, on this thread; none where that is empty.
unsafe impl Parallel for Serial {
    fn parallel_for(&self, n: usize, _grain: usize, _max_threads: usize, task: &Task<'_>) -> Result<()> {
        if n == 0 { Ok(()) } else { task(0..n) }
    }

    fn threads(&self) -> usize {
        1
    }
}
