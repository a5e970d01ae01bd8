//! What reductions do with elements.

use crate::kernels::elem::{Bool, Complex, Storage};
use crate::kernels::num::{Float, Number, round_to};
use std::marker::PhantomData;

/// An end of a range.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum End {
    Least,
    Greatest,
}

/// A reduction of values `V`.
pub(super) trait Fold<V>: 'static {
    /// What is accumulated.
    type Acc: Copy + Send + Sync + 'static;
    /// The result over nothing.
    const START: Self::Acc;
    /// One more value.
    fn take(acc: Self::Acc, value: V) -> Self::Acc;
    /// Two partial results.
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The result over `n` values.
    fn end(acc: Self::Acc, n: usize) -> Self::Acc {
        let _ = n;
        acc
    }
    /// Which end of the values this is.
    const END: Option<End> = None;
    /// Whether [`Self::four`] is cheaper than four of [`Self::take`]: sums of f32 and of halves, and extremes of floating-point
    /// numbers, which above the baseline are computed by vectors.
    const FOUR: bool = false;
    /// Four values combined, which are then taken as one. It may lose what [`Self::is_lost`] then tells.
    #[inline(always)]
    fn four(values: [V; 4]) -> V {
        let [first, ..] = values;
        first
    }
    /// Whether a partial result may have come out wrong by way of [`Self::four`].
    #[inline(always)]
    fn is_lost(acc: Self::Acc) -> bool {
        let _ = acc;
        false
    }
}

/// How an accumulated result is stored: rounded once.
pub(super) trait Finish<D: Storage> {
    fn finish(self) -> D;
}

impl<D: Storage<Value: Float>> Finish<D> for f64 {
    #[inline(always)]
    fn finish(self) -> D {
        D::store(round_to::<D>(self))
    }
}

impl<D: Storage<Value: Float>> Finish<D> for f32 {
    #[inline(always)]
    fn finish(self) -> D {
        D::store(round_to::<D>(self.into()))
    }
}

impl<D: Storage<Value = Complex<f64>>> Finish<D> for Complex<f64> {
    #[inline(always)]
    fn finish(self) -> D {
        D::store(self)
    }
}

impl Finish<Bool> for u8 {
    #[inline(always)]
    fn finish(self) -> Bool {
        Bool::store(self)
    }
}

/// Sums and products of values `V` in this type.
pub(super) trait Arithmetic<V>: Copy + Send + Sync + 'static {
    const ZERO: Self;
    const ONE: Self;
    fn of(value: V) -> Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Whether sums of four values are rounded to their own type before they are added up in this one.
    const FOUR: bool = false;
    #[inline(always)]
    fn four(values: [V; 4]) -> V {
        let [first, ..] = values;
        first
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        true
    }
}

macro_rules! integers {
    ($($v:ty => $acc:ty),*) => {$(
        impl Arithmetic<$v> for $acc {
            const ZERO: $acc = 0;
            const ONE: $acc = 1;

            #[inline(always)]
            fn of(value: $v) -> $acc {
                value.into()
            }

            #[inline(always)]
            fn plus(self, other: $acc) -> $acc {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: $acc) -> $acc {
                self.wrapping_mul(other)
            }
        }
    )*};
}
integers!(i8 => i8, u8 => u8, i16 => i16, u16 => u16, i32 => i32, u32 => u32, i64 => i64, u64 => u64,
    i8 => i64, u8 => i64, i16 => i64, u16 => i64, i32 => i64, u32 => i64);

