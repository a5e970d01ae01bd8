//! Memory of a device, from a stream-ordered pool where the device has such a thing, and pinned host memory.

use crate::context::Context;
use crate::driver::{CuPool, CuResult, CuStream, Failed, Location, PoolProps, constant};
use crate::stream::CudaStream;
use ep_core::provider::{Allocator, MemoryKind, MemoryStats};
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// The alignment that the driver gives by itself.
const DRIVER_ALIGNMENT: u64 = 256;

/// Scratch memory of a stream at least, once it has any.
const SCRATCH_BYTES: u64 = 1 << 20;

/// What the options say about memory.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a device that are handed out or scratch memory of streams at a time at most.
    pub memory_limit: u64,
    /// Bytes of freed memory that a device's pool keeps at most.
    pub cache_bytes: u64,
}

impl Default for Limits {
    /// None.
    fn default() -> Limits {
        Limits { memory_limit: u64::MAX, cache_bytes: u64::MAX }
    }
}

/// What has been handed out.
#[derive(Default)]
struct Ledger {
    blocks: HashMap<u64, Block>,
    stats: MemoryStats,
    /// Bytes of scratch memory of all streams.
    scratch: u64,
    /// Bytes that the driver is being asked for.
    asked: u64,
}

#[derive(Clone, Copy)]
struct Block {
    /// The driver's address, which is not larger than the one that was handed out.
    raw: u64,
    bytes: u64,
}

impl Ledger {
    fn add(&mut self, address: u64, block: Block) {
        self.blocks.insert(address, block);
        let s = &mut self.stats;
        s.in_use_bytes += block.bytes;
        s.in_use_blocks += 1;
        s.total_allocs += 1;
        s.peak_in_use_bytes = s.peak_in_use_bytes.max(s.in_use_bytes);
    }

    fn take(&mut self, address: u64) -> Result<Block> {
        let block = self.blocks.remove(&address).ok_or_else(|| {
            Error::invalid(format!(
                "free of address {address:#x}, which is not allocated here or was freed before"
            ))
        })?;
        self.stats.in_use_bytes -= block.bytes;
        self.stats.in_use_blocks -= 1;
        Ok(block)
    }
}

/// The memory of a context.
pub(crate) struct Pool {
    limits: Limits,
    raw: Option<RawPool>,
    device: Mutex<Ledger>,
    pinned: Mutex<Ledger>,
}

/// A pool of the driver, and the stream on which requests that name none are ordered.
#[derive(Clone, Copy)]
pub(crate) struct RawPool {
    pool: CuPool,
    stream: CuStream,
}

impl Pool {
    pub(crate) fn new(limits: Limits) -> Pool {
        Pool { limits, raw: None, device: Mutex::default(), pinned: Mutex::default() }
    }

    pub(crate) fn set_raw(&mut self, raw: RawPool) {
        self.raw = Some(raw);
    }

    pub(crate) fn raw(&self) -> Option<CuPool> {
        self.raw.map(|r| r.pool)
    }

    /// Room for so many bytes of a kind more, if the limit has it, which is of the device's memory.
    fn admit(&self, kind: MemoryKind, bytes: u64) -> Result<Room<'_>> {
        let ledger = self.ledger(kind);
        let mut locked = ledger.lock();
        // As much as one may ask for that no driver gives, what others are given beside it may exceed the sum.
        let in_use = locked.stats.in_use_bytes.saturating_add(locked.scratch).saturating_add(locked.asked);
        if kind == MemoryKind::Device && in_use.saturating_add(bytes) > self.limits.memory_limit {
            return Err(Error::out_of_memory(format!(
                "{bytes} bytes are asked for, {in_use} of the {} of option `memory_limit` are in use; raise \
                 it, or free buffers",
                self.limits.memory_limit
            )));
        }
        // Without a limit sizes that no driver has come this far.
        let bytes = bytes.min(u64::MAX - in_use);
        locked.asked += bytes;
        Ok(Room { ledger, bytes })
    }

    fn ledger(&self, kind: MemoryKind) -> &Mutex<Ledger> {
        match kind {
            MemoryKind::Device => &self.device,
            MemoryKind::PinnedHost => &self.pinned,
        }
    }
}

