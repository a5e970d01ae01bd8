//! The innermost loops of products of numbers in parts.

use super::gemm_split_pack::Split;
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::offset_of;

/// Rows of `a`, and columns of `b`, that are multiplied together; and how far along the depth in one step.
pub(super) const SIDE: usize = 32;
/// Elements of the two tiles that have one part of a step, and sums of a piece.
pub(super) const PIECE: usize = SIDE * SIDE;
/// Bytes of a row of a tile, and of a row of sums.
const ROW_BYTES: usize = 64;
const SUMS_BYTES: usize = 2 * ROW_BYTES;
/// Rows that are finished in each step.
const ROWS_A_STEP: usize = 2;

/// 32 rows times a panel of 32 columns, packed by [`gemm_split_pack`](super::gemm_split_pack).
pub(super) struct Piece {
    pub(super) a: *const u16,
    pub(super) b: *const u16,
    /// One at least.
    pub(super) steps: usize,
    /// 32 rows of 32 each.
    pub(super) sums: *mut f32,
    /// What is asked for meanwhile, which may be anywhere, and the bytes of that for each step.
    pub(super) next: *const u16,
    pub(super) next_bytes: usize,
}

/// Sums of a piece on their way to where they belong: `to = alpha * sums + beta * to`.
///
/// Storing tiles there took a sixth of the time of a product of 2048 x 2048 x 2048, whose rows of results compete for the same lines
/// of cache. So rows are finished while tiles multiply the next piece.
#[derive(Clone, Copy)]
pub(super) struct Late {
    pub(super) sums: *const f32,
    pub(super) to: *mut f32,
    /// Elements between rows of `to`.
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) alpha: f32,
    pub(super) beta: f32,
}

impl Late {
    /// Nothing.
    pub(super) const NONE: Late = Late {
        sums: std::ptr::null(),
        to: std::ptr::null_mut(),
        stride: 0,
        rows: 0,
        cols: 0,
        alpha: 1.0,
        beta: 0.0,
    };

    /// The columns that exist of either half.
    #[inline(always)]
    fn masks(&self) -> [u16; 2] {
        let all = u32::MAX >> (SIDE - self.cols.clamp(1, SIDE));
        [all as u16, (all >> 16) as u16]
    }

    /// Those of them that are read, too.
    #[inline(always)]
    fn read(&self) -> [u16; 2] {
        if self.beta == 0.0 { [0; 2] } else { self.masks() }
    }

    /// Finishes all rows but the first ones.
    ///
    /// # Safety
    /// The CPU has AVX-512; the sums are readable, and the rows that are there are writable, and readable if `beta` is not 0, in 1 to 32 columns.
    #[inline(always)]
    pub(super) unsafe fn finish(&self, skipped: usize) {
        let (masks, read) = (self.masks(), self.read());
        for row in skipped..self.rows {
            for (half, (mask, read)) in masks.into_iter().zip(read).enumerate() {
                // SAFETY: the caller's promise, for the columns that exist.
                unsafe {
                    let to = self.to.wrapping_add(row * self.stride + half * 16);
                    let sums = _mm512_loadu_ps(self.sums.add(row * SIDE + half * 16));
                    let sums = _mm512_mul_ps(_mm512_set1_ps(self.alpha), sums);
                    let (beta, old) = (_mm512_set1_ps(self.beta), _mm512_maskz_loadu_ps(read, to));
                    _mm512_mask_storeu_ps(to, mask, _mm512_mask3_fmadd_ps(beta, old, sums, read));
                }
            }
        }
    }
}

/// What the loop has no registers for.
#[repr(C)]
struct Frame {
    next_bytes: usize,
    to_bytes: usize,
    sums: *mut f32,
}

/// The two tiles of a part of `a`.
macro_rules! load_a {
    ($part:literal) => {
        concat!(
            "tileloadd tmm4, [{a} + {row_bytes} + 2048 * ",
            $part,
            "]\n",
            "tileloadd tmm5, [{a} + {row_bytes} + 2048 * ",
            $part,
            " + 1024]\n",
        )
    };
}

