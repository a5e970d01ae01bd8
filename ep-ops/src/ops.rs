//! Running operators on a device, and elsewhere where it cannot.

use crate::{Operator, Tensor};
use ep_core::Result;
use ep_registry::{Device, Runtime, Stream};
use parking_lot::Mutex;

/// An operator that ran on another device than it was asked on, and what that copied.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// The operator.
    pub operator: &'static str,
    /// The device it was asked on.
    pub from: String,
    /// The device it ran on.
    pub to: String,
    /// Bytes that were copied there and back.
    pub bytes: u64,
    /// Why the first device did not do it.
    pub reason: String,
}

/// Runs operators on a device.
#[derive(Debug)]
pub struct Ops<'r> {
    runtime: &'r Runtime,
    device: Device,
    stream: Stream,
    /// Devices tried in this order where `device` lacks a primitive.
    fallback: Vec<Device>,
    fallbacks: Mutex<Vec<Fallback>>,
}

impl Ops<'_> {
    /// Runs an operator.
    ///
    /// # Errors
    /// `InvalidArgument` for inputs that do not fit or lie on another device; `Unsupported` where neither the device nor a
    /// fallback has what it takes.
    pub fn apply(&self, operator: &dyn Operator, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let _ = (self.runtime, &self.stream, &self.fallback, operator, inputs);
        Err(ep_core::Error::internal("to be written"))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What ran elsewhere so far.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.fallbacks.lock().clone()
    }
}
