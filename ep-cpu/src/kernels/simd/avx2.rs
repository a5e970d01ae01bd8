//! AVX2 with FMA and F16C: 8 lanes of f32, 4 of f64.

use super::pair::Pair;
use super::{Double, Eight, Kernel, Lanes, Mask, Single, Vector};
use crate::isa;
use crate::kernels::in_step;
use crate::kernels::narrow::{bf16_bits, bf16_bits_of_two, f16_bits};
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::ops::{BitAnd, BitOr, Not};

pub(super) struct Avx2;

impl Lanes for Avx2 {
    type F32 = F32x8;
    type ManyF32 = Pair<Pair<F32x8>>;
    type F64 = F64x4;
}

/// Runs `kernel` with these vectors.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn run<K: Kernel>(kernel: K) {
    isa::align_frame();
    kernel.run::<Avx2>();
}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F32x8(__m256);

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F64x4(__m256d);

/// An intrinsic that only computes.
macro_rules! x {
    ($($call:tt)*) => {
        // SAFETY: these intrinsics need AVX2, FMA and F16C, and nothing else. This file's types are named
        // only as the vectors of `Avx2`, in kernels that `run` has inlined and the CPU has these for.
        unsafe { $($call)* }
    };
}

/// The truth values of a vector: the sign bits of its lanes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Signs<V>(V);

