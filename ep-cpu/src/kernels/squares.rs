//! Transposing large matrices whose rows lie far apart: what [`transpose`](super::transpose) does at AVX-512 where it
//! [pays](super::transpose_plan).
//!
//! Two lines of rows are walked along their columns, as that many sequential streams. A vector takes a whole line
//! of a row, so that each line is read once: rows a power of two apart share cache sets, which do not keep their
//! lines for a second look. What two lines of columns become is collected in a stage and written past the cache while
//! the next are read into another, in turns: reads that come in bursts between bursts of writes wait for each other.
//! Rows of the destination are whole lines; those that start anywhere are written by [`pairs`](super::pairs).
//!
//! Two lines of rows of two bytes are 64 streams, which hardware does not see through. Of those one line of rows is read along some
//! lines of columns, into a stage, and then the other, whose columns are written beside what waits there.
//!
//! The cache holds smaller matrices, and [`near`] writes those straight to their destination.

use super::lanes::{LANE, Vector};
use super::lines::LINE;
use super::stage::PAGE;
use super::tile::{line_band, weave};
use super::transpose::{Matrix, Transpose, left_avx512, rest_avx512};
use crate::isa::{Isa, Level};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Lines of each destination row that are written at once.
const LINES: usize = 2;

/// Bytes of them.
const BAND: usize = LINES * LINE;

/// Lines of each source row that are read at once.
const WIDE: usize = 2;

/// Columns from which this pays, as turns begin and end with every band.
const LEAST_COLS: usize = 256;

/// Bytes of a destination row from which this pays.
const LEAST_ROW: usize = 4 * BAND;

/// Columns of a stage, of elements of four bytes.
const STAGE_COLS: usize = WIDE * LINE / 4 + LANE / 4;

#[repr(C, align(64))]
struct Stages([[MaybeUninit<u8>; STAGE_COLS * BAND]; 2]);

/// The function for a matrix of elements of `size` bytes whose destination rows start at lines, where this pays.
pub(super) fn lookup(isa: Isa, size: usize, m: Matrix) -> Option<Transpose> {
    let stride = m.src_stride.unsigned_abs();
    // Nearer rows share lines of the first-level cache's sets less than they gain by being read in one piece.
    let large = m.rows * size >= LEAST_ROW && m.cols >= LEAST_COLS && stride >= PAGE;
    if isa.level() < Level::Avx512 || !large {
        return None;
    }
    match size {
        2 => Some(transpose::<2, 8>),
        4 => Some(transpose::<4, 4>),
        8 => Some(transpose::<8, 2>),
        _ => None,
    }
}

/// # Safety
/// As for [`Transpose`] with [`Mode::Lines`](super::transpose::Mode::Lines); the CPU has AVX-512, and there are at least `N`
/// columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn transpose<const SIZE: usize, const N: usize>(m: Matrix, src: *const u8, dst: *mut u8) {
    let rows = BAND / SIZE;
    let bands = m.rows / rows;
    let left = Matrix { rows: m.rows % rows, ..m };
    // SAFETY: the caller's promise; each band lies inside the matrix, and so does what is left.
    unsafe {
        for band in 0..bands {
            let from = src.offset((band * rows) as isize * m.src_stride);
            let to = dst.add(band * BAND);
            if SIZE == 2 { halves::<SIZE, N>(m, from, to) } else { walk::<SIZE, N>(m, from, to) }
        }
        if left.rows > 0 {
            let from = src.offset((bands * rows) as isize * m.src_stride);
            left_avx512::<SIZE, N>(left, from, dst.add(bands * BAND));
        }
    }
}

