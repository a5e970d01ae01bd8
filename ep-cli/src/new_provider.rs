//! `ep new-provider`.

use crate::failure::{Exit, Failure};
use crate::output::{Out, Style};
use clap::Args;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  ep new-provider acme                   writes ./acme
  ep new-provider acme --dir /work       writes /work/acme
  ep new-provider acme --ep-core vendor/ep-core-0.1.0
                                         against an unpacked package";

/// Writes a crate with a new provider in Rust
///
/// It builds as it is: a device, its streams and memory, one primitive, a manifest, a config, and a test that runs
/// the conformance kit. docs/writing-a-provider.md goes on from there.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct NewProvider {
    /// The provider's id, and the crate's name: a lower-case letter, then lower-case letters, digits, `-` and `_`
    name: String,
    /// The folder in which the crate's folder is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The folder of the `ep-core` crate to build against [default: in the checkout that built this program]
    #[arg(long, value_name = "PATH")]
    ep_core: Option<PathBuf>,
}

/// Of the skeleton, as it is built and tested: where it goes in the new crate, and its text.
const SKELETON: [(&str, &str); 7] = [
    ("src/lib.rs", include_str!("../../plugins/null/src/lib.rs")),
    ("src/device.rs", include_str!("../../plugins/null/src/device.rs")),
    ("src/memory.rs", include_str!("../../plugins/null/src/memory.rs")),
    ("src/relu.rs", include_str!("../../plugins/null/src/relu.rs")),
    ("src/stream.rs", include_str!("../../plugins/null/src/stream.rs")),
    ("tests/conformance.rs", include_str!("../../plugins/null/tests/conformance.rs")),
    ("libCRATE.ep.toml", include_str!("../../plugins/null/libep_null.ep.toml")),
];

/// Where the checkout that this program was built from has the contract.
const OWN_EP_CORE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ep-core");

/// Names that Cargo or the compiler would refuse, or that clash with a dependency.
#[rustfmt::skip]
const RESERVED: [&str; 60] = [
    "abstract", "alloc", "as", "async", "await", "become", "box", "break", "build", "const", "continue", "core",
    "crate", "deps", "do", "dyn", "else", "enum", "ep-core", "ep_core", "examples", "extern", "false", "final", "fn",
    "for", "gen", "if", "impl", "in", "incremental", "let", "loop", "macro", "match", "mod", "move", "mut",
    "override", "priv", "proc_macro", "pub", "ref", "return", "self", "static", "std", "struct", "super", "test",
    "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where",
];

/// The forms of a provider's name.
struct Name<'a> {
    /// As given: `acme-npu`.
    id: &'a str,
    /// As the compiler names the crate: `acme_npu`.
    library: String,
    /// As its types begin: `AcmeNpu`.
    types: String,
}

