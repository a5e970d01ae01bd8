//! The functions behind a Rust provider's tables: each checks what came over the boundary, calls the
//! vendor's code inside a guard, and turns the result into a status.
//!
//! The one rule that makes the casts here sound: an opaque pointer that the host hands back is one that this
//! file made for the same plugin (`Box::into_raw`), not yet destroyed. That is the host's side of the
//! contract (rules 8 and 11).

use super::device::Timing;
use super::{
    Allocator, Attribute, CopyRequest, Device, DeviceInfo, Event, Host, Kernel, MemoryKind, Options,
    Provider, Registrar, Stream, StreamOptions, fork, log,
};
use crate::abi::{self, *};
use crate::op::Op;
use crate::{Error, Result, Scalar};
use std::ffi::c_void;
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

struct DeviceBox<D> {
    device: D,
    info: InfoBox,
}

struct Built<O: Op, K> {
    desc: O::Desc,
    kernel: K,
}

/// Something whose address is the context of a factory's callbacks.
pub(super) trait FactoryObject: Send {
    fn context(&self) -> *mut EpFactoryContext;
}

struct FactoryBox<F> {
    build: F,
}

impl<F: Send> FactoryObject for FactoryBox<F> {
    fn context(&self) -> *mut EpFactoryContext {
        (&raw const *self).cast_mut().cast()
    }
}

pub(super) fn factory_object<P: Provider, O: Op, K, F>(build: F) -> Box<dyn FactoryObject>
where
    K: Kernel<O, P::Device>,
    F: Fn(&P::Device, &O::Desc) -> Result<K> + Send + Sync + 'static,
{
    Box::new(FactoryBox { build })
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

// ------------------------------------------------------------------ provider

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
        let boxed = Box::new(ProviderBox { provider, factories: Mutex::default(), session: Some(session) });
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, Box::into_raw(boxed).cast()) }
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
        unsafe { give(out, Box::into_raw(Box::new(DeviceBox { device, info })).cast()) }
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
        let found = boxed.provider.interface(name, version).map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: as above.
        unsafe { give(out, found) }
    })
}

// -------------------------------------------------------------------- device

/// `EpDeviceInfo` with what it points to.
struct InfoBox {
    info: DeviceInfo,
    reads: Vec<EpStr>,
    writes: Vec<EpStr>,
    attributes: Vec<EpAttribute>,
}

// SAFETY: the pointers in `reads`, `writes` and `attributes` go to strings that `info` owns and nobody changes.
unsafe impl Send for InfoBox {}
// SAFETY: as above.
unsafe impl Sync for InfoBox {}

impl InfoBox {
    /// The texts live on the heap, so moving the box afterwards leaves the pointers valid.
    fn new(info: DeviceInfo) -> InfoBox {
        let texts = |list: &[String]| list.iter().map(|s| EpStr::new(s)).collect();
        let attributes = info.attributes.iter().map(|(name, value)| {
            let (value, text) = match value {
                Attribute::Scalar(s) => (*s, ""),
                Attribute::Text(t) => (Scalar::None, t.as_str()),
            };
            EpAttribute { name: EpStr::new(name), value: value.into(), text: EpStr::new(text) }
        });
        let attributes = attributes.collect();
        InfoBox { reads: texts(&info.reads), writes: texts(&info.writes), attributes, info }
    }

    fn raw(&self) -> EpDeviceInfo {
        let i = &self.info;
        EpDeviceInfo {
            kind: EpStr::new(&i.kind),
            name: EpStr::new(&i.name),
            uuid: EpUuid { bytes: i.uuid },
            pci: EpStr::new(&i.pci),
            memory_bytes: i.memory_bytes,
            flags: if i.inline { EP_DEVICE_INLINE.into() } else { 0 },
            memory_space: EpStr::new(&i.memory_space),
            reads: self.reads.as_ptr(),
            num_reads: self.reads.len() as u64,
            writes: self.writes.as_ptr(),
            num_writes: self.writes.len() as u64,
            attributes: self.attributes.as_ptr(),
            num_attributes: self.attributes.len() as u64,
            ..EpDeviceInfo::EMPTY
        }
    }
}

unsafe extern "C" fn device_destroy<P: Provider>(device: *mut EpDevice) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, DeviceBox<DeviceOf<P>>, _>(device) }
}

