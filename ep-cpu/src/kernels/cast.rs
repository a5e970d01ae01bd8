//! Cast: every pair of the 15 dtypes.
//!
//! To a float, complex or wider integer: the nearest value, rounded once, ties to even. To bool: whether
//! it differs from zero (NaN does, and a complex number if either part does). Float to integer: truncated,
//! saturated, NaN to 0. Integer to integer: wraps. Complex to real: the real part. A dtype to itself is a
//! copy of the bytes.

use super::elem::{Bool, Complex, Storage, f64_to_f32_odd};
use super::engine::Cost;
use super::num::Number;
use super::unary::{Op, UnaryKernel};
use ep_core::DType;
use half::{bf16, f16};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// The cast from `src` to `dst`; `None` for dtypes outside [`DType::ALL`].
pub fn lookup(src: DType, dst: DType) -> Option<UnaryKernel> {
    let rows = rows();
    let found = rows.binary_search_by_key(&(src, dst), |r| (r.0, r.1)).ok()?;
    Some(rows[found].2)
}

/// Every cast, as (source, destination, kernel), ordered by both dtypes.
pub fn rows() -> &'static [(DType, DType, UnaryKernel)] {
    static ROWS: OnceLock<Vec<(DType, DType, UnaryKernel)>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Vec::with_capacity(225);
        from::<Bool>(&mut rows);
        from::<i8>(&mut rows);
        from::<u8>(&mut rows);
        from::<i16>(&mut rows);
        from::<u16>(&mut rows);
        from::<i32>(&mut rows);
        from::<u32>(&mut rows);
        from::<i64>(&mut rows);
        from::<u64>(&mut rows);
        from::<f16>(&mut rows);
        from::<bf16>(&mut rows);
        from::<f32>(&mut rows);
        from::<f64>(&mut rows);
        from::<Complex<f32>>(&mut rows);
        from::<Complex<f64>>(&mut rows);
        rows.sort_by_key(|r| (r.0, r.1));
        rows
    })
}

fn from<S: Storage<Value: Convert>>(rows: &mut Vec<(DType, DType, UnaryKernel)>) {
    let mut to = |dst, kernel| {
        let kernel = if dst == S::DTYPE { copy(dst) } else { kernel };
        rows.push((S::DTYPE, dst, kernel));
    };
    to(DType::BOOL, UnaryKernel::of::<ToBool, S, Bool>());
    to(DType::F16, UnaryKernel::of::<ToNarrow, S, f16>());
    to(DType::BF16, UnaryKernel::of::<ToNarrow, S, bf16>());
    to(DType::COMPLEX64, UnaryKernel::of::<ToComplex<f32>, S, Complex<f32>>());
    to(DType::COMPLEX128, UnaryKernel::of::<ToComplex<f64>, S, Complex<f64>>());
    macro_rules! plain {
        ($($d:ty),*) => { $(to(<$d>::DTYPE, UnaryKernel::of::<As, S, $d>());)* };
    }
    plain!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);
}

/// The kernel that copies elements of `dtype` bit by bit. Works for each of [`DType::ALL`].
pub(super) fn copy(dtype: DType) -> UnaryKernel {
    match dtype.size() {
        Some(1) => UnaryKernel::of::<Same, u8, u8>(),
        Some(2) => UnaryKernel::of::<Same, u16, u16>(),
        Some(4) => UnaryKernel::of::<Same, u32, u32>(),
        Some(8) => UnaryKernel::of::<Same, u64, u64>(),
        Some(16) => UnaryKernel::of::<Same, Complex<f64>, Complex<f64>>(),
        size => unreachable!("{dtype} has elements of {size:?} bytes"),
    }
}

/// Everything that a value of a source dtype can become.
trait Convert: Copy + Send + Sync + 'static {
    fn truth(self) -> bool;
    /// To an `f32` that rounds to f16 and bf16 as `self` itself would: exact, or rounded to odd.
    fn to_f32_odd(self) -> f32;
    /// The real part passes through `F`, so that it is rounded once to the part stored.
    fn to_complex<F: FromAny + Into<f64>>(self) -> Complex<f64>;
    fn to<D: FromAny>(self) -> D;
}

/// The types that Rust's `as` converts to.
trait FromAny: Sized {
    fn from_int(x: i64) -> Self;
    fn from_u64(x: u64) -> Self;
    fn from_f32(x: f32) -> Self;
    fn from_f64(x: f64) -> Self;
}

