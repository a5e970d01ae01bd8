//! The functions of streams, events and allocators.

use super::super::{Allocator, CopyRequest, Event, Interface, Provider, Stream};
use super::graph::{StreamBox, stream_of};
use super::{AllocatorOf, EventOf, drop_object, entry, give, object};
use crate::Error;
use crate::abi::*;

pub(super) unsafe extern "C" fn stream_destroy<P: Provider>(stream: *mut EpStream) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, StreamBox<P>, _>(stream) }
}

pub(super) unsafe extern "C" fn stream_sync<P: Provider>(stream: *mut EpStream) -> *const EpStatus {
    // SAFETY: a live stream of ours.
    entry::<P>(|| unsafe { stream_of::<P>(stream) }?.idle("waiting")?.sync())
}

pub(super) unsafe extern "C" fn stream_query<P: Provider>(
    stream: *mut EpStream,
    out: *mut u32,
) -> *const EpStatus {
    // SAFETY: a live stream of ours; the out-pointer is the host's.
    entry::<P>(|| unsafe {
        give(out, stream_of::<P>(stream)?.idle("asking whether work is done")?.query()?.into())
    })
}

pub(super) unsafe extern "C" fn stream_copy<P: Provider>(
    stream: *mut EpStream,
    copy: *const EpCopy,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live stream of ours and the host's struct with its texts.
        let (stream, c) = unsafe { (&stream_of::<P>(stream)?.stream, read_struct(copy)?) };
        if c.bytes == 0 {
            return Ok(());
        }
        let ends = c.src.checked_add(c.bytes).zip(c.dst.checked_add(c.bytes));
        if c.src == 0 || c.dst == 0 || ends.is_none() {
            return Err(Error::invalid(format!(
                "a copy of {} bytes from {:#x} to {:#x}: addresses must not be null or wrap around",
                c.bytes, c.src, c.dst
            )));
        }
        // SAFETY: texts as above.
        let (dst_space, src_space) = unsafe { (str_of(c.dst_space)?, str_of(c.src_space)?) };
        // Equal addresses in two spaces are two places.
        if c.src == c.dst && src_space == dst_space {
            return Ok(());
        }
        // SAFETY: the ranges are valid as the host promises with every copy.
        unsafe { stream.copy(CopyRequest { dst: c.dst, dst_space, src: c.src, src_space, bytes: c.bytes }) }
    })
}

pub(super) unsafe extern "C" fn stream_record<P: Provider>(
    stream: *mut EpStream,
    event: *mut EpEvent,
) -> *const EpStatus {
    // SAFETY: a live stream and event of ours.
    entry::<P>(|| unsafe { stream_of::<P>(stream)?.idle("recording an event")?.record(object(event)?) })
}

pub(super) unsafe extern "C" fn stream_wait<P: Provider>(
    stream: *mut EpStream,
    event: *mut EpEvent,
) -> *const EpStatus {
    // SAFETY: a live stream and event of ours.
    entry::<P>(|| unsafe { stream_of::<P>(stream)?.idle("waiting for an event")?.wait(object(event)?) })
}

pub(super) unsafe extern "C" fn stream_interface<P: Provider>(
    stream: *mut EpStream,
    name: EpStr,
    version: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live stream of ours; the host's text.
        let (stream, name) = unsafe { (&stream_of::<P>(stream)?.stream, str_of(name)?) };
        let found = Interface::raw(stream.interface(name, version));
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, found) }
    })
}

pub(super) unsafe extern "C" fn event_destroy<P: Provider>(event: *mut EpEvent) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, EventOf<P>, _>(event) }
}

pub(super) unsafe extern "C" fn event_query<P: Provider>(
    event: *mut EpEvent,
    out: *mut u32,
) -> *const EpStatus {
    // SAFETY: a live event of ours; the out-pointer is the host's.
    entry::<P>(|| unsafe { give(out, object::<EventOf<P>, _>(event)?.query()?.into()) })
}

pub(super) unsafe extern "C" fn event_sync<P: Provider>(event: *mut EpEvent) -> *const EpStatus {
    // SAFETY: a live event of ours.
    entry::<P>(|| unsafe { object::<EventOf<P>, _>(event) }?.sync())
}

/// Default and smallest alignment of allocations.
const MIN_ALIGNMENT: u64 = 64;

pub(super) unsafe extern "C" fn allocator_destroy<P: Provider>(allocator: *mut EpAllocator) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, AllocatorOf<P>, _>(allocator) }
}

pub(super) unsafe extern "C" fn allocator_alloc<P: Provider>(
    allocator: *mut EpAllocator,
    request: *const EpAllocRequest,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live allocator of ours and the host's request.
        let (allocator, r) = unsafe { (object::<AllocatorOf<P>, _>(allocator)?, read_struct(request)?) };
        if r.alignment != 0 && !r.alignment.is_power_of_two() {
            return Err(Error::invalid(format!("alignment {} is not a power of two", r.alignment)));
        }
        // SAFETY: null or a live stream of ours.
        let stream = unsafe { r.stream.cast::<StreamBox<P>>().as_ref() };
        let stream = stream.map(|s| s.idle("allocating in the stream's order")).transpose()?;
        let address = allocator.alloc(r.bytes, r.alignment.max(MIN_ALIGNMENT), stream)?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, address) }
    })
}

pub(super) unsafe extern "C" fn allocator_free<P: Provider>(
    allocator: *mut EpAllocator,
    address: u64,
    bytes: u64,
) -> *const EpStatus {
    // SAFETY: a live allocator of ours.
    entry::<P>(|| unsafe { object::<AllocatorOf<P>, _>(allocator) }?.free(address, bytes))
}

pub(super) unsafe extern "C" fn allocator_free_async<P: Provider>(
    allocator: *mut EpAllocator,
    address: u64,
    bytes: u64,
    stream: *mut EpStream,
) -> *const EpStatus {
    // SAFETY: a live allocator and stream of ours.
    entry::<P>(|| unsafe {
        let stream = stream_of::<P>(stream)?.idle("freeing in the stream's order")?;
        object::<AllocatorOf<P>, _>(allocator)?.free_async(address, bytes, stream)
    })
}

pub(super) unsafe extern "C" fn allocator_stats<P: Provider>(
    allocator: *mut EpAllocator,
    out: *mut EpMemoryStats,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live allocator of ours.
        let s = unsafe { object::<AllocatorOf<P>, _>(allocator) }?.stats();
        let raw = EpMemoryStats {
            in_use_bytes: s.in_use_bytes,
            in_use_blocks: s.in_use_blocks,
            reserved_bytes: s.reserved_bytes,
            peak_in_use_bytes: s.peak_in_use_bytes,
            total_allocs: s.total_allocs,
            ..EpMemoryStats::EMPTY
        };
        // SAFETY: the out-struct is the host's.
        unsafe { write_struct(out, &raw) }
    })
}

pub(super) unsafe extern "C" fn allocator_trim<P: Provider>(allocator: *mut EpAllocator) -> *const EpStatus {
    // SAFETY: a live allocator of ours.
    entry::<P>(|| unsafe { object::<AllocatorOf<P>, _>(allocator) }?.trim())
}
