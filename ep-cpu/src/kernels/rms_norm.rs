//! RMS norm: each row over its root mean square.

use super::rows::norm_table;
pub use super::rows::{NormArgs, NormFn};
use ep_core::DType;

static ROWS: [(DType, DType, NormFn); 4] = norm_table::<false>();

/// Pairs of a dtype of the elements and one of the statistics.
pub fn rows() -> impl Iterator<Item = (DType, DType)> {
    ROWS.iter().map(|&(data, stats, _)| (data, stats))
}

/// The kernel for a pair of dtypes.
pub fn lookup(data: DType, stats: DType) -> Option<NormFn> {
    ROWS.iter().find(|r| (r.0, r.1) == (data, stats)).map(|r| r.2)
}
