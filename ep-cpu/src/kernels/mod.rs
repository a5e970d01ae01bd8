//! Kernels: pure computation on raw addresses, split over threads by the caller's
//! [`Parallel`](ep_core::parallel::Parallel). Each module has a `lookup` and a list of its rows.

pub mod batch_matmul;
pub mod binary;
pub mod cast;
#[cfg(test)]
mod check;
mod complex;
mod elem;
mod engine;
pub mod fill;
mod formula;
mod gemm;
mod gemm_int;
mod gemv;
pub mod log_softmax;
mod math;
pub mod matmul;
pub mod memcpy;
pub mod memset;
mod num;
pub mod permute;
mod raw;
mod real;
mod rows;
mod simd;
pub mod softmax;
mod special;
mod stream;
#[cfg(test)]
mod testing;
mod transpose;
pub mod unary;
