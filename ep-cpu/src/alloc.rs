//! The CPU allocator: aligned blocks, kept for reuse after they are freed.
//!
//! Fresh memory is slow, not because of the allocator but because of page faults: touching 64 MiB for the
//! first time takes several times as long as computing on it. So freed blocks are kept, up to a bound, and
//! big blocks are advised to be backed by huge pages. The lock guards bookkeeping only; the system is called
//! outside it.

use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::alloc::Layout;
use std::collections::HashMap;
use std::ptr::NonNull;

/// Every block is aligned to at least this many bytes: a cache line, and the widest vector.
pub const MIN_ALIGN: usize = 64;
/// Blocks of this size or more are aligned to it.
const PAGE: usize = 4096;
/// The largest alignment that can be asked for, and that of blocks of this size or more.
pub const MAX_ALIGN: usize = 2 << 20;
/// How many bytes of freed blocks are kept unless [`CachingAllocator::with_cache_bytes`] says otherwise.
pub const DEFAULT_CACHE_BYTES: usize = 1 << 30;

/// What an allocator holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorStats {
    /// Bytes that callers asked for and have not freed.
    pub in_use_bytes: usize,
    /// Blocks not freed.
    pub in_use_blocks: usize,
    /// Bytes held from the system: blocks in use with their rounding, and kept ones.
    pub reserved_bytes: usize,
    /// The largest value that `in_use_bytes` ever had.
    pub peak_in_use_bytes: usize,
    /// Successful allocations so far.
    pub alloc_count: u64,
}

/// A thread-safe allocator that reuses freed blocks.
///
/// Dropping it returns the kept blocks to the system. Blocks still in use then stay valid and are never
/// freed: a leak is the lesser harm next to memory that vanishes under its user.
#[derive(Debug)]
pub struct CachingAllocator {
    state: Mutex<State>,
    limit: Option<usize>,
    cache_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    live: HashMap<NonZeroAddress, Live>,
    free: HashMap<Class, Vec<Block>>,
    /// Bytes in `free`.
    kept_bytes: usize,
    stats: AllocatorStats,
}

type NonZeroAddress = std::num::NonZeroUsize;

/// The rounded size and alignment of a block; blocks of one class stand in for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    size: usize,
    align: usize,
}

#[derive(Debug)]
struct Live {
    block: Block,
    class: Class,
    requested: usize,
}

/// A block that this allocator owns.
#[derive(Debug)]
struct Block(NonNull<u8>);

// SAFETY: the block is plain memory that no thread is tied to, and only its holder uses the address.
unsafe impl Send for Block {}

impl Class {
    /// Rounds up to four sizes per doubling, which wastes at most a fifth of a block, and whole huge
    /// pages for big ones. `None` where no address space is that large.
    fn of(bytes: usize, align: usize) -> Option<Class> {
        let bytes = bytes.max(MIN_ALIGN);
        let step = (bytes.checked_next_power_of_two()? / 8).max(MIN_ALIGN);
        let mut size = bytes.checked_next_multiple_of(step)?;
        if size >= MAX_ALIGN {
            size = size.checked_next_multiple_of(MAX_ALIGN)?;
        }
        let natural = match size {
            MAX_ALIGN.. => MAX_ALIGN,
            PAGE.. => PAGE,
            _ => MIN_ALIGN,
        };
        let class = Class { size, align: natural.max(align) };
        class.layout().map(|_| class)
    }

    fn layout(self) -> Option<Layout> {
        Layout::from_size_align(self.size, self.align).ok()
    }
}

impl CachingAllocator {
    /// An allocator that holds at most `limit` bytes from the system, rounding and kept blocks included;
    /// `None` for no limit of its own.
    pub fn new(limit: Option<usize>) -> Self {
        Self { state: Mutex::default(), limit, cache_bytes: DEFAULT_CACHE_BYTES }
    }

