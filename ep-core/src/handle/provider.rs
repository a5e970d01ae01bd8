//! A provider instance, and receiving what it registers.

use super::objects::DeviceHandle;
use super::services::{HostSide, Services};
use super::{Plugin, PrimitiveHandle};
use crate::abi::*;
use crate::hob::{self, Expr};
use crate::schema::{Key, Schema, decode_schema};
use crate::{DType, Error, Result, dtype};
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What kernels are prepared for.
#[derive(Debug, Clone)]
pub enum Target {
    /// A device.
    Device(Arc<DeviceHandle>),
    /// A kind of hardware, by a name that its provider knows: `sm_90`.
    Named(String),
}

/// A live provider instance.
pub struct ProviderHandle {
    plugin: Arc<Plugin>,
    raw: *mut EpProvider,
    warm: Option<WarmInterface>,
    // Behind `raw` in drop order: the plugin may log until it is destroyed.
    _services: Services,
}

// SAFETY: the functions of a provider may be called from any thread (table EpProviderTable).
unsafe impl Send for ProviderHandle {}
// SAFETY: as above.
unsafe impl Sync for ProviderHandle {}

impl Drop for ProviderHandle {
    fn drop(&mut self) {
        // SAFETY: made by `create`, destroyed once; every object of it holds an Arc of this handle.
        unsafe { (self.plugin.provider.destroy)(self.raw) }
    }
}

impl std::fmt::Debug for ProviderHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderHandle").field("plugin", &self.plugin.name).finish_non_exhaustive()
    }
}

impl ProviderHandle {
    /// Starts an instance.
    ///
    /// # Errors
    /// The plugin's.
    pub fn create(
        plugin: Arc<Plugin>,
        side: Arc<dyn HostSide>,
        instance: &str,
        plugin_path: &str,
        options: &[(String, String)],
    ) -> Result<Arc<ProviderHandle>> {
        let services = Services::new(side);
        let values: Vec<EpKeyValue> =
            options.iter().map(|(k, v)| EpKeyValue { key: EpStr::new(k), value: EpStr::new(v) }).collect();
        let raw_options = EpProviderOptions {
            instance: EpStr::new(instance),
            plugin_path: EpStr::new(plugin_path),
            options: values.as_ptr(),
            num_options: values.len() as u64,
            ..EpProviderOptions::EMPTY
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the plugin's function with live structs; `services` outlives the instance.
        unsafe { take((plugin.create)(services.table(), &raw_options, &mut raw)) }?;
        if raw.is_null() {
            return Err(Error::internal(format!(
                "provider `{}` reported success and no instance",
                plugin.name
            )));
        }
        let mut provider = ProviderHandle { plugin, raw, warm: None, _services: services };
        // SAFETY: a table of the plugin that fits our description.
        provider.warm = provider.optional("ep.warm", &EPWARMINTERFACE_INFO, |table| unsafe {
            WarmInterface::load(table.cast())
        })?;
        Ok(Arc::new(provider))
    }

    pub(super) fn raw(&self) -> *mut EpProvider {
        self.raw
    }

    /// An optional interface of the instance by name, version 1; `None` when it is absent, or bad, which costs that
    /// interface only.
    pub(super) fn optional<T>(
        &self,
        name: &str,
        expected: &EpTableInfo,
        load: impl FnOnce(*const EpInterface) -> Result<T>,
    ) -> Result<Option<T>> {
        let table = &self.plugin.provider;
        if !table.has_get_interface {
            return Ok(None);
        }
        let mut out = std::ptr::null();
        // SAFETY: a live instance, a text that outlives the call and a valid out-pointer; a non-null result is a static
        // table of the plugin that begins as `EpInterface` says; descriptions are generated.
        unsafe {
            take((table.get_interface)(self.raw, EpStr::new(name), 1, &mut out))?;
            if out.is_null() || !super::objects::fits(name, out, expected, self)? {
                return Ok(None);
            }
        }
        Ok(load(out).inspect_err(|e| tracing::warn!("{self:?}: interface {name} is not used: {e}")).ok())
    }

    /// Whether kernels can be prepared before their first use.
    pub fn can_warm(&self) -> bool {
        self.warm.is_some()
    }

    fn warm<'a>(&'a self, target: &'a Target) -> Result<(&'a WarmInterface, *mut EpDevice, &'a str)> {
        let warm = self.warm.as_ref().ok_or_else(|| {
            Error::unsupported(format!(
                "provider {} prepares no kernels ahead of their use",
                self.plugin.name
            ))
        })?;
        match target {
            Target::Named(name) => Ok((warm, std::ptr::null_mut(), name)),
            Target::Device(device) if std::ptr::eq(self, &**device.provider()) => {
                Ok((warm, device.raw(), ""))
            }
            Target::Device(device) => {
                Err(Error::invalid(format!("{device:?} is of another provider than {self:?}")))
            }
        }
    }