impl<'a> Name<'a> {
    fn new(id: &'a str) -> Result<Name<'a>, Failure> {
        let refuse =
            |why: &str| Err(Failure::new(Exit::Usage, format!("the name `{id}` cannot be used: {why}")));
        let letter = |c: char| c.is_ascii_lowercase();
        if !id.starts_with(letter) || !id.chars().all(|c| letter(c) || c.is_ascii_digit() || "-_".contains(c))
        {
            return refuse(
                "it must be a lower-case letter, then lower-case letters, digits, `-` and `_`, as in `acme`",
            );
        }
        if id.len() > 64 {
            return refuse("it has more than 64 characters; choose a shorter one");
        }
        if RESERVED.contains(&id) {
            return refuse("it means something else to Rust or Cargo; choose another, as in `acme`");
        }
        let capitalised = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
        let types = id.split(['-', '_']).filter(|word| !word.is_empty()).map(capitalised).collect();
        Ok(Name { id, library: id.replace('-', "_"), types })
    }

    /// The skeleton's text as that of this provider.
    fn adapt(&self, text: &str) -> String {
        let mut lines = Vec::new();
        let mut rest = text.lines();
        while let Some(line) = rest.next() {
            match line.trim() {
                r#"#[cfg(feature = "example")]"# => {}
                // Of the skeleton alone, with the statement that it is for.
                r#"#[cfg(not(feature = "example"))]"# => drop(rest.next()),
                _ => lines.push(line),
            }
        }
        let quoted = |id: &str| format!("\"{id}\"");
        (lines.join("\n") + "\n")
            .replace("ep_null", &self.library)
            .replace("Null", &self.types)
            .replace(&quoted("null"), &quoted(self.id))
    }

    fn cargo_toml(&self, ep_core: &str) -> String {
        let (id, rust) = (self.id, env!("CARGO_PKG_RUST_VERSION"));
        let ep_core = toml::Value::String(ep_core.to_owned());
        format!(
            r#"[package]
name = "{id}"
description = "An execution provider"
version = "0.1.0"
edition = "2024"
rust-version = "{rust}"
publish = false

[lib]
# `cdylib` is the plugin; `rlib` makes `cargo test` build it, and lets a program link the provider.
crate-type = ["cdylib", "rlib"]

[dependencies]
ep-core = {{ path = {ep_core} }}
tracing = {{ version = "0.1", default-features = false, features = ["std"] }}

[lints.rust]
unsafe_op_in_unsafe_fn = "deny"

[lints.clippy]
undocumented_unsafe_blocks = "deny"

# A workspace of its own, also where a folder above is one.
[workspace]
"#
        )
    }

    fn ep_toml(&self) -> String {
        let Name { id, library, .. } = self;
        let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        format!(
            "# For trying the provider out in this folder: `cargo build`, then `ep list`. If CARGO_TARGET_DIR is set, write\n\
             # that folder in place of `target`.\n\
             [[provider]]\n\
             name = \"{id}\"\n\
             path = \"target/debug/{prefix}{library}{suffix}\"\n\
             # [provider.options]\n\
             # memory_mib = 64\n"
        )
    }

    /// Every file of the crate, by its path in it.
    fn files(&self, ep_core: &str) -> Vec<(String, String)> {
        let readme = include_str!("new_provider/README.md");
        let own = [
            (".gitignore", "/target/\n".to_owned()),
            ("Cargo.toml", self.cargo_toml(ep_core)),
            ("README.md", readme.replace("NAME", self.id).replace("CRATE", &self.library)),
            ("ep.toml", self.ep_toml()),
        ];
        let skeleton = SKELETON.iter().map(|(path, text)| (*path, self.adapt(text)));
        let named = |(path, text): (&str, String)| (path.replace("CRATE", &self.library), text);
        own.into_iter().chain(skeleton).map(named).collect()
    }
}

impl NewProvider {
    /// Runs it.
    pub fn run(&self, out: &mut Out) -> Result<(), Failure> {
        let name = Name::new(&self.name)?;
        let ep_core = find_ep_core(self.ep_core.as_deref())?;
        let folder = self.dir.join(name.id);
        std::fs::create_dir(&folder).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::general(format!(
                "{} exists, and nothing is overwritten; choose another name, or another folder with --dir",
                folder.display()
            )),
            std::io::ErrorKind::NotFound => Failure::general(format!(
                "the folder {} does not exist; make it, or name another with --dir",
                self.dir.display()
            )),
            _ => Failure::general(format!("cannot make the folder {}: {e}", folder.display())),
        })?;
        for (path, text) in name.files(&ep_core) {
            let path = folder.join(path);
            write(&path, &text).map_err(|e| {
                Failure::general(format!(
                    "cannot write {}: {e}; remove {} before the next try",
                    path.display(),
                    folder.display()
                ))
            })?;
            out.line(format!("{}  {}", out.paint(Style::Good, "wrote"), path.display()))?;
        }
        out.line(format!("next: cd {}, cargo build, ep list, ep query; README.md goes on", folder.display()))
    }
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    std::fs::write(path, text)
}

