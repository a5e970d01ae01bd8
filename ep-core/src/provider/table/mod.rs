//! The functions behind a Rust provider's tables: each checks what came over the boundary, calls the
//! vendor's code inside a guard, and turns the result into a status. This file has what they share, the provider
//! instance and the tables.
//!
//! The one rule that makes the casts here sound: an opaque pointer that the host hands back is one that this
//! module made for the same plugin (`Box::into_raw`), not yet destroyed. That is the host's side of the
//! contract (rules 8 and 11).

mod device;
mod graph;
mod objects;
mod prepack;
mod primitive;
mod warm;

pub(super) use primitive::{FactoryObject, create_primitive, factory_object, primitive_table};

use super::{Allocator, Device, Host, Interface, Options, Provider, Registrar, fork, log};
use crate::abi::*;
use crate::{Error, Result};
use device::{DeviceBox, InfoBox};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

type DeviceOf<P> = <P as Provider>::Device;
type StreamOf<P> = <DeviceOf<P> as Device>::Stream;
type EventOf<P> = <DeviceOf<P> as Device>::Event;
type AllocatorOf<P> = <DeviceOf<P> as Device>::Allocator;

struct ProviderBox<P> {
    provider: P,
    factories: Mutex<Vec<Box<dyn FactoryObject>>>,
    session: Option<Session>,
}

/// An instance's use of its host, whose services end when this is dropped.
struct Session {
    host: Host,
    _log: Option<log::Attached>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.host.close();
    }
}

/// Runs the body of an entry point of provider `P`.
#[inline]
fn entry<P: Provider>(body: impl FnOnce() -> Result<()>) -> *const EpStatus {
    finish(|| {
        fork::check(P::FORK_SAFE)?;
        body()
    })
}

/// Borrows the object behind an opaque pointer.
///
/// # Safety
/// `ptr` is null or points to a live `T` that nobody moves or drops during `'a`.
#[inline]
unsafe fn object<'a, T, O>(ptr: *mut O) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { ptr.cast::<T>().as_ref() }.ok_or_else(null_object)
}

#[cold]
fn null_object() -> Error {
    Error::invalid("an object handle is null")
}

/// Writes a result through an out-pointer.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn give<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(Error::invalid("the out-pointer is null"));
    }
    // SAFETY: not null, valid as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// Hands an object over through an out-pointer; where that is null, the object is dropped.
///
/// # Safety
/// As [`give`]; what is given is used and freed as a `T`.
unsafe fn give_object<T, O>(out: *mut *mut O, object: T) -> Result<()> {
    let boxed = Box::new(object);
    if out.is_null() {
        return Err(Error::invalid("the out-pointer is null"));
    }
    // SAFETY: as the caller promises.
    unsafe { give(out, Box::into_raw(boxed).cast()) }
}

/// Frees an object; a panic in its `drop` stays here.
///
/// # Safety
/// `ptr` is null or came from `Box::into_raw` of a `Box<T>` and is not used again.
unsafe fn drop_object<P: Provider, T, O>(ptr: *mut O) {
    if ptr.is_null() || fork::check(P::FORK_SAFE).is_err() {
        // In a forked child there is nothing that could be freed in an orderly way.
        return;
    }
    let status = finish(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(ptr.cast::<T>()) });
        Ok(())
    });
    // SAFETY: the status is fresh and ours.
    if let Err(e) = unsafe { take(status) } {
        tracing::error!("dropping an object of provider {} {e}", P::NAME);
    }
}

/// Starts an instance (the `create_provider` of `EpPlugin`).
pub(super) unsafe extern "C" fn create_provider<P: Provider>(
    host: *const EpHostServices,
    options: *const EpProviderOptions,
    out: *mut *mut EpProvider,
) -> *const EpStatus {
    static NEXT_KEY: AtomicU64 = AtomicU64::new(1);
    fork::watch();
    entry::<P>(|| {
        // SAFETY: the host passes live structs (rule 2).
        let (host, options) = unsafe { (Host::new(host)?, Options::read(options)?) };
        let loaded = !options.plugin_path().is_empty();
        let log = loaded.then(|| log::Attached::new(NEXT_KEY.fetch_add(1, Ordering::Relaxed), &host));
        // Ends here if the vendor's code fails or panics, because the host's services then end with this call.
        let session = Session { host: host.clone(), _log: log };
        let provider = P::create(host, &options)?;
        let object = ProviderBox { provider, factories: Mutex::default(), session: Some(session) };
        // SAFETY: the out-pointer is the host's.
        unsafe { give_object(out, object) }
    })
}

unsafe extern "C" fn provider_destroy<P: Provider>(provider: *mut EpProvider) {
    // SAFETY: a live provider of ours, or null.
    let session = unsafe { provider.cast::<ProviderBox<P>>().as_mut() }.and_then(|b| b.session.take());
    if fork::check(P::FORK_SAFE).is_err() {
        // The instance stays as it is, but the host's services end with this call. Detaching takes a lock.
        log::silence();
        if let Some(session) = session {
            session.host.close();
            std::mem::forget(session);
        }
        return;
    }
    // SAFETY: the host destroys it once (rule 8).
    unsafe { drop_object::<P, ProviderBox<P>, _>(provider) };
    // Behind it, so that a panic in the vendor's `drop` is still logged.
    drop(session);
}

