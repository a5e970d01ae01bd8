//! Numbers of 128 bits with an exponent that neither overflows nor underflows.
//!
//! Formulas of the references are written in them: nothing on the way to a result loses digits that matter,
//! so that what is rounded at the end is the formula's value. All of it is integer arithmetic.

use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A float of 128 bits, an infinity, a zero with a sign, or NaN.
///
/// A finite value is `mantissa / 2^127 * 2^exponent`, the mantissa's top bit set. What an operation cuts off
/// is kept in the last bit ("rounding to odd"), so that exact results stay exact and inexact ones never look
/// like a tie to the final rounding.
#[derive(Clone, Copy, Debug)]
pub struct Wide {
    kind: Kind,
    negative: bool,
    exponent: i64,
    mantissa: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Zero,
    Finite,
    Infinite,
    Nan,
}

/// A binary floating-point format of IEEE 754's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Significant bits, the leading one included.
    pub bits: i64,
    /// The exponent of the smallest normal number.
    pub least: i64,
    /// The exponent of the largest number.
    pub most: i64,
}

impl Format {
    /// IEEE 754 binary16.
    pub const F16: Format = Format { bits: 11, least: -14, most: 15 };
    /// The upper half of binary32.
    pub const BF16: Format = Format { bits: 8, least: -126, most: 127 };
    /// IEEE 754 binary32.
    pub const F32: Format = Format { bits: 24, least: -126, most: 127 };
    /// IEEE 754 binary64.
    pub const F64: Format = Format { bits: 53, least: -1022, most: 1023 };
}

const TOP: u128 = 1 << 127;
const LOW: u128 = u64::MAX as u128;

impl Wide {
    /// Positive zero.
    pub const ZERO: Wide = Wide { kind: Kind::Zero, negative: false, exponent: 0, mantissa: 0 };
    /// One.
    pub const ONE: Wide = Wide { kind: Kind::Finite, negative: false, exponent: 0, mantissa: TOP };
    /// Not a number.
    pub const NAN: Wide = Wide { kind: Kind::Nan, ..Wide::ZERO };
    /// Positive infinity.
    pub const INFINITY: Wide = Wide { kind: Kind::Infinite, ..Wide::ZERO };

    /// `mantissa / 2^127 * 2^exponent`, for constants; the mantissa's top bit must be set.
    pub(super) const fn constant(exponent: i64, mantissa: u128) -> Wide {
        assert!(mantissa & TOP != 0);
        Wide { kind: Kind::Finite, negative: false, exponent, mantissa }
    }

    /// `mantissa * 2^exponent` with a sign.
    fn scaled(negative: bool, mantissa: u128, exponent: i64) -> Wide {
        if mantissa == 0 {
            return Wide { negative, ..Wide::ZERO };
        }
        let shift = mantissa.leading_zeros();
        let exponent = exponent + 127 - i64::from(shift);
        Wide { kind: Kind::Finite, negative, exponent, mantissa: mantissa << shift }
    }

    /// `mantissa * 2^exponent`.
    pub(super) fn unsigned(mantissa: u128, exponent: i64) -> Wide {
        Wide::scaled(false, mantissa, exponent)
    }

    /// `+0` or `-0`.
    fn zero(negative: bool) -> Wide {
        Wide { negative, ..Wide::ZERO }
    }

    fn infinite(negative: bool) -> Wide {
        Wide { negative, ..Wide::INFINITY }
    }

    /// Whether it is NaN.
    pub fn is_nan(self) -> bool {
        self.kind == Kind::Nan
    }

    /// Whether it is an infinity.
    pub fn is_infinite(self) -> bool {
        self.kind == Kind::Infinite
    }

    /// Whether it is a zero of either sign.
    pub fn is_zero(self) -> bool {
        self.kind == Kind::Zero
    }

    /// Whether its sign is minus, for zeros too.
    pub fn is_negative(self) -> bool {
        self.negative
    }

