//! Moving bytes between host and device, and between devices.

use crate::buffer::{Buffer, View, ViewMut};
use crate::device::Device;
use crate::graph::Access;
use crate::shared::{Gates, Hold, Met};
use crate::stream::{Kept, Stream, recording_ended};
use ep_core::provider::CopyRequest;
use ep_core::provider::inline::{HOST_SPACE, is_host};
use ep_core::{Element, Error, Result};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// Copies that no side can do alone go through host memory in pieces of this size.
const STAGE_BYTES: u64 = 8 << 20;

/// The bytes of elements.
pub(crate) fn as_bytes<T: Element>(data: &[T]) -> &[u8] {
    // SAFETY: `Element` types are plain data without padding.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

fn host_ptr(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Waits on the host for all streams that would conflict with an access to the buffer, which lasts until the result is
/// dropped.
fn settle(buffer: &Buffer, write: bool) -> Result<Hold> {
    let mut met = Met::default();
    let (hold, before) = buffer.shared().hold(write, &mut met);
    for stream in before {
        stream.sync()?;
    }
    Ok(hold)
}

/// Waits for all work on the buffer.
pub(crate) fn wait(buffer: &Buffer) -> Result<()> {
    settle(buffer, true).map(drop)
}

/// One blocking copy on the buffer's own device.
fn copy_now(device: &Device, copy: CopyRequest<'_>) -> Result<()> {
    device.transfer(|stream| {
        // SAFETY: the callers pass a live buffer's range and a live host range, with no other work on either,
        // and this waits for the copy.
        unsafe { stream.copy(copy) }
    })
}

/// Writes `bytes` to the start of the buffer and waits.
pub(crate) fn upload(buffer: &mut Buffer, bytes: &[u8]) -> Result<()> {
    let hold = settle(buffer, true)?;
    write_at(buffer, 0, bytes)?;
    drop(hold);
    buffer.mark_written(0, bytes.len() as u64);
    Ok(())
}

/// The buffer is settled and the range inside it.
fn write_at(buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (dst, n) = (buffer.address() + offset, bytes.len() as u64);
    if is_host(buffer.space()) {
        // SAFETY: the range lies in a live host allocation on which no work is pending; `bytes` cannot overlap
        // it, because safe code has no reference into a buffer's memory while it is written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host_ptr(dst), bytes.len()) };
        return Ok(());
    }
    let src = bytes.as_ptr().expose_provenance() as u64;
    copy_now(
        buffer.device(),
        CopyRequest { dst, dst_space: buffer.space(), src, src_space: HOST_SPACE, bytes: n },
    )
}

/// Reads a range of the settled buffer into `out`, all of which is initialised on success.
fn read_at(buffer: &Buffer, offset: u64, out: &mut [MaybeUninit<u8>]) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let src = buffer.address() + offset;
    if is_host(buffer.space()) {
        // SAFETY: the range lies in a live, written host allocation on which no writer is pending.
        unsafe {
            std::ptr::copy_nonoverlapping(host_ptr(src).cast_const(), out.as_mut_ptr().cast(), out.len());
        };
        return Ok(());
    }
    let (dst, bytes) = (out.as_mut_ptr().expose_provenance() as u64, out.len() as u64);
    copy_now(
        buffer.device(),
        CopyRequest { dst, dst_space: HOST_SPACE, src, src_space: buffer.space(), bytes },
    )
}

/// A copy of the whole buffer.
pub(crate) fn download<T: Element>(buffer: &Buffer) -> Result<Vec<T>> {
    let n = buffer.len();
    buffer.check_written(0, buffer.bytes())?;
    let _hold = settle(buffer, false)?;
    let mut out: Vec<T> = Vec::with_capacity(n);
    let spare = &mut out.spare_capacity_mut()[..n];
    // SAFETY: uninitialised bytes may alias uninitialised elements.
    let bytes = unsafe { std::slice::from_raw_parts_mut(spare.as_mut_ptr().cast(), n * size_of::<T>()) };
    read_at(buffer, 0, bytes)?;
    // SAFETY: `read_at` has written all of them.
    let written = unsafe { std::slice::from_raw_parts(out.as_ptr().cast::<u8>(), n * size_of::<T>()) };
    validate::<T>(written)?;
    // SAFETY: n elements are initialised, and their bytes are valid elements.
    unsafe { out.set_len(n) };
    Ok(out)
}

fn validate<T: Element>(bytes: &[u8]) -> Result<()> {
    if T::validate(bytes) {
        return Ok(());
    }
    Err(Error::invalid(format!("the buffer holds bytes that are no valid {}", T::DTYPE)))
}

/// The content of a buffer, readable by the host.
#[derive(Debug)]
pub struct MapRead<'a, T> {
    content: Content<T>,
    buffer: PhantomData<&'a Buffer>,
    _hold: Hold,
}

