//! Ops and the factories that providers have registered for them.

use crate::document::nearest;
use ep_core::handle::{DeviceHandle, FactoryHandle, ProviderHandle, Sink};
use ep_core::hob::{Expr, FactKind, Value};
use ep_core::provider::Attribute;
use ep_core::schema::{DescKind, Schema, core_schemas};
use ep_core::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A registered factory.
#[derive(Debug)]
pub struct FactoryEntry {
    /// The factory.
    pub handle: Arc<FactoryHandle>,
    /// The provider instance's name.
    pub instance: String,
    /// Priority of the instance in the config, which comes before the factory's own.
    pub instance_priority: i32,
    /// The op as the provider knows it: perhaps an older or newer form than the host's.
    pub view: Arc<Schema>,
}

/// One op: its schema and who can do it.
#[derive(Debug, Clone)]
pub struct OpEntry {
    /// The schema.
    pub schema: Arc<Schema>,
    /// Factories in order of registration.
    pub factories: Vec<Arc<FactoryEntry>>,
}

/// Every op that is known.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    ops: BTreeMap<String, OpEntry>,
}

impl Registry {
    /// The core ops, with no factory yet.
    pub fn new() -> Registry {
        let entry = |schema: Arc<Schema>| (schema.name.clone(), OpEntry { schema, factories: Vec::new() });
        Registry { ops: core_schemas().map(entry).collect() }
    }

    /// The op of this name.
    ///
    /// # Errors
    /// `NotFound` with what was probably meant.
    pub fn op(&self, name: &str) -> Result<&OpEntry> {
        self.ops.get(name).ok_or_else(|| {
            let schemas: Vec<&Schema> = self.ops.values().map(|o| &*o.schema).collect();
            Error::not_found(crate::names::unknown_op(name, &schemas))
        })
    }

    /// All ops by name.
    pub fn ops(&self) -> impl Iterator<Item = &OpEntry> {
        self.ops.values()
    }

    /// Lets a provider register everything; on an error nothing of it stays.
    ///
    /// # Errors
    /// The provider's, or what is wrong with a registration.
    pub fn register(
        &mut self,
        provider: &Arc<ProviderHandle>,
        instance: &str,
        priority: i32,
        devices: &[Arc<DeviceHandle>],
    ) -> Result<()> {
        let mut sink = Collector { registry: self, devices, schemas: HashMap::new(), factories: Vec::new() };
        provider.register(&mut sink)?;
        let Collector { schemas, factories, .. } = sink;
        let mut views = HashMap::new();
        for (name, (known, view)) in schemas {
            views.insert(name.clone(), view);
            self.ops.entry(name).or_insert(OpEntry { schema: known, factories: Vec::new() });
        }
        for handle in factories {
            let op = self.ops.get_mut(&handle.op).expect("the sink has checked the op");
            let view = views.get(&handle.op).unwrap_or(&op.schema).clone();
            op.factories.push(Arc::new(FactoryEntry {
                handle: Arc::new(handle),
                instance: instance.to_owned(),
                instance_priority: priority,
                view,
            }));
        }
        Ok(())
    }

    /// Removes every factory of an instance.
    pub fn remove(&mut self, instance: &str) {
        for op in self.ops.values_mut() {
            op.factories.retain(|f| f.instance != instance);
        }
    }
}

/// The value of a device attribute in a predicate.
pub(crate) fn attribute_value(a: &Attribute) -> Value<'static> {
    match a {
        Attribute::Scalar(s) => Value::from(*s),
        Attribute::Text(t) => Value::Text(t.clone().into()),
    }
}

struct Collector<'a> {
    registry: &'a Registry,
    devices: &'a [Arc<DeviceHandle>],
    /// By op: as the host knows it, as the provider sees it.
    schemas: HashMap<String, (Arc<Schema>, Arc<Schema>)>,
    factories: Vec<FactoryHandle>,
}

impl Sink for Collector<'_> {
    fn schema(&mut self, schema: Schema) -> Result<()> {
        let view = Arc::new(schema);
        let known = self.known(&view.name).map_or_else(|| view.clone(), |(known, _)| known);
        if let Some(difference) = known.conflict(&view) {
            return Err(Error::abi(format!(
                "op `{}`: the provider's schema differs from the one known: {difference}",
                view.name
            )));
        }
        self.schemas.insert(view.name.clone(), (known, view));
        Ok(())
    }

    fn known(&self, op: &str) -> Option<(Arc<Schema>, Arc<Schema>)> {
        self.schemas
            .get(op)
            .cloned()
            .or_else(|| self.registry.ops.get(op).map(|e| (e.schema.clone(), e.schema.clone())))
    }

    fn factory(&mut self, factory: FactoryHandle) -> Result<()> {
        let (_, view) = self.known(&factory.op).expect("asked for before the factory was read");
        let kinds: Vec<_> = self.devices.iter().map(|d| d.info().kind.as_str()).collect();
        if !kinds.is_empty() && !kinds.contains(&factory.device_kind.as_str()) {
            return Err(Error::invalid(format!(
                "it is for devices of kind `{}`, of which the provider has none; it has {}",
                factory.device_kind,
                kinds.join(", ")
            )));
        }
        for (what, e) in [("predicate", &factory.predicate), ("hint", &factory.hint)] {
            if let Some(e) = e {
                self.check_names(e, &view, &factory.device_kind).map_err(|e| e.context(what))?;
            }
        }
        self.factories.push(factory);
        Ok(())
    }
}

