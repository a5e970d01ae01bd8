//! Op schemas, decoded: what a request and a launch of an op consist of, as data.
//!
//! Core ops and vendor ops take the same path: a schema crosses the ABI as `EpOpSchema` and is decoded and
//! checked here. Everything generic is driven by it: registration, keys, `query`, the dynamic API, the
//! conformance kit, the tables in the docs.

mod decode;
mod request;

pub use decode::decode_schema;
pub use request::{ArgsFacts, DescFacts, Key, MAX_STRUCT};

use crate::abi::EpOpSchema;
use crate::hob::{Expr, FactKind, Facts, Value};
use crate::op::OperandUse;
use crate::{Result, primitive};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// One op.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    /// `softmax`, or `vendor.name`.
    pub name: String,
    /// Rises when existing fields change their meaning.
    pub version: u32,
    /// Whether equal input gives bit-equal output.
    pub deterministic: bool,
    /// One sentence.
    pub summary: String,
    /// The written contract.
    pub contract: String,
    /// Fields of the descriptor.
    pub desc: Vec<DescField>,
    /// Bytes of the descriptor.
    pub desc_size: usize,
    /// Fields of the arguments.
    pub args: Vec<ArgField>,
    /// Bytes of the arguments.
    pub args_size: usize,
    /// The buffers.
    pub operands: Vec<Operand>,
    /// Arithmetic operations of a launch.
    pub flops: Option<Expr>,
}

/// A field of a descriptor.
#[derive(Debug, Clone, PartialEq)]
pub struct DescField {
    /// Its name. The struct member of a limit is called `max_<name>`.
    pub name: String,
    /// One sentence.
    pub doc: String,
    /// What it is.
    pub kind: DescKind,
    /// Byte offset in the descriptor.
    pub offset: usize,
}

/// What a descriptor field is.
#[derive(Debug, Clone, PartialEq)]
pub enum DescKind {
    /// An enum (u32) that is part of the key; the names of values 0, 1, ...
    Selector(Vec<String>),
    /// A dtype (u32), part of the key.
    DType,
    /// A number (f64) with its default.
    Attr(f64),
    /// A bound (u64, 0 = none) on an expression over the arguments.
    Limit(Expr),
}

/// A field of an argument struct.
#[derive(Debug, Clone, PartialEq)]
pub struct ArgField {
    /// Its name.
    pub name: String,
    /// One sentence.
    pub doc: String,
    /// What it is.
    pub kind: ArgKind,
    /// Byte offset in the arguments.
    pub offset: usize,
}

/// What an argument field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgKind {
    /// A non-negative i64.
    Size,
    /// A pointer to i64 values; the index of the field with their number.
    Dims {
        /// Index of the size field.
        length: usize,
    },
    /// A pointer to signed i64 values; the index of the field with their number.
    Ints {
        /// Index of the size field.
        length: usize,
    },
    /// A device address (u64).
    Address,
    /// A pointer to device addresses; the index of the field with their number.
    Addresses {
        /// Index of the size field.
        length: usize,
    },
    /// An `EpScalar`.
    Scalar,
}

/// A buffer that an op reads or writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Operand {
    /// Its name.
    pub name: String,
    /// Index of its dtype among the descriptor's fields; `None`: counted in bytes.
    pub dtype: Option<usize>,
    /// Whether it is read.
    pub reads: bool,
    /// Whether it is written.
    pub writes: bool,
    /// Whether it may be absent.
    pub optional: bool,
    /// Index of its address among the arguments. Of the last operand, that may be a list: one buffer for each
    /// address.
    pub arg: usize,
    /// Index of a scalar argument: of a read operand, one that stands in for it; of a read-write operand, the
    /// factor without which it is not read.
    pub scalar: Option<usize>,
    /// Bit i: may be exactly the memory of operand i.
    pub in_place: u64,
    /// Elements (bytes without a dtype).
    pub count: Expr,
    /// How many of them a launch writes, if not all; the rest keeps its content.
    pub covers: Option<Expr>,
}

impl Schema {
    /// The selectors, in order, with their values' names.
    pub fn selectors(&self) -> impl Iterator<Item = (&DescField, &[String])> {
        self.desc.iter().filter_map(|f| match &f.kind {
            DescKind::Selector(choices) => Some((f, choices.as_slice())),
            _ => None,
        })
    }

    /// The dtype fields, in order.
    pub fn dtypes(&self) -> impl Iterator<Item = &DescField> {
        self.desc.iter().filter(|f| f.kind == DescKind::DType)
    }

    /// The descriptor field of this name.
    pub fn desc_field(&self, name: &str) -> Option<&DescField> {
        self.desc.iter().find(|f| f.name == name)
    }

