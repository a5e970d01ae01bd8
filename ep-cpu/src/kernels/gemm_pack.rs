//! Packing of blocks for [`gemm_simd`](super::gemm_simd): numbers become what is computed in, in the order in which the
//! inner loop reads them.

use crate::kernels::elem::Storage;
use crate::kernels::gemm_block::{Slab, Stretch};
use crate::kernels::gemm_lanes::{Lanes, MOST, Part, Real};
use crate::kernels::gemm_simd::{Number, Panels, Vectors, WIDE};
use crate::kernels::raw::prefetch;

/// Rows of `b` that are packed at a time, and how many rows ahead are asked for.
const SIDE_BY_SIDE: usize = 8;
const PACK_AHEAD: usize = 8;

impl<T: Number, L: Lanes<Real = T::Real>> Vectors<T, L> {
    /// For each group of rows that are multiplied together, their numbers at one place along the depth after those at the
    /// place before. Rows that the last group lacks are zeros, which `gemm_stored`'s loops read.
    ///
    /// # Safety
    /// As for [`Engine::pack_a`](crate::kernels::gemm_block::Engine::pack_a).
    #[inline(always)]
    pub(super) unsafe fn pack_left(slab: &Slab<'_, T>, out: *mut T::Real) {
        let depth = slab.depth.len();
        let whole = if T::PARTS == 1 { slab.lines - slab.lines % L::ROWS } else { 0 };
        if !slab.lines.is_multiple_of(Self::MICRO) {
            let last = slab.lines / Self::MICRO * L::ROWS * depth;
            // SAFETY: the last group, for which there is room; zero is a number.
            unsafe { out.add(last).write_bytes(0, L::ROWS * depth) };
        }
        for Stretch { at, first, len } in slab.stretches() {
            let to = out.wrapping_add(first * L::ROWS);
            // Rows that are packed already, and how far along the depth.
            // SAFETY: the rows of the stretch, and their places in the block.
            let (rows, done) = unsafe {
                match slab.step {
                    1 => (whole, Self::pack_along(at, slab.line, to, depth, whole, len)),
                    step => Self::pack_across(at, step, to, depth, whole, len),
                }
            };
            for row in 0..slab.lines {
                let group = (row / Self::MICRO) * L::ROWS * depth + row % Self::MICRO * T::PARTS;
                for p in if row < rows { done } else { 0 }..len {
                    for part in 0..T::PARTS {
                        // SAFETY: a part of a number of the row, and its place in the block.
                        unsafe {
                            let from = at.add(row * slab.line + p * slab.step).cast::<T::Part>().add(part);
                            to.add(group + p * L::ROWS + part).write(from.read().load());
                        }
                    }
                }
            }
        }
    }

    /// Each panel by itself, its columns filled up with zeros to whole vectors.
    ///
    /// # Safety
    /// As for [`Engine::pack_a`](crate::kernels::gemm_block::Engine::pack_a).
    #[inline(always)]
    pub(super) unsafe fn pack_right(slab: &Slab<'_, T>, out: *mut T::Real) {
        let reals = slab.lines * T::PARTS;
        let panels = Panels::new(reals, L::LANES);
        // Rows are read a few at a time and to their ends, as memory gives them fastest; columns to theirs.
        let most = if slab.line == 1 { SIDE_BY_SIDE } else { slab.depth.len() };
        for Stretch { at, first, len } in slab.stretches() {
            for row in (0..len).step_by(most) {
                let len = most.min(len - row);
                let mut end = 0;
                for panel in 0..panels.panels {
                    let start = std::mem::replace(&mut end, panels.first(panel + 1) * L::LANES);
                    let (wide, inside) = (end - start, reals.min(end) - start);
                    // SAFETY: the panel, from the first of the rows on.
                    let to = unsafe { out.add(start * slab.whole + (slab.from + first + row) * wide) };
                    let at = at.wrapping_add(start / T::PARTS * slab.line + row * slab.step);
                    // SAFETY: the panel has `inside` reals in each of `len` rows, and is `wide` in the block.
                    unsafe {
                        if slab.line != 1 {
                            Self::pack_columns(at, slab, to, wide, inside, len);
                            continue;
                        }
                        let (at, step) = (at.cast(), slab.step * T::PARTS);
                        match (wide == inside, end - start) {
                            (true, vectors) if vectors == WIDE * L::LANES => {
                                Self::pack_vectors::<WIDE>(at, step, to, len);
                            }
                            (true, vectors) if vectors == 2 * L::LANES => {
                                Self::pack_vectors::<2>(at, step, to, len)
                            }
                            _ => Self::pack_rows(at, step, to, wide, inside, len),
                        }
                    }
                }
            }
        }
    }

