//! The innermost loops of products of pairs.

use std::arch::asm;
use std::arch::x86_64::*;

/// Up to 32 rows times a panel of 32 columns.
pub(super) struct Piece {
    pub(super) a: *const u16,
    /// Bytes between rows of `a`, and between its steps along the depth.
    pub(super) row_bytes: usize,
    pub(super) step_bytes: usize,
    pub(super) steps: usize,
    /// One more step, packed: the addresses of its upper and its lower rows, or null.
    pub(super) rest: Option<[*const u16; 2]>,
    /// The first row of the lower tiles.
    pub(super) lower: usize,
    pub(super) b: *const u16,
    pub(super) out: *mut f32,
    pub(super) out_bytes: usize,
    /// Whether the sums begin with what `out` holds.
    pub(super) adds: bool,
    /// How many rows there are.
    pub(super) lines: usize,
}

/// Rows whose sums are in registers at a time.
const SIDE_BY_SIDE: usize = 8;
/// Pairs along the depth in a step, and bytes of a step of a row, of one half of the columns, and of both.
const PAIRS: usize = 16;
const ROW_BYTES: usize = 64;
const HALF_BYTES: usize = 1024;
const STEP_BYTES: usize = 2 * HALF_BYTES;

impl Piece {
    /// Multiplies on tiles, or by dot products.
    ///
    /// # Safety
    /// The CPU has the unit, whose tiles are set up for the rows; the factors are readable and written, and 32 columns of the sums are
    /// writable in each of the rows.
    #[inline(always)]
    pub(super) unsafe fn multiply<const TILES: bool>(&self) {
        // SAFETY: the caller's promise.
        unsafe { if TILES { self.on_tiles() } else { self.by_dots() } }
    }

    /// # Safety
    /// As for [`Piece::multiply`].
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn by_dots(&self) {
        let mut row = 0;
        // SAFETY: the caller's promise.
        unsafe {
            while row + SIDE_BY_SIDE <= self.lines {
                self.rows::<SIDE_BY_SIDE>(row);
                row += SIDE_BY_SIDE;
            }
            if self.lines - row >= 4 {
                self.rows::<4>(row);
                row += 4;
            }
            if self.lines - row >= 2 {
                self.rows::<2>(row);
                row += 2;
            }
            if row < self.lines {
                self.rows::<1>(row);
            }
        }
    }

    /// # Safety
    /// As for [`Piece::multiply`], of the `N` rows from `row` on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn rows<const N: usize>(&self, row: usize) {
        let out: [*mut f32; N] =
            std::array::from_fn(|i| self.out.wrapping_byte_add((row + i) * self.out_bytes));
        let mut sums = [[_mm512_setzero_ps(); 2]; N];
        // SAFETY: the caller's promise: 32 sums in each row, and of each step 32 elements of each row and of each column.
        unsafe {
            if self.adds {
                for (sums, out) in sums.iter_mut().zip(out) {
                    *sums = [_mm512_loadu_ps(out), _mm512_loadu_ps(out.add(16))];
                }
            }
            let (mut a, mut b) = (self.a.wrapping_byte_add(row * self.row_bytes), self.b);
            for _ in 0..self.steps {
                step(&mut sums, a, self.row_bytes, b);
                (a, b) = (a.wrapping_byte_add(self.step_bytes), b.wrapping_byte_add(STEP_BYTES));
            }
            if let Some([rest, _]) = self.rest {
                // Lower rows lie behind the upper ones.
                step(&mut sums, rest.wrapping_byte_add(row * ROW_BYTES), ROW_BYTES, b);
            }
            for (sums, out) in sums.iter().zip(out) {
                _mm512_storeu_ps(out, sums[0]);
                _mm512_storeu_ps(out.add(16), sums[1]);
            }
        }
    }

    /// # Safety
    /// As for [`Piece::multiply`].
    #[inline(always)]
    unsafe fn on_tiles(&self) {
        let rest = self.rest.as_ref().map_or(std::ptr::null(), |rest| rest.as_ptr());
        // SAFETY: tiles are used by nothing else in this thread, and what they read and write is the caller's.
        unsafe {
            asm!(
                "test {adds:e}, {adds:e}",
                "jz 2f",
                "tileloadd tmm0, [{out} + {out_bytes}]",
                "tileloadd tmm1, [{out} + {out_bytes} + 64]",
                "tileloadd tmm2, [{out_lower} + {out_bytes}]",
                "tileloadd tmm3, [{out_lower} + {out_bytes} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "test {steps}, {steps}",
                "jz 5f",
                "4:",
                "tileloadd tmm4, [{a} + {row_bytes}]",
                "tileloadd tmm6, [{b} + {b_bytes}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {b_bytes} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a_lower} + {row_bytes}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, {step_bytes}",
                "add {a_lower}, {step_bytes}",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 4b",
                "5:",
                "test {rest}, {rest}",
                "jz 6f",
                "mov {a}, [{rest}]",
                "mov {a_lower}, [{rest} + 8]",
                "mov {row_bytes}, {b_bytes}",
                "xor {rest:e}, {rest:e}",
                "mov {steps:e}, 1",
                "jmp 4b",
                "6:",
                "tilestored [{out_lower} + {out_bytes}], tmm2",
                "tilestored [{out_lower} + {out_bytes} + 64], tmm3",
                "tilestored [{out} + {out_bytes}], tmm0",
                "tilestored [{out} + {out_bytes} + 64], tmm1",
                adds = in(reg) u32::from(self.adds),
                out = in(reg) self.out,
                out_lower = in(reg) self.out.wrapping_byte_add(self.lower * self.out_bytes),
                out_bytes = in(reg) self.out_bytes,
                a = inout(reg) self.a => _,
                a_lower = inout(reg) self.a.wrapping_byte_add(self.lower * self.row_bytes) => _,
                row_bytes = inout(reg) self.row_bytes => _,
                step_bytes = in(reg) self.step_bytes,
                steps = inout(reg) self.steps => _,
                b = inout(reg) self.b => _,
                b_bytes = in(reg) 64usize,
                rest = inout(reg) rest => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Adds the products of one step of `N` rows, `row_bytes` apart, and of 32 columns.
///
/// # Safety
/// The CPU has the features; 32 elements of each row, and two halves of 16 columns in pairs, are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn step<const N: usize>(sums: &mut [[__m512; 2]; N], a: *const u16, row_bytes: usize, b: *const u16) {
    for pair in 0..PAIRS {
        // SAFETY: the caller's promise.
        unsafe {
            let b = b.byte_add(pair * ROW_BYTES);
            let (low, high) =
                (_mm512_loadu_si512(b.cast()), _mm512_loadu_si512(b.byte_add(HALF_BYTES).cast()));
            for (i, sums) in sums.iter_mut().enumerate() {
                let at = a.byte_add(i * row_bytes + 4 * pair).cast::<i32>();
                let x = as_pairs(_mm512_set1_epi32(at.read_unaligned()));
                sums[0] = _mm512_dpbf16_ps(sums[0], x, as_pairs(low));
                sums[1] = _mm512_dpbf16_ps(sums[1], x, as_pairs(high));
            }
        }
    }
}

/// The same bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn as_pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, of which any are numbers.
    unsafe { std::mem::transmute(x) }
}
