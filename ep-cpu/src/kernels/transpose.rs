//! Transposing matrices: what [`movement`](super::movement) is made of.
//!
//! Tiles of 16 bytes by as many rows are transposed in registers, a vector's worth of them side by side. How
//! the result is written depends on its size and on where its rows lie:
//!
//! - [`Mode::Cached`]: straight to the destination, with ordinary stores.
//! - [`Mode::Lines`]: past the cache, by whole lines, two of a row at a time: by way of a [`stage`], or at AVX-512 by
//!   [`pairs`](super::pairs), from registers, and [`squares`](super::squares), where [that pays](super::transpose_plan). Needs rows that start at lines.
//! - [`Mode::Panels`]: through a buffer in which a few lines of many destination rows are collected; what is
//!   written past the cache are the whole lines in it, and the rest waits there for its other part. Serves
//!   rows that start anywhere, where [`pairs`](super::pairs) do not.
//! - [`Mode::Block`]: the same for rows that are short but follow each other without gaps, as one long row.
//!
//! The source is walked along several rows at once, as sequential streams. Transposing square cache blocks
//! loses to power-of-two strides, where the lines of a block fall into few cache sets.

use super::groups;
use super::lanes::{LANE, Vector};
use super::lines::{LINE, flush_by};
use super::raw::prefetch;
use super::stage;
use super::tile::{band, line_band, tile};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use std::mem::MaybeUninit;

/// `dst[c * dst_stride + r * SIZE] = src[r * src_stride + c * SIZE]`, strides in bytes and of any sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) src_stride: isize,
    pub(super) dst_stride: isize,
}

/// How a destination is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Cached,
    /// The destination and its stride are multiples of [`LINE`].
    Lines,
    Panels,
    /// The stride of the destination is the length of its rows, at most [`BLOCK_ROW`] bytes.
    Block,
}

/// Bytes of the buffer that panels and blocks are collected in.
const SCRATCH: usize = 64 << 10;

/// The longest row that [`Mode::Block`] takes.
pub(super) const BLOCK_ROW: usize = 512;

/// The most columns that panels take: at least a line of each and one before it must fit their buffer.
pub(super) const PANEL_COLS: usize = SCRATCH / (2 * LINE);

/// Bytes of the buffer that panels use if they can.
const PANEL: usize = 24 << 10;

/// Bytes of a destination row that are collected before they are written, where the buffer has the room.
const PANEL_ROW: usize = 2048;

#[repr(C, align(64))]
struct Scratch([MaybeUninit<u8>; SCRATCH]);

/// Transposes a matrix of elements of a fixed size, `(matrix, src, dst)`, in one of the modes.
///
/// # Safety
/// All elements that the matrix names are readable in `src` and writable in `dst`, at any alignment; what the
/// [`Mode`] asks for holds. With any but [`Mode::Cached`] the caller fences afterwards. The CPU has the
/// instruction set that the function was looked up for.
pub(super) type Transpose = unsafe fn(Matrix, *const u8, *mut u8);

/// The function for elements of `size` bytes: 1, 2, 4, 8 or 16. Inlined, as a caller that knows the size and the mode
/// then looks nothing up but the level.
#[inline(always)]
pub(super) fn lookup(isa: Isa, size: usize, mode: Mode) -> Transpose {
    match size {
        1 => of::<1, 16>(isa, mode),
        2 => of::<2, 8>(isa, mode),
        4 => of::<4, 4>(isa, mode),
        8 => of::<8, 2>(isa, mode),
        _ => of::<16, 1>(isa, mode),
    }
}

// The modes are functions of their own: those with a buffer have a large frame, which small launches should not
// pay for.
#[inline(always)]
fn of<const SIZE: usize, const N: usize>(isa: Isa, mode: Mode) -> Transpose {
    match mode {
        Mode::Cached => at::<SIZE, N, CACHED>(isa),
        Mode::Lines => at::<SIZE, N, LINES>(isa),
        Mode::Panels => at::<SIZE, N, PANELS>(isa),
        Mode::Block => at::<SIZE, N, BLOCK>(isa),
    }
}

const CACHED: u8 = 0;
const LINES: u8 = 1;
const PANELS: u8 = 2;
const BLOCK: u8 = 3;