/// One band.
///
/// # Safety
/// As for [`transpose`], for a band of rows; elements have four bytes at least.
#[inline(always)]
unsafe fn walk<const SIZE: usize, const N: usize>(m: Matrix, src: *const u8, dst: *mut u8) {
    debug_assert!(SIZE >= 4);
    let line = LINE / SIZE;
    let most = WIDE * line;
    let mut stages = Stages([[MaybeUninit::uninit(); STAGE_COLS * BAND]; 2]);
    let mut stages = stages.0.each_mut().map(|s| s.as_mut_ptr().cast::<u8>());
    // The columns that are read now, and those that were before and are written.
    let (mut col, mut cols) = (0, 0);
    loop {
        let (before, before_cols) = (col, cols);
        col += cols;
        // The last columns are at least a tile.
        cols = if m.cols - col < most + N { m.cols - col } else { most };
        if cols == 0 && before_cols == 0 {
            return;
        }
        let [stage, full] = stages;
        let across = cols.max(1).div_ceil(line);
        let share = before_cols.div_ceil(LINES * across);
        let mut turn = 0;
        // SAFETY: squares and tiles inside the band; a stage has a slot for each of the columns.
        unsafe {
            for part in 0..LINES {
                for at in 0..across {
                    let from = src.offset((part * line) as isize * m.src_stride).add(col * SIZE);
                    let read = Matrix { rows: line, cols, dst_stride: BAND as isize, ..m };
                    if at * line < cols {
                        columns::<SIZE, N>(read, at * line, from, stage.add(part * LINE));
                    }
                    for c in turn * share..((turn + 1) * share).min(before_cols) {
                        let to = dst.offset((before + c) as isize * m.dst_stride);
                        let from = full.add(c * BAND);
                        __m512i::load(from).stream(to);
                        __m512i::load(from.add(LINE)).stream(to.add(LINE));
                    }
                    turn += 1;
                }
            }
        }
        stages.swap(0, 1);
    }
}

/// A line of rows: a line of columns from `col` on, or those that are left.
///
/// # Safety
/// The rows are readable, and `dst` is writable for those columns and, if fewer than `N` are left, for those before which make `N`.
/// The CPU has AVX-512.
#[inline(always)]
unsafe fn columns<const SIZE: usize, const N: usize>(m: Matrix, col: usize, src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if col + LINE / SIZE <= m.cols {
            let to = dst.offset(col as isize * m.dst_stride);
            square::<SIZE, N>(src.add(col * SIZE), m.src_stride, to, m.dst_stride);
        } else {
            line_band::<__m512i, SIZE, N, false>(m, col, m.cols, src, dst);
        }
    }
}

/// Columns that [`halves`] takes at a time, and the most that it takes: the last may be a tile more.
const LONG: usize = 256;
const LONG_COLS: usize = LONG + LANE / 2;

/// The first lines of the destination's rows, and the second ones of a line of columns, behind those of a tile.
#[repr(C, align(64))]
struct HalfStages([MaybeUninit<u8>; (LONG_COLS + LANE / 2 + LINE / 2) * LINE]);

/// One band, a line of rows after the other.
///
/// # Safety
/// As for [`transpose`], for a band of rows; elements have two bytes.
#[inline(always)]
unsafe fn halves<const SIZE: usize, const N: usize>(m: Matrix, src: *const u8, dst: *mut u8) {
    debug_assert!(SIZE == 2);
    let line = LINE / SIZE;
    let mut stage = HalfStages([MaybeUninit::uninit(); _]);
    let first = stage.0.as_mut_ptr().cast::<u8>();
    let second = first.wrapping_add(LONG_COLS * LINE);
    let mut col = 0;
    while col < m.cols {
        // The last columns are at least a tile.
        let cols = if m.cols - col < LONG + N { m.cols - col } else { LONG };
        let part = Matrix { rows: line, cols, dst_stride: LINE as isize, ..m };
        // SAFETY: columns inside the band; there is a slot for each of the first lines. Of second lines there are slots for a line
        // of columns, and for the tile before, with which those that are left may begin. `base` lies in the stages, as there are
        // less than `LONG_COLS` columns before.
        unsafe {
            let from = src.add(col * SIZE);
            for at in (0..cols).step_by(line) {
                columns::<SIZE, N>(part, at, from, first);
            }
            let below = from.offset(line as isize * m.src_stride);
            for at in (0..cols).step_by(line) {
                // Where the slot of column 0 would be.
                let base = second.add(N * LINE).sub(at * LINE);
                columns::<SIZE, N>(part, at, below, base);
                for c in at..cols.min(at + line) {
                    let to = dst.offset((col + c) as isize * m.dst_stride);
                    __m512i::load(first.add(c * LINE)).stream(to);
                    __m512i::load(base.wrapping_add(c * LINE)).stream(to.add(LINE));
                }
            }
        }
        col += cols;
    }
}

/// Bytes of a matrix that first-level cache holds beside its transpose: there, squares would take more shuffles than tiles
/// save by being near. (Less in tests, so that small matrices go every way.)
const NEAREST: usize = if cfg!(test) { 2 << 10 } else { 16 << 10 };

