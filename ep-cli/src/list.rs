//! `ep list`.

use crate::failure::Failure;
use crate::host::{Host, Reasons, Required};
use crate::output::{Cell, Out, Style, bytes};
use clap::Args;
use ep_registry::{Runtime, Status};
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

impl List {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let host = Host::load(config, Required::Ignored)?;
        if self.json {
            out.json(&host.runtime.provider_rows())?;
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
        for (id, info) in runtime.devices_of(entry) {
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
