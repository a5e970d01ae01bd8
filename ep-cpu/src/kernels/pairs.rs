//! Transposing large matrices by pairs of lines: what [`transpose`](super::transpose) does at AVX-512 unless
//! [`squares`](super::squares) do better, where it [pays](super::transpose_plan).
//!
//! Two lines of rows are taken at once, some columns at a time, and the two lines that each column becomes are written
//! past the cache one right after the other, from registers: memory takes such pairs faster than single lines, and
//! faster than longer runs that had to pass through a stage.
//!
//! Where rows follow each other without gaps, the band below is asked for while one is written: columns are read in an
//! order that hardware does not see through.
//!
//! Rows of the destination may start anywhere. A column's vectors are then shifted by what its first line lacks, across
//! what is kept of the band above.

use super::lanes::{LANE, Vector};
use super::lines::LINE;
use super::raw::{prefetch, prefetch_l2};
use super::stage::{PAGE, below};
use super::tile::weave;
use super::transpose::{Matrix, Transpose, rest_avx512};
use crate::isa::{Isa, Level};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ptr;

/// The function for matrices like `m`, of elements of `size` bytes, whose destination rows start at lines, or for parts of
/// them; both have a line of rows and [`LANE`] bytes of columns at least.
pub(super) fn lookup(isa: Isa, size: usize, m: Matrix) -> Option<Transpose> {
    // Of two lines of rows, small elements have too many streams if they lie far apart.
    let streams = size < 4 && m.src_stride.unsigned_abs() >= PAGE;
    let short = m.cols * size < LANE || m.rows * size < LINE;
    if isa.level() < Level::Avx512 || short || streams {
        return None;
    }
    Some(match size {
        1 => transpose::<1, 16>,
        2 => transpose::<2, 8>,
        4 => transpose::<4, 4>,
        8 => transpose::<8, 2>,
        _ => transpose::<16, 1>,
    })
}

/// # Safety
/// As for [`Transpose`] with [`Mode::Lines`](super::transpose::Mode::Lines); the CPU has AVX-512, and there are at least a
/// line of rows and `N` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn transpose<const SIZE: usize, const N: usize>(m: Matrix, src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's promise; rows from a multiple of a line on start at lines.
    unsafe { bands::<SIZE, N, false>(m, src, dst, ptr::null_mut()) };
}

/// The most columns of a matrix whose destination rows do not start at lines.
pub(super) const MOST_COLS: usize = 1024;

/// Bytes of a destination row from which [`phased`] pays.
const LEAST_ROW: usize = 6 * LINE;

#[repr(C, align(64))]
struct Kept([MaybeUninit<u8>; MOST_COLS * LINE]);

/// The function for parts of matrices like `m` whose destination rows start at multiples of every power of two that `at` is a
/// multiple of. Parts have a line of rows, and columns from [`LANE`] bytes of them to [`MOST_COLS`].
pub(super) fn lookup_phased(isa: Isa, size: usize, m: Matrix, at: usize) -> Option<Transpose> {
    let short = m.cols * size < LANE || m.rows * size < LEAST_ROW;
    if isa.level() < Level::Avx512 || short || !at.is_multiple_of(unit(size)) {
        return None;
    }
    match size {
        // Even where rows lie far apart, as the other way collects them in panels.
        2 => Some(phased::<2, 8>),
        4 => Some(phased::<4, 4>),
        8 => Some(phased::<8, 2>),
        16 => Some(phased::<16, 1>),
        // Bytes are not shuffled across lanes at that level.
        _ => None,
    }
}

/// # Safety
/// As for [`Transpose`]; the CPU has AVX-512, there are at least a line of rows, at least `N` columns and at most
/// [`MOST_COLS`], and destination rows start at multiples of [`unit`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn phased<const SIZE: usize, const N: usize>(m: Matrix, src: *const u8, dst: *mut u8) {
    debug_assert!(m.cols <= MOST_COLS);
    let mut kept = Kept([MaybeUninit::uninit(); MOST_COLS * LINE]);
    // SAFETY: the caller's promise; there is a line for each column.
    unsafe { bands::<SIZE, N, true>(m, src, dst, kept.0.as_mut_ptr().cast()) };
}

