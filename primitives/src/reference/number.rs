//! Elements of every dtype as numbers, and back.

use super::math::{Format, Wide};
use ep_core::{DType, Scalar};
use half::{bf16, f16};
use std::fmt;

/// The value of an element of any of [`DType::ALL`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Real(f64),
    /// A complex number: real part, imaginary part.
    Complex(f64, f64),
}

/// As people write it: `1.5`, `-0.0`, `NaN`, `1.0-2.0i`.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Bool(b) => write!(f, "{b}"),
            Number::Int(i) => write!(f, "{i}"),
            Number::Real(x) => write!(f, "{x:?}"),
            // A NaN is printed without a sign.
            Number::Complex(re, im) if im.is_nan() => write!(f, "{re:?}+NaNi"),
            Number::Complex(re, im) => write!(f, "{re:?}{im:+?}i"),
        }
    }
}

impl Number {
    /// The element at the start of `bytes`.
    ///
    /// # Panics
    /// If `bytes` are fewer than an element, or the dtype is none of [`DType::ALL`].
    pub fn load(dtype: DType, bytes: &[u8]) -> Number {
        fn read<const N: usize>(bytes: &[u8]) -> [u8; N] {
            *bytes.first_chunk().expect("a whole element")
        }
        match dtype {
            DType::BOOL => Number::Bool(bytes[0] != 0),
            DType::I8 => Number::Int(i8::from_ne_bytes(read(bytes)).into()),
            DType::U8 => Number::Int(bytes[0].into()),
            DType::I16 => Number::Int(i16::from_ne_bytes(read(bytes)).into()),
            DType::U16 => Number::Int(u16::from_ne_bytes(read(bytes)).into()),
            DType::I32 => Number::Int(i32::from_ne_bytes(read(bytes)).into()),
            DType::U32 => Number::Int(u32::from_ne_bytes(read(bytes)).into()),
            DType::I64 => Number::Int(i64::from_ne_bytes(read(bytes)).into()),
            DType::U64 => Number::Int(u64::from_ne_bytes(read(bytes)).into()),
            DType::F16 => Number::Real(f16::from_ne_bytes(read(bytes)).to_f64_const()),
            DType::BF16 => Number::Real(bf16::from_ne_bytes(read(bytes)).to_f64_const()),
            DType::F32 => Number::Real(f32::from_ne_bytes(read(bytes)).into()),
            DType::F64 => Number::Real(f64::from_ne_bytes(read(bytes))),
            DType::COMPLEX64 | DType::COMPLEX128 => {
                let part = part_of(dtype);
                let re = Number::load(part, bytes).re();
                Number::Complex(re, Number::load(part, &bytes[size_of(part)..]).re())
            }
            other => panic!("{other} is none of the dtypes that primitives are defined over"),
        }
    }

    /// Writes the number to the start of `bytes` as an element of `dtype`, with `cast`'s rules: integers wrap
    /// into integers, floats truncate and saturate into them with NaN as 0, everything rounds once into floats,
    /// to bool is "not zero", and to a real dtype goes the real part.
    ///
    /// # Panics
    /// As [`Number::load`].
    pub fn store(self, dtype: DType, bytes: &mut [u8]) {
        let size = size_of(dtype);
        let (low, high) = (&mut bytes[..size], size / 2);
        match dtype {
            DType::BOOL => low[0] = u8::from(self.truth()),
            DType::F16 => {
                low.copy_from_slice(&f16::from_f64_const(self.rounded(Format::F16)).to_ne_bytes());
            }
            DType::BF16 => {
                low.copy_from_slice(&bf16::from_f64_const(self.rounded(Format::BF16)).to_ne_bytes());
            }
            DType::F32 => low.copy_from_slice(&(self.rounded(Format::F32) as f32).to_ne_bytes()),
            DType::F64 => low.copy_from_slice(&self.rounded(Format::F64).to_ne_bytes()),
            DType::COMPLEX64 | DType::COMPLEX128 => {
                self.store(part_of(dtype), low);
                Number::Real(self.im()).store(part_of(dtype), &mut low[high..]);
            }
            _ => {
                let wrapped = match self {
                    Number::Bool(_) | Number::Int(_) => self.int(),
                    Number::Real(x) | Number::Complex(x, _) => {
                        let (least, most) = int_range(dtype);
                        // `as` truncates, saturates to i128 and turns NaN into 0.
                        (x as i128).clamp(least, most)
                    }
                };
                if cfg!(target_endian = "little") {
                    low.copy_from_slice(&wrapped.to_le_bytes()[..size]);
                } else {
                    low.copy_from_slice(&wrapped.to_be_bytes()[16 - size..]);
                }
            }
        }
    }