macro_rules! floats {
    ($($v:ty: $four:literal),*) => {$(
        impl Arithmetic<$v> for f64 {
            const FOUR: bool = $four;

            const ZERO: f64 = 0.0;
            const ONE: f64 = 1.0;

            #[inline(always)]
            fn of(value: $v) -> f64 {
                value.into()
            }

            #[inline(always)]
            fn plus(self, other: f64) -> f64 {
                self + other
            }

            #[inline(always)]
            fn times(self, other: f64) -> f64 {
                self * other
            }

            #[inline(always)]
            fn four([a, b, c, d]: [$v; 4]) -> $v {
                (a + b) + (c + d)
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                f64::is_finite(self)
            }
        }
    )*};
}
// Conversions to f64 cost more than additions. Two roundings of f32 are less than the last one of the result where
// all has one sign, and less than 2^-23 of what was added up otherwise.
floats!(f32: true, f64: false);

impl Arithmetic<Complex<f64>> for Complex<f64> {
    const ZERO: Self = Complex { re: 0.0, im: 0.0 };
    const ONE: Self = Complex { re: 1.0, im: 0.0 };

    #[inline(always)]
    fn of(value: Complex<f64>) -> Self {
        value
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.add(other)
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self.mul(other)
    }
}

pub(super) struct Sum<A>(PhantomData<A>);
pub(super) struct Prod<A>(PhantomData<A>);
pub(super) struct Mean<A>(PhantomData<A>);
pub(super) struct Max;
pub(super) struct Min;
pub(super) struct Any;
pub(super) struct All;

impl<V, A: Arithmetic<V>> Fold<V> for Sum<A> {
    type Acc = A;
    const START: A = A::ZERO;
    const FOUR: bool = A::FOUR;

    #[inline(always)]
    fn four(values: [V; 4]) -> V {
        A::four(values)
    }

    #[inline(always)]
    fn is_lost(acc: A) -> bool {
        // A sum of four may overflow where the whole does not.
        !acc.is_finite()
    }

    #[inline(always)]
    fn take(acc: A, value: V) -> A {
        acc.plus(A::of(value))
    }

    #[inline(always)]
    fn join(a: A, b: A) -> A {
        a.plus(b)
    }
}

impl<V, A: Arithmetic<V>> Fold<V> for Prod<A> {
    type Acc = A;
    const START: A = A::ONE;

    #[inline(always)]
    fn take(acc: A, value: V) -> A {
        acc.times(A::of(value))
    }

    #[inline(always)]
    fn join(a: A, b: A) -> A {
        a.times(b)
    }
}

/// Division by a count; by 0 it gives NaN.
pub(super) trait Divide {
    fn divide(self, n: usize) -> Self;
}

impl Divide for f64 {
    #[inline(always)]
    fn divide(self, n: usize) -> f64 {
        self / n as f64
    }
}

impl Divide for Complex<f64> {
    #[inline(always)]
    fn divide(self, n: usize) -> Self {
        Complex { re: self.re / n as f64, im: self.im / n as f64 }
    }
}

impl<V, A: Arithmetic<V> + Divide> Fold<V> for Mean<A> {
    type Acc = A;
    const START: A = A::ZERO;
    const FOUR: bool = A::FOUR;

    #[inline(always)]
    fn four(values: [V; 4]) -> V {
        A::four(values)
    }

    #[inline(always)]
    fn is_lost(acc: A) -> bool {
        // A sum of four may overflow where the whole does not.
        !acc.is_finite()
    }

    #[inline(always)]
    fn take(acc: A, value: V) -> A {
        acc.plus(A::of(value))
    }

    #[inline(always)]
    fn join(a: A, b: A) -> A {
        a.plus(b)
    }

    #[inline(always)]
    fn end(acc: A, n: usize) -> A {
        acc.divide(n)
    }
}

/// The ends of a value's range.
pub(super) trait Ends: Number {
    const LOWEST: Self;
    const HIGHEST: Self;
    /// The value that does not compare, if there is one.
    const NAN: Option<Self>;
}