/// # Safety
/// `device` is null or a live device of `P`.
#[inline]
unsafe fn device_of<'a, P: Provider>(device: *mut EpDevice) -> Result<&'a DeviceBox<DeviceOf<P>>> {
    // SAFETY: as the caller promises.
    unsafe { object(device) }
}

unsafe extern "C" fn device_info<P: Provider>(
    device: *mut EpDevice,
    out: *mut EpDeviceInfo,
) -> *const EpStatus {
    // SAFETY: a live device of ours; the out-struct is the host's.
    entry::<P>(|| unsafe { write_struct(out, &device_of::<P>(device)?.info.raw()) })
}

unsafe extern "C" fn stream_create<P: Provider>(
    device: *mut EpDevice,
    options: *const EpStreamOptions,
    out: *mut *mut EpStream,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live device of ours and the host's options.
        let (device, options) = unsafe { (device_of::<P>(device)?, read_struct(options)?) };
        if options.flags != 0 {
            return Err(Error::unsupported(format!("stream flags {:#x} are not known", options.flags)));
        }
        let stream = device.device.create_stream(StreamOptions { priority: options.priority })?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, Box::into_raw(Box::new(stream)).cast()) }
    })
}

unsafe extern "C" fn event_create<P: Provider>(
    device: *mut EpDevice,
    flags: u64,
    out: *mut *mut EpEvent,
) -> *const EpStatus {
    entry::<P>(|| {
        if flags != 0 {
            return Err(Error::unsupported(format!("event flags {flags:#x} are not known")));
        }
        // SAFETY: a live device of ours; the out-pointer is the host's.
        unsafe { give(out, Box::into_raw(Box::new(device_of::<P>(device)?.device.create_event()?)).cast()) }
    })
}

unsafe extern "C" fn allocator_open<P: Provider>(
    device: *mut EpDevice,
    kind: u32,
    out: *mut *mut EpAllocator,
) -> *const EpStatus {
    entry::<P>(|| {
        let kind = MemoryKind::from_raw(kind)?;
        // SAFETY: a live device of ours; the out-pointer is the host's.
        unsafe {
            give(out, Box::into_raw(Box::new(device_of::<P>(device)?.device.open_allocator(kind)?)).cast())
        }
    })
}

unsafe extern "C" fn device_interface<P: Provider>(
    device: *mut EpDevice,
    name: EpStr,
    version: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live device of ours; the host's text.
        let (device, name) = unsafe { (device_of::<P>(device)?, str_of(name)?) };
        let found: *const EpInterface = match (name, version) {
            ("ep.timing", 1) if DeviceOf::<P>::TIMING.is_some() => {
                (&raw const *TimingTable::<P>::TABLE).cast()
            }
            ("ep.foreign_stream", 1) if DeviceOf::<P>::FOREIGN_STREAMS.is_some() => {
                (&raw const *ForeignTable::<P>::TABLE).cast()
            }
            _ => device.device.interface(name, version).map_or(std::ptr::null(), std::ptr::from_ref),
        };
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, found) }
    })
}

struct TimingTable<P>(std::marker::PhantomData<P>);

impl<P: Provider> TimingTable<P> {
    const TABLE: &'static EpTimingInterface = &EpTimingInterface {
        info: &EPTIMINGINTERFACE_INFO,
        elapsed: Some(elapsed::<P>),
        ..EpTimingInterface::EMPTY
    };
}

unsafe extern "C" fn elapsed<P: Provider>(
    start: *mut EpEvent,
    end: *mut EpEvent,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        let timing: Timing<DeviceOf<P>> =
            DeviceOf::<P>::TIMING.ok_or_else(|| Error::unsupported("this device has no timing"))?;
        // SAFETY: live events of ours; the out-pointer is the host's.
        unsafe { give(out, timing(object(start)?, object(end)?)?) }
    })
}

struct ForeignTable<P>(std::marker::PhantomData<P>);

impl<P: Provider> ForeignTable<P> {
    const TABLE: &'static EpForeignStreamInterface = &EpForeignStreamInterface {
        info: &EPFOREIGNSTREAMINTERFACE_INFO,
        native: Some(native_stream::<P>),
        adopt: Some(adopt_stream::<P>),
        ..EpForeignStreamInterface::EMPTY
    };
}

fn no_foreign_streams() -> Error {
    Error::unsupported("this device has no native streams")
}

