//! Tensors: typed, strided views of shared device memory.

use crate::layout::{self, Strides};
use crate::{MemoryFormat, Shape, Spec};
use ep_core::op::MAX_DIMS;
use ep_core::{DType, Element, Error, Result};
use ep_registry::{Buffer, Device, View, ViewMut};
use parking_lot::{RecursiveRwLock, RecursiveRwLockReadGuard, RecursiveRwLockWriteGuard};
use std::fmt;
use std::sync::Arc;

/// A typed view of device memory. Views share it: what [`Ops::copy_`](crate::Ops::copy_) writes through one is seen through
/// all. [`Tensor::alias`] shares as well; [`Ops::clone`](crate::Ops::clone) copies.
pub struct Tensor {
    storage: Arc<RecursiveRwLock<Buffer>>,
    /// Elements of the storage.
    len: usize,
    device: Device,
    spec: Spec,
    /// In elements, may be 0 and negative.
    strides: Strides,
    /// Elements before the one at index 0.
    offset: i64,
}

impl Tensor {
    /// All of a buffer as a dense tensor.
    ///
    /// # Errors
    /// `InvalidArgument` where the buffer has another number of elements than the shape, for more than 8 dimensions, and
    /// for a dtype whose elements do not fill bytes.
    pub fn from_buffer(buffer: Buffer, shape: &[i64]) -> Result<Tensor> {
        let spec = Spec::new(buffer.dtype(), shape);
        if usize::try_from(spec.count()?) != Ok(buffer.len()) {
            let len = buffer.len();
            return Err(Error::invalid(format!(
                "a buffer of {len} elements for a tensor {spec}; give it as many"
            )));
        }
        Tensor::new(buffer, spec, layout::contiguous(shape), 0)
    }

    /// A part of a buffer.
    pub(crate) fn new(buffer: Buffer, spec: Spec, strides: Strides, offset: i64) -> Result<Tensor> {
        if spec.dtype.size().is_none() {
            return Err(Error::invalid(format!(
                "a tensor of {}, whose elements do not fill bytes",
                spec.dtype
            )));
        }
        let (len, device) = (buffer.len(), buffer.device().clone());
        let whole =
            Tensor { storage: Arc::new(RecursiveRwLock::new(buffer)), len, device, spec, strides, offset };
        whole.check()?;
        Ok(whole)
    }

    /// The buffer, of a tensor that is all of it in order and shares it with no other.
    ///
    /// # Errors
    /// `InvalidArgument` for another one; [`Ops::clone`](crate::Ops::clone) makes one that can be given back.
    pub fn into_buffer(self) -> Result<Buffer> {
        let told = format!("{self:?}");
        let whole = self.is_whole();
        match Arc::try_unwrap(self.storage) {
            Ok(buffer) if whole => Ok(buffer.into_inner()),
            Ok(_) => Err(Error::invalid(format!("{told} is not all of its buffer in order; clone it first"))),
            Err(_) => {
                Err(Error::invalid(format!("{told} shares its buffer; drop its views, or clone it first")))
            }
        }
    }

    /// Another handle of the same memory, with the same shape and strides.
    #[must_use]
    pub fn alias(&self) -> Tensor {
        Tensor {
            storage: self.storage.clone(),
            len: self.len,
            device: self.device.clone(),
            spec: self.spec.clone(),
            strides: self.strides.clone(),
            offset: self.offset,
        }
    }

    /// The same memory with another shape; fails where that leads out of it.
    pub(crate) fn with(&self, shape: impl Into<Shape>, strides: Strides, offset: i64) -> Result<Tensor> {
        let spec = Spec::new(self.spec.dtype, shape);
        let (storage, device) = (self.storage.clone(), self.device.clone());
        let view = Tensor { storage, len: self.len, device, spec, strides, offset };
        view.check()?;
        Ok(view)
    }

    /// Rank, sizes, and that all elements are inside of the storage.
    fn check(&self) -> Result<()> {
        let rank = self.spec.rank();
        if rank > MAX_DIMS {
            return Err(Error::invalid(format!(
                "a tensor {}: rank {rank}, and at most {MAX_DIMS} is possible",
                self.spec
            )));
        }
        if self.spec.count()? == 0 {
            return Ok(());
        }
        let (mut first, mut last) = (i128::from(self.offset), i128::from(self.offset));
        for (n, step) in self.spec.shape.iter().zip(&self.strides) {
            let reach = i128::from(n - 1) * i128::from(*step);
            if reach < 0 { first += reach } else { last += reach }
        }
        if first < 0 || last >= self.len as i128 {
            return Err(Error::invalid(format!(
                "shape {:?} with strides {:?} and offset {} needs the elements {first} to {last} of a storage of {}",
                self.spec.shape, self.strides, self.offset, self.len
            )));
        }
        Ok(())
    }

