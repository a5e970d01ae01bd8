//! Softmax on PyTorch's tensors, on PyTorch's stream. `softmax.py` calls it; docs/cuda.md explains it.
//!
//! Nothing is copied and nothing is waited for: tensors become buffers through DLPack and `Buffer::import`, and the
//! stream is adopted, so that launches are in order with what PyTorch has queued and will queue.

mod dlpack;

use ep_core::primitive::{Softmax, SoftmaxArgs, SoftmaxDesc};
use ep_core::{Error, Result};
use ep_registry::config::Config;
use ep_registry::{Runtime, Stream};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;

/// CUDA's number of the device that is called `cuda:0`, unless the provider's option `visible` chooses others.
const ORDINAL: i32 = 0;

/// Providers, and the streams that were adopted.
pub struct Session {
    runtime: Runtime,
    streams: HashMap<u64, Stream>,
}

/// Where an error is told: null for success, else a text that [`ep_pytorch_free`] takes.
fn told(result: Result<()>) -> *mut c_char {
    match result {
        Ok(()) => std::ptr::null_mut(),
        Err(e) => CString::new(e.to_string().replace('\0', " ")).unwrap_or_default().into_raw(),
    }
}

/// Loads the providers of a config.
///
/// # Safety
/// `config` is a text that ends, `out` a valid out-pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_pytorch_open(config: *const c_char, out: *mut *mut Session) -> *mut c_char {
    // SAFETY: the caller's promise.
    let config = unsafe { CStr::from_ptr(config) }.to_string_lossy().into_owned();
    told(Config::from_file(Path::new(&config)).and_then(|config| {
        let runtime = Runtime::builder().config(config).build()?;
        let session = Box::new(Session { runtime, streams: HashMap::new() });
        // SAFETY: the caller's promise.
        unsafe { out.write(Box::into_raw(session)) };
        Ok(())
    }))
}

/// Queues softmax of the rows of `src` into `dst`, of the same shape, onto the CUDA stream `native`.
///
/// # Safety
/// A live session, used by one thread at a time. Both tensors are handed over, also where it fails; `dst` is written by
/// nobody else until the work is done. The stream outlives the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_pytorch_softmax(
    session: *mut Session,
    src: *mut dlpack::Managed,
    dst: *mut dlpack::Managed,
    native: u64,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    told(unsafe { softmax(&mut *session, src, dst, native) })
}

/// # Safety
/// As for [`ep_pytorch_softmax`].
unsafe fn softmax(
    session: &mut Session,
    src: *mut dlpack::Managed,
    dst: *mut dlpack::Managed,
    native: u64,
) -> Result<()> {
    // Before anything can fail: whoever handed them over does not free them.
    // SAFETY: the caller hands them over.
    let (src, dst) = unsafe { (dlpack::Owned::new(src), dlpack::Owned::new(dst)) };
    let device = session.runtime.device("cuda:0")?;
    // SAFETY: nobody else writes them until the work is done, as the caller promises.
    let ((src, shape), (dst, other)) =
        unsafe { (dlpack::import(device, ORDINAL, src)?, dlpack::import(device, ORDINAL, dst)?) };
    if shape != other {
        return Err(Error::invalid(format!("softmax of {shape:?} into {other:?}: the shapes must be equal")));
    }
    let cols = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().skip(1).product();
    let stream = match session.streams.get(&native) {
        Some(stream) => stream.clone(),
        None => {
            // SAFETY: the stream lives, and outlives the session.
            let stream = unsafe { device.adopt_stream("CUstream", native) }?;
            session.streams.insert(native, stream.clone());
            stream
        }
    };
    let softmax = session.runtime.primitive::<Softmax>(device, SoftmaxDesc::new(src.dtype(), dst.dtype()))?;
    let args = SoftmaxArgs::new(rows, cols, 1, src.address(), dst.address());
    // SAFETY: dense tensors of these sizes. PyTorch frees their memory in the order of this stream, so it is valid until
    // the work is done although the tensors are given back when this returns.
    unsafe { softmax.launch_raw(&stream, &args) }
}

/// Ends a session, after its work is done.
///
/// # Safety
/// A live session, which nobody uses again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_pytorch_close(session: *mut Session) {
    // SAFETY: made by `ep_pytorch_open`.
    drop(unsafe { Box::from_raw(session) });
}

/// Frees the text of an error.
///
/// # Safety
/// From a function of this library, and freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_pytorch_free(text: *mut c_char) {
    // SAFETY: the caller's promise.
    drop(unsafe { CString::from_raw(text) });
}