unsafe extern "C" fn native_stream<P: Provider>(
    stream: *mut EpStream,
    kind: *mut EpStr,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        let foreign = DeviceOf::<P>::FOREIGN_STREAMS.as_ref().ok_or_else(no_foreign_streams)?;
        // SAFETY: a live stream of ours; the out-pointers are the host's.
        unsafe {
            give(out, (foreign.native)(object(stream)?)?)?;
            give(kind, abi::text(foreign.kind))
        }
    })
}

unsafe extern "C" fn adopt_stream<P: Provider>(
    device: *mut EpDevice,
    kind: EpStr,
    handle: u64,
    out: *mut *mut EpStream,
) -> *const EpStatus {
    entry::<P>(|| {
        let foreign = DeviceOf::<P>::FOREIGN_STREAMS.as_ref().ok_or_else(no_foreign_streams)?;
        // SAFETY: a live device of ours; the host's text.
        let (device, kind) = unsafe { (device_of::<P>(device)?, str_of(kind)?) };
        if kind != foreign.kind {
            return Err(Error::unsupported(format!(
                "streams of kind {kind}; this device has {}",
                foreign.kind
            )));
        }
        let stream = (foreign.adopt)(&device.device, handle)?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, Box::into_raw(Box::new(stream)).cast()) }
    })
}

// -------------------------------------------------------------------- stream

unsafe extern "C" fn stream_destroy<P: Provider>(stream: *mut EpStream) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, StreamOf<P>, _>(stream) }
}

unsafe extern "C" fn stream_sync<P: Provider>(stream: *mut EpStream) -> *const EpStatus {
    // SAFETY: a live stream of ours.
    entry::<P>(|| unsafe { object::<StreamOf<P>, _>(stream) }?.sync())
}

unsafe extern "C" fn stream_query<P: Provider>(stream: *mut EpStream, out: *mut u32) -> *const EpStatus {
    // SAFETY: a live stream of ours; the out-pointer is the host's.
    entry::<P>(|| unsafe { give(out, object::<StreamOf<P>, _>(stream)?.query()?.into()) })
}

unsafe extern "C" fn stream_copy<P: Provider>(stream: *mut EpStream, copy: *const EpCopy) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live stream of ours and the host's struct with its texts.
        let (stream, c) = unsafe { (object::<StreamOf<P>, _>(stream)?, read_struct(copy)?) };
        if c.bytes == 0 {
            return Ok(());
        }
        let ends = c.src.checked_add(c.bytes).zip(c.dst.checked_add(c.bytes));
        if c.src == 0 || c.dst == 0 || ends.is_none() {
            return Err(Error::invalid(format!(
                "a copy of {} bytes from {:#x} to {:#x}: addresses must not be null or wrap around",
                c.bytes, c.src, c.dst
            )));
        }
        // SAFETY: texts as above.
        let (dst_space, src_space) = unsafe { (str_of(c.dst_space)?, str_of(c.src_space)?) };
        // Equal addresses in two spaces are two places.
        if c.src == c.dst && src_space == dst_space {
            return Ok(());
        }
        // SAFETY: the ranges are valid as the host promises with every copy.
        unsafe { stream.copy(CopyRequest { dst: c.dst, dst_space, src: c.src, src_space, bytes: c.bytes }) }
    })
}

unsafe extern "C" fn stream_record<P: Provider>(
    stream: *mut EpStream,
    event: *mut EpEvent,
) -> *const EpStatus {
    // SAFETY: a live stream and event of ours.
    entry::<P>(|| unsafe { object::<StreamOf<P>, _>(stream)?.record(object(event)?) })
}

unsafe extern "C" fn stream_wait<P: Provider>(stream: *mut EpStream, event: *mut EpEvent) -> *const EpStatus {
    // SAFETY: a live stream and event of ours.
    entry::<P>(|| unsafe { object::<StreamOf<P>, _>(stream)?.wait(object(event)?) })
}

unsafe extern "C" fn stream_interface<P: Provider>(
    stream: *mut EpStream,
    name: EpStr,
    version: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live stream of ours; the host's text.
        let (stream, name) = unsafe { (object::<StreamOf<P>, _>(stream)?, str_of(name)?) };
        let found = stream.interface(name, version).map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, found) }
    })
}

// --------------------------------------------------------------------- event

unsafe extern "C" fn event_destroy<P: Provider>(event: *mut EpEvent) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, EventOf<P>, _>(event) }
}