macro_rules! vector {
    (
        $v:ident, $reg:ident, $elem:ident, $lanes:literal, $digits:literal, $bits:literal, $bias:literal;
        $set:ident $add:ident $sub:ident $mul:ident $div:ident $fma:ident $and:ident $andnot:ident $or:ident
        $xor:ident $sqrt:ident $floor:ident $cmp:ident $blend:ident $min:ident $max:ident $movemask:ident
        $to_int:ident $from_int:ident $set_int:ident $add_int:ident $sub_int:ident $up:ident $down:ident
        $load:ident $store:ident $stream:ident
        $($in_step:item)*
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

        impl Mask for Signs<$reg> {
            #[inline(always)]
            fn any(self) -> bool {
                x!($movemask(self.0)) != 0
            }

            #[inline(always)]
            fn before_first(self) -> usize {
                (x!($movemask(self.0)) | 1 << $lanes).trailing_zeros() as usize
            }
        }

        impl BitAnd for Signs<$reg> {
            type Output = Self;

            #[inline(always)]
            fn bitand(self, b: Self) -> Self {
                x!(Signs($and(self.0, b.0)))
            }
        }

        impl BitOr for Signs<$reg> {
            type Output = Self;

            #[inline(always)]
            fn bitor(self, b: Self) -> Self {
                x!(Signs($or(self.0, b.0)))
            }
        }

        impl Not for Signs<$reg> {
            type Output = Self;

            #[inline(always)]
            fn not(self) -> Self {
                x!(Signs($xor(self.0, $set(-0.0))))
            }
        }

        impl Vector for $v {
            type Mask = Signs<$reg>;
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
                x!($v($andnot($set(-0.0), self.0)))
            }

            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                x!($v($or($andnot($set(-0.0), self.0), $and($set(-0.0), sign.0))))
            }

            #[inline(always)]
            fn with_sign(self, sign: Self) -> Self {
                x!($v($or(self.0, $and($set(-0.0), sign.0))))
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                x!($v($sqrt(self.0)))
            }

            #[inline(always)]
            fn floor(self) -> Self {
                x!($v($floor(self.0)))
            }

            #[inline(always)]
            fn lt(self, other: Self) -> Self::Mask {
                x!(Signs($cmp::<_CMP_LT_OQ>(self.0, other.0)))
            }

            #[inline(always)]
            fn le(self, other: Self) -> Self::Mask {
                x!(Signs($cmp::<_CMP_LE_OQ>(self.0, other.0)))
            }

            #[inline(always)]
            fn equals(self, other: Self) -> Self::Mask {
                x!(Signs($cmp::<_CMP_EQ_OQ>(self.0, other.0)))
            }

            #[inline(always)]
            fn is_nan(self) -> Self::Mask {
                x!(Signs($cmp::<_CMP_UNORD_Q>(self.0, self.0)))
            }

            #[inline(always)]
            fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
                x!($v($blend(b.0, a.0, mask.0)))
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                x!($v($min(self.0, other.0)))
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                x!($v($max(self.0, other.0)))
            }

            $($in_step)*

            #[inline(always)]
            fn subnormals(self) -> Self {
                let none = Self::splat((1u64 << $digits) as f64);
                x!($v($from_int($sub_int($to_int(self.0), $to_int(none.0)))))
            }

            #[inline(always)]
            fn scale_by_product(self, n: Self) -> Self {
                // In two steps, since 2^n alone may be out of range.
                let rounder = Self::splat(Self::POWER_ROUNDER);
                let half = n.mul_add(Self::splat(0.5), rounder);
                let rest = n - (half - rounder) + rounder;
                self * half.power_of_two() * rest.power_of_two()
            }

            #[inline(always)]
            fn power_of_two(self) -> Self {
                x!($v($from_int($up::<$digits>($to_int(self.0)))))
            }

            #[inline(always)]
            fn times_power(self, rounded: Self) -> Self {
                // The integer is added to the exponent, which leaves the multipliers to others.
                x!($v($from_int($add_int($to_int(self.0), $up::<$digits>($to_int(rounded.0))))))
            }

            #[inline(always)]
            fn split(self) -> (Self, Self) {
                const DIGITS: f64 = $digits as f64;
                let small = self.lt(Self::splat($elem::MIN_POSITIVE as f64));
                let x = Self::select(small, self * (2u64 << $digits) as f64, self);
                let offset = (0.75 as $elem).to_bits().wrapping_sub($bias << $digits);
                let bits = x!($to_int(x.0));
                let biased = x!($down::<$digits>($sub_int(bits, $set_int(offset as _))));
                let shift = x!($up::<$digits>($sub_int(biased, $set_int($bias))));
                let m = x!($v($from_int($sub_int(bits, shift))));
                // The integer in the low bits of 2^digits is that integer added to it.
                let base = Self::splat((1u64 << $digits) as f64);
                let k = x!($v($or($from_int(biased), base.0))) - ((1u64 << $digits) as f64 + $bias as f64);
                (Self::select(small, k - (DIGITS + 1.0), k), m)
            }

            #[inline(always)]
            fn low_bit(self, bit: u32) -> Self::Mask {
                // A variable count: the two values that are used fold to constants.
                let top = $bits - 1 - bit as i32;
                x!(Signs($from_int(shift_up::<$bits>($to_int(self.0), top))))
            }

            #[inline(always)]
            fn flip_if_bit(self, rounded: Self, bit: u32) -> Self {
                let sign = rounded.low_bit(bit);
                x!($v($xor(self.0, $and(sign.0, $set(-0.0)))))
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
        }
    };
}
vector! {
    F32x8, __m256, f32, 8, 23, 32, 127;
    _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps _mm256_fmadd_ps _mm256_and_ps
    _mm256_andnot_ps _mm256_or_ps
    _mm256_xor_ps _mm256_sqrt_ps _mm256_floor_ps _mm256_cmp_ps _mm256_blendv_ps _mm256_min_ps _mm256_max_ps
    _mm256_movemask_ps
    _mm256_castps_si256 _mm256_castsi256_ps _mm256_set1_epi32 _mm256_add_epi32 _mm256_sub_epi32
    _mm256_slli_epi32 _mm256_srli_epi32
    _mm256_loadu_ps _mm256_storeu_ps _mm256_stream_ps

    #[inline(always)]
    fn two_in_step([a, b]: [Self; 2]) -> [Self; 2] {
        let [a, b] = x!(in_step::two([a.0, b.0]));
        [F32x8(a), F32x8(b)]
    }

    #[inline(always)]
    fn four_in_step([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        let [a, b, c, d] = x!(in_step::four([a.0, b.0, c.0, d.0]));
        [F32x8(a), F32x8(b), F32x8(c), F32x8(d)]
    }
}
vector! {
    F64x4, __m256d, f64, 4, 52, 64, 1023;
    _mm256_set1_pd _mm256_add_pd _mm256_sub_pd _mm256_mul_pd _mm256_div_pd _mm256_fmadd_pd _mm256_and_pd
    _mm256_andnot_pd _mm256_or_pd
    _mm256_xor_pd _mm256_sqrt_pd _mm256_floor_pd _mm256_cmp_pd _mm256_blendv_pd _mm256_min_pd _mm256_max_pd
    _mm256_movemask_pd
    _mm256_castpd_si256 _mm256_castsi256_pd _mm256_set1_epi64x _mm256_add_epi64 _mm256_sub_epi64
    _mm256_slli_epi64 _mm256_srli_epi64
    _mm256_loadu_pd _mm256_storeu_pd _mm256_stream_pd
}

/// The lanes of `BITS` bits shifted to the left.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn shift_up<const BITS: i32>(v: __m256i, count: i32) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        let count = _mm_cvtsi32_si128(count);
        if BITS == 32 { _mm256_sll_epi32(v, count) } else { _mm256_sll_epi64(v, count) }
    }
}

