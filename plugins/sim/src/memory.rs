//! The memory of all devices of an instance.
//!
//! An arena hands out addresses of a range that nobody may touch; the bytes lie in a second mapping, at the same
//! offsets, which only this file knows. Pinned host memory is an arena whose bytes lie at the addresses themselves.
//!
//! All accesses take one lock and copy, so that work which a host has failed to order gives wrong results but no
//! data race. Each piece of queued work claims the blocks that it uses.

use crate::hooks::Place;
use crate::lock;
use crate::mapping::{Access, Mapping};
use ep_core::provider::MemoryStats;
use ep_core::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// What memory holds that was never written.
pub const FRESH: u8 = 0xa5;
/// What memory holds that was freed.
pub const FREED: u8 = 0xdb;

/// Blocks begin at multiples of this, and as many bytes at least lie between two.
const GRAIN: u64 = 64;
/// How many freed blocks are remembered, for the text of an error.
const REMEMBERED: usize = 1024;

/// All arenas. The device with index n has its own memory in arena 2n and pinned host memory in arena 2n + 1.
pub(crate) struct Memory {
    arenas: Mutex<Vec<Arena>>,
    misuse: Mutex<Option<Error>>,
}

struct Arena {
    space: String,
    /// Bytes handed out at a time.
    limit: u64,
    /// Bytes of addresses.
    extent: u64,
    /// The addresses that are handed out, if not those of `data`.
    reserved: Option<Mapping>,
    data: Mapping,
    /// By offset.
    blocks: BTreeMap<u64, Block>,
    /// Where the search for a gap begins, so that freed addresses are given out again late.
    cursor: u64,
    next_id: u64,
    freed: VecDeque<(u64, u64)>,
    stats: MemoryStats,
}

struct Block {
    /// Tells it from later blocks at the same place.
    id: u64,
    bytes: u64,
    /// Bytes of addresses, what follows the block included.
    room: u64,
    /// How much queued work uses it.
    uses: usize,
    /// Freed in the order of a stream that has not come to it yet.
    leaving: bool,
}

/// A range that queued work uses until this is dropped.
pub(crate) struct Claim {
    memory: Arc<Memory>,
    block: BlockRef,
    /// From the start of the block.
    offset: u64,
    bytes: u64,
}

/// A range that a graph has recorded, whose block may be gone.
#[derive(Clone, Copy)]
pub(crate) struct Recorded {
    block: BlockRef,
    offset: u64,
    bytes: u64,
}

/// A block that may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRef {
    arena: usize,
    offset: u64,
    id: u64,
}

impl Arena {
    fn base(&self) -> u64 {
        self.reserved.as_ref().unwrap_or(&self.data).address()
    }

    /// The first gap of `room` bytes between two offsets.
    fn gap(&self, from: u64, room: u64, place: Place) -> Option<u64> {
        let base = self.base();
        let aligned = |offset: u64| {
            let address = base.checked_add(offset)?.checked_next_multiple_of(place.alignment)?;
            address.checked_add(place.skew).map(|a| a - base)
        };
        let before = self.blocks.range(..from).next_back().map_or(0, |(offset, block)| offset + block.room);
        let mut start = aligned(before.max(from))?;
        for (offset, block) in self.blocks.range(from..) {
            if start.checked_add(room)? <= *offset {
                return Some(start);
            }
            start = aligned(start.max(offset + block.room))?;
        }
        (start.checked_add(room)? <= self.extent).then_some(start)
    }

