//! Choosing a factory for a request, and explaining the choice.
//!
//! Among the factories that match: the config's order of instances for the op, then the instance's
//! priority, then the factory's, then its hint, then the order of registration. Everything that was not
//! chosen has a reason.

pub use crate::mismatch::{KeyField, Mismatch};
pub use crate::terms::Terms;

use crate::device::{Device, Member};
use crate::mismatch::{distance, mismatches, sentence};
use crate::nearest::{Offer, nearest};
use crate::registry::{FactoryEntry, OpEntry, attribute_value};
use ep_core::hob::{Expr, Refusal, Value};
use ep_core::schema::{DescFacts, Key};
use ep_core::{Error, Result};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Order of instances by op (`*`: every other op), from `[select]`.
pub type Rules = BTreeMap<String, Vec<String>>;

/// What came of one factory.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It matches and was chosen.
    Chosen,
    /// It matches, but another is preferred; why.
    Outranked(String),
    /// It matches and ties with the chosen one, which was registered first.
    Tied,
    /// It is for other selector values or dtypes; which ones differ, and what would fit. Empty where it has no row
    /// that this host can ask for.
    NotCovered(Vec<Mismatch>),
    /// Its predicate is false; every clause that is.
    Refused(Vec<Refusal>),
    /// Its custom predicate refuses; name and reason.
    Custom(String, String),
    /// The request sets a field that its provider, built for an older schema, does not know.
    UnknownField(String),
    /// It is for another kind of device.
    OtherDevice(String),
    /// Evaluating it failed.
    Broken(Error),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Chosen => f.write_str("chosen"),
            Verdict::Outranked(why) => write!(f, "matches, but {why}"),
            Verdict::Tied => f.write_str("matches; ties with the chosen one, which was registered first"),
            Verdict::NotCovered(mismatches) => sentence(mismatches, f),
            Verdict::Refused(refusals) => {
                let texts: Vec<_> = refusals.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join("; "))
            }
            Verdict::Custom(name, reason) => write!(f, "{name} refuses: {reason}"),
            Verdict::UnknownField(field) => {
                write!(
                    f,
                    "its provider knows an older version of the op, without `{field}`, which the request sets"
                )
            }
            Verdict::OtherDevice(kind) => write!(f, "is for devices of kind `{kind}`"),
            Verdict::Broken(e) => write!(f, "failed to judge the request: {e}"),
        }
    }
}

/// One factory and its verdict.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The provider instance.
    pub instance: String,
    /// The factory.
    pub factory: String,
    /// What came of it.
    pub verdict: Verdict,
}

/// The whole story of a request.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The request.
    pub request: Terms,
    /// The device's name.
    pub device: String,
    /// Every factory of the op, those that matched first, and those last that are for quite other requests.
    pub candidates: Vec<Candidate>,
    /// When nothing was chosen, the request with the fewest differences that something on this device matches, limits
    /// and attributes included. `None` also where predicates that are more than comparisons (but for `!=`) of single
    /// limits and attributes hide it.
    pub nearest: Option<Terms>,
}

impl Explanation {
    /// The chosen candidate.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|c| c.verdict == Verdict::Chosen)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.chosen() {
            Some(c) => writeln!(f, "{} on {}: {}/{}", self.request, self.device, c.instance, c.factory)?,
            None => writeln!(f, "{} on {}: nothing matches", self.request, self.device)?,
        }
        for c in &self.candidates {
            writeln!(f, "  {}/{}: {}", c.instance, c.factory, c.verdict)?;
        }
        if self.candidates.is_empty() {
            writeln!(f, "  no provider on this device registers the op")?;
        }
        match &self.nearest {
            Some(nearest) => writeln!(f, "  nearest that is covered: {nearest}"),
            None => Ok(()),
        }
    }
}

/// A descriptor as bytes.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) op: &'a OpEntry,
    pub(crate) desc: &'a [u64],
}

impl<'a> Request<'a> {
    pub(crate) fn bytes(&self) -> &'a [u8] {
        // SAFETY: u64 values are readable as bytes.
        unsafe { std::slice::from_raw_parts(self.desc.as_ptr().cast(), self.desc.len() * 8) }
    }
}

/// A factory with the member of the device that it belongs to.
type Matched<'a> = (&'a Arc<FactoryEntry>, usize);

/// Judges one factory.
fn judge(entry: &FactoryEntry, member: &Member, request: Request<'_>, key: &Key) -> Option<Verdict> {
    let factory = &entry.handle;
    if factory.device_kind != member.handle().info().kind {
        return Some(Verdict::OtherDevice(factory.device_kind.clone()));
    }
    // First, for an older provider's factories cover no request that sets a selector which it does not know.
    if let Some(field) = request.op.schema.unknown_to(request.bytes(), &entry.view) {
        return Some(Verdict::UnknownField(field.to_owned()));
    }
    if !factory.covers(key) {
        return Some(Verdict::NotCovered(mismatches(&request.op.schema, factory, key)));
    }
    // Its expressions are about the op as its provider knows it; fields beyond the host's descriptor are 0.
    let facts = DescFacts { schema: &entry.view, desc: request.bytes(), device: member.attributes() };
    if let Some(predicate) = &factory.predicate {
        match predicate.refusals(&facts) {
            Ok(refusals) if refusals.is_empty() => {}
            Ok(refusals) => return Some(Verdict::Refused(refusals)),
            Err(e) => return Some(Verdict::Broken(e)),
        }
    }
    // SAFETY: `desc` is a descriptor of the op: it was made by its typed API or from its schema.
    match unsafe { factory.custom_refusal(member.handle(), request.desc.as_ptr().cast()) } {
        Ok(None) => None,
        Ok(Some(reason)) => Some(Verdict::Custom(factory.match_name.clone(), reason)),
        Err(e) => Some(Verdict::Broken(e)),
    }
}