    /// Copies parts, as computed with.
    ///
    /// # Safety
    /// `len` parts are readable and reals writable; the CPU has the level.
    #[inline(always)]
    unsafe fn copy(from: *const T::Part, to: *mut T::Real, len: usize) {
        let whole = len - len % L::LANES;
        // SAFETY: the caller's promise.
        unsafe {
            for i in (0..whole).step_by(L::LANES) {
                L::store(to.add(i), T::Part::widen::<L>(from.add(i)));
            }
            for i in whole..len {
                to.add(i).write(from.add(i).read().load());
            }
        }
    }

    /// Packs `rows` contiguous rows of `a`, whole groups, as far along the depth as whole vectors go, and says how far.
    ///
    /// # Safety
    /// `len` numbers of each row are readable, and there is a block of this depth from `to` on; the CPU has the level.
    #[inline(always)]
    unsafe fn pack_along(
        at: *const T,
        line: usize,
        to: *mut T::Real,
        depth: usize,
        rows: usize,
        len: usize,
    ) -> usize {
        let whole = len - len % L::LANES;
        for row in (0..rows).step_by(L::ROWS) {
            for p in (0..whole).step_by(L::LANES) {
                // SAFETY: a vector of each row of a group, and their places in the block.
                unsafe {
                    let from = at.add(row * line + p);
                    let mut v = [L::splat(T::Real::ZERO); MOST];
                    for (i, v) in v.iter_mut().enumerate().take(L::ROWS) {
                        prefetch(from.wrapping_add((L::ROWS + i) * line));
                        *v = T::Part::widen::<L>(from.add(i * line).cast());
                    }
                    let to = to.add(row * depth + p * L::ROWS);
                    for (i, v) in interleaved::<L>(v, L::ROWS).into_iter().enumerate().take(L::ROWS) {
                        L::store(to.add(i * L::LANES), v);
                    }
                }
            }
        }
        whole
    }

    /// The same for contiguous columns of `a`: says how many rows it has packed, and how far along the depth.
    ///
    /// # Safety
    /// As for [`Self::pack_along`], of columns.
    #[inline(always)]
    unsafe fn pack_across(
        at: *const T,
        step: usize,
        to: *mut T::Real,
        depth: usize,
        rows: usize,
        len: usize,
    ) -> (usize, usize) {
        // A vector is part of a group, or two groups.
        let (rows, places) = match L::LANES > L::ROWS {
            true => (rows - rows % L::LANES, len - len % 2),
            false => (rows, len),
        };
        for p in (0..places).step_by(L::LANES.div_ceil(L::ROWS)) {
            for row in (0..rows).step_by(L::LANES) {
                // SAFETY: a vector of a column, or of two neighbouring ones, and their places in the block.
                unsafe {
                    let from = at.add(p * step + row);
                    let to = to.add(row / L::ROWS * L::ROWS * depth + p * L::ROWS + row % L::ROWS);
                    let v = T::Part::widen::<L>(from.cast());
                    if L::LANES <= L::ROWS {
                        L::store(to, v);
                        continue;
                    }
                    let (lower, upper) = L::halves(v, T::Part::widen::<L>(from.add(step).cast()));
                    L::store(to, lower);
                    L::store(to.add(L::ROWS * depth), upper);
                }
            }
        }
        (rows, places)
    }

