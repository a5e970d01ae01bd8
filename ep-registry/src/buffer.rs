//! Buffers: typed pieces of device memory that safe code cannot misuse.
//!
//! A buffer remembers which streams have unfinished work on it. A launch on another stream waits for that
//! work, on the device where it can; host access waits for it here; dropping a buffer hands its memory to a
//! stream that still uses it. What was never written cannot be read.

use crate::device::Device;
use crate::memory::{Deleter, Memory};
use crate::prepack::Packed;
use crate::shared::{Shared, Users};
use crate::transfer;
use ep_core::{DType, Element, Error, Result};
use std::fmt;
use std::sync::Arc;

/// A typed piece of device memory.
pub struct Buffer {
    shared: Arc<Shared>,
    dtype: DType,
}

impl Buffer {
    pub(crate) fn new(memory: Memory, dtype: DType) -> Buffer {
        Buffer { shared: Arc::new(Shared::new(memory, 0)), dtype }
    }

    /// Wraps memory that somebody else owns, all of it initialised. `deleter` runs when neither the buffer, nor a graph,
    /// nor queued work uses it any more, on the thread that happens to notice: it should be short and not block.
    ///
    /// # Errors
    /// `InvalidArgument` when no provider of the device reaches `space`, or the address is impossible.
    ///
    /// # Safety
    /// `address..address + bytes` is valid memory of `space` with valid elements of `dtype` until `deleter`
    /// runs, and nobody else writes it, nor touches it while work that writes it is queued.
    pub unsafe fn import(
        device: &Device,
        space: &str,
        address: u64,
        bytes: u64,
        dtype: DType,
        deleter: impl FnOnce() + Send + 'static,
    ) -> Result<Buffer> {
        let deleter: Deleter = Box::new(deleter);
        let memory = Memory::foreign(device, space, address, bytes, deleter)?;
        Ok(Buffer { shared: Arc::new(Shared::new(memory, bytes)), dtype })
    }

    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        self.shared.memory()
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[inline]
    pub(crate) fn users(&self) -> &Users {
        &self.shared.users
    }

    /// The device that it belongs to.
    #[inline]
    pub fn device(&self) -> &Device {
        &self.memory().device
    }

    /// Its memory space.
    pub fn space(&self) -> &str {
        &self.memory().space
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements; sub-byte and unknown dtypes count in bytes.
    pub fn len(&self) -> usize {
        (self.bytes() / self.dtype.bytes_for_bounds()) as usize
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.memory().bytes
    }

    /// The address of the first byte, for raw launches.
    #[inline]
    pub fn address(&self) -> u64 {
        self.memory().address
    }

    /// Bytes from the start that have been written, or are by queued work. What a recording writes does not count before its
    /// graph has been launched.
    pub fn written(&self) -> u64 {
        self.shared.written()
    }

    /// The same memory seen as another dtype.
    ///
    /// # Errors
    /// `InvalidArgument` for bool, whose bytes could be invalid, unless it is bool already; from bool while a graph
    /// uses the memory, which would read whatever is written later as bool.
    pub fn reinterpret(mut self, dtype: DType) -> Result<Buffer> {
        if dtype == DType::BOOL && self.dtype != DType::BOOL {
            return Err(Error::invalid("bytes of another dtype cannot become bool; cast instead"));
        }
        if dtype != self.dtype && self.dtype == DType::BOOL && Arc::strong_count(&self.shared) > 1 {
            return Err(Error::invalid("a graph uses the buffer as bool; drop the graph first"));
        }
        self.dtype = dtype;
        Ok(self)
    }

    /// A part to read: `len` elements from element `start`.
    ///
    /// # Errors
    /// `InvalidArgument` when it is outside of the buffer.
    pub fn slice(&self, start: usize, len: usize) -> Result<View<'_>> {
        let (offset, bytes) = self.part(start, len)?;
        Ok(View { buffer: self, offset, bytes })
    }

