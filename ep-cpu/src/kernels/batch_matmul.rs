//! Batched matmul: independent products of matrices that lie one after the other.

use crate::isa::Isa;
use crate::kernels::gemm::{Element, Tile};
use crate::kernels::matmul::{self, MatmulArgs, MatmulFn};
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
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
}

const fn row<T: Element>(dtype: DType) -> Row {
    Row { dtype, single: matmul::single::<T>, batched: batched::<T> }
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
    row::<gemm::c32>(DType::COMPLEX64),
    row::<gemm::c64>(DType::COMPLEX128),
];

/// The kernel for a dtype: the integers, the floating-point ones and the complex ones.
pub fn lookup(dtype: DType) -> Option<BatchMatmulFn> {
    TABLE.iter().find(|row| row.dtype == dtype).map(|row| row.batched)
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    TABLE.iter().map(|row| row.dtype)
}

/// Rows and columns of the result that one task computes at a time.
///
/// They depend on the sizes alone, so that every number of threads adds up in the same order.
fn tile_sizes(args: &MatmulArgs, size: usize) -> (usize, usize) {
    /// Large enough that packing the operands, which each tile does for itself, costs a few percent.
    const SIDE: usize = 256;
    /// The least of a vector result: so much of each of a matrix's rows is read in one go.
    const VECTOR: usize = 1024;
    /// Products of so many numbers are not worth splitting.
    const SMALL: usize = 64 * 64 * 64;
    let MatmulArgs { m, n, k, .. } = *args;
    if m == 1 || n == 1 {
        // At least one vector: a single row may be longer than the grain.
        let len = (GRAIN_BYTES / (k * size).max(1)).max(1).next_multiple_of(VECTOR);
        return (len.min(m), len.min(n));
    }
    if m.saturating_mul(n).saturating_mul(k) <= SMALL {
        return (m, n);
    }
    let even = |len: usize| len.div_ceil(len.div_ceil(SIDE)).next_multiple_of(16).min(len);
    (even(m), even(n))
}

/// The kernel behind the table.
///
/// # Safety
/// As for [`BatchMatmulFn`].
pub(super) unsafe fn batched<T: Element>(isa: Isa, par: &dyn Parallel, args: &BatchMatmulArgs) -> Result<()> {
    let each = &args.each;
    // A product over nothing is 0 also where the factor is infinite.
    let alpha = T::scalar("alpha", if each.k == 0 { (0.0, 0.0) } else { each.alpha })?;
    let beta = T::scalar("beta", each.beta)?;
    let &MatmulArgs { m, n, k, trans_a, trans_b, .. } = each;
    for (rows, cols) in [(m, k), (k, n), (m, n)] {
        let bytes = [rows, cols, size_of::<T>()].iter().try_fold(args.batch, |p, &x| p.checked_mul(x));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::invalid(format!(
                "matmul of {} [{m}, {k}] and [{k}, {n}] matrices: no address space holds that",
                args.batch
            )));
        }
    }
    if args.batch == 0 || m == 0 || n == 0 {
        return Ok(());
    }
    let (tile_m, tile_n) = tile_sizes(each, size_of::<T>());
    let (tiles_m, tiles_n) = (m.div_ceil(tile_m), n.div_ceil(tile_n));
    let (a, b) = (Shared::new(each.a.cast_mut().cast::<T>()), Shared::new(each.b.cast_mut().cast::<T>()));
    let c = Shared::new(each.c.cast::<T>());
    let (a_rs, a_cs) = if trans_a { (1, m) } else { (k, 1) };
    let (b_rs, b_cs) = if trans_b { (1, k) } else { (n, 1) };
    // Sixteen operations take about as long as a byte from memory.
    let work = (tile_m * tile_n).saturating_mul(k) / 8;
    let read = (tile_m + tile_n).saturating_mul(k);
    let traffic = read.saturating_add(tile_m * tile_n).saturating_mul(size_of::<T>());
    let depth = if T::is_zero(alpha) { 0 } else { k };
    for_ranges(par, args.batch * tiles_m * tiles_n, work.max(traffic), 1, |tiles| {
        for tile in tiles {
            let (batch, tile) = (tile / (tiles_m * tiles_n), tile % (tiles_m * tiles_n));
            let (i, j) = (tile / tiles_n * tile_m, tile % tiles_n * tile_n);
            // SAFETY: the tile lies inside the caller's matrices, and its part of `c` is this task's only. With
            // `k == 0` there is no memory behind `a` and `b`, so their addresses may only wrap.
            unsafe {
                let tile = Tile {
                    m: tile_m.min(m - i),
                    n: tile_n.min(n - j),
                    k: depth,
                    a: a.get().wrapping_add(batch * m * k + i * a_rs).cast_const(),
                    a_rs,
                    a_cs,
                    conj_a: trans_a,
                    b: b.get().wrapping_add(batch * k * n + j * b_cs).cast_const(),
                    b_rs,
                    b_cs,
                    conj_b: trans_b,
                    c: c.get().add((batch * m + i) * n + j),
                    c_rs: n,
                };
                T::tile(isa, &tile, alpha, beta)?;
            }
        }
        Ok(())
    })
}
