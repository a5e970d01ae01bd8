//! A plugin's tables, an instance of it, and a host for that, without the checks of the handles in `ep-core`.

use super::checked;
use crate::verdict::wrong;
use ep_core::abi::*;
use ep_core::provider::QueryFn;
use ep_core::{Code, Error, Result};
use ep_registry::config::ProviderConfig;
use ep_registry::library;
use ep_registry::trust::Policy;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The plugin to check.
pub struct Subject {
    settings: ProviderConfig,
    opened: Result<(QueryFn, String)>,
}

/// The plugin's tables, complete.
#[derive(Clone, Copy)]
pub(super) struct Tables {
    pub(super) plugin: EpPlugin,
    pub(super) provider: ProviderTable,
    pub(super) device: DeviceTable,
    pub(super) stream: StreamTable,
    pub(super) allocator: AllocatorTable,
    pub(super) create: Create,
}

pub(super) type Create = unsafe extern "C" fn(
    *const EpHostServices,
    *const EpProviderOptions,
    *mut *mut EpProvider,
) -> *const EpStatus;

impl Subject {
    /// Opens the file; an error is that of every check.
    pub fn open(settings: &ProviderConfig) -> Subject {
        // SAFETY: whoever names a file to the kit wants its code to run.
        let opened = unsafe { library::open(&settings.path, settings.sha256.as_ref(), &Policy::default()) };
        let opened = opened.map(|o| (o.query, o.path.display().to_string()));
        Subject { settings: settings.clone(), opened }
    }

    /// A provider that is linked here.
    #[cfg(test)]
    pub fn linked(query: QueryFn) -> Subject {
        Subject { settings: ProviderConfig::new("linked", ""), opened: Ok((query, String::new())) }
    }

    pub(super) fn query(&self) -> Result<QueryFn> {
        self.opened.clone().map(|(query, _)| query)
    }

    pub(super) fn path(&self) -> Result<String> {
        self.opened.clone().map(|(_, path)| path)
    }

    /// Asks the plugin as a host of a version.
    pub(super) fn ask(&self, major: u32, minor: u32) -> Result<std::result::Result<EpPlugin, Error>> {
        let mut out = null();
        // SAFETY: the entry point, with a valid out-pointer; the status is ours; a successful query gives a table.
        unsafe {
            match checked(self.query()?(major, minor, &mut out))? {
                Ok(()) => read_table(out).map(Ok),
                Err(e) => Ok(Err(e)),
            }
        }
    }

    pub(super) fn tables(&self) -> Result<Tables> {
        let plugin = self.ask(ABI_MAJOR, ABI_MINOR)??;
        // SAFETY: static tables of the plugin.
        unsafe {
            EventTable::load(plugin.event)?;
            Ok(Tables {
                plugin,
                provider: ProviderTable::load(plugin.provider)?,
                device: DeviceTable::load(plugin.device)?,
                stream: StreamTable::load(plugin.stream)?,
                allocator: AllocatorTable::load(plugin.allocator)?,
                create: plugin.create_provider.ok_or_else(|| missing_entry("EpPlugin.create_provider"))?,
            })
        }
    }

