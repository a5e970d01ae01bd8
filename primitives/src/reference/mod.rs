//! Slow and obviously right versions, in `f64`, which tests and the conformance kit compare with.

mod matmul;
mod permute;
mod softmax;

pub use matmul::{MatmulShape, matmul, matmul_wrapping};
pub use permute::permute;
pub use softmax::{log_softmax, softmax};
