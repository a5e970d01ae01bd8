//! Manifests: what a provider says about itself in a file, so that it can be judged without being loaded.
//!
//! The manifest of `libep_x.so` is `libep_x.ep.toml` in the same folder:
//! ```toml
//! name = "x"                       # the provider's id
//! version = "1.4.0"                # of the provider
//! abi = { min = "0.1", max = "0.1" }
//! arch = "x86_64"                  # optional
//! cpu_features = ["avx2", "fma"]   # optional: needed to load it at all
//! devices = ["cpu"]                # optional: the device kinds it can offer
//! ```
//! A manifest only ever rules a provider out early. What it claims is compared with the loaded library by
//! [`Manifest::verify`], so a wrong one is found.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ep_core::{Error, Result};

use crate::config::name_problem;
use crate::document::{self, Document, Table};
use crate::platform;

/// A version of the ABI: major, minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbiVersion {
    /// 0 until the ABI is declared stable.
    pub major: u32,
    /// Counts additions.
    pub minor: u32,
}

impl fmt::Display for AbiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for AbiVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<AbiVersion> {
        let number = |digits: &str| {
            if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse::<u32>().ok() } else { None }
        };
        let parts = text.split_once('.').and_then(|(major, minor)| number(major).zip(number(minor)));
        match parts {
            Some((major, minor)) => Ok(AbiVersion { major, minor }),
            None => Err(Error::invalid(format!("`{text}` is no ABI version; write one such as \"0.1\""))),
        }
    }
}

/// The content of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The manifest file.
    pub file: PathBuf,
    /// The provider's id.
    pub name: String,
    /// The provider's own version.
    pub version: String,
    /// The lowest ABI version that it works with.
    pub abi_min: AbiVersion,
    /// The highest.
    pub abi_max: AbiVersion,
    /// The machine that it is built for, in the words of `std::env::consts::ARCH`.
    pub arch: Option<String>,
    /// CPU features without which it cannot be loaded.
    pub cpu_features: Vec<String>,
    /// The kinds of devices that it can offer; empty where it does not say.
    pub devices: Vec<String>,
}

/// What a loaded provider turned out to be.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Its id.
    pub name: &'a str,
    /// Its version.
    pub version: &'a str,
    /// The ABI version agreed on.
    pub abi: AbiVersion,
    /// The kinds of the devices it has.
    pub devices: &'a [&'a str],
}

/// The machine and ABI that a manifest is held against.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// The version of the host's ABI.
    pub abi: AbiVersion,
    /// As `std::env::consts::ARCH`.
    pub arch: &'a str,
    /// Features of the CPU; `None` where they are not known, and then not checked.
    pub cpu_features: Option<&'a [String]>,
}

/// One claim of a manifest that the loaded provider contradicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key in the manifest.
    pub field: &'static str,
    /// What the manifest says.
    pub claimed: String,
    /// What the provider says.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the manifest says {} = {}, and the provider says {}", self.field, self.claimed, self.found)
    }
}

const KEYS: &[&str] = &["name", "version", "abi", "arch", "cpu_features", "devices"];

/// Where the manifest of a library would be.
pub fn manifest_path(library: &Path) -> PathBuf {
    library.with_extension("ep.toml")
}

impl Manifest {
    /// Reads the manifest beside a library; `None` where there is none.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed one, `Unavailable` for one that cannot be read.
    pub fn beside(library: &Path) -> Result<Option<Manifest>> {
        let path = manifest_path(library);
        if !path.try_exists().unwrap_or(true) {
            return Ok(None);
        }
        let (file, _) = platform::open_regular(&path)?;
        Self::parse(&document::read(&file, &path)?, &path).map(Some)
    }

    /// Parses the text of the manifest `file`.
    ///
    /// # Errors
    /// `InvalidArgument` with file, line and column.
    pub fn parse(text: &str, file: &Path) -> Result<Manifest> {
        let document = Document { label: file.display().to_string(), text };
        document.parse(KEYS, |top| {
            let required = |key| top.string(key)?.ok_or_else(|| top.missing(key));
            let name = required("name")?;
            if let Some(problem) = name_problem(&name.value) {
                return Err(top.wrong(&name, problem));
            }
            let range = top.table("abi", &["min", "max"], |abi| {
                let min = version(abi, "min")?;
                let max = version(abi, "max")?;
                if max < min { Err(abi.whole("`max` is below `min`")) } else { Ok((min, max)) }
            })?;
            let (abi_min, abi_max) = range.ok_or_else(|| top.missing("abi"))?;
            let texts = |key| Ok::<_, Error>(top.strings(key)?.into_iter().map(|at| at.value).collect());
            Ok(Manifest {
                file: file.to_owned(),
                version: required("version")?.value,
                abi_min,
                abi_max,
                arch: top.string("arch")?.map(|at| at.value),
                cpu_features: texts("cpu_features")?,
                devices: texts("devices")?,
                name: name.value,
            })
        })
    }

