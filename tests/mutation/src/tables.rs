//! The plugin's tables: those that the host gets, whose functions look up what to do at each call; the honest ones,
//! which the SDK makes; and what a defect has made of these.
//!
//! A host copies the tables before the first instance, and so before the option that names a defect, exists.

use crate::registrations::{Maker, Registration, register_all};
use crate::{Faulty, activate, prepack};
use ep_core::abi::*;
use ep_core::provider::{QueryFn, query};
use std::ffi::c_void;
use std::sync::{LazyLock, OnceLock};

/// Copies of the tables, so that a defect can replace what it is about.
#[derive(Clone)]
pub struct Tables {
    /// The entry point.
    pub query: QueryFn,
    /// Starts an instance.
    pub create_provider: Create,
    /// Instances.
    pub provider: EpProviderTable,
    /// Devices.
    pub device: EpDeviceTable,
    /// Streams.
    pub stream: EpStreamTable,
    /// Events.
    pub event: EpEventTable,
    /// Allocators.
    pub allocator: EpAllocatorTable,
    /// What becomes of a status before the host gets it.
    pub answer: fn(*const EpStatus) -> *const EpStatus,
    /// What is registered, in the place of one factory.
    pub registrations: fn(Registration) -> Vec<Registration>,
    /// Makes a primitive of a factory.
    pub build: Build,
    /// Launches a primitive.
    pub launch: Launch,
    /// Tells what a packed operand takes.
    pub packed_size: PackedSize,
    /// Launches with a packed operand.
    pub launch_packed: LaunchPacked,
}

/// Starts an instance.
pub type Create = unsafe extern "C" fn(
    *const EpHostServices,
    *const EpProviderOptions,
    *mut *mut EpProvider,
) -> *const EpStatus;

/// Makes a primitive.
pub type Build = unsafe fn(&Maker, *mut EpDevice, *const c_void, *mut *mut EpPrimitive) -> *const EpStatus;

/// Launches a primitive.
pub type Launch = unsafe fn(&Maker, *mut EpPrimitive, *mut EpStream, *const c_void) -> *const EpStatus;

/// Tells what a packed operand takes.
pub type PackedSize =
    unsafe fn(&EpPrepackInterface, *mut EpPrimitive, u32, *const c_void, *mut u64) -> *const EpStatus;

/// Launches with a packed operand.
pub type LaunchPacked =
    unsafe fn(&EpPrepackInterface, *mut EpPacked, *mut EpStream, *const c_void) -> *const EpStatus;

// SAFETY: integers, functions, and pointers to static data.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

/// What the SDK makes.
pub fn sdk() -> &'static Tables {
    static SDK: LazyLock<Tables> = LazyLock::new(|| {
        let mut plugin = std::ptr::null();
        // SAFETY: an out-pointer of ours. The query of this version's SDK succeeds, and its tables are static.
        unsafe {
            let status = query::<Faulty>(ABI_MAJOR, ABI_MINOR, &mut plugin);
            assert!(status.is_null(), "the SDK refuses its own version");
            Tables {
                query: query::<Faulty>,
                create_provider: (*plugin).create_provider.unwrap_or_else(|| unreachable!("the SDK has it")),
                provider: *(*plugin).provider,
                device: *(*plugin).device,
                stream: *(*plugin).stream,
                event: *(*plugin).event,
                allocator: *(*plugin).allocator,
                answer: |status| status,
                registrations: |registration| vec![registration],
                build: Maker::build,
                launch: Maker::launch,
                packed_size: prepack::packed_size,
                launch_packed: prepack::launch_packed,
            }
        }
    });
    &SDK
}

/// The same with registrations by way of makers, and packing by way of their primitives.
pub fn honest() -> &'static Tables {
    static HONEST: LazyLock<Tables> = LazyLock::new(|| {
        let mut tables = sdk().clone();
        tables.provider.register_all = Some(register_all);
        tables.device.get_interface = Some(prepack::interface_of_device);
        tables
    });
    &HONEST
}

static PATCHED: OnceLock<Tables> = OnceLock::new();

/// What the functions of the host's tables do.
pub fn current() -> &'static Tables {
    PATCHED.get().unwrap_or_else(honest)
}

/// Lets a defect change the tables, once in a process.
pub fn patch(defect: fn(&mut Tables)) {
    PATCHED.get_or_init(|| {
        let mut tables = honest().clone();
        defect(&mut tables);
        tables
    });
}

/// A table whose functions call those of the current one; the SDK's tables have all of them.
macro_rules! forwarded {
    ($table:ident $field:ident of $object:ident: $($name:ident($($arg:ident: $kind:ty),*);)*) => {
        mod $field {
            use super::*;

            pub(super) unsafe extern "C" fn destroy(object: *mut $object) {
                let Some(entry) = current().$field.destroy else { unreachable!("the SDK has it") };
                // SAFETY: the host's call, as it came.
                unsafe { entry(object) }
            }

            $(pub(super) unsafe extern "C" fn $name(object: *mut $object $(, $arg: $kind)*) -> *const EpStatus {
                let Some(entry) = current().$field.$name else { unreachable!("the SDK has it") };
                // SAFETY: as above.
                (current().answer)(unsafe { entry(object $(, $arg)*) })
            })*

            pub(super) fn table() -> $table {
                $table { destroy: Some(destroy), $($name: Some($name),)* ..honest().$field }
            }
        }
    };
}

