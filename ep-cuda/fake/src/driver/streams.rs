//! Streams and events.

use super::{Needs, call, give};
use crate::world::*;

pub(super) extern "C" fn stream_create(out: *mut u64, flags: u32, priority: i32) -> i32 {
    call("cuStreamCreateWithPriority", format_args!("{flags}, {priority}"), Needs::Context, |w| {
        if !(-5..=0).contains(&priority) {
            return Err(INVALID_VALUE);
        }
        let (handle, context) = (w.handle(), w.current()?);
        w.streams.insert(handle, Stream { context, ..Stream::default() });
        give(out, handle)
    })
}

pub(super) extern "C" fn stream_destroy(stream: u64) -> i32 {
    call("cuStreamDestroy", format_args!("{stream:#x}"), Needs::Release, |w| {
        // Not the default stream of a context, whose key is no handle.
        let Some(context) = w.streams.get(&stream).map(|s| s.context).filter(|c| *c != stream) else {
            return Err(INVALID_HANDLE);
        };
        // A lost device does nothing more.
        let done = if w.lost(context).is_ok() { w.drain(stream) } else { Ok(()) };
        let freed = w.abandon(stream);
        w.forget_capture(stream);
        w.streams.remove(&stream);
        done.and(freed)
    })
}

pub(super) extern "C" fn stream_sync(stream: u64) -> i32 {
    call("cuStreamSynchronize", format_args!("{stream:#x}"), Needs::Context, |w| {
        w.not_capturing(stream)?;
        let key = w.stream_key(stream)?;
        w.drain(key)
    })
}

pub(super) extern "C" fn stream_query(stream: u64) -> i32 {
    call("cuStreamQuery", format_args!("{stream:#x}"), Needs::Context, |w| {
        w.not_capturing(stream)?;
        let key = w.stream_key(stream)?;
        if w.poll(key)? { Ok(()) } else { Err(NOT_READY) }
    })
}

pub(super) extern "C" fn stream_wait(stream: u64, event: u64, _flags: u32) -> i32 {
    call("cuStreamWaitEvent", format_args!("{stream:#x}, {event:#x}"), Needs::Context, |w| {
        if w.wait_captured(stream, event)? {
            return Ok(());
        }
        let (number, from) = w.event(event).map(|e| (e.recorded, e.stream))?;
        w.enqueue(stream, Work::Wait { stream: from, event, number })
    })
}

pub(super) extern "C" fn stream_context(stream: u64, out: *mut u64) -> i32 {
    call("cuStreamGetCtx", format_args!("{stream:#x}"), Needs::Context, |w| {
        let key = w.stream_key(stream)?;
        let context = w.streams.get(&key).ok_or(INVALID_HANDLE)?.context;
        give(out, context)
    })
}

pub(super) extern "C" fn begin_capture(stream: u64, mode: i32) -> i32 {
    call("cuStreamBeginCapture", format_args!("{stream:#x}, {mode}"), Needs::Context, |w| {
        w.begin_capture(stream)
    })
}

pub(super) extern "C" fn end_capture(stream: u64, out: *mut u64) -> i32 {
    call("cuStreamEndCapture", format_args!("{stream:#x}"), Needs::Context, |w| {
        let recorded = w.end_capture(stream)?;
        let handle = w.handle();
        w.graphs.insert(handle, recorded);
        give(out, handle)
    })
}

pub(super) extern "C" fn exchange_mode(mode: *mut i32) -> i32 {
    // SAFETY: a mode, as the driver's contract says.
    let new = unsafe { *mode };
    call("cuThreadExchangeStreamCaptureMode", new, Needs::Driver, |_| {
        if !(0..=2).contains(&new) {
            return Err(INVALID_VALUE);
        }
        give(mode, CAPTURE_MODE.replace(new))
    })
}

pub(super) extern "C" fn is_capturing(stream: u64, out: *mut i32) -> i32 {
    call("cuStreamIsCapturing", format_args!("{stream:#x}"), Needs::Context, |w| {
        let status = w.capture_status(stream)?;
        give(out, status)
    })
}

pub(super) extern "C" fn event_create(out: *mut u64, flags: u32) -> i32 {
    call("cuEventCreate", flags, Needs::Context, |w| {
        let (handle, context) = (w.handle(), w.current()?);
        w.events.insert(handle, Event { context, ..Event::default() });
        give(out, handle)
    })
}

pub(super) extern "C" fn event_destroy(event: u64) -> i32 {
    call("cuEventDestroy", format_args!("{event:#x}"), Needs::Release, |w| {
        w.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

pub(super) extern "C" fn event_record(event: u64, stream: u64) -> i32 {
    call("cuEventRecord", format_args!("{event:#x}, {stream:#x}"), Needs::Context, |w| {
        let point = w.stream(stream)?.capture.clone();
        let (key, context) = (w.stream_key(stream)?, w.current()?);
        let state = w.event(event)?;
        if state.context != context {
            return Err(INVALID_HANDLE);
        }
        state.captured = point;
        if state.captured.is_some() {
            // No work of the graph, but what others of the recording may come behind.
            return Ok(());
        }
        state.recorded += 1;
        state.stream = key;
        let number = state.recorded;
        w.enqueue(stream, Work::Record { event, number })
    })
}

pub(super) extern "C" fn event_query(event: u64) -> i32 {
    call("cuEventQuery", format_args!("{event:#x}"), Needs::Driver, |w| {
        w.not_captured(event)?;
        let (stream, recorded) = w.event(event).map(|e| (e.stream, e.recorded))?;
        if w.event(event)?.reached >= recorded {
            return Ok(());
        }
        w.poll(stream)?;
        if w.event(event)?.reached >= recorded { Ok(()) } else { Err(NOT_READY) }
    })
}

pub(super) extern "C" fn event_sync(event: u64) -> i32 {
    call("cuEventSynchronize", format_args!("{event:#x}"), Needs::Driver, |w| {
        w.not_captured(event)?;
        let (stream, number) = w.event(event).map(|e| (e.stream, e.recorded))?;
        w.reach(stream, event, number)
    })
}

pub(super) extern "C" fn elapsed(out: *mut f32, start: u64, end: u64) -> i32 {
    call("cuEventElapsedTime", format_args!("{start:#x}, {end:#x}"), Needs::Driver, |w| {
        // Of contexts of one device nothing is written down.
        let [one, other] = [w.event(start)?.context, w.event(end)?.context];
        if w.device_of(one) != w.device_of(other) {
            return Err(INVALID_HANDLE);
        }
        let mut times = [0; 2];
        for (time, event) in times.iter_mut().zip([start, end]) {
            w.not_captured(event)?;
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
