//! Numbers of f32 and f16 as sums of numbers of bf16, and packed blocks of those for
//! [`gemm_split`](super::gemm_split), in steps of 32 along the depth.
//!
//! A significand of 24 bits is the sum of three of 8, and one of 11 that of two: the number rounded to bf16, what is left
//! rounded again, and the rest. All differences are exact.
//!
//! A line of complex numbers becomes two: their real parts and their imaginary ones.

use super::gemm_block::{Slab, Stretch};
use super::gemm_lanes::{MOST, Real};
use super::gemm_pack::transposed;
use super::gemm_simd::Number;
use super::gemm_split_piece::{PIECE, SIDE};
use crate::kernels::elem::Complex;
use half::f16;
use std::arch::x86_64::*;

/// A dtype whose reals are sums of a few numbers of bf16.
pub(super) trait Split: Number<Real = f32> {
    /// How many.
    const COUNT: usize;
    /// Reals of a number.
    const REALS: usize = Self::PARTS;

    /// Those of 16 neighbouring reals that `mask` has, as f32; 0 in place of the others.
    ///
    /// # Safety
    /// They are readable; the CPU has AVX-512 with BW and VL.
    unsafe fn reals(at: *const Self::Part, mask: u16) -> __m512;

    /// One real, the `which`th, of each of those of 16 neighbouring numbers that `mask` has.
    ///
    /// # Safety
    /// As for [`reals`](Split::reals).
    #[inline(always)]
    unsafe fn real(at: *const Self, _which: usize, mask: u16) -> __m512 {
        const { assert!(Self::REALS == 1) };
        // SAFETY: the caller's promise.
        unsafe { Self::reals(at.cast(), mask) }
    }
}

impl Split for f32 {
    const COUNT: usize = 3;

    #[inline(always)]
    unsafe fn reals(at: *const f32, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(mask, at) }
    }
}

impl Split for f16 {
    const COUNT: usize = 2;

    #[inline(always)]
    unsafe fn reals(at: *const f16, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, at.cast())) }
    }
}

impl Split for Complex<f32> {
    const COUNT: usize = 3;

    #[inline(always)]
    unsafe fn reals(at: *const f32, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(mask, at) }
    }

    #[inline(always)]
    unsafe fn real(at: *const Self, which: usize, mask: u16) -> __m512 {
        // SAFETY: the caller's promise; each number is two lanes, and there are indices for both reals.
        unsafe {
            let (low, high) = (mask as u8, (mask >> 8) as u8);
            let low = _mm512_castpd_ps(_mm512_maskz_loadu_pd(low, at.cast()));
            let high = _mm512_castpd_ps(_mm512_maskz_loadu_pd(high, at.wrapping_add(MOST / 2).cast()));
            let places = _mm512_loadu_si512(EVERY_SECOND[which].as_ptr().cast());
            _mm512_permutex2var_ps(low, places, high)
        }
    }
}

/// Every second lane of two vectors, from the first on and from the second.
const EVERY_SECOND: [[u32; MOST]; 2] = {
    let mut all = [[0; MOST]; 2];
    let mut i = 0;
    while i < 2 * MOST {
        all[i % 2][i / 2] = i as u32;
        i += 1;
    }
    all
};

/// The most parts there are.
const PARTS: usize = 3;

/// For each group of 32 rows and step of the depth, two tiles for each part: a row has 32 elements. Rows past the last are 0.
///
/// # Safety
/// As for [`Engine::pack_a`](super::gemm_block::Engine::pack_a); the CPU has AVX-512, and stretches begin at whole steps.
#[inline(always)]
pub(super) unsafe fn pack_a<T: Split>(slab: &Slab<'_, T>, out: *mut u16) {
    let lines = slab.lines * T::REALS;
    let rows = lines.next_multiple_of(SIDE);
    for Stretch { at, first, len } in slab.stretches() {
        if slab.step == 1 {
            for row in 0..rows {
                let left = if row < lines { len } else { 0 };
                for p in (0..len).step_by(SIDE) {
                    let to = out.wrapping_add(place_in_a::<T>(slab, row, first + p));
                    // SAFETY: what is left of the row in this step, and a row of a tile for each part.
                    unsafe {
                        let parts = places_of_line(slab, at, row, p, left);
                        for (part, row) in parts.into_iter().enumerate().take(T::COUNT) {
                            _mm512_storeu_si512(to.add(part * PIECE).cast(), row);
                        }
                    }
                }
            }
            continue;
        }
        for p in (0..len).step_by(SIDE) {
            for row in (0..rows).step_by(MOST) {
                let to = out.wrapping_add(place_in_a::<T>(slab, row, first + p));
                let mut pairs = Squares::new();
                // SAFETY: the rows that exist at the places that are left, and 16 rows of a tile for each part.
                unsafe {
                    for i in 0..MOST {
                        pairs.set(i, pair_of_places(slab, at, row, p + 2 * i, len));
                    }
                    pairs.store_transposed::<T>(to);
                }
            }
        }
    }
}

