//! The runtime: providers, devices, registry, and the way from a request to a primitive.

use crate::cache::{Cache, CacheKey};
use crate::config::{Config, ProviderConfig};
use crate::device::Device;
use crate::discovery::discover;
use crate::dynamic::{DynPrimitive, Request};
use crate::loading::{Loading, Opened, name_devices};
use crate::manifest::{self, AbiVersion, Host};
use crate::pool::ThreadPool;
use crate::primitive::{Core, Primitive};
use crate::registry::Registry;
use crate::report::{Entry, LoadReport, Status};
use crate::rules;
use crate::select::{self, Explanation, Rules};
use crate::step::Step;
use crate::trust::Policy;
use ep_core::abi::{ABI_MAJOR, ABI_MINOR};
use ep_core::handle::ProviderHandle;
use ep_core::op::Op;
use ep_core::parallel::Parallel;
use ep_core::provider::{Provider, QueryFn};
use ep_core::schema::Schema;
use ep_core::{Error, Result};
use parking_lot::RwLock;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Providers, their devices and what they can do. Several may live in one process.
///
/// Everything made by it (devices, streams, buffers, primitives) keeps alive what it needs, so handles may
/// outlive the runtime.
pub struct Runtime {
    pool: ThreadPool,
    devices: Vec<Device>,
    /// Replaced whole when it changes, so that nobody holds the lock while a provider's code runs.
    registry: RwLock<Arc<Registry>>,
    rules: Rules,
    report: LoadReport,
    warm: Vec<(String, Arc<ProviderHandle>)>,
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
    watch: Option<Box<Watch>>,
}

/// Who is told what comes next: an instance and a step.
type Watch = dyn Fn(&str, Step) + Send + Sync;

impl Builder {
    /// Takes everything from a config; providers added so far stay.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config.providers.extend(config.providers);
        self.config.select.extend(config.select);
        self.config.search = config.search;
        self.config.threads = config.threads.or(self.config.threads);
        self.config.strict_layout |= config.strict_layout;
        self.config.source = config.source;
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

    /// Has `watch` called with the instance and the step before each step of loading. After the end of a process the last
    /// one says which provider ended it, and where: `ep doctor` is made of that.
    #[must_use]
    pub fn watch(mut self, watch: impl Fn(&str, Step) + Send + Sync + 'static) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    /// Loads everything. One bad provider does not stop the others; [`Runtime::report`] tells what happened.
    ///
    /// # Errors
    /// When a provider that is `required` did not load; else as [`Builder::load`].
    pub fn build(self) -> Result<Runtime> {
        let runtime = self.load()?;
        runtime.report.check_required()?;
        Ok(runtime)
    }

    /// [`Builder::build`] also where a provider that is `required` does not load, for programs that show what is wrong
    /// with it; [`LoadReport::check_required`] says whether it did.
    ///
    /// # Errors
    /// `NotFound` when `[select]` names an instance that is not there; when threads cannot be started, or
    /// `strict_layout` is set in a host that cannot obey it.
    pub fn load(self) -> Result<Runtime> {
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
            watch: self.watch.as_deref().unwrap_or(&|_, _| {}),
            registry: Registry::new(),
            groups: Vec::new(),
            warm: Vec::new(),
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
                Ok(Opened { query: *query, path: String::new(), earlier: false, difference: None })
            });
        }
        for candidate in &discovery.candidates {
            loading.file(candidate);
        }
        let Loading { registry, groups, warm, mut report, .. } = loading;
        let devices = name_devices(groups, &mut report);
        for entry in &report.entries {
            match entry.status {
                Status::Loaded => tracing::debug!("{entry}"),
                _ => tracing::warn!("{entry}"),
            }
        }
        report.warnings = rules::check(&self.config, &report, &registry)?;
        report.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let cache = Cache::default();
        Ok(Runtime {
            pool,
            devices,
            registry: RwLock::new(Arc::new(registry)),
            rules: self.config.select,
            report,
            warm,
            cache,
        })
    }
}

/// Fails where the types of a program lay an op out in another way than what was registered. Those of the core never do;
/// the others are a vendor's, and may be of one version here and of another there.
#[inline]
fn check_types<O: Op>(core: &Core) -> Result<()> {
    let types = std::ptr::from_ref(O::raw_schema()).addr();
    if core.types.load(Ordering::Relaxed) == types {
        return Ok(());
    }
    compare_types(&core.schema, O::schema())?;
    core.types.store(types, Ordering::Relaxed);
    Ok(())
}

