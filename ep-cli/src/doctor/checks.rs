//! What is tried on each device: memory, a copy, a stream with an event, and a small launch.

use super::message::Message;
use super::worker::Pipe;
use ep_core::{DType, Error, Result, Scalar};
use ep_registry::{Device, Event, Runtime, Stream};

const BYTES: usize = 256;
const COUNT: usize = 64;

/// Tries a device. The first step that fails is its last.
pub fn device(runtime: &Runtime, device: &Device, pipe: &Pipe) {
    if let Err(e) = steps(runtime, device, pipe) {
        pipe.say(&Message::Failed(format!("{}: {e}", device.name())));
    }
}

fn steps(runtime: &Runtime, device: &Device, pipe: &Pipe) -> Result<()> {
    let begin = |step| pipe.begin(step, device.name());
    begin("allocate");
    drop(device.alloc(DType::U8, BYTES)?);
    begin("copy");
    let data: Vec<u8> = (0..BYTES).map(|i| (i * 7 + 3) as u8).collect();
    same("a copy to the device and back", &device.upload(&data)?.download::<u8>()?, &data)?;
    begin("stream");
    let stream = device.stream()?;
    begin("event");
    event(&stream)?;
    begin("launch");
    for launch in [memset, fill, relu] {
        if launch(runtime, device, &stream)? {
            return Ok(());
        }
    }
    pipe.say(&Message::Remark(format!(
        "{}: it offers none of `memset`, `fill` of f32 and `elementwise_unary` with op=relu of f32, and so nothing was \
         launched",
        device.name()
    )));
    Ok(())
}

fn event(stream: &Stream) -> Result<()> {
    let event = Event::new();
    stream.record(&event)?;
    stream.wait(&event)?;
    event.sync()?;
    stream.sync()?;
    if event.query()? {
        return Ok(());
    }
    Err(Error::internal("an event is not done although it was waited for"))
}

/// Each of these is whether the device has the op, and so it was launched.
fn memset(runtime: &Runtime, device: &Device, stream: &Stream) -> Result<bool> {
    let request = runtime.request("memset")?;
    if runtime.explain(device, &request)?.chosen().is_none() {
        return Ok(false);
    }
    let primitive = runtime.primitive_dyn(device, &request)?;
    let mut dst = device.upload(&[0xee_u8; BYTES])?;
    let args = primitive.args().size("bytes", BYTES as i64)?.scalar("value", Scalar::U64(0x5a))?;
    primitive.launch(stream, args.write("dst", &mut dst)?)?;
    stream.sync()?;
    same("memset", &dst.download::<u8>()?, &[0x5a; BYTES]).map(|()| true)
}

fn fill(runtime: &Runtime, device: &Device, stream: &Stream) -> Result<bool> {
    let request = runtime.request("fill")?.dtype("data", "f32")?;
    if runtime.explain(device, &request)?.chosen().is_none() {
        return Ok(false);
    }
    let primitive = runtime.primitive_dyn(device, &request)?;
    let mut dst = device.upload(&[-1.0_f32; COUNT])?;
    let args = primitive.args().size("count", COUNT as i64)?.scalar("value", Scalar::F64(1.5))?;
    primitive.launch(stream, args.write("dst", &mut dst)?)?;
    stream.sync()?;
    same("fill", &dst.download::<f32>()?, &[1.5; COUNT]).map(|()| true)
}

fn relu(runtime: &Runtime, device: &Device, stream: &Stream) -> Result<bool> {
    let request = runtime.request("elementwise_unary")?.selector("op", "relu")?;
    let request = request.dtype("src", "f32")?.dtype("dst", "f32")?;
    if runtime.explain(device, &request)?.chosen().is_none() {
        return Ok(false);
    }
    let primitive = runtime.primitive_dyn(device, &request)?;
    let data: Vec<f32> = (0..COUNT).map(|i| i as f32 - 31.5).collect();
    let expected: Vec<f32> = data.iter().map(|x| x.max(0.0)).collect();
    let (src, mut dst) = (device.upload(&data)?, device.upload(&[-1.0_f32; COUNT])?);
    let args = primitive.args().size("count", COUNT as i64)?.read("src", &src)?;
    primitive.launch(stream, args.write("dst", &mut dst)?)?;
    stream.sync()?;
    same("relu", &dst.download::<f32>()?, &expected).map(|()| true)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &[T]) -> Result<()> {
    match found.iter().zip(expected).position(|(f, e)| f != e) {
        Some(i) => Err(Error::internal(format!(
            "{what} gives {:?} in place {i}, and {:?} was expected",
            found[i], expected[i]
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_told() {
        assert!(same("x", &[1, 2], &[1, 2]).is_ok());
        let e = same("a copy", &[1, 2, 3], &[1, 7, 8]).unwrap_err();
        assert_eq!(e.message(), "a copy gives 2 in place 1, and 7 was expected");
    }
}
