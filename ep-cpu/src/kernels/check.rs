//! What the tests of the elementwise kernels share: samples of every dtype, their values, comparisons.

use crate::kernels::testing::Rng;
use ep_core::DType;
use half::{bf16, f16};

/// Elements at an address aligned to their size and no more, between margins.
pub(crate) struct Buffer {
    store: Vec<u128>,
    start: usize,
    len: usize,
}

const MARGIN: usize = 64;
const POISON: u8 = 0xa5;

impl Buffer {
    /// `bytes` of elements of `size` bytes.
    pub(crate) fn of(bytes: &[u8], size: usize) -> Buffer {
        let mut b = Buffer::poisoned(bytes.len(), size);
        let (start, len) = (b.start, b.len);
        b.all()[start..start + len].copy_from_slice(bytes);
        b
    }

    pub(crate) fn poisoned(len: usize, size: usize) -> Buffer {
        let words = (2 * MARGIN + size + len).div_ceil(16);
        let store = vec![u128::from_ne_bytes([POISON; 16]); words];
        Buffer { store, start: MARGIN + size, len }
    }

    fn all(&mut self) -> &mut [u8] {
        // SAFETY: u128s are plain bytes, and the slice covers exactly the vector's.
        unsafe { std::slice::from_raw_parts_mut(self.store.as_mut_ptr().cast(), self.store.len() * 16) }
    }

    pub(crate) fn ptr(&mut self) -> *mut u8 {
        let start = self.start;
        self.all()[start..].as_mut_ptr()
    }

    /// The elements, after checking that nothing around them was written.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        let (start, end) = (self.start, self.start + self.len);
        let all = self.all();
        assert!(all[..start].iter().chain(&all[end..]).all(|&b| b == POISON), "a write outside the output");
        all[start..end].to_vec()
    }
}

/// The value of one element.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Val {
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

impl Val {
    pub(crate) fn float(self) -> f64 {
        match self {
            Val::Int(i) => i as f64,
            Val::Float(f) | Val::Complex(f, _) => f,
        }
    }

    pub(crate) fn int(self) -> i128 {
        match self {
            Val::Int(i) => i,
            other => panic!("{other:?} is no integer"),
        }
    }

    pub(crate) fn truth(self) -> bool {
        match self {
            Val::Int(i) => i != 0,
            Val::Float(f) => f != 0.0,
            Val::Complex(re, im) => re != 0.0 || im != 0.0,
        }
    }

    /// Equal, counting every NaN as equal and zeros of different signs as different.
    pub(crate) fn same(self, other: Val) -> bool {
        let eq = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        match (self, other) {
            (Val::Int(a), Val::Int(b)) => a == b,
            (Val::Float(a), Val::Float(b)) => eq(a, b),
            (Val::Complex(a, b), Val::Complex(c, d)) => eq(a, c) && eq(b, d),
            _ => false,
        }
    }
}

pub(crate) fn size(dtype: DType) -> usize {
    dtype.size().unwrap()
}

pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<Val> {
    bytes.chunks_exact(size(dtype)).map(|b| decode_one(dtype, b)).collect()
}

fn decode_one(dtype: DType, b: &[u8]) -> Val {
    macro_rules! read {
        ($t:ty) => {
            <$t>::from_ne_bytes(b.try_into().unwrap())
        };
    }
    match dtype {
        DType::BOOL | DType::U8 => Val::Int(b[0].into()),
        DType::I8 => Val::Int(read!(i8).into()),
        DType::I16 => Val::Int(read!(i16).into()),
        DType::U16 => Val::Int(read!(u16).into()),
        DType::I32 => Val::Int(read!(i32).into()),
        DType::U32 => Val::Int(read!(u32).into()),
        DType::I64 => Val::Int(read!(i64).into()),
        DType::U64 => Val::Int(read!(u64).into()),
        DType::F16 => Val::Float(read!(f16).to_f64_const()),
        DType::BF16 => Val::Float(read!(bf16).to_f64_const()),
        DType::F32 => Val::Float(read!(f32).into()),
        DType::F64 => Val::Float(read!(f64)),
        _ => {
            let part = if dtype == DType::COMPLEX64 { DType::F32 } else { DType::F64 };
            let (re, im) = b.split_at(b.len() / 2);
            Val::Complex(decode_one(part, re).float(), decode_one(part, im).float())
        }
    }
}