    /// The same allocator, keeping at most `bytes` of freed blocks.
    #[must_use]
    pub fn with_cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Allocates `bytes` of uninitialised memory aligned to `align` and at least [`MIN_ALIGN`]; from 4 KiB
    /// on to pages, from 2 MiB on to huge pages. Zero bytes give an address unlike that of any other block.
    ///
    /// # Errors
    /// `InvalidArgument` if `align` is not a power of two up to [`MAX_ALIGN`] (zero means no wish);
    /// `OutOfMemory` if the limit or the system does not allow it, even after giving up all kept blocks.
    pub fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>> {
        let align = align.max(1);
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(Error::invalid(format!(
                "allocation asked for alignment {align}; it must be a power of two up to {MAX_ALIGN}"
            )));
        }
        let class = Class::of(bytes, align).ok_or_else(|| {
            Error::out_of_memory(format!("{bytes} bytes are more than an address space holds"))
        })?;
        if let Some(address) = self.reuse(class, bytes) {
            return Ok(address);
        }
        self.reserve(class, bytes)?;
        let block = system_alloc(class).or_else(|| {
            self.trim();
            system_alloc(class)
        });
        let mut state = self.state.lock();
        match block {
            Some(block) => Ok(state.hand_out(block, class, bytes)),
            None => {
                state.stats.reserved_bytes -= class.size;
                Err(Error::out_of_memory(format!(
                    "the system refused {} bytes (for a request of {bytes}) with {} bytes in use in {} blocks",
                    class.size, state.stats.in_use_bytes, state.stats.in_use_blocks
                )))
            }
        }
    }

    fn reuse(&self, class: Class, bytes: usize) -> Option<NonNull<u8>> {
        let mut state = self.state.lock();
        let block = state.free.get_mut(&class)?.pop()?;
        state.kept_bytes -= class.size;
        Some(state.hand_out(block, class, bytes))
    }

    /// Counts a new block in before it exists, so that threads racing for the last bytes cannot both win.
    fn reserve(&self, class: Class, bytes: usize) -> Result<()> {
        let mut evicted = Vec::new();
        let mut state = self.state.lock();
        let fits = |state: &State| {
            self.limit.is_none_or(|limit| {
                state.stats.reserved_bytes.checked_add(class.size).is_some_and(|sum| sum <= limit)
            })
        };
        if !fits(&state) {
            evicted = state.take_kept();
        }
        let fits = fits(&state);
        if fits {
            state.stats.reserved_bytes += class.size;
        }
        let (in_use, reserved) = (state.stats.in_use_bytes, state.stats.reserved_bytes);
        drop(state);
        release(evicted);
        if fits {
            return Ok(());
        }
        Err(Error::out_of_memory(format!(
            "{bytes} bytes ({} with rounding) do not fit: {in_use} bytes are in use, {reserved} with rounding, \
             and the limit is {}",
            class.size,
            self.limit.unwrap_or(usize::MAX)
        )))
    }

    /// Takes back a block; it may be handed out again at once.
    ///
    /// # Errors
    /// `InvalidArgument` if `address` is not that of a block in use here: freed before, or never allocated.
    /// Nothing is touched then.
    pub fn deallocate(&self, address: NonNull<u8>) -> Result<()> {
        let mut state = self.state.lock();
        let Some(Live { block, class, requested }) = state.live.remove(&address.addr()) else {
            return Err(Error::invalid(format!(
                "free of {address:p}, which is no block in use of this allocator: freed already, or from elsewhere"
            )));
        };
        state.stats.in_use_bytes -= requested;
        state.stats.in_use_blocks -= 1;
        if state.kept_bytes.checked_add(class.size).is_some_and(|sum| sum <= self.cache_bytes) {
            state.kept_bytes += class.size;
            state.free.entry(class).or_default().push(block);
            return Ok(());
        }
        state.stats.reserved_bytes -= class.size;
        drop(state);
        release(vec![(class, block)]);
        Ok(())
    }

    /// Returns all kept blocks to the system.
    pub fn trim(&self) {
        let kept = self.state.lock().take_kept();
        release(kept);
    }

    /// What is held now.
    pub fn stats(&self) -> AllocatorStats {
        self.state.lock().stats
    }
}

impl Drop for CachingAllocator {
    fn drop(&mut self) {
        self.trim();
    }
}

impl State {
    fn hand_out(&mut self, block: Block, class: Class, requested: usize) -> NonNull<u8> {
        let address = block.0;
        self.live.insert(address.addr(), Live { block, class, requested });
        let stats = &mut self.stats;
        stats.alloc_count += 1;
        stats.in_use_blocks += 1;
        stats.in_use_bytes += requested;
        stats.peak_in_use_bytes = stats.peak_in_use_bytes.max(stats.in_use_bytes);
        address
    }

    fn take_kept(&mut self) -> Vec<(Class, Block)> {
        self.stats.reserved_bytes -= self.kept_bytes;
        self.kept_bytes = 0;
        self.free.drain().flat_map(|(class, blocks)| blocks.into_iter().map(move |b| (class, b))).collect()
    }
}

fn system_alloc(class: Class) -> Option<Block> {
    let layout = class.layout()?;
    // SAFETY: no class has size zero.
    let block = Block(NonNull::new(unsafe { std::alloc::alloc(layout) })?);
    #[cfg(target_os = "linux")]
    if class.size >= MAX_ALIGN {
        // Only advice: where huge pages are off this fails, and the memory is as good as before.
        // SAFETY: the range is ours, and the advice changes how it is backed, not what it holds.
        unsafe { libc::madvise(block.0.as_ptr().cast(), class.size, libc::MADV_HUGEPAGE) };
    }
    Some(block)
}

