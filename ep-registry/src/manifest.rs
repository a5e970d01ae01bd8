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
            let Some(have) = host.cpu_features else { return true };
            kernel_name(name, host.arch).is_none_or(|name| have.iter().any(|have| plain(have) == name))
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

/// What compilers call a feature and what the kernel does, where these differ by more than case and separators.
/// Complete for what `rustc -C target-cpu=CPU --print cfg` says of every CPU of these architectures.
const X86: &[(&str, &str)] = &[
    ("apxf", "apx"),
    ("bmi", "bmi1"),
    ("cmpxchg16b", "cx16"),
    ("ermsb", "erms"),
    ("lahfsahf", "lahflm"),
    ("lzcnt", "abm"),
    ("pclmul", "pclmulqdq"),
    ("prfchw", "3dnowprefetch"),
    ("sahf", "lahflm"),
    ("sha", "shani"),
    ("sse3", "pni"),
    ("x87", "fpu"),
];
const ARM: &[(&str, &str)] = &[
    ("crc", "crc32"),
    ("dotprod", "asimddp"),
    ("dpb", "dcpop"),
    ("dpb2", "dcpodp"),
    ("f32mm", "svef32mm"),
    ("f64mm", "svef64mm"),
    ("fhm", "asimdfhm"),
    ("fp16", "asimdhp"),
    ("fp8", "f8cvt"),
    ("fp8dot2", "f8dp2"),
    ("fp8dot4", "f8dp4"),
    ("fp8fma", "f8fma"),
    ("frintts", "frint"),
    ("jsconv", "jscvt"),
    ("lse", "atomics"),
    ("lse2", "uscat"),
    ("neon", "asimd"),
    ("rand", "rng"),
    ("rcpc", "lrcpc"),
    ("rcpc2", "ilrcpc"),
    ("rcpc3", "lrcpc3"),
    ("rdm", "asimdrdm"),
    ("ssvefp8dot2", "smesf8dp2"),
    ("ssvefp8dot4", "smesf8dp4"),
    ("ssvefp8fma", "smesf8fma"),
];

/// What rustc says that CPUs have, and the kernel does not list: of no use to programs, or not told to them.
const UNLISTED: &[&str] = &["kl", "lor", "pan", "pmuv3", "ras", "spe", "vh", "widekl"];

/// A feature's plain name in the kernel; `None` where the kernel says nothing about it.
fn kernel_name(name: &str, arch: &str) -> Option<String> {
    let name = plain(name);
    let names = match arch {
        "x86" | "x86_64" => X86,
        "aarch64" => ARM,
        _ => &[],
    };
    let other = names.iter().find(|(compiler, _)| *compiler == name).map(|(_, kernel)| (*kernel).to_owned());
    if UNLISTED.contains(&&*name) { None } else { Some(other.unwrap_or(name)) }
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

    /// The features among `names` that a CPU with `list` in its `/proc/cpuinfo` is said to lack.
    fn lacking(arch: &str, list: &str, names: &str) -> Option<String> {
        let features = features_in(list).unwrap();
        let host = Host { abi: "0.2".parse().unwrap(), arch, cpu_features: Some(&features) };
        let names = names.split(' ').map(str::to_owned).collect();
        let m = Manifest { arch: None, cpu_features: names, ..manifest() };
        m.unfit(&host).map(|reason| reason.rsplit_once("lacks: ").unwrap().1.to_owned())
    }

    #[test]
    fn what_rustc_says_of_a_cpu_is_found_in_what_the_kernel_does() {
        // A machine's `/proc/cpuinfo`, and the kernel's names for what a Neoverse V1 has by Arm's manual.
        const XEON: &str = "flags\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ss ht syscall nx pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology nonstop_tsc cpuid tsc_known_freq pni pclmulqdq ssse3 fma cx16 pcid sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave avx f16c rdrand hypervisor lahf_lm abm 3dnowprefetch cpuid_fault fsgsbase tsc_adjust bmi1 hle avx2 smep bmi2 erms invpcid rtm avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec xgetbv1 xsaves avx_vnni avx512_bf16 arat avx512vbmi umip avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq rdpid cldemote movdiri movdir64b fsrm serialize tsxldtrk amx_bf16 avx512_fp16 amx_tile amx_int8 arch_capabilities";
        const NEOVERSE: &str = "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng";
        // `rustc -C target-cpu=CPU --print cfg` of x86-64-v4; of sapphirerapids, and names of `target-features`.
        let v4 = "avx avx2 avx512bw avx512cd avx512dq avx512f avx512vl bmi1 bmi2 cmpxchg16b f16c fma fxsr lzcnt movbe popcnt sse sse2 sse3 sse4.1 sse4.2 ssse3 xsave";
        let rapids = "adx aes avx512bf16 avx512bitalg avx512fp16 avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512vpopcntdq avxvnni gfni kl pclmulqdq rdrand rdseed sha vaes vpclmulqdq widekl xsavec xsaveopt xsaves amx-bf16 amx-int8 amx-tile ermsb lahfsahf prfchw rtm x87";
        assert_eq!(lacking("x86_64", XEON, v4), None);
        assert_eq!(lacking("x86_64", XEON, rapids), None);
        // Of neoverse-v1, and one of `target-features`.
        let v1 = "aes bf16 crc dit dotprod dpb dpb2 fcma fhm flagm fp16 i8mm jsconv lor lse neon paca pacg pan pmuv3 rand ras rcpc rcpc2 rdm sha2 sha3 sm4 spe ssbs sve vh lse2";
        assert_eq!(lacking("aarch64", NEOVERSE, v1), None);
        // The kernel's own names.
        assert_eq!(lacking("x86_64", XEON, "cx16 sha_ni 3dnowprefetch lahf_lm pni abm"), None);
        assert_eq!(lacking("aarch64", NEOVERSE, "crc32 atomics asimdrdm lrcpc asimd"), None);
        let old = "flags: fpu fxsr sse sse2 pni";
        let missing = "cmpxchg16b sha prfchw lahfsahf lzcnt";
        assert_eq!(lacking("x86_64", old, missing).unwrap(), missing.replace(' ', ", "));
        assert_eq!(lacking("aarch64", "Features: fp asimd", "crc lse rdm").unwrap(), "crc, lse, rdm");
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
