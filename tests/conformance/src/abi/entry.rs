//! The entry point and what it returns (rules 1 to 4).

use super::raw::Subject;
use super::text;
use crate::verdict::{Verdict, wrong};
use ep_core::abi::*;
use ep_core::handle::Plugin;
use ep_core::{Code, Result};

/// Versions that no host of this time has.
const NEWER: [(u32, u32); 3] = [(ABI_MAJOR, ABI_MINOR + 1), (ABI_MAJOR + 1, 0), (u32::MAX, u32::MAX)];

/// The plugin in words; equal for equal answers.
fn answer(subject: &Subject, version: (u32, u32)) -> Result<String> {
    match subject.ask(version.0, version.1)? {
        Ok(p) => {
            // SAFETY: static texts of the plugin.
            let (name, own) =
                unsafe { (text("EpPlugin.name", p.name)?, text("EpPlugin.version", p.version)?) };
            if (p.abi_major, p.abi_minor) > version {
                return wrong(format!(
                    "a host of ABI {}.{} is given tables of {}.{}, which is newer",
                    version.0, version.1, p.abi_major, p.abi_minor
                ));
            }
            Ok(format!("{name} {own}, ABI {}.{}", p.abi_major, p.abi_minor))
        }
        Err(e) if matches!(e.code(), Code::AbiMismatch | Code::Unsupported) => Ok(format!("refused: {e}")),
        Err(e) => {
            wrong(format!("a host of ABI {}.{} is refused with {:?}: {e}", version.0, version.1, e.code()))
        }
    }
}

fn same_twice(subject: &Subject, version: (u32, u32)) -> Result<()> {
    let (first, second) = (answer(subject, version)?, answer(subject, version)?);
    if first != second {
        return wrong(format!("two queries give different answers: {first}; {second}"));
    }
    Ok(())
}

pub(super) fn query_twice(subject: &Subject) -> Result<Verdict> {
    same_twice(subject, (ABI_MAJOR, ABI_MINOR))?;
    let refused = answer(subject, (ABI_MAJOR, ABI_MINOR))?;
    if refused.starts_with("refused") {
        return wrong(format!("this host is {refused}"));
    }
    Ok(Verdict::Pass)
}

pub(super) fn query_on_threads(subject: &Subject) -> Result<Verdict> {
    let wanted = answer(subject, (ABI_MAJOR, ABI_MINOR))?;
    let query = subject.query()?;
    let bad = std::thread::scope(|scope| {
        let ask = || {
            (0..32).any(|_| {
                let mut out = std::ptr::null();
                // SAFETY: the entry point, with a valid out-pointer; the status is ours.
                let result = unsafe { take(query(ABI_MAJOR, ABI_MINOR, &mut out)) };
                result.is_err() || out.is_null()
            })
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().any(|t| t.join().unwrap_or(true))
    });
    if bad || answer(subject, (ABI_MAJOR, ABI_MINOR))? != wanted {
        return wrong("queries on eight threads at once do not all give what one query gives");
    }
    Ok(Verdict::Pass)
}

pub(super) fn query_by_an_older_host(subject: &Subject) -> Result<Verdict> {
    let older = (0..=ABI_MAJOR).flat_map(|major| [(major, 0), (major, ABI_MINOR.saturating_sub(1))]);
    older.filter(|v| *v < (ABI_MAJOR, ABI_MINOR)).try_for_each(|v| same_twice(subject, v))?;
    Ok(Verdict::Pass)
}

pub(super) fn query_by_a_newer_host(subject: &Subject) -> Result<Verdict> {
    NEWER.into_iter().try_for_each(|v| same_twice(subject, v))?;
    // One that asks for more changes nothing for this one.
    query_twice(subject)
}

pub(super) fn tables(subject: &Subject) -> Result<Verdict> {
    let tables = subject.tables()?;
    let unknown = tables.plugin.flags & !u64::from(EP_PLUGIN_FORK_SAFE);
    if unknown != 0 {
        return wrong(format!("EpPlugin.flags has bits {unknown:#x}, which have no meaning"));
    }
    // SAFETY: the plugin's entry point; its code stays mapped.
    unsafe { Plugin::load(subject.query()?, &subject.path()?) }?;
    Ok(Verdict::Pass)
}

pub(super) fn fingerprints(subject: &Subject) -> Result<Verdict> {
    // SAFETY: as above.
    let plugin = unsafe { Plugin::load(subject.query()?, &subject.path()?) }?;
    if let Some((table, difference)) = plugin.disabled.first() {
        return wrong(format!("{table} does not fit this host: {difference}"));
    }
    let tables = subject.tables()?;
    // SAFETY: static data of the plugin.
    let infos = unsafe { list(tables.plugin.infos, tables.plugin.num_infos, "EpPlugin.infos") }?;
    let mut names = Vec::new();
    for info in infos {
        // SAFETY: as above.
        let name = unsafe { text("the name of a table", info.name) }?;
        if names.contains(&name) {
            return wrong(format!("EpPlugin.infos describes {name} twice"));
        }
        names.push(name);
    }
    Ok(Verdict::Pass)
}

pub(super) fn strings(subject: &Subject) -> Result<Verdict> {
    let plugin = subject.tables()?.plugin;
    for (what, s) in [("name", plugin.name), ("version", plugin.version)] {
        // SAFETY: static texts of the plugin.
        if unsafe { text(what, s) }?.trim().is_empty() {
            return wrong(format!("EpPlugin.{what} is empty"));
        }
    }
    // SAFETY: as above; a vendor may be nobody.
    unsafe { text("vendor", plugin.vendor) }?;
    Ok(Verdict::Pass)
}
