//! Structs of other versions, values without a meaning, pointers that are null (rules 1, 3 and 6).

use super::raw::{Host, Instance, OpenDevice, Subject};
use super::{checked, refused};
use crate::verdict::{Verdict, wrong};
use ep_core::abi::*;
use ep_core::{Code, Result};
use std::ptr::{null, null_mut};

const NO_DEVICE: &str = "there is no device to open here";
const IMPOSSIBLE: [Code; 2] = [Code::AbiMismatch, Code::InvalidArgument];

/// A struct with room behind it, and any size in its first field.
#[repr(C)]
struct Sized<T> {
    value: T,
    tail: [u64; 2],
}

impl<T: Growable> Sized<T> {
    fn new(value: T, size: u64, tail: u64) -> Sized<T> {
        let mut all = Sized { value, tail: [tail; 2] };
        // SAFETY: growable structs begin with their size.
        unsafe { (&raw mut all.value).cast::<u64>().write(size) };
        all
    }
}

/// Passes a struct in every version to a function that reads it: impossible sizes and unknown fields are refused, a
/// longer one with zeros is fine.
///
/// # Safety
/// `call` may be called with a struct of any size that it names.
unsafe fn versions<T: Growable>(value: T, mut call: impl FnMut(*const T) -> *const EpStatus) -> Result<()> {
    let own = size_of::<T>() as u64;
    for size in [0, 7, 12, u64::MAX] {
        let s = Sized::new(value, size, 0);
        // SAFETY: as the caller promises; the status is ours.
        unsafe { refused(&format!("{}.struct_size {size}", T::NAME), call(&s.value), &IMPOSSIBLE) }?;
    }
    let unknown = Sized::new(value, own + 16, 1);
    // SAFETY: as above.
    unsafe {
        refused(&format!("{} with an unknown field", T::NAME), call(&unknown.value), &[Code::Unsupported])
    }?;
    // SAFETY: as above.
    unsafe { refused(&format!("{} at null", T::NAME), call(null()), &IMPOSSIBLE) }?;
    let longer = Sized::new(value, own + 16, 0);
    // SAFETY: as above.
    unsafe { checked(call(&longer.value)) }?.map_err(|e| e.context(format!("a longer {}, all zero", T::NAME)))
}

pub(super) fn sizes(subject: &Subject) -> Result<Verdict> {
    let pairs = subject.options();
    let pairs: Vec<_> =
        pairs.iter().map(|(k, v)| EpKeyValue { key: EpStr::new(k), value: EpStr::new(v) }).collect();
    let options = EpProviderOptions {
        instance: EpStr::new("conformance"),
        options: pairs.as_ptr(),
        num_options: pairs.len() as u64,
        ..EpProviderOptions::EMPTY
    };
    let tables = subject.tables()?;
    let host = Host::new();
    // An instance that frees the host at the end, and that the devices below are of.
    let instance = Instance::new(subject, host, &subject.options())??;
    let create = |options: *const EpProviderOptions| {
        let mut raw = null_mut();
        // SAFETY: the plugin's function, with a live host; what it makes is destroyed.
        unsafe {
            let status = (tables.create)(instance.host().table(), options, &mut raw);
            if status.is_null() && !raw.is_null() {
                (tables.provider.destroy)(raw);
            }
            status
        }
    };
    // SAFETY: `create` takes options of any size.
    unsafe { versions(options, create) }?;
    let Some(device) = instance.open(0)? else { return Ok(Verdict::Unsupported(NO_DEVICE.to_owned())) };
    let stream = |options: *const EpStreamOptions| {
        let mut raw = null_mut();
        // SAFETY: as above, for a stream.
        unsafe {
            let status = (tables.device.stream_create)(device.raw, options, &mut raw);
            if status.is_null() && !raw.is_null() {
                (tables.stream.destroy)(raw);
            }
            status
        }
    };
    // SAFETY: as above.
    unsafe { versions(EpStreamOptions::EMPTY, stream) }?;
    memory(&device)?;
    Ok(Verdict::Pass)
}

/// The versions of the structs for memory.
fn memory(device: &OpenDevice<'_>) -> Result<()> {
    const BYTES: u64 = 256;
    let tables = device.tables();
    device.with_allocator(|allocator| {
        let request = EpAllocRequest { bytes: BYTES, ..EpAllocRequest::EMPTY };
        let alloc = |request: *const EpAllocRequest| {
            let mut address = 0;
            // SAFETY: a live allocator; what it gives is freed.
            unsafe {
                let status = (tables.allocator.alloc)(allocator, request, &mut address);
                if status.is_null() && address != 0 {
                    return (tables.allocator.free)(allocator, address, BYTES);
                }
                status
            }
        };
        // SAFETY: `alloc` takes a request of any size.
        unsafe { versions(request, alloc) }
    })?;
    device.with_stream(|stream| {
        let copy = EpCopy {
            dst_space: device.info()?.memory_space,
            src_space: device.info()?.memory_space,
            ..EpCopy::EMPTY
        };
        // SAFETY: a live stream; a copy of no bytes touches nothing.
        unsafe { versions(copy, |copy| (tables.stream.copy)(stream, copy)) }?;
        // SAFETY: a live stream.
        unsafe { checked((tables.stream.sync)(stream)) }?
    })
}

