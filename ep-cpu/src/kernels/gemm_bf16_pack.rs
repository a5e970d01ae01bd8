//! Packed blocks of the factors of [`gemm_bf16`](super::gemm_bf16), in steps of 32 along the depth.

use super::gemm_block::{Slab, Stretch};
use super::gemm_lanes::{MOST, Real};
use super::gemm_pack::transposed;
use half::bf16;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows of `a`, and columns of `b`, that are multiplied together; and how far along the depth in one step.
pub(super) const SIDE: usize = 32;
/// Rows of `a` that are packed at a time.
pub(super) const ROWS: usize = 64;
/// Elements of two tiles.
pub(super) const PIECE: usize = SIDE * SIDE;

/// Vectors of as many bytes as those of f32.
type Vectors = <f32 as Real>::Avx512;

/// For each group of rows and step of the depth, a row of 32 elements after the other.
///
/// # Safety
/// As for [`Engine::pack_a`](super::gemm_block::Engine::pack_a); the CPU has AVX-512.
#[inline(always)]
pub(super) unsafe fn pack_a(slab: &Slab<'_, bf16>, out: *mut u16) {
    let depth = slab.depth.len();
    let steps = depth.div_ceil(SIDE);
    if !depth.is_multiple_of(SIDE) {
        for group in 0..ROWS / SIDE {
            // SAFETY: the last step of a group.
            unsafe { out.add((group * steps + steps - 1) * PIECE).write_bytes(0, PIECE) };
        }
    }
    let place = |row, d| place_in_a(steps, row, d);
    for Stretch { at, first, len } in slab.stretches() {
        let at = at.cast::<u16>();
        if slab.step == 1 {
            for row in 0..slab.lines {
                let mut p = 0;
                while p < len {
                    let n = (SIDE - (first + p) % SIDE).min(len - p);
                    // SAFETY: inside the row, and a step's row.
                    unsafe {
                        let (from, to) = (at.add(row * slab.line + p), out.add(place(row, first + p)));
                        if n == SIDE {
                            to.cast::<[u16; SIDE]>()
                                .write_unaligned(from.cast::<[u16; SIDE]>().read_unaligned());
                        } else {
                            to.copy_from_nonoverlapping(from, n);
                        }
                    }
                    p += n;
                }
            }
            continue;
        }
        let squares = if first % SIDE == 0 { len - len % SIDE } else { 0 };
        let whole = slab.lines - slab.lines % 16;
        for row in (0..whole).step_by(16) {
            for p in (0..squares).step_by(SIDE) {
                // SAFETY: 16 rows at 32 places along the depth, which become 16 rows of a step.
                unsafe {
                    let mut pairs = [_mm512_setzero_ps(); MOST];
                    for (i, pair) in pairs.iter_mut().enumerate() {
                        let even = at.add((p + 2 * i) * slab.step + row);
                        *pair = _mm512_castsi512_ps(zipped(even, even.add(slab.step)));
                    }
                    for (i, v) in transposed::<Vectors>(pairs).into_iter().enumerate() {
                        _mm512_storeu_ps(out.add(place(row + i, first + p)).cast(), v);
                    }
                }
            }
        }
        for p in 0..len {
            for row in if p < squares { whole } else { 0 }..slab.lines {
                // SAFETY: inside the slab and the block.
                unsafe { out.add(place(row, first + p)).write(at.add(p * slab.step + row).read()) };
            }
        }
    }
}

