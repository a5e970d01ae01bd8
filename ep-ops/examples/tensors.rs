//! Views, a memory format and a copy that converts.

use ep_core::{DType, Result};
use ep_ops::{MemoryFormat, Ops};
use ep_registry::Runtime;

fn main() -> Result<()> {
    let runtime = Runtime::from_config(std::env::args().nth(1).as_deref().unwrap_or("ep.toml"))?;
    let ops = Ops::new(&runtime, "cpu:0")?;
    let images = ops.arange(DType::F32, 0, 24, 1)?.view(&[1, 3, 2, 4])?;
    let left = ops.contiguous(&images.narrow(3, 0, 2)?, MemoryFormat::ChannelsLast)?;
    let halves = ops.empty(DType::F16, left.shape())?;
    ops.copy_(&halves, &left.flip(&[1])?)?;
    println!("{left:?}: {:?}", ops.to_vec::<f32>(&ops.to_dtype(&halves, DType::F32)?)?);
    Ok(())
}
