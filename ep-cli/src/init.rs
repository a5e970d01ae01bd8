//! `ep init`.

use crate::failure::{Exit, Failure};
use crate::output::{Out, Style};
use clap::Args;
use ep_registry::elf_check;
use std::collections::BTreeSet;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a commented config with the providers that stand beside this program
///
/// Takes every library there that exports the entry point of a provider, and says which those are. Nothing is
/// loaded. Exit code 3, and no file, when there is none.
#[derive(Args)]
pub struct Init {
    /// The file to write [default: that of --config, else ep.toml]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
}

/// A library that can be a provider.
struct Found {
    name: String,
    path: PathBuf,
}

impl Init {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let file = self.output.as_deref().or(config).unwrap_or(Path::new("ep.toml"));
        if file.exists() && !self.force {
            return Err(exists(file));
        }
        let dir = own_folder()?;
        let providers = look_in(&dir, out)?;
        if providers.is_empty() {
            return Err(Failure::new(
                Exit::NoProvider,
                format!(
                    "no provider stands beside this program in {}; put one there (in a checkout: `cargo build \
                     --release -p ep-cpu-plugin`), or write a config by hand as docs/configuring.md shows",
                    dir.display()
                ),
            ));
        }
        let text = config_text(&providers, &base_of(file)?)?;
        write(file, &text, self.force)?;
        out.line(format!("wrote {}", file.display()))?;
        let flag = if file == Path::new("ep.toml") {
            String::new()
        } else {
            format!(" --config {}", file.display())
        };
        out.line(format!("next: ep list{flag}"))
    }
}

fn exists(file: &Path) -> Failure {
    Failure::general(format!(
        "{} exists; keep it, name another file with --output, or replace it with --force",
        file.display()
    ))
}

fn own_folder() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().and_then(std::fs::canonicalize);
    let own = own.map_err(|e| Failure::general(format!("cannot find the folder of this program: {e}")))?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_owned())
}

/// The providers in a folder, by name.
fn look_in(dir: &Path, out: &mut Out) -> Result<Vec<Found>, Failure> {
    let listing = std::fs::read_dir(dir)
        .map_err(|e| Failure::general(format!("cannot list the folder {}: {e}", dir.display())))?;
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(DLL_PREFIX) && name.ends_with(DLL_SUFFIX)
    };
    let mut paths: Vec<PathBuf> = listing.filter_map(|e| Some(e.ok()?.path())).filter(is_library).collect();
    paths.sort();
    let mut taken = BTreeSet::new();
    let mut found = Vec::new();
    for path in paths {
        let verdict = elf_check::inspect(&path).and_then(|i| elf_check::judge(&i, &path));
        if path.to_str().is_none() {
            out.line(format!(
                "{}  {}: its name is not UTF-8",
                out.paint(Style::Dim, "skipped"),
                path.display()
            ))?;
        } else if let Err(e) = verdict {
            out.line(format!("{}  {}", out.paint(Style::Dim, "skipped"), e.message()))?;
        } else {
            let mut name = instance_name(&path);
            while !taken.insert(name.clone()) {
                name.push('_');
            }
            out.line(format!(
                "{}    {}: provider `{name}`",
                out.paint(Style::Good, "found"),
                path.display()
            ))?;
            found.push(Found { name, path });
        }
    }
    Ok(found)
}

/// `libep_cpu.so` becomes `cpu`.
fn instance_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_prefix(DLL_PREFIX).unwrap_or(&name);
    let stem = stem.strip_suffix(DLL_SUFFIX).unwrap_or(stem);
    let stem = stem.strip_prefix("ep_").filter(|s| !s.is_empty()).unwrap_or(stem);
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name: String = stem.chars().map(|c| if fine(c) { c } else { '_' }).collect();
    if name.is_empty() { "provider".to_owned() } else { name }
}

/// The folder that paths in the config are relative to, with symbolic links resolved as in [`own_folder`].
fn base_of(file: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(file);
    let base = absolute.and_then(|f| std::fs::canonicalize(f.parent().unwrap_or(Path::new("/"))));
    base.map_err(|e| Failure::general(format!("the folder of {} cannot be used: {e}", file.display())))
}

