//! Operand memory as Rust sees it, for kernels that compute on the CPU.
//!
//! An address crosses the boundary as a number. These functions turn the address and the element count of a
//! launch argument into something to iterate over.

use crate::Element;
use std::cell::Cell;

/// An operand that the launch only reads.
///
/// # Safety
/// As [`cells`], and nobody writes the elements during `'a`: of an op that may run in place, use [`cells`].
#[inline]
#[must_use]
pub unsafe fn slice<'a, T: Element>(address: u64, count: i64) -> &'a [T] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(start(address, count), length(count)) }
}

/// An operand that the launch writes.
///
/// # Safety
/// As [`cells`], and nothing else touches the elements during `'a`: of an op that may run in place, use
/// [`cells`].
#[inline]
#[must_use]
pub unsafe fn slice_mut<'a, T: Element>(address: u64, count: i64) -> &'a mut [T] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(start(address, count), length(count)) }
}

/// An operand of an op that may run in place: source and destination may be the same cells.
///
/// # Safety
/// If `count` is not 0, `address` is a multiple of `T`'s alignment and valid for `count` elements during `'a`,
/// which hold valid values of `T` (every bit pattern is one, except of `bool`), and no other thread writes what
/// is read, or touches what is written. For the operands of a launch that [`Op::check`](crate::op::Op::check)
/// has passed, this is what the host promises in [`Kernel::launch`](super::Kernel::launch), until the work is
/// done, except for `bool`: bytes that were set or copied may be any, so take such an operand as `u8`, of which
/// every value but 0 is true.
#[inline]
#[must_use]
pub unsafe fn cells<'a, T: Element>(address: u64, count: i64) -> &'a [Cell<T>] {
    // SAFETY: as the caller promises; a cell has the layout of its content, and may share it.
    unsafe { std::slice::from_raw_parts(start::<Cell<T>>(address, count), length(count)) }
}

#[inline]
fn length(count: i64) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// An empty operand may have any address, null included, and a slice may not.
#[inline]
fn start<T>(address: u64, count: i64) -> *mut T {
    if length(count) == 0 {
        return std::ptr::dangling_mut();
    }
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_operands_may_be_null_or_misaligned() {
        for (address, count) in [(0, 0), (3, 0), (0, -1)] {
            // SAFETY: there are no elements.
            unsafe {
                assert!(slice::<f64>(address, count).is_empty());
                assert!(slice_mut::<f64>(address, count).is_empty());
                assert!(cells::<f64>(address, count).is_empty());
            }
        }
    }

    #[test]
    fn cells_of_one_memory_are_the_same() {
        let mut data = [1i32, 2, 3];
        let address = data.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: `data` is live, aligned, and touched by nobody else until the block ends.
        unsafe {
            let (src, dst) = (cells::<i32>(address, 3), cells::<i32>(address, 3));
            dst.iter().zip(src).for_each(|(d, s)| d.set(s.get() * 10));
            slice_mut::<i32>(address, 1)[0] += 1;
            assert_eq!(slice::<i32>(address, 3), [11, 20, 30]);
        }
        assert_eq!(data, [11, 20, 30]);
    }
}
