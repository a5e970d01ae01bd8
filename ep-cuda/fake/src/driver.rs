//! The functions of the driver, found through `cuGetProcAddress`.

use crate::cubin;
use crate::world::*;
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Display;

/// What a call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: `cuInit`, and what tells of errors.
    Nothing,
    /// An initialized driver.
    Driver,
    /// A current context.
    Context,
    /// As `Driver`, and it does its work even where an earlier error, or the one asked for, is what it returns.
    Release,
}

/// One call: logged, counted, perhaps failed.
pub(crate) fn call(
    name: &str,
    detail: impl Display,
    needs: Needs,
    body: impl FnOnce(&mut World) -> Outcome,
) -> i32 {
    world(|w| {
        w.calls += 1;
        let number = w.calls;
        let mut early = None;
        if needs != Needs::Nothing && !w.initialized {
            early = Some(NOT_INITIALIZED);
        } else if needs == Needs::Context && w.current().is_err() {
            early = Some(INVALID_CONTEXT);
        }
        // What a lost context allows: to leave it, and to give back what is in it.
        let harmless = ["cuCtxGetCurrent", "cuCtxSetCurrent"].contains(&name);
        let lost = w.sticky.filter(|_| !harmless && needs != Needs::Nothing);
        let planned = w.fail.filter(|(n, _)| *n == number).map(|(_, code)| code);
        if let Some(code) = planned.filter(|c| *c != crate::result::OUT_OF_MEMORY) {
            w.sticky = Some(code);
        }
        let before = planned.or(early).or(lost);
        let outcome = match before {
            None => body(w),
            Some(code) if needs == Needs::Release && early.is_none() => body(w).and(Err(code)),
            Some(code) => Err(code),
        };
        let code = outcome.err().unwrap_or(0);
        w.log.push(format!("{name}({detail}) = {code}"));
        code
    })
}

/// Writes a result where a call's own work has an out-pointer.
fn give<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and valid for a write, as the driver's contract says of out-pointers.
    unsafe { out.write(value) };
    Ok(())
}

fn device(w: &World, device: i32) -> Outcome {
    if (0..w.config.devices).contains(&device) { Ok(()) } else { Err(INVALID_DEVICE) }
}

// ---- Devices and contexts

extern "C" fn init(flags: u32) -> i32 {
    call("cuInit", flags, Needs::Nothing, |w| {
        if w.config.devices == 0 {
            return Err(100);
        }
        w.initialized = true;
        Ok(())
    })
}

extern "C" fn driver_version(out: *mut i32) -> i32 {
    call("cuDriverGetVersion", "", Needs::Nothing, |w| give(out, w.config.version))
}

