//! The request nearest to one that nothing matches: other selector values and dtypes, from the rows of factories,
//! and other limits and attributes, from their predicates.
//!
//! What is proposed is judged as a request, so that it matches. Where predicates are more than comparisons of single
//! limits and attributes, there may be a request that is not found.

use crate::device::Member;
use crate::registry::FactoryEntry;
use crate::terms::Terms;
use ep_core::DType;
use ep_core::hob::{BinaryOp, Expr, FactKind, Literal, Value};
use ep_core::schema::{DescFacts, DescKind, Key, Schema};

/// Of one factory, as many pairs of rows are tried.
const TRIED: usize = 256;
/// With all pairs that are tried, conditions of as many nodes are gone through, because they come from providers: a second
/// at most.
const NODES: usize = 1 << 20;

/// A descriptor that is changed until predicates hold.
#[derive(Clone)]
struct Draft<'a> {
    schema: &'a Schema,
    device: &'a [(String, Value<'static>)],
    desc: Vec<u8>,
    /// Limits and attributes that are not as asked.
    changed: Vec<&'a str>,
}

impl<'a> Draft<'a> {
    fn facts(&self) -> DescFacts<'_> {
        DescFacts { schema: self.schema, desc: &self.desc, device: self.device }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Option<()> {
        self.desc.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
        Some(())
    }

    fn put_key(&mut self, key: &Key) -> Option<()> {
        let (mut selectors, mut dtypes) = (key.selectors.iter(), key.dtypes.iter());
        let schema = self.schema;
        for field in &schema.desc {
            let value = match field.kind {
                DescKind::Selector(_) => *selectors.next()?,
                DescKind::DType => dtypes.next()?.0,
                DescKind::Attr(_) | DescKind::Limit(_) => continue,
            };
            self.put(field.offset, &value.to_ne_bytes())?;
        }
        Some(())
    }

    /// Changes limits and attributes, as few as it can, until the predicate is `wanted`; `None` where it finds no way.
    fn make(&mut self, predicate: &'a Expr, wanted: bool) -> Option<()> {
        match predicate {
            Expr::Not(e) => self.make(e, !wanted),
            Expr::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b) => {
                if (*op == BinaryOp::And) == wanted {
                    self.make(a, wanted)?;
                    return self.make(b, wanted);
                }
                let ways = [a, b].into_iter().filter_map(|e| {
                    let mut way = self.clone();
                    way.make(e, wanted).map(|()| way)
                });
                // One that holds already changes nothing.
                *self = ways.min_by_key(|w| (w.desc != self.desc, w.changed.len()))?;
                Some(())
            }
            // Only what is no combination is evaluated, so that no node is more than once.
            _ if predicate.holds(&self.facts()) == Ok(wanted) => Some(()),
            Expr::Binary(op, a, b) => match (&**a, &**b) {
                (Expr::Fact(kind, name), bound) if self.adjustable(*kind) => {
                    self.compare(*kind, name, turned(*op, wanted, false)?, bound)
                }
                (bound, Expr::Fact(kind, name)) if self.adjustable(*kind) => {
                    self.compare(*kind, name, turned(*op, wanted, true)?, bound)
                }
                _ => None,
            },
            Expr::In(e, values) if wanted => match &**e {
                Expr::Fact(kind, name) if self.adjustable(*kind) => self.nearest_of(*kind, name, values),
                _ => None,
            },
            _ => None,
        }
    }

    fn adjustable(&self, kind: FactKind) -> bool {
        matches!(kind, FactKind::Limit | FactKind::Attr)
    }

    /// Makes a comparison with a value that no limit and no attribute is part of.
    fn compare(&mut self, kind: FactKind, name: &'a str, op: BinaryOp, bound: &Expr) -> Option<()> {
        let mut free = true;
        bound.facts(&mut |kind, _| free &= !self.adjustable(kind));
        let bound = match bound.eval(&self.facts()) {
            Ok(Value::Int(i)) if free => i as f64,
            Ok(Value::Float(x)) if free => x,
            _ => return None,
        };
        self.set(kind, name, op, bound)
    }

    /// The value of a list that is nearest to what was asked.
    fn nearest_of(&mut self, kind: FactKind, name: &'a str, values: &[Literal]) -> Option<()> {
        let number = |l: &Literal| match l {
            Literal::Scalar(s) => Some(s.as_f64()),
            Literal::Text(_) => None,
        };
        let asked = match Expr::Fact(kind, name.to_owned()).eval(&self.facts()) {
            Ok(Value::Int(i)) => i as f64,
            Ok(Value::Float(x)) => x,
            _ => f64::MAX,
        };
        let mut values: Vec<f64> = values.iter().filter_map(number).collect();
        // Of two that are as near, and for what is unbounded, the larger one.
        values.sort_by(|a, b| (a - asked).abs().total_cmp(&(b - asked).abs()).then(b.total_cmp(a)));
        values.into_iter().find_map(|x| self.set(kind, name, BinaryOp::Eq, x))
    }

    fn set(&mut self, kind: FactKind, name: &'a str, op: BinaryOp, bound: f64) -> Option<()> {
        let (at, bytes) = if kind == FactKind::Attr {
            let x = match op {
                BinaryOp::Lt => bound.next_down(),
                BinaryOp::Gt => bound.next_up(),
                _ => bound,
            };
            (self.schema.desc_field(name)?.offset, x.to_ne_bytes())
        } else {
            let n = match op {
                BinaryOp::Le => bound.floor(),
                BinaryOp::Lt => bound.ceil() - 1.0,
                BinaryOp::Ge => bound.ceil(),
                BinaryOp::Gt => bound.floor() + 1.0,
                _ if bound.fract() == 0.0 => bound,
                _ => return None,
            };
            // Beyond 2^53 not every integer is a float.
            if !(0.0..=9_007_199_254_740_992.0).contains(&n) {
                return None;
            }
            let n = n as u64;
            if name == "alignment" {
                (8, aligned(n, op)?.to_ne_bytes())
            } else {
                // 0 would be unbounded.
                (self.schema.desc_field(name)?.offset, (n > 0).then_some(n)?.to_ne_bytes())
            }
        };
        self.put(at, &bytes)?;
        if !self.changed.contains(&name) {
            self.changed.push(name);
        }
        Some(())
    }
}

