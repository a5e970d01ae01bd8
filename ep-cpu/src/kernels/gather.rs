//! Gather: rows of an axis by index. `src` is `[outer, processed, inner]`, `dst` is `[outer, num_indices, inner]`.

use crate::isa::Isa;
use crate::kernels::gather_rows::{self, Rows};
use crate::kernels::window::Window;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};

pub use crate::kernels::window::{IndexMode, IndexType, Indices};

/// Arguments of a [`GatherFn`].
///
/// The source holds the part `offset..offset + processed` of an axis of `size`. An index of a row there is a
/// copy of it, one of another row of the axis is zeros, so that the gathers of all parts add up to the whole.
#[derive(Clone, Copy, Debug)]
pub struct GatherArgs {
    /// Slabs of the source.
    pub outer: usize,
    /// Rows of a slab.
    pub processed: usize,
    /// Elements of a row.
    pub inner: usize,
    /// How many indices.
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
/// `InvalidArgument` for a window that is not within the axis, sizes that no address space holds, and an index
/// that the mode does not allow: the first one, by position and value; the destination then holds anything.
/// `OutOfMemory` if there is none for the positions of the indices; those of `par`.
///
/// # Safety
/// `indices` and `src` are readable and `dst` writable for all elements, with no other access until this
/// returns; `dst` overlaps neither.
pub type GatherFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &GatherArgs) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<GatherFn> {
    match dtype.size()? {
        1 => Some(gather::<1>),
        2 => Some(gather::<2>),
        4 => Some(gather::<4>),
        8 => Some(gather::<8>),
        16 => Some(gather::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn gather<const SIZE: usize>(isa: Isa, par: &dyn Parallel, args: &GatherArgs) -> Result<()> {
    let rows = Rows {
        batch: 1,
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

/// The bytes of a row of `inner` elements.
pub(super) fn row_bytes(inner: usize, size: usize) -> Result<usize> {
    inner.checked_mul(size).ok_or_else(|| {
        Error::invalid(format!("rows of {inner} elements of {size} bytes: no address space holds one"))
    })
}