/// Fills outputs of every capacity: no more than that is written, and the size stays.
///
/// # Safety
/// `fill` may be called with an output of any size that it names.
unsafe fn capacities<T: Growable>(empty: T, mut fill: impl FnMut(*mut T) -> *const EpStatus) -> Result<()> {
    const CANARY: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    let words = size_of::<T>() / 8;
    for size in [0, 7] {
        let mut s = Sized::new(empty, size, CANARY);
        let words: *mut u64 = (&raw mut s).cast();
        let count = size_of::<Sized<T>>() / 8;
        // SAFETY: `s` is `count` words, of which `fill` may be told any capacity; the status is ours.
        let untouched = unsafe {
            (1..count).for_each(|i| words.add(i).write(CANARY));
            // An error is as good as success here: there is no room for a field.
            let _either = checked(fill(words.cast()))?;
            (1..count).all(|i| words.add(i).read() == CANARY)
        };
        if !untouched {
            return wrong(format!("{}: fields were written into a capacity of {size} bytes", T::NAME));
        }
    }
    for capacity in [2, words - 1, words, words + 2] {
        let mut s = vec![CANARY; words + 2];
        s[0] = capacity as u64 * 8;
        // SAFETY: as above; the buffer has room for the largest capacity and is aligned.
        unsafe { checked(fill(s.as_mut_ptr().cast())) }??;
        if s[0] != capacity as u64 * 8 {
            return wrong(format!("{}: the capacity was {} and is now {}", T::NAME, capacity * 8, s[0]));
        }
        // Of a larger capacity the rest may be cleared: zero is what a field means that nobody filled.
        let cleared = s[capacity.min(words)..capacity].iter().all(|w| *w == CANARY || *w == 0);
        if !cleared || s[capacity..].iter().any(|w| *w != CANARY) {
            return wrong(format!("{}: more was written than its fields or {} bytes", T::NAME, capacity * 8));
        }
    }
    Ok(())
}

pub(super) fn output_capacity(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let Some(device) = instance.open(0)? else { return Ok(Verdict::Unsupported(NO_DEVICE.to_owned())) };
    let tables = *device.tables();
    // SAFETY: a live device; `info` takes an output of any size.
    unsafe { capacities(EpDeviceInfo::EMPTY, |out| (tables.device.info)(device.raw, out)) }?;
    device.with_allocator(|allocator| {
        // SAFETY: a live allocator; `stats` takes an output of any size.
        unsafe { capacities(EpMemoryStats::EMPTY, |out| (tables.allocator.stats)(allocator, out)) }
    })?;
    Ok(Verdict::Pass)
}

pub(super) fn unknown_values(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let Some(device) = instance.open(0)? else { return Ok(Verdict::Unsupported(NO_DEVICE.to_owned())) };
    let tables = *device.tables();
    let (mut stream, mut event, mut allocator) = (null_mut(), null_mut(), null_mut());
    let options = EpStreamOptions { flags: 1 << 40, ..EpStreamOptions::EMPTY };
    let unsupported = [Code::Unsupported, Code::InvalidArgument];
    // SAFETY: a live device and valid out-pointers; the statuses are ours.
    unsafe {
        let status = (tables.device.stream_create)(device.raw, &options, &mut stream);
        refused("stream flags without a meaning", status, &unsupported)?;
        let status = (tables.device.event_create)(device.raw, 1 << 40, &mut event);
        refused("event flags without a meaning", status, &unsupported)?;
        for kind in [EP_MEMORY_PINNED_HOST + 1, u32::MAX] {
            let status = (tables.device.allocator_open)(device.raw, kind, &mut allocator);
            refused("a kind of memory without a meaning", status, &unsupported)?;
        }
    }
    device.with_allocator(|allocator| {
        for alignment in [3, 48, u64::MAX] {
            let request = EpAllocRequest { bytes: 64, alignment, ..EpAllocRequest::EMPTY };
            let mut address = 0;
            // SAFETY: a live allocator, a live request, a valid out-pointer.
            let status = unsafe { (tables.allocator.alloc)(allocator, &request, &mut address) };
            let codes = [Code::InvalidArgument, Code::Unsupported, Code::OutOfMemory];
            // SAFETY: the status is ours.
            unsafe { refused(&format!("alignment {alignment}"), status, &codes) }?;
        }
        Ok(())
    })?;
    Ok(Verdict::Pass)
}