/// Directly the device's memory where the host reaches it, else a copy.
#[derive(Debug)]
enum Content<T> {
    Direct(*mut T, usize),
    Copy(Vec<T>),
}

// SAFETY: `Direct` is a slice of plain `T` that the guard borrows from its buffer, as `&[T]`/`&mut [T]` would.
unsafe impl<T: Send> Send for Content<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Content<T> {}

impl<T: Element> Content<T> {
    /// The buffer is settled.
    fn new(buffer: &Buffer) -> Result<Content<T>> {
        if !is_host(buffer.space()) || !buffer.address().is_multiple_of(align_of::<T>() as u64) {
            return download(buffer).map(Content::Copy);
        }
        buffer.check_written(0, buffer.bytes())?;
        let ptr = host_ptr(buffer.address());
        // SAFETY: a live, written host allocation without pending writers.
        validate::<T>(unsafe { std::slice::from_raw_parts(ptr, buffer.bytes() as usize) })?;
        Ok(Content::Direct(ptr.cast(), buffer.len()))
    }

    fn get(&self) -> &[T] {
        match self {
            // SAFETY: checked when made; the guard keeps the buffer borrowed, so nothing writes it.
            Content::Direct(ptr, len) => unsafe { std::slice::from_raw_parts(*ptr, *len) },
            Content::Copy(v) => v,
        }
    }

    fn get_mut(&mut self) -> &mut [T] {
        match self {
            // SAFETY: as in `get`, and the guard borrows the buffer mutably.
            Content::Direct(ptr, len) => unsafe { std::slice::from_raw_parts_mut(*ptr, *len) },
            Content::Copy(v) => v,
        }
    }
}

impl<'a, T: Element> MapRead<'a, T> {
    pub(crate) fn new(buffer: &'a Buffer) -> Result<MapRead<'a, T>> {
        let _hold = settle(buffer, false)?;
        Ok(MapRead { content: Content::new(buffer)?, buffer: PhantomData, _hold })
    }
}

impl<T: Element> Deref for MapRead<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.content.get()
    }
}

/// The content of a buffer, readable and writable by the host.
///
/// Where the host does not reach the memory, the guard holds a copy that goes back when it is finished.
#[derive(Debug)]
pub struct MapWrite<'a, T: Element> {
    content: Content<T>,
    buffer: &'a mut Buffer,
    finished: bool,
    // Behind the writing back.
    _hold: Hold,
}

impl<'a, T: Element> MapWrite<'a, T> {
    pub(crate) fn new(buffer: &'a mut Buffer) -> Result<MapWrite<'a, T>> {
        let _hold = settle(buffer, true)?;
        let (written, all) = (buffer.shared().written(), buffer.bytes());
        if written < all {
            // Writing the rest is the purpose, but safe code sees it first.
            write_at(buffer, written, &vec![0u8; (all - written) as usize])?;
            buffer.mark_written(written, all - written);
        }
        Ok(MapWrite { content: Content::new(buffer)?, buffer, finished: false, _hold })
    }

    /// Writes the content back where that is needed.
    ///
    /// # Errors
    /// The provider's.
    pub fn finish(mut self) -> Result<()> {
        self.write_back()
    }

    fn write_back(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        match &self.content {
            Content::Direct(..) => Ok(()),
            Content::Copy(v) => write_at(self.buffer, 0, as_bytes(v)),
        }
    }
}

impl<T: Element> Deref for MapWrite<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.content.get()
    }
}

