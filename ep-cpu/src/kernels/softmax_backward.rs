//! The gradient of softmax over the columns: `dx = (dy - sum(y * dy)) * y`.

pub use crate::kernels::rows::{BackwardArgs, BackwardFn};
use crate::kernels::rows::{Row, backward_table};
use ep_core::DType;

const TABLE: [Row<BackwardFn>; 16] = backward_table::<false>();

/// The kernel for the dtype of `y` and `dy` and that of `dx`, both of f16, bf16, f32, f64.
pub fn lookup(src: DType, dst: DType) -> Option<BackwardFn> {
    TABLE.iter().find(|row| row.0 == src && row.1 == dst).map(|row| row.2)
}

/// Every (source, destination) that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = (DType, DType)> {
    TABLE.iter().map(|row| (row.0, row.1))
}