    /// Why the provider cannot work on a host, if so.
    pub fn unfit(&self, host: &Host<'_>) -> Option<String> {
        let file = self.file.display();
        if let Some(arch) = self.arch.as_deref().filter(|arch| *arch != host.arch) {
            return Some(format!("{file}: the provider is for {arch}, and this machine is {}", host.arch));
        }
        if host.abi < self.abi_min || host.abi > self.abi_max {
            let advice = if host.abi < self.abi_min { "update this program" } else { "update the provider" };
            return Some(format!(
                "{file}: the provider works with ABI {} to {}, and this program has {}; {advice}",
                self.abi_min, self.abi_max, host.abi
            ));
        }
        let has = |name: &String| {
            host.cpu_features.is_none_or(|have| have.iter().any(|have| plain(have) == kernel_name(name)))
        };
        let missing: Vec<&str> =
            self.cpu_features.iter().filter(|name| !has(name)).map(String::as_str).collect();
        if missing.is_empty() {
            return None;
        }
        Some(format!(
            "{file}: the provider needs CPU features that this machine lacks: {}",
            missing.join(", ")
        ))
    }

    /// Compares the claims with the loaded provider. A device kind that is claimed and not there is no
    /// difference (the hardware may be missing); one that is there and not claimed is.
    pub fn verify(&self, facts: &Facts<'_>) -> Vec<Difference> {
        let mut differences = Vec::new();
        let mut differ = |field, claimed: String, found: String| {
            differences.push(Difference { field, claimed, found });
        };
        if self.name != facts.name {
            differ("name", self.name.clone(), facts.name.to_owned());
        }
        if self.version != facts.version {
            differ("version", self.version.clone(), facts.version.to_owned());
        }
        if facts.abi < self.abi_min || facts.abi > self.abi_max {
            differ("abi", format!("{} to {}", self.abi_min, self.abi_max), facts.abi.to_string());
        }
        let unclaimed = |kind: &&&str| !self.devices.iter().any(|claimed| claimed == **kind);
        if !self.devices.is_empty() && facts.devices.iter().any(|kind| unclaimed(&kind)) {
            differ("devices", self.devices.join(", "), facts.devices.join(", "));
        }
        differences
    }
}