/// The config; libraries below `base` are named relative to it.
fn config_text(providers: &[Found], base: &Path) -> Result<String, Failure> {
    let mut text = String::from(
        "# Which execution providers to load. Written by `ep init`; docs/configuring.md explains every key.\n\
         # `ep list` shows what became of each, `ep query` what they can do.\n",
    );
    for provider in providers {
        let path = provider.path.strip_prefix(base).unwrap_or(&provider.path);
        let path = path.to_str().ok_or_else(|| Failure::general("a path is not UTF-8"))?;
        let path = toml::Value::String(path.to_owned());
        text.push_str(&format!(
            "\n[[provider]]\n\
             name = \"{}\"              # the instance: rules below and reports use it\n\
             path = {path}    # from the folder of this file, unless absolute\n\
             # devices = [\"cpu:0\"]      # only these; all by default\n\
             # priority = 10            # among providers that could run a request the highest wins; 0 by default\n\
             # required = true          # nothing starts without it; false by default\n\
             # enabled = false          # not loaded; true by default\n\
             # sha256 = \"...\"           # load these bytes only\n\
             # [provider.options]       # handed to the provider\n",
            provider.name
        ));
    }
    let order = toml::Value::Array(providers.iter().map(|p| toml::Value::String(p.name.clone())).collect());
    text.push_str(&format!(
        "\n# Which instance to prefer, by op or for every op without a line of its own.\n\
         # [select]\n\
         # softmax = {order}\n\
         # \"*\" = {order}\n\
         \n# Folders with more providers.\n\
         # [search]\n\
         # dirs = [\"providers.d\"]\n\
         # allow = [\"libep_*\"]\n\
         # deny = [\"*debug*\"]\n\
         \n# Threads that all providers share; one for each CPU by default.\n\
         # [runtime]\n\
         # threads = 8\n"
    ));
    Ok(text)
}

fn write(file: &Path, text: &str, replace: bool) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true);
    if replace {
        options.create(true).truncate(true);
    } else {
        // Fails if the file has come into being since it was looked for.
        options.create_new(true);
    }
    match options.open(file).and_then(|mut f| f.write_all(text.as_bytes())) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Err(exists(file)),
        Err(e) => Err(Failure::general(format!("cannot write {}: {e}", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_registry::config::Config;

    #[test]
    fn names_come_from_files() {
        let cases = [
            ("libep_cpu.so", "cpu"),
            ("libacme npu.so", "acme_npu"),
            ("libep_.so", "ep_"),
            ("lib.so", "provider"),
        ];
        for (file, name) in cases {
            assert_eq!(instance_name(Path::new(file)), name, "{file}");
        }
    }

    #[test]
    fn what_is_written_reads_back_also_with_strange_paths() {
        let base = Path::new("/opt/\"ep\" of\\ us");
        let found = |name: &str, path: &str| Found { name: name.into(), path: path.into() };
        let providers = [found("cpu", "/opt/\"ep\" of\\ us/libep_cpu.so"), found("x", "/else/where/a\nb.so")];
        let text = config_text(&providers, base).unwrap();
        assert!(!text.contains("/opt/"), "{text}");
        let config = Config::from_str(&text, base).unwrap();
        for (read, written) in config.providers.iter().zip(&providers) {
            assert_eq!((&read.name, &read.path), (&written.name, &written.path));
        }
        assert_eq!(config.providers.len(), 2);
        // Every commented line is right as well, once its `#` is gone.
        let keep = |l: &&str| {
            !l.contains("sha256") && !l.starts_with("# W") && !l.starts_with("# `") && !l.ends_with('.')
        };
        let bare: Vec<_> = text.lines().filter(keep).map(|l| l.strip_prefix("# ").unwrap_or(l)).collect();
        let config = Config::from_str(&bare.join("\n"), base).unwrap();
        assert_eq!(config.select["softmax"], ["cpu", "x"]);
        assert_eq!(config.threads.map(usize::from), Some(8));
        assert!(!config.providers[0].enabled && config.search.dirs.len() == 1);
    }
}