    /// The options of the config, as text.
    pub(super) fn options(&self) -> Vec<(String, String)> {
        self.settings.options.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    pub(super) fn instance(&self) -> Result<Instance> {
        Instance::new(self, Host::new(), &self.options())?
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a host does for the instance under test, and remembers of it.
pub(super) struct Host {
    table: EpHostServices,
    /// Told by the context, so that the instance of one host cannot use another's unnoticed.
    pub(super) log: Mutex<Vec<(u32, String, String)>>,
    /// What the instance did wrong.
    pub(super) wrong: Mutex<Vec<String>>,
    pub(super) calls: AtomicU64,
}

impl Host {
    /// At an address that stays: the instance keeps it. Freed by [`Instance`].
    pub(super) fn new() -> *mut Host {
        let table = EpHostServices {
            abi_major: ABI_MAJOR,
            abi_minor: ABI_MINOR,
            log_enabled: Some(log_enabled),
            log: Some(log),
            num_threads: Some(num_threads),
            parallel_for: Some(parallel_for),
            intern_dtype: Some(intern_dtype),
            get_interface: Some(get_interface),
            ..EpHostServices::EMPTY
        };
        let host = Box::into_raw(Box::new(Host {
            table,
            log: Mutex::default(),
            wrong: Mutex::default(),
            calls: AtomicU64::new(0),
        }));
        // SAFETY: just made, and nobody else knows it yet.
        unsafe { (*host).table.context = host.cast() };
        host
    }

    pub(super) fn table(&self) -> &EpHostServices {
        &self.table
    }
}

/// # Safety
/// `context` is the context of a live [`Host`].
unsafe fn host<'a>(context: *mut c_void) -> &'a Host {
    // SAFETY: as the caller promises.
    let host = unsafe { &*context.cast::<Host>() };
    host.calls.fetch_add(1, Ordering::Relaxed);
    host
}

unsafe extern "C" fn log_enabled(context: *mut c_void, level: u32) -> u32 {
    // SAFETY: the instance passes the context that it was given.
    let host = unsafe { host(context) };
    if !(EP_LEVEL_ERROR..=EP_LEVEL_TRACE).contains(&level) {
        lock(&host.wrong).push(format!("it asked for log level {level}"));
    }
    1
}

unsafe extern "C" fn log(context: *mut c_void, level: u32, target: EpStr, message: EpStr) {
    // SAFETY: as above; the texts live during the call.
    let (host, texts) = unsafe { (host(context), [str_of(target), str_of(message)]) };
    if !(EP_LEVEL_ERROR..=EP_LEVEL_TRACE).contains(&level) {
        lock(&host.wrong).push(format!("it logged with level {level}"));
    }
    match texts {
        [Ok(target), Ok(message)] => lock(&host.log).push((level, target.to_owned(), message.to_owned())),
        [Err(e), _] | [_, Err(e)] => lock(&host.wrong).push(format!("it logged what is no text: {e}")),
    }
}

unsafe extern "C" fn num_threads(context: *mut c_void) -> u32 {
    // SAFETY: as above.
    unsafe { host(context) };
    1
}

unsafe extern "C" fn parallel_for(
    context: *mut c_void,
    n: u64,
    grain: u64,
    _: u32,
    task: Option<EpTask>,
    user: *mut c_void,
) -> *const EpStatus {
    // SAFETY: as above.
    unsafe { host(context) };
    let Some(task) = task else {
        return report(Error::invalid("parallel_for: the task is null"));
    };
    // Chunks of the least size that the caller says is worth it.
    let (mut at, grain) = (0, grain.max(1));
    while at < n {
        let end = at.saturating_add(grain).min(n);
        // SAFETY: the instance's task with its own pointer, during its call.
        let status = unsafe { task(user, at, end) };
        if !status.is_null() {
            return status;
        }
        at = end;
    }
    null()
}

unsafe extern "C" fn intern_dtype(
    context: *mut c_void,
    info: *const EpDtypeInfo,
    out: *mut u32,
) -> *const EpStatus {
    finish(|| {
        // SAFETY: as above; the instance's struct, text and out-pointer live during the call.
        unsafe {
            host(context);
            let info = read_struct(info)?;
            let dtype = ep_core::dtype::vendor::intern(None, str_of(info.name)?, info.bits, info.alignment)?;
            if out.is_null() {
                return Err(Error::invalid("intern_dtype: the out-pointer is null"));
            }
            out.write(dtype.0);
        }
        Ok(())
    })
}

unsafe extern "C" fn get_interface(
    context: *mut c_void,
    _: EpStr,
    _: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    finish(|| {
        // SAFETY: as above.
        unsafe { host(context) };
        if out.is_null() {
            return Err(Error::invalid("get_interface: the out-pointer is null"));
        }
        // SAFETY: not null; the instance's.
        unsafe { out.write(null()) };
        Ok(())
    })
}

/// An instance of the plugin, and its host.
pub(super) struct Instance {
    pub(super) tables: Tables,
    pub(super) raw: *mut EpProvider,
    host: *mut Host,
    destroyed: bool,
}

// SAFETY: the functions of an instance and of its host may be called from any thread.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    /// Creates an instance; the inner error is the provider's. Takes the host over.
    pub(super) fn new(
        subject: &Subject,
        host: *mut Host,
        options: &[(String, String)],
    ) -> Result<Result<Instance>> {
        let path = subject.path()?;
        let pairs: Vec<_> =
            options.iter().map(|(k, v)| EpKeyValue { key: EpStr::new(k), value: EpStr::new(v) }).collect();
        let options = EpProviderOptions {
            instance: EpStr::new(&subject.settings.name),
            plugin_path: EpStr::new(&path),
            options: pairs.as_ptr(),
            num_options: pairs.len() as u64,
            ..EpProviderOptions::EMPTY
        };
        // SAFETY: ours, live until it is freed.
        let table: *const EpHostServices = unsafe { (*host).table() };
        Instance::with(subject, host, table, &options)
    }

    /// The same with a table and options of the caller's.
    pub(super) fn with(
        subject: &Subject,
        host: *mut Host,
        table: *const EpHostServices,
        options: *const EpProviderOptions,
    ) -> Result<Result<Instance>> {
        let tables = subject.tables()?;
        let mut instance = Instance { tables, raw: null_mut(), host, destroyed: true };
        // SAFETY: the plugin's function, with structs that live during the call; the host outlives the instance.
        match unsafe { checked((tables.create)(table, options, &mut instance.raw)) }? {
            Err(e) => return Ok(Err(e)),
            Ok(()) if instance.raw.is_null() => {
                return wrong("create_provider reported success and no instance");
            }
            Ok(()) => instance.destroyed = false,
        }
        Ok(Ok(instance))
    }

    pub(super) fn host(&self) -> &Host {
        // SAFETY: freed in `drop` only.
        unsafe { &*self.host }
    }

    /// Ends the instance; its host lives on.
    pub(super) fn destroy(&mut self) {
        if !std::mem::replace(&mut self.destroyed, true) {
            // SAFETY: created, and destroyed once; the checks destroy all objects before.
            unsafe { (self.tables.provider.destroy)(self.raw) };
        }
    }

    /// What the instance did wrong with its host's functions.
    pub(super) fn manners(&self) -> Result<()> {
        match lock(&self.host().wrong).first() {
            Some(what) => wrong(what.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: a live instance and a valid out-pointer.
        unsafe { checked((self.tables.provider.device_count)(self.raw, &mut count)) }??;
        Ok(count)
    }

    /// Opens a device; `None` if there is none to drive here.
    pub(super) fn open(&self, index: u32) -> Result<Option<OpenDevice<'_>>> {
        match self.device_count() {
            Ok(count) if index < count => {}
            Ok(_) => return Ok(None),
            Err(e) if e.code() == Code::Unavailable => return Ok(None),
            Err(e) => return Err(e),
        }
        let mut raw = null_mut();
        // SAFETY: a live instance and a valid out-pointer.
        unsafe { checked((self.tables.provider.device_open)(self.raw, index, &mut raw)) }??;
        if raw.is_null() {
            return wrong("device_open reported success and no device");
        }
        Ok(Some(OpenDevice { instance: self, raw }))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.destroy();
        // SAFETY: made by `Host::new`, freed once; the instance has ended.
        drop(unsafe { Box::from_raw(self.host) });
    }
}

/// An open device.
pub(super) struct OpenDevice<'i> {
    pub(super) instance: &'i Instance,
    pub(super) raw: *mut EpDevice,
}

impl OpenDevice<'_> {
    pub(super) fn tables(&self) -> &Tables {
        &self.instance.tables
    }

    pub(super) fn info(&self) -> Result<EpDeviceInfo> {
        let mut info = EpDeviceInfo::EMPTY;
        // SAFETY: a live device and a struct of our capacity.
        unsafe { checked((self.tables().device.info)(self.raw, &mut info)) }??;
        Ok(info)
    }

    /// A stream, for the time of a call.
    pub(super) fn with_stream<R>(&self, f: impl FnOnce(*mut EpStream) -> Result<R>) -> Result<R> {
        let mut raw = null_mut();
        // SAFETY: a live device, options of this version, a valid out-pointer.
        unsafe {
            checked((self.tables().device.stream_create)(self.raw, &EpStreamOptions::EMPTY, &mut raw))
        }??;
        if raw.is_null() {
            return wrong("stream_create reported success and no stream");
        }
        let result = f(raw);
        // SAFETY: made above, destroyed once.
        unsafe { (self.tables().stream.destroy)(raw) };
        result
    }

    /// An allocator of device memory, for the time of a call.
    pub(super) fn with_allocator<R>(&self, f: impl FnOnce(*mut EpAllocator) -> Result<R>) -> Result<R> {
        let mut raw = null_mut();
        // SAFETY: as above.
        unsafe { checked((self.tables().device.allocator_open)(self.raw, EP_MEMORY_DEVICE, &mut raw)) }??;
        if raw.is_null() {
            return wrong("allocator_open reported success and no allocator");
        }
        let result = f(raw);
        // SAFETY: as above.
        unsafe { (self.tables().allocator.destroy)(raw) };
        result
    }
}

impl Drop for OpenDevice<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `Instance::open`, closed once; the checks destroy its objects before.
        unsafe { (self.tables().device.destroy)(self.raw) };
    }
}
