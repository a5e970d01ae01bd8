//! Kernels: pure computation on raw addresses, split over threads by the caller's
//! [`Parallel`](ep_core::parallel::Parallel). Each module has a `lookup` and a list of its rows.

pub mod arange;
pub mod arg_reduce;
pub mod batch_gather;
pub mod batch_matmul;
pub mod binary;
pub mod broadcast_elementwise_unary;
pub mod cast;
#[cfg(test)]
mod check;
mod complex;
pub mod constant_pad;
pub mod copy_nd;
mod elem;
mod engine;
pub mod fill;
pub mod gather;
mod gather_elements;
mod gather_rows;
mod gemm;
mod gemm_int;
mod gemv;
mod groups;
mod lanes;
mod lines;
pub mod log_softmax;
mod math;
pub mod matmul;
pub mod memcpy;
pub mod memset;
mod movement;
mod num;
pub mod one_hot;
pub mod permute;
mod raw;
mod real;
pub mod reduce;
mod rows;
mod runs;
pub mod scatter_add;
mod scatter_runs;
mod sink;
pub mod softmax;
mod special;
mod stream;
mod strided;
pub mod strided_copy;
mod strided_map;
pub mod tensor_fill;
#[cfg(test)]
mod testing;
mod transpose;
pub mod unary;
pub mod where_;
mod window;
