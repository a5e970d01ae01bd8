//! Log-softmax over the columns: `x - max - log(sum(exp(x - max)))`.

use crate::kernels::rows::{Row, table};
pub use crate::kernels::rows::{RowsArgs, RowsFn};
use ep_core::DType;

const TABLE: [Row<RowsFn>; 16] = table::<true>();

/// The kernel for a source and a destination dtype, both of f16, bf16, f32, f64.
pub fn lookup(src: DType, dst: DType) -> Option<RowsFn> {
    TABLE.iter().find(|row| row.0 == src && row.1 == dst).map(|row| row.2)
}

/// Every (source, destination) that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = (DType, DType)> {
    TABLE.iter().map(|row| (row.0, row.1))
}
