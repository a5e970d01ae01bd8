//! What programs read: the load report, queries and explanations as rows with stable keys, for any format that serde writes.
//!
//! `ep list`, `ep query` and `ep explain` print them with `--json`, and `libep_host` gives them to other languages.

use crate::query::Row;
use crate::report::Entry;
use crate::select::{Candidate, Explanation, KeyField, Mismatch, Terms, Verdict};
use crate::{Request, Runtime};
use ep_core::provider::{Attribute, DeviceInfo};
use ep_core::{Result, Scalar};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A provider, what happened to it, and its devices.
#[derive(Clone, Debug, Serialize)]
pub struct ProviderRow<'a> {
    /// The instance.
    pub provider: &'a str,
    /// Its version, if it got so far.
    pub version: Option<&'a str>,
    /// The file; none where it is linked in.
    pub path: Option<String>,
    /// `loaded`, `absent`, `skipped` or `failed`.
    pub status: String,
    /// Why, and what to do.
    pub reason: &'a str,
    /// Its part of each logical device.
    pub devices: Vec<DeviceRow<'a>>,
}

/// A device as a provider describes it.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceRow<'a> {
    /// The logical device, `cpu:0`.
    pub id: &'a str,
    /// What people call the hardware.
    pub name: &'a str,
    /// The kind, `cpu`.
    pub kind: &'a str,
    /// Its identity in the usual groups of digits, if it has one.
    pub uuid: Option<String>,
    /// Its memory, if it is known.
    pub memory_bytes: Option<u64>,
    /// What the provider declares of it.
    pub features: BTreeMap<&'a str, Feature>,
}

/// The value of a device's attribute. What JSON has no number for (NaN, complex numbers) is text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Feature {
    /// Nothing.
    None(()),
    /// A truth value.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A finite float.
    Float(f64),
    /// Text.
    Text(String),
}

impl From<&Attribute> for Feature {
    fn from(attribute: &Attribute) -> Feature {
        match attribute {
            Attribute::Text(text) => Feature::Text(text.clone()),
            Attribute::Scalar(Scalar::None) => Feature::None(()),
            Attribute::Scalar(Scalar::Bool(b)) => Feature::Bool(*b),
            Attribute::Scalar(Scalar::I64(i)) => Feature::Int(*i),
            Attribute::Scalar(Scalar::U64(u)) => Feature::Uint(*u),
            Attribute::Scalar(Scalar::F64(x)) if x.is_finite() => Feature::Float(*x),
            Attribute::Scalar(other) => Feature::Text(other.to_string()),
        }
    }
}

/// In the usual groups of digits; `None` for a device without an identity.
fn uuid(raw: &[u8; 16]) -> Option<String> {
    if *raw == [0; 16] {
        return None;
    }
    let hex: String = raw.iter().map(|b| format!("{b:02x}")).collect();
    Some([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// A combination that a factory covers.
#[derive(Clone, Debug, Serialize)]
pub struct QueryRow<'a> {
    /// The instance.
    pub provider: &'a str,
    /// The logical device.
    pub device: &'a str,
    /// The op.
    pub op: &'a str,
    /// Selectors by name.
    pub selectors: BTreeMap<&'a str, &'a str>,
    /// Dtypes by role.
    pub dtypes: BTreeMap<&'a str, &'a str>,
    /// The further condition; empty: none.
    pub predicate: &'a str,
    /// Priority of the factory.
    pub priority: i32,
}

impl<'a> From<&'a Row> for QueryRow<'a> {
    fn from(row: &'a Row) -> QueryRow<'a> {
        let by_name = |pairs: &'a [(String, String)]| {
            pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
        };
        QueryRow {
            provider: &row.instance,
            device: &row.device,
            op: &row.op,
            selectors: by_name(&row.selectors),
            dtypes: by_name(&row.dtypes),
            predicate: &row.predicate,
            priority: row.priority,
        }
    }
}

/// The story of a request on one device.
#[derive(Clone, Debug, Serialize)]
pub struct ExplanationRow {
    /// The logical device.
    pub device: String,
    /// What was asked for.
    pub request: String,
    /// The factory that it gets, `instance/factory`.
    pub chosen: Option<String>,
    /// What the primitive says of itself.
    pub description: Option<String>,
    /// Why it cannot be created.
    pub error: Option<String>,
    /// Every factory of the op.
    pub candidates: Vec<CandidateRow>,
    /// The request with the fewest differences that something matches, where nothing was chosen.
    pub nearest: Option<String>,
}

/// A factory and its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateRow {
    /// The instance.
    pub provider: String,
    /// The factory.
    pub factory: String,
    /// The verdict as a sentence.
    pub verdict: String,
    /// The verdict as one of `chosen`, `outranked`, `tied`, `not_covered`, `refused`, `custom`, `unknown_field`,
    /// `other_device` and `broken`.
    pub kind: &'static str,
    /// Of `not_covered`, what does not fit.
    pub mismatches: Vec<MismatchRow>,
    /// Of `refused`, the clauses that are false.
    pub false_clauses: Vec<ClauseRow>,
}

