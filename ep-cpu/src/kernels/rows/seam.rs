//! Lines in which one row ends and the next one begins. Results that go past the cache do so by whole lines: the part of such a line
//! that belongs to the first row waits for the rest. Stored as it comes, it would have to be read first, and all stores behind
//! it would wait for that.

use super::vector::Vector;
use super::{LINE, Room, flush};

/// Bytes of what is added to a line at a time, at most: less than a step of a loop that is unrolled.
const MOST: usize = 4 * LINE;

/// The first elements of a line of the destination.
pub(super) struct Seam<D> {
    room: Room<{ LINE + MOST }>,
    /// How many there are.
    count: usize,
    /// Where they belong: the start of a line.
    line: *mut D,
}

impl<D> Seam<D> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { room: Room::new(), count: 0, line: std::ptr::null_mut() }
    }

    /// Room for `len` elements that belong `to` an address. They have to follow those that wait here; nothing if none do and it is in the
    /// middle of a line, whose first elements are another task's or have been written.
    #[inline(always)]
    pub(super) fn room(&mut self, to: *mut D, len: usize) -> Option<*mut D> {
        debug_assert!((len * size_of::<D>()).next_multiple_of(LINE) <= MOST);
        if self.count == 0 {
            if !to.addr().is_multiple_of(LINE) {
                return None;
            }
            self.line = to;
        }
        debug_assert!(self.line.wrapping_add(self.count) == to);
        Some(self.room.start::<D>().wrapping_add(self.count))
    }

    /// Takes `len` elements that were written to the [room](Self::room) for them. Lines that are complete go where they belong.
    ///
    /// # Safety
    /// There they are writable, with no other access.
    #[inline(always)]
    pub(super) unsafe fn take<V: Vector>(&mut self, len: usize) {
        let all = self.count + len;
        let whole = all * size_of::<D>() / LINE * LINE / size_of::<D>();
        let room = self.room.start::<D>();
        self.count = all - whole;
        if whole > 0 {
            // SAFETY: the caller's promise; what is left, less than a line, lies behind a line at least.
            unsafe {
                flush::<V, D>(self.line, room.cast_const(), whole);
                room.copy_from_nonoverlapping(room.add(whole), self.count);
            }
            self.line = self.line.wrapping_add(whole);
        }
    }

    /// Writes what waits, as nothing follows.
    ///
    /// # Safety
    /// Where it belongs is writable, with no other access.
    #[inline(always)]
    pub(super) unsafe fn close(mut self) {
        // SAFETY: the caller's promise.
        unsafe { self.line.copy_from_nonoverlapping(self.room.start::<D>().cast_const(), self.count) };
    }
}
