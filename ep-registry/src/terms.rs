//! What a request says, by names.

use ep_core::hob::{FactKind, Facts, Value};
use ep_core::schema::{DescFacts, DescKind, Schema};
use std::fmt;

/// What a request says, by names: enough to make it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// The op.
    pub op: String,
    /// Each selector with its value.
    pub selectors: Vec<(String, String)>,
    /// Each role with its dtype.
    pub dtypes: Vec<(String, String)>,
    /// Limits that are set; `alignment` is one of them.
    pub limits: Vec<(String, u64)>,
    /// Attributes that are not at their default.
    pub attrs: Vec<(String, f64)>,
}

impl Terms {
    /// Those of a descriptor.
    pub(crate) fn of(schema: &Schema, desc: &[u8]) -> Terms {
        let facts = DescFacts { schema, desc, device: &[] };
        let mut terms = Terms {
            op: schema.name.clone(),
            selectors: Vec::new(),
            dtypes: Vec::new(),
            limits: Vec::new(),
            attrs: Vec::new(),
        };
        let text =
            |kind, name: &str| facts.fact(kind, name).map_or_else(|| "?".to_owned(), |v| v.to_string());
        let limit = |name: &str| match facts.fact(FactKind::Limit, name) {
            Some(Value::Int(n)) => u64::try_from(n).ok().filter(|n| *n != 0),
            _ => None,
        };
        for field in &schema.desc {
            let name = field.name.clone();
            match &field.kind {
                DescKind::Selector(_) => {
                    let value = text(FactKind::Selector, &name);
                    terms.selectors.push((name, value));
                }
                DescKind::DType => {
                    let value = text(FactKind::DType, &name);
                    terms.dtypes.push((name, value));
                }
                DescKind::Limit(_) => terms.limits.extend(limit(&name).map(|n| (name, n))),
                DescKind::Attr(default) => match facts.fact(FactKind::Attr, &name) {
                    Some(Value::Float(x)) if x.to_bits() != default.to_bits() => terms.attrs.push((name, x)),
                    _ => {}
                },
            }
        }
        terms.limits.extend(limit("alignment").map(|n| ("alignment".to_owned(), n)));
        terms
    }
}

/// `softmax(src f16, dst f32) with limit cols <= 1024, alignment >= 16`.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.op)?;
        let selectors = self.selectors.iter().map(|(name, value)| format!("{name}={value}"));
        let key: Vec<_> =
            selectors.chain(self.dtypes.iter().map(|(role, dtype)| format!("{role} {dtype}"))).collect();
        if !key.is_empty() {
            write!(f, "({})", key.join(", "))?;
        }
        let limits = self.limits.iter().map(|(name, n)| match name.as_str() {
            "alignment" => format!("alignment >= {n}"),
            _ => format!("limit {name} <= {n}"),
        });
        let attrs = self.attrs.iter().map(|(name, x)| format!("attribute {name} = {x}"));
        let more: Vec<_> = limits.chain(attrs).collect();
        if more.is_empty() { Ok(()) } else { write!(f, " with {}", more.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::schema::core_schema;

    #[test]
    fn everything_that_is_set_is_told() {
        let schema = core_schema("softmax").unwrap();
        let request = crate::Request::new(std::sync::Arc::new(schema.clone()));
        let request = request.dtype("src", "f16").unwrap().dtype("dst", "f32").unwrap();
        let words = |r: &crate::Request| r.words().iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        assert_eq!(Terms::of(schema, &words(&request)).to_string(), "softmax(src f16, dst f32)");
        let request = request.limit("cols", 1024).unwrap().limit("alignment", 16).unwrap();
        let text = "softmax(src f16, dst f32) with limit cols <= 1024, alignment >= 16";
        assert_eq!(Terms::of(schema, &words(&request)).to_string(), text);
        let schema = core_schema("elementwise_unary").unwrap();
        let request = crate::Request::new(std::sync::Arc::new(schema.clone()));
        let request = request.selector("op", "elu").unwrap().attr("attr0", -0.5).unwrap();
        let text = "elementwise_unary(op=elu, src invalid, dst invalid) with attribute attr0 = -0.5";
        assert_eq!(Terms::of(schema, &words(&request)).to_string(), text);
    }
}
