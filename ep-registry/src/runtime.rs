//! The runtime: providers, devices, registry, and the way from a request to a primitive.

use crate::cache::{Cache, CacheKey};
use crate::config::{Config, ProviderConfig};
use crate::device::Device;
use crate::discovery::{Candidate, discover};
use crate::dynamic::{DynPrimitive, Request};
use crate::library;
use crate::manifest::{self, AbiVersion, Facts, Host};
use crate::pool::ThreadPool;
use crate::primitive::{Core, Primitive};
use crate::registry::Registry;
use crate::report::{Entry, LoadReport, Status};
use crate::select::{self, Explanation, Rules};
use crate::services::InstanceServices;
use crate::trust::Policy;
use ep_core::abi::{ABI_MAJOR, ABI_MINOR};
use ep_core::handle::{DeviceHandle, Plugin, ProviderHandle};
use ep_core::op::Op;
use ep_core::parallel::Parallel;
use ep_core::provider::{Provider, QueryFn};
use ep_core::schema::Schema;
use ep_core::{Code, Error, Result};
use parking_lot::RwLock;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

/// Providers, their devices and what they can do. Several may live in one process.
///
/// Everything made by it (devices, streams, buffers, primitives) keeps alive what it needs, so handles may
/// outlive the runtime.
pub struct Runtime {
    pool: ThreadPool,
    devices: Vec<Device>,
    registry: RwLock<Registry>,
    rules: Rules,
    report: LoadReport,
    cache: Cache,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("devices", &self.devices).finish_non_exhaustive()
    }
}

/// What a [`Runtime`] is made of.
#[derive(Default)]
pub struct Builder {
    config: Config,
    linked: Vec<(ProviderConfig, QueryFn)>,
    threads: Option<usize>,
    policy: Policy,
}

impl Builder {
    /// Takes everything from a config; providers added so far stay.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config.providers.extend(config.providers);
        self.config.select.extend(config.select);
        self.config.search = config.search;
        self.config.threads = config.threads.or(self.config.threads);
        self.config.strict_layout |= config.strict_layout;
        self
    }

    /// Adds a provider's file with default settings.
    #[must_use]
    pub fn provider(self, name: impl Into<String>, path: impl AsRef<Path>) -> Self {
        let path = std::path::absolute(path.as_ref()).unwrap_or_else(|_| path.as_ref().to_owned());
        self.provider_with(ProviderConfig::new(name, path))
    }

    /// Adds a provider's file with settings.
    #[must_use]
    pub fn provider_with(mut self, settings: ProviderConfig) -> Self {
        self.config.providers.push(settings);
        self
    }

    /// Adds a provider that is linked into this program: `.linked::<CpuProvider>("cpu")`.
    #[must_use]
    pub fn linked<P: Provider>(self, name: impl Into<String>) -> Self {
        self.linked_with::<P>(ProviderConfig::new(name, ""))
    }

    /// Adds a linked provider with settings; their path means nothing.
    #[must_use]
    pub fn linked_with<P: Provider>(self, settings: ProviderConfig) -> Self {
        // SAFETY: the query function of a `Provider` is a plugin's entry point, and its code is this program's.
        unsafe { self.linked_query(settings, ep_core::provider::query::<P>) }
    }

    /// Adds a linked provider by its entry point, such as one written in C.
    ///
    /// # Safety
    /// `query` keeps the contract of `ep_plugin_query`, and its code stays mapped.
    #[must_use]
    pub unsafe fn linked_query(mut self, settings: ProviderConfig, query: QueryFn) -> Self {
        self.linked.push((settings, query));
        self
    }

    /// Prefers instances in this order for an op (`*`: every op without a rule of its own).
    #[must_use]
    pub fn select(
        mut self,
        op: impl Into<String>,
        instances: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.config.select.insert(op.into(), instances.into_iter().map(Into::into).collect());
        self
    }

    /// Threads that providers share, the caller included; 0: one for each CPU.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Which files are trusted; see `docs/configuring.md`.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Loads everything. One bad provider does not stop the others; [`Runtime::report`] tells what happened.
    ///
    /// # Errors
    /// When a provider that is `required` did not load, or threads cannot be started.
    pub fn build(self) -> Result<Runtime> {
        if self.config.strict_layout && !cfg!(feature = "abi_stable") {
            return Err(Error::unsupported(
                "strict_layout is set, but this host was built without the `abi_stable` feature; build it with \
                 the feature or remove the setting",
            ));
        }
        let threads = self.threads.or(self.config.threads.map(usize::from)).unwrap_or(0);
        let pool = ThreadPool::new(threads)?;
        let features = manifest::cpu_features();
        let host = Host {
            abi: AbiVersion { major: ABI_MAJOR, minor: ABI_MINOR },
            arch: std::env::consts::ARCH,
            cpu_features: features.as_deref(),
        };
        let discovery = discover(&self.config, &host, &self.policy);
        let mut loading = Loading {
            strict_layout: self.config.strict_layout,
            pool: &pool,
            policy: &self.policy,
            registry: Registry::new(),
            groups: Vec::new(),
            report: LoadReport::default(),
        };
        for s in discovery.skipped {
            loading.report.entries.push(Entry {
                instance: s.name.unwrap_or_else(|| "-".into()),
                path: Some(s.path),
                status: Status::Skipped,
                reason: s.reason,
                code: None,
                provider: None,
                devices: Vec::new(),
                required: s.required,
            });
        }
        for (settings, query) in &self.linked {
            loading.load(settings, None, |_| {
                Ok(Opened { query: *query, path: String::new(), difference: None })
            });
        }
        for candidate in &discovery.candidates {
            loading.file(candidate);
        }
        let Loading { registry, groups, mut report, .. } = loading;
        let devices = name_devices(groups, &mut report);
        for entry in &report.entries {
            match entry.status {
                Status::Loaded => tracing::debug!("{entry}"),
                _ => tracing::warn!("{entry}"),
            }
        }
        if let Some(bad) = report.entries.iter().find(|e| e.required && e.status != Status::Loaded) {
            let code = bad.code.unwrap_or(Code::Unavailable);
            return Err(Error::new(code, format!("provider `{}` is required: {bad}", bad.instance)));
        }
        let cache = Cache::default();
        Ok(Runtime {
            pool,
            devices,
            registry: RwLock::new(registry),
            rules: self.config.select,
            report,
            cache,
        })
    }
}