/// Two lines of rows at a time, then what is left. If `PHASED`, what a band leaves of a line of each column is kept for
/// the band below.
///
/// # Safety
/// As for [`transpose`] or, if `PHASED`, [`phased`], with `kept` as in [`To`].
#[inline(always)]
unsafe fn bands<const SIZE: usize, const N: usize, const PHASED: bool>(
    m: Matrix,
    src: *const u8,
    dst: *mut u8,
    kept: *mut u8,
) {
    let line = LINE / SIZE;
    let whole = m.rows / line * line;
    debug_assert!(whole > 0 && m.cols >= N);
    let mut row = 0;
    // SAFETY: each band lies inside the matrix; what is left is less than a line of rows, behind one at least, which has `N`.
    unsafe {
        while row < whole {
            let rows = (whole - row).min(2 * line);
            let from = src.offset(row as isize * m.src_stride);
            let ends = [row == 0, row + rows == whole];
            let to = To { dst: dst.add(row * SIZE), stride: m.dst_stride, ends, kept };
            if rows > line {
                band::<SIZE, N, 2, PHASED>(m, from, to);
            } else {
                band::<SIZE, N, 1, PHASED>(m, from, to);
            }
            row += rows;
        }
        if row < m.rows {
            rest_avx512::<SIZE, N>(m, row, src, dst);
        }
    }
}

/// Where a band goes.
#[derive(Clone, Copy)]
struct To {
    /// The first column.
    dst: *mut u8,
    stride: isize,
    /// Whether the columns begin here, and whether they end behind this band.
    ends: [bool; 2],
    /// A line for each column if they start anywhere, with what the band above left there.
    kept: *mut u8,
}

/// `LINES` lines of rows, all columns of them: half a line of columns at a time, or a quarter.
///
/// # Safety
/// As for [`transpose`] or, if `PHASED`, [`phased`], for so many rows; there are a quarter of a line of columns at least.
#[inline(always)]
unsafe fn band<const SIZE: usize, const N: usize, const LINES: usize, const PHASED: bool>(
    m: Matrix,
    src: *const u8,
    to: To,
) {
    let mut below = below(m, SIZE, LINES * LINE * m.cols, src);
    let mut done = 0;
    while done < m.cols {
        // Columns of half a line are read in one piece, but those of small elements would take all registers.
        let cols = if SIZE >= 4 && m.cols - done > N && m.cols >= 2 * N { 2 * N } else { N };
        // The last may begin with some of those before, less than a quarter, which are not written again.
        let col = done.min(m.cols - cols);
        let skip = done - col;
        if let Some((next, far)) = &mut below {
            // As many lines as are read here.
            for _ in 0..LINES * cols {
                if *far {
                    prefetch_l2(*next)
                } else {
                    prefetch(*next)
                }
                *next = next.wrapping_add(LINE);
            }
        }
        // SAFETY: `cols` columns from `col` on, in these rows.
        unsafe {
            let from = src.add(col * SIZE);
            // Only used where there are rows below.
            let below = from.wrapping_offset((LINE / SIZE) as isize * m.src_stride);
            if cols == N {
                let mut lines = [quarter::<SIZE, N>(from, m.src_stride); LINES];
                if LINES == 2 {
                    lines[1] = quarter::<SIZE, N>(below, m.src_stride);
                }
                put_lines::<SIZE, N, LINES, PHASED>(lines, col, skip, to);
            } else {
                let [first, second] = half::<SIZE, N>(from, m.src_stride);
                let (mut first, mut second) = ([first; LINES], [second; LINES]);
                if LINES == 2 {
                    [first[1], second[1]] = half::<SIZE, N>(below, m.src_stride);
                }
                put_lines::<SIZE, N, LINES, PHASED>(first, col, skip, to);
                put_lines::<SIZE, N, LINES, PHASED>(second, col + N, 0, to);
            }
        }
        done = col + cols;
    }
}

