//! What safe code cannot write. Of each pair of snippets the first compiles, and the second, which differs from it
//! in one place only, does not.
//!
//! # Use after a move
//! A dropped buffer is not launched on; its memory may be somebody else's by then.
//! ```no_run
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, src: Buffer, mut dst: Buffer) -> Result<()> {
//! stream.copy(&src, &mut dst)?;
//! drop(src);
//! # Ok(()) }
//! ```
//! ```compile_fail,E0382
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, src: Buffer, mut dst: Buffer) -> Result<()> {
//! drop(src);
//! stream.copy(&src, &mut dst)?;
//! # Ok(()) }
//! ```
//! What a queued upload reads belongs to the stream.
//! ```no_run
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, mut dst: Buffer, mut data: Vec<f32>) -> Result<()> {
//! data[0] = 1.0;
//! stream.upload(&mut dst, data)?;
//! # Ok(()) }
//! ```
//! ```compile_fail,E0382
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, mut dst: Buffer, mut data: Vec<f32>) -> Result<()> {
//! stream.upload(&mut dst, data)?;
//! data[0] = 1.0;
//! # Ok(()) }
//! ```
//! A buffer that was reinterpreted is gone as what it was.
//! ```no_run
//! # use ep_registry::Buffer; use ep_core::{DType, Result};
//! # fn f(buffer: Buffer) -> Result<()> {
//! let old = buffer.download::<f32>()?;
//! let bits = buffer.reinterpret(DType::U32)?;
//! # drop((old, bits)); Ok(()) }
//! ```
//! ```compile_fail,E0382
//! # use ep_registry::Buffer; use ep_core::{DType, Result};
//! # fn f(buffer: Buffer) -> Result<()> {
//! let bits = buffer.reinterpret(DType::U32)?;
//! let old = buffer.download::<f32>()?;
//! # drop((old, bits)); Ok(()) }
//! ```
//!
//! # Borrows across streams
//! A launch does not read a buffer that it writes, whatever the stream.
//! ```no_run
//! # use ep_registry::{Buffer, Primitive, Stream}; use ep_core::{Result, primitive::*};
//! # fn f(p: &Primitive<Softmax>, stream: &Stream, a: Buffer, mut b: Buffer) -> Result<()> {
//! p.launch(stream, SoftmaxCall { rows: 2, cols: 3, inner: 1, src: &a, dst: &mut b })?;
//! # Ok(()) }
//! ```
//! ```compile_fail,E0502
//! # use ep_registry::{Buffer, Primitive, Stream}; use ep_core::{Result, primitive::*};
//! # fn f(p: &Primitive<Softmax>, stream: &Stream, a: Buffer, mut b: Buffer) -> Result<()> {
//! p.launch(stream, SoftmaxCall { rows: 2, cols: 3, inner: 1, src: &b, dst: &mut b })?;
//! # Ok(()) }
//! ```
//! A part that one stream is about to write is not read by another one in between.
//! ```no_run
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(one: &Stream, two: &Stream, src: Buffer, mut x: Buffer, mut y: Buffer) -> Result<()> {
//! let part = x.slice_mut(0, 4)?;
//! one.copy(src.slice(0, 4)?, part)?;
//! two.copy(&x, &mut y)?;
//! # Ok(()) }
//! ```
//! ```compile_fail,E0502
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(one: &Stream, two: &Stream, src: Buffer, mut x: Buffer, mut y: Buffer) -> Result<()> {
//! let part = x.slice_mut(0, 4)?;
//! two.copy(&x, &mut y)?;
//! one.copy(src.slice(0, 4)?, part)?;
//! # Ok(()) }
//! ```
//! Two streams are not given one buffer to write at once.
//! ```no_run
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(one: &Stream, two: &Stream, src: Buffer, mut x: Buffer) -> Result<()> {
//! one.copy(src.slice(0, 4)?, x.slice_mut(0, 4)?)?;
//! two.copy(src.slice(0, 4)?, x.slice_mut(4, 4)?)?;
//! # Ok(()) }
//! ```
//! ```compile_fail,E0499
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(one: &Stream, two: &Stream, src: Buffer, mut x: Buffer) -> Result<()> {
//! let (left, right) = (x.slice_mut(0, 4)?, x.slice_mut(4, 4)?);
//! one.copy(src.slice(0, 4)?, left)?;
//! two.copy(src.slice(0, 4)?, right)?;
//! # Ok(()) }
//! ```
//! While the host has a buffer mapped, no stream writes it.
//! ```no_run
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, src: Buffer, mut dst: Buffer) -> Result<()> {
//! let map = dst.map_read::<f32>()?;
//! println!("{}", map[0]);
//! stream.copy(&src, &mut dst)?;
//! # Ok(()) }
//! ```
//! ```compile_fail,E0502
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, src: Buffer, mut dst: Buffer) -> Result<()> {
//! let map = dst.map_read::<f32>()?;
//! stream.copy(&src, &mut dst)?;
//! println!("{}", map[0]);
//! # Ok(()) }
//! ```
//! While the host writes a buffer, no stream reads it.
//! ```no_run
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, mut src: Buffer, mut dst: Buffer) -> Result<()> {
//! let mut map = src.map_write::<f32>()?;
//! map[0] = 1.0;
//! map.finish()?;
//! stream.copy(&src, &mut dst)?;
//! # Ok(()) }
//! ```
//! ```compile_fail,E0502
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, mut src: Buffer, mut dst: Buffer) -> Result<()> {
//! let mut map = src.map_write::<f32>()?;
//! map[0] = 1.0;
//! stream.copy(&src, &mut dst)?;
//! map.finish()?;
//! # Ok(()) }
//! ```
//! A part does not outlive its buffer.
//! ```no_run
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, src: Buffer, mut dst: Buffer) -> Result<()> {
//! let part = src.slice(0, 4)?;
//! stream.copy(part, &mut dst)?;
//! drop(src);
//! # Ok(()) }
//! ```
//! ```compile_fail,E0505
//! # use ep_registry::{Buffer, Stream}; use ep_core::Result;
//! # fn f(stream: &Stream, src: Buffer, mut dst: Buffer) -> Result<()> {
//! let part = src.slice(0, 4)?;
//! drop(src);
//! stream.copy(part, &mut dst)?;
//! # Ok(()) }
//! ```
//!
//! # What the host cannot check
//! Memory of somebody else's, and launches with addresses, are the caller's promise.
//! ```no_run
//! # use ep_registry::{Primitive, Stream}; use ep_core::{Result, primitive::*};
//! # fn f(p: &Primitive<Softmax>, stream: &Stream, args: SoftmaxArgs) -> Result<()> {
//! // SAFETY: the caller's, for this example.
//! unsafe { p.launch_raw(stream, &args) }?;
//! # Ok(()) }
//! ```
//! ```compile_fail,E0133
//! # use ep_registry::{Primitive, Stream}; use ep_core::{Result, primitive::*};
//! # fn f(p: &Primitive<Softmax>, stream: &Stream, args: SoftmaxArgs) -> Result<()> {
//! p.launch_raw(stream, &args)?;
//! # Ok(()) }
//! ```
