//! Views: tensors of the same memory with other shapes and strides. None moves data.

use crate::layout::{self, Strides};
use crate::spec::wrap;
use crate::{Shape, Spec, Tensor};
use ep_core::op::MAX_DIMS;
use ep_core::{Error, Result};
use smallvec::SmallVec;

impl Tensor {
    /// Its dimensions in another order: dimension `i` of the view is dimension `dims[i]` of this.
    ///
    /// # Errors
    /// `InvalidArgument` unless `dims` names each dimension once.
    pub fn permute(&self, dims: &[i64]) -> Result<Tensor> {
        let refuse = |why: String| Error::invalid(format!("permute {self:?} by {dims:?}: {why}"));
        if dims.len() != self.rank() {
            return Err(refuse(format!("{} dimensions for {}", dims.len(), self.rank())));
        }
        let mut order: SmallVec<[usize; MAX_DIMS]> = SmallVec::new();
        for d in dims {
            let dim = wrap(*d, self.rank()).map_err(|e| refuse(e.message().to_owned()))?;
            if order.contains(&dim) {
                return Err(refuse(format!("dimension {dim} comes twice")));
            }
            order.push(dim);
        }
        let shape: Shape = order.iter().map(|d| self.shape()[*d]).collect();
        let strides = order.iter().map(|d| self.strides()[*d]).collect();
        self.with(shape, strides, self.offset())
    }

    /// Two dimensions exchanged.
    ///
    /// # Errors
    /// `InvalidArgument` for dimensions that it does not have.
    pub fn transpose(&self, a: i64, b: i64) -> Result<Tensor> {
        let (a, b) = (self.dim("transpose", a)?, self.dim("transpose", b)?);
        let (mut shape, mut strides) = (self.spec().shape.clone(), Strides::from_slice(self.strides()));
        if self.rank() > 0 {
            shape.swap(a, b);
            strides.swap(a, b);
        }
        self.with(shape, strides, self.offset())
    }

    /// A matrix transposed; a vector or single element as it is.
    ///
    /// # Errors
    /// `InvalidArgument` for more than two dimensions.
    pub fn t(&self) -> Result<Tensor> {
        match self.rank() {
            0 | 1 => Ok(self.alias()),
            2 => self.transpose(0, 1),
            rank => Err(Error::invalid(format!(
                "t of {self:?}: rank {rank}, and at most 2 is possible; use transpose"
            ))),
        }
    }

    /// `len` elements of a dimension, from `start` on, which counts from the end where it is negative.
    ///
    /// # Errors
    /// `InvalidArgument` for what is outside of the dimension.
    pub fn narrow(&self, dim: i64, start: i64, len: i64) -> Result<Tensor> {
        let dim = self.dim_of_some("narrow", dim)?;
        let size = self.shape()[dim];
        let first = if start < 0 { start.saturating_add(size) } else { start };
        if first < 0 || len < 0 || first > size || len > size - first {
            return Err(Error::invalid(format!(
                "narrow {self:?}: {len} elements from {start} on of dimension {dim}, which has {size}"
            )));
        }
        self.cut(dim, first, len, 1)
    }

    /// Elements `start..end` of a dimension, each `step`-th. Both count from the end where they are negative, and are
    /// clamped to what there is, as in Python.
    ///
    /// # Errors
    /// `InvalidArgument` for a step below 1, or a dimension that it does not have.
    pub fn slice(&self, dim: i64, start: i64, end: i64, step: i64) -> Result<Tensor> {
        let dim = self.dim_of_some("slice", dim)?;
        if step < 1 {
            return Err(Error::invalid(format!(
                "slice {self:?}: step {step}; it is at least 1 (use flip to go backwards)"
            )));
        }
        let size = self.shape()[dim];
        let at = |i: i64| (if i < 0 { i.saturating_add(size) } else { i }).clamp(0, size);
        let (first, end) = (at(start), at(end));
        let len = (end - first).max(0);
        self.cut(dim, first, len / step + i64::from(len % step != 0), step)
    }