    /// How many groups of kernels, of one or more, can be prepared; `op` `None`: of all ops.
    ///
    /// # Errors
    /// `Unsupported` where none can be; else the provider's.
    pub fn warm_count(&self, target: &Target, op: Option<&str>) -> Result<u64> {
        let (warm, device, name) = self.warm(target)?;
        let (name, op) = (EpStr::new(name), EpStr::new(op.unwrap_or("")));
        let mut n = 0;
        // SAFETY: a live instance and device of it, or null; texts that outlive the call; a valid out-pointer.
        unsafe { take((warm.count)(self.raw, device, name, op, &mut n)) }?;
        Ok(n)
    }

    /// Prepares one of them; whether there was something to do.
    ///
    /// # Errors
    /// As [`ProviderHandle::warm_count`].
    pub fn warm_prepare(&self, target: &Target, op: Option<&str>, index: u64) -> Result<bool> {
        let (warm, device, name) = self.warm(target)?;
        let (name, op) = (EpStr::new(name), EpStr::new(op.unwrap_or("")));
        let mut fresh = 0;
        // SAFETY: as in `warm_count`.
        unsafe { take((warm.prepare)(self.raw, device, name, op, index, &mut fresh)) }?;
        Ok(fresh != 0)
    }

    /// The plugin it is an instance of.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.plugin
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// `Unavailable` with the reason when none can be used.
    pub fn device_count(&self) -> Result<u32> {
        let mut n = 0;
        // SAFETY: a live instance and a valid out-pointer.
        unsafe { take((self.plugin.provider.device_count)(self.raw, &mut n)) }?;
        Ok(n)
    }

    /// Opens device `index`.
    ///
    /// # Errors
    /// The plugin's, or what is wrong with the device's description.
    pub fn open(self: &Arc<Self>, index: u32) -> Result<Arc<DeviceHandle>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live instance and a valid out-pointer.
        unsafe { take((self.plugin.provider.device_open)(self.raw, index, &mut raw)) }?;
        // SAFETY: just made by the plugin for us.
        unsafe { DeviceHandle::new(self.clone(), raw) }
    }

    /// Lets the provider register everything into `sink`.
    ///
    /// # Errors
    /// The provider's; usually the sink's own, handed through.
    pub fn register(self: &Arc<Self>, sink: &mut dyn Sink) -> Result<()> {
        let into = Mutex::new(Registered { sink, names: HashSet::new() });
        let context = SinkContext { provider: self.clone(), into };
        let registrar = EpRegistrar {
            context: (&raw const context).cast_mut().cast(),
            add_schema: Some(add_schema),
            add_factory: Some(add_factory),
            ..EpRegistrar::EMPTY
        };
        // SAFETY: a live instance; the registrar and its context live during the call, on whatever threads the plugin
        // uses them.
        unsafe { take((self.plugin.provider.register_all)(self.raw, &registrar)) }
    }
}

/// Receives what a provider registers, one thing at a time, on any thread.
pub trait Sink: Send {
    /// An op, as the provider sees it.
    ///
    /// # Errors
    /// A conflict.
    fn schema(&mut self, schema: Schema) -> Result<()>;
    /// The op of this name: as the host knows it, and as the provider does.
    fn known(&self, op: &str) -> Option<(Arc<Schema>, Arc<Schema>)>;
    /// A factory whose rows have been checked against the schema.
    ///
    /// # Errors
    /// Names in its expressions that do not exist.
    fn factory(&mut self, factory: FactoryHandle) -> Result<()>;
}

/// What [`EpRegistrar::context`] points to. Plugins may register from several threads at once.
struct SinkContext<'a> {
    provider: Arc<ProviderHandle>,
    into: Mutex<Registered<'a>>,
}

struct Registered<'a> {
    sink: &'a mut dyn Sink,
    names: HashSet<String>,
}

impl<'a> SinkContext<'a> {
    /// # Safety
    /// `context` is that of a registrar whose `register_all` has not returned.
    unsafe fn of<'c>(context: *mut c_void) -> &'c SinkContext<'a> {
        // SAFETY: as the caller promises; only shared references to it exist.
        unsafe { &*context.cast::<SinkContext<'a>>() }
    }

