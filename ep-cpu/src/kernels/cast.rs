//! Cast: every pair of the 15 dtypes.
//!
//! To a float, complex or wider integer: the nearest value, rounded once, ties to even. To bool: whether
//! it differs from zero (NaN does, and a complex number if either part does). Float to integer: truncated,
//! saturated, NaN to 0. Integer to integer: wraps. Complex to real: the real part. A dtype to itself is a
//! copy of the bytes.

use super::elem::{Bool, Complex, Storage, f64_to_f32_for_halves};
use super::engine::{Cost, Run};
use super::narrow;
use super::num::Number;
use super::unary::{Op, UnaryKernel};
use crate::isa::{Body, Isa};
use ep_core::DType;
use half::{bf16, f16};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::slice;
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
        for (src, dst, kernel) in &mut rows {
            match (*src, *dst) {
                (DType::F16, DType::F32) => *kernel = UnaryKernel::cheap::<f16, f32>(widen),
                (DType::F32, DType::F16) => *kernel = UnaryKernel::cheap::<f32, f16>(round_f16),
                (DType::F32, DType::BF16) => *kernel = UnaryKernel::cheap::<f32, bf16>(round_bf16),
                (DType::F32, DType::I8) => *kernel = UnaryKernel::cheap::<f32, i8>(to_bytes::<i8, true>),
                (DType::F32, DType::U8) => *kernel = UnaryKernel::cheap::<f32, u8>(to_bytes::<u8, false>),
                _ => {}
            }
        }
        rows.sort_by_key(|r| (r.0, r.1));
        rows
    })
}

/// # Safety
/// As [`UnaryBlock`](super::engine::UnaryBlock), with aligned elements of f16 and f32.
unsafe fn widen(isa: Isa, _: [f64; 2], src: *const u8, dst: *mut u8, Run { n, .. }: Run) {
    // SAFETY: the caller's contract.
    let (src, dst) = unsafe { slices(src, dst, n) };
    narrow::widen_f16(isa, src, dst);
}

/// # Safety
/// As [`UnaryBlock`](super::engine::UnaryBlock), with aligned elements of f32 and f16.
unsafe fn round_f16(isa: Isa, _: [f64; 2], src: *const u8, dst: *mut u8, Run { n, .. }: Run) {
    // SAFETY: the caller's contract.
    let (src, dst) = unsafe { slices(src, dst, n) };
    narrow::round_f16(isa, src, dst);
}

/// # Safety
/// As [`UnaryBlock`](super::engine::UnaryBlock), with aligned elements of f32 and bf16.
unsafe fn round_bf16(isa: Isa, _: [f64; 2], src: *const u8, dst: *mut u8, Run { n, .. }: Run) {
    // SAFETY: the caller's contract.
    let (src, dst) = unsafe { slices(src, dst, n) };
    narrow::round_bf16(isa, src, dst);
}

/// # Safety
/// As [`UnaryBlock`](super::engine::UnaryBlock), with aligned elements of f32 and bytes `D`, which are `SIGNED` or not.
unsafe fn to_bytes<D: FromAny, const SIGNED: bool>(
    isa: Isa,
    _: [f64; 2],
    src: *const u8,
    dst: *mut u8,
    Run { n, .. }: Run,
) {
    const { assert!(size_of::<D>() == 1) }
    // SAFETY: the caller's contract.
    let (src, dst) = unsafe { slices(src, dst, n) };
    let done = narrow::to_bytes::<SIGNED>(isa, src, dst);
    // SAFETY: as above; the rest of the same elements.
    let (src, dst) =
        unsafe { slices::<f32, D>(src[done..].as_ptr().cast(), dst[done..].as_mut_ptr().cast(), n - done) };
    isa.dispatch(Truncate { src, dst });
}

struct Truncate<'a, D> {
    src: &'a [f32],
    dst: &'a mut [MaybeUninit<D>],
}

impl<D: FromAny> Body for Truncate<'_, D> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        truncate(self.src, self.dst);
    }
}

// As for `unary`: as parameters of their own, slices are known not to alias.
#[inline(always)]
fn truncate<D: FromAny>(src: &[f32], dst: &mut [MaybeUninit<D>]) {
    let n = dst.len();
    let src = &src[..n];
    for i in 0..n {
        dst[i].write(D::from_f32(src[i]));
    }
}