/// Fields that do not fit, and values that would.
#[derive(Clone, Debug, Serialize)]
pub struct MismatchRow {
    /// `selector` or `dtype`.
    pub kind: &'static str,
    /// Their names.
    pub fields: Vec<String>,
    /// Their values.
    pub found: Vec<String>,
    /// The values together that would fit.
    pub allowed: Vec<Vec<String>>,
}

/// A clause that is false, and the value that makes it so.
#[derive(Clone, Debug, Serialize)]
pub struct ClauseRow {
    /// As it was written.
    pub clause: String,
    /// The value.
    pub actual: String,
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
                let clause = |r: &ep_core::hob::Refusal| ClauseRow {
                    clause: r.clause.clone(),
                    actual: r.actual.clone(),
                };
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

impl ExplanationRow {
    /// Of an explanation; and of the primitive, where one was chosen, what it says of itself, or why it cannot be made.
    pub fn new(story: &Explanation, created: Option<Result<String>>) -> ExplanationRow {
        let (description, error) = match created {
            Some(Ok(description)) => (Some(description).filter(|d| !d.is_empty()), None),
            Some(Err(e)) => (None, Some(e.to_string())),
            None => (None, None),
        };
        ExplanationRow {
            device: story.device.clone(),
            request: story.request.to_string(),
            chosen: story.chosen().map(|c| format!("{}/{}", c.instance, c.factory)),
            description,
            error,
            candidates: story.candidates.iter().map(CandidateRow::from).collect(),
            nearest: story.nearest.as_ref().map(ToString::to_string),
        }
    }
}

/// A request by names, as other programs write it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestRow {
    /// The op.
    pub op: String,
    /// Dtypes by role; each role of the op has to be there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dtypes: BTreeMap<String, String>,
    /// Selectors by name; one that is left out has its first value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selectors: BTreeMap<String, String>,
    /// Attributes by name; one that is left out has its default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attrs: BTreeMap<String, f64>,
    /// The most that launches will ask for, by name, and `alignment`; what is left out is unbounded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, u64>,
}

impl From<&Terms> for RequestRow {
    fn from(terms: &Terms) -> RequestRow {
        let terms = terms.clone();
        RequestRow {
            op: terms.op,
            dtypes: terms.dtypes.into_iter().collect(),
            selectors: terms.selectors.into_iter().collect(),
            attrs: terms.attrs.into_iter().collect(),
            limits: terms.limits.into_iter().collect(),
        }
    }
}