    /// The exponent of its leading bit, for finite numbers but zero.
    pub(super) fn exponent(self) -> i64 {
        self.exponent
    }

    /// Without its sign.
    #[must_use]
    pub fn abs(self) -> Wide {
        Wide { negative: false, ..self }
    }

    /// With the sign of another.
    #[must_use]
    pub fn with_sign_of(self, other: Wide) -> Wide {
        Wide { negative: other.negative, ..self }
    }

    /// Times `2^n`, exactly.
    #[must_use]
    pub fn times_power_of_2(self, n: i64) -> Wide {
        Wide { exponent: self.exponent + n, ..self }
    }

    /// The square.
    #[must_use]
    pub fn square(self) -> Wide {
        self * self
    }

    /// The square root; NaN below zero, and each zero its own.
    #[must_use]
    pub fn sqrt(self) -> Wide {
        if self.kind == Kind::Zero || self.is_nan() || (self.is_infinite() && !self.negative) {
            return self;
        }
        if self.negative {
            return Wide::NAN;
        }
        // An even power of two aside, Newton's iteration from f64's root: 53 bits, then 106, then all.
        let half = self.exponent.div_euclid(2);
        let x = self.times_power_of_2(-2 * half);
        let mut root = Wide::from(x.to_f64().sqrt());
        for _ in 0..2 {
            root = (root + x / root).times_power_of_2(-1);
        }
        root.times_power_of_2(half)
    }

    /// Rounded to an integer, ties to even. Exact for what an f64 holds.
    #[must_use]
    pub fn round(self) -> Wide {
        if self.kind != Kind::Finite || self.exponent >= 127 {
            return self;
        }
        if self.exponent < -1 {
            return Wide::zero(self.negative);
        }
        let (kept, rest, tie) = self.split_at(127 - self.exponent);
        let up = rest > tie || rest == tie && kept & 1 == 1;
        Wide::scaled(self.negative, kept + u128::from(up), 0)
    }

    /// Rounded towards zero.
    #[must_use]
    pub fn trunc(self) -> Wide {
        if self.kind != Kind::Finite || self.exponent >= 127 {
            return self;
        }
        if self.exponent < 0 {
            return Wide::zero(self.negative);
        }
        Wide::scaled(self.negative, self.split_at(127 - self.exponent).0, 0)
    }

    /// Rounded down.
    #[must_use]
    pub fn floor(self) -> Wide {
        let whole = self.trunc();
        if whole > self { whole - Wide::ONE } else { whole }
    }

    /// Rounded up.
    #[must_use]
    pub fn ceil(self) -> Wide {
        -(-self).floor()
    }

    /// The mantissa without its last `drop` bits (1 to 128), those bits, and what half a unit of the first is.
    fn split_at(self, drop: i64) -> (u128, u128, u128) {
        if drop == 128 {
            return (0, self.mantissa, TOP);
        }
        let kept = self.mantissa >> drop;
        (kept, self.mantissa - (kept << drop), 1 << (drop - 1))
    }

    /// The nearest number of a format, ties to even, subnormal and infinite ones included.
    pub fn to_format(self, format: Format) -> f64 {
        let sign = if self.negative { -1.0 } else { 1.0 };
        match self.kind {
            Kind::Nan => return f64::NAN,
            Kind::Infinite => return sign * f64::INFINITY,
            Kind::Zero => return sign * 0.0,
            Kind::Finite => {}
        }
        if self.exponent > format.most {
            return sign * f64::INFINITY;
        }
        // The exponent of the last bit that the format keeps here.
        let last = self.exponent.max(format.least) - (format.bits - 1);
        let drop = 127 - (self.exponent - last);
        if drop > 128 {
            return sign * 0.0;
        }
        let (kept, rest, tie) = self.split_at(drop);
        let up = rest > tie || rest == tie && kept & 1 == 1;
        let kept = (kept + u128::from(up)) as f64;
        if last + format.bits - 1 == format.most && kept == 2f64.powi(format.bits as i32) {
            return sign * f64::INFINITY;
        }
        // Both factors and the product are exact; two steps, as the power alone may be below the range.
        sign * kept * 2f64.powi((last / 2) as i32) * 2f64.powi((last - last / 2) as i32)
    }

