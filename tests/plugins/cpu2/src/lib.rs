//! A renamed copy of the CPU provider, so that tests have two providers for one device.

use ep_core::abi::{EpPlugin, EpStatus, finish, take, text};
use ep_core::provider::query;
use ep_core::{Error, Result};
use ep_cpu::provider::CpuProvider;
use std::sync::OnceLock;

/// A plugin's static table with another name in it.
struct Renamed(EpPlugin);

// SAFETY: the table is read-only and points to static, read-only data and functions.
unsafe impl Send for Renamed {}
// SAFETY: as above.
unsafe impl Sync for Renamed {}

static PLUGIN: OnceLock<Renamed> = OnceLock::new();

/// The plugin's entry point (docs/abi.md, rule 2).
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_plugin_query(
    host_major: u32,
    host_minor: u32,
    out: *mut *const EpPlugin,
) -> *const EpStatus {
    finish(|| -> Result<()> {
        if out.is_null() {
            return Err(Error::invalid("ep_plugin_query: the out-pointer is null"));
        }
        let mut original = std::ptr::null();
        // SAFETY: a valid out-pointer; the status is ours. A successful query returns a static table.
        let original: &EpPlugin = unsafe {
            take(query::<CpuProvider>(host_major, host_minor, &mut original))?;
            &*original
        };
        let renamed = PLUGIN.get_or_init(|| Renamed(EpPlugin { name: text("cpu2"), ..*original }));
        // SAFETY: not null; valid as the caller promises.
        unsafe { out.write(&renamed.0) };
        Ok(())
    })
}
