//! Scratch memory of a stream, for launches that are given none.

use crate::memory::CudaAllocator;
use crate::stream::CudaStream;
use ep_core::Result;
use ep_core::provider::{Allocator, MemoryKind};
use std::cell::Cell;

/// The alignment of every piece.
const ALIGNMENT: u64 = 256;

/// One block of the device's memory that launches of a stream use one after the other. It grows.
#[derive(Default)]
pub(crate) struct Scratch {
    block: Cell<Option<Block>>,
}

#[derive(Clone, Copy)]
struct Block {
    address: u64,
    bytes: u64,
}

impl Scratch {
    /// The address of `bytes` that the next launch on the stream may use. Not while the stream is captured: a graph
    /// may be replayed when the stream is gone.
    ///
    /// # Errors
    /// `OutOfMemory`; the driver's.
    pub(crate) fn get(&self, stream: &CudaStream, bytes: u64) -> Result<u64> {
        if let Some(block) = self.block.get().filter(|b| b.bytes >= bytes) {
            return Ok(block.address);
        }
        let memory = allocator(stream);
        let address = memory.alloc(bytes, ALIGNMENT, Some(stream))?;
        // The old block's last use is queued.
        if let Some(old) = self.block.replace(Some(Block { address, bytes })) {
            memory.free_async(old.address, old.bytes, stream)?;
        }
        Ok(address)
    }

    /// Gives the block back when the stream's work is done.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn release(&self, stream: &CudaStream) -> Result<()> {
        match self.block.take() {
            Some(block) => allocator(stream).free(block.address, block.bytes),
            None => Ok(()),
        }
    }
}

fn allocator(stream: &CudaStream) -> CudaAllocator {
    CudaAllocator::new(stream.context().clone(), MemoryKind::Device)
}
