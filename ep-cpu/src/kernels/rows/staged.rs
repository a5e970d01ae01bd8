//! Pairs of dtypes that are rarely asked for: converted, some rows at a time, to the type computed in, computed in
//! place by its own kernel, and converted to the destination. This keeps the number of kernels to compile down.

use super::backward::{BackwardArgs, backward};
use super::vector::Compute;
use super::{RowsArgs, elements, forward};
use crate::isa::{Body, Isa};
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::real::Cell;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::marker::PhantomData;

/// Elements converted at a time, unless a row has more.
const BLOCK: usize = 128 << 10;

/// [`super::run`] by way of the type computed in.
///
/// # Safety
/// As for [`super::RowsFn`].
pub(super) unsafe fn rows<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &RowsArgs,
) -> Result<()> {
    let RowsArgs { rows, cols, inner, src, dst } = *args;
    // SAFETY: the blocks are inside the caller's matrices, and the room has one. In place, a block is read before it
    // is written.
    unsafe {
        in_blocks::<A, 1>([rows, cols, inner], |room, at, rows| {
            let count = rows * cols * inner;
            let [x] = room;
            convert::<S, A, A>(isa, par, src.cast::<S>().add(at), x, count)?;
            let args = RowsArgs { rows, cols, inner, src: x.cast(), dst: x.cast() };
            forward::<A, A, A>(isa, par, &args, LOG, count, false)?;
            convert::<A, D, A>(isa, par, x, dst.cast::<D>().add(at), count)
        })
    }
}

/// [`super::backward::run`] by way of the type computed in.
///
/// # Safety
/// As for [`super::BackwardFn`].
pub(super) unsafe fn gradients<S: Cell<A>, D: Cell<A>, A: Compute, const LOG: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &BackwardArgs,
) -> Result<()> {
    let BackwardArgs { rows, cols, inner, y, dy, dx } = *args;
    // SAFETY: as for `rows`.
    unsafe {
        in_blocks::<A, 2>([rows, cols, inner], |room, at, rows| {
            let count = rows * cols * inner;
            convert::<S, A, A>(isa, par, y.cast::<S>().add(at), room[0], count)?;
            convert::<S, A, A>(isa, par, dy.cast::<S>().add(at), room[1], count)?;
            let [y, dy] = room.map(|r| r.cast::<u8>());
            let args = BackwardArgs { rows, cols, inner, y, dy, dx: dy };
            backward::<A, A, A, LOG>(isa, par, &args, count, false)?;
            convert::<A, D, A>(isa, par, room[1], dx.cast::<D>().add(at), count)
        })
    }
}

/// Calls `f` with room for `N` blocks of `A`, the first element and the number of rows, block after block.
fn in_blocks<A: Compute, const N: usize>(
    [rows, cols, inner]: [usize; 3],
    f: impl Fn([*mut A; N], usize, usize) -> Result<()>,
) -> Result<()> {
    // All dtypes here are narrower than an f64 or are one, so that this bounds sources, destination and room.
    if elements(rows, cols, inner, size_of::<f64>())? == 0 {
        return Ok(());
    }
    let row = cols * inner;
    let block = (BLOCK / row).clamp(1, rows);
    let mut room: Vec<A> = Vec::new();
    room.try_reserve_exact(N * block * row).map_err(|_| {
        let bytes = N * block * row * size_of::<A>();
        Error::out_of_memory(format!("softmax needs {bytes} bytes to convert a row of {cols} by {inner}"))
    })?;
    let start = room.as_mut_ptr();
    for first in (0..rows).step_by(block) {
        let parts = std::array::from_fn(|i| start.wrapping_add(i * block * row));
        f(parts, first * row, block.min(rows - first))?;
    }
    Ok(())
}

/// # Safety
/// `src` is readable and `dst` writable for `count` elements; they do not overlap.
unsafe fn convert<S: Cell<A>, D: Cell<A>, A: Compute>(
    isa: Isa,
    par: &dyn Parallel,
    src: *const S,
    dst: *mut D,
    count: usize,
) -> Result<()> {
    let (src, dst) = (Shared::new(src.cast_mut()), Shared::new(dst));
    for_ranges(par, count, size_of::<S>() + size_of::<D>(), 1, |range| {
        // SAFETY: the range is within the caller's elements.
        let (src, dst) = unsafe { (src.get().add(range.start), dst.get().add(range.start)) };
        isa.dispatch(Convert { src: src.cast_const(), dst, len: range.len(), through: PhantomData::<A> });
        Ok(())
    })
}

/// Made only for `len` readable and writable elements that do not overlap.
struct Convert<S, D, A> {
    src: *const S,
    dst: *mut D,
    len: usize,
    through: PhantomData<A>,
}

impl<S: Cell<A>, D: Cell<A>, A> Body for Convert<S, D, A> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for i in 0..self.len {
            // SAFETY: `i` is within both.
            unsafe { self.dst.add(i).write(D::write(self.src.add(i).read().read())) };
        }
    }
}