impl Runtime {
    /// The load report as rows.
    pub fn provider_rows(&self) -> Vec<ProviderRow<'_>> {
        self.report().entries.iter().map(|entry| self.provider_row(entry)).collect()
    }

    /// What an instance says of its part of each of its logical devices.
    pub fn devices_of<'a>(
        &'a self,
        entry: &'a Entry,
    ) -> impl Iterator<Item = (&'a str, &'a DeviceInfo)> + 'a {
        self.devices().iter().filter_map(|device| {
            let member = device.members().iter().find(|m| m.instance() == entry.instance)?;
            Some((device.name(), member.handle().info()))
        })
    }

    fn provider_row<'a>(&'a self, entry: &'a Entry) -> ProviderRow<'a> {
        let devices = self.devices_of(entry).map(|(id, info)| DeviceRow {
            id,
            name: &info.name,
            kind: &info.kind,
            uuid: uuid(&info.uuid),
            memory_bytes: (info.memory_bytes != 0).then_some(info.memory_bytes),
            features: info.attributes.iter().map(|(name, a)| (name.as_str(), a.into())).collect(),
        });
        ProviderRow {
            provider: &entry.instance,
            version: entry.provider.as_ref().map(|(_, version)| version.as_str()),
            path: entry.path.as_ref().map(|p| p.display().to_string()),
            status: entry.status.to_string(),
            reason: &entry.reason,
            devices: devices.collect(),
        }
    }

    /// The request that a row describes.
    ///
    /// # Errors
    /// `NotFound` for a name or a value that there is not, with similar ones; `InvalidArgument` where the dtype of a role is
    /// missing.
    pub fn request_of(&self, row: &RequestRow) -> Result<Request> {
        let mut request = self.request(&row.op)?;
        for (name, value) in &row.dtypes {
            request = request.dtype(name, value)?;
        }
        for (name, value) in &row.selectors {
            request = request.selector(name, value)?;
        }
        for (name, value) in &row.attrs {
            request = request.attr(name, *value)?;
        }
        for (name, value) in &row.limits {
            request = request.limit(name, *value)?;
        }
        let missing = request.schema().dtypes().filter(|f| !row.dtypes.contains_key(&f.name));
        let missing: Vec<_> = missing.map(|f| format!("`{}`", f.name)).collect();
        if missing.is_empty() {
            return Ok(request);
        }
        Err(ep_core::Error::invalid(format!(
            "op `{}` also needs the dtype of {}",
            row.op,
            missing.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_grouped_and_may_be_absent() {
        assert_eq!(uuid(&[0; 16]), None);
        let raw = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(uuid(&raw).as_deref(), Some("00112233-4455-6677-8899-aabbccddeeff"));
    }

    #[test]
    fn every_attribute_is_a_feature() {
        let scalar = |s: Scalar| Feature::from(&Attribute::Scalar(s));
        assert_eq!(scalar(Scalar::U64(u64::MAX)), Feature::Uint(u64::MAX));
        assert_eq!(scalar(Scalar::F64(f64::NAN)), Feature::Text("NaN".into()));
        assert_eq!(scalar(Scalar::Complex(1.0, -2.0)), Feature::Text("1.0-2.0i".into()));
        assert_eq!(Feature::from(&Attribute::Text("avx2".into())), Feature::Text("avx2".into()));
    }

    #[test]
    fn a_refusal_has_its_clauses_and_a_mismatch_its_fields() {
        let row = |verdict: Verdict| {
            CandidateRow::from(&Candidate { instance: "a".into(), factory: "b".into(), verdict })
        };
        let refusal = |clause: &str| ep_core::hob::Refusal { clause: clause.into(), actual: "y is 2".into() };
        let found = row(Verdict::Refused(vec![refusal("y < 1"), refusal("y < 2")]));
        assert_eq!((found.kind, found.mismatches.len()), ("refused", 0));
        assert_eq!(found.verdict, "needs y < 1, but y is 2; needs y < 2, but y is 2");
        assert_eq!((&*found.false_clauses[1].clause, &*found.false_clauses[1].actual), ("y < 2", "y is 2"));
        assert_eq!(row(Verdict::Tied).kind, "tied");
    }
}
