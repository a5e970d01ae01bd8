//! Devices, streams and events.

use super::abi::{copied, has};
use super::{Defect, streams, tables};
use crate::tables::honest;
use ep_core::abi::*;
use ep_sim::Shortcuts;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub const DEFECTS: [Defect; 7] = [
    tables("obj-unrecorded-event-pending", |t| {
        t.stream.record = Some(record_noted);
        t.event.query = Some(unrecorded_is_pending);
        t.event.destroy = Some(forget_event);
    }),
    streams(
        "obj-stream-query-counts-queue-only",
        Shortcuts { query_skips_running: true, only_the_last_result: false, destroy_drops_work: false },
    ),
    tables("obj-flags-cut-to-32-bits", |t| {
        t.device.event_create = Some(event_flags_cut);
        t.device.stream_create = Some(stream_flags_cut);
    }),
    streams(
        "obj-stream-destroy-drops-queue",
        Shortcuts { query_skips_running: false, only_the_last_result: false, destroy_drops_work: true },
    ),
    tables("obj-info-text-short-lived", |t| t.device.info = Some(info_short_lived)),
    tables("obj-provider-speaks-after-destroy", |t| {
        t.create_provider = create_with_watchdog;
        t.provider.destroy = Some(destroy_without_join);
    }),
    tables("obj-uuid-of-each-open", |t| {
        t.provider.device_open = Some(open_with_uuid);
        t.device.info = Some(info_with_uuid);
    }),
];

/// Locks; nothing here leaves half a change behind.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events that were recorded.
static RECORDED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

unsafe extern "C" fn record_noted(stream: *mut EpStream, event: *mut EpEvent) -> *const EpStatus {
    lock(&RECORDED).insert(event.addr());
    // SAFETY: the host's call.
    unsafe { (has(honest().stream.record))(stream, event) }
}

unsafe extern "C" fn unrecorded_is_pending(event: *mut EpEvent, out: *mut u32) -> *const EpStatus {
    // SAFETY: the host's call; the SDK writes `out` where it succeeds.
    unsafe {
        let status = (has(honest().event.query))(event, out);
        if status.is_null() && !lock(&RECORDED).contains(&event.addr()) {
            out.write(0);
        }
        status
    }
}

unsafe extern "C" fn forget_event(event: *mut EpEvent) {
    lock(&RECORDED).remove(&event.addr());
    // SAFETY: the host's call.
    unsafe { (has(honest().event.destroy))(event) }
}

unsafe extern "C" fn event_flags_cut(
    device: *mut EpDevice,
    flags: u64,
    out: *mut *mut EpEvent,
) -> *const EpStatus {
    // SAFETY: the host's call, with the lower half of the flags.
    unsafe { (has(honest().device.event_create))(device, flags & 0xffff_ffff, out) }
}

unsafe extern "C" fn stream_flags_cut(
    device: *mut EpDevice,
    options: *const EpStreamOptions,
    out: *mut *mut EpStream,
) -> *const EpStatus {
    // SAFETY: the host's call; options that cannot be read are left to the SDK.
    unsafe {
        match copied(options) {
            Some(mut own) => {
                own.flags &= 0xffff_ffff;
                (has(honest().device.stream_create))(device, &own, out)
            }
            None => (has(honest().device.stream_create))(device, options, out),
        }
    }
}

/// What a call of `info` has handed out: pieces of memory, as addresses and lengths.
#[derive(Default)]
struct HandedOut(Vec<(usize, usize)>);

impl HandedOut {
    /// A copy of some elements that lives for ever.
    fn list<T: Copy + 'static>(&mut self, values: &[T]) -> *const T {
        let copy: &'static mut [T] = Box::leak(values.to_vec().into_boxed_slice());
        self.0.push((copy.as_mut_ptr().expose_provenance(), size_of_val(copy)));
        copy.as_ptr()
    }

    /// # Safety
    /// `text` is live.
    unsafe fn text(&mut self, text: EpStr) -> EpStr {
        // SAFETY: as the caller promises.
        let own = unsafe { string_of(text) };
        EpStr { ptr: self.list(own.as_bytes()).cast(), len: own.len() as u64 }
    }

    /// Stands for freeing it.
    fn overwrite(&self) {
        for (address, bytes) in &self.0 {
            let memory = std::ptr::with_exposed_provenance_mut::<u8>(*address);
            // SAFETY: leaked by `list` and never freed; the defect is that others may still read it.
            unsafe { memory.write_bytes(b'?', *bytes) };
        }
    }
}

