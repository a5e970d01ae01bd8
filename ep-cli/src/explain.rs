//! `ep explain`.

use crate::failure::{Exit, Failure, named};
use crate::host::Host;
use crate::meaning;
use crate::output::{Out, quoted};
use clap::Args;
use ep_registry::select::{Candidate, Explanation, KeyField, Mismatch, Terms, Verdict};
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
    device: String,
    request: String,
    chosen: Option<String>,
    /// What the primitive says of itself.
    description: Option<String>,
    /// Why it cannot be created.
    error: Option<String>,
    candidates: Vec<CandidateRow>,
    /// Why the contract gives the combination no meaning.
    reason: Option<Reason>,
    nearest: Option<String>,
    /// The flags that ask for it.
    nearest_flags: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Reason {
    code: &'static str,
    meaning: &'static str,
}

#[derive(Serialize)]
struct CandidateRow {
    provider: String,
    factory: String,
    verdict: String,
    kind: &'static str,
    mismatches: Vec<MismatchRow>,
    false_clauses: Vec<Clause>,
}

#[derive(Serialize)]
struct MismatchRow {
    kind: &'static str,
    fields: Vec<String>,
    found: Vec<String>,
    allowed: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct Clause {
    clause: String,
    actual: String,
}

impl From<&Mismatch> for MismatchRow {
    fn from(m: &Mismatch) -> MismatchRow {
        let kind = match m.kind {
            KeyField::Selector => "selector",
            KeyField::DType => "dtype",
        };
        MismatchRow { kind, fields: m.fields.clone(), found: m.found.clone(), allowed: m.allowed.clone() }
    }
}

impl From<&Candidate> for CandidateRow {
    fn from(c: &Candidate) -> CandidateRow {
        let (mut mismatches, mut false_clauses) = (Vec::new(), Vec::new());
        let kind = match &c.verdict {
            Verdict::Chosen => "chosen",
            Verdict::Outranked(_) => "outranked",
            Verdict::Tied => "tied",
            Verdict::NotCovered(found) => {
                mismatches.extend(found.iter().map(MismatchRow::from));
                "not_covered"
            }
            Verdict::Refused(refusals) => {
                let clause =
                    |r: &ep_core::hob::Refusal| Clause { clause: r.clause.clone(), actual: r.actual.clone() };
                false_clauses.extend(refusals.iter().map(clause));
                "refused"
            }
            Verdict::Custom(..) => "custom",
            Verdict::UnknownField(_) => "unknown_field",
            Verdict::OtherDevice(_) => "other_device",
            Verdict::Broken(_) => "broken",
        };
        CandidateRow {
            provider: c.instance.clone(),
            factory: c.factory.clone(),
            verdict: c.verdict.to_string(),
            kind,
            mismatches,
            false_clauses,
        }
    }
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
            let (description, error) = match created {
                Some(Ok(primitive)) => (Some(primitive.describe()).filter(|d| !d.is_empty()), None),
                Some(Err(e)) => (None, Some(e.to_string())),
                None => (None, None),
            };
            if !self.json {
                out.text(story.to_string())?;
                if let Some(nearest) = &story.nearest {
                    out.line(format!("    as flags: {}", typed(&flags(nearest))))?;
                }
                if let Some((code, meaning)) = meaning_of(&story) {
                    out.line(format!("  the op has no meaning for this: {code}, {meaning}"))?;
                }
                if let Some(description) = description {
                    out.text(format!("  it computes by: {description}\n"))?;
                }
                if let Some(error) = error {
                    out.text(format!("  it cannot be created: {error}\n"))?;
                }
                continue;
            }
            rows.push(Row {
                chosen: story.chosen().map(|c| format!("{}/{}", c.instance, c.factory)),
                description,
                error,
                candidates: story.candidates.iter().map(CandidateRow::from).collect(),
                reason: meaning_of(&story).map(|(code, meaning)| Reason { code, meaning }),
                nearest: story.nearest.as_ref().map(Terms::to_string),
                nearest_flags: story.nearest.as_ref().map(flags),
                request: story.request.to_string(),
                device: story.device,
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
    fn a_refusal_has_its_clauses_and_a_mismatch_its_fields() {
        let row = |verdict: Verdict| {
            let c = Candidate { instance: "a".into(), factory: "b".into(), verdict };
            serde_json::to_value(CandidateRow::from(&c)).unwrap()
        };
        let refusal = |clause: &str| ep_core::hob::Refusal { clause: clause.into(), actual: "y is 2".into() };
        let found = row(Verdict::Refused(vec![refusal("y < 1"), refusal("y < 2")]));
        assert_eq!((&found["kind"], &found["mismatches"]), (&"refused".into(), &serde_json::json!([])));
        assert_eq!(found["verdict"], "needs y < 1, but y is 2; needs y < 2, but y is 2");
        assert_eq!(found["false_clauses"][1], serde_json::json!({"clause": "y < 2", "actual": "y is 2"}));
        assert_eq!(row(Verdict::Tied)["kind"], "tied");
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