/// For each panel of columns and step of the depth, two tiles: a row of a tile has a pair along the depth of
/// each of 16 columns.
///
/// # Safety
/// As for [`Engine::pack_b`](super::gemm_block::Engine::pack_b); the CPU has AVX-512BW.
#[inline(always)]
pub(super) unsafe fn pack_b(slab: &Slab<'_, bf16>, out: *mut u16) {
    let depth = slab.depth.len();
    let steps = depth.div_ceil(SIDE);
    let place = |col, d| place_in_b(steps, col, d);
    let past = slab.lines % SIDE;
    if past > 0 {
        // Columns past the last are read too.
        // SAFETY: the last panel.
        unsafe { out.add(place(slab.lines - past, 0)).write_bytes(0, steps * PIECE) };
    }
    if !depth.is_multiple_of(SIDE) {
        for col in (0..slab.lines).step_by(SIDE) {
            // SAFETY: the last step of a panel.
            unsafe { out.add(place(col, (steps - 1) * SIDE)).write_bytes(0, PIECE) };
        }
    }
    let whole = slab.lines - slab.lines % 16;
    for Stretch { at, first, len } in slab.stretches() {
        let at = at.cast::<u16>();
        // How much of the stretch is packed 16 columns at a time.
        let mut packed = 0;
        if slab.line == 1 && first % 2 == 0 {
            packed = len - len % 2;
            let panels = slab.lines - slab.lines % SIDE;
            for some in (0..packed).step_by(SIDE) {
                for col in (0..panels).step_by(SIDE) {
                    for p in (some..packed.min(some + SIDE)).step_by(2) {
                        // SAFETY: 32 columns of two rows, and a row of two tiles.
                        unsafe {
                            let even = at.add(p * slab.step + col);
                            let to = out.add(place(col, first + p));
                            let (low, high) = zipped_twice(even, even.add(slab.step));
                            _mm512_storeu_si512(to.cast(), low);
                            _mm512_storeu_si512(to.add(PIECE / 2).cast(), high);
                        }
                    }
                }
            }
            for p in (0..packed).step_by(2) {
                for col in (panels..whole).step_by(16) {
                    // SAFETY: 16 columns of two rows, and a row of a tile.
                    unsafe {
                        let even = at.add(p * slab.step + col);
                        let pairs = zipped(even, even.add(slab.step));
                        _mm512_storeu_si512(out.add(place(col, first + p)).cast(), pairs);
                    }
                }
            }
        } else if slab.line != 1 && first % SIDE == 0 {
            packed = len - len % SIDE;
            for col in (0..whole).step_by(16) {
                for p in (0..packed).step_by(SIDE) {
                    // SAFETY: 32 elements of each of 16 columns, and a tile.
                    unsafe {
                        let mut cols = [_mm512_setzero_ps(); MOST];
                        for (i, v) in cols.iter_mut().enumerate() {
                            *v = _mm512_loadu_ps(at.add((col + i) * slab.line + p).cast());
                        }
                        let tile = out.add(place(col, first + p));
                        for (i, v) in transposed::<Vectors>(cols).into_iter().enumerate() {
                            _mm512_storeu_ps(tile.add(i * SIDE).cast(), v);
                        }
                    }
                }
            }
        }
        for p in 0..len {
            for col in if p < packed { whole } else { 0 }..slab.lines {
                // SAFETY: inside the slab and the block.
                unsafe {
                    let from = at.add(p * slab.step + col * slab.line);
                    out.add(place(col, first + p)).write(from.read());
                }
            }
        }
    }
}

/// What rows that are read where they are stored have past their last whole step: steps filled up with zeros.
///
/// # Safety
/// `depth` elements of each row are readable, and there are at most [`ROWS`] rows.
#[inline(always)]
pub(super) unsafe fn pack_rest(
    at: *const u16,
    line: usize,
    rows: usize,
    depth: usize,
    rest: &mut MaybeUninit<[u16; ROWS * SIDE]>,
) {
    let left = depth % SIDE;
    if left == 0 {
        return;
    }
    let to = rest.as_mut_ptr().cast::<u16>();
    // SAFETY: zero is a number; a block has at most [`ROWS`] rows, each of which has a step here.
    unsafe {
        to.write_bytes(0, rows.next_multiple_of(SIDE) * SIDE);
        for i in 0..rows {
            at.add(i * line + depth - left).copy_to_nonoverlapping(to.add(i * SIDE), left);
        }
    }
}

/// Where a packed block of so many steps has an element of `a`.
#[inline(always)]
fn place_in_a(steps: usize, row: usize, d: usize) -> usize {
    (row / SIDE * steps + d / SIDE) * PIECE + row % SIDE * SIDE + d % SIDE
}

/// Where a packed block of so many steps has an element of `b`.
#[inline(always)]
fn place_in_b(steps: usize, col: usize, d: usize) -> usize {
    let tile = (col / SIDE * steps + d / SIDE) * PIECE + col % SIDE / 16 * (PIECE / 2);
    tile + d % SIDE / 2 * SIDE + col % 16 * 2 + d % 2
}

/// Pairs of the elements of two rows of 16.
///
/// # Safety
/// Both are readable; the CPU has AVX-512.
#[inline(always)]
unsafe fn zipped(even: *const u16, odd: *const u16) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let even = _mm512_cvtepu16_epi32(_mm256_loadu_si256(even.cast()));
        let odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256(odd.cast()));
        _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd))
    }
}

/// Where the elements of two rows of 32 go: an index counts through both.
const PAIRS: [[u16; 32]; 2] = {
    let mut all = [[0; 32]; 2];
    let mut i = 0;
    while i < 64 {
        all[i / 32][i % 32] = (i / 2 + i % 2 * 32) as u16;
        i += 1;
    }
    all
};

/// [`zipped`] for two rows of 32: the pairs of their first halves, and of their second.
///
/// # Safety
/// As for [`zipped`]; the CPU has AVX-512BW.
#[inline(always)]
unsafe fn zipped_twice(even: *const u16, odd: *const u16) -> (__m512i, __m512i) {
    // SAFETY: the caller's promise; the indices are 64 bytes each, of any alignment.
    unsafe {
        let (even, odd) = (_mm512_loadu_si512(even.cast()), _mm512_loadu_si512(odd.cast()));
        let [low, high] = [&PAIRS[0], &PAIRS[1]].map(|at| _mm512_loadu_si512(at.as_ptr().cast()));
        (_mm512_permutex2var_epi16(even, low, odd), _mm512_permutex2var_epi16(even, high, odd))
    }
}