    /// Its dtype and shape.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.spec.dtype
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &[i64] {
        &self.spec.shape
    }

    /// Dimensions.
    pub fn rank(&self) -> usize {
        self.spec.rank()
    }

    /// Steps of the dimensions, in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Elements of the storage before the one at index 0.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Elements.
    pub fn numel(&self) -> i64 {
        self.spec.shape.iter().product()
    }

    /// Whether the elements lie dense in the order of a format. The strides of dimensions of one element do not matter, nor,
    /// for `Contiguous`, those of a tensor without elements. Of `Preserve`: in any order.
    pub fn is_contiguous(&self, format: MemoryFormat) -> bool {
        layout::is_contiguous(format, &self.spec.shape, &self.strides)
    }

    /// Whether the elements fill one piece of memory, each once, in any order of the dimensions.
    pub fn is_dense_without_overlap(&self) -> bool {
        layout::is_dense(&self.spec.shape, &self.strides)
    }

    /// Whether both are views of one buffer.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// The address of the element at index 0, for raw launches and other libraries; of a tensor without elements that of its
    /// buffer. It is valid while a tensor of this buffer lives.
    pub fn address(&self) -> u64 {
        let size = self.spec.dtype.bytes_for_bounds();
        let offset = if self.numel() == 0 { 0 } else { self.offset as u64 };
        self.storage.read().address() + offset * size
    }

    /// The memory space of its buffer.
    pub fn space(&self) -> String {
        self.storage.read().space().to_owned()
    }

    /// Whether all memory from its first element to its last has been written, or is by queued work.
    pub fn is_written(&self) -> bool {
        let (first, len) = self.range();
        self.storage.read().written() >= (first + len) as u64 * self.spec.dtype.bytes_for_bounds() || len == 0
    }

    /// Waits for all work that was queued on its buffer, so that others may use its [`Tensor::address`]. Raw launches are not known to
    /// be on it.
    ///
    /// # Errors
    /// The error of that work.
    pub fn wait(&self) -> Result<()> {
        self.storage.read().wait()
    }