macro_rules! from_any {
    ($($t:ty: $from_f32:expr, $from_f64:expr;)*) => {$(
        impl FromAny for $t {
            #[inline(always)]
            fn from_int(x: i64) -> $t {
                x as $t
            }

            #[inline(always)]
            fn from_u64(x: u64) -> $t {
                x as $t
            }

            #[inline(always)]
            fn from_f32(x: f32) -> $t {
                $from_f32(x)
            }

            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                $from_f64(x)
            }
        }
    )*};
}
from_any! {
    i8: |x| saturate(f64::from(x), -128.0, 127.0) as i8, |x| saturate(x, -128.0, 127.0) as i8;
    u8: |x| saturate(f64::from(x), 0.0, 255.0) as u8, |x| saturate(x, 0.0, 255.0) as u8;
    i16: |x| saturate(f64::from(x), -32768.0, 32767.0) as i16, |x| saturate(x, -32768.0, 32767.0) as i16;
    u16: |x| saturate(f64::from(x), 0.0, 65535.0) as u16, |x| saturate(x, 0.0, 65535.0) as u16;
    i32: |x| saturate(f64::from(x), I32_MIN, I32_MAX), |x| saturate(x, I32_MIN, I32_MAX);
    u32: |x| x as u32, |x| x as u32;
    i64: |x| x as i64, |x| x as i64;
    u64: |x| x as u64, |x| x as u64;
    f32: std::convert::identity, |x| x as f32;
    f64: f64::from, std::convert::identity;
}

const I32_MIN: f64 = i32::MIN as f64;
const I32_MAX: f64 = i32::MAX as f64;

/// What `x as i32` would do between these bounds, which are within i32's; unlike that it vectorises.
#[inline(always)]
fn saturate(x: f64, low: f64, high: f64) -> i32 {
    let x = if x.is_nan() { 0.0 } else { x };
    let x = if x < low { low } else { x };
    let x = if x > high { high } else { x };
    // SAFETY: `x` is a number within the bounds.
    unsafe { x.to_int_unchecked() }
}

macro_rules! convert {
    ($($t:ty: $via:ident, $odd:expr;)*) => {$(
        impl Convert for $t {
            #[inline(always)]
            fn truth(self) -> bool {
                Number::truth(self)
            }

            #[inline(always)]
            fn to_f32_odd(self) -> f32 {
                $odd(self)
            }

            #[inline(always)]
            fn to_complex<F: FromAny + Into<f64>>(self) -> Complex<f64> {
                Complex::new(self.to::<F>().into(), 0.0)
            }

            #[inline(always)]
            fn to<D: FromAny>(self) -> D {
                D::$via(self.into())
            }
        }
    )*};
}
convert! {
    u8: from_int, f32::from;
    i8: from_int, f32::from;
    i16: from_int, f32::from;
    u16: from_int, f32::from;
    i32: from_int, |x| f64_to_f32_odd(f64::from(x));
    u32: from_int, |x| f64_to_f32_odd(f64::from(x));
    i64: from_int, |x: i64| u64_to_f32_odd(x.unsigned_abs()).copysign(if x < 0 { -1.0 } else { 1.0 });
    u64: from_u64, u64_to_f32_odd;
    f32: from_f32, std::convert::identity;
    f64: from_f64, f64_to_f32_odd;
}

#[inline(always)]
fn u64_to_f32_odd(x: u64) -> f32 {
    // f64 holds 53 bits; the last of them stands in for all below.
    let sticky = x & !0x7ff | (u64::from(x & 0x7ff != 0) << 11);
    f64_to_f32_odd(if x < 1 << 53 { x as f64 } else { sticky as f64 })
}

impl Convert for Complex<f64> {
    #[inline(always)]
    fn truth(self) -> bool {
        self.re != 0.0 || self.im != 0.0
    }

    #[inline(always)]
    fn to_f32_odd(self) -> f32 {
        f64_to_f32_odd(self.re)
    }

    #[inline(always)]
    fn to_complex<F: FromAny + Into<f64>>(self) -> Complex<f64> {
        self
    }

    #[inline(always)]
    fn to<D: FromAny>(self) -> D {
        D::from_f64(self.re)
    }
}

struct As;
struct ToBool;
struct ToNarrow;
struct ToComplex<F>(PhantomData<F>);
struct Same;

impl<S: Storage<Value: Convert>, D: Storage<Value: FromAny>> Op<S, D> for As {
    const COST: Cost = Cost::Cheap;

    #[inline(always)]
    fn apply(x: S::Value, _: [f64; 2]) -> D::Value {
        x.to()
    }
}

impl<S: Storage<Value: Convert>> Op<S, Bool> for ToBool {
    const COST: Cost = Cost::Cheap;

    #[inline(always)]
    fn apply(x: S::Value, _: [f64; 2]) -> u8 {
        u8::from(x.truth())
    }
}

impl<S: Storage<Value: Convert>, D: Storage<Value = f32>> Op<S, D> for ToNarrow {
    const COST: Cost = Cost::Cheap;

    #[inline(always)]
    fn apply(x: S::Value, _: [f64; 2]) -> f32 {
        x.to_f32_odd()
    }
}

impl<F, S, D> Op<S, D> for ToComplex<F>
where
    F: FromAny + Into<f64> + 'static,
    S: Storage<Value: Convert>,
    D: Storage<Value = Complex<f64>>,
{
    const COST: Cost = Cost::Cheap;

    #[inline(always)]
    fn apply(x: S::Value, _: [f64; 2]) -> Complex<f64> {
        x.to_complex::<F>()
    }
}

impl<S: Storage> Op<S, S> for Same {
    const COST: Cost = Cost::Cheap;

    #[inline(always)]
    fn apply(x: S::Value, _: [f64; 2]) -> S::Value {
        x
    }
}