    /// What is left after storing as `dtype`.
    #[must_use]
    pub fn cast(self, dtype: DType) -> Number {
        let mut element = [0; 16];
        self.store(dtype, &mut element);
        Number::load(dtype, &element)
    }

    /// The real part as a float of a format, rounded once.
    fn rounded(self, format: Format) -> f64 {
        if format == Format::F64 && !matches!(self, Number::Int(_)) {
            self.re()
        } else {
            self.wide().to_format(format)
        }
    }

    /// The real part, exactly.
    pub fn wide(self) -> Wide {
        match self {
            Number::Int(i) => Wide::from(i),
            other => Wide::from(other.re()),
        }
    }

    /// The real part; for integers beyond 2^53 the nearest float.
    pub fn re(self) -> f64 {
        match self {
            Number::Bool(b) => f64::from(u8::from(b)),
            Number::Int(i) => i as f64,
            Number::Real(x) | Number::Complex(x, _) => x,
        }
    }

    /// The imaginary part, 0 unless complex.
    pub fn im(self) -> f64 {
        if let Number::Complex(_, im) = self { im } else { 0.0 }
    }

    /// A truth value or integer as an integer.
    ///
    /// # Panics
    /// For floats and complex numbers.
    pub fn int(self) -> i128 {
        match self {
            Number::Bool(b) => b.into(),
            Number::Int(i) => i,
            other => panic!("{other:?} is no integer"),
        }
    }

    /// Whether it differs from zero; NaN does.
    pub fn truth(self) -> bool {
        match self {
            Number::Bool(b) => b,
            Number::Int(i) => i != 0,
            Number::Real(x) => x != 0.0,
            Number::Complex(re, im) => re != 0.0 || im != 0.0,
        }
    }

    /// Whether it, or a part of it, is NaN.
    pub fn is_nan(self) -> bool {
        self.re().is_nan() || self.im().is_nan()
    }

    /// Equal, every NaN being equal to every other and zeros of different signs being different.
    pub fn same(self, other: Number) -> bool {
        let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        match (self, other) {
            (Number::Real(a), Number::Real(b)) => same(a, b),
            (Number::Complex(a, x), Number::Complex(b, y)) => same(a, b) && same(x, y),
            (a, b) => a == b,
        }
    }
}

impl Number {
    /// A scalar argument's number; `None` for a scalar without a value.
    pub fn from_scalar(scalar: Scalar) -> Option<Number> {
        Some(match scalar {
            Scalar::None => return None,
            Scalar::Bool(x) => Number::Bool(x),
            Scalar::I64(x) => Number::Int(x.into()),
            Scalar::U64(x) => Number::Int(x.into()),
            Scalar::F64(x) => Number::Real(x),
            Scalar::Complex(re, im) => Number::Complex(re, im),
        })
    }
}

/// The dtype of a complex dtype's parts; every other one itself.
pub fn part_of(dtype: DType) -> DType {
    match dtype {
        DType::COMPLEX64 => DType::F32,
        DType::COMPLEX128 => DType::F64,
        other => other,
    }
}

/// The format of a float dtype, or of a complex one's parts. f64's for all others.
pub fn format_of(dtype: DType) -> Format {
    match part_of(dtype) {
        DType::F16 => Format::F16,
        DType::BF16 => Format::BF16,
        DType::F32 => Format::F32,
        _ => Format::F64,
    }
}

