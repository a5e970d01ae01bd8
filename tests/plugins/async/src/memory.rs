//! Memory that shows what is done wrong with it.
//!
//! Fresh memory is full of [`FRESH`], freed memory of [`FREED`] and stays mapped for a while, and the ranges that
//! queued work uses are known, so that freeing one of them, or using a freed one, is noticed.

use crate::lock;
use ep_core::provider::MemoryStats;
use ep_core::provider::inline::is_host;
use ep_core::{Error, Result};
use std::alloc::Layout;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;

/// What uninitialised memory looks like.
pub const FRESH: u8 = 0xa5;
/// What freed memory looks like.
pub const FREED: u8 = 0xdb;
/// How much freed memory stays mapped.
const QUARANTINE_BYTES: usize = 64 << 20;

/// A memory space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// Any memory of the host; what is not allocated here is nobody's business here.
    Host,
    /// Memory of the device with this number.
    Device(u32),
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Space::Host => f.write_str("host"),
            Space::Device(n) => write!(f, "async:{n}"),
        }
    }
}

impl Space {
    pub(crate) fn parse(name: &str) -> Result<Space> {
        if is_host(name) {
            return Ok(Space::Host);
        }
        let number = name.strip_prefix("async:").and_then(|n| n.parse().ok());
        number
            .map(Space::Device)
            .ok_or_else(|| Error::unsupported(format!("memory space `{name}` is not reachable from here")))
    }
}

/// Memory that a piece of work uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) space: Space,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

struct Block {
    space: Space,
    bytes: u64,
    layout: Layout,
    state: BlockState,
}

#[derive(PartialEq, Eq)]
enum BlockState {
    Live,
    /// Freed while in use: overwritten when that ends.
    Doomed,
    Freed,
}

/// The memory of all devices of all instances in this library: the "hardware".
static HARDWARE: Mutex<Hardware> = Mutex::new(Hardware {
    blocks: BTreeMap::new(),
    claims: BTreeMap::new(),
    next_claim: 0,
    quarantine: VecDeque::new(),
    quarantined: 0,
});

struct Hardware {
    /// By address; freed ones included while they are mapped.
    blocks: BTreeMap<u64, Block>,
    /// Ranges that queued work uses, by claim.
    claims: BTreeMap<u64, Vec<Range<u64>>>,
    next_claim: u64,
    quarantine: VecDeque<u64>,
    quarantined: usize,
}

/// Ranges in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim(u64);

impl Hardware {
    fn in_use(&self, range: &Range<u64>) -> bool {
        self.claims.values().flatten().any(|c| c.start < range.end && range.start < c.end)
    }

    /// Overwrites a block that nothing uses any more, and really frees the oldest ones beyond the quarantine.
    fn bury(&mut self, address: u64) {
        let Some(block) = self.blocks.get_mut(&address) else { return };
        block.state = BlockState::Freed;
        poison(address, block.layout.size(), FREED);
        self.quarantined += block.layout.size();
        self.quarantine.push_back(address);
        while self.quarantined > QUARANTINE_BYTES {
            let Some(&oldest) = self.quarantine.front() else { return };
            let Some(size) = self.blocks.get(&oldest).map(|b| b.layout.size()) else { return };
            if self.in_use(&(oldest..oldest + size as u64)) {
                return;
            }
            self.quarantine.pop_front();
            self.quarantined -= size;
            if let Some(block) = self.blocks.remove(&oldest) {
                let ptr = std::ptr::with_exposed_provenance_mut::<u8>(oldest as usize);
                // SAFETY: allocated in `alloc` with this layout; freed by its owner, in use by no queued work,
                // and forgotten just now, so only once.
                unsafe { std::alloc::dealloc(ptr, block.layout) };
            }
        }
    }
}

/// Overwrites a block. Only for blocks that no queued work uses.
fn poison(address: u64, bytes: usize, value: u8) {
    let ptr = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the callers pass blocks that are mapped and that nobody accesses: fresh, or freed and unused.
    unsafe { ptr.write_bytes(value, bytes) };
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut hw = lock(&HARDWARE);
        let Some(ranges) = hw.claims.remove(&self.0) else { return };
        let doomed: Vec<u64> = hw
            .blocks
            .iter()
            .filter(|(start, b)| {
                let block = **start..**start + b.bytes;
                b.state == BlockState::Doomed
                    && ranges.iter().any(|r| r.start < block.end && block.start < r.end)
                    && !hw.in_use(&block)
            })
            .map(|(start, _)| *start)
            .collect();
        doomed.into_iter().for_each(|address| hw.bury(address));
    }
}

