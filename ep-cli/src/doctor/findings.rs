//! What concerns more than one provider: the config, the environment, the CPU, duplicates.

use super::Row;
use super::probe::State;
use crate::failure::Failure;
use ep_registry::config::{Config, Search};
use ep_registry::discovery::Discovery;
use ep_registry::{Runtime, manifest};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Variables of others that decide which libraries and devices there are (`docs/configuring.md`, `docs/cuda.md`).
const OTHERS: [&str; 7] = [
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
];
/// Extensions that kernels are written for, as Linux calls them on x86-64 and on Arm.
const EXTENSIONS: [&str; 20] = [
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimdhp",
    "sve",
    "bf16",
];

/// Which of the places it is from.
pub fn why_this_config(explicit: Option<&Path>, path: &Path) -> &'static str {
    if explicit.is_some() {
        "named by --config"
    } else if std::env::var_os("EP_CONFIG").is_some_and(|v| !v.is_empty()) {
        "named by EP_CONFIG"
    } else if std::path::absolute("ep.toml").is_ok_and(|here| here == path) {
        "ep.toml of the current folder"
    } else if path == Path::new("/etc/ep/ep.toml") {
        "the system's"
    } else {
        "the user's"
    }
}

/// The variables that are set and matter, as `NAME=value`.
pub fn environment() -> Vec<String> {
    let matters = |name: &str| name.starts_with("EP_") || OTHERS.contains(&name);
    let set = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let set: BTreeMap<String, String> = set.filter(|(name, _)| matters(name)).collect();
    set.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// The architecture, the CPUs that this process may use, and the extensions of their instruction set.
pub fn cpu() -> String {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let arch = std::env::consts::ARCH;
    let Some(features) = manifest::cpu_features() else { return format!("{arch}, {count} CPUs") };
    let there = EXTENSIONS.iter().filter(|e| features.iter().any(|f| f == *e));
    let there: Vec<&str> = there.copied().collect();
    format!(
        "{arch}, {count} CPUs, {}",
        if there.is_empty() { "no extensions".to_owned() } else { there.join(" ") }
    )
}

/// Providers that say the same id from different files: a host takes the first of them.
pub fn duplicates(rows: &[Row]) -> Vec<String> {
    let file = |row: &Row| std::fs::canonicalize(&row.path).unwrap_or_else(|_| PathBuf::from(&row.path));
    let works: Vec<_> = rows.iter().filter(|row| row.state == State::Ok).collect();
    let mut found = Vec::new();
    for (i, row) in works.iter().enumerate() {
        let Some((id, _)) = &row.id else { continue };
        let same =
            |other: &&&Row| other.id.as_ref().is_some_and(|(o, _)| o == id) && file(other) != file(row);
        if let Some(first) = works[..i].iter().find(same) {
            found.push(format!(
                "`{}` and `{}` are the same provider, `{id}`, from two files: a host refuses the second, {}; remove one of \
                 them",
                first.provider, row.provider, row.path
            ));
        }
    }
    found
}

/// Rules of `[select]` for ops that no provider knows.
pub fn rules(rows: &[Row]) -> Vec<String> {
    let mut said = rows.iter().filter_map(|row| row.warnings.as_ref());
    let Some(first) = said.next() else { return Vec::new() };
    let rest: Vec<_> = said.collect();
    first.iter().filter(|warning| rest.iter().all(|other| other.contains(warning))).cloned().collect()
}

/// Whether `[select]` names instances that there are; no host starts where it does not.
pub fn select(mut config: Config, all: &Discovery) -> Result<(), Failure> {
    let named = config.providers.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    let found = all.candidates.iter().map(|c| c.settings.clone()).filter(|s| !named.contains(&s.name));
    config.providers.extend(found);
    config.search = Search::default();
    // Known by name, and none of them loaded here.
    config.providers.iter_mut().for_each(|p| p.enabled = false);
    Runtime::builder().config(config).threads(1).load()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, path: &str, warnings: Option<&[&str]>) -> Row {
        Row {
            provider: name.into(),
            path: path.into(),
            state: State::Ok,
            step: None,
            reason: String::new(),
            advice: None,
            devices: Vec::new(),
            seconds: 0.0,
            required: false,
            id: Some(("acme".into(), "1".into())),
            warnings: warnings.map(|w| w.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn two_files_of_one_provider_are_told_and_one_file_under_two_names_is_not() {
        let rows = [row("a", "/1/x.so", None), row("b", "/1/x.so", None), row("c", "/2/x.so", None)];
        let found = duplicates(&rows);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("`a` and `c`") && found[0].contains("/2/x.so"), "{found:?}");
    }

    #[test]
    fn a_rule_that_one_provider_knows_is_none_for_an_unknown_op() {
        let rows = [row("a", "a", Some(&["x", "y"])), row("b", "b", None), row("c", "c", Some(&["y"]))];
        assert_eq!(rules(&rows), ["y"]);
        assert!(rules(&rows[1..2]).is_empty());
    }
}
