//! What the ops that take indices share: modes, windows of an axis, and where refused indices are told.

use super::nd::FastDiv;
use crate::compiler::Spec;
use crate::refusal::Refused;
use crate::stream::CudaStream;
use ep_core::primitive::IndexMode;
use ep_core::{DType, Error, Result};

/// The dtypes of indices.
pub(super) const DTYPES: [DType; 2] = [DType::I32, DType::I64];

/// The modes, as the kernels call them.
pub(super) const MODES: [(IndexMode, &str); 3] =
    [(IndexMode::WRAP, "wrap"), (IndexMode::ZERO, "zero"), (IndexMode::ERROR, "error")];

/// The selectors of every mode.
pub(super) fn selectors() -> impl Iterator<Item = [u32; 1]> {
    MODES.into_iter().map(|(mode, _)| [mode.0])
}

/// Indices with each of some dtypes.
pub(super) fn with_indices(data: &[DType]) -> Vec<[DType; 2]> {
    super::pairs(&DTYPES, data)
}

/// How indices are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) mode: IndexMode,
    pub(super) indices: DType,
}

impl Reading {
    /// Every one.
    pub(super) fn all() -> impl Iterator<Item = Reading> {
        MODES.into_iter().flat_map(|(mode, _)| DTYPES.map(|indices| Reading { mode, indices }))
    }

    /// The macros of indices.cuh.
    pub(super) fn specialise(self, spec: Spec) -> Spec {
        let name = MODES.iter().find(|(mode, _)| *mode == self.mode).map_or("", |(_, name)| name);
        spec.with("EP_MODE", name).with("EP_INDICES", super::dtype_name(self.indices))
    }
}

/// `Window` of indices.cuh: the part of an axis that is at hand.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    offset: i64,
    length: i64,
    size: i64,
}

impl Window {
    /// The window `offset..offset + length` of an axis of `size`; 0 stands for an axis that ends with the window.
    ///
    /// # Errors
    /// `InvalidArgument` if the axis is too short, or longer than an `i64` counts.
    pub(super) fn new(offset: i64, length: i64, size: i64) -> Result<Window> {
        match offset.checked_add(length) {
            Some(end) if size == 0 || end <= size => {
                Ok(Window { offset, length, size: if size == 0 { end } else { size } })
            }
            _ => Err(Error::invalid(format!(
                "a window of {length} from offset {offset} is not within an axis of size {size}"
            ))),
        }
    }
}

/// Where a launch tells of a refused index: an address and the launch's number, for the kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    error: u64,
    launch: u64,
}

impl Report {
    /// Of a launch of the op `name` on a stream. Mode `zero` refuses nothing.
    pub(super) fn of(
        stream: &CudaStream,
        name: &'static str,
        mode: IndexMode,
        window: Window,
    ) -> Result<Report> {
        if mode == IndexMode::ZERO {
            return Ok(Report { error: 0, launch: 0 });
        }
        let from = if mode == IndexMode::WRAP { -window.size } else { 0 };
        let (error, launch) = stream.refusals(Refused { name, from, to: window.size })?;
        Ok(Report { error, launch: launch.into() })
    }
}

/// The product of some sizes, 0 included.
///
/// # Errors
/// `InvalidArgument`, with what `about` says, where they are more than an address space holds, were every 0 a 1.
pub(super) fn product(sizes: &[i64], about: impl FnOnce() -> String) -> Result<u64> {
    // A zero must not hide that other sizes are too large.
    let product = sizes.iter().try_fold(1i64, |p, n| p.checked_mul((*n).max(1)));
    match product {
        Some(p) => Ok(if sizes.contains(&0) { 0 } else { p as u64 }),
        None => Err(Error::invalid(format!("{}: no address space holds that", about()))),
    }
}

/// A divider by a size.
pub(super) fn divider(size: i64) -> FastDiv {
    FastDiv::new(size as u64)
}
