//! Batch gather: a gather with a list of indices for each batch. `src` is `[batch, outer, processed, inner]`,
//! `indices` is `[batch, num_indices]`, `dst` is `[batch, outer, num_indices, inner]`.

use crate::isa::Isa;
use crate::kernels::gather::row_bytes;
use crate::kernels::gather_rows::{self, Rows};
use crate::kernels::window::Window;
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};

pub use crate::kernels::window::{IndexMode, IndexType, Indices};

/// Arguments of a [`BatchGatherFn`]; the window is as in [`GatherArgs`](super::gather::GatherArgs).
#[derive(Clone, Copy, Debug)]
pub struct BatchGatherArgs {
    /// Lists of indices, and parts of the source that each is for.
    pub batch: usize,
    /// Slabs of a batch.
    pub outer: usize,
    /// Rows of a slab.
    pub processed: usize,
    /// Elements of a row.
    pub inner: usize,
    /// Indices of a batch.
    pub num_indices: usize,
    /// The index of the source's first row.
    pub offset: usize,
    /// Rows of the whole axis; 0: those up to the source's last.
    pub size: usize,
    /// What becomes of indices outside the axis.
    pub mode: IndexMode,
    /// The indices.
    pub indices: Indices,
    /// The dense source; any alignment.
    pub src: *const u8,
    /// The dense destination; any alignment.
    pub dst: *mut u8,
}

/// Gathers. Where the destination is empty the indices are checked all the same.
///
/// # Errors
/// As for [`GatherFn`](super::gather::GatherFn); positions count through all lists.
///
/// # Safety
/// `indices` and `src` are readable and `dst` writable for all elements, with no other access until this
/// returns; `dst` overlaps neither.
pub type BatchGatherFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &BatchGatherArgs) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<BatchGatherFn> {
    match dtype.size()? {
        1 => Some(batch_gather::<1>),
        2 => Some(batch_gather::<2>),
        4 => Some(batch_gather::<4>),
        8 => Some(batch_gather::<8>),
        16 => Some(batch_gather::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn batch_gather<const SIZE: usize>(
    isa: Isa,
    par: &dyn Parallel,
    args: &BatchGatherArgs,
) -> Result<()> {
    let rows = Rows {
        batch: args.batch,
        outer: args.outer,
        window: Window::new(args.offset, args.processed, args.size, args.mode)?,
        row: row_bytes(args.inner, SIZE)?,
        num_indices: args.num_indices,
        indices: args.indices,
        src: args.src,
        dst: args.dst,
    };
    // SAFETY: the caller's promise.
    unsafe { gather_rows::gather(isa, par, &rows) }
}
