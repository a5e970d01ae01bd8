//! Devices and contexts.

use super::{Needs, call, give};
use crate::visible;
use crate::world::*;
use std::ffi::{CStr, c_char};

pub(super) fn device(w: &World, device: i32) -> Outcome {
    physical(w, device).map(drop)
}

/// Which of the machine's devices it is, of one that answers.
fn physical(w: &World, device: i32) -> Outcome<i32> {
    shown(w, device).and_then(|one| if one == w.config.broken { Err(DEVICE_UNAVAILABLE) } else { Ok(one) })
}

/// Which of the machine's devices it is, of one that the system knows at least.
fn shown(w: &World, device: i32) -> Outcome<i32> {
    let place = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    let one = w.visible.get(place).copied().ok_or(INVALID_DEVICE)?;
    if one == w.config.lost { Err(DEVICE_UNAVAILABLE) } else { Ok(one) }
}

pub(super) extern "C" fn init(flags: u32) -> i32 {
    call("cuInit", flags, Needs::Nothing, |w| {
        let list = std::env::var(visible::ENV).ok().filter(|_| w.config.environment);
        w.visible = visible::choose(list.as_deref(), w.config.devices);
        if w.visible.is_empty() {
            return Err(NO_DEVICE);
        }
        w.initialized = true;
        Ok(())
    })
}

pub(super) extern "C" fn driver_version(out: *mut i32) -> i32 {
    call("cuDriverGetVersion", "", Needs::Nothing, |w| give(out, w.config.version))
}

fn words(result: i32) -> Option<[&'static CStr; 2]> {
    Some(match result {
        1 => [c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"],
        2 => [c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"],
        3 => [c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"],
        46 => [c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable"],
        100 => [c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"],
        201 => [c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"],
        214 => [c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"],
        400 => [c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"],
        600 => [c"CUDA_ERROR_NOT_READY", c"device not ready"],
        700 => [c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"],
        709 => [c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"],
        719 => [c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"],
        900 => {
            [c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing"]
        }
        901 => [
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ],
        904 => [c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"],
        905 => [
            c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
            c"dependency created on uncaptured work in another stream",
        ],
        907 => [
            c"CUDA_ERROR_CAPTURED_EVENT",
            c"operation not permitted on an event last recorded in a capturing stream",
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

pub(super) extern "C" fn error_name(result: i32, out: *mut *const c_char) -> i32 {
    word(result, 0, out)
}

pub(super) extern "C" fn error_string(result: i32, out: *mut *const c_char) -> i32 {
    word(result, 1, out)
}

pub(super) extern "C" fn device_count(out: *mut i32) -> i32 {
    call("cuDeviceGetCount", "", Needs::Driver, |w| give(out, w.visible.len() as i32))
}

pub(super) extern "C" fn device_get(out: *mut i32, ordinal: i32) -> i32 {
    call("cuDeviceGet", ordinal, Needs::Driver, |w| {
        shown(w, ordinal)?;
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

pub(super) extern "C" fn device_name(out: *mut c_char, length: i32, ordinal: i32) -> i32 {
    call("cuDeviceGetName", ordinal, Needs::Driver, |w| {
        text(out, length, &format!("Fake GPU {}", physical(w, ordinal)?))
    })
}

pub(super) extern "C" fn device_uuid(out: *mut [u8; 16], ordinal: i32) -> i32 {
    call("cuDeviceGetUuid", ordinal, Needs::Driver, |w| give(out, visible::uuid(shown(w, ordinal)?)))
}

pub(super) extern "C" fn device_attribute(out: *mut i32, attribute: i32, ordinal: i32) -> i32 {
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

pub(super) extern "C" fn device_memory(out: *mut usize, ordinal: i32) -> i32 {
    call("cuDeviceTotalMem", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        give(out, w.config.memory_bytes as usize)
    })
}

pub(super) extern "C" fn device_pci(out: *mut c_char, length: i32, ordinal: i32) -> i32 {
    call("cuDeviceGetPCIBusId", ordinal, Needs::Driver, |w| {
        text(out, length, &format!("0000:{:02X}:00.0", 0x1b + physical(w, ordinal)?))
    })
}

pub(super) extern "C" fn can_access_peer(out: *mut i32, one: i32, other: i32) -> i32 {
    call("cuDeviceCanAccessPeer", format_args!("{one}, {other}"), Needs::Driver, |w| {
        device(w, one)?;
        device(w, other)?;
        give(out, i32::from(w.config.peers && one != other))
    })
}

pub(super) extern "C" fn retain(out: *mut u64, ordinal: i32) -> i32 {
    call("cuDevicePrimaryCtxRetain", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        let handle = context_of(ordinal);
        *w.contexts.entry(handle).or_default() += 1;
        w.streams.entry(handle).or_insert_with(|| Stream { context: handle, ..Stream::default() });
        give(out, handle)
    })
}

pub(super) extern "C" fn release(ordinal: i32) -> i32 {
    call("cuDevicePrimaryCtxRelease", ordinal, Needs::Release, |w| {
        let handle = context_of(ordinal);
        let count = w.contexts.get_mut(&handle).ok_or(INVALID_CONTEXT)?;
        *count -= 1;
        if *count == 0 {
            w.abandon(handle)?;
            w.streams.remove(&handle);
            w.contexts.remove(&handle);
            w.sticky.remove(&handle);
            w.peers.retain(|(a, b)| *a != handle && *b != handle);
        }
        Ok(())
    })
}

pub(super) extern "C" fn primary_state(ordinal: i32, flags: *mut u32, active: *mut i32) -> i32 {
    call("cuDevicePrimaryCtxGetState", ordinal, Needs::Driver, |w| {
        device(w, ordinal)?;
        give(flags, 0)?;
        give(active, i32::from(w.contexts.contains_key(&context_of(ordinal))))
    })
}

pub(super) extern "C" fn set_current(context: u64) -> i32 {
    call("cuCtxSetCurrent", format_args!("{context:#x}"), Needs::Driver, |w| {
        if context != 0 && !w.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    })
}

pub(super) extern "C" fn get_current(out: *mut u64) -> i32 {
    call("cuCtxGetCurrent", "", Needs::Driver, |_| give(out, CURRENT.get()))
}

pub(super) extern "C" fn context_device(out: *mut i32) -> i32 {
    call("cuCtxGetDevice", "", Needs::Context, |w| give(out, w.device_of(w.current()?)))
}

pub(super) extern "C" fn priorities(least: *mut i32, greatest: *mut i32) -> i32 {
    call("cuCtxGetStreamPriorityRange", "", Needs::Context, |_| {
        give(least, 0)?;
        give(greatest, -5)
    })
}

pub(super) extern "C" fn enable_peer(peer: u64, _flags: u32) -> i32 {
    call("cuCtxEnablePeerAccess", format_args!("{peer:#x}"), Needs::Context, |w| {
        let own = w.current()?;
        if !w.contexts.contains_key(&peer) || own == peer {
            return Err(INVALID_CONTEXT);
        }
        w.lost(peer)?;
        if !w.config.peers || w.device_of(own) == w.device_of(peer) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        if w.peers.contains(&(own, peer)) {
            return Err(PEER_ACCESS_ALREADY_ENABLED);
        }
        w.peers.push((own, peer));
        Ok(())
    })
}
