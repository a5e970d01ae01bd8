//! Inner loops of [`gemm_simd`](super::gemm_simd) for a factor that is read where it is stored, with eight rows of `a` at a time:
//! a large `b`, which few rows use too seldom for it to be packed, and rows of `a`. What is read later is asked for on the way.

use crate::isa::Body;
use crate::kernels::gemm_block::Out;
use crate::kernels::gemm_lanes::{Lanes, Real};
use crate::kernels::gemm_micro::{MANY, Micro, step};
use crate::kernels::raw::{opaque, prefetch, prefetch_l2};
use std::hint::black_box;

/// How many rows of `b` ahead are asked for by [`MANY`] rows of `a`; by fewer, which take less time for each, more. Rows that are
/// pages apart share a set of the first-level cache, which holds 8 to 12 of them: no more than these.
const ROWS_AHEAD: usize = 8;

/// What two addresses that share a set of the first-level cache differ by.
pub(super) const PAGE: usize = 4096;

/// `M` packed rows of `a` at a time, of which there are few, by a panel of a large `b`. Made only in [`Micro::by_rows`], under
/// its promise.
pub(super) struct FewRows<L: Lanes, const M: usize, const VECTORS: usize>(pub(super) Micro<L>);

impl<L: Lanes, const M: usize, const VECTORS: usize> Body for FewRows<L, M, VECTORS> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: the promise of `by_rows`.
        unsafe { self.groups() }
    }
}

impl<L: Lanes, const M: usize, const VECTORS: usize> FewRows<L, M, VECTORS> {
    const NEIGHBOURS: [usize; M] = {
        let mut all = [0; M];
        let mut i = 0;
        while i < M {
            all[i] = i;
            i += 1;
        }
        all
    };

    /// # Safety
    /// As for [`Micro::by_rows`].
    #[inline(always)]
    unsafe fn groups(&self) {
        let Micro { depth, a_group, a_step, b, b_row, groups, out, ahead_panel, .. } = self.0;
        // Behind this panel's rows come those of the next.
        let apart = (b_row * size_of::<L::Real>()).is_multiple_of(PAGE);
        let ahead = if apart { ROWS_AHEAD } else { ROWS_AHEAD * MANY / M };
        let (left, next) = (depth.saturating_sub(ahead), b.wrapping_add(VECTORS * L::LANES));
        // The panel behind this one comes from far away: where there are enough groups, each but the first asks for one of its vectors
        // in each row, and all others for a line that is there. (Rows pages apart share places in second-level cache too.)
        let asks = ahead_panel && !apart && groups > VECTORS + 1;
        for group in 0..groups {
            let (mut a, mut b) = (self.0.a.wrapping_add(group * a_group), b);
            let mut asked = if left == 0 { next } else { b.wrapping_add(ahead * b_row) };
            let (mut far, far_step) = match group {
                1.. if asks && group <= VECTORS => (next.wrapping_add((group - 1) * L::LANES), b_row),
                // Rows that do not begin at a line reach into one more, here and below.
                1.. if asks && group == VECTORS + 1 => (next.wrapping_add(VECTORS * L::LANES - 1), b_row),
                _ => (b, 0),
            };
            // SAFETY: places of the group's packed rows, which are whole as promised, and the vectors of `b` there; the group's sums.
            unsafe {
                let mut sums = [[L::splat(L::Real::ZERO); VECTORS]; M];
                for p in 1..=depth {
                    for j in 0..VECTORS {
                        prefetch(asked.wrapping_add(j * L::LANES));
                    }
                    prefetch(asked.wrapping_add(VECTORS * L::LANES - 1));
                    prefetch_l2(far);
                    asked = if p == left { next } else { asked.wrapping_add(b_row) };
                    far = far.wrapping_add(far_step);
                    step::<L, M, VECTORS, false>(&mut sums, a, &Self::NEIGHBOURS, b, L::LANES);
                    (a, b) = (a.wrapping_add(a_step), b.wrapping_add(b_row));
                }
                let at = out.at.wrapping_add(group * M * out.stride);
                self.0.write(&sums, Out { at, ..out });
            }
        }
    }
}