/// A logical device in the making: (kind, uuid) and its members with their instances' priorities.
struct Group {
    kind: String,
    uuid: [u8; 16],
    members: Vec<(i32, String, Arc<DeviceHandle>)>,
}

/// An opened provider.
struct Opened {
    query: QueryFn,
    /// Empty when it is linked in.
    path: String,
    /// What `abi_stable` finds different.
    difference: Option<String>,
}

struct Loading<'a> {
    strict_layout: bool,
    pool: &'a ThreadPool,
    policy: &'a Policy,
    registry: Registry,
    groups: Vec<Group>,
    report: LoadReport,
}

impl Loading<'_> {
    fn file(&mut self, candidate: &Candidate) {
        let settings = &candidate.settings;
        let policy = self.policy;
        self.load(settings, candidate.manifest.as_ref(), |s| {
            // SAFETY: naming a file in the config, or a folder to search, is the user's word that its code may
            // run here (SECURITY.md).
            let opened = unsafe { library::open(&s.path, s.sha256.as_ref(), policy) }?;
            let path = opened.path.display().to_string();
            Ok(Opened { query: opened.query, path, difference: opened.layout_difference })
        });
    }

    fn load(
        &mut self,
        settings: &ProviderConfig,
        manifest: Option<&manifest::Manifest>,
        open: impl FnOnce(&ProviderConfig) -> Result<Opened>,
    ) {
        let linked = settings.path.as_os_str().is_empty();
        let mut entry = Entry {
            instance: settings.name.clone(),
            path: (!linked).then(|| settings.path.clone()),
            status: Status::Failed,
            reason: String::new(),
            code: None,
            provider: None,
            devices: Vec::new(),
            required: settings.required,
        };
        match self.start(settings, manifest, &mut entry, open) {
            Ok(()) => entry.status = Status::Loaded,
            Err(e) => {
                if e.code() == Code::Unavailable && entry.provider.is_some() {
                    entry.status = Status::Absent;
                }
                entry.reason = e.message().to_owned();
                entry.code = Some(e.code());
            }
        }
        self.report.entries.push(entry);
    }

    /// Everything from the file to registered factories. Nothing stays of a provider that fails.
    fn start(
        &mut self,
        settings: &ProviderConfig,
        manifest: Option<&manifest::Manifest>,
        entry: &mut Entry,
        open: impl FnOnce(&ProviderConfig) -> Result<Opened>,
    ) -> Result<()> {
        if self.report.entries.iter().any(|e| e.instance == settings.name) {
            return Err(Error::invalid(format!(
                "the instance name `{}` is taken; give each [[provider]] a `name` of its own",
                settings.name
            )));
        }
        let Opened { query, path, difference } = open(settings)?;
        let origin = if path.is_empty() { format!("provider `{}`", settings.name) } else { path.clone() };
        // SAFETY: a provider's entry point; libraries stay mapped (docs/decisions/0004).
        let plugin = unsafe { Plugin::load(query, &origin) };
        let plugin = Arc::new(self.second_opinion(plugin, difference, &mut entry.reason)?);
        self.refuse_duplicate(&plugin, &path)?;
        let side = InstanceServices { instance: settings.name.clone(), pool: self.pool.clone() };
        let options: Vec<_> = settings.options.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let provider =
            ProviderHandle::create(plugin.clone(), Arc::new(side), &settings.name, &path, &options)?;
        entry.provider = Some((plugin.name.clone(), plugin.version.clone()));
        let devices = open_devices(&provider, settings)?;
        self.registry.register(&provider, &settings.name, settings.priority, &devices)?;
        if let Some(manifest) = manifest {
            let names: Vec<String> = devices.iter().map(|d| d.info().kind.clone()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let abi = AbiVersion { major: ABI_MAJOR, minor: ABI_MINOR };
            let facts = Facts { name: &plugin.name, version: &plugin.version, abi, devices: &names };
            let differences: Vec<_> = manifest.verify(&facts).iter().map(ToString::to_string).collect();
            differences.iter().for_each(|d| add_remark(&mut entry.reason, d));
        }
        for (table, difference) in &plugin.disabled {
            let remark = format!("{table} is not used: {difference}");
            entry.reason =
                if entry.reason.is_empty() { remark } else { format!("{}; {remark}", entry.reason) };
        }
        for device in devices {
            self.place(settings, device);
        }
        Ok(())
    }

    /// What `abi_stable` found: it explains a mismatch, and refuses by itself only where the config says so.
    fn second_opinion(
        &self,
        plugin: Result<Plugin>,
        difference: Option<String>,
        remark: &mut String,
    ) -> Result<Plugin> {
        match (plugin, difference) {
            (Err(e), Some(d)) if e.code() == Code::AbiMismatch => {
                Err(Error::abi(format!("{e}\nabi_stable: {d}")))
            }
            (Ok(plugin), Some(d)) if self.strict_layout => Err(Error::abi(format!(
                "provider `{}` {}: strict_layout is set and abi_stable finds differences; rebuild it with this \
                 host's ep-core\n{d}",
                plugin.name, plugin.version
            ))),
            (Ok(plugin), Some(d)) => {
                *remark = format!("abi_stable finds differences: {d}");
                Ok(plugin)
            }
            (plugin, _) => plugin,
        }
    }

    /// The same provider id from another file: the first by precedence wins.
    fn refuse_duplicate(&self, plugin: &Plugin, path: &str) -> Result<()> {
        let other = self.report.entries.iter().find(|e| {
            let same_id = e.provider.as_ref().is_some_and(|(id, _)| *id == plugin.name);
            let other_file = e
                .path
                .as_ref()
                .is_some_and(|p| std::fs::canonicalize(p).map_or(true, |p| p.to_string_lossy() != path));
            same_id && other_file && !path.is_empty() && e.status == Status::Loaded
        });
        match other {
            None => Ok(()),
            Some(e) => Err(Error::refused(format!(
                "a duplicate: provider id `{}` is already loaded as `{}` from {}; remove one of them",
                plugin.name,
                e.instance,
                e.path.as_deref().unwrap_or(Path::new("")).display()
            ))),
        }
    }

    fn place(&mut self, settings: &ProviderConfig, device: Arc<DeviceHandle>) {
        let info = device.info();
        let known = info.uuid != [0; 16];
        let own = |g: &Group| g.members.iter().any(|(_, i, _)| *i == settings.name);
        let group =
            self.groups.iter_mut().find(|g| known && g.kind == info.kind && g.uuid == info.uuid && !own(g));
        let member = (settings.priority, settings.name.clone(), device.clone());
        match group {
            Some(g) => g.members.push(member),
            None => {
                self.groups.push(Group { kind: info.kind.clone(), uuid: info.uuid, members: vec![member] })
            }
        }
    }
}