/// Writes columns from `first` on, but not the first `skip` of them: the lines of each past the cache, one behind the other.
///
/// # Safety
/// As for [`band`], for those columns.
#[inline(always)]
unsafe fn put_lines<const SIZE: usize, const N: usize, const LINES: usize, const PHASED: bool>(
    lines: [[__m512i; N]; LINES],
    first: usize,
    skip: usize,
    to: To,
) {
    let mut i = 0;
    while i < N {
        if i >= skip {
            let mut column = [lines[0][i]; LINES];
            if LINES == 2 {
                column[1] = lines[1][i];
            }
            // SAFETY: the caller's promise.
            unsafe {
                let dst = to.dst.offset((first + i) as isize * to.stride);
                if PHASED {
                    put_phased::<SIZE, LINES>(column, dst, to.ends, to.kept.add((first + i) * LINE));
                } else {
                    let mut line = 0;
                    while line < LINES {
                        column[line].stream(dst.add(line * LINE));
                        line += 1;
                    }
                }
            }
        }
        i += 1;
    }
}

/// Writes the whole lines that lie in what is kept and in `lines`, and keeps what is over.
///
/// # Safety
/// `dst` is a multiple of [`unit`], and writable for `lines` and, unless this is the first band, from its line's start; `kept` is
/// a line, which the band above has written unless this is the first. The CPU has AVX-512.
#[inline(always)]
unsafe fn put_phased<const SIZE: usize, const LINES: usize>(
    lines: [__m512i; LINES],
    dst: *mut u8,
    [first, last]: [bool; 2],
    kept: *mut u8,
) {
    let phase = dst.addr() % LINE;
    let start = dst.wrapping_sub(phase);
    // SAFETY: the caller's promise; of a line that is not whole only the elements of the column are written.
    unsafe {
        let before = if first { lines[0] } else { __m512i::load(kept) };
        let whole = shifted::<SIZE>(before, lines[0], phase);
        if first && phase > 0 {
            put_some::<SIZE>(whole, start, u64::MAX << (phase / unit(SIZE)));
        } else {
            whole.stream(start);
        }
        let mut line = 1;
        while line < LINES {
            shifted::<SIZE>(lines[line - 1], lines[line], phase).stream(start.wrapping_add(line * LINE));
            line += 1;
        }
        let over = lines[LINES - 1];
        if !last {
            over.store(kept);
        } else if phase > 0 {
            let over = shifted::<SIZE>(over, over, phase);
            put_some::<SIZE>(over, start.wrapping_add(LINES * LINE), !(u64::MAX << (phase / unit(SIZE))));
        }
    }
}

/// Bytes of what is moved across lanes for elements of `size` bytes.
const fn unit(size: usize) -> usize {
    if size > 8 { 8 } else { size }
}

#[repr(C, align(64))]
struct Counted([u8; 2 * LINE]);

/// The numbers of the units of two lines.
const fn counted<const SIZE: usize>() -> Counted {
    let mut bytes = [0; 2 * LINE];
    let mut i = 0;
    while i < 2 * LINE / unit(SIZE) {
        bytes[i * unit(SIZE)] = i as u8;
        i += 1;
    }
    Counted(bytes)
}

/// The last `phase` bytes of a line, and the first of the next.
///
/// # Safety
/// The CPU has AVX-512; `phase` is a multiple of [`unit`], and less than a line.
#[inline(always)]
unsafe fn shifted<const SIZE: usize>(line: __m512i, next: __m512i, phase: usize) -> __m512i {
    // SAFETY: the caller's promise; the table has two lines.
    unsafe {
        let order = __m512i::load(const { &counted::<SIZE>() }.0.as_ptr().add(LINE - phase));
        match SIZE {
            2 => _mm512_permutex2var_epi16(line, order, next),
            4 => _mm512_permutex2var_epi32(line, order, next),
            _ => _mm512_permutex2var_epi64(line, order, next),
        }
    }
}

