//! Negotiating with a plugin: version, fingerprints, tables (rules 2 to 4).

use crate::abi::*;
use crate::provider::QueryFn;
use crate::{Error, Result};

/// A plugin whose contract has been checked: its tables, copied and complete.
#[derive(Debug)]
pub struct Plugin {
    /// The provider's id.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its vendor.
    pub vendor: String,
    /// Where it came from, for messages.
    pub origin: String,
    /// Whether it works in a forked child.
    pub fork_safe: bool,
    /// Optional interfaces that differ from this host's and are therefore not used, with the difference.
    pub disabled: Vec<(String, String)>,
    pub(super) provider: ProviderTable,
    pub(super) device: DeviceTable,
    pub(super) stream: StreamTable,
    pub(super) event: EventTable,
    pub(super) allocator: AllocatorTable,
    pub(super) create: CreateFn,
}

type CreateFn = unsafe extern "C" fn(
    *const EpHostServices,
    *const EpProviderOptions,
    *mut *mut EpProvider,
) -> *const EpStatus;

/// What every plugin must describe, because it cannot do without.
const REQUIRED: [&str; 8] = [
    "EpPlugin",
    "EpProviderTable",
    "EpDeviceTable",
    "EpStreamTable",
    "EpEventTable",
    "EpAllocatorTable",
    "EpHostServices",
    "EpDeviceInfo",
];

impl Plugin {
    /// Asks a plugin what it is and checks that it fits this host.
    ///
    /// # Errors
    /// `AbiMismatch` that names both versions, or the struct and the first field that differs, and what to do.
    ///
    /// # Safety
    /// `query` is a plugin's entry point; its code and static data stay mapped from here on.
    pub unsafe fn load(query: QueryFn, origin: &str) -> Result<Plugin> {
        // SAFETY: as the caller promises.
        unsafe { Self::load_inner(query, origin) }.map_err(|e| e.context(origin))
    }

    /// # Safety
    /// As [`Plugin::load`].
    unsafe fn load_inner(query: QueryFn, origin: &str) -> Result<Plugin> {
        let mut out = std::ptr::null();
        // SAFETY: a valid out-pointer; the status is ours.
        unsafe { take(query(ABI_MAJOR, ABI_MINOR, &mut out)) }?;
        // SAFETY: a successful query returns the plugin's static table.
        let p = unsafe { read_table(out) }?;
        // SAFETY: static texts of the plugin.
        let (name, version, vendor) = unsafe { (str_of(p.name)?, string_of(p.version), string_of(p.vendor)) };
        if (p.abi_major, p.abi_minor) != (ABI_MAJOR, ABI_MINOR) {
            return Err(Error::abi(format!(
                "provider `{name}` {version} speaks ABI {}.{}, this host {ABI_MAJOR}.{ABI_MINOR}; before ABI 1.0 \
                 both must be the same: rebuild the provider with this version of ep-core or ep_plugin.h, or use \
                 the host that it was built for",
                p.abi_major, p.abi_minor
            )));
        }
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(word) {
            return Err(Error::invalid(format!(
                "the provider's id is {name:?}; lower-case letters, digits, `-`, `_`, `.` are possible"
            )));
        }
        // SAFETY: static data of the plugin.
        let disabled = unsafe { compare_infos(&p, name, &version) }?;
        // SAFETY: static tables of the plugin; `load` checks null, size and entries.
        unsafe {
            Ok(Plugin {
                provider: ProviderTable::load(p.provider)?,
                device: DeviceTable::load(p.device)?,
                stream: StreamTable::load(p.stream)?,
                event: EventTable::load(p.event)?,
                allocator: AllocatorTable::load(p.allocator)?,
                create: p.create_provider.ok_or_else(|| missing_entry("EpPlugin.create_provider"))?,
                fork_safe: p.flags & u64::from(EP_PLUGIN_FORK_SAFE) != 0,
                name: name.to_owned(),
                version,
                vendor,
                origin: origin.to_owned(),
                disabled,
            })
        }
    }
}

/// Compares every struct that both sides know; returns the optional ones that differ.
///
/// # Safety
/// `p` is a plugin's own table.
unsafe fn compare_infos(p: &EpPlugin, name: &str, version: &str) -> Result<Vec<(String, String)>> {
    // SAFETY: static data of the plugin, here and below.
    let theirs = unsafe { list(p.infos, p.num_infos, "EpPlugin.infos") }?;
    let mut disabled = Vec::new();
    let mut seen = Vec::new();
    for info in theirs {
        // SAFETY: as above.
        let table = unsafe { string_of(info.name) };
        // SAFETY: ours is static.
        let ours = INFOS.iter().find(|o| unsafe { string_of(o.name) } == table);
        if let Some(ours) = ours {
            // SAFETY: as above.
            if let Some(mismatch) = unsafe { compare(ours, info) }? {
                if table.ends_with("Interface") {
                    disabled.push((table, mismatch.to_string()));
                    continue;
                }
                return Err(Error::abi(format!(
                    "{mismatch}. Provider `{name}` {version} was built with another ep_plugin.h (its ABI \
                     {}.{}, this host's {ABI_MAJOR}.{ABI_MINOR}, fingerprint {ABI_FINGERPRINT:016x}); rebuild the \
                     provider with this host's header or ep-core",
                    p.abi_major, p.abi_minor
                )));
            }
        }
        seen.push(table);
    }
    match REQUIRED.iter().find(|r| !seen.iter().any(|s| s == *r)) {
        None => Ok(disabled),
        Some(missing) => Err(Error::abi(format!(
            "provider `{name}` {version} does not say how it sees {missing}; list it in EpPlugin.infos \
             (ep_abi_infos() in C, export_provider! in Rust)"
        ))),
    }
}