fn add_remark(reason: &mut String, remark: &str) {
    if !reason.is_empty() {
        reason.push_str("; ");
    }
    reason.push_str(remark);
}

/// The devices that the config selects.
fn open_devices(provider: &Arc<ProviderHandle>, settings: &ProviderConfig) -> Result<Vec<Arc<DeviceHandle>>> {
    const MAX_DEVICES: u32 = 4096;
    let count = provider.device_count()?;
    if count > MAX_DEVICES {
        return Err(Error::internal(format!(
            "the provider reports {count} devices; at most {MAX_DEVICES} are believed"
        )));
    }
    let mut devices = Vec::new();
    let mut kinds = std::collections::HashMap::new();
    for index in 0..count {
        let device = provider.open(index).map_err(|e| e.context(format!("device {index}")))?;
        let place: &mut usize = kinds.entry(device.info().kind.clone()).or_default();
        if settings.selects_device(&device.info().kind, *place) {
            devices.push(device.clone());
        }
        *place += 1;
    }
    if devices.is_empty() {
        let why = if count == 0 {
            "it has no devices"
        } else {
            "`devices` in the config selects none of its devices"
        };
        return Err(Error::unavailable(why));
    }
    Ok(devices)
}

/// Names groups `kind:0`, `kind:1`, ... in order and notes the names in the report.
fn name_devices(groups: Vec<Group>, report: &mut LoadReport) -> Vec<Device> {
    let mut counts = std::collections::HashMap::new();
    let mut devices = Vec::new();
    for mut group in groups {
        let n: &mut usize = counts.entry(group.kind.clone()).or_default();
        let name = format!("{}:{n}", group.kind);
        *n += 1;
        // Stable: of equal priorities the first stays first.
        group.members.sort_by_key(|(priority, ..)| std::cmp::Reverse(*priority));
        for (_, instance, _) in &group.members {
            if let Some(e) = report.entries.iter_mut().find(|e| e.instance == *instance) {
                e.devices.push(name.clone());
            }
        }
        let members = group.members.into_iter().map(|(_, i, d)| (i, d)).collect();
        devices.push(Device::new(devices.len() as u32, name, members));
    }
    devices
}