fn release(blocks: Vec<(Class, Block)>) {
    for (class, block) in blocks {
        let layout = class.layout().expect("checked when the class was made");
        // SAFETY: the block came from `alloc` with this layout, and its only owner gives it up here.
        unsafe { std::alloc::dealloc(block.0.as_ptr(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;
    use proptest::prelude::*;

    fn fill(p: NonNull<u8>, bytes: usize, value: u8) {
        // SAFETY: the tests pass blocks of at least `bytes` bytes.
        unsafe { p.as_ptr().write_bytes(value, bytes) }
    }

    fn holds(p: NonNull<u8>, bytes: usize, value: u8) -> bool {
        // SAFETY: the tests pass blocks that `fill` wrote.
        unsafe { std::slice::from_raw_parts(p.as_ptr(), bytes) }.iter().all(|&b| b == value)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn blocks_are_aligned_apart_and_counted(
            requests in prop::collection::vec((0usize..40_000, 0u32..=21, any::<bool>()), 1..40),
        ) {
            let a = CachingAllocator::new(None).with_cache_bytes(100_000);
            let mut live: Vec<(NonNull<u8>, usize, u8)> = Vec::new();
            let mut peak = 0;
            for (i, &(bytes, align_log2, free)) in requests.iter().enumerate() {
                let p = a.allocate(bytes, 1 << align_log2).unwrap();
                prop_assert_eq!(p.addr().get() % (1usize << align_log2).max(64), 0);
                prop_assert!(bytes < PAGE || p.addr().get().is_multiple_of(PAGE));
                fill(p, bytes, i as u8);
                live.push((p, bytes, i as u8));
                let in_use: usize = live.iter().map(|l| l.1).sum();
                peak = peak.max(in_use);
                let s = a.stats();
                prop_assert_eq!((s.in_use_bytes, s.in_use_blocks), (in_use, live.len()));
                prop_assert!(s.reserved_bytes >= in_use && s.reserved_bytes <= in_use * 5 / 4 + 64 * live.len() + 100_000 + 64);
                if free {
                    let (p, bytes, value) = live.swap_remove(i % live.len());
                    prop_assert!(holds(p, bytes, value));
                    a.deallocate(p).unwrap();
                    prop_assert_eq!(a.deallocate(p).unwrap_err().code(), Code::InvalidArgument);
                }
            }
            prop_assert!(live.iter().all(|&(p, bytes, value)| holds(p, bytes, value)));
            let s = a.stats();
            prop_assert_eq!((s.peak_in_use_bytes, s.alloc_count), (peak, requests.len() as u64));
            for (p, ..) in live {
                a.deallocate(p).unwrap();
            }
            prop_assert!(a.stats().reserved_bytes <= 100_000);
            a.trim();
            prop_assert_eq!((a.stats().reserved_bytes, a.stats().in_use_bytes), (0, 0));
        }
    }

    #[test]
    fn freed_blocks_come_back_and_zero_bytes_are_unique() {
        let a = CachingAllocator::new(None);
        let p = a.allocate(10 << 20, 0).unwrap();
        assert_eq!(p.addr().get() % MAX_ALIGN, 0);
        fill(p, 10 << 20, 7);
        a.deallocate(p).unwrap();
        assert_eq!(a.allocate(10 << 20, 64).unwrap(), p);
        let (x, y) = (a.allocate(0, 1).unwrap(), a.allocate(0, 1).unwrap());
        assert_ne!(x, y);
        assert_eq!(a.stats().in_use_bytes, 10 << 20);
        for block in [p, x, y] {
            a.deallocate(block).unwrap();
        }
    }

    #[test]
    fn limit_and_system_refusals_are_errors_with_numbers() {
        let a = CachingAllocator::new(Some(1 << 20));
        let p = a.allocate(600_000, 0).unwrap();
        let e = a.allocate(600_000, 0).unwrap_err();
        assert_eq!(e.code(), Code::OutOfMemory);
        assert!(e.message().contains("600000") && e.message().contains("1048576"), "{e}");
        a.deallocate(p).unwrap();
        // The kept block is of another class, and has to make room.
        let q = a.allocate(1 << 20, 0).unwrap();
        assert_eq!(a.stats().reserved_bytes, 1 << 20);
        a.deallocate(q).unwrap();

        let a = CachingAllocator::new(None);
        for bytes in [1 << 55, isize::MAX as usize, usize::MAX, usize::MAX - 4096] {
            assert_eq!(a.allocate(bytes, 0).unwrap_err().code(), Code::OutOfMemory, "{bytes}");
        }
        for align in [3, 4 << 20, usize::MAX] {
            assert_eq!(a.allocate(1, align).unwrap_err().code(), Code::InvalidArgument, "{align}");
        }
        assert_eq!(a.stats(), AllocatorStats::default());
        assert_eq!(a.deallocate(NonNull::dangling()).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn threads_share_it() {
        let a = CachingAllocator::new(Some(8 << 20)).with_cache_bytes(1 << 20);
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let a = &a;
                s.spawn(move || {
                    for i in 0..300usize {
                        let bytes = 1 + (i * 7919 + t as usize * 104_729) % 300_000;
                        let p = a.allocate(bytes, 0).unwrap();
                        fill(p, bytes, t);
                        std::thread::yield_now();
                        assert!(holds(p, bytes, t));
                        a.deallocate(p).unwrap();
                    }
                });
            }
        });
        let s = a.stats();
        assert_eq!((s.in_use_blocks, s.in_use_bytes, s.alloc_count), (0, 0, 1200));
        assert!(s.reserved_bytes <= 1 << 20 && s.peak_in_use_bytes <= 8 << 20);
    }
}