    /// One element of a dimension, which is gone in the view.
    ///
    /// # Errors
    /// `InvalidArgument` for an index outside of the dimension.
    pub fn select(&self, dim: i64, index: i64) -> Result<Tensor> {
        let dim = self.dim_of_some("select", dim)?;
        let size = self.shape()[dim];
        if !(-size..size).contains(&index) {
            return Err(Error::invalid(format!(
                "select {self:?}: index {index} of dimension {dim}, which has {size}"
            )));
        }
        let one = self.cut(dim, if index < 0 { index + size } else { index }, 1, 1)?;
        one.without(|d, _| d == dim)
    }

    /// Dimensions of one element, and new ones in front, repeated to a shape. -1 keeps a size.
    ///
    /// # Errors
    /// `InvalidArgument` for a size that differs from one that is not 1.
    pub fn expand(&self, shape: &[i64]) -> Result<Tensor> {
        let (shape, strides) = layout::of_expanded(self.shape(), self.strides(), shape)?;
        self.with(shape, strides, self.offset())
    }

    /// A new dimension of one element before dimension `dim`; -1 is behind the last.
    ///
    /// # Errors
    /// `InvalidArgument` for a place that there is not, or a ninth dimension.
    pub fn unsqueeze(&self, dim: i64) -> Result<Tensor> {
        let dim = wrap(dim, self.rank() + 1).map_err(|e| e.context(format!("unsqueeze {self:?}")))?;
        let step = match self.shape().get(dim) {
            Some(n) => n.saturating_mul(self.strides()[dim]),
            None => 1,
        };
        let (before, behind) = self.shape().split_at(dim);
        let shape: Shape = before.iter().chain(&[1]).chain(behind).copied().collect();
        let mut strides = Strides::from_slice(self.strides());
        strides.insert(dim, step);
        self.with(shape, strides, self.offset())
    }

    /// Without a dimension if it has one element, else as it is.
    ///
    /// # Errors
    /// `InvalidArgument` for a dimension that it does not have.
    pub fn squeeze(&self, dim: i64) -> Result<Tensor> {
        let dim = self.dim("squeeze", dim)?;
        self.without(|d, n| d == dim && n == 1)
    }

    /// Without all dimensions of one element.
    pub fn squeeze_all(&self) -> Result<Tensor> {
        self.without(|_, n| n == 1)
    }

    /// The elements in the same order in another shape. One size may be -1: what is left.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of elements, and where the strides do not allow it without a copy
    /// ([`Ops::reshape`](crate::Ops::reshape) makes one).
    pub fn view(&self, shape: &[i64]) -> Result<Tensor> {
        let wanted =
            layout::infer_size(self.numel(), shape).map_err(|e| e.context(format!("view {self:?}")))?;
        self.try_view(&wanted)?.ok_or_else(|| {
            Error::invalid(format!(
                "view {self:?} as {wanted:?}: at least one dimension spans two that do not follow each other in memory; \
                 use Ops::reshape, which copies"
            ))
        })
    }

    /// The elements in another shape of as many, or none where the strides do not allow it.
    pub(crate) fn try_view(&self, shape: &[i64]) -> Result<Option<Tensor>> {
        let Some(strides) = layout::of_view(self.shape(), self.strides(), shape) else { return Ok(None) };
        self.with(shape, strides, self.offset()).map(Some)
    }

    /// Its shape with the dimensions from `start` to `end`, that one included, as a single one.
    pub(crate) fn flat_shape(&self, start: i64, end: i64) -> Result<Vec<i64>> {
        let (a, b) = (self.dim("flatten", start)?, self.dim("flatten", end)?);
        if a > b {
            return Err(Error::invalid(format!("flatten {self:?}: dimension {a} comes after {b}")));
        }
        if self.rank() == 0 {
            return Ok(vec![1]);
        }
        let shape = self.shape();
        Ok([&shape[..a], &[shape[a..=b].iter().product()], &shape[b + 1..]].concat())
    }