#[cfg(not(target_arch = "x86_64"))]
fn at<const SIZE: usize, const N: usize, const MODE: u8>(_: Isa) -> Transpose {
    transpose::<super::lanes::Portable, super::lanes::Portable, SIZE, N, MODE>
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn at<const SIZE: usize, const N: usize, const MODE: u8>(isa: Isa) -> Transpose {
    match isa.level() {
        Level::Baseline => x86::baseline::<SIZE, N, MODE>,
        Level::Avx2 => x86::avx2::<SIZE, N, MODE>,
        Level::Avx512 | Level::Amx => x86::avx512::<SIZE, N, MODE>,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Matrix, transpose};
    use std::arch::x86_64::{__m128i, __m256i, __m512i};

    /// # Safety
    /// As for [`super::Transpose`].
    pub(super) unsafe fn baseline<const SIZE: usize, const N: usize, const MODE: u8>(
        m: Matrix,
        src: *const u8,
        dst: *mut u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe { transpose::<__m128i, __m128i, SIZE, N, MODE>(m, src, dst) }
    }

    /// # Safety
    /// As for [`super::Transpose`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2<const SIZE: usize, const N: usize, const MODE: u8>(
        m: Matrix,
        src: *const u8,
        dst: *mut u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe { transpose::<__m256i, __m128i, SIZE, N, MODE>(m, src, dst) }
    }

    /// # Safety
    /// As for [`super::Transpose`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn avx512<const SIZE: usize, const N: usize, const MODE: u8>(
        m: Matrix,
        src: *const u8,
        dst: *mut u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe { transpose::<__m512i, __m128i, SIZE, N, MODE>(m, src, dst) }
    }
}

/// `V` is the widest vector and `W` one of a single lane; `N` is how many elements a lane has.
///
/// # Safety
/// As for [`Transpose`].
#[inline(always)]
unsafe fn transpose<V: Vector, W: Vector, const SIZE: usize, const N: usize, const MODE: u8>(
    m: Matrix,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise, for each of them.
    unsafe {
        match MODE {
            CACHED => cached::<V, W, SIZE, N>(m, src, dst),
            LINES => stage::transpose::<V, W, SIZE, N>(m, src, dst),
            PANELS => panels::<V, W, SIZE, N>(m, src, dst),
            _ => block::<V, W, SIZE, N>(m, src, dst),
        }
    }
}

/// The rows from `row` on, with ordinary stores. There are at least `N` rows and columns; the last tile may
/// repeat rows before `row`.
///
/// # Safety
/// As for [`Transpose`].
#[inline(always)]
pub(super) unsafe fn rest<V: Vector, W: Vector, const SIZE: usize, const N: usize>(
    m: Matrix,
    mut row: usize,
    src: *const u8,
    dst: *mut u8,
) {
    let line = 4 * N;
    // SAFETY: each band lies inside the matrix.
    unsafe {
        while row + line <= m.rows {
            let (from, to) = (src.offset(row as isize * m.src_stride), dst.add(row * SIZE));
            line_band::<V, SIZE, N, false>(m, 0, m.cols, from, to);
            row += line;
        }
        if V::Pair::LANES == 2 && row + 2 * N <= m.rows {
            let (from, to) = (src.offset(row as isize * m.src_stride), dst.add(row * SIZE));
            band::<V::Pair, SIZE, N, 1, false>(m, 0, m.cols, from, to);
            row += 2 * N;
        }
        while row < m.rows {
            let at = row.min(m.rows - N);
            let (from, to) = (src.offset(at as isize * m.src_stride), dst.add(at * SIZE));
            band::<W, SIZE, N, 1, false>(m, 0, m.cols, from, to);
            row = at + N;
        }
    }
}

/// The rows from `row` on, at AVX-512, with ordinary stores. There are at least `N` rows and columns.
///
/// # Safety
/// As for [`Transpose`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn rest_avx512<const SIZE: usize, const N: usize>(
    m: Matrix,
    row: usize,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe { rest::<std::arch::x86_64::__m512i, std::arch::x86_64::__m128i, SIZE, N>(m, row, src, dst) }
}

/// What [`squares`](super::squares) leaves, at AVX-512: by whole lines where there may be some.
///
/// # Safety
/// As for [`Transpose`], with [`Mode::Lines`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn left_avx512<const SIZE: usize, const N: usize>(m: Matrix, src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { x86::avx512::<SIZE, N, LINES>(m, src, dst) }
}

/// # Safety
/// As for [`Transpose`].
#[inline(always)]
pub(super) unsafe fn cached<V: Vector, W: Vector, const SIZE: usize, const N: usize>(
    m: Matrix,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if m.rows >= N && m.cols >= N {
            rest::<V, W, SIZE, N>(m, 0, src, dst);
        } else if groups::<SIZE>(m, src, dst) {
            // Few rows or columns without gaps: done.
        } else if m.cols >= N {
            interleave::<W, SIZE, N>(m, src, dst);
        } else if m.rows >= 4 * N {
            deinterleave::<V, SIZE, N>(m, src, dst);
        } else {
            elements::<SIZE>(m, 0, 0, src, dst);
        }
    }
}

