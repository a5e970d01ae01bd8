//! From a provider's settings to its instance, devices and factories.
//!
//! One provider after the other; nothing stays of one that fails but its line in the report.

use crate::config::ProviderConfig;
use crate::device::Device;
use crate::discovery::Candidate;
use crate::library;
use crate::manifest::{self, AbiVersion, Facts};
use crate::pool::ThreadPool;
use crate::registry::Registry;
use crate::report::{Entry, LoadReport, Status};
use crate::services::InstanceServices;
use crate::step::Step;
use crate::trust::Policy;
use ep_core::abi::{ABI_MAJOR, ABI_MINOR};
use ep_core::handle::{DeviceHandle, Plugin, ProviderHandle};
use ep_core::provider::QueryFn;
use ep_core::{Code, Error, Result};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// A logical device in the making: (kind, uuid) and its members with their instances' priorities.
pub(crate) struct Group {
    kind: String,
    uuid: [u8; 16],
    members: Vec<(i32, String, Arc<DeviceHandle>)>,
}

/// An opened provider.
pub(crate) struct Opened {
    pub(crate) query: QueryFn,
    /// Empty when it is linked in.
    pub(crate) path: String,
    /// Whether it is an earlier version of its file.
    pub(crate) earlier: bool,
    /// What `abi_stable` finds different.
    pub(crate) difference: Option<String>,
}

/// What has been loaded so far.
pub(crate) struct Loading<'a> {
    pub(crate) strict_layout: bool,
    pub(crate) pool: &'a ThreadPool,
    pub(crate) policy: &'a Policy,
    pub(crate) watch: &'a (dyn Fn(&str, Step) + Send + Sync),
    pub(crate) registry: Registry,
    pub(crate) groups: Vec<Group>,
    pub(crate) warm: Vec<(String, Arc<ProviderHandle>)>,
    pub(crate) report: LoadReport,
}

