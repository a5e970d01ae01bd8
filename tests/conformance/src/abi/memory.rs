//! Memory that is allocated and freed in the order of a stream's work.

use super::checked;
use super::raw::{OpenDevice, Subject};
use crate::values::Random;
use crate::verdict::{Verdict, wrong};
use ep_core::abi::*;
use ep_core::{Code, Error, Result};

const BYTES: u64 = 4096;

/// The functions that the check needs, on one device.
struct Ordered<'a> {
    device: &'a OpenDevice<'a>,
    stream: *mut EpStream,
    allocator: *mut EpAllocator,
    space: EpStr,
}

impl Ordered<'_> {
    fn alloc(&self) -> Result<u64> {
        self.alloc_for(self.stream)
    }

    /// An allocation for work on a stream; null: on any.
    fn alloc_for(&self, stream: *mut EpStream) -> Result<u64> {
        let request = EpAllocRequest { bytes: BYTES, stream, ..EpAllocRequest::EMPTY };
        let mut address = 0;
        // SAFETY: live objects of one device, a live request, a valid out-pointer.
        unsafe { checked((self.device.tables().allocator.alloc)(self.allocator, &request, &mut address)) }??;
        if address == 0 {
            return wrong("an allocation on a stream has the address 0");
        }
        Ok(address)
    }

    /// Frees behind the work of the stream; the inner error is the provider's.
    fn free_async(&self, address: u64) -> Result<std::result::Result<(), Error>> {
        // SAFETY: allocated by `alloc`, used only by work before this call on the stream.
        unsafe {
            checked((self.device.tables().allocator.free_async)(self.allocator, address, BYTES, self.stream))
        }
    }

    fn free(&self, address: u64) -> Result<()> {
        // SAFETY: allocated by `alloc`, and no queued work uses it.
        unsafe { checked((self.device.tables().allocator.free)(self.allocator, address, BYTES)) }?
    }

    /// Queues a copy of a block's size.
    ///
    /// # Safety
    /// Both ranges stay valid until the stream has been awaited or the memory was freed behind the copy.
    unsafe fn copy(&self, dst: (u64, EpStr), src: (u64, EpStr)) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.copy_on(self.stream, dst, src) }
    }

    /// # Safety
    /// As [`Ordered::copy`], for a stream of this thread.
    unsafe fn copy_on(
        &self,
        stream: *mut EpStream,
        (dst, dst_space): (u64, EpStr),
        (src, src_space): (u64, EpStr),
    ) -> Result<()> {
        let copy = EpCopy { dst, dst_space, src, src_space, bytes: BYTES, ..EpCopy::EMPTY };
        // SAFETY: a live stream, used by this thread only; memory as the caller promises.
        unsafe { checked((self.device.tables().stream.copy)(stream, &copy)) }?
    }

    fn sync(&self) -> Result<()> {
        // SAFETY: a live stream, used by this thread only.
        unsafe { checked((self.device.tables().stream.sync)(self.stream)) }?
    }

    /// Waits for this stream and another one; also where one of them has failed, both have been awaited.
    fn sync_with(&self, other: *mut EpStream) -> Result<()> {
        let own = self.sync();
        // SAFETY: a live stream, used by this thread only.
        let other = unsafe { checked((self.device.tables().stream.sync)(other)) };
        own.and(other?)
    }

    /// Frees a block behind queued work that still has to read it, and has others use what is allocated then: for no
    /// stream, and for another one.
    fn beside(&self, target: u64, other: *mut EpStream, random: &mut Random) -> Result<()> {
        let mut host = HostSide::new(random);
        let next = self.queue_beside(target, other, &mut host);
        // Before the host's memory goes, whatever has failed.
        let waited = self.sync_with(other);
        let next = next?;
        waited?;
        next.into_iter().try_for_each(|block| self.free(block))?;
        if host.found != host.data {
            return wrong("memory that was freed behind a copy was given to somebody else before the copy");
        }
        Ok(())
    }

    /// The work of [`Ordered::beside`], and the blocks that others use. The callers wait for both streams.
    fn queue_beside(&self, target: u64, other: *mut EpStream, host: &mut HostSide) -> Result<[u64; 2]> {
        // Work enough that the stream has not come to the block when it is freed.
        const BEFORE: usize = 24;
        let [data, nothing, found] = host.sides();
        let address = self.alloc()?;
        // SAFETY: both blocks are live; what is freed is freed behind the copy that reads it, and the host's sides live
        // until the callers' waits.
        unsafe {
            self.copy((address, self.space), data)?;
            self.sync()?;
            for _ in 0..BEFORE {
                self.copy((target, self.space), nothing)?;
            }
            self.copy((target, self.space), (address, self.space))?;
            self.free_async(address)??;
            let next = [self.alloc_for(std::ptr::null_mut())?, self.alloc_for(other)?];
            for block in next {
                self.copy_on(other, (block, self.space), nothing)?;
            }
            checked((self.device.tables().stream.sync)(other))??;
            self.copy(found, (target, self.space))?;
            Ok(next)
        }
    }

    fn round(&self, target: u64, random: &mut Random) -> Result<std::result::Result<(), Error>> {
        let mut host = HostSide::new(random);
        let next = self.queue_round(target, &mut host);
        // Before the host's memory goes, whatever has failed.
        let waited = self.sync();
        let next = next?;
        waited?;
        let next = match next {
            Ok(next) => next,
            Err((address, refused)) => {
                self.free(address)?;
                return Ok(Err(refused));
            }
        };
        self.free(next)?;
        if host.found != host.data {
            return wrong("memory that was freed behind a copy on a stream was reused before it");
        }
        Ok(Ok(()))
    }

    /// The work of [`Ordered::round`], and the block that is allocated behind it; or the one that could not be freed, and
    /// why. The callers wait for the stream.
    fn queue_round(
        &self,
        target: u64,
        host: &mut HostSide,
    ) -> Result<std::result::Result<u64, (u64, Error)>> {
        let [data, nothing, found] = host.sides();
        let address = self.alloc()?;
        // SAFETY: the host's sides live until the callers' wait; the block is freed behind both copies.
        unsafe {
            self.copy((address, self.space), data)?;
            self.copy((target, self.space), (address, self.space))?;
        }
        if let Err(e) = self.free_async(address)? {
            return Ok(Err((address, e)));
        }
        // Whoever gets the memory next, behind it on the stream, must not disturb the copy.
        let next = self.alloc()?;
        // SAFETY: as above.
        unsafe {
            self.copy(found, (target, self.space))?;
            self.copy((next, self.space), nothing)?;
        }
        Ok(Ok(next))
    }
}

