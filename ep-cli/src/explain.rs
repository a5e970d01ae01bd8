//! `ep explain`.

use crate::failure::{Exit, Failure, named};
use crate::host::Host;
use crate::meaning;
use crate::output::{Out, quoted};
use clap::Args;
use ep_registry::rows::ExplanationRow;
use ep_registry::select::{Explanation, Terms};
use ep_registry::{Request, Runtime};
use serde::Serialize;
use std::path::Path;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  ep explain --op softmax --dtype src=f16 --dtype dst=f32 --limit cols=1024
  ep explain --device cpu:0 --op elementwise_unary --selector op=relu \\
      --dtype src=f32 --dtype dst=f32
  ep query --op matmul      shows the names of the roles and selectors";

/// Tells which factory a request gets on each device, how it computes, and why the others refuse it
///
/// A selector that is not given has its first value. Exit code 5 when nothing matches.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Explain {
    /// The op
    #[arg(long)]
    op: String,
    /// A dtype by role; give one for each role
    #[arg(long, value_name = "ROLE=DTYPE")]
    dtype: Vec<Pair<String>>,
    /// A selector's value
    #[arg(long, value_name = "NAME=VALUE")]
    selector: Vec<Pair<String>>,
    /// An attribute
    #[arg(long, value_name = "NAME=NUMBER", allow_hyphen_values = true)]
    attr: Vec<Pair<f64>>,
    /// The most that launches will ask for (`cols=1024`), or the alignment of all addresses in bytes
    /// (`alignment=64`)
    #[arg(long, value_name = "NAME=INTEGER")]
    limit: Vec<Pair<u64>>,
    /// The device, `cpu:0`, or `cpu` for the first of its kind [default: all]
    #[arg(long)]
    device: Option<String>,
    /// Prints JSON: [{device, request, chosen, description, error, candidates: [{provider, factory, verdict, kind,
    /// mismatches: [{kind, fields, found, allowed}], false_clauses: [{clause, actual}]}], reason: {code, meaning},
    /// nearest, nearest_flags}]
    #[arg(long)]
    json: bool,
}

/// `name=value`.
#[derive(Clone)]
struct Pair<T> {
    name: String,
    value: T,
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Pair<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Pair<T>, String> {
        let (name, value) = text.split_once('=').ok_or("write it as name=value")?;
        if name.is_empty() {
            return Err("the name before `=` is empty".into());
        }
        let value = value.parse().map_err(|e| format!("`{value}`: {e}"))?;
        Ok(Pair { name: name.to_owned(), value })
    }
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    story: ExplanationRow,
    /// Why the contract gives the combination no meaning.
    reason: Option<Reason>,
    /// The flags that ask for the nearest request.
    nearest_flags: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Reason {
    code: &'static str,
    meaning: &'static str,
}

/// The flags of `ep explain` that ask for this.
fn flags(terms: &Terms) -> Vec<String> {
    let mut flags = vec!["--op".to_owned(), terms.op.clone()];
    let mut add =
        |flag: &str, name: &str, value: String| flags.extend([flag.to_owned(), format!("{name}={value}")]);
    terms.selectors.iter().for_each(|(name, value)| add("--selector", name, value.clone()));
    terms.dtypes.iter().for_each(|(role, dtype)| add("--dtype", role, dtype.clone()));
    terms.limits.iter().for_each(|(name, n)| add("--limit", name, n.to_string()));
    terms.attrs.iter().for_each(|(name, x)| add("--attr", name, format!("{x:?}")));
    flags
}

/// Flags as one would type them.
fn typed(flags: &[String]) -> String {
    flags.iter().map(|f| quoted(f)).collect::<Vec<_>>().join(" ")
}

/// What the contract says of a request that nothing matches, beside what the providers say.
fn meaning_of(story: &Explanation) -> Option<(&'static str, &'static str)> {
    let second = |pairs: &[(String, String)]| pairs.iter().map(|(_, v)| v.clone()).collect::<Vec<_>>();
    let asked = &story.request;
    meaning::explained(&asked.op, &second(&asked.selectors), &second(&asked.dtypes))
        .filter(|_| story.chosen().is_none())
}

impl Explain {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let host = Host::load_and_warn(config)?;
        let request = self.request(&host.runtime)?;
        let mut rows = Vec::new();
        let mut matched = false;
        for device in host.devices(self.device.as_deref())? {
            let story = host.runtime.explain(device, &request).map_err(|e| named(&e))?;
            // Only the primitive itself knows, such as which of several kernels a width gets.
            let created = story.chosen().map(|_| host.runtime.primitive_dyn(device, &request));
            matched |= created.is_some();
            let created = created.map(|made| made.map(|primitive| primitive.describe()));
            let row = ExplanationRow::new(&story, created);
            if !self.json {
                out.text(story.to_string())?;
                if let Some(nearest) = &story.nearest {
                    out.line(format!("    as flags: {}", typed(&flags(nearest))))?;
                }
                if let Some((code, meaning)) = meaning_of(&story) {
                    out.line(format!("  the op has no meaning for this: {code}, {meaning}"))?;
                }
                if let Some(description) = &row.description {
                    out.text(format!("  it computes by: {description}\n"))?;
                }
                if let Some(error) = &row.error {
                    out.text(format!("  it cannot be created: {error}\n"))?;
                }
                continue;
            }
            rows.push(Row {
                story: row,
                reason: meaning_of(&story).map(|(code, meaning)| Reason { code, meaning }),
                nearest_flags: story.nearest.as_ref().map(flags),
            });
        }
        if self.json {
            out.json(&rows)?;
        }
        if matched { Ok(()) } else { Err(Failure::new(Exit::NoMatch, "")) }
    }

