//! `ep list`.

use crate::failure::Failure;
use crate::host::{Host, Reasons, Required};
use crate::output::{Cell, Out, Style, bytes};
use clap::Args;
use ep_core::Scalar;
use ep_core::provider::{Attribute, DeviceInfo};
use ep_registry::report::Entry;
use ep_registry::{Runtime, Status};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// Shows each provider, where it came from, what happened to it, and its devices
///
/// A provider that the config requires and that does not load is listed like the others.
/// Exit code 3 when no provider loaded.
#[derive(Args)]
pub struct List {
    /// Prints JSON: [{provider, version, path, status, reason, devices: [{id, name, kind, uuid, memory_bytes,
    /// features}]}]
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ProviderRow<'a> {
    provider: &'a str,
    version: Option<&'a str>,
    path: Option<String>,
    status: String,
    reason: &'a str,
    devices: Vec<DeviceRow<'a>>,
}

#[derive(Serialize)]
struct DeviceRow<'a> {
    id: &'a str,
    name: &'a str,
    kind: &'a str,
    uuid: Option<String>,
    memory_bytes: Option<u64>,
    features: serde_json::Map<String, Value>,
}

impl List {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let host = Host::load(config, Required::Ignored)?;
        let entries = &host.runtime.report().entries;
        if self.json {
            let rows: Vec<_> = entries.iter().map(|e| ProviderRow::new(&host.runtime, e)).collect();
            out.json(&rows)?;
            host.warn();
        } else {
            print_providers(&host.runtime, out)?;
        }
        if host.runtime.devices().is_empty() {
            return Err(host.nothing_loaded(Reasons::Shown));
        }
        Ok(())
    }
}

/// What an instance says of its part of each of its logical devices.
fn devices_of<'a>(
    runtime: &'a Runtime,
    entry: &'a Entry,
) -> impl Iterator<Item = (&'a str, &'a DeviceInfo)> + 'a {
    runtime.devices().iter().filter_map(|device| {
        let member = device.members().iter().find(|m| m.instance() == entry.instance)?;
        Some((device.name(), member.handle().info()))
    })
}

impl<'a> ProviderRow<'a> {
    fn new(runtime: &'a Runtime, entry: &'a Entry) -> ProviderRow<'a> {
        let devices = devices_of(runtime, entry).map(|(id, info)| DeviceRow {
            id,
            name: &info.name,
            kind: &info.kind,
            uuid: uuid(&info.uuid),
            memory_bytes: (info.memory_bytes != 0).then_some(info.memory_bytes),
            features: info.attributes.iter().map(|(name, a)| (name.clone(), feature(a))).collect(),
        });
        ProviderRow {
            provider: &entry.instance,
            version: entry.provider.as_ref().map(|(_, version)| version.as_str()),
            path: entry.path.as_ref().map(|p| p.display().to_string()),
            status: entry.status.to_string(),
            reason: &entry.reason,
            devices: devices.collect(),
        }
    }
}

/// An attribute as JSON; what JSON has no number for (NaN, complex) as text.
fn feature(attribute: &Attribute) -> Value {
    match attribute {
        Attribute::Text(text) => text.as_str().into(),
        Attribute::Scalar(Scalar::None) => Value::Null,
        Attribute::Scalar(Scalar::Bool(b)) => (*b).into(),
        Attribute::Scalar(Scalar::I64(i)) => (*i).into(),
        Attribute::Scalar(Scalar::U64(u)) => (*u).into(),
        Attribute::Scalar(Scalar::F64(x)) if x.is_finite() => (*x).into(),
        Attribute::Scalar(other) => other.to_string().into(),
    }
}

/// In the usual groups of digits; `None` for a device without an identity.
fn uuid(raw: &[u8; 16]) -> Option<String> {
    if *raw == [0; 16] {
        return None;
    }
    let hex: String = raw.iter().map(|b| format!("{b:02x}")).collect();
    Some([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// One block for each provider: a line with what happened to it, its reason, and its devices.
pub fn print_providers(runtime: &Runtime, out: &mut Out) -> Result<(), Failure> {
    let head = ["PROVIDER", "STATUS", "ID", "VERSION", "PATH"];
    let mut rows = vec![head.map(|h| Cell::styled(Style::Bold, h)).to_vec()];
    for entry in &runtime.report().entries {
        let style = match entry.status {
            Status::Loaded => Style::Good,
            Status::Failed => Style::Bad,
            Status::Absent | Status::Skipped => Style::Dim,
        };
        let (id, version) = entry.provider.clone().unwrap_or_else(|| ("-".into(), "-".into()));
        let path = entry.path.as_ref().map_or("linked in".to_owned(), |p| p.display().to_string());
        rows.push(vec![
            entry.instance.as_str().into(),
            Cell::styled(style, entry.status.to_string()),
            id.into(),
            version.into(),
            path.into(),
        ]);
    }
    if runtime.report().entries.is_empty() {
        return out.line("no provider is configured");
    }
    out.table(0, &rows)?;
    for entry in runtime.report().entries.iter().filter(|e| !e.reason.is_empty()) {
        let line = match entry.status {
            Status::Absent => format!("\n{}: absent ({})", entry.instance, entry.reason),
            _ => format!("\n{}: {}", entry.instance, entry.reason),
        };
        out.line(line)?;
    }
    for warning in &runtime.report().warnings {
        out.line(format!("\nwarning: {warning}"))?;
    }
    let mut rows =
        vec![["DEVICE", "PROVIDER", "NAME", "MEMORY"].map(|h| Cell::styled(Style::Bold, h)).to_vec()];
    let mut features = Vec::new();
    for entry in &runtime.report().entries {
        for (id, info) in devices_of(runtime, entry) {
            let memory = if info.memory_bytes == 0 { "-".to_owned() } else { bytes(info.memory_bytes) };
            rows.push(vec![
                id.into(),
                entry.instance.as_str().into(),
                info.name.as_str().into(),
                Cell::from(memory),
            ]);
            let list: Vec<_> = info.attributes.iter().map(|(name, a)| format!("{name}={a}")).collect();
            if !list.is_empty() {
                features.push(vec![
                    Cell::from(id),
                    entry.instance.as_str().into(),
                    Cell::styled(Style::Dim, list.join(" ")),
                ]);
            }
        }
    }
    if rows.len() > 1 {
        out.line("")?;
        out.table(0, &rows)?;
    }
    if !features.is_empty() {
        features.insert(0, ["DEVICE", "PROVIDER", "FEATURES"].map(|h| Cell::styled(Style::Bold, h)).to_vec());
        out.line("")?;
        out.table(0, &features)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_grouped_and_may_be_absent() {
        assert_eq!(uuid(&[0; 16]), None);
        let raw = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(uuid(&raw).as_deref(), Some("00112233-4455-6677-8899-aabbccddeeff"));
    }

    #[test]
    fn every_attribute_has_a_json_value() {
        let scalar = |s: Scalar| feature(&Attribute::Scalar(s));
        assert_eq!(scalar(Scalar::U64(u64::MAX)), Value::from(u64::MAX));
        assert_eq!(scalar(Scalar::F64(f64::NAN)), Value::from("NaN"));
        assert_eq!(scalar(Scalar::Complex(1.0, -2.0)), Value::from("1.0-2.0i"));
        assert_eq!(feature(&Attribute::Text("avx2".into())), Value::from("avx2"));
    }
}
