//! Kernels: pure computation on raw addresses, split over threads by the caller's
//! [`Parallel`](ep_core::parallel::Parallel). Each module has a `lookup` and a list of its rows.

pub mod arange;
pub mod arg_reduce;
pub mod batch_gather;
pub mod add;
pub mod batch_matmul;
pub mod binary;
pub mod cast;
#[cfg(test)]
mod check;
mod complex;
pub mod constant_pad;
mod elem;
mod engine;
pub mod fill;
pub mod gather;
mod gather_elements;
mod gather_rows;
mod formula;
mod gemm;
mod gemm_int;
mod gemv;
pub mod log_softmax;
mod math;
pub mod matmul;
pub mod memcpy;
pub mod memset;
mod narrow;
mod num;
pub mod one_hot;
mod operands;
pub mod permute;
mod raw;
mod real;
pub mod reduce;
mod rows;
pub mod scatter_add;
mod scatter_runs;
mod sink;
mod simd;
pub mod softmax;
mod special;
mod stream;
pub mod tensor_fill;
#[cfg(test)]
mod testing;
mod transpose;
pub mod unary;
pub mod where_;
mod window;
