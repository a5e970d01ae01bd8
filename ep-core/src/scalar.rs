//! Numbers that travel as arguments.

use crate::abi::{
    EP_SCALAR_BOOL, EP_SCALAR_COMPLEX, EP_SCALAR_F64, EP_SCALAR_I64, EP_SCALAR_NONE, EP_SCALAR_U64, EpScalar,
};
use crate::{Error, Result};
use std::fmt;

/// A number of any kind, or none.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Scalar {
    /// No value; the receiver's default.
    #[default]
    None,
    /// A truth value.
    Bool(bool),
    /// A signed integer.
    I64(i64),
    /// An unsigned integer.
    U64(u64),
    /// A float.
    F64(f64),
    /// A complex number: real, imaginary.
    Complex(f64, f64),
}

impl Scalar {
    /// The value as a float; the real part of a complex one; 0 for none.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::None => 0.0,
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::I64(i) => i as f64,
            Scalar::U64(u) => u as f64,
            Scalar::F64(f) | Scalar::Complex(f, _) => f,
        }
    }

    /// The imaginary part; 0 unless complex.
    pub fn im(self) -> f64 {
        if let Scalar::Complex(_, im) = self { im } else { 0.0 }
    }

    /// The same value, or `default` for none.
    #[must_use]
    pub fn or(self, default: Scalar) -> Scalar {
        if self == Scalar::None { default } else { self }
    }
}

impl From<Scalar> for EpScalar {
    fn from(s: Scalar) -> EpScalar {
        let (kind, re, im) = match s {
            Scalar::None => (EP_SCALAR_NONE, 0, 0),
            Scalar::Bool(b) => (EP_SCALAR_BOOL, u64::from(b), 0),
            Scalar::I64(i) => (EP_SCALAR_I64, i as u64, 0),
            Scalar::U64(u) => (EP_SCALAR_U64, u, 0),
            Scalar::F64(f) => (EP_SCALAR_F64, f.to_bits(), 0),
            Scalar::Complex(re, im) => (EP_SCALAR_COMPLEX, re.to_bits(), im.to_bits()),
        };
        EpScalar { kind, reserved: 0, re, im }
    }
}

impl TryFrom<EpScalar> for Scalar {
    type Error = Error;

    fn try_from(s: EpScalar) -> Result<Scalar> {
        Ok(match s.kind {
            _ if s.reserved != 0 => return Err(Error::invalid("a scalar's reserved bytes are not zero")),
            EP_SCALAR_NONE => Scalar::None,
            EP_SCALAR_BOOL if s.re <= 1 => Scalar::Bool(s.re == 1),
            EP_SCALAR_I64 => Scalar::I64(s.re as i64),
            EP_SCALAR_U64 => Scalar::U64(s.re),
            EP_SCALAR_F64 => Scalar::F64(f64::from_bits(s.re)),
            EP_SCALAR_COMPLEX => Scalar::Complex(f64::from_bits(s.re), f64::from_bits(s.im)),
            kind => return Err(Error::invalid(format!("a scalar of kind {kind} and value {:#x}", s.re))),
        })
    }
}

macro_rules! from {
    ($($t:ty => $v:ident as $u:ty),*) => {
        $(impl From<$t> for Scalar { fn from(x: $t) -> Scalar { Scalar::$v(<$u>::from(x)) } })*
    };
}
from!(bool => Bool as bool, i32 => I64 as i64, i64 => I64 as i64, u32 => U64 as u64, u64 => U64 as u64,
    f32 => F64 as f64, f64 => F64 as f64);

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::None => f.write_str("none"),
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::I64(i) => write!(f, "{i}"),
            Scalar::U64(u) => write!(f, "{u}"),
            Scalar::F64(x) => write!(f, "{x:?}"),
            Scalar::Complex(re, im) => write!(f, "{re:?}{im:+?}i"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_bad_kinds() {
        let all = [
            Scalar::None,
            Scalar::Bool(true),
            Scalar::I64(-3),
            Scalar::U64(u64::MAX),
            Scalar::F64(-0.5),
            Scalar::Complex(1.0, -2.0),
        ];
        for s in all {
            assert_eq!(Scalar::try_from(EpScalar::from(s)), Ok(s));
        }
        let bad = |kind, reserved, re| Scalar::try_from(EpScalar { kind, reserved, re, im: 0 }).is_err();
        assert!(bad(9, 0, 0) && bad(EP_SCALAR_BOOL, 0, 2) && bad(EP_SCALAR_I64, 1, 0));
    }
}
