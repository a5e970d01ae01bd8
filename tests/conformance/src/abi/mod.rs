//! The binary contract (docs/abi.md), checked on the plugin's tables directly.

mod entry;
mod host;
mod instance;
mod memory;
mod raw;
mod structs;

pub use raw::Subject;

use crate::keys::Ended;
use crate::plan::{Group, Setup, Unit};
use crate::verdict::{Verdict, ended, wrong};
use ep_core::abi::{EpStatus, list, string_of};
use ep_core::{Code, Error, Result};

type Check = fn(&Subject) -> Result<Verdict>;

/// How many of the checks, the first ones, need no instance.
const OF_TABLES: usize = 7;

/// The checks and their names, by the files that they are in.
const CHECKS: [(&str, Check); 27] = [
    ("query-twice", entry::query_twice),
    ("query-on-threads", entry::query_on_threads),
    ("query-by-an-older-host", entry::query_by_an_older_host),
    ("query-by-a-newer-host", entry::query_by_a_newer_host),
    ("tables", entry::tables),
    ("fingerprints", entry::fingerprints),
    ("strings", entry::strings),
    ("create-and-destroy", instance::create_and_destroy),
    ("several-instances", instance::several_instances),
    ("create-on-threads", instance::create_on_threads),
    ("device-count", instance::device_count),
    ("device-out-of-range", instance::device_out_of_range),
    ("device-description", instance::device_description),
    ("unknown-interfaces", instance::unknown_interfaces),
    ("known-interfaces", instance::known_interfaces),
    ("statuses", instance::statuses),
    ("register-twice", instance::register_twice),
    ("registration-refused", instance::registration_refused),
    ("two-hosts", host::two_hosts),
    ("options-and-path", host::options_and_path),
    ("older-and-newer-host-tables", host::older_and_newer_tables),
    ("log", host::log),
    ("failing-host-threads", host::failing_threads),
    ("stream-ordered-memory", memory::stream_ordered),
    ("struct-sizes", structs::sizes),
    ("output-capacity", structs::output_capacity),
    ("unknown-values", structs::unknown_values),
];

/// The names of the checks.
pub fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _)| *name)
}

/// The units of all checks that pass the filter.
pub fn units(setup: &Setup) -> Vec<Unit> {
    let all = names().map(|name| Unit::check(setup, Group::Abi, name));
    all.filter(|u| setup.onnx.is_none() && setup.filter.lets(u)).collect()
}

/// Those of [`units`] that can tell more of a provider that does not load: none without its tables, and without an
/// instance only those that need none. The others would say once more why it does not load.
pub fn possible(setup: &Setup, subject: &Subject) -> Vec<Unit> {
    let possible = match (subject.tables(), subject.instance()) {
        (Err(_), _) => 0,
        (Ok(_), Err(_)) => OF_TABLES,
        (Ok(_), Ok(_)) => CHECKS.len(),
    };
    let names: Vec<_> =
        names().take(possible).map(|name| Unit::check(setup, Group::Abi, name).name).collect();
    units(setup).into_iter().filter(|unit| names.contains(&unit.name)).collect()
}

/// Runs a check.
pub fn run(name: &str, subject: &Subject) -> Ended {
    let found = CHECKS.iter().find(|(n, _)| *n == name);
    ended(match found {
        Some((_, check)) => check(subject),
        None => Err(Error::not_found(format!("no check is called `{name}`"))),
    })
}

/// A status, checked as rule 7 says and released.
///
/// # Safety
/// `status` is null, or a status that nobody else releases.
unsafe fn checked(status: *const EpStatus) -> Result<std::result::Result<(), Error>> {
    if status.is_null() {
        return Ok(Ok(()));
    }
    if !status.is_aligned() {
        return wrong(format!("a status at {status:p} is misaligned"));
    }
    // SAFETY: live and aligned; the message lives until the release.
    let (head, bytes) =
        unsafe { (*status, list((*status).message.ptr.cast::<u8>(), (*status).message.len, "message")) };
    let text = bytes.map(<[u8]>::to_vec);
    // SAFETY: ours to release, once.
    let error = match unsafe { ep_core::abi::take(status) } {
        Ok(()) => return wrong("a status that is not null was read as success"),
        Err(e) => e,
    };
    let text = text?;
    if Code::from_raw(head.code) as i32 != head.code {
        return wrong(format!("a status has the code {}, which is none ({error})", head.code));
    }
    if head.reserved != 0 {
        return wrong(format!("a status has {} in its reserved field ({error})", head.reserved));
    }
    if std::str::from_utf8(&text).is_err() || text.is_empty() {
        return wrong(format!("the message of a status is empty or not UTF-8: {error:?}"));
    }
    if error.code() == Code::Panic {
        return wrong(format!("a panic, where an error was due: {error}"));
    }
    Ok(Err(error))
}

/// Expects an error with one of some codes.
///
/// # Safety
/// As [`checked`].
unsafe fn refused(what: &str, status: *const EpStatus, codes: &[Code]) -> Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { checked(status) }? {
        Err(e) if codes.contains(&e.code()) => Ok(()),
        Err(e) => wrong(format!("{what}: refused with {:?} ({e}), not with one of {codes:?}", e.code())),
        Ok(()) => wrong(format!("{what}: accepted; {codes:?} is right")),
    }
}

/// A text of the plugin that must be UTF-8.
///
/// # Safety
/// As [`string_of`].
unsafe fn text(what: &str, s: ep_core::abi::EpStr) -> Result<String> {
    // SAFETY: as the caller promises.
    unsafe {
        ep_core::abi::str_of(s).map_err(|e| e.context(what))?;
        Ok(string_of(s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::abi::{finish, missing_status};

    #[test]
    fn statuses_are_checked_and_released() {
        // SAFETY: each status is fresh, or static with a release that does nothing.
        unsafe {
            assert!(matches!(checked(std::ptr::null()), Ok(Ok(()))));
            let e = checked(finish(|| Err(Error::not_found("x")))).unwrap().unwrap_err();
            assert_eq!(e.code(), Code::NotFound);
            assert!(checked(finish(|| panic!("boom"))).is_err());
            assert!(checked(finish(|| Err(Error::not_found("")))).is_err());
            static ODD: EpStatus = EpStatus { code: 77, ..missing_status("odd") };
            assert!(checked(&ODD).unwrap_err().message().contains("77"));
            static RESERVED: EpStatus = EpStatus { reserved: 1, ..missing_status("reserved") };
            assert!(checked(&RESERVED).is_err());
            static FINE: EpStatus = missing_status("not here");
            assert!(refused("x", &FINE, &[Code::Unsupported]).is_ok());
            assert!(refused("x", &FINE, &[Code::NotFound]).is_err());
            assert!(refused("x", std::ptr::null(), &[Code::NotFound]).is_err());
        }
    }

    #[test]
    fn names_are_unique() {
        let unique: std::collections::BTreeSet<_> = names().collect();
        assert_eq!(unique.len(), CHECKS.len());
    }
}