unsafe extern "C" fn device_count<P: Provider>(provider: *mut EpProvider, out: *mut u32) -> *const EpStatus {
    // SAFETY: a live provider of ours; the out-pointer is the host's.
    entry::<P>(|| unsafe { give(out, object::<ProviderBox<P>, _>(provider)?.provider.device_count()?) })
}

unsafe extern "C" fn device_open<P: Provider>(
    provider: *mut EpProvider,
    index: u32,
    out: *mut *mut EpDevice,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live provider of ours.
        let provider = unsafe { &object::<ProviderBox<P>, _>(provider)?.provider };
        let count = provider.device_count()?;
        if index >= count {
            return Err(Error::not_found(format!("device {index}: there are {count}")));
        }
        let device = provider.open_device(index)?;
        let info = InfoBox::new(device.info());
        // SAFETY: the out-pointer is the host's.
        unsafe { give_object(out, DeviceBox { device, info }) }
    })
}

unsafe extern "C" fn register_all<P: Provider>(
    provider: *mut EpProvider,
    registrar: *const EpRegistrar,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live provider of ours and the host's live table.
        let (boxed, table) =
            unsafe { (object::<ProviderBox<P>, _>(provider)?, RegistrarTable::load(registrar)?) };
        boxed.provider.register(&mut Registrar::new(table, &boxed.factories))
    })
}

unsafe extern "C" fn provider_interface<P: Provider>(
    provider: *mut EpProvider,
    name: EpStr,
    version: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live provider of ours; the host's text and out-pointer.
        let (boxed, name) = unsafe { (object::<ProviderBox<P>, _>(provider)?, str_of(name)?) };
        let found: *const EpInterface = match (name, version) {
            ("ep.warm", 1) if P::WARM.is_some() => (&raw const *warm::WarmTable::<P>::TABLE).cast(),
            _ => Interface::raw(boxed.provider.interface(name, version)),
        };
        // SAFETY: as above.
        unsafe { give(out, found) }
    })
}

/// The static tables of provider `P`.
pub(super) struct Tables<P>(std::marker::PhantomData<P>);

impl<P: Provider> Tables<P> {
    pub(super) const PROVIDER: &'static EpProviderTable = &EpProviderTable {
        destroy: Some(provider_destroy::<P>),
        device_count: Some(device_count::<P>),
        device_open: Some(device_open::<P>),
        register_all: Some(register_all::<P>),
        get_interface: Some(provider_interface::<P>),
        ..EpProviderTable::EMPTY
    };
    pub(super) const DEVICE: &'static EpDeviceTable = &EpDeviceTable {
        destroy: Some(device::device_destroy::<P>),
        info: Some(device::device_info::<P>),
        stream_create: Some(device::stream_create::<P>),
        event_create: Some(device::event_create::<P>),
        allocator_open: Some(device::allocator_open::<P>),
        get_interface: Some(device::device_interface::<P>),
        ..EpDeviceTable::EMPTY
    };
    pub(super) const STREAM: &'static EpStreamTable = &EpStreamTable {
        destroy: Some(objects::stream_destroy::<P>),
        sync: Some(objects::stream_sync::<P>),
        query: Some(objects::stream_query::<P>),
        copy: Some(objects::stream_copy::<P>),
        record: Some(objects::stream_record::<P>),
        wait: Some(objects::stream_wait::<P>),
        get_interface: Some(objects::stream_interface::<P>),
        ..EpStreamTable::EMPTY
    };
    pub(super) const EVENT: &'static EpEventTable = &EpEventTable {
        destroy: Some(objects::event_destroy::<P>),
        query: Some(objects::event_query::<P>),
        sync: Some(objects::event_sync::<P>),
        ..EpEventTable::EMPTY
    };
    pub(super) const ALLOCATOR: &'static EpAllocatorTable = &EpAllocatorTable {
        destroy: Some(objects::allocator_destroy::<P>),
        alloc: Some(objects::allocator_alloc::<P>),
        free: Some(objects::allocator_free::<P>),
        free_async: if AllocatorOf::<P>::STREAM_ORDERED {
            Some(objects::allocator_free_async::<P>)
        } else {
            None
        },
        stats: Some(objects::allocator_stats::<P>),
        trim: Some(objects::allocator_trim::<P>),
        ..EpAllocatorTable::EMPTY
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn an_object_is_handed_over_or_dropped() {
        let counted = Arc::new(());
        let mut out: *mut EpEvent = std::ptr::null_mut();
        // SAFETY: null is refused; the other out-pointer is valid, and the object is freed below as what it is.
        unsafe {
            let e = give_object::<_, EpEvent>(std::ptr::null_mut(), counted.clone()).unwrap_err();
            assert_eq!((e.code(), Arc::strong_count(&counted)), (crate::Code::InvalidArgument, 1));
            give_object(&mut out, counted.clone()).unwrap();
            assert_eq!(Arc::strong_count(&counted), 2);
            drop(Box::from_raw(out.cast::<Arc<()>>()));
        }
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