/// For each panel of 32 columns and step of the depth, two tiles for each part: a row has a pair along the depth of each of
/// 16 columns. Columns past the last are 0.
///
/// # Safety
/// As for [`Engine::pack_b`](super::gemm_block::Engine::pack_b); the CPU has AVX-512, and stretches begin at whole steps.
#[inline(always)]
pub(super) unsafe fn pack_b<T: Split>(slab: &Slab<'_, T>, out: *mut u16) {
    let lines = slab.lines * T::REALS;
    let cols = lines.next_multiple_of(SIDE);
    for Stretch { at, first, len } in slab.stretches() {
        for p in (0..len).step_by(SIDE) {
            for col in (0..cols).step_by(MOST) {
                let to = out.wrapping_add(place_in_b::<T>(slab, col, first + p));
                if slab.line == 1 {
                    for i in 0..MOST {
                        // SAFETY: the columns that exist at the places that are left, and a row of a tile for each part.
                        unsafe {
                            let pairs = pair_of_places(slab, at, col, p + 2 * i, len);
                            for (part, row) in pairs.into_iter().enumerate().take(T::COUNT) {
                                _mm512_storeu_si512(to.add(part * PIECE + i * SIDE).cast(), row);
                            }
                        }
                    }
                    continue;
                }
                let mut all = Squares::new();
                // SAFETY: the columns that exist at the places that are left, and a tile for each part.
                unsafe {
                    for i in 0..MOST {
                        let left = if col + i < lines { len } else { 0 };
                        all.set(i, places_of_line(slab, at, col + i, p, left));
                    }
                    all.store_transposed::<T>(to);
                }
            }
        }
    }
}

/// Where the first part of an element of `a` is.
#[inline(always)]
fn place_in_a<T: Split>(slab: &Slab<'_, T>, row: usize, d: usize) -> usize {
    first_piece(slab, row, d) + row % SIDE * SIDE
}

/// Where the first part of an element of `b` is, at the first place of a step.
#[inline(always)]
fn place_in_b<T: Split>(slab: &Slab<'_, T>, col: usize, d: usize) -> usize {
    first_piece(slab, col, d) + col % SIDE / MOST * (PIECE / 2)
}

/// Where the tiles of a line at a step begin.
#[inline(always)]
fn first_piece<T: Split>(slab: &Slab<'_, T>, line: usize, d: usize) -> usize {
    let steps = slab.whole.div_ceil(SIDE);
    (line / SIDE * steps + (slab.from + d) / SIDE) * PIECE * T::COUNT
}

/// The parts of a line of reals at 32 places along the depth from `p` on, as far as they are before `len`.
///
/// # Safety
/// `at` is a stretch of the slab, so long unless `len` is 0; the CPU has AVX-512.
#[inline(always)]
unsafe fn places_of_line<T: Split>(
    slab: &Slab<'_, T>,
    at: *const T,
    line: usize,
    p: usize,
    len: usize,
) -> [__m512i; PARTS] {
    let (at, which) = (at.wrapping_add(line / T::REALS * slab.line + p), line % T::REALS);
    let left = len.saturating_sub(p);
    // SAFETY: the caller's promise: nothing is read of places that do not exist.
    unsafe {
        let low = split::<T>(T::real(at, which, first(left)));
        let high = T::real(at.wrapping_add(MOST), which, first(left.saturating_sub(MOST)));
        let mut parts = low;
        for (part, high) in parts.iter_mut().zip(split::<T>(high)) {
            *part = upper_halves(*part, high);
        }
        parts
    }
}

