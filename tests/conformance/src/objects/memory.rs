//! Allocators and copies.

use super::Bench;
use super::block::{Block, download, download_into, move_bytes, noise, upload};
use crate::values::Random;
use crate::verdict::{Verdict, expect_error, wrong};
use ep_core::handle::AllocatorHandle;
use ep_core::provider::inline::HOST_SPACE;
use ep_core::provider::{CopyRequest, MemoryKind, StreamOptions};
use ep_core::{Code, Result};

/// Nothing, less than a word, odd, around a page, more than a cache holds.
const SIZES: [usize; 9] = [0, 1, 3, 64, 1000, 4095, 4097, 65_537, (1 << 20) + 13];

/// Bytes on either side of what a copy writes, which stay as they were.
const AROUND: usize = 32;

/// Compares what a copy has left with the ground that it was written on, but for `data` at an offset.
fn written(what: &str, found: &[u8], mut ground: Vec<u8>, at: usize, data: &[u8]) -> Result<()> {
    ground[at..at + data.len()].copy_from_slice(data);
    match found.iter().zip(&ground).position(|(f, w)| f != w) {
        None => Ok(()),
        Some(i) => wrong(format!("{what} of {} bytes to offset {at}: byte {i} is wrong", data.len())),
    }
}

pub(super) fn copies(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let stream = bench.handle().create_stream(StreamOptions::default())?;
    let space = bench.space();
    let mut random = Random::new(bench.seed);
    for bytes in SIZES {
        for shift in [0, 1, 7] {
            let (whole, at) = (bytes + 2 * AROUND, AROUND + shift as usize);
            let (a, b) = (Block::new(&allocator, whole as u64)?, Block::new(&allocator, whole as u64)?);
            let (data, grounds) = (noise(&mut random, bytes), [0; 3].map(|_| noise(&mut random, whole)));
            let [of_a, of_b, of_host] = grounds;
            upload(&stream, space, a.address, &of_a)?;
            upload(&stream, space, b.address, &of_b)?;
            // From host memory of every alignment.
            let mut host = vec![0; bytes + 8];
            host[shift as usize..][..bytes].copy_from_slice(&data);
            let from = a.address + at as u64;
            upload(&stream, space, from, &host[shift as usize..][..bytes])?;
            written("a copy to the device", &download(&stream, space, a.address, whole)?, of_a, at, &data)?;
            let to = b.address + at as u64 + shift;
            // SAFETY: distinct blocks with room, awaited by the download.
            unsafe { move_bytes(&stream, space, to, from, bytes as u64) }?;
            let found = download(&stream, space, b.address, whole)?;
            written("a copy on the device", &found, of_b, at + shift as usize, &data)?;
            // To host memory of every alignment.
            let mut found = of_host.clone();
            download_into(&stream, space, from, &mut found[at..at + bytes])?;
            written("a copy from the device", &found, of_host, at, &data)?;
        }
    }
    Ok(Verdict::Pass)
}

pub(super) fn unknown_spaces(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let stream = bench.handle().create_stream(StreamOptions::default())?;
    let (a, data) = (Block::new(&allocator, 64)?, [7u8; 64]);
    let src = data.as_ptr().expose_provenance() as u64;
    for (dst_space, src_space) in
        [("acme-nowhere:7", HOST_SPACE), (bench.space(), "acme-nowhere:7"), ("", "")]
    {
        let copy = CopyRequest { dst: a.address, dst_space, src, src_space, bytes: 64 };
        // SAFETY: whatever the provider makes of the names, both ranges are valid.
        let queued = unsafe { stream.copy(copy) };
        let done = stream.sync();
        let what = format!("a copy from space `{src_space}` to `{dst_space}`");
        expect_error(&what, queued.and(done), &[Code::Unsupported, Code::InvalidArgument, Code::NotFound])?;
    }
    // The stream works on.
    upload(&stream, bench.space(), a.address, &data)?;
    Ok(Verdict::Pass)
}

