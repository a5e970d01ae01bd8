//! Transposing large matrices by way of a stage, to destination rows that start at lines: what
//! [`transpose`](super::transpose) does with vectors that are parts of lines, and for elements
//! that neither [`pairs`](super::pairs) nor [`squares`](super::squares) take, or for which they do not pay on this CPU.
//!
//! A line of columns and two lines of rows are transposed into the stage. From there each column's two lines are written
//! past the cache one right after the other: memory takes such pairs faster than single lines, and lines that leave the core
//! in parts cost several times as much.
//!
//! Where rows follow each other without gaps, the band below is asked for while one is written: tiles read it in an order
//! that hardware does not see through.

use super::lanes::{LANE, Vector};
use super::lines::LINE;
use super::raw::{prefetch, prefetch_l2};
use super::tile::line_band;
use super::transpose::{Matrix, cached, rest};
use std::mem::MaybeUninit;

/// Lines of each destination row that are made at once.
const LINES: usize = 2;

/// Bytes of them: of a column in the stage.
const SLOT: usize = LINES * LINE;

/// The longest band that first-level cache holds beside the one below.
const NEAR: usize = 16 << 10;

/// Bytes between rows of the source that lie far apart.
pub(super) const PAGE: usize = 4096;

#[repr(C, align(64))]
struct Stage([MaybeUninit<u8>; LINE * SLOT]);

/// # Safety
/// As for [`Transpose`](super::transpose::Transpose) with [`Mode::Lines`](super::transpose::Mode::Lines).
#[inline(always)]
pub(super) unsafe fn transpose<V: Vector, W: Vector, const SIZE: usize, const N: usize>(
    m: Matrix,
    src: *const u8,
    dst: *mut u8,
) {
    let line = 4 * N;
    // Of bytes two lines would be 128 rows, too many streams where they lie far apart.
    let most = if SIZE == 1 && m.src_stride.unsigned_abs() >= PAGE { 1 } else { LINES };
    let whole = if m.cols < N { 0 } else { m.rows / line };
    let mut stage = Stage([MaybeUninit::uninit(); LINE * SLOT]);
    let stage = stage.0.as_mut_ptr().cast::<u8>();
    let mut row = 0;
    // SAFETY: each band lies inside the matrix, and its rows start at lines of the destination, as `row * SIZE` is a multiple
    // of one; what is left is less than a line of rows, or of columns than a tile.
    unsafe {
        while row < whole * line {
            let lines = most.min(whole - row / line);
            let (from, to) = (src.offset(row as isize * m.src_stride), dst.add(row * SIZE));
            if lines == 1 && V::LANES * LANE == LINE {
                // Vectors are lines that nothing has to follow.
                line_band::<V, SIZE, N, true>(m, 0, m.cols, from, to);
            } else {
                band::<V, SIZE, N>(m, lines, from, to, stage);
            }
            row += lines * line;
        }
        if row == 0 {
            cached::<V, W, SIZE, N>(m, src, dst);
        } else if row < m.rows {
            rest::<V, W, SIZE, N>(m, row, src, dst);
        }
    }
}

/// Where in the source the band below a band of so many `bytes` is to be asked for, if it is: that of rows without gaps, which
/// are not so long that hardware sees through them; and whether as far as second-level cache only.
#[inline(always)]
pub(super) fn below(m: Matrix, size: usize, bytes: usize, src: *const u8) -> Option<(*const u8, bool)> {
    let dense = m.src_stride == (m.cols * size) as isize && m.cols * size < PAGE;
    let far = bytes > NEAR;
    dense.then(|| (src.wrapping_add(bytes), far))
}

/// So many `lines` of rows, one or two, all columns of them.
///
/// # Safety
/// As for [`transpose`], for so many rows and a tile of columns at least; `stage` is aligned to a line and has a [`SLOT`] for
/// a line of columns.
#[inline(always)]
unsafe fn band<V: Vector, const SIZE: usize, const N: usize>(
    m: Matrix,
    lines: usize,
    src: *const u8,
    dst: *mut u8,
    stage: *mut u8,
) {
    let line = 4 * N;
    let mut below = below(m, SIZE, lines * line * m.cols * SIZE, src);
    let mut next = 0;
    while next < m.cols {
        // A line of the source at a time; the last columns may be some of those before again.
        let cols = (m.cols - next).clamp(N, line);
        let col = next.min(m.cols - cols);
        let part = Matrix { rows: line, cols, src_stride: m.src_stride, dst_stride: SLOT as isize };
        // SAFETY: the columns are the matrix's, and the stage has a slot for each of them.
        unsafe {
            for number in 0..lines {
                if let Some((next, far)) = &mut below {
                    // As many lines as are read here.
                    for _ in 0..cols {
                        if *far {
                            prefetch_l2(*next)
                        } else {
                            prefetch(*next)
                        }
                        *next = next.wrapping_add(LINE);
                    }
                }
                let from = src.offset((number * line) as isize * m.src_stride).add(col * SIZE);
                line_band::<V, SIZE, N, false>(part, 0, cols, from, stage.add(number * LINE));
            }
            for c in 0..cols {
                let to = dst.offset((col + c) as isize * m.dst_stride);
                for at in (0..lines * LINE).step_by(V::LANES * LANE) {
                    V::load(stage.add(c * SLOT + at)).stream(to.add(at));
                }
            }
        }
        next = col + cols;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernels::testing::{check_transpose, check_transpose_between_pages};
    use crate::kernels::transpose::{Mode, lookup};

    #[test]
    fn bands_and_rests_at_every_level() {
        for isa in Isa::available() {
            for size in [1, 2, 4, 8, 16] {
                let (line, tile) = (LINE / size, LANE / size);
                for rows in [line, line + 1, 2 * line - 1, 2 * line, 3 * line + tile, 5 * line - 1] {
                    let to_lines = (rows * size).wrapping_neg() % LINE;
                    for cols in [1, tile, tile + 1, line - 1, line, 2 * line + tile + 1, 4 * line] {
                        // Without gaps, with some, and far apart.
                        for gap in [0, size, 3, PAGE] {
                            let kernel = lookup(isa, size, Mode::Lines);
                            check_transpose(kernel, size, [rows, cols], [gap, to_lines], 0);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_touched_around_the_operands() {
        for isa in Isa::available() {
            for size in [1, 2, 4, 8, 16] {
                let (line, tile) = (LINE / size, LANE / size);
                // What is asked for lies behind the operand, also in second-level cache only.
                for (rows, cols) in
                    [(line, tile), (2 * line, line + 1), (4 * line, 2 * line - 1), (2 * line, 200)]
                {
                    check_transpose_between_pages(lookup(isa, size, Mode::Lines), size, [rows, cols]);
                }
            }
        }
    }

    #[test]
    fn what_is_asked_for() {
        let src = std::ptr::without_provenance(1 << 20);
        let m = Matrix { rows: 64, cols: 128, src_stride: 512, dst_stride: 256 };
        let (at, far) = below(m, 4, NEAR, src).unwrap();
        assert_eq!((at, far), (src.wrapping_add(NEAR), false));
        assert!(below(m, 4, NEAR + 64, src).unwrap().1);
        assert!(below(Matrix { src_stride: 516, ..m }, 4, NEAR, src).is_none());
        assert!(below(Matrix { cols: 1024, src_stride: 4096, ..m }, 4, NEAR, src).is_none());
    }
}
