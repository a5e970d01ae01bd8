//! The modes that the SDK does not let vendor code bring about: broken tables, descriptions and registrations.
//!
//! The tables are the SDK's, copied and changed. What depends on an instance's mode is done by two functions in
//! front of the SDK's, which find the mode in the name of the device or the factory.

use crate::Mode;
use crate::provider::{Hostile, mode_in};
use ep_core::abi::*;
use ep_core::{Error, Result, provider};
use std::ffi::c_void;
use std::ptr::{null, without_provenance};

/// Every table, each changeable.
struct Tables {
    plugin: EpPlugin,
    provider: EpProviderTable,
    device: EpDeviceTable,
    stream: EpStreamTable,
    event: EpEventTable,
    allocator: EpAllocatorTable,
}

/// A mode, and what it changes.
type Row<T> = (&'static str, fn(&mut T));

/// What a query answers instead of the tables.
const QUERIES: &[(&str, Answer)] = &[
    ("query.null", Answer::Plugin(null())),
    ("query.misaligned", Answer::Plugin(without_provenance(12))),
    ("query.status_code", Answer::Status(&raw const ODD_CODE)),
    ("query.status_text", Answer::Status(&raw const NO_TEXT)),
];

#[derive(Clone, Copy)]
enum Answer {
    Plugin(*const EpPlugin),
    Status(*const EpStatus),
}

/// A code that there is not, text that is not UTF-8, and nothing to release.
static ODD_CODE: EpStatus = EpStatus { code: 4711, reserved: 0, message: INVALID_UTF8, release: None };
/// Text that is null and has a length.
static NO_TEXT: EpStatus =
    EpStatus { code: 2, reserved: 0, message: EpStr { ptr: null(), len: 5 }, release: None };
const INVALID_UTF8: EpStr = EpStr { ptr: b"hostile \xff".as_ptr().cast(), len: 9 };

const TABLES: &[Row<Tables>] = &[
    ("abi.major", |t| t.plugin.abi_major += 1),
    ("abi.minor", |t| t.plugin.abi_minor += 1),
    ("plugin.size_odd", |t| t.plugin.struct_size = 12),
    ("plugin.size_huge", |t| t.plugin.struct_size = u64::MAX),
    ("plugin.size_zero", |t| t.plugin.struct_size = 0),
    ("plugin.short", |t| t.plugin.struct_size = 8),
    ("plugin.name_empty", |t| t.plugin.name = EpStr::ZERO),
    ("plugin.name_utf8", |t| t.plugin.name = INVALID_UTF8),
    ("plugin.name_word", |t| t.plugin.name = text("Hostile Inc.")),
    ("plugin.name_null", |t| t.plugin.name = EpStr { ptr: null(), len: 7 }),
    ("plugin.no_create", |t| t.plugin.create_provider = None),
    ("plugin.no_provider", |t| t.plugin.provider = null()),
    ("plugin.no_device", |t| t.plugin.device = null()),
    ("plugin.no_stream", |t| t.plugin.stream = null()),
    ("plugin.no_event", |t| t.plugin.event = null()),
    ("plugin.no_allocator", |t| t.plugin.allocator = null()),
    ("plugin.misaligned", |t| t.plugin.stream = without_provenance(4)),
    ("table.size", |t| t.stream.struct_size = 3),
    ("table.short", |t| t.stream.struct_size = 16),
    ("table.no_register_all", |t| t.provider.register_all = None),
    ("table.no_info", |t| t.device.info = None),
    ("table.no_sync", |t| t.stream.sync = None),
    ("table.no_query", |t| t.event.query = None),
    ("table.no_free", |t| t.allocator.free = None),
    ("infos.none", |t| t.plugin.num_infos = 0),
    ("infos.null", |t| t.plugin.infos = null()),
    ("infos.huge", |t| t.plugin.num_infos = u64::MAX),
    ("infos.fields_null", |t| set_info(t, "EpCopy", |i| i.prefixes = null())),
    ("infos.reordered", |t| set_info(t, "EpCopy", |i| *i = other(i, 1, 3))),
    ("infos.retyped", |t| set_info(t, "EpEventTable", |i| *i = other(i, 2, 2))),
    ("infos.interface", |t| set_info(t, "EpTimingInterface", |i| *i = other(i, 2, 2))),
    ("create.nothing", |t| t.plugin.create_provider = Some(create_nothing)),
    ("open.nothing", |t| t.provider.device_open = Some(open_nothing)),
    ("stream.nothing", |t| t.device.stream_create = Some(stream_nothing)),
    ("event.nothing", |t| t.device.event_create = Some(event_nothing)),
    ("interface.error", |t| t.device.get_interface = Some(interface_error)),
    ("interface.no_info", |t| t.device.get_interface = Some(interface_without_info)),
    ("interface.other", |t| t.device.get_interface = Some(interface_of_another_version)),
];

const DEVICES: &[Row<EpDeviceInfo>] = &[
    ("info.kind_empty", |i| i.kind = EpStr::ZERO),
    ("info.kind_word", |i| i.kind = text("CPU 0")),
    ("info.kind_utf8", |i| i.kind = INVALID_UTF8),
    ("info.name_utf8", |i| i.name = INVALID_UTF8),
    ("info.space_empty", |i| i.memory_space = EpStr::ZERO),
    ("info.reads_null", |i| (i.reads, i.num_reads) = (null(), 1)),
    ("info.attributes_huge", |i| i.num_attributes = u64::MAX),
    ("info.attribute_kind", |i| (i.attributes, i.num_attributes) = (&raw const ODD_ATTRIBUTE, 1)),
];

static ODD_ATTRIBUTE: EpAttribute =
    EpAttribute { name: text("cores"), value: EpScalar { kind: 99, ..EpScalar::ZERO }, text: EpStr::ZERO };

const FACTORIES: &[Row<EpFactoryInfo>] = &[
    ("factory.op", |f| f.op = text("no_such_op")),
    ("factory.version", |f| f.schema_version = 99),
    ("factory.flags", |f| f.flags = 1 << 40),
    ("factory.name_empty", |f| f.name = EpStr::ZERO),
    ("factory.name_utf8", |f| f.name = INVALID_UTF8),
    ("factory.size", |f| f.struct_size = 3),
    ("factory.no_dtypes", |f| f.num_dtype_rows = 0),
    ("factory.dtypes_null", |f| f.dtypes = null()),
    ("factory.dtype", |f| f.dtypes = (&raw const ODD_ROW).cast()),
    ("factory.rows_huge", |f| f.num_dtype_rows = u64::MAX),
    ("factory.no_selectors", |f| f.num_selector_rows = 0),
    ("factory.selector", |f| f.selectors = (&raw const ODD_ROW).cast()),
    ("factory.predicate_op", |f| (f.predicate, f.num_predicate) = (&raw const ODD_NODE, 1)),
    ("factory.predicate_short", |f| (f.predicate, f.num_predicate) = (&raw const LONELY_NODE, 1)),
    ("factory.predicate_null", |f| (f.predicate, f.num_predicate) = (null(), 2)),
    ("factory.no_create", |f| f.create = None),
    ("factory.no_table", |f| f.primitive = null()),
    ("factory.no_launch", |f| f.primitive = &raw const NO_LAUNCH),
    ("build.nothing", |f| f.create = Some(build_nothing)),
];

/// The mode in which factories come from several threads, how many those are, and the factories of each.
pub(crate) const MANY_THREADS: &str = "register.threads";
pub(crate) const THREADS: usize = 8;
pub(crate) const COPIES: usize = 100;

static ODD_ROW: [u32; 2] = [999, 999];
static ODD_NODE: EpExprNode = node(777, "");
static LONELY_NODE: EpExprNode = node(EP_EXPR_AND, "");
static NO_LAUNCH: EpPrimitiveTable =
    EpPrimitiveTable { destroy: Some(destroy_nothing), ..EpPrimitiveTable::EMPTY };

fn row<'a, T>(rows: &'a [(&str, T)], mode: &str) -> Option<&'a T> {
    rows.iter().find(|(name, _)| *name == mode).map(|(_, change)| change)
}

