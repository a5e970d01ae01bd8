//! What is launched.

use ep_core::{DType, Scalar};
use ep_registry::query::Row;
use std::fmt;

/// An op with its selectors and dtypes, by the names of its schema.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The op.
    pub op: String,
    /// Selectors and their values.
    pub selectors: Vec<(String, String)>,
    /// Roles and their dtypes.
    pub dtypes: Vec<(String, DType)>,
}

impl Key {
    /// The key of a row of a query, unless a dtype is not known in this process.
    pub fn from_row(row: &Row) -> Option<Key> {
        let dtype = |(role, name): &(String, String)| Some((role.clone(), dtype_named(name)?));
        let dtypes = row.dtypes.iter().map(dtype).collect::<Option<_>>()?;
        Some(Key { op: row.op.clone(), selectors: row.selectors.clone(), dtypes })
    }

    /// Whether there is a reference of the op for these dtypes.
    pub fn has_reference(&self) -> bool {
        let known = primitives::reference::ops().any(|op| op == self.op);
        known && self.dtypes.iter().all(|(_, d)| DType::ALL.contains(d))
    }

    /// `op=relu,src=f32,dst=f32`: the selectors and dtypes as a part of a case's name; `-` if there are none.
    pub fn slug(&self) -> String {
        let selectors = self.selectors.iter().map(|(n, v)| format!("{n}={v}"));
        let dtypes = self.dtypes.iter().map(|(n, d)| format!("{n}={d}"));
        let all: Vec<_> = selectors.chain(dtypes).collect();
        if all.is_empty() { "-".to_owned() } else { all.join(",") }
    }

    /// The dtype of a role; [`DType::INVALID`] if there is no such role.
    pub fn dtype(&self, role: &str) -> DType {
        self.dtypes.iter().find(|(r, _)| r == role).map_or(DType::INVALID, |(_, d)| *d)
    }

    /// The value of a selector; empty if there is no such selector.
    pub fn selector(&self, name: &str) -> &str {
        self.selectors.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
    }

    /// The element size of a role in bytes.
    pub fn size(&self, role: &str) -> usize {
        self.dtype(role).bytes_for_bounds() as usize
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.op)?;
        self.selectors.iter().try_for_each(|(n, v)| write!(f, " {n}={v}"))?;
        self.dtypes.iter().try_for_each(|(n, v)| write!(f, " {n}={v}"))
    }
}

/// A dtype of the core or of a vendor.
pub(crate) fn dtype_named(name: &str) -> Option<DType> {
    DType::parse(name).ok().or_else(|| ep_core::dtype::vendor::by_name(name).map(|v| v.dtype))
}

/// What the operands that are read hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Numbers of modest size; integers of all sizes.
    Modest,
    /// The same, with NaN, infinities and zeros of both signs among them.
    NonFinite,
    /// Any bits, with NaN, infinities, zeros of both signs and the ends of the range among them. Bools of any byte.
    Wild,
    /// Zeros for the most part, with a few NaN and infinities, which meet them in products.
    Sparse,
    /// Few different numbers, so that many are equal.
    Few,
    /// The same as modest, with few infinities, all positive, so that a sum over them is infinite and no NaN.
    Infinite,
    /// In operand `src` numbers that lie close together, far from zero; modest ones in others.
    Offset,
}

/// One launch.
#[derive(Clone, Debug)]
pub struct Case {
    /// Of what.
    pub key: Key,
    /// The trait that it is there for.
    pub name: &'static str,
    /// Attributes of the descriptor.
    pub attrs: Vec<(&'static str, f64)>,
    /// Sizes.
    pub sizes: Vec<(&'static str, i64)>,
    /// Dims and other lists of numbers.
    pub lists: Vec<(&'static str, Vec<i64>)>,
    /// Scalars.
    pub scalars: Vec<(&'static str, Scalar)>,
    /// Buffers of the list operand, for ops that have one.
    pub arity: usize,
    /// Optional operands that are left out.
    pub absent: Vec<&'static str>,
    /// An output, and the source whose memory it is.
    pub in_place: Option<(&'static str, &'static str)>,
    /// What is read.
    pub content: Content,
    /// Operand `indices` holds values from this range.
    pub indices: (i64, i64),
    /// One of them is an integer of that dtype which is far outside.
    pub far_index: bool,
    /// Elements between an aligned address and each operand.
    pub shift: usize,
    /// The same launch with fewer of the outermost elements, whose content this one repeats over and over; so the
    /// reference computes only that.
    pub period: Option<Box<Case>>,
    /// Seed of the content.
    pub seed: u64,
}

impl Case {
    /// A case without arguments.
    pub fn new(key: &Key, name: &'static str) -> Case {
        Case {
            key: key.clone(),
            name,
            attrs: Vec::new(),
            sizes: Vec::new(),
            lists: Vec::new(),
            scalars: Vec::new(),
            arity: 0,
            absent: Vec::new(),
            in_place: None,
            content: Content::Modest,
            indices: (0, 1),
            far_index: false,
            shift: 0,
            period: None,
            seed: 0,
        }
    }

    /// Sets sizes.
    #[must_use]
    pub fn sizes(mut self, sizes: &[(&'static str, i64)]) -> Case {
        self.sizes.extend_from_slice(sizes);
        self
    }

    /// Sets a list.
    #[must_use]
    pub fn list(mut self, name: &'static str, values: &[i64]) -> Case {
        self.lists.push((name, values.to_vec()));
        self
    }

    /// Sets a scalar.
    #[must_use]
    pub fn scalar(mut self, name: &'static str, value: Scalar) -> Case {
        self.scalars.push((name, value));
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn attr(mut self, name: &'static str, value: f64) -> Case {
        self.attrs.push((name, value));
        self
    }

    /// Puts an output where a source is.
    #[must_use]
    pub fn in_place(mut self, output: &'static str, source: &'static str) -> Case {
        self.in_place = Some((output, source));
        self
    }

    /// Sets the content.
    #[must_use]
    pub fn content(mut self, content: Content) -> Case {
        self.content = content;
        self
    }

    /// Moves the operands away from aligned addresses.
    #[must_use]
    pub fn shifted(mut self, elements: usize) -> Case {
        self.shift = elements;
        self
    }

    /// Makes the content that of a smaller launch, repeated.
    #[must_use]
    pub fn repeating(mut self, period: Case) -> Case {
        self.period = Some(Box::new(period));
        self
    }

    /// Sets the seed of the content.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
        if let Some(period) = &mut self.period {
            period.set_seed(seed);
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.key, self.name)?;
        self.attrs.iter().try_for_each(|(n, v)| write!(f, " {n}={v}"))?;
        self.sizes.iter().try_for_each(|(n, v)| write!(f, " {n}={v}"))?;
        self.lists.iter().try_for_each(|(n, v)| write!(f, " {n}={v:?}"))?;
        self.scalars.iter().try_for_each(|(n, v)| write!(f, " {n}={v}"))?;
        if self.arity != 0 {
            write!(f, " arity={}", self.arity)?;
        }
        self.absent.iter().try_for_each(|n| write!(f, " without {n}"))?;
        if let Some((output, source)) = self.in_place {
            write!(f, " {output} in {source}")?;
        }
        if self.far_index {
            f.write_str(" one index far outside")?;
        }
        if self.shift != 0 {
            write!(f, " misaligned by {}", self.shift)?;
        }
        write!(f, " {:?} seed={}", self.content, self.seed)
    }
}
