//! Scalar arguments, as the contracts read them.

use super::unclaimed;
use crate::isa::Isa;
use crate::kernels::cast;
use crate::kernels::unary::{UnaryArgs, UnaryKernel};
use ep_core::abi::{EP_SCALAR_NONE, EpScalar};
use ep_core::parallel::Serial;
use ep_core::primitive::Cast;
use ep_core::{DType, Error, Result, Scalar};

/// The bytes of one element of any dtype, first in the array.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Element(pub(super) [u8; 16]);

impl Element {
    fn new<const N: usize>(bytes: [u8; N]) -> Element {
        let mut element = Element([0; 16]);
        element.0[..N].copy_from_slice(&bytes);
        element
    }
}

impl Element {
    /// Its first and its last 8 bytes.
    pub(super) fn halves(self) -> [[u8; 8]; 2] {
        [0, 8].map(|start| std::array::from_fn(|i| self.0[start + i]))
    }
}

/// Turns scalars into elements of one dtype as `cast` does, with its kernels.
pub(super) struct Converter {
    bool: UnaryKernel,
    i64: UnaryKernel,
    u64: UnaryKernel,
    f64: UnaryKernel,
    complex: UnaryKernel,
}

impl Converter {
    /// Fails for dtypes outside [`DType::ALL`].
    pub(super) fn new(dtype: DType) -> Result<Converter> {
        let from = |src| cast::lookup(src, dtype).ok_or_else(|| unclaimed::<Cast>(&[src, dtype]));
        Ok(Converter {
            bool: from(DType::BOOL)?,
            i64: from(DType::I64)?,
            u64: from(DType::U64)?,
            f64: from(DType::F64)?,
            complex: from(DType::COMPLEX128)?,
        })
    }

    /// The element; an error, which calls the argument `name`, where there is no value.
    pub(super) fn element(&self, name: &str, scalar: EpScalar) -> Result<Element> {
        let (kernel, src) = match Scalar::try_from(scalar)? {
            Scalar::None => return Err(no_value(name)),
            Scalar::Bool(x) => (&self.bool, Element::new([u8::from(x)])),
            Scalar::I64(x) => (&self.i64, Element::new(x.to_ne_bytes())),
            Scalar::U64(x) => (&self.u64, Element::new(x.to_ne_bytes())),
            Scalar::F64(x) => (&self.f64, Element::new(x.to_ne_bytes())),
            Scalar::Complex(re, im) => {
                let mut src = Element::new(re.to_ne_bytes());
                src.0[8..].copy_from_slice(&im.to_ne_bytes());
                (&self.complex, src)
            }
        };
        let mut dst = Element([0; 16]);
        let args = UnaryArgs { count: 1, src: src.0.as_ptr(), dst: dst.0.as_mut_ptr(), attr: [0.0; 2] };
        // SAFETY: both sides hold 16 bytes at a multiple of 16, enough for an element of any dtype.
        unsafe { kernel.launch(Isa::BASELINE, &Serial, &args) }?;
        Ok(dst)
    }
}

/// The element of `scalar`, or `default` if there is none.
pub(super) fn or_default(
    convert: &Converter,
    name: &str,
    scalar: EpScalar,
    default: Element,
) -> Result<Element> {
    if scalar.kind == EP_SCALAR_NONE { Ok(default) } else { convert.element(name, scalar) }
}

#[cold]
fn no_value(name: &str) -> Error {
    Error::invalid(format!("`{name}` is none; give a value"))
}

/// A whole number modulo 256.
pub(super) fn byte(name: &str, scalar: EpScalar) -> Result<u8> {
    match Scalar::try_from(scalar)? {
        Scalar::None => Err(no_value(name)),
        Scalar::Bool(x) => Ok(u8::from(x)),
        Scalar::I64(x) => Ok(x as u8),
        Scalar::U64(x) => Ok(x as u8),
        Scalar::F64(x) if x.trunc() == x && x.is_finite() => Ok(x.rem_euclid(256.0) as u8),
        other => Err(Error::invalid(format!("`{name}` is {other}; it must be a whole number"))),
    }
}

