//! AVX-512: 16 lanes of f32, 8 of f64.

pub(crate) use by_table::{EXP_SLOPE, POWERS};

use super::{Double, Kernel, Lanes, Mask, Pieces, Single, Table, Vector, WidePieces, WideTable, Widening};
use crate::isa;
use by_table::entries;
use half::{bf16, f16};
use std::arch::x86_64::*;

pub(super) struct Avx512;

impl Lanes for Avx512 {
    type F32 = F32x16;
    type ManyF32 = F32x16;
    type F64 = F64x8;
}

/// Runs `kernel` with these vectors.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd")]
pub(super) fn run<K: Kernel>(kernel: K) {
    isa::align_frame();
    kernel.run::<Avx512>();
}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F32x16(__m512);

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F64x8(__m512d);

impl Mask for __mmask16 {
    #[inline(always)]
    fn any(self) -> bool {
        self != 0
    }

    #[inline(always)]
    fn before_first(self) -> usize {
        self.trailing_zeros() as usize
    }
}

impl Mask for __mmask8 {
    #[inline(always)]
    fn any(self) -> bool {
        self != 0
    }

    #[inline(always)]
    fn before_first(self) -> usize {
        self.trailing_zeros() as usize
    }
}

/// An intrinsic that only computes.
macro_rules! x {
    ($($call:tt)*) => {
        // SAFETY: these intrinsics need AVX-512 F, BW, DQ and VL, and nothing else. This file's types are
        // named only as the vectors of `Avx512`, which `dispatch` hands out after an `Isa` has proved them.
        unsafe { $($call)* }
    };
}

// Behind the macro, which it uses.
mod by_table;

