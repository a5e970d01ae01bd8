//! Which provider files there are to try, in which order, and why others are not tried.
//!
//! First come the `[[provider]]` entries of the config in their order, then the libraries in each folder of
//! `[search] dirs`, sorted by name. Nothing is loaded, and a provider that is listed but not there is still
//! a candidate: the loader reports it as failed. `allow` and `deny` rule over what is found in folders;
//! an entry of its own is switched off by `enabled = false`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ep_core::{Error, Result};

use crate::config::{Config, ProviderConfig, name_problem};
use crate::manifest::{Host, Manifest};
use crate::trust::Policy;

/// A file to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name, path, hash, options and so on; for a found file the defaults.
    pub settings: ProviderConfig,
    /// The folder it was found in; `None` for an entry of the config.
    pub found_in: Option<PathBuf>,
    /// The manifest beside it.
    pub manifest: Option<Manifest>,
}

/// A file or folder that is not tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The instance name, where one is known.
    pub name: Option<String>,
    /// The file or folder.
    pub path: PathBuf,
    /// Why, and what to do where something is wrong.
    pub reason: String,
    /// Whether the config says `required` of it, so that skipping it is an error of the whole.
    pub required: bool,
}

/// The outcome of [`discover`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovery {
    /// In the order to load them.
    pub candidates: Vec<Candidate>,
    /// In the order they were met.
    pub skipped: Vec<Skipped>,
}

/// Lists the candidates of a config. Folders must be trusted under `policy`; files are judged when they are
/// opened.
pub fn discover(config: &Config, host: &Host<'_>, policy: &Policy) -> Discovery {
    let mut search =
        Search { host, discovery: Discovery::default(), names: HashMap::new(), files: HashMap::new() };
    for settings in &config.providers {
        search.listed(settings);
    }
    for dir in &config.search.dirs {
        search.folder(dir, config, policy);
    }
    search.discovery
}

struct Search<'h> {
    host: &'h Host<'h>,
    discovery: Discovery,
    /// The file that has an instance name.
    names: HashMap<String, PathBuf>,
    /// The instance that a file, by its canonical path, was first met as.
    files: HashMap<PathBuf, String>,
}

impl Search<'_> {
    fn skip(&mut self, name: Option<&str>, path: &Path, reason: impl Into<String>, required: bool) {
        let name = name.map(str::to_owned);
        self.discovery.skipped.push(Skipped { name, path: path.to_owned(), reason: reason.into(), required });
    }

    fn listed(&mut self, settings: &ProviderConfig) {
        let (name, path) = (&settings.name, &settings.path);
        // A disabled entry keeps its file and name from being found in a folder.
        self.names.insert(name.clone(), path.clone());
        self.files.entry(canonical(path)).or_insert_with(|| name.clone());
        if !settings.enabled {
            return self.skip(Some(name), path, "disabled by `enabled = false`", false);
        }
        self.judge(settings.clone(), None);
    }

    fn folder(&mut self, dir: &Path, config: &Config, policy: &Policy) {
        let entries = policy.resolve(dir).and_then(|_| files_in(dir));
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.skip(None, dir, error.message(), false),
        };
        for path in entries {
            if let Some(library) = library_of(&path) {
                if !library.exists() {
                    let reason = format!(
                        "a manifest without its library {}; install that or remove this",
                        library.display()
                    );
                    self.skip(None, &path, reason, false);
                }
            } else if path.extension().is_some_and(|ext| ext == std::env::consts::DLL_EXTENSION) {
                self.found(&path, dir, config);
            }
        }
    }

    fn found(&mut self, path: &Path, dir: &Path, config: &Config) {
        if let Some(reason) = config.search.excludes(path) {
            return self.skip(None, path, reason, false);
        }
        if let Some(name) = self.files.get(&canonical(path)) {
            let reason = format!("the same file as `{name}`");
            return self.skip(None, path, reason, false);
        }
        let name = instance_name(path);
        if name_problem(&name).is_some() {
            let reason = format!(
                "`{name}` from its file name is no instance name; rename the file or give it a [[provider]] entry"
            );
            return self.skip(None, path, reason, false);
        }
        if let Some(other) = self.names.get(&name) {
            let reason = format!(
                "the name `{name}` belongs to {}; give this file a [[provider]] entry with another name to load both",
                other.display()
            );
            // Not under the name, which is that of the other in the report too.
            return self.skip(None, path, reason, false);
        }
        self.names.insert(name.clone(), path.to_owned());
        self.files.insert(canonical(path), name.clone());
        self.judge(ProviderConfig::new(name, path), Some(dir.to_owned()));
    }

    /// Lets the manifest rule it out.
    fn judge(&mut self, settings: ProviderConfig, found_in: Option<PathBuf>) {
        match Manifest::beside(&settings.path) {
            Ok(manifest) => match manifest.as_ref().and_then(|manifest| manifest.unfit(self.host)) {
                Some(reason) => self.skip(Some(&settings.name), &settings.path, reason, settings.required),
                None => self.discovery.candidates.push(Candidate { settings, found_in, manifest }),
            },
            Err(error) => self.skip(
                Some(&settings.name),
                &settings.path,
                format!("its manifest is wrong: {}", error.message()),
                settings.required,
            ),
        }
    }
}