impl Collector<'_> {
    /// A name that neither the op nor a device has is an error here, not a kernel that never matches.
    fn check_names(&self, e: &Expr, schema: &Schema, device_kind: &str) -> Result<()> {
        let names = Names::new(self.devices, schema, device_kind);
        let mut unknown = None;
        e.facts(&mut |kind, name| {
            if unknown.is_none() && !names.has(kind, name) {
                unknown = Some((kind, name.to_owned()));
            }
        });
        let Some((kind, name)) = unknown else { return Ok(()) };
        let guess = names.guess(kind, &name).map_or(String::new(), |g| format!("did you mean {g}? "));
        Err(Error::invalid(format!(
            "`{e}` names {}({name:?}), which does not exist; {guess}Op `{}` has {names}",
            kind.word(),
            schema.name
        )))
    }
}

/// What a condition of a factory may name.
struct Names<'a> {
    of_op: [(FactKind, Vec<&'a str>); 4],
    device_kind: &'a str,
    /// Attributes that every device of the kind declares; `None` where there is no such device here.
    of_device: Option<Vec<&'a str>>,
}

impl<'a> Names<'a> {
    fn new(devices: &'a [Arc<DeviceHandle>], schema: &'a Schema, device_kind: &'a str) -> Names<'a> {
        let fields = |wanted: fn(&DescKind) -> bool| {
            schema.desc.iter().filter(|f| wanted(&f.kind)).map(|f| f.name.as_str()).collect::<Vec<_>>()
        };
        let mut limits = fields(|k| matches!(k, DescKind::Limit(_)));
        limits.push("alignment");
        let of_op = [
            (FactKind::Selector, fields(|k| matches!(k, DescKind::Selector(_)))),
            (FactKind::DType, fields(|k| matches!(k, DescKind::DType))),
            (FactKind::Attr, fields(|k| matches!(k, DescKind::Attr(_)))),
            (FactKind::Limit, limits),
        ];
        let attributes = |d: &'a Arc<DeviceHandle>| d.info().attributes.iter().map(|(name, _)| name.as_str());
        let mut of_kind = devices.iter().filter(|d| d.info().kind == device_kind);
        let of_device = of_kind.next().map(|first| {
            let rest: Vec<_> = of_kind.collect();
            attributes(first).filter(|name| rest.iter().all(|d| attributes(d).any(|n| n == *name))).collect()
        });
        Names { of_op, device_kind, of_device }
    }

    fn of(&self, kind: FactKind) -> &[&'a str] {
        match kind {
            FactKind::Device => self.of_device.as_deref().unwrap_or_default(),
            _ => self.of_op.iter().find(|(k, _)| *k == kind).map_or(&[], |(_, names)| names),
        }
    }

    fn has(&self, kind: FactKind, name: &str) -> bool {
        (kind == FactKind::Device && self.of_device.is_none()) || self.of(kind).contains(&name)
    }

    /// What was probably meant: the nearest name of this kind, else the same name of another.
    fn guess(&self, kind: FactKind, name: &str) -> Option<String> {
        let near = nearest(name, self.of(kind)).map(|near| (kind, near));
        let kinds = self.of_op.iter().map(|(k, _)| *k).chain([FactKind::Device]);
        let elsewhere = || kinds.map(|k| (k, name)).find(|(k, name)| self.of(*k).contains(name));
        near.or_else(elsewhere).map(|(kind, name)| format!("{}({name:?})", kind.word()))
    }
}

impl std::fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let titles = ["selectors", "dtypes", "attributes", "limits"];
        for (title, (_, names)) in titles.iter().zip(&self.of_op).filter(|(_, (_, names))| !names.is_empty())
        {
            write!(f, "{title} {}; ", names.join(", "))?;
        }
        match self.of_device.as_deref().unwrap_or_default() {
            [] => write!(f, "devices of kind `{}` declare no attributes", self.device_kind),
            names => write!(f, "devices of kind `{}` declare {}", self.device_kind, names.join(", ")),
        }
    }
}
