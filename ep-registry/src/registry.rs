//! Ops and the factories that providers have registered for them.

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
        let mut unknown = None;
        e.facts(&mut |kind, name| {
            let field = schema.desc_field(name).map(|f| &f.kind);
            let ok = match kind {
                FactKind::DType => matches!(field, Some(DescKind::DType)),
                FactKind::Attr => matches!(field, Some(DescKind::Attr(_))),
                FactKind::Selector => matches!(field, Some(DescKind::Selector(_))),
                FactKind::Limit => matches!(field, Some(DescKind::Limit(_))) || name == "alignment",
                FactKind::Device => {
                    let of_kind = |d: &&Arc<DeviceHandle>| d.info().kind == device_kind;
                    self.devices
                        .iter()
                        .filter(of_kind)
                        .all(|d| d.info().attributes.iter().any(|(n, _)| n == name))
                }
                FactKind::Arg | FactKind::Prod => false,
            };
            if !ok && unknown.is_none() {
                unknown = Some(format!("{}({name:?})", kind.word()));
            }
        });
        match unknown {
            None => Ok(()),
            Some(fact) => {
                let names: Vec<_> = schema.desc.iter().map(|f| f.name.as_str()).collect();
                Err(Error::invalid(format!(
                    "`{e}` names {fact}, which does not exist; op `{}` has {}, and devices declare their own",
                    schema.name,
                    names.join(", ")
                )))
            }
        }
    }
}