pub(crate) fn knows(mode: &str) -> bool {
    row(QUERIES, mode).is_some()
        || row(TABLES, mode).is_some()
        || row(DEVICES, mode).is_some()
        || row(FACTORIES, mode).is_some()
}

/// Answers a query as the mode says.
///
/// # Safety
/// `out` is valid for a write.
pub(crate) unsafe fn query(mode: &Mode, out: *mut *const EpPlugin) -> Result<*const EpStatus> {
    let plugin = match row(QUERIES, &mode.0).copied() {
        Some(Answer::Status(status)) => return Ok(status),
        Some(Answer::Plugin(plugin)) => plugin,
        None => {
            // Hosts may keep the tables for ever, and this is a test: a few leak.
            let tables = Box::leak(Box::new(sdk()?));
            tables.plugin.provider = &raw const tables.provider;
            tables.plugin.device = &raw const tables.device;
            tables.plugin.stream = &raw const tables.stream;
            tables.plugin.event = &raw const tables.event;
            tables.plugin.allocator = &raw const tables.allocator;
            tables.device.info = Some(device_info);
            tables.provider.register_all = Some(register_all);
            if let Some(change) = row(TABLES, &mode.0) {
                change(tables);
            }
            &raw const tables.plugin
        }
    };
    // SAFETY: as the caller promises.
    unsafe { out.write(plugin) };
    Ok(null())
}