    /// Whether it is all of its buffer, in order.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_contiguous(MemoryFormat::Contiguous) && self.numel() == self.len as i64
    }

    /// First element of the storage that it reaches, and how many from there on.
    pub(crate) fn range(&self) -> (i64, i64) {
        if self.numel() == 0 {
            return (0, 0);
        }
        let (mut first, mut last) = (self.offset, self.offset);
        for (n, step) in self.spec.shape.iter().zip(&self.strides) {
            let reach = (n - 1) * step;
            if reach < 0 { first += reach } else { last += reach }
        }
        (first, last - first + 1)
    }

    /// The elements of a tensor that is all of its buffer, in order.
    pub(crate) fn download<T: Element>(&self) -> Result<Vec<T>> {
        self.storage.read().download()
    }

    fn check_contiguous(&self) -> Result<()> {
        if self.is_contiguous(MemoryFormat::Contiguous) {
            return Ok(());
        }
        Err(Error::invalid(format!("{self:?} is not contiguous; use Ops::contiguous first")))
    }

    /// Access for a launch that reads the elements of a contiguous tensor. While any such access exists, writing the
    /// storage waits; so take it right before the launch, and before [`Tensor::write`] of the output.
    ///
    /// # Errors
    /// `InvalidArgument` for a tensor that is not contiguous.
    pub fn read(&self) -> Result<TensorRead<'_>> {
        self.check_contiguous()?;
        Ok(self.read_strided())
    }

    /// Access for a launch that takes strides.
    pub fn read_strided(&self) -> TensorRead<'_> {
        let (first, len) = self.range();
        // Recursive: one tensor may be two operands, and a thread must not wait for itself when another wants to write.
        let buffer = self.storage.read();
        TensorRead { buffer, first: first as usize, len: len as usize, offset: self.start(first) }
    }

    /// Access for a launch that writes the elements of a contiguous tensor: an output that the operator has just made. It
    /// waits until nobody reads or writes the storage, so it must be taken last, and no thread may hold a second one. For a
    /// tensor that others know use [`Tensor::lock`].
    ///
    /// # Errors
    /// `InvalidArgument` for a tensor that is not contiguous.
    pub fn write(&self) -> Result<TensorWrite<'_>> {
        self.check_contiguous()?;
        Ok(self.write_strided())
    }

    /// Access for a launch that takes strides. What it leaves out between the elements has to be written before.
    pub fn write_strided(&self) -> TensorWrite<'_> {
        let (first, len) = self.range();
        let buffer = self.storage.write();
        TensorWrite { buffer, first: first as usize, len: len as usize, offset: self.start(first) }
    }

    /// Elements from the first reached one to the one at index 0.
    fn start(&self, first: i64) -> i64 {
        if self.numel() == 0 { 0 } else { self.offset - first }
    }

    /// Access to tensors that a launch reads, and to one that it writes and that other threads may know too: in one order
    /// for all, so that two threads that copy to and fro do not wait for each other. None that is read shares the storage
    /// of the one that is written, and the thread holds no other access.
    pub fn lock<'a, const N: usize>(
        reads: [&'a Tensor; N],
        write: &'a Tensor,
    ) -> ([TensorRead<'a>; N], TensorWrite<'a>) {
        debug_assert!(reads.iter().all(|read| !read.shares_storage(write)), "it would wait for itself");
        let written = Arc::as_ptr(&write.storage);
        let mut order: [usize; N] = std::array::from_fn(|i| i);
        order.sort_unstable_by_key(|i| Arc::as_ptr(&reads[*i].storage));
        let mut held = [const { None }; N];
        let (before, behind): (Vec<usize>, Vec<usize>) =
            order.into_iter().partition(|i| Arc::as_ptr(&reads[*i].storage) < written);
        before.into_iter().for_each(|i| held[i] = Some(reads[i].read_strided()));
        let write = write.write_strided();
        behind.into_iter().for_each(|i| held[i] = Some(reads[i].read_strided()));
        (held.map(|read| read.expect("each is before or behind")), write)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, strides {:?}", self.spec, self.strides)?;
        if self.offset != 0 {
            write!(f, ", offset {}", self.offset)?;
        }
        write!(f, ", on {})", self.device.name())
    }
}

/// Access to a tensor that is read by a launch.
#[derive(Debug)]
pub struct TensorRead<'a> {
    buffer: RecursiveRwLockReadGuard<'a, Buffer>,
    first: usize,
    len: usize,
    offset: i64,
}

impl TensorRead<'_> {
    /// The memory from the first element in it to the last.
    ///
    /// # Errors
    /// None: a tensor is inside of its buffer.
    pub fn view(&self) -> Result<View<'_>> {
        self.buffer.slice(self.first, self.len)
    }

    /// Elements from the start of that memory to the one at index 0: 0 unless a stride is negative.
    pub fn offset(&self) -> i64 {
        self.offset
    }
}

/// Access to a tensor that is written by a launch.
#[derive(Debug)]
pub struct TensorWrite<'a> {
    buffer: RecursiveRwLockWriteGuard<'a, Buffer>,
    first: usize,
    len: usize,
    offset: i64,
}

impl TensorWrite<'_> {
    /// The memory from the first element in it to the last.
    ///
    /// # Errors
    /// None: a tensor is inside of its buffer.
    pub fn view(&mut self) -> Result<ViewMut<'_>> {
        self.buffer.slice_mut(self.first, self.len)
    }

    /// Elements from the start of that memory to the one at index 0: 0 unless a stride is negative.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// The element type.
    pub(crate) fn dtype(&self) -> DType {
        self.buffer.dtype()
    }

    /// What has to be filled before a launch writes this, and its bytes: from what has been written to where the launch
    /// begins, or ends where it leaves gaps.
    pub(crate) fn unwritten(&mut self, gaps: bool) -> Result<Option<(ViewMut<'_>, i64)>> {
        let end = if gaps { self.first + self.len } else { self.first };
        let size = self.buffer.dtype().bytes_for_bounds();
        let written = (self.buffer.written() / size) as usize;
        if written >= end {
            return Ok(None);
        }
        let bytes = (end - written) as i64 * size as i64;
        Ok(Some((self.buffer.slice_mut(written, end - written)?, bytes)))
    }
}