/// Transposes two, three or four dense rows or columns of small elements, which become or were groups without
/// gaps; `false` if the matrix is no such.
///
/// # Safety
/// As for [`Transpose`].
#[inline(always)]
unsafe fn groups<const SIZE: usize>(m: Matrix, src: *const u8, dst: *mut u8) -> bool {
    // SAFETY: the caller's promise; elements of that size may lie at any address.
    unsafe {
        match SIZE {
            1 => groups::transpose::<u8>(m, src, dst),
            2 => groups::transpose::<groups::Unaligned<u16>>(m, src, dst),
            4 => groups::transpose::<groups::Unaligned<u32>>(m, src, dst),
            _ => false,
        }
    }
}

/// One by one: the rows from `row` on and, in the rows before, the columns from `col` on.
///
/// # Safety
/// As for [`Transpose`].
#[inline(always)]
unsafe fn elements<const SIZE: usize>(m: Matrix, row: usize, col: usize, src: *const u8, dst: *mut u8) {
    for c in 0..m.cols {
        for r in if c < col { row } else { 0 }..m.rows {
            // SAFETY: the element is one of the matrix.
            unsafe {
                let from = src.offset(r as isize * m.src_stride).add(c * SIZE);
                let to = dst.offset(c as isize * m.dst_stride).add(r * SIZE);
                to.cast::<[u8; SIZE]>().write(from.cast::<[u8; SIZE]>().read());
            }
        }
    }
}

/// Few rows, which become groups: tiles with too few rows, of which every column is stored whole where the
/// next one then overwrites what is too much.
///
/// # Safety
/// As for [`Transpose`]; fewer than `N` rows, at least `N` columns.
#[inline(always)]
unsafe fn interleave<W: Vector, const SIZE: usize, const N: usize>(m: Matrix, src: *const u8, dst: *mut u8) {
    let group = m.rows * SIZE;
    let dense = m.dst_stride == group as isize;
    let mut lanes = [[0u8; LANE]; 16];
    let mut tile_rows = [[0u8; LANE]; 16];
    let mut col = 0;
    // What is stored too much must end inside the matrix too.
    while col + N <= m.cols && (!dense || (col + N - 1) * group + LANE <= m.cols * group) {
        for (r, lane) in tile_rows[..m.rows].iter_mut().enumerate() {
            // SAFETY: `N` elements, which are a lane, from column `col` on.
            *lane =
                unsafe { src.offset(r as isize * m.src_stride).add(col * SIZE).cast::<[u8; LANE]>().read() };
        }
        // SAFETY: `N` lanes on both sides.
        unsafe {
            tile::<W, SIZE, N, false>(
                tile_rows.as_ptr().cast(),
                LANE as isize,
                lanes.as_mut_ptr().cast(),
                LANE as isize,
            );
        }
        for (c, lane) in lanes[..N].iter().enumerate() {
            // SAFETY: the column is one of the matrix; with `dense`, a whole lane ends inside it.
            unsafe {
                let to = dst.offset((col + c) as isize * m.dst_stride);
                if dense {
                    to.cast::<[u8; LANE]>().write(*lane);
                } else {
                    to.copy_from_nonoverlapping(lane.as_ptr(), group);
                }
            }
        }
        col += N;
    }
    // SAFETY: the columns that are left.
    unsafe { elements::<SIZE>(m, m.rows, col, src, dst) };
}

/// Few columns, which were groups: tiles that read past the end of each row, into the next.
///
/// # Safety
/// As for [`Transpose`]; fewer than `N` columns, at least a line of rows.
#[inline(always)]
unsafe fn deinterleave<V: Vector, const SIZE: usize, const N: usize>(
    m: Matrix,
    src: *const u8,
    dst: *mut u8,
) {
    let line = V::LANES * N;
    let too_much = LANE - m.cols * SIZE;
    // Rows whose lane ends inside the last row.
    let safe = match usize::try_from(m.src_stride) {
        Ok(stride) if stride > 0 => m.rows.saturating_sub(too_much.div_ceil(stride)),
        _ => 0,
    };
    let mut lines = [[0u8; LINE]; 16];
    let mut row = 0;
    while row + line <= safe {
        // SAFETY: all of the rows have a lane to read; there are `N` lines to write.
        unsafe {
            let from = src.offset(row as isize * m.src_stride);
            tile::<V, SIZE, N, false>(from, m.src_stride, lines.as_mut_ptr().cast(), LINE as isize);
        }
        for (c, line) in lines[..m.cols].iter().enumerate() {
            // SAFETY: that many rows from `row` on, in a column of the matrix.
            unsafe {
                let to = dst.offset(c as isize * m.dst_stride).add(row * SIZE);
                to.copy_from_nonoverlapping(line.as_ptr(), V::LANES * LANE);
            }
        }
        row += line;
    }
    // SAFETY: the rows that are left.
    unsafe { elements::<SIZE>(m, row, m.cols, src, dst) };
}

