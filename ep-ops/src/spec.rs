//! What is known of a tensor without its data.

use ep_core::op::MAX_DIMS;
use ep_core::{DType, Error, Result};
use smallvec::SmallVec;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Sizes of dimensions: a list, without an allocation for what a tensor may have.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[i64; MAX_DIMS]>);

impl Deref for Shape {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [i64] {
        &mut self.0
    }
}

impl<'s> IntoIterator for &'s Shape {
    type Item = &'s i64;
    type IntoIter = std::slice::Iter<'s, i64>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<i64> for Shape {
    fn from_iter<I: IntoIterator<Item = i64>>(sizes: I) -> Shape {
        Shape(sizes.into_iter().collect())
    }
}

impl From<&[i64]> for Shape {
    fn from(sizes: &[i64]) -> Shape {
        Shape(SmallVec::from_slice(sizes))
    }
}

impl<const N: usize> From<[i64; N]> for Shape {
    fn from(sizes: [i64; N]) -> Shape {
        Shape::from(&sizes[..])
    }
}

impl<const N: usize> From<&[i64; N]> for Shape {
    fn from(sizes: &[i64; N]) -> Shape {
        Shape::from(&sizes[..])
    }
}

impl From<Vec<i64>> for Shape {
    fn from(sizes: Vec<i64>) -> Shape {
        Shape::from(&sizes[..])
    }
}

impl<T: AsRef<[i64]>> PartialEq<T> for Shape {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

/// `[2, 3]`.
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A dtype and a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The element type.
    pub dtype: DType,
    /// Sizes of the dimensions; none for a single element.
    pub shape: Shape,
}

impl Spec {
    /// A dtype and a shape.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Spec {
        Spec { dtype, shape: shape.into() }
    }

    /// Dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Elements.
    ///
    /// # Errors
    /// `InvalidArgument` for a negative size, or more elements than an i64 counts. (A size of 0 hides neither.)
    pub fn count(&self) -> Result<i64> {
        count(&self.shape)
    }

    /// A dimension from its number, which counts from the end where it is negative.
    ///
    /// # Errors
    /// `InvalidArgument` outside of `-rank..rank`. A single element is taken to have one dimension.
    pub fn dim(&self, dim: i64) -> Result<usize> {
        wrap(dim, self.rank().max(1))
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// A dimension of so many, which counts from the end where it is negative.
pub(crate) fn wrap(dim: i64, rank: usize) -> Result<usize> {
    let n = rank as i64;
    if (-n..n).contains(&dim) {
        return Ok(if dim < 0 { dim + n } else { dim } as usize);
    }
    Err(Error::invalid(format!(
        "dimension {dim} of {rank}: -{rank} to {} are possible",
        rank.saturating_sub(1)
    )))
}

/// Elements of a shape.
pub(crate) fn count(shape: &[i64]) -> Result<i64> {
    if let Some(bad) = shape.iter().find(|n| **n < 0) {
        return Err(Error::invalid(format!("shape {shape:?} has the negative size {bad}")));
    }
    let all = shape.iter().filter(|n| **n != 0).try_fold(1i64, |all, n| all.checked_mul(*n));
    let all =
        all.ok_or_else(|| Error::invalid(format!("shape {shape:?} has more elements than an i64 counts")))?;
    Ok(if shape.contains(&0) { 0 } else { all })
}

/// In which order a dense tensor's elements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MemoryFormat {
    /// The last dimension is the innermost.
    #[default]
    Contiguous,
    /// Of [n, c, h, w] the channels are the innermost: n, h, w, c.
    ChannelsLast,
    /// Of [n, c, d, h, w] the channels are the innermost: n, d, h, w, c.
    ChannelsLast3d,
    /// That of the source where it is dense and has no overlap, else that of strides sorted as the source's.
    Preserve,
}