    /// A part to write: `len` elements from element `start`.
    ///
    /// # Errors
    /// `InvalidArgument` when it is outside of the buffer.
    pub fn slice_mut(&mut self, start: usize, len: usize) -> Result<ViewMut<'_>> {
        let (offset, bytes) = self.part(start, len)?;
        Ok(ViewMut { buffer: self, offset, bytes })
    }

    fn part(&self, start: usize, len: usize) -> Result<(u64, u64)> {
        let size = self.dtype.bytes_for_bounds();
        let (offset, bytes) = ((start as u64).saturating_mul(size), (len as u64).saturating_mul(size));
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(Error::invalid(format!(
                "elements {start}..{} of a buffer of {} {}",
                start.saturating_add(len),
                self.len(),
                self.dtype
            )));
        }
        Ok((offset, bytes))
    }

    /// Fails when something in `offset..offset + bytes` was never written.
    #[inline]
    pub(crate) fn check_written(&self, offset: u64, bytes: u64) -> Result<()> {
        if bytes == 0 || offset + bytes <= self.shared.written() {
            Ok(())
        } else {
            Err(self.unwritten(offset, bytes))
        }
    }

    #[cold]
    fn unwritten(&self, offset: u64, bytes: u64) -> Error {
        Error::invalid(format!(
            "bytes {offset}..{} would be read, but only 0..{} of the buffer have been written; upload or fill it \
             first",
            offset + bytes,
            self.shared.written()
        ))
    }

    /// Notes that a range is now written. A range that leaves a gap before it does not count.
    #[inline]
    pub(crate) fn mark_written(&mut self, offset: u64, bytes: u64) {
        self.shared.mark_written(offset, bytes);
    }

    /// Waits for all work that was queued on the buffer, so that others may use its [`Buffer::address`]. Raw launches are not known to
    /// be on it; [`Stream::sync`](crate::Stream::sync) waits for those.
    ///
    /// # Errors
    /// The error of that work.
    pub fn wait(&self) -> Result<()> {
        transfer::wait(self)
    }

    /// Copies `data` into the buffer; the slice has been read on return.
    ///
    /// # Errors
    /// `InvalidArgument` for another dtype or more elements than fit; else the provider's.
    pub fn upload<T: Element>(&mut self, data: &[T]) -> Result<()> {
        self.check_element::<T>()?;
        if data.len() > self.len() {
            return Err(Error::invalid(format!("{} elements into a buffer of {}", data.len(), self.len())));
        }
        transfer::upload(self, transfer::as_bytes(data))
    }

    /// A copy of the content.
    ///
    /// # Errors
    /// `InvalidArgument` for another dtype, unwritten memory, or bytes that are no valid bool; the error of
    /// queued work on the buffer.
    pub fn download<T: Element>(&self) -> Result<Vec<T>> {
        self.check_element::<T>()?;
        transfer::download(self)
    }

    /// The content, readable by the host until the guard is dropped. Waits for queued work.
    ///
    /// # Errors
    /// As [`Buffer::download`].
    pub fn map_read<T: Element>(&self) -> Result<transfer::MapRead<'_, T>> {
        self.check_element::<T>()?;
        transfer::MapRead::new(self)
    }

    /// The content, readable and writable by the host until the guard is finished or dropped. Waits for queued
    /// work.
    ///
    /// # Errors
    /// As [`Buffer::download`].
    pub fn map_write<T: Element>(&mut self) -> Result<transfer::MapWrite<'_, T>> {
        self.check_element::<T>()?;
        transfer::MapWrite::new(self)
    }

    fn check_element<T: Element>(&self) -> Result<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(Error::invalid(format!("the buffer holds {}, not {}", self.dtype, T::DTYPE)))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} {} on {})", self.len(), self.dtype, self.device().name())
    }
}

/// A part of a buffer to read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl View<'_> {
    pub(crate) fn address(&self) -> u64 {
        self.buffer.address() + self.offset
    }
}

/// A part of a buffer to write.
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl<'a> From<&'a Buffer> for View<'a> {
    #[inline]
    fn from(buffer: &'a Buffer) -> View<'a> {
        View { buffer, offset: 0, bytes: buffer.bytes() }
    }
}

impl<'a> From<&'a mut Buffer> for ViewMut<'a> {
    #[inline]
    fn from(buffer: &'a mut Buffer) -> ViewMut<'a> {
        let bytes = buffer.bytes();
        ViewMut { buffer, offset: 0, bytes }
    }
}

/// Stands for "the memory of the output": an op in place.
#[derive(Clone, Copy, Debug)]
pub struct InPlace;

/// Stands for "no memory": a scalar is given instead, or there are no elements.
#[derive(Clone, Copy, Debug)]
pub struct NoMemory;

/// What an operand that is read can be given.
#[derive(Clone, Copy, Debug)]
pub enum Read<'a> {
    /// Memory.
    View(View<'a>),
    /// The memory of the output.
    InPlace,
    /// What the primitive that is launched has packed this operand into.
    Packed(&'a Packed),
    /// Nothing.
    None,
}

impl<'a> From<&'a Buffer> for Read<'a> {
    #[inline]
    fn from(b: &'a Buffer) -> Read<'a> {
        Read::View(b.into())
    }
}

impl<'a> From<View<'a>> for Read<'a> {
    #[inline]
    fn from(v: View<'a>) -> Read<'a> {
        Read::View(v)
    }
}

impl<'a> From<&'a Packed> for Read<'a> {
    #[inline]
    fn from(packed: &'a Packed) -> Read<'a> {
        Read::Packed(packed)
    }
}

impl From<InPlace> for Read<'_> {
    #[inline]
    fn from(_: InPlace) -> Self {
        Read::InPlace
    }
}

/// An optional operand that a launch writes.
impl<'a> From<&'a mut Buffer> for Option<ViewMut<'a>> {
    #[inline]
    fn from(b: &'a mut Buffer) -> Self {
        Some(b.into())
    }
}

/// An optional operand that is absent.
impl From<NoMemory> for Option<ViewMut<'_>> {
    #[inline]
    fn from(_: NoMemory) -> Self {
        None
    }
}

impl From<NoMemory> for Read<'_> {
    #[inline]
    fn from(_: NoMemory) -> Self {
        Read::None
    }
}