#[cold]
fn compare_types(registered: &Schema, types: &Schema) -> Result<()> {
    let Some(difference) = registered.conflict(types) else { return Ok(()) };
    Err(Error::abi(format!(
        "op `{}`: what was registered (here) and the types of this program (there) differ: {difference}; use the types that \
         the provider was built with",
        registered.name
    )))
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

    /// The instances, by name, that can prepare kernels before their first use: loaded ones, and those that are absent
    /// only because this machine has no device for them.
    pub fn warmable(&self) -> &[(String, Arc<ProviderHandle>)] {
        &self.warm
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
        // Also of those that are loaded, but perhaps without this device.
        let remarked = self.report.with_status(Status::Loaded).filter(|e| !e.reason.is_empty());
        let told = self.report.with_status(Status::Failed).chain(remarked);
        let failed: Vec<_> = told.map(|e| format!("\n  {e}")).collect();
        Err(Error::not_found(format!("no device `{name}`; {found}{}", failed.concat())))
    }

    /// The threads that providers share.
    pub fn parallel(&self) -> &dyn Parallel {
        &self.pool
    }

    fn registry(&self) -> Arc<Registry> {
        self.registry.read().clone()
    }

    /// Calls `f` with the registry as it is now; what is deregistered meanwhile stays in it.
    pub fn with_registry<R>(&self, f: impl FnOnce(&Registry) -> R) -> R {
        f(&self.registry())
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
        // Declared before the lock, so dropped after it is released: the end of a factory may be that of its
        // provider, whose code then runs.
        let _old;
        let mut registry = self.registry.write();
        let mut rest = Registry::clone(&registry);
        rest.remove(instance);
        _old = std::mem::replace(&mut *registry, Arc::new(rest));
        drop(registry);
        self.cache.clear();
        Ok(())
    }

    /// A primitive for a descriptor, on this device and no other. Repeated requests give the same one.
    ///
    /// # Errors
    /// `Unsupported` with every candidate and the reason why it refused; `AbiMismatch` where the program's types of a
    /// vendor's op are not those that its provider was built with; else the factory's error.
    pub fn primitive<O: Op>(&self, device: &Device, mut desc: O::Desc) -> Result<Primitive<O>> {
        // The field is public, and providers trust it.
        // SAFETY: descriptors start with `struct_size: u64` (`Growable`).
        unsafe { (&raw mut desc).cast::<u64>().write(size_of::<O::Desc>() as u64) };
        // SAFETY: descriptors are plain `u64`-aligned data without padding (`Growable`).
        let words = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(&desc).cast::<u64>(), size_of::<O::Desc>() / 8)
        };
        let core = self.core(O::NAME, device, words)?;
        check_types::<O>(&core)?;
        Ok(Primitive { core, op: PhantomData })
    }

    /// A request by names, for ops that are not known when the host is compiled.
    ///
    /// # Errors
    /// `NotFound` with similar names.
    pub fn request(&self, op: &str) -> Result<Request> {
        Ok(Request::new(self.schema(op)?))
    }

    /// A request from a descriptor struct of the op, as `ep_plugin.h` has it, for hosts in other languages. Fewer bytes than this
    /// version has leave the last fields at their defaults.
    ///
    /// # Errors
    /// `NotFound` with similar names; `InvalidArgument` for a number of bytes that no version has; `Unsupported` where fields are set
    /// that this one does not know.
    pub fn request_of_desc(&self, op: &str, desc: &[u8]) -> Result<Request> {
        Request::of_desc(self.schema(op)?, desc)
    }

    /// A primitive for a request by names.
    ///
    /// # Errors
    /// As [`Runtime::primitive`].
    pub fn primitive_dyn(&self, device: &Device, request: &Request) -> Result<DynPrimitive> {
        self.same_schema(request)?;
        Ok(DynPrimitive::new(self.core(&request.schema().name, device, request.words())?))
    }

    /// Why a request gets the factory that it gets, or none.
    ///
    /// # Errors
    /// When the request is incomplete; `InvalidArgument` for a request or a device of another runtime.
    pub fn explain(&self, device: &Device, request: &Request) -> Result<Explanation> {
        self.own(device)?;
        self.same_schema(request)?;
        let registry = self.registry();
        let op = registry.op(&request.schema().name)?;
        select::explain(select::Request { op, desc: request.words() }, device, &self.rules)
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

    /// Fails for a device of another runtime. Instances are told apart by their names, and the same name may be of another
    /// provider there, which must not be handed this device.
    fn own(&self, device: &Device) -> Result<()> {
        if self.devices.get(device.id() as usize) == Some(device) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} is a device of another runtime; ask that one, or use a device of this",
            device.name()
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
        self.own(device)?;
        let generation = self.cache.generation();
        let registry = self.registry();
        let entry = registry.op(op)?;
        let (factory, member) = select::choose(select::Request { op: entry, desc }, device, &self.rules)?;
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
            schema: entry.schema.clone(),
            instance: factory.instance.clone(),
            desc: desc.into(),
            types: AtomicUsize::new(0),
        });
        if let Some(key) = key {
            self.cache.insert(key, core.clone(), generation);
        }
        Ok(core)
    }
}
