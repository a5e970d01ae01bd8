//! Products of f32, f16 and complex64 on the tiles of AMX, which multiply numbers of bf16 and add up in f32.
//!
//! A number is the sum of [parts](super::gemm_split_pack) in bf16, whose products f32 holds exactly. Those of f16 are all added up. Of the
//! nine of f32 three are left out, together at most 2^-24 of the product: as much as rounding it once. Tiles have sixteen times the speed
//! of vectors, of which six or four multiplications leave more than twice, and what there is around them somewhat less.
//!
//! The tiles read subnormal numbers as 0 and make none, and infinities have no parts. So factors are looked through first,
//! and products in which either could happen are left to [`gemm_simd`](super::gemm_simd).

use crate::isa::{self, Body, Isa};
use crate::kernels::amx::{SetUp, has_tiles};
use crate::kernels::gemm::{Loop, Problem, count};
use crate::kernels::gemm_block::{self as block, Block, Engine, Part, Slab, Source};
use crate::kernels::gemm_lanes::Real;
use crate::kernels::gemm_plan::Limits;
use crate::kernels::gemm_simd::{self as simd, finish};
use crate::kernels::gemm_split_pack::{Split, pack_a, pack_b};
use crate::kernels::gemm_split_piece::{Late, PIECE, Piece, SIDE};
use crate::kernels::gemm_split_range::{Numbers, spans};
use crate::kernels::parts;
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Rows and columns of reals and depth at least, and multiply-adds of reals in a matrix. Few uses of a number are not worth taking it apart, and a
/// few steps take as long as storing what they add up to.
const LEAST: usize = if cfg!(test) { 16 } else { 128 };
const LEAST_WORK: usize = if cfg!(test) { 1 << 14 } else { 1 << 24 };

/// Solves a problem, on tiles if the CPU has some, the product is large enough and its numbers allow it.
///
/// # Errors
/// As for [`block::multiply`].
///
/// # Safety
/// As for [`Element::multiply`](crate::kernels::gemm::Element::multiply).
pub(super) unsafe fn multiply<T: Split>(
    isa: Isa,
    par: &dyn Parallel,
    problem: &Problem<'_, T>,
    alpha: T::Scalar,
    beta: T::Scalar,
) -> Result<()> {
    // SAFETY: the caller's promise; there are tiles, and with them AVX-512.
    unsafe {
        if pays(problem) && has_tiles(isa) && is_exact(isa, par, problem)? {
            block::multiply::<InParts<T>>(par, problem, alpha, beta)
        } else {
            simd::multiply(isa, par, problem, alpha, beta)
        }
    }
}

/// Whether a product is large enough. Where several are added up each takes whole steps, as packing asks for.
fn pays<T: Split>(p: &Problem<'_, T>) -> bool {
    let (m, n) = (p.m.saturating_mul(T::REALS), p.n.saturating_mul(T::REALS));
    parts::are_taken(T::COUNT)
        && m.min(n).min(p.k) >= LEAST
        && m.saturating_mul(n).saturating_mul(p.k) >= LEAST_WORK
        && (p.inner.is_empty() || p.k.is_multiple_of(SIDE))
}

/// Whether no product of parts, and no sum of such, is subnormal or overflows where the product itself does not.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// As for [`multiply`], at a level with AVX-512.
unsafe fn is_exact<T: Split>(isa: Isa, par: &dyn Parallel, p: &Problem<'_, T>) -> Result<bool> {
    // Only loops that move a factor.
    let loops = |step: fn(&Loop) -> usize| -> Vec<Loop> {
        let all = p.outer.iter().chain(p.inner);
        all.filter(|l| step(l) > 0).map(|l| Loop { a: step(l), ..*l }).collect()
    };
    // SAFETY: the caller's promise.
    let [a, b] = unsafe {
        spans(
            isa,
            par,
            [
                Numbers { factor: p.a, rows: p.m, cols: p.k, loops: &loops(|l| l.a) },
                Numbers { factor: p.b, rows: p.k, cols: p.n, loops: &loops(|l| l.b) },
            ],
        )?
    };
    let ([least_a, most_a], [least_b, most_b]) = (a.exponents(), b.exponents());
    // The last bit of a number is 2^-23 of its first, and all sums are multiples of the product of two such bits.
    let normal = least_a.min(least_b) - 23 >= f32::MIN_EXP - 1
        && least_a.saturating_add(least_b) - 46 >= f32::MIN_EXP - 1;
    // Less than 2^(exponent + 1) each, which rounding may reach.
    let terms = (p.k * T::REALS).saturating_mul(count(p.inner));
    let finite = most_a + most_b + 2 + (terms.ilog2() as i32 + 1) < f32::MAX_EXP - 1
        && most_a.max(most_b) < f32::MAX_EXP - 1;
    Ok(normal && finite)
}

/// Sums of a piece.
#[repr(align(64))]
struct Lines {
    _sums: [f32; PIECE],
}

/// Products of numbers in parts.
struct InParts<T>(PhantomData<T>);

