//! Products by a `b` that was packed before, once for many of them.
//!
//! All of `b` lies in the blocks that [`gemm_block`](super::gemm_block) multiplies by, one range of the depth after the other.
//! In each range panels of columns follow each other, so that a tile may have any number of them, whatever `m` is.

use crate::kernels::gemm::{Element, Problem, count};
use crate::kernels::gemm_block::{Engine, Pack, Ready, Scalars, Tiles, slab};
use crate::kernels::gemm_plan::{Plan, parts};
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use ep_core::Result;
use ep_core::parallel::Parallel;

/// Columns that are packed at a time: whole panels of every engine.
const COLUMNS: usize = 128;

/// Bytes of a packed `b`; `None` where no address space holds them.
pub(super) fn bytes<E: Engine>(n: usize, k: usize) -> Option<usize> {
    // Twice as many as elements, so that whatever panels are padded to fits too.
    let bound = n
        .checked_add(COLUMNS)?
        .checked_mul(k.checked_add(COLUMNS)?)?
        .checked_mul(2 * size_of::<E::Packed>())?;
    if bound > isize::MAX as usize {
        return None;
    }
    let depth = Plan::packed_depth::<E>(k);
    let before = parts(k, depth) - 1;
    let elements = before * E::packed_b(n, depth) + E::packed_b(n, k - before * depth);
    Some(elements * size_of::<E::Packed>())
}

/// Packs the `b` of a problem of one matrix, of which nothing else is looked at.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// `b` is readable, and `out` writable for as many [`bytes`], with no other access; the CPU has the engine's level.
pub(super) unsafe fn pack<E: Engine>(
    par: &dyn Parallel,
    problem: &Problem<'_, E::Number>,
    out: Shared<E::Packed>,
) -> Result<()> {
    let (p, depth) = (problem, Plan::packed_depth::<E>(problem.k));
    let (blocks, groups) = (parts(p.k, depth), parts(p.n, COLUMNS));
    let bytes = 2 * depth * COLUMNS.min(p.n) * size_of::<E::Packed>();
    for_ranges(par, blocks * groups, bytes, 1, |all| {
        for at in all {
            let (number, col) = (at / groups, at % groups * COLUMNS);
            let range = number * depth..(number * depth + depth).min(p.k);
            let to = number * E::packed_b(p.n, depth) + E::packed_b(col, range.len());
            let slab = slab(p, true, 0, col, COLUMNS.min(p.n - col), range);
            // SAFETY: the slab lies inside of the factor, and each has room of its own.
            unsafe { E::run_packing(Pack::<E> { slab, out: out.get().add(to) }) };
        }
        Ok(())
    })
}

/// As [`gemm_block::multiply`](super::gemm_block::multiply) of one matrix, with a `b` that [`pack`] has packed; that of the
/// problem is not looked at.
///
/// # Errors
/// `OutOfMemory` if there is no room for packed blocks; those of `par`.
///
/// # Safety
/// As there; `b` was packed for as many columns and as deep.
pub(super) unsafe fn multiply<E: Engine>(
    par: &dyn Parallel,
    problem: &Problem<'_, E::Number>,
    b: Shared<E::Packed>,
    alpha: <E::Number as Element>::Scalar,
    beta: <E::Number as Element>::Scalar,
) -> Result<()> {
    let plan = Plan::of_packed::<E>(problem, par.threads());
    let scalars = Scalars { alpha, beta };
    let tiles = count(problem.outer) * plan.tiles.0 * plan.tiles.1;
    let work = plan.tile.0.saturating_mul(plan.tile.1).saturating_mul(plan.total);
    // Few rows take as long as reading `b`.
    let read = plan.tile.1.saturating_mul(plan.total).saturating_mul(size_of::<E::Packed>());
    for_ranges(par, tiles, read.max(work / (E::TASK / GRAIN_BYTES)), 1, |tiles| {
        let (plan, scalars, depth) = (&plan, &scalars, 0..plan.total);
        let ready = Some(Ready::Whole { at: b });
        // SAFETY: the caller's promise; each tile is in one task.
        unsafe { E::run(Tiles::<E> { problem, plan, scalars, tiles, depth, ready }) }
    })
}
