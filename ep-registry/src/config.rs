//! `ep.toml`: which providers to load and how.
//!
//! ```toml
//! [[provider]]
//! name = "cpu"                     # the instance; rules and reports use it
//! path = "lib/libep_cpu.so"        # relative to the folder of this file
//! sha256 = "9f86d081884c7d65..."   # optional: load these bytes only
//! devices = ["cpu:0"]              # optional: globs over `kind:index`, or an index; all by default
//! priority = 10                    # optional, 0 by default; the highest wins
//! required = true                  # optional: without this provider nothing starts
//! enabled = true                   # optional: false skips it
//! [provider.options]               # optional: handed to the provider as text
//! cache_bytes = 1048576
//!
//! [select]                         # the order of instances, per op or for all
//! softmax = ["onednn", "cpu"]
//! "*" = ["cpu"]
//!
//! [search]                         # folders to look for more providers in
//! dirs = ["providers.d"]
//! allow = ["libep_*"]
//! deny = ["*debug*"]
//!
//! [runtime]
//! threads = 8                      # of the shared pool; one per core by default
//! strict_layout = false            # refuse what `abi_stable` finds different (hosts built with it)
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ep_core::{Error, Result};
use glob::Pattern;

use crate::document::{self, At, Document, Table};
use crate::platform;
use crate::pool::MAX_THREADS;
use crate::trust::{Digest, Policy};

/// What `ep.toml` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The file it came from; `None` for text.
    pub file: Option<PathBuf>,
    /// The providers in the order of the file, disabled ones included; names are unique.
    pub providers: Vec<ProviderConfig>,
    /// Instance names in order of preference, by op name; `"*"` is for all other ops.
    pub select: BTreeMap<String, Vec<String>>,
    /// Where to look for more providers.
    pub search: Search,
    /// Threads of the shared pool; `None` for one per core.
    pub threads: Option<NonZeroUsize>,
    /// Whether a provider whose types `abi_stable` finds different is refused, though its fingerprints fit.
    pub strict_layout: bool,
    pub(crate) source: Source,
}

/// What a config was read from, for messages about what only a runtime can judge. No part of what it says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source(Option<Arc<Text>>);

#[derive(Debug)]
struct Text {
    label: String,
    text: String,
}

impl PartialEq for Source {
    fn eq(&self, _: &Source) -> bool {
        true
    }
}

impl Source {
    /// A message about a rule of `[select]`, with its place where it is of a text.
    pub(crate) fn at_op(&self, op: &str, message: String) -> String {
        self.in_select(op, |document, rule| document.remark(rule.key.span.start, &message)).unwrap_or(message)
    }

    /// The same about an instance in such a rule, with the line's text.
    pub(crate) fn at_instance(&self, op: &str, instance: &str, message: String) -> String {
        let place = |document: &Document<'_>, rule: &document::Entry<Vec<At<String>>>| {
            let name = rule.value.iter().find(|name| name.value == instance)?;
            Some(document.error(name.span.clone(), &message).message().to_owned())
        };
        self.in_select(op, place).flatten().unwrap_or(message)
    }

    /// Reads the text once more, which is for the rare message only.
    fn in_select<R>(
        &self,
        op: &str,
        f: impl FnOnce(&Document<'_>, &document::Entry<Vec<At<String>>>) -> R,
    ) -> Option<R> {
        let source = self.0.as_ref()?;
        let document = Document { label: source.label.clone(), text: &source.text };
        let rules = document.parse(TOP, |top| top.lists("select")).ok()?;
        rules.iter().find(|rule| rule.key.value == op).map(|rule| f(&document, rule))
    }
}

/// One `[[provider]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderConfig {
    /// The instance name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// The library; absolute.
    pub path: PathBuf,
    /// The only content to load, where given.
    pub sha256: Option<Digest>,
    /// The devices to use; empty for all. See [`ProviderConfig::selects_device`].
    pub devices: Vec<Pattern>,
    /// Among providers that could run a request, the highest wins.
    pub priority: i32,
    /// Whether a failure to load it is an error of the whole.
    pub required: bool,
    /// Whether to load it.
    pub enabled: bool,
    /// Handed to the provider, as text.
    pub options: BTreeMap<String, String>,
}

