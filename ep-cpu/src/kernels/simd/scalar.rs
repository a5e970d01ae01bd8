//! The baseline: one lane, in plain Rust, which the compiler may vectorise.

use super::{Double, Lanes, Mask, Single, Vector};
use crate::kernels::elem::{f16_to_f32, f32_to_bf16, f32_to_f16};
use half::{bf16, f16};

pub(super) struct Scalar;

impl Lanes for Scalar {
    type F32 = One<f32>;
    type ManyF32 = One<f32>;
    type F64 = One<f64>;
}

/// One lane.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct One<T>(pub(super) T);

impl Mask for bool {
    #[inline(always)]
    fn any(self) -> bool {
        self
    }

    #[inline(always)]
    fn before_first(self) -> usize {
        usize::from(!self)
    }
}

macro_rules! one {
    ($t:ident, $bits:ident, $digits:literal, $bias:literal, $min_normal:expr) => {
        operators!(One<$t>);

        impl One<$t> {
            #[inline(always)]
            fn plus(self, b: Self) -> Self {
                One(self.0 + b.0)
            }

            #[inline(always)]
            fn minus(self, b: Self) -> Self {
                One(self.0 - b.0)
            }

            #[inline(always)]
            fn times(self, b: Self) -> Self {
                One(self.0 * b.0)
            }

            #[inline(always)]
            fn over(self, b: Self) -> Self {
                One(self.0 / b.0)
            }

            #[inline(always)]
            fn negated(self) -> Self {
                One(-self.0)
            }
        }

        impl Vector for One<$t> {
            type Mask = bool;
            type Elem = $t;
            const LANES: usize = 1;
            const ROUNDER: f64 = 1.5 * (1u64 << $digits) as f64;
            const POWER_ROUNDER: f64 = Self::ROUNDER + $bias as f64;
            const FUSED: bool = false;

            #[inline(always)]
            fn splat(x: f64) -> Self {
                One(x as $t)
            }

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                One(self.0 * b.0 + c.0)
            }

            #[inline(always)]
            fn abs(self) -> Self {
                One(self.0.abs())
            }

            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                One(self.0.copysign(sign.0))
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                One(self.0.sqrt())
            }

            #[inline(always)]
            fn floor(self) -> Self {
                One(self.0.floor())
            }

            #[inline(always)]
            fn lt(self, other: Self) -> bool {
                self.0 < other.0
            }

            #[inline(always)]
            fn le(self, other: Self) -> bool {
                self.0 <= other.0
            }

            #[inline(always)]
            fn equals(self, other: Self) -> bool {
                self.0 == other.0
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                self.0.is_nan()
            }

            #[inline(always)]
            fn select(mask: bool, a: Self, b: Self) -> Self {
                if mask { a } else { b }
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                if self.0 < other.0 { self } else { other }
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                if self.0 > other.0 { self } else { other }
            }

            #[inline(always)]
            fn scale(self, n: Self) -> Self {
                // A loop with a branch is not vectorised.
                self.scale_by_product(n)
            }

            #[inline(always)]
            fn subnormals(self) -> Self {
                One($t::from_bits(self.0.to_bits().wrapping_sub(((1u64 << $digits) as $t).to_bits())))
            }

            #[inline(always)]
            fn scale_by_product(self, n: Self) -> Self {
                const POWER: $t = <One<$t> as Vector>::POWER_ROUNDER as $t;
                // In two steps, since 2^n alone may be out of range.
                let half = n.0 * 0.5 + POWER;
                let rest = (n.0 - (half - POWER)) + POWER;
                One(self.0 * One(half).power_of_two().0 * One(rest).power_of_two().0)
            }

            #[inline(always)]
            fn power_of_two(self) -> Self {
                One($t::from_bits(self.0.to_bits() << $digits))
            }

            #[inline(always)]
            fn split(self) -> (Self, Self) {
                const THREE_QUARTERS: $bits = (0.75 as $t).to_bits();
                const SHIFT: $t = (1u64 << ($digits + 1)) as $t;
                let small = self.0 < $min_normal;
                let x = if small { self.0 * SHIFT } else { self.0 };
                let biased =
                    x.to_bits().wrapping_sub(THREE_QUARTERS).wrapping_add($bias << $digits) >> $digits;
                let m = $t::from_bits(x.to_bits().wrapping_sub(biased.wrapping_sub($bias) << $digits));
                // The integer in the low bits of 2^digits is that integer added to it.
                const BASE: $t = (1u64 << $digits) as $t;
                let k = $t::from_bits(biased | BASE.to_bits()) - (BASE + $bias as $t);
                (One(if small { k - ($digits + 1) as $t } else { k }), One(m))
            }

            #[inline(always)]
            fn low_bit(self, bit: u32) -> bool {
                self.0.to_bits() >> bit & 1 != 0
            }

            #[inline(always)]
            fn flip_if_bit(self, rounded: Self, bit: u32) -> Self {
                let sign = (rounded.0.to_bits() >> bit) << ($bits::BITS - 1);
                One($t::from_bits(self.0.to_bits() ^ sign))
            }

            #[inline(always)]
            fn map(self, f: impl Fn(f64) -> f64) -> Self {
                One(f(f64::from(self.0)) as $t)
            }

            #[inline(always)]
            fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
                One(f(f64::from(self.0), f64::from(other.0)) as $t)
            }

            #[inline(always)]
            unsafe fn load(p: *const $t) -> Self {
                // SAFETY: the caller's contract.
                One(unsafe { p.read() })
            }

            #[inline(always)]
            unsafe fn store(self, p: *mut $t) {
                // SAFETY: the caller's contract.
                unsafe { p.write(self.0) }
            }
        }
    };
}
one!(f32, u32, 23, 127, f32::MIN_POSITIVE);
one!(f64, u64, 52, 1023, f64::MIN_POSITIVE);

impl Double for One<f64> {}

impl Single for One<f32> {
    type Wide = One<f64>;

    #[inline(always)]
    fn widen(self) -> One<f64> {
        One(f64::from(self.0))
    }

    #[inline(always)]
    fn narrow(wide: One<f64>) -> Self {
        One(wide.0 as f32)
    }

    #[inline(always)]
    fn total(wide: One<f64>) -> f64 {
        wide.0
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: the caller's contract.
        One(f16_to_f32(unsafe { p.read() }.to_bits()))
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        // SAFETY: the caller's contract.
        unsafe { p.write(f16::from_bits(f32_to_f16(self.0))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        // SAFETY: the caller's contract.
        One(f32::from_bits(u32::from(unsafe { p.read() }.to_bits()) << 16))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16) {
        // SAFETY: the caller's contract.
        unsafe { p.write(bf16::from_bits(f32_to_bf16(self.0))) }
    }
}