/// The features of this machine's CPU in the words of the kernel; `None` where they cannot be listed.
pub fn cpu_features() -> Option<Vec<String>> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    features_in(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// The list is called `flags` on x86 and `Features` on Arm; the first CPU stands for all.
fn features_in(cpuinfo: &str) -> Option<Vec<String>> {
    let list = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let (_, list) = list.into_iter().find(|(key, _)| matches!(key.trim(), "flags" | "Features"))?;
    Some(list.split_whitespace().map(str::to_owned).collect())
}

/// Without case and separators, in which compilers and kernels differ (`sse4.1`, `sse4_1`).
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// A feature's name in the kernel where compilers call it otherwise.
fn kernel_name(name: &str) -> String {
    let name = plain(name);
    match name.as_str() {
        "sse3" => "pni".to_owned(),
        "lzcnt" => "abm".to_owned(),
        "neon" => "asimd".to_owned(),
        "dotprod" => "asimddp".to_owned(),
        "fp16" => "asimdhp".to_owned(),
        _ => name,
    }
}

fn version(table: &Table<'_, '_>, key: &str) -> Result<AbiVersion> {
    let text = table.string(key)?.ok_or_else(|| table.missing(key))?;
    text.value.parse().map_err(|error: Error| table.wrong(&text, error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "name = \"x\"\nversion = \"1.4.0\"\nabi = { min = \"0.1\", max = \"0.3\" }\narch = \"x86_64\"\ncpu_features = [\"AVX2\", \"sse4.1\", \"lzcnt\"]\ndevices = [\"cpu\", \"npu\"]\n";

    fn manifest() -> Manifest {
        Manifest::parse(TEXT, Path::new("/p/libep_x.ep.toml")).unwrap()
    }

    #[test]
    fn reads_every_field_and_only_needs_the_first_three() {
        let m = manifest();
        assert_eq!((m.name.as_str(), m.version.as_str()), ("x", "1.4.0"));
        assert_eq!((m.abi_min, m.abi_max), ("0.1".parse().unwrap(), "0.3".parse().unwrap()));
        assert_eq!(m.arch.as_deref(), Some("x86_64"));
        assert_eq!(m.devices, ["cpu", "npu"]);
        let short = Manifest::parse(&TEXT[..TEXT.find("arch").unwrap()], Path::new("/m")).unwrap();
        assert_eq!((short.arch, short.cpu_features.len(), short.devices.len()), (None, 0, 0));
        assert_eq!(manifest_path(Path::new("/p/libep_x.so")), Path::new("/p/libep_x.ep.toml"));
    }

    #[test]
    fn errors_name_the_place() {
        for (from, to, needle) in [
            ("version", "verison", "did you mean `version`?"),
            ("\"0.1\"", "\"0.1.2\"", ":3:15: `0.1.2` is no ABI version"),
            ("\"0.1\"", "0.1", "`min` must be a string, and this is a float"),
            ("\"0.3\"", "\"0.0\"", "`max` is below `min`"),
            ("name = \"x\"\n", "", "the top level has no `name`"),
            ("\"x\"", "\"../x\"", "a name consists of"),
            ("\"npu\"]", "7]", "`devices` must be an array of strings, and this is an integer"),
            ("\"1.4.0\"", "\"1.4.0", ":2:"),
        ] {
            let error = Manifest::parse(&TEXT.replacen(from, to, 1), Path::new("/m.ep.toml")).unwrap_err();
            assert!(error.message().contains(needle), "{from} -> {to}: {error}");
            assert!(error.message().starts_with("/m.ep.toml:"), "{error}");
        }
    }

    #[test]
    fn unfit_says_what_is_wrong() {
        let m = manifest();
        let features = features_in("cpu : 0\nflags\t\t: fpu sse4_1 abm avx2\n\nflags: none\n").unwrap();
        let host = Host { abi: "0.2".parse().unwrap(), arch: "x86_64", cpu_features: Some(&features) };
        assert_eq!(m.unfit(&host), None);
        assert!(
            m.unfit(&Host { arch: "aarch64", ..host })
                .unwrap()
                .contains("for x86_64, and this machine is aarch64")
        );
        assert!(
            m.unfit(&Host { abi: "0.0".parse().unwrap(), ..host }).unwrap().contains("update this program")
        );
        assert!(
            m.unfit(&Host { abi: "1.0".parse().unwrap(), ..host }).unwrap().contains("update the provider")
        );
        let unfit = m.unfit(&Host { cpu_features: Some(&features[..2]), ..host }).unwrap();
        assert!(unfit.ends_with("lacks: AVX2, lzcnt"), "{unfit}");
        assert_eq!(m.unfit(&Host { cpu_features: None, ..host }), None);
    }

    #[test]
    fn verify_reports_each_lie_once() {
        let m = manifest();
        let facts = Facts { name: "x", version: "1.4.0", abi: "0.3".parse().unwrap(), devices: &["cpu"] };
        assert_eq!(m.verify(&facts), []);
        let all =
            Facts { name: "y", version: "1.4.1", abi: "0.4".parse().unwrap(), devices: &["cpu", "gpu"] };
        let fields: Vec<&str> = m.verify(&all).iter().map(|d| d.field).collect();
        assert_eq!(fields, ["name", "version", "abi", "devices"]);
        let one = m.verify(&Facts { name: "y", ..facts });
        assert_eq!(one[0].to_string(), "the manifest says name = x, and the provider says y");
    }

    proptest! {
        #[test]
        fn abi_versions_round_trip_and_order(a: (u32, u32), b: (u32, u32)) {
            let v = |(major, minor)| AbiVersion { major, minor };
            prop_assert_eq!(v(a).to_string().parse::<AbiVersion>().unwrap(), v(a));
            prop_assert_eq!(v(a) < v(b), a < b);
        }

        #[test]
        fn no_text_panics(text in "[a-z=\\[\\]\"{}., \n#é\\\\]{0,60}") {
            let _ = Manifest::parse(&text, Path::new("/m"));
            let _ = text.parse::<AbiVersion>();
        }
    }
}
