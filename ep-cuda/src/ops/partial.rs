//! Rows cut into parts, so that few long ones fill the device: how many, and where partial results go.

use crate::stream::CudaStream;
use ep_core::{Error, Result};

/// The most bytes of a partial result.
pub(super) const PARTIAL_BYTES: u64 = 16;
/// Neighbours in the last dimension that share a block where there are any.
const COLUMNS: u64 = 32;
/// Blocks for each multiprocessor below which rows are cut, and how many there are then.
const FEW_PER_SM: u64 = 4;
const ENOUGH_PER_SM: u64 = 8;
/// Elements of a part at least.
const PART: u64 = 1024;
const MAX_GRID: u64 = 1 << 30;

/// `[outer, reduced, inner]`, none of `outer` and `inner` 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) outer: u64,
    pub(super) reduced: u64,
    pub(super) inner: u64,
}

impl Sizes {
    /// Checked; `None` where there is nothing to do. `bytes` are those of the larger element.
    ///
    /// # Errors
    /// `InvalidArgument` for more than an address space holds.
    pub(super) fn new(outer: i64, reduced: i64, inner: i64, bytes: u64) -> Result<Option<Sizes>> {
        if outer == 0 || inner == 0 {
            return Ok(None);
        }
        let total =
            outer.checked_mul(reduced.max(1)).and_then(|n| n.checked_mul(inner)?.checked_mul(bytes as i64));
        match total {
            Some(_) => Ok(Some(Sizes { outer: outer as u64, reduced: reduced as u64, inner: inner as u64 })),
            None => Err(Error::invalid(format!(
                "a reduction of [{outer}, {reduced}, {inner}] elements: no address space holds that"
            ))),
        }
    }

    fn columns(self) -> u64 {
        if self.inner > 1 { self.inner.div_ceil(COLUMNS) } else { 1 }
    }

    /// Parts of each row.
    pub(super) fn parts(self, sm_count: u64) -> u64 {
        let lines = self.outer.saturating_mul(self.columns());
        if lines >= sm_count * FEW_PER_SM {
            return 1;
        }
        (sm_count * ENOUGH_PER_SM / lines.max(1)).min(self.reduced / PART).max(1)
    }

    /// Bytes for the partial results of so many parts.
    pub(super) fn workspace(self, parts: u64) -> u64 {
        if parts == 1 { 0 } else { self.outer * parts * self.inner * PARTIAL_BYTES }
    }

    /// Blocks for so many parts; fewer go on to further ones.
    pub(super) fn grid(self, parts: u64) -> u32 {
        self.outer.saturating_mul(parts).saturating_mul(self.columns()).min(MAX_GRID) as u32
    }
}

/// Memory for partial results: the launch's own where it is large enough, else the stream's. None while a graph is
/// recorded, whose replays may run beside other work of the stream.
pub(super) fn workspace(
    stream: &CudaStream,
    given: u64,
    given_bytes: u64,
    bytes: u64,
) -> Result<Option<u64>> {
    let aligned = given.next_multiple_of(PARTIAL_BYTES);
    if given != 0 && given_bytes >= bytes + (aligned - given) {
        return Ok(Some(aligned));
    }
    stream.scratch(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_long_rows_are_cut_to_fill_the_device() {
        let sizes = |outer, reduced, inner| Sizes { outer, reduced, inner };
        let parts = |outer, reduced, inner| sizes(outer, reduced, inner).parts(132);
        assert_eq!(parts(1, 1 << 26, 1), 1056);
        assert_eq!(parts(1, 5000, 1), 4, "parts of 1024 at least");
        assert_eq!((parts(528, 1 << 20, 1), parts(527, 1 << 20, 1)), (1, 2));
        assert_eq!((parts(1, 0, 1), parts(3, 1023, 1)), (1, 1));
        assert_eq!(parts(1, 8192, 8192), 4, "256 columns of blocks");
        // Whatever the sizes, the stream's scratch memory is bounded.
        for (outer, inner) in [(1, 1), (1, 33), (527, 1), (1, 16 * 1024), (20, 700)] {
            let s = sizes(outer, 1 << 30, inner);
            assert!(s.workspace(s.parts(132)) <= 132 * 8 * 32 * PARTIAL_BYTES, "{s:?}");
        }
        assert_eq!(Sizes::new(0, 5, 3, 4).unwrap(), None);
        assert!(Sizes::new(1 << 31, 1 << 31, 4, 4).unwrap_err().message().contains("address space"));
    }
}
