//! The values that arithmetic is done in: integers, `f32` and `f64`.

use super::elem::{Storage, f64_to_f32_odd};

/// An integer or floating-point value. Integers wrap on overflow, and dividing one by zero gives 0.
pub(crate) trait Number: Copy + PartialOrd + Send + Sync + 'static {
    const ZERO: Self;
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// Remainder with the sign of `self`, as C's `fmod` and `%`.
    fn fmod(self, other: Self) -> Self;
    /// Remainder with the sign of `other`, as Python's `%`.
    fn floor_mod(self, other: Self) -> Self;
    /// Quotient rounded down, as Python's `//`.
    fn floor_div(self, other: Self) -> Self;
    /// Quotient rounded toward zero.
    fn trunc_div(self, other: Self) -> Self;
    /// Integers: wrapping; a negative exponent gives the reciprocal truncated to an integer.
    fn pow(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// The greater, or NaN if either is NaN.
    fn max(self, other: Self) -> Self;
    /// The smaller, or NaN if either is NaN.
    fn min(self, other: Self) -> Self;
    fn is_nan(self) -> bool;
    fn is_infinite(self) -> bool;
    /// `|self - other|`, without overflow.
    fn distance(self, other: Self) -> f64;
    fn to_f64(self) -> f64;

    #[inline(always)]
    fn truth(self) -> bool {
        self != Self::ZERO
    }
}

/// `f32` or `f64`.
pub(crate) trait Float: Number {
    /// Rounds to nearest.
    fn of(x: f64) -> Self;
    fn sqrt(self) -> Self;
    fn ceil(self) -> Self;
    fn floor(self) -> Self;
    fn trunc(self) -> Self;
    /// To the nearest integer, ties to even.
    fn rint(self) -> Self;
}

/// `x` as the value that `S` stores after a single rounding.
#[inline(always)]
pub(crate) fn round_to<S: Storage<Value: Float>>(x: f64) -> S::Value {
    // f16 and bf16 are stored from f32, which would round a second time.
    let narrow = size_of::<S>() < size_of::<f32>();
    S::Value::of(if narrow { f64::from(f64_to_f32_odd(x)) } else { x })
}