/// [`Single::total`] of four lanes.
#[inline(always)]
pub(super) fn total(four: __m256d) -> f64 {
    x!({
        let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
        _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
    })
}

impl Double for F64x4 {}

impl Single for F32x8 {
    const PLAIN_POWERS: bool = true;
    type Wide = Pair<F64x4>;

    #[inline(always)]
    fn on_eight(self) -> Option<Self> {
        let place = self * self.mul_add(Self::splat(0.25), Self::splat(1.0));
        Some(x!(F32x8(_mm256_castsi256_ps(_mm256_cvttps_epi32(place.0)))))
    }

    #[inline(always)]
    fn of_eight(self, eight: &'static Eight) -> Self {
        // SAFETY: the table is a vector in size and alignment; the level as in `x`.
        F32x8(unsafe {
            _mm256_permutevar8x32_ps(_mm256_load_ps(eight.0.as_ptr()), _mm256_castps_si256(self.0))
        })
    }

    #[inline(always)]
    fn widen(self) -> Self::Wide {
        let low = x!(F64x4(_mm256_cvtps_pd(_mm256_castps256_ps128(self.0))));
        Pair(low, x!(F64x4(_mm256_cvtps_pd(_mm256_extractf128_ps::<1>(self.0)))))
    }

    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        let (low, high) = x!((_mm256_cvtpd_ps(wide.0.0), _mm256_cvtpd_ps(wide.1.0)));
        x!(F32x8(_mm256_set_m128(high, low)))
    }

    #[inline(always)]
    fn total(wide: Self::Wide) -> f64 {
        total((wide.0 + wide.1).0)
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: the caller's contract, and the level as in `x`.
        unsafe { F32x8(_mm256_cvtph_ps(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        // SAFETY: as in `load_f16`.
        unsafe { _mm_storeu_si128(p.cast(), f16_bits(self.0)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        // SAFETY: as in `load_f16`.
        let wide = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())) };
        x!(F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16) {
        // SAFETY: as in `load_f16`.
        unsafe { _mm_storeu_si128(p.cast(), bf16_bits(self.0)) }
    }

    #[inline(always)]
    unsafe fn store_two_bf16([a, b]: [Self; 2], p: *mut bf16) {
        // SAFETY: as in `load_f16`.
        unsafe { _mm256_storeu_si256(p.cast(), bf16_bits_of_two(a.0, b.0)) }
    }
}