/// A part of `b` is loaded and multiplied by the part of `a` that there is. Of what comes next two lines are asked for, the
/// `$number`th ones.
macro_rules! by_next_b {
    ($part:literal, $number:literal) => {
        concat!(
            "tileloadd tmm6, [{b} + {row_bytes} + 2048 * ",
            $part,
            "]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "prefetcht1 [{next} + 128 * ",
            $number,
            "]\n",
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "tileloadd tmm7, [{b} + {row_bytes} + 2048 * ",
            $part,
            " + 1024]\n",
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            "prefetcht1 [{next} + 128 * ",
            $number,
            " + 64]\n",
            "tdpbf16ps tmm3, tmm5, tmm7\n",
        )
    };
}

/// The same for a part of `a`, by the part of `b` that there is.
macro_rules! by_next_a {
    ($part:literal, $number:literal) => {
        concat!(
            "tileloadd tmm4, [{a} + {row_bytes} + 2048 * ",
            $part,
            "]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "prefetcht1 [{next} + 128 * ",
            $number,
            "]\n",
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            "tileloadd tmm5, [{a} + {row_bytes} + 2048 * ",
            $part,
            " + 1024]\n",
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "prefetcht1 [{next} + 128 * ",
            $number,
            " + 64]\n",
            "tdpbf16ps tmm3, tmm5, tmm7\n",
        )
    };
}

/// A row of [`Late`] is finished, if there is one more.
macro_rules! finish_row {
    () => {
        concat!(
            "dec {rows}\n",
            "js 20f\n",
            "vmulps {x}, {alpha}, [{late}]\n",
            "vmulps {y}, {alpha}, [{late} + 64]\n",
            "vfmadd231ps {x} {{{read_low}}}, {beta}, [{to}]\n",
            "vfmadd231ps {y} {{{read_high}}}, {beta}, [{to} + 64]\n",
            "vmovups [{to}] {{{low}}}, {x}\n",
            "vmovups [{to} + 64] {{{high}}}, {y}\n",
            "add {to}, [{frame} + {to_bytes}]\n",
            "sub {late}, -128\n",
            "20:\n",
        )
    };
}

/// All steps of a piece: `$body` is one, which takes `$bytes` of either factor.
macro_rules! all_steps {
    ($piece:ident, $late:ident, $bytes:literal, $($body:expr),*) => {{
        let frame = Frame {
            next_bytes: $piece.next_bytes,
            to_bytes: $late.stride * size_of::<f32>(),
            sums: $piece.sums,
        };
        let ([low, high], [read_low, read_high]) = ($late.masks(), $late.read());
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            $($body,)*
            concat!("add {a}, ", $bytes),
            concat!("add {b}, ", $bytes),
            "add {next}, [{frame} + {next_bytes}]",
            "dec {steps}",
            "jnz 3b",
            "mov {a}, [{frame} + {sums}]",
            "lea {b}, [{row_bytes} + {row_bytes}]",
            "tilestored [{a} + {b}], tmm0",
            "tilestored [{a} + {b} + 64], tmm1",
            "tilestored [{a} + {b} + 2048], tmm2",
            "tilestored [{a} + {b} + 2048 + 64], tmm3",
            frame = in(reg) &frame,
            next_bytes = const offset_of!(Frame, next_bytes),
            to_bytes = const offset_of!(Frame, to_bytes),
            sums = const offset_of!(Frame, sums),
            a = inout(reg) $piece.a => _,
            b = inout(reg) $piece.b => _,
            row_bytes = in(reg) ROW_BYTES,
            next = inout(reg) $piece.next => _,
            steps = inout(reg) $piece.steps => _,
            late = inout(reg) $late.sums => _,
            to = inout(reg) $late.to => _,
            rows = inout(reg) $late.rows => _,
            low = in(kreg) low,
            high = in(kreg) high,
            read_low = in(kreg) read_low,
            read_high = in(kreg) read_high,
            alpha = in(zmm_reg) _mm512_set1_ps($late.alpha),
            beta = in(zmm_reg) _mm512_set1_ps($late.beta),
            x = out(zmm_reg) _,
            y = out(zmm_reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    }};
}

const _: () = assert!(SUMS_BYTES == SIDE * size_of::<f32>());

impl Piece {
    /// Multiplies numbers in two or three parts, and finishes another piece. Of two parts all four products are added up, and of
    /// three the six that matter.
    ///
    /// # Safety
    /// The CPU has tiles, which are set up for 32 rows, and AVX-512; there is a step, and the packed factors are readable for all of them;
    /// the sums are writable, and `late` is as [`Late::finish`] asks, of other sums.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn multiply<T: Split>(&self, late: &Late) {
        const { assert!(T::COUNT == 2 || T::COUNT == 3) };
        // SAFETY: tiles are used by nothing else in this thread, and what they read and write is the caller's.
        unsafe {
            if T::COUNT == 3 {
                all_steps!(
                    self,
                    late,
                    6144,
                    load_a!(0),
                    by_next_b!(2, 0),
                    by_next_b!(0, 1),
                    finish_row!(),
                    by_next_b!(1, 2),
                    by_next_a!(1, 3),
                    finish_row!(),
                    by_next_b!(0, 4),
                    by_next_a!(2, 5)
                );
            } else {
                all_steps!(
                    self,
                    late,
                    4096,
                    load_a!(0),
                    by_next_b!(0, 0),
                    finish_row!(),
                    by_next_b!(1, 1),
                    by_next_a!(1, 2),
                    finish_row!(),
                    by_next_b!(0, 3)
                );
            }
            late.finish(late.rows.min(ROWS_A_STEP * self.steps));
        }
    }
}