/// Larger is preferred.
fn rank(
    entry: &FactoryEntry,
    member: &Member,
    request: Request<'_>,
    rules: &Rules,
) -> (Reverse<usize>, i32, i32, f64) {
    let order = rules.get(&request.op.schema.name).or_else(|| rules.get("*"));
    let place = order.and_then(|o| o.iter().position(|i| *i == entry.instance)).unwrap_or(usize::MAX);
    let facts = DescFacts { schema: &entry.view, desc: request.bytes(), device: member.attributes() };
    let hint = entry.handle.hint.as_ref().map_or(0.0, |h| hint_value(h, &facts));
    (Reverse(place), entry.instance_priority, entry.handle.priority, hint)
}

fn hint_value(hint: &Expr, facts: &DescFacts<'_>) -> f64 {
    match hint.eval(facts) {
        Ok(Value::Int(i)) => i as f64,
        Ok(Value::Float(x)) => x,
        Ok(Value::Bool(b)) => f64::from(u8::from(b)),
        _ => 0.0,
    }
}

/// Every factory of the op on this device with its verdict; the chosen one, if any.
fn weigh<'a>(
    request: Request<'a>,
    device: &Device,
    rules: &Rules,
    key: &Key,
) -> (Vec<(Matched<'a>, Option<Verdict>)>, Option<Matched<'a>>) {
    let mut all = Vec::new();
    for entry in &request.op.factories {
        let Some(i) = device.members().iter().position(|m| m.instance() == entry.instance) else { continue };
        all.push(((entry, i), judge(entry, &device.members()[i], request, key)));
    }
    let mut best: Option<(Matched<'a>, _)> = None;
    for (matched, verdict) in &all {
        if verdict.is_none() {
            let rank = rank(matched.0, &device.members()[matched.1], request, rules);
            if best.as_ref().is_none_or(|(_, b)| better(&rank, b)) {
                best = Some((*matched, rank));
            }
        }
    }
    (all, best.map(|(m, _)| m))
}

type Rank = (Reverse<usize>, i32, i32, f64);

fn better(a: &Rank, b: &Rank) -> bool {
    (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)).then(a.3.total_cmp(&b.3)).is_gt()
}

/// Chooses. The error of a request that nothing matches tells the whole story.
pub(crate) fn choose<'a>(request: Request<'a>, device: &Device, rules: &Rules) -> Result<Matched<'a>> {
    let key = request.op.schema.key(request.bytes())?;
    match weigh(request, device, rules, &key).1 {
        Some(chosen) => Ok(chosen),
        None => Err(Error::unsupported(explain(request, device, rules)?.to_string().trim_end().to_owned())),
    }
}

/// Explains.
pub(crate) fn explain(request: Request<'_>, device: &Device, rules: &Rules) -> Result<Explanation> {
    let schema = &request.op.schema;
    let key = schema.key(request.bytes())?;
    let (all, chosen) = weigh(request, device, rules, &key);
    let rank_of = |m: &Matched<'_>| rank(m.0, &device.members()[m.1], request, rules);
    let mut candidates: Vec<Candidate> = Vec::new();
    for (matched, verdict) in &all {
        let verdict = match (verdict, &chosen) {
            (Some(v), _) => v.clone(),
            (None, Some(c)) if std::ptr::eq(Arc::as_ptr(c.0), Arc::as_ptr(matched.0)) => Verdict::Chosen,
            (None, Some(c)) => outranked(&rank_of(c), &rank_of(matched), c.0),
            (None, None) => unreachable!("a matching factory means that one is chosen"),
        };
        let (entry, _) = matched;
        candidates.push(Candidate {
            instance: entry.instance.clone(),
            factory: entry.handle.name.clone(),
            verdict,
        });
    }
    candidates.sort_by_key(|c| match &c.verdict {
        Verdict::Chosen => 0,
        Verdict::Tied | Verdict::Outranked(_) => 1,
        Verdict::NotCovered(mismatches) => 3 + distance(mismatches),
        Verdict::OtherDevice(_) => usize::MAX,
        _ => 2,
    });
    let offers = all.iter().map(|((entry, member), _)| Offer { entry, member: &device.members()[*member] });
    let matches = |offer: &Offer<'_>, desc: &[u64], key: &Key| {
        judge(offer.entry, offer.member, Request { op: request.op, desc }, key).is_none()
    };
    let nearest =
        if chosen.is_none() { nearest(schema, request.bytes(), &key, offers, matches) } else { None };
    Ok(Explanation {
        request: Terms::of(schema, request.bytes()),
        device: device.name().to_owned(),
        candidates,
        nearest,
    })
}

fn outranked(best: &Rank, this: &Rank, chosen: &FactoryEntry) -> Verdict {
    let by = format!("{}/{}", chosen.instance, chosen.handle.name);
    if best.0 != this.0 {
        Verdict::Outranked(format!("[select] puts {} first", chosen.instance))
    } else if best.1 != this.1 {
        Verdict::Outranked(format!("{by} has the instance priority {} instead of {}", best.1, this.1))
    } else if best.2 != this.2 {
        Verdict::Outranked(format!("{by} has priority {} instead of {}", best.2, this.2))
    } else if best.3 != this.3 {
        Verdict::Outranked(format!("{by} has the hint {} instead of {}", best.3, this.3))
    } else {
        Verdict::Tied
    }
}

/// The attributes of a device as predicate values.
pub(crate) fn attributes(info: &ep_core::provider::DeviceInfo) -> Vec<(String, Value<'static>)> {
    info.attributes.iter().map(|(n, a)| (n.clone(), attribute_value(a))).collect()
}
