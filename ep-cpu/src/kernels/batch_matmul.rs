//! Batched matmul: independent products of matrices that lie one after the other.

use crate::isa::Isa;
use crate::kernels::broadcast_matmul::{BroadcastMatmulFn, broadcast};
use crate::kernels::elem::Complex;
use crate::kernels::gemm::{Element, Loop};
use crate::kernels::matmul::{self, MatmulArgs, MatmulFn};
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
use half::{bf16, f16};

/// Arguments of a [`BatchMatmulFn`].
#[derive(Clone, Copy, Debug)]
pub struct BatchMatmulArgs {
    /// How many products.
    pub batch: usize,
    /// The first product; the matrices of the others follow without gaps.
    pub each: MatmulArgs,
}

/// Multiplies `batch` pairs of matrices, each as [`MatmulFn`] does.
///
/// # Errors
/// As for [`MatmulFn`].
///
/// # Safety
/// As for [`MatmulFn`], for all matrices of the batch.
pub type BatchMatmulFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &BatchMatmulArgs) -> Result<()>;

pub(super) struct Row {
    pub(super) dtype: DType,
    pub(super) single: MatmulFn,
    pub(super) batched: BatchMatmulFn,
    pub(super) broadcast: BroadcastMatmulFn,
}

const fn row<T: Element>(dtype: DType) -> Row {
    Row { dtype, single: matmul::single::<T>, batched: batched::<T>, broadcast: broadcast::<T> }
}

pub(super) const TABLE: [Row; 14] = [
    row::<i8>(DType::I8),
    row::<u8>(DType::U8),
    row::<i16>(DType::I16),
    row::<u16>(DType::U16),
    row::<i32>(DType::I32),
    row::<u32>(DType::U32),
    row::<i64>(DType::I64),
    row::<u64>(DType::U64),
    row::<f16>(DType::F16),
    row::<bf16>(DType::BF16),
    row::<f32>(DType::F32),
    row::<f64>(DType::F64),
    row::<Complex<f32>>(DType::COMPLEX64),
    row::<Complex<f64>>(DType::COMPLEX128),
];

/// The kernel for a dtype: the integers, the floating-point ones and the complex ones.
pub fn lookup(dtype: DType) -> Option<BatchMatmulFn> {
    TABLE.iter().find(|row| row.dtype == dtype).map(|row| row.batched)
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    TABLE.iter().map(|row| row.dtype)
}

/// The kernel behind the table.
///
/// # Safety
/// As for [`BatchMatmulFn`].
pub(super) unsafe fn batched<T: Element>(isa: Isa, par: &dyn Parallel, args: &BatchMatmulArgs) -> Result<()> {
    let &MatmulArgs { m, n, k, .. } = &args.each;
    let each = Loop { len: args.batch, a: m.wrapping_mul(k), b: k.wrapping_mul(n), c: m.wrapping_mul(n) };
    // SAFETY: the caller's promise.
    unsafe { matmul::rounds::<T>(isa, par, &args.each, &[each]) }
}