/// Room that nobody else is given while the driver is asked for memory.
struct Room<'a> {
    ledger: &'a Mutex<Ledger>,
    bytes: u64,
}

impl Room<'_> {
    /// The driver had it: it is counted as what it has become.
    fn fill(mut self, count: impl FnOnce(&mut Ledger)) {
        let mut ledger = self.ledger.lock();
        ledger.asked -= std::mem::take(&mut self.bytes);
        count(&mut ledger);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.ledger.lock().asked -= self.bytes;
        }
    }
}

/// Makes a pool in the current context.
pub(crate) fn open_pool(context: &Context) -> Result<RawPool> {
    let driver = context.driver();
    let props = PoolProps {
        alloc_type: 1,
        handle_types: 0,
        location: Location::device(context.device()),
        security: std::ptr::null(),
        max_size: 0,
        reserved: [0; 56],
    };
    let mut pool = CuPool::NULL;
    // SAFETY: a valid out-pointer and a complete description.
    unsafe { driver.cuMemPoolCreate(&mut pool, &props) }.map_err(|e| context.error(e))?;
    let keep = context.pool().limits.cache_bytes;
    let mut stream = CuStream::NULL;
    // SAFETY: a live pool, a u64 as the attribute wants it, a valid out-pointer.
    let rest = unsafe {
        driver
            .cuMemPoolSetAttribute(pool, constant::POOL_ATTR_RELEASE_THRESHOLD, (&raw const keep).cast())
            .and_then(|()| driver.cuStreamCreateWithPriority(&mut stream, constant::STREAM_NON_BLOCKING, 0))
    };
    if let Err(e) = rest {
        // SAFETY: made above, with nothing in it.
        context.log("destroying a memory pool", unsafe { driver.cuMemPoolDestroy(pool) });
        return Err(context.error(e));
    }
    Ok(RawPool { pool, stream })
}

/// Ends the pool of the current context.
pub(crate) fn close_pool(context: &Context) {
    let Some(RawPool { pool, stream }) = context.pool().raw else { return };
    // SAFETY: made by `open_pool`, used by nobody any more.
    unsafe {
        context.log("destroying a stream", context.driver().cuStreamDestroy(stream));
        context.log("destroying a memory pool", context.driver().cuMemPoolDestroy(pool));
    }
}

/// Memory that the work of one stream uses, one piece after the other: it grows in the stream's order. It is held like what
/// is handed out and counts towards the limit, but is not handed out: of the statistics `reserved_bytes` has it.
#[derive(Default)]
pub(crate) struct Scratch {
    address: Cell<u64>,
    bytes: Cell<u64>,
}

impl Scratch {
    /// At least so many bytes, at a multiple of 256; none where the limit has no room for them, and then what there was
    /// stays.
    pub(crate) fn reserve(&self, context: &Context, stream: CuStream, bytes: u64) -> Result<Option<u64>> {
        let held = self.bytes.get();
        if bytes <= held {
            return Ok(Some(self.address.get()));
        }
        let pool = context.pool();
        let grown = |size: u64| Some((size, pool.admit(MemoryKind::Device, size - held).ok()?));
        let Some((size, room)) = [bytes.max(SCRATCH_BYTES), bytes].into_iter().find_map(grown) else {
            return Ok(None);
        };
        let _current = context.enter()?;
        // What it has held until now is counted on, as part of the new size.
        self.free(context, stream);
        let mut address = 0;
        // SAFETY: a valid out-pointer; pool and stream are live, the context is current.
        let taken = unsafe {
            match (usize::try_from(size), pool.raw) {
                (Err(e), _) => Err(Error::out_of_memory(e.to_string())),
                (Ok(size), Some(own)) => context
                    .driver()
                    .cuMemAllocFromPoolAsync(&mut address, size, own.pool, stream)
                    .map_err(|e| context.error(e)),
                (Ok(size), None) => {
                    context.driver().cuMemAlloc(&mut address, size).map_err(|e| context.error(e))
                }
            }
        };
        if let Err(e) = taken {
            pool.device.lock().scratch -= held;
            return Err(e.context(format!("{size} bytes of scratch memory")));
        }
        room.fill(|ledger| ledger.scratch += size - held);
        self.address.set(address);
        self.bytes.set(size);
        Ok(Some(address))
    }

