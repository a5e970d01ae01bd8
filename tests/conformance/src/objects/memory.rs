//! Allocators and copies.

use super::Bench;
use super::block::{Block, download, move_bytes, noise, upload};
use crate::values::Random;
use crate::verdict::{Verdict, expect_error, wrong};
use ep_core::handle::AllocatorHandle;
use ep_core::provider::inline::HOST_SPACE;
use ep_core::provider::{CopyRequest, MemoryKind, StreamOptions};
use ep_core::{Code, Result};

/// Nothing, less than a word, odd, around a page, more than a cache holds.
const SIZES: [usize; 9] = [0, 1, 3, 64, 1000, 4095, 4097, 65_537, (1 << 20) + 13];

pub(super) fn copies(bench: &Bench<'_>) -> Result<Verdict> {
    let allocator = bench.handle().open_allocator(MemoryKind::Device)?;
    let stream = bench.handle().create_stream(StreamOptions::default())?;
    let space = bench.space();
    let mut random = Random::new(bench.seed);
    for bytes in SIZES {
        for shift in [0, 1, 7] {
            let whole = bytes + 64;
            let (a, b) = (Block::new(&allocator, whole as u64)?, Block::new(&allocator, whole as u64)?);
            let (data, ground) = (noise(&mut random, bytes), noise(&mut random, whole));
            // From host memory of every alignment.
            let mut host = vec![0; bytes + 8];
            host[shift as usize..][..bytes].copy_from_slice(&data);
            upload(&stream, space, a.address + shift, &host[shift as usize..][..bytes])?;
            upload(&stream, space, b.address, &ground)?;
            // SAFETY: distinct blocks with room, awaited by the download.
            unsafe { move_bytes(&stream, space, b.address + 2 * shift, a.address + shift, bytes as u64) }?;
            let found = download(&stream, space, b.address, whole)?;
            let mut wanted = ground;
            let at = 2 * shift as usize;
            wanted[at..at + bytes].copy_from_slice(&data);
            if let Some(i) = found.iter().zip(&wanted).position(|(f, w)| f != w) {
                return wrong(format!("a copy of {bytes} bytes to offset {at}: byte {i} is wrong"));
            }
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
    let ptr = std::ptr::with_exposed_provenance_mut::<u8>(block.address as usize);
    // SAFETY: pinned memory is host memory, as long as was asked for; nothing else uses it.
    unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), ptr, data.len());
        if std::slice::from_raw_parts(ptr, data.len()) != data {
            return wrong("pinned host memory does not keep what the host writes");
        }
    }
    block.free()?;
    Ok(Verdict::Pass)
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
