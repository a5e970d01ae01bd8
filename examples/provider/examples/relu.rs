//! The example provider linked into a program, without a `.so`: `cargo run -p example-provider --example relu`.

use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp};
use ep_core::{DType, Result};
use ep_registry::Runtime;
use example_provider::Example;

fn main() -> Result<()> {
    let runtime = Runtime::builder().linked::<Example>("example").build()?;
    let device = runtime.device("cpu")?;
    let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
    let relu = runtime.primitive::<ElementwiseUnary>(device, desc)?;
    let src = device.upload(&[-1.5f32, 0.0, 2.5])?;
    let mut dst = device.alloc(DType::F32, 3)?;
    relu.launch(&device.stream()?, ElementwiseUnaryCall { count: 3, src: &src, dst: &mut dst })?;
    println!("{relu:?}: {:?}", dst.download::<f32>()?);
    Ok(())
}
