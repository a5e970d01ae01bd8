//! Tensors: typed, strided views of shared device memory.

use crate::Spec;
use ep_core::{DType, Result};
use ep_registry::{Buffer, Device};
use parking_lot::RwLock;
use std::sync::Arc;

/// A typed view of device memory. Views share it; [`Tensor::copy_`](crate::Ops::copy_) through one is seen by all.
#[derive(Debug)]
pub struct Tensor {
    storage: Arc<RwLock<Buffer>>,
    device: Device,
    spec: Spec,
    /// In elements, may be 0 and negative.
    strides: Vec<i64>,
    /// Elements before the first one.
    offset: i64,
}

impl Tensor {
    /// All of a buffer as a dense tensor.
    ///
    /// # Errors
    /// `InvalidArgument` where the buffer has another number of elements than the shape.
    pub fn from_buffer(buffer: Buffer, shape: &[i64]) -> Result<Tensor> {
        let _ = (buffer, shape);
        Err(ep_core::Error::internal("to be written"))
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

    /// Steps of the dimensions, in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
