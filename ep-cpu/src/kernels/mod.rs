//! Kernels: pure computation on raw addresses, split over threads by the caller's
//! [`Parallel`](ep_core::parallel::Parallel). Each module has a `lookup` and a list of its rows.

pub mod add;
#[cfg(target_arch = "x86_64")]
mod amx;
pub mod arange;
pub mod arg_reduce;
pub mod batch_gather;
pub mod batch_matmul;
pub mod binary;
pub mod broadcast_elementwise_unary;
pub mod broadcast_matmul;
pub mod cast;
#[cfg(test)]
mod check;
mod complex;
pub mod constant_pad;
pub mod copy_nd;
mod elem;
mod engine;
pub mod fill;
mod formula;
pub mod gather;
mod gather_elements;
mod gather_rows;
mod gemm;
mod gemm_bf16;
#[cfg(target_arch = "x86_64")]
mod gemm_bf16_pack;
#[cfg(target_arch = "x86_64")]
mod gemm_bf16_piece;
mod gemm_block;
mod gemm_dots;
mod gemm_int;
mod gemm_lanes;
mod gemm_micro;
mod gemm_pack;
mod gemm_plan;
#[cfg(target_arch = "x86_64")]
mod gemm_prepack;
mod gemm_room;
mod gemm_simd;
mod gemm_small;
#[cfg(target_arch = "x86_64")]
mod gemm_split;
#[cfg(target_arch = "x86_64")]
mod gemm_split_pack;
#[cfg(target_arch = "x86_64")]
mod gemm_split_piece;
#[cfg(target_arch = "x86_64")]
mod gemm_split_range;
mod gemm_stored;
#[cfg(target_arch = "x86_64")]
mod gemm_written;
mod gemv;
mod gemv_complex;
mod gemv_int;
mod grouped;
mod groups;
#[cfg(target_arch = "x86_64")]
mod in_step;
mod lanes;
pub mod layer_norm;
mod lines;
pub mod log_softmax;
pub mod log_softmax_backward;
mod math;
pub mod matmul;
pub mod memcpy;
pub mod memset;
mod movement;
mod narrow;
mod num;
pub mod one_hot;
mod operands;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
pub(crate) mod parts;
pub mod permute;
mod raw;
mod real;
pub mod reduce;
pub mod rms_norm;
mod rows;
mod runs;
pub mod scatter_add;
mod scatter_runs;
mod scatter_sums;
mod simd;
mod sink;
pub mod softmax;
pub mod softmax_backward;
mod special;
#[cfg(target_arch = "x86_64")]
mod squares;
mod stage;
pub(crate) mod stream;
mod strided;
pub mod strided_copy;
mod strided_map;
pub mod tensor_fill;
#[cfg(test)]
mod testing;
mod tile;
mod transpose;
mod transpose_plan;
pub mod unary;
pub mod where_;
mod window;