    /// The nearest f64.
    pub fn to_f64(self) -> f64 {
        self.to_format(Format::F64)
    }
}

impl From<f64> for Wide {
    fn from(x: f64) -> Wide {
        let negative = x.is_sign_negative();
        if x.is_nan() {
            return Wide::NAN;
        }
        if x.is_infinite() {
            return Wide::infinite(negative);
        }
        let fraction = x.to_bits() & ((1 << 52) - 1);
        let biased = (x.to_bits() >> 52 & 0x7ff) as i64;
        let hidden = if biased == 0 { 0 } else { 1 << 52 };
        Wide::scaled(negative, u128::from(fraction | hidden), biased.max(1) - 1075)
    }
}

impl From<i128> for Wide {
    fn from(x: i128) -> Wide {
        Wide::scaled(x < 0, x.unsigned_abs(), 0)
    }
}

impl Neg for Wide {
    type Output = Wide;

    fn neg(self) -> Wide {
        Wide { negative: !self.negative, ..self }
    }
}

/// `x >> n`, and whether anything was cut off.
fn shift(x: u128, n: i64) -> (u128, bool) {
    match n {
        0 => (x, false),
        1..128 => (x >> n, x << (128 - n) != 0),
        _ => (0, x != 0),
    }
}

impl Add for Wide {
    type Output = Wide;

    fn add(self, other: Wide) -> Wide {
        match (self.kind, other.kind) {
            (Kind::Nan, _) | (_, Kind::Nan) => return Wide::NAN,
            (Kind::Infinite, Kind::Infinite) if self.negative != other.negative => return Wide::NAN,
            (Kind::Zero, Kind::Zero) => return Wide::zero(self.negative && other.negative),
            (Kind::Infinite, _) | (_, Kind::Zero) => return self,
            (_, Kind::Infinite) | (Kind::Zero, _) => return other,
            _ => {}
        }
        let key = |x: Wide| (x.exponent, x.mantissa);
        let (large, small) = if key(self) >= key(other) { (self, other) } else { (other, self) };
        let (small_mantissa, lost) = shift(small.mantissa, large.exponent - small.exponent);
        if large.negative == small.negative {
            let (sum, carry) = large.mantissa.overflowing_add(small_mantissa);
            let (mantissa, exponent) = if carry {
                (TOP | sum >> 1 | sum & 1 | u128::from(lost), large.exponent + 1)
            } else {
                (sum | u128::from(lost), large.exponent)
            };
            return Wide { mantissa, exponent, ..large };
        }
        let lost = u128::from(lost);
        let difference = (large.mantissa - small_mantissa - lost) | lost;
        // An exact zero is positive.
        Wide::scaled(large.negative && difference != 0, difference, large.exponent - 127)
    }
}

impl Sub for Wide {
    type Output = Wide;

    fn sub(self, other: Wide) -> Wide {
        self + -other
    }
}

/// The product of two 128-bit numbers: its upper and its lower half.
fn multiply(a: u128, b: u128) -> (u128, u128) {
    let (a1, a0, b1, b0) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let low = a0 * b0;
    let middle = a1 * b0 + (low >> 64);
    let other = a0 * b1 + (middle & LOW);
    (a1 * b1 + (middle >> 64) + (other >> 64), other << 64 | (low & LOW))
}

impl Mul for Wide {
    type Output = Wide;

