//! What each device can do, listed without running anything.

use crate::runtime::Runtime;
use ep_core::schema::Schema;

/// One combination that a factory covers.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The provider instance.
    pub instance: String,
    /// The logical device.
    pub device: String,
    /// The op.
    pub op: String,
    /// The factory.
    pub factory: String,
    /// Selectors by name.
    pub selectors: Vec<(String, String)>,
    /// Dtypes by role.
    pub dtypes: Vec<(String, String)>,
    /// The further condition, as written; empty: none.
    pub predicate: String,
    /// Priority of the factory.
    pub priority: i32,
}

/// Which rows to list; empty fields match everything.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The op's name.
    pub op: Option<String>,
    /// A dtype in any role.
    pub dtype: Option<String>,
    /// The device, `cpu:0` or `cpu`.
    pub device: Option<String>,
}

impl Filter {
    fn device_fits(&self, name: &str) -> bool {
        self.device.as_ref().is_none_or(|d| name == d || name.split(':').next() == Some(d))
    }
}

impl Runtime {
    /// Lists what the filter lets through, by device, op and registration.
    pub fn query(&self, filter: &Filter) -> Vec<Row> {
        let mut rows = Vec::new();
        self.with_registry(|registry| {
            for device in self.devices().iter().filter(|d| filter.device_fits(d.name())) {
                for op in registry.ops().filter(|o| filter.op.as_ref().is_none_or(|f| *f == o.schema.name)) {
                    for entry in &op.factories {
                        let member = device.members().iter().find(|m| m.instance() == entry.instance);
                        let fits = member.is_some_and(|m| m.handle().info().kind == entry.handle.device_kind);
                        if fits {
                            expand(&op.schema, entry, device.name(), filter, &mut rows);
                        }
                    }
                }
            }
        });
        rows
    }
}

fn expand(
    schema: &Schema,
    entry: &crate::registry::FactoryEntry,
    device: &str,
    filter: &Filter,
    rows: &mut Vec<Row>,
) {
    let factory = &entry.handle;
    for dtypes in &factory.dtypes {
        let dtypes: Vec<_> =
            schema.dtypes().zip(dtypes).map(|(f, d)| (f.name.clone(), d.to_string())).collect();
        if filter.dtype.as_ref().is_some_and(|f| !dtypes.iter().any(|(_, d)| d == f)) {
            continue;
        }
        for selectors in &factory.selectors {
            let selectors = schema
                .selectors()
                .zip(selectors)
                .map(|((f, names), v)| (f.name.clone(), names[*v as usize].clone()))
                .collect();
            rows.push(Row {
                instance: entry.instance.clone(),
                device: device.to_owned(),
                op: schema.name.clone(),
                factory: factory.name.clone(),
                selectors,
                dtypes: dtypes.clone(),
                predicate: factory.predicate.as_ref().map_or(String::new(), ToString::to_string),
                priority: factory.priority,
            });
        }
    }
}
