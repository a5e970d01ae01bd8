//! What is run: the provider, its units, and which of their cases.

use crate::case::Key;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// What a worker process has to know. The same setup gives the same units and cases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// A provider's file, or a config.
    pub target: PathBuf,
    /// Which provider of a config.
    pub provider: usize,
    /// Begins the name of every unit; tells the providers of one config apart.
    pub prefix: String,
    /// Seed of all content.
    pub seed: u64,
    /// A sample of the cases.
    pub quick: bool,
    /// How many cases of an op the sample has, if two of each combination are fewer.
    pub sample: usize,
    /// Measures large cases that pass.
    pub perf: bool,
    /// A suite of ONNX's node tests, which are run instead of everything else.
    pub onnx: Option<PathBuf>,
    /// Only cases that match.
    pub filter: Filter,
}

/// The usual size of the sample of an op.
pub const SAMPLE: usize = 300;

/// Which units and cases to run; what is not set lets everything through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Filter {
    /// A device: `cpu:0`, or `cpu` for all of its kind.
    pub device: Option<String>,
    /// An op.
    pub op: Option<String>,
    /// A dtype in any role.
    pub dtype: Option<String>,
    /// The name of a case, or a pattern in which `*` stands for any text.
    pub case: Option<String>,
}

/// The parts of the kit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Whether it loads at all.
    Load,
    /// The binary contract.
    Abi,
    /// Streams, events, memory.
    Objects,
    /// What it computes.
    Primitives,
    /// ONNX's node tests.
    Onnx,
    /// What it has to have.
    Require,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Group::Load => "load",
            Group::Abi => "abi",
            Group::Objects => "objects",
            Group::Primitives => "primitives",
            Group::Onnx => "onnx",
            Group::Require => "require",
        })
    }
}

/// Cases that belong together: a check, or all cases of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// `abi/query-twice`, `objects/cpu:0/order`, `primitives/cpu:0/softmax/src=f32,dst=f32`. Of a check, the name of
    /// its case too.
    pub name: String,
    /// The part of the kit.
    pub group: Group,
    /// The device; empty where there is none.
    pub device: String,
    /// The op; empty where there is none.
    pub op: String,
    /// Selectors and their values.
    pub selectors: Vec<(String, String)>,
    /// Roles and their dtypes.
    pub dtypes: Vec<(String, String)>,
}

impl Unit {
    /// A check that belongs to no device.
    pub fn check(setup: &Setup, group: Group, name: &str) -> Unit {
        Unit {
            name: format!("{}{group}/{name}", setup.prefix),
            group,
            device: String::new(),
            op: String::new(),
            selectors: Vec::new(),
            dtypes: Vec::new(),
        }
    }

    /// A check of a device.
    pub fn of_device(setup: &Setup, group: Group, device: &str, name: &str) -> Unit {
        let name = format!("{device}/{name}");
        Unit { device: device.to_owned(), ..Unit::check(setup, group, &name) }
    }

    /// The cases of a key.
    pub fn of_key(setup: &Setup, device: &str, key: &Key) -> Unit {
        let name = format!("{}/{}", key.op, key.slug());
        Unit {
            op: key.op.clone(),
            selectors: key.selectors.clone(),
            dtypes: key.dtypes.iter().map(|(r, d)| (r.clone(), d.to_string())).collect(),
            ..Unit::of_device(setup, Group::Primitives, device, &name)
        }
    }
}

impl Filter {
    /// Whether a unit may have cases that are run.
    pub fn lets(&self, unit: &Unit) -> bool {
        let device = self.device.as_ref().is_none_or(|d| {
            unit.device.is_empty() || unit.device == *d || unit.device.split(':').next() == Some(d)
        });
        // ABI and objects have neither; whoever asks for an op wants that op.
        let op = self.op.as_ref().is_none_or(|op| unit.op == *op);
        let dtype = self.dtype.as_ref().is_none_or(|d| unit.dtypes.iter().any(|(_, x)| x == d));
        let case = self.case.as_ref().is_none_or(|pattern| {
            let literal = pattern.split('*').next().unwrap_or_default();
            let whole = literal.len() == pattern.len();
            literal.strip_prefix(&*unit.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                || (!whole && unit.name.starts_with(literal))
        });
        device && op && dtype && case
    }

    /// Whether a case is run.
    pub fn lets_case(&self, name: &str) -> bool {
        self.case.as_ref().is_none_or(|pattern| matches(pattern, name))
    }
}

/// Whether a name is a pattern's, in which `*` stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

/// A name as a part of a case's: lower-case letters and digits, everything else `-`.
pub fn slug(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
    }
    out.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::DType;

    fn setup() -> Setup {
        Setup {
            target: "x.so".into(),
            provider: 0,
            prefix: String::new(),
            seed: 1,
            quick: false,
            sample: SAMPLE,
            perf: false,
            onnx: None,
            filter: Filter::default(),
        }
    }

    #[test]
    fn patterns() {
        let yes = [
            ("a/b", "a/b"),
            ("a/*", "a/b/c"),
            ("*", ""),
            ("*/c", "a/b/c"),
            ("a*b*c", "a1b2b3c"),
            ("a**", "a"),
        ];
        let no = [("a/b", "a/b/c"), ("a/*x", "a/b"), ("b*", "ab"), ("a*b", "a"), ("ab*bc", "abc")];
        assert!(yes.iter().all(|(p, n)| matches(p, n)));
        assert!(!no.iter().any(|(p, n)| matches(p, n)));
    }

    #[test]
    fn filters_let_the_units_through_that_can_have_the_case() {
        let dtypes = vec![("src".to_owned(), DType::F32), ("dst".to_owned(), DType::F16)];
        let key = Key { op: "softmax".into(), selectors: Vec::new(), dtypes };
        let unit = Unit::of_key(&setup(), "cpu:0", &key);
        assert_eq!(unit.name, "primitives/cpu:0/softmax/src=f32,dst=f16");
        let case = |p: &str| Filter { case: Some(p.into()), ..Filter::default() }.lets(&unit);
        let name = format!("{}/03-odd", unit.name);
        assert!(case(&name) && case("*") && case("primitives/*") && case(&format!("{name}*")));
        assert!(
            !case("abi/*") && !case("primitives/cpu:0/softmax") && !case(&format!("{}6/03-odd", unit.name))
        );
        let with = |f: Filter| f.lets(&unit);
        assert!(with(Filter { device: Some("cpu".into()), dtype: Some("f16".into()), ..Filter::default() }));
        assert!(!with(Filter { device: Some("cuda".into()), ..Filter::default() }));
        assert!(!with(Filter { op: Some("matmul".into()), ..Filter::default() }));
        let check = Unit::check(&setup(), Group::Abi, "strings");
        assert!(!Filter { op: Some("softmax".into()), ..Filter::default() }.lets(&check));
        assert!(Filter { device: Some("cpu".into()), ..Filter::default() }.lets(&check));
    }

    #[test]
    fn names_are_safe_in_a_shell() {
        assert_eq!(slug("In place, other axis"), "in-place-other-axis");
        assert_eq!(slug("--x--"), "x");
    }
}