    fn alloc(&mut self, bytes: u64, place: Place) -> Result<u64> {
        let alignment = place.alignment;
        let full = |why: String| {
            Error::out_of_memory(format!("{bytes} bytes aligned to {alignment} of `{}`: {why}", self.space))
        };
        let in_use = self.stats.in_use_bytes;
        if in_use.saturating_add(bytes) > self.limit {
            return Err(full(format!("{in_use} of {} are in use (option `memory_bytes`)", self.limit)));
        }
        let room = bytes.checked_next_multiple_of(GRAIN).and_then(|b| b.checked_add(GRAIN));
        let gap = room.and_then(|room| {
            let gap = self.gap(self.cursor, room, place).or_else(|| self.gap(0, room, place))?;
            Some((gap, room))
        });
        let (offset, room) = gap.ok_or_else(|| full("no gap between other blocks is large enough".into()))?;
        self.next_id += 1;
        self.blocks.insert(offset, Block { id: self.next_id, bytes, room, uses: 0, leaving: false });
        self.cursor = offset + room;
        self.fill(offset, bytes, FRESH);
        let s = &mut self.stats;
        s.in_use_bytes += bytes;
        s.in_use_blocks += 1;
        s.reserved_bytes += room;
        s.peak_in_use_bytes = s.peak_in_use_bytes.max(s.in_use_bytes);
        s.total_allocs += 1;
        Ok(self.base() + offset)
    }

    /// Takes a block out. Its bytes stay poisoned until they are handed out again.
    fn retire(&mut self, offset: u64) {
        let Some(block) = self.blocks.remove(&offset) else { return };
        self.fill(offset, block.bytes, FREED);
        if self.freed.len() == REMEMBERED {
            self.freed.pop_front();
        }
        self.freed.push_back((self.base() + offset, block.bytes));
        let s = &mut self.stats;
        s.in_use_bytes -= block.bytes;
        s.in_use_blocks -= 1;
        s.reserved_bytes -= block.room;
    }

