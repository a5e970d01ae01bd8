//! Memory for packed blocks, which threads keep.

use ep_core::{Error, Result};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;
use std::thread::LocalKey;

const LINE: usize = 64;
const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Memory for packed blocks. A thread keeps it, so that not every task faults it in anew: at most 6 MiB for the block
/// sizes in use, less than 8 MiB where it had others help it, and up to 10 MiB for products in parts.
pub(super) struct Memory {
    at: NonNull<u8>,
    layout: Layout,
}

thread_local! {
    /// For the blocks of a task.
    pub(super) static OF_TASK: Cell<Option<Memory>> = const { Cell::new(None) };
    /// For those that several tasks read: the thread that waits for the tasks takes part in them.
    pub(super) static OF_CALL: Cell<Option<Memory>> = const { Cell::new(None) };
}

impl Memory {
    fn new(bytes: usize) -> Result<Memory> {
        let refused = || Error::out_of_memory(format!("matmul needs {bytes} bytes for packed blocks"));
        let align = if bytes >= HUGE_PAGE / 2 { HUGE_PAGE } else { PAGE };
        let layout = Layout::from_size_align(bytes.max(LINE), align).map_err(|_| refused())?.pad_to_align();
        // SAFETY: the size is not 0.
        let at = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(refused)?;
        #[cfg(target_os = "linux")]
        if layout.align() == HUGE_PAGE {
            // SAFETY: advice on memory of our own, which changes nothing of what it holds.
            unsafe { libc::madvise(at.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Ok(Memory { at, layout })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and owned.
        unsafe { std::alloc::dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// The thread's memory while a task uses it.
pub(super) struct Room {
    memory: Option<Memory>,
    keeper: &'static LocalKey<Cell<Option<Memory>>>,
}

impl Room {
    /// Room for three blocks of these sizes in bytes.
    pub(super) fn take(keeper: &'static LocalKey<Cell<Option<Memory>>>, sizes: [usize; 3]) -> Result<Room> {
        let bytes = sizes.iter().map(|s| s.next_multiple_of(LINE)).sum();
        let memory = match keeper.take() {
            Some(kept) if kept.layout.size() >= bytes => kept,
            smaller => {
                drop(smaller);
                Memory::new(bytes)?
            }
        };
        Ok(Room { memory: Some(memory), keeper })
    }

    /// The blocks that room was taken for, each aligned to a line.
    pub(super) fn parts(&self, sizes: [usize; 3]) -> [NonNull<u8>; 3] {
        let at = self.memory.as_ref().map_or(NonNull::dangling(), |memory| memory.at);
        let [first, second, _] = sizes.map(|s| s.next_multiple_of(LINE));
        // SAFETY: within the memory, which holds all three.
        unsafe { [at, at.add(first), at.add(first + second)] }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.keeper.set(self.memory.take());
    }
}