    fn mul(self, other: Wide) -> Wide {
        let negative = self.negative != other.negative;
        match (self.kind, other.kind) {
            (Kind::Nan, _) | (_, Kind::Nan) => return Wide::NAN,
            (Kind::Infinite, Kind::Zero) | (Kind::Zero, Kind::Infinite) => return Wide::NAN,
            (Kind::Infinite, _) | (_, Kind::Infinite) => return Wide::infinite(negative),
            (Kind::Zero, _) | (_, Kind::Zero) => return Wide::zero(negative),
            _ => {}
        }
        let (mut high, mut low) = multiply(self.mantissa, other.mantissa);
        let mut exponent = self.exponent + other.exponent + 1;
        if high & TOP == 0 {
            high = high << 1 | low >> 127;
            low <<= 1;
            exponent -= 1;
        }
        let mantissa = high | u128::from(low != 0);
        Wide { kind: Kind::Finite, negative, exponent, mantissa }
    }
}

/// `numerator * 2^128 / divisor` for `numerator < divisor`, and whether something remains: long division with
/// digits of 64 bits (Knuth, The Art of Computer Programming 2, algorithm D). The divisor's top bit is set.
fn divide(numerator: u128, divisor: u128) -> (u128, bool) {
    let (high, low) = (divisor >> 64, divisor & LOW);
    let (mut rest, mut quotient) = (numerator, 0u128);
    for _ in 0..2 {
        let mut digit = (rest / high).min(LOW);
        let mut over = rest - digit * high;
        while over <= LOW && digit * low > over << 64 {
            digit -= 1;
            over += high;
        }
        rest = (over << 64).wrapping_sub(digit * low);
        quotient = quotient << 64 | digit;
    }
    (quotient, rest != 0)
}

impl Div for Wide {
    type Output = Wide;

    fn div(self, other: Wide) -> Wide {
        let negative = self.negative != other.negative;
        match (self.kind, other.kind) {
            (Kind::Nan, _) | (_, Kind::Nan) => return Wide::NAN,
            (Kind::Infinite, Kind::Infinite) | (Kind::Zero, Kind::Zero) => return Wide::NAN,
            (Kind::Infinite, _) | (_, Kind::Zero) => return Wide::infinite(negative),
            (Kind::Zero, _) | (_, Kind::Infinite) => return Wide::zero(negative),
            _ => {}
        }
        let exponent = self.exponent - other.exponent;
        if self.mantissa < other.mantissa {
            let (quotient, rest) = divide(self.mantissa, other.mantissa);
            let mantissa = quotient | u128::from(rest);
            return Wide { kind: Kind::Finite, negative, exponent: exponent - 1, mantissa };
        }
        let (fraction, rest) = divide(self.mantissa - other.mantissa, other.mantissa);
        let mantissa = TOP | fraction >> 1 | fraction & 1 | u128::from(rest);
        Wide { kind: Kind::Finite, negative, exponent, mantissa }
    }
}