/// An integer.
pub(crate) trait Int: Number {
    fn not(self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! ints {
    ($($t:ident, $abs:expr, $below_zero:expr;)*) => {$(
        impl Number for $t {
            const ZERO: $t = 0;
            const ONE: $t = 1;

            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn sub(self, other: $t) -> $t {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn div(self, other: $t) -> $t {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }

            #[inline(always)]
            fn fmod(self, other: $t) -> $t {
                if other == 0 { 0 } else { self.wrapping_rem(other) }
            }

            #[inline(always)]
            fn floor_mod(self, other: $t) -> $t {
                let r = self.fmod(other);
                if r != 0 && $below_zero(r) != $below_zero(other) { r.wrapping_add(other) } else { r }
            }

            #[inline(always)]
            fn floor_div(self, other: $t) -> $t {
                let q = Number::div(self, other);
                let r = self.fmod(other);
                if r != 0 && $below_zero(r) != $below_zero(other) { q.wrapping_sub(1) } else { q }
            }

            #[inline(always)]
            fn trunc_div(self, other: $t) -> $t {
                Number::div(self, other)
            }

            #[inline(always)]
            fn pow(self, other: $t) -> $t {
                if $below_zero(other) {
                    // 1 and -1 are the only integers with an integer reciprocal.
                    return match self {
                        1 => 1,
                        x if $below_zero(x) && x.wrapping_add(1) == 0 => if other & 1 == 0 { 1 } else { x },
                        _ => 0,
                    };
                }
                let (mut result, mut square, mut exponent) = (1 as $t, self, other);
                while exponent != 0 {
                    if exponent & 1 == 1 {
                        result = result.wrapping_mul(square);
                    }
                    square = square.wrapping_mul(square);
                    exponent >>= 1;
                }
                result
            }

            #[inline(always)]
            fn neg(self) -> $t {
                self.wrapping_neg()
            }

            #[inline(always)]
            fn abs(self) -> $t {
                $abs(self)
            }

            #[inline(always)]
            fn max(self, other: $t) -> $t {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn min(self, other: $t) -> $t {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }

            #[inline(always)]
            fn is_infinite(self) -> bool {
                false
            }

            #[inline(always)]
            fn distance(self, other: $t) -> f64 {
                self.abs_diff(other) as f64
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
        }

        impl Int for $t {
            #[inline(always)]
            fn not(self) -> $t {
                !self
            }

            #[inline(always)]
            fn and(self, other: $t) -> $t {
                self & other
            }

            #[inline(always)]
            fn or(self, other: $t) -> $t {
                self | other
            }

            #[inline(always)]
            fn xor(self, other: $t) -> $t {
                self ^ other
            }
        }
    )*};
}
ints! {
    i8, i8::wrapping_abs, i8::is_negative;
    i16, i16::wrapping_abs, i16::is_negative;
    i32, i32::wrapping_abs, i32::is_negative;
    i64, i64::wrapping_abs, i64::is_negative;
    u8, std::convert::identity, never;
    u16, std::convert::identity, never;
    u32, std::convert::identity, never;
    u64, std::convert::identity, never;
}

#[inline(always)]
fn never<T>(_: T) -> bool {
    false
}

/// The quotient is taken once the remainder is gone, so that one just below an integer does not round up
/// to it.
fn floor_div(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let r = a % b;
    let exact = (a - r) / b;
    let q = if r != 0.0 && (r < 0.0) != (b < 0.0) { exact - 1.0 } else { exact };
    if q == 0.0 { 0f64.copysign(a / b) } else { q.round_ties_even() }
}

macro_rules! floats {
    ($($t:ident),*) => {$(
        impl Number for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;

            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self + other
            }

            #[inline(always)]
            fn sub(self, other: $t) -> $t {
                self - other
            }

            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self * other
            }

            #[inline(always)]
            fn div(self, other: $t) -> $t {
                self / other
            }

            #[inline(always)]
            fn fmod(self, other: $t) -> $t {
                self % other
            }

            #[inline(always)]
            fn floor_mod(self, other: $t) -> $t {
                let r = self % other;
                if r == 0.0 {
                    r.copysign(other)
                } else if (r < 0.0) != (other < 0.0) {
                    r + other
                } else {
                    r
                }
            }

            #[inline(always)]
            fn floor_div(self, other: $t) -> $t {
                floor_div(f64::from(self), f64::from(other)) as $t
            }

            #[inline(always)]
            fn trunc_div(self, other: $t) -> $t {
                (self / other).trunc()
            }

            #[inline(always)]
            fn pow(self, other: $t) -> $t {
                f64::from(self).powf(f64::from(other)) as $t
            }

            #[inline(always)]
            fn neg(self) -> $t {
                -self
            }

            #[inline(always)]
            fn abs(self) -> $t {
                <$t>::abs(self)
            }

            #[inline(always)]
            fn max(self, other: $t) -> $t {
                if self > other || self != self { self } else { other }
            }

            #[inline(always)]
            fn min(self, other: $t) -> $t {
                if self < other || self != self { self } else { other }
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                <$t>::is_nan(self)
            }

            #[inline(always)]
            fn is_infinite(self) -> bool {
                <$t>::is_infinite(self)
            }

            #[inline(always)]
            fn distance(self, other: $t) -> f64 {
                (f64::from(self) - f64::from(other)).abs()
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }

        impl Float for $t {
            #[inline(always)]
            fn of(x: f64) -> $t {
                x as $t
            }

            #[inline(always)]
            fn sqrt(self) -> $t {
                <$t>::sqrt(self)
            }

            #[inline(always)]
            fn ceil(self) -> $t {
                <$t>::ceil(self)
            }

            #[inline(always)]
            fn floor(self) -> $t {
                <$t>::floor(self)
            }

            #[inline(always)]
            fn trunc(self) -> $t {
                <$t>::trunc(self)
            }

            #[inline(always)]
            fn rint(self) -> $t {
                self.round_ties_even()
            }
        }
    )*};
}
floats!(f32, f64);