pub(super) fn alignment(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let mut blocks = Vec::new();
    // A device need not have alignments beyond a page; what it gives is what was asked for.
    for alignment in [8192, 1 << 16, 1 << 20] {
        for bytes in [1, 4097] {
            match Block::aligned(&allocator, bytes, alignment) {
                Ok(block) => blocks.push(block),
                Err(e)
                    if matches!(e.code(), Code::Unsupported | Code::InvalidArgument | Code::OutOfMemory) => {}
                Err(e) => return Err(e),
            }
        }
    }
    for alignment in [0, 1, 2, 64, 128, 256, 4096] {
        for bytes in [1, 63, 64, 65, 4096, 100_000] {
            // The handle refuses an address that is not what was asked for.
            blocks.push(Block::aligned(&allocator, bytes, alignment)?);
        }
    }
    blocks.sort_by_key(|b| b.address);
    if let Some(pair) = blocks.windows(2).find(|p| p[0].address + p[0].bytes > p[1].address) {
        return wrong(format!(
            "{} bytes at {:#x} and {} bytes at {:#x} overlap",
            pair[0].bytes, pair[0].address, pair[1].bytes, pair[1].address
        ));
    }
    blocks.into_iter().try_for_each(Block::free)?;
    Ok(Verdict::Pass)
}

pub(super) fn zero_size(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let stream = bench.handle().create_stream(StreamOptions::default())?;
    let (a, b) = (Block::new(&allocator, 0)?, Block::new(&allocator, 0)?);
    // SAFETY: no bytes.
    unsafe { move_bytes(&stream, bench.space(), a.address, b.address, 0) }?;
    stream.sync()?;
    a.free()?;
    b.free()?;
    Ok(Verdict::Pass)
}

pub(super) fn exhaustion(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let before = allocator.stats()?;
    for bytes in [1 << 60, u64::MAX / 2, u64::MAX - 63, u64::MAX] {
        let codes = [Code::OutOfMemory, Code::InvalidArgument];
        expect_error(&format!("an allocation of {bytes} bytes"), allocator.alloc(bytes, 0), &codes)?;
    }
    let after = allocator.stats()?;
    if (before.in_use_bytes, before.in_use_blocks) != (after.in_use_bytes, after.in_use_blocks) {
        return wrong("an allocation that failed counts as in use");
    }
    Block::new(&allocator, 64)?.free()?;
    Ok(Verdict::Pass)
}

pub(super) fn statistics(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let before = allocator.stats()?;
    let blocks = [100, 5000, 70_000].map(|n| Block::new(&allocator, n));
    let during = allocator.stats()?;
    let [a, b, c] = blocks;
    let (a, b, c) = (a?, b?, c?);
    let wanted = [
        ("in_use_blocks", during.in_use_blocks == before.in_use_blocks + 3),
        ("in_use_bytes", during.in_use_bytes >= before.in_use_bytes + 75_100),
        ("peak_in_use_bytes", during.peak_in_use_bytes >= during.in_use_bytes),
        ("total_allocs", during.total_allocs >= before.total_allocs + 3),
        ("reserved_bytes", during.reserved_bytes >= during.in_use_bytes),
    ];
    if let Some((name, _)) = wanted.iter().find(|(_, right)| !right) {
        return wrong(format!(
            "`{name}` is wrong with three more blocks in use: {before:?}, then {during:?}"
        ));
    }
    [b, a, c].into_iter().try_for_each(Block::free)?;
    // More than before, and nobody looks before it is freed.
    let more = during.peak_in_use_bytes - before.in_use_bytes + 4096;
    Block::new(&allocator, more)?.free()?;
    let peak = allocator.stats()?.peak_in_use_bytes;
    if peak < before.in_use_bytes + more {
        return wrong(format!("`peak_in_use_bytes` is {peak} after {more} bytes more were in use at a time"));
    }
    allocator.trim()?;
    let after = allocator.stats()?;
    let same = after.in_use_blocks == before.in_use_blocks && after.in_use_bytes == before.in_use_bytes;
    if !same || after.peak_in_use_bytes < during.in_use_bytes || after.total_allocs != during.total_allocs + 1
    {
        return wrong(format!("wrong when all is freed: {before:?} at first, {after:?} at last"));
    }
    Ok(Verdict::Pass)
}

pub(super) fn pinned(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = match bench.handle().open_allocator(MemoryKind::PinnedHost) {
        Ok(allocator) => allocator,
        Err(e) if e.code() == Code::Unsupported => return Verdict::unsupported(e.to_string()),
        Err(e) => return Err(e),
    };
    let block = Block::new(&allocator, 4097)?;
    let data = noise(&mut Random::new(bench.seed), 4097);
    // SAFETY: pinned memory is host memory, as long as was asked for; nothing else uses it.
    unsafe {
        (*host_bytes(&block)).copy_from_slice(&data);
        if *host_bytes(&block) != *data {
            return wrong("pinned host memory does not keep what the host writes");
        }
    }
    block.free()?;
    let device = bench.handle().open_allocator(MemoryKind::Device)?;
    let buffer = bench.device.alloc_pinned(ep_core::DType::U8, 1)?;
    let (space, info) = (buffer.space(), bench.handle().info());
    if ![&info.reads, &info.writes].into_iter().all(|spaces| spaces.iter().any(|s| s == space)) {
        return Verdict::unsupported(format!(
            "copies of it: `reads` and `writes` do not both name `{space}`"
        ));
    }
    pinned_copies(bench, &device, &allocator, space)?;
    Ok(Verdict::Pass)
}