impl Loading<'_> {
    pub(crate) fn file(&mut self, candidate: &Candidate) {
        let settings = &candidate.settings;
        let (policy, watch) = (self.policy, self.watch);
        self.load(settings, candidate.manifest.as_ref(), |s| {
            watch(&s.name, Step::Check);
            let trusted = library::check(&s.path, s.sha256.as_ref(), policy)?;
            watch(&s.name, Step::Load);
            // SAFETY: naming a file in the config, or a folder to search, is the user's word that its code may
            // run here (SECURITY.md).
            let opened = unsafe { library::map(&s.path, s.sha256.as_ref(), &trusted) }?;
            let path = opened.path.display().to_string();
            let (query, earlier) = (opened.query, opened.earlier);
            Ok(Opened { query, path, earlier, difference: opened.layout_difference })
        });
    }

    pub(crate) fn load(
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
        let warm = self.warm.len();
        match self.start(settings, manifest, &mut entry, open) {
            Ok(()) => entry.status = Status::Loaded,
            Err(e) => {
                if e.code() == Code::Unavailable && entry.provider.is_some() {
                    entry.status = Status::Absent;
                } else {
                    self.warm.truncate(warm);
                }
                let remarks = std::mem::replace(&mut entry.reason, e.message().to_owned());
                add_remark(&mut entry.reason, &remarks);
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
        if self.report.entries.iter().any(|e| e.instance == settings.name && e.status != Status::Skipped) {
            return Err(Error::invalid(format!(
                "the instance name `{}` is taken; give each [[provider]] a `name` of its own",
                settings.name
            )));
        }
        let Opened { query, path, earlier, difference } = open(settings)?;
        if earlier {
            let remark = "the file was changed or replaced after this process first loaded it, and that version \
                          is what runs; restart the process to run the new one";
            add_remark(&mut entry.reason, remark);
        }
        let origin = if path.is_empty() { format!("provider `{}`", settings.name) } else { path.clone() };
        (self.watch)(&settings.name, Step::Query);
        // SAFETY: a provider's entry point; libraries stay mapped (docs/decisions/0004).
        let plugin = unsafe { Plugin::load(query, &origin) };
        let plugin = Arc::new(self.second_opinion(plugin, difference, &mut entry.reason)?);
        self.refuse_duplicate(&plugin, &path)?;
        let side = InstanceServices { instance: settings.name.clone(), pool: self.pool.clone() };
        let options: Vec<_> = settings.options.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        (self.watch)(&settings.name, Step::Create);
        let provider =
            ProviderHandle::create(plugin.clone(), Arc::new(side), &settings.name, &path, &options)?;
        entry.provider = Some((plugin.name.clone(), plugin.version.clone()));
        // Kept where there is no device, too: kernels are also prepared for machines that have one.
        if provider.can_warm() {
            self.warm.push((settings.name.clone(), provider.clone()));
        }
        let watch = |step| (self.watch)(&settings.name, step);
        let devices = open_devices(&provider, settings, watch, &mut entry.reason)?;
        watch(Step::Register);
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
            add_remark(&mut entry.reason, &format!("{table} is not used: {difference}"));
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
                add_remark(remark, &format!("abi_stable finds differences: {d}"));
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
    if !reason.is_empty() && !remark.is_empty() {
        reason.push_str("; ");
    }
    reason.push_str(remark);
}

/// The devices that the config selects. Those of them that cannot be opened are remarks, unless no other is left.
fn open_devices(
    provider: &Arc<ProviderHandle>,
    settings: &ProviderConfig,
    watch: impl Fn(Step),
    remarks: &mut String,
) -> Result<Vec<Arc<DeviceHandle>>> {
    const MAX_DEVICES: u32 = 4096;
    watch(Step::Devices);
    let count = provider.device_count()?;
    if count > MAX_DEVICES {
        return Err(Error::internal(format!(
            "the provider reports {count} devices; at most {MAX_DEVICES} are believed"
        )));
    }
    // A device that does not open does not say what it is. It counts as one of the kind of the device before it, or of
    // the first one that opens. No kind is empty.
    let (mut first, mut kind) = (String::new(), String::new());
    let (mut devices, mut names, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    let mut places = HashMap::<String, usize>::new();
    for index in 0..count {
        watch(Step::Open(index));
        let device = provider.open(index).map_err(|e| e.context(format!("device {index}")));
        if let Ok(device) = &device {
            kind.clone_from(&device.info().kind);
            if first.is_empty() {
                first.clone_from(&kind);
                places.insert(kind.clone(), failed.len());
            }
        }
        let place = places.entry(kind.clone()).or_default();
        if device.is_ok() {
            names.push(format!("{kind}:{place}"));
        }
        match device {
            Ok(device) if settings.selects_device(&kind, *place) => devices.push(device),
            Ok(_) => {}
            Err(e) => failed.push((kind.clone(), *place, e)),
        }
        *place += 1;
    }
    failed.retain(|(kind, place, _)| {
        let kind = if kind.is_empty() { &first } else { kind };
        kind.is_empty() || settings.selects_device(kind, *place)
    });
    let said = failed.iter().map(|(.., e)| e.message()).collect::<Vec<_>>().join("; ");
    if !devices.is_empty() {
        if !said.is_empty() {
            tracing::warn!("provider `{}`: {said}", settings.name);
            add_remark(remarks, &said);
        }
        return Ok(devices);
    }
    if !failed.is_empty() {
        // One that is not merely missing counts more.
        let code = failed.iter().map(|(.., e)| e.code()).find(|code| *code != Code::Unavailable);
        return Err(Error::new(code.unwrap_or(Code::Unavailable), said));
    }
    if count == 0 {
        return Err(Error::unavailable("it has no devices"));
    }
    let patterns: Vec<_> = settings.devices.iter().map(|p| format!("`{p}`")).collect();
    Err(Error::unavailable(format!(
        "`devices` in the config selects none of its devices: no {} among {}; correct the patterns, or remove `devices` to \
         use them all",
        patterns.join(", "),
        names.join(", ")
    )))
}

/// Names groups `kind:0`, `kind:1`, ... in order and notes the names in the report.
pub(crate) fn name_devices(groups: Vec<Group>, report: &mut LoadReport) -> Vec<Device> {
    let mut counts = HashMap::new();
    let mut devices = Vec::new();
    for mut group in groups {
        let n: &mut usize = counts.entry(group.kind.clone()).or_default();
        let name = format!("{}:{n}", group.kind);
        *n += 1;
        // Stable: of equal priorities the first stays first.
        group.members.sort_by_key(|(priority, ..)| std::cmp::Reverse(*priority));
        for (_, instance, _) in &group.members {
            if let Some(e) =
                report.entries.iter_mut().find(|e| e.instance == *instance && e.status == Status::Loaded)
            {
                e.devices.push(name.clone());
            }
        }
        let members = group.members.into_iter().map(|(_, i, d)| (i, d)).collect();
        devices.push(Device::new(devices.len() as u32, name, members));
    }
    devices
}