    fn lock(&self) -> MutexGuard<'_, Registered<'a>> {
        self.into.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

unsafe extern "C" fn add_schema(context: *mut c_void, schema: *const EpOpSchema) -> *const EpStatus {
    finish(|| {
        // SAFETY: the context of the registrar, during `register_all`; the plugin's schema.
        let (context, schema) = unsafe { (SinkContext::of(context), decode_schema(schema)?) };
        context.lock().sink.schema(schema)
    })
}

unsafe extern "C" fn add_factory(context: *mut c_void, info: *const EpFactoryInfo) -> *const EpStatus {
    finish(|| {
        // SAFETY: as in `add_schema`.
        let (context, info) = unsafe { (SinkContext::of(context), read_struct(info)?) };
        // SAFETY: the plugin's texts live during the call.
        let (op, name) = unsafe { (str_of(info.op)?, str_of(info.name)?) };
        let inner = || {
            let mut into = context.lock();
            if name.is_empty() || !into.names.insert(name.to_owned()) {
                return Err(Error::invalid("the name is empty or taken by another factory of the provider"));
            }
            let (known, view) = into.sink.known(op).ok_or_else(|| {
                Error::not_found("the op is not known: call add_schema first, or check the spelling")
            })?;
            // SAFETY: the plugin's arrays live during the call.
            let factory = unsafe { FactoryHandle::read(context.provider.clone(), &info, &known, &view) }?;
            into.sink.factory(factory)
        };
        inner().map_err(|e| e.context(format!("factory `{name}` of op `{op}`")))
    })
}

type MatchesFn = unsafe extern "C" fn(
    *mut EpFactoryContext,
    *mut EpDevice,
    *const c_void,
    *mut u32,
    *mut EpStr,
) -> *const EpStatus;
type CreateFn = unsafe extern "C" fn(
    *mut EpFactoryContext,
    *mut EpDevice,
    *const c_void,
    *mut *mut EpPrimitive,
) -> *const EpStatus;

/// A factory that a provider has registered.
pub struct FactoryHandle {
    /// The op's name.
    pub op: String,
    /// The factory's name.
    pub name: String,
    /// Higher is preferred.
    pub priority: i32,
    /// Whether launches may be recorded into a graph.
    pub capturable: bool,
    /// The kind of device it is for.
    pub device_kind: String,
    /// Selector rows as the host knows the op; one empty row where it has none. Of a provider that knows fewer selectors
    /// the others are 0; rows of what the host has no name for are left out.
    pub selectors: Vec<Vec<u32>>,
    /// Dtype rows; one empty row where the op has none.
    pub dtypes: Vec<Vec<DType>>,
    /// Further condition.
    pub predicate: Option<Expr>,
    /// Ranks factories of equal priority.
    pub hint: Option<Expr>,
    /// Name of the custom predicate, or empty.
    pub match_name: String,
    rows: (HashSet<Vec<u32>>, HashSet<Vec<DType>>),
    provider: Arc<ProviderHandle>,
    context: *mut EpFactoryContext,
    table: PrimitiveTable,
    matches: Option<MatchesFn>,
    create: CreateFn,
}

// SAFETY: the context is only passed to the factory's callbacks, which any thread may call.
unsafe impl Send for FactoryHandle {}
// SAFETY: as above.
unsafe impl Sync for FactoryHandle {}

impl std::fmt::Debug for FactoryHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FactoryHandle({} of {})", self.name, self.provider.plugin.name)
    }
}

/// `rows` rows of `width` values.
///
/// # Safety
/// A non-null `ptr` is readable for all of them.
unsafe fn rows(ptr: *const u32, rows: u64, width: usize, what: &str) -> Result<Vec<Vec<u32>>> {
    if width == 0 && rows == 0 {
        return Ok(vec![Vec::new()]);
    }
    if rows == 0 || width == 0 {
        return Err(Error::invalid(format!("{rows} rows of {what}, of which the op has {width}")));
    }
    let count =
        rows.checked_mul(width as u64).ok_or_else(|| Error::invalid(format!("{rows} rows of {what}")))?;
    // SAFETY: as the caller promises.
    let flat = unsafe { list(ptr, count, what) }?;
    let rows: Vec<Vec<u32>> = flat.chunks(width).map(<[u32]>::to_vec).collect();
    let mut seen = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        if let Some(first) = seen.insert(row, i) {
            return Err(Error::invalid(format!("row {i} of {what} repeats row {first}: {row:?}")));
        }
    }
    Ok(rows)
}

/// Selector rows of a provider as the host knows the op. Where the two know different numbers of selectors, those that one
/// of them lacks are 0, which means what was done before they existed; nobody here can ask for anything else that the
/// host does not know.
fn as_known(mut selectors: Vec<Vec<u32>>, known: &Schema) -> Vec<Vec<u32>> {
    let count = known.selectors().count();
    selectors.retain(|row| {
        let named = |((_, choices), value): ((_, &[String]), &u32)| (*value as usize) < choices.len();
        known.selectors().zip(row).all(named) && row.iter().skip(count).all(|value| *value == 0)
    });
    selectors.iter_mut().for_each(|row| row.resize(count, 0));
    selectors
}