/// Declares that work which is about to be queued uses this memory. Returns what is wrong too, if some of it has
/// been freed.
///
/// # Errors
/// `InvalidArgument` for ranges that are not (completely) memory of the space that they are said to be in.
pub(crate) fn claim(usages: &[Usage]) -> Result<(Claim, Option<String>)> {
    let mut hw = lock(&HARDWARE);
    let mut misuse = None;
    let mut ranges = Vec::new();
    for u in usages.iter().filter(|u| u.bytes > 0) {
        let end = u.address.checked_add(u.bytes);
        let end =
            end.ok_or_else(|| Error::invalid(format!("{} bytes at {:#x} wrap around", u.bytes, u.address)))?;
        let block =
            hw.blocks.range(..=u.address).next_back().filter(|(start, b)| u.address < **start + b.bytes);
        match block {
            None if u.space == Space::Host => {}
            Some((start, b)) if b.space == u.space && end <= start + b.bytes => {
                if b.state != BlockState::Live {
                    misuse = Some(format!("used after it was freed: {} bytes at {:#x}", u.bytes, u.address));
                }
            }
            found => {
                let found = found.map_or("nothing of this provider".to_owned(), |(start, b)| {
                    format!("a block of {} bytes at {start:#x} in `{}`", b.bytes, b.space)
                });
                return Err(Error::invalid(format!(
                    "{} bytes at {:#x} are not memory of `{}`: there is {found}",
                    u.bytes, u.address, u.space
                )));
            }
        }
        ranges.push(u.address..end);
    }
    let id = hw.next_claim;
    hw.next_claim += 1;
    hw.claims.insert(id, ranges);
    Ok((Claim(id), misuse))
}

/// A device's way to memory, with counters.
pub(crate) struct Pool {
    space: Space,
    limit: u64,
    oom_after: u64,
    stats: Mutex<MemoryStats>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        let stats = self.stats();
        if stats.in_use_blocks > 0 {
            tracing::error!("{} blocks of `{}` were never freed", stats.in_use_blocks, self.space);
        }
    }
}

impl Pool {
    /// Memory of `space`: at most `limit` bytes at a time, and only `oom_after` allocations.
    pub(crate) fn new(space: Space, limit: u64, oom_after: u64) -> Pool {
        Pool { space, limit, oom_after, stats: Mutex::default() }
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        *lock(&self.stats)
    }

    pub(crate) fn alloc(&self, bytes: u64, alignment: u64) -> Result<u64> {
        let mut stats = lock(&self.stats);
        if stats.total_allocs >= self.oom_after {
            return Err(Error::out_of_memory(format!(
                "{bytes} bytes of `{}`: option oom_after is {}",
                self.space, self.oom_after
            )));
        }
        let in_use = stats.in_use_bytes;
        if in_use.saturating_add(bytes) > self.limit {
            return Err(Error::out_of_memory(format!(
                "{bytes} bytes of `{}`: {in_use} of {} are in use",
                self.space, self.limit
            )));
        }
        let too_large = || Error::out_of_memory(format!("{bytes} bytes aligned to {alignment}"));
        // One byte for a size of 0 gives a unique, non-null address.
        let (size, align) = (usize::try_from(bytes.max(1)), usize::try_from(alignment));
        let layout = size.ok().zip(align.ok()).and_then(|(s, a)| Layout::from_size_align(s, a).ok());
        let layout = layout.ok_or_else(too_large)?;
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { std::alloc::alloc(layout) };
        if ptr.is_null() {
            return Err(too_large());
        }
        let address = ptr.expose_provenance() as u64;
        poison(address, layout.size(), FRESH);
        lock(&HARDWARE)
            .blocks
            .insert(address, Block { space: self.space, bytes, layout, state: BlockState::Live });
        stats.in_use_bytes += bytes;
        stats.in_use_blocks += 1;
        stats.reserved_bytes += bytes;
        stats.peak_in_use_bytes = stats.peak_in_use_bytes.max(stats.in_use_bytes);
        stats.total_allocs += 1;
        Ok(address)
    }