/// The bytes of a pinned block, which is host memory.
fn host_bytes(block: &Block<'_>) -> *mut [u8] {
    let ptr = std::ptr::with_exposed_provenance_mut::<u8>(block.address as usize);
    std::ptr::slice_from_raw_parts_mut(ptr, block.bytes as usize)
}

/// Copies from and to pinned memory, which a device does behind the call that queues them, each behind another copy of
/// its memory that has to be done before. Hosts send them only to a device that lists the space of that memory.
fn pinned_copies(
    bench: &Bench<'_>,
    device: &AllocatorHandle,
    pinned: &AllocatorHandle,
    host_space: &str,
) -> Result<()> {
    let space = bench.space();
    let mut random = Random::new(bench.seed.wrapping_add(1));
    for bytes in SIZES {
        for shift in [0, 1, 7] {
            let whole = bytes + AROUND;
            let [a, b] = [(); 2].map(|()| Block::new(device, whole as u64));
            let [from, to] = [(); 2].map(|()| Block::new(pinned, whole as u64));
            let (a, b, from, to) = (a?, b?, from?, to?);
            let stream = bench.handle().create_stream(StreamOptions::default())?;
            let [data, of_a, of_to] = [0; 3].map(|_| noise(&mut random, whole));
            upload(&stream, space, a.address, &of_a)?;
            // SAFETY: pinned blocks, which no work uses yet.
            unsafe {
                (*host_bytes(&from)).copy_from_slice(&data);
                (*host_bytes(&to)).copy_from_slice(&of_to);
            }
            let (at, n) = (shift as usize, bytes as u64);
            // SAFETY: distinct blocks with room that outlive the stream, and are looked at once it was awaited.
            let queued = unsafe {
                let (src, src_space) = (from.address + 2 * shift, host_space);
                let up = CopyRequest { dst: a.address + shift, dst_space: space, src, src_space, bytes: n };
                let (src, src_space, dst_space) = (b.address, space, host_space);
                let down = CopyRequest { dst: to.address + shift, dst_space, src, src_space, bytes: n };
                stream
                    .copy(up)
                    .and_then(|()| move_bytes(&stream, space, b.address, a.address + shift, n))
                    .and_then(|()| stream.copy(down))
            };
            queued.and(stream.sync())?;
            let data = &data[2 * at..][..bytes];
            let found = download(&stream, space, a.address, whole)?;
            written("a copy from pinned memory", &found, of_a, at, data)?;
            // SAFETY: the stream was awaited.
            written("a copy to pinned memory", unsafe { &*host_bytes(&to) }, of_to, at, data)?;
        }
    }
    Ok(())
}

pub(super) fn allocation_on_threads(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let before = allocator.stats()?;
    let work = |seed: u64, allocator: &AllocatorHandle| -> Result<()> {
        let stream = bench.handle().create_stream(StreamOptions::default())?;
        let mut random = Random::new(seed);
        let mut kept = Vec::new();
        for _ in 0..64 {
            let bytes = 1 + random.below(20_000) as usize;
            let data = noise(&mut random, bytes);
            let block = Block::new(allocator, bytes as u64)?;
            upload(&stream, bench.space(), block.address, &data)?;
            kept.push((block, data));
            if kept.len() > 8 {
                let (block, data) = kept.swap_remove(random.below(8) as usize);
                if download(&stream, bench.space(), block.address, data.len())? != data {
                    return wrong("two threads were given the same memory");
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let (work, allocator) = (&work, &allocator);
                scope.spawn(move || work(bench.seed.wrapping_add(i), allocator))
            })
            .collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| wrong("a thread panicked")))
    })?;
    let after = allocator.stats()?;
    if (before.in_use_blocks, before.in_use_bytes) != (after.in_use_blocks, after.in_use_bytes) {
        return wrong(format!("all is freed, but {before:?} became {after:?}"));
    }
    Ok(Verdict::Pass)
}