/// The function for a matrix of elements of `size` bytes that is written with ordinary stores, where squares pay, or for
/// parts of it of a line of rows and columns at least.
pub(super) fn lookup_near(isa: Isa, size: usize, rows: usize, cols: usize) -> Option<Transpose> {
    let (down, across) = (rows * size, cols * size);
    if down < LINE || across < LINE || down * cols <= NEAREST || isa.level() < Level::Avx512 {
        return None;
    }
    // Squares of smaller elements take many registers, and of larger ones there is nothing to gain.
    match size {
        4 => Some(near::<4, 4>),
        8 => Some(near::<8, 2>),
        _ => None,
    }
}

/// Bytes between rows of the destination whose lines share few sets of the first-level cache.
const FEW_SETS: usize = 512;

/// Bytes of the largest matrix that is written along its diagonals: of larger ones the second-level cache keeps less than
/// is lost by reading rows in parts.
const MOST_DIAGONAL: usize = 1 << 20;

/// A matrix that the cache holds, with ordinary stores.
///
/// # Safety
/// As for [`Transpose`]; there are a line of rows and one of columns at least. The CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn near<const SIZE: usize, const N: usize>(m: Matrix, src: *const u8, dst: *mut u8) {
    let line = LINE / SIZE;
    let (down, across) = (m.rows / line, m.cols / line);
    let stride = m.dst_stride.unsigned_abs();
    let at = |row: usize, col: usize| {
        let from = src.wrapping_offset((row * line) as isize * m.src_stride).wrapping_add(col * LINE);
        (from, dst.wrapping_offset((col * line) as isize * m.dst_stride).wrapping_add(row * LINE))
    };
    if stride.is_multiple_of(FEW_SETS) && m.rows * m.cols * SIZE <= MOST_DIAGONAL {
        // One square beside the other would write lines that share few sets, and each store wait for one to be evicted.
        for turn in 0..down {
            let mut row = turn;
            for col in 0..across {
                let (from, to) = at(row, col);
                // SAFETY: a square inside the matrix.
                unsafe { square::<SIZE, N>(from, m.src_stride, to, m.dst_stride) };
                row = if row + 1 == down { 0 } else { row + 1 };
            }
        }
    } else {
        // Pairs of lines; off their boundaries a pair would touch three.
        let most = if (dst.addr() | stride).is_multiple_of(LINE) { 2 } else { 1 };
        let mut row = 0;
        while row < down {
            let rows = most.min(down - row);
            for col in 0..across {
                for row in row..row + rows {
                    let (from, to) = at(row, col);
                    // SAFETY: a square inside the matrix.
                    unsafe { square::<SIZE, N>(from, m.src_stride, to, m.dst_stride) };
                }
            }
            row += rows;
        }
    }
    if across * line < m.cols {
        for row in 0..down {
            let (from, to) = at(row, 0);
            // SAFETY: the last columns of a band inside the matrix, which has a line of them before.
            unsafe { line_band::<__m512i, SIZE, N, false>(m, across * line, m.cols, from, to) };
        }
    }
    // SAFETY: the rows that are left; there are at least `N` of both.
    unsafe { rest_avx512::<SIZE, N>(m, down * line, src, dst) };
}

/// A line of rows by a line of columns, of which each line of the source is read once.
///
/// # Safety
/// All of it is readable in `src` and writable in `dst`, at the strides. The CPU has AVX-512.
#[inline(always)]
unsafe fn square<const SIZE: usize, const N: usize>(
    src: *const u8,
    src_stride: isize,
    dst: *mut u8,
    dst_stride: isize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let first = lanes(src, N as isize * src_stride);
        let mut tiles = [[first[0]; N], [first[1]; N], [first[2]; N], [first[3]; N]];
        let mut i = 1;
        while i < N {
            let next = lanes(src.offset(i as isize * src_stride), N as isize * src_stride);
            tiles[0][i] = next[0];
            tiles[1][i] = next[1];
            tiles[2][i] = next[2];
            tiles[3][i] = next[3];
            i += 1;
        }
        let mut t = 0;
        while t < 4 {
            weave::<__m512i, SIZE, N, false>(tiles[t], dst.offset((t * N) as isize * dst_stride), dst_stride);
            t += 1;
        }
    }
}