impl<T: Element> DerefMut for MapWrite<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.content.get_mut()
    }
}

impl<T: Element> Drop for MapWrite<'_, T> {
    fn drop(&mut self) {
        if let Err(e) = self.write_back() {
            tracing::error!("{}: writing a mapped buffer back: {e}", self.buffer.device().name());
        }
    }
}

impl Stream {
    /// Queues a copy of `src` to `dst`, which may be of different devices and spaces but have one dtype and
    /// size. A side that reaches both does it; if there is none, it is done at once through host memory.
    ///
    /// # Errors
    /// `InvalidArgument` for different sizes or dtypes, overlap, or unwritten memory; else a provider's.
    pub fn copy<'a>(&self, src: impl Into<View<'a>>, dst: impl Into<ViewMut<'a>>) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        if src.bytes != dst.bytes || src.buffer.dtype() != dst.buffer.dtype() {
            return Err(Error::invalid(format!(
                "a copy of {} bytes of {} to {} bytes of {}",
                src.bytes,
                src.buffer.dtype(),
                dst.bytes,
                dst.buffer.dtype()
            )));
        }
        let within = match src.buffer.check_written(src.offset, src.bytes) {
            Ok(()) => None,
            Err(e) => {
                let end = src.offset + src.bytes;
                Some(self.core.recording_that_wrote(src.buffer.shared(), end)?.ok_or(e)?)
            }
        };
        if src.bytes == 0 {
            return Ok(());
        }
        let (from, to) = (src.buffer.address() + src.offset, dst.buffer.address() + dst.offset);
        let same_space = src.buffer.space() == dst.buffer.space();
        if same_space && from != to && from < to + dst.bytes && to < from + src.bytes {
            return Err(Error::invalid(format!(
                "source {from:#x} and destination {to:#x} overlap within {} bytes",
                src.bytes
            )));
        }
        let spaces = (src.buffer.space(), dst.buffer.space());
        let able = self.device().member_where(|m| m.reads(spaces.0) && m.writes(spaces.1));
        if self.core.is_recording() {
            return match able {
                Some(member) => self.record_copy(member, within, &src, &dst),
                None => Err(Error::unsupported(format!(
                    "no provider of {} copies from `{}` to `{}` in one step, as a graph needs",
                    self.device().name(),
                    spaces.0,
                    spaces.1
                ))),
            };
        }
        if within.is_some() {
            return Err(recording_ended());
        }
        match able {
            Some(member) => self.copy_on(member, &src, &dst)?,
            None => copy_elsewhere(&src, &dst)?,
        }
        dst.buffer.mark_written(dst.offset, dst.bytes);
        Ok(())
    }

    fn copy_on(&self, member: usize, src: &View<'_>, dst: &ViewMut<'_>) -> Result<()> {
        let core = &self.core;
        core.tidy(member)?;
        let mut met = Met::default();
        let _gates = Gates::enter([src.buffer, &*dst.buffer].map(|b| &**b.shared()).into_iter());
        let own = (!core.is_inline(member)).then_some(core);
        for (users, write) in [(src.buffer.users(), false), (dst.buffer.users(), true)] {
            for other in users.before(own, write, &mut met) {
                core.order_behind(member, other)?;
            }
        }
        core.on_lane_locked(member, |lane| {
            if own.is_some() {
                src.buffer.users().note(core, false, &mut met);
                dst.buffer.users().note(core, true, &mut met);
            }
            // SAFETY: both ranges are inside live buffers, which stay alive until this work is done because
            // it has been noted (or is done on return, on an inline lane); conflicting work comes before.
            unsafe { lane.copy(request(src, dst)) }
        })
    }

    fn record_copy(
        &self,
        member: usize,
        within: Option<u64>,
        src: &View<'_>,
        dst: &ViewMut<'_>,
    ) -> Result<()> {
        let buffers = [
            Access { shared: src.buffer.shared(), written: None },
            Access { shared: dst.buffer.shared(), written: Some((dst.offset, dst.bytes)) },
        ];
        self.core.record_on(
            member,
            within,
            buffers.into_iter(),
            // SAFETY: both ranges are inside live buffers, which the graph keeps; it orders its launches.
            |lane| unsafe { lane.copy(request(src, dst)) },
        )
    }

    /// Queues an upload. The vector is kept until the copy is done.
    ///
    /// # Errors
    /// As [`Buffer::upload`]. `InvalidArgument` while the stream records a graph.
    pub fn upload<T: Element>(&self, dst: &mut Buffer, data: Vec<T>) -> Result<()> {
        let bytes = size_of_val(data.as_slice()) as u64;
        if dst.dtype() != T::DTYPE || bytes > dst.bytes() {
            return Err(Error::invalid(format!("{} {} into {dst:?}", data.len(), T::DTYPE)));
        }
        let core = &self.core;
        core.check_idle()?;
        if bytes == 0 {
            return Ok(());
        }
        let space = dst.space();
        let Some(member) = self.device().member_where(|m| m.writes(space) && !m.handle().info().inline)
        else {
            return dst.upload(&data);
        };
        core.tidy(member)?;
        let mut met = Met::default();
        let gates = Gates::enter(std::iter::once(&**dst.shared()));
        for other in dst.users().before(Some(core), true, &mut met) {
            core.order_behind(member, other)?;
        }
        let src = data.as_ptr().expose_provenance() as u64;
        let queued = core.on_lane_locked(member, |lane| {
            dst.users().note(core, true, &mut met);
            let copy =
                CopyRequest { dst: dst.address(), dst_space: dst.space(), src, src_space: HOST_SPACE, bytes };
            // SAFETY: the destination has been noted; the source is kept below until the copy is done, also
            // when queueing reports an error.
            unsafe { lane.copy(copy) }
        });
        drop(gates);
        core.keep(Kept::Host { _bytes: Box::new(data) });
        queued?;
        dst.mark_written(0, bytes);
        Ok(())
    }
}

