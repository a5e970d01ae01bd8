//! Allocators and copies.

use super::abi::{copied, has};
use super::objects::lock;
use super::{Defect, NONE, tables};
use crate::calls::*;
use crate::tables::{Tables, honest};
use ep_core::Result;
use ep_core::abi::*;
use ep_sim::{Call, DeviceMemory, Write};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;

pub const DEFECTS: [Defect; 8] = [
    tables("mem-default-alignment-of-small-blocks", |t| t.allocator.alloc = Some(alloc_small_blocks)),
    tables("mem-alignment-capped-at-a-page", |t| t.allocator.alloc = Some(alloc_on_pages)),
    tables("mem-huge-request-overflows", |t| {
        t.allocator.alloc = Some(alloc_overflowing);
        t.allocator.free = Some(free_overflowing);
    }),
    tables("mem-peak-only-when-asked", |t| {
        t.device.allocator_open = Some(open_noted);
        t.allocator.stats = Some(stats_notice_peak);
    }),
    tables("mem-failed-allocs-count", |t| {
        t.device.allocator_open = Some(open_noted);
        t.allocator.alloc = Some(alloc_counting);
        t.allocator.stats = Some(stats_with_failed);
    }),
    tables("mem-copy-loses-odd-tail", |t| t.stream.copy = Some(copy_in_words)),
    tables("mem-copy-rounds-source-down", |t| t.stream.copy = Some(copy_from_words)),
    Defect {
        tables: Some(|t: &mut Tables| t.stream.copy = Some(copy_in_32_bits)),
        ops: &["memcpy"],
        compute: memcpy_in_32_bits,
        ..Defect { id: "mem-copy-bytes-in-32-bits", ..NONE }
    },
];

thread_local! {
    /// How far behind its alignment the allocation under way is to lie.
    static SKEW: Cell<u64> = const { Cell::new(0) };
}

/// How far behind its alignment the allocation under way is to lie.
pub fn skew() -> u64 {
    SKEW.get()
}

/// An allocation behind its alignment.
///
/// # Safety
/// As `EpAllocatorTable.alloc`.
unsafe fn alloc_skewed(
    allocator: *mut EpAllocator,
    request: *const EpAllocRequest,
    out: *mut u64,
    skew: impl Fn(&EpAllocRequest) -> u64,
) -> *const EpStatus {
    // SAFETY: the host's request; one that cannot be read is refused by the SDK.
    SKEW.set(unsafe { copied(request) }.map_or(0, |r| skew(&r)));
    // SAFETY: as the caller promises.
    let status = unsafe { (has(honest().allocator.alloc))(allocator, request, out) };
    SKEW.set(0);
    status
}

unsafe extern "C" fn alloc_small_blocks(
    allocator: *mut EpAllocator,
    request: *const EpAllocRequest,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: the host's call.
    unsafe {
        alloc_skewed(allocator, request, out, |r| if r.alignment == 0 && r.bytes < 256 { 16 } else { 0 })
    }
}

unsafe extern "C" fn alloc_on_pages(
    allocator: *mut EpAllocator,
    request: *const EpAllocRequest,
    out: *mut u64,
) -> *const EpStatus {
    const PAGE: u64 = 4096;
    // SAFETY: the host's call.
    unsafe { alloc_skewed(allocator, request, out, |r| if r.alignment > PAGE { PAGE } else { 0 }) }
}

/// What a block has whose size wraps to nothing.
const LEAST: u64 = 256;

fn wraps(bytes: u64) -> bool {
    bytes > u64::MAX - (LEAST - 1)
}

unsafe extern "C" fn alloc_overflowing(
    allocator: *mut EpAllocator,
    request: *const EpAllocRequest,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: the host's call; requests that cannot be read are left to the SDK.
    unsafe {
        match copied(request) {
            Some(mut own) if wraps(own.bytes) => {
                own.bytes = LEAST;
                (has(honest().allocator.alloc))(allocator, &own, out)
            }
            _ => (has(honest().allocator.alloc))(allocator, request, out),
        }
    }
}

unsafe extern "C" fn free_overflowing(
    allocator: *mut EpAllocator,
    address: u64,
    bytes: u64,
) -> *const EpStatus {
    let bytes = if wraps(bytes) { LEAST } else { bytes };
    // SAFETY: the host's call, with the size that the block has.
    unsafe { (has(honest().allocator.free))(allocator, address, bytes) }
}

/// Which memory an allocator is of: the device's identity and the kind.
pub type Arena = ([u8; 16], u32);

static ARENAS: Mutex<BTreeMap<usize, Arena>> = Mutex::new(BTreeMap::new());

/// Which memory an allocator is of that was opened by [`open_noted`].
pub fn arena(allocator: *mut EpAllocator) -> Arena {
    lock(&ARENAS).get(&allocator.addr()).copied().unwrap_or_default()
}