impl PartialEq for Wide {
    fn eq(&self, other: &Wide) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Wide {
    fn partial_cmp(&self, other: &Wide) -> Option<Ordering> {
        let key = |x: &Wide| match x.kind {
            Kind::Zero => (0, 0, 0),
            Kind::Finite => (1, x.exponent, x.mantissa),
            _ => (2, 0, 0),
        };
        if self.is_nan() || other.is_nan() {
            return None;
        }
        let below = |x: &Wide| x.negative && !x.is_zero();
        Some(match (below(self), below(other)) {
            (false, false) => key(self).cmp(&key(other)),
            (true, true) => key(other).cmp(&key(self)),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same(a: f64, b: f64) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    /// Any bits, and pairs close enough to cancel or to overlap.
    fn numbers() -> impl Strategy<Value = (f64, f64)> {
        let any = prop::num::f64::ANY;
        prop_oneof![
            (any, any),
            (any, -40i32..40).prop_map(|(x, n)| (x, -x * 2f64.powi(n) * 1.000_000_1)),
            (-1e3..1e3, -1e3..1e3),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// IEEE arithmetic is the exact result rounded once, and so is this.
        #[test]
        fn arithmetic_rounds_to_the_processors((x, y) in numbers()) {
            let (a, b) = (Wide::from(x), Wide::from(y));
            for (got, want) in [(a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y)] {
                prop_assert!(same(got.to_f64(), want), "{x:e} {y:e}: {got:?} is not {want:e}");
            }
            prop_assert!(same(a.sqrt().to_f64(), x.sqrt()), "{x:e}");
            prop_assert!(same(a.abs().sqrt().to_f64(), x.abs().sqrt()), "{x:e}");
            prop_assert_eq!(a.partial_cmp(&b), x.partial_cmp(&y));
            prop_assert!(same(a.round().to_f64(), x.round_ties_even()), "{x:e}");
            prop_assert!(same(a.trunc().to_f64(), x.trunc()), "{x:e}");
            prop_assert!(same(a.floor().to_f64(), x.floor()) && same(a.ceil().to_f64(), x.ceil()), "{x:e}");
            prop_assert!(same(a.to_format(Format::F32), f64::from(x as f32)), "{x:e}");
        }

        #[test]
        fn small_numbers_round_to_the_processors((x, y) in (-20.0..20.0, -20.0..20.0), halves in any::<bool>()) {
            let x = if halves { f64::floor(x) * 0.5 } else { x };
            let a = Wide::from(x);
            prop_assert!(same(a.round().to_f64(), x.round_ties_even()), "{x:e}");
            prop_assert!(same(a.floor().to_f64(), x.floor()) && same(a.ceil().to_f64(), x.ceil()), "{x:e}");
            // Exact results of 106 bits survive.
            let exact = a * Wide::from(y);
            prop_assert!(y == 0.0 || same((exact / Wide::from(y)).to_f64(), x));
            prop_assert!((exact - exact).is_zero() && !(exact - exact).is_negative());
        }

        #[test]
        fn integers_round_once(x in any::<i128>(), shift in 0u32..127) {
            let x = x >> shift;
            prop_assert!(same(Wide::from(x).to_f64(), x as f64));
            prop_assert!(same(Wide::from(x).to_format(Format::F32), f64::from(x as f32)));
        }
    }

    #[test]
    fn half_formats_round_at_every_boundary() {
        for bits in 0..0x7c00u16 {
            let low = half::f16::from_bits(bits).to_f64_const();
            let high = if bits == 0x7bff { 65536.0 } else { half::f16::from_bits(bits + 1).to_f64_const() };
            let tie = (low + high) / 2.0;
            let above = if bits == 0x7bff { f64::INFINITY } else { high };
            let to = |x: f64| Wide::from(x).to_format(Format::F16);
            assert_eq!((to(low), to(tie.next_down())), (low, low), "{bits:#x}");
            assert_eq!((to(tie), to(-tie.next_up())), (if bits & 1 == 0 { low } else { above }, -above));
        }
        let bf16 = |x: f64| Wide::from(x).to_format(Format::BF16);
        assert_eq!(bf16(1.0 + 2f64.powi(-8)), 1.0);
        assert_eq!(bf16(1.0 + 2f64.powi(-8) + 2f64.powi(-50)), 1.0 + 2f64.powi(-7));
        assert_eq!(bf16(f64::from(f32::MAX)), f64::INFINITY);
        assert_eq!(bf16(2f64.powi(-134)), 0.0);
        assert_eq!(bf16(2f64.powi(-134).next_up()), 2f64.powi(-133));
    }

    #[test]
    fn exponents_go_beyond_f64() {
        let huge = Wide::from(f64::MAX).square().square();
        assert_eq!(huge.to_f64(), f64::INFINITY);
        assert_eq!((huge.sqrt().sqrt()).to_f64(), f64::MAX);
        let tiny = Wide::ONE / huge;
        assert_eq!((tiny.to_f64(), (tiny * huge).to_f64()), (0.0, 1.0));
    }
}
