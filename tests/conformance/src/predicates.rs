//! What a provider claims, and requests that satisfy the conditions of a claim.

use crate::case::{Case, Key};
use crate::geometry::limits;
use ep_core::Result;
use ep_core::hob::{BinaryOp, Expr, FactKind, Literal};
use ep_core::schema::Schema;
use ep_registry::{Device, Runtime};
use std::collections::BTreeMap;

/// The alignment that a request promises where a predicate asks for one.
const ALIGNMENT: u64 = 64;

/// The registrations that cover a key.
#[derive(Clone, Debug, Default)]
pub struct Advertised {
    /// The condition of each; `None`: there is none.
    pub predicates: Vec<Option<Expr>>,
    /// Whether one of them asks a callback too.
    pub custom: bool,
}

impl Advertised {
    /// Whether every registration has a condition that a request may fail to satisfy.
    pub fn conditional(&self) -> bool {
        self.custom || self.predicates.iter().all(Option::is_some)
    }

    /// Values of attributes around those that conditions compare with: each is on one side of a condition or the
    /// other, so that requests with them reach every registration that an attribute decides.
    pub fn attribute_values(&self) -> Vec<(String, f64)> {
        let mut found = Vec::new();
        self.predicates.iter().flatten().for_each(|p| constants(p, FactKind::Attr, &mut found));
        let around = |(name, value): (String, f64)| [value, value + 1.0].map(|v| (name.clone(), v));
        let mut values: Vec<_> = found.into_iter().flat_map(around).collect();
        values.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        values.dedup();
        values
    }

    /// Values of limits that conditions compare them with: where one factory ends and another begins.
    pub fn limit_values(&self) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        self.predicates.iter().flatten().for_each(|p| constants(p, FactKind::Limit, &mut found));
        let whole = |v: f64| (v >= 1.0 && v.fract() == 0.0 && v < 1e9).then_some(v as u64);
        let mut values: Vec<_> = found.into_iter().filter_map(|(n, v)| Some((n, whole(v)?))).collect();
        values.sort();
        values.dedup();
        values
    }

    fn mentions(&self, kind: FactKind, name: Option<&str>) -> bool {
        let mut found = false;
        for predicate in self.predicates.iter().flatten() {
            predicate.facts(&mut |k, n| found |= k == kind && name.is_none_or(|name| name == n));
        }
        found
    }
}

/// The numbers that facts of a kind are compared with.
fn constants(e: &Expr, kind: FactKind, found: &mut Vec<(String, f64)>) {
    let number = |l: &Literal| match l {
        Literal::Scalar(s) => Some(s.as_f64()),
        Literal::Text(_) => None,
    };
    match e {
        Expr::Binary(BinaryOp::And | BinaryOp::Or, a, b) => {
            constants(a, kind, found);
            constants(b, kind, found);
        }
        Expr::Binary(_, a, b) => {
            if let (Expr::Fact(k, name), Expr::Literal(l)) | (Expr::Literal(l), Expr::Fact(k, name)) =
                (&**a, &**b)
                && *k == kind
            {
                found.extend(number(l).map(|v| (name.clone(), v)));
            }
        }
        Expr::Not(e) => constants(e, kind, found),
        Expr::In(e, list) => {
            if let Expr::Fact(k, name) = &**e
                && *k == kind
            {
                found.extend(list.iter().filter_map(number).map(|v| (name.clone(), v)));
            }
        }
        Expr::Literal(_) | Expr::Fact(..) => {}
    }
}

/// Everything that a device's provider claims.
pub fn advertised(runtime: &Runtime, device: &Device) -> BTreeMap<Key, Advertised> {
    let mut all: BTreeMap<Key, Advertised> = BTreeMap::new();
    runtime.with_registry(|registry| {
        for op in registry.ops() {
            let on_device = |f: &&std::sync::Arc<ep_registry::registry::FactoryEntry>| {
                device
                    .members()
                    .iter()
                    .any(|m| m.instance() == f.instance && m.handle().info().kind == f.handle.device_kind)
            };
            for factory in op.factories.iter().filter(on_device) {
                for dtypes in &factory.handle.dtypes {
                    for selectors in &factory.handle.selectors {
                        let roles = op.schema.dtypes().zip(dtypes).map(|(f, d)| (f.name.clone(), *d));
                        let values = op.schema.selectors().zip(selectors);
                        let key = Key {
                            op: op.schema.name.clone(),
                            selectors: values
                                .map(|((f, c), v)| (f.name.clone(), c[*v as usize].clone()))
                                .collect(),
                            dtypes: roles.collect(),
                        };
                        let entry = all.entry(key).or_default();
                        entry.predicates.push(factory.handle.predicate.clone());
                        entry.custom |= !factory.handle.match_name.is_empty();
                    }
                }
            }
        }
    });
    all
}