fn words(result: i32) -> Option<[&'static CStr; 2]> {
    Some(match result {
        1 => [c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"],
        2 => [c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"],
        3 => [c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"],
        100 => [c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"],
        201 => [c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"],
        214 => [c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"],
        400 => [c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"],
        600 => [c"CUDA_ERROR_NOT_READY", c"device not ready"],
        700 => [c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"],
        719 => [c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"],
        900 => {
            [c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing"]
        }
        901 => [
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ],
        _ => return None,
    })
}

fn word(result: i32, which: usize, out: *mut *const c_char) -> i32 {
    match words(result) {
        Some(words) => give(out, words[which].as_ptr()).err().unwrap_or(0),
        None => INVALID_VALUE,
    }
}

extern "C" fn error_name(result: i32, out: *mut *const c_char) -> i32 {
    word(result, 0, out)
}

extern "C" fn error_string(result: i32, out: *mut *const c_char) -> i32 {
    word(result, 1, out)
}

extern "C" fn device_count(out: *mut i32) -> i32 {
    call("cuDeviceGetCount", "", Needs::Driver, |w| give(out, w.config.devices))
}

extern "C" fn device_get(out: *mut i32, ordinal: i32) -> i32 {
    call("cuDeviceGet", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        give(out, ordinal)
    })
}

fn text(out: *mut c_char, length: i32, text: &str) -> Outcome {
    if text.len() + 1 > length as usize {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a buffer of that length.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

extern "C" fn device_name(out: *mut c_char, length: i32, ordinal: i32) -> i32 {
    call("cuDeviceGetName", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        text(out, length, &format!("Fake GPU {ordinal}"))
    })
}

extern "C" fn device_uuid(out: *mut [u8; 16], ordinal: i32) -> i32 {
    call("cuDeviceGetUuid", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        let mut uuid = *b"fake gpu uuid ..";
        uuid[0] = 0xf0 + ordinal as u8;
        give(out, uuid)
    })
}

extern "C" fn device_attribute(out: *mut i32, attribute: i32, ordinal: i32) -> i32 {
    call("cuDeviceGetAttribute", format_args!("{attribute}, {ordinal}"), Needs::Driver, |w| {
        device(w, ordinal)?;
        let value = match attribute {
            16 => 132,
            18 => 0,
            38 => 50 << 20,
            41 => 1,
            75 => 9,
            76 => 0,
            97 => 227 << 10,
            115 => i32::from(w.config.pools),
            _ => return Err(INVALID_VALUE),
        };
        give(out, value)
    })
}

extern "C" fn device_memory(out: *mut usize, ordinal: i32) -> i32 {
    call("cuDeviceTotalMem", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        give(out, w.config.memory_bytes as usize)
    })
}

extern "C" fn device_pci(out: *mut c_char, length: i32, ordinal: i32) -> i32 {
    call("cuDeviceGetPCIBusId", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        text(out, length, &format!("0000:{:02X}:00.0", 0x1b + ordinal))
    })
}

extern "C" fn can_access_peer(out: *mut i32, one: i32, other: i32) -> i32 {
    call("cuDeviceCanAccessPeer", format_args!("{one}, {other}"), Needs::Driver, |w| {
        device(w, one)?;
        device(w, other)?;
        give(out, i32::from(w.config.peers && one != other))
    })
}

extern "C" fn retain(out: *mut u64, ordinal: i32) -> i32 {
    call("cuDevicePrimaryCtxRetain", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        let handle = context_of(ordinal);
        *w.contexts.entry(handle).or_default() += 1;
        give(out, handle)
    })
}

extern "C" fn release(ordinal: i32) -> i32 {
    call("cuDevicePrimaryCtxRelease", ordinal, Needs::Release, |w| {
        let handle = context_of(ordinal);
        let count = w.contexts.get_mut(&handle).ok_or(INVALID_CONTEXT)?;
        *count -= 1;
        if *count == 0 {
            w.contexts.remove(&handle);
            w.peers.retain(|(a, b)| *a != handle && *b != handle);
        }
        Ok(())
    })
}

extern "C" fn set_current(context: u64) -> i32 {
    call("cuCtxSetCurrent", format_args!("{context:#x}"), Needs::Driver, |w| {
        if context != 0 && !w.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    })
}

extern "C" fn get_current(out: *mut u64) -> i32 {
    call("cuCtxGetCurrent", "", Needs::Driver, |_| give(out, CURRENT.get()))
}

extern "C" fn priorities(least: *mut i32, greatest: *mut i32) -> i32 {
    call("cuCtxGetStreamPriorityRange", "", Needs::Context, |_| {
        give(least, 0)?;
        give(greatest, -5)
    })
}

extern "C" fn enable_peer(peer: u64, _flags: u32) -> i32 {
    call("cuCtxEnablePeerAccess", format_args!("{peer:#x}"), Needs::Context, |w| {
        let own = w.current()?;
        if !w.contexts.contains_key(&peer) {
            return Err(INVALID_CONTEXT);
        }
        if !w.config.peers || own == peer {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        if w.peers.contains(&(own, peer)) {
            return Err(PEER_ACCESS_ALREADY_ENABLED);
        }
        w.peers.push((own, peer));
        Ok(())
    })
}

// ---- Streams and events

extern "C" fn stream_create(out: *mut u64, flags: u32, priority: i32) -> i32 {
    call("cuStreamCreateWithPriority", format_args!("{flags}, {priority}"), Needs::Context, |w| {
        if !(-5..=0).contains(&priority) {
            return Err(INVALID_VALUE);
        }
        let (handle, context) = (w.handle(), w.current()?);
        w.streams.insert(handle, Stream { context, ..Stream::default() });
        give(out, handle)
    })
}

extern "C" fn stream_destroy(stream: u64) -> i32 {
    call("cuStreamDestroy", format_args!("{stream:#x}"), Needs::Release, |w| {
        if !w.streams.contains_key(&stream) {
            return Err(INVALID_HANDLE);
        }
        // A lost device does nothing more.
        let done = if w.sticky.is_none() { w.drain(stream) } else { Ok(()) };
        let freed = w.abandon(stream);
        w.streams.remove(&stream);
        done.and(freed)
    })
}

/// Waiting is no part of a graph.
fn not_capturing(w: &mut World, stream: u64) -> Outcome {
    let stream = w.stream(stream)?;
    if stream.capture.is_some() {
        stream.spoilt = true;
        return Err(CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

extern "C" fn stream_sync(stream: u64) -> i32 {
    call("cuStreamSynchronize", format_args!("{stream:#x}"), Needs::Context, |w| {
        not_capturing(w, stream)?;
        w.drain(stream)
    })
}

extern "C" fn stream_query(stream: u64) -> i32 {
    call("cuStreamQuery", format_args!("{stream:#x}"), Needs::Context, |w| {
        not_capturing(w, stream)?;
        if w.poll(stream)? { Ok(()) } else { Err(NOT_READY) }
    })
}

extern "C" fn stream_wait(stream: u64, event: u64, _flags: u32) -> i32 {
    call("cuStreamWaitEvent", format_args!("{stream:#x}, {event:#x}"), Needs::Context, |w| {
        let number = w.event(event)?.recorded;
        w.enqueue(stream, Work::Wait { event, number })
    })
}

extern "C" fn stream_context(stream: u64, out: *mut u64) -> i32 {
    call("cuStreamGetCtx", format_args!("{stream:#x}"), Needs::Context, |w| {
        let context = w.streams.get(&stream).ok_or(INVALID_HANDLE)?.context;
        give(out, context)
    })
}

extern "C" fn begin_capture(stream: u64, mode: i32) -> i32 {
    call("cuStreamBeginCapture", format_args!("{stream:#x}, {mode}"), Needs::Context, |w| {
        let stream = w.stream(stream)?;
        if stream.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        (stream.capture, stream.spoilt) = (Some(Vec::new()), false);
        Ok(())
    })
}

extern "C" fn end_capture(stream: u64, out: *mut u64) -> i32 {
    call("cuStreamEndCapture", format_args!("{stream:#x}"), Needs::Context, |w| {
        let stream = w.stream(stream)?;
        let recorded = stream.capture.take().ok_or(ILLEGAL_STATE)?;
        if stream.spoilt {
            return Err(CAPTURE_INVALIDATED);
        }
        let handle = w.handle();
        w.graphs.insert(handle, recorded);
        give(out, handle)
    })
}

extern "C" fn is_capturing(stream: u64, out: *mut i32) -> i32 {
    call("cuStreamIsCapturing", format_args!("{stream:#x}"), Needs::Context, |w| {
        let capturing = w.stream(stream)?.capture.is_some();
        give(out, i32::from(capturing))
    })
}

extern "C" fn event_create(out: *mut u64, flags: u32) -> i32 {
    call("cuEventCreate", flags, Needs::Context, |w| {
        let handle = w.handle();
        w.events.insert(handle, Event::default());
        give(out, handle)
    })
}

extern "C" fn event_destroy(event: u64) -> i32 {
    call("cuEventDestroy", format_args!("{event:#x}"), Needs::Release, |w| {
        w.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

extern "C" fn event_record(event: u64, stream: u64) -> i32 {
    call("cuEventRecord", format_args!("{event:#x}, {stream:#x}"), Needs::Context, |w| {
        w.stream(stream)?;
        let state = w.event(event)?;
        state.recorded += 1;
        state.stream = stream;
        let number = state.recorded;
        w.enqueue(stream, Work::Record { event, number })
    })
}

extern "C" fn event_query(event: u64) -> i32 {
    call("cuEventQuery", format_args!("{event:#x}"), Needs::Driver, |w| {
        let (stream, recorded) = w.event(event).map(|e| (e.stream, e.recorded))?;
        if w.event(event)?.reached >= recorded {
            return Ok(());
        }
        w.poll(stream)?;
        if w.event(event)?.reached >= recorded { Ok(()) } else { Err(NOT_READY) }
    })
}

extern "C" fn event_sync(event: u64) -> i32 {
    call("cuEventSynchronize", format_args!("{event:#x}"), Needs::Driver, |w| {
        let (stream, recorded, reached) = w.event(event).map(|e| (e.stream, e.recorded, e.reached))?;
        if reached < recorded { w.drain(stream) } else { Ok(()) }
    })
}

extern "C" fn elapsed(out: *mut f32, start: u64, end: u64) -> i32 {
    call("cuEventElapsedTime", format_args!("{start:#x}, {end:#x}"), Needs::Driver, |w| {
        let mut times = [0; 2];
        for (time, event) in times.iter_mut().zip([start, end]) {
            let event = w.event(event)?;
            if event.recorded == 0 {
                return Err(INVALID_HANDLE);
            }
            if event.reached < event.recorded {
                return Err(NOT_READY);
            }
            *time = event.time;
        }
        // A piece of work takes a millisecond.
        give(out, times[1] as f32 - times[0] as f32)
    })
}

// ---- Memory

extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> i32 {
    call("cuMemGetInfo", "", Needs::Context, |w| {
        let used = w.used(device_of(w.current()?));
        give(free, (w.config.memory_bytes - used) as usize)?;
        give(total, w.config.memory_bytes as usize)
    })
}

extern "C" fn memory_alloc(out: *mut u64, bytes: usize) -> i32 {
    call("cuMemAlloc", bytes, Needs::Context, |w| {
        let device = device_of(w.current()?);
        let address = w.allocate(bytes, Some(device))?;
        give(out, address)
    })
}

extern "C" fn memory_free(address: u64) -> i32 {
    call("cuMemFree", format_args!("{address:#x}"), Needs::Release, |w| {
        // It waits for everything that may use the memory.
        let done = if w.sticky.is_none() { w.drain_all() } else { Ok(()) };
        w.release(address).and(done)
    })
}

extern "C" fn pool_alloc(out: *mut u64, bytes: usize, pool: u64, stream: u64) -> i32 {
    call("cuMemAllocFromPoolAsync", format_args!("{bytes}, {pool:#x}, {stream:#x}"), Needs::Context, |w| {
        w.stream(stream)?;
        let device = *w.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        let address = w.allocate(bytes, Some(device))?;
        give(out, address)
    })
}

extern "C" fn free_async(address: u64, stream: u64) -> i32 {
    call("cuMemFreeAsync", format_args!("{address:#x}, {stream:#x}"), Needs::Release, |w| {
        w.free_later(address, stream)
    })
}

#[repr(C)]
struct PoolProps {
    alloc_type: i32,
    handle_types: i32,
    location_kind: i32,
    location: i32,
}

extern "C" fn pool_create(out: *mut u64, props: *const PoolProps) -> i32 {
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

extern "C" fn pool_destroy(pool: u64) -> i32 {
    call("cuMemPoolDestroy", format_args!("{pool:#x}"), Needs::Release, |w| {
        w.pools.remove(&pool).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

extern "C" fn pool_set(pool: u64, attribute: i32, _value: *const u64) -> i32 {
    call("cuMemPoolSetAttribute", format_args!("{pool:#x}, {attribute}"), Needs::Driver, |w| {
        if attribute != 4 {
            return Err(INVALID_VALUE);
        }
        w.pools.get(&pool).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

extern "C" fn pool_get(pool: u64, attribute: i32, out: *mut u64) -> i32 {
    call("cuMemPoolGetAttribute", format_args!("{pool:#x}, {attribute}"), Needs::Driver, |w| {
        if attribute != 5 {
            return Err(INVALID_VALUE);
        }
        let device = *w.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        give(out, w.used(device))
    })
}

extern "C" fn pool_trim(pool: u64, keep: usize) -> i32 {
    call("cuMemPoolTrimTo", format_args!("{pool:#x}, {keep}"), Needs::Driver, |w| {
        w.pools.get(&pool).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

extern "C" fn pool_access(pool: u64, who: *const [i32; 3], count: usize) -> i32 {
    // SAFETY: the caller's description.
    let [kind, peer, flags] = unsafe { *who };
    call("cuMemPoolSetAccess", format_args!("{pool:#x}, {peer}"), Needs::Driver, |w| {
        device(w, peer)?;
        if (kind, flags, count) != (1, 3, 1) {
            return Err(INVALID_VALUE);
        }
        w.pools.get(&pool).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

extern "C" fn host_alloc(out: *mut u64, bytes: usize, flags: u32) -> i32 {
    call("cuMemHostAlloc", format_args!("{bytes}, {flags}"), Needs::Context, |w| {
        let address = w.allocate(bytes, None)?;
        give(out, address)
    })
}

extern "C" fn host_free(address: u64) -> i32 {
    call("cuMemFreeHost", format_args!("{address:#x}"), Needs::Release, |w| {
        let done = if w.sticky.is_none() { w.drain_all() } else { Ok(()) };
        w.release(address).and(done)
    })
}

fn copy(w: &mut World, dst: u64, src: u64, bytes: usize, stream: u64) -> Outcome {
    w.locate(src, bytes)?;
    w.locate(dst, bytes)?;
    w.enqueue(stream, Work::Copy { dst, src, bytes })
}

extern "C" fn memory_copy(dst: u64, src: u64, bytes: usize, stream: u64) -> i32 {
    call("cuMemcpyAsync", format_args!("{dst:#x}, {src:#x}, {bytes}, {stream:#x}"), Needs::Context, |w| {
        copy(w, dst, src, bytes, stream)
    })
}

extern "C" fn peer_copy(dst: u64, to: u64, src: u64, from: u64, bytes: usize, stream: u64) -> i32 {
    let detail = format_args!("{dst:#x}, {to:#x}, {src:#x}, {from:#x}, {bytes}, {stream:#x}");
    call("cuMemcpyPeerAsync", detail, Needs::Context, |w| {
        if !w.contexts.contains_key(&to) || !w.contexts.contains_key(&from) {
            return Err(INVALID_CONTEXT);
        }
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

extern "C" fn set8(dst: u64, value: u8, count: usize, stream: u64) -> i32 {
    set("cuMemsetD8Async", dst, 1, value.into(), count, stream)
}

extern "C" fn set16(dst: u64, value: u16, count: usize, stream: u64) -> i32 {
    set("cuMemsetD16Async", dst, 2, value.into(), count, stream)
}

extern "C" fn set32(dst: u64, value: u32, count: usize, stream: u64) -> i32 {
    set("cuMemsetD32Async", dst, 4, value, count, stream)
}

// ---- Kernels

extern "C" fn module_load(out: *mut u64, image: *const c_void) -> i32 {
    call("cuModuleLoadData", "", Needs::Context, |w| {
        // SAFETY: a whole image, as the driver's contract says.
        let kernels = unsafe { cubin::kernels(image.cast()) }.ok_or(INVALID_IMAGE)?;
        let handle = w.handle();
        w.modules.insert(handle, kernels);
        give(out, handle)
    })
}

extern "C" fn module_unload(module: u64) -> i32 {
    call("cuModuleUnload", format_args!("{module:#x}"), Needs::Release, |w| {
        w.functions.retain(|_, f| f.module != module);
        w.modules.remove(&module).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

extern "C" fn module_function(out: *mut u64, module: u64, name: *const c_char) -> i32 {
    // SAFETY: a text that ends.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    call("cuModuleGetFunction", format_args!("{module:#x}, {name}"), Needs::Context, |w| {
        let kernels = w.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let kernel = kernels.iter().find(|(n, _)| *n == name).ok_or(NOT_FOUND)?;
        let (name, argument_bytes) = kernel.clone();
        let handle = w.handle();
        w.functions.insert(handle, Function { module, name, argument_bytes });
        give(out, handle)
    })
}

extern "C" fn function_set(function: u64, attribute: i32, value: i32) -> i32 {
    call("cuFuncSetAttribute", format_args!("{function:#x}, {attribute}, {value}"), Needs::Context, |w| {
        w.functions.get(&function).ok_or(INVALID_HANDLE)?;
        // Shared memory up to what the device has; clusters larger than is portable.
        if (attribute == 8 && value <= 227 << 10) || (attribute == 14 && value <= 1) {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    })
}

/// The argument behind `extra`: its address follows a 1, the address of its size a 2, and a 0 ends it.
unsafe fn argument(extra: *const usize) -> Option<Vec<u8>> {
    if extra.is_null() {
        return None;
    }
    let (mut data, mut bytes, mut at) = (None, None, 0);
    // SAFETY: a list that ends, as the caller promises, and pointers to what it says.
    unsafe {
        loop {
            match *extra.add(at) {
                0 => break,
                1 => data = Some(std::ptr::with_exposed_provenance::<u8>(*extra.add(at + 1))),
                2 => bytes = Some(*std::ptr::with_exposed_provenance::<usize>(*extra.add(at + 1))),
                _ => return None,
            }
            at += 2;
        }
        Some(std::slice::from_raw_parts(data?, bytes?).to_vec())
    }
}

fn launch(
    w: &mut World,
    function: u64,
    [grid, block]: [[u32; 3]; 2],
    shared: u32,
    stream: u64,
    extra: *const usize,
) -> Outcome {
    let state = w.functions.get(&function).ok_or(INVALID_HANDLE)?;
    // SAFETY: the caller's list, as the driver's contract says.
    let argument = unsafe { argument(extra) }.ok_or(INVALID_VALUE)?;
    let fits = state.argument_bytes.is_none_or(|bytes| bytes == argument.len());
    let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
    let in_grid = grid[0] > 0
        && grid[0] <= i32::MAX as u32
        && (1..=65535).contains(&grid[1])
        && (1..=65535).contains(&grid[2]);
    if !fits || !in_grid || !(1..=1024).contains(&threads) || shared > 227 << 10 {
        return Err(INVALID_VALUE);
    }
    w.enqueue(stream, Work::Kernel { function, argument, grid, block })
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
extern "C" fn launch_kernel(
    function: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: u64,
    _params: *const c_void,
    extra: *const usize,
) -> i32 {
    let shape = [[gx, gy, gz], [bx, by, bz]];
    let name = function_name(function);
    call("cuLaunchKernel", format_args!("{name}, {shape:?}, {shared}, {stream:#x}"), Needs::Context, |w| {
        launch(w, function, shape, shared, stream, extra)
    })
}

fn function_name(function: u64) -> String {
    let mut name = format!("{function:#x}");
    world(|w| {
        if let Some(f) = w.functions.get(&function) {
            name.clone_from(&f.name);
        }
        0
    });
    name
}

// ---- Graphs

extern "C" fn graph_instantiate(out: *mut u64, graph: u64, _flags: u64) -> i32 {
    call("cuGraphInstantiateWithFlags", format_args!("{graph:#x}"), Needs::Driver, |w| {
        let work = w.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let handle = w.handle();
        w.execs.insert(handle, work);
        give(out, handle)
    })
}

extern "C" fn graph_update(exec: u64, graph: u64, out: *mut [u64; 3]) -> i32 {
    call("cuGraphExecUpdate", format_args!("{exec:#x}, {graph:#x}"), Needs::Driver, |w| {
        let updated = w.update(exec, graph);
        // 2: the topology changed.
        give(out, [if updated.is_ok() { 0 } else { 2 }, 0, 0])?;
        updated
    })
}

extern "C" fn graph_launch(exec: u64, stream: u64) -> i32 {
    call("cuGraphLaunch", format_args!("{exec:#x}, {stream:#x}"), Needs::Context, |w| {
        not_capturing(w, stream)?;
        let work = w.execs.get(&exec).ok_or(INVALID_HANDLE)?.clone();
        work.into_iter().try_for_each(|work| w.enqueue(stream, work))
    })
}

extern "C" fn exec_destroy(exec: u64) -> i32 {
    call("cuGraphExecDestroy", format_args!("{exec:#x}"), Needs::Release, |w| {
        w.execs.remove(&exec).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

extern "C" fn graph_destroy(graph: u64) -> i32 {
    call("cuGraphDestroy", format_args!("{graph:#x}"), Needs::Release, |w| {
        w.graphs.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

/// The address of the function with a name; null for one that the fake does not have.
fn find(name: &str) -> *const c_void {
    match name {
        "cuInit" => init as *const c_void,
        "cuDriverGetVersion" => driver_version as *const c_void,
        "cuGetErrorName" => error_name as *const c_void,
        "cuGetErrorString" => error_string as *const c_void,
        "cuDeviceGetCount" => device_count as *const c_void,
        "cuDeviceGet" => device_get as *const c_void,
        "cuDeviceGetName" => device_name as *const c_void,
        "cuDeviceGetUuid" => device_uuid as *const c_void,
        "cuDeviceGetAttribute" => device_attribute as *const c_void,
        "cuDeviceTotalMem" => device_memory as *const c_void,
        "cuDeviceGetPCIBusId" => device_pci as *const c_void,
        "cuDeviceCanAccessPeer" => can_access_peer as *const c_void,
        "cuDevicePrimaryCtxRetain" => retain as *const c_void,
        "cuDevicePrimaryCtxRelease" => release as *const c_void,
        "cuCtxSetCurrent" => set_current as *const c_void,
        "cuCtxGetCurrent" => get_current as *const c_void,
        "cuCtxGetStreamPriorityRange" => priorities as *const c_void,
        "cuCtxEnablePeerAccess" => enable_peer as *const c_void,
        "cuStreamCreateWithPriority" => stream_create as *const c_void,
        "cuStreamDestroy" => stream_destroy as *const c_void,
        "cuStreamSynchronize" => stream_sync as *const c_void,
        "cuStreamQuery" => stream_query as *const c_void,
        "cuStreamWaitEvent" => stream_wait as *const c_void,
        "cuStreamGetCtx" => stream_context as *const c_void,
        "cuStreamBeginCapture" => begin_capture as *const c_void,
        "cuStreamEndCapture" => end_capture as *const c_void,
        "cuStreamIsCapturing" => is_capturing as *const c_void,
        "cuEventCreate" => event_create as *const c_void,
        "cuEventDestroy" => event_destroy as *const c_void,
        "cuEventRecord" => event_record as *const c_void,
        "cuEventQuery" => event_query as *const c_void,
        "cuEventSynchronize" => event_sync as *const c_void,
        "cuEventElapsedTime" => elapsed as *const c_void,
        "cuMemGetInfo" => memory_info as *const c_void,
        "cuMemAlloc" => memory_alloc as *const c_void,
        "cuMemFree" => memory_free as *const c_void,
        "cuMemAllocFromPoolAsync" => pool_alloc as *const c_void,
        "cuMemFreeAsync" => free_async as *const c_void,
        "cuMemPoolCreate" => pool_create as *const c_void,
        "cuMemPoolDestroy" => pool_destroy as *const c_void,
        "cuMemPoolSetAttribute" => pool_set as *const c_void,
        "cuMemPoolGetAttribute" => pool_get as *const c_void,
        "cuMemPoolTrimTo" => pool_trim as *const c_void,
        "cuMemPoolSetAccess" => pool_access as *const c_void,
        "cuMemHostAlloc" => host_alloc as *const c_void,
        "cuMemFreeHost" => host_free as *const c_void,
        "cuMemcpyAsync" => memory_copy as *const c_void,
        "cuMemcpyPeerAsync" => peer_copy as *const c_void,
        "cuMemsetD8Async" => set8 as *const c_void,
        "cuMemsetD16Async" => set16 as *const c_void,
        "cuMemsetD32Async" => set32 as *const c_void,
        "cuModuleLoadData" => module_load as *const c_void,
        "cuModuleUnload" => module_unload as *const c_void,
        "cuModuleGetFunction" => module_function as *const c_void,
        "cuFuncSetAttribute" => function_set as *const c_void,
        "cuLaunchKernel" => launch_kernel as *const c_void,
        "cuGraphInstantiateWithFlags" => graph_instantiate as *const c_void,
        "cuGraphExecUpdate" => graph_update as *const c_void,
        "cuGraphLaunch" => graph_launch as *const c_void,
        "cuGraphExecDestroy" => exec_destroy as *const c_void,
        "cuGraphDestroy" => graph_destroy as *const c_void,
        _ => std::ptr::null(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    out: *mut *const c_void,
    version: i32,
    _flags: u64,
    status: *mut i32,
) -> i32 {
    // SAFETY: a text that ends.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut supported = 0;
    world(|w| {
        supported = w.config.version;
        0
    });
    let address = if version > supported { std::ptr::null() } else { find(&name) };
    // SAFETY: valid out-pointers, or null.
    unsafe {
        out.write(address);
        if !status.is_null() {
            status.write(i32::from(address.is_null()));
        }
    }
    if address.is_null() { NOT_FOUND } else { 0 }
}
