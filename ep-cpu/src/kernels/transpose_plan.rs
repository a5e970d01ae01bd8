//! How a transpose is written, by which kernel, and in which pieces of work: what [`movement`](super::movement) does with the
//! matrices it finds.

use super::lanes::LANE;
use super::lines::LINE;
#[cfg(target_arch = "x86_64")]
use super::stage::PAGE;
use super::stream;
use super::transpose::{self, BLOCK_ROW, Matrix, Mode, Transpose};
#[cfg(target_arch = "x86_64")]
use super::{pairs, squares};
use crate::isa::Isa;
use std::ops::Range;

/// Bytes written from which a transpose goes past the cache. Far below what is so for a plain copy: the rows of a
/// matrix lie far apart, and those a power of two apart share few cache sets. (Less in tests, so that small tensors
/// go every way.)
pub(super) const STREAM_TRANSPOSE: usize = if cfg!(test) { 16 << 10 } else { 2 << 20 };

/// The same on CPUs that [share a cache](stream::shares_cache) and so find there what they write: for whole lines, and otherwise.
/// Both sides together are then some 12 and 20 MiB, of 32.
const STREAM_SHARED: [usize; 2] = if cfg!(test) { [STREAM_TRANSPOSE; 2] } else { [6 << 20, 10 << 20] };

/// Bytes of a row of the destination that is long.
const LONG: usize = 32 * LINE;

/// A length cut into pieces of `step`, of which the last takes what is left over: it is never shorter, so that a
/// tile always fits one.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    len: usize,
    step: usize,
    pub(super) count: usize,
}

impl Pieces {
    pub(super) fn new(len: usize, step: usize) -> Self {
        Self { len, step, count: (len / step).max(1) }
    }

    /// The pieces `first..end` as one.
    pub(super) fn span(&self, first: usize, end: usize) -> Range<usize> {
        first * self.step..if end == self.count { self.len } else { end * self.step }
    }
}

/// How matrices like each other are transposed.
pub(super) struct Plan {
    pub(super) mode: Mode,
    /// For whole matrices, or for [`Pieces`] of `steps`; unless the mode is [`Mode::Panels`] for neighbouring ones as one, too.
    pub(super) kernel: Transpose,
    /// Rows and columns of the source in a piece of work, for [`Pieces`].
    pub(super) steps: [usize; 2],
}

impl Plan {
    /// For `batch` matrices like `m`, of elements of `size` bytes. All columns of their destinations start at multiples of every
    /// power of two that `at` is a multiple of.
    pub(super) fn new(isa: Isa, size: usize, m: Matrix, batch: usize, at: usize, threads: usize) -> Plan {
        let mode = mode(size, m, batch, at);
        let steps = steps(mode, size, [m.rows, m.cols], threads);
        #[cfg(target_arch = "x86_64")]
        match mode {
            Mode::Lines => {
                let [by_squares, by_pairs] = pays(size, m, stream::suits_intel());
                if by_squares && let Some(kernel) = squares::lookup(isa, size, m) {
                    return Plan { mode, kernel, steps: [2 * LINE / size, steps[1]] };
                } else if by_pairs && let Some(kernel) = pairs::lookup(isa, size, m) {
                    return Plan { mode, kernel, steps };
                }
            }
            Mode::Panels => {
                if let Some(kernel) = pairs::lookup_phased(isa, size, m, at) {
                    return Plan { mode, kernel, steps: steps_of_phased(size, m, batch, threads) };
                }
            }
            Mode::Cached | Mode::Block => {}
        }
        let kernel = match mode {
            Mode::Cached => cached(isa, size, m.rows, m.cols),
            _ => transpose::lookup(isa, size, mode),
        };
        Plan { mode, kernel, steps }
    }
}

/// Whether [`squares`], and [`pairs`], are faster than what they stand for. A core of AMD's Zen 4 takes up to twice as long for squares
/// of larger elements, and for pairs of elements of four bytes up to half as long again where rows of the destination lie less than a
/// page apart.
#[cfg(target_arch = "x86_64")]
fn pays(size: usize, m: Matrix, suits_intel: bool) -> [bool; 2] {
    let long = m.dst_stride.unsigned_abs() >= PAGE;
    [suits_intel || size < 4, suits_intel || size != 4 || long]
}

