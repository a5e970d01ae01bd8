//! The factors alpha and beta, in the type that sums are computed in.

use ep_core::{DType, Error, Result, Scalar};

/// A factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Factor {
    /// Its bits, in the first bytes.
    pub(super) words: [u64; 2],
    /// Whether it is 0, in that type.
    pub(super) is_zero: bool,
    /// Whether it is 1.
    pub(super) is_one: bool,
}

impl Factor {
    /// 0.
    pub(super) const ZERO: Factor = Factor { words: [0; 2], is_zero: true, is_one: false };

    /// The argument `name` of a product of `dtype`; `default` where it is none.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that the dtype cannot hold.
    pub(super) fn of(name: &str, scalar: Scalar, default: i64, dtype: DType) -> Result<Factor> {
        let scalar = if scalar == Scalar::None { Scalar::I64(default) } else { scalar };
        if !dtype.is_complex() && scalar.im() != 0.0 {
            return Err(Error::invalid(format!(
                "`{name}` is {scalar}, but {dtype} is real; leave the imaginary part 0"
            )));
        }
        if dtype.is_int() {
            let value = whole(scalar).filter(|value| fits(*value, dtype)).ok_or_else(|| {
                Error::invalid(format!(
                    "`{name}` is {scalar}, which {dtype} cannot hold; give a whole number in its range"
                ))
            })?;
            return Ok(Factor { words: [value as u64, 0], is_zero: value == 0, is_one: value == 1 });
        }
        let (re, im) = (scalar.as_f64(), scalar.im());
        let single = |x: f64| u64::from((x as f32).to_bits());
        let rounded = |x: f64| f64::from(x as f32);
        let (words, re, im) = match dtype {
            DType::F64 => ([re.to_bits(), 0], re, 0.0),
            DType::COMPLEX128 => ([re.to_bits(), im.to_bits()], re, im),
            DType::COMPLEX64 => ([single(re) | (single(im) << 32), 0], rounded(re), rounded(im)),
            _ => ([single(re), 0], rounded(re), 0.0),
        };
        Ok(Factor { words, is_zero: re == 0.0 && im == 0.0, is_one: re == 1.0 && im == 0.0 })
    }
}

/// The value of a scalar that is a whole number.
fn whole(scalar: Scalar) -> Option<i128> {
    match scalar {
        Scalar::Bool(x) => Some(x.into()),
        Scalar::I64(x) => Some(x.into()),
        Scalar::U64(x) => Some(x.into()),
        Scalar::F64(x) | Scalar::Complex(x, _) => {
            (x.trunc() == x && x.abs() < 2f64.powi(100)).then_some(x as i128)
        }
        _ => None,
    }
}

fn fits(value: i128, dtype: DType) -> bool {
    let bits = 8 * dtype.bytes_for_bounds() as u32;
    let unsigned = [DType::U8, DType::U16, DType::U32, DType::U64].contains(&dtype);
    let (least, end) =
        if unsigned { (0, 1i128 << bits) } else { (-(1i128 << (bits - 1)), 1i128 << (bits - 1)) };
    (least..end).contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    #[test]
    fn factors_are_bits_of_the_type_of_sums() {
        let of = |scalar, dtype| Factor::of("alpha", scalar, 1, dtype).unwrap();
        assert_eq!(of(Scalar::None, DType::F16).words, [u64::from(1f32.to_bits()), 0]);
        assert_eq!(of(Scalar::I64(-2), DType::I8).words[0] as u8, 0xfe);
        assert_eq!(of(Scalar::U64(u64::MAX), DType::U64).words, [u64::MAX, 0]);
        let complex = of(Scalar::Complex(1.0, -2.0), DType::COMPLEX64);
        assert_eq!(complex.words, [u64::from(1f32.to_bits()) | (u64::from((-2f32).to_bits()) << 32), 0]);
        let complex = of(Scalar::Complex(0.5, 2.0), DType::COMPLEX128);
        assert_eq!(complex.words, [0.5f64.to_bits(), 2f64.to_bits()]);
        assert!(of(Scalar::F64(1e-60), DType::F32).is_zero, "it is 0 in f32");
        assert!(
            !of(Scalar::F64(1e-60), DType::F64).is_zero && !of(Scalar::F64(f64::NAN), DType::F32).is_zero
        );
        assert!(of(Scalar::None, DType::I32).is_one && of(Scalar::Bool(true), DType::COMPLEX64).is_one);
        assert!(!of(Scalar::Complex(1.0, 1.0), DType::COMPLEX64).is_one);
        assert_eq!(Factor::of("beta", Scalar::None, 0, DType::F64), Ok(Factor::ZERO));
    }

    #[test]
    fn what_a_dtype_cannot_hold_is_refused() {
        let refused = |scalar, dtype| {
            let error = Factor::of("beta", scalar, 0, dtype).unwrap_err();
            assert!(error.code() == Code::InvalidArgument && error.message().contains("`beta`"), "{error}");
        };
        for scalar in
            [Scalar::F64(0.5), Scalar::F64(f64::NAN), Scalar::I64(128), Scalar::I64(-129), Scalar::F64(1e30)]
        {
            refused(scalar, DType::I8);
        }
        refused(Scalar::I64(-1), DType::U32);
        refused(Scalar::Complex(0.0, 1.0), DType::F32);
        refused(Scalar::Complex(1.0, 1.0), DType::I32);
        assert!(Factor::of("beta", Scalar::I64(-128), 0, DType::I8).is_ok());
    }
}
