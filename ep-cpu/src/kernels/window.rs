//! Indices into an axis of which only a window is at hand: what the gathers, their backward and `one_hot` share.

use ep_core::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What becomes of an index outside `0..size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexMode {
    /// From `-size` on it counts from the end; others are errors.
    Wrap,
    /// It names no row: zeros, the off value, or no addition.
    Zero,
    /// It is an error.
    Error,
}

/// The integers that indices are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexType {
    /// `i32`.
    I32,
    /// `i64`.
    I64,
}

/// An integer that an index is stored as.
pub(super) trait Index: Copy + Into<i64> {
    /// Its name.
    const STORED: IndexType;
}

impl Index for i32 {
    const STORED: IndexType = IndexType::I32;
}

impl Index for i64 {
    const STORED: IndexType = IndexType::I64;
}

/// A dense list of indices.
#[derive(Clone, Copy, Debug)]
pub struct Indices {
    /// Its address; any alignment.
    pub at: *const u8,
    /// How they are stored.
    pub stored: IndexType,
}

// SAFETY: the list is only read, by those who know that it is readable.
unsafe impl Sync for Indices {}

impl Indices {
    /// The index at `position`.
    ///
    /// # Safety
    /// The list is readable there.
    #[inline(always)]
    pub(super) unsafe fn get(self, position: usize) -> i64 {
        // SAFETY: the caller's promise.
        unsafe {
            match self.stored {
                IndexType::I32 => self.at.cast::<i32>().add(position).read_unaligned().into(),
                IndexType::I64 => self.at.cast::<i64>().add(position).read_unaligned(),
            }
        }
    }

    /// As [`Indices::get`] where the caller knows how they are stored.
    ///
    /// # Safety
    /// The list is readable there and its indices are stored as `I`.
    #[inline(always)]
    pub(super) unsafe fn get_as<I: Index>(self, position: usize) -> i64 {
        debug_assert_eq!(self.stored, I::STORED);
        // SAFETY: the caller's promise.
        unsafe { self.at.cast::<I>().add(position).read_unaligned().into() }
    }

    /// The list from `position` on.
    #[inline]
    pub(super) fn skip(self, position: usize) -> Indices {
        let size = match self.stored {
            IndexType::I32 => 4,
            IndexType::I64 => 8,
        };
        Indices { at: self.at.wrapping_add(position.wrapping_mul(size)), ..self }
    }
}

/// The part of an axis that is at hand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    offset: usize,
    extent: usize,
    size: usize,
    mode: IndexMode,
}

/// No row of the window.
pub(super) const NONE: usize = usize::MAX;

impl Window {
    /// The window `offset..offset + extent` of an axis of `size`; 0 stands for an axis that ends with the window.
    ///
    /// # Errors
    /// `InvalidArgument` if the axis is too short, or longer than an `i64` counts.
    pub(super) fn new(offset: usize, extent: usize, size: usize, mode: IndexMode) -> Result<Window> {
        let end = offset.checked_add(extent).filter(|&end| i64::try_from(end.max(size)).is_ok());
        match end {
            Some(end) if size == 0 || end <= size => {
                Ok(Window { offset, extent, size: if size == 0 { end } else { size }, mode })
            }
            _ => Err(Error::invalid(format!(
                "a window of {extent} from offset {offset} is not within an axis of size {size}"
            ))),
        }
    }

    /// Where it starts on the axis.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Rows at hand.
    pub(super) fn extent(&self) -> usize {
        self.extent
    }

    /// The row of the window that `index` names, [`NONE`] for one elsewhere or nowhere. An index that is an
    /// error goes to `bad` with its `position`.
    #[inline(always)]
    pub(super) fn row(&self, index: i64, position: usize, bad: &Bad) -> usize {
        // The window lies within an axis of at most `i64::MAX`: other indices become large numbers.
        let row = (index as u64).wrapping_sub(self.offset as u64);
        if row < self.extent as u64 { row as usize } else { self.unusual(index, position, bad) }
    }

    /// The row of the window that `index` names if it is a usual one, or some number.
    #[inline(always)]
    pub(super) fn guess(&self, index: i64) -> usize {
        (index as usize).wrapping_sub(self.offset)
    }

    #[inline(never)]
    fn unusual(&self, index: i64, position: usize, bad: &Bad) -> usize {
        let size = self.size as i64;
        let logical =
            if self.mode == IndexMode::Wrap && index < 0 { index.saturating_add(size) } else { index };
        if !(0..size).contains(&logical) {
            if self.mode != IndexMode::Zero {
                bad.note(position);
            }
            return NONE;
        }
        let row = (logical as usize).wrapping_sub(self.offset);
        if row < self.extent { row } else { NONE }
    }

    /// Checks `count` indices that nothing is done with.
    ///
    /// # Errors
    /// As for [`Window::check`].
    ///
    /// # Safety
    /// `indices` is readable for as many.
    #[cold]
    pub(super) unsafe fn check_all(&self, indices: Indices, count: usize) -> Result<()> {
        let bad = Bad::new();
        for position in 0..count {
            // SAFETY: the caller's promise.
            self.row(unsafe { indices.get(position) }, position, &bad);
        }
        // SAFETY: the caller's promise.
        unsafe { self.check(&bad, indices) }
    }

    /// The error for the first index noted, if there is one.
    ///
    /// # Errors
    /// `InvalidArgument` naming its position and value.
    ///
    /// # Safety
    /// `indices` are those whose positions were noted.
    pub(super) unsafe fn check(&self, bad: &Bad, indices: Indices) -> Result<()> {
        match bad.0.load(Ordering::Relaxed) {
            NONE => Ok(()),
            // SAFETY: the caller's promise.
            position => Err(self.error(position, unsafe { indices.get(position) })),
        }
    }

    #[cold]
    fn error(&self, position: usize, index: i64) -> Error {
        let size = self.size;
        let from = if self.mode == IndexMode::Wrap { -(size as i64) } else { 0 };
        Error::invalid(format!(
            "index {index} at position {position} is out of range: it must be in {from}..{size}"
        ))
    }
}

/// The position of the first index that is an error, whichever thread comes to it.
pub(super) struct Bad(AtomicUsize);

impl Bad {
    pub(super) fn new() -> Bad {
        Bad(AtomicUsize::new(NONE))
    }

    fn note(&self, position: usize) {
        self.0.fetch_min(position, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kernels::testing::Rng;
    use ep_core::DType;
    use std::ops::Range;

    /// The mode's name in the schema.
    pub(in crate::kernels) fn name(mode: IndexMode) -> &'static str {
        match mode {
            IndexMode::Wrap => "wrap",
            IndexMode::Zero => "zero",
            IndexMode::Error => "error",
        }
    }

    pub(in crate::kernels) fn stored(wide: bool) -> IndexType {
        if wide { IndexType::I64 } else { IndexType::I32 }
    }

    /// Random indices of an axis, mostly of the window; now and then any number if `wild`.
    pub(in crate::kernels) fn indices(
        rng: &mut Rng,
        n: usize,
        axis: usize,
        window: Range<usize>,
        mode: IndexMode,
        wild: bool,
    ) -> Vec<i64> {
        (0..n)
            .map(|_| {
                let of = |rng: &mut Rng, range: Range<usize>| {
                    range.start as i64 + (rng.next() % range.len().max(1) as u64) as i64
                };
                match rng.next() % 64 {
                    0 if wild => rng.next() as i64 >> (rng.next() % 64),
                    0..8 if mode == IndexMode::Wrap => of(rng, 0..axis) - axis as i64,
                    8..16 => of(rng, 0..axis),
                    _ => of(rng, window.clone()),
                }
            })
            .collect()
    }

    /// Indices as stored, cut to 32 bits if not `wide`, and their dtype.
    pub(in crate::kernels) fn store(indices: &[i64], wide: bool) -> (Vec<u8>, DType) {
        if wide {
            (indices.iter().flat_map(|i| i.to_ne_bytes()).collect(), DType::I64)
        } else {
            (indices.iter().flat_map(|&i| (i as i32).to_ne_bytes()).collect(), DType::I32)
        }
    }

    /// Asserts that a kernel's error is the reference's: the same code, index and position.
    #[track_caller]
    pub(in crate::kernels) fn same_error(got: &Result<()>, want: &Error) {
        let e = got.as_ref().unwrap_err();
        assert_eq!(e.code(), want.code(), "{e}");
        let (_, from_index) = want.message().split_once("index ").unwrap();
        let (names_it, _) = from_index.split_once(" is outside").unwrap();
        assert!(e.message().contains(&format!("index {names_it} is out of range")), "{e} for {want}");
    }
}