macro_rules! ends {
    ($($t:ty: $low:expr, $high:expr, $nan:expr;)*) => {
        $(impl Ends for $t {
            const LOWEST: $t = $low;
            const HIGHEST: $t = $high;
            const NAN: Option<$t> = $nan;
        })*
    };
}
// Bool computes as u8, whose other values never meet an element: over nothing they are stored as true.
ends! {
    u8: 0, u8::MAX, None; i8: i8::MIN, i8::MAX, None; u16: 0, u16::MAX, None; i16: i16::MIN, i16::MAX, None;
    u32: 0, u32::MAX, None; i32: i32::MIN, i32::MAX, None; u64: 0, u64::MAX, None; i64: i64::MIN, i64::MAX, None;
    f32: f32::NEG_INFINITY, f32::INFINITY, Some(f32::NAN); f64: f64::NEG_INFINITY, f64::INFINITY, Some(f64::NAN);
}

macro_rules! integer_results {
    ($($t:ty),*) => {
        $(impl Finish<$t> for $t {
            #[inline(always)]
            fn finish(self) -> $t {
                self
            }
        })*
    };
}
integer_results!(i8, u8, i16, u16, i32, u32, i64, u64);

impl<V: Ends> Fold<V> for Max {
    type Acc = V;
    const START: V = V::LOWEST;
    const END: Option<End> = Some(End::Greatest);
    const FOUR: bool = V::NAN.is_some();

    #[inline(always)]
    fn four([a, b, c, d]: [V; 4]) -> V {
        let (first, second) = (if a > b { a } else { b }, if c > d { c } else { d });
        let most = if first > second { first } else { second };
        // What compares unequal to itself is NaN: two of them cost one comparison.
        let nan = (a.is_nan() | b.is_nan()) | (c.is_nan() | d.is_nan());
        match V::NAN {
            Some(none) if nan => none,
            _ => most,
        }
    }

    #[inline(always)]
    fn take(acc: V, value: V) -> V {
        Number::max(acc, value)
    }

    #[inline(always)]
    fn join(a: V, b: V) -> V {
        Number::max(a, b)
    }
}

impl<V: Ends> Fold<V> for Min {
    type Acc = V;
    const START: V = V::HIGHEST;
    const END: Option<End> = Some(End::Least);
    const FOUR: bool = V::NAN.is_some();

    #[inline(always)]
    fn four([a, b, c, d]: [V; 4]) -> V {
        let (first, second) = (if a < b { a } else { b }, if c < d { c } else { d });
        let most = if first < second { first } else { second };
        // What compares unequal to itself is NaN: two of them cost one comparison.
        let nan = (a.is_nan() | b.is_nan()) | (c.is_nan() | d.is_nan());
        match V::NAN {
            Some(none) if nan => none,
            _ => most,
        }
    }

    #[inline(always)]
    fn take(acc: V, value: V) -> V {
        Number::min(acc, value)
    }

    #[inline(always)]
    fn join(a: V, b: V) -> V {
        Number::min(a, b)
    }
}

/// Whether a value is not 0; NaN is not.
pub(super) trait Truth {
    fn truthy(self) -> bool;
}

impl<T: Number> Truth for T {
    #[inline(always)]
    fn truthy(self) -> bool {
        self.truth()
    }
}

impl Truth for Complex<f64> {
    #[inline(always)]
    fn truthy(self) -> bool {
        // Unlike `||` without a branch, so that it vectorises.
        (self.re != 0.0) | (self.im != 0.0)
    }
}

// As numbers: truth values of the compiler's are turned into masks and back.

impl<V: Truth + 'static> Fold<V> for Any {
    type Acc = u8;
    const START: u8 = 0;

    #[inline(always)]
    fn take(acc: u8, value: V) -> u8 {
        acc | u8::from(value.truthy())
    }

    #[inline(always)]
    fn join(a: u8, b: u8) -> u8 {
        a | b
    }
}

impl<V: Truth + 'static> Fold<V> for All {
    type Acc = u8;
    const START: u8 = 1;

    #[inline(always)]
    fn take(acc: u8, value: V) -> u8 {
        acc & u8::from(value.truthy())
    }

    #[inline(always)]
    fn join(a: u8, b: u8) -> u8 {
        a & b
    }
}