/// The kernel for a matrix that the cache holds, or for parts of it of a line of rows and columns at least.
#[inline(always)]
pub(super) fn cached(isa: Isa, size: usize, rows: usize, cols: usize) -> Transpose {
    #[cfg(target_arch = "x86_64")]
    if let Some(squares) = squares::lookup_near(isa, size, rows, cols) {
        return squares;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (rows, cols);
    transpose::lookup(isa, size, Mode::Cached)
}

/// The same as [`steps`] for [`pairs::lookup_phased`]: parts of the destination's rows for all threads, each of which begins and
/// ends in lines that it shares, and fewer columns only where those are too few. The last piece may be almost two.
#[cfg(target_arch = "x86_64")]
fn steps_of_phased(size: usize, m: Matrix, batch: usize, threads: usize) -> [usize; 2] {
    const FEW_COLS: usize = 128;
    let line = LINE / size;
    let mut cols = pairs::MOST_COLS / 2;
    let parts = 4 * threads / (batch * (m.cols / cols).max(1));
    let rows = (m.rows / parts.max(1)).clamp(LONG / 2 / size, 4 * LONG / size).next_multiple_of(line);
    let pieces = |cols: usize| batch * Pieces::new(m.rows, rows).count * Pieces::new(m.cols, cols).count;
    while pieces(cols) < threads + threads / 2 && cols > FEW_COLS {
        cols /= 2;
    }
    [rows, cols]
}

/// Rows and columns of the source in a piece of work.
fn steps(mode: Mode, size: usize, [rows, cols]: [usize; 2], threads: usize) -> [usize; 2] {
    let line = LINE / size;
    match mode {
        // Whole rows of the destination for each thread, if there are some for all: of parts of rows two threads would write the
        // first and the last line, and hand both to and fro.
        Mode::Cached if cols >= 2 * line * threads.max(2) => [rows, line],
        Mode::Cached => [2 * line, 2048],
        Mode::Lines => [4 * line, 2048],
        Mode::Panels => [8192 / size, (512 / size).min(transpose::PANEL_COLS / 2)],
        Mode::Block => [rows, ((64 << 10) / (rows * size)).next_multiple_of(LINE)],
    }
}

/// How to write `batch` matrices like `m`.
fn mode(size: usize, m: Matrix, batch: usize, at: usize) -> Mode {
    /// Rows too short for a panel cost more in parts of lines than whole lines save.
    const PANEL: usize = 4 * LINE;
    let row_bytes = m.rows * size;
    // Groups without gaps, too few for tiles: the source is one stream whatever the panels are.
    let sequential = m.src_stride == (m.cols * size) as isize && m.cols * size < LANE;
    let lines = row_bytes >= LINE && at.is_multiple_of(LINE);
    let [by_lines, otherwise] = if stream::shares_cache() { STREAM_SHARED } else { [STREAM_TRANSPOSE; 2] };
    if !stream::reaches(batch * m.cols * row_bytes, if lines { by_lines } else { otherwise }) {
        Mode::Cached
    } else if sequential && row_bytes >= LONG {
        Mode::Panels
    } else if lines {
        Mode::Lines
    } else if row_bytes >= PANEL {
        Mode::Panels
    } else if m.dst_stride == row_bytes as isize && row_bytes <= BLOCK_ROW && row_bytes * m.cols >= PANEL {
        Mode::Block
    } else {
        Mode::Cached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Level;

    /// Where memory is not treated as Intel's cores like it, squares are for halves, and pairs of four bytes for long rows.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_pays_depends_on_the_cpu() {
        let m = |dst_stride| Matrix { rows: 1000, cols: 3000, src_stride: 12_000, dst_stride };
        for size in [1, 2, 4, 8, 16] {
            assert_eq!(pays(size, m(512), true), [true; 2]);
            assert_eq!(pays(size, m(512), false), [size < 4, size != 4]);
            assert_eq!(pays(size, m(-4096), false), [size < 4, true]);
        }
    }

    /// What is written at AVX-512 where rows start anywhere is cut for all threads, as far as there is enough of it.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn pieces_for_all_threads() {
        let m =
            |rows, cols| Matrix { rows, cols, src_stride: 4 * cols as isize, dst_stride: 4 * rows as isize };
        assert_eq!(steps_of_phased(4, m(5001, 300), 1, 1), [1264, 512]);
        assert_eq!(steps_of_phased(4, m(5001, 300), 1, 2), [640, 512]);
        assert_eq!(steps_of_phased(4, m(5001, 300), 64, 2), [2048, 512]);
        assert_eq!(steps_of_phased(4, m(5001, 3000), 1, 2), [2048, 512]);
        // Rows do not suffice, nor do columns.
        assert_eq!(steps_of_phased(4, m(520, 1023), 1, 2), [256, 256]);
        assert_eq!(steps_of_phased(4, m(520, 1023), 1, 64), [256, 128]);
        assert_eq!(steps_of_phased(2, m(4001, 1023), 1, 8), [512, 256]);
    }

    /// A matrix of four bytes whose destination's rows have a gap.
    fn dense(rows: usize, cols: usize, gap: isize) -> Matrix {
        Matrix { rows, cols, src_stride: 4 * cols as isize, dst_stride: 4 * rows as isize + gap }
    }

    #[test]
    fn each_mode_where_it_pays() {
        let of = |batch, rows, cols, gap, at| {
            let m = dense(rows, cols, gap);
            mode(4, m, batch, at | m.dst_stride as usize)
        };
        // Whole lines, which an address or a stride may prevent.
        assert_eq!(of(1, 1024, 512, 0, 4096), Mode::Lines);
        assert_eq!(of(2, 1024, 512, 0, 1 << 22), Mode::Lines);
        assert_eq!(of(1, 1024, 512, 0, 4096 + 4), Mode::Panels);
        assert_eq!(of(1, 1024, 512, 4, 4096), Mode::Panels);
        // Groups that are less than a tile.
        assert_eq!(of(1, 1 << 20, 4, 0, 4096), Mode::Lines);
        assert_eq!(of(1, 1 << 20, 3, 0, 4096), Mode::Panels);
        // Short rows, without gaps and with some.
        assert_eq!(of(1, 49, 1 << 16, 0, 4096), Mode::Block);
        assert_eq!(of(1, 49, 1 << 16, 4, 4096), Mode::Cached);
        // What the cache holds, unless there is much of it.
        assert_eq!(of(1, 16, 16, 0, 4096), Mode::Cached);
        assert_eq!(of(1 << 14, 16, 16, 0, 4096), Mode::Lines);
    }

    /// Of what stays in the cache, threads have whole rows of the destination where there are enough of them.
    #[test]
    fn threads_share_out_rows_of_the_destination() {
        assert_eq!(steps(Mode::Cached, 1, [1001, 777], 2), [1001, LINE]);
        assert_eq!(steps(Mode::Cached, 4, [100_000, 64], 1), [100_000, LINE / 4]);
        assert_eq!(steps(Mode::Cached, 4, [100_000, 63], 2), [LINE / 2, 2048]);
        assert_eq!(steps(Mode::Cached, 4, [100_000, 64], 8), [LINE / 2, 2048]);
    }

    #[test]
    fn steps_are_those_of_the_kernel() {
        let far = Matrix { rows: 4096, cols: 4096, src_stride: 16384, dst_stride: 16384 };
        for isa in Isa::available() {
            let steps = |size, m, at| Plan::new(isa, size, m, 1, at, 2).steps;
            let has = isa.level() >= Level::Avx512;
            let squares = has && stream::suits_intel();
            assert_eq!(steps(4, far, 4096), if squares { [32, 2048] } else { [64, 2048] });
            assert_eq!(steps(2, far, 4096), if has { [64, 2048] } else { [128, 2048] });
            assert_eq!(steps(1, far, 4096), [256, 2048]);
            assert_eq!(steps(4, far, 4), if has { [2048, 512] } else { [2048, 128] });
            assert_eq!(steps(1, far, 1), [8192, 256]);
        }
    }
}