pub unsafe extern "C" fn open_noted(
    device: *mut EpDevice,
    kind: u32,
    out: *mut *mut EpAllocator,
) -> *const EpStatus {
    let mut info = EpDeviceInfo::EMPTY;
    // SAFETY: the host's call; the SDK writes `out` where it succeeds, and knows its own device.
    unsafe {
        let status = (has(honest().device.allocator_open))(device, kind, out);
        if status.is_null() && (has(honest().device.info))(device, &mut info).is_null() {
            lock(&ARENAS).insert((*out).addr(), (info.uuid.bytes, kind));
        }
        status
    }
}

/// Changes the counters before the host gets them.
///
/// # Safety
/// As `EpAllocatorTable.stats`.
pub unsafe fn stats_changed(
    allocator: *mut EpAllocator,
    out: *mut EpMemoryStats,
    change: impl FnOnce(&mut EpMemoryStats),
) -> *const EpStatus {
    let mut own = EpMemoryStats::EMPTY;
    // SAFETY: as the caller promises, with room of our own; then the host's room, by what it says of it.
    unsafe {
        let status = (has(honest().allocator.stats))(allocator, &mut own);
        if !status.is_null() {
            return status;
        }
        change(&mut own);
        finish(|| write_struct(out, &own))
    }
}

unsafe extern "C" fn stats_notice_peak(
    allocator: *mut EpAllocator,
    out: *mut EpMemoryStats,
) -> *const EpStatus {
    static PEAKS: Mutex<BTreeMap<Arena, u64>> = Mutex::new(BTreeMap::new());
    // SAFETY: the host's call.
    unsafe {
        stats_changed(allocator, out, |stats| {
            let mut peaks = lock(&PEAKS);
            let peak = peaks.entry(arena(allocator)).or_default();
            *peak = stats.in_use_bytes.max(*peak);
            stats.peak_in_use_bytes = *peak;
        })
    }
}

/// Allocations that failed.
static FAILED: Mutex<BTreeMap<Arena, u64>> = Mutex::new(BTreeMap::new());

unsafe extern "C" fn alloc_counting(
    allocator: *mut EpAllocator,
    request: *const EpAllocRequest,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: the host's call.
    let status = unsafe { (has(honest().allocator.alloc))(allocator, request, out) };
    // SAFETY: a status that is not null is live until it is released.
    if !status.is_null() && unsafe { (*status).code } == ep_core::Code::OutOfMemory as i32 {
        *lock(&FAILED).entry(arena(allocator)).or_default() += 1;
    }
    status
}

unsafe extern "C" fn stats_with_failed(
    allocator: *mut EpAllocator,
    out: *mut EpMemoryStats,
) -> *const EpStatus {
    // SAFETY: the host's call.
    unsafe {
        stats_changed(allocator, out, |stats| {
            let failed = lock(&FAILED).get(&arena(allocator)).copied().unwrap_or(0);
            stats.total_allocs += failed;
            stats.in_use_blocks += failed;
        })
    }
}

/// Copies something else than was asked for.
///
/// # Safety
/// As `EpStreamTable.copy`.
pub unsafe fn copy_changed(
    stream: *mut EpStream,
    copy: *const EpCopy,
    change: impl FnOnce(&mut EpCopy),
) -> *const EpStatus {
    // SAFETY: the host's call; a copy that cannot be read is left to the SDK.
    unsafe {
        match copied(copy) {
            Some(mut own) => {
                change(&mut own);
                (has(honest().stream.copy))(stream, &own)
            }
            None => (has(honest().stream.copy))(stream, copy),
        }
    }
}

unsafe extern "C" fn copy_in_words(stream: *mut EpStream, copy: *const EpCopy) -> *const EpStatus {
    // SAFETY: the host's call.
    unsafe {
        copy_changed(stream, copy, |c| {
            if c.bytes >= 1 << 20 {
                c.bytes -= c.bytes % 4;
            }
        })
    }
}

/// Whether a memory space is the host's, plain or pinned.
///
/// # Safety
/// `space` is a live text.
pub unsafe fn is_host(space: EpStr) -> bool {
    // SAFETY: as the caller promises.
    let space = unsafe { string_of(space) };
    space == "host" || space.starts_with("host-pinned")
}

unsafe extern "C" fn copy_from_words(stream: *mut EpStream, copy: *const EpCopy) -> *const EpStatus {
    // SAFETY: the host's call; the texts live during it. The word that a source begins in belongs to its page.
    unsafe {
        copy_changed(stream, copy, |c| {
            if is_host(c.src_space) && !is_host(c.dst_space) && (16..=4096).contains(&c.bytes) {
                c.src &= !3;
            }
        })
    }
}

unsafe extern "C" fn copy_in_32_bits(stream: *mut EpStream, copy: *const EpCopy) -> *const EpStatus {
    // SAFETY: the host's call.
    unsafe { copy_changed(stream, copy, |c| c.bytes &= 0xffff_ffff) }
}

fn memcpy_in_32_bits(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let bytes = size(call, "bytes") & 0xffff_ffff;
    let mut writes = call.reference()?;
    writes.iter_mut().for_each(|w| w.bytes.truncate(bytes));
    Ok(writes)
}