impl Runtime {
    /// Starts describing a runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Loads what a config file names.
    ///
    /// # Errors
    /// A missing or malformed file, with the line; otherwise as [`Builder::build`].
    pub fn from_config(path: impl AsRef<Path>) -> Result<Runtime> {
        Runtime::builder().config(Config::from_file(path.as_ref())?).build()
    }

    /// What happened to each provider.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// All logical devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device of this name: `cpu:0`, or `cpu` for the first of its kind.
    ///
    /// # Errors
    /// `NotFound` (there is no provider for it, or none with that number) or `Unavailable` (its provider is
    /// here, but cannot be used), with what there is.
    pub fn device(&self, name: &str) -> Result<&Device> {
        let full = if name.contains(':') { name.to_owned() } else { format!("{name}:0") };
        if let Some(device) = self.devices.iter().find(|d| d.name() == full) {
            return Ok(device);
        }
        let kind = name.split(':').next().unwrap_or(name);
        let absent = self.report.with_status(Status::Absent).find(|e| {
            e.instance == kind
                || e.provider.as_ref().is_some_and(|(id, _)| id.split(['-', '_']).any(|w| w == kind))
        });
        if let Some(e) = absent {
            return Err(Error::unavailable(format!("device `{name}` is absent: {}", e.reason)));
        }
        let names: Vec<_> = self.devices.iter().map(Device::name).collect();
        let found = if names.is_empty() {
            "there are none".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        };
        let failed: Vec<_> = self.report.with_status(Status::Failed).map(|e| format!("\n  {e}")).collect();
        Err(Error::not_found(format!("no device `{name}`; {found}{}", failed.concat())))
    }

    /// The threads that providers share.
    pub fn parallel(&self) -> &dyn Parallel {
        &self.pool
    }

    /// Calls `f` with the registry.
    pub fn with_registry<R>(&self, f: impl FnOnce(&Registry) -> R) -> R {
        f(&self.registry.read())
    }

    /// The schema of an op.
    ///
    /// # Errors
    /// `NotFound` with similar names.
    pub fn schema(&self, op: &str) -> Result<Arc<Schema>> {
        self.with_registry(|r| r.op(op).map(|e| e.schema.clone()))
    }