/// The absolute path of the `ep-core` crate.
fn find_ep_core(given: Option<&Path>) -> Result<String, Failure> {
    let folder = given.unwrap_or(Path::new(OWN_EP_CORE));
    let (exit, advice) = match given {
        Some(_) => (Exit::Usage, "--ep-core must name the folder of the crate ep-core, with its Cargo.toml"),
        None => (
            Exit::General,
            "the checkout that built this program is gone; name the crate ep-core of another with --ep-core",
        ),
    };
    let fail = |why: String| Failure::new(exit, format!("{}: {why}; {advice}", folder.display()));
    let text = std::fs::read_to_string(folder.join("Cargo.toml"))
        .map_err(|e| fail(format!("no Cargo.toml: {e}")))?;
    let manifest: toml::Table =
        toml::from_str(&text).map_err(|e| fail(format!("Cargo.toml: {}", e.message())))?;
    let package = manifest.get("package").and_then(|p| p.get("name")).and_then(toml::Value::as_str);
    if package != Some("ep-core") {
        return Err(fail(format!(
            "Cargo.toml is of {}",
            package.map_or("no package".into(), |p| format!("`{p}`"))
        )));
    }
    let absolute = std::fs::canonicalize(folder).map_err(|e| fail(e.to_string()))?;
    absolute
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| fail("the path is not UTF-8, which Cargo.toml has to be".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_three_forms() {
        for (id, library, types) in
            [("acme", "acme", "Acme"), ("acme-npu_v2", "acme_npu_v2", "AcmeNpuV2"), ("x--y_", "x__y_", "XY")]
        {
            let name = Name::new(id).map_err(|f| f.message).unwrap();
            assert_eq!((name.library.as_str(), name.types.as_str()), (library, types));
        }
    }

    #[test]
    fn bad_names_are_refused_with_the_rule() {
        let long = "a".repeat(65);
        for (id, said) in [
            ("", "lower-case letter"),
            ("Acme", "lower-case letter"),
            ("9acme", "lower-case letter"),
            ("-acme", "lower-case letter"),
            ("acme.npu", "lower-case letter"),
            ("../acme", "lower-case letter"),
            ("acm\u{e9}", "lower-case letter"),
            (&long, "64 characters"),
            ("fn", "means something else"),
            ("ep-core", "means something else"),
        ] {
            let failure = Name::new(id).err().unwrap_or_else(|| panic!("`{id}` is refused"));
            assert!(
                failure.exit == Exit::Usage && failure.message.contains(said),
                "{id}: {}",
                failure.message
            );
        }
        assert!(RESERVED.is_sorted());
    }

    #[test]
    fn nothing_of_the_skeleton_s_name_is_left() {
        let name = Name::new("acme-npu").map_err(|f| f.message).unwrap();
        let files = name.files("/a \"quoted\"\\ path");
        for (path, text) in &files {
            for word in ["null", "example\"", "CRATE", "NAME\n"] {
                assert!(
                    !path.contains(word) && !text.to_lowercase().contains(word),
                    "{path} has `{word}`:\n{text}"
                );
            }
        }
        let text =
            |path: &str| &files.iter().find(|(p, _)| p == path).unwrap_or_else(|| panic!("no {path}")).1;
        assert!(text("src/lib.rs").contains("\n        relu::register(registrar)?;\n"));
        assert!(text("src/lib.rs").contains("\nep_core::export_provider!(AcmeNpuProvider);\n"));
        assert!(!text("tests/conformance.rs").contains("allow-empty"));
        let manifest: toml::Table = toml::from_str(text("libacme_npu.ep.toml")).unwrap();
        assert_eq!(manifest["name"].as_str(), Some("acme-npu"));
        let cargo: toml::Table = toml::from_str(text("Cargo.toml")).unwrap();
        assert_eq!(cargo["dependencies"]["ep-core"]["path"].as_str(), Some("/a \"quoted\"\\ path"));
        assert!(cargo.contains_key("workspace") && cargo["dependencies"]["ep-core"].get("version").is_none());
    }
}
