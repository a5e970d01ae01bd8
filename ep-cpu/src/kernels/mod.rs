//! Kernels: pure computation on raw addresses, split over threads by the caller's
//! [`Parallel`](ep_core::parallel::Parallel). Each module has a `lookup` and a list of its rows.

pub mod batch_matmul;
pub mod binary;
pub mod broadcast_matmul;
pub mod cast;
#[cfg(test)]
mod check;
mod complex;
mod elem;
mod engine;
pub mod fill;
mod gemm;
mod gemm_amx;
mod gemm_block;
mod gemm_int;
mod gemm_lanes;
mod gemm_simd;
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
pub mod softmax;
mod special;
mod stream;
#[cfg(test)]
mod testing;
mod transpose;
pub mod unary;
