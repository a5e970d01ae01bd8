//! Parts of an axis that indices point into.

use super::shape::Around;
use crate::{Sbp, Signature, Spec, sbp};

/// The part of an axis that a tensor holds, where it does not hold all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The index of its first element.
    pub offset: i64,
    /// The elements of the whole axis.
    pub size: i64,
}

impl Window {
    /// That of one of the parts of a tensor that is split, which may itself have a part of the axis.
    pub(super) fn of_part(outer: Option<Window>, length: i64, index: usize, parts: usize) -> Window {
        let outer = outer.unwrap_or(Window { offset: 0, size: length });
        Window { offset: outer.offset + sbp::part(length, index, parts).0, ..outer }
    }

    /// That of a device's part of the first input, where the signature splits its axis.
    pub(super) fn of_shard(
        outer: Option<Window>,
        input: &Spec,
        axis: i64,
        signature: &Signature,
        index: usize,
        devices: usize,
    ) -> Option<Window> {
        let axis = input.dim(axis).ok()?;
        let splits = signature.inputs[0] == Sbp::Split(axis);
        splits.then(|| Window::of_part(outer, input.shape[axis], index, devices))
    }

    /// Offset and size for a primitive, of a tensor that may have all of the axis.
    pub(super) fn arguments(window: Option<Window>, around: Around) -> (i64, i64) {
        window.map_or((0, around.size), |window| (window.offset, window.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_part_are_parts_of_the_axis() {
        let of = |outer, length| [0, 1, 2].map(|i| Window::of_part(outer, length, i, 3));
        let window = |offset, size| Window { offset, size };
        assert_eq!(of(None, 8), [window(0, 8), window(3, 8), window(6, 8)]);
        assert_eq!(of(Some(window(4, 20)), 8), [window(4, 20), window(7, 20), window(10, 20)]);
    }
}