/// The least and the greatest value of an integer dtype or bool.
pub fn int_range(dtype: DType) -> (i128, i128) {
    let bits = 8 * size_of(dtype) as u32;
    match dtype {
        DType::BOOL => (0, 1),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

/// Bytes of an element.
pub(super) fn size_of(dtype: DType) -> usize {
    dtype.size().expect("a dtype of whole bytes")
}

/// Elements of one dtype, owned, as the bytes that a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The dtype.
    pub dtype: DType,
    /// The elements, in the machine's byte order.
    pub bytes: Vec<u8>,
}

impl Data {
    /// Stores numbers as elements, as [`Number::store`] does.
    pub fn new(dtype: DType, numbers: impl IntoIterator<Item = Number>) -> Data {
        let mut data = Data { dtype, bytes: Vec::new() };
        numbers.into_iter().for_each(|x| data.push(x));
        data
    }

    /// Appends an element.
    pub fn push(&mut self, x: Number) {
        let start = self.bytes.len();
        self.bytes.resize(start + size_of(self.dtype), 0);
        x.store(self.dtype, &mut self.bytes[start..]);
    }

    /// Borrows it.
    pub fn view(&self) -> View<'_> {
        View { dtype: self.dtype, bytes: &self.bytes }
    }

    /// The element at an index.
    ///
    /// # Panics
    /// Past the end.
    pub fn get(&self, index: usize) -> Number {
        self.view().get(index)
    }
}

/// Elements of one dtype, borrowed, at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The dtype.
    pub dtype: DType,
    /// The elements, in the machine's byte order.
    pub bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Elements of `dtype` in `bytes`.
    pub fn new(dtype: DType, bytes: &'a [u8]) -> View<'a> {
        View { dtype, bytes }
    }

    /// Whole elements.
    pub fn len(self) -> usize {
        self.bytes.len() / size_of(self.dtype)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The element at an index.
    ///
    /// # Panics
    /// Past the end.
    pub fn get(self, index: usize) -> Number {
        Number::load(self.dtype, &self.bytes[index * size_of(self.dtype)..])
    }

    /// The bytes of the element at an index.
    ///
    /// # Panics
    /// Past the end.
    pub fn element(self, index: usize) -> &'a [u8] {
        &self.bytes[index * size_of(self.dtype)..][..size_of(self.dtype)]
    }

    /// All elements.
    pub fn iter(self) -> impl Iterator<Item = Number> + 'a {
        self.bytes.chunks_exact(size_of(self.dtype)).map(move |b| Number::load(self.dtype, b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_round_once_saturate_and_wrap() {
        let cast = |x: Number, dtype| x.cast(dtype);
        let (int, real) = (Number::Int, Number::Real);
        assert_eq!(cast(int(300), DType::I8), int(44));
        assert_eq!(cast(int(-1), DType::U64), int(u64::MAX.into()));
        assert_eq!(cast(real(-1e30), DType::I8), int(-128));
        assert_eq!(cast(real(1e30), DType::U32), int(u32::MAX.into()));
        assert_eq!(cast(real(-3.9), DType::I64), int(-3));
        assert_eq!(cast(real(f64::NAN), DType::I64), int(0));
        assert_eq!(cast(real(f64::INFINITY), DType::I64), int(i64::MAX.into()));
        assert_eq!(cast(real(f64::NAN), DType::BOOL), Number::Bool(true));
        assert_eq!(cast(Number::Complex(0.0, -1.0), DType::BOOL), Number::Bool(true));
        assert_eq!(cast(Number::Complex(2.5, -1.0), DType::I16), int(2));
        assert_eq!(cast(Number::Bool(true), DType::COMPLEX64), Number::Complex(1.0, 0.0));
        // Just above a tie of bf16 and of f32, which another rounding on the way would hide.
        assert_eq!(cast(int((0x101 << 54) | 1), DType::BF16), real(258.0 * 2f64.powi(54)));
        assert_eq!(cast(int((1 << 60) + (1 << 36) + 1), DType::F32), real(2f64.powi(60) + 2f64.powi(37)));
        assert_eq!(cast(real(1.0 + 2f64.powi(-11) + 2f64.powi(-40)), DType::F16), real(1.0 + 2f64.powi(-10)));
        assert_eq!(cast(real(65520.0), DType::F16), real(f64::INFINITY));
        assert_eq!(cast(real(1e300), DType::COMPLEX64), Number::Complex(f64::INFINITY, 0.0));
    }

    #[test]
    fn every_pattern_of_16_bits_survives() {
        for dtype in [DType::F16, DType::BF16, DType::I16, DType::U16] {
            for bits in 0..=u16::MAX {
                let number = Number::load(dtype, &bits.to_ne_bytes());
                let back = Data::new(dtype, [number]);
                assert!(
                    number.is_nan() && back.get(0).is_nan() || back.bytes == bits.to_ne_bytes(),
                    "{bits:#x}"
                );
            }
        }
    }
}