/// Stores those units of a vector that `mask` has.
///
/// # Safety
/// They are writable at `at`, and the CPU has AVX-512.
#[inline(always)]
unsafe fn put_some<const SIZE: usize>(v: __m512i, at: *mut u8, mask: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match SIZE {
            2 => _mm512_mask_storeu_epi16(at.cast(), mask as __mmask32, v),
            4 => _mm512_mask_storeu_epi32(at.cast(), mask as __mmask16, v),
            _ => _mm512_mask_storeu_epi64(at.cast(), mask as __mmask8, v),
        }
    }
}

/// A line of rows by a quarter of a line of columns: the columns.
///
/// # Safety
/// [`LANE`] bytes of each row are readable at `src`, and the CPU has AVX-512.
#[inline(always)]
unsafe fn quarter<const SIZE: usize, const N: usize>(src: *const u8, stride: isize) -> [__m512i; N] {
    let down = N as isize * stride;
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [__m512i::gather(src, down); N];
        let mut i = 1;
        while i < N {
            rows[i] = __m512i::gather(src.offset(i as isize * stride), down);
            i += 1;
        }
        woven::<SIZE, N>(rows)
    }
}

/// A line of rows by half a line of columns: the first columns, and the others.
///
/// # Safety
/// Twice a [`LANE`] of bytes of each row are readable at `src`, and the CPU has AVX-512.
#[inline(always)]
unsafe fn half<const SIZE: usize, const N: usize>(src: *const u8, stride: isize) -> [[__m512i; N]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        // Of the first rows and of those `2 * N` below, then of the rows between and behind: each has one lane in two of a
        // column, beside those of the column `N` further on.
        let upper = woven::<SIZE, N>(lanes(src, stride));
        let lower = woven::<SIZE, N>(lanes(src.offset(N as isize * stride), stride));
        let even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
        let odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
        let mut columns = [upper; 2];
        let mut i = 0;
        while i < N {
            columns[0][i] = _mm512_permutex2var_epi64(upper[i], even, lower[i]);
            columns[1][i] = _mm512_permutex2var_epi64(upper[i], odd, lower[i]);
            i += 1;
        }
        columns
    }
}

/// The columns of tiles, whose rows are given: [`weave`] into registers.
///
/// # Safety
/// The CPU has AVX-512.
#[inline(always)]
unsafe fn woven<const SIZE: usize, const N: usize>(rows: [__m512i; N]) -> [__m512i; N] {
    let mut columns = rows;
    // SAFETY: the caller's promise; `N` vectors, one behind the other.
    unsafe { weave::<__m512i, SIZE, N, false>(rows, columns.as_mut_ptr().cast(), LINE as isize) };
    columns
}