    /// The bytes from an offset on.
    fn at(&self, offset: u64, bytes: u64) -> NonNull<u8> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.extent), "inside of the arena");
        // SAFETY: just checked; the mapping has `extent` bytes.
        unsafe { self.data.start().add(offset as usize) }
    }

    fn fill(&mut self, offset: u64, bytes: u64, value: u8) {
        // SAFETY: `at` has checked the range. Of a device's arena nobody else has the address; pinned memory is
        // overwritten before it is handed out and after it was freed.
        unsafe { self.at(offset, bytes).write_bytes(value, bytes as usize) };
    }

    fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        // SAFETY: `at` has checked the range; only holders of the lock write it, and of pinned memory the host, which
        // promises not to do so while work reads it.
        unsafe { self.at(offset, bytes).as_ptr().copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        out
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        // SAFETY: as in `read`.
        unsafe {
            self.at(offset, bytes.len() as u64)
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// What is known about an address without a block.
    fn describe_gap(&self, address: u64) -> String {
        let freed =
            self.freed.iter().rev().find(|(start, bytes)| address >= *start && address - start < *bytes);
        match freed {
            Some((start, bytes)) => format!("the {bytes} bytes at {start:#x} there were freed"),
            None => "nothing is allocated there".into(),
        }
    }
}

impl Memory {
    /// Memory for so many devices; each hands out at most `limit` bytes at a time, and as much pinned memory.
    pub(crate) fn new(devices: u16, limit: u64) -> Result<Memory> {
        // Twice the limit, so that gaps are found in spite of fragments, and freed addresses rest for a while.
        let extent =
            limit.saturating_mul(2).max(1 << 20).checked_next_multiple_of(1 << 16).unwrap_or(u64::MAX);
        let mut arenas = Vec::new();
        for number in 0..devices {
            let reserved = Mapping::new(extent, Access::None)?;
            let base = reserved.address();
            let arena = |space: String, reserved| {
                Ok(Arena {
                    space,
                    limit,
                    extent,
                    reserved,
                    data: Mapping::new(extent, Access::Full)?,
                    blocks: BTreeMap::new(),
                    cursor: 0,
                    next_id: 0,
                    freed: VecDeque::new(),
                    stats: MemoryStats::default(),
                })
            };
            // Addresses are unique in the process, so these names are; two instances must not be taken for one.
            arenas.push(arena(format!("sim:{base:x}"), Some(reserved))?);
            let digits: String = uuid(number, base).iter().map(|b| format!("{b:02x}")).collect();
            arenas.push(arena(format!("host-pinned:{}:{digits}", crate::KIND), None)?);
        }
        Ok(Memory { arenas: Mutex::new(arenas), misuse: Mutex::default() })
    }

    /// The identity of a device.
    pub(crate) fn uuid(&self, device: u16) -> [u8; 16] {
        uuid(device, lock(&self.arenas)[usize::from(device) * 2].base())
    }

    /// Bytes that an arena hands out at a time.
    pub(crate) fn limit(&self, arena: usize) -> u64 {
        lock(&self.arenas)[arena].limit
    }

    /// The memory space of an arena.
    pub(crate) fn space(&self, arena: usize) -> String {
        lock(&self.arenas)[arena].space.clone()
    }

    /// The arena of a memory space.
    pub(crate) fn find(&self, space: &str) -> Option<usize> {
        lock(&self.arenas).iter().position(|arena| arena.space == space)
    }

    pub(crate) fn alloc(&self, arena: usize, bytes: u64, place: Place) -> Result<u64> {
        lock(&self.arenas)[arena].alloc(bytes, place)
    }

    pub(crate) fn stats(&self, arena: usize) -> MemoryStats {
        lock(&self.arenas)[arena].stats
    }

    /// Announces that a block is freed: work that is queued from now on must not use it.
    ///
    /// # Errors
    /// `InvalidArgument` for what is not allocated like this.
    pub(crate) fn leave(&self, arena: usize, address: u64, bytes: u64) -> Result<BlockRef> {
        let mut arenas = lock(&self.arenas);
        let a = &mut arenas[arena];
        let offset = address.wrapping_sub(a.base());
        let Some(block) = a.blocks.get_mut(&offset).filter(|b| b.bytes == bytes && !b.leaving) else {
            return Err(Error::invalid(format!(
                "cannot free {bytes} bytes at {address:#x} of `{}`: {}; free what was allocated, once, with its size",
                a.space,
                match a.blocks.get(&offset) {
                    Some(block) if block.leaving => "they are being freed already".into(),
                    Some(block) => format!("the block there has {} bytes", block.bytes),
                    None => a.describe_gap(address),
                }
            )));
        };
        block.leaving = true;
        Ok(BlockRef { arena, offset, id: block.id })
    }

    /// Frees a block that [`Memory::leave`] has announced. Notes misuse if queued work still uses it.
    pub(crate) fn retire(&self, block: BlockRef) {
        let mut arenas = lock(&self.arenas);
        let arena = &mut arenas[block.arena];
        let Some(found) = arena.blocks.get(&block.offset).filter(|b| b.id == block.id) else { return };
        let (uses, bytes, address) = (found.uses, found.bytes, arena.base() + block.offset);
        arena.retire(block.offset);
        drop(arenas);
        if uses > 0 {
            self.note(Error::internal(format!(
                "{bytes} bytes at {address:#x} were freed while {uses} pieces of queued work used them; wait for \
                 the work first"
            )));
        }
    }

    /// Remembers a misuse that no call can report, for the next sync.
    fn note(&self, misuse: Error) {
        tracing::error!("misuse of memory: {misuse}");
        lock(&self.misuse).get_or_insert(misuse);
    }

    /// The first misuse since the last call.
    pub(crate) fn take_misuse(&self) -> Option<Error> {
        lock(&self.misuse).take()
    }

    /// Declares that work which is about to be queued uses a range, which must be of a block in one of the arenas
    /// that `reachable` lets through.
    ///
    /// # Errors
    /// `InvalidArgument` with what is there instead.
    pub(crate) fn claim(
        self: &Arc<Self>,
        address: u64,
        bytes: u64,
        reachable: impl Fn(usize) -> bool,
    ) -> Result<Claim> {
        let mut arenas = lock(&self.arenas);
        let wrong = |what: String| Err(Error::invalid(format!("{bytes} bytes at {address:#x}: {what}")));
        let inside = |arena: &Arena| address >= arena.base() && address - arena.base() < arena.extent;
        let Some(index) = arenas.iter().position(inside) else {
            return wrong(
                "no memory of this provider instance; allocate on the device, or copy there".into(),
            );
        };
        let arena = &mut arenas[index];
        if !reachable(index) {
            return wrong(format!("memory of `{}`, which is out of reach here; copy it first", arena.space));
        }
        let at = address - arena.base();
        let block = arena.blocks.range_mut(..=at).next_back();
        let Some((start, block)) = block.filter(|(start, b)| at - **start < b.bytes.max(1) && !b.leaving)
        else {
            return wrong(format!("not in use in `{}`: {}", arena.space, arena.describe_gap(address)));
        };
        if at - start + bytes > block.bytes {
            let (start, bytes) = (*start, block.bytes);
            let address = arena.base() + start;
            return wrong(format!("more than the {bytes} bytes at {address:#x} of `{}`", arena.space));
        }
        block.uses += 1;
        let claimed = BlockRef { arena: index, offset: *start, id: block.id };
        Ok(Claim { memory: self.clone(), block: claimed, offset: at - start, bytes })
    }
}

impl Recorded {
    /// Claims the range, for work that is about to be queued.
    ///
    /// # Errors
    /// `InvalidArgument` if the memory was freed.
    pub(crate) fn claim(self, memory: &Arc<Memory>) -> Result<Claim> {
        let Recorded { block, offset, bytes } = self;
        let mut arenas = lock(&memory.arenas);
        let arena = &mut arenas[block.arena];
        let address = arena.base() + block.offset;
        match arena.blocks.get_mut(&block.offset).filter(|b| b.id == block.id && !b.leaving) {
            Some(found) => found.uses += 1,
            None => {
                return Err(Error::invalid(format!(
                    "the memory at {address:#x} was freed after it was recorded; record anew"
                )));
            }
        }
        Ok(Claim { memory: memory.clone(), block, offset, bytes })
    }
}

fn uuid(device: u16, base: u64) -> [u8; 16] {
    let mut uuid = *b"ep-sim..........";
    uuid[6..8].copy_from_slice(&device.to_be_bytes());
    uuid[8..].copy_from_slice(&base.to_be_bytes());
    uuid
}

impl Claim {
    /// The arena, if the block is still there.
    fn live<'a>(&self, arenas: &'a mut [Arena]) -> Result<&'a mut Arena> {
        let arena = &mut arenas[self.block.arena];
        if arena.blocks.get(&self.block.offset).is_some_and(|b| b.id == self.block.id) {
            return Ok(arena);
        }
        let address = arena.base() + self.block.offset;
        Err(Error::internal(format!(
            "the memory at {address:#x} was freed before the work that uses it was done"
        )))
    }

    /// The range without the claim.
    pub(crate) fn recorded(&self) -> Recorded {
        Recorded { block: self.block, offset: self.offset, bytes: self.bytes }
    }

    /// A copy of the bytes.
    ///
    /// # Errors
    /// `Internal` if the memory was freed.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        let mut arenas = lock(&self.memory.arenas);
        Ok(self.live(&mut arenas)?.read(self.block.offset + self.offset, self.bytes))
    }

    /// Writes bytes from `at` on.
    ///
    /// # Errors
    /// `Internal` if the memory was freed, or for more bytes than were claimed.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        if at.saturating_add(bytes.len() as u64) > self.bytes {
            return Err(Error::internal(format!("{} bytes written at {at} of {}", bytes.len(), self.bytes)));
        }
        let mut arenas = lock(&self.memory.arenas);
        self.live(&mut arenas)?.write(self.block.offset + self.offset + at, bytes);
        Ok(())
    }
}