unsafe extern "C" fn info_short_lived(device: *mut EpDevice, out: *mut EpDeviceInfo) -> *const EpStatus {
    static LATEST: Mutex<BTreeMap<usize, HandedOut>> = Mutex::new(BTreeMap::new());
    let mut own = EpDeviceInfo::EMPTY;
    // SAFETY: the host's call, with room of our own; then the host's room, by what it says of it. The SDK's texts and
    // lists live as long as the device.
    unsafe {
        let status = (has(honest().device.info))(device, &mut own);
        if !status.is_null() {
            return status;
        }
        let mut all = HandedOut::default();
        own.name = all.text(own.name);
        own.memory_space = all.text(own.memory_space);
        for (names, count) in [(&mut own.reads, own.num_reads), (&mut own.writes, own.num_writes)] {
            let texts: Vec<EpStr> = list(*names, count, "spaces")
                .unwrap_or_default()
                .iter()
                .map(|text| all.text(*text))
                .collect();
            *names = all.list(&texts);
        }
        let attributes = list(own.attributes, own.num_attributes, "attributes").unwrap_or_default();
        let mut attributes = attributes.to_vec();
        attributes.iter_mut().for_each(|a| a.name = all.text(a.name));
        own.attributes = all.list(&attributes);
        if let Some(before) = lock(&LATEST).insert(device.addr(), all) {
            before.overwrite();
        }
        finish(|| write_struct(out, &own))
    }
}

/// Tells watchdogs to stop, by instance.
static WATCHDOGS: Mutex<BTreeMap<usize, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());

/// A host's services, from another thread.
struct Services(*const EpHostServices);
// SAFETY: they may be called from any thread.
unsafe impl Send for Services {}

unsafe extern "C" fn create_with_watchdog(
    host: *const EpHostServices,
    options: *const EpProviderOptions,
    out: *mut *mut EpProvider,
) -> *const EpStatus {
    // SAFETY: the host's call.
    let status = unsafe { (honest().create_provider)(host, options, out) };
    if !status.is_null() {
        return status;
    }
    let stop = Arc::new(AtomicBool::new(false));
    // SAFETY: the SDK has succeeded, so there is an instance.
    lock(&WATCHDOGS).insert(unsafe { *out }.addr(), stop.clone());
    let services = Services(host);
    let watch = move || {
        let services = services;
        loop {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: the defect: the instance may have ended meanwhile, and the host with it.
            unsafe {
                let host = &*services.0;
                if has(host.log_enabled)(host.context, EP_LEVEL_TRACE) != 0 {
                    let text = |s| EpStr::new(s);
                    has(host.log)(host.context, EP_LEVEL_TRACE, text("watchdog"), text("all is well"));
                }
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    drop(std::thread::spawn(watch));
    null()
}

unsafe extern "C" fn destroy_without_join(provider: *mut EpProvider) {
    if let Some(stop) = lock(&WATCHDOGS).remove(&provider.addr()) {
        stop.store(true, Ordering::Relaxed);
    }
    // SAFETY: the host's call.
    unsafe { (has(honest().provider.destroy))(provider) }
}

/// The identities of open devices.
static UUIDS: Mutex<BTreeMap<usize, EpUuid>> = Mutex::new(BTreeMap::new());

unsafe extern "C" fn open_with_uuid(
    provider: *mut EpProvider,
    index: u32,
    out: *mut *mut EpDevice,
) -> *const EpStatus {
    // SAFETY: the host's call; the SDK writes `out` where it succeeds.
    unsafe {
        let status = (has(honest().provider.device_open))(provider, index, out);
        if status.is_null() {
            let random = RandomState::new();
            let [low, high] = [1, 2].map(|x: u64| (random.hash_one(x) | 1).to_ne_bytes());
            let mut uuid = EpUuid { bytes: [0; 16] };
            uuid.bytes[..8].copy_from_slice(&low);
            uuid.bytes[8..].copy_from_slice(&high);
            lock(&UUIDS).insert((*out).addr(), uuid);
        }
        status
    }
}

unsafe extern "C" fn info_with_uuid(device: *mut EpDevice, out: *mut EpDeviceInfo) -> *const EpStatus {
    let mut own = EpDeviceInfo::EMPTY;
    // SAFETY: the host's call, with room of our own; then the host's room, by what it says of it.
    unsafe {
        let status = (has(honest().device.info))(device, &mut own);
        if !status.is_null() {
            return status;
        }
        if let Some(uuid) = lock(&UUIDS).get(&device.addr()) {
            own.uuid = *uuid;
        }
        finish(|| write_struct(out, &own))
    }
}