/// The alignment, a power of two or 0, that is nearest to one that may be no power of two.
fn aligned(n: u64, op: BinaryOp) -> Option<u64> {
    match op {
        _ if n == 0 || n.is_power_of_two() => Some(n),
        BinaryOp::Ge | BinaryOp::Gt => n.checked_next_power_of_two(),
        BinaryOp::Le | BinaryOp::Lt => Some(1 << n.ilog2()),
        _ => None,
    }
}

/// A comparison that has to be `wanted`, as one that has to be true, perhaps with its sides exchanged. `None` where
/// a value is only ruled out.
fn turned(op: BinaryOp, wanted: bool, exchanged: bool) -> Option<BinaryOp> {
    use BinaryOp::{Eq, Ge, Gt, Le, Lt, Ne};
    let op = match (op, wanted) {
        (op, true) => op,
        (Lt, false) => Ge,
        (Le, false) => Gt,
        (Gt, false) => Le,
        (Ge, false) => Lt,
        (Ne, false) => Eq,
        _ => return None,
    };
    match (op, exchanged) {
        (Eq, _) => Some(Eq),
        (Lt, true) | (Gt, false) => Some(Gt),
        (Le, true) | (Ge, false) => Some(Ge),
        (Gt, true) | (Lt, false) => Some(Lt),
        (Ge, true) | (Le, false) => Some(Le),
        _ => None,
    }
}

/// A factory that may match, with the member of the device that it belongs to.
pub(crate) struct Offer<'a> {
    pub(crate) entry: &'a FactoryEntry,
    pub(crate) member: &'a Member,
}

/// The request with the fewest differences that one of the factories matches; of equal ones the first by order of
/// registration. Another function is further away than other dtypes, and these than other limits and attributes.
/// `matches` judges the words of a descriptor. None where the conditions to try are too large.
pub(crate) fn nearest<'a>(
    schema: &'a Schema,
    desc: &[u8],
    key: &Key,
    offers: impl Iterator<Item = Offer<'a>>,
    matches: impl Fn(&Offer<'a>, &[u64], &Key) -> bool,
) -> Option<Terms> {
    let mut best: Option<((usize, usize), Vec<u8>)> = None;
    let mut gone_through = 0;
    for offer in offers {
        let factory = &offer.entry.handle;
        let size = 1 + factory.predicate.as_ref().map_or(0, nodes);
        for (cost, near) in pairs(key, &factory.selectors, &factory.dtypes) {
            if best.as_ref().is_some_and(|((c, _), _)| cost > *c) {
                break;
            }
            gone_through += size;
            if gone_through > NODES {
                return None;
            }
            let mut draft =
                Draft { schema, device: offer.member.attributes(), desc: desc.to_vec(), changed: Vec::new() };
            if draft.put_key(&near).is_none() || !satisfy(&mut draft, factory.predicate.as_ref()) {
                continue;
            }
            let cost = (cost, draft.changed.len());
            if best.as_ref().is_none_or(|(c, _)| cost < *c) && matches(&offer, &words(&draft.desc), &near) {
                best = Some((cost, draft.desc));
                break;
            }
        }
    }
    best.map(|(_, desc)| Terms::of(schema, &desc))
}