/// `v` as an element, rounded to nearest or wrapped.
pub(crate) fn encode(dtype: DType, v: Val) -> Vec<u8> {
    match dtype {
        // `half` ignores the low 32 bits of an f64 when it rounds.
        DType::F16 => f16::from_f32_const(near(v.float(), 10, -24)).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f32_const(near(v.float(), 7, -133)).to_ne_bytes().to_vec(),
        DType::F32 => (v.float() as f32).to_ne_bytes().to_vec(),
        DType::F64 => v.float().to_ne_bytes().to_vec(),
        DType::COMPLEX64 | DType::COMPLEX128 => {
            let Val::Complex(re, im) = v else { panic!("{v:?} is not complex") };
            let part = if dtype == DType::COMPLEX64 { DType::F32 } else { DType::F64 };
            [encode(part, Val::Float(re)), encode(part, Val::Float(im))].concat()
        }
        _ => v.int().to_le_bytes()[..size(dtype)].to_vec(),
    }
}

/// `x` rounded to `bits` bits after the first, and to no finer than `2^least`.
fn near(x: f64, bits: i32, least: i32) -> f32 {
    if x == 0.0 || !x.is_finite() {
        return x as f32;
    }
    let step = libm::ldexp(1.0, (libm::ilogb(x) - bits).max(least));
    ((x / step).round_ties_even() * step) as f32
}

/// `v` after a trip through `dtype`.
pub(crate) fn rounded(dtype: DType, v: Val) -> Val {
    decode_one(dtype, &encode(dtype, v))
}

const FLOATS: [f64; 26] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    2.5,
    -3.5,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    1e-7,
    -1e-7,
    6e-8,
    -1e-40,
    3e-310,
    65504.0,
    -3.38e38,
    1e308,
    88.8,
    -104.0,
    -745.2,
];

/// `n` elements: special values, values of everyday size, and any finite bits.
pub(crate) fn samples(dtype: DType, n: usize, rng: &mut Rng) -> Vec<u8> {
    (0..n).flat_map(|i| sample(dtype, i, rng)).collect()
}

fn sample(dtype: DType, i: usize, rng: &mut Rng) -> Vec<u8> {
    if dtype == DType::BOOL {
        return vec![(rng.next() & 1) as u8];
    }
    if dtype.is_complex() {
        let part = if dtype == DType::COMPLEX64 { DType::F32 } else { DType::F64 };
        let skewed = i.wrapping_mul(5) + i / 40;
        return [sample(part, i % 43, rng), sample(part, skewed % 47, rng)].concat();
    }
    if dtype.is_float() {
        return match FLOATS.get(i) {
            Some(&special) => encode(dtype, Val::Float(special)),
            None if i.is_multiple_of(3) => rng.bytes(size(dtype)),
            None => encode(dtype, Val::Float(rng.signed() * [0.3, 1.0, 8.0, 60.0][i % 4])),
        };
    }
    let extreme = 1i128 << (8 * size(dtype) - 1);
    let specials = [0, 1, -1, 2, -2, 7, -7, extreme, extreme - 1, 3, 10];
    match specials.get(i) {
        Some(&special) => encode(dtype, Val::Int(special)),
        None if i.is_multiple_of(2) => rng.bytes(size(dtype)),
        None => encode(dtype, Val::Int(i128::from(rng.next() % 25) - 12)),
    }
}

/// The distance from `x` to the next value of `dtype` away from zero.
fn spacing(dtype: DType, x: f64) -> f64 {
    let (bits, least) = match dtype {
        DType::F16 => (10, -24),
        DType::BF16 => (7, -133),
        DType::F32 | DType::COMPLEX64 => (23, -149),
        _ => (52, -1074),
    };
    if x == 0.0 || !x.is_finite() {
        return libm::ldexp(1.0, least);
    }
    libm::ldexp(1.0, (libm::ilogb(x) - bits).max(least))
}

/// Whether two values of one computation agree: the same, or floats a few ulps apart, as a function may take another
/// path where the elements that share a vector ask for it.
pub(crate) fn agree(dtype: DType, a: Val, b: Val) -> bool {
    a.same(b) || (DType::FLOAT.contains(&dtype) && close(dtype, a.float(), b.float(), 4.0, 0.0))
}

/// Whether `got` of `dtype` is within `ulps` of the exact `want`, or within `slack` of it.
pub(crate) fn close(dtype: DType, got: f64, want: f64, ulps: f64, slack: f64) -> bool {
    let stored = rounded(dtype, Val::Float(want)).float();
    if got.to_bits() == stored.to_bits() || got.is_nan() && stored.is_nan() || (got == 0.0 && stored == 0.0) {
        return true;
    }
    // Next to the overflow threshold, the largest value and infinity are neighbours.
    let largest = match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(bf16::MAX),
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    };
    let inside = |x: f64| x.clamp(-largest, largest);
    let at_edge = want.is_finite() || got.is_finite();
    at_edge && (inside(got) - inside(want)).abs() <= ulps * spacing(dtype, inside(want)) + slack
}