/// # Safety
/// Both are aligned and valid for `n` elements for as long as the slices are used, and do not overlap.
unsafe fn slices<'a, S: Storage, D>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
) -> (&'a [S], &'a mut [MaybeUninit<D>]) {
    // SAFETY: the caller's promise; every bit pattern is a valid `S`.
    unsafe { (slice::from_raw_parts(src.cast(), n), slice::from_raw_parts_mut(dst.cast(), n)) }
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
    /// To an `f32` that rounds to f16 and bf16 as `self` itself would: exact, or with digits too small for them folded into the
    /// last one.
    fn to_f32_for_halves(self) -> f32;
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

/// What `x as $t` does, in operations that vectorise. `$high` is the largest float that is not above the type's
/// largest value, and so is one below it where that has more digits than the float.
macro_rules! saturate {
    ($x:ident: $f:ident, $t:ident, $via:ident, $high:expr) => {{
        const LOW: $f = $t::MIN as $f;
        const HIGH: $f = $high;
        let number = if $x.is_nan() { 0.0 } else { $x };
        let above = if number < LOW { LOW } else { number };
        let within = if above > HIGH { HIGH } else { above };
        // SAFETY: a number between two that the type has.
        let whole = unsafe { within.to_int_unchecked::<$via>() } as $t;
        // Known when compiled: nothing is left of this where the bound is the largest value itself.
        if HIGH as $t == $t::MAX || $x <= HIGH || $x.is_nan() { whole } else { $t::MAX }
    }};
}

/// Rows of: type, then from f32 and f64: the type converted to first, and the largest number that fits it.
macro_rules! from_any {
    ($($t:ident: $via32:ident $high32:expr, $via64:ident $high64:expr;)*) => {$(
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
                saturate!(x: f32, $t, $via32, $high32)
            }

            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                saturate!(x: f64, $t, $via64, $high64)
            }
        }
    )*};
}

from_any! {
    i8: i32 127.0, i32 127.0;
    u8: i32 255.0, i32 255.0;
    i16: i32 32767.0, i32 32767.0;
    u16: i32 65535.0, i32 65535.0;
    i32: i32 2_147_483_520.0, i32 2_147_483_647.0;
    u32: u32 4_294_967_040.0, u32 4_294_967_295.0;
    i64: i64 9_223_371_487_098_961_920.0, i64 9_223_372_036_854_774_784.0;
    u64: u64 18_446_742_974_197_923_840.0, u64 18_446_744_073_709_549_568.0;
}

/// Rows of: type, from f32, from f64.
macro_rules! from_any_float {
    ($($t:ident: $from_f32:expr, $from_f64:expr;)*) => {$(
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
from_any_float! {
    f32: std::convert::identity, |x| x as f32;
    f64: f64::from, std::convert::identity;
}

macro_rules! convert {
    ($($t:ty: $via:ident, $odd:expr;)*) => {$(
        impl Convert for $t {
            #[inline(always)]
            fn truth(self) -> bool {
                Number::truth(self)
            }

            #[inline(always)]
            fn to_f32_for_halves(self) -> f32 {
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
// Of integers with more digits than f32 or f64 has, the last 8 or 11 are folded into the one before: anything there carries into
// that.
convert! {
    u8: from_int, f32::from;
    i8: from_int, f32::from;
    i16: from_int, f32::from;
    u16: from_int, f32::from;
    i32: from_int, |x: i32| (if x.unsigned_abs() < 1 << 24 { x } else { (x | ((x & 0xff) + 0xff)) & !0xff }) as f32;
    u32: from_int, |x: u32| (if x < 1 << 24 { x } else { (x | ((x & 0xff) + 0xff)) & !0xff }) as f32;
    i64: from_int, |x: i64| {
        let held = if x.unsigned_abs() < 1 << 53 { x } else { (x | ((x & 0x7ff) + 0x7ff)) & !0x7ff };
        f64_to_f32_for_halves(held as f64)
    };
    u64: from_u64, |x: u64| {
        let held = if x < 1 << 53 { x } else { (x | ((x & 0x7ff) + 0x7ff)) & !0x7ff };
        f64_to_f32_for_halves(held as f64)
    };
    f32: from_f32, std::convert::identity;
    f64: from_f64, f64_to_f32_for_halves;
}

impl Convert for Complex<f64> {
    #[inline(always)]
    fn truth(self) -> bool {
        self.re != 0.0 || self.im != 0.0
    }

    #[inline(always)]
    fn to_f32_for_halves(self) -> f32 {
        f64_to_f32_for_halves(self.re)
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
        x.to_f32_for_halves()
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