/// Nodes of an expression, values of its lists included.
fn nodes(e: &Expr) -> usize {
    match e {
        Expr::Literal(_) | Expr::Fact(..) => 1,
        Expr::Not(e) => 1 + nodes(e),
        Expr::In(e, values) => 1 + nodes(e) + values.len(),
        Expr::Binary(_, a, b) => 1 + nodes(a) + nodes(b),
    }
}

/// Whether the predicate holds, after changes where it has to be.
fn satisfy<'a>(draft: &mut Draft<'a>, predicate: Option<&'a Expr>) -> bool {
    let Some(predicate) = predicate else { return true };
    // What one clause asks for may break another, which is then adapted to it.
    for _ in 0..3 {
        if draft.make(predicate, true).is_none() {
            return false;
        }
        if predicate.holds(&draft.facts()) == Ok(true) {
            return true;
        }
    }
    false
}

fn words(desc: &[u8]) -> Vec<u64> {
    desc.chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        })
        .collect()
}

/// Rows of selectors with rows of dtypes, and in how much they differ from the key: the nearest first.
fn pairs(key: &Key, selectors: &[Vec<u32>], dtypes: &[Vec<DType>]) -> Vec<(usize, Key)> {
    let (selectors, dtypes) = (sorted(&key.selectors, selectors), sorted(&key.dtypes, dtypes));
    let mut pairs: Vec<(usize, usize, usize)> = Vec::new();
    for (i, (s, _)) in selectors.iter().enumerate() {
        // Any pair of earlier rows is as near.
        let dtypes = dtypes.iter().enumerate().take(TRIED / (i + 1));
        pairs.extend(dtypes.map(|(j, (d, _))| (4 * s + d, i, j)));
    }
    pairs.sort_unstable();
    pairs.truncate(TRIED);
    let key = |i: usize, j: usize| Key { selectors: selectors[i].1.clone(), dtypes: dtypes[j].1.clone() };
    pairs.into_iter().map(|(cost, i, j)| (cost, key(i, j))).collect()
}