forwarded! { EpProviderTable provider of EpProvider:
    device_count(out: *mut u32);
    device_open(index: u32, out: *mut *mut EpDevice);
    register_all(registrar: *const EpRegistrar);
    get_interface(name: EpStr, version: u32, out: *mut *const EpInterface);
}

forwarded! { EpDeviceTable device of EpDevice:
    info(out: *mut EpDeviceInfo);
    stream_create(options: *const EpStreamOptions, out: *mut *mut EpStream);
    event_create(flags: u64, out: *mut *mut EpEvent);
    allocator_open(kind: u32, out: *mut *mut EpAllocator);
    get_interface(name: EpStr, version: u32, out: *mut *const EpInterface);
}

forwarded! { EpStreamTable stream of EpStream:
    sync();
    query(out: *mut u32);
    copy(copy: *const EpCopy);
    record(event: *mut EpEvent);
    wait(event: *mut EpEvent);
    get_interface(name: EpStr, version: u32, out: *mut *const EpInterface);
}

forwarded! { EpEventTable event of EpEvent:
    query(out: *mut u32);
    sync();
}

forwarded! { EpAllocatorTable allocator of EpAllocator:
    alloc(request: *const EpAllocRequest, out: *mut u64);
    free(address: u64, bytes: u64);
    free_async(address: u64, bytes: u64, stream: *mut EpStream);
    stats(out: *mut EpMemoryStats);
    trim();
}

/// Before the first instance there is no option: the environment names a defect of the query.
const VARIABLE: &str = "EP_FAULTY_DEFECT";

/// The plugin's entry point (docs/abi.md, rule 2).
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_plugin_query(
    host_major: u32,
    host_minor: u32,
    out: *mut *const EpPlugin,
) -> *const EpStatus {
    if let Ok(id) = std::env::var(VARIABLE) {
        activate(&id);
    }
    // SAFETY: as the caller promises.
    let status = unsafe { (current().query)(host_major, host_minor, out) };
    if status.is_null() {
        // SAFETY: the query has succeeded, so `out` is valid.
        unsafe { out.write(shown()) };
    }
    (current().answer)(status)
}

unsafe extern "C" fn create_provider(
    host: *const EpHostServices,
    options: *const EpProviderOptions,
    out: *mut *mut EpProvider,
) -> *const EpStatus {
    // SAFETY: the host passes live options, or such that the SDK refuses.
    if let Some(id) = unsafe { defect(options) } {
        activate(&id);
    }
    // SAFETY: the host's call, as it came.
    (current().answer)(unsafe { (current().create_provider)(host, options, out) })
}

/// The option that names a defect, where there are options that can be read.
///
/// # Safety
/// `options` is null or readable for the size that it names.
unsafe fn defect(options: *const EpProviderOptions) -> Option<String> {
    // SAFETY: as the caller promises; lists and texts live as long as the options.
    unsafe {
        let options = read_struct(options).ok()?;
        let pairs = list(options.options, options.num_options, "options").ok()?;
        let found = pairs.iter().find(|pair| string_of(pair.key) == crate::OPTION)?;
        Some(string_of(found.value))
    }
}

/// What the query gives to hosts.
fn shown() -> *const EpPlugin {
    struct Shown {
        plugin: EpPlugin,
        provider: EpProviderTable,
        device: EpDeviceTable,
        stream: EpStreamTable,
        event: EpEventTable,
        allocator: EpAllocatorTable,
    }
    // SAFETY: integers, functions, and pointers to static data.
    unsafe impl Send for Shown {}
    // SAFETY: as above.
    unsafe impl Sync for Shown {}
    static SHOWN: OnceLock<&'static Shown> = OnceLock::new();
    let shown = SHOWN.get_or_init(|| {
        let mut plugin = std::ptr::null();
        // SAFETY: an out-pointer of ours; the SDK's query of its own version gives a static table.
        let plugin = unsafe {
            let status = query::<Faulty>(ABI_MAJOR, ABI_MINOR, &mut plugin);
            assert!(status.is_null(), "the SDK refuses its own version");
            *plugin
        };
        let shown = Box::leak(Box::new(Shown {
            plugin,
            provider: provider::table(),
            device: device::table(),
            stream: stream::table(),
            event: event::table(),
            allocator: allocator::table(),
        }));
        shown.plugin.provider = &shown.provider;
        shown.plugin.device = &shown.device;
        shown.plugin.stream = &shown.stream;
        shown.plugin.event = &shown.event;
        shown.plugin.allocator = &shown.allocator;
        shown.plugin.create_provider = Some(create_provider);
        shown
    });
    &shown.plugin
}