/// `[search]`. A pattern with a `/` is matched against the whole path of a file, which is absolute, any other
/// against its name. The folder before a pattern's first wildcard may be spelled with `..` and go through links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Search {
    /// Folders in order; absolute.
    pub dirs: Vec<PathBuf>,
    /// Where not empty, only files that match one of these are considered: by their real path, without links.
    pub allow: Vec<Pattern>,
    /// Files that match one of these are not considered, allowed or not: by their real path or by the one that
    /// they are found at.
    pub deny: Vec<Pattern>,
}

/// What starts a part of a glob that stands for more than itself.
const WILDCARDS: [char; 3] = ['*', '?', '['];
const TOP: &[&str] = &["provider", "select", "search", "runtime"];
const PROVIDER: &[&str] =
    &["name", "path", "sha256", "devices", "priority", "required", "enabled", "options"];

impl ProviderConfig {
    /// The settings of a provider that no `[[provider]]` mentions: all devices, priority 0, no options.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> ProviderConfig {
        ProviderConfig {
            name: name.into(),
            path: path.into(),
            sha256: None,
            devices: Vec::new(),
            priority: 0,
            required: false,
            enabled: true,
            options: BTreeMap::new(),
        }
    }

    /// Whether the device `kind:index` is to be used: one of the patterns is the index, or matches
    /// `kind:index`, or there is no pattern.
    pub fn selects_device(&self, kind: &str, index: usize) -> bool {
        let (full, index) = (format!("{kind}:{index}"), index.to_string());
        self.devices.is_empty()
            || self.devices.iter().any(|pattern| pattern.as_str() == index || pattern.matches(&full))
    }

    fn read(table: &Table<'_, '_>, base: &Path) -> Result<(At<String>, ProviderConfig)> {
        let name = table.string("name")?.ok_or_else(|| table.missing("name"))?;
        if let Some(wrong) = name_problem(&name.value) {
            return Err(table.wrong(&name, wrong));
        }
        let path = table.string("path")?.ok_or_else(|| table.missing("path"))?;
        let sha256 = match table.string("sha256")? {
            Some(text) => Some(text.value.parse().map_err(|e: Error| table.wrong(&text, e.message()))?),
            None => None,
        };
        let flag = |key, default| Ok::<_, Error>(table.boolean(key)?.map_or(default, |at| at.value));
        let priority = table.integer("priority", i64::from(i32::MIN)..i64::from(i32::MAX) + 1)?;
        let config = ProviderConfig {
            name: name.value.clone(),
            path: absolute(table, base, &path)?,
            sha256,
            devices: patterns(table, "devices", None)?,
            priority: priority.map_or(0, |at| at.value as i32),
            required: flag("required", false)?,
            enabled: flag("enabled", true)?,
            options: table
                .scalars("options")?
                .into_iter()
                .map(|entry| (entry.key.value, entry.value))
                .collect(),
        };
        Ok((name, config))
    }
}

impl Search {
    /// `None` where a file is to be considered, else why not.
    pub fn excludes(&self, path: &Path) -> Option<String> {
        // What cannot be resolved cannot be loaded either.
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let link = if real == path { String::new() } else { format!(", and this is {}", real.display()) };
        let denies = |pattern: &&Pattern| names(pattern, path) || names(pattern, &real);
        if let Some(pattern) = self.deny.iter().find(denies) {
            let link = if names(pattern, path) { "" } else { &link };
            return Some(format!("[search] deny has `{pattern}`{link}"));
        }
        if !self.allow.is_empty() && !self.allow.iter().any(|pattern| names(pattern, &real)) {
            let allow: Vec<String> = self.allow.iter().map(|pattern| format!("`{pattern}`")).collect();
            return Some(format!("[search] allow has only {}{link}", allow.join(", ")));
        }
        None
    }

    fn read(table: &Table<'_, '_>, base: &Path) -> Result<Search> {
        let dirs = table.strings("dirs")?;
        Ok(Search {
            dirs: dirs.iter().map(|dir| absolute(table, base, dir)).collect::<Result<_>>()?,
            allow: patterns(table, "allow", Some(base))?,
            deny: patterns(table, "deny", Some(base))?,
        })
    }
}