/// The SDK's tables.
fn sdk() -> Result<Tables> {
    let mut out = null();
    // SAFETY: a valid out-pointer; the SDK answers with static tables.
    unsafe {
        take(provider::query::<Hostile>(ABI_MAJOR, ABI_MINOR, &mut out))?;
        let plugin = read_table(out)?;
        Ok(Tables {
            plugin,
            provider: read_table(plugin.provider)?,
            device: read_table(plugin.device)?,
            stream: read_table(plugin.stream)?,
            event: read_table(plugin.event)?,
            allocator: read_table(plugin.allocator)?,
        })
    }
}

/// Changes how the plugin says that it sees a struct.
fn set_info(tables: &mut Tables, name: &str, change: fn(&mut EpTableInfo)) {
    let infos = Box::leak(Box::new(INFOS.to_vec()));
    // SAFETY: static names.
    let named = infos.iter_mut().find(|i| unsafe { string_of(i.name) } == name);
    named.into_iter().for_each(change);
    tables.plugin.infos = infos.as_ptr();
}

/// The same struct with fields `a` and `b` exchanged or, where they are one, with that field retyped.
fn other(info: &EpTableInfo, a: usize, b: usize) -> EpTableInfo {
    // SAFETY: a static description of the core, whose lists are as long as it says.
    let (fields, prefixes) = unsafe {
        let n = info.count as usize;
        (std::slice::from_raw_parts(info.fields, n), std::slice::from_raw_parts(info.prefixes, n))
    };
    let (fields, prefixes) = (Box::leak(Box::new(fields.to_vec())), Box::leak(Box::new(prefixes.to_vec())));
    fields.swap(a, b);
    prefixes.iter_mut().skip(a).for_each(|hash| *hash ^= 1);
    EpTableInfo { fields: fields.as_ptr(), prefixes: prefixes.as_ptr(), ..*info }
}

// ------------------------------------------------------------- functions in front of the SDK's