impl<T> Clone for InParts<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for InParts<T> {}

impl<T: Split> Engine for InParts<T> {
    type Number = T;
    type Packed = u16;
    type Sum = f32;
    const ROWS: usize = 128 / T::REALS;
    const IN_PLACE: bool = T::IN_PLACE;
    const READS_STORED: bool = false;
    const TASK: usize = 1 << 21;
    const SHARES: bool = true;
    const SHARED_ROWS: usize = Self::ROWS;
    const ROW_UNIT: usize = SIDE / T::REALS;
    const FINISHES: bool = false;
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn limits(_: usize, total: usize, _: bool, _: bool) -> Limits {
        const DEPTH: usize = 512;
        // Rows of `a` stay in second-level cache, and panels of `b` come from the third.
        let blocks = if T::IN_PLACE { 1 } else { total.div_ceil(DEPTH).clamp(1, 4) };
        let (cols, unit, rows) = (2048 / blocks / T::REALS, SIDE / T::REALS, 1024 / T::REALS);
        Limits { depth: DEPTH, blocks, cols, unit, vector: unit, narrow: usize::MAX, rows }
    }

    #[inline(always)]
    fn packed_a(depth: usize) -> usize {
        Self::ROWS * T::REALS * depth.next_multiple_of(SIDE) * T::COUNT
    }

    #[inline(always)]
    fn packed_b(cols: usize, depth: usize) -> usize {
        (cols * T::REALS).next_multiple_of(SIDE) * depth.next_multiple_of(SIDE) * T::COUNT
    }

    #[inline(always)]
    fn sums(cols: usize) -> (usize, usize) {
        ((cols * T::REALS).next_multiple_of(SIDE), T::REALS)
    }

    fn reads_b(_: usize, _: usize, _: usize, _: bool) -> bool {
        false
    }

    fn reads_a(_: usize, _: usize, _: usize, _: bool) -> bool {
        false
    }

    fn in_place(scalar: T::Scalar) -> f32 {
        T::in_place(scalar)
    }

    #[inline(always)]
    unsafe fn run<B: Body>(body: B) -> B::Out {
        // SAFETY: the caller's promise: the CPU has tiles, and with them AVX-512.
        unsafe {
            let _tiles = SetUp::new();
            isa::run_avx512(body)
        }
    }

    #[inline(always)]
    unsafe fn run_packing<B: Body>(body: B) -> B::Out {
        // SAFETY: the caller's promise: tiles come with AVX-512.
        unsafe { isa::run_avx512(body) }
    }

    #[inline(always)]
    unsafe fn pack_a(slab: &Slab<'_, T>, out: *mut u16) {
        // SAFETY: the caller's promise; see `pays` for where stretches begin.
        unsafe { pack_a(slab, out) };
    }

    #[inline(always)]
    unsafe fn pack_b(slab: &Slab<'_, T>, out: *mut u16) {
        // SAFETY: the caller's promise; see `pays` for where stretches begin.
        unsafe { pack_b(slab, out) };
    }

    #[inline(always)]
    unsafe fn multiply(block: &Block<'_, Self>) {
        let (Source::Packed(a), Source::Packed(b)) = (block.a, block.b) else {
            unreachable!("numbers in parts are packed")
        };
        let steps = block.depth.div_ceil(SIDE);
        let piece = steps * PIECE * T::COUNT;
        let (rows, cols, out) = (block.rows * T::REALS, block.cols * T::REALS, block.out);
        // Each group of rows asks for half of its part of the next panel, and hardware sees what it is about.
        let part = PIECE * T::COUNT / rows.div_ceil(SIDE);
        let mut sums = MaybeUninit::<[Lines; 2]>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        let mut late = Late::NONE;
        let mut place = 0;
        for col in (0..cols).step_by(SIDE) {
            for row in (0..rows).step_by(SIDE) {
                // SAFETY: a group of rows, a panel, and where their sums belong.
                unsafe {
                    let piece = Piece {
                        a: a.add(row / SIDE * piece),
                        b: b.add(col / SIDE * piece),
                        steps,
                        sums: sums.add(place * PIECE),
                        next: b.wrapping_add((col / SIDE + 1) * piece + row / SIDE * part * steps),
                        next_bytes: part * size_of::<u16>(),
                    };
                    piece.multiply::<T>(&late);
                    late = Late {
                        sums: piece.sums,
                        to: out.at.add(row * out.stride + col),
                        stride: out.stride,
                        rows: SIDE.min(rows - row),
                        cols: SIDE.min(cols - col),
                        alpha: out.alpha,
                        beta: out.beta,
                    };
                }
                place = 1 - place;
            }
        }
        // SAFETY: the last piece.
        unsafe { late.finish(0) };
    }

    #[inline(always)]
    unsafe fn finish(part: &Part<'_, T, f32>) {
        // SAFETY: the caller's promise.
        unsafe { finish::<T, <f32 as Real>::Avx512>(part) };
    }
}

#[cfg(test)]
mod tests;