    /// Gives it back behind the stream's work. The context is current.
    pub(crate) fn close(&self, context: &Context, stream: CuStream) {
        let bytes = self.bytes.get();
        self.free(context, stream);
        context.pool().device.lock().scratch -= bytes;
    }

    /// The same, and it is counted on.
    fn free(&self, context: &Context, stream: CuStream) {
        if self.bytes.replace(0) == 0 {
            return;
        }
        let (driver, address) = (context.driver(), self.address.get());
        // SAFETY: from `reserve`, given back once; without a pool, freeing waits for all work.
        let freed = unsafe {
            match context.pool().raw {
                Some(_) => driver.cuMemFreeAsync(address, stream),
                None => driver.cuMemFree(address),
            }
        };
        context.log("freeing scratch memory", freed);
    }
}

/// A source of memory of one kind. All of one device and kind share their counters.
pub struct CudaAllocator {
    context: Arc<Context>,
    kind: MemoryKind,
}

impl CudaAllocator {
    pub(crate) fn new(context: Arc<Context>, kind: MemoryKind) -> CudaAllocator {
        CudaAllocator { context, kind }
    }

    /// Asks the driver. The context is current.
    fn take(&self, bytes: usize, stream: Option<CuStream>) -> std::result::Result<u64, Failed> {
        let driver = self.context.driver();
        let mut address = 0;
        // SAFETY: valid out-pointers; the pool and the streams are live.
        unsafe {
            match (self.kind, self.context.pool().raw) {
                (MemoryKind::PinnedHost, _) => {
                    let mut memory: *mut c_void = std::ptr::null_mut();
                    driver.cuMemHostAlloc(&mut memory, bytes, constant::MEMHOSTALLOC_PORTABLE)?;
                    address = memory.expose_provenance() as u64;
                }
                (MemoryKind::Device, Some(own)) => {
                    let ordered = stream.unwrap_or(own.stream);
                    driver.cuMemAllocFromPoolAsync(&mut address, bytes, own.pool, ordered)?;
                    if stream.is_none() {
                        // The memory may be used anywhere, so it must be there now.
                        if let Err(e) = driver.cuStreamSynchronize(own.stream) {
                            self.context.log("freeing memory", driver.cuMemFreeAsync(address, own.stream));
                            return Err(e);
                        }
                    }
                }
                (MemoryKind::Device, None) => driver.cuMemAlloc(&mut address, bytes)?,
            }
        }
        Ok(address)
    }

    /// Gives back to the driver. The context is current.
    fn give(&self, raw: u64, stream: Option<CuStream>) -> std::result::Result<(), Failed> {
        let driver = self.context.driver();
        // SAFETY: from `take`, given back once, as the ledger knows.
        unsafe {
            match (self.kind, self.context.pool().raw) {
                (MemoryKind::PinnedHost, _) => {
                    driver.cuMemFreeHost(std::ptr::with_exposed_provenance_mut(raw as usize))
                }
                (MemoryKind::Device, Some(own)) => driver.cuMemFreeAsync(raw, stream.unwrap_or(own.stream)),
                (MemoryKind::Device, None) => driver.cuMemFree(raw),
            }
        }
    }

    #[cold]
    fn refused(&self, bytes: u64, failed: Failed) -> Error {
        let error = self.context.error(failed);
        if failed.result != CuResult::OUT_OF_MEMORY {
            return error.context(format!("allocating {bytes} bytes"));
        }
        let in_use = self.stats().in_use_bytes;
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid out-pointers; the context is current.
        let room = match unsafe { self.context.driver().cuMemGetInfo(&mut free, &mut total) } {
            Ok(()) if self.kind == MemoryKind::Device => {
                format!(", and {free} of the device's {total} are free")
            }
            _ => String::new(),
        };
        Error::new(
            error.code(),
            format!("{bytes} bytes are asked for, {in_use} are in use here{room}: {error}"),
        )
    }

