//! Memory that the host program owns, used by kernels without a copy, and given back when nothing uses it.

use ep_core::primitive::{Softmax, SoftmaxCall, SoftmaxDesc};
use ep_core::provider::inline::HOST_SPACE;
use ep_core::{DType, Result};
use ep_registry::{Buffer, Device, InPlace, Runtime};
use std::sync::mpsc;

/// Wraps a vector's memory in a buffer. The vector comes back through the channel.
fn import(device: &Device, mut data: Vec<f32>, back: mpsc::Sender<Vec<f32>>) -> Result<Buffer> {
    let address = data.as_mut_ptr().expose_provenance() as u64;
    let bytes = size_of_val(data.as_slice()) as u64;
    let deleter = move || {
        // An error means that nobody waits for the vector; it is dropped then.
        let _unwanted = back.send(data);
    };
    // SAFETY: the vector holds `bytes` bytes of valid f32 in host memory. The deleter owns it, so until that
    // runs it is neither freed nor moved within the heap, and nobody else touches its elements.
    unsafe { Buffer::import(device, HOST_SPACE, address, bytes, DType::F32, deleter) }
}

fn main() -> Result<()> {
    let runtime = Runtime::from_config(std::env::args().nth(1).as_deref().unwrap_or("ep.toml"))?;
    let device = runtime.device("cpu")?;
    let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32))?;
    let stream = device.stream()?;

    let (back, returned) = mpsc::channel();
    let mut buffer = import(device, vec![0.0, 1.0, 2.0, 3.0], back)?;
    softmax.launch(&stream, SoftmaxCall { rows: 1, cols: 4, inner: 1, src: InPlace, dst: &mut buffer })?;
    // The deleter runs when the last work on the buffer is done, which `sync` waits for.
    drop(buffer);
    stream.sync()?;

    let data = returned.recv().map_err(|_| ep_core::Error::internal("the deleter did not run"))?;
    println!("{data:?}");
    Ok(())
}