unsafe extern "C" fn event_query<P: Provider>(event: *mut EpEvent, out: *mut u32) -> *const EpStatus {
    // SAFETY: a live event of ours; the out-pointer is the host's.
    entry::<P>(|| unsafe { give(out, object::<EventOf<P>, _>(event)?.query()?.into()) })
}

unsafe extern "C" fn event_sync<P: Provider>(event: *mut EpEvent) -> *const EpStatus {
    // SAFETY: a live event of ours.
    entry::<P>(|| unsafe { object::<EventOf<P>, _>(event) }?.sync())
}

// ----------------------------------------------------------------- allocator

/// Default and smallest alignment of allocations.
const MIN_ALIGNMENT: u64 = 64;

unsafe extern "C" fn allocator_destroy<P: Provider>(allocator: *mut EpAllocator) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, AllocatorOf<P>, _>(allocator) }
}

unsafe extern "C" fn allocator_alloc<P: Provider>(
    allocator: *mut EpAllocator,
    request: *const EpAllocRequest,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live allocator of ours and the host's request.
        let (allocator, r) = unsafe { (object::<AllocatorOf<P>, _>(allocator)?, read_struct(request)?) };
        if r.alignment != 0 && !r.alignment.is_power_of_two() {
            return Err(Error::invalid(format!("alignment {} is not a power of two", r.alignment)));
        }
        // SAFETY: null or a live stream of ours.
        let stream = unsafe { r.stream.cast::<StreamOf<P>>().as_ref() };
        let address = allocator.alloc(r.bytes, r.alignment.max(MIN_ALIGNMENT), stream)?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, address) }
    })
}

unsafe extern "C" fn allocator_free<P: Provider>(
    allocator: *mut EpAllocator,
    address: u64,
    bytes: u64,
) -> *const EpStatus {
    // SAFETY: a live allocator of ours.
    entry::<P>(|| unsafe { object::<AllocatorOf<P>, _>(allocator) }?.free(address, bytes))
}

unsafe extern "C" fn allocator_free_async<P: Provider>(
    allocator: *mut EpAllocator,
    address: u64,
    bytes: u64,
    stream: *mut EpStream,
) -> *const EpStatus {
    // SAFETY: a live allocator and stream of ours.
    entry::<P>(|| unsafe {
        object::<AllocatorOf<P>, _>(allocator)?.free_async(address, bytes, object(stream)?)
    })
}

unsafe extern "C" fn allocator_stats<P: Provider>(
    allocator: *mut EpAllocator,
    out: *mut EpMemoryStats,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live allocator of ours.
        let s = unsafe { object::<AllocatorOf<P>, _>(allocator) }?.stats();
        let raw = EpMemoryStats {
            in_use_bytes: s.in_use_bytes,
            in_use_blocks: s.in_use_blocks,
            reserved_bytes: s.reserved_bytes,
            peak_in_use_bytes: s.peak_in_use_bytes,
            total_allocs: s.total_allocs,
            ..EpMemoryStats::EMPTY
        };
        // SAFETY: the out-struct is the host's.
        unsafe { write_struct(out, &raw) }
    })
}

unsafe extern "C" fn allocator_trim<P: Provider>(allocator: *mut EpAllocator) -> *const EpStatus {
    // SAFETY: a live allocator of ours.
    entry::<P>(|| unsafe { object::<AllocatorOf<P>, _>(allocator) }?.trim())
}

// ----------------------------------------------------------------- primitive

/// A factory's `create`.
pub(super) unsafe extern "C" fn create_primitive<P: Provider, O: Op, K, F>(
    context: *mut EpFactoryContext,
    device: *mut EpDevice,
    desc: *const c_void,
    out: *mut *mut EpPrimitive,
) -> *const EpStatus
where
    K: Kernel<O, P::Device>,
    F: Fn(&P::Device, &O::Desc) -> Result<K> + Send + Sync + 'static,
{
    entry::<P>(|| {
        // SAFETY: the context is this factory's, the device ours; the descriptor is the op's.
        let (factory, device, desc) = unsafe {
            (
                object::<FactoryBox<F>, _>(context)?,
                device_of::<P>(device)?,
                read_struct(desc.cast::<O::Desc>())?,
            )
        };
        let kernel = (factory.build)(&device.device, &desc)?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, Box::into_raw(Box::new(Built::<O, K> { desc, kernel })).cast()) }
    })
}