fn sorted<'r, T: PartialEq>(asked: &[T], rows: &'r [Vec<T>]) -> Vec<(usize, &'r Vec<T>)> {
    let differing = |row: &[T]| row.iter().zip(asked).map(|(x, y)| x != y).collect::<Vec<_>>();
    let cost = |row: &[T]| differing(row).into_iter().filter(|d| *d).count();
    let foreign = |row: &[T]| row.iter().filter(|v| !asked.contains(v)).count();
    let mut rows: Vec<_> = rows.iter().map(|r| (cost(r), r)).collect();
    // Of rows that are as near, one of values that the request has anyway, and that keeps the first ones: for
    // (f32, bool) rather (f32, f32) than (f32, f16), and than (bool, bool).
    rows.sort_by_cached_key(|(cost, r)| (*cost, foreign(r), differing(r)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use ep_core::hob::{attr, device, dtype, limit};
    use ep_core::schema::core_schema;
    use std::sync::Arc;

    /// What `softmax(src f32, dst f32)` with these limits becomes, so that the predicate holds.
    fn softmax(limits: &[(&str, u64)], predicate: &Expr) -> Option<String> {
        let mut request = Request::new(Arc::new(core_schema("softmax").unwrap().clone()));
        for role in ["src", "dst"] {
            request = request.dtype(role, "f32").unwrap();
        }
        for (name, n) in limits {
            request = request.limit(name, *n).unwrap();
        }
        adapted(&request, predicate)
    }

    fn adapted(request: &Request, predicate: &Expr) -> Option<String> {
        let device = [("most".to_owned(), Value::Int(512))];
        let desc = request.words().iter().flat_map(|w| w.to_ne_bytes()).collect();
        let schema = request.schema();
        let mut draft = Draft { schema, device: &device, desc, changed: Vec::new() };
        satisfy(&mut draft, Some(predicate)).then(|| Terms::of(schema, &draft.desc).to_string())
    }

    fn becomes(limits: &[(&str, u64)], predicate: &Expr, with: &str) {
        let found = softmax(limits, predicate).unwrap_or_else(|| panic!("nothing for {predicate}"));
        assert_eq!(found, format!("softmax(src f32, dst f32){with}"), "{predicate}");
    }

    #[test]
    fn limits_are_adapted_to_every_clause() {
        let (cols, alignment) = (|| limit("cols"), || limit("alignment"));
        becomes(&[], &(cols().le(1024) & alignment().ge(16)), " with limit cols <= 1024, alignment >= 16");
        becomes(
            &[("cols", 7)],
            &(cols().le(1024) & alignment().ge(16)),
            " with limit cols <= 7, alignment >= 16",
        );
        becomes(&[("cols", 2000)], &cols().lt(1024), " with limit cols <= 1023");
        becomes(&[("cols", 5)], &(cols().ge(7) & cols().le(9)), " with limit cols <= 7");
        becomes(&[("cols", 5)], &cols().gt(7), " with limit cols <= 8");
        becomes(&[], &cols().eq(64), " with limit cols <= 64");
        becomes(&[("cols", 100)], &cols().is_in([32, 64, 128]), " with limit cols <= 128");
        becomes(&[], &cols().is_in([32, 64, 128]), " with limit cols <= 128");
        // Turned round, negated, and with a bound that the device says.
        becomes(&[], &Expr::from(9).ge(cols()), " with limit cols <= 9");
        becomes(&[], &!cols().gt(9), " with limit cols <= 9");
        becomes(&[], &!(cols().gt(9) | alignment().lt(4)), " with limit cols <= 9, alignment >= 4");
        becomes(&[], &cols().le(device("most")), " with limit cols <= 512");
        // An alignment is a power of two.
        becomes(&[], &alignment().ge(17), " with alignment >= 32");
        becomes(&[("alignment", 64)], &alignment().le(17), " with alignment >= 16");
        becomes(&[("alignment", 64)], &alignment().le(0), "");
        // Of several ways the one with the fewest changes; what can never be true has none.
        let two = cols().le(4) & alignment().ge(16);
        becomes(&[], &(two.clone() | cols().le(2)), " with limit cols <= 2");
        // One that holds already needs none, though another would only change again what is changed.
        becomes(&[], &(cols().le(3) & (cols().eq(2) | cols().le(4))), " with limit cols <= 3");
        becomes(&[], &(dtype("src").eq(ep_core::DType::F16) | two), " with limit cols <= 4, alignment >= 16");
    }

    #[test]
    fn what_cannot_be_derived_is_not_guessed() {
        let cols = || limit("cols");
        let sum = Expr::Binary(BinaryOp::Add, Box::new(cols()), Box::new(1.into()));
        for hopeless in [
            cols().le(0),
            cols().eq(2.5),
            cols().le(4) & cols().ge(5),
            limit("alignment").eq(3),
            sum.le(8),
            cols().le(limit("alignment")),
            dtype("src").eq(ep_core::DType::F16),
            device("most").lt(3) & cols().le(4),
        ] {
            assert_eq!(softmax(&[], &hopeless), None, "{hopeless}");
        }
        assert_eq!(softmax(&[("cols", 4)], &cols().ne(4)), None);
    }

    #[test]
    fn attributes_are_adapted() {
        let request = Request::new(Arc::new(core_schema("elementwise_unary").unwrap().clone()));
        let request = request.attr("attr0", 3.0).unwrap();
        let found = |predicate: &Expr| adapted(&request, predicate).unwrap_or_default();
        let x = || attr("attr0");
        assert!(found(&x().eq(1)).ends_with("with attribute attr0 = 1"), "{}", found(&x().eq(1)));
        assert!(found(&x().le(-0.5)).ends_with("with attribute attr0 = -0.5"));
        assert!(found(&x().is_in([0.5, 2.5])).ends_with("attr0 = 2.5"));
        assert!(found(&x().lt(1)).ends_with("attr0 = 0.9999999999999999"));
        assert_eq!(found(&x().ne(3)), "");
    }

    #[test]
    fn the_nearest_pairs_come_first() {
        let (f16, f32) = (DType::F16, DType::F32);
        let key = Key { selectors: vec![5], dtypes: vec![f32, f32] };
        let selectors: Vec<Vec<u32>> = (0..400).map(|v| vec![v]).collect();
        let dtypes = [vec![f16, f16], vec![f16, f32], vec![f32, f32]];
        let found = pairs(&key, &selectors, &dtypes);
        assert_eq!(found.len(), TRIED);
        assert_eq!(found[0], (0, key.clone()));
        assert_eq!(found[1], (1, Key { dtypes: vec![f16, f32], ..key.clone() }));
        assert_eq!(found[2].0, 2);
        assert_eq!(found[3], (4, Key { selectors: vec![0], ..key }));
        assert!(found.is_sorted_by_key(|(cost, _)| *cost));
        let bool = DType::BOOL;
        let key = Key { selectors: vec![], dtypes: vec![f32, bool] };
        let found = pairs(&key, &[vec![]], &[vec![f32, f16], vec![bool, bool], vec![f32, f32]]);
        assert_eq!((found[0].0, &found[0].1.dtypes), (1, &vec![f32, f32]));
    }
}