macro_rules! vector {
    (
        $v:ident, $elem:ident, $mask:ident, $lanes:literal, $digits:literal, $bits:literal, $bias:literal;
        $set:ident $add:ident $sub:ident $mul:ident $div:ident $fma:ident $xor:ident $abs:ident $sqrt:ident $floor:ident
        $cmp:ident $blend:ident $min:ident $max:ident $scalef:ident $getexp:ident $getmant:ident
        $to_int:ident $from_int:ident $set_int:ident $sub_int:ident $up:ident $shift:ident $test:ident $rcp:ident $rsqrt:ident
        $load:ident $store:ident $stream:ident $mask_load:ident $mask_store:ident $steps:literal
    ) => {
        operators!($v);

        impl $v {
            #[inline(always)]
            fn plus(self, b: Self) -> Self {
                x!($v($add(self.0, b.0)))
            }

            #[inline(always)]
            fn minus(self, b: Self) -> Self {
                x!($v($sub(self.0, b.0)))
            }

            #[inline(always)]
            fn times(self, b: Self) -> Self {
                x!($v($mul(self.0, b.0)))
            }

            #[inline(always)]
            fn over(self, b: Self) -> Self {
                x!($v($div(self.0, b.0)))
            }

            #[inline(always)]
            fn negated(self) -> Self {
                x!($v($xor(self.0, $set(-0.0))))
            }
        }

        impl Vector for $v {
            type Mask = $mask;
            type Elem = $elem;
            const LANES: usize = $lanes;
            const ROUNDER: f64 = 1.5 * (1u64 << $digits) as f64;
            const POWER_ROUNDER: f64 = Self::ROUNDER + $bias as f64;
            const FUSED: bool = true;

            #[inline(always)]
            fn splat(x: f64) -> Self {
                x!($v($set(x as $elem)))
            }

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                x!($v($fma(self.0, b.0, c.0)))
            }

            #[inline(always)]
            fn abs(self) -> Self {
                x!($v($abs(self.0)))
            }

            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                // Bits of the second operand where the third has ones, of the first elsewhere.
                const SELECT: i32 = 0b1101_1000;
                let sign_bit = x!($to_int($set(-0.0)));
                let (a, b) = x!(($to_int(self.0), $to_int(sign.0)));
                x!($v($from_int(_mm512_ternarylogic_epi32::<SELECT>(a, b, sign_bit))))
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                x!($v($sqrt(self.0)))
            }

            #[inline(always)]
            fn floor(self) -> Self {
                x!($v($floor::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(self.0)))
            }

            #[inline(always)]
            fn lt(self, other: Self) -> $mask {
                x!($cmp::<_CMP_LT_OQ>(self.0, other.0))
            }

            #[inline(always)]
            fn le(self, other: Self) -> $mask {
                x!($cmp::<_CMP_LE_OQ>(self.0, other.0))
            }

            #[inline(always)]
            fn equals(self, other: Self) -> $mask {
                x!($cmp::<_CMP_EQ_OQ>(self.0, other.0))
            }

            #[inline(always)]
            fn is_nan(self) -> $mask {
                x!($cmp::<_CMP_UNORD_Q>(self.0, self.0))
            }

            #[inline(always)]
            fn select(mask: $mask, a: Self, b: Self) -> Self {
                x!($v($blend(mask, b.0, a.0)))
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                x!($v($min(self.0, other.0)))
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                x!($v($max(self.0, other.0)))
            }

            #[inline(always)]
            fn subnormals(self) -> Self {
                let none = Self::splat((1u64 << $digits) as f64);
                x!($v($from_int($sub_int($to_int(self.0), $to_int(none.0)))))
            }

            #[inline(always)]
            fn scale_by_product(self, n: Self) -> Self {
                x!($v($scalef(self.0, n.0)))
            }

            #[inline(always)]
            fn subnormals_are_fast() -> bool {
                isa::subnormals_are_fast()
            }

            #[inline(always)]
            fn subnormals_are_fast_or_ask() -> bool {
                isa::subnormals_are_fast_or_ask()
            }

            #[inline(always)]
            fn power_of_two(self) -> Self {
                x!($v($from_int($up::<$digits>($to_int(self.0)))))
            }

            #[inline(always)]
            fn split(self) -> (Self, Self) {
                let m = x!($v($getmant::<_MM_MANT_NORM_P75_1P5, _MM_MANT_SIGN_SRC>(self.0)));
                // The exponent of m is -1 where it is below 1.
                (x!($v($sub($getexp(self.0), $getexp(m.0)))), m)
            }

            #[inline(always)]
            fn low_bit(self, bit: u32) -> $mask {
                x!($test($to_int(self.0), $set_int(1 << bit)))
            }

            #[inline(always)]
            fn flip_if_bit(self, rounded: Self, bit: u32) -> Self {
                let up = x!(_mm_cvtsi32_si128(($bits - 1 - bit) as i32));
                let moved = x!($shift($to_int(rounded.0), up));
                let sign = x!(_mm512_and_si512(moved, $to_int($set(-0.0))));
                x!($v($from_int(_mm512_xor_si512($to_int(self.0), sign))))
            }

            #[inline(always)]
            fn quotient(self, d: Self) -> Self {
                let one = Self::splat(1.0);
                let mut r = x!($v($rcp(d.0)));
                #[allow(clippy::reversed_empty_ranges, reason = "one step is enough for f32")]
                for _ in 1..$steps {
                    r = r.mul_add(d.neg_mul_add(r, one), r);
                }
                let q = self * r;
                let q = q.mul_add(d.neg_mul_add(r, one), q);
                q.neg_mul_add(d, self).mul_add(r, q)
            }

            #[inline(always)]
            fn one_over_one_plus(self) -> Self {
                let one = Self::splat(1.0);
                let mut r = x!($v($rcp((self + one).0)));
                for _ in 0..$steps {
                    // As in the default, of which this is the loop instead of the division.
                    r = r.mul_add(self.neg_mul_add(r, one - r), r);
                }
                r
            }

            #[inline(always)]
            fn rough_reciprocal(self) -> Self {
                let r = x!($v($rcp(self.0)));
                r.mul_add(self.neg_mul_add(r, Self::splat(1.0)), r)
            }

            #[inline(always)]
            fn rsqrt(self) -> Self {
                let start = x!($v($rsqrt(self.0)));
                let mut y = start;
                for _ in 0..$steps {
                    // y^2 x = 1 - 2e: the next y is y (1 + e).
                    let e = (self * y).neg_mul_add(y * 0.5, Self::splat(0.5));
                    y = y.mul_add(e, y);
                }
                // Zero and infinity have their limit already, and multiplied with it give NaN.
                Self::select(y.is_nan(), start, y)
            }

            #[inline(always)]
            fn map(self, f: impl Fn(f64) -> f64) -> Self {
                let mut lanes = [0.0; $lanes];
                // SAFETY: the array has as many elements as the vector has lanes.
                unsafe { self.store(lanes.as_mut_ptr()) };
                for lane in &mut lanes {
                    *lane = f(f64::from(*lane)) as $elem;
                }
                // SAFETY: as above.
                unsafe { Self::load(lanes.as_ptr()) }
            }

            #[inline(always)]
            fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
                let (mut a, mut b) = ([0.0; $lanes], [0.0; $lanes]);
                // SAFETY: the arrays have as many elements as the vectors have lanes.
                unsafe {
                    self.store(a.as_mut_ptr());
                    other.store(b.as_mut_ptr());
                }
                for (a, b) in a.iter_mut().zip(b) {
                    *a = f(f64::from(*a), f64::from(b)) as $elem;
                }
                // SAFETY: as above.
                unsafe { Self::load(a.as_ptr()) }
            }

            #[inline(always)]
            unsafe fn load(p: *const $elem) -> Self {
                // SAFETY: the caller's contract, and the level as in `x`.
                unsafe { $v($load(p)) }
            }

            #[inline(always)]
            unsafe fn store(self, p: *mut $elem) {
                // SAFETY: as in `load`.
                unsafe { $store(p, self.0) }
            }

            #[inline(always)]
            unsafe fn stream(self, p: *mut $elem) {
                // SAFETY: the caller's promise, that of the alignment included; the level has the instruction.
                unsafe { $stream(p, self.0) }
            }

            #[inline(always)]
            unsafe fn load_part(p: *const $elem, n: usize) -> Self {
                let mask = ((1u32 << n) - 1) as $mask;
                // SAFETY: what the mask leaves out is not touched; the rest as in `load`.
                unsafe { $v($mask_load($set(p.read()), mask, p)) }
            }

            #[inline(always)]
            unsafe fn store_part(self, p: *mut $elem, n: usize) {
                let mask = ((1u32 << n) - 1) as $mask;
                // SAFETY: as in `load_part`.
                unsafe { $mask_store(p, mask, self.0) }
            }
        }
    };
}
vector! {
    F32x16, f32, __mmask16, 16, 23, 32, 127;
    _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_div_ps _mm512_fmadd_ps _mm512_xor_ps
    _mm512_abs_ps _mm512_sqrt_ps _mm512_roundscale_ps
    _mm512_cmp_ps_mask _mm512_mask_blend_ps _mm512_min_ps _mm512_max_ps _mm512_scalef_ps _mm512_getexp_ps
    _mm512_getmant_ps
    _mm512_castps_si512 _mm512_castsi512_ps _mm512_set1_epi32 _mm512_sub_epi32 _mm512_slli_epi32
    _mm512_sll_epi32 _mm512_test_epi32_mask
    _mm512_rcp14_ps _mm512_rsqrt14_ps
    _mm512_loadu_ps _mm512_storeu_ps _mm512_stream_ps _mm512_mask_loadu_ps _mm512_mask_storeu_ps 1
}
vector! {
    F64x8, f64, __mmask8, 8, 52, 64, 1023;
    _mm512_set1_pd _mm512_add_pd _mm512_sub_pd _mm512_mul_pd _mm512_div_pd _mm512_fmadd_pd _mm512_xor_pd
    _mm512_abs_pd _mm512_sqrt_pd _mm512_roundscale_pd
    _mm512_cmp_pd_mask _mm512_mask_blend_pd _mm512_min_pd _mm512_max_pd _mm512_scalef_pd _mm512_getexp_pd
    _mm512_getmant_pd
    _mm512_castpd_si512 _mm512_castsi512_pd _mm512_set1_epi64 _mm512_sub_epi64 _mm512_slli_epi64
    _mm512_sll_epi64 _mm512_test_epi64_mask
    _mm512_rcp14_pd _mm512_rsqrt14_pd
    _mm512_loadu_pd _mm512_storeu_pd _mm512_stream_pd _mm512_mask_loadu_pd _mm512_mask_storeu_pd 2
}