unsafe extern "C" fn primitive_destroy<P: Provider, O: Op, K>(primitive: *mut EpPrimitive) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, Built<O, K>, _>(primitive) }
}

unsafe extern "C" fn primitive_launch<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live primitive and stream of ours, and the op's argument struct.
        let (built, stream, args) = unsafe {
            (
                object::<Built<O, K>, _>(primitive)?,
                object::<StreamOf<P>, _>(stream)?,
                read_struct(args.cast::<O::Args>())?,
            )
        };
        // SAFETY: the host promises readable dims with every launch.
        unsafe { check_launch::<O>(&built.desc, &args) }?;
        // SAFETY: launching is unsafe for the host, which promises valid memory (rule 11).
        unsafe { built.kernel.launch(stream, &args) }
    })
}

/// Everything that can be checked about a launch without knowing the memory.
///
/// # Safety
/// As [`Op::check`].
#[inline]
unsafe fn check_launch<O: Op>(desc: &O::Desc, args: &O::Args) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { O::check(desc, args) }?;
    // SAFETY: every descriptor starts with `struct_size` and `alignment` (both u64).
    let alignment = unsafe { std::ptr::from_ref(desc).cast::<u64>().add(1).read() };
    // SAFETY: just checked.
    let uses = unsafe { O::uses(desc, args) };
    for (i, u) in uses.as_ref().iter().enumerate() {
        u.check_address(alignment, i, || O::schema().operands[i].name.clone())?;
    }
    Ok(())
}

unsafe extern "C" fn primitive_workspace<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live primitive of ours and the op's argument struct.
        let (built, args) =
            unsafe { (object::<Built<O, K>, _>(primitive)?, read_struct(args.cast::<O::Args>())?) };
        // SAFETY: the host promises readable dims.
        unsafe { O::check(&built.desc, &args) }?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, built.kernel.workspace_size(&args)?) }
    })
}

unsafe extern "C" fn primitive_describe<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    out: *mut EpStr,
) -> *const EpStatus {
    // SAFETY: a live primitive of ours, whose text lives as long; the out-pointer is the host's.
    entry::<P>(|| unsafe { give(out, EpStr::new(object::<Built<O, K>, _>(primitive)?.kernel.describe())) })
}

/// The table of primitives of one kernel type.
pub(super) fn primitive_table<P: Provider, O: Op, K: Kernel<O, P::Device>>() -> &'static EpPrimitiveTable {
    const {
        &EpPrimitiveTable {
            destroy: Some(primitive_destroy::<P, O, K>),
            launch: Some(primitive_launch::<P, O, K>),
            workspace_size: Some(primitive_workspace::<P, O, K>),
            describe: Some(primitive_describe::<P, O, K>),
            ..EpPrimitiveTable::EMPTY
        }
    }
}

// -------------------------------------------------------------------- tables

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
        destroy: Some(device_destroy::<P>),
        info: Some(device_info::<P>),
        stream_create: Some(stream_create::<P>),
        event_create: Some(event_create::<P>),
        allocator_open: Some(allocator_open::<P>),
        get_interface: Some(device_interface::<P>),
        ..EpDeviceTable::EMPTY
    };
    pub(super) const STREAM: &'static EpStreamTable = &EpStreamTable {
        destroy: Some(stream_destroy::<P>),
        sync: Some(stream_sync::<P>),
        query: Some(stream_query::<P>),
        copy: Some(stream_copy::<P>),
        record: Some(stream_record::<P>),
        wait: Some(stream_wait::<P>),
        get_interface: Some(stream_interface::<P>),
        ..EpStreamTable::EMPTY
    };
    pub(super) const EVENT: &'static EpEventTable = &EpEventTable {
        destroy: Some(event_destroy::<P>),
        query: Some(event_query::<P>),
        sync: Some(event_sync::<P>),
        ..EpEventTable::EMPTY
    };
    pub(super) const ALLOCATOR: &'static EpAllocatorTable = &EpAllocatorTable {
        destroy: Some(allocator_destroy::<P>),
        alloc: Some(allocator_alloc::<P>),
        free: Some(allocator_free::<P>),
        free_async: if AllocatorOf::<P>::STREAM_ORDERED { Some(allocator_free_async::<P>) } else { None },
        stats: Some(allocator_stats::<P>),
        trim: Some(allocator_trim::<P>),
        ..EpAllocatorTable::EMPTY
    };
}
