//! The functions of devices.

use super::super::device::Timing;
use super::super::{Attribute, Device, DeviceInfo, Interface, MemoryKind, Provider, StreamOptions};
use super::graph::{GraphTable, StreamBox, stream_of};
use super::prepack::PrepackTable;
use super::{DeviceOf, drop_object, entry, give, give_object, object};
use crate::abi::{self, *};
use crate::{Error, Result, Scalar};

pub(super) struct DeviceBox<D> {
    pub(super) device: D,
    pub(super) info: InfoBox,
}

/// `EpDeviceInfo` with what it points to.
pub(super) struct InfoBox {
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
    pub(super) fn new(info: DeviceInfo) -> InfoBox {
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

pub(super) unsafe extern "C" fn device_destroy<P: Provider>(device: *mut EpDevice) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, DeviceBox<DeviceOf<P>>, _>(device) }
}

/// # Safety
/// `device` is null or a live device of `P`.
#[inline]
pub(super) unsafe fn device_of<'a, P: Provider>(device: *mut EpDevice) -> Result<&'a DeviceBox<DeviceOf<P>>> {
    // SAFETY: as the caller promises.
    unsafe { object(device) }
}

pub(super) unsafe extern "C" fn device_info<P: Provider>(
    device: *mut EpDevice,
    out: *mut EpDeviceInfo,
) -> *const EpStatus {
    // SAFETY: a live device of ours; the out-struct is the host's.
    entry::<P>(|| unsafe { write_struct(out, &device_of::<P>(device)?.info.raw()) })
}

pub(super) unsafe extern "C" fn stream_create<P: Provider>(
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
        unsafe { give_object(out, StreamBox::<P>::new(stream)) }
    })
}

pub(super) unsafe extern "C" fn event_create<P: Provider>(
    device: *mut EpDevice,
    flags: u64,
    out: *mut *mut EpEvent,
) -> *const EpStatus {
    entry::<P>(|| {
        if flags != 0 {
            return Err(Error::unsupported(format!("event flags {flags:#x} are not known")));
        }
        // SAFETY: a live device of ours; the out-pointer is the host's.
        unsafe { give_object(out, device_of::<P>(device)?.device.create_event()?) }
    })
}

pub(super) unsafe extern "C" fn allocator_open<P: Provider>(
    device: *mut EpDevice,
    kind: u32,
    out: *mut *mut EpAllocator,
) -> *const EpStatus {
    entry::<P>(|| {
        let kind = MemoryKind::from_raw(kind)?;
        // SAFETY: a live device of ours; the out-pointer is the host's.
        unsafe { give_object(out, device_of::<P>(device)?.device.open_allocator(kind)?) }
    })
}

pub(super) unsafe extern "C" fn device_interface<P: Provider>(
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
            ("ep.graph", 1) if DeviceOf::<P>::GRAPHS.is_some() => (&raw const *GraphTable::<P>::TABLE).cast(),
            ("ep.prepack", 1) if DeviceOf::<P>::PREPACKS => (&raw const *PrepackTable::<P>::TABLE).cast(),
            _ => Interface::raw(device.device.interface(name, version)),
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

pub(super) unsafe extern "C" fn elapsed<P: Provider>(
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

pub(super) unsafe extern "C" fn native_stream<P: Provider>(
    stream: *mut EpStream,
    kind: *mut EpStr,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        let foreign = DeviceOf::<P>::FOREIGN_STREAMS.as_ref().ok_or_else(no_foreign_streams)?;
        // SAFETY: a live stream of ours; the out-pointers are the host's.
        unsafe {
            give(out, (foreign.native)(&stream_of::<P>(stream)?.stream)?)?;
            give(kind, abi::text(foreign.kind))
        }
    })
}

pub(super) unsafe extern "C" fn adopt_stream<P: Provider>(
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
        // SAFETY: a handle that the host vouches for; the out-pointer is the host's.
        unsafe { give_object(out, StreamBox::<P>::new((foreign.adopt)(&device.device, handle)?)) }
    })
}
