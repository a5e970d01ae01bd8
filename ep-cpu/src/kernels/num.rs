//! The values that arithmetic is done in: integers, `f32` and `f64`.

use super::elem::{Storage, f64_to_f32_for_halves};

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
    S::Value::of(if narrow { f64::from(f64_to_f32_for_halves(x)) } else { x })
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
ints! {
    i8, i8::wrapping_abs, i8::is_negative, |a, b| narrow_quotient(a, b) as i8;
    i16, i16::wrapping_abs, i16::is_negative, |a, b| narrow_quotient(a, b) as i16;
    i32, i32::wrapping_abs, i32::is_negative, quotient_i32;
    i64, i64::wrapping_abs, i64::is_negative, quotient_i64;
    u8, std::convert::identity, never, |a, b| narrow_quotient(a, b) as u8;
    u16, std::convert::identity, never, |a, b| narrow_quotient(a, b) as u16;
    u32, std::convert::identity, never, quotient_u32;
    u64, std::convert::identity, never, u64::wrapping_div;
}

// Integers of up to 16 bits divide exactly in f32 and of 32 in f64, which there are vectors of: the quotient of
// two of them is too far from the next integer to be rounded to it. Conversions that check for what does not fit the
// integer would be done one by one.

/// `a / b` toward zero, for integers of at most 16 bits; of `a` where `b` is 0.
#[inline(always)]
fn narrow_quotient<T: Into<f32>>(a: T, b: T) -> i32 {
    let b = b.into();
    let quotient = a.into() / if b == 0.0 { 1.0 } else { b };
    // SAFETY: its magnitude is at most that of the dividend, an integer of 16 bits.
    unsafe { quotient.to_int_unchecked() }
}

/// `a / b` toward zero, wrapping; of `a` where `b` is 0.
#[inline(always)]
fn quotient_i32(a: i32, b: i32) -> i32 {
    // The one quotient that wraps is by -1.
    let negate = b == -1;
    let divisor = f64::from(if negate || b == 0 { 1 } else { b });
    // SAFETY: its magnitude is at most that of the dividend, which alone could be too large, and comes with its sign
    // where the divisor is 1.
    let quotient = unsafe { (f64::from(a) / divisor).to_int_unchecked::<i32>() };
    if negate { quotient.wrapping_neg() } else { quotient }
}

/// `a / b` rounded down; of `a` where `b` is 0.
#[inline(always)]
fn quotient_u32(a: u32, b: u32) -> u32 {
    let divisor = f64::from(if b == 0 { 1 } else { b });
    // SAFETY: it is at most the dividend.
    unsafe { (f64::from(a) / divisor).to_int_unchecked() }
}

/// `a / b` toward zero, wrapping, for a `b` other than 0.
#[inline(always)]
fn quotient_i64(a: i64, b: i64) -> i64 {
    // Compilers divide the lower halves alone where the upper ones are 0: of magnitudes they are the same for both signs, so
    // that the branch is foreseen.
    let quotient = (a.unsigned_abs() / b.unsigned_abs()).cast_signed();
    if (a ^ b) < 0 { quotient.wrapping_neg() } else { quotient }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Rng;

    /// As the integers' own division has it, and 0 for a divisor of 0.
    #[test]
    fn quotients_are_those_of_integers() {
        macro_rules! check {
            ($t:ty, $pairs:expr) => {
                for (a, b) in $pairs {
                    let (a, b) = (a as $t, b as $t);
                    let want = if b == 0 { 0 } else { a.wrapping_div(b) };
                    assert_eq!(Number::div(a, b), want, "{a} / {b}");
                    let want = if b == 0 { 0 } else { a.wrapping_rem(b) };
                    assert_eq!(a.fmod(b), want, "{a} % {b}");
                }
            };
        }
        let mut rng = Rng::new();
        let every = || (0..=255u8).flat_map(|a| (0..=255u8).map(move |b| (a, b)));
        check!(i8, every());
        check!(u8, every());
        let edges: Vec<i64> = [0, 1, 2, 3, 7, 1 << 15, 1 << 16, 1 << 31, 1 << 32, i64::MAX]
            .into_iter()
            .flat_map(|x: i64| [x, x.wrapping_sub(1), x.wrapping_neg(), x.wrapping_add(1)])
            .collect();
        let mut pairs: Vec<(i64, i64)> =
            edges.iter().flat_map(|&a| edges.iter().map(move |&b| (a, b))).collect();
        for _ in 0..100_000 {
            let (a, b) = (rng.next() as i64, rng.next() as i64 >> (rng.next() % 64));
            // Quotients next to an integer are the hard ones.
            let near = (b as i32).wrapping_mul((a >> 40) as i32).wrapping_sub((rng.next() % 2) as i32);
            pairs.extend([(a, b), (near.into(), b)]);
        }
        check!(i16, pairs.iter().copied());
        check!(u16, pairs.iter().copied());
        check!(i32, pairs.iter().copied());
        check!(u32, pairs.iter().copied());
    }
}