    /// Frees. Returns what is wrong if queued work still uses the memory.
    pub(crate) fn free(&self, address: u64, bytes: u64) -> Result<Option<String>> {
        let mut stats = lock(&self.stats);
        let mut hw = lock(&HARDWARE);
        let in_use = hw.in_use(&(address..address.saturating_add(bytes)));
        let space = self.space;
        let block = hw.blocks.get_mut(&address);
        let block = block.filter(|b| b.state == BlockState::Live && b.bytes == bytes && b.space == space);
        let Some(block) = block else {
            return Err(Error::invalid(format!(
                "{bytes} bytes at {address:#x} of `{space}` are not allocated"
            )));
        };
        let misuse = in_use.then(|| format!("freed while in use: {bytes} bytes at {address:#x}"));
        if in_use {
            block.state = BlockState::Doomed;
        } else {
            hw.bury(address);
        }
        stats.in_use_bytes -= bytes;
        stats.in_use_blocks -= 1;
        stats.reserved_bytes -= bytes;
        Ok(misuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::{Code, provider};

    fn bytes(address: u64, count: u64) -> Vec<u8> {
        // SAFETY: the tests pass blocks that are mapped, quarantined ones included, and that nobody writes.
        unsafe { provider::slice::<u8>(address, count as i64) }.to_vec()
    }

    #[test]
    fn fresh_and_freed_memory_show() {
        let pool = Pool::new(Space::Device(90), 1000, 3);
        let a = pool.alloc(600, 256).unwrap();
        assert!(a.is_multiple_of(256) && bytes(a, 600) == [FRESH; 600]);
        assert_eq!(pool.alloc(401, 64).unwrap_err().code(), Code::OutOfMemory);
        for (address, size) in [(a, 599), (a + 1, 600), (0, 0)] {
            assert_eq!(pool.free(address, size).unwrap_err().code(), Code::InvalidArgument);
        }
        assert_eq!(pool.free(a, 600), Ok(None));
        assert_eq!(bytes(a, 600), [FREED; 600]);
        assert!(pool.free(a, 600).is_err(), "twice");
        for _ in 0..2 {
            let zero = pool.alloc(0, 64).unwrap();
            pool.free(zero, 0).unwrap();
        }
        assert!(pool.alloc(1, 64).unwrap_err().message().contains("oom_after"));
        let s = pool.stats();
        assert_eq!((s.in_use_bytes, s.in_use_blocks, s.peak_in_use_bytes, s.total_allocs), (0, 0, 600, 3));
    }

    #[test]
    fn ranges_must_be_memory_of_their_space() {
        let space = Space::Device(91);
        let pool = Pool::new(space, u64::MAX, u64::MAX);
        let a = pool.alloc(100, 64).unwrap();
        let refused = |space, address, bytes| claim(&[Usage { space, address, bytes }]).is_err();
        assert!(!refused(space, a, 100) && !refused(space, a + 99, 1) && !refused(space, 0, 0));
        assert!(refused(space, a + 1, 100) && refused(space, a, u64::MAX));
        assert!(refused(Space::Device(92), a, 1) && refused(Space::Host, a, 1));
        let local = 0u64;
        let host = (&raw const local).expose_provenance() as u64;
        assert!(refused(space, host, 8) && !refused(Space::Host, host, 8));
        pool.free(a, 100).unwrap();
    }

    #[test]
    fn memory_freed_in_use_is_overwritten_when_the_use_ends() {
        let space = Space::Device(93);
        let pool = Pool::new(space, u64::MAX, u64::MAX);
        let a = pool.alloc(8, 64).unwrap();
        let usage = [Usage { space, address: a, bytes: 8 }];
        let (first, _) = claim(&usage).unwrap();
        let (second, misuse) = claim(&usage).unwrap();
        assert_eq!(misuse, None);
        let said = pool.free(a, 8).unwrap().unwrap();
        assert!(said.starts_with("freed while in use"), "{said}");
        drop(first);
        assert_eq!(bytes(a, 8), [FRESH; 8]);
        drop(second);
        assert_eq!(bytes(a, 8), [FREED; 8]);
        let said = claim(&usage).unwrap().1.unwrap();
        assert!(said.starts_with("used after it was freed"), "{said}");
    }

    #[test]
    fn the_quarantine_is_bounded() {
        let pool = Pool::new(Space::Device(94), u64::MAX, u64::MAX);
        for _ in 0..20 {
            let a = pool.alloc(8 << 20, 64).unwrap();
            pool.free(a, 8 << 20).unwrap();
        }
        assert!(lock(&HARDWARE).quarantined <= QUARANTINE_BYTES);
    }
}