impl FactoryHandle {
    /// A factory for the op `schema`, as its provider knows it; `known` is the host's.
    ///
    /// # Safety
    /// `info` and what it points to comes from the plugin of `provider` and is readable.
    unsafe fn read(
        provider: Arc<ProviderHandle>,
        info: &EpFactoryInfo,
        known: &Schema,
        schema: &Schema,
    ) -> Result<FactoryHandle> {
        if info.schema_version != schema.version {
            return Err(Error::unsupported(format!(
                "written for version {} of the schema, which is at {} here",
                info.schema_version, schema.version
            )));
        }
        if info.flags & !u64::from(EP_FACTORY_CAPTURABLE) != 0 {
            return Err(Error::unsupported(format!("flags {:#x} are not known to this version", info.flags)));
        }
        let (num_selectors, num_dtypes) = (schema.selectors().count(), schema.dtypes().count());
        // SAFETY: as the caller promises.
        let (selectors, dtypes) = unsafe {
            (
                rows(info.selectors, info.num_selector_rows, num_selectors, "selectors")?,
                rows(info.dtypes, info.num_dtype_rows, num_dtypes, "dtypes")?,
            )
        };
        for row in &selectors {
            for ((field, choices), value) in schema.selectors().zip(row) {
                if *value as usize >= choices.len() {
                    return Err(Error::invalid(format!(
                        "selector `{}` has no value {value}; it has 0 to {}",
                        field.name,
                        choices.len() - 1
                    )));
                }
            }
        }
        let selectors = as_known(selectors, known);
        let dtypes: Vec<Vec<DType>> =
            dtypes.into_iter().map(|r| r.into_iter().map(DType).collect()).collect();
        let unknown = |d: &&DType| !d.is_core() && dtype::vendor::get(**d).is_none();
        if let Some(bad) = dtypes.iter().flatten().find(unknown) {
            return Err(Error::invalid(format!("{bad} is no dtype; vendor dtypes are interned first")));
        }
        // SAFETY: as the caller promises.
        unsafe {
            Ok(FactoryHandle {
                op: schema.name.clone(),
                name: str_of(info.name)?.to_owned(),
                priority: info.priority,
                capturable: info.flags & u64::from(EP_FACTORY_CAPTURABLE) != 0,
                device_kind: str_of(info.device_kind)?.to_owned(),
                predicate: hob::decode(info.predicate, info.num_predicate)?,
                hint: hob::decode(info.hint, info.num_hint)?,
                match_name: str_of(info.match_name)?.to_owned(),
                rows: (selectors.iter().cloned().collect(), dtypes.iter().cloned().collect()),
                selectors,
                dtypes,
                provider,
                context: info.context,
                table: PrimitiveTable::load(info.primitive)?,
                matches: info.matches,
                create: info.create.ok_or_else(|| missing_entry("EpFactoryInfo.create"))?,
            })
        }
    }

    /// The provider.
    pub fn provider(&self) -> &Arc<ProviderHandle> {
        &self.provider
    }

    /// Whether the factory is for these selector values and dtypes, of a request as the host knows the op.
    pub fn covers(&self, key: &Key) -> bool {
        self.rows.0.contains(&key.selectors) && self.rows.1.contains(&key.dtypes)
    }

    /// Asks the custom predicate; `None` means that it accepts, `Some` is its reason to refuse.
    ///
    /// # Errors
    /// The callback's.
    ///
    /// # Safety
    /// `desc` is a descriptor of the op; `device` is one of this factory's provider.
    pub unsafe fn custom_refusal(
        &self,
        device: &DeviceHandle,
        desc: *const c_void,
    ) -> Result<Option<String>> {
        let Some(matches) = self.matches else { return Ok(None) };
        let (mut accepted, mut reason) = (0, EpStr::ZERO);
        // SAFETY: the factory's own context, a live device of the same provider, the caller's descriptor; the
        // reason is read before the next call on this thread.
        unsafe {
            take(matches(self.context, device.raw(), desc, &mut accepted, &mut reason))?;
            Ok((accepted == 0).then(|| string_of(reason)))
        }
    }

    /// Builds a primitive.
    ///
    /// # Errors
    /// The factory's.
    ///
    /// # Safety
    /// `desc` is a descriptor of the op; `device` is one of this factory's provider.
    pub unsafe fn create(
        self: &Arc<Self>,
        device: &Arc<DeviceHandle>,
        desc: *const c_void,
    ) -> Result<PrimitiveHandle> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: as the caller promises.
        unsafe {
            take((self.create)(self.context, device.raw(), desc, &mut raw))?;
            PrimitiveHandle::new(self.clone(), device.clone(), raw, self.table)
        }
    }
}