    /// The size argument that counts the buffers of the last operand, if that is a list.
    pub fn list_length(&self) -> Option<usize> {
        match self.args[self.operands.last()?.arg].kind {
            ArgKind::Addresses { length } => Some(length),
            _ => None,
        }
    }

    /// The operand that buffer `index` of a launch belongs to: all buffers of a list are of the last one.
    #[inline]
    pub fn operand_of(&self, index: usize) -> usize {
        index.min(self.operands.len().saturating_sub(1))
    }

    /// The argument of this name.
    pub fn arg_field(&self, name: &str) -> Option<&ArgField> {
        self.args.iter().find(|f| f.name == name)
    }

    /// Whether a launch has to say what this argument is: a shape, but that of an operand that a scalar may stand in for, or
    /// a size without which an operand would have no elements. Other sizes may be left out: their 0 means what their text
    /// says.
    pub fn needs(&self, arg: usize) -> bool {
        let field = &self.args[arg];
        let without = Without(&field.name);
        match field.kind {
            ArgKind::Dims { .. } => {
                let stands_in = |x: &&Operand| x.scalar.is_some() && !x.writes;
                !self.operands.iter().filter(stands_in).any(|x| x.count.mentions(&field.name))
            }
            ArgKind::Size => self.operands.iter().any(|x| matches!(x.count.amount(&without), Ok(0))),
            _ => false,
        }
    }

    /// Bytes that a launch of a primitive with this descriptor reads and writes: the figure that bandwidth is
    /// computed from.
    ///
    /// # Errors
    /// When the arguments do not fit the schema.
    pub fn bytes(&self, desc: &[u8], args: &ArgsFacts<'_>) -> Result<u64> {
        let passes = |u: &OperandUse| u64::from(u.reads) + u64::from(u.writes);
        let uses = self.uses(desc, args)?;
        Ok(uses.iter().fold(0, |n, u| u.bytes.saturating_mul(passes(u)).saturating_add(n)))
    }

    /// Arithmetic operations of a launch; 0 where the schema does not say.
    ///
    /// # Errors
    /// When the arguments do not fit the schema.
    pub fn flops(&self, args: &dyn Facts) -> Result<u64> {
        self.flops.as_ref().map_or(Ok(0), |f| f.amount(args))
    }

    /// The first way in which two views of one op disagree: one side may know more fields at the end, but no more dtypes,
    /// which every request sets; nothing else. `None` when they fit.
    pub fn conflict(&self, other: &Schema) -> Option<String> {
        if self.version != other.version {
            return Some(format!("schema version {} here and {} there", self.version, other.version));
        }
        if (self.deterministic, &self.flops) != (other.deterministic, &other.flops) {
            return Some("another determinism or cost".to_owned());
        }
        let desc = self.desc.iter().zip(&other.desc).find_map(|(a, b)| {
            let same = a.name == b.name && a.offset == b.offset && desc_kinds_fit(&a.kind, &b.kind);
            (!same).then(|| format!("descriptor field `{}` here is `{}` there", a.name, b.name))
        });
        let appended = || {
            let shared = self.desc.len().min(other.desc.len());
            let mut more = self.desc.iter().skip(shared).chain(other.desc.iter().skip(shared));
            let dtype = more.find(|f| f.kind == DescKind::DType)?;
            Some(format!(
                "only one side has the dtype `{}`, and 0 is no dtype for the other to mean",
                dtype.name
            ))
        };
        let args = || {
            self.args.iter().zip(&other.args).find_map(|(a, b)| {
                let same = (&a.name, a.offset, a.kind) == (&b.name, b.offset, b.kind);
                (!same).then(|| format!("argument `{}` here is `{}` there", a.name, b.name))
            })
        };
        let operands = || {
            // All of an operand decides which memory a launch touches, and the host checks it for the provider.
            let mut pairs = self.operands.iter().zip(&other.operands);
            match pairs.find(|(a, b)| a != b) {
                Some((a, b)) => Some(format!(
                    "operand `{}` here is `{}` there, or differs in dtype, access, size or in-place rule",
                    a.name, b.name
                )),
                None if self.operands.len() != other.operands.len() => {
                    Some(format!("{} operands here and {} there", self.operands.len(), other.operands.len()))
                }
                None => None,
            }
        };
        desc.or_else(appended).or_else(args).or_else(operands)
    }
}

/// One size that is 0 while all others are 2.
struct Without<'a>(&'a str);

impl Facts for Without<'_> {
    fn fact(&self, _: FactKind, name: &str) -> Option<Value<'_>> {
        Some(Value::Int(if name == self.0 { 0 } else { 2 }))
    }
}

