//! Memory: what is live, and who reaches it.

use crate::world::*;
use std::alloc::Layout;
use std::ffi::c_void;

/// Device memory lies here: no address of a process does.
const DEVICE_BASE: u64 = 1 << 62;
/// Each device has its own range.
const DEVICE_STRIDE: u64 = 1 << 48;

/// Larger blocks stay untouched: of them the machine needs addresses only, until somebody uses them.
const MOST_TOUCHED: usize = 256 << 20;

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The host's, pinned.
    Pinned,
    /// The device's of a context, and that context's.
    Context(u64),
    /// The device's, from a pool.
    Pool { pool: u64, device: i32 },
}

pub(crate) struct Block {
    place: Place,
    /// Of memory that is not pinned.
    device: Option<i32>,
    /// It belongs to a graph and lives as long.
    pub(crate) of_graph: bool,
    bytes: usize,
    data: *mut u8,
    /// A free of it is queued: later work must not use it.
    pub(crate) doomed: bool,
}

impl Block {
    fn layout(bytes: usize) -> Outcome<Layout> {
        Layout::from_size_align(bytes.max(1), 512).map_err(|_| crate::result::OUT_OF_MEMORY)
    }
}

/// Also of what nobody freed, when the world begins anew.
impl Drop for Block {
    fn drop(&mut self) {
        let layout = Block::layout(self.bytes).expect("it was allocated with this layout");
        // SAFETY: allocated with this layout in `World::allocate`, and of this block alone.
        unsafe { std::alloc::dealloc(self.data, layout) };
    }
}

impl World {
    /// Memory at a place.
    pub(crate) fn allocate(&mut self, bytes: usize, place: Place) -> Outcome<u64> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let device = match place {
            Place::Pinned => None,
            Place::Context(context) => Some(self.device_of(context)),
            Place::Pool { device, .. } => Some(device),
        };
        let used: u64 = self.blocks.values().filter(|b| b.device == device).map(|b| b.bytes as u64).sum();
        if device.is_some() && used.saturating_add(bytes as u64) > self.config.memory_bytes {
            return Err(crate::result::OUT_OF_MEMORY);
        }
        let layout = Block::layout(bytes)?;
        // SAFETY: the size is not 0.
        let data = unsafe { std::alloc::alloc(layout) };
        if data.is_null() {
            return Err(crate::result::OUT_OF_MEMORY);
        }
        if bytes <= MOST_TOUCHED {
            // SAFETY: just allocated. Fresh memory holds garbage that shows.
            unsafe { data.write_bytes(0xa5, bytes) };
        }
        let address = match device {
            None => data.expose_provenance() as u64,
            Some(device) => {
                let base = DEVICE_BASE + device as u64 * DEVICE_STRIDE;
                let blocks = self.blocks.range(base..base + DEVICE_STRIDE).next_back();
                let free = blocks.map_or(base + 512, |(at, b)| at + b.bytes as u64 + 1024);
                // Never reused while later blocks live, and with a gap, so that running over an end is noticed.
                free.next_multiple_of(512)
            }
        };
        self.blocks.insert(address, Block { place, device, of_graph: false, bytes, data, doomed: false });
        Ok(address)
    }

    pub(crate) fn release(&mut self, address: u64) -> Outcome {
        self.blocks.remove(&address).map(drop).ok_or(INVALID_VALUE)
    }

    pub(crate) fn used(&self, device: i32) -> u64 {
        self.blocks.values().filter(|b| b.device == Some(device)).map(|b| b.bytes as u64).sum()
    }

    /// Where the bytes of an address are, for a copy; an error where it is a device's and not inside a live block. Host
    /// memory is the caller's word.
    pub(crate) fn locate(&self, address: u64, bytes: usize) -> Outcome<*mut u8> {
        if address < DEVICE_BASE {
            return if address == 0 {
                Err(INVALID_VALUE)
            } else {
                Ok(std::ptr::with_exposed_provenance_mut(address as usize))
            };
        }
        self.block(address, bytes).map(|(_, at)| at)
    }

    /// The live block that has these bytes, and where they are.
    fn block(&self, address: u64, bytes: usize) -> Outcome<(&Block, *mut u8)> {
        let (start, block) = self.blocks.range(..=address).next_back().ok_or(INVALID_VALUE)?;
        let offset = (address - start) as usize;
        if block.doomed || offset.saturating_add(bytes) > block.bytes {
            return Err(INVALID_VALUE);
        }
        // SAFETY: inside the block.
        Ok((block, unsafe { block.data.add(offset) }))
    }

    /// Where the bytes of an address are, for a kernel of a context: pinned memory, its own, that of pools of its device, and
    /// that of peers and their pools who have let it in. Whether a pool's memory is there for each context of its device is
    /// not written down anywhere.
    pub(crate) fn locate_for(&self, context: u64, address: u64, bytes: usize) -> Outcome<*mut u8> {
        let (block, at) = self.block(address, bytes)?;
        let own = self.device_of(context);
        let allowed = match block.place {
            Place::Pinned => true,
            Place::Context(of) => of == context || self.peers.contains(&(context, of)),
            Place::Pool { pool, device } => device == own || self.access.contains(&(pool, own)),
        };
        if allowed { Ok(at) } else { Err(INVALID_VALUE) }
    }
}

unsafe extern "C" {
    /// Of libc: which pages of a range are in memory; an error where one is not mapped.
    fn mincore(from: *mut c_void, bytes: usize, out: *mut u8) -> i32;
}

/// Whether a number in an argument is an address: whatever looks like one of a device is, and so is what is mapped in this
/// process.
pub(crate) fn is_address(word: u64) -> bool {
    (DEVICE_BASE..DEVICE_BASE + 64 * DEVICE_STRIDE).contains(&word) || is_mapped(word)
}

/// Whether a number is an address of this process. Programs and their libraries, heaps and stacks lie above 2^45 and below
/// 2^47, where the numbers that kernels take hardly ever are; below that sanitizers map all for themselves.
fn is_mapped(word: u64) -> bool {
    const PAGE: u64 = 4096;
    if !(1 << 45..1 << 47).contains(&word) {
        return false;
    }
    let page = std::ptr::with_exposed_provenance_mut((word & !(PAGE - 1)) as usize);
    let mut resident = 0;
    // SAFETY: a range that need not be mapped, and room for the answer of one page.
    unsafe { mincore(page, 1, &mut resident) == 0 }
}
