//! Matmul: `c = alpha * op(a) * op(b) + beta * c` on dense row-major matrices.

use crate::isa::Isa;
use crate::kernels::batch_matmul;
use crate::kernels::gemm::{self, Element, Factor, Loop, Problem, count};
use crate::kernels::raw::Shared;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};

/// Arguments of a [`MatmulFn`].
#[derive(Clone, Copy, Debug)]
pub struct MatmulArgs {
    /// Rows of `c`.
    pub m: usize,
    /// Columns of `c`.
    pub n: usize,
    /// Length of each sum; with zero, `c` becomes `beta * c`.
    pub k: usize,
    /// Whether `a` is stored as `[k, m]` and not as `[m, k]`. A complex `a` is then conjugated too.
    pub trans_a: bool,
    /// Whether `b` is stored as `[n, k]` and not as `[k, n]`. A complex `b` is then conjugated too.
    pub trans_b: bool,
    /// Factor of the product: real and imaginary part. With zero, `a` and `b` are not read.
    pub alpha: (f64, f64),
    /// Left factor, aligned to its elements.
    pub a: *const u8,
    /// Right factor, aligned to its elements.
    pub b: *const u8,
    /// Factor of the old `c`: real and imaginary part. With zero, `c` is not read, so that a NaN there is gone.
    pub beta: (f64, f64),
    /// Result, `[m, n]`, aligned to its elements.
    pub c: *mut u8,
}

/// Multiplies two matrices.
///
/// f16 and bf16 add up in f32 and round once, integers wrap. The result does not depend on the number of
/// threads.
///
/// # Errors
/// `InvalidArgument` if a scalar does not exist in the dtype (an imaginary part of a real one, a fraction of an
/// integer) or a matrix has more elements than an address space holds; `OutOfMemory` if there is none for
/// converted panels; those of `par`.
///
/// # Safety
/// `a` and `b` are readable and `c` readable and writable for their elements, with no other access to `c`
/// until this returns; `c` overlaps neither.
pub type MatmulFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &MatmulArgs) -> Result<()>;

/// The kernel for a dtype: the integers, the floating-point ones and the complex ones.
pub fn lookup(dtype: DType) -> Option<MatmulFn> {
    batch_matmul::TABLE.iter().find(|row| row.dtype == dtype).map(|row| row.single)
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    batch_matmul::rows()
}

/// Products by a `b` that is packed once for many of them.
#[derive(Clone, Copy, Debug)]
pub struct Prepack {
    /// Bytes of a packed `b` of so many columns and rows; `None` where it is as well read as it is.
    pub bytes: fn(isa: Isa, n: usize, k: usize) -> Option<usize>,
    /// Packs `b`, without a look at the other matrices. The errors are those of `par`.
    ///
    /// # Safety
    /// There is a packed form. `b` is readable for its elements, and the bytes of that form are writable at `out`, aligned to a
    /// line of the cache, with no other access to them until this returns.
    pub pack: unsafe fn(isa: Isa, par: &dyn Parallel, args: &MatmulArgs, out: *mut u8) -> Result<()>,
    /// As [`MatmulFn`], where `b` is what `pack` has made at the same level, for as many columns and rows.
    pub multiply: MatmulFn,
}

/// Packing for a dtype, where some level of the CPU gains by it.
pub fn prepack(dtype: DType) -> Option<Prepack> {
    #[cfg(target_arch = "x86_64")]
    if dtype == DType::BF16 {
        return Some(crate::kernels::gemm_bf16::PREPACK);
    }
    let _ = dtype;
    None
}

pub(super) unsafe fn single<T: Element>(isa: Isa, par: &dyn Parallel, args: &MatmulArgs) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { rounds::<T>(isa, par, args, &[]) }
}

/// Multiplies the matrices of all rounds of a loop; `args` has those of the first.
///
/// # Errors
/// As for [`MatmulFn`].
///
/// # Safety
/// As for [`MatmulFn`], for all rounds.
pub(super) unsafe fn rounds<T: Element>(
    isa: Isa,
    par: &dyn Parallel,
    args: &MatmulArgs,
    outer: &[Loop],
) -> Result<()> {
    check_size(args, outer, size_of::<T>())?;
    let problem = problem::<T>(args, outer);
    // SAFETY: the caller's promise: the matrices lie in dense rows.
    unsafe { gemm::solve(isa, par, &problem, args.alpha, args.beta) }
}

/// Fails for matrices of elements of `size` bytes that no address space holds.
#[inline]
pub(super) fn check_size(args: &MatmulArgs, outer: &[Loop], size: usize) -> Result<()> {
    let &MatmulArgs { m, n, k, .. } = args;
    // Two such sizes times those of an element fit into half the address space, whatever the dtype.
    if outer.is_empty() && (m | n | k) >> (usize::BITS / 2 - 4) == 0 {
        return Ok(());
    }
    let batch = count(outer);
    for (rows, cols) in [(m, k), (k, n), (m, n)] {
        let bytes = [rows, cols, size].iter().try_fold(batch, |p, &x| p.checked_mul(x));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(too_large(batch, m, n, k));
        }
    }
    Ok(())
}

/// The product of dense matrices, for all rounds of a loop.
pub(super) fn problem<'a, T>(args: &MatmulArgs, outer: &'a [Loop]) -> Problem<'a, T> {
    let &MatmulArgs { m, n, k, trans_a, trans_b, .. } = args;
    let (a_rs, a_cs) = if trans_a { (1, m) } else { (k, 1) };
    let (b_rs, b_cs) = if trans_b { (1, k) } else { (n, 1) };
    let factor = |at: *const u8, rs, cs, conj| Factor { at: Shared::new(at.cast_mut().cast()), rs, cs, conj };
    Problem {
        m,
        n,
        k,
        a: factor(args.a, a_rs, a_cs, trans_a),
        b: factor(args.b, b_rs, b_cs, trans_b),
        c: Shared::new(args.c.cast()),
        c_rs: n,
        outer,
        inner: &[],
    }
}

#[cold]
fn too_large(batch: usize, m: usize, n: usize, k: usize) -> Error {
    Error::invalid(format!(
        "matmul of {batch} [{m}, {k}] and [{k}, {n}] matrices: no address space holds that"
    ))
}

#[cfg(test)]
mod tests;