/// The parts of 16 lines of reals from `line` on, as far as they exist, at places `p` and `p + 1` along the depth, as far as they are before
/// `len`, in pairs.
///
/// # Safety
/// `at` is a stretch of the slab, so long; the CPU has AVX-512.
#[inline(always)]
unsafe fn pair_of_places<T: Split>(
    slab: &Slab<'_, T>,
    at: *const T,
    line: usize,
    p: usize,
    len: usize,
) -> [__m512i; PARTS] {
    let lines = first((slab.lines * T::REALS).saturating_sub(line));
    let step = slab.step * T::REALS;
    let at = at.cast::<T::Part>().wrapping_add(p * step + line);
    // Written out, as closures would not be compiled for the level.
    // SAFETY: the caller's promise: nothing is read of lines and places that do not exist.
    unsafe {
        let even = split::<T>(T::reals(at, if p < len { lines } else { 0 }));
        let mut pairs = split::<T>(T::reals(at.wrapping_add(step), if p + 1 < len { lines } else { 0 }));
        for (odd, even) in pairs.iter_mut().zip(even) {
            *odd = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), *odd);
        }
        pairs
    }
}

/// The first `count` of 16.
#[inline(always)]
fn first(count: usize) -> u16 {
    ((1_u32 << count.min(MOST)) - 1) as u16
}

/// Numbers in parts, each in the upper half of its lane.
///
/// # Safety
/// The CPU has AVX-512.
#[inline(always)]
unsafe fn split<T: Split>(mut left: __m512) -> [__m512i; PARTS] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut parts = [_mm512_setzero_si512(); PARTS];
        for part in &mut parts[..T::COUNT - 1] {
            let rounded = _mm512_add_epi32(_mm512_castps_si512(left), _mm512_set1_epi32(0x8000));
            *part = _mm512_and_si512(rounded, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            left = _mm512_sub_ps(left, _mm512_castsi512_ps(*part));
        }
        parts[T::COUNT - 1] = _mm512_castps_si512(left);
        parts
    }
}

/// The upper halves of all lanes of one vector, and then of another.
///
/// # Safety
/// The CPU has AVX-512 with BW.
#[inline(always)]
unsafe fn upper_halves(low: __m512i, high: __m512i) -> __m512i {
    const UPPER: [u16; 32] = {
        let mut all = [0; 32];
        let mut i = 0;
        while i < 32 {
            all[i] = 2 * i as u16 + 1;
            i += 1;
        }
        all
    };
    // SAFETY: the caller's promise; the indices are 64 bytes, of any alignment.
    unsafe { _mm512_permutex2var_epi16(low, _mm512_loadu_si512(UPPER.as_ptr().cast()), high) }
}

/// A square of lanes for each part.
struct Squares([[__m512; MOST]; PARTS]);

impl Squares {
    #[inline(always)]
    fn new() -> Squares {
        // SAFETY: zero is a number.
        Squares(unsafe { std::mem::zeroed() })
    }

    #[inline(always)]
    fn set(&mut self, row: usize, parts: [__m512i; PARTS]) {
        for (square, part) in self.0.iter_mut().zip(parts) {
            // SAFETY: both are 64 bytes, of which any are numbers.
            square[row] = unsafe { std::mem::transmute::<__m512i, __m512>(part) };
        }
    }

    /// Stores the columns.
    ///
    /// # Safety
    /// 16 rows of a tile are writable for each part; the CPU has AVX-512.
    #[inline(always)]
    unsafe fn store_transposed<T: Split>(self, to: *mut u16) {
        for (part, rows) in self.0.into_iter().enumerate().take(T::COUNT) {
            // SAFETY: the caller's promise.
            unsafe {
                let to = to.add(part * PIECE);
                for (i, v) in transposed::<<f32 as Real>::Avx512>(rows).into_iter().enumerate() {
                    _mm512_storeu_ps(to.add(i * SIDE).cast(), v);
                }
            }
        }
    }
}