/// Host memory of queued copies.
struct HostSide {
    /// What is copied to the device.
    data: Vec<u8>,
    zeros: Vec<u8>,
    /// What comes back.
    found: Vec<u8>,
}

impl HostSide {
    fn new(random: &mut Random) -> HostSide {
        let data = (0..BYTES).map(|_| random.bits() as u8).collect();
        HostSide { data, zeros: vec![0; BYTES as usize], found: vec![0; BYTES as usize] }
    }

    /// The three as sides of copies.
    fn sides(&mut self) -> [(u64, EpStr); 3] {
        let sides = [self.data.as_ptr(), self.zeros.as_ptr(), self.found.as_mut_ptr().cast_const()];
        sides.map(|p| (p.expose_provenance() as u64, text(ep_core::provider::inline::HOST_SPACE)))
    }
}

fn in_use(device: &OpenDevice<'_>, allocator: *mut EpAllocator) -> Result<u64> {
    let mut stats = EpMemoryStats::EMPTY;
    // SAFETY: a live allocator and a struct of our capacity.
    unsafe { checked((device.tables().allocator.stats)(allocator, &mut stats)) }??;
    Ok(stats.in_use_blocks)
}

pub(super) fn stream_ordered(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let Some(device) = instance.open(0)? else {
        return Verdict::unsupported("there is no device to open here");
    };
    if !instance.tables.allocator.has_free_async {
        return Verdict::unsupported("the allocator offers no free_async");
    }
    let space = device.info()?.memory_space;
    device.with_allocator(|allocator| {
        device.with_stream(|stream| {
            let ordered = Ordered { device: &device, stream, allocator, space };
            let before = in_use(&device, allocator)?;
            let target = ordered.alloc()?;
            let mut random = Random::new(1);
            let mut rounds = (0..32).map(|_| ordered.round(target, &mut random));
            let ended = rounds.find(|r| !matches!(r, Ok(Ok(()))));
            ordered.sync()?;
            if ended.is_none() {
                device.with_stream(|other| {
                    (0..16).try_for_each(|_| ordered.beside(target, other, &mut Random::new(2)))
                })?;
            }
            ordered.free(target)?;
            match ended {
                Some(Err(e)) => return Err(e),
                Some(Ok(Err(e))) if e.code() == Code::Unsupported => {
                    return Verdict::unsupported(e.to_string());
                }
                Some(Ok(Err(e))) => return Err(e),
                Some(Ok(Ok(()))) | None => {}
            }
            let after = in_use(&device, allocator)?;
            if after != before {
                return wrong(format!("{before} blocks in use before, {after} after all was freed"));
            }
            Ok(Verdict::Pass)
        })
    })
}