unsafe extern "C" fn device_info(device: *mut EpDevice, out: *mut EpDeviceInfo) -> *const EpStatus {
    finish(|| {
        let info = sdk()?.device.info.ok_or_else(|| missing_entry("EpDeviceTable.info"))?;
        // SAFETY: the host's arguments, handed on; it has room for all fields, since both sides are one version.
        unsafe {
            take(info(device, out))?;
            let name = string_of((*out).name);
            if let Some(change) = mode_in(&name).and_then(|mode| row(DEVICES, mode)) {
                change(&mut *out);
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn register_all(provider: *mut EpProvider, host: *const EpRegistrar) -> *const EpStatus {
    finish(|| {
        let register = sdk()?.provider.register_all;
        let register = register.ok_or_else(|| missing_entry("EpProviderTable.register_all"))?;
        // SAFETY: the host's table.
        let host = unsafe { RegistrarTable::load(host) }?;
        let between = EpRegistrar {
            context: (&raw const host).cast_mut().cast(),
            add_schema: Some(add_schema),
            add_factory: Some(add_factory),
            ..EpRegistrar::EMPTY
        };
        // SAFETY: the host's instance; our registrar and what it points to live during the call.
        unsafe { take(register(provider, &between)) }
    })
}

unsafe extern "C" fn add_schema(context: *mut c_void, schema: *const EpOpSchema) -> *const EpStatus {
    // SAFETY: the context is the table in `register_all`; everything else is handed on.
    unsafe {
        let host = &*context.cast::<RegistrarTable>();
        (host.add_schema)(host.context, schema)
    }
}

unsafe extern "C" fn add_factory(context: *mut c_void, info: *const EpFactoryInfo) -> *const EpStatus {
    finish(|| {
        // SAFETY: as in `add_schema`; the SDK's struct and texts live during the call.
        unsafe {
            let host = &*context.cast::<RegistrarTable>();
            let mut info = read_struct(info)?;
            let mode = mode_in(str_of(info.name)?);
            if let Some(change) = mode.and_then(|mode| row(FACTORIES, mode)) {
                change(&mut info);
            }
            if mode == Some(MANY_THREADS) {
                add_copies(host, info)?;
            }
            take((host.add_factory)(host.context, &info))
        }
    })
}

/// Adds copies of a factory under other names from several threads at once.
///
/// # Safety
/// `info` is that of a factory, and what it points to lives during the call.
unsafe fn add_copies(host: &RegistrarTable, info: EpFactoryInfo) -> Result<()> {
    struct Shared<'a>(&'a RegistrarTable, EpFactoryInfo);
    // SAFETY: registrars may be used by any thread while `register_all` runs, and what a factory points to is only read.
    unsafe impl Sync for Shared<'_> {}
    let shared = &Shared(host, info);
    let add = move |name: String| {
        let Shared(host, info) = shared;
        let info = EpFactoryInfo { name: EpStr::new(&name), ..*info };
        // SAFETY: as above; the name lives during the call.
        unsafe { take((host.add_factory)(host.context, &info)) }
    };
    let copies = |thread: usize| (0..COPIES).try_for_each(|i| add(format!("copy {thread}.{i}")));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || copies(t))).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|_| Err(Error::internal("a thread panicked"))))
    })
}

// -------------------------------------------------------------------- functions that do nothing

unsafe extern "C" fn create_nothing(
    _: *const EpHostServices,
    _: *const EpProviderOptions,
    _: *mut *mut EpProvider,
) -> *const EpStatus {
    null()
}

unsafe extern "C" fn open_nothing(_: *mut EpProvider, _: u32, _: *mut *mut EpDevice) -> *const EpStatus {
    null()
}

unsafe extern "C" fn stream_nothing(
    _: *mut EpDevice,
    _: *const EpStreamOptions,
    _: *mut *mut EpStream,
) -> *const EpStatus {
    null()
}

unsafe extern "C" fn event_nothing(_: *mut EpDevice, _: u64, _: *mut *mut EpEvent) -> *const EpStatus {
    null()
}

unsafe extern "C" fn build_nothing(
    _: *mut EpFactoryContext,
    _: *mut EpDevice,
    _: *const c_void,
    _: *mut *mut EpPrimitive,
) -> *const EpStatus {
    null()
}

unsafe extern "C" fn destroy_nothing(_: *mut EpPrimitive) {}

// -------------------------------------------------------------------------- bad interfaces

unsafe extern "C" fn interface_error(
    _: *mut EpDevice,
    _: EpStr,
    _: u32,
    _: *mut *const EpInterface,
) -> *const EpStatus {
    report(Error::internal("hostile interface"))
}

unsafe extern "C" fn interface_without_info(
    _: *mut EpDevice,
    _: EpStr,
    _: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    static INTERFACE: EpInterface = EpInterface::EMPTY;
    // SAFETY: the host's out-pointer.
    unsafe { out.write(&INTERFACE) };
    null()
}

unsafe extern "C" fn interface_of_another_version(
    _: *mut EpDevice,
    _: EpStr,
    _: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    let info = Box::leak(Box::new(other(&EPTIMINGINTERFACE_INFO, 2, 2)));
    let interface = EpTimingInterface { info: &raw const *info, ..EpTimingInterface::EMPTY };
    // SAFETY: the host's out-pointer; the interface begins as `EpInterface` says.
    unsafe { out.write((&raw const *Box::leak(Box::new(interface))).cast()) };
    null()
}
