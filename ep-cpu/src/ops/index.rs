//! Selectors and dtypes of the ops that take indices, as their kernels read them.

use crate::kernels::gather::{IndexMode, IndexType, Indices};
use ep_core::primitive;
use ep_core::{DType, Error, Result};

/// The dtypes of indices.
pub(super) const DTYPES: [DType; 2] = [DType::I32, DType::I64];

/// The selectors of every mode.
pub(super) fn selectors() -> impl Iterator<Item = [u32; 1]> {
    primitive::IndexMode::all().map(|mode| [mode.0])
}

/// How a primitive reads its indices.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) mode: IndexMode,
    stored: IndexType,
}

impl Reading {
    pub(super) fn new(mode: primitive::IndexMode, indices: DType) -> Result<Reading> {
        let mode = match mode {
            primitive::IndexMode::WRAP => IndexMode::Wrap,
            primitive::IndexMode::ZERO => IndexMode::Zero,
            primitive::IndexMode::ERROR => IndexMode::Error,
            other => return Err(Error::unsupported(format!("index mode {}", other.0))),
        };
        let stored = match indices {
            DType::I32 => IndexType::I32,
            DType::I64 => IndexType::I64,
            other => return Err(Error::unsupported(format!("indices of {other}; use i32 or i64"))),
        };
        Ok(Reading { mode, stored })
    }

    /// The indices at an address.
    #[inline]
    pub(super) fn at(self, address: u64) -> Indices {
        Indices { at: super::source(address), stored: self.stored }
    }
}