/// Whether a pattern of `[search]` is about a file at this path.
fn names(pattern: &Pattern, path: &Path) -> bool {
    if !pattern.as_str().contains('/') {
        return pattern.matches(&path.file_name().unwrap_or_default().to_string_lossy());
    }
    let whole = path.to_string_lossy();
    pattern.matches(&whole) || resolved(pattern).is_some_and(|pattern| pattern.matches(&whole))
}

/// The pattern with the real path in place of what comes before its first wildcard: the folder, or all of it
/// where there is no wildcard. `None` where that does not exist.
fn resolved(pattern: &Pattern) -> Option<Pattern> {
    let text = pattern.as_str();
    let literal = match text.find(WILDCARDS) {
        Some(at) => text[..at].rfind('/')? + 1,
        None => text.len(),
    };
    let real = std::fs::canonicalize(&text[..literal]).ok()?;
    let mut path = Pattern::escape(&real.to_string_lossy());
    if literal < text.len() {
        if !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(&text[literal..]);
    }
    Pattern::new(&path).ok()
}

impl Config {
    /// Reads a config file, which must be trusted as a provider must (it says what is loaded): see
    /// [`Policy`].
    ///
    /// # Errors
    /// `NotFound`; `Refused` where it is not trusted; `InvalidArgument` with file, line and column for
    /// everything wrong in it.
    pub fn from_file(path: &Path) -> Result<Config> {
        Self::from_file_with(path, &Policy::default())
    }

    /// [`Config::from_file`] under another policy.
    ///
    /// # Errors
    /// Those of [`Config::from_file`].
    pub fn from_file_with(path: &Path, policy: &Policy) -> Result<Config> {
        let path = make_absolute(path)?;
        if !path.try_exists().unwrap_or(true) {
            return Err(Error::not_found(format!(
                "{0}: there is no such config; correct the path, or write one with `ep init --output {0}`",
                path.display()
            )));
        }
        let trusted = policy.open(&path, None)?;
        let text = document::read(trusted.file(), &path)?;
        let base = path.parent().unwrap_or(Path::new("/"));
        let document = Document { label: path.display().to_string(), text: &text };
        Ok(Config { file: Some(path.clone()), ..Self::read(&document, base)? })
    }

    /// Reads the text of a config, with relative paths taken from `base_dir`.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong text or a `base_dir` that is not absolute.
    pub fn from_str(text: &str, base_dir: &Path) -> Result<Config> {
        if !base_dir.is_absolute() {
            return Err(Error::invalid(format!(
                "the folder `{}` that paths are relative to is itself relative; give an absolute one",
                base_dir.display()
            )));
        }
        Self::read(&Document { label: "config".to_owned(), text }, base_dir)
    }

    fn read(document: &Document<'_>, base: &Path) -> Result<Config> {
        document.parse(TOP, |top| {
            let mut providers: Vec<ProviderConfig> = Vec::new();
            top.tables("provider", PROVIDER, |table| {
                let (name, config) = ProviderConfig::read(table, base)?;
                if providers.iter().any(|earlier| earlier.name == config.name) {
                    let message = format!("a second provider is called `{}`; give each a name of its own (the same path may be listed twice)", config.name);
                    return Err(table.wrong(&name, &message));
                }
                providers.push(config);
                Ok(())
            })?;
            let mut select = BTreeMap::new();
            for rule in top.lists("select")? {
                select.insert(rule.key.value.clone(), order(top, &rule.key, rule.value)?);
            }
            let search = top.table("search", &["dirs", "allow", "deny"], |table| Search::read(table, base))?;
            let runtime = top.table("runtime", &["threads", "strict_layout"], |table| {
                let threads = table.integer("threads", 1..1 + MAX_THREADS as i64)?;
                let strict = table.boolean("strict_layout")?;
                Ok((threads.and_then(|at| usize::try_from(at.value).ok()), strict.is_some_and(|at| at.value)))
            })?;
            let (threads, strict_layout) = runtime.unwrap_or_default();
            Ok(Config {
                file: None,
                providers,
                select,
                search: search.unwrap_or_default(),
                threads: threads.and_then(NonZeroUsize::new),
                strict_layout,
                source: Source(Some(Arc::new(Text {
                    label: document.label.clone(),
                    text: document.text.to_owned(),
                }))),
            })
        })
    }