    /// Takes back what an instance registered: later requests do not find it. Primitives that exist keep
    /// working.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn deregister(&self, instance: &str) -> Result<()> {
        if !self.report.entries.iter().any(|e| e.instance == instance) {
            return Err(Error::not_found(format!("no provider instance is called `{instance}`")));
        }
        self.registry.write().remove(instance);
        self.cache.clear();
        Ok(())
    }

    /// A primitive for a descriptor, on this device and no other. Repeated requests give the same one.
    ///
    /// # Errors
    /// `Unsupported` with every candidate and the reason why it refused; else the factory's error.
    pub fn primitive<O: Op>(&self, device: &Device, mut desc: O::Desc) -> Result<Primitive<O>> {
        // The field is public, and providers trust it.
        // SAFETY: descriptors start with `struct_size: u64` (`Growable`).
        unsafe { (&raw mut desc).cast::<u64>().write(size_of::<O::Desc>() as u64) };
        // SAFETY: descriptors are plain `u64`-aligned data without padding (`Growable`).
        let words = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(&desc).cast::<u64>(), size_of::<O::Desc>() / 8)
        };
        let core = self.core(O::NAME, device, words)?;
        if core.schema.version != O::VERSION {
            return Err(Error::abi(format!(
                "op `{}` was registered with version {} of its schema, and this program has types for version {}; \
                 use the types that the provider was built with",
                O::NAME,
                core.schema.version,
                O::VERSION
            )));
        }
        Ok(Primitive { core, op: PhantomData })
    }

    /// A request by names, for ops that are not known when the host is compiled.
    ///
    /// # Errors
    /// `NotFound` with similar names.
    pub fn request(&self, op: &str) -> Result<Request> {
        Ok(Request::new(self.schema(op)?))
    }

    /// A primitive for a request by names.
    ///
    /// # Errors
    /// As [`Runtime::primitive`].
    pub fn primitive_dyn(&self, device: &Device, request: &Request) -> Result<DynPrimitive> {
        self.same_schema(request)?;
        Ok(DynPrimitive { core: self.core(&request.schema().name, device, request.words()?)? })
    }

    /// Why a request gets the factory that it gets, or none.
    ///
    /// # Errors
    /// When the request is incomplete.
    pub fn explain(&self, device: &Device, request: &Request) -> Result<Explanation> {
        self.same_schema(request)?;
        let registry = self.registry.read();
        let op = registry.op(&request.schema().name)?;
        select::explain(select::Request { op, desc: request.words()? }, device, &self.rules)
    }

    /// A request of another runtime may be of an op with the same name and another layout.
    fn same_schema(&self, request: &Request) -> Result<()> {
        let known = self.schema(&request.schema().name)?;
        if Arc::ptr_eq(&known, request.schema()) || known == *request.schema() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the request was made by another runtime, whose op `{}` has another schema; make it with this one's \
             request()",
            known.name
        )))
    }

    #[inline]
    fn core(&self, op: &str, device: &Device, desc: &[u64]) -> Result<Arc<Core>> {
        let key = CacheKey::new(op, device.id(), desc);
        // A device of another runtime may have the same number.
        if let Some(core) = key.as_ref().and_then(|k| self.cache.get(k)).filter(|c| c.device == *device) {
            return Ok(core);
        }
        self.create(op, device, desc, key)
    }

    #[cold]
    fn create(&self, op: &str, device: &Device, desc: &[u64], key: Option<CacheKey>) -> Result<Arc<Core>> {
        if self.devices.get(device.id() as usize) != Some(device) {
            return Err(Error::invalid(format!("{} is a device of another runtime", device.name())));
        }
        let generation = self.cache.generation();
        let (factory, member, schema) = {
            let registry = self.registry.read();
            let entry = registry.op(op)?;
            let (factory, member) = select::choose(select::Request { op: entry, desc }, device, &self.rules)?;
            (factory.clone(), member, entry.schema.clone())
        };
        // Not under the lock: a factory may take long, and what it logs may come back to this runtime.
        let handle_device = device.members()[member].handle();
        // SAFETY: `desc` is a descriptor of the op (typed, or made by its schema); the factory was chosen among
        // those of this member's provider.
        let handle = unsafe { factory.handle.create(handle_device, desc.as_ptr().cast()) }
            .map_err(|e| e.context(format!("{}/{}", factory.instance, factory.handle.name)))?;
        let core = Arc::new(Core {
            handle,
            device: device.clone(),
            member,
            inline: handle_device.info().inline,
            schema,
            instance: factory.instance.clone(),
            desc: desc.into(),
        });
        if let Some(key) = key {
            self.cache.insert(key, core.clone(), generation);
        }
        Ok(core)
    }
}
