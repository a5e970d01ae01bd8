//! Copies: to other layouts, dtypes and devices, as PyTorch's `contiguous`, `clone`, `to` and `copy_`.

use crate::layout::{self, Strides};
use crate::tensor::TensorWrite;
use crate::{MemoryFormat, Ops, Spec, Tensor};
use ep_core::primitive::{Memset, MemsetCall, MemsetDesc, StridedCopy, StridedCopyCall, StridedCopyDesc};
use ep_core::{Code, DType, Error, Result, Scalar};

impl Ops<'_> {
    /// The tensor itself where it has the format already, else a copy that has.
    ///
    /// # Errors
    /// `InvalidArgument` for `Preserve`, which every tensor has, for a format of another rank, and for a tensor of another
    /// device; else as [`Ops::apply`].
    pub fn contiguous(&self, t: &Tensor, format: MemoryFormat) -> Result<Tensor> {
        if format == MemoryFormat::Preserve {
            return Err(Error::invalid(
                "contiguous: Preserve is no format to have; name another, or use clone",
            ));
        }
        if t.is_contiguous(format) {
            return Ok(t.alias());
        }
        self.copied("contiguous", t, t.dtype(), format)
    }

    /// A copy with memory of its own. `Preserve` keeps the strides of what is dense and has no overlap; of anything else it
    /// keeps the order of the dimensions.
    ///
    /// # Errors
    /// `InvalidArgument` for a format of another rank, and for a tensor of another device; else as [`Ops::apply`].
    pub fn clone(&self, t: &Tensor, format: MemoryFormat) -> Result<Tensor> {
        self.copied("clone", t, t.dtype(), format)
    }

    /// The tensor itself where it has the dtype already, else a copy converted as the primitive `cast` does.
    ///
    /// # Errors
    /// `InvalidArgument` for a tensor of another device; else as [`Ops::apply`].
    pub fn to_dtype(&self, t: &Tensor, dtype: DType) -> Result<Tensor> {
        if t.dtype() == dtype {
            return Ok(t.alias());
        }
        self.copied("to_dtype", t, dtype, MemoryFormat::Preserve)
    }

    /// The tensor itself where it is on this device already, else a copy with the same strides where these are dense, or
    /// repeat elements.
    ///
    /// # Errors
    /// `OutOfMemory`, or a provider's.
    pub fn to_device(&self, t: &Tensor) -> Result<Tensor> {
        if t.device() == self.device() { Ok(t.alias()) } else { Ok(self.bring(t)?.0) }
    }

    /// The same elements in another shape: a view where the strides allow it, else a copy. One size may be -1.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of elements; else as [`Ops::contiguous`].
    pub fn reshape(&self, t: &Tensor, shape: &[i64]) -> Result<Tensor> {
        let wanted = layout::infer_size(t.numel(), shape).map_err(|e| e.context(format!("reshape {t:?}")))?;
        match t.try_view(&wanted)? {
            Some(view) => Ok(view),
            None => self.copied("reshape", t, t.dtype(), MemoryFormat::Contiguous)?.view(&wanted),
        }
    }

    /// The dimensions from `start` to `end`, that one included, as a single one: a view or a copy as [`Ops::reshape`].
    ///
    /// # Errors
    /// `InvalidArgument` for dimensions that it does not have, or in the wrong order; else as [`Ops::contiguous`].
    pub fn flatten(&self, t: &Tensor, start: i64, end: i64) -> Result<Tensor> {
        self.reshape(t, &t.flat_shape(start, end)?)
    }

    /// Copies the elements of `src`, broadcast to the shape of `dst` and converted to its dtype, into `dst`, on whose device
    /// it is done. `dst` may be any view whose strides, in order of size, each step over all that the smaller ones reach. Where both share memory, the result is as if
    /// `src` had been copied first. Where a fallback does it, elements between those of `dst` may go there and come back
    /// as well: what other threads write to them meanwhile is lost.
    ///
    /// # Errors
    /// `InvalidArgument` for shapes that do not broadcast, and for a `dst` with overlap; else as [`Ops::apply`].
    pub fn copy_(&self, dst: &Tensor, src: &Tensor) -> Result<()> {
        let source =
            src.expand(dst.shape()).map_err(|e| e.context(format!("copy_ from {src:?} to {dst:?}")))?;
        if layout::may_overlap(dst.shape(), dst.strides()) {
            return Err(Error::invalid(format!(
                "copy_ to {dst:?}: some of its elements share memory; write to a clone, or to what it was expanded from"
            )));
        }
        if dst.numel() == 0 || (dst.shares_storage(&source) && dst.same_elements(&source)) {
            return Ok(());
        }
        self.on(dst.device(), |ops| {
            let source = if source.device() != dst.device() {
                ops.to_device(src)?.expand(dst.shape())?
            } else if dst.shares_storage(&source) {
                ops.copied("copy_", src, src.dtype(), MemoryFormat::Preserve)?.expand(dst.shape())?
            } else {
                source
            };
            let run = |there: &Ops<'_>, operands: &[&Tensor]| {
                let done = there.write_to(operands[0], operands[1]);
                if there.device() == ops.device()
                    && done.as_ref().is_err_and(|e| e.code() == Code::Unsupported)
                {
                    // It goes elsewhere as it is, which is to be read for that.
                    ops.zero(&mut dst.write_strided())?;
                }
                done?;
                // On another device that was a copy of the destination, which has to come back.
                Ok(if there.device() == ops.device() { Vec::new() } else { vec![operands[0].span()?] })
            };
            match ops.attempt("copy_", &[dst, &source], &run)?.first() {
                None => Ok(()),
                // It went there as it lies in memory, or else packed.
                Some(written) if written.numel() == dst.range().1 => ops.write_to(&dst.span()?, written),
                Some(written) => ops.write_to(dst, &written.view(dst.shape())?),
            }
        })
    }

    /// A copy of another dtype and format.
    fn copied(&self, name: &'static str, t: &Tensor, dtype: DType, format: MemoryFormat) -> Result<Tensor> {
        self.check_devices(name, &[t])?;
        let strides = layout::of_format(format, t.shape(), t.strides()).map_err(|e| e.context(name))?;
        let made = self.attempt(name, &[t], &|ops, inputs| {
            Ok(vec![ops.strided(inputs[0], dtype, strides.clone())?])
        })?;
        made.into_iter().next().ok_or_else(|| Error::internal(format!("{name}: no output")))
    }

    /// A copy of another dtype and dense strides, on this device or not at all.
    pub(crate) fn strided(&self, t: &Tensor, dtype: DType, strides: Strides) -> Result<Tensor> {
        let out = self.empty_strided(Spec::new(dtype, t.shape()), strides)?;
        self.write_to(&out, t)?;
        Ok(out)
    }

    /// A copy of a tensor of another device with its strides, and the bytes that this took.
    pub(crate) fn bring(&self, t: &Tensor) -> Result<(Tensor, u64)> {
        let (first, len) = t.range();
        if len > t.numel() {
            // With gaps: only what is in it, unless its device cannot.
            let packed = self.on(t.device(), |ops| ops.strided(t, t.dtype(), layout::contiguous(t.shape())));
            match packed {
                Ok(packed) => return self.bring(&packed),
                Err(e) if e.code() == Code::Unsupported => {}
                Err(e) => return Err(e),
            }
        }
        let mut buffer = self.alloc(t.dtype(), len as usize)?;
        self.stream().copy(t.read_strided().view()?, &mut buffer)?;
        let bytes = buffer.bytes();
        let offset = if len == 0 { 0 } else { t.offset() - first };
        Ok((Tensor::new(buffer, t.spec().clone(), Strides::from_slice(t.strides()), offset)?, bytes))
    }

    /// Writes `src` to `dst` of the same shape and other memory, both on this device.
    fn write_to(&self, dst: &Tensor, src: &Tensor) -> Result<()> {
        if dst.numel() == 0 {
            return Ok(());
        }
        if dst.dtype() == src.dtype() && dst.is_dense_without_overlap() && dst.same_layout(src) {
            let ([src], mut dst) = Tensor::lock([src], dst);
            self.fill_before(&mut dst, false)?;
            return self.stream().copy(src.view()?, dst.view()?);
        }
        let copy = self.primitive::<StridedCopy>(StridedCopyDesc::new(src.dtype(), dst.dtype()))?;
        let (dims, src_strides, dst_strides) = (dst.shape(), src.strides(), dst.strides());
        let gaps = dst.range().1 > dst.numel();
        let ([src], mut dst) = Tensor::lock([src], dst);
        self.fill_before(&mut dst, gaps)?;
        let (src_offset, dst_offset) = (src.offset(), dst.offset());
        let (src, dst) = (src.view()?, dst.view()?);
        copy.launch(
            self.stream(),
            StridedCopyCall { dims, src_strides, dst_strides, src_offset, dst_offset, src, dst },
        )
    }

    /// Sets to 0 what a launch leaves out and nobody has written, because buffers count what is written from the start.
    fn fill_before(&self, dst: &mut TensorWrite<'_>, gaps: bool) -> Result<()> {
        // What a recording has written cannot be told apart here: then the launch says what is missing.
        if self.stream().is_recording() {
            return Ok(());
        }
        let Some((rest, bytes)) = dst.unwritten(gaps)? else { return Ok(()) };
        match self.primitive::<Memset>(MemsetDesc::new()) {
            Ok(memset) => {
                memset.launch(self.stream(), MemsetCall { bytes, value: Scalar::I64(0), dst: rest })
            }
            Err(e) if e.code() == Code::Unsupported => self.zero(dst),
            Err(e) => Err(e),
        }
    }

    /// Sets to 0 what nobody has written up to the end of `dst`, by a copy, which every device can. (Not while a graph is
    /// recorded.)
    fn zero(&self, dst: &mut TensorWrite<'_>) -> Result<()> {
        let dtype = dst.dtype();
        let Some((rest, bytes)) = dst.unwritten(true)?.filter(|_| !self.stream().is_recording()) else {
            return Ok(());
        };
        let zeros = match dtype {
            DType::BOOL => self.upload(&vec![false; bytes as usize])?,
            _ => self.upload(&vec![0u8; bytes as usize])?.reinterpret(dtype)?,
        };
        self.stream().copy(&zeros, rest)
    }
}

impl Tensor {
    /// The memory from its first element to its last, as it lies there.
    fn span(&self) -> Result<Tensor> {
        let (first, len) = self.range();
        self.with([len], Strides::from_slice(&[1]), first)
    }

    /// Whether equal indices are equal distances from the first element.
    fn same_layout(&self, other: &Tensor) -> bool {
        let strides = self.strides().iter().zip(other.strides()).zip(self.shape());
        self.shape() == other.shape() && strides.into_iter().all(|((a, b), n)| a == b || *n == 1)
    }

    /// Whether equal indices are the same element, of tensors that share storage.
    fn same_elements(&self, other: &Tensor) -> bool {
        self.offset() == other.offset() && self.same_layout(other)
    }
}
