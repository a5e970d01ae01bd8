//! Scalar arguments, as the contracts read them.

use ep_core::{DType, Error, Result, Scalar};
use primitives::reference::Number;

/// The bytes of one element of any dtype, first in the array; the rest is zero.
pub(super) type Element = [u8; 16];

/// A scalar as an element of one of [`DType::ALL`], converted as `cast` converts; an error, which calls the argument
/// `name`, where there is no value.
pub(super) fn element(name: &str, scalar: Scalar, dtype: DType) -> Result<Element> {
    let number = Number::from_scalar(scalar).ok_or_else(|| no_value(name))?;
    let mut bytes = [0; 16];
    number.store(dtype, &mut bytes);
    Ok(bytes)
}

/// An element as the two words that kernels take.
pub(super) fn words(element: Element) -> [u64; 2] {
    let (words, _) = element.as_chunks::<8>();
    [0, 1].map(|i| u64::from_ne_bytes(words[i]))
}

#[cold]
fn no_value(name: &str) -> Error {
    Error::invalid(format!("`{name}` is none; give a value"))
}

/// A whole number modulo 256.
pub(super) fn byte(name: &str, scalar: Scalar) -> Result<u8> {
    match scalar {
        Scalar::None => Err(no_value(name)),
        Scalar::Bool(x) => Ok(u8::from(x)),
        Scalar::I64(x) => Ok(x as u8),
        Scalar::U64(x) => Ok(x as u8),
        Scalar::F64(x) if x.trunc() == x && x.is_finite() => Ok(x.rem_euclid(256.0) as u8),
        other => Err(Error::invalid(format!("`{name}` is {other}; it must be a whole number"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    #[test]
    fn elements_convert_as_cast_does() {
        let first = |dtype, scalar| element("value", scalar, dtype).unwrap();
        assert_eq!(first(DType::I8, Scalar::F64(-1e9))[..2], [0x80, 0]);
        assert_eq!(first(DType::F32, Scalar::Complex(1.5, 7.0))[..4], 1.5f32.to_ne_bytes());
        let complex = first(DType::COMPLEX128, Scalar::Complex(-0.0, 2.5));
        assert_eq!((&complex[..8], &complex[8..]), (&(-0.0f64).to_ne_bytes()[..], &2.5f64.to_ne_bytes()[..]));
        let error = element("value", Scalar::None, DType::F32).unwrap_err();
        assert!(error.code() == Code::InvalidArgument && error.message().contains("`value`"), "{error}");
    }

    #[test]
    fn bytes_wrap_and_must_be_whole() {
        let ok = |s| byte("value", s).unwrap();
        assert_eq!((ok(Scalar::I64(-1)), ok(Scalar::I64(-257)), ok(Scalar::U64(513))), (255, 255, 1));
        assert_eq!((ok(Scalar::F64(-2.0)), ok(Scalar::F64(300.0)), ok(Scalar::Bool(true))), (254, 44, 1));
        for bad in [Scalar::None, Scalar::F64(0.5), Scalar::F64(f64::NAN), Scalar::Complex(1.0, 0.0)] {
            assert_eq!(byte("value", bad).unwrap_err().code(), Code::InvalidArgument, "{bad}");
        }
    }
}