    /// Memory that is taken or given back while a stream records would be the graph's own, and waiting for the stream would
    /// spoil the recording.
    fn not_recording(&self, stream: &CudaStream) -> Result<()> {
        if !stream.is_capturing()? {
            return Ok(());
        }
        Err(Error::invalid(
            "memory cannot be allocated or freed in the order of a stream that records a graph; do it without the \
             stream, or end the recording first",
        ))
    }

    /// Frees, ordered on a stream or at once.
    fn free_on(&self, address: u64, stream: Option<CuStream>) -> Result<()> {
        let block = self.context.pool().ledger(self.kind).lock().take(address)?;
        let entered = self.context.enter();
        // Also where it cannot be entered, so that nothing is left behind.
        let given = self.give(block.raw, stream).map_err(|e| self.context.error(e));
        entered?;
        given
    }
}

impl Allocator for CudaAllocator {
    type Stream = CudaStream;

    const STREAM_ORDERED: bool = true;

    fn alloc(&self, bytes: u64, alignment: u64, stream: Option<&CudaStream>) -> Result<u64> {
        let room = self.context.pool().admit(self.kind, bytes)?;
        if let (MemoryKind::Device, Some(stream)) = (self.kind, stream) {
            self.not_recording(stream)?;
        }
        // An empty allocation has an address of its own too.
        let padding = alignment.saturating_sub(DRIVER_ALIGNMENT);
        let size =
            bytes.max(1).checked_add(padding).and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
                Error::out_of_memory(format!(
                    "{bytes} bytes at a multiple of {alignment}: more than an address space"
                ))
            })?;
        let _current = self.context.enter()?;
        let raw = self.take(size, stream.map(CudaStream::raw)).map_err(|e| self.refused(bytes, e))?;
        let address = raw.next_multiple_of(alignment);
        room.fill(|ledger| ledger.add(address, Block { raw, bytes }));
        Ok(address)
    }

    fn free(&self, address: u64, _: u64) -> Result<()> {
        self.free_on(address, None)
    }

    fn free_async(&self, address: u64, _: u64, stream: &CudaStream) -> Result<()> {
        self.not_recording(stream)?;
        if self.kind == MemoryKind::PinnedHost || self.context.pool().raw.is_none() {
            let _current = self.context.enter()?;
            // A lost device does nothing more.
            stream.wait_untold().or_else(|e| if self.context.is_lost() { Ok(()) } else { Err(e) })?;
            return self.free_on(address, None);
        }
        self.free_on(address, Some(stream.raw()))
    }

    fn stats(&self) -> MemoryStats {
        let pool = self.context.pool();
        let (mut stats, scratch) = {
            let ledger = pool.ledger(self.kind).lock();
            (ledger.stats, ledger.scratch)
        };
        stats.reserved_bytes = stats.in_use_bytes + scratch;
        if let (MemoryKind::Device, Some(own)) = (self.kind, pool.raw) {
            let mut reserved = 0u64;
            // SAFETY: a live pool and a u64 as the attribute wants it.
            let result = unsafe {
                self.context.driver().cuMemPoolGetAttribute(
                    own.pool,
                    constant::POOL_ATTR_RESERVED_MEM_CURRENT,
                    (&raw mut reserved).cast(),
                )
            };
            match result {
                Ok(()) => stats.reserved_bytes = reserved,
                Err(e) => self.context.log("asking for a pool's size", Err(e)),
            }
        }
        stats
    }

    fn trim(&self) -> Result<()> {
        let Some(own) = self.context.pool().raw else { return Ok(()) };
        let _current = self.context.enter()?;
        // SAFETY: live objects. Frees are ordered on this stream, so they have to be done.
        unsafe {
            let driver = self.context.driver();
            driver.cuStreamSynchronize(own.stream).and_then(|()| driver.cuMemPoolTrimTo(own.pool, 0))
        }
        .map_err(|e| self.context.error(e))
    }
}
