//! Memory: allocation, pools, copies and sets.

use super::devices::device;
use super::{Needs, call, give};
use crate::blocks::Place;
use crate::world::*;

pub(super) extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> i32 {
    call("cuMemGetInfo", "", Needs::Context, |w| {
        let used = w.used(w.device_of(w.current()?));
        give(free, (w.config.memory_bytes - used) as usize)?;
        give(total, w.config.memory_bytes as usize)
    })
}

pub(super) extern "C" fn memory_alloc(out: *mut u64, bytes: usize) -> i32 {
    call("cuMemAlloc", bytes, Needs::Context, |w| {
        let address = w.allocate(bytes, Place::Context(w.current()?))?;
        give(out, address)
    })
}

pub(super) extern "C" fn memory_free(address: u64) -> i32 {
    call("cuMemFree", format_args!("{address:#x}"), Needs::Release, |w| {
        // It waits for everything that may use the memory.
        let done = w.drain_all();
        w.release(address).and(done)
    })
}

pub(super) extern "C" fn pool_alloc(out: *mut u64, bytes: usize, pool: u64, stream: u64) -> i32 {
    call("cuMemAllocFromPoolAsync", format_args!("{bytes}, {pool:#x}, {stream:#x}"), Needs::Context, |w| {
        let recorded = w.capture_status(stream)? != 0;
        let device = *w.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        let address = w.allocate(bytes, Place::Pool { pool, device })?;
        if recorded {
            // It is the graph's then, which has it as long as it lives.
            if let Err(e) = w.enqueue(stream, Work::Allocate { address }) {
                return w.release(address).and(Err(e));
            }
            w.blocks.get_mut(&address).ok_or(INVALID_VALUE)?.of_graph = true;
        }
        give(out, address)
    })
}

pub(super) extern "C" fn free_async(address: u64, stream: u64) -> i32 {
    call("cuMemFreeAsync", format_args!("{address:#x}, {stream:#x}"), Needs::Release, |w| {
        w.free_later(address, stream)
    })
}

#[repr(C)]
pub(super) struct PoolProps {
    alloc_type: i32,
    handle_types: i32,
    location_kind: i32,
    location: i32,
}

pub(super) extern "C" fn pool_create(out: *mut u64, props: *const PoolProps) -> i32 {
    call("cuMemPoolCreate", "", Needs::Driver, |w| {
        if !w.config.pools {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: the caller's description.
        let props = unsafe { &*props };
        if (props.alloc_type, props.handle_types, props.location_kind) != (1, 0, 1) {
            return Err(INVALID_VALUE);
        }
        device(w, props.location)?;
        let handle = w.handle();
        w.pools.insert(handle, props.location);
        give(out, handle)
    })
}

pub(super) extern "C" fn pool_destroy(pool: u64) -> i32 {
    call("cuMemPoolDestroy", format_args!("{pool:#x}"), Needs::Release, |w| {
        w.access.retain(|(of, _)| *of != pool);
        w.pools.remove(&pool).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

pub(super) extern "C" fn pool_set(pool: u64, attribute: i32, _value: *const u64) -> i32 {
    call("cuMemPoolSetAttribute", format_args!("{pool:#x}, {attribute}"), Needs::Driver, |w| {
        if attribute != 4 {
            return Err(INVALID_VALUE);
        }
        w.pools.get(&pool).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

pub(super) extern "C" fn pool_get(pool: u64, attribute: i32, out: *mut u64) -> i32 {
    call("cuMemPoolGetAttribute", format_args!("{pool:#x}, {attribute}"), Needs::Driver, |w| {
        if attribute != 5 {
            return Err(INVALID_VALUE);
        }
        let device = *w.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        give(out, w.used(device))
    })
}

pub(super) extern "C" fn pool_trim(pool: u64, keep: usize) -> i32 {
    call("cuMemPoolTrimTo", format_args!("{pool:#x}, {keep}"), Needs::Driver, |w| {
        w.pools.get(&pool).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

pub(super) extern "C" fn pool_access(pool: u64, who: *const [i32; 3], count: usize) -> i32 {
    // SAFETY: the caller's description.
    let [kind, peer, flags] = unsafe { *who };
    call("cuMemPoolSetAccess", format_args!("{pool:#x}, {peer}"), Needs::Driver, |w| {
        device(w, peer)?;
        if (kind, flags, count) != (1, 3, 1) {
            return Err(INVALID_VALUE);
        }
        w.pools.get(&pool).map(|_| ()).ok_or(INVALID_HANDLE)?;
        w.access.push((pool, peer));
        Ok(())
    })
}

pub(super) extern "C" fn host_alloc(out: *mut u64, bytes: usize, flags: u32) -> i32 {
    call("cuMemHostAlloc", format_args!("{bytes}, {flags}"), Needs::Context, |w| {
        let address = w.allocate(bytes, Place::Pinned)?;
        give(out, address)
    })
}

pub(super) extern "C" fn host_free(address: u64) -> i32 {
    call("cuMemFreeHost", format_args!("{address:#x}"), Needs::Release, |w| {
        let done = w.drain_all();
        w.release(address).and(done)
    })
}

fn copy(w: &mut World, dst: u64, src: u64, bytes: usize, stream: u64) -> Outcome {
    w.locate(src, bytes)?;
    w.locate(dst, bytes)?;
    w.enqueue(stream, Work::Copy { dst, src, bytes })
}

pub(super) extern "C" fn memory_copy(dst: u64, src: u64, bytes: usize, stream: u64) -> i32 {
    call("cuMemcpyAsync", format_args!("{dst:#x}, {src:#x}, {bytes}, {stream:#x}"), Needs::Context, |w| {
        copy(w, dst, src, bytes, stream)
    })
}

pub(super) extern "C" fn peer_copy(dst: u64, to: u64, src: u64, from: u64, bytes: usize, stream: u64) -> i32 {
    let detail = format_args!("{dst:#x}, {to:#x}, {src:#x}, {from:#x}, {bytes}, {stream:#x}");
    call("cuMemcpyPeerAsync", detail, Needs::Context, |w| {
        if !w.contexts.contains_key(&to) || !w.contexts.contains_key(&from) {
            return Err(INVALID_CONTEXT);
        }
        w.lost(to).and(w.lost(from))?;
        copy(w, dst, src, bytes, stream)
    })
}

fn set(name: &str, dst: u64, width: usize, value: u32, count: usize, stream: u64) -> i32 {
    call(name, format_args!("{dst:#x}, {value:#x}, {count}, {stream:#x}"), Needs::Context, |w| {
        if !dst.is_multiple_of(width as u64) {
            return Err(INVALID_VALUE);
        }
        w.locate(dst, width * count)?;
        w.enqueue(stream, Work::Set { dst, width, value, count })
    })
}

pub(super) extern "C" fn set8(dst: u64, value: u8, count: usize, stream: u64) -> i32 {
    set("cuMemsetD8Async", dst, 1, value.into(), count, stream)
}

pub(super) extern "C" fn set16(dst: u64, value: u16, count: usize, stream: u64) -> i32 {
    set("cuMemsetD16Async", dst, 2, value.into(), count, stream)
}

pub(super) extern "C" fn set32(dst: u64, value: u32, count: usize, stream: u64) -> i32 {
    set("cuMemsetD32Async", dst, 4, value, count, stream)
}
