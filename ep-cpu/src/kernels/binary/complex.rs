//! Sums, differences and products of complex64 by vectors of f32.
//!
//! A sum that is computed in f64 and then rounded is the one that f32 gives. A product's parts are differences of two products
//! of f32, whose rounding an FMA gives back (after Kahan; Jeannerod, Louvet and Muller, 2013, prove it): what is lost is at most
//! 1.5 ulp of each part, however much of it cancels. Where a result is not finite, the formula in f64 decides, which has room for
//! what only came too close to the end of f32.

use super::ops::{Add, ComplexMul, Sub};
use super::{BinaryKernel, Op, Run, block, map};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::kernels::elem::Complex;
use crate::kernels::engine::{Binary, BinaryBlock, Cost};
#[cfg(target_arch = "x86_64")]
use crate::kernels::raw::prefetch;
#[cfg(target_arch = "x86_64")]
use crate::kernels::stream::NewLine;
use std::mem::MaybeUninit;
use std::slice;

type C64 = Complex<f32>;

pub(super) fn add() -> BinaryKernel {
    of(parts::<Add>)
}

pub(super) fn sub() -> BinaryKernel {
    of(parts::<Sub>)
}

pub(super) fn mul() -> BinaryKernel {
    of(products)
}

fn of(block: BinaryBlock) -> BinaryKernel {
    BinaryKernel(Binary {
        block,
        repeat: None,
        src_size: size_of::<C64>(),
        dst_size: size_of::<C64>(),
        cost: Cost::Cheap,
        streams: true,
    })
}

/// An op that both parts go through by themselves.
///
/// # Safety
/// As [`BinaryBlock`], with aligned elements of complex64.
unsafe fn parts<O: Op<f32, f32>>(
    isa: Isa,
    attr: [f64; 2],
    a: *const u8,
    b: *const u8,
    dst: *mut u8,
    Run { n, ahead }: Run,
) {
    // SAFETY: the caller's contract, of twice as many parts.
    unsafe { block::<O, f32, f32>(isa, attr, a, b, dst, Run { n: 2 * n, ahead }) }
}

/// # Safety
/// As [`BinaryBlock`], with aligned elements of complex64.
unsafe fn products(
    isa: Isa,
    attr: [f64; 2],
    a: *const u8,
    b: *const u8,
    dst: *mut u8,
    Run { n, ahead }: Run,
) {
    // SAFETY: `n` valid elements each by the caller's contract, which also excludes overlap with `dst`.
    let (a, b, dst) = unsafe {
        let [a, b]: [&[C64]; 2] = [a, b].map(|x| slice::from_raw_parts(x.cast(), n));
        (a, b, slice::from_raw_parts_mut(dst.cast::<MaybeUninit<C64>>(), n))
    };
    #[cfg(target_arch = "x86_64")]
    if isa.level() >= Level::Avx2 {
        // SAFETY: an `Isa` of a level exists only where the CPU has its features; where `ahead` is not 0, the destination is
        // whole lines by the caller's contract.
        return unsafe { x86::products(a, b, dst, ahead) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (isa, ahead);
    map::<ComplexMul, C64, C64>(a, b, dst, attr);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{C64, ComplexMul, MaybeUninit, NewLine, map, prefetch};
    use std::arch::x86_64::*;

    /// Elements of a vector, and of a line.
    const LANES: usize = 4;
    const LINE: usize = 8;

    /// # Safety
    /// All sides have one length; unless `ahead` is 0, the destination is whole lines, at a line, and [`fence`] comes later.
    ///
    /// [`fence`]: crate::kernels::stream::fence
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn products(a: &[C64], b: &[C64], dst: &mut [MaybeUninit<C64>], ahead: usize) {
        let whole = dst.len() - dst.len() % LINE;
        for at in (0..whole).step_by(LINE) {
            let (a, b, to) = (&a[at..at + LINE], &b[at..at + LINE], &mut dst[at..at + LINE]);
            // SAFETY: there are so many elements in each; the destination is lines at a line where anything is fetched ahead.
            unsafe {
                if ahead == 0 {
                    line(a, b, to);
                    continue;
                }
                prefetch(a.as_ptr().wrapping_byte_add(ahead));
                prefetch(b.as_ptr().wrapping_byte_add(ahead));
                let mut past = NewLine::new();
                line(a, b, past.elements());
                past.store(to.as_mut_ptr().cast());
            }
        }
        let rest = dst.len() - whole;
        if rest > 0 {
            // As the others, so that where an element is does not change its product.
            let (mut left, mut right) = ([C64 { re: 0.0, im: 0.0 }; LINE], [C64 { re: 0.0, im: 0.0 }; LINE]);
            left[..rest].copy_from_slice(&a[whole..]);
            right[..rest].copy_from_slice(&b[whole..]);
            let mut products = [MaybeUninit::uninit(); LINE];
            // SAFETY: there are so many elements in each.
            unsafe { line(&left, &right, &mut products) };
            dst[whole..].copy_from_slice(&products[..rest]);
        }
    }

    /// A line of products.
    ///
    /// # Safety
    /// All sides have as many elements as a line.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn line(a: &[C64], b: &[C64], dst: &mut [MaybeUninit<C64>]) {
        let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
        let beyond = _mm256_set1_ps(f32::INFINITY);
        let mut lost = _mm256_setzero_ps();
        for at in [0, LANES] {
            // SAFETY: four elements from `at` on are there in all of them.
            unsafe {
                let [a, b] = [a, b].map(|x| _mm256_loadu_ps(x.as_ptr().add(at).cast()));
                let product = product(a, b);
                let here = _mm256_cmp_ps::<_CMP_NLT_UQ>(_mm256_and_ps(product, magnitude), beyond);
                lost = _mm256_or_ps(lost, here);
                _mm256_storeu_ps(dst.as_mut_ptr().add(at).cast(), product);
            }
        }
        if _mm256_movemask_ps(lost) != 0 {
            // SAFETY: all of them were written.
            unsafe { compute_again(a, b, dst) };
        }
    }

    /// The products of a line that are not finite, by their formula in f64.
    ///
    /// # Safety
    /// All of `dst` is written.
    #[cold]
    unsafe fn compute_again(a: &[C64], b: &[C64], dst: &mut [MaybeUninit<C64>]) {
        for (i, to) in dst.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let found = unsafe { to.assume_init() };
            if !(found.re.is_finite() && found.im.is_finite()) {
                map::<ComplexMul, C64, C64>(&a[i..=i], &b[i..=i], std::slice::from_mut(to), [0.0; 2]);
            }
        }
    }

    /// `a.re * b + (i * a.im) * b`, lane by lane.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn product(a: __m256, b: __m256) -> __m256 {
        let negated = _mm256_castsi256_ps(_mm256_set1_epi64x(1 << 31));
        let (re, im) = (_mm256_moveldup_ps(a), _mm256_xor_ps(_mm256_movehdup_ps(a), negated));
        let swapped = _mm256_permute_ps::<0b10_11_00_01>(b);
        let rounded = _mm256_mul_ps(im, swapped);
        // By how much it is too large; zero has no sign that would change the sum's.
        let excess = _mm256_fnmadd_ps(im, swapped, rounded);
        _mm256_sub_ps(_mm256_fmadd_ps(re, b, rounded), excess)
    }
}