    /// A panel of whole vectors of a `b` whose rows are contiguous.
    ///
    /// # Safety
    /// The vectors are readable in each of `len` rows `step` apart, and writable for each; the CPU has the level.
    #[inline(always)]
    unsafe fn pack_vectors<const VECTORS: usize>(
        at: *const T::Part,
        step: usize,
        to: *mut T::Real,
        len: usize,
    ) {
        for p in 0..len {
            for j in 0..VECTORS {
                // SAFETY: a vector of row `p`.
                unsafe {
                    prefetch(at.wrapping_add((p + PACK_AHEAD) * step + j * L::LANES));
                    let v = T::Part::widen::<L>(at.add(p * step + j * L::LANES));
                    L::store(to.add((p * VECTORS + j) * L::LANES), v);
                }
            }
        }
    }

    /// The same for any panel: columns that do not exist become zeros.
    ///
    /// # Safety
    /// As for [`Self::pack_vectors`], of `inside` reals to be read and `wide` to be written of each row.
    #[inline(always)]
    unsafe fn pack_rows(
        at: *const T::Part,
        step: usize,
        to: *mut T::Real,
        wide: usize,
        inside: usize,
        len: usize,
    ) {
        for p in 0..len {
            // SAFETY: row `p`.
            unsafe {
                Self::copy(at.add(p * step), to.add(p * wide), inside);
                for i in inside..wide {
                    to.add(p * wide + i).write(T::Real::ZERO);
                }
            }
        }
    }

    /// A panel of a `b` whose columns are contiguous: squares are transposed in registers.
    ///
    /// # Safety
    /// As for [`Self::pack_rows`]; `at` is the first number of the panel.
    #[inline(always)]
    unsafe fn pack_columns(
        at: *const T,
        slab: &Slab<'_, T>,
        to: *mut T::Real,
        wide: usize,
        inside: usize,
        len: usize,
    ) {
        let (lanes, parts) = (L::LANES, T::PARTS);
        let squares = if parts == 1 { len - len % lanes } else { 0 };
        for col in (0..wide).step_by(lanes) {
            let cols = lanes.min(inside.saturating_sub(col));
            for p in (0..squares).step_by(lanes) {
                // SAFETY: as many numbers from depth `p` on of each of `cols` columns; a square of the panel.
                unsafe {
                    let mut v = [L::splat(T::Real::ZERO); MOST];
                    for (i, v) in v.iter_mut().enumerate().take(cols) {
                        let from = at.wrapping_add((col + i) * slab.line + p);
                        prefetch(from.wrapping_add(lanes * slab.line));
                        *v = T::Part::widen::<L>(from.cast());
                    }
                    for (i, v) in transposed::<L>(v).into_iter().enumerate().take(lanes) {
                        L::store(to.add((p + i) * wide + col), v);
                    }
                }
            }
            for p in squares..len {
                for i in 0..lanes {
                    // SAFETY: column `col + i`, where there is one; its real or its imaginary part.
                    unsafe {
                        let real = col + i;
                        let from =
                            at.wrapping_add(real / parts * slab.line + p * slab.step).cast::<T::Part>();
                        let x = if i < cols { from.add(real % parts).read().load() } else { T::Real::ZERO };
                        to.add(p * wide + real).write(x);
                    }
                }
            }
        }
    }
}

/// Transposes a square.
///
/// # Safety
/// The CPU has the level.
#[inline(always)]
pub(super) unsafe fn transposed<L: Lanes>(rows: [L::V; MOST]) -> [L::V; MOST] {
    // SAFETY: the caller's promise.
    unsafe { interleaved::<L>(rows, L::LANES) }
}

/// The first numbers of `count` rows, a power of two, then their second ones, and so on: interleaving row `i` with row
/// `i + count / 2` halves the distance of what belongs together.
///
/// # Safety
/// The CPU has the level.
#[inline(always)]
unsafe fn interleaved<L: Lanes>(mut rows: [L::V; MOST], count: usize) -> [L::V; MOST] {
    for _ in 0..count.ilog2() {
        let mut next = rows;
        for i in 0..count / 2 {
            // SAFETY: the caller's promise.
            (next[2 * i], next[2 * i + 1]) = unsafe { L::zip(rows[i], rows[i + count / 2]) };
        }
        rows = next;
    }
    rows
}