    /// Finds the config to use: `explicit`, else the variable `EP_CONFIG`, else `ep.toml` in the current
    /// folder where `use_cwd` asks for it, else `ep/ep.toml` in the user's config folder
    /// (`$XDG_CONFIG_HOME`, else `~/.config`), else `/etc/ep/ep.toml`. `None` where there is none.
    /// A process with more rights than its user reads no variable, and so no user config.
    ///
    /// # Errors
    /// `NotFound` where `explicit` or `EP_CONFIG` names no file.
    pub fn find(explicit: Option<&Path>, use_cwd: bool) -> Result<Option<PathBuf>> {
        Self::find_with(explicit, use_cwd, &platform::env_var, Path::new("/etc/ep/ep.toml"))
    }

    fn find_with(
        explicit: Option<&Path>,
        use_cwd: bool,
        var: &dyn Fn(&str) -> Option<OsString>,
        system: &Path,
    ) -> Result<Option<PathBuf>> {
        let from_env = var("EP_CONFIG").map(PathBuf::from);
        let named = explicit.map(|path| (path.to_owned(), "was asked for"));
        if let Some((path, why)) = named.or(from_env.map(|path| (path, "is named by EP_CONFIG"))) {
            let path = make_absolute(&path)?;
            return if path.try_exists().unwrap_or(true) {
                Ok(Some(path))
            } else {
                Err(Error::not_found(format!(
                    "the config {0} {why}, but does not exist; correct the path, or write the file with `ep init \
                     --output {0}`",
                    path.display()
                )))
            };
        }
        let user = absolute_var(var, "XDG_CONFIG_HOME")
            .or_else(|| absolute_var(var, "HOME").map(|home| home.join(".config")));
        let places = [
            if use_cwd { Some(make_absolute(Path::new("ep.toml"))?) } else { None },
            user.map(|dir| dir.join("ep/ep.toml")),
            Some(system.to_owned()),
        ];
        Ok(places.into_iter().flatten().find(|path| path.exists()))
    }
}

fn absolute_var(var: &dyn Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    var(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn make_absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| Error::invalid(format!("`{}` is no usable path: {error}", path.display())))
}

/// What is wrong with an instance name, if anything is.
pub(crate) fn name_problem(name: &str) -> Option<&'static str> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() {
        Some("the name is empty")
    } else if !name.chars().all(fine) {
        Some("a name consists of ASCII letters, digits, `_`, `-` and `.`")
    } else {
        None
    }
}

fn absolute(table: &Table<'_, '_>, base: &Path, path: &At<String>) -> Result<PathBuf> {
    if path.value.is_empty() || path.value.contains('\0') {
        return Err(table.wrong(path, "a path has at least one character and no NUL"));
    }
    make_absolute(&base.join(&path.value)).map_err(|error| table.wrong(path, error.message()))
}

/// Globs. Those that are relative paths are taken from the folder `base`, where there is one.
fn patterns(table: &Table<'_, '_>, key: &str, base: Option<&Path>) -> Result<Vec<Pattern>> {
    let parse = |text: &At<String>, pattern: &str| {
        Pattern::new(pattern).map_err(|error| {
            let message = format!("`{pattern}` is no glob: {} at character {}", error.msg, error.pos + 1);
            table.wrong(text, &message)
        })
    };
    let one = |text: At<String>| {
        let pattern = parse(&text, &text.value)?;
        let relative = text.value.contains('/') && !text.value.starts_with('/');
        match base.filter(|_| relative && !text.value.starts_with(WILDCARDS)) {
            Some(base) => {
                let base = Pattern::escape(&base.to_string_lossy());
                parse(&text, &format!("{}/{}", base.trim_end_matches('/'), text.value))
            }
            None => Ok(pattern),
        }
    };
    table.strings(key)?.into_iter().map(one).collect()
}

fn order(table: &Table<'_, '_>, op: &At<String>, names: Vec<At<String>>) -> Result<Vec<String>> {
    if names.is_empty() {
        let message = format!("`{}` lists no provider; name at least one, or remove the line", op.value);
        return Err(table.wrong(op, &message));
    }
    let mut order: Vec<String> = Vec::new();
    for name in names {
        if let Some(wrong) = name_problem(&name.value) {
            return Err(table.wrong(&name, wrong));
        }
        if order.contains(&name.value) {
            return Err(table.wrong(&name, &format!("`{}` is listed twice", name.value)));
        }
        order.push(name.value);
    }
    Ok(order)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