impl Claim {
    /// Writes bytes from `at` on, which may lie in front of the range or behind it, as hooks may ask for.
    ///
    /// # Errors
    /// `Internal` if the memory was freed, or for addresses outside of the arena.
    pub(crate) fn stray(&self, at: i64, bytes: &[u8]) -> Result<()> {
        let mut arenas = lock(&self.memory.arenas);
        let arena = self.live(&mut arenas)?;
        let start = (self.block.offset + self.offset).checked_add_signed(at);
        let inside =
            |start: &u64| start.checked_add(bytes.len() as u64).is_some_and(|end| end <= arena.extent);
        let start = start.filter(inside).ok_or_else(|| {
            Error::internal(format!(
                "{} bytes written at {at} of {}, outside of memory",
                bytes.len(),
                self.bytes
            ))
        })?;
        arena.write(start, bytes);
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut arenas = lock(&self.memory.arenas);
        let block = arenas[self.block.arena].blocks.get_mut(&self.block.offset);
        if let Some(block) = block.filter(|b| b.id == self.block.id) {
            block.uses -= 1;
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for arena in lock(&self.arenas).iter().filter(|a| !a.blocks.is_empty()) {
            tracing::error!("{} blocks of `{}` were never freed", arena.blocks.len(), arena.space);
        }
        if let Some(misuse) = self.take_misuse() {
            tracing::error!("no sync told of a misuse of memory: {misuse}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    fn memory(limit: u64) -> Arc<Memory> {
        Arc::new(Memory::new(2, limit).unwrap())
    }

    fn at(alignment: u64) -> Place {
        Place { alignment, skew: 0 }
    }

    fn free(memory: &Memory, arena: usize, address: u64, bytes: u64) -> Result<()> {
        memory.leave(arena, address, bytes).map(|block| memory.retire(block))
    }

    fn any(_: usize) -> bool {
        true
    }

    #[test]
    fn blocks_are_aligned_apart_poisoned_and_counted() {
        let m = memory(1000);
        let a = m.alloc(0, 100, at(64)).unwrap();
        let b = m.alloc(0, 1, at(4096)).unwrap();
        assert!(a.is_multiple_of(64) && b.is_multiple_of(4096) && b >= a + 100 + GRAIN - GRAIN / 2);
        let claim = m.claim(a, 100, any).unwrap();
        assert_eq!(claim.read().unwrap(), [FRESH; 100]);
        claim.write(98, &[1, 2]).unwrap();
        assert_eq!(m.claim(a + 97, 3, any).unwrap().read().unwrap(), [FRESH, 1, 2]);
        assert_eq!(claim.write(99, &[1, 2]).unwrap_err().code(), Code::Internal);
        let s = m.stats(0);
        assert_eq!((s.in_use_bytes, s.in_use_blocks, s.total_allocs), (101, 2, 2));
        drop(claim);
        free(&m, 0, a, 100).unwrap();
        free(&m, 0, b, 1).unwrap();
        let s = m.stats(0);
        assert_eq!((s.in_use_bytes, s.in_use_blocks, s.reserved_bytes, s.peak_in_use_bytes), (0, 0, 0, 101));
        assert_eq!(m.stats(2).total_allocs, 0);
    }

    #[test]
    fn a_place_may_be_behind_an_alignment() {
        let m = memory(1 << 16);
        m.alloc(0, 7, at(64)).unwrap();
        let a = m.alloc(0, 100, Place { alignment: 4096, skew: 16 }).unwrap();
        assert_eq!(a % 4096, 16);
        free(&m, 0, a, 100).unwrap();
    }

    #[test]
    fn a_stray_write_reaches_what_lies_around_a_claim() {
        let m = memory(1 << 16);
        let a = m.alloc(0, 64, at(64)).unwrap();
        let claim = m.claim(a + 16, 16, any).unwrap();
        claim.stray(-1, &[1; 18]).unwrap();
        let mut wanted = [FRESH; 64];
        wanted[15..33].fill(1);
        assert_eq!(m.claim(a, 64, any).unwrap().read().unwrap(), wanted);
        for at in [i64::MIN, -(1 << 20), 1 << 40, i64::MAX] {
            assert_eq!(claim.stray(at, &[1]).unwrap_err().code(), Code::Internal);
        }
    }

    #[test]
    fn the_limit_holds_and_freed_room_is_found_again() {
        let m = memory(1 << 20);
        assert_eq!(m.alloc(0, (1 << 20) + 1, at(64)).unwrap_err().code(), Code::OutOfMemory);
        assert_eq!(m.alloc(0, u64::MAX, at(64)).unwrap_err().code(), Code::OutOfMemory);
        let mut last = 0;
        for _ in 0..50 {
            let a = m.alloc(0, 1 << 19, at(64)).unwrap();
            let b = m.alloc(0, 1 << 19, at(64)).unwrap();
            assert_ne!(a, last, "an address is not given out again at once");
            let e = m.alloc(0, 1, at(64)).unwrap_err();
            assert!(e.message().contains("1048576 of 1048576"), "{e}");
            free(&m, 0, a, 1 << 19).unwrap();
            free(&m, 0, b, 1 << 19).unwrap();
            last = b;
        }
        let zero = m.alloc(0, 0, at(64)).unwrap();
        assert_ne!(zero, m.alloc(0, 0, at(64)).unwrap());
    }

    #[test]
    fn only_live_blocks_are_claimed_and_freed_once() {
        let m = memory(1 << 16);
        let (a, pinned) = (m.alloc(0, 64, at(64)).unwrap(), m.alloc(1, 64, at(64)).unwrap());
        let said = |address, bytes| {
            let e = m.claim(address, bytes, |arena| arena != 1).err().unwrap();
            assert_eq!(e.code(), Code::InvalidArgument, "{e}");
            e.message().to_owned()
        };
        let local = 0u64;
        assert!(said((&raw const local).addr() as u64, 8).contains("no memory of this provider"));
        assert!(said(a, 65).contains("more than the 64 bytes"));
        assert!(said(a + 64, 1).contains("nothing is allocated"));
        assert!(said(pinned, 1).contains("out of reach"));
        for (address, bytes) in [(a, 63), (a + 1, 63), (0, 0), (pinned, 64)] {
            assert_eq!(free(&m, 0, address, bytes).unwrap_err().code(), Code::InvalidArgument);
        }
        free(&m, 0, a, 64).unwrap();
        assert!(said(a + 10, 1).contains("were freed"));
        let e = free(&m, 0, a, 64).unwrap_err();
        assert!(e.message().contains("were freed"), "{e}");
        free(&m, 1, pinned, 64).unwrap();
        assert!(m.take_misuse().is_none());
    }

    #[test]
    fn freeing_what_is_in_use_is_noted_and_the_work_fails() {
        let m = memory(1 << 16);
        let a = m.alloc(2, 8, at(64)).unwrap();
        let claim = m.claim(a, 8, any).unwrap();
        free(&m, 2, a, 8).unwrap();
        assert_eq!(claim.read().unwrap_err().code(), Code::Internal);
        assert_eq!(claim.write(0, &[0]).unwrap_err().code(), Code::Internal);
        let misuse = m.take_misuse().unwrap();
        assert!(misuse.message().contains("1 pieces of queued work"), "{misuse}");
        assert!(m.take_misuse().is_none());
    }

    #[test]
    fn pinned_memory_is_poisoned_where_the_host_sees_it() {
        let m = memory(1 << 16);
        let a = m.alloc(1, 8, at(64)).unwrap();
        let pointer = std::ptr::with_exposed_provenance_mut::<[u8; 8]>(a as usize);
        // SAFETY: pinned memory is mapped for as long as its instance lives, and only this test uses it.
        unsafe {
            assert_eq!(pointer.read(), [FRESH; 8]);
            pointer.write([7; 8]);
            assert_eq!(m.claim(a, 8, any).unwrap().read().unwrap(), [7; 8]);
            free(&m, 1, a, 8).unwrap();
            assert_eq!(pointer.read(), [FREED; 8]);
        }
    }
}