/// The files of a folder in byte order of their names, which does not depend on the file system.
fn files_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| {
        Error::unavailable(format!("{}: the folder cannot be listed: {error}", dir.display()))
    };
    let entries = std::fs::read_dir(dir).map_err(failed)?;
    let mut paths =
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The library that a manifest is about; `None` where the path is not that of a manifest.
fn library_of(manifest: &Path) -> Option<PathBuf> {
    let stem = manifest.file_name()?.to_str()?.strip_suffix(".ep.toml")?;
    Some(manifest.with_file_name(format!("{stem}.{}", std::env::consts::DLL_EXTENSION)))
}

/// For telling files apart only; where a path cannot be resolved it stands for itself.
fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The instance name of a found file: `libep_cpu.so` is `cpu`, `libother.so` is `other`.
fn instance_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = stem.strip_prefix(std::env::consts::DLL_PREFIX).unwrap_or(&stem);
    name.strip_prefix("ep_").unwrap_or(name).to_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::manifest::AbiVersion;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const HOST: Host<'static> =
        Host { abi: AbiVersion { major: 0, minor: 1 }, arch: "x86_64", cpu_features: None };

    fn manifest(name: &str, max: &str) -> String {
        format!("name = \"{name}\"\nversion = \"1\"\nabi = {{ min = \"0.0\", max = \"{max}\" }}\n")
    }

    /// A folder with config text, and files of the given names and contents.
    fn run(text: &str, files: &[(&str, &str)]) -> (Discovery, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let config = Config::from_str(text, dir.path()).unwrap();
        (discover(&config, &HOST, &Policy::default()), dir)
    }

    fn names(discovery: &Discovery) -> Vec<&str> {
        discovery.candidates.iter().map(|c| c.settings.name.as_str()).collect()
    }

    fn reason<'d>(discovery: &'d Discovery, file: &str) -> &'d str {
        let mut with = discovery.skipped.iter().filter(|s| s.path.ends_with(file));
        let first = with.next().unwrap_or_else(|| panic!("{file} was not skipped: {discovery:?}"));
        assert!(with.next().is_none(), "{file} is reported twice");
        &first.reason
    }

    #[test]
    fn entries_come_first_in_their_order_then_folders_sorted() {
        let text = "[search]\ndirs = [\"two\", \"one\"]\n[[provider]]\nname = \"z\"\npath = \"gone.so\"\nrequired = true\n[[provider]]\nname = \"b\"\npath = \"gone.so\"\n";
        let (found, dir) = run(
            text,
            &[
                ("one/libep_m.so", ""),
                ("two/b9.so", ""),
                ("two/liba.so", ""),
                ("two/readme.txt", ""),
                ("two/x.so.1", ""),
            ],
        );
        assert_eq!(names(&found), ["z", "b", "b9", "a", "m"]);
        assert_eq!(found.skipped, []);
        assert_eq!(found.candidates[0].found_in, None);
        assert!(found.candidates[0].settings.required);
        assert_eq!(found.candidates[4].found_in.as_deref(), Some(dir.path().join("one").as_path()));
        assert_eq!(found.candidates[4].settings.path, dir.path().join("one/libep_m.so"));
    }

    #[test]
    fn every_skip_has_its_reason() {
        let text = "[search]\ndirs = [\"d\", \"none\"]\nallow = [\"lib*\"]\ndeny = [\"*debug*\", \"/**/d/libbad*\"]\n[[provider]]\nname = \"cpu\"\npath = \"d/libx.so\"\n[[provider]]\nname = \"off\"\npath = \"d/liboff.so\"\nenabled = false\n";
        let (found, _dir) = run(
            text,
            &[
                ("d/libx.so", ""),
                ("d/liboff.so", ""),
                ("d/libep_cpu.so", ""),
                ("d/other.so", ""),
                ("d/lib_debug.so", ""),
                ("d/libbad.so", ""),
                ("d/lib name.so", ""),
                ("d/libold.so", ""),
                ("d/libold.ep.toml", &manifest("old", "0.0")),
                ("d/libtypo.so", ""),
                ("d/libtypo.ep.toml", "nmae = 1"),
                ("d/liborphan.ep.toml", ""),
                ("d/libgood.so", ""),
                ("d/libgood.ep.toml", &manifest("good", "0.1")),
            ],
        );
        assert_eq!(names(&found), ["cpu", "good"]);
        assert_eq!(found.candidates[1].manifest.as_ref().unwrap().name, "good");
        for (file, needle) in [
            ("libx.so", "same file as `cpu`"),
            ("libep_cpu.so", "belongs to"),
            ("other.so", "allow has only `lib*`"),
            ("lib_debug.so", "deny has `*debug*`"),
            ("libbad.so", "deny has `/**/d/libbad*`"),
            ("lib name.so", "no instance name"),
            ("libold.so", "update the provider"),
            ("libtypo.so", "did you mean `name`?"),
            ("liborphan.ep.toml", "without its library"),
            ("none", "does not exist"),
        ] {
            assert!(reason(&found, file).contains(needle), "{file}: {}", reason(&found, file));
        }
        let nameless = found.skipped.iter().find(|s| s.path.ends_with("libep_cpu.so")).unwrap();
        assert_eq!(nameless.name, None, "the other file's candidate would be refused: its name is taken");
        // Once as an entry, once as a file of the folder.
        let off: Vec<&str> = found
            .skipped
            .iter()
            .filter(|s| s.path.ends_with("liboff.so"))
            .map(|s| s.reason.as_str())
            .collect();
        assert_eq!(off, ["disabled by `enabled = false`", "the same file as `off`"]);
    }

    #[test]
    fn the_order_in_a_folder_is_that_of_names() {
        let order = [7, 2, 9, 0, 4, 8, 1, 6, 3, 5];
        let files: Vec<String> = order.iter().map(|n| format!("d/lib{n}.so")).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|file| (file.as_str(), "")).collect();
        let (found, _dir) = run("[search]\ndirs = [\"d\"]", &files);
        assert_eq!(names(&found).concat(), "0123456789");
    }

    #[test]
    fn links_do_not_make_a_second_provider() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/libreal.so"), "").unwrap();
        symlink("libreal.so", dir.path().join("d/libalias.so")).unwrap();
        let config = Config::from_str("[search]\ndirs = [\"d\", \"./d\"]", dir.path()).unwrap();
        let found = discover(&config, &HOST, &Policy::default());
        assert_eq!(names(&found), ["alias"]);
        assert!(found.skipped.iter().all(|s| s.reason == "the same file as `alias`"));
    }

    #[test]
    fn no_spelling_of_a_folder_brings_back_what_is_denied() {
        let dirs = "dirs = [\"d\", \"e/../d\", \"e\"]";
        let text = format!("[search]\n{dirs}\ndeny = [\"d/*debug*\"]\n");
        let (found, dir) = run(&text, &[("d/libdebug.so", ""), ("d/libx.so", ""), ("e/liby.so", "")]);
        assert_eq!(names(&found), ["x", "y"]);
        symlink("../d/libdebug.so", dir.path().join("e/libz.so")).unwrap();
        let config = Config::from_str(&text, dir.path()).unwrap();
        let found = discover(&config, &HOST, &Policy::default());
        assert_eq!(names(&found), ["x", "y"]);
        assert!(reason(&found, "libz.so").contains("d/*debug*`, and this is "));
    }

    #[test]
    fn a_folder_that_everybody_may_write_to_is_not_searched() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/libx.so"), "").unwrap();
        fs::set_permissions(dir.path().join("d"), fs::Permissions::from_mode(0o777)).unwrap();
        let config = Config::from_str("[search]\ndirs = [\"d\"]", dir.path()).unwrap();
        let found = discover(&config, &HOST, &Policy::default());
        assert_eq!(names(&found), [""; 0]);
        assert!(reason(&found, "d").contains("every user may write"));
        assert_eq!(names(&discover(&config, &HOST, &Policy::permissive())), ["x"]);
    }

    #[test]
    fn a_required_provider_that_is_ruled_out_stays_required() {
        let text = "[[provider]]\nname = \"a\"\npath = \"a.so\"\nrequired = true\n";
        let (found, _dir) = run(text, &[("a.so", ""), ("a.ep.toml", &manifest("a", "0.0"))]);
        assert_eq!(names(&found), [""; 0]);
        assert!(found.skipped[0].required);
        assert_eq!(found.skipped[0].name.as_deref(), Some("a"));
    }
}