    fn request(&self, runtime: &Runtime) -> Result<Request, Failure> {
        once("--dtype", &self.dtype)?;
        once("--selector", &self.selector)?;
        once("--attr", &self.attr)?;
        once("--limit", &self.limit)?;
        let build = || {
            let mut request = runtime.request(&self.op)?;
            for p in &self.dtype {
                request = request.dtype(&p.name, &p.value)?;
            }
            for p in &self.selector {
                request = request.selector(&p.name, &p.value)?;
            }
            for p in &self.attr {
                request = request.attr(&p.name, p.value)?;
            }
            for p in &self.limit {
                request = request.limit(&p.name, p.value)?;
            }
            Ok(request)
        };
        let request = build().map_err(|e| named(&e))?;
        let missing: Vec<_> = request
            .schema()
            .dtypes()
            .filter(|f| !self.dtype.iter().any(|p| p.name == f.name))
            .map(|f| format!("--dtype {}=DTYPE", f.name))
            .collect();
        if missing.is_empty() {
            return Ok(request);
        }
        Err(Failure::new(Exit::Usage, format!("op `{}` also needs {}", self.op, missing.join(" "))))
    }
}

/// Refuses a name that is given twice: which value was meant cannot be told.
fn once<T>(flag: &str, pairs: &[Pair<T>]) -> Result<(), Failure> {
    let again = pairs.iter().enumerate().find(|(i, p)| pairs[..*i].iter().any(|q| q.name == p.name));
    match again {
        None => Ok(()),
        Some((_, p)) => Err(Failure::new(Exit::Usage, format!("{flag} {}=... is given twice", p.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_ask_for_everything_that_was_told() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let terms = Terms {
            op: "acme.conv".into(),
            selectors: vec![pair("mode", "a b")],
            dtypes: vec![pair("src", "f32"), pair("dst", "acme.q8")],
            limits: vec![("cols".into(), 1024), ("alignment".into(), 16)],
            attrs: vec![("kernel".into(), -1e300)],
        };
        assert_eq!(
            typed(&flags(&terms)),
            "--op acme.conv --selector 'mode=a b' --dtype src=f32 --dtype dst=acme.q8 --limit cols=1024 \
             --limit alignment=16 --attr kernel=-1e300"
        );
    }

    #[test]
    fn pairs_parse() {
        let p: Pair<f64> = "alpha=-1e-3".parse().unwrap();
        assert_eq!((p.name.as_str(), p.value), ("alpha", -1e-3));
        let p: Pair<String> = "a=b=c".parse().unwrap();
        assert_eq!(p.value, "b=c");
        let wrong = ["cols", "=4", "cols=x", "cols=-1", "cols=99999999999999999999"];
        assert!(wrong.iter().all(|text| text.parse::<Pair<u64>>().is_err()));
    }
}