/// A factor of a matrix product in `dtype`: real and imaginary part.
///
/// Floating-point factors are rounded as needed; one of an integer product must be exact, since a wrong factor
/// is no small error there.
pub(super) fn factor(name: &str, scalar: EpScalar, default: f64, dtype: DType) -> Result<(f64, f64)> {
    let scalar = Scalar::try_from(scalar)?;
    let exact = match scalar {
        Scalar::None => return Ok((default, 0.0)),
        Scalar::I64(x) => x as f64 as i128 == i128::from(x),
        Scalar::U64(x) => x as f64 as u128 == u128::from(x),
        Scalar::Bool(_) | Scalar::F64(_) | Scalar::Complex(..) => true,
    };
    if dtype.is_int() && !exact {
        return Err(Error::unsupported(format!(
            "`{name}` is {scalar}; factors of integer products have at most 53 bits"
        )));
    }
    Ok((scalar.as_f64(), scalar.im()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    fn element<const N: usize>(dtype: DType, scalar: Scalar) -> [u8; N] {
        let element = Converter::new(dtype).unwrap().element("value", scalar.into()).unwrap();
        element.0[..N].try_into().unwrap()
    }

    #[test]
    fn elements_convert_as_cast_does() {
        assert_eq!(element(DType::I8, Scalar::F64(-1e9)), (-128i8).to_ne_bytes());
        assert_eq!(element(DType::I8, Scalar::I64(300)), 44i8.to_ne_bytes());
        assert_eq!(element(DType::U64, Scalar::U64(u64::MAX)), [0xff; 8]);
        assert_eq!(element(DType::I64, Scalar::I64(i64::MIN + 1)), (i64::MIN + 1).to_ne_bytes());
        assert_eq!(element(DType::U32, Scalar::F64(f64::NAN)), [0; 4]);
        assert_eq!(element(DType::BOOL, Scalar::F64(f64::NAN)), [1]);
        assert_eq!(element(DType::BOOL, Scalar::Complex(0.0, -0.5)), [1]);
        assert_eq!(element(DType::F32, Scalar::Complex(1.5, 7.0)), 1.5f32.to_ne_bytes());
        assert_eq!(element(DType::F16, Scalar::F64(1e9)), half::f16::INFINITY.to_ne_bytes());
        assert_eq!(element(DType::BF16, Scalar::Bool(true)), half::bf16::ONE.to_ne_bytes());
        let complex: [u8; 16] = element(DType::COMPLEX128, Scalar::Complex(-0.0, 2.5));
        assert_eq!((&complex[..8], &complex[8..]), (&(-0.0f64).to_ne_bytes()[..], &2.5f64.to_ne_bytes()[..]));
        let e = Converter::new(DType::F32).unwrap().element("scalar0", Scalar::None.into()).map(|e| e.0);
        assert!(e.unwrap_err().message().contains("scalar0"));
        assert_eq!(Converter::new(DType::I4).map(drop).unwrap_err().code(), Code::Unsupported);
    }

    #[test]
    fn bytes_wrap_and_must_be_whole() {
        let ok = |s: Scalar| byte("value", s.into()).unwrap();
        assert_eq!((ok(Scalar::I64(-1)), ok(Scalar::I64(-257)), ok(Scalar::U64(513))), (255, 255, 1));
        assert_eq!((ok(Scalar::F64(-2.0)), ok(Scalar::F64(300.0)), ok(Scalar::Bool(true))), (254, 44, 1));
        for bad in [Scalar::None, Scalar::F64(0.5), Scalar::F64(f64::NAN), Scalar::Complex(1.0, 0.0)] {
            assert_eq!(byte("value", bad.into()).unwrap_err().code(), Code::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn factors_default_and_stay_exact() {
        let of = |s: Scalar, dtype| factor("alpha", s.into(), 1.0, dtype);
        assert_eq!(of(Scalar::None, DType::F32), Ok((1.0, 0.0)));
        assert_eq!(of(Scalar::Complex(2.0, -3.0), DType::COMPLEX64), Ok((2.0, -3.0)));
        assert_eq!(of(Scalar::I64(1 << 53), DType::I64), Ok((9_007_199_254_740_992.0, 0.0)));
        assert_eq!(of(Scalar::I64(i64::MAX), DType::F64), Ok((i64::MAX as f64, 0.0)));
        for odd in [Scalar::I64((1 << 53) + 1), Scalar::I64(i64::MAX), Scalar::U64(u64::MAX)] {
            let e = of(odd, DType::I64).unwrap_err();
            assert!(e.code() == Code::Unsupported && e.message().contains(&odd.to_string()), "{e}");
        }
    }
}
