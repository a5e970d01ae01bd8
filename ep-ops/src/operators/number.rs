//! Numbers that operators have as attributes.

use ep_core::{DType, Scalar};

/// Whether a dtype has this value, or for floats one near it. What a vendor's dtype has is for its provider to say.
pub(crate) fn holds(dtype: DType, scalar: Scalar) -> bool {
    let fractional = dtype.is_float() || [DType::F8E4M3, DType::F8E5M2].contains(&dtype);
    let whole = match scalar {
        Scalar::None => return false,
        _ if dtype.is_complex() || !dtype.is_core() => return true,
        Scalar::Complex(_, im) if im != 0.0 => return false,
        _ if fractional => return true,
        Scalar::Bool(b) => i128::from(b),
        Scalar::I64(i) => i.into(),
        Scalar::U64(u) => u.into(),
        Scalar::F64(x) | Scalar::Complex(x, _) if x.fract() == 0.0 => x as i128,
        Scalar::F64(_) | Scalar::Complex(..) => return false,
    };
    let bits = dtype.bits().unwrap_or(64);
    let (least, most) = match dtype {
        DType::BOOL => (0, 1),
        DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => (0, (1i128 << bits) - 1),
        _ => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
    };
    (least..=most).contains(&whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_held_or_refused() {
        for (dtype, scalar) in [
            (DType::U8, Scalar::I64(255)),
            (DType::I8, Scalar::F64(-128.0)),
            (DType::U64, Scalar::U64(u64::MAX)),
            (DType::I64, Scalar::I64(i64::MIN)),
            (DType::BOOL, Scalar::Bool(true)),
            (DType::F16, Scalar::F64(0.1)),
            (DType::F32, Scalar::F64(f64::NAN)),
            (DType::COMPLEX64, Scalar::Complex(0.0, 1.0)),
            (DType::F32, Scalar::Complex(1.0, 0.0)),
            (DType::F8E4M3, Scalar::F64(0.5)),
            (DType::U4, Scalar::I64(15)),
            (DType(DType::VENDOR_BASE), Scalar::F64(0.5)),
        ] {
            assert!(holds(dtype, scalar), "{dtype} {scalar}");
        }
        for (dtype, scalar) in [
            (DType::U8, Scalar::I64(256)),
            (DType::U8, Scalar::I64(-1)),
            (DType::I8, Scalar::I64(128)),
            (DType::I32, Scalar::F64(0.5)),
            (DType::I32, Scalar::F64(f64::NAN)),
            (DType::I64, Scalar::F64(f64::INFINITY)),
            (DType::BOOL, Scalar::I64(2)),
            (DType::F32, Scalar::Complex(0.0, 1.0)),
            (DType::F32, Scalar::None),
            (DType::F8E5M2, Scalar::Complex(0.0, 1.0)),
            (DType::U4, Scalar::I64(-1)),
            (DType(DType::VENDOR_BASE), Scalar::None),
        ] {
            assert!(!holds(dtype, scalar), "{dtype} {scalar}");
        }
    }
}