impl Table {
    /// The numbers of the pieces whose numbers are in the low bits of each lane.
    #[inline(always)]
    fn at(&self, piece: __m512i) -> F32x16 {
        // SAFETY: the table is a vector in size and alignment; the level as in `x`.
        F32x16(unsafe { _mm512_permutexvar_ps(piece, _mm512_load_ps(self.0.as_ptr())) })
    }
}

impl WideTable {
    /// As of [`Table`].
    #[inline(always)]
    fn at(&self, piece: __m512i) -> F64x8 {
        let halves = self.0.as_ptr();
        // SAFETY: the table is two vectors in size and aligned as one; the level as in `x`.
        F64x8(unsafe { _mm512_permutex2var_pd(_mm512_load_pd(halves), piece, _mm512_load_pd(halves.add(8))) })
    }
}

impl Double for F64x8 {
    #[inline(always)]
    fn on_pieces<const N: usize>(self, low: Self, pieces: &'static WidePieces<N>) -> Option<Self> {
        let moved = self + pieces.start;
        let piece = x!(_mm512_srli_epi64::<50>(_mm512_castpd_si512(moved.0)));
        let x = (self - pieces.centers.at(piece)) + low;
        let mut sum = pieces.coefficients[N - 1].at(piece);
        for k in (1..N - 1).rev() {
            sum = sum.mul_add(x, pieces.coefficients[k].at(piece));
        }
        let constant = pieces.coefficients[0].at(piece);
        if pieces.first == 0.0 {
            return Some(sum.mul_add(x, constant));
        }
        let first = moved.lt(Self::splat(pieces.first));
        Some(sum.mul_add(x, Self::select(first, self, constant)))
    }
}