/// A request for a key: attributes (as bits, so that they compare) and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Attributes that are not the default.
    pub attrs: Vec<(String, u64)>,
    /// Limits; what is not named is unbounded.
    pub limits: Vec<(String, u64)>,
}

impl Attempt {
    /// Whether it promises aligned operands.
    pub fn aligned(&self) -> bool {
        self.limits.iter().any(|(name, _)| name == "alignment")
    }
}

/// The requests to try for a case, in order: unbounded, bounded by what the case needs, with aligned operands. Only the
/// first where no condition can tell them apart.
///
/// # Errors
/// For a case that does not fit the schema.
pub fn attempts(case: &Case, schema: &Schema, advertised: &Advertised) -> Result<Vec<Attempt>> {
    let attrs: Vec<_> = case.attrs.iter().map(|(n, v)| ((*n).to_owned(), v.to_bits())).collect();
    let mut all = vec![Attempt { attrs: attrs.clone(), limits: Vec::new() }];
    // A callback may ask for limits too.
    if !advertised.custom && !advertised.mentions(FactKind::Limit, None) {
        return Ok(all);
    }
    // 0 means unbounded.
    let bounds: Vec<_> = limits(case, schema)?.into_iter().map(|(n, v)| (n, v.max(1))).collect();
    all.push(Attempt { attrs: attrs.clone(), limits: bounds.clone() });
    let asks = advertised.custom || advertised.mentions(FactKind::Limit, Some("alignment"));
    if case.shift == 0 && asks {
        let alignment = ("alignment".to_owned(), ALIGNMENT);
        all.push(Attempt { attrs, limits: bounds.into_iter().chain([alignment]).collect() });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::DType;
    use ep_core::hob;

    fn softmax() -> (Case, &'static Schema) {
        let dtypes = vec![("src".to_owned(), DType::F32), ("dst".to_owned(), DType::F32)];
        let key = Key { op: "softmax".into(), selectors: Vec::new(), dtypes };
        let case = Case::new(&key, "x").sizes(&[("rows", 3), ("cols", 37), ("inner", 1)]);
        (case, ep_core::schema::core_schema("softmax").unwrap())
    }

    #[test]
    fn requests_are_bounded_where_a_condition_asks_for_it() {
        let (case, schema) = softmax();
        let of = |p: Expr| Advertised { predicates: vec![Some(p)], custom: false };
        let with = |a: &Advertised| attempts(&case, schema, a).unwrap();
        assert_eq!(with(&of(hob::dtype("src").eq(DType::F32))), [Attempt::default()]);
        let bounded = with(&of(hob::limit("cols").le(1024)));
        assert_eq!(bounded[1].limits, [("cols".to_owned(), 37)]);
        assert!(bounded.len() == 2 && !bounded[1].aligned());
        let aligned = with(&of(hob::limit("alignment").ge(16)));
        assert!(aligned[2].aligned() && aligned.len() == 3);
    }

    #[test]
    fn attributes_are_tried_on_both_sides_of_a_condition() {
        let general = Advertised { predicates: vec![None, Some(hob::attr("kernel").eq(1.0))], custom: false };
        let values = [("kernel".to_owned(), 1.0), ("kernel".to_owned(), 2.0)];
        assert_eq!(general.attribute_values(), values);
        assert!(!general.conditional());
        let list = Advertised { predicates: vec![Some(!hob::attr("k").is_in([3.0]))], custom: false };
        assert_eq!(list.attribute_values()[0], ("k".to_owned(), 3.0));
        assert!(list.conditional());
    }
}
