//! Device memory that is freed at the end, and copies to and from it.

use crate::values::Random;
use ep_core::Result;
use ep_core::handle::{AllocatorHandle, StreamHandle};
use ep_core::provider::CopyRequest;
use ep_core::provider::inline::HOST_SPACE;

/// An allocation. The checks make it before the streams whose work uses it, so that it is dropped after them whatever
/// fails: a stream that is destroyed waits for its work.
pub(super) struct Block<'a> {
    allocator: &'a AllocatorHandle,
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl<'a> Block<'a> {
    pub(super) fn new(allocator: &'a AllocatorHandle, bytes: u64) -> Result<Block<'a>> {
        Block::aligned(allocator, bytes, 0)
    }

    pub(super) fn aligned(allocator: &'a AllocatorHandle, bytes: u64, alignment: u64) -> Result<Block<'a>> {
        Ok(Block { allocator, address: allocator.alloc(bytes, alignment)?, bytes })
    }

    /// Frees it, and tells of an error.
    pub(super) fn free(self) -> Result<()> {
        let block = std::mem::ManuallyDrop::new(self);
        // SAFETY: allocated there with these values, freed once; nothing queued uses it.
        unsafe { block.allocator.free(block.address, block.bytes) }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `free`.
        if let Err(e) = unsafe { self.allocator.free(self.address, self.bytes) } {
            tracing::error!("freeing {} bytes: {e}", self.bytes);
        }
    }
}

/// Random bytes.
pub(super) fn noise(random: &mut Random, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.bits() as u8).collect()
}

pub(super) fn address(bytes: *const u8) -> u64 {
    bytes.expose_provenance() as u64
}

/// Queues a copy from host memory and waits for it.
pub(super) fn upload(stream: &StreamHandle, space: &str, to: u64, data: &[u8]) -> Result<()> {
    let (dst_space, src_space, src) = (space, HOST_SPACE, address(data.as_ptr()));
    // SAFETY: the callers' block has room, and both sides live until the stream has been awaited.
    unsafe { awaited(stream, CopyRequest { dst: to, dst_space, src, src_space, bytes: data.len() as u64 }) }
}

/// Queues a copy to host memory and waits for it.
pub(super) fn download(stream: &StreamHandle, space: &str, from: u64, bytes: usize) -> Result<Vec<u8>> {
    let mut data = vec![0x3c; bytes];
    download_into(stream, space, from, &mut data)?;
    Ok(data)
}

/// Queues a copy into a part of host memory and waits.
pub(super) fn download_into(stream: &StreamHandle, space: &str, from: u64, to: &mut [u8]) -> Result<()> {
    let (dst, bytes) = (address(to.as_mut_ptr()), to.len() as u64);
    // SAFETY: as above.
    unsafe { awaited(stream, CopyRequest { dst, dst_space: HOST_SPACE, src: from, src_space: space, bytes }) }
}

/// Queues a copy and waits, for earlier work too where the copy is refused.
///
/// # Safety
/// Both ranges are valid during the call.
unsafe fn awaited(stream: &StreamHandle, copy: CopyRequest<'_>) -> Result<()> {
    // SAFETY: as the caller promises, and nothing of the work is left after the wait.
    let queued = unsafe { stream.copy(copy) };
    let done = stream.sync();
    queued.and(done)
}

/// Queues a copy between two blocks of one space.
///
/// # Safety
/// Both ranges stay valid until the stream has been awaited, and do not overlap.
pub(super) unsafe fn move_bytes(
    stream: &StreamHandle,
    space: &str,
    to: u64,
    from: u64,
    bytes: u64,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { stream.copy(CopyRequest { dst: to, dst_space: space, src: from, src_space: space, bytes }) }
}
