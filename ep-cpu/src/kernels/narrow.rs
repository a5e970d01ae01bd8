//! f16 and bf16 to and from f32, many at a time, and f32 to bytes.
//!
//! The conversions of [`elem`](super::elem) are integer code that any CPU runs; f16 costs it ten operations where
//! the CPU has one. The results are the same but for the payloads of NaNs, which each keeps its own part of.

use super::elem::{f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::isa::{Isa, Level};
use half::{bf16, f16};
use std::mem::MaybeUninit;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{bf16_bits, bf16_bits_of_two, f16_bits};

/// Converts to f32. Both sides have the same length.
pub(crate) fn widen_f16(isa: Isa, src: &[f16], dst: &mut [MaybeUninit<f32>]) {
    assert_eq!(src.len(), dst.len());
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        Level::Baseline => {}
        // SAFETY: an `Isa` of a level exists only where the CPU has its features.
        Level::Avx2 => return unsafe { x86::widen_avx2(src, dst) },
        // SAFETY: as above.
        Level::Avx512 | Level::Amx => return unsafe { x86::widen_avx512(src, dst) },
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    widen_each(src, dst);
}

/// Rounds to nearest, ties to even. Both sides have the same length.
pub(crate) fn round_f16(isa: Isa, src: &[f32], dst: &mut [MaybeUninit<f16>]) {
    assert_eq!(src.len(), dst.len());
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        Level::Baseline => {}
        // SAFETY: an `Isa` of a level exists only where the CPU has its features.
        Level::Avx2 => return unsafe { x86::round_f16_avx2(src, dst) },
        // SAFETY: as above.
        Level::Avx512 | Level::Amx => return unsafe { x86::round_f16_avx512(src, dst) },
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    round_each(src, dst, |x| f16::from_bits(f32_to_f16(x)));
}

/// Rounds to nearest, ties to even. Both sides have the same length.
pub(crate) fn round_bf16(isa: Isa, src: &[f32], dst: &mut [MaybeUninit<bf16>]) {
    assert_eq!(src.len(), dst.len());
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        Level::Baseline => {}
        // SAFETY: an `Isa` of a level exists only where the CPU has its features.
        Level::Avx2 => return unsafe { x86::round_bf16_avx2(src, dst) },
        // SAFETY: as above.
        Level::Avx512 | Level::Amx => return unsafe { x86::round_bf16_avx512(src, dst) },
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    round_each(src, dst, |x| bf16::from_bits(f32_to_bf16(x)));
}

/// Truncates numbers to whole ones, of `i8` with `SIGNED` and else of `u8`, saturated, and NaN to 0, at a level that has
/// saturating instructions for that; how many, from the first on. Both sides have the same length.
pub(crate) fn to_bytes<const SIGNED: bool>(isa: Isa, src: &[f32], dst: &mut [MaybeUninit<u8>]) -> usize {
    assert_eq!(src.len(), dst.len());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an `Isa` of a level exists only where the CPU has its features.
    unsafe {
        match isa.level() {
            Level::Baseline => {}
            Level::Avx2 => return x86::to_bytes_avx2::<SIGNED>(src, dst),
            Level::Avx512 | Level::Amx => return x86::to_bytes_avx512::<SIGNED>(src, dst),
        }
    }
    let _ = isa;
    0
}

#[inline(always)]
fn widen_each(src: &[f16], dst: &mut [MaybeUninit<f32>]) {
    for (d, s) in dst.iter_mut().zip(src) {
        d.write(f16_to_f32(s.to_bits()));
    }
}

#[inline(always)]
fn round_each<D>(src: &[f32], dst: &mut [MaybeUninit<D>], round: impl Fn(f32) -> D) {
    for (d, &s) in dst.iter_mut().zip(src) {
        d.write(round(s));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{round_each, widen_each};
    use crate::kernels::elem::{f32_to_bf16, f32_to_f16};
    use half::{bf16, f16};
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn widen_avx2(src: &[f16], dst: &mut [MaybeUninit<f32>]) {
        let whole = src.len() / 8 * 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: eight elements from `i` on are there in both, which have one length.
            unsafe {
                let bits = _mm_loadu_si128(src.as_ptr().add(i).cast());
                _mm256_storeu_ps(dst.as_mut_ptr().add(i).cast(), _mm256_cvtph_ps(bits));
            }
        }
        widen_each(&src[whole..], &mut dst[whole..]);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn widen_avx512(src: &[f16], dst: &mut [MaybeUninit<f32>]) {
        let whole = src.len() / 16 * 16;
        for i in (0..whole).step_by(16) {
            // SAFETY: sixteen elements from `i` on are there in both, which have one length.
            unsafe {
                let bits = _mm256_loadu_si256(src.as_ptr().add(i).cast());
                _mm512_storeu_ps(dst.as_mut_ptr().add(i).cast(), _mm512_cvtph_ps(bits));
            }
        }
        let rest = mask(src.len() - whole);
        // SAFETY: only the elements of the mask are touched, which are there.
        unsafe {
            let bits = _mm256_maskz_loadu_epi16(rest, src.as_ptr().add(whole).cast());
            _mm512_mask_storeu_ps(dst.as_mut_ptr().add(whole).cast(), rest, _mm512_cvtph_ps(bits));
        }
    }

    /// Rounded to f16, in a register: compilers otherwise store by the instruction that converts, which takes nearly twice as long on
    /// Zen 3.
    #[inline]
    #[target_feature(enable = "avx,f16c")]
    pub(crate) fn f16_bits(x: __m256) -> __m128i {
        let mut bits = _mm256_cvtps_ph::<NEAREST>(x);
        // SAFETY: a comment, which changes nothing.
        unsafe {
            asm!("/* {0} */", inout(xmm_reg) bits, options(pure, nomem, nostack, preserves_flags));
        }
        bits
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn round_f16_avx2(src: &[f32], dst: &mut [MaybeUninit<f16>]) {
        let whole = src.len() / 16 * 16;
        for i in (0..whole).step_by(16) {
            // SAFETY: sixteen elements from `i` on are there in both, which have one length.
            unsafe {
                let low = f16_bits(_mm256_loadu_ps(src.as_ptr().add(i)));
                let high = f16_bits(_mm256_loadu_ps(src.as_ptr().add(i + 8)));
                _mm_storeu_si128(dst.as_mut_ptr().add(i).cast(), low);
                _mm_storeu_si128(dst.as_mut_ptr().add(i + 8).cast(), high);
            }
        }
        let (src, dst) = (&src[whole..], &mut dst[whole..]);
        let whole = src.len() / 8 * 8;
        if whole > 0 {
            // SAFETY: eight elements are there in both, which have one length.
            unsafe {
                _mm_storeu_si128(dst.as_mut_ptr().cast(), f16_bits(_mm256_loadu_ps(src.as_ptr())));
            }
        }
        round_each(&src[whole..], &mut dst[whole..], |x| f16::from_bits(f32_to_f16(x)));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn round_f16_avx512(src: &[f32], dst: &mut [MaybeUninit<f16>]) {
        let whole = src.len() / 32 * 32;
        for i in (0..whole).step_by(32) {
            // SAFETY: 32 elements from `i` on are there in both, which have one length.
            unsafe {
                let low = _mm512_cvtps_ph::<NEAREST>(_mm512_loadu_ps(src.as_ptr().add(i)));
                let high = _mm512_cvtps_ph::<NEAREST>(_mm512_loadu_ps(src.as_ptr().add(i + 16)));
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                _mm512_storeu_si512(dst.as_mut_ptr().add(i).cast(), both);
            }
        }
        let mut done = whole;
        while done < src.len() {
            let rest = mask(src.len() - done);
            // SAFETY: only the elements of the mask are touched, which are there.
            unsafe {
                let bits = _mm512_cvtps_ph::<NEAREST>(_mm512_maskz_loadu_ps(rest, src.as_ptr().add(done)));
                _mm256_mask_storeu_epi16(dst.as_mut_ptr().add(done).cast(), rest, bits);
            }
            done += 16;
        }
    }

    /// As [`super::to_bytes`].
    #[target_feature(enable = "avx2")]
    pub(super) fn to_bytes_avx2<const SIGNED: bool>(src: &[f32], dst: &mut [MaybeUninit<u8>]) -> usize {
        let whole = src.len() / 32 * 32;
        let most = _mm256_set1_ps(if SIGNED { i8::MAX.into() } else { u8::MAX.into() });
        // Packing works within halves of the registers: these are where four bytes in a row are afterwards.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        for i in (0..whole).step_by(32) {
            let part = |k: usize| {
                // SAFETY: 32 elements from `i` on are there in both, which have one length.
                let x = unsafe { _mm256_loadu_ps(src.as_ptr().add(i + 8 * k)) };
                let number = _mm256_and_ps(x, _mm256_cmp_ps::<_CMP_ORD_Q>(x, x));
                // What is below all integers becomes the least.
                _mm256_cvttps_epi32(_mm256_min_ps(number, most))
            };
            let words = [_mm256_packs_epi32(part(0), part(1)), _mm256_packs_epi32(part(2), part(3))];
            let bytes = if SIGNED {
                _mm256_packs_epi16(words[0], words[1])
            } else {
                _mm256_packus_epi16(words[0], words[1])
            };
            // SAFETY: as above.
            unsafe {
                let to = dst.as_mut_ptr().add(i).cast();
                _mm256_storeu_si256(to, _mm256_permutevar8x32_epi32(bytes, order));
            }
        }
        whole
    }

    /// As [`super::to_bytes`]. Compilers cut each vector to bytes by itself, which takes a CPU several steps.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn to_bytes_avx512<const SIGNED: bool>(src: &[f32], dst: &mut [MaybeUninit<u8>]) -> usize {
        let whole = src.len() / 64 * 64;
        let most = _mm512_set1_ps(if SIGNED { i8::MAX.into() } else { u8::MAX.into() });
        // Packing works within quarters of the registers: these are where four bytes in a row are afterwards.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        for i in (0..whole).step_by(64) {
            let part = |k: usize| {
                // SAFETY: 64 elements from `i` on are there in both, which have one length.
                let x = unsafe { _mm512_loadu_ps(src.as_ptr().add(i + 16 * k)) };
                let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x);
                // What is below all integers becomes the least.
                _mm512_cvttps_epi32(_mm512_maskz_min_ps(number, x, most))
            };
            let words = [_mm512_packs_epi32(part(0), part(1)), _mm512_packs_epi32(part(2), part(3))];
            let bytes = if SIGNED {
                _mm512_packs_epi16(words[0], words[1])
            } else {
                _mm512_packus_epi16(words[0], words[1])
            };
            // SAFETY: as above.
            unsafe {
                let to = dst.as_mut_ptr().add(i).cast();
                _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
            }
        }
        whole
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn round_bf16_avx2(src: &[f32], dst: &mut [MaybeUninit<bf16>]) {
        let whole = src.len() / 16 * 16;
        for i in (0..whole).step_by(16) {
            // SAFETY: sixteen elements from `i` on are there in both, which have one length.
            unsafe {
                let (low, high) =
                    (_mm256_loadu_ps(src.as_ptr().add(i)), _mm256_loadu_ps(src.as_ptr().add(i + 8)));
                _mm256_storeu_si256(dst.as_mut_ptr().add(i).cast(), bf16_bits_of_two(low, high));
            }
        }
        round_each(&src[whole..], &mut dst[whole..], |x| bf16::from_bits(f32_to_bf16(x)));
    }

    /// Rounded to bf16.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn bf16_bits(x: __m256) -> __m128i {
        let quiet = _mm256_or_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x40_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        let upper = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded_up(x), quiet, nan));
        _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256::<1>(upper))
    }

    /// Both rounded to bf16, one behind the other.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn bf16_bits_of_two(mut x: __m256, mut y: __m256) -> __m256i {
        if _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, y)) != 0 {
            (x, y) = (unrounded_nan(x), unrounded_nan(y));
        }
        // Packing works within halves of the register, and saturates nothing as the upper bits are zeros.
        let packed = _mm256_packus_epi32(
            _mm256_srli_epi32::<16>(rounded_up(x)),
            _mm256_srli_epi32::<16>(rounded_up(y)),
        );
        _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
    }

    /// `x` but for NaNs, which become quiet and lose what rounding could carry into their signs.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn unrounded_nan(x: __m256) -> __m256 {
        let quiet = _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x40_0000)));
        let short = _mm256_and_ps(quiet, _mm256_castsi256_ps(_mm256_set1_epi32(!0xffff)));
        _mm256_blendv_ps(x, short, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x))
    }

    /// Numbers whose upper halves are those of `x` rounded, but for NaNs.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn rounded_up(x: __m256) -> __m256i {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)))
    }

    /// The instruction for this takes subnormal numbers for zero, so that integer arithmetic has to do it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn round_bf16_avx512(src: &[f32], dst: &mut [MaybeUninit<bf16>]) {
        /// The upper halves of 32 numbers.
        const UPPER: [u16; 32] = {
            let (mut index, mut i) = ([0; 32], 0);
            while i < 32 {
                index[i] = 2 * i as u16 + 1;
                i += 1;
            }
            index
        };
        // SAFETY: the array has the size of a vector.
        let upper = unsafe { _mm512_loadu_si512(UPPER.as_ptr().cast()) };
        let whole = src.len() / 32 * 32;
        for i in (0..whole).step_by(32) {
            // SAFETY: 32 elements from `i` on are there in both, which have one length.
            unsafe {
                let low = upper_rounded(_mm512_loadu_ps(src.as_ptr().add(i)));
                let high = upper_rounded(_mm512_loadu_ps(src.as_ptr().add(i + 16)));
                let both = _mm512_permutex2var_epi16(low, upper, high);
                _mm512_storeu_si512(dst.as_mut_ptr().add(i).cast(), both);
            }
        }
        let mut done = whole;
        while done < src.len() {
            let rest = mask(src.len() - done);
            // SAFETY: only the elements of the mask are touched, which are there.
            unsafe {
                let bits = upper_rounded(_mm512_maskz_loadu_ps(rest, src.as_ptr().add(done)));
                let bits = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bits));
                _mm256_mask_storeu_epi16(dst.as_mut_ptr().add(done).cast(), rest, bits);
            }
            done += 16;
        }
    }

    /// Numbers whose upper halves are those of `x` rounded, and of NaNs.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn upper_rounded(x: __m512) -> __m512i {
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000))
    }

    /// The first `n` of sixteen, or all.
    fn mask(n: usize) -> __mmask16 {
        ((1u32 << n.min(16)) - 1) as __mmask16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng};

    /// Applies `convert` at odd addresses and lengths, and returns what it wrote.
    fn run<S: Copy, D: Copy>(src: &[S], mut convert: impl FnMut(&[S], &mut [MaybeUninit<D>])) -> Vec<D> {
        let mut dst = Guarded::<D>::new(src.len());
        // SAFETY: `Guarded` has that many elements, which are plain numbers.
        convert(src, unsafe { std::slice::from_raw_parts_mut(dst.ptr().cast(), src.len()) });
        dst.written().to_vec()
    }

    #[test]
    fn every_f16_widens_and_comes_back() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for isa in Isa::available() {
            for (start, end) in [(0, 65536), (1, 65500), (3, 3), (5, 12), (7, 40), (1, 64)] {
                let src = &all[start..end];
                let wide = run(src, |s, d| widen_f16(isa, s, d));
                let back = run(&wide, |s, d| round_f16(isa, s, d));
                for ((s, w), b) in src.iter().zip(&wide).zip(back) {
                    let want = s.to_f32_const();
                    assert!(
                        w.to_bits() == want.to_bits() || w.is_nan() && s.is_nan(),
                        "{isa} {:#x}",
                        s.to_bits()
                    );
                    assert!(
                        b.to_bits() == s.to_bits() || b.is_nan() && s.is_nan(),
                        "{isa} {:#x}",
                        s.to_bits()
                    );
                }
            }
        }
    }

    #[test]
    fn bytes_are_truncated_and_saturated() {
        let mut rng = Rng::new();
        let mut src: Vec<f32> = (0..10_000).map(|_| f32::from_bits(rng.next() as u32)).collect();
        let whole = (-300..300).map(|k| k as f32);
        src.extend(whole.flat_map(|x| [x, x.next_up(), x.next_down(), x + 0.5]));
        src.extend([
            0.0,
            -0.0,
            3e9,
            -3e9,
            f32::MAX,
            f32::MIN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            -f32::NAN,
        ]);
        for isa in Isa::available() {
            for src in [&src[..], &src[1..], &src[src.len() - 64..], &src[src.len() - 33..], &src[..31], &[]]
            {
                let mut done = [0; 2];
                let signed = run(src, |s, d| {
                    d.fill(MaybeUninit::new(0x5a));
                    done[0] = to_bytes::<true>(isa, s, d);
                });
                let unsigned = run(src, |s, d| {
                    d.fill(MaybeUninit::new(0x5a));
                    done[1] = to_bytes::<false>(isa, s, d);
                });
                let each = match isa.level() {
                    Level::Baseline => usize::MAX,
                    Level::Avx2 => 32,
                    Level::Avx512 | Level::Amx => 64,
                };
                let many = src.len() / each * each;
                assert_eq!(done, [many; 2], "{isa}");
                for (i, x) in src.iter().enumerate() {
                    let want = if i < many { [(*x as i8) as u8, *x as u8] } else { [0x5a; 2] };
                    assert_eq!([signed[i], unsigned[i]], want, "{isa} {x:e}");
                }
            }
        }
    }

    /// Around every boundary between two values of the narrow types, and anywhere.
    #[test]
    fn levels_round_as_the_portable_code() {
        let mut rng = Rng::new();
        let mut src: Vec<f32> = (0..40_000).map(|_| f32::from_bits(rng.next() as u32)).collect();
        for bits in 0..0x7f81u32 {
            let tie = (bits << 16) + 0x8000;
            src.extend([tie - 1, tie, tie + 1].map(|b| f32::from_bits(b | (bits & 1) << 31)));
        }
        // NaNs that rounding would make numbers of, each beside numbers.
        for nan in [0x7f80_0001, 0x7f80_7fff, 0x7fff_8000, 0x7fff_ffff, 0xff80_0001, 0xffff_8000u32, !0] {
            src.extend([1.0, f32::from_bits(nan), -1e30, 0.0, 3.0]);
        }
        for bits in 0..0x7c00u16 {
            let low = f16::from_bits(bits).to_f32_const().to_bits();
            let high = f16::from_bits(bits + 1).to_f32_const().to_bits();
            let tie = if bits == 0x7bff { 65520f32.to_bits() } else { low + (high - low) / 2 };
            src.extend([low, tie - 1, tie, tie + 1].map(f32::from_bits));
        }
        for isa in Isa::available() {
            for src in [&src[..], &src[1..], &src[..17], &src[..33], &src[3..34], &[]] {
                let (halves, brains) =
                    (run(src, |s, d| round_f16(isa, s, d)), run(src, |s, d| round_bf16(isa, s, d)));
                for ((x, h), b) in src.iter().zip(halves).zip(brains) {
                    let same = h.to_bits() == f32_to_f16(*x);
                    assert!(same || h.is_nan() && x.is_nan(), "{isa} {x:e}: {h:?}");
                    assert_eq!(b.to_bits(), f32_to_bf16(*x), "{isa} {x:e}");
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        if Isa::available().len() > 1 {
            for x in src.chunks_exact(8) {
                // SAFETY: what the first level above the baseline has, of arrays of a vector's size.
                let bits: [u16; 8] =
                    unsafe { std::mem::transmute(bf16_bits(std::arch::x86_64::_mm256_loadu_ps(x.as_ptr()))) };
                for (x, bits) in x.iter().zip(bits) {
                    assert_eq!(bits, f32_to_bf16(*x), "{x:e} in one vector");
                }
            }
        }
    }
}
