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
    /// Quotient rounded toward zero.
    fn trunc_div(self, other: Self) -> Self;
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
    /// Remainder with the sign of `self`, as C's `%`.
    fn fmod(self, other: Self) -> Self;
    /// Remainder with the sign of `other`, as Python's `%`.
    fn floor_mod(self, other: Self) -> Self;
    /// Quotient rounded down, as Python's `//`.
    fn floor_div(self, other: Self) -> Self;
    /// Wrapping; a negative exponent gives the reciprocal truncated to an integer.
    fn pow(self, other: Self) -> Self;
    fn not(self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! ints {
    ($($t:ident, $abs:expr, $below_zero:expr, $divide:expr;)*) => {$(
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
                let quotient = $divide(self, if other == 0 { 1 } else { other });
                if other == 0 { 0 } else { quotient }
            }

            #[inline(always)]
            fn trunc_div(self, other: $t) -> $t {
                Number::div(self, other)
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
            fn fmod(self, other: $t) -> $t {
                // The remainder of a division by 1 is 0.
                let divisor = if other == 0 { 1 } else { other };
                self.wrapping_sub($divide(self, divisor).wrapping_mul(divisor))
            }

            #[inline(always)]
            fn floor_mod(self, other: $t) -> $t {
                let r = self.fmod(other);
                if r != 0 && $below_zero(r) != $below_zero(other) { r.wrapping_add(other) } else { r }
            }

            #[inline(always)]
            fn floor_div(self, other: $t) -> $t {
                let q = Number::div(self, other);
                let r = self.wrapping_sub(q.wrapping_mul(other));
                let r = if other == 0 { 0 } else { r };
                if r != 0 && $below_zero(r) != $below_zero(other) { q.wrapping_sub(1) } else { q }
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
// Integers of up to 16 bits divide exactly in f32 and of 32 in f64, which there are vectors of: the quotient of
// two of them is too far from the next integer to be rounded to it. The wider integer in between makes the one
// overflow, of the least by -1, wrap.
ints! {
    i8, i8::wrapping_abs, i8::is_negative, |a, b| (f32::from(a) / f32::from(b)) as i32 as i8;
    i16, i16::wrapping_abs, i16::is_negative, |a, b| (f32::from(a) / f32::from(b)) as i32 as i16;
    i32, i32::wrapping_abs, i32::is_negative, |a, b| (f64::from(a) / f64::from(b)) as i64 as i32;
    i64, i64::wrapping_abs, i64::is_negative, i64::wrapping_div;
    u8, std::convert::identity, never, |a, b| (f32::from(a) / f32::from(b)) as i32 as u8;
    u16, std::convert::identity, never, |a, b| (f32::from(a) / f32::from(b)) as i32 as u16;
    u32, std::convert::identity, never, |a, b| (f64::from(a) / f64::from(b)) as i64 as u32;
    u64, std::convert::identity, never, u64::wrapping_div;
}

#[inline(always)]
fn never<T>(_: T) -> bool {
    false
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
            fn trunc_div(self, other: $t) -> $t {
                (self / other).trunc()
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
