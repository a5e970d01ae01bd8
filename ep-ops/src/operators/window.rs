//! Parts of an axis that indices point into.

use super::shape::Around;
use crate::sbp;

/// The part of an axis that a tensor holds, where it does not hold all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The index of its first element.
    pub offset: i64,
    /// The elements of the whole axis.
    pub size: i64,
}

impl Window {
    /// That of one of the parts of an axis that is split.
    pub(super) fn of_part(size: i64, index: usize, parts: usize) -> Window {
        Window { offset: sbp::part(size, index, parts).0, size }
    }

    /// Offset and size for a primitive, of a tensor that may have all of the axis.
    pub(super) fn arguments(window: Option<Window>, around: Around) -> (i64, i64) {
        window.map_or((0, around.size), |window| (window.offset, window.size))
    }
}