    /// All windows of `size` elements of a dimension, `step` apart: the dimension counts windows, and a new last one their
    /// elements. Windows may overlap.
    ///
    /// # Errors
    /// `InvalidArgument` for windows that are larger than the dimension, or a step below 1.
    pub fn unfold(&self, dim: i64, size: i64, step: i64) -> Result<Tensor> {
        let dim = self.dim("unfold", dim)?;
        let (all, stride) = match self.rank() {
            0 => (1, 1),
            _ => (self.shape()[dim], self.strides()[dim]),
        };
        if !(0..=all).contains(&size) || step < 1 {
            return Err(Error::invalid(format!(
                "unfold {self:?}: windows of {size} each {step} of dimension {dim}, which has {all}; steps are at least 1"
            )));
        }
        let (mut shape, mut strides) = (self.shape().to_vec(), Strides::from_slice(self.strides()));
        if self.rank() > 0 {
            shape[dim] = (all - size) / step + 1;
            strides[dim] = stride.saturating_mul(step);
        }
        shape.push(size);
        strides.push(stride);
        self.with(shape, strides, self.offset())
    }

    /// Any shape, strides and offset of its storage, in elements.
    ///
    /// # Errors
    /// `InvalidArgument` where that leads out of the storage, or sizes and strides are not equally many.
    pub fn as_strided(&self, shape: &[i64], strides: &[i64], offset: i64) -> Result<Tensor> {
        if shape.len() != strides.len() {
            return Err(Error::invalid(format!(
                "as_strided: shape {shape:?} and strides {strides:?} differ in length"
            )));
        }
        self.with(shape, Strides::from_slice(strides), offset).map_err(|e| e.context("as_strided"))
    }

    /// These dimensions backwards, by negative strides.
    ///
    /// # Errors
    /// `InvalidArgument` for a dimension that it does not have, or that comes twice.
    pub fn flip(&self, dims: &[i64]) -> Result<Tensor> {
        let (mut strides, mut offset) = (Strides::from_slice(self.strides()), self.offset());
        let mut flipped = Vec::with_capacity(dims.len());
        for d in dims {
            let dim = self.dim("flip", *d)?;
            if flipped.contains(&dim) {
                return Err(Error::invalid(format!(
                    "flip {self:?} along {dims:?}: dimension {dim} comes twice"
                )));
            }
            flipped.push(dim);
            if self.numel() != 0 && self.rank() > 0 {
                offset += (self.shape()[dim] - 1) * strides[dim];
                strides[dim] = strides[dim].saturating_neg();
            }
        }
        self.with(self.shape(), strides, offset)
    }

    /// A dimension by its number; a single element has one.
    fn dim(&self, what: &str, dim: i64) -> Result<usize> {
        self.spec().dim(dim).map_err(|e| e.context(format!("{what} {self:?}")))
    }

    /// A dimension of something that is no single element.
    fn dim_of_some(&self, what: &str, dim: i64) -> Result<usize> {
        if self.rank() == 0 {
            return Err(Error::invalid(format!("{what} {self:?}: a single element has no dimension {dim}")));
        }
        self.dim(what, dim)
    }

    /// Elements `first`, `first + step` ... of a dimension, all inside of it.
    fn cut(&self, dim: usize, first: i64, len: i64, step: i64) -> Result<Tensor> {
        let Spec { mut shape, .. } = self.spec().clone();
        let mut strides = Strides::from_slice(self.strides());
        let offset = self.offset().saturating_add(first.saturating_mul(strides[dim]));
        shape[dim] = len;
        strides[dim] = strides[dim].saturating_mul(step);
        self.with(shape, strides, offset)
    }

    /// Without the dimensions, of one element each, that `gone` names by number and size.
    fn without(&self, gone: impl Fn(usize, i64) -> bool) -> Result<Tensor> {
        let dims = || (0..self.rank()).filter(|d| !gone(*d, self.shape()[*d]));
        let shape: Shape = dims().map(|d| self.shape()[d]).collect();
        self.with(shape, dims().map(|d| self.strides()[d]).collect(), self.offset())
    }
}