/// Four lines, `stride` bytes apart: the first lane of each, the second, and so on.
///
/// # Safety
/// The lines are readable. The CPU has AVX-512.
#[inline(always)]
unsafe fn lanes(at: *const u8, stride: isize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (__m512i::load(at), __m512i::load(at.offset(stride)));
        let (c, d) = (__m512i::load(at.offset(2 * stride)), __m512i::load(at.offset(3 * stride)));
        let (ab_low, ab_high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
        let (cd_low, cd_high) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
        [
            _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low),
            _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low),
            _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
            _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{check_transpose, check_transpose_between_pages, has_avx512};

    fn of_size<const SIZE: usize, const N: usize>() {
        let (line, band) = (LINE / SIZE, BAND / SIZE);
        for rows in [1, line, band - 1, band, band + 1, 2 * band + line, 3 * band + 5] {
            for cols in [N, N + 1, line - 1, line, line + N, 2 * line + N - 1, 2 * line + N, 5 * line + 3] {
                for gap in [0, SIZE, 3] {
                    let to_lines = (rows * SIZE).wrapping_neg() % LINE;
                    check_transpose(transpose::<SIZE, N>, SIZE, [rows, cols], [gap, to_lines], 0);
                }
            }
        }
    }

    #[test]
    fn more_columns_than_a_stage_of_halves_has() {
        if !has_avx512() {
            return;
        }
        for cols in [LONG + 7, LONG + 8, LONG + LINE / 2 + 3, 2 * LONG + 9] {
            // Two bands.
            check_transpose(transpose::<2, 8>, 2, [BAND, cols], [2, 0], 0);
        }
    }

    #[test]
    fn near_matrices_in_every_order() {
        if !has_avx512() {
            return;
        }
        fn of_size<const SIZE: usize, const N: usize>() {
            let line = LINE / SIZE;
            // Of the first rows, lines share sets; the others are of one line, of pairs, and of a line that is left.
            for rows in [8 * line, 16 * line, 8 * line + 1, line, line + 1, 2 * line, 3 * line + N] {
                for cols in [line, line + 1, 2 * line, 3 * line + N + 1, 11 * line + 3] {
                    for (gaps, shift) in [([0, 0], 0), ([SIZE, 3 * LINE], 0), ([3, 7], 1 + cols % LINE)] {
                        check_transpose(near::<SIZE, N>, SIZE, [rows, cols], gaps, shift);
                    }
                    let few = (rows * SIZE).next_multiple_of(FEW_SETS) - rows * SIZE;
                    check_transpose(near::<SIZE, N>, SIZE, [rows, cols], [0, few], cols % 3);
                }
            }
        }
        of_size::<4, 4>();
        of_size::<8, 2>();
    }

    #[test]
    fn every_rest() {
        if !has_avx512() {
            return;
        }
        of_size::<2, 8>();
        of_size::<4, 4>();
        of_size::<8, 2>();
    }

    #[test]
    fn nothing_is_touched_around_the_operands() {
        if !has_avx512() {
            return;
        }
        fn of_size<const SIZE: usize, const N: usize>() {
            let band = BAND / SIZE;
            for (rows, cols) in [(3 * band, 260), (2 * band + band / 2, 301), (4 * band, 77), (band, N)] {
                // Of rows that are whole lines.
                check_transpose_between_pages(transpose::<SIZE, N>, SIZE, [rows, cols]);
            }
            let near_sides =
                [(3 * band, 260), (2 * band + 1, 257), (3 * band + band / 2, 301), (4 * band, 77)];
            // `near` is not looked up for elements of two bytes.
            for (rows, cols) in near_sides.into_iter().filter(|_| SIZE >= 4) {
                check_transpose_between_pages(near::<SIZE, N>, SIZE, [rows, cols]);
            }
        }
        of_size::<2, 8>();
        of_size::<4, 4>();
        of_size::<8, 2>();
    }

    #[test]
    fn lookup_takes_large_matrices_only() {
        for isa in Isa::available() {
            let m = Matrix { rows: 1000, cols: 1100, src_stride: 4400, dst_stride: 4032 };
            assert_eq!(lookup(isa, 4, m).is_some(), isa.level() >= Level::Avx512);
            assert!(lookup(isa, 4, Matrix { src_stride: 512, ..m }).is_none());
            assert!(lookup(isa, 4, Matrix { cols: 100, ..m }).is_none());
            for size in [2, 8] {
                assert_eq!(lookup(isa, size, m).is_some(), isa.level() >= Level::Avx512);
            }
            assert!(lookup(isa, 1, m).is_none() && lookup(isa, 16, m).is_none());
            assert_eq!(lookup_near(isa, 4, 32, 17).is_some(), isa.level() >= Level::Avx512);
            assert!(lookup_near(isa, 4, 32, 16).is_none());
            assert!(lookup_near(isa, 4, 15, 17).is_none() && lookup_near(isa, 8, 16, 7).is_none());
            assert!(lookup_near(isa, 2, 64, 64).is_none() && lookup_near(isa, 16, 64, 64).is_none());
        }
    }
}