/// # Safety
/// As for [`Transpose`]; at most [`PANEL_COLS`] columns.
#[inline(always)]
unsafe fn panels<V: Vector, W: Vector, const SIZE: usize, const N: usize>(
    m: Matrix,
    src: *const u8,
    dst: *mut u8,
) {
    let mut scratch = Scratch([MaybeUninit::uninit(); SCRATCH]);
    let scratch = scratch.0.as_mut_ptr().cast::<u8>();
    // For each column a line of what is left from before, then the panel. Panels as large as the first-level cache
    // holds with their source, but longer ones where there are few columns.
    let slot = (PANEL / m.cols.max(1) / LINE * LINE).clamp(2 * LINE, PANEL_ROW + LINE);
    let panel_rows = (slot - LINE) / SIZE;
    // The source's lines: of each row, or, where rows follow each other, of all in one.
    let row_bytes = m.cols * SIZE;
    let (line_rows, line_bytes, line_stride) = match m.src_stride == row_bytes as isize {
        true => (1, panel_rows * row_bytes, 0),
        false => (panel_rows, row_bytes, m.src_stride),
    };
    let row_lines = line_bytes.div_ceil(LINE);
    let ahead = (line_rows * row_lines).div_ceil(m.cols.max(1));
    let mut row = 0;
    while row < m.rows {
        let rows = panel_rows.min(m.rows - row);
        let panel = Matrix { rows, cols: m.cols, src_stride: m.src_stride, dst_stride: slot as isize };
        // The next panel's source is asked for while this one is written: tiles read it in an order that hardware
        // does not see through.
        let next_lines = if row + rows < m.rows { line_rows * row_lines } else { 0 };
        let next = src.wrapping_offset((row + rows) as isize * m.src_stride);
        // SAFETY: the rows are the matrix's; each column has room for `panel_rows` in its slot.
        unsafe {
            cached::<V, W, SIZE, N>(panel, src.offset(row as isize * m.src_stride), scratch.add(LINE));
            for col in 0..m.cols {
                for line in col * ahead..((col + 1) * ahead).min(next_lines) {
                    let (r, at) = (line / row_lines, line % row_lines * LINE);
                    prefetch(next.wrapping_offset(r as isize * line_stride).wrapping_add(at));
                }
                let to = dst.offset(col as isize * m.dst_stride).add(row * SIZE);
                flush_by::<V>(scratch.add(col * slot), to, rows * SIZE, row > 0, row + rows == m.rows);
            }
        }
        row += rows;
    }
}

/// # Safety
/// As for [`Transpose`] with [`Mode::Block`].
#[inline(always)]
unsafe fn block<V: Vector, W: Vector, const SIZE: usize, const N: usize>(
    m: Matrix,
    src: *const u8,
    dst: *mut u8,
) {
    let mut scratch = Scratch([MaybeUninit::uninit(); SCRATCH]);
    let scratch = scratch.0.as_mut_ptr().cast::<u8>();
    let row_bytes = m.rows * SIZE;
    // Whole lines, so that each block begins in its line where the first does.
    let block_cols = (SCRATCH / 4 - LINE) / row_bytes / LINE * LINE;
    let block_cols = if block_cols == 0 { LINE } else { block_cols };
    let mut col = 0;
    while col < m.cols {
        let cols = block_cols.min(m.cols - col);
        let part = Matrix { cols, dst_stride: row_bytes as isize, ..m };
        // SAFETY: the columns are the matrix's; `block_cols * row_bytes` fit behind the first line, as rows have at
        // most `BLOCK_ROW` bytes.
        unsafe {
            cached::<V, W, SIZE, N>(part, src.add(col * SIZE), scratch.add(LINE));
            flush_by::<V>(scratch, dst.add(col * row_bytes), cols * row_bytes, col > 0, col + cols == m.cols);
        }
        col += cols;
    }
}
