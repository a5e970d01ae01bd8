//! The smallest host: loads the providers of a config and runs softmax on a device.

use ep_core::primitive::{Softmax, SoftmaxCall, SoftmaxDesc};
use ep_core::{DType, Result};
use ep_registry::Runtime;

fn main() -> Result<()> {
    let runtime = Runtime::from_config(std::env::args().nth(1).as_deref().unwrap_or("ep.toml"))?;
    let device = runtime.device("cpu")?;
    let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32))?;
    let src = device.upload(&[1.0f32, 2.0, 3.0, 0.0, 0.0, 0.0])?;
    let mut dst = device.alloc(DType::F32, 6)?;
    let call = SoftmaxCall { rows: 2, cols: 3, inner: 1, src: &src, dst: &mut dst };
    softmax.launch(&device.stream()?, call)?;
    println!("{softmax:?}: {:?}", dst.download::<f32>()?);
    Ok(())
}