fn request<'a>(src: &'a View<'_>, dst: &'a ViewMut<'_>) -> CopyRequest<'a> {
    CopyRequest {
        dst: dst.buffer.address() + dst.offset,
        dst_space: dst.buffer.space(),
        src: src.buffer.address() + src.offset,
        src_space: src.buffer.space(),
        bytes: src.bytes,
    }
}

/// A copy that no member of the stream's device can do: by the other device of the two, or through the host.
fn copy_elsewhere(src: &View<'_>, dst: &ViewMut<'_>) -> Result<()> {
    let _holds = (settle(src.buffer, false)?, settle(dst.buffer, true)?);
    let (from, to) = (src.buffer.address() + src.offset, dst.buffer.address() + dst.offset);
    for device in [src.buffer.device(), dst.buffer.device()] {
        let m = &device.members()[0];
        if m.reads(src.buffer.space()) && m.writes(dst.buffer.space()) {
            let (dst_space, src_space) = (dst.buffer.space(), src.buffer.space());
            return copy_now(
                device,
                CopyRequest { dst: to, dst_space, src: from, src_space, bytes: src.bytes },
            );
        }
    }
    let mut stage = vec![MaybeUninit::uninit(); src.bytes.min(STAGE_BYTES) as usize];
    let mut done = 0;
    while done < src.bytes {
        let n = (src.bytes - done).min(STAGE_BYTES);
        let piece = &mut stage[..n as usize];
        read_at(src.buffer, src.offset + done, piece)?;
        // SAFETY: `read_at` has written all of it.
        let piece = unsafe { std::slice::from_raw_parts(piece.as_ptr().cast::<u8>(), piece.len()) };
        write_at(dst.buffer, dst.offset + done, piece)?;
        done += n;
    }
    Ok(())
}