/// [`MANY`] rows of a stored `a` at a time, whose elements are neighbours, by a panel of `b`: one whose last vector is cut, or that
/// is one vector. Made only in [`Micro::by_rows`], under its promise.
pub(super) struct StoredRows<L: Lanes, const VECTORS: usize, const CUT: bool>(pub(super) Micro<L>);

impl<L: Lanes, const VECTORS: usize, const CUT: bool> Body for StoredRows<L, VECTORS, CUT> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: the promise of `by_rows`.
        unsafe { self.groups() }
    }
}

impl<L: Lanes, const VECTORS: usize, const CUT: bool> StoredRows<L, VECTORS, CUT> {
    /// Steps along the depth for each request: a line of each row of the next group, in as many steps as it has elements.
    const EACH: usize = 64 / size_of::<L::Real>() / MANY;

    /// # Safety
    /// As for [`Micro::by_rows`].
    #[inline(always)]
    unsafe fn groups(&self) {
        let Micro { depth, a_group, a_row, b_row, groups, last, out, ahead, .. } = self.0;
        // Distances that compilers cannot derive from each other, from addresses that they do not know (below): they would keep an
        // address for each row, more than there are registers.
        let [one, two, three] = [1, 2, 3].map(|rows| black_box(rows * a_row));
        let near = [0, one, two, three];
        // Who has nothing to ask for asks for the same line again.
        let (next_row, next_line) = if ahead { (a_row, 64 / size_of::<L::Real>()) } else { (0, 0) };
        for group in 0..groups {
            let mut a = self.0.a.wrapping_add(group * a_group);
            let (mut b, mut far) = (self.0.b, a.wrapping_add(a_row * MANY / 2));
            let (mut asked, mut row) = (a.wrapping_add(a_group), 0);
            let out = Out { at: out.at.wrapping_add(group * MANY * out.stride), ..out };
            // SAFETY: places of the group's rows, and the vectors of `b` there; the group's sums.
            unsafe {
                let mut sums = [[L::splat(L::Real::ZERO); VECTORS]; MANY];
                let requests = depth / Self::EACH;
                for request in 0..requests {
                    prefetch(asked);
                    // The sums are written at the end.
                    if request < MANY {
                        let at = out.at.wrapping_add(request * out.stride);
                        for j in 0..VECTORS {
                            prefetch(at.wrapping_add(j * L::LANES));
                        }
                    }
                    row += 1;
                    asked = asked.wrapping_add(next_row);
                    if row == MANY {
                        row = 0;
                        asked = asked.wrapping_add(next_line).wrapping_sub(MANY * next_row);
                    }
                    for _ in 0..Self::EACH {
                        by_eight::<L, VECTORS, CUT>(&mut sums, [a, far], &near, b, last);
                        (a, far) = (opaque(a.wrapping_add(1)), opaque(far.wrapping_add(1)));
                        b = b.wrapping_add(b_row);
                    }
                }
                for _ in requests * Self::EACH..depth {
                    by_eight::<L, VECTORS, CUT>(&mut sums, [a, far], &near, b, last);
                    (a, far) = (opaque(a.wrapping_add(1)), opaque(far.wrapping_add(1)));
                    b = b.wrapping_add(b_row);
                }
                self.0.write(&sums, out);
            }
        }
    }
}

/// One step along the depth. As two calls of [`step`], of four rows each, it kept three vectors of sums in memory and took twice as
/// long.
///
/// # Safety
/// The CPU has the level; a number is readable at each of four distances from both places, and the vectors of `b`, with `CUT`
/// `last` lanes of the last one.
#[inline(always)]
unsafe fn by_eight<L: Lanes, const VECTORS: usize, const CUT: bool>(
    sums: &mut [[L::V; VECTORS]; MANY],
    a: [*const L::Real; 2],
    near: &[usize; 4],
    b: *const L::Real,
    last: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut v = [L::splat(L::Real::ZERO); VECTORS];
        for (j, v) in v.iter_mut().enumerate() {
            let from = b.add(j * L::LANES);
            *v = if CUT && j == VECTORS - 1 { L::load_part(from, last) } else { L::load(from) };
        }
        for i in 0..MANY {
            let x = L::splat(*a[i / 4].add(near[i % 4]));
            for j in 0..VECTORS {
                sums[i][j] = L::mul_add(x, v[j], sums[i][j]);
            }
        }
    }
}