/// Two lanes of each of `N` rows, and beside them of those `2 * N` rows below.
///
/// # Safety
/// Twice a [`LANE`] of bytes of each row are readable at `src`, and the CPU has AVX-512.
#[inline(always)]
unsafe fn lanes<const N: usize>(src: *const u8, stride: isize) -> [__m512i; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [_mm512_setzero_si512(); N];
        let mut i = 0;
        while i < N {
            let at = src.offset(i as isize * stride);
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(at.cast()));
            let high = _mm256_loadu_si256(at.offset(2 * N as isize * stride).cast());
            rows[i] = _mm512_inserti64x4::<1>(low, high);
            i += 1;
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{check_transpose, check_transpose_between_pages, has_avx512};

    /// Rows and columns around all that is done at once: lines and pairs of them, quarters and halves of lines.
    fn sides<const SIZE: usize, const N: usize>() -> ([usize; 8], [usize; 8]) {
        let line = LINE / SIZE;
        let rows =
            [line, line + 1, 2 * line - 1, 2 * line, 3 * line + N, 4 * line, 6 * line + 1, 7 * line - 1];
        (rows, [N, N + 1, 2 * N, 2 * N + 1, 3 * N, 4 * N - 1, 5 * N + 1, 8 * N + N / 2])
    }

    #[test]
    fn whole_lines() {
        if !has_avx512() {
            return;
        }
        fn of_size<const SIZE: usize, const N: usize>() {
            let (rows, cols) = sides::<SIZE, N>();
            for (rows, cols) in rows.into_iter().flat_map(|r| cols.map(|c| (r, c))) {
                for gap in [0, SIZE, 3] {
                    let to_lines = (rows * SIZE).wrapping_neg() % LINE;
                    check_transpose(transpose::<SIZE, N>, SIZE, [rows, cols], [gap, to_lines], 0);
                }
            }
            // The band below is asked for as far as second-level cache only.
            check_transpose(transpose::<SIZE, N>, SIZE, [4 * LINE / SIZE, 200], [0, 0], 0);
        }
        of_size::<1, 16>();
        of_size::<2, 8>();
        of_size::<4, 4>();
        of_size::<8, 2>();
        of_size::<16, 1>();
    }

    #[test]
    fn every_phase() {
        if !has_avx512() {
            return;
        }
        fn of_size<const SIZE: usize, const N: usize>() {
            let (rows, cols) = sides::<SIZE, N>();
            let unit = unit(SIZE);
            for (rows, cols) in rows.into_iter().flat_map(|r| cols.map(|c| (r, c))) {
                // The same phase for all columns, and others for each.
                let same = (rows * SIZE).wrapping_neg() % LINE;
                check_transpose(
                    phased::<SIZE, N>,
                    SIZE,
                    [rows, cols],
                    [0, same],
                    (rows + cols) * unit % LINE,
                );
                check_transpose(phased::<SIZE, N>, SIZE, [rows, cols], [3, 7 * unit], cols * unit % LINE);
                check_transpose(phased::<SIZE, N>, SIZE, [rows, cols], [0, 0], 0);
            }
            for phase in 0..LINE / unit {
                check_transpose(phased::<SIZE, N>, SIZE, [2 * LINE / SIZE, N], [0, 0], phase * unit);
            }
            check_transpose(phased::<SIZE, N>, SIZE, [3 * LINE / SIZE, MOST_COLS], [0, 0], unit);
        }
        of_size::<2, 8>();
        of_size::<4, 4>();
        of_size::<8, 2>();
        of_size::<16, 1>();
    }

    #[test]
    fn nothing_is_touched_around_the_operands() {
        if !has_avx512() {
            return;
        }
        fn of_size<const SIZE: usize, const N: usize>() {
            let (_, cols) = sides::<SIZE, N>();
            let line = LINE / SIZE;
            for cols in cols {
                for rows in [line, 3 * line] {
                    // Rows of whole lines in pages that begin at lines.
                    check_transpose_between_pages(transpose::<SIZE, N>, SIZE, [rows, cols]);
                }
                for rows in [line, 2 * line + 1, 4 * line - 1].into_iter().filter(|_| SIZE > 1) {
                    check_transpose_between_pages(phased::<SIZE, N>, SIZE, [rows, cols]);
                }
            }
        }
        of_size::<1, 16>();
        of_size::<2, 8>();
        of_size::<4, 4>();
        of_size::<8, 2>();
        of_size::<16, 1>();
    }

    #[test]
    fn lookup_takes_what_pays() {
        for isa in Isa::available() {
            let m = Matrix { rows: 1000, cols: 128, src_stride: 512, dst_stride: 4032 };
            let has = isa.level() >= Level::Avx512;
            for size in [1, 2, 4, 8, 16] {
                assert_eq!(lookup(isa, size, m).is_some(), has);
                assert!(lookup(isa, size, Matrix { cols: 15 / size, ..m }).is_none());
                assert_eq!(lookup(isa, size, Matrix { src_stride: -4096, ..m }).is_some(), has && size >= 4);
                assert_eq!(lookup_phased(isa, size, m, 16).is_some(), has && size > 1);
                assert!(lookup_phased(isa, size, m, 4097).is_none());
                assert!(lookup_phased(isa, size, Matrix { rows: 383 / size, ..m }, 16).is_none());
            }
            assert_eq!(lookup_phased(isa, 16, m, 8).is_some(), has);
            assert!(lookup_phased(isa, 8, m, 4).is_none());
        }
    }
}
