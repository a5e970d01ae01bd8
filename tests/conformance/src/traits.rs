//! Properties of cases that kernels are known to get wrong.

use crate::case::{Case, Content, Key};
use crate::geometry::written;
use ep_core::schema::{ArgKind, Schema};
use ep_core::{DType, Scalar};
use std::fmt;

/// A property of a case. It is found in the case itself, not claimed by whoever wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trait {
    /// The largest output has an odd number of elements, and more than one.
    Odd,
    /// There is nothing to write.
    Empty,
    /// Operands are aligned to their elements only.
    Misaligned,
    /// An output is the memory of a source.
    InPlace,
    /// NaN and infinities are among the sources or scalars.
    NonFinite,
    /// More than 1024 elements, along a dimension of more than 32 that is no multiple of 32.
    Tiles,
    /// Eight dimensions.
    Rank8,
    /// Elements that belong together are not next to each other.
    Strided,
    /// The largest output has 65,536 elements or more.
    Large,
}

impl Trait {
    /// All of them.
    pub const ALL: [Trait; 9] = [
        Trait::Odd,
        Trait::Empty,
        Trait::Misaligned,
        Trait::InPlace,
        Trait::NonFinite,
        Trait::Tiles,
        Trait::Rank8,
        Trait::Strided,
        Trait::Large,
    ];
}

impl fmt::Display for Trait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trait::Odd => "odd",
            Trait::Empty => "empty",
            Trait::Misaligned => "misaligned",
            Trait::InPlace => "in place",
            Trait::NonFinite => "non-finite",
            Trait::Tiles => "tiles",
            Trait::Rank8 => "rank 8",
            Trait::Strided => "strided",
            Trait::Large => "large",
        })
    }
}

/// Whether the op computes on complex numbers, so that results with infinite parts are not agreed.
pub(crate) fn arithmetic_of_complex(key: &Key) -> bool {
    const EXACT: [&str; 8] = ["", "cast", "identity", "conj", "real", "imag", "equal", "not_equal"];
    const MOVERS: [&str; 1] = ["cast"];
    let complex = key.dtypes.iter().any(|(_, d)| DType::COMPLEX.contains(d));
    let function = key.selector("op");
    let exact =
        if key.op.contains("elementwise") { EXACT.contains(&function) } else { MOVERS.contains(&&*key.op) };
    complex && !exact
}

/// Whether sources of the key can hold NaN and infinities whose effect on the result is agreed.
fn has_non_finite(key: &Key, schema: &Schema) -> bool {
    let function = key.selector("op");
    let gradient = function.contains("backward") || function.contains("_grad");
    let read = |x: &&ep_core::schema::Operand| x.reads && x.dtype.is_some();
    let float = |x: &ep_core::schema::Operand| {
        let role = x.dtype.map_or("", |d| &schema.desc[d].name);
        is_floating(key.dtype(role))
    };
    let scalar =
        schema.args.iter().any(|a| a.kind == ArgKind::Scalar) && !schema.operands.iter().any(|x| x.reads);
    let floating = schema.operands.iter().filter(read).any(float)
        || (scalar && key.dtypes.iter().any(|(_, d)| is_floating(*d)));
    // Sums and products of numbers beyond the range say nothing about a kernel.
    let accumulates = key.op == "reduce" && matches!(key.selector("op"), "sum" | "mean" | "prod");
    floating && !gradient && !accumulates && !arithmetic_of_complex(key)
}

fn is_floating(dtype: DType) -> bool {
    DType::FLOAT.contains(&dtype) || DType::COMPLEX.contains(&dtype)
}

/// The traits that at least one case of a key has to have.
pub fn applicable(key: &Key, schema: &Schema) -> Vec<Trait> {
    let applies = |t: &Trait| match t {
        Trait::Odd | Trait::Empty | Trait::Misaligned | Trait::Tiles | Trait::Large => true,
        Trait::InPlace => in_place_pairs(key, schema).next().is_some(),
        Trait::NonFinite => has_non_finite(key, schema),
        Trait::Rank8 => lists(schema).next().is_some(),
        Trait::Strided => {
            lists(schema).any(|n| n.ends_with("strides")) || schema.arg_field("inner").is_some()
        }
    };
    Trait::ALL.into_iter().filter(applies).collect()
}

fn lists(schema: &Schema) -> impl Iterator<Item = &str> {
    let list = |a: &&ep_core::schema::ArgField| matches!(a.kind, ArgKind::Dims { .. } | ArgKind::Ints { .. });
    schema.args.iter().filter(list).map(|a| a.name.as_str())
}

/// Outputs and the sources whose memory they may be: those with elements of one size.
pub fn in_place_pairs<'a>(key: &'a Key, schema: &'a Schema) -> impl Iterator<Item = (&'a str, &'a str)> {
    let size = |x: &ep_core::schema::Operand| {
        x.dtype.map_or(1, |d| key.dtype(&schema.desc[d].name).bytes_for_bounds())
    };
    schema.operands.iter().flat_map(move |output| {
        let source = move |(i, source): &(usize, &'a ep_core::schema::Operand)| {
            output.in_place & (1 << i) != 0 && size(source) == size(output)
        };
        let pair = move |(_, source): (usize, &'a ep_core::schema::Operand)| (&*output.name, &*source.name);
        schema.operands.iter().enumerate().filter(source).map(pair)
    })
}

/// The traits that a case has; none for one that does not fit the schema.
pub fn traits(case: &Case, schema: &Schema) -> Vec<Trait> {
    let Ok(written) = written(case, schema) else { return Vec::new() };
    let mut extents: Vec<i64> = case.sizes.iter().map(|(_, n)| *n).collect();
    extents.extend(case.lists.iter().filter(|(n, _)| !n.ends_with("strides")).flat_map(|(_, l)| l));
    let scalar = |s: &Scalar| matches!(s, Scalar::F64(x) if !x.is_finite());
    let strided = |(name, strides): &(&str, Vec<i64>)| {
        // Row-major and contiguous strides end with 1 and never fall behind the next.
        name.ends_with("strides")
            && (strides.last().is_some_and(|s| *s != 1) || strides.windows(2).any(|w| w[0] < w[1]))
    };
    let inner = case.sizes.iter().any(|(n, v)| *n == "inner" && *v > 1);
    let has = |t: &Trait| match t {
        Trait::Odd => written > 1 && written % 2 == 1,
        Trait::Empty => written == 0,
        Trait::Misaligned => case.shift != 0,
        Trait::InPlace => case.in_place.is_some(),
        Trait::NonFinite => {
            let special = matches!(
                case.content,
                Content::NonFinite | Content::Infinite | Content::Wild | Content::Sparse
            );
            (special && has_non_finite(&case.key, schema)) || case.scalars.iter().any(|(_, s)| scalar(s))
        }
        Trait::Tiles => written > 1024 && extents.iter().any(|n| *n > 32 && n % 32 != 0),
        Trait::Rank8 => case.lists.iter().any(|(_, l)| l.len() == 8),
        Trait::Strided => case.lists.iter().any(strided) || inner,
        Trait::Large => written >= 1 << 16,
    };
    Trait::ALL.into_iter().filter(has).collect()
}