/// Enums may have grown at the end; everything else is equal.
fn desc_kinds_fit(a: &DescKind, b: &DescKind) -> bool {
    match (a, b) {
        (DescKind::Selector(x), DescKind::Selector(y)) => x.iter().zip(y).all(|(x, y)| x == y),
        (DescKind::Attr(x), DescKind::Attr(y)) => x.to_bits() == y.to_bits(),
        (DescKind::Limit(x), DescKind::Limit(y)) => x == y,
        (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

static CORE: LazyLock<HashMap<String, Arc<Schema>>> = LazyLock::new(|| {
    primitive::core_schemas()
        .into_iter()
        .map(|raw| {
            // SAFETY: generated static data.
            let schema = unsafe { decode_schema(raw) }.expect("the generated schemas are valid");
            (schema.name.clone(), Arc::new(schema))
        })
        .collect()
});

/// The decoded form of a static schema; decoded once.
///
/// # Safety
/// `raw` is valid as the schema of an op: everything that it points to is static.
///
/// # Panics
/// When the schema is malformed, which is a defect of the op's own definition.
pub unsafe fn schema_of(raw: &'static EpOpSchema) -> &'static Schema {
    static DECODED: RwLock<BTreeMap<usize, &'static Schema>> = RwLock::new(BTreeMap::new());
    let key = std::ptr::from_ref(raw).addr();
    if let Some(known) = DECODED.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return known;
    }
    // SAFETY: as the caller promises.
    let schema = unsafe { decode_schema(raw) }.unwrap_or_else(|e| panic!("{e}"));
    let mut decoded = DECODED.write().unwrap_or_else(PoisonError::into_inner);
    decoded.entry(key).or_insert_with(|| Box::leak(Box::new(schema)))
}

/// The core op of this name.
pub fn core_schema(name: &str) -> Option<&'static Schema> {
    CORE.get(name).map(|s| &**s)
}

/// All core ops, shared.
pub fn core_schemas() -> impl Iterator<Item = Arc<Schema>> {
    CORE.values().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_schemas_decode_and_agree_with_themselves() {
        assert_eq!(CORE.len(), primitive::core_schemas().len());
        for s in CORE.values() {
            assert_eq!(s.conflict(s), None, "{}", s.name);
            assert!(!s.contract.is_empty());
        }
    }

    #[test]
    fn sizes_without_which_there_is_nothing_are_needed() {
        let needed = |op: &str| {
            let s = core_schema(op).unwrap();
            let needed = (0..s.args.len()).filter(|i| s.needs(*i));
            needed.map(|i| s.args[i].name.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(needed("matmul"), "m n k");
        assert_eq!(needed("softmax"), "rows cols");
        assert_eq!(needed("gather"), "outer processed inner num_indices");
        assert_eq!(needed("one_hot"), "num_indices depth");
        assert_eq!(needed("add"), "count");
        assert_eq!(needed("memcpy"), "bytes");
        assert_eq!(needed("permute"), "src_dims permutation");
        assert_eq!(needed("constant_pad"), "src_dims");
        assert_eq!(needed("strided_copy"), "dims");
        assert_eq!(needed("broadcast_elementwise_binary"), "");
        assert_eq!(needed("where"), "cond_dims x_dims y_dims");
    }

    #[test]
    fn conflicts_are_found() {
        let s = core_schema("softmax").unwrap();
        let mut longer = s.clone();
        longer.desc.push(DescField {
            name: "x".into(),
            doc: String::new(),
            kind: DescKind::Attr(0.0),
            offset: 32,
        });
        assert_eq!(s.conflict(&longer), None);
        assert_eq!(longer.conflict(s), None);
        longer.desc[3].kind = DescKind::Selector(vec!["off".into(), "on".into()]);
        assert_eq!(s.conflict(&longer), None);
        longer.desc[3].kind = DescKind::DType;
        assert!(s.conflict(&longer).unwrap().contains("the dtype `x`"));
        assert!(longer.conflict(s).unwrap().contains("the dtype `x`"));
        let mut swapped = s.clone();
        swapped.args.swap(0, 1);
        assert!(s.conflict(&swapped).unwrap().contains("`rows`"));
        let mut stricter = s.clone();
        stricter.operands[1].in_place = 0;
        assert!(s.conflict(&stricter).unwrap().contains("`dst`"));
        let mut larger = s.clone();
        larger.operands[0].count = crate::hob::arg("cols");
        assert!(larger.conflict(s).unwrap().contains("`src`"));
        let mut bounded = s.clone();
        bounded.desc[2].kind = DescKind::Limit(crate::hob::arg("rows"));
        assert!(s.conflict(&bounded).unwrap().contains("`cols`"));
        let mut free = s.clone();
        free.flops = None;
        assert!(s.conflict(&free).unwrap().contains("cost"));
        let mut newer = s.clone();
        newer.version = 2;
        assert!(s.conflict(&newer).unwrap().contains("version"));
    }
}
