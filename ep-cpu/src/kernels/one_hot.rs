//! One-hot: a row for each index, on at the index's column and off elsewhere.

use crate::isa::Isa;
use crate::kernels::gather::row_bytes;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::sink::{self, PIECE, Pattern, Producer, Sink};
use crate::kernels::window::{Bad, NONE, Window};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use std::ops::Range;

pub use crate::kernels::window::{IndexMode, IndexType, Indices};

/// Arguments of a [`OneHotFn`].
#[derive(Clone, Copy, Debug)]
pub struct OneHotArgs {
    /// How many indices, and rows.
    pub num_indices: usize,
    /// Columns: the classes `offset..offset + depth`.
    pub depth: usize,
    /// The class of the first column.
    pub offset: usize,
    /// Classes in all; 0: those up to the last column's.
    pub size: usize,
    /// What becomes of indices outside the classes.
    pub mode: IndexMode,
    /// The indices.
    pub indices: Indices,
    /// The bytes of the element for the index's class, first in the array; the rest is ignored.
    pub on: [u8; 16],
    /// The same for all others.
    pub off: [u8; 16],
    /// The dense `[num_indices, depth]` destination; any alignment.
    pub dst: *mut u8,
}

/// Writes the rows. An index of a class that has no column makes a row that is off. Where the destination is
/// empty nothing is read.
///
/// # Errors
/// `InvalidArgument` for columns that are not among the classes, sizes that no address space holds, and an index
/// that the mode does not allow: the first one, by position and value; the destination then holds anything.
/// Those of `par`.
///
/// # Safety
/// `indices` is readable and `dst` writable for all elements, with no other access until this returns; they do
/// not overlap.
pub type OneHotFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &OneHotArgs) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<OneHotFn> {
    match dtype.size()? {
        1 => Some(one_hot::<1>),
        2 => Some(one_hot::<2>),
        4 => Some(one_hot::<4>),
        8 => Some(one_hot::<8>),
        16 => Some(one_hot::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn one_hot<const SIZE: usize>(isa: Isa, par: &dyn Parallel, args: &OneHotArgs) -> Result<()> {
    let window = Window::new(args.offset, args.depth, args.size, args.mode)?;
    let row = row_bytes(args.depth, SIZE)?;
    let bytes = row.checked_mul(args.num_indices).filter(|&n| n <= isize::MAX as usize).ok_or_else(|| {
        Error::invalid(format!("one_hot of {} rows of {row} bytes: no address space holds that", args.num_indices))
    })?;
    if bytes == 0 {
        return Ok(());
    }
    let off = Pattern::new(&args.off, SIZE);
    let streaming = sink::streams(bytes, 0);
    let bad = Bad::new();
    let dst = Shared::new(args.dst);
    let (indices, on) = (args.indices, &args.on);
    for_ranges(par, bytes, 1, PIECE, |bytes| {
        let part = HotRows { window, row, indices, on, size: SIZE, off: &off, bytes, bad: &bad };
        // SAFETY: the range is within the destination and no other task has it.
        unsafe { sink::write(isa, streaming, dst.get().add(part.bytes.start), part) };
        Ok(())
    })?;
    // SAFETY: positions are those of the indices.
    unsafe { window.check(&bad, indices) }
}

/// A range of the destination's bytes.
struct HotRows<'a> {
    window: Window,
    /// Bytes of a row.
    row: usize,
    indices: Indices,
    on: &'a [u8; 16],
    /// Bytes of an element.
    size: usize,
    off: &'a Pattern,
    bytes: Range<usize>,
    bad: &'a Bad,
}

impl Producer for HotRows<'_> {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        let HotRows { window, row, indices, on, size, off, bytes, bad } = self;
        let mut i = bytes.start / row;
        let mut col = bytes.start % row;
        let mut left = bytes.len();
        // Bytes that are off and due: those between two that are on are written at once.
        let mut due = 0;
        while left > 0 {
            // SAFETY: row `i` is one of the destination's, which has one for each index.
            let class = window.row(unsafe { indices.get(i) }, i, bad);
            let until = row.min(col + left);
            let hot = class.wrapping_mul(size);
            if class != NONE && (col..until).contains(&hot) {
                // SAFETY: what is due, and an element within the range, which starts and ends at elements.
                unsafe {
                    sink.fill(off, due + (hot - col));
                    sink.put(on.as_ptr(), size);
                }
                due = until - hot - size;
            } else {
                due += until - col;
            }
            left -= until - col;
            col = 0;
            i += 1;
        }
        // SAFETY: what is left of the range.
        unsafe { sink.fill(off, due) };
    }
}