impl Single for F32x16 {
    type Wide = super::pair::Pair<F64x8>;

    #[inline(always)]
    fn exp_by_table(self) -> Option<Self> {
        Some(by_table::exp(self))
    }

    #[inline(always)]
    fn ln_by_table(self) -> Option<Self> {
        Some(by_table::ln(self))
    }

    #[inline(always)]
    fn pow_by_table(self, y: Self) -> Option<(Self, Self)> {
        Some(by_table::pow(self, y))
    }

    #[inline(always)]
    fn piecewise_in_parts<const N: usize, const SHORTER: bool>(
        self,
        low: Self,
        pieces: &'static Pieces<N, SHORTER>,
    ) -> Option<(Self, Self)> {
        // Towards zero, the sum with 2^23 has the integer below the product in its low bits.
        const DOWN: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
        let (scale, rounder) = (Self::splat(pieces.scale.into()), Self::splat(8_388_608.0));
        let scale = if SHORTER { self.mul_add(Self::splat(pieces.growth.into()), scale) } else { scale };
        let piece = x!(_mm512_castps_si512(_mm512_fmadd_round_ps::<DOWN>(self.0, scale.0, rounder.0)));
        let x = (self - entries(&pieces.centers, piece)) + low;
        let mut sum = entries(&pieces.coefficients[N - 1], piece);
        for k in (1..N - 1).rev() {
            sum = sum.mul_add(x, entries(&pieces.coefficients[k], piece));
        }
        let constant = entries(&pieces.coefficients[0], piece);
        let value = sum.mul_add(x, constant);
        Some((value, sum.mul_add(x, constant - value)))
    }

    #[inline(always)]
    fn widening<const N: usize>(self, pieces: &'static Widening<N>) -> Option<Self> {
        let t = self.abs().at_most(pieces.end.into());
        let moved = t + f64::from(pieces.start);
        let piece = x!(_mm512_srli_epi32::<21>(_mm512_castps_si512(moved.0)));
        let x = t - pieces.centers.at(piece);
        let mut sum = pieces.coefficients[N - 1].at(piece);
        for k in (1..N - 1).rev() {
            sum = sum.mul_add(x, pieces.coefficients[k].at(piece));
        }
        let constant = pieces.coefficients[0].at(piece);
        if pieces.first == 0.0 {
            return Some(sum.mul_add(x, constant).copysign(self));
        }
        let first = moved.lt(Self::splat(pieces.first.into()));
        Some(sum.mul_add(x, Self::select(first, t, constant)).copysign(self))
    }

    #[inline(always)]
    fn widen(self) -> Self::Wide {
        let low = x!(F64x8(_mm512_cvtps_pd(_mm512_castps512_ps256(self.0))));
        super::pair::Pair(low, x!(F64x8(_mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(self.0)))))
    }

    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        let (low, high) = x!((_mm512_cvtpd_ps(wide.0.0), _mm512_cvtpd_ps(wide.1.0)));
        x!(F32x16(_mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)))
    }

    #[inline(always)]
    fn total(wide: Self::Wide) -> f64 {
        let eight = (wide.0 + wide.1).0;
        // SAFETY: the level as in `x`.
        let four =
            unsafe { _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd::<1>(eight)) };
        super::avx2::total(four)
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: the caller's contract, and the level as in `x`.
        unsafe { F32x16(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        // SAFETY: as in `load_f16`.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        // SAFETY: as in `load_f16`.
        let wide = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())) };
        x!(F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16) {
        // The conversion instruction would flush subnormals.
        let bits = x!(_mm512_castps_si512(self.0));
        let upper = x!(_mm512_srli_epi32::<16>(bits));
        let odd = x!(_mm512_and_si512(upper, _mm512_set1_epi32(1)));
        let rounded = x!(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd));
        let quiet = x!(_mm512_or_si512(upper, _mm512_set1_epi32(0x40)));
        let halves = x!(_mm512_mask_mov_epi32(_mm512_srli_epi32::<16>(rounded), self.is_nan(), quiet));
        // SAFETY: as in `load_f16`.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(halves)) }
    }
}
